//! Engines over RDMA cards in this process, whose faults come on demand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::env::{Address, BlockingJob, Credentials};
use penstock::system::{SystemListener, SystemReactor, SystemStream};

use penstock::transport::Transport;
use penstock::{Config, Engine, Env, Peer, Plan, Pool, PoolSpec, Rights, Span, SystemEnv, Timestamp, Window};
use penstock_verbs::adapter::Adapter;
use penstock_verbs::model::{Counts, ModelAdapter, ModelNetwork, Options, Pace};
use penstock_verbs::{VerbsOptions, VerbsTransport};

use crate::folder::Folder;
use crate::pair::{PATIENCE, config};

/// The environment of the system, whose connections can be cut off as by a fault of the network or the death of a process: nobody
/// says goodbye.
#[derive(Debug, Clone, Default)]
pub struct Severing {
    kept: Arc<Mutex<Vec<OwnedFd>>>,
}

impl Severing {
    /// Cuts off all connections that were made from here.
    pub fn sever(&self) {
        for stream in self.kept.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // One that is closed already is cut off.
            let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
        }
    }
}

impl Env for Severing {
    type Stream = SystemStream;
    type Listener = SystemListener;
    type Reactor = SystemReactor;

    fn now(&self) -> Timestamp {
        SystemEnv.now()
    }

    fn random(&self) -> u64 {
        SystemEnv.random()
    }

    fn run_blocking(&self, process: u32, job: BlockingJob) {
        Env::run_blocking(&SystemEnv, process, job);
    }

    fn spawn(&self, name: &str, core: Option<usize>, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        SystemEnv.spawn(name, core, body)
    }

    fn listen(&self, address: &Address) -> io::Result<SystemListener> {
        SystemEnv.listen(address)
    }

    fn connect(&self, address: &Address) -> io::Result<SystemStream> {
        let stream = SystemEnv.connect(address)?;
        let kept = stream.as_fd().try_clone_to_owned()?;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        Ok(stream)
    }

    fn reactor(&self) -> io::Result<SystemReactor> {
        SystemEnv.reactor()
    }

    fn pause(&self, span: Duration) {
        SystemEnv.pause(span);
    }

    fn credentials(&self) -> Credentials {
        SystemEnv.credentials()
    }

    fn host(&self) -> u64 {
        SystemEnv.host()
    }

    fn process(&self) -> u64 {
        SystemEnv.process()
    }
}

/// An engine and its cards.
pub struct Party {
    /// The engine.
    pub engine: Engine<Severing>,
    /// Its cards, one for each rail.
    pub cards: Vec<Arc<ModelAdapter>>,
    /// Cuts off its connections.
    pub wire: Severing,
}

impl Party {
    /// An engine of this name over these cards. It is reached by its address alone.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(folder: &Path, name: &str, progress: Progress, cards: &[Arc<ModelAdapter>]) -> Self {
        // Over the loopback device, with the secret in the folder: as for streams, which are not allowed then.
        let config = config(folder, name, TransportName::Tcp, progress).transports([TransportName::Local]);
        let config = if progress.is_threaded() { config.workers(1) } else { config };
        let wire = Severing::default();
        let engine = start(config.accepts_per_second(100_000), wire.clone(), cards);
        Self { engine, cards: cards.to_vec(), wire }
    }

    /// A pool of so many bytes.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn pool(&self, label: &str, bytes: u64) -> Pool<Severing> {
        let spec = PoolSpec::host(bytes).block(4096).label(label).rights(Rights::READ_WRITE);
        self.engine.pool(spec).expect("there is memory for a pool")
    }

    /// What its cards have, one after the other.
    pub fn counts(&self) -> Vec<Counts> {
        self.cards.iter().map(|card| card.counts()).collect()
    }
}

/// An engine over these cards, and what the configuration allows besides.
///
/// # Panics
/// If it does not start.
pub fn start<E: Env>(config: Config, env: E, cards: &[Arc<ModelAdapter>]) -> Engine<E> {
    let cards: Vec<_> = cards.iter().map(|card| -> Arc<dyn Adapter> { Arc::clone(card) as _ }).collect();
    let started = Engine::start_making(env, config, |segments, registry| {
        let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
        let made = VerbsTransport::new(segments, registry, cards, VerbsOptions::default());
        let made: Arc<dyn Transport> = Arc::new(made.map_err(io::Error::other)?);
        Ok(vec![made])
    });
    started.expect("an engine starts in a fresh folder")
}

