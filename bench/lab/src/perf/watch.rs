//! What is told while a measurement goes on, and when it is cut off.

use std::time::{Duration, Instant};

use penstock::PeerPackets;

use crate::ends::end::End;
use crate::ends::network::Served;

/// How long after the end of the time what is still under way may take before it is cancelled: longer than slices take.
pub(super) const GRACE: Duration = Duration::from_millis(300);
/// From one report to a server to the next.
const REPORT: Duration = Duration::from_millis(250);

/// What a measurement tells while it goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// Everything is prepared: from now on an interrupted measurement has something to show.
    Begun,
    /// What was moved in a part of the time.
    Interval(Interval),
}

/// What was moved in a part of the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Its beginning, since that of the measurement.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    /// Bytes that were confirmed in it.
    pub bytes: u64,
    /// Rounds that ended in it.
    pub rounds: u64,
    /// The time of it in which the engine moved: the rest had the floors and guests of a measurement on this host.
    pub moving: Duration,
}

impl Interval {
    /// In 10^9 bytes a second of the time in which the engine moved.
    pub fn gbps(&self) -> f64 {
        if self.moving.is_zero() { 0.0 } else { self.bytes as f64 / self.moving.as_nanos() as f64 }
    }
}

/// Who looks on while a measurement goes on, and may cut it off.
pub struct Watch<'a> {
    /// Whether to end now; asked at least twenty times a second. What was measured by then is reported.
    pub is_over: &'a dyn Fn() -> bool,
    /// How often [`Progress::Interval`] is told; never where absent.
    pub interval: Option<Duration>,
    /// Hears what is told.
    pub tell: &'a mut dyn FnMut(Progress),
}

/// Counts what is moved, tells of it, and says when it is over.
pub(super) struct Meter<'w, 'a> {
    watch: &'w mut Watch<'a>,
    begun: Instant,
    /// When no round is begun any more.
    deadline: Option<Instant>,
    /// When what is under way is cancelled.
    last: Option<Instant>,
    /// Rounds that have to end before the time cuts anything off.
    least: u64,
    /// Bytes confirmed so far.
    pub(super) bytes: u64,
    /// Rounds that have ended.
    pub(super) rounds: u64,
    /// The time in which the engine moved.
    pub(super) moving: Duration,
    /// The packets of a session with a server when they were last looked at: after its end there is nothing to look at.
    pub(super) packets: Option<PeerPackets>,
    /// When the turn began that goes on.
    turn: Option<Instant>,
    told: Interval,
    reported: Instant,
}

impl<'w, 'a> Meter<'w, 'a> {
    /// Begins now, for so long; `is_sharp` cancels what is still under way then.
    pub(super) fn begin(watch: &'w mut Watch<'a>, within: Duration, is_sharp: bool) -> Self {
        (watch.tell)(Progress::Begun);
        let begun = Instant::now();
        let deadline = begun.checked_add(within);
        let last = deadline.filter(|_| is_sharp).and_then(|deadline| deadline.checked_add(GRACE));
        let told = Interval { from: Duration::ZERO, to: Duration::ZERO, bytes: 0, rounds: 0, moving: Duration::ZERO };
        let (bytes, rounds, moving, packets) = (0, 0, Duration::ZERO, None);
        Self {
            watch,
            begun,
            deadline,
            last,
            least: 0,
            bytes,
            rounds,
            moving,
            packets,
            turn: None,
            told,
            reported: begun,
        }
    }

    /// The time cuts off nothing before one round has ended.
    pub(super) fn with_one_round(mut self) -> Self {
        self.least = 1;
        self
    }

    /// Somebody has asked for the end.
    pub(super) fn is_interrupted(&self) -> bool {
        (self.watch.is_over)()
    }

