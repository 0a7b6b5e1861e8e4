//! Floors: the same spans between the same pools, by bare threads that do nothing else.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use penstock::memory::copy::{Hint, scatter};
use penstock::{Direction, Span, Window};

use crate::error::LabError;
use crate::measure::cores;
use crate::raw::{CheckedSpans, copy_each};

/// Bytes that a bare thread takes at a time when several share the spans.
const SHARE_BYTES: u64 = 256 << 10;

/// What a floor copies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The best kernel this processor has.
    Kernel,
    /// A loop over the C library's `memcpy`, or over words where all spans are words.
    Plain,
}

/// What a floor copies.
#[derive(Debug, Clone)]
pub struct Work {
    /// This side's pool.
    pub local: Window,
    /// The other side's pool.
    pub remote: Window,
    /// Which way.
    pub direction: Direction,
    /// What.
    pub spans: CheckedSpans,
    /// Whether past the cache.
    pub hint: Hint,
}

/// Threads that copy when asked and sleep otherwise.
pub struct Crew {
    helpers: Vec<Helper>,
    done: Receiver<Result<Stretch, LabError>>,
}

struct Helper {
    jobs: Option<Sender<Arc<Job>>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    work: Work,
    means: Means,
    shares: Vec<Range<usize>>,
    next: AtomicUsize,
    missing: AtomicUsize,
}

/// When one thread began to copy and when it had ended.
type Stretch = (Instant, Instant);

impl Crew {
    /// So many threads; each stays on its core, if there are as many cores.
    pub fn new(threads: usize, cores: &[usize]) -> Self {
        let (sender, done) = channel();
        let helpers = (0..threads).map(|index| {
            let (jobs, inbox) = channel::<Arc<Job>>();
            let (sender, core) = (sender.clone(), cores.get(index).copied());
            let thread = std::thread::spawn(move || {
                cores::stay_on(core.as_slice());
                while let Ok(job) = inbox.recv() {
                    let stretch = job.take_part();
                    drop(job);
                    if sender.send(stretch).is_err() {
                        return;
                    }
                }
            });
            Helper { jobs: Some(jobs), thread: Some(thread) }
        });
        Self { helpers: helpers.collect(), done }
    }

    /// Copies everything once. Answers how long that took, in nanoseconds: from when all threads
    /// were awake to when the last one had ended.
    pub fn copy(&mut self, work: &Work, means: Means) -> Result<f64, LabError> {
        let threads = self.helpers.len();
        let job = Arc::new(Job {
            work: work.clone(),
            means,
            shares: shares(work.spans.spans(), threads),
            next: AtomicUsize::new(0),
            missing: AtomicUsize::new(threads),
        });
        for helper in &self.helpers {
            let sent = helper.jobs.as_ref().is_some_and(|jobs| jobs.send(Arc::clone(&job)).is_ok());
            if !sent {
                return Err(LabError::Target { why: "a thread of the floor has ended".to_owned() });
            }
        }
        drop(job);
        let mut whole: Option<Stretch> = None;
        for _ in 0..threads {
            let gone = |_| LabError::Target { why: "a thread of the floor has ended".to_owned() };
            let (began, ended) = self.done.recv().map_err(gone)??;
            whole = Some(whole.map_or((began, ended), |(first, last)| (first.min(began), last.max(ended))));
        }
        let (began, ended) = whole.expect("a crew has at least one thread");
        Ok((ended - began).as_nanos() as f64)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for helper in &mut self.helpers {
            helper.jobs = None;
            // A helper that panicked has said so.
            let _ = helper.thread.take().map(JoinHandle::join);
        }
    }
}

impl Job {
    fn take_part(&self) -> Result<Stretch, LabError> {
        // SYNC rendezvous: every thread sees all others awake before anyone begins.
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        while let Some(share) = self.shares.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let Work { local, remote, direction, spans, hint } = &self.work;
            match self.means {
                Means::Kernel => {
                    let spans = &spans.spans()[share.clone()];
                    scatter(local, remote, *direction, spans, *hint).map_err(LabError::refused("copy for a floor"))?;
                }
                Means::Plain => copy_each(local, remote, *direction, spans, share.clone()),
            }
        }
        Ok((began, Instant::now()))
    }
}

/// One share for a thread alone; otherwise small ones, so that a thread that was held up is not waited for.
fn shares(spans: &[Span], threads: usize) -> Vec<Range<usize>> {
    if threads == 1 {
        return std::iter::once(0..spans.len()).collect();
    }
    let mut shares = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (index, span) in spans.iter().enumerate() {
        bytes += span.len;
        if bytes >= SHARE_BYTES {
            shares.push(begin..index + 1);
            (begin, bytes) = (index + 1, 0);
        }
    }
    shares.push(begin..spans.len());
    shares
}

#[cfg(test)]
mod tests {
    use penstock::HostMemory;

    use super::*;

    #[test]
    fn every_crew_copies_every_span_by_every_means() {
        let window = |byte| HostMemory::from_vec(vec![byte; 1 << 20]).unwrap().window().clone();
        let spans: Arc<[Span]> =
            (0..128).map(|block| Span { local: block * 8192, remote: (127 - block) * 8192, len: 8000 }).collect();
        for threads in [1, 2, 3] {
            for means in [Means::Kernel, Means::Plain] {
                let work = Work {
                    local: window(1),
                    remote: window(2),
                    direction: Direction::Write,
                    spans: CheckedSpans::new(Arc::clone(&spans)),
                    hint: Hint::Streaming,
                };
                let mut crew = Crew::new(threads, &[]);
                assert!(crew.copy(&work, means).unwrap() > 0.0);
                let mut bytes = vec![0; 1 << 20];
                work.remote.read_into(0, &mut bytes).unwrap();
                assert_eq!(bytes.iter().filter(|&&byte| byte == 1).count(), 128 * 8000);
            }
        }
    }

    #[test]
    fn a_span_larger_than_a_share_is_a_share() {
        let span = |len| Span { local: 0, remote: 0, len };
        let spans = [span(1 << 20), span(1), span(SHARE_BYTES), span(1)];
        assert_eq!(shares(&spans, 2), [0..1, 1..3, 3..4]);
        assert_eq!(shares(&spans, 1), std::iter::once(0..4).collect::<Vec<_>>());
    }
}
