//! Deadlines and cancelling: typed, in time, and true about memory.

use std::time::{Duration, Instant};

use penstock::{CancelOutcome, Cause, Fault, NoteId, Notified, Plan, RemoteQuiesce, Span, Stage as At, Submit};

use crate::burst;
use crate::command::Command;
use crate::pattern;
use crate::stage::{NEAR_SEED, PATIENCE, Stage, all_end_well, fault_of};
use crate::{Setting, Transfer};

/// How much later than promised a busy machine may let something end.
const SLACK: Duration = Duration::from_secs(2);

fn assert_quiesced(answer: &CancelOutcome) {
    assert!(answer.local.is_quiesced(), "{answer:?}");
    assert!(matches!(answer.remote, RemoteQuiesce::Quiesced), "{answer:?}");
}

fn drain(stage: &mut Stage, fill: Vec<Transfer>) {
    let mut ids: Vec<u64> = stage.take_notes(0, fill.len(), PATIENCE).iter().map(|note| note.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..fill.len() as u64).collect::<Vec<_>>(), "what was not cancelled arrives, and only that");
    all_end_well(&fill);
    assert_eq!(stage.take_notes(0, 1, Duration::from_millis(20)), [], "nothing else arrives");
}

/// Bytes that cannot have moved in time end typed, soon after their deadline.
pub fn a_deadline_ends_a_transfer_that_moves(setting: &Setting) {
    let large = setting.large();
    let stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let how = Submit::new().notify(NoteId(1), b"").within(Duration::from_micros(1));
    let begun = Instant::now();
    let fault = fault_of(&stage.submit(stage.peer(), &plan, how));
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    assert_eq!((fault.cause, fault.notified), (Cause::DeadlineExceeded, Notified::No));
    assert_eq!(fault.peer.as_ref().map(|name| name.as_str()), Some("target-0"));
    assert!(fault.bytes < large);
}

/// A notification that a full receiver never takes ends typed at its deadline, and never arrives.
pub fn a_deadline_ends_a_notification_that_waits(setting: &Setting) {
    let (mut stage, fill) = Stage::choked(setting);
    let begun = Instant::now();
    let within = Duration::from_millis(100);
    let fault = fault_of(&stage.notify(stage.peer(), 999, b"late", Submit::new().within(within)));
    let took = begun.elapsed();
    assert_eq!((fault.stage, fault.cause, fault.notified), (At::Notify, Cause::DeadlineExceeded, Notified::No));
    assert!(took >= within && took < within + SLACK, "{took:?}");
    drain(&mut stage, fill);
}

/// A transfer that nobody has begun is cancelled: it moves nothing, now or later.
pub fn cancel_before_it_moves(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    // This thread may lose its core between the two calls, for longer than a whole transfer takes.
    burst::rounds("its cancel", |at_once| {
        let submit = || stage.submit(stage.peer(), &plan, Submit::new().notify(NoteId(1), b""));
        let transfers: Vec<_> = std::iter::repeat_with(submit).take(at_once).collect();
        !cancelled(&mut stage, &transfers).is_empty()
    });
}

/// A transfer in the middle of its bytes is cancelled: once that is answered, nothing lands any more.
pub fn cancel_while_it_moves(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    burst::rounds("its cancel", |at_once| {
        let how = || Submit::new().notify(NoteId(1), b"");
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, how()));
        cancelled(&mut stage, &transfers).iter().any(|fault| fault.bytes > 0)
    });
}

/// How those of these, each with a notification, have ended that could be cancelled; those that were faster have told the target so, and
/// nobody else has.
fn cancelled(stage: &mut Stage, transfers: &[Transfer]) -> Vec<Fault> {
    // The last one is the least likely to have ended.
    for transfer in transfers.iter().rev() {
        let asked = Instant::now();
        assert_quiesced(&transfer.cancel(PATIENCE));
        assert!(asked.elapsed() < SLACK, "{:?}", asked.elapsed());
    }
    let (faster, cancelled): (Vec<_>, Vec<_>) = transfers.iter().partition(|transfer| transfer.wait().is_ok());
    // Nothing comes between the answer and the look at the bytes that need not.
    if !faster.is_empty() {
        assert_eq!(stage.take_notes(0, faster.len(), PATIENCE).len(), faster.len());
    }
    cancelled.into_iter().inspect(|transfer| assert_stays(stage, transfer)).map(fault_of).collect()
}

