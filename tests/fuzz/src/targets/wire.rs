//! The control blocks of byte streams between hosts.

use penstock_core::limits::NOTE_BYTES_MAX;
use penstock_tcp::wire::{
    Asked, CONTROL_BYTES_MAX, HEAD_BYTES, Head, Message, Messages, PARTS_MAX, PAYLOAD_BYTES_MAX, Request, put_credit,
    put_data, put_done, put_notification, put_refused, put_request,
};

/// Any bytes are a head and messages, or typed errors. What was read is written as the same bytes, so a message has one
/// form only, and a head fits exactly the block that it was made for.
///
/// The input is a whole group without payload: a head, and its control block.
pub fn run(input: &[u8]) {
    check_messages(input);
    let Some((head, control)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
    let payload = check_messages(control);
    if let Ok(head) = Head::parse(head)
        && let Ok(messages) = head.open(control)
    {
        assert_eq!(Some((u64::from(head.payload), true)), payload.map(|(bytes, parts)| (bytes, parts <= PARTS_MAX)));
        assert_eq!(messages.count(), Messages::of(control).count());
        assert_eq!(&Head::encode(control, head.payload), &input[..HEAD_BYTES], "a head changes on its way");
    }
    // Varied bytes are not what their head was made for: with a right one the block behind it is looked at too.
    let Some((bytes, parts)) = payload else { return };
    let is_group =
        !control.is_empty() && control.len() <= CONTROL_BYTES_MAX && bytes <= PAYLOAD_BYTES_MAX && parts <= PARTS_MAX;
    let right = Head::encode(control, bytes as u32);
    let opened = Head::parse(&right).and_then(|head| head.open(control).map(Iterator::count));
    assert_eq!(opened.is_ok(), is_group, "{opened:?} of {bytes} bytes in {parts} parts");
    if is_group {
        let wrong = Head::encode(control, bytes as u32 ^ 1);
        assert!(Head::parse(&wrong).and_then(|head| head.open(control).map(drop)).is_err(), "payload nobody carries");
    }
}

/// Reads a group.
pub fn parse(input: &[u8]) {
    Messages::of(input).for_each(drop);
    let Some((head, control)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
    if let Ok(head) = Head::parse(head)
        && let Ok(messages) = head.open(control)
    {
        messages.for_each(drop);
    }
}

/// Reads messages and writes them again. Answers the bytes of payload that go with them, in how many parts, if all
/// of them are messages.
fn check_messages(control: &[u8]) -> Option<(u64, usize)> {
    let (mut again, mut bytes, mut parts, mut is_whole) = (Vec::new(), 0u64, 0, true);
    for message in Messages::of(control) {
        assert!(is_whole, "something comes after an error");
        let Ok(message) = message else {
            is_whole = false;
            continue;
        };
        bytes += message.payload_bytes();
        parts += usize::from(message.payload_bytes() > 0);
        write(&message, &mut again);
    }
    assert_eq!(again, control[..again.len()], "a message changes on its way");
    assert!(!is_whole || again.len() == control.len(), "bytes are passed over");
    is_whole.then_some((bytes, parts))
}

fn write(message: &Message<'_>, out: &mut Vec<u8>) {
    match *message {
        Message::Write(request) => write_request(true, &request, out),
        Message::Read(request) => write_request(false, &request, out),
        Message::Data { sequence, bytes } => put_data(out, sequence, bytes),
        Message::Notify { sequence, transfer, counter, note } => {
            assert!(counter.is_some() || note.is_some(), "nothing is announced");
            assert!(note.is_none_or(|note| note.payload.len() <= NOTE_BYTES_MAX));
            put_notification(out, sequence, transfer, counter, note);
        }
        Message::Done { sequence } => put_done(out, sequence),
        Message::Refused { sequence, cause, revision } => put_refused(out, sequence, cause, revision),
        Message::Credit { lines } => put_credit(out, lines),
    }
}

fn write_request(is_write: bool, request: &Request<'_>, out: &mut Vec<u8>) {
    let mut bytes = 0;
    for (offset, len) in request.extents() {
        assert!(len > 0 && offset.checked_add(len).is_some(), "an extent ends beyond all memory");
        bytes += len;
    }
    assert_eq!(bytes, request.bytes);
    assert!(bytes <= PAYLOAD_BYTES_MAX);
    let Request { sequence, transfer, key, revision, .. } = *request;
    put_request(out, is_write, &Asked { sequence, transfer, key, revision }, request.extents());
}
