//! What transfers want, as actions; and the one place where a transfer ends.

use penstock_core::{Direction, Timestamp};
use penstock_session::PeerKey;
use penstock_session::few::FewMap;
use penstock_session::landing::ArrivalNote;
use penstock_session::leases::LeaseId;
use penstock_session::transfers::table::{Ended, EntryKey};

use super::TransferManager;
use super::flow::{Flow, Naming, SourceTransfer};
use super::lending::{self, Borrowed};
use crate::action::{Action, Moving, Spans};
use crate::cause::FlowCause;
use crate::input::{PullWish, Read, SinkWish};
use crate::output::{Part, SourceWish};
use crate::status::Status;

impl TransferManager {
    /// Does everything that a transfer wants, and lets it end if it has.
    pub(super) fn carry(&mut self, key: EntryKey, now: Timestamp) {
        match self.flow(key) {
            Some(Flow::Source(_)) => self.carry_source(key),
            Some(Flow::Sink(_)) => {
                self.carry_sink(key, now);
                self.note_let_go(key);
            }
            Some(Flow::Lent(_)) => self.carry_lent(key, now),
            Some(Flow::Pull(_)) => {
                self.carry_pull(key, now);
                self.note_let_go(key);
            }
            None => return,
        }
        self.tell();
        self.arm(key);
        self.end_if_over(key, now);
    }

    fn carry_source(&mut self, key: EntryKey) {
        let Self { transfers, actions, moves, .. } = self;
        let Some(Flow::Source(source)) = transfers.get_mut(key).map(|held| &mut held.flow) else { return };
        let source = &mut **source;
        loop {
            while let Some(wish) = source.legs.poll_wish() {
                if let Some(action) = source.action(wish) {
                    actions.push_back(action);
                }
            }
            let Some(part) = source.legs.next_part() else { return };
            let (sink, number) = (part.sink, part.landing.number);
            let Some(peer) = source.legs.peer(sink) else { continue };
            let id = moves.add((key, sink, number));
            source.moves.insert((sink, number), id);
            let moving = source.moving(part);
            actions.push_back(Action::Move { id, peer, moving });
        }
    }

    fn carry_sink(&mut self, key: EntryKey, now: Timestamp) {
        loop {
            let Self { transfers, actions, .. } = self;
            let Some(Flow::Sink(sink)) = transfers.get_mut(key).map(|held| &mut held.flow) else { return };
            let sink = &mut **sink;
            let (source, said) = loop {
                let Some(wish) = sink.legs.poll_wish() else { return };
                let is_last = sink.is_last_word(&wish);
                match wish {
                    SinkWish::Say { source, said } if is_last => break (source, said),
                    wish => {
                        let why = "blocks of a transfer whose source may still write";
                        if let Some(action) = sink_action(&sink.sources, wish, why) {
                            actions.push_back(action);
                        }
                    }
                }
            };
            if let Some(&peer) = sink.sources.get(&source) {
                let gone = sink.gone.get(&source).cloned();
                self.say_last(peer, said, gone.as_ref(), now);
            }
        }
    }

    fn carry_lent(&mut self, key: EntryKey, now: Timestamp) {
        loop {
            let Some(Flow::Lent(lent)) = self.flow_mut(key) else { return };
            if let Some(wish) = lent.loans.poll_wish() {
                match wish {
                    SourceWish::Say { sink, said } => {
                        if let Some(peer) = lent.places.peer(sink) {
                            self.say(peer, said);
                        }
                    }
                    SourceWish::Free { ticket } => self.actions.push_back(Action::Free { ticket }),
                    // Nothing is moved from here.
                    SourceWish::Stop { .. } => {}
                }
                continue;
            }
            let Some(rank) = lent.loans.wants_lease() else { return };
            let (Some(peer), ttl) = (lent.places.peer(rank), lent.loans.ttl()) else { return };
            let lease = self.lend(peer, lending::LeasedItem::Rank { key, rank }, ttl, now);
            let Some(Flow::Lent(lent)) = self.flow_mut(key) else { return };
            match lease {
                // It is the rank that wanted one.
                Ok(lease) => drop(lent.loans.lend(rank, lease)),
                Err(error) => lent.loans.fail_here(FlowCause::Refused, &error.to_string()),
            }
        }
    }

