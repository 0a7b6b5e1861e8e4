use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::opening::{CHANNEL_OPENING_BYTES, Opening, OpeningDecoder, REFUSAL_BYTES_MAX, StreamKey};

fn secret() -> Secret {
    Secret::new([9; 32])
}

/// A source of bytes that are different each time.
fn random(seed: u8) -> impl FnMut(&mut [u8]) {
    let mut state = u64::from(seed) + 1;
    move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
}

fn caller() -> SecureChannel {
    SecureChannel::caller(&secret(), &mut random(1))
}

fn listener() -> SecureChannel {
    SecureChannel::listener(&secret(), &mut random(2))
}

fn outgoing(channel: &mut SecureChannel) -> Vec<u8> {
    let mut bytes = Vec::new();
    channel.take_outgoing(&mut bytes);
    bytes
}

fn plaintext(channel: &mut SecureChannel) -> Vec<u8> {
    let mut bytes = Vec::new();
    channel.take_plaintext(&mut bytes);
    bytes
}

/// What the caller says first, without the opening.
fn first(caller: &mut SecureChannel) -> Vec<u8> {
    outgoing(caller).split_off(CHANNEL_OPENING_BYTES)
}

fn pair() -> (SecureChannel, SecureChannel) {
    let (mut caller, mut listener) = (caller(), listener());
    listener.receive(&first(&mut caller)).unwrap();
    caller.receive(&outgoing(&mut listener)).unwrap();
    (caller, listener)
}

/// The pair, confirmed, with one sealed message of the caller under way for each of these.
fn sealed(messages: &[&[u8]]) -> (SecureChannel, Vec<Vec<u8>>) {
    let (mut caller, mut listener) = pair();
    caller.send(b"hello").unwrap();
    listener.receive(&outgoing(&mut caller)).unwrap();
    assert_eq!(plaintext(&mut listener), b"hello");
    let seal = |message: &&[u8]| {
        caller.send(message).unwrap();
        outgoing(&mut caller)
    };
    let sealed = messages.iter().map(seal).collect();
    (listener, sealed)
}

#[test]
fn two_sides_with_one_secret_come_to_one_channel() {
    let (mut caller, mut listener) = (caller(), listener());
    assert!(!caller.is_open() && !listener.is_open());
    assert_eq!((caller.handshake_hash(), listener.handshake_hash()), (None, None));
    let bytes = outgoing(&mut caller);
    let (opening, rest) = OpeningDecoder::new().push(&bytes).unwrap().unwrap();
    assert_eq!(opening, Opening::Channel { version: 1 });
    assert_eq!(rest.len(), LENGTH_BYTES + FIRST_BYTES);
    listener.receive(rest).unwrap();
    assert!(listener.is_open() && !listener.is_confirmed());
    caller.receive(&outgoing(&mut listener)).unwrap();
    assert!(caller.is_open() && caller.is_confirmed());
    assert_eq!(caller.handshake_hash(), listener.handshake_hash());

    caller.send(b"from here").unwrap();
    listener.send(b"from there").unwrap();
    listener.receive(&outgoing(&mut caller)).unwrap();
    caller.receive(&outgoing(&mut listener)).unwrap();
    assert_eq!(plaintext(&mut listener), b"from here");
    assert_eq!(plaintext(&mut caller), b"from there");
    assert!(listener.is_confirmed());

    let (here, there) = (caller.handshake_hash().unwrap(), listener.handshake_hash().unwrap());
    assert!(StreamKey::derive(&here).verify(&StreamKey::derive(&there).token(5)));
}

#[test]
fn what_is_said_before_the_channel_stands_comes_through_after() {
    let (mut caller, mut listener) = (caller(), listener());
    caller.send(b"early ").unwrap();
    caller.send(&[7; 5000]).unwrap();
    listener.send(b"also early").unwrap();
    listener.receive(&first(&mut caller)).unwrap();
    caller.receive(&outgoing(&mut listener)).unwrap();
    listener.receive(&outgoing(&mut caller)).unwrap();
    assert_eq!(plaintext(&mut caller), b"also early");
    assert_eq!(plaintext(&mut listener), [b"early ".as_slice(), &[7; 5000]].concat());
}

#[test]
fn every_channel_has_a_hash_of_its_own() {
    let hash = |seeds: (u8, u8)| {
        let mut caller = SecureChannel::caller(&secret(), &mut random(seeds.0));
        let mut listener = SecureChannel::listener(&secret(), &mut random(seeds.1));
        listener.receive(&first(&mut caller)).unwrap();
        listener.handshake_hash().unwrap()
    };
    assert_eq!(hash((1, 2)), hash((1, 2)));
    assert_ne!(hash((1, 2)), hash((3, 2)));
    assert_ne!(hash((1, 2)), hash((1, 3)));
}

