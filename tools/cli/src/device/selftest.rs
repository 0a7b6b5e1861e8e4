//! `penstock selftest`: device memory.

use std::time::{Duration, Instant};

use penstock::Plan;
use penstock::device::{Cuda, Device};

use super::{Blocks, DevicePair};
use crate::selftest::layout::{BLOCK_BYTES, BLOCKS_PER_SET, Layout};
use crate::selftest::measure::{Figures, median};
use crate::selftest::report::{Check, Row};
use crate::selftest::{Flaw, Sabotage, pattern};

/// What the row is called.
pub(crate) const NAME: &str = "cuda";
const STAMP: pattern::Stamp = 4;

/// Tests it; what it says of its progress goes to `say`.
pub(crate) fn test(
    (cuda, device): &(Cuda, Device),
    (quick, sabotage): (bool, Option<Sabotage>),
    say: impl Fn(&str),
    is_over: &dyn Fn() -> bool,
) -> Row {
    let mut row = Row::named(NAME);
    let layout = Layout::of(quick);
    say("connecting");
    let blocks = Blocks { count: layout.blocks, bytes: BLOCK_BYTES, pairs: layout.pairs() };
    let pair = match DevicePair::connect(device, blocks, |host| pattern::fill(host.window(), STAMP)) {
        Ok(pair) => pair,
        Err(flaw) => {
            row.add(Check::of("connect", Err(flaw)));
            return row;
        }
    };
    row.path = Some(format!("{}, CUDA {}", device.attr.name, cuda.version()));
    row.add(Check::of("connect", Ok(())));
    say("moving");
    let went = if is_over() { Err(Flaw::Interrupted) } else { pair.all_the_way(sabotage == Some(Sabotage::Write)) };
    if !row.add(Check::of("bytes", went)) {
        return row;
    }
    say("measuring");
    match measure(&pair, if quick { 4 } else { 16 } * layout.sets, is_over) {
        Ok(figures) => {
            row.figures = Some(figures);
            row.add(Check::of("measure", Ok(())));
            row.add(Check::of("bytes", pair.all_the_way(false)));
        }
        Err(flaw) => _ = row.add(Check::of("measure", Err(flaw))),
    }
    row
}

/// Sets of scattered blocks from host memory to the device's, in turns.
fn measure(pair: &DevicePair, rounds: usize, is_over: &dyn Fn() -> bool) -> Result<Figures, Flaw> {
    let sets = pair.blocks.pairs.chunks(BLOCKS_PER_SET).map(|set| pair.there().blocks(set).build());
    let plans: Vec<Plan> = sets.collect::<Result<_, _>>()?;
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        if is_over() {
            return Err(Flaw::Interrupted);
        }
        let started = Instant::now();
        pair.move_all(&plans[round % plans.len()])?;
        times.push(started.elapsed());
    }
    let all: Duration = times.iter().sum();
    let (count, bytes, p50) = (times.len() as f64, plans[0].bytes() as f64, median(times).as_secs_f64());
    let gbps = |bytes: f64, seconds: f64| bytes / seconds.max(1e-9) / 1e9;
    Ok(Figures {
        p50_us: p50 * 1e6,
        floor_us: None,
        gbps: gbps(count * bytes, all.as_secs_f64()),
        gbps_p50: gbps(bytes, p50),
        vs_floor: None,
    })
}
