//! The peers of an engine, as far as they speak of transfers, and the layouts that each side has told the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_core::EngineName;
use penstock_session::control::{BUFFERS_MAX, CONTROL_VERSIONS, LayoutGone, LayoutNews, PeerFeatures};
use penstock_session::frame::LABEL_BYTES_MAX;
use penstock_session::{ControlMessage, PeerKey};

use crate::action::RegionRef;
use crate::geometry::{Clash, ShardStripe, clash_of};
use crate::layout::{Layout, LayoutError};
use crate::shards::{ShardPair, Unfit};

/// The most layouts that an engine has, or is told by one peer, at a time.
pub const LAYOUTS_MAX: usize = 256;
/// The most buffers of all layouts of one peer.
const BUFFERS_OF_PEER_MAX: usize = 16 * BUFFERS_MAX;
/// The most pairs of layouts that are kept because transfers between them follow each other.
const PAIRS_MAX: usize = 64;

/// A layout of this engine, in one use of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutKey {
    /// Its number.
    pub number: u32,
    /// Which use of it.
    pub generation: u32,
}

/// Why this engine cannot have another layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutRefused {
    /// There are as many as there may be.
    #[error("an engine has at most {LAYOUTS_MAX} layouts; withdraw one that is not used")]
    TooMany,
    /// The label is taken.
    #[error("this engine has a layout `{0}` already; give this one another label, or withdraw that one")]
    LabelTaken(String),
    /// The label is empty or too long.
    #[error("a layout's label has 1 to {LABEL_BYTES_MAX} bytes, and this has {0}")]
    Label(usize),
    /// It is none.
    #[error(transparent)]
    Wrong(#[from] LayoutError),
    /// A byte of its region would have two numbers: whoever holds a block by the one would not hold it by the other.
    #[error(
        "block {} of the layout `{label}` has bytes that are block {} of the layout `{other}` of the same region; lay both out so that every byte has one block's number, or give each a region of its own", clash.block, clash.other
    )]
    Renumbered { label: String, other: String, clash: Clash },
    /// The same, of a layout that is gone while blocks are held.
    #[error(
        "block {} of the layout `{label}` has bytes that were block {} of the layout `{other}`, and not all blocks of that are given back: lay the pool out anew when all its blocks are free", clash.block, clash.other
    )]
    StillHeld { label: String, other: String, clash: Clash },
}

/// Why a call cannot name a peer. What transfers, parents and chunks answer says the same of it, in these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// Its session is over.
    #[error("is gone; connect again when it is back, and name the peer that this gives")]
    Gone,
    /// Its session is not complete.
    #[error("has not said yet what it can do; try again when it answers, as `Peer::ping` tells")]
    NotYet,
    /// It speaks no version of this layer that is spoken here, or none at all.
    #[error("is of a release that does not speak of transfers by name; upgrade it, or use plans")]
    NotSpoken,
}

/// What a peer has said of what it can do.
#[derive(Debug)]
enum Ability {
    /// Nothing.
    Unsaid,
    /// That it speaks of transfers in a version that is spoken here.
    Able,
    /// That it does not, or everything else and not this.
    Lacks,
}

/// One peer.
#[derive(Debug)]
struct Partner {
    name: EngineName,
    ability: Ability,
    layouts: BTreeMap<u32, Arc<Layout>>,
}

impl Partner {
    fn is_able(&self) -> bool {
        matches!(self.ability, Ability::Able)
    }
}

/// All of them, and this engine's own layouts.
#[derive(Debug, Default)]
pub(crate) struct Partners {
    partners: BTreeMap<PeerKey, Partner>,
    own: BTreeMap<u32, Arc<Layout>>,
    /// Layouts of this engine that are gone, by whose numbers blocks may still be held.
    gone: Vec<Arc<Layout>>,
    last_generation: u32,
    /// Layouts of peers with those of this engine that were found to fit: every grant asks, and the answer is always the same.
    pairs: BTreeMap<(PeerKey, LayoutKey, LayoutKey), Arc<ShardPair>>,
    /// Words of peers that made no sense and changed nothing.
    refused: u64,
}

impl Partners {
    /// A session has begun.
    pub(crate) fn joined(&mut self, peer: PeerKey, name: EngineName) {
        self.partners.insert(peer, Partner { name, ability: Ability::Unsaid, layouts: BTreeMap::new() });
    }

    /// A session is over. Answers with whom it was, if that is known.
    pub(crate) fn left(&mut self, peer: PeerKey) -> Option<EngineName> {
        self.pairs.retain(|(of, ..), _| *of != peer);
        self.partners.remove(&peer).map(|partner| partner.name)
    }

