//! What engines on different hosts say to each other's lanes, and what an owner of memory is asked.

use std::net::SocketAddr;

use penstock_core::limits::{IN_FLIGHT_PER_LANE_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, NoteId, RegionId, Span};
use penstock_memory::{Hint, ProbeWords};
use penstock_tcp::wire::{
    Asked, Head, PAYLOAD_BYTES_MAX, ReadRefusal, put_credit, put_data, put_done, put_notification, put_refused,
    put_request,
};
use penstock_transport::host::bounce::{BounceRequest, REQUEST_WORDS, SLOT_BYTES};
use penstock_transport::{CounterRef, Note};
use penstock_verbs::adapter::{GidKind, Token};
use penstock_verbs::ended::QueueEnded;
use penstock_verbs::message::{Body, Forgotten, Immediate, MESSAGE_BYTES_MAX, NotifyMessage, RailHello, Says, encode};
use penstock_verbs::offer::{By, OfferedQueue, OfferedRail, VerbsOffer};

use crate::targets::path::POOL_BYTES;
use crate::targets::stream::{CLOSED, GENERATION, READABLE, REGION_BYTES, WRITABLE, op};

type Files = Vec<(&'static str, Vec<u8>)>;

/// Writes control blocks.
#[derive(Default, Clone)]
struct Control(Vec<u8>);

impl Control {
    fn request(mut self, is_write: bool, sequence: u64, region: u32, extents: &[(u64, u64)]) -> Self {
        let key = RegionKey { region: RegionId(region), generation: Generation(GENERATION) };
        let asked = Asked { sequence, transfer: sequence, key, revision: 0 };
        put_request(&mut self.0, is_write, &asked, extents.iter().copied());
        self
    }

    fn write(self, sequence: u64, region: u32, extents: &[(u64, u64)]) -> Self {
        self.request(true, sequence, region, extents)
    }

    fn read(self, sequence: u64, region: u32, extents: &[(u64, u64)]) -> Self {
        self.request(false, sequence, region, extents)
    }

    fn note(mut self, sequence: u64, transfer: u64, payload: &[u8]) -> Self {
        put_notification(&mut self.0, sequence, transfer, None, Some(Note { id: NoteId(1 << 77), payload }));
        self
    }

    fn count(mut self, sequence: u64, index: u32) -> Self {
        put_notification(&mut self.0, sequence, sequence, Some(CounterRef { index, generation: 1 }), None);
        self
    }

    fn data(mut self, sequence: u64, bytes: Result<u32, Cause>) -> Self {
        put_data(&mut self.0, sequence, bytes.map_err(|cause| ReadRefusal { cause, revision: 1 }));
        self
    }

    fn done(mut self, sequence: u64) -> Self {
        put_done(&mut self.0, sequence);
        self
    }

    fn refused(mut self, sequence: u64, cause: Option<Cause>) -> Self {
        put_refused(&mut self.0, sequence, cause, 5);
        self
    }

    fn credit(mut self, lines: u64) -> Self {
        put_credit(&mut self.0, lines);
        self
    }

    fn group(self, payload: u32) -> Vec<u8> {
        [Head::encode(&self.0, payload).as_slice(), &self.0].concat()
    }
}

pub(super) fn wires() -> Files {
    let new = Control::default;
    let few: Vec<(u64, u64)> = (0..5).map(|place| (place * 4096, 100 + place)).collect();
    let many: Vec<(u64, u64)> = (0..SPANS_PER_POST as u64).map(|place| (place * 8192, 8192)).collect();
    let all = new().write(1, 0, &few).read(2, 1, &few).note(3, 1, b"there").count(4, 7).data(1, Ok(77));
    let all = all.data(2, Err(Cause::RevokedByPeer)).done(9).refused(3, Some(Cause::OutOfBounds)).credit(64);
    vec![
        ("all", all.group(510 + 77)),
        ("write-most", new().write(1, 0, &many).group(PAYLOAD_BYTES_MAX as u32)),
        ("write-too-much", new().write(1, 0, &[(0, PAYLOAD_BYTES_MAX), (0, 1)]).group(1)),
        ("write-past-the-end", new().write(1, 0, &[(u64::MAX, 1)]).group(1)),
        ("note-empty", new().note(1, 1, b"").group(0)),
        ("note-longest", new().note(1, 1, &[9; 4096]).group(0)),
        ("refused-uncounted", new().refused(u64::MAX, None).group(0)),
        ("parts", (1..=65).fold(new(), |control, at| control.write(at, 0, &[(at, 1)])).group(65)),
        ("other-payload", new().write(1, 0, &few).group(509)),
        ("nothing", new().group(0)),
    ]
}

pub(super) fn rails() -> Files {
    let head = penstock_verbs::message::Head { life: 3, number: 7, heard: 9, taken: 2, gone: 5 };
    let message = |body: Body<'_>| {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let len = encode(&head, &body, &mut bytes);
        bytes[..len].to_vec()
    };
    let counter = Some(CounterRef { index: 7, generation: GENERATION });
    let note = |payload| Some(Note { id: NoteId(1), payload });
    let announce = |marks, counter, note| message(Body::Notify(NotifyMessage { number: 5, marks, counter, note }));
    let (queue, first_packet, token) = (0x11, 0x5a_17b3, None);
    let ended = QueueEnded { rail: 1, life: 2, heard: 9, gone: 1, revision: 4, queue, first_packet, token };
    let waits = QueueEnded { token: Some(Token([7; 16])), ..ended };
    let immediate = |says| Immediate::new(3, (7, 5), says).encode().to_le_bytes().to_vec();
    vec![
        ("hello", message(Body::Hello(RailHello { channel: 1, rail: 1, grants: 32 }))),
        ("answer", message(Body::Answer)),
        ("counter", announce(0, counter, None)),
        ("note", announce(0, None, note(b"there"))),
        ("both-after-marks", announce(2, counter, note(b"there"))),
        ("note-longest", announce(0, None, note(&[9; 4096]))),
        ("nothing-announced", announce(0, None, None)),
        ("mark", message(Body::Mark(5))),
        ("forget", message(Body::Forget(Forgotten { number: 5, marks: 1, is_said: true }))),
        ("fence", message(Body::Fence(u64::MAX))),
        ("ended", ended.encode()),
        ("ended-and-waits", waits.encode()),
        ("asking", Token([7; 16]).asking().to_vec()),
        ("count-immediately", immediate(Says::Count(7))),
        ("mark-immediately", immediate(Says::Mark(4095))),
    ]
}

