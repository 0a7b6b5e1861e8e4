//! What the peer says: in which order, of which counters, and notes that wait for room.

use std::collections::VecDeque;

use penstock_core::limits::COUNTERS_MAX;
use penstock_core::{Cause, NoteId};
use penstock_transport::{CounterRef, LaneEvents, LaneFault, Note};

use crate::context::Context;
use crate::message::{Forgotten, Head, NotifyMessage};

pub(crate) const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// Announcements that may wait for marks: more than the credits of all rails let a peer open.
const OPEN_MAX: usize = 1024;

/// Looks for which an answer is put off.
const LOOKS: u32 = 4;

/// Whether an answer is to be sent by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    No,
    /// Not yet: look again at once.
    Soon,
    Now,
}

/// The incoming side of one rail.
pub(crate) struct Inbound {
    /// Messages that the peer may send before one is confirmed.
    grants: u32,
    /// How many were heard, how many of them the peer was told of, and which of the last ones named a counter that was gone.
    heard: u32,
    told: u32,
    gone: u64,
    /// The peer waits to be told, and how often it was looked whether something goes to it anyway.
    is_wanted: bool,
    looks: u32,
    /// The generations of the counters that were named on this rail, by their places.
    names: Vec<Option<u32>>,
    /// Notes that came, that were taken, and of how many of those the peer was told.
    notes: u32,
    notes_taken: u32,
    notes_told: u32,
}

impl Inbound {
    pub(crate) fn new(grants: u32) -> Self {
        Self {
            grants,
            heard: 0,
            told: 0,
            gone: 0,
            is_wanted: false,
            looks: 0,
            names: Vec::new(),
            notes: 0,
            notes_taken: 0,
            notes_told: 0,
        }
    }

    /// Messages that the peer may send before one is confirmed.
    pub(crate) fn grants(&self) -> u32 {
        self.grants
    }

    /// How many messages were heard.
    pub(crate) fn heard(&self) -> u32 {
        self.heard
    }

    /// Which of the last ones named a counter that was gone.
    pub(crate) fn gone(&self) -> u64 {
        self.gone
    }

    /// One more was heard. Who keeps to its credits has no more under way than it was told of and may send; who does not takes
    /// receives that are meant for others.
    pub(crate) fn hear(&mut self, is_gone: bool, is_wanted: bool) -> Result<(), LaneFault> {
        self.heard = self.heard.wrapping_add(1);
        self.gone = self.gone << 1 | u64::from(is_gone);
        self.is_wanted |= is_wanted;
        if self.heard.wrapping_sub(self.told) > self.grants { Err(CORRUPT) } else { Ok(()) }
    }

    /// What a message says of all this. The peer is told by it.
    pub(crate) fn tell(&mut self, (life, number): (u8, u32)) -> Head {
        self.notes_told = self.notes_taken;
        self.has_told();
        Head { life, number, heard: self.heard, taken: self.notes_taken, gone: self.gone }
    }

    /// How many messages an immediate says were heard: all, unless a counter was gone, which only a head can say. The peer is told
    /// by it.
    pub(crate) fn tell_immediately(&mut self) -> u32 {
        let unreported = self.heard.wrapping_sub(self.told);
        let is_any_gone = self.gone & !u64::MAX.checked_shl(unreported).unwrap_or(0) != 0;
        if !is_any_gone {
            self.has_told();
        }
        self.told
    }

    /// The peer has heard it another way.
    pub(crate) fn has_told(&mut self) {
        (self.told, self.is_wanted, self.looks) = (self.heard, false, 0);
    }

    /// Whether the peer waits for something that it was not told of, or may have to soon. Whoever counts is often counted in return: an
    /// answer alone is put off for some looks, and goes with what is said meanwhile.
    pub(crate) fn due(&mut self, holds_notes: bool) -> Due {
        let notes = self.notes_taken.wrapping_sub(self.notes_told);
        let presses = self.heard.wrapping_sub(self.told) >= self.grants / 2
            || (notes > 0 && (!holds_notes || notes >= self.grants / 4));
        if presses || (self.is_wanted && self.looks >= LOOKS) {
            return Due::Now;
        }
        self.looks += u32::from(self.is_wanted);
        if self.is_wanted { Due::Soon } else { Due::No }
    }

    /// The counter at this place was named.
    fn name(&mut self, counter: CounterRef) {
        let place = counter.index as usize;
        if self.names.len() <= place {
            self.names.resize((place + 1).next_multiple_of(64).min(COUNTERS_MAX), None);
        }
        self.names[place] = Some(counter.generation);
    }

    /// The counter that an immediate means.
    pub(crate) fn named(&self, place: u16) -> Option<CounterRef> {
        let generation = self.names.get(usize::from(place)).copied().flatten()?;
        Some(CounterRef { index: place.into(), generation })
    }

    /// A note has come.
    fn take_note(&mut self) -> Result<(), LaneFault> {
        self.notes = self.notes.wrapping_add(1);
        if self.notes.wrapping_sub(self.notes_told) > self.grants { Err(CORRUPT) } else { Ok(()) }
    }

    /// A note was taken, or is not wanted.
    fn note_taken(&mut self) {
        self.notes_taken = self.notes_taken.wrapping_add(1);
    }
}

