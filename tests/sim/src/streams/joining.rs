//! Who waits for a chunk of each of several others, and who puts those.

use std::collections::BTreeMap;

use penstock::flows::relay::{Announced, Put, RelayError, RelayOp, StreamJoin};
use penstock::flows::{FlowError, RequestId};
use penstock::{EngineName, Epoch, Peer, Timestamp};

use super::content::{Made, Name, made};
use super::spec::{Form, Joining, joined};
use super::taking::Taking;
use super::wait::Wait;
use crate::deed::Script;
use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated};
use crate::stage::Stage;

/// What was put for joins.
pub(super) type Given = BTreeMap<Name, Made>;

/// A source of a join.
pub(super) struct Giver {
    /// Which join.
    pub(super) join: usize,
    /// The place among its sources.
    pub(super) source: usize,
    /// Where its engine sits.
    pub(super) seat: usize,
    spec: Joining,
    bytes: usize,
    begun: Timestamp,
    op: Option<RelayOp<SimEnv>>,
    /// For which life of its reader it was put.
    reader: Option<Epoch>,
    /// In which session.
    peer: Option<Peer<SimEnv>>,
    /// When its engine last had its session, as far as its application has looked.
    stood_at: Timestamp,
    /// Before its session was over, and its chunk with it: when something was disturbed for the last time, or it last stood, if that is earlier.
    cut_at: Option<Timestamp>,
    /// How its chunk ends, once it is put.
    pub(super) wait: Option<Wait>,
    /// Its application has dropped it.
    pub(super) has_withdrawn: bool,
    /// Its application is done with it.
    pub(super) is_gone: bool,
}

impl Giver {
    /// One that begins now.
    pub(super) fn new(script: &Script, join: usize, source: usize, bytes: usize, stage: &Stage<'_>) -> Self {
        let spec = script.joins[join].clone();
        let seat = spec.from[source];
        let (begun, is_gone) = (stage.world.now(), stage.seats[seat].node().is_none());
        Self {
            join,
            source,
            seat,
            spec,
            bytes,
            begun,
            op: None,
            reader: None,
            peer: None,
            stood_at: begun,
            cut_at: None,
            wait: None,
            has_withdrawn: false,
            is_gone,
        }
    }

    /// Its engine is dead, or its application drops it.
    pub(super) fn forget(&mut self) {
        (self.op, self.peer) = (None, None);
        self.is_gone = true;
    }

    /// The application puts what it has, and looks. Its engine is awake.
    pub(super) fn turn(&mut self, given: &mut Given, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if self.is_gone {
            return Ok(());
        }
        if let (Some(op), Some(wait)) = (&self.op, &mut self.wait) {
            let had_ended = wait.end.is_some();
            wait.look(op.poll(), now, stage.disturbed)?;
            let is_over = self.peer.as_ref().is_some_and(|of| of.ended().is_some());
            if !is_over {
                self.stood_at = now;
            } else if !had_ended && wait.failed_at().is_some() {
                // Who was frozen meanwhile hears of it only when that is over.
                self.cut_at = Some(stage.disturbed.min(self.stood_at));
            }
            if wait.is_settled(now) {
                self.forget();
            }
            return Ok(());
        }
        if now >= self.begun + self.spec.within {
            self.is_gone = true;
            return Ok(());
        }
        let Some(peer) = stage.meet(self.seat, self.spec.at)? else { return Ok(()) };
        let seat = &stage.seats[self.seat];
        let (Some(node), Some(relay)) = (seat.node(), seat.relay()) else { return Ok(()) };
        let name = Name { is_of_join: true, of: self.join, number: self.source as u64, epoch: node.epoch().0 };
        let content = name.content(self.bytes);
        let header = name.header();
        let what = Put::bytes(&content).header(&header).within(self.spec.given_within);
        match relay.put(what, &joined(self.join), &[&peer]) {
            Ok(op) => {
                given.insert(name, made(name, self.bytes, Form::Flat, op.metadata()));
                self.wait = Some(Wait::new(format!("{name:?}"), now, self.spec.given_within));
                self.op = Some(op);
                self.reader = Some(peer.epoch());
                self.peer = Some(peer);
                Ok(())
            }
            // A session was over, and nobody had told.
            Err(FlowError::Relay(_)) => Ok(()),
            Err(error) => Err(Violated::new(Invariant::OneEndEach, format!("{name:?} is not put: {error}"))),
        }
    }

    /// Since when its chunk is known to be lost for this life of its reader, which waits since then: another one was never told of it. Where the
    /// session broke before, and is known to be over here only now, its reader has heard of that before it began to wait.
    pub(super) fn failed_at(&self, reader: Epoch, since: Timestamp) -> Option<Timestamp> {
        let is_told = self.cut_at.is_none_or(|cut| cut > since) && self.reader == Some(reader);
        self.wait.as_ref().filter(|_| is_told)?.failed_at().filter(|failed| *failed > since)
    }
}

