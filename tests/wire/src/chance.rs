//! What happens to frame *k*: a pure function of the seed, the direction, the kind of decision and *k*.

use crate::scenario::Share;

/// What is being decided. Each has its own stream of numbers, so that one fault never shifts another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Is the frame lost?
    Loss = 1,
    /// By how much is its delay longer?
    Jitter,
    /// Do later frames overtake it?
    Reorder,
    /// Does it arrive twice?
    Duplicate,
    /// Is it damaged?
    Corrupt,
    /// Which of its bits is damaged?
    Bit,
    /// Is the frame lost because it is of UDP?
    UdpLoss,
}

/// The chances of one direction and one kind of traffic.
#[derive(Debug, Clone, Copy)]
pub struct Chance {
    key: u64,
}

impl Chance {
    /// The chances of a lane under a seed. Lanes are numbered by whoever has several.
    pub fn new(seed: u64, lane: u64) -> Self {
        Self { key: mix(seed ^ mix(lane)) }
    }

    /// The number drawn for frame `k`, even over all of `u64`.
    pub fn draw(self, question: Question, k: u64) -> u64 {
        mix(mix(self.key ^ question as u64).wrapping_add(k))
    }

    /// Whether frame `k` is among a share of all frames. A larger share has every frame of a smaller one.
    pub fn is_hit(self, question: Question, k: u64, share: Share) -> bool {
        share.per_million() > 0 && self.draw(question, k) % 1_000_000 < u64::from(share.per_million())
    }
}

/// The finalizer of SplitMix64: every bit of the input moves half of the output's.
fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(seed: u64, lane: u64, question: Question, share: &str) -> Vec<u64> {
        let share = share.parse().unwrap();
        (0..100_000).filter(|k| Chance::new(seed, lane).is_hit(question, *k, share)).collect()
    }

    #[test]
    fn a_share_is_met_within_five_deviations() {
        for (text, share) in [("1%", 0.01_f64), ("5%", 0.05), ("50%", 0.5)] {
            for seed in 0..20 {
                let count = hits(seed, 0, Question::Loss, text).len() as f64;
                let deviation = (100_000.0 * share * (1.0 - share)).sqrt();
                assert!((count - 100_000.0 * share).abs() < 5.0 * deviation, "seed {seed}, {text}: {count}");
            }
        }
        assert_eq!(hits(1, 0, Question::Loss, "0%").len(), 0);
        assert_eq!(hits(1, 0, Question::Loss, "100%").len(), 100_000);
    }

    #[test]
    fn the_same_seed_decides_the_same_and_a_larger_share_has_the_smaller() {
        let small = hits(7, 0, Question::Loss, "1%");
        assert_eq!(small, hits(7, 0, Question::Loss, "1%"));
        let large = hits(7, 0, Question::Loss, "5%");
        assert!(small.iter().all(|k| large.binary_search(k).is_ok()));
    }

    #[test]
    fn seeds_lanes_and_questions_are_independent() {
        let one = hits(7, 0, Question::Loss, "10%");
        for other in
            [hits(8, 0, Question::Loss, "10%"), hits(7, 1, Question::Loss, "10%"), hits(7, 0, Question::Corrupt, "10%")]
        {
            let both = one.iter().filter(|k| other.binary_search(k).is_ok()).count();
            // A tenth of a tenth of 100 000, with a deviation of about 32.
            assert!((800..1_200).contains(&both), "{both}");
        }
    }
}
