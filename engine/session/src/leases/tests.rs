use penstock_core::Epoch;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_millis(300);

fn peer(peer_index: u32) -> PeerKey {
    PeerKey { peer_index, epoch: Epoch(1) }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_ns(ms * 1_000_000)
}

fn ended(lender: &mut Lender, now: Timestamp) -> Vec<LeaseId> {
    let mut out = Vec::new();
    lender.expire(now, &mut out);
    out.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_lease_stands_as_long_as_it_is_renewed_and_ends_once() {
    let mut lender = Lender::new(8, 77);
    let id = lender.lend(peer(1), TTL, at(0)).unwrap();
    let (mut over, mut out) = (Vec::new(), Vec::new());
    lender.renew(peer(1), &[id], at(200), &mut over);
    assert_eq!((lender.expire(at(499), &mut out), out.len(), over.len()), (Some(at(500)), 0, 0));
    assert_eq!((lender.expire(at(500), &mut out), out.clone()), (None, vec![(id, peer(1))]));
    assert_eq!(ended(&mut lender, at(900)), [], "told once");
    assert_eq!((lender.state(id), lender.len()), (Some(Lease::Expiring), 1), "kept until its reader is quiet");
    assert!(lender.quiet(id));
    assert!(!lender.quiet(id), "let go once");
    assert_eq!(lender.give_back(peer(1), id, at(901)), GivenBack::Unknown);
    assert!(lender.is_empty());
}

#[test]
fn what_is_late_is_late_before_anybody_has_looked() {
    let mut lender = Lender::new(8, 0);
    let [first, second] = [0, 1].map(|_| lender.lend(peer(1), TTL, at(0)).unwrap());
    let mut over = Vec::new();
    lender.renew(peer(1), &[first], at(300), &mut over);
    assert_eq!(over, [first], "a renewal that comes too late renews nothing");
    assert_eq!(lender.give_back(peer(1), second, at(300)), GivenBack::TooLate);
    assert_eq!(lender.give_back(peer(1), second, at(300)), GivenBack::Unknown);
    assert_eq!(ended(&mut lender, at(300)), [first]);
}

#[test]
fn what_is_given_back_in_time_is_let_go_at_once_and_not_again() {
    let mut lender = Lender::new(8, 0);
    let [first, second] = [0, 1].map(|_| lender.lend(peer(1), TTL, at(0)).unwrap());
    let back = lender.give_back(peer(1), first, at(299));
    assert!(back.is_valid() && back.frees());
    assert_eq!(ended(&mut lender, at(300)), [second]);
    let late = lender.give_back(peer(1), second, at(310));
    assert!(!late.is_valid() && late.frees(), "its reader says itself that it reads no more");
    assert!(!lender.quiet(second), "it was let go");
    assert!(!GivenBack::Unknown.is_valid() && !GivenBack::Unknown.frees());
}

#[test]
fn nobody_gives_back_or_renews_anothers_lease() {
    let mut lender = Lender::new(8, 0);
    let id = lender.lend(peer(1), TTL, at(0)).unwrap();
    let other_life = PeerKey { epoch: Epoch(2), ..peer(1) };
    for other in [peer(2), other_life] {
        let mut over = Vec::new();
        lender.renew(other, &[id], at(200), &mut over);
        assert_eq!((over, lender.give_back(other, id, at(1))), (vec![id], GivenBack::Unknown));
        lender.peer_gone(other);
    }
    assert!(!lender.quiet(id), "it stands: nobody has asked whether its reader is quiet");
    assert_eq!((ended(&mut lender, at(299)), ended(&mut lender, at(300))), (vec![], vec![id]));
}

#[test]
fn a_reader_that_is_gone_ends_its_leases_now_and_no_others() {
    let mut lender = Lender::new(8, 0);
    let gone = lender.lend(peer(1), TTL, at(0)).unwrap();
    let other = lender.lend(peer(2), TTL, at(0)).unwrap();
    lender.peer_gone(peer(1));
    lender.peer_gone(peer(1));
    assert_eq!(ended(&mut lender, at(1)), [gone]);
    assert!(lender.quiet(gone));
    assert_eq!(ended(&mut lender, at(300)), [other]);
}

#[test]
fn names_are_not_used_again_and_there_are_only_so_many_leases() {
    let mut lender = Lender::new(2, u64::MAX);
    let first = lender.lend(peer(1), TTL, at(0)).unwrap();
    let second = lender.lend(peer(1), TTL, at(0)).unwrap();
    assert_eq!(lender.lend(peer(2), TTL, at(0)), Err(LeaseError::Full { most: 2 }));
    lender.give_back(peer(1), first, at(0));
    let third = lender.lend(peer(1), TTL, at(0)).unwrap();
    assert!(third != first && third != second);
}

#[test]
fn a_reader_renews_all_leases_of_a_lender_together() {
    let mut reader = Reader::new(10_000);
    let (mut renew, mut over) = (Vec::new(), Vec::new());
    reader.hold(peer(1), LeaseId(1), TTL, at(0)).unwrap();
    reader.hold(peer(1), LeaseId(2), TTL, at(50)).unwrap();
    reader.hold(peer(2), LeaseId(1), TTL, at(60)).unwrap();
    reader.hold(peer(1), LeaseId(1), TTL, at(90)).unwrap();
    assert_eq!(reader.due(at(99), &mut renew, &mut over), Some(at(100)));
    assert_eq!(reader.due(at(100), &mut renew, &mut over), Some(at(160)));
    assert_eq!(renew, [(peer(1), vec![LeaseId(1), LeaseId(2)])]);
    renew.clear();
    assert_eq!(reader.due(at(160), &mut renew, &mut over), Some(at(200)));
    assert_eq!((renew, over), (vec![(peer(2), vec![LeaseId(1)])], vec![]));
}

#[test]
fn a_frame_carries_so_many_renewals_and_more_go_in_more() {
    let mut reader = Reader::new(10_000);
    (0..LEASES_MAX as u64 + 1).for_each(|id| reader.hold(peer(1), LeaseId(id), TTL, at(0)).unwrap());
    let mut renew = Vec::new();
    reader.due(at(100), &mut renew, &mut Vec::new());
    let counts: Vec<usize> = renew.iter().map(|(_, leases)| leases.len()).collect();
    assert_eq!(counts, [LEASES_MAX, 1]);
}

#[test]
fn a_reader_that_slept_knows_that_its_leases_are_over() {
    let mut reader = Reader::new(1);
    reader.hold(peer(1), LeaseId(1), TTL, at(0)).unwrap();
    assert_eq!(reader.hold(peer(1), LeaseId(2), TTL, at(0)), Err(LeaseError::Full { most: 1 }));
    assert!(!reader.is_over(peer(1), LeaseId(1), at(299)) && reader.is_over(peer(1), LeaseId(1), at(300)));
    let (mut renew, mut over) = (Vec::new(), Vec::new());
    assert_eq!(reader.due(at(400), &mut renew, &mut over), None);
    assert_eq!((renew.len(), over), (0, vec![(peer(1), LeaseId(1))]));
    assert!(reader.is_empty() && reader.is_over(peer(1), LeaseId(1), at(0)));
}

#[test]
fn what_is_not_held_any_more_is_not_renewed() {
    let mut reader = Reader::new(8);
    (1..=3).for_each(|id| reader.hold(peer(id), LeaseId(9), TTL, at(0)).unwrap());
    reader.let_go(peer(1), LeaseId(9));
    reader.peer_gone(peer(2));
    let mut renew = Vec::new();
    reader.due(at(100), &mut renew, &mut Vec::new());
    assert_eq!((renew, reader.len()), (vec![(peer(3), vec![LeaseId(9)])], 1));
}

#[test]
fn a_lease_of_no_time_keeps_nobody_busy() {
    let mut reader = Reader::new(8);
    reader.hold(peer(1), LeaseId(1), Duration::ZERO, at(0)).unwrap();
    assert_eq!(reader.due(at(0), &mut Vec::new(), &mut Vec::new()), Some(at(10)));
    let mut over = Vec::new();
    assert_eq!((reader.due(at(10), &mut Vec::new(), &mut over), over.len()), (None, 1));
}

#[derive(Debug, Clone)]
enum Deed {
    Lend { peer_index: u32, ttl: u64 },
    Renew { lease: usize, peer_index: u32 },
    GiveBack { lease: usize, peer_index: u32 },
    Gone { peer_index: u32 },
    Quiet { lease: usize },
    Look,
    Pass { ms: u64 },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        2 => (0..3_u32, 1..100_u64).prop_map(|(peer_index, ttl)| Deed::Lend { peer_index, ttl }),
        3 => (0..12_usize, 0..3_u32).prop_map(|(lease, peer_index)| Deed::Renew { lease, peer_index }),
        2 => (0..12_usize, 0..3_u32).prop_map(|(lease, peer_index)| Deed::GiveBack { lease, peer_index }),
        1 => (0..3_u32).prop_map(|peer_index| Deed::Gone { peer_index }),
        2 => (0..12_usize).prop_map(|lease| Deed::Quiet { lease }),
        2 => Just(Deed::Look),
        4 => (1..60_u64).prop_map(|ms| Deed::Pass { ms }),
    ]
}

