//! Registered memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use penstock_memory::{DeviceWindow, Window};
use penstock_verbs_sys::verbs::*;

use super::open::{Device, complain};
use super::status::refused;
use crate::adapter::{AccessFlags, AdapterError, DeviceReach, Registration, Sge};

/// How memory is registered on an adapter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// The adapter pages it in when it is first touched, instead of keeping it where it is.
    pub(super) is_on_demand: bool,
}

/// The registrations of an adapter that stand, by their local keys.
#[derive(Default)]
pub(super) struct Registrations {
    standing: Mutex<HashMap<u32, Weak<Registered>>>,
}

impl Registrations {
    /// The registration of this key.
    pub(super) fn find(&self, key: u32) -> Option<Arc<Registered>> {
        self.lock().get(&key)?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Weak<Registered>>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
enum What {
    /// Memory of this process, kept mapped.
    Window(Window),
    /// Memory of another device, kept.
    Device { _memory: DeviceWindow },
}

pub(super) struct Registered {
    device: Arc<Device>,
    registrations: Arc<Registrations>,
    region: NonNull<ibv_mr>,
    what: What,
    local_key: u32,
    remote_key: u32,
    manner: &'static str,
}

// SAFETY: the keys do not change, the window may be used from any thread, and so may the library.
unsafe impl Send for Registered {}
// SAFETY: as for Send.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn window(
        device: &Arc<Device>,
        registrations: &Arc<Registrations>,
        window: &Window,
        access: AccessFlags,
        manner: Manner,
    ) -> Result<Arc<Self>, AdapterError> {
        if !window.is_writable() && (access.write || access.land) {
            return Err(refused("ibv_reg_mr", &device.adapter, io::Error::from_raw_os_error(libc::EACCES)));
        }
        let len = usize::try_from(window.len()).expect("a window is in this process's memory");
        let on_demand = if manner.is_on_demand { IBV_ACCESS_ON_DEMAND } else { 0 };
        let rights = rights(access) | on_demand;
        let register = |rights| {
            // SAFETY: the window keeps its bytes mapped as long as a clone of it lives, and this registration has one until it
            // has ended. Bytes of a window may change at any time.
            unsafe { device.verbs.ibv_reg_mr(device.domain(), window.as_ptr().cast::<c_void>(), len, rights) }
        };
        // Relaxed order lets a bus with several ways to memory use them all. What a receive says is behind it all the same:
        // completions are written in order.
        let (region, manner) = match NonNull::new(register(rights | IBV_ACCESS_RELAXED_ORDERING)) {
            Some(region) if manner.is_on_demand => (Some(region), "paged in on demand"),
            Some(region) => (Some(region), "pinned"),
            // A driver may refuse what it need not know, and the one together with the other.
            None if io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM) => {
                let manner =
                    if manner.is_on_demand { "paged in on demand, in strict order" } else { "pinned, in strict order" };
                (NonNull::new(register(rights)), manner)
            }
            None => (None, ""),
        };
        let region = region.ok_or_else(|| refused("ibv_reg_mr", &device.adapter, io::Error::last_os_error()))?;
        Ok(Self::keep(device, registrations, region, What::Window(window.clone()), manner))
    }

    /// Registers memory of another device; its bytes have the addresses that they have for that.
    pub(super) fn device(
        device: &Arc<Device>,
        registrations: &Arc<Registrations>,
        memory: &DeviceWindow,
        by: DeviceReach<'_>,
        access: AccessFlags,
    ) -> Result<Arc<Self>, AdapterError> {
        let (base, rights) = (memory.base_address(), rights(access));
        let no_memory = || refused("a registration", &device.adapter, io::Error::from_raw_os_error(libc::EINVAL));
        let len = usize::try_from(memory.len()).map_err(|_| no_memory())?;
        let not_here = |why: String, mend: &str| AdapterError::NotHere {
            what: format!("memory of a device on {}", device.adapter),
            why,
            mend: mend.to_owned(),
        };
        // In relaxed order where the driver takes that, as memory of the host is. Messages on one queue, which say that bytes are there, come in order; when
        // the device sees those bytes is for whoever says it.
        let (call, region) = match by {
            DeviceReach::DmaBuf { descriptor, offset } => {
                let descriptor = descriptor.as_raw_fd();
                let register = |rights: ibv_access_flags| {
                    let rights = rights as i32;
                    // SAFETY: the domain stands. The kernel keeps the memory until the registration has ended, whatever becomes of the descriptor.
                    unsafe { device.verbs.ibv_reg_dmabuf_mr(device.domain(), offset, len, base, descriptor, rights) }
                        .map_err(|missing| not_here(missing.to_string(), "install a newer libibverbs1"))
                };
                let relaxed = NonNull::new(register(rights | IBV_ACCESS_RELAXED_ORDERING)?);
                let region = if relaxed.is_some() { relaxed } else { NonNull::new(register(rights)?) };
                ("ibv_reg_dmabuf_mr", region)
            }
            DeviceReach::PeerMemory => {
                let address = ptr::without_provenance_mut::<c_void>(base as usize);
                // SAFETY: the address is looked up in the kernel, by the driver of the device whose memory it is; nobody reads there. The window, which
                // this registration keeps, keeps the memory.
                let register = |rights| unsafe { device.verbs.ibv_reg_mr(device.domain(), address, len, rights) };
                let relaxed = NonNull::new(register(rights | IBV_ACCESS_RELAXED_ORDERING));
                ("ibv_reg_mr", relaxed.or_else(|| NonNull::new(register(rights))))
            }
        };
        let Some(region) = region else {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::ENOTTY) => {
                    not_here(format!("its driver takes no dma-buf ({error})"), "its bytes go through host memory")
                }
                // An address that no module knows is one of this process, where nothing may be done.
                Some(libc::EFAULT) if matches!(by, DeviceReach::PeerMemory) => {
                    not_here(format!("no module knows its address ({error})"), "`modprobe nvidia-peermem`, as root")
                }
                _ => refused(call, &device.adapter, error),
            });
        };
        let manner = match by {
            DeviceReach::DmaBuf { .. } => "a dma-buf",
            DeviceReach::PeerMemory => "peer memory",
        };
        Ok(Self::keep(device, registrations, region, What::Device { _memory: memory.clone() }, manner))
    }

    fn keep(
        device: &Arc<Device>,
        registrations: &Arc<Registrations>,
        region: NonNull<ibv_mr>,
        what: What,
        manner: &'static str,
    ) -> Arc<Self> {
        // SAFETY: the registration was just made, and its keys do not change.
        let (local_key, remote_key) = unsafe { ((*region.as_ptr()).lkey, (*region.as_ptr()).rkey) };
        let (device, kept) = (Arc::clone(device), Arc::clone(registrations));
        let made = Arc::new(Self { device, registrations: kept, region, what, local_key, remote_key, manner });
        registrations.lock().insert(local_key, Arc::downgrade(&made));
        made
    }

    /// Whether this process may read the bytes of a piece: they are in the window that this keeps mapped.
    pub(super) fn holds(&self, sge: &Sge) -> bool {
        let What::Window(window) = &self.what else { return false };
        let offset = sge.address.checked_sub(window.base_address());
        sge.key == self.local_key
            && offset.and_then(|offset| offset.checked_add(u64::from(sge.bytes))).is_some_and(|end| end <= window.len())
    }
}

