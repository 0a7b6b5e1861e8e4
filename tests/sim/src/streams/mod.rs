//! Streams of chunks and joins between stages: what happens to them, and what has to hold.
//!
//! - [`spec`]: what there is, and what happens; `scenes` makes it from the seed
//! - `content`: what is put, byte for byte
//! - `putting`, `reading`: the two ends of a stream; `joining`: a join and its sources; `taking`: a chunk that is fetched
//! - `wait`: what ends once and in time

mod content;
mod joining;
mod putting;
mod reading;
mod scenes;
pub mod spec;
mod taking;
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock::Timestamp;

use crate::deed::{HEARTBEAT, Script};
use crate::oracle::{Invariant, Violated};
use crate::random::Random;
use crate::run::{KNOWN_WITHIN, TURN_ONCE_IN};
use crate::stage::Stage;
use content::Logs;
use joining::{Given, Giver, Joiner};
use putting::Putter;
use reading::Reader;
use spec::{GivenUp, Step, joined, streamed};

/// What may take this long comes to its end where nothing hinders it.
const AMPLE: Duration = Duration::from_secs(1);

/// What is known of the deeds of a run, before it begins.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// Everything is as it should be.
    pub is_calm: bool,
    /// Everybody can be heard at all times.
    pub is_audible: bool,
    /// No session breaks.
    pub is_whole: bool,
}

/// All applications that have to do with streams and joins.
pub struct Streams<'s> {
    script: &'s Script,
    outlook: Outlook,
    putters: Vec<Putter>,
    readers: Vec<Reader>,
    givers: Vec<Giver>,
    joiners: Vec<Joiner>,
    logs: Logs,
    given: Given,
    /// Requests that were given up, by which player first, and when.
    aborted: BTreeMap<GivenUp, (usize, Timestamp)>,
}

