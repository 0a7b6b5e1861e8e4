//! Deeds of streams and joins.

use std::time::Duration;

use super::spec::{Form, GivenUp, Joining, Reading, Step, Streaming};
use crate::deed::{Act, Script, micros};
use crate::faults::Death;
use crate::random::Random;
use crate::stage::BERTH_BYTES;

/// Chunks may have so many bytes: more than all berths of a stage together.
const BYTES_MAX: usize = 5 * BERTH_BYTES as usize;
/// What is in time where nothing hinders it. Longer than it takes until everybody knows of a failure, so that who does not is seen.
const PLENTY: Duration = Duration::from_millis(2_500);

impl Script {
    fn step(&mut self, after: Duration, step: Step) {
        self.add(after, Act::Relay(step));
    }

    /// Stages that stream to each other, both ways, with two berths each, and that wait for a chunk of each of several others.
    pub(crate) fn stream(&mut self, random: &mut Random) {
        let stages = self.players.len();
        let requests = 1 + random.below(2);
        for _ in 0..1 + random.below(3) {
            self.one_stream(random.below(requests), random);
        }
        // The other way as well, under the same name and at the same time, as a rule.
        if !random.once_in(4) {
            let Streaming { request, from, ref to, within } = self.streams[0];
            let (from, to) = (to[0], vec![from]);
            self.streams.push(Streaming { request, from, to, within });
            self.course(self.streams.len() - 1, random);
        }
        self.readings_of(random);
        for _ in 0..random.below(3) {
            self.one_join(random);
        }
        match random.below(8) {
            0..3 => self.fault(random),
            3 => {
                let (one, at) = (random.below(stages), micros(random.below(6_000)));
                self.add(at, Act::Sever { one, other: (one + 1) % stages });
            }
            4 => self.silence_midway(random),
            _ => {}
        }
        if !self.joins.is_empty() && random.once_in(4) {
            self.refuse_join(random);
        }
    }

    /// A source of a join gives its request up, as a rule before it has put anything for it.
    fn refuse_join(&mut self, random: &mut Random) {
        let join = random.below(self.joins.len());
        let from = &self.joins[join].from;
        let player = from[random.below(from.len())];
        self.step(micros(random.below(3_000)), Step::Abort { what: GivenUp::Join(join), player });
    }

    fn one_stream(&mut self, request: usize, random: &mut Random) {
        let stages = self.players.len();
        let from = random.below(stages);
        let first = (from + 1 + random.below(stages - 1)) % stages;
        let mut to = vec![first];
        if random.once_in(2) {
            to.extend((0..stages).filter(|&other| other != from && other != first));
        }
        let within = if random.once_in(8) { Duration::from_millis(40) } else { PLENTY };
        self.streams.push(Streaming { request, from, to, within });
        self.course(self.streams.len() - 1, random);
    }

    /// A stream from its beginning to its end, and what comes between, now and then.
    fn course(&mut self, stream: usize, random: &mut Random) {
        let mut at = micros(random.below(3_000));
        let began = at;
        self.step(at, Step::Open { stream });
        for _ in 0..random.below(9) {
            at += micros(if random.once_in(10) { random.below(60_000) } else { random.below(500) });
            let form = [Form::Flat, Form::Flat, Form::Items, Form::Blocks][random.below(4)];
            let bytes = if random.once_in(8) { 0 } else { 1 + random.below(BYTES_MAX) };
            self.step(at, Step::Next { stream, bytes, form });
        }
        let gap = at.saturating_sub(began).as_micros() as usize + 400;
        match random.below(12) {
            0 => self.step(began + micros(random.below(gap)), Step::Fail { stream }),
            1 => self.step(began + micros(random.below(gap)), Step::Leave { stream }),
            2 | 3 => {
                let Streaming { request, from, ref to, .. } = self.streams[stream];
                let players: Vec<usize> = [from].iter().chain(to).copied().collect();
                let player = players[random.below(players.len())];
                self.step(began + micros(random.below(gap)), Step::Abort { what: GivenUp::Streams(request), player });
            }
            _ => {}
        }
        // Said with the last chunk, or long after it.
        at += micros([0, random.below(600), random.below(60_000)][random.below(3)]);
        self.step(at, Step::Finish { stream });
    }

