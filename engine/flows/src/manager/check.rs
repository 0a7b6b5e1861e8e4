//! Whether what the transfer manager keeps agrees with itself: for simulations and tests.

use std::collections::BTreeSet;

use penstock_core::Timestamp;
use penstock_session::transfers::table::EntryKey;

use super::flow::Flow;
use super::{RELAY, TransferManager, part_of};
use crate::action::{Action, BlocksRef, MoveId};

/// Two things that the transfer manager keeps do not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistency {
    /// A table says something that another one does not.
    #[error("tables disagree: {0}")]
    Tables(String),
    /// What is kept for transfers is not what they say that they have.
    #[error("blocks are not accounted for: {0}")]
    Blocks(String),
    /// Credits do not add up.
    #[error("credits do not add up: {0}")]
    Credits(String),
}

impl TransferManager {
    /// Looks whether all tables agree with each other. It looks at every transfer.
    pub fn check(&self) -> Result<(), Inconsistency> {
        let tables = |text: String| Err(Inconsistency::Tables(text));
        self.transfers.check().map_err(Inconsistency::Tables)?;
        self.relays.check().map_err(Inconsistency::Credits)?;
        let of_pins = || self.pins().map_or(Ok(()), |pins| pins.check_counts());
        self.check_lives().and_then(|()| of_pins()).map_err(|words| Inconsistency::Tables(words.to_owned()))?;
        for (id, (key, sink, number)) in self.moves.iter() {
            match self.flow(key) {
                Some(Flow::Source(source)) if source.moves.get(&(sink, number)) == Some(&id) => {}
                Some(Flow::Pull(pulled)) if pulled.moves.get(&(sink, number)) == Some(&id) => {}
                _ => return tables(format!("move {} is of a transfer that does not know it", id.0)),
            }
        }
        self.check_timers()?;
        for (key, held) in self.transfers.iter() {
            let flow = &held.flow;
            let moves = match flow {
                Flow::Source(source) => &source.moves,
                Flow::Pull(pulled) => &pulled.moves,
                Flow::Sink(_) | Flow::Lent(_) => continue,
            };
            let is_known = |(to, id): (&(u16, u64), &MoveId)| self.moves.get(*id) == Some((key, to.0, to.1));
            if !moves.iter().all(is_known) {
                return tables(format!("{key:?} has a part under way that is no move"));
            }
        }
        self.tickets().map(drop)
    }

    /// Every transfer that waits for a moment has a timer, and the first timer is of one that waits for it.
    fn check_timers(&self) -> Result<(), Inconsistency> {
        let timers: BTreeSet<(Timestamp, EntryKey)> = self.timers.iter().collect();
        let mut waiting = 0;
        for (key, held) in self.transfers.iter() {
            let until = held.deadline();
            waiting += usize::from(until != Timestamp::NEVER);
            if held.armed != until || until != Timestamp::NEVER && !timers.contains(&(until, key)) {
                return Err(Inconsistency::Tables(format!(
                    "{key:?} waits until {} ns and has no timer",
                    until.as_ns()
                )));
            }
        }
        let first =
            self.timers.first().filter(|(at, key)| self.transfers.get(*key).is_none_or(|held| held.deadline() != *at));
        if let Some((at, _)) = first {
            let words = format!("a timer at {} ns is of no transfer that waits for it", at.as_ns());
            return Err(Inconsistency::Tables(words));
        }
        if waiting != self.timers.wanted() {
            return Err(Inconsistency::Tables(format!(
                "{waiting} transfers wait, and {} are counted",
                self.timers.wanted()
            )));
        }
        Ok(())
    }

    /// Whether all that is kept is kept for transfers: swaps have theirs, and so have pins.
    pub fn keeps_for_transfers_only(&self) -> bool {
        self.lives.is_empty() && self.keeping.is_empty()
    }

    /// What is kept for transfers: until its letting go was carried out it counts as kept.
    pub fn tickets(&self) -> Result<BTreeSet<BlocksRef>, Inconsistency> {
        let mut kept = BTreeSet::new();
        let of_flows = self.transfers.iter().flat_map(|(_, held)| held.flow.tickets());
        let let_go = self.actions.iter().filter_map(|action| match action {
            Action::Free { ticket } => Some(*ticket),
            _ => None,
        });
        // Berths that are quarantined are the relay's own to keep.
        let is_kept = |ticket: &BlocksRef| part_of(ticket.0) != RELAY;
        for ticket in of_flows.chain(let_go).chain(self.relays.tickets()).filter(is_kept) {
            if !kept.insert(ticket) {
                return Err(Inconsistency::Blocks(format!("ticket {} is kept or let go twice", ticket.0)));
            }
        }
        Ok(kept)
    }
}

impl Flow {
    fn tickets(&self) -> Vec<BlocksRef> {
        match self {
            Self::Source(source) => source.legs.keeps().to_vec(),
            Self::Sink(sink) => sink.legs.keeps().collect(),
            Self::Lent(lent) => lent.loans.keeps().to_vec(),
            Self::Pull(pulled) => pulled.pull.legs().keeps().collect(),
        }
    }
}
