//! Whether a grant makes sense at its source: everything is looked at before anything changes.

use penstock_session::control::{BLOCKS_MAX, Grant};

use super::legs::{LEGS_AHEAD_MAX, SourceLegs};
use crate::part::LegError;
use crate::shards::Pair;
use crate::status::Status;

impl SourceLegs {
    pub(super) fn may_go_on(&self) -> Result<(), LegError> {
        match (&self.failed, self.status) {
            (Some(failed), _) => Err(LegError::Ended(failed.cause)),
            (None, Status::Success) => Err(LegError::Done),
            _ => Ok(()),
        }
    }

    pub(super) fn sink_at(&self, rank: u16) -> Result<usize, LegError> {
        self.sinks.iter().position(|sink| sink.rank == rank).ok_or(LegError::NoSuchRank { rank })
    }

    /// Whether a grant makes sense, and of which rank it is; nothing if it was said before.
    pub(super) fn check_grant(&self, sink: u16, pair: &Pair, grant: &Grant) -> Result<Option<usize>, LegError> {
        let at = self.sink_at(sink)?;
        self.may_go_on()?;
        let known = &self.sinks[at];
        let leg = grant.leg;
        if leg < known.next_leg {
            let first = known.next_leg - known.grants.len() as u32;
            return match leg.checked_sub(first).and_then(|place| known.grants.get(place as usize)) {
                Some((_, old)) if old != grant => Err(LegError::Differs { leg }),
                _ => Ok(None),
            };
        }
        if leg > known.next_leg {
            return Err(LegError::Order { expected: known.next_leg, found: leg });
        }
        if known.grants.len() == LEGS_AHEAD_MAX {
            return Err(LegError::TooManyAhead { most: LEGS_AHEAD_MAX as u32 });
        }
        let ((_, block_tokens), (_, blocks)) = (pair.block_tokens(), pair.blocks());
        if grant.blocks.is_empty() {
            return Err(LegError::NoBlocks);
        }
        if grant.blocks.len() > BLOCKS_MAX {
            return Err(LegError::TooManyBlocks(grant.blocks.len()));
        }
        if grant.skip >= block_tokens {
            return Err(LegError::Skip { skip: grant.skip, block_tokens });
        }
        if let Some(&block) = grant.blocks.iter().chain(&grant.once).find(|&&block| block >= blocks) {
            return Err(LegError::NoSuchBlock { block, blocks });
        }
        let room = grant.blocks.len() as u64 * u64::from(block_tokens) - u64::from(grant.skip);
        if grant.capacity == 0 || grant.capacity > room {
            return Err(LegError::Capacity { leg, room, said: grant.capacity });
        }
        if leg == 0 && grant.once.is_none() && pair.has_once() {
            return Err(LegError::OnceMissing);
        }
        match (self.begin, self.chunks.total) {
            (Some(expected), _) if leg == 0 && expected != grant.from => {
                Err(LegError::Begin { expected, said: grant.from })
            }
            (Some(expected), _) if grant.from < expected => Err(LegError::Begin { expected, said: grant.from }),
            (_, Some(known)) if leg == 0 && grant.from > known => Err(LegError::Total { known, said: grant.from }),
            _ => Ok(Some(at)),
        }
    }
}
