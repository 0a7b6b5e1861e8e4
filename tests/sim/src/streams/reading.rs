//! Who takes in what arrives for a request.

use std::collections::{BTreeMap, BTreeSet};

use penstock::Timestamp;
use penstock::flows::relay::{Announced, Arrival, RelayError};
use penstock::flows::{FlowError, RequestId};
use penstock::session::PeerKey;

use super::content::{Logs, Name};
use super::spec::{Reading, streamed};
use super::taking::Taking;
use crate::deed::Script;
use crate::oracle::{Invariant, Violated};
use crate::stage::Stage;

/// A stream as it arrives.
#[derive(Debug, Default)]
struct Feed {
    /// Which it is, as soon as a chunk of it says so: of which life of its putter.
    of: Option<(usize, u64)>,
    /// It has an end, and whether that is a good one.
    is_well: Option<bool>,
}

/// The application of one who reads.
pub(super) struct Reader {
    /// Which reading.
    pub(super) reading: usize,
    /// How it reads.
    pub(super) spec: Reading,
    /// In which life its engine is.
    pub(super) life: u32,
    request: RequestId,
    /// When it began.
    pub(super) begun: Timestamp,
    feeds: BTreeMap<(PeerKey, u32), Feed>,
    /// Numbers that it was told of or has asked for, by stream and epoch of its putter.
    seen: BTreeMap<(usize, u64), BTreeSet<u64>>,
    /// What it was told of and has not asked for, and since when.
    lying: Vec<(Name, Vec<u8>, Timestamp)>,
    takings: Vec<Taking>,
    /// What it has asked for, and how that failed if it did.
    asked: BTreeMap<Name, Option<String>>,
    /// Since when it knows that the request was given up.
    aborted_at: Option<Timestamp>,
    /// It wants nothing more.
    pub(super) has_stopped: bool,
    /// Its application is done with it.
    pub(super) is_gone: bool,
}

impl Reader {
    /// One that begins now.
    pub(super) fn new(script: &Script, reading: usize, stage: &Stage<'_>) -> Self {
        let spec = script.readings[reading];
        let seat = &stage.seats[spec.player];
        Self {
            reading,
            spec,
            life: seat.life,
            request: streamed(spec.request),
            begun: stage.world.now(),
            feeds: BTreeMap::new(),
            seen: BTreeMap::new(),
            lying: Vec::new(),
            takings: Vec::new(),
            asked: BTreeMap::new(),
            aborted_at: None,
            has_stopped: false,
            is_gone: seat.node().is_none(),
        }
    }

    /// Its engine is dead.
    pub(super) fn forget(&mut self) {
        self.lying.clear();
        self.takings.clear();
        self.is_gone = true;
    }

    /// It wants nothing more of the request.
    pub(super) fn stop(&mut self, stage: &Stage<'_>) {
        if self.is_gone {
            return;
        }
        self.has_stopped = true;
        self.forget();
        if let Some(relay) = stage.seats[self.spec.player].relay() {
            relay.cleanup(&self.request);
        }
    }

    fn violated(&self, invariant: Invariant, words: String) -> Violated {
        let Reading { request, player, .. } = self.spec;
        Violated::new(invariant, format!("stream {request} at player {player}: {words}"))
    }

    /// The application looks what has arrived, and asks for it. Its engine is awake.
    pub(super) fn turn(&mut self, script: &Script, logs: &Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if self.is_gone {
            return Ok(());
        }
        if self.spec.is_ahead {
            self.ask_ahead(script, logs, stage)?;
        }
        if self.aborted_at.is_none()
            && let Some(relay) = stage.seats[self.spec.player].relay()
        {
            match relay.try_arrival(&self.request) {
                Ok(None) => {}
                Ok(Some(arrival)) => self.arrived(arrival, script, logs, now)?,
                Err(FlowError::Relay(RelayError::Ended { .. })) => self.aborted_at = Some(now),
                Err(error) => return Err(self.violated(Invariant::OneEndEach, format!("nothing arrives: {error}"))),
            }
        }
        self.ask(logs, stage)?;
        let mut left = Vec::new();
        for mut taking in std::mem::take(&mut self.takings) {
            let is_over = taking.look(stage, self.spec.player)?;
            if let Some((_, failure)) = &taking.wait.end {
                self.asked.insert(taking.name, failure.clone());
            }
            if !is_over {
                left.push(taking);
            }
        }
        self.takings = left;
        let is_mine = |stream: &&super::spec::Streaming| {
            stream.request == self.spec.request && stream.to.contains(&self.spec.player)
        };
        let expected = script.streams.iter().filter(is_mine).count();
        let ended = self.feeds.values().filter(|feed| feed.is_well.is_some()).count();
        let is_over = self.aborted_at.is_some() || ended >= expected && self.lying.is_empty();
        if is_over && self.takings.is_empty() || now > self.begun + self.spec.within {
            self.stop(stage);
        }
        Ok(())
    }

