//! The command, as its users run it.

use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock-lab")).args(arguments).output().unwrap()
}

#[test]
fn rows_are_json_objects_with_a_verdict_or_none() {
    let output = lab(&["scoreboard", "--only", "M1,M2,M12,M13", "--json", "--quick"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let keys = ["id", "transport", "figure", "unit", "against", "against_figure", "ratio", "goal", "met", "note"];
    for row in &rows {
        let object = row.as_object().unwrap();
        assert!(object.len() == keys.len() && keys.iter().all(|key| object.contains_key(*key)), "{row}");
        assert!(row["met"].is_boolean() || row["met"].is_null());
        assert!(row["figure"].is_null() || row["figure"].as_f64().unwrap() > 0.0);
    }
    let of = |id| rows.iter().filter(|row| row["id"] == id).count();
    assert_eq!((of("M1"), of("M2"), of("M12"), of("M13")), (5, 1, 4, 2));
}

#[test]
fn an_unknown_metric_is_refused_and_nothing_is_measured() {
    let output = lab(&["scoreboard", "--only", "M99"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("M1 to M7"));
}

#[test]
fn workloads_are_listed() {
    let text = String::from_utf8(lab(&["workloads"]).stdout).unwrap();
    for name in ["w1", "w2", "w3", "w4", "w5", "w5-rows", "kv16", "stress", "-half"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(lab(&["workloads", "--json"]).stdout.iter().filter(|&&byte| byte == b'\n').count(), 8);
}

#[test]
fn a_target_without_a_reason_to_live_ends() {
    let output = lab(&["__perf-target", "nonsense"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("Failed"));
}
