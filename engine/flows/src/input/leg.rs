//! One leg at its sink: what was granted, what of it has landed, and when its blocks may be let go.

use std::ops::Range;

use penstock_core::planted::{self, Bug};
use penstock_session::few::Few;
use penstock_session::machine::Step;

use crate::action::BlocksRef;
use crate::part::PartLanded;
use crate::runs::Runs;

penstock_session::machine! {
    /// A leg's blocks. They are let go once: when what landed was copied out and nothing can land any more, or when it is proven that
    /// nothing can.
    pub Leg on LegEvent {
        states {
            /// Bytes may land in its blocks at any time.
            Granted,
            /// Everything that will come is there.
            Landed,
            /// The sources were asked to stop.
            Stopping,
            /// Nobody answers: its blocks are kept until it is proven that nothing can land.
            Quarantined,
        }
        ends {
            /// Its blocks were let go.
            Freed,
        }
        events {
            /// A part has landed.
            Part,
            /// The last part has landed.
            LastPart,
            /// Everything has come, and nothing of it was for this leg.
            Spare,
            /// What landed was copied out, or handed over.
            CopiedOut,
            /// The transfer was given up.
            Abort,
            /// A source is gone, and nobody knows what it still does.
            Lose,
            /// All sources have said that nothing can land any more.
            Drained,
            /// They have not said so in time.
            Late,
            /// It is proven that nothing can land any more.
            Proof,
        }
        Granted { Part => Granted, LastPart => Landed, Spare => Freed, Abort => Stopping, Lose => Quarantined }
        Landed { Part => Landed, LastPart => Landed, CopiedOut => Freed, Abort => Freed, Lose => Landed }
        Stopping {
            Part => Stopping, LastPart => Stopping, Abort => Stopping, Lose => Quarantined, Drained => Freed, Late => Quarantined
        }
        Quarantined {
            Part => Quarantined, LastPart => Quarantined, Abort => Quarantined, Lose => Quarantined, Late => Quarantined,
            Drained => Freed, Proof => Freed
        }
    }
}

impl Leg {
    /// Whether something may still land in its blocks.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Granted | Self::Stopping | Self::Quarantined)
    }
}

/// A leg and what belongs to it.
#[derive(Debug)]
pub(crate) struct Granting {
    pub(crate) number: u32,
    pub(crate) state: Leg,
    /// The first token and how many there is room for, as they were granted.
    pub(crate) from: u64,
    pub(crate) capacity: u64,
    /// The first token and how many the leg takes, as the sources say.
    pub(crate) agreed: Option<(u64, u64)>,
    pub(crate) blocks: Vec<u32>,
    pub(crate) skip: u32,
    pub(crate) once: Option<u32>,
    pub(crate) keep: BlocksRef,
    /// The place of its first block among all that were granted.
    pub(crate) first_place: u64,
    /// What has landed: of each source all layers, one source behind the other.
    pub(crate) landed: Few<Runs>,
    /// Layers that the application was told of.
    pub(crate) told: Few<bool>,
}

impl Granting {
    /// Where the next leg begins.
    pub(crate) fn end(&self) -> u64 {
        let (from, tokens) = self.agreed.unwrap_or((self.from, self.capacity));
        from.saturating_add(tokens)
    }

    /// Its first token, and the one behind its last, when the source has so many in all.
    pub(crate) fn range(&self, total: Option<u64>) -> (u64, u64) {
        let (from, tokens) = self.agreed.unwrap_or((self.from, self.capacity));
        let end = from.saturating_add(tokens);
        (from, total.map_or(end, |total| total.min(end)).max(from))
    }

    /// What of a source has landed, by layer.
    pub(crate) fn of_source(&self, source: usize) -> &[Runs] {
        let layers = self.told.len();
        &self.landed[source * layers..][..layers]
    }

    fn of_source_mut(&mut self, source: usize) -> &mut [Runs] {
        let layers = self.told.len();
        &mut self.landed[source * layers..][..layers]
    }

