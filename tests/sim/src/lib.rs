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
//! - [`trace`]: what happened, folded into one number
//! - [`replay`]: many seeds, and the one that failed
//! - `random`: the generator

#![forbid(unsafe_code)]

pub mod env;
mod network;
mod random;
pub mod replay;
pub mod trace;
pub mod world;

pub use env::{Identity, SimEnv};
pub use random::Random;
pub use replay::replay;
pub use trace::{Event, What};
pub use world::{Node, Stuck, World};
