//! Virtual machines with a whole RDMA stack, for labs on machines that have none.
//!
//! A guest is a real kernel under an emulator, with soft RoCE devices, that sees the host's files as they are: programs
//! built on the host run in it unchanged. What it writes stays in its own memory and is gone with it.
//!
//! ```no_run
//! use std::time::Duration;
//! use penstock_lab_rdma::rails::{self, Side};
//! use penstock_lab_rdma::{Guest, Job, Machine};
//!
//! let guest = Guest::boot(&Machine::new("guest", "target/debug/penstock-guest"))?;
//! rails::make(&guest, 2)?;
//! let server = guest.spawn(&Job::new("ib_write_bw").arguments(["-d", "rxe_b0"]).within(Duration::from_secs(30)))?;
//! server.wait_for("Waiting for client", Duration::from_secs(10))?;
//! rails::down(&guest, Side::A, 0)?;
//! server.signal(9)?;
//! println!("{}", guest.check(&Job::shell("rdma resource"))?);
//! # Ok::<(), penstock_lab_rdma::LabError>(())
//! ```
//!
//! # Where to read on
//!
//! - [`image`]: the kernel and what it begins with, made once and kept
//! - [`guest`]: booting, running commands, noticing that a guest has died; [`protocol`] is what is said meanwhile
//! - [`agent`] and [`supervise`](mod@supervise): the two small programs around it, one inside, one outside
//! - [`rails`]: the devices and the wire between them; [`netem`]: what happens to frames on it; [`counters`]: what proves
//!   that they crossed it; [`pair`]: two guests, of which one can die
//! - [`lab`]: steps that share a guest; [`suite`] and [`programs`]: tests of this project inside it; [`penstock`] and
//!   [`perftest`]: what is measured there

#![forbid(unsafe_code)]

pub mod agent;
pub mod counters;
pub mod error;
pub mod guest;
pub mod host;
pub mod image;
pub mod lab;
pub mod netem;
pub mod pair;
pub mod penstock;
pub mod perftest;
pub mod programs;
pub mod protocol;
mod qemu;
pub mod rails;
pub mod suite;
pub mod supervise;

pub use error::LabError;
pub use guest::{Finished, Guest, Machine, Running, Wire};
pub use protocol::{End, Job, Line};
