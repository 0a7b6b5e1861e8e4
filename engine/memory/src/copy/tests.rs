//! Every available kernel against a byte loop, with guard bytes all around.

use penstock_core::{Direction, Span};
use proptest::prelude::*;

use super::*;
use crate::HostMemory;

/// Lengths at which kernels change their way.
fn edge_lengths() -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..=300).collect();
    for edge in [1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        lengths.extend([edge - 1, edge, edge + 1]);
    }
    lengths
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

fn host(bytes: Vec<u8>) -> Window {
    HostMemory::from_vec(bytes).unwrap().window().clone()
}

fn bytes_of(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len() as usize];
    window.read_into(0, &mut bytes).unwrap();
    bytes
}

/// Copies by one byte at a time, the way nobody can get wrong.
fn byte_loop(from: &[u8], to: &mut [u8], direction: Direction, spans: &[Span]) {
    for span in spans {
        let (source, target) = match direction {
            Direction::Write => (span.local, span.remote),
            Direction::Read => (span.remote, span.local),
        };
        for i in 0..span.len {
            to[(target + i) as usize] = from[(source + i) as usize];
        }
    }
}

/// Runs `spans` through every kernel, direction and hint and compares *all* bytes of both sides.
fn check_all_kernels(local_len: usize, remote_len: usize, spans: &[Span]) {
    let (local_bytes, remote_bytes) = (pattern(1, local_len), pattern(101, remote_len));
    for kernels in Kernels::all_available() {
        for direction in [Direction::Write, Direction::Read] {
            for hint in [Hint::Cached, Hint::Streaming] {
                let (local, remote) = (host(local_bytes.clone()), host(remote_bytes.clone()));
                let moved = scatter_with(kernels, &local, &remote, direction, spans, hint).unwrap();
                assert_eq!(moved, spans.iter().map(|span| span.len).sum::<u64>());
                let (mut want_local, mut want_remote) = (local_bytes.clone(), remote_bytes.clone());
                match direction {
                    Direction::Write => {
                        byte_loop(&local_bytes, &mut want_remote, direction, spans);
                    }
                    Direction::Read => {
                        byte_loop(&remote_bytes, &mut want_local, direction, spans);
                    }
                }
                let context = (kernels.name(), direction, hint);
                assert!(bytes_of(&local) == want_local, "local differs: {context:?} {spans:?}");
                assert!(bytes_of(&remote) == want_remote, "remote differs: {context:?} {spans:?}");
            }
        }
    }
}

#[test]
fn every_edge_length_at_some_misalignment() {
    const GUARD: u64 = 96;
    for (i, len) in edge_lengths().into_iter().enumerate() {
        let (local, remote) = (GUARD + i as u64 % 64, GUARD + (i as u64 * 7) % 64);
        let room = len + 64 + 2 * GUARD as usize;
        check_all_kernels(room, room, &[Span { local, remote, len: len as u64 }]);
    }
}

#[test]
fn every_alignment_of_a_streaming_span() {
    for local in 0..64 {
        for remote in (local % 2..64).step_by(5) {
            check_all_kernels(1_500, 1_500, &[Span { local, remote, len: 1_300 }]);
        }
    }
}

/// Spans with random gaps, shuffled, destinations apart on both sides.
fn scattered() -> impl Strategy<Value = (u64, u64, Vec<Span>)> {
    let len = prop_oneof![
        4 => 0_u64..300,
        2 => prop::sample::select(edge_lengths()).prop_map(|len| len as u64),
        2 => 1_000_u64..9_000,
    ];
    let piece = (0_u64..200, 0_u64..200, len);
    prop::collection::vec(piece, 0..40).prop_flat_map(|pieces| {
        let (mut local, mut remote) = (0, 0);
        let spans: Vec<Span> = pieces
            .into_iter()
            .map(|(local_gap, remote_gap, len)| {
                local += local_gap;
                remote += remote_gap;
                let span = Span { local, remote, len };
                local += len;
                remote += len;
                span
            })
            .collect();
        (Just(local + 64), Just(remote + 64), Just(spans).prop_shuffle())
    })
}

