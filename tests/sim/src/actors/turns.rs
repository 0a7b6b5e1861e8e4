//! The applications of turns that go on from others: who computes one, who has one, and what is kept of it.
//!
//! What a turn may have of its parent is known when it asks: whether the parent is another's, still runs, is kept, or was. Every byte of a
//! turn says whose it is: the parent's where it was inherited, its own where it was sent.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock::flows::{
    Group, Inherited, Inheriting, InheritingFrom, Input, InputEvent, Isolation, Miss, Output, Parent, ParentBlocks,
    PinKey, PinSettings, Pins, Receive, RequestId, Send, TransferId,
};
use penstock::{Blocks, Peer, Timestamp};

use super::UUID;
use crate::calls;
use crate::deed::Script;
use crate::env::SimEnv;
use crate::leases::{LeaseWatch, Talk};
use crate::oracle::{GRANTED, Invariant, UNREADY, Violated, blame, byte};
use crate::run::KNOWN_WITHIN;
use crate::stage::{LAYERS, ROW_BYTES, Seat, Stage};
use crate::turns::{Step, Turn};

/// Cases and chunks have other numbers.
const TURNS: usize = 1 << 14;
/// Within this a pin may be over by one clock and not by another.
const ABOUT: Duration = Duration::from_millis(2);
/// A lease on blocks that are kept stands for so long if nobody renews it.
const LEASE: Duration = Duration::from_secs(2);

/// All turns of a run.
#[derive(Default)]
pub struct Turns {
    speakers: Vec<Speaker>,
    computers: Vec<Computer>,
    /// What is, or was, kept of turns that have ended.
    kept: BTreeMap<usize, Kept>,
    /// Turns that run where others may go on from them.
    running: BTreeMap<usize, usize>,
    /// What engines have lent of what they keep.
    leases: BTreeMap<usize, LeaseWatch>,
}

/// What is kept of a turn.
struct Kept {
    key: PinKey,
    /// Who computed it.
    epoch: u64,
    /// In which life of its engine.
    life: u32,
    blocks: Vec<u32>,
    since: Timestamp,
    until: Timestamp,
    /// It was let go before its time.
    is_let_go: bool,
}

/// Who computes a turn.
struct Computer {
    turn: usize,
    seat: usize,
    life: u32,
    spec: Turn,
    begun: Timestamp,
    output: Option<Output<SimEnv>>,
    end: Option<bool>,
    is_gone: bool,
}

/// Who has a turn.
struct Speaker {
    turn: usize,
    seat: usize,
    life: u32,
    spec: Turn,
    /// Its parent, if it has one.
    of: Turn,
    begun: Timestamp,
    phase: Phase,
    /// Its transfer was taken in, and ended so.
    is_admitted: bool,
    end: Option<bool>,
    is_gone: bool,
}

enum Phase {
    Waiting,
    /// It waits for a parent that runs here.
    Inheriting(Inheriting<SimEnv>, Timestamp),
    /// It reads of a parent on another engine.
    Reading(InheritingFrom<SimEnv>, Peer<SimEnv>, Blocks, Timestamp),
    /// It knows what it has, and asks for the rest.
    Asking(Had),
    Receiving(Had, Input<SimEnv>, Timestamp),
    /// It has everything, until then.
    Holding(Had, Timestamp),
}

/// What a turn has of its parent, and its own.
struct Had {
    inherited: Option<Inherited<SimEnv>>,
    /// How many tokens there are before the first one that is to come.
    begin: u64,
    /// Its own blocks, one by one, but for those that were granted in one.
    own: Vec<Blocks>,
    /// Who computed its parent, and who computes the rest.
    epochs: (u64, u64),
}

impl Had {
    /// All its blocks, by their tokens.
    fn blocks(&self) -> Vec<u32> {
        let inherited = self.inherited.iter().flat_map(|inherited| inherited.groups()[0].iter().copied());
        inherited.chain(self.own.iter().flat_map(|blocks| blocks.indices().iter().copied())).collect()
    }
}

fn request(turn: usize, who: &str) -> RequestId {
    RequestId::new(&format!("turn {turn} {who}")).expect("the text is short")
}

