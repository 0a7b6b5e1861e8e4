//! A wire between two network ends that does to frames what a script says, and two hosts to put at its ends.
//!
//! Sockets over the loopback never lose, delay or reorder anything. What must hold between hosts is therefore tried
//! between two network namespaces of one machine, whose only link goes through this crate: each end is a TAP device, and
//! every frame passes through here. The devices have no offloads, so frames are of real size and their checksums are
//! real: a corrupted frame is found by the receiving kernel as it would be on a real wire.
//!
//! ```no_run
//! use penstock_wire::{Direction, Family, Side, TwoHosts};
//!
//! let scenario = "seed=7; a-to-b loss=1%,delay=2ms; at=2s partition both for=500ms".parse()?;
//! let mut hosts = TwoHosts::create(scenario)?;
//! let server = hosts.command(Side::B, "some-server").arg(hosts.address(Side::B, Family::V4).to_string()).spawn()?;
//! hosts.cut(Direction::Both)?;
//! hosts.heal(Direction::Both)?;
//! println!("{:?}", hosts.stats()?.a_to_b);
//! # drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the seed promises
//!
//! Each direction counts its frames. What happens to frame *k* of a direction is a pure function of the seed, the
//! direction, the kind of fault and *k*: the same frames in the same order suffer the same, in any run, on any machine,
//! however fast it is. Faults do not disturb each other: changing `loss` moves no duplicate, and what is lost at 1 % is
//! also lost at 5 %. Frames that a kernel sends on its own (ARP, neighbour discovery, multicast membership) are counted
//! apart, so that they do not shift the numbers of others. What no seed can promise: TCP decides by its own clock when it
//! sends again, so its frames differ from run to run; and a timed event meets whichever frame is there at the time.
//!
//! # Where to read on
//!
//! Pure, with bytes and moments as arguments:
//! - [`scenario`]: faults and events, as values and as text
//! - [`chance`]: what happens to frame *k*
//! - [`path`](mod@path): one direction: what is held, for how long, and the count of everything
//! - [`wire`]: both directions and the script
//!
//! On the machine:
//! - [`tap`]: the ends; [`control`]: what can be said to a running wire; [`pump`]: the loop between them
//! - [`hosts`]: two namespaces with a wire in between

#![deny(unsafe_code)]

pub mod chance;
pub mod control;
pub mod hosts;
pub mod path;
pub mod pump;
pub mod scenario;
pub mod tap;
pub mod wire;

pub use hosts::{Family, HostsError, Side, TwoHosts};
pub use path::PathStats;
pub use scenario::{Direction, Event, Fault, Faults, Scenario, ScenarioError, What};
pub use wire::{Stats, Wire};
