//! What goes wrong where two schedulers share a name for a transfer, each as a test that it does not; and the first
//! three of the scenarios that the control layer has to pass, over its tables alone.

use std::time::Duration;

use penstock_core::{Epoch, Timestamp};
use penstock_session::codec::encode;
use penstock_session::control::{
    Abort, AbortAck, Ack, CONTROL_VERSIONS, ControlMessage, EndOfData, Fail, Grant, LeaseVerdict, PeerFeatures,
    PullRequest, ReadOffer, Refused, TransferHead,
};
use penstock_session::landing::{ArrivalNote, LandingError};
use penstock_session::machine::Step;
use penstock_session::transfers::early::{EarlyBody, EarlyBounds, EarlyMessage};
use penstock_session::transfers::places::{Place, PlaceError, PlaceEvent, Places};
use penstock_session::transfers::table::{AdmitError, Bounds, Ended, FinishedTransfer, Route, TableMetrics, Transfers};
use penstock_session::{Decoder, Frame, IdError, PeerKey, RequestId, Side, TransferId};

const REQUEST: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
const SOURCE: PeerKey = PeerKey { peer_index: 1, epoch: Epoch(11) };
const SINK: PeerKey = PeerKey { peer_index: 2, epoch: Epoch(22) };

fn now(ms: u64) -> Timestamp {
    Timestamp::from_ns(ms * 1_000_000)
}

fn table() -> Transfers<&'static str> {
    let early = EarlyBounds { messages: 64, bytes: 1 << 20, age: Duration::from_secs(30) };
    let bounds = Bounds { live: 64, early, tombs: 64, tomb_age: Duration::from_secs(60) };
    Transfers::new(bounds, (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210))
}

fn transfer() -> TransferId {
    TransferId::mint(REQUEST, 0, 0).unwrap()
}

/// What a scheduler makes of the request's own name.
fn request(suffix: &str) -> RequestId {
    RequestId::new(&format!("cmpl-{REQUEST}-{suffix}")).unwrap()
}

fn head(side: Side) -> TransferHead {
    TransferHead { transfer: transfer(), side, rank: 0, ranks: 1 }
}

fn seal() -> ControlMessage {
    ControlMessage::EndOfData(EndOfData {
        head: head(Side::Source),
        parts: 1,
        tokens: 16,
        legs: 1,
        rows: Vec::new().into(),
    })
}

fn grant() -> ControlMessage {
    ControlMessage::Grant(Grant {
        head: head(Side::Sink),
        leg: 0,
        layout: 0,
        layout_generation: 0,
        from: 0,
        skip: 0,
        capacity: 16,
        once: None,
        resumes: false,
        urgency: 0,
        blocks: vec![7].into(),
        trace: Box::default(),
    })
}

fn landing() -> ArrivalNote {
    let (source, rank, number, leg, leg_from, from) = (0, 0, 0, 0, 0, 0);
    let (transfer, layer, leg_tokens, tokens, total) = (transfer(), Some(0), 16, 16, None);
    ArrivalNote { transfer, source, rank, number, leg, layer, leg_from, leg_tokens, from, tokens, total }
}

/// Over the wire and back.
fn carried(said: &ControlMessage) -> ControlMessage {
    let mut bytes = Vec::new();
    encode(&Frame::Control(said.clone()), 0, &mut bytes).unwrap();
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    match decoder.next_frame().unwrap().unwrap().frame {
        Frame::Control(said) => said,
        other => panic!("{other:?} came instead"),
    }
}

/// Brings what a peer has said to the transfer that it names, on the other side of it.
fn hear<T>(table: &mut Transfers<T>, from: PeerKey, said: &ControlMessage, at: Timestamp) -> Route {
    let said = carried(said);
    let head = *said.head().unwrap();
    table.route(head.side.other(), head.transfer, from, EarlyBody::Said(said), at)
}

#[test]
fn scenario_01_a_completion_before_the_mapping_is_delivered_once() {
    let mut sink = table();
    let note = EarlyBody::Landing(landing());
    assert_eq!(sink.route(Side::Sink, transfer(), SOURCE, note.clone(), now(1)), Route::Kept);
    assert_eq!(hear(&mut sink, SOURCE, &seal(), now(2)), Route::Kept);
    let (key, early) = sink.admit(Side::Sink, transfer(), request("def456"), "", now(3)).unwrap();
    let message = |body, ms| EarlyMessage { from: SOURCE, body, came: now(ms) };
    assert_eq!(early, [message(note, 1), message(EarlyBody::Said(seal()), 2)]);
    assert_eq!(hear(&mut sink, SOURCE, &seal(), now(4)), Route::Known(key, EarlyBody::Said(seal())));
    let found = sink.metrics();
    assert_eq!((found.early, found.early_bytes, found.early_delivered, found.early_dropped), (0, 0, 2, 0));
}