fn isolation(domain: u8) -> Isolation {
    Isolation { tenant: [1 + domain; 16], ..Isolation::default() }
}

fn blob(turn: usize) -> Vec<u8> {
    format!("tokens of turn {turn}").into_bytes()
}

/// What a seat keeps of turns that have ended.
fn pins(seat: &Seat) -> Pins<SimEnv> {
    seat.node().expect("it lives").pins(0, PinSettings::default()).expect("they are opened in one way only")
}

fn violated(turn: usize, invariant: Invariant, words: &str) -> Violated {
    Violated::new(invariant, format!("turn {turn}: {words}"))
}

impl Turns {
    /// A step of a turn.
    pub fn act(&mut self, script: &Script, turn: usize, step: Step, stage: &mut Stage<'_>) {
        let (spec, now) = (script.turns[turn], stage.world.now());
        match step {
            Step::Begin => {
                let seat = &stage.seats[spec.at];
                let (life, is_gone) = (seat.life, seat.node().is_none());
                let (phase, begun) = (Phase::Waiting, now);
                let speaker = Speaker {
                    turn,
                    seat: spec.at,
                    life,
                    spec,
                    of: script.turns[spec.parent.unwrap_or(turn)],
                    begun,
                    phase,
                    is_admitted: false,
                    end: None,
                    is_gone,
                };
                self.speakers.push(speaker);
            }
            Step::Compute => {
                let seat = &stage.seats[spec.from];
                let (life, is_gone) = (seat.life, seat.node().is_none());
                let computer =
                    Computer { turn, seat: spec.from, life, spec, begun: now, output: None, end: None, is_gone };
                self.computers.push(computer);
            }
            Step::Unpin => {
                let seat = &stage.seats[spec.at];
                if let Some(kept) = self.kept.get_mut(&turn).filter(|kept| kept.life == seat.life && seat.is_awake()) {
                    pins(seat).unpin(kept.key).expect("its engine lives");
                    kept.is_let_go = true;
                }
            }
            Step::Drop => {
                let its = self.speakers.iter_mut().filter(|speaker| speaker.turn == turn);
                its.for_each(|speaker| speaker.drops(&mut self.running, stage));
            }
        }
    }

    /// An engine has died, with all that its applications had.
    pub fn die(&mut self, player: usize) {
        for speaker in self.speakers.iter_mut().filter(|speaker| speaker.seat == player) {
            (speaker.phase, speaker.is_gone) = (Phase::Waiting, true);
        }
        for computer in self.computers.iter_mut().filter(|computer| computer.seat == player) {
            (computer.output, computer.is_gone) = (None, true);
        }
        self.running.retain(|_, at| *at != player);
    }

    /// Nobody has anything left to do.
    pub fn are_over(&self) -> bool {
        self.speakers.iter().all(|speaker| speaker.is_gone) && self.computers.iter().all(|computer| computer.is_gone)
    }

    /// Applications look, those whose turn it is.
    pub fn turn(
        &mut self,
        is_calm: bool,
        stage: &mut Stage<'_>,
        mut is_its_turn: impl FnMut() -> bool,
    ) -> Result<(), Violated> {
        for computer in &mut self.computers {
            if !computer.is_gone && stage.seats[computer.seat].is_awake() && is_its_turn() {
                computer.turn(stage)?;
            }
        }
        for speaker in &mut self.speakers {
            if !speaker.is_gone && stage.seats[speaker.seat].is_awake() && is_its_turn() {
                speaker.turn(&mut self.kept, &mut self.running, is_calm, stage)?;
            }
        }
        Ok(())
    }

