//! Requests that go on from others, in whole engines: a child inherits what is here, and only the rest of it moves.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{
    CallError, FinishedTransfer, FlowError, ForeignMemory, Group, Inherited, InputEvent, Isolation, LayoutSpec,
    LegError, LifecycleSpec, Miss, Parent, ParentBlocks, PinError, PinSettings, Pins, Receive, RequestId,
    SchedulerReport, Send, Side, TransferId, Verdict, block_refs,
};
use penstock::{Blocks, Cause, HostMemory, PoolSpec, Rights, SystemEnv};

use crate::ends::{BLOCKS, Both, End, Folder, PATIENCE, ROWS, TOKEN, UUID};
use crate::lifecycle::device_pool;

/// Bytes of a block of 16 tokens.
pub(crate) const BLOCK: u64 = 2 * 16 * TOKEN;
/// A model makes the same of a token wherever it computes it.
pub(crate) const MODEL: u8 = 1;

pub(crate) fn id(name: &str) -> RequestId {
    RequestId::new(name).unwrap()
}

pub(crate) fn tenant(number: u8) -> Isolation {
    Isolation { tenant: [number; 16], ..Isolation::default() }
}

pub(crate) fn parent(name: &str, blocks: &Blocks, computed: u64) -> Parent {
    let group = Group { block_tokens: 16, computed, block_bytes: BLOCK, ..Group::of(blocks) };
    Parent { request: id(name), isolation: tenant(1), groups: vec![group], blob: name.as_bytes().to_vec() }
}

/// Two engines with blocks of 16 tokens, of which the sink pins.
pub(crate) fn both(transport: TransportName) -> (Both, Pins<SystemEnv>) {
    let both = crate::ends::both_with(transport, 16);
    let pins = both.sink.engine.pins(2, PinSettings::default()).unwrap();
    (both, pins)
}

impl Both {
    /// The source has so many tokens, and the sink asks for those behind what it has inherited, into these blocks. Answers how many
    /// tokens and how many bytes came.
    fn receive(&self, number: u32, tokens: u64, inherited: Option<&Inherited<SystemEnv>>, own: &Blocks) -> (u64, u64) {
        let Both { source, sink, there, .. } = self;
        let transfer = TransferId::mint(UUID, number, 0).unwrap();
        let output = source.engine.produce(transfer, &id(&format!("p-{number}")), Send::from(&source.layout)).unwrap();
        let blocks = source.take(tokens.div_ceil(16) as usize);
        source.fill(blocks.indices(), MODEL, 0, 0..tokens);
        let before = source.engine.statistics().bytes;
        output.chunk(&blocks, tokens, true).unwrap();
        let how = Receive::into(&sink.layout).from(0, there);
        let (how, skip) = match inherited {
            Some(inherited) => (how.continuation_of(inherited), inherited.skip()),
            None => (how, 0),
        };
        let input = sink.engine.consume(transfer, &id(&format!("c-{number}")), how).unwrap();
        input.grant_with(own, skip, None).unwrap();
        let came = loop {
            match input.next(PATIENCE).unwrap() {
                InputEvent::Done { tokens } => break tokens,
                InputEvent::Failed(failed) => panic!("{failed:?}"),
                _ => {}
            }
        };
        output.wait(PATIENCE).unwrap().unwrap();
        // What a worker has moved it counts behind the end.
        let since = Instant::now();
        while source.engine.statistics().bytes < before + came * 2 * TOKEN && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        (came, source.engine.statistics().bytes - before)
    }
}

