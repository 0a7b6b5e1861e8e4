//! Repository chores.
//!
//! - `tidy`: the rules of `docs/STYLE.md` that no compiler keeps
//! - `licences`: every crate we build with may be used the way we use it
//! - `notices`: the licences of what some crates link, to be passed on with them
//! - `test`, `labs`: run the suites and count what passed, failed and was skipped
//! - `sim`, `planted`: run many seeds of the simulation, and find the bugs planted in the tree
//! - `count`: the same count over any one command
//!
//! Read `tree` and `source` first: every rule looks at the repository through them.

// A command-line tool speaks to its user.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod finding;
mod licences;
mod rules;
mod run;
mod source;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo run -q -p xtask -- <chore>

  tidy                 check the rules of docs/STYLE.md that the compiler does not
  licences             check the licence of every crate in the build
  notices <crate ...>  print the licences of all that these crates link
  test [step ...]      run all suites, or only the named steps: unit loom docs
  labs [prefix]        run the labs: tests that need root or a prepared machine
  sim <seeds>          run so many seeds of the simulation and 1,000 fresh ones, then the planted bugs
  planted [name ...]   find the bugs of engine/core/src/planted.rs, each by the invariant that it names
  count <command ...>  run one command and count the test results in its output";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let outcome = match arguments.first().map(String::as_str) {
        Some("tidy") if rest.is_empty() => tidy(),
        Some("licences") if rest.is_empty() => licences::check(&root()),
        Some("notices") if !rest.is_empty() => licences::notices::print(&root(), rest),
        Some("test") => run::suite::test(&root(), rest),
        Some("labs") if rest.len() <= 1 => run::labs::labs(&root(), rest.first().map_or("", String::as_str)),
        Some("sim") if rest.len() == 1 => run::sim::sim(&root(), &rest[0]),
        Some("planted") => run::sim::planted(&root(), rest),
        Some("count") if !rest.is_empty() => run::count(rest),
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The repository: where `cargo run` says this package is, or else where it was built.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.ancestors().nth(2).map_or_else(|| here.clone(), PathBuf::from)
}

fn tidy() -> Result<bool, String> {
    let tree = tree::Tree::load(&root())?;
    let findings = rules::check_all(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: {} rules over {} sources, nothing to mend", rules::ALL.len(), tree.sources.len()),
        found => eprintln!("tidy: {found} to mend"),
    }
    Ok(findings.is_empty())
}
