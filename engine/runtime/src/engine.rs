//! An engine: one name, one epoch, its workers, its memory and its peers.

use std::borrow::Borrow;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_core::config::{Config, PagesChoice, StagingChoice};
use penstock_core::env::{Address, Listener, Reactor, TransportEnv};
use penstock_core::{Cause, EngineName, Env, Epoch, Fault, Rights};
use penstock_memory::{DeviceMemory, HostMemory, PoolSpec, Registry};
use penstock_ring::mpsc;
use penstock_session::EngineDescriptor;
use penstock_session::descriptor::ADDRESSES_MAX;
use penstock_transport::host::{EngineSegments, OwnBell, silence};
use penstock_transport::{Devices, Driver, PacketStatistics, Scope, Staging, Transport};
use rustix::event::epoll;

use crate::control::{Control, Wanted};
use crate::engine_inner::{EngineInner, Inline};
use crate::error::{ConnectError, RegionError, StartError};
use crate::inbox::Notification;
use crate::peer::{Peer, covers};
use crate::peer_state::PeerState;
use crate::quiesce::Quarantined;
use crate::region::{DevicePool, LocalRegion, Pool};
use crate::shared::{ControlCall, Pending, Shared, SharedParts, WorkerShared};
use crate::statistics::{NetworkStatistics, Statistics, WorkerStatistics};
use crate::system::SystemEnv;
use crate::transfer::{Completed, Transfer};
use crate::transports::{self, Opened, TransportReport};
use crate::worker::{DRIVERS_MAX, Worker};

/// One engine in one process.
///
/// With threads it works by itself; an inline engine (`workers.progress: inline`) works only inside
/// its own calls and in [`Engine::progress`], on the thread that started it. Dropping the engine says
/// goodbye to its peers and leaves nothing behind, but for memory that a peer which was stopped might still
/// touch: see [`Engine::close`].
pub struct Engine<E: Env = SystemEnv> {
    pub(crate) engine: Arc<EngineInner<E>>,
    /// What [`Engine::arm`] has seen.
    seen: AtomicU64,
}

/// Whether the event fd may be slept on: the answer of [`Engine::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Nothing has happened since the last look; the event fd becomes readable when something does.
    Armed,
    /// Something has happened: look again before sleeping.
    Busy,
}

impl Engine<SystemEnv> {
    /// Starts an engine: its segments, transports, workers and control loop.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_in(SystemEnv, config)
    }
}

impl<E: Env> Engine<E> {
    /// Starts an engine in an environment of one's own.
    pub fn start_in(env: E, config: Config) -> Result<Self, StartError> {
        Self::start_with(env, config, Vec::new())
    }

    /// The same, with transports of one's own after those of the configuration.
    #[doc(hidden)]
    pub fn start_with(env: E, config: Config, own: Vec<Arc<dyn Transport>>) -> Result<Self, StartError> {
        Self::start_making(env, config, |_, _| Ok(own))
    }

