//! Running a program that somebody else wrote: with a deadline, and with no more of its output than fits.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::error::{PeerError, last_words};

/// More than this of its output is not kept.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// How long the end of the output may come after the end of the program.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Between two things that are done while it runs.
const MEANWHILE: Duration = Duration::from_millis(100);

/// Variables that change what peers do: only what a driver sets itself may count.
const FOREIGN: &[&str] = &["UCX_", "NIXL_", "MC_", "MOONCAKE_", "FI_", "OFI_", "PYTHON", "PIP_"];

/// What a program said before it ended well.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) out: String,
}

/// A command in a known environment: nothing inherited speaks to a peer, and words are English.
pub(super) fn command(program: &Path, libraries: &str) -> Command {
    let mut command = Command::new(program);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| FOREIGN.iter().any(|prefix| name.starts_with(prefix))) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C.UTF-8");
    if libraries.is_empty() {
        command.env_remove("LD_LIBRARY_PATH")
    } else {
        command.env("LD_LIBRARY_PATH", libraries)
    };
    command
}

/// A program that was started and will not outlive this.
pub(super) struct Running {
    program: String,
    child: Child,
    outputs: [Receiver<String>; 2],
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self, PeerError> {
        let path = Path::new(command.get_program()).to_owned();
        let program = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(PeerError::file("start", &path))?;
        let out = child.stdout.take().map(listen).expect("its output was asked to be a pipe");
        let err = child.stderr.take().map(listen).expect("its errors were asked to be a pipe");
        Ok(Self { program, child, outputs: [out, err] })
    }

    /// What it is called.
    pub(super) fn program(&self) -> &str {
        &self.program
    }

    /// Its number, which is nobody else's until this is gone.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end; ends it when `within` is over.
    pub(super) fn finish(self, within: Duration) -> Result<Said, PeerError> {
        self.finish_beside(within, &mut || {})
    }

    /// The same, and has something done ten times a second meanwhile.
    pub(super) fn finish_beside(mut self, within: Duration, meanwhile: &mut dyn FnMut()) -> Result<Said, PeerError> {
        let start = Instant::now();
        let mut next = MEANWHILE;
        let status = loop {
            if start.elapsed() >= next {
                meanwhile();
                next = start.elapsed() + MEANWHILE;
            }
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < within => std::thread::sleep(LOOK),
                Ok(None) => return Err(PeerError::TooLong { program: self.program.clone(), waited: within }),
                Err(source) => {
                    return Err(PeerError::File { doing: "wait for", path: self.program.clone().into(), source });
                }
            }
        };
        // Something that it started may hold its output open.
        let [out, err] = self.outputs.each_ref().map(|output| output.recv_timeout(LAST_OUTPUT).unwrap_or_default());
        if status.success() {
            return Ok(Said { out });
        }
        let words = last_words(if err.trim().is_empty() { &out } else { &err });
        Err(PeerError::Failed { program: self.program.clone(), status: status.to_string(), words })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // It may end by itself in this moment; either way it is waited for.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs it to its end.
pub(super) fn run(command: &mut Command, within: Duration) -> Result<Said, PeerError> {
    Running::start(command)?.finish(within)
}

/// Whether running something failed because there is no such program.
pub(super) fn is_absent(error: &PeerError) -> bool {
    matches!(error, PeerError::File { source, .. } if source.kind() == ErrorKind::NotFound)
}

fn listen(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut output = output;
        let mut bytes = Vec::new();
        // What was read before an error is still worth having.
        let _ = output.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut output, &mut std::io::sink());
        // Nobody listens any more where the program was given up.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command(Path::new("/bin/sh"), "/nowhere");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_says_is_kept_and_its_failure_is_told_in_its_words() {
        let said = run(&mut shell("echo $LD_LIBRARY_PATH; echo more >&2"), Duration::from_secs(20)).unwrap();
        assert_eq!(said.out, "/nowhere\n");
        let failed = run(&mut shell("echo out; echo no such thing >&2; exit 3"), Duration::from_secs(20)).unwrap_err();
        assert!(matches!(&failed, PeerError::Failed { status, .. } if status.contains('3')), "{failed}");
        assert!(failed.to_string().contains("sh failed") && failed.to_string().contains("no such thing"), "{failed}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let start = Instant::now();
        let late = run(&mut shell("exec sleep 60"), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, PeerError::TooLong { .. }), "{late}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn more_output_than_is_kept_does_not_hold_a_program_up() {
        let said = run(&mut shell("head -c 9000000 /dev/zero"), Duration::from_secs(30)).unwrap();
        assert_eq!(said.out.len() as u64, OUTPUT_BYTES_MAX);
    }

    #[test]
    fn an_absent_program_is_told_from_one_that_fails() {
        let absent = run(&mut command(Path::new("/nowhere/program"), ""), Duration::from_secs(1)).unwrap_err();
        assert!(is_absent(&absent), "{absent}");
        assert!(!is_absent(&run(&mut shell("exit 1"), Duration::from_secs(20)).unwrap_err()));
    }
}