/// A parent of 500 and 200 tokens, and 5 more: 17 of 705 tokens move, or 6 where what the parent has of a block is copied.
fn a_child_asks_for_what_is_not_here(transport: TransportName) {
    let (both, pins) = both(transport);
    let sink = &both.sink;
    // The prompt came from the source, the answer was computed here, and of its last token there is no data.
    let first = sink.take(44);
    assert_eq!(both.receive(1, 500, None, &first), (500, 500 * 2 * TOKEN));
    sink.fill(first.indices(), MODEL, 0, 500..699);
    pins.pin(parent("turn-1", &first, 699), &[&first], PATIENCE).unwrap();
    let of_parent = first.indices().to_vec();
    drop(first);
    assert_eq!(sink.pool.memory().blocks().free(), BLOCKS as usize - 44, "kept, though its request is over");

    let inherited = pins.inherit(&id("turn-1"), &tenant(1), &id("turn-2"), 705).unwrap().unwrap();
    assert_eq!((inherited.tokens(), inherited.tail_tokens(), inherited.begin(), inherited.skip()), (688, 11, 688, 0));
    assert_eq!(inherited.groups(), [of_parent[..43].to_vec()]);
    let own = sink.take(2);
    let (tokens, bytes) = both.receive(2, 705, Some(&inherited), &own);
    assert_eq!((tokens, bytes), (17, 17 * 2 * TOKEN), "12 of the block that is not whole, and 5 behind it");
    let blocks: Vec<u32> = inherited.groups()[0].iter().chain(own.indices()).copied().collect();
    sink.assert_tokens(&blocks, MODEL, 705);

    // Another child copies what there is of that block, and has 6 tokens sent.
    let second = pins.inherit(&id("turn-1"), &tenant(1), &id("turn-2b"), 705).unwrap().unwrap();
    let other = sink.take(2);
    assert_eq!(second.copy_tail(&[(&sink.layout, &other)]).unwrap(), 11);
    assert_eq!((second.begin(), second.skip()), (699, 11));
    assert_eq!(both.receive(3, 705, Some(&second), &other), (6, 6 * 2 * TOKEN));
    let blocks: Vec<u32> = second.groups()[0].iter().chain(other.indices()).copied().collect();
    sink.assert_tokens(&blocks, MODEL, 705);
    // The parent's own blocks are as they were.
    sink.assert_tokens(&of_parent, MODEL, 699);

    drop((inherited, second, own, other));
    let metrics = sink.engine.control_metrics().pins;
    assert_eq!((metrics.pins, metrics.uses, metrics.inherited), (1, 0, 2));
    let blob = pins.blob(&id("turn-1"), &tenant(1)).unwrap().unwrap();
    assert_eq!((blob.bytes.as_slice(), blob.home.engine.as_str(), blob.home.rank), (&b"turn-1"[..], "decode-0", 2));
}

/// Tokens that were copied are neither written over nor followed by a gap.
#[test]
fn the_first_grant_of_a_continuation_skips_what_was_copied_and_nothing_else() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let blocks = sink.take(3);
    pins.pin(parent("a", &blocks, 40), &[&blocks], PATIENCE).unwrap();
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 60).unwrap().unwrap();
    let own = sink.take(2);
    let consume = |number: u32| {
        let transfer = TransferId::mint(UUID, number, 0).unwrap();
        let how = Receive::into(&sink.layout).from(0, there).continuation_of(&child);
        sink.engine.consume(transfer, &id(&format!("c-{number}")), how).unwrap()
    };
    let before = consume(1);
    let copied = child.copy_tail(&[(&sink.layout, &own)]).unwrap();
    assert_eq!((copied, child.skip()), (8, 8));
    // It goes on from where the child was when it began.
    let error = before.grant_with(&own, child.skip(), None).unwrap_err().to_string();
    assert!(error.contains("skips 8 tokens, and 0 of those"), "{error}");
    before.grant(&sink.take(1)).unwrap();
    drop(before);
    let input = consume(2);
    for refused in [input.grant(&own), input.grant_with(&own, 7, None)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("and 8 of those") && error.contains("`Inherited::skip_in`"), "{error}");
    }
    // So many tokens are in that block, and not in another one.
    let other = sink.take(2);
    let (expected, found) = (own.indices()[0], other.indices()[0]);
    let error = input.grant_with(&other, child.skip(), None).unwrap_err();
    assert_eq!(error, FlowError::Call(CallError::Leg(LegError::TailBlock { expected, found })));
    let error = error.to_string();
    assert!(error.contains(&format!("begins with block {found}, and")), "{error}");
    assert!(error.contains(&format!("are in block {expected}: grant that one")), "{error}");
    input.grant_with(&own, child.skip(), None).unwrap();
    // Later grants begin where they like.
    input.grant_with(&sink.take(1), 3, None).unwrap();
    drop((input, child, own, other, blocks));
    source.assert_all_free();
}

