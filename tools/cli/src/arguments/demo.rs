//! `penstock demo …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{PD_AFTER, Transport};
use crate::demo::Role;

/// What can be shown.
#[derive(Debug, Subcommand)]
pub(crate) enum DemoCommand {
    /// Prefill and decode: a proxy names requests, one process has the bytes, the other one gets them
    #[command(after_long_help = PD_AFTER)]
    Pd(PdOptions),
}

/// `penstock demo pd`.
#[derive(Debug, Args)]
pub(crate) struct PdOptions {
    /// Show it over this transport only [default: both, one after the other]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Over>,
    /// Kill this one in the middle of act 1, and start a new one in its place
    #[arg(long, value_enum)]
    pub(crate) kill: Option<Role>,
    /// Names, bytes and who is told first come from this number [default: another one each time]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Spoil a byte on purpose, to see that it is noticed
    #[arg(long, hide = true)]
    pub(crate) sabotage: bool,
}

/// What the two processes are joined by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    /// Shared memory
    Shm,
    /// Sockets, over loopback
    Tcp,
}

impl Over {
    pub(crate) const ALL: [Self; 2] = [Self::Shm, Self::Tcp];
}

impl From<Over> for Transport {
    fn from(over: Over) -> Self {
        match over {
            Over::Shm => Self::Shm,
            Over::Tcp => Self::Tcp,
        }
    }
}

/// One of the two processes of a demonstration.
#[derive(Debug, Args)]
pub(crate) struct NodeOptions {
    /// The folder of the rendezvous sockets
    #[arg(long)]
    pub(crate) directory: PathBuf,
    #[arg(long, value_enum)]
    pub(crate) role: Role,
    #[arg(long, value_enum)]
    pub(crate) transport: Transport,
}
