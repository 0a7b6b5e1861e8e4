//! What goes wrong where a child goes on from its parent's blocks, one test each.

use penstock_flows::continuation::{
    Ask, Child, Group, Isolation, Keep, Miss, Parent, Pin, PinError, PinSettings, finish,
};
use penstock_flows::lifecycle::{Request, SchedulerReport, Verdict};

use crate::lives::parents::*;
use crate::lives::{Node, id};

/// The blocks were counted, and tokens without data with them: 704 instead of 688.
#[test]
fn defect_003_whole_blocks_are_counted_as_tokens_with_data() {
    let mut keeper = Keeper::new(PinSettings::default());
    keeper.pin(parent("a", 700)).unwrap();
    let inherited = keeper.inherit("b", "a", 10_000).unwrap();
    assert_eq!((inherited.tokens, inherited.groups[0].len()), (688, 43), "the 44th block has 11 tokens of 16");
    assert_eq!(inherited.tail_tokens, 11, "the last token of a parent was never computed");

    // Whoever says that more is computed than there are blocks for is told so.
    let mut wrong = parent("c", 700);
    wrong.groups[0].computed = 705;
    let refused = keeper.pin(wrong).unwrap_err();
    assert_eq!(refused, PinError::NoDataOf { group: 0, computed: 705, room: 704 });
}

/// The limit of one token less than the child has fell into the middle of a block, which the child then wrote to.
#[test]
fn defect_003_the_cap_is_not_block_aligned() {
    let mut keeper = Keeper::new(PinSettings::default());
    let mut whole = parent("a", 704);
    whole.groups[0].computed = 704;
    keeper.pin(whole).unwrap();
    for (child_tokens, tokens) in [(705, 704), (704, 688), (700, 688), (689, 688), (688, 672), (17, 16)] {
        let inherited = keeper.inherit("b", "a", child_tokens).unwrap();
        assert_eq!(inherited.tokens, tokens, "of {child_tokens}");
        assert_eq!(inherited.groups[0].len() as u64 * 16, tokens, "no block that the child writes to");
    }
    for child_tokens in [0, 1, 16] {
        assert_eq!(keeper.inherit("c", "a", child_tokens), Err(Miss::NothingWhole), "of {child_tokens}");
    }
    // What stands behind is copied into a block of the child's own.
    let inherited = keeper.inherit("b", "a", 700).unwrap();
    let copies = keeper.pins.tail_plan(inherited.key, &[vec![90]]).unwrap();
    let found: Vec<_> = copies.iter().map(|copy| (copy.group, copy.from, copy.to, copy.tokens)).collect();
    assert_eq!((found, inherited.tail_tokens), (vec![(0, 43, 90, 11)], 11));
    assert_eq!(keeper.pins.tail_plan(inherited.key, &[vec![]]), None, "there is no fresh block: it is computed");
}

/// The parent's blocks were freed before its child could count itself in.
#[test]
fn defect_003_retention_is_void_as_the_parent_frees_first() {
    let (mut node, mut keeper) = (Node::new(), Keeper::new(PinSettings::default()));
    let device = node.active("a", 3);
    let generation = node.generations[&id("a")];
    let groups = vec![Group { blocks: device.iter().map(|block| block.index).collect(), ..group(40, 0) }];
    let kept = || {
        let parent = Parent { groups: groups.clone(), ..parent("a", 40) };
        Keep { parent, blocks: Ok(vec![device.clone()]), tickets: vec![], ttl: TTL }
    };
    // Not an end: nothing is kept of a request that lives on.
    let seen = (&id("a"), generation, &SchedulerReport::Finished);
    let not_yet = finish(&mut node.lives, &mut keeper.pins, seen, kept(), node.now).unwrap();
    assert_eq!((not_yet.verdict, not_yet.pin, keeper.pins.metrics().pins), (Verdict::NoOp, None, 0));

    // The call that ends it has kept its blocks when it returns, and only then may anybody free them.
    let ended = (&id("a"), generation, &SchedulerReport::Removed);
    let finished = finish(&mut node.lives, &mut keeper.pins, ended, kept(), node.now).unwrap();
    assert_eq!((finished.verdict, node.state("a")), (Verdict::Remove, Request::Freed));
    assert_eq!(node.removed()[0].device, [], "what is kept is not free");
    let pin = finished.pin.unwrap().unwrap();
    let inherited = keeper.inherit("b", "a", 41).unwrap();
    assert_eq!((inherited.tokens, keeper.pins.state(pin)), (32, Some(Pin::Used)));
    // A second end keeps nothing a second time.
    let again = finish(&mut node.lives, &mut keeper.pins, ended, kept(), node.now).unwrap();
    assert_eq!((again.verdict, again.pin, keeper.pins.metrics().pins), (Verdict::NoOp, None, 1));
}

