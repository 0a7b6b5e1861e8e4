//! What the runtime owes a transport's drivers, whoever wrote them: a thread, a wake-up, and an end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Armed, Cause, Config, Engine, NoteId, StartError, Submit, SystemEnv, Timestamp};
use penstock_memory::MemoryError;
use penstock_transport::link::Offering;
use penstock_transport::{Caps, Driver, LocalEnd, Placement, RemoteEnd, Rest, Transport, Trust};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::pairs::Folder;

/// Shorter than the longest sleep of a worker that nobody wakes, which is a second.
const PROMPT: Duration = Duration::from_millis(600);

/// What one worker's driver has seen.
#[derive(Default)]
struct Seen {
    begun: Mutex<Vec<ThreadId>>,
    ended: Mutex<Vec<ThreadId>>,
    turned: Mutex<Option<(ThreadId, Instant)>>,
    /// Looks for something in `fd`, once it was told to.
    looks: AtomicBool,
    found: AtomicUsize,
}

/// A transport that reaches nobody. It has drivers.
struct Alone {
    name: &'static str,
    seen: Arc<Seen>,
    fd: Arc<OwnedFd>,
    refuses: bool,
    /// It wants a turn so often, although nothing comes.
    every: Option<Duration>,
}

impl Alone {
    fn new(name: &'static str) -> Self {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self { name, seen: Arc::default(), fd: Arc::new(fd), refuses: false, every: None }
    }
}

impl Transport for Alone {
    fn name(&self) -> &'static str {
        self.name
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Checked,
            placement: Placement::AtCompletion,
            synchronous: false,
            ordered: true,
            multi_worker: false,
            remote_caller_memory: false,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, _: &RemoteEnd) -> Result<&'static str, &'static str> {
        Err("it reaches nobody")
    }

    fn driver(&self, _: usize) -> io::Result<Option<Box<dyn Driver>>> {
        let Self { seen, fd, refuses, every, .. } = self;
        let driver =
            AloneDriver { seen: Arc::clone(seen), fd: Arc::clone(fd), refuses: *refuses, every: *every, due: None };
        Ok(Some(Box::new(driver)))
    }

    fn offer(&self, _: LocalEnd, _: RemoteEnd) -> Result<Offering, MemoryError> {
        unreachable!("it reaches nobody")
    }
}

struct AloneDriver {
    seen: Arc<Seen>,
    fd: Arc<OwnedFd>,
    refuses: bool,
    every: Option<Duration>,
    due: Option<Timestamp>,
}

fn here() -> ThreadId {
    std::thread::current().id()
}

impl Driver for AloneDriver {
    fn begin(&mut self) -> io::Result<()> {
        self.seen.begun.lock().unwrap().push(here());
        if self.refuses { Err(io::Error::other("its device is away")) } else { Ok(()) }
    }

    fn turn(&mut self) -> bool {
        *self.seen.turned.lock().unwrap() = Some((here(), Instant::now()));
        let found = self.seen.looks.load(Ordering::Acquire) && rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok();
        self.seen.found.fetch_add(usize::from(found), Ordering::AcqRel);
        found
    }

    fn rest(&mut self, now: Timestamp) -> Rest {
        let due = self.due.filter(|&due| due > now).or(self.every.map(|every| now + every));
        self.due = due;
        Rest::Until(due.unwrap_or(Timestamp::NEVER))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn end(&mut self) {
        self.seen.ended.lock().unwrap().push(here());
    }
}

const NAMES: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

fn config(folder: &Folder, name: &str, progress: Progress) -> Config {
    Config::default().named(name).directory(&folder.0).transports([TransportName::Tcp]).progress(progress)
}

fn started(config: Config, own: Vec<Alone>) -> Result<Engine, StartError> {
    let own = own.into_iter().map(|own| Arc::new(own) as Arc<dyn Transport>).collect();
    Engine::start_with(SystemEnv, config, own)
}

fn wait_for(what: &str, within: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < within, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_driver_begins_turns_and_ends_on_one_thread_once() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let folder = Folder::new("begins");
        let own = Alone::new("own");
        let seen = Arc::clone(&own.seen);
        let engine = started(config(&folder, "a", progress).workers(1), vec![own]).unwrap();
        assert_eq!(seen.begun.lock().unwrap().len(), 1, "it has begun when the engine is there");
        wait_for("it is turned", PROMPT, || {
            engine.progress().unwrap();
            seen.turned.lock().unwrap().is_some()
        });
        assert!(seen.ended.lock().unwrap().is_empty());
        drop(engine);
        let (begun, ended) = (seen.begun.lock().unwrap().clone(), seen.ended.lock().unwrap().clone());
        let turned = seen.turned.lock().unwrap().map(|(thread, _)| thread);
        assert_eq!((begun.len(), &begun), (1, &ended));
        assert_eq!(turned, Some(begun[0]));
        assert_eq!(begun[0] == here(), progress == Progress::Inline);
    }
}

