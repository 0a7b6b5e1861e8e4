//! The command, as its users run it.

use std::path::PathBuf;
use std::process::{Command, Output};

use penstock_lab::results::Record;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock-lab")).args(arguments).output().unwrap()
}

/// A folder of the test's own, in which no peer is installed.
struct Empty(PathBuf);

impl Empty {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn rows_are_json_objects_with_a_verdict_or_none() {
    let peers = Empty::new("peers");
    let output = lab(&["scoreboard", "--only", "M1,M2,M12,M13", "--json", "--quick", "--peers", peers.path()]);
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
    assert_eq!((of("M1"), of("M2"), of("M12"), of("M13")), (8, 1, 4, 2));
    let absent: Vec<_> = rows.iter().filter(|row| row["note"].as_str().unwrap().contains("is not installed")).collect();
    let of_peers: Vec<_> = absent.iter().map(|row| row["against"].as_str().unwrap()).collect();
    let expected =
        ["UCX shm, ucp_put_lat", "libfabric shm, fi_pingpong", "NIXL, default", "NIXL, tuned", "UCX shm, ucp_put_lat"];
    assert_eq!(of_peers, expected);
    for row in absent {
        assert!(row["met"].is_null() && row["against_figure"].is_null() && row["figure"].is_number(), "{row}");
    }
}

#[test]
fn a_run_is_kept_with_its_machine_and_read_again() {
    let folder = Empty::new("results");
    let output = lab(&["scoreboard", "--only", "M2,M7", "--quick", "--no-peers", "--save", folder.path()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<PathBuf> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let json = files.iter().find(|path| path.extension().is_some_and(|kind| kind == "json")).unwrap();
    let record = Record::parse(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(record.quick && record.rows.iter().any(|row| row.note.contains("left out of this run")));
    let refused = lab(&["scoreboard", "--only", "M2", "--quick", "--no-peers", "--save", "/nowhere"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("no folder /nowhere"));
}

#[test]
fn memory_of_the_applications_own_has_its_rows_whether_or_not_the_engine_reaches_it() {
    let output = lab(&["scoreboard", "--only", "D1", "--json", "--quick", "--no-peers"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let against: Vec<&str> = rows.iter().map(|row| row["against"].as_str().unwrap()).collect();
    assert_eq!(against, ["process_vm_writev alone", "the same by another thread", "best kernel, one thread"]);
    for row in &rows[..2] {
        assert!(row["against_figure"].as_f64().unwrap() > 0.0);
        assert_eq!(row["figure"].is_null(), row["note"].as_str().unwrap().contains("was not measured: "));
    }
    assert!(rows[2]["figure"].as_f64().unwrap() > 0.0);
}

#[test]
fn without_python_the_same_from_rust_has_its_figures_and_nobody_a_verdict() {
    let output = lab(&["scoreboard", "--only", "P1", "--json", "--quick", "--no-peers"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6, "{text}");
    for row in &rows {
        assert!(row["figure"].is_null() && row["met"].is_null(), "{row}");
        assert!(row["note"].as_str().unwrap().contains("not measured: "), "{row}");
        assert_eq!(row["against_figure"].is_number(), row["against"] == "the same from Rust", "{row}");
    }
}

#[test]
fn between_hosts_floors_and_peers_have_their_rows_whether_or_not_the_engine_gets_there() {
    let output = lab(&["scoreboard", "--only", "M8,M9", "--json", "--quick", "--no-peers"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| rows.iter().filter(|row| row["id"] == id).collect::<Vec<_>>();
    let (moves, words) = (of("M8"), of("M9"));
    assert_eq!((moves.len(), words.len()), (10, 4), "{text}");
    for row in &rows {
        assert_eq!(row["transport"], "tcp");
        let is_peers = row["note"].as_str().unwrap().contains("left out of this run");
        assert_eq!(row["against_figure"].is_null(), is_peers, "{row}");
        assert_eq!(row["figure"].is_null(), row["note"].as_str().unwrap().contains("engine was not measured"), "{row}");
    }
    let floors: Vec<_> = moves.iter().filter(|row| row["against"] == "sendmsg and recvmsg, blocking").collect();
    assert_eq!(floors.len(), 4);
    for floor in floors {
        let note = floor["note"].as_str().unwrap();
        assert!(note.contains("blocks a call") && note.contains("bytes verified"), "{floor}");
        assert!(floor["against_cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{floor}");
    }
    assert_eq!(words[0]["goal"], "<= 1.2 x");
}

#[test]
fn the_engines_own_packets_are_held_against_bare_ones_with_and_without_loss() {
    let output = lab(&["scoreboard", "--only", "M11u", "--json", "--quick", "--no-peers"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 12, "{text}");
    for (place, row) in rows.iter().enumerate() {
        let note = row["note"].as_str().unwrap();
        assert_eq!((row["id"].as_str(), row["transport"].as_str()), (Some("M11u"), Some("datagram")));
        assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            note.contains(if place < 5 || place == 10 { "frames of 1472 B" } else { "frames of 65507 B" }),
            "{row}"
        );
        assert!(place >= 10 || note.contains("MB verified"), "{row}");
    }
    let lossy: Vec<_> = rows.iter().filter(|row| row["against"] == "the same without loss").collect();
    assert_eq!(lossy.len(), 2);
    let with_checksums = rows.iter().filter(|row| row["against"] == "the same without checksums");
    assert!(with_checksums.clone().all(|row| row["ratio"].as_f64().unwrap() > 0.0) && with_checksums.count() == 2);
    for row in lossy {
        let note = row["note"].as_str().unwrap();
        let lost: f64 = note.split(" % of the sender").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!((0.3..20.0).contains(&lost), "about one in a hundred is lost: {row}");
    }
}

#[test]
fn peers_are_listed_and_unknown_ones_are_refused() {
    let peers = Empty::new("list");
    let output = lab(&["peers", "list", "--folder", peers.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for name in ["nixl", "mooncake", "ucx", "libfabric", "iperf3", "qperf"] {
        assert!(text.contains(&format!("peers install --only {name}")), "{text}");
    }
    let refused = lab(&["peers", "install", "--only", "mpi", "--folder", peers.path()]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("mpi is no peer"));
}

#[test]
fn without_the_programs_that_fetch_each_peer_says_what_is_missing_and_the_others_go_on() {
    let peers = Empty::new("bare");
    let mut bare = Command::new(env!("CARGO_BIN_EXE_penstock-lab"));
    let output = bare.args(["peers", "install", "--only", "nixl,ucx,qperf", "--folder", peers.path()]);
    let output = output.env("PATH", peers.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(text.matches("this machine has no apt-get").count(), 2, "{text}");
    assert!(text.contains("no python3 with venv") && text.contains("python3-venv"), "{text}");
    assert_eq!(std::fs::read_dir(&peers.0).unwrap().count(), 0, "nothing half-made is left");
}

#[test]
fn an_unknown_metric_is_refused_and_nothing_is_measured() {
    let output = lab(&["scoreboard", "--only", "M99", "--no-peers"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("M1 to M11"));
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