/// What stands behind the whole blocks of all groups may be whole blocks of one of them.
#[test]
fn groups_of_several_block_sizes_go_on_each_behind_what_was_copied_of_it() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let wide = sink.engine.pool(PoolSpec::host(16 * BLOCK).block(4 * BLOCK).label("wide")).unwrap();
    let wide_layout = LayoutSpec::new("wide", 64, 4).token_major(0, 0, ROWS);
    let wide_layout = sink.engine.layout(&wide, wide_layout).unwrap();
    let (blocks, wides) = (sink.take(7), wide.take(2).unwrap());
    sink.fill(blocks.indices(), MODEL, 0, 0..100);
    let mut kept = parent("a", &blocks, 100);
    kept.groups.push(Group { block_tokens: 64, computed: 100, block_bytes: 4 * BLOCK, ..Group::of(&wides) });
    pins.pin(kept, &[&blocks, &wides], PATIENCE).unwrap();
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 121).unwrap().unwrap();
    assert_eq!((child.tokens(), child.tail_tokens()), (64, 36));
    assert_eq!((child.full_in(&sink.layout), child.skip_in(&sink.layout)), (0, 0));
    let (own, own_wide) = (sink.take(4), wide.take(1).unwrap());
    assert_eq!(child.copy_tail(&[(&sink.layout, &own), (&wide_layout, &own_wide)]), Ok(36));
    assert_eq!(child.begin(), 100);
    assert_eq!((child.full_in(&wide_layout), child.skip_in(&wide_layout)), (0, 36));
    // Two blocks of 16 tokens are full, and 4 tokens are in a third one.
    let (full, skip) = (child.full_in(&sink.layout), child.skip_in(&sink.layout));
    assert_eq!((full, skip), (2, 4));

    let transfer = TransferId::mint(UUID, 1, 0).unwrap();
    let output = source.engine.produce(transfer, &id("p"), Send::from(&source.layout)).unwrap();
    let given = source.take(8);
    source.fill(given.indices(), MODEL, 0, 0..121);
    output.chunk(&given, 121, true).unwrap();
    let how = Receive::into(&sink.layout).from(0, there).continuation_of(&child);
    let input = sink.engine.consume(transfer, &id("b"), how).unwrap();
    let refused = |blocks: &Blocks, skip: u32, words: &str| {
        let error = input.grant_with(blocks, skip, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let first = own.indices()[0];
    refused(&own, child.skip(), "36");
    refused(&own, skip, &format!("begins with block {first}, and"));
    let back = own.slice(2..4).unwrap().chain(&own.slice(0..1).unwrap()).unwrap();
    refused(&back, skip, &format!("block {first} is full of tokens"));
    refused(&own.slice(2..4).unwrap(), 0, "skips 0 tokens, and 4 of those");
    input.grant_with(&own.slice(full..own.len()).unwrap(), skip, None).unwrap();
    let came = loop {
        if let InputEvent::Done { tokens } = input.next(PATIENCE).unwrap() {
            break tokens;
        }
    };
    assert_eq!(came, 21);
    let blocks: Vec<u32> = child.groups()[0].iter().chain(own.indices()).copied().collect();
    sink.assert_tokens(&blocks, MODEL, 121);
}

/// Nothing is known of a layout into which nothing was copied.
#[test]
fn a_layout_of_which_nothing_was_copied_goes_on_behind_the_whole_blocks() {
    let (both, pins) = both(TransportName::Local);
    let Both { sink, there, .. } = &both;
    let wide = sink.engine.pool(PoolSpec::host(16 * BLOCK).block(BLOCK).label("wide")).unwrap();
    let other = sink.engine.layout(&wide, LayoutSpec::new("other", 16, 16).token_major(0, 0, ROWS)).unwrap();
    let blocks = sink.take(3);
    pins.pin(parent("a", &blocks, 40), &[&blocks], PATIENCE).unwrap();
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 60).unwrap().unwrap();
    assert_eq!(child.copy_tail(&[(&sink.layout, &sink.take(1))]), Ok(8));
    assert_eq!((child.skip_in(&sink.layout), child.skip_in(&other)), (8, 0));
    let transfer = TransferId::mint(UUID, 1, 0).unwrap();
    let how = Receive::into(&other).from(0, there).continuation_of(&child);
    let input = sink.engine.consume(transfer, &id("b"), how).unwrap();
    let own = wide.take(2).unwrap();
    let error = input.grant_with(&own, 8, None).unwrap_err();
    assert_eq!(error, FlowError::Call(CallError::Leg(LegError::Tail { expected: 0, said: 8 })));
    input.grant(&own).unwrap();
}

