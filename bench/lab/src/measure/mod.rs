//! How things are measured: contenders in turns, medians and ratios of one run, pinned threads.
//!
//! - [`interleave`], [`interleave_until`]: A B A B, each round begun by another contender
//! - [`median`], [`ratio`], [`difference`]: what is said about the rounds
//! - [`cores`]: where threads run; [`clock`]: how much of a CPU they used

pub mod clock;
pub mod cores;

use std::time::{Duration, Instant};

/// How many rounds are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Rounds, if the time suffices.
    pub rounds: usize,
    /// No round begins after this time, of which the warm-up is a part, but one is always measured.
    pub within: Duration,
}

/// Lets contenders take turns, so that whatever disturbs the machine disturbs all alike; each round begins
/// with another one. `take` has one of them do its work once and answers how long that took, in nanoseconds.
/// Answers the times of each contender, round by round.
pub fn interleave<E, C: Copy>(
    limit: Limit,
    contenders: &[C],
    take: impl FnMut(C) -> Result<f64, E>,
) -> Result<Vec<Vec<f64>>, E> {
    match interleave_until(limit, contenders, take) {
        (times, None) => Ok(times),
        (_, Some(error)) => Err(error),
    }
}

/// As [`interleave`]; where a turn fails, the times of the turns before it are answered with its error.
pub fn interleave_until<E, C: Copy>(
    limit: Limit,
    contenders: &[C],
    mut take: impl FnMut(C) -> Result<f64, E>,
) -> (Vec<Vec<f64>>, Option<E>) {
    // Its end is a matter of time as well, where there are more rounds than time.
    let mut times = vec![Vec::with_capacity(limit.rounds.min(4096)); contenders.len()];
    let start = Instant::now();
    for &contender in contenders {
        // Warm: first touches are not what is measured.
        if let Err(error) = take(contender) {
            return (times, Some(error));
        }
    }
    for round in 0..limit.rounds {
        for turn in 0..contenders.len() {
            let which = (round + turn) % contenders.len();
            match take(contenders[which]) {
                Ok(time) => times[which].push(time),
                Err(error) => return (times, Some(error)),
            }
        }
        if start.elapsed() >= limit.within {
            break;
        }
    }
    (times, None)
}

/// The middle one; the mean of the middle two of an even number. Not a number if there are none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// The least of them. Infinite if there are none.
pub fn least(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The median over the rounds of `figures / against`.
pub fn ratio(figures: &[f64], against: &[f64]) -> f64 {
    median(&figures.iter().zip(against).map(|(figure, against)| figure / against).collect::<Vec<_>>())
}

/// The median over the rounds of `figures - against`.
pub fn difference(figures: &[f64], against: &[f64]) -> f64 {
    median(&figures.iter().zip(against).map(|(figure, against)| figure - against).collect::<Vec<_>>())
}

/// How far the ratios of neighbouring rounds are apart.
pub fn spread(figures: &[f64], against: &[f64]) -> String {
    let mut ratios: Vec<f64> = figures.iter().zip(against).map(|(figure, against)| figure / against).collect();
    ratios.sort_by(f64::total_cmp);
    match ratios[..] {
        [least, .., most] => format!("ratios of {} pairs {least:.3} to {most:.3}", ratios.len()),
        _ => "one pair or none".to_owned(),
    }
}

/// A time as a number of nanoseconds.
pub fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(least(&[3.0, 1.0, 2.0]), 1.0);
    }

    #[test]
    fn ratios_and_differences_are_taken_round_by_round() {
        // A disturbance that hits both contenders of one round does not show.
        let (figures, against) = ([2.0, 20.0, 2.2], [1.0, 10.0, 1.0]);
        assert_eq!(ratio(&figures, &against), 2.0);
        assert!((difference(&figures, &against) - 1.2).abs() < 1e-9);
    }

    #[test]
    fn the_spread_is_of_pairs() {
        assert_eq!(spread(&[1.0, 4.0, 3.0], &[1.0, 2.0, 2.0]), "ratios of 3 pairs 1.000 to 2.000");
        assert_eq!(spread(&[], &[]), "one pair or none");
    }

    #[test]
    fn contenders_take_turns_and_each_begins_a_round() {
        let mut order = String::new();
        let limit = Limit { rounds: 4, within: Duration::MAX };
        let take = |name: char| {
            order.push(name);
            Ok::<_, Infallible>(f64::from(u32::from(name)))
        };
        let times = interleave(limit, &['a', 'b'], take).unwrap();
        assert_eq!(times, [[97.0; 4], [98.0; 4]]);
        assert_eq!(order, "ababbaabba", "the first two warm up");
    }

    #[test]
    fn what_was_measured_before_a_failure_is_kept() {
        let mut turns = 0;
        let take = |_| {
            turns += 1;
            if turns == 6 { Err("no more") } else { Ok(1.0) }
        };
        let limit = Limit { rounds: 9, within: Duration::MAX };
        let (times, error) = interleave_until(limit, &['a', 'b'], take);
        assert_eq!((times, error), (vec![vec![1.0], vec![1.0, 1.0]], Some("no more")));
    }

    #[test]
    fn time_is_a_limit_too() {
        let slow = |()| {
            std::thread::sleep(Duration::from_millis(5));
            Ok::<_, Infallible>(5e6)
        };
        let limit = Limit { rounds: 1000, within: Duration::from_millis(12) };
        let times = interleave(limit, &[()], slow).unwrap();
        assert!((1..10).contains(&times[0].len()));
    }
}
