//! `penstock perf`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Folder, finish, penstock, wait};

/// A few blocks, so that it takes no time even without optimisation.
const TINY: &str = "name: tiny\nwhat: a test\nblock_bytes: 4096\nblocks: 64\nlayers: 2\n";

fn perf(folder: &Folder, arguments: &[&str]) -> crate::run::Ran {
    let tiny = folder.write("tiny.yaml", TINY);
    let common = ["perf", "--workload", &tiny, "--pool-mib", "8", "--rounds", "5", "--pages", "small"];
    let ran = finish(&mut folder.command(&[&common, arguments].concat()));
    assert_eq!(folder.left_behind(), Vec::<String>::new());
    ran
}

#[test]
fn a_device_is_not_given_to_both_engines_of_one_host() {
    let folder = Folder::new();
    let config = folder.write("device.yaml", "dpdk: { device: net_memif0, address: 10.0.9.1/24 }\n");
    for arguments in [&["--config", &config][..], &["--config", &config, "--transport", "dpdk"]] {
        let ran = perf(&folder, arguments);
        assert!(ran.status == 2 && ran.err.contains("`dpdk.device` of the configuration is for one"), "{ran:?}");
    }
}

#[test]
fn a_workload_of_ones_own_is_measured_and_verified() {
    let folder = Folder::new();
    for arguments in [
        &["--json"][..],
        &["--json", "--op", "read", "--progress", "inline"],
        &["--json", "--transport", "local", "--workers", "2", "-P", "2"],
    ] {
        let ran = perf(&folder, arguments);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{arguments:?}: {ran:?}");
        let report = ran.json();
        let keys = [
            "transport",
            "op",
            "workload",
            "bytes",
            "blocks",
            "rounds",
            "bytes_total",
            "elapsed_s",
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "gbps",
            "gbps_p50",
            "post_us_p50",
            "cpu_s_per_gb",
            "floor_us",
            "verified",
            "bytes_verified",
            "cut_off",
            "path",
        ];
        let mut found: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        let mut expected = keys;
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(
            (&report["verified"], &report["workload"], &report["rounds"]),
            (&true.into(), &"tiny".into(), &5.into())
        );
        let sets = if arguments.contains(&"-P") { 2 } else { 1 };
        assert_eq!((&report["bytes"], &report["blocks"]), (&(sets * 64 * 2 * 4096).into(), &(sets * 64 * 2).into()));
        let number = |key: &str| report[key].as_f64().unwrap();
        assert_eq!(number("bytes_total"), 5.0 * number("bytes"), "{report}");
        assert!((number("gbps") * number("elapsed_s") * 1e9 / number("bytes_total") - 1.0).abs() < 1e-6, "{report}");
        assert!((number("gbps_p50") * number("p50_us") * 1e3 / number("bytes") - 1.0).abs() < 1e-6, "{report}");
        assert!(report["cut_off"].is_null() && number("bytes_verified") > 0.0, "{report}");
        assert!(["p50_us", "floor_us", "gbps"].iter().all(|key| report[key].as_f64().unwrap() > 0.0), "{report}");
    }
}