/// A lease in the model.
#[derive(Debug, Clone)]
struct Known {
    id: LeaseId,
    peer_index: u32,
    ttl: u64,
    until: u64,
    is_ended: bool,
    is_told: bool,
    is_free: bool,
}

proptest! {
    /// Whatever happens: a lease ends when the lender's clock says so or its reader is gone, that is told once, and
    /// what was lent is let go once, never while the reader may read.
    #[test]
    fn the_lender_does_what_a_list_would(deeds in vec(deed(), 0..120), base: u64) {
        let mut lender = Lender::new(5, base);
        let mut known: Vec<Known> = Vec::new();
        let mut now = 0;
        for deed in deeds {
            match deed {
                Deed::Lend { peer_index, ttl } => {
                    let found = lender.lend(peer(peer_index), Duration::from_millis(ttl), at(now));
                    if known.iter().filter(|lease| !lease.is_free).count() >= 5 {
                        prop_assert_eq!(found, Err(LeaseError::Full { most: 5 }));
                        continue;
                    }
                    let id = found.unwrap();
                    prop_assert!(known.iter().all(|lease| lease.id != id));
                    let (is_ended, is_told, is_free) = (false, false, false);
                    known.push(Known { id, peer_index, ttl, until: now + ttl, is_ended, is_told, is_free });
                }
                Deed::Renew { lease, peer_index } => {
                    let Some(lease) = known.get_mut(lease) else { continue };
                    let mut over = Vec::new();
                    lender.renew(peer(peer_index), &[lease.id], at(now), &mut over);
                    let stands = !lease.is_free && !lease.is_ended && lease.peer_index == peer_index && now < lease.until;
                    prop_assert_eq!(over.is_empty(), stands);
                    if stands {
                        lease.until = now + lease.ttl;
                    }
                }
                Deed::GiveBack { lease, peer_index } => {
                    let Some(lease) = known.get_mut(lease) else { continue };
                    let found = lender.give_back(peer(peer_index), lease.id, at(now));
                    if lease.is_free || lease.peer_index != peer_index {
                        prop_assert_eq!(found, GivenBack::Unknown);
                        continue;
                    }
                    let stands = !lease.is_ended && now < lease.until;
                    prop_assert_eq!(found, if stands { GivenBack::InTime } else { GivenBack::TooLate });
                    lease.is_free = true;
                }
                Deed::Gone { peer_index } => {
                    lender.peer_gone(peer(peer_index));
                    known.iter_mut().filter(|lease| lease.peer_index == peer_index).for_each(|lease| lease.is_ended = true);
                }
                Deed::Quiet { lease } => {
                    let Some(lease) = known.get_mut(lease) else { continue };
                    prop_assert_eq!(lender.quiet(lease.id), lease.is_ended && !lease.is_free);
                    lease.is_free |= lease.is_ended;
                }
                Deed::Look => {
                    let mut out = Vec::new();
                    let next = lender.expire(at(now), &mut out);
                    known.iter_mut().filter(|lease| lease.until <= now).for_each(|lease| lease.is_ended = true);
                    let mut expected = Vec::new();
                    for lease in known.iter_mut().filter(|lease| lease.is_ended && !lease.is_free && !lease.is_told) {
                        lease.is_told = true;
                        expected.push((lease.id, peer(lease.peer_index)));
                    }
                    out.sort();
                    expected.sort();
                    prop_assert_eq!(out, expected);
                    let standing = known.iter().filter(|lease| !lease.is_ended && !lease.is_free);
                    prop_assert_eq!(next, standing.map(|lease| at(lease.until)).min());
                }
                Deed::Pass { ms } => now += ms,
            }
            prop_assert_eq!(lender.len(), known.iter().filter(|lease| !lease.is_free).count());
        }
    }

    /// Two clocks with an offset and different speeds, and words that take their time: a lease that both sides keep
    /// alive stays alive, and once the reader falls silent it ends by the lender's clock alone.
    #[test]
    fn only_the_lenders_clock_ends_a_lease(
        offset in 0..1_000_000_u64,
        speed in 900..1100_u64,
        delays in vec(0..60_u64, 1..20),
        silent_after in 500..3000_u64,
    ) {
        let mut lender = Lender::new(8, 1);
        let mut reader = Reader::new(8);
        let theirs = |ms: u64| Timestamp::from_ns(offset + ms * speed * 1000);
        let id = lender.lend(peer(1), TTL, at(0)).unwrap();
        let mut arrivals: Vec<u64> = Vec::new();
        let (mut last_renewal, mut held) = (0, false);
        for ms in 0..4000 {
            if ms == delays[0] {
                held = true;
                reader.hold(peer(2), id, TTL, theirs(ms)).unwrap();
            }
            let mut renew = Vec::new();
            if held && ms < silent_after {
                reader.due(theirs(ms), &mut renew, &mut Vec::new());
            }
            arrivals.extend(renew.iter().map(|_| ms + delays[ms as usize % delays.len()]));
            for _ in arrivals.extract_if(.., |arrival| *arrival == ms) {
                let mut over = Vec::new();
                lender.renew(peer(1), &[id], at(ms), &mut over);
                prop_assert_eq!(over.is_empty(), ms < last_renewal + 300);
                last_renewal = if over.is_empty() { ms } else { last_renewal };
            }
            let found = ended(&mut lender, at(ms));
            prop_assert_eq!(!found.is_empty(), ms == last_renewal + 300);
            prop_assert!(found.is_empty() || ms >= silent_after, "renewals come every 100 ms and a bit");
        }
        prop_assert_eq!(lender.state(id), Some(Lease::Expiring));
    }
}
