use penstock_core::limits::{FRAME_BYTES_MAX, FRAME_TOKENS_MAX};

use super::*;
use crate::frame::{Offer, RefusalCode, RegionsGone};

fn encoded(frame: &Frame, tokens: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, tokens, &mut bytes).unwrap();
    bytes
}

fn offer(bytes: usize) -> Frame {
    Frame::Offer(Offer { transport: "shm".to_owned(), blob: vec![7; bytes] })
}

fn refuse() -> Frame {
    Frame::Refuse { code: RefusalCode::Full, text: "no room".to_owned() }
}

/// A header with what is wrong in it, and a body.
fn raw(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"PNSK\x01\0".to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Option<Received>, WireError> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    decoder.next_frame()
}

#[test]
fn frames_come_out_as_they_went_in_one_byte_at_a_time() {
    let frames = [refuse(), Frame::Goodbye, offer(300)];
    let stream: Vec<u8> = frames.iter().enumerate().flat_map(|(tokens, frame)| encoded(frame, tokens)).collect();
    let mut decoder = Decoder::new();
    let mut found = Vec::new();
    for byte in stream {
        decoder.push(&[byte]);
        found.extend(decoder.next_frame().unwrap());
    }
    let expected: Vec<Received> =
        frames.into_iter().enumerate().map(|(tokens, frame)| Received { frame, tokens }).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_stranger_is_refused_at_its_first_wrong_byte() {
    assert_eq!(decode(b"G"), Err(WireError::Magic(*b"G\0\0\0")));
    assert_eq!(decode(b"PNSX"), Err(WireError::Magic(*b"PNSX")));
    assert_eq!(decode(b"PNS"), Ok(None));
}

#[test]
fn each_part_of_a_header_is_checked() {
    let with = |place: usize, value: u8| {
        let mut bytes = raw(7, b"");
        bytes[place] = value;
        decode(&bytes)
    };
    assert_eq!(with(4, 2), Err(WireError::Version(2)));
    assert_eq!(with(4, 0), Err(WireError::Version(0)));
    assert_eq!(with(6, 8), Err(WireError::Kind(8)));
    assert_eq!(with(6, 0), Err(WireError::Kind(0)));
    assert_eq!(with(12, FRAME_TOKENS_MAX as u8 + 1), Err(WireError::TooManyTokens(FRAME_TOKENS_MAX + 1)));
    for reserved in 13..16 {
        assert_eq!(with(reserved, 1), Err(WireError::Reserved));
    }
    assert_eq!(with(12, 3).unwrap().unwrap().tokens, 3);
}

#[test]
fn a_promise_of_too_much_is_refused_before_it_is_kept() {
    let mut bytes = raw(3, b"");
    bytes[8..12].copy_from_slice(&(FRAME_BYTES_MAX as u32 - HEADER_BYTES as u32 + 1).to_le_bytes());
    assert_eq!(decode(&bytes), Err(WireError::TooLong((FRAME_BYTES_MAX - HEADER_BYTES + 1) as u64)));
    bytes[8..12].copy_from_slice(&(FRAME_BYTES_MAX as u32 - HEADER_BYTES as u32).to_le_bytes());
    assert_eq!(decode(&bytes), Ok(None), "as long as allowed: its body may come");
}

#[test]
fn a_body_must_decode_to_its_last_byte() {
    assert_eq!(decode(&raw(1, b"")), Err(WireError::Body(1)));
    assert_eq!(decode(&raw(2, &[200, 0])), Err(WireError::Body(2)), "no such refusal");
    assert_eq!(decode(&raw(3, &[2, 0xff, 0xfe, 0])), Err(WireError::Body(3)), "a name that is not text");
    assert_eq!(decode(&raw(6, &[0xff, 0xff, 0xff, 0xff, 0x0f])), Err(WireError::Body(6)), "a list longer than all");
    assert_eq!(decode(&raw(5, &[1, 0, 9])), Err(WireError::Trailing { kind: 5, bytes: 1 }));
    assert_eq!(decode(&raw(7, b"bye")), Err(WireError::Trailing { kind: 7, bytes: 3 }));
}

#[test]
fn an_unknown_kind_is_skipped_only_if_it_may_be() {
    let mut decoder = Decoder::new();
    decoder.push(&raw(OPTIONAL_KINDS, b"from a later release"));
    decoder.push(&raw(u16::MAX, b""));
    decoder.push(&encoded(&Frame::Goodbye, 0));
    assert_eq!(decoder.next_frame().unwrap().unwrap().frame, Frame::Goodbye);
    assert_eq!(decoder.skipped(), 2);
    assert_eq!(decode(&raw(OPTIONAL_KINDS - 1, b"")), Err(WireError::Kind(OPTIONAL_KINDS - 1)));
}

#[test]
fn what_cannot_be_sent_leaves_nothing_behind() {
    let mut bytes = encoded(&Frame::Goodbye, 0);
    let before = bytes.clone();
    assert!(matches!(encode(&offer(FRAME_BYTES_MAX), 0, &mut bytes), Err(WireError::TooLong(_))));
    assert_eq!(encode(&Frame::Goodbye, FRAME_TOKENS_MAX + 1, &mut bytes), Err(WireError::TooManyTokens(65)));
    assert_eq!(bytes, before);
}

#[test]
fn the_longest_frame_goes_through() {
    // Header, one byte for the name's length and three for the name, three for the blob's length.
    let longest = offer(FRAME_BYTES_MAX - HEADER_BYTES - 4 - 3);
    let bytes = encoded(&longest, FRAME_TOKENS_MAX);
    assert_eq!(bytes.len(), FRAME_BYTES_MAX);
    assert_eq!(decode(&bytes), Ok(Some(Received { frame: longest, tokens: FRAME_TOKENS_MAX })));
}

#[test]
fn words_of_a_list_are_as_many_as_it_says() {
    let gone = Frame::RegionsGone(RegionsGone { revision: u64::MAX, gone: vec![(u32::MAX, 0); 1000] });
    assert_eq!(decode(&encoded(&gone, 0)).unwrap().unwrap().frame, gone);
}

#[test]
fn cards_have_limits_of_their_own_on_both_sides() {
    let known = |count: usize, bytes: usize| Frame::Known(vec![vec![1; bytes]; count]);
    for frame in [
        known(CARDS_MAX, 100),
        known(3, DESCRIPTOR_BYTES_MAX),
        known(0, 0),
        Frame::Descriptor(vec![2; DESCRIPTOR_BYTES_MAX]),
    ] {
        assert_eq!(decode(&encoded(&frame, 0)).unwrap().unwrap().frame, frame);
    }
    let many = known(CARDS_MAX + 1, 1);
    assert_eq!(encode(&many, 0, &mut Vec::new()), Err(WireError::TooManyCards(CARDS_MAX + 1)));
    let long = Frame::Descriptor(vec![0; DESCRIPTOR_BYTES_MAX + 1]);
    assert_eq!(encode(&long, 0, &mut Vec::new()), Err(WireError::CardTooLong(DESCRIPTOR_BYTES_MAX + 1)));
    let body = postcard::to_stdvec(&vec![vec![1u8]; CARDS_MAX + 1]).unwrap();
    assert_eq!(decode(&raw(KNOWN, &body)), Err(WireError::TooManyCards(CARDS_MAX + 1)));
    let body = postcard::to_stdvec(&vec![1u8; DESCRIPTOR_BYTES_MAX + 1]).unwrap();
    assert_eq!(decode(&raw(DESCRIPTOR, &body)), Err(WireError::CardTooLong(DESCRIPTOR_BYTES_MAX + 1)));
}

#[test]
fn pings_and_pongs_carry_their_number() {
    for frame in [Frame::Ping { number: 0 }, Frame::Pong { number: u64::MAX }] {
        assert_eq!(decode(&encoded(&frame, 0)).unwrap().unwrap().frame, frame);
    }
    assert_eq!(decode(&raw(PING, b"")), Err(WireError::Body(PING)));
    assert_eq!(decode(&raw(PONG, b"\x05\x05")), Err(WireError::Trailing { kind: PONG, bytes: 1 }));
}

#[test]
fn words_aside_have_a_limit_on_both_sides() {
    for words in [Vec::new(), vec![3; TRANSPORT_MESSAGE_BYTES_MAX]] {
        let frame = Frame::TransportMessage(words);
        assert_eq!(decode(&encoded(&frame, 0)).unwrap().unwrap().frame, frame);
    }
    let long = vec![3u8; TRANSPORT_MESSAGE_BYTES_MAX + 1];
    let body = postcard::to_stdvec(&long).unwrap();
    assert_eq!(
        decode(&raw(TRANSPORT_MESSAGE, &body)),
        Err(WireError::TransportMessageTooLong(TRANSPORT_MESSAGE_BYTES_MAX + 1))
    );
    assert_eq!(
        encode(&Frame::TransportMessage(long), 0, &mut Vec::new()),
        Err(WireError::TransportMessageTooLong(TRANSPORT_MESSAGE_BYTES_MAX + 1))
    );
    assert_eq!(
        decode(&raw(TRANSPORT_MESSAGE, &[1, 7, 7])),
        Err(WireError::Trailing { kind: TRANSPORT_MESSAGE, bytes: 1 })
    );
    assert_eq!(
        decode(&raw(TRANSPORT_MESSAGE, &[2, 7])),
        Err(WireError::Body(TRANSPORT_MESSAGE)),
        "shorter than it says"
    );
}
