//! The control layer, without any I/O: what may follow what between a source and a sink of blocks.
//!
//! Nothing here owns memory, a socket, a thread or a clock. What happens is an [`Event`] with its moment, what is wanted an
//! [`Action`]; the runtime carries actions out in their order.
//!
//! Read in this order:
//!
//! - [`event`] and [`action`]: what comes in and what goes out
//! - [`cause`]: why something ended
//! - [`manager`]: where it all comes together, one for each engine
//! - [`partners`]: the peers, and the layouts that both sides have told each other
//! - [`status`]: what an application sees of a transfer
//! - [`layout`], [`geometry`], [`shards`], [`cut`]: how blocks lie, where each of their bytes is, which lie alike, and any range of the
//!   one as pieces of the other
//! - [`held`]: blocks that a call cannot have
//! - [`ranks`]: which ranks of both sides have something to say to each other
//! - `spares`: boxes whose memory is used again
//! - [`part`] and [`runs`]: what both sides say of legs, and sets of what has come
//! - [`output`] and [`input`]: legs at the source, and at the sink
//! - [`lifecycle`]: the lives of requests, and the swaps of their blocks
//! - [`continuation`]: blocks of requests that have ended, kept for their children
//! - [`relay`]: chunks between stages

#![forbid(unsafe_code)]

pub mod action;
pub mod cause;
pub mod continuation;
pub mod cut;
pub mod event;
pub mod geometry;
pub mod held;
pub mod input;
pub mod layout;
pub mod lifecycle;
pub mod manager;
pub mod output;
pub mod part;
pub mod partners;
pub mod ranks;
pub mod relay;
mod repeated;
pub mod runs;
pub mod shards;
mod spares;
pub mod status;

pub use action::{Action, BlocksRef, MoveId, Moving, Spans, WatchId};
pub use cause::FlowCause;
pub use cut::{Cut, CutError, Run};
pub use event::Event;
pub use held::{BlockHeld, Holder};
pub use input::{
    AssemblyPiece, Failed, InputEvent, MemoryPolicy, NoMemory, Pull, PullWish, Read, Receive, SinkLegs, SinkWish, Tail,
    Totals,
};
pub use layout::{Layout, LayoutError, LayoutFault};
pub use manager::TransferManager;
pub use output::{LendOptions, Loans, Part, Send, SendFailed, SourceLegs, SourceWish};
pub use part::{LegError, PartLanded};
pub use partners::{LayoutKey, LayoutRefused, Silence};
pub use ranks::{NotSpread, RankOf, Spread};
pub use shards::{Difference, ShardPair, Unfit};
pub use status::Status;
