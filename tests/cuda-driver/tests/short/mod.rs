//! Calls between copies for which the driver has no memory.

use std::time::{Duration, Instant};

use penstock::{Cause, Plan, PoolSpec, Span, Submit};
use penstock_cuda_driver::protocol::Kind;

use crate::MIB;
use crate::card::{Buffer, Card, ProgramStream, Shortage};
use crate::engines::{PATIENCE, Pair, pattern};
use crate::ordered::order;
use crate::staged::wait_until;

/// Those that make a context current.
const CONTEXTS: u64 = 1;

const BLOCK: u64 = 4096;

const fn bit(kind: Kind) -> u64 {
    1 << kind as u64
}

/// Blocks in the order in which they arrive.
fn moved(seed: u64) -> Vec<u8> {
    pattern(MIB, seed).chunks(BLOCK as usize).rev().flatten().copied().collect()
}

/// To the device, within it and back: nothing is lost, and nothing ends before its bytes are there.
pub(crate) fn for_a_while() {
    let pair = Pair::start(|mut config| {
        config.workers.spin_us = 0;
        config
    });
    let (here, there, other) = (Buffer::new(MIB), Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    let near = pair.near.pool(PoolSpec::host(MIB).block(4096).label("near")).unwrap();
    there.register(&pair.far, "there");
    other.register(&pair.far, "other");
    let far = pair.far.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let seen = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    let blocks = MIB / BLOCK;
    let span = |at| Span { local: at * BLOCK, remote: (blocks - 1 - at) * BLOCK, len: BLOCK };
    let spans: Vec<Span> = (0..blocks).map(span).collect();
    let plans = [
        Plan::write(&local, &seen("there")).extents(&spans).build().unwrap(),
        Plan::write(&local, &seen("host")).extents(&spans).build().unwrap(),
        Plan::write(&near, &seen("other")).extents(&spans).build().unwrap(),
    ];
    let (card, stream) = (Card::of_this_process(), ProgramStream::on(0));
    let copies = bit(Kind::Copy) | bit(Kind::Batch);
    let calls =
        [CONTEXTS, bit(Kind::Wait), bit(Kind::Batch), bit(Kind::Copy), copies, bit(Kind::Word), bit(Kind::Call)];
    for (round, calls) in (1..).zip(calls.into_iter().chain(calls)) {
        here.write(&pattern(MIB, round));
        near.window().write_from(0, &pattern(MIB, round + 50)).unwrap();
        order(0, &stream).unwrap();
        let shortage = Shortage::of(calls);
        card.hold();
        let transfers = plans.each_ref().map(|plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap());
        // Of a batch the copies are given one by one.
        let times = if calls == bit(Kind::Batch) { 1 } else { 4 };
        wait_until(|| shortage.refused() >= times);
        card.go_on();
        if [bit(Kind::Batch), bit(Kind::Call)].contains(&calls) {
            wait_until(|| transfers.iter().all(|transfer| transfer.poll().is_some()));
        }
        drop(shortage);
        transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB, "{calls:#x}"));
        let mut bytes = vec![0; MIB as usize];
        far.window().read_into(0, &mut bytes).unwrap();
        assert!(bytes == moved(round) && there.read() == bytes, "{calls:#x}");
        assert!(other.read() == moved(round + 50), "{calls:#x}");
    }
}

/// What is taken back is what the stream does not have, and nothing of the half flush before it.
pub(crate) fn given_up_behind_half_a_flush() {
    let pair = Pair::start(|config| config);
    let buffers = [(); 4].map(|()| Buffer::new(MIB));
    let [first, second] = [0, 1].map(|at| buffers[at].register(&pair.near, "near"));
    buffers[2].register(&pair.far, "first");
    buffers[3].register(&pair.far, "second");
    let plan = |local, label| {
        let region = pair.peer.wait_region(label, PATIENCE).unwrap();
        Plan::write(local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap()
    };
    let plans = [plan(&first, "first"), plan(&second, "second")];
    buffers.iter().zip(1..).for_each(|(buffer, seed)| buffer.write(&pattern(MIB, seed)));
    let shortage = Shortage::of(bit(Kind::Copy));
    let submit = |plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap();
    let goes = submit(&plans[0]);
    wait_until(|| shortage.refused() >= 2);
    let given_up = submit(&plans[1]);
    let before = shortage.refused();
    wait_until(|| shortage.refused() >= before + 2);
    assert!(given_up.cancel(PATIENCE).local.is_quiesced(), "no stream has it");
    drop(shortage);
    assert_eq!(goes.wait().unwrap().bytes, MIB);
    assert!(buffers[2].read() == pattern(MIB, 1), "some of its bytes were taken back");
    assert!(buffers[3].read() == pattern(MIB, 4), "it was given up");
}

/// What is asked again has an end, if half of it is there: the rest waits for its deadline, and its device is well afterwards.
pub(crate) fn not_begun_for_ever() {
    let pair = Pair::start(|config| config);
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    there.register(&pair.far, "there");
    let region = pair.peer.wait_region("there", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    let shortage = Shortage::of(CONTEXTS);
    let submit = |within| pair.peer.submit(&plan, Submit::new().within(within)).unwrap();
    let late = submit(Duration::from_millis(1500)).wait().unwrap_err();
    assert_eq!(late.cause, Cause::DeadlineExceeded);
    drop(shortage);
    // It is no part of the second that another one has, much later.
    std::thread::sleep(Duration::from_millis(1100));
    let shortage = Shortage::of(bit(Kind::Copy));
    let goes = submit(PATIENCE);
    wait_until(|| shortage.refused() >= 2);
    drop(shortage);
    assert_eq!(goes.wait().unwrap().bytes, MIB);
    assert_eq!(submit(PATIENCE).wait().unwrap().bytes, MIB);
}

/// What is asked again has an end.
pub(crate) fn for_ever() {
    let pair = Pair::start(|config| config);
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    there.register(&pair.far, "there");
    let region = pair.peer.wait_region("there", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    let (begun, _shortage) = (Instant::now(), Shortage::of(bit(Kind::Word)));
    let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeviceFailed);
    assert!(begun.elapsed() > Duration::from_millis(900) && begun.elapsed() < Duration::from_secs(5));
}
