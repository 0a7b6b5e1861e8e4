//! Whether what is said of legs makes sense at their sink: everything is looked at before anything changes.

use penstock_core::planted::{self, Bug};
use penstock_session::control::{BLOCKS_MAX, EndOfData};

use super::leg::Leg;
use super::legs::SinkLegs;
use crate::part::{LegError, PartLanded};
use crate::repeated::repeated;
use crate::runs::{Added, Runs};
use crate::status::Status;

impl SinkLegs {
    pub(super) fn may_go_on(&self) -> Result<(), LegError> {
        match (self.status, self.end) {
            (_, Some((cause, _))) => Err(LegError::Ended(cause)),
            (Status::Success, _) => Err(LegError::Done),
            _ => Ok(()),
        }
    }

    pub(super) fn room_of(&self, blocks: &[u32], skip: u32) -> Result<u64, LegError> {
        let (block_tokens, most) = (self.how.layout.block_tokens(), self.how.layout.blocks());
        if blocks.is_empty() {
            return Err(LegError::NoBlocks);
        }
        if blocks.len() > BLOCKS_MAX {
            return Err(LegError::TooManyBlocks(blocks.len()));
        }
        if skip >= block_tokens {
            return Err(LegError::Skip { skip, block_tokens });
        }
        if let Some(&block) = blocks.iter().find(|&&block| block >= most) {
            return Err(LegError::NoSuchBlock { block, blocks: most });
        }
        let is_granted = |block: &&u32| self.blocks_granted.contains_key(block);
        if let Some(block) = repeated(blocks).or_else(|| blocks.iter().find(is_granted).copied()) {
            return Err(LegError::BlockTwice { block });
        }
        Ok(blocks.len() as u64 * u64::from(block_tokens) - u64::from(skip))
    }

    /// Whether a grant leaves alone what was copied, and the first one begins right behind it.
    pub(super) fn check_tail(&self, leg: u32, blocks: &[u32], skip: u32) -> Result<(), LegError> {
        let Some(tail) = &self.how.tail else { return Ok(()) };
        let expected = (tail.tokens % u64::from(self.how.layout.block_tokens())) as u32;
        if leg == 0 && skip != expected && !planted::is(Bug::TailOverwritten) {
            return Err(LegError::Tail { expected, said: skip });
        }
        if planted::is(Bug::TailElsewhere) {
            return Ok(());
        }
        match (tail.ends_in.first(), blocks.first()) {
            (Some(&expected), Some(&found)) if leg == 0 && !tail.ends_in.contains(&found) => {
                Err(LegError::TailBlock { expected, found })
            }
            _ => match blocks.iter().find(|block| tail.full.contains(block)) {
                Some(&block) => Err(LegError::TailFull { block }),
                None => Ok(()),
            },
        }
    }

    pub(super) fn source_at(&self, rank: u16) -> Result<usize, LegError> {
        self.sources.iter().position(|source| source.rank == rank).ok_or(LegError::NoSuchRank { rank })
    }

    /// Whether a part makes sense, and of which source it is; nothing if it was told before, or does not matter any more.
    pub(super) fn check_part(&self, source: u16, part: &PartLanded) -> Result<Option<usize>, LegError> {
        let at = self.source_at(source)?;
        let numbers = &self.sources[at].numbers;
        if self.status.is_end() || numbers.has(part.number..part.number.saturating_add(1)) {
            return Ok(None);
        }
        let PartLanded { leg, from, tokens, leg_from, leg_tokens, .. } = *part;
        if let Some(parts) = self.sources[at].seal.filter(|&parts| part.number >= parts) {
            return Err(LegError::Sealed { number: part.number, parts });
        }
        if leg >= self.next_leg {
            return Err(LegError::NoSuchLeg { leg, next: self.next_leg });
        }
        let granting = self.granting(leg).filter(|granting| granting.state != Leg::Freed);
        let granting = granting.ok_or(LegError::Freed { leg })?;
        let disagrees = LegError::Disagrees { leg, said_from: leg_from, said: leg_tokens };
        let is_as_said = granting.agreed.is_none_or(|agreed| agreed == (leg_from, leg_tokens));
        let is_granted = leg_from <= granting.from && (1..=granting.capacity).contains(&leg_tokens);
        if !is_as_said || !is_granted || !self.follows(leg, leg_from, leg_tokens) {
            return Err(disagrees);
        }
        let end = from.checked_add(tokens).filter(|&end| tokens > 0 && end <= leg_from.saturating_add(leg_tokens));
        let end = end.filter(|_| from >= leg_from).ok_or(LegError::OutOfLeg { leg, from, tokens })?;
        if let Some((known, said)) = self.total.zip(part.total).filter(|(known, said)| known != said) {
            return Err(LegError::Total { known, said });
        }
        self.check_total(self.total.or(part.total), end)?;
        let layers = self.how.layout.layers();
        if let Some(layer) = part.layer.filter(|&layer| layer >= layers) {
            return Err(LegError::NoSuchLayer { layer, layers });
        }
        let mut of_layers = granting.of_source(at).iter().enumerate();
        let is_free = |(layer, runs): (usize, &Runs)| {
            part.layer.is_some_and(|only| only as usize != layer) || runs.would(&(from..end)) == Added::New
        };
        if !of_layers.all(is_free) {
            return Err(LegError::Overlaps { leg, from, tokens });
        }
        match numbers.would(&(part.number..part.number.saturating_add(1))) {
            Added::New => Ok(Some(at)),
            _ => Err(LegError::Scattered),
        }
    }

    /// Whether a leg begins where the one before ends and ends where the next one begins, as far as that is known.
    pub(super) fn follows(&self, leg: u32, from: u64, tokens: u64) -> bool {
        let before = match leg.checked_sub(1).and_then(|before| self.granting(before)) {
            Some(before) => before.agreed.is_none_or(|(before, tokens)| before.saturating_add(tokens) == from),
            None => self.legs.front().is_some_and(|first| first.number != leg) || from == self.settled,
        };
        let behind = self.granting(leg + 1).and_then(|behind| behind.agreed);
        before && from >= self.settled && behind.is_none_or(|(behind, _)| from.saturating_add(tokens) == behind)
    }

    pub(super) fn check_total(&self, total: Option<u64>, end: u64) -> Result<(), LegError> {
        match total {
            Some(said) if said < end => Err(LegError::Total { known: end, said }),
            _ => Ok(()),
        }
    }

    pub(super) fn check_seal(&self, source: u16, seal: &EndOfData) -> Result<Option<usize>, LegError> {
        let at = self.source_at(source)?;
        if self.status.is_end() || self.sources[at].seal.is_some() {
            return Ok(None);
        }
        if let Some(known) = self.total.filter(|&known| known != seal.tokens) {
            return Err(LegError::Total { known, said: seal.tokens });
        }
        let landed = self.legs.iter().flat_map(|leg| &leg.landed).map(Runs::end).max().unwrap_or(0);
        self.check_total(Some(seal.tokens), landed.max(self.settled))?;
        let end = self.sources[at].numbers.end();
        if end > seal.parts {
            return Err(LegError::Sealed { number: end - 1, parts: seal.parts });
        }
        Ok(Some(at))
    }
}
