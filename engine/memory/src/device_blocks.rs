//! Pools of a device's memory.

use std::sync::Arc;

use penstock_core::Rights;

use crate::blocks::{BlockAllocator, Blocks, TakeError};
use crate::error::MemoryError;
use crate::memory::{DeviceMemory, DeviceWindow};
use crate::pool::{block_bytes, blocks_total};
use crate::pool_spec::PoolSpec;

/// A device's memory, handed out in blocks as that of a [`Pool`](crate::Pool) is. No processor reads or writes it.
#[derive(Debug)]
pub struct DeviceBlocks {
    memory: DeviceMemory,
    label: String,
    rights: Rights,
    blocks: Arc<BlockAllocator>,
}

impl DeviceBlocks {
    /// Over memory that was allocated for it, of at least as many bytes as it is to have.
    pub fn over(memory: DeviceMemory, spec: PoolSpec) -> Result<Self, MemoryError> {
        let (total, block_bytes) = (blocks_total(&spec)?, block_bytes(&spec));
        if spec.bytes() > memory.window().len() {
            return Err(MemoryError::BlockSize { block_bytes, bytes: memory.window().len() });
        }
        let blocks = Arc::new(BlockAllocator::new(memory.window().clone().into(), block_bytes, total));
        Ok(Self { memory, label: spec.label, rights: spec.rights, blocks })
    }

    /// Takes `n` blocks, all or none; they are given back when the last clone is dropped.
    pub fn take(&self, n: usize) -> Result<Blocks, TakeError> {
        self.blocks.take(n)
    }

    pub fn window(&self) -> &DeviceWindow {
        self.memory.window()
    }

    /// The allocator of its blocks, for counting by explicit id.
    pub fn blocks(&self) -> &Arc<BlockAllocator> {
        &self.blocks
    }

    /// The name peers find it by.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What peers may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }
}