#[test]
fn a_child_asks_for_what_is_not_here_within_a_process() {
    a_child_asks_for_what_is_not_here(TransportName::Local);
}

#[test]
fn a_child_asks_for_what_is_not_here_over_mapped_pools() {
    a_child_asks_for_what_is_not_here(TransportName::Shm);
}

#[test]
fn a_child_asks_for_what_is_not_here_over_sockets() {
    a_child_asks_for_what_is_not_here(TransportName::Tcp);
}

#[test]
#[ignore = "needs path:/sys/class/infiniband/rxe_a0"]
fn a_child_asks_for_what_is_not_here_over_cards() {
    a_child_asks_for_what_is_not_here(TransportName::Verbs);
}

#[test]
fn scenario_14_a_hundred_failed_allocations_leave_every_count_as_it_was() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let blocks = sink.take(44);
    pins.pin(parent("a", &blocks, 699), &[&blocks], PATIENCE).unwrap();
    drop(blocks);
    let everything = sink.take(BLOCKS as usize - 44);
    let before = (sink.engine.control_metrics().pins.uses, sink.pool.memory().blocks().free());
    for _ in 0..100 {
        let inherited = pins.inherit(&id("a"), &tenant(1), &id("b"), 705).unwrap().unwrap();
        assert_eq!(inherited.tokens(), 688);
        assert!(sink.pool.take(2).is_err(), "no memory for the child's own");
        drop(inherited);
        assert_eq!((sink.engine.control_metrics().pins.uses, sink.pool.memory().blocks().free()), before);
    }
    drop(everything);
    let other = sink.take(1);
    pins.unpin(pins.pin(parent("c", &other, 16), &[&other], PATIENCE).unwrap()).unwrap();
}

/// Who may not know hears that there is no parent, and others why they get nothing.
#[test]
fn defect_003_isolation_is_dropped() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let blocks = sink.take(2);
    pins.pin(parent("a", &blocks, 32), &[&blocks], PATIENCE).unwrap();
    let ask = |isolation: &Isolation, parent: &str| {
        pins.inherit(&id(parent), isolation, &id("b"), 33).unwrap().map(|inherited| inherited.tokens())
    };
    assert_eq!((ask(&tenant(2), "a"), ask(&tenant(1), "nobody")), (Err(Miss::NoParent), Err(Miss::NoParent)));
    assert_eq!(ask(&Isolation { adapter: [9; 16], ..tenant(1) }, "a"), Err(Miss::OtherAdapter));
    assert_eq!(ask(&Isolation { salt: [9; 16], ..tenant(1) }, "a"), Err(Miss::OtherSalt));
    assert_eq!(ask(&Isolation { media: vec![[9; 16]], ..tenant(1) }, "a"), Err(Miss::OtherMedia));
    assert_eq!(ask(&tenant(1), "a"), Ok(32));
    assert_eq!(pins.blob(&id("a"), &tenant(2)).unwrap(), None);
    let hashed = Parent {
        groups: vec![Group { hashes: vec![1, 2], ..parent("h", &blocks, 32).groups[0].clone() }],
        ..parent("h", &blocks, 32)
    };
    pins.pin(hashed, &[&blocks], PATIENCE).unwrap();
    let checked = |hashes: Vec<u64>| {
        let given = pins.inherit_checked(&id("h"), &tenant(1), &id("b"), (33, &[hashes])).unwrap();
        given.map(|inherited| inherited.tokens())
    };
    assert_eq!(checked(vec![1, 7]), Err(Miss::HashDiffers { group: 0, block: 1 }));
    assert_eq!(checked(vec![1, 2]), Ok(32));
    let no_data = pins.pin(parent("n", &blocks, 33), &[&blocks], PATIENCE).unwrap_err();
    assert!(matches!(&no_data, FlowError::Pin(why) if matches!(**why, PinError::NoDataOf { .. })), "{no_data}");
}

