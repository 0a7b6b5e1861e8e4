use penstock_core::limits::FRAME_BYTES_MAX;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::super::{Decoder, Received, encode};
use super::*;
use crate::control::*;
use crate::few::Few;
use crate::frame::Frame;
use crate::transfers::id::TransferId;

/// How many kinds there are.
const KINDS: u16 = 20;

fn encoded(said: &ControlMessage) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::new();
    encode(&Frame::Control(said.clone()), 0, &mut bytes).map(|()| bytes)
}

fn decoded(bytes: &[u8]) -> Result<Option<Received>, WireError> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    decoder.next_frame()
}

fn comes_through(said: &ControlMessage) {
    let bytes = encoded(said).unwrap();
    assert_eq!(decoded(&bytes), Ok(Some(Received { frame: Frame::Control(said.clone()), tokens: 0 })));
}

/// What somebody says who does not keep the limits.
fn unchecked(said: &ControlMessage) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, said);
    raw(said.kind(), &body)
}

fn raw(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"PNSK\x01\0".to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn head() -> impl Strategy<Value = TransferHead> {
    (any::<[u8; 16]>(), any::<bool>(), any::<(u16, u16)>()).prop_map(|(transfer, is_sink, (rank, ranks))| {
        TransferHead {
            transfer: TransferId::from_bytes(transfer),
            side: if is_sink { Side::Sink } else { Side::Source },
            rank,
            ranks,
        }
    })
}

fn blocks() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..40)
}

fn text(most: usize) -> impl Strategy<Value = String> {
    any::<String>().prop_map(move |text| text.chars().take(most / 4).collect())
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let rows = any::<[u32; 4]>().prop_map(|[first, count, of, bytes]| Rows { first, count, of, bytes });
    let form = prop_oneof![
        rows.clone().prop_map(Form::TokenMajor),
        rows.prop_map(Form::PlaneMajor),
        any::<u64>().prop_map(Form::Once),
    ];
    (any::<u32>(), any::<(u64, u64)>(), form).prop_map(|(layer, (base, stride), form)| Buffer {
        layer,
        base,
        stride,
        form,
    })
}

fn layout_news() -> impl Strategy<Value = ControlMessage> {
    let numbers = (any::<[u32; 6]>(), any::<(u16, u16)>());
    (numbers, text(LABEL_BYTES_MAX), vec(buffer(), 0..20)).prop_map(|((numbers, (rank, ranks)), label, buffers)| {
        let [number, generation, region, region_generation, block_tokens, blocks] = numbers;
        let placed = (region, region_generation);
        ControlMessage::LayoutNews(LayoutNews {
            number,
            generation,
            label,
            region: placed.0,
            region_generation: placed.1,
            block_tokens,
            blocks,
            rank,
            ranks,
            buffers,
        })
    })
}

fn grant() -> impl Strategy<Value = ControlMessage> {
    let rest = (any::<Option<u32>>(), any::<bool>(), any::<u8>(), vec(any::<u8>(), 0..=TRACE_BYTES_MAX));
    (head(), any::<[u32; 4]>(), any::<(u64, u64)>(), rest, blocks()).prop_map(|(head, numbers, span, rest, blocks)| {
        let [leg, layout, layout_generation, skip] = numbers;
        let ((from, capacity), (once, resumes, urgency, trace)) = (span, rest);
        let grant = Grant {
            head,
            leg,
            layout,
            layout_generation,
            from,
            skip,
            capacity,
            once,
            resumes,
            urgency,
            blocks: blocks.into(),
            trace: trace.into(),
        };
        ControlMessage::Grant(grant)
    })
}

fn lend() -> impl Strategy<Value = ControlMessage> {
    let numbers = (any::<[u32; 4]>(), any::<[u64; 3]>(), any::<Option<u64>>(), any::<(bool, Option<u32>)>());
    (head(), numbers, blocks()).prop_map(|(head, (small, [from, tokens, lease], total, (is_sealed, once)), blocks)| {
        let [layout, layout_generation, layers, ttl_ms] = small;
        let lend = ReadOffer {
            head,
            layout,
            layout_generation,
            from,
            tokens,
            total,
            layers,
            is_sealed,
            once,
            lease,
            ttl_ms,
            blocks,
        };
        lend.into()
    })
}

