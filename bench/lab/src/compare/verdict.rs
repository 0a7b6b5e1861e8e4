//! Medians, an interval of confidence, and what follows from both.
//!
//! The figure is B's time divided by A's. Where the two took turns, the ratio is taken round by round, so that whatever
//! slows the machine for a while slows both and is not seen; its median over the rounds is the figure, and rounds are
//! drawn again and again to see how far that median could have come out otherwise (a bootstrap of percentiles). Where the
//! rounds have nothing to do with each other, each side is drawn by itself and the medians are divided.

use serde::Serialize;

use crate::measure::median;

/// Times that the rounds are drawn anew.
const DRAWS: usize = 4_000;
/// Part of the draws that may lie outside the interval.
const OUTSIDE: f64 = 0.05;
/// With fewer rounds than this nothing is said about confidence.
pub const ROUNDS_MIN: usize = 5;

/// Whether round 1 of A belongs to round 1 of B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// They took turns.
    Turns,
    /// They were measured apart from each other.
    Apart,
}

/// What counts as a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judge {
    /// Less than this is no difference, in per cent.
    pub least_percent: f64,
    /// What the draws begin with: the same seed and figures give the same verdict.
    pub seed: u64,
}

impl Default for Judge {
    fn default() -> Self {
        Self { least_percent: 1.0, seed: 1 }
    }
}

/// Who is quicker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quicker {
    /// The first.
    A,
    /// The second.
    B,
    /// It cannot be told, or is too little to matter.
    Neither,
    /// There are too few rounds to say anything.
    Unknown,
}

/// What is said about two sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The median of A.
    pub a: f64,
    /// The median of B.
    pub b: f64,
    /// B divided by A.
    pub ratio: f64,
    /// Between these the ratio lies with 95 % confidence; absent where there are too few rounds.
    pub interval: Option<(f64, f64)>,
    /// Rounds of the side that has fewer.
    pub rounds: usize,
    /// Who is quicker.
    pub quicker: Quicker,
    /// All that in words.
    pub words: String,
}

impl Judge {
    /// Judges the times of both sides; less is better.
    pub fn judge(&self, a: &[f64], b: &[f64], pairing: Pairing) -> Verdict {
        let (a_median, b_median, rounds) = (median(a), median(b), a.len().min(b.len()));
        let ratio = match pairing {
            Pairing::Turns => median(&ratios(a, b)),
            Pairing::Apart => b_median / a_median,
        };
        let interval = (rounds >= ROUNDS_MIN).then(|| match pairing {
            Pairing::Turns => self.interval_of_turns(&ratios(a, b)),
            Pairing::Apart => self.interval_apart(a, b),
        });
        let quicker = interval.map_or(Quicker::Unknown, |interval| self.quicker(ratio, interval));
        let words = words(quicker, ratio, interval, rounds);
        Verdict { a: a_median, b: b_median, ratio, interval, rounds, quicker, words }
    }

    fn quicker(&self, ratio: f64, (low, high): (f64, f64)) -> Quicker {
        // How much less time the quicker one takes.
        let saved_percent = 100.0 * (1.0 - ratio.min(1.0 / ratio));
        if saved_percent < self.least_percent {
            return Quicker::Neither;
        }
        match (low > 1.0, high < 1.0) {
            (true, _) => Quicker::A,
            (_, true) => Quicker::B,
            _ => Quicker::Neither,
        }
    }

    fn interval_of_turns(&self, ratios: &[f64]) -> (f64, f64) {
        let mut random = Random(self.seed);
        percentiles((0..DRAWS).map(|_| median(&random.draw(ratios))).collect())
    }

    fn interval_apart(&self, a: &[f64], b: &[f64]) -> (f64, f64) {
        let mut random = Random(self.seed);
        percentiles((0..DRAWS).map(|_| median(&random.draw(b)) / median(&random.draw(a))).collect())
    }
}

fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| b / a).collect()
}

fn percentiles(mut drawn: Vec<f64>) -> (f64, f64) {
    drawn.sort_by(f64::total_cmp);
    let at = |part: f64| drawn[((drawn.len() - 1) as f64 * part).round() as usize];
    (at(OUTSIDE / 2.0), at(1.0 - OUTSIDE / 2.0))
}

fn words(quicker: Quicker, ratio: f64, interval: Option<(f64, f64)>, rounds: usize) -> String {
    let Some((low, high)) = interval else {
        let change = 100.0 * (ratio - 1.0);
        return format!(
            "B takes {change:+.1} %, but {rounds} rounds are too few to say whether that is more than noise"
        );
    };
    // As saved time: the quicker one's, of the slower one's.
    let saved = |ratio: f64| 100.0 * (1.0 - ratio.min(1.0 / ratio));
    let (least, most) = (saved(low).min(saved(high)), saved(low).max(saved(high)));
    match quicker {
        Quicker::A => format!("A is quicker by {least:.1} to {most:.1} % (95 %, {rounds} rounds)"),
        Quicker::B => format!("B is quicker by {least:.1} to {most:.1} % (95 %, {rounds} rounds)"),
        Quicker::Neither | Quicker::Unknown => {
            format!(
                "no difference (B takes {:+.1} to {:+.1} %, 95 %, {rounds} rounds)",
                100.0 * (low - 1.0),
                100.0 * (high - 1.0)
            )
        }
    }
}

