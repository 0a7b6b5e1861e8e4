//! Deeds that have to follow each other for something to be seen at all: what outlasts a fault.
//!
//! Deeds that are strewn at random hardly ever let a source go on for longer than its sink waits for an answer, or keep a reader silent for
//! just longer than its lease. Here they come in that order, at times that the seed says.

use std::time::Duration;

use penstock::flows::MemoryPolicy;

use crate::deed::{Act, Case, Half, LEASE, Script, micros};
use crate::faults::Death;
use crate::random::Random;

/// Silence of less than this ends no session.
const SILENT_MAX: usize = 190_000;

impl Script {
    /// One or two cases that last, and what befalls them.
    pub(crate) fn be_patient(&mut self, random: &mut Random) {
        for _ in 0..1 + random.below(2) {
            if random.once_in(2) { self.unanswered(random) } else { self.lent(random) }
        }
    }

    /// A case whose second chunk comes late, and whose legs have room for all.
    fn lasting(&mut self, is_pull: bool, late: Duration, random: &mut Random) -> usize {
        let case = Case {
            is_reversed: random.once_in(3),
            tokens: 40 + random.below(40) as u64,
            begin: 0,
            chunks: 2,
            leg_blocks: 20,
            memory: MemoryPolicy::Wait,
            is_pull,
            lease: is_pull.then_some(LEASE),
            is_by_layer: random.once_in(3),
            late,
            within: Duration::from_secs(2),
        };
        self.cases.push(case);
        let number = self.cases.len() - 1;
        self.play(number, random);
        number
    }

    fn ends(&self, case: usize) -> (usize, usize) {
        let (sources, sinks) = self.sides(case);
        (sources[0], sinks[0])
    }

    /// A sink gives up what its source still writes, and the source does not hear of it.
    fn unanswered(&mut self, random: &mut Random) {
        let late = micros(50_000 + random.below(60_000));
        let case = self.lasting(false, late, random);
        let (source, sink) = self.ends(case);
        let cut = micros(4_000 + random.below(20_000));
        let half = Half::Sink(0);
        let act = if random.once_in(2) { Act::Drop { case, half } } else { Act::Abort { case, half } };
        self.add(cut, Act::Cut { from: sink, to: source, is_both: false });
        self.add(cut + micros(random.below(2_000)), act);
        self.add(cut + micros(random.below(SILENT_MAX)), Act::Heal);
    }

    /// What is lent for longer than a lease lasts, to a reader that is silent for a while, or is not.
    fn lent(&mut self, random: &mut Random) {
        let late = micros(random.below(250_000));
        let case = self.lasting(true, late, random);
        let (source, sink) = self.ends(case);
        let (at, span) = (micros(4_000 + random.below(60_000)), micros(random.below(SILENT_MAX)));
        match random.below(6) {
            0 => self.add(at, Act::Freeze { player: sink, span }),
            1 => {
                self.add(at, Act::Cut { from: sink, to: source, is_both: random.once_in(2) });
                self.add(at + span, Act::Heal);
            }
            2 if self.players[source].host != self.players[sink].host => {
                self.add(at, Act::Crash { player: sink, death: Death::Silent });
            }
            3 => self.add(at, Act::Freeze { player: source, span }),
            _ => {}
        }
    }
}