fn chunk() -> impl Strategy<Value = ControlMessage> {
    let extent = (any::<(u32, u32)>(), any::<(u64, u64)>());
    let extents = vec(extent, 0..20).prop_map(|list| {
        let extent = |((region, generation), (offset, len))| Extent { region, generation, offset, len };
        list.into_iter().map(extent).collect::<Vec<Extent>>()
    });
    let kind = prop::sample::select(vec![ChunkKind::Data, ChunkKind::Done, ChunkKind::Error]);
    let numbers = (any::<[u64; 3]>(), any::<[u32; 3]>(), any::<u16>(), kind);
    let words = (vec(any::<u8>(), 0..50), vec(any::<u8>(), 0..50));
    (numbers, text(REQUEST_BYTES_MAX), extents, words).prop_map(|(numbers, request, extents, (schema, header))| {
        let ([op, number, bytes], [stream, part, parts], readers, kind) = numbers;
        let chunk = Chunk { op, request, stream, number, part, parts, bytes, readers, kind, extents, schema, header };
        chunk.into()
    })
}

fn short() -> impl Strategy<Value = ControlMessage> {
    let able =
        (any::<(u16, u16)>(), 1..=u64::MAX, any::<u32>()).prop_map(|((version_min, version_max), tag, credits)| {
            ControlMessage::PeerFeatures(PeerFeatures { version_min, version_max, tag, credits })
        });
    let gone = any::<(u32, u32)>()
        .prop_map(|(number, generation)| ControlMessage::LayoutGone(LayoutGone { number, generation }));
    let rows = any::<(u32, u32, u32)>().prop_map(|(buffers, first, count)| SentRows { buffers, first, count });
    let seal =
        (head(), any::<(u64, u64)>(), any::<u32>(), vec(rows, 0..4)).prop_map(|(head, (parts, tokens), legs, rows)| {
            ControlMessage::EndOfData(EndOfData { head, parts, tokens, legs, rows: rows.into() })
        });
    let ack = (head(), any::<Option<u64>>()).prop_map(|(head, lease)| ControlMessage::Ack(Ack { head, lease }));
    let acked = (head(), any::<u64>(), any::<bool>())
        .prop_map(|(head, lease, is_valid)| ControlMessage::LeaseVerdict(LeaseVerdict { head, lease, is_valid }));
    let abort = (head(), any::<u32>()).prop_map(|(head, number)| ControlMessage::Abort(Abort { head, number }));
    let abort_ack = (head(), any::<u32>(), any::<bool>())
        .prop_map(|(head, number, is_drained)| ControlMessage::AbortAck(AbortAck { head, number, is_drained }));
    let refused = (head(), any::<(u32, u16, u32)>())
        .prop_map(|(head, (leg, code, expected))| ControlMessage::Refused(Refused { head, leg, code, expected }));
    let over =
        any::<(u64, u16)>().prop_map(|(lease, cause)| ControlMessage::LeaseExpired(LeaseExpired { lease, cause }));
    let chunk_ack =
        any::<(u64, u32, u16)>().prop_map(|(op, part, code)| ControlMessage::ChunkAck(ChunkAck { op, part, code }));
    prop_oneof![able, gone, seal, ack, acked, abort, abort_ack, refused, over, chunk_ack]
}

/// Anything that may be said.
fn said() -> impl Strategy<Value = ControlMessage> {
    let run = any::<[u32; 3]>().prop_map(|[layer, first, count]| Missing { layer, first, count });
    let fail = (head(), any::<u16>(), text(WORDS_BYTES_MAX), vec(run, 0..20))
        .prop_map(|(head, cause, words, missing)| ControlMessage::Fail(Fail { head, cause, words, missing }));
    let renew = vec(any::<u64>(), 0..40).prop_map(|leases| ControlMessage::Renew(Renew { leases }));
    let ask = (any::<(u64, u64)>(), text(REQUEST_BYTES_MAX), any::<[u8; 32]>()).prop_map(
        |((ask, tokens), parent, isolation)| ControlMessage::PinAsk(PinAsk { ask, parent, isolation, tokens }),
    );
    let answer = (any::<[u64; 3]>(), any::<[u32; 3]>(), any::<u16>(), blocks()).prop_map(
        |([ask, lease, tokens], [ttl_ms, layout, layout_generation], code, blocks)| {
            ControlMessage::PinAnswer(PinAnswer { ask, code, lease, ttl_ms, layout, layout_generation, tokens, blocks })
        },
    );
    let abort = (text(REQUEST_BYTES_MAX), text(WORDS_BYTES_MAX))
        .prop_map(|(request, words)| ControlMessage::RelayAbort(RelayAbort { request, words }));
    let claim = (head(), any::<u64>(), vec(any::<u8>(), 0..TRACE_BYTES_MAX))
        .prop_map(|(head, from, trace)| ControlMessage::PullRequest(PullRequest { head, from, trace }));
    Union::new_weighted(vec![
        (10, short().boxed()),
        (1, layout_news().boxed()),
        (1, grant().boxed()),
        (1, lend().boxed()),
        (1, chunk().boxed()),
        (1, fail.boxed()),
        (1, renew.boxed()),
        (1, ask.boxed()),
        (1, answer.boxed()),
        (1, abort.boxed()),
        (1, claim.boxed()),
    ])
}

