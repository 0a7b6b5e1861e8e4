//! The parts of a put: told of, answered, and taken back.

use penstock_core::Timestamp;
use penstock_session::control::ChunkKind;
use penstock_session::purse::CreditWaiter;

use super::{Hold, Memory, Part, Put, PutEvent, PutOp, Puts, Reader};
use crate::action::Action;
use crate::relay::error::RelayFailed;
use crate::relay::out::{Alarm, Out};

impl Puts {
    pub(super) fn numbers(&self, which: impl Fn(&PutOp) -> bool) -> Vec<u64> {
        self.ops.iter().filter(|(_, put)| !put.state.is_end() && which(put)).map(|(op, _)| *op).collect()
    }

    /// Begins those that credits have come for.
    pub(super) fn go_on(&mut self, now: Timestamp, out: &mut Out) {
        while !self.served.is_empty() {
            let CreditWaiter(op) = self.served.remove(0);
            self.begin(op, now, out);
        }
    }

    pub(super) fn begin(&mut self, op: u64, now: Timestamp, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        put.fire(PutEvent::Credits);
        if let Memory::Berths { count } = put.memory {
            for part in 0..count {
                let berth = Some(self.berths.take());
                put.out.insert(part, Part { berth, is_filling: true, is_handed: false, holds: Vec::new() });
            }
            put.next_part = count;
            return out.tell();
        }
        put.out.insert(0, Part { berth: None, is_filling: true, is_handed: false, holds: Vec::new() });
        put.next_part = put.parts;
        match put.memory {
            Memory::Extents { is_ready: false, .. } => out.tell(),
            _ => self.publish(op, 0, now, out),
        }
    }

    /// Tells the readers of a part that is written.
    pub(super) fn publish(&mut self, op: u64, number: u32, now: Timestamp, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        let Some(berth) = put.out.get(&number).map(|part| part.berth) else { return };
        if put.is_going() {
            let len = put.len_of(number);
            let places = match (&put.memory, berth) {
                (Memory::Extents { extents, .. }, _) => extents.clone(),
                (_, Some(berth)) => vec![self.berths.place(berth, len)],
                (_, None) => Vec::new(),
            };
            let chunk = put.frame(op, number, put.kind, &places, &put.header);
            let mut holds = Vec::new();
            for (place, reader) in put.readers.iter().enumerate().filter(|(_, reader)| reader.failed.is_none()) {
                holds.push(Hold { reader: place, gone: None, quarantined: None });
                out.act(Action::Say { peer: reader.peer, said: chunk.clone().into() });
            }
            if let Some(part) = put.out.get_mut(&number) {
                (part.is_filling, part.holds) = (false, holds);
            }
            if !put.is_filling() {
                put.fire(PutEvent::Filled);
            }
        } else if let Some(part) = put.out.get_mut(&number) {
            part.is_filling = false;
        }
        self.settle(op, number, now, out);
    }

    pub(super) fn stop_if_unread(&mut self, op: u64, now: Timestamp, out: &mut Out) {
        if let Some(put) = self.ops.get(&op)
            && !put.has_readers()
            && let Some(failed) = put.first_failed()
        {
            self.stop(op, PutEvent::Abort, failed, false, now, out);
        }
    }

