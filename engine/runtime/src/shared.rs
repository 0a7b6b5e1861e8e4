//! What handles, workers and the control loop of one engine share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_queue::SegQueue;
use penstock_core::budget::Budget;
use penstock_core::env::Waker;
use penstock_core::limits::PEERS_MAX;
use penstock_core::{Cause, Config, EngineName, Env, Epoch, Timestamp};
use penstock_memory::fork::Maker;
use penstock_memory::{LivenessLock, Registry};
use penstock_ring::{Key, Slab, mpsc};
use penstock_session::{EngineDescriptor, PeerBook, PeerKey, Secret};
use penstock_transport::host::{Bell, EngineSegments};
use penstock_transport::{Lane, Scope, Staging, Transport};

use crate::control::Wanted;
use crate::counter::CounterBook;
use crate::ending::Endings;
use crate::error::{ConnectError, RegionError};
use crate::inbox::Inbox;
use crate::manager::TransferManagerShell;
use crate::peer_state::PeerState;
use crate::quiesce::Quarantine;
use crate::renew::Renewals;
use crate::secret::{SecretFileError, SecretPath, given};
use crate::slot::Slot;
use crate::statistics::{Knocks, WorkerStatistics};
use crate::transports::TransportReport;
use crate::worker::Command;

/// Why an engine answers no call any more.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Closing {
    ShutDown = 1,
    /// Its control loop has panicked.
    ControlLost = 2,
}

/// The state of one engine.
pub(crate) struct Shared<E: Env> {
    pub(crate) env: E,
    pub(crate) config: Config,
    pub(crate) name: EngineName,
    pub(crate) epoch: Epoch,
    pub(crate) descriptor: EngineDescriptor,
    /// Where it listens for other hosts.
    pub(crate) bound: Vec<SocketAddr>,
    /// Which process this is; the same for all engines in it.
    pub(crate) process: u64,
    pub(crate) maker: Maker,
    pub(crate) registry: Arc<Registry>,
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    /// What moves device memory where a transport does not reach it.
    pub(crate) staging: Arc<Staging>,
    /// Those of the configuration, with those that are not here.
    pub(crate) reports: Vec<TransportReport>,
    pub(crate) slots: Slab<Slot>,
    pub(crate) inbox: Inbox,
    pub(crate) counters: CounterBook,
    pub(crate) peers: Peers,
    pub(crate) quarantine: Quarantine,
    /// Sessions that a control loop that is lost has not seen to their ends, and what opens when all workers have left.
    pub(crate) unsaid: Mutex<Vec<(Arc<PeerState>, Arc<Latch>)>>,
    /// Descriptors of peers' memory that nothing has mapped yet.
    pub(crate) fd_budget: Arc<Budget>,
    pub(crate) endings: Endings,
    pub(crate) renewals: Renewals,
    pub(crate) knocks: Knocks,
    /// Sessions whose other side sees nothing of this engine's memory.
    pub(crate) sessions_between_hosts: AtomicUsize,
    /// What this engine shares with others between hosts, once it was needed.
    secret: Mutex<Option<Arc<Secret>>>,
    book: Mutex<PeerBook>,
    pub(crate) workers: Vec<WorkerShared>,
    next_port: AtomicUsize,
    pub(crate) control: ControlShared,
    /// What the control layer keeps.
    pub(crate) manager: TransferManagerShell,
    /// Rings the engine's event fd, for whoever sleeps on it.
    pub(crate) application: Bell,
    /// Transfers that ended, ever; with the inbox's total it tells whether anything happened.
    pub(crate) completions: AtomicU64,
    /// Bits of [`Closing`].
    pub(crate) closing: AtomicU8,
    /// No new sessions and transfers; those there are come to their end.
    pub(crate) draining: AtomicBool,
}

/// Where one worker takes its work from.
pub(crate) struct WorkerShared {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) calls: SegQueue<WorkerCall>,
    pub(crate) bell: Bell,
    pub(crate) statistics: WorkerStatistics,
}