/// A read in the middle of its bytes is cancelled: once that is answered, nothing lands here any more.
pub fn cancel_while_bytes_land_here(setting: &Setting) {
    let large = setting.large();
    let stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let plan = Plan::read(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    burst::rounds("its cancel", |at_once| {
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, Submit::new()));
        for transfer in transfers.iter().rev() {
            assert_quiesced(&transfer.cancel(PATIENCE));
        }
        pattern::fill(&*stage.near, 77);
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(10) {
            stage.turn();
        }
        stage.assert_near(&pattern::bytes(77, 0, large as usize));
        let faults: Vec<_> = transfers.iter().filter_map(|transfer| transfer.wait().err()).collect();
        assert!(faults.iter().all(|fault| fault.cause == Cause::Cancelled), "{faults:?}");
        faults.iter().any(|fault| fault.bytes > 0)
    });
}

/// The cancelled transfer has ended typed, and what the target then writes into its own memory stays there.
fn assert_stays(stage: &mut Stage, transfer: &Transfer) {
    let large = stage.near.bytes();
    let begun = Instant::now();
    let fault = fault_of(transfer);
    assert!(begun.elapsed() < SLACK, "its end came {:?} after the answer", begun.elapsed());
    assert_eq!((fault.cause, fault.notified), (Cause::Cancelled, Notified::No));
    let watch = Command::FillAndWatch { label: "kv".to_owned(), extents: vec![(0, large)], seed: 77, hold_ms: 20 };
    assert_eq!(stage.ask(0, watch), crate::command::Reply::Yes(true), "bytes landed after the answer");
    assert_eq!(stage.take_notes(0, 1, Duration::from_millis(10)), []);
    // The source is as it was, and free to be used again.
    let near = pattern::digests(&pattern::bytes(NEAR_SEED, 0, large as usize));
    pattern::assert_same(&pattern::memory_digests(&*stage.near)[..near.len()], &near, "the source");
}

/// A transfer whose bytes have landed and whose notification waits is cancelled: it ends soon, and the
/// notification never comes.
pub fn cancel_while_its_notification_waits(setting: &Setting) {
    let (mut stage, fill) = Stage::choked(setting);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).block_bytes(4096).build().unwrap();
    let how = Submit::new().notify(NoteId(999), b"never").within(PATIENCE);
    let transfer = stage.submit(stage.peer(), &plan, how);
    stage.wait_until("its bytes have landed", || transfer.bytes_moved() == 4096);
    std::thread::sleep(Duration::from_millis(5));
    stage.turn();
    let begun = Instant::now();
    assert_quiesced(&transfer.cancel(PATIENCE));
    let fault = fault_of(&transfer);
    assert!(begun.elapsed() < SLACK, "it ended only {:?} after the cancel", begun.elapsed());
    assert_eq!((fault.cause, fault.notified), (Cause::Cancelled, Notified::No));
    drain(&mut stage, fill);
}

/// Cancelling what has ended changes nothing about how it ended.
pub fn cancel_after_its_end(setting: &Setting) {
    let stage = Stage::open(setting);
    for len in [4096, 900_000] {
        let span = Span { local: 0, remote: 0, len };
        let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
        let transfer = stage.submit(stage.peer(), &plan, Submit::new());
        let done = transfer.wait().unwrap();
        assert_quiesced(&transfer.cancel(PATIENCE));
        assert_eq!(transfer.poll(), Some(Ok(done)));
        assert_eq!(done.bytes, len);
    }
}

/// A transfer whose handle is dropped goes on to its end.
pub fn a_dropped_handle_detaches(setting: &Setting) {
    let mut stage = Stage::sized(setting, 4 << 20);
    let (near, _) = stage.models();
    let span = Span { local: 0, remote: 0, len: 4 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    drop(stage.submit(stage.peer(), &plan, Submit::new().notify(NoteId(3), b"detached")));
    drop(plan);
    assert_eq!(stage.take_notes(0, 1, PATIENCE)[0].payload, b"detached");
    stage.assert_far(0, "kv", &near);
    stage.wait_until("its place is free again", || stage.engine.transfers_held() == 0);
}
