use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn wire(scenario: &str) -> Wire {
    Wire::new(scenario.parse().unwrap())
}

/// Which paths a frame gets through that is offered now, after whatever time it takes.
fn passes(wire: &mut Wire, now: Duration) -> [bool; 2] {
    wire.advance(now);
    [0, 1].map(|path| {
        wire.offer(path, now, vec![0; 60]);
        wire.take(path, now + ms(1)).is_some()
    })
}

#[test]
fn a_partition_begins_and_ends_with_its_span_in_its_direction() {
    let mut wire = wire("at=10ms partition both for=10ms; at=30ms partition a-to-b; at=40ms heal");
    for (at, expected) in [
        (9, [true, true]),
        (10, [false, false]),
        (19, [false, false]),
        (20, [true, true]),
        (30, [false, true]),
        (39, [false, true]),
        (40, [true, true]),
    ] {
        assert_eq!(passes(&mut wire, ms(at)), expected, "at {at} ms");
    }
    assert_eq!(wire.next_moment(), None);
}

#[test]
fn events_come_in_their_order_even_if_none_is_looked_at_in_time() {
    let mut wire = wire("at=20ms partition; at=10ms partition for=1ms; at=30ms heal b-to-a");
    assert_eq!(wire.next_moment(), Some(ms(10)));
    assert_eq!(passes(&mut wire, ms(100)), [false, true]);
}

#[test]
fn faults_with_a_span_are_as_before_afterwards() {
    let mut wire = wire("both loss=0%; at=10ms set a-to-b loss=100% for=20ms; at=15ms set both loss=100% for=5ms");
    for (at, expected) in [(5, [true, true]), (12, [false, true]), (17, [false, false]), (25, [false, true])] {
        assert_eq!(passes(&mut wire, ms(at)), expected, "at {at} ms");
    }
    assert_eq!(passes(&mut wire, ms(30)), [true, true]);
}

#[test]
fn a_change_by_hand_outlives_a_span_on_top_of_it() {
    let mut wire = wire("at=0ms set both loss=0% for=10ms");
    wire.advance(ms(1));
    wire.happen("set both loss=100%".parse().unwrap());
    assert_eq!(passes(&mut wire, ms(5)), [true, true]);
    assert_eq!(passes(&mut wire, ms(10)), [false, false]);
}

#[test]
fn healing_one_direction_of_a_span_leaves_the_other_cut() {
    let mut wire = wire("at=0ms partition both for=100ms");
    wire.advance(ms(1));
    wire.happen(What::Heal(Direction::AToB));
    assert_eq!(passes(&mut wire, ms(5)), [true, false]);
    wire.happen(What::Heal(Direction::Both));
    assert_eq!(passes(&mut wire, ms(6)), [true, true]);
    assert_eq!(wire.next_moment(), None);
}

#[test]
fn frames_under_way_are_lost_when_the_wire_is_cut_and_counted() {
    let mut wire = wire("both delay=10ms; at=5ms partition for=1ms");
    wire.offer(0, ms(0), vec![0; 60]);
    wire.offer(1, ms(0), vec![0; 60]);
    assert_eq!(wire.next_moment(), Some(ms(5)));
    wire.advance(ms(20));
    assert_eq!([wire.take(0, ms(20)), wire.take(1, ms(20))], [None, None]);
    assert_eq!((wire.stats().a_to_b.cut, wire.stats().b_to_a.cut), (1, 1));
}
