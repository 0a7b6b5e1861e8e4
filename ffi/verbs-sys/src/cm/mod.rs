//! librdmacm, in the words of `rdma/rdma_cma.h`: how two queue pairs find and connect to each other over IP addresses.

pub(crate) mod constants;
mod library;
pub(crate) mod types;

pub use constants::*;
pub use library::{Cm, rdma_get_local_addr, rdma_get_peer_addr};
pub use types::*;
