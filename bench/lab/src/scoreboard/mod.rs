//! The scoreboard: each metric against the machine's own floor, measured in the same run.
//!
//! - [`row`]: one figure against one comparator; [`table`]: rows for people
//! - `arrival` (M1), `hot` (M2), `copies` (M3, M4, M6), `words` (M5), `prepare` (M7), `between` (M8),
//!   `crossing` (M9), `devices` (M10, by itself or in a `guest`), `packets` (M11, M11u), `wake` (M12), `foreground` (M13), `register` (M15), `staged` (M16),
//!   `addresses` (A1), `caller` (D1), `faulty` (F1, F2),
//!   `control` (C1), `continuation` (C2), `python` (P1)
//! - `rivals`: engines of others in the same rounds
//!
//! A metric is a function that measures and answers rows: one for each comparator. A comparator that is absent
//! still has its row, with the reason and without a verdict.

mod addresses;
mod arrival;
mod between;
mod caller;
mod continuation;
mod control;
mod copies;
mod crossing;
mod devices;
mod faulty;
mod foreground;
mod guest;
mod hot;
mod packets;
mod prepare;
mod python;
mod register;
mod rivals;
pub mod row;
mod staged;
pub mod table;
mod wake;
mod words;

use std::path::PathBuf;
use std::time::Duration;

pub use self::row::Row;
use crate::error::LabError;
use crate::measure::{Limit, cores};
use crate::peers::Store;

/// How thoroughly to measure.
#[derive(Debug, Clone, Default)]
pub struct Effort {
    /// Few rounds: enough to see that everything works, too few to believe the figures.
    pub quick: bool,
    /// The program that becomes the target process; this one where absent.
    pub target_program: Option<PathBuf>,
    /// Where engines of others are; they are left out where absent.
    pub peers: Option<Store>,
    /// RDMA devices to measure between, the initiator's and the target's; the soft ones of a guest where absent.
    pub devices: Option<[String; 2]>,
    /// Is told, by metrics that take minutes, what they are about.
    pub tell: Option<fn(&str)>,
}

impl Effort {
    /// Rounds of one measurement.
    pub(crate) fn limit(&self) -> Limit {
        match self.quick {
            true => Limit { rounds: 5, within: Duration::from_secs(2) },
            false => Limit { rounds: 31, within: Duration::from_secs(10) },
        }
    }

    /// Rounds of a measurement whose rounds are short: many, so that most are not disturbed at all.
    pub(crate) fn limit_of_short(&self) -> Limit {
        let Limit { rounds, within } = self.limit();
        Limit { rounds: 5 * rounds, within }
    }

    /// Time enough for rounds in which slow guests have a turn.
    pub(crate) fn with_guests(&self, limit: Limit) -> Limit {
        Limit { within: limit.within * if self.peers.is_some() { 3 } else { 1 }, ..limit }
    }

    /// Tells what is measured now.
    pub(crate) fn tell(&self, words: &str) {
        if let Some(tell) = self.tell {
            tell(words);
        }
    }

    /// `usual` repetitions of something short, or a tenth of them.
    pub(crate) fn repeat(&self, usual: u64) -> u64 {
        if self.quick { usual.div_ceil(10) } else { usual }
    }
}

/// The cores that measurements are pinned to: the last one for what is measured, the one before it for the
/// other side. Nothing is pinned on a machine of one core.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    pub(crate) near: Vec<usize>,
    pub(crate) far: Vec<usize>,
}

impl Pins {
    pub(crate) fn choose() -> Self {
        match cores::available()[..] {
            [.., far, near] => Self { near: vec![near], far: vec![far] },
            _ => Self { near: Vec::new(), far: Vec::new() },
        }
    }

    /// A core for each of two workers; none on a machine of one core.
    pub(crate) fn both(&self) -> Vec<usize> {
        [&self.near[..], &self.far[..]].concat()
    }
}

/// What the note of a quick row begins with.
const QUICK: &str = "quick, few rounds";