/// The tokens were looked up when the request was gone already, and it had none.
#[test]
fn defect_003_the_snapshot_is_taken_after_the_free() {
    let mut keeper = Keeper::new(PinSettings { blobs: 2, ..PinSettings::default() });
    for name in ["a", "b"] {
        keeper.pin(parent(name, 700)).unwrap();
    }
    keeper.pass(TTL);
    assert_eq!((keeper.freed().len(), keeper.pins.metrics().pins), (2, 0));
    // Kept in the same call as the blocks, the blob outlives them.
    let (blob, home) = keeper.pins.blob(&id("a"), &isolation(1)).unwrap();
    assert_eq!((blob, home.engine.as_str(), home.rank), (&b"a"[..], "decode-3", 5));
    assert_eq!(keeper.inherit("x", "a", 705), Err(Miss::Expired), "and says why there are no blocks");
    keeper.pin(parent("c", 700)).unwrap();
    assert!(keeper.pins.blob(&id("a"), &isolation(1)).is_none(), "the oldest one makes room");
    assert!(keeper.pins.blob(&id("b"), &isolation(1)).is_some() && keeper.pins.blob(&id("c"), &isolation(1)).is_some());
    assert_eq!(keeper.inherit("x", "a", 705), Err(Miss::NoParent), "nobody knows of it any more");
}

/// What the front end calls a request was looked up among the names that the scheduler gives. Here two requests are called crosswise: the
/// front end's name of each is the scheduler's name of the other.
#[test]
fn defect_003_external_and_internal_ids_are_mixed() {
    let mut keeper = Keeper::new(PinSettings::default());
    // The scheduler's name of each, the front end's, and its first block.
    let requests = [("cmpl-7", "cmpl-8", 0), ("cmpl-8", "cmpl-7", 100)];
    for (internal, external, first) in requests {
        let kept =
            Parent { groups: vec![group(700, first)], blob: external.as_bytes().to_vec(), ..parent(internal, 700) };
        keeper.pin(kept).unwrap();
    }
    for (internal, external, first) in requests {
        let own = keeper.inherit("b", internal, 705).unwrap();
        assert_eq!(own.groups[0], (first..first + 43).collect::<Vec<_>>(), "the blocks of {internal}");
        let (blob, _) = keeper.pins.blob(&id(internal), &isolation(1)).unwrap();
        assert_eq!(blob, external.as_bytes(), "what was left with {internal}");
        keeper.pins.give_up(own.key);
    }
    // When one of them is over, its front end's name is still the other's.
    keeper.pins.give_up_all(&Child::Request(id("b")));
    keeper.pins.ended(&id("cmpl-7"), keeper.now);
    let other = keeper.inherit("b", "cmpl-8", 705).unwrap();
    assert_eq!(other.groups[0][0], 100);
    keeper.pins.give_up(other.key);
    // The name that both engines have for a transfer is no request's, nor is the name that it has at the other engine.
    let transfer = penstock_session::TransferId::from_bytes([7; 16]);
    for unknown in [&transfer.to_string(), "cmpl-7-of-prefill", "cmpl-77", "cmpl-", "7", "CMPL-8"] {
        assert_eq!(keeper.inherit("b", unknown, 705), Err(Miss::NoParent), "{unknown}");
    }
    // A child is found by its own name and by no other, so whoever is called like its parent is a child like any.
    let own = keeper.inherit("cmpl-8", "cmpl-8", 705).unwrap();
    let other = keeper.inherit("b", "cmpl-8", 705).unwrap();
    assert_ne!(own.key, other.key);
    assert_eq!(keeper.pins.give_up_all(&Child::Request(id("b"))), 1);
    assert_eq!(keeper.pins.metrics().uses, 1);
}