/// What the control loop asks of a worker; rare, so queued apart from commands.
pub(crate) enum WorkerCall {
    /// A session was established: this is the worker's lane.
    AddLane { peer: Arc<PeerState>, lane: Box<dyn Lane> },
    /// A session has ended: stop touching it, then open the latch.
    RemoveLane { peer: Arc<PeerState>, cause: Cause, left: Arc<Latch> },
    /// A side of the session drains: open the latch once nothing of this peer's is under way here.
    DrainTransfers { peer: Arc<PeerState>, drained: Arc<Latch> },
    /// The peer says nothing more: open the latch once all that it said is in the inbox.
    DrainInbound { peer: Arc<PeerState>, drained: Arc<Latch> },
    /// Room in the inbox came back; this peer's lane may hold notifications.
    PollLane { peer_index: u32 },
    /// The engine closes: the worker ends its transfers and its thread.
    Stop,
}

impl WorkerShared {
    pub(crate) fn call(&self, call: WorkerCall) {
        self.calls.push(call);
        self.bell.ring();
    }
}

/// Where the control loop takes its work from.
pub(crate) struct ControlShared {
    pub(crate) calls: SegQueue<ControlCall>,
    pub(crate) waker: Arc<dyn Waker>,
    /// The control loop is awake to look at what has changed, or will be.
    announcing: AtomicBool,
    /// Nobody takes calls any more.
    is_lost: AtomicBool,
}

/// What handles and workers ask of the control loop.
pub(crate) enum ControlCall {
    /// Find and greet an engine.
    Connect { wanted: Wanted, answer: Arc<Pending> },
    /// Ask a peer for a sign of life.
    Ping { peer: Arc<PeerState>, echo: Arc<Echo> },
    /// A lane has something to say to the peer's over the control channel.
    TransportMessage { peer: Arc<PeerState>, words: Vec<u8> },
    /// Regions or counters have changed.
    Announce,
    /// A region was registered with the cards of the peer that is spoken with under this token.
    Prepared { token: u64 },
    /// A lane found its session broken.
    Broken { peer: Arc<PeerState>, cause: Cause },
    /// Say goodbye to one peer.
    Disconnect { peer: Arc<PeerState>, left: Arc<Latch> },
    /// A worker has left a peer, or settled with it.
    LatchArrived,
    /// A watched transfer has ended. Its watcher holds it.
    Ended(Key),
    /// The peer tells the control layer that bytes are here.
    Landing { peer: Arc<PeerState>, payload: Vec<u8> },
    /// The transfer manager may want something.
    Manager,
    /// Let every session come to its end.
    Drain,
    /// Say goodbye to all, and return then or at this moment.
    Stop { until: Timestamp },
    /// What a bug might do.
    #[cfg(test)]
    Panic,
}

impl ControlShared {
    pub(crate) fn call(&self, call: ControlCall) {
        self.calls.push(call);
        self.waker.wake();
        // SYNC control-lost: pairs with lose(): it finds this call, or this finds that nobody takes it.
        if self.is_lost.load(Ordering::SeqCst) {
            self.answer_lost();
        }
    }

    /// The control loop is gone: calls that wait are answered, and so are those that come.
    pub(crate) fn lose(&self) {
        // SYNC control-lost: pairs with call().
        self.is_lost.swap(true, Ordering::SeqCst);
        self.answer_lost();
    }

    fn answer_lost(&self) {
        while let Some(call) = self.calls.pop() {
            match call {
                ControlCall::Connect { answer, .. } => answer.answer(Err(ConnectError::Call(Cause::EngineClosed))),
                ControlCall::Ping { echo, .. } => echo.latch.arrive(),
                ControlCall::Disconnect { left, .. } => left.arrive(),
                _ => {}
            }
        }
    }

    /// Says that regions or counters have changed. Many changes wake the control loop once.
    pub(crate) fn advertise(&self) {
        // SYNC announce: pairs with looks_at_changes(): it sees the change, or this sees it cleared.
        if !self.announcing.swap(true, Ordering::SeqCst) {
            self.call(ControlCall::Announce);
        }
    }

    /// The control loop is about to look at what has changed: later changes wake it again.
    pub(crate) fn looks_at_changes(&self) {
        // SYNC announce: pairs with announce().
        self.announcing.swap(false, Ordering::SeqCst);
    }
}

/// Opens once so many threads have arrived.
pub(crate) struct Latch {
    missing: Mutex<usize>,
    opened: Condvar,
}

impl Latch {
    pub(crate) fn new(peer_indices: usize) -> Arc<Self> {
        Arc::new(Self { missing: Mutex::new(peer_indices), opened: Condvar::new() })
    }

