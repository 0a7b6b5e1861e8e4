//! What a lane says to the peer's lanes, and what it hears of them.

use std::mem;
use std::sync::Arc;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Direction, NoteId, Span};
use penstock_memory::copy::hint_for;

use super::lane::{MESSAGE, PLACE_BITS, SpoiltSlot, StagedLane};
use super::message::{self, ANSWERS_MAX, Answer, CopyRefusal, CopyRequest, StagingMessage, Workers};
use super::op::{Hop, OpOf, StagedOp};
use super::peer::{DIRECTIONS, GrantedTo, WANTED_MAX};
use super::slots::{SLOT_BYTES, StagingSlot};
use crate::lane::{LaneEvents, LaneFault, Note, NotifyRequest, PostError, Revisions};

/// How often a message that finds no room is tried again at once.
const REFUSALS_MAX: u32 = 1000;

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// What a list of messages has room for once there is one, so that it does not grow in steady state: 64 copies of some dozens of blocks
/// each are asked for in less.
const HEARD_BYTES: usize = 64 << 10;

/// Messages in one list.
pub(super) fn put_heard(heard: &mut Vec<u8>, message: &[u8]) {
    if heard.capacity() == 0 {
        heard.reserve(HEARD_BYTES);
    }
    heard.extend((message.len() as u16).to_le_bytes());
    heard.extend(message);
}

fn next_heard<'a>(heard: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (bytes, rest) = heard.split_first_chunk()?;
    let (message, rest) = rest.split_at_checked(u16::from_le_bytes(*bytes).into())?;
    *heard = rest;
    Some(message)
}

impl StagedLane {
    /// From this lane to the worker of the peer that serves it.
    pub(super) fn to_peer(&self) -> Workers {
        Workers { to: (self.worker % self.session.peer_workers) as u16, from: self.worker as u16 }
    }

    /// Sends what was written down, behind all bytes of that transfer.
    pub(super) fn say(&mut self, completion_id: u64, transfer: u64, transfer_bytes: u64) -> Result<(), PostError> {
        let note = Some(Note { id: NoteId::STAGING, payload: &self.message });
        let request = NotifyRequest { transfer, transfer_bytes, completion_id, counter: None, note };
        let said = self.inner.notify(&request).map(drop);
        self.refusals = if said == Err(PostError::Full) { self.refusals.saturating_add(1) } else { 0 };
        // Nobody says when there is room for a notification. Who waits for long is looked at as lanes are that nobody marks.
        if (1..=REFUSALS_MAX).contains(&self.refusals) {
            self.ready.mark(self.session.peer_index as usize);
        }
        said
    }

