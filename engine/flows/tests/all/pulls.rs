//! Transfers that their sink reads: transfer managers joined by a wire, over memories that are really copied.

use std::time::Duration;

use penstock_core::Cause;
use penstock_flows::action::Urgency;
use penstock_flows::manager::{CallError, Sinks};
use penstock_flows::{Event, FlowCause, InputEvent, Status};
use penstock_session::control::{
    Ack, ControlMessage, Fail, LeaseExpired, LeaseVerdict, ReadOffer, Renew, Side, TRACE_BYTES_MAX, TransferHead,
};

use crate::managers::{TTL, World, peer, transfer};

/// Blocks in no order, none of them the one for what goes once.
fn blocks(count: u32, salt: u32) -> Vec<u32> {
    (0..count).map(|block| (block * 5 + salt) % 63).collect()
}

/// Every rank of so many, whatever their rows.
fn all_of(ranks: u16) -> Sinks {
    Sinks::These((0..ranks).collect(), ranks)
}

fn is_lend(said: &ControlMessage) -> bool {
    matches!(said, ControlMessage::ReadOffer(_))
}

fn is_renew(said: &ControlMessage) -> bool {
    matches!(said, ControlMessage::Renew(_))
}

/// One source of 16 tokens a block and one sink of 64, 100 tokens lent, with the reads held up.
fn in_mid_pull() -> (World, penstock_session::transfers::table::EntryKey, penstock_session::transfers::table::EntryKey)
{
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |_| {});
    let input = world.consume(1, 1, &[0], |_| {});
    world.grant(1, input, &[9, 4]);
    world.holds_moves = true;
    let theirs = blocks(7, 1);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.run();
    assert!(!world.nodes[1].moving.is_empty(), "it reads");
    (world, output, input)
}

#[test]
fn what_is_lent_is_read_over_unequal_ranks_and_blocks() {
    // Two ranks with half of the heads each, in blocks of 16, and one with all of them in blocks of 64; and the other way round.
    for (sources, sinks) in [((2, 16), (1, 64)), ((1, 64), (2, 16)), ((1, 16), (1, 16))] {
        let layouts: Vec<(u16, u16, u32)> = [sources, sinks]
            .iter()
            .flat_map(|&(ranks, tokens)| (0..ranks).map(move |rank| (rank, ranks, tokens)))
            .collect();
        let mut world = World::new(&layouts);
        let (sources, sinks) = ((sources.0 as usize, sources.1), (sinks.0 as usize, sinks.1));
        let (tokens, first) = (200_u64, 90_u64);
        let outputs: Vec<_> = (0..sources.0)
            .map(|at| world.produce(at, 1, |how| (how.sinks, how.is_by_layer) = (all_of(sinks.0 as u16), true)))
            .collect();
        let all: Vec<usize> = (0..sources.0).collect();
        let inputs: Vec<_> = (0..sinks.0).map(|at| world.consume(sources.0 + at, 1, &all, |_| {})).collect();
        let ours = blocks(tokens.div_ceil(sinks.1.into()) as u32, 3);
        for (at, &input) in inputs.iter().enumerate() {
            // In two legs.
            world.grant(sources.0 + at, input, &ours[..1]);
            world.run();
        }
        let theirs = blocks(tokens.div_ceil(sources.1.into()) as u32, 1);
        let (split, begun) = (first.div_ceil(sources.1.into()) as usize, (first / u64::from(sources.1)) as usize);
        for (at, &output) in outputs.iter().enumerate() {
            world.chunk(at, output, (&theirs, &theirs[..split]), 0..first, false);
            let now = world.now;
            world.manager(at).layer(output, 0, first, now).unwrap();
            world.run();
            world.chunk(at, output, (&theirs, &theirs[begun..]), first..tokens, true);
            world.run();
        }
        for (at, &input) in inputs.iter().enumerate() {
            assert_eq!(world.told(sources.0 + at, input), [], "nothing of the second chunk is ready");
        }
        for (at, &output) in outputs.iter().enumerate() {
            let now = world.now;
            world.manager(at).layer(output, 0, tokens, now).unwrap();
            world.run();
        }
        for (at, &input) in inputs.iter().enumerate() {
            let told = world.told(sources.0 + at, input);
            let needs = InputEvent::NeedsMemory { leg: 1, tokens: tokens - u64::from(sinks.1) };
            assert_eq!(told, [needs], "of what has come nothing is told before the end");
            world.grant(sources.0 + at, input, &ours[1..]);
        }
        for (at, &output) in outputs.iter().enumerate() {
            for layer in [2, 1] {
                let now = world.now;
                world.manager(at).layer(output, layer, tokens, now).unwrap();
                world.run();
            }
        }
        for (at, &input) in inputs.iter().enumerate() {
            assert_eq!(world.told(sources.0 + at, input), [InputEvent::Done { tokens }]);
            assert!(world.has(sources.0 + at, &ours, 0, 0..tokens), "the bytes are the source's");
            for leg in 0..2 {
                let now = world.now;
                world.manager(sources.0 + at).taken(input, leg, now).unwrap();
            }
        }
        for (at, &output) in outputs.iter().enumerate() {
            assert_eq!(world.manager(at).status(output), Some(Status::Success));
            assert_eq!(world.count(at, is_lend), sinks.0 * 3, "layer 0, the second chunk, and layers 1 and 2 together");
        }
        world.assert_nothing_is_left();
    }
}

