//! `penstock ping`: does another host answer, and how quickly?

use std::time::{Duration, Instant};

use penstock_lab::service::ServiceError;
use serde::Serialize;

use crate::arguments::PingOptions;
use crate::console;
use crate::failure::{Ended, Failure};
use crate::network::{self, Line, Over};

/// The longest sleep before it is looked whether to end.
const GLANCE: Duration = Duration::from_millis(50);
/// Round trips whose times are kept.
const KEPT_MAX: usize = 1_000_000;

/// All round trips.
#[derive(Debug, Serialize)]
struct Summary {
    host: String,
    name: String,
    release: String,
    transport: &'static str,
    path: String,
    address: Option<String>,
    bytes: usize,
    sent: usize,
    received: usize,
    lost: usize,
    min_us: Option<f64>,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

/// Asks and asks, until it has asked often enough or is interrupted.
pub(crate) fn run(options: &PingOptions) -> Result<Ended, Failure> {
    let over = Over::watch()?;
    let host = network::with_port(&options.host);
    let mut line = network::call("ping", &host, &options.network)?;
    if !options.json {
        console::print(&first(&line, &host, options.size))?;
    }
    let (mut sent, mut times, mut broken) = (0, Vec::new(), None);
    let payload: Vec<u8> = (0..options.size).map(|at| at as u8).collect();
    while !over.is_set() && options.count.is_none_or(|count| sent < count) && sent < KEPT_MAX {
        let begun = Instant::now();
        sent += 1;
        let text = match line.client.echo(&line.engine, &payload, options.within) {
            Ok(took) => {
                times.push(took.as_secs_f64() * 1e6);
                format!("{} bytes: seq={sent} time={}\n", options.size, console::time(took.as_secs_f64() * 1e6))
            }
            Err(ServiceError::Silent { within, .. }) => format!("no answer: seq={sent} within {within:?}\n"),
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        if !options.json {
            console::print(&text)?;
        }
        let is_last = options.count.is_some_and(|count| sent >= count);
        while !is_last && !over.is_set() && begun.elapsed() < options.interval {
            std::thread::sleep((options.interval.saturating_sub(begun.elapsed())).min(GLANCE));
        }
    }
    let summary = summary(&line, host, options.size, (sent, times));
    if options.json {
        console::print_json(&summary)?
    } else {
        console::print(&last(&summary))?
    }
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(if summary.lost == 0 { Ended::Well } else { Ended::Badly }),
    }
}

fn first(line: &Line, host: &str, bytes: usize) -> String {
    let (about, peer) = (&line.about, line.client.peer());
    format!(
        "{} answers at {host}: release {}, {}, {} cores, {}\n{bytes} bytes there and back:\n",
        about.name,
        about.release,
        about.cpu,
        about.cores,
        peer.path()
    )
}

fn summary(line: &Line, host: String, bytes: usize, (sent, mut times): (usize, Vec<f64>)) -> Summary {
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        // The smallest that so many are not above.
        let rank = (share * times.len() as f64).ceil() as usize;
        times.get(rank.clamp(1, times.len().max(1)) - 1).copied()
    };
    let peer = line.client.peer();
    Summary {
        host,
        name: line.about.name.clone(),
        release: line.about.release.clone(),
        transport: peer.transport(),
        path: peer.path().to_owned(),
        address: peer.address().map(|address| address.to_string()),
        bytes,
        sent,
        received: times.len(),
        lost: sent - times.len(),
        min_us: at(0.0),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        max_us: at(1.0),
    }
}

fn last(summary: &Summary) -> String {
    let Summary { name, sent, received, lost, .. } = summary;
    let share = 100.0 * *lost as f64 / (*sent).max(1) as f64;
    let mut text = format!("\n{name}: {sent} sent, {received} answered, {lost} lost ({share:.1} %)\n");
    let times = [
        ("least", summary.min_us),
        ("p50", summary.p50_us),
        ("p90", summary.p90_us),
        ("p99", summary.p99_us),
        ("longest", summary.max_us),
    ];
    let known: Vec<String> =
        times.iter().filter_map(|(label, us)| Some(format!("{label} {}", console::time((*us)?)))).collect();
    if !known.is_empty() {
        text.push_str(&format!("round trip: {}\n", known.join(", ")));
    }
    text
}
