//! M7: making the plan of the largest workload.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Config, Engine, Plan, Rights};
use serde_json::json;

use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::Folder;
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::Stay;
use crate::measure::{interleave, median};
use crate::peers::pair::NIXL;
use crate::raw::Untouched;
use crate::workload::Workload;

/// The most that a plan of w1 may take, in microseconds.
const MOST_US: f64 = 100.0;

/// Which part of the workload is planned.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Whole,
    HalfOfTheLayers,
    HalfOfTheBlocks,
    /// All of it, by somebody else.
    Rival,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let workload = Workload::find("w1")?;
    let spec = LayoutSpec { workload: workload.clone(), pool_bytes_min: 0, concurrency: 1, seed: 1 };
    let layout = Layout::new(&spec);
    let way = (&NIXL, Goal::AtMost(MOST_US));
    let mut rival = Rival::pair(effort, way, (layout.pool_bytes(), false), |pair| pair.deal_alone(&spec));
    let _stay = Stay::on(&Pins::choose().near);
    let folder = Folder::create()?;
    let start = |name| {
        let config = Config::default().named(name).directory(folder.path()).transports([TransportName::Local]);
        Engine::start(config.progress(Progress::Adaptive)).map_err(LabError::refused("start an engine"))
    };
    let (near, far) = (start("planner")?, start("target")?);
    let region = |engine: &Engine| {
        let bytes = layout.pool_bytes() as usize;
        let memory = Untouched::new(bytes).and_then(|memory| memory.view(0, bytes));
        let memory = memory.ok_or(LabError::NoMemory { bytes: bytes as u64 })?;
        engine.register(memory, "kv", Rights::READ_WRITE).map_err(LabError::refused("register memory"))
    };
    let (local, _kept) = (region(&near)?, region(&far)?);
    let within = Duration::from_secs(5);
    let peer = near.connect(&far.descriptor(), within).map_err(LabError::refused("connect to the target"))?;
    let remote = peer.wait_region("kv", within).map_err(LabError::refused("find the target's memory"))?;
    let bases: Vec<(u64, u64)> = layout.batches().concat();
    let pairs = &layout.sets()[0];
    let repeats = effort.repeat(10);
    let turns = [Turn::Whole, Turn::HalfOfTheLayers, Turn::HalfOfTheBlocks, Turn::Rival];
    let mut made = Vec::new();
    let times = interleave(effort.with_guests(effort.limit_of_short()), &turns, |turn| {
        let (bases, pairs) = match turn {
            Turn::Whole => (&bases[..], &pairs[..]),
            Turn::HalfOfTheLayers => (&bases[..bases.len() / 2], &pairs[..]),
            Turn::HalfOfTheBlocks => (&bases[..], &pairs[..pairs.len() / 2]),
            Turn::Rival => {
                return Ok(rival.turn(|pair| {
                    let [prepared, more] = pair.alone(&json!({"do": "prep"}), ["ns", "more_ns"])?;
                    made.push(more);
                    Ok(prepared)
                }));
            }
        };
        let start = Instant::now();
        for _ in 0..repeats {
            let plan = Plan::write(&local, &remote).layers(bases).blocks(pairs).block_bytes(workload.block_bytes);
            std::hint::black_box(plan.build().map_err(LabError::refused("plan w1"))?);
        }
        Ok::<_, LabError>(start.elapsed().as_nanos() as f64 / repeats as f64)
    })?;
    let figures = (&times[0][..], "us", 1e3);
    if rival.is_there() {
        let made = median(&made) / 1e3;
        rival.note(&format!("both lists of 81,920 descriptors; make_prepped_xfer takes {made:.0} us more"));
    }
    let rival = rival.row("local", figures, &times[3]).renamed("NIXL, prep_xfer_dlist");
    // A product of layers and blocks would double with either.
    Ok(vec![
        Row::alone("local", median(&times[0]) / 1e3, "us", Goal::AtMost(MOST_US)).noted("80 layers x 1,024 blocks"),
        Row::compared("local", figures, ("half of the layers", &times[1]), Goal::RatioAtMost(1.5))
            .noted("O(layers + blocks)"),
        Row::compared("local", figures, ("half of the blocks", &times[2]), Goal::Reported)
            .noted("at most twice as long"),
        rival,
    ])
}