#[test]
fn a_child_reads_only_what_it_does_not_have() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |_| {});
    let input = world.consume(1, 1, &[0], |how| how.begin = 37);
    world.grant(1, input, &[5, 6]);
    let theirs = blocks(7, 0);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.run();
    let lends = world
        .said
        .iter()
        .filter_map(|(_, _, said)| if let ControlMessage::ReadOffer(lend) = said { Some(lend) } else { None });
    let told: Vec<(u64, u64, usize)> = lends.map(|lend| (lend.from, lend.tokens, lend.blocks.len())).collect();
    assert_eq!(told, [(32, 68, 5)], "blocks before those that are needed are not named");
    assert_eq!(world.told(1, input), [InputEvent::Done { tokens: 63 }]);
    assert!(world.has(1, &[5, 6], 37, 37..100));
    let now = world.now;
    world.manager(1).taken(input, 0, now).unwrap();
    world.assert_nothing_is_left();
}

#[test]
fn a_transfer_of_no_tokens_is_done_without_a_grant() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let input = world.consume(1, 1, &[0], |_| {});
    world.run();
    let output = world.produce(0, 1, |_| {});
    world.chunk(0, output, (&[], &[]), 0..0, true);
    world.run();
    assert_eq!(world.told(1, input), [InputEvent::Done { tokens: 0 }], "its claim was kept until the source was there");
    world.assert_nothing_is_left();
}

#[test]
fn a_reader_renews_every_third_of_the_time_in_one_frame_a_lender() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    world.holds_moves = true;
    let inputs: Vec<_> = (1..=5)
        .map(|number| {
            let output = world.produce(0, number, |_| {});
            let input = world.consume(1, number, &[0], |_| {});
            world.grant(1, input, &[u32::from(number)]);
            let theirs = [u32::from(number)];
            world.chunk(0, output, (&theirs, &theirs), 0..16, true);
            input
        })
        .collect();
    world.pass(5 * TTL);
    assert_eq!(world.manager(0).metrics().lent, 5, "each lease stands as long as it is renewed");
    assert_eq!(world.count(1, is_renew), 15, "three for each time it stands, for all five together");
    world.holds_moves = false;
    world.end_moves(1);
    world.run();
    for input in inputs {
        assert_eq!(world.told(1, input), [InputEvent::Done { tokens: 16 }]);
        let now = world.now;
        world.manager(1).taken(input, 0, now).unwrap();
    }
    world.pass(TTL);
    assert_eq!(world.count(1, is_renew), 15, "nothing is renewed that was given back");
    world.assert_nothing_is_left();
}

