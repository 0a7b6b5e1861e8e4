use super::*;
use crate::model::{Options as Network, Pace};

const NOTE: [u8; 4096] = [7; 4096];
const RESETS: u64 = 200;

/// A session of one rail between adapters of small packets, where nothing happens but by hand.
fn by_hand() -> (ModelNetwork, [Side; 2]) {
    let network = ModelNetwork::new(Network { pace: Pace::ByHand, step_bytes: 1024, ..Network::default() });
    let engine = || Engine::with(vec![network.adapter_with(|attr| attr.mtu = 1024)], 1, VerbsOptions::default());
    let sides = join(engine(), engine());
    (network, sides)
}

/// Turns both, and lets the adapters work, until this is so.
fn work(network: &ModelNetwork, sides: &mut [Side; 2], what: &str, mut is_so: impl FnMut(&[Side; 2]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so(sides) {
        network.run();
        sides.iter_mut().for_each(|side| {
            side.turn();
            assert_eq!(side.fault(), None, "while waiting until {what}");
        });
        assert!(Instant::now() < deadline, "waited too long until {what}");
    }
}

#[test]
fn receives_that_a_card_loses_with_a_broken_queue_are_given_again() {
    let (network, mut sides) = by_hand();
    let receives = |sides: &[Side; 2]| sides[1].engine.adapters[0].counts().receives;
    let (before, slots) = (receives(&sides), sides[1].engine.transport.hub(0).lock().slots());
    assert!(before > 16);
    sides[1].engine.adapters[0].lose_receives();
    for round in 0..RESETS {
        while sides[0].tell(round, round, round.into(), &NOTE).is_err() {
            let mut turns = 0;
            work(&network, &mut sides, "there is room", |_| (turns += 1, turns > 1).1);
        }
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        let there = receives(&sides);
        while receives(&sides) == there {
            assert!(network.step(), "it comes");
        }
        assert!(sides[1].engine.adapters[0].break_queue(0x11));
        work(&network, &mut sides, "it is said again", |sides| sides[0].result(round).is_some());
        assert_eq!(sides[0].result(round), Some(Ok(1)));
    }
    // More than there were; what was lost last is known when a later one is taken.
    sides[0].tell(RESETS, RESETS, RESETS.into(), b"").unwrap();
    work(&network, &mut sides, "the last is heard", |sides| sides[0].result(RESETS).is_some());
    assert_eq!(sides[1].got().notes.len() as u64, RESETS + 1);
    assert_eq!(receives(&sides), before);
    assert_eq!(sides[1].engine.transport.hub(0).lock().slots(), slots, "and no memory goes");
}