    /// Sends what was written down, of no transfer. Returns whether there was room.
    fn say_now(&mut self) -> Result<bool, LaneFault> {
        let transfer = self.next_id(0);
        match self.say(MESSAGE, transfer, 0) {
            Ok(()) => Ok(true),
            Err(PostError::Fault(fault)) => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// Asks the peer for slots, if more are needed than it was asked for.
    pub(super) fn ask_for_slots(&mut self) -> Result<(), PostError> {
        if self.say_wants().map_err(PostError::Fault)? {
            self.inner.ring_doorbell().map_err(PostError::Fault)?;
        }
        Ok(())
    }

    fn say_wants(&mut self) -> Result<bool, LaneFault> {
        let (mut any, workers) = (false, self.to_peer());
        for direction in DIRECTIONS {
            if let Some(asked) = self.grants[direction as usize].to_ask() {
                message::put_want(&mut self.message, workers, direction, asked);
                if self.say_now()? {
                    self.grants[direction as usize].was_asked(asked);
                    any = true;
                }
            }
        }
        Ok(any)
    }

    /// Says what is to be said: answers, what is asked for, what is granted, what is given back. Returns whether anything was, and whether to look
    /// again soon.
    pub(super) fn speak(&mut self) -> Result<(bool, bool), LaneFault> {
        let (mut any, mut more) = (self.say_wants()?, false);
        let workers = self.to_peer();
        while let Some(&(to, ..)) = self.answers.first() {
            let count = self.answers.iter().take(ANSWERS_MAX).take_while(|answer| answer.0 == to).count();
            let answers = self.answers[..count].iter().map(|&(_, answer)| answer);
            message::put_copied(&mut self.message, Workers { to, from: self.worker as u16 }, answers);
            if !self.say_now()? {
                break;
            }
            self.answers.drain(..count);
            any = true;
        }
        while let Some(&SpoiltSlot { direction, slot, transfer, transfer_bytes }) = self.spoilt.last() {
            // It comes behind all bytes of the transfer.
            message::put_given_back(&mut self.message, workers, direction, &[slot]);
            match self.say(MESSAGE, transfer, transfer_bytes) {
                Ok(()) => drop(self.spoilt.pop()),
                Err(PostError::Fault(fault)) => return Err(fault),
                Err(_) => break,
            }
            any = true;
        }
        for direction in DIRECTIONS {
            any |= self.grant(direction)?;
            let (idle, look_again) = self.grants[direction as usize].look();
            more |= look_again;
            if !idle.is_empty() {
                message::put_given_back(&mut self.message, workers, direction, idle);
                if self.say_now()? {
                    self.grants[direction as usize].were_given_back();
                    any = true;
                }
            }
        }
        Ok((any, more))
    }

    /// Grants the peer slots that it lacks, as far as there are any.
    fn grant(&mut self, direction: Direction) -> Result<bool, LaneFault> {
        let (who, mut any) = ((self.worker, self.session.peer_index), false);
        for place in 0..self.granted.len() {
            // Each worker of the peer as if it were another peer, or the first to come would keep the others from theirs.
            let GrantedTo { worker, slots } = &self.granted[place];
            let (has, lacks) = (slots[direction as usize].has(), slots[direction as usize].lacks());
            let Some(slots) = self.session.staging.for_peers(direction).filter(|_| lacks > 0) else { continue };
            self.fresh.extend((0..lacks).map_while(|step| slots.take(who, has + step)));
            if self.fresh.is_empty() {
                continue;
            }
            let workers = Workers { to: *worker, from: self.worker as u16 };
            message::put_granted(&mut self.message, workers, direction, self.fresh.iter().map(StagingSlot::place));
            let is_said = self.say_now()?;
            let mut fresh = mem::take(&mut self.fresh);
            match is_said {
                true => fresh.drain(..).for_each(|slot| self.granted[place].slots[direction as usize].add(slot)),
                false => fresh.clear(),
            }
            self.fresh = fresh;
            any |= is_said;
        }
        if any {
            // The next time another one is the first.
            self.granted.rotate_left(1);
        }
        Ok(any)
    }

    /// What that worker of the peer was granted, if it has ever asked.
    pub(super) fn granted_to(&mut self, worker: u16) -> Option<&mut GrantedTo> {
        self.granted.iter_mut().find(|granted| granted.worker == worker)
    }

    /// A worker of the peer that this one serves asks for slots.
    fn want(&mut self, worker: u16, direction: Direction, asked: u64) -> Result<(), LaneFault> {
        let is_ours = usize::from(worker) % self.segments().workers() == self.worker;
        if !is_ours || usize::from(worker) >= self.session.peer_workers {
            return Err(CORRUPT);
        }
        if self.granted_to(worker).is_none() {
            self.granted.push(GrantedTo { worker, slots: Default::default() });
        }
        self.granted_to(worker).ok_or(CORRUPT)?.slots[direction as usize].want(asked);
        Ok(())
    }

    /// Takes in what the peer's lanes have said, and passes on what is another lane's.
    pub(super) fn hear(&mut self, events: &mut dyn LaneEvents) -> Result<(), LaneFault> {
        if self.session.has_mail(self.worker) {
            self.session.take_mail(self.worker, &mut self.heard);
        }
        let heard = mem::take(&mut self.heard);
        let mut rest = &heard[..];
        while let Some(bytes) = next_heard(&mut rest) {
            let (workers, said) = message::parse(bytes).map_err(|_| CORRUPT)?;
            if usize::from(workers.to) != self.worker {
                self.session.forward(workers.to.into(), bytes)?;
                continue;
            }
            match said {
                StagingMessage::Want { direction, asked } => {
                    self.want(workers.from, direction, asked)?;
                }
                StagingMessage::Granted { direction, slots } => {
                    if workers.from != self.to_peer().to || !self.grants[direction as usize].granted(slots.iter()) {
                        return Err(CORRUPT);
                    }
                }
                StagingMessage::GivenBack { direction, slots } => {
                    let granted = self.granted_to(workers.from).ok_or(CORRUPT)?;
                    if !granted.slots[direction as usize].given_back(slots.iter()) {
                        return Err(CORRUPT);
                    }
                }
                StagingMessage::Copy(copy) => self.serve(&copy, workers.from)?,
                StagingMessage::Copied(_) if workers.from != self.to_peer().to => return Err(CORRUPT),
                StagingMessage::Copied(answers) => answers.iter().for_each(|answer| self.copied(answer, events)),
            }
        }
        self.heard = heard;
        self.heard.clear();
        Ok(())
    }

    pub(super) fn answer(&mut self, worker: u16, number: u64, end: Result<(), Cause>) {
        let staging = &self.session.staging;
        let are_wanted = |direction| staging.for_peers(direction).is_some_and(|slots| slots.are_wanted());
        let is_slot_wanted = DIRECTIONS.into_iter().any(are_wanted);
        let revision = self.view().revision();
        let end = end.map_err(|cause| CopyRefusal { cause, revision });
        self.answers.push((worker, Answer { number, end, is_slot_wanted }));
    }

    /// The peer has copied, or has not.
    fn copied(&mut self, answer: Answer, events: &mut dyn LaneEvents) {
        let Answer { number, end, is_slot_wanted } = answer;
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        let Some(Some(op)) = self.ops.get_mut(place) else { return };
        if op.own_id != number || op.hop != Hop::Remote || !op.is_under_way {
            return;
        }
        (op.is_under_way, op.gives_back) = (false, is_slot_wanted);
        if let Err(CopyRefusal { revision, .. }) = end {
            self.session.peer_view.on_revision(revision);
        }
        match end.map_err(|refusal| refusal.cause) {
            Ok(()) => self.hop_is_over(place, events),
            Err(Cause::DeviceFailed) => self.lose_at_peer(place, Cause::DeviceFailed, events),
            Err(cause) => self.finish(place, Err(cause.into()), events),
        }
    }

    /// The peer asks for a copy between memory here and a slot that it was granted.
    fn serve(&mut self, copy: &CopyRequest<'_>, worker: u16) -> Result<(), LaneFault> {
        let bytes = copy.extents().try_fold(0, |bytes: u64, (_, len)| bytes.checked_add(len));
        let is_sound = bytes.is_some_and(|bytes| bytes <= SLOT_BYTES) && copy.extents().all(|(_, len)| len > 0);
        // Who waits for an answer does not use its slot again.
        let has_room = self.answers.len() < DIRECTIONS.len() * WANTED_MAX * self.session.peer_workers;
        // Nobody can have told a revision that this engine never had.
        if !is_sound || !has_room || copy.revision > self.view().revision() {
            return Err(CORRUPT);
        }
        let (session, has_devices) = (Arc::clone(&self.session), self.devices.is_some());
        let granted = &mut self.granted_to(worker).ok_or(CORRUPT)?.slots[copy.direction as usize];
        let slot = granted.take(copy.slot).ok_or(CORRUPT)?;
        let local = match session.staging.admit(copy) {
            Ok(local) if has_devices => local,
            refused => {
                granted.put(slot);
                self.answer(worker, copy.number, Err(refused.err().unwrap_or(Cause::NoPath)));
                return Ok(());
            }
        };
        let Some(slots) = session.staging.for_peers(copy.direction).map(Arc::clone) else { return Err(CORRUPT) };
        let place = self.place();
        let mut spans = self.lists.pop().unwrap_or_else(|| Vec::with_capacity(SPANS_PER_POST));
        spans.extend(copy.extents().map(|(offset, len)| Span { local: offset, remote: 0, len }));
        let op = StagedOp {
            of: OpOf::Peer { worker, number: copy.number },
            own_id: self.next_id(place),
            hop: Hop::Near,
            is_under_way: false,
            // What the peer writes comes out of the slot.
            direction: if copy.direction == Direction::Write { Direction::Read } else { Direction::Write },
            local,
            local_region: copy.key,
            remote: slots.mapped.clone(),
            remote_region: slots.key,
            spans,
            done: 0,
            posted: 0,
            hint: hint_for(SLOT_BYTES),
            checked_at: Revisions { local: copy.revision, remote: 0 },
            transfer: 0,
            transfer_bytes: 0,
            slot: Some(slot),
            slots: Some(slots),
            grant: None,
            gives_back: false,
            is_cancelled: false,
            hold: None,
        };
        self.ops[place] = Some(op);
        self.waiting[2].push_back(place);
        Ok(())
    }
}
