//! Every form of a plan, against a model that moves the same bytes one by one.

use penstock::{HostMemory, Plan, Rights, Span, Strided, Submit};

use crate::command::Command;
use crate::own::Bytes;
use crate::pattern::{self, Random};
use crate::stage::{FAR_SEED, Stage, apply};
use crate::{Options, Setting};

/// Blocks are moved once in every layer, at that layer's bases.
pub fn layers_times_blocks(setting: &Setting) {
    let mut stage = Stage::with(setting, Options { bytes: 4 << 20, block: 1024, ..Options::default() });
    let (near, mut far) = stage.models();
    let (here, there) = (256 << 10, 260 << 10);
    let layers: Vec<(u64, u64)> = (0..12).map(|layer| (layer * here, (11 - layer) * there + 8)).collect();
    let (from, to) = (Random::new(1).permutation(200), Random::new(2).permutation(200));
    let pairs: Vec<(u32, u32)> = from.into_iter().zip(to).take(100).collect();
    let plan = Plan::write(&stage.near, &stage.far()).layers(&layers).blocks(&pairs).block_bytes(1024).build().unwrap();
    assert_eq!((plan.blocks(), plan.bytes()), (1200, 1200 * 1024));
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    for &(local_base, remote_base) in &layers {
        for &(local, remote) in &pairs {
            let (local, remote) = (local_base + u64::from(local) * 1024, remote_base + u64::from(remote) * 1024);
            apply(Span { local, remote, len: 1024 }, &near, &mut far, true);
        }
    }
    stage.assert_far(0, "kv", &far);
}

/// Blocks may be shorter than the distance from one to the next, on either side.
pub fn blocks_with_strides(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (near, mut far) = stage.models();
    let pairs = [(0, 9), (1, 8), (2, 7), (70, 0)];
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&pairs).block_bytes(1000).strides(1000, 3000);
    stage.submit(stage.peer(), &plan.build().unwrap(), Submit::new()).wait().unwrap();
    for (local, remote) in pairs {
        let span = Span { local: u64::from(local) * 1000, remote: u64::from(remote) * 3000, len: 1000 };
        apply(span, &near, &mut far, true);
    }
    stage.assert_far(0, "kv", &far);
}

/// Runs at regular distances, there and back, also with a source that is repeated.
pub fn strided_runs(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (mut near, mut far) = stage.models();
    let runs = [
        Strided { local: 3, remote: 100_000, len: 512, local_stride: 1024, remote_stride: 700, count: 300 },
        Strided { local: 500_000, remote: 1, len: 77, local_stride: 0, remote_stride: 77, count: 50 },
    ];
    let back = [Strided { local: 600_001, remote: 7, len: 8, local_stride: 24, remote_stride: 16, count: 5000 }];
    let plan = Plan::write(&stage.near, &stage.far()).strided(&runs).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    let spans = |run: &Strided| {
        let run = *run;
        (0..run.count).map(move |step| Span {
            local: run.local + step * run.local_stride,
            remote: run.remote + step * run.remote_stride,
            len: run.len,
        })
    };
    runs.iter().flat_map(spans).for_each(|span| apply(span, &near, &mut far, true));
    let plan = Plan::read(&stage.near, &stage.far()).strided(&back).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    back.iter().flat_map(spans).for_each(|span| apply(span, &far, &mut near, false));
    stage.assert_far(0, "kv", &far);
    stage.assert_near(&near);
}

/// Extents of all lengths in any order.
pub fn plain_extents(setting: &Setting) {
    let mut stage = Stage::sized(setting, 2 << 20);
    let (mut near, mut far) = stage.models();
    for (round, is_write) in [(1, true), (2, false), (3, true)] {
        let mut random = Random::new(round);
        // Destinations one after another with gaps, so that they are disjoint; sources anywhere.
        let (mut at, mut spans) = (0, Vec::new());
        while at < 1 << 20 {
            let longest = if random.below(8) == 0 { 90_000 } else { 600 };
            let len = 1 + random.below(longest);
            let source = random.below(1 << 20);
            let (local, remote) = if is_write { (source, at) } else { (at, source) };
            spans.push(Span { local, remote, len });
            at += len + random.below(300);
        }
        for place in random.permutation(spans.len() as u32 / 2) {
            let last = spans.len() - 1;
            spans.swap(place as usize, last);
        }
        let (here, there) = (&stage.near, &stage.far());
        let plan = if is_write { Plan::write(here, there) } else { Plan::read(here, there) };
        let plan = plan.extents(&spans).build().unwrap();
        let done = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
        assert_eq!(done.bytes, spans.iter().map(|span| span.len).sum::<u64>());
        for span in spans {
            if is_write {
                apply(span, &near, &mut far, true);
            } else {
                apply(span, &far, &mut near, false);
            }
        }
    }
    stage.assert_far(0, "kv", &far);
    stage.assert_near(&near);
}

