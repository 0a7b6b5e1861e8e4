//! Two engines' sides of a session in one thread, over socket pairs.

mod hostile;
mod model;
mod moving;
mod stopping;
mod zero_copy;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::config::TcpIo;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Rights, Span};
use penstock_memory::{Hint, HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::ReadyBits;
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::link::Offering;
use penstock_transport::{
    Batch, Driver, Failure, Lane, LaneEvents, LaneFault, LocalEnd, Note, NotifyPosted, NotifyRequest, PeerView,
    PostError, Posted, RemoteEnd, RemoteMemory, Revisions, TargetMediatedMemory, Transport,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::TcpTransport;

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

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        self.completed.push((completion_id, result.map_err(|failure| failure.cause)));
    }
}

/// One side of a session, with one worker.
struct Side {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    driver: Box<dyn Driver>,
    lane: Option<Box<dyn Lane>>,
    peer_view: PeerView,
    ready: ReadyBits,
    got: Got,
    fault: Option<LaneFault>,
    expected: Revisions,
    path: String,
}

const PARTY: u32 = 3;

impl Side {
    /// Posts one batch, or as much of it as is taken.
    fn post(
        &mut self,
        direction: Direction,
        local: &Region,
        remote: RegionKey,
        spans: &[Span],
        (completion_id, transfer): (u64, u64),
    ) -> Result<Posted, PostError> {
        let remote = RemoteMemory::TargetMediated(TargetMediatedMemory { key: remote, bytes: 1 << 40 });
        let batch = Batch {
            direction,
            local: local.memory(),
            local_region: key_of(local),
            remote_region: key_of(local),
            remote: &remote,
            spans,
            hint: Hint::Cached,
            checked_at: self.expected,
            completion_id,
            transfer,
            transfer_bytes: 0,
        };
        self.lane().post(&batch)
    }

    fn tell(&mut self, transfer: u64, completion_id: u64, id: u128, payload: &[u8]) -> Result<NotifyPosted, PostError> {
        let note = Some(Note { id: penstock_core::NoteId(id), payload });
        self.lane().notify(&NotifyRequest { transfer, transfer_bytes: 0, completion_id, counter: None, note })
    }

    fn lane(&mut self) -> &mut Box<dyn Lane> {
        self.lane.as_mut().expect("it was not dropped")
    }

    /// What a worker does in a turn. Returns whether there was anything.
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

    fn result(&self, completion_id: u64) -> Option<Result<u64, Cause>> {
        let mut its = self.got.completed.iter().filter(|(of, _)| *of == completion_id);
        let first = its.next().map(|(_, result)| *result);
        assert!(its.next().is_none(), "reported twice");
        first
    }

    fn region(&self, bytes: Vec<u8>, rights: Rights) -> Arc<Region> {
        self.registry.register_host(HostMemory::from_vec(bytes).unwrap(), "pool", rights).unwrap()
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

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A connection over the loopback device.
fn tcp_pair() -> (OwnedFd, OwnedFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near.into(), listener.accept().unwrap().0.into())
}

/// A stream with buffers so small that every group takes many calls. Not TCP, whose sender waits for timers where the
/// receiver has less room than a segment.
fn narrow_pair() -> (OwnedFd, OwnedFd) {
    let (near, far) = pair();
    for fd in [&near, &far] {
        sockopt::set_socket_send_buffer_size(fd, 1).unwrap();
    }
    (near, far)
}

/// One engine and its offer to another.
struct Offered {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    transport: TcpTransport,
    offering: Offering,
}

/// One side with one worker, and its offer to another such.
fn offer(streams: usize) -> Offered {
    offer_of(streams, 1, 1)
}

/// One side with so many workers, and its offer to another with so many.
fn offer_of(streams: usize, workers: usize, theirs: usize) -> Offered {
    let (segments, registry) = (EngineSegments::create(workers).unwrap(), Arc::new(Registry::new()));
    let transport = TcpTransport::new(Arc::clone(&segments), Arc::clone(&registry), TcpIo::Auto, streams).unwrap();
    let here = LocalEnd { host: 1, process: 1, epoch: 1, workers, peer_index: PARTY };
    let watch = Arc::new(ProcessWatch::of(std::process::id()));
    let there = RemoteEnd { host: 2, process: 2, epoch: 2, workers: theirs, peer_index: PARTY, address: None, watch };
    let offering = transport.offer(here, there).unwrap();
    Offered { segments, registry, transport, offering }
}

/// A side that has joined with this offer, over these streams.
fn join(offered: Offered, blob: &[u8], streams: Vec<OwnedFd>) -> Side {
    join_all(offered, blob, streams).remove(0)
}

/// A side for each worker.
fn join_all(offered: Offered, blob: &[u8], streams: Vec<OwnedFd>) -> Vec<Side> {
    let Offered { segments, registry, transport, offering } = offered;
    let link = (offering.join)(blob, Vec::new()).unwrap();
    let attached = link.streams.as_ref().expect("it needs streams");
    assert_eq!(attached.count(), streams.len());
    for (place, stream) in streams.into_iter().enumerate() {
        attached.attach(place, stream).unwrap();
    }
    let sides = link.lanes.into_iter().enumerate().map(|(worker, lane)| {
        let mut side = Side {
            segments: Arc::clone(&segments),
            registry: Arc::clone(&registry),
            driver: transport.driver(worker).unwrap().expect("it has one"),
            lane: Some(lane),
            peer_view: link.peer_view.clone(),
            ready: segments.mailbox.view().ready(worker),
            got: Got { room: usize::MAX, ..Got::default() },
            fault: None,
            expected: Revisions::default(),
            path: link.path.clone(),
        };
        side.turn();
        side
    });
    sides.collect()
}

/// Both sides of a session over these streams.
fn session(streams: Vec<(OwnedFd, OwnedFd)>) -> [Side; 2] {
    let (near, far): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
    let (one, two) = (offer(near.len()), offer(far.len()));
    let (blob_one, blob_two) = (one.offering.blob.clone(), two.offering.blob.clone());
    [join(one, &blob_two, near), join(two, &blob_one, far)]
}

/// Turns both until this is so.
fn until(sides: &mut [Side; 2], what: &str, mut is_so: impl FnMut(&mut [Side; 2]) -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_so(sides) {
        for side in sides.iter_mut() {
            side.turn();
            assert_eq!(side.fault, None, "while waiting until {what}");
        }
        assert!(std::time::Instant::now() < deadline, "waited too long until {what}");
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

const WRITE: Direction = Direction::Write;
const READ: Direction = Direction::Read;

fn told(side: &Side) -> u64 {
    match &side.peer_view {
        PeerView::Reported(told) => told.revision(),
        PeerView::Shared(_) | PeerView::Fenced(..) => panic!("hosts share nothing"),
    }
}
