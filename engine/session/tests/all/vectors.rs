//! What this release says on the wire, byte for byte, as files that do not change any more.
//!
//! A release must decode what an earlier one of the same version encoded. A difference here is a change
//! of the protocol: it needs a new version, and a new folder beside the old one. What a release adds has a
//! folder of its own; those of earlier ones stay as they are, and are read and written as they were. Only
//! before a release may `PENSTOCK_UPDATE_VECTORS=1` write the files anew; the test then fails and says which.

use std::collections::BTreeSet;
use std::path::PathBuf;

use penstock_session::codec::{Received, encode};
use penstock_session::control::{
    Abort, AbortAck, Ack, Buffer, Chunk, ChunkAck, ChunkKind, ControlMessage, EndOfData, Extent, Fail, Form, Grant,
    LayoutGone, LayoutNews, LeaseExpired, LeaseVerdict, Missing, PeerFeatures, PinAnswer, PinAsk, PullRequest,
    ReadOffer, Refused, RelayAbort, Renew, Rows, SentRows, TransferHead,
};
use penstock_session::frame::OPTIONAL_KINDS;
use penstock_session::landing::ArrivalNote;
use penstock_session::{
    CounterNews, Decoder, EngineDescriptor, Frame, Hello, Offer, OpeningCode, Refusal, RefusalCode, RegionNews,
    RegionsAdvertised, RegionsGone, Secret, SecureChannel, Side, StreamKey, StreamToken, TransferId, WithdrawnRanges,
};

/// The releases that added words, oldest first.
const RELEASES: [&str; 4] = ["0.1", "0.2", "0.3", "0.4"];

/// One file: the release that first said it, its name, what it holds in words, and the bytes.
struct Vector {
    release: &'static str,
    name: &'static str,
    about: &'static str,
    bytes: Vec<u8>,
}

fn folder(release: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(release)
}

impl Vector {
    fn path(&self) -> PathBuf {
        folder(self.release).join(format!("{}.hex", self.name))
    }

    fn text(&self) -> String {
        let line = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let lines: Vec<String> = self.bytes.chunks(32).map(line).collect();
        format!("# {}\n{}\n", self.about, lines.join("\n"))
    }
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.trim().chars())
        .map(|digit| digit.to_digit(16).unwrap())
        .collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        name: "prefill-0".to_owned(),
        epoch: 0x0123_4567_89ab_cdef,
        expects: 0xfedc_ba98_7654_3210,
        host: 0x1111_2222_3333_4444,
        process: 0x5555_6666_7777_8889,
        workers: 2,
        peer_index: 300,
        transports: vec!["local".to_owned(), "shm".to_owned()],
    }
}

fn regions() -> RegionsAdvertised {
    let pool = RegionNews {
        id: 0,
        generation: 1,
        label: "kv".to_owned(),
        bytes: 1 << 30,
        base: 0x7f12_3456_7000,
        rights: 3,
        block_bytes: 16 << 10,
        path: vec![1, 0],
        token: Some(0),
    };
    let lent = RegionNews {
        id: 1,
        label: "lent".to_owned(),
        rights: 1,
        block_bytes: 0,
        path: vec![0],
        token: None,
        ..pool.clone()
    };
    RegionsAdvertised { revision: 12, news: vec![pool, lent] }
}

