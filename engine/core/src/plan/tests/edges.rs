//! Refusals one by one, and numbers at the end of their range.

use super::super::*;
use crate::ids::{Generation, RegionId};
use crate::rights::Rights;

fn local(len: u64) -> RegionBounds {
    RegionBounds::local(RegionId(1), Generation(0), len)
}

fn remote(len: u64) -> RegionBounds {
    RegionBounds::remote(RegionId(2), Generation(0), len, Rights::READ_WRITE)
}

fn write(len: u64) -> Builder<'static> {
    Shape::builder(Direction::Write).between(local(len), remote(len))
}

fn span(local: u64, remote: u64, len: u64) -> Span {
    Span { local, remote, len }
}

fn steps(len: u64, local_stride: u64, remote_stride: u64, count: u64) -> Strided {
    Strided { local: 0, remote: 0, len, local_stride, remote_stride, count }
}

fn place(error: PlanError) -> (Side, Place) {
    match error {
        PlanError::OutOfBounds { item, side, .. } | PlanError::Overflow { item, side, .. } => (side, item.place),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_not_a_plan() {
    assert_eq!(Shape::builder(Direction::Write).build().unwrap_err(), PlanError::Empty);
    assert_eq!(write(64).build().unwrap_err(), PlanError::Empty);
    assert_eq!(Shape::builder(Direction::Read).extents(&[]).build().unwrap_err(), PlanError::NoRegions);
    let empty = |list| PlanError::EmptyList { part: 0, list };
    assert_eq!(write(64).extents(&[]).build().unwrap_err(), empty("extents"));
    assert_eq!(write(64).strided(&[]).build().unwrap_err(), empty("strided runs"));
    assert_eq!(write(64).layers(&[]).blocks(&[(0, 0)]).block_bytes(1).build().unwrap_err(), empty("layers"));
    assert_eq!(write(64).layers(&[(0, 0)]).block_bytes(1).build().unwrap_err(), empty("blocks"));
}

#[test]
fn zero_lengths_and_counts_are_refused() {
    let zero = |place| PlanError::ZeroLength { item: Item { part: 0, place } };
    assert_eq!(write(64).extents(&[span(0, 0, 1), span(1, 1, 0)]).build().unwrap_err(), zero(Place::Extent(1)));
    assert_eq!(
        write(64).blocks(&[(0, 0)]).block_bytes(0).build().unwrap_err(),
        zero(Place::Block { layer: 0, block: 0 })
    );
    assert_eq!(write(64).strided(&[steps(0, 1, 1, 2)]).build().unwrap_err(), zero(Place::Step { run: 0, step: 0 }));
    let count = PlanError::ZeroCount { part: 0, run: 0 };
    assert_eq!(write(64).strided(&[steps(1, 1, 1, 0)]).build().unwrap_err(), count);
}

#[test]
fn block_lengths_come_from_the_regions_only_if_they_agree() {
    let build =
        |a: RegionBounds, b: RegionBounds| Shape::builder(Direction::Write).between(a, b).blocks(&[(1, 2)]).build();
    let shape = build(local(64).with_block_bytes(16), remote(64).with_block_bytes(16)).unwrap();
    assert_eq!(shape.spans().collect::<Vec<_>>(), [(0, span(16, 32, 16))]);
    let unknown = build(local(64).with_block_bytes(16), remote(64)).unwrap_err();
    assert_eq!(unknown, PlanError::BlockBytesUnknown { part: 0, local: Some(16), remote: None });
    assert!(unknown.to_string().contains("give the bytes of a block"));
    assert!(build(local(64).with_block_bytes(16), remote(64).with_block_bytes(32)).is_err());
}

#[test]
fn rights_are_the_peers_to_give() {
    let build = |direction, rights| {
        let there = RegionBounds { rights, ..remote(64) };
        let here = RegionBounds { rights: Rights::NONE, ..local(64) };
        Shape::builder(direction).between(here, there).extents(&[span(0, 0, 8)]).build()
    };
    assert!(build(Direction::Write, Rights::WRITE).is_ok());
    assert!(build(Direction::Read, Rights::READ).is_ok());
    for (direction, rights) in [(Direction::Write, Rights::READ), (Direction::Read, Rights::WRITE)] {
        let refused = PlanError::NotAllowed { direction, region: RegionId(2), rights };
        assert_eq!(build(direction, rights).unwrap_err(), refused);
    }
}

#[test]
fn strides_shorter_than_a_block_are_refused() {
    let error = write(64).blocks(&[(0, 0)]).block_bytes(16).strides(16, 15).build().unwrap_err();
    assert_eq!(error, PlanError::StrideTooShort { part: 0, side: Side::Remote, stride: 15, block_bytes: 16 });
}

#[test]
fn errors_name_the_item_and_where_it_lies() {
    let error =
        write(1024).layers(&[(0, 0), (512, 512)]).blocks(&[(0, 0), (1, 4)]).block_bytes(128).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "block 1 of layer 1 (part 0 of the plan): its 128 bytes at remote offset 1024 reach past the end of \
         region 2 of 1024 bytes: check its base, index and stride, or register more memory"
    );
    let error = write(1024).strided(&[steps(8, 8, 100, 20)]).build().unwrap_err();
    assert_eq!(place(error), (Side::Remote, Place::Step { run: 0, step: 11 }));
    let error = write(1024).extents(&[span(0, 0, 8), span(8, 4, 8)]).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "extent 0 (part 0 of the plan) and extent 1 (part 0 of the plan) both write remote offset 4 of region 2: \
         give every destination byte once, or use two plans, one after the other"
    );
}

