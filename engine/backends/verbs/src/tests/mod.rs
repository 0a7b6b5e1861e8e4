//! Channels of two engines in one thread, over adapters of a model.

mod dead;
mod flush_remote;
mod hostile;
mod managed;
mod model;
mod moving;
mod repair;
mod striping;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, NoteId, RegionId, Span};
use penstock_memory::{Hint, HostMemory, Window};
use penstock_ring::{CounterCell, Withdrawal};
use penstock_transport::host::{Bell, EngineSegments};
use penstock_transport::lane::Handle;
use penstock_transport::{
    Batch, CounterRef, Failure, FlushRequest, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError,
    Posted, RdmaMemory, RemoteGateLog, RemoteMemory, Revisions,
};

use crate::adapter::{
    AccessFlags, Adapter, CmConnect, ConnectParams, DeviceAttr, QpAddress, QueuePair, RecvBuffer, Registration, Token,
    Wc, WorkCompletion, WorkerCq,
};
use crate::channel::Channel;
use crate::connecting::{Connect, ConnectWork, Job};
use crate::context::{Context, FenceObserver};
use crate::model::{ModelAdapter, ModelNetwork};
use crate::rail::{RailParts, Standing};
use crate::slab::{RegisteredSlots, SLOT_BYTES};

/// What one side got.
#[derive(Default)]
struct Got {
    room: usize,
    notes: Vec<(u128, Vec<u8>)>,
    completed: Vec<(u64, Result<u64, Cause>)>,
}

impl LaneEvents for Got {
    fn reserve_note(&mut self) -> bool {
        self.room > 0
    }

    fn note(&mut self, note: Note<'_>) {
        self.room -= 1;
        self.notes.push((note.id.0, note.payload.to_vec()));
    }

    fn handed_over(&mut self, _: Note<'_>, _: Handle) {
        panic!("nothing is handed over between hosts");
    }

    fn completed(&mut self, token: u64, result: Result<u64, Failure>) {
        self.completed.push((token, result.map_err(|failure| failure.cause)));
    }
}

/// What was proven to one side.
#[derive(Default)]
struct Proofs {
    heard: RefCell<Vec<(u8, u64)>>,
    reset: RefCell<Vec<(u8, u64)>>,
}

impl FenceObserver for Proofs {
    fn heard(&self, channel: u16, rail: u8, revision: u64) {
        assert_eq!(channel, NUMBER);
        self.heard.borrow_mut().push((rail, revision));
    }

    fn reset(&self, channel: u16, rail: u8, revision: u64) {
        assert_eq!(channel, NUMBER);
        self.reset.borrow_mut().push((rail, revision));
    }
}

/// Connects at once, or when it is told to.
#[derive(Default)]
struct Dialer {
    waits: Cell<Option<Waits>>,
    begun: RefCell<Vec<ConnectWork>>,
    unbegun: RefCell<Vec<Job>>,
}

/// What queues wait for that are to be connected.
#[derive(Debug, Clone, Copy)]
enum Waits {
    /// For an answer of the network.
    InTheNetwork,
    /// For others that were there before.
    ForItsTurn,
}

impl Connect for Dialer {
    fn connect(&self, job: Job) {
        match self.waits.get() {
            None => job.run(),
            Some(Waits::InTheNetwork) => self.begun.borrow_mut().extend(job.begin()),
            Some(Waits::ForItsTurn) => self.unbegun.borrow_mut().push(job),
        }
    }

    fn look(&self) {}
}

impl Dialer {
    fn go_on(&self) {
        self.waits.set(None);
        self.begun.take().into_iter().for_each(ConnectWork::run);
        self.unbegun.take().into_iter().for_each(Job::run);
    }
}

const NUMBER: u16 = 5;

/// How a pair of sides is made.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rails: usize,
    requests: usize,
    grants: u32,
    sges_max: usize,
    inline_max: usize,
    /// Whether the first side calls the other by the connection manager.
    is_managed: bool,
}

const SHAPE: Shape = Shape { rails: 1, requests: 128, grants: 32, sges_max: 30, inline_max: 220, is_managed: false };

/// Memory of one side, registered with all its adapters.
struct Pool {
    window: Window,
    key: RegionKey,
    registrations: Vec<Arc<dyn Registration>>,
}

impl Pool {
    fn local_keys(&self) -> Vec<u32> {
        self.registrations.iter().map(|registration| registration.local_key()).collect()
    }

