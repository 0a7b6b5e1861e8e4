//! How much may be under way: a window that delay shrinks, as Swift's does, and below one packet a pace.
//!
//! The round trip holds the queues of both hosts and of the network. While it is below the target delay the window grows, by one frame
//! a round trip once it has met congestion and doubling before, and after a timeout up to half of what it was. If no packet of a round trip came back within the target the window
//! shrinks in proportion to the excess of the quickest: a queue delays all of them, a path that jitters does not. Loss shrinks it where
//! delay says the same, where more than half is lost, or where nothing is heard any more: a packet that rotted on the way says nothing
//! about queues.

use std::time::Duration;

use penstock_core::Timestamp;

/// The window of a connection that has heard nothing yet, in frames.
const FIRST_FRAMES: u64 = 16;
/// The largest window: 1 ms at 34 Gb/s.
const WINDOW_MAX: u64 = 4 << 20;
/// The smallest window, as a part of a frame: at the longest pace a packet a thousand round trips would tell nothing.
const SMALLEST_PART: u64 = 32;
/// Delay that hosts add by themselves, scheduling and batching: not taken for congestion.
const HOST_DELAY: Duration = Duration::from_micros(200);
/// What a window of a tenth of a frame takes for no queue beyond what one of a hundred frames does: of those that share a link the small
/// ones grow while the large ones shrink, until they are alike.
const LENIENCE: Duration = Duration::from_micros(800);
const LENIENT_BELOW_FRAMES: f64 = 0.1;
const STRICT_FROM_FRAMES: f64 = 100.0;
/// Measured packets without which a round trip tells nothing of a queue: of fewer all may have been late by chance.
const ROUND_SAMPLES: u32 = 8;
/// A round trip that is the smallest for so long is remembered; then paths may have changed.
const BASE_MEMORY: Duration = Duration::from_secs(10);
/// The least time until what was sent counts as lost although nothing is heard.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// The longest, however often it was doubled.
const TIMEOUT_MAX: Duration = Duration::from_millis(200);
/// What is assumed before the first round trip.
const TIMEOUT_FIRST: Duration = Duration::from_millis(20);

/// Measured round trips and the window they allow.
#[derive(Debug, Clone)]
pub struct Congestion {
    frame: u64,
    window: u64,
    /// Below this it doubles in a round trip.
    fast_below: u64,
    smoothed: Duration,
    variation: Duration,
    /// How much one round trip differs from the one before it, smoothed: a queue changes slowly, jitter from packet to packet.
    jitter: Duration,
    last: Duration,
    /// The smallest round trip of the current period, and of the one before.
    base: [Duration; 2],
    base_since: Timestamp,
    /// The window shrinks for loss again only then.
    shrinks_after: Timestamp,
    /// What the window was, and below what it doubled, before it shrank for timeouts of which nobody knows yet whether anything was lost.
    before_timeouts: Option<(u64, u64)>,
    /// Bytes acknowledged and lost in this round trip, and the quickest packet of it.
    round: (u64, u64),
    quickest: Duration,
    samples: u32,
    round_ends: Timestamp,
}

impl Congestion {
    /// Of a connection with frames of so many bytes.
    pub fn new(frame: usize) -> Self {
        let frame = frame as u64;
        Self {
            frame,
            window: (FIRST_FRAMES * frame).min(WINDOW_MAX),
            fast_below: u64::MAX,
            smoothed: Duration::ZERO,
            variation: Duration::ZERO,
            jitter: Duration::ZERO,
            last: Duration::ZERO,
            base: [Duration::MAX; 2],
            base_since: Timestamp::default(),
            shrinks_after: Timestamp::default(),
            before_timeouts: None,
            round: (0, 0),
            quickest: Duration::MAX,
            samples: 0,
            round_ends: Timestamp::default(),
        }
    }

    /// Bytes that may be under way.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The smoothed round trip; zero before the first.
    pub fn round_trip(&self) -> Duration {
        self.smoothed
    }

    /// The smallest round trip of late; [`Duration::MAX`] before the first.
    pub fn base(&self) -> Duration {
        self.base[0].min(self.base[1])
    }

