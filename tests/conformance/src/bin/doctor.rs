//! What `penstock doctor --json` does, for labs: they are built without the command.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use penstock::Config;
use penstock_doctor::host::{COMPANION_ARGUMENT, companion_main};
use penstock_doctor::{Host, Topic, examine};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq(COMPANION_ARGUMENT).is_some() {
        return companion_main(arguments);
    }
    let topics: Vec<Topic> =
        arguments.map(|word| Topic::find(&word).expect("labs name topics that there are")).collect();
    let host = Host::this(std::env::current_exe().ok(), &Config::default());
    let report = examine(&host, &topics);
    let text = serde_json::to_string(&report).expect("reports are plain data");
    // A lab that is gone reads nothing.
    let _ = writeln!(std::io::stdout(), "{text}");
    if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