    pub(crate) fn arrive(&self) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing = missing.saturating_sub(1);
        self.opened.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) == 0
    }

    pub(crate) fn sleep(&self, within: Duration) -> bool {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let (missing, _) = self
            .opened
            .wait_timeout_while(missing, within, |missing| *missing > 0)
            .unwrap_or_else(PoisonError::into_inner);
        *missing == 0
    }
}

/// A question for a sign of life.
pub(crate) struct Echo {
    /// Opens when it is over, however that went.
    pub(crate) latch: Arc<Latch>,
    nanos: AtomicU64,
}

impl Echo {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { latch: Latch::new(1), nanos: AtomicU64::new(0) })
    }

    /// The answer has come, after so long.
    pub(crate) fn came(&self, after: Duration) {
        // The latch orders it: who finds it open finds this.
        self.nanos.store(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        self.latch.arrive();
    }

    /// How long the answer took, if it came.
    pub(crate) fn after(&self) -> Option<Duration> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        (nanos > 0).then_some(Duration::from_nanos(nanos))
    }
}

/// A connect that is under way.
#[derive(Default)]
pub(crate) struct Pending {
    answer: Mutex<Option<Result<Arc<PeerState>, ConnectError>>>,
    answered: Condvar,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Option<Result<Arc<PeerState>, ConnectError>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first answer counts.
    pub(crate) fn answer(&self, result: Result<Arc<PeerState>, ConnectError>) {
        self.lock().get_or_insert(result);
        self.answered.notify_all();
    }

    pub(crate) fn peek(&self) -> Option<Result<Arc<PeerState>, ConnectError>> {
        self.lock().clone()
    }

    pub(crate) fn sleep(&self, within: Duration) {
        let answer = self.lock();
        drop(self.answered.wait_timeout_while(answer, within, |answer| answer.is_none()));
    }
}

/// All peers, by their place; and those that left without proof that they touch nothing any more.
#[derive(Default)]
pub(crate) struct Peers {
    table: Mutex<PeerTable>,
}

#[derive(Default)]
struct PeerTable {
    taken: Vec<bool>,
    standing: BTreeMap<u32, Arc<PeerState>>,
    departed: Vec<Arc<PeerState>>,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, PeerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free place, the lowest there is.
    pub(crate) fn reserve(&self) -> Option<u32> {
        let mut table = self.lock();
        table.settle();
        let free = table.taken.iter().position(|&taken| !taken).unwrap_or(table.taken.len());
        if free >= PEERS_MAX {
            return None;
        }
        if free == table.taken.len() {
            table.taken.push(false);
        }
        table.taken[free] = true;
        Some(free as u32)
    }

    /// Gives a reserved place back unused.
    pub(crate) fn release(&self, peer_index: u32) {
        self.lock().taken[peer_index as usize] = false;
    }

    pub(crate) fn insert(&self, peer: &Arc<PeerState>) {
        self.lock().standing.insert(peer.peer_index, Arc::clone(peer));
    }

    /// Takes a peer out, once this engine's workers have left it. If it left without a word, its
    /// place stays taken until it is proven that it has stopped copying.
    pub(crate) fn remove(&self, peer_index: u32, said_goodbye: bool) {
        let mut table = self.lock();
        let Some(peer) = table.standing.remove(&peer_index) else { return };
        peer.forget_all();
        if said_goodbye && !peer.is_unproven() {
            table.taken[peer_index as usize] = false;
        } else {
            table.departed.push(peer);
        }
        table.settle();
    }

    pub(crate) fn standing(&self) -> Vec<Arc<PeerState>> {
        self.lock().standing.values().cloned().collect()
    }

    /// Whoever has this place in this life, or had it and is not proven to touch nothing.
    pub(crate) fn known(&self, key: PeerKey) -> Option<Arc<PeerState>> {
        let table = self.lock();
        let is_it = |peer: &&Arc<PeerState>| peer.peer_index == key.peer_index && peer.epoch == key.epoch;
        table.standing.get(&key.peer_index).filter(is_it).or_else(|| table.departed.iter().find(is_it)).cloned()
    }

