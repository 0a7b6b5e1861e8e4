//! What is pinned is what a handle holds, of the parent, as the layout has it.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::{
    FlowError, ForeignMemory, Group, LayoutSpec, LifecycleSpec, Parent, ParentBlocks, PinError, PinSettings,
    SchedulerReport, Verdict, block_refs,
};
use penstock::{Blocks, PoolSpec};

use crate::continuation::{BLOCK, MODEL, both, id, parent, tenant};
use crate::ends::{BLOCKS, Both, PATIENCE, ROWS, TOKEN};
use crate::lifecycle::device_pool;

/// What is lent is what a handle holds: else it would be the next owner's by the time that a child reads it.
#[test]
fn only_blocks_that_a_handle_holds_are_pinned() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let (own, other) = (sink.take(3), sink.take(1));
    let refused = |parent: Parent, held: &[&Blocks], block: u32| {
        let alone = pins.pin(parent.clone(), held, PATIENCE).map(drop);
        let for_all = pins.pin_for_all(parent, &sink.layout, held, PATIENCE).map(drop);
        for why in [alone, for_all].map(|pinned| pinned.unwrap_err().to_string()) {
            assert!(why.contains(&format!("block {block} of group 0")), "{why}");
        }
    };
    let first = own.indices()[0];
    refused(parent("a", &own, 48), &[], first);
    refused(parent("a", &own, 48), &[&other], first);
    let mut far = parent("a", &own, 48);
    far.groups[0].blocks = vec![4000, 4001, 4002];
    refused(far, &[&own], 4000);
    let mut longer = parent("a", &own, 48);
    longer.groups[0].blocks.push(other.indices()[0]);
    refused(longer.clone(), &[&own], other.indices()[0]);
    assert_eq!((pins.metrics().unwrap().pins, pins.metrics().unwrap().blobs), (0, 0), "nothing of it is kept");
    // Handles of several allocations are one request's.
    pins.pin_for_all(longer, &sink.layout, &[&own, &other], PATIENCE).unwrap();
    drop((own, other));
    assert_eq!(sink.pool.memory().blocks().free() as u32, BLOCKS - 4);
}

/// A group is read as the layout says: its blocks are the layout's, and as long.
#[test]
fn what_is_pinned_for_all_is_what_the_layout_has() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, .. } = &both;
    let blocks = sink.take(40);
    let few = LayoutSpec::new("few", 16, 39).token_major(0, 0, ROWS);
    let few = sink.engine.layout(&sink.engine.pool(PoolSpec::host(1 << 20).label("few")).unwrap(), few).unwrap();
    let pin = |parent: Parent, layout| pins.pin_for_all(parent, layout, &[&blocks], PATIENCE).map(drop).unwrap_err();
    let mut long = parent("a", &blocks, 699);
    long.groups[0].block_tokens = 64;
    let why = FlowError::from(PinError::BlockTokens { group: 0, found: 64, layout: 16 });
    assert_eq!(pin(long, &sink.layout), why);
    assert_eq!(
        pin(parent("a", &blocks, 640), &few),
        FlowError::Memory(ForeignMemory::Blocks { label: "few".to_owned() })
    );
    drop((few, blocks));
    // Fewer blocks in the layout than in its pool.
    let short = LayoutSpec::new("short", 16, 2).token_major(0, 0, ROWS);
    let own = source.engine.pool(PoolSpec::host(1 << 20).block(16 * TOKEN)).unwrap();
    let short = source.engine.layout(&own, short).unwrap();
    let three = own.take(3).unwrap();
    let theirs = source.engine.pins(0, PinSettings::default()).unwrap();
    let refused = theirs.pin_for_all(parent("a", &three, 48), &short, &[&three], PATIENCE).map(drop).unwrap_err();
    assert_eq!(refused, FlowError::from(PinError::NoSuchBlock { group: 0, block: 2, blocks: 2 }));
}

/// What a child has inherited is its own parent's only: a pin of the child takes a handle of it.
#[test]
fn a_third_turn_goes_on_from_what_the_second_one_has_inherited() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let first = sink.take(3);
    sink.fill(first.indices(), MODEL, 0, 0..48);
    let turn_1 = pins.pin(parent("turn-1", &first, 40), &[&first], PATIENCE).unwrap();
    drop(first);
    let second = pins.inherit(&id("turn-1"), &tenant(1), &id("turn-2"), 64).unwrap().unwrap();
    let own = sink.take(2);
    sink.fill(own.indices(), MODEL, 32, 32..64);
    let mut kept = parent("turn-2", &own, 64);
    kept.groups[0].blocks = second.groups()[0].iter().chain(own.indices()).copied().collect();
    let why = pins.pin(kept.clone(), &[&own], PATIENCE).map(drop).unwrap_err();
    let not_held = PinError::NotHeld { group: 0, block: second.groups()[0][0] };
    assert_eq!(why, FlowError::from(not_held));
    let inherited = second.blocks();
    assert_eq!((inherited.len(), inherited[0].indices()), (1, &second.groups()[0][..]));
    pins.pin(kept, &[&inherited[0], &own], PATIENCE).unwrap();
    drop((second, inherited, own));
    pins.unpin(turn_1).unwrap();
    // The block that was not whole is free, and nothing else of the first turn.
    let since = Instant::now();
    while sink.pool.memory().blocks().free() as u32 != BLOCKS - 4 {
        assert!(since.elapsed() < PATIENCE, "{} are free", sink.pool.memory().blocks().free());
        std::thread::sleep(Duration::from_millis(1));
    }
    let others = sink.take(BLOCKS as usize - 4);
    sink.fill(others.indices(), 9, 0, 0..(u64::from(BLOCKS) - 4) * 16);
    let third = pins.inherit(&id("turn-2"), &tenant(1), &id("turn-3"), 65).unwrap().unwrap();
    assert_eq!(third.tokens(), 64);
    sink.assert_tokens(&third.groups()[0], MODEL, 64);
}

