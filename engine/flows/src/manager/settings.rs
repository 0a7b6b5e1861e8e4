//! How much there may be of everything, and how long.

use std::time::Duration;

use penstock_core::Config;
use penstock_core::config::LegMemory;
use penstock_session::transfers::early::EarlyBounds;
use penstock_session::transfers::table::Bounds;

use crate::input::MemoryPolicy;
use crate::output::Waiting;

/// How long a lease stands without being renewed.
const LEASE_TTL: Duration = Duration::from_secs(2);

/// How much there may be of everything, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The tables of transfers.
    pub transfers: Bounds,
    /// The most bytes of a part.
    pub part_bytes: u64,
    /// The most parts that are under way to one rank.
    pub parts_ahead: usize,
    /// The most legs that are granted and not let go.
    pub legs_ahead: u32,
    /// For how many tokens memory is asked for while nobody knows how many come.
    pub tokens_default: u64,
    /// The percentage of the last transfers for which that memory has to be enough; 0: the default always.
    pub tokens_quantile: u8,
    /// What a sink does without memory for the next leg, where it does not choose for itself.
    pub memory: MemoryPolicy,
    /// How long the other side may take to say that nothing can land any more.
    pub abort_within: Duration,
    /// How long a transfer that may be resumed waits for the next session.
    pub resume_within: Duration,
    /// How long a session may be over before this engine knows it.
    pub doubt_within: Duration,
    /// How long a lease stands without being renewed, where nothing else is said.
    pub lease_ttl: Duration,
    /// The most leases that are given, and as many under which is read.
    pub leases: usize,
}

impl Settings {
    /// What a configuration says.
    pub fn of(config: &Config) -> Self {
        let (control, legs) = (&config.control, &config.legs);
        let early = EarlyBounds {
            messages: control.early_messages,
            bytes: control.early_bytes,
            age: Duration::from_millis(control.early_ms),
        };
        Self {
            transfers: Bounds {
                live: control.transfers_max,
                early,
                tombs: control.tombstones,
                tomb_age: Duration::from_millis(control.tombstone_ms),
            },
            part_bytes: legs.part_bytes,
            parts_ahead: legs.parts_ahead,
            legs_ahead: legs.ahead,
            tokens_default: legs.default_tokens,
            tokens_quantile: legs.quantile_percent,
            memory: match legs.memory {
                LegMemory::Wait => MemoryPolicy::Wait,
                LegMemory::Shrink => MemoryPolicy::Shrink,
                LegMemory::Fail => MemoryPolicy::Fail,
            },
            abort_within: Duration::from_millis(control.abort_ms),
            resume_within: Duration::from_millis(control.resume_ms),
            // A peer that says nothing is given up after a heartbeat, by an engine that may itself be late to see that.
            doubt_within: Duration::from_millis(config.session.heartbeat_ms) * 5 / 4,
            lease_ttl: LEASE_TTL,
            leases: control.transfers_max,
        }
    }

    /// How long a source waits for who may come back.
    pub(super) fn source_waits(&self) -> Waiting {
        Waiting { broken: self.resume_within, in_doubt: self.doubt_within.min(self.resume_within) }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(&Config::default())
    }
}
