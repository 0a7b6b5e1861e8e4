//! The applications of a run: they carry deeds out and do what is asked of them, by the public interface only, and never wait.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock::flows::{FlowError, Happening, Input, NoMemory, Output, Receive, RequestId, Send, Status, TransferId};
use penstock::{Blocks, Moment, Peer};

use crate::deed::{Case, Half, Script};
use crate::env::SimEnv;
use crate::leases::{LeaseWatch, Talk};
use crate::oracle::{EMPTY, GRANTED, Invariant, UNREADY, Violated, blame, byte};
use crate::random::Random;
use crate::stage::{LAYERS, ROW_BYTES, Stage};

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// How a half ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When.
    pub at: Moment,
    /// Its cause in words, where it failed.
    pub failure: Option<String>,
}

/// One half of a case, as its application has it.
pub struct Actor {
    /// Which case.
    pub case: usize,
    /// Which half.
    pub half: Half,
    /// Where its engine sits, and in which life it was there.
    pub seat: usize,
    life: u32,
    spec: Case,
    transfer: TransferId,
    /// What this side's scheduler calls it.
    pub request: RequestId,
    /// When its application began it; the engine may have refused so far.
    pub begun: Moment,
    /// Since when the engine has it.
    pub admitted: Option<Moment>,
    doing: Doing,
    /// Of its engine, for a source; of its sources, for a sink.
    epochs: Vec<u64>,
    /// The sources of a sink, by rank.
    heard_by: Vec<HeardBy>,
    /// A sink has said something of itself to its sources, if they can be reached.
    has_spoken: bool,
    /// What a source lends to its only sink.
    lease: Option<LeaseWatch>,
    /// How it ended.
    pub end: Option<End>,
    /// It is given up as soon as that can be said.
    wish: Option<Wish>,
    /// Its application is done with it, and has dropped it.
    pub is_gone: bool,
    drop_at: Option<Moment>,
}

/// A source, as a sink has met it.
struct HeardBy {
    seat: usize,
    peer: Peer<SimEnv>,
    /// How long it could have heard what the sink had said.
    span: Duration,
}

/// What a sink has said is heard within this, where somebody listens and the link passes.
const HEARD_WITHIN: Duration = Duration::from_millis(20);

/// What an application wants of a half beyond its course.
#[derive(Debug, Clone, Copy)]
pub enum Wish {
    /// It says that it has failed.
    Fail,
    /// It wants its blocks back.
    Abort,
    /// It drops the handle.
    Drop,
}

enum Doing {
    /// The engine does not have it yet.
    Waiting,
    Sending(Sending),
    Receiving(Receiving),
}

struct Sending {
    output: Output<SimEnv>,
    /// Blocks that were not given in a chunk yet.
    blocks: Vec<Blocks>,
    /// The blocks of all tokens.
    indices: Vec<u32>,
    given: u64,
    chunks_given: u64,
    ready: [bool; LAYERS],
}

struct Receiving {
    input: Input<SimEnv>,
    epochs: Vec<u64>,
    layers: Vec<Vec<u8>>,
    told: BTreeSet<(u32, Option<u32>)>,
    /// Tokens of legs of which it was told.
    tokens_told: u64,
    /// It was given up: what it is told of that it does not know yet was let go.
    is_aborted: bool,
    needs_memory: bool,
    has_granted: bool,
    /// What has landed is copied out then.
    take_at: Option<Moment>,
}

/// What a case's applications have been told to do so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Course {
    /// Chunks that are computed.
    pub chunks: u64,
    /// Layers that are ready.
    pub layers: [bool; LAYERS],
}

fn end_error(words: String) -> Violated {
    Violated::new(Invariant::OneEndEach, words)
}

impl Actor {
    /// A half that begins now.
    pub fn new(script: &Script, case: usize, half: Half, stage: &Stage<'_>) -> Self {
        let (sources, sinks) = script.sides(case);
        let seat = match half {
            Half::Source(rank) => sources[usize::from(rank)],
            Half::Sink(rank) => sinks[usize::from(rank)],
        };
        let transfer = TransferId::mint(UUID, case as u32, 0).expect("the text is a UUID");
        let request = RequestId::new(&format!("request {case} of {half:?}")).expect("the text is short");
        let is_lent_to_one =
            script.cases[case].is_pull && matches!(half, Half::Source(_)) && (sources.len(), sinks.len()) == (1, 1);
        Self {
            case,
            half,
            seat,
            life: stage.seats[seat].life,
            spec: script.cases[case],
            transfer,
            request,
            begun: stage.world.now(),
            admitted: None,
            doing: Doing::Waiting,
            epochs: Vec::new(),
            heard_by: Vec::new(),
            has_spoken: false,
            lease: script.cases[case].lease.filter(|_| is_lent_to_one).map(LeaseWatch::new),
            end: None,
            wish: None,
            is_gone: stage.seats[seat].node().is_none(),
            drop_at: None,
        }
    }

