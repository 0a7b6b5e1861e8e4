//! Everything that adapters, CQs and queues hold, under one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use penstock_memory::Window;
use rustix::event::{EventfdFlags, eventfd};

use super::cm::{CmConnection, Expected};
use super::memory::{MessagePayload, Registrations};
use super::{Losses, Options};
use crate::adapter::{
    AsyncEvent, ConnectParams, DeviceAttr, RecvBuffer, SendRequest, Token, Wc, WcStatus, WorkCompletion,
};

/// Packet numbers have 24 bits.
pub(super) const PACKET_MASK: u32 = (1 << 24) - 1;

pub(super) struct World {
    pub(super) options: Options,
    /// Time since the network was made.
    pub(super) now: Duration,
    /// The same where somebody makes it pass.
    pub(super) by_hand: Duration,
    pub(super) adapters: Vec<AdapterState>,
    /// All queues of all adapters, by a name that is never given out again.
    pub(super) queues: BTreeMap<u64, QueueState>,
    /// The same by adapter and number.
    pub(super) numbers: BTreeMap<(usize, u32), u64>,
    /// All CQs of all adapters, likewise.
    pub(super) cqs: BTreeMap<u64, CqState>,
    /// What queues are called by, and how far those have come that meet others.
    pub(super) expected: BTreeMap<Token, Expected>,
    pub(super) meets: BTreeMap<u64, CmConnection>,
    /// Queues that may have something to do, in turn.
    pub(super) active: VecDeque<u64>,
    pub(super) losses: BTreeMap<(usize, usize), Losses>,
    pub(super) delays: BTreeMap<(usize, usize), Duration>,
    /// The next name of a queue or CQ, the next key, the next life.
    counter: u64,
    random: u64,
    /// Whether a step may find something to do. It is looked at without the lock.
    pub(super) has_work: Arc<AtomicBool>,
    pub(super) is_closed: bool,
    /// What a bug of ours did.
    pub(super) caught: Option<String>,
}

pub(super) struct AdapterState {
    pub(super) attr: DeviceAttr,
    pub(super) registrations: Registrations,
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) sign: Arc<Sign>,
    pub(super) is_up: bool,
    pub(super) is_held: bool,
    pub(super) is_dead: bool,
    /// A queue that breaks loses the receive of the message that is coming.
    pub(super) loses_receives: bool,
    /// How long making a queue takes, and connecting one.
    pub(super) make_time: Duration,
    pub(super) connect_time: Duration,
    /// How long the answer of a read takes.
    pub(super) read_time: Duration,
    /// After so many more requests the queue of the next one breaks.
    pub(super) break_after: Option<u64>,
    /// The queue of each request to this key of a peer breaks.
    pub(super) break_at: Option<u32>,
    pub(super) refuse_registrations: u64,
    /// How long it takes to pin memory.
    pub(super) pins_for: Duration,
    /// What it does with memory of devices.
    pub(super) refuses_dma_bufs: bool,
    pub(super) reaches_peer_memory: bool,
    pub(super) refuse_cqs: u64,
    pub(super) refuse_queues: u64,
    pub(super) refuse_connects: u64,
    pub(super) refuse_resets: u64,
    pub(super) refuse_to_take_back: u64,
    pub(super) requests_posted: u64,
    pub(super) lists_posted: u64,
    pub(super) bytes_moved: u64,
    pub(super) resets: u64,
}

pub(super) struct CqState {
    pub(super) adapter: usize,
    pub(super) completions_max: usize,
    pub(super) receives_max: usize,
    pub(super) done: VecDeque<Entry>,
    /// How many there are in `done`, for polls that need not take the lock.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) receives: VecDeque<RecvBuffer>,
    pub(super) is_armed: bool,
    pub(super) sign: Arc<Sign>,
}

/// A completion, and what its polling gives back.
pub(super) struct Entry {
    pub(super) done: WorkCompletion,
    /// The queue that it is of, as it was then.
    pub(super) of: (u64, u64),
    /// How many of that queue's requests have been posted up to the one that it ends; none for a receive.
    pub(super) ends: Option<u64>,
}

