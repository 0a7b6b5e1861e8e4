//! A world: engines, steps, time.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock::config::{Config, PagesChoice, ProcessVmChoice, Progress};
use penstock::{Engine, Moment, StartError};

use crate::env::{Identity, SimEnv};
use crate::network::{EndId, Network};
use crate::random::Random;
use crate::trace::{Event, Trace, What};

/// A step takes at most so long, in nanoseconds.
const STEP_NS_MAX: usize = 2_000;
/// Others take at most so many steps while one engine pauses.
const STEPS_PER_PAUSE_MAX: usize = 3;

/// An engine of a simulated world.
pub type Node = Arc<Engine<SimEnv>>;

/// A world did not come to what was waited for.
#[derive(Debug, Clone, thiserror::Error)]
#[error("nothing came of it in {steps} steps (seed {seed})")]
pub struct Stuck {
    /// Steps taken.
    pub steps: u64,
    /// The world's seed.
    pub seed: u64,
}

/// Engines that share one seed, one clock and one network, all on the calling thread.
pub struct World {
    core: Arc<Core>,
}

/// What the engines' environments share.
pub(crate) struct Core {
    seed: u64,
    state: Mutex<State>,
}

pub(crate) struct State {
    now: Moment,
    pub(crate) random: Random,
    pub(crate) network: Network,
    trace: Trace,
    engines: Vec<Weak<Engine<SimEnv>>>,
    /// Set while others run during a pause: their own pauses only pass time.
    is_pausing: bool,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        let state = State {
            // Not zero, so that nobody mistakes the beginning for "never".
            now: Moment::from_ns(1_000_000_000),
            random: Random::new(seed),
            network: Network::default(),
            trace: Trace::new(),
            engines: Vec::new(),
            is_pausing: false,
        };
        Self { core: Arc::new(Core { seed, state: Mutex::new(state) }) }
    }

    /// A configuration that a simulated engine can run with.
    pub fn config(name: &str) -> Config {
        Config::default()
            .named(name)
            .directory("/simulated")
            .progress(Progress::Inline)
            // What larger pages are given depends on the machine, and is announced to peers.
            .pages(PagesChoice::Small)
            // Where a peer may try it is an address, another one in every process of the same seed.
            .process_vm(ProcessVmChoice::Off)
            .transfers_in_flight(64)
            .transfer_queue(64)
    }

    /// Starts an engine.
    pub fn start(&self, config: Config) -> Result<Node, StartError> {
        self.start_as(Identity::default(), config)
    }

    /// Starts an engine that believes to be somebody else.
    pub fn start_as(&self, identity: Identity, config: Config) -> Result<Node, StartError> {
        let (number, random) = {
            let mut state = self.core.lock();
            // Its place is taken before it starts: starting already makes events.
            state.engines.push(Weak::new());
            (state.engines.len() - 1, Random::new(state.random.next_u64()))
        };
        let env = SimEnv::new(&self.core, number, identity, random);
        let engine = Arc::new(Engine::start_in(env, config)?);
        self.core.lock().engines[number] = Arc::downgrade(&engine);
        Ok(engine)
    }

    /// Somebody who is no engine and may say anything to those who listen.
    pub fn stranger(&self, identity: Identity) -> SimEnv {
        let mut state = self.core.lock();
        state.engines.push(Weak::new());
        SimEnv::new(&self.core, state.engines.len() - 1, identity, Random::new(0))
    }

    /// Breaks every stream: what was on its way is lost, and both sides are reset. Listeners stay.
    pub fn sever(&self) {
        self.core.lock().network.sever();
        self.core.record(0, What::Severed, 0);
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// The clock.
    pub fn now(&self) -> Moment {
        self.core.now()
    }

    /// One step: something arrives, or an engine makes a turn.
    pub fn step(&self) {
        self.core.step();
    }

    /// Steps until `done`, at most so many times; answers how many it took.
    pub fn run_until(&self, steps: u64, mut done: impl FnMut() -> bool) -> Result<u64, Stuck> {
        for step in 0..steps {
            if done() {
                return Ok(step);
            }
            self.step();
        }
        if done() { Ok(steps) } else { Err(Stuck { steps, seed: self.seed() }) }
    }

    /// Notes something of the test's own in the trace.
    pub fn note(&self, digest: u64) {
        self.core.record(0, What::Noted, digest);
    }

    /// A number that stands for everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.core.lock().trace.hash()
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.core.lock().trace.count()
    }

    /// The last few events, the latest last.
    pub fn last_events(&self) -> Vec<Event> {
        self.core.lock().trace.last().copied().collect()
    }

    /// Listeners and ends of streams that are open. A world without engines has none.
    pub fn open_ends(&self) -> usize {
        self.core.lock().network.open()
    }
}

impl Core {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        self.lock().now
    }

    pub(crate) fn record(&self, engine: usize, what: What, digest: u64) {
        let mut state = self.lock();
        let event = Event { at: state.now, engine, what, digest };
        state.trace.record(event);
    }

    /// An engine waits: time passes, and others run.
    pub(crate) fn pause(&self, engine: usize, span: Duration) {
        self.record(engine, What::Paused, span.as_nanos() as u64);
        let (steps, is_nested) = {
            let mut state = self.lock();
            state.now = state.now + span;
            (1 + state.random.below(STEPS_PER_PAUSE_MAX), std::mem::replace(&mut state.is_pausing, true))
        };
        if is_nested {
            return;
        }
        for _ in 0..steps {
            self.step();
        }
        self.lock().is_pausing = false;
    }

    fn step(&self) {
        let choice = self.lock().choose();
        match choice {
            Choice::Nothing => {}
            Choice::Deliver(end) => {
                let engine = self.lock().network.deliver(end);
                self.record(engine, What::Arrived, 0);
            }
            // Outside the lock: a turn uses the world.
            Choice::Turn { number, engine, whole } => {
                let turned = if whole { engine.progress_all() } else { engine.progress() };
                let answer = turned.map_or_else(|cause| 2 + u64::from(cause.code()), u64::from);
                self.record(number, What::Turned, answer);
            }
        }
    }
}

enum Choice {
    Nothing,
    Deliver(EndId),
    Turn { number: usize, engine: Node, whole: bool },
}

impl State {
    pub(crate) fn send(
        &mut self,
        end: EndId,
        bytes: &[u8],
        tokens: &[BorrowedFd<'_>],
    ) -> io::Result<(usize, Vec<(What, u64)>)> {
        self.network.send(end, bytes, tokens, &mut self.random)
    }

    /// What happens next.
    fn choose(&mut self) -> Choice {
        self.now = self.now + Duration::from_nanos(1 + self.random.below(STEP_NS_MAX) as u64);
        let awaiting = self.network.awaiting();
        let running: Vec<(usize, Node)> =
            self.engines.iter().enumerate().filter_map(|(number, engine)| Some((number, engine.upgrade()?))).collect();
        let choices = awaiting.len() + running.len();
        if choices == 0 {
            return Choice::Nothing;
        }
        let chosen = self.random.below(choices);
        match awaiting.get(chosen) {
            Some(&end) => Choice::Deliver(end),
            None => {
                let (number, engine) = running[chosen - awaiting.len()].clone();
                Choice::Turn { number, engine, whole: !self.random.once_in(4) }
            }
        }
    }
}
