//! Engines of others beside ours in the rounds of a metric: there, or absent for a reason that their row tells.

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::layout::LayoutSpec;
use crate::peers::PeerError;
use crate::peers::pair::{Pair, Way};
use crate::peers::tools::{Meter, Tool};

/// Somebody else's engine, and what is wanted of ours beside it.
pub(super) struct Rival<T> {
    title: String,
    goal: Goal,
    /// What to know about it: version and settings.
    about: String,
    state: Result<T, String>,
    /// What processors were busy with for it, where that is known: seconds for 10^9 bytes.
    cpu_s_per_gb: Option<f64>,
}

/// What rows say where peers were not to be run.
const LEFT_OUT: &str = "peers were left out of this run";

impl<T> Rival<T> {
    fn new(title: &str, goal: Goal, opened: Result<(T, String), String>) -> Self {
        let (state, about) = match opened {
            Ok((there, about)) => (Ok(there), about),
            Err(why) => (Err(why), String::new()),
        };
        Self { title: title.to_owned(), goal, about, state, cpu_s_per_gb: None }
    }

    /// Whether it is there and has not failed.
    pub(super) fn is_there(&self) -> bool {
        self.state.is_ok()
    }

    /// What its rows say of it; where it is absent or has failed, why.
    pub(super) fn about(&self) -> Result<&str, String> {
        self.state.as_ref().map(|_| self.about.as_str()).map_err(|why| format!("not measured: {why}"))
    }

    /// Its turn. Once it has failed it has no more turns, and its rounds count for nothing.
    pub(super) fn turn(&mut self, act: impl FnOnce(&mut T) -> Result<f64, PeerError>) -> f64 {
        match self.state.as_mut().map(act) {
            Ok(Ok(nanos)) => nanos,
            Ok(Err(error)) => {
                self.state = Err(error.to_string());
                f64::NAN
            }
            Err(_) => f64::NAN,
        }
    }

    /// Our figures against its own of the same rounds; without a verdict where it is absent, or we have none.
    pub(super) fn row(&self, transport: &str, (figures, unit, per): (&[f64], &str, f64), times: &[f64]) -> Row {
        match self.about() {
            Ok(about) if figures.is_empty() => {
                Row::unreached(transport, (unit, per), (&self.title, times), self.goal).noted(about)
            }
            Ok(about) => Row::compared(transport, (figures, unit, per), (&self.title, times), self.goal).noted(about),
            Err(why) if figures.is_empty() => {
                Row::unreached(transport, (unit, per), (&self.title, &[]), self.goal).noted(&why)
            }
            Err(why) => {
                let ours = Row::compared(transport, (figures, unit, per), (&self.title, &[]), self.goal);
                ours.without_comparator().noted(&why)
            }
        }
    }

    /// What processors were busy with for it: seconds for 10^9 bytes, where that is known.
    pub(super) fn cpu_s_per_gb(&self) -> Option<f64> {
        self.state.as_ref().ok().and(self.cpu_s_per_gb)
    }

    /// Adds something to know about it.
    pub(super) fn note(&mut self, words: &str) {
        self.about = format!("{}; {words}", self.about);
    }
}

impl Rival<Pair> {
    /// Starts a pair, unless there is none; what then has to be made ready is `prepare`'s.
    pub(super) fn pair(
        effort: &Effort,
        (way, goal): (&Way, Goal),
        (memory_bytes, touch): (u64, bool),
        prepare: impl FnOnce(&mut Pair) -> Result<(), PeerError>,
    ) -> Self {
        let opened = effort.peers.as_ref().ok_or_else(|| LEFT_OUT.to_owned()).and_then(|store| {
            let opened = Pair::open(store, way, memory_bytes, touch).and_then(|mut pair| {
                prepare(&mut pair)?;
                pair.rest();
                Ok(pair)
            });
            let pair = opened.map_err(|error| error.to_string())?;
            let about = format!("version {}, {}", pair.version(), way.settings_in_words());
            Ok((pair, about))
        });
        Self::new(way.title, goal, opened)
    }

    /// A pair that moves this workload.
    pub(super) fn mover(effort: &Effort, way: &Way, goal: Goal, spec: &LayoutSpec) -> Self {
        let bytes = crate::layout::Layout::new(spec).pool_bytes();
        Self::pair(effort, (way, goal), (bytes, true), |pair| pair.deal(spec))
    }

