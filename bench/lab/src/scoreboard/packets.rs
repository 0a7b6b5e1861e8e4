//! M11 and M11u: the engine's own packets over DPDK and over UDP, against a bare queue or socket that carries the same frames, against
//! itself where packets are lost, and against TCP.

use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Span, Submit, Transfer};
use penstock_datagram_transport::dpdk::DpdkPorts;

use super::arrival::rally;
use super::rivals::Rival;
use super::row::{Goal, Row};
use super::wake::idle_share;
use super::{Effort, Pins};
use crate::ends::datagrams::Datagrams;
use crate::ends::memif::Memif;
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::rally::{Manner, Rules};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::clock::process_cpu;
use crate::measure::cores::Stay;
use crate::measure::{Limit, interleave};
use crate::peers::tools::{IPERF3, Meter};
use crate::perf::Options;
use crate::workload::Workload;

const DATAGRAM: &str = "datagram";

/// What carries packets between the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// Sockets, over loopback.
    Udp,
    /// A queue of DPDK on each side, through memory that both share.
    Memif,
}

impl Over {
    /// Frames of a network whose MTU is 1,500, and the longest ones.
    fn frames(self) -> [usize; 2] {
        match self {
            Self::Udp => [1_472, 65_507],
            Self::Memif => [1_472, 8_972],
        }
    }

    /// What the engine is held against, in words.
    fn bare(self) -> &'static str {
        match self {
            Self::Udp => "sendmsg and recvmsg of the same frames",
            Self::Memif => "bursts of the same frames through a bare queue",
        }
    }

    /// What a small write may take, in nanoseconds.
    fn each_ns(self) -> f64 {
        match self {
            Self::Udp => 2_000.0,
            Self::Memif => 1_000.0,
        }
    }

    fn network(self, frame_bytes: usize) -> Network {
        let memif = (self == Self::Memif).then(|| Memif::new(frame_bytes));
        Network { frame_bytes: Some(frame_bytes), memif, ..Network::default() }
    }
}

const WORKLOADS: [&str; 2] = ["kv16", "w5"];
/// As much of the bare calls' rate is wanted.
const BARE: Goal = Goal::RateAtLeast(0.80);
/// The part of packets that is lost, of a million, and what is wanted of the own rate then.
const LOSS_PPM: u32 = 10_000;
const WITH_LOSS: Goal = Goal::RateAtLeast(0.90);
/// Small writes under way at once.
const UNDER_WAY: usize = 64;
const SMALL_BYTES: u64 = 64;
/// A write whose arrival is waited for, and what it may take beside a bare frame.
const WORD_BYTES: u64 = 8;
const LATENCY: Goal = Goal::RatioAtMost(1.5);
/// So long that everybody who naps naps for as long as it does.
const REST: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(20);
const IPERF3_BYTES: u64 = 512 << 20;

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    all(effort, Over::Udp)
}

/// Over DPDK, where the library between it and the engine is.
pub(super) fn measure_over_dpdk(effort: &Effort) -> Result<Vec<Row>, LabError> {
    match DpdkPorts::release() {
        Ok(release) => {
            let mut rows = all(effort, Over::Memif)?;
            effort.tell("one small write and its arrival");
            rows.extend(latency(effort)?);
            effort.tell("after a rest");
            rows.extend(resting(effort)?);
            Ok(rows.into_iter().map(|row| row.noted(&format!("DPDK {release}, memif"))).collect())
        }
        Err(why) => {
            let row = Row::unreached(DATAGRAM, ("us", 1e3), (Over::Memif.bare(), &[]), BARE);
            Ok(vec![row.noted(&format!("not measured: {why}"))])
        }
    }
}

fn all(effort: &Effort, over: Over) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    // In pools of 512 MB each of the eight takes its time.
    let workloads = if effort.quick { &WORKLOADS[..1] } else { &WORKLOADS };
    for frame_bytes in over.frames() {
        for workload in workloads {
            effort.tell(&format!("{workload} in frames of {frame_bytes} B"));
            rows.extend(bulk(effort, &Workload::find(workload)?, over, frame_bytes)?);
        }
    }
    effort.tell("small writes");
    let small = over.frames().map(|frame_bytes| small(effort, over, frame_bytes));
    rows.extend(small.into_iter().collect::<Result<Vec<_>, _>>()?);
    Ok(rows)
}

/// How long everybody goes on in one turn, and how many turns there are.
fn slices(effort: &Effort) -> (Duration, Limit) {
    match effort.quick {
        true => (Duration::from_millis(60), Limit { rounds: 2, within: Duration::from_secs(4) }),
        false => (Duration::from_secs(1), Limit { rounds: 11, within: Duration::from_secs(90) }),
    }
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Bare,
    Lossy,
    Checked,
    Udp,
    Tcp,
    Iperf3,
}