    /// The same, with transports of one's own that are made of what every transport of the engine shares. One of a name that the
    /// configuration allows takes the place of the engine's.
    #[doc(hidden)]
    pub fn start_making<M>(env: E, config: Config, make: M) -> Result<Self, StartError>
    where
        M: FnOnce(&Arc<EngineSegments>, &Arc<Registry>) -> std::io::Result<Vec<Arc<dyn Transport>>>,
    {
        config.validate()?;
        if config.session.secret.is_some() {
            crate::secret::given(config.session.secret.as_ref())?; // Whether or not it is ever needed.
        }
        let program = std::env::args().next().unwrap_or_default();
        let program = PathBuf::from(program).file_name().map(|name| name.to_string_lossy().into_owned());
        let name = config.engine.name_or(&program.unwrap_or_default(), std::process::id())?;
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        let folder = config.engine.directory_or(runtime_dir.as_deref(), env.credentials().uid);
        let socket = folder.join(format!("{name}.sock"));
        let address = Address::Unix(socket.clone());
        let workers = if config.workers.progress.is_threaded() { config.workers.count } else { 1 };
        let segments = EngineSegments::create(workers)?;
        let registry = Arc::new(Registry::new());
        let system = |what| move |source| StartError::System { what, source };
        let own = make(&segments, &registry).map_err(system("a transport of the caller's own"))?;
        let transport_env: Arc<dyn TransportEnv> = Arc::new(env.clone());
        let listening = env.listen(&address);
        let path = address.to_string();
        let listener = listening.map_err(|source| StartError::Listen { path: path.clone(), source })?;
        let Opened { transports, reports, devices } =
            transports::open(&transport_env, &config, &segments, &registry, &env.place_beside(&socket), own)?;
        let mut listeners = vec![listener];
        let is_network = transports.iter().any(|transport| transport.scope() == Scope::Network);
        let bound = if is_network { listen_for_others(&env, &config, &mut listeners)? } else { Vec::new() };
        if !is_network && !config.session.listen.is_empty() {
            tracing::warn!("`session.listen` is of no use: `transports.allow` has no transport between hosts");
        }
        let reactor = env.reactor().map_err(system("a reactor"))?;
        let epoch = Epoch(env.random().max(1));
        let (name_text, host) = (name.to_string(), env.host());
        let card =
            EngineDescriptor { name: name_text, epoch: epoch.0, host, socket: path, addresses: named(&config, &bound) };
        let staging = {
            // Off or not: a peer may stage its own.
            let devices = devices.clone().filter(|_| config.device.staging == StagingChoice::Auto);
            let (segments, registry, bytes) =
                (Arc::clone(&segments), Arc::clone(&registry), config.device.staging_bytes);
            Arc::new(Staging::new(devices, segments, registry, bytes))
        };
        let drivers = drivers(&transports, devices.as_deref(), workers).map_err(system(DRIVER))?;
        let (ports, queues): (Vec<_>, Vec<_>) = (0..workers).map(|worker| port(&config, &segments, worker)).unzip();
        let process = env.process();
        let waker = reactor.waker();
        let parts = SharedParts {
            env,
            config,
            name,
            epoch,
            descriptor: card,
            bound,
            process,
            registry,
            segments,
            transports,
            staging,
            reports,
            ports,
            waker,
        };
        let shared = Shared::new(parts);
        if !shared.bound.is_empty() {
            // Read now: an engine that listens and cannot tell who knows the secret would be of no use.
            shared.secret()?;
        }
        let equipped = queues.into_iter().zip(drivers).enumerate();
        let mut workers: Vec<Worker<E>> =
            equipped.map(|(index, (queue, drivers))| Worker::new(index, &shared, queue, drivers)).collect();
        if !shared.config.workers.progress.is_threaded() {
            workers.iter_mut().try_for_each(Worker::begin).map_err(system(DRIVER))?;
            return Self::start_inline(&shared, reactor, listeners, workers).map_err(system("a reactor"));
        }
        let control = Control::new(&shared, reactor, listeners).map_err(system("a reactor"))?;
        let event_fd = event_set(&shared.segments.bells()[0]).map_err(system("an epoll set"))?;
        let engine = spawn(&shared, control, workers, event_fd)?;
        Ok(Self { engine, seen: AtomicU64::new(0) })
    }

    fn start_inline(
        shared: &Arc<Shared<E>>,
        mut reactor: E::Reactor,
        listeners: Vec<E::Listener>,
        workers: Vec<Worker<E>>,
    ) -> std::io::Result<Self> {
        for bell in shared.segments.bells() {
            bell.descriptors().try_for_each(|descriptor| reactor.watch_bell(descriptor))?;
        }
        for driver in workers.iter().flat_map(|worker| &worker.drivers) {
            reactor.watch_driver(driver.fd())?;
        }
        let event_fd = match reactor.descriptor() {
            Some(descriptor) => descriptor.try_clone_to_owned()?,
            None => event_set(&shared.segments.bells()[0])?,
        };
        let control = Control::new(shared, reactor, listeners)?;
        let worker = workers.into_iter().next().expect("an inline engine has one worker");
        let engine = EngineInner::inline(Arc::clone(shared), Inline::new(worker, control), event_fd);
        Ok(Self { engine, seen: AtomicU64::new(0) })
    }

    /// From the configuration; drawn at random if that has none.
    pub fn name(&self) -> &EngineName {
        &self.engine.shared.name
    }

    /// This life of it.
    pub fn epoch(&self) -> Epoch {
        self.engine.shared.epoch
    }

    /// The configuration it runs with.
    pub fn config(&self) -> &Config {
        &self.engine.shared.config
    }

