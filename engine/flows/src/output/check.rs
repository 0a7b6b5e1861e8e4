//! Whether a grant makes sense at its source: everything is looked at before anything changes.

use penstock_session::control::{BLOCKS_MAX, Grant};

use super::legs::{LEGS_AHEAD_MAX, SinkRank, SourceLegs};
use crate::part::LegError;
use crate::shards::ShardPair;
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
        self.sinks.at(rank).ok_or(LegError::NoSuchRank { rank })
    }

    /// Whether a grant of the next leg makes sense; `false` if it was said before.
    pub(super) fn check_grant(&self, at: usize, pair: &ShardPair, grant: &Grant) -> Result<bool, LegError> {
        self.may_go_on()?;
        let known = &self.sinks[at];
        let leg = grant.leg;
        if known.is_broken() && !known.broken.is_told {
            return Err(LegError::Broken { rank: known.number() });
        }
        if leg < known.next_leg {
            return match known.grants.get(&leg) {
                Some((_, old)) if old != grant => Err(LegError::Differs { leg }),
                _ => Ok(false),
            };
        }
        if leg > known.next_leg {
            return Err(LegError::Order { expected: known.next_leg, found: leg });
        }
        if grant.resumes && grant.blocks.is_empty() {
            // Nothing of what came before was heard here: there is nothing to go on from.
            return Ok(false);
        }
        self.check_room(at, pair, grant)?;
        match (self.begin, self.chunks.total) {
            (Some(expected), _) if leg == 0 && expected != grant.from => {
                Err(LegError::Begin { expected, said: grant.from })
            }
            (Some(expected), _) if grant.from < expected => Err(LegError::Begin { expected, said: grant.from }),
            (_, Some(known)) if leg == 0 && grant.from > known => Err(LegError::Total { known, said: grant.from }),
            _ => Ok(true),
        }
    }

    /// Whether a grant of a rank that goes on in another session makes sense: it names a leg that was granted before, or the next one, and
    /// has room for what that takes.
    pub(super) fn check_resumed(&self, at: usize, pair: &ShardPair, grant: &Grant) -> Result<(), LegError> {
        self.may_go_on()?;
        let (known, leg) = (&self.sinks[at], grant.leg);
        if known.broken.is_told || leg > known.next_leg || grant.blocks.is_empty() && leg != known.next_leg {
            return Err(LegError::Order { expected: known.next_leg, found: leg });
        }
        if grant.blocks.is_empty() {
            return Ok(());
        }
        if let Some((_, old)) = known.grants.get(&leg) {
            return if old == grant { Ok(()) } else { Err(LegError::Differs { leg }) };
        }
        if leg < self.next_leg {
            let started = self.started.iter().chain(&self.past).find(|started| started.number == leg);
            let started = started.ok_or(LegError::Freed { leg })?;
            if grant.capacity < started.tokens {
                return Err(LegError::Capacity { leg, room: grant.capacity, said: started.tokens });
            }
        }
        match self.begin {
            Some(expected) if grant.from < expected => Err(LegError::Begin { expected, said: grant.from }),
            _ => self.check_room(at, pair, grant),
        }
    }

    /// Whether the blocks of a grant are there, and have the room that it says.
    fn check_room(&self, at: usize, pair: &ShardPair, grant: &Grant) -> Result<(), LegError> {
        let leg = grant.leg;
        if self.sinks[at].grants.len() == LEGS_AHEAD_MAX {
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
        Ok(())
    }
}
