//! Cuts, held against a byte for byte reference that knows forms only by where they say a byte is.

use std::collections::BTreeMap;

use penstock_session::control::{Buffer, Form, LayoutNews, Rows};
use proptest::prelude::*;

use super::*;
use crate::layout::Layout;

/// A layout whose buffers lie one behind the other, and the bytes of its region.
fn layout(block_tokens: u32, blocks: u32, forms: &[(u32, Form)]) -> (Layout, u64) {
    let mut end = 3;
    let mut buffers = Vec::new();
    for &(layer, form) in forms {
        let block = match form {
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => u64::from(rows.count * rows.bytes * block_tokens),
            Form::Once(bytes) => bytes,
        };
        // Blocks of an even size lie without a gap, so that pieces of neighbours can be joined.
        let stride = block + u64::from(block_tokens % 2) * 5;
        buffers.push(Buffer { layer, base: end, stride, form });
        end += stride * u64::from(blocks);
    }
    let news = LayoutNews {
        number: 1,
        generation: 1,
        label: format!("blocks of {block_tokens}"),
        region: 1,
        region_generation: 1,
        block_tokens,
        blocks,
        rank: 0,
        ranks: 1,
        buffers,
    };
    (Layout::check(news, end).unwrap(), end)
}

/// Where one byte of one row of one token is, as the form is explained.
fn place_of(layout: &Layout, buffer: usize, run: &Run<'_>, token: u64, row: u32, byte: u64) -> Option<u64> {
    let lies = &layout.buffers()[buffer];
    let all = u64::from(layout.block_tokens());
    let token = run.first + token;
    let block = lies.base + u64::from(run.blocks[(token / all) as usize]) * lies.stride;
    let token = token % all;
    let among = |rows: Rows| (rows.first..rows.first + rows.count).contains(&row).then(|| u64::from(row - rows.first));
    match lies.form {
        Form::TokenMajor(rows) => {
            let width = u64::from(rows.bytes);
            Some(block + token * u64::from(rows.count) * width + among(rows)? * width + byte)
        }
        Form::PlaneMajor(rows) => Some(block + (among(rows)? * all + token) * u64::from(rows.bytes) + byte),
        Form::Once(_) => None,
    }
}

/// What a cut has to come to: which byte there is which byte here.
fn reference(here: &Layout, there: &Layout, cut: &Cut<'_>) -> BTreeMap<u64, u64> {
    let mut bytes = BTreeMap::new();
    for (buffer, lies) in here.buffers().iter().enumerate().filter(|(_, lies)| cut.layers.contains(&lies.layer)) {
        match lies.form {
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => {
                for token in 0..cut.tokens {
                    for (row, byte) in
                        (0..rows.of).flat_map(|row| (0..u64::from(rows.bytes)).map(move |byte| (row, byte)))
                    {
                        let from = place_of(here, buffer, &cut.here, token, row, byte);
                        let to = place_of(there, buffer, &cut.there, token, row, byte);
                        if let (Some(from), Some(to)) = (from, to) {
                            assert_eq!(bytes.insert(to, from), None);
                        }
                    }
                }
            }
            Form::Once(once) => {
                if let Some((ours, theirs)) = cut.once {
                    let from = lies.base + u64::from(ours) * lies.stride;
                    let to = &there.buffers()[buffer];
                    let to = to.base + u64::from(theirs) * to.stride;
                    bytes.extend((0..once).map(|byte| (to + byte, from + byte)));
                }
            }
        }
    }
    bytes
}

