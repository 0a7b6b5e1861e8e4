//! What peers say of transfers, and what becomes of moves.

use std::sync::Arc;

use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Timestamp};
use penstock_session::control::{AbortAck, Fail, Grant, PullRequest, ReadOffer, Refused, Side, TransferHead};
use penstock_session::few::{Few, FewMap};
use penstock_session::landing::ArrivalNote;
use penstock_session::transfers::early::{EarlyBody, EarlyMessage};
use penstock_session::transfers::places::{PlaceError, Rank};
use penstock_session::transfers::table::{EntryKey, Route, SHRINK_PERIOD};
use penstock_session::{ControlMessage, PeerKey, TransferId};

use super::TransferManager;
use super::flow::{Flow, SinkTransfer};
use super::refusing::unfit;
use crate::action::{MoveId, Urgency, WatchId};
use crate::cause::FlowCause;
use crate::part::{LegError, PartLanded, bounded};
use crate::partners::LayoutKey;
use crate::shards::ShardPair;

/// What both sides have to be told where one pushes and the other pulls.
const BOTH_OR_NEITHER: &str = "give it `Send::lend` on one side and `Receive::pull` on the other, or neither";

/// What whoever has said something waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The transfer's bytes, or its failure.
    ForBytes,
    /// That nothing can land any more.
    ForQuiet {
        /// The number of its question.
        number: u32,
    },
}

/// Why a word was not taken: it is answered, or only counted.
#[derive(Clone, Copy)]
pub(super) enum NotTaken {
    Answered {
        leg: u32,
        code: FlowCause,
        expected: u32,
    },
    /// Who says so has never had a part in the transfer, so that nothing goes to it: it may be waiting for that.
    Quiet {
        number: u32,
    },
    Counted,
}

impl From<LegError> for NotTaken {
    fn from(_: LegError) -> Self {
        Self::Counted
    }
}

impl TransferManager {
    /// A peer says something of a transfer.
    pub(super) fn hear_of_transfer(&mut self, peer: PeerKey, said: ControlMessage, now: Timestamp) {
        // Of leases and pins nothing is heard here, and of chunks the relay hears.
        let Some(&head) = said.head() else { return self.refused += 1 };
        match self.transfers.known(head.side.other(), head.transfer) {
            Some(key) => {
                self.take_in_said(key, peer, said, now);
                self.carry(key, now);
            }
            None => self.route(head.side.other(), head.transfer, peer, EarlyBody::Said(said), now),
        }
    }

    /// Bytes have landed, a peer says.
    pub(super) fn landing(&mut self, peer: PeerKey, bytes: &[u8], now: Timestamp) {
        let Ok(landing) = ArrivalNote::decode(bytes) else { return self.refused += 1 };
        match self.transfers.known(Side::Sink, landing.transfer) {
            Some(key) => {
                self.take_in_landing(key, peer, &landing, now);
                self.carry(key, now);
            }
            None => self.route(Side::Sink, landing.transfer, peer, EarlyBody::Landing(landing), now),
        }
    }

    /// What was said of a transfer that is not known here, or not any more.
    fn route(&mut self, side: Side, transfer: TransferId, peer: PeerKey, body: EarlyBody, now: Timestamp) {
        let waits = match &body {
            EarlyBody::Said(ControlMessage::Grant(_) | ControlMessage::PullRequest(_)) => Some(Waits::ForBytes),
            EarlyBody::Said(ControlMessage::Abort(abort)) => Some(Waits::ForQuiet { number: abort.number }),
            _ => None,
        };
        match self.transfers.route(side, transfer, peer, body, now) {
            Route::Known(key, body) => {
                self.take_in(key, peer, body, now);
                self.carry(key, now);
            }
            Route::Kept => {
                self.table_due = self.table_due.min(now + self.settings.transfers.early.age);
                // Whoever begins it here hears of the end together with what was granted, and moves nothing.
                if let Some(waits @ Waits::ForQuiet { .. }) = waits {
                    self.answer_late(peer, transfer, waits);
                }
            }
            Route::Dropped(why) => {
                self.refused += 1;
                match waits {
                    Some(Waits::ForBytes) => self.say_unknown(peer, transfer, FlowCause::Refused, &why.to_string()),
                    Some(quiet @ Waits::ForQuiet { .. }) => {
                        // What it has granted before must not outlive this word.
                        self.transfers.forget_early((side, transfer), peer);
                        self.answer_late(peer, transfer, quiet);
                    }
                    None => {}
                }
            }
            Route::Swallowed(_) => waits.into_iter().for_each(|waits| self.answer_late(peer, transfer, waits)),
        }
    }

