//! A seed decides everything: the same one gives the same run, another one another.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::panic::catch_unwind;

use common::{STEPS, config, connect, exchange, pool};
use penstock::config::TransportName;
use penstock_simulation::{World, replay};

fn hash_of(seed: u64, body: impl Fn(&World)) -> (u64, u64) {
    let world = World::new(seed);
    body(&world);
    (world.trace_hash(), world.events())
}

#[test]
fn one_seed_gives_one_run() {
    for transport in [TransportName::Local, TransportName::Shm] {
        for seed in 0..25 {
            let run = || hash_of(seed, |world| exchange(world, transport));
            assert_eq!(run(), run(), "seed {seed} over {transport}");
        }
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let hashes: BTreeSet<u64> =
        (0..100).map(|seed| hash_of(seed, |world| exchange(world, TransportName::Shm)).0).collect();
    assert!(hashes.len() >= 99, "only {} of 100 seeds differ", hashes.len());
}

/// Several peers, regions that come and go: whatever is kept in a table must not be walked in an
/// order of its own.
fn crowd(world: &World) {
    let names = ["a", "b", "c", "d", "e"];
    let engines: Vec<_> = names.iter().map(|name| world.start(config(name, &[TransportName::Shm])).unwrap()).collect();
    let (hub, others) = engines.split_first().unwrap();
    let peers: Vec<_> = others.iter().map(|other| connect(world, other, hub)).collect();
    let pools: Vec<_> = (0..4).map(|number| pool(hub, &format!("pool {number}"))).collect();
    let counters: Vec<_> = (0..3).map(|number| pools[0].counter(&format!("counter {number}")).unwrap()).collect();
    let all_known = || peers.iter().all(|peer| peer.region("pool 3").is_ok() && peer.counter("counter 2").is_some());
    world.run_until(STEPS, all_known).unwrap();
    for pool in &pools {
        assert!(pool.deregister(common::SECOND).unwrap().is_quiesced());
    }
    drop(counters);
    let all_gone = || peers.iter().all(|peer| peer.region("pool 0").is_err() && peer.region("pool 3").is_err());
    world.run_until(STEPS, all_gone).unwrap();
    drop((pools, peers));
    drop(engines);
    assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
}

#[test]
fn one_seed_gives_one_run_of_a_crowd() {
    for seed in 0..25 {
        assert_eq!(hash_of(seed, crowd), hash_of(seed, crowd), "seed {seed}");
    }
}

/// Another process has other addresses, other hash keys and another process id.
#[test]
fn a_run_is_the_same_in_every_process() {
    let ours = hash_of(7, crowd);
    let Ok(program) = std::env::current_exe() else { return };
    if std::env::var_os("PENSTOCK_SIMULATION_CHILD").is_some() {
        writeln!(std::io::stdout(), "hash {ours:?}").unwrap();
        return;
    }
    let child = std::process::Command::new(program)
        .args(["--exact", "a_run_is_the_same_in_every_process", "--nocapture"])
        .env("PENSTOCK_SIMULATION_CHILD", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains(&format!("hash {ours:?}")), "another process ran {said}, this one {ours:?}");
}

#[test]
fn a_failure_names_its_seed_and_how_to_replay_it() {
    let fails = || {
        replay(3..6, |world| {
            exchange(world, TransportName::Local);
            assert_ne!(world.seed(), 4, "four is wrong");
        });
    };
    let panicked = catch_unwind(fails).unwrap_err();
    let text = panicked.downcast_ref::<String>().unwrap();
    for expected in ["seed 4 failed after", "four is wrong", "PENSTOCK_SEED=4", "the last events:", "Closed"] {
        assert!(text.contains(expected), "`{expected}` is not in: {text}");
    }
}
