//! Telling the other engine what to do, wherever it runs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::command::{Command, Reply};
use crate::setting::Place;
use crate::{skip, target};

/// The signals of a process that reaches for memory that is gone, and of one that is killed.
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;

/// How long the other side may take to end once it was told to.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// How long one command may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);

enum Line {
    Thread(Sender<Command>),
    Process(ChildStdin),
}

enum End {
    Thread(Option<JoinHandle<()>>),
    Process(Child),
}

/// A target and the way to it. Dropping it ends the target and waits for that.
pub struct Remote {
    line: Option<Line>,
    replies: Receiver<Reply>,
    end: End,
    /// Where its files are, if it may go with its peer.
    mortal_in: Option<PathBuf>,
}

/// What memif does to the process of a peer: its thread of interrupts gives the shared rings back while a worker may be in them.
const GOES_WITH_ITS_PEER: &str =
    "known: DPDK 22.11's memif took the target's process with it when its other end closed";

impl Remote {
    /// Starts a target.
    pub fn start(place: Place) -> Self {
        match place {
            Place::Here => Self::thread(),
            Place::Process(program) => Self::process(std::process::Command::new(program)),
        }
    }

    fn thread() -> Self {
        let (line, commands) = mpsc::channel();
        let (sender, replies) = mpsc::channel();
        let body = move || target::serve(&commands, |reply| drop(sender.send(reply)));
        let thread = std::thread::Builder::new().name("target".to_owned()).spawn(body);
        let thread = thread.expect("there is room for one more thread");
        Self { line: Some(Line::Thread(line)), replies, end: End::Thread(Some(thread)), mortal_in: None }
    }

    /// Starts a target in a process that somebody has prepared.
    pub fn process(mut command: std::process::Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let input = child.stdin.take().expect("its input was asked for");
        let output = BufReader::new(child.stdout.take().expect("its output was asked for"));
        let (sender, replies) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { break };
                let reply = serde_json::from_str(&line).expect("the target writes what we read");
                if sender.send(reply).is_err() {
                    break;
                }
            }
        });
        Self { line: Some(Line::Process(input)), replies, end: End::Process(child), mortal_in: None }
    }

    /// Its process may die as its peer closes, and leave files in that folder: it is told as a skip, not as a failure.
    pub fn may_go_with_its_peer(&mut self, folder: &Path) {
        self.mortal_in = Some(folder.to_owned());
    }

    /// Tells it something without waiting for the answer.
    pub fn tell(&mut self, command: Command) {
        let what = format!("{command:?}");
        let told = match self.line.as_mut().expect("the line stands until the end") {
            Line::Thread(line) => line.send(command).map_err(|error| error.to_string()),
            Line::Process(input) => {
                let mut text = serde_json::to_string(&command).expect("commands are plain data");
                text.push('\n');
                input.write_all(text.as_bytes()).map_err(|error| error.to_string())
            }
        };
        told.unwrap_or_else(|error| panic!("the target is gone and was not told {what:.200}: {error}"));
    }

    /// The next answer, if it is there.
    pub fn try_hear(&mut self) -> Option<Reply> {
        match self.replies.try_recv() {
            Ok(reply) => Some(reply),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the target ended without an answer; see its output"),
        }
    }

    /// The next answer, at most so late.
    pub fn hear(&mut self, within: Duration) -> Reply {
        self.replies.recv_timeout(within).unwrap_or_else(|error| panic!("no answer within {within:?}: {error}"))
    }

    /// Tells it something and waits for the answer.
    pub fn ask(&mut self, command: Command) -> Reply {
        self.tell(command);
        self.hear(ANSWER_MAX)
    }

    /// The id of its process, if it has one of its own.
    pub fn process_id(&self) -> Option<u32> {
        match &self.end {
            End::Thread(_) => None,
            End::Process(child) => Some(child.id()),
        }
    }

    /// Kills its process, which must be its own.
    pub fn kill(&mut self) {
        let End::Process(child) = &mut self.end else { panic!("a target in a thread cannot be killed") };
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        match self.line.take() {
            Some(Line::Thread(line)) => drop(line.send(Command::Exit)),
            // The end of its input ends it.
            Some(Line::Process(input)) => drop(input),
            None => {}
        }
        match &mut self.end {
            End::Thread(thread) => {
                let ended = thread.take().expect("only a drop takes it").join();
                assert!(ended.is_ok() || std::thread::panicking(), "the target's thread panicked");
            }
            End::Process(child) => {
                let until = Instant::now() + EXIT_MAX;
                let status = loop {
                    if let Some(status) = child.try_wait().expect("our own child can be waited for") {
                        break status;
                    }
                    if Instant::now() > until {
                        let _ = child.kill();
                        let _ = child.wait();
                        assert!(std::thread::panicking(), "the target did not end within {EXIT_MAX:?}");
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                // Only tests kill, on purpose.
                if status.success() || status.signal() == Some(SIGKILL) || std::thread::panicking() {
                    return;
                }
                let folder = self.mortal_in.take().filter(|_| matches!(status.signal(), Some(SIGBUS | SIGSEGV)));
                let folder = folder.unwrap_or_else(|| panic!("the target ended with {status}"));
                skip::report(std::thread::current().name().unwrap_or_default(), GOES_WITH_ITS_PEER);
                for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                    if file.file_name().to_string_lossy().starts_with("target-") {
                        let _ = std::fs::remove_file(file.path());
                    }
                }
            }
        }
    }
}
