//! M10: between two RDMA devices of this machine, beside programs that do the same over the same devices. Where there are
//! none, in a virtual machine with soft ones.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Span, Submit, Window};

use super::guest;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::rally::{Manner, Rally, Rules};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::measure::cores::{self, Stay};
use crate::measure::{Limit, interleave, median, spread};
use crate::pattern;
use crate::peers::PeerError;
use crate::peers::perftest::{self, Devices, Run};

const VERBS: &str = "verbs";

/// Soft devices that the guest of the labs has, with a wire between them.
const SOFT: [&str; 2] = ["rxe_a0", "rxe_b0"];

/// What is wanted beside programs that know nothing but their devices.
const BANDWIDTH: Goal = Goal::RateAtLeast(0.97);
const LATENCY: Goal = Goal::RatioAtMost(1.05);
/// What merging is to gain.
const MERGED: Goal = Goal::QuickerBy(1.3);

const POOL_BYTES: u64 = 64 << 20;
const LARGE: u64 = 65_536;
const LARGE_BLOCKS: u64 = 128;
const BLOCK: u64 = 16_384;
/// Less than a packet: what a request costs by itself counts most.
const SMALL_BLOCK: u64 = 1_024;
const BLOCKS: u64 = 1_000;
/// Pieces of one request: what the soft device takes, and most cards at least.
const PIECES_TOGETHER: u64 = 32;

/// A program is begun for each figure of others, and takes its time to begin: longer than a session waits by itself. A machine
/// that is emulated greets slowly, too.
const SILENCE: Duration = Duration::from_secs(60);
/// One transfer, on devices that a slow machine emulates.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let chosen = match &effort.devices {
        Some([near, far]) => {
            let mend = "name two RDMA devices of this machine: `ls /sys/class/infiniband`";
            Some(Devices::find(near, far).ok_or(LabError::Option { option: "devices", mend })?)
        }
        None => Devices::find(SOFT[0], SOFT[1]),
    };
    match chosen {
        Some(devices) => Bench::open(effort, devices)?.measure(),
        None => Ok(guest::measure(effort).unwrap_or_else(|why| vec![absent(&why)])),
    }
}

fn absent(why: &str) -> Row {
    Row::unreached(VERBS, ("us", 1e3), ("perftest", &[]), Goal::Reported).noted(&format!("not measured: {why}"))
}

/// Who takes turns for one row, or two.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Perftest,
    /// The same once more: what two runs of one program differ by is no difference between programs.
    Again,
    AsyncRdma,
}

/// What turns took, in nanoseconds.
struct Times {
    engine: Vec<f64>,
    perftest: Vec<f64>,
    again: Vec<f64>,
    async_rdma: Vec<f64>,
}

impl Times {
    fn beside_perftest(&self, run: Run, goal: Goal, words: &str) -> Vec<Row> {
        let row = Row::compared(VERBS, (&self.engine, "us", 1e3), (run.program(), &self.perftest), goal);
        let own = Row::compared("perftest", (&self.again, "us", 1e3), (run.program(), &self.perftest), Goal::Reported);
        let own = own.noted(&spread(&self.again, &self.perftest));
        vec![
            row.noted(&spread(&self.engine, &self.perftest)).noted(words),
            own.noted("the same program against itself: what less than this differs by is not told by this machine"),
        ]
    }
}

struct Bench {
    effort: Effort,
    devices: Devices,
    async_rdma: Option<PathBuf>,
    ends: Ends,
    /// How many there are: one for everybody's initiator, another for everybody's target.
    cores: usize,
    /// The turns of the near end are taken by this thread.
    _stay: Stay,
}

impl Bench {
    fn open(effort: &Effort, devices: Devices) -> Result<Self, LabError> {
        let network = Network {
            devices: vec![devices.near.clone()],
            target_devices: vec![devices.far.clone()],
            patience: Some(SILENCE),
            ..Network::default()
        };
        // Everybody's initiator has one core and everybody's target the other.
        let (pins, cores) = (Pins::choose(), cores::available().len());
        let devices = devices.on_cores(&pins.near, &pins.far);
        let stay = Stay::on(&pins.near);
        let ends = Ends::open(&EndsSpec {
            transport: TransportName::Verbs,
            pool_bytes: POOL_BYTES,
            pages: PagesChoice::Small,
            progress: Progress::Inline,
            workers: 1,
            cores: Vec::new(),
            target_progress: Progress::Inline,
            target_cores: pins.far.clone(),
            spin: None,
            memory: [MemoryKind::Host; 2],
            target_program: effort.target_program.clone(),
            network,
        })?;
        Ok(Self { effort: effort.clone(), devices, async_rdma: perftest::async_rdma(), ends, cores, _stay: stay })
    }