    /// Its portable descriptor: bytes that any means may carry to whoever wants to connect.
    pub fn descriptor(&self) -> Vec<u8> {
        self.engine.shared.descriptor.encode()
    }

    /// Where it listens for other hosts, with the ports it was given.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.engine.shared.bound.clone()
    }

    /// The addresses at which its descriptor says that it is reached: for a wildcard those of this host.
    pub fn advertised(&self) -> Vec<SocketAddr> {
        self.engine.shared.descriptor.addresses.iter().filter_map(|address| address.parse().ok()).collect()
    }

    /// The transports of `transports.allow`: which are offered to peers, and why the others are not.
    pub fn transports(&self) -> &[TransportReport] {
        &self.engine.shared.reports
    }

    /// What came of connections from other hosts.
    pub fn network_statistics(&self) -> NetworkStatistics {
        self.engine.shared.knocks.read()
    }

    /// Makes a pool, registers it, and announces it to peers by its label.
    pub fn pool(&self, spec: PoolSpec) -> Result<Pool<E>, RegionError> {
        self.usable()?;
        fits_a_frame(spec.label_text())?;
        let spec = match self.engine.shared.config.memory.pages {
            PagesChoice::Auto => spec,
            PagesChoice::Small => spec.default_pages(penstock_memory::Pages::Small),
            PagesChoice::Huge => spec.default_pages(penstock_memory::Pages::Huge),
        };
        let pool = Arc::new(penstock_memory::Pool::create(spec)?);
        let region = self.engine.shared.registry.register_pool(Arc::clone(&pool))?;
        Ok(Pool::new(self.advertise(region), pool))
    }

    /// Registers memory of the caller and announces it to peers by its label. The same range, label and rights again are the same
    /// region, counted: it stands until it was deregistered as often. Otherwise ranges may overlap and repeat, each a region of its own.
    pub fn register(&self, memory: HostMemory, label: &str, rights: Rights) -> Result<LocalRegion<E>, RegionError> {
        self.usable()?;
        fits_a_frame(label)?;
        let region = self.engine.shared.registry.register_host(memory, label, rights)?;
        Ok(self.advertise(region))
    }

    /// Makes a pool of a device's memory ([`PoolSpec::device`]), registers it, and announces it to peers by its label. Its bytes are rounded up to what the device
    /// makes memory of, 2 MiB as a rule.
    pub fn device_pool(&self, spec: PoolSpec) -> Result<DevicePool<E>, RegionError> {
        self.usable()?;
        fits_a_frame(spec.label_text())?;
        let device = spec.device_id().ok_or(penstock_memory::MemoryError::NotHere {
            what: "a pool of no device",
            why: "its specification is one of host memory",
            mend: "use PoolSpec::device, or Engine::pool",
        })?;
        let memory = penstock_cuda::allocate(device, spec.bytes())?;
        let pool = Arc::new(penstock_memory::DeviceBlocks::over(memory, spec)?);
        let region = self.engine.shared.registry.register_device_blocks(Arc::clone(&pool))?;
        Ok(DevicePool { region: self.advertise(region), pool })
    }

    /// Registers memory of a device, as [`device::adopt`](crate::device::adopt) has taken it in, and announces it to peers. Otherwise as
    /// [`Engine::register`].
    pub fn register_device(
        &self,
        memory: DeviceMemory,
        label: &str,
        rights: Rights,
    ) -> Result<LocalRegion<E>, RegionError> {
        self.usable()?;
        fits_a_frame(label)?;
        let region = self.engine.shared.registry.register_device(memory, label, rights)?;
        Ok(self.advertise(region))
    }

    /// All regions of this engine, in the order of their last change.
    pub fn regions(&self) -> Vec<LocalRegion<E>> {
        if self.engine.shared.is_inherited() {
            return Vec::new(); // The registry may be locked for ever.
        }
        let list = self.engine.shared.registry.changes_since(0).list.into_iter();
        let of_users = list.filter_map(|(_, region)| region.filter(|region| !region.is_internal()));
        of_users.map(|region| LocalRegion { engine: Arc::clone(&self.engine), region }).collect()
    }

    /// The region of this engine that has these bytes at this address; of several the newest.
    pub fn region_at(&self, address: u64, bytes: u64) -> Option<LocalRegion<E>> {
        if self.engine.shared.is_inherited() {
            return None;
        }
        let region = self.engine.shared.registry.find_at(address, bytes, false)?;
        let range = (region.base_address(), region.bytes());
        covers(range, address, bytes).then(|| LocalRegion { engine: Arc::clone(&self.engine), region })
    }

    fn advertise(&self, region: Arc<penstock_memory::Region>) -> LocalRegion<E> {
        self.engine.shared.control.advertise();
        LocalRegion { engine: Arc::clone(&self.engine), region }
    }

    /// Why calls are refused, if they are: it was closed, or this process is a fork of its own.
    pub fn ended(&self) -> Option<Cause> {
        self.engine.shared.check_usable().err()
    }

    fn usable(&self) -> Result<(), RegionError> {
        self.engine.shared.check_usable().map_err(RegionError::Call)
    }

    /// Connects to the engine that this descriptor is of. An engine that is connected already
    /// is found, not connected again.
    pub fn connect(&self, descriptor: &[u8], timeout: Duration) -> Result<Peer<E>, ConnectError> {
        self.engine.shared.check_usable().map_err(ConnectError::Call)?;
        self.begin_card(EngineDescriptor::decode(descriptor)?, Some(timeout))?.wait(timeout)
    }

    /// Begins to connect. An inline engine that shares its thread with the other one needs this.
    pub fn connect_begin(&self, descriptor: &[u8]) -> Result<Connecting<E>, ConnectError> {
        self.engine.shared.check_usable().map_err(ConnectError::Call)?;
        self.begin_card(EngineDescriptor::decode(descriptor)?, None)
    }

    /// On one host by the socket, and at the addresses where that is not to be had.
    pub(crate) fn begin_card(
        &self,
        card: EngineDescriptor,
        within: Option<Duration>,
    ) -> Result<Connecting<E>, ConnectError> {
        let is_here = card.host == self.engine.shared.descriptor.host;
        let wanted = Wanted {
            epoch: card.epoch,
            must_be: None,
            socket: Some(card.socket).filter(|_| is_here),
            addresses: card.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            secret: None,
            within,
            name: card.name,
        };
        self.begin(wanted)
    }

    pub(crate) fn begin(&self, mut wanted: Wanted) -> Result<Connecting<E>, ConnectError> {
        let shared = &self.engine.shared;
        let name = wanted.name.clone();
        if let Some(peer) = shared.peers.with_epoch(wanted.epoch, &wanted.name) {
            return Ok(self.found(name, peer));
        }
        if !shared.reaches(Scope::Host) {
            wanted.socket = None;
        }
        if !shared.reaches(Scope::Network) {
            wanted.addresses.clear();
        }
        if wanted.socket.is_none() && wanted.addresses.is_empty() {
            return Err(ConnectError::OtherHost { name, missing: shared.missing_in_words() });
        }
        if !wanted.addresses.is_empty() {
            match shared.secret() {
                Ok(secret) => wanted.secret = Some(secret),
                // On this host it may not be needed.
                Err(_) if wanted.socket.is_some() => wanted.addresses.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        let answer = Arc::new(Pending::default());
        shared.control.call(ControlCall::Connect { wanted, answer: Arc::clone(&answer) });
        Ok(Connecting { engine: Arc::clone(&self.engine), answer, name })
    }

    /// A session that stands already, and may not be complete.
    pub(crate) fn found(&self, name: String, peer: Arc<PeerState>) -> Connecting<E> {
        let answer = Arc::new(Pending::default());
        answer.answer(Ok(peer));
        Connecting { engine: Arc::clone(&self.engine), answer, name }
    }

    /// All peers with a standing session, whoever connected, this engine itself once. One that has called this engine is among them as soon as it is known what it
    /// can do and what it has, so that any call may name it; not later than its own `connect` returns.
    pub fn peers(&self) -> Vec<Peer<E>> {
        if self.engine.shared.is_inherited() {
            return Vec::new(); // None of them is the child's, and the table may be locked for ever.
        }
        let standing = self.engine.shared.peers.standing().into_iter();
        let standing = standing.filter(|state| state.is_complete() && state.ended().is_none());
        // A session with oneself has both its ends here.
        let standing = standing.filter(|state| state.epoch != self.epoch() || state.was_called());
        standing.map(|state| Peer { engine: Arc::clone(&self.engine), state }).collect()
    }

    /// One turn of an inline engine; answers whether anything happened. Others work by themselves.
    #[inline]
    pub fn progress(&self) -> Result<bool, Cause> {
        self.engine.progress()
    }

    /// As [`Engine::progress`], and looks at the sockets too, which `progress` does only now and then.
    pub fn progress_all(&self) -> Result<bool, Cause> {
        self.engine.progress_all()
    }

    /// Takes all notifications that have arrived, in the order they did, and answers how many.
    pub fn notifications(&self, taken: &mut Vec<Notification>) -> usize {
        self.notifications_at_most(taken, usize::MAX)
    }

    /// The same, no more than so many: the others stay.
    pub fn notifications_at_most(&self, taken: &mut Vec<Notification>, most: usize) -> usize {
        if self.engine.shared.is_inherited() {
            return 0; // They are the parent's to take.
        }
        let shared = &self.engine.shared;
        shared.inbox.take(taken, most, |starved| {
            for port in &shared.workers {
                port.call(crate::shared::WorkerCall::PollLane { peer_index: starved.peer_index });
            }
        })
    }

    /// Waits until there is a notification to take, at most so long, and not longer than the engine runs. Answers whether there is.
    pub fn wait_notification(&self, timeout: Duration) -> bool {
        if self.engine.shared.is_inherited() {
            return false;
        }
        let shared = &self.engine.shared;
        if self.engine.is_inline() {
            let until = shared.env.now() + timeout;
            self.engine.wait_until(until, || !shared.inbox.is_empty() || shared.is_closing());
            return !shared.inbox.is_empty();
        }
        shared.inbox.sleep(timeout, || shared.is_closing())
    }

    /// Which of these transfers have ended, each by its place in the list, and how; `ended` is emptied first. One look at each; an inline
    /// engine makes one turn before.
    pub fn poll_many<T: Borrow<Transfer<E>>>(
        &self,
        transfers: &[T],
        ended: &mut Vec<(usize, Result<Completed, Fault>)>,
    ) -> Result<usize, Cause> {
        self.engine.progress()?;
        ended.clear();
        let end = |(place, transfer): (usize, &T)| Some((place, transfer.borrow().poll()?));
        ended.extend(transfers.iter().enumerate().filter_map(end));
        Ok(ended.len())
    }

    /// A descriptor for `poll` or `epoll`: readable when something happened after [`Engine::arm`], and for an inline engine also when it
    /// has to be turned for the sake of a deadline: then nothing may have happened yet.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.engine.event_fd.as_fd()
    }

    /// Asks for the event fd to be rung, right before sleeping on it. `Busy` means that transfers
    /// ended, notifications arrived or counters went up since the last call: look at them first.
    pub fn arm(&self) -> Result<Armed, Cause> {
        let shared = &self.engine.shared;
        shared.check_usable()?;
        // The bell may still sound from the last sleep.
        shared.segments.bells()[0].descriptors().for_each(silence);
        let sleeper = shared.segments.sleeper(0);
        sleeper.prepare();
        let idle = self.engine.with_inline(Inline::rest).unwrap_or(Ok(true))?;
        let now = shared
            .completions
            .load(Ordering::Acquire) // SYNC activity: pairs with completed_one()
            .wrapping_add(shared.inbox.total())
            .wrapping_add(shared.counters.total())
            .wrapping_add(shared.manager.tellings());
        let before = self.seen.swap(now, Ordering::Relaxed);
        if idle && before == now {
            return Ok(Armed::Armed);
        }
        sleeper.awake();
        let _ = self.engine.with_inline(|inline| inline.worker.sleeper.awake());
        Ok(Armed::Busy)
    }

    /// What the workers have done so far.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        self.engine.shared.workers.iter().for_each(|port| port.statistics.add_to(&mut sum));
        sum
    }

    /// What has become of the packets of its transports that have some of their own (`datagram`). The kernel counts those of
    /// `tcp`, and cards those of `verbs`.
    pub fn packet_statistics(&self) -> PacketStatistics {
        let mut sum = PacketStatistics::default();
        let counted = self.engine.shared.transports.iter().filter_map(|transport| transport.packets());
        counted.for_each(|packets| sum += packets);
        sum
    }

    /// Memory of this engine that a stopped or unreachable peer might still touch.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        if self.engine.shared.is_inherited() {
            return Vec::new();
        }
        self.engine.shared.quarantine.list()
    }

    /// Ends the engine: lets transfers that run end for half of the time, says goodbye to its peers, and takes all of its memory back.
    ///
    /// Answers by its deadline which memory a peer that was stopped, or a card, might still touch; none as a rule. Such memory of the
    /// caller's own must not be reused before [`Quarantined::is_released`] says so, which needs no engine any more. What Penstock
    /// owns (pools, [`HostMemory::from_vec`]) is kept by the answer, and leaked with a warning if the answer is dropped before.
    /// Dropping the engine does the same within `session.shutdown_timeout_ms` and tells nobody: so close it where memory of your own
    /// is registered. Calls that other threads wait in end with [`Cause::EngineClosed`], or say that what they wait for has not come.
    #[must_use = "what is quarantined may not be reused"]
    pub fn close(&self, timeout: Duration) -> Vec<Quarantined> {
        if self.engine.shared.is_inherited() {
            return Vec::new();
        }
        self.engine.shut_down(Some(timeout));
        self.engine.shared.quarantine.list().into_iter().filter(|held| !held.ranges().is_empty()).collect()
    }

    /// Transfers between submission and the drop of their handle, and those of which it is still to be proven that nothing lands any more.
    pub fn transfers_held(&self) -> usize {
        let slots = &self.engine.shared.slots;
        (0..slots.capacity()).filter(|&index| slots.current_key(index).is_some()).count()
    }
}

