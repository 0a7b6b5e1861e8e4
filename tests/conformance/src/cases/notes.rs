//! Notifications and counters: all bytes first, exactly once, in full.

use std::time::Duration;

use penstock::transport::caps::Placement;
use penstock::{NoteId, Notified, Plan, Span, Submit, SubmitError};

use crate::command::{Claim, Command, Reply};
use crate::pattern::{self, Random};
use crate::stage::{PATIENCE, Stage};
use crate::{Options, Setting};

const SHORT: Duration = Duration::from_millis(30);

/// A notification may be empty, with bytes and without.
pub fn an_empty_notification_arrives(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let done = stage.notify(stage.peer(), 1, b"", Submit::new()).wait().unwrap();
    assert_eq!((done.bytes, done.notified), (0, Notified::Yes));
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    let done = stage.submit(stage.peer(), &plan, Submit::new().notify(NoteId(2), b"")).wait().unwrap();
    assert_eq!((done.bytes, done.notified), (4096, Notified::Yes));
    let notes = stage.take_notes(0, 2, PATIENCE);
    let mut ids: Vec<_> = notes.iter().map(|note| note.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert!(notes.iter().all(|note| note.payload.is_empty() && note.peer == "source"));
}

/// Payloads of every length up to 4 KiB, and all 128 bits of the id.
pub fn payloads_arrive_in_full(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let lengths = [1, 31, 32, 33, 64, 95, 96, 97, 1000, 4032, 4095, 4096];
    for len in lengths {
        let id = u128::from(Random::new(len).number()) << 64 | u128::from(len);
        let payload = pattern::bytes(9, len, len as usize);
        assert_eq!(stage.notify(stage.peer(), id, &payload, Submit::new()).wait().unwrap().notified, Notified::Yes);
    }
    let notes = stage.take_notes(0, lengths.len(), PATIENCE);
    for len in lengths {
        let note = notes.iter().find(|note| note.id.0 == len).expect("every notification arrives");
        assert_eq!(note.id.1, Random::new(len).number());
        assert_eq!(note.payload, pattern::bytes(9, len, len as usize));
    }
    assert_eq!(notes.len(), lengths.len());
}

/// One byte more than 4 KiB is refused, and nothing of it happens.
pub fn a_notification_that_is_too_long_is_refused(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (_, far) = stage.models();
    let long = vec![0; 4097];
    let expected = SubmitError::NoteTooLong { bytes: 4097, most: 4096 };
    let refused = stage.peer().notify(NoteId(1), &long, Submit::new()).map(drop).unwrap_err();
    assert_eq!(refused, expected);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    let refused = stage.peer().submit(&plan, Submit::new().notify(NoteId(1), &long)).map(drop).unwrap_err();
    assert_eq!(refused, expected);
    assert_eq!(stage.take_notes(0, 1, SHORT), []);
    stage.assert_far(0, "kv", &far);
}

/// Whoever sees a notification sees all bytes of its transfer: the receiver looks at them at once.
pub fn a_notification_comes_after_all_its_bytes(setting: &Setting) {
    const ROUNDS: u64 = 60;
    let mut stage = Stage::sized(setting, 2 << 20);
    let mut random = Random::new(7);
    let far = stage.far();
    stage.tell(0, Command::VerifyOnNotes { label: "kv".to_owned(), count: ROUNDS as usize });
    for round in 0..ROUNDS {
        pattern::fill(&*stage.near, 100 + round);
        // From less than one unit to many: the latter are split among all workers.
        let len = if round % 3 == 0 { 1 + random.below(9000) } else { 300_000 + random.below(1 << 20) };
        let span = Span { local: random.below(1 << 19), remote: random.below(1 << 19), len };
        let plan = Plan::write(&stage.near, &far).extents(&[span]).build().unwrap();
        let claim = Claim { seed: 100 + round, from: span.local, to: span.remote, len }.encode();
        let how = Submit::new().notify(NoteId(round.into()), &claim).within(PATIENCE);
        let transfer = stage.submit(stage.peer(), &plan, how);
        let answers = stage.wait_notes(1);
        assert_eq!((answers[0].id, answers[0].payload.as_slice()), (NoteId(round.into()), b"verified".as_slice()));
        transfer.wait().unwrap();
    }
    assert_eq!(stage.hear(0), Reply::Value(ROUNDS));
}

/// A counter goes up by one for each transfer that names it, and only when its bytes are there.
pub fn counters_count_arrivals(setting: &Setting) {
    let mut stage = Stage::with(setting, Options { bytes: 1 << 20, ..Options::default() });
    stage.order(0, Command::Counter { region: "kv".to_owned(), label: "arrivals".to_owned() });
    stage.order(0, Command::Counter { region: "kv".to_owned(), label: "others".to_owned() });
    let counter = stage.peer().wait_counter("arrivals", PATIENCE).expect("the counter is announced");
    let small = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    let large = Span { local: 0, remote: 0, len: 1 << 20 };
    let large = Plan::write(&stage.near, &stage.far()).extents(&[large]).build().unwrap();
    for round in 0..100 {
        let plan = if round % 10 == 0 { &large } else { &small };
        let done = stage.submit(stage.peer(), plan, Submit::new().count(counter)).wait().unwrap();
        assert_eq!(done.notified, Notified::Yes);
    }
    let mut value = |label: &str, count| {
        stage.ask(0, Command::WaitCounter { label: label.to_owned(), count, within_ms: PATIENCE.as_millis() as u64 })
    };
    assert_eq!(value("arrivals", 100), Reply::Value(100));
    assert_eq!(value("others", 0), Reply::Value(0));
    if stage.peer().caps().placement == Placement::AtCompletion {
        let (near, _) = stage.models();
        stage.assert_far(0, "kv", &{
            let mut far = near.clone();
            far[4096..8192].copy_from_slice(&near[..4096]);
            far
        });
    }
}

/// A transfer may raise a counter and carry a notification; a notification alone may raise a counter.
pub fn a_counter_and_a_notification_go_together(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.order(0, Command::Counter { region: "kv".to_owned(), label: "arrivals".to_owned() });
    let counter = stage.peer().wait_counter("arrivals", PATIENCE).expect("the counter is announced");
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new().count(counter).notify(NoteId(5), b"both")).wait().unwrap();
    stage.notify(stage.peer(), 6, b"alone", Submit::new().count(counter)).wait().unwrap();
    let notes = stage.take_notes(0, 2, PATIENCE);
    assert_eq!(notes.len(), 2);
    let value = stage.ask(0, Command::WaitCounter { label: "arrivals".to_owned(), count: 2, within_ms: 2000 });
    assert_eq!(value, Reply::Value(2));
}