    /// Whether its engine has died since.
    pub fn is_dead(&self, stage: &Stage<'_>) -> bool {
        stage.seats[self.seat].life != self.life
    }

    /// Its application wants this.
    pub fn wishes(&mut self, wish: Wish) {
        self.wish = Some(wish);
    }

    /// Lets go of its handle.
    pub fn forget(&mut self) {
        self.doing = Doing::Waiting;
        self.is_gone = true;
    }

    /// Its engine is dead: everything of it is let go.
    pub fn die(&mut self) {
        self.forget();
        self.heard_by.clear();
    }

    /// Whether it has to know what becomes of the other: one is a source in the life in which the other knows it. A sink knows its
    /// sources from its beginning; a source knows a sink when it has heard of it, and no sooner.
    pub fn has_to_know(&self, other: &Self) -> bool {
        match (self.half, other.half) {
            (Half::Source(rank), Half::Sink(_)) => {
                let heard = other.heard_by.get(usize::from(rank)).is_some_and(|source| source.span >= HEARD_WITHIN);
                heard && other.is_sink_of(self, rank)
            }
            (Half::Sink(_), Half::Source(rank)) => self.is_sink_of(other, rank),
            _ => false,
        }
    }

    fn is_sink_of(&self, source: &Self, rank: u16) -> bool {
        self.case == source.case && self.epochs.get(usize::from(rank)) == source.epochs.first()
    }

    /// So much time has passed in which this source may have heard of this sink: it listens, the link passes, and the session in which
    /// the sink has spoken stands.
    pub fn may_be_heard(&mut self, source: &Self, passed: Duration, stage: &Stage<'_>) {
        let Half::Source(rank) = source.half else { return };
        if !self.has_spoken || source.admitted.is_none() || !self.is_sink_of(source, rank) {
            return;
        }
        let Some(heard_by) = self.heard_by.get_mut(usize::from(rank)) else { return };
        let (here, there) = (&stage.seats[self.seat], &stage.seats[heard_by.seat]);
        let passes = || stage.world.passes(here.player().host, there.player().host);
        if heard_by.span < HEARD_WITHIN
            && here.is_awake()
            && there.is_awake()
            && heard_by.peer.ended().is_none()
            && passes()
        {
            heard_by.span += passed;
        }
    }

    /// How it stands, by name.
    pub fn status(&self) -> Option<Status> {
        match &self.doing {
            Doing::Waiting => None,
            Doing::Sending(sending) => Some(sending.output.status()),
            Doing::Receiving(receiving) => Some(receiving.input.status()),
        }
    }

    /// Whether it is a source whose lease is watched.
    pub fn lends(&self) -> bool {
        self.lease.is_some() && !self.is_gone
    }

    /// Whether it is a sink that knows this one as a source.
    pub fn needs(&self, source: &Self) -> bool {
        match (self.half, source.half) {
            (Half::Sink(_), Half::Source(rank)) => self.is_sink_of(source, rank),
            _ => false,
        }
    }

    /// Whether it reads what this source lends, and its engine is still the one that did.
    pub fn reads(&self, source: &Self, stage: &Stage<'_>) -> bool {
        self.needs(source) && !self.is_dead(stage)
    }

