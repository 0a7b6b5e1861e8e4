//! An open device: its own table of functions, and the newer ones that stand in front of it in memory.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use super::completion::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use super::constants::ibv_advise_mr_advice;
use super::device::{ibv_device, ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input};
use super::memory::{ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use super::queue::{ibv_qp, ibv_qp_init_attr_ex, ibv_srq};
use super::work::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::layout::c_structs;
use crate::plain::Unused;

c_structs! {
    /// The functions of a device that are called without going through the library: what is hot.
    struct ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }

    /// An open device.
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    /// What stands around an [`ibv_context`] of a library that has newer verbs. New functions are added at its *beginning*, and `sz`
    /// says how many bytes there are, so that an older library's is shorter in front: it is never looked at as a whole.
    struct verbs_context, AtFront {
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Unused,
        read_counters: Unused,
        attach_counters_point_flow: Unused,
        create_counters: Unused,
        destroy_counters: Unused,
        reg_dm_mr: Unused,
        alloc_dm: Unused,
        free_dm: Unused,
        modify_flow_action_esp: Unused,
        destroy_flow_action: Unused,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: Unused,
        alloc_parent_domain:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: Unused,
        destroy_rwq_ind_table: Unused,
        create_rwq_ind_table: Unused,
        destroy_wq: Unused,
        modify_wq: Unused,
        create_wq: Unused,
        query_rt_values: Unused,
        create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
        priv_ as "priv": Unused,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const ibv_query_device_ex_input,
                *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Unused,
        abi_placeholder2 as "ABI_placeholder2": Unused,
        ibv_create_flow: Unused,
        abi_placeholder1 as "ABI_placeholder1": Unused,
        open_qp: Unused,
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
        get_srq_num: Unused,
        create_srq_ex: Unused,
        open_xrcd: Unused,
        close_xrcd: Unused,
        _abi_placeholder3 as "_ABI_placeholder3": u64,
        sz: usize,
        context: ibv_context,
    }
}

/// What `abi_compat` holds if a [`verbs_context`] stands around the context.
const EXTENDED: usize = usize::MAX;

/// A function of the [`verbs_context`] around `context`: none if the context has nothing around it, if what it has is older than
/// that function, or if the device does not offer it. `field` names it and is never called; `offset` is where it is.
///
/// # Safety
///
/// `context` is an open device of this process's libibverbs, and `offset` that of `field` in [`verbs_context`].
#[inline]
pub(crate) unsafe fn newer_at<F: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>(), "an optional function is one word") };
    // SAFETY: the context is open, as the caller promises.
    if unsafe { (*context).abi_compat }.addr() != EXTENDED {
        return None;
    }
    // May lie before what the library allocated, if that is older: nothing is read before its size allows it.
    let around = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<u8>();
    let size = around.wrapping_byte_add(offset_of!(verbs_context, sz)).cast::<usize>();
    // SAFETY: the mark says that a `verbs_context` stands around, and every one of them has its size right before the context.
    if unsafe { size.read() } < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: it is so large that it reaches from its end to this field, which is an optional function of that type.
    unsafe { around.wrapping_byte_add(offset).cast::<Option<F>>().read() }
}

/// [`newer_at`] for a field by its name. Unsafe like it.
macro_rules! newer {
    ($context:expr, $field:ident) => {
        $crate::verbs::context::newer_at(
            $context,
            ::std::mem::offset_of!($crate::verbs::context::verbs_context, $field),
            |around| around.$field,
        )
    };
}
pub(crate) use newer;

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::verbs::{ibv_advise_mr, ibv_alloc_td, ibv_td_init_attr};

    extern "C" fn advise(_: *mut ibv_pd, _: ibv_advise_mr_advice, _: u32, _: *mut ibv_sge, _: u32) -> c_int {
        7
    }

    extern "C" fn alloc_td(_: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
        ptr::without_provenance_mut(16)
    }

    /// A context with everything around it, of a library that knows the last `size` bytes of it.
    fn around(size: usize) -> Box<verbs_context> {
        let mut around = Box::new(verbs_context::ZERO);
        around.sz = size;
        around.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        around.advise_mr = Some(advise);
        around.alloc_td = Some(alloc_td);
        around
    }

    /// Its context, by a pointer that reaches around it, as one of the library does.
    fn context(around: &mut verbs_context) -> *mut ibv_context {
        ptr::from_mut(around).wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }

    #[test]
    fn a_newer_function_is_called_if_the_library_knows_it_and_the_device_offers_it() {
        let mut whole = around(size_of::<verbs_context>());
        let mut domain = ibv_pd { context: context(&mut whole), handle: 0 };
        // SAFETY: the context stands, with all of a `verbs_context` around it; the functions look at nothing.
        unsafe {
            assert_eq!(ibv_advise_mr(&mut domain, 0, 0, ptr::null_mut(), 0), 7);
            assert_eq!(ibv_alloc_td(domain.context, ptr::null_mut()).addr(), 16);
        }
        whole.advise_mr = None;
        domain.context = context(&mut whole);
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_advise_mr(&mut domain, 0, 0, ptr::null_mut(), 0) }, libc::EOPNOTSUPP);
    }

    #[test]
    fn what_lies_before_the_end_of_an_older_library_is_not_looked_at() {
        // Knows thread domains, and nothing that stands further in front.
        let known = size_of::<verbs_context>() - offset_of!(verbs_context, alloc_td);
        let mut domain = ibv_pd::ZERO;
        for (size, advised, allocated) in [(known, libc::EOPNOTSUPP, 16), (known - 1, libc::EOPNOTSUPP, 0)] {
            let mut older = around(size);
            domain.context = context(&mut older);
            // SAFETY: the context stands, with all of a `verbs_context` around it; the functions look at nothing.
            unsafe {
                assert_eq!(ibv_advise_mr(&mut domain, 0, 0, ptr::null_mut(), 0), advised);
                assert_eq!(ibv_alloc_td(domain.context, ptr::null_mut()).addr(), allocated);
            }
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_context_with_nothing_around_it_has_no_newer_functions() {
        let mut alone = ibv_context::ZERO;
        // SAFETY: the context stands, and does not say that anything is around it.
        assert!(unsafe { ibv_alloc_td(&mut alone, ptr::null_mut()) }.is_null());
    }
}
