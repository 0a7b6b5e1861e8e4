//! M1: 8 bytes written and their arrival seen by the other process, beside others that do the same.

use std::time::Duration;

use penstock::config::{PagesChoice, Progress, TransportName};

use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::rally::{Manner, Rally, Rules, reset_cache_lines, send_cache_lines};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, nanos};
use crate::peers::pair::{NIXL_POLLED, NIXL_TUNED_POLLED, Pair};
use crate::peers::tools::{LIBFABRIC, Meter, UCX};

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    CacheLine,
    Meter(usize),
    Pair(usize),
}

/// Engines of others that take turns with ours.
#[derive(Default)]
struct Others {
    meters: Vec<Rival<Meter>>,
    pairs: Vec<Rival<Pair>>,
}

/// What a rally of others needs: two words.
const WORDS_BYTES: u64 = 1 << 20;

impl Others {
    fn open(effort: &Effort, pins: &Pins) -> Self {
        let meter = |tool, goal| Rival::meter(effort, tool, goal, pins);
        let pair = |way, goal| Rival::pair(effort, (way, goal), (WORDS_BYTES, true), |_| Ok(()));
        Self {
            meters: vec![meter(&UCX, Goal::RatioAtMost(1.1)), meter(&LIBFABRIC, Goal::QuickerBy(4.0))],
            pairs: vec![pair(&NIXL_POLLED, Goal::QuickerBy(20.0)), pair(&NIXL_TUNED_POLLED, Goal::Reported)],
        }
    }

    /// Who only writes, and is polled at the word that is written.
    fn that_only_write(effort: &Effort, pins: &Pins) -> Self {
        Self { meters: vec![Rival::meter(effort, &UCX, Goal::RatioAtMost(1.1), pins)], pairs: Vec::new() }
    }

    fn turns(&self) -> Vec<Turn> {
        (0..self.meters.len()).map(Turn::Meter).chain((0..self.pairs.len()).map(Turn::Pair)).collect()
    }

    /// Our figures against each of them, in the order of [`Others::turns`].
    fn rows(&self, figures: &[f64], times: &[Vec<f64>]) -> Vec<Row> {
        let figures = (figures, "ns", 1.0);
        let (of_meters, of_pairs) = times.split_at(self.meters.len());
        let meters = self.meters.iter().zip(of_meters).map(|(rival, times)| rival.row("shm", figures, times));
        let pairs = self.pairs.iter().zip(of_pairs).map(|(rival, times)| {
            rival
                .row("shm", figures, times)
                .noted("8 B write with a notification that the target polls for, words verified")
        });
        meters.chain(pairs).collect()
    }
}

/// Both ends for small messages: the other process on a core of its own.
pub(super) fn ends(
    effort: &Effort,
    pins: &Pins,
    transport: TransportName,
    (progress, spin): (Progress, Option<Duration>),
) -> Result<Ends, LabError> {
    Ends::open(&EndsSpec {
        transport,
        pool_bytes: 1 << 20,
        pages: PagesChoice::Small,
        progress,
        workers: 1,
        cores: Vec::new(),
        target_progress: progress,
        target_cores: pins.far.clone(),
        spin,
        memory: [MemoryKind::Host; 2],
        target_program: effort.target_program.clone(),
        network: Network::default(),
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

fn compare(effort: &Effort, progress: Progress, rules: Rules, others: &mut Others) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let mut ends = ends(effort, &pins, TransportName::Shm, (progress, None))?;
    let (rounds_of_meters, rounds_of_pairs) = (effort.repeat(50_000), effort.repeat(200));
    let turns = [vec![Turn::Engine, Turn::CacheLine], others.turns()].concat();
    let limit = effort.limit_of_short();
    let limit = if turns.len() > 2 { effort.with_guests(limit) } else { limit };
    let times = interleave(limit, &turns, |turn| match turn {
        Turn::Engine => rally(&mut ends, rules),
        Turn::CacheLine => cache_line(&mut ends, rules.rounds),
        Turn::Meter(index) => Ok(others.meters[index].measure(rounds_of_meters)),
        Turn::Pair(index) => Ok(others.pairs[index].turn(|pair| pair.rally(rounds_of_pairs))),
    })?;
    let floor = ("cache line between the same processes", &times[1][..]);
    let mut rows = vec![Row::compared("shm", (&times[0], "ns", 1.0), floor, Goal::Reported)];
    rows.extend(others.rows(&times[0], &times[2..]));
    Ok(rows)
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let rules = |rounds, manner| Rules { rounds: effort.repeat(rounds), bytes: 8, manner, pause: Duration::ZERO };
    let mut others = Others::open(effort, &Pins::choose());
    let inline = compare(effort, Progress::Inline, rules(1_000, Manner::Poll), &mut others)?;
    drop(others);
    let mut writers = Others::that_only_write(effort, &Pins::choose());
    let words = compare(effort, Progress::Inline, rules(1_000, Manner::PollWord), &mut writers)?;
    drop(writers);
    let words = words.into_iter().map(|row| row.noted("inline on both sides, both polling the written word"));
    let (adaptive, sleeping) = (Progress::Adaptive, rules(100, Manner::SleepOnCounter));
    let threaded = compare(effort, adaptive, sleeping, &mut Others::default())?;
    let inline = inline.into_iter().map(|row| row.noted("inline on both sides, both polling the arrival counter"));
    let threaded = threaded
        .into_iter()
        .map(|row| row.noted("reported beside: adaptive workers, applications that sleep; each process on one core"));
    Ok(inline.chain(words).chain(threaded).collect())
}
