//! The library as C sees it: what the header declares is exported, and the examples do what they say.

mod program;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use program::{Folder, HERE, built, finds, run, run_within_limit, skipped};

/// Runs a program over both transports, and looks for these words.
fn runs_over_both(program: &Path, words: &str) {
    for transport in ["shm", "tcp"] {
        let ran = run_within_limit(Command::new(program).arg(transport));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success() && said.contains(words), "{transport}: {ran:?}");
    }
}

#[test]
fn two_processes_exchange_blocks() {
    let folder = Folder::new("pair");
    runs_over_both(&folder.compiled("examples/pair.c", &[]), "64 blocks of 65536 bytes, there and back");
}

#[test]
fn layers_go_from_one_engine_to_another_in_cpp() {
    if !finds("c++") {
        return skipped("layers_go_from_one_engine_to_another_in_cpp", "needs command:c++");
    }
    let folder = Folder::new("layers");
    runs_over_both(&folder.compiled("examples/layers.cpp", &[]), "4 layers of 32 blocks");
}

#[test]
fn nothing_is_read_or_written_beside_what_the_caller_gave() {
    let folder = Folder::new("address");
    std::fs::write(folder.0.join("empty.c"), "int main(void) { return 0; }\n").unwrap();
    let mut probe = Command::new("cc");
    probe.arg("-fsanitize=address").arg(folder.0.join("empty.c")).arg("-o").arg(folder.0.join("empty"));
    if !probe.output().is_ok_and(|built| built.status.success()) {
        let reason = "this C compiler has no address sanitizer";
        return skipped("nothing_is_read_or_written_beside_what_the_caller_gave", reason);
    }
    let options = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    runs_over_both(&folder.compiled("examples/pair.c", &options), "there and back");
    let borders = run_within_limit(&mut Command::new(folder.compiled("tests/borders.c", &options)));
    assert!(borders.status.success(), "{borders:?}");
}

#[test]
fn memory_of_a_device_is_registered_where_there_is_a_driver_and_refused_where_there_is_none() {
    let folder = Folder::new("device");
    let program = folder.compiled("tests/device.c", &["-Wl,--no-as-needed", "-ldl"]);
    let stand_in = built().join("libpenstock_cuda_driver.so");
    let missing = folder.0.join("libcuda.so.1");
    for (driver, pretends, mode, words) in [
        (&stand_in, "", "here", ""),
        (&stand_in, "devices=0", "none", "CUDA_VISIBLE_DEVICES"),
        (&stand_in, "init=803", "none", "install libcuda1"),
        (&missing, "", "none", "install the NVIDIA driver"),
    ] {
        let mut command = Command::new(&program);
        command.arg(mode).env("PENSTOCK_CUDA_DRIVER", driver).env("PENSTOCK_CUDA_STAND_IN", pretends);
        let ran = run_within_limit(command.env("WORDS", words));
        assert!(ran.status.success(), "{pretends}: {ran:?}");
    }
}

#[test]
fn engines_that_come_and_go_leave_nothing_behind() {
    let folder = Folder::new("lives");
    let program = folder.compiled("tests/lives.c", &[]);
    // What engines leave behind is there each time; that the heap grows late is seen now and then, and no matter how many engines there are.
    let mut failed = Vec::new();
    while failed.len() < 3 {
        let ran = run_within_limit(Command::new(&program).arg("2000"));
        if ran.status.success() {
            return;
        }
        failed.push(ran);
    }
    panic!("{failed:?}");
}

/// The names of calls in a text, each followed by what begins its parameters.
fn calls(text: &str) -> BTreeSet<String> {
    let after = text.split("penstock_").skip(1);
    let names = after.filter_map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
        rest[end..].starts_with('(').then(|| format!("penstock_{}", &rest[..end]))
    });
    names.collect()
}

#[test]
fn the_header_has_what_the_library_exports() {
    let header = std::fs::read_to_string(Path::new(HERE).join("penstock.h")).unwrap();
    let declared = calls(&header);
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libpenstock.so")));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect();
    assert_eq!(declared, exported, "make header writes it anew");
    assert!(declared.len() > 50, "{declared:?}");
}
