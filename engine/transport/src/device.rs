//! Copies that devices make, as lanes are given them. A session has one transport, and device memory has to work in each: so this is no transport.

use std::io;

use penstock_memory::Memory;

use crate::driver::Driver;
use crate::lane::{Batch, CancelledOp, LaneEvents, PostError};
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

    /// Reports operations that have ended, and answers how many touch no memory any more that did before.
    fn collect(&mut self, events: &mut dyn LaneEvents) -> usize;
}
