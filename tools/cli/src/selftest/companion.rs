//! The other process: this program once more, with a hidden command.
//!
//! Its standard input is a pipe that only this process holds open. However this process ends, the
//! pipe ends with it, and the other process then ends by itself.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::errand::{Answer, Errand};
use super::flaw::Flaw;
use super::target::PATIENCE;
use crate::arguments::Transport;

/// How long one answer may take: the target's own patience, and looking through its memory.
const ANSWER_WITHIN: Duration = PATIENCE.saturating_mul(3);

/// This very program, also if its file was replaced meanwhile.
const SELF: &str = "/proc/self/exe";

/// The other process, ended with this value.
pub(crate) struct Companion {
    child: Child,
    errands: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Companion {
    /// Starts it.
    pub(crate) fn start(directory: &Path, transport: Transport, quick: bool, verbose: u8) -> Result<Self, Flaw> {
        let mut command = Command::new(SELF);
        command.arg0("penstock").args(["__selftest-target", "--transport", transport.as_str(), "--directory"]);
        command.arg(directory);
        command.args(quick.then_some("--quick")).args((0..verbose).map(|_| "-v"));
        // What a terminal sends to all of its foreground is for this process, which ends the other one itself.
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(Flaw::Companion)?;
        let errands = child.stdin.take();
        let stdout = child.stdout.take().expect("its standard output was asked for");
        let (sender, answers) = channel();
        // Reading has no time limit of its own; the channel has.
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        Ok(Self { child, errands, answers })
    }

    /// Sends it on an errand and waits for the answer.
    pub(crate) fn run(&mut self, errand: &Errand) -> Result<Answer, Flaw> {
        let text = serde_json::to_string(errand).expect("errands hold numbers and bytes only");
        let errands = self.errands.as_mut().expect("its standard input is open until it is ended");
        if writeln!(errands, "{text}").is_err() {
            return Err(self.gone());
        }
        match self.answers.recv_timeout(ANSWER_WITHIN) {
            Ok(line) => serde_json::from_str(&line).map_err(|_| Flaw::CompanionGarbled { said: line }),
            Err(RecvTimeoutError::Timeout) => Err(Flaw::CompanionSilent { within: ANSWER_WITHIN }),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    /// Lets it end, and sees that it ends well.
    pub(crate) fn end(mut self) -> Result<(), Flaw> {
        match self.close() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Flaw::CompanionEnded { how: status.to_string() }),
            None => Err(Flaw::CompanionSilent { within: PATIENCE }),
        }
    }

    fn gone(&mut self) -> Flaw {
        let how = self.close().map_or_else(|| "it only closed its output".to_owned(), |status| status.to_string());
        Flaw::CompanionEnded { how }
    }

    /// Ends its input and waits until it has ended, by force if it must be.
    fn close(&mut self) -> Option<ExitStatus> {
        self.errands = None;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
        }
        // It is our own child and not yet waited for, so the number cannot be somebody else's.
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.close();
    }
}
