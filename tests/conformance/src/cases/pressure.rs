//! Too much of something, many peers at once, and who goes first.

use std::time::{Duration, Instant};

use penstock::{NoteId, Notified, Plan, Priority, Span, Submit, SubmitError};

use crate::burst;
use crate::command::{Command, Reply};
use crate::setting::Tuning;
use crate::stage::{PATIENCE, Stage, all_end_well, apply};
use crate::{Options, Setting, Transfer};

/// With all transfers held, the next one is answered `Full`, and taken once a handle was dropped.
pub fn full_is_an_answer_while_handles_are_held(setting: &Setting) {
    let near = Tuning { in_flight: Some(2), ..Tuning::default() };
    let mut stage = Stage::with(setting, Options { near, ..Options::default() });
    let mut held: Vec<Transfer> = (0..2).map(|id| stage.notify(stage.peer(), id, b"", Submit::new())).collect();
    all_end_well(&held);
    for _ in 0..3 {
        let refused = stage.peer().notify(NoteId(9), b"", Submit::new()).map(drop).unwrap_err();
        assert!(matches!(refused, SubmitError::Full { .. }), "{refused}");
        assert!(refused.to_string().contains("submit again"), "{refused}");
    }
    held.pop();
    held.push(stage.notify(stage.peer(), 2, b"", Submit::new()));
    all_end_well(&held);
    let mut ids: Vec<_> = stage.take_notes(0, 3, PATIENCE).iter().map(|note| note.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2], "what was refused did not happen");
}

