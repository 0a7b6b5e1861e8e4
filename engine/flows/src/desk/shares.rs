//! In which transfers each peer has a part: those that go on without it, or end, when its session is over.

use std::collections::BTreeMap;

use penstock_session::PeerKey;
use penstock_session::keyed::{Keyed, KeyedMap, shrink};
use penstock_session::transfers::table::EntryKey;

/// The transfers of each peer.
#[derive(Debug)]
pub(super) struct Shares {
    keyed: Keyed,
    of: BTreeMap<PeerKey, KeyedMap<EntryKey, ()>>,
}

impl Shares {
    /// Nobody has any.
    pub(super) fn new(keyed: Keyed) -> Self {
        Self { keyed, of: BTreeMap::new() }
    }

    /// A peer has a part in a transfer from now on.
    pub(super) fn add(&mut self, peer: PeerKey, key: EntryKey) {
        let keys = self.of.entry(peer).or_insert_with(|| KeyedMap::with_hasher(self.keyed));
        keys.insert(key, ());
    }

    /// It has none any more.
    pub(super) fn remove(&mut self, peer: PeerKey, key: EntryKey) {
        let Some(keys) = self.of.get_mut(&peer) else { return };
        keys.remove(&key);
        if keys.is_empty() {
            self.of.remove(&peer);
        }
    }

    /// All of a peer, in the order in which they came to their places in the table.
    pub(super) fn all(&self, peer: PeerKey) -> Vec<EntryKey> {
        let mut keys: Vec<EntryKey> = self.of.get(&peer).into_iter().flat_map(KeyedMap::keys).copied().collect();
        keys.sort_unstable();
        keys
    }

    /// All of a peer, in the order in which they came to their places in the table: it has none any more.
    pub(super) fn take(&mut self, peer: PeerKey) -> Vec<EntryKey> {
        let mut keys: Vec<EntryKey> = self.of.remove(&peer).into_iter().flatten().map(|(key, ())| key).collect();
        keys.sort_unstable();
        keys
    }

    /// Whether nobody has a part in anything.
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Gives back memory that a peak has left behind.
    pub(super) fn shrink(&mut self) {
        self.of.values_mut().for_each(shrink);
    }
}
