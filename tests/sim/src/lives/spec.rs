//! The lives of requests, as it is said before a run begins what their schedulers do.

use std::time::Duration;

use penstock::flows::DeferSite;

/// The devices of a run.
#[derive(Debug, Clone, Copy)]
pub struct Devices {
    /// Blocks of each.
    pub blocks: u32,
    /// A swap moves so few bytes at once that it takes several turns.
    pub are_fine: bool,
    /// How long a swap that was stopped may take until its blocks are quarantined.
    pub grace: Duration,
    /// So many notices wait for a subscriber that seldom looks.
    pub queue: usize,
}

/// One life of a request.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// On whose device.
    pub at: usize,
    /// Which request: several lives may be of one, behind each other.
    pub request: usize,
    /// Its blocks.
    pub blocks: usize,
    /// What its first blocks are about, as those of other requests may be.
    pub prompt: usize,
    /// How many of its blocks that are.
    pub shared: usize,
    /// It takes what is there of these already. Such a request is not swapped.
    pub hits: bool,
    /// Others may find its blocks.
    pub stores: bool,
    /// Sequences in the beginning.
    pub sequences: u32,
    /// How long it leaves a swap lying whose bytes are there.
    pub pause: Duration,
    /// Who is sent what it has on the host.
    pub to: usize,
    /// So long after its end its scheduler says once more that it is over.
    pub late: Duration,
    /// How long it lives if nobody ends it sooner.
    pub within: Duration,
}

/// What a scheduler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A life begins.
    Open,
    /// It gets one block more.
    Grow,
    /// It makes room: its blocks go to the host, within that time.
    Out(Duration),
    /// It comes back.
    In(Duration),
    /// The swap that it is in is given up.
    RollBack,
    /// The handle of that swap is dropped.
    LetGo,
    /// Its blocks are freed, and it lives on.
    Preempt(DeferSite),
    /// What it has on the host is sent to another player.
    Send,
    /// A further sequence.
    Fork,
    /// A sequence ends.
    EndSequence,
    /// It is seen that it is finished.
    Finish,
    /// It is over.
    Remove,
    /// It is given up.
    Abort,
}
