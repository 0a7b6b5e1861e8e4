//! M1: 8 bytes written and their arrival seen by the other process.

use std::time::Duration;

use penstock::config::{PagesChoice, Progress, TransportName};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::rally::{Manner, Rally, Rules, reset_cache_lines, send_cache_lines};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, nanos};

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    CacheLine,
}

/// Both ends for small messages: the other process on a core of its own.
pub(super) fn ends(effort: &Effort, pins: &Pins, progress: Progress, spin: Option<Duration>) -> Result<Ends, LabError> {
    Ends::open(&EndsSpec {
        transport: TransportName::Shm,
        pool_bytes: 1 << 20,
        pages: PagesChoice::Small,
        progress,
        workers: 1,
        cores: Vec::new(),
        target_progress: progress,
        target_cores: pins.far.clone(),
        spin,
        target_program: effort.target_program.clone(),
    })
}

/// One rally; answers the time of one way, in nanoseconds.
pub(super) fn rally(ends: &mut Ends, rules: Rules) -> Result<f64, LabError> {
    ends.begin(&Command::Rally(rules))?;
    let all = Rally::new(&ends.near, &ends.peer, rules)?.send_first()?;
    match ends.settle()? {
        Reply::Rallied { paused_ns } => Ok((nanos(all) - paused_ns as f64) / (2 * rules.rounds) as f64),
        other => Err(other.unexpected()),
    }
}

fn cache_line(ends: &mut Ends, rounds: u64) -> Result<f64, LabError> {
    reset_cache_lines(&ends.far)?;
    ends.begin(&Command::CacheLines { rounds })?;
    let one_way = send_cache_lines(&ends.far, rounds)?;
    match ends.settle()? {
        Reply::Done => Ok(one_way),
        other => Err(other.unexpected()),
    }
}

fn compare(effort: &Effort, progress: Progress, rules: Rules) -> Result<Row, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let mut ends = ends(effort, &pins, progress, None)?;
    let times = interleave(effort.limit_of_short(), &[Turn::Engine, Turn::CacheLine], |turn| match turn {
        Turn::Engine => rally(&mut ends, rules),
        Turn::CacheLine => cache_line(&mut ends, rules.rounds),
    })?;
    let floor = ("cache line between the same processes", &times[1][..]);
    Ok(Row::compared("shm", (&times[0], "ns", 1.0), floor, Goal::Reported))
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let rules = |rounds, manner| Rules { rounds: effort.repeat(rounds), manner, pause: Duration::ZERO };
    let inline = compare(effort, Progress::Inline, rules(1_000, Manner::Poll))?;
    let threaded = compare(effort, Progress::Adaptive, rules(100, Manner::SleepOnCounter))?;
    Ok(vec![
        inline.noted("inline on both sides, both polling the arrival counter"),
        threaded.noted("reported beside: adaptive workers, applications that sleep; each process on one core"),
    ])
}