fn frames() -> Vec<(&'static str, &'static str, Frame, usize)> {
    let refuse = |code, text: &str| Frame::Refuse { code, text: text.to_owned() };
    let offer = Offer { transport: "shm".to_owned(), blob: vec![1, 0, 0, 0, 0x40, 0, 0, 0] };
    let gone = RegionsGone { revision: 13, gone: vec![(0, 1), (70_000, 4_000_000_000)] };
    let counter = CounterNews { id: 4095, generation: 7, region: 0, label: "arrivals".to_owned() };
    vec![
        ("hello", "kind 1: the first frame of each side", Frame::Hello(hello()), 0),
        ("refuse-version", "kind 2: refusal, no version in common", refuse(RefusalCode::Version, "2 to 3"), 0),
        ("refuse-epoch", "kind 2: refusal, another epoch", refuse(RefusalCode::Epoch, "restarted"), 0),
        ("refuse-no-transport", "kind 2: refusal, no transport", refuse(RefusalCode::NoTransport, "shm: no"), 0),
        ("refuse-foreign-user", "kind 2: refusal, another user", refuse(RefusalCode::ForeignUser, "user 0"), 0),
        ("refuse-full", "kind 2: refusal, as many peers as possible", refuse(RefusalCode::Full, "1024"), 0),
        ("refuse-garbled", "kind 2: refusal, not understood", refuse(RefusalCode::Malformed, "kind 9"), 0),
        ("refuse-bad-offer", "kind 2: refusal, unusable memory", refuse(RefusalCode::BadOffer, "not sealed"), 0),
        ("refuse-closing", "kind 2: refusal, shutting down; no words", refuse(RefusalCode::Closing, ""), 0),
        ("offer", "kind 3: what a transport needs, with 6 descriptors", Frame::Offer(offer), 6),
        ("regions", "kind 4: two regions, one with a descriptor", Frame::Regions(regions()), 1),
        (
            "regions-none",
            "kind 4: no news but a revision",
            Frame::Regions(RegionsAdvertised { revision: 12, news: vec![] }),
            0,
        ),
        ("regions-gone", "kind 5: two regions that are gone", Frame::RegionsGone(gone), 0),
        ("counters", "kind 6: one arrival counter", Frame::Counters(vec![counter]), 0),
        ("goodbye", "kind 7: the last frame of a session", Frame::Goodbye, 0),
        ("draining", "kind 8010, optional: nothing new from here on", Frame::Draining, 0),
        ("settled", "kind 8011, optional: nothing of the sender's runs any more", Frame::Settled, 0),
        ("rested", "kind 8012, optional: all that was told is taken in", Frame::Rested, 0),
    ]
}

/// Frames that came with the second release: optional kinds and codes at the end.
fn later_frames() -> Vec<(&'static str, &'static str, Frame, usize)> {
    let refuse = |code, text: &str| Frame::Refuse { code, text: text.to_owned() };
    let cards = vec![card().encode(), between_hosts().encode()];
    vec![
        ("refuse-name-taken", "kind 2: refusal, two engines of one name", refuse(RefusalCode::NameTaken, "twice"), 0),
        ("refuse-unauthenticated", "kind 2: refusal, no secret", refuse(RefusalCode::Unauthenticated, "no"), 0),
        ("ping", "kind 8020, optional: a question that wants an answer", Frame::Ping { number: 300 }, 0),
        ("pong", "kind 8021, optional: the answer", Frame::Pong { number: u64::MAX }, 0),
        ("own-card", "kind 8030, optional: the sender's own card", Frame::Descriptor(between_hosts().encode()), 0),
        ("known-cards", "kind 8031, optional: cards of others", Frame::Known(cards), 0),
        (
            "withdrawn",
            "kind 8040, optional: a part and the whole of a region taken back",
            Frame::Withdrawn(withdrawn()),
            0,
        ),
    ]
}

/// Frames that came with the third: words of transports that reach memory by themselves.
fn latest_frames() -> Vec<(&'static str, &'static str, Frame, usize)> {
    let words = (0..=200).collect();
    vec![(
        "aside",
        "kind 8041, optional: words of a transport, here the bytes 0 to c8",
        Frame::TransportMessage(words),
        0,
    )]
}

/// The request that all of them concern.
const REQUEST: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

fn transfer() -> TransferId {
    TransferId::mint(REQUEST, 0, 0).unwrap()
}

fn source() -> TransferHead {
    TransferHead { transfer: transfer(), side: Side::Source, rank: 1, ranks: 2 }
}

fn sink() -> TransferHead {
    TransferHead { transfer: transfer(), side: Side::Sink, rank: 300, ranks: 301 }
}

fn layout() -> LayoutNews {
    let rows = Rows { first: 4, count: 4, of: 8, bytes: 256 };
    let buffer = |layer, base, form| Buffer { layer, base, stride: 1 << 20, form };
    let buffers = vec![
        buffer(0, 0, Form::TokenMajor(rows)),
        buffer(1, 64 << 10, Form::PlaneMajor(rows)),
        buffer(2, 128 << 10, Form::Once(512)),
    ];
    let (rank, ranks) = (1, 2);
    LayoutNews {
        number: 3,
        generation: 1,
        label: "kv".to_owned(),
        region: 7,
        region_generation: 2,
        block_tokens: 128,
        blocks: 70_000,
        rank,
        ranks,
        buffers,
    }
}

fn grant() -> Grant {
    Grant {
        head: sink(),
        leg: 2,
        layout: 3,
        layout_generation: 1,
        from: 2048,
        skip: 5,
        capacity: 379,
        once: Some(9),
        resumes: true,
        urgency: 1,
        blocks: vec![0, 127, 128, 69_999].into(),
        trace: b"00-4bf92f35".as_slice().into(),
    }
}

