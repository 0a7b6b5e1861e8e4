//! Two engines' sides of a session in one thread, over adapters of the model.

mod crowd;
mod dead;
mod dialing;
mod gpudirect;
mod hostile;
mod lost;
mod managed;
mod moving;
mod quiet;
mod room;
mod storm;
mod threads;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Rights, Span};
use penstock_memory::{Hint, HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::{ReadyBits, Withdrawal};
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::Handle;
use penstock_transport::link::Offering;
use penstock_transport::{
    AdvertisedRegion, Batch, CounterRef, Driver, Failure, Fence, JoinError, Lane, LaneEvents, LaneFault, Link,
    LocalEnd, Note, NotifyPosted, NotifyRequest, PeerView, PostError, Posted, Registrar, RemoteEnd, RemoteMemory,
    Revisions, Transport, TransportMessages,
};

use crate::adapter::Adapter;
use crate::model::{ModelAdapter, ModelNetwork};
use crate::{VerbsOptions, VerbsTransport};

const WRITE: Direction = Direction::Write;
const READ: Direction = Direction::Read;
const PARTY: u32 = 3;

/// What one worker got.
#[derive(Default)]
struct Got {
    room: usize,
    notes: Vec<(u128, Vec<u8>)>,
    completed: Vec<(u64, Result<u64, Failure>)>,
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
        self.completed.push((token, result));
    }
}

/// An engine, with or without sessions.
struct Engine {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    transport: VerbsTransport,
    adapters: Vec<Arc<ModelAdapter>>,
}

impl Engine {
    fn new(network: &ModelNetwork, adapters: usize, workers: usize) -> Self {
        Self::with((0..adapters).map(|_| network.adapter()).collect(), workers, VerbsOptions::default())
    }

    fn with(adapters: Vec<Arc<ModelAdapter>>, workers: usize, options: VerbsOptions) -> Self {
        let (segments, registry) = (EngineSegments::create(workers).unwrap(), Arc::new(Registry::new()));
        let own = adapters.iter().map(|adapter| Arc::clone(adapter) as Arc<dyn Adapter>).collect();
        let transport = VerbsTransport::new(Arc::clone(&segments), Arc::clone(&registry), own, options).unwrap();
        Self { segments, registry, transport, adapters }
    }

    fn offer(&self, peer_index: u32, theirs: usize) -> Offering {
        let here = LocalEnd { host: 1, process: 1, epoch: 1, workers: self.segments.workers(), peer_index };
        let watch = Arc::new(ProcessWatch::of(std::process::id()));
        let there = RemoteEnd { host: 2, process: 2, epoch: 2, workers: theirs, peer_index, address: None, watch };
        self.transport.offer(here, there).unwrap()
    }

    fn region(&self, bytes: Vec<u8>, rights: Rights) -> Arc<Region> {
        self.registry.register_host(HostMemory::from_vec(bytes).unwrap(), "pool", rights).unwrap()
    }
}

/// One worker's side of a session.
struct Worker {
    driver: Box<dyn Driver>,
    lane: Option<Box<dyn Lane>>,
    ready: ReadyBits,
    got: Got,
    fault: Option<LaneFault>,
}

/// One side of a session.
struct Side {
    engine: Engine,
    workers: Vec<Worker>,
    peer_view: PeerView,
    registrar: Arc<dyn Registrar>,
    transport_messages: Arc<dyn TransportMessages>,
    path: String,
    rails: Vec<String>,
    expected: Revisions,
    /// Transport messages of the peer that were not delivered yet.
    said: Arc<Mutex<VecDeque<Vec<u8>>>>,
    /// Transport messages of the peer are not delivered yet.
    is_deaf: bool,
}

impl Side {
    fn new(engine: Engine, link: Link) -> Self {
        let Link { lanes, registrar, peer_view, streams, transport_messages, rails, path } = link;
        assert!(streams.is_none(), "cards need no streams");
        let workers = lanes.into_iter().enumerate().map(|(worker, lane)| Worker {
            driver: engine.transport.driver(worker).unwrap().expect("it has one"),
            lane: Some(lane),
            ready: engine.segments.mailbox.view().ready(worker),
            got: Got { room: usize::MAX, ..Got::default() },
            fault: None,
        });
        let workers = workers.collect();
        let transport_messages = transport_messages.expect("broken rails are talked about");
        let (expected, said, is_deaf) = (Revisions::default(), Arc::default(), false);
        Self { engine, workers, peer_view, registrar, transport_messages, path, rails, expected, said, is_deaf }
    }

