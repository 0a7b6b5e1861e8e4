//! What the victim, honest peers and a rogue agree upon, in the lab of that name.

use std::path::Path;
use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock::{Config, Engine, Peer, SystemEnv};

use crate::setting::{SECRET, share_secret};
use crate::stage::PATIENCE;

/// What an honest transfer, and one to a rogue, may take.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Bytes of one honest transfer.
pub const WORK_BYTES: u64 = 256 << 10;

/// The victim's pool for a peer of this name.
pub fn region_for(name: &str) -> String {
    format!("for {name}")
}

/// The configuration of an engine that has these transports: `both`, `shm`, `bounce` (that without the kernel's copies) or `tcp`.
///
/// # Panics
/// If there is no such word.
pub fn config(folder: &Path, name: &str, transports: &str) -> Config {
    let config = Config::default().named(name).directory(folder).progress(Progress::Adaptive).workers(1);
    let over_tcp = |config: Config| {
        share_secret(folder);
        config.listen(["127.0.0.1:0"]).secret_file(folder.join(SECRET))
    };
    match transports {
        "both" => over_tcp(config.transports([TransportName::Shm, TransportName::Tcp])),
        "shm" => config.transports([TransportName::Shm]),
        "bounce" => config.transports([TransportName::Shm]).process_vm(penstock::config::ProcessVmChoice::Off),
        "tcp" => over_tcp(config.transports([TransportName::Tcp])),
        other => panic!("no transports {other}"),
    }
}

/// A session with the victim, whose address and descriptor these are.
///
/// # Panics
/// If it does not come about.
pub fn connect(engine: &Engine<SystemEnv>, transports: &str, victim: &str) -> Peer<SystemEnv> {
    let (address, descriptor) = victim.split_once(' ').expect("an address and a descriptor");
    let connected = match transports {
        "tcp" => engine.connect_address(address, PATIENCE),
        _ => engine.connect(&bytes(descriptor), PATIENCE),
    };
    connected.expect("the victim serves everybody")
}

/// The victim in words.
pub fn victim_words(engine: &Engine<SystemEnv>) -> String {
    let descriptor: String = engine.descriptor().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {descriptor}", engine.addresses()[0])
}

/// The victim's descriptor, of its words.
///
/// # Panics
/// If they are others.
pub fn descriptor(victim: &str) -> Vec<u8> {
    bytes(victim.split_once(' ').expect("an address and a descriptor").1)
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    hex.as_bytes().chunks(2).map(byte).collect()
}
