//! Receivers that take nothing: what is meant for them waits in bounded memory and ends by its deadline, and nobody
//! else notices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use penstock::{Cause, NoteId, Notified, Plan, Span, Submit};
use penstock_conformance::death::far_settings;
use penstock_conformance::gauge::{Gauge, STALLED_MAX, measured};
use penstock_conformance::setting::Tuning;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::stopped::Stopped;
use penstock_conformance::{Options, Stage};

use super::{PEER, alone};

const WITHIN: Duration = Duration::from_millis(400);
const LATE: Duration = Duration::from_secs(2);
/// Notifications that are sent: many times what may wait.
const NOTES: u128 = 2500;
const NOTE: [u8; 4000] = [7; 4000];
/// Notifications that may wait in the inbox.
const INBOX: usize = 64;
/// What all that waits may take at either end: the inbox, a ring's worth of lines, what both sockets hold, and what the
/// allocators of two processes keep.
const MEMORY_MAX: u64 = 16 << 20;
/// A write of a megabyte to another peer meanwhile: sooner than what waits for the full one ends.
const OTHER_WITHIN: Duration = Duration::from_millis(300);

fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has some");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

#[test]
fn a_full_receiver_costs_bounded_memory_and_nobody_else() {
    let _alone = alone();
    for (setting, is_stopped) in far_settings(PEER).into_iter().flat_map(|setting| [(setting, false), (setting, true)])
    {
        let far = Tuning { notifications_per_peer: Some(INBOX), ..Tuning::default() };
        let mut stage = Stage::with(&setting, Options { far, targets: 2, ..Options::default() });
        let full = stage.target(0).process_id().expect("it is a process of its own");
        let before = [resident(full), resident(std::process::id())];
        let stopped = is_stopped.then(|| Stopped::new(full));
        let gauge = Gauge::start();
        let begun = Instant::now();
        let notes: Vec<_> =
            (0..NOTES).map(|id| stage.notify(stage.peer(), id, &NOTE, Submit::new().within(WITHIN))).collect();
        let submitted = begun.elapsed();
        let span = [Span { local: 0, remote: 0, len: 1 << 20 }];
        let plan = Plan::write(&stage.near, &stage.region(1, "kv")).extents(&span).build().unwrap();
        let other = measured(OTHER_WITHIN, || {
            let begun = Instant::now();
            let how = Submit::new().notify(NoteId(1), b"other");
            stage.submit(&stage.peers[1], &plan, how).wait().expect("a full peer is no reason for another's to fail");
            begun.elapsed()
        });
        let sampled = begun.elapsed();
        let mut ends = BTreeMap::new();
        for (id, note) in (0..).zip(&notes) {
            let notified = note.wait().map_or_else(
                |fault| {
                    assert_eq!(fault.cause, Cause::DeadlineExceeded, "{fault}");
                    fault.notified
                },
                |done| done.notified,
            );
            ends.insert(id, notified);
        }
        let (last, stalled) = (begun.elapsed(), gauge.stop());
        let grown = [resident(full), resident(std::process::id())].map(|now| now >> 10);
        let count = |notified: Notified| ends.values().filter(|&&end| end == notified).count();
        let [told, open, late] = [Notified::Yes, Notified::Unknown, Notified::No].map(count);
        let grown = [grown[0].saturating_sub(before[0] >> 10), grown[1].saturating_sub(before[1] >> 10)];
        eprintln!(
            "{setting}, stopped {is_stopped}: {told} told, {open} perhaps, {late} late, the last ends {last:?} after the first was \
             submitted ({submitted:?} for all), another's write took {other:?}, grown by {grown:?} KiB there and here"
        );
        assert!(told + open > 0 && late > 0, "{setting}: {told} told, {late} late");
        assert!(
            is_stopped || open == 0 || stalled > STALLED_MAX,
            "{setting}: {open} are not known of, although their target could answer"
        );
        assert!(last <= sampled.max(submitted + WITHIN) + LATE, "{setting}: {last:?}");
        assert!(other <= OTHER_WITHIN, "{setting}: {other:?}");
        assert!(grown.iter().all(|kib| kib << 10 <= MEMORY_MAX), "{setting}: {grown:?} KiB");
        assert_eq!(stage.peer().ended(), None);
        drop(stopped);
        // What was told is there, each once; what was not told never comes.
        let mut taken = stage.take_notes(0, told, PATIENCE);
        taken.extend(stage.take_notes(0, open, Duration::from_millis(300)));
        let ids: BTreeSet<u64> = taken.iter().map(|note| note.id.0).collect();
        assert_eq!(ids.len(), taken.len(), "{setting}: told twice");
        for (id, notified) in &ends {
            assert!(*notified != Notified::Yes || ids.contains(id), "{setting}: {id} was told and is not there");
            assert!(*notified != Notified::No || !ids.contains(id), "{setting}: {id} came after its deadline");
        }
        let note = stage.notify(stage.peer(), 9999, b"again", Submit::new().within(PATIENCE));
        note.wait().expect("there is room again");
    }
}
