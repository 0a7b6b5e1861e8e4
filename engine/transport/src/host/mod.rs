//! What the transports inside one host have in common: the memory in which two engines leave each
//! other bells, bits, counters, hazards and withdrawals, and the lane that copies with this CPU.
//!
//! ```text
//! posts   its owner writes, peers read      hazards, gate            -> no byte lands after "quiesced"
//! mail    peers write, its owner reads      bells, ready bits, counters
//! rings   one peer writes, its owner reads  notes
//! slots   both write, in turns              bytes for memory that only its owner may touch
//! ```

pub mod bounce;
mod commons;
mod lane;
mod lookup;
mod mail;
mod posts;
mod rings;

pub use commons::{Bell, Commons, PeerCommons};
pub use lane::{CopyLane, CopyLaneParts, HandOverQueues, HandOvers};
pub(crate) use lookup::stands_after;
pub use lookup::{LastRegion, Withdrawn, still_stands};
pub use mail::{Mail, MailView, mail_bytes};
pub(crate) use posts::REGION_WORDS;
pub use posts::{Busy, Posts, PostsView, WHOLE_REGION, is_renewal, posts_bytes, withdrawn_bytes};
pub use rings::{InboundRings, OutboundRing, ring_segment_bytes};
