//! Books of sources and sinks, joined by a wire that delivers in any order that may be, over memories that are really copied.
//!
//! After each delivery it is looked at whether bytes land in blocks that are granted, and whether each ticket is let go once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Timestamp};
use penstock_flows::{
    BlocksRef, FlowCause, InputEvent, Layout, LegError, MemoryPolicy, Part, Receive, Send, ShardPair, SinkLegs,
    SinkWish, SourceLegs, SourceWish, Spread, Tail,
};
use penstock_session::TransferId;
use penstock_session::control::{
    Buffer, ControlMessage, Form, Grant, LayoutNews, Refused, Rows, SentRows, Side, TransferHead,
};

/// A buffer as both sides know it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Rows that are spread over ranks.
    Heads { of: u32, bytes: u32 },
    /// Planes that every rank has.
    Planes { count: u32, bytes: u32 },
    /// Bytes that go once.
    Once { bytes: u64 },
}

/// How a transfer is tried.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) tokens: u64,
    pub(crate) begin: u64,
    pub(crate) tail: Option<Tail>,
    pub(crate) kinds: Vec<(u32, Kind)>,
    pub(crate) source_ranks: u16,
    pub(crate) sink_ranks: u16,
    pub(crate) source_block: u32,
    pub(crate) sink_block: u32,
    pub(crate) pool_blocks: u32,
    pub(crate) is_by_layer: bool,
    pub(crate) part_bytes: u64,
    pub(crate) memory: MemoryPolicy,
    pub(crate) ahead: u32,
    pub(crate) tokens_default: u64,
    /// What is landed is taken at once, and what is needed granted, so many blocks at most.
    pub(crate) grants: Option<u32>,
    pub(crate) seed: u64,
}

impl Setup {
    /// Embeddings, position planes and something that goes once, in blocks of 128.
    pub(crate) fn embedding(tokens: u64) -> Self {
        Self {
            tokens,
            begin: 0,
            tail: None,
            kinds: vec![
                (0, Kind::Heads { of: 1, bytes: 12 }),
                (0, Kind::Planes { count: 3, bytes: 4 }),
                (0, Kind::Once { bytes: 40 }),
            ],
            source_ranks: 1,
            sink_ranks: 1,
            source_block: 128,
            sink_block: 128,
            pool_blocks: 40,
            is_by_layer: false,
            part_bytes: 1 << 20,
            memory: MemoryPolicy::Wait,
            ahead: 16,
            tokens_default: 1024,
            grants: None,
            seed: 0,
        }
    }
}

pub(crate) struct SourceNode {
    pub(crate) rank: u16,
    pub(crate) layout: Arc<Layout>,
    pub(crate) memory: Vec<u8>,
    pub(crate) book: SourceLegs,
    pub(crate) freed: Vec<BlocksRef>,
}

pub(crate) struct SinkNode {
    pub(crate) rank: u16,
    pub(crate) layout: Arc<Layout>,
    pub(crate) memory: Vec<u8>,
    pub(crate) book: SinkLegs,
    pub(crate) free: BTreeSet<u32>,
    pub(crate) granted: BTreeMap<BlocksRef, Vec<u32>>,
    pub(crate) freed: Vec<BlocksRef>,
    pub(crate) quarantined: Vec<BlocksRef>,
    pub(crate) seen: Vec<InputEvent>,
    pub(crate) assembled: Vec<Vec<u8>>,
    pub(crate) taken: Vec<u32>,
    pub(crate) errors: Vec<LegError>,
}

#[derive(Debug, Clone)]
pub(crate) enum Message {
    ToSource { source: usize, sink: usize, said: ControlMessage },
    ToSink { source: usize, sink: usize, said: ControlMessage },
    Move { source: usize, sink: usize, part: Part },
    Landed { source: usize, sink: usize, part: Part },
    Ended { source: usize, sink: u16, number: u64, result: Result<u64, Cause> },
}

