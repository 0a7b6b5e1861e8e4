//! A seed decides everything, also what befalls packets, links and engines.

use std::collections::BTreeSet;
use std::io::Write;

use penstock::{NoteId, Submit};
use penstock_simulation::trace::digest;
use penstock_simulation::{Death, World};

use crate::stage::{FAR, HEARTBEAT, NEAR, SOON, Stage, bytes_of, connect, fill, pool, start, storm};

/// A storm, a cut, an engine that stands still, a death and a new life.
fn adventure(world: &World) {
    let stage = Stage::open(world, storm());
    fill(&stage.near, 31);
    let pairs = stage.pairs(0);
    let transfers = [stage.submit(&stage.write(&pairs), Submit::new().notify(NoteId(1), b"one")), {
        stage.submit(&stage.read(&pairs), Submit::new())
    }];
    world.run_for(HEARTBEAT / 100);
    world.partition(NEAR, FAR);
    world.run_for(HEARTBEAT / 5);
    world.heal();
    world.freeze(&stage.source);
    world.run_for(HEARTBEAT / 5);
    world.thaw(&stage.source);
    for transfer in &transfers {
        stage.end(transfer).unwrap();
    }
    world.note(digest(&bytes_of(&stage.far)));
    drop(transfers);
    let Stage { source, target, near, far, peer, .. } = stage;
    drop(far);
    world.crash(target, Death::Killed);
    let target = start(world, FAR, "target");
    let far = pool(&target, "kv");
    world.wait(SOON, || peer.ended().is_some()).unwrap();
    connect(world, &source, &target);
    drop((near, far, peer, source, target));
    assert_eq!(world.open_ends(), 0);
}

fn hash_of(seed: u64) -> (u64, u64) {
    let world = World::new(seed);
    adventure(&world);
    (world.trace_hash(), world.events())
}

#[test]
fn one_seed_gives_one_run_between_hosts() {
    for seed in 0..50 {
        assert_eq!(hash_of(seed), hash_of(seed), "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_runs_between_hosts() {
    let hashes: BTreeSet<u64> = (0..50).map(|seed| hash_of(seed).0).collect();
    assert_eq!(hashes.len(), 50);
}

/// Another process has other addresses, other hash keys and another process id.
#[test]
fn a_run_between_hosts_is_the_same_in_every_process() {
    let ours = hash_of(7);
    let Ok(program) = std::env::current_exe() else { return };
    if std::env::var_os("PENSTOCK_SIMULATION_CHILD").is_some() {
        writeln!(std::io::stdout(), "hash {ours:?}").unwrap();
        return;
    }
    let child = std::process::Command::new(program)
        .args(["--exact", "seeds::a_run_between_hosts_is_the_same_in_every_process", "--nocapture"])
        .env("PENSTOCK_SIMULATION_CHILD", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains(&format!("hash {ours:?}")), "another process ran {said}, this one {ours:?}");
}
