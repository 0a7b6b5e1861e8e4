//! What goes wrong where transfers in legs are written anew, and does not here.

use penstock_flows::input::Leg;
use penstock_flows::{BlocksRef, FlowCause, InputEvent, LegError, MemoryPolicy, NoMemory, PartLanded};
use penstock_session::control::{ControlMessage, Grant, Side};
use penstock_session::few::Few;

use crate::legs::{Kind, Setup, World, head};

/// 2,000 tokens of which the first 1,024 are there.
fn with_a_first_leg(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.chunk_all();
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.leg(0), Some(Leg::Landed));
    world
}

fn finish(world: &mut World, legs: std::ops::Range<u32>) {
    for leg in legs {
        assert_eq!(world.take(0, leg), Ok(true));
    }
    world.collect();
    world.assert_done();
}

#[test]
fn defect_001_122_is_not_128_and_raises() {
    // The size of a block is declared: 976 tokens for 8 blocks say nothing of it.
    let mut world = with_a_first_leg(Setup::embedding(2000));
    world.grant(0, 8).unwrap();
    world.run();
    let grant = world.grants()[1];
    assert_eq!((grant.capacity, grant.blocks.len()), (1024, 8));
    assert_eq!(world.moved.last().unwrap().landing.tokens, 976);
    finish(&mut world, 0..2);
}

#[test]
fn defect_001_a_raise_kills_the_worker_and_stalls_its_shard() {
    // Whatever makes no sense is an answer; the transfer that it was said of goes on, and so do others.
    let mut world = World::new(Setup::embedding(2000));
    world.chunk_all();
    let pair = std::sync::Arc::clone(&world.pairs[&(0, 0)]);
    let good = Grant {
        head: head(Side::Sink, 0),
        leg: 0,
        layout: 2,
        layout_generation: 1,
        from: 0,
        skip: 0,
        capacity: 128,
        once: Some(0),
        resumes: false,
        urgency: 0,
        blocks: vec![1].into(),
        trace: Box::default(),
    };
    let book = &mut world.sources[0].book;
    let mut refusal = |rank: u16, grant: Grant| book.granted(rank, &pair, grant).unwrap_err();
    assert_eq!(refusal(3, good.clone()), LegError::NoSuchRank { rank: 3 });
    assert_eq!(refusal(0, Grant { leg: 9, ..good.clone() }), LegError::Order { expected: 0, found: 9 });
    assert_eq!(refusal(0, Grant { blocks: Few::new(), ..good.clone() }), LegError::NoBlocks);
    let block = u32::MAX;
    assert_eq!(
        refusal(0, Grant { blocks: vec![block].into(), ..good.clone() }),
        LegError::NoSuchBlock { block, blocks: 40 }
    );
    assert_eq!(refusal(0, Grant { once: Some(40), ..good.clone() }), LegError::NoSuchBlock { block: 40, blocks: 40 });
    assert_eq!(refusal(0, Grant { once: None, ..good.clone() }), LegError::OnceMissing);
    assert_eq!(refusal(0, Grant { skip: 128, ..good.clone() }), LegError::Skip { skip: 128, block_tokens: 128 });
    let capacity = |said| LegError::Capacity { leg: 0, room: 128, said };
    assert_eq!(refusal(0, Grant { capacity: 0, ..good.clone() }), capacity(0));
    assert_eq!(refusal(0, Grant { capacity: u64::MAX, ..good.clone() }), capacity(u64::MAX));
    let from = u64::MAX;
    assert_eq!(refusal(0, Grant { from, ..good.clone() }), LegError::Total { known: 2000, said: from });
    assert_eq!(refusal(0, Grant { blocks: Few::of(1, 32_769), ..good }), LegError::TooManyBlocks(32_769));
    assert_eq!(world.sources[0].book.refused(), 11);
    world.setup.grants = Some(8);
    world.run();
    world.assert_done();
}

#[test]
fn defect_001_a_resumed_chunk_is_never_queued_again() {
    // A further grant is all that is needed: nothing has to be given to the source again.
    let mut world = with_a_first_leg(Setup::embedding(2000));
    assert_eq!(world.sources[0].book.next_part(), None);
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!(world.moved.len(), 2);
    finish(&mut world, 0..2);
}

