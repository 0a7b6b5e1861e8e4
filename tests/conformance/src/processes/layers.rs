//! Layer-wise pushes: what is computed after `chunk`, and before its layer is ready.

use std::ops::Range;
use std::time::Duration;

use penstock::SystemEnv;
use penstock::flows::{InputEvent, Output, Receive, Send};

use super::Side;
use super::end::{End, Geometry, request, transfer};
use crate::Peer;
use crate::stage::PATIENCE;

/// How long a transfer may take that should take milliseconds.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

/// What a block of the source has before anything is computed in it.
const NOT_COMPUTED: u8 = 0x5f;
/// What a block of the sink has before anything lands in it.
const NOT_RECEIVED: u8 = 0xee;
/// The longest pause between two steps of a model, in microseconds.
const STEP_US: u64 = 1_000;

/// Receives one transfer in two legs, looks at each layer as soon as it is told of, and at all in the end.
pub(super) fn receive(side: &mut Side, end: &End, peer: &Peer, (round, name, tokens): (u32, u32, u64)) {
    let of_block = u64::from(end.geometry.block_tokens);
    let blocks = tokens.div_ceil(of_block) as usize;
    let first = if blocks > 1 { 1 + side.random.below(blocks as u64 - 1) as usize } else { blocks };
    let mut indices = Vec::new();
    let how = Receive::into(&end.layout).from(0, peer).within(WITHIN);
    let input = end.engine.consume(transfer(name), &request(name), how).expect("the name is new");
    for count in [first, blocks - first].into_iter().filter(|&count| count > 0) {
        let leg = end.take(count);
        end.fill(leg.indices(), NOT_RECEIVED);
        indices.extend_from_slice(leg.indices());
        input.grant(&leg).expect("it stands");
    }
    let cut = (first as u64 * of_block).min(tokens);
    loop {
        match input.next(PATIENCE).expect("the transfer ends") {
            InputEvent::Layer { leg, layer } => {
                let part = if leg == 0 { 0..cut } else { cut..tokens };
                let wrong = end.wrong_tokens(name, layer, &indices, part);
                side.note_unless(round, wrong == 0, || format!("{wrong} tokens of layer {layer} when it is told of"));
            }
            InputEvent::Done { tokens: came } => {
                side.note_unless(round, came == tokens, || format!("{came} of {tokens} tokens came"));
                return side.note(round, end.check(name, &indices, tokens));
            }
            InputEvent::Failed(failed) => return side.note(round, Err(failed.to_string())),
            _ => {}
        }
    }
}

/// The sink of a case whose child says how many tokens each transfer has.
fn sink(side: &mut Side, transfers: u32) {
    let end = side.pooled(Geometry::SMALL);
    let peer = side.connect(&end);
    for name in 0..side.rounds * transfers {
        let tokens = side.line.hear().parse().expect("a number of tokens");
        receive(side, &end, &peer, (name / transfers, name, tokens));
    }
    end.assert_nothing_is_left();
}

/// Three chunks, all but the last of whole blocks.
fn chunks(side: &mut Side) -> Vec<Range<u64>> {
    let [one, two] = [0, 1].map(|_| 16 * (1 + side.random.below(6)));
    let three = 1 + side.random.below(90);
    vec![0..one, one..one + two, one + two..one + two + three]
}

/// A source that pushes three chunks in each round, layer by layer; how is the case's to say.
fn source(side: &mut Side, give_all: impl Fn(&mut Side, &End, &Output<SystemEnv>, u32, &[Range<u64>])) {
    let end = side.pooled(Geometry::SMALL);
    side.accept(&end);
    for round in 0..side.rounds {
        let chunks = chunks(side);
        side.line.say(&chunks[2].end.to_string());
        let how = Send::from(&end.layout).by_layer().within(WITHIN);
        let output = end.engine.produce(transfer(round), &request(round), how).expect("the name is new");
        give_all(side, &end, &output, round, &chunks);
        end_well(side, round, &output);
    }
    end.assert_nothing_is_left();
}

/// Gives a chunk, in blocks in which nothing is computed yet, and lets go of them.
fn give(end: &End, output: &Output<SystemEnv>, blocks: &mut Vec<u32>, chunk: &Range<u64>, is_last: bool) {
    let tokens = chunk.end - chunk.start;
    let fresh = end.take(tokens.div_ceil(u64::from(end.geometry.block_tokens)) as usize);
    end.fill(fresh.indices(), NOT_COMPUTED);
    output.chunk(&fresh, tokens, is_last).expect("it stands");
    blocks.extend_from_slice(fresh.indices());
}

/// Notes how an output has ended, if it was no success.
pub(super) fn end_well(side: &mut Side, round: u32, output: &Output<SystemEnv>) {
    let ended = output.wait(PATIENCE).expect("the transfer ends");
    side.note(round, ended.map_err(|failed| format!("the source: {failed:?}")));
}

