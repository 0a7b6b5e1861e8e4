//! Other processes, spoken to line by line.
//!
//! A child reads orders from its standard input and answers each with one line on its standard
//! output. It ends when its input does, so that no child outlives the test, however that ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a child may take to end once its input has.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How long one may take to stand still.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);

/// A process in some role of this crate's program.
#[derive(Debug)]
pub struct Child {
    process: Process,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Child {
    /// Starts `program` with these arguments.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the program was built with the test");
        let orders = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().expect("the output is piped")).lines();
        let (sender, answers) = channel();
        // Ends with the child's output, or with this handle.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, orders, answers }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id() as i32).expect("a process that was started has an id");
        kill_process(pid, signal).expect("it is this test's own child");
    }

    /// Stops it, and waits until it stands still.
    ///
    /// # Panics
    /// If it does not.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.id());
        let stands = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        let start = Instant::now();
        loop {
            let tasks = std::fs::read_dir(&tasks).expect("the child has not ended");
            let mut stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
            if stats.all(stands) {
                return;
            }
            assert!(start.elapsed() < FREEZE_WITHIN, "child {} does not stop", self.id());
            std::thread::yield_now();
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends one order.
    ///
    /// # Panics
    /// If the child is gone.
    pub fn order(&mut self, line: &str) {
        let orders = self.orders.as_mut().expect("the input is open until the end");
        writeln!(orders, "{line}").and_then(|()| orders.flush()).expect("the child reads until its input ends");
    }

    /// The next answer.
    ///
    /// # Panics
    /// If none comes in time, or the child ended.
    pub fn answer(&mut self, within: Duration) -> String {
        match self.answers.recv_timeout(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("child {} did not answer within {within:?}", self.id()),
            Err(RecvTimeoutError::Disconnected) => panic!("child {} ended: {:?}", self.id(), self.process.wait()),
        }
    }

    /// The next answer, if it is there.
    pub fn answer_now(&mut self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    /// Ends the child and expects it to end well.
    ///
    /// # Panics
    /// If it does not end in time, or not well.
    pub fn finish(mut self) {
        self.orders = None;
        let status = self.wait(END_WITHIN).unwrap_or_else(|| panic!("child {} does not end", self.id()));
        assert!(status.success(), "child {} ended badly: {status}", self.id());
    }

    fn wait(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if start.elapsed() >= within {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.orders = None;
        if self.wait(Duration::from_secs(1)).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Answers orders until the input ends: the child's side.
///
/// # Panics
/// If the test that gives the orders is gone.
pub fn obey(mut answer: impl FnMut(&str) -> String) {
    for order in std::io::stdin().lock().lines().map_while(Result::ok) {
        say(&answer(&order));
    }
}

/// Says one line without having been asked: the child's side.
///
/// # Panics
/// If the test is gone.
pub fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).expect("whoever started this child listens");
}

/// An engine's descriptor as an argument or a word of a line.
pub fn to_word(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of such a word.
pub fn from_word(word: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(word.get(at..at + 2)?, 16).ok();
    (0..word.len()).step_by(2).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_bytes() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_word(&to_word(&bytes)), Some(bytes));
        assert_eq!(from_word("0"), None);
        assert_eq!(from_word("zz"), None);
    }
}
