//! Both sides of a session over a model port: packets in a list, time by hand.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_core::env::{BlockingJob, TransportEnv};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, NoteId, Rights, Span, Timestamp};
use penstock_datagram::wire::Packet;
use penstock_memory::copy::Hint;
use penstock_memory::{HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::{Observation, ReadyBits, Withdrawal};
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, Driver, Failure, Lane, LaneEvents, LaneFault, LocalEnd, Note, NotifyPosted, NotifyRequest, PacketStatistics,
    PostError, Posted, RemoteEnd, RemoteMemory, Rest, Revisions, TargetMediatedMemory, Transport,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::port::{BurstSent, PacketRoom, Port, PortFacts, Train};
use crate::{DatagramOptions, DatagramTransport, OpenPort};

const PEER: u32 = 3;
const BYTES: usize = 200_000;
const FRAME: usize = 1472;

/// Packets that have left, for each of two addresses, and the time.
#[derive(Default)]
struct Wire {
    now: Timestamp,
    randoms: u64,
    to: [VecDeque<Vec<u8>>; 2],
    /// All packets there ever were, each with the side it was sent to.
    seen: Vec<(usize, Vec<u8>)>,
    /// Nothing tells that a packet has come.
    is_deaf: bool,
    /// The ports take no more.
    is_blocked: bool,
    /// Every packet vanishes between the ports.
    is_cut: bool,
    open_ports: usize,
    /// What ids of each side's packets begin with, and the frame, as its port was told.
    admitted: [Vec<(u32, usize)>; 2],
    /// What makes the descriptor of each side's port readable.
    bells: [Option<io::PipeWriter>; 2],
    /// How long a worker stands still before each packet that it receives; what it receives comes meanwhile.
    stands_still: Duration,
}

#[derive(Clone)]
struct Model(Arc<Mutex<Wire>>);

impl TransportEnv for Model {
    fn now(&self) -> Timestamp {
        self.0.lock().unwrap().now
    }

    fn random(&self) -> u64 {
        let mut wire = self.0.lock().unwrap();
        wire.randoms += 1;
        wire.randoms.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn run_blocking(&self, _: u32, job: BlockingJob) {
        job.run();
    }
}

struct ModelPort {
    model: Model,
    side: usize,
    facts: PortFacts,
    bell: OwnedFd,
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + side as u8], 7000))
}

impl Port for ModelPort {
    fn facts(&self) -> &PortFacts {
        &self.facts
    }

    fn frame_bytes(&self, _: SocketAddr) -> io::Result<usize> {
        Ok(FRAME)
    }

    fn admit(&mut self, prefix: u32, frame_bytes: usize) {
        self.model.0.lock().unwrap().admitted[self.side].push((prefix, frame_bytes));
    }

    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize {
        let mut count = 0;
        loop {
            let packet = {
                let mut wire = self.model.0.lock().unwrap();
                let Some(packet) = wire.to[self.side].pop_front() else { break };
                wire.now = wire.now + wire.stands_still;
                packet
            };
            take(Train::Apart(&[&packet]));
            count += 1;
        }
        count
    }

    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent {
        if self.model.0.lock().unwrap().is_blocked {
            return BurstSent::Blocked;
        }
        let there = usize::from(to == address(1));
        assert_eq!(to, address(there), "nobody else is sent to");
        let mut frame = vec![0; frame_bytes];
        for number in 0..8 {
            let mut lent = Vec::new();
            // Half of the packets take memory from where it lies.
            let room = PacketRoom { bytes: &mut frame, lent: (number % 2 == 1).then_some(&mut lent) };
            let Some(bytes) = fill(room) else { return BurstSent::Whole };
            let mut packet = frame[..bytes].to_vec();
            for piece in lent {
                let first = std::ptr::with_exposed_provenance(piece.address as usize);
                // SAFETY: whoever lends memory vouches for it until this call returns, and nobody writes it meanwhile.
                packet.extend_from_slice(unsafe { std::slice::from_raw_parts::<u8>(first, piece.len as usize) });
            }
            let mut wire = self.model.0.lock().unwrap();
            if !wire.is_cut {
                wire.to[there].push_back(packet.clone());
            }
            wire.seen.push((there, packet));
        }
        BurstSent::Full
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.model.0.lock().unwrap().is_deaf).then(|| self.bell.as_fd())
    }
}