/// A model gives a chunk before it has computed it, and says of each layer up to which token it is ready.
pub mod chunks_written_late_come_layer_by_layer_as_they_were_written {
    use super::*;

    /// The sink.
    pub fn test(side: &mut Side) {
        sink(side, 1);
    }

    /// The source.
    pub fn child(side: &mut Side) {
        source(side, |side, end, output, round, chunks| {
            let mut blocks = Vec::new();
            for (number, chunk) in chunks.iter().enumerate() {
                give(end, output, &mut blocks, chunk, number == 2);
                // The last chunk is computed in two parts.
                let cut =
                    if number == 2 { chunk.start + side.random.below(chunk.end - chunk.start) } else { chunk.end };
                for layer in 0..end.geometry.layers {
                    for part in [chunk.start..cut, cut..chunk.end] {
                        side.pause(STEP_US);
                        end.compute(round, layer, &blocks, part.clone());
                        let said = output.layer(layer, part.end);
                        side.note(round, said.map_err(|refused| format!("{} tokens: {refused}", part.end)));
                    }
                }
            }
        });
    }
}

/// All chunks are given at once, and each layer of each chunk waits for a fence that opens when it was computed.
pub mod fences_that_open_late_hold_back_the_tokens_of_every_chunk {
    use super::*;
    use penstock::flows::Gate;

    /// The sink.
    pub fn test(side: &mut Side) {
        sink(side, 1);
    }

    /// The source.
    pub fn child(side: &mut Side) {
        source(side, |side, end, output, round, chunks| {
            let (mut blocks, mut fences) = (Vec::new(), Vec::new());
            for (number, chunk) in chunks.iter().enumerate() {
                give(end, output, &mut blocks, chunk, number == 2);
                for layer in 0..end.geometry.layers {
                    let fence = Gate::shut(&end.engine).expect("there is room for a gate");
                    output.layer_after(layer, chunk.end, &fence).expect("so many tokens were given");
                    fences.push((layer, chunk.clone(), fence));
                }
            }
            for (layer, chunk, fence) in &fences {
                side.pause(STEP_US);
                end.compute(round, *layer, &blocks, chunk.clone());
                fence.open();
            }
        });
    }
}

/// `layer` without `by_layer` is an error, and so is a layer of tokens that no chunk has given; neither changes anything.
pub mod a_layer_is_refused_without_by_layer_and_beyond_its_chunks {
    use super::*;
    use penstock::flows::Gate;

    /// The sink.
    pub fn test(side: &mut Side) {
        sink(side, 2);
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.accept(&end);
        let fence = Gate::shut(&end.engine).expect("there is room for a gate");
        for round in 0..side.rounds {
            let tokens = 1 + side.random.below(100);
            // As a whole.
            let name = 2 * round;
            side.line.say(&tokens.to_string());
            let how = Send::from(&end.layout).within(WITHIN);
            let output = end.engine.produce(transfer(name), &request(name), how).expect("the name is new");
            for refused in [output.layer(0, tokens), output.layer_after(0, tokens, &fence)] {
                let words = refused.map_or_else(|refused| refused.to_string(), |()| "Ok".to_owned());
                side.note_unless(round, words.contains("by_layer"), || format!("without by_layer: {words}"));
            }
            let blocks = end.take(tokens.div_ceil(16) as usize);
            end.compute_all(name, blocks.indices(), 0..tokens);
            output.chunk(&blocks, tokens, true).expect("it stands");
            end_well(side, round, &output);
            // By layer: one token more than the chunk has.
            let name = 2 * round + 1;
            side.line.say(&tokens.to_string());
            let how = Send::from(&end.layout).by_layer().within(WITHIN);
            let output = end.engine.produce(transfer(name), &request(name), how).expect("the name is new");
            let mut blocks = Vec::new();
            give(&end, &output, &mut blocks, &(0..tokens), true);
            for refused in [output.layer(0, tokens + 1), output.layer_after(0, tokens + 1, &fence)] {
                let words = refused.map_or_else(|refused| refused.to_string(), |()| "Ok".to_owned());
                let has_both = [tokens, tokens + 1].iter().all(|count| words.contains(&count.to_string()));
                side.note_unless(round, has_both, || format!("one token more than {tokens}: {words}"));
            }
            side.pause(STEP_US);
            for layer in 0..end.geometry.layers {
                end.compute(name, layer, &blocks, 0..tokens);
                // Without what is to refuse the calls above everything has gone, and this has nothing to do any more.
                let said = output.layer(layer, tokens).map_err(|refused| refused.to_string());
                side.note(round, said);
            }
            end_well(side, round, &output);
        }
        end.assert_nothing_is_left();
    }
}
