//! M11u: the engine's own packets over UDP, against a bare socket that carries the same frames, against itself where packets are lost,
//! and against TCP.

use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Span, Submit, Transfer};

use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::datagrams::Datagrams;
use crate::ends::network::Network;
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::Stay;
use crate::measure::{Limit, interleave};
use crate::peers::tools::{IPERF3, Meter};
use crate::perf::Options;
use crate::workload::Workload;

const DATAGRAM: &str = "datagram";
const LOOP: &str = "sendmsg and recvmsg of the same frames";
/// Frames of a network whose MTU is 1,500, and the longest ones.
const FRAMES: [usize; 2] = [1_472, 65_507];
const WORKLOADS: [&str; 2] = ["kv16", "w5"];
/// As much of the bare calls' rate is wanted.
const BARE: Goal = Goal::RateAtLeast(0.80);
/// The part of packets that is lost, of a million, and what is wanted of the own rate then.
const LOSS_PPM: u32 = 10_000;
const WITH_LOSS: Goal = Goal::RateAtLeast(0.90);
/// Small writes under way at once, and what each may take.
const UNDER_WAY: usize = 64;
const SMALL_BYTES: u64 = 64;
const EACH_NS: f64 = 2_000.0;
const PATIENCE: Duration = Duration::from_secs(20);
const IPERF3_BYTES: u64 = 512 << 20;

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    // In pools of 512 MB each of the eight takes its time.
    let workloads = if effort.quick { &WORKLOADS[..1] } else { &WORKLOADS };
    for frame_bytes in FRAMES {
        for workload in workloads {
            effort.tell(&format!("{workload} in frames of {frame_bytes} B"));
            rows.extend(bulk(effort, &Workload::find(workload)?, frame_bytes)?);
        }
    }
    effort.tell("small writes");
    rows.extend(FRAMES.map(|frame_bytes| small(effort, frame_bytes)).into_iter().collect::<Result<Vec<_>, _>>()?);
    Ok(rows)
}

/// How long everybody goes on in one turn, and how many turns there are.
fn slices(effort: &Effort) -> (Duration, Limit) {
    match effort.quick {
        true => (Duration::from_millis(60), Limit { rounds: 2, within: Duration::from_secs(4) }),
        false => (Duration::from_secs(1), Limit { rounds: 11, within: Duration::from_secs(90) }),
    }
}

/// Goes on for so long. Answers the time of one.
fn slice(span: Duration, mut one: impl FnMut() -> Result<(), LabError>) -> Result<f64, LabError> {
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < span {
        one()?;
        count += 1;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count.max(1)))
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Bare,
    Lossy,
    Checked,
    Tcp,
    Iperf3,
}

