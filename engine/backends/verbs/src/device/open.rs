//! An open device: its context and its protection domain.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Once;

use penstock_memory::fork::{Maker, PerProcess};
use penstock_verbs_sys::Verbs;
use penstock_verbs_sys::verbs::*;

use super::status::{check, refused};
use crate::adapter::AdapterError;

/// The names of the devices that libibverbs has a driver for.
pub(super) fn names(verbs: &'static Verbs) -> io::Result<Vec<String>> {
    let list = List::get(verbs)?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

struct List {
    verbs: &'static Verbs,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn get(verbs: &'static Verbs) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: writes the count to its place.
        let first = unsafe { verbs.ibv_get_device_list(&raw mut count) };
        match NonNull::new(first) {
            Some(first) => Ok(Self { verbs, first, count: usize::try_from(count).unwrap_or(0) }),
            None => Err(io::Error::last_os_error()),
        }
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list has so many entries and stands as long as `self` does.
        (0..self.count).map(|place| unsafe { self.first.add(place).read() })
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of this list; its name is a C string that stands as long as the list.
        let name = unsafe { CStr::from_ptr(self.verbs.ibv_get_device_name(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and devices that were opened from it stay.
        unsafe { self.verbs.ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// An open device with a protection domain. Whatever is made in it keeps it alive, and so is destroyed before.
pub(super) struct Device {
    pub(super) verbs: &'static Verbs,
    /// For errors: the name of the adapter.
    pub(super) adapter: String,
    context: NonNull<ibv_context>,
    domain: NonNull<ibv_pd>,
    pub(super) maker: Maker,
}

// SAFETY: every function of the library may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device of this name.
    pub(super) fn open(verbs: &'static Verbs, name: &str, adapter: &str) -> Result<Self, AdapterError> {
        keep_registrations_from_children(verbs);
        let list = List::get(verbs).map_err(|error| refused("ibv_get_device_list", adapter, error))?;
        let Some(device) = list.devices().find(|device| list.name(*device) == name) else {
            return Err(AdapterError::NotHere {
                what: adapter.to_owned(),
                why: "libibverbs does not find it".to_owned(),
                mend: "install ibverbs-providers (Debian's name), or look whether it was just taken away".to_owned(),
            });
        };
        // SAFETY: a device of a list that stands.
        let context = unsafe { verbs.ibv_open_device(device) };
        let context =
            NonNull::new(context).ok_or_else(|| refused("ibv_open_device", adapter, io::Error::last_os_error()))?;
        // SAFETY: the context is open.
        let domain = unsafe { verbs.ibv_alloc_pd(context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let error = refused("ibv_alloc_pd", adapter, io::Error::last_os_error());
            // SAFETY: the context is open and nothing was made in it.
            unsafe { verbs.ibv_close_device(context.as_ptr()) };
            return Err(error);
        };
        let opened = Self { verbs, adapter: adapter.to_owned(), context, domain, maker: Maker::this_process() };
        opened.make_events_wait_for_nobody()?;
        Ok(opened)
    }

    /// Its context, which stands as long as `self`.
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Its protection domain, which stands as long as `self`.
    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }

    /// Becomes readable when something happens to the device.
    pub(super) fn events(&self) -> i32 {
        // SAFETY: the context is open; its descriptor does not change.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    pub(super) fn sign(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the open context's, and stands as long as that.
        unsafe { BorrowedFd::borrow_raw(self.events()) }
    }

    /// How many interrupts completion queues can be dealt to.
    pub(super) fn interrupts(&self) -> i32 {
        // SAFETY: the context is open; the count does not change.
        unsafe { (*self.context.as_ptr()).num_comp_vectors }.max(1)
    }

    /// What it can do.
    pub(super) fn attributes(&self) -> Result<ibv_device_attr_ex, AdapterError> {
        let mut attributes = ibv_device_attr_ex::ZERO;
        // SAFETY: the context is open, nothing is asked in particular, and the attributes may be written.
        let answer = unsafe { self.verbs.ibv_query_device_ex(self.context(), std::ptr::null(), &raw mut attributes) };
        check("ibv_query_device", &self.adapter, answer)?;
        Ok(attributes)
    }

    /// How a port is.
    pub(super) fn port(&self, number: u8) -> Result<ibv_port_attr, AdapterError> {
        let mut port = ibv_port_attr::ZERO;
        // SAFETY: the context is open and the attributes may be written.
        let answer = unsafe { self.verbs.ibv_query_port(self.context(), number, &raw mut port) };
        check("ibv_query_port", &self.adapter, answer)?;
        Ok(port)
    }

    /// An address of a port.
    pub(super) fn gid(&self, port: u8, index: u8) -> Result<[u8; 16], AdapterError> {
        let mut gid = ibv_gid::ZERO;
        // SAFETY: the context is open and the address may be written.
        let answer = unsafe { self.verbs.ibv_query_gid(self.context(), port, i32::from(index), &raw mut gid) };
        check("ibv_query_gid", &self.adapter, answer)?;
        // SAFETY: all bits of an address mean something as bytes.
        Ok(unsafe { gid.raw })
    }

    fn make_events_wait_for_nobody(&self) -> Result<(), AdapterError> {
        do_not_wait(self.events()).map_err(|error| refused("fcntl", &self.adapter, error))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A forked child shares the descriptor: what it destroyed would be its parent's.
        if self.maker.is_ancestor() {
            return;
        }
        // SAFETY: whatever was made in the domain kept this alive and is destroyed, so nothing uses it.
        let answers = unsafe {
            [self.verbs.ibv_dealloc_pd(self.domain.as_ptr()), self.verbs.ibv_close_device(self.context.as_ptr())]
        };
        complain("closing it", &self.adapter, &answers);
    }
}

/// Reads from a descriptor answer at once from now on.
pub(super) fn do_not_wait(descriptor: i32) -> io::Result<()> {
    // SAFETY: a descriptor of ours; the flags are its own and one more.
    let answer = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Says in the log that something could not be destroyed: nobody is left who could be told otherwise.
pub(super) fn complain(what: &str, adapter: &str, answers: &[i32]) {
    for answer in answers.iter().filter(|answer| **answer != 0) {
        let error = io::Error::from_raw_os_error(answer.abs());
        tracing::error!("{adapter}: {what} failed: {error}; it is left behind until this process ends");
    }
}

/// Has registered memory stay where it is when this process forks, unless its kernel sees to that by itself. A child that wrote
/// to a page first would take it away from under the adapter otherwise.
fn keep_registrations_from_children(verbs: &'static Verbs) {
    static ONCE: PerProcess<Once> = PerProcess::new();
    ONCE.get(Once::new).call_once(|| {
        // SAFETY: asks nothing of its caller.
        let status = unsafe { verbs.ibv_is_fork_initialized() };
        if status == Ok(IBV_FORK_UNNEEDED) {
            return;
        }
        // SAFETY: to be called before anything is registered, and a device is opened before that.
        let answer = unsafe { verbs.ibv_fork_init() };
        if answer != 0 {
            let error = io::Error::from_raw_os_error(answer.abs());
            tracing::warn!("ibv_fork_init failed: {error}; a fork of this process may spoil transfers under way");
        }
    });
}