    /// Who speaks of a transfer that has ended here, and of which nothing is left, hears that.
    fn answer_late(&mut self, peer: PeerKey, transfer: TransferId, waits: Waits) {
        match waits {
            Waits::ForBytes => match self.epitaphs.of(transfer).map(|(cause, words)| (cause, words.to_owned())) {
                Some((cause, words)) => self.say_unknown(peer, transfer, cause, &words),
                None => self.say_unknown(peer, transfer, FlowCause::Aborted, "it has ended there"),
            },
            Waits::ForQuiet { number } => {
                self.say(peer, ControlMessage::AbortAck(AbortAck { head: nobody(transfer), number, is_drained: true }));
            }
        }
    }

    /// Tells a sink that its source knows of no such transfer.
    fn say_unknown(&mut self, peer: PeerKey, transfer: TransferId, cause: FlowCause, words: &str) {
        let head = nobody(transfer);
        self.say(
            peer,
            ControlMessage::Fail(Fail { head, cause: cause.code(), words: bounded(words.into()), missing: Vec::new() }),
        );
    }

    /// What is too old leaves the tables. Who has waited for a transfer that nobody has begun here is told.
    pub(super) fn expire_tables(&mut self, now: Timestamp) {
        if now < self.table_due {
            return;
        }
        self.table_due = self.transfers.expire(now).unwrap_or(Timestamp::NEVER);
        // What is left behind by the last ones is not looked at again.
        if now >= self.shrink_at || self.table_due == Timestamp::NEVER {
            self.shrink();
            self.shrink_at = now + SHRINK_PERIOD;
        }
        for (side, transfer, peer) in self.transfers.take_unwanted() {
            if side == Side::Source {
                self.say_unknown(peer, transfer, FlowCause::Deadline, "nobody has begun it there in time");
            }
        }
    }

    /// What came before its transfer was known. Nothing is carried out before all of it is heard: the last word may be that nobody
    /// wants the bytes any more.
    pub(super) fn deliver_early(&mut self, key: EntryKey, early: Vec<EarlyMessage>, now: Timestamp) {
        for EarlyMessage { from, body, .. } in early {
            self.take_in(key, from, body, now);
        }
    }

    fn take_in(&mut self, key: EntryKey, peer: PeerKey, body: EarlyBody, now: Timestamp) {
        match body {
            EarlyBody::Said(said) => self.take_in_said(key, peer, said, now),
            EarlyBody::Landing(landing) => self.take_in_landing(key, peer, &landing, now),
        }
    }

    fn take_in_landing(&mut self, key: EntryKey, peer: PeerKey, landing: &ArrivalNote, now: Timestamp) {
        self.refused += u64::from(self.landed(key, peer, landing, now).is_err());
    }

    fn take_in_said(&mut self, key: EntryKey, peer: PeerKey, said: ControlMessage, now: Timestamp) {
        let Some(&head) = said.head() else { return self.refused += 1 };
        self.follow(key, head.rank, peer);
        let claims = matches!(said, ControlMessage::Grant(_) | ControlMessage::PullRequest(_));
        let taken = self.said(key, peer, said, now);
        // Also a grant that was refused may have claimed its rank.
        if claims && self.flow(key).is_some_and(|flow| flow.has_peer(|of| of == peer)) {
            self.shares.add(peer, key);
        }
        let Err(why) = taken else { return };
        self.refused += 1;
        match why {
            NotTaken::Answered { leg, code, expected } => self.answer(peer, key, head, (leg, code, expected)),
            NotTaken::Quiet { number } => self.answer_late(peer, head.transfer, Waits::ForQuiet { number }),
            NotTaken::Counted => {}
        }
    }

