//! The book of all legs of one transfer at its source.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Timestamp};
use penstock_session::PeerKey;
use penstock_session::control::{ControlMessage, EndOfData, Grant, Side, TransferHead};
use penstock_session::few::{Few, FewMap, FewQueue};
use penstock_session::machine::Step;
use penstock_session::transfers::places::{Place, PlaceError, PlaceEvent, Places};

use super::chunks::Chunks;
use super::{Part, Send, SendFailed, SourceWish};
use crate::action::BlocksRef;
use crate::cause::FlowCause;
use crate::cut::{Cut, CutError, Run, at_a_block};
use crate::layout::Layout;
use crate::part::{LegError, PartLanded};
use crate::repeated::repeated;
use crate::shards::ShardPair;
use crate::status::{Status, StatusEvent};

/// The most legs that one rank grants ahead of what was sent.
pub const LEGS_AHEAD_MAX: usize = 256;

/// What is kept of one rank of the sink, beside its state.
#[derive(Debug)]
pub(super) struct Sink {
    /// What it has granted, and not all of which was sent.
    pub(super) grants: FewMap<u32, (Arc<ShardPair>, Grant)>,
    pub(super) next_leg: u32,
    /// The first token that was not sent: of all layers, or of each.
    pub(super) cursors: Few<u64>,
    pub(super) next_number: u64,
    /// Parts whose bytes may still move, and whether this side's part of it is over.
    pub(super) under_way: FewMap<u64, bool>,
    pub(super) is_sealed: bool,
    /// With whom it is of one mind on which rows go there.
    pair: Option<Arc<ShardPair>>,
    /// The abort that waits for an answer.
    pub(super) abort: Option<u32>,
    pub(super) broken: BrokenSession,
}

/// What is kept of a session that broke, or seems to break.
#[derive(Debug, Clone, Copy)]
pub(super) struct BrokenSession {
    /// Until when its rank is waited for.
    pub(super) until: Timestamp,
    /// Its sink has said in the next one all that it still needs.
    pub(super) is_told: bool,
    /// A part could not be moved, and what is known of that is that its session does not carry it.
    pub(super) doubt: Option<Cause>,
}

impl BrokenSession {
    /// It stands.
    pub(super) const NOT: Self = Self { until: Timestamp::NEVER, is_told: false, doubt: None };
}

/// A leg that every rank has granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    pub(super) number: u32,
    pub(super) from: u64,
    pub(super) tokens: u64,
}

impl Started {
    pub(super) fn end(&self) -> u64 {
        self.from.saturating_add(self.tokens)
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.from <= token && token - self.from < self.tokens
    }
}

/// The legs of one transfer at its source.
///
/// What happens comes in as calls; what is to be moved is fetched by [`SourceLegs::next_part`], what else is wanted by
/// [`SourceLegs::poll_wish`].
#[derive(Debug)]
pub struct SourceLegs {
    pub(super) how: Send,
    pub(super) head: TransferHead,
    pub(super) status: Status,
    /// Where each rank of the sink is, and what it was sent: the one book of that.
    pub(super) sinks: Places<Sink>,
    pub(super) chunks: Chunks,
    pub(super) begin: Option<u64>,
    /// Legs that have started and are not sent to everybody.
    pub(super) started: FewQueue<Started>,
    /// The last ones that are, as far as somebody whose session breaks may need them again.
    pub(super) past: VecDeque<Started>,
    /// Where the last leg that has started ends.
    pub(super) started_end: Option<u64>,
    pub(super) next_leg: u32,
    legs_used: u32,
    pub(super) failed: Option<Box<SendFailed>>,
    pub(super) wishes: FewQueue<SourceWish>,
    refused: u64,
}

impl Send {
    /// Whether it can be.
    pub(crate) fn check(&self) -> Result<(), LegError> {
        // A source whose bytes other ranks send as well may have nobody to send them to.
        if repeated(&self.sinks).is_some() {
            return Err(LegError::Sources);
        }
        if self.once.is_none() && self.layout.has_once() {
            return Err(LegError::OnceMissing);
        }
        match self.sinks.iter().find(|&&rank| rank >= self.of) {
            Some(&rank) => Err(LegError::NoSuchRank { rank }),
            None => Ok(()),
        }
    }
}

impl SourceLegs {
    /// A transfer of which nothing is there yet.
    pub fn new(how: Send) -> Result<Self, LegError> {
        how.check()?;
        Ok(Self::begin(how))
    }