fn lend() -> ReadOffer {
    ReadOffer {
        head: source(),
        layout: 3,
        layout_generation: 1,
        from: 0,
        tokens: 705,
        total: Some(705),
        layers: 8,
        is_sealed: false,
        once: Some(300),
        lease: 1 << 63,
        ttl_ms: 2000,
        blocks: vec![3, 2, 1],
    }
}

fn seal() -> EndOfData {
    let rows = vec![SentRows { buffers: 16, first: 4, count: 4 }, SentRows { buffers: 1, first: 0, count: 1 }];
    EndOfData { head: source(), parts: 40, tokens: 2000, legs: 3, rows: rows.into() }
}

fn chunk() -> Chunk {
    let extent = Extent { region: 7, generation: 2, offset: 1 << 24, len: 1 << 20 };
    Chunk {
        op: 300,
        request: "cmpl-1a".to_owned(),
        stream: 4,
        number: 5,
        part: 1,
        parts: 2,
        bytes: 3 << 20,
        readers: 2,
        kind: ChunkKind::Data,
        extents: vec![extent, Extent { offset: 0, ..extent }],
        schema: vec![1, 0],
        header: b"opaque".to_vec(),
    }
}

fn landing() -> ArrivalNote {
    ArrivalNote {
        transfer: transfer(),
        source: 1,
        rank: 300,
        number: 35,
        leg: 2,
        layer: Some(3),
        leg_from: 2048,
        leg_tokens: 1024,
        from: 2560,
        tokens: 379,
        total: None,
    }
}

/// What came with the fourth: everything that is said of transfers by name.
fn said() -> Vec<(&'static str, &'static str, ControlMessage)> {
    let (request, isolation) = ("cmpl-1a".to_owned(), [0x5a; 32]);
    let missing = vec![Missing { layer: 3, first: 0, count: 12 }, Missing { layer: 4, first: 300, count: 1 }];
    let fail = Fail { head: source(), cause: 5, words: "the model ran out of memory".to_owned(), missing };
    let answer = PinAnswer {
        ask: 6,
        code: 0,
        lease: 77,
        ttl_ms: 30_000,
        layout: 3,
        layout_generation: 1,
        tokens: 688,
        blocks: vec![10, 11, 200],
    };
    let able = PeerFeatures { version_min: 1, version_max: 1, tag: 0x0123_4567_89ab_cdef, credits: 64 };
    vec![
        ("able", "kind 8050, optional: the sender speaks of transfers", ControlMessage::PeerFeatures(able)),
        (
            "layout-news",
            "kind 8051, optional: a layout with a buffer of each form",
            ControlMessage::LayoutNews(layout()),
        ),
        ("layout-gone", "kind 8052, optional", ControlMessage::LayoutGone(LayoutGone { number: 3, generation: 1 })),
        ("grant", "kind 8053, optional: a leg that goes on inside a block", ControlMessage::Grant(grant())),
        ("lend", "kind 8054, optional: eight layers can be read", lend().into()),
        (
            "seal",
            "kind 8055, optional: half of the rows of 16 buffers, and what goes once",
            ControlMessage::EndOfData(seal()),
        ),
        ("ack", "kind 8056, optional: of bytes that were sent", ControlMessage::Ack(Ack { head: sink(), lease: None })),
        (
            "ack-lease",
            "kind 8056, optional: of bytes that were read",
            ControlMessage::Ack(Ack { head: sink(), lease: Some(77) }),
        ),
        (
            "acked",
            "kind 8057, optional",
            ControlMessage::LeaseVerdict(LeaseVerdict { head: source(), lease: 77, is_valid: true }),
        ),
        ("fail", "kind 8058, optional: two runs of blocks did not arrive", ControlMessage::Fail(fail)),
        ("abort", "kind 8059, optional", ControlMessage::Abort(Abort { head: sink(), number: 4 })),
        (
            "abort-ack",
            "kind 805a, optional",
            ControlMessage::AbortAck(AbortAck { head: source(), number: 4, is_drained: true }),
        ),
        (
            "refused",
            "kind 805b, optional: a leg out of order",
            ControlMessage::Refused(Refused { head: source(), leg: 5, code: 10, expected: 3 }),
        ),
        ("renew", "kind 805c, optional", ControlMessage::Renew(Renew { leases: vec![77, 1 << 63] })),
        ("lease-over", "kind 805d, optional", ControlMessage::LeaseExpired(LeaseExpired { lease: 77, cause: 8 })),
        (
            "pin-ask",
            "kind 805e, optional",
            ControlMessage::PinAsk(PinAsk { ask: 6, parent: request.clone(), isolation, tokens: 705 }),
        ),
        ("pin-answer", "kind 805f, optional", ControlMessage::PinAnswer(answer)),
        ("chunk", "kind 8060, optional: the second part of two", chunk().into()),
        ("chunk-ack", "kind 8061, optional", ControlMessage::ChunkAck(ChunkAck { op: 300, part: 1, code: 0 })),
        (
            "relay-abort",
            "kind 8062, optional",
            ControlMessage::RelayAbort(RelayAbort { request, words: "the client is gone".to_owned() }),
        ),
        (
            "claim",
            "kind 8063, optional: a sink that has the first 688 tokens",
            ControlMessage::PullRequest(PullRequest { head: sink(), from: 688, trace: b"00-4bf92f35".to_vec() }),
        ),
    ]
}

