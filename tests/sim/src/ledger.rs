//! The free blocks of a pool, and those that an engine has said to be done with: both are watched.

use std::collections::{BTreeSet, VecDeque};

use penstock::memory::BlockId;
use penstock::{Blocks, LocalRegion, Pool};

use crate::env::SimEnv;
use crate::oracle::{Invariant, POISON, Violated};

/// Parts of a block that lie in different places, at most: layers, and what goes once for a transfer.
const PARTS_MAX: usize = 3;

/// Where a block of this number lies: in parts, each with the first byte of block 0, how far it is to the next block, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    parts: [(u64, u64, u64); PARTS_MAX],
}

impl Shape {
    /// Blocks behind each other, each in one piece.
    pub(crate) fn whole(bytes: u64) -> Self {
        Self::of([(0, bytes, bytes), (0, 0, 0), (0, 0, 0)])
    }

    /// Blocks in these parts; those of no length are none.
    pub(crate) fn of(parts: [(u64, u64, u64); PARTS_MAX]) -> Self {
        Self { parts }
    }

    /// The parts of a block: where each begins, and how long it is.
    pub(crate) fn parts(&self, index: u32) -> impl Iterator<Item = (u64, u64)> {
        let parts = self.parts.into_iter().filter(|(_, _, len)| *len > 0);
        parts.map(move |(base, stride, len)| (base + stride * u64::from(index), len))
    }

    /// Bytes of a block.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, _, len)| len).sum()
    }
}

/// Blocks: who has which of them is the pool's to say, their bytes lie in the region.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    /// Whose numbers they have.
    pub(crate) pool: &'a Pool<SimEnv>,
    /// Where they lie: the pool, or memory of the application's own.
    pub(crate) region: &'a LocalRegion<SimEnv>,
    /// How.
    pub(crate) shape: Shape,
}

impl<'a> Ground<'a> {
    /// Blocks of a pool that lie behind each other.
    pub(crate) fn of(pool: &'a Pool<SimEnv>) -> Self {
        Self { pool, region: pool, shape: Shape::whole(pool.memory().block_bytes()) }
    }

    /// Fills a block.
    pub(crate) fn fill(&self, index: u32, full_of: u8) {
        for (at, len) in self.shape.parts(index) {
            self.region.host().unwrap().fill(at, len, full_of).expect("a block is in its region");
        }
    }

    /// Looks whether a block is full of this still.
    fn untouched(&self, index: u32) -> Result<(), Violated> {
        for (at, len) in self.shape.parts(index) {
            let mut found = vec![0; len as usize];
            self.region.host().unwrap().read_into(at, &mut found).expect("a block is in its region");
            if let Some(byte) = found.iter().position(|&byte| byte != POISON) {
                let at = at + byte as u64;
                let words =
                    format!("byte {at} of `{}`, in block {index}, was written while it was free", self.region.label());
                return Err(Violated::new(Invariant::FreedOnceAndUntouched, words));
            }
        }
        Ok(())
    }
}

/// The free blocks of a pool. Each is taken as soon as it is free, and poisoned; whoever needs one gets the one that has rested
/// longest.
#[derive(Default)]
pub(crate) struct Ledger {
    free: VecDeque<Blocks>,
    /// Blocks that the engine still has, although it has said that it is done with them: their owner has given them away.
    given_away: BTreeSet<u32>,
}

impl Ledger {
    /// Takes in what has become free.
    pub(crate) fn look(&mut self, ground: Ground<'_>) -> Result<(), Violated> {
        while let Ok(block) = ground.pool.take(1) {
            let index = block.indices()[0];
            if self.given_away.remove(&index) {
                ground.untouched(index)?;
            }
            ground.fill(index, POISON);
            self.free.push_back(block);
        }
        Ok(())
    }

    /// The engine has said that nothing touches these blocks any more: whoever owns them gives them to somebody else at once. Those that
    /// are free already are somebody else's by now.
    pub(crate) fn give_away(&mut self, ids: &[BlockId], ground: Ground<'_>) {
        for id in ids {
            if ground.pool.memory().blocks().holders(*id).is_ok() && self.given_away.insert(id.index) {
                ground.fill(id.index, POISON);
            }
        }
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives so many, full of this byte, if there are as many.
    pub(crate) fn take(&mut self, ground: Ground<'_>, count: usize, full_of: u8) -> Result<Option<Blocks>, Violated> {
        self.look(ground)?;
        if self.free.len() < count {
            return Ok(None);
        }
        for block in self.free.drain(..count) {
            ground.untouched(block.indices()[0])?;
        }
        let Ok(blocks) = ground.pool.take(count) else {
            let words = format!("blocks of `{}` that were free are kept by the engine", ground.pool.label());
            return Err(Violated::new(Invariant::FreedOnceAndUntouched, words));
        };
        blocks.indices().iter().for_each(|&index| ground.fill(index, full_of));
        Ok(Some(blocks))
    }

    /// Looks whether any block that is nobody's was touched.
    pub(crate) fn check(&self, ground: Ground<'_>) -> Result<(), Violated> {
        self.free.iter().try_for_each(|block| ground.untouched(block.indices()[0]))?;
        self.given_away.iter().try_for_each(|index| ground.untouched(*index))
    }
}
