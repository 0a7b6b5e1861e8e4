//! A sink whose grant or whose source's words were refused: it ends at once, its blocks come back, and who is served is not disturbed.

use std::time::Duration;

use penstock_flows::desk::{Consume, Sinks};
use penstock_flows::{Event, FlowCause, Happening};
use penstock_session::PeerKey;
use penstock_session::control::{Abort, Head, Lend, Said, Side};

use crate::desks::{World, peer, transfer};

/// A source and two sinks.
const LAYOUTS: [(u16, u16, u32); 3] = [(0, 1, 16), (0, 1, 16), (0, 1, 16)];

/// Engine 2 asks for what it cannot have: it has failed at once with its blocks back, which the source is in no state to keep from it.
fn ends_with_its_blocks(world: &mut World, how: impl FnOnce(&mut Consume)) {
    let input = world.consume(2, 1, &[0], |consume| {
        consume.is_pull = false;
        how(consume);
    });
    let keep = world.grant(2, input, &[7, 8, 9]);
    world.run();
    let failed = world.failure(2, input);
    assert!(matches!(failed.cause, FlowCause::Refused | FlowCause::Unfit), "{failed:?}");
    assert_eq!(failed.blocks, [7, 8, 9]);
    world.pass(Duration::from_secs(5));
    assert_eq!((&world.nodes[2].freed[..], &world.nodes[2].quarantined[..]), (&[keep][..], &[][..]));
}

#[test]
fn a_second_claimant_of_a_rank_gets_its_blocks_back_and_the_first_everything() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let first = world.consume(1, 1, &[0], |how| how.is_pull = false);
    world.grant(1, first, &[4, 5, 6]);
    world.run();
    ends_with_its_blocks(&mut world, |_| {});
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    world.run();
    assert!(world.told(1, first).contains(&Happening::Done { tokens: 40 }));
    assert!(world.has(1, &[4, 5, 6], 0, 0..40));
}

#[test]
fn who_has_a_part_in_another_session_is_not_told_that_nothing_lands() {
    let mut world = World::new(&LAYOUTS);
    world.produce(0, 1, |how| how.is_lent = false);
    let input = world.consume(1, 1, &[0], |how| how.is_pull = false);
    world.grant(1, input, &[4, 5, 6]);
    world.run();
    let abort = |peer: PeerKey| {
        let head = Head { transfer: transfer(1), side: Side::Sink, rank: 0, ranks: 1 };
        Event::Said { peer, said: Said::Abort(Abort { head, number: 7 }) }
    };
    let answers = |world: &World| world.count(0, |said| matches!(said, Said::AbortAck(_)));
    world.handle(0, abort(PeerKey { party: 9, ..peer(1) }));
    world.run();
    assert_eq!((answers(&world), world.desk(0).metrics().refused), (0, 1));
    world.handle(0, abort(peer(2)));
    world.run();
    assert_eq!((answers(&world), world.desk(0).metrics().refused), (1, 2), "who never had one is");
}

#[test]
fn ranks_that_are_counted_otherwise_get_their_blocks_back() {
    let mut world = World::new(&LAYOUTS);
    world.produce(0, 1, |how| (how.is_lent, how.sinks) = (false, Sinks::Sharing(1)));
    ends_with_its_blocks(&mut world, |how| how.rank = (0, 2));
}

/// Also who lends ends then, with its own blocks back: nobody will read them.
#[test]
fn who_waits_for_a_push_of_what_is_lent_gets_its_blocks_back_and_so_does_the_lender() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    let keep = world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    ends_with_its_blocks(&mut world, |_| {});
    let failed = world.desk(0).send_failure(output).expect("its sink has given it up");
    assert_eq!((failed.cause, failed.said_by, failed.sink), (FlowCause::Aborted, Side::Sink, Some(0)));
    assert_eq!(world.nodes[0].freed, [keep]);
}

/// Its own words are quicker than the refusal.
#[test]
fn who_gives_up_a_push_of_what_is_lent_before_it_is_refused_gets_its_blocks_back() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    let source = world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    let input = world.consume(2, 1, &[0], |how| how.is_pull = false);
    let keep = world.grant(2, input, &[7, 8, 9]);
    let now = world.now;
    world.desk(2).fail(input, FlowCause::SinkFailed, "no", now);
    world.run();
    assert_eq!((&world.nodes[2].freed[..], &world.nodes[2].quarantined[..]), (&[keep][..], &[][..]));
    assert_eq!(world.desk(0).send_failure(output).unwrap().cause, FlowCause::SinkFailed);
    assert_eq!(world.nodes[0].freed, [source]);
    assert_eq!(world.desk(0).metrics().refused, 1, "its grant, and nothing else");
}

/// A rank that reads is not disturbed by another engine that waits to be sent the same.
#[test]
fn who_reads_is_not_disturbed_by_one_who_waits_for_a_push() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    let reader = world.consume(1, 1, &[0], |_| {});
    world.grant(1, reader, &[4, 5, 6]);
    world.run();
    ends_with_its_blocks(&mut world, |_| {});
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    world.run();
    assert!(world.told(1, reader).contains(&Happening::Done { tokens: 40 }));
    assert!(world.has(1, &[4, 5, 6], 0, 0..40));
}

#[test]
fn a_pull_of_a_layout_that_does_not_fit_says_so_at_once() {
    let mut world = World::new(&LAYOUTS);
    world.mute.insert(0);
    let input = world.consume(1, 1, &[0], |_| {});
    let keep = world.grant(1, input, &[7]);
    world.run();
    let head = Head { transfer: transfer(1), side: Side::Source, rank: 0, ranks: 1 };
    let lend = Lend {
        head,
        layout: 99,
        layout_generation: 1,
        from: 0,
        tokens: 16,
        total: Some(16),
        layers: 3,
        is_sealed: true,
        once: None,
        lease: 5,
        ttl_ms: 2_000,
        blocks: vec![1],
    };
    world.handle(1, Event::Said { peer: peer(0), said: lend.into() });
    world.run();
    let failed = world.failure(1, input);
    assert_eq!((failed.cause, failed.said_by), (FlowCause::Unfit, Side::Sink));
    assert_eq!((world.count(1, |said| matches!(said, Said::Refused(_))), &world.nodes[1].freed[..]), (1, &[keep][..]));
}

#[test]
fn a_name_is_not_given_again_while_something_of_its_last_transfer_is_kept() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let now = world.now;
    world.desk(0).fail(output, FlowCause::SourceFailed, "no", now);
    world.run();
    // Longer than its end is remembered; its handle is still there.
    world.pass(Duration::from_secs(3_600));
    let again = world.try_produce(0, 1, |_| {});
    assert!(again.unwrap_err().to_string().contains("still kept"));
    let now = world.now;
    world.desk(0).release(output, now);
    world.run();
    world.try_produce(0, 1, |_| {}).unwrap();
}