/// Copies by the pieces, and compares every byte of the memory there.
fn copies_like_the_reference(here: &(Layout, u64), there: &(Layout, u64), cut: &Cut<'_>) -> Vec<Span> {
    let pair = ShardPair::of(&here.0, &there.0).unwrap();
    let mut spans = Vec::new();
    let moved = pair.cut(cut, &mut spans).unwrap();
    let pattern = |place: u64| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 | 1;
    let from: Vec<u8> = (0..here.1).map(pattern).collect();
    let mut to = vec![0_u8; there.1 as usize];
    for span in &spans {
        let (local, remote, len) = (span.local as usize, span.remote as usize, span.len as usize);
        assert!(len > 0 && to[remote..remote + len].iter().all(|&byte| byte == 0), "a byte is moved twice");
        to[remote..remote + len].copy_from_slice(&from[local..local + len]);
    }
    let expected = reference(&here.0, &there.0, cut);
    assert_eq!(moved, expected.len() as u64);
    for (place, &byte) in to.iter().enumerate() {
        let wanted = expected.get(&(place as u64)).map_or(0, |&from| pattern(from));
        assert_eq!(byte, wanted, "byte {place} of {there:?}");
    }
    let stretches = (cut.here.blocks.len() + cut.there.blocks.len()) as u64;
    assert!(spans.len() as u64 <= pair.spans_most(cut.tokens, stretches), "{} pieces", spans.len());
    assert!(spans.len() as u64 <= cut.tokens.max(1) * pair.token_spans());
    spans
}

fn rows(first: u32, count: u32, of: u32, bytes: u32) -> Rows {
    Rows { first, count, of, bytes }
}

fn run(blocks: &[u32], first: u64) -> Run<'_> {
    Run { blocks, first }
}

#[test]
fn tokens_976_over_8_blocks_of_128_match() {
    let forms = [(0, Form::TokenMajor(rows(0, 1, 1, 7))), (0, Form::PlaneMajor(rows(0, 3, 3, 4))), (0, Form::Once(64))];
    let both = layout(128, 20, &forms);
    let source: Vec<u32> = (0..16).collect();
    let sink = [19, 3, 7, 5, 11, 0, 2, 1];
    let cut = Cut { layers: 0..1, here: run(&source, 1024), there: run(&sink, 0), tokens: 976, once: None };
    let spans = copies_like_the_reference(&both, &both, &cut);
    assert_eq!(spans.len(), 8 + 7 + 3, "whole blocks are a piece each, planes of the half filled one three");
}

#[test]
fn tokens_1000_of_blocks_of_128_in_two_cuts_are_what_one_cut_is() {
    let forms = [(0, Form::TokenMajor(rows(0, 2, 2, 4))), (1, Form::PlaneMajor(rows(0, 3, 3, 8)))];
    let both = layout(128, 16, &forms);
    let pair = ShardPair::of(&both.0, &both.0).unwrap();
    let source: Vec<u32> = (0..16).rev().collect();
    let sink: Vec<u32> = (0..16).collect();
    let whole = Cut { layers: 0..2, here: run(&source, 0), there: run(&sink, 0), tokens: 2000, once: None };
    copies_like_the_reference(&both, &both, &whole);
    let bytes_of = |cuts: &[Cut<'_>]| {
        let mut spans = Vec::new();
        for cut in cuts {
            pair.cut(cut, &mut spans).unwrap();
        }
        let each = |span: Span| (0..span.len).map(move |byte| (span.remote + byte, span.local + byte));
        spans.into_iter().flat_map(each).collect::<BTreeMap<_, _>>()
    };
    let first = Cut { tokens: 1000, ..whole.clone() };
    let rest = Cut { here: run(&source, 1000), there: run(&sink, 1000), tokens: 1000, ..whole.clone() };
    assert_eq!(bytes_of(&[first, rest]), bytes_of(&[whole]));
}

#[test]
fn nothing_of_nothing_is_nothing() {
    let both = layout(16, 4, &[(0, Form::TokenMajor(rows(0, 1, 1, 8))), (0, Form::Once(9))]);
    let pair = ShardPair::of(&both.0, &both.0).unwrap();
    let mut out = Vec::new();
    let mut cut = Cut { layers: 0..1, here: run(&[], 0), there: run(&[], 0), tokens: 0, once: None };
    assert_eq!(pair.cut(&cut, &mut out), Ok(0));
    cut.here = run(&[1, 2], 5);
    assert_eq!(pair.cut(&cut, &mut out), Ok(0));
    assert!(out.is_empty());
    cut.once = Some((1, 3));
    assert_eq!(pair.cut(&cut, &mut out), Ok(9), "what goes once goes without tokens as well");
    cut.layers = 1..1;
    assert_eq!(pair.cut(&cut, &mut out), Ok(0));
}

