//! The book of all legs of one transfer at its source.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use penstock_session::control::{Grant, Head, Said, Seal, SentRows, Side};

use super::chunks::Chunks;
use super::{Part, Send, SendFailed, SourceWish};
use crate::action::Ticket;
use crate::cause::FlowCause;
use crate::cut::{Cut, CutError, Run, at_a_block};
use crate::layout::Layout;
use crate::part::{LegError, PartLanded};
use crate::shards::Pair;
use crate::status::{Status, StatusEvent};

/// The most legs that one rank grants ahead of what was sent.
pub const LEGS_AHEAD_MAX: usize = 256;

/// One rank of the sink.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) rank: u16,
    /// What it has granted from the first leg in the book on.
    pub(super) grants: VecDeque<(Arc<Pair>, Grant)>,
    pub(super) next_leg: u32,
    /// The first token that was not sent: of all layers, or of each.
    cursors: Vec<u64>,
    next_number: u64,
    /// Parts whose bytes may still move, and whether this side's part of it is over.
    pub(super) under_way: BTreeMap<u64, bool>,
    is_sealed: bool,
    /// Which rows go there.
    sent: Vec<SentRows>,
    pub(super) is_acked: bool,
    /// The abort that waits for an answer.
    pub(super) abort: Option<u32>,
}

/// A leg that every rank has granted.
#[derive(Debug, Clone, Copy)]
struct Started {
    number: u32,
    from: u64,
    tokens: u64,
}

/// The legs of one transfer at its source.
///
/// What happens comes in as calls; what is to be moved is fetched by [`SourceLegs::next_part`], what else is wanted by
/// [`SourceLegs::poll_wish`].
#[derive(Debug)]
pub struct SourceLegs {
    pub(super) how: Send,
    pub(super) head: Head,
    pub(super) status: Status,
    pub(super) sinks: Vec<Sink>,
    pub(super) chunks: Chunks,
    /// Up to which token is ready: all layers, or each.
    ready: Vec<u64>,
    pub(super) begin: Option<u64>,
    /// Legs that have started and are not sent to everybody.
    started: VecDeque<Started>,
    next_leg: u32,
    legs_used: u32,
    pub(super) failed: Option<SendFailed>,
    pub(super) wishes: VecDeque<SourceWish>,
    refused: u64,
}

impl SourceLegs {
    /// A transfer of which nothing is there yet.
    pub fn new(how: Send) -> Result<Self, LegError> {
        let ranks: BTreeSet<u16> = how.sinks.iter().copied().collect();
        // A source whose bytes other ranks send as well may have nobody to send them to.
        if ranks.len() != how.sinks.len() {
            return Err(LegError::Sources);
        }
        if how.once.is_none() && how.layout.has_once() {
            return Err(LegError::OnceMissing);
        }
        let head = Head { transfer: how.transfer, side: Side::Source, rank: how.rank, ranks: how.ranks };
        let slots = if how.is_by_layer { how.layout.layers() as usize } else { 1 };
        let sink = |&rank| Sink {
            rank,
            grants: VecDeque::new(),
            next_leg: 0,
            cursors: vec![0; slots],
            next_number: 0,
            under_way: BTreeMap::new(),
            is_sealed: false,
            sent: Vec::new(),
            is_acked: false,
            abort: None,
        };
        Ok(Self {
            head,
            status: Status::Bootstrapping,
            sinks: how.sinks.iter().map(sink).collect(),
            chunks: Chunks::default(),
            ready: vec![if how.is_by_layer { 0 } else { u64::MAX }; slots],
            begin: None,
            started: VecDeque::new(),
            next_leg: 0,
            legs_used: 0,
            failed: None,
            wishes: VecDeque::new(),
            refused: 0,
            how,
        })
    }

    /// Who says it, of which transfer.
    pub fn head(&self) -> &Head {
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
        self.failed.as_ref()
    }

    /// How many things were said of it that made no sense.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How many legs every rank has granted.
    pub fn legs_started(&self) -> u32 {
        self.next_leg
    }

    /// Whether it has ended, no byte of it moves and everything was let go.
    pub fn is_over(&self) -> bool {
        self.status.is_end() && self.chunks.keeps.is_empty() && self.sinks.iter().all(|sink| sink.under_way.is_empty())
    }

    /// The tickets of the chunks whose blocks were not let go.
    pub fn keeps(&self) -> &[Ticket] {
        &self.chunks.keeps
    }

    /// What is wanted next.
    pub fn poll_wish(&mut self) -> Option<SourceWish> {
        self.wishes.pop_front()
    }

