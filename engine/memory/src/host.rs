//! The one unsafe door by which a caller's own memory comes in.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::MemoryError;
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
        let base = NonNull::new(base).ok_or(MemoryError::NullBase)?;
        if len == 0 {
            return Err(MemoryError::Empty { what: "host memory" });
        }
        let first = base.as_ptr() as usize;
        // An object larger than isize::MAX cannot exist; pointer arithmetic relies on it.
        if first.checked_add(len).is_none() || isize::try_from(len).is_err() {
            return Err(MemoryError::AddressOverflow { base: first as u64, len: len as u64 });
        }
        // SAFETY: the caller promises that the range stays valid for as long as it can be used.
        let window = unsafe { Window::new(base, len as u64, true, Arc::new(())) };
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

    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }
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
