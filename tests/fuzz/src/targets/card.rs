//! An engine's portable descriptor.

use penstock_session::EngineDescriptor;

/// Bytes before the body and after it.
const HEAD_BYTES: usize = 6;
const CHECKSUM_BYTES: usize = 8;

/// Any bytes are a card or a typed error. What was decoded once encodes to a card that says the same.
pub fn run(input: &[u8]) {
    check(input);
    // A varied card is damaged, and its checksum says so: with a right one its body is looked at too.
    for head in [b"PNSC\x01\0", b"PNSC\x02\0"] {
        if input.len() < HEAD_BYTES + CHECKSUM_BYTES {
            return;
        }
        let mut closed = input.to_vec();
        closed[..HEAD_BYTES].copy_from_slice(head);
        let end = closed.len() - CHECKSUM_BYTES;
        let sum = super::digest(&closed[..end]);
        closed[end..].copy_from_slice(&sum.to_le_bytes());
        check(&closed);
    }
}

/// Decodes one card.
pub fn parse(input: &[u8]) {
    drop(EngineDescriptor::decode(input));
}

fn check(input: &[u8]) {
    if let Ok(card) = EngineDescriptor::decode(input) {
        let bytes = card.encode();
        assert_eq!(EngineDescriptor::decode(&bytes).as_ref(), Ok(&card), "a card changes on its way");
        assert_eq!(card.encode(), bytes, "one card has two encodings");
    }
}
