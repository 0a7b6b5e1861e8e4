//! A process of the demonstration: this program once more, with a hidden command.
//!
//! Its standard input is a pipe that only this process holds open: however this process ends, the other one ends then by itself. It is
//! in a group of its own, so that an interrupt from the keyboard leaves it to this process to end it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::flaw::Flaw;
use super::words::{Order, Role, Said};
use crate::arguments::Transport;

/// How long a process may take to end when its input has.
const END_WITHIN: Duration = Duration::from_secs(5);

/// This very program, also if its file was replaced meanwhile.
const SELF: &str = "/proc/self/exe";

/// Something heard of a process.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) role: Role,
    /// Which of its lives.
    pub(crate) life: u32,
    /// What it said; nothing when its output has ended.
    pub(crate) said: Option<Result<Said, String>>,
}

/// The process, ended with this value.
pub(crate) struct Player {
    role: Role,
    pub(crate) life: u32,
    child: Child,
    orders: Option<ChildStdin>,
}

impl Player {
    /// Starts it. What it says comes through the channel.
    pub(crate) fn start(
        role: Role,
        life: u32,
        (folder, transport, verbose): (&Path, Transport, u8),
        heard: Sender<Heard>,
    ) -> Result<Self, Flaw> {
        let mut command = Command::new(SELF);
        command.arg0("penstock").args(["__demo-node", "--role", role.as_str(), "--transport", transport.as_str()]);
        command.arg("--directory").arg(folder).args((0..verbose).map(|_| "-v")).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(Flaw::Process)?;
        let orders = child.stdin.take();
        let stdout = child.stdout.take().expect("its standard output was asked for");
        // Reading has no time limit of its own; the channel has.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let said = Some(serde_json::from_str(&line).map_err(|_| line));
                if heard.send(Heard { role, life, said }).is_err() {
                    return;
                }
            }
            let _ = heard.send(Heard { role, life, said: None });
        });
        Ok(Self { role, life, child, orders })
    }

    /// Tells it to do something.
    pub(crate) fn tell(&mut self, order: &Order) -> Result<(), Flaw> {
        let text = serde_json::to_string(order).expect("orders hold numbers, bytes and texts only");
        let orders = self.orders.as_mut().expect("its standard input is open until it is ended");
        writeln!(orders, "{text}").map_err(|_| Flaw::Gone { role: self.role })
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) -> Result<(), Flaw> {
        // It is our own child and not yet waited for, so the number cannot be somebody else's.
        self.child.kill().and_then(|()| self.child.wait()).map(drop).map_err(Flaw::Process)
    }

    /// Lets it end, and sees that it ends well.
    pub(crate) fn end(mut self) -> Result<(), Flaw> {
        match self.close() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Flaw::EndedBadly { role: self.role, how: status.to_string() }),
            None => Err(Flaw::Silent { role: self.role, of: "its end", within: END_WITHIN }),
        }
    }

    /// Ends its input and waits until it has ended, by force if it must be.
    fn close(&mut self) -> Option<ExitStatus> {
        self.orders = None;
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.close();
    }
}