impl Drop for ModelPort {
    fn drop(&mut self) {
        self.model.0.lock().unwrap().open_ports -= 1;
    }
}

#[derive(Default)]
struct Got {
    notes: Vec<(u128, Vec<u8>)>,
    completed: Vec<(u64, Result<u64, Cause>)>,
}

impl LaneEvents for Got {
    fn reserve_note(&mut self) -> bool {
        true
    }

    fn note(&mut self, note: Note<'_>) {
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
    transport: DatagramTransport,
    region: Arc<Region>,
    driver: Box<dyn Driver>,
    lane: Option<Box<dyn Lane>>,
    ready: ReadyBits,
    got: Got,
    fault: Option<LaneFault>,
    checked_at: Revisions,
}

/// Two sides that have joined and heard each other.
fn session() -> (Model, [Side; 2]) {
    let (model, mut sides) = joined();
    run(&model, &mut sides, Duration::from_millis(100));
    assert!(sides.iter().all(|side| side.fault.is_none()));
    (model, sides)
}

/// Two sides that have joined.
fn joined() -> (Model, [Side; 2]) {
    joined_with([1 << 20; 2], FRAME)
}

/// Two whose receive buffers take so much, with packets of so many bytes.
fn joined_with(receive_bytes: [u64; 2], frame: usize) -> (Model, [Side; 2]) {
    let now = Timestamp::default() + Duration::from_secs(1);
    let model = Model(Arc::new(Mutex::new(Wire { now, ..Wire::default() })));
    let make = |side: usize| {
        let (segments, registry) = (EngineSegments::create(1).unwrap(), Arc::new(Registry::new()));
        let memory = HostMemory::from_vec(vec![0; BYTES]).unwrap();
        let region = registry.register_host(memory, "kv", Rights::READ_WRITE).unwrap();
        let (shared, env) = (model.clone(), Arc::new(model.clone()));
        let open: OpenPort = Arc::new(move |_| {
            shared.0.lock().unwrap().open_ports += 1;
            let name = "a model".to_owned();
            let facts = PortFacts {
                name,
                address: address(side),
                receive_bytes: receive_bytes[side],
                needs_checksums: true,
                comes_apart: false,
                joins_equal: true,
                pairs_workers: false,
                unheard_mend: ": look at the model",
            };
            let (bell, rings) = io::pipe()?;
            shared.0.lock().unwrap().bells[side] = Some(rings);
            Ok(Box::new(ModelPort { model: shared.clone(), side, facts, bell: bell.into() }))
        });
        let options = DatagramOptions::default();
        let transport = DatagramTransport::new(Arc::clone(&segments), registry, env, open, options).unwrap();
        let here = LocalEnd { host: 1, process: 1, epoch: 1, workers: 1, peer_index: PEER };
        let watch = Arc::new(ProcessWatch::of(std::process::id()));
        let met_at = Some(address(1 - side));
        let there = RemoteEnd { host: 2, process: 2, epoch: 2, workers: 1, peer_index: PEER, address: met_at, watch };
        assert_eq!(model.0.lock().unwrap().open_ports, side, "a port is opened for the first peer");
        let offering = transport.offer(here, there).unwrap();
        (segments, region, transport, offering)
    };
    let (one, two) = (make(0), make(1));
    let blobs = [two.3.blob.clone(), one.3.blob.clone()];
    let sides = [one, two].into_iter().zip(blobs).map(|((segments, region, transport, offering), blob)| {
        let mut link = (offering.join)(&blob, Vec::new()).unwrap();
        assert_eq!(link.path, format!("in datagrams over a model, frame {frame}, 1 connections"));
        Side {
            driver: transport.driver(0).unwrap().unwrap(),
            ready: segments.mailbox.view().ready(0),
            lane: link.lanes.pop(),
            transport,
            region,
            segments,
            got: Got::default(),
            fault: None,
            checked_at: Revisions::default(),
        }
    });
    let sides: Vec<Side> = sides.collect();
    let sides: [Side; 2] = sides.try_into().unwrap_or_else(|_| unreachable!());
    sides[0].region.host().unwrap().fill(0, BYTES as u64, 0x11).unwrap();
    sides[1].region.host().unwrap().fill(0, BYTES as u64, 0x55).unwrap();
    (model, sides)
}

/// Turns both sides for so long, in steps of 20 µs.
fn run(model: &Model, sides: &mut [Side; 2], span: Duration) {
    for _ in 0..(span.as_micros() / 20) {
        {
            let mut wire = model.0.lock().unwrap();
            wire.now = wire.now + Duration::from_micros(20);
        }
        sides.iter_mut().for_each(Side::turn);
    }
}

impl Side {
    fn turn(&mut self) {
        self.driver.turn();
        self.touches_nothing();
        let mut is_marked = false;
        self.ready.take_each(|peer_index| is_marked |= peer_index == PEER as usize);
        let Some(lane) = self.lane.as_mut().filter(|_| is_marked && self.fault.is_none()) else { return };
        match lane.poll(&mut self.got) {
            Ok(true) => self.ready.mark(PEER as usize),
            Ok(false) => {}
            Err(fault) => self.fault = Some(fault),
        }
        self.touches_nothing();
    }