#[test]
fn a_pin_ends_with_its_time_and_its_blocks_with_the_last_child() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let blocks = sink.take(3);
    pins.pin(parent("a", &blocks, 48), &[&blocks], Duration::from_secs(1)).unwrap();
    drop(blocks);
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 100).unwrap().unwrap();
    let since = Instant::now();
    while sink.engine.control_metrics().pins.doomed == 0 {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(since.elapsed() < Duration::from_secs(5), "by the clock, and not when somebody asks");
    let late = pins.inherit(&id("a"), &tenant(1), &id("c"), 100).unwrap().map(drop);
    assert_eq!(late, Err(Miss::Expired));
    assert_eq!(sink.pool.memory().blocks().free(), BLOCKS as usize - 3);
    drop(child);
    sink.assert_all_free();
    assert!(pins.blob(&id("a"), &tenant(1)).unwrap().is_some(), "remembered longer than its blocks");
}

/// A request that is preempted while it asks may ask again before it has let go of what it had.
#[test]
fn a_child_that_asks_twice_keeps_its_blocks_when_one_answer_is_dropped() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let blocks = sink.take(3);
    let pin = pins.pin(parent("a", &blocks, 48), &[&blocks], PATIENCE).unwrap();
    drop(blocks);
    let [first, second] = [0, 1].map(|_| pins.inherit(&id("a"), &tenant(1), &id("b"), 100).unwrap().unwrap());
    drop(first);
    pins.unpin(pin).unwrap();
    assert_eq!((sink.engine.control_metrics().pins.uses, sink.pool.memory().blocks().free()), (1, BLOCKS as usize - 3));
    drop(second);
    sink.assert_all_free();
}