/// One metric of the scoreboard.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub id: &'static str,
    /// What it says.
    pub what: &'static str,
    measure: fn(&Effort) -> Result<Vec<Row>, LabError>,
}

const fn metric(id: &'static str, what: &'static str, measure: fn(&Effort) -> Result<Vec<Row>, LabError>) -> Metric {
    Metric { id, what, measure }
}

/// All metrics, in order.
pub const METRICS: &[Metric] = &[
    metric("M1", "8 B write and its arrival between two processes, one way", arrival::measure),
    metric("M2", "4 KiB within a process, submit to complete", hot::measure),
    metric("M3", "a thousand 16 KiB blocks, one copying core", copies::one_core),
    metric("M4", "a thousand 16 KiB blocks, two copying cores", copies::two_cores),
    metric("M5", "ten thousand words of 8 B in one plan, each", words::measure),
    metric("M6", "w2: until the last block is handed over, and in all", copies::many_small),
    metric("M7", "preparing the plan of w1", prepare::measure),
    metric("M8", "kv16 and w5 between two processes over TCP", between::measure),
    metric("M9", "64 B write and its arrival over TCP, one way", crossing::measure),
    metric("M10", "64 KiB, 8 B and kv16 between two RDMA devices", devices::measure),
    metric("M11", "kv16, w5 and 64 B in the engine's own packets over DPDK", packets::measure_over_dpdk),
    metric("M11u", "kv16, w5 and 64 B in the engine's own packets over UDP", packets::measure),
    metric("M12", "waking a sleeping peer, and what sleeping costs", wake::measure),
    metric(
        "M13",
        "4 KiB, urgent, while w4 goes on at 80 % of its speed: the latest of a thousand",
        foreground::measure,
    ),
    metric("M15", "registering 10,000 views, and going on registering", register::measure),
    metric("M16", "kv16 and w5 between memory of devices, staged over TCP", staged::measure),
    metric("A1", "plans by address, and registering beside a connected peer", addresses::measure),
    metric("D1", "kv16 between memory that the applications allocated themselves", caller::measure),
    metric("F1", "five peers beside a dead, a stopped and a slow one", faulty::measure),
    metric("F2", "five peers beside a dead, a stopped and a slow one, over TCP", faulty::measure_over_tcp),
    metric("C1", "a hundred thousand transfers by name, without their bytes, each and on each side", control::measure),
    metric("C2", "705 tokens that go on from 700 kept ones, beside all of them", continuation::measure),
    metric("P1", "kv16 and 4 KiB from Python, beside the same from Rust", python::measure),
];

/// The metrics of these ids, or all if none is named; an unknown one is an error.
pub fn choose(ids: &[String]) -> Result<Vec<Metric>, LabError> {
    let known = |id: &String| METRICS.iter().any(|metric| metric.id.eq_ignore_ascii_case(id));
    if !ids.iter().all(known) {
        return Err(LabError::Option {
            option: "only",
            mend: "give ids of the scoreboard: M1 to M11, M11u, M12, M13, M15, M16, A1, D1, F1, F2, C1, C2, P1",
        });
    }
    let chosen =
        METRICS.iter().filter(|metric| ids.is_empty() || ids.iter().any(|id| metric.id.eq_ignore_ascii_case(id)));
    Ok(chosen.copied().collect())
}

impl Metric {
    /// Measures it, beside everything it is held against.
    pub fn measure(&self, effort: &Effort) -> Result<Vec<Row>, LabError> {
        let mut rows = (self.measure)(effort)?;
        for row in &mut rows {
            row.id = self.id.to_owned();
            // A guest's rows say so already.
            if effort.quick && !row.note.contains(QUICK) {
                row.note = format!("{QUICK}; {}", row.note);
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_chosen_by_id() {
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            choose(&names).map(|metrics| metrics.iter().map(|metric| metric.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["m5", "M3"]).unwrap(), ["M3", "M5"]);
        assert_eq!(ids(&[]).unwrap().len(), METRICS.len());
        assert!(ids(&["M3", "M99"]).unwrap_err().to_string().contains("M12"));
    }
}
