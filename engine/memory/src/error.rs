//! What can go wrong with memory, and the mend.

use std::fmt;
use std::io;

/// Why memory could not be made, taken in, mapped or sealed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A null base address was offered as memory.
    #[error("the memory offered has a null base address: pass the address of a live allocation")]
    NullBase,
    /// A range of no bytes was asked for or offered.
    #[error("{what} has no bytes: ask for at least one byte")]
    Empty {
        /// What was to be made or taken in.
        what: &'static str,
    },
    /// `base + len` does not fit the address space.
    #[error("memory at {base:#x} with {len} bytes runs past the end of the address space: check base and length")]
    AddressOverflow { base: u64, len: u64 },
    /// Nothing is mapped there, or nobody may read it.
    #[error(
        "not all of {bytes} B at {base:#x} is memory that this process may read: check address and length, and that it is still allocated"
    )]
    NotMapped { base: u64, bytes: u64 },
    /// A pool's block size cannot be used.
    #[error(
        "block size {block_bytes} B does not fit a pool of {bytes} B: choose 1 B up to the pool's size, and at most 2^32 - 1 blocks"
    )]
    BlockSize {
        /// Block size asked for, in bytes.
        block_bytes: u64,
        /// Pool size asked for, in bytes.
        bytes: u64,
    },
    /// Memory could not be preferred from the NUMA node asked for.
    #[error(
        "memory from NUMA node {node} was refused ({source}): choose a node of this machine (lscpu), or leave the node open"
    )]
    Node {
        /// The node asked for.
        node: u32,
        /// The system's own reason.
        source: io::Error,
    },
    /// The machine, the control group or a limit has too little memory.
    #[error("no memory for {what}: asked for {asked} B, {limit}; {mend}")]
    OutOfMemory {
        /// What was to be made.
        what: &'static str,
        asked: u64,
        /// The limit that was met.
        limit: MemoryLimit,
        /// What to do about it.
        mend: &'static str,
    },
    /// The process has no descriptor left.
    #[error("no file descriptor left for {what}: raise the limit (`penstock doctor limits` says how)")]
    NoDescriptor {
        /// What was to be made.
        what: &'static str,
    },
    /// A descriptor that came from a peer is not a memfd.
    #[error(
        "the descriptor is not a memfd (it cannot carry seals): the peer must send the descriptor of a sealed memfd"
    )]
    NotAMemfd,
    /// A memfd that came from a peer lacks seals it must have.
    #[error(
        "the memfd is not sealed against {missing}: without that its owner could fault this process; the peer must seal it before sending it"
    )]
    Unsealed {
        /// The seals that are missing.
        missing: MissingSeals,
    },
    /// A memfd that came from a peer has another size than announced.
    #[error(
        "the memfd has {found} B where {expected} B were announced: the announcement and the descriptor do not belong together"
    )]
    WrongSize {
        /// Bytes announced, rounded up to whole pages.
        expected: u64,
        /// Bytes the memfd really has.
        found: u64,
    },
    /// A memfd that came from a peer has no pages for some of its bytes.
    #[error(
        "the memfd has pages for {backed} of its {bytes} B: the rest would be taken from this process's memory; the peer must fill it \
         before sending it"
    )]
    Sparse {
        /// Bytes that there must be pages for.
        bytes: u64,
        /// Bytes that there are.
        backed: u64,
    },
    /// A piece of a pool that does not fit the pool.
    #[error(
        "a piece of {len} B at {offset} does not fit a pool of {bytes} B (whole pages inside it, in order, one beside the other)"
    )]
    PieceMisplaced {
        /// Where it was to begin, in bytes.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The pool's length in bytes.
        bytes: u64,
    },
    /// This build or machine cannot do what was asked.
    #[error("{what} is not here: {why}; {mend}")]
    NotHere {
        /// The thing asked for.
        what: &'static str,
        /// Why it is missing.
        why: &'static str,
        /// What to do about it.
        mend: &'static str,
    },
    /// The system refused a call for a reason that has no better name.
    #[error("{call} failed for {what}: {source}")]
    System {
        call: &'static str,
        /// What it was to work on.
        what: &'static str,
        /// The system's own reason.
        source: io::Error,
    },
}

/// The limit that an allocation ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine reports this many bytes available (`MemAvailable`).
    Machine { available: u64 },
    /// The control group allows this many bytes in total (`memory.max`).
    ControlGroup { allowed: u64 },
    /// A key of the configuration allows this many bytes in total.
    Configured {
        key: &'static str,
        /// Of all that count.
        allowed: u64,
    },
    /// The kernel refused with this error number.
    Kernel {
        /// The error number, as in `errno(3)`.
        errno: i32,
    },
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Machine { available } => write!(f, "the machine has {available} B available"),
            Self::ControlGroup { allowed } => {
                write!(f, "the control group allows {allowed} B in all")
            }
            Self::Configured { key, allowed } => {
                write!(f, "`{key}` allows {allowed} B in all, and one peer what it leaves")
            }
            Self::Kernel { errno } => {
                write!(f, "the kernel refused ({})", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// The seals a memfd should have carried and does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MissingSeals {
    /// `F_SEAL_SHRINK`: it could be truncated under a mapping.
    pub shrink: bool,
    /// `F_SEAL_GROW`: it could grow past what was announced.
    pub grow: bool,
    /// `F_SEAL_FUTURE_WRITE`: others could map it writable.
    pub future_write: bool,
}

impl MissingSeals {
    /// True when at least one seal is missing.
    pub fn any(&self) -> bool {
        self.shrink || self.grow || self.future_write
    }
}

impl fmt::Display for MissingSeals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            [(self.shrink, "shrinking"), (self.grow, "growing"), (self.future_write, "further writable mappings")];
        let mut first = true;
        for (_, name) in names.iter().filter(|(missing, _)| *missing) {
            f.write_str(if first { "" } else { ", " })?;
            f.write_str(name)?;
            first = false;
        }
        Ok(())
    }
}

/// Why a window refused an access. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range leaves the window.
    #[error("{len} B at offset {offset} leave the window of {window_len} B")]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        len: u64,
        /// Bytes the window has.
        window_len: u64,
    },
    /// It is a device's.
    #[error("it is device memory, which no processor touches: move it by a transfer")]
    Device,
    /// The window is read only.
    #[error("the window is read only: ask the owner of the memory for write rights")]
    ReadOnly,
    /// A whole-word access is not aligned to its size.
    #[error("offset {offset} is not aligned to {align} B in memory")]
    Misaligned {
        offset: u64,
        /// Alignment needed, in bytes.
        align: u64,
    },
}