#[test]
fn offsets_that_wrap_are_refused() {
    const MAX: u64 = u64::MAX;
    let whole = write(MAX).extents(&[span(0, 0, MAX)]).build().unwrap();
    assert_eq!((whole.bytes(), whole.units()), (MAX, MAX.div_ceil(cut())));
    let last = whole.unit(whole.units() - 1).unwrap();
    let mut out = [Span::default(); 2];
    assert_eq!(last.fill(0, &mut out), 1);
    assert_eq!(out[0].local + out[0].len, MAX);
    assert!(whole.touches_remote(RegionId(2), Generation(0), MAX - 1, MAX));

    let wraps = |builder: Builder<'_>| matches!(builder.build(), Err(PlanError::Overflow { .. }));
    assert!(wraps(write(MAX).extents(&[span(MAX, 0, 1)])));
    assert!(wraps(write(MAX).extents(&[span(0, MAX - 3, 8)])));
    assert!(wraps(write(MAX).strided(&[steps(1, MAX, 1, 3)])));
    assert!(wraps(write(MAX).strided(&[Strided { local: MAX - 8, ..steps(8, MAX - 1, 8, MAX) }])));
    assert!(wraps(write(MAX).layers(&[(0, MAX - 8)]).blocks(&[(0, 1)]).block_bytes(8)));
    assert!(wraps(write(MAX).blocks(&[(u32::MAX, 0)]).block_bytes(1).strides(MAX, 1)));
}

fn cut() -> u64 {
    crate::limits::UNIT_BYTES
}

#[test]
fn what_cannot_be_counted_is_refused() {
    // Each fits its own destination, together they do not fit a number.
    let other = RegionBounds { region: RegionId(3), ..remote(u64::MAX) };
    let all = [span(0, 0, u64::MAX)];
    let error = write(u64::MAX).extents(&all).between(local(u64::MAX), other).extents(&all).build().unwrap_err();
    assert_eq!(error, PlanError::TooLarge);
}

#[test]
fn a_stride_of_zero_repeats_a_source_and_never_a_destination() {
    let shape = write(1 << 20).strided(&[steps(8, 0, 8, 1000)]).build().unwrap();
    assert_eq!((shape.pieces(), shape.bytes()), (1000, 8000));
    let error = write(1 << 20).strided(&[steps(8, 8, 0, 1000)]).build().unwrap_err();
    let step = |step| Item { part: 0, place: Place::Step { run: 0, step } };
    let (side, region) = (Side::Remote, RegionId(2));
    assert_eq!(error, PlanError::Overlap { first: step(0), second: step(1), side, region, offset: 0 });
    assert!(write(64).strided(&[steps(8, 0, 0, 1)]).build().is_ok(), "one piece has no neighbour");
}

#[test]
fn one_source_may_go_to_many_places_but_not_many_to_one() {
    let (fan_out, fan_in) = ([(5, 0), (5, 1), (5, 2)], [(0, 5), (1, 5)]);
    assert!(write(1024).blocks(&fan_out).block_bytes(16).build().is_ok());
    assert!(write(1024).blocks(&fan_in).block_bytes(16).build().is_err());
    let read = Shape::builder(Direction::Read).between(local(1024), remote(1024));
    assert!(read.blocks(&fan_in).block_bytes(16).build().is_ok());
}

#[test]
fn overlaps_are_found_between_parts_that_write_one_region() {
    let again = |region, generation| {
        let there = RegionBounds { region: RegionId(region), generation: Generation(generation), ..remote(64) };
        write(64).extents(&[span(0, 0, 8)]).between(local(64), there).extents(&[span(8, 7, 8)]).build()
    };
    assert!(matches!(again(2, 0), Err(PlanError::Overlap { offset: 7, .. })));
    assert!(again(3, 0).is_ok());
}

#[test]
fn naming_a_property_again_begins_the_next_grid() {
    let shape = write(1024)
        .block_bytes(16)
        .blocks(&[(0, 0)])
        .layers(&[(0, 0), (128, 128)])
        .blocks(&[(4, 4)])
        .block_bytes(8)
        .extents(&[span(512, 512, 8)])
        .build()
        .unwrap();
    let spans: Vec<Span> = shape.spans().map(|(_, span)| span).collect();
    assert_eq!(spans, [span(0, 0, 16), span(128, 128, 16), span(32, 32, 8), span(512, 512, 8)]);
}
