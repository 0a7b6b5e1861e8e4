//! M5: what a block costs when it is nearly nothing.

use penstock::config::{Progress, TransportName};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::error::LabError;
use crate::perf::{self, Options};
use crate::workload::{Mergeable, Workload};

const WORDS: u32 = 10_000;

/// Ten thousand words, a cache line apart, so that no two share one.
fn workload() -> Workload {
    Workload {
        name: "words".to_owned(),
        what: "the cost of a block alone".to_owned(),
        block_bytes: 8,
        stride_bytes: Some(64),
        blocks: WORDS,
        layers: 1,
        batches: 1,
        arrivals: false,
        mergeable: Mergeable::None,
    }
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let mut rows = Vec::new();
    for transport in [TransportName::Local, TransportName::Shm] {
        let mut options = Options::new(workload());
        options.transport = transport;
        options.progress = Progress::Inline;
        options.cores = pins.near.clone();
        options.target_cores = pins.far.clone();
        options.limit = effort.limit_of_short();
        options.target_program = effort.target_program.clone();
        let report = perf::run(&options)?;
        let samples = &report.samples;
        let each = ("the stores alone", &samples.plain[..]);
        let figures = (&samples.engine[..], "ns a block", f64::from(WORDS));
        let row = Row::compared(transport.as_str(), figures, each, Goal::OverAtMost(12.0));
        rows.push(row.noted("inline, one plan, other lines of 512 MiB pools each round"));
    }
    Ok(rows)
}