    /// The same, where that was checked.
    #[inline]
    pub(crate) fn begin(how: Send) -> Self {
        let slots = if how.is_by_layer { how.layout.layers() as usize } else { 1 };
        let sink = || Sink {
            grants: FewMap::new(),
            next_leg: 0,
            cursors: Few::of(0, slots),
            next_number: 0,
            under_way: FewMap::new(),
            is_sealed: false,
            pair: None,
            abort: None,
            broken: BrokenSession::NOT,
        };
        Self {
            head: TransferHead { transfer: how.transfer, side: Side::Source, rank: how.rank, ranks: how.ranks },
            status: Status::Bootstrapping,
            sinks: Places::keeping(how.sinks.iter().copied(), how.of, sink),
            chunks: Chunks::new(how.is_by_layer, slots),
            begin: None,
            started: FewQueue::new(),
            past: VecDeque::new(),
            started_end: None,
            next_leg: 0,
            legs_used: 0,
            failed: None,
            wishes: FewQueue::new(),
            refused: 0,
            how,
        }
    }

    /// Who says it, of which transfer.
    pub fn head(&self) -> &TransferHead {
        &self.head
    }

    /// Where its blocks are.
    pub fn layout(&self) -> &Layout {
        &self.how.layout
    }

    /// Whether each layer goes by itself.
    pub fn is_by_layer(&self) -> bool {
        self.how.is_by_layer
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// How it failed, if it did.
    pub fn failure(&self) -> Option<&SendFailed> {
        self.failed.as_deref()
    }

    /// How many things were said of it that made no sense.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How many legs every rank has granted.
    pub fn legs_started(&self) -> u32 {
        self.next_leg
    }

    /// This peer is a rank of the sink, of so many; as [`Places::claim`] says.
    pub fn claim(&mut self, rank: u16, of: u16, peer: PeerKey, resumes: bool) -> Result<Step<Place>, PlaceError> {
        self.sinks.claim(rank, of, peer, resumes)
    }

    /// The engine that has this rank speaks for it in another session; as [`Places::follow`] says.
    pub fn follow(&mut self, rank: u16, peer: PeerKey) -> bool {
        self.sinks.follow(rank, peer)
    }

    /// The state of a rank of the sink, if there is such a one.
    pub fn place(&self, rank: u16) -> Option<Place> {
        self.sinks.state(rank)
    }

    /// Who a rank of the sink is.
    pub fn peer(&self, rank: u16) -> Option<PeerKey> {
        self.sinks.peer(rank)
    }

    /// All who have claimed a rank.
    pub fn peers(&self) -> impl Iterator<Item = PeerKey> + '_ {
        self.sinks.iter().filter_map(|sink| sink.peer())
    }

    /// The ranks of a peer.
    pub fn ranks_of(&self, peer: PeerKey) -> Vec<u16> {
        self.sinks.of_peer(peer).collect()
    }

    /// Whether it has ended, no byte of it moves and everything was let go.
    pub fn is_over(&self) -> bool {
        self.status.is_end() && self.chunks.keeps.is_empty() && self.sinks.iter().all(|sink| sink.under_way.is_empty())
    }

    /// This is let go with the blocks of the chunks: the block that has what goes once.
    pub fn hold(&mut self, keep: BlocksRef) {
        self.chunks.keeps.push(keep);
    }

    /// The blocks of all chunks, and the one that has what goes once.
    pub fn blocks(&self) -> (&[u32], Option<u32>) {
        (&self.chunks.blocks, self.how.once)
    }

    /// The tickets of what was not let go.
    pub fn keeps(&self) -> &[BlocksRef] {
        &self.chunks.keeps
    }

    /// What is wanted next.
    pub fn poll_wish(&mut self) -> Option<SourceWish> {
        self.wishes.pop_front()
    }

    /// The source has computed a chunk: so many tokens more, and all blocks in which they lie, in their order. A chunk that begins inside a
    /// block names that block again, first; one of no tokens names none. An error takes neither the blocks nor the ticket.
    pub fn chunk(&mut self, blocks: &[u32], tokens: u64, is_last: bool, keep: BlocksRef) -> Result<(), LegError> {
        self.may_go_on()?;
        self.chunks.add(&self.how.layout, (blocks, tokens), is_last, keep)?;
        if let Some(all) = self.chunks.total {
            if let Some(begin) = self.begin.filter(|&begin| begin > all) {
                let words = format!("a sink wants tokens from {begin} on, and there are {all}");
                self.fail(FlowCause::Refused, Side::Source, None, words);
            }
            self.seal();
        }
        Ok(())
    }

    /// A layer is ready for the first so many tokens, which chunks have given. Fewer than before change nothing.
    pub fn ready(&mut self, layer: u32, tokens: u64) -> Result<(), LegError> {
        self.check_ready(layer, tokens)?;
        self.chunks.set_ready(layer, tokens);
        Ok(())
    }

