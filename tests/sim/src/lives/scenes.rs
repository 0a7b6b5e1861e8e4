//! Deeds of schedulers.

use std::time::Duration;

use penstock::flows::DeferSite;

use super::spec::{Devices, Life, Step};
use crate::deed::{Act, Script, micros};
use crate::faults::Death;
use crate::random::Random;

/// What is in time where nothing hinders it.
const PLENTY: Duration = Duration::from_millis(2_500);

impl Script {
    fn lives_on(&mut self, after: Duration, life: usize, step: Step) {
        self.add(after, Act::Life { life, step });
    }

    /// Requests that come, make room, come back and go, on devices that have not enough for all of them.
    pub(crate) fn live(&mut self, random: &mut Random) {
        let blocks = 12 + random.below(13) as u32;
        let grace = if random.once_in(2) { Duration::ZERO } else { Duration::from_millis(500) };
        self.devices = Some(Devices { blocks, are_fine: random.once_in(2), grace, queue: 1 + random.below(3) });
        for _ in 0..4 + random.below(8) {
            self.one_life(blocks as usize, random);
        }
        match random.below(6) {
            0 => self.fault(random),
            1 | 2 => self.disturb_swaps(random),
            3 => {
                let (player, span) = (random.below(self.players.len()), micros(random.below(60_000)));
                self.add(micros(random.below(3_000)), Act::Starve { player, span });
            }
            _ => {}
        }
    }

    fn one_life(&mut self, most: usize, random: &mut Random) {
        let players = self.players.len();
        let at = random.below(players);
        let blocks = if random.once_in(3) { most * 2 / 3 + random.below(most / 3) } else { 1 + random.below(most / 2) };
        let shared = if random.once_in(2) { random.below(blocks) } else { 0 };
        let spec = Life {
            at,
            request: random.below(4),
            blocks,
            prompt: random.below(3),
            shared,
            hits: shared > 0 && random.once_in(2),
            stores: random.once_in(2),
            sequences: 1 + random.below(3) as u32,
            pause: micros(if random.once_in(3) { random.below(2_000) } else { 0 }),
            to: (at + 1 + random.below(players - 1)) % players,
            late: micros(random.below(4_000)),
            within: micros(4_000 + random.below(60_000)),
        };
        let life = self.lives.len();
        self.lives.push(spec);
        let mut now = micros(random.below(3_000));
        self.lives_on(now, life, Step::Open);
        for _ in 0..random.below(5) {
            now += micros(random.below(1_500));
            self.something(&mut now, life, random);
        }
        if !random.once_in(4) {
            now += micros(random.below(2_000));
            self.finish(now, life, spec.sequences, random);
        }
    }

    /// Something that its scheduler does with a request.
    fn something(&mut self, now: &mut Duration, life: usize, random: &mut Random) {
        match random.below(10) {
            0..5 => {
                self.swap_out(*now, life, random);
                *now += micros(random.below(1_500));
                if random.once_in(3) {
                    self.lives_on(*now, life, Step::Send);
                    *now += micros(random.below(1_000));
                }
                self.swap_in(*now, life, random);
            }
            5 => self.lives_on(*now, life, Step::Grow),
            6 => self.lives_on(*now, life, Step::Fork),
            7 => self.lives_on(*now, life, Step::Finish),
            _ => self.lives_on(*now, life, Step::Preempt(site(random))),
        }
    }

    fn swap_out(&mut self, now: Duration, life: usize, random: &mut Random) {
        self.lives_on(now, life, Step::Out(within(random)));
        self.stop_swap(now, life, random);
    }

    fn swap_in(&mut self, now: Duration, life: usize, random: &mut Random) {
        self.lives_on(now, life, Step::In(within(random)));
        self.stop_swap(now, life, random);
    }

    /// A swap that does not come to its end, as often as not.
    fn stop_swap(&mut self, now: Duration, life: usize, random: &mut Random) {
        let step = match random.below(10) {
            0 | 1 => Step::RollBack,
            2 => Step::LetGo,
            3 => Step::Preempt(site(random)),
            4 if random.once_in(2) => Step::Abort,
            _ => return,
        };
        // Most of the time as soon as it moves.
        let late = if random.once_in(3) { random.below(400) } else { random.below(20) };
        self.lives_on(now + micros(late), life, step);
    }

    fn finish(&mut self, now: Duration, life: usize, sequences: u32, random: &mut Random) {
        match random.below(3) {
            0 => self.lives_on(now, life, Step::Abort),
            1 => {
                self.lives_on(now, life, Step::Finish);
                self.lives_on(now + micros(random.below(50)), life, Step::Remove);
            }
            _ => {
                for sequence in 0..sequences {
                    self.lives_on(now + micros(10 * sequence as usize), life, Step::EndSequence);
                }
            }
        }
    }

    /// An engine whose device is lost, or that stands still or dies where blocks are swapped.
    fn disturb_swaps(&mut self, random: &mut Random) {
        let player = random.below(self.players.len());
        let is_swap = |act: &Act| matches!(act, Act::Life { step: Step::Out(_) | Step::In(_), .. });
        let swaps: Vec<Duration> = self.deeds.iter().filter(|deed| is_swap(&deed.act)).map(|deed| deed.after).collect();
        let Some(&at) = swaps.get(random.below(swaps.len().max(1))) else { return };
        let at = at + micros(random.below(30));
        match random.below(4) {
            0 | 1 => self.add(at, Act::Sever { one: player, other: player }),
            2 => self.add(at, Act::Freeze { player, span: micros(random.below(200_000)) }),
            _ => {
                self.add(at, Act::Crash { player, death: Death::Killed });
                self.add(at + micros(random.below(20_000)), Act::Restart { player, stale: Duration::ZERO });
            }
        }
    }
}

fn site(random: &mut Random) -> DeferSite {
    let all =
        [DeferSite::ScheduleRollback, DeferSite::NoSwapBuffers, DeferSite::SwapOutTimeout, DeferSite::SwapInTimeout];
    all[random.below(all.len())]
}

/// How long a swap may take: as a rule long enough, now and then hardly.
fn within(random: &mut Random) -> Duration {
    if random.once_in(4) { micros(1 + random.below(30)) } else { PLENTY }
}
