//! Plans: what to move, checked once, submitted as often as one likes.

mod addressed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_core::plan::{self, RegionBounds, RegionKey, Section, Shape};
use penstock_core::{Cause, Direction, Env, Generation, RegionId, Span};
use penstock_memory::copy::{Hint, hint_for};
use penstock_memory::fork::Maker;
use penstock_memory::{Blocks, Memory, Region};
use penstock_ring::Withdrawal;
use penstock_ring::gate::Withdrawals;
use penstock_transport::host::{OwnerStateView, is_renewal, withdrawn_bytes};
use penstock_transport::{Batch, Pair, RemoteMemory, Revisions};

use crate::error::{PlanError, RegionError};
use crate::peer::{Peer, RemoteRegion};
use crate::peer_state::{PeerState, RemoteEntry};
use crate::region::LocalRegion;
use crate::shared::Shared;

pub use penstock_core::plan::{Side, Strided};

pub use self::addressed::{AddressedPlan, Near};

/// A validated move between this engine's memory and one peer's.
///
/// Cheap to clone; it keeps the memory it touches mapped, and the blocks it was told to keep
/// allocated, until it is dropped and its transfers have ended.
#[derive(Clone)]
pub struct Plan {
    pub(crate) inner: Arc<PlanInner>,
}

pub(crate) struct PlanInner {
    pub(crate) shape: Shape,
    pub(crate) peer: Arc<PeerState>,
    /// The engine it was built in.
    pub(crate) engine: u64,
    /// For each section of the shape, the memory of both sides.
    pub(crate) sides: Box<[Sides]>,
    /// The regions themselves, for each section.
    regions: Box<[Regions]>,
    pub(crate) hint: Hint,
    /// How posts behave between the memories of all of its sections.
    pub(crate) pair: Pair,
    /// All spans, expanded, of a plan that is one unit of a few: an inline engine moves it in one post.
    pub(crate) flat: Box<[Span]>,
    /// The state of withdrawn memory this plan was last checked against.
    seen_here: AtomicU64,
    seen_there: AtomicU64,
    _kept: Vec<Blocks>,
}

/// A region of this engine and one of the peer.
type Regions = (Arc<Region>, Arc<RemoteEntry>);

pub(crate) struct Sides {
    pub(crate) local: Memory,
    pub(crate) local_key: RegionKey,
    pub(crate) remote_key: RegionKey,
    pub(crate) remote: RemoteMemory,
    pair: Pair,
}

impl Sides {
    fn of(
        section: &Section,
        (region, entry): &Regions,
        peer: &PeerState,
        direction: Direction,
    ) -> Result<Self, PlanError> {
        let local = region.memory().clone();
        if direction == Direction::Read && !local.is_writable() {
            return Err(RegionError::ReadOnly { label: region.label().to_owned() }.into());
        }
        let remote = peer.import(entry);
        let refused = |source| RegionError::Import { label: entry.news.label.clone(), source };
        let remote = remote.map_err(refused)?;
        let pair = peer.registrar.pair(&peer.caps, region, &remote).map_err(refused)?;
        Ok(Self { local, local_key: section.local(), remote_key: section.remote(), remote, pair })
    }
}

/// The most spans that a plan keeps expanded.
const FLAT_SPANS_MAX: usize = 16;

impl PlanInner {
    #[inline]
    pub(crate) fn revisions(&self) -> Revisions {
        // Relaxed: a stale value only costs another look into the log.
        Revisions { local: self.seen_here.load(Ordering::Relaxed), remote: self.seen_there.load(Ordering::Relaxed) }
    }