    /// What engines have lent of what they keep ends by their clocks, when nobody who reads of it is heard any more.
    pub fn watch_leases(&mut self, script: &Script, stage: &Stage<'_>) -> Result<(), Violated> {
        // Who lends blocks of transfers as well does not say how many of which.
        if !script.cases.is_empty() {
            return Ok(());
        }
        let now = stage.world.now();
        for (lender, seat) in stage.seats.iter().enumerate() {
            let Some(node) = seat.node() else {
                self.leases.remove(&lender);
                continue;
            };
            let reads = |speaker: &&Speaker| {
                let parent = speaker.spec.parent.map(|parent| script.turns[parent].at);
                parent == Some(lender) && speaker.seat != lender
            };
            if !self.speakers.iter().any(|speaker| reads(&speaker)) {
                continue;
            }
            if node.control_metrics().lent == 0 {
                self.leases.remove(&lender);
                continue;
            }
            let host = seat.player().host;
            // An engine that was started anew reads nothing of what its former life had asked for.
            let readers = self.speakers.iter().filter(reads).map(|speaker| (speaker, &stage.seats[speaker.seat]));
            let mut readers =
                readers.filter(|(speaker, reader)| reader.life == speaker.life && reader.is_awake()).peekable();
            let there = |reader: &Seat| reader.player().host;
            let is_reader_heard = readers.clone().any(|(_, reader)| stage.world.passes(there(reader), host));
            let is_lender_heard = readers.any(|(_, reader)| stage.world.passes(host, there(reader)));
            let watch = self.leases.entry(lender).or_insert_with(|| LeaseWatch::new(LEASE));
            watch.lent(now);
            watch.stands(Talk { is_lender_awake: seat.is_awake(), is_reader_heard, is_lender_heard }, now)?;
        }
        Ok(())
    }

    /// The requests of transfers that an engine was given in this life, and how they ended as far as it was looked.
    pub fn ended_at(&self, player: usize, life: u32) -> Vec<(RequestId, Option<bool>)> {
        let here = |seat: usize, of: u32| seat == player && of == life;
        let speakers = self.speakers.iter().filter(|speaker| here(speaker.seat, speaker.life) && speaker.is_admitted);
        let computers =
            self.computers.iter().filter(|its| here(its.seat, its.life) && (its.output.is_some() || its.end.is_some()));
        let speakers = speakers.map(|speaker| (request(speaker.turn, "here"), speaker.end));
        speakers.chain(computers.map(|its| (request(its.turn, "computed"), its.end))).collect()
    }

    /// How many ended well, and how many did not.
    pub fn outcomes(&self) -> impl Iterator<Item = bool> + '_ {
        let ends = self.speakers.iter().map(|speaker| speaker.end);
        ends.chain(self.computers.iter().map(|computer| computer.end)).flatten()
    }

    /// Where nothing went wrong, a turn that was begun and computed has all its tokens.
    pub fn check_well(&self) -> Result<(), Violated> {
        for speaker in &self.speakers {
            let Some(computer) = self.computers.iter().find(|computer| computer.turn == speaker.turn) else { continue };
            if computer.begun.since(speaker.begun) > KNOWN_WITHIN / 2 {
                continue;
            }
            if speaker.end != Some(true) || computer.end != Some(true) {
                let words = format!("nothing hinders it, and it is {:?} here, {:?} there", speaker.end, computer.end);
                return Err(violated(speaker.turn, Invariant::AnswersComeInTime, &words));
            }
        }
        Ok(())
    }
}

impl Computer {
    fn turn(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if let Some(output) = &self.output {
            if let Some(result) = output.poll() {
                self.end = Some(result.is_ok());
                (self.output, self.is_gone) = (None, true);
            } else if now > stage.disturbed.max(self.begun + self.spec.within) + 2 * KNOWN_WITHIN {
                return Err(violated(self.turn, Invariant::AnswersComeInTime, "is computed, and does not end"));
            }
            return Ok(());
        }
        if now >= self.begun + self.spec.within {
            self.is_gone = true;
            return Ok(());
        }
        let Turn { tokens, within, .. } = self.spec;
        let seat = &mut stage.seats[self.seat];
        let size = u64::from(seat.player().block_tokens);
        let Some(blocks) = seat.take(tokens.div_ceil(size) as usize, UNREADY, now)? else { return Ok(()) };
        let (node, layout) = (seat.node().expect("it lives"), seat.layout().expect("it lives"));
        for token in 0..tokens {
            let block = blocks.indices()[(token / size) as usize];
            for (layer, row) in rows_of(seat) {
                let number = seat.player().rows().first + row;
                let bytes: [u8; ROW_BYTES as usize] = std::array::from_fn(|place| {
                    byte(TURNS + self.turn, node.epoch().0, layer, token, number, place as u32)
                });
                seat.write_row((block, layer), (token % size) as u32, row, &bytes);
            }
        }
        let transfer = TransferId::mint(UUID, (TURNS + self.turn) as u32, 0).expect("the text is a UUID");
        let output = node.produce(transfer, &request(self.turn, "computed"), Send::from(layout).within(within));
        let output = output.map_err(|error| violated(self.turn, Invariant::OneEndEach, &error.to_string()))?;
        // It may have ended since.
        let _ = output.chunk(&blocks, tokens, true);
        self.output = Some(output);
        Ok(())
    }
}

