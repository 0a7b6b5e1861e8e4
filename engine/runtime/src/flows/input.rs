//! The sink's side: this engine needs the bytes.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{Env, RegionId};
use penstock_flows::action::Urgency;
use penstock_flows::manager::Consume;
use penstock_flows::{FlowCause, LayoutKey, LegError, Status};
use penstock_memory::{AccessError, Blocks};
use penstock_session::transfers::table::EntryKey;
use penstock_session::{PeerKey, RequestId, TransferId};

use super::layout::Ground;
use super::output::urgency;
use super::{CallError, FlowError, Inherited, InputEvent, Layout, MemoryPolicy, NoMemory, WITHIN};
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::manager::key_of;
use crate::peer::Peer;
use crate::worker::Priority;

/// How bytes are to be had from others.
pub struct Receive<'a, E: Env> {
    layout: &'a Layout<E>,
    how: Consume,
    /// All ranks of the source, and their layout, where it is not said who of them matters.
    all: Option<(Vec<PeerKey>, String)>,
}

impl<'a, E: Env> Receive<'a, E> {
    /// Into blocks of this layout. Who has the bytes is said by [`Receive::from`].
    pub fn into(layout: &'a Layout<E>) -> Self {
        let how = Consume {
            layout: layout.key,
            rank: (0, 1),
            sources: Vec::new(),
            begin: 0,
            tail: None,
            is_pull: false,
            is_resumable: false,
            memory: None,
            within: WITHIN,
            urgency: Urgency::Bulk,
            trace: Vec::new(),
        };
        Self { layout, how, all: None }
    }

    /// A rank of those that have the bytes.
    #[must_use]
    pub fn from(mut self, rank: u16, peer: &Peer<E>) -> Self {
        self.how.sources.push((rank, key_of(&peer.state)));
        self
    }

    /// All ranks of the source, in their order, and the label of the layout that they send from. Those that have something for this rank are
    /// found by it, as [`Send::to`](super::Send::to) finds them on their side.
    #[must_use]
    pub fn from_all(mut self, peers: &[Peer<E>], label: &str) -> Self {
        self.all = Some((peers.iter().map(|peer| key_of(&peer.state)).collect(), label.to_owned()));
        self
    }

    /// This engine's rank among those that need them, and how many there are.
    #[must_use]
    pub fn rank(mut self, rank: u16, ranks: u16) -> Self {
        self.how.rank = (rank, ranks);
        self
    }

    /// Tokens that are here already: those from this one on are needed.
    #[must_use]
    pub fn begin(mut self, token: u64) -> Self {
        self.how.begin = token;
        self
    }

    /// This engine reads what the sources lend, as [`Send::lend`](super::Send::lend) says there. [`Input::next`] tells of nothing that has come
    /// before its end, as it is the lenders who say whether their leases stood until everything was read: it gives
    /// [`NeedsMemory`](InputEvent::NeedsMemory), [`Done`](InputEvent::Done) and [`Failed`](InputEvent::Failed) only.
    #[must_use]
    pub fn pull(mut self) -> Self {
        self.how.is_pull = true;
        self
    }

    /// It outlives its session, as [`Send::resumable`](super::Send::resumable) says there: when that breaks, [`Input::next`] tells of
    /// [`Lost`](InputEvent::Lost), what has come stays, and [`Input::resume`] goes on. A layer that was [told of](InputEvent::Layer) may then be
    /// written once more, with the same bytes.
    #[must_use]
    pub fn resumable(mut self) -> Self {
        self.how.is_resumable = true;
        self
    }

    /// Goes on from what was inherited, and [copied](Inherited::copy_tail) into blocks of this layout until now: only what is behind that is
    /// needed. The first grant begins with the block in which that ends, behind those that are [full](Inherited::full_in), and
    /// [skips](Inherited::skip_in) what is in it. A first grant that begins with another block or skips another number of tokens is refused,
    /// and so is any grant of a block that is full.
    #[must_use]
    pub fn continuation_of(self, inherited: &Inherited<E>) -> Self {
        let tail = inherited.tail_in(self.layout);
        let mut goes_on = self.begin(inherited.tokens() + tail.tokens);
        goes_on.how.tail = Some(tail);
        goes_on
    }

    /// What is done when there is no memory for the next leg; `legs.memory` of the configuration says it otherwise.
    #[must_use]
    pub fn memory(mut self, policy: MemoryPolicy) -> Self {
        self.how.memory = Some(policy);
        self
    }

