//! Some engines of one process, each in session with each other.

use std::time::{Duration, Instant};

use crate::ends::Folder;
pub(crate) use crate::ends::PATIENCE;
use penstock::config::{Progress, TransportName};
use penstock::flows::RequestId;
use penstock::flows::relay::{Relay, RelayMetrics, RelaySpec};
use penstock::{Engine, Peer, SystemEnv};

/// Fields end in this order.
pub(crate) struct Net {
    peers: Vec<Vec<Option<Peer<SystemEnv>>>>,
    relays: Vec<Relay<SystemEnv>>,
    engines: Vec<Engine>,
    _folder: Folder,
}

pub(crate) fn request(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

/// Bytes that differ from chunk to chunk.
pub(crate) fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (seed.wrapping_mul(131) + at * 7 + at / 64) as u8).collect()
}

impl Net {
    pub(crate) fn new(transport: TransportName, names: &[&str], spec: impl Fn() -> RelaySpec) -> Self {
        let mut net = Self::without_relays(transport, names);
        net.relays = net.engines.iter().map(|engine| engine.relay(spec()).unwrap()).collect();
        net
    }

    pub(crate) fn without_relays(transport: TransportName, names: &[&str]) -> Self {
        let folder = Folder::new();
        let engines: Vec<Engine> =
            names.iter().map(|name| folder.engine(name, transport, Progress::Adaptive)).collect();
        let to = |from: &Engine, to: &Engine| from.connect(&to.descriptor(), PATIENCE).unwrap();
        let of = |from: &Engine| {
            engines.iter().map(|other| (from.name() != other.name()).then(|| to(from, other))).collect()
        };
        let peers = engines.iter().map(of).collect();
        Self { peers, relays: Vec::new(), engines, _folder: folder }
    }

    /// Engines without threads, which this thread has to turn.
    pub(crate) fn inline(names: &[&str], spec: impl Fn() -> RelaySpec) -> Self {
        let folder = Folder::new();
        let engines: Vec<Engine> =
            names.iter().map(|name| folder.engine(name, TransportName::Shm, Progress::Inline)).collect();
        let relays: Vec<_> = engines.iter().map(|engine| engine.relay(spec()).unwrap()).collect();
        let mut net = Self { peers: vec![vec![None; names.len()]; names.len()], relays, engines, _folder: folder };
        for from in 0..names.len() {
            for to in (0..names.len()).filter(|to| *to != from) {
                let connecting = net.engines[from].connect_begin(&net.engines[to].descriptor()).unwrap();
                net.turn_until(|| connecting.poll().is_some());
                net.peers[from][to] = Some(connecting.poll().unwrap().unwrap());
            }
        }
        // What each says first after the greeting is under way.
        let mut turns = 0;
        net.turn_until(|| {
            turns += 1;
            turns > 100
        });
        net
    }

    pub(crate) fn turn_until(&self, mut done: impl FnMut() -> bool) {
        let since = Instant::now();
        while !done() {
            for engine in &self.engines {
                engine.progress_all().unwrap();
            }
            let all: Vec<RelayMetrics> = (0..self.engines.len()).map(|at| self.metrics(at)).collect();
            assert!(since.elapsed() < PATIENCE, "{all:?}");
        }
    }

    pub(crate) fn engine(&self, at: usize) -> &Engine {
        &self.engines[at]
    }

    pub(crate) fn relay(&self, at: usize) -> &Relay<SystemEnv> {
        &self.relays[at]
    }

    pub(crate) fn peer(&self, from: usize, to: usize) -> Peer<SystemEnv> {
        self.peers[from][to].clone().unwrap()
    }

    pub(crate) fn metrics(&self, at: usize) -> RelayMetrics {
        self.engines[at].control_metrics().relay
    }

    pub(crate) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let since = Instant::now();
        while !done() {
            let all: Vec<RelayMetrics> = (0..self.engines.len()).map(|at| self.metrics(at)).collect();
            assert!(since.elapsed() < PATIENCE, "{what}: {all:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every berth and every credit is back, nothing is kept, and nothing made no sense.
    pub(crate) fn rests(&self) {
        self.until("all comes to rest", || (0..self.engines.len()).all(|at| self.metrics(at).is_idle));
        for at in 0..self.engines.len() {
            let RelayMetrics { puts, gets, ends, early, early_bytes, counts, .. } = self.metrics(at);
            assert_eq!((puts, gets, ends, early, early_bytes), (0, 0, 0, 0, 0), "engine {at}");
            assert_eq!((counts.senseless, counts.quarantined), (0, 0), "engine {at}");
            let metrics = self.engines[at].control_metrics();
            assert_eq!((metrics.refused, metrics.moving), (0, 0), "engine {at}");
        }
    }
}
