//! The process in which calls are tried that might kill: a filter's usual answer is a signal.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::call::{self, ANSWER, Call, MARK, Place, Refusal};

/// The first argument of a companion.
pub const ARGUMENT: &str = "__doctor-try";

/// Longer than any call takes, also on a loaded host.
const PATIENCE: Duration = Duration::from_secs(10);

/// Exit statuses of a companion from here on up are no error numbers.
const UNTRIED: u8 = 200;

/// A companion: tries the one call that its arguments name.
///
/// It ends with 0 and the answer on standard output, or with the error number.
pub fn main(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut next = || arguments.next();
    let word = next().unwrap_or_default();
    let place =
        next().and_then(|process| Some(Place { process: process.parse().ok()?, address: next()?.parse().ok()? }));
    let call = Call::ALL.into_iter().find(|call| call.as_str() == word);
    let (Some(call), Some(place)) = (call, place) else { return ExitCode::from(UNTRIED) };
    match call::make(call, place) {
        Ok(words) => match std::io::stdout().write_all(words.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(UNTRIED),
        },
        Err(Refusal::Errno(number)) => ExitCode::from(u8::try_from(number).unwrap_or(UNTRIED)),
        Err(Refusal::Killed(_) | Refusal::Untried(_)) => ExitCode::from(UNTRIED),
    }
}

/// Has a call tried by a companion.
pub(super) fn try_call(program: &Path, call: Call) -> Result<String, Refusal> {
    // Lives until the companion has ended, which may write it.
    let word = Box::new(AtomicU64::new(MARK));
    let address = word.as_ptr() as u64;
    let mut command = Command::new(program);
    command.args([ARGUMENT, call.as_str(), &std::process::id().to_string(), &address.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let untried = |what: &str, error: std::io::Error| Refusal::Untried(format!("{what} ({error})"));
    let mut child = command.spawn().map_err(|error| untried("no other process could be started", error))?;
    let status = wait(&mut child).map_err(|error| untried("the other process was lost", error))?;
    let Some(status) = status else { return Err(Refusal::Untried("it did not end in time".to_owned())) };
    if call == Call::CopyOther && status.success() && word.load(Ordering::Relaxed) != ANSWER {
        return Err(Refusal::Untried("the other process wrote, but nothing arrived".to_owned()));
    }
    let mut words = String::new();
    if let Some(mut out) = child.stdout.take() {
        // An answer is a few bytes, which the pipe holds; what cannot be read is missed by whoever wants it.
        let _ = out.read_to_string(&mut words);
    }
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(words),
        (Some(code), _) if code < i32::from(UNTRIED) => Err(Refusal::Errno(code)),
        (_, Some(signal)) => Err(Refusal::Killed(signal)),
        _ => Err(Refusal::Untried("the other process could not try it".to_owned())),
    }
}

fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
