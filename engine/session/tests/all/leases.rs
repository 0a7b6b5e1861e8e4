//! A source lends, a sink reads, and one of them goes wrong: over the tables of both and the words between them.

use std::time::Duration;

use penstock_core::{Epoch, Timestamp};
use penstock_session::codec::encode;
use penstock_session::control::{Ack, ControlMessage, LeaseVerdict, Renew, TransferHead};
use penstock_session::leases::{GivenBack, LeaseId, Lender, Reader};
use penstock_session::{Decoder, Frame, PeerKey, Side, TransferId};

const TTL: Duration = Duration::from_secs(2);
const LENDER: PeerKey = PeerKey { peer_index: 1, epoch: Epoch(11) };
const READER: PeerKey = PeerKey { peer_index: 2, epoch: Epoch(22) };

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_ns(ms * 1_000_000)
}

/// Over the wire and back.
fn carried(said: ControlMessage) -> ControlMessage {
    let mut bytes = Vec::new();
    encode(&Frame::Control(said), 0, &mut bytes).unwrap();
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    match decoder.next_frame().unwrap().unwrap().frame {
        Frame::Control(said) => said,
        other => panic!("{other:?} came instead"),
    }
}

fn head(side: Side) -> TransferHead {
    TransferHead { transfer: TransferId::from_bytes([7; 16]), side, rank: 0, ranks: 1 }
}

/// The reader says that it is done, and hears whether what it has read is worth anything.
fn acknowledge(lender: &mut Lender, lease: LeaseId, now: Timestamp) -> (bool, GivenBack) {
    let ControlMessage::Ack(Ack { lease: Some(said), .. }) =
        carried(ControlMessage::Ack(Ack { head: head(Side::Sink), lease: Some(lease.0) }))
    else {
        panic!("another word came out")
    };
    let back = lender.give_back(READER, LeaseId(said), now);
    let acked = LeaseVerdict { head: head(Side::Source), lease: said, is_valid: back.is_valid() };
    match carried(ControlMessage::LeaseVerdict(acked)) {
        ControlMessage::LeaseVerdict(acked) => (acked.is_valid, back),
        other => panic!("{other:?} came instead"),
    }
}

/// Both sides look at what is due, and say it. What the lender ends is given out.
fn turn(lender: &mut Lender, reader: &mut Reader, now: Timestamp) -> Vec<LeaseId> {
    let (mut renew, mut over, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    reader.due(now, &mut renew, &mut Vec::new());
    for (to, leases) in renew {
        assert_eq!(to, LENDER);
        let ControlMessage::Renew(renew) =
            carried(ControlMessage::Renew(Renew { leases: leases.iter().map(|lease| lease.0).collect() }))
        else {
            panic!("another word came out")
        };
        let leases: Vec<LeaseId> = renew.leases.into_iter().map(LeaseId).collect();
        lender.renew(READER, &leases, now, &mut over);
    }
    over.into_iter().for_each(|lease| reader.let_go(LENDER, lease));
    lender.expire(now, &mut ended);
    ended.into_iter().map(|(lease, _)| lease).collect()
}

#[test]
fn scenario_10_a_lease_expires_once_and_a_later_read_gets_expired() {
    let (mut lender, mut reader) = (Lender::new(64, 9), Reader::new(64));
    let lease = lender.lend(READER, TTL, ms(0)).unwrap();
    reader.hold(LENDER, lease, TTL, ms(0)).unwrap();
    // Heartbeats come for ten seconds, five times as long as the lease stands by itself.
    let mut now = 0;
    while now < 10_000 {
        assert_eq!(turn(&mut lender, &mut reader, ms(now)), []);
        assert!(!reader.is_over(LENDER, lease, ms(now)));
        now += 50;
    }
    // Then the reader stops. Nothing but the lender's clock ends the lease, once, and not before the reader is quiet it
    // is let go.
    let (mut ends, mut last) = (Vec::new(), 0);
    while now < 20_000 {
        let mut ended = Vec::new();
        lender.expire(ms(now), &mut ended);
        if !ended.is_empty() {
            last = now;
        }
        ends.extend(ended);
        now += 50;
    }
    assert_eq!(ends, [(lease, READER)]);
    assert!(
        (11_300..=12_000 + 100).contains(&last),
        "{last} ms: two seconds after the last renewal, and 100 ms later at most"
    );
    assert_eq!(lender.len(), 1);
    // The reader comes back: it knows that it must not read, and is told so as well.
    assert!(reader.is_over(LENDER, lease, ms(now)));
    assert_eq!(acknowledge(&mut lender, lease, ms(now)), (false, GivenBack::TooLate));
    assert_eq!(acknowledge(&mut lender, lease, ms(now)), (false, GivenBack::Unknown));
    assert!(!lender.quiet(lease) && lender.is_empty(), "it was let go when its reader said that it reads no more");
}

#[test]
fn a_reader_that_is_killed_frees_its_lender_when_it_is_proven_quiet() {
    let (mut lender, mut reader) = (Lender::new(64, 9), Reader::new(64));
    let [lease, other] = [(), ()].map(|()| lender.lend(READER, TTL, ms(0)).unwrap());
    [lease, other].into_iter().for_each(|lease| reader.hold(LENDER, lease, TTL, ms(0)).unwrap());
    assert_eq!(acknowledge(&mut lender, other, ms(10)), (true, GivenBack::InTime));
    assert_eq!(turn(&mut lender, &mut reader, ms(700)), [], "what was given back is not renewed for long");
    assert_eq!(reader.len(), 1);
    lender.peer_gone(READER);
    let mut ended = Vec::new();
    lender.expire(ms(701), &mut ended);
    assert_eq!(ended, [(lease, READER)], "at once, and not after its time");
    assert!(lender.quiet(lease) && lender.is_empty());
}
