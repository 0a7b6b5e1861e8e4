//! A peer's gate and hazards: it alone writes them, and it may write anything.

use std::sync::atomic::Ordering;

use penstock_core::limits::{PEERS_MAX, WITHDRAWALS_KEPT};
use penstock_ring::SharedRange;
use penstock_transport::host::{OwnerStateView, owner_state_bytes};

/// Whatever lies in a peer's owner state, reading them ends, and names no more withdrawals than are kept.
///
/// The input is a list of (place u16, word u64), ten bytes each, written to owner state that are otherwise empty.
pub fn run(input: &[u8]) {
    let place = SharedRange::heap(owner_state_bytes(1));
    let words = place.len() / 8;
    let mut known = vec![0, 1, u64::MAX];
    for write in input.chunks_exact(10) {
        let (at, value) = write.split_at(2);
        let at = usize::from(u16::from_le_bytes([at[0], at[1]])) % words;
        let value = u64::from_le_bytes(value.try_into().expect("eight of ten bytes are left"));
        place.atomic_u64(at * 8).expect("the word lies inside").store(value, Ordering::Relaxed);
        known.extend([value, value.wrapping_sub(1)]);
    }
    let view = OwnerStateView::over(place.without_writing(), 1).expect("the place is large enough");
    let _ = (view.revision(), view.last_region_change(), view.liveness());
    known.truncate(16);
    for since in known {
        if let Ok(withdrawals) = view.withdrawals_since(since) {
            assert!(withdrawals.list.len() <= WITHDRAWALS_KEPT);
        }
    }
    let mut busy = Vec::new();
    [0, 1, PEERS_MAX as u32 - 1].into_iter().for_each(|peer_index| view.observe(peer_index, &mut busy));
    for seen in &busy {
        let _ = view.has_finished(seen);
    }
}
