//! `penstock perf`: one workload, measured beside its floor and verified.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock::Config;
use penstock_lab::Workload;
use penstock_lab::ends::memif::{self, Memif};
use penstock_lab::ends::network::Network;
use penstock_lab::ends::on_device::MemoryKind;
use penstock_lab::measure::Limit;
use penstock_lab::perf::{self, CutOff, DeviceSide, Options, Packets, Report, Watch};
use penstock_lab::workload::Mergeable;

use crate::arguments::{self, Memory, Op, Pages, PerfLimit, PerfOptions, Transport};
use crate::console::{self, Progress, figure};
use crate::device;
use crate::failure::{Ended, Failure};
use crate::network::{self, NoSecret, Over};

/// More rounds than fit into any time that is asked for.
const ROUNDS_MAX: usize = 1_000_000;

/// The least size of either pool where none is named, in bytes: no time in which a link is idle is spent on pages that it will not
/// come to. And how many places for blocks of a layer it is limited to.
const POOL_BYTES: u64 = 512 << 20;
const POOL_BYTES_THERE: u64 = 256 << 20;
const PLACES: u64 = 1 << 20;

/// How often it is looked whether somebody has interrupted what is not measured yet.
const GLANCE: Duration = Duration::from_millis(20);

/// Longest time of a measurement of which only the rounds are given.
const ROUNDS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Measures, or lists what can be measured.
pub(crate) fn run(options: &PerfOptions) -> Result<Ended, Failure> {
    if options.list {
        console::print(&listed(&Workload::all()))?;
        return Ok(Ended::Well);
    }
    if options.memory == Some(Memory::Device) && options.host.is_none() && options.transport.is_none() {
        options.is_of_the_device_alone()?;
        let workload = Workload::find(&options.workload).map_err(perf::PerfError::from)?;
        let what = (options.sabotage, options.json);
        return device::measure(
            &workload,
            limit_of(&options.limit).unwrap_or(Options::new(workload.clone()).limit),
            what,
        );
    }
    let asked = asked(options)?;
    let over = Over::watch()?;
    let has_begun = end_before_it_begins(&over)?;
    let progress = Progress::new();
    let there = asked.network.host.as_ref().map(|host| format!(" to {host}")).unwrap_or_default();
    progress.say(&format!("preparing {} over {}{there}", asked.workload.name, asked.transport));
    let mut tell = |event| match event {
        perf::Progress::Begun => {
            has_begun.store(true, Ordering::Relaxed);
            progress.say(&format!("measuring {} over {}{there}", asked.workload.name, asked.transport));
        }
        perf::Progress::Interval(interval) => progress.note(&of_interval(&interval)),
    };
    let interval = Some(options.interval).filter(|interval| !interval.is_zero() && !options.json);
    let measured = perf::run_watched(&asked, &mut Watch { is_over: &|| over.is_set(), interval, tell: &mut tell });
    let mut report = match measured {
        // What failed meanwhile was swept away, and the other thread says so.
        Err(_) if over.is_set() && !has_begun.load(Ordering::Relaxed) => loop {
            std::thread::sleep(GLANCE);
        },
        measured => measured.map_err(|error| network::explained(error, asked.network.host.as_deref()))?,
    };
    drop(progress);
    if let (Some(CutOff::Failed(why)), Some(host)) = (&mut report.cut_off, &asked.network.host) {
        *why = network::with_doctor_of(host, why);
    }
    if options.json {
        console::print_json(&report)?
    } else {
        console::print(&shown(&report))?
    }
    if let Some(CutOff::Failed(why)) = &report.cut_off {
        console::complain(&format!("cut off: {why}"));
    }
    Ok(if report.verified == Some(true) && report.cut_off.is_none() { Ended::Well } else { Ended::Badly })
}

