//! A world: engines, steps, time.

use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock::config::{Config, PagesChoice, ProcessVmChoice, Progress, TransportName};
use penstock::{Engine, StartError, Timestamp};
use penstock_datagram_transport::{DatagramOptions, DatagramTransport, OpenPort};

use crate::devices::{self, Devices};
use crate::env::{Clock, Identity, SimEnv};
use crate::links::Links;
use crate::network::{EndId, Network};
use crate::oracle::Violated;
use crate::packets::{Packets, SimPort};
use crate::random::Random;
use crate::secret;
use crate::trace::{Event, Trace, What};

/// A step takes at most so long, in nanoseconds.
const STEP_NS_MAX: usize = 2_000;
/// Others take at most so many steps while one engine pauses.
const STEPS_PER_PAUSE_MAX: usize = 3;
/// How often the longest step is doubled while nothing happens and only time has to pass.
const DOUBLINGS_MAX: u32 = 8;
/// Steps in a row in which nothing happened, for each engine, before the longest step is doubled once more.
const IDLE_STEPS: u32 = 6;
/// A dead engine's clock goes on by so much each time it is looked at: none of its waits lasts.
const DEAD_LOOK: Duration = Duration::from_secs(3600);
/// The first id of a process of which only this world knows: the system gives out no numbers as large.
pub const PIDS: u32 = 1 << 30;
/// Where engines listen for other hosts, unless they are told otherwise.
const PORT: u16 = 7400;

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
    pub(crate) core: Arc<Core>,
}

/// What the engines' environments share.
pub(crate) struct Core {
    seed: u64,
    state: Mutex<State>,
}

pub(crate) struct State {
    now: Timestamp,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) packets: Packets,
    pub(crate) links: Links,
    pub(crate) devices: Option<Devices>,
    trace: Trace,
    pub(crate) members: Vec<Member>,
    /// Steps in a row in which nothing happened.
    idle: u32,
    /// Set while others run during a pause: their own pauses only pass time.
    is_pausing: bool,
}

