//! Connecting queues beside the workers.
//!
//! An adapter may have to ask its network where the peer is, and the call that connects waits for the answer: a second and more where
//! nobody answers. A worker has other rails and other peers, which must not stand still meanwhile. So a queue that is to be connected again
//! goes to a thread that lives as long as there are such queues, and comes back connected, or not. The queues of a new session go there, too,
//! all at once, and whoever joins it waits for them together. Where the system gives no thread they wait until it does, or come back with
//! why: a worker connects none itself.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::adapter::{AdapterError, ConnectParams, Connected, QueuePair};

/// Threads of one engine: a peer that does not answer holds up others that are to be connected only if there are as many more.
const THREADS_MAX: usize = 4;

/// How long the end of an engine waits for calls that are under way: they wait for the network at most twice a second.
const END_WITHIN: Duration = Duration::from_secs(3);

/// How long a queue waits for a thread where the system gives none, until it comes back with that.
const UNBEGUN_MAX: Duration = Duration::from_secs(2);

/// How soon a thread is asked for again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

pub(crate) trait Connect {
    /// Connects it, now or later. It comes back to whoever has the other end.
    fn connect(&self, job: Job);

    /// Begins with what could not be begun. Whoever looks whether a queue is back calls this as well.
    fn look(&self);
}

/// A queue that is to be connected, as long as nobody has called it back.
pub(crate) struct Job(Arc<Mutex<Option<ConnectWork>>>);

/// A queue that is being connected.
pub(crate) struct ConnectWork {
    queue: Box<dyn QueuePair>,
    connecting: ConnectParams,
    back: Sender<Back>,
}

/// A queue that comes back, and whether it is connected.
pub(crate) type Back = (Box<dyn QueuePair>, Result<Connected, AdapterError>);

/// A queue that is being connected. If nobody waits for it any more it is given back to its adapter as soon as the call has returned.
pub(crate) struct Away {
    back: Receiver<Back>,
    /// The job, until it is begun.
    unbegun: Arc<Mutex<Option<ConnectWork>>>,
}

fn take(work: &Mutex<Option<ConnectWork>>) -> Option<ConnectWork> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Job {
    pub(crate) fn new(queue: Box<dyn QueuePair>, connecting: ConnectParams) -> (Self, Away) {
        let (sender, back) = channel();
        let work = Arc::new(Mutex::new(Some(ConnectWork { queue, connecting, back: sender })));
        (Self(Arc::clone(&work)), Away { back, unbegun: work })
    }

    /// From here on it cannot be called back, unless it was already.
    pub(crate) fn begin(self) -> Option<ConnectWork> {
        take(&self.0)
    }

    /// Connects it, unless it was called back.
    pub(crate) fn run(self) {
        if let Some(work) = self.begin() {
            work.run();
        }
    }
}

impl ConnectWork {
    /// It comes back as it is.
    fn refuse(self, error: AdapterError) {
        let Self { queue, back, .. } = self;
        drop(back.send((queue, Err(error))));
    }

    /// Connects it, however long that takes.
    pub(crate) fn run(self) {
        let Self { mut queue, connecting, back } = self;
        let connected = queue.connect(&connecting);
        // Where nobody wants it any more it ends here.
        drop(back.send((queue, connected)));
    }
}

impl Away {
    /// The queue, if it is back; an error if it never comes.
    pub(crate) fn look(&self) -> Result<Option<Back>, Lost> {
        match self.back.try_recv() {
            Ok(back) => Ok(Some(back)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Lost),
        }
    }

    /// The queue as it was, if nobody has begun to connect it.
    pub(crate) fn call_back(&self) -> Option<Box<dyn QueuePair>> {
        take(&self.unbegun).map(|work| work.queue)
    }
}

/// A queue was lost while it was connected.
#[derive(Debug)]
pub(crate) struct Lost;

/// How a thread is started that connects what there is to connect.
type Start = Box<dyn Fn(Arc<Shared>) -> io::Result<()> + Send + Sync>;

/// The threads of one engine that connect queues.
pub(crate) struct Connectors {
    shared: Arc<Shared>,
    start: Start,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Queues to connect that no thread has begun, each with the moment since when it waits.
    jobs: VecDeque<(Instant, Job)>,
    threads: usize,
    /// No thread could be started, and none is asked for before then.
    again: Option<Instant>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects what there is to connect.
    fn work(&self) {
        loop {
            let job = {
                let mut inner = self.lock();
                let job = inner.jobs.pop_front();
                // Under the lock: who comes now starts another.
                inner.threads -= usize::from(job.is_none());
                job
            };
            match job {
                Some((_, job)) => job.run(),
                None => return self.ended.notify_all(),
            }
        }
    }
}