    /// Says that what was said makes no sense.
    fn answer(
        &mut self,
        peer: PeerKey,
        key: EntryKey,
        theirs: TransferHead,
        (leg, code, expected): (u32, FlowCause, u32),
    ) {
        let head = self.flow(key).map_or(TransferHead { side: theirs.side.other(), ..theirs }, |flow| *flow.head());
        self.say(peer, ControlMessage::Refused(Refused { head, leg, code: code.code(), expected }));
    }

    fn said(&mut self, key: EntryKey, peer: PeerKey, said: ControlMessage, now: Timestamp) -> Result<(), NotTaken> {
        let said = &match said {
            ControlMessage::Grant(grant) => return self.granted(key, peer, grant),
            ControlMessage::PullRequest(claim) => return self.claimed(key, peer, &claim),
            ControlMessage::ReadOffer(lend) => return self.lent(key, peer, &lend, now),
            said => said,
        };
        let head = said.head().ok_or(NotTaken::Counted)?;
        let not_taken = self.not_taken(key, peer, said);
        match self.flow_mut(key).ok_or(NotTaken::Counted)? {
            Flow::Source(source) => {
                if matches!(said, ControlMessage::Fail(_) | ControlMessage::Abort(_))
                    && source.legs.peer(head.rank).is_none()
                {
                    // It had not granted anything: it is known from now on, and has failed.
                    source.legs.claim(head.rank, head.ranks, peer, false).map_err(|_| not_taken)?;
                }
                if source.legs.peer(head.rank) != Some(peer) {
                    return Err(not_taken);
                }
                match said {
                    ControlMessage::Ack(_) => source.legs.acked(head.rank).map(drop)?,
                    ControlMessage::Fail(fail) => source.legs.failed_there(head.rank, fail)?,
                    ControlMessage::Abort(abort) => source.legs.asked_to_stop(head.rank, abort.number)?,
                    _ => return Err(NotTaken::Counted),
                }
            }
            Flow::Sink(sink) => {
                for rank in speaks_for(&sink.sources, head, peer)? {
                    heard_by_sink(sink, rank, said, now)?;
                }
            }
            Flow::Lent(lent) => {
                if matches!(said, ControlMessage::Fail(_) | ControlMessage::Abort(_))
                    && lent.places.peer(head.rank).is_none()
                {
                    lent.places.claim(head.rank, head.ranks, peer, false).map_err(|_| not_taken)?;
                }
                if lent.places.peer(head.rank) != Some(peer) {
                    return Err(not_taken);
                }
                match said {
                    ControlMessage::Fail(fail) => lent.loans.failed_there(head.rank, fail)?,
                    ControlMessage::Abort(abort) => lent.loans.asked_to_stop(head.rank, abort.number)?,
                    ControlMessage::Refused(_) => lent.loans.refused_there(head.rank)?,
                    _ => return Err(NotTaken::Counted),
                }
            }
            Flow::Pull(pulled) => {
                for rank in speaks_for(&pulled.sources, head, peer)? {
                    match said {
                        ControlMessage::LeaseVerdict(acked) => pulled.pull.confirmed(rank, acked, now)?,
                        ControlMessage::Fail(fail) => pulled.pull.failed_there(rank, fail, now)?,
                        ControlMessage::Refused(_) => pulled.pull.refused_there(rank, now)?,
                        _ => return Err(NotTaken::Counted),
                    }
                }
            }
        }
        Ok(())
    }

    /// What becomes of a word of somebody who is not who it would have to be. The same engine in another session has a part: something of
    /// the session before may be on its way to it.
    fn not_taken(&self, key: EntryKey, peer: PeerKey, said: &ControlMessage) -> NotTaken {
        let has_part = || self.flow(key).is_some_and(|flow| flow.has_peer(|of| of.epoch == peer.epoch));
        match said {
            ControlMessage::Abort(abort) if !has_part() => NotTaken::Quiet { number: abort.number },
            _ => NotTaken::Counted,
        }
    }

