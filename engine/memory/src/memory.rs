//! Memory of either kind: what this processor can touch, and what it cannot.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::error::{AccessError, MemoryError};
use crate::window::{Window, check_bounds};

/// Registered memory. Only [`Window`]s can be read, written, or given to a copy kernel or a socket: code that has not asked which of the two
/// it has does not compile.
#[derive(Debug, Clone)]
pub enum Memory {
    /// This processor reads and writes it.
    Host(Window),
    /// Only the device it belongs to does.
    Device(DeviceWindow),
}

/// Which device memory belongs to: its UUID, by which every process and container knows it, whatever number it has there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub [u8; 16]);

/// A range of a device's memory with its bounds and its right to be written, kept by whoever owns it for as long as any window
/// over it exists. It has an address, and no way to read or write what is there.
#[derive(Clone)]
pub struct DeviceWindow {
    device: DeviceId,
    base: u64,
    len: u64,
    writable: bool,
    /// Which use of its addresses it is, where whoever made it can tell; else 0.
    number: u64,
    keep: Arc<dyn Any + Send + Sync>,
}

impl DeviceWindow {
    /// Names `len` bytes of a device at `base`.
    ///
    /// # Safety
    /// For as long as `keep` or a clone of it lives, `base .. base + len` is memory of that device, of one allocation, which the
    /// device may read (and write where `writable`).
    pub unsafe fn new(
        device: DeviceId,
        (base, len): (u64, u64),
        writable: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { device, base, len, writable, number: 0, keep }
    }

    /// Tells this use of its addresses from earlier ones.
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// What keeps the memory, for whoever made it.
    pub fn keep<T: Any>(&self) -> Option<&T> {
        let keep: &(dyn Any + Send + Sync) = &*self.keep;
        keep.downcast_ref()
    }

    /// Bytes in the window.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether bytes may be written through this window.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The first address, as the device has it.
    #[inline]
    pub fn base_address(&self) -> u64 {
        self.base
    }

    /// The address of `len` bytes at `offset`, for whoever hands it to the device.
    #[inline]
    pub fn address_of(&self, offset: u64, len: u64) -> Result<u64, AccessError> {
        check_bounds(self.len, offset, len)?;
        Ok(self.base + offset)
    }

    /// The part of `len` bytes at `offset`, or `None` where it leaves the window.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        check_bounds(self.len, offset, len).ok()?;
        Some(Self { base: self.base + offset, len, keep: Arc::clone(&self.keep), ..*self })
    }

    /// The same bytes without the right to write them.
    pub fn read_only(&self) -> Self {
        Self { writable: false, ..self.clone() }
    }
}

/// Memory of a device, as it is registered.
#[derive(Debug)]
pub struct DeviceMemory {
    window: DeviceWindow,
}

impl DeviceMemory {
    /// Takes in `len` bytes of a device at `base` without owning them. Who knows a driver asks it what is there before.
    ///
    /// # Safety
    /// The range is memory of that device, belongs to one allocation, and stays so until the deregistration of its region was answered
    /// `Quiesced`, the engine was closed and did not name it, or its quarantine was released: until then the device may read and write it at any time.
    pub unsafe fn from_raw(device: DeviceId, base: u64, len: u64) -> Result<Self, MemoryError> {
        // SAFETY: the caller promises that the range stays what it is for as long as it can be used.
        unsafe { Self::kept(device, (base, len), Arc::new(())) }
    }

    /// The same of memory that lives as long as `keep`, which [`DeviceWindow::keep`] gives back.
    ///
    /// # Safety
    /// As of [`DeviceWindow::new`].
    pub unsafe fn kept(
        device: DeviceId,
        (base, len): (u64, u64),
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, MemoryError> {
        if base == 0 {
            return Err(MemoryError::NullBase);
        }
        if len == 0 {
            return Err(MemoryError::Empty { what: "device memory" });
        }
        if base.checked_add(len).is_none() {
            return Err(MemoryError::AddressOverflow { base, len });
        }
        // SAFETY: the caller promises the same.
        let window = unsafe { DeviceWindow::new(device, (base, len), true, keep) };
        Ok(Self { window })
    }

    /// As [`DeviceWindow::numbered`].
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        Self { window: self.window.numbered(number) }
    }

    /// As [`HostMemory::part`](crate::HostMemory::part).
    pub fn part(&self, offset: u64, len: u64) -> Option<Self> {
        if len == 0 {
            return None;
        }
        Some(Self { window: self.window.slice(offset, len)? })
    }

    pub fn window(&self) -> &DeviceWindow {
        &self.window
    }
}

