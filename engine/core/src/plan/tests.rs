//! Properties of plans, against a model that expands everything and compares everything.

mod addressed;
mod edges;
mod limits;
mod model;

use proptest::prelude::*;

use super::*;
use crate::limits::UNIT_BYTES;
use model::{Case, Form, Naive, REGIONS};

/// Lists of different indices, in order, shuffled, or with neighbours kept together.
fn indices(most: u32) -> impl Strategy<Value = Vec<u32>> {
    let any: Vec<u32> = (0..most).collect();
    prop_oneof![
        3 => prop::sample::subsequence(any, 1..=most as usize).prop_shuffle(),
        2 => (0..most, 1..=most).prop_map(move |(first, count)| (first..(first + count).min(most)).collect()),
        1 => (1..=most).prop_map(|count| (0..count).rev().collect()),
        1 => prop::collection::vec(0..most, 1..=most as usize),
    ]
}

fn grid(unit: u64) -> impl Strategy<Value = Form> {
    let strides = prop::option::of((0..3_u64, 0..3_u64));
    let layers = prop::collection::vec((0..64_u64, 0..64_u64), 1..4);
    (indices(6), indices(6), layers, 1..9_u64, strides, any::<bool>()).prop_map(
        move |(locals, remotes, mut layers, bytes, strides, tidy)| {
            let bytes = bytes * unit;
            let strides = strides.map_or((bytes, bytes), |(l, r)| (bytes + l * bytes / 2, bytes + r * bytes));
            for (layer, bases) in layers.iter_mut().enumerate() {
                let apart = layer as u64 * 6;
                *bases = if tidy { (apart * strides.0, apart * strides.1) } else { (bases.0 * unit, bases.1 * unit) };
            }
            let blocks = locals.into_iter().zip(remotes).collect();
            Form::Grid { layers, blocks, bytes, strides }
        },
    )
}

fn strided(unit: u64) -> impl Strategy<Value = Form> {
    let one = (0..200_u64, 0..200_u64, 0..6_u64, 0..12_u64, 0..12_u64, 0..24_u64);
    let runs = prop::collection::vec(one, 1..4);
    (runs, any::<bool>()).prop_map(move |(runs, alike)| {
        let shape = runs[0];
        let run = |(local, remote, len, local_stride, remote_stride, count): (u64, u64, u64, u64, u64, u64)| Strided {
            local: local * unit,
            remote: remote * unit,
            len: len * unit,
            local_stride: local_stride * unit,
            remote_stride: remote_stride * unit,
            count,
        };
        let runs = runs
            .into_iter()
            .map(|it| if alike { run((it.0, it.1, shape.2, shape.3, shape.4, shape.5)) } else { run(it) });
        Form::Strided(runs.collect())
    })
}

fn extents(unit: u64) -> impl Strategy<Value = Form> {
    prop_oneof![
        // Anywhere, mostly overlapping.
        prop::collection::vec((0..220_u64, 0..220_u64, 0..30_u64), 1..5).prop_map(move |spans| {
            let span = |(local, remote, len)| Span { local: local * unit, remote: remote * unit, len: len * unit };
            Form::Extents(spans.into_iter().map(span).collect())
        }),
        // Cells of one size, mergeable here and there.
        (indices(20), indices(20), 1..8_u64).prop_map(move |(locals, remotes, bytes)| {
            let len = bytes * unit;
            let pairs = locals.into_iter().zip(remotes);
            let span = |(local, remote)| Span { local: u64::from(local) * len, remote: u64::from(remote) * len, len };
            Form::Extents(pairs.map(span).collect())
        }),
    ]
}

/// Plans whose lengths are multiples of `unit` bytes, over regions of [`model::CELLS`] such units.
fn case(unit: u64) -> impl Strategy<Value = Case> {
    let form = prop_oneof![3 => grid(unit), 2 => strided(unit), 2 => extents(unit)];
    let pair = (0..REGIONS, 0..REGIONS, prop::collection::vec(form, 1..3));
    let rights = prop_oneof![8 => Just(3_u8), 1 => 0..3_u8];
    (any::<bool>(), prop::collection::vec(pair, 1..3), rights).prop_map(move |(write, pairs, rights)| Case {
        direction: if write { Direction::Write } else { Direction::Read },
        unit,
        rights: rights.into(),
        pairs,
    })
}

/// Every span of a shape, unit by unit in the order of `numbers`, through buffers of `room` spans.
/// The same with every span that goes on where the one before it ends made one with it.
fn joined(spans: Vec<(usize, Span)>) -> Vec<(usize, Span)> {
    let mut joined: Vec<(usize, Span)> = Vec::new();
    for (section, span) in spans {
        match joined.last_mut() {
            Some((last, before))
                if *last == section
                    && before.local + before.len == span.local
                    && before.remote + before.len == span.remote =>
            {
                before.len += span.len;
            }
            _ => joined.push((section, span)),
        }
    }
    joined
}

