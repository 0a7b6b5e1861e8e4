//! What can be wrong with an engine under test, or with the test itself.

use std::fmt;
use std::time::Duration;

use penstock::memory::{AccessError, CopyError};
use penstock::{ConnectError, Fault, PlanError, RegionError, StartError, SubmitError};

use super::pattern::Wrong;

/// The first thing that was found wrong.
#[derive(Debug)]
pub(crate) enum Flaw {
    Start(StartError),
    Connect(ConnectError),
    Region(RegionError),
    Plan(PlanError),
    Submit(SubmitError),
    Transfer(Fault),
    Access(AccessError),
    Copy(CopyError),
    /// Somebody has asked for the end.
    Interrupted,
    /// The folder for the rendezvous sockets cannot be made.
    Folder(std::io::Error),
    /// Another transport than the one under test was chosen.
    OtherTransport {
        expected: &'static str,
        found: &'static str,
    },
    /// The peer has not announced its counter.
    NoCounter,
    /// A byte is not what it should be.
    Bytes {
        whose: &'static str,
        wrong: Wrong,
    },
    /// A transfer ended well but with another number of bytes, or without telling the peer.
    Ending {
        expected: u64,
        found: u64,
        notified: &'static str,
    },
    /// A counter shows another number of arrivals.
    Arrivals {
        expected: u64,
        found: u64,
    },
    /// Notifications were lost or doubled.
    Notes {
        expected: usize,
        found: usize,
    },
    /// A notification was altered, or took another one's turn.
    Note {
        number: usize,
    },
    /// Something could not be proven to be at rest although everybody lives and runs.
    NotQuiesced {
        what: &'static str,
    },
    /// A plan over memory that was taken back still moved bytes.
    StillMoved,
    /// The other process could not be started or talked to.
    Companion(std::io::Error),
    /// The other process ended.
    CompanionEnded {
        how: String,
    },
    /// The other process does not answer.
    CompanionSilent {
        within: Duration,
    },
    /// The other process said something that is no answer to what it was asked.
    CompanionGarbled {
        said: String,
    },
    /// The other side could not do what it was asked, in its own words.
    Target(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "the engine does not start: {error}"),
            Self::Connect(error) => write!(f, "the engines do not connect: {error}"),
            Self::Region(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::Submit(error) => write!(f, "a transfer was not taken: {error}"),
            Self::Transfer(fault) => write!(f, "a transfer failed: {fault}"),
            Self::Access(error) => error.fmt(f),
            Self::Copy(error) => write!(f, "the bare copy failed: {error}"),
            Self::Interrupted => f.write_str("it was interrupted before its end"),
            Self::Folder(error) => {
                write!(f, "cannot make a folder for sockets ({error}); set TMPDIR to a folder you may write to")
            }
            Self::OtherTransport { expected, found } => {
                write!(f, "`{expected}` was to be tested, but the engines chose `{found}`")
            }
            Self::NoCounter => f.write_str("the peer announced no counter in time"),
            Self::Bytes { whose, wrong: Wrong { block, byte, expected, found } } => write!(
                f,
                "wrong bytes in {whose} memory: byte {byte} of block {block} is {found:#04x} and should be {expected:#04x}"
            ),
            Self::Ending { expected, found, notified } => {
                write!(f, "a transfer of {expected} bytes ended well with {found} bytes moved; {notified}")
            }
            Self::Arrivals { expected, found } => write!(f, "{expected} transfers were counted as {found} arrivals"),
            Self::Notes { expected, found } => write!(f, "{expected} notifications were sent and {found} arrived"),
            Self::Note { number } => {
                write!(f, "notification {number} arrived, but not as it was sent, or not in its turn")
            }
            Self::NotQuiesced { what } => {
                write!(f, "{what}: not proven to be at rest in time, although both sides live and run")
            }
            Self::StillMoved => f.write_str("a plan over memory that its owner took back still moved bytes"),
            Self::Companion(error) => write!(f, "the other process cannot be run or talked to: {error}"),
            Self::CompanionEnded { how } => write!(f, "the other process ended by itself ({how})"),
            Self::CompanionSilent { within } => write!(f, "the other process gave no answer within {within:?}"),
            Self::CompanionGarbled { said } => {
                write!(f, "the other process gave an answer that does not belong to the question: {said}")
            }
            Self::Target(text) => write!(f, "the other side: {text}"),
        }
    }
}

macro_rules! from {
    ($($variant:ident($error:ty)),+ $(,)?) => {
        $(impl From<$error> for Flaw {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from! {
    Start(StartError), Connect(ConnectError), Region(RegionError), Plan(PlanError), Submit(SubmitError),
    Transfer(Fault), Access(AccessError), Copy(CopyError),
}
