//! The event fd, blocking, statistics.

use std::time::{Duration, Instant};

use penstock::{Armed, Cause, Fault, NoteId, Plan, Span, Stage as FaultStage, Submit};

use crate::command::{Command, Reply};
use crate::stage::{KV, PATIENCE, Stage, all_end_well, apply};
use crate::target::wait_readable;
use crate::{Engine, Setting, Transfer};

/// Sleeping on the event fd between two looks, every end of a transfer is noticed.
pub fn no_end_is_slept_through(setting: &Setting) {
    const ROUNDS: u64 = 300;
    let mut stage = Stage::open(setting);
    let small = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    let large = Span { local: 0, remote: 0, len: 1 << 20 };
    let large = Plan::write(&stage.near, &stage.far()).extents(&[large]).build().unwrap();
    for round in 0..ROUNDS {
        let plan = if round % 3 == 0 { &large } else { &small };
        let how = Submit::new().notify(NoteId(round.into()), b"");
        let transfer = stage.submit(stage.peer(), plan, how);
        while transfer.poll().is_none() {
            stage.engine.progress_all().unwrap();
            if transfer.poll().is_some() || stage.engine.arm().unwrap() == Armed::Busy {
                continue;
            }
            assert!(wait_readable(&stage.engine, PATIENCE / 4), "round {round}: slept through the end");
        }
    }
    assert_eq!(stage.take_notes(0, ROUNDS as usize, PATIENCE).len(), ROUNDS as usize);
}

/// Sleeping on the event fd between two looks, every notification is noticed.
pub fn no_arrival_is_slept_through(setting: &Setting) {
    const ROUNDS: usize = 400;
    let mut stage = Stage::open(setting);
    stage.tell(0, Command::SleepForNotes { count: ROUNDS, within_ms: PATIENCE.as_millis() as u64 });
    let mut random = crate::pattern::Random::new(8);
    for id in 0..ROUNDS {
        stage.notify(stage.peer(), id as u128, b"wake up", Submit::new()).wait().unwrap();
        // Anything from at once to long after the receiver fell asleep.
        let pause = Duration::from_nanos(1 << random.below(19));
        let since = Instant::now();
        while since.elapsed() < pause {
            stage.engine.progress().unwrap();
        }
    }
    match stage.hear(0) {
        Reply::Notes(notes) => assert_eq!(notes.len(), ROUNDS),
        other => panic!("{other:?}"),
    }
}

/// Arming says "busy" exactly once for what has happened, and an idle engine's event fd is silent.
pub fn arming_is_truthful(setting: &Setting) {
    let stage = Stage::open(setting);
    let settle = |engine: &Engine| {
        stage.wait_until("the engine is idle", || engine.arm().unwrap() == Armed::Armed);
    };
    // What a peer on a slow machine has to say of itself comes when it has time: until then it is not quiet, and rightly.
    stage.wait_until("the engine stays quiet", || {
        settle(&stage.engine);
        !wait_readable(&stage.engine, Duration::from_millis(20))
    });
    settle(&stage.engine);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    let transfer = stage.submit(stage.peer(), &plan, Submit::new().notify(NoteId(1), b""));
    transfer.wait().unwrap();
    stage.wait_until("arming says that a transfer has ended", || stage.engine.arm().unwrap() == Armed::Busy);
    settle(&stage.engine);
}

/// Blocking calls end when there is something, and not before their time when there is nothing.
pub fn blocking_waits_keep_their_time(setting: &Setting) {
    let (mut stage, fill) = Stage::choked(setting);
    let short = Duration::from_millis(30);
    let begun = Instant::now();
    assert!(!stage.engine.wait_notification(short));
    assert!(begun.elapsed() >= short && begun.elapsed() < short + PATIENCE / 4);
    let waiting = fill.last().expect("there is more than room");
    let begun = Instant::now();
    assert!(waiting.wait_within(short).is_none(), "it cannot have ended: its receiver is full");
    assert!(begun.elapsed() >= short && begun.elapsed() < short + PATIENCE / 4);
    assert!(waiting.poll().is_none());
    assert_eq!(stage.take_notes(0, fill.len(), PATIENCE).len(), fill.len());
    all_end_well(&fill);
    let counter = stage.near.counter("mine").unwrap();
    assert!(!counter.wait(1, short));
    assert_eq!(counter.value(), 0);
}

