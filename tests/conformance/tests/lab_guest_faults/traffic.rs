//! Writes that each bring a note, and whether each came once and whole.

use std::collections::VecDeque;
use std::time::Duration;

use penstock::{NoteId, Plan, Span, Submit};
use penstock_conformance::stage::{KV, apply};
use penstock_conformance::{Options, Setting, Stage, Transfer};

/// Bytes of the pools: an emulated device moves ten megabytes a second.
pub(crate) const BYTES: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Large writes at the same time.
const UNDER_WAY: usize = 8;
/// How long a note may take.
const NOTED_WITHIN: Duration = Duration::from_secs(20);

/// A session, and what the other side's memory has to hold.
pub(crate) struct Traffic {
    pub(crate) stage: Stage,
    source: Vec<u8>,
    model: Vec<u8>,
    /// Writes that were submitted.
    pub(crate) count: u128,
}

impl Traffic {
    pub(crate) fn open(setting: &Setting) -> Self {
        let stage = Stage::with(setting, Options { bytes: BYTES, block: BLOCK, ..Options::default() });
        let (source, model) = stage.models();
        Self { stage, source, model, count: 0 }
    }

    /// Writes a sixteenth of the pool's blocks, other ones than the last time, with a note. What is written to a block is always the
    /// same, so that it does not matter which of two writes under way comes last.
    pub(crate) fn write(&mut self) -> Transfer {
        let blocks = BYTES / BLOCK;
        let turn = self.count as u64;
        let block = |index: u64| {
            let remote = (4 * index + 3 * turn + 1) % blocks;
            Span { local: (5 * remote + 7) % blocks * BLOCK, remote: remote * BLOCK, len: BLOCK }
        };
        let spans: Vec<Span> = (0..blocks / 16).map(block).collect();
        let plan = Plan::write(&self.stage.near, &self.stage.far()).extents(&spans).build().expect("a sound plan");
        self.count += 1;
        let how = Submit::new().notify(NoteId(self.count), b"");
        let transfer = self.stage.submit(self.stage.peer(), &plan, how);
        spans.iter().for_each(|&span| apply(span, &self.source, &mut self.model, true));
        transfer
    }

    /// Breaks something while writes of the whole pool, each with a note, follow one another. Gives those that were under
    /// way at the time, of which there is at least one.
    pub(crate) fn break_amid(&mut self, break_it: impl FnOnce() + Send + 'static) -> Vec<Transfer> {
        let whole = [Span { local: 0, remote: 0, len: BYTES }];
        let plan = Plan::write(&self.stage.near, &self.stage.far()).extents(&whole).build().expect("a sound plan");
        apply(whole[0], &self.source, &mut self.model, true);
        let breaker = std::thread::spawn(break_it);
        let mut under_way: VecDeque<Transfer> = VecDeque::new();
        while !breaker.is_finished() {
            if under_way.len() < UNDER_WAY {
                self.count += 1;
                let how = Submit::new().notify(NoteId(self.count), b"");
                under_way.push_back(self.stage.submit(self.stage.peer(), &plan, how));
            }
            while under_way.front().is_some_and(|first| first.wait_within(Duration::from_millis(1)).is_some()) {
                let first = under_way.pop_front().expect("it was just looked at");
                first.wait().expect("nothing is broken yet, or what is does no harm");
            }
        }
        breaker.join().expect("what breaks things works");
        assert!(!under_way.is_empty(), "all was over before anything broke");
        under_way.into()
    }

    /// So many small ones, one after the other.
    pub(crate) fn write_many(&mut self, count: usize) {
        for _ in 0..count {
            self.write().wait().expect("the transfer ends well");
        }
    }

    /// Fails unless each write so far was told once and every byte is there.
    pub(crate) fn verify(&mut self) {
        let count = self.count as usize;
        let mut ids: Vec<u64> = self.stage.take_notes(0, count, NOTED_WITHIN).iter().map(|note| note.id.0).collect();
        // One that came twice would come now.
        ids.extend(self.stage.take_notes(0, 1, Duration::from_millis(200)).iter().map(|note| note.id.0));
        ids.sort_unstable();
        let expected: Vec<u64> = (1..=count as u64).collect();
        assert_eq!(ids, expected, "each note comes once");
        let model = self.model.clone();
        self.stage.assert_far(0, KV, &model);
        assert_eq!(self.stage.peer().ended(), None, "the session stands");
    }
}