    /// A section that is left open keeps whoever wants memory back waiting.
    fn touches_nothing(&self) {
        let hazard = self.segments.owner_state.hazard(PEER, 0).view();
        assert_eq!(hazard.observe(), Observation::Quiet);
    }

    fn key(&self) -> RegionKey {
        RegionKey { region: self.region.id(), generation: self.region.generation() }
    }

    fn post(&mut self, direction: Direction, remote: RegionKey, id: u64, span: Span) -> Result<Posted, PostError> {
        let remote = RemoteMemory::TargetMediated(TargetMediatedMemory { key: remote, bytes: 1 << 40 });
        let region = Arc::clone(&self.region);
        let batch = Batch {
            direction,
            local: region.memory(),
            local_region: self.key(),
            remote_region: self.key(),
            remote: &remote,
            spans: &[span],
            hint: Hint::Cached,
            checked_at: self.checked_at,
            completion_id: id,
            transfer: id,
            transfer_bytes: span.len,
        };
        let lane = self.lane.as_mut().unwrap();
        let posted = lane.post(&batch)?;
        lane.ring_doorbell().map_err(PostError::Fault)?;
        Ok(posted)
    }

    fn notify(&mut self, transfer: u64, completion_id: u64, payload: &[u8]) -> Result<NotifyPosted, PostError> {
        let note = Some(Note { id: NoteId(77), payload });
        let lane = self.lane.as_mut().unwrap();
        let posted = lane.notify(&NotifyRequest { transfer, transfer_bytes: 0, completion_id, counter: None, note })?;
        lane.ring_doorbell().map_err(PostError::Fault)?;
        Ok(posted)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.region.host().unwrap().read_into(0, &mut bytes).unwrap();
        bytes
    }

