//! Calls that may wait for another process: each process that somebody may have to wait for has one thread for them, made when it is needed and
//! gone soon after there is nothing more to do. Nobody waits for such a thread, neither who gave it the call, nor the end of an engine.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use penstock_core::budget::BudgetShare;
use penstock_core::env::BlockingJob;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::MemoryError;
use crate::fork::Maker;
use crate::memfd;

/// Memory of which so much is freed in a few milliseconds.
const SOON_FREED_BYTES: u64 = 256 << 20;

/// What is clogged has so many calls behind one that takes so long.
const CLOGGED_JOBS: usize = 1024;
const CLOGGED_FOR: Duration = Duration::from_secs(1);

/// Only of calls that take so long it is looked for whom they wait.
const STUCK_FOR: Duration = Duration::from_millis(100);

/// How long a thread that has nothing to do waits for more: to make one takes longer than most calls.
const LINGER: Duration = Duration::from_millis(20);

/// Where calls go that may wait for one process.
#[derive(Clone, Debug)]
pub struct BlockingCalls(Arc<Queue>);

struct Queue {
    process: u32,
    /// When that process began: one that has its id later has another.
    started: Option<u64>,
    maker: Maker,
    state: Mutex<State>,
    /// For the thread, where it has nothing to do.
    news: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<BlockingJob>,
    has_thread: bool,
    /// When the call began that is under way.
    begun: Option<Instant>,
}

/// When the process with this id was started, by the kernel's clock.
fn start_of(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The state follows the name, which is in brackets and may contain anything; the start is 19 words further.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Those of all processes that anybody has a part in.
struct Table {
    maker: Maker,
    queues: Mutex<BTreeMap<u32, Weak<Queue>>>,
}

/// A forked child makes one of its own: a fork may have caught the lock of its parent's.
static ALL: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

impl Table {
    fn of_this_process() -> &'static Self {
        // SYNC blocking-table: pairs with the exchange below: whoever finds a table finds it whole.
        let found = ALL.load(Ordering::Acquire);
        // SAFETY: null, or made below and never freed.
        if let Some(table) = unsafe { found.as_ref() }.filter(|table| !table.maker.is_ancestor()) {
            return table;
        }
        let fresh: &'static Self = Box::leak(Box::new(Self { maker: Maker::this_process(), queues: Mutex::default() }));
        // SYNC blocking-table: pairs with the load above.
        match ALL.compare_exchange(found, ptr::from_ref(fresh).cast_mut(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // SAFETY: another thread of this process has made it, and it is never freed.
            Err(other) => unsafe { &*other },
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("process", &self.process).finish_non_exhaustive()
    }
}

impl BlockingCalls {
    /// That of the process with this id; zero: of one whose id is not known, and who shares it with nobody.
    pub fn of(process: u32) -> Self {
        let make = |started| {
            let (maker, state, news) = (Maker::this_process(), Mutex::default(), Condvar::new());
            Arc::new(Queue { process, started, maker, state, news })
        };
        if process == 0 {
            return Self(make(None));
        }
        let mut all = Table::of_this_process().queues.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&process).and_then(Weak::upgrade).filter(|queue| !queue.maker.is_ancestor());
        let queue = known.filter(|queue| !queue.is_of_another()).unwrap_or_else(|| {
            all.retain(|_, queue| queue.strong_count() > 0);
            let queue = make(start_of(process));
            all.insert(process, Arc::downgrade(&queue));
            queue
        });
        Self(queue)
    }

    /// Has it done in the order in which it is asked for. Where the system gives no thread it is done when there is one for a later call.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_job(BlockingJob::once(job));
    }

    /// As [`BlockingCalls::run`].
    pub fn run_job(&self, job: BlockingJob) {
        // The threads are the parent's, and so is what the call would end.
        if self.0.maker.is_ancestor() {
            return job.run();
        }
        let mut state = self.0.state();
        state.jobs.push_back(job);
        if state.has_thread {
            return self.0.news.notify_one();
        }
        let queue = Arc::clone(&self.0);
        let thread = thread::Builder::new().name(format!("penstock-p{}", queue.process));
        match thread.spawn(move || queue.work()) {
            Ok(_) => state.has_thread = true,
            Err(error) => tracing::warn!(%error, "no thread for what may wait for a peer: it is done later"),
        }
    }

    /// Whether a call has been under way for so long.
    pub fn is_stuck(&self, time: Duration) -> bool {
        self.0.state().begun.is_some_and(|begun| begun.elapsed() > time)
    }

    /// Whether one call does not come to its end, and many wait behind it.
    pub fn is_clogged(&self) -> bool {
        let state = self.0.state();
        state.jobs.len() > CLOGGED_JOBS && state.begun.is_some_and(|begun| begun.elapsed() > CLOGGED_FOR)
    }
}

impl Drop for Queue {
    /// What found no thread is not done here, where nobody waits: it gets one more chance, and is left undone.
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.state().jobs);
        if jobs.is_empty() {
            return;
        }
        let jobs = ManuallyDrop::new(jobs);
        let all = move || ManuallyDrop::into_inner(jobs).into_iter().for_each(BlockingJob::run);
        if thread::Builder::new().spawn(all).is_err() {
            tracing::warn!("no thread for what may wait for a peer: it is never done");
        }
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process for which it is stuck is not the one that has this id now: whoever has it waits for no one else's memory.
    fn is_of_another(&self) -> bool {
        let is_stuck = self.state().begun.is_some_and(|begun| begun.elapsed() > STUCK_FOR);
        is_stuck && start_of(self.process) != self.started
    }

    fn work(&self) {
        leave_single_core();
        loop {
            let mut state = self.state();
            if state.jobs.is_empty() {
                state.begun = None;
                let waited = self.news.wait_timeout_while(state, LINGER, |state| state.jobs.is_empty());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let Some(job) = state.jobs.pop_front() else {
                state.has_thread = false;
                return;
            };
            state.begun = Some(Instant::now());
            drop(state);
            if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                tracing::error!("a call for a peer has panicked");
            }
        }
    }
}

