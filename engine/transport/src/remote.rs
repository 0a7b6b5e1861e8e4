//! A peer's memory, as this process reaches it.

use std::sync::Arc;

use penstock_core::plan::RegionKey;
use penstock_memory::{DeviceWindow, ProcessVmMemory, Window};

/// A peer's memory, as this process accesses it. Decided when the region is imported; a lane does not choose again.
#[derive(Debug, Clone)]
pub enum RemoteMemory {
    /// It is mapped here: this processor copies.
    Mapped(Window),
    /// It is a device's that this process has: the device copies.
    Device(DeviceWindow),
    /// It is another process's own: the kernel copies, in a system call of a thread that may wait for that process.
    ProcessVm(ProcessVmMemory),
    /// Its owner's worker moves the bytes, on request: through bounce slots on one host, over a stream between hosts.
    TargetMediated(TargetMediatedMemory),
    /// A NIC accesses it, without its owner's processor.
    Rdma(Arc<RdmaMemory>),
    /// It is a device's that nobody else reaches: its owner copies between it and slots of host memory, on request.
    Staged(Arc<StagedMemory>),
}

/// Memory of a peer's device, and the peer's slots through which bytes get there and back.
#[derive(Debug)]
pub struct StagedMemory {
    pub bytes: u64,
    /// By [`penstock_core::Direction`]; none: peers have no right to that.
    pub slots: [Option<RemoteSlots>; 2],
}

/// Slots of a peer, as this process reaches them.
#[derive(Debug, Clone)]
pub struct RemoteSlots {
    pub key: RegionKey,
    pub memory: RemoteMemory,
}

/// Memory that NICs access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaMemory {
    /// Region id and generation, as its owner has them.
    pub key: RegionKey,
    /// The address of its first byte as work requests name it (ibverbs' `remote_addr`), beside the rkeys.
    pub iova: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The rkey for each rail of the link, in their order.
    pub rkeys: Vec<u32>,
}

/// Memory that only its owner may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetMediatedMemory {
    /// Region id and generation, as its owner has them.
    pub key: RegionKey,
    /// Its length in bytes.
    pub bytes: u64,
}

impl RemoteMemory {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(window) => window.len(),
            Self::Device(window) => window.len(),
            Self::ProcessVm(memory) => memory.bytes(),
            Self::TargetMediated(memory) => memory.bytes,
            Self::Rdma(memory) => memory.bytes,
            Self::Staged(memory) => memory.bytes,
        }
    }
}

impl From<Window> for RemoteMemory {
    fn from(window: Window) -> Self {
        Self::Mapped(window)
    }
}

/// How a peer's region is accessed, as text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessPath {
    /// One of the names below.
    pub name: &'static str,
    /// Why this one: what it costs, or what prevents a better one.
    pub reason: String,
}

impl AccessPath {
    /// It is mapped here and copied by this processor.
    pub const MAPPED: &'static str = "mapped";
    /// The kernel copies between the two processes.
    pub const PROCESS_VM: &'static str = "process_vm";
    /// Its owner moves it on request, through bounce slots.
    pub const BOUNCE: &'static str = "bounce";
    /// Its owner moves it, as it goes to and from a stream between the two.
    pub const TCP: &'static str = "tcp";
    /// Its owner moves it, as it comes in packets.
    pub const DATAGRAM: &'static str = "datagram";
    /// This side's NIC writes it and reads it.
    pub const VERBS: &'static str = "verbs";
    /// This side's NIC writes it and reads it, and the peer's NIC gets at it, which is a device's, by the kernel's descriptor.
    pub const GPUDIRECT_DMA_BUF: &'static str = "gpudirect (dma-buf)";
    /// The same, by the memory's address, which a kernel module of the device's maker knows.
    pub const GPUDIRECT_PEER_MEMORY: &'static str = "gpudirect (peer memory)";
    /// A device of this process copies.
    pub const DEVICE: &'static str = "device";
    /// A device of its owner copies, to and from host memory that is reached.
    pub const STAGED: &'static str = "staged";
    /// It cannot be reached.
    pub const NONE: &'static str = "none";
}