/// One workload by everybody, in turns.
fn bulk(effort: &Effort, workload: &Workload, over: Over, frame_bytes: usize) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(workload.clone());
    if effort.quick {
        options.pool_bytes_min = 4 * workload.bytes();
    }
    let spec = options.layout();
    let open = |transport, network| Mover::open(effort, &pins, &spec, transport, network);
    let own = |network: Network| open(TransportName::Datagram, network);
    let mut engine = own(over.network(frame_bytes))?;
    let mut lossy = own(Network { loss_ppm: LOSS_PPM, ..over.network(frame_bytes) })?;
    // What goes through memory alone has no checksums, and UDP beside it.
    let mut checked = match over {
        Over::Udp => own(Network { checksums: true, ..over.network(frame_bytes) })?,
        Over::Memif => own(Network::default())?,
    };
    let mut tcp = open(TransportName::Tcp, Network::default())?;
    let mut bare = Bare::open(effort, &pins, &spec, over, frame_bytes)?;
    let mut meter: Rival<Meter> = Rival::meter(effort, &IPERF3, Goal::Reported, &pins);
    let (span, limit) = slices(effort);
    let beside = if over == Over::Udp { Turn::Checked } else { Turn::Udp };
    let turns = [Turn::Engine, Turn::Bare, Turn::Lossy, beside, Turn::Tcp, Turn::Iperf3];
    let times = interleave(limit, &turns, |turn| match turn {
        Turn::Engine => engine.slice(span),
        Turn::Lossy => lossy.slice(span),
        Turn::Checked | Turn::Udp => checked.slice(span),
        Turn::Tcp => tcp.slice(span),
        Turn::Bare => bare.slice(span),
        Turn::Iperf3 => Ok(meter.measure(IPERF3_BYTES) * workload.bytes() as f64),
    })?;
    let verified = engine.prove()? + lossy.prove()? + checked.prove()? + tcp.prove()? + bare.prove()?;
    let figures = (&times[0][..], "us", 1e3);
    let loss = lossy.ends.peer.packets().map_or(0.0, |of_peer| of_peer.packets.loss());
    let lost = format!("its own rate without loss; {:.2} % of the sender's packets were lost", loss * 100.0);
    let cost = |mover: &Mover| mover.cpu.as_secs_f64() * 1e9 / mover.moved as f64;
    let beside = match over {
        Over::Udp => {
            Row::compared(DATAGRAM, (&times[3], "us", 1e3), ("the same without checksums", &times[0]), Goal::Reported)
                .noted("packets carry a CRC32C of their payload")
        }
        Over::Memif => Row::compared(DATAGRAM, figures, ("the same over UDP", &times[3]), Goal::Reported)
            .costing(Some(cost(&engine)), Some(cost(&checked))),
    };
    let rows = [
        Row::compared(DATAGRAM, figures, (over.bare(), &times[1]), BARE),
        Row::compared(DATAGRAM, (&times[2], "us", 1e3), ("the same without loss", &times[0]), WITH_LOSS).noted(&lost),
        beside,
        Row::compared(DATAGRAM, figures, ("transport tcp", &times[4]), Goal::Reported)
            .costing(Some(cost(&engine)), Some(cost(&tcp))),
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
fn small(effort: &Effort, over: Over, frame_bytes: usize) -> Result<Row, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let spec = ends_of(effort, &pins, TransportName::Datagram, over.network(frame_bytes));
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
    let row = Row::alone(DATAGRAM, each, "ns", Goal::AtMost(over.each_ns()));
    let words = format!(
        "writes of {SMALL_BYTES} B in frames of {frame_bytes} B, {UNDER_WAY} under way, each with its own completion: {:.2} million a second by one core",
        1e3 / each
    );
    Ok(row.noted(&words))
}

