//! `penstock perf`: one workload, measured beside its floor and verified.

use std::time::Duration;

use penstock::Config;
use penstock_lab::Workload;
use penstock_lab::ends::network::Network;
use penstock_lab::measure::Limit;
use penstock_lab::perf::{self, Options, Report};
use penstock_lab::workload::Mergeable;

use crate::arguments::{PerfLimit, PerfOptions, Transport};
use crate::console::{self, Progress, figure};
use crate::failure::{Ended, Failure};
use crate::network::{self, NoSecret};

/// More rounds than fit into any time that is asked for.
const ROUNDS_MAX: usize = 1_000_000;

/// Longest time of a measurement of which only the rounds are given.
const ROUNDS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Measures, or lists what can be measured.
pub(crate) fn run(options: &PerfOptions) -> Result<Ended, Failure> {
    if options.list {
        console::print(&listed(&Workload::all()))?;
        return Ok(Ended::Well);
    }
    let asked = asked(options)?;
    let progress = Progress::new();
    let there = asked.network.host.as_ref().map(|host| format!(" to {host}")).unwrap_or_default();
    progress.say(&format!("measuring {} over {}{there}", asked.workload.name, asked.transport));
    let report = perf::run(&asked).map_err(|error| network::explained(error, asked.network.host.as_deref()))?;
    drop(progress);
    if options.json {
        console::print_json(&report)?
    } else {
        console::print(&shown(&report))?
    }
    Ok(if report.verified { Ended::Well } else { Ended::Badly })
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
    asked.network = Network {
        io: options.network.io.into(),
        streams: options.network.streams,
        devices: cards.transports.verbs_devices,
        connect: cards.transports.verbs_connect,
        config: options.config.clone(),
        secret_file: options.network.secret_file.clone(),
        host: options.host.as_deref().map(network::with_port),
        ..Network::default()
    };
    asked.op = options.op.into();
    asked.progress = options.progress.into();
    asked.pages = options.pages.into();
    asked.workers = options.workers;
    asked.cores.clone_from(&options.cores);
    asked.concurrency = options.concurrency;
    asked.pool_bytes_min = options.pool_mib << 20;
    asked.sabotage = options.sabotage;
    match options.limit {
        PerfLimit { seconds: Some(within), .. } => asked.limit = Limit { rounds: ROUNDS_MAX, within },
        PerfLimit { rounds: Some(rounds), .. } => asked.limit = Limit { rounds, within: ROUNDS_WITHIN },
        PerfLimit { seconds: None, rounds: None } => {}
    }
    Ok(asked)
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
    let (floor, vs_floor) = if report.floor_us.is_nan() {
        ("none: no thread here reaches the memory of another host".to_owned(), "–".to_owned())
    } else {
        let floor = format!("{} p50: the copy kernel alone, on as many bare threads, in turns", time(report.floor_us));
        (floor, format!("{:.2}×", report.p50_us / report.floor_us))
    };
    let rows = [
        ("path", report.path.clone()),
        (
            "time",
            format!(
                "{} p50, {} least, {} p90, {} p99",
                time(report.p50_us),
                time(report.min_us),
                time(report.p90_us),
                time(report.p99_us)
            ),
        ),
        ("rate", format!("{} GB/s", figure(report.gbps))),
        ("floor", floor),
        ("vs floor", vs_floor),
        ("own cost", format!("{} a round without the copies, {} ns a block", time(report.post_us_p50), figure(own_ns))),
        ("cpu", format!("{} s a GB, both processes", figure(report.cpu_s_per_gb))),
        ("verified", if report.verified { "yes, every byte" } else { "NO" }.to_owned()),
    ];
    let (bytes, blocks) = (size(report.bytes), report.blocks);
    let title = format!(
        "{} over {}, {}: {blocks} blocks, {bytes} a round, {} rounds\n\n",
        report.workload, report.transport, report.op, report.rounds
    );
    let address = report.address.iter().map(|address| ("address", address.clone()));
    let served = report.served_by.iter().map(|served| ("served by", served.clone()));
    let rows: Vec<_> = address.chain(served).chain(rows).map(|(label, value)| vec![label.to_owned(), value]).collect();
    title + &console::table(&rows, &[])
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
