//! M12: waking a peer that sleeps, and what sleeping costs.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};

use super::arrival::{ends, rally};
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::Ends;
use crate::ends::hops::Hops;
use crate::ends::rally::{Manner, Rules};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{clock, interleave};

/// Long enough for everybody who is going to sleep to have fallen asleep.
const PAUSE: Duration = Duration::from_micros(50);

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Eventfds,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let ways = [
        (Progress::Inline, Manner::SleepOnCounter, 1, 1.2, "inline: submit to the other thread awake on its event fd"),
        // A peer's bell is a datagram socket, which it cannot make block, and three times as dear as an eventfd.
        (Progress::Adaptive, Manner::SleepOnNote, 3, 1.6, "threaded: application, worker, worker, application; spin 0"),
    ];
    let mut rows = Vec::new();
    for (progress, manner, hops, most, note) in ways {
        let pins = Pins::choose();
        let _stay = Stay::on(&pins.near);
        let mut ends = ends(effort, &pins, TransportName::Shm, (progress, Some(Duration::ZERO)))?;
        let mut floor = Hops::start(hops, &pins.far, effort.target_program.as_deref())?;
        let rules = Rules { rounds: effort.repeat(50), bytes: 8, manner, pause: PAUSE };
        let times = interleave(effort.limit_of_short(), &[Turn::Engine, Turn::Eventfds], |turn| match turn {
            Turn::Engine => rally(&mut ends, rules),
            Turn::Eventfds => floor.play(rules.rounds, PAUSE),
        })?;
        let against = match hops {
            1 => "eventfd, one hop",
            _ => "eventfds, three hops",
        };
        let row = Row::compared("shm", (&times[0], "us", 1e3), (against, &times[1]), Goal::RatioAtMost(most));
        rows.push(row.noted(note));
        drop(floor);
        let idle = Duration::from_millis(if effort.quick { 500 } else { 3_000 });
        let share = idle_share(&mut ends, idle)?;
        let what = if progress.is_threaded() { "threaded" } else { "inline, the application asleep on its event fd" };
        rows.push(Row::alone("shm", share * 100.0, "% of a CPU", Goal::AtMost(0.1)).noted(&format!("idle, {what}")));
    }
    Ok(rows)
}

/// The share of a CPU that the target's process uses while nothing happens.
pub(super) fn idle_share(ends: &mut Ends, idle: Duration) -> Result<f64, LabError> {
    let (before, start) = (ends.target_cpu()?, Instant::now());
    let own = clock::process_cpu();
    std::thread::sleep(idle);
    let own = clock::process_cpu() - own;
    let target = ends.target_cpu()? - before;
    // The initiator's threads idle as well; an inline one has none.
    Ok(target.max(own).as_secs_f64() / start.elapsed().as_secs_f64())
}
