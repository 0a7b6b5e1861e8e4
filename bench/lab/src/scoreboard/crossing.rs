//! M9: 64 bytes written and their arrival seen by the other process over TCP, beside others that do the same.

use std::time::Duration;

use penstock::config::{Progress, TransportName};

use super::arrival::{ends, rally};
use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::Ends;
use crate::ends::rally::{Manner, Rules};
use crate::ends::stream::{Stream, TUNINGS};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{Limit, interleave};
use crate::peers::tools::{Meter, QPERF, UCX_TCP_AM, UCX_TCP_PUT};

const BYTES: u64 = 64;
const TCP: &str = "tcp";
const SOCKET: &str = "a bare socket between the same cores";
const GOAL: Goal = Goal::RatioAtMost(1.2);

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Socket,
    Meter(usize),
}

/// The engine's side; where it cannot be measured, the others still are.
struct Engine(Result<Ends, LabError>);

impl Engine {
    fn turn(&mut self, rules: Rules) -> f64 {
        let played = match &mut self.0 {
            Ok(ends) => rally(ends, rules),
            Err(_) => return f64::NAN,
        };
        played.unwrap_or_else(|error| {
            self.0 = Err(error);
            f64::NAN
        })
    }
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let meter = |tool, goal| Rival::meter(effort, tool, goal, &pins);
    let mut meters =
        [meter(&UCX_TCP_PUT, Goal::QuickerBy(2.0)), meter(&UCX_TCP_AM, Goal::Reported), meter(&QPERF, Goal::Reported)];
    let mut engine = Engine(ends(effort, &pins, TransportName::Tcp, (Progress::Inline, None)));
    // Lends its processes only: its engines meet in shared memory and have nothing to do.
    let mut lent = ends(effort, &pins, TransportName::Shm, (Progress::Inline, None))?;
    let mut socket = Stream::open(&mut lent, TUNINGS[0])?;
    let rounds = effort.repeat(1_000);
    let rules = Rules { rounds, bytes: BYTES, manner: Manner::Poll, pause: Duration::ZERO };
    let own = [Turn::Engine, Turn::Socket];
    let turns: Vec<Turn> = own.into_iter().chain((0..meters.len()).map(Turn::Meter)).collect();
    let rounds_of_meters = effort.repeat(5_000);
    let times = interleave(limit(effort), &turns, |turn| match turn {
        Turn::Engine => Ok(engine.turn(rules)),
        Turn::Socket => socket.volley(&mut lent, rounds, BYTES as usize),
        Turn::Meter(index) => Ok(meters[index].measure(rounds_of_meters)),
    })?;
    Ok(rows(&engine, &meters, &times))
}

/// qperf takes a second each time, so rounds with it are long.
fn limit(effort: &Effort) -> Limit {
    let Limit { rounds, within } = effort.with_guests(effort.limit_of_short());
    Limit { rounds, within: if effort.peers.is_some() { 2 * within } else { within } }
}

fn rows(engine: &Engine, meters: &[Rival<Meter>], times: &[Vec<f64>]) -> Vec<Row> {
    let (figures, note) = match &engine.0 {
        Ok(_) => (&times[0][..], "inline on both sides, both polling the arrival counter".to_owned()),
        Err(error) => (&[][..], format!("the engine was not measured: {error}")),
    };
    let figures = (figures, "us", 1e3);
    let floor = match figures.0.is_empty() {
        true => Row::unreached(TCP, (figures.1, figures.2), (SOCKET, &times[1]), GOAL),
        false => Row::compared(TCP, figures, (SOCKET, &times[1]), GOAL),
    };
    let floor = floor.noted("not blocking, TCP_NODELAY, both sides looking all the time");
    let of_meters = meters.iter().zip(&times[2..]).map(|(rival, times)| rival.row(TCP, figures, times));
    std::iter::once(floor).chain(of_meters).map(|row| row.noted(&note)).collect()
}