    pub(super) fn stop(
        &mut self,
        op: u64,
        event: PutEvent,
        failed: RelayFailed,
        is_said: bool,
        now: Timestamp,
        out: &mut Out,
    ) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        let is_waiting = put.state == Put::Waiting;
        if !is_waiting && !put.is_going() {
            return;
        }
        put.fire(event);
        put.fail(failed.clone());
        if let Some((stream, _)) = put.stream.filter(|_| put.kind == ChunkKind::Data) {
            self.torn.push((stream, failed.clone()));
        }
        out.tell();
        // Also those who were told of nothing yet: they may have the metadata, and wait. Who has all parts waits for nothing.
        if is_said && put.kind == ChunkKind::Data {
            let frame = put.frame(op, 0, ChunkKind::Error, &[], failed.to_string().as_bytes());
            let lacks = |reader: &&Reader| reader.failed.is_none() && reader.answered < put.parts;
            for reader in put.readers.iter().filter(lacks) {
                out.act(Action::Say { peer: reader.peer, said: frame.clone().into() });
            }
        }
        if is_waiting {
            let want = if let Memory::Berths { count } = put.memory { count } else { 0 };
            let is_data = put.kind == ChunkKind::Data;
            self.leave_line(op, is_data, want);
            return self.forget(op, out);
        }
        out.arm(Alarm::Put(op), now + self.abort);
        // Nobody was told of memory that was not ready yet. A berth that may be being written comes back from whoever writes.
        for part in put.out.values_mut().filter(|part| part.berth.is_none() || !part.is_handed) {
            part.is_filling = false;
        }
        self.settle_all(op, now, out);
    }

    /// One that waits gives up, also if its credits have come a moment ago.
    pub(super) fn leave_line(&mut self, op: u64, is_data: bool, want: u32) {
        let was_served =
            self.served.iter().position(|waiter| *waiter == CreditWaiter(op)).map(|place| self.served.remove(place));
        let returned = match (was_served.is_some(), is_data) {
            (true, true) => self.purse.give_back([want.into(), 1], &mut self.served),
            (true, false) => self.control.give_back([1], &mut self.served),
            (false, _) => {
                let _ = match is_data {
                    true => self.purse.leave(CreditWaiter(op), &mut self.served),
                    false => self.control.leave(CreditWaiter(op), &mut self.served),
                };
                Ok(())
            }
        };
        returned.expect("whoever was served has its credits");
    }

    pub(super) fn settle_all(&mut self, op: u64, now: Timestamp, out: &mut Out) {
        let parts: Vec<u32> = self.ops.get(&op).map(|put| put.out.keys().copied().collect()).unwrap_or_default();
        for part in parts {
            self.settle(op, part, now, out);
        }
    }

    /// Looks whether anybody is still at a part: its berth takes the next one, or comes back.
    pub(super) fn settle(&mut self, op: u64, number: u32, _now: Timestamp, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        if put.out.get(&number).is_none_or(|part| part.is_filling || !part.holds.is_empty()) {
            return;
        }
        let berth = put.out.remove(&number).and_then(|part| part.berth);
        if let Some(berth) = berth {
            if put.is_going() && put.next_part < put.parts {
                put.out.insert(
                    put.next_part,
                    Part { berth: Some(berth), is_filling: true, is_handed: false, holds: Vec::new() },
                );
                put.next_part += 1;
                put.fire(PutEvent::NextPart);
                return out.tell();
            }
            self.berths.give_back(berth);
            self.purse.give_back([1, 0], &mut self.served).expect("a credit was taken with the berth");
        }
        if !put.out.is_empty() {
            return;
        }
        put.fire(PutEvent::LastBack);
        match put.kind {
            ChunkKind::Data => self.purse.give_back([0, 1], &mut self.served),
            _ => self.control.give_back([1], &mut self.served),
        }
        .expect("a credit was taken when it began");
        if put.result.is_none() {
            put.result = Some(put.first_failed().map_or(Ok(()), Err));
        }
        out.tell();
        self.forget(op, out);
    }

    /// It has ended: what it kept is let go, and its stream hears of a failure.
    pub(super) fn forget(&mut self, op: u64, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        out.disarm(Alarm::Put(op));
        if let Memory::Extents { keep, .. } = put.memory {
            out.act(Action::Free { ticket: keep });
        }
        if let Some((stream, _)) = put.stream {
            match &put.result {
                Some(Err(failed)) if put.kind == ChunkKind::Data => self.torn.push((stream, failed.clone())),
                Some(result) if put.kind != ChunkKind::Data => self.ended_signals.push((stream, result.is_ok())),
                _ => {}
            }
        }
        if put.is_let_go {
            self.ops.remove(&op);
        }
    }
}
