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

    /// A program of these sources, compiled and linked as a user would, by the name under which programs find the library.
    fn compiled(&self, source: &str, options: &[&str]) -> PathBuf {
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

/// Notes that a test did not run, for whoever counts.
fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    let Some(notes) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(notes).unwrap();
    writeln!(notes, "{test}: {reason}").unwrap();
}

fn finds(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

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
fn engines_that_come_and_go_leave_nothing_behind() {
    let folder = Folder::new("lives");
    let ran = run_within_limit(Command::new(folder.compiled("tests/lives.c", &[])).arg("2000"));
    assert!(ran.status.success(), "{ran:?}");
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