/// A parent is pinned by the report that ends it, and a child may wait for that.
#[test]
fn defect_003_retention_is_void_as_the_parent_frees_first() {
    let (both, pins) = both(TransportName::Local);
    let sink = &both.sink;
    let device = device_pool(&sink.engine, 8, BLOCK);
    let lives = sink.engine.lifecycle(LifecycleSpec::between(&sink.pool, &device)).unwrap();
    let life = lives.open(&id("a"), 1).unwrap();
    pins.runs(&id("a"), &tenant(1)).unwrap();
    let blocks = device.take(2).unwrap();
    let fresh = block_refs(&blocks);
    lives.report(&id("a"), life, &SchedulerReport::Allocated { fresh, cached: vec![] }).unwrap();
    let running = pins.inherit_within(&id("a"), &tenant(1), &id("b"), 40, Duration::from_millis(20)).unwrap();
    assert_eq!(running.map(drop), Err(Miss::Running));
    assert_eq!(pins.metrics().unwrap().waiting, 0, "who has left does not wait");
    std::thread::scope(|scope| {
        let child = scope.spawn(|| pins.inherit_within(&id("a"), &tenant(1), &id("b"), 40, PATIENCE).unwrap().unwrap());
        let since = Instant::now();
        while pins.metrics().unwrap().waiting == 0 {
            assert!(since.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let kept = (parent("a", &blocks, 32), &[&blocks][..], PATIENCE);
        let ended = pins.finish(&lives, (&id("a"), life), &SchedulerReport::Aborted, kept).unwrap();
        assert_eq!(ended.verdict, Verdict::Remove);
        assert!(matches!(ended.pin, Some(Ok(_))));
        let child = child.join().unwrap();
        assert_eq!((child.tokens(), child.groups()[0].as_slice()), (32, blocks.indices()));
    });
    let kept = (parent("a", &blocks, 32), &[&blocks][..], PATIENCE);
    let again = pins.finish(&lives, (&id("a"), life), &SchedulerReport::Removed, kept).unwrap();
    assert_eq!((again.verdict, again.pin), (Verdict::NoOp, None), "that was no end");
    drop(blocks);
    assert_eq!(device.memory().blocks().free(), 6, "pinned");
}

/// Two requests whose names are crossed: each is called at the one engine what the other is called at the other engine, and the transfers
/// have names of their own. Every look-up finds the request that has the name here.
#[test]
fn defect_003_external_and_internal_ids_are_mixed() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let theirs = source.engine.pins(0, PinSettings::default()).unwrap();
    // The name of each transfer, its request's here and there, and its bytes.
    let requests = [(1, "cmpl-7", "cmpl-8", 11), (2, "cmpl-8", "cmpl-7", 22)];
    let running: Vec<_> = requests
        .iter()
        .map(|&(number, here, far, _)| {
            let transfer = TransferId::mint(UUID, number, 0).unwrap();
            let output = source.engine.produce(transfer, &id(far), Send::from(&source.layout)).unwrap();
            let how = Receive::into(&sink.layout).from(0, there);
            (transfer, output, sink.engine.consume(transfer, &id(here), how).unwrap())
        })
        .collect();
    for (&(_, here, far, _), (transfer, ..)) in requests.iter().zip(&running) {
        assert_eq!(source.engine.request_of(Side::Source, *transfer), Some(id(far)));
        assert_eq!(sink.engine.request_of(Side::Sink, *transfer), Some(id(here)));
        assert_eq!(source.engine.transfer_of(Side::Source, &id(far)), Some(*transfer));
        assert_eq!(sink.engine.transfer_of(Side::Sink, &id(here)), Some(*transfer));
        assert_eq!(sink.engine.request_of(Side::Source, *transfer), None, "it has another side here");
    }
    for (&(_, here, far, number), (_, output, input)) in requests.iter().zip(&running) {
        let (given, granted) = (source.take(2), sink.take(2));
        source.fill(given.indices(), number, 0, 0..32);
        output.chunk(&given, 32, true).unwrap();
        input.grant(&granted).unwrap();
        while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { tokens: 32 }) {}
        output.wait(PATIENCE).unwrap().unwrap();
        sink.assert_tokens(granted.indices(), number, 32);
        // Each side keeps its blocks under its own name.
        pins.pin(parent(here, &granted, 32), &[&granted], PATIENCE).unwrap();
        theirs.pin_for_all(parent(far, &given, 32), &source.layout, &[&given], PATIENCE).unwrap();
    }
    for &(_, here, far, number) in &requests {
        let own = pins.inherit(&id(here), &tenant(1), &id("child"), 33).unwrap().unwrap();
        sink.assert_tokens(&own.groups()[0], number, 32);
        assert_eq!(pins.blob(&id(here), &tenant(1)).unwrap().unwrap().bytes, here.as_bytes());
        let fresh = sink.take(2);
        let asked = (&id(far), &tenant(1));
        let given = pins.inherit_from(there, asked, 33, (&sink.layout, &fresh), PATIENCE).unwrap();
        assert_eq!(given, Ok(32), "as it is called there");
        sink.assert_tokens(fresh.indices(), number, 32);
    }
    for (transfer, ..) in &running {
        let named = pins.inherit(&id(&transfer.to_string()), &tenant(1), &id("child"), 33).unwrap();
        assert_eq!(named.map(drop), Err(Miss::NoParent), "the transfer's name is no request's");
    }
    let (mut sent, mut received) = (FinishedTransfer::default(), FinishedTransfer::default());
    source.engine.drain_finished(&mut sent);
    sink.engine.drain_finished(&mut received);
    assert_eq!((sent.sent, received.received), (vec![id("cmpl-8"), id("cmpl-7")], vec![id("cmpl-7"), id("cmpl-8")]));
}

