//! Whether another process's memory can be reached: tried by a blocking call, since the first touch may take as long as that process likes (its memory may
//! lie in a file that it serves itself, or be given page by page by somebody who does not answer).

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{ForeignProcess, ProbeWords, WhyNot};
use crate::process::ProcessWatch;

/// How long whoever begins a trial waits for its answer, which usually comes within some ten microseconds.
const ANSWER_WITHIN: Duration = Duration::from_millis(40);

/// What whoever begins trials has waited in the second that began then: all of them together wait for a part of it.
static WAITED: Mutex<Option<(Instant, Duration)>> = Mutex::new(None);
const WAITED_MAX: Duration = Duration::from_millis(100);

/// Waits by this, if it may.
fn wait(wait: impl FnOnce(Duration) -> bool) {
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let (since, spent) =
        waited.filter(|(since, _)| now - *since < Duration::from_secs(1)).unwrap_or((now, Duration::ZERO));
    *waited = Some((since, spent));
    drop(waited);
    if spent < WAITED_MAX {
        wait(ANSWER_WITHIN);
        let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, spent)) = &mut *waited {
            *spent += now.elapsed();
        }
    }
}

/// A trial, and its answer once there is one.
#[derive(Clone, Debug)]
pub struct Trial(Arc<OnceLock<Result<Arc<ForeignProcess>, WhyNot>>>);

impl Trial {
    /// One whose answer is known.
    pub fn of(answer: Result<Arc<ForeignProcess>, WhyNot>) -> Self {
        Self(Arc::new(OnceLock::from(answer)))
    }

    /// Tries it by `run`, which has it done by somebody who may be kept waiting, and waits a moment for the answer; not if that process
    /// keeps somebody waiting already.
    pub fn begin(
        watch: &Arc<ProcessWatch>,
        probe_words: ProbeWords,
        run: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Self {
        let trial = Self(Arc::default());
        let (is_stuck, (tell, hear)) = (watch.blocking().is_stuck(ANSWER_WITHIN), channel());
        let (watch, answer) = (Arc::clone(watch), Arc::clone(&trial.0));
        run(Box::new(move || {
            // Nobody else sets it.
            let _ = answer.set(ForeignProcess::reach(&watch, probe_words));
            let _ = tell.send(());
        }));
        if !is_stuck {
            wait(|within| hear.recv_timeout(within).is_ok());
        }
        trial
    }

    /// The process, if its memory can be reached; until that is known, that it is not.
    pub fn answer(&self) -> Result<&Arc<ForeignProcess>, WhyNot> {
        self.0.get().map_or(Err(WhyNot::NotAnswered), |answer| answer.as_ref().map_err(|why| *why))
    }

    /// Whether the answer is known.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    const PAGE: usize = 4096;

    /// A page that is given to whoever touches it when this says so, and not before.
    struct Withheld {
        page: *mut libc::c_void,
        giver: OwnedFd,
    }

    impl Withheld {
        /// None where this process may not withhold pages from the kernel.
        fn new() -> Option<Self> {
            const API: u64 = 0xc018_aa3f;
            const REGISTER: u64 = 0xc020_aa00;
            const MISSING: u64 = 1;
            // SAFETY: asks for a descriptor; no memory of this process is named.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            // SAFETY: the kernel has just made it for this call.
            let giver = unsafe { OwnedFd::from_raw_fd(fd) };
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            let mut api = [0xaa_u64, 0, 0];
            let mut register = [page.expose_provenance() as u64, PAGE as u64, MISSING, 0];
            // SAFETY: both structures are as long as the calls say, and live.
            let asked = unsafe {
                (libc::ioctl(fd, API as _, api.as_mut_ptr()), libc::ioctl(fd, REGISTER as _, register.as_mut_ptr()))
            };
            assert_eq!(asked, (0, 0));
            Some(Self { page, giver })
        }

        fn words(&self) -> ProbeWords {
            let place = self.page.expose_provenance() as u64;
            ProbeWords { probe: place, value: 7, scratch: place }
        }

        /// Gives it, full of zeros.
        fn give(&self) {
            const ZERO_PAGE: u64 = 0xc020_aa04;
            let mut range = [self.page.expose_provenance() as u64, PAGE as u64, 0, 0];
            // SAFETY: the structure is as long as the call says, and lives; the page is this mapping's.
            let given = unsafe { libc::ioctl(self.giver.as_raw_fd(), ZERO_PAGE as _, range.as_mut_ptr()) };
            assert_eq!(given, 0);
        }
    }

    #[test]
    fn memory_that_does_not_answer_keeps_nobody_waiting() {
        let Some(withheld) = Withheld::new() else {
            if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
                let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                let why =
                    "memory_that_does_not_answer_keeps_nobody_waiting: needs root, or vm.unprivileged_userfaultfd=1";
                writeln!(notes, "{why}").unwrap();
            }
            return;
        };
        let watch = Arc::new(ProcessWatch::Ourselves);
        let begin = |words| Trial::begin(&watch, words, |job| watch.blocking().run(job));
        let begun = Instant::now();
        let slow = begin(withheld.words());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!((slow.answer().unwrap_err(), slow.is_over()), (WhyNot::NotAnswered, false));
        // Nobody waits a second time for a process that keeps somebody waiting.
        let begun = Instant::now();
        let others: Vec<Trial> = (0..100).map(|_| begin(ProbeWords::of_this_process(1))).collect();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        withheld.give();
        let begun = Instant::now();
        while !others.iter().chain([&slow]).all(Trial::is_over) {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(slow.answer().unwrap_err(), WhyNot::OtherProcess, "it has another word");
        assert!(others.iter().all(|trial| trial.answer().is_ok()), "by then they know better");
        assert_eq!(begin(ProbeWords::NONE).answer().unwrap_err(), WhyNot::SwitchedOffThere);
    }
}
