//! What is in the blocks of requests: each block says whose it is, or which prompt it is about.

use std::ops::Range;

use penstock::Pool;

use super::spec::Life;
use crate::deed::Player;
use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated, blame, byte};
use crate::stage::{LAYERS, ROW_BYTES};

/// Cases, chunks and turns have other numbers.
const LIVES: usize = 1 << 15;
/// Prompts have numbers below this.
const PROMPTS: usize = 8;
/// So often a request is told from itself when it is computed again.
const TIMES: usize = 16;
/// Bytes of a row.
const ROW: usize = ROW_BYTES as usize;

/// What each block is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    /// Who has computed it.
    pub(super) epoch: u64,
    /// One number a block.
    subjects: Vec<usize>,
}

impl Content {
    /// Of a life that is computed for the so-manieth time: its prompt, and then its own.
    pub(super) fn of(life: usize, spec: &Life, time: usize, epoch: u64) -> Self {
        let own = PROMPTS + life * TIMES + time % TIMES;
        let subjects = (0..spec.blocks).map(|block| if block < spec.shared { spec.prompt } else { own });
        Self { epoch, subjects: subjects.collect() }
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.subjects.len()
    }

    /// One block more, of its own.
    pub(super) fn grow(&mut self, life: usize) {
        self.subjects.push(PROMPTS + life * TIMES);
    }

    /// By what a block is found.
    pub(super) fn hash(&self, block: usize) -> u64 {
        (self.subjects[block] as u64) << 32 | block as u64
    }

    /// The bytes of a block of this player's.
    fn block(&self, player: &Player, block: usize) -> Vec<u8> {
        let (size, rows) = (player.block_tokens, player.rows());
        let mut bytes = vec![0; (size * rows.count * ROW_BYTES) as usize * LAYERS];
        for token in 0..size {
            let number = block as u64 * u64::from(size) + u64::from(token);
            for (layer, row) in (0..LAYERS).flat_map(|layer| (0..rows.count).map(move |row| (layer, row))) {
                let at = player.place(layer, token, row) as usize;
                let row = self.row(block, layer, number, rows.first + row);
                bytes[at..at + row.len()].copy_from_slice(&row);
            }
        }
        bytes
    }

    fn row(&self, block: usize, layer: usize, token: u64, row: u32) -> [u8; ROW_BYTES as usize] {
        let subject = LIVES + self.subjects[block];
        std::array::from_fn(|at| byte(subject, self.epoch, layer, token, row, at as u32))
    }

    /// Computes some of its blocks, which lie there.
    pub(super) fn fill(&self, player: &Player, pool: &Pool<SimEnv>, places: &[u32], blocks: Range<usize>) {
        for block in blocks {
            let at = u64::from(places[block]) * pool.memory().block_bytes();
            pool.window().write_from(at, &self.block(player, block)).expect("a block is in its pool");
        }
    }

    /// Looks whether all that lies there is what it should be.
    pub(super) fn check(
        &self,
        player: &Player,
        pool: &Pool<SimEnv>,
        places: &[u32],
        who: &str,
    ) -> Result<(), Violated> {
        for (block, place) in places.iter().enumerate() {
            let right = self.block(player, block);
            let mut found = vec![0; right.len()];
            let at = u64::from(*place) * pool.memory().block_bytes();
            pool.window().read_into(at, &mut found).expect("a block is in its pool");
            if let Some(wrong) = right.iter().zip(&found).position(|(right, found)| right != found) {
                let row = wrong - wrong % ROW;
                let words =
                    format!("{who}: byte {wrong} of its block {block}, in {place} of `{}`, is wrong", pool.label());
                return Err(Violated::new(blame(&found[row..row + ROW]), words));
            }
        }
        Ok(())
    }

    /// Looks at what has come by name to a player with blocks of another size.
    pub(super) fn check_sent(
        &self,
        from: &Player,
        (to, pool): (&Player, &Pool<SimEnv>),
        places: &[u32],
        who: &str,
    ) -> Result<(), Violated> {
        let size = u64::from(to.block_tokens);
        for token in 0..self.tokens(from) {
            let begin = u64::from(places[(token / size) as usize]) * pool.memory().block_bytes();
            let rows = to.rows();
            for (layer, row) in (0..LAYERS).flat_map(|layer| (0..rows.count).map(move |row| (layer, row))) {
                let right = self.row((token / u64::from(from.block_tokens)) as usize, layer, token, rows.first + row);
                let mut found = [0; ROW_BYTES as usize];
                let at = begin + to.place(layer, (token % size) as u32, row);
                pool.window().read_into(at, &mut found).expect("a block is in its pool");
                if found != right {
                    let words = format!("{who}: {found:02x?} is row {row} of token {token} in layer {layer}");
                    return Err(Violated::new(blame(&found), words));
                }
            }
        }
        Ok(())
    }

    /// How many tokens there are, where it was computed.
    pub(super) fn tokens(&self, from: &Player) -> u64 {
        self.subjects.len() as u64 * u64::from(from.block_tokens)
    }
}

/// What is wrong in words.
pub(super) fn broken(invariant: Invariant, who: &str, words: impl AsRef<str>) -> Violated {
    Violated::new(invariant, format!("{who}: {}", words.as_ref()))
}