    fn withdraw(&self, offset: u64, len: u64) {
        let RegionKey { region, generation } = self.key();
        let (region, generation) = (region.0, generation.0);
        self.segments.owner_state.withdraw(&[Withdrawal { region, generation, offset, len }]);
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn bytes_are_written_read_and_told_of() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    let written = Span { local: 100, remote: 7, len: 60_000 };
    assert_eq!(sides[0].post(Direction::Write, key, 1, written), Ok(Posted::Accepted(1)));
    assert_eq!(sides[0].notify(1, 2, &[9; 4096]), Ok(NotifyPosted::Accepted));
    run(&model, &mut sides, 50 * MS);
    assert_eq!(sides[0].got.completed, [(1, Ok(60_000)), (2, Ok(1))]);
    assert_eq!(sides[1].got.notes, [(77, vec![9; 4096])]);
    let far = sides[1].bytes();
    assert!(far[7..60_007].iter().all(|&byte| byte == 0x11));
    assert!(far[..7].iter().chain(&far[60_007..]).all(|&byte| byte == 0x55));
    sides[0].post(Direction::Read, key, 3, Span { local: 0, remote: 100_000, len: 50_000 }).unwrap();
    run(&model, &mut sides, 50 * MS);
    assert_eq!(sides[0].got.completed.last(), Some(&(3, Ok(50_000))));
    let near = sides[0].bytes();
    assert!(near[..50_000].iter().all(|&byte| byte == 0x55) && near[50_000..].iter().all(|&byte| byte == 0x11));
    // What a port was told to keep are all packets that came to it.
    let (seen, admitted) = {
        let wire = model.0.lock().unwrap();
        (wire.seen.clone(), wire.admitted.clone())
    };
    let begins = |packet: &[u8]| u32::from_le_bytes(packet[4..8].try_into().unwrap());
    assert!(seen.iter().all(|(to, packet)| admitted[*to] == [(begins(packet), FRAME)]), "{admitted:?}");
}

#[test]
fn what_may_not_land_is_refused_and_what_notifies_of_it_is_not_told() {
    let whole = Span { local: 0, remote: 0, len: 3000 };
    let beyond = Span { remote: BYTES as u64 - 2999, ..whole };
    type Break = fn(&Side, RegionKey) -> RegionKey;
    let cases: [(&str, Cause, Span, Break); 4] = [
        ("behind the end", Cause::OutOfBounds, beyond, |_, key| key),
        ("no such region", Cause::RevokedByPeer, whole, |_, key| RegionKey {
            region: penstock_core::RegionId(4000),
            ..key
        }),
        ("another use of its id", Cause::RevokedByPeer, whole, |_, key| RegionKey {
            generation: penstock_core::Generation(key.generation.0 + 1),
            ..key
        }),
        ("withdrawn", Cause::RevokedByPeer, whole, |far, key| {
            far.withdraw(2999, 1);
            key
        }),
    ];
    for (name, cause, span, broken) in cases {
        let (model, mut sides) = session();
        let key = broken(&sides[1], sides[1].key());
        sides[0].post(Direction::Write, key, 1, span).unwrap();
        sides[0].notify(1, 2, b"not told").unwrap();
        run(&model, &mut sides, 50 * MS);
        assert_eq!(sides[0].got.completed, [(1, Err(cause)), (2, Err(cause))], "{name}");
        assert_eq!(sides[1].got.notes, [], "{name}");
        assert!(sides.iter().all(|side| side.fault.is_none()), "{name}");
        // Each packet is checked by itself: those that named nothing forbidden may have landed.
        let is_in_part = span.len == 3000 && ["behind the end", "withdrawn"].contains(&name);
        let may_change = if is_in_part { span.remote as usize..span.remote as usize + 2999 } else { 0..0 };
        let far = sides[1].bytes();
        let stays = |(place, &byte): (usize, &u8)| byte == 0x55 || may_change.contains(&place);
        assert!(far.iter().enumerate().all(stays), "{name}");
    }
}

/// Every packet there was, again, cut, and with each byte of its header changed.
#[test]
fn what_was_heard_or_changed_on_the_way_lands_nowhere_and_disturbs_nobody() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 20_000 }).unwrap();
    sides[0].notify(1, 2, b"once").unwrap();
    run(&model, &mut sides, 50 * MS);
    assert_eq!(sides[1].got.notes.len(), 1);
    // The memory is used for something else now.
    sides[1].region.host().unwrap().fill(0, BYTES as u64, 0x77).unwrap();
    let seen = model.0.lock().unwrap().seen.clone();
    assert!(seen.len() > 14);
    for (to, packet) in &seen {
        let mut again = vec![packet.clone(), packet[..packet.len() - 1].to_vec(), Vec::new()];
        for place in 0..packet.len().min(200) {
            let mut changed = packet.clone();
            changed[place] ^= 0x40;
            again.push(changed);
        }
        model.0.lock().unwrap().to[*to].extend(again);
        run(&model, &mut sides, Duration::from_micros(40));
    }
    assert!(sides[1].bytes() == [0x77; BYTES]);
    sides[0].post(Direction::Write, key, 3, Span { local: 0, remote: 5, len: 1 }).unwrap();
    run(&model, &mut sides, 50 * MS);
    assert_eq!((sides[0].got.completed.last(), sides[1].got.notes.len()), (Some(&(3, Ok(1))), 1));
    assert!(sides.iter().all(|side| side.fault.is_none()));
}