/// A block has the same number in every pool.
#[test]
fn a_tail_is_copied_from_the_pool_that_the_parent_is_in() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let other = sink.engine.pool(PoolSpec::host(64 * BLOCK).block(BLOCK).label("other")).unwrap();
    let spec = LayoutSpec::new("other", 16, 64).token_major(0, 0, ROWS);
    let layout = sink.engine.layout(&other, spec).unwrap();
    let (blocks, own) = (sink.take(2), other.take(1).unwrap());
    pins.pin(parent("a", &blocks, 24), &[&blocks], PATIENCE).unwrap();
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 32).unwrap().unwrap();
    let refused = child.copy_tail(&[(&layout, &own)]);
    let why = ForeignMemory::ParentBlocks { label: "other".to_owned(), block: blocks.indices()[1] };
    assert_eq!((refused, child.skip()), (Err(FlowError::Memory(why)), 0));
    assert_eq!(child.copy_tail(&[(&sink.layout, &sink.take(1))]), Ok(8));
}

/// The report that ends a request keeps its own blocks, and says of none of them that it is free.
#[test]
fn what_a_request_leaves_to_its_children_is_what_it_had() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let device = device_pool(&sink.engine, 8, BLOCK);
    let lives = sink.engine.lifecycle(LifecycleSpec::between(&sink.pool, &device)).unwrap();
    let removals = lives.removals(8).unwrap();
    let open = |name: &str, count: usize| {
        let (life, blocks) = (lives.open(&id(name), 1).unwrap(), device.take(count).unwrap());
        let report = SchedulerReport::Allocated { fresh: block_refs(&blocks), cached: vec![] };
        lives.report(&id(name), life, &report).unwrap();
        (life, blocks)
    };
    let finish = |name: &str, life: u64, kept: Parent, held: &[&Blocks]| {
        let ended = pins.finish(&lives, (&id(name), life), &SchedulerReport::Removed, (kept, held, PATIENCE)).unwrap();
        let mut removed = Vec::new();
        removals.take(&mut removed).unwrap();
        assert_eq!((ended.verdict, removed.len()), (Verdict::Remove, 1), "it has ended, whatever is kept");
        (ended.pin.unwrap().map(drop), removed.remove(0).device)
    };
    let (first, blocks) = open("a", 3);
    let (second, others) = open("b", 2);
    let foreign = PinError::NotOfParent { group: 0, block: others.indices()[0], request: id("b2") };
    let (third, _) = open("b2", 1);
    assert_eq!(finish("b2", third, parent("b2", &others, 32), &[&others]).0, Err(foreign));
    let unheld = PinError::NotHeld { group: 0, block: others.indices()[1] };
    let part = device.memory().blocks().share(&[others.get(0).unwrap()]).unwrap();
    assert_eq!(finish("b", second, parent("b", &others, 32), &[&part]), (Err(unheld), block_refs(&others)));
    // Two of three are kept: the third is free.
    let mut kept = parent("a", &blocks, 32);
    kept.groups[0].blocks.pop();
    assert_eq!(finish("a", first, kept, &[&blocks]), (Ok(()), vec![block_refs(&blocks)[2]]));
    let (fourth, _) = open("c", 1);
    let other = PinError::OtherParent { request: id("c"), parent: id("a") };
    assert_eq!(finish("c", fourth, parent("a", &blocks, 32), &[&blocks]).0, Err(other));
    assert_eq!(pins.metrics().unwrap().pins, 1);
}

/// Of blocks of two kinds: of 16 tokens, and of 32.
fn of_two_pools(name: &str, kv: &Blocks, state: &Blocks) -> Parent {
    let state = Group { block_tokens: 32, computed: 32, block_bytes: BLOCK, ..Group::of(state) };
    let mut parent = parent(name, kv, 32);
    parent.groups.push(state);
    parent
}

