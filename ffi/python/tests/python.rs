//! The package as Python sees it, laid out from what Cargo builds: no wheel, and nothing installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// Longest time of one module of tests.
const LIMIT: Duration = Duration::from_secs(60);
/// The oldest Python that has everything which the extension uses in its stable ABI.
const OLDEST: &str = "3.11";

/// The tests of one module of Python each.
macro_rules! modules {
    ($($test:ident: $module:literal,)*) => {
        const MODULES: &[&str] = &[$($module),*];
        $(#[test]
        fn $test() {
            run_module(stringify!($test), $module);
        })*
    };
}

modules! {
    the_package_is_found_and_its_library_with_it: "test_package",
    engines_start_and_close: "test_engine",
    memory_is_taken_where_it_is: "test_memory",
    memory_of_a_device_is_taken_where_it_is: "test_device",
    rows_are_read_from_arrays_and_sequences: "test_arrays",
    blocks_go_between_two_processes: "test_transfers",
    waits_end_by_themselves_and_by_others: "test_waits",
    event_loops_await_transfers: "test_asyncio",
    programs_of_the_guide_run: "test_docs",
    what_fails_is_an_exception_with_fields: "test_errors",
}

#[test]
fn every_module_of_tests_is_run() {
    let listed = fs::read_dir(Path::new(HERE).join("tests")).unwrap();
    let names = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = names.filter_map(|name| name.strip_suffix(".py").map(String::from)).collect();
    assert_eq!(found, MODULES.iter().map(|&name| String::from(name)).collect());
}

fn run_module(test: &str, module: &str) {
    let Some(python) = python() else {
        return skip(test, &format!("needs command:python{OLDEST}, or a later one"));
    };
    let mut command = Command::new(python);
    command.current_dir(Path::new(HERE).join("tests")).env("PYTHONPATH", package());
    command.env("PENSTOCK_CUDA_DRIVER", built().join("libpenstock_cuda_driver.so"));
    // No compiled modules among the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("LD_LIBRARY_PATH");
    let ran = run_within_limit(command.args(["-X", "faulthandler", "-W", "error", "-m", "unittest", "-v", module]));
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{module}: {}\n{}\n{told}", ran.status, String::from_utf8_lossy(&ran.stdout));
    // Those that need something of others are the smaller part of a module.
    let reasons: Vec<&str> =
        told.lines().filter_map(|line| line.split_once(" ... skipped ")).map(|(_, why)| why).collect();
    if let Some(first) = reasons.first() {
        skip(test, &format!("{} of its cases: {}; the others passed", reasons.len(), first.trim_matches(['\'', '"'])));
    }
}

/// A Python that is new enough, if this machine has one.
fn python() -> Option<&'static str> {
    let is_new = "import sys; sys.exit(sys.version_info < (3, 11) or sys.implementation.name != 'cpython')";
    let fits = |name: &&str| {
        let tried = Command::new(name).args(["-c", is_new]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    ["python3", "python3.11", "python3.12", "python3.13", "python3.14"].into_iter().find(fits)
}

/// The folder with the libraries that Cargo builds: this program is in `deps`.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).expect("it is in the target folder").to_owned()
}

/// The folder that has the package in it, built as this test was, with the stand-in for the CUDA driver beside it. Whoever has built the libraries
/// says so.
fn package() -> &'static Path {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    PACKAGE.get_or_init(|| {
        if std::env::var_os("PENSTOCK_LIBRARIES_ARE_BUILT").is_none() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.current_dir(HERE).args(["build", "--quiet", "--locked"]);
            cargo.args([
                "--package",
                "penstock-capi",
                "--package",
                "penstock-python",
                "--package",
                "penstock-cuda-driver",
            ]);
            let built = cargo.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] }).output().unwrap();
            assert!(built.status.success(), "{built:?}");
        }
        let built = built();
        let folder = built.join("python");
        let package = folder.join("penstock");
        // Who has files of an earlier one open keeps them.
        let _ = fs::remove_dir_all(&package);
        fs::create_dir_all(&package).unwrap();
        for source in fs::read_dir(Path::new(HERE).join("penstock")).unwrap() {
            let source = source.unwrap();
            if source.file_type().unwrap().is_file() {
                fs::copy(source.path(), package.join(source.file_name())).unwrap();
            }
        }
        for (object, name) in [("lib_penstock.so", "_penstock.abi3.so"), ("libpenstock.so", "libpenstock.so.0")] {
            fs::copy(built.join(object), package.join(name)).unwrap();
        }
        folder
    })
}

/// Runs a program, at most for its limit.
fn run_within_limit(command: &mut Command) -> Output {
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{command:?} does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Says in the run's notes that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    use std::io::Write;
    let Some(path) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let opened = fs::OpenOptions::new().create(true).append(true).open(path);
    let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
    writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
}
