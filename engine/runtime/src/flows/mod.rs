//! Transfers by name: two schedulers hand over blocks without knowing each other's names for them.
//!
//! Whoever dispatches a request mints a [`TransferId`] and gives it to both engines. The one that has the bytes calls
//! [`Engine::produce`], the one that needs them [`Engine::consume`]; in either order. The sink [grants](Input::grant) blocks in *legs*, as
//! many as it has room for; the source gives [chunks](Output::chunk) as they are computed. Bytes go when both are there, each side is told
//! what came, and every transfer ends: in success on both sides, or in a failure with its cause.
//!
//! - [`layout`]: how blocks lie in a region
//! - [`output`]: the source's handle; [`input`]: the sink's
//! - [`gate`]: fences in front of layers
//! - [`lifecycle`] and [`swap`]: requests of a device, and their blocks on their way to the host and back
//! - [`pins`]: blocks of requests that have ended, and who goes on from them
//! - [`relay`]: chunks between stages, without names that two schedulers share

pub mod gate;
pub mod input;
pub mod layout;
pub mod lifecycle;
pub mod output;
pub mod pins;
pub mod relay;
pub mod swap;

use std::time::Duration;

use penstock_core::Env;
pub use penstock_flows::geometry::Clash;
pub use penstock_flows::input::{Failed, InputEvent, MemoryPolicy, NoMemory};
pub use penstock_flows::lifecycle::LifecycleError;
pub use penstock_flows::manager::{CallError, Inconsistency, Metrics};
pub use penstock_flows::output::SendFailed;
pub use penstock_flows::{BlockHeld, FlowCause, Holder, LayoutRefused, LegError, Status};
pub use penstock_session::control::{Buffer, Form, Missing, Rows, Side};
pub use penstock_session::transfers::table::{FinishedTransfer, QuarantinedRequest};
pub use penstock_session::{IdError, RequestId, TransferId};

pub use self::gate::Gate;
pub use self::input::{Input, Receive};
pub use self::layout::{Layout, LayoutSpec};
pub use self::lifecycle::{
    BlockRef, DeferSite, Evicted, Eviction, Evictions, Lag, Lifecycle, LifecycleSettings, LifecycleSpec, Removals,
    Removed, SchedulerReport, SubscribeError, SwapWay, Verdict, block_refs,
};
pub use self::output::{Output, Send};
pub use self::pins::{
    Blob, Ended, Group, Home, Inherited, Inheriting, InheritingFrom, Isolation, Miss, Parent, ParentBlocks, PinError,
    PinKey, PinSettings, Pins,
};
pub use self::swap::{Swap, SwapFailed, SwapState, SwapStatus};
use crate::engine::Engine;

/// How long a transfer by name may take where nothing else is said.
const WITHIN: Duration = Duration::from_secs(120);

/// Why a call changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields of an error are what its text names")]
pub enum FlowError {
    /// It makes no sense for the transfer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The layout is refused.
    #[error(transparent)]
    Layout(#[from] LayoutRefused),
    /// Swaps go by a session of the engine with itself, which it has not.
    #[error("swaps go by a session of the engine with itself, over `local`, which there is not: {why}")]
    Oneself { why: String },
    /// Nothing can be swapped between the pools.
    #[error("blocks cannot be swapped between these pools: {why}")]
    NoWay { why: String },
    /// The layout is another engine's.
    #[error("the layout `{label}` was made by another engine of this process; give one that this engine has made")]
    ForeignLayout { label: String },
    /// The gate is another engine's.
    #[error("the gate was made for another engine of this process; shut one of this engine's")]
    ForeignGate,
    /// The call cannot be made.
    #[error("{0}")]
    Engine(penstock_core::Cause),
    /// A report, or a swap, is refused.
    #[error(transparent)]
    Lifecycle(Box<LifecycleError>),
    /// Nothing is kept.
    #[error(transparent)]
    Pin(Box<PinError>),
    /// What is to be copied has no room.
    #[error("there are too few fresh blocks for what is to be copied; give at least one of each of {groups} groups")]
    TailRoom {
        /// How many groups there are.
        groups: usize,
    },
    /// Nobody can be told.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    /// Memory is not what it has to be.
    #[error(transparent)]
    Memory(#[from] ForeignMemory),
    /// What was waited for has not come.
    #[error("nothing has come within {} ms; wait longer, or look how far the other side is", .0.as_millis())]
    Nothing(Duration),
    /// A buffer is too short for what is to be assembled in it.
    #[error(
        "buffer {buffer} is shorter than the {needed} bytes needed; `Input::assembled_bytes` tells how long each has to be"
    )]
    Room {
        buffer: usize,
        /// How many bytes are needed.
        needed: u64,
    },
    /// The peer is another engine's.
    #[error("peer `{peer}` is another engine's of this process; give the handle that this engine has of it")]
    ForeignPeer {
        /// What it is called.
        peer: penstock_core::EngineName,
    },
    /// The region is another engine's.
    #[error("region `{label}` was made by another engine of this process; give one that this engine has made")]
    ForeignRegion { label: String },
    /// Bytes outside of a region.
    #[error("bytes {offset}..{} lie outside region `{label}`, which has {bytes}", offset.saturating_add(*len))]
    Outside {
        label: String,
        offset: u64,
        len: u64,
        /// How many the region has.
        bytes: u64,
    },
    /// Peers may not read there.
    #[error("peers may not read region `{label}`; make it with `Rights::READ` for puts from it")]
    NotReadable { label: String },
    /// More than a get takes into memory of its own.
    #[error(
        "{bytes} bytes are more than a get takes into memory of its own, or there is no memory: give extents, or set `RelaySpec::largest` above {most}"
    )]
    TooLarge {
        /// How many there are.
        bytes: u64,
        /// How many it takes.
        most: u64,
    },
    /// The relay refuses it.
    #[error(transparent)]
    Relay(#[from] penstock_flows::relay::RelayError),
    /// Bytes could not be copied out.
    #[error("bytes could not be copied out of the blocks: {0}")]
    Copy(penstock_memory::AccessError),
}