#[test]
fn a_reader_that_renews_for_ever_does_not_hold_what_has_ended() {
    let (mut world, output, _) = in_mid_pull();
    let lend = world
        .said
        .iter()
        .find_map(|(_, _, said)| if let ControlMessage::ReadOffer(lend) = said { Some(lend.lease) } else { None });
    let renew = ControlMessage::Renew(Renew { leases: vec![lend.unwrap()] });
    // As long as the transfer stands the lease does.
    for _ in 0..5 {
        world.pass(TTL / 2);
        world.handle(0, Event::Said { peer: peer(1), said: renew.clone() });
    }
    assert_eq!(world.manager(0).status(output), Some(Status::Transferring));
    world.mute.insert(1);
    let now = world.now;
    world.manager(0).fail(output, FlowCause::SourceFailed, "no", now);
    world.holds_watches = true;
    for _ in 0..4 {
        world.handle(0, Event::Said { peer: peer(1), said: renew.clone() });
        world.pass(TTL / 2);
    }
    assert_eq!((world.nodes[0].watches.len(), &world.nodes[0].freed[..]), (1, &[][..]), "it may be in a copy");
    world.answer_watches(0);
    world.run();
    assert_eq!(
        (world.nodes[0].freed.len(), world.manager(0).metrics().lent),
        (1, 0),
        "its time was over, as for anybody"
    );
}

#[test]
fn scenario_10_a_lease_expires_once_and_a_later_read_gets_expired() {
    let (mut world, output, input) = in_mid_pull();
    world.holds_watches = true;
    // Its heartbeats stop: nothing that it says arrives.
    world.mute.insert(1);
    world.pass(TTL - Duration::from_nanos(1));
    assert_eq!(world.manager(0).status(output), Some(Status::Transferring));
    world.pass(Duration::from_nanos(1));
    assert_eq!(world.manager(0).status(output), Some(Status::Failed), "by the lender's own clock");
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Expired);
    assert_eq!(world.nodes[0].freed, [], "its reader may still be in a copy");
    assert_eq!(world.nodes[0].watches.len(), 1);
    world.answer_watches(0);
    world.run();
    assert_eq!(world.nodes[0].freed.len(), 1, "let go as soon as it is not");
    // The reader wakes up, reads on, and asks.
    world.mute.clear();
    let now = world.now;
    let lease = world
        .said
        .iter()
        .find_map(|(_, _, said)| if let ControlMessage::ReadOffer(lend) = said { Some(lend.lease) } else { None });
    let head = TransferHead { transfer: transfer(1), side: Side::Sink, rank: 0, ranks: 1 };
    let late = ControlMessage::Ack(Ack { head, lease });
    world.manager(0).handle(Event::Said { peer: peer(1), said: late }, now);
    world.run();
    let answers: Vec<&ControlMessage> = world
        .said
        .iter()
        .map(|(_, _, said)| said)
        .filter(|said| matches!(said, ControlMessage::LeaseVerdict(_)))
        .collect();
    assert!(matches!(answers[..], [ControlMessage::LeaseVerdict(LeaseVerdict { is_valid: false, .. })]), "{answers:?}");
    world.holds_moves = false;
    world.end_moves(1);
    world.run();
    assert_eq!(world.failure(1, input).cause, FlowCause::Expired, "never stale bytes");
    world.pass(2 * TTL);
    let over = world.count(0, |said| matches!(said, ControlMessage::LeaseExpired(_)));
    assert_eq!(over, 1, "it has expired once");
    world.assert_nothing_is_left();
}

#[test]
fn an_acknowledgement_that_is_late_is_answered_and_everything_that_was_read_is_worth_nothing() {
    let (mut world, output, input) = in_mid_pull();
    // All bytes come, and the word that they did is late.
    world.mute.insert(1);
    world.holds_moves = false;
    world.end_moves(1);
    world.run();
    assert_eq!(world.told(1, input), []);
    assert!(world.has(1, &[9, 4], 0, 0..100));
    world.pass(2 * TTL);
    world.mute.clear();
    let lease =
        world.said.iter().find_map(|(_, _, said)| if let ControlMessage::Ack(ack) = said { ack.lease } else { None });
    let head = TransferHead { transfer: transfer(1), side: Side::Sink, rank: 0, ranks: 1 };
    world.handle(0, Event::Said { peer: peer(1), said: ControlMessage::Ack(Ack { head, lease }) });
    world.run();
    let failed = world.failure(1, input);
    assert_eq!((failed.cause, failed.said_by, failed.source), (FlowCause::Expired, Side::Source, Some(0)));
    assert_eq!(failed.blocks, [9, 4], "none of it was confirmed");
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Expired);
    world.assert_nothing_is_left();
}

