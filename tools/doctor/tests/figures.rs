//! The figures that the doctor tells are those of the engine. A program of its own: what is counted is the process's.

use std::path::PathBuf;
use std::time::Duration;

use penstock::config::TransportName;
use penstock::{Config, Engine, Plan, PoolSpec, Submit};
use penstock_doctor::{ENGINE_FILES, PEER_FILES};

const SOON: Duration = Duration::from_secs(10);

/// Removed at the end, also of a test that fails.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1
}

#[test]
fn an_engine_and_its_peers_take_as_many_descriptors_as_is_said() {
    let folder = Folder(std::env::temp_dir().join(format!("penstock-doctor-figures-{}", std::process::id())));
    let start = |name: &str| {
        let mut config = Config::default().named(name).directory(&folder.0);
        // Over shm although both are in this process: that is what takes descriptors.
        config.transports.allow = vec![TransportName::Shm];
        let engine = Engine::start(config).unwrap();
        let pool = engine.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
        (engine, pool)
    };
    let before = open_files();
    let (engine, pool) = start("one");
    // Standard input, output and error come on top in every program.
    let taken = open_files() - before + 3;
    assert!(taken <= ENGINE_FILES, "an engine takes {taken}");

    // All stay until the end: what a departed one still closes would be counted with the next.
    let others = ["a", "b", "c", "d"].map(start);
    let alone = open_files();
    let peers = others.each_ref().map(|(other, _)| {
        let peer = engine.connect(&other.descriptor(), SOON).unwrap();
        let plan = Plan::write(&pool, &peer.region("kv").unwrap()).blocks(&[(0, 1)]).build().unwrap();
        peer.submit(&plan, Submit::new().within(SOON)).unwrap().wait().unwrap();
        peer
    });
    // Both sides of each pair are counted here. Between processes each has a pidfd of the other, too.
    let of_both = (open_files() - alone).div_ceil(peers.len() as u64) + 2;
    assert!(of_both <= 2 * PEER_FILES, "a pair takes {of_both}");
    assert!(of_both > PEER_FILES, "a pair takes only {of_both}: the figure is far too high");
    drop((peers, others));
    drop((pool, engine));
}