    fn arrived(&mut self, arrival: Arrival, script: &Script, logs: &Logs, now: Timestamp) -> Result<(), Violated> {
        match arrival {
            Arrival::Chunk(announced) => self.announced(announced, script, logs, now),
            Arrival::Done { peer, stream } => self.done((peer, stream), script, logs),
            Arrival::Failed { peer, stream, .. } => self.end((peer, stream), false),
        }
    }

    fn end(&mut self, key: (PeerKey, u32), is_well: bool) -> Result<(), Violated> {
        let feed = self.feeds.entry(key).or_default();
        match feed.is_well.replace(is_well) {
            None => Ok(()),
            Some(before) => {
                let words = format!("{key:?} ended, well: {before}, and once more, well: {is_well}");
                Err(self.violated(Invariant::OneEndEach, words))
            }
        }
    }

    /// A chunk is told of once, in its turn, and before its stream ends.
    fn announced(
        &mut self,
        announced: Announced,
        script: &Script,
        logs: &Logs,
        now: Timestamp,
    ) -> Result<(), Violated> {
        let (Some(name), Some((stream, number))) = (Name::of(&announced), announced.stream) else {
            return Err(self.violated(Invariant::BytesAreTheirOwn, format!("{announced:?} is of no stream")));
        };
        let of = (name.of, name.epoch);
        let is_for_it = script.streams.get(name.of).is_some_and(|spec| {
            spec.request == self.spec.request && spec.to.contains(&self.spec.player) && !name.is_of_join
        });
        let made = logs.get(&of).and_then(|log| log.chunks.get(number as usize));
        let is_right = made.is_some_and(|made| {
            (announced.bytes, &announced.schema, &announced.metadata)
                == (made.bytes.len() as u64, &made.schema, &made.metadata)
        });
        let feed = self.feeds.entry((announced.peer, stream)).or_default();
        let is_same = *feed.of.get_or_insert(of) == of;
        if !is_for_it || !is_right || !is_same || name.number != number {
            let words = format!("{announced:?} is announced where {name:?} was put");
            return Err(self.violated(Invariant::BytesAreTheirOwn, words));
        }
        if let Some(is_well) = feed.is_well {
            let words = format!("{name:?} comes after its stream has ended, well: {is_well}");
            return Err(self.violated(Invariant::OneEndEach, words));
        }
        let seen = self.seen.entry(of).or_default();
        let due = (0..).find(|number| !seen.contains(number)).unwrap_or(0);
        if number != due {
            let words = format!("{name:?} is told of, and {due} is next");
            return Err(self.violated(Invariant::ToldOnceAfterBytes, words));
        }
        seen.insert(number);
        self.lying.push((name, announced.metadata, now));
        Ok(())
    }

    /// A stream ends well behind all its chunks.
    fn done(&mut self, key: (PeerKey, u32), script: &Script, logs: &Logs) -> Result<(), Violated> {
        let known: Vec<(usize, u64)> = self.feeds.values().filter_map(|feed| feed.of).collect();
        let own = self.feeds.get(&key).and_then(|feed| feed.of);
        let is_whole = |of: &(usize, u64)| {
            let seen = self.seen.get(of).map_or(0, BTreeSet::len);
            logs.get(of).is_some_and(|log| log.is_finished && log.chunks.len() == seen)
        };
        // One of which no chunk was told is any whole one of that peer that is not known.
        let may_be = |of: &&(usize, u64)| {
            let is_here = script.streams[of.0].request == self.spec.request;
            of.1 == key.0.epoch.0 && is_here && !known.contains(of)
        };
        let is_right = match &own {
            Some(of) => is_whole(of),
            None => logs.keys().filter(may_be).any(is_whole),
        };
        if !is_right {
            let words = format!("{own:?} is done, and {:?} were told of", own.and_then(|of| self.seen.get(&of)));
            return Err(self.violated(Invariant::ToldOnceAfterBytes, words));
        }
        self.end(key, true)
    }

