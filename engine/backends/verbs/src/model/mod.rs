//! An adapter inside the process, for tests.
//!
//! It keeps the rules of the seam as strictly as the strictest real adapter, and does on demand what real adapters do rarely: packets are
//! lost, queues break, ports go down, traffic stands still, memory is refused.
//!
//! - [`ModelNetwork`]: what joins adapters; who does the work and when ([`Pace`]); faults between adapters
//! - [`ModelAdapter`]: an adapter of it; faults of the adapter
//! - `cq`: CQs and queues, the rest of the seam
//! - `world`: everything that adapters and queues hold, under one lock
//! - `carry`: what becomes of requests; `meet`: queues that meet by the connection manager
//!
//! What only a bug on this side can do is *caught*: posting more than a queue has room for, or having more completions than a CQ has
//! room for, panics, at once and in every later call.

mod adapter;
mod carry;
mod cm;
mod cq;
mod memory;
mod world;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::adapter::{Counts, ModelAdapter};
use self::world::World;
use super::adapter::{AdapterError, DeviceAttr};

/// The port of every adapter's connection manager.
const PORT: u16 = 4711;

/// Steps of one poll: enough that a batch of posts is over after a few.
const STEPS_PER_POLL: usize = 16;

/// How long the network's thread sleeps while requests stand still for a reason that time can end.
const THREAD_NAP: Duration = Duration::from_millis(1);

/// Who does what adapters do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Whoever polls a CQ does a few steps first, and whoever arms one does all that can be done. Nothing happens by itself, so a
    /// time limit passes unnoticed while everybody sleeps. Time is real.
    #[default]
    Polled,
    /// Nobody but [`ModelNetwork::step`] and [`ModelNetwork::run`]. Time is what [`ModelNetwork::advance`] makes it.
    ByHand,
    /// A thread of the network's own. Time is real.
    Thread,
}

/// How a network behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who does the work.
    pub pace: Pace,
    /// How long a request goes unanswered until it fails as silence.
    pub silence: Duration,
    /// How long a message waits for a receive until it fails.
    pub no_receive: Duration,
    /// Bytes that one step moves: a multiple of every adapter's packets.
    pub step_bytes: u64,
    /// Queues are chosen at random, by this seed, and not in turn.
    pub seed: Option<u64>,
    /// Written bytes are seen at the latest possible moment: when something behind them on their queue is heard, or when nothing else
    /// is to be done.
    pub places_late: bool,
    /// What a reset or dropped queue has not been polled for is taken away, as some adapters do, and not left, as others.
    pub reset_cleans: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pace: Pace::default(),
            silence: Duration::from_millis(300),
            no_receive: Duration::from_millis(100),
            step_bytes: 64 << 10,
            seed: None,
            places_late: false,
            reset_cleans: true,
        }
    }
}

/// What is lost between two adapters, on the way from the first to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Requests: nothing of them happens.
    pub requests: bool,
    /// Answers: requests happen, and whoever posted them does not hear it.
    pub answers: bool,
}

/// What joins adapters. It lives as long as they do.
#[derive(Clone)]
pub struct ModelNetwork {
    hub: Arc<Hub>,
}

impl ModelNetwork {
    /// A network without adapters.
    pub fn new(options: Options) -> Self {
        let pace = options.pace;
        let world = World::new(options);
        let has_work = Arc::clone(&world.has_work);
        let shared = Shared { begun: Instant::now(), has_work, world: Mutex::new(world), work: Condvar::new() };
        let shared = Arc::new(shared);
        let thread = (pace == Pace::Thread).then(|| {
            let shared = Arc::clone(&shared);
            let named = std::thread::Builder::new().name("model-network".to_owned());
            named.spawn(move || shared.work_until_closed()).expect("a test's machine has room for a thread")
        });
        Self { hub: Arc::new(Hub { shared, pace, thread: Mutex::new(thread) }) }
    }

    /// A network where nothing happens but by hand.
    pub fn by_hand() -> Self {
        Self::new(Options { pace: Pace::ByHand, ..Options::default() })
    }

    /// A new adapter, as many a real one is.
    pub fn adapter(&self) -> Arc<ModelAdapter> {
        self.adapter_with(|_| {})
    }

    /// A new adapter whose facts are changed before it is made.
    pub fn adapter_with(&self, change: impl FnOnce(&mut DeviceAttr)) -> Arc<ModelAdapter> {
        Arc::new(ModelAdapter::new(Arc::clone(&self.hub), change))
    }