proptest! {
    #[test]
    fn everything_that_is_said_is_heard_as_it_was_said(said in said()) {
        let bytes = encoded(&said).unwrap();
        prop_assert_eq!(decoded(&bytes), Ok(Some(Received { frame: Frame::Control(said), tokens: 0 })));
    }

    #[test]
    fn any_body_says_something_or_why_not(kind in 0..KINDS + 3, body in vec(any::<u8>(), 0..200)) {
        if let Ok(Some(Received { frame: Frame::Control(said), .. })) = decoded(&raw(FIRST_KIND + kind, &body)) {
            prop_assert_eq!(said.kind(), FIRST_KIND + kind);
            comes_through(&said);
        }
    }

    #[test]
    fn a_body_that_ends_early_or_late_is_refused(said in said(), cut in any::<prop::sample::Index>()) {
        let mut body = Vec::new();
        put(&mut body, &said);
        prop_assert_eq!(decoded(&raw(said.kind(), &body[..cut.index(body.len())])), Err(WireError::Body(said.kind())));
        body.push(0);
        prop_assert_eq!(decoded(&raw(said.kind(), &body)), Err(WireError::Trailing { kind: said.kind(), bytes: 1 }));
    }
}

const HEAD: TransferHead =
    TransferHead { transfer: TransferId::from_bytes([7; 16]), side: Side::Sink, rank: 1, ranks: 2 };

fn granted(blocks: usize, trace: usize) -> ControlMessage {
    ControlMessage::Grant(Grant {
        head: HEAD,
        leg: 0,
        layout: 0,
        layout_generation: 0,
        from: 0,
        skip: 0,
        capacity: 1,
        once: None,
        resumes: false,
        urgency: 0,
        blocks: Few::of(u32::MAX, blocks),
        trace: vec![0; trace].into(),
    })
}

fn lent(blocks: usize) -> ControlMessage {
    let (layout, layout_generation) = (0, 0);
    let blocks = vec![u32::MAX; blocks];
    ControlMessage::ReadOffer(Box::new(ReadOffer {
        head: HEAD,
        layout,
        layout_generation,
        from: 0,
        tokens: 0,
        total: None,
        layers: 1,
        is_sealed: true,
        once: Some(u32::MAX),
        lease: 1,
        ttl_ms: 1,
        blocks,
    }))
}

fn news(label: usize, buffers: usize) -> ControlMessage {
    let rows = Rows { first: u32::MAX, count: u32::MAX, of: u32::MAX, bytes: u32::MAX };
    let buffer = Buffer { layer: u32::MAX, base: u64::MAX, stride: u64::MAX, form: Form::PlaneMajor(rows) };
    ControlMessage::LayoutNews(LayoutNews {
        number: 0,
        generation: 0,
        label: "l".repeat(label),
        region: 0,
        region_generation: 0,
        block_tokens: 16,
        blocks: 1,
        rank: 0,
        ranks: 1,
        buffers: vec![buffer; buffers],
    })
}

fn failed(words: usize, runs: usize) -> ControlMessage {
    let missing = vec![Missing { layer: u32::MAX, first: u32::MAX, count: u32::MAX }; runs];
    ControlMessage::Fail(Fail { head: HEAD, cause: 1, words: "w".repeat(words), missing })
}

fn answered(blocks: usize) -> ControlMessage {
    let blocks = vec![u32::MAX; blocks];
    ControlMessage::PinAnswer(PinAnswer {
        ask: 0,
        code: 0,
        lease: 0,
        ttl_ms: 0,
        layout: 0,
        layout_generation: 0,
        tokens: 0,
        blocks,
    })
}

fn offered(request: usize, extents: usize, schema: usize, header: usize) -> ControlMessage {
    let extent = Extent { region: u32::MAX, generation: u32::MAX, offset: u64::MAX, len: u64::MAX };
    ControlMessage::Chunk(Box::new(Chunk {
        op: 0,
        request: "r".repeat(request),
        stream: 0,
        number: 0,
        part: 0,
        parts: 1,
        bytes: 0,
        readers: 1,
        kind: ChunkKind::Data,
        extents: vec![extent; extents],
        schema: vec![0; schema],
        header: vec![0; header],
    }))
}

