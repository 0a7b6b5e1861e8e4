//! Memory of either kind, and what its owner knows of it: which blocks are free, and which are quiet although somebody still has them.

use std::collections::{BTreeSet, VecDeque};

use penstock::memory::BlockId;
use penstock::{Blocks, DevicePool, LocalRegion, Pool, PoolSpec, Quarantined, Rights};
use penstock_cuda_driver::model;

use super::spec::{BLOCKS, Copying, Place};
use crate::env::SimEnv;
use crate::oracle::{Invariant, POISON, Violated};
use crate::world::{Node, World};

enum Kind {
    Host(Pool<SimEnv>),
    Device(DevicePool<SimEnv>),
}

/// What is known of a memory as a whole.
enum Standing {
    /// Transfers may name it.
    Registered,
    /// It was taken back, and something may land there until all of these are released.
    Quarantined(Vec<Quarantined>),
    /// It was taken back, and nothing lands there any more.
    Quiet,
    /// Nobody was told anything.
    Unknown,
}

/// A memory of an engine's.
pub(super) struct Memory {
    kind: Kind,
    label: &'static str,
    block_bytes: u64,
    standing: Standing,
    /// Each is taken as soon as it is free, and poisoned.
    free: VecDeque<Blocks>,
    /// Blocks that the engine still has, although it has said that nothing lands there any more.
    given_away: BTreeSet<u32>,
}

impl Memory {
    /// Makes it. None: its device has none to give.
    pub(super) fn open(node: &Node, place: Place, copying: &Copying) -> Option<Self> {
        let (label, block_bytes) = (place.label(), copying.block_bytes);
        let bytes = u64::from(BLOCKS) * block_bytes;
        let spec = match place {
            Place::Host => PoolSpec::host(bytes),
            Place::Device(number) => PoolSpec::device(World::device(number), bytes),
        };
        let spec = spec.block(block_bytes).label(label).rights(Rights::READ_WRITE);
        let kind = match place {
            Place::Host => Kind::Host(node.pool(spec).ok()?),
            Place::Device(_) => Kind::Device(node.device_pool(spec).ok()?),
        };
        let (free, given_away) = (VecDeque::new(), BTreeSet::new());
        Some(Self { kind, label, block_bytes, standing: Standing::Registered, free, given_away })
    }

    pub(super) fn region(&self) -> &LocalRegion<SimEnv> {
        match &self.kind {
            Kind::Host(pool) => pool,
            Kind::Device(pool) => pool,
        }
    }

    fn pool_take(&self, count: usize) -> Option<Blocks> {
        match &self.kind {
            Kind::Host(pool) => pool.take(count).ok(),
            Kind::Device(pool) => pool.take(count).ok(),
        }
    }

    fn is_held(&self, id: BlockId) -> bool {
        let allocator = match &self.kind {
            Kind::Host(pool) => pool.memory().blocks(),
            Kind::Device(pool) => pool.memory().blocks(),
        };
        allocator.holders(id).is_ok()
    }

    /// Writes all bytes of a block, as its owner's processor or device would.
    pub(super) fn write(&self, index: u32, bytes: &[u8]) {
        let at = u64::from(index) * self.block_bytes;
        match &self.kind {
            Kind::Host(pool) => pool.window().write_from(at, bytes).expect("a block is in its pool"),
            Kind::Device(pool) => assert!(model::write(pool.base() + at, bytes), "a block is in its pool"),
        }
    }

    /// What stands in a block.
    pub(super) fn read(&self, index: u32) -> Vec<u8> {
        let (at, mut found) = (u64::from(index) * self.block_bytes, vec![0; self.block_bytes as usize]);
        match &self.kind {
            Kind::Host(pool) => pool.window().read_into(at, &mut found).expect("a block is in its pool"),
            Kind::Device(pool) => assert!(model::read(pool.base() + at, &mut found), "a block is in its pool"),
        }
        found
    }

    /// Writes the same byte all over a block.
    pub(super) fn fill(&self, index: u32, full_of: u8) {
        self.write(index, &vec![full_of; self.block_bytes as usize]);
    }

