//! Device memory, between two engines of this process: from host memory to a device, within it, and back.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::device::{Cuda, Device};
use penstock::{Config, DevicePool, Engine, Peer, Plan, Pool, PoolSpec, RemoteRegion, Submit, SystemEnv};

use super::Sabotage;
use super::flaw::Flaw;
use super::layout::{BLOCK_BYTES, BLOCKS_PER_SET, Layout};
use super::measure::{Figures, median};
use super::pattern::{self, Content};
use super::report::{Check, Row};
use super::target::PATIENCE;
use crate::folder::Folder;

/// What the row is called.
pub(crate) const NAME: &str = "cuda";
const STAMP: pattern::Stamp = 4;

/// The first device of this host, if it has one that can be used.
pub(crate) fn first() -> Option<(Cuda, Device)> {
    let cuda = Cuda::start().ok()?;
    Some((cuda, cuda.devices().ok()?.into_iter().next()?))
}

/// Tests it; what it says of its progress goes to `say`.
pub(crate) fn test(
    (cuda, device): &(Cuda, Device),
    (quick, sabotage): (bool, Option<Sabotage>),
    say: impl Fn(&str),
    is_over: &dyn Fn() -> bool,
) -> Row {
    let mut row = Row::named(NAME);
    say("connecting");
    let pair = match DevicePair::connect(device, Layout::of(quick)) {
        Ok(pair) => pair,
        Err(flaw) => {
            row.add(Check::of("connect", Err(flaw)));
            return row;
        }
    };
    row.path = Some(format!("{}, CUDA {}", device.attr.name, cuda.version()));
    row.add(Check::of("connect", Ok(())));
    type Step = fn(&DevicePair) -> Result<(), Flaw>;
    let steps: [(&str, Step); 3] =
        [("to the device", DevicePair::there), ("within it", DevicePair::within), ("from it", DevicePair::back)];
    for (name, step) in steps {
        say(name);
        let went = if is_over() { Err(Flaw::Interrupted) } else { step(&pair) };
        if !row.add(Check::of(name, went)) {
            return row;
        }
    }
    say("measuring");
    match pair.measure(quick, is_over) {
        Ok(figures) => row.figures = Some(figures),
        Err(flaw) => {
            row.add(Check::of("measure", Err(flaw)));
            return row;
        }
    }
    row.add(Check::of("bytes", pair.all_again(sabotage == Some(Sabotage::Write))));
    row
}

/// Two engines: host memory and memory of the device at either.
struct DevicePair {
    _near: Engine,
    peer: Peer<SystemEnv>,
    host: Pool<SystemEnv>,
    device: DevicePool<SystemEnv>,
    far_host: Pool<SystemEnv>,
    host_there: RemoteRegion<SystemEnv>,
    device_there: RemoteRegion<SystemEnv>,
    pairs: Vec<(u32, u32)>,
    layout: Layout,
    // The last: it is dropped when nobody needs its sockets.
    _far: Engine,
    _folder: Folder,
}

impl DevicePair {
    fn connect(device: &Device, layout: Layout) -> Result<Self, Flaw> {
        let folder = Folder::make(super::FOLDER_PREFIX).map_err(Flaw::Folder)?;
        let config = |name| Config::default().named(name).directory(folder.path()).transports([TransportName::Local]);
        let (near, far) = (Engine::start(config("near"))?, Engine::start(config("far"))?);
        let host = |engine: &Engine| engine.pool(PoolSpec::host(layout.bytes()).block(BLOCK_BYTES).label("host"));
        let on_device = PoolSpec::device(device.id, layout.bytes()).block(BLOCK_BYTES).label("device");
        let (host, far_host) = (host(&near)?, host(&far)?);
        let device = near.device_pool(on_device.clone())?;
        far.device_pool(on_device)?;
        let peer = near.connect(&far.descriptor(), PATIENCE)?;
        let (host_there, device_there) = (peer.wait_region("host", PATIENCE)?, peer.wait_region("device", PATIENCE)?);
        pattern::fill(host.window(), STAMP)?;
        let pairs = layout.pairs();
        Ok(Self {
            _near: near,
            peer,
            host,
            device,
            far_host,
            host_there,
            device_there,
            pairs,
            layout,
            _far: far,
            _folder: folder,
        })
    }

    fn move_all(&self, plan: &Plan) -> Result<(), Flaw> {
        let done = self.peer.submit(plan, Submit::new().within(PATIENCE))?.wait()?;
        match done.bytes == plan.bytes() {
            true => Ok(()),
            false => Err(Flaw::Ending { expected: plan.bytes(), found: done.bytes, notified: done.notified.text() }),
        }
    }

    /// Blocks of host memory here to scattered ones of the device's there.
    fn there(&self) -> Result<(), Flaw> {
        self.move_all(&Plan::write(&self.host, &self.device_there).blocks(&self.pairs).build()?)
    }

    /// Back to their places in the device's memory here.
    fn within(&self) -> Result<(), Flaw> {
        self.move_all(&Plan::read(&self.device, &self.device_there).blocks(&self.pairs).build()?)
    }

    /// And to scattered ones of host memory there.
    fn back(&self) -> Result<(), Flaw> {
        self.move_all(&Plan::write(&self.device, &self.host_there).blocks(&self.pairs).build()?)?;
        self.look(false)
    }

    /// What is in the device's memory after the measurement, the same way.
    fn all_again(&self, is_broken: bool) -> Result<(), Flaw> {
        self.far_host.window().fill(0, self.layout.bytes(), 0)?;
        self.within()?;
        self.back()?;
        self.look(is_broken)
    }

    /// Looks at every byte that came back.
    fn look(&self, is_broken: bool) -> Result<(), Flaw> {
        let window = self.far_host.window();
        if is_broken {
            pattern::flip(window, self.pairs[0].1)?;
        }
        let origin: std::collections::HashMap<u32, u32> = self.pairs.iter().map(|&(near, far)| (far, near)).collect();
        let content = |far| origin.get(&far).map_or(Content::Clear, |&near| Content::Of(STAMP, near));
        match pattern::first_wrong(window, content)? {
            None => Ok(()),
            Some(wrong) => Err(Flaw::Bytes { whose: "the target's", wrong }),
        }
    }

    /// Sets of scattered blocks from host memory to the device's, in turns.
    fn measure(&self, quick: bool, is_over: &dyn Fn() -> bool) -> Result<Figures, Flaw> {
        let sets = self.pairs.chunks(BLOCKS_PER_SET);
        let plans = sets.map(|set| Plan::write(&self.host, &self.device_there).blocks(set).build());
        let plans: Vec<Plan> = plans.collect::<Result<_, _>>()?;
        let rounds = self.layout.sets * if quick { 4 } else { 16 };
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            if is_over() {
                return Err(Flaw::Interrupted);
            }
            let started = Instant::now();
            self.move_all(&plans[round % plans.len()])?;
            times.push(started.elapsed());
        }
        let all: Duration = times.iter().sum();
        let (count, bytes, p50) = (times.len() as f64, plans[0].bytes() as f64, median(times).as_secs_f64());
        let gbps = |bytes: f64, seconds: f64| bytes / seconds.max(1e-9) / 1e9;
        Ok(Figures {
            p50_us: p50 * 1e6,
            floor_us: None,
            gbps: gbps(count * bytes, all.as_secs_f64()),
            gbps_p50: gbps(bytes, p50),
            vs_floor: None,
        })
    }
}