    /// The whole plan as one batch, if it is that small.
    #[inline(always)]
    pub(crate) fn flat_batch(&self) -> Option<Batch<'_>> {
        if self.flat.is_empty() {
            return None;
        }
        let sides = &self.sides[0];
        Some(Batch {
            direction: self.shape.direction(),
            local: &sides.local,
            local_region: sides.local_key,
            remote_region: sides.remote_key,
            remote: &sides.remote,
            spans: &self.flat,
            hint: self.hint,
            checked_at: self.revisions(),
            completion_id: 0,
            transfer: 0,
            transfer_bytes: self.shape.bytes(),
        })
    }

    fn is_remote(&self, gone: &Withdrawal) -> bool {
        let (region, generation) = (RegionId(gone.region), Generation(gone.generation));
        self.shape.touches_remote(region, generation, gone.offset, withdrawn_bytes(gone))
    }

    /// Whether the peer gave memory of this plan fresh pages since `expected`, while it was being copied into: what was
    /// moved meanwhile lies in the old ones. Only a copy that was frozen can find that.
    #[inline]
    pub(crate) fn check_renewed(&self, expected: Revisions) -> Result<(), Cause> {
        if self.peer.peer_view.revision() == expected.remote { Ok(()) } else { self.look_for_renewals(expected) }
    }

    #[cold]
    fn look_for_renewals(&self, expected: Revisions) -> Result<(), Cause> {
        let Ok(theirs) = self.peer.peer_view.withdrawals_since(expected.remote) else {
            return self.remote_regions_untouched(expected.remote);
        };
        match theirs.list.iter().any(|gone| is_renewal(gone) && self.is_remote(gone)) {
            true => Err(Cause::MemoryRenewed),
            false => Ok(()),
        }
    }

    /// Whether nothing of this engine's regions was withdrawn since: asked where the log does not reach back to the plan.
    #[cold]
    fn local_regions_untouched(&self, here: &OwnerStateView, since: u64) -> Result<(), Cause> {
        let mut sections = self.shape.sections().iter().zip(&self.regions);
        let touched = sections.find(|(section, _)| !here.not_withdrawn_since(section.local().region.0, since));
        match touched {
            None => Ok(()),
            Some((section, (region, _))) if region.is_live() && region.generation() == section.local().generation => {
                Err(Cause::PlanTooOld)
            }
            Some(_) => Err(Cause::RevokedHere),
        }
    }

    /// The same of the peer's.
    #[cold]
    fn remote_regions_untouched(&self, since: u64) -> Result<(), Cause> {
        let touched =
            self.regions.iter().find(|(_, entry)| !self.peer.peer_view.not_withdrawn_since(entry.news.id, since));
        let Some((_, entry)) = touched else { return Ok(()) };
        Err(match self.peer.check_standing(entry) {
            Err(RegionError::Renewed { .. }) => Cause::MemoryRenewed,
            // It stands, but whether what was revoked of it is the plan's nobody can say any more.
            Ok(()) | Err(RegionError::NewsUnderWay { .. }) => Cause::PlanTooOld,
            Err(_) => Cause::RevokedByPeer,
        })
    }

    /// Remembers that nothing withdrawn up to these revisions concerns this plan.
    pub(crate) fn checked(&self, revisions: Revisions) {
        self.seen_here.fetch_max(revisions.local, Ordering::Relaxed);
        self.seen_there.fetch_max(revisions.remote, Ordering::Relaxed);
    }
}

impl Plan {
    /// Begins a plan that writes from `local` to the peer's `remote`.
    pub fn write<'a, E: Env>(local: &LocalRegion<E>, remote: &RemoteRegion<E>) -> PlanBuilder<'a> {
        PlanBuilder::new(Direction::Write).between(local, remote)
    }

    /// Begins a plan that reads from the peer's `remote` to `local`.
    pub fn read<'a, E: Env>(local: &LocalRegion<E>, remote: &RemoteRegion<E>) -> PlanBuilder<'a> {
        PlanBuilder::new(Direction::Read).between(local, remote)
    }

    /// Begins a plan that writes by address: each entry is (local address, remote address, bytes).
    ///
    /// Any registered region that covers an address will do, with its owner's right where it is the peer's;
    /// of several the newest. An entry may run over regions that adjoin, an entry of no bytes is dropped, and a
    /// plan of no entries only tells. Destinations may overlap: which of the bytes stay is then undefined.
    ///
    /// A remote address is what the peer calls it: [`RemoteRegion::base`] and an offset.
    pub fn write_addresses<'a, E: Env>(peer: &'a Peer<E>, entries: &'a [(u64, u64, u64)]) -> AddressedPlan<'a, E> {
        AddressedPlan::new(Direction::Write, peer, entries)
    }

    /// The same for a plan that reads from the peer.
    pub fn read_addresses<'a, E: Env>(peer: &'a Peer<E>, entries: &'a [(u64, u64, u64)]) -> AddressedPlan<'a, E> {
        AddressedPlan::new(Direction::Read, peer, entries)
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.inner.shape.direction()
    }

    /// Whether bytes go through pinned memory of the host, on either side, because what moves them does not reach memory of a device.
    pub fn is_staged(&self) -> bool {
        self.inner.pair.is_staged
    }

    /// Bytes that one submission moves: the sum of all spans.
    pub fn bytes(&self) -> u64 {
        self.inner.shape.bytes()
    }

    /// Blocks, runs or extents as they were given.
    pub fn blocks(&self) -> u64 {
        self.inner.shape.blocks()
    }

    /// Contiguous pieces after neighbours were merged.
    pub fn pieces(&self) -> u64 {
        self.inner.shape.pieces()
    }

