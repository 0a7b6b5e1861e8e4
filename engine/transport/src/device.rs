//! Copies that devices make, as lanes are given them. A session has one transport, and device memory has to work in each: so this is no transport.

use std::io;
use std::os::fd::OwnedFd;

use penstock_memory::{DeviceId, DeviceWindow, Memory};

use crate::driver::Driver;
use crate::lane::{Batch, CancelledOp, Failure, PostError};
use crate::link::ImportError;
use crate::pair::Pair;

/// The devices of this process, as one engine uses them.
pub trait Devices: Send + Sync {
    /// How bytes go between two memories of this process, of which a device's is at least one. It makes ready what that takes (pins host memory,
    /// opens streams), so it is asked when a plan is built, and never by a worker.
    fn pair(&self, local: &Memory, remote: &Memory) -> Result<Pair, ImportError>;

    /// What the lane of this worker to this peer is given.
    fn lane(&self, worker: usize, peer_index: u32) -> Box<dyn DeviceLane>;

    /// What the worker does for all of these: it marks lanes ready whose copies have ended.
    fn driver(&self, worker: usize) -> io::Result<Box<dyn Driver>>;

    /// Makes memory of a device ready to be reached by RDMA cards themselves, or says in words why they cannot. Asked anew whenever memory is registered,
    /// and never by a worker that has something else to do.
    fn share_with_cards(&self, memory: &DeviceWindow) -> Result<CardAccess, String>;

    /// Has the device see all that cards have written to its memory, and whose completions this process has seen. It takes some microseconds, and is for
    /// memory of which [`CardAccess::needs_flush`] says so.
    fn flush_card_writes(&self, device: DeviceId) -> Result<(), String>;

    /// Whether the streams have come so far behind which a program has ordered what is given to this device. Copies of the device wait for them by
    /// themselves; a card does not, so who gives it memory of a device asks, and asks again.
    fn is_in_order(&self, device: DeviceId) -> bool;
}

/// How RDMA cards reach a memory of a device.
#[derive(Debug)]
pub struct CardAccess {
    /// The memory as the kernel passes it on to drivers of cards, or why it does not.
    pub dma_buf: Result<DmaBuf, String>,
    /// Whether a card's completion may be seen before the device sees what the card has written: [`Devices::flush_card_writes`] is between the two.
    pub needs_flush: bool,
}

/// The whole pages around a memory of a device.
#[derive(Debug)]
pub struct DmaBuf {
    pub descriptor: OwnedFd,
    /// Where the memory begins in it.
    pub offset: u64,
}

/// One lane's copies on devices. It is dropped when it is not [busy](DeviceLane::is_busy).
pub trait DeviceLane: Send {
    /// Takes copies between two memories that [`Devices::pair`] was asked about: as many of the first spans as it answers, at least one. They are
    /// reported by [`DeviceLane::collect`].
    fn post(&mut self, batch: &Batch<'_>) -> Result<usize, PostError>;

    /// Gives the device what was taken, if that does not make enough of it at once later.
    fn submit(&mut self);

    /// As [`crate::Lane::cancel_op`]; none: it has no such operation. What a device was given cannot be taken back.
    fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp>;

    /// Whether a device has any of it and goes on.
    fn is_busy(&self) -> bool;

    /// Says which operations have ended, each once, and how.
    fn collect(&mut self, ended: &mut dyn FnMut(u64, CopyEnd));
}

/// How an operation of a device has ended.
#[derive(Debug)]
pub enum CopyEnd {
    /// It touches no memory any more. With the bytes it moved, or why it did not.
    Completed(Result<u64, Failure>),
    /// The device has failed, and may have both memories for ever.
    Lost(Failure),
}