/// Who waits for all of them.
pub(super) struct Joiner {
    /// Which join.
    pub(super) join: usize,
    spec: Joining,
    request: RequestId,
    handle: Option<StreamJoin<SimEnv>>,
    /// Since when its engine has it, and how it ends.
    pub(super) wait: Option<(Timestamp, Wait)>,
    takings: Vec<Taking>,
    fetched: Vec<bool>,
    /// Its application is done with it.
    pub(super) is_gone: bool,
}

impl Joiner {
    /// One that begins now.
    pub(super) fn new(script: &Script, join: usize, stage: &Stage<'_>) -> Self {
        let spec = script.joins[join].clone();
        let is_gone = stage.seats[spec.at].node().is_none();
        let (takings, fetched) = (Vec::new(), Vec::new());
        Self { join, spec, request: joined(join), handle: None, wait: None, takings, fetched, is_gone }
    }

    /// Where its engine sits.
    pub(super) fn seat(&self) -> usize {
        self.spec.at
    }

    /// Its engine is dead, or its application drops it.
    pub(super) fn forget(&mut self) {
        (self.handle, self.is_gone) = (None, true);
        self.takings.clear();
    }

    fn names(&self, stage: &Stage<'_>) -> Vec<EngineName> {
        let name = |&seat: &usize| EngineName::new(stage.seats[seat].name()).expect("players have short names");
        self.spec.from.iter().map(name).collect()
    }

    /// The application begins it, looks, and fetches what it came to. Its engine is awake.
    pub(super) fn turn(&mut self, given: &Given, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if self.is_gone {
            return Ok(());
        }
        let (Some(handle), Some((_, wait))) = (&self.handle, &mut self.wait) else { return self.begin(stage) };
        let said = handle.poll();
        let is_whole = wait.look(said.clone().map(|result| result.map(drop)), now, stage.disturbed)?;
        let is_settled = wait.is_settled(now);
        if let (true, Some(Ok(all))) = (is_whole, said) {
            self.fired(&all, given, stage)?;
        }
        let mut left = Vec::new();
        for mut taking in std::mem::take(&mut self.takings) {
            if !taking.look(stage, self.spec.at)? {
                left.push(taking);
            } else {
                self.fetched.push(taking.wait.is_well());
            }
        }
        self.takings = left;
        if is_settled && self.takings.is_empty() {
            self.forget();
            if let Some(relay) = stage.seats[self.spec.at].relay() {
                relay.cleanup(&self.request);
            }
        }
        Ok(())
    }

    fn begin(&mut self, stage: &Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        let Some(relay) = stage.seats[self.spec.at].relay() else { return Ok(()) };
        match relay.join(&self.request, &self.names(stage), self.spec.within) {
            Ok(handle) => {
                self.handle = Some(handle);
                self.wait = Some((now, Wait::new(format!("join {}", self.join), now, self.spec.within)));
            }
            Err(FlowError::Relay(RelayError::Ended { .. })) => self.is_gone = true,
            Err(error) => {
                let words = format!("join {} does not begin: {error}", self.join);
                return Err(Violated::new(Invariant::OneEndEach, words));
            }
        }
        Ok(())
    }

    /// It has a chunk of each of its sources, in their order.
    fn fired(&mut self, all: &[Announced], given: &Given, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let names = self.names(stage);
        if all.len() != names.len() || all.iter().zip(&names).any(|(found, name)| found.engine != *name) {
            let words = format!("join {} of {names:?} came to {all:?}", self.join);
            return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
        }
        for (source, announced) in all.iter().enumerate() {
            let name = Name { is_of_join: true, of: self.join, number: source as u64, epoch: announced.peer.epoch.0 };
            let Some(made) = given.get(&name).filter(|_| Name::of(announced) == Some(name)) else {
                let words = format!("{announced:?} is announced, and {name:?} was never put");
                return Err(Violated::new(Invariant::BytesAreTheirOwn, words));
            };
            let (now, seat) = (stage.world.now(), &mut stage.seats[self.spec.at]);
            match Taking::begin(name, made, &announced.metadata, false, self.spec.within, seat, now)? {
                Some(taking) => self.takings.push(taking),
                None => self.fetched.push(false),
            }
        }
        Ok(())
    }

    /// It has come to its end, and has fetched everything, or not.
    pub(super) fn outcome(&self) -> Option<bool> {
        let (_, wait) = self.wait.as_ref()?;
        wait.end.as_ref()?;
        Some(wait.is_well() && self.fetched.iter().all(|is_well| *is_well))
    }

    /// How it is waited for, if it has begun and has not ended.
    pub(super) fn waits_since(&self) -> Option<Timestamp> {
        let (since, wait) = self.wait.as_ref()?;
        (!self.is_gone && wait.end.is_none()).then_some(*since)
    }
}