    /// What a peer's plan would name this region by.
    fn show(&self, region: &Arc<Region>, to: &Self) -> RemoteMemory {
        let exported = self.registrar.export(region);
        assert!(exported.fd.is_none() && exported.extra_fds.is_empty(), "a card needs no descriptor");
        to.registrar.import(&remote(region, &exported.access_blob), None).unwrap()
    }

    /// Posts one batch, or as much of it as is taken.
    fn post(
        &mut self,
        direction: Direction,
        local: &Region,
        remote: &RemoteMemory,
        spans: &[Span],
        (token, transfer): (u64, u64),
    ) -> Result<Posted, PostError> {
        self.post_of(0, direction, local, remote, spans, (token, transfer))
    }

    fn post_of(
        &mut self,
        worker: usize,
        direction: Direction,
        local: &Region,
        remote: &RemoteMemory,
        spans: &[Span],
        (token, transfer): (u64, u64),
    ) -> Result<Posted, PostError> {
        let batch = Batch {
            direction,
            local: local.memory(),
            local_region: key_of(local),
            remote_region: key_of(local),
            remote,
            spans,
            hint: Hint::Cached,
            checked_at: self.expected,
            completion_id: token,
            transfer,
            transfer_bytes: spans.iter().map(|span| span.len).sum(),
        };
        self.workers[worker].lane().post(&batch)
    }

    fn tell(&mut self, transfer: u64, token: u64, id: u128, payload: &[u8]) -> Result<NotifyPosted, PostError> {
        let note = Some(Note { id: penstock_core::NoteId(id), payload });
        let arrival = NotifyRequest { transfer, transfer_bytes: 0, completion_id: token, counter: None, note };
        self.workers[0].lane().notify(&arrival)
    }

    fn count(&mut self, transfer: u64, token: u64, counter: CounterRef) -> Result<NotifyPosted, PostError> {
        let arrival =
            NotifyRequest { transfer, transfer_bytes: 0, completion_id: token, counter: Some(counter), note: None };
        self.workers[0].lane().notify(&arrival)
    }

    fn result(&self, token: u64) -> Option<Result<u64, Cause>> {
        let mut its = self.workers.iter().flat_map(|worker| &worker.got.completed).filter(|(of, _)| *of == token);
        let first = its.next().map(|(_, result)| result.map_err(|failure| failure.cause));
        assert!(its.next().is_none(), "reported twice");
        first
    }

    fn got(&self) -> &Got {
        &self.workers[0].got
    }

    fn fence(&self) -> &dyn Fence {
        &**self.peer_view.fence().expect("cards are fenced")
    }

    /// Withdraws a part of a region, and lets the peer know where it is told. Answers the new revision.
    fn withdraw(&mut self, region: &Region, offset: u64, len: u64, peer: Option<&Self>) -> u64 {
        let view = self.engine.segments.owner_state.view();
        let before = view.revision();
        let RegionKey { region, generation } = key_of(region);
        let withdrawal = Withdrawal { region: region.0, generation: generation.0, offset, len };
        let revision = self.engine.segments.owner_state.withdraw(&[withdrawal]);
        if let Some(peer) = peer {
            peer.peer_view.on_withdrawals(before, [withdrawal].into_iter());
        }
        revision
    }

    /// What workers do in a turn. Returns whether there was anything.
    fn turn(&mut self) -> bool {
        let mut worked = false;
        if !self.is_deaf {
            let said = std::mem::take(&mut *self.said.lock().unwrap());
            worked = !said.is_empty();
            said.iter().for_each(|words| self.transport_messages.on_message(words).unwrap());
        }
        self.workers.iter_mut().fold(worked, |worked, worker| worker.turn() | worked)
    }

