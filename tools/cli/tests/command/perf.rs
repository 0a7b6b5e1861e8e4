//! `penstock perf`.

use crate::run::{Folder, finish, penstock};

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
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "gbps",
            "post_us_p50",
            "cpu_s_per_gb",
            "floor_us",
            "verified",
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
