//! Deeds that have to follow each other for something to be seen at all: what outlasts a fault.
//!
//! Deeds that are strewn at random hardly ever let a source go on for longer than its sink waits for an answer, or keep a reader silent for
//! just longer than its lease. Here they come in that order, at times that the seed says.

use std::time::Duration;

use penstock::flows::MemoryPolicy;

use crate::deed::{Act, Case, Chunk, Deed, Half, LEASE, RESUME, Script, micros};
use crate::faults::Death;
use crate::random::Random;
use crate::stage::BERTH_BYTES;

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
            is_reversed: self.players.len() == 2 && random.once_in(3),
            tokens: 40 + random.below(40) as u64,
            begin: 0,
            chunks: 2,
            leg_blocks: 20,
            memory: MemoryPolicy::Wait,
            is_pull,
            lease: is_pull.then_some(LEASE),
            is_resumable: false,
            is_by_layer: random.once_in(3),
            has_fences: false,
            gives_at_once: false,
            is_misfit: false,
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

    /// Cases that outlive their sessions, which break in the middle of them.
    pub(crate) fn break_sessions(&mut self, random: &mut Random) {
        // What is not resumed fails, as ever.
        self.cases.truncate(random.below(2));
        let kept = self.cases.len();
        self.deeds.retain(|deed| deed.act.case().is_none_or(|case| case < kept));
        for _ in 0..1 + random.below(2) {
            let late = micros(random.below(250_000));
            let case = self.lasting(false, late, random);
            let its = &mut self.cases[case];
            (its.is_resumable, its.within) = (true, 4 * RESUME);
            // Legs that are whole before a session breaks, legs in the middle, and legs that nobody has begun.
            its.leg_blocks = [1, 2, 5, 20][random.below(4)];
            if random.once_in(4) {
                self.give_up_broken(case, random);
            }
        }
        for _ in 0..1 + random.below(3) {
            // Where something moves, as a rule: around the moments at which chunks are computed.
            let case = kept + random.below(self.cases.len() - kept);
            let is_chunk = |deed: &&Deed| matches!(deed.act, Act::Chunk { case: of } if of == case);
            let chunks: Vec<Duration> = self.deeds.iter().filter(is_chunk).map(|deed| deed.after).collect();
            let at = match random.below(4) {
                0 => micros(random.below(300_000)),
                _ => chunks[random.below(chunks.len())] + micros(random.below(1_500)),
            };
            self.break_one(case, at, random);
        }
    }

    fn break_one(&mut self, case: usize, at: Duration, random: &mut Random) {
        let (sources, sinks) = self.sides(case);
        let (source, sink) = (sources[random.below(sources.len())], sinks[random.below(sinks.len())]);
        let (one, other) = if random.once_in(2) { (source, sink) } else { (sink, source) };
        // Longer than a session may be silent, and shorter than is waited for another one.
        let span = micros(310_000 + random.below(150_000));
        match random.below(16) {
            0..5 => self.add(at, Act::Sever { one, other }),
            5..8 => self.add(at, Act::HangUp { from: one, to: other }),
            // A source that stands still in the middle of what it sends does not know what its sink has done meanwhile.
            8..10 => {
                self.add(at, Act::Freeze { player: source, span: micros(random.below(100_000)) });
                self.add(at + micros(random.below(500)), Act::HangUp { from: sink, to: source });
            }
            10..12 => {
                self.add(at, Act::Cut { from: one, to: other, is_both: random.once_in(2) });
                self.add(at + span, Act::Heal);
            }
            12..14 => self.add(at, Act::Freeze { player: one, span }),
            // An engine that is started anew is another one, and does not go on.
            _ => {
                self.add(at, Act::Crash { player: one, death: Death::Killed });
                self.add(at + micros(random.below(50_000)), Act::Restart { player: one, stale: Duration::ZERO });
            }
        }
    }

    /// A half of a case that is given up while its session may be broken.
    fn give_up_broken(&mut self, case: usize, random: &mut Random) {
        let halves = self.halves(case);
        let half = halves[random.below(halves.len())];
        let act = match random.below(3) {
            0 => Act::Fail { case, half },
            1 => Act::Abort { case, half },
            _ => Act::Drop { case, half },
        };
        self.add(micros(random.below(300_000)), act);
    }

    /// Stages that hand chunks to each other, in all directions, with two berths each for what they put and for what they fetch.
    pub(crate) fn hand_over(&mut self, random: &mut Random) {
        let stages = self.players.len();
        for chunk in 0..2 + random.below(8) {
            let from = random.below(stages);
            let is_for_one = stages == 2 || random.once_in(2);
            let spec = Chunk {
                from,
                to: is_for_one.then(|| (from + 1 + random.below(stages - 1)) % stages),
                stages,
                bytes: if random.once_in(8) { 0 } else { 1 + random.below(6 * BERTH_BYTES as usize) },
                within: Duration::from_millis(if random.once_in(8) { 30 } else { 400 }),
            };
            let at = micros(random.below(4_000));
            let late = |random: &mut Random| {
                let most = if random.once_in(6) { 40_000 } else { 600 };
                micros(random.below(most))
            };
            self.chunks.push(spec);
            let put = at + late(random);
            self.add(put, Act::Put { chunk });
            for reader in 0..spec.readers().len() {
                let fetch = at + late(random);
                self.add(fetch, Act::Fetch { chunk, reader });
            }
            if random.once_in(8) {
                let readers = spec.readers().len();
                let reader = random.below(readers + 1);
                let reader = (reader < readers).then_some(reader);
                self.add(at + micros(random.below(2_000)), Act::LetGo { chunk, reader });
            }
            if random.once_in(12) {
                let player = random.below(stages);
                self.add(at + micros(random.below(2_000)), Act::GiveUp { chunk, player });
            }
        }
        match random.below(4) {
            0 => self.fault(random),
            1 => {
                let (one, other) = (random.below(stages), random.below(stages));
                let at = micros(random.below(5_000));
                self.add(at, Act::Sever { one, other });
            }
            _ => {}
        }
    }
}
