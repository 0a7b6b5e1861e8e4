//! Runs one program, reads its output line by line, and ends it when its time is up.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long output may still come after a program has ended: a grandchild may hold its pipe open.
const GRACE: Duration = Duration::from_secs(2);

/// The same for one that goes on writing.
const TALKATIVE: Duration = Duration::from_secs(20);

/// How a program ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself, with this status.
    Itself(ExitStatus),
    /// By us, because it ran past its limit.
    TooLate(Duration),
}

impl Ended {
    /// Whether it ended by itself and says that all is well.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Itself(status) if status.success())
    }
}

/// Runs `command` for at most `limit`, handing every line of both its streams to `line`.
pub(crate) fn run(command: &mut Command, limit: Duration, mut line: impl FnMut(&str)) -> Result<Ended, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cannot run {name}: {error}"))?;
    let (sender, lines) = mpsc::channel();
    read_lines(child.stdout.take(), sender.clone());
    read_lines(child.stderr.take(), sender);
    let started = Instant::now();
    let mut ended: Option<(Ended, Instant)> = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(text) => line(&text),
            // Whoever it started may hold its output open.
            Err(RecvTimeoutError::Timeout) if ended.as_ref().is_some_and(|(_, at)| at.elapsed() > GRACE) => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_none() => std::thread::sleep(Duration::from_millis(5)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if ended.as_ref().is_some_and(|(_, at)| at.elapsed() > TALKATIVE) {
            break;
        }
        if ended.is_none() {
            ended = poll(&mut child, started, limit)?.map(|how| (how, Instant::now()));
        }
    }
    ended.map(|(how, _)| how).ok_or_else(|| format!("{name} closed its output and never ended"))
}

/// Whether the program has ended, ending it if it has run past its limit.
fn poll(child: &mut Child, started: Instant, limit: Duration) -> Result<Option<Ended>, String> {
    if let Some(status) = child.try_wait().map_err(|error| format!("cannot wait: {error}"))? {
        return Ok(Some(Ended::Itself(status)));
    }
    if started.elapsed() < limit {
        return Ok(None);
    }
    child.kill().and_then(|()| child.wait()).map_err(|error| format!("cannot end a program that hangs: {error}"))?;
    Ok(Some(Ended::TooLate(limit)))
}

/// Sends the lines of `stream` until it ends. What is not UTF-8 is replaced, not refused.
fn read_lines(stream: Option<impl Read + Send + 'static>, lines: Sender<String>) {
    let Some(stream) = stream else { return };
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string();
            bytes.clear();
            if lines.send(text).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Ended, Vec<String>) {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        let ended = run(command.args(["-c", script]), limit, |line| lines.push(line.to_string()));
        (ended.expect("sh is there"), lines)
    }

    #[test]
    fn lines_of_both_streams_and_the_status_come_back() {
        let (ended, mut lines) = shell("echo out; echo err >&2; printf 'no newline'; exit 3", Duration::from_secs(20));
        assert!(matches!(ended, Ended::Itself(status) if status.code() == Some(3)));
        assert!(!ended.is_success());
        lines.sort();
        assert_eq!(lines, ["err", "no newline", "out"]);
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let (ended, lines) = shell("echo before; exec sleep 60", Duration::from_secs(2));
        assert!(matches!(ended, Ended::TooLate(_)));
        assert_eq!(lines, ["before"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(run(&mut Command::new("no-such-command-anywhere"), Duration::from_secs(1), |_| {}).is_err());
    }
}