#[test]
fn scenario_02_a_live_id_of_a_second_owner_is_refused_and_the_first_unaffected() {
    let mut source = table();
    let (first, _) = source.admit(Side::Source, transfer(), request("first"), "first", now(0)).unwrap();
    let second = source.admit(Side::Source, transfer(), request("second"), "second", now(1)).unwrap_err();
    assert_eq!(second, AdmitError::Taken { transfer: transfer(), by: request("first") });
    assert!(second.to_string().contains("mint"), "it says what to do: {second}");
    assert_eq!(source.get(first), Some(&"first"));
    assert_eq!(source.request_of(Side::Source, transfer()), Some(&request("first")));
    assert_eq!(source.transfer_of(Side::Source, &request("second")), None, "half of a map was not made");
    assert_eq!(hear(&mut source, SINK, &grant(), now(2)), Route::Known(first, EarlyBody::Said(grant())));
    assert_eq!(source.end(first, Ended::Sent, now(3)), Some("first"));
    let mut finished = FinishedTransfer::default();
    source.drain_finished(&mut finished);
    assert_eq!(finished, FinishedTransfer { sent: vec![request("first")], ..FinishedTransfer::default() });
    assert_eq!(source.metrics().refused, 1);
}

/// The ranks of a sink, each a process of its own.
fn reader(rank: u16) -> PeerKey {
    PeerKey { peer_index: rank.into(), epoch: Epoch(100 + u64::from(rank)) }
}

/// A rank of the source that four ranks of the sink read from, when everything has landed.
fn four_readers() -> Places {
    let mut places = Places::new(4);
    for rank in 0..4 {
        assert_eq!(places.claim(rank, 4, reader(rank), false), Ok(Step::Go(Place::Granted)));
        places.here(rank, PlaceEvent::Begin).unwrap();
        places.here(rank, PlaceEvent::LastLanded).unwrap();
    }
    places
}

#[test]
fn scenario_03_memory_is_held_until_all_distinct_ranks_have_acked() {
    let mut places = four_readers();
    for rank in [2, 2, 2, 2, 0, 2, 0, 3] {
        assert!(places.on(rank, reader(rank), PlaceEvent::Ack).is_ok());
        assert!(!places.all_are(Place::is_end), "rank 1 still reads");
    }
    assert_eq!(
        places.on(1, reader(2), PlaceEvent::Ack),
        Err(PlaceError::NotYours { rank: 1 }),
        "nor speaks another for it"
    );
    assert_eq!(places.outstanding(), 1);
    assert_eq!(places.on(1, reader(1), PlaceEvent::Ack), Ok(Step::Go(Place::Acked)));
    assert!(places.all_are(|place| place == Place::Acked));
}

#[test]
fn both_halves_meet_in_either_order_without_each_others_requests() {
    for source_first in [true, false] {
        let (mut source, mut sink) = (table(), table());
        let mut early = 0;
        if source_first {
            source.admit(Side::Source, transfer(), request("abc123"), "", now(0)).unwrap();
            early += usize::from(hear(&mut sink, SOURCE, &seal(), now(1)) == Route::Kept);
            early -= sink.admit(Side::Sink, transfer(), request("def456"), "", now(2)).unwrap().1.len();
            assert!(matches!(hear(&mut source, SINK, &grant(), now(3)), Route::Known(..)));
        } else {
            sink.admit(Side::Sink, transfer(), request("def456"), "", now(0)).unwrap();
            early += usize::from(hear(&mut source, SINK, &grant(), now(1)) == Route::Kept);
            early -= source.admit(Side::Source, transfer(), request("abc123"), "", now(2)).unwrap().1.len();
            assert!(matches!(hear(&mut sink, SOURCE, &seal(), now(3)), Route::Known(..)));
        }
        assert_eq!((early, source.metrics().early, sink.metrics().early), (0, 0, 0));
        assert_eq!(source.request_of(Side::Source, transfer()), Some(&request("abc123")));
        assert_eq!(sink.request_of(Side::Sink, transfer()), Some(&request("def456")));
    }
}