#[test]
fn a_reader_that_could_not_renew_begins_no_read_by_its_own_clock() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |_| {});
    let input = world.consume(1, 1, &[0], |_| {});
    world.grant(1, input, &[9]);
    let theirs = blocks(7, 1);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.run();
    world.told(1, input);
    // It does not even run for so long: nothing is looked at meanwhile.
    world.now = world.now + TTL;
    world.holds_moves = true;
    world.grant(1, input, &[4]);
    world.run();
    assert!(world.nodes[1].moving.is_empty(), "it would be read in vain");
    assert_eq!(world.failure(1, input).cause, FlowCause::Expired);
    world.pass(TTL);
    world.assert_nothing_is_left();
}

#[test]
fn defect_000_a_dead_source_hangs_the_sink() {
    let (mut world, output, input) = in_mid_pull();
    let other = world.consume(1, 2, &[0], |_| {});
    let kept = world.grant(1, other, &[20]);
    world.part(0, 1);
    world.run();
    for (input, blocks) in [(input, vec![9, 4]), (other, vec![20])] {
        let failed = world.failure(1, input);
        assert_eq!((failed.cause, failed.source, failed.blocks), (FlowCause::PeerLost, Some(0), blocks), "at once");
    }
    assert_eq!(world.nodes[1].freed, [kept], "nothing is read into the other's blocks");
    world.end_moves(1);
    world.run();
    assert_eq!(world.nodes[1].freed.len(), 2);
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::PeerLost);
    world.assert_nothing_is_left();
}

#[test]
fn a_dead_sink_frees_its_source_as_soon_as_it_is_in_no_copy() {
    let (mut world, output, _) = in_mid_pull();
    world.holds_watches = true;
    world.handle(0, Event::Left { peer: peer(1), cause: Cause::PeerLost });
    world.run();
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::PeerLost);
    assert_eq!((world.nodes[0].freed.len(), world.nodes[0].watches.len()), (0, 1), "never during a read");
    world.pass(10 * TTL);
    assert_eq!(world.nodes[0].freed.len(), 0, "nor because time has passed");
    world.answer_watches(0);
    world.run();
    assert_eq!(world.nodes[0].freed.len(), 1);
    assert!(world.manager(0).is_over(output));
}

#[test]
fn a_source_that_fails_is_known_at_once_and_keeps_what_is_still_read() {
    let (mut world, output, input) = in_mid_pull();
    let now = world.now;
    world.manager(0).fail(output, FlowCause::SourceFailed, "the model ran out of memory", now);
    world.run();
    let failed = world.failure(1, input);
    assert_eq!((failed.cause, failed.words.as_str()), (FlowCause::SourceFailed, "the model ran out of memory"));
    assert_eq!(failed.blocks, [9, 4]);
    assert_eq!((world.nodes[0].freed.len(), world.nodes[1].freed.len()), (0, 0), "it is still read");
    assert!(!world.nodes[1].stopped.is_empty(), "which is stopped");
    world.end_moves(1);
    world.run();
    assert_eq!(
        (world.nodes[0].freed.len(), world.nodes[1].freed.len()),
        (1, 1),
        "and then given back, before its time"
    );
    world.assert_nothing_is_left();
}

#[test]
fn a_sink_that_gives_it_up_returns_its_lease_when_nothing_is_read_any_more() {
    let (mut world, output, input) = in_mid_pull();
    let now = world.now;
    world.manager(1).fail(input, FlowCause::Aborted, "", now);
    world.run();
    assert_eq!(world.manager(0).send_failure(output).unwrap().said_by, Side::Sink);
    assert_eq!((world.nodes[0].freed.len(), world.nodes[1].freed.len()), (0, 0));
    assert_eq!(
        world.count(1, |said| matches!(said, ControlMessage::Ack(_) | ControlMessage::Abort(_))),
        0,
        "nobody is asked to stop but itself"
    );
    world.end_moves(1);
    world.run();
    assert_eq!(world.count(1, |said| matches!(said, ControlMessage::Ack(_))), 1);
    world.assert_nothing_is_left();
}

