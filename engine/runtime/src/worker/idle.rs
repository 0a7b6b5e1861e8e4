//! What a worker does when there is nothing to do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::config::Progress;
use penstock_core::{Cause, Env, Timestamp};
use penstock_transport::host::{OwnBell, silence};
use penstock_transport::{Driver, Rest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Worker;
use crate::shared::{ControlCall, Shared};

/// The longest sleep. A broken peer may erase a wake-up; it may not silence a worker for good.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The longest sleep of a worker whose transfers wait for a peer that may have died.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Spins, and sleeps if the configuration lets it.
pub(super) struct Idler {
    progress: Progress,
    spin: Duration,
    idle_since: Option<Timestamp>,
}

impl Idler {
    pub(super) fn new<E: Env>(shared: &Arc<Shared<E>>) -> Self {
        Self { progress: shared.config.workers.progress, spin: shared.config.workers.spin(), idle_since: None }
    }

    pub(super) fn worked(&mut self) {
        self.idle_since = None;
    }

    pub(super) fn rest<E: Env>(&mut self, worker: &mut Worker<E>) {
        if self.progress == Progress::Busy {
            std::hint::spin_loop();
            return;
        }
        let now = worker.shared.env.now();
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < self.spin {
            std::hint::spin_loop();
            return;
        }
        // Who slept until its time was over was woken by nobody, and goes on sleeping after one look.
        if worker.sleep(now) != Slept::Out {
            self.idle_since = None;
        }
    }
}

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slept {
    /// There was none, or somebody ended it.
    Woken,
    /// Its time was over.
    Out,
}

impl<E: Env> Worker<E> {
    /// The last look before a sleep: until when it may last; none if there is something to do.
    #[cold]
    pub(crate) fn rest(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.sleeper.prepare();
        let mut until = self.next_deadline.min(now + SLEEP_MAX);
        for driver in &mut self.drivers {
            match driver.rest(now) {
                Rest::Busy => return None,
                Rest::Until(moment) => until = until.min(moment),
            }
        }
        // Room that came back before the sleep was announced woke nobody: check again. Ready bits lie where a broken peer can erase them, so the
        // last look, and the first one afterwards, is at the lanes themselves.
        if self.has_work() || self.poll_all_lanes() || self.retry_blocked_notifies() {
            return None;
        }
        self.has_slept = true;
        if !self.notify_blocked.is_empty() {
            self.check_liveness();
            until = until.min(now + LOOK_EVERY);
        }
        Some(until)
    }

    /// Sleeps until somebody rings, a driver has something, a deadline comes, or the longest sleep is over.
    fn sleep(&mut self, now: Timestamp) -> Slept {
        let mut slept = Slept::Woken;
        if let Some(until) = self.rest(now) {
            self.own().statistics.sleeps.add(1);
            let bell = &self.shared.segments.bells()[1 + self.index];
            let within = until.since(now);
            slept = sleep_on(bell, &self.drivers, within);
        }
        self.sleeper.awake();
        slept
    }

    /// A peer that died never makes room: if a blocked notification waits for one, the control loop is told.
    fn check_liveness(&mut self) {
        let mut waited_for = self.notify_blocked.iter().map(|active| &active.command.peer);
        if let Some(peer) = waited_for.find(|peer| peer.is_marked_dead() && peer.ended().is_none()) {
            self.shared.control.call(ControlCall::Broken { peer: Arc::clone(peer), cause: Cause::PeerLost });
        }
    }
}

/// Drivers that one worker can wait for. An engine with more does not start.
pub(crate) const DRIVERS_MAX: usize = 8;

/// Sleeps until the bell is rung, a driver has something or the time is over, and silences the bell.
fn sleep_on(bell: &OwnBell, drivers: &[Box<dyn Driver>], timeout: Duration) -> Slept {
    let timeout = Timespec::try_from(timeout).ok();
    let own = bell.own();
    // Places behind the last driver are not looked at. An array, because a sleep allocates nothing.
    let fds: [BorrowedFd<'_>; 2 + DRIVERS_MAX] = std::array::from_fn(|index| match index.checked_sub(2) {
        Some(index) => drivers.get(index).map_or(own, |driver| driver.fd()),
        None if index == 0 => own,
        None => bell.peers().unwrap_or(own),
    });
    let mut fds = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    let ready = poll(&mut fds[..2 + drivers.len()], timeout.as_ref());
    let is_rung = |place: usize| ready.is_ok() && fds[place].revents().contains(PollFlags::IN);
    bell.descriptors().enumerate().filter(|(place, _)| is_rung(*place)).for_each(|(_, descriptor)| silence(descriptor));
    if ready == Ok(0) { Slept::Out } else { Slept::Woken }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use penstock_core::Config;
    use penstock_core::config::TransportName;

    use crate::engine::Engine;
    use crate::{NoteId, Submit};

    #[test]
    fn ready_bits_that_somebody_erases_cost_a_few_sleeps_and_no_message() {
        const NOTES: u128 = 20;
        const PATIENCE: Duration = Duration::from_secs(10);
        let folder = std::env::temp_dir().join(format!("penstock-erased-bits-{}", std::process::id()));
        let engine = |name: &str| {
            let config = Config::default().named(name).directory(&folder).transports([TransportName::Shm]);
            Engine::start(config).unwrap()
        };
        let (near, far) = (engine("near"), engine("far"));
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        let (segments, is_over) = (&far.engine.shared.segments, AtomicBool::new(false));
        let (erased, woken) = (segments.mailbox.view().ready(0), segments.sleeper(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    erased.take(0);
                    woken.awake(); // So that nobody rings.
                }
            });
            for note in 0..NOTES {
                peer.notify(NoteId(note), b"", Submit::new()).unwrap().wait().unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let (begun, mut taken) = (Instant::now(), Vec::new());
        while taken.len() < NOTES as usize && begun.elapsed() < PATIENCE {
            far.wait_notification(Duration::from_millis(10));
            far.notifications(&mut taken);
        }
        assert_eq!(taken.len(), NOTES as usize, "a look at all lanes comes with each long sleep");
        drop((peer, near, far));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
