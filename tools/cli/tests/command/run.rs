//! Runs the command in a folder of its own, with a time limit.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far longer than anything here takes, also on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder for one test's files, and for the sockets of the commands it runs.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("penstock-cli-{}-{number}", std::process::id()));
        fs::create_dir_all(path.join("tmp")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The command, not started yet.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
        command.args(arguments);
        self.furnish(&mut command);
        command
    }

    /// Has a command run in this folder, with its temporary things and its sockets here.
    pub(crate) fn furnish(&self, command: &mut Command) {
        command.current_dir(&self.0).env("TMPDIR", self.0.join("tmp")).env("XDG_RUNTIME_DIR", &self.0);
        command.env_remove("PENSTOCK_LOG").stdin(Stdio::null());
    }

    /// What is left in the folder for temporary things.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.join("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Reports that a test did not run, and why.
pub(crate) fn skip(test: &str, reason: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// What the command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Its output as the one JSON object that it should be.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one object on one line: {self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Runs the command in a fresh folder.
pub(crate) fn penstock(arguments: &[&str]) -> Ran {
    let folder = Folder::new();
    let ran = finish(&mut folder.command(arguments));
    assert_eq!(folder.left_behind(), Vec::<String>::new(), "{arguments:?}");
    ran
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> Ran {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Read beside each other, so that neither pipe fills up.
    let out = reader(child.stdout.take().unwrap());
    let err = reader(child.stderr.take().unwrap());
    let status = wait(&mut child).unwrap_or_else(|| panic!("{command:?} did not end"));
    let ran = Ran { status, out: out.join().unwrap(), err: err.join().unwrap() };
    assert!(!ran.err.contains("panicked"), "{ran:?}");
    ran
}

fn reader(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    })
}

/// Waits for the end and gives the exit status; ends a process that takes too long.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