#[test]
fn defect_001_every_poll_triggers_the_resume_again() {
    let mut world = with_a_first_leg(Setup { part_bytes: 2000, ..Setup::embedding(2000) });
    let (blocks, keep) = (vec![30, 31], BlocksRef(900));
    for _ in 0..5 {
        // Each poll looks, asks and grants as if it were the first one.
        world.sinks[0].book.expire(world.now);
        world.collect();
        let book = &mut world.sinks[0].book;
        assert_eq!(book.grant(1, blocks.clone(), 0, None, keep), Ok(world.grants().len() == 1));
        world.collect();
    }
    let asked = world.sinks[0].seen.iter().filter(|event| matches!(event, InputEvent::NeedsMemory { leg: 1, .. }));
    assert_eq!(asked.count(), 1);
    assert_eq!(world.grants().len(), 2, "one for each leg");
    let other = world.sinks[0].book.grant(1, vec![32], 0, None, keep);
    assert_eq!(other, Err(LegError::Differs { leg: 1 }));
}

#[test]
fn defect_001_a_monotonic_status_hides_a_third_leg() {
    let mut world = World::new(Setup { grants: Some(2), ahead: 1, ..Setup::embedding(1100) });
    world.chunk_all();
    world.run();
    world.assert_done();
    let legs = world.sinks[0].seen.iter().filter_map(|event| match event {
        InputEvent::Leg { leg, confirmed, .. } => Some((*leg, *confirmed)),
        _ => None,
    });
    assert_eq!(legs.collect::<Vec<_>>(), [(0, 256), (1, 512), (2, 768), (3, 1024)]);
}

#[test]
fn defect_001_aux_of_a_later_leg_is_read_stale() {
    // What goes once goes with the first leg, and how many tokens there are is said with every landing.
    let mut world = with_a_first_leg(Setup::embedding(2000));
    assert_eq!(world.sinks[0].book.total(), Some(2000));
    // Even a later leg that names a block for it does not get it again.
    let (blocks, keep) = ((20..28).collect::<Vec<u32>>(), world.ticket());
    world.sinks[0].book.grant(1, blocks.clone(), 0, Some(30), keep).unwrap();
    world.sinks[0].granted.insert(keep, [blocks, vec![30]].concat());
    world.run();
    assert!(world.moved.iter().all(|part| part.landing.total == Some(2000)));
    let once = |world: &World, leg| {
        let (_, pieces) = world.sinks[0].book.assembly(leg, 2000).unwrap();
        pieces.iter().filter(|piece| piece.buffer == 2).map(|piece| piece.len).sum::<u64>()
    };
    assert_eq!((once(&world, 0), once(&world, 1)), (40, 0));
    assert_eq!(world.moved.iter().map(|part| part.bytes).sum::<u64>(), 2000 * 24 + 40);
    finish(&mut world, 0..2);
}

#[test]
fn defect_001_free_then_failed_allocation_leaves_dangling_indices() {
    let mut world = with_a_first_leg(Setup { pool_blocks: 9, ..Setup::embedding(2000) });
    assert_eq!(world.take(0, 0), Ok(true));
    world.collect();
    assert_eq!(world.sinks[0].book.no_memory(0, world.now), NoMemory::Wait);
    assert_eq!(world.sinks[0].book.leg(0), Some(Leg::Freed));
    assert_eq!(world.sinks[0].book.assembly(0, 2000), Err(LegError::Freed { leg: 0 }));
    assert_eq!(world.sinks[0].book.taken(0), Ok(false), "it is let go once");
    world.collect();
    assert_eq!(world.sinks[0].freed.len(), 1);
    world.grant(0, 8).unwrap();
    world.run();
    finish(&mut world, 1..2);
}

#[test]
fn defect_001_retry_later_contradicts_fail_at_once() {
    // It is one or the other, as configured.
    for (memory, answer, code) in [(MemoryPolicy::Wait, NoMemory::Wait, 3), (MemoryPolicy::Fail, NoMemory::Failed, 0)] {
        let mut world = with_a_first_leg(Setup { memory, ..Setup::embedding(2000) });
        assert_eq!(world.sinks[0].book.no_memory(0, world.now), answer);
        world.run();
        assert_eq!(world.sinks[0].book.status().code(), code);
        assert_eq!(world.sources[0].book.status().code(), code);
    }
}

#[test]
fn defect_001_division_drops_the_remainder() {
    let mut world = World::new(Setup::embedding(2000));
    world.chunk_all();
    world.grant_skipping(0, 8, 24).unwrap();
    world.run();
    assert_eq!(world.sinks[0].book.confirmed(), 1000);
    world.grant(0, 8).unwrap();
    world.run();
    assert_eq!((world.grants()[1].from, world.moved[1].landing.from), (1000, 1000), "not 896");
    finish(&mut world, 0..2);
}

