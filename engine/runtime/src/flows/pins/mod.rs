//! Blocks of requests that have ended, kept for others that go on from them.
//!
//! A parent's blocks are *pinned* in the call that reports its end, before any of them can be freed. A child *inherits* whole blocks of
//! it, all that it can have or none, and shares them: nobody writes to them. What the parent has in a block that is not whole is copied
//! into one of the child's own ([`Inherited::copy_tail`], by the caller's thread), or comes again. There is no promise beyond that: what
//! is not there is a [`Miss`] with a reason, and the child computes it.
//!
//! A child whose other tokens come from another engine asks for those alone ([`Receive::continuation_of`](super::Receive::continuation_of)):
//!
//! ```
//! use std::time::Duration;
//!
//! use penstock::flows::{
//!     Group, InputEvent, Isolation, LayoutSpec, Parent, ParentBlocks, PinSettings, Receive, RequestId, Rows, Send, TransferId,
//! };
//! use penstock::{Config, Engine, PoolSpec, Rights};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("penstock-doc-pins-{}", std::process::id()));
//! let soon = Duration::from_secs(5);
//! // Blocks of 16 tokens of 64 bytes.
//! let rows = Rows { first: 0, count: 1, of: 1, bytes: 64 };
//! let start = |name: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     let engine = Engine::start(Config::default().named(name).directory(&folder))?;
//!     let pool = engine.pool(PoolSpec::host(128 * 1024).block(1024).label("kv").rights(Rights::READ_WRITE))?;
//!     let layout = engine.layout(&pool, LayoutSpec::new("kv", 16, 128).token_major(0, 0, rows))?;
//!     Ok((engine, pool, layout))
//! };
//! let (prefill, theirs, from) = start("prefill-0")?;
//! let (decode, ours, into) = start("decode-0")?;
//! let peer = decode.connect(&prefill.descriptor(), soon)?;
//! peer.wait_layout("kv", soon)?;
//!
//! // A request of 700 tokens ends here; of its last token there is no data.
//! let pins = decode.pins(0, PinSettings::default())?;
//! let parent = RequestId::new("cmpl-1")?;
//! let blocks = ours.take(44)?;
//! let kept = Parent {
//!     request: parent.clone(),
//!     isolation: Isolation::default(),
//!     groups: vec![Group { block_tokens: 16, computed: 699, block_bytes: 1024, ..Group::of(&blocks) }],
//!     blob: b"its tokens".to_vec(),
//! };
//! pins.pin(kept, &[&blocks], soon)?;
//! drop(blocks);
//!
//! // The next turn has 705 tokens: 688 of them are here, and 17 come.
//! let child = RequestId::new("cmpl-2")?;
//! let inherited = pins.inherit(&parent, &Isolation::default(), &child, 705)??;
//! assert_eq!(inherited.tokens(), 688);
//! let transfer = TransferId::mint("6ba7b810-9dad-11d1-80b4-00c04fd430c8", 0, 0)?;
//! let output = prefill.produce(transfer, &RequestId::new("cmpl-3")?, Send::from(&from))?;
//! output.chunk(&theirs.take(45)?, 705, true)?;
//! let input = decode.consume(transfer, &child, Receive::into(&into).from(0, &peer).continuation_of(&inherited))?;
//! input.grant(&ours.take(2)?)?;
//! let tokens = loop {
//!     if let InputEvent::Done { tokens } = input.next(soon)? {
//!         break tokens;
//!     }
//! };
//! assert_eq!(tokens, 17);
//! # drop((input, output, inherited, peer, from, into, theirs, ours, decode, prefill));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Env, RegionId};
use penstock_flows::action::{BlocksRef, RegionRef};
use penstock_flows::continuation::{Ask, Child, Inherited as Given, Keep, Pins as Keeper};
pub use penstock_flows::continuation::{
    Finished as Ended, Group, Home, Isolation, Miss, Parent, PinError, PinKey, PinMetrics, PinSettings,
};
use penstock_flows::geometry::ShardStripe;
use penstock_flows::manager::{BlockAccess, BlockUseKey, Placed, User};
use penstock_flows::{Cut, LayoutKey, Run, ShardPair, Tail};
use penstock_memory::{AccessError, Blocks, Region, Window};
use penstock_session::RequestId;

