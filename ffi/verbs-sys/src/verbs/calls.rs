//! What the headers of C define as inline functions and that is not hot: calls through the newer functions around a context, with
//! what C does where a library or a device is older.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use super::completion::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr};
use super::constants::ibv_advise_mr_advice;
use super::context::{ibv_context, newer};
use super::device::{ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_query_device_ex_input};
use super::flags::{IBV_ACCESS_OPTIONAL_RANGE, IBV_QP_INIT_ATTR_PD, ibv_access_flags};
use super::library::Verbs;
use super::memory::{ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use super::queue::{ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use super::work::ibv_sge;
use penstock_loader::Missing;

const _: () = assert!(offset_of!(ibv_device_attr_ex, orig_attr) == 0, "the older attributes come first");
const _: () = {
    let shorter = offset_of!(ibv_qp_init_attr_ex, comp_mask);
    assert!(shorter == offset_of!(ibv_qp_init_attr, sq_sig_all) + size_of::<c_int>(), "the one begins as the other");
};

/// What C leaves in `errno` where a function that answers a pointer is not there.
fn not_offered<T>() -> *mut T {
    // SAFETY: the place of this thread's `errno`, which is always there.
    unsafe { *libc::__errno_location() = EOPNOTSUPP };
    ptr::null_mut()
}

impl Verbs {
    /// How a port is. Older libraries answer all but `flags` and `port_cap_flags2`, which are zero then.
    ///
    /// The library exports a function of this name, for programs that were built when the structure was shorter: it fills no more
    /// than that. The newer one is around the context.
    ///
    /// # Safety
    ///
    /// `context` is open, and `port_attr` may be written.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the context is open and the attributes may be written, as the caller promises; the older function is told of a
        // structure that is no shorter than its own, with nothing in it.
        unsafe {
            match newer!(context, query_port) {
                Some(query) => query(context, port_num, port_attr, size_of::<ibv_port_attr>()),
                None => {
                    port_attr.write(ibv_port_attr::ZERO);
                    (self.ibv_query_port)(context, port_num, port_attr.cast())
                }
            }
        }
    }

    /// What a device can do; what an older library or device does not answer is zero.
    ///
    /// # Safety
    ///
    /// `context` is open, `input` is null or points to its structure, and `attr` may be written.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: as the caller promises; the older attributes are the beginning of the newer.
        unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return EINVAL;
            }
            if let Some(query) = newer!(context, query_device_ex) {
                let answer = query(context, input, attr, size_of::<ibv_device_attr_ex>());
                if answer != EOPNOTSUPP && answer != ENOSYS {
                    return answer;
                }
            }
            attr.write(ibv_device_attr_ex::ZERO);
            self.ibv_query_device(context, attr.cast::<ibv_device_attr>())
        }
    }

    /// An entry of a port's table of addresses with its kind and its network interface.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entry` may be written.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> Result<c_int, Missing> {
        // SAFETY: as the caller promises; the size is that of one entry.
        unsafe { self._ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) }
    }

    /// All valid entries of all ports' tables of addresses: how many, or a negative error number.
    ///
    /// # Safety
    ///
    /// `context` is open, and `max_entries` entries may be written at `entries`.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> Result<isize, Missing> {
        // SAFETY: as the caller promises; the size is that of one entry.
        unsafe { self._ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
    }

    /// Registers memory; null with `errno`.
    ///
    /// Rights of [`IBV_ACCESS_OPTIONAL_RANGE`], such as relaxed ordering, may be ignored: by the library where the kernel does not
    /// know them, and here where the library does not.
    ///
    /// # Safety
    ///
    /// `pd` stands. Whoever has `access` may use the `length` bytes at `addr` until the registration has ended: nobody takes them
    /// for anything else meanwhile, and they stay mapped (a device that pages on demand finds what is mapped there *then*).
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: ibv_access_flags,
    ) -> *mut ibv_mr {
        // SAFETY: as the caller promises. The rights are a few low bits: they are the same with a sign.
        unsafe {
            if access & IBV_ACCESS_OPTIONAL_RANGE != 0
                && let Ok(region) = self.ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access)
            {
                return region;
            }
            (self.ibv_reg_mr)(pd, addr, length, (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int)
        }
    }

    /// Makes a queue pair; null with `errno`. With `send_ops_flags` it has the extended way of posting.
    ///
    /// # Safety
    ///
    /// `context` is open; what the attributes point to belongs to it.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: as the caller promises; without newer attributes they are, up to there, those of the older function.
        unsafe {
            if (*qp_init_attr_ex).comp_mask == IBV_QP_INIT_ATTR_PD {
                return self.ibv_create_qp((*qp_init_attr_ex).pd, qp_init_attr_ex.cast::<ibv_qp_init_attr>());
            }
            match newer!(context, create_qp_ex) {
                Some(create) => create(context, qp_init_attr_ex),
                None => not_offered(),
            }
        }
    }
}

/// Makes a thread domain; null with `errno`, `EOPNOTSUPP` if the device has none.
///
/// # Safety
///
/// `context` is open and `init_attr` points to its structure.
pub unsafe fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!(context, alloc_td) {
            Some(alloc) => alloc(context, init_attr),
            None => not_offered(),
        }
    }
}

/// Ends a thread domain; refused while a parent domain uses it.
///
/// # Safety
///
/// `td` stands, and is not used any more.
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!((*td).context, dealloc_td) {
            Some(dealloc) => dealloc(td),
            None => EOPNOTSUPP,
        }
    }
}

/// Makes a parent domain: a protection domain with a thread domain in it. Null with `errno`. [`Verbs::ibv_dealloc_pd`] ends it.
///
/// # Safety
///
/// `context` is open, and what the attributes point to belongs to it.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!(context, alloc_parent_domain) {
            Some(alloc) => alloc(context, attr),
            None => not_offered(),
        }
    }
}

/// Gives advice about registered memory that the device pages in on demand.
///
/// # Safety
///
/// `pd` stands, and `num_sge` pieces stand at `sg_list`.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!((*pd).context, advise_mr) {
            Some(advise) => advise(pd, advice, flags, sg_list, num_sge),
            None => EOPNOTSUPP,
        }
    }
}

/// Makes an extended completion queue; null with `errno`, `EOPNOTSUPP` if the device has none.
///
/// # Safety
///
/// `context` is open, and what the attributes point to belongs to it.
pub unsafe fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!(context, create_cq_ex) {
            Some(create) => create(context, cq_attr),
            None => not_offered(),
        }
    }
}

/// The same queue for functions that know no extended ones.
#[inline]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Changes how far completions are held back to come together.
///
/// # Safety
///
/// `cq` stands and `attr` points to its structure.
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match newer!((*cq).context, modify_cq) {
            Some(modify) => modify(cq, attr),
            None => EOPNOTSUPP,
        }
    }
}

/// The port that RoCE's packets come from, made of what both ends of a path have in common: paths with other labels take
/// other ways through the network.
pub fn ibv_flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label & 0xf_c000) >> 14;
    0xc000 | (low ^ high) as u16
}
