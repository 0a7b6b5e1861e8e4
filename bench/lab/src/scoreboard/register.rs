//! M15: registering memory, much of it and again and again.

use std::time::{Duration, Instant};

use penstock::{Config, Engine, HostMemory, Rights};
use serde_json::{Value, json};

use super::Effort;
use super::rivals::Rival;
use super::row::{Goal, Row};
use crate::ends::Folder;
use crate::error::LabError;
use crate::measure::{Limit, interleave, least, median};
use crate::peers::PeerError;
use crate::peers::pair::{NIXL, Pair};
use crate::raw::Untouched;

/// The most that registering all views may take, in milliseconds.
const MOST_MS: f64 = 20.0;
const VIEWS: usize = 10_000;
const VIEW_BYTES: usize = 200_000;
/// Views that are registered and deregistered in one loop.
const VIEWS_PER_LOOP: usize = 100;
/// Loops of an engine that has hardly begun.
const FEW_LOOPS: u64 = 10;
/// Loops of one that has been at it for long.
const MANY_LOOPS: u64 = 1_000;
/// Loops that are timed together.
const LOOPS_TIMED: u64 = 5;
const WITHIN: Duration = Duration::from_secs(1);

/// How long an engine has been registering before it is timed.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Long,
    HardlyBegun,
    Rival,
}

/// What takes turns in registering much at once.
#[derive(Debug, Clone, Copy)]
enum Many {
    Engine,
    Rival,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let folder = Folder::create()?;
    let start = |name: &str| {
        let config = Config::default().named(name).directory(folder.path());
        Engine::start(config).map_err(LabError::refused("start an engine"))
    };
    let engine = start("registrar")?;
    let views = Views::make()?;
    let mut rival = rival(effort);
    let limit = Limit { rounds: effort.limit().rounds.min(15), ..effort.limit() };
    let times = interleave(limit, &[Many::Engine, Many::Rival], |turn| match turn {
        Many::Engine => many(&engine, &views),
        Many::Rival => Ok(rival.turn(|pair| ns(pair, &json!({"do": "register"})))),
    })?;
    let row = Row::alone("host", median(&times[0]) / 1e6, "ms", Goal::AtMost(MOST_MS));
    let least = least(&times[0]) / 1e6;
    let many = row.noted(&format!("10,000 views of 200 KB, threaded engine, no peer; least {least:.1} ms"));
    let beside = rival.row("host", (&times[0], "ms", 1e6), &times[1]).renamed("NIXL, register_memory");
    let mut rows = vec![many, beside.noted("its 10,000 views in one call, ours one by one")];
    rows.extend(again_and_again(effort, &start, &views, &mut rival)?);
    Ok(rows)
}

/// The cost of registering after much of it, and after hardly any.
fn again_and_again(
    effort: &Effort,
    start: &dyn Fn(&str) -> Result<Engine, LabError>,
    views: &Views,
    rival: &mut Rival<Pair>,
) -> Result<Vec<Row>, LabError> {
    let long = start("veteran")?;
    loops(&long, views, effort.repeat(MANY_LOOPS))?;
    let mut ask = |count| {
        let request = json!({"do": "loops", "count": count, "views": VIEWS_PER_LOOP});
        rival.turn(|pair| ns(pair, &request))
    };
    ask(FEW_LOOPS);
    let first = ask(LOOPS_TIMED) / 1e3;
    ask(effort.repeat(MANY_LOOPS));
    let turns = [Turn::Long, Turn::HardlyBegun, Turn::Rival];
    let times = interleave(effort.with_guests(effort.limit()), &turns, |turn| match turn {
        Turn::Long => loops(&long, views, LOOPS_TIMED),
        Turn::HardlyBegun => {
            let fresh = start("novice")?;
            loops(&fresh, views, FEW_LOOPS)?;
            loops(&fresh, views, LOOPS_TIMED)
        }
        Turn::Rival => Ok(ask(LOOPS_TIMED)),
    })?;
    let figures = (&times[0][..], "us a loop", 1e3);
    let flat = Row::compared("host", figures, ("an engine after 10 loops", &times[1]), Goal::RatioAtMost(1.25));
    let note = "flat: after 1,000 loops, each registering and deregistering 100 views";
    if rival.is_there() {
        rival.note(&format!("its loops 11 to 15 took {first:.0} us each, timed once"));
    }
    let beside = rival.row("host", figures, &times[2]).renamed("NIXL, a loop after 1,000 loops").unjudged();
    Ok(vec![flat.noted(note), beside.noted(note)])
}

/// A NIXL agent with the same views.
fn rival(effort: &Effort) -> Rival<Pair> {
    let views = json!({"do": "views", "count": VIEWS, "view_bytes": VIEW_BYTES});
    let way = (&NIXL, Goal::AtMost(MOST_MS));
    Rival::pair(effort, way, (1 << 20, true), |pair| pair.alone(&views, []).map(drop))
}

fn ns(pair: &mut Pair, request: &Value) -> Result<f64, PeerError> {
    pair.alone(request, ["ns"]).map(|[ns]| ns)
}

/// Parts of one array.
struct Views(Untouched);

impl Views {
    fn make() -> Result<Self, LabError> {
        let bytes = VIEWS * VIEW_BYTES;
        Ok(Self(Untouched::new(bytes).ok_or(LabError::NoMemory { bytes: bytes as u64 })?))
    }

    fn first(&self, count: usize) -> impl Iterator<Item = HostMemory> {
        let view = |index| self.0.view(index * VIEW_BYTES, VIEW_BYTES).expect("there are so many views");
        (0..count).map(view)
    }
}

/// Registers all views once; answers how long that took, in nanoseconds. Taking them back is not timed.
fn many(engine: &Engine, views: &Views) -> Result<f64, LabError> {
    let mut regions = Vec::with_capacity(VIEWS);
    let start = Instant::now();
    for view in views.first(VIEWS) {
        regions.push(engine.register(view, "view", Rights::READ_WRITE).map_err(LabError::refused("register a view"))?);
    }
    let taken = start.elapsed().as_nanos() as f64;
    for region in regions {
        let answer = region.deregister(WITHIN).map_err(LabError::refused("deregister a view"))?;
        debug_assert!(answer.is_quiesced(), "nobody is connected");
    }
    Ok(taken)
}

/// Registers and deregisters the same views so many times; answers how long one time took, in nanoseconds.
fn loops(engine: &Engine, views: &Views, count: u64) -> Result<f64, LabError> {
    let start = Instant::now();
    for _ in 0..count {
        for view in views.first(VIEWS_PER_LOOP) {
            let region = engine.register(view, "view", Rights::READ_WRITE);
            let region = region.map_err(LabError::refused("register a view"))?;
            let answer = region.deregister(WITHIN).map_err(LabError::refused("deregister a view"))?;
            debug_assert!(answer.is_quiesced(), "nobody is connected");
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}
