//! Submit to complete, and a notification there and back.

use std::hint::black_box;

use penstock::config::TransportName;
use penstock::{NoteId, Plan, Span, Submit};

use crate::Refusal;
use crate::bench::{Bench, Body};
use crate::pair::Pair;

pub(super) const ALL: &[Bench] = &[
    Bench { name: "submit-8B-local", per: "transfer", each: 1, prepare: || submit(TransportName::Local, 8) },
    Bench { name: "submit-4KiB-local", per: "transfer", each: 1, prepare: || submit(TransportName::Local, 4096) },
    Bench { name: "submit-8B-shm", per: "transfer", each: 1, prepare: || submit(TransportName::Shm, 8) },
    Bench { name: "notify-shm", per: "notification", each: 1, prepare: notify },
];

/// Both engines are turned by one thread, so that the time is all work and no waiting.
fn submit(transport: TransportName, bytes: u64) -> Result<Body, Refusal> {
    let pair = Pair::connected(transport, 1 << 20)?;
    let span = Span { local: 8192, remote: 64 << 10, len: bytes };
    let plan = Plan::write(&pair.pool, &pair.remote).extents(&[span]).build()?;
    Ok(Box::new(move |times| {
        let pair = &pair; // All of it is the closure's: an engine that nobody holds shuts down.
        for _ in 0..times {
            let transfer = pair.peer.submit(&plan, Submit::new())?;
            black_box(transfer.poll().ok_or("a plan of one unit is still moving")??);
        }
        Ok(())
    }))
}

/// From the call to the other side's inbox, and out of it.
fn notify() -> Result<Body, Refusal> {
    const TURNS_MAX: u32 = 10_000;
    let pair = Pair::connected(TransportName::Shm, 1 << 20)?;
    let mut arrived = Vec::new();
    Ok(Box::new(move |times| {
        let pair = &pair; // As above.
        for number in 0..times {
            let transfer = pair.peer.notify(NoteId(number.into()), b"a layer is there", Submit::new())?;
            arrived.clear();
            let mut turns = 0;
            while pair.target.notifications(&mut arrived) == 0 || transfer.poll().is_none() {
                pair.initiator.progress()?;
                pair.target.progress()?;
                turns += 1;
                if turns > TURNS_MAX {
                    return Err("a notification did not arrive".into());
                }
            }
        }
        Ok(())
    }))
}