impl Message {
    /// What comes in the order in which it was said.
    fn channel(&self) -> Option<(bool, usize, usize)> {
        match self {
            Self::ToSource { source, sink, .. } => Some((false, *source, *sink)),
            Self::ToSink { source, sink, .. } => Some((true, *source, *sink)),
            _ => None,
        }
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) now: Timestamp,
    pub(crate) sources: Vec<SourceNode>,
    pub(crate) sinks: Vec<SinkNode>,
    pub(crate) pairs: BTreeMap<(usize, usize), Arc<ShardPair>>,
    pub(crate) wire: Vec<Message>,
    /// Everything that was moved, in order.
    pub(crate) moved: Vec<Part>,
    /// Every grant that was said.
    pub(crate) said: Vec<ControlMessage>,
    /// Grants, landings and seals come again, some of them.
    pub(crate) repeats: bool,
    next_ticket: u64,
    random: u64,
}

pub(crate) const DEADLINE: Timestamp = Timestamp::from_ns(10_000_000_000);
pub(crate) const ABORT_WITHIN: Duration = Duration::from_millis(500);

pub(crate) fn transfer() -> TransferId {
    TransferId::from_bytes([7; 16])
}

/// What a byte of a row of a token of a buffer is, wherever it lies.
fn value(buffer: usize, token: u64, row: u32, byte: u64) -> u8 {
    let mixed = (buffer as u64 * 1_000_003 + token * 7919 + u64::from(row) * 104_729 + byte + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u8 | 1
}

fn layout(
    label: &str,
    number: u32,
    rank: u16,
    ranks: u16,
    block_tokens: u32,
    blocks: u32,
    kinds: &[(u32, Kind)],
) -> (Arc<Layout>, usize) {
    let (mut end, mut buffers) = (0, Vec::new());
    for &(layer, kind) in kinds {
        let (form, block) = match kind {
            Kind::Heads { of, bytes } => {
                let rows = penstock_flows::ranks::rows_of(rank, ranks, of).unwrap();
                let count = rows.end - rows.start;
                let rows = Rows { first: rows.start, count, of, bytes };
                (Form::TokenMajor(rows), u64::from(count * bytes * block_tokens))
            }
            Kind::Planes { count, bytes } => {
                let rows = Rows { first: 0, count, of: count, bytes };
                (Form::PlaneMajor(rows), u64::from(count * bytes * block_tokens))
            }
            Kind::Once { bytes } => (Form::Once(bytes), bytes),
        };
        buffers.push(Buffer { layer, base: end, stride: block, form });
        end += block * u64::from(blocks);
    }
    let news = LayoutNews {
        number,
        generation: 1,
        label: label.into(),
        region: number,
        region_generation: 1,
        block_tokens,
        blocks,
        rank,
        ranks,
        buffers,
    };
    (Arc::new(Layout::check(news, end).unwrap()), end as usize)
}

/// Where a byte of a row of a token is, counted from a block's beginning; nothing if this rank does not have the row.
fn place(form: Form, block_tokens: u32, token: u64, row: u32, byte: u64) -> Option<u64> {
    let among = |rows: Rows| (rows.first..rows.first + rows.count).contains(&row).then(|| u64::from(row - rows.first));
    match form {
        Form::TokenMajor(rows) => Some((token * u64::from(rows.count) + among(rows)?) * u64::from(rows.bytes) + byte),
        Form::PlaneMajor(rows) => Some((among(rows)? * u64::from(block_tokens) + token) * u64::from(rows.bytes) + byte),
        Form::Once(_) => None,
    }
}

fn rows_of(form: Form) -> Option<Rows> {
    match form {
        Form::TokenMajor(rows) | Form::PlaneMajor(rows) => Some(rows),
        Form::Once(_) => None,
    }
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let kinds = &setup.kinds;
        let source_blocks = setup.tokens.div_ceil(u64::from(setup.source_block)) as u32 + 2;
        let layouts: Vec<_> = (0..setup.source_ranks)
            .map(|rank| layout("source", 1, rank, setup.source_ranks, setup.source_block, source_blocks, kinds))
            .collect();
        let sinks: Vec<_> = (0..setup.sink_ranks)
            .map(|rank| layout("sink", 2, rank, setup.sink_ranks, setup.sink_block, setup.pool_blocks, kinds))
            .collect();
        let mut pairs = BTreeMap::new();
        for (source, (ours, _)) in layouts.iter().enumerate() {
            for (sink, (theirs, _)) in sinks.iter().enumerate() {
                let spread = Spread::of(ours, (source as u16, setup.source_ranks)).unwrap();
                if let Ok(pair) = ShardPair::spread(ours, theirs, &spread, source as u16, sink as u16) {
                    pairs.insert((source, sink), Arc::new(pair));
                }
            }
        }
        let of = |source: Option<usize>, sink: Option<usize>| -> Vec<u16> {
            let keys =
                pairs.keys().filter(|key| source.is_none_or(|at| key.0 == at) && sink.is_none_or(|at| key.1 == at));
            keys.map(|key| if source.is_some() { key.1 as u16 } else { key.0 as u16 }).collect()
        };
        let source = |(at, (layout, bytes)): (usize, &(Arc<Layout>, usize))| {
            let send = Send {
                transfer: transfer(),
                rank: at as u16,
                ranks: setup.source_ranks,
                sinks: of(Some(at), None).into(),
                layout: Arc::clone(layout),
                once: layout.has_once().then_some(source_blocks - 1),
                is_by_layer: setup.is_by_layer,
                part_bytes: setup.part_bytes,
                parts_ahead: 8,
                of: setup.sink_ranks,
                deadline: DEADLINE,
                resumes: None,
            };
            SourceNode {
                rank: at as u16,
                layout: Arc::clone(layout),
                memory: vec![0; *bytes],
                book: SourceLegs::new(send).unwrap(),
                freed: Vec::new(),
            }
        };
        let sink = |(at, (layout, bytes)): (usize, &(Arc<Layout>, usize))| {
            let receive = Receive {
                transfer: transfer(),
                rank: at as u16,
                ranks: setup.sink_ranks,
                sources: of(None, Some(at)).into(),
                layout: Arc::clone(layout),
                begin: setup.begin,
                tail: setup.tail.clone(),
                tokens_default: setup.tokens_default,
                memory: setup.memory,
                ahead: setup.ahead,
                deadline: DEADLINE,
                abort_within: ABORT_WITHIN,
                resumes: None,
                urgency: 0,
                trace: Vec::new(),
            };
            let room = setup.tokens - setup.begin;
            let assembled = (0..layout.buffers().len())
                .map(|buffer| vec![0; layout.assembled_bytes(buffer, room).unwrap() as usize]);
            SinkNode {
                rank: at as u16,
                layout: Arc::clone(layout),
                memory: vec![0; *bytes],
                book: SinkLegs::new(receive).unwrap(),
                free: (0..setup.pool_blocks).collect(),
                granted: BTreeMap::new(),
                freed: Vec::new(),
                quarantined: Vec::new(),
                seen: Vec::new(),
                assembled: assembled.collect(),
                taken: Vec::new(),
                errors: Vec::new(),
            }
        };
        let mut world = Self {
            now: Timestamp::from_ns(1),
            sources: layouts.iter().enumerate().map(source).collect(),
            sinks: sinks.iter().enumerate().map(sink).collect(),
            pairs,
            wire: Vec::new(),
            moved: Vec::new(),
            said: Vec::new(),
            repeats: false,
            next_ticket: 1,
            random: setup.seed,
            setup,
        };
        world.fill_sources();
        world
    }

    fn fill_sources(&mut self) {
        for source in &mut self.sources {
            let block_tokens = source.layout.block_tokens();
            for (number, buffer) in source.layout.buffers().iter().enumerate() {
                let Some(rows) = rows_of(buffer.form) else {
                    let Form::Once(bytes) = buffer.form else { unreachable!() };
                    let base = buffer.base + u64::from(source.layout.blocks() - 1) * buffer.stride;
                    (0..bytes).for_each(|byte| {
                        source.memory[(base + byte) as usize] = value(number, u64::MAX / 9000, 0, byte)
                    });
                    continue;
                };
                for token in 0..self.setup.tokens {
                    let block = token / u64::from(block_tokens);
                    let within = token % u64::from(block_tokens);
                    for row in 0..rows.of {
                        for byte in 0..u64::from(rows.bytes) {
                            if let Some(place) = place(buffer.form, block_tokens, within, row, byte) {
                                let at = buffer.base + block * buffer.stride + place;
                                source.memory[at as usize] = value(number, token, row, byte);
                            }
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below.max(1)
    }

    pub(crate) fn ticket(&mut self) -> BlocksRef {
        self.next_ticket += 1;
        BlocksRef(self.next_ticket)
    }

    /// All tokens of the source at once, on all ranks.
    pub(crate) fn chunk_all(&mut self) {
        self.chunk(0, self.setup.tokens, true);
    }

    /// A chunk of the source behind so many tokens, on all ranks.
    pub(crate) fn chunk(&mut self, before: u64, tokens: u64, is_last: bool) {
        let size = u64::from(self.setup.source_block);
        let blocks: Vec<u32> = blocks_of(before..before + tokens, size).map(|block| block as u32).collect();
        for at in 0..self.sources.len() {
            let keep = self.ticket();
            self.sources[at].book.chunk(&blocks, tokens, is_last, keep).unwrap();
        }
    }

    /// Layers are ready for the first so many tokens on all ranks, where they go by themselves.
    pub(crate) fn ready(&mut self, layers: [u32; 2], tokens: u64) {
        for source in self.sources.iter_mut().filter(|_| self.setup.is_by_layer) {
            layers.iter().for_each(|&layer| source.book.ready(layer, tokens).unwrap());
        }
    }

    /// Grants so many blocks of the pool as the next leg.
    pub(crate) fn grant(&mut self, sink: usize, blocks: u32) -> Result<bool, LegError> {
        self.grant_skipping(sink, blocks, 0)
    }

    pub(crate) fn grant_skipping(&mut self, sink: usize, blocks: u32, skip: u32) -> Result<bool, LegError> {
        let keep = self.ticket();
        let node = &mut self.sinks[sink];
        let leg = node.book.next_leg();
        let needs_once = leg == 0 && node.layout.has_once();
        let mut chosen: Vec<u32> = node.free.iter().copied().take((blocks + u32::from(needs_once)) as usize).collect();
        assert_eq!(chosen.len() as u32, blocks + u32::from(needs_once), "the pool of the test has too few blocks");
        // Blocks in no order, so that what follows in tokens does not follow in memory.
        chosen.reverse();
        let once = if needs_once { chosen.pop() } else { None };
        let granted = node.book.grant(leg, chosen.clone(), skip, once, keep)?;
        for block in chosen.iter().chain(&once) {
            node.free.remove(block);
        }
        chosen.extend(once);
        node.granted.insert(keep, chosen);
        Ok(granted)
    }

    /// Takes out what everybody wants, and puts it on the wire.
    pub(crate) fn collect(&mut self) {
        for at in 0..self.sources.len() {
            while let Some(part) = self.sources[at].book.next_part() {
                let sink = usize::from(part.sink);
                self.wire.push(Message::Move { source: at, sink, part });
            }
            while let Some(wish) = self.sources[at].book.poll_wish() {
                match wish {
                    SourceWish::Say { sink, said } => {
                        self.wire.push(Message::ToSink { source: at, sink: usize::from(sink), said });
                    }
                    SourceWish::Stop { sink, number } => self.stop(at, sink, number),
                    SourceWish::Free { ticket } => {
                        let freed = &mut self.sources[at].freed;
                        assert!(!freed.contains(&ticket), "a ticket of the source is let go twice");
                        freed.push(ticket);
                    }
                }
            }
        }
        for at in 0..self.sinks.len() {
            while let Some(wish) = self.sinks[at].book.poll_wish() {
                match wish {
                    SinkWish::Say { source, said } => {
                        self.said.push(said.clone());
                        self.wire.push(Message::ToSource { source: usize::from(source), sink: at, said });
                    }
                    SinkWish::Free { ticket } => self.free(at, ticket),
                    SinkWish::Quarantine { ticket, .. } => self.sinks[at].quarantined.push(ticket),
                }
            }
            while let Some(event) = self.sinks[at].book.next_input_event() {
                self.sinks[at].seen.push(event);
            }
        }
    }

    fn free(&mut self, sink: usize, ticket: BlocksRef) {
        let node = &mut self.sinks[sink];
        let blocks = node.granted.remove(&ticket).expect("a ticket is let go once, and only one that was given");
        assert!(!node.freed.contains(&ticket));
        node.freed.push(ticket);
        // Whoever reads them from now on reads poison.
        for buffer in node.layout.buffers() {
            let bytes = match buffer.form {
                Form::TokenMajor(_) | Form::PlaneMajor(_) => buffer.stride,
                Form::Once(bytes) => bytes,
            };
            for &block in &blocks {
                let at = (buffer.base + u64::from(block) * buffer.stride) as usize;
                node.memory[at..at + bytes as usize].fill(0xee);
            }
        }
        node.free.extend(blocks);
    }

    /// A move that has not begun does not begin any more, if it is not too late for that.
    fn stop(&mut self, source: usize, sink: u16, number: u64) {
        let is_it = |message: &Message| matches!(message, Message::Move { source: at, part, .. } if *at == source && part.sink == sink && part.landing.number == number);
        let is_too_late = self.setup.seed != 0 && self.random(2) == 0;
        if let Some(place) = self.wire.iter().position(is_it).filter(|_| !is_too_late) {
            self.wire[place] = Message::Ended { source, sink, number, result: Err(Cause::Cancelled) };
        }
    }

    /// Delivers one message, which the seed chooses.
    pub(crate) fn deliver_one(&mut self) -> bool {
        self.collect();
        if self.wire.is_empty() {
            return false;
        }
        let chosen = if self.setup.seed == 0 { 0 } else { self.random(self.wire.len()) };
        let channel = self.wire[chosen].channel();
        let first = self.wire.iter().position(|message| channel.is_some() && message.channel() == channel);
        let message = self.wire.remove(first.unwrap_or(chosen));
        let repeatable = matches!(
            message,
            Message::Landed { .. }
                | Message::ToSource { said: ControlMessage::Grant(_), .. }
                | Message::ToSink { said: ControlMessage::EndOfData(_), .. }
        );
        if self.repeats && repeatable && self.random(2) == 0 {
            self.wire.push(message.clone());
        }
        self.deliver(message);
        true
    }

    pub(crate) fn deliver(&mut self, message: Message) {
        let now = self.now;
        match message {
            Message::ToSource { source, sink, said } => self.say_to_source(source, sink, said),
            Message::ToSink { source, sink, said } => self.say_to_sink(source, sink, said),
            Message::Move { source, sink, part } => {
                self.copy(source, sink, &part);
                let (to, number, bytes) = (part.sink, part.landing.number, part.bytes);
                self.moved.push(part.clone());
                self.wire.push(Message::Landed { source, sink, part });
                self.wire.push(Message::Ended { source, sink: to, number, result: Ok(bytes) });
            }
            Message::Landed { source, sink, part } => {
                let rank = self.sources[source].rank;
                let node = &mut self.sinks[sink];
                if let Err(error) = node.book.landed(rank, &part.landing, now) {
                    node.errors.push(error);
                }
            }
            Message::Ended { source, sink, number, result } => {
                self.sources[source].book.ended(sink, number, result, false, now)
            }
        }
    }

    fn say_to_source(&mut self, source: usize, sink: usize, said: ControlMessage) {
        let rank = self.sinks[sink].rank;
        let book = &mut self.sources[source].book;
        match said {
            ControlMessage::Grant(grant) => {
                let leg = grant.leg;
                let granted = book.granted(rank, &self.pairs[&(source, sink)], grant);
                let is_news = |error: &LegError| !matches!(error, LegError::Ended(_) | LegError::Done);
                if let Some(error) = granted.err().filter(is_news) {
                    let refused = Refused {
                        head: head(Side::Source, self.sources[source].rank),
                        leg,
                        code: FlowCause::Refused.code(),
                        expected: error.expected(),
                    };
                    self.wire.push(Message::ToSink { source, sink, said: ControlMessage::Refused(refused) });
                }
            }
            ControlMessage::Ack(_) => drop(book.acked(rank).unwrap()),
            ControlMessage::Fail(fail) => book.failed_there(rank, &fail).unwrap(),
            ControlMessage::Abort(abort) => book.asked_to_stop(rank, abort.number).unwrap(),
            other => panic!("a sink does not say {other:?}"),
        }
    }

    fn say_to_sink(&mut self, source: usize, sink: usize, said: ControlMessage) {
        let (rank, now) = (self.sources[source].rank, self.now);
        let node = &mut self.sinks[sink];
        let done = match said {
            ControlMessage::EndOfData(seal) => node.book.sealed(rank, &seal, now).map(drop),
            ControlMessage::Fail(fail) => node.book.failed_there(rank, &fail, now),
            ControlMessage::AbortAck(ack) => node.book.drained(rank, ack.number, ack.is_drained),
            ControlMessage::Refused(refused) => node.book.refused_there(rank, &refused, now),
            other => panic!("a source does not say {other:?}"),
        };
        node.errors.extend(done.err());
    }

    /// Copies by the pieces; each byte has to be in a block that is granted.
    pub(crate) fn copy(&mut self, source: usize, sink: usize, part: &Part) {
        let (from, node) = (&self.sources[source].memory, &mut self.sinks[sink]);
        let granted: BTreeSet<u32> = node.granted.values().flatten().copied().collect();
        for span in &part.spans {
            let (at, len) = (span.remote, span.len);
            let buffer = node.layout.buffers().iter().rev().find(|buffer| buffer.base <= at).unwrap();
            for block in (at - buffer.base) / buffer.stride..=(at + len - 1 - buffer.base) / buffer.stride {
                assert!(
                    granted.contains(&(block as u32)),
                    "bytes land in block {block}, which was let go or never granted"
                );
            }
            let (local, remote, len) = (span.local as usize, span.remote as usize, span.len as usize);
            node.memory[remote..remote + len].copy_from_slice(&from[local..local + len]);
        }
    }

    /// Copies out what a leg brought, and lets its blocks go.
    pub(crate) fn take(&mut self, sink: usize, leg: u32) -> Result<bool, LegError> {
        let room = self.setup.tokens - self.setup.begin;
        let node = &mut self.sinks[sink];
        for piece in node.book.assembly(leg, room)?.1 {
            let (from, to, len) = (piece.region_offset as usize, piece.offset as usize, piece.len as usize);
            node.assembled[piece.buffer][to..to + len].copy_from_slice(&node.memory[from..from + len]);
        }
        node.taken.push(leg);
        node.book.taken(leg)
    }

    /// Takes all that has landed, and grants what is needed.
    fn be_the_application(&mut self, most: u32) {
        for sink in 0..self.sinks.len() {
            for leg in 0..self.sinks[sink].book.next_leg() {
                if self.sinks[sink].book.leg(leg) == Some(penstock_flows::input::Leg::Landed) {
                    self.take(sink, leg).unwrap();
                    self.collect();
                }
            }
            if let Some(tokens) = self.sinks[sink].book.wanted() {
                let once = u64::from(self.sinks[sink].book.next_leg() == 0 && self.sinks[sink].layout.has_once());
                let free = (self.sinks[sink].free.len() as u64).saturating_sub(once);
                let blocks = tokens.div_ceil(u64::from(self.setup.sink_block)).min(u64::from(most)).min(free);
                if blocks > 0 {
                    self.grant(sink, blocks as u32).unwrap();
                }
            }
        }
    }

    /// Delivers everything that there is, until nothing more happens.
    pub(crate) fn run(&mut self) {
        for _ in 0..200_000 {
            if let Some(most) = self.setup.grants {
                self.be_the_application(most);
            }
            if !self.deliver_one() {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    /// Every byte that was assembled, and every book and block.
    pub(crate) fn assert_done(&mut self) {
        let (begin, tokens) = (self.setup.begin, self.setup.tokens);
        let room = tokens - begin;
        for node in &self.sinks {
            assert_eq!(node.book.status().code(), 4, "{:?} {:?}", node.seen, node.errors);
            assert_eq!(node.seen.last(), Some(&InputEvent::Done { tokens: room }));
            for (number, buffer) in node.layout.buffers().iter().enumerate() {
                let found = &node.assembled[number];
                let Some(rows) = rows_of(buffer.form) else {
                    let right = found
                        .iter()
                        .enumerate()
                        .all(|(byte, &found)| found == value(number, u64::MAX / 9000, 0, byte as u64));
                    assert!(right || room == 0, "what goes once is not what it was");
                    continue;
                };
                for token in 0..room {
                    for row in rows.first..rows.first + rows.count {
                        for byte in 0..u64::from(rows.bytes) {
                            let at = match buffer.form {
                                Form::PlaneMajor(_) => {
                                    (u64::from(row - rows.first) * room + token) * u64::from(rows.bytes) + byte
                                }
                                _ => {
                                    (token * u64::from(rows.count) + u64::from(row - rows.first))
                                        * u64::from(rows.bytes)
                                        + byte
                                }
                            };
                            let wanted = value(number, begin + token, row, byte);
                            assert_eq!(
                                found[at as usize], wanted,
                                "buffer {number}, token {token}, row {row}, byte {byte}"
                            );
                        }
                    }
                }
            }
            assert_eq!(node.errors, []);
        }
        self.assert_nothing_is_left();
        assert!(self.sources.iter().all(|source| source.book.status().code() == 4));
    }

    /// Every block came back, and every ticket once.
    pub(crate) fn assert_nothing_is_left(&self) {
        for node in &self.sinks {
            assert!(node.book.is_over(), "{:?}", node.book);
            assert!(node.granted.is_empty());
            assert_eq!(node.free.len() as u32, self.setup.pool_blocks);
        }
        for node in &self.sources {
            assert!(node.book.is_over(), "{:?}", node.book);
        }
    }

    /// How many grants a sink has said.
    pub(crate) fn grants(&self) -> Vec<&Grant> {
        self.said
            .iter()
            .filter_map(|said| if let ControlMessage::Grant(grant) = said { Some(grant) } else { None })
            .collect()
    }

    /// How often a sink was told that a leg is there and more are needed.
    pub(crate) fn partial(&self, sink: usize) -> usize {
        self.sinks[sink].seen.iter().filter(|event| matches!(event, InputEvent::Leg { .. })).count()
    }
}

/// Every row of every buffer, one by one.
pub(crate) fn all_rows(layout: &Layout) -> Vec<SentRows> {
    let rows =
        layout.buffers().iter().map(|buffer| rows_of(buffer.form).map_or((0, 1), |rows| (rows.first, rows.count)));
    rows.map(|(first, count)| SentRows { buffers: 1, first, count }).collect()
}

/// The first rank of the source refuses a leg.
pub(crate) fn refused(leg: u32, expected: u32) -> Refused {
    Refused { head: head(Side::Source, 0), leg, code: FlowCause::Refused.code(), expected }
}

pub(crate) fn head(side: Side, rank: u16) -> TransferHead {
    TransferHead { transfer: transfer(), side, rank, ranks: 1 }
}

/// The places of all blocks in which these tokens lie.
pub(crate) fn blocks_of(tokens: std::ops::Range<u64>, size: u64) -> std::ops::Range<u64> {
    if tokens.is_empty() { 0..0 } else { tokens.start / size..tokens.end.div_ceil(size) }
}