    fn fault(&self) -> Option<LaneFault> {
        self.workers.iter().find_map(|worker| worker.fault)
    }
}

impl Worker {
    fn lane(&mut self) -> &mut Box<dyn Lane> {
        self.lane.as_mut().expect("it was not dropped")
    }

    fn turn(&mut self) -> bool {
        let Some(lane) = self.lane.as_mut().filter(|_| self.fault.is_none()) else { return false };
        let mut worked = self.driver.turn();
        let mut is_marked = false;
        self.ready.take_each(|peer_index| is_marked |= peer_index == PARTY as usize);
        if is_marked {
            worked = true;
            match lane.poll(&mut self.got) {
                Ok(true) => self.ready.mark(PARTY as usize),
                Ok(false) => {}
                Err(fault) => self.fault = Some(fault),
            }
        }
        if let Err(fault) = lane.ring_doorbell() {
            self.fault = Some(fault);
        }
        worked
    }
}

fn remote<'a>(region: &Region, path: &'a [u8]) -> AdvertisedRegion<'a> {
    AdvertisedRegion {
        epoch: 1,
        id: region.id(),
        generation: region.generation(),
        base: region.base_address(),
        bytes: region.bytes(),
        rights: region.rights(),
        access_blob: path,
    }
}

fn key_of(region: &Region) -> RegionKey {
    RegionKey { region: region.id(), generation: region.generation() }
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes() as usize];
    region.host().unwrap().read_into(0, &mut bytes).unwrap();
    bytes
}

/// Both sides of a session between these engines.
fn join(one: Engine, two: Engine) -> [Side; 2] {
    try_join(one, two).unwrap()
}

fn try_join(one: Engine, two: Engine) -> Result<[Side; 2], JoinError> {
    let (workers_one, workers_two) = (one.segments.workers(), two.segments.workers());
    let (offer_one, offer_two) = (one.offer(PARTY, workers_two), two.offer(PARTY, workers_one));
    let (blob_one, blob_two) = (offer_one.blob.clone(), offer_two.blob.clone());
    let link_one = (offer_one.join)(&blob_two, Vec::new())?;
    let link_two = (offer_two.join)(&blob_one, Vec::new())?;
    let sides = [Side::new(one, link_one), Side::new(two, link_two)];
    for at in 0..2 {
        let (ear, bell) = (Arc::clone(&sides[1 - at].said), sides[1 - at].engine.segments.ringer(1));
        sides[at].transport_messages.start(Box::new(move |words| {
            ear.lock().unwrap().push_back(words.to_vec());
            bell.ring();
        }));
    }
    Ok(sides)
}

/// Both sides of a session of one worker each, over so many rails, and what joins their adapters.
fn session(rails: usize) -> (ModelNetwork, [Side; 2]) {
    let network = ModelNetwork::new(crate::model::Options::default());
    let mut sides = join(Engine::new(&network, rails, 1), Engine::new(&network, rails, 1));
    // A session begins with its first rail; threads connect the others.
    until(&mut sides, "every rail is up", |sides| {
        sides.iter().all(|side| side.engine.adapters.iter().all(|adapter| adapter.counts().requests > 0))
    });
    settle(&mut sides);
    (network, sides)
}

/// Turns both until this is so.
fn until(sides: &mut [Side; 2], what: &str, mut is_so: impl FnMut(&mut [Side; 2]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so(sides) {
        for side in sides.iter_mut() {
            side.turn();
            assert_eq!(side.fault(), None, "while waiting until {what}");
        }
        assert!(Instant::now() < deadline, "waited too long until {what}");
    }
}

/// Turns both until nothing happens any more.
fn settle(sides: &mut [Side; 2]) {
    let mut quiet = 0;
    while quiet < 20 {
        let worked = sides.iter_mut().fold(false, |worked, side| side.turn() | worked);
        quiet = if worked { 0 } else { quiet + 1 };
    }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(seed | 1) >> 3 ^ at >> 11 ^ seed) as u8).collect()
}

fn span(local: u64, remote: u64, len: u64) -> Span {
    Span { local, remote, len }
}