    /// Time has passed over what a source has lent, to a reader that lives or does not.
    pub fn watch_lease(&mut self, script: &Script, is_read: bool, stage: &Stage<'_>) -> Result<(), Violated> {
        let Some(lease) = self.lease.as_mut().filter(|_| !self.is_gone) else { return Ok(()) };
        let now = stage.world.now();
        if let Some(end) = &self.end {
            let is_expired = end.failure.as_ref().is_some_and(|words| words.starts_with("Expired"));
            let came = if is_expired { lease.expired(end.at) } else { Ok(()) };
            self.lease = None;
            return came;
        }
        let (_, sinks) = script.sides(self.case);
        let (here, there) = (&stage.seats[self.seat], &stage.seats[sinks[0]]);
        let (lender, reader) = (here.player().host, there.player().host);
        let is_reader_awake = is_read && there.is_awake();
        let talk = Talk {
            is_lender_awake: here.is_awake(),
            is_reader_heard: is_reader_awake && stage.world.passes(reader, lender),
            is_lender_heard: is_reader_awake && stage.world.passes(lender, reader),
        };
        lease.stands(talk, now)
    }

    /// The application looks at it and does what there is to do. Its engine is awake.
    pub fn turn(
        &mut self,
        script: &Script,
        course: &Course,
        stage: &mut Stage<'_>,
        random: &mut Random,
    ) -> Result<(), Violated> {
        if self.is_gone {
            return Ok(());
        }
        let now = stage.world.now();
        if matches!(self.doing, Doing::Waiting) {
            if self.wish.is_some() || now >= self.begun + self.spec.within {
                self.is_gone = true;
            } else {
                self.begin(script, stage)?;
            }
            return Ok(());
        }
        if let Some(wish) = self.wish.take() {
            self.give_up(wish, now);
            if self.is_gone {
                return Ok(());
            }
        }
        let before = self.end.clone();
        match &mut self.doing {
            Doing::Waiting => {}
            Doing::Sending(sending) => sending.turn(self.case, &self.spec, course, &mut self.end, stage, self.seat)?,
            Doing::Receiving(receiving) => {
                receiving.turn(self.case, &self.spec, &mut self.end, stage, self.seat, random)?;
                self.has_spoken |= receiving.has_granted;
            }
        }
        self.has_spoken |= self.end.is_some();
        let is_lent = self.lease.is_some() && self.status() == Some(Status::Transferring);
        if let Some(lease) = self.lease.as_mut().filter(|_| is_lent) {
            lease.lent(now);
        }
        self.check_end(before.as_ref())?;
        if self.end.is_some() && self.is_done_with() {
            let at = *self.drop_at.get_or_insert(now + Duration::from_micros(random.below(20_000) as u64));
            if now >= at {
                self.forget();
            }
        }
        Ok(())
    }

    /// An end stays what it is.
    fn check_end(&self, before: Option<&End>) -> Result<(), Violated> {
        let status = self.status();
        let is_as_told = match (&self.end, status) {
            (Some(end), Some(status)) => status == if end.failure.is_some() { Status::Failed } else { Status::Success },
            _ => true,
        };
        if !is_as_told || before.is_some_and(|before| Some(before) != self.end.as_ref()) {
            let words =
                format!("case {} {:?} ended as {before:?}, and is {:?}, {status:?}", self.case, self.half, self.end);
            return Err(end_error(words));
        }
        Ok(())
    }

    /// Nothing is left to be done for it.
    fn is_done_with(&self) -> bool {
        match &self.doing {
            Doing::Receiving(receiving) => receiving.take_at.is_none(),
            _ => true,
        }
    }

    fn give_up(&mut self, wish: Wish, now: Moment) {
        match (wish, &mut self.doing) {
            (Wish::Drop, _) => {
                // Nobody is left who could be told how it ended.
                self.end.get_or_insert(End { at: now, failure: Some("dropped".to_owned()) });
                self.has_spoken = true;
                self.forget();
            }
            (Wish::Fail, Doing::Sending(sending)) => sending.output.fail("simulated"),
            (Wish::Fail, Doing::Receiving(receiving)) => receiving.input.fail("simulated"),
            (Wish::Abort, Doing::Sending(sending)) => drop(sending.output.abort(Duration::ZERO)),
            (Wish::Abort, Doing::Receiving(receiving)) => {
                // What has landed and was not taken is let go as well.
                (receiving.tokens_told, receiving.take_at, receiving.is_aborted) = (0, None, true);
                receiving.input.abort(Duration::ZERO);
            }
            (_, Doing::Waiting) => {}
        }
    }

