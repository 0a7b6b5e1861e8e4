//! What a transport can do and what it promises.

use std::fmt;

/// Who checks keys, bounds and rights before bytes land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The initiator's library; peers are processes of the same user. Rights are enforced per pool
    /// by seals, the rest by the library.
    Cooperative,
    /// The NIC; a refusal breaks its queue pair.
    Hardware,
    /// The target, per operation, before its first byte lands, and again whenever its gate has moved before a later one does.
    Checked,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cooperative => "cooperative: checked by the initiator's library, same user only",
            Self::Hardware => "hardware: checked by the NIC",
            Self::Checked => "checked by the target before the first byte lands",
        })
    }
}

/// When the target's reads see the bytes of a completed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// As soon as the initiator sees the transfer completed.
    AtCompletion,
    /// Only once the target's own notification or counter says so. Where
    /// [`crate::Lane::completes_before_placement`], a failed or cancelled transfer may still write at the target after its
    /// batches have completed.
    AtNotification,
}

/// What a transport can do and what it promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    pub trust: Trust,
    /// When written bytes are visible to the target.
    pub placement: Placement,
    /// Whether [`crate::Lane::post`] has moved the bytes when it returns, where this side reaches the memory
    /// itself; [`crate::Pair::is_synchronous`] says it for one pair of memories.
    pub synchronous: bool,
    /// Whether a notification may be posted while batches of its transfer are still in flight on the same lane, which then holds
    /// it back until they have landed, and drops it if one fails. Without it the runtime posts it after their completions; behind
    /// their placement it comes in either case.
    pub ordered: bool,
    /// Whether several workers share one large transfer: worth it where this processor moves the bytes; where a NIC does,
    /// one worker posts as fast as all of them.
    pub multi_worker: bool,
    /// Whether memory that the caller allocated and registered can be the remote side.
    pub remote_caller_memory: bool,
    /// Whether a reference-counted handle can be handed over without a copy.
    pub hand_over: bool,
}
