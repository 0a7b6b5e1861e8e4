//! The library as C sees it: what the header declares is exported, and the examples do what they say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// Longest time of one program.
const LIMIT: Duration = Duration::from_secs(60);

/// The folder with the library, built as this test was: `cargo test` alone does not build one for C.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(HERE).args(["build", "--quiet", "--locked", "--package", "penstock-capi"]);
        run(command.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] }));
        // This program is in `deps`.
        let own = std::env::current_exe().unwrap();
        own.ancestors().nth(2).expect("it is in the target folder").to_owned()
    })
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-c-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// An example, compiled and linked as a user would, by the name under which programs find the library.
    fn compiled(&self, example: &str) -> PathBuf {
        let program = self.0.join(example);
        std::os::unix::fs::symlink(built().join("libpenstock.so"), self.0.join("libpenstock.so.0")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I", HERE, "-o"]).arg(&program);
        cc.arg(Path::new(HERE).join("examples").join(example).with_extension("c")).arg(self.0.join("libpenstock.so.0"));
        run(cc.arg(format!("-Wl,-rpath,{}", self.0.display())));
        program
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program, at most for its limit.
fn run_within_limit(command: &mut Command) -> Output {
    let (began, pipe) = (Instant::now(), std::process::Stdio::piped);
    let mut child = command.stdout(pipe()).stderr(pipe()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{command:?} does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn two_programs_exchange_blocks() {
    let folder = Folder::new("pair");
    let program = folder.compiled("pair");
    for transport in ["shm", "tcp"] {
        let ran = run_within_limit(Command::new(&program).arg(transport));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success() && said.contains("there and back"), "{transport}: {ran:?}");
    }
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
