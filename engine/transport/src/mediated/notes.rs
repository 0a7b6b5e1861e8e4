//! Notes in both directions: room that the receiver has promised, and what waits for its inbox.
//!
//! A sender may have as many lines with the receiver as a ring on one host has. What the inbox has no room for is kept
//! here, so that neither data nor answers wait behind it; it is bounded by what was promised.

use std::collections::VecDeque;

use crate::{LaneEvents, LaneFault, Note};
use penstock_core::limits::{NOTE_BYTES_MAX, RING_LINES};
use penstock_core::{Cause, NoteId};

/// Lines that one side may have with the other.
const LINES: u64 = RING_LINES as u64;

/// The peer is told of room that came back at the latest when it is so much.
const TOLD_AT_LEAST: u64 = LINES / 4;

/// The notes between one worker here and one there: one of these at each side, whatever carries them.
pub struct Notes {
    /// Lines of all notes that were ever sent, or wait to be.
    sent: u64,
    /// How many of those the peer has taken.
    taken_there: u64,
    /// Lines of all notes that ever came.
    came: u64,
    /// How many of those were taken here, and what the peer was told of it.
    taken: u64,
    told: u64,
    held: VecDeque<(NoteId, usize)>,
    bytes: VecDeque<u8>,
    /// What lanes say, each behind its length: it waits for no room.
    messages: Vec<u8>,
    payload: Box<[u8; NOTE_BYTES_MAX]>,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            sent: 0,
            taken_there: 0,
            came: 0,
            taken: 0,
            told: 0,
            held: VecDeque::new(),
            bytes: VecDeque::new(),
            messages: Vec::new(),
            payload: Box::new([0; NOTE_BYTES_MAX]),
        }
    }
}

impl Notes {
    /// Takes room for so many lines at the receiver. Returns whether there was.
    pub fn reserve(&mut self, lines: u64) -> bool {
        // Less was sent than was taken only if the peer took what never left: it helps it to nothing.
        let has_room = self.sent.saturating_sub(self.taken_there) + lines <= LINES;
        self.sent += if has_room { lines } else { 0 };
        has_room
    }

    /// A note did not leave after all.
    pub fn take_back(&mut self, lines: u64) {
        self.sent = self.sent.saturating_sub(lines);
    }

    /// The receiver has taken so many lines since the beginning.
    pub fn hear(&mut self, taken: u64) -> Result<(), LaneFault> {
        if taken > self.sent {
            return Err(LaneFault(Cause::PeerCorrupt));
        }
        // Between several streams, or packets, an earlier word may come later.
        self.taken_there = self.taken_there.max(taken);
        Ok(())
    }

    /// A note has come: it is delivered, or kept until there is room. One that may not be delivered only takes its room.
    pub fn arrive(&mut self, note: Note<'_>, is_wanted: bool, events: &mut dyn LaneEvents) -> Result<(), LaneFault> {
        let lines = self.count(note)?;
        if note.id == NoteId::STAGING {
            events.lane_message(note.payload);
        } else if !is_wanted {
            self.taken += lines;
        } else if self.held.is_empty() && events.reserve_note() {
            events.note(note);
            self.taken += lines;
        } else {
            self.hold(note);
        }
        Ok(())
    }

    /// A note has come: it is kept until [`Notes::deliver`].
    pub fn keep(&mut self, note: Note<'_>) -> Result<(), LaneFault> {
        self.count(note)?;
        if note.id == NoteId::STAGING {
            self.messages.extend((note.payload.len() as u16).to_le_bytes());
            self.messages.extend(note.payload);
        } else {
            self.hold(note);
        }
        Ok(())
    }

    /// The lines of a note that has come.
    fn count(&mut self, note: Note<'_>) -> Result<u64, LaneFault> {
        let lines = note.lines() as u64;
        self.came += lines;
        // More than it was promised?
        if self.came - self.told > LINES { Err(LaneFault(Cause::PeerCorrupt)) } else { Ok(lines) }
    }

