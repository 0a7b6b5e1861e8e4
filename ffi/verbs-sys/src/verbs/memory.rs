//! Protection domains, thread domains and registered memory.

use std::ffi::c_void;

use super::context::ibv_context;
use crate::layout::c_structs;

c_structs! {
    /// A protection domain: what belongs together and may use each other's memory.
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// How a thread domain is made; nothing can be chosen yet.
    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// A thread domain: a promise that one thread at a time uses what is made in it, so that the driver takes no locks.
    struct ibv_td {
        context: *mut ibv_context,
    }

    /// How a parent domain is made.
    struct ibv_parent_domain_init_attr, AtEnd {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
        free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
        pd_context: *mut c_void,
    }

    /// Registered memory.
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
}
