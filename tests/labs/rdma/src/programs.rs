//! Programs of this project, built on the host to be run in a guest.
//!
//! The run of all labs has built every test program already and says in a file, which `PENSTOCK_PROGRAMS` names, where
//! they are. Without it Cargo is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::{LabError, host};

/// The variable that names a file with a line of JSON for each test program.
const LIST: &str = "PENSTOCK_PROGRAMS";

/// Longest time that a build may take, on a slow machine and from nothing.
const LIMIT: Duration = Duration::from_secs(1800);

/// A program full of tests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TestProgram {
    /// The name of its target.
    pub target: String,
    /// `lib`, `bin`, `test` and so on.
    pub kind: String,
    /// The folder of its package, where it is run.
    pub folder: PathBuf,
    /// The program.
    pub executable: PathBuf,
}

/// Integration tests of a crate, by its name and folder in the repository.
pub fn tests_of(package: &str, folder: &str) -> Result<Vec<TestProgram>, LabError> {
    let root = root();
    let is_ours = |program: &TestProgram| program.folder == root.join(folder) && program.kind == "test";
    let listed = std::env::var_os(LIST).map(PathBuf::from);
    let all = match &listed {
        Some(path) => list(&std::fs::read_to_string(path).map_err(LabError::file("read", path))?)?,
        None => built(&cargo(&["test", "-p", package, "--tests", "--no-run"])?, of_message),
    };
    let found: Vec<_> = all.into_iter().filter(is_ours).collect();
    let place = listed.map_or_else(|| "what cargo has built".to_owned(), |path| path.display().to_string());
    if found.is_empty() { Err(LabError::Build(format!("{place} names no tests of {package}"))) } else { Ok(found) }
}

/// One of a crate's integration tests.
pub fn test_of(package: &str, folder: &str, target: &str) -> Result<TestProgram, LabError> {
    let found = tests_of(package, folder)?.into_iter().find(|program| program.target == target);
    found.ok_or_else(|| LabError::Build(format!("{package} has no test {target}")))
}

/// A program that users run, built as all tests are: most of it is there, and an emulated machine gains nothing by optimisation.
pub fn binary_of(name: &str) -> Result<PathBuf, LabError> {
    let said = cargo(&["build", "--workspace", "--bin", name])?;
    program(&said, name).ok_or_else(|| LabError::Build(format!("no crate has a program {name}")))
}

/// The program of this name among what Cargo has built.
fn program(said: &str, name: &str) -> Option<PathBuf> {
    let found = built(said, |message| {
        let is_it = message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    found.into_iter().next()
}

/// A program that stands in a folder of the repository and is not of the workspace, with all optimisation and the versions
/// that its lock file names.
pub fn outside(folder: &str, name: &str) -> Result<PathBuf, LabError> {
    let manifest = root().join(folder).join("Cargo.toml");
    let said = cargo(&["build", "--release", "--manifest-path", &manifest.to_string_lossy()])?;
    program(&said, name).ok_or_else(|| LabError::Build(format!("{folder} has no program {name}")))
}

fn list(text: &str) -> Result<Vec<TestProgram>, LabError> {
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().map_err(|error| LabError::Build(format!("the list of programs: {error}")))
}

/// What Cargo says about each thing it has built.
fn cargo(arguments: &[&str]) -> Result<String, LabError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = host::program(&cargo);
    command.args(arguments).args(["--quiet", "--locked", "--message-format=json-render-diagnostics"]);
    host::run(command.current_dir(root()), LIMIT)
}

fn built<T>(said: &str, of_message: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    said.lines().filter_map(|line| of_message(&serde_json::from_str(line).ok()?)).collect()
}

fn of_message(message: &Value) -> Option<TestProgram> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    Some(TestProgram {
        target: message["target"]["name"].as_str()?.into(),
        kind: message["target"]["kind"][0].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?).parent()?.into(),
        executable: executable.into(),
    })
}

/// The repository: where this crate is built says where.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.ancestors().nth(3).map_or_else(|| here.clone(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_told_from_other_things_that_are_built() {
        let line = |is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/tests/x/Cargo.toml","profile":{{"test":{is_test}}},
                "target":{{"name":"tcp","kind":["test"]}},"executable":"/r/target/tcp-1"}}"#
            )
            .replace('\n', "")
        };
        let said = format!("{}\n{}\n{{\"reason\":\"build-finished\"}}\n", line(true), line(false));
        let found = built(&said, of_message);
        let expected = TestProgram {
            target: "tcp".into(),
            kind: "test".into(),
            folder: "/r/tests/x".into(),
            executable: "/r/target/tcp-1".into(),
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let line = r#"{"target":"tcp","kind":"test","folder":"/r/x","executable":"/r/t"}"#;
        assert_eq!(list(&format!("{line}\n{line}\n")).expect("two programs").len(), 2);
        assert!(list(&format!("{line}\n{{\"target\":1}}\n")).is_err());
    }
}