#[test]
fn what_cannot_be_cut_is_named_and_adds_nothing() {
    let small = layout(16, 4, &[(0, Form::TokenMajor(rows(0, 1, 1, 8)))]);
    let pair = ShardPair::of(&small.0, &small.0).unwrap();
    let mut out = Vec::new();
    let mut refusal = |here, there, tokens, once| {
        let error = pair.cut(&Cut { layers: 0..1, here, there, tokens, once }, &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    let short = |is_here, room, needed| CutError::TooShort { is_here, room, needed };
    assert_eq!(refusal(run(&[], 0), run(&[0], 0), 1, None), short(true, 0, 1));
    assert_eq!(refusal(run(&[0, 1], 0), run(&[0], 0), 17, None), short(false, 16, 17));
    assert_eq!(refusal(run(&[0, 1], u64::MAX), run(&[0], 0), 17, None), short(true, 32, u64::MAX));
    let none = |is_here, block| CutError::NoSuchBlock { is_here, block, blocks: 4 };
    assert_eq!(refusal(run(&[0, 4], 0), run(&[0, 1], 0), 17, None), none(true, 4));
    assert_eq!(refusal(run(&[0], 0), run(&[u32::MAX], 0), 1, None), none(false, u32::MAX));
    assert_eq!(refusal(run(&[0], 0), run(&[0], 0), 1, Some((0, 9))), none(false, 9));
    let said = none(false, 9).to_string();
    assert!(said.contains("block 9 is named there, where there are 4"), "{said}");
}

#[test]
fn too_many_pieces_are_refused_and_a_part_has_as_many_as_fit() {
    let tokens = layout(64, 400, &[(0, Form::TokenMajor(rows(0, 64, 64, 1)))]);
    let planes = layout(64, 400, &[(0, Form::PlaneMajor(rows(0, 64, 64, 1)))]);
    let pair = ShardPair::of(&tokens.0, &planes.0).unwrap();
    let blocks: Vec<u32> = (0..400).collect();
    let mut out = Vec::new();
    let mut cut = Cut { layers: 0..1, here: run(&blocks, 0), there: run(&blocks, 0), tokens: 400 * 64, once: None };
    assert_eq!(pair.cut(&cut, &mut out), Err(CutError::TooManySpans));
    assert!(out.is_empty());
    cut.tokens = pair.part_tokens(&(0..1), u64::MAX);
    assert_eq!(cut.tokens, (1 << 20) / 64);
    assert_eq!(pair.cut(&cut, &mut out), Ok(cut.tokens * 64));
    assert_eq!(pair.part_tokens(&(0..1), 1000), 15);
    assert_eq!(pair.part_tokens(&(0..1), 1), 1, "a token is never cut");
}

/// A buffer, and which of its rows each rank of so many has.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Heads { each: u32, bytes: u32, is_plane_major: (bool, bool) },
    Planes { count: u32, bytes: u32, is_plane_major: (bool, bool) },
    Once(u64),
}

impl Kind {
    fn form(self, is_here: bool, rank: u32, ranks: u32) -> Form {
        let form = |rows, (here, there): (bool, bool)| {
            if if is_here { here } else { there } { Form::PlaneMajor(rows) } else { Form::TokenMajor(rows) }
        };
        match self {
            Self::Heads { each, bytes, is_plane_major } => {
                let count = each * 4 / ranks;
                form(rows(rank * count, count, each * 4, bytes), is_plane_major)
            }
            Self::Planes { count, bytes, is_plane_major } => form(rows(0, count, count, bytes), is_plane_major),
            Self::Once(bytes) => Form::Once(bytes),
        }
    }
}

fn kinds() -> impl Strategy<Value = Vec<(u32, Kind)>> {
    let heads = (1_u32..3, 1_u32..5, any::<(bool, bool)>()).prop_map(|(each, bytes, is_plane_major)| Kind::Heads {
        each,
        bytes,
        is_plane_major,
    });
    let planes = (1_u32..4, 1_u32..5, any::<(bool, bool)>()).prop_map(|(count, bytes, is_plane_major)| Kind::Planes {
        count,
        bytes,
        is_plane_major,
    });
    let once = (1_u64..20).prop_map(Kind::Once);
    proptest::collection::vec((0_u32..3, prop_oneof![3 => heads, 2 => planes, 1 => once]), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Two memories, any forms, any sizes of blocks, any ranks, any range: every byte is where it belongs, and no other is touched.
    #[test]
    fn every_byte_is_where_it_belongs(
        kinds in kinds(),
        sizes in (prop_oneof![Just(16_u32), Just(64), 1_u32..20], prop_oneof![Just(16_u32), Just(64), 1_u32..20]),
        ranks in prop_oneof![Just((2_u32, 4_u32)), Just((4, 2)), Just((1, 1)), Just((4, 4)), Just((1, 4))],
        rank in 0_u32..4, tokens in 0_u64..150, first in 0_u64..100, skip in 0_u64..70, layers in (0_u32..3, 0_u32..4),
        once in any::<bool>(), shuffle in any::<u64>(),
    ) {
        // A rank here and the first one there that has some of its rows, or the other way round.
        let (here_rank, there_rank) =
            if ranks.0 <= ranks.1 { (rank % ranks.0, rank % ranks.0 * (ranks.1 / ranks.0)) } else { (rank, rank * ranks.1 / ranks.0) };
        let forms = |is_here: bool, rank, ranks| -> Vec<(u32, Form)> {
            kinds.iter().map(|&(layer, kind)| (layer, kind.form(is_here, rank, ranks))).collect()
        };
        let blocks = |size: u32, first: u64| -> Vec<u32> {
            let needed = (first + tokens).div_ceil(u64::from(size)) as u32;
            let mut blocks: Vec<u32> = (0..needed).collect();
            let mut state = shuffle | 1;
            for place in (1..blocks.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                blocks.swap(place, (state >> 33) as usize % (place + 1));
            }
            blocks
        };
        let (ours, theirs) = (blocks(sizes.0, first), blocks(sizes.1, skip));
        let here = layout(sizes.0, ours.len().max(1) as u32, &forms(true, here_rank, ranks.0));
        let there = layout(sizes.1, theirs.len().max(1) as u32, &forms(false, there_rank, ranks.1));
        let cut = Cut {
            layers: layers.0.min(layers.1)..layers.0.max(layers.1),
            here: run(&ours, first),
            there: run(&theirs, skip),
            tokens,
            once: once.then_some((0, 0)),
        };
        copies_like_the_reference(&here, &there, &cut);
    }

    /// All ranks that share rows together, each with its own block size: no row of the sink stays empty.
    #[test]
    fn all_sources_together_fill_a_sink(ranks in prop_oneof![Just((2_u32, 4_u32)), Just((4, 2))], tokens in 1_u64..200, from in 0_u64..60) {
        let kind = Kind::Heads { each: 2, bytes: 3, is_plane_major: (false, false) };
        for sink_rank in 0..ranks.1 {
            let theirs: Vec<u32> = (0..tokens.div_ceil(64) as u32).collect();
            let ours: Vec<u32> = (0..(from + tokens).div_ceil(16) as u32).rev().collect();
            let there = layout(64, theirs.len() as u32, &[(0, kind.form(false, sink_rank, ranks.1))]);
            let mut filled = vec![0_u8; there.1 as usize];
            let mut sources = Vec::new();
            for rank in 0..ranks.0 {
                let here = layout(16, ours.len() as u32, &[(0, kind.form(true, rank, ranks.0))]);
                let Ok(pair) = ShardPair::of(&here.0, &there.0) else { continue };
                let mut spans = Vec::new();
                let cut = Cut { layers: 0..1, here: run(&ours, from), there: run(&theirs, 0), tokens, once: None };
                pair.cut(&cut, &mut spans).unwrap();
                for span in spans {
                    filled[span.remote as usize..][..span.len as usize].iter_mut().for_each(|byte| *byte += 1);
                }
                sources.push(here.0);
            }
            ShardPair::covers(&there.0, &sources.iter().collect::<Vec<_>>()).unwrap();
            let row = u64::from(8 / ranks.1) * 3;
            prop_assert_eq!(filled.iter().map(|&byte| u64::from(byte)).sum::<u64>(), tokens * row);
            prop_assert!(filled.iter().all(|&byte| byte <= 1));
        }
    }
}
