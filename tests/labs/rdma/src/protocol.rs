//! What is said between the host and the agent in the guest: lines of JSON over a virtual serial port.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often the agent says that it lives, while it has nothing else to say.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// What the host says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Run something.
    Run { id: u64, job: Job },
    /// Send a signal to what runs, and to all that it started.
    Signal { id: u64, number: i32 },
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The guest is up.
    Ready,
    /// The agent lives.
    Alive,
    /// A line that a command said.
    Line { id: u64, line: Line },
    /// A command has ended, and all that it said was passed on.
    Ended { id: u64, end: End, took_us: u64 },
}

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Whether it was said on standard error.
    pub is_error: bool,
    /// The line, without its end.
    pub text: String,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// By force: it ran past its limit.
    TooLate,
    /// It never began.
    Unstarted(String),
}

impl End {
    /// Whether it ended by itself and says that all is well.
    pub fn is_success(&self) -> bool {
        *self == Self::Status(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(number) => write!(f, "was ended by signal {number}"),
            Self::TooLate => write!(f, "was ended by force: it ran past its limit"),
            Self::Unstarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

/// A command for the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    words: Vec<String>,
    environment: Vec<(String, String)>,
    folder: Option<String>,
    limit: Duration,
}

impl Job {
    /// A program, found in the guest's `PATH` or by its path, which is the same as on the host.
    pub fn new(program: impl Into<String>) -> Self {
        Self { words: vec![program.into()], environment: Vec::new(), folder: None, limit: Duration::from_secs(60) }
    }

    /// A script for `sh`, which ends at the first command that fails.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new("sh").arguments(["-euc".to_owned(), script.into()])
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.words.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.words.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment. It inherits nothing from the host.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Where it is run; `/` otherwise.
    #[must_use]
    pub fn within_folder(mut self, folder: impl Into<String>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// How long it may take; a minute otherwise. It is ended by force after that.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long it may take.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    pub(crate) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    pub(crate) fn folder(&self) -> Option<&str> {
        self.folder.as_deref()
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}