/// Only requests that had finished well were kept, and nothing was of those that were aborted.
#[test]
fn defect_003_aborts_bypass_the_cache() {
    for (report, name) in [(SchedulerReport::Aborted, "a"), (SchedulerReport::SequenceEnded { sequence: 0 }, "b")] {
        let (mut node, mut keeper) = (Node::new(), Keeper::new(PinSettings::default()));
        node.active(name, 3);
        let generation = node.generations[&id(name)];
        let kept = Keep { parent: parent(name, 40), blocks: Ok(vec![vec![]]), tickets: vec![], ttl: TTL };
        let end = (&id(name), generation, &report);
        let finished = finish(&mut node.lives, &mut keeper.pins, end, kept, node.now).unwrap();
        assert!(matches!(finished.pin, Some(Ok(_))), "{finished:?}");
        assert_eq!(keeper.inherit("x", name, 41).unwrap().tokens, 32);
        assert!(keeper.pins.blob(&id(name), &isolation(1)).is_some());
    }
    // A child that is aborted gives back what it had.
    let mut keeper = Keeper::new(PinSettings::default());
    let (pin, _) = keeper.pin(parent("a", 700)).unwrap();
    keeper.inherit("b", "a", 705).unwrap();
    assert_eq!(keeper.pins.give_up_all(&Child::Request(id("b"))), 1);
    assert_eq!(keeper.pins.state(pin), Some(Pin::Held));
}

/// A parent that was not found was an exception, which ended the request.
#[test]
fn defect_003_a_missing_parent_raises() {
    let settings = PinSettings { count: 1, ..PinSettings::default() };
    let mut keeper = Keeper::new(settings);
    assert_eq!(keeper.inherit("x", "never", 705), Err(Miss::NoParent));
    keeper.pins.runs(id("running"), isolation(1)).unwrap();
    assert_eq!(keeper.inherit("x", "running", 705), Err(Miss::Running));
    keeper.pins.ended(&id("running"), keeper.now);
    assert_eq!(keeper.inherit("x", "running", 705), Err(Miss::NoParent));
    keeper.pin(parent("evicted", 700)).unwrap();
    keeper.pin(parent("expired", 700)).unwrap();
    assert_eq!(keeper.inherit("x", "evicted", 705), Err(Miss::Evicted));
    assert_eq!(keeper.inherit("x", "expired", 1), Err(Miss::NothingWhole));
    keeper.now = keeper.now + TTL;
    assert_eq!(keeper.inherit("x", "expired", 705), Err(Miss::Expired), "nobody had to look at the clock before");
    assert_eq!(keeper.pins.metrics().missed, 6);
}

/// Each try that failed for want of blocks counted the child in once more.
#[test]
fn defect_003_references_leak_on_every_retry() {
    let mut keeper = Keeper::new(PinSettings::default());
    let (pin, ticket) = keeper.pin(parent("a", 700)).unwrap();
    let before = keeper.pins.metrics();
    // One that tries again before it gives back what it had.
    let mut first = keeper.inherit("b", "a", 705).unwrap();
    for _ in 0..100 {
        let again = keeper.inherit("b", "a", 705).unwrap();
        assert_eq!((again.tokens, &again.groups), (first.tokens, &first.groups));
        assert!(keeper.pins.give_up(first.key));
        assert_eq!(keeper.pins.metrics().uses, 1);
        first = again;
    }
    // One that gives back more often than it has taken.
    let other = keeper.inherit("c", "a", 705).unwrap();
    assert!(keeper.pins.give_up(first.key));
    for _ in 0..100 {
        assert!(!keeper.pins.give_up(first.key));
    }
    assert_eq!(
        (keeper.pins.metrics().uses, keeper.pins.state(pin)),
        (1, Some(Pin::Used)),
        "the other one still has its"
    );
    keeper.pins.give_up(other.key);
    let after = keeper.pins.metrics();
    assert_eq!((after.pins, after.bytes, after.uses, after.used), (before.pins, before.bytes, 0, 0));
    keeper.pass(TTL);
    assert_eq!(keeper.freed(), [ticket]);
}