/// Notes that were refused take no room at the receiver, however many they are.
#[test]
fn a_note_that_was_not_delivered_gives_its_room_back() {
    let (model, mut sides) = session();
    let nobody = RegionKey { region: penstock_core::RegionId(4000), ..sides[1].key() };
    for round in 0..40 {
        let (write, note) = (10 * round + 1, 10 * round + 2);
        sides[0].post(Direction::Write, nobody, write, Span { local: 0, remote: 0, len: 10 }).unwrap();
        assert_eq!(sides[0].notify(write, note, &[1; 4096]), Ok(NotifyPosted::Accepted), "round {round}");
        run(&model, &mut sides, 5 * MS);
        assert_eq!(sides[0].got.completed.pop(), Some((note, Err(Cause::RevokedByPeer))));
    }
    assert_eq!(sides[1].got.notes, []);
}

#[test]
fn a_read_is_told_of_once_it_is_here() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    sides[0].post(Direction::Read, key, 1, Span { local: 0, remote: 0, len: 10 }).unwrap();
    assert_eq!(sides[0].notify(1, 2, b"read"), Err(PostError::Full));
    run(&model, &mut sides, 10 * MS);
    assert_eq!(sides[0].notify(1, 2, b"read"), Ok(NotifyPosted::Accepted));
    run(&model, &mut sides, 10 * MS);
    assert_eq!(sides[1].got.notes, [(77, b"read".to_vec())]);
}

#[test]
fn strangers_and_forgers_wake_no_lane() {
    let (model, mut sides) = session();
    let mine = model.0.lock().unwrap().seen.iter().find(|(to, _)| *to == 1).unwrap().1.clone();
    let mut forged = mine.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut stranger = mine.clone();
    stranger[7] ^= 1;
    for packet in [forged, stranger, mine, vec![0; 2000], Vec::new()] {
        model.0.lock().unwrap().to[1].push_back(packet);
        assert!(!sides[1].driver.turn());
    }
    assert!(model.0.lock().unwrap().to[1].is_empty());
    let all = sides[1].transport.packets().unwrap();
    assert_eq!((all.strangers, all.forged, all.replayed), (3, 1, 1), "{all:?}");
    let of_peer = sides[1].transport.peer_packets(PEER).unwrap().packets;
    assert_eq!((of_peer.strangers, of_peer.forged, of_peer.replayed), (0, 1, 1), "{of_peer:?}");
    assert_eq!(sides[1].transport.peer_packets(PEER + 1), None);
    sides[1].lane = None;
    assert_eq!(sides[1].transport.peer_packets(PEER), None);
    assert_eq!(sides[1].transport.packets(), Some(all), "what is over is still counted");
}

#[test]
fn a_packet_takes_an_eighth_of_the_smaller_buffer_and_is_never_too_short() {
    for (receive_bytes, frame) in [([1 << 20, 18_000], 1354), ([18_000, 1 << 20], 1354), ([1, 18_000], 1188)] {
        joined_with(receive_bytes, frame);
    }
}

