//! A target process, as its initiator holds it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use penstock::memory::{PageKind, map_foreign_pool};
use penstock::{Rights, Window};
use rustix::process::{Pid, Signal, kill_process};

use super::sweep::{self, Making};
use super::target::ARGUMENT;
use super::wire::{Command, Ready, Reply, TargetSpec};
use crate::error::LabError;

/// How long a target may take for anything: filling gigabytes is the longest.
const ANSWER: Duration = Duration::from_secs(120);
/// How long it may take to end once its input is closed.
const FAREWELL: Duration = Duration::from_secs(3);

/// A running target process. It ends when this is dropped.
pub struct TargetProcess {
    child: Child,
    /// Closed to tell it to end.
    commands: Option<ChildStdin>,
    replies: Receiver<Reply>,
}

impl TargetProcess {
    /// Starts `program`, or this one again, as a target.
    pub fn start(program: Option<&Path>, spec: &TargetSpec) -> Result<Self, LabError> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe().map_err(LabError::refused("find this program's own file"))?,
        };
        let spec = serde_json::to_string(spec).map_err(LabError::refused("write down the target"))?;
        let mut making = Making::begin()?;
        let mut child = std::process::Command::new(program)
            .arg(ARGUMENT)
            .arg(spec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a terminal sends to all of its foreground is for the initiator, which ends its target itself.
            .process_group(0)
            .spawn()
            .map_err(LabError::refused("start the target process"))?;
        making.has_target(pid_of(&child));
        drop(making);
        let commands = child.stdin.take();
        let output = child.stdout.take().expect("its output was asked to be a pipe");
        let (sender, replies) = channel();
        // Ends with the child's output, at the latest when the child is ended.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let why = |error| Reply::Failed { why: format!("it said {line:?}: {error}") };
                let reply = serde_json::from_str(&line).unwrap_or_else(why);
                if sender.send(reply).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, commands, replies })
    }

    /// Waits until it can be connected to.
    pub fn ready(&mut self) -> Result<Ready, LabError> {
        match self.reply("start")? {
            Reply::Ready(ready) => Ok(ready),
            other => Err(other.unexpected()),
        }
    }

    /// Has it do something and waits for the answer.
    pub fn ask(&mut self, command: &Command) -> Result<Reply, LabError> {
        self.tell(command)?;
        self.reply("answer")
    }

    /// Has it begin something, and waits until it has begun.
    pub fn begin(&mut self, command: &Command) -> Result<(), LabError> {
        self.tell(command)?;
        match self.reply("begin")? {
            Reply::Going => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    fn tell(&mut self, command: &Command) -> Result<(), LabError> {
        let mut line = serde_json::to_string(command).map_err(LabError::refused("write down a command"))?;
        line.push('\n');
        let Some(commands) = &mut self.commands else { return Err(self.gone()) };
        commands.write_all(line.as_bytes()).map_err(LabError::refused("speak to the target process"))
    }

    /// Its next answer.
    pub fn reply(&mut self, doing: &'static str) -> Result<Reply, LabError> {
        match self.replies.recv_timeout(ANSWER) {
            Ok(Reply::Failed { why }) => Err(LabError::Target { why }),
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => {
                self.end(Duration::ZERO);
                Err(LabError::Silent { doing, waited: ANSWER })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    fn gone(&mut self) -> LabError {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        LabError::Target { why: format!("it ended before it was done ({status})") }
    }

    /// Maps its pool a second time, apart from the engine's own mapping.
    pub fn map_pool(&self, ready: &Ready) -> Result<Window, LabError> {
        let path = format!("/proc/{}/fd/{}", self.child.id(), ready.pool_fd);
        let file = File::options().read(true).write(true).open(path);
        let fd: OwnedFd = file.map_err(LabError::refused("open the target's pool for the floors"))?.into();
        map_foreign_pool(fd, ready.pool_bytes, Rights::READ_WRITE, PageKind::Small)
            .map_err(LabError::refused("map the target's pool for the floors"))
    }

    /// Stops it where it stands, until [`TargetProcess::resume`] or its end.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it where it stands, and does not wait for its end.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Our own child, whom nobody has waited for: its id is still its own. If it has ended, there is nobody to stop.
        if let Some(pid) = pid_of(&self.child) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it: closes its input, and kills it if that is not enough.
    fn end(&mut self, patience: Duration) {
        self.commands = None;
        self.wait_or_kill(patience);
        sweep::target_is_gone(pid_of(&self.child));
    }

    fn wait_or_kill(&mut self, patience: Duration) {
        let start = Instant::now();
        while start.elapsed() < patience {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
        // It may have ended by itself in this moment; either way it is waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        self.end(FAREWELL);
    }
}