impl<'s> Streams<'s> {
    /// Nobody yet.
    pub fn new(script: &'s Script, outlook: Outlook) -> Self {
        let (putters, readers, givers, joiners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (logs, given, aborted) = (Logs::new(), Given::new(), BTreeMap::new());
        Self { script, outlook, putters, readers, givers, joiners, logs, given, aborted }
    }

    /// Something happens.
    pub fn act(&mut self, step: Step, stage: &mut Stage<'_>) {
        let now = stage.world.now();
        match step {
            Step::Open { stream } => self.putters.push(Putter::new(self.script, stream, stage)),
            Step::Next { stream, .. } | Step::Finish { stream } | Step::Fail { stream } | Step::Leave { stream } => {
                let its = self.putters.iter_mut().filter(|putter| putter.stream == stream);
                its.for_each(|putter| putter.feed(step, now));
            }
            Step::Read { reading } => self.readers.push(Reader::new(self.script, reading, stage)),
            Step::Stop { reading } => {
                let its = self.readers.iter_mut().filter(|reader| reader.reading == reading);
                let awake = its.filter(|reader| stage.seats[reader.spec.player].is_awake());
                awake.for_each(|reader| reader.stop(stage));
            }
            Step::Abort { what, player } => {
                if stage.seats[player].is_awake() {
                    stage.give_up(player, &what.name());
                    self.aborted.entry(what).or_insert((player, now));
                }
            }
            Step::Join { join } => self.joiners.push(Joiner::new(self.script, join, stage)),
            Step::Give { join, source, bytes } => {
                self.givers.push(Giver::new(self.script, join, source, bytes, stage));
            }
            Step::Withdraw { join, source } => {
                let its = self.givers.iter_mut().filter(|giver| (giver.join, giver.source) == (join, source));
                for giver in its.filter(|giver| stage.seats[giver.seat].is_awake()) {
                    giver.has_withdrawn = true;
                    giver.forget();
                }
            }
            Step::Unjoin { join } => {
                let its = self.joiners.iter_mut().filter(|joiner| joiner.join == join);
                for joiner in its.filter(|joiner| stage.seats[joiner.seat()].is_awake()) {
                    joiner.forget();
                }
            }
        }
    }

    /// An engine has died: its handles go.
    pub fn crashed(&mut self, player: usize, now: Timestamp) {
        for putter in self.putters.iter_mut().filter(|putter| putter.seat == player) {
            putter.forget(&mut self.logs, now);
        }
        self.readers.iter_mut().filter(|reader| reader.spec.player == player).for_each(Reader::forget);
        self.givers.iter_mut().filter(|giver| giver.seat == player).for_each(Giver::forget);
        self.joiners.iter_mut().filter(|joiner| joiner.seat() == player).for_each(Joiner::forget);
    }

    /// Applications look, whoever's turn it is.
    pub fn turn(&mut self, stage: &mut Stage<'_>, random: &mut Random) -> Result<(), Violated> {
        let mut has_turn =
            |seat: usize, stage: &Stage<'_>| stage.seats[seat].is_awake() && random.once_in(TURN_ONCE_IN);
        for at in 0..self.putters.len() {
            if !self.putters[at].is_gone && has_turn(self.putters[at].seat, stage) {
                self.putters[at].turn(&mut self.logs, stage)?;
                self.check_put(&self.putters[at], stage)?;
            }
        }
        for reader in self.readers.iter_mut().filter(|reader| !reader.is_gone) {
            if has_turn(reader.spec.player, stage) {
                reader.turn(self.script, &self.logs, stage)?;
            }
        }
        for giver in self.givers.iter_mut().filter(|giver| !giver.is_gone) {
            if has_turn(giver.seat, stage) {
                giver.turn(&mut self.given, stage)?;
            }
        }
        for joiner in self.joiners.iter_mut().filter(|joiner| !joiner.is_gone) {
            if has_turn(joiner.seat(), stage) {
                joiner.turn(&self.given, stage)?;
            }
        }
        Ok(())
    }

    /// A chunk has ended well only when each of its readers has it.
    fn check_put(&self, putter: &Putter, stage: &Stage<'_>) -> Result<(), Violated> {
        let request = self.script.streams[putter.stream].request;
        for put in putter.puts.iter().filter(|put| put.wait.is_well()) {
            for &(player, epoch) in &putter.readers {
                let lives = stage.seats[player].node().is_some_and(|node| node.epoch().0 == epoch);
                let its = |reader: &&Reader| {
                    (reader.spec.request, reader.spec.player) == (request, player)
                        && reader.life == stage.seats[player].life
                };
                if lives && !self.readers.iter().filter(its).any(|reader| reader.may_have(put.name)) {
                    let words: Vec<String> = self.readers.iter().filter(its).map(Reader::words).collect();
                    let words = format!("{} is handed over, and player {player} has {words:?}", put.wait.name);
                    return Err(Violated::new(Invariant::OneEndEach, words));
                }
            }
        }
        Ok(())
    }

    /// Who can be heard is heard: of a stream that has failed, of a request that is given up, of a source that has lost its chunk.
    pub fn check_times(&self, stage: &Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        let patience = KNOWN_WITHIN + if self.outlook.is_audible { Duration::ZERO } else { 4 * HEARTBEAT };
        let is_late = |failed: Timestamp, since: Timestamp| now > failed.max(since).max(stage.disturbed) + patience;
        let told = |words: String| Err(Violated::new(Invariant::AnswersComeInTime, words));
        for (&of, failed) in self.logs.iter().filter_map(|(of, log)| Some((of, log.failed_at?))) {
            let its = self.readers.iter().filter(|reader| reader.goes_on(of));
            let mut late = its.filter(|reader| is_late(failed, reader.begun));
            if let Some(reader) = late.find(|reader| stage.seats[reader.spec.player].is_awake()) {
                let player = reader.spec.player;
                return told(format!("stream {of:?} failed at {failed:?}, and player {player} does not know"));
            }
        }
        for joiner in &self.joiners {
            let Some(since) = joiner.waits_since().filter(|_| stage.seats[joiner.seat()].is_awake()) else { continue };
            let Some(node) = stage.seats[joiner.seat()].node() else { continue };
            let its = self.givers.iter().filter(|giver| giver.join == joiner.join);
            let lost = its.filter_map(|giver| giver.failed_at(node.epoch(), since));
            if let Some(failed) = lost.min().filter(|failed| is_late(*failed, since)) {
                return told(format!("a source of join {} failed at {failed:?}, and it goes on", joiner.join));
            }
        }
        for (&what, &(player, at)) in self.aborted.iter().filter(|_| self.outlook.is_whole) {
            match what {
                GivenUp::Streams(request) => self.check_given_up(request, player, at, is_late)?,
                GivenUp::Join(join) => {
                    let its = self.joiners.iter().filter(|joiner| joiner.join == join);
                    if its.filter_map(Joiner::waits_since).any(|since| is_late(at, since)) {
                        return told(format!("player {player}, a source of join {join}, gave it up at {at:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Who has named that player as a reader has heard that it gave the request up, and whoever has named one of those.
    fn check_given_up(
        &self,
        request: usize,
        player: usize,
        at: Timestamp,
        is_late: impl Fn(Timestamp, Timestamp) -> bool,
    ) -> Result<(), Violated> {
        let told = |words: String| {
            let words = format!("player {player} gave request {request} up at {at:?}, and {words}");
            Err(Violated::new(Invariant::AnswersComeInTime, words))
        };
        let its = || self.putters.iter().filter(|putter| self.script.streams[putter.stream].request == request);
        let mut know = BTreeSet::from([player]);
        loop {
            let names = |putter: &&Putter| putter.readers.iter().any(|(reader, _)| know.contains(reader));
            let has_begun = |putter: &&Putter| putter.opened.is_some_and(|opened| opened < at);
            let also: BTreeSet<usize> = its().filter(has_begun).filter(names).map(|putter| putter.seat).collect();
            if also.is_subset(&know) {
                break;
            }
            know.extend(also);
        }
        let goes_on = |putter: &&Putter| {
            let waits = putter.wait.as_ref().is_some_and(|wait| wait.end.is_none());
            !putter.is_gone && waits && know.contains(&putter.seat) && is_late(at, at)
        };
        if let Some(putter) = its().find(goes_on) {
            return told(format!("stream {} goes on", putter.stream));
        }
        let mut readers = self.readers.iter().filter(|reader| reader.spec.request == request && reader.waits());
        match readers.find(|reader| know.contains(&reader.spec.player) && is_late(at, reader.begun)) {
            Some(reader) => told(format!("player {} goes on", reader.spec.player)),
            None => Ok(()),
        }
    }

    /// Everybody is done.
    pub fn are_over(&self) -> bool {
        self.putters.iter().all(|putter| putter.is_gone)
            && self.readers.iter().all(|reader| reader.is_gone)
            && self.givers.iter().all(|giver| giver.is_gone)
            && self.joiners.iter().all(|joiner| joiner.is_gone)
    }

    /// What nothing hindered has ended well, where everything that was to be done was done in ample time.
    pub fn check_well(&self) -> Result<(), Violated> {
        let script = self.script;
        let is_complete = script.streams.iter().enumerate().all(|(number, stream)| {
            let is_finished = self.logs.iter().any(|((of, _), log)| *of == number && log.is_finished);
            let is_read = |&to: &usize| {
                self.readers.iter().any(|reader| (reader.spec.request, reader.spec.player) == (stream.request, to))
            };
            is_finished && stream.to.iter().all(is_read) && stream.within > AMPLE
        });
        let is_given = script.joins.iter().enumerate().all(|(join, spec)| {
            let given = self.givers.iter().filter(|giver| giver.join == join).count();
            given == spec.from.len() && self.joiners.iter().any(|joiner| joiner.join == join)
        });
        // What is joined holds its berths until the last source is there: two joins of the same sources may wait for each other.
        let are_apart = script.joins.iter().enumerate().all(|(number, one)| {
            let is_shared =
                |other: &spec::Joining| one.from.iter().filter(|from| other.from.contains(from)).count() > 1;
            !script.joins[number + 1..].iter().any(is_shared)
        });
        let is_ample = are_apart && script.joins.iter().all(|join| join.given_within > AMPLE);
        if !self.outlook.is_calm || !is_complete || !is_given || !is_ample {
            return Ok(());
        }
        let told = |words: String| Err(Violated::new(Invariant::AnswersComeInTime, words));
        for reader in &self.readers {
            let is_mine = |stream: &&spec::Streaming| {
                stream.request == reader.spec.request && stream.to.contains(&reader.spec.player)
            };
            let expected = script.streams.iter().filter(is_mine).count();
            if reader.well() != Some(expected) {
                return told(format!("nothing hinders reading {}, and it has {}", reader.reading, reader.words()));
            }
        }
        match self.joiners.iter().find(|joiner| joiner.outcome() != Some(true)) {
            Some(joiner) => told(format!("nothing hinders join {}, and it is {:?}", joiner.join, joiner.wait)),
            None => Ok(()),
        }
    }

    /// Of everything that came to an end, whether it was a good one.
    pub fn outcomes(&self) -> Vec<bool> {
        let read = self.readers.iter().flat_map(Reader::outcomes);
        read.chain(self.joiners.iter().filter_map(Joiner::outcome)).collect()
    }

    /// All handles go before their engines do, and nobody wants anything more.
    pub fn clear(&mut self, stage: &Stage<'_>) {
        self.putters.clear();
        self.readers.clear();
        self.givers.clear();
        self.joiners.clear();
        let streamed = self.script.streams.iter().map(|stream| streamed(stream.request));
        let joined = (0..self.script.joins.len()).map(joined);
        stage.clean_up(&streamed.chain(joined).collect::<Vec<_>>());
    }
}
