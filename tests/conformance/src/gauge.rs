//! How much a machine is to be trusted with a bound of time: a thread that only sleeps finds out how long
//! it was kept from running.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest that the machine may have stood still for a time to be judged.
pub const STALLED_MAX: Duration = Duration::from_millis(25);
/// How often something is measured at most.
const TRIES: usize = 6;

/// What something takes that has a bound. Measured again, some times at most, if it is over the bound: a machine that is shared may stand still, or
/// be slow, which no thread that only sleeps finds out. What is late for any other reason is late each time.
pub fn measured(bound: Duration, mut sample: impl FnMut() -> Duration) -> Duration {
    let mut took = sample();
    for _ in 1..TRIES {
        if took <= bound {
            break;
        }
        took = sample();
    }
    took
}

/// How long the thread sleeps each time.
const NAP: Duration = Duration::from_millis(2);

/// Measures, until it is stopped, the longest time for which this machine ran nobody who wanted to run.
#[derive(Debug)]
pub struct Gauge {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Gauge {
    /// Begins.
    pub fn start() -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                longest = longest.max(begun.elapsed().saturating_sub(NAP));
            }
            longest
        });
        Self { stopped, thread }
    }

    /// The longest delay of all naps.
    pub fn stop(self) -> Duration {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sleeps")
    }
}