    fn keyed(&self) -> Arc<RdmaMemory> {
        Arc::new(RdmaMemory {
            key: self.key,
            iova: self.window.base_address(),
            bytes: self.window.len(),
            rkeys: self.registrations.iter().map(|registration| registration.remote_key()).collect(),
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.window.len() as usize];
        self.window.read_into(0, &mut bytes).unwrap();
        bytes
    }
}

/// One engine's side of a channel.
struct Side {
    segments: Arc<EngineSegments>,
    application: Bell,
    told: RemoteGateLog,
    proofs: Proofs,
    adapters: Vec<Arc<ModelAdapter>>,
    cqs: Vec<Box<dyn WorkerCq>>,
    receives: Vec<RegisteredSlots>,
    channel: Channel,
    got: Got,
    said: RefCell<Vec<Vec<u8>>>,
    dialer: Dialer,
    fault: Option<LaneFault>,
    now: Instant,
    pools: u32,
}

/// Calls something of the channel with a context.
macro_rules! with {
    ($side:expr, |$channel:ident, $context:ident, $got:ident| $call:expr) => {{
        let Side { segments, application, told, proofs, channel: $channel, got: $got, said, dialer, now, .. } =
            &mut *$side;
        let say = |words: &[u8]| said.borrow_mut().push(words.to_vec());
        let $context = &Context {
            here: segments.owner_state.view().revision(),
            told,
            segments,
            application,
            witness: proofs,
            say: &say,
            forget: &|_, _| {},
            connect: dialer,
            now: *now,
        };
        let _ = (&$got, &$context);
        $call
    }};
}

impl Side {
    /// Connects its rails, of which one is enough.
    fn connect(&mut self) {
        self.channel.connect(&self.dialer);
        self.channel.is_connected(self.now, &Dialer::default()).unwrap();
    }

    fn pool(&mut self, bytes: Vec<u8>) -> Pool {
        self.pool_with(bytes, AccessFlags { read: true, write: true, land: true })
    }

    fn pool_with(&mut self, bytes: Vec<u8>, access: AccessFlags) -> Pool {
        let memory = HostMemory::from_vec(bytes).unwrap();
        let window = memory.window().clone();
        self.pools += 1;
        let registrations = self.adapters.iter().map(|adapter| adapter.register(&window, access).unwrap()).collect();
        Pool { window, key: RegionKey { region: RegionId(self.pools), generation: Generation(0) }, registrations }
    }

    fn post(
        &mut self,
        direction: Direction,
        local: &Pool,
        remote: &Pool,
        spans: &[Span],
        (token, transfer, whole): (u64, u64, u64),
    ) -> Result<Posted, PostError> {
        let keyed = remote.keyed();
        let batch = Batch {
            direction,
            local: &local.window.clone().into(),
            local_region: local.key,
            remote_region: local.key,
            remote: &RemoteMemory::Rdma(Arc::clone(&keyed)),
            spans,
            hint: Hint::Cached,
            checked_at: Revisions {
                local: self.segments.owner_state.view().revision(),
                remote: self.told.replicated(),
            },
            completion_id: token,
            transfer,
            transfer_bytes: whole,
        };
        self.channel.post(&batch, &keyed, &local.local_keys())
    }

    fn tell(
        &mut self,
        (token, transfer, whole): (u64, u64, u64),
        counter: Option<CounterRef>,
        note: Option<(u128, &[u8])>,
    ) -> Result<NotifyPosted, PostError> {
        let note = note.map(|(id, payload)| Note { id: NoteId(id), payload });
        self.channel.notify(&NotifyRequest { transfer, transfer_bytes: whole, completion_id: token, counter, note })
    }

    /// Looks at its CQs, and does what a lane does. Returns whether there was anything.
    fn turn(&mut self) -> bool {
        let mut worked = false;
        for rail in 0..self.adapters.len() {
            while let Some(event) = self.adapters[rail].next_event() {
                worked = true;
                with!(self, |channel, context, got| channel.event(rail as u8, event, context));
            }
        }
        for rail in 0..self.cqs.len() {
            let mut done = [WorkCompletion::default(); 16];
            let count = self.cqs[rail].poll(&mut done).unwrap();
            worked |= count > 0;
            for done in &done[..count] {
                let mut bytes = [0; SLOT_BYTES];
                let came = match done.result {
                    Wc::Recv { bytes: came, .. } => came as usize,
                    _ => 0,
                };
                self.receives[rail].get(done.id as usize % self.receives[rail].slots(), &mut bytes[..came]);
                let result =
                    with!(self, |channel, context, got| channel.done(rail as u8, done, &bytes[..came], context, got));
                self.heed(result);
                if matches!(done.result, Wc::Recv { .. } | Wc::Unused) {
                    self.supply(rail, done.id as usize);
                }
            }
        }
        let polled = with!(self, |channel, context, got| channel.poll(context, got));
        worked |= polled == Ok(true);
        self.heed(polled.map(drop));
        worked
    }