/// One workload by everybody, in turns.
fn bulk(effort: &Effort, workload: &Workload, frame_bytes: usize) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(workload.clone());
    if effort.quick {
        options.pool_bytes_min = 4 * workload.bytes();
    }
    let spec = options.layout();
    let of_loss = |loss_ppm| Network { frame_bytes: Some(frame_bytes), loss_ppm, ..Network::default() };
    let with_checksums = Network { checksums: true, ..of_loss(0) };
    let mut engine = Mover::open(effort, &pins, &spec, TransportName::Datagram, of_loss(0))?;
    let mut lossy = Mover::open(effort, &pins, &spec, TransportName::Datagram, of_loss(LOSS_PPM))?;
    let mut checked = Mover::open(effort, &pins, &spec, TransportName::Datagram, with_checksums)?;
    let mut tcp = Mover::open(effort, &pins, &spec, TransportName::Tcp, Network::default())?;
    let mut bare = Bare::open(effort, &pins, &spec, frame_bytes)?;
    let mut meter: Rival<Meter> = Rival::meter(effort, &IPERF3, Goal::Reported, &pins);
    let (span, limit) = slices(effort);
    let turns = [Turn::Engine, Turn::Bare, Turn::Lossy, Turn::Checked, Turn::Tcp, Turn::Iperf3];
    let times = interleave(limit, &turns, |turn| match turn {
        Turn::Engine => slice(span, || engine.round()),
        Turn::Lossy => slice(span, || lossy.round()),
        Turn::Checked => slice(span, || checked.round()),
        Turn::Tcp => slice(span, || tcp.round()),
        Turn::Bare => bare.slice(span),
        Turn::Iperf3 => Ok(meter.measure(IPERF3_BYTES) * workload.bytes() as f64),
    })?;
    let verified = engine.prove()? + lossy.prove()? + checked.prove()? + tcp.prove()? + bare.prove()?;
    let figures = (&times[0][..], "us", 1e3);
    let loss = lossy.ends.peer.packets().map_or(0.0, |of_peer| of_peer.packets.loss());
    let own = format!("its own rate without loss; {:.2} % of the sender's packets were lost", loss * 100.0);
    let rows = [
        Row::compared(DATAGRAM, figures, (LOOP, &times[1]), BARE),
        Row::compared(DATAGRAM, (&times[2], "us", 1e3), ("the same without loss", &times[0]), WITH_LOSS).noted(&own),
        Row::compared(DATAGRAM, (&times[3], "us", 1e3), ("the same without checksums", &times[0]), Goal::Reported)
            .noted("packets carry a CRC32C of their payload"),
        Row::compared(DATAGRAM, figures, ("transport tcp", &times[4]), Goal::Reported),
        meter.row(DATAGRAM, figures, &times[5]).noted("the time of as many bytes in one stream between small buffers"),
    ];
    let rate = |times: &[f64]| workload.bytes() as f64 / crate::measure::median(times);
    let words = format!(
        "{}, frames of {frame_bytes} B, {:.2} GB/s, slices of {span:?}, one adaptive worker, {} MB verified",
        workload.name,
        rate(&times[0]),
        verified / 1_000_000,
    );
    Ok(rows.into_iter().map(|row| row.noted(&words)).collect())
}

/// Writes of 64 B, each a transfer of its own with its completion, over inline engines.
fn small(effort: &Effort, frame_bytes: usize) -> Result<Row, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let network = Network { frame_bytes: Some(frame_bytes), ..Network::default() };
    let spec = ends_of(effort, &pins, TransportName::Datagram, network);
    let inline = EndsSpec { progress: Progress::Inline, pool_bytes: 1 << 20, cores: Vec::new(), ..spec };
    let ends = Ends::open(&inline)?;
    let plans: Vec<Plan> = (0..UNDER_WAY as u64)
        .map(|place| {
            let span = Span { local: 128 * place, remote: 128 * place, len: SMALL_BYTES };
            Plan::write(&ends.near.pool, &ends.remote).extents(&[span]).build()
        })
        .collect::<Result<_, _>>()
        .map_err(LabError::refused("plan a small write"))?;
    let begin = |plan| ends.peer.submit(plan, Submit::new()).map_err(LabError::refused("submit a small write"));
    let mut under_way: Vec<Transfer<_>> = plans.iter().map(begin).collect::<Result<_, _>>()?;
    let (span, limit) = slices(effort);
    let times = interleave(limit, &[()], |()| {
        let (start, mut ended) = (Instant::now(), 0_u32);
        while start.elapsed() < span || ended == 0 {
            ends.near.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
            for (transfer, plan) in under_way.iter_mut().zip(&plans) {
                if let Some(result) = transfer.poll() {
                    result?;
                    ended += 1;
                    *transfer = begin(plan)?;
                }
            }
            if start.elapsed() > PATIENCE {
                return Err(LabError::Silent { doing: "end a small write", waited: PATIENCE });
            }
        }
        Ok::<_, LabError>(start.elapsed().as_nanos() as f64 / f64::from(ended))
    })?;
    let each = crate::measure::median(&times[0]);
    let row = Row::alone(DATAGRAM, each, "ns", Goal::AtMost(EACH_NS));
    let words = format!(
        "writes of {SMALL_BYTES} B in frames of {frame_bytes} B, {UNDER_WAY} under way, each with its own completion: {:.2} million a second by one core",
        1e3 / each
    );
    Ok(row.noted(&words))
}

fn ends_of(effort: &Effort, pins: &Pins, transport: TransportName, network: Network) -> EndsSpec {
    EndsSpec {
        transport,
        pool_bytes: 0,
        pages: PagesChoice::Small,
        progress: Progress::Adaptive,
        workers: 1,
        cores: pins.near.clone(),
        target_progress: Progress::Adaptive,
        target_cores: pins.far.clone(),
        spin: None,
        target_program: effort.target_program.clone(),
        network,
    }
}

