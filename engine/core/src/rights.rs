//! What a peer may do to a region.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The rights a region's owner gives to its peers. The owner itself may always do both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub struct Rights(u8);

impl Rights {
    /// Peers may do nothing; the region is for this engine's own side of a plan.
    pub const NONE: Self = Self(0);
    pub const READ: Self = Self(1);
    pub const WRITE: Self = Self(2);
    /// Peers may read and write.
    pub const READ_WRITE: Self = Self(3);

    /// Whether a peer may read.
    pub const fn allows_read(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether a peer may write.
    pub const fn allows_write(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Unknown bits are dropped: a right this release does not know is a right it does not give.
impl From<u8> for Rights {
    fn from(bits: u8) -> Self {
        Self(bits & 3)
    }
}

impl From<Rights> for u8 {
    fn from(rights: Rights) -> u8 {
        rights.0
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.allows_read(), self.allows_write()) {
            (false, false) => "none",
            (true, false) => "read",
            (false, true) => "write",
            (true, true) => "read-write",
        })
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
