//! One side of a session, and a peer that says what it likes: the lane ends, or goes on, and nothing lands where it may not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, NoteId, RegionId, Rights, Span, Timestamp};
use penstock_memory::{Hint, HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::Withdrawal;
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, CounterRef, Driver, Failure, Lane, LaneEvents, LocalEnd, Note, PostError, RemoteEnd, RemoteMemory,
    Revisions, TargetMediatedMemory, Transport,
};
use proptest::prelude::*;

use crate::SimTransport;
use crate::fabric::Fabric;
use crate::line::WINDOW;
use crate::packet::{Head, Message, Request};

const OURS: u64 = 11;
const THEIRS: u64 = 22;
const PARTY: u32 = 3;
const BYTES: usize = 1000;

/// A network of which the test holds both ends.
#[derive(Default)]
struct Strings {
    passed: Duration,
    inbound: VecDeque<Vec<u8>>,
    outbound: Vec<Vec<u8>>,
    is_closed: bool,
}

struct Puppet(Mutex<Strings>);

impl Fabric for Puppet {
    fn now(&self) -> Timestamp {
        Timestamp::from_ns(1) + self.0.lock().unwrap().passed
    }

    fn open(&self, engine: u64) -> u64 {
        assert_eq!(engine, OURS);
        5
    }

    fn close(&self, _: u64) {
        self.0.lock().unwrap().is_closed = true;
    }

    fn send(&self, from: u64, to: u64, packet: Vec<u8>) {
        assert_eq!((from, to), (5, 6));
        self.0.lock().unwrap().outbound.push(packet);
    }

