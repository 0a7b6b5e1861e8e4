//! Copies of devices, as it is said before a run begins who asks for them and what befalls them.

use std::time::Duration;

use penstock::config::TransportName;

/// Blocks of each memory.
pub const BLOCKS: u32 = 16;

/// Who there is.
#[derive(Debug, Clone, Copy)]
pub struct Copying {
    /// Engines; each has a session with itself and with all others.
    pub engines: usize,
    /// How they reach each other. `Local`: all are of one process. `Shm`: each is a process of one host. Else each is on a host of its own.
    pub over: TransportName,
    /// Bytes of a block, in all memories.
    pub block_bytes: u64,
}

/// A memory of an engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A processor's.
    Host,
    /// The device's of this number.
    Device(u32),
}

impl Place {
    /// What each engine has.
    pub const ALL: [Self; 3] = [Self::Host, Self::Device(0), Self::Device(1)];

    /// How others find it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device(0) => "device 0",
            Self::Device(_) => "device 1",
        }
    }
}

/// One transfer.
#[derive(Debug, Clone, Copy)]
pub struct DeviceCopy {
    /// Who asks for it, and of which memory of its own.
    pub at: (usize, Place),
    /// With whom, and of which memory there.
    pub with: (usize, Place),
    /// It is read from there, and not written.
    pub is_read: bool,
    /// How many blocks go.
    pub blocks: usize,
    /// How long it may take.
    pub within: Duration,
}

impl Copying {
    /// Whether engines reach only host memory of each other, so that bytes of devices go through slots.
    pub fn is_staged(&self) -> bool {
        self.over != TransportName::Local
    }
}

impl DeviceCopy {
    /// Where its bytes come from, and where they go to.
    pub fn ends(&self) -> [(usize, Place); 2] {
        if self.is_read { [self.with, self.at] } else { [self.at, self.with] }
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A transfer is asked for.
    Begin {
        /// Which.
        copy: usize,
    },
    /// It is cancelled, and its memory given to somebody else as soon as that is allowed.
    Cancel {
        /// Which.
        copy: usize,
        /// How long the answer may take.
        within: Duration,
    },
    /// Its handle is dropped: it goes on, and nobody hears of it.
    Drop {
        /// Which.
        copy: usize,
    },
    /// The owner of one side takes its blocks back.
    Revoke {
        /// Which.
        copy: usize,
        /// The side that asked for it, and not the other.
        is_local: bool,
        /// How long the answer may take.
        within: Duration,
    },
    /// A memory is deregistered, and another one of the same name registered in its place.
    Replace {
        /// Whose.
        engine: usize,
        /// Which.
        place: Place,
        /// How long the answer may take.
        within: Duration,
    },
    /// An engine ends its session with another one, or with itself.
    HangUp {
        /// Who.
        from: usize,
        /// With whom.
        to: usize,
    },
    /// All streams between engines are reset.
    Sever,
    /// An engine is closed, and another one begins in its place.
    Close {
        /// Which.
        engine: usize,
        /// How long that may take.
        within: Duration,
    },
    /// An engine is dropped without having been closed, and another one begins in its place.
    Leave {
        /// Which.
        engine: usize,
    },
    /// A device does nothing for a while.
    Stop {
        /// Which.
        device: u32,
        /// How long.
        span: Duration,
    },
    /// A device is lost.
    Lose {
        /// Which.
        device: u32,
    },
    /// One of the next calls that give a stream something fails.
    Refuse {
        /// So many go well before.
        calls: u32,
        /// The launch fails, and with it the device; not: it is one argument that is wrong.
        is_launch: bool,
    },
}

impl Step {
    /// Whether transfers may fail by it.
    pub fn may_fail(&self) -> bool {
        !matches!(self, Self::Begin { .. } | Self::Drop { .. } | Self::Stop { .. })
    }

    /// Whether memory may stay withheld for ever by it: by a device that is lost, or by an engine that ends under its copies, since no world has a
    /// thread to wait for them.
    pub fn may_withhold(&self) -> bool {
        let ends = matches!(self, Self::Close { .. } | Self::Leave { .. });
        ends || matches!(self, Self::Lose { .. } | Self::Refuse { is_launch: true, .. })
    }

    /// The transfer that it concerns, if it is one's.
    pub fn copy(&self) -> Option<usize> {
        match *self {
            Self::Begin { copy } | Self::Cancel { copy, .. } | Self::Drop { copy } | Self::Revoke { copy, .. } => {
                Some(copy)
            }
            _ => None,
        }
    }
}