impl Memory {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Self::Host(window) => window.len(),
            Self::Device(window) => window.len(),
        }
    }

    /// True when it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether bytes may be written to it.
    #[inline]
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Host(window) => window.is_writable(),
            Self::Device(window) => window.is_writable(),
        }
    }

    /// The first address, as an opaque number: for announcing, hashing and comparing.
    #[inline]
    pub fn base_address(&self) -> u64 {
        match self {
            Self::Host(window) => window.base_address(),
            Self::Device(window) => window.base_address(),
        }
    }

    /// The address of `len` bytes at `offset`, for whoever hands it to a device.
    #[inline]
    pub fn address_of(&self, offset: u64, len: u64) -> Result<u64, AccessError> {
        match self {
            Self::Host(window) => window.address_of(offset, len),
            Self::Device(window) => window.address_of(offset, len),
        }
    }

    /// The part of `len` bytes at `offset`, or `None` where it leaves the memory.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        match self {
            Self::Host(window) => window.slice(offset, len).map(Self::Host),
            Self::Device(window) => window.slice(offset, len).map(Self::Device),
        }
    }

    /// Which use of its addresses it is: what lies there may be freed, and something else allocated, behind a registration's back.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Device(window) => window.number,
        }
    }

    /// What a processor can touch, if it can.
    #[inline]
    pub fn host(&self) -> Option<&Window> {
        match self {
            Self::Host(window) => Some(window),
            Self::Device(_) => None,
        }
    }

    /// Whose memory it is, if it is a device's.
    pub fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Host(_) => None,
            Self::Device(window) => Some(window.device()),
        }
    }
}

impl From<Window> for Memory {
    fn from(window: Window) -> Self {
        Self::Host(window)
    }
}

impl From<DeviceWindow> for Memory {
    fn from(window: DeviceWindow) -> Self {
        Self::Device(window)
    }
}

impl fmt::Debug for DeviceWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, base, len, writable, .. } = self;
        let right = if *writable { "writable" } else { "read-only" };
        write!(f, "DeviceWindow({len} B at {base:#x} of {device}, {right})")
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (place, byte) in self.0.iter().enumerate() {
            let dash = if matches!(place, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostMemory;

    const DEVICE: DeviceId = DeviceId([0x5a; 16]);

    fn window(len: u64) -> DeviceWindow {
        // SAFETY: nobody touches it.
        unsafe { DeviceWindow::new(DEVICE, (0x7000_0000_0000, len), true, Arc::new(())) }
    }

    #[test]
    fn parts_of_a_devices_memory_are_within_its_bounds() {
        let whole = window(4096);
        let part = whole.slice(1024, 3072).unwrap();
        assert_eq!((part.base_address(), part.len(), part.device()), (0x7000_0000_0400, 3072, DEVICE));
        assert_eq!(part.address_of(3072, 0), Ok(0x7000_0000_1000));
        assert_eq!(part.address_of(1, 3072), Err(AccessError::OutOfBounds { offset: 1, len: 3072, window_len: 3072 }));
        for (offset, len) in [(1024, 3073), (4097, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(whole.slice(offset, len).is_none(), "{offset}, {len}");
        }
        assert!(
            whole.is_writable()
                && !whole.read_only().is_writable()
                && !whole.read_only().slice(0, 1).unwrap().is_writable()
        );
    }

    #[test]
    fn memory_is_kept_as_long_as_a_part_of_it() {
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(());
        // SAFETY: nobody touches it.
        let whole = unsafe { DeviceWindow::new(DEVICE, (1 << 40, 64), false, Arc::clone(&keep)) };
        let part = Memory::from(whole.slice(8, 8).unwrap());
        drop(whole);
        assert_eq!(Arc::strong_count(&keep), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&keep), 1);
    }

    #[test]
    fn only_the_processors_own_memory_has_a_window() {
        let host = Memory::from(HostMemory::from_vec(vec![0; 64]).unwrap().window().clone());
        assert_eq!((host.len(), host.host().map(Window::len), host.device()), (64, Some(64), None));
        let device = Memory::from(window(64));
        assert_eq!((device.len(), device.host().map(Window::len), device.device()), (64, None, Some(DEVICE)));
        assert!(device.is_writable() && !device.is_empty());
    }

    #[test]
    fn a_device_is_named_as_its_maker_names_it() {
        let id = DeviceId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(id.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        let text = format!("{:?}", window(64));
        assert!(text.starts_with("DeviceWindow(64 B at 0x700000000000 of GPU-5a5a5a5a-"), "{text}");
    }
}
