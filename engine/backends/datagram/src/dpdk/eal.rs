//! DPDK's environment, which a process starts once, and keeps.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use std::{fs, thread};

use penstock_dpdk_shim::Shim;
use penstock_memory::fork::Starter;

use super::{DpdkError, DpdkOptions};

/// Lines of DPDK's log that are errors or worse.
const ERROR_LEVEL: u32 = 4;
/// So many lines of errors are kept for whoever reports what has failed.
const LINES_KEPT: usize = 4;

/// What af_packet's driver says where another socket of this host has the number that it gives its own. It is tried again for
/// a moment.
const FANOUT: &str = "PACKET_FANOUT";
const FANOUT_TRIES: u32 = 5;
const FANOUT_AGAIN: Duration = Duration::from_millis(20);

/// DPDK, as this process runs it.
pub(super) struct Eal {
    pub(super) shim: &'static Shim,
    /// Ports that are open. It is held while one is added or taken out: DPDK does one of these at a time.
    ports: Mutex<Vec<u16>>,
}

/// How DPDK was started, and what came of it: it starts once.
struct Started {
    arguments: Vec<String>,
    result: Result<&'static Eal, String>,
}

static STARTER: Starter = Starter::new();
static STARTED: Mutex<Option<Started>> = Mutex::new(None);
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line of DPDK's log.
///
/// # Safety
///
/// There are so many bytes at `line`.
unsafe extern "C" fn log_line(level: u32, line: *const c_char, bytes: u32) {
    // SAFETY: the caller promises it.
    let line = unsafe { std::slice::from_raw_parts(line.cast::<u8>(), bytes as usize) };
    let line = String::from_utf8_lossy(line);
    let line = line.trim();
    match level {
        ..=ERROR_LEVEL => {
            // Much of it is not: it looks for what need not be there. What has failed is reported with these lines.
            let mut errors = lock(&ERRORS);
            if errors.last().is_some_and(|last| last == line) {
                return;
            }
            tracing::info!("DPDK: {line}");
            if errors.len() == LINES_KEPT {
                errors.remove(0);
            }
            errors.push(line.to_owned());
        }
        _ => tracing::debug!("DPDK: {line}"),
    }
}

/// What DPDK has said since this was asked last, with the words of what it has answered.
pub(super) fn words(shim: &Shim, answered: c_int) -> String {
    let errors = std::mem::take(&mut *lock(&ERRORS));
    let number = shim.words(answered);
    if errors.is_empty() { number } else { format!("{number}; DPDK says: {}", errors.join("; ")) }
}

/// What DPDK has said before is not about what follows.
fn forget_words() {
    lock(&ERRORS).clear();
}

/// Starts DPDK as these options have it, or answers what this process runs already.
pub(super) fn start(options: &DpdkOptions) -> Result<&'static Eal, DpdkError> {
    options.check_arguments()?;
    let (shim, arguments) = (Shim::find()?, options.arguments());
    if !STARTER.claim() {
        return Err(DpdkError::Forked);
    }
    let mut started = lock(&STARTED);
    let failed = |arguments: &[String], words| DpdkError::Start { arguments: arguments.join(" "), words };
    if let Some(Started { arguments: running, result }) = &*started {
        return match result {
            Err(words) => Err(failed(running, format!("{words}; it is not tried again in this process"))),
            Ok(eal) if *running == arguments => Ok(eal),
            Ok(_) => Err(DpdkError::OtherArguments { running: running.join(" "), wanted: arguments.join(" ") }),
        };
    }
    forget_words();
    let (said, heard) = mpsc::channel();
    let its = arguments.clone();
    let run = move || {
        let answered = start_here(shim, &its);
        let _ = said.send(answered);
        // DPDK takes this thread for its first one.
        if answered >= 0 {
            loop {
                thread::park();
            }
        }
    };
    thread::Builder::new().name("penstock-dpdk".to_owned()).spawn(run).map_err(DpdkError::Thread)?;
    let answered = heard.recv().unwrap_or(-libc::EIO);
    let eal = || &*Box::leak(Box::new(Eal { shim, ports: Mutex::new(Vec::new()) }));
    let result = if answered < 0 { Err(words(shim, answered)) } else { Ok(eal()) };
    let answer = result.clone().map_err(|words| failed(&arguments, words));
    *started = Some(Started { arguments, result });
    answer
}