#[test]
fn another_secret_is_noticed_at_the_first_message() {
    let mut stranger = SecureChannel::caller(&Secret::new([8; 32]), &mut random(1));
    let mut listener = listener();
    let bytes = first(&mut stranger);
    assert_eq!(listener.receive(&bytes), Err(ChannelError::WrongSecret));
    assert_eq!(outgoing(&mut listener), b"", "a stranger is answered in plain text or not at all");
    assert_eq!(listener.receive(b""), Err(ChannelError::WrongSecret), "and it stays so");
    assert_eq!(listener.send(b"x"), Err(ChannelError::WrongSecret));
    let refusal = ChannelError::WrongSecret.refusal().unwrap().encode();
    assert!(refusal.len() <= REFUSAL_BYTES_MAX);
    for cut in 0..refusal.len() {
        let mut stranger = SecureChannel::caller(&Secret::new([8; 32]), &mut random(1));
        assert_eq!(stranger.receive(&refusal[..cut]), Ok(()), "{cut}");
        let Err(ChannelError::Refused { code, text }) = stranger.receive(&refusal[cut..]) else { panic!("{cut}") };
        assert_eq!(code, OpeningCode::WrongSecret);
        assert!(text.contains("secret"));
    }
}

#[test]
fn what_only_looks_like_a_refusal_ends_the_channel_too() {
    for bytes in [b"PNxx".as_slice(), b"PNSR\x01\0\xff\xff", b"PNSR\x01\0\x01\0\xff"] {
        assert_eq!(caller().receive(bytes), Err(ChannelError::EarlyTooLong(0x4e50)));
    }
}

#[test]
fn a_listener_without_the_secret_cannot_answer() {
    let (mut caller, mut listener) = (caller(), listener());
    listener.receive(&first(&mut caller)).unwrap();
    let mut answer = outgoing(&mut listener);
    answer[10] ^= 1;
    assert_eq!(caller.receive(&answer), Err(ChannelError::WrongSecret));
}

#[test]
fn the_version_is_part_of_the_handshake() {
    let mut caller = caller();
    let first = first(&mut caller);
    let mut noise = noise::listener(&secret(), b"PNSN\x02\0\0\0", &mut random(2));
    assert!(noise.read_message(&first[LENGTH_BYTES..], &mut [0; 64]).is_err());
}

#[test]
fn early_messages_are_short() {
    let over = (EARLY_BYTES_MAX + 1) as u16;
    assert_eq!(listener().receive(&over.to_le_bytes()), Err(ChannelError::EarlyTooLong(over.into())));
    assert_eq!(caller().receive(&over.to_le_bytes()), Err(ChannelError::EarlyTooLong(over.into())));
    assert_eq!(listener().receive(&47u16.to_le_bytes()), Err(ChannelError::TooShort(47)));
    assert_eq!(caller().receive(&79u16.to_le_bytes()), Err(ChannelError::TooShort(79)));
    let (mut caller, mut listener) = pair();
    assert_eq!(listener.receive(&over.to_le_bytes()), Err(ChannelError::EarlyTooLong(over.into())));
    assert_eq!(caller.receive(&u16::MAX.to_le_bytes()), Ok(()), "a caller knows whom it talks to");
    assert_eq!(caller.receive(&[0; MESSAGE_BYTES_MAX]), Err(ChannelError::Tampered));
}

#[test]
fn a_repeated_first_message_comes_no_further() {
    let (mut caller, mut honest) = (caller(), listener());
    let bytes = first(&mut caller);
    honest.receive(&bytes).unwrap();
    caller.receive(&outgoing(&mut honest)).unwrap();
    caller.send(b"secret words").unwrap();
    let sealed = outgoing(&mut caller);
    honest.receive(&sealed).unwrap();

    let mut again = SecureChannel::listener(&secret(), &mut random(77));
    again.receive(&bytes).unwrap();
    assert!(again.is_open() && !again.is_confirmed());
    assert_eq!(again.receive(&sealed), Err(ChannelError::Tampered));
    assert!(!again.is_confirmed() && plaintext(&mut again).is_empty());
}

#[test]
fn long_words_go_in_several_messages() {
    let (mut listener, sealed) = sealed(&[&[5; 200_000]]);
    assert_eq!(sealed[0].len(), 200_000 + 4 * (LENGTH_BYTES + TAG_BYTES));
    listener.receive(&sealed[0]).unwrap();
    assert_eq!(plaintext(&mut listener), [5; 200_000]);
}

