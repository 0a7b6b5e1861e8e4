//! The micro-benches as a table, or as one JSON object each.

use std::time::Duration;

use penstock_micro::bench::{Bench, Effort, Times};
use penstock_micro::cases;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::measure::{least, median};

/// All benches together take about so long.
const BUDGET: Duration = Duration::from_secs(30);
/// A round is long enough for the clock not to be seen in it, and no longer than this.
const ROUND_MAX: Duration = Duration::from_millis(10);

/// What one bench came to. Serialised it is one JSON object with stable keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Its name.
    pub bench: String,
    /// What the times are for.
    pub per: String,
    /// The middle one, in nanoseconds.
    pub median_ns: f64,
    /// The least, in nanoseconds.
    pub least_ns: f64,
    /// All of them, round by round, in nanoseconds.
    pub rounds_ns: Vec<f64>,
}

/// The benches in whose names one of these words is, or all if there are no words.
pub fn choose(words: &[String]) -> Result<Vec<Bench>, LabError> {
    let all = cases::all();
    let is_in = |word: &String| all.iter().any(|bench| bench.name.contains(word.as_str()));
    if !words.iter().all(is_in) {
        return Err(LabError::Option {
            option: "only",
            mend: "give parts of names of micro-benches: bench --list shows them",
        });
    }
    let wanted = |bench: &Bench| words.is_empty() || words.iter().any(|word| bench.name.contains(word.as_str()));
    Ok(all.into_iter().filter(wanted).collect())
}

/// Measures some benches for so many rounds each.
pub fn measure(benches: &[Bench], rounds: usize) -> Result<Vec<Timed>, LabError> {
    let share = BUDGET / (benches.len().max(1) * rounds.max(1)) as u32;
    let effort = Effort { rounds, round: share.min(ROUND_MAX) };
    let measured =
        penstock_micro::bench::measure(benches, effort).map_err(LabError::refused("measure a micro-bench"))?;
    Ok(measured.into_iter().map(timed).collect())
}

fn timed(Times { name, per, rounds }: Times) -> Timed {
    let (median_ns, least_ns) = (median(&rounds), least(&rounds));
    Timed { bench: name.to_owned(), per: per.to_owned(), median_ns, least_ns, rounds_ns: rounds }
}

/// All of them as a table.
pub fn render(all: &[Timed]) -> String {
    let widest = all.iter().map(|timed| timed.bench.len()).max().unwrap_or(0).max("bench".len());
    let mut text = format!("{:<widest$}  {:>12}  {:>12}\n", "bench", "median ns", "min ns");
    for Timed { bench, per, median_ns, least_ns, .. } in all {
        text.push_str(&format!("{bench:<widest$}  {median_ns:>12.2}  {least_ns:>12.2}  a {per}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn benches_are_chosen_by_parts_of_their_names() {
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            choose(&words).map(|chosen| chosen.into_iter().map(|bench| bench.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["plan-w", "hazard"]).unwrap(), ["hazard-enter-leave", "plan-w1", "plan-w2"]);
        assert_eq!(names(&[]).unwrap().len(), cases::all().len());
        assert!(names(&["hazard", "no-such"]).unwrap_err().to_string().contains("--list"));
    }

    #[test]
    fn plans_are_those_of_the_workloads() {
        for (name, grid) in cases::PLANNED {
            let workload = Workload::find(name).unwrap();
            let same = (workload.block_bytes, workload.blocks, u64::from(workload.layers));
            assert_eq!((grid.block_bytes, grid.pairs, grid.layers), same, "{name}");
        }
    }
}
