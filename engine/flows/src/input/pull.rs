//! The sink's side of a transfer that it reads itself: what the sources lend, what is read next, and whether it is worth anything.
//!
//! Bytes that were read are what was lent only if the lease stood until the last of them was here. So each source is asked at its end, and
//! the application hears of nothing before all of them have said that it did.
//!
//! - `view`: what one source has lent

mod view;

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Span, Timestamp};
use penstock_session::control::{Ack, ControlMessage, EndOfData, Fail, LeaseVerdict, PullRequest, ReadOffer, Side};
use penstock_session::few::{Few, FewQueue};
use penstock_session::leases::LeaseId;

pub use self::view::{Loan, LoanEvent};
use self::view::{Reading, View};
use super::leg::{Leg, LegEvent};
use super::legs::SinkLegs;
use super::link::Link;
use super::{Receive, SinkWish};
use crate::action::RegionRef;
use crate::cause::FlowCause;
use crate::cut::{Cut, CutError, Run};
use crate::part::{LegError, PartLanded};
use crate::shards::ShardPair;
use crate::status::{Status, StatusEvent};

/// Something to be read from one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// From which rank.
    pub source: u16,
    /// Its number in what is said of it here.
    pub number: u64,
    /// This engine's region, and the peer's.
    pub regions: (RegionRef, RegionRef),
    /// Which bytes go where.
    pub spans: Vec<Span>,
    /// How many bytes that are.
    pub bytes: u64,
}

/// What a pull wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullWish {
    /// What every sink may want.
    Sink(SinkWish),
    /// Stop a read that is under way; its end still comes.
    Stop {
        /// From which rank it reads.
        source: u16,
        /// Its number.
        number: u64,
    },
    /// A lease is renewed from now on.
    Hold {
        /// Whose it is.
        source: u16,
        /// Which.
        lease: LeaseId,
        /// How long it stands without that.
        ttl: Duration,
    },
    /// It is not renewed any more.
    LetGo {
        /// Whose it is.
        source: u16,
        /// Which.
        lease: LeaseId,
    },
}

/// A transfer that its sink reads.
#[derive(Debug)]
pub struct Pull {
    legs: SinkLegs,
    sources: Few<View>,
    part_bytes: u64,
    reads_ahead: usize,
    wishes: FewQueue<PullWish>,
}

impl Pull {
    /// A transfer of which nothing has been lent. The most bytes of a read, and the most reads that are under way from one source.
    pub fn new(how: Receive, part_bytes: u64, reads_ahead: usize) -> Result<Self, LegError> {
        let (begin, trace, layers) = (how.begin, how.trace.clone(), how.layout.layers());
        let legs = SinkLegs::read(how)?;
        let claim = PullRequest { head: *legs.head(), from: begin, trace };
        let sources: Few<View> = legs.sources.iter().map(|source| View::new(source.rank, begin, layers)).collect();
        let says = sources
            .iter()
            .map(|source| SinkWish::Say { source: source.rank, said: ControlMessage::PullRequest(claim.clone()) });
        let wishes = says.map(PullWish::Sink).collect();
        Ok(Self { legs, sources, part_bytes, reads_ahead: reads_ahead.max(1), wishes })
    }

    /// What was granted, and how far it is.
    pub fn legs(&self) -> &SinkLegs {
        &self.legs
    }

    /// The same, to be granted more, or to be failed.
    pub fn legs_mut(&mut self) -> &mut SinkLegs {
        &mut self.legs
    }

    /// How it stands with a source, if it is one.
    pub fn loan(&self, source: u16) -> Option<Loan> {
        self.sources.iter().find(|view| view.rank == source).map(|view| view.loan)
    }

    /// Whether it has ended, nothing of it is read any more and everything was let go.
    pub fn is_over(&self) -> bool {
        self.legs.is_over() && self.sources.iter().all(|source| source.reads.is_empty())
    }

