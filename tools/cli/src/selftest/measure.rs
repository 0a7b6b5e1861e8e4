//! How long one transfer of 1,000 scattered blocks takes, beside the bare copy of as many.

use std::time::{Duration, Instant};

use penstock::memory::copy::{self, Hint};
use penstock::{Direction, PoolSpec, Span, Submit};
use serde::Serialize;

use super::flaw::Flaw;
use super::layout::{BLOCK_BYTES, BLOCKS_PER_SET};
use super::pair::Pair;
use super::steps;

/// What was measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figures {
    /// The median time of one transfer, in microseconds.
    pub(crate) p50_us: f64,
    /// The same of the bare copy, measured in turns with it; bytes that go through sockets are no such copy.
    pub(crate) floor_us: Option<f64>,
    /// Bytes of all transfers over the time that all of them took, in 10^9 bytes a second.
    pub(crate) gbps: f64,
    /// Bytes of one transfer over its median time.
    pub(crate) gbps_p50: f64,
    /// `p50_us` over `floor_us`.
    pub(crate) vs_floor: Option<f64>,
}

/// Measures transfers and bare copies in turns, and has everything looked at afterwards; ends when `is_over` says so.
pub(crate) fn kv16(pair: &mut Pair, quick: bool, is_over: &dyn Fn() -> bool) -> Result<Figures, Flaw> {
    let rounds = pair.layout.sets * if quick { 4 } else { 16 };
    let aside = pair.engine.pool(PoolSpec::host(pair.layout.bytes()).block(BLOCK_BYTES).label("floor"))?;
    let (near, aside) = (pair.near.window().clone(), aside.window().clone());
    let span = |&(near, far): &(u32, u32)| Span {
        local: u64::from(near) * BLOCK_BYTES,
        remote: u64::from(far) * BLOCK_BYTES,
        len: BLOCK_BYTES,
    };
    let spans: Vec<Vec<Span>> = pair.pairs.chunks(BLOCKS_PER_SET).map(|set| set.iter().map(span).collect()).collect();
    let plans = pair.writes()?;
    let (mut ours, mut floor) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..rounds {
        if is_over() {
            return Err(Flaw::Interrupted);
        }
        let set = round % plans.len();
        // Another one, far enough away that neither finds what the other has just read in the cache.
        let aside_set = (round + plans.len() / 2) % plans.len();
        let started = Instant::now();
        pair.move_one(&plans[set], Submit::new().count(pair.arrivals))?;
        ours.push(started.elapsed());
        let started = Instant::now();
        copy::scatter(&near, &aside, Direction::Write, &spans[aside_set], Hint::Streaming)?;
        floor.push(started.elapsed());
    }
    let has_floor = !pair.is_between_hosts();
    steps::write_everything(pair, 5, false)?;
    let all: Duration = ours.iter().sum();
    let (count, bytes) = (ours.len() as f64, plans[0].bytes() as f64);
    let (ours, floor) = (median(ours), median(floor));
    Ok(Figures {
        p50_us: ours.as_secs_f64() * 1e6,
        floor_us: has_floor.then_some(floor.as_secs_f64() * 1e6),
        gbps: count * bytes / all.as_secs_f64().max(1e-9) / 1e9,
        gbps_p50: bytes / ours.as_secs_f64().max(1e-9) / 1e9,
        vs_floor: has_floor.then_some(ours.as_secs_f64() / floor.as_secs_f64().max(1e-9)),
    })
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
