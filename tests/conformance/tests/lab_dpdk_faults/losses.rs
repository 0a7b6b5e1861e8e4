//! Packets that are lost between two devices, both ways.

use std::time::Duration;

use penstock::{Plan, Span, Submit};
use penstock_conformance::stage::{KV, all_end_well, apply};
use penstock_conformance::{Carrier, dpdk, pattern};

use super::{HEARTBEAT, alone, on_a_bridge};

const BYTES: u64 = 32 << 20;
const HALF: u64 = BYTES / 2;
/// Small writes, which go several in a packet, and the distance between them.
const SMALL: u64 = 2000;
const STEP: u64 = 4096;
/// The seed of what is written the second time.
const OTHER_SEED: u64 = 3;

#[test]
fn every_byte_arrives_though_a_tenth_of_the_packets_is_lost() {
    let name = "every_byte_arrives_though_a_tenth_of_the_packets_is_lost";
    let Some(_alone) = alone(name, Carrier::Bridge) else { return };
    for percent in [1, 10] {
        let mut stage = on_a_bridge(BYTES, HEARTBEAT);
        let (mut near, mut far) = stage.models();
        let loss = dpdk::Loss::begin(stage.folder.path(), percent);
        let there = Span { local: 0, remote: HALF, len: HALF };
        let back = Span { local: HALF, remote: 0, len: HALF };
        // Both ways at once.
        let plans = [
            Plan::write(&stage.near, &stage.far()).extents(&[there]).build().unwrap(),
            Plan::read(&stage.near, &stage.far()).extents(&[back]).build().unwrap(),
        ];
        all_end_well(&plans.map(|plan| stage.submit(stage.peer(), &plan, Submit::new())));
        let before = near.clone();
        apply(back, &far, &mut near, false);
        apply(there, &before, &mut far, true);
        stage.assert_near(&near);
        stage.assert_far(0, KV, &far);

        pattern::fill(stage.near.window(), OTHER_SEED);
        near = pattern::bytes(OTHER_SEED, 0, BYTES as usize);
        let spans =
            (0..SMALL).map(|number| Span { local: number * STEP, remote: BYTES - (number + 1) * STEP, len: 64 });
        let small: Vec<_> = spans
            .map(|span| {
                apply(span, &near, &mut far, true);
                let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
                stage.submit(stage.peer(), &plan, Submit::new())
            })
            .collect();
        all_end_well(&small);
        stage.assert_far(0, KV, &far);
        assert_eq!(stage.peer().ended(), None, "{percent} % lost");

        let (lost, counted) = (loss.end(), stage.engine.packet_statistics());
        let share = lost.packets as f64 / lost.of as f64 * 100.0;
        eprintln!("{share:.1} % of {} packets lost; of its own the initiator knew {} as lost", lost.of, counted.lost);
        assert!(lost.packets > 0 && counted.lost > 0, "{lost:?}, {counted:?}");
    }
}

/// What this process has had of processors so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_sender_that_hears_nothing_naps() {
    let Some(_alone) = alone("a_sender_that_hears_nothing_naps", Carrier::Bridge) else { return };
    const SILENT: Duration = Duration::from_secs(1);
    let stage = on_a_bridge(BYTES, HEARTBEAT);
    let plan =
        Plan::write(&stage.near, &stage.far()).extents(&[Span { local: 0, remote: 0, len: BYTES }]).build().unwrap();
    let transfers: Vec<_> = (0..4).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    let loss = dpdk::Loss::begin(stage.folder.path(), 100);
    std::thread::sleep(Duration::from_millis(50));
    let before = processor_time();
    std::thread::sleep(SILENT);
    let took = processor_time() - before;
    assert!(transfers.iter().any(|transfer| transfer.poll().is_none()), "all was through before");
    drop(loss);
    all_end_well(&transfers);
    eprintln!("in {SILENT:?} of silence a sender took {took:.2?} of a processor");
    assert!(took < SILENT / 4, "{took:?}");
}