    /// A rank of the sink will read.
    fn claimed(&mut self, key: EntryKey, peer: PeerKey, claim: &PullRequest) -> Result<(), NotTaken> {
        let refuse = || NotTaken::Answered { leg: 0, code: FlowCause::Refused, expected: 0 };
        let TransferHead { transfer, rank, ranks, .. } = claim.head;
        let Some(Flow::Lent(lent)) = self.flow_mut(key) else {
            let words = format!("{transfer}: the source does not lend, and the sink pulls; {BOTH_OR_NEITHER}");
            return Err(self.refuse(key, peer, claim.head, (FlowCause::Refused, words)));
        };
        if let Err(error) = lent.places.claim(rank, ranks, peer, false) {
            return Err(self.not_a_rank(key, peer, claim.head, error));
        }
        if let Some(failed) = lent.loans.failure() {
            let (head, cause, words) = (*lent.loans.head(), failed.cause.code(), failed.words.clone());
            self.say(peer, ControlMessage::Fail(Fail { head, cause, words, missing: Vec::new() }));
            return Ok(());
        }
        if lent.trace.is_empty() {
            lent.trace.clone_from(&claim.trace);
        }
        lent.loans.claimed(rank, claim.from).map_err(|_| refuse())
    }

    /// A source lends.
    fn lent(&mut self, key: EntryKey, peer: PeerKey, lend: &ReadOffer, now: Timestamp) -> Result<(), NotTaken> {
        let refuse = || NotTaken::Answered { leg: 0, code: FlowCause::Refused, expected: 0 };
        let theirs = LayoutKey { number: lend.layout, generation: lend.layout_generation };
        let held = self.transfers.get_mut(key).map(|held| &mut held.flow);
        let Some(Flow::Pull(pulled)) = held else { return Err(refuse()) };
        if pulled.sources.get(&lend.head.rank) != Some(&peer) {
            return Err(NotTaken::Counted);
        }
        let transfer = lend.head.transfer;
        let fits = match self.partners.pair(peer, theirs, pulled.pull.legs().layout()) {
            Some(pair) => pair.map_err(|error| unfit(transfer, &error, ("at the sink", "at the source"))),
            None => Err((FlowCause::Unfit, format!("{transfer}: the source has withdrawn its layout"))),
        };
        let (cause, words) = match fits {
            Ok(pair) => match pulled.pull.lent(lend.head.rank, &pair, lend, now) {
                // What has ended is told of by the failure that ended it.
                Ok(()) | Err(LegError::Ended(_) | LegError::Done) => return Ok(()),
                Err(error) => (FlowCause::Refused, format!("{transfer}: {error}")),
            },
            Err(refusal) => refusal,
        };
        // The source hears the same, in the words of this failure.
        pulled.pull.fail_here(cause, &words, now);
        Err(NotTaken::Counted)
    }

    /// Who says something of a rank that it cannot have. Where both sides count ranks otherwise, none of them will ever be served; unless others
    /// count as the source does, and are served already.
    fn not_a_rank(&mut self, key: EntryKey, peer: PeerKey, theirs: TransferHead, error: PlaceError) -> NotTaken {
        let words = format!("{}: {error}", theirs.transfer);
        let serves_others = match self.flow(key) {
            Some(Flow::Source(source)) => source.legs.peers().any(|of| of != peer),
            Some(Flow::Lent(lent)) => lent.places.iter().filter_map(|rank| rank.peer()).any(|of| of != peer),
            _ => false,
        };
        match error {
            PlaceError::Disagrees { .. } if !serves_others => {
                self.refuse(key, peer, theirs, (FlowCause::Refused, words))
            }
            PlaceError::NothingFor { .. } => self.turn_away(peer, theirs.transfer, (FlowCause::Unfit, words)),
            _ => self.turn_away(peer, theirs.transfer, (FlowCause::Refused, words)),
        }
    }