    /// Asks for what lies long enough, the newest first.
    fn ask(&mut self, logs: &Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        let is_long = self.lying.iter().any(|(_, _, since)| now.since(*since) >= self.spec.pause);
        if self.lying.len() <= self.spec.hold && !is_long {
            return Ok(());
        }
        if let Some((name, metadata, _)) = self.lying.pop() {
            self.take(name, &metadata, logs, stage)?;
        }
        Ok(())
    }

    /// Asks for chunks by what names them, whether they have arrived or not.
    fn ask_ahead(&mut self, script: &Script, logs: &Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let is_mine = |stream: usize| {
            let spec = &script.streams[stream];
            spec.request == self.spec.request && spec.to.contains(&self.spec.player)
        };
        let mut names = Vec::new();
        for (&(of, epoch), log) in logs.iter().filter(|((of, _), _)| is_mine(*of)) {
            let seen = self.seen.entry((of, epoch)).or_default();
            let numbers = (1..log.chunks.len() as u64).step_by(3).filter(|number| !seen.contains(number));
            names.extend(numbers.map(|number| Name { is_of_join: false, of, number, epoch }));
        }
        for name in names {
            let Some(made) = logs.get(&(name.of, name.epoch)).and_then(|log| log.chunks.get(name.number as usize))
            else {
                continue;
            };
            let metadata = made.metadata.clone();
            if !self.asked.contains_key(&name) && self.take(name, &metadata, logs, stage)? {
                self.seen.entry((name.of, name.epoch)).or_default().insert(name.number);
            }
        }
        Ok(())
    }

    /// Whether it is asked for now.
    fn take(&mut self, name: Name, metadata: &[u8], logs: &Logs, stage: &mut Stage<'_>) -> Result<bool, Violated> {
        let made = logs.get(&(name.of, name.epoch)).and_then(|log| log.chunks.get(name.number as usize));
        let Some(made) = made else { return Ok(false) };
        let (now, seat) = (stage.world.now(), &mut stage.seats[self.spec.player]);
        let within = self.spec.within / 2;
        let taking = Taking::begin(name, made, metadata, self.spec.is_into_blocks, within, seat, now)?;
        let failure = taking.is_none().then(|| "refused".to_owned());
        self.asked.insert(name, failure);
        let is_asked = taking.is_some();
        self.takings.extend(taking);
        Ok(is_asked)
    }

    /// Whether it has asked for this chunk, and has not failed to get it. One that has stopped may have had it.
    pub(super) fn may_have(&self, name: Name) -> bool {
        self.has_stopped || self.asked.get(&name).is_some_and(Option::is_none)
    }

    /// A stream of that putter goes on for it, as far as it knows.
    pub(super) fn goes_on(&self, of: (usize, u64)) -> bool {
        let is_open = |feed: &Feed| feed.of == Some(of) && feed.is_well.is_none();
        !self.is_gone && self.aborted_at.is_none() && self.feeds.values().any(is_open)
    }

    /// It still waits for something.
    pub(super) fn waits(&self) -> bool {
        !self.is_gone && self.aborted_at.is_none()
    }

    /// So many streams have come to a good end, with all their chunks, and nothing has failed.
    pub(super) fn well(&self) -> Option<usize> {
        let is_bad = self.feeds.values().any(|feed| feed.is_well == Some(false)) || self.aborted_at.is_some();
        let has_failed = is_bad || self.asked.values().any(Option::is_some);
        (!has_failed).then(|| self.feeds.values().filter(|feed| feed.is_well == Some(true)).count())
    }

    /// What became of all that it asked for.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = bool> + '_ {
        self.asked.values().map(Option::is_none)
    }

    /// What it was told, in words.
    pub(super) fn words(&self) -> String {
        format!("{:?}, {:?}, asked for {:?}, given up {:?}", self.feeds, self.seen, self.asked, self.aborted_at)
    }
}