#[test]
fn packets_wake_a_worker_that_sleeps_and_look_for_none_that_works() {
    let (model, mut sides) = session();
    let (now, key) = (model.now(), sides[1].key());
    let is_woken = |side: &Side| {
        let mut fds = [PollFd::from_borrowed_fd(side.driver.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    assert_eq!(sides[1].driver.rest(now), Rest::Until(Timestamp::NEVER));
    assert!(!is_woken(&sides[1]));
    let rung = model.0.lock().unwrap().bells[1].as_mut().map(|bell| io::Write::write_all(bell, &[0]));
    rung.expect("its port is open").unwrap();
    assert!(is_woken(&sides[1]));
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 100 }).unwrap();
    sides[1].turn();
    assert!(!is_woken(&sides[1]), "it looks by itself");
    run(&model, &mut sides, MS);
    assert_eq!(sides[1].driver.rest(model.now()), Rest::Until(Timestamp::NEVER));
    assert!(is_woken(&sides[1]), "what is there before a sleep ends it as well");
}

#[test]
fn what_was_lost_and_how_far_it_is_to_the_peer_is_told() {
    let (model, mut sides) = session();
    let before = sides[0].transport.peer_packets(PEER).unwrap();
    assert_eq!((before.packets.lost, before.packets.loss()), (0, 0.0));
    let key = sides[1].key();
    model.0.lock().unwrap().is_cut = true;
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 10 * FRAME as u64 }).unwrap();
    run(&model, &mut sides, MS);
    model.0.lock().unwrap().is_cut = false;
    run(&model, &mut sides, 500 * MS);
    assert_eq!(sides[0].got.completed.len(), 1);
    let after = sides[0].transport.peer_packets(PEER).unwrap();
    let PacketStatistics { lost, spurious, repeated, timeouts, .. } = after.packets;
    assert!(lost >= 4 && spurious == 0 && repeated >= 4 && timeouts >= 1, "{after:?}");
    assert!(after.packets.loss() > 0.0 && after.window_bytes > 0, "{after:?}");
    assert!(!after.round_trip.is_zero() && after.round_trip < 10 * MS, "{after:?}");
}

#[test]
fn a_worker_that_stands_still_while_it_receives_makes_no_path_look_shorter() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 5 * FRAME as u64 }).unwrap();
    model.0.lock().unwrap().seen.clear();
    model.0.lock().unwrap().stands_still = 5 * MS;
    sides[1].turn();
    sides[1].turn();
    let seen = std::mem::take(&mut model.0.lock().unwrap().seen);
    let acks: Vec<_> = seen.iter().filter_map(|(_, packet)| Packet::parse(packet).unwrap().ack()).collect();
    assert!(!acks.is_empty());
    // The newest packet came in the last of the times for which it stood still, and is acknowledged at once.
    assert!(acks.iter().all(|ack| Duration::from_nanos(ack.delay_ns.into()) < MS), "{acks:?}");
}

#[test]
fn what_is_given_up_carries_nothing_any_more() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    model.0.lock().unwrap().is_blocked = true;
    let span = Span { local: 0, remote: 0, len: 30_000 };
    sides[0].post(Direction::Write, key, 1, span).unwrap();
    assert_eq!(sides[0].lane.as_mut().unwrap().cancel_op(1), CancelledOp::Quiesced, "nothing has left");
    assert_eq!(sides[0].lane.as_mut().unwrap().cancel_op(1), CancelledOp::Quiesced);
    model.0.lock().unwrap().is_blocked = false;
    run(&model, &mut sides, 50 * MS);
    assert!(sides[0].got.completed.is_empty() && sides[1].bytes() == [0x55; BYTES]);
    // Now with packets on the way, which are all lost: what follows them says that it was given up.
    sides[0].post(Direction::Write, key, 2, span).unwrap();
    model.0.lock().unwrap().to[1].clear();
    assert_eq!(sides[0].lane.as_mut().unwrap().cancel_op(2), CancelledOp::RemotePending);
    run(&model, &mut sides, 100 * MS);
    assert_eq!(sides[0].got.completed, [(2, Err(Cause::Cancelled))]);
    assert!(sides[1].bytes() == [0x55; BYTES]);
}

