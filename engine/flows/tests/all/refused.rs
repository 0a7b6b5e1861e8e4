//! A sink whose grant or whose source's words were refused: it ends at once, its blocks come back, and who is served is not disturbed.

use std::time::Duration;

use penstock_flows::manager::{Consume, Sinks};
use penstock_flows::{Event, FlowCause, InputEvent, LayoutKey};
use penstock_session::PeerKey;
use penstock_session::control::{Abort, ControlMessage, Form, ReadOffer, Rows, Side, TransferHead};
use penstock_session::transfers::table::EntryKey;

use crate::managers::{World, news, peer, transfer};

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
    assert!(world.told(1, first).contains(&InputEvent::Done { tokens: 40 }));
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
        let head = TransferHead { transfer: transfer(1), side: Side::Sink, rank: 0, ranks: 1 };
        Event::Said { peer, said: ControlMessage::Abort(Abort { head, number: 7 }) }
    };
    let answers = |world: &World| world.count(0, |said| matches!(said, ControlMessage::AbortAck(_)));
    world.handle(0, abort(PeerKey { peer_index: 9, ..peer(1) }));
    world.run();
    assert_eq!((answers(&world), world.manager(0).metrics().refused), (0, 1));
    world.handle(0, abort(peer(2)));
    world.run();
    assert_eq!((answers(&world), world.manager(0).metrics().refused), (1, 2), "who never had one is");
}

/// The source has failed by itself, of which its sink has the same cause and words: they name the transfer and have these in them.
fn both_know_why(world: &mut World, output: EntryKey, input: EntryKey, cause: FlowCause, parts: &[&str]) {
    let ended = world.manager(0).send_failure(output).expect("it does not wait for its deadline").clone();
    assert_eq!((ended.cause, ended.said_by), (cause, Side::Source), "{ended:?}");
    let failed = world.failure(1, input);
    assert_eq!((failed.cause, failed.said_by, &failed.words), (cause, Side::Source, &ended.words));
    let name = transfer(1).to_string();
    for part in parts.iter().chain(&[name.as_str()]) {
        assert!(ended.words.contains(part), "{part}: {}", ended.words);
    }
    assert_eq!(world.nodes[1].quarantined, []);
    let now = world.now;
    world.manager(1).release(input, now);
    world.manager(0).release(output, now);
    world.run();
    world.assert_nothing_is_left();
}

#[test]
fn who_counts_ranks_otherwise_than_its_source_ends_at_once_and_so_does_the_source() {
    for is_lent in [false, true] {
        let mut world = World::new(&LAYOUTS);
        let output = world.produce(0, 1, |how| (how.is_lent, how.sinks) = (is_lent, Sinks::Sharing(1)));
        world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
        let input = world.consume(1, 1, &[0], |how| (how.is_pull, how.rank) = (is_lent, (0, 2)));
        let keep = world.grant(1, input, &[7, 8, 9]);
        world.run();
        assert_eq!(world.nodes[1].freed, [keep]);
        both_know_why(&mut world, output, input, FlowCause::Refused, &["1 ranks", "has 2"]);
    }
}

/// Somebody who counts otherwise is turned away, and ends nothing of those who count as the source does.
#[test]
fn who_counts_ranks_otherwise_ends_no_transfer_of_others() {
    for is_lent in [false, true] {
        let mut world = World::new(&[(0, 1, 16), (0, 2, 16), (2, 4, 16)]);
        let output = world.produce(0, 1, |how| (how.is_lent, how.sinks) = (is_lent, Sinks::Sharing(2)));
        let input = world.consume(1, 1, &[0], |how| (how.is_pull, how.rank) = (is_lent, (0, 2)));
        world.grant(1, input, &[7, 8, 9]);
        world.run();
        let stranger = world.consume(2, 1, &[0], |how| (how.is_pull, how.rank) = (is_lent, (2, 4)));
        let keep = world.grant(2, stranger, &[7, 8, 9]);
        world.run();
        let failed = world.failure(2, stranger);
        assert!(failed.words.contains("has 4"), "{}", failed.words);
        assert_eq!(world.nodes[2].freed, [keep]);
        assert_eq!(world.manager(0).send_failure(output), None);
        assert_eq!(world.told(1, input), []);
    }
}

/// A layout whose first buffer has rows of so many bytes, under a label of its own.
fn other_layout(world: &mut World, at: usize, bytes: u32) -> LayoutKey {
    let (mut news, end) = news(0, 1, 16, 64);
    news.label = "other".to_owned();
    for buffer in &mut news.buffers[..1] {
        buffer.form = Form::TokenMajor(Rows { first: 0, count: 8, of: 8, bytes });
        buffer.stride = 8 * 16 * u64::from(bytes);
        buffer.base = end;
    }
    let key = world.manager(at).add_layout(news, end + 64 * 8 * 16 * u64::from(bytes)).unwrap();
    world.run();
    key
}