    /// The standing session with this life of the engine of this name. Zero is no life: whoever asks with it does not know which.
    pub(crate) fn with_epoch(&self, epoch: u64, name: &str) -> Option<Arc<PeerState>> {
        let table = self.lock();
        let is_it =
            |peer: &&Arc<PeerState>| peer.epoch.0 == epoch && peer.name.as_str() == name && peer.ended().is_none();
        table.standing.values().find(is_it).filter(|_| epoch != 0).cloned()
    }

    /// The session with the engine of this name, if it stands.
    pub(crate) fn with_name(&self, name: &EngineName) -> Option<Arc<PeerState>> {
        let table = self.lock();
        table.standing.values().find(|peer| peer.name == *name && peer.seems_alive()).cloned()
    }

    /// Everyone who might be touching this engine's memory.
    pub(crate) fn possible_writers(&self) -> Vec<Arc<PeerState>> {
        let mut table = self.lock();
        table.settle();
        table.standing.values().chain(&table.departed).cloned().collect()
    }

    /// The engine has ended: of those that have not said goodbye nothing more is heard.
    pub(crate) fn lose_all(&self) {
        let table = self.lock();
        table
            .standing
            .values()
            .chain(&table.departed)
            .filter(|peer| !peer.has_let_go())
            .for_each(|peer| peer.was_lost());
    }

    /// How many places were ever taken: this engine's own workers may be copying for any of them.
    pub(crate) fn places(&self) -> u32 {
        self.lock().taken.len() as u32
    }
}

impl PeerTable {
    fn settle(&mut self) {
        let Self { taken, departed, .. } = self;
        departed.retain(|peer| {
            let gone = peer.is_gone();
            if gone {
                taken[peer.peer_index as usize] = false;
            }
            !gone
        });
    }
}

/// What [`Shared`] is made of.
pub(crate) struct SharedParts<E: Env> {
    pub(crate) env: E,
    pub(crate) config: Config,
    pub(crate) name: EngineName,
    pub(crate) epoch: Epoch,
    pub(crate) descriptor: EngineDescriptor,
    pub(crate) bound: Vec<SocketAddr>,
    pub(crate) process: u64,
    pub(crate) registry: Arc<Registry>,
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) reports: Vec<TransportReport>,
    pub(crate) ports: Vec<WorkerShared>,
    pub(crate) waker: Arc<dyn Waker>,
}

impl<E: Env> Shared<E> {
    pub(crate) fn new(parts: SharedParts<E>) -> Arc<Self> {
        let SharedParts { env, config, name, epoch, descriptor: card, bound, process, registry, segments, .. } = parts;
        let SharedParts { transports, staging, reports, ports, waker, .. } = parts;
        let in_flight = u32::try_from(config.transfers.in_flight).expect("the configuration was validated");
        let fds = config.session.descriptors;
        let fd_budget = Budget::new(if fds == 0 { env.fds_max() / 2 } else { fds } as u64);
        let manager = TransferManagerShell::new(&config, std::array::from_fn(|_| env.random()));
        Arc::new(Self {
            application: segments.ringer(0),
            counters: CounterBook::new(segments.mailbox.view().clone()),
            env,
            config,
            name,
            epoch,
            descriptor: card,
            bound,
            process,
            maker: Maker::this_process(),
            registry,
            segments,
            transports,
            staging,
            reports,
            slots: Slab::new(in_flight, |_| Slot::new()),
            inbox: Inbox::default(),
            peers: Peers::default(),
            quarantine: Quarantine::default(),
            unsaid: Mutex::default(),
            fd_budget,
            endings: Endings::default(),
            renewals: Renewals::default(),
            knocks: Knocks::default(),
            sessions_between_hosts: AtomicUsize::new(0),
            secret: Mutex::new(None),
            book: Mutex::default(),
            workers: ports,
            next_port: AtomicUsize::new(0),
            manager,
            control: ControlShared {
                calls: SegQueue::new(),
                waker,
                announcing: AtomicBool::new(false),
                is_lost: AtomicBool::new(false),
            },
            completions: AtomicU64::new(0),
            closing: AtomicU8::new(0),
            draining: AtomicBool::new(false),
        })
    }

    /// The calling thread stands for this engine from now on, until what this answers is dropped.
    pub(crate) fn live(&self) -> Option<LivenessLock> {
        let taken = self.segments.owner_state.hold_liveness_lock();
        taken.inspect_err(|error| tracing::warn!(%error, "peers hear of a death of this process late")).ok()
    }

