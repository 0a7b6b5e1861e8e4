//! Whole engines on one thread, ordered by a seed.
//!
//! An engine reaches time, randomness and sockets through one trait only. This crate implements it
//! from a seed: streams are queues in memory, the clock moves when somebody waits, and a generator
//! decides which frame arrives next, in how many pieces, and whose turn it is. What runs is the
//! engine itself, not a model of it, and a seed that found a failure finds it again.
//!
//! ```
//! use penstock_simulation::World;
//!
//! let world = World::new(7);
//! let target = world.start(World::config("target"))?;
//! let source = world.start(World::config("source"))?;
//! let connecting = source.connect_begin(&target.descriptor())?;
//! world.run_until(10_000, || connecting.poll().is_some())?;
//! assert!(connecting.poll().unwrap().is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Memory is real: pools are mapped, descriptors travel, bytes are copied. What a seed does not decide
//! is what two threads do to each other at the same time; that is for the models of `penstock-ring`.
//!
//! Read in this order:
//!
//! - [`world`]: engines, steps, time
//! - [`env`]: what an engine sees of it
//! - `network`: listeners and streams, delivery by seed
//! - [`links`], `packets`: what is between hosts, and what goes over it beside streams
//! - [`devices`]: devices with memory of their own
//! - [`faults`]: links that are cut, engines that stand still or die
//! - [`trace`]: what happened, folded into one number
//! - [`replay`]: many seeds, and the one that failed
//! - `random`: the generator
//! - `secret`: what all simulated hosts share
//!
//! Above that stands what `make sim` runs, transfers by name among engines of which some fail:
//!
//! - [`deed`]: what is going to happen, made from the seed before it begins; `scenes`: what of it has to come in an order; [`turns`]:
//!   turns that go on from others
//! - [`stage`]: the engines of a run, their memory, and who has met whom
//! - [`actors`]: their applications, [`actors::turns`] those that go on; [`chunks`]: those of stages that hand something over; [`streams`]: those
//!   that stream and join; [`lives`]: schedulers of requests, and their devices; [`copies`]: those that have devices copy
//! - [`oracle`]: what has to hold; [`leases`]: between which moments a lease has to end
//! - [`run`]: one run of all that; [`shrink`]: the shortest one that fails alike

#![forbid(unsafe_code)]

pub mod actors;
mod calls;
mod charges;
pub mod chunks;
pub mod copies;
pub mod deed;
pub mod devices;
pub mod env;
pub mod faults;
pub mod leases;
mod ledger;
pub mod links;
pub mod lives;
mod network;
pub mod oracle;
mod packets;
mod random;
pub mod replay;
pub mod run;
mod scenes;
mod secret;
pub mod shrink;
pub mod stage;
pub mod streams;
pub mod trace;
pub mod turns;
pub mod world;

pub use env::{Clock, Identity, SimEnv};
pub use faults::Death;
pub use links::{Rate, Weather};
pub use random::Random;
pub use replay::replay;
pub use trace::{Event, What};
pub use world::{Node, Stuck, World};
