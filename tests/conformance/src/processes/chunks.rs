//! Chunks that end inside a block.

use std::ops::Range;

use penstock::flows::Send;

use super::Side;
use super::end::{Geometry, request, transfer};
use super::layers::{WITHIN, end_well, receive};

/// A chunk that begins inside a block names that block again, first. Any other list is refused, with how many blocks it has and how many
/// it has to have, or which one is missing; a refusal changes nothing.
pub mod chunks_end_anywhere_in_a_block_and_other_lists_are_refused {
    use super::*;

    /// The sink.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.connect(&end);
        for round in 0..side.rounds {
            let tokens = side.line.hear().parse().expect("a number of tokens");
            receive(side, &end, &peer, (round, round, tokens));
        }
        end.assert_nothing_is_left();
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.accept(&end);
        for round in 0..side.rounds {
            let all = end.take_all();
            let chunks = chunks(side);
            let tokens = chunks.last().expect("there are some").end;
            side.line.say(&tokens.to_string());
            let is_by_layer = side.random.below(2) == 0;
            let how = Send::from(&end.layout).within(WITHIN);
            let how = if is_by_layer { how.by_layer() } else { how };
            let output = end.engine.produce(transfer(round), &request(round), how).expect("the name is new");
            // Token t is in block t / 16: a run of blocks is any part of a list in its order.
            let blocks: Vec<u32> = (0..end.geometry.blocks).collect();
            for (number, chunk) in chunks.iter().enumerate() {
                let is_last = number + 1 == chunks.len();
                end.compute_all(round, &blocks, chunk.clone());
                let Range { start, end: until } = blocks_of(chunk);
                let count = until - start;
                let given = chunk.end - chunk.start;
                let mut refuse = |what: &str, first: u32, count: u32, other: u32| {
                    let refused = output.chunk(&end.run(first, count), given, is_last);
                    let words = refused.map_or_else(|refused| refused.to_string(), |()| "Ok".to_owned());
                    let has_both = [count, other].iter().all(|number| words.contains(&number.to_string()));
                    side.note_unless(round, has_both, || format!("{what} ({count} for {other} blocks): {words}"));
                };
                refuse("a block too many", start, count + 1, count);
                if count > 1 {
                    refuse("a block too few", start, count - 1, count);
                }
                if chunk.start % 16 != 0 {
                    // Fresh blocks only, as many as its tokens would need by themselves.
                    let fresh = given.div_ceil(16) as u32;
                    let refused = output.chunk(&end.run(start + 1, fresh), given, is_last);
                    let words = refused.map_or_else(|refused| refused.to_string(), |()| "Ok".to_owned());
                    let has_both = [start, start + 1].iter().all(|block| words.contains(&block.to_string()))
                        || [fresh, count].iter().all(|count| words.contains(&count.to_string()));
                    side.note_unless(round, words != "Ok" && has_both, || format!("fresh blocks only: {words}"));
                }
                let right = output.chunk(&end.run(start, count), given, is_last);
                side.note(round, right.map_err(|refused| format!("the right list: {refused}")));
                if is_by_layer {
                    for layer in 0..end.geometry.layers {
                        let said = output.layer(layer, chunk.end);
                        side.note(round, said.map_err(|refused| refused.to_string()));
                    }
                }
            }
            drop(all);
            end_well(side, round, &output);
        }
        end.assert_nothing_is_left();
    }

    /// Three to seven chunks of any length, with at most 400 tokens in all.
    fn chunks(side: &mut Side) -> Vec<Range<u64>> {
        let mut first = 0;
        let count = 3 + side.random.below(5);
        let ends = (0..count).map(|_| 1 + side.random.below(57));
        let ranges = ends.map(|tokens| {
            let range = first..first + tokens;
            first = range.end;
            range
        });
        ranges.collect()
    }

    /// The blocks that have these tokens.
    fn blocks_of(chunk: &Range<u64>) -> Range<u32> {
        (chunk.start / 16) as u32..chunk.end.div_ceil(16) as u32
    }
}