    fn untouched(&self, index: u32) -> Result<(), Violated> {
        match self.read(index).iter().position(|&byte| byte != POISON) {
            None => Ok(()),
            Some(byte) => {
                let words = format!("byte {byte} of block {index} of `{}` was written while it was free", self.label);
                Err(Violated::new(Invariant::FreedOnceAndUntouched, words))
            }
        }
    }

    /// No stream has a copy of this block, nor of any where none is named: somebody was told so.
    fn has_passed(&self, index: Option<u32>) -> Result<(), Violated> {
        let len = index.map_or(u64::from(BLOCKS) * self.block_bytes, |_| self.block_bytes);
        let base = self.region().base() + index.map_or(0, |index| u64::from(index) * self.block_bytes);
        let Some(stream) = model::has(base, len) else { return Ok(()) };
        let words = format!("stream {stream} has a copy of `{}` at {index:?}, which is said to be quiet", self.label);
        Err(Violated::new(Invariant::FreedOnceAndUntouched, words))
    }

    /// Takes in blocks that have become free.
    pub(super) fn look(&mut self) -> Result<(), Violated> {
        if let Standing::Quarantined(held) = &self.standing
            && held.iter().all(Quarantined::is_released)
        {
            self.is_quiet()?;
        }
        if !matches!(self.standing, Standing::Registered) {
            return Ok(());
        }
        while let Some(block) = self.pool_take(1) {
            let index = block.indices()[0];
            self.has_passed(Some(index))?;
            if self.given_away.remove(&index) {
                self.untouched(index)?;
            }
            self.fill(index, POISON);
            self.free.push_back(block);
        }
        Ok(())
    }

    /// Gives so many, full of this byte, if it has as many.
    pub(super) fn take(&mut self, count: usize, full_of: u8) -> Result<Option<Blocks>, Violated> {
        self.look()?;
        if self.free.len() < count || !matches!(self.standing, Standing::Registered) {
            return Ok(None);
        }
        let drained: Vec<Blocks> = self.free.drain(..count).collect();
        drained.iter().try_for_each(|block| self.untouched(block.indices()[0]))?;
        drop(drained);
        let blocks = self.pool_take(count);
        blocks.iter().flat_map(|blocks| blocks.indices()).for_each(|&index| self.fill(index, full_of));
        Ok(blocks)
    }

    /// Nothing lands in these blocks any more, as the engine has said: they are somebody else's, who watches them.
    pub(super) fn give_away(&mut self, ids: &[BlockId]) -> Result<(), Violated> {
        for id in ids {
            if matches!(self.standing, Standing::Registered) && self.is_held(*id) && self.given_away.insert(id.index) {
                self.has_passed(Some(id.index))?;
                self.fill(id.index, POISON);
            }
        }
        Ok(())
    }

    /// It was taken back.
    pub(super) fn is_taken_back(&mut self, held: Vec<Quarantined>) {
        self.standing = Standing::Quarantined(held);
    }

    /// It is nobody's any more, and nobody was told whether anything lands there.
    pub(super) fn is_left(&mut self) {
        self.standing = Standing::Unknown;
    }

    fn is_quiet(&mut self) -> Result<(), Violated> {
        self.has_passed(None)?;
        self.standing = Standing::Quiet;
        (0..BLOCKS).for_each(|index| self.fill(index, POISON));
        Ok(())
    }

    /// Whether this quarantine is of it.
    pub(super) fn is_of(&self, held: &Quarantined) -> bool {
        let (base, len) = (self.region().base(), self.region().bytes());
        held.ranges().iter().any(|(address, _)| (base..base + len).contains(address))
    }

    /// Looks whether anything was written that is nobody's.
    pub(super) fn check(&self) -> Result<(), Violated> {
        match self.standing {
            Standing::Quiet => (0..BLOCKS).try_for_each(|index| self.untouched(index)),
            Standing::Registered => {
                let free = self.free.iter().map(|block| block.indices()[0]);
                free.chain(self.given_away.iter().copied()).try_for_each(|index| self.untouched(index))
            }
            Standing::Quarantined(_) | Standing::Unknown => Ok(()),
        }
    }

    /// Blocks that somebody has.
    pub(super) fn missing(&self) -> usize {
        BLOCKS as usize - self.free.len()
    }
}