    /// Whether it has ended and nothing is read into blocks of its legs any more.
    pub fn is_quiet(&self) -> bool {
        self.legs.is_quiet() && self.sources.iter().all(|source| source.reads.is_empty())
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        self.legs.expire(now);
        self.look(now);
    }

    /// What is wanted next. A failure is said before its lease is given back, which would be the word that everything is here.
    pub fn poll_wish(&mut self) -> Option<PullWish> {
        self.legs.poll_wish().map(PullWish::Sink).or_else(|| self.wishes.pop_front())
    }

    /// Whether something is wanted.
    pub fn has_wish(&self) -> bool {
        !self.wishes.is_empty() || self.legs.has_wish()
    }

    fn source_at(&self, rank: u16) -> Result<usize, LegError> {
        self.legs.source_at(rank)
    }

    /// The leases under which something is still to be read, and of which source each is.
    pub fn leases(&self) -> impl Iterator<Item = (u16, LeaseId)> + '_ {
        let lent = self.sources.iter().filter(|source| source.loan == Loan::Lent);
        lent.filter_map(|source| source.lease.map(|lease| (source.rank, lease)))
    }

    /// A source has lent something, or more. `pair` is this engine's layout with the one that it names.
    pub fn lent(
        &mut self,
        source: u16,
        pair: &Arc<ShardPair>,
        lend: &ReadOffer,
        now: Timestamp,
    ) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        self.legs.may_go_on()?;
        if let Some((known, said)) = self.legs.total.zip(lend.total).filter(|(known, said)| known != said) {
            return Err(LegError::Total { known, said });
        }
        let begin = self.legs.how.begin;
        if let Some(total) = lend.total.filter(|&total| total < begin) {
            let words = format!("tokens from {begin} on are needed, and the source has {total}");
            self.legs.fail(FlowCause::Refused, Side::Sink, None, words, now);
            self.look(now);
            return Ok(());
        }
        let is_first = self.sources[at].merge(pair, lend)?;
        let lease = LeaseId(lend.lease);
        if is_first {
            let ttl = Duration::from_millis(u64::from(lend.ttl_ms).max(1));
            self.wishes.push_back(PullWish::Hold { source, lease, ttl });
        }
        if let Some(total) = lend.total.filter(|_| self.legs.total.is_none()) {
            self.legs.learn_total(total);
        }
        self.look(now);
        Ok(())
    }

    /// A source has said whether the lease stood until everything was read.
    pub fn confirmed(&mut self, source: u16, acked: &LeaseVerdict, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        if self.sources[at].lease != Some(LeaseId(acked.lease)) || self.sources[at].loan != Loan::Returned {
            return Err(LegError::AckEarly { rank: source });
        }
        if !acked.is_valid {
            self.over(source, FlowCause::Expired, now)?;
            return Ok(());
        }
        self.sources[at].on(LoanEvent::Stood);
        self.look(now);
        Ok(())
    }

    /// A lease has ended before everything was read and confirmed: by the word of its lender, or by this engine's own clock.
    pub fn over(&mut self, source: u16, cause: FlowCause, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        self.sources[at].on(LoanEvent::Over);
        let words = format!("the lease of the source of rank {source} had ended before everything was read under it");
        self.legs.fail(cause, Side::Source, Some(at), words, now);
        self.look(now);
        Ok(())
    }

    /// A source has said that it failed.
    pub fn failed_there(&mut self, source: u16, fail: &Fail, now: Timestamp) -> Result<(), LegError> {
        self.legs.failed_there(source, fail, now)?;
        self.look(now);
        Ok(())
    }

    /// It fails for something that was found here.
    pub fn fail_here(&mut self, cause: FlowCause, words: &str, now: Timestamp) {
        self.legs.fail_here(cause, words, now);
        self.look(now);
    }

    /// A source makes no sense of the claim.
    pub fn refused_there(&mut self, source: u16, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        let words = "the source does not lend what is to be read: let it lend, or have it pushed".to_owned();
        self.legs.fail(FlowCause::Refused, Side::Source, Some(at), words, now);
        self.look(now);
        Ok(())
    }

    /// The session with a source is over. What is read from it ends by itself.
    pub fn lost(&mut self, source: u16, now: Timestamp) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        if self.sources[at].loan != Loan::Confirmed {
            let words = format!("the source of rank {source} is gone");
            self.legs.fail(FlowCause::PeerLost, Side::Sink, Some(at), words, now);
        }
        self.look(now);
        Ok(())
    }

    /// A read has ended. Where something of it is still open, [`Pull::closed`] follows.
    pub fn ended(&mut self, source: u16, number: u64, result: Result<u64, Cause>, is_open_there: bool, now: Timestamp) {
        let Ok(at) = self.source_at(source) else { return };
        let Some(reading) = self.sources[at].reads.get_mut(&number) else { return };
        *reading = Reading::Open;
        if !is_open_there {
            self.sources[at].reads.remove(&number);
        }
        if let Err(cause) = result {
            let words = format!("read {number} from the source of rank {source} has failed");
            self.legs.fail(FlowCause::Moving(cause), Side::Sink, Some(at), words, now);
        }
        self.look(now);
    }

    /// What was open of a read is not any more.
    pub fn closed(&mut self, source: u16, number: u64, now: Timestamp) {
        let Ok(at) = self.source_at(source) else { return };
        if self.sources[at].reads.get(&number).is_some_and(|&reading| reading != Reading::Moves) {
            self.sources[at].reads.remove(&number);
        }
        self.look(now);
    }

    /// Looks what follows: whose lease is given back, whether all is confirmed, and what is stopped as it has failed.
    pub fn look(&mut self, now: Timestamp) {
        match self.legs.status() {
            Status::Success => {}
            Status::Failed => self.leave(),
            _ => {
                for at in 0..self.sources.len() {
                    if self.sources[at].has_read_all(self.legs.total) {
                        self.sources[at].on(LoanEvent::AllRead);
                        self.give_back(at);
                    }
                }
                if self.sources.iter().all(|source| source.loan == Loan::Confirmed) {
                    self.finish(now);
                }
            }
        }
    }

    fn give_back(&mut self, at: usize) {
        let View { rank: source, lease, .. } = self.sources[at];
        let Some(lease) = lease else { return };
        let ack = Ack { head: *self.legs.head(), lease: Some(lease.0) };
        self.wishes.push_back(PullWish::LetGo { source, lease });
        self.wishes.push_back(PullWish::Sink(SinkWish::Say { source, said: ControlMessage::Ack(ack) }));
    }

    /// It has failed: what is read is stopped, and each lease is given back when nothing is read under it.
    fn leave(&mut self) {
        for at in 0..self.sources.len() {
            let source = &mut self.sources[at];
            if source.on(LoanEvent::Fault) || source.loan == Loan::Leaving {
                let rank = source.rank;
                for (&number, reading) in source.reads.iter_mut().filter(|(_, reading)| **reading == Reading::Moves) {
                    *reading = Reading::Stopping;
                    self.wishes.push_back(PullWish::Stop { source: rank, number });
                }
            }
            if self.sources[at].reads.is_empty() {
                if self.sources[at].loan == Loan::Leaving {
                    self.sources[at].on(LoanEvent::Drained);
                    self.give_back(at);
                }
                if self.legs.sources[at].link != Link::Quiet {
                    self.legs.quiet(at, LegEvent::Drained);
                }
            }
        }
    }

    /// Everything is here, and is what was lent.
    fn finish(&mut self, now: Timestamp) {
        let total = self.legs.total.unwrap_or(self.legs.how.begin);
        for at in 0..self.sources.len() {
            let rank = self.sources[at].rank;
            let mut number = 0;
            for leg in 0..self.legs.next_leg() {
                let Some(granting) = self.legs.granting(leg).filter(|granting| granting.state == Leg::Granted) else {
                    continue;
                };
                let (leg_from, leg_tokens) = (granting.from, granting.capacity);
                let tokens = granting.range(Some(total)).1 - leg_from;
                if tokens == 0 {
                    continue;
                }
                let (layer, from) = (None, leg_from);
                let part = PartLanded { number, leg, leg_from, leg_tokens, layer, from, tokens, total: Some(total) };
                number += 1;
                self.landed(rank, &part, now);
            }
            let pair = self.sources[at].pair.as_ref();
            let rows = pair.map_or_else(Few::new, |pair| pair.sent().iter().copied().collect());
            let (head, legs) = (*self.legs.head(), self.legs.next_leg());
            let seal = EndOfData { head, parts: number, tokens: total, legs, rows };
            if let Err(error) = self.legs.sealed(rank, &seal, now) {
                self.inconsistent(&error, now);
            }
        }
    }

    fn landed(&mut self, source: u16, part: &PartLanded, now: Timestamp) {
        if let Err(error) = self.legs.landed(source, part, now) {
            self.inconsistent(&error, now);
        }
    }

    /// What was read does not go with what was granted: nobody is told that it is there.
    fn inconsistent(&mut self, error: &LegError, now: Timestamp) {
        let words = format!("what was read does not go with what was granted: {error}");
        self.legs.fail(FlowCause::Refused, Side::Sink, None, words, now);
    }

    /// The next read, if there is one and not too many are under way.
    pub fn next_read(&mut self, now: Timestamp) -> Option<Read> {
        for at in 0..self.sources.len() {
            if self.legs.status().is_end() {
                return None;
            }
            match self.cut_read(at) {
                Ok(Some(read)) => {
                    self.legs.status.on(StatusEvent::Input);
                    return Some(read);
                }
                Ok(None) => {}
                Err(error) => {
                    let words = format!("a read could not be cut: {error}");
                    self.legs.fail(FlowCause::Unfit, Side::Sink, Some(at), words, now);
                    self.look(now);
                    return None;
                }
            }
        }
        None
    }

    fn cut_read(&mut self, at: usize) -> Result<Option<Read>, CutError> {
        let view = &self.sources[at];
        if view.loan != Loan::Lent || view.reads.len() >= self.reads_ahead {
            return Ok(None);
        }
        let Some(pair) = view.pair.clone() else { return Ok(None) };
        let has_room = |from: u64| {
            let is_in = |leg: &&super::leg::Granting| leg.from <= from && from - leg.from < leg.capacity;
            self.legs.legs.iter().find(is_in)
        };
        let next = view.unread().find_map(|(layers, from)| Some((layers, from, has_room(from)?)));
        let Some((layers, from, leg)) = next else { return Ok(None) };
        let goes_once = leg.number == 0 && from == leg.from;
        let once = leg.once.zip(view.once).filter(|_| goes_once);
        let once_bytes = if once.is_some() { pair.once_bytes(&layers) } else { 0 };
        let end = view.tokens.min(leg.from.saturating_add(leg.capacity));
        let first = u64::from(leg.skip) + (from - leg.from);
        let most = pair.part_tokens(&layers, self.part_bytes.saturating_sub(once_bytes)).min(end - from);
        let tokens = crate::cut::at_a_block(first, most, end - from, u64::from(pair.block_tokens().0));
        let (here, there) =
            (Run { blocks: &leg.blocks, first }, Run { blocks: &view.blocks, first: from - view.first });
        let cut = Cut { layers: layers.clone(), here, there, tokens, once };
        let mut spans = Vec::new();
        let bytes = pair.cut(&cut, &mut spans)?;
        let view = &mut self.sources[at];
        let number = view.begin_read(layers, tokens);
        Ok(Some(Read { source: view.rank, number, regions: pair.regions(), spans, bytes }))
    }
}
