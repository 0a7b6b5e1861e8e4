//! Both directions and the script, without a clock or a device: moments and frames are arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::path::{Path, PathStats};
use crate::scenario::{Direction, Event, Faults, Scenario, What};

/// What came of all frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Those from A to B.
    pub a_to_b: PathStats,
    /// Those from B to A.
    pub b_to_a: PathStats,
}

/// How one direction is now.
struct Lane {
    path: Path,
    /// What holds when no timed change does.
    base: Faults,
    /// What holds now.
    now: Faults,
    /// Cut by hand, or by an event without an end.
    is_cut: bool,
}

/// An event that has begun and will end.
struct Passing {
    until: Duration,
    what: What,
}

/// A wire.
pub struct Wire {
    seed: u64,
    lanes: [Lane; 2],
    /// Latest first, so that the next one is at the end.
    coming: Vec<Event>,
    /// In the order they began.
    passing: Vec<Passing>,
}

impl Wire {
    /// A wire whose script begins at moment zero.
    pub fn new(scenario: Scenario) -> Self {
        let Scenario { seed, a_to_b, b_to_a, mut events } = scenario;
        events.sort_by_key(|event| event.at);
        events.reverse();
        let lane = |path, base: Faults| Lane { path: Path::new(seed, path), now: base.clone(), base, is_cut: false };
        Self { seed, lanes: [lane(0, a_to_b), lane(1, b_to_a)], coming: events, passing: Vec::new() }
    }

    /// Lets the script go on up to now. Called before frames are offered or taken.
    pub fn advance(&mut self, now: Duration) {
        while let Some(moment) = self.next_change().filter(|moment| *moment <= now) {
            if self.passing.iter().any(|passing| passing.until <= moment) {
                self.passing.retain(|passing| passing.until > moment);
                self.settle();
            } else if let Some(event) = self.coming.pop() {
                self.begin(event);
            }
        }
    }

    fn next_change(&self) -> Option<Duration> {
        let ends = self.passing.iter().map(|passing| passing.until);
        ends.chain(self.coming.last().map(|event| event.at)).min()
    }

    fn begin(&mut self, event: Event) {
        match event.lasts {
            Some(lasts) => {
                self.passing.push(Passing { until: event.at + lasts, what: event.what });
                self.settle();
            }
            None => self.happen(event.what),
        }
    }

    /// Something happens now and stays.
    pub fn happen(&mut self, what: What) {
        match what {
            What::Partition(direction) => self.each(direction, |lane| lane.is_cut = true),
            What::Heal(direction) => {
                self.each(direction, |lane| lane.is_cut = false);
                for passing in &mut self.passing {
                    if let What::Partition(of) = &mut passing.what {
                        *of = match (*of, direction) {
                            (_, Direction::Both) => continue,
                            (Direction::Both, Direction::AToB) => Direction::BToA,
                            (Direction::Both, Direction::BToA) => Direction::AToB,
                            (other, _) => other,
                        };
                    }
                }
                self.passing.retain(|passing| match passing.what {
                    What::Partition(of) => direction != Direction::Both && of != direction,
                    _ => true,
                });
            }
            What::Set(direction, faults) => {
                self.each(direction, |lane| lane.base = std::mem::take(&mut lane.base).with(&faults));
            }
        }
        self.settle();
    }

    fn each(&mut self, direction: Direction, mut change: impl FnMut(&mut Lane)) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if direction.has(number) {
                change(lane);
            }
        }
    }

    /// Works out what holds now: the base, and what is passing on top of it, the latest uppermost.
    fn settle(&mut self) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            lane.now = lane.base.clone();
            for passing in &self.passing {
                if let What::Set(direction, faults) = &passing.what
                    && direction.has(number)
                {
                    lane.now = std::mem::take(&mut lane.now).with(faults);
                }
            }
            lane.path.be_free();
        }
        for number in 0..2 {
            if self.is_cut(number) {
                self.lanes[number].path.cut();
            }
        }
    }

    fn is_cut(&self, number: usize) -> bool {
        let passing = |passing: &Passing| matches!(passing.what, What::Partition(of) if of.has(number));
        self.lanes[number].is_cut || self.passing.iter().any(passing)
    }

    /// A frame comes in at the beginning of a path (0 is A to B).
    pub fn offer(&mut self, path: usize, now: Duration, frame: Vec<u8>) {
        let is_cut = self.is_cut(path);
        let lane = &mut self.lanes[path];
        lane.path.offer(now, frame, &lane.now, is_cut);
    }

    /// The next frame that is due at the end of a path.
    pub fn take(&mut self, path: usize, now: Duration) -> Option<Vec<u8>> {
        self.lanes[path].path.take(now)
    }

    /// The frame that was just taken did not arrive.
    pub fn refused(&mut self, path: usize, bytes: usize) {
        self.lanes[path].path.refused(bytes);
    }

    /// When there is something to do next, if no frame comes before.
    pub fn next_moment(&self) -> Option<Duration> {
        self.lanes.iter().filter_map(|lane| lane.path.next_due()).chain(self.next_change()).min()
    }

    /// What came of all frames so far.
    pub fn stats(&self) -> Stats {
        Stats { a_to_b: self.lanes[0].path.stats(), b_to_a: self.lanes[1].path.stats() }
    }

    /// The seed it was made with: a failure names it, so that it can be had again.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

#[cfg(test)]
mod tests;
