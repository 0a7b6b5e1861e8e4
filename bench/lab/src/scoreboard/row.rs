//! One figure against one comparator.

use serde::{Deserialize, Serialize};

use crate::measure::{difference, least, median, ratio};

/// One figure against one comparator. Serialised it is one JSON object with stable keys; those of what processors
/// were busy with are there where that is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The metric.
    pub id: String,
    /// The transport measured.
    pub transport: String,
    /// What was measured; absent where nothing was.
    pub figure: Option<f64>,
    /// The unit of both figures.
    pub unit: String,
    /// What it is held against.
    pub against: String,
    /// The comparator's figure in the same run; absent where it has none.
    pub against_figure: Option<f64>,
    /// The median over the rounds of `figure / against_figure`.
    pub ratio: Option<f64>,
    /// What is wanted.
    pub goal: String,
    /// Whether it is reached; absent where it cannot be told, or nothing is wanted.
    pub met: Option<bool>,
    /// What to know about it.
    pub note: String,
    /// CPU time of both sides for 10^9 bytes, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gb: Option<f64>,
    /// The same of the comparator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_cpu_s_per_gb: Option<f64>,
}

/// What a row is held against that is held against nothing.
const ALONE: &str = "the goal alone";

/// What is wanted of a figure, in the unit of both figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At most so many times the comparator.
    RatioAtMost(f64),
    /// At least so much of the comparator's rate: the inverse of the times' ratio.
    RateAtLeast(f64),
    /// So many times quicker than the comparator, at least.
    QuickerBy(f64),
    /// At most so much more than the comparator.
    OverAtMost(f64),
    /// At most this, whatever the comparator.
    AtMost(f64),
    /// Nothing: it is there to be looked at.
    Reported,
}

impl Row {
    /// A figure and its comparator, both measured in rounds that took turns. All times in nanoseconds;
    /// `per` is how many of them make a unit.
    pub fn compared(
        transport: &str,
        (figures, unit, per): (&[f64], &str, f64),
        (against, floors): (&str, &[f64]),
        goal: Goal,
    ) -> Self {
        let (times, over) = (ratio(figures, floors), difference(figures, floors) / per);
        let figure = median(figures) / per;
        let met = match goal {
            Goal::RatioAtMost(most) => Some(times <= most),
            Goal::QuickerBy(least) | Goal::RateAtLeast(least) => Some(1.0 / times >= least),
            Goal::OverAtMost(most) => Some(over <= most),
            Goal::AtMost(most) => Some(figure <= most),
            Goal::Reported => None,
        };
        Self {
            figure: Some(round(figure)),
            against_figure: Some(round(median(floors) / per)),
            ratio: Some(round(times)),
            met,
            note: format!("{over:+.3} {unit} over it; minima {:.3} x", least(figures) / least(floors)),
            ..Self::empty(transport, unit, against, goal)
        }
    }

    /// A comparator beside which we have no figure: without a verdict.
    pub fn unreached(transport: &str, (unit, per): (&str, f64), (against, floors): (&str, &[f64]), goal: Goal) -> Self {
        let figure = Some(round(median(floors) / per)).filter(|figure| figure.is_finite());
        Self { against_figure: figure, ..Self::empty(transport, unit, against, goal) }
    }

    /// A figure that stands for itself.
    pub fn alone(transport: &str, figure: f64, unit: &str, most: Goal) -> Self {
        let met = match most {
            Goal::AtMost(most) => Some(figure <= most),
            _ => None,
        };
        Self { figure: Some(round(figure)), met, ..Self::empty(transport, unit, ALONE, most) }
    }

    fn empty(transport: &str, unit: &str, against: &str, goal: Goal) -> Self {
        Self {
            id: String::new(),
            transport: transport.to_owned(),
            figure: None,
            unit: unit.to_owned(),
            against: against.to_owned(),
            against_figure: None,
            ratio: None,
            goal: goal.words(unit),
            met: None,
            note: String::new(),
            cpu_s_per_gb: None,
            against_cpu_s_per_gb: None,
        }
    }

    /// Whether the figure stands beside another one, which may be absent.
    pub fn is_compared(&self) -> bool {
        self.against != ALONE
    }

    /// The same with what processors were busy with, ours and the comparator's: seconds for 10^9 bytes.
    #[must_use]
    pub fn costing(self, ours: Option<f64>, others: Option<f64>) -> Self {
        let known = |seconds: Option<f64>| seconds.filter(|seconds| seconds.is_finite()).map(round);
        Self { cpu_s_per_gb: known(ours), against_cpu_s_per_gb: known(others), ..self }
    }

