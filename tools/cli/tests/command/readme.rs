//! What the front page promises.

use std::path::Path;

use crate::run::{Folder, finish, penstock, skip};

const README: &str = include_str!("../../../../README.md");
const EXAMPLE: &str = include_str!("../../examples/two_engines.rs");

#[test]
fn its_example_is_the_one_that_is_compiled() {
    let shown = EXAMPLE.replace("#[allow(clippy::print_stdout)]\n", "");
    assert!(
        README.contains(&format!("```rust\n{shown}```\n")),
        "copy tools/cli/examples/two_engines.rs into README.md"
    );
}

#[test]
fn its_example_does_what_it_says() {
    let program = Path::new(env!("CARGO_BIN_EXE_penstock")).with_file_name("examples").join("two_engines");
    if !program.exists() {
        return skip("its_example_does_what_it_says", "examples are built by `cargo test` without a choice of targets");
    }
    let folder = Folder::new();
    let mut command = std::process::Command::new(program);
    let ran = finish(command.env("XDG_RUNTIME_DIR", folder.path()));
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(README.contains(&ran.out), "the README shows other output than:\n{}", ran.out);
}

#[test]
fn its_links_lead_somewhere() {
    let targets = README.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let ours = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lost: Vec<&str> = ours.filter(|target| !root.join(target).exists()).collect();
    assert_eq!(lost, Vec::<&str>::new());
}

#[test]
fn its_commands_exist() {
    let lines = README.lines().filter_map(|line| line.trim_start().strip_prefix("penstock "));
    let commands: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"selftest"), "{commands:?}");
    for command in commands {
        assert_eq!(penstock(&[command, "--help"]).status, 0, "penstock {command}");
    }
}
