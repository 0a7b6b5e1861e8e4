//! Pins of blocks that nobody holds.

use penstock::flows::{Group, Isolation, Parent, PinSettings, Pins};
use penstock::{Blocks, SystemEnv};

use super::Side;
use super::end::{End, Geometry, request};
use crate::stage::PATIENCE;

const BLOCKS: usize = 4;
const TOKENS: u64 = 16 * BLOCKS as u64;

/// What is pinned: these blocks, all of which are computed.
fn parent(end: &End, name: u32, blocks: Vec<u32>) -> Parent {
    let group = Group {
        block_tokens: end.geometry.block_tokens,
        blocks,
        computed: TOKENS,
        block_bytes: end.geometry.block_bytes(),
        hashes: Vec::new(),
    };
    Parent { request: request(name), isolation: Isolation::default(), groups: vec![group], blob: Vec::new() }
}

/// A pin whose blocks are not kept with it would lend those of whoever has them next: it is refused. One that keeps its blocks lends their
/// bytes, whoever drops the blocks.
pub mod pins_of_blocks_that_are_not_held_are_refused {
    use super::*;

    /// Who inherits.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.connect(&end);
        let pins = end.engine.pins(0, PinSettings::default()).expect("they are the first");
        for round in 0..side.rounds {
            side.line.expect("pinned");
            let own = end.take(BLOCKS);
            for name in [2 * round, 2 * round + 1] {
                let (request, isolation) = (request(name), Isolation::default());
                let asked = (&request, &isolation);
                let given = pins.inherit_from(&peer, asked, TOKENS + 1, (&end.layout, &own), PATIENCE);
                let given = given.expect("it is asked for");
                if name % 2 == 0 {
                    // What was refused is no parent.
                    side.note_unless(round, given.is_err(), || format!("inherited {given:?} of a pin of nothing"));
                } else {
                    let found = given.map_err(|miss| miss.to_string()).and_then(|tokens| match tokens {
                        TOKENS => end.check(name, own.indices(), TOKENS),
                        tokens => Err(format!("{tokens} tokens")),
                    });
                    side.note(round, found);
                }
            }
            side.line.say("inherited");
        }
    }

    /// Who pins.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.accept(&end);
        let pins = end.engine.pins(0, PinSettings::default()).expect("they are the first");
        for round in 0..side.rounds {
            let blocks = end.take(BLOCKS);
            // The refusal names a block that is not held.
            let mut refuse = |what: &str, indices: &[u32], not_held: &[u32], held: &[&Blocks]| {
                let parent = parent(&end, 2 * round, indices.to_vec());
                let refused = pins.pin_for_all(parent, &end.layout, held, PATIENCE).map(drop);
                let words = refused.map_or_else(|refused| refused.to_string(), |()| "Ok".to_owned());
                let is_named = not_held.iter().any(|block| words.contains(&format!("block {block} ")));
                side.note_unless(round, is_named, || format!("{what} ({not_held:?}): {words}"));
            };
            refuse("blocks that are not given", blocks.indices(), blocks.indices(), &[]);
            let none = [4000, 4001, 4002, 4003];
            refuse("blocks that the layout has not", &none, &none, &[]);
            let other = end.take(1);
            let mixed = [&blocks.indices()[..3], other.indices()].concat();
            refuse("one block that is not given", &mixed, other.indices(), &[&blocks]);
            drop((blocks, other));
            keep(side, &end, &pins, round);
        }
    }

    /// Pins blocks, drops them, and gives what is free to the next owner.
    fn keep(side: &mut Side, end: &End, pins: &Pins<SystemEnv>, round: u32) {
        let name = 2 * round + 1;
        let blocks = end.take(BLOCKS);
        end.compute_all(name, blocks.indices(), 0..TOKENS);
        let parent = parent(end, name, blocks.indices().to_vec());
        let pin = pins.pin_for_all(parent, &end.layout, &[&blocks], PATIENCE);
        drop(blocks);
        let next = end.take_free();
        end.fill(next.indices(), 0x66);
        side.line.say("pinned");
        side.line.expect("inherited");
        drop(next);
        match pin {
            Ok(pin) => pins.unpin(pin).expect("it stands"),
            Err(refused) => side.note(round, Err(format!("blocks that are held: {refused}"))),
        }
    }
}