    /// What a peer is called, as long as its session stands.
    pub(crate) fn name(&self, peer: PeerKey) -> Option<&EngineName> {
        self.partners.get(&peer).map(|partner| &partner.name)
    }

    /// Whether a peer speaks of transfers, and if not, why not.
    pub(crate) fn speaks(&self, peer: PeerKey) -> Result<(), Silence> {
        match self.partners.get(&peer).map(|partner| &partner.ability) {
            Some(Ability::Able) => Ok(()),
            Some(Ability::Unsaid) => Err(Silence::NotYet),
            Some(Ability::Lacks) => Err(Silence::NotSpoken),
            None => Err(Silence::Gone),
        }
    }

    /// A peer has said everything that it says when a session begins, and nothing of transfers.
    pub(crate) fn is_unable(&mut self, peer: PeerKey) {
        if let Some(partner) = self.partners.get_mut(&peer)
            && matches!(partner.ability, Ability::Unsaid)
        {
            partner.ability = Ability::Lacks;
        }
    }

    /// A peer speaks of transfers. Answers what it is to hear first.
    pub(crate) fn is_able(&mut self, peer: PeerKey, able: &PeerFeatures) -> Vec<ControlMessage> {
        let Some(partner) = self.partners.get_mut(&peer) else { return Vec::new() };
        let (min, max) = CONTROL_VERSIONS;
        let is_spoken = able.version_min <= max && able.version_max >= min;
        // Said once: what follows is under the words that were said then.
        if !is_spoken && matches!(partner.ability, Ability::Unsaid) {
            partner.ability = Ability::Lacks;
        }
        if !is_spoken || able.tag == 0 || matches!(partner.ability, Ability::Able) {
            self.refused += u64::from(is_spoken);
            return Vec::new();
        }
        partner.ability = Ability::Able;
        self.own.values().map(|own| ControlMessage::LayoutNews(own.news().clone())).collect()
    }

