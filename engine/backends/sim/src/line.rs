//! Every message arrives once, whatever becomes of packets.
//!
//! Messages are numbered. The receiver says with each packet which have arrived, and the sender repeats those that have not,
//! at first soon and then more and more rarely. A message is handed up twice: at once when it arrives, before or after
//! those around it, and once more when all before it have been there.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::{Cause, Timestamp};
use penstock_transport::LaneFault;

use crate::packet::Head;

/// Messages that may be under way at once: as many as one packet can speak of.
pub(crate) const WINDOW: u64 = 64;

/// After so long a message is repeated for the first time.
const REPEAT_AFTER: Duration = Duration::from_millis(2);
/// How often the time until the next repetition is doubled.
const DOUBLINGS_MAX: u32 = 5;
/// Nobody is given up before a message went out so often: who has itself stood still gives others time to answer.
const TRIES_MIN: u32 = 6;

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// Which operation a message belongs to that its sender may give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePart {
    pub(crate) operation: u64,
    pub(crate) is_last: bool,
}

/// A message that the peer may not have.
struct Pending {
    sequence: u64,
    message: Vec<u8>,
    part: Option<FramePart>,
    first: Timestamp,
    again: Timestamp,
    tries: u32,
    is_heard: bool,
}

/// A message that has come, and what became of its bytes, where it had some that land by themselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) message: Vec<u8>,
    pub(crate) landed: Option<Result<(), Cause>>,
}

/// One side of a conversation.
pub(crate) struct Line {
    patience: Duration,
    /// The number of the next message.
    next: u64,
    pending: VecDeque<Pending>,
    /// All of the peer's messages up to this one have come, and were handed up in order.
    until: u64,
    early: BTreeMap<u64, Kept>,
    /// Something has come since the peer was last told what has.
    owes: bool,
    /// When anything was heard last.
    heard: Timestamp,
}

impl Line {
    /// One that gives the other side up when it says nothing for so long.
    pub(crate) fn new(patience: Duration, now: Timestamp) -> Self {
        let (pending, early) = (VecDeque::new(), BTreeMap::new());
        Self { patience, next: 1, pending, until: 0, early, owes: false, heard: now }
    }