#[test]
fn blocks_that_are_read_into_for_too_long_after_a_failure_are_quarantined() {
    let (mut world, _, input) = in_mid_pull();
    let now = world.now;
    world.manager(1).fail(input, FlowCause::SinkFailed, "out of room", now);
    world.pass(Duration::from_millis(499));
    assert_eq!(world.nodes[1].quarantined, []);
    world.pass(Duration::from_millis(1));
    assert_eq!((world.nodes[1].quarantined.len(), world.nodes[1].freed.len()), (1, 0));
    world.end_moves(1);
    world.run();
    assert_eq!(world.nodes[1].freed.len(), 1, "the proof is the end of its reads");
    world.pass(TTL);
    world.assert_nothing_is_left();
}

#[test]
fn scenario_03_memory_that_is_lent_is_held_until_all_distinct_ranks_have_acked() {
    let mut world = World::new(&[(0, 1, 16), (0, 2, 64), (1, 2, 64), (0, 1, 64)]);
    let output = world.produce(0, 1, |how| how.sinks = all_of(2));
    let [first, second] = [1, 2].map(|at| world.consume(at, 1, &[0], |_| {}));
    world.grant(1, first, &[1, 2]);
    let theirs = blocks(7, 0);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.run();
    assert_eq!(world.told(1, first), [InputEvent::Done { tokens: 100 }], "who has everything does not wait for others");
    let leases: Vec<u64> = world
        .said
        .iter()
        .filter_map(|(_, _, said)| if let ControlMessage::ReadOffer(lend) = said { Some(lend.lease) } else { None })
        .collect();
    assert_eq!(leases.len(), 2);
    // The one that has it says so again, for itself and for the other; and so does a stranger.
    for (from, rank, lease) in [(1, 0, leases[0]), (1, 1, leases[1]), (3, 1, leases[1])] {
        let head = TransferHead { transfer: transfer(1), side: Side::Sink, rank, ranks: 2 };
        world.handle(0, Event::Said { peer: peer(from), said: ControlMessage::Ack(Ack { head, lease: Some(lease) }) });
        world.handle(0, Event::Said { peer: peer(from), said: ControlMessage::Ack(Ack { head, lease: None }) });
        world.run();
        assert_eq!((world.manager(0).status(output), world.nodes[0].freed.len()), (Some(Status::Transferring), 0));
    }
    let valid =
        |said: &ControlMessage| matches!(said, ControlMessage::LeaseVerdict(LeaseVerdict { is_valid: true, .. }));
    assert_eq!(world.count(0, valid), 1);
    world.grant(2, second, &[1, 2]);
    world.run();
    assert_eq!(world.told(2, second).last(), Some(&InputEvent::Done { tokens: 100 }));
    assert_eq!((world.manager(0).status(output), world.nodes[0].freed.len()), (Some(Status::Success), 1));
}

#[test]
fn a_push_and_a_pull_of_one_name_refuse_each_other_in_words() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let input = world.consume(1, 1, &[0], |_| {});
    world.run();
    let failed = world.failure(1, input);
    assert_eq!(failed.cause, FlowCause::Refused);
    assert!(failed.words.contains("does not lend"), "{}", failed.words);
    let ended = world.manager(0).send_failure(output).expect("nobody would come");
    assert_eq!((ended.cause, ended.said_by, &ended.words), (FlowCause::Refused, Side::Source, &failed.words));

    let output = world.produce(0, 2, |_| {});
    let input = world.consume(1, 2, &[0], |how| how.is_pull = false);
    world.grant(1, input, &[1]);
    world.run();
    let failed = world.failure(1, input);
    assert_eq!(failed.cause, FlowCause::Refused);
    assert!(failed.words.contains("waits to be sent"), "{}", failed.words);
    let ended = world.manager(0).send_failure(output).expect("nobody would come");
    assert_eq!((ended.cause, ended.said_by, &ended.words), (FlowCause::Refused, Side::Source, &failed.words));
}

#[test]
fn who_claims_late_hears_of_the_failure_in_its_own_words() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |_| {});
    let now = world.now;
    world.manager(0).fail(output, FlowCause::SourceFailed, "the model ran out of memory", now);
    let input = world.consume(1, 1, &[0], |_| {});
    world.run();
    assert_eq!(world.failure(1, input).words, "the model ran out of memory");
}

