//! What can go wrong in a measurement.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use penstock::{Cause, Fault, Peer, RegionError, SubmitError, SystemEnv};

use crate::pattern::Mismatch;
use crate::service::{self, ServiceError};
use crate::workload::WorkloadError;

/// Why something was not measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum LabError {
    /// The workload cannot be used.
    Workload(WorkloadError),
    /// An option has a value that it cannot have.
    Option {
        /// Its name.
        option: &'static str,
        /// What it may be.
        mend: &'static str,
    },
    /// The system has no such range of addresses to give.
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Its pools take more memory than this host has left.
    TooLarge {
        /// How many pools of it are on this host.
        pools: u64,
        /// Bytes of each.
        each: u64,
        /// Bytes that are left, of the machine or of a control group.
        left: u64,
    },
    /// This process ends: nothing is begun any more.
    Ending,
    /// The engine, or the system, refused something.
    Refused {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A transfer ended with a fault.
    Transfer(Fault),
    /// Nothing was confirmed any more, and what was under way was given up.
    Stalled {
        /// Since what was confirmed last.
        waited: Duration,
    },
    /// The session with the target was lost.
    Lost {
        /// With whom.
        peer: String,
        /// What was seen of it last, in words.
        loss: String,
    },
    /// The target process could not do what it was asked.
    Target {
        /// Its words.
        why: String,
    },
    /// The target process did not answer, and was ended.
    Silent {
        /// What it was to do.
        doing: &'static str,
        /// How long it had.
        waited: Duration,
    },
    /// The other host did not do what it was asked.
    Service(ServiceError),
    /// What arrived is not what was sent.
    Corrupt(Mismatch),
}

impl LabError {
    /// Wraps what was refused: `map_err(LabError::refused("start an engine"))`.
    pub(crate) fn refused<E: Into<Box<dyn Error + Send + Sync>>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Refused { doing, source: source.into() }
    }

    /// The same, or what was seen of a peer that was lost, or that it is shutting down, where that is why.
    pub(crate) fn or_loss_of(self, peer: &Peer<SystemEnv>) -> Self {
        // Plans, transfers and requests each have their own words for it.
        let may_be_why =
            matches!(self, Self::Refused { .. } | Self::Transfer(_) | Self::Service(ServiceError::Ended { .. }));
        let is_closing = || peer.draining() == Some(Cause::PeerDraining) || peer.ended() == Some(Cause::PeerClosed);
        if may_be_why && is_closing() {
            return Self::Service(ServiceError::Closing { peer: peer.name().to_string() });
        }
        let is_lost = match &self {
            Self::Transfer(fault) => matches!(fault.cause, Cause::PeerLost | Cause::NoPath),
            Self::Refused { source, .. } => {
                let error = source.downcast_ref();
                // What a peer was to advertise is missing where its session ended before.
                matches!(error, Some(SubmitError::PeerGone { cause: Cause::PeerLost | Cause::NoPath, .. }))
                    || matches!(source.downcast_ref(), Some(RegionError::Unknown { .. }))
            }
            _ => false,
        };
        match is_lost {
            true => Self::lost(peer).unwrap_or(self),
            false => self,
        }
    }

    /// What was seen of a peer that was lost, if it was.
    pub(crate) fn lost(peer: &Peer<SystemEnv>) -> Option<Self> {
        let loss = peer.loss()?.to_owned();
        Some(Self::Lost { peer: peer.name().to_string(), loss })
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(error) => error.fmt(f),
            Self::Option { option, mend } => write!(f, "{option} cannot be that: {mend}"),
            Self::NoMemory { bytes } => {
                write!(f, "the system does not give {bytes} bytes of addresses; see vm.overcommit_memory and ulimit -v")
            }
            Self::Refused { doing, source } => match source.downcast_ref::<SubmitError>() {
                Some(SubmitError::Draining { peer, cause: Cause::PeerDraining }) => {
                    f.write_str(&service::client::closing(peer))
                }
                Some(SubmitError::PeerGone { peer, cause: Cause::PeerClosed }) => {
                    f.write_str(&service::client::closing(peer))
                }
                _ => write!(f, "cannot {doing}: {source}"),
            },
            Self::Transfer(Fault { peer: Some(peer), cause: Cause::PeerClosed | Cause::PeerDraining, .. }) => {
                f.write_str(&service::client::closing(peer))
            }
            Self::TooLarge { pools, each, left } => {
                let (each, left) = (each.div_ceil(1 << 20), left >> 20);
                let what = if *pools == 1 {
                    format!("a pool of {each} MiB")
                } else {
                    format!("{pools} pools of {each} MiB each")
                };
                write!(
                    f,
                    "{what} and what belongs to them do not fit into the {left} MiB that this host has left, of which a tenth stays \
                     free; ask for less: smaller pools (--pool-mib), fewer transfers at once (-P) or a smaller workload"
                )
            }
            Self::Ending => f.write_str("this process is about to end"),
            Self::Transfer(fault) => write!(f, "a transfer failed: {fault}"),
            Self::Stalled { waited } => write!(
                f,
                "nothing was confirmed for {waited:.1?}, and what was under way was given up: the other host or a device stands still; the log says more"
            ),
            Self::Lost { peer, loss } => write!(f, "the session with `{peer}` was lost: {loss}"),
            Self::Target { why } => write!(f, "the target process failed: {why}"),
            Self::Silent { doing, waited } => {
                write!(
                    f,
                    "the target process did not {doing} within {waited:?} and was ended; is the machine overloaded?"
                )
            }
            Self::Service(error) => error.fmt(f),
            Self::Corrupt(mismatch) => write!(f, "what arrived is not what was sent: {mismatch}"),
        }
    }
}

impl Error for LabError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Workload(error) => Some(error),
            Self::Refused { source, .. } => Some(&**source),
            Self::Transfer(fault) => Some(fault),
            Self::Service(error) => Some(error),
            Self::Option { .. }
            | Self::NoMemory { .. }
            | Self::TooLarge { .. }
            | Self::Ending
            | Self::Stalled { .. }
            | Self::Lost { .. }
            | Self::Target { .. }
            | Self::Silent { .. }
            | Self::Corrupt(_) => None,
        }
    }
}

impl From<WorkloadError> for LabError {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(error)
    }
}

impl From<ServiceError> for LabError {
    fn from(error: ServiceError) -> Self {
        Self::Service(error)
    }
}

impl From<Fault> for LabError {
    fn from(fault: Fault) -> Self {
        Self::Transfer(fault)
    }
}
