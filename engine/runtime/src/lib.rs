//! Penstock moves scattered blocks of memory between processes, as fast as the memory allows, and
//! tells both sides exactly once when they have arrived.
//!
//! ```no_run
//! use std::time::Duration;
//! use penstock::{Config, Engine, NoteId, Plan, PoolSpec, Rights, Submit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(Config::default().named("prefill-0"))?;
//! let pool = engine.pool(PoolSpec::host(1 << 30).block(16 << 10).label("kv"))?;
//! # let descriptor: Vec<u8> = Vec::new();
//! let peer = engine.connect(&descriptor, Duration::from_secs(2))?;
//! let plan = Plan::write(&pool, &peer.region("kv")?).blocks(&[(0, 7), (5, 3)]).build()?;
//! let transfer = peer.submit(&plan, Submit::new().notify(NoteId(1), b"layer 3"))?;
//! println!("{} bytes moved", transfer.wait()?.bytes);
//! # Ok(())
//! # }
//! ```
//!
//! Read in this order:
//!
//! - [`engine`]: starting, making memory, connecting, polling
//! - [`drain`](mod@drain): coming to rest; `reconnect`: finding an engine by its name or address
//! - [`secret`]: what hosts share; `resolve`, `interfaces`: addresses of others and of this host
//! - [`region`], [`peer`]: memory of this side and of the other
//! - [`plan`]: what to move; [`transfer`]: a plan on its way
//! - `worker`: the polling loop; `slot`: one transfer's shared words
//! - [`quiesce`]: proof that nothing lands any more
//! - [`renew`]: fresh memory in the place of quarantined memory
//! - `control`: the socket, the greetings, the announcements
//! - [`system`]: the real environment

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod control;
pub mod counter;
pub mod drain;
mod ending;
pub mod engine;
mod engine_inner;
pub mod error;
pub mod flows;
pub mod inbox;
mod interfaces;
mod kept_fds;
mod manager;
pub mod peer;
mod peer_counters;
mod peer_state;
pub mod plan;
pub mod quiesce;
mod reconnect;
pub mod region;
pub mod renew;
mod resolve;
pub mod secret;
mod shared;
mod slot;
mod statistics;
mod submit;
pub mod system;
pub mod transfer;
pub mod transports;
mod worker;

pub use penstock_core::config;
pub use penstock_core::{
    Cause, Config, Direction, EngineName, Env, Epoch, Fault, NoteId, Notified, Rights, Span, Stage, env, limits,
    plan::{PlanError as ShapeError, Strided},
    time::Timestamp,
};
pub use penstock_cuda as device;
pub use penstock_memory::{self as memory, BlockId, Blocks, DeviceMemory, HostMemory, Pages, PoolSpec, Window};
pub use penstock_session as session;
pub use penstock_transport::{self as transport, Caps, PacketStatistics, PeerPackets, lane::Handle};

pub use self::counter::Counter;
pub use self::drain::Drained;
pub use self::engine::{Armed, Connecting, Engine};
pub use self::error::{ConnectError, PlanError, RegionError, RenewError, StartError, SubmitError};
pub use self::inbox::Notification;
pub use self::peer::{Peer, RemoteCounter, RemoteRegion, Submit};
pub use self::plan::{AddressedPlan, Near, Plan, PlanBuilder};
pub use self::quiesce::{CancelOutcome, LocalQuiesce, Quarantined, RemoteQuiesce};
pub use self::region::{DevicePool, LocalRegion, Pool};
pub use self::secret::SecretFileError;
pub use self::statistics::{NetworkStatistics, Statistics};
pub use self::system::SystemEnv;
pub use self::transfer::{Completed, Transfer};
pub use self::transports::TransportReport;
pub use self::worker::Priority;

/// The programs of the guide run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/CONNECTORS.md")]
mod connectors {}
