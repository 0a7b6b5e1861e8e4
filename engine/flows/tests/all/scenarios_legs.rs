//! What a transfer in legs has to do, from both sides.

use penstock_core::Timestamp;
use penstock_flows::input::Leg;
use penstock_flows::{FlowCause, InputEvent, LegError, MemoryPolicy, NoMemory};
use penstock_session::control::Side;

use crate::legs::{Kind, Setup, World};

#[test]
fn scenario_04_two_thousand_tokens_in_two_legs_match() {
    for seed in 0..40 {
        let mut world = World::new(Setup { seed, part_bytes: 4096, ..Setup::embedding(2000) });
        world.chunk_all();
        world.grant(0, 8).unwrap();
        world.run();
        assert_eq!(world.sinks[0].book.status().code(), 3, "a part of it is there");
        assert_eq!(world.sinks[0].book.confirmed(), 1024);
        let leg = InputEvent::Leg { leg: 0, tokens: 1024, confirmed: 1024, total: Some(2000) };
        assert!(world.sinks[0].seen.contains(&leg), "{:?}", world.sinks[0].seen);
        assert!(world.sinks[0].seen.contains(&InputEvent::NeedsMemory { leg: 1, tokens: 976 }));
        world.take(0, 0).unwrap();
        world.collect();
        world.grant(0, 8).unwrap();
        world.run();
        world.take(0, 1).unwrap();
        world.collect();
        world.assert_done();
        assert_eq!(world.partial(0), 1);
    }
}

#[test]
fn scenario_04_five_hundred_tokens_are_one_leg_and_no_partial_one() {
    let mut world = World::new(Setup::embedding(500));
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    world.take(0, 0).unwrap();
    world.collect();
    world.assert_done();
    assert_eq!(world.sinks[0].seen, [InputEvent::Done { tokens: 500 }]);
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn scenario_05_ten_legs_and_a_duplicate_change_nothing() {
    for (seed, repeats) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut world =
            World::new(Setup { seed, grants: Some(8), part_bytes: 8192, pool_blocks: 90, ..Setup::embedding(10_000) });
        world.repeats = repeats;
        world.chunk_all();
        world.run();
        world.assert_done();
        assert_eq!(world.grants().len(), 10);
        world.sinks[0].taken.sort_unstable();
        assert_eq!(world.sinks[0].taken, (0..10).collect::<Vec<_>>());
        assert_eq!(world.partial(0), 9);
        let tokens: u64 = world.moved.iter().map(|part| part.landing.tokens).sum();
        assert_eq!(tokens, 10_000, "nothing is moved twice");
    }
}

#[test]
fn scenario_06_a_cut_at_token_1000_gives_the_same_bytes() {
    let whole = {
        let mut world = World::new(Setup::embedding(2000));
        world.chunk_all();
        world.grant(0, 16).unwrap();
        world.run();
        world.take(0, 0).unwrap();
        world.collect();
        world.assert_done();
        world.sinks[0].assembled.clone()
    };
    for seed in 0..20 {
        // The sink cuts: 8 blocks with 24 tokens of the first skipped. The source cuts as well: its first chunk has 1,000 tokens.
        let mut world = World::new(Setup { seed, part_bytes: 5000, ..Setup::embedding(2000) });
        world.chunk(0, 1000, false);
        world.grant_skipping(0, 8, 24).unwrap();
        world.run();
        assert_eq!(world.sinks[0].book.confirmed(), 1000);
        world.chunk(1000, 1000, true);
        world.grant(0, 8).unwrap();
        world.run();
        for leg in 0..2 {
            world.take(0, leg).unwrap();
        }
        world.collect();
        world.assert_done();
        assert_eq!(world.grants()[1].from, 1000);
        assert!(world.sinks[0].assembled == whole, "seed {seed}");
    }
}

