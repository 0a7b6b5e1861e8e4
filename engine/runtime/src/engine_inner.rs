//! What every handle of an engine holds: the shared state and, for an inline engine, its loop.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_core::{Cause, Env, Timestamp};
use penstock_memory::LivenessLock;
use penstock_ring::{Entered, ThreadBound, ThreadBoundError};
use penstock_transport::host::silence;

use crate::control::Control;
use crate::shared::{Closing, ControlCall, Latch, Shared, WorkerCall};
use crate::worker::Worker;

/// Turns of an inline engine between two looks at its sockets.
const TURNS_PER_CONTROL: u32 = 256;
/// The longest pause between two looks of a blocking call that nobody wakes.
const PAUSE_MAX: Duration = Duration::from_micros(50);
/// What an engine that is dropped gives goodbyes beyond the time that transfers have.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How long an engine that is dropped waits for who is seen in a copy: enough for one copy of a peer that runs.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Looks that a blocking call takes before it pauses for longer than a moment.
const EAGER_LOOKS: u32 = 200;

/// The shared state of one engine and, without threads, the loop itself.
pub(crate) struct EngineInner<E: Env> {
    pub(crate) shared: Arc<Shared<E>>,
    inline: Option<ThreadBound<Inline<E>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What an application sleeps on: the descriptor of an inline engine's reactor, else a set with the application's bell.
    pub(crate) event_fd: OwnedFd,
}

/// An engine without threads: one worker and the control loop, turned by the caller.
pub(crate) struct Inline<E: Env> {
    pub(crate) worker: Worker<E>,
    pub(crate) control: Control<E>,
    since_control: u32,
    /// Held by the thread that this engine belongs to, as long as the engine runs.
    life: Option<LivenessLock>,
}

impl<E: Env> Inline<E> {
    pub(crate) fn new(worker: Worker<E>, control: Control<E>) -> Self {
        let life = worker.shared.live();
        Self { worker, control, since_control: 0, life }
    }

    #[inline]
    fn turn(&mut self) -> bool {
        let worked = self.worker.turn();
        self.since_control += 1;
        if self.since_control >= TURNS_PER_CONTROL || self.control.is_called() {
            return self.turn_control() || worked;
        }
        worked
    }

    /// The last look before the caller sleeps on the event fd, which wakes it for deadlines as well. Answers whether it may.
    #[cold]
    pub(crate) fn rest(&mut self) -> bool {
        // The worker's bell wakes the same descriptor and may still sound.
        self.worker.shared.segments.bells()[1].descriptors().for_each(silence);
        // Whatever wakes the caller, its next turn looks at the sockets and at what is due there.
        self.since_control = TURNS_PER_CONTROL;
        if self.worker.turn() {
            return false;
        }
        let Some(until) = self.worker.rest(self.worker.shared.env.now()) else { return false };
        let timed = self.control.wake_at(until);
        timed.inspect_err(|error| tracing::warn!(%error, "an engine without a timer does not sleep")).is_ok()
    }

    fn turn_control(&mut self) -> bool {
        self.since_control = 0;
        self.worker.sleeper.awake();
        self.control.turn(Some(Duration::ZERO))
    }
}

fn refused(error: ThreadBoundError) -> Cause {
    match error {
        ThreadBoundError::WrongThread => Cause::WrongThread,
        ThreadBoundError::Reentered => Cause::Reentered,
    }
}

