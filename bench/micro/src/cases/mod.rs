//! All micro-benches.
//!
//! - `words`: what stands in shared words: rings, hazards, slabs, queues, counters, a futex
//! - `plans`: making plans and expanding them
//! - `copies`: the copy kernels by the size of a block
//! - `transfers`: submit to complete, and a notification there and back

mod copies;
mod plans;
mod transfers;
mod words;

pub use self::plans::{Grid, PLANNED};
use crate::bench::Bench;

/// All of them, in order.
pub fn all() -> Vec<Bench> {
    [words::ALL, plans::ALL, copies::ALL, transfers::ALL].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_bench_does_its_work_and_has_a_name_of_its_own() {
        for bench in all() {
            let mut body = (bench.prepare)().unwrap();
            body(1).and_then(|()| body(3)).unwrap_or_else(|error| panic!("{}: {error}", bench.name));
        }
        let names: HashSet<_> = all().iter().map(|bench| bench.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