    fn begin(&mut self, script: &Script, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let begun = match self.half {
            Half::Source(rank) => self.begin_sending(script, rank, stage)?,
            Half::Sink(rank) => self.begin_receiving(script, rank, stage)?,
        };
        if let Some(doing) = begun {
            self.epochs = match &doing {
                Doing::Receiving(receiving) => receiving.epochs.clone(),
                _ => stage.seats[self.seat].node().map(|node| node.epoch().0).into_iter().collect(),
            };
            self.doing = doing;
            self.admitted = Some(stage.world.now());
        }
        Ok(())
    }

    fn refused(&self, error: &FlowError) -> Violated {
        end_error(format!("case {} {:?} is not taken in: {error}", self.case, self.half))
    }

    fn begin_sending(&self, script: &Script, rank: u16, stage: &mut Stage<'_>) -> Result<Option<Doing>, Violated> {
        let (sources, sinks) = script.sides(self.case);
        let now = stage.world.now();
        let seat = &mut stage.seats[self.seat];
        let count = self.spec.tokens.div_ceil(u64::from(seat.player().block_tokens)) as usize;
        let Some(all) = seat.take(count, UNREADY, now)? else { return Ok(None) };
        let mut indices = all.indices().to_vec();
        drop(all);
        // One by one, so that each chunk has its own.
        let pool = seat.pool().expect("it lives");
        let blocks: Vec<Blocks> = (0..count).map(|_| pool.take(1).expect("it was let go just now")).collect();
        indices.clear();
        indices.extend(blocks.iter().map(|block| block.indices()[0]));
        let node = seat.node().expect("it lives");
        let how = Send::from(seat.layout().expect("it lives"))
            .rank(rank, sources.len() as u16)
            .to(sinks.len() as u16)
            .within(self.spec.within);
        let how = if self.spec.is_by_layer { how.by_layer() } else { how };
        let how = if self.spec.is_pull { how.lend() } else { how };
        let how = match self.spec.lease {
            Some(ttl) => how.lease(ttl),
            None => how,
        };
        let output = node.produce(self.transfer, &self.request, how).map_err(|error| self.refused(&error))?;
        let ready = [!self.spec.is_by_layer; LAYERS];
        let sending = Sending { output, blocks, indices, given: 0, chunks_given: 0, ready };
        Ok(Some(Doing::Sending(sending)))
    }

    fn begin_receiving(
        &mut self,
        script: &Script,
        rank: u16,
        stage: &mut Stage<'_>,
    ) -> Result<Option<Doing>, Violated> {
        let (sources, sinks) = script.sides(self.case);
        let peers = sources.iter().map(|&source| stage.meet(self.seat, source)).collect::<Result<Vec<_>, _>>()?;
        let Some(peers) = peers.into_iter().collect::<Option<Vec<Peer<SimEnv>>>>() else { return Ok(None) };
        let seat = &stage.seats[self.seat];
        let mut how = Receive::into(seat.layout().expect("it lives"))
            .rank(rank, sinks.len() as u16)
            .begin(self.spec.begin)
            .memory(self.spec.memory)
            .within(self.spec.within);
        if self.spec.is_pull {
            how = how.pull();
        }
        for (rank, peer) in (0..).zip(&peers) {
            how = how.from(rank, peer);
        }
        let node = seat.node().expect("it lives");
        let input = match node.consume(self.transfer, &self.request, how) {
            Ok(input) => input,
            // The session was over, and nobody had told.
            Err(FlowError::Call(penstock::flows::CallError::NotSpoken { .. })) => return Ok(None),
            Err(error) => return Err(self.refused(&error)),
        };
        let room = self.spec.tokens - self.spec.begin;
        let layers = (0..LAYERS).map(|layer| {
            let bytes = input.assembled_bytes(layer, room).expect("the layout has this buffer");
            vec![EMPTY; bytes as usize]
        });
        let receiving = Receiving {
            layers: layers.collect(),
            input,
            epochs: peers.iter().map(|peer| peer.epoch().0).collect(),
            told: BTreeSet::new(),
            tokens_told: 0,
            is_aborted: false,
            needs_memory: true,
            has_granted: false,
            take_at: None,
        };
        let heard_by = |(seat, peer)| HeardBy { seat, peer, span: Duration::ZERO };
        self.heard_by = sources.into_iter().zip(peers).map(heard_by).collect();
        // Who reads claims its rank when it begins, who is sent something with its first leg.
        self.has_spoken = self.spec.is_pull;
        Ok(Some(Doing::Receiving(receiving)))
    }
}

