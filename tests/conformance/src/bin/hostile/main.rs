//! Who works with an engine honestly, and who does not, each in a process of its own, for the lab of that name.
//!
//! ```text
//! honest NAME TRANSPORT VICTIM FOLDER   moves verified bytes until its input ends, and says how that went
//! rogue ACT VICTIM FOLDER SECONDS       does one thing that a peer must not do, for so long
//! ```

#![forbid(unsafe_code)]

mod acts;
mod honest;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["honest", name, transport, victim, folder] => honest::work(name, transport, victim, Path::new(folder)),
        ["rogue", act, victim, folder, seconds] => {
            let time = Duration::from_secs(seconds.parse().expect("a number of seconds"));
            acts::run(act, victim, Path::new(folder), time);
        }
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}