    fn receive(&self, _: u64) -> Option<Vec<u8>> {
        self.0.lock().unwrap().inbound.pop_front()
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

struct Side {
    segments: Arc<EngineSegments>,
    puppet: Arc<Puppet>,
    driver: Box<dyn Driver>,
    lane: Box<dyn Lane>,
    got: Got,
    fault: Option<Cause>,
    region: Arc<Region>,
    read_only: Arc<Region>,
    /// The last number that the peer has given.
    sequence: u64,
}

fn side() -> Side {
    let (segments, registry) = (EngineSegments::create(1).unwrap(), Arc::new(Registry::new()));
    let region = |rights| {
        let memory = HostMemory::from_vec(vec![0x55; BYTES]).unwrap();
        registry.register_host(memory, "", rights).unwrap()
    };
    let (region, read_only) = (region(Rights::READ_WRITE), region(Rights::READ));
    let puppet = Arc::new(Puppet(Mutex::default()));
    let fabric = Arc::clone(&puppet) as Arc<dyn Fabric>;
    let transport = SimTransport::new(Arc::clone(&segments), registry, fabric).unwrap();
    let here = LocalEnd { host: 1, process: 1, epoch: OURS, workers: 1, peer_index: PARTY };
    let watch = Arc::new(ProcessWatch::of(std::process::id()));
    let there = RemoteEnd { host: 2, process: 2, epoch: THEIRS, workers: 1, peer_index: 0, watch };
    let offering = transport.offer(here, there).unwrap();
    let mut theirs = offering.blob.clone();
    theirs[8] = 6;
    let mut link = (offering.join)(&theirs, Vec::new()).unwrap();
    let (driver, lane) = (transport.driver(0).unwrap().unwrap(), link.lanes.remove(0));
    Side { segments, puppet, driver, lane, got: Got::default(), fault: None, region, read_only, sequence: 0 }
}

impl Side {
    fn turn(&mut self) {
        self.driver.turn();
        if self.fault.is_none() {
            self.fault = self.lane.poll(&mut self.got).err().map(|fault| fault.0);
        }
    }

    /// What comes as a packet with this head.
    fn feed_as(&mut self, head: Head, message: &[u8]) -> Option<Cause> {
        let mut packet = Vec::new();
        head.put(&mut packet);
        packet.extend(message);
        self.puppet.0.lock().unwrap().inbound.push_back(packet);
        self.turn();
        self.fault
    }

    fn feed(&mut self, sequence: u64, message: &Message<'_>) -> Option<Cause> {
        self.feed_as(Head { from: THEIRS, to: OURS, sequence, until: 0, seen: 0 }, &bytes_of(message))
    }

    /// The peer's next message.
    fn say(&mut self, message: &Message<'_>) -> Option<Cause> {
        self.sequence += 1;
        self.feed(self.sequence, message)
    }

    /// What this side has said since the last look, with its numbers.
    fn said(&mut self) -> Vec<(u64, Vec<u8>)> {
        let packets = std::mem::take(&mut self.puppet.0.lock().unwrap().outbound);
        let said = packets.iter().filter_map(|packet| {
            let (head, body) = Head::parse(packet).unwrap();
            assert_eq!((head.from, head.to), (OURS, THEIRS));
            (head.sequence > 0).then(|| (head.sequence, body.to_vec()))
        });
        said.collect()
    }

    /// How this side says that an operation of the peer has ended.
    fn result(&mut self) -> Result<u64, Cause> {
        let said = self.said();
        let done = said.iter().find_map(|(_, message)| match Message::parse(message).unwrap() {
            Message::Done { result, .. } => Some(result),
            _ => None,
        });
        done.expect("it has ended")
    }

    fn memory(&self, region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        region.window().read_into(0, &mut bytes).unwrap();
        bytes
    }

    fn post(&mut self, direction: Direction, completion_id: u64, len: u64) -> Result<(), PostError> {
        let remote = RemoteMemory::TargetMediated(TargetMediatedMemory { key: key_of(&self.region), bytes: 1 << 30 });
        let spans = [Span { local: 0, remote: 0, len }];
        let region = Arc::clone(&self.region);
        let batch = Batch {
            direction,
            local: region.window(),
            local_region: key_of(&region),
            remote: &remote,
            spans: &spans,
            hint: Hint::Cached,
            checked_at: Revisions::default(),
            completion_id,
            transfer: completion_id,
            transfer_bytes: len,
        };
        self.lane.post(&batch).map(drop)
    }
}

fn bytes_of(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.put(&mut bytes);
    bytes
}

fn key_of(region: &Region) -> RegionKey {
    RegionKey { region: region.id(), generation: region.generation() }
}

fn request(operation: u64, key: RegionKey, extents: &[(u64, u64)]) -> Request {
    Request { operation, transfer: 9, key, revision: 0, extents: extents.to_vec() }
}

fn notify(operation: u64) -> Message<'static> {
    let note = Some(Note { id: NoteId(77), payload: b"all of it" });
    Message::Notify { operation, transfer: 9, counter: None, note }
}

#[test]
fn what_may_land_lands_and_is_told_of() {
    let mut side = side();
    let key = key_of(&side.region);
    let write = request(1, key, &[(10, 3), (990, 10)]);
    assert_eq!(side.say(&Message::Write { request: write, is_last: true, bytes: b"abcdefghijklm" }), None);
    assert_eq!(side.result(), Ok(0));
    let memory = side.memory(&side.region);
    assert_eq!((&memory[10..13], &memory[990..]), (&b"abc"[..], &b"defghijklm"[..]));
    assert_eq!(memory.iter().filter(|&&byte| byte == 0x55).count(), BYTES - 13);
    assert_eq!(side.say(&notify(2)), None);
    assert_eq!((side.result(), side.got.notes.len()), (Ok(1), 1));
}

/// What is wrong with a request, what is answered to it, and the request.
type Case<'a> = (&'static str, Cause, &'a dyn Fn(&Side) -> Request);

#[test]
fn what_may_not_land_is_refused_and_what_announces_it_is_not_told() {
    let nobody = RegionKey { region: RegionId(4000), generation: Generation(0) };
    let cases: [Case<'_>; 7] = [
        ("behind the end", Cause::OutOfBounds, &|side| request(1, key_of(&side.region), &[(998, 3)])),
        ("far behind it", Cause::OutOfBounds, &|side| request(1, key_of(&side.region), &[(1 << 50, 3)])),
        ("the second extent", Cause::OutOfBounds, &|side| request(1, key_of(&side.region), &[(0, 1), (999, 2)])),
        ("without a right", Cause::OutOfBounds, &|side| request(1, key_of(&side.read_only), &[(0, 3)])),
        ("no such region", Cause::RevokedByPeer, &|_| request(1, nobody, &[(0, 3)])),
        ("another use of its id", Cause::RevokedByPeer, &|side| {
            let key = key_of(&side.region);
            request(1, RegionKey { generation: Generation(key.generation.0 + 1), ..key }, &[(0, 3)])
        }),
        ("withdrawn", Cause::RevokedByPeer, &|side| {
            let RegionKey { region, generation } = key_of(&side.region);
            let (region, generation) = (region.0, generation.0);
            side.segments.owner_state.withdraw(&[Withdrawal { region, generation, offset: 4, len: 1 }]);
            request(1, key_of(&side.region), &[(2, 3)])
        }),
    ];
    for (name, cause, make) in cases {
        let mut side = side();
        let request = make(&side);
        assert_eq!(side.say(&Message::Write { request, is_last: true, bytes: b"abc" }), None, "{name}");
        assert_eq!(side.result(), Err(cause), "{name}");
        assert_eq!(side.say(&notify(2)), None, "{name}");
        assert_eq!((side.result(), side.got.notes.len()), (Err(cause), 0), "{name}");
        for region in [&side.region, &side.read_only] {
            assert_eq!(side.memory(region), [0x55; BYTES], "{name}");
        }
    }
}

#[test]
fn reads_are_answered_within_rights_and_bounds() {
    let mut side = side();
    let read = request(1, key_of(&side.read_only), &[(0, 5), (900, 2)]);
    assert_eq!(side.say(&Message::Read(read)), None);
    let said = side.said();
    let said: Vec<_> = said.iter().map(|(_, message)| Message::parse(message).unwrap()).collect();
    assert_eq!(said[0], Message::Data { operation: 1, place: 0, bytes: &[0x55; 7] });
    assert_eq!(said[1], Message::Done { operation: 1, result: Ok(7), revision: 0 });
    let beyond = request(2, key_of(&side.read_only), &[(999, 2)]);
    assert_eq!((side.say(&Message::Read(beyond)), side.result()), (None, Err(Cause::OutOfBounds)));
}

#[test]
fn a_note_that_overtakes_its_bytes_waits_for_them_and_comes_once() {
    let mut side = side();
    let key = key_of(&side.region);
    let counter = CounterRef { index: 0, generation: side.segments.mailbox.view().counter(0).unwrap().generation() };
    let note = Some(Note { id: NoteId(77), payload: b"all of it" });
    let told = Message::Notify { operation: 2, transfer: 9, counter: Some(counter), note };
    let part = |is_last, place| Message::Write { request: request(1, key, &[(place, 1)]), is_last, bytes: b"x" };
    for _ in 0..3 {
        assert_eq!(side.feed(3, &told), None);
        assert_eq!(side.feed(2, &part(true, 1)), None);
    }
    assert_eq!((side.memory(&side.region)[1], side.got.notes.len()), (b'x', 0), "it lands, and is not told");
    for _ in 0..3 {
        assert_eq!(side.feed(1, &part(false, 0)), None);
        assert_eq!(side.feed(3, &told), None);
    }
    assert_eq!(&side.memory(&side.region)[..2], b"xx");
    assert_eq!((side.got.notes.len(), side.segments.mailbox.view().counter(0).unwrap().value()), (1, 1));
    // What comes again is no longer what it was.
    side.region.window().fill(0, BYTES as u64, 0).unwrap();
    assert_eq!(side.feed(1, &part(false, 0)), None);
    assert_eq!(side.memory(&side.region), [0; BYTES]);
}

#[test]
fn packets_of_other_lives_go_nowhere_and_break_nothing() {
    let mut side = side();
    let message = bytes_of(&Message::Write {
        request: request(1, key_of(&side.region), &[(0, 3)]),
        is_last: true,
        bytes: b"abc",
    });
    for (from, to) in [(THEIRS + 1, OURS), (THEIRS, OURS + 1), (OURS, THEIRS), (0, 0)] {
        assert_eq!(side.feed_as(Head { from, to, sequence: 1, until: 0, seen: 0 }, &message), None);
    }
    side.puppet.0.lock().unwrap().inbound.push_back(b"not even a packet".to_vec());
    side.turn();
    assert_eq!((side.fault, side.said().len()), (None, 0));
    assert_eq!(side.memory(&side.region), [0x55; BYTES]);
}

#[test]
fn what_nobody_can_say_ends_the_lane() {
    let corrupt = Some(Cause::PeerCorrupt);
    let key = key_of(&side().region);
    let write =
        |operation, is_last| Message::Write { request: request(operation, key, &[(0, 1)]), is_last, bytes: b"x" };
    let future = Request { revision: 1, ..request(1, key, &[(0, 1)]) };
    let done = |operation| Message::Done { operation, result: Ok(0), revision: 0 };
    let cases: [&[Message<'_>]; 10] = [
        &[write(2, true)],
        &[write(1, true), write(1, true)],
        &[write(1, false), write(2, true)],
        &[write(1, false), notify(2)],
        &[Message::Write { request: future.clone(), is_last: true, bytes: b"x" }],
        &[Message::Read(future)],
        &[done(1)],
        &[Message::Data { operation: 1, place: 0, bytes: b"x" }],
        &[Message::Credit(1)],
        &[Message::GivenUp { operation: 2, transfer: 1, is_last: true, cause: Cause::Cancelled }],
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut side = side();
        let (last, before) = case.split_last().unwrap();
        before.iter().for_each(|message| assert_eq!(side.say(message), None, "case {number}"));
        assert_eq!(side.say(last), corrupt, "case {number}");
    }
    assert_eq!(side().feed(WINDOW + 1, &done(1)), corrupt);
    let head = Head { from: THEIRS, to: OURS, sequence: 1, until: 0, seen: 0 };
    assert_eq!(side().feed_as(head, b"rubbish"), corrupt);
    assert_eq!(side().feed_as(Head { until: 1, ..head }, &bytes_of(&notify(1))), corrupt);
}

#[test]
fn a_read_lands_within_what_was_asked_for_and_is_whole_when_it_is_done() {
    let data = |place, bytes| Message::Data { operation: 1, place, bytes };
    let done = |result| Message::Done { operation: 1, result, revision: 0 };
    let asking = || {
        let mut side = side();
        side.post(Direction::Read, 4, 8).unwrap();
        side.lane.ring_doorbell().unwrap();
        side
    };
    let mut whole = asking();
    assert_eq!(whole.feed(3, &done(Ok(8))), None);
    assert_eq!(whole.feed(2, &data(0, b"abcd")), None);
    assert_eq!(whole.got.completed, []);
    assert_eq!(whole.feed(1, &data(4, b"efgh")), None);
    assert_eq!(whole.got.completed, [(4, Ok(8))]);
    assert_eq!(&whole.memory(&whole.region)[..9], b"abcdefgh\x55");

    assert_eq!(asking().say(&data(4, b"abcde")), Some(Cause::PeerCorrupt), "beyond its end");
    let mut short = asking();
    assert_eq!(short.say(&data(0, b"abcd")), None);
    assert_eq!(short.say(&done(Ok(8))), Some(Cause::PeerCorrupt), "not all of it came");
    let mut failed = asking();
    assert_eq!(failed.say(&done(Err(Cause::RevokedByPeer))), None);
    assert_eq!(failed.got.completed, [(4, Err(Cause::RevokedByPeer))]);

    let mut late = asking();
    assert_eq!(late.lane.cancel_op(4), CancelledOp::RemotePending);
    assert_eq!(late.say(&data(0, b"abcdefgh")), None);
    assert_eq!(late.memory(&late.region), [0x55; BYTES], "it was given up");
    assert_eq!(late.say(&done(Ok(8))), None);
    assert_eq!(late.got.completed, [(4, Err(Cause::Cancelled))]);
}

#[test]
fn a_write_that_is_given_up_carries_nothing_any_more() {
    let mut unsent = side();
    unsent.post(Direction::Write, 1, 10).unwrap();
    assert_eq!(unsent.lane.cancel_op(1), CancelledOp::Quiesced);
    unsent.lane.ring_doorbell().unwrap();
    assert_eq!(unsent.said(), []);

    let mut side = side();
    side.post(Direction::Write, 1, 10).unwrap();
    side.lane.ring_doorbell().unwrap();
    assert!(matches!(Message::parse(&side.said()[0].1), Ok(Message::Write { is_last: true, .. })));
    assert_eq!(side.lane.cancel_op(1), CancelledOp::RemotePending);
    side.puppet.0.lock().unwrap().passed = Duration::from_millis(10);
    side.turn();
    let given_up = Message::GivenUp { operation: 1, transfer: 1, is_last: true, cause: Cause::Cancelled };
    assert_eq!(side.said(), [(1, bytes_of(&given_up))]);
    let done = Message::Done { operation: 1, result: Err(Cause::Cancelled), revision: 0 };
    assert_eq!((side.say(&done), &side.got.completed[..]), (None, &[(1, Err(Cause::Cancelled))][..]));
}

#[test]
fn memory_of_ones_own_that_was_withdrawn_does_not_leave() {
    let mut side = side();
    side.post(Direction::Write, 1, 10).unwrap();
    let RegionKey { region, generation } = key_of(&side.region);
    side.segments.owner_state.withdraw(&[Withdrawal { region: region.0, generation: generation.0, offset: 9, len: 1 }]);
    side.lane.ring_doorbell().unwrap();
    let given_up = Message::GivenUp { operation: 1, transfer: 1, is_last: true, cause: Cause::RevokedHere };
    assert_eq!(side.said(), [(1, bytes_of(&given_up))]);
    assert!(matches!(
        side.post(Direction::Write, 2, 10),
        Err(PostError::StaleRevisions(Revisions { local: 1, remote: 0 }))
    ));
}

#[test]
fn a_peer_that_says_nothing_is_lost_and_a_lane_that_is_dropped_closes_its_port() {
    let mut side = side();
    side.post(Direction::Write, 1, 10).unwrap();
    side.lane.ring_doorbell().unwrap();
    for ms in 0..20_000 {
        side.puppet.0.lock().unwrap().passed = Duration::from_millis(ms);
        side.turn();
        if side.fault.is_some() {
            break;
        }
    }
    assert_eq!(side.fault, Some(Cause::PeerLost));
    let passed = side.puppet.0.lock().unwrap().passed;
    assert!((5.0..5.2).contains(&passed.as_secs_f64()), "{passed:?}");
    let Side { puppet, lane, .. } = side;
    drop(lane);
    assert!(puppet.0.lock().unwrap().is_closed);
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let extents = prop::collection::vec((0u64..1100, 1u64..100), 1..4);
    (0u8..8, 1u64..4, extents, any::<bool>(), any::<u64>()).prop_map(|(kind, operation, extents, flag, odd)| {
        // The regions of each side have the same names.
        let key = RegionKey { region: RegionId((odd % 3) as u32), generation: Generation((odd % 5 == 0).into()) };
        let request = Request { revision: u64::from(odd % 7 == 0), ..request(operation, key, &extents) };
        let payload = vec![0xaa; request.bytes() as usize];
        let result = if flag { Ok(odd % 50) } else { Err(Cause::RevokedByPeer) };
        match kind {
            0 | 1 => bytes_of(&Message::Write { request, is_last: flag, bytes: &payload }),
            2 => bytes_of(&Message::Read(request)),
            3 => bytes_of(&Message::Data { operation, place: odd % 40, bytes: &payload }),
            4 => bytes_of(&notify(operation)),
            5 => bytes_of(&Message::Done { operation, result, revision: odd % 3 }),
            6 => bytes_of(&Message::GivenUp { operation, transfer: 9, is_last: flag, cause: Cause::Cancelled }),
            _ => odd.to_le_bytes().to_vec(),
        }
    })
}

proptest! {
    #[test]
    fn whatever_a_peer_says_only_what_it_may_write_is_written(
        messages in prop::collection::vec((any_message(), 1u64..12, 0u64..3), 1..30),
    ) {
        let mut side = side();
        side.post(Direction::Read, 1, 20).unwrap();
        side.lane.ring_doorbell().unwrap();
        for (message, sequence, until) in messages {
            let head = Head { from: THEIRS, to: OURS, sequence, until, seen: 0 };
            if side.feed_as(head, &message).is_some() {
                break;
            }
        }
        prop_assert_eq!(side.memory(&side.read_only), [0x55; BYTES]);
        prop_assert!(side.memory(&side.region).iter().all(|byte| [0x55, 0xaa].contains(byte)));
        let mut busy = Vec::new();
        side.segments.owner_state.view().observe(PARTY, &mut busy);
        prop_assert_eq!(busy, []);
    }
}
