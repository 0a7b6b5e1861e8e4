//! The compact, validated description of one scatter-gather move.

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this engine's memory to the peer's.
    Write,
    /// From the peer's memory to this engine's.
    Read,
}

/// One contiguous piece of a move: offsets into the local and the remote region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Span {
    /// Offset into the local region, in bytes.
    pub local: u64,
    /// Offset into the remote region, in bytes.
    pub remote: u64,
    /// Length in bytes, never zero.
    pub len: u64,
}