/// What another engine has kept is read into one's own blocks, and counts because its lease stood until then.
fn a_child_inherits_from_another_engine(transport: TransportName) {
    let (both, pins) = both(transport);
    let Both { source, sink, there, .. } = &both;
    let theirs = source.engine.pins(0, PinSettings::default()).unwrap();
    let blocks = source.take(44);
    source.fill(blocks.indices(), MODEL, 0, 0..699);
    theirs.pin_for_all(parent("turn-1", &blocks, 699), &source.layout, &[&blocks], PATIENCE).unwrap();
    let private = source.take(1);
    theirs.pin(parent("private", &private, 16), &[&private], PATIENCE).unwrap();
    theirs.runs(&id("runs"), &tenant(1)).unwrap();
    drop(blocks);

    let own = sink.take(45);
    let ask = |parent: &str, isolation: &Isolation, tokens: u64| {
        let parent = id(parent);
        pins.inherit_from(there, (&parent, isolation), tokens, (&sink.layout, &own), PATIENCE).unwrap()
    };
    assert_eq!(ask("turn-1", &tenant(2), 705), Err(Miss::NoParent), "of another tenant");
    assert_eq!(ask("nobody", &tenant(1), 705), Err(Miss::NoParent));
    assert_eq!(ask("private", &tenant(1), 705), Err(Miss::NoParent), "not for others");
    assert_eq!(ask("runs", &tenant(1), 705), Err(Miss::Running));
    assert_eq!(ask("turn-1", &tenant(1), 16), Err(Miss::NothingWhole));
    assert_eq!((source.engine.control_metrics().lent, source.engine.control_metrics().pins.uses), (0, 0));
    assert_eq!(ask("turn-1", &tenant(1), 705), Ok(688));
    sink.assert_tokens(own.indices(), MODEL, 688);
    // No more than there is room for.
    let few = sink.take(2);
    let given = pins.inherit_from(there, (&id("turn-1"), &tenant(1)), 705, (&sink.layout, &few), PATIENCE);
    assert_eq!(given, Ok(Ok(32)));
    sink.assert_tokens(few.indices(), MODEL, 32);
    // Nothing is left of any of it on either side.
    let since = Instant::now();
    loop {
        let (lender, reader) = (source.engine.control_metrics(), sink.engine.control_metrics());
        if (lender.lent, lender.pins.uses, reader.borrowed) == (0, 0, 0) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{lender:?} {reader:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sink.engine.control_metrics().refused + source.engine.control_metrics().refused, 0);
}

#[test]
fn a_child_inherits_from_another_engine_of_its_process() {
    a_child_inherits_from_another_engine(TransportName::Local);
}

#[test]
fn a_child_inherits_from_another_engine_over_mapped_pools() {
    a_child_inherits_from_another_engine(TransportName::Shm);
}

#[test]
fn a_child_inherits_from_another_engine_over_sockets() {
    a_child_inherits_from_another_engine(TransportName::Tcp);
}

#[test]
#[ignore = "needs path:/sys/class/infiniband/rxe_a0"]
fn a_child_inherits_from_another_engine_over_cards() {
    a_child_inherits_from_another_engine(TransportName::Verbs);
}

/// A block has the same number in every pool: taken for one of the layout's, it would be somebody else's memory.
#[test]
fn blocks_of_another_pool_than_the_layouts_are_refused_and_nothing_is_kept_of_them() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let (own, foreign) = (sink.take(3), source.take(3));
    let refused = FlowError::Memory(ForeignMemory::Blocks { label: "kv".to_owned() });
    assert!(refused.to_string().contains("`kv`") && refused.to_string().contains("take them from that one"));

    let transfer = TransferId::mint(UUID, 40, 0).unwrap();
    let output = sink.engine.produce(transfer, &id("p"), Send::from(&sink.layout)).unwrap();
    assert_eq!(output.chunk(&foreign, 16, false), Err(refused.clone()));
    let receive = || Receive::into(&sink.layout).from(0, there);
    let input = sink.engine.consume(transfer, &id("c"), receive()).unwrap();
    assert_eq!(input.grant(&foreign), Err(refused.clone()));
    let pinned = pins.pin_for_all(parent("a", &own, 40), &sink.layout, &[&own, &foreign], PATIENCE);
    assert_eq!(pinned, Err(refused.clone()));
    let read = pins.inherit_from(there, (&id("a"), &tenant(1)), 33, (&sink.layout, &foreign), PATIENCE);
    assert_eq!(read, Err(refused.clone()));
    pins.pin(parent("a", &own, 40), &[&own], PATIENCE).unwrap();
    let child = pins.inherit(&id("a"), &tenant(1), &id("b"), 48).unwrap().unwrap();
    assert_eq!(child.copy_tail(&[(&sink.layout, &foreign)]), Err(refused));
    assert_eq!(child.skip(), 0);
    // What was refused is nowhere kept, and the right ones are taken by the same handles.
    assert_eq!(source.pool.memory().blocks().free() as u32, BLOCKS - 3);
    drop(foreign);
    source.assert_all_free();
    assert_eq!(child.copy_tail(&[(&sink.layout, &sink.take(1))]), Ok(8));
    output.chunk(&own, 48, false).unwrap();
    input.grant(&sink.take(1)).unwrap();
    drop((output, input));

    // Memory of the caller's own has no pool: it is the caller who numbers its blocks. A region of another engine is no layout's.
    let memory = HostMemory::from_vec(vec![0; 65_536]).unwrap();
    let region = sink.engine.register(memory, "own", Rights::READ_WRITE).unwrap();
    let spec = |label: &str| LayoutSpec::new(label, 16, 16).token_major(0, 0, ROWS);
    let layout = sink.engine.layout(&region, spec("own")).unwrap();
    let transfer = TransferId::mint(UUID, 41, 0).unwrap();
    let output = sink.engine.produce(transfer, &id("q"), Send::from(&layout)).unwrap();
    output.chunk(&own, 48, false).unwrap();
    let foreign = source.engine.layout(&region, spec("own")).map(drop);
    assert_eq!(foreign, Err(FlowError::ForeignRegion { label: "own".to_owned() }));
}