pub(super) fn offers() -> Files {
    let tcp = penstock_tcp::offer::blob(4, 2);
    let shm = penstock_shm::offer::blob(ProbeWords { probe: 4096, value: u64::MAX, scratch: 8192 });
    let with = |place: usize, byte: u8| {
        let mut blob = tcp.clone();
        blob[place] = byte;
        blob
    };
    vec![
        ("tcp-later", with(0, 2)),
        ("tcp-no-streams", with(2, 0)),
        ("tcp-many-streams", with(3, 0xff)),
        ("tcp-other-workers", with(8, 3)),
        ("tcp-long", [tcp.as_slice(), &[0]].concat()),
        ("tcp", tcp),
        ("shm-short", shm[..shm.len() - 1].to_vec()),
        ("shm", shm),
        ("verbs-cut", cards(2, By::Exchange)[..90].to_vec()),
        ("verbs-without-cards", cards(0, By::Exchange)),
        ("verbs-many-cards", cards(9, By::Exchange)),
        ("verbs", cards(2, By::Exchange)),
        ("verbs-met", cards(2, By::Manager)),
    ]
}

/// An offer of so many cards.
fn cards(count: u8, by: By) -> Vec<u8> {
    let is_met = by == By::Manager;
    let queue = |number| OfferedQueue { number, first_packet: 0xff_ffff, token: is_met.then_some(Token([7; 16])) };
    let rail = |place: u8| OfferedRail {
        name: format!("rxe{place}/1"),
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, place, 1],
        lid: 0,
        network_bits: 120,
        kind: GidKind::RoceV2,
        is_routable: true,
        mtu: 1024,
        bandwidth: 10_000_000_000,
        reads_max: 16,
        cm_address: is_met.then(|| SocketAddr::from(([10, 9, place, 1], 4711))),
        queues: (17..20).map(queue).collect(),
    };
    VerbsOffer { workers: 2, grants: 32, by, rails: (0..count).map(rail).collect() }.blob()
}

/// Where regions are said to be.
const BASE: u64 = 0x7f00_dead_b000;

