//! The contract between the runtime and its transports.
//!
//! The runtime knows plans, deadlines and peers; a transport knows how bytes get from one memory
//! into another. Between them stand the traits of this crate, and nothing in the runtime asks which
//! transport it has: it asks [`Caps`].
//!
//! Read in this order:
//!
//! - [`caps`]: what a transport can do and what it promises
//! - [`lane`]: one worker's way to one peer: posting, notifying, polling
//! - [`driver`]: what one worker does for all its lanes at once
//! - [`remote`]: a peer's memory, as this process reaches it; [`pair`]: how bytes go between it and memory here
//! - [`device`]: copies that devices make, as lanes are given them
//! - [`peer_view`]: what this engine can see of a peer's withdrawals and workers
//! - [`link`]: finding a peer, exchanging offers, joining; registering regions
//! - [`packets`]: what became of packets, where a transport has some of its own
//! - [`record`]: the notes and their form in a ring, parsed as the untrusted bytes they are
//! - [`staging`]: memory of devices in sessions whose transport moves host memory
//! - [`host`]: what the transports inside one host have in common, and of this engine what every transport uses: its gate,
//!   hazards, bells and ready bits
//! - [`mediated`]: what those have in common whose target moves the bytes itself

#![forbid(unsafe_code)]

pub mod caps;
pub mod device;
pub mod driver;
pub mod host;
pub mod lane;
pub mod link;
pub mod mediated;
pub mod packets;
pub mod pair;
pub mod peer_view;
pub mod record;
pub mod remote;
pub mod staging;

pub use caps::{Caps, Placement, Trust};
pub use device::{CardAccess, CopyEnd, DeviceLane, Devices, DmaBuf};
pub use driver::{Driver, Rest};
pub use lane::{
    Batch, CancelledOp, CounterRef, Failure, FlushRequest, Lane, LaneEvents, LaneFault, Note, NotifyPosted,
    NotifyRequest, PostError, Posted, Revisions,
};
pub use link::{
    AdvertisedRegion, ControlSender, Exported, Fds, ImportError, JoinError, Link, LocalEnd, Registrar, RemoteEnd,
    Scope, Streams, Transport, TransportMessages, unreached_device, why_unreached,
};
pub use packets::{PacketStatistics, PeerPackets};
pub use pair::Pair;
pub use peer_view::{Fence, PeerView, RemoteGateLog};
pub use remote::{AccessPath, RdmaMemory, RemoteMemory, RemoteSlots, StagedMemory, TargetMediatedMemory};
pub use staging::{StagedSession, Staging};
