//! A peer's memory, as this process reaches it.

use std::sync::Arc;

use penstock_core::plan::RegionKey;
use penstock_memory::{ProcessVmMemory, Window};

/// A peer's memory, as this process reaches it. Which way it is was decided when the region was
/// imported; a lane does not choose again.
#[derive(Debug, Clone)]
pub enum RemoteMemory {
    /// It is mapped here: this processor copies.
    Mapped(Window),
    /// It is another process's own: the kernel copies, in a system call of this processor.
    ProcessVm(ProcessVmMemory),
    /// Only its owner may touch it: the owner is asked, through bounce slots.
    TargetMediated(TargetMediatedMemory),
    /// A card reaches it, without its owner's processor.
    Rdma(Arc<RdmaMemory>),
}

/// Memory that cards reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaMemory {
    /// The region, by its owner's name for it.
    pub key: RegionKey,
    /// Where its owner's cards find its first byte.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The key to it on each rail of the link, in their order.
    pub rkeys: Vec<u32>,
}

/// Memory that only its owner may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetMediatedMemory {
    /// The region, by its owner's name for it.
    pub key: RegionKey,
    /// Its length in bytes.
    pub bytes: u64,
}

impl RemoteMemory {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(window) => window.len(),
            Self::ProcessVm(memory) => memory.bytes(),
            Self::TargetMediated(memory) => memory.bytes,
            Self::Rdma(memory) => memory.bytes,
        }
    }

    /// Whether [`crate::Lane::post`] has moved the bytes when it returns.
    pub fn is_synchronous(&self) -> bool {
        match self {
            Self::Mapped(_) | Self::ProcessVm(_) => true,
            Self::TargetMediated(_) | Self::Rdma(_) => false,
        }
    }
}

impl From<Window> for RemoteMemory {
    fn from(window: Window) -> Self {
        Self::Mapped(window)
    }
}

/// The way by which a peer's region is reached, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessPath {
    /// One of the names below.
    pub name: &'static str,
    /// Why this one: what it costs, or what keeps a better one away.
    pub reason: String,
}

impl AccessPath {
    /// It is mapped here and copied by this processor.
    pub const MAPPED: &'static str = "mapped";
    /// The kernel copies between the two processes.
    pub const PROCESS_VM: &'static str = "process_vm";
    /// Its owner is asked to move it, through bounce slots.
    pub const BOUNCE: &'static str = "bounce";
    /// Its owner moves it, as it goes to and from a stream between the two.
    pub const TCP: &'static str = "tcp";
    /// This side's card writes it and reads it.
    pub const VERBS: &'static str = "verbs";
    /// It cannot be reached.
    pub const NONE: &'static str = "none";
}
