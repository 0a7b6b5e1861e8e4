//! Cards as peers tell them.

use std::collections::BTreeMap;

use penstock_core::EngineName;

use crate::descriptor::{EngineDescriptor, check_addresses};

/// The most cards that are kept.
pub const PEERS_KEPT_MAX: usize = 1024;

/// What came of a card that was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It says something new and is kept.
    New,
    /// It says what was known.
    Known,
    /// The engine itself said otherwise, and its own word counts more.
    Outdone,
    /// There is no room for it.
    Full,
    /// No engine has such a name or such addresses.
    Unusable,
}

struct Entry {
    card: EngineDescriptor,
    /// Whether the engine itself told it, in a session that may still stand.
    is_own: bool,
    /// How many cards had been taken in before: tells which was told longest ago.
    told: u64,
}

/// What peers told about themselves and about others.
///
/// An engine's own word replaces whatever was known of it. What others say of it counts only while it has not
/// spoken itself, or after [`PeerBook::forget_own`]: epochs have no order, so hearsay of another epoch may be
/// newer or older. The last word counts among equals. What is known by hearsay only is not told further, so
/// that an engine that is gone is forgotten when those who talked to it are.
#[derive(Default)]
pub struct PeerBook {
    entries: BTreeMap<EngineName, Entry>,
    told: u64,
}

impl PeerBook {
    /// A book with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the card that an engine told of itself, inside its session. When there is no room the hearsay that
    /// was told longest ago makes some.
    pub fn learn_own(&mut self, card: EngineDescriptor) -> Learned {
        self.learn(card, true)
    }

    /// Takes a card that somebody else told.
    pub fn learn_hearsay(&mut self, card: EngineDescriptor) -> Learned {
        self.learn(card, false)
    }

    fn learn(&mut self, card: EngineDescriptor, is_own: bool) -> Learned {
        let Ok(name) = EngineName::new(&card.name) else { return Learned::Unusable };
        if check_addresses(&card.addresses).is_err() {
            return Learned::Unusable;
        }
        self.told += 1;
        let told = self.told;
        if let Some(entry) = self.entries.get_mut(&name) {
            if entry.is_own && !is_own {
                return if entry.card == card { Learned::Known } else { Learned::Outdone };
            }
            let learned = if entry.card == card { Learned::Known } else { Learned::New };
            *entry = Entry { card, is_own, told };
            return learned;
        }
        if self.entries.len() >= PEERS_KEPT_MAX && !(is_own && self.make_room()) {
            return Learned::Full;
        }
        self.entries.insert(name, Entry { card, is_own, told });
        Learned::New
    }

    fn make_room(&mut self) -> bool {
        let hearsay = self.entries.iter().filter(|(_, entry)| !entry.is_own);
        let Some(name) = hearsay.min_by_key(|(_, entry)| entry.told).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.entries.remove(&name).is_some()
    }

    /// The session with this engine is over: what it said of itself counts no more than what others say. Does
    /// nothing when another epoch of it has spoken since.
    pub fn forget_own(&mut self, name: &str, epoch: u64) {
        let entry = EngineName::new(name).ok().and_then(|name| self.entries.get_mut(&name));
        if let Some(entry) = entry.filter(|entry| entry.card.epoch == epoch) {
            entry.is_own = false;
        }
    }

    /// Where this engine is, as far as is known.
    pub fn find(&self, name: &str) -> Option<&EngineDescriptor> {
        self.entries.get(&EngineName::new(name).ok()?).map(|entry| &entry.card)
    }

    /// The cards that a peer may be told: what engines said of themselves, but for the one it is told to.
    pub fn to_tell(&self, except: &str) -> Vec<EngineDescriptor> {
        let own = self.entries.values().filter(|entry| entry.is_own && entry.card.name != except);
        own.map(|entry| entry.card.clone()).collect()
    }

    /// How many engines are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl std::fmt::Debug for PeerBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerBook").field("engines", &self.entries.len()).finish_non_exhaustive()
    }
}
