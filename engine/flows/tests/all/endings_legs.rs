//! How transfers in legs end when somebody does not answer, is gone, or says whatever comes to his mind.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_core::{Cause, Timestamp};
use penstock_flows::input::Leg;
use penstock_flows::{BlocksRef, FlowCause, InputEvent, LegError, PartLanded, SinkWish, SourceWish, Status};
use penstock_session::control::{ControlMessage, EndOfData, Fail, Grant, Missing, Side};
use proptest::prelude::*;

use crate::legs::{ABORT_WITHIN, Kind, Setup, World, head};

/// A transfer whose second leg is under way: nothing of it has been delivered.
fn in_the_second_leg(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.chunk_all();
    for sink in 0..world.sinks.len() {
        world.grant(sink, 8).unwrap();
    }
    world.run();
    for sink in 0..world.sinks.len() {
        world.grant(sink, 8).unwrap();
    }
    world.collect();
    world
}

fn wishes(world: &mut World, sink: usize) -> Vec<SinkWish> {
    std::iter::from_fn(|| world.sinks[sink].book.poll_wish()).collect()
}

fn failed(world: &World, sink: usize) -> &penstock_flows::Failed {
    let mut failures = world.sinks[sink].seen.iter().filter_map(|event| match event {
        InputEvent::Failed(failed) => Some(failed),
        _ => None,
    });
    failures.next_back().expect("it has failed")
}

#[test]
fn blocks_of_an_abort_that_nobody_answers_are_quarantined_and_come_back_by_the_answer() {
    let mut world = in_the_second_leg(Setup::embedding(2000));
    world.sinks[0].book.fail_here(FlowCause::SinkFailed, "no more use for it", world.now);
    let (book, by) = (&mut world.sinks[0].book, world.now + ABORT_WITHIN);
    assert_eq!((book.leg(0), book.leg(1)), (Some(Leg::Landed), Some(Leg::Stopping)));
    assert_eq!(book.deadline(), by);
    book.expire(Timestamp::from_ns(by.as_ns() - 1));
    assert_eq!(book.leg(1), Some(Leg::Stopping));
    book.expire(by);
    assert_eq!((book.leg(1), book.deadline()), (Some(Leg::Quarantined), Timestamp::NEVER));
    world.collect();
    let ticket = *world.sinks[0].granted.keys().last().unwrap();
    assert_eq!((world.sinks[0].quarantined.as_slice(), world.sinks[0].freed.len()), ([ticket].as_slice(), 0));
    let book = &mut world.sinks[0].book;
    book.expire(crate::legs::DEADLINE);
    assert_eq!(book.leg(1), Some(Leg::Quarantined), "nothing is freed because time has passed");
    assert_eq!(book.drained(0, 7, true), Err(LegError::NoSuchAbort { number: 7 }));
    assert_eq!(book.drained(0, 1, false), Ok(()));
    assert_eq!(book.leg(1), Some(Leg::Quarantined));
    world.run();
    assert_eq!(world.sinks[0].freed, [ticket], "the answer came, however late");
    world.take(0, 0).unwrap();
    world.collect();
    world.assert_nothing_is_left();
}

#[test]
fn blocks_that_a_lost_source_may_be_at_wait_for_the_proof() {
    let mut world = in_the_second_leg(Setup::embedding(2000));
    let now = world.now;
    world.sinks[0].book.lost(0, now).unwrap();
    assert_eq!(world.sinks[0].book.leg(0), Some(Leg::Landed), "what has landed is nobody's any more but ours");
    assert_eq!(world.sinks[0].book.leg(1), Some(Leg::Quarantined));
    world.collect();
    assert_eq!((failed(&world, 0).cause, failed(&world, 0).source), (FlowCause::PeerLost, Some(0)));
    assert!(
        world
            .wire
            .iter()
            .all(|message| !matches!(message, crate::legs::Message::ToSource { said: ControlMessage::Abort(_), .. }))
    );
    assert_eq!(world.sinks[0].book.confirmed(), 1024, "a transfer that goes on elsewhere goes on from there");
    world.sinks[0].book.lost(0, now).unwrap();
    assert_eq!(wishes(&mut world, 0), []);
    world.sinks[0].book.proven_quiet(0, now).unwrap();
    let ticket = *world.sinks[0].granted.keys().last().unwrap();
    assert_eq!(wishes(&mut world, 0), [SinkWish::Free { ticket }]);
    world.sinks[0].book.proven_quiet(0, now).unwrap();
    assert_eq!(wishes(&mut world, 0), []);
    assert_eq!(world.sinks[0].book.confirmed(), 1024, "what was let go unread is not there");
}

