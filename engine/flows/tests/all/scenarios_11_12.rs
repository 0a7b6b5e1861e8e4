//! Words that make no sense, and words of a life that is over: counted, and nobody else is disturbed.

use penstock_core::{Cause, EngineName, Epoch};
use penstock_flows::{Event, FlowCause, InputEvent};
use penstock_session::PeerKey;
use penstock_session::control::{Abort, Ack, ControlMessage, EndOfData, PeerFeatures, Side, TransferHead};
use penstock_session::landing::ArrivalNote;

use crate::managers::{World, peer, transfer};

/// A source, its sink, and one who has part in nothing.
const LAYOUTS: [(u16, u16, u32); 3] = [(0, 1, 16), (0, 1, 16), (0, 1, 16)];
const STRANGER: usize = 2;

fn head(side: Side, number: u8) -> TransferHead {
    TransferHead { transfer: transfer(number), side, rank: 0, ranks: 1 }
}

/// Pushes 40 tokens of this transfer from engine 0 to engine 1; `meanwhile` happens between the grant and the bytes.
fn push(world: &mut World, number: u8, meanwhile: impl FnOnce(&mut World)) {
    let output = world.produce(0, number, |how| how.is_lent = false);
    let input = world.consume(1, number, &[0], |how| how.is_pull = false);
    world.grant(1, input, &[5, 6, 7]);
    world.run();
    meanwhile(world);
    world.run();
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    world.run();
    assert!(world.told(1, input).contains(&InputEvent::Done { tokens: 40 }));
    assert!(world.has(1, &[5, 6, 7], 0, 0..40));
    let now = world.now;
    world.manager(0).release(output, now);
    world.manager(1).taken(input, 0, now).unwrap();
    world.manager(1).release(input, now);
    world.assert_nothing_is_left();
}

#[test]
fn scenario_11_what_makes_no_sense_is_counted_and_everybody_else_is_served() {
    let mut world = World::new(&LAYOUTS);
    push(&mut world, 1, |world| {
        let mut refused = 0;
        // Its own words again, in a version to come; ends that are not its; bytes that are no landing; and of a rank that cannot be.
        let said = |said: ControlMessage| Event::Said { peer: peer(STRANGER), said };
        let nonsense = [
            said(ControlMessage::PeerFeatures(PeerFeatures { version_min: 90, version_max: 99, tag: 1, credits: 1 })),
            said(ControlMessage::Ack(Ack { head: head(Side::Sink, 1), lease: None })),
            said(ControlMessage::EndOfData(EndOfData {
                head: head(Side::Source, 1),
                parts: 1,
                tokens: 3,
                legs: 1,
                rows: Vec::new().into(),
            })),
            said(ControlMessage::Abort(Abort {
                head: TransferHead { rank: u16::MAX, ..head(Side::Sink, 1) },
                number: 1,
            })),
            Event::Landing { peer: peer(STRANGER), bytes: b"not a landing at all".to_vec() },
            Event::Landing { peer: peer(STRANGER), bytes: Vec::new() },
        ];
        for event in nonsense {
            for at in [0, 1] {
                let before = world.manager(at).metrics().refused;
                world.handle(at, event.clone());
                refused += world.manager(at).metrics().refused - before;
            }
        }
        assert!(refused >= 2 * 3, "{refused} were counted");
    });
    // The stranger is heard where it makes sense.
    let output = world.produce(STRANGER, 2, |how| how.is_lent = false);
    let input = world.consume(1, 2, &[STRANGER], |how| how.is_pull = false);
    world.grant(1, input, &[9]);
    world.chunk(STRANGER, output, (&[1], &[1]), 0..10, true);
    world.run();
    assert!(world.told(1, input).contains(&InputEvent::Done { tokens: 10 }));
}

#[test]
fn scenario_12_a_restarted_peer_is_another_one() {
    let mut world = World::new(&LAYOUTS[..2]);
    world.holds_moves = true;
    let output = world.produce(0, 1, |how| how.is_lent = false);
    let input = world.consume(1, 1, &[0], |how| how.is_pull = false);
    world.grant(1, input, &[5, 6, 7]);
    world.chunk(0, output, (&[1, 2, 3], &[1, 2, 3]), 0..40, true);
    world.run();
    // Engine 0 is started again: the sink has its first life's end, then its second life's beginning.
    world.handle(1, Event::Left { peer: peer(0), cause: Cause::PeerLost });
    world.run();
    let failed = world.failure(1, input);
    assert_eq!((failed.cause, failed.blocks), (FlowCause::PeerLost, vec![5, 6, 7]));
    let again = PeerKey { epoch: Epoch(peer(0).epoch.0 + 1), ..peer(0) };
    let name = EngineName::new("engine-0").unwrap();
    world.handle(1, Event::Joined { peer: again, name });
    world.handle(
        1,
        Event::Said {
            peer: again,
            said: ControlMessage::PeerFeatures(PeerFeatures { version_min: 1, version_max: 1, tag: 1, credits: 1 }),
        },
    );

    // What the first life has still said of the transfer that is over changes nothing.
    let moving = world.nodes[0].moving.values().next().unwrap().1.clone();
    let (_, landing) = moving.landing.unwrap();
    let seal = |number: u8| {
        let (head, rows) = (head(Side::Source, number), Vec::new());
        ControlMessage::EndOfData(EndOfData { head, parts: 1, tokens: 40, legs: 1, rows: rows.into() })
    };
    for life in [peer(0), again] {
        world.handle(1, Event::Landing { peer: life, bytes: landing.clone() });
        world.handle(1, Event::Said { peer: life, said: seal(1) });
        assert_eq!(world.told(1, input), []);
    }
    // Nor has it a part in what the second life is asked for.
    let second = world.consume(1, 2, &[0], |how| (how.is_pull, how.sources) = (false, vec![(0, again)]));
    world.grant(1, second, &[9, 10, 11]);
    let mut of_second = ArrivalNote::decode(&landing).unwrap();
    of_second.transfer = transfer(2);
    let before = world.manager(1).metrics().refused;
    world.handle(1, Event::Landing { peer: peer(0), bytes: of_second.encode() });
    world.handle(1, Event::Said { peer: peer(0), said: seal(2) });
    assert_eq!(world.manager(1).metrics().refused, before + 2, "counted");
    assert_eq!(world.told(1, second), [], "the same words of the second life would be its end");
    world.handle(1, Event::Landing { peer: again, bytes: of_second.encode() });
    world.handle(1, Event::Said { peer: again, said: seal(2) });
    assert_ne!(world.told(1, second), []);
}