pub(super) fn paths() -> Files {
    let keyed = |base: u64, rails: u8| {
        let keys = (0..u32::from(rails)).flat_map(|rail| (0x2000_0000 | rail).to_le_bytes());
        [&[1, 1, rails], &base.to_le_bytes()[..], &keys.collect::<Vec<_>>()].concat()
    };
    let region = |descriptors: u8, bytes: u64, path: &[u8]| {
        let numbers = [bytes.to_le_bytes(), BASE.to_le_bytes()].concat();
        [&[descriptors, 3], numbers.as_slice(), path].concat()
    };
    let place = |offset: u64, len: u64| [offset.to_le_bytes(), len.to_le_bytes()].concat();
    let pieces = |places: &[Vec<u8>]| [&[3, 0], places.concat().as_slice()].concat();
    vec![
        ("nothing", region(0, 4096, &[0])),
        ("owners", region(0, 4096, &[1])),
        ("callers", region(0, 4096, &[2])),
        ("mapped", region(1, POOL_BYTES, &[1, 0])),
        ("mapped-longer", region(1, POOL_BYTES + 4096, &[1, 0])),
        ("mapped-endless", region(1, u64::MAX, &[1, 0])),
        ("mapped-strange-pages", region(1, POOL_BYTES, &[1, 77])),
        ("mapped-without", region(0, POOL_BYTES, &[1, 0])),
        ("pieces", region(3, POOL_BYTES, &pieces(&[place(4096, 4096), place(8192, 4096)]))),
        ("pieces-over-each-other", region(3, POOL_BYTES, &pieces(&[place(4096, 8192), place(8192, 4096)]))),
        ("pieces-past-the-end", region(2, POOL_BYTES, &pieces(&[place(u64::MAX - 4095, 4096)]))),
        ("pieces-too-few", region(3, POOL_BYTES, &pieces(&[place(4096, 4096)]))),
        ("keyed", region(0, 4096, &keyed(BASE, 2))),
        ("keyed-on-other-rails", region(0, 4096, &keyed(BASE, 3))),
        ("keyed-elsewhere", region(0, 4096, &keyed(BASE + 1, 2))),
        ("keyed-endless", region(0, u64::MAX, &keyed(BASE, 2))),
        ("keyed-to-nothing", region(0, 4096, b"\x01\0memory cannot be pinned")),
    ]
}

pub(super) fn questions() -> Files {
    let ask = |direction, spans: &[Span]| {
        let key = RegionKey { region: RegionId(3), generation: Generation(2) };
        let mut words = [0; REQUEST_WORDS];
        let question = BounceRequest { direction, hint: Hint::Streaming, key, revision: 9 };
        question.encode(spans, &mut words).iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let span = |at: u64, len: u64| Span { local: 0, remote: at, len };
    let most = SLOT_BYTES / SPANS_PER_POST as u64;
    let many: Vec<Span> = (0..SPANS_PER_POST as u64).map(|at| span(at << 20, most)).collect();
    vec![
        ("write", ask(Direction::Write, &[span(4096, 100), span(0, 1)])),
        ("read", ask(Direction::Read, &[span(u64::MAX - 7, 7)])),
        ("most", ask(Direction::Write, &many)),
        ("whole-slot", ask(Direction::Read, &[span(0, SLOT_BYTES)])),
        ("too-much", ask(Direction::Read, &[span(0, SLOT_BYTES), span(0, 1)])),
        ("past-the-end", ask(Direction::Write, &[span(u64::MAX, 2)])),
        ("none", ask(Direction::Write, &[])),
    ]
}

/// Writes scripts for the stream target.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn op(mut self, code: u8, operands: &[&[u8]]) -> Self {
        self.0.push(code);
        operands.iter().for_each(|operand| self.0.extend_from_slice(operand));
        self
    }

    fn group(self, control: Control) -> Self {
        self.spoiled(control, 0)
    }

    fn spoiled(self, control: Control, parts: u8) -> Self {
        self.op(op::GROUP, &[&(control.0.len() as u16).to_le_bytes(), &control.0, &[parts]])
    }

    fn extent(self, code: u8, offset: u16, len: u16) -> Self {
        self.op(code, &[&offset.to_le_bytes(), &len.to_le_bytes()])
    }

    fn cut(self, bytes: u16) -> Self {
        self.op(op::CUT, &[&bytes.to_le_bytes()])
    }

    fn announce(self, bytes: u16) -> Self {
        self.op(op::ANNOUNCE, &[&bytes.to_le_bytes()])
    }

    fn withdraw(self, region: u8, offset: u16, len: u16) -> Self {
        self.op(op::WITHDRAW, &[&[region]]).raw_extent(offset, len)
    }

    fn raw_extent(mut self, offset: u16, len: u16) -> Self {
        self.0.extend([offset.to_le_bytes(), len.to_le_bytes()].concat());
        self
    }

    fn take(self) -> Self {
        self.op(op::TAKE, &[])
    }
}

