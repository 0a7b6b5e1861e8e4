//! Memory as others are given it: descriptors to pass on, and places for rings.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use penstock_ring::SharedRange;

use crate::error::MemoryError;
use crate::memfd;
use crate::pages::PageKind;
use crate::pool::Pool;
use crate::segment::Segment;

impl Segment {
    /// The segment as a place for rings, gates and counters. It stays mapped as long as the place.
    pub fn range(&self) -> SharedRange {
        let window = self.window().clone();
        let base = NonNull::new(window.as_ptr()).expect("a mapping is never at address zero");
        let (len, writable) = (window.len() as usize, window.is_writable());
        // SAFETY: the window covers `len` mapped bytes, page-aligned, and keeps them mapped for as
        // long as it lives, which is as long as the place; nobody makes references to the bytes
        // other than the atomic words of places.
        unsafe {
            if writable {
                SharedRange::new(base, len, Arc::new(window))
            } else {
                SharedRange::read_only(base, len, Arc::new(window))
            }
        }
    }

    /// A descriptor of the segment of its own, to be sent to a peer.
    pub fn share(&self) -> Result<Arc<OwnedFd>, MemoryError> {
        duplicate(self, "a shared segment")
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd()
    }
}

impl Pool {
    /// A descriptor of the memory that the pool began with, to be sent to a peer.
    pub fn share(&self) -> Result<Arc<OwnedFd>, MemoryError> {
        duplicate(self.fd(), "a pool")
    }
}

fn duplicate(of: impl AsFd, what: &'static str) -> Result<Arc<OwnedFd>, MemoryError> {
    let copy = of.as_fd().try_clone_to_owned();
    copy.map(Arc::new).map_err(|source| memfd::system_error("dup", what, 0, source))
}

impl PageKind {
    /// The stable number of this kind, for announcing it to peers.
    pub const fn code(self) -> u8 {
        match self {
            Self::Small => 0,
            Self::Transparent => 1,
            Self::HugeTlb => 2,
        }
    }

    /// The kind with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Small),
            1 => Some(Self::Transparent),
            2 => Some(Self::HugeTlb),
            _ => None,
        }
    }
}
