//! M15: registering memory, much of it and again and again.

use std::time::{Duration, Instant};

use penstock::{Config, Engine, HostMemory, Rights};

use super::Effort;
use super::row::{Goal, Row};
use crate::ends::Folder;
use crate::error::LabError;
use crate::measure::{Limit, interleave, least, median};
use crate::raw::Untouched;

const VIEWS: usize = 10_000;
const VIEW_BYTES: usize = 200_000;
const LOOPS: usize = 1_000;
/// Views that are registered and deregistered in one loop.
const VIEWS_PER_LOOP: usize = 100;
const WITHIN: Duration = Duration::from_secs(1);

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let folder = Folder::create()?;
    let config = Config::default().named("registrar").directory(folder.path());
    let engine = Engine::start(config).map_err(LabError::refused("start an engine"))?;
    let views = Views::make()?;
    let limit = Limit { rounds: effort.limit().rounds.min(15), ..effort.limit() };
    let times = interleave(limit, &[()], |()| many(&engine, &views))?;
    let loops = loops(&engine, &views, if effort.quick { LOOPS / 10 } else { LOOPS })?;
    let window = loops.len() / 20;
    let (early, late) = (&loops[..window], &loops[loops.len() - window..]);
    Ok(vec![
        Row::alone("host", median(&times[0]) / 1e6, "ms", Goal::AtMost(20.0)).noted(&format!(
            "10,000 views of 200 KB, threaded engine, no peer; least {:.1} ms",
            least(&times[0]) / 1e6
        )),
        Row::compared("host", (late, "us a loop", 1e3), ("the first loops", early), Goal::RatioAtMost(1.25))
            .noted("flat: the last of 1,000 loops, each registering and deregistering 100 views"),
    ])
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

/// Registers and deregisters the same views over and over; answers the times of the loops, in nanoseconds.
fn loops(engine: &Engine, views: &Views, count: usize) -> Result<Vec<f64>, LabError> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        for view in views.first(VIEWS_PER_LOOP) {
            let region = engine.register(view, "view", Rights::READ_WRITE);
            let region = region.map_err(LabError::refused("register a view"))?;
            let answer = region.deregister(WITHIN).map_err(LabError::refused("deregister a view"))?;
            debug_assert!(answer.is_quiesced(), "nobody is connected");
        }
        times.push(start.elapsed().as_nanos() as f64);
    }
    Ok(times)
}