use self::held::{OfGroup, held_of, refs_in};
pub use self::waiting::{Inheriting, InheritingFrom};
use super::lifecycle::Lifecycle;
use super::{CallError, FlowError, ForeignMemory, Layout, SchedulerReport};
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::peer::Peer;

mod held;
mod waiting;

/// A group of blocks that a parent has.
pub trait ParentBlocks {
    /// One of these blocks, of which nothing else is said yet.
    fn of(blocks: &Blocks) -> Self;
}

impl ParentBlocks for Group {
    fn of(blocks: &Blocks) -> Self {
        Self { blocks: blocks.indices().to_vec(), ..Self::default() }
    }
}

/// What this engine keeps of requests that have ended. Clones are the same.
pub struct Pins<E: Env> {
    engine: Arc<EngineInner<E>>,
}

impl<E: Env> Clone for Pins<E> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine) }
    }
}

impl<E: Env> Engine<E> {
    /// What this engine keeps of requests that have ended, on this rank; so much of it as these settings say. Whoever asks again has the
    /// same, and is refused with another rank or other settings ([`PinError::OpenOtherwise`]): there is one of it in an engine.
    pub fn pins(&self, rank: u16, settings: PinSettings) -> Result<Pins<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let home = Home { engine: shared.name.clone(), rank };
        shared.call_manager(|manager, _| manager.open_pins(settings, home))?;
        Ok(Pins { engine: Arc::clone(&self.engine) })
    }
}

/// What a parent's caller has left, and where a child of it is best placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// What was left.
    pub bytes: Vec<u8>,
    /// Which engine has, or had, the blocks.
    pub home: Home,
}

