//! What is known of one rank of the source: whether its session stands, and what it may still write.

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{ControlMessage, Grant};
use penstock_session::few::Few;
use penstock_session::machine::Step;

use super::leg::Leg;
use super::legs::{SinkLegs, SourceRank};
use super::{InputEvent, SinkWish};
use crate::part::LegError;
use crate::runs::Runs;

penstock_session::machine! {
    /// A rank of the source, as its sink knows it. What was granted to it in a session that broke is granted to it again only when it is
    /// proven that nothing of that session lands any more.
    pub Link on LinkEvent {
        states {
            /// It may send.
            Open,
            /// Its session broke, and it is waited for. Bytes of that session may still land.
            Broken,
            /// The same, and none can.
            Still,
            /// It is there in another session, and bytes of the old one may still land.
            Awaited,
            /// It was asked to stop.
            Asked,
            /// Its session is over, and nobody knows what it still does.
            Lost,
        }
        ends {
            /// Nothing of it can land any more: it said so, or that is proven.
            Quiet,
        }
        events {
            /// Its session is over, and the transfer waits for another.
            Break,
            /// It is there in another session.
            Return,
            /// It is proven that nothing of the old session can land any more.
            Prove,
            /// The transfer has ended: it is asked to stop, if there is anybody to be asked.
            Ask,
            /// Its session is over, and the transfer with it.
            Lose,
            /// It has said that nothing can land any more, or nothing ever could.
            Rest,
        }
        Open { Break => Broken, Ask => Asked, Lose => Lost, Prove => Quiet, Rest => Quiet }
        Broken { Break => Broken, Return => Awaited, Prove => Still, Ask => Lost, Lose => Lost, Rest => Quiet }
        Still { Break => Still, Return => Open, Prove => Still, Ask => Quiet, Lose => Quiet, Rest => Quiet }
        Awaited { Break => Broken, Return => Awaited, Prove => Open, Ask => Lost, Lose => Lost, Rest => Quiet }
        Asked { Break => Lost, Ask => Asked, Lose => Lost, Prove => Quiet, Rest => Quiet }
        Lost { Break => Lost, Ask => Lost, Lose => Lost, Prove => Quiet, Rest => Quiet }
    }
}

impl Link {
    /// Whether its session broke and it is waited for.
    pub(super) const fn is_waited_for(self) -> bool {
        matches!(self, Self::Broken | Self::Still | Self::Awaited)
    }
}

impl SourceRank {
    /// Goes where the event leads; says whether that is elsewhere.
    pub(super) fn on(&mut self, event: LinkEvent) -> bool {
        let Step::Go(next) = self.link.step(event) else { return false };
        self.link = next;
        true
    }
}

impl SinkLegs {
    /// Whether the end of a session is not the transfer's: what has come stays, and the rest is waited for.
    pub(super) fn breaks(&mut self, at: usize, now: Timestamp) -> bool {
        let Some(within) = self.how.resumes.filter(|_| !self.status.is_end() && now < self.how.deadline) else {
            return false;
        };
        let source = &mut self.sources[at];
        if !source.link.is_waited_for() {
            source.until = now + within;
        }
        source.on(LinkEvent::Break);
        self.happenings.push_back(InputEvent::Lost { source: source.rank });
        true
    }

    /// A rank of the source whose session broke is there in another one: the same engine, in the same life, which is known by its name.
    /// What it has not sent is granted to it again, once it is proven that nothing of the old session lands any more.
    pub fn resume(&mut self, source: u16) -> Result<(), LegError> {
        let at = self.source_at(source)?;
        self.may_go_on()?;
        if !self.sources[at].link.is_waited_for() {
            return Err(LegError::NotBroken { rank: source });
        }
        self.sources[at].on(LinkEvent::Return);
        self.go_on(at);
        Ok(())
    }

    /// It is proven that nothing lands any more of the session that broke. Answers whether it is one that is waited for.
    pub(super) fn proves(&mut self, at: usize) -> bool {
        if !self.sources[at].link.is_waited_for() {
            return false;
        }
        self.sources[at].on(LinkEvent::Prove);
        self.go_on(at);
        true
    }

    /// When a source has been waited for long enough.
    pub(super) fn waits_until(&self) -> Timestamp {
        if self.how.resumes.is_none() {
            return Timestamp::NEVER;
        }
        self.sources.iter().map(|source| source.until).min().unwrap_or(Timestamp::NEVER)
    }

    /// Says to a source that is open again what is still needed of it, and counts its landings anew.
    fn go_on(&mut self, at: usize) {
        if self.sources[at].link != Link::Open {
            return;
        }
        let (rank, total, settled) = (self.sources[at].rank, self.total, self.settled);
        let source = &mut self.sources[at];
        source.until = Timestamp::NEVER;
        (source.numbers, source.seal) = (Runs::default(), None);
        source.sent = Few::new();
        if self.next_leg == 0 {
            return;
        }
        let mut grants = Vec::new();
        for place in 0..self.legs.len() {
            let leg = &mut self.legs[place];
            if leg.state != Leg::Granted && !planted::is(Bug::WholeLegGrantedAgain) {
                continue;
            }
            // Of a leg of which nobody has said where it begins nothing has landed.
            let from = match leg.agreed {
                Some(_) if planted::is(Bug::WholeLegGrantedAgain) => Some(leg.from),
                Some(_) => leg.forget_scattered(at, total),
                None => Some(settled),
            };
            grants.extend(from.map(|from| Grant { resumes: true, from, ..self.grant_of(place) }));
        }
        let last = Grant {
            head: self.head,
            leg: self.next_leg,
            layout: self.how.layout.news().number,
            layout_generation: self.how.layout.news().generation,
            from: self.confirmed(),
            skip: 0,
            capacity: 0,
            once: None,
            resumes: true,
            urgency: self.how.urgency,
            blocks: Few::new(),
            trace: Box::default(),
        };
        let wish = |grant| SinkWish::Say { source: rank, said: ControlMessage::Grant(grant) };
        self.wishes.extend(grants.into_iter().chain([last]).map(wish));
    }
}