/// All rows of a token of a seat: in which layer, and which row of it.
fn rows_of(seat: &Seat) -> impl Iterator<Item = (usize, u32)> + use<> {
    let count = seat.player().rows().count;
    (0..LAYERS).flat_map(move |layer| (0..count).map(move |row| (layer, row)))
}

fn check_bytes(
    seat: &Seat,
    blocks: &[u32],
    tokens: std::ops::Range<u64>,
    (turn, epoch): (usize, u64),
) -> Result<(), Violated> {
    let size = u64::from(seat.player().block_tokens);
    let mut wrong = None;
    for token in tokens {
        let block = blocks[(token / size) as usize];
        for (layer, row) in rows_of(seat) {
            let found = seat.read_row((block, layer), (token % size) as u32, row);
            let row = seat.player().rows().first + row;
            let is_right =
                (0..).zip(&found).all(|(place, found)| *found == byte(TURNS + turn, epoch, layer, token, row, place));
            if !is_right {
                wrong.get_or_insert((token, layer, row, found));
            }
        }
    }
    match wrong {
        None => Ok(()),
        Some((token, layer, row, found)) => {
            let words = format!("{found:02x?} is row {row} of token {token} in layer {layer}");
            Err(violated(turn, blame(&found), &words))
        }
    }
}

impl Speaker {
    fn violated(&self, invariant: Invariant, words: impl AsRef<str>) -> Violated {
        violated(self.turn, invariant, words.as_ref())
    }

    fn drops(&mut self, running: &mut BTreeMap<usize, usize>, stage: &Stage<'_>) {
        if self.is_gone {
            return;
        }
        self.stops_running(running, stage);
        (self.phase, self.is_gone) = (Phase::Waiting, true);
    }

    /// Nobody goes on from it any more.
    fn stops_running(&self, running: &mut BTreeMap<usize, usize>, stage: &Stage<'_>) {
        if running.remove(&self.turn).is_some() && stage.seats[self.seat].node().is_some() {
            pins(&stage.seats[self.seat]).ended(&request(self.turn, "here")).expect("its engine lives");
        }
    }

    fn turn(
        &mut self,
        kept: &mut BTreeMap<usize, Kept>,
        running: &mut BTreeMap<usize, usize>,
        is_calm: bool,
        stage: &mut Stage<'_>,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        let phase = std::mem::replace(&mut self.phase, Phase::Waiting);
        self.phase = match phase {
            Phase::Waiting => self.begin(kept, running, stage)?,
            Phase::Inheriting(mut asks, until) => match asks.poll() {
                Some(given) => {
                    self.check_waited(given.as_ref().err(), kept, until)?;
                    self.inherits(given, kept, stage)?
                }
                None => self.waits_for(Phase::Inheriting(asks, until), until, stage)?,
            },
            Phase::Reading(mut asks, peer, own, until) => match asks.poll() {
                Some(given) => {
                    drop(asks);
                    if given == Err(Miss::PeerLost) && peer.ended().is_none() {
                        let words = "its parent's engine is said to be gone, and the session with it stands";
                        return Err(self.violated(Invariant::AnswersComeInTime, words));
                    }
                    self.has_read(given, own, kept, is_calm, stage)?
                }
                None => self.waits_for(Phase::Reading(asks, peer, own, until), until, stage)?,
            },
            Phase::Asking(had) => self.ask(had, stage)?,
            Phase::Receiving(had, input, until) => self.receive(had, input, until, kept, running, stage)?,
            Phase::Holding(had, until) if now < until => Phase::Holding(had, until),
            Phase::Holding(had, _) => {
                self.check(&had, self.spec.tokens, stage)?;
                self.is_gone = true;
                Phase::Waiting
            }
        };
        // Who does not get what it needs gives up.
        if matches!(self.phase, Phase::Waiting | Phase::Asking(_)) && now >= self.begun + self.spec.within {
            self.drops(running, stage);
        }
        Ok(())
    }