impl Sending {
    fn turn(
        &mut self,
        case: usize,
        spec: &Case,
        course: &Course,
        end: &mut Option<End>,
        stage: &Stage<'_>,
        seat: usize,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        match self.output.poll() {
            None if end.is_none() => {}
            None => return Err(end_error(format!("case {case} had ended at its source, and has not"))),
            Some(result) => {
                let failure = result.err().map(|failed| format!("{:?}: {}", failed.cause, failed.words));
                let at = end.as_ref().map_or(now, |end| end.at);
                *end = Some(End { at, failure });
                return Ok(());
            }
        }
        let seat = &stage.seats[seat];
        for layer in 0..LAYERS {
            if !self.ready[layer] && course.layers[layer] {
                self.write(case, layer, 0..self.given, seat);
                self.ready[layer] = true;
                let _ = self.output.layer(layer as u32);
            }
        }
        while self.chunks_given < course.chunks.min(spec.chunks) {
            self.chunks_given += 1;
            let until = spec.tokens * self.chunks_given / spec.chunks;
            for layer in (0..LAYERS).filter(|&layer| self.ready[layer]) {
                self.write(case, layer, self.given..until, seat);
            }
            let needed = until.div_ceil(u64::from(seat.player().block_tokens)) as usize;
            let had = self.indices.len() - self.blocks.len();
            let rest = self.blocks.split_off(needed - had);
            let its = std::mem::replace(&mut self.blocks, rest);
            let tokens = until - std::mem::replace(&mut self.given, until);
            let pool = seat.pool().expect("it lives");
            let its = joined(its, pool);
            // It may have ended since it was looked at.
            let _ = self.output.chunk(&its, tokens, self.chunks_given == spec.chunks);
        }
        Ok(())
    }

    /// Computes some tokens of a layer.
    fn write(&self, case: usize, layer: usize, tokens: std::ops::Range<u64>, seat: &crate::stage::Seat) {
        let (player, pool) = (seat.player(), seat.pool().expect("it lives"));
        let (rows, epoch) = (player.rows(), seat.node().expect("it lives").epoch().0);
        let size = u64::from(player.block_tokens);
        for token in tokens {
            let block = u64::from(self.indices[(token / size) as usize]) * pool.memory().block_bytes();
            for row in 0..rows.count {
                let bytes: [u8; ROW_BYTES as usize] =
                    std::array::from_fn(|at| byte(case, epoch, layer, token, rows.first + row, at as u32));
                let at = block + player.place(layer, (token % size) as u32, row);
                pool.window().write_from(at, &bytes).expect("a block is in its pool");
            }
        }
    }
}

/// One handle of several blocks.
fn joined(blocks: Vec<Blocks>, pool: &penstock::Pool<SimEnv>) -> Blocks {
    let count = blocks.len();
    // The last one let go is the first one taken.
    blocks.into_iter().rev().for_each(drop);
    pool.take(count).expect("as many were let go just now")
}

impl Receiving {
    fn turn(
        &mut self,
        case: usize,
        spec: &Case,
        end: &mut Option<End>,
        stage: &mut Stage<'_>,
        seat: usize,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        while let Some(happening) = self.input.try_next() {
            if let Some(end) = end {
                return Err(end_error(format!(
                    "case {case} ended as {end:?} at its sink, and then came {happening:?}"
                )));
            }
            self.hear(case, spec, happening, end, now, random)?;
        }
        if self.take_at.is_some_and(|at| now >= at) {
            self.take_at = None;
            self.assemble(case, spec, stage, seat, end.as_ref())?;
        }
        if self.needs_memory && end.is_none() {
            self.grant(spec, stage, seat, random)?;
        }
        Ok(())
    }