#[test]
fn every_changed_bit_of_a_message_is_noticed() {
    let (_, messages) = sealed(&[b"words"]);
    for place in LENGTH_BYTES * 8..messages[0].len() * 8 {
        let (mut listener, mut messages) = sealed(&[b"words"]);
        messages[0][place / 8] ^= 1 << (place % 8);
        assert_eq!(listener.receive(&messages[0]), Err(ChannelError::Tampered), "bit {place}");
        assert_eq!(plaintext(&mut listener), b"");
    }
}

#[test]
fn messages_that_are_repeated_moved_or_left_out_end_the_channel() {
    for order in [[0, 0], [1, 0], [2, 1]] {
        let (mut listener, messages) = sealed(&[b"a", b"b", b"c"]);
        let stream: Vec<u8> = order.iter().flat_map(|&place: &usize| messages[place].clone()).collect();
        assert_eq!(listener.receive(&stream), Err(ChannelError::Tampered), "{order:?}");
        assert_eq!(listener.receive(&messages[0]), Err(ChannelError::Tampered), "nothing mends it");
        assert!(!listener.is_open() && listener.handshake_hash().is_none());
    }
}

#[test]
fn what_came_before_an_error_can_still_be_taken() {
    let (mut listener, messages) = sealed(&[b"good", b"bad"]);
    let stream = [messages[0].as_slice(), &messages[0]].concat();
    assert_eq!(listener.receive(&stream), Err(ChannelError::Tampered));
    assert_eq!(plaintext(&mut listener), b"good");
}

#[test]
fn a_cut_message_waits_for_its_end_and_makes_no_room_before() {
    let (mut listener, messages) = sealed(&[&[1; 60_000]]);
    listener.receive(&messages[0][..100]).unwrap();
    assert!(listener.incoming.capacity() <= 200, "{}", listener.incoming.capacity());
    listener.receive(&messages[0][100..messages[0].len() - 1]).unwrap();
    assert!(listener.incoming.capacity() <= LENGTH_BYTES + MESSAGE_BYTES_MAX);
    assert_eq!(plaintext(&mut listener), b"");
    listener.receive(&messages[0][messages[0].len() - 1..]).unwrap();
    assert_eq!(plaintext(&mut listener).len(), 60_000);
    assert_eq!(listener.incoming.capacity(), 0);
}

#[test]
fn a_channel_shows_no_key() {
    let (caller, _) = pair();
    assert_eq!(format!("{caller:?}"), "Channel { state: \"open, confirmed\", .. }");
}

/// Gives `bytes` to `channel` in pieces of these lengths, over and over.
fn give(channel: &mut SecureChannel, mut bytes: &[u8], lengths: &[usize]) -> Result<(), ChannelError> {
    let mut lengths = lengths.iter().cycle();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(lengths.next().map_or(1, |&length| length.min(bytes.len())));
        channel.receive(piece)?;
        bytes = rest;
    }
    Ok(())
}

proptest! {
    #[test]
    fn words_come_through_any_fragmentation(
        said in vec((any::<bool>(), vec(any::<u8>(), 0..3000)), 0..8),
        early in 0usize..4,
        lengths in vec(1usize..400, 1..8),
    ) {
        let (mut caller, mut listener) = (caller(), listener());
        let (mut from_caller, mut from_listener) = (Vec::new(), Vec::new());
        for (place, (is_callers, words)) in said.iter().enumerate() {
            if place == early {
                let bytes = first(&mut caller);
                give(&mut listener, &bytes, &lengths)?;
                give(&mut caller, &outgoing(&mut listener), &lengths)?;
            }
            if *is_callers { caller.send(words)? } else { listener.send(words)? };
            if *is_callers { &mut from_caller } else { &mut from_listener }.extend_from_slice(words);
        }
        if said.len() <= early {
            let bytes = first(&mut caller);
            give(&mut listener, &bytes, &lengths)?;
            give(&mut caller, &outgoing(&mut listener), &lengths)?;
        }
        give(&mut listener, &outgoing(&mut caller), &lengths)?;
        give(&mut caller, &outgoing(&mut listener), &lengths)?;
        prop_assert_eq!(plaintext(&mut listener), from_caller);
        prop_assert_eq!(plaintext(&mut caller), from_listener);
    }

    #[test]
    fn any_bytes_are_a_channel_or_a_typed_error(bytes in vec(any::<u8>(), 0..3000), lengths in vec(1usize..400, 1..4)) {
        for mut channel in [caller(), listener(), pair().0, pair().1] {
            let _ = give(&mut channel, &bytes, &lengths);
            prop_assert!(plaintext(&mut channel).is_empty());
        }
    }
}

#[test]
fn a_channel_may_move_to_another_thread() {
    fn is_movable<T: Send>(_: &T) {}
    is_movable(&caller());
}
