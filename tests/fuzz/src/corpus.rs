//! The small files that variations start from.
//!
//! One folder a target. Most files are made by [`made`] and show each form once; the rest once broke
//! something and was put there by hand.

use std::io;
use std::path::PathBuf;

use penstock_core::NoteId;
use penstock_core::limits::{LINE_BYTES, NOTE_BYTES_MAX, NOTE_LINES_MAX, RING_LINES};
use penstock_ring::RingLine;
use penstock_session::codec::encode;
use penstock_session::{
    CounterNews, EngineDescriptor, Frame, Hello, Offer, RefusalCode, RegionNews, RegionsAdvertised, RegionsGone,
    WithdrawnRanges,
};
use penstock_transport::record::{self, RecordKind};

use crate::targets::ring::op;

mod hosts;
mod packets;
mod relay;
mod streams;
mod transfers;

/// A file of the corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The target's name.
    pub target: &'static str,
    /// The file's name.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Where the file lies.
    pub fn path(&self) -> PathBuf {
        folder(self.target).join(&self.name)
    }
}

/// The folder of a target's files.
pub fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// All inputs of a target, in the order of their names.
pub fn read(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder(target))?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort_unstable();
    paths.into_iter().map(std::fs::read).collect()
}

/// Every file that can be made.
pub fn made() -> Vec<Entry> {
    let entry = |target| move |(name, bytes): (&str, Vec<u8>)| Entry { target, name: format!("{name}.bin"), bytes };
    let frames = frames().into_iter().map(entry("frame"));
    let cards = cards().into_iter().map(entry("card"));
    let records = records().into_iter().map(entry("record"));
    let rings = scripts().into_iter().map(entry("ring"));
    let owner_state = owner_state().into_iter().map(entry("owner_state"));
    let openings = hosts::openings().into_iter().map(entry("opening"));
    let channels = hosts::channels().into_iter().map(entry("channel"));
    let secrets = hosts::secrets().into_iter().map(entry("secret"));
    let directories = hosts::directories().into_iter().map(entry("directory"));
    let between_hosts = openings.chain(channels).chain(secrets).chain(directories);
    let offers = streams::offers().into_iter().map(entry("offer"));
    let paths = streams::paths().into_iter().map(entry("path"));
    let questions = streams::questions().into_iter().map(entry("question"));
    let wires = streams::wires().into_iter().map(entry("wire"));
    let rails = streams::rails().into_iter().map(entry("rail"));
    let streams = streams::streams().into_iter().map(entry("stream"));
    let of_streams = offers.chain(paths).chain(questions).chain(wires).chain(streams).chain(rails);
    let landings = transfers::landings().into_iter().map(entry("landing"));
    let schemas = relay::schemas().into_iter().map(entry("schema"));
    let metadata = relay::metadata().into_iter().map(entry("metadata"));
    let inside = frames.chain(cards).chain(records).chain(rings).chain(owner_state);
    let packets = packets::packets().into_iter().map(entry("datagram"));
    inside
        .chain(packets)
        .chain(between_hosts)
        .chain(of_streams)
        .chain(landings)
        .chain(schemas)
        .chain(metadata)
        .collect()
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        name: "prefill-0".to_owned(),
        epoch: 0x0123_4567_89ab_cdef,
        expects: 7,
        host: 3,
        process: 5,
        workers: 2,
        peer_index: 1,
        transports: vec!["local".to_owned(), "shm".to_owned()],
    }
}