    /// The same without what its comparator, which is absent, was to say.
    #[must_use]
    pub fn without_comparator(self) -> Self {
        Self { against_figure: None, ratio: None, met: None, note: String::new(), ..self }
    }

    /// The same, its comparator under another name.
    #[must_use]
    pub fn renamed(self, against: &str) -> Self {
        Self { against: against.to_owned(), ..self }
    }

    /// The same, only there to be looked at.
    #[must_use]
    pub fn unjudged(self) -> Self {
        Self { goal: Goal::Reported.words(&self.unit), met: None, ..self }
    }

    /// Adds something to know about it.
    #[must_use]
    pub fn noted(mut self, note: &str) -> Self {
        self.note = if self.note.is_empty() { note.to_owned() } else { format!("{note}; {}", self.note) };
        self
    }
}

/// Four digits that count are more than any of these measurements has.
fn round(figure: f64) -> f64 {
    if figure == 0.0 || !figure.is_finite() {
        return figure;
    }
    let scale = 10f64.powi(3 - figure.abs().log10().floor() as i32);
    (figure * scale).round() / scale
}

impl Goal {
    fn words(self, unit: &str) -> String {
        match self {
            Self::RatioAtMost(most) => format!("<= {most} x"),
            Self::RateAtLeast(least) => format!(">= {least} x its rate"),
            Self::QuickerBy(least) => format!(">= {least} x quicker"),
            Self::OverAtMost(most) => format!("<= {most} {unit} over it"),
            Self::AtMost(most) => format!("<= {most} {unit}"),
            Self::Reported => "reported".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_row_are_stable() {
        let row = Row::compared("shm", (&[2e3, 3e3], "us", 1e3), ("the floor", &[1e3, 2e3]), Goal::RatioAtMost(1.05));
        let row = Row { id: "M3".to_owned(), ..row };
        let text = serde_json::to_string(&row).unwrap();
        let expected = "{\"id\":\"M3\",\"transport\":\"shm\",\"figure\":2.5,\"unit\":\"us\",\"against\":\"the floor\",\
                        \"against_figure\":1.5,\"ratio\":1.75,\"goal\":\"<= 1.05 x\",\"met\":false,\
                        \"note\":\"+1.000 us over it; minima 2.000 x\"}";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        let costing = serde_json::to_string(&row.costing(Some(0.5), Some(f64::NAN))).unwrap();
        assert_eq!(costing, expected.replace("2.000 x\"}", "2.000 x\",\"cpu_s_per_gb\":0.5}"));
    }

    #[test]
    fn goals_are_judged_by_what_they_say() {
        let met = |goal| Row::compared("shm", (&[150.0], "ns", 1.0), ("x", &[100.0]), goal).met;
        assert_eq!((met(Goal::RatioAtMost(1.5)), met(Goal::RatioAtMost(1.4))), (Some(true), Some(false)));
        assert_eq!((met(Goal::QuickerBy(0.6)), met(Goal::QuickerBy(1.3))), (Some(true), Some(false)));
        assert_eq!((met(Goal::RateAtLeast(0.66)), met(Goal::RateAtLeast(0.95))), (Some(true), Some(false)));
        assert_eq!((met(Goal::OverAtMost(50.0)), met(Goal::OverAtMost(49.0))), (Some(true), Some(false)));
        assert_eq!((met(Goal::AtMost(150.0)), met(Goal::Reported)), (Some(true), None));
        assert_eq!(Row::alone("shm", 3.0, "ms", Goal::AtMost(2.0)).met, Some(false));
    }

    #[test]
    fn without_its_comparator_a_row_keeps_its_figure_and_goal_and_has_no_verdict() {
        let row = Row::compared("shm", (&[2e3], "us", 1e3), ("x", &[]), Goal::RatioAtMost(1.1)).without_comparator();
        assert_eq!((row.figure, row.against_figure, row.ratio, row.met), (Some(2.0), None, None, None));
        assert_eq!((row.goal.as_str(), row.note.as_str()), ("<= 1.1 x", ""));
    }

    #[test]
    fn figures_keep_four_digits() {
        assert_eq!((round(1234.567), round(0.012_345_67), round(0.0)), (1235.0, 0.01235, 0.0));
    }
}
