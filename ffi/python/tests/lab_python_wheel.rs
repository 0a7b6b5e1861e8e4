//! A lab: the wheel is built, is what its tag says, and works in an environment that has nothing else.
//!
//! It needs the network once, for the tools.

#![allow(clippy::print_stdout, reason = "how large it is, and what was found, is worth reading")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const NAME: &str = concat!("penstock-", env!("CARGO_PKG_VERSION"), "-cp311-abi3-manylinux_2_28_x86_64.whl");
/// More than a wheel may have.
const TOO_MANY_BYTES: u64 = 10 << 20;
/// What both objects may need of a host: what every glibc has.
const NEEDED: &[&str] =
    &["libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1", "ld-linux-x86-64.so.2"];
/// Met by tests that need it.
const NUMPY: &str = "numpy==2.4.6";
/// The status of `wheel.sh` where the tools cannot be downloaded.
const NO_TOOLS: i32 = 75;

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("penstock-wheel-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_wheel_is_what_its_tag_says_and_works_by_itself() {
    const TEST: &str = "the_wheel_is_what_its_tag_says_and_works_by_itself";
    if std::env::var_os("PENSTOCK_LABS").is_none_or(|value| value != "1") {
        return skip(TEST, "labs run when PENSTOCK_LABS=1 is set");
    }
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).expect("Cargo puts tests into deps of a profile");
    let mut wheel = Command::new(Path::new(HERE).join("wheel.sh"));
    // Optimised across crates it takes twice the time, and nothing here looks at that.
    wheel
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_WHEEL_LTO", "off")
        .env("CARGO_PROFILE_WHEEL_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_WHEEL_OPT_LEVEL", "1");
    let built = wheel.output().unwrap();
    if built.status.code() == Some(NO_TOOLS) {
        return skip(TEST, &format!("the tools cannot be downloaded: {}", last_line(&built.stderr)));
    }
    assert!(built.status.success(), "{built:?}");

    let wheel = target.join("wheels").join(NAME);
    let bytes = std::fs::metadata(&wheel).unwrap_or_else(|error| panic!("{}: {error}", wheel.display())).len();
    println!("    {NAME}: {} KiB", bytes >> 10);
    assert!(bytes < TOO_MANY_BYTES, "{bytes} bytes");
    let tools = target.join("tools/python/bin");
    let shown = run(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel));
    assert_eq!(glibc_minor(&shown), Some(28), "{shown}");
    let scanned = run(Command::new(tools.join("abi3audit")).args(["--strict", "--verbose"]).arg(&wheel));
    println!("    abi3audit: {}", last_line(scanned.as_bytes()));

    let folder = Folder::new();
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder.0));
    let python = folder.0.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-index"]).arg(&wheel));
    let numpy = Command::new(&python).args(["-m", "pip", "install", "--quiet", NUMPY]).output().unwrap();
    if !numpy.status.success() {
        skip("lab_python_wheel numpy", &format!("{NUMPY} cannot be downloaded: {}", last_line(&numpy.stderr)));
    }
    let files = "import importlib.metadata as m; print(*m.files('penstock'))";
    let files = run(Command::new(&python).args(["-c", files]).current_dir(&folder.0));
    for licence in ["LICENSE", "THIRD-PARTY", "RUST-LIBRARY.html"] {
        assert!(
            files.split_whitespace().any(|file| file.ends_with(&format!("dist-info/licenses/{licence}"))),
            "{files}"
        );
    }
    let told = run(Command::new(&python).args(["-m", "penstock"]).current_dir(&folder.0));
    let library = told.lines().find_map(|line| line.strip_prefix("library ")).unwrap().trim();
    assert!(Path::new(library).starts_with(&folder.0), "{told}");
    for object in [PathBuf::from(library), Path::new(library).with_file_name("_penstock.abi3.so")] {
        let section = run(Command::new("readelf").arg("-d").arg(&object));
        let needed: Vec<&str> =
            section.lines().filter(|line| line.contains("(NEEDED)")).filter_map(in_brackets).collect();
        assert!(
            !needed.is_empty() && needed.iter().all(|name| NEEDED.contains(name)),
            "{}: {needed:?}",
            object.display()
        );
    }
    // The same tests as of the package that Cargo builds.
    let tests = Path::new(HERE).join("tests");
    let mut unittest = Command::new(&python);
    unittest.current_dir(&tests).env("PYTHONDONTWRITEBYTECODE", "1");
    run(unittest.args(["-W", "error", "-m", "unittest", "discover"]));
    // Types: what the stubs say is what there is, and programs that follow them pass.
    let installed = Path::new(library).ancestors().nth(2).unwrap();
    let mut stubtest = Command::new(tools.join("stubtest"));
    stubtest.current_dir(&folder.0).env("MYPYPATH", installed).env("PYTHONPATH", installed);
    let allowed = Path::new(HERE).join("stubtest.allow");
    run(stubtest.arg("penstock").arg("--allowlist").arg(allowed).arg("--ignore-unused-allowlist"));
    let mut mypy = Command::new(tools.join("mypy"));
    mypy.current_dir(&folder.0).arg("--python-executable").arg(&python);
    run(mypy.arg("--strict").arg(&tests));
}

/// The tag that `auditwheel show` has found a wheel to be consistent with.
fn glibc_minor(shown: &str) -> Option<u32> {
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, tag) = words.split_once("following platform tag: \"manylinux_2_")?;
    tag.split('_').next()?.parse().ok()
}

fn in_brackets(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(inside, _)| inside)
}

/// What a program has written, once it has ended well.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    format!("{stdout}{stderr}")
}

fn last_line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().lines().last().unwrap_or_default().trim().to_owned()
}

/// Says in the run's notes that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    use std::io::Write;
    let Some(path) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
    writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
}
