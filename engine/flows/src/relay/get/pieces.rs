//! The pieces of a get: what is read at once, into a berth or to where it belongs.

use std::collections::BTreeSet;

use penstock_core::planted::{self, Bug};
use penstock_core::{Direction, Span, Timestamp};
use penstock_session::purse::{CreditWaiter, Took};

use super::{Cut, Get, GetEvent, Gets, Ready, Running, UnderWay};
use crate::FlowCause;
use crate::action::{Action, MoveId, Moving, RegionRef, Spans, Urgency};
use crate::relay::berths::{StagingPlace, slice};
use crate::relay::error::RelayFailed;
use crate::relay::out::{Alarm, Out};

impl Gets {
    pub(super) fn go_on(&mut self, now: Timestamp, out: &mut Out) {
        while !self.served.is_empty() {
            let CreditWaiter(number) = self.served.remove(0);
            let Some(get) = self.ops.get_mut(&number) else { continue };
            get.is_in_line = false;
            if let Some(cut) = get.cut(self.berths.berth_bytes()) {
                let berth = self.berths.take();
                self.begin(number, cut, Some(berth), now, out);
            }
            self.advance(number, now, out);
        }
    }

    /// Begins what can begin.
    pub(super) fn advance(&mut self, number: u64, now: Timestamp, out: &mut Out) {
        while let Some(get) = self.ops.get_mut(&number).filter(|get| get.is_going() && !get.is_in_line)
            && !get.todo.is_empty()
        {
            let needs_berth = get.memory.is_none();
            if needs_berth {
                match self.purse.take(CreditWaiter(number), [1]) {
                    Took::Now => {}
                    Took::Waits => return get.is_in_line = true,
                    Took::Never { .. } | Took::Full { .. } => {
                        let failed = RelayFailed::new(
                            FlowCause::NoMemory,
                            None,
                            "there is no berth, and no place to wait for one",
                        );
                        return self.stop(number, GetEvent::Fault, failed, now, out);
                    }
                }
            }
            let most = if needs_berth { self.berths.berth_bytes() } else { u64::MAX };
            let cut = get.cut(most).expect("there was one a moment ago");
            let berth = needs_berth.then(|| self.berths.take());
            self.begin(number, cut, berth, now, out);
        }
    }

    pub(super) fn begin(&mut self, number: u64, cut: Cut, berth: Option<u32>, now: Timestamp, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        let here = match (&get.memory, berth) {
            (Some((extents, _)), _) => slice(extents, cut.from, cut.len),
            (None, Some(berth)) => vec![self.berths.place(berth, cut.len)],
            (None, None) => Vec::new(),
        };
        let piece = self.piece;
        self.piece += 1;
        get.fire(GetEvent::Begin);
        let mut moves = BTreeSet::new();
        for (local, remote, spans) in pair(&here, &cut.there) {
            let id = MoveId(out.number());
            moves.insert(id);
            let bytes = spans.iter().map(|span| span.len).sum();
            self.moves.insert(id, UnderWay { get: number, piece, bytes, is_open: false });
            let moving = Moving {
                direction: Direction::Read,
                spans: Spans::Cut { local, remote, spans },
                within: get.until.since(now),
                urgency: Urgency::Bulk,
                landing: None,
            };
            out.act(Action::Move { id, peer: get.from.0, moving });
        }
        let running = Running { part: cut.part, from: cut.from, len: cut.len, berth, moves, quarantined: None };
        get.running.insert(piece, running);
    }

    pub(super) fn piece_is_over(&mut self, number: u64, piece: u64, running: Running, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        if get.is_going() {
            if let Some(berth) = running.berth {
                get.ready.insert(piece, Ready { from: running.from, len: running.len, berth, is_handed: false });
                out.tell();
            }
            return self.piece_is_here(number, running.part, running.len, out);
        }
        if let Some(ticket) = running.quarantined {
            out.act(Action::Free { ticket });
        }
        if !get.running.values().any(|other| other.part == running.part)
            && get.unanswered.remove(&running.part).is_some()
        {
            let cause = get.result.as_ref().and_then(|result| result.as_ref().err()).map(|failed| failed.cause);
            get.answer(running.part, cause, out);
        }
        let is_quiet = get.running.is_empty();
        if is_quiet {
            get.fire(GetEvent::Quiet);
        }
        if let Some(berth) = running.berth {
            self.give_back(berth);
        }
        if is_quiet {
            self.forget(number, out);
        }
    }

    pub(super) fn piece_is_here(&mut self, number: u64, part: u32, len: u64, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        if let Some(left) = get.unanswered.get_mut(&part) {
            *left -= len;
            if *left == 0 {
                return self.part_is_here(number, part, out);
            }
        }
        if get.running.is_empty() {
            get.fire(GetEvent::Idle);
        }
    }

    pub(super) fn part_is_here(&mut self, number: u64, part: u32, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        get.unanswered.remove(&part);
        get.answer(part, None, out);
        get.parts_done += 1;
        if get.parts_done == get.parts {
            get.fire(GetEvent::Last);
            get.result = Some(Ok(()));
            self.by_offer.remove(&get.from);
            self.over.push((get.from, None));
            out.tell();
            self.forget(number, out);
        } else if get.state == Get::Reading && get.running.is_empty() {
            get.fire(GetEvent::Idle);
        }
    }

    /// One that waits for a berth gives up, also if its credit has come a moment ago.
    pub(super) fn leave_line(&mut self, number: u64) {
        match self.served.iter().position(|waiter| *waiter == CreditWaiter(number)) {
            Some(place) => {
                self.served.remove(place);
                self.purse.give_back([1], &mut self.served).expect("whoever was served has its credit");
            }
            None => {
                let _ = self.purse.leave(CreditWaiter(number), &mut self.served);
            }
        }
    }

    pub(super) fn give_back(&mut self, berth: u32) {
        self.berths.give_back(berth);
        if planted::is(Bug::RelayCreditLeak) {
            return;
        }
        self.purse.give_back([1], &mut self.served).expect("a credit was taken with the berth");
    }

    /// It has ended: the application's memory is let go.
    pub(super) fn forget(&mut self, number: u64, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        out.disarm(Alarm::Get(number));
        if let Some((_, ticket)) = get.memory.take() {
            out.act(Action::Free { ticket });
        }
        if get.is_let_go {
            self.ops.remove(&number);
        }
    }
}

/// Both sides cut at each other's ends, and gathered by regions.
fn pair(here: &[StagingPlace], there: &[StagingPlace]) -> Vec<(RegionRef, RegionRef, Vec<Span>)> {
    let mut moves: Vec<(RegionRef, RegionRef, Vec<Span>)> = Vec::new();
    let (mut here, mut there) = (here.iter().copied(), there.iter().copied());
    let (mut local, mut remote) = (here.next(), there.next());
    while let (Some(mine), Some(theirs)) = (local, remote) {
        let len = mine.len.min(theirs.len);
        let span = Span { local: mine.offset, remote: theirs.offset, len };
        match moves.last_mut() {
            Some((region, other, spans)) if (*region, *other) == (mine.region, theirs.region) => spans.push(span),
            _ => moves.push((mine.region, theirs.region, vec![span])),
        }
        let behind = |place: StagingPlace| StagingPlace { offset: place.offset + len, len: place.len - len, ..place };
        local = if mine.len == len { here.next() } else { Some(behind(mine)) };
        remote = if theirs.len == len { there.next() } else { Some(behind(theirs)) };
    }
    moves
}
