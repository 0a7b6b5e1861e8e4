//! Devices with memory of their own, as a world has them: the driver's functions are those of a model, and streams go on by seed and by time.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use penstock::Timestamp;
use penstock::memory::DeviceId;
use penstock_cuda_driver::model::{self, Done};

use crate::random::Random;
use crate::trace::What;
use crate::world::{Core, World};

/// A stream rests once in so many pieces, for so long at most.
const REST_ONCE_IN: usize = 6;
const REST_US_MAX: usize = 60;
/// A piece of a copy has at most so many bytes, unless copies are longer in that world.
pub(crate) const PIECE_BYTES: u64 = 1500;

/// All engines of the process use the model's functions from now on.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let is_used = model::install().expect("the model has every function");
        assert!(is_used, "a driver was opened before the first world began");
    });
}

/// The devices of a world.
pub(crate) struct Devices {
    /// Streams that do nothing until then.
    rests: BTreeMap<u32, Timestamp>,
    piece_bytes_max: usize,
    random: Random,
}

impl Devices {
    /// Streams that go on now.
    pub(crate) fn due(&self, now: Timestamp) -> Vec<u32> {
        let mut busy = model::busy();
        busy.retain(|stream| self.rests.get(stream).is_none_or(|until| now >= *until));
        busy
    }

    /// When the next stream goes on that rests.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        model::busy().iter().filter_map(|stream| self.rests.get(stream).copied()).min()
    }

    /// How a stream goes on: which copy, and how much of it. It may rest afterwards.
    fn choose(&mut self, stream: u32, now: Timestamp) -> (usize, usize) {
        if self.random.once_in(REST_ONCE_IN) {
            self.rests.insert(stream, now + Duration::from_micros(self.random.below(REST_US_MAX) as u64));
        }
        (self.random.below(1 << 16), 1 + self.random.below(self.piece_bytes_max))
    }
}

impl World {
    /// Has devices in this world, which is the only one of its thread that has. Engines that were started before have them too.
    pub fn add_devices(&self) {
        model::begin();
        let random = Random::new(self.seed() ^ 0xde71_ce00);
        self.core.lock().devices =
            Some(Devices { rests: BTreeMap::new(), piece_bytes_max: PIECE_BYTES as usize, random });
    }

    /// Streams do so many bytes of a copy at once, at most.
    pub fn set_device_piece(&self, bytes: u64) {
        if let Some(devices) = &mut self.core.lock().devices {
            devices.piece_bytes_max = bytes as usize;
        }
    }

    /// The device of this number.
    pub fn device(number: u32) -> DeviceId {
        DeviceId(model::device(number))
    }

    /// A device does nothing, or goes on.
    pub fn set_device_stopped(&self, number: u32, is_stopped: bool) {
        model::set_stopped(number, is_stopped);
        self.core.record(0, if is_stopped { What::Frozen } else { What::Thawed }, u64::from(number) << 32);
    }

    /// A device is lost. What its streams have may still be copied, and nobody hears of it.
    pub fn lose_device(&self, number: u32) {
        model::lose(number);
        self.core.record(0, What::Crashed, u64::from(number) << 32);
    }

    /// Lets streams do what they have, without any engine.
    pub fn finish_streams(&self) {
        while let Some(&stream) = model::busy().first() {
            self.core.work(stream);
        }
    }
}

impl Core {
    /// A stream does a piece of what it has.
    pub(crate) fn work(&self, stream: u32) {
        let (choice, bytes) = {
            let mut state = self.lock();
            let now = state.now();
            let Some(devices) = &mut state.devices else { return };
            devices.choose(stream, now)
        };
        let digest = match model::work(stream, choice, bytes) {
            Some(Done::Bytes(bytes)) => bytes as u64,
            Some(Done::Word(value)) => 1 << 16 | value,
            Some(Done::Call) | None => 0,
        };
        self.record(0, What::Copied, u64::from(stream) << 32 | digest);
    }
}
