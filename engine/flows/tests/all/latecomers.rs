//! Words for transfers of which nothing is known, not any more or not yet: nobody waits for an answer that cannot come.

use std::time::Duration;

use penstock_core::{Cause, EngineName, Epoch};
use penstock_flows::continuation::{Isolation, Miss};
use penstock_flows::manager::{CallError, HowEnded, Reported, Settings};
use penstock_flows::{Event, FlowCause, InputEvent, Silence};
use penstock_session::control::{ControlMessage, PeerFeatures, Side};
use penstock_session::{PeerKey, RequestId};

use crate::managers::{World, peer, transfer};

const LAYOUTS: [(u16, u16, u32); 2] = [(0, 1, 16), (0, 1, 64)];

/// A source that has failed and let go of it before its sink has begun.
fn let_go_of() -> World {
    let mut world = World::new(&LAYOUTS);
    let output = world.produce(0, 1, |_| {});
    let now = world.now;
    world.manager(0).fail(output, FlowCause::SourceFailed, "the model ran out of memory", now);
    world.manager(0).release(output, now);
    world.run();
    world
}

#[test]
fn who_asks_for_what_has_failed_and_was_let_go_of_hears_so_at_once() {
    for is_pull in [false, true] {
        let mut world = let_go_of();
        let input = world.consume(1, 1, &[0], |how| how.is_pull = is_pull);
        let keep = world.grant(1, input, &[3]);
        world.run();
        let failed = world.failure(1, input);
        assert_eq!((failed.cause, failed.said_by, failed.blocks), (FlowCause::SourceFailed, Side::Source, vec![3]));
        assert_eq!(failed.words, "the model ran out of memory", "as whoever was there heard it");
        assert_eq!(world.nodes[1].freed, [keep], "what was let go of moves nothing, and says so");
        assert_eq!(world.nodes[1].quarantined, []);
        world.assert_nothing_is_left();
    }
}

#[test]
fn what_comes_early_and_finds_no_room_is_answered_with_the_setting_that_bounds_it() {
    for is_pull in [false, true] {
        let mut settings = Settings::default();
        settings.transfers.early.messages = 3;
        let mut world = World::with(settings, &LAYOUTS);
        let inputs: Vec<_> = (1..=3)
            .map(|number| {
                let input = world.consume(1, number, &[0], |how| how.is_pull = is_pull);
                let keep = world.grant(1, input, &[number.into()]);
                world.run();
                (input, keep)
            })
            .collect();
        // A peer may have as much as is left for all: two of three.
        assert_eq!((world.told(1, inputs[0].0), world.told(1, inputs[1].0)), (vec![], vec![]));
        let failed = world.failure(1, inputs[2].0);
        assert_eq!(failed.cause, FlowCause::Refused);
        assert!(failed.words.contains("control.early_messages"), "{}", failed.words);
        assert_eq!(world.manager(0).metrics().transfers.early, 2, "the others wait");
        // Its abort found no room either, and is answered all the same.
        assert_eq!((&world.nodes[1].freed[..], &world.nodes[1].quarantined[..]), (&[inputs[2].1][..], &[][..]));
    }
}

#[test]
fn a_source_that_nobody_begins_is_known_before_the_sinks_own_time_is_over() {
    for is_pull in [false, true] {
        let mut world = World::new(&LAYOUTS);
        let input = world.consume(1, 1, &[0], |how| how.is_pull = is_pull);
        world.grant(1, input, &[3]);
        world.pass(Duration::from_millis(29_999));
        assert_eq!(world.told(1, input), []);
        world.pass(Duration::from_millis(1));
        let failed = world.failure(1, input);
        assert_eq!(failed.cause, FlowCause::Deadline);
        assert!(failed.words.contains("nobody has begun it there in time"), "{}", failed.words);
    }
}

#[test]
fn a_lost_peer_ends_its_own_transfers_and_nothing_is_remembered_of_it() {
    let mut world = World::new(&[(0, 1, 16), (0, 1, 64), (0, 1, 64)]);
    let pairs: Vec<_> = [(1, 1, false), (2, 1, true), (3, 2, false), (4, 2, true)]
        .into_iter()
        .map(|(number, sink, is_pull)| {
            let output = world.produce(0, number, |how| how.is_lent = is_pull);
            let input = world.consume(sink, number, &[0], |how| how.is_pull = is_pull);
            world.grant(sink, input, &[number.into()]);
            world.run();
            (sink, output, input)
        })
        .collect();
    world.part(0, 1);
    world.run();
    let failed: Vec<bool> =
        pairs.iter().map(|(_, output, _)| world.nodes[0].manager.send_failure(*output).is_some()).collect();
    assert_eq!(failed, [true, true, false, false], "one failing peer costs the others nothing");
    world.part(0, 2);
    for at in 0..3 {
        for other in (0..3).filter(|&other| other != at) {
            world.handle(at, Event::Left { peer: peer(other), cause: Cause::PeerLost });
        }
    }
    let now = world.now;
    for (sink, output, input) in pairs {
        world.manager(0).release(output, now);
        world.manager(sink).release(input, now);
    }
    world.run();
    for node in &world.nodes {
        assert!(node.manager.is_empty(), "{:?}", node.manager.metrics());
    }
}

