//! What an engine promises under stress, put to the test: stops that come in the middle of a copy,
//! allocations on the way of a plan, crowds of idle peers.
//!
//! The tests themselves are in `tests/`; here is what they share. In reading order:
//!
//! - [`seed`]: one number from which a whole run is drawn, and drawn again
//! - [`folder`], [`pair`]: a place for sockets; two engines that know each other
//! - [`rails`]: engines over cards in this process, whose faults come on demand
//! - [`cores`]: who runs beside whom
//! - [`child`]: other processes, spoken to line by line
//! - [`bystanders`]: peers in other processes that sleep, or take what they are sent
//! - [`frozen`]: writers that are stopped in the middle of a copy
//! - [`owner`]: peers in other processes with memory of their own, which can be stopped and killed
//! - [`reader`]: peers in other processes that fetch chunks, and stand still or are killed meanwhile
//! - [`pullers`]: peers in other processes that read what is lent to them
//! - [`pushers`]: peers in other processes that push until they are killed
//! - [`storm`]: transfers that are stopped midway, and the canaries that tell what landed later

#![forbid(unsafe_code)]

pub mod bystanders;
pub mod child;
pub mod cores;
pub mod folder;
pub mod frozen;
pub mod owner;
pub mod pair;
pub mod pullers;
pub mod pushers;
pub mod rails;
pub mod reader;
pub mod seed;
pub mod storm;
