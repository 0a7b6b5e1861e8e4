use proptest::prelude::*;

use super::*;

fn causes() -> impl Strategy<Value = Option<Cause>> {
    prop::option::of(prop::sample::select(Cause::ALL))
}

/// A message without borrowed parts, to be written and found again.
#[derive(Debug, Clone)]
enum Said {
    Request(bool, u64, u64, u32, Vec<(u64, u64)>),
    Data(u64, Result<u32, ReadRefusal>),
    Notify(u64, Option<u64>, Option<(u128, Vec<u8>)>),
    Done(u64),
    Refused(u64, Option<Cause>, u64),
    Credit(u64),
}

fn said() -> impl Strategy<Value = Said> {
    let extents = prop::collection::vec((0..u64::MAX / 2, 1u64..4096), 1..=SPANS_PER_POST);
    let note = prop::option::of((any::<u128>(), prop::collection::vec(any::<u8>(), 0..200)));
    prop_oneof![
        (any::<bool>(), any::<u64>(), any::<u64>(), any::<u32>(), extents).prop_map(
            |(write, sequence, transfer, region, extents)| {
                Said::Request(write, sequence, transfer, region, extents)
            }
        ),
        (any::<u64>(), 1u32..4096, causes(), any::<u64>()).prop_map(|(sequence, bytes, cause, revision)| {
            Said::Data(sequence, cause.map_or(Ok(bytes), |cause| Err(ReadRefusal { cause, revision })))
        }),
        (any::<u64>(), prop::option::of(any::<u64>()), note)
            .prop_filter("says something", |(_, counter, note)| counter.is_some() || note.is_some())
            .prop_map(|(sequence, counter, note)| Said::Notify(sequence, counter, note)),
        any::<u64>().prop_map(Said::Done),
        (any::<u64>(), causes(), any::<u64>()).prop_map(|(at, cause, revision)| Said::Refused(at, cause, revision)),
        any::<u64>().prop_map(Said::Credit),
    ]
}

fn counter_of(word: u64) -> CounterRef {
    CounterRef { index: word as u32, generation: (word >> 32) as u32 }
}

fn write(out: &mut Vec<u8>, said: &Said) {
    match said {
        Said::Request(is_write, sequence, transfer, region, extents) => {
            let key = RegionKey { region: RegionId(*region), generation: Generation(7) };
            let asked = Asked { sequence: *sequence, transfer: *transfer, key, revision: 11 };
            put_request(out, *is_write, &asked, extents.iter().copied());
        }
        Said::Data(sequence, bytes) => put_data(out, *sequence, *bytes),
        Said::Notify(sequence, counter, note) => {
            let note = note.as_ref().map(|(id, payload)| Note { id: NoteId(*id), payload });
            put_notification(out, *sequence, 5, counter.map(counter_of), note);
        }
        Said::Done(sequence) => put_done(out, *sequence),
        Said::Refused(sequence, cause, revision) => put_refused(out, *sequence, *cause, *revision),
        Said::Credit(lines) => put_credit(out, *lines),
    }
}

fn is_same(message: &Message<'_>, said: &Said) -> bool {
    match (message, said) {
        (Message::Write(request), Said::Request(true, ..)) | (Message::Read(request), Said::Request(false, ..)) => {
            let Said::Request(_, sequence, transfer, region, extents) = said else { return false };
            request.sequence == *sequence
                && request.transfer == *transfer
                && request.revision == 11
                && request.key == RegionKey { region: RegionId(*region), generation: Generation(7) }
                && request.extents().eq(extents.iter().copied())
                && request.bytes == extents.iter().map(|(_, len)| len).sum::<u64>()
        }
        (Message::Data { sequence, bytes }, Said::Data(at, said)) => sequence == at && bytes == said,
        (Message::Notify { sequence, transfer, counter, note }, Said::Notify(at, count, noted)) => {
            sequence == at
                && *transfer == 5
                && *counter == count.map(counter_of)
                && note.map(|note| (note.id.0, note.payload.to_vec())) == *noted
        }
        (Message::Done { sequence }, Said::Done(at)) => sequence == at,
        (Message::Refused { sequence, cause, revision }, Said::Refused(at, why, until)) => {
            sequence == at && cause == why && revision == until
        }
        (Message::Credit { lines }, Said::Credit(said)) => lines == said,
        _ => false,
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in prop::collection::vec(said(), 1..6)) {
        let mut control = Vec::new();
        all.iter().for_each(|said| write(&mut control, said));
        let read: Result<Vec<_>, _> = Messages::of(&control).collect();
        let read = read.unwrap();
        prop_assert_eq!(read.len(), all.len());
        for (message, said) in read.iter().zip(&all) {
            prop_assert!(is_same(message, said), "{:?} of {:?}", message, said);
        }
        let payload: u64 = read.iter().map(Message::payload_bytes).sum();
        if payload <= PAYLOAD_BYTES_MAX && control.len() <= CONTROL_BYTES_MAX {
            let head = Head::parse(&Head::encode(&control, payload as u32)).unwrap();
            prop_assert_eq!(head.open(&control).unwrap().count(), all.len());
            let other = Head { payload: head.payload ^ 1, ..head };
            prop_assert!(other.open(&control).is_err(), "the head and its messages do not fit");
        }
    }

    #[test]
    fn any_bytes_give_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut found = 0;
        for message in Messages::of(&bytes) {
            found += 1;
            if let Ok(Message::Write(request) | Message::Read(request)) = message {
                prop_assert!(request.bytes <= PAYLOAD_BYTES_MAX);
                prop_assert!(request.extents().all(|(offset, len)| len > 0 && offset.checked_add(len).is_some()));
            }
        }
        prop_assert!(found <= bytes.len() / WORD + 1, "each message takes a word at least");
    }

    #[test]
    fn one_flipped_bit_is_noticed(all in prop::collection::vec(said(), 1..4), place in any::<prop::sample::Index>()) {
        let mut control = Vec::new();
        all.iter().for_each(|said| write(&mut control, said));
        let payload: u64 = Messages::of(&control).map(|message| message.unwrap().payload_bytes()).sum();
        prop_assume!(payload <= PAYLOAD_BYTES_MAX && control.len() <= CONTROL_BYTES_MAX);
        let head = Head::parse(&Head::encode(&control, payload as u32)).unwrap();
        let bit = place.index(control.len() * 8);
        control[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(head.open(&control).is_err());
    }
}

#[test]
fn a_head_out_of_bounds_is_refused() {
    let mut control = Vec::new();
    put_done(&mut control, 3);
    let good = Head::encode(&control, 0);
    assert_eq!(Head::parse(&good).unwrap().control, 16);
    let mut bad = good;
    bad[0] ^= 1;
    assert!(matches!(Head::parse(&bad), Err(TcpWireError::Magic(_))));
    for (place, value) in [(4, 0u32), (4, 15), (4, CONTROL_BYTES_MAX as u32 + 8), (8, PAYLOAD_BYTES_MAX as u32 + 1)] {
        let mut bad = good;
        bad[place..place + 4].copy_from_slice(&value.to_le_bytes());
        assert!(matches!(Head::parse(&bad), Err(TcpWireError::Size { .. })), "{place} {value}");
    }
}