/// Peers find a region by its label, whole.
fn fits_a_frame(label: &str) -> Result<(), RegionError> {
    match label.len() {
        bytes if bytes > penstock_session::frame::LABEL_BYTES_MAX => Err(RegionError::LabelTooLong { bytes }),
        _ => Ok(()),
    }
}

impl<E: Env> Drop for Engine<E> {
    fn drop(&mut self) {
        self.engine.shut_down(None);
    }
}

impl<E: Env> std::fmt::Debug for Engine<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", self.name())
            .field("epoch", &self.epoch())
            .field("quarantined", &self.quarantined())
            .finish()
    }
}

/// A connect that is under way.
pub struct Connecting<E: Env> {
    engine: Arc<EngineInner<E>>,
    answer: Arc<Pending>,
    name: String,
}

impl<E: Env> Connecting<E> {
    /// The answer, once there is one. A peer is ready when what it can do and what it had to offer is known: its regions, its counters and
    /// its layouts.
    pub fn poll(&self) -> Option<Result<Peer<E>, ConnectError>> {
        match self.answer.peek()? {
            Ok(state) => match state.refusal(&self.name) {
                Some(error) => Some(Err(error)),
                None if state.is_complete() => Some(Ok(Peer { engine: Arc::clone(&self.engine), state })),
                None => state.ended().map(|cause| Err(self.lost(cause))),
            },
            Err(error) => Some(Err(error)),
        }
    }