pub(super) fn streams() -> Files {
    let (new, say) = (Script::default, Control::default);
    let end = REGION_BYTES;
    let asks = |script: Script| {
        let asks = say().write(1, WRITABLE, &[(0, 100), (8000, 900)]).note(2, 1, b"it is there").read(
            3,
            READABLE,
            &[(7, 5000)],
        );
        script.group(asks.count(4, 0)).take()
    };
    let forbidden =
        say().write(1, READABLE, &[(0, 64)]).write(2, CLOSED, &[(0, 64)]).write(3, WRITABLE, &[(end - 1, 2)]);
    let forbidden = forbidden.read(4, WRITABLE, &[(0, 64)]).read(5, CLOSED, &[(0, 64)]).write(6, 9, &[(0, 64)]);
    let many = (1..=IN_FLIGHT_PER_LANE_MAX as u64 + 1).fold(say(), |control, at| control.read(at, READABLE, &[(0, 8)]));
    let scripts = [
        ("asked", asks(new())),
        ("asked-byte-by-byte", asks(new().cut(1))),
        ("asked-in-pieces", asks(new().cut(333)).cut(0)),
        ("forbidden", new().group(forbidden).take()),
        ("withdrawn", new().withdraw(0, 50, 1).group(say().write(1, WRITABLE, &[(0, 100)]).note(2, 1, b"no"))),
        (
            "withdrawn-while-it-comes",
            new().op(op::RAW, &[&[36]]).op(op::CUT, &[&[50, 0]]).group(say().write(1, WRITABLE, &[(0, 9000)])),
        ),
        ("too-many", new().group(many)),
        (
            "answers",
            new()
                .extent(op::WRITE, 0, 2999)
                .announce(40)
                .extent(op::READ, 64, 499)
                .take()
                .group(say().done(2).credit(1).data(3, Ok(500)))
                .group(say().done(3)),
        ),
        (
            "refusals",
            new()
                .extent(op::WRITE, 0, 2999)
                .announce(4096)
                .extent(op::READ, 0, 499)
                .take()
                .group(say().refused(1, Some(Cause::OutOfBounds)).refused(2, Some(Cause::OutOfBounds)).done(2))
                .group(say().data(3, Err(Cause::RevokedByPeer))),
        ),
        ("answer-of-another-length", new().extent(op::READ, 0, 499).take().group(say().data(1, Ok(501)))),
        (
            "answered-twice",
            new().extent(op::READ, 0, 499).take().group(say().data(1, Ok(500))).group(say().data(1, Ok(500))),
        ),
        (
            "given-up",
            new().extent(op::READ, 0, 4999).take().op(op::ABANDON, &[&[0]]).group(say().data(1, Ok(5000))).take(),
        ),
        (
            "own-side-withdrawn",
            new()
                .extent(op::READ, 0, 4999)
                .take()
                .withdraw(4, 0, 9)
                .group(say().data(1, Ok(5000)))
                .group(say().done(1)),
        ),
        (
            "spoiled",
            new().spoiled(say().write(1, WRITABLE, &[(0, 9)]).write(2, WRITABLE, &[(9, 9)]).note(3, 2, b""), 2),
        ),
        ("spoiled-nothing", new().spoiled(say().write(1, WRITABLE, &[(0, 9)]), 4)),
        ("hung-up", new().op(op::RAW, &[&[3], b"PSG"]).op(op::HANG_UP, &[])),
        ("hung-up-later", asks(new()).op(op::HANG_UP, &[])),
        ("raw", new().op(op::RAW, &[&[64], &[7; 64]])),
        (
            "notes",
            (1..=3)
                .fold(new().extent(op::WRITE, 0, 0), |script, at| script.group(say().note(at, at, &[at as u8; 4096]))),
        ),
        ("done-early", new().extent(op::WRITE, 0, 2999).group(say().done(1)).group(say().done(1)).group(say().done(0))),
    ];
    scripts.into_iter().map(|(name, script)| (name, script.0)).collect()
}