    fn waits_for(&self, phase: Phase, until: Timestamp, stage: &Stage<'_>) -> Result<Phase, Violated> {
        if stage.world.now() > until.max(stage.disturbed) + KNOWN_WITHIN {
            return Err(self.violated(Invariant::AnswersComeInTime, "has asked for its parent, and has no answer"));
        }
        Ok(phase)
    }

    /// Who waits for a parent hears of its end.
    fn check_waited(
        &self,
        miss: Option<&Miss>,
        kept: &BTreeMap<usize, Kept>,
        until: Timestamp,
    ) -> Result<(), Violated> {
        let its = self.spec.parent.and_then(|parent| kept.get(&parent)).filter(|kept| kept.life == self.life);
        match its {
            Some(kept) if miss == Some(&Miss::Running) && kept.since + ABOUT < until => {
                Err(self.violated(Invariant::AnswersComeInTime, "its parent is kept, and it was told that it runs"))
            }
            _ => Ok(()),
        }
    }

    /// Begins: says that it runs, or asks for its parent.
    fn begin(
        &mut self,
        kept: &mut BTreeMap<usize, Kept>,
        running: &mut BTreeMap<usize, usize>,
        stage: &mut Stage<'_>,
    ) -> Result<Phase, Violated> {
        let now = stage.world.now();
        let (its, own) = (isolation(self.spec.domain), request(self.turn, "here"));
        let Some(parent) = self.spec.parent else {
            pins(&stage.seats[self.seat]).runs(&own, &its).expect("few requests run");
            running.insert(self.turn, self.seat);
            return Ok(Phase::Asking(Had { inherited: None, begin: 0, own: Vec::new(), epochs: (0, 0) }));
        };
        let at = self.of.at;
        let name = request(parent, "here");
        if at == self.seat {
            let pins = pins(&stage.seats[self.seat]);
            self.check_blob(&pins, kept.get(&parent).filter(|kept| kept.life == self.life), parent)?;
            if !self.spec.waits.is_zero() {
                let asks = pins.inherit_begin(&name, &its, &own, self.spec.tokens, self.spec.waits);
                return Ok(Phase::Inheriting(asks.expect("its engine lives"), now + self.spec.waits));
            }
            let given = pins.inherit(&name, &its, &own, self.spec.tokens).expect("its engine lives");
            self.check_given(&given, kept.get(&parent), running.contains_key(&parent), stage)?;
            return self.inherits(given, kept, stage);
        }
        let Some(peer) = stage.meet(self.seat, at)? else { return Ok(Phase::Waiting) };
        let seat = &mut stage.seats[self.seat];
        let size = u64::from(seat.player().block_tokens);
        let Some(blocks) = seat.take(self.spec.tokens.div_ceil(size) as usize, GRANTED, now)? else {
            return Ok(Phase::Waiting);
        };
        let into = (seat.layout().expect("it lives"), &blocks);
        let asks = pins(seat).inherit_from_begin(&peer, (&name, &its), self.spec.tokens, into, self.spec.within);
        Ok(Phase::Reading(asks.expect("its engine lives"), peer, blocks, now + self.spec.within))
    }

    /// What a parent's application has left is told to its own, and to nobody else.
    fn check_blob(&self, pins: &Pins<SimEnv>, kept: Option<&Kept>, parent: usize) -> Result<(), Violated> {
        let is_own = self.of.domain == self.spec.domain;
        let found = pins.blob(&request(parent, "here"), &isolation(self.spec.domain)).expect("its engine lives");
        let found = found.map(|found| found.bytes);
        let right = kept.filter(|_| is_own).map(|_| blob(parent));
        if found != right {
            return Err(self.violated(Invariant::BytesAreTheirOwn, format!("{found:?} was left by {parent}")));
        }
        Ok(())
    }

    /// So many tokens a turn can have of its parent, in whole blocks of this size.
    fn whole(&self, size: u64) -> u64 {
        let most = self.of.tokens.min(self.spec.tokens - 1);
        most - most % size
    }