#[test]
fn the_table_is_for_people() {
    let folder = Folder::new();
    let ran = perf(&folder, &["--transport", "local"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.starts_with("tiny over local, write: 128 blocks, 512 KiB a round, 5 rounds\n"), "{}", ran.out);
    assert!(ran.out.ends_with("\nverified  yes, every byte\n"), "{}", ran.out);
}

#[test]
fn packets_are_counted_where_there_are_some() {
    let folder = Folder::new();
    let ran = perf(&folder, &["--json", "--transport", "datagram"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let packets = &ran.json()["packets"];
    let help = penstock(&["perf", "--help"]).out;
    for key in packets.as_object().unwrap().keys() {
        assert!(help.contains(key), "the help does not name `{key}`");
    }
    let number = |key: &str| packets[key].as_f64().unwrap();
    assert!(number("sent") > 0.0 && number("received") > 0.0 && number("round_trip_us") > 0.0, "{packets}");
    assert!((0.0..=1.0).contains(&number("loss")) && number("window_bytes") >= 1_188.0, "{packets}");
    assert_eq!((number("dropped"), number("lost") < number("sent")), (0.0, true), "{packets}");
    let ran = perf(&folder, &["--transport", "datagram"]);
    assert!(ran.out.lines().any(|line| line.starts_with("packets") && line.contains(" given up (")), "{}", ran.out);
}

#[test]
fn wrong_bytes_are_noticed() {
    let folder = Folder::new();
    for op in ["write", "read"] {
        let ran = perf(&folder, &["--json", "--op", op, "--sabotage"]);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{ran:?}");
        assert!(ran.err.contains("what arrived is not what was sent"), "{ran:?}");
    }
}

#[test]
fn workloads_are_listed() {
    let ran = penstock(&["perf", "--list"]);
    assert_eq!(ran.status, 0);
    for name in ["kv16", "w1", "w2", "w3", "w4", "w5", "stress"] {
        assert!(ran.out.lines().any(|line| line.starts_with(&format!("{name} "))), "{}", ran.out);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = Folder::new();
    let impossible = folder.write("impossible.yaml", &TINY.replace("4096", "4095"));
    for (arguments, expected) in [
        (&["--workload", "kv17"][..], "there is no workload `kv17`"),
        (&["--workload", &impossible], "cannot be run"),
        (&["--workers", "0"], "from 1 to 16"),
        (&["-t", "never"], "give seconds"),
        (&["-t", "1", "--rounds", "2"], "cannot be used with"),
        (&["--progress", "inline", "--workers", "2"], "an inline engine has one"),
    ] {
        let ran = finish(&mut folder.command(&[&["perf"], arguments].concat()));
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{arguments:?}: {ran:?}");
        assert!(ran.err.starts_with("penstock: ") && ran.err.contains(expected), "{ran:?}");
    }
}

#[test]
fn what_is_configured_otherwise_is_used_and_what_is_wrong_with_it_is_said_once() {
    let folder = Folder::new();
    // The place at which engines would listen is the measurement's own: another one may be there.
    let file = folder.write("own.yaml", "transports: { tcp_streams: 2 }\nsession: { listen: [\"127.0.0.1:1\"] }\n");
    let ran = perf(&folder, &["--json", "--transport", "tcp", "--config", &file]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let path = ran.json()["path"].as_str().unwrap().to_owned();
    assert!(path.contains("2 streams"), "{path}");
    let wrong = folder.write("wrong.yaml", "sessoin: 1\n");
    let ran = perf(&folder, &["--config", &wrong]);
    assert_eq!((ran.status, ran.err.matches("sessoin").count()), (2, 1), "{ran:?}");
}

#[test]
fn options_for_rdma_devices_are_refused_where_they_mean_nothing() {
    let folder = Folder::new();
    for (arguments, words) in [
        (&["--devices", "mlx5_0"][..], "measures shm; add `--transport verbs`"),
        (&["--transport", "tcp", "--connect", "cm"], "--connect is for RDMA devices"),
        (&["--transport", "verbs", "--devices", "mlx5_0:0"], "ports are counted from 1"),
        (&["--transport", "verbs", "--devices", "mlx5_0:1,mlx5_0:1"], "names mlx5_0:1 twice"),
    ] {
        let ran = perf(&folder, arguments);
        assert!(ran.status == 2 && ran.err.contains(words), "{arguments:?}: {ran:?}");
    }
    let ran = finish(&mut folder.command(&["doctor", "127.0.0.1:1", "--devices", "mlx5_0"]));
    assert!(ran.status == 2 && ran.err.contains("reached over TCP"), "{ran:?}");
}

#[test]
fn intervals_are_told_beside_the_table_and_not_with_json() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    let common = ["perf", "--transport", "local", "--workload", &tiny, "--pool-mib", "8", "-t", "0.5", "-i", "0.1"];
    let ran = finish(&mut folder.command(&common));
    assert!(ran.status == 0 && ran.err.lines().count() >= 3, "{ran:?}");
    assert!(ran.err.lines().all(|line| line.contains(" s  ") && line.contains("bit/s), ")), "{ran:?}");
    let ran = finish(&mut folder.command(&[&common[..], &["--json"]].concat()));
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(ran.json()["gbps"].as_f64().unwrap() > 0.0);
}

#[test]
fn blocks_of_a_few_bytes_are_measured_as_quickly_as_others() {
    let folder = Folder::new();
    let small = folder.write("small.yaml", "{name: small, what: a test, block_bytes: 8, blocks: 1, layers: 1}\n");
    let start = Instant::now();
    let ran = finish(&mut folder.command(&["perf", "--workload", &small, "--rounds", "50", "--json"]));
    assert_eq!((ran.status, &ran.json()["verified"]), (0, &true.into()), "{ran:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let ran = finish(&mut folder.command(&["perf", "--workload", &small, "--pool-mib", "512", "--rounds", "1"]));
    assert!(ran.status == 2 && ran.err.contains("8 million places"), "{ran:?}");
}

#[test]
fn pools_larger_than_all_memory_are_refused_at_once() {
    let folder = Folder::new();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let mib = total.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() >> 10;
    // Each of the two would find room, alone.
    let half = (mib * 6 / 10).to_string();
    let start = Instant::now();
    for arguments in [&["-P", "1000", "--pool-mib", &half][..], &["--pool-mib", &half], &["--pool-mib", "1048576"]] {
        let ran = finish(&mut folder.command(&[&["perf", "-t", "1"], arguments].concat()));
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{ran:?}");
        assert!(ran.err.contains("MiB that this host has left") && ran.err.contains("--pool-mib"), "{ran:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(folder.left_behind(), Vec::<String>::new());
}

#[test]
fn a_measurement_that_is_interrupted_says_what_it_has_and_leaves_nothing() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    for (transport, signal) in [("shm", "INT"), ("tcp", "TERM"), ("local", "INT")] {
        let arguments =
            ["perf", "--workload", &tiny, "--pool-mib", "8", "--transport", transport, "-t", "60", "-i", "0.1"];
        let (status, out, err) = interrupted(&folder, &arguments, signal);
        assert_eq!(status, Some(1), "{out}{err}");
        assert!(out.contains("\ncut off   interrupted\n") && out.contains("\nrate  "), "{out}{err}");
        assert!(out.ends_with("\nverified  not looked at: cut off before\n"), "{out}");
        assert_eq!(folder.left_behind(), Vec::<String>::new(), "{transport}");
    }
}

#[test]
fn one_that_is_interrupted_before_it_begins_leaves_nothing_either() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    for moment_ms in [0, 2, 5, 10, 20, 40] {
        let arguments = ["perf", "--workload", &tiny, "--pool-mib", "64", "-t", "60", "--json"];
        let mut child = folder.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment_ms));
        signal(&child, "TERM");
        // By the signal itself, where it came before the command could look out for it.
        assert!(matches!(wait(&mut child), Some(1) | None));
        assert_eq!(folder.left_behind(), Vec::<String>::new(), "{moment_ms} ms");
    }
}

#[test]
fn a_target_that_is_killed_costs_nothing_of_what_was_measured() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    let arguments = ["perf", "--workload", &tiny, "--pool-mib", "8", "-t", "60", "-i", "0.1"];
    let mut child = started(&folder, &arguments);
    let mut err = first_interval(&mut child);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let target = std::fs::read_to_string(children).unwrap().trim().to_owned();
    assert!(Command::new("sh").args(["-c", &format!("kill -9 {target}")]).status().unwrap().success());
    let status = wait(&mut child);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    err.read_to_string(&mut String::new()).unwrap();
    assert_eq!(status, Some(1), "{out}");
    assert!(
        out.contains("\ncut off   ") && out.contains("unknown: the session is over") && out.contains("\nrate  "),
        "{out}"
    );
    assert_eq!(folder.left_behind(), Vec::<String>::new());
}

fn started(folder: &Folder, arguments: &[&str]) -> Child {
    folder.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until it has measured for an interval.
fn first_interval(child: &mut Child) -> BufReader<ChildStderr> {
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(line.contains("bit/s"), "{line}");
    err
}

/// Runs until something was measured, and is asked to end.
fn interrupted(folder: &Folder, arguments: &[&str], name: &str) -> (Option<i32>, String, String) {
    let mut child = started(folder, arguments);
    let mut err = first_interval(&mut child);
    signal(&child, name);
    let status = wait(&mut child);
    let (mut out, mut rest) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    err.read_to_string(&mut rest).unwrap();
    (status, out, rest)
}

fn signal(child: &Child, name: &str) {
    let kill = format!("kill -s {name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}