    /// How long it may take in all.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.how.within = within;
        self
    }

    /// Who goes first. Of what both sides say, the more urgent counts.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.how.urgency = urgency(priority);
        self
    }

    /// A trace context of at most 64 bytes, as its tool writes it; the source has it by [`Output::trace`](super::Output::trace).
    #[must_use]
    pub fn trace(mut self, context: &[u8]) -> Self {
        self.how.trace = context.to_vec();
        self
    }
}

/// A transfer of which this engine needs the bytes. Dropped before it has ended it is given up, and both sides are told.
pub struct Input<E: Env> {
    engine: Arc<EngineInner<E>>,
    key: EntryKey,
    layout: LayoutKey,
    ground: Ground,
}

impl<E: Env> Engine<E> {
    /// Has bytes from others under this name. This side's scheduler knows it as `request`.
    pub fn consume(
        &self,
        transfer: TransferId,
        request: &RequestId,
        how: Receive<'_, E>,
    ) -> Result<Input<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        if !Arc::ptr_eq(&how.layout.engine, &self.engine) {
            return Err(FlowError::ForeignLayout { label: how.layout.label().to_owned() });
        }
        let (layout, ground) = (how.layout.key, how.layout.ground.clone());
        let Receive { how: mut consume, all, .. } = how;
        let key = shared.call_manager(|manager, now| {
            if let Some((peers, label)) = all {
                consume.sources.extend(manager.sources_of(layout, consume.rank.0, &label, &peers)?);
            }
            manager.consume(transfer, request.clone(), consume, now)
        })?;
        Ok(Input { engine: Arc::clone(&self.engine), key, layout, ground })
    }
}

impl<E: Env> Input<E> {
    /// Grants blocks for the next leg, which are kept until what it brought was taken. Answers its number. Blocks of another pool than
    /// the layout's are refused, and so is a block that anything else of this engine writes or reads (a transfer, a swap, a pin, a put, a get,
    /// a child that copies its parent's blocks), or that a transfer has brought something to that was not taken: the error says which block,
    /// and whose it is. What another layout of the region has of the same memory counts.
    pub fn grant(&self, blocks: &Blocks) -> Result<u32, FlowError> {
        self.grant_with(blocks, 0, None)
    }

    /// The same, where so many tokens of the first block are here already, and with the block that takes what goes once for a transfer:
    /// exactly one, of the layout's pool. It is kept as the others are.
    pub fn grant_with(&self, blocks: &Blocks, skip: u32, once: Option<&Blocks>) -> Result<u32, FlowError> {
        self.ground.check(blocks)?;
        let shared = &self.engine.shared;
        let mut kept = vec![blocks.clone()];
        let once_block = once.map(|once| self.ground.check_once(once)).transpose()?;
        if !planted::is(Bug::OnceBlockNotHeld) {
            kept.extend(once.cloned());
        }
        let once = once_block;
        let keep = shared.manager.keep_all(kept);
        let indices = blocks.indices().to_vec();
        let granted = shared.call_manager(|manager, now| manager.grant(self.key, (indices, skip), once, keep, now));
        Ok(granted.inspect_err(|_| shared.manager.free(keep))?)
    }

    /// For how many tokens memory is needed now.
    pub fn wanted(&self) -> Option<u64> {
        self.engine.shared.look_at_manager(|manager| manager.wanted(self.key))
    }

    /// There is no memory, only so many free blocks: what is to be done.
    pub fn no_memory(&self, free_blocks: u32) -> Result<NoMemory, FlowError> {
        Ok(self.engine.shared.call_manager(|manager, now| manager.no_memory(self.key, free_blocks, now))?)
    }

    /// What has happened, if anything has that was not told yet.
    pub fn try_next(&self) -> Option<InputEvent> {
        let shared = &self.engine.shared;
        // Who only looks wakes nobody.
        let is_there = shared.look_at_manager(|manager| manager.has_input_event(self.key));
        is_there.then(|| shared.call_manager(|manager, _| manager.next_input_event(self.key))).flatten()
    }

    /// What happens next, at most so long.
    pub fn next(&self, timeout: Duration) -> Result<InputEvent, FlowError> {
        let shared = &self.engine.shared;
        let until = shared.env.now() + timeout;
        loop {
            if let Some(event) = self.try_next() {
                return Ok(event);
            }
            let left = until.since(shared.env.now());
            if left.is_zero() {
                return Err(FlowError::Nothing(timeout));
            }
            self.engine.wait_for_manager(left, |manager| manager.has_input_event(self.key).then_some(()));
        }
    }