/// Split-mix: the same numbers for the same seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// As many as there are, each drawn from all of them.
    fn draw(&mut self, from: &[f64]) -> Vec<f64> {
        from.iter().map(|_| from[(self.next() % from.len() as u64) as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 15;
    const TRIALS: u64 = 200;

    /// Around 1, nearly all within three times `spread`.
    fn noise(random: &mut Random, spread: f64) -> f64 {
        let uniform = |random: &mut Random| (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        // Twelve of them are as good as a normal distribution here.
        1.0 + spread * ((0..12).map(|_| uniform(random)).sum::<f64>() - 6.0)
    }

    /// How many of the trials end with this, where B takes `factor` times as long and each round is slowed by something
    /// that both feel.
    fn count(factor: f64, drift: f64, pairing: Pairing, wanted: Quicker) -> usize {
        let trials = (0..TRIALS).map(|trial| {
            let mut random = Random(trial * 7_919);
            let slowed: Vec<f64> = (0..ROUNDS).map(|_| 1.0 + drift * noise(&mut random, 0.3).abs()).collect();
            let mut times = |factor: f64| -> Vec<f64> {
                slowed.iter().map(|slowed| 100.0 * factor * slowed * noise(&mut random, 0.02)).collect()
            };
            let (a, b) = (times(1.0), times(factor));
            Judge::default().judge(&a, &b, pairing).quicker
        });
        trials.filter(|&quicker| quicker == wanted).count()
    }

    #[test]
    fn the_same_distribution_is_hardly_ever_called_different() {
        // An interval of 95 % is wrong in 5 of 100 trials; one of a median of few rounds in some more.
        for pairing in [Pairing::Turns, Pairing::Apart] {
            let equal = count(1.0, 0.0, pairing, Quicker::Neither);
            assert!(equal >= TRIALS as usize * 90 / 100, "{equal} of {TRIALS}, {pairing:?}");
        }
    }

    #[test]
    fn five_per_cent_are_found_in_two_per_cent_of_noise() {
        let found = count(1.05, 0.0, Pairing::Turns, Quicker::A);
        assert!(found >= TRIALS as usize * 95 / 100, "{found} of {TRIALS}");
        let found = count(1.0 / 1.05, 0.0, Pairing::Turns, Quicker::B);
        assert!(found >= TRIALS as usize * 95 / 100, "{found} of {TRIALS}");
        let found = count(1.05, 0.0, Pairing::Apart, Quicker::A);
        assert!(found >= TRIALS as usize * 90 / 100, "{found} of {TRIALS}");
    }

    #[test]
    fn what_slows_both_at_the_same_time_is_not_seen() {
        let equal = count(1.0, 2.0, Pairing::Turns, Quicker::Neither);
        assert!(equal >= TRIALS as usize * 90 / 100, "{equal} of {TRIALS}");
        let found = count(1.05, 2.0, Pairing::Turns, Quicker::A);
        assert!(found >= TRIALS as usize * 95 / 100, "{found} of {TRIALS}");
    }

    #[test]
    fn less_than_the_threshold_is_no_difference_however_sure() {
        let (a, b) = ([100.0; 15], [100.5; 15]);
        let verdict = Judge::default().judge(&a, &b, Pairing::Turns);
        assert_eq!((verdict.quicker, verdict.interval), (Quicker::Neither, Some((1.005, 1.005))));
        let strict = Judge { least_percent: 0.1, ..Judge::default() };
        assert_eq!(strict.judge(&a, &b, Pairing::Turns).quicker, Quicker::A);
    }

    #[test]
    fn the_words_say_who_and_by_how_much() {
        let words = |a: f64, b: f64| Judge::default().judge(&[a; 15], &[b; 15], Pairing::Turns).words;
        assert_eq!(words(80.0, 100.0), "A is quicker by 20.0 to 20.0 % (95 %, 15 rounds)");
        assert_eq!(words(100.0, 80.0), "B is quicker by 20.0 to 20.0 % (95 %, 15 rounds)");
        assert!(words(100.0, 100.0).starts_with("no difference"));
        let few = Judge::default().judge(&[100.0], &[80.0], Pairing::Apart);
        assert_eq!((few.quicker, few.interval), (Quicker::Unknown, None));
        assert!(few.words.contains("-20.0 %") && few.words.contains("too few"));
    }

    #[test]
    fn the_same_figures_give_the_same_verdict() {
        let mut random = Random(5);
        let a: Vec<f64> = (0..ROUNDS).map(|_| noise(&mut random, 0.1)).collect();
        let b: Vec<f64> = (0..ROUNDS).map(|_| noise(&mut random, 0.1)).collect();
        let judged = || Judge::default().judge(&a, &b, Pairing::Turns);
        assert_eq!(judged(), judged());
    }
}
