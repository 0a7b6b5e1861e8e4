//! Bounce slots: access on one host to memory that only its owner may touch.
//!
//! A *bank* is one worker's array of request slots. The initiator has one for each of its workers, in memory that both
//! sides map:
//!
//! ```text
//! bank      posts: how many requests were ever posted here
//!           slots: state word, response, request (see `penstock_ring::bounce`)
//! data      64 KiB for each slot; its pages come with its first use
//! ```
//!
//! A write is gathered into a slot by the initiator and scattered out of it by the owner's worker; a
//! read goes the other way. Several slots are in flight at once, so the two copies overlap.
//!
//! - [`request`]: the request's encoding, and its parser for untrusted words
//! - [`initiator`]: the bank that this engine's worker fills
//! - [`owner`]: the banks of the peer's workers, checked and served

mod initiator;
mod owner;
mod request;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Span;
use penstock_core::limits::{LINE_BYTES, UNIT_BYTES};
use penstock_memory::{Access, MemoryError, Registry, Segment, Window};
use penstock_ring::bounce::slot_bytes;

pub(super) use self::initiator::RequestBank;
pub(super) use self::owner::{AnswerBell, ServedBanks};
pub use self::request::{BounceRequest, BounceRequestError, REQUEST_WORDS};

/// Slots of one bank: how much one worker may have under way with one peer.
pub const SLOTS: usize = 16;

/// Bytes that one slot carries.
pub const SLOT_BYTES: u64 = UNIT_BYTES;

const SLOTS_OFFSET: usize = LINE_BYTES;
const PAGE_BYTES: usize = 4096;

/// Bytes of a bank without its data.
pub const BANK_BYTES: usize = (SLOTS_OFFSET + SLOTS * slot_bytes(REQUEST_WORDS)).next_multiple_of(PAGE_BYTES);

const _: () = assert!(SLOT_BYTES.is_multiple_of(PAGE_BYTES as u64), "slots are given their pages one by one");

/// What a session needs to move bytes through slots.
pub struct BounceParts {
    /// This engine's regions, in which the peer's requests are looked up.
    pub registry: Arc<Registry>,
    /// The banks that this engine's workers fill.
    pub outgoing: Banks,
    /// The banks that the peer's workers fill.
    pub incoming: Banks,
}

/// The banks of one side's workers, in memory that both sides map.
#[derive(Debug, Clone)]
pub struct Banks {
    segment: Arc<Segment>,
    workers: usize,
}

impl Banks {
    fn control_bytes(workers: usize) -> u64 {
        (workers * BANK_BYTES) as u64
    }

    /// Bytes of the banks of so many workers.
    pub fn bytes_for(workers: usize) -> u64 {
        Self::control_bytes(workers) + (workers * SLOTS) as u64 * SLOT_BYTES
    }

    /// Fresh banks for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Self, MemoryError> {
        let (bytes, control) = (Self::bytes_for(workers), Self::control_bytes(workers));
        let segment = Segment::create_backed_to("penstock-slots", bytes, control)?;
        Ok(Self { segment: Arc::new(segment), workers })
    }

    /// The banks that a peer with so many workers made.
    pub fn open(fd: OwnedFd, workers: usize) -> Result<Self, MemoryError> {
        let (bytes, control) = (Self::bytes_for(workers), Self::control_bytes(workers));
        let segment = Segment::open_backed_to(fd, bytes, Access::ReadWrite, control)?;
        Ok(Self { segment: Arc::new(segment), workers })
    }

    /// The memory, to be passed to the peer.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Offset of the request counter of a worker's bank.
    pub const fn posts_offset(worker: usize) -> usize {
        worker * BANK_BYTES
    }

    /// Where a slot of a worker's bank begins.
    pub const fn slot_offset(worker: usize, slot: usize) -> usize {
        worker * BANK_BYTES + SLOTS_OFFSET + slot * slot_bytes(REQUEST_WORDS)
    }

    fn data_offset(&self, worker: usize, slot: usize) -> u64 {
        Self::control_bytes(self.workers) + (worker * SLOTS + slot) as u64 * SLOT_BYTES
    }

    fn data(&self, worker: usize, slot: usize) -> Window {
        let data = self.segment.window().slice(self.data_offset(worker, slot), SLOT_BYTES);
        data.expect("workers and slots are bounded by their tables")
    }

    /// Gives a slot's data its pages, which may fail for want of memory.
    fn populate(&self, worker: usize, slot: usize) -> Result<(), MemoryError> {
        self.segment.back(self.data_offset(worker, slot), SLOT_BYTES)
    }
}

/// Sets the spans' remote offsets to their positions in the slot, one behind the other. Returns their bytes.
fn assign_slot_offsets(spans: &mut [Span]) -> u64 {
    spans.iter_mut().fold(0, |at, span| {
        span.remote = at;
        at + span.len
    })
}

#[cfg(test)]
mod tests;
