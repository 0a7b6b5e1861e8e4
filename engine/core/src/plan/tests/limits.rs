//! What a plan costs, counted and not timed: entries kept, pieces written out, units.

use super::super::builder::PlanPart;
use super::super::lower::Draft;
use super::super::overlap::{Survey, repeated, survey};
use super::super::*;
use crate::ids::{Generation, RegionId};
use crate::limits::UNIT_BYTES;
use crate::rights::Rights;

const TIB: u64 = 1 << 40;

fn write() -> Builder<'static> {
    let local = RegionBounds::local(RegionId(1), Generation(0), TIB);
    Shape::builder(Direction::Write)
        .between(local, RegionBounds::remote(RegionId(2), Generation(0), TIB, Rights::WRITE))
}

/// `count` pairs of indices below it, each index once, without neighbours.
fn scattered(count: u32) -> Vec<(u32, u32)> {
    // Odd multipliers of a power of two visit every index.
    assert!(count.is_power_of_two());
    (0..count).map(|i| (i.wrapping_mul(77) % count, i.wrapping_mul(45) % count)).collect()
}

fn layers(count: u64, apart: u64) -> Vec<(u64, u64)> {
    (0..count).map(|layer| (layer * apart, layer * apart)).collect()
}

fn look(builder: Builder<'_>) -> Survey {
    let parts: Vec<PlanPart<'_>> = builder.resolve().unwrap();
    let draft = Draft::lower(&parts, Side::Remote).unwrap();
    let all: Vec<usize> = (0..draft.sections.len()).collect();
    survey(&draft, &all, Side::Remote)
}

#[test]
fn eighty_layers_of_a_thousand_blocks_stay_eighty_and_a_thousand_entries() {
    let (bases, blocks) = (layers(80, 1024 * 32_768), scattered(1024));
    let shape = write().layers(&bases).blocks(&blocks).block_bytes(32_768).build().unwrap();
    assert_eq!((shape.blocks(), shape.pieces(), shape.bytes()), (81_920, 81_920, 81_920 * 32_768));
    assert_eq!(shape.units(), 81_920 / 2);
    let entries = 80 * size_of::<(u64, u64)>() + 1024 * size_of::<Span>();
    let unit_table = (1024 / 2 + 1) * size_of::<Span>();
    assert!(shape.heap_bytes() <= entries + unit_table + 512, "{} bytes", shape.heap_bytes());
}

#[test]
fn long_runs_and_strided_runs_do_not_grow_with_their_bytes() {
    let long = write().extents(&[Span { local: 0, remote: 0, len: TIB }]).build().unwrap();
    assert_eq!(long.units(), TIB / UNIT_BYTES);
    assert!(long.heap_bytes() < 512);
    let rows = Strided { local: 0, remote: 0, len: 8192, local_stride: 16_384, remote_stride: 8192, count: 16_384 };
    let rows = write().strided(&[rows]).build().unwrap();
    assert_eq!((rows.pieces(), rows.units()), (16_384, 16_384 / 8));
    assert!(rows.heap_bytes() < 512);
}

#[test]
fn strided_runs_of_one_shape_share_their_steps() {
    let head = |block: u64| Strided {
        local: block * 16 * 1024,
        remote: block * 64 * 1024,
        len: 1024,
        local_stride: 1024 * 2,
        remote_stride: 4096,
        count: 32,
    };
    let heads: Vec<Strided> = (0..1000).map(|block| head(block * 5)).collect();
    let shape = write().strided(&heads).build().unwrap();
    assert_eq!((shape.sections().len(), shape.pieces()), (1, 32_000));
    assert!(shape.heap_bytes() <= 1000 * 16 + 32 * 24 + 512);
}

#[test]
fn neighbours_become_one_run_in_either_direction() {
    let runs = |blocks: &[(u32, u32)]| {
        let shape = write().blocks(blocks).block_bytes(4096).build().unwrap();
        shape.sections()[0].runs().to_vec()
    };
    assert_eq!(runs(&[(3, 7), (4, 8), (5, 9)]), [Span { local: 3 * 4096, remote: 7 * 4096, len: 3 * 4096 }]);
    assert_eq!(runs(&[(5, 9), (4, 8), (3, 7)]), [Span { local: 3 * 4096, remote: 7 * 4096, len: 3 * 4096 }]);
    assert_eq!(runs(&[(3, 7), (4, 9), (6, 10), (5, 5)]).len(), 4);
    let spread = write().blocks(&[(0, 0), (1, 1)]).block_bytes(16).strides(16, 32).build().unwrap();
    assert_eq!(spread.pieces(), 2);
}

