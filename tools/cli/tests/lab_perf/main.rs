//! Labs: `penstock perf` over a link between two network namespaces, of a rate that is known. What it says is held against what the
//! kernel has counted at the interface.

#![forbid(unsafe_code)]

#[path = "../command/run.rs"]
mod run;

mod link;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::link::Link;
use crate::run::{Ran, penstock};

/// What the command may take beside `-t`: pools are made and looked at. Where others have the cores it waits for those.
fn beside() -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    Duration::from_secs_f64((load / cores).clamp(3.0, 10.0))
}

/// Bytes that may cross the link and are not of measured rounds.
const OUTSIDE: f64 = (1 << 20) as f64;

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"))
}

/// Measures for five seconds, and holds what it says against the interface and the clock.
fn five_seconds(link: &Link, more: &[&str]) -> Value {
    let before = link.sent_or_received();
    let begun = Instant::now();
    let ran = link.perf(&[&["-t", "5", "--json", "--pool-mib", "64"], more].concat());
    let took = begun.elapsed();
    let payload = link.sent_or_received() - before;
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let report = ran.json();
    assert!(took <= Duration::from_secs(5) + beside(), "it took {took:?}: {report}");
    let (gbps, elapsed, total) =
        (number(&report, "gbps"), number(&report, "elapsed_s"), number(&report, "bytes_total"));
    assert!((4.9..5.6).contains(&elapsed), "{report}");
    assert!((gbps * elapsed * 1e9 / total - 1.0).abs() < 1e-6, "{report}");
    let counted = payload / elapsed / 1e9;
    assert!((gbps / counted - 1.0).abs() < 0.05, "the interface had {counted} GB/s of payload: {report}");
    // The engine's own framing is part of what crosses.
    assert!(payload <= total * 1.02 + OUTSIDE, "{payload} bytes of payload crossed: {report}");
    assert_eq!((&report["verified"], &report["cut_off"]), (&true.into(), &Value::Null), "{report}");
    assert!(number(&report, "bytes_verified") > 0.0, "{report}");
    report
}

#[test]
fn the_time_is_kept_and_the_rate_is_the_links_at_ten_megabits() {
    let test = "the_time_is_kept_and_the_rate_is_the_links_at_ten_megabits";
    let Some(link) = Link::new(test, Some("10mbit")) else { return };
    let report = five_seconds(&link, &[]);
    // A round takes 13 s: what was moved of it counts all the same.
    assert_eq!((&report["rounds"], &report["p50_us"]), (&0.into(), &Value::Null), "{report}");
    assert_eq!(report["bytes_verified"], report["bytes_total"]);
    assert!((0.001_10..0.001_26).contains(&number(&report, "gbps")), "{report}");
}

#[test]
fn the_time_is_kept_and_the_rate_is_the_links_at_a_hundred_megabits() {
    let test = "the_time_is_kept_and_the_rate_is_the_links_at_a_hundred_megabits";
    let Some(link) = Link::new(test, Some("100mbit")) else { return };
    let report = five_seconds(&link, &["-P", "4", "--op", "read"]);
    assert!((0.011..0.0126).contains(&number(&report, "gbps")), "{report}");
}

#[test]
fn the_time_is_kept_and_the_rate_is_what_was_moved_without_a_limit() {
    let Some(link) = Link::new("the_time_is_kept_and_the_rate_is_what_was_moved_without_a_limit", None) else {
        return;
    };
    let report = five_seconds(&link, &[]);
    assert!(number(&report, "rounds") > 10.0 && number(&report, "gbps") > 0.1, "{report}");
    // One block is cut into slices before it is known how quickly the link takes it.
    let block = "{name: block, what: a test, block_bytes: 67108864, blocks: 1, layers: 1}";
    let block = link.folder.write("block.yaml", block);
    let ran = link.perf(&["-t", "1", "--json", "--pool-mib", "64", "-w", &block]);
    assert_eq!((ran.status, &ran.json()["verified"]), (0, &true.into()), "{ran:?}");
}

#[test]
fn two_clients_are_charged_no_more_than_was_used() {
    let Some(link) = Link::new("two_clients_are_charged_no_more_than_was_used", None) else { return };
    let before = link.cpu();
    let arguments = ["-t", "4", "--json", "--pool-mib", "17"];
    let (one, other) = (link.started(&arguments), link.started(&arguments));
    let reports = [one.end(), other.end()].map(|ran: Ran| {
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
        ran.json()
    });
    let used = link.cpu() - before;
    let charged = |report: &Value| number(report, "cpu_s_per_gb") * number(report, "bytes_total") / 1e9;
    let all: f64 = reports.iter().map(charged).sum();
    assert!(all <= used, "{all} s of CPU are charged and {used} s were used: {reports:?}");
    assert!(all > used / 3.0, "{all} s of CPU are charged of {used} s that were used: {reports:?}");
}

