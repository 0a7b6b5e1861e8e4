//! Programs that are run to their end, within a limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What a program left when it ended.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub output: String,
    /// What it wrote to its standard error.
    pub complaints: String,
}

/// Why a program has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// It could not be started or watched.
    Refused { program: String, source: std::io::Error },
    /// It ran past its limit and was ended.
    TooLate {
        /// Its name.
        program: String,
        /// The limit.
        limit: Duration,
    },
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { program, source } => write!(f, "cannot run {program}: {source}"),
            Self::TooLate { program, limit } => {
                write!(f, "{program} ran for more than {} s and was ended; is the machine overloaded?", limit.as_secs())
            }
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::TooLate { .. } => None,
        }
    }
}

/// Runs a command to its end, without input. One that does not end within `limit` is ended.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended, RunError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let refused = |source| RunError::Refused { program: program.clone(), source };
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(refused)?;
    let (output, complaints) = (gather(child.stdout.take()), gather(child.stderr.take()));
    let waited = wait(&mut child, limit);
    if !matches!(waited, Ok(Some(_))) {
        // Only this program, by its own handle; the kill fails where it has just ended.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = |reader: Option<JoinHandle<String>>| reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    match waited.map_err(|source| RunError::Refused { program: program.clone(), source })? {
        Some(status) => Ok(Ended { status, output: text(output), complaints: text(complaints) }),
        None => Err(RunError::TooLate { program, limit }),
    }
}

fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads a stream to its end beside the program, so that a full pipe never stops it.
fn gather(stream: Option<impl Read + Send + 'static>) -> Option<JoinHandle<String>> {
    let mut stream = stream?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is all there is.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Ended, RunError> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn output_complaints_and_status_come_back() {
        let ended = shell("echo out; echo err >&2; exit 3", Duration::from_secs(20)).unwrap();
        assert_eq!((ended.output.as_str(), ended.complaints.as_str()), ("out\n", "err\n"));
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let ended = shell("exec sleep 60", Duration::from_millis(200));
        assert!(matches!(&ended, Err(error @ RunError::TooLate { .. }) if error.to_string().contains("sh ran")));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("no-such-command-anywhere"), Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("no-such-command-anywhere"));
    }
}
