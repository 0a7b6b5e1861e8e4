use std::collections::BTreeMap;

use penstock_core::Epoch;
use proptest::prelude::*;

use super::*;

fn peer(peer_index: u32, epoch: u64) -> PeerKey {
    PeerKey { peer_index, epoch: Epoch(epoch) }
}

fn sealed(ranks: u16) -> Places {
    let mut places = Places::new(ranks);
    for rank in 0..ranks {
        places.claim(rank, ranks, peer(rank.into(), 1), false).unwrap();
        for event in [PlaceEvent::Begin, PlaceEvent::LastLanded] {
            assert!(matches!(places.here(rank, event), Ok(Step::Go(_))));
        }
    }
    places
}

#[test]
fn a_rank_that_answers_twice_is_one_answer() {
    let mut places = sealed(4);
    assert_eq!(places.on(0, peer(0, 1), PlaceEvent::Ack), Ok(Step::Go(Place::Acked)));
    for _ in 0..3 {
        assert_eq!(places.on(0, peer(0, 1), PlaceEvent::Ack), Ok(Step::Stay));
    }
    assert_eq!((places.outstanding(), places.all_are(Place::is_end)), (3, false));
    (1..4).for_each(|rank| assert!(places.on(rank, peer(rank.into(), 1), PlaceEvent::Ack).is_ok()));
    assert_eq!((places.outstanding(), places.all_are(|place| place == Place::Acked)), (0, true));
}

#[test]
fn only_who_has_claimed_a_rank_speaks_for_it() {
    let mut places = Places::new(2);
    assert_eq!(places.on(0, peer(1, 1), PlaceEvent::Ack), Err(PlaceError::NotYours { rank: 0 }));
    assert_eq!(places.claim(0, 2, peer(1, 1), false), Ok(Step::Go(Place::Granted)));
    assert_eq!(places.claim(0, 2, peer(1, 1), false), Ok(Step::Stay));
    let before = places.clone();
    for other in [peer(1, 2), peer(2, 1)] {
        assert_eq!(places.claim(0, 2, other, true), Err(PlaceError::Claimed { rank: 0, by: peer(1, 1) }));
        assert_eq!(places.on(0, other, PlaceEvent::Abort), Err(PlaceError::NotYours { rank: 0 }));
    }
    assert_eq!(places.claim(2, 2, peer(1, 1), false), Err(PlaceError::NoSuchRank { rank: 2, ranks: 2 }));
    assert_eq!(places.claim(1, 3, peer(1, 1), false), Err(PlaceError::Disagrees { here: 2, there: 3 }));
    assert_eq!(places.here(2, PlaceEvent::Late), Err(PlaceError::NoSuchRank { rank: 2, ranks: 2 }));
    assert_eq!((places.state(2), places.peer(2)), (None, None));
    assert_eq!(places, before, "what is refused changes nothing");
}

#[test]
fn one_process_may_be_several_ranks() {
    let mut places = Places::new(3);
    for rank in [0, 2] {
        places.claim(rank, 3, peer(1, 1), false).unwrap();
    }
    places.claim(1, 3, peer(2, 1), false).unwrap();
    assert_eq!(places.of_peer(peer(1, 1)).collect::<Vec<u16>>(), [0, 2]);
    assert_eq!(places.of_peer(peer(1, 2)).count(), 0);
}

#[test]
fn a_lost_rank_is_taken_over_by_who_resumes_and_by_nobody_else() {
    let mut places = sealed(1);
    assert_eq!(places.here(0, PlaceEvent::Lose), Ok(Step::Go(Place::Lost)));
    assert_eq!(places.claim(0, 1, peer(5, 2), false), Err(PlaceError::Claimed { rank: 0, by: peer(0, 1) }));
    assert_eq!(places.claim(0, 1, peer(5, 2), true), Ok(Step::Go(Place::Resuming)));
    assert_eq!(places.on(0, peer(0, 1), PlaceEvent::Ack), Err(PlaceError::NotYours { rank: 0 }));
    assert_eq!(places.on(0, peer(5, 2), PlaceEvent::Ack), Ok(Step::Go(Place::Acked)), "it had everything already");
}

#[test]
fn a_session_is_followed_by_another_only_when_it_is_over() {
    let mut places = sealed(1);
    assert!(!places.follow(0, peer(5, 1)), "its session stands");
    places.here(0, PlaceEvent::Lose).unwrap();
    assert_eq!(places.claim(0, 1, peer(0, 1), false), Err(PlaceError::Lost { rank: 0 }), "grants of before are over");
    assert!(places.follow(0, peer(5, 1)) && !places.follow(1, peer(5, 1)));
    assert_eq!(places.on(0, peer(0, 1), PlaceEvent::Ack), Err(PlaceError::NotYours { rank: 0 }));
    assert_eq!(places.state(0), Some(Place::Lost), "who speaks for it again has not said that it goes on");
    assert_eq!(places.on(0, peer(5, 1), PlaceEvent::Ack), Ok(Step::Go(Place::Acked)), "the word of before was lost");
    assert_eq!(places.outstanding(), 0);
}