    /// A rank of the sink has room.
    fn granted(&mut self, key: EntryKey, peer: PeerKey, grant: Grant) -> Result<(), NotTaken> {
        let leg = grant.leg;
        let refuse = |code, expected| NotTaken::Answered { leg, code, expected };
        let theirs = LayoutKey { number: grant.layout, generation: grant.layout_generation };
        let held = self.transfers.get_mut(key).map(|held| &mut held.flow);
        let head = grant.head;
        let TransferHead { transfer, rank, ranks, .. } = head;
        let Some(Flow::Source(source)) = held else {
            let words = format!("{transfer}: the source lends, and the sink waits to be sent it; {BOTH_OR_NEITHER}");
            return Err(self.refuse(key, peer, head, (FlowCause::Refused, words)));
        };
        // Who goes on is the engine that was there before, in the same life: another one is refused.
        let resumes = grant.resumes && source.legs.peer(rank) == Some(peer);
        let claimed = source.legs.claim(rank, ranks, peer, resumes);
        if let Err(error) = claimed {
            return Err(self.not_a_rank(key, peer, head, error));
        }
        if let Some(failed) = source.legs.failure() {
            // Who is late to a failure hears of it, in its own words.
            let (head, cause, words) = (*source.legs.head(), failed.cause.code(), failed.words.clone());
            self.say(peer, ControlMessage::Fail(Fail { head, cause, words, missing: Vec::new() }));
            return Ok(());
        }
        let ours = source.legs.layout();
        let pair = match &source.spread {
            Some(spread) => self
                .partners
                .theirs_at(peer, theirs)
                .map(|theirs| ShardPair::spread(ours, theirs, spread, source.legs.head().rank, rank).map(Arc::new)),
            None => self.partners.pair(peer, theirs, ours),
        };
        let pair = match pair {
            Some(Ok(pair)) => pair,
            Some(Err(error)) => {
                let refusal = unfit(transfer, &error, ("at the source", "at the sink"));
                return Err(self.refuse(key, peer, head, refusal));
            }
            None => {
                let words = format!("{transfer}: the sink has withdrawn its layout");
                return Err(self.refuse(key, peer, head, (FlowCause::Unfit, words)));
            }
        };
        let (urgency, trace) = (grant.urgency, grant.trace.clone());
        match source.legs.granted(rank, &pair, grant) {
            Ok(_) => {
                if urgency > 0 {
                    source.urgency = Urgency::Urgent;
                }
                if source.trace.is_empty() {
                    source.trace = trace.into();
                }
                Ok(())
            }
            // What both sides were told to do does not go together.
            Err(error @ (LegError::OnceMissing | LegError::Begin { .. } | LegError::Total { .. })) => {
                Err(self.refuse(key, peer, head, (FlowCause::Refused, format!("{transfer}: {error}"))))
            }
            Err(error) => Err(refuse(FlowCause::Refused, error.expected())),
        }
    }

    fn landed(&mut self, key: EntryKey, peer: PeerKey, landing: &ArrivalNote, now: Timestamp) -> Result<(), NotTaken> {
        let Some(Flow::Sink(sink)) = self.flow_mut(key) else { return Err(NotTaken::Counted) };
        if sink.sources.get(&landing.source) != Some(&peer) || landing.rank != sink.legs.head().rank {
            return Err(NotTaken::Counted);
        }
        let ArrivalNote { number, leg, leg_from, leg_tokens, layer, from, tokens, total, .. } = *landing;
        let part = PartLanded { number, leg, leg_from, leg_tokens, layer, from, tokens, total };
        sink.legs.landed(landing.source, &part, now)?;
        Ok(())
    }

    /// It is proven.
    pub(super) fn quiet(&mut self, id: WatchId, now: Timestamp) {
        if self.lease_is_quiet(id, now) {
            return;
        }
        let Some((key, rank)) = self.watches.remove(&id) else { return };
        if let Some(Flow::Sink(sink)) = self.flow_mut(key) {
            // It was one of its ranks when it was asked.
            let _ = sink.legs.proven_quiet(rank, now);
        }
        self.carry(key, now);
    }