impl Default for Connectors {
    fn default() -> Self {
        Self { shared: Arc::default(), start: Box::new(start_thread) }
    }
}

fn start_thread(shared: Arc<Shared>) -> io::Result<()> {
    thread::Builder::new().name("penstock-dial".to_owned()).spawn(move || shared.work()).map(drop)
}

impl Connectors {
    /// Starts a thread if one more may do something. Where none can be had, what has waited for too long comes back.
    fn start(&self, now: Instant) {
        {
            let mut inner = self.shared.lock();
            let is_too_soon = inner.again.is_some_and(|again| now < again);
            if inner.jobs.is_empty() || inner.threads >= THREADS_MAX || is_too_soon {
                return;
            }
            inner.threads += 1;
        }
        let started = (self.start)(Arc::clone(&self.shared));
        let mut inner = self.shared.lock();
        let Err(error) = started else {
            inner.again = None;
            return;
        };
        inner.threads -= 1;
        if inner.again.replace(now + AGAIN_AFTER).is_none() {
            tracing::warn!(%error, "there is no room for a thread that connects queues: they wait for one");
        }
        // Threads that there are come to it yet.
        let is_late = |(since, _): &(Instant, Job)| *since + UNBEGUN_MAX <= now;
        let mut late = Vec::new();
        while inner.threads == 0
            && let Some((_, job)) = inner.jobs.pop_front_if(|job| is_late(job))
        {
            late.push(job);
        }
        drop(inner);
        for work in late.into_iter().filter_map(Job::begin) {
            let (adapter, mend) = ("this process".to_owned(), "allow it more threads (`ulimit -u`, `pids.max`)");
            let source = io::Error::new(error.kind(), error.to_string());
            work.refuse(AdapterError::Refused { call: "starting a thread", adapter, source, mend });
        }
    }
}

impl Connect for Connectors {
    fn connect(&self, job: Job) {
        let now = Instant::now();
        self.shared.lock().jobs.push_back((now, job));
        self.start(now);
    }

    fn look(&self) {
        // Threads that were started take all there is.
        if self.shared.lock().again.is_some() {
            self.start(Instant::now());
        }
    }
}

impl Drop for Connectors {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        let unbegun = std::mem::take(&mut inner.jobs);
        let wait = self.shared.ended.wait_timeout_while(inner, END_WITHIN, |inner| inner.threads > 0);
        if wait.is_ok_and(|(_, timeout)| timeout.timed_out()) {
            tracing::warn!("a card does not come back from connecting a queue, which ends later than its engine");
        }
        drop(unbegun);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::adapter::{Adapter, QpAddress};
    use crate::model::{ModelAdapter, ModelNetwork};

    const SLOW: Duration = Duration::from_secs(1);

    fn job(adapter: &ModelAdapter) -> (Job, Away) {
        let there = QpAddress { queue: 7, first_packet: 1, gid: [1; 16], lid: 0 };
        let connecting = ConnectParams { there, first_packet: 1, mtu: 1024, reads_there: 1, reads_here: 1, cm: None };
        Job::new(adapter.worker_cq(16, 16).unwrap().queue(8).unwrap(), connecting)
    }

    fn wait(away: &Away) -> Back {
        let since = Instant::now();
        loop {
            if let Some(back) = away.look().unwrap() {
                return back;
            }
            assert!(since.elapsed() < Duration::from_secs(5), "the queue does not come back");
            thread::yield_now();
        }
    }

    #[test]
    fn whoever_has_a_queue_connected_does_not_wait_and_gets_it_back() {
        let network = ModelNetwork::by_hand();
        let adapter = network.adapter();
        adapter.slow_connects(SLOW);
        let connectors = Connectors::default();
        let begun = Instant::now();
        let jobs: Vec<_> = (0..2 * THREADS_MAX).map(|_| job(&adapter)).collect();
        let aways: Vec<_> = jobs.into_iter().map(|(job, away)| (connectors.connect(job), away).1).collect();
        assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
        assert!(aways[0].look().unwrap().is_none());
        let queues: Vec<_> = aways.iter().map(|away| wait(away)).collect();
        assert!(queues.iter().all(|(_, connected)| connected.is_ok()));
        assert!(begun.elapsed() >= 2 * SLOW, "so many threads, two queues each");
        adapter.refuse_connects(1);
        let (job, away) = job(&adapter);
        connectors.connect(job);
        assert!(wait(&away).1.is_err());
    }

