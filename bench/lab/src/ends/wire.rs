//! What the initiator asks of a target process, and what that answers: one line of JSON each.

use penstock::Window;
use serde::{Deserialize, Serialize};

use super::datagrams::DatagramCommand;
use super::end::{End, EndSpec};
use super::own::Own;
use super::rally::Rules;
use super::stream::StreamCommand;
use crate::error::LabError;
use crate::layout::{Destination, Layout, LayoutSpec};
use crate::measure::clock;
use crate::pattern::{self, Mismatch};

/// What a target process is started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TargetSpec {
    /// Its engine and its pool.
    pub end: EndSpec,
    /// The cores that its threads stay on; empty: anywhere.
    pub stay_on: Vec<usize>,
}

/// What a target is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Write the pattern over its pool.
    Fill(LayoutSpec),
    /// Overwrite its pool.
    Wipe(LayoutSpec),
    /// Look whether the initiator's pattern has arrived in every set.
    Check(LayoutSpec),
    /// Allocate so much memory apart from its pool, and register it.
    Allocate {
        /// How many bytes.
        bytes: u64,
    },
    /// Overwrite the memory that it allocated.
    WipeAllocated,
    /// Look whether the initiator's pattern has arrived in every set, in the memory that it allocated.
    CheckAllocated(LayoutSpec),
    /// Say how much CPU time its process has used.
    Cpu,
    /// Sleep without looking at anything, an inline engine's peers least of all.
    Doze {
        /// How long, in nanoseconds.
        nanos: u64,
    },
    /// Return so many small writes, one by one.
    Rally(Rules),
    /// Do something with its end of a bare socket.
    Stream(StreamCommand),
    /// Do something with its bare socket for datagrams.
    Datagram(DatagramCommand),
    /// Return so many changes of a cache line, one by one.
    CacheLines {
        /// How many.
        rounds: u64,
    },
}

/// What a target answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It can be connected to.
    Ready(Ready),
    /// It has begun what the initiator takes part in.
    Going,
    /// It has done what it was asked.
    Done,
    /// A bare socket can be connected to it.
    Listening {
        /// Where, on this host.
        port: u16,
    },
    /// Where the memory is that it allocated.
    Allocated {
        /// Its process.
        pid: i32,
        /// The first byte, as its process counts.
        address: u64,
    },
    /// It has returned every write.
    Rallied {
        /// How long its pauses were in all, in nanoseconds.
        paused_ns: u64,
    },
    /// All bytes that it looked at were right.
    Checked {
        /// How many.
        bytes: u64,
    },
    /// Not all were.
    Wrong(Mismatch),
    /// CPU time that its process has used, or in that one thing it was asked.
    Cpu {
        /// In nanoseconds.
        nanos: u64,
    },
    /// It could not.
    Failed {
        /// Why.
        why: String,
    },
}

/// How a target can be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Its engine's descriptor.
    pub card: Vec<u8>,
    /// The number of its pool's file descriptor in its own process.
    pub pool_fd: i32,
    /// Bytes of its pool.
    pub pool_bytes: u64,
}

impl Reply {
    /// The failure that this answer is, where another one was expected.
    pub fn unexpected(self) -> LabError {
        match self {
            Self::Failed { why } => LabError::Target { why },
            Self::Wrong(mismatch) => LabError::Corrupt(mismatch),
            other => LabError::Target { why: format!("it answered {other:?}, which was not asked") },
        }
    }
}

/// Does what a target is asked to do alone, on this end.
pub fn perform(end: &End, command: &Command) -> Result<Reply, LabError> {
    let pool = end.pool.window();
    match command {
        Command::Fill(spec) => {
            Layout::new(spec).fill(pool);
            end.has_filled()?;
        }
        Command::Wipe(spec) => {
            Layout::new(spec).wipe(pool);
            end.has_filled()?;
        }
        Command::Check(spec) => return Ok(look(spec, end.fetched()?)),
        Command::Allocate { bytes } => {
            let own = Own::allocate(&end.engine, *bytes)?;
            let own = end.own.get_or_init(|| own);
            return Ok(Reply::Allocated { pid: std::process::id() as i32, address: own.address() });
        }
        Command::WipeAllocated => pattern::wipe(allocated(end)?),
        Command::CheckAllocated(spec) => return Ok(look(spec, allocated(end)?)),
        Command::Cpu => return Ok(Reply::Cpu { nanos: clock::process_cpu().as_nanos() as u64 }),
        Command::Rally(_)
        | Command::CacheLines { .. }
        | Command::Doze { .. }
        | Command::Stream(_)
        | Command::Datagram(_) => {
            return Err(LabError::Target { why: "that needs a process of its own".to_owned() });
        }
    }
    Ok(Reply::Done)
}

fn look(spec: &LayoutSpec, memory: &Window) -> Reply {
    match Layout::new(spec).check(memory, Destination::Remote) {
        Ok(bytes) => Reply::Checked { bytes },
        Err(mismatch) => Reply::Wrong(mismatch),
    }
}

fn allocated(end: &End) -> Result<&Window, LabError> {
    let nothing = || LabError::Target { why: "it was not asked to allocate anything".to_owned() };
    end.own.get().map(Own::window).ok_or_else(nothing)
}
