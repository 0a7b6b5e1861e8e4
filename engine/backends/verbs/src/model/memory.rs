//! Registered memory, and the bytes that go between it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use penstock_core::{Direction, Span};
use penstock_memory::copy::{Hint, scatter};
use penstock_memory::{DeviceWindow, HostMemory, Window};

use crate::adapter::{AccessFlags, Sge};

/// What one registration is.
#[derive(Clone)]
pub(super) struct Registered {
    /// By which requests name its first byte.
    base: u64,
    /// As this process has it.
    window: Window,
    access: AccessFlags,
    _kept: Option<Arc<DeviceMapping>>,
}

/// Memory of a device, as a card has it.
struct DeviceMapping {
    /// Null: it is this process's own.
    place: *mut c_void,
    bytes: usize,
    _memory: DeviceWindow,
}

// SAFETY: it is an address range; bytes are read and written through a window.
unsafe impl Send for DeviceMapping {}
// SAFETY: as for Send.
unsafe impl Sync for DeviceMapping {}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        if self.place.is_null() {
            return;
        }
        // SAFETY: it was mapped by `Registered::dma_buf`, and no window over it is in use: what a network still had for it was placed before.
        unsafe { libc::munmap(self.place, self.bytes) };
    }
}

impl Registered {
    pub(super) fn host(window: &Window, access: AccessFlags) -> Self {
        Self { base: window.base_address(), window: window.clone(), access, _kept: None }
    }

    /// Maps what a descriptor is of, from its position on: where a dma-buf begins there the memory begins at `offset`. A file stands for a dma-buf here, and
    /// one of those cannot be mapped.
    pub(super) fn dma_buf(
        memory: &DeviceWindow,
        (descriptor, offset): (BorrowedFd<'_>, u64),
        access: AccessFlags,
    ) -> io::Result<Self> {
        const PAGE: u64 = 4096;
        let (into, bytes) = (offset % PAGE, usize::try_from(offset % PAGE + memory.len()).unwrap_or(usize::MAX));
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let place = unsafe {
            let begins = libc::lseek(descriptor.as_raw_fd(), 0, libc::SEEK_CUR);
            let from = begins + (offset - into) as libc::off_t;
            libc::mmap(ptr::null_mut(), bytes, rights, libc::MAP_SHARED, descriptor.as_raw_fd(), from)
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let kept = DeviceMapping { place, bytes, _memory: memory.clone() };
        // SAFETY: it is mapped until the registration, which keeps it, has ended.
        let mapped = unsafe { HostMemory::from_raw(place.cast::<u8>().add(into as usize), bytes - into as usize) };
        let window = mapped.map_err(io::Error::other)?.window().clone();
        Ok(Self { base: memory.base_address(), window, access, _kept: Some(Arc::new(kept)) })
    }

    /// Memory of a device that is this process's own.
    pub(super) fn peer_memory(memory: &DeviceWindow, access: AccessFlags) -> io::Result<Self> {
        let (base, bytes) = (memory.base_address(), memory.len() as usize);
        // SAFETY: whoever has the model reach such memory vouches for it, for as long as a window over it is kept.
        let window = unsafe { HostMemory::from_raw(ptr::with_exposed_provenance_mut(base as usize), bytes) };
        let window = window.map_err(io::Error::other)?.window().clone();
        let kept = DeviceMapping { place: ptr::null_mut(), bytes: 0, _memory: memory.clone() };
        Ok(Self { base, window, access, _kept: Some(Arc::new(kept)) })
    }
}

/// All registrations of an adapter, by both kinds of key.
#[derive(Default)]
pub(super) struct Registrations {
    local: BTreeMap<u32, Registered>,
    remote: BTreeMap<u32, Registered>,
}

/// What is to be done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryUse {
    /// This side's adapter takes bytes from it.
    Source,
    /// This side's adapter puts bytes there.
    Landing,
    /// A peer's adapter reads it.
    RemoteRead,
    /// A peer's adapter writes it.
    RemoteWrite,
}

impl Registrations {
    pub(super) fn insert(&mut self, local: u32, remote: u32, registered: Registered) {
        self.local.insert(local, registered.clone());
        self.remote.insert(remote, registered);
    }

