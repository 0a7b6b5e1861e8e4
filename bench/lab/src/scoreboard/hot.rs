//! M2: one page within a process, in the cache.

use std::time::Instant;

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Direction, Plan, Span, Submit};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::interleave;
use crate::raw::{CheckedSpans, copy_each};

const PAGE: Span = Span { local: 8192, remote: 64 << 10, len: 4096 };

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Copy,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let _stay = Stay::on(&Pins::choose().near);
    let ends = Ends::open(&EndsSpec {
        transport: TransportName::Local,
        pool_bytes: 1 << 20,
        pages: PagesChoice::Small,
        progress: Progress::Inline,
        workers: 1,
        cores: Vec::new(),
        target_progress: Progress::Inline,
        target_cores: Vec::new(),
        spin: None,
        memory: [MemoryKind::Host; 2],
        target_program: None,
        network: Network::default(),
    })?;
    let plan = Plan::write(&ends.near.pool, &ends.remote).extents(&[PAGE]).build();
    let plan = plan.map_err(LabError::refused("plan a page"))?;
    let page = CheckedSpans::new([PAGE].into());
    let repeats = effort.repeat(1_000);
    let times = interleave(effort.limit_of_short(), &[Turn::Engine, Turn::Copy], |turn| {
        let start = Instant::now();
        for _ in 0..repeats {
            match turn {
                Turn::Engine => {
                    let transfer =
                        ends.peer.submit(&plan, Submit::new()).map_err(LabError::refused("submit a page"))?;
                    let still_moving = || LabError::Target { why: "a page is still moving".to_owned() };
                    std::hint::black_box(transfer.poll().ok_or_else(still_moving)??);
                }
                Turn::Copy => copy_each(ends.near.pool.window(), &ends.far, Direction::Write, &page, 0..1),
            }
        }
        Ok::<_, LabError>(start.elapsed().as_nanos() as f64 / repeats as f64)
    })?;
    let row =
        Row::compared("local", (&times[0], "ns", 1.0), ("memcpy of the same page", &times[1]), Goal::OverAtMost(60.0));
    Ok(vec![row.noted("inline, submit to complete")])
}