    /// Whether a layer can be said to be ready for the first so many tokens. Of what has succeeded it can, and nothing follows from it.
    pub(crate) fn check_ready(&self, layer: u32, tokens: u64) -> Result<(), LegError> {
        if let Some(failed) = &self.failed {
            return Err(LegError::Ended(failed.cause));
        }
        self.chunks.check_ready(&self.how.layout, self.how.is_by_layer, (layer, tokens))
    }

    /// For how many tokens a layer is ready.
    pub(crate) fn ready_tokens(&self, layer: u32) -> u64 {
        self.chunks.ready_tokens(layer)
    }

    /// A rank of the sink has granted a leg. The same again changes nothing, and says so by `false`.
    pub fn granted(&mut self, sink: u16, pair: &Arc<ShardPair>, grant: Grant) -> Result<bool, LegError> {
        let granted = self.sink_at(sink).and_then(|at| match self.sinks[at].place() {
            Place::Resuming if grant.resumes => self.resumed(at, pair, grant),
            _ => self.granted_next(at, pair, grant),
        });
        self.refused += u64::from(granted.is_err());
        granted
    }

    fn granted_next(&mut self, at: usize, pair: &Arc<ShardPair>, grant: Grant) -> Result<bool, LegError> {
        if !self.check_grant(at, pair, &grant)? {
            return Ok(false);
        }
        let begin = *self.begin.get_or_insert(grant.from);
        if grant.leg == 0 {
            self.sinks[at].cursors.fill(begin);
        }
        self.take_grant(at, pair, grant);
        self.start_legs();
        self.seal();
        Ok(true)
    }

    /// A grant that makes sense goes into the book.
    pub(super) fn take_grant(&mut self, at: usize, pair: &Arc<ShardPair>, grant: Grant) {
        self.on(at, PlaceEvent::Grant);
        let sink = &mut self.sinks[at];
        sink.pair = Some(Arc::clone(pair));
        sink.next_leg = sink.next_leg.max(grant.leg + 1);
        sink.grants.insert(grant.leg, (Arc::clone(pair), grant));
    }

    /// A rank goes on to where the event leads.
    pub(super) fn on(&mut self, at: usize, event: PlaceEvent) {
        let step = self.sinks.step(at, event);
        debug_assert_ne!(step, Step::Refused, "{:?} does not know {event:?}", self.sinks[at].place());
    }

    /// The next part to be moved, if there is one and not too many are under way.
    pub fn next_part(&mut self) -> Option<Part> {
        if self.status.is_end() || self.started.is_empty() {
            return None;
        }
        for slot in 0..self.chunks.ready.len() {
            for at in 0..self.sinks.len() {
                match self.cut_part(slot, at) {
                    Ok(Some(part)) => return Some(part),
                    Ok(None) => {}
                    Err(error) => {
                        let words = format!("a part could not be cut: {error}");
                        self.fail(FlowCause::Unfit, Side::Source, None, words);
                        return None;
                    }
                }
            }
        }
        None
    }

    /// A rank has everything. Said again it changes nothing, and says so by `false`.
    pub fn acked(&mut self, sink: u16) -> Result<bool, LegError> {
        let at = self.sink_at(sink)?;
        if self.sinks[at].has_all() || self.failed.is_some() {
            return Ok(false);
        }
        if !self.sinks[at].is_sealed {
            self.refused += 1;
            return Err(LegError::AckEarly { rank: sink });
        }
        if planted::is(Bug::DroppedAckRank) && at > 0 {
            return Ok(true);
        }
        self.on(at, PlaceEvent::Ack);
        self.sinks[at].broken = BrokenSession::NOT;
        if planted::is(Bug::DoneAtTheFirstAck) || self.sinks.iter().all(SinkRank::has_all) {
            self.status.on(StatusEvent::Done);
            self.settle();
        }
        Ok(true)
    }

    /// Legs that every rank has granted now. The least room decides how many tokens one takes.
    pub(super) fn start_legs(&mut self) {
        let Some(begin) = self.begin else { return };
        while self.sinks.iter().all(|sink| !sink.is_held() && sink.grants.contains_key(&self.next_leg)) {
            let number = self.next_leg;
            let room = self.sinks.iter().filter_map(|sink| Some(sink.grants.get(&number)?.1.capacity)).min();
            let leg = Started { number, from: self.started_end.unwrap_or(begin), tokens: room.unwrap_or(0) };
            self.started_end = Some(leg.end());
            self.started.push_back(leg);
            self.next_leg += 1;
            self.status.on(StatusEvent::AllGranted);
        }
    }