/// What has come and is not done with, on all rails of a channel.
pub(crate) struct InboundMessages {
    pub(crate) rails: Vec<Inbound>,
    open: Vec<Open>,
    held: VecDeque<Held>,
}

/// A notification of which something is still to come.
#[derive(Default)]
struct Open {
    number: u16,
    /// How many marks came.
    marks: u8,
    /// It came itself, and waits for so many marks.
    said: Option<(u8, Option<CounterRef>, Option<Held>)>,
    /// It is not to be made: what of it comes all the same.
    forgotten: Option<Forgotten>,
}

/// A note that waits, and the rail on which it came.
struct Held {
    rail: usize,
    id: NoteId,
    payload: Vec<u8>,
}

impl InboundMessages {
    /// For rails on which the peer may send so many messages before one is confirmed.
    pub(crate) fn new(grants: impl Iterator<Item = u32>) -> Self {
        Self { rails: grants.map(Inbound::new).collect(), open: Vec::new(), held: VecDeque::new() }
    }

    /// Announcements of which something is still to come.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether notes wait for room.
    pub(crate) fn holds_notes(&self) -> bool {
        !self.held.is_empty()
    }

    /// A notification has come on this rail. Returns whether its counter was gone.
    pub(crate) fn notify(
        &mut self,
        rail: usize,
        notification: &NotifyMessage<'_>,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<bool, LaneFault> {
        let NotifyMessage { number, marks, counter, note } = *notification;
        if let Some(counter) = counter {
            self.rails[rail].name(counter);
        }
        if note.is_some_and(|note| note.lines() > 0) {
            self.rails[rail].take_note()?;
        }
        if marks == 0 {
            let is_gone = counter.is_some_and(|counter| !context.increment_counter(counter));
            if let Some(note) = note {
                self.deliver(rail, note, events);
            }
            return Ok(is_gone);
        }
        let place = self.place_of(number)?;
        let open = &mut self.open[place];
        if open.said.is_some() {
            return Err(CORRUPT);
        }
        let note = note.map(|note| Held { rail, id: note.id, payload: note.payload.to_vec() });
        open.said = Some((marks, counter, note));
        self.look(place, context, events)
    }

    /// A mark has come. Returns whether a counter was gone that it was the last to wait for.
    pub(crate) fn mark(
        &mut self,
        number: u16,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<bool, LaneFault> {
        let place = self.place_of(number)?;
        self.open[place].marks = self.open[place].marks.checked_add(1).ok_or(CORRUPT)?;
        self.look(place, context, events)
    }

    /// A notification is not to be made.
    pub(crate) fn forget(
        &mut self,
        forgotten: Forgotten,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let place = self.place_of(forgotten.number)?;
        if self.open[place].forgotten.replace(forgotten).is_some() {
            return Err(CORRUPT);
        }
        self.look(place, context, events).map(drop)
    }

    /// The place of a notification of which something has come.
    fn place_of(&mut self, number: u16) -> Result<usize, LaneFault> {
        if let Some(place) = self.open.iter().position(|open| open.number == number) {
            return Ok(place);
        }
        if self.open.len() == OPEN_MAX {
            return Err(CORRUPT);
        }
        self.open.push(Open { number, ..Open::default() });
        Ok(self.open.len() - 1)
    }

    /// Makes a notification if nothing of it is missing. Returns whether its counter was gone.
    fn look(&mut self, place: usize, context: &Context<'_>, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let open = &self.open[place];
        let (marks, is_whole) = match (&open.forgotten, &open.said) {
            (Some(forgotten), said) => (forgotten.marks, said.is_some() == forgotten.is_said),
            (None, Some((marks, ..))) => (*marks, true),
            (None, None) => return Ok(false),
        };
        if open.marks > marks {
            return Err(CORRUPT);
        }
        if !is_whole || open.marks < marks {
            return Ok(false);
        }
        let Open { said, forgotten, .. } = self.open.swap_remove(place);
        let Some((_, counter, note)) = said else { return Ok(false) };
        if forgotten.is_some() {
            if let Some(note) = note.filter(|note| note.id != NoteId::STAGING) {
                self.rails[note.rail].note_taken();
            }
            return Ok(false);
        }
        let is_gone = counter.is_some_and(|counter| !context.increment_counter(counter));
        if let Some(note) = note {
            self.deliver(note.rail, Note { id: note.id, payload: &note.payload }, events);
        }
        Ok(is_gone)
    }

    fn deliver(&mut self, rail: usize, note: Note<'_>, events: &mut dyn LaneEvents) {
        if note.id == NoteId::STAGING {
            events.lane_message(note.payload);
        } else if self.held.is_empty() && events.reserve_note() {
            events.note(note);
            self.rails[rail].note_taken();
        } else {
            self.held.push_back(Held { rail, id: note.id, payload: note.payload.to_vec() });
        }
    }

    /// Delivers what was kept, as far as there is room.
    pub(crate) fn deliver_held(&mut self, events: &mut dyn LaneEvents) {
        while !self.held.is_empty() && events.reserve_note() {
            let Some(held) = self.held.pop_front() else { return };
            events.note(Note { id: held.id, payload: &held.payload });
            self.rails[held.rail].note_taken();
        }
    }
}
