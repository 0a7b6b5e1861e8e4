//! Many seeds, and the one that failed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::world::World;

/// Names one seed, to be run instead of all of them.
pub const SEED_VARIABLE: &str = "PENSTOCK_SEED";
/// Says how many seeds to run, from zero on, instead of a test's own: for a longer look.
pub const SEEDS_VARIABLE: &str = "PENSTOCK_SEEDS";

/// Runs `body` in a world for each seed, or for those that `PENSTOCK_SEED` or `PENSTOCK_SEEDS` ask for.
///
/// # Panics
/// If `body` does, with its words, the seed, how to replay it, and the last events.
pub fn replay(seeds: impl IntoIterator<Item = u64>, body: impl Fn(&World)) {
    match (number_in(SEED_VARIABLE), number_in(SEEDS_VARIABLE)) {
        (Some(seed), _) => run(seed, &body),
        (None, Some(count)) => (0..count).for_each(|seed| run(seed, &body)),
        (None, None) => seeds.into_iter().for_each(|seed| run(seed, &body)),
    }
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable} is `{text}`, which is not a number"),
    }
}

fn run(seed: u64, body: &impl Fn(&World)) {
    let world = World::new(seed);
    let Err(panicked) = catch_unwind(AssertUnwindSafe(|| body(&world))) else { return };
    let events: String = world.last_events().iter().map(|event| format!("  {event}\n")).collect();
    panic!(
        "seed {seed} failed after {} events: {}\nto replay it alone: {SEED_VARIABLE}={seed}\nthe last events:\n{events}",
        world.events(),
        words_of(&*panicked),
    );
}

fn words_of(panicked: &(dyn Any + Send)) -> &str {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or(panicked.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