pub(super) struct QueueState {
    pub(super) adapter: usize,
    pub(super) cq: u64,
    pub(super) number: u32,
    pub(super) requests: usize,
    pub(super) state: State,
    /// Which connection this is: none is ever given the number of another.
    pub(super) life: u64,
    pub(super) posted: VecDeque<PostedRequest>,
    /// Whether it is among those that may have something to do.
    pub(super) is_active: bool,
    /// Requests posted since it was new or reset, and those of them whose end was polled.
    pub(super) count: u64,
    pub(super) polled: u64,
    pub(super) packet_out: u32,
    pub(super) packet_in: u32,
    /// Since when its first request waits for somebody else.
    pub(super) stuck: Option<(Stuck, Duration)>,
    /// The receive that a message of the peer is going into.
    pub(super) receiving: Option<RecvBuffer>,
    /// What came and is not seen yet.
    pub(super) unplaced: Vec<(Window, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    New,
    Connected(ConnectParams),
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stuck {
    Silence,
    NoReceive,
}

pub(super) struct PostedRequest {
    pub(super) request: SendRequest,
    pub(super) payload: MessagePayload,
    pub(super) bytes: u64,
    /// Its number among its queue's requests, from one.
    pub(super) number: u64,
    /// When it is at the peer's adapter.
    pub(super) there_at: Duration,
    pub(super) moved: u64,
    /// What the peer's adapter has done with it.
    pub(super) carried: Option<Result<(), WcStatus>>,
    /// When whoever posted it hears so, if the answer is on its way.
    pub(super) answer_at: Option<Duration>,
    /// The life of the peer's queue that took it.
    pub(super) taken_by: u64,
}

/// A descriptor that is readable while something is to be seen.
pub(super) struct Sign {
    fd: OwnedFd,
    /// It is shown for good.
    is_stuck: AtomicBool,
}

impl Sign {
    fn new() -> Arc<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = fd.expect("a test's process has room for a descriptor");
        Arc::new(Self { fd, is_stuck: AtomicBool::new(false) })
    }

    pub(super) fn show(&self) {
        // It can only be full of signs already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    pub(super) fn hide(&self) {
        if !self.is_stuck.load(Ordering::Relaxed) {
            // It can only be hidden already.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    /// Shown for good, as by a device that is gone.
    pub(super) fn stick(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
        self.show();
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.fd
    }
}

impl World {
    pub(super) fn new(options: Options) -> Self {
        Self {
            random: options.seed.unwrap_or_default(),
            options,
            now: Duration::ZERO,
            by_hand: Duration::ZERO,
            adapters: Vec::new(),
            queues: BTreeMap::new(),
            numbers: BTreeMap::new(),
            cqs: BTreeMap::new(),
            expected: BTreeMap::new(),
            meets: BTreeMap::new(),
            active: VecDeque::new(),
            losses: BTreeMap::new(),
            delays: BTreeMap::new(),
            counter: 0,
            has_work: Arc::new(AtomicBool::new(false)),
            is_closed: false,
            caught: None,
        }
    }

    /// A number that was not given out before.
    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Stops everything: only a bug of ours does this.
    pub(super) fn catch(&mut self, what: String) -> ! {
        let caught = format!("the model of a card has caught a bug: {what}");
        self.caught = Some(caught.clone());
        panic!("{caught}");
    }

    pub(super) fn new_adapter(&mut self, attr: DeviceAttr) -> usize {
        self.adapters.push(AdapterState {
            attr,
            registrations: Registrations::default(),
            events: VecDeque::new(),
            sign: Sign::new(),
            is_up: true,
            is_held: false,
            is_dead: false,
            loses_receives: false,
            make_time: Duration::ZERO,
            connect_time: Duration::ZERO,
            read_time: Duration::ZERO,
            break_after: None,
            break_at: None,
            refuse_registrations: 0,
            pins_for: Duration::ZERO,
            refuses_dma_bufs: false,
            reaches_peer_memory: false,
            refuse_cqs: 0,
            refuse_queues: 0,
            refuse_connects: 0,
            refuse_resets: 0,
            refuse_to_take_back: 0,
            requests_posted: 0,
            lists_posted: 0,
            bytes_moved: 0,
            resets: 0,
        });
        self.adapters.len() - 1
    }

    pub(super) fn new_cq(&mut self, adapter: usize, completions: usize, receives: usize) -> u64 {
        let name = self.next();
        let cq = CqState {
            adapter,
            completions_max: completions,
            receives_max: receives,
            done: VecDeque::new(),
            waiting: Arc::new(AtomicUsize::new(0)),
            receives: VecDeque::new(),
            is_armed: false,
            sign: Sign::new(),
        };
        self.cqs.insert(name, cq);
        name
    }

    pub(super) fn new_queue(&mut self, adapter: usize, cq: u64, requests: usize) -> (u64, u32) {
        // The lowest number that is free: real adapters too give numbers out again, and at once.
        let is_free = |number: &u32| !self.numbers.contains_key(&(adapter, *number));
        let number = (0x11..).find(is_free).expect("no test has that many queues");
        let (name, life) = (self.next(), self.next());
        self.numbers.insert((adapter, number), name);
        let queue = QueueState {
            adapter,
            cq,
            number,
            requests,
            state: State::New,
            life,
            is_active: false,
            posted: VecDeque::new(),
            count: 0,
            polled: 0,
            packet_out: 0,
            packet_in: 0,
            stuck: None,
            receiving: None,
            unplaced: Vec::new(),
        };
        self.queues.insert(name, queue);
        (name, number)
    }

    pub(super) fn queue(&mut self, name: u64) -> &mut QueueState {
        self.queues.get_mut(&name).expect("whoever names a queue holds it")
    }

    pub(super) fn event(&mut self, adapter: usize, event: AsyncEvent) {
        let adapter = &mut self.adapters[adapter];
        adapter.events.push_back(event);
        adapter.sign.show();
    }

    /// Puts a completion on the CQ of a queue.
    pub(super) fn complete(&mut self, queue: u64, id: u64, what: Wc, ends: Option<u64>) {
        let QueueState { cq: on, number, life, .. } = *self.queue(queue);
        let cq = self.cqs.get_mut(&on).expect("a desk is kept until its queues are gone");
        if cq.done.len() == cq.completions_max {
            let room = cq.completions_max;
            self.catch(format!("a desk has more completions than it was made for, which are {room}"));
        }
        cq.done.push_back(Entry { done: WorkCompletion { queue: number, id, result: what }, of: (queue, life), ends });
        cq.waiting.store(cq.done.len(), Ordering::Relaxed);
        if std::mem::take(&mut cq.is_armed) {
            cq.sign.show();
        }
    }

    /// Breaks a queue: what was posted fails, the first for this reason.
    pub(super) fn break_queue(&mut self, name: u64, first: WcStatus) {
        self.place(name);
        let queue = self.queue(name);
        if queue.state == State::Broken {
            return;
        }
        queue.state = State::Broken;
        queue.stuck = None;
        let posted = std::mem::take(&mut queue.posted);
        let receiving = queue.receiving.take();
        let mut status = first;
        for PostedRequest { request, number, .. } in posted {
            self.complete(name, request.id, Wc::Failed(status), Some(number));
            status = WcStatus::Flushed;
        }
        let adapter = self.queue(name).adapter;
        if let Some(recv) = receiving.filter(|_| !self.adapters[adapter].loses_receives) {
            self.complete(name, recv.id, Wc::Unused, None);
        }
    }

    /// Makes a queue new.
    pub(super) fn reset(&mut self, name: u64) {
        self.leave(name);
        self.place(name);
        let cleans = self.options.reset_cleans;
        let queue = self.queue(name);
        queue.state = State::New;
        queue.posted.clear();
        queue.stuck = None;
        queue.receiving = None;
        (queue.count, queue.polled) = (0, 0);
        if cleans {
            self.clean(name);
        }
        // From here on no completion of before is taken for one of after.
        let life = self.next();
        self.queue(name).life = life;
    }

    /// Takes away what a queue has not been polled for.
    fn clean(&mut self, name: u64) {
        let QueueState { cq, life, .. } = *self.queue(name);
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.done.retain(|entry| entry.of != (name, life));
            cq.waiting.store(cq.done.len(), Ordering::Relaxed);
        }
    }

    /// Takes a queue away.
    pub(super) fn remove_queue(&mut self, name: u64) {
        self.reset(name);
        self.expect(name, None);
        let QueueState { adapter, number, .. } = *self.queue(name);
        self.queues.remove(&name);
        self.numbers.remove(&(adapter, number));
    }

    /// Makes all that came over a queue seen.
    pub(super) fn place(&mut self, name: u64) {
        for (window, bytes) in std::mem::take(&mut self.queue(name).unplaced) {
            // It was checked when it came.
            let _ = window.write_from(0, &bytes);
        }
    }

    /// The same for all queues of an adapter, or of all. Returns whether there was anything.
    pub(super) fn place_all(&mut self, adapter: Option<usize>) -> bool {
        let is_its =
            |queue: &QueueState| adapter.is_none_or(|adapter| queue.adapter == adapter) && !queue.unplaced.is_empty();
        let names: Vec<_> = self.queues.iter().filter(|(_, queue)| is_its(queue)).map(|(name, _)| *name).collect();
        for name in &names {
            self.place(*name);
        }
        !names.is_empty()
    }

    /// A queue has something to do.
    pub(super) fn activate(&mut self, name: u64) {
        self.has_work.store(true, Ordering::Relaxed);
        if !std::mem::replace(&mut self.queue(name).is_active, true) {
            self.active.push_back(name);
        }
    }

    /// Receives that wait at the CQs of an adapter's queues.
    pub(super) fn receives_of(&self, adapter: usize) -> usize {
        let on: BTreeSet<_> =
            self.queues.values().filter(|queue| queue.adapter == adapter).map(|queue| queue.cq).collect();
        on.iter().filter_map(|cq| self.cqs.get(cq)).map(|cq| cq.receives.len()).sum()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// A number below `end`, the next of the seed's.
    pub(super) fn random_below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % end
    }
}