fn edge() -> impl Strategy<Value = u64> {
    let near = (prop::sample::select(vec![0_u64, 1 << 20, 1 << 61, 1 << 62, 1 << 63]), -3_i64..4);
    prop_oneof![near.prop_map(|(edge, off)| edge.wrapping_add_signed(off)), any::<u64>(), 0_u64..100]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_spans_match_the_byte_loop((local, remote, spans) in scattered()) {
        check_all_kernels(local as usize, remote as usize, &spans);
    }

    #[test]
    fn a_span_that_overlaps_itself_moves_as_memmove_does(
        from in 0_u64..3_000,
        to in 0_u64..3_000,
        len in 1_u64..5_000,
    ) {
        for hint in [Hint::Cached, Hint::Streaming] {
            let bytes = pattern(9, 8_000);
            let window = host(bytes.clone());
            let spans = [Span { local: from, remote: to, len }];
            scatter(&window, &window, Direction::Write, &spans, hint).unwrap();
            let mut want = bytes;
            want.copy_within(from as usize..(from + len) as usize, to as usize);
            prop_assert!(bytes_of(&window) == want);
        }
    }

    /// Numbers next to those at which sums and differences wrap, and windows as long as they can be.
    #[test]
    fn bounds_are_judged_as_with_numbers_that_do_not_wrap(
        spans in prop::collection::vec((edge(), edge(), edge()), 0..5),
        local_len in edge(),
        remote_len in edge(),
    ) {
        let spans: Vec<Span> = spans.into_iter().map(|(local, remote, len)| Span { local, remote, len }).collect();
        let leaves = |span: &Span| {
            let ends_at = |start: u64| u128::from(start) + u128::from(span.len);
            ends_at(span.local) > u128::from(local_len) || ends_at(span.remote) > u128::from(remote_len)
        };
        let want = match spans.iter().position(leaves) {
            None => Ok(spans.iter().fold(0, |bytes: u64, span| bytes.wrapping_add(span.len))),
            Some(index) => Err(CopyError::OutOfBounds { index, span: spans[index], local_len, remote_len }),
        };
        prop_assert_eq!(check_bounds(&spans, local_len, remote_len), want);
    }

    #[test]
    fn a_span_out_of_bounds_refuses_the_whole_batch(
        good in 0_u64..50,
        bad in any::<(u64, u64, u64)>(),
        at in 0_usize..4,
    ) {
        let bad = Span { local: bad.0, remote: bad.1, len: bad.2 };
        prop_assume!(bad.local.checked_add(bad.len).is_none_or(|end| end > 100)
            || bad.remote.checked_add(bad.len).is_none_or(|end| end > 90));
        let (local, remote) = (host(pattern(1, 100)), host(pattern(2, 90)));
        let mut spans = vec![Span { local: good, remote: good, len: 40 }; 3];
        spans.insert(at, bad);
        let refused = scatter(&local, &remote, Direction::Write, &spans, Hint::Cached);
        prop_assert_eq!(
            refused,
            Err(CopyError::OutOfBounds { index: at, span: bad, local_len: 100, remote_len: 90 })
        );
        prop_assert!(bytes_of(&remote) == pattern(2, 90));
    }
}

/// Every combination of numbers at which an end, or what is left behind it, wraps.
#[test]
fn no_end_that_wraps_is_taken_for_one_inside() {
    let high = [61, 62, 63].map(|bit| 1_u64 << bit);
    let edges = high.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]).chain([0, 1, 100, u64::MAX - 1, u64::MAX]);
    let edges: Vec<u64> = edges.collect();
    for window in [100, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, u64::MAX] {
        for (&start, &len) in edges.iter().flat_map(|start| edges.iter().map(move |len| (start, len))) {
            let is_inside = u128::from(start) + u128::from(len) <= u128::from(window);
            let span = Span { local: start, remote: start, len };
            assert_eq!(check_bounds(&[span], window, window).is_ok(), is_inside, "{span:?} in {window}");
        }
    }
}

#[test]
fn disjoint_spans_of_one_window_are_copied() {
    let window = host(pattern(3, 64 << 10));
    let spans: Vec<Span> = (0..8).map(|i| Span { local: i * 4_096, remote: (15 - i) * 4_096, len: 4_096 }).collect();
    let mut want = pattern(3, 64 << 10);
    byte_loop(&pattern(3, 64 << 10), &mut want, Direction::Write, &spans);
    scatter(&window, &window, Direction::Write, &spans, Hint::Streaming).unwrap();
    assert!(bytes_of(&window) == want);
}

#[test]
fn only_the_destination_needs_the_right_to_be_written() {
    let (local, remote) = (host(vec![7; 8]).read_only(), host(vec![0; 8]));
    let spans = [Span { local: 0, remote: 0, len: 8 }];
    assert_eq!(scatter(&local, &remote, Direction::Write, &spans, Hint::Cached), Ok(8));
    let refused = scatter(&local, &remote, Direction::Read, &spans, Hint::Cached);
    assert_eq!(refused, Err(CopyError::ReadOnly));
}

#[test]
fn kernels_are_found_by_name_and_the_best_comes_last() {
    let all = Kernels::all_available();
    assert_eq!(all[0].name(), "portable");
    assert_eq!(kernels().name(), all.last().unwrap().name());
    assert!(all.iter().all(|kernels| Kernels::by_name(kernels.name()).is_some()));
    assert!(Kernels::by_name("none of these").is_none());
}
