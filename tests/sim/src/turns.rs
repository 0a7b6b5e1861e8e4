//! Turns that go on from others: what there is of them in a script, and when.
//!
//! A turn without a parent has all its tokens sent, and its blocks are kept when it has ended. One with a parent takes what it can of those
//! blocks, here or from another engine, and has only the rest sent.

use std::time::Duration;

use crate::deed::{Act, Script, micros};
use crate::faults::Death;
use crate::random::Random;

/// A turn of a talk.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Where its blocks are.
    pub at: usize,
    /// Who computes its tokens.
    pub from: usize,
    /// How many there are.
    pub tokens: u64,
    /// The turn that it goes on from.
    pub parent: Option<usize>,
    /// Whose it is.
    pub domain: u8,
    /// How long its blocks are kept when it has ended; other turns may go on from them meanwhile.
    pub kept: Duration,
    /// How long it waits for a parent that still runs.
    pub waits: Duration,
    /// It copies what there is of a block that is not whole.
    pub copies_tail: bool,
    /// How long it keeps its own when everything has come.
    pub holds: Duration,
    /// How long it may take.
    pub within: Duration,
}

/// What happens to a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Where its blocks are it is begun.
    Begin,
    /// What it is made of is computed.
    Compute,
    /// What is kept of it is let go before its time.
    Unpin,
    /// Its application lets go of everything it has.
    Drop,
}

impl Script {
    /// Some turns that others may go on from, those that do, and what befalls them.
    pub(crate) fn go_on(&mut self, random: &mut Random) {
        let count = self.players.len();
        let elsewhere = |at: usize, random: &mut Random| (at + 1 + random.below(count - 1)) % count;
        let first = self.turns.len();
        let roots = 1 + random.below(2);
        for turn in first..first + roots {
            let at = random.below(count);
            let kept = if random.once_in(3) { random.below(30_000) } else { 40_000 + random.below(400_000) };
            let spec = Turn {
                at,
                from: elsewhere(at, random),
                tokens: 1 + random.below(90) as u64,
                parent: None,
                domain: random.below(2) as u8,
                kept: micros(kept),
                waits: Duration::ZERO,
                copies_tail: false,
                holds: micros(random.below(3_000)),
                within: Duration::from_millis(1_000),
            };
            self.take_turn(turn, spec, micros(random.below(1_500)), random);
            if random.once_in(5) {
                self.add(micros(random.below(60_000)), Act::Turn { turn, step: Step::Unpin });
            }
        }
        for turn in first + roots..first + roots + 1 + random.below(5) {
            let parent = first + random.below(roots);
            let before = self.turns[parent];
            let at = if random.once_in(2) { before.at } else { elsewhere(before.at, random) };
            let tokens = match random.below(4) {
                0 => 1 + random.below(90) as u64,
                _ => before.tokens + random.below(20) as u64,
            };
            let held = if random.once_in(4) { 500_000 } else { 6_000 };
            let spec = Turn {
                at,
                from: elsewhere(at, random),
                tokens,
                parent: Some(parent),
                domain: if random.once_in(6) { random.below(3) as u8 } else { before.domain },
                kept: Duration::ZERO,
                waits: if random.once_in(2) { micros(random.below(60_000)) } else { Duration::ZERO },
                copies_tail: random.once_in(2),
                holds: micros(random.below(held)),
                within: Duration::from_millis(1_000),
            };
            // While the parent still runs, soon after, or when it may be over.
            let begin = micros(match random.below(3) {
                0 => random.below(3_000),
                1 => 4_000 + random.below(12_000),
                _ => random.below(100_000),
            });
            self.take_turn(turn, spec, begin, random);
            match random.below(6) {
                0..2 => self.silence(turn, begin, random),
                // What it has, or is about to have, of its parent is not kept any longer.
                2..4 => self.add(begin + micros(random.below(1_000)), Act::Turn { turn: parent, step: Step::Unpin }),
                _ => {}
            }
        }
        if random.once_in(3) {
            self.fault(random);
        }
    }

    fn take_turn(&mut self, turn: usize, spec: Turn, begin: Duration, random: &mut Random) {
        self.turns.push(spec);
        self.add(begin, Act::Turn { turn, step: Step::Begin });
        let late = if random.once_in(6) { 40_000 } else { 1_000 };
        self.add(begin + micros(random.below(late)), Act::Turn { turn, step: Step::Compute });
        if random.once_in(10) {
            self.add(begin + micros(random.below(8_000)), Act::Turn { turn, step: Step::Drop });
        }
    }

    /// Who asks for a turn, or who is asked, is not heard any more: a moment after it was begun.
    fn silence(&mut self, turn: usize, begin: Duration, random: &mut Random) {
        let Turn { at, from, parent, .. } = self.turns[turn];
        let owner = parent.map(|parent| self.turns[parent].at).filter(|owner| *owner != at).unwrap_or(from);
        let (at_that, span) = (begin + micros(random.below(900)), micros(random.below(700_000)));
        match random.below(5) {
            0 => self.add(at_that, Act::Freeze { player: at, span }),
            1 => self.add(at_that, Act::Freeze { player: owner, span }),
            2 => {
                self.add(at_that, Act::Cut { from: at, to: owner, is_both: random.once_in(2) });
                self.add(at_that + span, Act::Heal);
            }
            3 => {
                self.add(at_that, Act::Crash { player: at, death: Death::Killed });
                self.add(at_that + span, Act::Restart { player: at, stale: Duration::ZERO });
            }
            _ => self.add(at_that, Act::Sever { one: at, other: owner }),
        }
    }
}