/// One plan between several pairs of regions, in several forms.
pub fn several_region_pairs_in_one_plan(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.make_pool(0, "second", 1 << 20, 4096, Rights::READ_WRITE);
    let (near, mut far) = stage.models();
    let mut second = pattern::bytes(FAR_SEED, 0, 1 << 20);
    let pairs: Vec<(u32, u32)> = (0..128).map(|block| (block, 255 - block)).collect();
    let spans = [Span { local: 11, remote: 700_001, len: 100_000 }, Span { local: 900_000, remote: 3, len: 17 }];
    let runs = [Strided { local: 9, remote: 9, len: 64, local_stride: 64, remote_stride: 128, count: 1000 }];
    let (kv, other) = (stage.far(), stage.region(0, "second"));
    let plan = Plan::write(&stage.near, &kv).blocks(&pairs).block_bytes(4096);
    let plan = plan.between(&stage.near, &other).extents(&spans);
    let plan = plan.between(&stage.near, &kv).strided(&runs).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    for (local, remote) in pairs {
        let span = Span { local: u64::from(local) * 4096, remote: u64::from(remote) * 4096, len: 4096 };
        apply(span, &near, &mut far, true);
    }
    spans.iter().for_each(|&span| apply(span, &near, &mut second, true));
    for step in 0..1000 {
        apply(Span { local: 9 + step * 64, remote: 9 + step * 128, len: 64 }, &near, &mut far, true);
    }
    stage.assert_far(0, "kv", &far);
    stage.assert_far(0, "second", &second);
}

/// One plan may touch pools and memory that was brought, on both sides, in both directions.
pub fn pools_and_caller_memory_in_one_plan(setting: &Setting) {
    const LEN: u64 = 300_007;
    let mut stage = Stage::open(setting);
    let rights = Rights::READ_WRITE.into();
    let (bytes, seed) = (1 << 20, FAR_SEED);
    stage.order(0, Command::Pool { label: "pool".to_owned(), bytes, block: 4096, rights, seed });
    stage.order(0, Command::Register { label: "brought".to_owned(), bytes, rights, skew: 5, seed });
    let brought = HostMemory::from_vec(pattern::bytes(9, 0, 1 << 20)).unwrap().part(7, LEN * 3).unwrap();
    let window = brought.window().clone();
    let own = stage.engine.register(brought, "own", Rights::NONE).unwrap();
    let (pool, caller) = (stage.region(0, "pool"), stage.region(0, "brought"));
    assert!(
        pool.access_path() != "none" && caller.access_path() != "none",
        "{}; {}",
        pool.access_reason(),
        caller.access_reason()
    );
    let (near, far) = stage.models();
    let mine = pattern::bytes(9, 7, (LEN * 3) as usize);
    let at = |local, remote| [Span { local, remote, len: LEN }];
    let first = at(1, 0);
    let plan = Plan::write(&stage.near, &pool).extents(&first);
    let (second, third, fourth) = (at(0, LEN), at(LEN, 2 * LEN + 11), at(5, 2 * LEN));
    let plan = plan.between(&own, &caller).extents(&second).between(&own, &pool).extents(&fourth);
    let plan = plan.between(&stage.near, &caller).extents(&third).build().unwrap();
    let done = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    assert_eq!(done.bytes, 4 * LEN);
    let (mut in_pool, mut in_caller) = (far.clone(), far);
    apply(first[0], &near, &mut in_pool, true);
    apply(fourth[0], &mine, &mut in_pool, true);
    apply(second[0], &mine, &mut in_caller, true);
    apply(third[0], &near, &mut in_caller, true);
    stage.assert_far(0, "pool", &in_pool);
    stage.assert_far(0, "brought", &in_caller);
    // And back, crosswise.
    let (one, two) = (at(0, 2 * LEN), at(LEN, LEN));
    let plan = Plan::read(&own, &pool).extents(&one).between(&own, &caller).extents(&two).build().unwrap();
    assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 2 * LEN);
    let mut mine = mine;
    apply(one[0], &in_pool, &mut mine, false);
    apply(two[0], &in_caller, &mut mine, false);
    assert!(pattern::read(&window) == mine, "what was read is not what was there");
}

/// A plan is submitted a thousand times and moves what its memory holds each time.
pub fn a_plan_is_used_a_thousand_times(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (mut near, mut far) = stage.models();
    let pairs = [(0, 7), (9, 3), (200, 100)];
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&pairs).block_bytes(4096).build().unwrap();
    for round in 0..1000_u64 {
        stage.near.write(4096 - 8, &round.to_le_bytes());
        let done = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
        assert_eq!(done.bytes, 3 * 4096);
    }
    near[4096 - 8..4096].copy_from_slice(&999_u64.to_le_bytes());
    for (local, remote) in pairs {
        apply(Span { local: local as u64 * 4096, remote: remote as u64 * 4096, len: 4096 }, &near, &mut far, true);
    }
    stage.assert_far(0, "kv", &far);
    stage.wait_until("no transfer is held", || stage.engine.transfers_held() == 0);
}

/// Many transfers of one plan may be under way at once.
pub fn a_plan_is_submitted_again_while_it_moves(setting: &Setting) {
    let mut stage = Stage::sized(setting, 4 << 20);
    let (near, mut far) = stage.models();
    let span = Span { local: 0, remote: 0, len: 4 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let transfers: Vec<_> = (0..8).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    for transfer in transfers {
        assert_eq!(transfer.wait().unwrap().bytes, 4 << 20);
    }
    apply(span, &near, &mut far, true);
    stage.assert_far(0, "kv", &far);
}