    /// Everybody whom something is streamed to takes it in, in a manner of its own.
    fn readings_of(&mut self, random: &mut Random) {
        let mut asked: Vec<(usize, usize)> =
            self.streams.iter().flat_map(|stream| stream.to.iter().map(|&to| (stream.request, to))).collect();
        asked.sort_unstable();
        asked.dedup();
        for (request, player) in asked {
            let reading = self.readings.len();
            self.readings.push(Reading {
                request,
                player,
                hold: if random.once_in(2) { 0 } else { random.below(4) },
                pause: micros(random.below(4_000)),
                is_into_blocks: random.once_in(3),
                is_ahead: random.once_in(4),
                within: PLENTY + PLENTY,
            });
            let late = if random.once_in(5) { random.below(120_000) } else { random.below(4_000) };
            self.step(micros(late), Step::Read { reading });
            if random.once_in(12) {
                self.step(micros(late + random.below(4_000)), Step::Stop { reading });
            }
        }
    }

    fn one_join(&mut self, random: &mut Random) {
        let stages = self.players.len();
        let at = random.below(stages);
        let from: Vec<usize> = (0..stages).filter(|&other| other != at).collect();
        let (sources, join) = (from.len(), self.joins.len());
        let given_within = if random.once_in(4) { micros(2_000 + random.below(30_000)) } else { PLENTY };
        self.joins.push(Joining { at, from, given_within, within: PLENTY });
        self.step(micros(random.below(4_000)), Step::Join { join });
        for source in 0..sources {
            // One is late, now and then.
            let after = micros(if random.once_in(5) { random.below(80_000) } else { random.below(4_000) });
            let bytes = random.below(BYTES_MAX);
            self.step(after, Step::Give { join, source, bytes });
            if random.once_in(12) {
                self.step(after + micros(random.below(1_500)), Step::Withdraw { join, source });
            }
        }
        if random.once_in(12) {
            self.step(micros(random.below(6_000)), Step::Unjoin { join });
        }
    }

    /// A stage dies, stands still or cannot be reached between two chunks, for longer than a session may be silent.
    fn silence_midway(&mut self, random: &mut Random) {
        let stream = random.below(self.streams.len());
        let Streaming { from, ref to, .. } = self.streams[stream];
        let to = to[random.below(to.len())];
        let its = |act: &Act| matches!(*act, Act::Relay(Step::Next { stream: of, .. } | Step::Finish { stream: of }) if of == stream);
        let moments: Vec<Duration> = self.deeds.iter().filter(|deed| its(&deed.act)).map(|deed| deed.after).collect();
        let at = moments[random.below(moments.len())] + micros(random.below(400));
        let (one, other) = if random.once_in(2) { (from, to) } else { (to, from) };
        let span = micros(310_000 + random.below(150_000));
        match random.below(3) {
            0 => self.add(at, Act::Crash { player: one, death: Death::Killed }),
            1 => self.add(at, Act::Freeze { player: one, span }),
            _ => {
                self.add(at, Act::Cut { from: one, to: other, is_both: random.once_in(2) });
                self.add(at + span, Act::Heal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::deed::{Act, Family, Script};

    #[test]
    fn every_kind_of_step_is_in_some_seed_and_streams_go_both_ways() {
        let scripts: Vec<Script> = (0..400).map(Script::of).filter(|script| script.family == Family::Streams).collect();
        let kind = |act: &Act| match act {
            Act::Relay(step) => format!("{step:?}").split(' ').next().map(str::to_owned),
            _ => None,
        };
        let mut kinds: Vec<String> =
            scripts.iter().flat_map(|script| script.deeds.iter().filter_map(|deed| kind(&deed.act))).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let all =
            ["Abort", "Fail", "Finish", "Give", "Join", "Leave", "Next", "Open", "Read", "Stop", "Unjoin", "Withdraw"];
        assert_eq!(kinds, all);
        let is_mutual = |script: &&Script| {
            let streams = &script.streams;
            let is_back = |one: usize, other: usize| {
                streams.iter().any(|stream| stream.from == other && stream.to.contains(&one))
            };
            streams.iter().any(|stream| stream.to.iter().any(|&to| is_back(stream.from, to)))
        };
        assert!(scripts.iter().filter(is_mutual).count() > scripts.len() / 2);
        assert!(scripts.iter().any(|script| script.streams.iter().any(|stream| stream.to.len() == 2)));
        assert!(scripts.iter().any(|script| script.joins.iter().any(|join| join.from.len() == 2)));
    }
}