    fn hear(
        &mut self,
        case: usize,
        spec: &Case,
        happening: Happening,
        end: &mut Option<End>,
        now: Moment,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let mut once = |leg, layer| match self.told.insert((leg, layer)) {
            true => Ok(()),
            false => {
                let words = format!("case {case} was told twice of leg {leg}, layer {layer:?}");
                Err(Violated::new(Invariant::ToldOnceAfterBytes, words))
            }
        };
        let mut soon = || Some(now + Duration::from_micros(random.below(3000) as u64));
        match happening {
            Happening::Layer { leg, layer } => once(leg, Some(layer))?,
            Happening::Leg { leg, tokens, .. } => {
                once(leg, None)?;
                self.tokens_told += if self.is_aborted { 0 } else { tokens };
                self.take_at = self.take_at.or_else(&mut soon);
            }
            Happening::NeedsMemory { .. } => self.needs_memory = true,
            // No transfer of these runs is one that waits for another session.
            Happening::Lost { .. } => {}
            Happening::Done { tokens } => {
                if tokens != spec.tokens - spec.begin {
                    let words = format!("case {case} is done with {tokens} tokens of {}", spec.tokens - spec.begin);
                    return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
                }
                self.tokens_told = tokens;
                self.take_at = self.take_at.or_else(&mut soon);
                *end = Some(End { at: now, failure: None });
            }
            Happening::Failed(failed) => {
                self.take_at = self.take_at.or_else(&mut soon);
                *end = Some(End { at: now, failure: Some(format!("{:?}: {}", failed.cause, failed.words)) });
            }
        }
        Ok(())
    }

    fn grant(&mut self, spec: &Case, stage: &mut Stage<'_>, seat: usize, random: &mut Random) -> Result<(), Violated> {
        let now = stage.world.now();
        let Some(tokens) = self.input.wanted() else {
            self.needs_memory = false;
            return Ok(());
        };
        let seat = &mut stage.seats[seat];
        let size = u64::from(seat.player().block_tokens);
        // What is here already of the first block is left out.
        let skip = if self.told.is_empty() && random.once_in(2) { spec.begin % size } else { 0 };
        let needed = usize::try_from((tokens + skip).div_ceil(size)).unwrap_or(usize::MAX).min(spec.leg_blocks);
        let blocks = match seat.take(needed, GRANTED, now)? {
            Some(blocks) => blocks,
            None => match self.input.no_memory(seat.free(now) as u32) {
                Ok(NoMemory::Take { blocks }) => match seat.take((blocks as usize).min(needed), GRANTED, now)? {
                    Some(blocks) => blocks,
                    None => return Ok(()),
                },
                _ => return Ok(()),
            },
        };
        // It may have ended since it was looked at.
        if self.input.grant_with(&blocks, skip as u32, None).is_ok() {
            (self.needs_memory, self.has_granted) = (false, true);
        }
        Ok(())
    }

    /// Copies out what has landed, and looks at every byte of it.
    fn assemble(
        &mut self,
        case: usize,
        spec: &Case,
        stage: &Stage<'_>,
        seat: usize,
        end: Option<&End>,
    ) -> Result<(), Violated> {
        let room = spec.tokens - spec.begin;
        let mut buffers: Vec<&mut [u8]> = self.layers.iter_mut().map(Vec::as_mut_slice).collect();
        if let Err(error) = self.input.assemble(&mut buffers, room) {
            return Err(end_error(format!("case {case}: what has landed is not assembled: {error}")));
        }
        let player = *stage.seats[seat].player();
        let (rows, sources) = (player.rows(), self.epochs.len() as u32);
        let mut there = 0;
        for token in 0..room {
            let mut found_rows = 0;
            for (layer, row) in (0..LAYERS).flat_map(|layer| (0..rows.count).map(move |row| (layer, row))) {
                let place = match player.has_planes && layer == 1 {
                    true => u64::from(row) * room + token,
                    false => token * u64::from(rows.count) + u64::from(row),
                };
                let at = place as usize * ROW_BYTES as usize;
                let found = &self.layers[layer][at..at + ROW_BYTES as usize];
                let row = rows.first + row;
                let epoch = self.epochs[(row * sources / rows.of) as usize];
                let is_right = |(place, found): (usize, &u8)| {
                    *found == byte(case, epoch, layer, spec.begin + token, row, place as u32)
                };
                if found.iter().enumerate().all(is_right) {
                    found_rows += 1;
                } else if found.iter().any(|&byte| byte != EMPTY) {
                    let token = spec.begin + token;
                    let words = format!("case {case} has {found:02x?} for row {row} of token {token} in layer {layer}");
                    return Err(Violated::new(blame(found), words));
                }
            }
            there += u64::from(found_rows == rows.count as usize * LAYERS);
        }
        let is_whole = end.is_some_and(|end| end.failure.is_none());
        if there < self.tokens_told || (is_whole && there < room) {
            let words = format!("case {case} was told of {} tokens, and {there} of {room} are there", self.tokens_told);
            return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
        }
        Ok(())
    }
}