#[test]
fn every_limit_is_kept_by_who_says_it_and_by_who_hears_it() {
    let ask = |bytes: usize| {
        ControlMessage::PinAsk(PinAsk { ask: 0, parent: "p".repeat(bytes), isolation: [0; 32], tokens: 0 })
    };
    let sealed = |runs: usize| {
        let rows = vec![SentRows { buffers: u32::MAX, first: u32::MAX, count: u32::MAX }; runs];
        let head = TransferHead { transfer: TransferId::from_bytes([0; 16]), side: Side::Source, rank: 0, ranks: 0 };
        ControlMessage::EndOfData(EndOfData { head, parts: 0, tokens: 0, legs: 0, rows: rows.into() })
    };
    let renew = |leases: usize| ControlMessage::Renew(Renew { leases: vec![u64::MAX; leases] });
    let abort = |request: usize, words: usize| {
        ControlMessage::RelayAbort(RelayAbort { request: "r".repeat(request), words: "w".repeat(words) })
    };
    let claim =
        |bytes: usize| ControlMessage::PullRequest(PullRequest { head: HEAD, from: u64::MAX, trace: vec![0; bytes] });
    // As much as is allowed, one more of something, and how much is allowed of that.
    let pairs = [
        (granted(BLOCKS_MAX, TRACE_BYTES_MAX), granted(BLOCKS_MAX + 1, 0), BLOCKS_MAX),
        (granted(0, 0), granted(0, TRACE_BYTES_MAX + 1), TRACE_BYTES_MAX),
        (lent(BLOCKS_MAX), lent(BLOCKS_MAX + 1), BLOCKS_MAX),
        (sealed(BUFFERS_MAX), sealed(BUFFERS_MAX + 1), BUFFERS_MAX),
        (claim(TRACE_BYTES_MAX), claim(TRACE_BYTES_MAX + 1), TRACE_BYTES_MAX),
        (news(LABEL_BYTES_MAX, BUFFERS_MAX), news(LABEL_BYTES_MAX + 1, 1), LABEL_BYTES_MAX),
        (news(0, 0), news(0, BUFFERS_MAX + 1), BUFFERS_MAX),
        (failed(WORDS_BYTES_MAX, MISSING_MAX), failed(WORDS_BYTES_MAX + 1, 0), WORDS_BYTES_MAX),
        (failed(0, 0), failed(0, MISSING_MAX + 1), MISSING_MAX),
        (answered(BLOCKS_MAX), answered(BLOCKS_MAX + 1), BLOCKS_MAX),
        (renew(LEASES_MAX), renew(LEASES_MAX + 1), LEASES_MAX),
        (ask(REQUEST_BYTES_MAX), ask(REQUEST_BYTES_MAX + 1), REQUEST_BYTES_MAX),
        (abort(REQUEST_BYTES_MAX, WORDS_BYTES_MAX), abort(REQUEST_BYTES_MAX + 1, 0), REQUEST_BYTES_MAX),
        (abort(0, 0), abort(0, WORDS_BYTES_MAX + 1), WORDS_BYTES_MAX),
        (
            offered(REQUEST_BYTES_MAX, EXTENTS_MAX, SCHEMA_BYTES_MAX, SCHEMA_BYTES_MAX),
            offered(REQUEST_BYTES_MAX + 1, 0, 0, 0),
            REQUEST_BYTES_MAX,
        ),
        (offered(0, 0, 0, 0), offered(0, EXTENTS_MAX + 1, 0, 0), EXTENTS_MAX),
        (offered(0, 0, 0, 0), offered(0, 0, SCHEMA_BYTES_MAX + 1, 0), SCHEMA_BYTES_MAX),
        (offered(0, 0, 0, 0), offered(0, 0, 0, SCHEMA_BYTES_MAX + 1), SCHEMA_BYTES_MAX),
    ];
    for (allowed, refused, limit) in pairs {
        assert!(encoded(&allowed).unwrap().len() <= FRAME_BYTES_MAX);
        comes_through(&allowed);
        let error = encoded(&refused).unwrap_err();
        let as_expected = matches!(error, WireError::TooMuch { kind, found, most, .. }
            if kind == refused.kind() && (found, most) == (limit + 1, limit));
        assert!(as_expected, "{error}");
        assert_eq!(decoded(&unchecked(&refused)), Err(error));
    }
}

#[test]
fn a_tag_that_users_could_have_is_refused() {
    let able = |tag| ControlMessage::PeerFeatures(PeerFeatures { version_min: 1, version_max: 1, tag, credits: 1 });
    comes_through(&able(1));
    assert!(matches!(encoded(&able(0)), Err(WireError::Zero { .. })));
    assert!(matches!(decoded(&unchecked(&able(0))), Err(WireError::Zero { kind: FIRST_KIND, .. })));
}

#[test]
fn kinds_of_a_later_release_are_skipped() {
    let mut decoder = Decoder::new();
    decoder.push(&raw(FIRST_KIND + KINDS, b"later"));
    decoder.push(&raw(FIRST_KIND - 1, b"never"));
    assert_eq!(decoder.next_frame(), Ok(None));
    assert_eq!(decoder.skipped(), 2);
}
