//! A guest as the host sees it: booted, given commands, and noticed when it dies.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::image::Image;
use crate::protocol::{End, Job, Line, Order, Word};
use crate::{LabError, host, qemu};

/// Longest time from power on to an agent that speaks, on a machine that has other things to do.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// A guest that is silent for so long is dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// What a command may take beyond its own limit before the guest is at fault.
const SLACK: Duration = Duration::from_secs(30);

/// Longest time from the word to the end of a machine.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Lines of the console that are kept.
const CONSOLE_LINES: usize = 60;

/// Lines of a command's output that an error shows.
const SHOWN_LINES: usize = 40;

/// What to boot.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) processors: u32,
    pub(crate) memory_mib: u32,
    pub(crate) wire: Option<Wire>,
    pub(crate) shows_console: bool,
    pub(crate) boot_limit: Duration,
    pub(crate) silence_limit: Duration,
}

/// One end of a wire between two guests.
#[derive(Debug, Clone)]
pub struct Wire {
    /// Where the two meet.
    pub socket: PathBuf,
    /// Whether this end waits for the other one; it is booted first.
    pub listens: bool,
    /// Tells the two ends apart.
    pub number: u8,
}

impl Machine {
    /// A machine of two processors and 4 GiB. `program` is `penstock-guest`, which supervises the machine and is its
    /// agent.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let (name, program) = (name.into(), program.into());
        let (boot_limit, silence_limit) = (BOOT_LIMIT, SILENCE_LIMIT);
        let (processors, memory_mib, wire, shows_console) = (2, 4096, None, false);
        Self { name, program, processors, memory_mib, wire, shows_console, boot_limit, silence_limit }
    }

    /// How long it may take until its agent speaks; three minutes otherwise.
    #[must_use]
    pub fn boots_within(mut self, limit: Duration) -> Self {
        self.boot_limit = limit;
        self
    }

    /// How long its agent, which speaks every second, may be silent before it is taken for dead; a minute otherwise.
    #[must_use]
    pub fn silent_for(mut self, limit: Duration) -> Self {
        self.silence_limit = limit;
        self
    }

    /// How many processors it has.
    #[must_use]
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// How much memory it has.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Connects it to another guest.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = Some(wire);
        self
    }

    /// Whether its console is copied to standard error.
    #[must_use]
    pub fn shows_console(mut self, shows: bool) -> Self {
        self.shows_console = shows;
        self
    }
}

/// A running guest. Dropping it ends it.
pub struct Guest {
    supervisor: Mutex<Child>,
    orders: Mutex<ChildStdin>,
    shared: Arc<Shared>,
    /// Its name.
    pub name: String,
    /// What it has booted.
    pub image: Image,
    /// From power on to an agent that speaks.
    pub booted_in: Duration,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("name", &self.name).field("image", &self.image).finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    silence_limit: Duration,
}

struct State {
    is_ready: bool,
    /// Why the guest is not there any more.
    death: Option<String>,
    heard: Instant,
    console: VecDeque<String>,
    next: u64,
    commands: HashMap<u64, Progress>,
    /// How many of its two streams are still read.
    streams: usize,
}

impl Default for State {
    fn default() -> Self {
        let (console, commands) = (VecDeque::new(), HashMap::new());
        Self { is_ready: false, death: None, heard: Instant::now(), console, next: 1, commands, streams: 2 }
    }
}

/// What has come of a command so far.
#[derive(Debug, Default)]
struct Progress {
    lines: Vec<Line>,
    end: Option<(End, Duration)>,
}

/// A command that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How.
    pub end: End,
    /// What it said on both streams, in the order of arrival.
    pub lines: Vec<Line>,
    /// How long it took, by the guest's clock.
    pub took: Duration,
}

impl Finished {
    /// What it said on standard output.
    pub fn output(&self) -> String {
        let lines = self.lines.iter().filter(|line| !line.is_error);
        lines.fold(String::new(), |text, line| text + &line.text + "\n")
    }
}

impl Guest {
    /// Boots a machine, within a deadline. Its image is made first if there is none.
    pub fn boot(machine: &Machine) -> Result<Self, LabError> {
        Self::boot_with(machine, &|_| ())
    }