    /// What is here is given, to its own, in whole blocks; and what is not is not, for the right reason.
    fn check_given(
        &self,
        given: &Result<Inherited<SimEnv>, Miss>,
        kept: Option<&Kept>,
        is_running: bool,
        stage: &Stage<'_>,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        let parent = self.spec.parent.unwrap_or_default();
        let is_own = self.of.domain == self.spec.domain;
        let size = u64::from(stage.seats[self.seat].player().block_tokens);
        let whole = self.whole(size);
        let kept = kept.filter(|kept| kept.life == self.life);
        let stands = if whole == 0 { Err(Miss::NothingWhole) } else { Ok(whole) };
        let right: Vec<Result<u64, Miss>> = match kept {
            _ if !is_own => vec![Err(Miss::NoParent)],
            Some(kept) if kept.is_let_go || now > kept.until + ABOUT => vec![Err(Miss::Expired)],
            Some(kept) if now + ABOUT < kept.until => vec![stands],
            Some(_) => vec![stands, Err(Miss::Expired)],
            None if is_running => vec![Err(Miss::Running)],
            None => vec![Err(Miss::NoParent)],
        };
        let found = given.as_ref().map(Inherited::tokens).map_err(|miss| *miss);
        if !right.contains(&found) {
            let invariant = match (found, kept) {
                (Ok(_), _) if !is_own => Invariant::BytesAreTheirOwn,
                (_, Some(_)) if whole != 0 => Invariant::LeasesEndByTheLender,
                _ => Invariant::BytesAreTheirOwn,
            };
            return Err(self.violated(invariant, format!("{found:?} is there of {parent}, and not {right:?}")));
        }
        Ok(())
    }

    /// It has an answer from here.
    fn inherits(
        &mut self,
        given: Result<Inherited<SimEnv>, Miss>,
        kept: &BTreeMap<usize, Kept>,
        stage: &Stage<'_>,
    ) -> Result<Phase, Violated> {
        let parent = self.spec.parent.unwrap_or_default();
        let Ok(inherited) = given else {
            return Ok(Phase::Asking(Had { inherited: None, begin: 0, own: Vec::new(), epochs: (0, 0) }));
        };
        let size = u64::from(stage.seats[self.seat].player().block_tokens);
        let (whole, its) = (self.whole(size), kept.get(&parent).filter(|kept| kept.life == self.life));
        let is_own = self.of.domain == self.spec.domain;
        let reach = self.of.tokens.min(self.spec.tokens - 1);
        let is_right = its.is_some_and(|kept| {
            inherited.groups()[..] == [kept.blocks[..(whole / size) as usize].to_vec()]
                && (inherited.tokens(), inherited.tail_tokens()) == (whole, reach - whole)
        });
        let Some(kept) = its.filter(|_| is_right && is_own) else {
            let words = format!("{} tokens in {:?} of {parent}", inherited.tokens(), inherited.groups());
            return Err(self.violated(Invariant::BytesAreTheirOwn, words));
        };
        let begin = inherited.begin();
        let had = Had { inherited: Some(inherited), begin, own: Vec::new(), epochs: (kept.epoch, 0) };
        self.check(&had, begin, stage)?;
        Ok(Phase::Asking(had))
    }

    /// It has read what it can have of another engine, or not.
    fn has_read(
        &mut self,
        given: Result<u64, Miss>,
        own: Blocks,
        kept: &BTreeMap<usize, Kept>,
        is_calm: bool,
        stage: &Stage<'_>,
    ) -> Result<Phase, Violated> {
        let parent = self.spec.parent.unwrap_or_default();
        let lender = &stage.seats[self.of.at];
        let whole = self.whole(u64::from(lender.player().block_tokens));
        let is_own = self.of.domain == self.spec.domain;
        let kept = kept.get(&parent);
        let mut had = Had { inherited: None, begin: 0, own: split(&own), epochs: (0, 0) };
        match (given, kept) {
            (Ok(tokens), Some(kept)) if is_own && tokens == whole => {
                (had.begin, had.epochs.0) = (tokens, kept.epoch);
                self.check(&had, tokens, stage)?;
            }
            (Ok(tokens), _) => {
                let words = format!("{tokens} tokens of {parent} were lent to it");
                return Err(self.violated(Invariant::BytesAreTheirOwn, words));
            }
            (Err(miss), Some(kept)) => {
                let stood = kept.since <= self.begun && stage.world.now() + ABOUT < kept.until && !kept.is_let_go;
                if is_calm && is_own && stood && whole > 0 {
                    let words = format!("{parent} is kept, nothing hinders it, and it is {miss:?}");
                    return Err(self.violated(Invariant::LeasesEndByTheLender, words));
                }
            }
            (Err(_), None) => {}
        }
        Ok(Phase::Asking(had))
    }