impl<E: Env> Pins<E> {
    fn call<R>(&self, call: impl FnOnce(&mut Keeper, penstock_core::Timestamp) -> R) -> Result<R, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let answer = shared.call_manager(|manager, now| manager.call_pins(|pins| call(pins, now)));
        answer.ok_or(FlowError::Engine(Cause::EngineClosed))
    }

    /// A request runs that may become a parent: who asks for it hears so, or waits.
    pub fn runs(&self, parent: &RequestId, isolation: &Isolation) -> Result<(), FlowError> {
        Ok(self.call(|pins, _| pins.runs(parent.clone(), isolation.clone()))??)
    }

    /// It has ended, and nothing of it is kept.
    pub fn ended(&self, parent: &RequestId) -> Result<(), FlowError> {
        self.call(|pins, now| pins.ended(parent, now))
    }

    /// Keeps the blocks of a request that ends, so long at most; they go back when no child has them. To be called before any of them is
    /// dropped, with handles of all blocks that its groups name: of its own, and of those that it has inherited ([`Inherited::blocks`]). What
    /// no handle holds is refused ([`PinError::NotHeld`]), and so is what is still being written ([`PinError::Held`]): what a transfer brings
    /// is there when its leg has landed. Nothing is written to the blocks before they are let go. Where groups are of several pools, which
    /// all number from 0, give one handle for each group, in their order ([`Blocks::chain`] makes one of several): what could be of two
    /// pools otherwise is refused ([`PinError::SeveralPools`]).
    pub fn pin(&self, parent: Parent, blocks: &[&Blocks], ttl: Duration) -> Result<PinKey, FlowError> {
        let held = self.held_of(&parent, blocks)?;
        let placed = self.placed(&held);
        self.pin_placed(parent, held, placed, ttl)
    }

    fn held_of(&self, parent: &Parent, blocks: &[&Blocks]) -> Result<Vec<OfGroup>, FlowError> {
        match held_of(blocks_of(parent), blocks) {
            Err(_) if planted::is(Bug::PinOfBlocksNotHeld) => Ok(as_given(blocks)),
            held => Ok(held?),
        }
    }

    fn pin_placed(
        &self,
        parent: Parent,
        held: Vec<OfGroup>,
        placed: Vec<(Placed, Vec<u32>)>,
        ttl: Duration,
    ) -> Result<PinKey, FlowError> {
        let shared = &self.engine.shared;
        let keep = self.keep(held);
        let tickets = keep.clone();
        let pinned = shared.check_usable().map_err(FlowError::Engine).and_then(|()| {
            let pinned = shared.call_manager(|manager, now| manager.pin(parent, keep, placed, ttl, now));
            Ok(pinned.ok_or(FlowError::Engine(Cause::EngineClosed))??)
        });
        pinned.inspect_err(|_| tickets.into_iter().for_each(|ticket| shared.manager.free(ticket)))
    }

    /// Where the blocks of these groups lie in memory of this engine.
    fn placed(&self, groups: &[OfGroup]) -> Vec<(Placed, Vec<u32>)> {
        let placed = |blocks: &Blocks| {
            let pool = blocks.allocator();
            let is_its = |region: &Arc<Region>| region.blocks().is_some_and(|its| Arc::ptr_eq(its, pool));
            let region = self.engine.shared.registry.iter().find(is_its)?;
            let at = RegionRef { region: region.id(), generation: region.generation() };
            let len = pool.block_bytes();
            let whole = ShardStripe { base: 0, stride: len, len, blocks: pool.total() };
            Some((Placed::Pool(at, whole), blocks.indices().to_vec()))
        };
        groups.iter().flatten().filter_map(placed).collect()
    }

    /// Keeps the blocks of each group by a ticket of its own, in their order: from then on nobody has to find them by their numbers.
    fn keep(&self, groups: Vec<OfGroup>) -> Vec<BlocksRef> {
        groups.into_iter().map(|group| self.engine.shared.manager.keep_all(group.into_iter().collect())).collect()
    }

    /// The same, of blocks in this layout, of whose pool they have to be, which children on other engines may read too: see [`Pins::inherit_from`].
    pub fn pin_for_all(
        &self,
        parent: Parent,
        layout: &Layout<E>,
        blocks: &[&Blocks],
        ttl: Duration,
    ) -> Result<PinKey, FlowError> {
        if !Arc::ptr_eq(&layout.engine, &self.engine) {
            return Err(FlowError::ForeignLayout { label: layout.label().to_owned() });
        }
        blocks.iter().try_for_each(|blocks| layout.ground.check(blocks))?;
        parent.groups.iter().enumerate().try_for_each(|(number, group)| check_layout(number, group, layout))?;
        let held = self.held_of(&parent, blocks)?;
        let placed = blocks_of(&parent).map(|blocks| (Placed::Layout(layout.key), blocks.to_vec())).collect();
        let pin = self.pin_placed(parent, held, placed, ttl)?;
        self.engine.shared.call_manager(|manager, _| manager.lend_pin(pin, layout.key));
        Ok(pin)
    }

    /// Reads as many whole blocks as a child of so many tokens can have of a parent of another engine, as it is called there, into the
    /// child's own blocks of this layout. Answers how many tokens are in them now; they count only because the other engine has said
    /// afterwards that its blocks stood until then. Until the answer nobody else of this engine is at the child's blocks; those that somebody
    /// is at are refused ([`CallError::Held`]).
    pub fn inherit_from(
        &self,
        peer: &Peer<E>,
        (parent, isolation): (&RequestId, &Isolation),
        tokens: u64,
        (layout, own): (&Layout<E>, &Blocks),
        timeout: Duration,
    ) -> Result<Result<u64, Miss>, FlowError> {
        Ok(self.inherit_from_begin(peer, (parent, isolation), tokens, (layout, own), timeout)?.wait())
    }

    /// Reports what may be the end of a request of a device, and keeps its blocks in the same step: whoever is told of the end can
    /// inherit already. Nothing is kept if it was no end. Blocks of the device that are kept have to be the request's as it was reported
    /// ([`PinError::NotOfParent`]), and are not among those that [`Removed`](super::Removed) names. Handles are given as to [`Pins::pin`].
    pub fn finish(
        &self,
        lives: &Lifecycle<E>,
        (request, life): (&RequestId, u64),
        report: &SchedulerReport,
        (parent, blocks, ttl): (Parent, &[&Blocks], Duration),
    ) -> Result<Ended, FlowError> {
        let shared = &self.engine.shared;
        if !Arc::ptr_eq(&lives.inner.engine, &self.engine) {
            let label = "of the lifecycle".to_owned();
            return Err(ForeignMemory::Pool { label }.into());
        }
        let device = lives.inner.device_pool();
        let held = held_of(blocks_of(&parent), blocks);
        let placed = held.as_ref().map(|held| self.placed(held)).unwrap_or_default();
        let (refs, held) = match held {
            Ok(held) => (Ok(held.iter().map(|group| refs_in(group, device)).collect()), held),
            Err(why) => (Err(why), as_given(blocks)),
        };
        let keep = self.keep(held);
        let tickets = keep.clone();
        let end = (request, life, report);
        let keep = Keep { parent, blocks: refs, tickets: keep, ttl };
        let finished = lives.inner.call(|manager, key, now| manager.finish_and_pin(key, end, keep, placed, now));
        let finished = finished.and_then(|finished| Ok(finished?));
        if !matches!(&finished, Ok(Ended { pin: Some(Ok(_)), .. })) {
            tickets.into_iter().for_each(|ticket| shared.manager.free(ticket));
        }
        finished
    }

    /// Lets a pin go before its time; if children have blocks of it, with the last of them.
    pub fn unpin(&self, pin: PinKey) -> Result<(), FlowError> {
        self.call(|pins, _| pins.unpin(pin))
    }

    /// Gives a child of so many tokens as many whole blocks of its parent as it can have, or says why none. A child that asks again gets
    /// the same once more: they stay until both were dropped.
    pub fn inherit(
        &self,
        parent: &RequestId,
        isolation: &Isolation,
        child: &RequestId,
        tokens: u64,
    ) -> Result<Result<Inherited<E>, Miss>, FlowError> {
        let ask = ask(parent, isolation, child, tokens, None);
        let given = self.call(|pins, now| pins.inherit(&ask, now))?;
        Ok(given.map(|given| Inherited::new(&self.engine, given)))
    }

    /// The same, with hashes of the child's whole blocks, of each group: they are compared with the parent's.
    pub fn inherit_checked(
        &self,
        parent: &RequestId,
        isolation: &Isolation,
        child: &RequestId,
        (tokens, hashes): (u64, &[Vec<u64>]),
    ) -> Result<Result<Inherited<E>, Miss>, FlowError> {
        let ask = ask(parent, isolation, child, tokens, Some(hashes.to_vec()));
        let given = self.call(|pins, now| pins.inherit(&ask, now))?;
        Ok(given.map(|given| Inherited::new(&self.engine, given)))
    }

    /// The same, and waits at most so long for a parent that is running.
    pub fn inherit_within(
        &self,
        parent: &RequestId,
        isolation: &Isolation,
        child: &RequestId,
        tokens: u64,
        timeout: Duration,
    ) -> Result<Result<Inherited<E>, Miss>, FlowError> {
        Ok(self.inherit_begin(parent, isolation, child, tokens, timeout)?.wait())
    }

    /// What the parent's caller has left, as long as it is remembered, with blocks or without.
    pub fn blob(&self, parent: &RequestId, isolation: &Isolation) -> Result<Option<Blob>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        Ok(shared.look_at_manager(|manager| {
            let (bytes, home) = manager.pins()?.blob(parent, isolation)?;
            Some(Blob { bytes: bytes.to_vec(), home: home.clone() })
        }))
    }

    /// What is kept, and who has it.
    pub fn metrics(&self) -> Result<PinMetrics, FlowError> {
        self.call(|pins, _| pins.metrics())
    }
}