#[test]
fn layers_that_lie_apart_or_within_one_stride_are_proven_without_writing_out() {
    let blocks = scattered(64);
    // Layer after layer.
    assert_eq!(look(write().layers(&layers(80, 64 * 4096)).blocks(&blocks).block_bytes(4096)), Survey::Apart);
    // Block after block, each with all its layers.
    let bases = layers(80, 4096);
    let woven = write().layers(&bases).blocks(&blocks).block_bytes(4096).strides(80 * 4096, 80 * 4096);
    assert_eq!(look(woven), Survey::Apart);
    // Layer after layer, keys and values side by side.
    let both: Vec<(u64, u64)> =
        (0..80).flat_map(|layer| [layer * 64 * 8192, layer * 64 * 8192 + 4096]).map(|base| (base, base)).collect();
    let both = write().layers(&both).blocks(&blocks).block_bytes(4096).strides(8192, 8192);
    assert_eq!(look(both), Survey::Apart);
    // The same layer twice.
    let twice = write().layers(&[(0, 0), (TIB / 2, 0)]).blocks(&blocks).block_bytes(4096);
    assert_eq!(look(twice), Survey::Clash(0));
    // Even blocks of one layer between odd blocks of another: only the pieces can tell.
    let even: Vec<(u32, u32)> = (0..64).map(|i| (i, 2 * i)).collect();
    let bases = [(0, 0), (TIB / 2, 4096)];
    let between = || write().layers(&bases).blocks(&even).block_bytes(4096);
    assert_eq!(look(between()), Survey::Tangled(vec![0]));
    assert!(between().build().is_ok());
    let bases = [(0, 0), (TIB / 2, 8192)];
    let over = write().layers(&bases).blocks(&even).block_bytes(4096);
    assert!(matches!(over.build(), Err(PlanError::Overlap { offset: 8192, .. })));
}

#[test]
fn what_would_take_too_much_memory_to_prove_is_refused() {
    let comb = |remote| Strided { local: 0, remote, len: 1, local_stride: 2, remote_stride: 4, count: 1 << 30 };
    let error = write().strided(&[comb(0), comb(2)]).build().unwrap_err();
    assert!(matches!(error, PlanError::TooTangled { pieces: 2_147_483_648, .. }));
    let few = |remote| Strided { count: 1 << 10, ..comb(remote) };
    assert!(write().strided(&[few(0), few(2)]).build().is_ok());
    assert!(write().strided(&[few(0), few(4)]).build().is_err());
}

#[test]
fn repeated_indices_are_found_near_and_far() {
    let find = |indices: &[u32]| {
        let (low, high) = (*indices.iter().min().unwrap(), *indices.iter().max().unwrap());
        repeated(indices.iter().copied(), indices.len(), low, high)
    };
    assert_eq!(find(&[5, 6, 7, 70, 8]), None);
    assert_eq!(find(&[5, 6, 7, 70, 6]), Some(6));
    assert_eq!(find(&[0, u32::MAX]), None);
    assert_eq!(find(&[0, u32::MAX, 1_000_000, u32::MAX]), Some(u32::MAX));
}

#[test]
fn units_hold_whole_blocks_and_cut_only_long_runs() {
    let bytes = |builder: Builder<'_>| {
        let shape = builder.build().unwrap();
        (0..shape.units()).map(|number| shape.unit(number).unwrap().bytes()).collect::<Vec<_>>()
    };
    let blocks = scattered(8);
    // 72 KiB: two halves each, cut on a page.
    assert_eq!(bytes(write().blocks(&blocks).block_bytes(73_728)), [36_864; 16]);
    // 20 KiB: three to a unit.
    assert_eq!(bytes(write().blocks(&blocks).block_bytes(20_480)), [61_440, 61_440, 40_960]);
    // Short rows: several layers to a unit.
    let short = layers(10, 1 << 20);
    assert_eq!(bytes(write().layers(&short).blocks(&blocks).block_bytes(2048)), [65_536, 65_536, 32_768]);
    // Tiny blocks: bounded by their number.
    assert_eq!(bytes(write().blocks(&scattered(2048)).block_bytes(8)), [8 * UNIT_SPANS_MAX as u64; 4]);
}
