//! What a peer asks of the owner of memory, in words that it may change at any time.

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Direction, Span};
use penstock_transport::host::bounce::{BounceRequest, REQUEST_WORDS, SLOT_BYTES};

/// Any words are a question or a typed error. Its spans fill a slot from its beginning and never more than it, and
/// what was read is written as the same words, but for what lies behind it.
pub fn run(input: &[u8]) {
    let words = words_of(input);
    let mut spans = [Span { local: 0, remote: 0, len: 0 }; SPANS_PER_POST];
    let Ok((question, count)) = BounceRequest::parse(&words, &mut spans) else { return };
    let mut filled = 0;
    for span in &spans[..count] {
        assert_eq!(span.remote, filled, "the parts of a slot lie apart");
        assert!(span.len > 0 && span.local.checked_add(span.len).is_some(), "a span ends beyond all memory");
        filled += span.len;
    }
    assert!(filled <= SLOT_BYTES, "{filled} bytes are asked of a slot");
    assert!(matches!(question.direction, Direction::Write | Direction::Read));
    // Who asks calls the owner's memory the remote one.
    let asked: Vec<Span> =
        spans[..count].iter().map(|span| Span { remote: span.local, local: span.remote, ..*span }).collect();
    let mut again = [0; REQUEST_WORDS];
    let said = question.encode(&asked, &mut again);
    assert_eq!(said, &words[..said.len()], "a question changes on its way");
}

/// Reads one question.
pub fn parse(input: &[u8]) {
    let mut spans = [Span { local: 0, remote: 0, len: 0 }; SPANS_PER_POST];
    let _ = BounceRequest::parse(&words_of(input), &mut spans);
}

fn words_of(input: &[u8]) -> [u64; REQUEST_WORDS] {
    let mut words = [0; REQUEST_WORDS];
    for (bytes, word) in input.chunks(8).zip(&mut words) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    words
}
