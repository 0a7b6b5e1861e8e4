//! A peer's memory, as this process reaches it.

use penstock_memory::Window;

/// A peer's memory, as this process reaches it. Which way it is was decided when the region was
/// imported; a lane does not choose again.
#[derive(Debug, Clone)]
pub enum RemoteMemory {
    /// It is mapped here: this processor copies.
    Mapped(Window),
}

impl RemoteMemory {
    /// Bytes it has.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(window) => window.len(),
        }
    }

    /// Whether [`crate::Lane::post`] has moved the bytes when it returns.
    pub fn is_synchronous(&self) -> bool {
        match self {
            Self::Mapped(_) => true,
        }
    }

    /// The way, in a word: what users and logs are shown.
    pub fn way(&self) -> &'static str {
        match self {
            Self::Mapped(_) => "mapped",
        }
    }
}

impl From<Window> for RemoteMemory {
    fn from(window: Window) -> Self {
        Self::Mapped(window)
    }
}