    /// The same, telling `progress` what takes time.
    pub fn boot_with(machine: &Machine, progress: &dyn Fn(&str)) -> Result<Self, LabError> {
        let image = Image::provide(progress)?;
        let started = Instant::now();
        let mut command = qemu::command(&machine.program, machine, &image)?;
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut supervisor = spawned.map_err(LabError::file("run", &machine.program))?;
        let (Some(orders), Some(words), Some(console)) =
            (supervisor.stdin.take(), supervisor.stdout.take(), supervisor.stderr.take())
        else {
            unreachable!("all three streams were asked for");
        };
        let (state, changed, silence_limit) = (Mutex::default(), Condvar::new(), machine.silence_limit);
        let shared = Arc::new(Shared { state, changed, silence_limit });
        let (for_words, for_console) = (Arc::clone(&shared), Arc::clone(&shared));
        let copies = machine.shows_console.then(|| machine.name.clone());
        std::thread::spawn(move || for_words.hear(words));
        std::thread::spawn(move || for_console.watch(console, copies.as_deref()));
        let (orders, supervisor, booted_in) = (Mutex::new(orders), Mutex::new(supervisor), Duration::ZERO);
        let mut guest = Self { supervisor, orders, shared, name: machine.name.clone(), image, booted_in };
        let limit = machine.boot_limit;
        let what = format!("booting {}", guest.name);
        guest.shared.wait(&what, started + limit, limit, |state| state.is_ready.then_some(()), State::console)?;
        guest.booted_in = started.elapsed();
        progress(&format!("{} is up after {:.1} s", guest.name, guest.booted_in.as_secs_f64()));
        Ok(guest)
    }