fn withdrawn() -> WithdrawnRanges {
    WithdrawnRanges { since: 300, list: vec![(7, 2, 1 << 20, 16 << 10), (4_000_000_000, 0, 0, u64::MAX)] }
}

fn card() -> EngineDescriptor {
    let socket = "/run/user/1000/penstock/prefill-0.sock".to_owned();
    let (epoch, host) = (0x0123_4567_89ab_cdef, 0x1111_2222_3333_4444);
    EngineDescriptor { name: "prefill-0".to_owned(), epoch, host, socket, addresses: Vec::new() }
}

fn between_hosts() -> EngineDescriptor {
    EngineDescriptor { addresses: vec!["10.0.0.7:4711".to_owned(), "[2001:db8::7]:4711".to_owned()], ..card() }
}

/// A channel with nothing random in it: what its sides say, in the order in which they say it.
fn conversation() -> [Vec<u8>; 3] {
    let secret = Secret::new([0x5a; 32]);
    let mut caller = SecureChannel::caller(&secret, &mut |bytes| bytes.fill(1));
    let mut listener = SecureChannel::listener(&secret, &mut |bytes| bytes.fill(2));
    let mut said = [const { Vec::new() }; 3];
    caller.take_outgoing(&mut said[0]);
    listener.receive(&said[0][8..]).unwrap();
    listener.take_outgoing(&mut said[1]);
    caller.receive(&said[1]).unwrap();
    caller.send(b"words").unwrap();
    caller.take_outgoing(&mut said[2]);
    said
}

fn bare() -> Vec<Vector> {
    let vector = |release, name, about, bytes| Vector { release, name, about, bytes };
    let refusal = Refusal::new(OpeningCode::RateLimited, "too often");
    let token = StreamKey::derive(&[0x77; 32]).token(258);
    let [first, second, third] = conversation();
    let landing = landing().encode();
    vec![
        vector("0.1", "card", "an engine's portable descriptor", card().encode()),
        vector("0.2", "card", "an engine's portable descriptor, version 2: with addresses", between_hosts().encode()),
        vector("0.2", "opening-refusal", "a refusal in plain text", refusal.encode()),
        vector("0.2", "opening-stream", "a data stream's token, of a key of bytes 77", token.encode().to_vec()),
        vector("0.2", "channel-1-caller", "opening and first message; secret of 5a, random bytes 01", first),
        vector("0.2", "channel-2-listener", "second message; random bytes 02", second),
        vector("0.2", "channel-3-caller", "the first sealed message", third),
        vector("0.4", "landing", "the payload of the note behind a part of layer 3 of leg 2", landing),
        vector("0.4", "transfer-id", "the name of a first attempt, as bytes", transfer().as_bytes().to_vec()),
        vector(
            "0.4",
            "transfer-id-retry",
            "the name of the second attempt at its third sample",
            TransferId::mint(REQUEST, 1, 2).unwrap().as_bytes().to_vec(),
        ),
    ]
}

fn frames_of(release: &str) -> Vec<(&'static str, &'static str, Frame, usize)> {
    match release {
        "0.1" => frames(),
        "0.2" => later_frames(),
        "0.3" => latest_frames(),
        _ => said().into_iter().map(|(name, about, said)| (name, about, Frame::Control(said), 0)).collect(),
    }
}