impl<E: Env> EngineInner<E> {
    pub(crate) fn inline(shared: Arc<Shared<E>>, inline: Inline<E>, event_fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { shared, inline: Some(ThreadBound::new(inline)), threads: Mutex::default(), event_fd })
    }

    pub(crate) fn threaded(shared: Arc<Shared<E>>, threads: Vec<JoinHandle<()>>, event_fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { shared, inline: None, threads: Mutex::new(threads), event_fd })
    }

    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    /// The inline engine's own loop, if this is one and the caller is its thread.
    #[inline(always)]
    pub(crate) fn enter_inline(&self) -> Option<Result<Entered<'_, Inline<E>>, Cause>> {
        let bound = self.inline.as_ref()?;
        if self.shared.is_inherited() {
            return Some(Err(Cause::Forked));
        }
        Some(bound.enter().map_err(refused))
    }

    /// Runs `f` on the inline engine's own loop, if this is one and the caller is its thread.
    #[inline(always)]
    pub(crate) fn with_inline<R>(&self, f: impl FnOnce(&mut Inline<E>) -> R) -> Option<Result<R, Cause>> {
        Some(self.enter_inline()?.map(|mut inline| f(&mut inline)))
    }

    /// One turn of an inline engine; nothing to do for others. Answers whether anything happened.
    #[inline]
    pub(crate) fn progress(&self) -> Result<bool, Cause> {
        self.with_inline(Inline::turn).unwrap_or(Ok(false))
    }

    /// One turn of an inline engine, its sockets included.
    pub(crate) fn progress_all(&self) -> Result<bool, Cause> {
        let turn = |inline: &mut Inline<E>| inline.worker.turn() | inline.turn_control();
        self.with_inline(turn).unwrap_or(Ok(false))
    }

    /// Waits until `done`, or until the moment has come. Answers whether it was done. An inline
    /// engine makes progress meanwhile.
    pub(crate) fn wait_until(&self, until: Timestamp, mut done: impl FnMut() -> bool) -> bool {
        let mut looks = 0u32;
        loop {
            if done() {
                return true;
            }
            // The sockets cost a system call: they are looked at when there is nothing else to do.
            let worked = self.progress().unwrap_or(false) || self.progress_all().unwrap_or(false);
            if self.shared.env.now() >= until {
                return done();
            }
            if worked {
                continue;
            }
            looks = looks.saturating_add(1);
            self.shared.env.pause(if looks < EAGER_LOOKS { Duration::ZERO } else { PAUSE_MAX });
        }
    }

    /// Waits for a latch that another thread opens, or that this inline engine opens itself.
    pub(crate) fn wait_latch(&self, latch: &Latch, within: Duration) -> bool {
        if self.is_inline() {
            let until = self.shared.env.now() + within;
            return self.wait_until(until, || latch.is_open());
        }
        latch.sleep(within)
    }

    /// Says goodbye to every peer, ends every transfer, joins the threads, and takes all memory back: within so long, or
    /// within what the configuration says.
    pub(crate) fn shut_down(&self, within: Option<Duration>) {
        let shared = &self.shared;
        if shared.closes_as(Closing::ShutDown) || self.shared.is_inherited() {
            return;
        }
        shared.inbox.wake_all();
        let (now, patience) = (shared.env.now(), shared.config.session.shutdown_timeout());
        // Goodbyes need some of the time.
        let (ended_by, until) = match within {
            Some(within) => (now + within / 2, now + within),
            None if self.is_inline() => (now + patience, now + patience),
            None => (now + patience, now + 2 * patience + STOP_GRACE),
        };
        self.wait_until(ended_by, || !shared.has_running());
        shared.control.call(ControlCall::Stop { until });
        if self.is_inline() {
            // From another thread the loop cannot be turned; its sockets close with it, unsaid.
            let stopped = || self.with_inline(|inline| inline.control.is_stopped()) != Some(Ok(false));
            self.wait_until(until, stopped);
            let _ = self.with_inline(|inline| {
                inline.worker.end(Cause::EngineClosed);
                // Handles may keep the rest for long, and end in another thread, which cannot let go.
                inline.life = None;
            });
        } else {
            self.stop_threads();
            shared.say_what_was_left();
        }
        shared.manager.fall_silent();
        shared.peers.lose_all();
        self.take_back_all(if within.is_some() { until } else { shared.env.now() + LAST_LOOK });
        shared.forget_all();
    }

    fn stop_threads(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // The control loop is the first thread: it needs the workers to leave their peers.
        let mut threads = threads.drain(..);
        if let Some(control) = threads.next() {
            join(control);
        }
        for port in &self.shared.workers {
            port.call(WorkerCall::Stop);
        }
        threads.for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    let name = thread.thread().name().unwrap_or("a thread").to_owned();
    if thread.join().is_err() {
        tracing::error!(thread = name, "a thread of the engine panicked");
    }
}