/// Where a post moves its bytes at once, a target that makes no progress receives them all the same, and
/// its notifications when it goes on.
pub fn a_target_that_rests_receives_bytes(setting: &Setting) {
    let mut stage = Stage::open(setting);
    if !stage.peer().caps().synchronous || stage.far().access_path() == "bounce" {
        return; // The target's progress is what lands the bytes.
    }
    let (near, _) = stage.models();
    let whole = Span { local: 0, remote: 0, len: 1 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[whole]).build().unwrap();
    stage.order(0, Command::Pause);
    for id in 0..20 {
        let how = Submit::new().notify(NoteId(id), b"read me later").within(PATIENCE / 4);
        stage.submit(stage.peer(), &plan, how).wait().unwrap();
    }
    stage.assert_far(0, "kv", &near);
    // Nothing of it copies, so memory can be taken back without it.
    assert!(stage.near.revoke(&[(0, 1 << 20)], PATIENCE / 4).unwrap().is_quiesced());
    stage.order(0, Command::Resume);
    let ids: Vec<u64> = stage.take_notes(0, 20, PATIENCE).iter().map(|note| note.id.0).collect();
    assert_eq!(ids.len(), 20);
}

/// The engine counts what it did, no more and no less.
pub fn statistics_add_up(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let before = stage.engine.statistics();
    let large = Span { local: 0, remote: 0, len: 1 << 20 };
    let large = Plan::write(&stage.near, &stage.far()).extents(&[large]).build().unwrap();
    let small = Plan::read(&stage.near, &stage.far()).blocks(&[(0, 1), (7, 3)]).block_bytes(4096).build().unwrap();
    for _ in 0..10 {
        stage.submit(stage.peer(), &large, Submit::new().notify(NoteId(1), b"")).wait().unwrap();
        stage.submit(stage.peer(), &small, Submit::new()).wait().unwrap();
        stage.notify(stage.peer(), 2, b"x", Submit::new()).wait().unwrap();
    }
    assert!(stage.near.revoke(&[(0, 1 << 20)], PATIENCE).unwrap().is_quiesced());
    stage.submit(stage.peer(), &large, Submit::new()).wait().unwrap_err();
    let after = stage.engine.statistics();
    assert_eq!(after.bytes - before.bytes, 10 * ((1 << 20) + 8192));
    assert_eq!(after.transfers_completed - before.transfers_completed, 30);
    assert_eq!(after.transfers_failed - before.transfers_failed, 1);
    assert_eq!(after.notes_sent - before.notes_sent, 20);
    assert!(after.withdrawals_seen > before.withdrawals_seen, "a withdrawal made somebody look");
    assert_eq!(stage.take_notes(0, 20, PATIENCE).len(), 20);
    stage.ask(0, Command::SleepForNotes { count: 0, within_ms: 1 });
}

/// One call tells which of many transfers have ended, and how, each by its place.
pub fn one_call_looks_at_many_transfers(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let plan =
        |block| Plan::write(&stage.near, &stage.far()).blocks(&[(block, block)]).block_bytes(4096).build().unwrap();
    let (good, revoked) = (plan(1), plan(2));
    assert!(stage.near.revoke(&[(2 * 4096, 4096)], PATIENCE).unwrap().is_quiesced());
    let plans: Vec<&Plan> = (0..60).map(|place| if place % 3 == 0 { &revoked } else { &good }).collect();
    let transfers: Vec<_> = plans.iter().map(|plan| stage.submit(stage.peer(), plan, Submit::new())).collect();
    let (mut ended, mut counts) = (vec![(7, Err(Fault::new(FaultStage::Queue, Cause::NotEnded)))], Vec::new());
    stage.wait_until("all have ended", || {
        let count = stage.engine.poll_many(&transfers, &mut ended).unwrap();
        assert_eq!(count, ended.len());
        counts.push(count);
        count == transfers.len()
    });
    assert!(counts.is_sorted(), "what has ended stays so: {counts:?}");
    for (place, (index, end)) in ended.iter().enumerate() {
        assert_eq!(*index, place);
        match end {
            Ok(completed) => assert!(place % 3 != 0 && completed.bytes == 4096),
            Err(fault) => assert!(place % 3 == 0 && fault.cause == Cause::RevokedHere, "{fault}"),
        }
    }
    let some: Vec<&Transfer> = transfers.iter().skip(1).step_by(3).collect();
    assert_eq!(stage.engine.poll_many(&some, &mut ended), Ok(20));
    assert!(ended.iter().all(|(_, end)| end.is_ok()));
    let (near, mut there) = stage.models();
    apply(Span { local: 4096, remote: 4096, len: 4096 }, &near, &mut there, true);
    stage.assert_far(0, KV, &there);
}
