//! `penstock selftest`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run::{Folder, LIMIT, finish, penstock, wait};

#[test]
fn all_transports_of_this_host_pass() {
    let ran = penstock(&["selftest", "--quick", "--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let report = ran.json();
    assert_eq!(report["ok"], true);
    let rows = report["transports"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["transport"].as_str().unwrap()).collect();
    assert_eq!(names, ["local", "shm", "tcp", "datagram"]);
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        assert!(["p50_us", "gbps", "gbps_p50"].iter().all(|key| row[key].as_f64().unwrap() > 0.0), "{row}");
        // Sockets have no bare copy beside them.
        let has_floor = row["transport"] != "tcp" && row["transport"] != "datagram";
        assert!(["floor_us", "vs_floor"].iter().all(|key| row[key].is_f64() == has_floor), "{row}");
        let checks: Vec<&str> = row["checks"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        let expected = ["connect", "write", "read", "notify", "counter", "cancel", "revoke", "measure", "leave"];
        assert_eq!(checks, expected);
    }
    let absent: Vec<&str> =
        report["absent"].as_array().unwrap().iter().map(|row| row["transport"].as_str().unwrap()).collect();
    assert_eq!(absent, ["verbs", "dpdk", "cuda"]);
}

#[test]
fn the_table_is_for_people() {
    let ran = penstock(&["selftest", "--quick", "--transport", "shm"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.starts_with("transport  path "), "{}", ran.out);
    assert!(ran.out.lines().nth(1).unwrap().ends_with("  yes"), "{}", ran.out);
}

#[test]
fn whatever_is_broken_is_noticed() {
    for (what, step) in [
        ("write", "write"),
        ("read", "read"),
        ("notify", "notify"),
        ("counter", "counter"),
        ("cancel", "cancel"),
        ("revoke", "revoke"),
        ("crash", "write"),
    ] {
        let ran = penstock(&["selftest", "--quick", "--json", "--transport", "shm", "--sabotage", what]);
        assert_eq!(ran.status, 1, "{ran:?}");
        let row = &ran.json()["transports"][0];
        let last = row["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&row["verified"], last["name"].as_str(), &last["ok"]), (&false.into(), Some(step), &false.into()));
        assert!(!last["flaw"].as_str().unwrap().is_empty());
    }
    let ran = penstock(&["selftest", "--quick", "--sabotage", "write"]);
    assert_eq!(ran.status, 1);
    assert!(ran.out.contains("  NO\n") && ran.out.contains("\nlocal, write: wrong bytes in the target's"), "{ran:?}");
}

#[test]
fn the_other_process_ends_with_its_input() {
    let folder = Folder::new();
    let sockets = folder.path().join("tmp").display().to_string();
    let arguments = ["__selftest-target", "--quick", "--transport", "shm", "--directory", &sockets];
    let mut child = folder.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(child.try_wait().unwrap(), None, "it waits for errands");
    drop(child.stdin.take());
    assert_eq!(wait(&mut child), Some(0));
    assert_eq!(folder.left_behind(), Vec::<String>::new());
    let ran = finish(&mut folder.command(&arguments));
    assert_eq!(ran.status, 0, "without any input there is nothing to do: {ran:?}");
}

#[test]
fn one_that_is_interrupted_says_so_and_leaves_nothing() {
    let folder = Folder::new();
    for moment_ms in [10, 50, 100, 300] {
        let mut child = folder.command(&["selftest", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment_ms));
        let kill = format!("kill -s INT {}", child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        // By the signal itself, where it came before the command could look out for it.
        let status = wait(&mut child);
        assert!(matches!(status, Some(1) | None), "{status:?}");
        let mut out = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut out).unwrap();
        if status.is_some() {
            let report: serde_json::Value = serde_json::from_str(&out).unwrap();
            assert_eq!((&report["ok"], &report["cut_off"]), (&false.into(), &"interrupted".into()), "{report}");
        }
        assert_eq!(folder.left_behind(), Vec::<String>::new(), "{moment_ms} ms");
    }
}

/// Not even a test that is killed leaves a process behind.
#[test]
fn the_other_process_does_not_outlive_a_killed_one() {
    let folder = Folder::new();
    let mut parent = folder.command(&["selftest", "--transport", "shm"]).stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let child = loop {
        assert!(Instant::now() < until, "no second process was started");
        if let Some(child) = child_of(parent.id()) {
            break child;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    parent.kill().unwrap();
    parent.wait().unwrap();
    while is_target(child) {
        assert!(Instant::now() < until, "the other process is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The child of a process that has become the target.
fn child_of(parent: u32) -> Option<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&process: &u32| parent_of(process) == Some(parent)).find(|&process| is_target(process))
}

fn parent_of(process: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Zombies have no command line any more.
fn is_target(process: u32) -> bool {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).any(|argument| argument == b"__selftest-target")
}
