//! Help, version, wrong arguments, closed pipes.

use std::process::Stdio;

use crate::run::{Folder, penstock, wait};

const COMMANDS: [&[&str]; 9] = [
    &["selftest"],
    &["perf"],
    &["doctor"],
    &["demo"],
    &["demo", "pd"],
    &["config"],
    &["config", "check"],
    &["config", "keys"],
    &["config", "default"],
];

#[test]
fn every_command_explains_itself_with_examples() {
    for command in COMMANDS {
        let ran = penstock(&[command, &["--help"]].concat());
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{command:?}");
        assert!(ran.out.contains("Usage: penstock") && ran.out.contains("Examples:\n  penstock "), "{}", ran.out);
        assert!(ran.out.lines().all(|line| line.chars().count() <= 110), "{}", ran.out);
    }
    for command in [&["help"][..], &["--help"], &["help", "selftest"], &["help", "config", "check"]] {
        let ran = penstock(command);
        assert!(ran.status == 0 && ran.out.contains("Exit status:"), "{ran:?}");
        assert!(!ran.out.contains("__") && !ran.out.contains("sabotage"), "what is hidden stays hidden: {ran:?}");
    }
}

#[test]
fn the_version_is_one_line() {
    let ran = penstock(&["--version"]);
    assert_eq!((ran.status, ran.out), (0, format!("penstock {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_test_of_cards_that_are_not_here_says_what_is_missing() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some()) {
        let test = "a_test_of_cards_that_are_not_here_says_what_is_missing";
        return crate::run::skip(test, "this machine has RDMA cards");
    }
    let ran = penstock(&["selftest", "--quick", "--transport", "verbs"]);
    assert!(ran.status == 1 && ran.out.contains("RDMA device"), "{ran:?}");
}

#[test]
fn wrong_arguments_are_refused_with_what_to_do() {
    for (arguments, expected) in [
        (&[][..], "Usage:"),
        (&["selftst"], "selftest"),
        (&["selftest", "--transport", "cuda"], "[possible values: local, shm, verbs, tcp, datagram, dpdk]"),
        (&["perf", "127.0.0.1", "--transport", "dpdk"], "for another host name a device in a configuration"),
        (&["selftest", "--workers", "2"], "--help"),
        (&["demo", "pd", "--kill", "proxy"], "[possible values: prefill, decode]"),
        (&["doctor", "kernal"], "a similar value exists: 'kernel'"),
        (&["doctor", "--config", "absent.yaml"], "there is no configuration file"),
        (&["config", "check"], "<FILE>"),
        (&["config", "keys", "workers.spin"], "penstock config keys"),
    ] {
        let ran = penstock(arguments);
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{arguments:?}");
        assert!(ran.err.starts_with("penstock: ") && ran.err.contains(expected), "{ran:?}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let folder = Folder::new();
    for arguments in
        [&["config", "keys", "--markdown"][..], &["help"], &["selftest", "--quick", "--transport", "local"]]
    {
        let mut child = folder.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let status = wait(&mut child);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!((status, said.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn logging_goes_to_standard_error_and_a_bad_filter_is_refused() {
    let folder = Folder::new();
    let mut command = folder.command(&["-v", "selftest", "--quick", "--json", "--transport", "shm"]);
    let ran = crate::run::finish(&mut command);
    assert!(ran.err.contains("INFO") && ran.err.contains("a session stands"), "{ran:?}");
    assert_eq!(ran.json()["ok"], true);
    let ran = crate::run::finish(folder.command(&["config", "default"]).env("PENSTOCK_LOG", "penstock=loud"));
    assert_eq!(ran.status, 2);
    assert!(ran.err.starts_with("penstock: PENSTOCK_LOG is not a filter"), "{ran:?}");
}