#[test]
fn a_pinning_engine_that_ends_is_a_typed_miss_in_time() {
    let (both, pins) = both(TransportName::Shm);
    drop(both.source);
    let (sink, there) = (&both.sink, &both.there);
    let own = sink.take(2);
    let since = Instant::now();
    let given = pins.inherit_from(there, (&id("a"), &tenant(1)), 33, (&sink.layout, &own), PATIENCE).unwrap();
    assert_eq!(given, Err(Miss::PeerLost));
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

/// A reader that turns its engine by hand, and stops in the middle of a read: nothing ends that read, and the call has an end all the same.
#[test]
fn a_read_of_a_parent_that_nobody_carries_on_is_answered() {
    const WITHIN: Duration = Duration::from_secs(2);
    let folder = Folder::new();
    let source = End::start(&folder, "prefill-0", TransportName::Tcp, 16);
    let sink = End::start_as(&folder, "decode-0", TransportName::Tcp, 16, Progress::Inline);
    let there = sink.engine.connect(&source.engine.descriptor(), PATIENCE).unwrap();
    there.wait_layout("kv", PATIENCE).unwrap();
    let theirs = source.engine.pins(0, PinSettings::default()).unwrap();
    let pins = sink.engine.pins(0, PinSettings::default()).unwrap();
    let blocks = source.take(4);
    source.fill(blocks.indices(), MODEL, 0, 0..64);
    theirs.pin_for_all(parent("turn-1", &blocks, 64), &source.layout, &[&blocks], PATIENCE).unwrap();
    let (own, turn, its) = (sink.take(4), id("turn-1"), tenant(1));
    let mut asks = pins.inherit_from_begin(&there, (&turn, &its), 65, (&sink.layout, &own), WITHIN).unwrap();
    let since = Instant::now();
    while sink.engine.control_metrics().borrowed == 0 {
        assert!(since.elapsed() < WITHIN, "the answer has not come");
        sink.engine.progress().unwrap();
    }
    assert_eq!(asks.poll(), None, "it reads from here on");
    std::thread::sleep(WITHIN + Duration::from_millis(1100));
    assert_eq!(asks.poll(), Some(Err(Miss::Unread(Cause::NotEnded))));
    assert_eq!(asks.poll(), Some(Err(Miss::Unread(Cause::NotEnded))), "it stays what it is");
    // Turned again, it lets go of everything.
    drop((asks, own));
    let since = Instant::now();
    while source.engine.control_metrics().lent + sink.engine.control_metrics().borrowed > 0 {
        assert!(since.elapsed() < PATIENCE, "{:?}", source.engine.control_metrics());
        sink.engine.progress().unwrap();
    }
    drop(sink.take(BLOCKS as usize));
}
