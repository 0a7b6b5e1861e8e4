//! Waiting for a chunk of each of several engines.

use std::collections::BTreeMap;

use penstock_core::EngineName;
use penstock_core::planted::{self, Bug};
use penstock_session::machine::Step;
use penstock_session::{PeerKey, RequestId, machine};

use super::error::RelayFailed;
use super::out::{Alarm, Out};

machine! {
    /// A join.
    pub Join on JoinEvent {
        states {
            /// For sources.
            Waiting,
        }
        ends {
            /// It has an end, good or bad, and stays with it.
            Fired,
        }
        events {
            /// The chunk of the last source is here.
            LastArrived,
            /// A source has failed.
            Fault,
            /// Its time is over.
            Late,
            /// It is given up.
            Abort,
        }
        Waiting { LastArrived => Fired, Fault => Fired, Late => Fired, Abort => Fired }
    }
}

/// A join of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinKey(pub(crate) u64);

/// A chunk that has been announced: what its reader may know before it fetches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Who has it.
    pub peer: PeerKey,
    /// What that engine is called.
    pub engine: EngineName,
    /// The peer's number of the stream and the chunk's number in it, if it is of one.
    pub stream: Option<(u32, u64)>,
    /// How many bytes.
    pub bytes: u64,
    /// What they are; empty if nobody said.
    pub schema: Vec<u8>,
    /// The application's words, as they were given.
    pub header: Vec<u8>,
    /// What is given to `get`.
    pub metadata: Vec<u8>,
    pub(super) op: u64,
}

#[derive(Debug)]
struct Waiting {
    request: RequestId,
    state: Join,
    sources: Vec<(EngineName, Option<Announced>)>,
    result: Option<Result<Vec<Announced>, RelayFailed>>,
}

#[derive(Debug, Default)]
pub(super) struct Joins {
    joins: BTreeMap<u64, Waiting>,
    last: u64,
}

impl Waiting {
    /// Whether it waits for this engine's chunk of this request.
    fn waits_for(&self, request: &RequestId, engine: &EngineName) -> bool {
        let is_missing = |(source, found): &(EngineName, Option<Announced>)| source == engine && found.is_none();
        self.state == Join::Waiting && self.request == *request && self.sources.iter().any(is_missing)
    }

    fn fire(&mut self, event: JoinEvent, result: Result<Vec<Announced>, RelayFailed>) -> bool {
        let Step::Go(next) = self.state.step(event) else { return false };
        (self.state, self.result) = (next, Some(result));
        true
    }
}

impl Joins {
    pub(super) fn open(&mut self, request: RequestId, sources: Vec<EngineName>) -> u64 {
        self.last += 1;
        let sources = sources.into_iter().map(|source| (source, None)).collect();
        self.joins.insert(self.last, Waiting { request, state: Join::Waiting, sources, result: None });
        self.last
    }

    pub(super) fn len(&self) -> usize {
        self.joins.len()
    }

    /// The engines whose chunks a join still waits for.
    pub(super) fn lacking(&self, key: u64) -> Vec<EngineName> {
        let waiting = self.joins.get(&key).filter(|join| join.state == Join::Waiting);
        let missing = waiting.into_iter().flat_map(|join| &join.sources).filter(|(_, found)| found.is_none());
        missing.map(|(source, _)| source.clone()).collect()
    }

    /// Whether a join waits for this engine's chunk of this request.
    pub(super) fn wants(&self, request: &RequestId, engine: &EngineName) -> bool {
        self.joins.values().any(|join| join.waits_for(request, engine))
    }

    /// Whether a join of this request has this engine as a source.
    pub(super) fn have_named(&self, request: &RequestId, engine: &EngineName) -> bool {
        let of_it = self.joins.values().filter(|join| join.request == *request);
        of_it.flat_map(|join| &join.sources).any(|(source, _)| source == engine)
    }

    /// A chunk is here: it goes to the oldest join that waits for it. Whether there was one.
    pub(super) fn arrived(&mut self, request: &RequestId, announced: Announced, out: &mut Out) -> bool {
        for (&key, join) in &mut self.joins {
            if join.state != Join::Waiting || join.request != *request {
                continue;
            }
            let missing =
                join.sources.iter_mut().find(|(source, found)| *source == announced.engine && found.is_none());
            let Some((_, place)) = missing else { continue };
            *place = Some(announced);
            if planted::is(Bug::JoinDoneAtTheFirst) || join.sources.iter().all(|(_, found)| found.is_some()) {
                let all = join.sources.iter_mut().filter_map(|(_, found)| found.take()).collect();
                join.fire(JoinEvent::LastArrived, Ok(all));
                out.disarm(Alarm::Join(key));
                out.tell();
            }
            return true;
        }
        false
    }

    /// Ends those that wait and of which this is so: of their request, sources, and what they have of them.
    pub(super) fn fail(
        &mut self,
        which: impl Fn(&RequestId, &[(EngineName, Option<Announced>)]) -> bool,
        event: JoinEvent,
        failed: &RelayFailed,
        out: &mut Out,
    ) {
        for (&key, join) in self.joins.iter_mut().filter(|(_, join)| which(&join.request, &join.sources)) {
            if join.fire(event, Err(failed.clone())) {
                out.disarm(Alarm::Join(key));
                out.tell();
            }
        }
    }

    /// Ends the one that a lost chunk of this engine would have gone to: the oldest that waits for it. Whether there was one.
    pub(super) fn fail_oldest(
        &mut self,
        request: &RequestId,
        engine: &EngineName,
        failed: &RelayFailed,
        out: &mut Out,
    ) -> bool {
        let oldest = self.joins.iter().find(|(_, join)| join.waits_for(request, engine)).map(|(key, _)| *key);
        oldest.inspect(|key| self.fault(*key, failed.clone(), out)).is_some()
    }

    /// Ends one of whose sources a chunk is lost.
    pub(super) fn fault(&mut self, key: u64, failed: RelayFailed, out: &mut Out) {
        if self.joins.get_mut(&key).is_some_and(|join| join.fire(JoinEvent::Fault, Err(failed))) {
            out.disarm(Alarm::Join(key));
            out.tell();
        }
    }

    pub(super) fn late(&mut self, key: u64, failed: RelayFailed, out: &mut Out) {
        if self.joins.get_mut(&key).is_some_and(|join| join.fire(JoinEvent::Late, Err(failed))) {
            out.tell();
        }
    }

    pub(super) fn result(&self, key: u64) -> Option<&Result<Vec<Announced>, RelayFailed>> {
        self.joins.get(&key)?.result.as_ref()
    }

    /// The chunks that it has by now, in the order of its sources.
    pub(super) fn found(&self, key: u64) -> Vec<Announced> {
        match self.joins.get(&key) {
            Some(Waiting { result: Some(Ok(all)), .. }) => all.clone(),
            Some(Waiting { result: None, sources, .. }) => {
                sources.iter().filter_map(|(_, found)| found.clone()).collect()
            }
            Some(Waiting { result: Some(Err(_)), .. }) | None => Vec::new(),
        }
    }

    pub(super) fn let_go(&mut self, key: u64, out: &mut Out) {
        self.joins.remove(&key);
        out.disarm(Alarm::Join(key));
    }
}
