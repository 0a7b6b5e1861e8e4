//! What a pool should be, before it is made.

use penstock_core::Rights;

use crate::memory::DeviceId;

/// Block size of a pool that asked for none, in bytes (or the whole pool where that is smaller).
pub const DEFAULT_BLOCK_BYTES: u64 = 64 << 10;

/// Which pages should back a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// Transparent 2 MiB pages where the system allows them to shared memory that asks, else
    /// base pages.
    #[default]
    Auto,
    /// Base pages only, even where the system would give larger ones by itself.
    Small,
    /// Reserved 2 MiB pages, else transparent ones, else base pages. Never an error: what was
    /// got, and why not more, is in the pool's [`PagesReport`](crate::PagesReport).
    Huge,
}

/// A pool to be made: `PoolSpec::host(bytes).block(bytes).label("kv")`.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: Option<u64>,
    pub(crate) label: String,
    pub(crate) pages: Pages,
    pub(crate) rights: Rights,
    pub(crate) node: Option<u32>,
}

/// Where the memory of a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device(DeviceId),
}

impl PoolSpec {
    /// A pool of `bytes` bytes of host memory.
    pub fn host(bytes: u64) -> Self {
        Self {
            place: Place::Host,
            bytes,
            block_bytes: None,
            label: String::new(),
            pages: Pages::default(),
            rights: Rights::READ_WRITE,
            node: None,
        }
    }

    /// The label that was given.
    pub fn label_text(&self) -> &str {
        &self.label
    }

    /// A pool of `bytes` bytes of a device's memory, made by `Engine::device_pool`. Pages and node are of no meaning there.
    pub fn device(device: DeviceId, bytes: u64) -> Self {
        Self { place: Place::Device(device), ..Self::host(bytes) }
    }

    /// The device that it is to be on, if it is.
    pub fn device_id(&self) -> Option<DeviceId> {
        match self.place {
            Place::Host => None,
            Place::Device(device) => Some(device),
        }
    }

    /// Its bytes, before they are rounded up.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a block. Default: [`DEFAULT_BLOCK_BYTES`]. Smaller blocks waste less on short
    /// sequences; larger ones cost less per byte moved.
    pub fn block(mut self, bytes: u64) -> Self {
        self.block_bytes = Some(bytes);
        self
    }

    /// The name peers find the pool by. Default: empty.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Which pages back it if the specification leaves it to the system ([`Pages::Auto`]).
    #[must_use]
    pub fn default_pages(mut self, pages: Pages) -> Self {
        if self.pages == Pages::Auto {
            self.pages = pages;
        }
        self
    }

    /// Which pages back it. Default: [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// What peers may do. Default: read and write. Without the right to write, the kernel itself
    /// keeps peers from mapping the pool writable.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// The NUMA node to prefer. Default: `None`, the node of the thread that makes the pool.
    pub fn node(mut self, node: Option<u32>) -> Self {
        self.node = node;
        self
    }
}