/// Memory that is not what a call needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields of an error are what its text names")]
pub enum ForeignMemory {
    /// A pool of another engine.
    #[error("the pool `{label}` is another engine's; give one that this engine has made")]
    Pool { label: String },
    /// Blocks of another pool.
    #[error("blocks of another pool than `{label}` were given; take them from that one")]
    Blocks { label: String },
    /// What goes once has one block.
    #[error("what goes once for a transfer lies in one block, and {blocks} were given; take one for it by itself")]
    Once {
        /// How many were given.
        blocks: usize,
    },
    /// Extents of a pool without the blocks that they lie in.
    #[error(
        "`{label}` is a pool, whose blocks would not be kept and could be given out again: name those that the extents lie in, by `Extents::of_layout` or `Extents::blocks`, or without a layout by `Extents::of_pool`"
    )]
    IsPool { label: String },
    /// A byte of a block that no handle holds.
    #[error(
        "byte {offset} of `{label}` is of block {block}, of which no handle was given, so that it could be given out again: give handles of all blocks that the extents lie in"
    )]
    Unheld {
        /// The label of the pool or the layout.
        label: String,
        offset: u64,
        block: u32,
    },
    /// A byte of no block.
    #[error(
        "byte {offset} of `{label}` is of no block: give parts of blocks; `Layout::offset` and `Layout::extent` say where those lie"
    )]
    NoBlock {
        /// The label of the pool or the layout.
        label: String,
        offset: u64,
    },
    /// A block that the layout has not.
    #[error(
        "the layout `{label}` has {blocks} blocks, and block {block} is none of them: give blocks below that number"
    )]
    NoSuchBlock {
        label: String,
        block: u32,
        /// How many there are.
        blocks: u32,
    },
    /// A layout numbers the blocks of a pool otherwise than the pool does.
    #[error(
        "the layout `{layout}` numbers blocks otherwise than their place in pool `{label}` does, so the wrong ones would be meant: for puts and gets name the layout, by `Extents::of_layout`; for swaps lay out each block in one piece, where the pool has it"
    )]
    OtherNumbers { label: String, layout: String },
    /// A parent's block is not of the layout's pool.
    #[error(
        "block {block} of the parent is of another pool than the layout `{label}`: give for each group the layout that its blocks are in"
    )]
    ParentBlocks { label: String, block: u32 },
    /// Layers of a block lie where the pool has other blocks.
    #[error(
        "layers of a block lie where pool `{label}` has other blocks: a swap would be at memory that nobody gave it; let all layers of a block lie within the block"
    )]
    Layers { label: String },
    /// A region that hands out no blocks.
    #[error("the region `{label}` hands out no blocks; give a pool")]
    NoPool { label: String },
    /// Swaps may not read and write the device's pool.
    #[error(
        "the session with oneself may not read and write pool `{label}`, as swaps do; make it with `Rights::READ_WRITE`"
    )]
    Rights { label: String },
    /// Blocks are not of the same size.
    #[error("blocks have {here} bytes in the one pool and {there} in the other; make both alike")]
    BlockBytes {
        /// Of the host's pool.
        here: u64,
        there: u64,
    },
    /// There are not as many of the one as of the other.
    #[error("{device} blocks of the device and {host} of the host make no pairs; give as many of each")]
    Pairs { device: usize, host: usize },
}

impl<E: Env> Engine<E> {
    /// What this engine's scheduler calls a live transfer.
    pub fn request_of(&self, side: Side, transfer: TransferId) -> Option<RequestId> {
        self.engine.shared.look_at_manager(|manager| manager.request_of(side, transfer).cloned())
    }

    /// What both engines call the live transfer of a request.
    pub fn transfer_of(&self, side: Side, request: &RequestId) -> Option<TransferId> {
        self.engine.shared.look_at_manager(|manager| manager.transfer_of(side, request))
    }

    /// Adds the requests that have finished since the last call, or were released, each once, and says how many there were.
    ///
    /// Why a transfer has failed is told at once, by its handle. Its request is named here when nothing can touch its memory any more: that may be
    /// freed then, whether it is a pool's or was [registered](Engine::register). If somebody may still touch it `control.abort_ms` after the failure
    /// (a peer that is stopped, a reader whose lease stands), the request is named together with what is
    /// [quarantined](FinishedTransfer::quarantined), which is not to be used before it stands in [`FinishedTransfer::released`]. The
    /// [event fd](Engine::event_fd) is readable when there is something of either. So it is also where the handle was dropped before.
    pub fn drain_finished(&self, finished: &mut FinishedTransfer) -> usize {
        self.engine.shared.call_manager(|manager, _| manager.drain_finished(finished))
    }

    /// Looks whether what is kept of transfers by name agrees with itself. It looks at all of it, between two turns of an inline engine:
    /// for simulations.
    #[doc(hidden)]
    pub fn check_control(&self) -> Result<(), Inconsistency> {
        self.engine.shared.check_manager()
    }

    /// What there is of transfers by name, and what went wrong.
    pub fn control_metrics(&self) -> Metrics {
        self.engine.shared.look_at_manager(|manager| manager.metrics())
    }
}
