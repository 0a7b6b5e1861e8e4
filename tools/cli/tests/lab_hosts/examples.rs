//! Every example of the help and of the documentation, run as it stands there.

use std::path::{Path, PathBuf};
use std::process::Command;

use penstock_wire::{Family, Side};

use crate::run::{finish, penstock};
use crate::stage::Stage;

/// The commands whose help has examples.
const HELP: [&[&str]; 11] = [
    &["help"],
    &["help", "selftest"],
    &["help", "perf"],
    &["help", "serve"],
    &["help", "ping"],
    &["help", "doctor"],
    &["help", "demo"],
    &["help", "demo", "pd"],
    &["help", "config"],
    &["help", "config", "check"],
    &["help", "config", "keys"],
];
const PAGES: [(&str, &str); 2] =
    [("README.md", include_str!("../../../../README.md")), ("docs/RDMA.md", include_str!("../../../../docs/RDMA.md"))];
/// How hosts are called in examples.
const HOSTS: [&str; 4] = ["[2001:db8::7]:7400", "10.0.0.7:7400", "gpu-b", "host-b"];

/// The command of a line of help or documentation that is an example: without what is said of it.
fn example(line: &str) -> Option<String> {
    let line = line.strip_prefix("    ").or_else(|| line.strip_prefix("  "))?;
    let line = line.strip_prefix("target/release/").unwrap_or(line);
    // What it does stands behind it, or after a `#`.
    let command = line.strip_prefix("penstock ")?.split(" #").next()?.trim_end();
    let is_said_of_it = |rest: &str| !rest.starts_with('-') && !rest.starts_with('<') && !rest.starts_with('|');
    let end = command.match_indices("  ").find(|(place, _)| is_said_of_it(command[*place..].trim_start()));
    let command = end.map_or(command, |(place, _)| &command[..place]);
    Some(format!("penstock {}", command.trim_end()))
}

fn examples() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for arguments in HELP {
        let text = penstock(arguments).out;
        let found: Vec<String> = text.lines().filter_map(example).collect();
        assert!(!found.is_empty(), "{arguments:?} shows no example");
        all.extend(found.into_iter().map(|example| (arguments.join(" "), example)));
    }
    for (page, text) in PAGES {
        // Examples are indented; what is inside of fences is output.
        let outside = text.split("```").step_by(2).flat_map(str::lines);
        all.extend(outside.filter_map(example).map(|example| (page.to_owned(), example)));
    }
    all
}

/// Why an example cannot be run here, if it cannot.
fn why_not(example: &str) -> Option<&'static str> {
    let needs_cards = example.contains("--devices") || example.contains("--connect");
    (needs_cards || example.contains("doctor rdma")).then_some("it needs RDMA devices")
}

/// The stand-in for CUDA's driver, which lies beside this program: examples about GPUs are run on it.
fn stand_in() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libpenstock_cuda_driver.so")
}

/// The same with the other host's address, and so short and small that all of them can be run.
fn shortened(example: &str, there: &str) -> String {
    let mut short = example.to_owned();
    for host in HOSTS {
        short = short.replace(host, there);
    }
    // Where there are no devices their examples are run over sockets: everything else of them is the same.
    short = short.replace("--transport verbs", "--transport tcp").replace("10.0.0.7:0", "127.0.0.1:0");
    // Without `jq` the object itself is shown.
    let (command, pipe) = match short.split_once(" | jq") {
        Some((command, rest)) if Command::new("jq").arg("--version").output().is_ok() => {
            (command.to_owned(), format!(" | jq{rest}"))
        }
        Some((command, _)) => (command.to_owned(), String::new()),
        None => (short, String::new()),
    };
    let (command, output) = match command.split_once(" > ") {
        Some((command, file)) => (command.to_owned(), format!(" > {file}")),
        None => (command, String::new()),
    };
    let command = command.replace("-t 10", "-t 1").replace("-c 1000", "-c 20").replace("--for 60", "--for 1");
    let word = command.split_whitespace().nth(1).unwrap_or_default();
    let has = |option: &str| command.split_whitespace().any(|word| word == option);
    let more = match word {
        "serve" if !has("--for") => " --for 1",
        "ping" if !has("-c") => " -c 2",
        "selftest" if !has("--quick") => " --quick",
        // A GPU's pools are as large as the workload's.
        "perf" if has("--memory") => " -t 1",
        "perf" if !has("--list") && !has("-t") && !has("--rounds") => " -t 1 --pool-mib 64",
        "perf" if !has("--list") && !has("--pool-mib") => " --pool-mib 64",
        _ => "",
    };
    format!("{command}{more}{output}{pipe}")
}