    fn measure(mut self) -> Result<Vec<Row>, LabError> {
        // Words that are polled begin at zero on both sides, so they come before any pattern.
        let mut rows = self.small(Manner::PollWord)?;
        rows.extend(self.small(Manner::Poll)?);
        pattern::fill(self.ends.near.pool.window(), 1);
        rows.extend(self.large()?);
        rows.push(self.merged("kv16", BLOCK, MERGED)?);
        rows.push(self.merging("kv16", BLOCK)?);
        rows.push(self.merged("small blocks", SMALL_BLOCK, Goal::Reported)?);
        rows.push(self.merging("small blocks", SMALL_BLOCK)?);
        let Devices { near, far, .. } = &self.devices;
        let both = format!("from {near} to {far}, inline on both sides, {} cores", self.cores);
        Ok(rows.into_iter().map(|row| row.noted(&both)).collect())
    }

    fn limit(&self) -> Limit {
        match self.effort.quick {
            true => Limit { rounds: 3, within: Duration::from_secs(20) },
            false => Limit { rounds: 25, within: Duration::from_secs(100) },
        }
    }

    /// Blocks of 64 KiB to places that do not touch each other.
    fn large(&mut self) -> Result<Vec<Row>, LabError> {
        let blocks = self.effort.repeat(LARGE_BLOCKS);
        let spans: Vec<Span> = (0..blocks)
            .map(|place| Span { local: 2 * place * LARGE, remote: (2 * place + 1) * LARGE, len: LARGE })
            .collect();
        let plan = self.plan(&spans)?;
        let run = Run::WriteBandwidth { bytes: LARGE, count: self.effort.repeat(400) };
        let times = self.beside(run, |bench| bench.move_once(&plan).map(|nanos| nanos / blocks as f64))?;
        self.check(&spans)?;
        let words = format!("each of {blocks} writes of 64 KiB, bytes verified");
        let mut rows = times.beside_perftest(run, BANDWIDTH, &words);
        rows.push(self.beside_async_rdma(&times, "64 KiB each, 64 at a time"));
        Ok(rows)
    }

    /// Eight bytes there and eight bytes back.
    fn small(&mut self, manner: Manner) -> Result<Vec<Row>, LabError> {
        let rounds = self.effort.repeat(1_000);
        let rules = Rules { rounds, bytes: 8, manner, pause: Duration::ZERO };
        let (run, words) = match manner {
            Manner::PollWord => {
                (Run::WriteLatency { count: rounds }, "8 B one way, both sides polling the written word")
            }
            _ => (Run::SendLatency { count: rounds }, "8 B one way with an arrival that is counted"),
        };
        let times = self.beside(run, |bench| bench.rally(rules))?;
        let mut rows = times.beside_perftest(run, LATENCY, words);
        if manner == Manner::Poll {
            rows.push(self.beside_async_rdma(&times, "8 B one way, a write with an immediate"));
        }
        Ok(rows)
    }

    /// A thousand scattered blocks to places that follow each other, and to places that do not.
    fn merged(&mut self, name: &str, block: u64, goal: Goal) -> Result<Row, LabError> {
        let blocks = self.effort.repeat(BLOCKS);
        // Each source is far from the one before.
        let source = |place: u64| place * 379 % blocks * 2 * block;
        let spans = |apart: u64| -> Vec<Span> {
            let span = |place| Span { local: source(place), remote: place * apart * block, len: block };
            (0..blocks).map(span).collect()
        };
        self.effort.tell(&format!("{name} to places that follow each other, and the same apart"));
        let (together, apart) = (spans(1), spans(2));
        let plans = [self.plan(&together)?, self.plan(&apart)?];
        let times = interleave(self.limit(), &[0, 1], |which: usize| self.move_once(&plans[which]))?;
        for (spans, plan) in [(&apart, &plans[1]), (&together, &plans[0])] {
            pattern::wipe(&self.ends.far);
            self.move_once(plan)?;
            self.check(spans)?;
        }
        let row = Row::compared(VERBS, (&times[0], "us", 1e3), ("the same blocks, one request each", &times[1]), goal);
        let row = row.noted(&spread(&times[0], &times[1]));
        Ok(row.noted(&format!("{name}, {blocks} of {block} B to places that follow each other, bytes verified")))
    }

    /// What merging can gain at all on these devices: the same bytes by perftest, in requests of one block and of as many as
    /// one takes.
    fn merging(&mut self, name: &str, block: u64) -> Result<Row, LabError> {
        self.effort.tell(&format!("{name} by perftest, merged and not"));
        // perftest takes five requests at least, merged ones too.
        let blocks = self.effort.repeat(BLOCKS).max(10 * PIECES_TOGETHER) / PIECES_TOGETHER * PIECES_TOGETHER;
        let runs = [
            (Run::WriteBandwidth { bytes: block * PIECES_TOGETHER, count: blocks / PIECES_TOGETHER }, PIECES_TOGETHER),
            (Run::WriteBandwidth { bytes: block, count: blocks }, 1),
        ];
        let times = interleave(self.limit(), &runs, |(run, of)| {
            let nanos = perftest::measure(&self.devices, run, &mut || self.keep_up()).map_err(failed)?;
            Ok::<_, LabError>(nanos / of as f64)
        })?;
        let figures = (&times[0][..], "us", 1e3);
        let row = Row::compared("perftest", figures, ("ib_write_bw", &times[1]), Goal::Reported);
        let row = row.noted(&spread(&times[0], &times[1]));
        let together = block * PIECES_TOGETHER;
        Ok(row.noted(&format!("what merging {name} can gain here: requests of {together} B against {block} B")))
    }

