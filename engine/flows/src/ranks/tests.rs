use penstock_session::control::LayoutNews;
use proptest::prelude::*;

use super::*;
use crate::shards::{Difference, ShardPair};

/// What a buffer is on both sides.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// So many rows, spread over the ranks of both sides.
    Spread(u32),
    /// So many rows, whole on every rank.
    Whole(u32),
    /// Something that goes once.
    Once,
}

fn layout(rank: u16, ranks: u16, kinds: &[Kind]) -> Layout {
    let form = |kind: &Kind| match *kind {
        Kind::Spread(of) => {
            let rows = rows_of(rank, ranks, of).unwrap();
            Form::TokenMajor(Rows { first: rows.start, count: rows.end - rows.start, of, bytes: 2 })
        }
        Kind::Whole(of) => Form::PlaneMajor(Rows { first: 0, count: of, of, bytes: 2 }),
        Kind::Once => Form::Once(8),
    };
    let buffers = kinds.iter().enumerate();
    let buffers =
        buffers.map(|(place, kind)| Buffer { layer: 0, base: place as u64 * 65_536, stride: 4096, form: form(kind) });
    let news = LayoutNews {
        number: 1,
        generation: 1,
        label: format!("rank {rank} of {ranks}"),
        region: 1,
        region_generation: 1,
        block_tokens: 4,
        blocks: 2,
        rank,
        ranks,
        buffers: buffers.collect(),
    };
    Layout::check(news, 1 << 30).unwrap()
}

/// Pairs of ranks that have something to say to each other, as the source's side finds them.
fn pairs(sources: u16, sinks: u16, kinds: &[Kind]) -> Vec<(u16, u16)> {
    let of = |rank| {
        let ours = layout(rank, sources, kinds);
        let its = Spread::of(&ours, (rank, sources)).unwrap().sinks_of(&ours, rank, sinks).unwrap();
        its.into_iter().map(move |sink| (rank, sink))
    };
    (0..sources).flat_map(of).collect()
}

