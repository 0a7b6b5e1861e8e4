//! Plans by address.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use penstock_core::plan::{Addressed, Found, RegionKey, Side, Unplaced};
use penstock_core::{Direction, Env};
use penstock_memory::{Blocks, Region};
use penstock_transport::Revisions;

use super::Plan;
use crate::error::{PlanError, RegionError};
use crate::peer::Peer;
use crate::peer_state::RemoteEntry;

/// A plan by address that is yet to be built.
#[must_use = "a plan is made by build()"]
pub struct AddressedPlan<'a, E: Env> {
    direction: Direction,
    peer: &'a Peer<E>,
    entries: &'a [(u64, u64, u64)],
    kept: Vec<Blocks>,
}

/// A region that an address may have been meant to be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Near {
    /// The label under which it was registered.
    pub label: String,
    /// The address of its first byte, in the process that owns it.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, base, bytes } = self;
        write!(f, "`{label}`, {bytes} bytes at {base:#x}..{:#x}", u128::from(*base) + u128::from(*bytes))
    }
}

impl Near {
    fn local(region: &Region) -> Self {
        Self { label: region.label().to_owned(), base: region.base_address(), bytes: region.bytes() }
    }

    fn remote(entry: &RemoteEntry) -> Self {
        Self { label: entry.news.label.clone(), base: entry.news.base, bytes: entry.news.bytes }
    }
}

impl<'a, E: Env> AddressedPlan<'a, E> {
    pub(super) fn new(direction: Direction, peer: &'a Peer<E>, entries: &'a [(u64, u64, u64)]) -> Self {
        Self { direction, peer, entries, kept: Vec::new() }
    }

    /// Keeps these blocks allocated as long as the plan or a transfer of it lives.
    pub fn keep(mut self, blocks: &Blocks) -> Self {
        self.kept.push(blocks.clone());
        self
    }

    /// Finds the regions, checks everything once and makes the plan.
    pub fn build(self) -> Result<Plan, PlanError> {
        self.peer.engine.shared.refuse_inherited()?;
        let (shared, peer) = (&self.peer.engine.shared, &self.peer.state);
        if let Some(cause) = peer.ended() {
            return Err(RegionError::Call(cause).into());
        }
        // Read before anything is looked up: what is withdrawn from here on is noticed when the plan is first moved.
        let seen =
            Revisions { local: shared.segments.owner_state.view().revision(), remote: peer.peer_view.revision() };
        let mut locals: HashMap<RegionKey, Arc<Region>> = HashMap::new();
        let mut remotes: HashMap<RegionKey, Arc<RemoteEntry>> = HashMap::new();
        let find = |side, address, bytes| match side {
            Side::Local => {
                let region = shared.registry.find_at(address, bytes, self.direction == Direction::Read)?;
                let key = RegionKey { region: region.id(), generation: region.generation() };
                let found = Found { key, base: region.base_address(), len: region.bytes() };
                locals.entry(key).or_insert(region);
                Some(found)
            }
            Side::Remote => {
                let entry = peer.region_at(address, bytes, |entry| self.allows(entry))?;
                let key = RegionKey { region: entry.id(), generation: entry.generation() };
                let found = Found { key, base: entry.news.base, len: entry.news.bytes };
                remotes.entry(key).or_insert(entry);
                Some(found)
            }
        };
        let mut addressed = Addressed::new(self.direction, find);
        addressed.entries(self.entries).map_err(|unplaced| self.explain(unplaced))?;
        let shape = addressed.build()?;
        let regions = shape.sections().iter();
        let regions =
            regions.map(|section| (Arc::clone(&locals[&section.local()]), Arc::clone(&remotes[&section.remote()])));
        let regions = regions.collect();
        Plan::new(shape, (Arc::clone(peer), shared.epoch.0), regions, seen, self.kept)
    }

    fn allows(&self, entry: &RemoteEntry) -> bool {
        match self.direction {
            Direction::Write => entry.rights().allows_write(),
            Direction::Read => entry.rights().allows_read(),
        }
    }

    /// Why an entry lies in no region.
    #[cold]
    fn explain(&self, Unplaced { entry, side, address, bytes }: Unplaced) -> PlanError {
        let (shared, peer) = (&self.peer.engine.shared, &self.peer.state);
        let (without_right, near, peer) = match side {
            Side::Local => {
                let covers = shared.registry.find_at(address, bytes, false);
                let near = shared.registry.nearest(address);
                (covers.map(|region| Near::local(&region)), near.map(|region| Near::local(&region)), None)
            }
            Side::Remote if peer.is_news_under_way_at(address, bytes) => {
                return RegionError::NewsUnderWay { peer: peer.name.clone() }.into();
            }
            Side::Remote => {
                let covers = peer.region_at(address, bytes, |_| true);
                let near = peer.nearest_region(address);
                let near = near.map(|entry| Near::remote(&entry));
                (covers.map(|entry| Near::remote(&entry)), near, Some(peer.name.clone()))
            }
        };
        match without_right {
            Some(near) => {
                let is_write = side == self.direction.destination();
                PlanError::NoRight { entry, side, address, peer, near, is_write }
            }
            None => PlanError::NoRegion { entry, side, address, bytes, peer, near },
        }
    }
}