/// Who polls is often bound to one core, and a thread made there is bound to it, too: the two would take turns by time slices. So this one goes to
/// the others of those where the system lets processes run that choose nothing, and its control group.
fn leave_single_core() {
    let Ok(inherited) = sched_getaffinity(None) else { return };
    if inherited.count() != 1 {
        return;
    }
    let Some(mut others) = sched_getaffinity(Some(Pid::INIT)).ok() else { return };
    (0..CpuSet::MAX_CPU).filter(|&core| inherited.is_set(core)).for_each(|core| others.unset(core));
    if others.count() == 0 {
        return;
    }
    if let Err(error) = sched_setaffinity(None, &others) {
        tracing::debug!(%error, "a thread for a peer's calls stays on the core of who began it");
    }
}

/// A descriptor that another process has passed. To close it may take as long as that process likes (a socket that lingers, a file that it
/// serves itself), or as long as it takes to free what was behind it.
#[derive(Debug)]
pub struct PassedFd {
    /// Taken when it goes.
    fd: Option<OwnedFd>,
    blocking: BlockingCalls,
    /// Until it is closed.
    share: Option<Arc<BudgetShare>>,
}

impl PassedFd {
    /// One that came from whom these calls may wait for.
    pub fn new(fd: OwnedFd, blocking: &BlockingCalls) -> Self {
        Self { fd: Some(fd), blocking: blocking.clone(), share: None }
    }

    /// It counts in a budget until it is closed.
    pub fn counted(mut self, share: Arc<BudgetShare>) -> Self {
        self.share = Some(share);
        self
    }

    /// The same if it is a memory file, which its owner cannot make wait, and small enough to be freed soon.
    pub fn into_memfd(mut self) -> Result<OwnedFd, MemoryError> {
        if memfd::bytes_of(self.as_fd())? > SOON_FREED_BYTES {
            return Err(MemoryError::WrongSize { expected: SOON_FREED_BYTES, found: memfd::bytes_of(self.as_fd())? });
        }
        Ok(self.fd.take().expect("it is here until it goes"))
    }

    /// Whether it came to a process of which this one is a fork, which shares it.
    pub fn is_inherited(&self) -> bool {
        self.blocking.0.maker.is_ancestor()
    }

    /// Whether it is a memory file.
    pub fn is_memfd(&self) -> bool {
        memfd::bytes_of(self.as_fd()).is_ok()
    }

    /// A second descriptor, of a memory file: of any other it may take as long to close this one as to close the last.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is here until it goes").as_fd()
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let share = self.share.take();
            self.blocking.run(move || {
                drop(fd);
                drop(share);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn calls_of_a_process_wait_for_each_other_and_for_nobody_else() {
        let (slow, quick) = (BlockingCalls::of(1), BlockingCalls::of(2));
        let (ends, waits) = channel::<()>();
        let (said, heard) = channel();
        slow.run(move || assert!(waits.recv().is_err()));
        let behind = said.clone();
        BlockingCalls::of(1).run(move || behind.send("slow").unwrap());
        quick.run(move || said.send("quick").unwrap());
        assert_eq!(heard.recv().unwrap(), "quick");
        assert!(heard.recv_timeout(Duration::from_millis(20)).is_err());
        drop(ends);
        assert_eq!(heard.recv().unwrap(), "slow");
        slow.run(|| panic!("on purpose"));
        let (said, heard) = channel();
        slow.run(move || said.send(()).unwrap());
        heard.recv().unwrap();
    }

    #[test]
    fn who_has_the_id_of_a_dead_process_does_not_wait_for_its_calls() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (ends, waits) = channel::<()>();
        BlockingCalls::of(child.id()).run(move || assert!(waits.recv().is_err()));
        thread::sleep(2 * STUCK_FOR);
        assert!(BlockingCalls::of(child.id()).is_stuck(STUCK_FOR), "it lives, and its calls wait for each other");
        child.kill().unwrap();
        child.wait().unwrap();
        let next = BlockingCalls::of(child.id());
        assert!(!next.is_stuck(Duration::ZERO));
        let (said, heard) = channel();
        next.run(move || said.send(()).unwrap());
        heard.recv().unwrap();
        drop(ends);
    }

    #[test]
    fn whoever_drops_what_lingers_does_not_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut there = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[1; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
        let passed = PassedFd::new(stream.into(), &BlockingCalls::of(3));
        let begun = Instant::now();
        drop(passed);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        // What lingers is let go.
        there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).unwrap();
    }

    #[test]
    fn only_small_memory_files_are_closed_where_they_are() {
        let passed = |fd: OwnedFd| PassedFd::new(fd, &BlockingCalls::of(4));
        let memory = |bytes| memfd::create("penstock-passed", bytes, false, "a test").unwrap();
        assert!(passed(memory(4096)).into_memfd().is_ok());
        assert!(matches!(passed(memory(1 << 30)).into_memfd(), Err(MemoryError::WrongSize { .. })));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(passed(file.into()).into_memfd(), Err(MemoryError::NotAMemfd)));
    }
}