    #[test]
    fn an_engine_that_ends_leaves_no_queue_behind() {
        let network = ModelNetwork::by_hand();
        let adapter = network.adapter();
        adapter.slow_connects(SLOW);
        let connectors = Connectors::default();
        for _ in 0..2 * THREADS_MAX {
            connectors.connect(job(&adapter).0);
        }
        assert!(adapter.counts().queues > 0);
        drop(connectors);
        assert_eq!(adapter.counts().queues, 0);
    }

    #[test]
    fn a_queue_is_called_back_until_it_is_begun() {
        let network = ModelNetwork::by_hand();
        let adapter = network.adapter();
        adapter.slow_connects(SLOW);
        let connectors = Connectors::default();
        let begun = Instant::now();
        let jobs: Vec<_> = (0..THREADS_MAX + 1).map(|_| job(&adapter)).collect();
        let aways: Vec<_> = jobs.into_iter().map(|(job, away)| (connectors.connect(job), away).1).collect();
        let mut queue = aways[THREADS_MAX].call_back().expect("all threads are busy with the others");
        assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
        queue.reset().expect("it is as good as new");
        assert!(aways[THREADS_MAX].call_back().is_none() && aways[THREADS_MAX].look().is_err(), "it comes back once");
        assert!(wait(&aways[0]).1.is_ok() && aways[0].call_back().is_none(), "what was begun comes back by itself");
    }

    /// Threads of which none can be had until that is so.
    fn starved() -> (Connectors, Arc<AtomicBool>) {
        let has_room = Arc::new(AtomicBool::new(false));
        let has = Arc::clone(&has_room);
        let start = move |shared| match has.load(Ordering::Relaxed) {
            true => start_thread(shared),
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
        (Connectors { shared: Arc::default(), start: Box::new(start) }, has_room)
    }

    #[test]
    fn a_worker_connects_nothing_itself_where_no_thread_can_be_had() {
        let network = ModelNetwork::by_hand();
        let adapter = network.adapter();
        adapter.slow_connects(SLOW);
        let (connectors, has_room) = starved();
        let begun = Instant::now();
        let jobs: Vec<_> = (0..THREADS_MAX).map(|_| job(&adapter)).collect();
        let aways: Vec<_> = jobs.into_iter().map(|(job, away)| (connectors.connect(job), away).1).collect();
        connectors.look();
        assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
        assert!(aways.iter().all(|away| away.look().unwrap().is_none()), "they wait");
        assert!(aways[0].call_back().is_some(), "and nobody has begun with them");
        has_room.store(true, Ordering::Relaxed);
        thread::sleep(AGAIN_AFTER);
        connectors.look();
        assert!(aways[1..].iter().all(|away| wait(away).1.is_ok()), "the next look begins with them");
    }

    #[test]
    fn a_queue_that_has_waited_for_a_thread_for_too_long_comes_back_with_why() {
        let network = ModelNetwork::by_hand();
        let adapter = network.adapter();
        let (connectors, _) = starved();
        let (job, away) = job(&adapter);
        connectors.connect(job);
        connectors.start(Instant::now() + UNBEGUN_MAX / 2);
        assert!(away.look().unwrap().is_none());
        connectors.start(Instant::now() + UNBEGUN_MAX);
        let (mut queue, refused) = wait(&away);
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("thread") && words.contains("ulimit -u"), "{words}");
        queue.reset().expect("it is as good as new");
    }

    #[test]
    fn a_queue_that_is_lost_is_told() {
        let network = ModelNetwork::by_hand();
        let (job, away) = job(&network.adapter());
        drop(take(&job.0));
        assert!(away.look().is_err());
        let (back, unheard) = channel::<Back>();
        drop(unheard);
        let adapter = network.adapter();
        let (job, _away) = self::job(&adapter);
        job.0.lock().unwrap().as_mut().unwrap().back = back;
        job.run();
        assert_eq!(adapter.counts().queues, 0, "nobody wants it");
    }
}
