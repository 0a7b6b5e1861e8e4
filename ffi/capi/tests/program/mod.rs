//! Programs in C and C++, compiled and linked as users do.

#![allow(dead_code, reason = "no program of tests needs all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// Longest time of one program.
const LIMIT: Duration = Duration::from_secs(120);

/// The folder with the library and the stand-in for the CUDA driver, built as this test was: `cargo test` alone does not build one for C. Whoever has says so.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os("PENSTOCK_LIBRARIES_ARE_BUILT").is_none() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.current_dir(HERE).args(["build", "--quiet", "--locked"]);
            cargo.args(["--package", "penstock-capi", "--package", "penstock-cuda-driver"]);
            run(cargo.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] }));
        }
        // This program is in `deps`.
        let own = std::env::current_exe().unwrap();
        own.ancestors().nth(2).expect("it is in the target folder").to_owned()
    })
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A folder that goes with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-c-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A program of these sources, compiled and linked as a user would, by the name under which programs find the library.
    pub(crate) fn compiled(&self, source: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(HERE).join(source);
        let (program, library) = (self.0.join("program"), self.0.join("libpenstock.so.0"));
        let _ = std::fs::remove_file(&library);
        std::os::unix::fs::symlink(built().join("libpenstock.so"), &library).unwrap();
        let is_cpp = source.extension().is_some_and(|ending| ending == "cpp");
        let mut compiler = Command::new(if is_cpp { "c++" } else { "cc" });
        compiler.arg(if is_cpp { "-std=c++17" } else { "-std=c11" }).args(["-Wall", "-Wextra", "-Werror", "-O1"]);
        compiler.args(options).args(["-I", HERE, "-o"]).arg(&program).arg(source).arg(&library);
        run(compiler.arg(format!("-Wl,-rpath,{}", self.0.display())));
        program
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program, at most for its limit.
pub(crate) fn run_within_limit(command: &mut Command) -> Output {
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

/// Notes that a test did not run, for whoever counts.
pub(crate) fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    let Some(notes) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(notes).unwrap();
    writeln!(notes, "{test}: {reason}").unwrap();
}

pub(crate) fn finds(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}