/// Blocks of all groups were added up and divided, whatever each of them could honour.
#[test]
fn defect_003_several_groups_are_added_wrongly() {
    let mut keeper = Keeper::new(PinSettings::default());
    let full = group(700, 0);
    let sliding = Group { blocks: (100..110).collect(), computed: 150, ..full.clone() };
    let coarse = Group { block_tokens: 24, blocks: (200..230).collect(), ..full.clone() };
    keeper.pin(Parent { groups: vec![full.clone(), sliding.clone()], ..parent("two", 700) }).unwrap();
    let inherited = keeper.inherit("b", "two", 705).unwrap();
    let counts: Vec<usize> = inherited.groups.iter().map(Vec::len).collect();
    assert_eq!((inherited.tokens, counts, inherited.tail_tokens), (144, vec![9, 9], 6), "the least of both");

    keeper.pin(Parent { groups: vec![full, sliding, coarse], ..parent("three", 700) }).unwrap();
    let inherited = keeper.inherit("b", "three", 705).unwrap();
    let counts: Vec<usize> = inherited.groups.iter().map(Vec::len).collect();
    assert_eq!((inherited.tokens, counts), (144, vec![9, 9, 6]), "and the end of a block in each");
    let fresh = [vec![300], vec![310], vec![320]];
    let copies = keeper.pins.tail_plan(inherited.key, &fresh).unwrap();
    let found: Vec<_> = copies.iter().map(|copy| (copy.from, copy.to, copy.tokens)).collect();
    assert_eq!(found, [(9, 300, 6), (109, 310, 6), (206, 320, 6)]);

    let empty = Group { blocks: vec![], computed: 0, ..group(16, 0) };
    keeper.pin(Parent { groups: vec![group(700, 0), empty], ..parent("none", 700) }).unwrap();
    assert_eq!(keeper.inherit("b", "none", 705), Err(Miss::NothingWhole), "all groups or none");
}

/// Tenant, adapter, salt and media of the parent were lost on the way to the child.
#[test]
fn defect_003_isolation_is_dropped() {
    let mut keeper = Keeper::new(PinSettings::default());
    let own = Isolation { adapter: [2; 16], salt: [3; 16], media: vec![[4; 16]], ..isolation(1) };
    keeper.pin(Parent { isolation: own.clone(), ..parent("a", 700) }).unwrap();
    keeper.pins.runs(id("running"), own.clone()).unwrap();
    let cases = [
        (Isolation { tenant: [9; 16], ..own.clone() }, Miss::NoParent),
        (Isolation { adapter: [9; 16], ..own.clone() }, Miss::OtherAdapter),
        (Isolation { salt: [9; 16], ..own.clone() }, Miss::OtherSalt),
        (Isolation { media: vec![], ..own.clone() }, Miss::OtherMedia),
        (Isolation { media: vec![[4; 16]; 2], ..own.clone() }, Miss::OtherMedia),
    ];
    for (isolation, miss) in cases {
        for of in ["a", "running"] {
            let refused = keeper.take(&Ask { isolation: isolation.clone(), ..ask("b", of, 705) });
            assert_eq!(refused, Err(miss), "{of}");
        }
        assert!(keeper.pins.blob(&id("a"), &isolation).is_none(), "nor what its caller has left");
        assert_ne!(isolation.digest(), own.digest());
    }
    let stranger = keeper.take(&Ask { isolation: isolation(9), ..ask("b", "a", 705) });
    let nobody = keeper.take(&Ask { isolation: isolation(9), ..ask("b", "never", 705) });
    assert_eq!(stranger, nobody, "whoever is of another tenant cannot tell whether there is one");
    assert_eq!((keeper.pins.metrics().foreign, keeper.pins.metrics().uses), (3, 0));
    // So it stays when the blocks are gone.
    keeper.pass(TTL);
    let gone = keeper.take(&Ask { isolation: isolation(9), ..ask("b", "a", 705) });
    assert_eq!(gone, Err(Miss::NoParent));
    let known = keeper.take(&Ask { isolation: own, ..ask("b", "a", 705) });
    assert_eq!(known, Err(Miss::Expired));
}