#[test]
fn defect_000_completion_before_mapping_is_a_key_error() {
    let mut sink = table();
    assert_eq!((sink.request_of(Side::Sink, transfer()), sink.find(Side::Sink, transfer())), (None, None));
    assert_eq!(hear(&mut sink, SOURCE, &seal(), now(0)), Route::Kept);
    assert_eq!(sink.drain_finished(&mut FinishedTransfer::default()), 0, "what is not mapped is not finished either");
    // Nobody ever asks for it: it goes with its time, and the sink says when that is.
    assert_eq!(sink.expire(now(1)), Some(now(30_000)));
    assert_eq!((sink.expire(now(30_000)), sink.metrics().early_dropped), (None, 1));
    assert_eq!(sink.take_unwanted(), [(Side::Sink, transfer(), SOURCE)], "and who has said it may be told");
    assert!(sink.is_empty());
}

#[test]
fn defect_000_the_write_mode_sink_never_maps() {
    let mut sink = table();
    let (key, _) = sink.admit(Side::Sink, transfer(), request("def456"), "", now(0)).unwrap();
    assert_eq!(
        sink.request_of(Side::Sink, transfer()),
        Some(&request("def456")),
        "by the call that a source makes, too"
    );
    sink.end(key, Ended::Received, now(1));
    let mut finished = FinishedTransfer::default();
    assert_eq!((sink.drain_finished(&mut finished), finished.received), (1, vec![request("def456")]));
}

#[test]
fn defect_000_receivers_gate_on_the_old_field_and_prefix() {
    let old = format!("cmpl-{REQUEST}-abc123");
    assert_eq!(TransferId::parse(&old), Err(IdError::Prefix(old.clone())));
    // What reaches a receiver names the transfer and no request: those of both sides may be anything.
    for said in [seal(), grant()] {
        let mut bytes = Vec::new();
        encode(&Frame::Control(said.clone()), 0, &mut bytes).unwrap();
        assert!(bytes.windows(16).any(|window| window == transfer().as_bytes()));
        assert!(!bytes.windows(5).any(|window| window == b"cmpl-"));
    }
    let mut sink = table();
    let (key, _) = sink.admit(Side::Sink, transfer(), RequestId::new("anything").unwrap(), "", now(0)).unwrap();
    assert!(matches!(hear(&mut sink, SOURCE, &seal(), now(1)), Route::Known(found, _) if found == key));
}

#[test]
fn defect_000_a_set_collapses_duplicate_acks() {
    let mut places = four_readers();
    let answers: Vec<bool> = [0, 1, 2, 3]
        .into_iter()
        .map(|rank| {
            places.on(rank, reader(rank), PlaceEvent::Ack).unwrap();
            places.all_are(Place::is_end)
        })
        .collect();
    assert_eq!(
        answers,
        [false, false, false, true],
        "four answers of one transfer are four, and not one name in a set"
    );
}

#[test]
fn defect_000_a_duplicate_pops_twice() {
    let mut source = table();
    let (first, _) = source.admit(Side::Source, transfer(), request("abc123"), "first", now(0)).unwrap();
    assert_eq!(source.end(first, Ended::Sent, now(1)), Some("first"));
    assert_eq!(source.end(first, Ended::Sent, now(1)), None);
    let other = TransferId::mint(REQUEST, 1, 0).unwrap();
    let (second, _) = source.admit(Side::Source, other, request("abc123"), "second", now(2)).unwrap();
    assert_eq!(source.end(first, Ended::Failed, now(3)), None, "an old key does not end who came after");
    assert_eq!(hear(&mut source, SINK, &grant(), now(3)), Route::Swallowed(Ended::Sent));
    assert_eq!(
        (source.get(second), source.transfer_of(Side::Source, &request("abc123"))),
        (Some(&"second"), Some(other))
    );
    let mut finished = FinishedTransfer::default();
    assert_eq!(
        (source.drain_finished(&mut finished), finished.sent, finished.failed),
        (1, vec![request("abc123")], vec![])
    );
}

