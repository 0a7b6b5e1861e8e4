//! Frames with any content come through any fragmentation as they were sent.

use std::net::SocketAddr;

use penstock_core::NoteId;
use penstock_core::limits::{FRAME_TOKENS_MAX, NOTE_BYTES_MAX, NOTE_LINES_MAX};
use penstock_ring::RingLine;
use penstock_session::codec::{Received, encode};
use penstock_session::{
    CounterNews, Decoder, EngineDescriptor, Frame, Hello, Offer, RefusalCode, RegionNews, RegionsAdvertised,
    RegionsGone,
};
use penstock_transport::record::{self, RecordKind};
use proptest::collection::vec;
use proptest::prelude::*;

fn hello() -> impl Strategy<Value = Frame> {
    let numbers = (any::<(u16, u16, u16, u32)>(), any::<[u64; 4]>());
    (numbers, any::<String>(), vec(any::<String>(), 0..5)).prop_map(|((small, large), name, transports)| {
        let (version_min, version_max, workers, peer_index) = small;
        let [epoch, expects, host, process] = large;
        Frame::Hello(Hello {
            version_min,
            version_max,
            name,
            epoch,
            expects,
            host,
            process,
            workers,
            peer_index,
            transports,
        })
    })
}

fn refusal() -> impl Strategy<Value = Frame> {
    let codes = [
        RefusalCode::Version,
        RefusalCode::Epoch,
        RefusalCode::NoTransport,
        RefusalCode::ForeignUser,
        RefusalCode::Full,
        RefusalCode::Malformed,
        RefusalCode::BadOffer,
        RefusalCode::Closing,
        RefusalCode::NameTaken,
        RefusalCode::Unauthenticated,
    ];
    (proptest::sample::select(codes.to_vec()), any::<String>()).prop_map(|(code, text)| Frame::Refuse { code, text })
}

fn region() -> impl Strategy<Value = RegionNews> {
    let numbers = (any::<(u32, u32, u8)>(), any::<[u64; 3]>());
    (numbers, any::<String>(), vec(any::<u8>(), 0..40), any::<Option<u8>>()).prop_map(
        |(((id, generation, rights), [bytes, base, block_bytes]), label, path, token)| RegionNews {
            id,
            generation,
            label,
            bytes,
            base,
            rights,
            block_bytes,
            path,
            token,
        },
    )
}

fn counter() -> impl Strategy<Value = CounterNews> {
    (any::<(u32, u32, u32)>(), any::<String>()).prop_map(|((id, generation, region), label)| CounterNews {
        id,
        generation,
        region,
        label,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let offer = (any::<String>(), vec(any::<u8>(), 0..200))
        .prop_map(|(transport, blob)| Frame::Offer(Offer { transport, blob }));
    let regions = (any::<u64>(), vec(region(), 0..6))
        .prop_map(|(revision, news)| Frame::Regions(RegionsAdvertised { revision, news }));
    let gone = (any::<u64>(), vec(any::<(u32, u32)>(), 0..50))
        .prop_map(|(revision, gone)| Frame::RegionsGone(RegionsGone { revision, gone }));
    let counters = vec(counter(), 0..6).prop_map(Frame::Counters);
    let bare = prop::sample::select(vec![Frame::Goodbye, Frame::Draining, Frame::Settled, Frame::Rested]);
    let pings = (any::<u64>(), any::<bool>())
        .prop_map(|(number, asks)| if asks { Frame::Ping { number } } else { Frame::Pong { number } });
    let card = vec(any::<u8>(), 0..300).prop_map(Frame::Descriptor);
    let known = vec(vec(any::<u8>(), 0..100), 0..10).prop_map(Frame::Known);
    prop_oneof![hello(), refusal(), offer, regions, gone, counters, bare, pings, card, known]
}

/// Pushes `stream` in pieces of these lengths, over and over, and takes what comes out.
fn through(stream: &[u8], lengths: &[usize]) -> Vec<Received> {
    let mut decoder = Decoder::new();
    let (mut rest, mut found) = (stream, Vec::new());
    let mut lengths = lengths.iter().cycle();
    while !rest.is_empty() {
        let length = lengths.next().map_or(1, |&length| length.min(rest.len()));
        let (piece, left) = rest.split_at(length);
        decoder.push(piece);
        rest = left;
        while let Some(received) = decoder.next_frame().expect("these are frames") {
            found.push(received);
        }
    }
    found
}

proptest! {
    #[test]
    fn frames_come_through_any_fragmentation(
        said in vec((frame(), 0..=FRAME_TOKENS_MAX), 0..6),
        lengths in vec(1usize..200, 1..8),
    ) {
        let mut stream = Vec::new();
        for (frame, tokens) in &said {
            encode(frame, *tokens, &mut stream).expect("these frames are short");
        }
        let expected: Vec<Received> = said.into_iter().map(|(frame, tokens)| Received { frame, tokens }).collect();
        prop_assert_eq!(through(&stream, &lengths), expected);
    }

    #[test]
    fn cards_come_through(
        name in ".{0,80}", epoch: u64, host: u64, socket in ".{0,200}", places in vec(any::<SocketAddr>(), 0..=16),
    ) {
        let addresses = places.iter().map(SocketAddr::to_string).collect();
        let card = EngineDescriptor { name, epoch, host, socket, addresses };
        prop_assert_eq!(EngineDescriptor::decode(&card.encode()), Ok(card));
    }

    #[test]
    fn notes_come_through(id: u128, sequence: u64, payload in vec(any::<u8>(), 0..=NOTE_BYTES_MAX), hands_over: bool) {
        let kind = if hands_over { RecordKind::HandOver } else { RecordKind::Note };
        let mut lines = [RingLine::default(); NOTE_LINES_MAX];
        let count = record::write(kind, sequence, NoteId(id), &payload, &mut lines);
        let head = record::parse(&lines[0], sequence).expect("this is a record");
        prop_assert_eq!((head.kind, head.lines, head.bytes, head.id), (kind, count, payload.len(), NoteId(id)));
        let mut found = vec![0; payload.len()];
        lines[..count].iter().enumerate().for_each(|(place, line)| record::unpack(place, line, &mut found));
        prop_assert_eq!(found, payload);
    }
}