    /// What was to be moved has ended.
    pub(super) fn move_ended(&mut self, id: MoveId, result: Result<u64, Cause>, is_open_there: bool, now: Timestamp) {
        let Some((key, rank, number)) = self.moves.get(id) else { return };
        match self.flow_mut(key) {
            Some(Flow::Source(source)) => {
                source.legs.ended(rank, number, result, is_open_there, now);
                if !is_open_there {
                    source.moves.remove(&(rank, number));
                }
            }
            Some(Flow::Pull(pulled)) => {
                if !is_open_there {
                    pulled.moves.remove(&(rank, number));
                }
                pulled.pull.ended(rank, number, result, is_open_there, now);
            }
            _ => {}
        }
        if !is_open_there && !planted::is(Bug::CreditLeak) {
            self.moves.remove(id);
        }
        self.carry(key, now);
    }

    /// What was open there is not any more.
    pub(super) fn move_closed(&mut self, id: MoveId, now: Timestamp) {
        let Some((key, rank, number)) = self.moves.remove(id) else { return };
        match self.flow_mut(key) {
            Some(Flow::Source(source)) => {
                source.moves.remove(&(rank, number));
                source.legs.closed(rank, number);
            }
            Some(Flow::Pull(pulled)) => {
                pulled.moves.remove(&(rank, number));
                pulled.pull.closed(rank, number, now);
            }
            _ => {}
        }
        self.carry(key, now);
    }
}

/// For which ranks of a source a peer speaks: who has no rank of a transfer, as it knows of none, for all that were thought to be its.
fn speaks_for(sources: &FewMap<u16, PeerKey>, head: &TransferHead, peer: PeerKey) -> Result<Few<u16>, NotTaken> {
    let is_its = |rank: &u16| head.ranks == 0 || *rank == head.rank;
    let ranks: Few<u16> = sources.iter().filter(|(_, of)| **of == peer).map(|(rank, _)| *rank).filter(is_its).collect();
    if ranks.is_empty() { Err(NotTaken::Counted) } else { Ok(ranks) }
}

/// A rank of the source says something to a sink.
fn heard_by_sink(sink: &mut SinkTransfer, rank: u16, said: &ControlMessage, now: Timestamp) -> Result<(), NotTaken> {
    match said {
        ControlMessage::EndOfData(seal) => sink.legs.sealed(rank, seal, now).map(drop)?,
        ControlMessage::Fail(fail) => sink.legs.failed_there(rank, fail, now)?,
        ControlMessage::AbortAck(ack) => sink.legs.drained(rank, ack.number, ack.is_drained)?,
        ControlMessage::Refused(refused) => sink.legs.refused_there(rank, refused, now)?,
        _ => return Err(NotTaken::Counted),
    }
    Ok(())
}

impl Flow {
    /// Everybody who has a part in it, once for each of its ranks.
    pub(super) fn each_peer(&self, tell: impl FnMut(PeerKey)) {
        match self {
            Self::Source(source) => source.legs.peers().for_each(tell),
            Self::Lent(lent) => lent.places.iter().filter_map(Rank::peer).for_each(tell),
            Self::Sink(sink) => sink.sources.values().copied().for_each(tell),
            Self::Pull(pulled) => pulled.sources.values().copied().for_each(tell),
        }
    }

    /// Whether somebody is among them.
    fn has_peer(&self, mut is_it: impl FnMut(PeerKey) -> bool) -> bool {
        let mut has = false;
        self.each_peer(|peer| has |= is_it(peer));
        has
    }
}

/// Who speaks for a source that has no such transfer, and so no rank of it: for all ranks that are of the same engine.
pub(super) fn nobody(transfer: TransferId) -> TransferHead {
    TransferHead { transfer, side: Side::Source, rank: 0, ranks: 0 }
}
