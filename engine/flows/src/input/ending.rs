//! How a transfer ends early at its sink, and how its blocks come back then.

use penstock_core::Timestamp;
use penstock_session::control::{Abort, ControlMessage, Fail, MISSING_MAX, Missing, Refused, Side};

use super::leg::{Leg, LegEvent};
use super::legs::SinkLegs;
use super::link::{Link, LinkEvent};
use super::{Failed, SinkWish};
use crate::cause::FlowCause;
use crate::part::{LegError, bounded};
use crate::status::StatusEvent;

impl SinkLegs {
    /// When something has to be done though nothing happens.
    pub fn deadline(&self) -> Timestamp {
        if !self.status.is_end() {
            return self.how.deadline.min(self.waits_until());
        }
        if self.legs.iter().any(|leg| leg.state == Leg::Stopping) { self.abort_by } else { Timestamp::NEVER }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        if !self.status.is_end() && now >= self.how.deadline {
            let words = match self.wanted() {
                Some(tokens) => format!("its time was over; no memory for {tokens} more tokens was granted"),
                None => format!("its time was over; {} tokens had come", self.confirmed() - self.how.begin),
            };
            self.fail(FlowCause::Deadline, Side::Sink, None, words, now);
        }
        if let Some(at) = self.sources.iter().position(|source| source.until <= now) {
            let rank = self.sources[at].rank;
            let words =
                format!("the session with the source of rank {rank} broke, and it has not gone on in another one");
            self.fail(FlowCause::PeerLost, Side::Sink, Some(at), words, now);
        }
        if self.status.is_end() && now >= self.abort_by {
            for place in 0..self.legs.len() {
                self.hold(place, LegEvent::Late);
            }
        }
    }

    /// The application gives it up: what has landed is let go as well.
    pub fn abort(&mut self, now: Timestamp) {
        if !self.status.is_end() {
            self.fail(FlowCause::Aborted, Side::Sink, None, "its application gave it up".into(), now);
        }
        self.step_all(Leg::Landed, LegEvent::Abort);
    }

    /// The application has failed; what has landed stays until it is taken.
    pub fn fail_here(&mut self, cause: FlowCause, words: &str, now: Timestamp) {
        self.fail(cause, Side::Sink, None, words.into(), now);
    }

    /// A source has said that it failed.
    pub fn failed_there(&mut self, source: u16, fail: &Fail, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        self.fail(FlowCause::of_code(fail.cause), Side::Source, Some(at), fail.words.clone(), now);
        Ok(())
    }

    /// A source has refused a grant.
    pub fn refused_there(&mut self, source: u16, refused: &Refused, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        let &Refused { leg, code, expected, .. } = refused;
        if leg >= self.next_leg {
            return Err(LegError::NoSuchLeg { leg, next: self.next_leg });
        }
        let cause = FlowCause::of_code(code);
        let words = match cause {
            FlowCause::Unfit => format!(
                "rank {source} of the source has nothing for this rank, or its layout does not fit: give both sides the same numbers of ranks, or name who needs what of whom"
            ),
            _ => format!("the source refused leg {leg}; it expected leg {expected}"),
        };
        self.fail(cause, Side::Source, Some(at), words, now);
        Ok(())
    }