#[test]
fn layouts_that_do_not_fit_end_both_sides_at_once_with_the_buffer_and_both_numbers() {
    let numbers = ["a row of buffer 0 has 6 bytes at the source and 12 at the sink"];
    for is_spread in [false, true] {
        let mut world = World::new(&LAYOUTS);
        let sinks = if is_spread { Sinks::Sharing(1) } else { Sinks::These(vec![0], 1) };
        let output = world.produce(0, 1, |how| (how.is_lent, how.sinks) = (false, sinks));
        let layout = other_layout(&mut world, 1, 12);
        let input = world.consume(1, 1, &[0], |how| (how.is_pull, how.layout) = (false, layout));
        let keep = world.grant(1, input, &[7, 8, 9]);
        world.run();
        assert_eq!(world.nodes[1].freed, [keep]);
        both_know_why(&mut world, output, input, FlowCause::Unfit, &numbers);
    }
    // Of what is lent it is the sink that sees it first.
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    let layout = other_layout(&mut world, 1, 12);
    let input = world.consume(1, 1, &[0], |how| how.layout = layout);
    world.grant(1, input, &[7, 8, 9]);
    world.run();
    let ended = world.manager(0).send_failure(output).expect("it does not wait for its deadline").clone();
    let failed = world.failure(1, input);
    assert_eq!((ended.cause, ended.said_by), (FlowCause::Unfit, Side::Sink), "{ended:?}");
    assert_eq!((failed.cause, &failed.words), (FlowCause::Unfit, &ended.words));
    let all = ["a row of buffer 0 has 12 bytes at the sink and 6 at the source", &transfer(1).to_string()];
    assert!(all.iter().all(|part| ended.words.contains(part)), "{}", ended.words);
}

/// What cannot be granted to a source that has what goes once, and no block for it, is known to both.
#[test]
fn a_rank_that_begins_behind_the_end_ends_both_sides_at_once() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    let input = world.consume(1, 1, &[0], |how| (how.is_pull, how.begin) = (false, 48));
    world.grant(1, input, &[7, 8, 9]);
    world.run();
    both_know_why(&mut world, output, input, FlowCause::Refused, &["48", "40"]);
}

/// Whoever has the rank is served, and whoever wants it, too, hears why it is not.
#[test]
fn a_second_claimant_hears_whose_the_rank_is() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let first = world.consume(1, 1, &[0], |how| how.is_pull = false);
    world.grant(1, first, &[4, 5, 6]);
    world.run();
    let second = world.consume(2, 1, &[0], |how| how.is_pull = false);
    world.grant(2, second, &[4, 5, 6]);
    world.run();
    let failed = world.failure(2, second);
    assert!(failed.words.contains("rank 0 was claimed by peer"), "{}", failed.words);
    assert_eq!(world.manager(0).send_failure(output), None);
}

/// Also who lends ends then, with its own blocks back: nobody will read them.
#[test]
fn who_waits_for_a_push_of_what_is_lent_gets_its_blocks_back_and_so_does_the_lender() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    let keep = world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    ends_with_its_blocks(&mut world, |_| {});
    let failed = world.manager(0).send_failure(output).expect("nobody would come to read it");
    assert_eq!((failed.cause, failed.said_by, failed.sink), (FlowCause::Refused, Side::Source, Some(0)));
    assert_eq!(world.nodes[0].freed, [keep]);
}

/// The lender has failed by what it refused to the first rank. The second one cannot know that.
#[test]
fn a_rank_that_waits_for_a_push_after_another_was_refused_hears_of_it_at_once() {
    let mut world = World::new(&[(0, 1, 16), (0, 2, 16), (1, 2, 16)]);
    let output = world.produce(0, 1, |how| (how.is_lent, how.sinks) = (true, Sinks::Sharing(2)));
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    for rank in [0, 1] {
        let at = usize::from(rank) + 1;
        let input = world.consume(at, 1, &[0], |how| (how.is_pull, how.rank) = (false, (rank, 2)));
        let keep = world.grant(at, input, &[7, 8, 9]);
        world.run();
        assert_eq!(world.failure(at, input).cause, FlowCause::Refused, "rank {rank}");
        assert_eq!(world.nodes[at].freed, [keep]);
    }
    assert_eq!(world.manager(0).send_failure(output).unwrap().sink, Some(0));
}

/// Its own words follow what was refused, and are quicker than the refusal.
#[test]
fn who_gives_up_a_push_of_what_is_lent_before_it_is_refused_gets_its_blocks_back() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = true);
    let source = world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    let input = world.consume(2, 1, &[0], |how| how.is_pull = false);
    let keep = world.grant(2, input, &[7, 8, 9]);
    let now = world.now;
    world.manager(2).fail(input, FlowCause::SinkFailed, "no", now);
    world.run();
    assert_eq!((&world.nodes[2].freed[..], &world.nodes[2].quarantined[..]), (&[keep][..], &[][..]));
    assert_eq!(world.manager(0).send_failure(output).unwrap().cause, FlowCause::Refused);
    assert_eq!(world.nodes[0].freed, [source]);
    assert_eq!(world.manager(0).metrics().refused, 1, "its grant, and nothing else");
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
    assert!(world.told(1, reader).contains(&InputEvent::Done { tokens: 40 }));
    assert!(world.has(1, &[4, 5, 6], 0, 0..40));
}

#[test]
fn a_pull_of_a_layout_that_does_not_fit_says_so_at_once() {
    let mut world = World::new(&LAYOUTS);
    world.mute.insert(0);
    let input = world.consume(1, 1, &[0], |_| {});
    let keep = world.grant(1, input, &[7]);
    world.run();
    let head = TransferHead { transfer: transfer(1), side: Side::Source, rank: 0, ranks: 1 };
    let lend = ReadOffer {
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
    assert_eq!(
        (world.count(1, |said| matches!(said, ControlMessage::Fail(_))), &world.nodes[1].freed[..]),
        (1, &[keep][..])
    );
}

#[test]
fn a_name_is_not_given_again_while_something_of_its_last_transfer_is_kept() {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let now = world.now;
    world.manager(0).fail(output, FlowCause::SourceFailed, "no", now);
    world.run();
    // Longer than its end is remembered; its handle is still there.
    world.pass(Duration::from_secs(3_600));
    let again = world.try_produce(0, 1, |_| {});
    assert!(again.unwrap_err().to_string().contains("still kept"));
    let now = world.now;
    world.manager(0).release(output, now);
    world.run();
    world.try_produce(0, 1, |_| {}).unwrap();
}
