//! What every transport promises: one function for each promise.
//!
//! - [`bytes`]: single extents, of any alignment and length, in both directions
//! - [`shapes`]: every form of a plan
//! - [`addresses`]: plans and regions by address
//! - [`notes`]: notifications and counters
//! - [`pressure`]: too much of something, many peers at once, priorities
//! - [`ends`]: deadlines and cancelling
//! - [`withdrawal`]: revoking and deregistering
//! - [`rights`]: what may be touched, and what kind of memory
//! - [`waiting`]: the event fd, blocking, statistics
//! - [`sessions`]: coming and going
//! - [`draining`]: coming to rest
//! - [`named`]: transfers by name
//! - [`defects`]: transfers by name where others are known to go wrong
//! - [`shards`]: transfers by name between unequal ranks

pub mod addresses;
pub mod bytes;
pub mod defects;
pub mod draining;
pub mod ends;
pub mod named;
pub mod notes;
pub mod pressure;
pub mod rights;
pub mod sessions;
pub mod shapes;
pub mod shards;
pub mod waiting;
pub mod withdrawal;