#[test]
fn blocks_come_back_when_all_sources_are_quiet_and_not_before() {
    let kinds = vec![(0, Kind::Heads { of: 2, bytes: 4 })];
    let mut world = in_the_second_leg(Setup { kinds, source_ranks: 2, ..Setup::embedding(2000) });
    let now = world.now;
    world.sinks[0].book.lost(0, now).unwrap();
    let said = wishes(&mut world, 0);
    let ticket = *world.sinks[0].granted.keys().last().unwrap();
    assert!(said.contains(&SinkWish::Quarantine { ticket, sources: vec![0, 1] }));
    let told = |wish: &&SinkWish| {
        matches!(wish, SinkWish::Say { source: 1, said: ControlMessage::Fail(_) | ControlMessage::Abort(_) })
    };
    assert_eq!(said.iter().filter(told).count(), 2, "the other source is told at once");
    world.sinks[0].book.drained(1, 1, true).unwrap();
    assert_eq!((wishes(&mut world, 0), world.sinks[0].book.leg(1)), (vec![], Some(Leg::Quarantined)));
    world.sinks[0].book.proven_quiet(0, now).unwrap();
    assert_eq!(wishes(&mut world, 0), [SinkWish::Free { ticket }]);
}

#[test]
fn a_source_answers_an_abort_when_no_part_of_it_can_land() {
    let mut world = World::new(Setup { part_bytes: 12_000, ..Setup::embedding(2000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.collect();
    let grant = world.wire.remove(0);
    world.deliver(grant);
    let book = &mut world.sources[0].book;
    let parts: Vec<u64> = std::iter::from_fn(|| book.next_part()).map(|part| part.landing.number).collect();
    assert_eq!(parts, [0, 1, 2], "parts end with blocks, and have 500 tokens at most");
    book.ended(0, 0, Ok(12_000), true, Timestamp::from_ns(1));
    book.asked_to_stop(0, 5).unwrap();
    let ack = |is_drained| {
        let ack = penstock_session::control::AbortAck { head: head(Side::Source, 0), number: 5, is_drained };
        SourceWish::Say { sink: 0, said: ControlMessage::AbortAck(ack) }
    };
    let stop = |number| SourceWish::Stop { sink: 0, number };
    let take = |book: &mut penstock_flows::SourceLegs| -> Vec<SourceWish> {
        std::iter::from_fn(|| book.poll_wish()).collect()
    };
    assert_eq!(take(book), [stop(1), stop(2), ack(false)], "the one that has ended here is not stopped again");
    assert_eq!(book.next_part(), None);
    book.ended(0, 1, Err(Cause::Cancelled), false, Timestamp::from_ns(1));
    book.ended(0, 2, Err(Cause::Cancelled), true, Timestamp::from_ns(1));
    book.closed(0, 2);
    assert_eq!(take(book), [], "the peer may still be at the first");
    book.closed(0, 0);
    let wishes = take(book);
    assert_eq!(wishes[0], ack(true));
    assert!(matches!(wishes[..], [_, SourceWish::Free { .. }]), "{wishes:?}");
    book.asked_to_stop(0, 6).unwrap();
    let Some(SourceWish::Say { said: ControlMessage::AbortAck(again), .. }) = book.poll_wish() else {
        panic!("it is answered again")
    };
    assert_eq!((again.number, again.is_drained, book.is_over()), (6, true, true));
}

#[test]
fn a_part_that_could_not_be_moved_fails_the_transfer_for_all_ranks() {
    let kinds = vec![(0, Kind::Heads { of: 2, bytes: 4 })];
    let mut world = in_the_second_leg(Setup { kinds, sink_ranks: 2, ..Setup::embedding(2000) });
    while !world.wire.iter().any(|message| matches!(message, crate::legs::Message::Move { .. })) {
        world.deliver_one();
        world.collect();
    }
    world.sources[0].book.ended(1, 1, Err(Cause::RevokedByPeer), false, Timestamp::from_ns(1));
    world.wire.retain(|message| !matches!(message, crate::legs::Message::Move { part, .. } if part.sink == 1));
    world.run();
    for sink in 0..2 {
        assert_eq!(failed(&world, sink).cause, FlowCause::Moving(Cause::RevokedByPeer));
        assert!(failed(&world, sink).words.contains("part 1 to rank 1"), "{}", failed(&world, sink).words);
        world.sinks[sink].book.abort(world.now);
    }
    world.run();
    world.assert_nothing_is_left();
}

#[test]
fn what_did_not_arrive_is_named_block_by_block() {
    let kinds = vec![(0, Kind::Heads { of: 1, bytes: 4 }), (1, Kind::Heads { of: 1, bytes: 4 })];
    let mut world = World::new(Setup { kinds, is_by_layer: true, part_bytes: 512, ..Setup::embedding(1000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.sources[0].book.ready(0, 1000).unwrap();
    world.sources[0].book.ready(1, 300).unwrap();
    world.run();
    world.sources[0].book.fail_here(FlowCause::SourceFailed, "it broke");
    world.run();
    let blocks = {
        let grant = world.grants()[0];
        grant.blocks[2..].to_vec()
    };
    assert_eq!(failed(&world, 0).missing, [Missing { layer: 1, first: 2, count: 6 }]);
    assert_eq!(failed(&world, 0).blocks, blocks);
    assert_eq!(world.sinks[0].book.confirmed(), 300);
}

#[test]
fn words_of_a_failure_are_bounded_where_a_letter_ends() {
    let mut world = in_the_second_leg(Setup::embedding(2000));
    let fail = Fail { head: head(Side::Source, 0), cause: 999, words: "\u{fc}".repeat(1000) + "x", missing: vec![] };
    world.sinks[0].book.failed_there(0, &fail, world.now).unwrap();
    world.collect();
    assert_eq!((failed(&world, 0).cause, failed(&world, 0).words.len()), (FlowCause::Other(999), 256));
    world.sources[0].book.fail_here(FlowCause::SourceFailed, &("x".to_owned() + &"\u{fc}".repeat(1000)));
    assert_eq!(world.sources[0].book.failure().unwrap().words.len(), 255);
}

#[test]
fn a_seal_that_counts_more_than_came_is_no_success() {
    // All landings that were counted are there, and tokens are not: whoever says so is wrong, and nobody reads a hole.
    let mut world = in_the_second_leg(Setup::embedding(2000));
    let seal = EndOfData { head: head(Side::Source, 0), parts: 1, tokens: 2000, legs: 2, rows: Vec::new().into() };
    assert_eq!(world.sinks[0].book.sealed(0, &seal, world.now), Ok(true));
    world.collect();
    assert_eq!(failed(&world, 0).cause, FlowCause::Refused);
    assert!(failed(&world, 0).words.contains("token 1024 is not"), "{}", failed(&world, 0).words);

    let mut world = in_the_second_leg(Setup::embedding(2000));
    let mut refusal = |parts, tokens| {
        world.sinks[0].book.sealed(0, &EndOfData { parts, tokens, ..seal.clone() }, Timestamp::from_ns(2)).unwrap_err()
    };
    assert_eq!(refusal(0, 2000), LegError::Sealed { number: 0, parts: 0 });
    assert_eq!(refusal(2, 1999), LegError::Total { known: 2000, said: 1999 });
}

#[test]
fn an_acknowledgement_before_everything_was_sent_is_refused() {
    let mut world = in_the_second_leg(Setup::embedding(2000));
    assert_eq!(world.sources[0].book.acked(0), Err(LegError::AckEarly { rank: 0 }));
    assert_eq!(world.sources[0].book.acked(1), Err(LegError::NoSuchRank { rank: 1 }));
    assert_eq!(world.sources[0].book.refused(), 1);
    assert_eq!(world.sources[0].book.status(), Status::Transferring);
}

/// Anything that can be said to a sink. What is said of legs is right, but for the one number that is replaced.
#[derive(Debug, Clone)]
enum Saying {
    Landed { leg: usize, at: u64, tokens: u64, layer: Option<u32>, wrong: Option<(u8, u64)> },
    Sealed { tokens: Option<u64>, parts: Option<u64> },
    Grant { blocks: Vec<u32>, skip: u32, wrong: Option<(u8, u32)> },
    Taken(u32),
    Drained(u16, u32, bool),
    Lost(u16),
    Proven(u16),
    Refused(u32),
    Expire(u64),
    Abort,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0_u64..40, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// In one of so many cases, a number in the place of another one.
fn wrong(of: u8, once_in: u32) -> impl Strategy<Value = Option<(u8, u64)>> {
    prop_oneof![once_in - 1 => Just(None), 1 => (0..of, number()).prop_map(Some)]
}

fn saying() -> impl Strategy<Value = Saying> {
    let landed = (0_usize..4, 0_u64..9, 1_u64..9, 0_u32..4, wrong(8, 4));
    let landed = landed.prop_map(|(leg, at, tokens, layer, wrong)| Saying::Landed {
        leg,
        at,
        tokens,
        layer: layer.checked_sub(1),
        wrong,
    });
    let sealed = (proptest::option::weighted(0.2, number()), proptest::option::weighted(0.2, number()));
    let grant = (Just((0_u32..8).collect::<Vec<_>>()).prop_shuffle(), 1_usize..3, 0_u32..4, wrong(4, 4));
    prop_oneof![
        50 => landed,
        2 => sealed.prop_map(|(tokens, parts)| Saying::Sealed { tokens, parts }),
        20 => grant.prop_map(|(blocks, most, skip, wrong)| {
            Saying::Grant { blocks: blocks[..most].to_vec(), skip, wrong: wrong.map(|(what, number)| (what, number as u32)) }
        }),
        15 => (0_u32..4).prop_map(Saying::Taken),
        2 => (0_u16..3, 0_u32..3, any::<bool>()).prop_map(|(source, number, is_drained)| Saying::Drained(source, number, is_drained)),
        1 => (0_u16..3).prop_map(Saying::Lost),
        1 => (0_u16..3).prop_map(Saying::Proven),
        1 => (0_u32..6).prop_map(Saying::Refused),
        1 => prop_oneof![Just(7), any::<u64>()].prop_map(Saying::Expire),
        1 => Just(Saying::Abort),
    ]
}

/// The landing of so many tokens of a leg that was granted, with one number replaced.
fn part_of(
    legs: &[(u64, u64)],
    leg: usize,
    at: u64,
    tokens: u64,
    number: u64,
    wrong: Option<(u8, u64)>,
) -> Option<PartLanded> {
    let leg = leg % legs.len().max(1);
    let &(leg_from, leg_tokens) = legs.get(leg)?;
    let at = at % leg_tokens;
    let tokens = tokens.min(leg_tokens - at).min(12_u64.saturating_sub(leg_from + at));
    let mut part = PartLanded {
        number,
        leg: leg as u32,
        leg_from,
        leg_tokens,
        layer: None,
        from: leg_from + at,
        tokens,
        total: Some(12),
    };
    match wrong {
        Some((0, said)) => part.number = said,
        Some((1, said)) => part.leg = said as u32,
        Some((2, said)) => part.leg_from = said,
        Some((3, said)) => part.leg_tokens = said,
        Some((4, said)) => part.layer = Some(said as u32),
        Some((5, said)) => part.from = said,
        Some((6, said)) => part.tokens = said,
        Some((_, said)) => part.total = Some(said).filter(|said| said % 2 == 0),
        None => {}
    }
    Some(part)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is said: no panic, ends are kept, no ticket comes back twice or before it is safe, and only what landed is confirmed.
    #[test]
    fn nothing_that_is_said_confuses_a_sink(sayings in proptest::collection::vec(saying(), 0..60)) {
        let kinds = vec![(0, Kind::Heads { of: 1, bytes: 1 }), (1, Kind::Planes { count: 2, bytes: 1 }), (2, Kind::Once { bytes: 3 })];
        let mut world = World::new(Setup { kinds, sink_block: 4, pool_blocks: 8, source_ranks: 1, ahead: 3, ..Setup::embedding(12) });
        let node = &mut world.sinks[0];
        let (mut given, mut live, mut legs, mut landed) = (0, BTreeSet::new(), Vec::new(), 0_u64);
        let mut parts = 0;
        let mut before = (node.book.status(), 0);
        for saying in sayings {
            let now = Timestamp::from_ns(5);
            let book = &mut node.book;
            match saying {
                Saying::Landed { leg, at, tokens, layer, wrong } => {
                    let Some(mut part) = part_of(&legs, leg, at, tokens, parts, wrong) else { continue };
                    part.layer = part.layer.or(layer);
                    if book.landed(0, &part, now) == Ok(true) {
                        parts += 1;
                        landed += part.tokens;
                        prop_assert!(part.from >= part.leg_from && part.tokens <= part.leg_tokens);
                    }
                }
                Saying::Sealed { tokens, parts: said } => {
                    let rows = crate::legs::all_rows(&node.layout);
                    let seal = EndOfData { head: head(Side::Source, 0), parts: said.unwrap_or(parts), tokens: tokens.unwrap_or(12), legs: 1, rows: rows.into() };
                    if book.sealed(0, &seal, now) == Ok(true) && book.status() == Status::Success {
                        prop_assert!(book.confirmed() >= seal.tokens, "it is not done before all of it is there");
                    }
                }
                Saying::Grant { mut blocks, mut skip, wrong } => {
                    given += 1;
                    let (mut leg, mut once) = (book.next_leg(), Some(0));
                    match wrong {
                        Some((0, said)) => leg = said,
                        Some((1, said)) => skip = said,
                        Some((2, said)) => blocks.push(said),
                        Some((_, said)) => once = Some(said).filter(|said| said % 2 == 0),
                        None => {}
                    }
                    let from = legs.last().map_or(0, |&(from, tokens)| from + tokens);
                    let room = blocks.len() as u64 * 4 - u64::from(skip.min(4));
                    if book.grant(leg, blocks, skip, once, BlocksRef(given)) == Ok(true) {
                        live.insert(BlocksRef(given));
                        legs.push((from, room));
                    }
                }
                Saying::Taken(leg) => {
                    let _ = book.taken(leg);
                }
                Saying::Drained(source, number, is_drained) => {
                    let _ = book.drained(source, number, is_drained);
                },
                Saying::Lost(source) => {
                    let _ = book.lost(source, now);
                }
                Saying::Proven(source) => {
                    let _ = book.proven_quiet(source, now);
                }
                Saying::Refused(leg) => {
                    let _ = book.refused_there(0, &crate::legs::refused(leg, 0), now);
                }
                Saying::Expire(ns) => book.expire(Timestamp::from_ns(ns)),
                Saying::Abort => book.abort(now),
            }
            while let Some(wish) = node.book.poll_wish() {
                if let SinkWish::Free { ticket } = wish {
                    prop_assert!(live.remove(&ticket), "a ticket comes back twice");
                }
            }
            while node.book.next_input_event().is_some() {}
            prop_assert!(node.book.confirmed() <= landed && node.book.confirmed() >= before.1, "{:?}", node.book);
            prop_assert!(!before.0.is_end() || before.0 == node.book.status());
            before = (node.book.status(), node.book.confirmed());
        }
        // At the end everything comes back, once.
        let now = Timestamp::from_ns(6);
        node.book.abort(now);
        node.book.proven_quiet(0, now).unwrap();
        while let Some(wish) = node.book.poll_wish() {
            if let SinkWish::Free { ticket } = wish {
                prop_assert!(live.remove(&ticket), "a ticket comes back twice");
            }
        }
        prop_assert!(live.is_empty() && node.book.is_over(), "{:?}", node.book);
    }

    /// Whatever sinks say: no panic, no token is sent twice to a rank, and no more than was granted.
    #[test]
    fn nothing_that_is_said_confuses_a_source(
        grants in proptest::collection::vec((0_u16..2, proptest::collection::vec(0_u32..8, 1..4), 0_u32..4, wrong(6, 5)), 0..40),
        others in proptest::collection::vec((0_u8..20, 0_u16..3, number()), 0..40),
    ) {
        let kinds = vec![(0, Kind::Heads { of: 2, bytes: 1 }), (1, Kind::Planes { count: 2, bytes: 1 }), (2, Kind::Once { bytes: 3 })];
        let setup = Setup { kinds, sink_block: 4, source_block: 4, pool_blocks: 8, sink_ranks: 2, part_bytes: 9, ..Setup::embedding(30) };
        let mut world = World::new(setup);
        let pair = Arc::clone(&world.pairs[&(0, 0)]);
        world.chunk(0, 13, false);
        let book = &mut world.sources[0].book;
        let (mut room, mut sent, mut freed) = ([0_u64; 2], [0_u64; 2], BTreeSet::new());
        let mut others = others.into_iter();
        let mut has_failed = false;
        let mut next_leg = [0_u32; 2];
        for (rank, blocks, skip, wrong) in grants {
            let at = usize::from(rank);
            let mut grant = Grant {
                head: head(Side::Sink, rank), leg: next_leg[at], layout: 2, layout_generation: 1, from: 0, skip,
                capacity: blocks.len() as u64 * 4 - u64::from(skip), once: Some(0), resumes: false, urgency: 0, blocks: blocks.into(), trace: Box::default(),
            };
            match wrong {
                Some((0, said)) => grant.leg = said as u32,
                Some((1, said)) => grant.from = said,
                Some((2, said)) => grant.skip = said as u32,
                Some((3, said)) => grant.capacity = said,
                Some((4, said)) => grant.blocks.push(said as u32),
                Some((_, said)) => grant.once = Some(said as u32).filter(|said| said % 2 == 0),
                None => {}
            }
            let capacity = grant.capacity;
            if book.granted(rank, &pair, grant) == Ok(true) {
                room[at] += capacity;
                next_leg[at] += 1;
            }
            while let Some(part) = book.next_part() {
                let at = usize::from(part.sink);
                sent[at] += part.landing.tokens;
                prop_assert!(sent[at] <= room[0].min(room[1]), "the least room decides");
                prop_assert!(part.landing.tokens > 0 && part.landing.from + part.landing.tokens <= 30);
                if part.landing.number % 8 < 7 {
                    book.ended(part.sink, part.landing.number, Ok(part.bytes), part.landing.number % 8 == 0, Timestamp::from_ns(1));
                }
            }
            if let Some((what, rank, number)) = others.next() {
                match what {
                    0 => {
                        let _ = book.acked(rank);
                    }
                    1 if number < 3 => {
                        let _ = book.asked_to_stop(rank, number as u32);
                    }
                    2 if number < 3 => {
                        let _ = book.lost(rank, Timestamp::from_ns(1));
                    }
                    3 => book.ended(rank, number, Ok(1), false, Timestamp::from_ns(1)),
                    4 => book.closed(rank, number),
                    5 if number < 3 => book.ended(rank, number, Err(Cause::RevokedByPeer), true, Timestamp::from_ns(1)),
                    6 => {
                        let _ = book.ready(number as u32, number);
                    }
                    7 => {
                        let _ = book.chunk(&[3, 4, 5, 6], 15, number < 20, BlocksRef(1000));
                    }
                    _ => {}
                }
            }
            while let Some(wish) = book.poll_wish() {
                if let SourceWish::Free { ticket } = wish {
                    prop_assert!(freed.insert(ticket), "a ticket comes back twice");
                }
            }
            prop_assert!(!has_failed || book.status() == Status::Failed);
            has_failed = book.failure().is_some();
        }
    }
}