#[test]
fn ranks_meet_whose_rows_are_the_same() {
    let heads = [Kind::Spread(8), Kind::Whole(3), Kind::Once];
    assert_eq!(pairs(2, 4, &heads), [(0, 0), (0, 1), (1, 2), (1, 3)]);
    assert_eq!(pairs(4, 2, &heads), [(0, 0), (1, 0), (2, 1), (3, 1)]);
    assert_eq!(pairs(1, 3, &[Kind::Whole(1)]), [(0, 0), (0, 1), (0, 2)]);
    // Each of two heads is on two ranks of the source: one of them sends it.
    assert_eq!(pairs(4, 2, &[Kind::Spread(2)]), [(0, 0), (3, 1)]);
    assert_eq!(pairs(4, 4, &[Kind::Spread(2)]), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    assert_eq!(pairs(2, 4, &[Kind::Spread(2)]), [(0, 0), (0, 1), (1, 2), (1, 3)]);
    // Everything is everywhere.
    assert_eq!(pairs(4, 2, &[Kind::Whole(1), Kind::Once]), [(0, 0), (1, 1)]);
    assert_eq!(pairs(2, 4, &[Kind::Whole(1)]), [(0, 0), (0, 2), (1, 1), (1, 3)]);
}

#[test]
fn rows_that_are_not_spread_are_refused_by_name() {
    let lopsided = |first, count| {
        let mut news = layout(0, 1, &[Kind::Whole(8)]).news().clone();
        news.buffers[0].form = Form::TokenMajor(Rows { first, count, of: 8, bytes: 2 });
        Layout::check(news, 1 << 30).unwrap()
    };
    let error = Spread::of(&lopsided(0, 3), (0, 2)).unwrap_err();
    assert!(error.to_string().contains("rows 0 to 3 of 8, which are not those of rank 0 of 2"), "{error}");
    assert!(Spread::of(&lopsided(4, 4), (0, 2)).is_err(), "those are of rank 1");
    assert!(Spread::of(&lopsided(4, 4), (1, 2)).is_ok());
    assert_eq!(
        Spread::of(&lopsided(0, 4), (2, 2)).unwrap_err(),
        NotSpread::NoSuchRank { rank: 2, ranks: 2 },
        "there is no such rank"
    );
    let ours = lopsided(0, 4);
    let error = Spread::of(&ours, (0, 2)).unwrap().sinks_of(&ours, 0, 3).unwrap_err();
    assert!(error.to_string().contains("8 rows of buffer 0"), "{error}");
    assert!(error.to_string().contains("over 3 ranks"), "{error}");
}

#[test]
fn who_has_only_what_others_send_is_told_so() {
    let kinds = [Kind::Spread(2), Kind::Whole(3)];
    let (ours, theirs) = (layout(1, 4, &kinds), layout(0, 2, &kinds));
    let spread = Spread::of(&ours, (1, 4)).unwrap();
    assert_eq!(ShardPair::spread(&ours, &theirs, &spread, 1, 0).unwrap_err().why, Difference::ForOthers);
    assert!(ShardPair::of(&ours, &theirs).is_ok(), "where it is named, all of it goes");
}

#[test]
fn a_row_that_nobody_has_sent_is_named_with_its_buffer() {
    let sink = layout(0, 1, &[Kind::Whole(4), Kind::Whole(4), Kind::Once]);
    let run = |buffers, first, count| SentRows { buffers, first, count };
    let all = [run(2, 0, 4), run(1, 0, 1)];
    assert_eq!(not_sent(&sink, &[&all]), None);
    assert_eq!(not_sent(&sink, &[&all[..1]]), Some((2, 0)), "what goes once is missing");
    assert_eq!(not_sent(&sink, &[&[run(3, 0, 2)], &[run(1, 2, 2)]]), Some((1, 2)));
    assert_eq!(not_sent(&sink, &[&[run(3, 0, 2)], &[run(2, 1, 3)]]), None, "some may come twice");
    assert_eq!(not_sent(&sink, &[]), Some((0, 0)));
    // What makes no sense is no row.
    assert_eq!(not_sent(&sink, &[&[run(u32::MAX, u32::MAX, u32::MAX)]]), Some((0, 0)));
    assert_eq!(not_sent(&sink, &[&[run(u32::MAX, 0, u32::MAX), run(9, 9, 9)]]), None);
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let rows = prop_oneof![Just(1_u32), Just(2), Just(4), Just(8), Just(24)];
    let kind = prop_oneof![
        4 => rows.prop_map(Kind::Spread),
        1 => (1_u32..5).prop_map(Kind::Whole),
        1 => Just(Kind::Once),
    ];
    proptest::collection::vec(kind, 1..4)
}

proptest! {
    /// Both sides find the same pairs, and each row of each rank of the sink is sent by exactly one rank of the source.
    #[test]
    fn every_row_is_sent_once(
        sources in prop_oneof![Just(1_u16), Just(2), Just(4), Just(8)],
        sinks in prop_oneof![Just(1_u16), Just(2), Just(4), Just(8)],
        kinds in kinds(),
    ) {
        let ours: Vec<Layout> = (0..sources).map(|rank| layout(rank, sources, &kinds)).collect();
        let spreads: Vec<Spread> =
            (0..sources).map(|rank| Spread::of(&ours[usize::from(rank)], (rank, sources)).unwrap()).collect();
        let pairs = pairs(sources, sinks, &kinds);
        for sink in 0..sinks {
            let theirs = layout(sink, sinks, &kinds);
            let found: Vec<u16> = pairs.iter().filter(|pair| pair.1 == sink).map(|pair| pair.0).collect();
            prop_assert!(!found.is_empty());
            let mut sent = vec![Vec::new(); kinds.len()];
            for rank in 0..sources {
                let (ours, spread) = (&ours[usize::from(rank)], &spreads[usize::from(rank)]);
                if sources > 1 {
                    let heard = spread.sources_of(&theirs, sink);
                    prop_assert_eq!(heard.contains(&rank), found.contains(&rank), "rank {} and {}", rank, sink);
                }
                let pair = ShardPair::spread(ours, &theirs, spread, rank, sink);
                prop_assert_eq!(pair.is_ok(), found.contains(&rank));
                let Ok(pair) = pair else { continue };
                for (buffer, rows) in by_buffer(pair.sent()).enumerate() {
                    sent[buffer].extend(rows);
                }
            }
            for (buffer, mut rows) in sent.into_iter().enumerate() {
                rows.sort_unstable();
                let needed = rowed(&theirs.buffers()[buffer]).map_or(0..1, |rows| rows.first..rows.first + rows.count);
                let needed: Vec<u64> = needed.map(u64::from).collect();
                prop_assert_eq!(rows, needed, "buffer {} of sink {}", buffer, sink);
            }
        }
    }
}