    fn hold(&mut self, note: Note<'_>) {
        self.held.push_back((note.id, note.payload.len()));
        self.bytes.extend(note.payload);
    }

    /// Delivers what was kept, as far as there is room.
    pub fn deliver(&mut self, events: &mut dyn LaneEvents) {
        let mut messages = &self.messages[..];
        while let Some((bytes, rest)) = messages.split_first_chunk() {
            let (message, rest) = rest.split_at(u16::from_le_bytes(*bytes).into());
            events.lane_message(message);
            messages = rest;
        }
        self.messages.clear();
        while let Some(&(id, bytes)) = self.held.front() {
            if !events.reserve_note() {
                return;
            }
            self.held.pop_front();
            for (place, byte) in self.payload[..bytes].iter_mut().zip(self.bytes.drain(..bytes)) {
                *place = byte;
            }
            let note = Note { id, payload: &self.payload[..bytes] };
            events.note(note);
            self.taken += note.lines() as u64;
        }
    }

    /// Whether the peer may wait for room that it was not told of.
    pub fn is_due(&self) -> bool {
        self.taken != self.told && (self.held.is_empty() || self.taken - self.told >= TOLD_AT_LEAST)
    }

    /// What the peer is to be told now, if anything.
    pub fn tell(&mut self) -> Option<u64> {
        let is_news = self.taken != self.told;
        self.told = self.taken;
        is_news.then_some(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use crate::lane::Handle;
    use crate::record::lines_for;

    use super::*;

    #[derive(Default)]
    struct Inbox {
        room: usize,
        got: Vec<(u128, Vec<u8>)>,
    }

    impl LaneEvents for Inbox {
        fn reserve_note(&mut self) -> bool {
            self.room > 0
        }

        fn note(&mut self, note: Note<'_>) {
            self.room -= 1;
            self.got.push((note.id.0, note.payload.to_vec()));
        }

        fn handed_over(&mut self, _: Note<'_>, _: Handle) {}

        fn completed(&mut self, _: u64, _: Result<u64, crate::Failure>) {}
    }

    #[test]
    fn what_has_no_room_waits_and_keeps_its_order() {
        let (mut notes, mut inbox) = (Notes::default(), Inbox { room: 1, ..Inbox::default() });
        let payload: Vec<u8> = (0..=255).collect();
        for id in 0..4u128 {
            let note = Note { id: NoteId(id), payload: &payload[..id as usize * 60] };
            notes.arrive(note, id != 2, &mut inbox).unwrap();
        }
        assert_eq!(inbox.got.len(), 1);
        assert!(!notes.is_due(), "the peer has plenty of room, and what it sent is not all taken");
        inbox.room = 5;
        notes.deliver(&mut inbox);
        let expected: Vec<_> = [0u128, 1, 3].map(|id| (id, payload[..id as usize * 60].to_vec())).into();
        assert_eq!(inbox.got, expected);
        let lines: usize = (0..4).map(|id| lines_for(id * 60)).sum();
        assert!(notes.is_due());
        assert_eq!(notes.tell(), Some(lines as u64));
        assert_eq!(notes.tell(), None);
    }

    #[test]
    fn nobody_sends_more_than_was_promised() {
        let mut notes = Notes::default();
        assert!(notes.reserve(LINES - 1));
        assert!(!notes.reserve(2));
        assert!(notes.reserve(1));
        assert!(!notes.reserve(1));
        notes.take_back(1);
        assert!(notes.hear(LINES).is_err(), "more than was sent");
        notes.hear(3).unwrap();
        notes.hear(2).unwrap();
        assert!(notes.reserve(4) && !notes.reserve(1), "it does not go back");

        let mut inbox = Inbox::default();
        let note = Note { id: NoteId(1), payload: &[] };
        for _ in 0..LINES {
            notes.arrive(note, true, &mut inbox).unwrap();
        }
        assert_eq!(notes.arrive(note, true, &mut inbox), Err(LaneFault(Cause::PeerCorrupt)));
    }
}
