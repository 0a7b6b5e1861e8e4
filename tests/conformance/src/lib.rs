//! One suite that every transport passes.
//!
//! A case is a function of a [`Setting`]: which transport, which mode, and whether the other engine
//! runs in this process or in one of its own. A transport joins by one small file in `tests/` that
//! names its settings with [`suite!`]; every case is then a test of its own, and what a case must
//! expect it asks of `Caps`, never of the transport's name.
//!
//! Read in this order:
//!
//! - [`setting`]: what a case is run under; [`folder`]: where its sockets are; [`cards`]: cards in this process
//! - [`command`], [`target`]: the other engine and what it can be told; [`remote`]: telling it
//! - [`stage`]: an engine here, engines there, and their sessions
//! - [`own`]: memory of an engine here, of its host or of a device; [`pattern`]: bytes that can be recognised
//! - [`cases`]: what is promised, one function each; [`suite`](mod@suite): the list of them
//! - [`processes`]: transfers by name between whole engines in two processes
//! - [`burst`]: transfers that are interrupted while they move
//! - [`bystander`], [`rogue`]: a peer that must not notice anything, and one that breaks every rule
//! - [`stranger`]: the same over the network; [`hostile`]: a rogue beside honest peers at load
//! - [`death`]: peers that are killed, and how soon that is known; [`churn`]: many of them; [`stopped`]: those that only
//!   stand still; [`gauge`]: whether the machine stood still meanwhile
//! - [`kernel`]: settings of this machine that labs change; [`skip`]: a test that cannot run here

#![forbid(unsafe_code)]

pub mod burst;
pub mod bystander;
pub mod cards;
pub mod cases;
pub mod churn;
pub mod command;
pub mod death;
pub mod dpdk;
pub mod folder;
pub mod gauge;
pub mod hostile;
pub mod kernel;
pub mod own;
pub mod pattern;
pub mod processes;
pub mod remote;
pub mod rogue;
pub mod setting;
pub mod skip;
pub mod stage;
pub mod stopped;
pub mod stranger;
pub mod suite;
pub mod target;

use penstock::SystemEnv;

pub use own::Own;
pub use setting::{Carrier, Devices, Manner, Memory, Place, Setting};
pub use stage::{Options, Stage};

/// An engine of the operating system's own environment, as all engines here.
pub type Engine = penstock::Engine<SystemEnv>;
/// A peer of such an engine.
pub type Peer = penstock::Peer<SystemEnv>;
/// A pool of such an engine.
pub type Pool = penstock::Pool<SystemEnv>;
/// A transfer of such an engine.
pub type Transfer = penstock::Transfer<SystemEnv>;
/// A region of a peer of such an engine.
pub type RemoteRegion = penstock::RemoteRegion<SystemEnv>;
