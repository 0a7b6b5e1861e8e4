//! Where memory lives, and asking for it to live near a core.

use std::io;
use std::ptr;

/// From the kernel's `mempolicy.h`: answer a node rather than a policy, ...
const MPOL_F_NODE: libc::c_ulong = 1;
/// ... and that of an address.
const MPOL_F_ADDR: libc::c_ulong = 2;
/// Take pages from the given node while it has any.
const MPOL_PREFERRED: libc::c_ulong = 1;

/// The node on which the page at `address` was allocated, or `None` where the kernel refuses to
/// say (no NUMA support, or a container's system-call filter).
pub(crate) fn node_of(address: *const u8) -> Option<u32> {
    let mut node: libc::c_int = -1;
    // SAFETY: get_mempolicy(mode, mask, bits, address, flags) writes one int through `mode`; the
    // mask is absent; the address is only looked up, never read.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            ptr::null_mut::<libc::c_ulong>(),
            0 as libc::c_ulong,
            address,
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if answer == 0 { u32::try_from(node).ok() } else { None }
}

/// Asks that pages of the range come from `node` while it has any left. Call before the pages
/// are touched.
pub(crate) fn prefer(node: u32, address: *mut u8, len: u64) -> io::Result<()> {
    const NODES_MAX: usize = 1024;
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let node = node as usize;
    if node >= NODES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mask = [0 as libc::c_ulong; NODES_MAX / WORD_BITS];
    mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
    // SAFETY: mbind reads NODES_MAX bits from `mask`, which is that long (the kernel takes one
    // bit less than the count it is told), and only sets a policy on the range.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address,
            len as libc::c_ulong,
            MPOL_PREFERRED,
            mask.as_ptr(),
            NODES_MAX as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