    /// Peers that speak of transfers.
    pub(crate) fn able(&self) -> impl Iterator<Item = PeerKey> + '_ {
        self.partners.iter().filter(|(_, partner)| partner.is_able()).map(|(peer, _)| *peer)
    }

    /// A layout of this engine; its number and generation are chosen here. Answers what is to be told to all.
    pub(crate) fn add(
        &mut self,
        news: LayoutNews,
        region_bytes: u64,
    ) -> Result<(LayoutKey, ControlMessage), LayoutRefused> {
        match news.label.len() {
            1..=LABEL_BYTES_MAX => {}
            bytes => return Err(LayoutRefused::Label(bytes)),
        }
        if self.own.values().any(|own| own.label() == news.label) {
            return Err(LayoutRefused::LabelTaken(news.label));
        }
        let free = (0..LAYOUTS_MAX as u32).find(|number| !self.own.contains_key(number));
        let number = free.ok_or(LayoutRefused::TooMany)?;
        let key = LayoutKey { number, generation: self.last_generation.wrapping_add(1) };
        let news = LayoutNews { number, generation: key.generation, ..news };
        let layout = Layout::check(news.clone(), region_bytes)?;
        if let Some((other, clash)) = self.numbered_otherwise(layout.region(), &layout.stripes()) {
            let (label, other) = (layout.label().to_owned(), other.label().to_owned());
            return Err(LayoutRefused::Renumbered { label, other, clash });
        }
        let gone = self.gone.iter().filter(|gone| gone.region() == layout.region());
        let before = gone.filter_map(|gone| Some((gone, clash_of(&layout.stripes(), &gone.stripes())?))).next();
        if let Some((other, clash)) = before {
            let (label, other) = (layout.label().to_owned(), other.label().to_owned());
            return Err(LayoutRefused::StillHeld { label, other, clash });
        }
        self.own.insert(number, Arc::new(layout));
        self.last_generation = key.generation;
        Ok((key, ControlMessage::LayoutNews(news)))
    }

    /// This engine's layouts of a region.
    pub(crate) fn own_of(&self, region: RegionRef) -> impl Iterator<Item = &Arc<Layout>> {
        self.own.values().filter(move |own| own.region() == region)
    }

    /// No block of a region is held by the numbers of layouts that are gone.
    pub(crate) fn forget_gone(&mut self, region: RegionRef) {
        self.gone.retain(|gone| gone.region() != region);
    }

    /// A layout of this region that gives a byte another block's number than these stripes do.
    pub(crate) fn numbered_otherwise(
        &self,
        region: RegionRef,
        stripes: &[ShardStripe],
    ) -> Option<(&Arc<Layout>, Clash)> {
        self.own_of(region).find_map(|own| Some((own, clash_of(stripes, &own.stripes())?)))
    }

    /// A layout of this engine is gone. Answers what is to be told to all, if it was there.
    pub(crate) fn remove(&mut self, key: LayoutKey) -> Option<ControlMessage> {
        self.own.get(&key.number).filter(|own| own.news().generation == key.generation)?;
        let gone = self.own.remove(&key.number)?;
        let is_as = |other: &Arc<Layout>| other.region() == gone.region() && other.stripes() == gone.stripes();
        if !self.gone.iter().any(is_as) {
            if self.gone.len() >= LAYOUTS_MAX {
                self.gone.remove(0);
            }
            self.gone.push(gone);
        }
        self.pairs.retain(|(.., ours), _| *ours != key);
        Some(ControlMessage::LayoutGone(LayoutGone { number: key.number, generation: key.generation }))
    }

    /// A layout of this engine.
    pub(crate) fn own(&self, key: LayoutKey) -> Option<&Arc<Layout>> {
        self.own.get(&key.number).filter(|own| own.news().generation == key.generation)
    }

    /// A peer has said that it has a layout. Whether all of it lies in its region is seen when it is used.
    pub(crate) fn learn(&mut self, peer: PeerKey, news: LayoutNews) {
        let Some(partner) = self.partners.get_mut(&peer).filter(|partner| partner.is_able()) else {
            self.refused += 1;
            return;
        };
        let others = partner.layouts.values().filter(|known| known.news().number != news.number);
        let buffers: usize = others.clone().map(|known| known.buffers().len()).sum();
        let has_room = others.clone().count() < LAYOUTS_MAX && buffers + news.buffers.len() <= BUFFERS_OF_PEER_MAX;
        if !has_room || others.clone().any(|known| known.label() == news.label) {
            self.refused += 1;
            return;
        }
        // How long its region is, is looked at where it is used.
        match Layout::check(news, u64::MAX) {
            Ok(layout) => {
                let number = layout.news().number;
                self.pairs.retain(|(of, theirs, _), _| (*of, theirs.number) != (peer, number));
                partner.layouts.insert(number, Arc::new(layout));
            }
            Err(_) => self.refused += 1,
        }
    }

    /// A peer has said that a layout is gone.
    pub(crate) fn forget(&mut self, peer: PeerKey, gone: LayoutGone) {
        let Some(partner) = self.partners.get_mut(&peer) else { return };
        if partner.layouts.get(&gone.number).is_some_and(|known| known.news().generation == gone.generation) {
            partner.layouts.remove(&gone.number);
            self.pairs.retain(|(of, theirs, _), _| (*of, theirs.number) != (peer, gone.number));
        }
    }

    /// A layout of a peer's, by its label.
    pub(crate) fn theirs(&self, peer: PeerKey, label: &str) -> Option<&Arc<Layout>> {
        self.partners.get(&peer)?.layouts.values().find(|known| known.label() == label)
    }

    /// A layout of a peer's, by its number in one use.
    pub(crate) fn theirs_at(&self, peer: PeerKey, key: LayoutKey) -> Option<&Arc<Layout>> {
        self.partners.get(&peer)?.layouts.get(&key.number).filter(|known| known.news().generation == key.generation)
    }

    /// A layout of this engine, which may be withdrawn meanwhile, with one of a peer's, if that has told of it.
    pub(crate) fn pair(
        &mut self,
        peer: PeerKey,
        key: LayoutKey,
        ours: &Layout,
    ) -> Option<Result<Arc<ShardPair>, Unfit>> {
        let of = (peer, key, LayoutKey { number: ours.news().number, generation: ours.news().generation });
        if let Some(pair) = self.pairs.get(&of) {
            return Some(Ok(Arc::clone(pair)));
        }
        let pair = match ShardPair::of(ours, self.theirs_at(peer, key)?) {
            Ok(pair) => Arc::new(pair),
            Err(unfit) => return Some(Err(unfit)),
        };
        // Of a layout that is withdrawn nothing is kept.
        if self.own(of.2).is_some() {
            if self.pairs.len() >= PAIRS_MAX {
                self.pairs.clear();
            }
            self.pairs.insert(of, Arc::clone(&pair));
        }
        Some(Ok(pair))
    }

    /// The labels of a peer's layouts, sorted.
    pub(crate) fn labels(&self, peer: PeerKey) -> Vec<&str> {
        let partner = self.partners.get(&peer);
        let mut labels: Vec<&str> =
            partner.into_iter().flat_map(|partner| partner.layouts.values()).map(|known| known.label()).collect();
        labels.sort_unstable();
        labels
    }

    /// Words of peers that made no sense and changed nothing.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether there is nobody.
    pub(crate) fn is_empty(&self) -> bool {
        self.partners.is_empty()
    }
}

#[cfg(test)]
mod tests;