    /// What of a layer has landed, by source.
    fn of_layer(&self, layer: usize) -> impl Iterator<Item = &Runs> {
        self.landed.iter().skip(layer).step_by(self.told.len().max(1))
    }

    /// Whether a layer is there as a whole, of every source.
    pub(crate) fn has_layer(&self, layer: usize, total: Option<u64>) -> bool {
        let (from, end) = self.range(total);
        self.agreed.is_some() && self.of_layer(layer).all(|runs| runs.has(from..end))
    }

    /// The first token that is not there in all layers of all sources.
    pub(crate) fn confirmed(&self, total: Option<u64>) -> u64 {
        let (from, end) = self.range(total);
        self.landed.iter().map(|runs| runs.first_missing(from)).min().unwrap_or(from).min(end)
    }

    /// Whether everything of it is there.
    pub(crate) fn is_whole(&self, total: Option<u64>) -> bool {
        (0..self.told.len()).all(|layer| self.has_layer(layer, total))
    }

    /// Forgets what of a source stands behind a gap in some layer: it is sent again. Answers the first token that comes again, if any does.
    pub(crate) fn forget_scattered(&mut self, source: usize, total: Option<u64>) -> Option<u64> {
        let (from, end) = self.range(total);
        let missing = self.of_source(source).iter().map(|runs| runs.first_missing(from)).min().unwrap_or(end);
        if missing >= end {
            return None;
        }
        for runs in self.of_source_mut(source) {
            *runs = Runs::default();
            runs.add(from..missing);
        }
        if planted::is(Bug::GapSkipped) {
            for runs in self.of_source_mut(source) {
                runs.add(from..(missing + 1).min(end));
            }
            return Some((missing + 1).min(end));
        }
        Some(missing)
    }

    /// Marks a part of a source; what is checked is that no part of it was there.
    pub(crate) fn mark(&mut self, source: usize, part: &PartLanded) {
        let mut range = part.from..part.from + part.tokens;
        if planted::is(Bug::LegCountedTwice) {
            range.end = (range.end + part.tokens).min(part.leg_from + part.leg_tokens).max(range.end);
        }
        match part.layer {
            Some(layer) => {
                self.of_source_mut(source)[layer as usize].add(range);
            }
            None => self.of_source_mut(source).iter_mut().for_each(|runs| {
                runs.add(range.clone());
            }),
        }
    }

    /// Goes where the event leads; says whether the blocks are to be let go, which happens once.
    pub(crate) fn on(&mut self, event: LegEvent) -> bool {
        let Step::Go(next) = self.state.step(event) else { return false };
        self.state = next;
        next == Leg::Freed
    }

    /// Runs of places, from the leg's first, of blocks that a layer of some source is missing.
    pub(crate) fn blocks_missing(&self, layer: usize, block_tokens: u32, total: Option<u64>) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        let (from, end) = self.range(total);
        let block_tokens = u64::from(block_tokens);
        // Blocks behind the last token miss nothing.
        let needed = if end > from { (end - from).saturating_add(self.skip.into()).div_ceil(block_tokens) } else { 0 };
        let count = needed.min(self.blocks.len() as u64) as u32;
        if count > 0 && self.of_layer(layer).any(|runs| runs.count() == 0) {
            runs.push(0..count);
            return runs;
        }
        let is_there = |place: u32| {
            let start = (u64::from(place) * block_tokens).saturating_sub(u64::from(self.skip));
            let behind = ((u64::from(place) + 1) * block_tokens).saturating_sub(u64::from(self.skip));
            let (start, behind) = (from.saturating_add(start).min(end), from.saturating_add(behind).min(end));
            self.of_layer(layer).all(|runs| runs.has(start..behind))
        };
        for place in (0..count).filter(|&place| !is_there(place)) {
            match runs.last_mut() {
                Some(run) if run.end == place => run.end += 1,
                _ => runs.push(place..place + 1),
            }
        }
        runs
    }
}