#[test]
fn defect_001_plane_major_data_is_misplaced() {
    let kinds = vec![(0, Kind::Planes { count: 3, bytes: 8 })];
    let mut world = World::new(Setup { kinds, ..Setup::embedding(300) });
    world.chunk_all();
    world.grant_skipping(0, 1, 77).unwrap();
    world.run();
    assert_eq!(world.moved[0].spans.len(), 3, "a cut in the middle of a block is a piece for each plane");
    world.grant_skipping(0, 3, 5).unwrap();
    world.run();
    finish(&mut world, 0..2);
}

#[test]
fn defect_001_the_last_rank_alone_decides_partial() {
    for seed in 0..20 {
        let kinds = vec![(0, Kind::Heads { of: 4, bytes: 4 }), (0, Kind::Planes { count: 3, bytes: 4 })];
        let mut world = World::new(Setup { kinds, sink_ranks: 2, seed, part_bytes: 3000, ..Setup::embedding(900) });
        world.chunk_all();
        world.grant(0, 8).unwrap();
        world.run();
        assert!(world.moved.is_empty(), "one rank's grant sends nothing to anybody");
        assert_eq!(world.sources[0].book.status().code(), 1);
        world.grant(1, 4).unwrap();
        world.run();
        // The least room decides, for both: neither believes that it has all, and neither waits for what does not come.
        for sink in 0..2 {
            assert_eq!(world.sinks[sink].book.leg(0), Some(Leg::Landed));
            assert_eq!((world.partial(sink), world.sinks[sink].book.confirmed()), (1, 512));
            assert_eq!(world.sinks[sink].book.wanted(), Some(388));
        }
        for sink in 0..2 {
            world.grant(sink, 4).unwrap();
        }
        world.run();
        for (sink, leg) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            world.take(sink, leg).unwrap();
        }
        world.collect();
        world.assert_done();
    }
}

#[test]
fn defect_001_ranks_that_grant_ahead_meet_at_the_same_tokens() {
    // One rank grants several legs before it can know that the other one has less room for the first.
    for seed in 0..40 {
        let kinds = vec![(0, Kind::Heads { of: 4, bytes: 4 })];
        let mut world = World::new(Setup { kinds, sink_ranks: 2, seed, part_bytes: 700, ..Setup::embedding(900) });
        world.chunk_all();
        for blocks in [3, 2, 1, 4] {
            world.grant(0, blocks).unwrap();
        }
        for blocks in [2, 2, 3, 5] {
            world.grant(1, blocks).unwrap();
        }
        world.run();
        for (sink, leg) in (0..2).flat_map(|sink| (0..4).map(move |leg| (sink, leg))) {
            world.take(sink, leg).unwrap();
        }
        world.collect();
        world.assert_done();
        let legs: std::collections::BTreeSet<(u32, u64)> =
            world.moved.iter().map(|part| (part.landing.leg, part.landing.leg_from)).collect();
        assert_eq!(legs.into_iter().collect::<Vec<_>>(), [(0, 0), (1, 256), (2, 512), (3, 640)]);
    }
}

#[test]
fn defect_001_a_leg_that_ends_early_moves_those_granted_behind_it() {
    // A second leg was granted before it was known that the first one is short: what is still needed is counted from where it really is.
    let kinds = vec![(0, Kind::Heads { of: 2, bytes: 4 })];
    let mut world = World::new(Setup { kinds, sink_ranks: 2, ..Setup::embedding(300) });
    world.chunk_all();
    world.grant(0, 3).unwrap();
    world.grant(0, 1).unwrap();
    assert_eq!(world.sinks[0].book.leg(1), Some(Leg::Granted));
    world.grant(1, 1).unwrap();
    world.run();
    assert_eq!((world.sinks[0].book.confirmed(), world.sinks[0].book.leg(1)), (128, Some(Leg::Granted)));
    assert_eq!(world.sinks[0].book.wanted(), Some(300 - 256));
}

#[test]
fn defect_001_duplicate_suppression_is_never_set() {
    let mut world = with_a_first_leg(Setup::embedding(2000));
    let (grant, part) = (world.grants()[0].clone(), world.moved[0].clone());
    let pair = std::sync::Arc::clone(&world.pairs[&(0, 0)]);
    for _ in 0..3 {
        assert_eq!(world.sources[0].book.granted(0, &pair, grant.clone()), Ok(false));
        assert_eq!(world.sinks[0].book.landed(0, &part.landing, world.now), Ok(false));
    }
    world.run();
    assert_eq!((world.moved.len(), world.sinks[0].book.confirmed()), (1, 1024));
    assert_eq!(world.partial(0), 1);
    world.grant(0, 8).unwrap();
    world.run();
    finish(&mut world, 0..2);
    assert_eq!(world.sources[0].book.acked(0), Ok(false), "an acknowledgement counts once as well");
    let late = world.sinks[0].book.landed(0, &part.landing, world.now);
    assert_eq!(late, Ok(false), "what comes late changes nothing");
}