/// The blocks of each of its groups.
fn blocks_of(parent: &Parent) -> impl Iterator<Item = &[u32]> {
    parent.groups.iter().map(|group| group.blocks.as_slice())
}

/// All that handles hold, whatever the groups name.
fn as_given(blocks: &[&Blocks]) -> Vec<OfGroup> {
    blocks.iter().map(|blocks| Some((*blocks).clone())).collect()
}

/// Whether a group's blocks are such as the layout has.
fn check_layout<E: Env>(number: usize, group: &Group, layout: &Layout<E>) -> Result<(), PinError> {
    let (found, tokens, blocks) = (group.block_tokens, layout.block_tokens(), layout.blocks());
    if found != tokens {
        return Err(PinError::BlockTokens { group: number, found, layout: tokens });
    }
    match group.blocks.iter().find(|block| **block >= blocks) {
        Some(&block) => Err(PinError::NoSuchBlock { group: number, block, blocks }),
        None => Ok(()),
    }
}

fn ask(
    parent: &RequestId,
    isolation: &Isolation,
    child: &RequestId,
    tokens: u64,
    hashes: Option<Vec<Vec<u64>>>,
) -> Ask {
    let (parent, isolation, child) = (parent.clone(), isolation.clone(), Child::Request(child.clone()));
    Ask { child, parent, isolation, tokens, hashes }
}