    /// Whether one more message may set off.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.front().is_none_or(|first| self.next - first.sequence < WINDOW)
    }

    /// Sends a message; it needs room.
    pub(crate) fn push(
        &mut self,
        message: Vec<u8>,
        part: Option<FramePart>,
        now: Timestamp,
        mut out: impl FnMut(u64, &[u8]),
    ) {
        debug_assert!(self.has_room(), "who sends looks for room first");
        out(self.next, &message);
        let (sequence, again) = (self.next, now + REPEAT_AFTER);
        self.pending.push_back(Pending { sequence, message, part, first: now, again, tries: 1, is_heard: false });
        self.next += 1;
    }

    /// Repeats what was not heard of for too long.
    pub(crate) fn repeat(&mut self, now: Timestamp, mut out: impl FnMut(u64, &[u8])) -> Result<(), LaneFault> {
        if let Some(oldest) = self.pending.front()
            && oldest.tries >= TRIES_MIN
            && now.since(oldest.first.max(self.heard)) >= self.patience
        {
            return Err(LaneFault(Cause::PeerLost));
        }
        for pending in self.pending.iter_mut().filter(|pending| !pending.is_heard && pending.again <= now) {
            pending.again = now + REPEAT_AFTER * (1 << pending.tries.min(DOUBLINGS_MAX));
            pending.tries = pending.tries.saturating_add(1);
            out(pending.sequence, &pending.message);
        }
        Ok(())
    }

    /// When [`Line::repeat`] has something to do.
    pub(crate) fn due(&self) -> Timestamp {
        let waiting = self.pending.iter().filter(|pending| !pending.is_heard);
        waiting.map(|pending| pending.again).min().unwrap_or(Timestamp::NEVER)
    }

    /// Puts something else in the place of messages of an operation that the peer may not have.
    pub(crate) fn replace(&mut self, operation: u64, mut with: impl FnMut(FramePart) -> Vec<u8>) {
        for pending in self.pending.iter_mut().filter(|pending| !pending.is_heard) {
            if let Some(part) = pending.part.filter(|part| part.operation == operation) {
                pending.message = with(part);
            }
        }
    }

    /// Takes what a packet says, and whether its message is a new one.
    pub(crate) fn hear(&mut self, head: &Head, now: Timestamp) -> Result<bool, LaneFault> {
        self.heard = now;
        if head.until >= self.next {
            return Err(CORRUPT); // It has heard what was never said.
        }
        for pending in &mut self.pending {
            let after = pending.sequence.checked_sub(head.until + 1);
            let is_seen = after.is_none_or(|after| after < WINDOW && head.seen >> after & 1 != 0);
            pending.is_heard |= is_seen;
        }
        while self.pending.front().is_some_and(|first| first.is_heard) {
            self.pending.pop_front();
        }
        if head.sequence == 0 {
            return Ok(false);
        }
        if head.sequence > self.until + WINDOW {
            return Err(CORRUPT); // Nobody has told it that there is room for that.
        }
        self.owes = true;
        Ok(head.sequence > self.until && !self.early.contains_key(&head.sequence))
    }

    /// Keeps a new message until all before it have come.
    pub(crate) fn keep(&mut self, sequence: u64, kept: Kept) {
        self.early.insert(sequence, kept);
    }

    /// The next message before which none is missing.
    pub(crate) fn next_in_order(&mut self) -> Option<Kept> {
        let kept = self.early.remove(&(self.until + 1))?;
        self.until += 1;
        Some(kept)
    }

    /// What has come: all up to the first number, and those of the bits after it.
    pub(crate) fn heard(&self) -> (u64, u64) {
        let seen = self.early.keys().fold(0, |seen, sequence| seen | 1 << (sequence - self.until - 1));
        (self.until, seen)
    }

    /// Whether the peer was not told of everything that came; from now on it is.
    pub(crate) fn settle(&mut self) -> bool {
        std::mem::take(&mut self.owes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(500);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_ns(1_000_000_000 + ms * 1_000_000)
    }

    fn head(sequence: u64, (until, seen): (u64, u64)) -> Head {
        Head { from: 1, to: 2, sequence, until, seen }
    }

    fn kept(message: &[u8]) -> Kept {
        Kept { message: message.to_vec(), landed: None }
    }

    #[test]
    fn who_answers_nothing_is_given_up_after_being_asked_often_and_long() {
        let mut line = Line::new(PATIENCE, at(0));
        line.push(vec![1], None, at(0), |_, _| {});
        assert_eq!(line.repeat(at(10_000), |_, _| {}), Ok(()), "this side stood still itself");
        let mut ended = None;
        for ms in 10_000..20_000 {
            if ended.is_none() && line.due() <= at(ms) {
                ended = line.repeat(at(ms), |_, _| {}).err().map(|fault| (fault, ms));
            }
        }
        let (fault, ms) = ended.expect("it gives up");
        assert_eq!(fault, LaneFault(Cause::PeerLost));
        assert!((10_050..10_500).contains(&ms), "{ms}");
    }

    #[test]
    fn what_nobody_can_have_heard_or_said_breaks_the_line() {
        let mut line = Line::new(PATIENCE, at(0));
        assert_eq!(line.hear(&head(0, (1, 0)), at(0)), Err(CORRUPT));
        assert_eq!(line.hear(&head(WINDOW + 1, (0, 0)), at(0)), Err(CORRUPT));
        assert_eq!(line.hear(&head(WINDOW, (0, u64::MAX)), at(0)), Ok(true));
        line.keep(WINDOW, kept(&[]));
        assert_eq!(line.heard(), (0, 1 << (WINDOW - 1)));
        assert_eq!(line.hear(&head(WINDOW, (0, 0)), at(0)), Ok(false), "it came twice");
    }

    #[test]
    fn a_message_that_was_given_up_is_repeated_as_what_is_in_its_place() {
        let mut line = Line::new(PATIENCE, at(0));
        for (number, operation) in [(1u8, 7), (2, 7), (3, 8)] {
            line.push(vec![number], Some(FramePart { operation, is_last: number == 2 }), at(0), |_, _| {});
        }
        line.hear(&head(0, (1, 0)), at(1)).unwrap();
        line.replace(7, |part| vec![90 + u8::from(part.is_last)]);
        let mut said = Vec::new();
        line.repeat(at(5), |sequence, message| said.push((sequence, message.to_vec()))).unwrap();
        assert_eq!(said, [(2, vec![91]), (3, vec![3])]);
    }

    /// Its number, what was heard by who sent it, and its message.
    type Packet = (u64, (u64, u64), Vec<u8>);

    proptest! {
        /// Packets in both directions that vanish, come twice and in any order.
        #[test]
        fn every_message_comes_once_and_in_order(
            count in 1u64..300,
            fates in prop::collection::vec((0u8..10, 0usize..8), 2000),
        ) {
            let mut lines = [Line::new(Duration::from_secs(100), at(0)), Line::new(Duration::from_secs(100), at(0))];
            let mut wires: [Vec<Packet>; 2] = Default::default();
            let mut got: [Vec<u64>; 2] = Default::default();
            let mut fresh: [Vec<u64>; 2] = Default::default();
            let mut said = [0u64; 2];
            let mut fates = fates.iter().cycle();
            for ms in 0..200_000u64 {
                for side in 0..2 {
                    let mut out = Vec::new();
                    while said[side] < count && lines[side].has_room() {
                        said[side] += 1;
                        let message = said[side].to_le_bytes().to_vec();
                        lines[side].push(message, None, at(ms), |sequence, message| out.push((sequence, message.to_vec())));
                    }
                    lines[side].repeat(at(ms), |sequence, message| out.push((sequence, message.to_vec()))).unwrap();
                    if lines[side].settle() {
                        out.push((0, Vec::new()));
                    }
                    let heard = lines[side].heard();
                    for (sequence, message) in out {
                        let &(fate, place) = fates.next().unwrap();
                        let wire = &mut wires[1 - side];
                        for _ in 0..match fate { 0 => 0, 1 => 2, _ => 1 } {
                            wire.insert(place.min(wire.len()), (sequence, heard, message.clone()));
                        }
                    }
                }
                for side in 0..2 {
                    for _ in 0..fates.next().unwrap().1 {
                        let Some((sequence, heard, message)) = wires[side].pop() else { break };
                        if lines[side].hear(&head(sequence, heard), at(ms)).unwrap() {
                            fresh[side].push(sequence);
                            lines[side].keep(sequence, kept(&message));
                        }
                        while let Some(kept) = lines[side].next_in_order() {
                            got[side].push(u64::from_le_bytes(kept.message.try_into().unwrap()));
                        }
                    }
                }
                if got.iter().all(|got| got.len() as u64 == count) {
                    break;
                }
            }
            for (got, mut fresh) in got.into_iter().zip(fresh) {
                prop_assert_eq!(&got, &(1..=count).collect::<Vec<_>>());
                fresh.sort_unstable();
                prop_assert_eq!(fresh, got, "each is new once");
            }
        }
    }
}
