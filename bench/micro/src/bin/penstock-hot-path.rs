//! `penstock-hot-path CASE ROUNDS`: what `penstock-lab guard` runs under callgrind.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use penstock_micro::Refusal;
use penstock_micro::hot::{CASES, Case, counted_rounds};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "penstock-hot-path: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints which kernels were used and how many blocks a round has, for whoever counts.
fn run() -> Result<(), Refusal> {
    let mut arguments = std::env::args().skip(1);
    let known = || CASES.map(|case| case.name).join(", ");
    let case = arguments.next().and_then(|name| Case::find(&name));
    let case = case.ok_or_else(|| format!("name one of these cases: {}", known()))?;
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok());
    let rounds = rounds.ok_or("say after the case how many rounds")?;
    let prepared = case.prepare()?;
    counted_rounds(&prepared, rounds)?;
    writeln!(std::io::stdout(), "{} {}", penstock_memory::copy::kernels().name(), case.blocks)?;
    Ok(())
}
