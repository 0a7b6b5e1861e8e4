//! A lab: engines of others are fetched into a folder of their own, start, and move real bytes.
//!
//! It needs the network, as they are downloaded.

use std::time::Duration;

use penstock_conformance::folder::Folder;
use penstock_conformance::skip;
use penstock_lab::Workload;
use penstock_lab::layout::{Layout, LayoutSpec};
use penstock_lab::measure::cores;
use penstock_lab::peers::catalog::PEERS;
use penstock_lab::peers::pair::{MOONCAKE, NIXL, NIXL_POLLED, NIXL_TCP, NIXL_TUNED, Pair, Way};
use penstock_lab::peers::tools::{Meter, TOOLS};
use penstock_lab::peers::{Installed, Peer, PeerError, Store};
use penstock_lab::scoreboard::{self, Effort, Row};

const ROUNDS: u64 = 10_000;
const BYTES: u64 = 64 << 20;
const HOUR_NS: f64 = 3.6e12;

/// A store of the test's own, which leaves nothing behind.
struct Home {
    store: Store,
    /// Looks that it is empty when it is dropped, which is after the store was emptied.
    _folder: Folder,
}

impl Home {
    fn fresh() -> Self {
        let folder = Folder::fresh();
        Self { store: Store::open(Some(folder.path())).unwrap(), _folder: folder }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for peer in PEERS {
            self.store.remove(peer).unwrap();
        }
    }
}

/// Installs a peer; where it cannot be downloaded the test is skipped, and says why.
fn install(test: &str, store: &Store, name: &str) -> Option<Installed> {
    let peer = Peer::find(name).unwrap();
    match store.install(peer, false) {
        Ok((installed, fetched)) => {
            assert!(fetched, "the folder was empty");
            Some(installed)
        }
        Err(error) => {
            let reason = match &error {
                PeerError::NoProgram { program, .. } => format!("needs command:{}", program.split(' ').next().unwrap()),
                PeerError::NotOffered { .. } | PeerError::Failed { .. } | PeerError::TooLong { .. } => {
                    format!("{name} cannot be downloaded: {error}")
                }
                other => panic!("{other}"),
            };
            skip::report(test, &reason);
            None
        }
    }
}

#[test]
fn programs_of_others_are_unpacked_start_and_tell_their_figures() {
    const TEST: &str = "programs_of_others_are_unpacked_start_and_tell_their_figures";
    if let Some(reason) = skip::labs_are_off() {
        return skip::report(TEST, reason);
    }
    let home = Home::fresh();
    let store = &home.store;
    let all = cores::available();
    let (near, far) = (&all[..1], &all[all.len() - 1..]);
    for tool in TOOLS {
        let installed = match store.find(Peer::find(tool.peer).unwrap()) {
            Ok(there) => there,
            Err(_) => match install(TEST, store, tool.peer) {
                Some(installed) => installed,
                None => return,
            },
        };
        installed.probe().unwrap();
        let (_, fetched) = store.install(installed.peer, false).unwrap();
        assert!(!fetched, "it was there");
        let meter = Meter::open(store, tool, near, far).unwrap();
        // Where bytes are counted and not rounds, enough of them that the program has something to divide by.
        let amount = if tool.peer == "iperf3" { BYTES } else { ROUNDS };
        let told = meter.run(amount).unwrap();
        assert!(told.nanos > 0.0 && told.nanos < HOUR_NS, "{}: {told:?}", tool.title);
        assert_eq!(told.cpu_s_per_gb.is_some(), tool.peer == "iperf3", "{}: {told:?}", tool.title);
        assert_eq!(meter.version(), installed.version());
    }
}

#[test]
fn nixl_moves_the_same_blocks_and_a_wrong_byte_is_found() {
    const TEST: &str = "nixl_moves_the_same_blocks_and_a_wrong_byte_is_found";
    if let Some(reason) = skip::labs_are_off() {
        return skip::report(TEST, reason);
    }
    let home = Home::fresh();
    let store = &home.store;
    if install(TEST, store, "nixl").is_none() {
        return;
    }
    for way in [&NIXL, &NIXL_TUNED, &NIXL_TCP] {
        moves_its_blocks(store, way);
    }
    let mut words = Pair::open(store, &NIXL_POLLED, 1 << 20, true).unwrap();
    assert!(words.rally(20).unwrap() > 1.0);
    drop(words);
    // A row of the scoreboard that needs no program of ours beside it.
    let effort = Effort { quick: true, peers: Some(store.clone()), ..Effort::default() };
    let metric = scoreboard::choose(&["M7".to_owned()]).unwrap()[0];
    let rows = metric.measure(&effort).unwrap();
    let row = rows.iter().find(|row| row.against == "NIXL, prep_xfer_dlist").unwrap();
    assert!(is_compared(row), "{row:?}");
}

#[test]
fn mooncake_moves_the_same_blocks_and_a_wrong_byte_is_found() {
    const TEST: &str = "mooncake_moves_the_same_blocks_and_a_wrong_byte_is_found";
    if let Some(reason) = skip::labs_are_off() {
        return skip::report(TEST, reason);
    }
    let home = Home::fresh();
    let store = &home.store;
    if install(TEST, store, "mooncake").is_some() {
        moves_its_blocks(store, &MOONCAKE);
    }
}

/// A few rounds with pools too small to say anything about speed, and a proof that the look finds a wrong byte.
fn moves_its_blocks(store: &Store, way: &Way) {
    let text = "{name: few, what: a test, block_bytes: 16384, blocks: 100, layers: 2}";
    let workload = Workload::parse(text, "a test").unwrap();
    let spec = LayoutSpec { workload, pool_bytes_min: 16 << 20, concurrency: 1, seed: 5 };
    let layout = Layout::new(&spec);
    let mut pair = Pair::open(store, way, layout.pool_bytes(), true).unwrap();
    pair.deal(&spec).unwrap();
    for _ in 0..3 {
        let nanos = pair.round().unwrap();
        assert!(nanos > 0.0 && nanos < HOUR_NS, "{}: {nanos} ns", way.title);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(pair.cpu_per_round().is_some_and(|cpu| !cpu.is_zero()), "{}", way.title);
    let bytes = layout.sets().len() as u64 * spec.workload.bytes();
    assert_eq!(pair.verify(false).unwrap(), bytes, "{}", way.title);
    assert!(matches!(pair.verify(true), Err(PeerError::Corrupt { .. })), "{}", way.title);
}

fn is_compared(row: &Row) -> bool {
    row.figure.is_some() && row.against_figure.is_some() && row.met.is_some()
}