    /// The checked numbers themselves.
    pub fn shape(&self) -> &Shape {
        &self.inner.shape
    }
}

/// Two regions named in a plan, with what resolving them needs.
struct Between {
    engine: u64,
    maker: Maker,
    local: Arc<Region>,
    /// The local region's generation as it is in the shape.
    near: Generation,
    here: u64,
    peer: Arc<PeerState>,
    remote: Arc<RemoteEntry>,
    there: u64,
}

/// Collects what to move; [`PlanBuilder::build`] checks it.
#[must_use = "a plan is made by build()"]
pub struct PlanBuilder<'a> {
    shape: plan::Builder<'a>,
    pairs: Vec<Between>,
    kept: Vec<Blocks>,
}

impl<'a> PlanBuilder<'a> {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { shape: Shape::builder(direction), pairs: Vec::new(), kept: Vec::new() }
    }

    /// What follows goes between these two regions.
    pub fn between<E: Env>(self, local: &LocalRegion<E>, remote: &RemoteRegion<E>) -> Self {
        self.between_parts(&local.engine.shared, &local.region, &remote.peer, &remote.entry)
    }

    /// As [`PlanBuilder::between`], of what the handles stand for.
    pub(crate) fn between_parts<E: Env>(
        mut self,
        shared: &Shared<E>,
        local: &Arc<Region>,
        peer: &Arc<PeerState>,
        entry: &Arc<RemoteEntry>,
    ) -> Self {
        // The revisions are read before anything is checked: what is withdrawn from here on is
        // noticed when the plan is first moved.
        let here = shared.segments.owner_state.view().revision();
        let there = peer.peer_view.revision();
        let news = &entry.news;
        let generation = local.generation();
        let near = RegionBounds::local(local.id(), generation, local.bytes());
        let far = RegionBounds::remote(entry.id(), entry.generation(), news.bytes, entry.rights());
        let near = match local.blocks() {
            Some(pool) => near.with_block_bytes(pool.block_bytes()),
            None => near,
        };
        let far = if news.block_bytes > 0 { far.with_block_bytes(news.block_bytes) } else { far };
        self.shape = self.shape.between(near, far);
        self.pairs.push(Between {
            engine: shared.epoch.0,
            maker: shared.maker,
            local: Arc::clone(local),
            near: generation,
            here,
            peer: Arc::clone(peer),
            remote: Arc::clone(entry),
            there,
        });
        self
    }

    /// Layers, as pairs of base offsets (local, remote); every block is moved once in each.
    pub fn layers(mut self, bases: &'a [(u64, u64)]) -> Self {
        self.shape = self.shape.layers(bases);
        self
    }

    /// Blocks, as pairs of indices (local, remote), counted from a layer's base.
    pub fn blocks(mut self, pairs: &'a [(u32, u32)]) -> Self {
        self.shape = self.shape.blocks(pairs);
        self
    }

    /// Bytes of one block, where it is not the pools' own.
    pub fn block_bytes(mut self, bytes: u64) -> Self {
        self.shape = self.shape.block_bytes(bytes);
        self
    }

    /// Bytes from one block to the next (local, remote), where it is not the block's length.
    pub fn strides(mut self, local: u64, remote: u64) -> Self {
        self.shape = self.shape.strides(local, remote);
        self
    }

    /// Runs at regular distances.
    pub fn strided(mut self, runs: &'a [Strided]) -> Self {
        self.shape = self.shape.strided(runs);
        self
    }

    /// Adds extents: offsets into both regions, and a length.
    pub fn extents(mut self, spans: &'a [Span]) -> Self {
        self.shape = self.shape.extents(spans);
        self
    }

    /// Keeps these blocks allocated as long as the plan or a transfer of it lives.
    pub fn keep(mut self, blocks: &Blocks) -> Self {
        self.kept.push(blocks.clone());
        self
    }

    /// Checks everything once and makes the plan.
    pub fn build(self) -> Result<Plan, PlanError> {
        let Self { shape, pairs, kept } = self;
        if pairs.first().is_some_and(|pair| pair.maker.is_ancestor()) {
            return Err(RegionError::Call(Cause::Forked).into());
        }
        let shape = shape.build()?;
        let first = pairs.first().expect("a builder begins with a pair of regions");
        let (peer, engine) = (Arc::clone(&first.peer), first.engine);
        for pair in &pairs {
            pair.check(&peer, engine)?;
        }
        // Sections come in the order of the pairs that they are of.
        let mut from = 0;
        let regions = shape.sections().iter().map(|section| {
            from += pairs[from..].iter().position(|pair| pair.has(section)).expect("every section comes from a pair");
            (Arc::clone(&pairs[from].local), Arc::clone(&pairs[from].remote))
        });
        let regions = regions.collect();
        // The oldest revision of all pairs: what was withdrawn later is looked at once more.
        let seen = |of: fn(&Between) -> u64| pairs.iter().map(of).min().unwrap_or(0);
        let seen = Revisions { local: seen(|pair| pair.here), remote: seen(|pair| pair.there) };
        Plan::new(shape, (peer, engine), regions, seen, kept)
    }
}

