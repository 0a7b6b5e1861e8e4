//! A1: what callers pay that think in addresses: plans by address, and registering beside a connected peer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Config, Engine, LocalRegion, Peer, Plan, Rights, SystemEnv};
use rustix::event::{EventfdFlags, eventfd};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::Folder;
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, median};
use crate::raw::Untouched;

/// Layers of the plan, each in a region of its own on either side, and blocks of each.
const LAYERS: usize = 80;
const BLOCKS: usize = 236;
const BLOCK_BYTES: usize = 4096;
/// The most that a plan of all of them may take, in microseconds.
const PLAN_MOST_US: f64 = 1000.0;
/// Regions that stand when one more is registered.
const FEW: usize = 10;
const MANY: usize = 10_000;
/// The most that registering one more may take beyond waking the control loop, and until the peer knows of it, in microseconds.
const CALL_OVER_MOST_US: f64 = 5.0;
const KNOWN_MOST_US: f64 = 300.0;
/// Long enough for whoever has nothing to do to fall asleep.
const PAUSE: Duration = Duration::from_micros(300);
/// The most that asking the kernel may take, in microseconds.
const PROBE_MOST_US: f64 = 1.0;
const WITHIN: Duration = Duration::from_secs(5);

/// The order of the entries.
#[derive(Debug, Clone, Copy)]
enum Turn {
    LayerByLayer,
    BlockByBlock,
}

/// What takes turns where one more is registered.
#[derive(Debug, Clone, Copy)]
enum More {
    Register,
    Wake,
}

/// How memory comes in.
#[derive(Debug, Clone, Copy)]
enum Door {
    Probed,
    Believed,
}

/// Two connected engines and memory that is registered in parts.
struct Pair {
    _folder: Folder,
    peer: Peer<SystemEnv>,
    near: Engine<SystemEnv>,
    far: Engine<SystemEnv>,
    memory: Untouched,
}

impl Pair {
    fn open(bytes: usize) -> Result<Self, LabError> {
        let folder = Folder::create()?;
        let start = |name| {
            let config = Config::default().named(name).directory(folder.path()).transports([TransportName::Local]);
            Engine::start(config).map_err(LabError::refused("start an engine"))
        };
        let (near, far) = (start("near")?, start("far")?);
        let peer = near.connect(&far.descriptor(), WITHIN).map_err(LabError::refused("connect to the target"))?;
        let memory = Untouched::new(bytes).ok_or(LabError::NoMemory { bytes: bytes as u64 })?;
        Ok(Self { _folder: folder, peer, near, far, memory })
    }

    fn register(&self, engine: &Engine, at: usize, bytes: usize) -> Result<LocalRegion<SystemEnv>, LabError> {
        let view = self.memory.view(at * bytes, bytes).expect("there are so many views");
        engine.register(view, "view", Rights::READ_WRITE).map_err(LabError::refused("register a view"))
    }

    fn refresh(&self) -> Result<(), LabError> {
        let refreshed = self.peer.refresh(WITHIN);
        refreshed.map_err(|cause| LabError::Target { why: format!("it does not answer: {cause}") })
    }
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = plans(effort)?;
    for regions in [FEW, MANY] {
        rows.extend(one_more(effort, regions)?);
    }
    rows.push(probed(effort)?);
    Ok(rows)
}

fn plans(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let bytes = 2 * BLOCKS * BLOCK_BYTES;
    let pair = Pair::open(LAYERS * bytes)?;
    let _stay = Stay::on(&Pins::choose().near);
    for layer in 0..LAYERS {
        pair.register(&pair.near, layer, bytes)?;
        pair.register(&pair.far, layer, bytes)?;
    }
    pair.refresh()?;
    let base = pair.near.regions().iter().map(|region| region.base()).min().unwrap_or_default();
    let entry = |layer: usize, block: usize| {
        let at = |block: usize| base + (layer * bytes + block * BLOCK_BYTES) as u64;
        // Every second block, and others at the target: no two entries are one piece.
        (at(2 * block), at((2 * block * 7 + 1) % (2 * BLOCKS)), BLOCK_BYTES as u64)
    };
    let by_layer: Vec<_> = (0..LAYERS * BLOCKS).map(|index| entry(index / BLOCKS, index % BLOCKS)).collect();
    let by_block: Vec<_> = (0..LAYERS * BLOCKS).map(|index| entry(index % LAYERS, index / LAYERS)).collect();
    let turns = [Turn::LayerByLayer, Turn::BlockByBlock];
    let times = interleave(effort.limit_of_short(), &turns, |turn| {
        let entries = match turn {
            Turn::LayerByLayer => &by_layer,
            Turn::BlockByBlock => &by_block,
        };
        let start = Instant::now();
        let plan = Plan::write_addresses(&pair.peer, entries).build();
        std::hint::black_box(plan.map_err(LabError::refused("plan by address"))?);
        Ok::<_, LabError>(start.elapsed().as_nanos() as f64)
    })?;
    let row = |times: &[f64], order: &str| {
        let note =
            format!("a plan of {} entries by address in {LAYERS} regions of either side, {order}", by_layer.len());
        Row::alone("local", median(times) / 1e3, "us", Goal::AtMost(PLAN_MOST_US)).noted(&note)
    };
    Ok(vec![row(&times[0], "layer by layer"), row(&times[1], "block by block")])
}