    /// What this engine shares with others between hosts: looked for at its first use.
    pub(crate) fn secret(&self) -> Result<Arc<Secret>, SecretFileError> {
        let mut kept = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(secret) = &*kept {
            return Ok(Arc::clone(secret));
        }
        let mut random = |bytes: &mut [u8]| {
            for part in bytes.chunks_mut(8) {
                part.copy_from_slice(&self.env.random().to_ne_bytes()[..part.len()]);
            }
        };
        let secret = match given(self.config.session.secret.as_ref())? {
            Some(secret) => secret,
            None => SecretPath::find(self.config.session.secret_file.as_deref())?.secret(&mut random)?,
        };
        let secret = Arc::new(secret);
        *kept = Some(Arc::clone(&secret));
        Ok(secret)
    }

    /// Who is where, as peers have told.
    pub(crate) fn book(&self) -> MutexGuard<'_, PeerBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a peer on another host may be silent.
    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.config.session.heartbeat_ms)
    }

    /// Whether any transport reaches so far.
    pub(crate) fn reaches(&self, reach: Scope) -> bool {
        self.transports.iter().any(|transport| transport.scope() == reach)
    }

    /// What is allowed and not here, and why, to be put behind a sentence; empty if nothing is.
    pub(crate) fn missing_in_words(&self) -> String {
        let in_words = |report: &TransportReport| {
            let why = report.missing.as_ref()?;
            Some(format!("; `{}` is allowed here, but this host has it not: {why}", report.name))
        };
        self.reports.iter().filter_map(in_words).collect()
    }

    /// Memory was withdrawn: who does not see that is told.
    pub(crate) fn tell_of_withdrawal(&self) {
        if self.sessions_between_hosts.load(Ordering::Relaxed) > 0 {
            self.control.advertise();
        }
    }

    /// The worker for the next transfer that needs only one.
    pub(crate) fn pick_port(&self) -> usize {
        match self.workers.len() {
            1 => 0,
            count => self.next_port.fetch_add(1, Ordering::Relaxed) % count,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) != 0 // SYNC closing: pairs with closes_as()
    }

    /// Says why no call is answered any more. Whether that was said before.
    pub(crate) fn closes_as(&self, why: Closing) -> bool {
        self.closing.fetch_or(why as u8, Ordering::AcqRel) & why as u8 != 0 // SYNC closing: pairs with is_closing()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire) // SYNC draining: pairs with drain()'s store
    }

    /// Whether a transfer has not ended yet.
    pub(crate) fn has_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// The transfers that have not ended yet.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Slot> {
        let held = |index| self.slots.current_key(index).and_then(|key| self.slots.get(key));
        (0..self.slots.capacity()).filter_map(held).filter(|slot| slot.outcome().is_none())
    }

    /// Where an engine of this name listens, if it uses the same folder as this one.
    pub(crate) fn socket_of(&self, name: &EngineName) -> String {
        Path::new(&self.descriptor.socket).with_file_name(format!("{name}.sock")).display().to_string()
    }

    /// Whether this process is a forked child of the engine's: none of its locks may be taken, since a thread of the parent may have
    /// held them at the fork.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.maker.is_ancestor()
    }

    pub(crate) fn refuse_inherited(&self) -> Result<(), RegionError> {
        if self.is_inherited() { Err(RegionError::Call(Cause::Forked)) } else { Ok(()) }
    }

    /// Whether calls can be made at all from here.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), Cause> {
        if self.is_inherited() {
            return Err(Cause::Forked);
        }
        if self.is_closing() {
            return Err(Cause::EngineClosed);
        }
        Ok(())
    }

    /// One holder of a transfer lets go; the last gives the slot back.
    pub(crate) fn release_slot(&self, key: Key) {
        if self.slots.get(key).is_some_and(Slot::release_reference) {
            let released = self.slots.release(key);
            debug_assert!(released.is_ok(), "only the last holder releases");
        }
    }

    /// A transfer has ended: whoever sleeps on the event fd hears of it, and the control loop if it watches it.
    pub(crate) fn count_completion(&self, key: Key, is_watched: bool) {
        if is_watched {
            self.control.call(ControlCall::Ended(key));
        }
        self.completions.fetch_add(1, Ordering::Release); // SYNC activity: pairs with arm()
        self.application.ring();
    }
}