#[test]
fn memory_of_ones_own_that_was_withdrawn_does_not_leave() {
    let (model, mut sides) = session();
    let key = sides[1].key();
    model.0.lock().unwrap().is_blocked = true;
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 100 }).unwrap();
    sides[0].withdraw(99, 1);
    model.0.lock().unwrap().is_blocked = false;
    run(&model, &mut sides, 50 * MS);
    assert_eq!(sides[0].got.completed, [(1, Err(Cause::RevokedHere))]);
    assert!(sides[1].bytes() == [0x55; BYTES]);
    let stale = sides[0].post(Direction::Write, key, 2, Span { local: 200, remote: 0, len: 1 });
    assert_eq!(stale, Err(PostError::StaleRevisions(Revisions { local: 1, remote: 0 })));
}

#[test]
fn a_peer_that_is_gone_is_lost_and_a_session_that_is_idle_wakes_nobody() {
    let (model, mut sides) = session();
    let now = model.now();
    assert_eq!(sides.each_mut().map(|side| side.driver.rest(now)), [Rest::Until(Timestamp::NEVER); 2]);
    let key = sides[1].key();
    drop(sides[1].lane.take());
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 100 }).unwrap();
    run(&model, &mut sides, 4900 * MS);
    assert_eq!(sides[0].fault, None);
    run(&model, &mut sides, 300 * MS);
    assert_eq!(sides[0].fault, Some(LaneFault(Cause::PeerLost)));
    let again = sides[0].post(Direction::Write, key, 2, Span { local: 0, remote: 0, len: 100 });
    assert_eq!(again, Err(PostError::Fault(LaneFault(Cause::PeerLost))));
    let now = model.now();
    assert_eq!(sides[0].driver.rest(now), Rest::Until(Timestamp::NEVER), "what is over asks for no look");
    assert!(sides[1].bytes() == [0x55; BYTES]);
}

/// A session in which not one packet comes, for a reason: it ends after a second or so.
fn unheard(spoil: fn(&mut Wire)) -> [Side; 2] {
    let (model, mut sides) = joined();
    spoil(&mut model.0.lock().unwrap());
    run(&model, &mut sides, 900 * MS);
    assert_eq!(sides.each_ref().map(|side| side.fault), [None; 2]);
    run(&model, &mut sides, 200 * MS);
    assert_eq!(sides.each_ref().map(|side| side.fault), [Some(LaneFault(Cause::NoPath)); 2]);
    sides
}

#[test]
fn a_session_of_which_no_packet_comes_ends_within_a_second_or_so() {
    let sides = unheard(|wire| wire.is_cut = true);
    let why = sides[0].lane.as_ref().unwrap().why_broken().unwrap();
    assert!(why.contains(&address(1).to_string()) && why.contains("look at the model"), "{why}");
}

#[test]
fn a_worker_that_no_packet_wakes_stays_awake_and_then_looks_ever_less_often() {
    let (model, mut sides) = session();
    model.0.lock().unwrap().is_deaf = true;
    let key = sides[1].key();
    sides[0].post(Direction::Write, key, 1, Span { local: 0, remote: 0, len: 100 }).unwrap();
    // A nap of a part of it would be long enough to be one.
    run(&model, &mut sides, MS * 2 / 5);
    let now = model.now();
    assert_eq!(sides.each_mut().map(|side| side.driver.rest(now)), [Rest::Busy; 2]);
    for (longer, nap) in [(2 * MS, MS / 2), (100 * MS, MS)] {
        run(&model, &mut sides, longer);
        let now = model.now();
        for side in &mut sides {
            let Rest::Until(until) = side.driver.rest(now) else { panic!("it sleeps") };
            let found = until.since(now);
            assert!((nap * 3 / 4..=nap * 5 / 4).contains(&found), "{found:?} after {longer:?} more");
        }
    }
}

#[test]
fn a_session_whose_ports_take_nothing_ends_as_soon() {
    unheard(|wire| wire.is_blocked = true);
}