#[test]
fn every_example_does_what_it_is_for() {
    let Some(stage) = Stage::new("every_example_does_what_it_is_for") else { return };
    let serving = stage.serve(&["--memory-mib", "1024"]);
    let there = stage.there(Family::V4);
    let folder = stage.folder.path();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::os::unix::fs::symlink(root.join("configs"), folder.join("configs")).unwrap();
    let secret = stage.folder.write("lab.secret", &format!("{}\n", "7b".repeat(32)));
    std::fs::set_permissions(secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let small = PAGES[1].1.split("`small.yaml`:").nth(1).expect("the page has such a file");
    let small: Vec<&str> = small.trim_start_matches('\n').lines().take_while(|line| !line.is_empty()).collect();
    stage.folder.write("small.yaml", &small.join("\n"));
    let config = penstock(&["config", "default"]).out;
    let path = Path::new(env!("CARGO_BIN_EXE_penstock")).parent().unwrap().display().to_string();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap_or_default());
    let (mut ran, mut left_out, mut wrong) = (0, 0, Vec::new());
    let mut done = std::collections::BTreeSet::new();
    for (place, example) in examples() {
        let short = shortened(&example, &there);
        if why_not(&example).is_some() {
            left_out += 1;
            continue;
        }
        if !done.insert(short.clone()) {
            continue;
        }
        // A measurement's file of one's own is a workload, and all others' a configuration.
        stage.folder.write("my.yaml", if short.starts_with("penstock perf") { crate::stage::TINY } else { &config });
        let mut command = stage.program(Side::B, "bash", &["-o", "pipefail", "-c", &short]);
        command.env("PATH", &path);
        if short.contains("--memory device") {
            command.env("PENSTOCK_CUDA_DRIVER", stand_in()).env("PENSTOCK_CUDA_STAND_IN", "");
        }
        let answer = finish(&mut command);
        // A doctor that finds something missing has done its work; one that goes to a host has reached it.
        let is_well = answer.status == 0
            || (short.starts_with("penstock doctor") && !short.contains(&there) && answer.status == 1);
        if !is_well {
            wrong.push(format!("{place}: `{example}`, run as `{short}`: {answer:?}"));
        }
        ran += 1;
    }
    assert!(wrong.is_empty(), "{} of {ran} examples are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran > 40 && left_out < 8, "{ran} were run, {left_out} were not");
    serving.end();
}

#[test]
fn examples_are_told_from_what_is_said_of_them() {
    for (line, found) in [
        ("  penstock perf --list                               the workloads", Some("penstock perf --list")),
        (
            "  penstock perf gpu-b --workload w2 -t 10 -P 4       to another host",
            Some("penstock perf gpu-b --workload w2 -t 10 -P 4"),
        ),
        (
            "  penstock doctor --json | jq '.findings[] | {a, b}'",
            Some("penstock doctor --json | jq '.findings[] | {a, b}'"),
        ),
        (
            "    target/release/penstock perf host-b --workload w2   -t 10 -P 8 --json",
            Some("penstock perf host-b --workload w2   -t 10 -P 8 --json"),
        ),
        ("    target/release/penstock doctor host-b       # expect: every step ok", Some("penstock doctor host-b")),
        ("  penstock config default > my.yaml        a file to start from", Some("penstock config default > my.yaml")),
        ("  PENSTOCK_LOG  what to log", None),
    ] {
        assert_eq!(example(line).as_deref(), found, "{line}");
    }
}