#[test]
fn defect_001_init_and_resume_are_told_apart_by_count() {
    // One kind of grant, with the number of its leg in it.
    let mut world = World::new(Setup::embedding(2000));
    let keep = world.ticket();
    let early = world.sinks[0].book.grant(1, vec![1], 0, None, keep);
    assert_eq!(early, Err(LegError::Order { expected: 0, found: 1 }));
    world.setup.grants = Some(8);
    world.chunk_all();
    world.run();
    world.assert_done();
    let legs: Vec<(u32, bool)> = world.grants().iter().map(|grant| (grant.leg, grant.resumes)).collect();
    assert_eq!(legs, [(0, false), (1, false)], "a second leg is not a session that goes on");
}

#[test]
fn defect_001_an_empty_block_list_divides_by_zero() {
    let mut world = World::new(Setup::embedding(2000));
    assert_eq!(world.sinks[0].book.grant(0, vec![], 0, Some(1), BlocksRef(1)), Err(LegError::NoBlocks));
    assert_eq!(
        world.sources[0].book.chunk(&[], 1, false, BlocksRef(2)),
        Err(LegError::ChunkBlocks { tokens: 1, inside: 0, needed: 1, given: 0 })
    );
    world.sources[0].book.chunk(&[], 0, false, BlocksRef(3)).unwrap();
    world.chunk_all();
    world.setup.grants = Some(8);
    world.run();
    world.assert_done();
}

#[test]
fn defect_001_a_rejected_resume_only_logs() {
    // The source itself refuses the second leg: it names a block that the sink's layout has not.
    let mut world = with_a_first_leg(Setup::embedding(2000));
    world.grant(0, 8).unwrap();
    world.collect();
    let grant = world.wire.iter_mut().find_map(|message| match message {
        crate::legs::Message::ToSource { said: ControlMessage::Grant(grant), .. } => Some(grant),
        _ => None,
    });
    let grant = grant.expect("it was said");
    assert_eq!(grant.leg, 1);
    grant.blocks[0] = 1_000_000;
    world.run();
    // Both sides have ended, the sink with the reason that the source gave.
    let ends: Vec<_> = world.sinks[0].seen.iter().filter(|event| is_end(event)).collect();
    let [InputEvent::Failed(failed)] = ends[..] else { panic!("{ends:?}") };
    assert_eq!((failed.cause, failed.said_by, failed.source), (FlowCause::Refused, Side::Source, Some(0)));
    assert!(failed.words.contains("leg 1"), "{failed:?}");
    let there = world.sources[0].book.failure().expect("the source has failed, too");
    assert_eq!((there.cause, there.said_by, there.sink), (FlowCause::Aborted, Side::Sink, Some(0)));
    // What the first leg brought stays until it is taken, and everything comes back.
    world.take(0, 0).unwrap();
    world.collect();
    world.assert_nothing_is_left();
}

