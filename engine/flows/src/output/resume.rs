//! A rank of the sink whose session broke: it is waited for, and goes on in another session from what its sink has for certain.
//!
//! The sink says what it still needs as grants that resume: of each leg that is not whole there the same blocks again, from the first token
//! that it does not have. A last one, of no blocks and under the number of the next leg, says that this was all. Landings are counted anew
//! in each session: what is still said of the old one is no word of this one.

use std::sync::Arc;

use penstock_core::{Cause, Timestamp};
use penstock_session::control::{Grant, Side};
use penstock_session::transfers::places::{Place, PlaceEvent};

use super::legs::{BrokenSession, SinkRank, SourceLegs};
use super::{SourceWish, Waiting};
use crate::cause::FlowCause;
use crate::part::LegError;
use crate::shards::ShardPair;

impl SourceLegs {
    /// The session with a rank of the sink is over. It is waited for, if it may come back; else the transfer has failed.
    pub fn lost(&mut self, sink: u16, now: Timestamp) -> Result<(), LegError> {
        let at = self.sink_at(sink)?;
        self.sinks[at].abort = None;
        if self.sinks[at].has_all() {
            return Ok(());
        }
        let is_claimed = self.sinks[at].place() != Place::Unclaimed;
        if is_claimed {
            self.on(at, PlaceEvent::Lose);
        }
        let within = self.how.resumes.filter(|_| is_claimed && !self.status.is_end() && now < self.how.deadline);
        let Some(Waiting { broken: within, .. }) = within else {
            self.fail(FlowCause::PeerLost, Side::Source, Some(at), format!("the sink of rank {sink} is gone"));
            return Ok(());
        };
        let kept = &mut self.sinks[at];
        kept.grants.clear();
        // Who has come back and is gone again is waited for anew.
        kept.broken = BrokenSession { until: now + within, ..BrokenSession::NOT };
        let moving = kept.under_way.iter().filter(|(_, is_over_here)| !**is_over_here);
        self.wishes.extend(moving.map(|(&number, _)| SourceWish::Stop { sink, number }));
        Ok(())
    }

    /// When somebody has been waited for long enough.
    pub(super) fn broken_until(&self) -> Timestamp {
        if self.how.resumes.is_none() {
            return Timestamp::NEVER;
        }
        self.sinks.iter().map(|sink| sink.broken.until).min().unwrap_or(Timestamp::NEVER)
    }

    /// Time has passed: who has not come back by now is not waited for any more.
    pub(super) fn expire_broken(&mut self, now: Timestamp) {
        let Some(at) = self.sinks.iter().position(|sink| sink.broken.until <= now) else { return };
        let rank = self.sinks[at].number();
        let (cause, words) = match self.sinks[at].broken.doubt {
            Some(cause) => (FlowCause::Moving(cause), format!("a part to rank {rank} could not be moved")),
            None => {
                let words =
                    format!("the session with the sink of rank {rank} broke, and it has not gone on in another one");
                (FlowCause::PeerLost, words)
            }
        };
        self.fail(cause, Side::Source, Some(at), words);
    }

    /// Whether a part that could not be moved is no failure yet: its session has broken, or seems to, and may be followed by another. One
    /// that breaks is known to after a while; if nothing is known by then, the session stands, and does not carry parts.
    pub(super) fn may_be_sent_again(&mut self, at: usize, cause: Cause, now: Timestamp) -> bool {
        let Some(waits) = self.how.resumes.filter(|_| !self.status.is_end()) else { return false };
        if self.sinks[at].is_broken() {
            return true;
        }
        let is_of_session = matches!(cause, Cause::PeerLost | Cause::PeerClosed | Cause::RailLost);
        let sink = &mut self.sinks[at];
        if is_of_session && sink.broken.doubt.is_none() {
            sink.broken = BrokenSession { until: now + waits.in_doubt, is_told: false, doubt: Some(cause) };
        }
        is_of_session
    }

    /// A rank that goes on says what it still needs, one leg after the other.
    pub(super) fn resumed(&mut self, at: usize, pair: &Arc<ShardPair>, grant: Grant) -> Result<bool, LegError> {
        self.check_resumed(at, pair, &grant)?;
        if !grant.blocks.is_empty() {
            if self.sinks[at].grants.contains_key(&grant.leg) {
                return Ok(false);
            }
            if grant.leg == 0 {
                self.begin.get_or_insert(grant.from);
            }
            self.take_grant(at, pair, grant);
            return Ok(true);
        }
        self.sinks[at].broken.is_told = true;
        self.go_on(at);
        Ok(true)
    }

    /// A rank goes on, once it has said all that it needs and nothing of its old session moves any more.
    pub(super) fn go_on(&mut self, at: usize) {
        let sink = &self.sinks[at];
        if sink.place() != Place::Resuming || !sink.broken.is_told || !sink.under_way.is_empty() || self.status.is_end()
        {
            return;
        }
        let first = sink.grants.keys().next().copied().unwrap_or(self.next_leg);
        while let Some(leg) = self.past.pop_back_if(|leg| leg.number >= first) {
            self.started.push_front(leg);
        }
        let first = self.started.iter().find(|leg| leg.number >= first).map(|leg| leg.from);
        let from = first.or(self.started_end).or(self.begin).unwrap_or(0);
        self.on(at, PlaceEvent::Resumed);
        let sink = &mut self.sinks[at];
        sink.cursors.fill(from);
        (sink.next_number, sink.is_sealed, sink.broken) = (0, false, BrokenSession::NOT);
        self.skip_what_is_there(at);
        self.start_legs();
        self.seal();
    }

    /// Legs that a rank has not granted again are whole there, and of others it has what is before the token that it named.
    pub(super) fn skip_what_is_there(&mut self, at: usize) {
        let sink = &mut self.sinks[at];
        for slot in 0..sink.cursors.len() {
            while let Some(leg) = self.started.iter().find(|leg| leg.has(sink.cursors[slot])) {
                let needed = match sink.grants.get(&leg.number) {
                    None => leg.end(),
                    Some((_, grant)) if grant.resumes => grant.from.min(leg.end()),
                    Some(_) => break,
                };
                if needed <= sink.cursors[slot] {
                    break;
                }
                sink.cursors[slot] = needed;
            }
        }
    }
}
