//! A lab: the header is what its sources make it, and ten thousand engines leave nothing behind.
//!
//! It needs the network once, for the tool that writes the header.

mod program;

use std::path::Path;
use std::process::Command;

use program::{Folder, HERE, run_within_limit, skipped};

/// Whether the labs are to run; a test that is not says so.
fn runs(test: &str) -> bool {
    let is_asked = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    if !is_asked {
        skipped(test, "labs run when PENSTOCK_LABS=1 is set");
    }
    is_asked
}

#[test]
fn the_header_is_what_the_sources_make_it() {
    const TEST: &str = "the_header_is_what_the_sources_make_it";
    if !runs(TEST) {
        return;
    }
    let root = Path::new(HERE).ancestors().nth(2).unwrap();
    let make = || {
        let mut make = Command::new("make");
        make.current_dir(root).arg("--no-print-directory");
        make
    };
    let tool = make().arg("cbindgen").output().unwrap();
    if !tool.status.success() {
        let words = String::from_utf8_lossy(&tool.stderr).into_owned();
        return skipped(TEST, &format!("cbindgen cannot be had: {}", words.lines().last().unwrap_or_default()));
    }
    let folder = Folder::new("header");
    let written = folder.0.join("penstock.h");
    let made = make().arg("header").arg(format!("HEADER={}", written.display())).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let committed = std::fs::read_to_string(Path::new(HERE).join("penstock.h")).unwrap();
    assert!(std::fs::read_to_string(&written).unwrap() == committed, "make header writes another one: commit it");
}

#[test]
fn ten_thousand_engines_leave_nothing_behind() {
    if !runs("ten_thousand_engines_leave_nothing_behind") {
        return;
    }
    let folder = Folder::new("lives-10000");
    let ran = run_within_limit(Command::new(folder.compiled("tests/lives.c", &[])).arg("10000"));
    assert!(ran.status.success(), "{ran:?}");
}