/// Registering at addresses that may be wrong, beside believing them.
fn probed(effort: &Effort) -> Result<Row, LabError> {
    let pair = Pair::open(FEW * BLOCK_BYTES)?;
    let _stay = Stay::on(&Pins::choose().near);
    let repeats = effort.repeat(100);
    let times = interleave(effort.limit_of_short(), &[Door::Probed, Door::Believed], |door| {
        let mut taken = Duration::ZERO;
        for round in 0..repeats {
            let at = round as usize % FEW * BLOCK_BYTES;
            let start = Instant::now();
            let memory = match door {
                Door::Probed => pair.memory.probed(at, BLOCK_BYTES),
                Door::Believed => pair.memory.view(at, BLOCK_BYTES),
            };
            let region = pair.near.register(memory.expect("it is memory"), "view", Rights::READ_WRITE);
            taken += start.elapsed();
            let answer = region.map_err(LabError::refused("register a view"))?.deregister(WITHIN);
            debug_assert!(answer.is_ok_and(|answer| answer.is_quiesced()), "nobody copies");
        }
        Ok::<_, LabError>(taken.as_nanos() as f64 / repeats as f64)
    })?;
    let against = ("the same, believed", &times[1][..]);
    let row = Row::compared("local", (&times[0], "us", 1e3), against, Goal::OverAtMost(PROBE_MOST_US));
    Ok(row.noted("registering 4 KiB to be read and written, at an address that is asked for"))
}

/// Registering one more region where so many stand and a peer is connected.
fn one_more(effort: &Effort, regions: usize) -> Result<Vec<Row>, LabError> {
    // Threads stay where they are made. The control loops must not take the caller's core from it as they wake.
    let pins = Pins::choose();
    let pair = {
        let _stay = Stay::on(&pins.far);
        Pair::open((regions + 1) * BLOCK_BYTES)?
    };
    let _stay = Stay::on(&pins.near);
    let standing = (0..regions).map(|index| pair.register(&pair.far, index, BLOCK_BYTES));
    let _standing = standing.collect::<Result<Vec<_>, LabError>>()?;
    pair.refresh()?;
    let sleeper = Sleeper::start(&pins.far)?;
    let mut known = Vec::new();
    let called = interleave(effort.limit_of_short(), &[More::Register, More::Wake], |turn| {
        if matches!(turn, More::Wake) {
            return sleeper.wake();
        }
        // Everybody is asleep again.
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        let region = pair.register(&pair.far, regions, BLOCK_BYTES)?;
        let called = start.elapsed();
        let address = region.base();
        while pair.peer.region_at(address, BLOCK_BYTES as u64).is_none() {
            if start.elapsed() > WITHIN {
                return Err(LabError::Target { why: "it was not told of a region".to_owned() });
            }
            std::hint::spin_loop();
        }
        known.push(start.elapsed().as_nanos() as f64);
        let answer = region.deregister(WITHIN).map_err(LabError::refused("deregister a view"))?;
        debug_assert!(answer.is_quiesced(), "nobody copies");
        pair.refresh()?;
        Ok(called.as_nanos() as f64)
    })?;
    let note = format!("one more region beside {regions}, a peer connected");
    let against = ("an eventfd that wakes a thread", &called[1][..]);
    let call = Row::compared("local", (&called[0], "us", 1e3), against, Goal::OverAtMost(CALL_OVER_MOST_US));
    let known = Row::alone("local", median(&known) / 1e3, "us", Goal::AtMost(KNOWN_MOST_US));
    Ok(vec![call.noted(&format!("{note}: the call")), known.noted(&format!("{note}: until the peer knows it"))])
}

/// A thread that sleeps until an eventfd is written: what the control loop does, and nothing else.
struct Sleeper {
    bell: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Sleeper {
    fn start(cores: &[usize]) -> Result<Self, LabError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| LabError::Target { why: error.to_string() })?;
        let (bell, is_over) = (Arc::new(bell), Arc::new(AtomicBool::new(false)));
        let (waits_at, ends, cores) = (Arc::clone(&bell), Arc::clone(&is_over), cores.to_vec());
        let body = move || {
            let _stay = Stay::on(&cores);
            while !ends.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&*waits_at, &mut [0_u8; 8]);
            }
        };
        Ok(Self { bell, thread: Some(std::thread::spawn(body)), is_over })
    }

    /// How long the write takes, in nanoseconds, once the thread is asleep.
    fn wake(&self) -> Result<f64, LabError> {
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        let written = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        let taken = start.elapsed();
        written.map_err(|error| LabError::Target { why: error.to_string() })?;
        Ok(taken.as_nanos() as f64)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
