//! What the transports inside one host have in common: the memory in which two engines leave each
//! other bells, bits, counters, hazards and withdrawals, and the lane that copies with this CPU.
//!
//! ```text
//! owner state  its owner writes, peers read        hazards, gate, sleeps    -> no byte lands after "quiesced"
//! mailbox      peers and owner write, owner reads  ready bits, counters
//! rings        one peer writes, its owner reads    notes
//! slots        both write, in turns                bytes for memory that only its owner may touch
//! ```

mod bells;
pub mod bounce;
mod device_copies;
mod held_pages;
mod kernel_copies;
mod lane;
mod lookup;
mod mailbox;
mod owner_state;
mod rings;
mod segments;

pub use bells::{Bell, OwnBell, silence};
pub use held_pages::{HeldPages, OlderPages, PageHold};
pub use kernel_copies::BlockingRun;
pub use lane::{CopyLane, CopyLaneParts, HandOverQueues, HandOvers};
pub(crate) use lookup::check_against;
pub use lookup::{LastRegion, WithdrawalConflict, check_withdrawals};
pub use mailbox::{Mailbox, MailboxView, mailbox_bytes};
pub(crate) use owner_state::WITHDRAWAL_BUCKETS;
pub use owner_state::{
    BusyWorker, OwnActivity, OwnerState, OwnerStateView, WHOLE_REGION, is_renewal, owner_state_bytes, withdrawn_bytes,
};
pub use rings::{InboundRings, OutboundRing, ring_segment_bytes};
pub use segments::{EngineSegments, PeerSegments};