fn start_here(shim: &Shim, arguments: &[String]) -> c_int {
    let c_string = |text: &str| CString::new(text).map(CString::into_raw).ok();
    let prefix = format!("penstock-{}", std::process::id());
    // DPDK would start a thread for each processor; its first one may run on all.
    let usual = [
        "penstock".to_owned(),
        format!("--lcores=0@({})", processors().join(",")),
        format!("--file-prefix={prefix}"),
        "--no-telemetry".to_owned(),
    ];
    let texts = usual.iter().chain(arguments).map(String::as_str);
    let Some(mut pointers) = texts.map(c_string).collect::<Option<Vec<_>>>() else { return -libc::EINVAL };
    let count = pointers.len() as c_int;
    pointers.push(std::ptr::null_mut());
    // DPDK may keep them.
    let pointers = Box::leak(pointers.into_boxed_slice());
    // SAFETY: these are C strings that stay, with a null behind them; nobody else starts DPDK meanwhile.
    let answered = unsafe { shim.penstock_dpdk_start(count, pointers.as_mut_ptr(), log_line) };
    // Nothing is kept in the folder that DPDK makes for this process, and it would stay.
    let runtime = std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/tmp".to_owned());
    for folder in ["/var/run", runtime.as_str()] {
        let _ = fs::remove_dir(format!("{folder}/dpdk/{prefix}"));
    }
    answered
}

/// The processors that this process may run on.
fn processors() -> Vec<String> {
    let all = rustix::thread::sched_getaffinity(None);
    let may = |&processor: &usize| all.as_ref().is_ok_and(|all| all.is_set(processor));
    let mut may: Vec<String> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(may).map(|processor| processor.to_string()).collect();
    if may.is_empty() {
        may.push("0".to_owned());
    }
    may
}

impl Eal {
    /// Adds a device with so many queue pairs and has its port opened, alone. A port that is not opened goes.
    pub(super) fn add<T>(
        &self,
        device: &str,
        queues: u16,
        open: impl FnOnce(u16) -> Result<T, DpdkError>,
    ) -> Result<T, DpdkError> {
        let mut ports = lock(&self.ports);
        forget_words();
        let failed = |words| DpdkError::Device { device: device.to_owned(), words };
        let text = CString::new(device).map_err(|_| failed(words(self.shim, -libc::EINVAL)))?;
        let mut tries = 0;
        let port = loop {
            // SAFETY: DPDK runs, and this is a C string.
            let answered = unsafe { self.shim.penstock_dpdk_add(text.as_ptr(), queues) };
            if let Ok(port) = u16::try_from(answered) {
                break port;
            }
            let words = words(self.shim, answered);
            tries += 1;
            if tries == FANOUT_TRIES || !words.contains(FANOUT) {
                return Err(failed(words));
            }
            thread::sleep(FANOUT_AGAIN);
        };
        if ports.contains(&port) {
            return Err(DpdkError::InUse { device: device.to_owned() });
        }
        let opened = open(port);
        match opened {
            Ok(_) => ports.push(port),
            Err(_) => self.close(port),
        }
        opened
    }

    /// Takes out a port of which nothing is used any more.
    pub(super) fn remove(&self, port: u16) {
        if self.is_here() {
            let mut ports = lock(&self.ports);
            self.close(port);
            ports.retain(|open| *open != port);
        }
    }

    fn close(&self, port: u16) {
        // SAFETY: it was added, and nobody has a queue of it any more.
        let answered = unsafe { self.shim.penstock_dpdk_close(port) };
        if answered < 0 {
            tracing::warn!(port, why = self.shim.words(answered), "a device of DPDK was not taken out");
        }
    }

    /// Whether this process has started DPDK itself. What a fork has of it is its parent's.
    pub(super) fn is_here(&self) -> bool {
        STARTER.is_this_process()
    }
}

/// What this thread is to DPDK: its own buffers are kept for it until it ends.
struct Entered(&'static Shim);

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: this thread has entered.
        unsafe { self.0.penstock_dpdk_leave() };
    }
}

/// This thread is about to move packets.
pub(super) fn enter(shim: &'static Shim) {
    thread_local! {
        static ENTERED: std::cell::OnceCell<Option<Entered>> = const { std::cell::OnceCell::new() };
    }
    // A thread that ends has nothing to keep any more.
    let _ = ENTERED.try_with(|entered| {
        entered.get_or_init(|| {
            // SAFETY: DPDK runs.
            let answered = unsafe { shim.penstock_dpdk_enter() };
            if answered < 0 {
                tracing::warn!(why = shim.words(answered), "DPDK keeps no buffers for a thread: each burst costs more");
            }
            (answered >= 0).then_some(Entered(shim))
        });
    });
}
