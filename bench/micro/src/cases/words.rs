//! What stands in shared words.

use std::hint::black_box;

use penstock_ring::{CounterTable, Hazard, RingLine, Slab, mpsc, spsc};
use rustix::thread::futex;

use crate::Refusal;
use crate::bench::{Bench, Body};

pub(super) const ALL: &[Bench] = &[
    Bench { name: "spsc-push-pop", per: "line", each: LINES, prepare: ring },
    Bench { name: "mpsc-push-pop", per: "value", each: VALUES, prepare: queue },
    Bench { name: "slab-claim-release", per: "item", each: 1, prepare: slab },
    Bench { name: "hazard-enter-leave", per: "section", each: 1, prepare: hazard },
    Bench { name: "counter-add", per: "arrival", each: 1, prepare: counter },
    Bench { name: "counter-add-wake", per: "arrival", each: 1, prepare: counter_and_futex },
];

const LINES: u64 = 64;
const VALUES: u64 = 32;

fn ring() -> Result<Body, Refusal> {
    let (mut producer, mut consumer) = spsc::pair(256)?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            for number in 0..LINES {
                producer.push(&[RingLine([number; 8])])?;
            }
            while consumer.available()? > 0 {
                black_box(consumer.peek(0));
                black_box(consumer.release(1));
            }
        }
        Ok(())
    }))
}

fn queue() -> Result<Body, Refusal> {
    let (sender, mut receiver) = mpsc::channel::<[u64; 8]>(64);
    Ok(Box::new(move |times| {
        for _ in 0..times {
            for number in 0..VALUES {
                sender.push([number; 8]).map_err(|_| "a queue with room is full")?;
            }
            while let Some(value) = receiver.pop() {
                black_box(value);
            }
        }
        Ok(())
    }))
}

fn slab() -> Result<Body, Refusal> {
    let slab = Slab::new(1_024, |index| index);
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let key = slab.claim().ok_or("a slab with room is full")?;
            black_box(slab.get(key));
            slab.release(key)?;
        }
        Ok(())
    }))
}

fn hazard() -> Result<Body, Refusal> {
    let mut hazard = Hazard::heap();
    Ok(Box::new(move |times| {
        for _ in 0..times {
            hazard.enter(black_box(3));
            hazard.leave();
        }
        Ok(())
    }))
}

fn counter() -> Result<Body, Refusal> {
    let table = CounterTable::heap(1);
    Ok(Box::new(move |times| {
        let cell = table.cell(0).ok_or("a table of one has one")?;
        for _ in 0..times {
            black_box(cell.count(0).ok_or("it has the use that it begins with")?);
        }
        Ok(())
    }))
}

/// As if somebody slept on the counter: the price of the system call, with nobody to wake.
fn counter_and_futex() -> Result<Body, Refusal> {
    let table = CounterTable::heap(1);
    table.cell(0).ok_or("a table of one has one")?.add_waiter();
    Ok(Box::new(move |times| {
        let cell = table.cell(0).ok_or("a table of one has one")?;
        for _ in 0..times {
            if cell.count(0) == Some(true) {
                futex::wake(cell.futex_word(), futex::Flags::empty(), 1)?;
            }
        }
        Ok(())
    }))
}