#[test]
fn a_sink_without_enough_memory_waits_and_ends_in_time() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |_| {});
    let input = world.consume(1, 1, &[0], |how| how.within = Duration::from_secs(30));
    world.grant(1, input, &[1]);
    let theirs = blocks(7, 0);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.run();
    assert_eq!(world.told(1, input), [InputEvent::NeedsMemory { leg: 1, tokens: 36 }]);
    world.pass(Duration::from_secs(29));
    assert_eq!(world.manager(0).metrics().lent, 1, "its lease is renewed while it waits");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.failure(1, input).cause, FlowCause::Deadline);
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Deadline);
    world.assert_nothing_is_left();
}

/// What a source may say that makes no sense changes nothing, is answered, and reads nothing.
#[test]
fn what_is_lent_wrongly_is_refused_and_nothing_of_it_is_read() {
    let head = TransferHead { transfer: transfer(1), side: Side::Source, rank: 0, ranks: 1 };
    let right = ReadOffer {
        head,
        layout: 0,
        layout_generation: 1,
        from: 0,
        tokens: 40,
        total: None,
        layers: 3,
        is_sealed: false,
        once: Some(63),
        lease: 5,
        ttl_ms: 2000,
        blocks: vec![1, 2, 3],
    };
    let wrong = [
        ReadOffer { layout_generation: 9, ..right.clone() },
        ReadOffer { from: 8, ..right.clone() },
        ReadOffer { from: u64::MAX, ..right.clone() },
        ReadOffer { from: 16, ..right.clone() },
        ReadOffer { tokens: 49, ..right.clone() },
        ReadOffer { tokens: u64::MAX, ..right.clone() },
        ReadOffer { layers: 4, ..right.clone() },
        ReadOffer { total: Some(39), ..right.clone() },
        ReadOffer { blocks: vec![1, 2, 64], ..right.clone() },
        ReadOffer { once: None, ..right.clone() },
        ReadOffer { once: Some(64), ..right.clone() },
        ReadOffer { blocks: vec![1; 65], ..right.clone() },
    ];
    let then = [
        ReadOffer { lease: 6, ..right.clone() },
        ReadOffer { once: Some(62), ..right.clone() },
        ReadOffer { blocks: vec![1, 2, 4], ..right.clone() },
        ReadOffer { from: 64, ..right.clone() },
        ReadOffer { blocks: Vec::new(), tokens: 49, ..right.clone() },
    ];
    for is_first in [true, false] {
        for lend in if is_first { &wrong[..] } else { &then[..] } {
            let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
            world.holds_moves = true;
            let input = world.consume(1, 1, &[0], |_| {});
            world.grant(1, input, &[0, 1, 2, 3]);
            world.run();
            if !is_first {
                world.handle(1, Event::Said { peer: peer(0), said: right.clone().into() });
                world.run();
                assert_eq!(world.nodes[1].moving.len(), 1);
            }
            let moving = world.nodes[1].moving.len();
            world.handle(1, Event::Said { peer: peer(0), said: lend.clone().into() });
            world.run();
            let found = (world.nodes[1].moving.len(), world.manager(1).metrics().refused);
            assert_eq!(found, (moving, 1), "{lend:?}");
            assert_eq!(world.count(1, |said| matches!(said, ControlMessage::Fail(_))), 1);
        }
    }
}

#[test]
fn words_of_leases_that_nobody_has_change_nothing() {
    let (mut world, output, input) = in_mid_pull();
    let stranger = [
        ControlMessage::LeaseExpired(LeaseExpired { lease: 12345, cause: 8 }),
        ControlMessage::LeaseVerdict(LeaseVerdict {
            head: TransferHead { transfer: transfer(1), side: Side::Source, rank: 0, ranks: 1 },
            lease: 12345,
            is_valid: true,
        }),
        ControlMessage::LeaseVerdict(LeaseVerdict {
            head: TransferHead { transfer: transfer(1), side: Side::Source, rank: 7, ranks: 1 },
            lease: 12345,
            is_valid: false,
        }),
    ];
    for said in stranger {
        world.handle(1, Event::Said { peer: peer(0), said });
    }
    let head = TransferHead { transfer: transfer(1), side: Side::Source, rank: 0, ranks: 1 };
    let fail = Fail { head, cause: 1, words: String::new(), missing: Vec::new() };
    world.handle(1, Event::Said { peer: peer(5), said: ControlMessage::Fail(fail) });
    world.run();
    world.holds_moves = false;
    world.end_moves(1);
    world.run();
    assert_eq!(world.told(1, input), [InputEvent::Done { tokens: 100 }]);
    assert_eq!(world.manager(0).status(output), Some(Status::Success));
}

