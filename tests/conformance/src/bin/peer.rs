//! The other side of a case in a process of its own: commands come in on standard input, answers go
//! out on standard output, one line of JSON each.

#![forbid(unsafe_code)]

use std::io::{BufRead, Write};
use std::sync::mpsc;

use penstock_conformance::target;

fn main() {
    let (sender, commands) = mpsc::channel();
    // A thread of its own, so that an inline engine can make progress while no command comes.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let command = serde_json::from_str(&line).expect("the test writes what this program reads");
            if sender.send(command).is_err() {
                break;
            }
        }
    });
    let mut out = std::io::stdout().lock();
    target::serve(&commands, |reply| {
        let line = serde_json::to_string(&reply).expect("answers are plain data");
        // A test that is gone reads nothing; the end of the input then ends this program.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    });
}