    /// A message has come that no adapter has carried.
    fn come(&mut self, bytes: &[u8], immediate: Option<u32>) {
        let done = WorkCompletion { queue: 0, id: 0, result: Wc::Recv { bytes: bytes.len() as u32, immediate } };
        let result = with!(self, |channel, context, got| channel.done(0, &done, bytes, context, got));
        self.heed(result);
    }

    /// Delivers transport messages of the peer.
    fn hear(&mut self, words: &[u8]) {
        let heard = with!(self, |channel, context, got| channel.on_transport_message(words, context));
        self.heed(heard);
    }

    fn cut(&mut self, rail: u8) {
        with!(self, |channel, context, got| channel.cut(rail, context));
    }

    /// Takes memory back. The peer does not know it yet.
    fn withdraw(&mut self, pool: &Pool, offset: u64, len: u64) -> Withdrawal {
        let RegionKey { region, generation } = pool.key;
        let withdrawal = Withdrawal { region: region.0, generation: generation.0, offset, len };
        self.segments.owner_state.withdraw(&[withdrawal]);
        withdrawal
    }

    fn is_up(&self, rail: usize) -> bool {
        self.channel.rails[rail].standing == Standing::Up
    }

    fn heed(&mut self, result: Result<(), LaneFault>) {
        if let Err(fault) = result {
            self.fault = Some(fault);
        }
    }

    fn supply(&mut self, rail: usize, slot: usize) {
        let sge = self.receives[rail].sge(0, slot, SLOT_BYTES);
        let supplied = self.cqs[rail].post_recv(&[RecvBuffer { id: slot as u64, sge }]);
        assert!(supplied.is_ok() || self.channel.rails[rail].is_dead, "only a card that has failed takes none");
    }

    fn counter(&self, index: u32) -> &CounterCell {
        self.segments.mailbox.view().counter(index).unwrap()
    }

    fn result(&self, token: u64) -> Option<Result<u64, Cause>> {
        let mut its = self.got.completed.iter().filter(|(of, _)| *of == token);
        let first = its.next().map(|(_, result)| *result);
        assert!(its.next().is_none(), "reported twice");
        first
    }
}

/// A side that is not joined yet.
struct Half {
    adapters: Vec<Arc<ModelAdapter>>,
    cqs: Vec<Box<dyn WorkerCq>>,
    queues: Vec<Box<dyn QueuePair>>,
}

impl Half {
    fn new(network: &ModelNetwork, shape: Shape) -> Self {
        let adapter = |_| {
            let change = |attr: &mut DeviceAttr| {
                (attr.sges_max, attr.inline_max) = (shape.sges_max, shape.inline_max);
            };
            if shape.is_managed { network.managed_adapter_with(change) } else { network.adapter_with(change) }
        };
        let adapters: Vec<_> = (0..shape.rails).map(adapter).collect();
        let receives = shape.grants as usize;
        let cq = |adapter: &Arc<ModelAdapter>| adapter.worker_cq(shape.requests + receives, receives).unwrap();
        let mut cqs: Vec<_> = adapters.iter().map(cq).collect();
        let queues = cqs.iter_mut().map(|cq| cq.queue(shape.requests).unwrap()).collect();
        Self { adapters, cqs, queues }
    }

    fn endpoint(&self, rail: usize) -> QpAddress {
        let attr = self.adapters[rail].attr();
        QpAddress { queue: self.queues[rail].number(), first_packet: 100, gid: attr.gid, lid: attr.lid }
    }

    /// Tokens that its queues expect from now on, if they are to be called.
    fn expect(&mut self, shape: Shape) -> Vec<Option<CmConnect>> {
        let expect = |queue: &mut Box<dyn QueuePair>| {
            let token = Token::random().unwrap();
            queue.expect(token);
            CmConnect { call: None, token }
        };
        self.queues.iter_mut().map(|queue| shape.is_managed.then(|| expect(queue))).collect()
    }