#[test]
fn defect_000_an_abort_before_completion_leaves_entries() {
    let mut sink = table();
    let (key, _) = sink.admit(Side::Sink, transfer(), request("def456"), "", now(0)).unwrap();
    assert_eq!(sink.end(key, Ended::Failed, now(1)), Some(""));
    assert_eq!(
        (sink.request_of(Side::Sink, transfer()), sink.transfer_of(Side::Sink, &request("def456"))),
        (None, None)
    );
    assert_eq!((sink.find_request(Side::Sink, &request("def456")), sink.is_empty()), (None, true));
    let late = hear(&mut sink, SOURCE, &seal(), now(2));
    assert_eq!(late, Route::Swallowed(Ended::Failed), "what comes late keeps nothing, and can hear why");
    let mut finished = FinishedTransfer::default();
    assert_eq!((sink.drain_finished(&mut finished), finished.failed), (1, vec![request("def456")]));
    assert_eq!(sink.expire(now(60_001)), None, "nor does its tombstone stay for ever");
    let places = sink.metrics().places;
    let left = TableMetrics { live_max: 1, tomb_hits: 1, places, ..TableMetrics::default() };
    assert_eq!(sink.metrics(), left);
}

#[test]
fn defect_000_a_retry_or_second_sample_reuses_the_id() {
    let mut source = table();
    let minted =
        [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(attempt, sample)| TransferId::mint(REQUEST, attempt, sample).unwrap());
    for (number, id) in minted.into_iter().enumerate() {
        assert!(source.admit(Side::Source, id, request(&number.to_string()), "", now(0)).is_ok());
    }
    let (first, again) = (source.find(Side::Source, minted[0]).unwrap(), request("again"));
    source.end(first, Ended::Failed, now(10));
    let reused = source.admit(Side::Source, minted[0], again, "", now(15)).unwrap_err();
    assert_eq!(reused, AdmitError::Ended { transfer: minted[0], ago: Duration::from_millis(5) });
    assert!(reused.to_string().contains("mint"), "it says what to do: {reused}");
}

#[test]
fn defect_000_a_missing_transfer_id_is_a_key_error() {
    let missing = TransferId::parse("").unwrap_err();
    assert_eq!(missing, IdError::Missing);
    assert!(missing.to_string().contains("mints one"), "it says who is to give it: {missing}");
    assert_eq!(TransferId::mint("", 0, 0), Err(IdError::Missing));
}

#[test]
fn defect_000_messages_have_no_version_sender_or_rank() {
    let (source, sink) = (head(Side::Source), head(Side::Sink));
    let (lease, number) = (77, 1);
    let said = [
        grant(),
        seal(),
        ControlMessage::ReadOffer(Box::new(ReadOffer {
            head: source,
            layout: 0,
            layout_generation: 0,
            from: 0,
            tokens: 0,
            total: None,
            layers: 0,
            is_sealed: false,
            once: None,
            lease,
            ttl_ms: 1,
            blocks: Vec::new(),
        })),
        ControlMessage::Ack(Ack { head: sink, lease: None }),
        ControlMessage::LeaseVerdict(LeaseVerdict { head: source, lease, is_valid: true }),
        ControlMessage::Fail(Fail { head: source, cause: 1, words: String::new(), missing: Vec::new() }),
        ControlMessage::Abort(Abort { head: sink, number }),
        ControlMessage::AbortAck(AbortAck { head: source, number, is_drained: true }),
        ControlMessage::Refused(Refused { head: source, leg: 0, code: 1, expected: 0 }),
        ControlMessage::PullRequest(PullRequest { head: sink, from: 0, trace: Vec::new() }),
    ];
    for said in said {
        let found = *carried(&said).head().unwrap();
        assert_eq!((found.transfer, found.rank, found.ranks), (transfer(), 0, 1), "{said:?}");
        assert_eq!(Some(&found), said.head());
    }
    let (version_min, version_max) = CONTROL_VERSIONS;
    let able = ControlMessage::PeerFeatures(PeerFeatures { version_min, version_max, tag: 1, credits: 1 });
    assert_eq!(carried(&able), able);
    let mut later = landing().encode();
    later[0] += 1;
    assert_eq!(ArrivalNote::decode(&later), Err(LandingError::Version(2)), "and is never guessed");
}

#[test]
fn defect_000_two_layers_claim_the_mapping() {
    let mut source = table();
    source.admit(Side::Source, transfer(), request("abc123"), "first", now(0)).unwrap();
    let same = source.admit(Side::Source, transfer(), request("abc123"), "second", now(0));
    assert_eq!(same, Err(AdmitError::Taken { transfer: transfer(), by: request("abc123") }));
    let other = TransferId::mint(REQUEST, 0, 1).unwrap();
    let twice = source.admit(Side::Source, other, request("abc123"), "third", now(0));
    assert_eq!(twice, Err(AdmitError::RequestTaken { request: request("abc123"), by: transfer() }));
    assert_eq!((source.live(), source.find(Side::Source, other)), (1, None));
}
