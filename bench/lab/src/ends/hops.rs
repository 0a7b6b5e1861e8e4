//! The floor of a wake-up: threads of two processes that wake each other by eventfds, in a ring with as
//! many hops each way as the engine needs.
//!
//! ```text
//! this process     caller ─► forwarders ─┐ ┌─► forwarders ─► caller
//! other process                          └► receiver ─► forwarders ┘
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::rally::pause;
use super::target::{ARGUMENT, HOPS_ROLE};
use crate::error::LabError;
use crate::measure::{cores, nanos};

/// Passed on around the ring instead of a pause in nanoseconds, it ends every thread it passes.
const STOP: u64 = 1 << 40;
/// A ring that nobody plays ends by itself.
const LONELY: Duration = Duration::from_secs(60);
/// How long one round may take.
const ROUND: Duration = Duration::from_secs(10);

type Bell = Arc<OwnedFd>;

/// A ring of sleeping threads, half of them in another process.
pub struct Hops {
    other: Child,
    first: Bell,
    last: Bell,
    forwarders: Vec<JoinHandle<()>>,
}

impl Hops {
    /// A ring with so many hops each way, an odd number; the other process stays on these cores.
    pub fn start(hops: usize, far: &[usize], program: Option<&Path>) -> Result<Self, LabError> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe().map_err(LabError::refused("find this program's own file"))?,
        };
        let outward = (0..=hops / 2).map(|_| bell()).collect::<Result<Vec<_>, _>>()?;
        let homeward = (0..=hops / 2).map(|_| bell()).collect::<Result<Vec<_>, _>>()?;
        let (out, back) = (&outward[hops / 2], &homeward[0]);
        let cores: Vec<String> = far.iter().map(usize::to_string).collect();
        let other = std::process::Command::new(program)
            .args([ARGUMENT, HOPS_ROLE, &hops.to_string(), &cores.join(",")])
            .stdin(as_stdio(out)?)
            .stdout(as_stdio(back)?)
            .spawn()
            .map_err(LabError::refused("start the other process of a ring"))?;
        let between = outward.windows(2).chain(homeward.windows(2));
        let forwarders = between.map(|between| start_thread(between, Role::Forwarder)).collect();
        let last = Arc::clone(&homeward[hops / 2]);
        Ok(Self { other, first: Arc::clone(&outward[0]), last, forwarders })
    }

    /// Goes around so many times, each end pausing so long before it sends. Answers the time of one way
    /// without the pauses, in nanoseconds.
    pub fn play(&mut self, rounds: u64, length: Duration) -> Result<f64, LabError> {
        let (start, mut paused) = (Instant::now(), Duration::ZERO);
        for _ in 0..rounds {
            paused += pause(length);
            // The word says how long to pause; the one that comes back says how long that really was.
            ring(&self.first, length.as_nanos().max(1) as u64)?;
            let silent = LabError::Silent { doing: "pass a wake-up on", waited: ROUND };
            paused += Duration::from_nanos(wait(&self.last, Some(ROUND))?.ok_or(silent)?);
        }
        Ok(nanos(start.elapsed() - paused) / (2 * rounds) as f64)
    }
}

impl Drop for Hops {
    fn drop(&mut self) {
        let stopped = ring(&self.first, STOP).and_then(|()| wait(&self.last, Some(ROUND)));
        if matches!(stopped, Ok(Some(_))) {
            self.forwarders.drain(..).for_each(|thread| drop(thread.join()));
        } else {
            // The threads of this process end with it; they hold nothing but their bells.
            let _ = self.other.kill();
        }
        let _ = self.other.wait();
    }
}

/// What the other process does; `arguments` are how many hops each way and the cores to stay on.
pub(super) fn main(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let hops = arguments.next().and_then(|text| text.parse::<usize>().ok());
    let cores = arguments.next().unwrap_or_default();
    cores::stay_on(&cores.split(',').filter_map(|core| core.parse().ok()).collect::<Vec<usize>>());
    let served = hops.ok_or(LabError::Option { option: "hops", mend: "give an odd number" }).and_then(serve);
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(hops: usize) -> Result<(), LabError> {
    let own = |fd: std::io::Result<OwnedFd>| fd.map(Arc::new).map_err(LabError::refused("take over a bell"));
    let out = own(std::io::stdin().as_fd().try_clone_to_owned())?;
    let back = own(std::io::stdout().as_fd().try_clone_to_owned())?;
    let mut bells = (1..hops).map(|_| bell()).collect::<Result<Vec<_>, _>>()?;
    bells.push(back);
    // The thread in the middle stands for the application: it pauses before it sends.
    let mut roles = (1..hops).map(|place| if place == hops / 2 { Role::Application } else { Role::Forwarder });
    let forwarders: Vec<JoinHandle<()>> =
        bells.windows(2).zip(&mut roles).map(|(between, role)| start_thread(between, role)).collect();
    let own_role = if hops == 1 { Role::Application } else { Role::Forwarder };
    forward(&out, &bells[0], own_role, Some(LONELY))?;
    forwarders.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// What a thread of the ring stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It passes words on.
    Forwarder,
    /// It pauses for as long as the word says, and passes on how long that was.
    Application,
}

/// Passes on what comes until it is told to stop, or nothing came for so long.
fn forward(from: &Bell, to: &Bell, role: Role, patience: Option<Duration>) -> Result<(), LabError> {
    while let Some(word) = wait(from, patience)? {
        if word >= STOP {
            return ring(to, word);
        }
        match role {
            Role::Forwarder => ring(to, word)?,
            Role::Application => ring(to, pause(Duration::from_nanos(word)).as_nanos() as u64)?,
        }
    }
    Err(LabError::Silent { doing: "play", waited: LONELY })
}

fn start_thread(between: &[Bell], role: Role) -> JoinHandle<()> {
    let (from, to) = (Arc::clone(&between[0]), Arc::clone(&between[1]));
    std::thread::spawn(move || drop(forward(&from, &to, role, None)))
}

fn bell() -> Result<Bell, LabError> {
    Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(LabError::refused("make an eventfd"))?))
}

fn as_stdio(bell: &Bell) -> Result<Stdio, LabError> {
    Ok(Stdio::from(bell.try_clone().map_err(LabError::refused("pass an eventfd on"))?))
}

fn ring(bell: &Bell, word: u64) -> Result<(), LabError> {
    rustix::io::write(bell, &word.to_ne_bytes()).map(drop).map_err(LabError::refused("ring an eventfd"))
}

/// The word that was rung, or none if the patience is over first. The two ends of a ring are patient and poll
/// before they read, as a sleeper does that must notice a deadline; forwarders only read.
fn wait(bell: &Bell, patience: Option<Duration>) -> Result<Option<u64>, LabError> {
    if let Some(patience) = patience {
        let timeout = Timespec::try_from(patience).ok();
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        if poll(&mut fds, timeout.as_ref()) == Ok(0) {
            return Ok(None);
        }
    }
    let mut word = [0; 8];
    rustix::io::read(bell, &mut word).map_err(LabError::refused("sleep on an eventfd"))?;
    Ok(Some(u64::from_ne_bytes(word)))
}