    /// Goes on in this session with a source whose last one broke, after [`Lost`](InputEvent::Lost): connect to the engine by its name, and
    /// give the peer that it is now. What has not come is sent again into the blocks that were granted, once nothing of the old session
    /// can land in them any more. Blocks that are granted meanwhile are kept for it.
    pub fn resume(&self, peer: &Peer<E>) -> Result<(), FlowError> {
        if !Arc::ptr_eq(&peer.engine, &self.engine) {
            return Err(FlowError::ForeignPeer { peer: peer.state.name.clone() });
        }
        let peer = key_of(&peer.state);
        Ok(self.engine.shared.call_manager(|manager, now| manager.resume(self.key, peer, now))?)
    }

    /// How many tokens are here for certain, in all layers, from the first one that was needed on.
    pub fn received(&self) -> u64 {
        self.engine.shared.look_at_manager(|manager| manager.received(self.key)).unwrap_or(0)
    }

    /// How far it is. That it has failed is known at once, while bytes may still land: its memory may be used again when [`Input::abort`] answers
    /// true, or [`Engine::drain_finished`] names its request.
    pub fn status(&self) -> Status {
        self.engine.shared.look_at_manager(|manager| manager.status(self.key)).unwrap_or(Status::Failed)
    }

    /// Bytes of a buffer, by its place in the layout, that is assembled with room for so many tokens.
    pub fn assembled_bytes(&self, buffer: usize, room_tokens: u64) -> Option<u64> {
        self.engine.shared.look_at_manager(|manager| manager.layout(self.layout)?.assembled_bytes(buffer, room_tokens))
    }

    /// Copies what has come and was not taken to where it belongs in contiguous buffers that have room for so many tokens, and lets its
    /// blocks go. Answers how many legs that were.
    pub fn assemble(&self, buffers: &mut [&mut [u8]], room_tokens: u64) -> Result<usize, FlowError> {
        let legs = self.engine.shared.look_at_manager(|manager| manager.landed_legs(self.key));
        for &leg in &legs {
            self.assemble_leg(leg, buffers, room_tokens)?;
        }
        Ok(legs.len())
    }

    fn assemble_leg(&self, leg: u32, buffers: &mut [&mut [u8]], room_tokens: u64) -> Result<(), FlowError> {
        let shared = &self.engine.shared;
        let (keep, pieces) = shared.call_manager(|manager, _| manager.assembly(self.key, leg, room_tokens))?;
        // Another thread may give the transfer up: its blocks are nobody else's before they are copied.
        let _held = shared.manager.hold(keep).ok_or(CallError::Leg(LegError::Freed { leg }))?;
        let region = shared.look_at_manager(|manager| manager.layout(self.layout).map(|layout| layout.region()));
        let region = region.and_then(|at| shared.registry.resolve(RegionId(at.region.0), at.generation).ok());
        let region = region.ok_or(CallError::NoLayout)?;
        let window = region.host().ok_or(FlowError::Copy(AccessError::Device))?;
        for piece in pieces {
            let end = piece.offset + piece.len;
            let room = buffers
                .get_mut(piece.buffer)
                .and_then(|buffer| buffer.get_mut(usize::try_from(piece.offset).ok()?..usize::try_from(end).ok()?));
            let room = room.ok_or(FlowError::Room { buffer: piece.buffer, needed: end })?;
            window.read_into(piece.region_offset, room).map_err(FlowError::Copy)?;
        }
        self.taken(leg)
    }

    /// What a leg brought was copied out, or is not needed: its blocks are let go.
    pub fn taken(&self, leg: u32) -> Result<(), FlowError> {
        Ok(self.engine.shared.call_manager(|manager, now| manager.taken(self.key, leg, now))?)
    }

    /// The application has failed: both sides end, and the sources hear these words at once.
    pub fn fail(&self, words: &str) {
        self.engine.shared.call_manager(|manager, now| manager.fail(self.key, FlowCause::SinkFailed, words, now));
    }

    /// Gives it up, lets go of what has come and was not taken, and waits until nothing can land in its blocks any more. Answers whether that is
    /// proven; if not, they are quarantined until it is. One that has failed already can be waited for by this, too.
    pub fn abort(&self, timeout: Duration) -> bool {
        self.engine
            .shared
            .call_manager(|manager, now| manager.fail(self.key, FlowCause::Aborted, "the sink gave it up", now));
        self.engine.wait_for_manager(timeout, |manager| manager.is_over(self.key).then_some(())).is_some()
    }
}

impl<E: Env> Drop for Input<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, now| manager.release(self.key, now));
        }
    }
}
