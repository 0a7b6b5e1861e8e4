//! Reads what two runs wrote down: lines of `bench --json` and of `scoreboard --json`.
//!
//! A bench's line has all its rounds. A row of the scoreboard has one figure; a file with the lines of several runs has
//! as many figures as runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::Compared;
use super::programs::CompareError;
use super::verdict::{Judge, Pairing};

/// Figures of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub name: String,
    /// What the figures are in.
    pub unit: String,
    /// The figures, round by round.
    pub figures: Vec<f64>,
}

/// Judges everything that is in both files.
pub fn compare(a: &Path, b: &Path, judge: &Judge) -> Result<Vec<Compared>, CompareError> {
    let read = |path: &Path| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| CompareError::File { path: name.clone(), source })?;
        parse(&text, &name)
    };
    judge_all(read(a)?, read(b)?, judge, Pairing::Apart)
}

/// Reads lines; rows without a figure have nothing to say.
pub(super) fn parse(text: &str, from: &str) -> Result<Vec<Measured>, CompareError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let garbled = |line: &str| CompareError::Malformed { from: from.to_owned(), line: line.to_owned() };
    let measured = lines.map(|line| {
        let value: Value = serde_json::from_str(line).map_err(|_| garbled(line))?;
        of_bench(&value).or_else(|| of_row(&value)).ok_or_else(|| garbled(line))
    });
    let all: Vec<Measured> = measured.collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err(garbled(text));
    }
    Ok(all.into_iter().filter(|one| !one.figures.is_empty()).collect())
}

fn of_bench(value: &Value) -> Option<Measured> {
    let figures = value["rounds_ns"].as_array()?.iter().map(Value::as_f64).collect::<Option<_>>()?;
    let unit = format!("ns a {}", value["per"].as_str()?);
    Some(Measured { name: value["bench"].as_str()?.to_owned(), unit, figures })
}

/// A row is known by everything that is the same in every run of it. What the note says first tells rows of one metric
/// and comparator apart (workers, modes); its figures do not belong there.
fn of_row(value: &Value) -> Option<Measured> {
    let text = |key: &str| value[key].as_str();
    let (id, transport, against) = (text("id")?, text("transport")?, text("against")?);
    let what = text("note")?.split([',', ';']).map(str::trim).find(|part| {
        !part.is_empty()
            && !["quick", "few rounds"].contains(part)
            && !part.starts_with("minima")
            && !part.starts_with(|first: char| "+-0123456789".contains(first))
    });
    let name = [Some(id), Some(transport), Some(against), what].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let figure = value.get("figure")?.as_f64();
    Some(Measured { name, unit: text("unit")?.to_owned(), figures: figure.into_iter().collect() })
}

/// Judges everything that both sides have, in the order of A.
pub(super) fn judge_all(
    a: Vec<Measured>,
    b: Vec<Measured>,
    judge: &Judge,
    pairing: Pairing,
) -> Result<Vec<Compared>, CompareError> {
    let (order, a) = gather(a);
    let (_, b) = gather(b);
    let in_both = order.into_iter().filter_map(|key| {
        let verdict = judge.judge(a.get(&key)?, b.get(&key)?, pairing);
        Some(Compared { name: key.0, unit: key.1, verdict })
    });
    let all: Vec<Compared> = in_both.collect();
    if all.is_empty() { Err(CompareError::NothingInCommon) } else { Ok(all) }
}

type Key = (String, String);

/// The figures of each measurement, and the measurements in the order in which they came.
fn gather(all: Vec<Measured>) -> (Vec<Key>, BTreeMap<Key, Vec<f64>>) {
    let (mut order, mut figures) = (Vec::new(), BTreeMap::<Key, Vec<f64>>::new());
    for Measured { name, unit, figures: more } in all {
        let key = (name, unit);
        if !figures.contains_key(&key) {
            order.push(key.clone());
        }
        figures.entry(key).or_default().extend(more);
    }
    (order, figures)
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Quicker;
    use super::*;

    fn bench(times: &[f64]) -> String {
        format!("{{\"bench\":\"slab\",\"per\":\"item\",\"median_ns\":1,\"least_ns\":1,\"rounds_ns\":{times:?}}}\n")
    }

    fn row(figure: f64, note: &str) -> String {
        format!(
            "{{\"id\":\"M3\",\"transport\":\"shm\",\"against\":\"memcpy\",\"figure\":{figure},\"unit\":\"us\",\"note\":\"{note}\"}}\n"
        )
    }

    fn judged(a: &str, b: &str) -> Vec<Compared> {
        judge_all(parse(a, "a").unwrap(), parse(b, "b").unwrap(), &Judge::default(), Pairing::Apart).unwrap()
    }

    #[test]
    fn the_rounds_of_a_bench_are_held_against_each_other() {
        let all = judged(&bench(&[10.0, 10.1, 10.2, 9.9, 10.0, 10.1]), &bench(&[8.0, 8.1, 8.2, 7.9, 8.0, 8.1]));
        assert_eq!(
            (all[0].name.as_str(), all[0].unit.as_str(), all[0].verdict.quicker),
            ("slab", "ns a item", Quicker::B)
        );
    }

    #[test]
    fn one_figure_of_a_row_is_too_little_and_several_runs_are_enough() {
        let note = "inline, 4 GB/s; +3 us over it";
        let once = judged(&row(100.0, note), &row(80.0, note));
        assert_eq!((once[0].name.as_str(), once[0].verdict.quicker), ("M3, shm, memcpy, inline", Quicker::Unknown));
        let often = |figure: f64| (0..6).map(|run| row(figure + f64::from(run), note)).collect::<String>();
        assert_eq!(judged(&often(80.0), &often(100.0))[0].verdict.quicker, Quicker::A);
    }

    #[test]
    fn rows_of_one_metric_are_told_apart_by_their_notes_words_and_not_their_figures() {
        let all = parse(
            &[row(1.0, "quick, few rounds; inline; +1 us"), row(2.0, "quick, few rounds; one worker")].concat(),
            "x",
        );
        let names: Vec<String> = all.unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["M3, shm, memcpy, inline", "M3, shm, memcpy, one worker"]);
        assert_eq!(parse(&row(1.0, "+0.5 ns over it; minima 1.2 x"), "x").unwrap()[0].name, "M3, shm, memcpy");
    }

    #[test]
    fn rows_without_figures_and_strangers_are_left_out_and_nonsense_is_refused() {
        let absent = row(1.0, "not installed").replace(":1,", ":null,");
        let error =
            judge_all(parse(&absent, "a").unwrap(), parse(&absent, "b").unwrap(), &Judge::default(), Pairing::Apart);
        assert!(matches!(error, Err(CompareError::NothingInCommon)));
        assert!(matches!(parse("", "x"), Err(CompareError::Malformed { .. })));
        assert!(matches!(parse("{}", "x"), Err(CompareError::Malformed { .. })));
        assert!(matches!(parse("text", "x"), Err(CompareError::Malformed { .. })));
    }
}
