//! What a source refuses by itself, and what is remembered of how it failed.
//!
//! Some of what a rank of the sink says can never become right: its layout does not fit, both sides count their ranks otherwise, or one
//! waits to be sent what the other lends. Nobody would come back from that before the deadline, so both sides end at once, with the same
//! cause and the same words.

use std::collections::VecDeque;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{ControlMessage, Fail, TransferHead};
use penstock_session::transfers::table::EntryKey;
use penstock_session::{PeerKey, TransferId};

use super::TransferManager;
use super::flow::Flow;
use super::heard::{NotTaken, nobody};
use crate::cause::FlowCause;
use crate::output::SendFailed;
use crate::part::bounded;
use crate::shards::Unfit;

/// The most failed sources of which is remembered why they failed.
const EPITAPHS_MAX: usize = 1024;

/// Why sources failed that are let go of: who asks for one later hears the same as who was there.
#[derive(Debug, Default)]
pub(super) struct Epitaphs {
    /// The oldest first.
    words: VecDeque<(Timestamp, TransferId, FlowCause, String)>,
}

impl Epitaphs {
    fn note(&mut self, until: Timestamp, transfer: TransferId, failed: &SendFailed, now: Timestamp) {
        while self.words.front().is_some_and(|(until, ..)| *until <= now) || self.words.len() >= EPITAPHS_MAX {
            self.words.pop_front();
        }
        self.words.push_back((until, transfer, failed.cause, failed.words.clone()));
    }

    /// Why a source of this name failed.
    pub(super) fn of(&self, transfer: TransferId) -> Option<(FlowCause, &str)> {
        let found = self.words.iter().rev().find(|(_, of, ..)| *of == transfer)?;
        Some((found.2, &found.3))
    }
}

/// What is refused to a rank of the sink: why, and in words that both sides understand.
pub(super) type RankRefusal = (FlowCause, String);

/// In words of both sides, whose "here" are different ones.
pub(super) fn unfit(transfer: TransferId, unfit: &Unfit, (here, there): (&str, &str)) -> RankRefusal {
    (FlowCause::Unfit, format!("{transfer}: {}", unfit.between(here, there)))
}

impl TransferManager {
    /// Tells a rank of the sink why it gets nothing, and nobody else: the source serves others.
    pub(super) fn turn_away(&mut self, peer: PeerKey, transfer: TransferId, (cause, words): RankRefusal) -> NotTaken {
        let head = nobody(transfer);
        self.say(
            peer,
            ControlMessage::Fail(Fail { head, cause: cause.code(), words: bounded(words), missing: Vec::new() }),
        );
        NotTaken::Counted
    }

    /// What a rank of the sink says can never become right: the source fails, and so does whoever said it. A rank that another engine has
    /// is not disturbed by that.
    pub(super) fn refuse(
        &mut self,
        key: EntryKey,
        peer: PeerKey,
        theirs: TransferHead,
        refusal: RankRefusal,
    ) -> NotTaken {
        let (cause, words) = refusal;
        if planted::is(Bug::OwnRefusalUnheard) {
            return NotTaken::Answered { leg: 0, code: cause, expected: 0 };
        }
        let TransferHead { transfer, rank, ranks, .. } = theirs;
        let failed = match self.flow(key) {
            Some(Flow::Source(source)) => source.legs.failure(),
            Some(Flow::Lent(lent)) => lent.loans.failure(),
            _ => None,
        };
        if let Some(failed) = failed {
            // Who is late to a failure hears of it, in its own words.
            let failed = (failed.cause, failed.words.clone());
            return self.turn_away(peer, transfer, failed);
        }
        let is_told = match self.flow_mut(key) {
            Some(Flow::Source(source)) if source.legs.peer(rank).is_none_or(|of| of == peer) => {
                // Who is none of its ranks hears it apart.
                let is_rank = source.legs.claim(rank, ranks, peer, false).is_ok();
                source.legs.refused_here(rank, cause, words.clone());
                is_rank
            }
            Some(Flow::Lent(lent)) if lent.places.peer(rank).is_none_or(|of| of == peer) => {
                let is_rank = lent.places.claim(rank, ranks, peer, false).is_ok();
                lent.loans.refused_here(rank, cause, words.clone());
                is_rank
            }
            _ => false,
        };
        if is_told { NotTaken::Counted } else { self.turn_away(peer, transfer, (cause, words)) }
    }

    /// A transfer is let go of: of a source that has failed it is remembered why, as long as its name is.
    pub(super) fn remember_why(&mut self, flow: &Flow, now: Timestamp) {
        let failed = match flow {
            Flow::Source(source) => source.legs.failure(),
            Flow::Lent(lent) => lent.loans.failure(),
            Flow::Sink(_) | Flow::Pull(_) => None,
        };
        if let Some(failed) = failed {
            let until = now + self.settings.transfers.tomb_age;
            self.epitaphs.note(until, flow.head().transfer, failed, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_session::control::Side;

    use super::*;

    #[test]
    fn so_many_failures_are_remembered_for_so_long() {
        let (mut epitaphs, now) = (Epitaphs::default(), Timestamp::from_ns(1));
        let transfer = |number: usize| TransferId::from_bytes((number as u128).to_le_bytes());
        let failed = |number: usize| SendFailed {
            cause: FlowCause::SourceFailed,
            said_by: Side::Source,
            sink: None,
            words: format!("{number}"),
        };
        let later = now + Duration::from_secs(1);
        (0..=EPITAPHS_MAX).for_each(|number| epitaphs.note(later, transfer(number), &failed(number), now));
        assert_eq!(epitaphs.of(transfer(0)), None, "there were too many");
        assert_eq!(epitaphs.of(transfer(1)), Some((FlowCause::SourceFailed, "1")));
        epitaphs.note(later + Duration::from_secs(1), transfer(0), &failed(7), later);
        assert_eq!((epitaphs.words.len(), epitaphs.of(transfer(0))), (1, Some((FlowCause::SourceFailed, "7"))));
    }
}
