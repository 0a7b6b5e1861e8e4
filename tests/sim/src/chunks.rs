//! Chunks that stages hand to each other through their relays: who puts, who fetches, and what has to hold of both.
//!
//! A chunk is put under a request of its own; its readers know the request, ask for what has arrived for it, and fetch that. Free berths are
//! the relay's own and cannot be looked at, but each byte of a chunk says whose it is: a berth that is written again too early shows.

use std::time::Duration;

use penstock::flows::relay::{Arrival, Destination, Fetch, Put, RelayOp};
use penstock::flows::{FlowError, RequestId};
use penstock::{Peer, Timestamp};

use crate::deed::{Chunk, Script};
use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated, byte};
use crate::run::KNOWN_WITHIN;
use crate::stage::Stage;

/// Cases have other numbers.
const CHUNKS: usize = 1 << 15;

/// How a side of a chunk ended: when, and why it failed if it did.
type End = (Timestamp, Option<String>);

enum Side {
    /// Its engine does not have it yet.
    Waiting,
    Putting(RelayOp<SimEnv>),
    Fetching(Fetch<SimEnv>),
}

/// One side of a chunk: who puts it, or one of those who fetch it.
pub struct Handler {
    /// Which chunk.
    pub chunk: usize,
    /// Which of its readers; nobody is its putter.
    pub reader: Option<usize>,
    /// Where its engine sits.
    pub seat: usize,
    life: u32,
    spec: Chunk,
    request: RequestId,
    begun: Timestamp,
    /// The epochs of its putter and of its readers, as far as it has to do with them.
    epochs: Vec<u64>,
    side: Side,
    /// Since when its engine has it.
    admitted: Option<Timestamp>,
    end: Option<End>,
    /// Its application is done with it.
    pub is_gone: bool,
}

/// The request of a chunk.
pub fn request(chunk: usize) -> RequestId {
    RequestId::new(&format!("chunk {chunk}")).expect("the text is short")
}

/// What a chunk is made of.
fn content(chunk: usize, bytes: usize, epoch: u64) -> Vec<u8> {
    (0..bytes).map(|at| byte(CHUNKS + chunk, epoch, 0, at as u64, 0, 0)).collect()
}

impl Handler {
    /// A side that begins now.
    pub fn new(script: &Script, chunk: usize, reader: Option<usize>, stage: &Stage<'_>) -> Self {
        let spec = script.chunks[chunk];
        let seat = reader.map_or(spec.from, |reader| spec.readers()[reader]);
        Self {
            chunk,
            reader,
            seat,
            life: stage.seats[seat].life,
            spec,
            request: request(chunk),
            begun: stage.world.now(),
            epochs: Vec::new(),
            side: Side::Waiting,
            admitted: None,
            end: None,
            is_gone: stage.seats[seat].node().is_none(),
        }
    }

    /// Its engine is dead, or its application drops it.
    pub fn forget(&mut self) {
        self.side = Side::Waiting;
        self.is_gone = true;
    }

    /// Its application drops it before it has ended.
    pub fn drops(&mut self, now: Timestamp) {
        if !self.is_gone {
            // It may have ended, and nobody has looked.
            let result = self.poll();
            let failure = result.unwrap_or_else(|| Some("dropped".to_owned()));
            self.end.get_or_insert((now, failure));
            self.forget();
        }
    }

    fn violated(&self, invariant: Invariant, words: String) -> Violated {
        Violated::new(invariant, format!("chunk {} at {:?}: {words}", self.chunk, self.reader))
    }

    /// Whether it has ended, and why it failed if it did.
    fn poll(&self) -> Option<Option<String>> {
        let result = match &self.side {
            Side::Waiting => return None,
            Side::Putting(op) => op.poll(),
            Side::Fetching(fetch) => fetch.poll(),
        };
        result.map(|result| result.err().map(|failed| failed.to_string()))
    }

    /// The application looks at it and does what there is to do. Its engine is awake.
    pub fn turn(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if self.is_gone {
            return Ok(());
        }
        if self.admitted.is_none() {
            if now >= self.begun + self.spec.within {
                self.is_gone = true;
                return Ok(());
            }
            return match self.reader {
                None => self.put(stage),
                Some(_) => self.fetch(stage),
            };
        }
        let failure = match (self.poll(), &self.end) {
            _ if matches!(self.side, Side::Waiting) => return Ok(()),
            (None, None) => return self.check_time(now),
            (None, Some(end)) => return Err(self.violated(Invariant::OneEndEach, format!("had ended as {end:?}"))),
            (Some(failure), _) => failure,
        };
        let end = self.end.get_or_insert((now, failure.clone())).clone();
        if end.1 != failure {
            let words = format!("had ended as {end:?}, and as {failure:?} now");
            return Err(self.violated(Invariant::OneEndEach, words));
        }
        if failure.is_none() {
            self.check_bytes()?;
        }
        // A moment later, so that an end that does not stay is seen.
        if now.since(end.0) > Duration::from_millis(2) {
            self.forget();
        }
        Ok(())
    }

    fn check_time(&self, now: Timestamp) -> Result<(), Violated> {
        match self.admitted.filter(|admitted| now > *admitted + self.spec.within + KNOWN_WITHIN) {
            None => Ok(()),
            Some(admitted) => {
                let words = format!("began at {admitted:?} with {:?}, and has not ended", self.spec.within);
                Err(self.violated(Invariant::AnswersComeInTime, words))
            }
        }
    }