    /// The source has computed a chunk: so many tokens more, and the blocks that they need beyond those given before. An error takes neither
    /// the blocks nor the ticket.
    pub fn chunk(&mut self, blocks: &[u32], tokens: u64, is_last: bool, keep: Ticket) -> Result<(), LegError> {
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

    /// A layer is ready up to a token. Where layers do not go by themselves it is so with its chunk.
    pub fn ready(&mut self, layer: u32, tokens: u64) -> Result<(), LegError> {
        self.may_go_on()?;
        let layers = self.how.layout.layers();
        if layer >= layers {
            return Err(LegError::NoSuchLayer { layer, layers });
        }
        if let Some(ready) = self.ready.get_mut(layer as usize).filter(|_| self.how.is_by_layer) {
            *ready = tokens.max(*ready);
        }
        Ok(())
    }

    /// A rank of the sink has granted a leg. The same again changes nothing, and says so by `false`.
    pub fn granted(&mut self, sink: u16, pair: &Arc<Pair>, grant: &Grant) -> Result<bool, LegError> {
        let checked = self.check_grant(sink, pair, grant);
        self.refused += u64::from(checked.is_err());
        let Some(at) = checked? else { return Ok(false) };
        let begin = *self.begin.get_or_insert(grant.from);
        let sink = &mut self.sinks[at];
        if grant.leg == 0 {
            sink.cursors.fill(begin);
        }
        if sink.sent != pair.sent() {
            sink.sent = pair.sent().to_vec();
        }
        sink.grants.push_back((Arc::clone(pair), grant.clone()));
        sink.next_leg += 1;
        self.start_legs(begin);
        self.seal();
        Ok(true)
    }

    /// The next part to be moved, if there is one and not too many are under way.
    pub fn next_part(&mut self) -> Option<Part> {
        if self.status.is_end() {
            return None;
        }
        for slot in 0..self.ready.len() {
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
        if self.sinks[at].is_acked || self.failed.is_some() {
            return Ok(false);
        }
        if !self.sinks[at].is_sealed {
            self.refused += 1;
            return Err(LegError::AckEarly { rank: sink });
        }
        self.sinks[at].is_acked = true;
        if self.sinks.iter().all(|sink| sink.is_acked) {
            self.status.on(StatusEvent::Done);
            self.settle();
        }
        Ok(true)
    }

    /// Legs that every rank has granted now. The least room decides how many tokens one takes.
    fn start_legs(&mut self, begin: u64) {
        while self.sinks.iter().all(|sink| sink.next_leg > self.next_leg) {
            let number = self.next_leg;
            let room = self.sinks.iter().filter_map(|sink| Some(sink.grant(number)?.1.capacity)).min();
            let from =
                self.started.back().map_or(begin.max(self.sent_end()), |last| last.from.saturating_add(last.tokens));
            self.started.push_back(Started { number, from, tokens: room.unwrap_or(0) });
            self.next_leg += 1;
            self.status.on(StatusEvent::AllGranted);
        }
    }

    /// Where the last leg ended, when all legs that started are sent.
    fn sent_end(&self) -> u64 {
        self.sinks.iter().flat_map(|sink| sink.cursors.iter().copied()).max().unwrap_or(0)
    }

    /// The next part of some layers for one rank.
    fn cut_part(&mut self, slot: usize, at: usize) -> Result<Option<Part>, CutError> {
        let sink = &self.sinks[at];
        let from = sink.cursors[slot];
        let ready = self.chunks.tokens.min(self.ready[slot]);
        let is_in = |leg: &&Started| leg.from <= from && from - leg.from < leg.tokens;
        let Some(leg) = self.started.iter().find(is_in).copied().filter(|_| from < ready) else { return Ok(None) };
        let Some((pair, grant)) = sink.grant(leg.number) else { return Ok(None) };
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
        let mut spans = Vec::new();
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
        let part = Part { sink: sink.rank, regions, spans, bytes, landing };
        self.legs_used = self.legs_used.max(leg.number + 1);
        self.status.on(StatusEvent::Input);
        self.finish_legs();
        self.seal();
        Ok(Some(part))
    }

    /// Legs that are sent to everybody leave the book.
    fn finish_legs(&mut self) {
        while let Some(leg) = self.started.front() {
            let end = leg.from.saturating_add(leg.tokens);
            if !self.sinks.iter().all(|sink| sink.cursors.iter().all(|&cursor| cursor >= end)) {
                return;
            }
            self.started.pop_front();
            self.sinks.iter_mut().for_each(|sink| drop(sink.grants.pop_front()));
            self.status.on(StatusEvent::LegDone);
        }
    }

    /// Says to whom everything was sent how much that was.
    fn seal(&mut self) {
        let Some(total) = self.chunks.total.filter(|_| !self.status.is_end()) else { return };
        let legs = self.legs_used;
        for sink in self.sinks.iter_mut().filter(|sink| !sink.is_sealed && sink.next_leg > 0) {
            if sink.cursors.iter().all(|&cursor| cursor >= total) {
                sink.is_sealed = true;
                let rows = sink.sent.clone();
                let seal = Seal { head: self.head, parts: sink.next_number, tokens: total, legs, rows };
                self.wishes.push_back(SourceWish::Say { sink: sink.rank, said: Said::Seal(seal) });
            }
        }
        if self.sinks.is_empty() {
            self.status.on(StatusEvent::Done);
            self.settle();
        }
    }
}

impl Sink {
    /// What it has granted under a number, if that is in the book.
    fn grant(&self, leg: u32) -> Option<&(Arc<Pair>, Grant)> {
        let first = self.next_leg - self.grants.len() as u32;
        self.grants.get(leg.checked_sub(first)? as usize)
    }
}
