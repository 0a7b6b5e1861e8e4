//! Joins that could wait for each other.

use penstock_flows::relay::{GetKey, JoinKey, Put};

use crate::losses::{ended, give, join};
use crate::stages::{BERTH, World, pattern};

/// Whatever comes first: each chunk goes to the join that has waited longest for one of its engine, so no two have half of what both need.
#[test]
fn two_joins_of_the_same_sources_in_opposite_orders_are_whole_one_behind_the_other() {
    // Who gives, in every order of two chunks of each.
    for order in [[0, 0, 2, 2], [0, 2, 0, 2], [0, 2, 2, 0], [2, 0, 0, 2], [2, 0, 2, 0], [2, 2, 0, 0]] {
        for announced_before in 0..=4 {
            let mut world = World::of(&["a", "b", "c"]);
            let mut joins = Vec::new();
            let mut begin = |world: &mut World| {
                joins = vec![join(world, 1, "r", &["a", "c"]), join(world, 1, "r", &["c", "a"])];
            };
            for (number, from) in order.into_iter().enumerate() {
                if number == announced_before {
                    begin(&mut world);
                }
                let words = order[..number].iter().filter(|other| **other == from).count();
                give(&mut world, from, 1, &[from as u8, words as u8]);
            }
            if announced_before == 4 {
                begin(&mut world);
            }
            let found: Vec<_> = joins.iter().map(|join| ended(&world, 1, *join)).collect();
            let (older, younger) = (vec![vec![0, 0], vec![2, 0]], vec![vec![2, 1], vec![0, 1]]);
            assert_eq!(found, [Some(Ok(older)), Some(Ok(younger))], "{order:?}, {announced_before} before");
        }
    }
}

/// All berths of each source are lent to the join that the other one puts for last. Their reader alone can let one go on: it fetches what is
/// there of both.
#[test]
fn joins_of_two_requests_go_on_when_what_is_there_is_fetched() {
    let mut world = World::of(&["a", "b", "c"]);
    let joins = [join(&mut world, 1, "r", &["a", "c"]), join(&mut world, 1, "s", &["c", "a"])];
    let whole = pattern(1, 2 * BERTH);
    let mut puts = Vec::new();
    for (from, of) in [(0, "r"), (2, "s"), (0, "s"), (2, "r")] {
        puts.push((from, world.put(from, of, 2 * BERTH, &[1])));
    }
    let fill = |world: &mut World| puts.iter().map(|&(from, put)| world.fill(from, put, &whole)).sum::<usize>();
    while fill(&mut world) > 0 {
        world.run();
    }
    let states: Vec<_> = puts.iter().map(|&(from, put)| world.engines[from].relay.put_state(put).unwrap()).collect();
    assert_eq!(states, [Put::Published, Put::Published, Put::Waiting, Put::Waiting]);
    let found = |world: &World, join: JoinKey| {
        let all = world.engines[1].relay.join_found(join);
        all.into_iter().map(|chunk| (chunk.engine.as_str().to_owned(), chunk.metadata)).collect::<Vec<_>>()
    };
    let mut gets: Vec<GetKey> = Vec::new();
    for (join, source) in joins.into_iter().zip(["a", "c"]) {
        assert_eq!(ended(&world, 1, join), None);
        let there = found(&world, join);
        assert_eq!(there.iter().map(|(engine, _)| engine.as_str()).collect::<Vec<_>>(), [source]);
        gets.push(world.get(1, &there[0].1));
    }
    loop {
        let filled = fill(&mut world);
        world.run();
        let copied: usize = gets.iter().map(|get| world.copy_out(1, *get, &mut vec![0; whole.len()])).sum();
        if filled + copied == 0 {
            break;
        }
    }
    assert!(gets.iter().all(|get| world.engines[1].relay.get_result(*get) == Some(&Ok(()))));
    for (join, sources) in joins.into_iter().zip([["a", "c"], ["c", "a"]]) {
        assert!(matches!(ended(&world, 1, join), Some(Ok(_))));
        let all = found(&world, join);
        assert_eq!(
            all.iter().map(|(engine, _)| engine.as_str()).collect::<Vec<_>>(),
            sources,
            "in the order that was asked for"
        );
    }
}
