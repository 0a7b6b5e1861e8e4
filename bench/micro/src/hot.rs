//! The hot path and nothing else: one plan, submitted again and again by an inline engine.
//!
//! Whoever counts instructions counts between the begin and the end of [`counted_rounds`]. What happens in between
//! depends on nothing but the program: no clock decides anything, no other thread takes part, the scatter has a fixed
//! seed, and everything has been done once before.

use penstock::config::TransportName;
use penstock::{Plan, RemoteCounter, Submit};

use crate::Refusal;
use crate::pair::Pair;
use crate::scatter::shuffle;

/// What one round moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// How it gets to the peer.
    pub transport: TransportName,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// From one block's place to the next, in bytes.
    pub stride_bytes: u64,
    /// Blocks of a plan.
    pub blocks: u32,
    /// Whether each transfer counts its arrival.
    pub is_counted: bool,
}

/// Eight bytes and nothing else: what a call costs. The same is counted through the C library, see `hot_path.c`.
const ONE: Case = Case { blocks: 1, is_counted: false, ..words("one-local", TransportName::Local) };

const fn words(name: &'static str, transport: TransportName) -> Case {
    Case { name, transport, block_bytes: 8, stride_bytes: 64, blocks: 10_000, is_counted: true }
}

const fn kv16(name: &'static str, transport: TransportName) -> Case {
    Case { name, transport, block_bytes: 16 << 10, stride_bytes: 16 << 10, blocks: 1_000, is_counted: true }
}

/// All of them: the smallest blocks, where a block is nearly nothing but instructions, and those of the KV caches.
pub const CASES: [Case; 5] = [
    ONE,
    words("words-local", TransportName::Local),
    words("words-shm", TransportName::Shm),
    kv16("kv16-local", TransportName::Local),
    kv16("kv16-shm", TransportName::Shm),
];

/// Everything that one case needs, warm.
pub struct Prepared {
    pair: Pair,
    plan: Plan,
    arrivals: Option<RemoteCounter>,
}

impl Case {
    /// The case of this name.
    pub fn find(name: &str) -> Option<Self> {
        CASES.iter().copied().find(|case| case.name == name)
    }

    /// Starts both ends, makes the plan and has it moved twice.
    pub fn prepare(&self) -> Result<Prepared, Refusal> {
        let places = 2 * self.blocks;
        let pair = Pair::connected(self.transport, self.stride_bytes * u64::from(places))?;
        let (from, to) = (scattered(places, 1), scattered(places, 2));
        let blocks: Vec<(u32, u32)> = from.into_iter().zip(to).take(self.blocks as usize).collect();
        let plan = Plan::write(&pair.pool, &pair.remote)
            .blocks(&blocks)
            .block_bytes(self.block_bytes)
            .strides(self.stride_bytes, self.stride_bytes)
            .build()?;
        let arrivals = if self.is_counted { Some(pair.remote_counter()?) } else { None };
        let prepared = Prepared { pair, plan, arrivals };
        submit_rounds(&prepared, 2)?;
        Ok(prepared)
    }
}

/// [`submit_rounds`], under the name by which whoever counts knows where to begin and to end.
#[inline(never)]
pub fn counted_rounds(prepared: &Prepared, rounds: u64) -> Result<(), Refusal> {
    submit_rounds(prepared, rounds)
}

/// Submits the plan so many times, each after the end of the one before, and each with an arrival.
fn submit_rounds(prepared: &Prepared, rounds: u64) -> Result<(), Refusal> {
    let Prepared { pair, plan, arrivals } = prepared;
    for _ in 0..rounds {
        let how = match *arrivals {
            Some(counter) => Submit::new().count(counter),
            None => Submit::new(),
        };
        let transfer = pair.peer.submit(plan, how)?;
        loop {
            if let Some(ended) = transfer.poll() {
                ended?;
                break;
            }
            pair.initiator.progress()?;
        }
    }
    Ok(())
}

impl Prepared {
    /// How many transfers have arrived.
    pub fn arrived(&self) -> u64 {
        self.pair.arrivals.value()
    }
}

/// All places in an order that is the same in every run.
pub(crate) fn scattered(places: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..places).collect();
    shuffle(&mut order, seed);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_moves_its_blocks_and_counts_their_arrival() {
        for case in CASES {
            let prepared = case.prepare().unwrap();
            let source = prepared.pair.pool.window();
            source.fill(0, source.len(), 0x5a).unwrap();
            counted_rounds(&prepared, 3).unwrap();
            assert_eq!(prepared.arrived(), if case.is_counted { 5 } else { 0 }, "{}", case.name);
            let moved = prepared.plan.shape().spans().all(|(_, span)| {
                let mut last = [0];
                prepared.pair.target_pool.window().read_into(span.remote + span.len - 1, &mut last).unwrap();
                last == [0x5a]
            });
            assert!(moved, "{}", case.name);
        }
    }

    #[test]
    fn the_scatter_is_the_same_in_every_run_and_visits_every_place() {
        let mut order = scattered(1_000, 1);
        assert_eq!(order, scattered(1_000, 1));
        assert_ne!(order, scattered(1_000, 2));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1_000));
    }
}
