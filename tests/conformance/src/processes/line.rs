//! How the two processes of a case speak with each other: lines on the child's standard input and output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::stage::PATIENCE;

/// How long a child may take to end once its case is over.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// One end of the line.
pub struct Line {
    out: Option<Box<dyn Write>>,
    heard: Receiver<String>,
    /// The other process, at the test's end.
    child: Option<Child>,
}

impl Line {
    /// Starts the other process and answers the test's end.
    pub(super) fn to(program: &str, order: &str) -> Self {
        let mut command = Command::new(program);
        command.arg(order).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program was built with the test");
        let out = child.stdin.take().expect("its input was asked for");
        let heard = lines_of(child.stdout.take().expect("its output was asked for"));
        Self { out: Some(Box::new(out)), heard, child: Some(child) }
    }

    /// The child's end.
    pub(super) fn to_the_test() -> Self {
        Self { out: Some(Box::new(std::io::stdout())), heard: lines_of(std::io::stdin()), child: None }
    }

    /// Says one line.
    pub fn say(&mut self, line: &str) {
        let out = self.out.as_mut().expect("the line stands until its end");
        writeln!(out, "{line}").and_then(|()| out.flush()).expect("the other process listens until its end");
    }

    /// The next line that the other process says.
    pub fn hear(&mut self) -> String {
        let heard = self.heard.recv_timeout(PATIENCE);
        heard.unwrap_or_else(|error| panic!("the other process says nothing ({error}); see its output"))
    }

    /// The next line, which has to be this one.
    pub fn expect(&mut self, line: &str) {
        let heard = self.hear();
        assert_eq!(heard, line, "the other process is elsewhere");
    }

    /// Tells the child that its case is over, and answers whether it has ended well.
    pub(super) fn finish(&mut self) -> bool {
        let mut child = self.child.take().expect("this is the test's end");
        self.out = None;
        let until = Instant::now() + EXIT_MAX;
        loop {
            if let Some(status) = child.try_wait().expect("it is a child of this process") {
                return status.success();
            }
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.out = None;
        // Only when the case has failed.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn lines_of(input: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, heard) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

/// Bytes as a word of a line.
pub fn to_word(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of such a word.
pub fn from_word(word: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(word.get(at..at + 2).unwrap_or("?"), 16).expect("hexadecimal digits in pairs");
    (0..word.len()).step_by(2).map(digits).collect()
}