/// Small writes there and back, one by one, between inline engines that look all the time.
fn latency(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let rounds = effort.repeat(2_000);
    let rules = Rules { rounds, bytes: WORD_BYTES, manner: Manner::Poll, pause: Duration::ZERO };
    let open = |transport, network| {
        let spec = ends_of(effort, &pins, transport, network);
        let inline = Progress::Inline;
        let spec =
            EndsSpec { progress: inline, target_progress: inline, pool_bytes: 1 << 20, cores: Vec::new(), ..spec };
        let mut ends = Ends::open(&spec)?;
        // Nobody turns this end while others are opened, and a peer of which not one packet has come is soon given up.
        rally(&mut ends, Rules { rounds: 10, ..rules })?;
        Ok::<_, LabError>(ends)
    };
    let [frame_bytes, _] = Over::Memif.frames();
    let mut engine = open(TransportName::Datagram, Over::Memif.network(frame_bytes))?;
    let mut udp = open(TransportName::Datagram, Network::default())?;
    let mut tcp = open(TransportName::Tcp, Network::default())?;
    // Lends its processes only: its engines meet in shared memory and have nothing to do.
    let mut lent = open(TransportName::Shm, Network::default())?;
    let mut bare = Datagrams::open_memif(&mut lent, frame_bytes)?;
    let turns = [Turn::Engine, Turn::Bare, Turn::Udp, Turn::Tcp];
    let times = interleave(effort.limit_of_short(), &turns, |turn| match turn {
        Turn::Engine => rally(&mut engine, rules),
        Turn::Udp => rally(&mut udp, rules),
        Turn::Tcp => rally(&mut tcp, rules),
        _ => bare.volley(&mut lent, rounds as u32, 2 * WORD_BYTES as usize),
    })?;
    let figures = (&times[0][..], "us", 1e3);
    let rows = [
        Row::compared(DATAGRAM, figures, ("a frame there and back through a bare queue", &times[1]), LATENCY),
        Row::compared(DATAGRAM, figures, ("the same over UDP", &times[2]), Goal::Reported),
        Row::compared(DATAGRAM, figures, ("transport tcp", &times[3]), Goal::Reported),
    ];
    Ok(rows.map(|row| row.noted("8 B and their arrival, one way, inline on both sides")).into())
}

/// Small writes there and back between threaded engines that have been idle for a while, and what idling costs.
fn resting(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let open = |network| {
        let spec = ends_of(effort, &pins, TransportName::Datagram, network);
        Ends::open(&EndsSpec { pool_bytes: 1 << 20, ..spec })
    };
    let [frame_bytes, _] = Over::Memif.frames();
    let (mut engine, mut udp) = (open(Over::Memif.network(frame_bytes))?, open(Network::default())?);
    let rules = Rules { rounds: effort.repeat(10), bytes: WORD_BYTES, manner: Manner::SleepOnNote, pause: REST };
    let times = interleave(effort.limit(), &[Turn::Engine, Turn::Udp], |turn| match turn {
        Turn::Engine => rally(&mut engine, rules),
        _ => rally(&mut udp, rules),
    })?;
    let woken = Row::compared(DATAGRAM, (&times[0], "us", 1e3), ("the same over UDP", &times[1]), Goal::Reported);
    let mut rows =
        vec![woken.noted(&format!("8 B and their notification, one way, after a rest of {REST:?}, threaded"))];
    let idle = Duration::from_millis(if effort.quick { 500 } else { 3_000 });
    for (ends, over) in [(&mut engine, "DPDK"), (&mut udp, "UDP")] {
        let share = idle_share(ends, idle)?;
        let row = Row::alone(DATAGRAM, share * 100.0, "% of a CPU", Goal::Reported);
        rows.push(row.noted(&format!("idle, threaded, over {over}, the busier of both sides")));
    }
    Ok(rows)
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
        memory: [MemoryKind::Host; 2],
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
    /// Bytes that were moved in all slices, and the processors' time for them, on both sides.
    moved: u64,
    cpu: Duration,
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
        Ok(Self { ends, spec: spec.clone(), plans, next: 0, far: pins.far.clone(), moved: 0, cpu: Duration::ZERO })
    }

    /// Goes on for so long. Answers the time of one round.
    fn slice(&mut self, span: Duration) -> Result<f64, LabError> {
        let cpu = |ends: &mut Ends| Ok::<_, LabError>(process_cpu() + ends.target_cpu()?);
        let before = cpu(&mut self.ends)?;
        let (start, mut count) = (Instant::now(), 0_u32);
        while start.elapsed() < span || count == 0 {
            self.round()?;
            count += 1;
        }
        let elapsed = start.elapsed();
        self.cpu += cpu(&mut self.ends)?.saturating_sub(before);
        self.moved += u64::from(count) * self.spec.workload.bytes();
        Ok(elapsed.as_nanos() as f64 / f64::from(count))
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

/// Bare frames between two pools of their own that are like the engine's.
struct Bare {
    ends: Ends,
    spec: LayoutSpec,
    datagrams: Datagrams,
    near: Vec<usize>,
}

impl Bare {
    fn open(effort: &Effort, pins: &Pins, spec: &LayoutSpec, over: Over, frame_bytes: usize) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        // Only its pools and its processes take part; engines that meet in shared memory sleep meanwhile.
        let ends = ends_of(effort, pins, TransportName::Shm, Network::default());
        let mut ends = Ends::open(&EndsSpec { pool_bytes: layout.pool_bytes(), cores: Vec::new(), ..ends })?;
        layout.fill(ends.near.pool.window());
        let mut datagrams = match over {
            Over::Udp => Datagrams::open(&mut ends, frame_bytes)?,
            Over::Memif => Datagrams::open_memif(&mut ends, frame_bytes)?,
        };
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