    /// A new adapter whose queues are met by its connection manager. Its facts are changed before it is made.
    pub fn managed_adapter_with(&self, change: impl FnOnce(&mut DeviceAttr)) -> Arc<ModelAdapter> {
        self.adapter_with(|attr| {
            change(attr);
            attr.cm_address = Some(SocketAddr::new(IpAddr::from(attr.gid), PORT));
        })
    }

    /// Does one thing. Returns whether there was one to do.
    pub fn step(&self) -> bool {
        self.hub.step(1)
    }

    /// Whether nothing is under way: at the next step all that came is seen.
    pub fn is_idle(&self) -> bool {
        self.hub.lock().is_idle()
    }

    /// Does all that can be done now. Returns how many steps it took.
    pub fn run(&self) -> usize {
        let mut steps = 0;
        while self.step() {
            steps += 1;
        }
        steps
    }

    /// Lets time pass, where nothing else does, and does what can be done then.
    pub fn advance(&self, by: Duration) {
        assert_eq!(self.hub.pace, Pace::ByHand, "elsewhere time is real");
        self.hub.lock().by_hand += by;
        self.run();
    }

    /// Loses this from now on between two adapters, on the way from the first to the second. Nothing, the default, mends it.
    pub fn lose(&self, from: &ModelAdapter, to: &ModelAdapter, losses: Losses) {
        self.hub.change(|world| {
            world.losses.insert((from.place, to.place), losses);
        });
    }

    /// Loses everything between two adapters, both ways.
    pub fn cut(&self, one: &ModelAdapter, other: &ModelAdapter) {
        self.lose(one, other, Losses { requests: true, answers: true });
        self.lose(other, one, Losses { requests: true, answers: true });
    }

    /// Loses nothing any more between two adapters.
    pub fn mend(&self, one: &ModelAdapter, other: &ModelAdapter) {
        self.lose(one, other, Losses::default());
        self.lose(other, one, Losses::default());
    }

    /// Makes each way between two adapters so long. Requests behind one another travel together.
    pub fn delay(&self, one: &ModelAdapter, other: &ModelAdapter, by: Duration) {
        self.hub.change(|world| {
            world.delays.insert((one.place, other.place), by);
            world.delays.insert((other.place, one.place), by);
        });
    }
}

/// What adapters, CQs and queues of a network share, and what ends its thread with the last of them.
struct Hub {
    shared: Arc<Shared>,
    pace: Pace,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    has_work: Arc<AtomicBool>,
    begun: Instant,
    world: Mutex<World>,
    /// Something may be done now.
    work: Condvar,
}

impl Hub {
    /// Everything, as of now.
    fn lock(&self) -> MutexGuard<'_, World> {
        let mut world = self.lock_quietly();
        if let Some(caught) = &world.caught {
            let caught = caught.clone();
            drop(world);
            panic!("{caught}");
        }
        world.now = match self.pace {
            Pace::ByHand => world.by_hand,
            Pace::Polled | Pace::Thread => self.shared.begun.elapsed(),
        };
        world
    }

    /// Everything, also after a bug was caught: for what is dropped.
    fn lock_quietly(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that may give the network's thread work.
    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let changed = change(&mut self.lock());
        self.shared.work.notify_one();
        changed
    }

    fn step(&self, steps: usize) -> bool {
        let mut world = self.lock();
        let mut any = false;
        for _ in 0..steps {
            if !world.step() {
                break;
            }
            any = true;
        }
        any
    }

    /// What a poll does first.
    fn help(&self) {
        // Who has posted sees his own work; that of others is theirs to do as well.
        if self.pace == Pace::Polled && self.shared.has_work.load(Ordering::Relaxed) {
            self.step(STEPS_PER_POLL);
        }
    }

    /// What arming does first.
    fn help_all(&self) {
        while self.pace == Pace::Polled && self.step(STEPS_PER_POLL) {}
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.lock_quietly().is_closed = true;
        self.shared.work.notify_one();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It ends by itself, or has panicked with what it caught, which every caller has heard too.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work_until_closed(&self) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        while !world.is_closed && world.caught.is_none() {
            world.now = self.begun.elapsed();
            if world.step() {
                // A lock that is taken again at once is had by nobody else.
                drop(world);
                std::thread::yield_now();
                world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
            } else if world.is_idle() {
                world = self.work.wait(world).unwrap_or_else(PoisonError::into_inner);
            } else {
                world = self.work.wait_timeout(world, THREAD_NAP).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn refused(call: &'static str, adapter: &str, error: rustix::io::Errno, mend: &'static str) -> AdapterError {
    AdapterError::Refused { call, adapter: adapter.to_owned(), source: error.into(), mend }
}

#[cfg(test)]
mod tests;