    /// A source has answered an abort. It is drained when nothing of it can land any more.
    pub fn drained(&mut self, source: u16, number: u32, is_drained: bool) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        let link = self.sources[at].link;
        if link == Link::Open || link.is_waited_for() || number != self.abort_number {
            return Err(LegError::NoSuchAbort { number });
        }
        if is_drained {
            self.quiet(at, LegEvent::Drained);
        }
        Ok(())
    }

    /// The session with a source is over, which proves nothing of what it still does: the transfer waits for another one, or has failed.
    /// Answers whether a proof is needed that nothing lands any more.
    pub fn lost(&mut self, source: u16, now: Timestamp) -> Result<bool, LegError> {
        let at = self.source_at(source)?;
        let before = self.sources[at].link;
        if before == Link::Quiet {
            return Ok(false);
        }
        if self.breaks(at, now) {
            // Nothing was granted in a session that came behind a broken one, before the proof for that.
            return Ok(before == Link::Open);
        }
        self.sources[at].on(LinkEvent::Lose);
        self.fail(FlowCause::PeerLost, Side::Sink, Some(at), format!("the source of rank {source} is gone"), now);
        self.hold_all();
        // A proof that was asked for before is still to come, and it alone is one.
        Ok(matches!(before, Link::Open | Link::Asked))
    }

    /// It is proven that nothing of a source's session that is over can land any more.
    pub fn proven_quiet(&mut self, source: u16, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        if self.proves(at) {
            return Ok(());
        }
        if !self.status.is_end() {
            self.lost(source, now)?;
        }
        self.quiet(at, LegEvent::Proof);
        Ok(())
    }

    /// The one way in which a transfer fails.
    pub(super) fn fail(
        &mut self,
        cause: FlowCause,
        said_by: Side,
        source: Option<usize>,
        words: String,
        now: Timestamp,
    ) {
        if self.status.is_end() {
            return;
        }
        self.end = Some((cause, self.confirmed()));
        self.status.on(StatusEvent::Fault);
        let words = bounded(words);
        let (missing, blocks) = self.missing();
        let rank = source.map(|at| self.sources[at].rank);
        self.told(Failed { cause, said_by, source: rank, words: words.clone(), missing, blocks });
        self.abort_number += 1;
        self.abort_by = now + self.how.abort_within;
        for at in 0..self.sources.len() {
            let (rank, link) = (self.sources[at].rank, self.sources[at].link);
            self.sources[at].until = Timestamp::NEVER;
            // Also who is not there is to know: it may wait for the next session, and hears it there.
            if link != Link::Quiet && (said_by == Side::Sink || source != Some(at)) {
                let fail = Fail { head: self.head, cause: cause.code(), words: words.clone(), missing: Vec::new() };
                self.wishes.push_back(SinkWish::Say { source: rank, said: ControlMessage::Fail(fail) });
            }
            if link != Link::Open {
                self.sources[at].on(LinkEvent::Ask);
                continue;
            }
            if self.next_leg == 0 {
                // Nothing was granted, so nothing can land.
                self.sources[at].on(LinkEvent::Rest);
                continue;
            }
            self.sources[at].on(LinkEvent::Ask);
            // What is read from here is stopped here.
            if !self.is_read {
                let abort = Abort { head: self.head, number: self.abort_number };
                self.wishes.push_back(SinkWish::Say { source: rank, said: ControlMessage::Abort(abort) });
            }
        }
        self.step_all(Leg::Granted, LegEvent::Abort);
        if self.sources.iter().any(|source| source.link == Link::Lost) {
            self.hold_all();
        }
        self.free_if_quiet(LegEvent::Drained);
    }

    /// Layers and blocks that did not arrive, in the order in which they were granted.
    fn missing(&self) -> (Vec<Missing>, Vec<u32>) {
        let (mut runs, mut blocks): (Vec<Missing>, Vec<u32>) = (Vec::new(), Vec::new());
        for leg in self.legs.iter().filter(|leg| leg.state == Leg::Granted) {
            let mut misses = vec![false; leg.blocks.len()];
            for layer in 0..leg.told.len() {
                for places in leg.blocks_missing(layer, self.how.layout.block_tokens(), self.total) {
                    misses[places.start as usize..places.end as usize].fill(true);
                    let first = u32::try_from(leg.first_place + u64::from(places.start)).unwrap_or(u32::MAX);
                    let (layer, count) = (layer as u32, places.end - places.start);
                    let is_full = runs.len() == MISSING_MAX;
                    match runs.last_mut() {
                        Some(run) if run.layer == layer && run.first.saturating_add(run.count) == first => {
                            run.count = run.count.saturating_add(count);
                        }
                        _ if is_full => {}
                        _ => runs.push(Missing { layer, first, count }),
                    }
                }
            }
            blocks.extend(leg.blocks.iter().zip(misses).filter(|(_, misses)| *misses).map(|(block, _)| *block));
        }
        (runs, blocks)
    }

    /// Nothing of this source can land any more. Blocks come back when that is so of all of them.
    pub(super) fn quiet(&mut self, at: usize, event: LegEvent) {
        self.sources[at].on(LinkEvent::Rest);
        self.free_if_quiet(event);
    }

    fn free_if_quiet(&mut self, event: LegEvent) {
        if self.sources.iter().all(|source| source.link == Link::Quiet) {
            for place in 0..self.legs.len() {
                // A leg that waits for an answer has it now, whoever proved the last one quiet.
                let event = if self.legs[place].state == Leg::Stopping { LegEvent::Drained } else { event };
                self.step(place, event);
            }
            self.forget_freed();
        }
    }

    fn hold_all(&mut self) {
        for place in 0..self.legs.len() {
            self.hold(place, LegEvent::Lose);
        }
    }

    /// A leg goes on to where its blocks are kept from everybody, if it does.
    fn hold(&mut self, place: usize, event: LegEvent) {
        let before = self.legs[place].state;
        self.step(place, event);
        if before != Leg::Quarantined && self.legs[place].state == Leg::Quarantined {
            let open = self.sources.iter().filter(|source| source.link != Link::Quiet);
            let sources = open.map(|source| source.rank).collect();
            self.wishes.push_back(SinkWish::Quarantine { ticket: self.legs[place].keep, sources });
        }
    }

    fn step_all(&mut self, state: Leg, event: LegEvent) {
        for place in 0..self.legs.len() {
            if self.legs[place].state == state {
                self.step(place, event);
            }
        }
        self.forget_freed();
    }
}