    fn put(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let readers = self.spec.readers();
        let peers = readers.iter().map(|&reader| stage.meet(self.seat, reader)).collect::<Result<Vec<_>, _>>()?;
        let Some(peers) = peers.into_iter().collect::<Option<Vec<Peer<SimEnv>>>>() else { return Ok(()) };
        let seat = &stage.seats[self.seat];
        let (Some(node), Some(relay)) = (seat.node(), seat.relay()) else { return Ok(()) };
        let bytes = content(self.chunk, self.spec.bytes, node.epoch().0);
        let to: Vec<&Peer<SimEnv>> = peers.iter().collect();
        match relay.put(Put::bytes(&bytes).within(self.spec.within), &self.request, &to) {
            Ok(op) => {
                self.side = Side::Putting(op);
                self.epochs = [node.epoch().0].into_iter().chain(peers.iter().map(|peer| peer.epoch().0)).collect();
                self.admitted = Some(stage.world.now());
                Ok(())
            }
            // A session was over, and nobody had told; or the request was given up meanwhile.
            Err(FlowError::Relay(_)) => Ok(()),
            Err(error) => Err(self.violated(Invariant::OneEndEach, format!("is not put: {error}"))),
        }
    }

    fn fetch(&mut self, stage: &Stage<'_>) -> Result<(), Violated> {
        let seat = &stage.seats[self.seat];
        let (Some(node), Some(relay)) = (seat.node(), seat.relay()) else { return Ok(()) };
        let arrived = match relay.try_arrival(&self.request) {
            Ok(Some(Arrival::Chunk(announced))) => announced,
            Ok(None) | Err(FlowError::Relay(_)) => return Ok(()),
            Ok(Some(other)) => return Err(self.violated(Invariant::BytesAreTheirOwn, format!("{other:?} is no chunk"))),
            Err(error) => return Err(self.violated(Invariant::OneEndEach, format!("nothing arrives: {error}"))),
        };
        if arrived.bytes != self.spec.bytes as u64 {
            let words = format!("{} bytes are announced of {}", arrived.bytes, self.spec.bytes);
            return Err(self.violated(Invariant::BytesAreTheirOwn, words));
        }
        match relay.get(&arrived.metadata, Destination::memory().within(self.spec.within)) {
            Ok(fetch) => {
                self.side = Side::Fetching(fetch);
                self.epochs = vec![arrived.peer.epoch.0, node.epoch().0];
                self.admitted = Some(stage.world.now());
            }
            // Its putter is gone again.
            Err(FlowError::Relay(_)) => self.is_gone = true,
            Err(error) => return Err(self.violated(Invariant::OneEndEach, format!("is not fetched: {error}"))),
        }
        Ok(())
    }

    /// What has come is what was put, and whole. It is given once.
    fn check_bytes(&mut self) -> Result<(), Violated> {
        let Side::Fetching(fetch) = &self.side else { return Ok(()) };
        let came = match fetch.wait(Duration::ZERO) {
            Ok(Ok(payload)) => payload.bytes,
            // It was taken at the first look.
            Err(FlowError::Relay(_)) => return Ok(()),
            Ok(Err(failed)) => return Err(self.violated(Invariant::OneEndEach, format!("ended well, and as {failed}"))),
            Err(error) => return Err(self.violated(Invariant::ToldOnceAfterBytes, error.to_string())),
        };
        let whole = content(self.chunk, self.spec.bytes, self.epochs[0]);
        match came.iter().zip(&whole).position(|(found, right)| found != right) {
            None if came.len() == whole.len() => Ok(()),
            at => {
                let words = format!("{} bytes came of {}, and byte {at:?} is another's", came.len(), whole.len());
                Err(self.violated(Invariant::BytesAreTheirOwn, words))
            }
        }
    }

    /// What is put has ended well only when each of its readers has it.
    pub fn check_put(&self, others: &[Self], stage: &Stage<'_>) -> Result<(), Violated> {
        if self.reader.is_some() || self.end.as_ref().is_none_or(|(_, failure)| failure.is_some()) {
            return Ok(());
        }
        let lacks = |other: &&Self| {
            let Some(reader) = other.reader.filter(|_| other.chunk == self.chunk) else { return false };
            let lives = other.life == stage.seats[other.seat].life;
            let is_same = other.epochs.get(1) == self.epochs.get(1 + reader);
            let has_failed = other.end.as_ref().is_some_and(|(_, failure)| failure.is_some());
            lives && (other.admitted.is_none() || is_same && has_failed)
        };
        match others.iter().find(lacks) {
            None => Ok(()),
            Some(other) => {
                let words = format!("is handed over, and reader {:?} has {:?}", other.reader, other.end);
                Err(self.violated(Invariant::OneEndEach, words))
            }
        }
    }

    /// Where nothing went wrong it has ended well.
    pub fn check_well(&self) -> Result<(), Violated> {
        match &self.end {
            Some((_, None)) => Ok(()),
            end => {
                let words = format!("nothing hinders it, and it is {end:?}");
                Err(self.violated(Invariant::AnswersComeInTime, words))
            }
        }
    }

    /// Whether it came to its end, and whether well.
    pub fn outcome(&self) -> Option<bool> {
        self.end.as_ref().map(|(_, failure)| failure.is_none())
    }
}