/// A queue of two commands answers `Full` at worst; what was taken happens once.
pub fn a_tiny_queue_loses_nothing(setting: &Setting) {
    const COUNT: u64 = 300;
    let near = Tuning { queue: Some(2), ..Tuning::default() };
    let mut stage = Stage::with(setting, Options { near, ..Options::default() });
    stage.order(0, Command::Counter { region: "kv".to_owned(), label: "arrivals".to_owned() });
    let counter = stage.peer().wait_counter("arrivals", PATIENCE).expect("the counter is announced");
    let span = Span { local: 0, remote: 0, len: 300_000 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let mut fulls = 0;
    let mut transfers = Vec::new();
    for _ in 0..COUNT {
        loop {
            match stage.peer().submit(&plan, Submit::new().count(counter)) {
                Ok(transfer) => break transfers.push(transfer),
                Err(SubmitError::Full { .. }) => {
                    fulls += 1;
                    stage.turn();
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    all_end_well(&transfers);
    assert!(fulls > 0 || !stage.setting.is_inline(), "nobody took anything, and still nothing was full");
    let value = stage.ask(0, Command::WaitCounter { label: "arrivals".to_owned(), count: COUNT, within_ms: 5000 });
    assert_eq!(value, Reply::Value(COUNT));
}

/// A flood of notifications to a receiver that takes none waits at the sender; nothing is dropped or
/// doubled, and neither the sender's other peers nor its bytes are disturbed.
pub fn a_flood_waits_and_disturbs_nobody(setting: &Setting) {
    const FLOOD: u64 = 400;
    let far = Tuning { notifications_per_peer: Some(8), ..Tuning::default() };
    let mut stage = Stage::with(setting, Options { targets: 2, far, ..Options::default() });
    let payload = [7; 500];
    let floods: Vec<Transfer> =
        (0..FLOOD).map(|id| stage.notify(stage.peer(), id.into(), &payload, Submit::new().within(PATIENCE))).collect();
    // Eight in the inbox and a ring full of records; the rest waits here.
    std::thread::sleep(Duration::from_millis(20));
    stage.turn();
    assert!(floods.iter().filter(|transfer| transfer.poll().is_some()).count() < FLOOD as usize, "nothing waits");
    let plan = Plan::write(&stage.near, &stage.region(1, "kv")).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    for id in 0..20 {
        let how = Submit::new().notify(NoteId(id), b"undisturbed").within(Duration::from_secs(5));
        assert_eq!(stage.submit(&stage.peers[1], &plan, how).wait().unwrap().notified, Notified::Yes);
        assert_eq!(stage.take_notes(1, 1, PATIENCE).len(), 1);
    }
    let same_peer = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    stage.submit(stage.peer(), &same_peer, Submit::new().within(Duration::from_secs(5))).wait().unwrap();
    let mut ids: Vec<u64> = stage.take_notes(0, FLOOD as usize, PATIENCE).iter().map(|note| note.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..FLOOD).collect::<Vec<_>>(), "each exactly once");
    floods.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().notified, Notified::Yes));
    assert_eq!(stage.take_notes(0, 1, Duration::from_millis(20)), []);
}

/// A large notification that waits for room gets it, however many small ones come after it.
pub fn small_notifications_do_not_starve_a_large_one(setting: &Setting) {
    const LARGE: u128 = 1 << 70;
    let (mut stage, fill) = Stage::choked(setting);
    let how = || Submit::new().within(PATIENCE);
    // One for each worker: each has a ring of its own.
    let large: Vec<Transfer> =
        (0..setting.workers).map(|_| stage.notify(stage.peer(), LARGE, &[1; 4096], how())).collect();
    let mut small: Vec<Transfer> = Vec::new();
    let (mut taken, mut submitted, since) = (0, 0, Instant::now());
    while large.iter().any(|transfer| transfer.poll().is_none()) {
        // A handle keeps its place in the table of transfers, so those that have ended are let go.
        small.retain(|transfer| transfer.poll().map(|end| end.expect("the transfer ends well")).is_none());
        for _ in 0..100 {
            small.push(stage.notify(stage.peer(), 0, b"", how()));
        }
        submitted += 100;
        taken += stage.take_notes(0, 100, PATIENCE).len();
        // Where there are two workers, one may wait for a core while the other's pass: then only time tells.
        assert!(setting.workers > 1 || taken < 2 * fill.len(), "{taken} others have passed it by");
        assert!(since.elapsed() < PATIENCE / 2, "{taken} others have passed it by in {:?}", PATIENCE / 2);
    }
    // The rest, so that the session ends in peace.
    let left = fill.len() + large.len() + submitted - taken;
    assert_eq!(stage.take_notes(0, left, PATIENCE).len(), left);
    all_end_well(&large);
    all_end_well(&fill);
    all_end_well(&small);
}

/// Transfers of one class are served in turn: an early one is not passed by hundreds of later ones.
pub fn a_burst_is_served_in_turn(setting: &Setting) {
    const BURST: u64 = 1000;
    let mut stage = Stage::open(setting);
    let burst: Vec<Transfer> = (0..BURST).map(|id| stage.notify(stage.peer(), id.into(), b"", Submit::new())).collect();
    let notes = stage.take_notes(0, BURST as usize, PATIENCE);
    all_end_well(&burst);
    assert_eq!(notes.len() as u64, BURST);
    if setting.workers > 1 {
        return; // Each worker has a queue of its own, and one may wait for a core while the other runs.
    }
    for (place, note) in notes.iter().enumerate() {
        let passed = (place as u64).saturating_sub(note.id.0);
        assert!(passed < 300, "notification {} arrived after {passed} that were submitted later", note.id.0);
    }
}

/// Transfers to and from three peers at once, each with its own bytes and notifications.
pub fn three_peers_are_served_at_once(setting: &Setting) {
    const ROUNDS: u64 = 30;
    let mut stage = Stage::with(setting, Options { targets: 3, bytes: 2 << 20, ..Options::default() });
    let (near, far) = stage.models();
    let spans: Vec<Span> =
        (0..3).map(|peer| Span { local: peer * 100_001, remote: peer * 7, len: 1_000_000 + peer * 31 }).collect();
    let plans: Vec<Plan> = (0..3)
        .map(|peer| {
            let remote = stage.region(peer, "kv");
            Plan::write(&stage.near, &remote).extents(&spans[peer..=peer]).build().unwrap()
        })
        .collect();
    let mut transfers = Vec::new();
    for round in 0..ROUNDS {
        for (peer, plan) in plans.iter().enumerate() {
            let id = u128::from(round) << 8 | peer as u128;
            transfers.push(stage.submit(&stage.peers[peer], plan, Submit::new().notify(NoteId(id), b"")));
        }
    }
    transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().notified, Notified::Yes));
    for (peer, &span) in spans.iter().enumerate() {
        let mut ids: Vec<u64> =
            stage.take_notes(peer, ROUNDS as usize, PATIENCE).iter().map(|note| note.id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..ROUNDS).map(|round| round << 8 | peer as u64).collect::<Vec<_>>());
        let mut model = far.clone();
        apply(span, &near, &mut model, true);
        stage.assert_far(peer, "kv", &model);
    }
}

