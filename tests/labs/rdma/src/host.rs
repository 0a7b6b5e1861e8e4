//! Programs of the host: what a lab needs, and running one for its output.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::LabError;

/// What must be installed, and the Debian package that brings it. The guest uses the host's files, so what runs in it is
/// listed here too.
pub const PROGRAMS: [(&str, &str); 12] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("modprobe", "kmod"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
    ("rdma", "iproute2"),
    ("tc", "iproute2"),
    ("ip", "iproute2"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_write_bw", "perftest"),
];

/// Where programs are looked for beside `PATH`, which leaves out `sbin` for most users.
const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why no guest can be booted here, if none can: a lab's reason to be skipped.
pub fn why_not() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("needs a processor of the x86-64 family, whose programs run in the guest".to_owned());
    }
    PROGRAMS
        .iter()
        .find(|(program, _)| !finds(program))
        .map(|(program, package)| format!("needs command:{program}, of the Debian package {package}"))
}

fn finds(program: &str) -> bool {
    std::env::split_paths(&search_path()).any(|folder| folder.join(program).is_file())
}

pub(crate) fn search_path() -> String {
    std::env::var("PATH").map_or_else(|_| SYSTEM.to_owned(), |path| format!("{path}:{SYSTEM}"))
}

/// A program of the host, found also where only root looks.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", search_path());
    command
}

/// Runs a program of the host to its end, for at most `limit`, and gives what it said.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<String, LabError> {
    run_into(command, Stdio::piped(), limit)
}

/// The same with its output going elsewhere.
pub(crate) fn run_into(command: &mut Command, output: Stdio, limit: Duration) -> Result<String, LabError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let spawned = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped()).spawn();
    let child = spawned.map_err(|error| unstarted(&name, &error))?;
    let pid = child.id();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let started = Instant::now();
    let output: Output = match ended.recv_timeout(limit) {
        Ok(output) => output.map_err(|error| unstarted(&name, &error))?,
        Err(_) => {
            signal(pid, Signal::KILL);
            return Err(LabError::TooLate { what: name, limit: started.elapsed(), so_far: String::new() });
        }
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Program { program: name, how: output.status.to_string(), said })
}

/// Sends a signal to one of our children. It may have ended already, which is as good.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn unstarted(name: &str, error: &io::Error) -> LabError {
    let known = PROGRAMS.iter().find(|(program, _)| *program == name);
    match known {
        Some(&(program, package)) if error.kind() == io::ErrorKind::NotFound => {
            LabError::NoProgram { program, package }
        }
        _ => LabError::Program { program: name.to_owned(), how: error.to_string(), said: String::new() },
    }
}

/// A path as QEMU and the kernel's command line take it.
pub(crate) fn plain<'p>(what: &'static str, path: &'p Path) -> Result<&'p str, LabError> {
    let is_plain = |text: &&str| !text.contains([' ', '\t', '\n', ',', '"', '\'']);
    path.to_str().filter(is_plain).ok_or_else(|| LabError::UnusablePath { what, path: path.to_owned() })
}