/// Every pool numbers from 0: blocks of a group are those of its own pool, whatever others have of the same numbers.
#[test]
fn groups_of_two_pools_are_held_each_in_its_own() {
    let (both, pins) = both(TransportName::Local);
    let pool = |label: &str| both.sink.engine.pool(PoolSpec::host(4 * BLOCK).block(BLOCK).label(label)).unwrap();
    let (kv, states) = (pool("full"), pool("state"));
    let (blocks, state) = (kv.take(2).unwrap(), states.take(1).unwrap());
    assert_eq!((blocks.indices(), state.indices()), (&[0, 1][..], &[0][..]));
    let turn_1 = pins.pin(of_two_pools("turn-1", &blocks, &state), &[&blocks, &state], PATIENCE).unwrap();
    let second = pins.inherit(&id("turn-1"), &tenant(1), &id("turn-2"), 33).unwrap().unwrap();
    let held = second.blocks();
    let ids = |held: &[Blocks]| held.iter().map(|blocks| blocks.ids().collect()).collect::<Vec<Vec<_>>>();
    assert_eq!(ids(&held), ids(&[blocks.clone(), state.clone()]));
    let pools = [kv.memory(), states.memory()].map(|pool| std::sync::Arc::as_ptr(pool.blocks()));
    assert_eq!([0, 1].map(|group| std::sync::Arc::as_ptr(held[group].allocator())), pools);
    // The next turn's own pin keeps both, when the first one's is gone.
    pins.pin(of_two_pools("turn-2", &held[0], &held[1]), &[&held[0], &held[1]], PATIENCE).unwrap();
    drop((second, held, blocks, state));
    pins.unpin(turn_1).unwrap();
    let third = pins.inherit(&id("turn-2"), &tenant(1), &id("turn-3"), 33).unwrap().unwrap();
    assert_eq!(pins.metrics().unwrap().pins, 1);
    assert_eq!([&kv, &states].map(|pool| pool.memory().blocks().free()), [2, 3]);
    assert_eq!(third.groups(), [vec![0, 1], vec![0]]);
}

/// Which of two pools is meant is said by the order of the handles, or not at all.
#[test]
fn a_group_that_two_pools_could_have_is_refused() {
    let (both, pins) = both(TransportName::Local);
    let pool = |label: &str| both.sink.engine.pool(PoolSpec::host(4 * BLOCK).block(BLOCK).label(label)).unwrap();
    let (kv, states) = (pool("full"), pool("state"));
    let (blocks, more, state) = (kv.take(2).unwrap(), kv.take(1).unwrap(), states.take(1).unwrap());
    let pin = |handles: &[&Blocks]| pins.pin(of_two_pools("a", &blocks, &state), handles, PATIENCE);
    for handles in [&[&state, &blocks][..], &[&blocks, &state, &more], &[&state, &blocks, &more]] {
        let why = pin(handles).unwrap_err();
        assert_eq!(why, FlowError::from(PinError::SeveralPools { group: 1, block: 0 }));
        assert!(why.to_string().contains("one handle for each group, in the order of the groups"), "{why}");
    }
    let joined = blocks.chain(&more).unwrap();
    pin(&[&joined, &state]).unwrap();
    // Blocks that no group names are not kept.
    drop((joined, more));
    assert_eq!([&kv, &states].map(|pool| pool.memory().blocks().free()), [2, 3]);
}

/// A request's blocks of the device stand in its report: they are found there, whatever else is held.
#[test]
fn a_request_that_ends_leaves_its_blocks_of_the_device_and_of_another_pool() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let host = sink.engine.pool(PoolSpec::host(4 * BLOCK).block(BLOCK).label("state")).unwrap();
    let device = device_pool(&sink.engine, 8, BLOCK);
    let lives = sink.engine.lifecycle(LifecycleSpec::between(&sink.pool, &device)).unwrap();
    let removals = lives.removals(8).unwrap();
    let state = host.take(4).unwrap();
    let end = |name: &str, blocks: &Blocks, kept: Parent, held: &[&Blocks]| {
        let life = lives.open(&id(name), 1).unwrap();
        let report = SchedulerReport::Allocated { fresh: block_refs(blocks), cached: vec![] };
        lives.report(&id(name), life, &report).unwrap();
        let ended = pins.finish(&lives, (&id(name), life), &SchedulerReport::Removed, (kept, held, PATIENCE)).unwrap();
        let mut removed = Vec::new();
        removals.take(&mut removed).unwrap();
        (ended.pin.unwrap().map(drop), removed.remove(0).device)
    };
    let (blocks, others) = (device.take(2).unwrap(), device.take(1).unwrap());
    let several = PinError::SeveralPools { group: 0, block: 0 };
    let answer = end("a", &blocks, parent("a", &blocks, 32), &[&state, &blocks]);
    assert_eq!(answer, (Err(several), block_refs(&blocks)), "what was refused is not kept");
    // In their order each group has its own.
    let foreign = PinError::NotOfParent { group: 0, block: 2, request: id("b") };
    assert_eq!(end("b", &blocks, of_two_pools("b", &others, &state), &[&others, &state]).0, Err(foreign));
    let state = state.slice(0..1).unwrap();
    let answer = end("c", &blocks, of_two_pools("c", &blocks, &state), &[&blocks, &state]);
    assert_eq!(answer, (Ok(()), vec![]), "all of the device's are kept");
}