    /// The time is over. With a peer whose regions are known plans can be moved, although it has not answered what else it can do.
    fn at_the_end(&self) -> Option<Result<Peer<E>, ConnectError>> {
        let state = self.answer.peek()?.ok().filter(|state| state.is_introduced() && state.ended().is_none())?;
        Some(Ok(Peer { engine: Arc::clone(&self.engine), state }))
    }

    fn lost(&self, cause: Cause) -> ConnectError {
        ConnectError::Lost { name: self.name.clone(), reason: format!("before its session was complete, {cause}") }
    }

    /// Waits for the answer, at most so long.
    pub fn wait(&self, timeout: Duration) -> Result<Peer<E>, ConnectError> {
        let env = &self.engine.shared.env;
        let until = env.now() + timeout;
        let timed_out = || ConnectError::TimedOut { name: self.name.clone(), within: timeout };
        if self.engine.is_inline() {
            self.engine.progress().map_err(ConnectError::Call)?;
            self.engine.wait_until(until, || self.poll().is_some());
            return self.poll().or_else(|| self.at_the_end()).unwrap_or_else(|| Err(timed_out()));
        }
        self.answer.sleep(timeout);
        let state = self.answer.peek().ok_or_else(timed_out)??;
        let peer = Peer { engine: Arc::clone(&self.engine), state };
        peer.wait_for_news(until.since(env.now()), || peer.state.is_complete());
        self.poll().or_else(|| self.at_the_end()).unwrap_or_else(|| Err(timed_out()))
    }
}

