//! Plans by address against the bytes that each entry names.

use proptest::prelude::*;

use super::super::*;
use crate::address::AddressIndex;
use crate::ids::{Generation, RegionId};

type Ranges = Vec<(u64, u64)>;

fn index(ranges: &[(u64, u64)]) -> AddressIndex<Found> {
    let mut index = AddressIndex::default();
    for (id, &(base, len)) in (0..).zip(ranges) {
        let key = RegionKey { region: RegionId(id), generation: Generation(7) };
        index.insert((base, len), id, Found { key, base, len });
    }
    index
}

fn build(
    direction: Direction,
    (locals, remotes): (&Ranges, &Ranges),
    entries: &[(u64, u64, u64)],
) -> Result<Shape, Unplaced> {
    let (locals, remotes) = (index(locals), index(remotes));
    let find = |side, address, bytes| match side {
        Side::Local => locals.find(address, bytes, |_| true).copied(),
        Side::Remote => remotes.find(address, bytes, |_| true).copied(),
    };
    let mut addressed = Addressed::new(direction, find);
    addressed.entries(entries)?;
    Ok(addressed.build().expect("small plans can be counted"))
}

/// Every byte that a shape moves, as a pair of addresses.
fn bytes_of(shape: &Shape, (locals, remotes): (&Ranges, &Ranges)) -> Vec<(u64, u64)> {
    let spans = shape.spans().flat_map(|(section, span)| {
        let section = &shape.sections()[section];
        let base = |ranges: &Ranges, key: RegionKey| ranges[key.region.0 as usize].0;
        let (local, remote) = (base(locals, section.local()), base(remotes, section.remote()));
        (0..span.len).map(move |byte| (local + span.local + byte, remote + span.remote + byte))
    });
    let mut bytes: Vec<_> = spans.collect();
    bytes.sort_unstable();
    bytes
}

/// Regions that adjoin, overlap and leave gaps.
fn ranges() -> impl Strategy<Value = Ranges> {
    prop::collection::vec((0..8_u64, 0..3_u64, 1..7_u64), 1..8)
        .prop_map(|cells| cells.into_iter().map(|(cell, shift, len)| (cell * 8 + shift * 4, len * 8)).collect())
}

proptest! {
    #[test]
    fn each_entry_moves_its_bytes_or_is_named(
        locals in ranges(),
        remotes in ranges(),
        entries in prop::collection::vec((0..90_u64, 0..90_u64, 0..40_u64), 0..12),
    ) {
        let has = |ranges: &Ranges, address: u64| ranges.iter().any(|&(base, len)| base <= address && address < base + len);
        let missing = entries.iter().enumerate().find_map(|(entry, &(local, remote, len))| {
            (0..len).find_map(|byte| {
                let (local, remote) = (local + byte, remote + byte);
                match (has(&locals, local), has(&remotes, remote)) {
                    (false, _) => Some((entry, Side::Local, local)),
                    (_, false) => Some((entry, Side::Remote, remote)),
                    _ => None,
                }
            })
        });
        match build(Direction::Write, (&locals, &remotes), &entries) {
            Err(unplaced) => prop_assert_eq!(Some((unplaced.entry, unplaced.side, unplaced.address)), missing),
            Ok(shape) => {
                prop_assert_eq!(missing, None);
                let each = |&(local, remote, len): &(u64, u64, u64)| (0..len).map(move |byte| (local + byte, remote + byte));
                let mut named: Vec<_> = entries.iter().flat_map(each).collect();
                named.sort_unstable();
                prop_assert_eq!(bytes_of(&shape, (&locals, &remotes)), named);
                prop_assert_eq!(shape.blocks(), entries.len() as u64);
                let in_units: u64 = (0..shape.units()).map(|unit| shape.unit(unit).unwrap().bytes()).sum();
                prop_assert_eq!(in_units, shape.bytes());
            }
        }
    }
}

#[test]
fn a_plan_of_nothing_has_no_units() {
    let regions = vec![(0, 64)];
    for entries in [&[][..], &[(1 << 40, 3, 0)]] {
        let shape = build(Direction::Read, (&regions, &regions), entries).unwrap();
        assert_eq!((shape.units(), shape.bytes(), shape.sections().len()), (0, 0, 0));
        assert!(shape.unit(0).is_none() && shape.unit_range(3, 8).is_none());
        assert!(!shape.touches_local(RegionId(0), Generation(9), 0, u64::MAX));
    }
}

#[test]
fn neighbours_between_the_same_regions_are_one_piece_though_others_come_between() {
    let (locals, remotes) = (vec![(0, 1000), (1000, 1000)], vec![(0, 4000)]);
    // Block by block over two layers.
    let entries: Vec<_> =
        (0..20).map(|step| (step / 2 * 10 + step % 2 * 1000, step / 2 * 10 + step % 2 * 2000, 10)).collect();
    let shape = build(Direction::Write, (&locals, &remotes), &entries).unwrap();
    assert_eq!((shape.blocks(), shape.pieces(), shape.sections().len()), (20, 2, 2));
}

#[test]
fn an_entry_past_the_end_of_all_addresses_is_named() {
    let (locals, remotes) = (vec![(0, 4096)], vec![(u64::MAX - 9, u64::MAX)]);
    let unplaced = build(Direction::Write, (&locals, &remotes), &[(0, u64::MAX - 4, 4096)]);
    assert!(unplaced.is_ok(), "a region that claims to go on past the end is its owner's affair: offsets stay in it");
    let (locals, remotes) = (vec![(0, 4096)], vec![(u64::MAX - 9, 10)]);
    let unplaced = build(Direction::Write, (&locals, &remotes), &[(0, u64::MAX - 4, 4096)]).unwrap_err();
    assert_eq!(unplaced, Unplaced { entry: 0, side: Side::Remote, address: u64::MAX - 4, bytes: 4096 });
}