    fn carry_pull(&mut self, key: EntryKey, now: Timestamp) {
        let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
        // A call may have failed it.
        pulled.pull.look(now);
        loop {
            let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
            if let Some(wish) = pulled.pull.poll_wish() {
                self.pull_wish(key, wish, now);
                continue;
            }
            if let Some((rank, lease)) = self.late_lease(key, now) {
                let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
                let peer = pulled.sources.get(&rank).copied();
                // It is one of its ranks.
                let _ = pulled.pull.over(rank, FlowCause::Expired, now);
                peer.into_iter().for_each(|peer| self.end_borrowing(peer, lease));
                continue;
            }
            let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
            match pulled.pull.next_read(now) {
                Some(read) => self.begin_read(key, read),
                None if pulled.pull.has_wish() => {}
                None => return,
            }
        }
    }

    /// A lease under which something is still to be read, and that this engine has not renewed in time: what is read now is read in vain.
    fn late_lease(&self, key: EntryKey, now: Timestamp) -> Option<(u16, LeaseId)> {
        let Some(Flow::Pull(pulled)) = self.flow(key) else { return None };
        let is_late = |(rank, lease): &(u16, LeaseId)| {
            pulled.sources.get(rank).is_some_and(|&peer| self.lending.is_over(peer, *lease, now))
        };
        pulled.pull.leases().find(is_late)
    }

    fn pull_wish(&mut self, key: EntryKey, wish: PullWish, now: Timestamp) {
        let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
        let peer_of = |rank: u16| pulled.sources.get(&rank).copied();
        match wish {
            PullWish::Sink(wish) => {
                let action = sink_action(&pulled.sources, wish, "blocks of a transfer that are still read into");
                self.actions.extend(action);
            }
            PullWish::Stop { source, number } => {
                if let Some(&id) = pulled.moves.get(&(source, number)) {
                    self.actions.push_back(Action::Stop { id });
                }
            }
            PullWish::Hold { source, lease, ttl } => {
                let Some(peer) = peer_of(source) else { return };
                let what = Borrowed::Rank { key, rank: source };
                if let Err(error) = self.borrow(peer, lease, what, ttl, now)
                    && let Some(Flow::Pull(pulled)) = self.flow_mut(key)
                {
                    pulled.pull.legs_mut().fail_here(FlowCause::Refused, &error.to_string(), now);
                    pulled.pull.look(now);
                }
            }
            PullWish::LetGo { source, lease } => {
                if let Some(peer) = peer_of(source) {
                    self.end_borrowing(peer, lease);
                }
            }
        }
    }

    /// Has something read.
    fn begin_read(&mut self, key: EntryKey, read: Read) {
        let id = self.moves.next();
        let Some(Flow::Pull(pulled)) = self.flow_mut(key) else { return };
        let Some(&peer) = pulled.sources.get(&read.source) else { return };
        pulled.moves.insert((read.source, read.number), id);
        let (local, remote) = read.regions;
        let moving = Moving {
            direction: Direction::Read,
            spans: Spans::Cut { local, remote, spans: read.spans },
            within: pulled.within,
            urgency: pulled.urgency,
            landing: None,
        };
        self.moves.add((key, read.source, read.number));
        self.actions.push_back(Action::Move { id, peer, moving });
    }