    /// A round trip below this says that there is no queue. Where packets come irregularly, it has to be longer to say so.
    fn target(&self) -> Duration {
        // Who never saw the path without a queue measured too much: what hosts add is taken to be there in any case.
        let base = self.base().max(HOST_DELAY);
        base.saturating_add((base / 4).max(HOST_DELAY).max(2 * self.jitter)).saturating_add(self.lenience())
    }

    /// It falls with the root of the window, as the queue does that windows of one size leave behind.
    fn lenience(&self) -> Duration {
        let part = |frames: f64| 1.0 / frames.sqrt() - 1.0 / STRICT_FROM_FRAMES.sqrt();
        let of_all = part(self.window as f64 / self.frame as f64) / part(LENIENT_BELOW_FRAMES);
        LENIENCE.mul_f64(of_all.clamp(0.0, 1.0))
    }

    /// For how long nothing is heard before what is under way counts as lost, doubled so often. It is no longer than `longest`, unless the
    /// smallest round trip is: what is repeated sooner is repeated for nothing, for ever.
    pub fn timeout(&self, doublings: u32, longest: Duration) -> Duration {
        let once = if self.smoothed.is_zero() { TIMEOUT_FIRST } else { self.smoothed + 4 * self.variation };
        let doubled = once.max(TIMEOUT_MIN).saturating_mul(1 << doublings.min(8));
        let least = if self.smoothed.is_zero() { Duration::ZERO } else { self.base() + self.base() / 4 };
        doubled.min(longest.min(TIMEOUT_MAX).max(least))
    }

    /// When the next packet may leave although the window is smaller than one: after the last one of so many bytes.
    pub fn pace(&self, last_sent: Timestamp, bytes: u64) -> Timestamp {
        if self.window >= self.frame {
            return last_sent;
        }
        let round = self.smoothed.max(TIMEOUT_MIN);
        last_sent + round.mul_f64(bytes as f64 / self.window as f64).min(TIMEOUT_MAX)
    }

    /// A round trip was measured, and so many bytes were acknowledged with it.
    pub fn on_ack(&mut self, round_trip: Duration, bytes: u64, now: Timestamp) {
        self.measure(round_trip, now);
        self.turn_round(now);
        self.round.0 += bytes;
        self.quickest = self.quickest.min(round_trip);
        self.samples += 1;
        if round_trip < self.target() {
            let more = if self.window < self.fast_below { bytes } else { self.frame * bytes / self.window.max(1) };
            self.window = (self.window + more.min(bytes.max(1))).min(WINDOW_MAX);
        }
    }

    /// So many bytes were lost.
    pub fn on_loss(&mut self, bytes: u64, now: Timestamp) {
        self.turn_round(now);
        self.round.1 += bytes;
        let is_heavy = self.round.1 > 4 * self.frame && self.round.1 > self.round.0;
        let is_queued = self.quickest != Duration::MAX && self.quickest >= self.target();
        if (is_heavy || is_queued) && now >= self.shrinks_after {
            self.shrink(self.window / 2, now);
        }
    }

    /// Nothing was heard for [`Congestion::timeout`]. That doubles, so one packet a timeout is little; and where there is but one
    /// under way, its loss always ends so.
    pub fn on_timeout(&mut self, now: Timestamp) {
        let (before, _) = *self.before_timeouts.get_or_insert((self.window, self.fast_below));
        self.shrink(self.window.min(self.frame), now);
        self.fast_below = before / 2;
    }

    /// The first word since timeouts; whether it says that what counted as lost had arrived. Then the peer or this side stood still,
    /// as processes do that share a processor, and the window is what it was.
    pub fn on_heard(&mut self, was_spurious: bool) {
        let before = self.before_timeouts.take().filter(|_| was_spurious);
        if let Some((window, fast_below)) = before {
            (self.window, self.fast_below) = (self.window.max(window), fast_below);
        }
    }

    fn shrink(&mut self, to: u64, now: Timestamp) {
        self.window = to.max(self.frame / SMALLEST_PART);
        self.fast_below = 0;
        self.shrinks_after = now + self.smoothed.max(TIMEOUT_MIN);
    }

