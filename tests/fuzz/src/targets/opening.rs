//! The first bytes of a connection between hosts, and the refusal that may come back.

use penstock_session::opening::{REFUSAL_BYTES_MAX, channel_opening};
use penstock_session::{Opening, OpeningDecoder, OpeningError, Refusal, StreamKey};

/// Any bytes open something, are the beginning of an opening, or are a typed error; however they are cut they
/// are the same. What was read is written as the same bytes, and no token fits a key it was not made with.
pub fn run(input: &[u8]) {
    let mut decoder = OpeningDecoder::new();
    let whole = decoder.push(input).map(|opened| opened.map(|(opening, rest)| (opening, rest.len())));
    assert_eq!(whole, in_pieces(input), "cutting the stream changes what it opens");
    if let Ok(Some((opening, rest))) = whole {
        let bytes = match opening {
            Opening::Channel { .. } => channel_opening().to_vec(),
            Opening::Stream(token) => token.encode().to_vec(),
        };
        assert_eq!(bytes, input[..input.len() - rest], "an opening changes on its way");
        if let Opening::Stream(token) = opening {
            let key = StreamKey::derive(&KEY);
            let is_made_here = token == key.token(token.index);
            assert_eq!(key.verify(&token), is_made_here, "a token is taken for another");
        }
    }
    if let Ok(refusal) = Refusal::decode(input) {
        assert!(input.len() <= REFUSAL_BYTES_MAX);
        assert_eq!(refusal.encode(), input, "a refusal changes on its way");
    }
}

/// What the corpus makes its tokens of.
pub const KEY: [u8; 32] = [0x77; 32];

/// Reads an opening and a refusal.
pub fn parse(input: &[u8]) {
    let _ = OpeningDecoder::new().push(input);
    drop(Refusal::decode(input));
}

fn in_pieces(input: &[u8]) -> Result<Option<(Opening, usize)>, OpeningError> {
    let mut decoder = OpeningDecoder::new();
    let mut left = input.len();
    for piece in super::cut(input) {
        left -= piece.len();
        if let Some((opening, rest)) = decoder.push(piece)? {
            return Ok(Some((opening, left + rest.len())));
        }
    }
    Ok(None)
}