/// Both sides submit to each other at the same time.
pub fn both_sides_write_at_once(setting: &Setting) {
    const ROUNDS: u64 = 40;
    let mut stage = Stage::open(setting);
    let own = stage.pool_here("landing", 1 << 20);
    stage.make_pool(0, "landing", 1 << 20, 4096, penstock::Rights::READ_WRITE);
    let write = Command::WriteTo { peer: "source".to_owned(), label: "landing".to_owned(), times: ROUNDS };
    stage.tell(0, write);
    let span = Span { local: 0, remote: 0, len: 1 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    for _ in 0..ROUNDS {
        stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    }
    assert_eq!(stage.wait_notes(ROUNDS as usize).len(), ROUNDS as usize);
    assert_eq!(stage.hear(0), Reply::Done);
    let (near, far) = stage.models();
    stage.assert_far(0, "kv", &near);
    assert_eq!(crate::pattern::read(&*own), far);
}

/// Reads and writes of one peer go on at once, in bytes of their own.
pub fn reads_and_writes_go_on_at_once(setting: &Setting) {
    const ROUNDS: usize = 30;
    let mut stage = Stage::sized(setting, 4 << 20);
    let (mut near, mut far) = stage.models();
    let half = 2 << 20;
    let out = Span { local: 0, remote: half, len: half - 4096 };
    let back = Span { local: half, remote: 0, len: half - 4096 };
    let write = Plan::write(&stage.near, &stage.far()).extents(&[out]).build().unwrap();
    let read = Plan::read(&stage.near, &stage.far()).extents(&[back]).build().unwrap();
    let mut transfers = Vec::new();
    for _ in 0..ROUNDS {
        transfers.push(stage.submit(stage.peer(), &read, Submit::new().within(PATIENCE)));
        transfers.push(stage.submit(stage.peer(), &write, Submit::new().notify(NoteId(1), b"").within(PATIENCE)));
    }
    all_end_well(&transfers);
    assert_eq!(stage.take_notes(0, ROUNDS, PATIENCE).len(), ROUNDS);
    let (here, there) = (near.clone(), far.clone());
    apply(out, &here, &mut far, true);
    apply(back, &there, &mut near, false);
    stage.assert_far(0, "kv", &far);
    stage.assert_near(&near);
}

/// An urgent transfer overtakes a large one that was submitted before it.
pub fn urgent_transfers_overtake_bulk(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let bulk = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let small = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    // This thread may lose its core before the urgent one; first come, first served would never let that come before the last, or with two
    // workers not before the last of each.
    burst::rounds("the urgent one", |at_once| {
        let slow = || stage.submit(stage.peer(), &bulk, Submit::new().notify(NoteId(0), b""));
        let slow: Vec<_> = std::iter::repeat_with(slow).take(at_once).collect();
        let how = Submit::new().notify(NoteId(1), b"").priority(Priority::Urgent);
        stage.submit(stage.peer(), &small, how).wait().unwrap();
        all_end_well(&slow);
        let order: Vec<u64> = stage.take_notes(0, at_once + 1, PATIENCE).iter().map(|note| note.id.0).collect();
        assert_eq!(order.len(), at_once + 1);
        order.iter().rev().take(stage.setting.workers).all(|id| *id == 0)
    });
}