fn by_units(shape: &Shape, numbers: impl IntoIterator<Item = u64>, room: usize) -> Vec<(usize, Span)> {
    let mut all = Vec::new();
    for number in numbers {
        let unit = shape.unit(number).expect("a number below units()");
        let (mut buffer, mut from, mut bytes) = (vec![Span::default(); room], 0, 0);
        loop {
            let filled = unit.fill(from, &mut buffer);
            assert_eq!(filled, room.min(unit.spans() - from));
            if filled == 0 {
                break;
            }
            bytes += buffer[..filled].iter().map(|span| span.len).sum::<u64>();
            all.extend(buffer[..filled].iter().map(|&span| (unit.section(), span)));
            from += filled;
        }
        assert_eq!(bytes, unit.bytes());
        assert!((1..=UNIT_BYTES).contains(&bytes) && (1..=UNIT_SPANS_MAX).contains(&from));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_plan_is_refused_exactly_when_the_model_refuses_it(case in case(1)) {
        let naive = Naive::of(&case);
        match case.build() {
            Ok(_) => prop_assert_eq!(naive.faults(), Vec::new()),
            Err(error) => naive.confirm(&error),
        }
    }

    #[test]
    fn units_in_any_order_copy_what_the_model_copies(
        case in case(1),
        room in 1..70_usize,
        order in any::<prop::sample::Index>(),
    ) {
        let Ok(shape) = case.build() else { return Ok(()) };
        let naive = Naive::of(&case);
        let units = shape.units();
        let turn = order.index(units as usize) as u64;
        let spans = by_units(&shape, (0..units).map(|number| (number + turn) % units).rev(), room);
        let moves = spans.iter().map(|&(section, span)| {
            let section = &shape.sections()[section];
            (section.local(), section.remote(), span)
        });
        prop_assert_eq!(model::copy(case.direction, moves), naive.copy());
    }

    #[test]
    fn units_are_a_partition_of_what_the_caller_gave(case in case(7_000), room in 1..70_usize) {
        let Ok(shape) = case.build() else { return Ok(()) };
        let naive = Naive::of(&case);
        let moves = |spans: &mut dyn Iterator<Item = (usize, Span)>| -> Vec<model::Move> {
            spans.map(|(section, span)| {
                let section = &shape.sections()[section];
                (section.local(), section.remote(), span)
            }).collect()
        };
        let units = moves(&mut by_units(&shape, 0..shape.units(), room).into_iter());
        let whole = moves(&mut shape.spans());
        prop_assert_eq!(shape.unit(shape.units()).map(|unit| unit.bytes()), None);
        prop_assert_eq!(shape.pieces(), whole.len() as u64);
        prop_assert_eq!(shape.blocks(), naive.moves().len() as u64);
        prop_assert_eq!(shape.bytes(), units.iter().map(|it| it.2.len).sum::<u64>());
        let given = model::normal(case.direction, naive.moves());
        prop_assert_eq!(&model::normal(case.direction, units), &given);
        prop_assert_eq!(&model::normal(case.direction, whole), &given);
    }

    #[test]
    fn stretches_of_units_are_the_same_bytes_in_the_same_order(case in case(7_000), most in 1..12_u64) {
        let Ok(shape) = case.build() else { return Ok(()) };
        let (mut stretched, mut number) = (Vec::new(), 0);
        while let Some((unit, count)) = shape.unit_range(number, most) {
            prop_assert!((1..=most).contains(&count));
            let bytes: u64 = (number..number + count).map(|number| shape.unit(number).unwrap().bytes()).sum();
            prop_assert_eq!(unit.bytes(), bytes);
            let mut spans = vec![Span::default(); unit.spans() + 1];
            prop_assert_eq!(unit.fill(0, &mut spans), unit.spans());
            prop_assert_eq!(spans.iter().map(|span| span.len).sum::<u64>(), bytes);
            stretched.extend(spans[..unit.spans()].iter().map(|&span| (unit.section(), span)));
            number += count;
        }
        prop_assert_eq!(number, shape.units());
        let one_by_one = by_units(&shape, 0..shape.units(), 1);
        prop_assert_eq!(joined(stretched), joined(one_by_one));
    }

    #[test]
    fn touching_is_exact(case in case(1), queries in prop::collection::vec((0..256_u64, 0..40_u64), 1..40)) {
        let Ok(shape) = case.build() else { return Ok(()) };
        let naive = Naive::of(&case);
        for (offset, len) in queries {
            for region in 0..REGIONS {
                for side in [Side::Local, Side::Remote] {
                    let RegionKey { region: id, generation } = model::key(side, region);
                    let answer = match side {
                        Side::Local => shape.touches_local(id, generation, offset, len),
                        Side::Remote => shape.touches_remote(id, generation, offset, len),
                    };
                    prop_assert_eq!(answer, naive.touches(side, region, offset, len));
                }
            }
        }
    }
}