/// What an application sleeps on whose engine has threads: readable while its bell sounds.
fn event_set(bell: &OwnBell) -> std::io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |descriptor| epoll::add(&set, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    bell.descriptors().try_for_each(add)?;
    Ok(set)
}

/// Listens at the configured addresses. Answers with them, as others can use them.
fn listen_for_others<E: Env>(
    env: &E,
    config: &Config,
    listeners: &mut Vec<E::Listener>,
) -> Result<Vec<SocketAddr>, StartError> {
    let mut bound = Vec::new();
    for text in &config.session.listen {
        let failed = |source| StartError::Network { address: text.clone(), source };
        let address = text.parse().map_err(|error| failed(std::io::Error::other(format!("{error}"))))?;
        let listener = env.listen(&Address::Tcp(address)).map_err(failed)?;
        bound.push(listener.address().unwrap_or(address));
        listeners.push(listener);
    }
    Ok(bound)
}

/// The addresses that the engine's descriptor names.
fn named(config: &Config, bound: &[SocketAddr]) -> Vec<String> {
    if bound.is_empty() || config.session.advertise.is_empty() {
        return crate::interfaces::advertised(bound).iter().map(ToString::to_string).collect();
    }
    config.session.advertise.iter().take(ADDRESSES_MAX).cloned().collect()
}