    pub(super) fn remove(&mut self, local: u32, remote: u32) -> [Option<Registered>; 2] {
        [self.local.remove(&local), self.remote.remove(&remote)]
    }

    /// Peers' keys of what overlaps this memory mean nothing any more.
    pub(super) fn refuse(&mut self, memory: &Window) {
        let its = memory.base_address()..memory.base_address() + memory.len();
        self.remote.retain(|_, Registered { window, .. }| {
            its.end <= window.base_address() || window.base_address() + window.len() <= its.start
        });
    }

    pub(super) fn len(&self) -> usize {
        self.local.len()
    }

    /// The memory that a key names, if it may be used so in all of the range.
    pub(super) fn range(&self, using: MemoryUse, key: u32, address: u64, bytes: u64) -> Option<Window> {
        let table = match using {
            MemoryUse::Source | MemoryUse::Landing => &self.local,
            MemoryUse::RemoteRead | MemoryUse::RemoteWrite => &self.remote,
        };
        let Registered { base, window, access, .. } = table.get(&key)?;
        let is_allowed = match using {
            MemoryUse::Source => true,
            MemoryUse::Landing => access.land,
            MemoryUse::RemoteRead => access.read,
            MemoryUse::RemoteWrite => access.write,
        };
        let offset = address.checked_sub(*base)?;
        is_allowed.then(|| window.slice(offset, bytes))?
    }
}

/// The bytes of a request on its own side: registered pieces, or what was taken when it was posted.
pub(super) enum MessagePayload {
    Pieces(Vec<Sge>),
    Taken(Vec<u8>),
}

impl MessagePayload {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Pieces(sges) => sges.iter().map(|sge| u64::from(sge.bytes)).sum(),
            Self::Taken(bytes) => bytes.len() as u64,
        }
    }

    /// Moves `bytes` of it, from `at` on, to or from the memory `there`, which is as long. None if this side's adapter refuses.
    pub(super) fn exchange(
        &self,
        own: &Registrations,
        direction: Direction,
        at: u64,
        bytes: u64,
        there: &Window,
    ) -> Option<()> {
        let sges = match self {
            Self::Taken(taken) => {
                let part = taken.get(at as usize..(at + bytes) as usize)?;
                return there.write_from(0, part).ok();
            }
            Self::Pieces(sges) => sges,
        };
        let using = if direction == Direction::Write { MemoryUse::Source } else { MemoryUse::Landing };
        let (mut begins, mut done) = (0, 0);
        for sge in sges {
            let ends = begins + u64::from(sge.bytes);
            let from = at + done;
            if done < bytes && from < ends {
                let len = (bytes - done).min(ends - from);
                let here = own.range(using, sge.key, sge.address + (from - begins), len)?;
                copy(&here, &there.slice(done, len)?, direction, len)?;
                done += len;
            }
            begins = ends;
        }
        (done == bytes).then_some(())
    }

    /// Copies a part of it, for what is placed later.
    pub(super) fn copied(&self, own: &Registrations, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let buffer = HostMemory::from_vec(vec![0; bytes as usize]).ok()?;
        self.exchange(own, Direction::Write, at, bytes, buffer.window())?;
        let mut copied = vec![0; bytes as usize];
        buffer.window().read_into(0, &mut copied).ok()?;
        Some(copied)
    }
}

fn copy(here: &Window, there: &Window, direction: Direction, len: u64) -> Option<()> {
    let span = Span { local: 0, remote: 0, len };
    scatter(here, there, direction, &[span], Hint::Cached).ok().map(drop)
}