/// What a child has of its parent: dropped, it is given back. The child keeps it as long as it reads those blocks.
pub struct Inherited<E: Env> {
    engine: Arc<EngineInner<E>>,
    given: Given,
    /// Where the tokens behind the whole blocks were copied to, of each group.
    copied: Mutex<Vec<Copied>>,
}

/// What was copied of one group.
struct Copied {
    layout: LayoutKey,
    /// Tokens of a block of it.
    block_tokens: u32,
    /// The child's own blocks into which it was copied, in their order.
    blocks: Vec<u32>,
}

impl<E: Env> Inherited<E> {
    fn new(engine: &Arc<EngineInner<E>>, given: Given) -> Self {
        Self { engine: Arc::clone(engine), given, copied: Mutex::new(Vec::new()) }
    }

    /// How many tokens the child need not compute: whole blocks.
    pub fn tokens(&self) -> u64 {
        self.given.tokens
    }

    /// So many tokens behind those have data too, in a block that is not whole.
    pub fn tail_tokens(&self) -> u64 {
        self.given.tail_tokens
    }

    /// The blocks of each group, in the order of their tokens. Others may have them too: nobody writes to them.
    pub fn groups(&self) -> &[Vec<u32>] {
        &self.given.groups
    }

    /// A handle of the blocks of each group that has some: with its own, those that a pin of the child itself takes.
    pub fn blocks(&self) -> Vec<Blocks> {
        let kept = self.kept();
        let groups = self.given.groups.iter().zip(&kept).filter(|(group, _)| !group.is_empty());
        groups.filter_map(|(group, kept)| kept.as_ref()?.slice(0..group.len()).ok()).collect()
    }

    /// What the parent's pin keeps of each group, which stands as long as this does.
    fn kept(&self) -> Vec<OfGroup> {
        let shared = &self.engine.shared;
        let tickets = |manager: &penstock_flows::TransferManager| {
            manager.pins().map(|pins| pins.tickets_of(self.given.key).to_vec()).unwrap_or_default()
        };
        let tickets = shared.look_at_manager(tickets).into_iter();
        tickets.map(|ticket| shared.manager.hold(ticket).and_then(|mut held| held.pop())).collect()
    }

    /// The first token that the child has not: behind the whole blocks, and behind what was copied.
    pub fn begin(&self) -> u64 {
        self.given.tokens + if self.copied().is_empty() { 0 } else { self.given.tail_tokens }
    }