fn region(id: u32, token: Option<u8>) -> RegionNews {
    RegionNews {
        id,
        generation: 1,
        label: "kv".to_owned(),
        bytes: 1 << 30,
        base: 0x7f00_dead_b000,
        rights: 3,
        block_bytes: 16 << 10,
        path: vec![1, 0],
        token,
    }
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let bytes_of = |frame: Frame, tokens: usize| {
        let mut bytes = Vec::new();
        encode(&frame, tokens, &mut bytes).expect("these frames are short");
        bytes
    };
    let counter = CounterNews { id: 4, generation: 2, region: 0, label: "arrivals".to_owned() };
    let refusal = Frame::Refuse { code: RefusalCode::Epoch, text: "the engine was restarted".to_owned() };
    let regions =
        RegionsAdvertised { revision: 9, news: vec![region(0, Some(0)), region(1, None), region(2, Some(1))] };
    let offer = Offer { transport: "shm".to_owned(), blob: vec![1, 0, 0, 0, 64, 0, 0, 0, 0, 4, 0, 0] };
    let known = vec![card("a", "", &["10.0.0.7:4711"]).encode(), card("b", "/b", &[]).encode(), Vec::new()];
    let withdrawn = WithdrawnRanges { since: 300, list: vec![(7, 2, 4096, 4096), (8, 0, 0, u64::MAX)] };
    let mut all = vec![
        ("hello", bytes_of(Frame::Hello(hello()), 0)),
        ("refuse", bytes_of(refusal, 0)),
        ("offer", bytes_of(Frame::Offer(offer), 6)),
        ("regions", bytes_of(Frame::Regions(regions), 2)),
        ("regions-none", bytes_of(Frame::Regions(RegionsAdvertised { revision: 9, news: Vec::new() }), 0)),
        ("regions-gone", bytes_of(Frame::RegionsGone(RegionsGone { revision: 9, gone: vec![(0, 1), (300, 2)] }), 0)),
        ("counters", bytes_of(Frame::Counters(vec![counter.clone(), counter]), 0)),
        ("goodbye", bytes_of(Frame::Goodbye, 0)),
        ("ping", bytes_of(Frame::Ping { number: 300 }, 0)),
        ("pong", bytes_of(Frame::Pong { number: u64::MAX }, 0)),
        ("own-card", bytes_of(Frame::Descriptor(card("decode-0", "/run/penstock/decode-0.sock", &[]).encode()), 0)),
        ("known-cards", bytes_of(Frame::Known(known), 0)),
        ("withdrawn", bytes_of(Frame::Withdrawn(withdrawn), 0)),
        ("aside", bytes_of(Frame::TransportMessage(b"rail 1, life 2, ended".to_vec()), 0)),
    ];
    all.extend(transfers::said().into_iter().map(|(name, said)| (name, bytes_of(Frame::Control(said), 0))));
    let conversation = all.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    all.push(("conversation", conversation));
    let header = |kind: u16, length: u32| {
        let mut bytes = b"PNSK\x01\0".to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    };
    // A kind that may be skipped, with a frame behind it.
    let mut optional = header(0x8001, 5);
    optional.extend(*b"later");
    optional.extend(bytes_of(Frame::Goodbye, 0));
    // A list that says it has as many entries as the frame has bytes, and one that says far more.
    let mut crowded = header(4, 4004);
    crowded.extend([0, 0xa0, 0x1f, 0]);
    crowded.resize(16 + 4004, 0);
    let mut boastful = header(6, 9);
    boastful.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    all.extend(transfers::greedy(header));
    all.extend([
        ("optional", optional),
        ("crowded", crowded),
        ("boastful", boastful),
        ("endless", header(1, u32::MAX)),
    ]);
    all
}

fn card(name: &str, socket: &str, addresses: &[&str]) -> EngineDescriptor {
    let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
    EngineDescriptor { name: name.to_owned(), epoch: u64::MAX, host: 1, socket: socket.to_owned(), addresses }
}

fn cards() -> Vec<(&'static str, Vec<u8>)> {
    let bytes_of = |name: &str, socket: &str, addresses: &[&str]| card(name, socket, addresses).encode();
    let socket = "/run/user/1000/penstock/decode-0.sock";
    vec![
        ("usual", bytes_of("decode-0", socket, &[])),
        ("empty", bytes_of("", "", &[])),
        ("long", bytes_of(&"n".repeat(64), &format!("/{}", "long/".repeat(700)), &[])),
        ("addresses", bytes_of("decode-0", socket, &["10.0.0.7:4711", "[2001:db8::7]:4711"])),
        ("addresses-most", bytes_of("decode-0", socket, &["[2001:db8:1234:5678:1234:5678:1234:5678]:65535"; 16])),
        ("addresses-many", bytes_of("decode-0", socket, &["1.1.1.1:1"; 17])),
        ("addresses-wrong", bytes_of("decode-0", socket, &["decode-0:4711"])),
    ]
}

fn bytes_of(lines: &[RingLine]) -> Vec<u8> {
    lines.iter().flat_map(|line| line.0).flat_map(u64::to_le_bytes).collect()
}

fn records() -> Vec<(&'static str, Vec<u8>)> {
    let record = |kind, bytes: usize| {
        let payload: Vec<u8> = (0..bytes).map(|place| place as u8).collect();
        let mut lines = [RingLine::default(); NOTE_LINES_MAX];
        let count = record::write(kind, 77, NoteId(u128::MAX - 5), &payload, &mut lines);
        bytes_of(&lines[..count])
    };
    vec![
        ("empty", record(RecordKind::Note, 0)),
        ("inline", record(RecordKind::Note, 32)),
        ("two-lines", record(RecordKind::Note, 33)),
        ("some-lines", record(RecordKind::Note, 300)),
        ("longest", record(RecordKind::Note, NOTE_BYTES_MAX)),
        ("hand-over", record(RecordKind::HandOver, 8)),
        ("zeroes", vec![0; LINE_BYTES]),
    ]
}