/// What cannot be had if a worker's drivers cannot be made or begun.
const DRIVER: &str = "a transport's way to the kernel";

/// What each worker does for all its lanes of a transport at once.
fn drivers(
    transports: &[Arc<dyn Transport>],
    devices: Option<&dyn Devices>,
    workers: usize,
) -> std::io::Result<Vec<Vec<Box<dyn Driver>>>> {
    let of = |worker| {
        let drivers = transports.iter().filter_map(move |transport| transport.driver(worker).transpose());
        let drivers = drivers.chain(devices.map(|devices| devices.driver(worker)));
        let drivers: Vec<Box<dyn Driver>> = drivers.collect::<std::io::Result<_>>()?;
        if drivers.len() > DRIVERS_MAX {
            let many = format!("{} transports have one, and a worker waits for {DRIVERS_MAX} at most", drivers.len());
            return Err(std::io::Error::other(many));
        }
        Ok(drivers)
    };
    (0..workers).map(of).collect()
}

fn port(
    config: &Config,
    segments: &Arc<EngineSegments>,
    worker: usize,
) -> (WorkerShared, mpsc::Receiver<crate::worker::Command>) {
    let (commands, queue) = mpsc::channel(config.transfers.queue);
    let port = WorkerShared {
        commands,
        calls: crossbeam_queue::SegQueue::new(),
        bell: segments.ringer(1 + worker),
        statistics: WorkerStatistics::default(),
    };
    (port, queue)
}

/// Starts the control loop and the workers, each in its thread, the control loop first, and waits until the workers have begun.
fn spawn<E: Env>(
    shared: &Arc<Shared<E>>,
    control: Control<E>,
    workers: Vec<Worker<E>>,
    event_fd: OwnedFd,
) -> Result<Arc<EngineInner<E>>, StartError> {
    let (env, mut threads) = (&shared.env, Vec::with_capacity(1 + workers.len()));
    let mut start = |name: &str, core, body| {
        threads.push(env.spawn(name, core, body).map_err(|source| StartError::System { what: "a thread", source })?);
        Ok(())
    };
    let mut started = start("penstock-control", None, Box::new(move || control.run()));
    let (begun, begins) = std::sync::mpsc::channel();
    for (index, mut worker) in workers.into_iter().enumerate() {
        let (core, begun) = (shared.config.workers.cores.get(index).copied(), begun.clone());
        let body = move || {
            let begins = worker.begin();
            let runs = begins.is_ok();
            let _ = begun.send(begins);
            drop(begun);
            if runs {
                worker.run();
            }
        };
        started = started.and_then(|()| start(&format!("penstock-{index}"), core, Box::new(body)));
    }
    drop(begun); // Once each worker has sent, or panicked, nothing more comes.
    let failed = begins.iter().find_map(Result::err);
    let failed = failed.map_or(Ok(()), |source| Err(StartError::System { what: DRIVER, source }));
    let engine = EngineInner::threaded(Arc::clone(shared), threads, event_fd);
    // Those that run already are told to stop.
    started.and(failed).inspect_err(|_| engine.shut_down(None)).map(|()| engine)
}
