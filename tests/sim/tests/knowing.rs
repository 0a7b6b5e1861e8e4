//! Who has to know of a failure, and who cannot: what the oracle of `make sim` says of links that are cut early and late.

use std::time::Duration;

use penstock::flows::MemoryPolicy;
use penstock_simulation::deed::{Act, Case, Deed, Family, HEARTBEAT, Half, Player, Script};
use penstock_simulation::oracle::Violated;
use penstock_simulation::run::{Account, perform};
use penstock_simulation::{Clock, Weather};

const SEEDS: u64 = 20;

/// A source on one host, a sink on another, and a transfer that never has all its bytes. The link between them is cut, and healed when
/// neither believes in the other any more.
fn cut_at(seed: u64, cut: Duration, begin: Duration) -> Result<Account, Violated> {
    let player = |host, rank| Player {
        host,
        clock: Clock::default(),
        block_tokens: 8,
        has_planes: false,
        rank,
        is_layer_major: false,
        owns_memory: false,
        has_once: false,
    };
    let case = Case {
        is_reversed: false,
        tokens: 64,
        begin: 0,
        chunks: 2,
        leg_blocks: 4,
        memory: MemoryPolicy::Wait,
        is_pull: seed.is_multiple_of(2),
        lease: None,
        is_resumable: false,
        is_by_layer: false,
        has_fences: false,
        gives_at_once: false,
        is_misfit: false,
        late: Duration::ZERO,
        within: Duration::from_secs(5),
    };
    let deed = |after, act| Deed { after, act };
    let script = Script {
        seed,
        family: Family::Faults,
        weather: Weather::default(),
        players: vec![player(1, (0, 1)), player(2, (0, 1))],
        cases: vec![case],
        chunks: Vec::new(),
        turns: Vec::new(),
        streams: Vec::new(),
        readings: Vec::new(),
        joins: Vec::new(),
        devices: None,
        lives: Vec::new(),
        deeds: vec![
            deed(Duration::ZERO, Act::Begin { case: 0, half: Half::Source(0) }),
            deed(cut.min(begin), Act::Chunk { case: 0 }),
            deed(begin, Act::Begin { case: 0, half: Half::Sink(0) }),
            deed(cut, Act::Cut { from: 0, to: 1, is_both: true }),
            deed(cut.max(begin) + 3 * HEARTBEAT, Act::Heal),
        ],
        is_hasty: false,
        takes_callers: false,
    };
    let mut keep: Vec<usize> = (0..script.deeds.len()).collect();
    keep.sort_by_key(|&place| script.deeds[place].after);
    perform(&script, &keep)
}

#[test]
fn a_sink_that_was_never_heard_of_fails_without_its_source() {
    for seed in 0..SEEDS {
        // The source waits for its sink until its own deadline: another session may bring it.
        let account = cut_at(seed, Duration::from_millis(10), Duration::from_millis(12));
        let account = account.unwrap_or_else(|violated| panic!("seed {seed}: {violated}"));
        assert_eq!((account.well, account.failed), (0, 2), "seed {seed}");
    }
}

#[test]
fn a_sink_that_was_heard_of_fails_with_its_source() {
    for seed in 0..SEEDS {
        let account = cut_at(seed, Duration::from_millis(50), Duration::from_millis(2));
        let account = account.unwrap_or_else(|violated| panic!("seed {seed}: {violated}"));
        assert_eq!((account.well, account.failed), (0, 2), "seed {seed}");
    }
}
