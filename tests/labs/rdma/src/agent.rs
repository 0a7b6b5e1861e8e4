//! The part that runs inside the guest: does what the host says and passes on what comes of it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::protocol::{BEAT, End, Job, Line, Order, Word};

/// The name of the port, as QEMU gives it to the guest.
pub(crate) const PORT: &str = "penstock.agent";

/// A line that never ends is passed on in pieces of this many bytes.
const LINE_MAX: u64 = 64 << 10;

/// How long output may still come after a command has ended: something it left behind may hold the pipe.
const GRACE: Duration = Duration::from_secs(2);

/// The commands that run, each the leader of a group of its own.
type Running = Arc<Mutex<HashMap<u64, Pid>>>;

/// Runs what the host says until the host has nothing more to say.
pub fn serve() -> io::Result<()> {
    let port = open_port()?;
    let (words, queue) = mpsc::channel();
    let out = port.try_clone()?;
    std::thread::spawn(move || speak(out, &queue));
    let running = Running::default();
    // Nobody is left to be told once this fails; the reader below ends too.
    let _ = words.send(Word::Ready);
    for line in BufReader::new(port).lines() {
        match serde_json::from_str(&line?) {
            Ok(Order::Run { id, job }) => {
                // Begun here, so that a signal that comes next finds it.
                let begun = Begun { at: Instant::now(), limit: job.limit(), child: start(&job) };
                if let Ok(child) = &begun.child {
                    lock(&running).insert(id, Pid::from_child(child));
                }
                let (words, running) = (words.clone(), Arc::clone(&running));
                std::thread::spawn(move || see_through(id, begun, &words, &running));
            }
            Ok(Order::Signal { id, number }) => signal(&running, id, number),
            Err(error) => return Err(io::Error::other(format!("the host said what is no order: {error}"))),
        }
    }
    Ok(())
}

/// Finds the port among those that there are. It can be opened once only.
fn open_port() -> io::Result<File> {
    for entry in std::fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT {
            return OpenOptions::new().read(true).write(true).open(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("the machine has no port {PORT}")))
}

/// Writes what is to be said, one word a line, and now and then that the agent lives.
fn speak(mut out: File, queue: &Receiver<Word>) {
    loop {
        let word = match queue.recv_timeout(BEAT) {
            Ok(word) => word,
            Err(RecvTimeoutError::Timeout) => Word::Alive,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut line = serde_json::to_vec(&word).expect("words are plain data");
        line.push(b'\n');
        if out.write_all(&line).is_err() {
            return;
        }
    }
}

/// A command that was begun, or could not be.
struct Begun {
    at: Instant,
    limit: Duration,
    child: io::Result<Child>,
}

/// Sees one command through to its end.
fn see_through(id: u64, begun: Begun, words: &Sender<Word>, running: &Running) {
    let end = match begun.child {
        Ok(child) => attend(id, child, begun.at + begun.limit, words, running),
        Err(error) => End::Unstarted(error.to_string()),
    };
    let took_us = u64::try_from(begun.at.elapsed().as_micros()).unwrap_or(u64::MAX);
    // Without a host to tell, the guest goes off soon.
    let _ = words.send(Word::Ended { id, end, took_us });
}

fn start(job: &Job) -> io::Result<Child> {
    let (program, arguments) = job.words().split_first().ok_or_else(|| io::Error::other("an empty command"))?;
    let mut command = Command::new(program);
    command.args(arguments).envs(job.environment().iter().map(|(name, value)| (name, value)));
    command.current_dir(job.folder().unwrap_or("/"));
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

fn attend(id: u64, mut child: Child, until: Instant, words: &Sender<Word>, running: &Running) -> End {
    let pid = Pid::from_child(&child);
    let (done, readers) = mpsc::channel::<()>();
    pass_on(id, false, child.stdout.take(), words, &done);
    pass_on(id, true, child.stderr.take(), words, &done);
    drop(done);
    let mut is_late = false;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => {}
            Err(error) => break Err(error),
        }
        if !is_late && Instant::now() > until {
            is_late = true;
            kill_group(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    lock(running).remove(&id);
    // Both readers hang up at the end of the output.
    let until = Instant::now() + GRACE;
    while readers.recv_timeout(until.saturating_duration_since(Instant::now())) == Ok(()) {}
    match status {
        _ if is_late => End::TooLate,
        Ok(status) => end_of(status),
        Err(error) => End::Unstarted(format!("cannot wait for it: {error}")),
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Status(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

/// Sends the lines of a stream until it ends; says `done` by hanging up.
fn pass_on(
    id: u64,
    is_error: bool,
    stream: Option<impl Read + Send + 'static>,
    words: &Sender<Word>,
    done: &Sender<()>,
) {
    let Some(stream) = stream else { return };
    let (words, done) = (words.clone(), done.clone());
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while (&mut reader).take(LINE_MAX).read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            bytes.clear();
            if words.send(Word::Line { id, line: Line { is_error, text } }).is_err() {
                break;
            }
        }
        drop(done);
    });
}

/// A signal for what has ended already does nothing.
fn signal(running: &Running, id: u64, number: i32) {
    let pid = lock(running).get(&id).copied();
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(number)) {
        kill_group(pid, signal);
    }
}

/// The group may be gone by now, which is what was wanted.
fn kill_group(pid: Pid, signal: Signal) {
    let _ = rustix::process::kill_process_group(pid, signal);
}

fn lock(running: &Running) -> std::sync::MutexGuard<'_, HashMap<u64, Pid>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