#[test]
fn scenario_07_no_memory_for_a_leg_waits_as_configured() {
    let mut world = World::new(Setup { pool_blocks: 9, ..Setup::embedding(2000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    let now = world.now;
    assert_eq!(world.sinks[0].book.no_memory(0, now), NoMemory::Wait);
    assert_eq!(world.sinks[0].book.wanted(), Some(976), "it is asked for again");
    world.take(0, 0).unwrap();
    world.run();
    world.grant(0, 8).unwrap();
    assert_eq!(world.sinks[0].book.no_memory(0, now), NoMemory::Unneeded);
    world.run();
    world.take(0, 1).unwrap();
    world.collect();
    world.assert_done();
}

#[test]
fn scenario_07_waiting_for_memory_ends_by_the_deadline_and_what_came_stays() {
    let mut world = World::new(Setup { pool_blocks: 9, ..Setup::embedding(2000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.no_memory(0, world.now), NoMemory::Wait);
    assert_eq!(world.sinks[0].book.deadline(), crate::legs::DEADLINE);
    world.now = crate::legs::DEADLINE;
    world.sinks[0].book.expire(crate::legs::DEADLINE);
    world.run();
    let Some(InputEvent::Failed(failed)) = world.sinks[0].seen.last() else { panic!("{:?}", world.sinks[0].seen) };
    assert_eq!((failed.cause, failed.blocks.len()), (FlowCause::Deadline, 0));
    assert!(failed.words.contains("no memory for 976 more tokens"), "{}", failed.words);
    assert_eq!(world.sinks[0].book.confirmed(), 1024);
    world.take(0, 0).unwrap();
    world.collect();
    world.assert_nothing_is_left();
    assert_eq!(world.sinks[0].book.deadline(), Timestamp::NEVER);
}

#[test]
fn scenario_07_no_memory_for_a_leg_fails_both_sides_as_configured() {
    let mut world = World::new(Setup { pool_blocks: 9, memory: MemoryPolicy::Fail, ..Setup::embedding(2000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.no_memory(5, world.now), NoMemory::Failed);
    world.run();
    let failed = world.sources[0].book.failure().unwrap();
    assert_eq!((failed.cause, failed.said_by, failed.sink), (FlowCause::NoMemory, Side::Sink, Some(0)));
    assert_eq!(world.sinks[0].book.leg(0), Some(Leg::Landed), "what has arrived is valid");
    assert_eq!(world.take(0, 0), Ok(true));
    assert_eq!(world.sinks[0].book.taken(0), Ok(false));
    world.collect();
    world.assert_nothing_is_left();
    assert_eq!(world.sinks[0].freed.len(), 1);
    assert_eq!(world.grant(0, 8), Err(LegError::Ended(FlowCause::NoMemory)));
}

#[test]
fn scenario_07_no_memory_for_a_leg_shrinks_as_configured() {
    let mut world = World::new(Setup { memory: MemoryPolicy::Shrink, ..Setup::embedding(2000) });
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.no_memory(0, world.now), NoMemory::Wait, "of nothing nothing can be granted");
    assert_eq!(world.sinks[0].book.no_memory(3, world.now), NoMemory::Take { blocks: 3 });
    world.grant(0, 3).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.wanted(), Some(976 - 3 * 128));
    assert_eq!(world.sinks[0].book.no_memory(100, world.now), NoMemory::Take { blocks: 5 }, "no more than is needed");
    world.grant(0, 5).unwrap();
    world.run();
    for leg in 0..3 {
        world.take(0, leg).unwrap();
    }
    world.collect();
    world.assert_done();
}

#[test]
fn nothing_at_all_is_done_with_a_grant_and_without_one() {
    for grants in [0, 8] {
        let mut world = World::new(Setup::embedding(0));
        if grants > 0 {
            world.grant(0, grants).unwrap();
            world.chunk_all();
            world.run();
        } else {
            let (head, rows) = (crate::legs::head(Side::Source, 0), Vec::new());
            let seal = penstock_session::control::EndOfData { head, parts: 0, tokens: 0, legs: 0, rows: rows.into() };
            assert_eq!(world.sinks[0].book.sealed(0, &seal, world.now), Ok(true));
            world.collect();
        }
        assert_eq!(world.sinks[0].book.status().code(), 4);
        assert_eq!(world.sinks[0].seen, [InputEvent::Done { tokens: 0 }]);
        assert!(world.sinks[0].book.is_over(), "a leg that nothing was for comes back");
        assert!(world.moved.is_empty());
    }
}

#[test]
fn a_chunk_is_not_a_leg_and_success_needs_the_last_of_both() {
    let mut world = World::new(Setup { source_block: 16, ..Setup::embedding(700) });
    world.grant(0, 2).unwrap();
    world.chunk(0, 100, false);
    world.run();
    assert_eq!((world.sinks[0].book.confirmed(), world.sinks[0].book.wanted()), (100, None), "the leg has room left");
    world.chunk(100, 300, false);
    world.run();
    assert_eq!(world.sinks[0].book.confirmed(), 256);
    assert_eq!(world.sinks[0].book.wanted(), Some(1024), "nobody knows yet how many come");
    world.chunk(400, 300, true);
    world.run();
    assert_eq!(world.sinks[0].book.status().code(), 3);
    world.grant(0, 4).unwrap();
    world.run();
    for leg in 0..2 {
        world.take(0, leg).unwrap();
    }
    world.collect();
    world.assert_done();
}

#[test]
fn a_transfer_may_begin_where_another_one_ended() {
    for seed in 0..10 {
        let setup =
            Setup { begin: 688, grants: Some(1), source_block: 16, sink_block: 16, seed, ..Setup::embedding(705) };
        let mut world = World::new(setup);
        world.chunk_all();
        world.run();
        world.assert_done();
        assert_eq!(world.moved.iter().map(|part| part.landing.tokens).sum::<u64>(), 17);
        let legs: Vec<(u64, u64)> = world.grants().iter().map(|grant| (grant.from, grant.capacity)).collect();
        assert_eq!(legs, [(688, 16), (704, 16)]);
    }
}

#[test]
fn layers_go_when_they_are_ready_and_are_told_when_they_are_there() {
    let kinds = vec![
        (0, Kind::Heads { of: 4, bytes: 4 }),
        (1, Kind::Heads { of: 4, bytes: 4 }),
        (2, Kind::Planes { count: 3, bytes: 4 }),
    ];
    let mut world = World::new(Setup { kinds, is_by_layer: true, ..Setup::embedding(300) });
    world.chunk_all();
    world.grant(0, 3).unwrap();
    world.run();
    assert!(world.moved.is_empty(), "no gate is open");
    world.sources[0].book.ready(1, 300).unwrap();
    world.run();
    assert_eq!(world.sinks[0].seen, [InputEvent::Layer { leg: 0, layer: 1 }]);
    assert_eq!(world.sources[0].book.ready(3, 300), Err(LegError::NoSuchLayer { layer: 3, layers: 3 }));
    world.sources[0].book.ready(0, 300).unwrap();
    world.sources[0].book.ready(2, 300).unwrap();
    world.run();
    world.take(0, 0).unwrap();
    world.collect();
    world.assert_done();
}

/// How ranks and blocks may differ.
const SHAPES: [(u16, u16, u32, u32); 6] =
    [(2, 4, 16, 64), (4, 2, 64, 16), (1, 4, 16, 16), (4, 1, 64, 64), (2, 2, 64, 16), (1, 1, 7, 5)];

fn sharded(shape: (u16, u16, u32, u32), seed: u64) -> Setup {
    let (source_ranks, sink_ranks, source_block, sink_block) = shape;
    let kinds = vec![
        (0, Kind::Heads { of: 8, bytes: 2 }),
        (1, Kind::Heads { of: 8, bytes: 2 }),
        (1, Kind::Planes { count: 3, bytes: 4 }),
        (0, Kind::Once { bytes: 24 }),
    ];
    Setup {
        kinds,
        source_ranks,
        sink_ranks,
        source_block,
        sink_block,
        pool_blocks: 60,
        is_by_layer: seed % 2 == 1,
        part_bytes: 500 + seed * 37 % 4000,
        grants: Some(1 + seed as u32 % 5),
        ahead: 1 + seed as u32 % 3,
        tokens_default: 40,
        seed,
        ..Setup::embedding(150 + seed % 90)
    }
}

#[test]
fn any_ranks_blocks_and_orders_give_the_same_bytes() {
    for (seed, shape) in (1..60).flat_map(|seed| SHAPES.map(|shape| (seed, shape))) {
        let setup = sharded(shape, seed);
        let tokens = setup.tokens;
        let mut world = World::new(setup);
        world.repeats = seed % 3 == 0;
        let first = world.random(tokens as usize) as u64;
        world.chunk(0, first, false);
        world.ready([0, 1], first / 2);
        world.run();
        world.chunk(first, tokens - first, true);
        world.ready([1, 0], tokens);
        world.run();
        world.assert_done();
    }
}

/// Whatever breaks, and whenever: both sides end, each block comes back once, and nothing lands where nothing is granted.
#[test]
fn any_end_at_any_moment_leaves_nothing() {
    for (seed, shape) in (1..60).flat_map(|seed| SHAPES.map(|shape| (seed, shape))) {
        let mut world = World::new(sharded(shape, seed));
        world.chunk_all();
        world.ready([0, 1], world.setup.tokens);
        let steps = world.random(60);
        for _ in 0..steps {
            if world.setup.grants.is_some() {
                for sink in 0..world.sinks.len() {
                    if world.sinks[sink].book.wanted().is_some() && world.sinks[sink].free.len() > 3 {
                        world.grant(sink, 1).unwrap();
                    }
                }
            }
            world.deliver_one();
        }
        world.setup.grants = None;
        let (sink, source) = (world.random(world.sinks.len()), world.random(world.sources.len()));
        let now = world.now;
        match seed % 4 {
            0 => world.sinks[sink].book.abort(now),
            1 => world.sinks[sink].book.fail_here(FlowCause::SinkFailed, "broken on purpose", now),
            2 => world.sources[source].book.fail_here(FlowCause::SourceFailed, "broken on purpose"),
            _ => {
                world.now = crate::legs::DEADLINE;
                world.sinks.iter_mut().for_each(|sink| sink.book.expire(crate::legs::DEADLINE));
                world.sources.iter_mut().for_each(|source| source.book.expire(crate::legs::DEADLINE));
            }
        }
        world.run();
        // What one rank has said does not reach ranks that only others know: each side's application ends them.
        world.sources.iter_mut().for_each(|source| source.book.fail_here(FlowCause::Aborted, "the transfer has ended"));
        world.run();
        world.sinks.iter_mut().for_each(|sink| sink.book.abort(now));
        world.run();
        world.assert_nothing_is_left();
        assert!(
            world.sinks.iter().all(|sink| sink.errors.is_empty()),
            "seed {seed} {shape:?}: {:?}",
            world.sinks[0].errors
        );
    }
}
