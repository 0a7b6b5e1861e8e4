//! What a micro-bench is, and how its time is taken.

use std::time::{Duration, Instant};

use crate::Refusal;

/// Does its work so many times.
pub type Body = Box<dyn FnMut(u64) -> Result<(), Refusal>>;

/// A small part of the engine, in a loop of its own.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    /// Its name: the same in every version, so that versions can be held against each other.
    pub name: &'static str,
    /// What one of what its time is given for.
    pub per: &'static str,
    /// How many of those are done each time.
    pub each: u64,
    /// Makes everything that is needed before time is taken.
    pub prepare: fn() -> Result<Body, Refusal>,
}

/// How thoroughly to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds of each bench.
    pub rounds: usize,
    /// How long a round takes, about.
    pub round: Duration,
}

/// The times of one bench, in nanoseconds for each of what it does, round by round.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Its name.
    pub name: &'static str,
    /// What the times are for.
    pub per: &'static str,
    /// A time of each round.
    pub rounds: Vec<f64>,
}

/// Measures some benches. They take turns, so that what disturbs the machine for a while disturbs all of them in some
/// rounds and not one of them in all; each has been warm for a round before.
pub fn measure(benches: &[Bench], effort: Effort) -> Result<Vec<Times>, Refusal> {
    let mut prepared = Vec::with_capacity(benches.len());
    for bench in benches {
        let named = |error: Refusal| -> Refusal { format!("{}: {error}", bench.name).into() };
        let mut body = (bench.prepare)().map_err(named)?;
        let times = repeat_for(&mut body, effort.round).map_err(named)?;
        prepared.push((bench, body, times, Vec::with_capacity(effort.rounds)));
    }
    for _ in 0..effort.rounds {
        for (bench, body, times, rounds) in &mut prepared {
            let begun = Instant::now();
            body(*times)?;
            rounds.push(begun.elapsed().as_nanos() as f64 / (*times * bench.each) as f64);
        }
    }
    let all = prepared.into_iter().map(|(bench, .., rounds)| Times { name: bench.name, per: bench.per, rounds });
    Ok(all.collect())
}

/// How often the work is to be done so that it takes about as long as a round.
fn repeat_for(body: &mut Body, round: Duration) -> Result<u64, Refusal> {
    let mut times = 1_u64;
    loop {
        let begun = Instant::now();
        body(times)?;
        let took = begun.elapsed();
        if took * 4 >= round {
            let exact = times as f64 * round.as_nanos() as f64 / took.as_nanos().max(1) as f64;
            return Ok((exact as u64).max(1));
        }
        times *= 4;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static DONE: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn a_round_takes_about_as_long_as_asked_and_is_measured_as_often_as_asked() {
        fn sleepy() -> Result<Body, Refusal> {
            Ok(Box::new(|times| {
                DONE.set(DONE.get() + times);
                std::thread::sleep(Duration::from_micros(500) * times as u32);
                Ok(())
            }))
        }
        let bench = Bench { name: "sleepy", per: "half a nap", each: 2, prepare: sleepy };
        let times = measure(&[bench], Effort { rounds: 3, round: Duration::from_millis(4) }).unwrap();
        assert_eq!((times.len(), times[0].name, times[0].rounds.len()), (1, "sleepy", 3));
        assert!(times[0].rounds.iter().all(|&time| time >= 250_000.0), "two at a time: {:?}", times[0].rounds);
        assert!(DONE.get() >= 4, "once to find out how long it takes, and in every round");
    }

    #[test]
    fn a_bench_that_cannot_be_prepared_is_named() {
        let bench = Bench { name: "absent", per: "", each: 1, prepare: || Err("no such thing".into()) };
        let error = measure(&[bench], Effort { rounds: 1, round: Duration::from_millis(1) }).unwrap_err();
        assert_eq!(error.to_string(), "absent: no such thing");
    }
}