    /// Nothing more is to be begun.
    pub(super) fn is_over(&self) -> bool {
        self.is_interrupted() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// What is under way is to be cancelled.
    pub(super) fn is_cut(&self) -> bool {
        let is_late = || self.last.is_some_and(|last| Instant::now() >= last);
        self.is_interrupted() || (self.rounds >= self.least && is_late())
    }

    /// The engine's turn begins.
    pub(super) fn turn_begins(&mut self) {
        self.turn = Some(Instant::now());
    }

    /// The engine's turn has ended.
    pub(super) fn turn_ends(&mut self) {
        self.moving = self.time_moving();
        self.turn = None;
    }

    fn time_moving(&self) -> Duration {
        self.moving + self.turn.map_or(Duration::ZERO, |turn| turn.elapsed())
    }

    /// Forgets what was counted so far: it was the warm-up's.
    pub(super) fn restart(&mut self) {
        (self.bytes, self.rounds, self.moving) = (0, 0, Duration::ZERO);
        (self.told.bytes, self.told.rounds, self.told.moving) = (0, 0, Duration::ZERO);
    }

    /// To be called often: tells of an interval that is over, and the server how far this has come.
    pub(super) fn pulse(&mut self, server: Option<(&mut Served, &End)>) {
        let now = Instant::now();
        if let Some((served, near)) = server
            && now.duration_since(self.reported) >= REPORT
        {
            self.reported = now;
            served.mention(near, self.bytes);
            self.packets = served.packets().or(self.packets);
        }
        let (Some(length), elapsed) = (self.watch.interval, now.duration_since(self.begun)) else { return };
        if elapsed.saturating_sub(self.told.to) < length {
            return;
        }
        let moving = self.time_moving();
        let interval = Interval {
            from: self.told.to,
            to: elapsed,
            bytes: self.bytes - self.told.bytes,
            rounds: self.rounds - self.told.rounds,
            moving: moving.saturating_sub(self.told.moving),
        };
        self.told = Interval { from: Duration::ZERO, to: elapsed, bytes: self.bytes, rounds: self.rounds, moving };
        (self.watch.tell)(Progress::Interval(interval));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn intervals_add_up_to_what_was_moved() {
        let mut heard = Vec::new();
        let mut tell = |progress| heard.push(progress);
        let mut watch = Watch { is_over: &|| false, interval: Some(Duration::from_millis(5)), tell: &mut tell };
        let mut meter = Meter::begin(&mut watch, Duration::from_secs(60), true);
        meter.turn_begins();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            (meter.bytes, meter.rounds) = (meter.bytes + 1000, meter.rounds + 1);
            meter.pulse(None);
        }
        let rounds = meter.rounds;
        assert!(!meter.is_over() && !meter.is_cut());
        assert_eq!(heard[0], Progress::Begun);
        let intervals: Vec<Interval> = heard[1..]
            .iter()
            .map(|progress| match progress {
                Progress::Interval(interval) => *interval,
                Progress::Begun => panic!("it begins once"),
            })
            .collect();
        assert!(intervals.len() >= 4, "{intervals:?}");
        assert!(intervals.windows(2).all(|two| two[0].to == two[1].from), "{intervals:?}");
        assert!(intervals.iter().map(|interval| interval.rounds).sum::<u64>() <= rounds);
        assert!(intervals.iter().all(|interval| interval.bytes == interval.rounds * 1000 && interval.gbps() > 0.0));
    }

    #[test]
    fn the_end_of_the_time_ends_what_begins_and_an_interruption_also_what_is_under_way() {
        let is_over = Cell::new(false);
        let (ask, mut tell) = (|| is_over.get(), |_| ());
        let mut watch = Watch { is_over: &ask, interval: None, tell: &mut tell };
        let meter = Meter::begin(&mut watch, Duration::ZERO, true);
        assert!(meter.is_over() && !meter.is_cut(), "what is under way has a moment");
        std::thread::sleep(GRACE);
        assert!(meter.is_cut());
        let meter = Meter::begin(&mut watch, Duration::MAX, true);
        assert!(!meter.is_over() && !meter.is_cut());
        is_over.set(true);
        assert!(meter.is_over() && meter.is_cut());
    }
}
