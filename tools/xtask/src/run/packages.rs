//! What labs need besides Rust: programs of Debian packages, installed where that is possible.

use std::process::Command;
use std::time::Duration;

use super::process;
use super::skips::{finds_command, is_root};

/// A program and the package it is in.
struct Tool {
    command: &'static str,
    package: &'static str,
}

/// Everything that a lab runs and a build does not need.
const TOOLS: [Tool; 3] = [
    Tool { command: "valgrind", package: "valgrind" },
    Tool { command: "addr2line", package: "binutils" },
    Tool { command: "ip", package: "iproute2" },
];

/// Longest time that the package manager may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Installs what is missing, as root and where there is `apt-get`; says what is still missing otherwise. A lab that misses
/// something then says so itself.
pub(crate) fn provide() {
    let missing = missing(finds_command);
    if missing.is_empty() {
        return;
    }
    let packages = missing.join(" ");
    if !is_root() || !finds_command("apt-get") {
        println!("labs: some need packages that are not installed: apt-get install {packages}");
        return;
    }
    println!("labs: installing {packages}");
    // The lists of packages may be absent or old: they are fetched only if it does not go without.
    let installed = apt_get(&[&["install", "--yes", "--no-install-recommends"], &missing[..]].concat());
    if let Err(first) = installed {
        let again = apt_get(&["update"])
            .and_then(|()| apt_get(&[&["install", "--yes", "--no-install-recommends"], &missing[..]].concat()));
        if let Err(second) = again {
            println!("labs: {packages} could not be installed: {first}; and after an update: {second}");
        }
    }
}

/// The packages of the tools that are not found.
fn missing(finds: impl Fn(&str) -> bool) -> Vec<&'static str> {
    TOOLS.iter().filter(|tool| !finds(tool.command)).map(|tool| tool.package).collect()
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let mut last = String::new();
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let ended = process::run(&mut command, LIMIT, |line| last = line.to_owned())?;
    if ended.is_success() { Ok(()) } else { Err(format!("apt-get {}: {last}", arguments.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_found_is_missing() {
        assert_eq!(missing(|_| true), Vec::<&str>::new());
        assert_eq!(missing(|command| command != "addr2line"), ["binutils"]);
        assert_eq!(missing(|_| false).len(), TOOLS.len());
    }
}
