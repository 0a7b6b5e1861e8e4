//! What the two ends of a rail between cards say to each other: messages, immediates, and words about a queue that has ended.

use penstock_core::limits::{COUNTERS_MAX, NOTE_BYTES_MAX};
use penstock_verbs::adapter::{ASKING_BYTES, Token};
use penstock_verbs::ended::QueueEnded;
use penstock_verbs::message::{
    Body, HEAD_BYTES, Immediate, MESSAGE_BYTES_MAX, NOTIFICATIONS, Says, encode, parse as parse_message,
};

/// Any bytes are a message, or a typed error, and so they are with a head that is right. What was read is written as the same bytes,
/// so nothing has two forms.
pub fn run(input: &[u8]) {
    check_message(input);
    // Varied bytes seldom begin as a message does: with a head that does, what it says is looked at too.
    if let Some((&kind, rest)) = input.split_first() {
        let mut righted = vec![0; HEAD_BYTES];
        (righted[0], righted[1]) = (1, kind % 8);
        righted.extend(rest);
        check_message(&righted);
    }
    if let Some(bits) = input.first_chunk() {
        let bits = u32::from_le_bytes(*bits);
        if let Ok(immediate) = Immediate::parse(bits) {
            assert_eq!(immediate.encode(), bits, "an immediate changes on its way");
            let (Says::Count(value) | Says::Mark(value)) = immediate.says;
            assert!(usize::from(value) < COUNTERS_MAX && value < NOTIFICATIONS);
        }
    }
    if let Some(token) = Token::asked(input) {
        let (said, zeros) = input.split_at(ASKING_BYTES);
        assert_eq!(token.asking(), said, "a call changes on its way");
        assert!(zeros.iter().all(|byte| *byte == 0), "a call says more than its token");
    }
    if let Ok(ended) = QueueEnded::parse(input) {
        assert_eq!(ended.encode(), input, "words change on their way");
        assert!(ended.queue < 1 << 24 && ended.first_packet < 1 << 24, "cards have no such numbers");
    }
}

/// Reads all of them.
pub fn parse(input: &[u8]) {
    let _ = parse_message(input);
    let _ = QueueEnded::parse(input);
    let _ = Token::asked(input);
}

fn check_message(input: &[u8]) {
    let Ok((head, body)) = parse_message(input) else { return };
    if let Body::Notify(announcement) = body {
        assert!(announcement.counter.is_some() || announcement.note.is_some(), "nothing is announced");
        assert!(announcement.counter.is_none_or(|counter| (counter.index as usize) < COUNTERS_MAX));
        assert!(announcement.note.is_none_or(|note| note.payload.len() <= NOTE_BYTES_MAX));
    }
    let mut again = [0; MESSAGE_BYTES_MAX];
    let bytes = encode(&head, &body, &mut again);
    assert_eq!(&again[..bytes], input, "a message changes on its way");
}