fn vectors() -> Vec<Vector> {
    let of_release = |release: &'static str| {
        frames_of(release).into_iter().map(move |(name, about, frame, tokens)| {
            let mut bytes = Vec::new();
            encode(&frame, tokens, &mut bytes).unwrap();
            Vector { release, name, about, bytes }
        })
    };
    RELEASES.into_iter().flat_map(of_release).chain(bare()).collect()
}

/// Writes what differs, and fails to say so.
fn update_if_asked() {
    if std::env::var("PENSTOCK_UPDATE_VECTORS").as_deref() != Ok("1") {
        return;
    }
    RELEASES.iter().for_each(|release| std::fs::create_dir_all(folder(release)).unwrap());
    let is_stale = |vector: &Vector| std::fs::read_to_string(vector.path()).ok() != Some(vector.text());
    let stale: Vec<Vector> = vectors().into_iter().filter(is_stale).collect();
    stale.iter().for_each(|vector| std::fs::write(vector.path(), vector.text()).unwrap());
    let names: Vec<&str> = stale.iter().map(|vector| vector.name).collect();
    assert!(names.is_empty(), "written anew, which changes the protocol: {names:?}; now run without the variable");
}

fn read(release: &str, name: &str) -> Vec<u8> {
    let path = folder(release).join(format!("{name}.hex"));
    bytes_of(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

#[test]
fn frames_are_said_as_they_were() {
    update_if_asked();
    for release in RELEASES {
        for (name, _, frame, tokens) in frames_of(release) {
            let bytes = read(release, name);
            let mut decoder = Decoder::new();
            decoder.push(&bytes);
            assert_eq!(decoder.next_frame(), Ok(Some(Received { frame: frame.clone(), tokens })), "{name}");
            let mut again = Vec::new();
            encode(&frame, tokens, &mut again).unwrap();
            assert_eq!(again, bytes, "{name} is encoded differently now");
        }
    }
}

#[test]
fn cards_openings_names_landings_and_sealed_messages_are_written_as_they_were() {
    for vector in bare() {
        assert_eq!(read(vector.release, vector.name), vector.bytes, "{} {}", vector.release, vector.name);
    }
    assert_eq!(EngineDescriptor::decode(&read("0.1", "card")), Ok(card()));
    assert_eq!(EngineDescriptor::decode(&read("0.2", "card")), Ok(between_hosts()));
    let refusal = Refusal::decode(&read("0.2", "opening-refusal"));
    assert_eq!(refusal, Ok(Refusal::new(OpeningCode::RateLimited, "too often")));
    assert_eq!(ArrivalNote::decode(&read("0.4", "landing")), Ok(landing()));
    let stream = read("0.2", "opening-stream");
    let token = StreamToken::decode(stream.as_slice().try_into().unwrap()).unwrap();
    assert!(StreamKey::derive(&[0x77; 32]).verify(&token));
}

#[test]
fn an_older_release_skips_the_kinds_that_came_later() {
    let is_later = |frame: &Frame| !frames().iter().any(|(_, _, old, _)| old.kind() == frame.kind());
    let since = RELEASES[1..].iter().flat_map(|release| frames_of(release));
    let later: Vec<Frame> = since.map(|(_, _, frame, _)| frame).filter(is_later).collect();
    assert_eq!(later.len(), 6 + 21);
    assert!(later.iter().all(|frame| frame.kind() >= OPTIONAL_KINDS));
}

#[test]
fn every_kind_and_every_refusal_has_a_vector_and_every_file_is_one() {
    let all: Vec<Frame> = RELEASES.into_iter().flat_map(frames_of).map(|(_, _, frame, _)| frame).collect();
    let kinds: BTreeSet<u16> = all.iter().map(Frame::kind).collect();
    let optional = [0x10, 0x11, 0x12, 0x20, 0x21, 0x30, 0x31, 0x40, 0x41].map(|number| OPTIONAL_KINDS + number);
    let of_transfers = (0x50..=0x63).map(|number| OPTIONAL_KINDS + number);
    assert_eq!(kinds, (1..=7).chain(optional).chain(of_transfers).collect());
    let code = |frame: &Frame| match frame {
        Frame::Refuse { code, .. } => Some(*code as usize),
        _ => None,
    };
    let codes: BTreeSet<usize> = all.iter().filter_map(code).collect();
    assert_eq!(codes, (0..=RefusalCode::Unauthenticated as usize).collect());
    for release in RELEASES {
        let entries = std::fs::read_dir(folder(release)).unwrap();
        let files: BTreeSet<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files, vectors().iter().filter(|vector| vector.release == release).map(Vector::path).collect());
    }
}