#[test]
fn a_place_that_failed_unclaimed_stays_so_and_whoever_comes_first_is_answered() {
    let mut places = Places::new(1);
    assert_eq!(places.here(0, PlaceEvent::Late), Ok(Step::Go(Place::Failed)));
    assert_eq!(places.claim(0, 1, peer(1, 1), false), Ok(Step::Stay));
    assert_eq!((places.peer(0), places.outstanding()), (Some(peer(1, 1)), 0));
    assert_eq!(places.state(0), Some(Place::Failed));
    assert_eq!(places.claim(0, 1, peer(2, 1), false), Err(PlaceError::Claimed { rank: 0, by: peer(1, 1) }));
}

#[test]
fn bytes_that_may_still_move_hold_the_end_back() {
    let mut places = Places::new(1);
    places.claim(0, 1, peer(1, 1), false).unwrap();
    places.here(0, PlaceEvent::Begin).unwrap();
    assert_eq!(places.on(0, peer(1, 1), PlaceEvent::Abort), Ok(Step::Go(Place::Aborting)));
    assert_eq!(places.here(0, PlaceEvent::Late), Ok(Step::Stay));
    assert_eq!(places.outstanding(), 1);
    assert_eq!(places.here(0, PlaceEvent::Drained), Ok(Step::Go(Place::Failed)));
    assert_eq!(places.here(0, PlaceEvent::Drained), Ok(Step::Stay));
    assert_eq!(places.outstanding(), 0);
}

#[test]
fn an_answer_that_is_quicker_than_the_end_of_the_move_is_kept() {
    let mut places = Places::new(1);
    places.claim(0, 1, peer(1, 1), false).unwrap();
    places.here(0, PlaceEvent::Begin).unwrap();
    assert_eq!(places.on(0, peer(1, 1), PlaceEvent::Ack), Ok(Step::Go(Place::Answered)));
    for event in [PlaceEvent::Late, PlaceEvent::Lose, PlaceEvent::Fault] {
        assert_eq!(places.here(0, event), Ok(Step::Stay), "the sink has everything, whatever happens now");
    }
    assert_eq!((places.outstanding(), places.here(0, PlaceEvent::LastLanded)), (1, Ok(Step::Go(Place::Acked))));
    assert_eq!(places.outstanding(), 0);
}

proptest! {
    /// Against a model that keeps of each rank who has it and whether it has ended.
    #[test]
    fn every_rank_ends_once_and_only_by_its_own_peer(
        ranks in 1..5_u16,
        deeds in prop::collection::vec((0..6_u16, 0..3_u32, 0..2_u64, 0..PlaceEvent::ALL.len() + 2), 0..200),
    ) {
        let mut places = Places::new(ranks);
        let mut owners: BTreeMap<u16, PeerKey> = BTreeMap::new();
        let mut ends: BTreeMap<u16, Place> = BTreeMap::new();
        for (rank, peer_index, epoch, what) in deeds {
            let (who, before) = (peer(peer_index, epoch), places.clone());
            let is_theirs = owners.get(&rank) == Some(&who);
            let found = match PlaceEvent::ALL.get(what) {
                Some(event) => places.on(rank, who, *event),
                None => places.claim(rank, ranks, who, what == PlaceEvent::ALL.len()),
            };
            if rank >= ranks {
                prop_assert_eq!(found, Err(PlaceError::NoSuchRank { rank, ranks }));
                prop_assert_eq!(&places, &before);
                continue;
            }
            if what < PlaceEvent::ALL.len() {
                prop_assert_eq!(found.is_ok(), is_theirs);
            } else if found.is_ok() && !is_theirs {
                let was_lost = before.state(rank) == Some(Place::Lost) && what == PlaceEvent::ALL.len();
                prop_assert!(!owners.contains_key(&rank) || was_lost);
                owners.insert(rank, who);
            }
            if !matches!(found, Ok(Step::Go(_))) {
                prop_assert_eq!(&places, &before, "only a step changes anything");
            }
            let state = places.state(rank).unwrap();
            if let Some(end) = ends.get(&rank) {
                prop_assert_eq!(state, *end, "an end stays");
            } else if state.is_end() {
                ends.insert(rank, state);
            }
            prop_assert_eq!(places.outstanding(), usize::from(ranks) - ends.len());
            prop_assert_eq!(places.peer(rank), owners.get(&rank).copied());
        }
    }
}
