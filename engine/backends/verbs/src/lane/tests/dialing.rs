use super::*;

/// How long the network lets an adapter wait for a peer that does not answer.
const SLOW: Duration = Duration::from_secs(2);

#[test]
fn a_rail_that_the_network_lets_wait_stops_no_write_on_the_other() {
    let (_network, mut sides) = session(2);
    let source = sides[0].engine.region(pattern(3, 1 << 20), Rights::NONE);
    let target = sides[1].engine.region(vec![0; 1 << 20], Rights::READ_WRITE);
    let remote = sides[1].show(&target, &sides[0]);
    sides.iter().for_each(|side| side.engine.adapters[1].slow_connects(SLOW));
    let resets = |sides: &[Side; 2]| sides.iter().map(|side| side.engine.adapters[1].counts().resets).min();
    sides[0].engine.adapters[1].set_port(false);
    until(&mut sides, "the rail is given up", |sides| resets(sides) >= Some(1));
    sides[0].engine.adapters[1].set_port(true);
    let begun = Instant::now();
    let mut token = 1;
    let carried = |sides: &[Side; 2]| sides[0].engine.adapters[1].counts().requests;
    let before = carried(&sides);
    // Until it is up again on this side.
    while begun.elapsed() < 3 * SLOW && carried(&sides) < before + 2 {
        let spans = [span(0, 4096 * (token % 256), 4096)];
        sides[0].post(WRITE, &source, &remote, &spans, (token, token)).unwrap();
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        until(&mut sides, "the write is over", |sides| sides[0].result(token).is_some());
        assert_eq!(sides[0].result(token), Some(Ok(4096)));
        token += 1;
    }
    assert!(begun.elapsed() >= SLOW, "the rail was not waited for");
    assert!(token > 20, "{token} writes while the rail was away");
    let moved = |sides: &[Side; 2]| sides[0].engine.adapters[1].counts().bytes;
    let before = moved(&sides);
    until(&mut sides, "the rail carries again", |sides| {
        token += 1;
        sides[0].post(WRITE, &source, &remote, &[span(0, 0, 4096)], (token, token)).unwrap();
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        until(sides, "the write is over", |sides| sides[0].result(token).is_some());
        moved(sides) >= before + 4096
    });
}

#[test]
fn a_lane_that_goes_while_a_rail_is_being_connected_leaves_nothing_behind() {
    let (_network, mut sides) = session(2);
    sides.iter().for_each(|side| side.engine.adapters[1].slow_connects(SLOW));
    sides[0].engine.adapters[1].set_port(false);
    let resets = |sides: &[Side; 2]| sides.iter().map(|side| side.engine.adapters[1].counts().resets).min();
    until(&mut sides, "the rail is given up", |sides| resets(sides) >= Some(1));
    let begun = Instant::now();
    while begun.elapsed() < SLOW / 4 {
        sides.iter_mut().for_each(|side| {
            side.turn();
        });
    }
    let begun = Instant::now();
    sides[1].workers[0].lane = None;
    assert!(begun.elapsed() < SLOW / 2, "it waits for nobody");
    assert!(sides[1].fence().has_passed(u64::MAX - 1), "nothing lands any more");
    until(&mut sides, "the queue has come back and is gone", |sides| {
        sides[1].engine.adapters.iter().all(|adapter| adapter.counts().queues == 0)
    });
}

#[test]
fn a_session_begins_with_the_rails_that_can_be_connected_and_the_others_come_later() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let [one, two] = [Engine::new(&network, 2, 1), Engine::new(&network, 2, 1)];
    one.adapters[1].refuse_connects(3);
    let mut sides = join(one, two);
    settle(&mut sides);
    let source = sides[0].engine.region(pattern(4, 1 << 20), Rights::NONE);
    let target = sides[1].engine.region(vec![0; 1 << 20], Rights::READ_WRITE);
    let remote = sides[1].show(&target, &sides[0]);
    let mut token = 0;
    until(&mut sides, "both rails carry", |sides| {
        token += 1;
        sides[0].post(WRITE, &source, &remote, &[span(0, 0, 4096)], (token, token)).unwrap();
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        until(sides, "the write is over", |sides| sides[0].result(token).is_some());
        sides[0].engine.adapters.iter().all(|adapter| adapter.counts().bytes >= 4096)
    });
}

#[test]
fn a_session_without_any_rail_does_not_begin() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let [one, two] = [Engine::new(&network, 2, 1), Engine::new(&network, 2, 1)];
    one.adapters.iter().for_each(|adapter| adapter.refuse_connects(1));
    assert!(matches!(try_join(one, two), Err(JoinError::NoPath(_))));
}