/// What an adapter may do with memory, in its words. What is written from afar has to be writable from here.
fn rights(access: AccessFlags) -> ibv_access_flags {
    let mut rights = 0;
    if access.read {
        rights |= IBV_ACCESS_REMOTE_READ;
    }
    if access.write {
        rights |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
    }
    if access.land {
        rights |= IBV_ACCESS_LOCAL_WRITE;
    }
    rights
}

impl Registration for Registered {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }

    fn manner(&self) -> &'static str {
        self.manner
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.device.maker.is_ancestor() {
            return;
        }
        // Before the key is free to be another's.
        self.registrations.lock().remove(&self.local_key);
        // SAFETY: the registration stands, and this is the last that knows it. Its window is dropped after this.
        let answer = unsafe { self.device.verbs.ibv_dereg_mr(self.region.as_ptr()) };
        if answer != 0 {
            complain("ending a registration", &self.device.adapter, &[answer]);
            // The card may go on reaching the memory, which nobody may get then.
            std::mem::forget(self.what.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_peers_write_this_side_may_write() {
        assert_eq!(rights(AccessFlags::default()), 0);
        assert_eq!(rights(AccessFlags { read: true, ..AccessFlags::default() }), IBV_ACCESS_REMOTE_READ);
        let written = rights(AccessFlags { write: true, ..AccessFlags::default() });
        assert_eq!(written, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(rights(AccessFlags { land: true, ..AccessFlags::default() }), IBV_ACCESS_LOCAL_WRITE);
    }
}