    /// Takes what it needs beside what it has, and asks for what is to come.
    fn ask(&mut self, mut had: Had, stage: &mut Stage<'_>) -> Result<Phase, Violated> {
        let now = stage.world.now();
        let Some(peer) = stage.meet(self.seat, self.spec.from)? else { return Ok(Phase::Asking(had)) };
        let Turn { tokens, within, copies_tail, .. } = self.spec;
        let seat = &mut stage.seats[self.seat];
        let size = u64::from(seat.player().block_tokens);
        if had.own.is_empty() {
            let Some(own) = seat.take((tokens - had.begin).div_ceil(size) as usize, GRANTED, now)? else {
                return Ok(Phase::Asking(had));
            };
            if let Some(inherited) = had.inherited.as_ref().filter(|_| copies_tail) {
                let copied = inherited.copy_tail(&[(seat.layout().expect("it lives"), &own)]);
                let copied = copied.map_err(|error| self.violated(Invariant::OneEndEach, error.to_string()))?;
                if (copied, inherited.begin()) != (inherited.tail_tokens(), inherited.tokens() + copied) {
                    return Err(self.violated(Invariant::BytesAreTheirOwn, format!("{copied} tokens were copied")));
                }
                had.begin = inherited.begin();
            }
            had.own = split(&own);
            let begin = had.begin;
            self.check(&had, begin, stage)?;
        }
        self.receive_from(had, &peer, within, stage)
    }

    fn receive_from(
        &mut self,
        mut had: Had,
        peer: &Peer<SimEnv>,
        within: Duration,
        stage: &Stage<'_>,
    ) -> Result<Phase, Violated> {
        let seat = &stage.seats[self.seat];
        let size = u64::from(seat.player().block_tokens);
        let how = Receive::into(seat.layout().expect("it lives")).from(0, peer).within(within);
        let how = match &had.inherited {
            Some(inherited) => how.continuation_of(inherited),
            None => how.begin(had.begin),
        };
        let transfer = TransferId::mint(UUID, (TURNS + self.turn) as u32, 0).expect("the text is a UUID");
        let node = seat.node().expect("it lives");
        let input = match node.consume(transfer, &request(self.turn, "here"), how) {
            Ok(input) => input,
            Err(error) => {
                calls::check_session(&error, peer, &format!("turn {}", self.turn))?;
                return Ok(Phase::Asking(had));
            }
        };
        self.is_admitted = true;
        had.epochs.1 = peer.epoch().0;
        // What was read stands in the first of its own blocks, what was inherited does not.
        let first = had.begin - had.inherited.as_ref().map_or(0, Inherited::tokens);
        let rest = had.own.split_off((first / size) as usize);
        let backwards = joined(&rest.iter().rev().cloned().collect::<Vec<_>>());
        let rest = joined(&rest);
        let has_tail = !first.is_multiple_of(size) && had.inherited.is_some();
        if has_tail && rest.len() > 1 && input.grant_with(&backwards, (first % size) as u32, None).is_ok() {
            let words = format!("a first grant may begin with another block than the one with {} tokens", first % size);
            return Err(self.violated(Invariant::BytesAreTheirOwn, words));
        }
        if has_tail && input.grant(&rest).is_ok() {
            let words = format!("a first grant may write over {} tokens that were copied", first % size);
            return Err(self.violated(Invariant::BytesAreTheirOwn, words));
        }
        // It may have ended since.
        let _ = input.grant_with(&rest, (first % size) as u32, None);
        had.own.push(rest);
        Ok(Phase::Receiving(had, input, stage.world.now() + within))
    }

