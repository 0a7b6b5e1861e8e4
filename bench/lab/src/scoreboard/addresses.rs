//! A1: what callers pay that think in addresses: plans by address, and registering beside a connected peer.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Config, Engine, LocalRegion, Peer, Plan, Rights, SystemEnv};

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
/// The most that registering one more may take, and until the peer knows of it, in microseconds.
const CALL_MOST_US: f64 = 5.0;
const KNOWN_MOST_US: f64 = 300.0;
const WITHIN: Duration = Duration::from_secs(5);

/// The order of the entries.
#[derive(Debug, Clone, Copy)]
enum Turn {
    LayerByLayer,
    BlockByBlock,
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
    let base = pair.near.regions().iter().map(|region| region.window().base_address()).min().unwrap_or_default();
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

/// Registering one more region where so many stand and a peer is connected.
fn one_more(effort: &Effort, regions: usize) -> Result<Vec<Row>, LabError> {
    let pair = Pair::open((regions + 1) * BLOCK_BYTES)?;
    let standing = (0..regions).map(|index| pair.register(&pair.far, index, BLOCK_BYTES));
    let _standing = standing.collect::<Result<Vec<_>, LabError>>()?;
    pair.refresh()?;
    let mut known = Vec::new();
    let called = interleave(effort.limit_of_short(), &[()], |()| {
        let start = Instant::now();
        let region = pair.register(&pair.far, regions, BLOCK_BYTES)?;
        let called = start.elapsed();
        let address = region.window().base_address();
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
    let row = |times: &[f64], most: f64, what: &str| {
        let note = format!("one more region beside {regions}, a peer connected: {what}");
        Row::alone("local", median(times) / 1e3, "us", Goal::AtMost(most)).noted(&note)
    };
    Ok(vec![row(&called[0], CALL_MOST_US, "the call"), row(&known, KNOWN_MOST_US, "until the peer knows it")])
}