impl PerfOptions {
    /// Refuses what a device alone cannot be asked for.
    fn is_of_the_device_alone(&self) -> Result<(), Failure> {
        let given = [
            ("--config", self.config.is_some()),
            ("--op", self.op != Op::Write),
            ("--workers", self.workers != 1),
            ("--progress", self.progress != arguments::Progress::Adaptive),
            ("--pages", self.pages != Pages::Auto),
            ("--cores", !self.cores.is_empty()),
            ("--concurrency", self.concurrency != 1),
            ("--pool-mib", self.pool_mib.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map_or(Ok(()), |(option, _)| Err(Failure::DeviceAlone(option)))
    }
}

/// Until there is something to show, whoever interrupts waits for nothing: what was made so far is removed, and the process ends.
fn end_before_it_begins(over: &Over) -> Result<Arc<AtomicBool>, Failure> {
    let has_begun = Arc::new(AtomicBool::new(false));
    let (over, begun) = (over.clone(), Arc::clone(&has_begun));
    let watch = move || {
        while !begun.load(Ordering::Relaxed) {
            if over.is_set() {
                perf::sweep();
                console::complain(&"interrupted before anything was measured");
                std::process::exit(1);
            }
            std::thread::sleep(GLANCE);
        }
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(watch).map_err(Failure::Signals)?;
    Ok(has_begun)
}

/// A line for one interval.
fn of_interval(interval: &perf::Interval) -> String {
    let (from, to) = (interval.from.as_secs_f64(), interval.to.as_secs_f64());
    let rounds = interval.rounds;
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    format!("{from:>7.1} –{to:>6.1} s  {:>9}  {}, {rounds}", size(interval.bytes), rate(interval.gbps()))
}

/// A rate in bytes, and in bits as networks have it.
fn rate(gbps: f64) -> String {
    let bits = match gbps * 8.0 {
        gigabits @ 1.0.. => format!("{} Gbit/s", figure(gigabits)),
        gigabits => format!("{} Mbit/s", figure(gigabits * 1e3)),
    };
    match gbps {
        0.1.. => format!("{} GB/s ({bits})", figure(gbps)),
        _ => format!("{} MB/s ({bits})", figure(gbps * 1e3)),
    }
}

fn asked(options: &PerfOptions) -> Result<Options, Failure> {
    let mut asked = Options::new(Workload::find(&options.workload).map_err(perf::PerfError::from)?);
    let usual = if options.host.is_some() { Transport::Tcp } else { Transport::Shm };
    let transport = options.transport.unwrap_or(usual);
    asked.transport = transport.name();
    if transport != Transport::Verbs {
        let why = format!("is for RDMA devices, and this measures {}; add `--transport verbs`", asked.transport);
        options.network.cards.refuse(&why)?;
    }
    // Looked at here, so that what is wrong with it is said once and not by both ends.
    let mut cards = options.config.as_ref().map_or_else(|| Ok(Config::default()), Config::load)?;
    options.network.cards.overrule(&mut cards)?;
    if let Some(host) = &options.host {
        let host = network::with_port(host);
        NoSecret::check(&host, &options.network.configured(cards.clone())).map_err(Failure::NoSecret)?;
    }
    if transport == Transport::Dpdk && options.host.is_some() {
        let mend = "for another host name a device in a configuration, and add `--transport datagram --config FILE`";
        return Err(Failure::Memif(mend));
    }
    if options.host.is_none() && cards.dpdk.device.is_some() {
        return Err(Failure::OneDevice);
    }
    asked.network = Network {
        memif: (transport == Transport::Dpdk).then(|| Memif::new(memif::FRAME_BYTES)),
        io: options.network.io.into(),
        streams: options.network.streams,
        devices: cards.transports.verbs_devices,
        connect: cards.transports.verbs_connect,
        config: options.config.clone(),
        secret_file: options.network.secret_file.clone(),
        host: options.host.as_deref().map(network::with_port),
        ..Network::default()
    };
    if options.memory == Some(Memory::Device) {
        asked.memory[0] = MemoryKind::Device;
    }
    asked.op = options.op.into();
    asked.progress = options.progress.into();
    asked.pages = options.pages.into();
    asked.workers = options.workers;
    asked.cores.clone_from(&options.cores);
    asked.concurrency = options.concurrency;
    asked.pool_bytes_min = match options.pool_mib {
        Some(mib) => mib << 20,
        // So many places that blocks of a few bytes do not take longer to prepare than to measure.
        None => {
            let usual = if options.host.is_some() { POOL_BYTES_THERE } else { POOL_BYTES };
            (asked.workload.stride_bytes() * u64::from(asked.workload.layers)).saturating_mul(PLACES).min(usual)
        }
    };
    asked.is_sharp = true;
    asked.sabotage = options.sabotage;
    asked.limit = limit_of(&options.limit).unwrap_or(asked.limit);
    Ok(asked)
}

/// How long it is measured, if that was said.
fn limit_of(limit: &PerfLimit) -> Option<Limit> {
    match *limit {
        PerfLimit { seconds: Some(within), .. } => Some(Limit { rounds: ROUNDS_MAX, within }),
        PerfLimit { rounds: Some(rounds), .. } => Some(Limit { rounds, within: ROUNDS_WITHIN }),
        PerfLimit { seconds: None, rounds: None } => None,
    }
}

fn listed(workloads: &[Workload]) -> String {
    let head = ["name", "block", "blocks", "layers", "transfers", "bytes", "what it stands for"];
    let row = |workload: &Workload| {
        vec![
            workload.name.clone(),
            size(workload.block_bytes),
            workload.blocks.to_string(),
            workload.layers.to_string(),
            workload.batches.to_string(),
            size(workload.bytes()),
            workload.what.clone(),
        ]
    };
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned).to_vec()).chain(workloads.iter().map(row)).collect();
    let mut text = console::table(&rows, &[1, 2, 3, 4, 5]);
    if workloads.iter().any(|workload| workload.mergeable == Mergeable::None) {
        text.push_str("\n`<name>-half` is the variant in which every second block directly follows the one before;\n");
    }
    text.push_str("the path of a YAML file of the same form can be given instead of a name.\n");
    text
}

fn shown(report: &Report) -> String {
    let time = console::time;
    let own_ns = report.post_us_p50 * 1e3 / report.blocks.max(1) as f64;
    let cpu = of_cpu(report.cpu_s_per_gb, report.bytes_total, report.served_by.is_some());
    let (floor, vs_floor) = if report.served_by.is_some() {
        ("none: no thread here reaches the memory of another host".to_owned(), "–".to_owned())
    } else if report.floor_us.is_nan() || report.p50_us.is_nan() {
        ("none: it was cut off before".to_owned(), "–".to_owned())
    } else {
        let floor = format!("{} p50: the copy kernel alone, on as many bare threads, in turns", time(report.floor_us));
        (floor, format!("{:.2}×", report.p50_us / report.floor_us))
    };
    let times = format!(
        "{} p50, {} least, {} p90, {} p99",
        time(report.p50_us),
        time(report.min_us),
        time(report.p90_us),
        time(report.p99_us)
    );
    let own_cost = format!("{} a round without the copies, {} ns a block", time(report.post_us_p50), figure(own_ns));
    let none = || "none: no round came to its end".to_owned();
    let (is_known, total) = (report.rounds > 0, report.elapsed_s * 1e6);
    let verified = match (report.verified, &report.cut_off) {
        (Some(true), None) => "yes, every byte".to_owned(),
        (Some(true), Some(_)) => format!("yes, {} that had arrived", size(report.bytes_verified)),
        (Some(false), _) => "NO".to_owned(),
        (None, Some(_)) => "not looked at: cut off before".to_owned(),
        (None, None) => "not looked at".to_owned(),
    };
    let rows = [
        ("path", report.path.clone() + &of_device(report.device.as_ref())),
        ("moved", format!("{} in {}", size(report.bytes_total), time(total))),
        ("rate", rate(report.gbps)),
        ("time", if is_known { times } else { none() }),
        ("rate p50", if is_known { rate(report.gbps_p50) } else { none() }),
        ("floor", floor),
        ("vs floor", vs_floor),
        ("own cost", if is_known { own_cost } else { none() }),
        ("cpu", cpu),
        ("verified", verified),
    ];
    let cut_off = report.cut_off.iter().map(|why| ("cut off", why.to_string()));
    let (bytes, blocks) = (size(report.bytes), report.blocks);
    let title = format!(
        "{} over {}, {}: {blocks} block{}, {bytes} a round, {} round{}\n\n",
        report.workload,
        report.transport,
        report.op,
        if blocks == 1 { "" } else { "s" },
        report.rounds,
        if report.rounds == 1 { "" } else { "s" }
    );
    let address = report.address.iter().map(|address| ("address", address.clone()));
    let packets = report.packets.iter().map(|packets| ("packets", of_packets(packets)));
    let served = report.served_by.iter().map(|served| ("served by", served.clone()));
    let rows: Vec<_> = cut_off
        .chain(address)
        .chain(served)
        .chain(rows)
        .chain(packets)
        .map(|(label, value)| vec![label.to_owned(), value])
        .collect();
    title + &console::table(&rows, &[])
}

/// Memory of a device on this side, and how bytes get there.
fn of_device(side: Option<&DeviceSide>) -> String {
    let Some(DeviceSide { name, is_staged }) = side else { return String::new() };
    let way = if *is_staged { "through pinned memory of the host" } else { "reached directly" };
    format!("; memory here: {name}, {way}")
}

/// CPU time for 10^9 bytes.
fn of_cpu(s_per_gb: f64, bytes: u64, is_served: bool) -> String {
    match s_per_gb.is_nan() {
        true if bytes == 0 => "–".to_owned(),
        true => "unknown: the session is over".to_owned(),
        false if is_served => format!("{} s a GB, this process and its part of the one that serves", figure(s_per_gb)),
        false => format!("{} s a GB, both processes", figure(s_per_gb)),
    }
}

/// What became of packets, in one line.
fn of_packets(packets: &Packets) -> String {
    let Packets { sent, lost, spurious, round_trip_us, window_bytes, .. } = *packets;
    let loss = packets.loss * 100.0;
    let round_trip = console::time(round_trip_us);
    let window = size(window_bytes);
    format!(
        "{sent} sent, {lost} given up ({loss:.2} % lost, {spurious} had arrived), round trip {round_trip}, window {window}"
    )
}

/// Whole powers of 1024 as such, other sizes as three figures.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let exact = (1..UNITS.len()).rev().find(|&power| bytes.is_multiple_of(1 << (10 * power)) && bytes > 0);
    match (exact, bytes) {
        (Some(power), _) if bytes >> (10 * power) < 1024 => format!("{} {}", bytes >> (10 * power), UNITS[power]),
        (_, 1_000_000_000..) => format!("{} GB", figure(bytes as f64 / 1e9)),
        (_, 1_000_000..) => format!("{} MB", figure(bytes as f64 / 1e6)),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_figures_at_any_speed() {
        for (gbps, text) in [
            (3.333, "3.33 GB/s (26.7 Gbit/s)"),
            (0.1175, "0.117 GB/s (940 Mbit/s)"),
            (0.001175, "1.18 MB/s (9.40 Mbit/s)"),
            (0.0, "0.000 MB/s (0.000 Mbit/s)"),
        ] {
            assert_eq!(rate(gbps), text);
        }
    }

    #[test]
    fn cpu_time_is_for_bytes_that_were_moved() {
        for (s_per_gb, bytes, is_served, text) in [
            (f64::NAN, 0, true, "–"),
            (f64::NAN, 1, true, "unknown: the session is over"),
            (0.5, 1, true, "0.500 s a GB, this process and its part of the one that serves"),
            (0.5, 1, false, "0.500 s a GB, both processes"),
        ] {
            assert_eq!(of_cpu(s_per_gb, bytes, is_served), text);
        }
    }

    #[test]
    fn sizes_are_as_people_write_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_152, "1152 B"),
            (16 << 10, "16 KiB"),
            (72 << 10, "72 KiB"),
            (16_384_000, "16.4 MB"),
            (2_684_354_560, "2.68 GB"),
            (128 << 20, "128 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