    fn receive(
        &mut self,
        had: Had,
        input: Input<SimEnv>,
        until: Timestamp,
        kept: &mut BTreeMap<usize, Kept>,
        running: &mut BTreeMap<usize, usize>,
        stage: &Stage<'_>,
    ) -> Result<Phase, Violated> {
        let now = stage.world.now();
        while let Some(event) = input.try_next() {
            match event {
                InputEvent::Done { tokens } => {
                    self.end = Some(true);
                    if tokens != self.spec.tokens - had.begin {
                        let words = format!("{tokens} tokens came behind {} of {}", had.begin, self.spec.tokens);
                        return Err(self.violated(Invariant::ToldOnceAfterBytes, words));
                    }
                    self.check(&had, self.spec.tokens, stage)?;
                    if self.spec.parent.is_none() {
                        self.keep(&had, kept, running, stage)?;
                    }
                    return Ok(Phase::Holding(had, now + self.spec.holds));
                }
                InputEvent::Failed(_) => {
                    self.end = Some(false);
                    self.check(&had, had.begin, stage)?;
                    self.stops_running(running, stage);
                    self.is_gone = true;
                    return Ok(Phase::Waiting);
                }
                _ => {}
            }
        }
        if now > until.max(stage.disturbed) + KNOWN_WITHIN {
            return Err(self.violated(Invariant::AnswersComeInTime, "does not end"));
        }
        Ok(Phase::Receiving(had, input, until))
    }

    /// It has ended, and others may go on from it: its blocks are kept before any of them can be free.
    fn keep(
        &self,
        had: &Had,
        kept: &mut BTreeMap<usize, Kept>,
        running: &mut BTreeMap<usize, usize>,
        stage: &Stage<'_>,
    ) -> Result<(), Violated> {
        let (seat, now) = (&stage.seats[self.seat], stage.world.now());
        let blocks = had.blocks();
        let group = Group {
            block_tokens: seat.player().block_tokens,
            computed: self.spec.tokens,
            block_bytes: seat.pool().expect("it lives").memory().block_bytes(),
            blocks: blocks.clone(),
            ..Group::of(&had.own[0])
        };
        let parent = Parent {
            request: request(self.turn, "here"),
            isolation: isolation(self.spec.domain),
            groups: vec![group],
            blob: blob(self.turn),
        };
        let own: Vec<&Blocks> = had.own.iter().collect();
        let layout = seat.layout().expect("it lives");
        if pins(seat).pin_for_all(parent.clone(), layout, &own[1..], self.spec.kept).is_ok() {
            return Err(self.violated(Invariant::BytesAreTheirOwn, "blocks are lent of which nobody has a handle"));
        }
        let key = pins(seat).pin_for_all(parent, layout, &own, self.spec.kept);
        let key = key.map_err(|error| self.violated(Invariant::OneEndEach, error.to_string()))?;
        running.remove(&self.turn);
        let (epoch, life, since, until) = (had.epochs.1, self.life, now, now + self.spec.kept);
        kept.insert(self.turn, Kept { key, epoch, life, blocks, since, until, is_let_go: false });
        Ok(())
    }

    /// Looks at the first tokens of it: those before the first one that was to come are its parent's, the others its own.
    fn check(&self, had: &Had, tokens: u64, stage: &Stage<'_>) -> Result<(), Violated> {
        let (seat, blocks) = (&stage.seats[self.seat], had.blocks());
        if let Some(parent) = self.spec.parent {
            check_bytes(seat, &blocks, 0..had.begin.min(tokens), (parent, had.epochs.0))?;
        }
        check_bytes(seat, &blocks, had.begin.min(tokens)..tokens, (self.turn, had.epochs.1))
    }
}

/// The blocks of a handle one by one, in their order.
fn split(blocks: &Blocks) -> Vec<Blocks> {
    (0..blocks.len()).map(|at| blocks.slice(at..at + 1).expect("it has as many")).collect()
}

/// One handle of several blocks.
fn joined(blocks: &[Blocks]) -> Blocks {
    let (first, others) = blocks.split_first().expect("a turn has tokens that are to come");
    others.iter().fold(first.clone(), |all, next| all.chain(next).expect("they are of one pool"))
}
