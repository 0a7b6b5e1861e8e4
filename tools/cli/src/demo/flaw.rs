//! What can go wrong on stage.

use std::fmt;
use std::time::Duration;

use penstock::flows::relay::{OpenError, PayloadError, RelayFailed};
use penstock::flows::{Failed, FlowError, IdError, Miss, RequestId, SendFailed};
use penstock::memory::{AccessError, TakeError};
use penstock::{ConnectError, RegionError, StartError};

use super::words::Role;

/// Why an act was not played to its end.
#[derive(Debug)]
pub(crate) enum Flaw {
    Start(StartError),
    Region(RegionError),
    Connect(ConnectError),
    Flow(FlowError),
    Name(IdError),
    Take(TakeError),
    Access(AccessError),
    Relay(OpenError),
    Payload(PayloadError),
    Relayed(RelayFailed),
    /// Chunks of a stream came out of their order, or were too few.
    Order {
        expected: u64,
        found: Option<u64>,
    },
    /// The folder for sockets cannot be made.
    Folder(std::io::Error),
    /// A process cannot be started or ended.
    Process(std::io::Error),
    /// A process is not there any more.
    Gone {
        role: Role,
    },
    EndedBadly {
        role: Role,
        how: String,
    },
    Silent {
        role: Role,
        of: &'static str,
        within: Duration,
    },
    Malformed {
        role: Role,
        said: String,
    },
    /// A process could not do its part, in its own words.
    Player {
        role: Role,
        why: String,
    },
    /// It was to be another transport.
    OtherTransport {
        expected: &'static str,
        found: &'static str,
    },
    /// The order to connect has not come.
    NotMet,
    /// The transfer failed here, though nobody was killed.
    Received(Box<Failed>),
    /// The same at the source.
    Sent(SendFailed),
    /// The transfer came to its end though the other side was to be killed in it.
    NotKilled,
    /// What the scheduler is told is not what it asked.
    Finished {
        expected: RequestId,
        found: String,
    },
    /// Blocks are not given back.
    BlocksKept {
        free: usize,
        all: usize,
    },
    /// Something may still be written into blocks of a transfer that is over.
    NotQuiet,
    /// How many tokens there are in all was not said with the first leg.
    NoTotal,
    /// What was kept of the turn before is not there.
    Missed(Miss),
    /// The turn before was never played.
    NoTurn,
    /// Another number of tokens came than was not here.
    Tokens {
        expected: u64,
        found: u64,
    },
    /// Both sides have other bytes.
    Digests {
        prefill: String,
        decode: String,
    },
    /// The survivor took too long to notice.
    Late {
        role: Role,
        took: Duration,
    },
    /// Somebody has asked for the end.
    Interrupted,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "the engine does not start: {error}"),
            Self::Region(error) => error.fmt(f),
            Self::Connect(error) => write!(f, "the engines do not connect: {error}"),
            Self::Flow(error) => error.fmt(f),
            Self::Name(error) => error.fmt(f),
            Self::Take(error) => error.fmt(f),
            Self::Access(error) => error.fmt(f),
            Self::Relay(error) => error.fmt(f),
            Self::Payload(error) => error.fmt(f),
            Self::Relayed(failed) => write!(f, "a chunk or stream failed: {failed}"),
            Self::Order { expected, found: Some(found) } => write!(f, "chunk {found} came where {expected} was due"),
            Self::Order { expected, found: None } => write!(f, "the stream ended where chunk {expected} was due"),
            Self::Folder(error) => {
                write!(f, "cannot make a folder for sockets ({error}); set TMPDIR to a folder you may write to")
            }
            Self::Process(error) => write!(f, "a process cannot be started or ended: {error}"),
            Self::Gone { role } => write!(f, "{role} is not there any more; -v shows more"),
            Self::EndedBadly { role, how } => write!(f, "{role} has not ended well ({how}); -v shows more"),
            Self::Silent { role, of, within } => {
                write!(f, "{role}: nothing was heard of {of} within {} s", within.as_secs_f64())
            }
            Self::Malformed { role, said } => write!(f, "{role} said something that nobody understands: {said}"),
            Self::Player { role, why } => write!(f, "{role}: {why}"),
            Self::OtherTransport { expected, found } => {
                write!(f, "`{expected}` was to be shown, but the engines chose `{found}`")
            }
            Self::NotMet => f.write_str("it has not been told where the other engine is"),
            Self::Received(failed) => write!(f, "the transfer failed: {}: {}", failed.cause, failed.words),
            Self::Sent(failed) => write!(f, "the transfer failed: {}: {}", failed.cause, failed.words),
            Self::NotKilled => f.write_str("the transfer came to its end before the other side was killed in it"),
            Self::Finished { expected, found } => {
                write!(f, "{:?} was to be finished, and not {found}", expected.as_str())
            }
            Self::BlocksKept { free, all } => write!(f, "only {free} of {all} blocks are free again"),
            Self::NotQuiet => f.write_str("it is not proven that nothing can land any more, so its blocks stay away"),
            Self::NoTotal => f.write_str("the first leg did not say how many tokens there are in all"),
            Self::Missed(miss) => write!(f, "nothing is inherited: {miss}"),
            Self::NoTurn => f.write_str("there is no turn to go on from"),
            Self::Tokens { expected, found } => write!(f, "{found} tokens came where {expected} were not here"),
            Self::Digests { prefill, decode } => {
                write!(f, "wrong bytes: their digest is {prefill} at prefill and {decode} at decode")
            }
            Self::Late { role, took } => {
                write!(f, "{role} knew of the other's end after {} ms only, and it was to be 1000", took.as_millis())
            }
            Self::Interrupted => f.write_str("it was interrupted"),
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
    Start(StartError), Region(RegionError), Connect(ConnectError), Flow(FlowError), Name(IdError), Take(TakeError),
    Access(AccessError), Relay(OpenError), Payload(PayloadError), Relayed(RelayFailed),
}
