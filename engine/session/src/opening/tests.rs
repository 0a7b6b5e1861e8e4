use super::*;

fn key(byte: u8) -> StreamKey {
    StreamKey::derive(&[byte; 32])
}

fn open(bytes: &[u8]) -> Result<Option<(Opening, &[u8])>, OpeningError> {
    OpeningDecoder::new().push(bytes)
}

#[test]
fn an_opening_says_what_a_connection_is_for_and_leaves_the_rest() {
    let bytes = [channel_opening().as_slice(), b"rest"].concat();
    assert_eq!(open(&bytes), Ok(Some((Opening::Channel { version: 1 }, b"rest".as_slice()))));
    let token = key(1).token(7);
    let bytes = [token.encode().as_slice(), b"data"].concat();
    assert_eq!(open(&bytes), Ok(Some((Opening::Stream(token), b"data".as_slice()))));
    assert_eq!(StreamToken::decode(&token.encode()), Ok(token));
}

#[test]
fn an_opening_may_come_in_any_pieces() {
    for bytes in [channel_opening().to_vec(), key(3).token(u16::MAX).encode().to_vec()] {
        let whole = open(&bytes).unwrap().unwrap().0;
        for cut in 0..bytes.len() {
            let mut decoder = OpeningDecoder::new();
            assert_eq!(decoder.push(&bytes[..cut]), Ok(None), "{cut}");
            assert_eq!(decoder.push(&bytes[cut..]), Ok(Some((whole, [].as_slice()))), "{cut}");
        }
    }
}

#[test]
fn a_stranger_is_refused_at_its_first_wrong_byte() {
    assert_eq!(open(b"G"), Err(OpeningError::Magic(0)));
    assert_eq!(open(b"PNSK"), Err(OpeningError::Magic(3)), "the frames of one host are not spoken here");
    assert_eq!(open(b"PNSN\x02\0"), Err(OpeningError::Version(2)));
    assert_eq!(open(b"PNSD\0\0"), Err(OpeningError::Version(0)));
    assert_eq!(open(b"PNSN\x01\0\x01"), Err(OpeningError::Reserved));
    assert_eq!(open(b"PNSN\x01\0\0\x01"), Err(OpeningError::Reserved));
    assert!(matches!(open(b"PNSD\x01\0\x01\x01"), Ok(None)), "a stream has its number there");
    let mut not_a_stream = [0; STREAM_OPENING_BYTES];
    not_a_stream[..8].copy_from_slice(&channel_opening());
    assert_eq!(StreamToken::decode(&not_a_stream), Err(OpeningError::Magic(3)));
}

#[test]
fn a_token_fits_its_own_session_and_stream_only() {
    let (ours, other) = (key(1), key(2));
    assert_ne!(ours.session_id(), other.session_id());
    assert_eq!(ours.session_id(), key(1).session_id());
    let token = ours.token(3);
    assert!(key(1).verify(&token));
    assert!(!other.verify(&token) && !other.verify(&StreamToken { session: other.session_id(), ..token }));
    assert_ne!(token.mac, ours.token(4).mac);
    let bytes = token.encode();
    for place in 6 * 8..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[place / 8] ^= 1 << (place % 8);
        assert!(!ours.verify(&StreamToken::decode(&flipped).unwrap()), "bit {place}");
    }
}

#[test]
fn a_key_is_not_shown() {
    let shown = format!("{:?}", key(9));
    assert!(shown.contains("session") && !shown.contains("key:"), "{shown}");
}

#[test]
fn a_refusal_comes_out_as_it_went_in() {
    for number in 0..10 {
        let refusal = Refusal::new(OpeningCode::of(number), format!("code {number}: größer"));
        assert_eq!(refusal.code.number(), number);
        assert!(!refusal.code.advice().is_empty());
        assert_eq!(Refusal::decode(&refusal.encode()), Ok(refusal));
    }
}

#[test]
fn long_words_are_cut_between_characters() {
    let long = Refusal::new(OpeningCode::Busy, format!("a{}", "ö".repeat(200)));
    let bytes = long.encode();
    assert_eq!(bytes.len(), REFUSAL_BYTES_MAX - 1);
    assert_eq!(Refusal::decode(&bytes).unwrap().text, format!("a{}", "ö".repeat(127)));
}

#[test]
fn what_is_no_refusal_is_told() {
    let bytes = Refusal::new(OpeningCode::WrongSecret, "no").encode();
    assert_eq!(Refusal::decode(&bytes[..9]), Err(RefusalError::Length));
    assert_eq!(Refusal::decode(&[bytes.as_slice(), b"!"].concat()), Err(RefusalError::Length));
    assert_eq!(Refusal::decode(b"PNSN\x01\0\0\0"), Err(RefusalError::Magic));
    assert_eq!(Refusal::decode(b"PNSR\x01\0\x01\x01"), Err(RefusalError::TooLong(257)));
    assert_eq!(Refusal::decode(b"PNSR\x01\0\x01\0\xff"), Err(RefusalError::Text));
    assert_eq!(Refusal::decode(b""), Err(RefusalError::Length));
}
