//! What one engine passes to the other, checked before it is used.
//!
//! The blob is a fingerprint of the layouts below, since two releases that lay their memory out
//! differently must not share it, and probe words by which the other side finds out whether it can reach this
//! process's memory. The descriptors are, in order: owner state, mailbox, rings, slots, and sockets that lead to the
//! application's bell and to each worker's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::limits;
use penstock_memory::{Access, MemoryError, PassedFd, ProbeWords, Segment};
use penstock_ring::SharedRange;
use penstock_transport::host::bounce::{Banks, SLOT_BYTES, SLOTS};
use penstock_transport::host::{
    EngineSegments, MailboxView, OwnerStateView, PeerSegments, mailbox_bytes, owner_state_bytes, ring_segment_bytes,
};
use penstock_transport::{Fds, JoinError};

use crate::bells;

/// Counts changes of any layout in shared memory that the limits do not show.
const LAYOUT: u32 = 5;

/// What both sides must have in common.
fn fingerprint() -> Vec<u8> {
    [
        LAYOUT,
        limits::LINE_BYTES as u32,
        limits::RING_LINES as u32,
        limits::PEERS_MAX as u32,
        limits::COUNTERS_MAX as u32,
        limits::WITHDRAWALS_KEPT as u32,
        limits::SPANS_PER_POST as u32,
        SLOTS as u32,
        SLOT_BYTES as u32,
    ]
    .iter()
    .flat_map(|number| number.to_le_bytes())
    .collect()
}

/// What this side says.
pub fn blob(probe_words: ProbeWords) -> Vec<u8> {
    let mut blob = fingerprint();
    blob.extend(probe_words.encode());
    blob
}

/// The memory into which a peer with so many workers leaves its notes.
pub fn make_rings(senders: usize) -> Result<Segment, MemoryError> {
    Segment::create("penstock-rings", ring_segment_bytes(senders) as u64)
}

/// The descriptors of this side: what it has of its own, the rings the peer fills, the slots it fills, and where the peer rings.
pub fn fds(segments: &EngineSegments, rings: &Segment, slots: &Banks, bells: Vec<OwnedFd>) -> Result<Fds, MemoryError> {
    let (owner_state, mailbox) = (segments.owner_state.segment(), segments.mailbox.segment());
    let mut fds = vec![owner_state.share()?, mailbox.share()?, rings.share()?, slots.segment().share()?];
    fds.extend(bells.into_iter().map(Arc::new));
    Ok(fds)
}

/// The other side, mapped.
pub struct Accepted {
    pub segments: PeerSegments,
    /// The rings we fill.
    pub rings: SharedRange,
    /// The slots it fills.
    pub slots: Banks,
    /// How to find out whether its process's memory can be reached.
    pub probe_words: ProbeWords,
}

/// Checks and maps what a peer with `there` workers passed to us, who have `here`.
pub fn accept(blob: &[u8], fds: Vec<PassedFd>, here: usize, there: usize) -> Result<Accepted, JoinError> {
    let probe_words = match blob.split_last_chunk() {
        Some((layouts, probe_words)) if layouts == fingerprint() => ProbeWords::decode(probe_words),
        _ => {
            let why = "the other release lays out shared memory differently; use the same release";
            return Err(JoinError::Malformed(why));
        }
    };
    let expected = 4 + 1 + there;
    let found = fds.len();
    let mut fds = fds.into_iter();
    let mut next = || fds.next();
    let (Some(owner_state), Some(mailbox), Some(rings), Some(slots)) = (next(), next(), next(), next()) else {
        return Err(JoinError::Fds { expected, found });
    };
    if found != expected {
        return Err(JoinError::Fds { expected, found });
    }
    let bells: Vec<PassedFd> = fds.collect();
    if !bells.iter().all(bells::is_bell) {
        return Err(JoinError::Malformed("a bell is not a datagram socket of this host"));
    }
    let owner_state = Segment::open(owner_state.into_memfd()?, owner_state_bytes(there) as u64, Access::Read)?;
    let mailbox = Segment::open(mailbox.into_memfd()?, mailbox_bytes(there) as u64, Access::ReadWrite)?;
    let rings = Segment::open(rings.into_memfd()?, ring_segment_bytes(here) as u64, Access::ReadWrite)?;
    let slots = Banks::open(slots.into_memfd()?, there)?;
    let owner_state = OwnerStateView::over(owner_state.range(), there)?;
    let mailbox = MailboxView::over(mailbox.range(), there)?;
    Ok(Accepted { segments: PeerSegments::new(owner_state, mailbox, bells), rings: rings.range(), slots, probe_words })
}
