//! Who has to know of a failure, and who cannot: what the oracle of `make sim` says of links that are cut early and late. And of a sink
//! that does not wait for memory: what it may fail by.

use std::time::Duration;

use penstock::flows::MemoryPolicy;
use penstock_simulation::deed::{Act, Case, Deed, Family, HEARTBEAT, Half, Player, Script};
use penstock_simulation::oracle::Violated;
use penstock_simulation::run::{Account, perform};
use penstock_simulation::{Clock, Weather};

const SEEDS: u64 = 20;
/// Blocks that an engine has.
const BLOCKS: u64 = penstock_simulation::stage::BLOCKS as u64;

fn player(host: u64) -> Player {
    Player {
        host,
        clock: Clock::default(),
        block_tokens: 8,
        has_planes: false,
        rank: (0, 1),
        is_layer_major: false,
        owns_memory: false,
        has_once: false,
    }
}

fn case(tokens: u64, within: Duration) -> Case {
    Case {
        is_reversed: false,
        tokens,
        begin: 0,
        chunks: 1,
        leg_blocks: 4,
        memory: MemoryPolicy::Wait,
        is_pull: false,
        lease: None,
        is_resumable: false,
        is_by_layer: false,
        has_fences: false,
        gives_at_once: false,
        is_misfit: false,
        late: Duration::ZERO,
        within,
    }
}

/// Two engines on two hosts, of which each does what is said, in this order.
fn performed(seed: u64, cases: Vec<Case>, deeds: &[(Duration, Act)]) -> Result<Account, Violated> {
    let mut deeds: Vec<Deed> = deeds.iter().map(|&(after, act)| Deed { after, act }).collect();
    deeds.sort_by_key(|deed| deed.after);
    let script = Script {
        seed,
        family: Family::Faults,
        weather: Weather::default(),
        players: vec![player(1), player(2)],
        cases,
        chunks: Vec::new(),
        turns: Vec::new(),
        streams: Vec::new(),
        readings: Vec::new(),
        joins: Vec::new(),
        devices: None,
        lives: Vec::new(),
        copying: None,
        copies: Vec::new(),
        deeds,
        receive_bytes: None,
        is_hasty: false,
        takes_callers: false,
    };
    perform(&script, &(0..script.deeds.len()).collect::<Vec<usize>>())
}

/// A source on one host, a sink on another, and a transfer that never has all its bytes. The link between them is cut, and healed when
/// neither believes in the other any more.
fn cut_at(seed: u64, cut: Duration, begin: Duration) -> Result<Account, Violated> {
    let is_pull = seed.is_multiple_of(2);
    let case = Case { chunks: 2, is_pull, ..case(64, Duration::from_secs(5)) };
    let deeds = [
        (Duration::ZERO, Act::Begin { case: 0, half: Half::Source(0) }),
        (cut.min(begin), Act::Chunk { case: 0 }),
        (begin, Act::Begin { case: 0, half: Half::Sink(0) }),
        (cut, Act::Cut { from: 0, to: 1, is_both: true }),
        (cut.max(begin) + 3 * HEARTBEAT, Act::Heal),
    ];
    performed(seed, vec![case], &deeds)
}

/// A sink that fails where there is no memory. Its engine has a transfer of its own, of so many tokens, which goes the other way and whose
/// sink begins when the first has come to its end.
fn beside_a_source_of(seed: u64, tokens: u64) -> Result<Account, Violated> {
    let within = Duration::from_secs(2);
    let other = Case { is_reversed: true, ..case(tokens, within) };
    let strict = Case { memory: MemoryPolicy::Fail, ..case(64, within) };
    let (soon, later) = (Duration::from_millis(5), Duration::from_millis(100));
    let deeds = [
        (Duration::ZERO, Act::Begin { case: 0, half: Half::Source(0) }),
        (Duration::ZERO, Act::Chunk { case: 0 }),
        (soon, Act::Begin { case: 1, half: Half::Source(0) }),
        (soon, Act::Chunk { case: 1 }),
        (soon, Act::Begin { case: 1, half: Half::Sink(0) }),
        (later, Act::Begin { case: 0, half: Half::Sink(0) }),
    ];
    performed(seed, vec![other, strict], &deeds)
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

#[test]
fn a_sink_that_does_not_wait_fails_with_its_source_where_others_have_filled_its_pool_and_not_otherwise() {
    for seed in 0..SEEDS {
        for (tokens, expected) in [(BLOCKS * 8, (2, 2)), (64, (4, 0))] {
            let account = beside_a_source_of(seed, tokens);
            let account = account.unwrap_or_else(|violated| panic!("seed {seed}, {tokens} tokens: {violated}"));
            assert_eq!((account.well, account.failed), expected, "seed {seed}, {tokens} tokens");
        }
    }
}
