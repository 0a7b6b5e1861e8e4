//! A peer that is stopped (SIGSTOP) costs only what needs it: notifications that wait for its room end by their
//! deadline; bytes land in its memory all the same, others are served, and its waking up harms nothing.

use std::time::{Duration, Instant};

use penstock::config::TransportName::{Shm, Tcp};
use penstock::{Cause, LocalQuiesce, Notified, Plan, RemoteQuiesce, Span, Stage as At, Submit};
use penstock_conformance::stage::{PATIENCE, apply, fault_of};
use penstock_conformance::stopped::Stopped;
use penstock_conformance::{Options, Place, Setting, Stage};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
/// The deadline of what waits, and what a busy machine may add.
const WITHIN: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(2);

#[test]
fn a_stopped_target_costs_only_what_needs_it() {
    for setting in [Setting::adaptive(Shm, 1, THERE), Setting::inline(Shm, THERE)] {
        let mut stage = Stage::with(&setting, Options { targets: 2, ..Options::default() });
        let (source, mut model) = stage.models();
        let stopped = Stopped::new(stage.target(0).process_id().expect("it is a process of its own"));
        // Notifications: as many as its ring takes are in its keeping, the others end by their deadline.
        let begun = Instant::now();
        let how = || Submit::new().within(WITHIN);
        let notes: Vec<_> = (0..1500).map(|id| stage.notify(stage.peer(), id, b"", how())).collect();
        let (mut told, mut late) = (0, 0);
        for note in &notes {
            match note.wait() {
                Ok(done) => told += usize::from(done.notified == Notified::Yes),
                Err(fault) => {
                    assert_eq!(
                        (fault.stage, fault.cause, fault.notified),
                        (At::Notify, Cause::DeadlineExceeded, Notified::No)
                    );
                    late += 1;
                }
            }
        }
        assert!(begun.elapsed() < WITHIN + LATE, "{setting}: {:?}", begun.elapsed());
        assert!(told > 0 && late > 0, "{setting}: {told} told, {late} late");
        // Bytes need nobody there, and the other target is not asked to wait.
        let span = Span { local: 4096, remote: 8192, len: 300_000 };
        stage.write(span);
        apply(span, &source, &mut model, true);
        let plan = Plan::write(&stage.near, &stage.region(1, "kv")).extents(&[span]).build().unwrap();
        let other =
            stage.submit(&stage.peers[1], &plan, Submit::new().within(PATIENCE).notify(penstock::NoteId(7), b"other"));
        other.wait().expect("a stopped peer is no reason for another's to fail");
        assert_eq!(stage.take_notes(1, 1, PATIENCE).len(), 1);
        let note = stage.notify(stage.peer(), 9999, b"", how());
        assert_eq!(fault_of(&note).cause, Cause::DeadlineExceeded);
        assert_eq!(stage.peer().ended(), None, "{setting}: stopped is not dead");
        assert!(stage.near.revoke(&[(0, 1 << 20)], PATIENCE).unwrap().is_quiesced(), "it was in no copy");
        // Awake again: it finds what it was told, each once, and the bytes; the session goes on.
        drop(stopped);
        let taken = stage.take_notes(0, told, PATIENCE);
        let mut ids: Vec<u64> = taken.iter().map(|note| note.id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((taken.len(), ids.len()), (told, told), "{setting}");
        stage.assert_far(0, "kv", &model);
        let none = stage.take_notes(0, 1, Duration::from_millis(50));
        assert!(none.is_empty(), "{setting}: told after its transfer had failed: {none:?}");
        stage.write(span);
        assert_eq!(stage.peer().ended(), None);
    }
}

/// Where the kernel still has pages of it, its memory is quarantined; the transfer ends when it is cancelled, all the same.
#[test]
fn a_cancelled_transfer_to_a_stopped_peer_ends_and_so_does_its_engine() {
    const BYTES: u64 = 16 << 20;
    let no_deadline = Duration::from_secs(3600);
    for setting in [Setting::adaptive(Tcp, 1, THERE), Setting::inline(Tcp, THERE), Setting::adaptive(Shm, 1, THERE)] {
        let mut stage = Stage::sized(&setting, BYTES);
        let plan = Plan::write(&stage.near, &stage.far());
        let plan = plan.extents(&[Span { local: 0, remote: 0, len: BYTES }]).build().unwrap();
        let stopped = Stopped::new(stage.target(0).process_id().expect("it is a process of its own"));
        let writes: Vec<_> =
            (0..3).map(|_| stage.submit(stage.peer(), &plan, Submit::new().within(no_deadline))).collect();
        stage.engine.progress_all().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        let answers: Vec<_> = writes.iter().map(|write| write.cancel(WITHIN)).collect();
        for write in &writes {
            // What can be reached without the peer has landed in it.
            match write.wait_within(LATE).unwrap_or_else(|| panic!("{setting}: it goes on: {answers:?}")) {
                Err(fault) => assert_eq!(fault.cause, Cause::Cancelled, "{setting}"),
                Ok(done) => assert_eq!((done.bytes, setting.transport), (BYTES, Shm), "{setting}"),
            }
        }
        assert!(begun.elapsed() < 3 * WITHIN + LATE, "{setting}: {:?}", begun.elapsed());
        let held = stage.engine.close(WITHIN);
        assert!(begun.elapsed() < 4 * WITHIN + 2 * LATE, "{setting}: {:?}", begun.elapsed());
        // It was stopped outside any copy, and what the kernel had of this engine's pages went with its sockets.
        assert!(held.is_empty(), "{setting}: {held:?}");
        for answer in answers {
            // No more is learnt of the peer's memory: nobody says that nothing lands there.
            if let RemoteQuiesce::Quarantined(held) = answer.remote {
                assert!(held.is_released() && held.is_unknown(), "{setting}: {held:?}");
            }
            if let LocalQuiesce::Quarantined(held) = answer.local {
                assert!(held.is_released() && !held.is_unknown(), "{setting}: {held:?}");
            }
        }
        drop(stopped);
    }
}

/// What the kernel has of one region on its way to who takes nothing is no reason to wait for another region.
#[test]
fn pages_on_their_way_to_a_stopped_peer_are_those_of_their_region_alone() {
    const BYTES: u64 = 16 << 20;
    for setting in [Setting::adaptive(Tcp, 1, THERE), Setting::inline(Tcp, THERE)] {
        let mut stage = Stage::sized(&setting, BYTES);
        let other = stage.pool_here("other", 1 << 20);
        let plan = Plan::write(&stage.near, &stage.far());
        let plan = plan.extents(&[Span { local: 0, remote: 0, len: BYTES }]).build().unwrap();
        let stopped = Stopped::new(stage.target(0).process_id().expect("it is a process of its own"));
        let write = stage.submit(stage.peer(), &plan, Submit::new().within(PATIENCE));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            stage.turn();
        }
        let revoked = other.revoke(&[(0, 1 << 20)], WITHIN).unwrap();
        assert!(revoked.is_quiesced(), "{setting}: {revoked:?}");
        let of_it = stage.near.revoke(&[(0, BYTES)], WITHIN).unwrap();
        let has_pages = stage.peer().path().contains("io_uring");
        assert_eq!(of_it.is_quiesced(), !has_pages, "{setting}: {of_it:?}");
        drop(stopped);
        assert_eq!(fault_of(&write).cause, Cause::RevokedHere, "{setting}");
        if let LocalQuiesce::Quarantined(held) = of_it {
            stage.wait_until("the peer takes what is on its way", || held.is_released());
        }
    }
}
