//! Blocks that cannot be had, as a transfer or a swap of this engine has them.

use std::fmt;

use penstock_session::control::Side;
use penstock_session::{RequestId, TransferId};

/// Who has a block of this engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A transfer.
    Transfer {
        /// On which side of it this engine is.
        side: Side,
        transfer: TransferId,
        /// What this side's scheduler calls it, unless it was told that it has ended.
        request: Option<RequestId>,
    },
    /// A swap.
    Swap,
    /// What is kept of a request that has ended.
    Pin {
        /// The request.
        request: RequestId,
    },
    /// A child into whose blocks its parent's are copied.
    Child,
    /// A chunk that is handed to another stage.
    Put,
    /// A chunk that is fetched.
    Get,
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transfer { transfer, request: Some(request), .. } => write!(out, "request {request:?} ({transfer})"),
            Self::Transfer { transfer, request: None, .. } => write!(out, "{transfer}, which has ended"),
            Self::Swap => write!(out, "a swap"),
            Self::Pin { request } => write!(out, "the pin of request {request:?}"),
            Self::Child => write!(out, "a child that copies its parent's blocks there"),
            Self::Put => write!(out, "a put of the relay"),
            Self::Get => write!(out, "a get of the relay"),
        }
    }
}

/// Why a block is not taken: somebody of this engine has it. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockHeld {
    /// Bytes may land in it.
    #[error(
        "block {block} is being written for {by}: one transfer writes a block, alone; give another one, or wait until the leg that has it \
        is there, or until nothing of it can land any more"
    )]
    Written {
        block: u32,
        /// Whoever has it: what has to end before it is free.
        by: Holder,
    },
    /// What came there was not taken.
    #[error(
        "block {block} has what came for {by}, and that was not taken: take its leg, or drop its handle, before others write there"
    )]
    Untaken {
        block: u32,
        /// For whom it came.
        by: Holder,
    },
    /// It is read.
    #[error(
        "block {block} is read for {by}: give another one, or wait until that has ended and nothing reads it any more"
    )]
    Read {
        block: u32,
        /// Whoever has it: what has to end before it is free.
        by: Holder,
    },
}