/// What a peer can do, and that its session is over, are said in the same words by all parts.
#[test]
fn who_is_gone_who_has_said_nothing_yet_and_who_cannot_are_three_answers() {
    let mut world = World::new(&LAYOUTS);
    let now = world.now;
    let there = |peer_index| PeerKey { peer_index, epoch: Epoch(77) };
    let (quiet, old) = (there(8), there(9));
    for peer in [quiet, old] {
        let name = EngineName::new(&format!("engine-{}", peer.peer_index)).unwrap();
        world.handle(1, Event::Joined { peer, name });
    }
    world.handle(1, Event::Unable { peer: old });
    // A release that is too new says so itself.
    let newer = there(10);
    world.handle(1, Event::Joined { peer: newer, name: EngineName::new("newer").unwrap() });
    let able = PeerFeatures { version_min: 90, version_max: 99, tag: 1, credits: 1 };
    world.handle(1, Event::Said { peer: newer, said: ControlMessage::PeerFeatures(able) });
    let gone = there(11);
    let expected =
        [(gone, Silence::Gone), (quiet, Silence::NotYet), (old, Silence::NotSpoken), (newer, Silence::NotSpoken)];
    for (peer, silence) in expected {
        let words = silence.to_string();
        let consumed = world.try_consume(1, 1, &[], |how| how.sources = vec![(0, peer)]).unwrap_err();
        let parent = RequestId::new("parent").unwrap();
        let isolation = Isolation::default();
        let asked =
            world.manager(1).ask_parent(peer, &parent, &isolation, 33, Duration::from_secs(1), now).unwrap_err();
        let typed = match silence {
            Silence::Gone => consumed == CallError::PeerLost { rank: 0 } && asked == Miss::PeerLost,
            Silence::NotYet => consumed == CallError::NotYet { rank: 0 } && asked == Miss::NotYet,
            Silence::NotSpoken => consumed == CallError::NotSpoken { rank: 0 } && asked == Miss::NotSpoken,
        };
        assert!(typed, "{consumed:?} {asked:?}");
        for said in [consumed.to_string(), asked.to_string()] {
            assert!(said.ends_with(&words), "{said}");
        }
    }
    for peer in [quiet, old, newer] {
        world.handle(1, Event::Left { peer, cause: Cause::PeerClosed });
        assert_eq!(world.manager(1).speaks(peer), Err(Silence::Gone));
    }
}

/// One for each side and each end, with both names, and of nothing that nobody wants to hear of.
#[test]
fn ends_are_reported_to_whoever_wants_to_hear_of_them() {
    let wanted = [(false, false), (true, false), (true, true)];
    for (failures, successes) in wanted {
        let mut world = World::new(&LAYOUTS);
        for at in 0..2 {
            world.manager(at).report(Reported { failures, successes });
        }
        for (number, is_pull) in [(1, false), (2, true)] {
            let output = world.produce(0, number, |how| how.is_lent = is_pull);
            let input = world.consume(1, number, &[0], |how| how.is_pull = is_pull);
            world.grant(1, input, &[number.into()]);
            world.chunk(0, output, (&[number.into()], &[number.into()]), 0..16, true);
            world.run();
        }
        for (number, is_pull) in [(3, false), (4, true)] {
            let output = world.produce(0, number, |how| how.is_lent = is_pull);
            let input = world.consume(1, number, &[0], |how| how.is_pull = is_pull);
            world.grant(1, input, &[number.into()]);
            world.run();
            let now = world.now;
            world.manager(0).fail(output, FlowCause::SourceFailed, "oom", now);
            world.run();
            assert!(matches!(world.told(1, input)[..], [InputEvent::Failed(_)]));
        }
        let well = |tokens| HowEnded::Well { tokens };
        let failed =
            HowEnded::Failed { cause: FlowCause::SourceFailed, said_by: Side::Source, words: "oom".to_owned() };
        for (at, side, tokens) in [(0, Side::Source, None), (1, Side::Sink, Some(16))] {
            let ends = [(1, well(tokens)), (2, well(tokens)), (3, failed.clone()), (4, failed.clone())];
            let is_wanted = |how: &HowEnded| if matches!(how, HowEnded::Well { .. }) { successes } else { failures };
            let expected: Vec<_> = ends
                .into_iter()
                .filter(|(_, how)| is_wanted(how))
                .map(|(number, how)| (side, transfer(number), vec![peer(1 - at)], how))
                .collect();
            let reports = world.nodes[at].reports.iter();
            let found: Vec<_> = reports
                .map(|report| (report.side, report.transfer, report.peers.clone(), report.how.clone()))
                .collect();
            assert_eq!(found, expected);
            assert!(world.nodes[at].reports.iter().all(|report| !report.request.as_str().is_empty()));
        }
    }
}