    /// The one way out of the table, however a transfer ended. What it still has under way is kept until that is over.
    fn end_if_over(&mut self, key: EntryKey, now: Timestamp) {
        // One whose end is known waits for nothing but to be named and let go.
        if !self.transfers.is_live(key) {
            self.name_if_quiet(key, now);
            return self.let_go_if_over(key, now);
        }
        let Some(flow) = self.flow(key) else { return };
        let how = match (flow.status(), flow) {
            (Status::Success, Flow::Source(_) | Flow::Lent(_)) => Ended::Sent,
            (Status::Success, Flow::Sink(_) | Flow::Pull(_)) => Ended::Received,
            (Status::Failed, _) => Ended::Failed,
            _ => return,
        };
        let received = match (how, flow) {
            (Ended::Received, Flow::Sink(sink)) => Some(sink.legs.received()),
            (Ended::Received, Flow::Pull(pulled)) => Some(pulled.pull.legs().received()),
            _ => None,
        };
        if self.reported.successes || how == Ended::Failed && self.reported.failures {
            self.report_end(key);
        }
        if self.transfers.close(key, how, now) {
            received.into_iter().for_each(|tokens| self.totals.note(tokens));
            self.table_due = self.table_due.min(now + self.settings.transfers.tomb_age);
            if how == Ended::Failed {
                let by = now + self.settings.abort_within;
                self.transfers.get_mut(key).into_iter().for_each(|held| held.naming = Naming::FailedBy(by));
                self.name_if_quiet(key, now);
                self.arm(key);
            } else {
                // Everybody has everything: what is not known yet of its moves reads nothing any more.
                self.note_read(key);
            }
        }
        self.let_go_if_over(key, now);
    }

    /// A request that has failed is named when nothing touches its memory any more, so that it can be freed; when the time for that is over,
    /// with what may still be touched, which is released later.
    fn name_if_quiet(&mut self, key: EntryKey, now: Timestamp) {
        let Some(held) = self.transfers.get_mut(key).filter(|held| held.naming != Naming::Nothing) else { return };
        if held.flow.is_quiet() {
            held.naming = Naming::Nothing;
            self.transfers.name_failed(key, None);
            self.note_read(key);
        } else if matches!(held.naming, Naming::FailedBy(by) if by <= now) {
            held.naming = Naming::Released;
            let touched = held.flow.touched();
            self.transfers.name_failed(key, Some(touched));
        } else {
            return;
        }
        self.arm(key);
    }

    /// An ended transfer of which nothing is under way, and which nobody asks for any more.
    pub(super) fn let_go_if_over(&mut self, key: EntryKey, now: Timestamp) {
        if !self.transfers.get(key).is_some_and(|held| held.is_released && held.flow.is_over()) {
            return;
        }
        let Some(held) = self.transfers.let_go(key) else { return };
        if held.armed != Timestamp::NEVER {
            self.timers.disarmed();
            self.look_at_timers();
        }
        held.flow.each_peer(|peer| self.shares.remove(peer, key));
        held.page.into_iter().for_each(|page| self.book.leave(page));
        self.remember_why(&held.flow, now);
        self.memory.drop(held.flow);
    }
}

impl SourceTransfer {
    /// What it wants, as an action of the transfer manager.
    fn action(&self, wish: SourceWish) -> Option<Action> {
        match wish {
            SourceWish::Say { sink, said } => self.legs.peer(sink).map(|peer| Action::Say { peer, said }),
            SourceWish::Stop { sink, number } => self.moves.get(&(sink, number)).map(|&id| Action::Stop { id }),
            SourceWish::Free { ticket } => Some(Action::Free { ticket }),
        }
    }

    fn moving(&self, part: Part) -> Moving {
        let (local, remote) = part.regions;
        let told = &part.landing;
        let landing = ArrivalNote {
            transfer: self.legs.head().transfer,
            source: self.legs.head().rank,
            rank: part.sink,
            number: told.number,
            leg: told.leg,
            leg_from: told.leg_from,
            leg_tokens: told.leg_tokens,
            layer: told.layer,
            from: told.from,
            tokens: told.tokens,
            total: told.total,
        };
        Moving {
            direction: Direction::Write,
            spans: Spans::Cut { local, remote, spans: part.spans },
            within: self.within,
            urgency: self.urgency,
            landing: Some((told.number, landing.encode())),
        }
    }
}

/// What a sink wants, of whom.
fn sink_action(sources: &FewMap<u16, PeerKey>, wish: SinkWish, why: &'static str) -> Option<Action> {
    match wish {
        SinkWish::Say { source, said } => sources.get(&source).map(|&peer| Action::Say { peer, said }),
        SinkWish::Free { ticket } => Some(Action::Free { ticket }),
        SinkWish::Quarantine { ticket, sources: ranks } => {
            let peers = ranks.iter().filter_map(|rank| sources.get(rank)).copied().collect();
            Some(Action::Quarantine { ticket, peers, why })
        }
    }
}
