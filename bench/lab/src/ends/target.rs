//! The target process: an engine that is written to and read from, told what to do line by line.
//!
//! It ends when its input does, so it never outlives whoever started it.

use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use penstock::Armed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::datagrams::DatagramReceiver;
use super::end::End;
use super::hops;
use super::rally::{self, Rally};
use super::stream::Receiver;
use super::wire::{self, Command, Ready, Reply, TargetSpec};
use crate::error::LabError;
use crate::measure::cores;

/// The first argument of a program that is to become a target. Programs that measure hand what follows it
/// to [`main`].
pub const ARGUMENT: &str = "__perf-target";

/// The argument after it of a process that is to become the other half of a ring of wake-ups.
pub(super) const HOPS_ROLE: &str = "hops";

/// The longest sleep of an inline target; a bell that was lost costs no more than this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// An inline target that is busy looks for a command after so many turns, and does not wait for one.
const LOOK_EVERY: u32 = 64;
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What a program does that was started with [`ARGUMENT`]; `arguments` are those after it.
pub fn main(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let spec = arguments.next().unwrap_or_default();
    if spec == HOPS_ROLE {
        return hops::main(arguments);
    }
    let served = serde_json::from_str(&spec)
        .map_err(LabError::refused("read what the target is to be"))
        .and_then(|spec: TargetSpec| serve(&spec));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody listens any more there is nobody to tell.
            let _ = say(&Reply::Failed { why: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn serve(spec: &TargetSpec) -> Result<(), LabError> {
    cores::stay_on(&spec.stay_on);
    let end = spec.end.start()?;
    let pool = end.pool.memory();
    say(&Reply::Ready(Ready {
        card: end.engine.descriptor(),
        pool_fd: pool.fd().as_raw_fd(),
        pool_bytes: pool.bytes(),
    }))?;
    let mut input = std::io::stdin().lock();
    let (mut line, mut receivers) = (String::new(), Receivers::default());
    loop {
        line.clear();
        wait_for_input(&end)?;
        if input.read_line(&mut line).map_err(LabError::refused("read a command"))? == 0 {
            return Ok(());
        }
        let command = serde_json::from_str(&line).map_err(LabError::refused("understand a command"))?;
        let reply = obey(&end, &mut receivers, &command)?;
        say(&reply)?;
    }
}

/// Its ends of bare sockets.
#[derive(Default)]
struct Receivers {
    stream: Receiver,
    datagram: DatagramReceiver,
}

fn obey(end: &End, receivers: &mut Receivers, command: &Command) -> Result<Reply, LabError> {
    match *command {
        Command::Stream(ref command) => receivers.stream.obey(end, command, say),
        Command::Datagram(ref command) => receivers.datagram.obey(end, command, say),
        Command::Rally(rules) => {
            let mut rally = Rally::with_first_peer(end, rules)?;
            say(&Reply::Going)?;
            let paused = rally.receive_first()?;
            Ok(Reply::Rallied { paused_ns: paused.as_nanos() as u64 })
        }
        Command::Doze { nanos } => {
            say(&Reply::Going)?;
            std::thread::sleep(Duration::from_nanos(nanos));
            Ok(Reply::Done)
        }
        Command::CacheLines { rounds } => {
            say(&Reply::Going)?;
            rally::return_cache_lines(end.pool.window(), rounds)?;
            Ok(Reply::Done)
        }
        _ => wire::perform(end, command),
    }
}

/// An inline engine works while it waits for a command, and sleeps when there is nothing to do.
fn wait_for_input(end: &End) -> Result<(), LabError> {
    if end.is_threaded() {
        return Ok(());
    }
    let input = std::io::stdin();
    let longest = Timespec::try_from(SLEEP_MAX).ok();
    let mut turns = 0_u32;
    loop {
        let arm = || end.engine.arm().map_err(LabError::refused("arm an inline engine"));
        let is_busy = end.turn()? || arm()? == Armed::Busy;
        turns = turns.wrapping_add(1);
        // Who waits for the initiator, and wakes itself to look, is busy for as long as that waits for an answer to its command.
        if is_busy && !turns.is_multiple_of(LOOK_EVERY) {
            continue;
        }
        let event_fd = end.engine.event_fd();
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::from_borrowed_fd(event_fd, PollFlags::IN)];
        // Interrupted: look again.
        let _ = poll(&mut fds, if is_busy { Some(&NO_TIME) } else { longest.as_ref() });
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

fn say(reply: &Reply) -> Result<(), LabError> {
    let mut line = serde_json::to_string(reply).map_err(LabError::refused("write down an answer"))?;
    line.push('\n');
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(LabError::refused("answer"))
}
