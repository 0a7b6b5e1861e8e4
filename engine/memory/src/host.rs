//! The unsafe doors by which a caller's own memory comes in: one that believes the caller, and one that asks the kernel.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::MemoryError;
use crate::mapped::{self, PageAccess};
use crate::window::Window;

/// Memory of this process that Penstock did not allocate.
#[derive(Debug)]
pub struct HostMemory {
    window: Window,
}

impl HostMemory {
    /// Takes in `len` bytes at `base` without owning them.
    ///
    /// # Safety
    /// The range is readable and writable, belongs to one allocation or mapping, and stays so
    /// until the deregistration of its region was answered `Quiesced`, the engine was closed and
    /// did not name it, or its quarantine was released: until then peers, devices and copying threads may read and write it at any time.
    /// Meanwhile the caller's own references to the bytes must tolerate that.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Result<Self, MemoryError> {
        let base = checked(base, len)?;
        // SAFETY: the caller promises that the range stays valid for as long as it can be used.
        let window = unsafe { Window::new(base, len as u64, true, Arc::new(())) };
        Ok(Self { window })
    }

    /// The same for an address that may be wrong: the kernel is asked, in under a microsecond. What is not mapped, or cannot be
    /// read, is an error. Memory that is mapped read-only can be sent from; a registration with the right to write,
    /// and a plan that reads into it, are refused.
    ///
    /// From Linux 6.11 on the kernel answers for each page. Before, and where `/proc` is not to be seen, it answers for each whether
    /// it is mapped; what may be done there the first and the last page tell.
    ///
    /// What is unmapped or protected afterwards, against that promise, ends transfers with [`Cause::MemoryGone`](penstock_core::Cause::MemoryGone)
    /// where the kernel copies, and the process where its own threads do.
    ///
    /// # Safety
    /// As of [`HostMemory::from_raw`], from this call on, for what is mapped there now.
    pub unsafe fn probed(base: *mut u8, len: usize) -> Result<Self, MemoryError> {
        let base = checked(base, len)?;
        let first = base.as_ptr() as usize;
        let access = mapped::access(first, len);
        if access == PageAccess::Nothing {
            return Err(MemoryError::NotMapped { base: first as u64, bytes: len as u64 });
        }
        // SAFETY: the range may be read, and written if the kernel says so; the caller promises that it stays as it is.
        let window = unsafe { Window::new(base, len as u64, access == PageAccess::Write, Arc::new(())) };
        Ok(Self { window })
    }

    /// Owns `bytes`; they are freed with the last window over them.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, MemoryError> {
        Self::from_boxed(bytes.into_boxed_slice())
    }

    /// Owns `bytes`; they are freed with the last window over them.
    pub fn from_boxed(bytes: Box<[u8]>) -> Result<Self, MemoryError> {
        if bytes.is_empty() {
            return Err(MemoryError::Empty { what: "host memory" });
        }
        let owned = Owned(NonNull::from(Box::leak(bytes)));
        let (base, len) = (owned.0.cast::<u8>(), owned.0.len() as u64);
        // SAFETY: `owned` keeps the allocation until the last clone of the Arc is gone, and the
        // box was leaked, so no reference to its bytes is left.
        let window = unsafe { Window::new(base, len, true, Arc::new(owned)) };
        Ok(Self { window })
    }

    /// Only the `len` bytes at `offset` of it, or `None` if it has not got them. The rest is kept, and not
    /// registered with it.
    pub fn part(&self, offset: u64, len: u64) -> Option<Self> {
        if len == 0 {
            return None;
        }
        Some(Self { window: self.window.slice(offset, len)? })
    }

    pub fn window(&self) -> &Window {
        &self.window
    }
}

/// The base of memory that could exist.
fn checked(base: *mut u8, len: usize) -> Result<NonNull<u8>, MemoryError> {
    let base = NonNull::new(base).ok_or(MemoryError::NullBase)?;
    if len == 0 {
        return Err(MemoryError::Empty { what: "host memory" });
    }
    let first = base.as_ptr() as usize;
    // An object larger than isize::MAX cannot exist; pointer arithmetic relies on it.
    if first.checked_add(len).is_none() || isize::try_from(len).is_err() {
        return Err(MemoryError::AddressOverflow { base: first as u64, len: len as u64 });
    }
    Ok(base)
}

/// A leaked box, freed on drop; a pointer rather than a `Box`, which would claim exclusive access.
struct Owned(NonNull<[u8]>);

// SAFETY: it only holds the allocation until drop and never touches the bytes.
unsafe impl Send for Owned {}
// SAFETY: as for Send.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::leak in `from_boxed` and is given back exactly once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let mut byte = 0_u8;
        // SAFETY: every call is refused before the range could be used.
        unsafe {
            assert!(matches!(HostMemory::from_raw(ptr::null_mut(), 8), Err(MemoryError::NullBase)));
            assert!(matches!(HostMemory::from_raw(&raw mut byte, 0), Err(MemoryError::Empty { .. })));
            assert!(matches!(
                HostMemory::from_raw(&raw mut byte, usize::MAX),
                Err(MemoryError::AddressOverflow { .. })
            ));
        }
        assert!(HostMemory::from_vec(Vec::new()).is_err());
    }

    #[test]
    fn what_is_not_memory_is_refused_at_the_probed_door() {
        let bytes = [1_u8, 2, 3];
        // SAFETY: nothing is used but the array, which outlives its window and is not written.
        unsafe {
            for wrong in [8_usize, 1 << 46, usize::MAX >> 1] {
                let refused = HostMemory::probed(wrong as *mut u8, 4096);
                assert!(matches!(refused, Err(MemoryError::NotMapped { .. })), "{refused:?}");
            }
            assert!(matches!(HostMemory::probed(ptr::null_mut(), 8), Err(MemoryError::NullBase)));
            let taken = HostMemory::probed(bytes.as_ptr().cast_mut(), 3).unwrap();
            let mut out = [0; 3];
            taken.window().read_into(0, &mut out).unwrap();
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_part_has_its_own_bounds() {
        let whole = HostMemory::from_vec(b"abcdef".to_vec()).unwrap();
        let part = whole.part(1, 3).unwrap();
        assert_eq!((part.window().len(), part.window().base_address()), (3, whole.window().base_address() + 1));
        assert!(whole.part(4, 3).is_none() && whole.part(2, 0).is_none());
    }

    #[test]
    fn owned_memory_lives_as_long_as_a_window_over_it() {
        let window = HostMemory::from_vec(b"abcdef".to_vec()).unwrap().window().slice(2, 3).unwrap();
        let mut out = [0; 3];
        window.read_into(0, &mut out).unwrap();
        assert_eq!(&out, b"cde");
    }
}
