//! `penstock perf --memory device`: how fast scattered blocks are moved, beside one copy of as many bytes by the same device.

use std::time::Instant;

use penstock::{Plan, Span};
use penstock_lab::Workload;
use penstock_lab::measure::{Limit, interleave};
use serde::Serialize;

use super::{Blocks, DevicePair, first};
use crate::console::{self, Progress};
use crate::failure::{Ended, Failure};
use crate::selftest::Flaw;
use crate::selftest::layout::shuffled;

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    workload: String,
    device: String,
    cuda: String,
    /// Of a round.
    blocks: u64,
    bytes: u64,
    rounds: usize,
    ways: Vec<WayReport>,
    verified: bool,
}

/// One way that bytes go.
#[derive(Debug, Serialize)]
struct WayReport {
    way: &'static str,
    /// Medians of rounds: of the scattered blocks, and of one copy of as many bytes, in turns.
    p50_us: f64,
    one_copy_us: f64,
    gbps_p50: f64,
    /// The one over the other.
    vs_one_copy: f64,
}

/// Measures, and prints what came of it.
pub(crate) fn run(workload: &Workload, limit: Limit, (sabotage, json): (bool, bool)) -> Result<Ended, Failure> {
    let (cuda, device) = first().map_err(Failure::Cuda)?;
    let progress = Progress::new();
    progress.say(&format!("preparing {} in the memory of {}", workload.name, device.attr.name));
    let wrong = |flaw: Flaw| Failure::Device(flaw);
    let moved = u64::from(workload.blocks) * u64::from(workload.layers);
    let moved =
        u32::try_from(moved).map_err(|_| Failure::Cuda(penstock::device::CudaError::Size { bytes: u64::MAX }))?;
    // Half of each pool is moved.
    let count = moved.saturating_mul(2);
    let pairs = shuffled(count, 1).into_iter().zip(shuffled(count, 2)).take(moved as usize).collect();
    let blocks = Blocks { count, bytes: workload.block_bytes, pairs };
    let pair = DevicePair::connect(&device, blocks, |host| {
        let words = (0..host.bytes() / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        host.window().write_from(0, &bytes)
    });
    let pair = pair.map_err(wrong)?;
    let bytes = u64::from(moved) * workload.block_bytes;
    let whole = [Span { local: 0, remote: 0, len: bytes }];
    let mut ways = Vec::new();
    let mut rounds = 0;
    for (way, plan) in [("to the device", pair.there()), ("within it", pair.within()), ("from it", pair.back())] {
        progress.say(&format!("measuring {} {way}", workload.name));
        let one = match way {
            "to the device" => pair.there(),
            "within it" => pair.within(),
            _ => pair.back(),
        };
        let scattered = pair.scattered(plan).map_err(wrong)?;
        let one = one.extents(&whole).build().map_err(|error| wrong(error.into()))?;
        let take = |plan: &Plan| {
            let started = Instant::now();
            pair.move_all(plan).map(|()| started.elapsed().as_secs_f64() * 1e9)
        };
        let times = interleave(limit, &[&scattered, &one], take).map_err(wrong)?;
        rounds = times[0].len();
        let [p50_us, one_copy_us] = [0, 1].map(|place: usize| p50(&times[place]) / 1e3);
        let gbps_p50 = bytes as f64 / (p50_us * 1e3).max(1e-9);
        ways.push(WayReport { way, p50_us, one_copy_us, gbps_p50, vs_one_copy: p50_us / one_copy_us.max(1e-9) });
    }
    progress.say("verifying");
    let looked = pair.all_the_way(sabotage);
    drop(progress);
    let verified = match &looked {
        Ok(()) => true,
        Err(Flaw::Bytes { .. }) => false,
        Err(_) => return looked.map(|()| Ended::Well).map_err(wrong),
    };
    let (blocks, cuda) = (u64::from(moved), cuda.version().to_string());
    let report = Report {
        workload: workload.name.clone(),
        device: device.attr.name,
        cuda,
        blocks,
        bytes,
        rounds,
        ways,
        verified,
    };
    if json {
        console::print_json(&report)?
    } else {
        console::print(&shown(&report))?
    }
    if let Err(flaw) = looked {
        console::complain(&flaw);
    }
    Ok(if verified { Ended::Well } else { Ended::Badly })
}

fn p50(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn shown(report: &Report) -> String {
    let head = ["way", "time p50", "GB/s p50", "one copy", "vs one copy"].map(str::to_owned).to_vec();
    let row = |way: &WayReport| {
        let (time, one) = (console::time(way.p50_us), console::time(way.one_copy_us));
        vec![way.way.to_owned(), time, console::figure(way.gbps_p50), one, format!("{:.2}×", way.vs_one_copy)]
    };
    let rows: Vec<_> = std::iter::once(head).chain(report.ways.iter().map(row)).collect();
    let Report { workload, device, cuda, blocks, bytes, rounds, verified, .. } = report;
    let verified = if *verified { "yes, every byte, the whole way" } else { "NO" };
    format!(
        "{workload} in the memory of {device} (CUDA {cuda}): {blocks} blocks, {bytes} bytes a round, {rounds} rounds\n\n{}\nverified  {verified}\n",
        console::table(&rows, &[1, 2, 3, 4])
    )
}