/// An engine, as the world sees it.
pub(crate) struct Member {
    pub(crate) engine: Weak<Engine<SimEnv>>,
    host: u64,
    clock: Clock,
    /// It has no turns.
    pub(crate) is_frozen: bool,
    /// It is dead, and has looked at its clock so often since.
    pub(crate) death: Option<u32>,
    /// Its process, as the operating system tells it to others.
    pid: u32,
    /// Both ends of a pipe whose one end goes when that process dies, once somebody watches it.
    pub(crate) process: Option<(PipeReader, PipeWriter)>,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        devices::install();
        let state = State {
            // Not zero, so that nobody mistakes the beginning for "never".
            now: Timestamp::from_ns(1_000_000_000),
            random: Random::new(seed),
            network: Network::default(),
            packets: Packets::default(),
            links: Links::default(),
            devices: None,
            trace: Trace::new(),
            members: Vec::new(),
            idle: 0,
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

    /// A configuration for an engine on this host that meets those on others.
    pub fn config_on(host: u64, name: &str) -> Config {
        Self::config(name)
            .transports([TransportName::Local, TransportName::Shm])
            .listen([SocketAddr::new(Identity::on(host).ip(), PORT)])
            .secret_file(secret::file())
    }

    /// Starts an engine on this host, which is told from others by its number alone.
    pub fn start_on(&self, host: u64, name: &str) -> Result<Node, StartError> {
        self.start_as(Identity::on(host), Self::config_on(host, name))
    }

    /// Starts an engine.
    pub fn start(&self, config: Config) -> Result<Node, StartError> {
        self.start_as(Identity::default(), config)
    }

    /// Starts an engine that believes to be somebody else. One that listens for other hosts has a transport to them.
    pub fn start_as(&self, identity: Identity, config: Config) -> Result<Node, StartError> {
        let (number, random) = {
            let mut state = self.core.lock();
            // Its place is taken before it starts: starting already makes events.
            (state.join(&identity), Random::new(state.random.next_u64()))
        };
        let env = SimEnv::new(&self.core, number, identity, random);
        let (is_for_others, patience) = (!config.session.listen.is_empty(), config.session.heartbeat_ms);
        let (core, its_env) = (Arc::clone(&self.core), Arc::new(env.clone()));
        let engine = Engine::start_making(env, config, |segments, registry| {
            if !is_for_others {
                return Ok(Vec::new());
            }
            let open: OpenPort = Arc::new(move |_| Ok(Box::new(SimPort::open(&core, number, identity.ip())?)));
            let patience = Duration::from_millis(patience);
            let options = DatagramOptions { patience, ..DatagramOptions::default() };
            let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
            Ok(vec![Arc::new(DatagramTransport::new(segments, registry, its_env, open, options)?)])
        });
        let engine = Arc::new(engine?);
        self.core.lock().members[number].engine = Arc::downgrade(&engine);
        Ok(engine)
    }

    /// Somebody who is no engine and may say anything to those who listen.
    pub fn stranger(&self, identity: Identity) -> SimEnv {
        let mut state = self.core.lock();
        let number = state.join(&identity);
        SimEnv::new(&self.core, number, identity, Random::new(0))
    }

    /// Breaks every stream: what was on its way is lost, and both sides are reset. Listeners stay.
    pub fn sever(&self) {
        self.core.lock().network.sever();
        self.core.record(0, What::Severed, 0);
    }

    /// Breaks every stream between two engines.
    pub fn sever_between(&self, one: &Node, other: &Node) {
        if let (Some(one), Some(other)) = (self.number_of(one), self.number_of(other)) {
            self.core.lock().network.sever_between(one, other);
            self.core.record(one, What::Severed, other as u64);
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// The clock.
    pub fn now(&self) -> Timestamp {
        self.core.now()
    }

    /// One step: something arrives, or an engine makes a turn.
    pub fn step(&self) {
        self.core.step(STEP_NS_MAX);
    }

    /// One step, longer the longer nothing has happened. Answers whether something has.
    pub fn step_idly(&self) -> bool {
        self.core.step_idly()
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

    /// Steps until `done`, for so long at most by the world's clock; answers how long it took. Where nothing happens but
    /// that time passes, it passes in longer steps.
    pub fn wait(&self, within: Duration, mut done: impl FnMut() -> bool) -> Result<Duration, Stuck> {
        let began = self.now();
        let mut steps = 0;
        loop {
            let passed = self.now().since(began);
            if done() {
                return Ok(passed);
            }
            if passed >= within {
                return Err(Stuck { steps, seed: self.seed() });
            }
            self.step_idly();
            steps += 1;
        }
    }

    /// Lets so much time pass.
    pub fn run_for(&self, span: Duration) {
        // It is never done, so it ends by its time.
        let _ = self.wait(span, || false);
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

    /// Engines that start from now on have a receive buffer of so many bytes, as credit counts them.
    pub fn set_receive_bytes(&self, bytes: u64) {
        self.core.lock().packets.set_receive_bytes(bytes);
    }

    /// Whether what was on its way to each engine fitted into its receive buffer at all times.
    pub fn check_credit(&self) -> Result<(), Violated> {
        self.core.lock().packets.charges.check()
    }

    /// Listeners, ends of streams, and ports of packets that are open. A world without engines has none.
    pub fn open_ends(&self) -> usize {
        let state = self.core.lock();
        state.network.open() + state.packets.open_ports()
    }
}

impl Core {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// The clock of one engine.
    pub(crate) fn now_of(&self, engine: usize) -> Timestamp {
        let mut state = self.lock();
        let now = state.now;
        let member = &mut state.members[engine];
        if let Some(looks) = &mut member.death {
            *looks += 1;
            return member.clock.read(now) + DEAD_LOOK * *looks;
        }
        member.clock.read(now)
    }

    pub(crate) fn record(&self, engine: usize, what: What, digest: u64) {
        let mut state = self.lock();
        let event = Event { at: state.now, engine, what, digest };
        state.trace.record(event);
    }

    /// An engine waits: time passes, and others run.
    pub(crate) fn pause(&self, engine: usize, span: Duration) {
        if self.lock().is_dead(engine) {
            return;
        }
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
            self.step(STEP_NS_MAX);
        }
        self.lock().is_pausing = false;
    }

    /// One step, longer the longer nothing has happened.
    fn step_idly(&self) -> bool {
        let longest = {
            let state = self.lock();
            let idle = state.idle / (IDLE_STEPS * state.members.len().max(1) as u32);
            STEP_NS_MAX << idle.min(DOUBLINGS_MAX)
        };
        self.step(longest)
    }

    fn step(&self, longest_ns: usize) -> bool {
        let choice = self.lock().choose(longest_ns);
        let has_happened = match choice {
            Choice::Nothing => false,
            Choice::Deliver(end) => {
                let engine = self.lock().network.deliver(end);
                self.record(engine, What::Arrived, 0);
                true
            }
            Choice::Packet(place) => {
                let came = {
                    let mut state = self.lock();
                    let State { packets, links, .. } = &mut *state;
                    packets.deliver(place, links)
                };
                if let Some(engine) = came {
                    self.record(engine, What::Came, place as u64);
                }
                true
            }
            // Outside the lock: a function that a stream calls is anybody's.
            Choice::Copy(stream) => {
                self.work(stream);
                true
            }
            // Outside the lock: a turn uses the world.
            Choice::Turn { number, engine, whole } => {
                let turned = if whole { engine.progress_all() } else { engine.progress() };
                let answer = turned.map_or_else(|cause| 2 + u64::from(cause.code()), u64::from);
                self.record(number, What::Turned, answer);
                answer != 0
            }
        };
        let mut state = self.lock();
        state.idle = if has_happened { 0 } else { state.idle.saturating_add(1) };
        has_happened
    }
}

enum Choice {
    Nothing,
    Deliver(EndId),
    Packet(usize),
    Copy(u32),
    Turn { number: usize, engine: Node, whole: bool },
}

impl State {
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn send(
        &mut self,
        end: EndId,
        bytes: &[u8],
        tokens: &[BorrowedFd<'_>],
    ) -> io::Result<(usize, Vec<(What, u64)>)> {
        self.network.send(end, bytes, tokens, &mut self.random)
    }

    pub(crate) fn send_packet(&mut self, engine: usize, to: SocketAddr, packet: Vec<u8>) -> What {
        let from_host = self.host_of(engine);
        self.packets.send(from_host, to, packet, self.now, &self.links, &mut self.random)
    }

    pub(crate) fn accept(&mut self, listener: u64) -> Option<EndId> {
        self.network.accept(listener, &self.links)
    }

    pub(crate) fn can_accept(&self, listener: u64) -> bool {
        self.network.can_accept(listener, &self.links)
    }

    /// Takes somebody in, before there is an engine.
    fn join(&mut self, identity: &Identity) -> usize {
        let Identity { host, clock, pid, .. } = *identity;
        let member = Member { engine: Weak::new(), host, clock, is_frozen: false, death: None, pid, process: None };
        self.members.push(member);
        self.members.len() - 1
    }

    /// What becomes readable when the process with this id dies, if it is one of this world's only.
    pub(crate) fn end_of(&mut self, pid: u32) -> Option<OwnedFd> {
        let its = |member: &&mut Member| member.pid == pid && pid >= PIDS && member.death.is_none();
        let member = self.members.iter_mut().find(its)?;
        if member.process.is_none() {
            member.process = io::pipe().ok();
        }
        let (reader, _) = member.process.as_ref()?;
        reader.try_clone().ok().map(OwnedFd::from)
    }

    pub(crate) fn host_of(&self, engine: usize) -> u64 {
        self.members[engine].host
    }

    pub(crate) fn is_dead(&self, engine: usize) -> bool {
        self.members[engine].death.is_some()
    }

    /// What happens next.
    fn choose(&mut self, longest_ns: usize) -> Choice {
        let mut next = self.now + Duration::from_nanos(1 + self.random.below(longest_ns) as u64);
        if longest_ns > STEP_NS_MAX {
            // A long step does not pass by what would have happened on the way.
            let due = [self.packets.next_due(), self.devices.as_ref().and_then(Devices::next_due)];
            next = due.into_iter().flatten().fold(next, |next, due| next.min(due.max(self.now)));
        }
        self.now = next;
        let awaiting = self.network.awaiting(&self.links);
        let packets = self.packets.due(self.now);
        let turns = |member: &Member| (!member.is_frozen && member.death.is_none()).then(|| member.engine.upgrade());
        let members = self.members.iter().enumerate();
        let running: Vec<(usize, Node)> =
            members.filter_map(|(number, member)| Some((number, turns(member)??))).collect();
        let streams = self.devices.as_ref().map_or_else(Vec::new, |devices| devices.due(self.now));
        let choices = awaiting.len() + packets + running.len() + streams.len();
        if choices == 0 {
            return Choice::Nothing;
        }
        let chosen = self.random.below(choices);
        match awaiting.get(chosen) {
            Some(&end) => Choice::Deliver(end),
            None if chosen < awaiting.len() + packets => Choice::Packet(chosen - awaiting.len()),
            None if chosen >= choices - streams.len() => Choice::Copy(streams[chosen - (choices - streams.len())]),
            None => {
                let (number, engine) = running[chosen - awaiting.len() - packets].clone();
                Choice::Turn { number, engine, whole: !self.random.once_in(4) }
            }
        }
    }
}
