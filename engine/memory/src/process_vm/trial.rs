//! Whether another process's memory can be reached: tried by a blocking call, since the first touch may take as long as that process likes (its memory may
//! lie in a file that it serves itself, or be given page by page by somebody who does not answer).

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use penstock_core::env::BlockingJob;

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
    pub fn begin(watch: &Arc<ProcessWatch>, probe_words: ProbeWords, run: impl FnOnce(BlockingJob)) -> Self {
        let trial = Self(Arc::default());
        let (is_stuck, (tell, hear)) = (watch.blocking().is_stuck(ANSWER_WITHIN), channel());
        let (watch, answer) = (Arc::clone(watch), Arc::clone(&trial.0));
        run(BlockingJob::once(move || {
            // Nobody else sets it.
            let _ = answer.set(ForeignProcess::reach(&watch, probe_words));
            let _ = tell.send(());
        }));
        if !is_stuck {
            wait(|within| hear.recv_timeout(within).is_ok());
        }
        trial
    }

    /// The process, if its memory can be reached; until that is known, that it is not, nor once it does not answer any more.
    pub fn answer(&self) -> Result<&Arc<ForeignProcess>, WhyNot> {
        match self.0.get() {
            None => Err(WhyNot::NotAnswered),
            Some(Ok(process)) if process.has_stalled() => Err(WhyNot::Stalled),
            Some(answer) => answer.as_ref().map_err(|why| *why),
        }
    }

    /// Whether the answer is known.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::withheld::Withheld;

    #[test]
    fn memory_that_does_not_answer_keeps_nobody_waiting() {
        let Some(withheld) = Withheld::new(4096, "memory_that_does_not_answer_keeps_nobody_waiting") else {
            return;
        };
        let place = withheld.base().expose_provenance() as u64;
        let words = ProbeWords { probe: place, value: 7, scratch: place };
        let watch = Arc::new(ProcessWatch::Ourselves);
        let begin = |words| Trial::begin(&watch, words, |job| watch.blocking().run_job(job));
        let begun = Instant::now();
        let slow = begin(words);
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
