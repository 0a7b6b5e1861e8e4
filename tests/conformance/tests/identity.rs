//! Whoever poses as another engine is not taken for it.

use penstock::config::TransportName;
use penstock::session::EngineDescriptor;
use penstock::{Config, Engine, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Rogue, hello};
use penstock_conformance::stage::PATIENCE;

fn engine(folder: &Folder, name: &str) -> Engine<SystemEnv> {
    let config = Config::default().named(name).directory(folder.path()).transports([TransportName::Shm]);
    Engine::start(config).expect("an engine starts")
}

/// A session in which a rogue has said another engine's epoch is not the answer to whoever wants that engine.
#[test]
fn an_engine_is_not_found_in_the_session_of_one_that_says_its_epoch() {
    let folder = Folder::fresh();
    let [victim, honest] = ["victim", "honest"].map(|name| engine(&folder, name));
    let card = EngineDescriptor::decode(&victim.descriptor()).unwrap();
    let mut lie = hello(&card);
    lie.epoch = honest.epoch().0;
    let rogue = Rogue::connect(&folder.path().join("victim.sock")).greet_as(lie).join();
    let peer = victim.connect(&honest.descriptor(), PATIENCE).unwrap();
    assert_eq!(peer.name().as_str(), "honest");
    assert_eq!(victim.peers().len(), 2, "both have a session");
    drop((peer, rogue));
}