    /// Its turn: the next set of a workload of so many bytes, with what that costs.
    pub(super) fn move_set(&mut self, bytes: u64) -> f64 {
        let (nanos, cpu) = match &mut self.state {
            Ok(pair) => (pair.round(), pair.cpu_per_round()),
            Err(_) => return f64::NAN,
        };
        self.cpu_s_per_gb = cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / bytes as f64);
        self.turn(|_| nanos)
    }

    /// Has it prove its bytes. A peer that moved wrong ones has no figure.
    pub(super) fn prove(&mut self) {
        let Ok(pair) = &mut self.state else { return };
        match pair.verify(false) {
            Ok(bytes) => self.note(&format!("its {:.0} MB verified", bytes as f64 / 1e6)),
            Err(error) => self.state = Err(error.to_string()),
        }
    }
}

impl Rival<Meter> {
    /// A peer's own program that measures.
    pub(super) fn meter(effort: &Effort, tool: &'static Tool, goal: Goal, pins: &Pins) -> Self {
        let opened = effort.peers.as_ref().ok_or_else(|| LEFT_OUT.to_owned()).and_then(|store| {
            let opened = Meter::open(store, tool, &pins.near, &pins.far).map_err(|error| error.to_string())?;
            let about = format!("version {}, {}", opened.version(), tool.settings_in_words());
            Ok((opened, about))
        });
        Self::new(tool.title, goal, opened)
    }
}

impl Rival<Meter> {
    /// Its turn: one run of so many rounds, or bytes.
    pub(super) fn measure(&mut self, amount: u64) -> f64 {
        let mut cpu = None;
        let nanos = self.turn(|meter| {
            let reading = meter.run(amount)?;
            cpu = reading.cpu_s_per_gb;
            Ok(reading.nanos)
        });
        self.cpu_s_per_gb = cpu.or(self.cpu_s_per_gb);
        nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Folder;
    use crate::peers::{Store, pair, tools};

    #[test]
    fn an_absent_rival_has_a_row_with_our_figure_a_reason_and_no_verdict() {
        let folder = Folder::create().unwrap();
        let empty = Effort { peers: Some(Store::open(Some(folder.path())).unwrap()), ..Effort::default() };
        for (effort, why) in [(&empty, "peers install --only nixl"), (&Effort::default(), LEFT_OUT)] {
            let way = (&pair::NIXL_TUNED, Goal::QuickerBy(4.5));
            let mut rival = Rival::pair(effort, way, (4096, true), |_| panic!("there is nothing to prepare"));
            assert!(!rival.is_there() && rival.turn(|_| Ok(1.0)).is_nan());
            rival.prove();
            let row = rival.row("shm", (&[2e3, 4e3], "us", 1e3), &[f64::NAN, f64::NAN]);
            assert_eq!((row.figure, row.against_figure, row.ratio, row.met), (Some(3.0), None, None, None));
            assert_eq!((row.against.as_str(), row.goal.as_str()), ("NIXL, tuned", ">= 4.5 x quicker"));
            assert!(row.note.starts_with("not measured: ") && row.note.contains(why), "{}", row.note);
        }
        let meter = Rival::meter(&empty, &tools::UCX, Goal::RatioAtMost(1.1), &Pins::choose());
        assert!(meter.row("shm", (&[1.0], "ns", 1.0), &[f64::NAN]).note.contains("ucx is not installed"));
    }

    #[test]
    fn a_rival_that_fails_in_its_turn_loses_its_row_and_nobody_elses() {
        let mut rival = Rival::new("x", Goal::QuickerBy(2.0), Ok(((), "version 1".to_owned())));
        assert_eq!(rival.turn(|()| Ok(10.0)), 10.0);
        let row = rival.row("shm", (&[4.0], "ns", 1.0), &[10.0]);
        assert_eq!((row.ratio, row.met), (Some(0.4), Some(true)));
        assert!(row.note.starts_with("version 1; "), "{}", row.note);
        assert!(rival.turn(|()| Err(PeerError::NoFolder)).is_nan());
        let row = rival.row("shm", (&[4.0, 4.0], "ns", 1.0), &[10.0, f64::NAN]);
        assert_eq!((row.figure, row.met), (Some(4.0), None));
        assert!(row.note.contains("no folder"), "{}", row.note);
    }
}
