//! Deeds of those that have devices copy.

use std::time::Duration;

use penstock::config::TransportName;

use super::spec::{BLOCKS, Copying, DeviceCopy, Place, Step};
use crate::deed::{Act, Script, micros};
use crate::random::Random;

/// What is in time where nothing hinders it.
const PLENTY: Duration = Duration::from_secs(2);
/// Blocks of which few fit into a slot of staging memory, and larger ones.
const LARGE_BYTES: [u64; 2] = [24 << 10, 72 << 10];

impl Script {
    fn copies_on(&mut self, after: Duration, step: Step) {
        self.add(after, Act::Copies(step));
    }

    /// Transfers of which a device has one side at least, and what befalls them.
    pub(crate) fn copy_on_devices(&mut self, random: &mut Random) {
        let (engines, block_bytes) = (1 + random.below(2), [256, 512, 1024][random.below(3)]);
        let mut whim = self.whim(0x57a6);
        let copying = staged(&mut whim, Copying { engines, over: TransportName::Local, block_bytes });
        let engines = copying.engines;
        self.copying = Some(copying);
        let first = self.copies.len();
        for copy in first..first + 3 + random.below(12) {
            let after = micros(random.below(2_000));
            let spec = one_copy(engines, random);
            let with = if copying.is_staged() && whim.once_in(2) { 1 - spec.at.0 } else { spec.with.0 };
            self.copies.push(DeviceCopy { with: (with, spec.with.1), ..spec });
            self.copies_on(after, Step::Begin { copy });
            // Most of the time while its bytes move.
            let late = micros(if random.once_in(4) { random.below(2_000) } else { random.below(120) });
            let within = in_time(random);
            match random.below(10) {
                0 | 1 => self.copies_on(after + late, Step::Cancel { copy, within }),
                2 => self.copies_on(after + late, Step::Drop { copy }),
                3 => {
                    let is_local = random.once_in(2);
                    self.copies_on(after + late, Step::Revoke { copy, is_local, within });
                }
                _ => {}
            }
        }
        for _ in 0..random.below(5) {
            self.disturb_devices(engines, random);
        }
    }

    fn disturb_devices(&mut self, engines: usize, random: &mut Random) {
        let (after, device) = (micros(random.below(2_500)), random.below(2) as u32);
        let (engine, to, within) = (random.below(engines), random.below(engines), in_time(random));
        let step = match random.below(12) {
            0..4 => {
                let span = micros(if random.once_in(3) { random.below(40_000) } else { random.below(3_000) });
                Step::Stop { device, span }
            }
            4 => Step::Lose { device },
            5 => Step::Refuse { calls: random.below(30) as u32, is_launch: random.once_in(2) },
            6 => Step::HangUp { from: engine, to },
            7 => Step::Sever,
            8 => Step::Close { engine, within },
            9 => Step::Leave { engine },
            _ => Step::Replace { engine, place: Place::ALL[random.below(3)], within },
        };
        self.copies_on(after, step);
    }
}

/// Half of all scenes have engines that reach only host memory of each other, and some of those blocks of which few fit into a slot, or none.
fn staged(whim: &mut Random, copying: Copying) -> Copying {
    let over = [TransportName::Local, TransportName::Local, TransportName::Shm, TransportName::Datagram];
    let over = over[whim.below(over.len())];
    if over == TransportName::Local {
        return copying;
    }
    let block_bytes = if whim.once_in(8) { LARGE_BYTES[whim.below(2)] } else { copying.block_bytes };
    Copying { engines: 2, over, block_bytes }
}

/// How long an answer may take: no time, a little, or enough.
fn in_time(random: &mut Random) -> Duration {
    micros([0, 0, 20, 300, 20_000][random.below(5)])
}

fn one_copy(engines: usize, random: &mut Random) -> DeviceCopy {
    let (mut local, mut remote) = (Place::ALL[random.below(3)], Place::ALL[random.below(3)]);
    if (local, remote) == (Place::Host, Place::Host) {
        let device = Place::Device(random.below(2) as u32);
        *(if random.once_in(2) { &mut local } else { &mut remote }) = device;
    }
    DeviceCopy {
        at: (random.below(engines), local),
        with: (random.below(engines), remote),
        is_read: random.once_in(2),
        blocks: 1 + random.below(BLOCKS as usize / 2),
        within: if random.once_in(5) { micros(50 + random.below(1_500)) } else { PLENTY },
    }
}
