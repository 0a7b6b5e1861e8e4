//! Links between hosts: how packets fare on them, and whether anything passes at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How packets fare on their way.
///
/// Each is delayed by itself, so those with a range of delays overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weather {
    /// The shortest time on the way.
    pub delay_min: Duration,
    /// The longest.
    pub delay_max: Duration,
    /// So many of a thousand vanish.
    pub lost: u32,
    /// So many of a thousand come twice.
    pub doubled: u32,
    /// So many of a thousand come with a bit that is another one.
    pub rotten: u32,
    /// Of so many of a thousand, lost or not, somebody keeps a copy that comes 5 to 50 ms late.
    pub late_copies: u32,
    /// What a host's link to the network carries towards it, if that is bounded.
    pub rate: Option<Rate>,
    /// The longest packet that gets through, in bytes.
    pub frame_bytes_max: usize,
}

/// What a link carries, and what waits in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub bytes_per_ms: u64,
    /// What has no room in the queue is lost.
    pub queue_bytes: u64,
}

impl Default for Weather {
    /// A fine day: a few dozen microseconds, and nothing is lost.
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_micros(40),
            lost: 0,
            doubled: 0,
            rotten: 0,
            late_copies: 0,
            rate: None,
            frame_bytes_max: 4096,
        }
    }
}

/// All links of a world, each in one direction from one host to another.
#[derive(Debug, Default)]
pub(crate) struct Links {
    usual: Weather,
    special: BTreeMap<(u64, u64), Weather>,
    cut: BTreeSet<(u64, u64)>,
}

impl Links {
    /// Every link has this weather from now on, except those that have their own.
    pub(crate) fn set_usual(&mut self, weather: Weather) {
        self.usual = weather;
    }

    pub(crate) fn set(&mut self, from: u64, to: u64, weather: Weather) {
        self.special.insert((from, to), weather);
    }

    pub(crate) fn weather(&self, from: u64, to: u64) -> Weather {
        self.special.get(&(from, to)).copied().unwrap_or(self.usual)
    }

    /// Nothing passes from one host to the other.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        if from != to {
            self.cut.insert((from, to));
        }
    }

    /// Everything passes everywhere.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn passes(&self, from: u64, to: u64) -> bool {
        !self.cut.contains(&(from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_cut_in_one_direction_and_no_host_from_itself() {
        let mut links = Links::default();
        links.cut(1, 2);
        links.cut(3, 3);
        assert_eq!([(1, 2), (2, 1), (3, 3)].map(|(from, to)| links.passes(from, to)), [false, true, true]);
        links.heal();
        assert!(links.passes(1, 2));
    }

    #[test]
    fn weather_of_ones_own_stays_when_the_usual_changes() {
        let mut links = Links::default();
        let (rain, snow) = (Weather { lost: 1, ..Weather::default() }, Weather { lost: 2, ..Weather::default() });
        links.set(1, 2, rain);
        links.set_usual(snow);
        assert_eq!((links.weather(1, 2), links.weather(2, 1)), (rain, snow));
    }
}