    /// Starts a command.
    pub fn spawn(&self, job: &Job) -> Result<Running<'_>, LabError> {
        let id = {
            let mut state = self.shared.lock();
            let id = state.next;
            state.next += 1;
            state.commands.insert(id, Progress::default());
            id
        };
        let running = Running {
            guest: self,
            id,
            words: job.to_string(),
            until: Instant::now() + job.limit(),
            limit: job.limit(),
        };
        self.say(&Order::Run { id, job: job.clone() }, &running.words)?;
        Ok(running)
    }

    /// Runs a command to its end, whatever that is.
    pub fn run(&self, job: &Job) -> Result<Finished, LabError> {
        self.spawn(job)?.wait()
    }

    /// Runs a command that has to end well, and gives its output.
    pub fn check(&self, job: &Job) -> Result<String, LabError> {
        let finished = self.run(job)?;
        finished.expect_success(&job.to_string()).map(|finished| finished.output())
    }

    /// Ends the machine at once, as when the power fails.
    pub fn power_off(&self) {
        // The supervisor ends the machine, and the end of the machine ends its streams.
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        host::signal(supervisor.id(), Signal::TERM);
        let until = Instant::now() + END_LIMIT;
        while matches!(supervisor.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // One that does not listen takes the machine with it all the same. Both may have ended, which is as good.
        let _ = supervisor.kill();
        let _ = supervisor.wait();
        let mut state = self.shared.lock();
        while state.streams > 0 && Instant::now() < until {
            let waited = self.shared.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Why it is not there any more, if it is not.
    pub fn death(&self) -> Option<String> {
        self.shared.lock().why_dead(self.shared.silence_limit)
    }

    fn say(&self, order: &Order, during: &str) -> Result<(), LabError> {
        let mut line = serde_json::to_vec(order).expect("orders are plain data");
        line.push(b'\n');
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.write_all(&line).and_then(|()| orders.flush()).map_err(|error| {
            let state = self.shared.lock();
            let why = state.death.clone().unwrap_or_else(|| format!("it cannot be told anything: {error}"));
            LabError::Died { when: during.to_owned(), why, console: state.console() }
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.power_off();
    }
}

impl Finished {
    /// Itself, if it ended well.
    pub fn expect_success(self, command: &str) -> Result<Self, LabError> {
        if self.end.is_success() {
            return Ok(self);
        }
        Err(LabError::Command { command: command.to_owned(), how: self.end.to_string(), said: last(&self.lines) })
    }
}

/// A command that runs in a guest. Dropping this ends it, with all that it has started.
#[derive(Debug)]
pub struct Running<'g> {
    guest: &'g Guest,
    id: u64,
    words: String,
    until: Instant,
    limit: Duration,
}

impl Running<'_> {
    /// Waits for its end.
    pub fn wait(self) -> Result<Finished, LabError> {
        self.follow(|_| ())
    }

    /// Waits for its end, showing each line as it comes.
    pub fn follow(self, mut show: impl FnMut(&Line)) -> Result<Finished, LabError> {
        let mut shown = 0;
        let shared = &self.guest.shared;
        loop {
            let (lines, ended) = shared.wait(
                &self.words,
                self.until + SLACK,
                self.limit,
                |state| {
                    let progress = state.commands.get_mut(&self.id)?;
                    let news = progress.lines.get(shown..).unwrap_or_default().to_vec();
                    (!news.is_empty() || progress.end.is_some()).then(|| (news, progress.end.clone()))
                },
                |state| state.commands.get(&self.id).map_or_else(String::new, |progress| last(&progress.lines)),
            )?;
            shown += lines.len();
            lines.iter().for_each(&mut show);
            if let Some((end, took)) = ended {
                let progress = shared.lock().commands.remove(&self.id).unwrap_or_default();
                return Ok(Finished { end, lines: progress.lines, took });
            }
        }
    }

    /// Waits for a line with these words in it.
    pub fn wait_for(&self, words: &str, within: Duration) -> Result<Line, LabError> {
        let what = format!("`{}` to say \"{words}\"", self.words);
        let found = self.guest.shared.wait(
            &what,
            Instant::now() + within,
            within,
            |state| {
                let progress = state.commands.get(&self.id)?;
                match progress.lines.iter().find(|line| line.text.contains(words)) {
                    Some(line) => Some(Ok(line.clone())),
                    None => progress.end.as_ref().map(|(end, _)| Err((end.to_string(), last(&progress.lines)))),
                }
            },
            |state| state.commands.get(&self.id).map_or_else(String::new, |progress| last(&progress.lines)),
        )?;
        found.map_err(|(how, said)| LabError::Command { command: what, how, said })
    }

    /// Sends a signal to it and to all that it has started.
    pub fn signal(&self, number: i32) -> Result<(), LabError> {
        self.guest.say(&Order::Signal { id: self.id, number }, &self.words)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let is_known = self.guest.shared.lock().commands.remove(&self.id).is_some();
        if is_known {
            // A guest that is gone has ended it.
            let _ = self.signal(Signal::KILL.as_raw());
        }
    }
}

/// The end of what was said, for an error.
pub(crate) fn last(lines: &[Line]) -> String {
    let from = lines.len().saturating_sub(SHOWN_LINES);
    let shown: Vec<&str> = lines[from..].iter().map(|line| line.text.as_str()).collect();
    shown.join("\n")
}

impl State {
    fn console(&self) -> String {
        self.console.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Why it is dead, if it is.
    fn why_dead(&self, silence_limit: Duration) -> Option<String> {
        let silent = self.heard.elapsed();
        let is_silent = self.is_ready && silent > silence_limit;
        self.death.clone().or_else(|| is_silent.then(|| format!("it has said nothing for {silent:.0?}")))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `find` finds something, the guest dies or it is too late. What came before a death still counts.
    fn wait<T>(
        &self,
        what: &str,
        until: Instant,
        limit: Duration,
        mut find: impl FnMut(&mut State) -> Option<T>,
        so_far: impl Fn(&State) -> String,
    ) -> Result<T, LabError> {
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            if let Some(why) = state.why_dead(self.silence_limit) {
                return Err(LabError::Died { when: what.to_owned(), why, console: state.console() });
            }
            if Instant::now() >= until {
                return Err(LabError::TooLate { what: what.to_owned(), limit, so_far: so_far(&state) });
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(200));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads what the agent says until the machine is gone.
    fn hear(&self, words: impl Read) {
        let mut why = "the machine went off".to_owned();
        for line in BufReader::new(words).lines() {
            let word = line.map_err(|error| error.to_string());
            let word =
                word.and_then(|line| serde_json::from_str(&line).map_err(|error| format!("{error} in {line:?}")));
            match word {
                Ok(word) => self.take(word),
                Err(error) => {
                    why = format!("its agent said what is no word: {error}");
                    break;
                }
            }
        }
        let mut state = self.lock();
        state.death.get_or_insert(why);
        state.streams -= 1;
        drop(state);
        self.changed.notify_all();
    }

    fn take(&self, word: Word) {
        let mut state = self.lock();
        state.heard = Instant::now();
        match word {
            Word::Ready => state.is_ready = true,
            Word::Alive => {}
            Word::Line { id, line } => {
                if let Some(progress) = state.commands.get_mut(&id) {
                    progress.lines.push(line);
                }
            }
            Word::Ended { id, end, took_us } => {
                if let Some(progress) = state.commands.get_mut(&id) {
                    progress.end = Some((end, Duration::from_micros(took_us)));
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Keeps the end of the console, which is what a machine that dies has to say.
    #[allow(clippy::print_stderr, reason = "the console is shown to who asked for it")]
    fn watch(&self, console: impl Read, copies: Option<&str>) {
        let mut reader = BufReader::new(console);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            if let Some(name) = copies {
                eprintln!("[{name}] {text}");
            }
            let mut state = self.lock();
            if state.console.len() == CONSOLE_LINES {
                state.console.pop_front();
            }
            state.console.push_back(text);
        }
        self.lock().streams -= 1;
        self.changed.notify_all();
    }
}