/// Two engines and the network of their cards.
pub struct Rails {
    /// What joins the cards.
    pub network: ModelNetwork,
    /// The engine that connects.
    pub near: Party,
    /// The engine that is connected to.
    pub far: Party,
    /// What the near one sees of the far one.
    pub peer: Peer<Severing>,
    /// Dropped last: by then nothing may be left in it.
    pub folder: Folder,
}

impl Rails {
    /// Two connected engines of these modes, with so many cards each. The cards work by themselves.
    ///
    /// # Panics
    /// If they do not come together.
    pub fn open(label: &str, count: u8, (near, far): (Progress, Progress)) -> Self {
        let network = ModelNetwork::new(Options { pace: Pace::Thread, ..Options::default() });
        let cards = || -> Vec<_> { (0..count).map(|rail| network.adapter_with(|facts| facts.gid[7] = rail)).collect() };
        let folder = Folder::new(label);
        let far = Party::start(folder.path(), "far", far, &cards());
        let near = Party::start(folder.path(), "near", near, &cards());
        let peer = connect(&near, &far);
        Self { network, near, far, peer, folder }
    }

    /// Connects anew.
    ///
    /// # Panics
    /// If they do not come together.
    pub fn connect_again(&mut self) {
        self.peer = connect(&self.near, &self.far);
    }

    /// A plan that writes so many bytes from the beginning of a pool here to the beginning of one there.
    ///
    /// # Panics
    /// If there are no such pools.
    pub fn write(&self, from: &Pool<Severing>, to: &str, bytes: u64) -> Plan {
        let remote = self.peer.wait_region(to, PATIENCE).expect("the pool is announced");
        let spans = [Span { local: 0, remote: 0, len: bytes }];
        Plan::write(from, &remote).extents(&spans).build().expect("the plan is sound")
    }

    /// Turns those that do not turn by themselves.
    ///
    /// # Panics
    /// If this thread has not started them.
    pub fn turn(&self) {
        for peer_index in [&self.near, &self.far] {
            peer_index.engine.progress_all().expect("this thread started the engines");
        }
    }

    /// Turns both until this is so. Answers how long that took.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < 2 * PATIENCE, "waited in vain until {what}");
            self.turn();
            std::thread::sleep(Duration::from_micros(50));
        }
        begun.elapsed()
    }
}

/// What one engine sees of the other, once both have come together.
fn connect(near: &Party, far: &Party) -> Peer<Severing> {
    let address = far.engine.addresses()[0].to_string();
    if !far.engine.config().workers.progress.is_threaded() {
        // Who has no threads is turned by this one, so the call goes on in another.
        return connect_turning(near, far, &address);
    }
    near.engine.connect_address(&address, PATIENCE).expect("both are of this process")
}

fn connect_turning(near: &Party, far: &Party, address: &str) -> Peer<Severing> {
    assert!(near.engine.config().workers.progress.is_threaded(), "one of two engines in one thread has threads");
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| near.engine.connect_address(address, PATIENCE));
        while !calling.is_finished() {
            far.engine.progress_all().expect("this thread started the engine");
            std::thread::sleep(Duration::from_micros(50));
        }
        calling.join().expect("it does not panic").expect("both are of this process")
    })
}

/// Bytes that tell where they are from.
pub fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(seed | 1) >> 3 ^ at >> 11 ^ seed) as u8).collect()
}

/// Fills memory with a pattern.
///
/// # Panics
/// If it may not be written.
pub fn lay(window: &Window, seed: u64) {
    window.write_from(0, &pattern(seed, window.len())).expect("the test's own memory");
}

/// Whether the first bytes of memory are those of a pattern.
///
/// # Panics
/// If there are not so many.
pub fn holds(window: &Window, seed: u64, bytes: u64) -> bool {
    let mut found = vec![0; bytes as usize];
    window.read_into(0, &mut found).expect("the test's own memory");
    found == pattern(seed, bytes)
}
