//! Puts out of blocks where they lie, and gets into them.

use penstock::flows::relay::{Destination, Extents, Put, Relay, RelaySpec};
use penstock::{Blocks, SystemEnv};

use super::Side;
use super::end::{End, Geometry, request};
use super::line::{from_word, to_word};
use crate::stage::PATIENCE;

const BLOCKS: usize = 3;
const TOKENS: u64 = 16 * BLOCKS as u64;
/// What the owner that comes next writes into the blocks that are free.
const NEXT_OWNER: u8 = 0x66;

fn relay(end: &End) -> Relay<SystemEnv> {
    end.engine.relay(RelaySpec::new().berths(64 << 10, 2, 2)).expect("it is the first one")
}

/// The bytes of these blocks in every buffer of the layout: what a put reads, or a get writes.
fn extents<'a>(end: &'a End, blocks: &Blocks) -> Extents<'a, SystemEnv> {
    Extents::blocks(&end.layout, &[blocks])
}

/// The next owner takes what is free and writes to it.
fn next_owner(end: &End) -> Blocks {
    let blocks = end.take_free();
    end.fill(blocks.indices(), NEXT_OWNER);
    blocks
}

/// The owner of a put drops its handles at once, and all blocks that are free then are written to.
pub mod blocks_of_a_put_are_given_to_nobody_before_it_was_read {
    use super::*;

    /// Who gets.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.connect(&end);
        let relay = relay(&end);
        for round in 0..side.rounds {
            let metadata = from_word(&side.line.hear());
            let fetch = relay.get(&metadata, Destination::memory()).expect("it was put");
            let got = fetch.wait(PATIENCE).expect("it comes").expect("its putter has it");
            let found = extents_hold(&end, round, &got.bytes);
            side.note(round, found);
            side.line.say("got");
        }
        relay.close(PATIENCE);
    }

    /// Who puts.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.accept(&end);
        let relay = relay(&end);
        for round in 0..side.rounds {
            // Somewhere in the pool.
            let before = end.take(side.random.below(50) as usize);
            let blocks = end.take(BLOCKS);
            end.compute_all(round, blocks.indices(), 0..TOKENS);
            let put = relay
                .put(Put::extents(extents(&end, &blocks)), &request(round), &[&peer])
                .expect("they are of the pool");
            drop((before, blocks));
            let next = next_owner(&end);
            side.note_unless(round, next.len() <= 64 - BLOCKS, || format!("{} of 64 blocks are free", next.len()));
            side.line.say(&to_word(put.metadata()));
            side.line.expect("got");
            let ended = put.wait(PATIENCE).expect("it ends");
            side.note(round, ended.map_err(|failed| failed.to_string()));
            drop((put, next));
            drop(end.take_all());
        }
        relay.close(PATIENCE);
    }

    /// What was got are the tokens of this round, layer after layer.
    fn extents_hold(end: &End, round: u32, got: &[u8]) -> Result<(), String> {
        let blocks = end.take(BLOCKS);
        end.compute_all(round, blocks.indices(), 0..TOKENS);
        let mut expected = Vec::new();
        for (offset, len) in end.extents(blocks.indices()) {
            let mut bytes = vec![0; len as usize];
            end.window().read_into(offset, &mut bytes).expect("the block is of the pool");
            expected.extend(bytes);
        }
        let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        match wrong {
            None if got.len() == expected.len() => Ok(()),
            _ => Err(format!("byte {wrong:?} of {} is {:?}", got.len(), wrong.map(|at| got[at]))),
        }
    }
}

/// The owner of a get drops its handles at once, and nothing lands in what is free then.
pub mod blocks_of_a_get_are_given_to_nobody_before_it_has_landed {
    use super::*;

    /// Who gets.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.connect(&end);
        let relay = relay(&end);
        for round in 0..side.rounds {
            let metadata = from_word(&side.line.hear());
            let before = end.take(side.random.below(50) as usize);
            let blocks = end.take(BLOCKS);
            let indices = blocks.indices().to_vec();
            let fetch =
                relay.get(&metadata, Destination::extents(extents(&end, &blocks))).expect("they are of the pool");
            drop((before, blocks));
            let next = next_owner(&end);
            side.line.say("ready");
            fetch.wait(PATIENCE).expect("it comes").expect("its putter has it");
            let unlike = end.unlike(next.indices(), NEXT_OWNER);
            side.note_unless(round, unlike.is_none(), || format!("{unlike:?} landed in blocks of the next owner"));
            // Nobody else had them, or they could not be told from those of the next owner.
            if !indices.iter().any(|block| next.indices().contains(block)) {
                side.note(round, end.check(round, &indices, TOKENS));
            }
            drop((fetch, next));
            drop(end.take_all());
        }
        relay.close(PATIENCE);
    }

    /// Who puts.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.accept(&end);
        let relay = relay(&end);
        for round in 0..side.rounds {
            let blocks = end.take(BLOCKS);
            end.compute_all(round, blocks.indices(), 0..TOKENS);
            let later = Put::extents(extents(&end, &blocks)).not_ready();
            let put = relay.put(later, &request(round), &[&peer]).expect("they are of the pool");
            side.line.say(&to_word(put.metadata()));
            side.line.expect("ready");
            put.ready();
            let ended = put.wait(PATIENCE).expect("it ends");
            side.note(round, ended.map_err(|failed| failed.to_string()));
        }
        relay.close(PATIENCE);
    }
}
