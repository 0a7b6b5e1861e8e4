//! Running tests and counting them. Every run ends with one line:
//! `N passed, N failed, N skipped`.

mod binaries;
mod failures;
pub(crate) mod labs;
mod packages;
mod process;
pub(crate) mod sim;
mod skips;
pub(crate) mod suite;
mod tally;

use std::process::Command;
use std::time::Duration;

use binaries::Outcome;
use skips::ThisMachine;
use tally::Tally;

/// Longest time that a command under `count` may take: a day, which is to say none.
const UNLIMITED: Duration = Duration::from_secs(86_400);

/// Runs `command`, passes its output on, and ends with the sum of the results in it.
pub(crate) fn count(command: &[String]) -> Result<bool, String> {
    let (program, arguments) = command.split_first().ok_or("count needs a command")?;
    let mut tally = Tally::default();
    let ended = process::run(Command::new(program).args(arguments), UNLIMITED, |line| {
        println!("{line}");
        tally += Tally::of_line(line).unwrap_or_default();
    })?;
    if !ended.is_success() && tally.failed == 0 {
        tally += Tally::BROKEN;
    }
    println!("{tally}");
    Ok(tally.is_good())
}

/// Lists what was skipped and why what failed did, fails what was skipped without need, and prints the last line.
fn conclude(mut outcome: Outcome, are_labs: bool) -> bool {
    for skip in &outcome.skips {
        println!("{skip}");
    }
    for failure in &outcome.failures {
        println!("{failure}");
    }
    if skips::all_required() {
        let idle = outcome.skips.iter().filter(|skip| skips::could_have_run(&skip.reason, are_labs, &ThisMachine));
        for skip in idle {
            println!("FAILED {}: skipped ({}), but it could have run here", skip.test, skip.reason);
            outcome.tally.skipped = outcome.tally.skipped.saturating_sub(1);
            outcome.tally.failed += 1;
        }
    }
    if outcome.tally == Tally::default() {
        println!("nothing was run: that is a failure too");
    }
    println!("{}", outcome.tally);
    outcome.tally.is_good()
}
