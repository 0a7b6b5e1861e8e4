//! The revision of an owner's memory and the log of what it withdrew last.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering, fence, full_barrier, load_acquire_read_only};

/// Withdrawals a gate in shared memory remembers.
pub const GATE_ENTRIES: usize = 256;

/// Words before the entries: the revision has a cache line of its own.
const HEADER_WORDS: usize = 8;
const ENTRY_WORDS: usize = 4;

/// A range that its owner took back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withdrawal {
    pub region: u32,
    pub generation: u32,
    /// Start within the region, bytes.
    pub offset: u64,
    pub len: u64,
}

/// What was withdrawn, up to a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withdrawals {
    /// The revision this list is complete for.
    pub revision: u64,
    pub list: Vec<Withdrawal>,
}

/// The log does not reach back far enough: treat every older plan as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOverrun {
    /// The revision the reader knew.
    pub known: u64,
    pub found: u64,
}

impl Display for LogOverrun {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "withdrawals between revisions {} and {} are no longer in the log: \
             validate every plan for this peer anew",
            self.known, self.found
        )
    }
}

impl Error for LogOverrun {}

/// The words of a gate.
///
/// | bytes | what |
/// |---|---|
/// | 0 | revision, u64: ranges withdrawn so far |
/// | 64 | 256 entries of 32 bytes; the one of revision `r` is number `(r - 1) % 256` |
///
/// An entry is: its revision u64, region u32 and generation u32 (upper half), offset u64, len u64.
#[derive(Clone, Debug)]
struct Words {
    words: SharedRef<[AtomicU64]>,
    entries: u64,
}

impl Words {
    fn heap(entries: usize) -> Self {
        let entries = entries.max(1);
        let count = HEADER_WORDS + entries * ENTRY_WORDS;
        Self { words: SharedRef::heap_slice((0..count).map(|_| AtomicU64::new(0))), entries: entries as u64 }
    }

    #[inline]
    fn revision(&self) -> &AtomicU64 {
        &self.words[0]
    }

    /// The words of the entry that holds `revision`: its revision, then the payload.
    fn entry(&self, revision: u64) -> &[AtomicU64] {
        let entry = (revision.wrapping_sub(1) % self.entries) as usize;
        &self.words[HEADER_WORDS + entry * ENTRY_WORDS..][..ENTRY_WORDS]
    }
}

/// The owner's end: one for each gate, so `&mut self` is what serialises withdrawals.
#[derive(Debug)]
pub struct GateWriter {
    words: Words,
    revision: u64,
}

impl GateWriter {
    /// Bytes of a gate in shared memory.
    pub const BYTES: usize = (HEADER_WORDS + GATE_ENTRIES * ENTRY_WORDS) * size_of::<u64>();

    /// A gate that only this process reads, remembering `entries` withdrawals (at least one).
    pub fn heap(entries: usize) -> Self {
        Self { words: Words::heap(entries), revision: 0 }
    }

    /// The gate at `offset` bytes of a place of ours; goes on at the revision found there.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        place.require_writable()?;
        let words = Words::mapped(place, offset)?;
        let revision = words.revision().load(Ordering::Relaxed);
        Ok(Self { words, revision })
    }

    /// A reader of this gate, for threads of this process.
    pub fn reader(&self) -> GateReader {
        GateReader { words: self.words.clone() }
    }

    /// Ranges withdrawn so far.
    #[inline]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes ranges back, all at once, and returns the new revision: it goes up by one a range.
    /// Afterwards observe every hazard; what is quiet or has moved writes there no more.
    pub fn withdraw(&mut self, ranges: &[Withdrawal]) -> u64 {
        for range in ranges {
            self.revision = self.revision.wrapping_add(1);
            self.log(range);
        }
        // SYNC withdraw: pairs with `GateReader::revision`: who sees it sees the entries.
        self.words.revision().store(self.revision, Ordering::Release);
        // SYNC quiesce: pairs with the barrier in `Hazard::enter`: the observations that follow
        // cannot pass the store above.
        full_barrier();
        self.revision
    }

    /// Writes the entry of the current revision, as a seqlock: invalid, payload, valid.
    fn log(&self, range: &Withdrawal) {
        let [revision, name, offset, len] = self.words.entry(self.revision) else {
            return;
        };
        // Revision 0 has no entry, so nobody looks for it.
        revision.store(0, Ordering::Relaxed);
        // SYNC entry-invalid: pairs with the Acquire fence in `GateReader::read_entry`: who read
        // a word of the new payload finds the revision changed.
        fence(Ordering::Release);
        let named = u64::from(range.generation) << 32 | u64::from(range.region);
        name.store(named, Ordering::Relaxed);
        offset.store(range.offset, Ordering::Relaxed);
        len.store(range.len, Ordering::Relaxed);
        // Relaxed: nobody looks for this entry before the gate's revision published it.
        revision.store(self.revision, Ordering::Relaxed);
    }
}

/// Everybody else's end; the memory may be mapped read-only.
#[derive(Clone, Debug)]
pub struct GateReader {
    words: Words,
}

#[cfg(not(loom))]
impl Words {
    fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        let count = HEADER_WORDS + GATE_ENTRIES * ENTRY_WORDS;
        Ok(Self { words: place.readable_cells(offset, count)?, entries: GATE_ENTRIES as u64 })
    }
}

impl GateReader {
    /// The gate at `offset` bytes of a place that its owner writes.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { words: Words::mapped(place, offset)? })
    }

    /// Ranges withdrawn so far. Load it between `enter` and the copy.
    #[inline]
    pub fn revision(&self) -> u64 {
        // SYNC withdraw: pairs with `GateWriter::withdraw`'s store.
        load_acquire_read_only(self.words.revision())
    }

    /// What was withdrawn after revision `known`. The answer is untrusted: compare it with plans,
    /// index nothing by it.
    pub fn withdrawals_since(&self, known: u64) -> Result<Withdrawals, LogOverrun> {
        let found = self.revision();
        let lapped = LogOverrun { known, found };
        // A revision below the known one wraps to a huge distance: also lapped.
        let missed = found.wrapping_sub(known);
        if missed > self.words.entries {
            return Err(lapped);
        }
        let mut list = Vec::with_capacity(missed as usize);
        for back in (0..missed).rev() {
            let entry = self.read_entry(found.wrapping_sub(back));
            list.push(entry.ok_or(lapped)?);
        }
        Ok(Withdrawals { revision: found, list })
    }

    /// The entry of `expected`, or `None` when the writer came round and wrote over it. The
    /// gate's revision was seen to be `expected` or later, so what is read is no older.
    fn read_entry(&self, expected: u64) -> Option<Withdrawal> {
        let [revision, name, offset, len] = self.words.entry(expected) else {
            return None;
        };
        let name = name.load(Ordering::Relaxed);
        let withdrawal = Withdrawal {
            region: name as u32,
            generation: (name >> 32) as u32,
            offset: offset.load(Ordering::Relaxed),
            len: len.load(Ordering::Relaxed),
        };
        // SYNC entry-invalid: pairs with the Release fence in `GateWriter::log`.
        fence(Ordering::Acquire);
        (revision.load(Ordering::Relaxed) == expected).then_some(withdrawal)
    }
}