    /// How many tokens were copied behind the whole blocks. Where blocks of all groups are of one size they are in the child's first own
    /// block, and it is what [`Input::grant_with`](super::Input::grant_with) skips; see [`skip_in`](Self::skip_in) for groups of several.
    pub fn skip(&self) -> u32 {
        (self.begin() - self.given.tokens) as u32
    }

    /// So many of the child's own blocks of this layout are full of what was copied: the first grant names none of them, and begins with
    /// the one behind.
    pub fn full_in(&self, layout: &Layout<E>) -> usize {
        (self.tail_in(layout).tokens / u64::from(layout.block_tokens())) as usize
    }

    /// How many tokens were copied into the block behind those: what [`Input::grant_with`](super::Input::grant_with) skips.
    pub fn skip_in(&self, layout: &Layout<E>) -> u32 {
        (self.tail_in(layout).tokens % u64::from(layout.block_tokens())) as u32
    }

    /// What was copied into blocks of this layout: nothing, where it was of another group's layout only.
    pub(super) fn tail_in(&self, layout: &Layout<E>) -> Tail {
        let mut tail = Tail::default();
        let copied = self.copied();
        let is_its = |copied: &&Copied| copied.layout == layout.key && Arc::ptr_eq(&layout.engine, &self.engine);
        for copied in copied.iter().filter(is_its) {
            tail.tokens = self.given.tail_tokens;
            let full = (tail.tokens / u64::from(copied.block_tokens.max(1))) as usize;
            tail.full.extend(copied.blocks.iter().take(full));
            tail.ends_in.extend(copied.blocks.get(full));
        }
        tail
    }

    fn copied(&self) -> MutexGuard<'_, Vec<Copied>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what the parent has in a block that is not whole into the first of these, which are the child's own; of each group with its
    /// layout. Answers how many tokens that were: none if there is nothing to copy. Where blocks of other groups are longer they may be
    /// several blocks of a group. What was copied last counts, for what [goes on from it](super::Receive::continuation_of).
    pub fn copy_tail(&self, own: &[(&Layout<E>, &Blocks)]) -> Result<u64, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        own.iter().try_for_each(|(layout, blocks)| layout.ground.check(blocks))?;
        let fresh: Vec<Vec<u32>> = own.iter().map(|(_, blocks)| blocks.indices().to_vec()).collect();
        let plan =
            shared.look_at_manager(|manager| manager.pins().and_then(|pins| pins.tail_plan(self.given.key, &fresh)));
        let plan = plan.ok_or(FlowError::TailRoom { groups: self.given.groups.len() })?;
        self.check_tail(own, plan.iter().map(|piece| (piece.group as usize, piece.from)))?;
        let _writing = self.begin_tail(own, plan.iter().map(|piece| (piece.group as usize, piece.to)))?;
        let into = |(layout, _): &(&Layout<E>, &Blocks)| Copied {
            layout: layout.key,
            block_tokens: layout.block_tokens(),
            blocks: Vec::new(),
        };
        let mut copied: Vec<Copied> = own.iter().map(into).collect();
        for piece in plan {
            // The plan names only groups of which there are fresh blocks.
            let Some((layout, _)) = own.get(piece.group as usize) else { continue };
            if !planted::is(Bug::TailNotCopied) {
                self.copy(layout, piece.from, piece.to, u64::from(piece.tokens))?;
            }
            copied[piece.group as usize].blocks.push(piece.to);
        }
        copied.retain(|copied| !copied.blocks.is_empty());
        *self.copied() = copied;
        Ok(self.given.tail_tokens)
    }

    /// Nobody else is at the blocks into which a tail is copied, until this is dropped.
    fn begin_tail(
        &self,
        own: &[(&Layout<E>, &Blocks)],
        pieces: impl Iterator<Item = (usize, u32)>,
    ) -> Result<Vec<Writing<E>>, FlowError> {
        let of = |(group, block): (usize, u32)| own.get(group).map(|(layout, _)| (layout.key, block));
        pieces.filter_map(of).map(|(layout, block)| Writing::begin(&self.engine, layout, vec![block])).collect()
    }

    /// Whether each layout is the one that the parent's blocks of its group are in.
    fn check_tail(
        &self,
        own: &[(&Layout<E>, &Blocks)],
        pieces: impl Iterator<Item = (usize, u32)>,
    ) -> Result<(), FlowError> {
        let of_parent =
            |manager: &penstock_flows::TransferManager| manager.pins().map(|pins| pins.block_tokens_of(self.given.key));
        let tokens = self.engine.shared.look_at_manager(of_parent).unwrap_or_default();
        let kept = self.kept();
        for (group, block) in pieces {
            let (Some((layout, _)), Some(&found)) = (own.get(group), tokens.get(group)) else { continue };
            if found != layout.block_tokens() {
                return Err(PinError::BlockTokens { group, found, layout: layout.block_tokens() }.into());
            }
            let is_there = |blocks: &Blocks| blocks.indices().contains(&block) && layout.ground.check(blocks).is_ok();
            if !kept.get(group).and_then(Option::as_ref).is_some_and(is_there) {
                return Err(ForeignMemory::ParentBlocks { label: layout.label().to_owned(), block }.into());
            }
        }
        Ok(())
    }

    fn copy(&self, layout: &Layout<E>, from: u32, to: u32, tokens: u64) -> Result<(), FlowError> {
        let shared = &self.engine.shared;
        if !Arc::ptr_eq(&layout.engine, &self.engine) {
            return Err(FlowError::ForeignLayout { label: layout.label().to_owned() });
        }
        let layout =
            shared.look_at_manager(|manager| manager.layout(layout.key).cloned()).ok_or(CallError::NoLayout)?;
        let region = shared.registry.resolve(RegionId(layout.region().region.0), layout.region().generation);
        let region = region.map_err(|_| CallError::NoLayout)?;
        let pair = ShardPair::of(&layout, &layout).map_err(|_| CallError::NoLayout)?;
        let (here, there) = (Run { blocks: &[to], first: 0 }, Run { blocks: &[from], first: 0 });
        let mut spans = Vec::new();
        let cut = Cut { layers: 0..pair.layers(), here, there, tokens, once: None };
        pair.cut(&cut, &mut spans).map_err(|_| CallError::NoLayout)?;
        let window = region.host().ok_or(FlowError::Copy(AccessError::Device))?;
        spans.iter().try_for_each(|span| copy_within(window, span.remote, span.local, span.len))
    }
}

