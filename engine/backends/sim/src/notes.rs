//! Notes in both directions: room that the receiver has promised, and what waits for its inbox.
//!
//! A sender may have as many lines with the receiver as a ring on one host has. What the inbox has no room for is kept here;
//! it is bounded by what was promised.

use std::collections::VecDeque;

use penstock_core::limits::RING_LINES;
use penstock_core::{Cause, NoteId};
use penstock_transport::record::lines_for;
use penstock_transport::{LaneEvents, LaneFault, Note};

/// Lines that one side may have with the other.
const LINES: u64 = RING_LINES as u64;

/// The peer is told of room that came back at the latest when it is so much.
const TOLD_AT_LEAST: u64 = LINES / 4;

/// The notes of one lane.
#[derive(Default)]
pub(crate) struct Notes {
    /// Lines of all notes that were ever sent, or wait to be.
    sent: u64,
    /// How many of those the peer has taken.
    taken_there: u64,
    /// Lines of all notes that ever came.
    came: u64,
    /// How many of those were taken here, and what the peer was told of it.
    taken: u64,
    told: u64,
    held: VecDeque<(NoteId, Vec<u8>)>,
}

impl Notes {
    /// Takes room for so many lines at the receiver. Returns whether there was.
    pub(crate) fn reserve(&mut self, lines: u64) -> bool {
        let has_room = self.sent - self.taken_there + lines <= LINES;
        self.sent += if has_room { lines } else { 0 };
        has_room
    }

    /// A note did not leave after all.
    pub(crate) fn take_back(&mut self, lines: u64) {
        // What has not left was not taken either, unless the peer lies: it helps it to nothing.
        self.sent = self.sent.saturating_sub(lines).max(self.taken_there);
    }

    /// The receiver has taken so many lines since the beginning.
    pub(crate) fn hear(&mut self, taken: u64) -> Result<(), LaneFault> {
        if taken > self.sent || taken < self.taken_there {
            return Err(LaneFault(Cause::PeerCorrupt));
        }
        self.taken_there = taken;
        Ok(())
    }

    /// A note has come: it is delivered, or kept until there is room. One that may not be delivered only takes its room.
    pub(crate) fn arrive(
        &mut self,
        note: Note<'_>,
        is_wanted: bool,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let lines = lines_for(note.payload.len()) as u64;
        self.came += lines;
        if self.came - self.told > LINES {
            return Err(LaneFault(Cause::PeerCorrupt)); // More than it was promised.
        }
        if !is_wanted {
            self.taken += lines;
        } else if self.held.is_empty() && events.has_room() {
            events.note(note);
            self.taken += lines;
        } else {
            self.held.push_back((note.id, note.payload.to_vec()));
        }
        Ok(())
    }

    /// Delivers what was kept, as far as there is room.
    pub(crate) fn deliver(&mut self, events: &mut dyn LaneEvents) {
        while !self.held.is_empty() && events.has_room() {
            let Some((id, payload)) = self.held.pop_front() else { return };
            events.note(Note { id, payload: &payload });
            self.taken += lines_for(payload.len()) as u64;
        }
    }

    /// What the peer is to be told now, if it may wait for it.
    pub(crate) fn tell(&mut self) -> Option<u64> {
        let is_due = self.taken != self.told && (self.held.is_empty() || self.taken - self.told >= TOLD_AT_LEAST);
        is_due.then(|| {
            self.told = self.taken;
            self.taken
        })
    }
}

#[cfg(test)]
mod tests {
    use penstock_transport::Failure;
    use penstock_transport::lane::Handle;

    use super::*;

    #[derive(Default)]
    struct Inbox {
        room: usize,
        got: Vec<(u128, usize)>,
    }

    impl LaneEvents for Inbox {
        fn has_room(&mut self) -> bool {
            self.room > 0
        }

        fn note(&mut self, note: Note<'_>) {
            self.room -= 1;
            self.got.push((note.id.0, note.payload.len()));
        }

        fn handed_over(&mut self, _: Note<'_>, _: Handle) {}

        fn completed(&mut self, _: u64, _: Result<u64, Failure>) {}
    }

    #[test]
    fn what_has_no_room_waits_and_keeps_its_order() {
        let (mut notes, mut inbox) = (Notes::default(), Inbox { room: 1, ..Inbox::default() });
        for id in 0..4u128 {
            let payload = vec![7; id as usize * 60];
            notes.arrive(Note { id: NoteId(id), payload: &payload }, id != 2, &mut inbox).unwrap();
        }
        assert_eq!((inbox.got.len(), notes.tell()), (1, None));
        inbox.room = 5;
        notes.deliver(&mut inbox);
        assert_eq!(inbox.got, [(0, 0), (1, 60), (3, 180)]);
        let lines: usize = (0..4).map(|id| lines_for(id * 60)).sum();
        assert_eq!((notes.tell(), notes.tell()), (Some(lines as u64), None));
    }

    #[test]
    fn nobody_sends_more_than_was_promised() {
        let mut notes = Notes::default();
        assert!(notes.reserve(LINES));
        assert!(!notes.reserve(1));
        notes.take_back(1);
        assert!(notes.hear(LINES).is_err(), "more than was sent");
        notes.hear(3).unwrap();
        assert!(notes.hear(2).is_err(), "it does not go back");
        assert!(notes.reserve(4) && !notes.reserve(1));

        let mut inbox = Inbox::default();
        let note = Note { id: NoteId(1), payload: &[] };
        for _ in 0..LINES {
            notes.arrive(note, true, &mut inbox).unwrap();
        }
        assert_eq!(notes.arrive(note, true, &mut inbox), Err(LaneFault(Cause::PeerCorrupt)));
    }
}