#[test]
fn a_read_that_fails_ends_both_sides_with_its_cause() {
    let (mut world, output, input) = in_mid_pull();
    let id = *world.nodes[1].moving.keys().next().unwrap();
    world.end_move(1, id, Some(Cause::RevokedByPeer));
    world.run();
    let cause = FlowCause::Moving(Cause::RevokedByPeer);
    assert_eq!(world.failure(1, input).cause, cause);
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, cause);
    world.end_moves(1);
    world.assert_nothing_is_left();
}

#[test]
fn a_source_waits_for_its_readers_no_longer_than_its_own_time() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    let output = world.produce(0, 1, |how| how.within = Duration::from_secs(3));
    let theirs = blocks(7, 0);
    world.chunk(0, output, (&theirs, &theirs), 0..100, true);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Deadline);
    assert_eq!(world.nodes[0].freed.len(), 1, "nobody had a lease");
    assert!(world.manager(0).is_over(output));
}

#[test]
fn a_reader_that_begins_behind_the_last_token_fails_at_once_in_either_order() {
    for claims_first in [true, false] {
        let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
        let output = world.produce(0, 1, |_| {});
        let theirs = blocks(7, 1);
        let mut input = None;
        for step in [claims_first, !claims_first] {
            if step {
                let begin = |how: &mut penstock_flows::manager::Consume| how.begin = 101;
                input = Some(world.consume(1, 1, &[0], begin));
            } else {
                world.chunk(0, output, (&theirs, &theirs), 0..100, true);
            }
            world.run();
        }
        let failed = world.failure(1, input.unwrap());
        assert_eq!(failed.cause, FlowCause::Refused);
        assert!(failed.words.contains("begins at token 101"), "{}", failed.words);
        assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Refused);
        assert_eq!(world.nodes[0].freed.len(), 1, "its blocks came back at once");
        world.assert_nothing_is_left();
    }
}

#[test]
fn what_a_sink_asks_for_travels_with_its_first_word() {
    for is_pull in [false, true] {
        let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
        let output = world.produce(0, 1, |how| how.is_lent = is_pull);
        assert_eq!(world.manager(0).trace(output), b"");
        let input = world.consume(1, 1, &[0], |how| {
            (how.is_pull, how.urgency) = (is_pull, Urgency::Urgent);
            how.trace = vec![7; TRACE_BYTES_MAX];
        });
        world.grant(1, input, &[9, 4]);
        world.run();
        assert_eq!(world.manager(0).trace(output), [7; TRACE_BYTES_MAX]);
        world.holds_moves = true;
        let theirs = blocks(7, 1);
        world.chunk(0, output, (&theirs, &theirs), 0..100, true);
        world.run();
        let urgencies = world.nodes[usize::from(is_pull)].moving.values().map(|(_, moving)| moving.urgency);
        assert_eq!(urgencies.collect::<Vec<_>>(), [Urgency::Urgent], "the source itself has said nothing of it");
        world.holds_moves = false;
        (0..2).for_each(|at| world.end_moves(at));
        world.run();
        assert!(world.told(1, input).contains(&InputEvent::Done { tokens: 100 }));
        let now = world.now;
        world.manager(1).release(input, now);
        world.assert_nothing_is_left();
    }
}

#[test]
fn a_trace_context_that_no_frame_has_room_for_is_refused_where_it_is_given() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64)]);
    for is_pull in [false, true] {
        let refused = world.try_consume(1, 1, &[0], |how| {
            how.is_pull = is_pull;
            how.trace = vec![7; TRACE_BYTES_MAX + 1];
        });
        assert_eq!(refused, Err(CallError::Trace(TRACE_BYTES_MAX + 1)));
    }
    world.assert_nothing_is_left();
}