impl Plan {
    /// A plan of checked numbers, with the regions of each section.
    fn new(
        shape: Shape,
        (peer, engine): (Arc<PeerState>, u64),
        regions: Box<[Regions]>,
        seen: Revisions,
        kept: Vec<Blocks>,
    ) -> Result<Self, PlanError> {
        let sides = shape.sections().iter().zip(&regions);
        let sides = sides.map(|(section, regions)| Sides::of(section, regions, &peer, shape.direction()));
        let sides = sides.collect::<Result<Box<[Sides]>, PlanError>>()?;
        let hint = hint_for(shape.bytes());
        let pair = sides.iter().map(|side| side.pair).reduce(Pair::and).unwrap_or(Pair::NOTHING);
        let flat = flatten(&shape);
        let (seen_here, seen_there) = (AtomicU64::new(seen.local), AtomicU64::new(seen.remote));
        let inner =
            PlanInner { shape, peer, engine, sides, regions, hint, pair, flat, seen_here, seen_there, _kept: kept };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Between {
    fn check(&self, peer: &Arc<PeerState>, engine: u64) -> Result<(), PlanError> {
        if self.engine != engine {
            return Err(PlanError::TwoEngines);
        }
        if !Arc::ptr_eq(&self.peer, peer) {
            return Err(PlanError::TwoPeers { first: peer.name.clone(), second: self.peer.name.clone() });
        }
        if let Some(cause) = self.peer.ended() {
            return Err(RegionError::Call(cause).into());
        }
        if !self.local.is_live() {
            return Err(RegionError::Stale { label: self.local.label().to_owned() }.into());
        }
        Ok(self.peer.check_standing(&self.remote)?)
    }

    /// Whether the section goes between these two regions.
    fn has(&self, section: &Section) -> bool {
        let remote = (self.remote.id(), self.remote.generation());
        (self.local.id(), self.near) == (section.local().region, section.local().generation)
            && remote == (section.remote().region, section.remote().generation)
    }
}

/// All spans of a plan that is one unit of a few, else none.
fn flatten(shape: &Shape) -> Box<[Span]> {
    match shape.unit(0) {
        Some(unit) if shape.units() == 1 && unit.spans() <= FLAT_SPANS_MAX => {
            let mut spans = vec![Span::default(); unit.spans()];
            unit.fill(0, &mut spans);
            spans.into()
        }
        _ => Box::default(),
    }
}

/// Whether memory withdrawn since `expected` concerns the plan: the cause to end with, or the
/// revisions up to which it does not.
pub(crate) fn check_withdrawn(
    plan: &PlanInner,
    here: &OwnerStateView,
    expected: Revisions,
) -> Result<Revisions, Cause> {
    let peer_view = &plan.peer.peer_view;
    // Read first: what is withdrawn from here on is looked at once more.
    let now = Revisions { local: here.revision(), remote: peer_view.revision() };
    let nothing = |revision| Withdrawals { revision, list: Vec::new() };
    let ours = here
        .withdrawals_since(expected.local)
        .or_else(|_| plan.local_regions_untouched(here, expected.local).map(|()| nothing(now.local)))?;
    let theirs = peer_view
        .withdrawals_since(expected.remote)
        .or_else(|_| plan.remote_regions_untouched(expected.remote).map(|()| nothing(now.remote)))?;
    let is_local = |gone: &Withdrawal| {
        let (region, generation) = (RegionId(gone.region), Generation(gone.generation));
        plan.shape.touches_local(region, generation, gone.offset, withdrawn_bytes(gone))
    };
    if ours.list.iter().any(is_local) {
        return Err(Cause::RevokedHere);
    }
    if theirs.list.iter().any(|gone| is_renewal(gone) && plan.is_remote(gone)) {
        // The range was revoked before; this is the later news, and says what to do.
        return Err(Cause::MemoryRenewed);
    }
    if theirs.list.iter().any(|gone| plan.is_remote(gone)) {
        return Err(Cause::RevokedByPeer);
    }
    let checked = Revisions { local: ours.revision, remote: theirs.revision };
    plan.checked(checked);
    Ok(checked)
}