/// A counter is its engine's: no transfer to another counts anything, and nobody is told that it did.
pub fn a_counter_of_another_peer_is_refused(setting: &Setting) {
    let mut stage = Stage::with(setting, Options { targets: 2, ..Options::default() });
    for target in 0..2 {
        stage.order(target, Command::Counter { region: "kv".to_owned(), label: "arrivals".to_owned() });
    }
    let others = stage.peers[1].wait_counter("arrivals", PATIENCE).expect("the counter is announced");
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    let how = || Submit::new().count(others);
    let refused = [stage.peer().submit(&plan, how()).map(drop), stage.peer().notify(NoteId(1), b"", how()).map(drop)];
    for refused in refused {
        assert!(matches!(refused, Err(SubmitError::ForeignCounter { .. })), "{refused:?}");
    }
    for target in 0..2 {
        let value = Command::WaitCounter { label: "arrivals".to_owned(), count: 0, within_ms: 0 };
        assert_eq!(stage.ask(target, value), Reply::Value(0));
    }
}

/// Counters come and go: each counts its own arrivals and no other's, however many there have been.
pub fn many_counters_come_and_go(setting: &Setting) {
    const AT_ONCE: u64 = 40;
    let mut stage = Stage::open(setting);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    for round in 0..4 {
        let labels: Vec<_> = (0..AT_ONCE).map(|number| format!("arrivals-{round}-{number}")).collect();
        for label in &labels {
            stage.order(0, Command::Counter { region: "kv".to_owned(), label: label.clone() });
        }
        let (mut transfers, mut gone) = (Vec::new(), None);
        for (number, label) in labels.iter().enumerate() {
            let counter = stage.peer().wait_counter(label, PATIENCE).expect("the counter is announced");
            gone = Some(counter);
            for _ in 0..=number % 3 {
                let how = || Submit::new().count(counter).within(PATIENCE);
                transfers.push(stage.submit(stage.peer(), &plan, how()));
                transfers.push(stage.notify(stage.peer(), 0, b"", how()));
            }
        }
        let notes = transfers.len() / 2;
        let ends: Vec<_> = transfers.iter().map(|transfer| transfer.wait().unwrap().notified).collect();
        assert!(ends.iter().all(|notified| *notified == Notified::Yes), "{ends:?}");
        assert_eq!(stage.take_notes(0, notes, PATIENCE).len(), notes);
        for (number, label) in labels.iter().enumerate() {
            let count = 2 * (number as u64 % 3 + 1);
            let wait = Command::WaitCounter { label: label.clone(), count, within_ms: PATIENCE.as_millis() as u64 };
            assert_eq!(stage.ask(0, wait), Reply::Value(count), "{label}");
            stage.order(0, Command::DropCounter { label: label.clone() });
        }
        // What is gone is not found, and not counted for whoever has it from before.
        let last = labels.last().unwrap();
        stage.wait_until("the peer's counter is known to be gone", || stage.peer().counter(last).is_none());
        let gone = gone.expect("there was a counter");
        let done = stage.submit(stage.peer(), &plan, Submit::new().count(gone)).wait().unwrap();
        assert_eq!(done.notified, Notified::No);
    }
}

/// What was not asked for is not told.
pub fn a_transfer_without_a_notification_tells_nobody(setting: &Setting) {
    let mut stage = Stage::open(setting);
    assert_eq!(stage.write(Span { local: 0, remote: 0, len: 300_000 }).notified, Notified::NotAsked);
    assert_eq!(stage.take_notes(0, 1, SHORT), []);
}
