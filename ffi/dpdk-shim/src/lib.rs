//! DPDK, a burst at a time: the functions of `shim/penstock_dpdk.h`, opened at run time.
//!
//! DPDK's hot calls are inline functions of its headers, made for the structures of one release, so a small library of C stands between
//! (`make dpdk` builds it where DPDK's headers are). A program with this in it runs without that library and without DPDK, and
//! [`Shim::find`] says what is missing. All functions are as unsafe as C.
//!
//! - [`shim`]: the library and what may be wrong with it
//! - [`types`]: its structures

pub mod shim;
pub mod types;

pub use shim::{Shim, ShimUnusable};
pub use types::{DpdkCounts, DpdkFacts, DpdkOptions, DpdkPacket, DpdkPiece};