    fn join(self, there: &[QpAddress], meetings: &[Option<CmConnect>], shape: Shape) -> Side {
        let Self { adapters, cqs, queues } = self;
        let rails = queues.into_iter().enumerate().map(|(rail, queue)| RailParts {
            index: rail as u8,
            queue,
            attr: Arc::new(adapters[rail].attr().clone()),
            connecting: ConnectParams {
                there: there[rail],
                first_packet: 100,
                mtu: 4096,
                reads_there: 16,
                reads_here: 16,
                cm: meetings[rail],
            },
            requests: shape.requests,
            grants: shape.grants,
            granted: shape.grants,
        });
        let as_cards: Vec<Arc<dyn Adapter>> =
            adapters.iter().map(|adapter| Arc::clone(adapter) as Arc<dyn Adapter>).collect();
        let now = Instant::now();
        let outbox = RegisteredSlots::new(&as_cards, shape.rails * shape.grants as usize).unwrap();
        let channel = Channel::new(NUMBER, rails.collect(), outbox, crate::VerbsOptions::default().patience, now);
        let receives =
            as_cards.iter().map(|adapter| RegisteredSlots::new([adapter], shape.grants as usize).unwrap()).collect();
        let segments = EngineSegments::create(1).unwrap();
        let mut side = Side {
            application: segments.ringer(0),
            segments,
            told: RemoteGateLog::default(),
            proofs: Proofs::default(),
            adapters,
            cqs,
            receives,
            channel,
            got: Got { room: usize::MAX, ..Got::default() },
            said: RefCell::default(),
            dialer: Dialer::default(),
            fault: None,
            now,
            pools: 0,
        };
        for rail in 0..shape.rails {
            (0..shape.grants as usize).for_each(|slot| side.supply(rail, slot));
        }
        side
    }
}

/// Two sides of a channel, not connected.
fn unconnected(network: &ModelNetwork, shape: Shape) -> [Side; 2] {
    let (near, mut far) = (Half::new(network, shape), Half::new(network, shape));
    let waits = far.expect(shape);
    let call = |(rail, cm): (usize, &Option<CmConnect>)| {
        cm.map(|cm| CmConnect { call: far.adapters[rail].attr().cm_address, ..cm })
    };
    let calls: Vec<_> = waits.iter().enumerate().map(call).collect();
    let ends = |half: &Half| (0..shape.rails).map(|rail| half.endpoint(rail)).collect::<Vec<_>>();
    let (near_ends, far_ends) = (ends(&near), ends(&far));
    [near.join(&far_ends, &calls, shape), far.join(&near_ends, &waits, shape)]
}

/// Two sides of a channel that have greeted each other.
fn connected(network: &ModelNetwork, shape: Shape) -> [Side; 2] {
    let mut sides = unconnected(network, shape);
    sides.iter_mut().for_each(|side| side.connect());
    settle(network, &mut sides);
    sides
}

/// Turns both until nothing happens any more.
fn settle(network: &ModelNetwork, sides: &mut [Side; 2]) {
    let mut quiet = 0;
    while quiet < 3 {
        let mut worked = network.run() > 0;
        for at in 0..2 {
            worked |= sides[at].turn();
            worked |= pass_asides(sides, at);
        }
        sides.iter().for_each(|side| assert_eq!(side.fault, None));
        quiet = if worked { 0 } else { quiet + 1 };
    }
}

/// Passes transport messages of one side.
fn pass_asides(sides: &mut [Side; 2], from: usize) -> bool {
    let said = sides[from].said.take();
    said.iter().for_each(|words| sides[1 - from].hear(words));
    !said.is_empty()
}

/// Lets time pass, in steps that notice whatever ends in it.
fn pass_time(network: &ModelNetwork, sides: &mut [Side; 2], time: Duration) {
    const STEP: Duration = Duration::from_millis(10);
    let mut left = time;
    while !left.is_zero() {
        let step = STEP.min(left);
        left -= step;
        network.advance(step);
        sides.iter_mut().for_each(|side| side.now += step);
        settle(network, sides);
    }
}

/// Passes what one side has withdrawn.
fn pass_news(sides: &mut [Side; 2], from: usize) {
    let since = sides[1 - from].told.replicated();
    let new = sides[from].segments.owner_state.view().withdrawals_since(since).unwrap();
    sides[1 - from].told.append(since, new.list.into_iter());
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(seed | 1) >> 3 ^ at >> 11 ^ seed) as u8).collect()
}

fn span(local: u64, remote: u64, len: u64) -> Span {
    Span { local, remote, len }
}

const WRITE: Direction = Direction::Write;
const READ: Direction = Direction::Read;