    fn turn_round(&mut self, now: Timestamp) {
        if now < self.round_ends || (1..ROUND_SAMPLES).contains(&self.samples) {
            return;
        }
        let (quickest, target) = (self.quickest, self.target());
        if quickest != Duration::MAX && quickest > target {
            let excess = (quickest - target).as_nanos() as u64;
            let whole = quickest.as_nanos().max(1) as u64;
            // Four fifths of the excess, and never below half.
            let cut = (self.window / 5 * 4).saturating_mul(excess / 1024) / (whole / 1024).max(1);
            self.shrink(self.window.saturating_sub(cut.min(self.window / 2)), now);
        }
        (self.round, self.quickest, self.samples) = ((0, 0), Duration::MAX, 0);
        self.round_ends = now + self.smoothed.max(TIMEOUT_MIN);
    }

    fn measure(&mut self, round_trip: Duration, now: Timestamp) {
        if self.smoothed.is_zero() {
            (self.smoothed, self.variation) = (round_trip.max(Duration::from_nanos(1)), round_trip / 2);
        } else {
            self.jitter = (15 * self.jitter + self.last.abs_diff(round_trip)) / 16;
            self.variation = (3 * self.variation + self.smoothed.abs_diff(round_trip)) / 4;
            self.smoothed = (7 * self.smoothed + round_trip) / 8;
        }
        self.last = round_trip;
        if now.since(self.base_since) >= BASE_MEMORY {
            (self.base, self.base_since) = ([Duration::MAX, self.base[0]], now);
        }
        self.base[0] = self.base[0].min(round_trip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1472;
    const US: Duration = Duration::from_micros(1);

    fn at(us: u32) -> Timestamp {
        Timestamp::default() + us * US
    }

    /// Acknowledges a window's worth each round trip.
    fn rounds(congestion: &mut Congestion, start: u32, rounds: u32, round_trip: Duration) {
        for round in 0..rounds {
            let now = at(start + round * 5000);
            let mut left = congestion.window();
            while left > 0 {
                congestion.on_ack(round_trip, left.min(FRAME), now);
                left = left.saturating_sub(FRAME);
            }
        }
    }

    #[test]
    fn it_doubles_until_it_meets_delay_and_then_grows_by_a_frame() {
        let mut congestion = Congestion::new(FRAME as usize);
        let first = congestion.window();
        rounds(&mut congestion, 0, 2, 100 * US);
        assert_eq!(congestion.window(), 4 * first);
        (0..=ROUND_SAMPLES).for_each(|packet| congestion.on_ack(2000 * US, FRAME, at(100_000 + 20_000 * packet)));
        let shrunk = congestion.window();
        assert!(shrunk < 4 * first && shrunk >= 2 * first, "{shrunk}");
        rounds(&mut congestion, 200_000, 1, 100 * US);
        let after_a_round = congestion.window();
        rounds(&mut congestion, 250_000, 1, 100 * US);
        let grown = congestion.window() - after_a_round;
        assert!((FRAME / 2..=FRAME + FRAME / 8).contains(&grown), "{grown}");
    }

    #[test]
    fn it_shrinks_once_a_round_trip_and_never_to_nothing() {
        let mut congestion = Congestion::new(FRAME as usize);
        (0..ROUND_SAMPLES).for_each(|packet| congestion.on_ack(100 * US, FRAME, at(packet)));
        for round in 0..25 {
            congestion.on_ack(50_000 * US, FRAME, at(1_000_000 + round * 100_000));
            let once = congestion.window();
            for packet in 1..ROUND_SAMPLES {
                congestion.on_ack(50_000 * US, FRAME, at(1_000_000 + packet + round * 100_000));
                assert_eq!(congestion.window(), once);
            }
        }
        assert!(congestion.window() < FRAME && congestion.window() >= FRAME / SMALLEST_PART);
        let pace = congestion.pace(at(0), FRAME);
        assert!(pace > at(50_000) && pace <= at(200_000), "{pace:?}");
        for round in 0..100 {
            congestion.on_ack(100 * US, FRAME, at(40_000_000 + round * 10_000));
        }
        assert!(congestion.window() > FRAME, "it comes back");
    }

    #[test]
    fn a_path_that_jitters_is_not_congested_and_one_that_queues_is() {
        let mut congestion = Congestion::new(FRAME as usize);
        rounds(&mut congestion, 0, 3, 100 * US);
        let before = congestion.window();
        for packet in 0..1000 {
            let late = if packet % 4 == 0 { 100 } else { 5000 };
            congestion.on_ack(late * US, FRAME, at(20_000 + packet * 500));
        }
        assert!(congestion.window() >= before);
        for packet in 0..100 {
            congestion.on_ack(5000 * US, FRAME, at(600_000 + packet * 500));
        }
        assert!(congestion.window() < before / 2);
    }

    #[test]
    fn isolated_loss_at_base_delay_shrinks_nothing_and_heavy_loss_does() {
        let mut congestion = Congestion::new(FRAME as usize);
        rounds(&mut congestion, 0, 4, 100 * US);
        let before = congestion.window();
        for round in 0..50 {
            congestion.on_ack(100 * US, 99 * FRAME, at(1_000_000 + round * 5000));
            congestion.on_loss(FRAME, at(1_000_000 + round * 5000));
        }
        let before = (congestion.window() >= before).then_some(congestion.window()).expect("it did not shrink");
        congestion.on_loss(1000 * FRAME, at(2_000_000));
        assert_eq!(congestion.window(), before / 2);
        congestion.on_timeout(at(3_000_000));
        assert!(congestion.window() <= FRAME);
    }

    #[test]
    fn loss_before_the_first_round_trip_is_counted_and_nothing_more() {
        let mut congestion = Congestion::new(FRAME as usize);
        let window = congestion.window();
        congestion.on_loss(FRAME, at(1));
        assert_eq!(congestion.window(), window);
    }

    #[test]
    fn a_timeout_in_which_nothing_was_lost_costs_no_window() {
        let mut congestion = Congestion::new(FRAME as usize);
        let before = congestion.window();
        (0..3).for_each(|time| congestion.on_timeout(at(1000 * time)));
        assert_eq!(congestion.window(), FRAME);
        congestion.on_heard(true);
        assert_eq!(congestion.window(), before);
        rounds(&mut congestion, 5, 1, 100 * US);
        assert_eq!(congestion.window(), 2 * before, "and it doubles as before");
        congestion.on_timeout(at(9000));
        congestion.on_heard(false);
        congestion.on_heard(true);
        assert_eq!(congestion.window(), FRAME, "that was another word");
    }

    #[test]
    fn after_a_timeout_it_doubles_up_to_half_of_what_it_was() {
        let mut congestion = Congestion::new(FRAME as usize);
        rounds(&mut congestion, 0, 3, 100 * US);
        let before = congestion.window();
        congestion.on_timeout(at(20_000));
        congestion.on_timeout(at(30_000));
        assert_eq!(congestion.window(), FRAME);
        congestion.on_heard(false);
        rounds(&mut congestion, 40_000, 10, 100 * US);
        let after = congestion.window();
        assert!((before / 2..before / 2 + 10 * FRAME).contains(&after), "{before} {after}");
    }

    #[test]
    fn timeouts_have_bounds() {
        let mut congestion = Congestion::new(FRAME as usize);
        assert_eq!(congestion.timeout(0, TIMEOUT_MAX), TIMEOUT_FIRST);
        assert_eq!(congestion.timeout(0, TIMEOUT_MIN), TIMEOUT_MIN);
        congestion.on_ack(10 * US, FRAME, at(0));
        assert_eq!(congestion.timeout(0, TIMEOUT_MAX), TIMEOUT_MIN);
        assert_eq!(congestion.timeout(3, TIMEOUT_MAX), 8 * TIMEOUT_MIN);
        assert_eq!(congestion.timeout(40, Duration::MAX), TIMEOUT_MAX);
        let mut long = Congestion::new(FRAME as usize);
        long.on_ack(300_000 * US, FRAME, at(0));
        assert!(long.timeout(0, TIMEOUT_MIN) >= 300_000 * US, "a round trip has its time");
    }
}