/// Writes scripts for the ring target.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn op(mut self, code: u8, operands: &[&[u8]]) -> Self {
        self.0.push(code);
        operands.iter().for_each(|operand| self.0.extend_from_slice(operand));
        self
    }

    fn push(self, bytes: u16) -> Self {
        self.op(op::PUSH, &[&bytes.to_le_bytes()])
    }

    fn announce(self, bytes: u16) -> Self {
        self.op(op::ANNOUNCE, &[&bytes.to_le_bytes()])
    }

    fn poll(self) -> Self {
        self.op(op::POLL, &[&[64]])
    }

    fn write(self, code: u8, place: u16, word: u64) -> Self {
        self.op(code, &[&place.to_le_bytes(), &word.to_le_bytes()])
    }

    fn times(self, count: usize, step: impl Fn(Self) -> Self) -> Self {
        (0..count).fold(self, |script, _| step(script))
    }
}

fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let new = Script::default;
    // Words of a ring: its tail, its head, the mark of a waiter, and where its lines begin.
    let (tail, head, waiting, lines) = (0, 16, 32, 48);
    let capacity = RING_LINES as u64;
    let scripts = [
        ("both-ways", new().push(0).push(40).announce(5).announce(4096).poll().op(op::TAKE, &[]).poll()),
        ("around", new().times(60, |s| s.push(4096).times(3, |s| s.announce(4096)).poll().op(op::TAKE, &[]))),
        ("full", new().times(20, |s| s.push(4096).announce(4096)).poll().op(op::TAKE, &[]).poll()),
        ("no-room", new().times(10, |s| s.push(1)).op(op::POLL, &[&[3]]).op(op::POLL, &[&[0]]).poll()),
        ("hand-over", new().push(3).op(op::PUSH_HAND_OVER, &[]).poll().poll()),
        ("tail-far", new().push(3).write(op::SCRIBBLE_INBOUND, tail, capacity + 2).poll().poll()),
        ("tail-back", new().push(3).poll().write(op::SCRIBBLE_INBOUND, tail, 0).poll()),
        ("tail-top", new().write(op::SCRIBBLE_INBOUND, tail, u64::MAX).poll()),
        ("tail-moves", new().push(3).op(op::MOVE_TAIL, &[&5i16.to_le_bytes()]).poll().poll()),
        ("head-far", new().announce(3).write(op::SCRIBBLE_OUTBOUND, head, 1 << 40).times(20, |s| s.announce(4096))),
        ("head-back", new().announce(3).write(op::SCRIBBLE_OUTBOUND, head, u64::MAX).times(20, |s| s.announce(4096))),
        ("waiter", new().write(op::SCRIBBLE_INBOUND, waiting, 1).push(9).poll()),
        ("bad-magic", new().push(9).write(op::SCRIBBLE_INBOUND, lines, 0xdead).poll()),
        ("bad-lines", new().push(9).write(op::SCRIBBLE_INBOUND, lines, 0x0009_ff01_5053).poll()),
        ("bad-length", new().push(9).write(op::SCRIBBLE_INBOUND, lines, 0xffff_0101_5053).poll()),
        ("more-lines-than-came", new().push(9).write(op::SCRIBBLE_INBOUND, lines, 0x1000_4101_5053).poll()),
        // 5,000 bytes in 79 lines, all of which seem to be there.
        (
            "longer-than-any",
            new().push(9).write(op::SCRIBBLE_INBOUND, lines, 0x1388_4f01_5053).op(op::MOVE_TAIL, &[&[78, 0]]).poll(),
        ),
        ("bad-sequence", new().push(9).write(op::SCRIBBLE_INBOUND, lines + 1, 1).poll()),
        ("mail", new().write(op::SCRIBBLE_MAIL, 0, u64::MAX).write(op::SCRIBBLE_MAIL, 16, u64::MAX).push(1).poll()),
        ("count", new().op(op::COUNT, &[&3u32.to_le_bytes(), &0u32.to_le_bytes()]).op(op::COUNT, &[&[0xff; 8]])),
    ];
    scripts.into_iter().map(|(name, script)| (name, script.0)).collect()
}

fn owner_state() -> Vec<(&'static str, Vec<u8>)> {
    let write = |place: u16, word: u64| [place.to_le_bytes().as_slice(), &word.to_le_bytes()].concat();
    // The gate's revision is the first word of the second line, its entries begin a line later.
    let (deregistered, revision, entries, hazards) = (0, 8, 16, 16 + 4 * 256);
    let entry = |number: u16, revision: u64| {
        let first = entries + 4 * number;
        [write(first, revision), write(first + 1, 7), write(first + 2, 4096), write(first + 3, u64::MAX)].concat()
    };
    vec![
        ("two-withdrawals", [write(revision, 2), entry(0, 1), entry(1, 2)].concat()),
        ("promised-too-much", write(revision, 300)),
        ("revision-top", [write(revision, u64::MAX), entry(254, u64::MAX)].concat()),
        ("entry-of-another-time", [write(revision, 2), entry(0, 257), entry(1, 2)].concat()),
        ("deregistered", [write(deregistered, 5), write(revision, 4)].concat()),
        ("hazards", [write(hazards, 1), write(hazards + 8, u64::MAX)].concat()),
    ]
}
