//! How much is under way at once on a link to another host, so that a measurement can end when its time is over.
//!
//! A round of 16 MB takes 13 s over 10 Mbit/s. Where a round takes long it is moved in slices of about [`SLICE`], two of them under way:
//! after the end of the time no new one begins, those under way are waited for, and every byte that was sent is counted. Nothing is known
//! of a link before something has passed it, so the first round begins with a small slice, and the next ones are twice as large as
//! long as that goes quickly.

use std::time::{Duration, Instant};

use penstock::Span;

use super::mover::Landed;

/// What a slice takes.
const SLICE: Duration = Duration::from_millis(100);
/// A round that takes at most so long is moved as its workload says.
const WHOLE: Duration = Duration::from_millis(200);
/// One that took longer is not, the next time.
const SLICED: Duration = Duration::from_millis(400);
/// The first slice.
const FIRST: u64 = 64 << 10;
/// The smallest.
const LEAST: u64 = 16 << 10;
/// Pieces of one slice at most.
const SPANS_MAX: usize = 1 << 16;

/// The pace of a link.
#[derive(Debug)]
pub(super) struct Pace {
    slice: u64,
    is_whole: bool,
    /// When the slice was last changed: what was submitted before says nothing about it.
    changed: Instant,
    /// Bytes that have landed since.
    bytes: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { slice: FIRST, is_whole: false, changed: Instant::now(), bytes: 0 }
    }

    /// Whether a round is moved as its workload says, and not in slices.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Bytes of the next slice, where so many are under way at once.
    pub(super) fn slice_bytes(&self, at_once: usize) -> u64 {
        (self.slice * 2 / at_once.max(2) as u64).max(LEAST)
    }

    /// How many slices are under way at once where an application has so many transfers: no more bytes than two.
    pub(super) fn at_once(&self, concurrency: usize) -> usize {
        let most = (self.slice * 2 / LEAST).max(2);
        concurrency.clamp(2, usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// A slice has landed, at this moment. Several that are under way share the link and may land all at once.
    pub(super) fn landed(&mut self, landed: Landed, now: Instant) {
        self.bytes += landed.bytes;
        let since = now.saturating_duration_since(self.changed);
        if landed.took > since {
            return;
        }
        if landed.took < SLICE / 2 {
            self.change(self.slice.saturating_mul(2).min(1 << 30), now);
        } else {
            let rate = self.bytes as f64 / since.as_secs_f64();
            let wanted = (rate * SLICE.as_secs_f64()) as u64;
            self.change(wanted.min(self.slice.saturating_mul(2)), now);
        }
    }

    fn change(&mut self, slice: u64, now: Instant) {
        (self.slice, self.changed, self.bytes) = (slice.max(LEAST), now, 0);
    }

    /// A round of so many bytes has ended.
    pub(super) fn round_ended(&mut self, bytes: u64, took: Duration) {
        match self.is_whole {
            false => self.is_whole = took <= WHOLE,
            true if took > SLICED => {
                let rate = bytes as f64 / took.as_secs_f64();
                self.is_whole = false;
                self.change((rate * SLICE.as_secs_f64()) as u64, Instant::now());
            }
            true => {}
        }
    }
}

/// Cuts spans into slices.
pub(super) struct Cutter<I> {
    spans: I,
    rest: Option<Span>,
}

impl<I: Iterator<Item = Span>> Cutter<I> {
    pub(super) fn new(spans: I) -> Self {
        Self { spans, rest: None }
    }

    /// The next spans of so many bytes in all, whole words; none at the end.
    pub(super) fn next(&mut self, bytes: u64) -> Vec<Span> {
        let (mut left, mut slice) = ((bytes / 8).max(1) * 8, Vec::new());
        while left > 0 && slice.len() < SPANS_MAX {
            let Some(span) = self.rest.take().or_else(|| self.spans.next()) else { break };
            let len = span.len.min(left);
            slice.push(Span { len, ..span });
            left -= len;
            if len < span.len {
                self.rest = Some(Span { local: span.local + len, remote: span.remote + len, len: span.len - len });
            }
        }
        slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_all_of_the_spans_in_their_order() {
        let spans = [(0, 64, 40), (100, 200, 16), (1000, 2000, 8)];
        let spans = spans.map(|(local, remote, len)| Span { local, remote, len });
        for bytes in [1, 8, 24, 30, 1000] {
            let mut cutter = Cutter::new(spans.into_iter());
            let mut joined: Vec<Span> = Vec::new();
            loop {
                let slice = cutter.next(bytes);
                if slice.is_empty() {
                    break;
                }
                assert!(slice.iter().map(|span| span.len).sum::<u64>() <= bytes.max(8));
                for span in slice {
                    match joined.last_mut() {
                        Some(last) if last.local + last.len == span.local => last.len += span.len,
                        _ => joined.push(span),
                    }
                }
            }
            assert_eq!(joined, spans, "{bytes}");
        }
    }

    /// Moves slices over a link of so many bytes a second for a while: those that are under way at once share it and land together.
    fn over(pace: &mut Pace, rate: u64, concurrency: usize) -> u64 {
        let mut now = Instant::now();
        for _ in 0..40 {
            let at_once = pace.at_once(concurrency);
            let bytes = pace.slice_bytes(at_once);
            let took = Duration::from_micros(at_once as u64 * bytes * 1_000_000 / rate);
            now += took;
            (0..at_once).for_each(|_| pace.landed(Landed { bytes, took }, now));
        }
        pace.at_once(concurrency) as u64 * pace.slice_bytes(pace.at_once(concurrency))
    }

    #[test]
    fn a_slow_link_gets_small_slices_and_a_quick_one_whole_rounds() {
        for (rate, concurrency) in [(1_000_000, 1), (12_000_000, 1), (12_000_000, 8), (12_000_000, 300)] {
            let mut slow = Pace::new();
            let under_way = over(&mut slow, rate, concurrency);
            // About 0.2 s.
            assert!((rate / 20..rate * 2 / 5).contains(&under_way), "{under_way} at {rate}, {concurrency}");
            slow.round_ended(16 << 20, Duration::from_secs(16));
            assert!(!slow.is_whole());
        }
        let mut quick = Pace::new();
        assert!(over(&mut quick, 10_000_000_000, 1) > 32 << 20);
        quick.round_ended(16 << 20, Duration::from_millis(12));
        assert!(quick.is_whole());
        // The link has become slow: 1 MB/s.
        quick.round_ended(16 << 20, Duration::from_secs(16));
        assert!(!quick.is_whole() && quick.slice_bytes(2) < 150_000);
        assert!((100_000..400_000).contains(&over(&mut quick, 1_000_000, 4)));
    }
}