/// Blocks of a child into which its parent's are copied: nobody else of this engine is at them, until this is dropped.
struct Writing<E: Env> {
    engine: Arc<EngineInner<E>>,
    key: BlockUseKey,
}

impl<E: Env> Writing<E> {
    fn begin(engine: &Arc<EngineInner<E>>, layout: LayoutKey, blocks: Vec<u32>) -> Result<Self, FlowError> {
        let begun =
            engine.shared.change_manager(|manager| manager.begin_use(layout, blocks, BlockAccess::Write, User::Child));
        let key = begun.map_err(|held| CallError::Held(Box::new(held)))?;
        Ok(Self { engine: Arc::clone(engine), key })
    }
}

impl<E: Env> Drop for Writing<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.change_manager(|manager| manager.end_use(self.key));
        }
    }
}

/// Copies a piece of a region to another place in it, a bit at a time.
fn copy_within(window: &Window, from: u64, to: u64, len: u64) -> Result<(), FlowError> {
    let mut bits = [0; 4096];
    let mut done = 0;
    while done < len {
        let bit = &mut bits[..(len - done).min(4096) as usize];
        window.read_into(from + done, bit).map_err(FlowError::Copy)?;
        window.write_from(to + done, bit).map_err(FlowError::Copy)?;
        done += bit.len() as u64;
    }
    Ok(())
}

impl<E: Env> Drop for Inherited<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, _| manager.call_pins(|pins| pins.give_up(self.given.key)));
        }
    }
}

impl From<PinError> for FlowError {
    fn from(error: PinError) -> Self {
        Self::Pin(Box::new(error))
    }
}