    /// The next part of some layers for one rank.
    fn cut_part(&mut self, slot: usize, at: usize) -> Result<Option<Part>, CutError> {
        let sink = &self.sinks[at];
        let from = sink.cursors[slot];
        let ready = self.chunks.tokens.min(self.chunks.ready[slot]);
        let is_in = |leg: &&Started| leg.has(from) && from < ready && !sink.is_held();
        let Some(leg) = self.started.iter().find(is_in).copied() else { return Ok(None) };
        let Some((pair, grant)) = sink.grants.get(&leg.number) else { return Ok(None) };
        if sink.under_way.len() >= self.how.parts_ahead.max(1) {
            return Ok(None);
        }
        let layer = self.how.is_by_layer.then_some(slot as u32);
        let layers = layer.map_or(0..self.how.layout.layers(), |layer| layer..layer + 1);
        let goes_once = leg.number == 0 && from == leg.from;
        let once = self.how.once.zip(grant.once).filter(|_| goes_once);
        let once_bytes = if once.is_some() { pair.once_bytes(&layers) } else { 0 };
        let end = ready.min(leg.from + leg.tokens);
        let first = u64::from(grant.skip) + (from - leg.from);
        let most = pair.part_tokens(&layers, self.how.part_bytes.saturating_sub(once_bytes));
        let tokens = at_a_block(first, (end - from).min(most), end - from, u64::from(pair.block_tokens().1));
        let here = Run { blocks: &self.chunks.blocks, first: from };
        let cut = Cut { layers, here, there: Run { blocks: &grant.blocks, first }, tokens, once };
        let mut spans = Vec::with_capacity(4);
        let bytes = pair.cut(&cut, &mut spans)?;
        let regions = pair.regions();
        let sink = &mut self.sinks[at];
        let landing = PartLanded {
            number: sink.next_number,
            leg: leg.number,
            leg_from: leg.from,
            leg_tokens: leg.tokens,
            layer,
            from,
            tokens,
            total: self.chunks.total,
        };
        sink.next_number += 1;
        sink.cursors[slot] += tokens;
        sink.under_way.insert(landing.number, false);
        let part = Part { sink: sink.number(), regions, spans, bytes, landing };
        self.on(at, PlaceEvent::Begin);
        self.skip_what_is_there(at);
        self.legs_used = self.legs_used.max(leg.number + 1);
        self.status.on(StatusEvent::Input);
        self.finish_legs();
        self.seal();
        Ok(Some(part))
    }

    /// Legs that are sent to everybody leave the book.
    fn finish_legs(&mut self) {
        // Who goes on in another session says first what of them it still needs.
        while let Some(leg) = self.started.front().copied().filter(|_| !self.sinks.iter().any(SinkRank::is_broken)) {
            if !self.sinks.iter().all(|sink| sink.cursors.iter().all(|&cursor| cursor >= leg.end())) {
                return;
            }
            self.started.pop_front();
            self.sinks.iter_mut().for_each(|sink| drop(sink.grants.remove(&leg.number)));
            self.status.on(StatusEvent::LegDone);
            if self.how.resumes.is_some() {
                self.past.push_back(leg);
                self.past.drain(..self.past.len().saturating_sub(LEGS_AHEAD_MAX));
            }
        }
    }

    /// Says to whom everything was sent how much that was.
    pub(super) fn seal(&mut self) {
        let Some(total) = self.chunks.total.filter(|_| !self.status.is_end()) else { return };
        for at in 0..self.sinks.len() {
            let sink = &mut self.sinks[at];
            let is_sent = sink.next_leg > 0 && sink.cursors.iter().all(|&cursor| cursor >= total);
            if !is_sent || sink.is_sealed || sink.is_held() {
                continue;
            }
            sink.is_sealed = true;
            let rows = sink.pair.as_ref().map_or_else(Few::new, |pair| pair.sent().iter().copied().collect());
            let (parts, is_still) = (sink.next_number, sink.under_way.is_empty());
            let seal = EndOfData { head: self.head, parts, tokens: total, legs: self.legs_used, rows };
            self.wishes.push_back(SourceWish::Say { sink: sink.number(), said: ControlMessage::EndOfData(seal) });
            if is_still {
                self.on(at, PlaceEvent::LastLanded);
            }
        }
        if self.sinks.is_empty() {
            self.status.on(StatusEvent::Done);
            self.settle();
        }
    }
}

/// What is said of a rank by its state and by what is kept of it.
pub(super) trait SinkRank {
    /// Its sink has said that it has everything.
    fn has_all(&self) -> bool;
    /// Its session broke, and the next one does not carry it yet.
    fn is_broken(&self) -> bool;
    /// Nothing is sent there, for that or as its session seems to break.
    fn is_held(&self) -> bool;
}

impl SinkRank for penstock_session::transfers::places::Rank<Sink> {
    fn has_all(&self) -> bool {
        matches!(self.place(), Place::Acked | Place::Answered)
    }

    fn is_broken(&self) -> bool {
        matches!(self.place(), Place::Lost | Place::Resuming)
    }

    fn is_held(&self) -> bool {
        self.is_broken() || self.broken.doubt.is_some()
    }
}
