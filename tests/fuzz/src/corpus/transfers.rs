//! What is said of transfers by name, and what goes behind their bytes.

use penstock_session::control::{
    Ack, Buffer, Chunk, ChunkKind, ControlMessage, EndOfData, Extent, FIRST_KIND, Fail, Form, Grant, LayoutNews,
    Missing, PeerFeatures, PinAnswer, PinAsk, PullRequest, ReadOffer, RelayAbort, Renew, Rows, SentRows, TransferHead,
};
use penstock_session::few::Few;
use penstock_session::landing::ArrivalNote;
use penstock_session::{Side, TransferId};

fn head(side: Side) -> TransferHead {
    TransferHead { transfer: TransferId::from_bytes([0x6b; 16]), side, rank: 1, ranks: 2 }
}

fn layout() -> LayoutNews {
    let rows = Rows { first: 4, count: 4, of: 8, bytes: 256 };
    let buffer = |layer, form| Buffer { layer, base: u64::from(layer) << 16, stride: 1 << 20, form };
    let buffers = vec![buffer(0, Form::TokenMajor(rows)), buffer(1, Form::PlaneMajor(rows)), buffer(2, Form::Once(9))];
    LayoutNews {
        number: 3,
        generation: 1,
        label: "kv".to_owned(),
        region: 7,
        region_generation: 2,
        block_tokens: 128,
        blocks: 70_000,
        rank: 1,
        ranks: 2,
        buffers,
    }
}

fn grant(blocks: usize) -> Grant {
    Grant {
        head: head(Side::Sink),
        leg: 2,
        layout: 3,
        layout_generation: 1,
        from: 2048,
        skip: 5,
        capacity: 379,
        once: Some(9),
        resumes: true,
        urgency: 1,
        blocks: Few::of(0, blocks),
        trace: b"00-4bf92f35".as_slice().into(),
    }
}

fn lend() -> ReadOffer {
    ReadOffer {
        head: head(Side::Source),
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

fn chunk() -> Chunk {
    Chunk {
        op: 300,
        request: "cmpl-1a".to_owned(),
        stream: 4,
        number: 5,
        part: 1,
        parts: 2,
        bytes: 3 << 20,
        readers: 2,
        kind: ChunkKind::Error,
        extents: vec![Extent { region: 7, generation: 2, offset: 1 << 24, len: 1 << 20 }; 2],
        schema: vec![1, 0],
        header: b"opaque".to_vec(),
    }
}

/// Frames, by name.
pub(super) fn said() -> Vec<(&'static str, ControlMessage)> {
    let missing = vec![Missing { layer: 3, first: 0, count: 12 }, Missing { layer: 4, first: 300, count: 1 }];
    let fail = Fail { head: head(Side::Source), cause: 5, words: "out of memory".to_owned(), missing };
    let (request, words) = ("cmpl-1a".to_owned(), "the client is gone".to_owned());
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
    vec![
        ("able", ControlMessage::PeerFeatures(PeerFeatures { version_min: 1, version_max: 1, tag: 7, credits: 64 })),
        ("layout-news", ControlMessage::LayoutNews(layout())),
        ("grant", ControlMessage::Grant(grant(4))),
        ("grant-long", ControlMessage::Grant(grant(1000))),
        ("lend", lend().into()),
        (
            "seal",
            ControlMessage::EndOfData(EndOfData {
                head: head(Side::Source),
                parts: 40,
                tokens: 2000,
                legs: 3,
                rows: vec![SentRows { buffers: 17, first: 4, count: 4 }].into(),
            }),
        ),
        ("ack", ControlMessage::Ack(Ack { head: head(Side::Sink), lease: Some(77) })),
        ("fail", ControlMessage::Fail(fail)),
        ("renew", ControlMessage::Renew(Renew { leases: vec![77, 1 << 63] })),
        (
            "pin-ask",
            ControlMessage::PinAsk(PinAsk { ask: 6, parent: request.clone(), isolation: [0x5a; 32], tokens: 705 }),
        ),
        ("pin-answer", ControlMessage::PinAnswer(answer)),
        ("chunk", chunk().into()),
        ("relay-abort", ControlMessage::RelayAbort(RelayAbort { request, words })),
        (
            "claim",
            ControlMessage::PullRequest(PullRequest {
                head: head(Side::Sink),
                from: 688,
                trace: b"00-4bf92f35".to_vec(),
            }),
        ),
    ]
}

/// A layout that says that it has as many of the shortest buffers as the frame has room for, and one that says that it
/// has far more.
pub(super) fn greedy(header: impl Fn(u16, u32) -> Vec<u8>) -> [(&'static str, Vec<u8>); 2] {
    let kind = FIRST_KIND + 1;
    let (buffers, before) = (2000_usize, 9);
    let mut crowded = header(kind, (before + 2 + 5 * buffers) as u32);
    crowded.extend([0; 9]);
    crowded.extend([0xd0, 0x0f]);
    (0..buffers).for_each(|_| crowded.extend([0, 0, 0, 2, 0]));
    let mut boastful = header(kind, before as u32 + 5);
    boastful.extend([0; 9]);
    boastful.extend([0xff, 0xff, 0xff, 0xff, 0x0f]);
    [("layout-crowded", crowded), ("layout-boastful", boastful)]
}

/// Landings.
pub(super) fn landings() -> Vec<(&'static str, Vec<u8>)> {
    let usual = ArrivalNote {
        transfer: TransferId::from_bytes([0x6b; 16]),
        source: 1,
        rank: 3,
        number: 400,
        leg: 9,
        layer: Some(31),
        leg_from: 9216,
        leg_tokens: 1024,
        from: 9216,
        tokens: 1024,
        total: None,
    };
    let large = ArrivalNote { number: u64::MAX, layer: None, total: Some(u64::MAX), from: u64::MAX, ..usual };
    let mut later = usual.encode();
    later[0] = 2;
    vec![("usual", usual.encode()), ("large", large.encode()), ("later", later)]
}
