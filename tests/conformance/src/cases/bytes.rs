//! Single extents, of any alignment and length, in both directions.

use penstock::{Plan, Span, Submit};

use crate::pattern::Random;
use crate::stage::{Stage, apply};
use crate::{Options, Setting};

/// The first and the last byte of a region arrive, and nothing else changes.
pub fn one_byte_is_written(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (near, mut far) = stage.models();
    let last = stage.near.bytes() - 1;
    for span in [Span { local: 5, remote: 0, len: 1 }, Span { local: 0, remote: last, len: 1 }] {
        assert_eq!(stage.write(span).bytes, 1);
        apply(span, &near, &mut far, true);
    }
    stage.assert_far(0, "kv", &far);
    stage.assert_near(&near);
}

/// The first and the last byte of a region can be fetched, and nothing else changes.
pub fn one_byte_is_read(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (mut near, far) = stage.models();
    let last = stage.near.bytes() - 1;
    for span in [Span { local: last, remote: 0, len: 1 }, Span { local: 0, remote: last, len: 1 }] {
        let plan = Plan::read(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
        assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 1);
        apply(span, &far, &mut near, false);
    }
    stage.assert_far(0, "kv", &far);
    stage.assert_near(&near);
}

/// Source and destination may lie anywhere relative to words, lines and pages.
pub fn any_alignment_will_do(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (mut near, mut far) = stage.models();
    let mut random = Random::new(3);
    let lengths = [1, 2, 3, 7, 8, 9, 15, 31, 33, 63, 64, 65, 127, 129, 255, 4095, 4097, 65_535, 65_537, 200_003];
    for len in lengths {
        for is_write in [true, false] {
            let (local, remote) = (random.below(70_000), random.below(70_000));
            let span = Span { local, remote, len };
            let (here, there) = (&stage.near, &stage.far());
            let plan = if is_write { Plan::write(here, there) } else { Plan::read(here, there) };
            let plan = plan.extents(&[span]).build().unwrap();
            let done = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
            assert_eq!(done.bytes, len);
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

/// One extent may be as long as its region, which here is 64 MiB and a bit.
pub fn one_extent_of_64_mib(setting: &Setting) {
    let len = (64 << 20) + 12_345;
    let mut stage = Stage::sized(setting, len);
    let (near, mut far) = stage.models();
    let span = Span { local: 0, remote: 0, len };
    assert_eq!(stage.write(span).bytes, len);
    apply(span, &near, &mut far, true);
    stage.assert_far(0, "kv", &far);
}

/// Ten thousand blocks, each from anywhere to anywhere, by one plan there and one back.
pub fn ten_thousand_scattered_blocks(setting: &Setting) {
    const BLOCK: u64 = 200;
    const BLOCKS: u32 = 12_000;
    let bytes = BLOCK * u64::from(BLOCKS);
    let mut stage = Stage::with(setting, Options { bytes, block: BLOCK, ..Options::default() });
    let (mut near, mut far) = stage.models();
    let mut random = Random::new(4);
    for is_write in [true, false] {
        let (from, to) = (random.permutation(BLOCKS), random.permutation(BLOCKS));
        let pairs: Vec<(u32, u32)> = from.into_iter().zip(to).take(10_000).collect();
        let (here, there) = (&stage.near, &stage.far());
        let plan = if is_write { Plan::write(here, there) } else { Plan::read(here, there) };
        let plan = plan.blocks(&pairs).block_bytes(BLOCK).build().unwrap();
        let done = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
        assert_eq!((done.bytes, plan.blocks()), (10_000 * BLOCK, 10_000));
        for (local, remote) in pairs {
            let (local, remote) = (u64::from(local) * BLOCK, u64::from(remote) * BLOCK);
            let span = Span { local, remote, len: BLOCK };
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
