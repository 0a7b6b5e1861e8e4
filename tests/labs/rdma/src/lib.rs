//! Virtual machines with a whole RDMA stack, for labs on machines that have none.
//!
//! A guest is a real kernel under an emulator, with soft RoCE devices, that sees the host's files as they are: programs
//! built on the host run in it unchanged. What it writes stays in its own memory and is gone with it.
//!
//! ```no_run
//! use std::time::Duration;
//! use penstock_lab_rdma::{Guest, Job, Machine, rails};
//!
//! let guest = Guest::boot(&Machine::new("guest", "target/debug/penstock-guest"))?;
//! rails::make(&guest, 2)?;
//! let server = guest.spawn(&Job::new("ib_write_bw").arguments(["-d", "rxe_b0"]).within(Duration::from_secs(30)))?;
//! println!("{}", guest.check(&Job::shell("rdma resource"))?);
//! server.signal(9);
//! # Ok::<(), penstock_lab_rdma::LabError>(())
//! ```
//!
//! # Where to read on
//!
//! - [`image`]: the kernel and what it begins with, made once and kept
//! - [`guest`]: booting, running commands, noticing that a guest has died; [`protocol`] is what is said meanwhile
//! - [`agent`] and [`supervise`]: the two small programs around it, one inside, one outside
//! - [`rails`]: the devices and the wire between them

#![forbid(unsafe_code)]

pub mod agent;
pub mod error;
pub mod guest;
pub mod host;
pub mod image;
pub mod protocol;
mod qemu;
pub mod rails;
pub mod supervise;

pub use error::LabError;
pub use guest::{Finished, Guest, Machine, Running, Wire};
pub use protocol::{End, Job, Line};