/// An engine that moves one set of a layout after the other.
struct Mover {
    ends: Ends,
    spec: LayoutSpec,
    plans: Vec<Plan>,
    next: usize,
    far: Vec<usize>,
}

impl Mover {
    fn open(
        effort: &Effort,
        pins: &Pins,
        spec: &LayoutSpec,
        transport: TransportName,
        network: Network,
    ) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        let ends = EndsSpec { pool_bytes: layout.pool_bytes(), ..ends_of(effort, pins, transport, network) };
        let ends = Ends::open(&ends)?;
        layout.fill(ends.near.pool.window());
        let plan = |set| {
            let spans: Vec<Span> = layout.spans(set).collect();
            Plan::write(&ends.near.pool, &ends.remote).extents(&spans).build()
        };
        let plans = (0..layout.sets().len()).map(plan).collect::<Result<_, _>>();
        let plans = plans.map_err(LabError::refused("plan a set of blocks"))?;
        Ok(Self { ends, spec: spec.clone(), plans, next: 0, far: pins.far.clone() })
    }

    fn round(&mut self) -> Result<(), LabError> {
        // The application's thread keeps away from the worker that sends.
        let _stay = Stay::on(&self.far);
        let plan = &self.plans[self.next];
        self.next = (self.next + 1) % self.plans.len();
        let transfer = self.ends.peer.submit(plan, Submit::new().within(PATIENCE));
        transfer.map_err(LabError::refused("submit a set of blocks"))?.wait()?;
        Ok(())
    }

    /// Wipes the target's pool, moves every set, and has the target look at every byte. Answers how many.
    fn prove(&mut self) -> Result<u64, LabError> {
        wipe(&mut self.ends, &self.spec)?;
        (0..self.plans.len()).try_for_each(|_| self.round())?;
        check(&mut self.ends, &self.spec)
    }
}

/// Bare sockets between two pools of their own that are like the engine's.
struct Bare {
    ends: Ends,
    spec: LayoutSpec,
    datagrams: Datagrams,
    near: Vec<usize>,
}

impl Bare {
    fn open(effort: &Effort, pins: &Pins, spec: &LayoutSpec, frame_bytes: usize) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        // Only its pools and its processes take part; engines that meet in shared memory sleep meanwhile.
        let ends = ends_of(effort, pins, TransportName::Shm, Network::default());
        let mut ends = Ends::open(&EndsSpec { pool_bytes: layout.pool_bytes(), cores: Vec::new(), ..ends })?;
        layout.fill(ends.near.pool.window());
        let mut datagrams = Datagrams::open(&mut ends, frame_bytes)?;
        datagrams.deal(&mut ends, spec)?;
        Ok(Self { ends, spec: spec.clone(), datagrams, near: pins.near.clone() })
    }

    fn slice(&mut self, span: Duration) -> Result<f64, LabError> {
        let _stay = Stay::on(&self.near);
        let Self { ends, datagrams, .. } = self;
        // What the two processes say to each other before and after a round is not its time.
        let (start, mut nanos, mut count) = (Instant::now(), 0.0, 0.0);
        while start.elapsed() < span {
            nanos += datagrams.round(ends)?.nanos;
            count += 1.0;
        }
        Ok(nanos / f64::max(count, 1.0))
    }

    fn prove(&mut self) -> Result<u64, LabError> {
        wipe(&mut self.ends, &self.spec)?;
        self.datagrams.all(&mut self.ends)?;
        check(&mut self.ends, &self.spec)
    }
}

fn wipe(ends: &mut Ends, spec: &LayoutSpec) -> Result<(), LabError> {
    match ends.ask(&Command::Wipe(spec.clone()))? {
        Reply::Done => Ok(()),
        other => Err(other.unexpected()),
    }
}

fn check(ends: &mut Ends, spec: &LayoutSpec) -> Result<u64, LabError> {
    match ends.ask(&Command::Check(spec.clone()))? {
        Reply::Checked { bytes } => Ok(bytes),
        other => Err(other.unexpected()),
    }
}
