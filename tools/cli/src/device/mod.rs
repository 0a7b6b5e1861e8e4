//! Device memory: two engines of this process with memory of the first GPU.
//!
//! - `selftest`: does it work; `perf`: how fast is it

mod perf;
mod selftest;

use std::time::Duration;

use penstock::config::TransportName;
use penstock::device::{Cuda, CudaError, Device};
use penstock::memory::AccessError;
use penstock::{Config, DevicePool, Engine, Peer, Plan, PlanBuilder, Pool, PoolSpec, RemoteRegion, Submit, SystemEnv};

pub(crate) use self::perf::run as measure;
pub(crate) use self::selftest::{NAME, test};
use crate::folder::Folder;
use crate::selftest::Flaw;
use crate::selftest::pattern::Wrong;

/// What the names of folders begin with.
const FOLDER_PREFIX: &str = "penstock-device-";
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The driver and the first device of this host.
pub(crate) fn first() -> Result<(Cuda, Device), CudaError> {
    let cuda = Cuda::start()?;
    Ok((cuda, cuda.devices()?.swap_remove(0)))
}

/// Blocks of each pool, and which go where.
struct Blocks {
    count: u32,
    bytes: u64,
    /// Pairs (near, far) of block numbers.
    pairs: Vec<(u32, u32)>,
}

/// Two engines: host memory and memory of the device at either.
struct DevicePair {
    blocks: Blocks,
    host: Pool<SystemEnv>,
    device: DevicePool<SystemEnv>,
    host_there: RemoteRegion<SystemEnv>,
    device_there: RemoteRegion<SystemEnv>,
    /// Where bytes come to in the end.
    returned: Pool<SystemEnv>,
    peer: Peer<SystemEnv>,
    _near: Engine,
    _far: Engine,
    _folder: Folder,
}

impl DevicePair {
    /// Host memory of the near engine is filled by `fill`.
    fn connect(
        device: &Device,
        blocks: Blocks,
        fill: impl FnOnce(&Pool<SystemEnv>) -> Result<(), AccessError>,
    ) -> Result<Self, Flaw> {
        let folder = Folder::make(FOLDER_PREFIX).map_err(Flaw::Folder)?;
        let config = |name| Config::default().named(name).directory(folder.path()).transports([TransportName::Local]);
        let (near, far) = (Engine::start(config("near"))?, Engine::start(config("far"))?);
        let bytes = u64::from(blocks.count) * blocks.bytes;
        let host = |engine: &Engine| engine.pool(PoolSpec::host(bytes).block(blocks.bytes).label("host"));
        let on_device = PoolSpec::device(device.id, bytes).block(blocks.bytes).label("device");
        let (host, returned) = (host(&near)?, host(&far)?);
        let device = near.device_pool(on_device.clone())?;
        far.device_pool(on_device)?;
        let peer = near.connect(&far.descriptor(), PATIENCE)?;
        let (host_there, device_there) = (peer.wait_region("host", PATIENCE)?, peer.wait_region("device", PATIENCE)?);
        fill(&host)?;
        Ok(Self {
            blocks,
            host,
            device,
            host_there,
            device_there,
            returned,
            peer,
            _near: near,
            _far: far,
            _folder: folder,
        })
    }

    /// From host memory here to the device's memory there.
    fn there(&self) -> PlanBuilder<'_> {
        Plan::write(&self.host, &self.device_there)
    }

    /// From there to the device's memory here.
    fn within(&self) -> PlanBuilder<'_> {
        Plan::read(&self.device, &self.device_there)
    }

    /// From the device's memory here to host memory there.
    fn back(&self) -> PlanBuilder<'_> {
        Plan::write(&self.device, &self.host_there)
    }

    /// All blocks that are moved, to and from scattered places.
    fn scattered<'a>(&'a self, plan: PlanBuilder<'a>) -> Result<Plan, Flaw> {
        Ok(plan.blocks(&self.blocks.pairs).build()?)
    }

    fn move_all(&self, plan: &Plan) -> Result<(), Flaw> {
        let done = self.peer.submit(plan, Submit::new().within(PATIENCE))?.wait()?;
        match done.bytes == plan.bytes() {
            true => Ok(()),
            false => Err(Flaw::Ending { expected: plan.bytes(), found: done.bytes, notified: done.notified.text() }),
        }
    }

    /// Moves all blocks the whole way, to memory that was cleared, and looks at every byte of it; `is_broken` spoils one before.
    fn all_the_way(&self, is_broken: bool) -> Result<(), Flaw> {
        let (from, to) = (self.host.window(), self.returned.window());
        to.fill(0, to.len(), 0)?;
        for plan in [self.there(), self.within(), self.back()] {
            self.move_all(&self.scattered(plan)?)?;
        }
        let bytes = self.blocks.bytes;
        if is_broken {
            let at = u64::from(self.blocks.pairs[0].1) * bytes;
            let mut byte = [0];
            to.read_into(at, &mut byte)?;
            to.write_from(at, &[byte[0] ^ 1])?;
        }
        let mut origin = vec![None; self.blocks.count as usize];
        self.blocks.pairs.iter().for_each(|&(near, far)| origin[far as usize] = Some(near));
        let (mut expected, mut found) = (vec![0; bytes as usize], vec![0; bytes as usize]);
        for (block, origin) in (0..).zip(origin) {
            match origin {
                Some(near) => from.read_into(u64::from(near) * bytes, &mut expected)?,
                None => expected.fill(0),
            }
            to.read_into(u64::from(block) * bytes, &mut found)?;
            if let Some(byte) = (0..found.len()).find(|&byte| found[byte] != expected[byte]) {
                let wrong = Wrong { block, byte, expected: expected[byte], found: found[byte] };
                return Err(Flaw::Bytes { whose: "the target's", wrong });
            }
        }
        Ok(())
    }
}