#[test]
fn an_engine_whose_driver_cannot_begin_does_not_start_and_ends_the_others() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let folder = Folder::new("refuses");
        let [first, mut second, third] = [0, 1, 2].map(|place: usize| Alone::new(NAMES[place]));
        second.refuses = true;
        let seen = [&first, &second, &third].map(|own| Arc::clone(&own.seen));
        let error = started(config(&folder, "a", progress), vec![first, second, third]).unwrap_err();
        let StartError::System { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), "its device is away");
        let counts = seen.each_ref().map(|seen| (seen.begun.lock().unwrap().len(), seen.ended.lock().unwrap().len()));
        assert_eq!(counts, [(1, 1), (1, 0), (0, 0)], "who has begun is ended");
        let again = started(config(&folder, "a", progress), Vec::new());
        again.expect("nothing of the first is in the way");
    }
}

/// However many transports there are, a worker that sleeps is woken by each of them.
#[test]
fn the_last_of_many_drivers_wakes_a_sleeping_worker() {
    let folder = Folder::new("many");
    let own: Vec<Alone> = NAMES.map(Alone::new).into();
    let (seen, fd) = own.last().map(|last| (Arc::clone(&last.seen), Arc::clone(&last.fd))).unwrap();
    let engine = started(config(&folder, "a", Progress::Adaptive).workers(1), own).unwrap();
    for round in 1..=3 {
        let sleeps = engine.statistics().sleeps;
        wait_for("the worker sleeps again", Duration::from_secs(5), || engine.statistics().sleeps > sleeps);
        std::thread::sleep(Duration::from_millis(20));
        seen.looks.store(true, Ordering::Release);
        rustix::io::write(&*fd, &1u64.to_ne_bytes()).unwrap();
        wait_for("it was not woken", PROMPT, || seen.found.load(Ordering::Acquire) == round);
    }
}

#[test]
fn an_engine_with_more_drivers_than_a_worker_waits_for_does_not_start() {
    let folder = Folder::new("too-many");
    let own = NAMES.iter().chain(&NAMES).map(|name| Alone::new(name)).collect();
    let error = started(config(&folder, "a", Progress::Adaptive), own).unwrap_err();
    assert!(error.to_string().contains("13 transports"), "{error}");
}

#[test]
fn a_worker_sleeps_no_longer_than_its_driver_lets_it() {
    const EVERY: Duration = Duration::from_millis(50);
    let folder = Folder::new("until");
    let own = Alone { every: Some(EVERY), ..Alone::new("own") };
    let seen = Arc::clone(&own.seen);
    let engine = started(config(&folder, "a", Progress::Adaptive).workers(1), vec![own]).unwrap();
    let turned = || seen.turned.lock().unwrap().map(|(_, at)| at);
    for _ in 0..5 {
        let before = turned();
        std::thread::sleep(EVERY / 2);
        wait_for("it was let sleep", PROMPT, || turned() > before);
    }
    let sleeps = engine.statistics().sleeps;
    assert!((3..1000).contains(&sleeps), "it slept {sleeps} times");
}

/// Sleeps on the event fd of an inline engine. Answers for how long, if it was woken.
fn sleep_on(engine: &Engine, at_most: Duration) -> Option<Duration> {
    while engine.arm().unwrap() == Armed::Busy {}
    let (fd, start) = (engine.event_fd(), Instant::now());
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let woken = poll(&mut fds, Some(&Timespec::try_from(at_most).unwrap())).unwrap();
    (woken > 0).then(|| start.elapsed())
}

#[test]
fn the_event_fd_of_an_inline_engine_wakes_it_for_a_driver() {
    let folder = Folder::new("inline");
    let own = Alone { every: Some(Duration::from_millis(50)), ..Alone::new("own") };
    let engine = started(config(&folder, "a", Progress::Inline), vec![own]).unwrap();
    for _ in 0..5 {
        let slept = sleep_on(&engine, Duration::from_secs(5)).expect("it is woken");
        assert!(slept < PROMPT, "{slept:?}");
        engine.progress().unwrap();
    }
}

/// Its peer says nothing: only the timer can wake the sleeper.
#[test]
fn the_event_fd_of_an_inline_engine_wakes_it_for_a_transfers_deadline() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let folder = Folder::new("deadline");
    let listening = |name| config(&folder, name, Progress::Inline).listen(["127.0.0.1:0"]);
    let [target, source] = ["target", "source"].map(|name| started(listening(name), Vec::new()).unwrap());
    let connecting = source.connect_begin(&target.descriptor()).unwrap();
    let peer = loop {
        target.progress_all().unwrap();
        source.progress_all().unwrap();
        if let Some(answer) = connecting.poll() {
            break answer.unwrap();
        }
    };
    let transfer = peer.notify(NoteId(1), b"nobody reads it", Submit::new().within(TIMEOUT)).unwrap();
    let start = Instant::now();
    let fault = loop {
        if let Some(end) = transfer.poll() {
            break end.unwrap_err();
        }
        assert!(sleep_on(&source, Duration::from_secs(5)).is_some(), "nobody has woken it");
        source.progress().unwrap();
    };
    let took = start.elapsed();
    assert_eq!(fault.cause, Cause::DeadlineExceeded);
    assert!(took >= TIMEOUT && took < TIMEOUT + PROMPT, "{took:?}");
}