#[test]
fn defect_001_the_other_side_increments_an_absolute_counter() {
    // Where a part belongs is said with it, and held against what was granted: nobody adds up what the other one has done.
    let mut world = with_a_first_leg(Setup::embedding(2000));
    world.grant(0, 2).unwrap();
    world.collect();
    let (book, now) = (&mut world.sinks[0].book, world.now);
    let good = PartLanded {
        number: 1,
        leg: 1,
        leg_from: 1024,
        leg_tokens: 256,
        layer: None,
        from: 1024,
        tokens: 100,
        total: Some(2000),
    };
    let mut refusal = |part: PartLanded| book.landed(0, &part, now).unwrap_err();
    let out = |from, tokens| LegError::OutOfLeg { leg: 1, from, tokens };
    assert_eq!(refusal(PartLanded { from: 1023, ..good }), out(1023, 100));
    assert_eq!(refusal(PartLanded { from: 1200, ..good }), out(1200, 100));
    assert_eq!(refusal(PartLanded { from: u64::MAX, ..good }), out(u64::MAX, 100));
    assert_eq!(refusal(PartLanded { tokens: 0, ..good }), out(1024, 0));
    let disagrees = |said_from, said| LegError::Disagrees { leg: 1, said_from, said };
    assert_eq!(refusal(PartLanded { leg_from: 1000, ..good }), disagrees(1000, 256));
    assert_eq!(refusal(PartLanded { leg_from: 2048, ..good }), disagrees(2048, 256));
    assert_eq!(refusal(PartLanded { leg_tokens: 257, ..good }), disagrees(1024, 257));
    assert_eq!(refusal(PartLanded { leg_tokens: 0, ..good }), disagrees(1024, 0));
    assert_eq!(refusal(PartLanded { leg: 2, ..good }), LegError::NoSuchLeg { leg: 2, next: 2 });
    assert_eq!(refusal(PartLanded { layer: Some(1), ..good }), LegError::NoSuchLayer { layer: 1, layers: 1 });
    assert_eq!(refusal(PartLanded { total: Some(1999), ..good }), LegError::Total { known: 2000, said: 1999 });
    assert_eq!(book.landed(0, &good, now), Ok(true));
    assert_eq!(book.confirmed(), 1124);
    let again = PartLanded { number: 2, from: 1100, ..good };
    assert_eq!(book.landed(0, &again, now), Err(LegError::Overlaps { leg: 1, from: 1100, tokens: 100 }));
    assert_eq!(book.landed(1, &again, now), Err(LegError::NoSuchRank { rank: 1 }));
    assert_eq!((book.confirmed(), book.refused()), (1124, 13));
}

#[test]
fn defect_001_entries_leak_on_failure() {
    for seed in 0..30 {
        let mut world = World::new(Setup { seed, part_bytes: 2000, grants: Some(4), ..Setup::embedding(2000) });
        world.chunk_all();
        world.grant(0, 4).unwrap();
        for _ in 0..seed {
            world.deliver_one();
        }
        world.sources[0].book.fail_here(FlowCause::SourceFailed, "the model has run out of memory");
        world.run();
        let Some(InputEvent::Failed(failed)) = world.sinks[0].seen.last() else { panic!("{:?}", world.sinks[0].seen) };
        assert_eq!((failed.cause, failed.said_by), (FlowCause::SourceFailed, Side::Source));
        assert_eq!(failed.words, "the model has run out of memory");
        world.sinks[0].book.abort(world.now);
        world.collect();
        world.assert_nothing_is_left();
        assert_eq!(world.sources[0].freed.len(), 1);
    }
}

#[test]
fn defect_001_abort_is_never_sent() {
    for seed in 1..30 {
        let mut world = World::new(Setup { seed, part_bytes: 2000, ..Setup::embedding(2000) });
        world.chunk_all();
        world.grant(0, 16).unwrap();
        for _ in 0..seed {
            world.deliver_one();
        }
        world.sinks[0].book.abort(world.now);
        world.collect();
        assert!(world.said.iter().any(|said| matches!(said, ControlMessage::Abort(_))));
        assert_eq!(world.sinks[0].freed.len(), 0, "no block is free before the answer");
        assert_eq!(world.sinks[0].book.leg(0), Some(Leg::Stopping));
        world.run();
        assert_eq!(world.sources[0].book.failure().map(|failed| failed.cause), Some(FlowCause::Aborted));
        world.assert_nothing_is_left();
    }
}

#[test]
fn defect_001_cached_data_is_a_view_of_freed_memory() {
    let mut world = with_a_first_leg(Setup::embedding(2000));
    world.take(0, 0).unwrap();
    // The blocks are let go and filled with something else; what was assembled is a copy.
    world.collect();
    assert!(world.sinks[0].memory.contains(&0xee));
    assert_eq!(world.sinks[0].book.assembly(0, 2000), Err(LegError::Freed { leg: 0 }));
    assert_eq!(world.sinks[0].book.assembly(1, 2000), Err(LegError::NoSuchLeg { leg: 1, next: 1 }));
    world.grant(0, 8).unwrap();
    assert_eq!(world.sinks[0].book.assembly(1, 2000), Err(LegError::NotLanded { leg: 1 }));
    assert_eq!(world.sinks[0].book.taken(1), Err(LegError::NotLanded { leg: 1 }));
    world.run();
    assert_eq!(world.sinks[0].book.assembly(1, 1999), Err(LegError::Room { room: 1999, needed: 2000 }));
    finish(&mut world, 1..2);
}

fn is_end(event: &InputEvent) -> bool {
    matches!(event, InputEvent::Failed(_) | InputEvent::Done { .. })
}