    /// The engine, perftest twice and the other program in turns. The last has no figure where it is absent.
    fn beside(
        &mut self,
        run: Run,
        mut engine: impl FnMut(&mut Self) -> Result<f64, LabError>,
    ) -> Result<Times, LabError> {
        self.effort.tell(&format!("beside {run:?}"));
        let turns = [Turn::Engine, Turn::Perftest, Turn::Again, Turn::AsyncRdma];
        // It has nothing to compare where words are polled.
        let has_guest = self.async_rdma.is_some() && !matches!(run, Run::WriteLatency { .. });
        let turns = &turns[..if has_guest { 4 } else { 3 }];
        let mut times = interleave(self.limit(), turns, |turn| match turn {
            Turn::Engine => engine(self),
            Turn::Perftest | Turn::Again => {
                perftest::measure(&self.devices, run, &mut || self.keep_up()).map_err(failed)
            }
            Turn::AsyncRdma => match &self.async_rdma {
                Some(program) => {
                    let meanwhile = &mut || self.keep_up();
                    perftest::measure_async_rdma(program, &self.devices, (run, 64), meanwhile).map_err(failed)
                }
                None => Ok(f64::NAN),
            },
        })?;
        let mut next = || if times.is_empty() { Vec::new() } else { times.remove(0) };
        Ok(Times { engine: next(), perftest: next(), again: next(), async_rdma: next() })
    }

    fn beside_async_rdma(&self, times: &Times, words: &str) -> Row {
        let figures = (&times.engine[..], "us", 1e3);
        let row = Row::compared(VERBS, figures, ("async-rdma 0.5", &times.async_rdma), Goal::Reported);
        if self.async_rdma.is_none() {
            let why = "not measured: build it with \
                       `cargo build --release --locked --manifest-path bench/peers/async-rdma/Cargo.toml`";
            return row.without_comparator().noted(why);
        }
        row.noted(&spread(&times.engine, &times.async_rdma)).noted(words)
    }

    /// One way, in nanoseconds: half of the median of all round trips, as programs of perftest reckon what is typical.
    fn rally(&mut self, rules: Rules) -> Result<f64, LabError> {
        self.ends.begin(&Command::Rally(rules))?;
        let times = Rally::new(&self.ends.near, &self.ends.peer, rules)?.send_first_each()?;
        match self.ends.settle()? {
            Reply::Rallied { .. } => Ok(median(&times) / 2.0),
            other => Err(other.unexpected()),
        }
    }

    /// Turns the engine while others have their turn: its session is to stand when it is over, whatever a busy device does to
    /// its queues.
    fn keep_up(&self) {
        // If it cannot, its own next turn says so.
        let _ = self.ends.near.turn();
    }

    fn plan(&self, spans: &[Span]) -> Result<Plan, LabError> {
        let plan = Plan::write(&self.ends.near.pool, &self.ends.remote).extents(spans).build();
        plan.map_err(LabError::refused("plan writes"))
    }

    /// Moves a plan, as a program without threads does. Answers nanoseconds.
    fn move_once(&self, plan: &Plan) -> Result<f64, LabError> {
        let start = Instant::now();
        let transfer = self.ends.peer.submit(plan, Submit::new().within(PATIENCE));
        let transfer = transfer.map_err(LabError::refused("submit a plan"))?;
        loop {
            if let Some(ended) = transfer.poll() {
                ended?;
                return Ok(start.elapsed().as_nanos() as f64);
            }
            self.ends.near.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
        }
    }

    /// Whether all bytes of these spans are where they were sent.
    fn check(&self, spans: &[Span]) -> Result<(), LabError> {
        let (from, to) = (self.ends.near.pool.window(), &self.ends.far);
        let read = |window: &Window, at, bytes: &mut [u8]| {
            window.read_into(at, bytes).map_err(LabError::refused("look at what was moved"))
        };
        for span in spans {
            let (mut sent, mut found) = (vec![0; span.len as usize], vec![0; span.len as usize]);
            read(from, span.local, &mut sent)?;
            read(to, span.remote, &mut found)?;
            if sent != found {
                let why = format!("the {} bytes at {} are not those that were sent", span.len, span.remote);
                return Err(LabError::Target { why });
            }
        }
        Ok(())
    }
}

fn failed(error: PeerError) -> LabError {
    LabError::refused("measure what the devices do by themselves")(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_not_there_are_refused_and_none_at_all_are_a_row_with_a_reason() {
        let named = Effort { devices: Some(["no-such".to_owned(), "device".to_owned()]), ..Effort::default() };
        assert!(measure(&named).unwrap_err().to_string().contains("devices"));
        let row = absent("there is no emulator");
        assert_eq!((row.figure, row.met), (None, None));
        assert!(row.note.contains("not measured: there is no emulator"), "{}", row.note);
    }
}
