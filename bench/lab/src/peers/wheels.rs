//! Python packages in a virtual environment of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::catalog::{Peer, Pin};
use super::child::{self, is_absent};
use super::error::PeerError;

const MAKE: Duration = Duration::from_secs(120);
/// The largest of them is about 300 MB.
const DOWNLOAD: Duration = Duration::from_secs(900);

const NO_PYTHON: &str = "install Python 3.11 or later with its venv module (Debian: python3-venv)";
const NO_WHEEL: &str = "take what the package index has with --latest, or use a newer Python";

/// The interpreter of an environment.
pub(super) fn python(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// Makes an environment and puts wheels into it, at their pinned versions or the latest ones.
pub(super) fn fetch(peer: &Peer, wheels: &[Pin], latest: bool, environment: &Path) -> Result<(), PeerError> {
    let mut make = child::command(Path::new("python3"), "");
    child::run(make.args(["-m", "venv"]).arg(environment), MAKE).map_err(|error| match error {
        absent if is_absent(&absent) => no_python(peer),
        PeerError::Failed { words, .. } if words.contains("venv") || words.contains("ensurepip") => no_python(peer),
        other => other,
    })?;
    let wanted = requirements(wheels, latest);
    let mut install = install_command(environment, &wanted);
    child::run(&mut install, DOWNLOAD).map_err(|error| match error {
        PeerError::Failed { words, .. } if words.contains("No matching distribution") => {
            PeerError::NotOffered { peer: peer.name, wanted: wanted.join(" "), mend: NO_WHEEL, words }
        }
        other => other,
    })?;
    Ok(())
}

fn no_python(peer: &Peer) -> PeerError {
    PeerError::NoProgram { peer: peer.name, program: "python3 with venv".to_owned(), mend: NO_PYTHON }
}

fn requirements(wheels: &[Pin], latest: bool) -> Vec<String> {
    let one = |wheel: &Pin| match latest {
        true => wheel.package.to_owned(),
        false => format!("{}=={}", wheel.package, wheel.version),
    };
    wheels.iter().map(one).collect()
}

fn install_command(environment: &Path, wanted: &[String]) -> Command {
    let mut command = child::command(&python(environment), "");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"];
    command.args(pip).args(["--no-deps", "--retries", "2", "--timeout", "30"]).args(wanted);
    command
}

/// The versions of these packages as the environment has them.
pub(super) fn versions(environment: &Path, wheels: &[Pin]) -> Result<Vec<(String, String)>, PeerError> {
    const ASK: &str = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))";
    let mut ask = child::command(&python(environment), "");
    ask.args(["-c", ASK]).args(wheels.iter().map(|wheel| wheel.package));
    let said = child::run(&mut ask, MAKE)?;
    let versions = said.out.split_whitespace().map(str::to_owned);
    Ok(wheels.iter().map(|wheel| wheel.package.to_owned()).zip(versions).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEELS: &[Pin] = &[Pin { package: "a", version: "1.2" }, Pin { package: "b", version: "3" }];

    #[test]
    fn wheels_are_pinned_unless_the_latest_are_wanted() {
        assert_eq!(requirements(WHEELS, false), ["a==1.2", "b==3"]);
        assert_eq!(requirements(WHEELS, true), ["a", "b"]);
    }

    #[test]
    fn pip_builds_nothing_follows_no_declared_needs_and_touches_its_environment_only() {
        let command = install_command(Path::new("/peers/nixl/venv"), &requirements(WHEELS, false));
        assert_eq!(command.get_program(), "/peers/nixl/venv/bin/python");
        let arguments: Vec<_> = command.get_args().collect();
        for needed in ["--no-deps", "--only-binary=:all:", "a==1.2", "b==3"] {
            assert!(arguments.iter().any(|argument| *argument == needed), "{arguments:?}");
        }
    }

    #[test]
    fn an_absent_python_is_named_with_its_mend() {
        let error = no_python(Peer::find("nixl").unwrap()).to_string();
        assert!(error.contains("no python3") && error.contains("python3-venv"), "{error}");
    }
}
