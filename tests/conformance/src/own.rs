//! Memory of an engine in this process, of its host or of a device: made, read and written alike.

use std::ops::Deref;

use penstock::memory::TakeError;
use penstock::{Blocks, DevicePool, LocalRegion, PoolSpec, RegionError, Rights, SystemEnv, Window, device};
use penstock_cuda_driver::peek;

use crate::{Engine, Pool};

/// What pools of a device's memory are multiples of.
pub const DEVICE_PAGE_BYTES: u64 = 2 << 20;

/// Memory of an engine, of such a kind as its case has.
pub enum Own {
    /// A pool of host memory, in blocks.
    Host(Pool),
    /// A pool of the first device's memory, in blocks.
    Device(DevicePool<SystemEnv>),
    /// As long as was asked for, of the first device, whose pools are longer. It has no blocks.
    Part(LocalRegion<SystemEnv>),
}

impl Own {
    /// Memory of this engine that peers may read and write, in blocks of so many bytes, and on a device if asked for.
    pub fn pool(
        engine: &Engine,
        is_on_device: bool,
        (bytes, block): (u64, u64),
        label: &str,
    ) -> Result<Self, RegionError> {
        Self::with(engine, is_on_device, (bytes, block), label, Rights::READ_WRITE)
    }

    /// The same with these rights of peers.
    pub fn with(
        engine: &Engine,
        is_on_device: bool,
        (bytes, block): (u64, u64),
        label: &str,
        rights: Rights,
    ) -> Result<Self, RegionError> {
        let shaped = |spec: PoolSpec| spec.block(block).label(label).rights(rights);
        if !is_on_device {
            return engine.pool(shaped(PoolSpec::host(bytes))).map(Self::Host);
        }
        let device = device::Cuda::start()?.devices()?[0].id;
        if bytes % DEVICE_PAGE_BYTES == 0 {
            return engine.device_pool(shaped(PoolSpec::device(device, bytes))).map(Self::Device);
        }
        let memory = device::allocate(device, bytes)?.part(0, bytes).expect("it is no less than was asked for");
        engine.register_device(memory, label, rights).map(Self::Part)
    }

    /// As [`Pool::take`](penstock::Pool::take).
    ///
    /// # Panics
    /// If it is a part of memory.
    pub fn take(&self, count: usize) -> Result<Blocks, TakeError> {
        match self {
            Self::Host(pool) => pool.take(count),
            Self::Device(pool) => pool.take(count),
            Self::Part(_) => panic!("it has no blocks"),
        }
    }

    /// The memory of a host's pool.
    ///
    /// # Panics
    /// If it is a device's.
    pub fn window(&self) -> &Window {
        self.host().expect("it is of the host")
    }
}

impl Deref for Own {
    type Target = LocalRegion<SystemEnv>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Host(pool) => pool,
            Self::Device(pool) => pool,
            Self::Part(region) => region,
        }
    }
}

/// Memory whose bytes a case looks at. What is outside of it is a mistake of the case's.
pub trait Bytes {
    /// How many it has.
    fn count(&self) -> u64;
    /// Reads those at this offset.
    fn read(&self, offset: u64, bytes: &mut [u8]);
    /// Writes these at this offset.
    fn write(&self, offset: u64, bytes: &[u8]);
}

impl Bytes for Window {
    fn count(&self) -> u64 {
        self.len()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.read_into(offset, bytes).expect("they lie inside their window");
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.write_from(offset, bytes).expect("they lie inside their window");
    }
}

impl Bytes for LocalRegion<SystemEnv> {
    fn count(&self) -> u64 {
        self.bytes()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        match self.host() {
            Some(window) => Bytes::read(window, offset, bytes),
            None => peek::read(0, inside(self, offset, bytes.len()), bytes),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        match self.host() {
            Some(window) => Bytes::write(window, offset, bytes),
            None => peek::write(0, inside(self, offset, bytes.len()), bytes),
        }
    }
}

/// Where bytes of a device's region are.
fn inside(region: &LocalRegion<SystemEnv>, offset: u64, len: usize) -> u64 {
    assert!(offset + len as u64 <= region.bytes(), "they lie inside their region");
    region.base() + offset
}
