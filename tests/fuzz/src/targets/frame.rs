//! The bootstrap channel's frames.

use std::mem::discriminant;

use penstock_core::limits::{FRAME_BYTES_MAX, FRAME_TOKENS_MAX};
use penstock_session::codec::{Received, encode};
use penstock_session::{Decoder, WireError};

/// What a stream came to: its frames, and the error that ended it, if one did.
type Decoded = (Vec<Received>, Option<WireError>);

/// Any bytes are frames, the beginning of one, or a typed error; however they are cut, they are the
/// same. What was decoded once encodes to bytes that say the same again.
pub fn run(input: &[u8]) {
    let whole = decode([input].into_iter());
    let pieces = decode(super::cut(input).into_iter());
    assert_eq!(whole.0, pieces.0, "cutting the stream changes its frames");
    assert_eq!(whole.1.as_ref().map(discriminant), pieces.1.as_ref().map(discriminant), "cutting changes its end");
    for received in &whole.0 {
        assert!(received.tokens <= FRAME_TOKENS_MAX);
        let mut bytes = Vec::new();
        encode(&received.frame, received.tokens, &mut bytes).expect("a frame that came fits into a frame");
        assert!(bytes.len() <= FRAME_BYTES_MAX);
        let (again, end) = decode([bytes.as_slice()].into_iter());
        assert_eq!((again.as_slice(), end), (std::slice::from_ref(received), None), "a frame changes on its way");
        let mut twice = Vec::new();
        encode(&again[0].frame, again[0].tokens, &mut twice).expect("as above");
        assert_eq!(bytes, twice, "one frame has two encodings");
    }
}

/// Decodes a stream that comes at once.
pub fn parse(input: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.push(input);
    while let Ok(Some(received)) = decoder.next_frame() {
        drop(received);
    }
}

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Decoded {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(received)) => frames.push(received),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