#[test]
fn what_the_server_does_not_lend_is_refused_before_anything_is_made() {
    let Some(link) = Link::new("what_the_server_does_not_lend_is_refused_before_anything_is_made", None) else {
        return;
    };
    let begun = Instant::now();
    let ran = link.perf(&["--pool-mib", "2048"]);
    assert!(ran.status == 1 && ran.err.contains("was asked for 2048 MiB"), "{ran:?}");
    assert!(begun.elapsed() < beside(), "{:?}", begun.elapsed());
}

#[test]
fn one_that_is_cut_off_on_a_slow_link_says_what_it_has_at_once() {
    let test = "one_that_is_cut_off_on_a_slow_link_says_what_it_has_at_once";
    let Some(link) = Link::new(test, Some("10mbit")) else { return };
    for op in ["write", "read"] {
        let mut running = link.started(&["-t", "60", "--pool-mib", "32", "--op", op, "-i", "0.5"]);
        running.wait_for_an_interval();
        running.interrupt();
        let begun = Instant::now();
        let ran = running.end();
        assert!(begun.elapsed() < 2 * beside(), "{op}: {:?}", begun.elapsed());
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.out.contains("\ncut off    interrupted\n") && ran.out.contains(" Mbit/s)\n"), "{}", ran.out);
        assert!(ran.out.contains("\nverified   yes, ") && ran.out.ends_with(" that had arrived\n"), "{}", ran.out);
        assert_eq!(link.folder.left_behind(), Vec::<String>::new());
    }
}

#[test]
fn a_server_that_is_killed_costs_nothing_of_what_was_measured() {
    let test = "a_server_that_is_killed_costs_nothing_of_what_was_measured";
    let Some(mut link) = Link::new(test, Some("100mbit")) else { return };
    let mut running = link.started(&["-t", "60", "--pool-mib", "32", "-i", "0.5"]);
    running.wait_for_an_interval();
    link.kill_server();
    let ran = running.end();
    assert!(ran.status == 1 && ran.out.contains("\ncut off    ") && ran.out.contains(" Mbit/s)\n"), "{ran:?}");
    assert!(
        ran.out.ends_with("\nverified   not looked at: cut off before\n") && ran.err.contains("penstock: cut off: "),
        "{ran:?}"
    );
    assert_eq!(link.folder.left_behind(), Vec::<String>::new());
}

#[test]
fn more_than_this_host_has_is_refused_within_a_second() {
    let Some(_link) = Link::new("more_than_this_host_has_is_refused_within_a_second", None) else { return };
    let begun = Instant::now();
    let ran = penstock(&["perf", "-P", "1000", "-t", "1", "-w", "w3"]);
    assert!(ran.status == 1 && ran.err.contains("that this host has left"), "{ran:?}");
    assert!(begun.elapsed() < beside(), "{:?}", begun.elapsed());
}

#[test]
fn what_was_cancelled_on_a_dead_link_is_not_taken_for_wrong_bytes() {
    let Some(link) = Link::new("what_was_cancelled_on_a_dead_link_is_not_taken_for_wrong_bytes", None) else { return };
    // The pool is small, so that what is cancelled lies where the passes before had brought the same bytes.
    let arguments = ["-t", "3", "--json", "--pool-mib", "64"];
    for _ in 0..2 {
        let running = link.started(&arguments);
        std::thread::sleep(Duration::from_millis(2_700));
        link.is_dead_for(Duration::from_millis(2_000));
        let ran = running.end();
        assert_eq!((ran.status, &ran.json()["verified"]), (0, &true.into()), "{ran:?}");
    }
    let mut running = link.started(&["-t", "30", "--pool-mib", "64", "-i", "0.5"]);
    running.wait_for_an_interval();
    let interrupt = || {
        std::thread::sleep(Duration::from_millis(700));
        running.interrupt();
    };
    std::thread::scope(|scope| {
        scope.spawn(interrupt);
        link.is_dead_for(Duration::from_millis(1_500));
    });
    let ran = running.end();
    assert!(ran.status == 1 && ran.out.contains("\ncut off    interrupted\n"), "{ran:?}");
    assert!(!ran.err.contains("not what was sent"), "{ran:?}");
}
