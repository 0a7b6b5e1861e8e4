//! A process on the other host with an engine of its own.

use std::time::{Duration, Instant};

use penstock::Rights;
use penstock_conformance::Peer;
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::remote::Remote;
use penstock_conformance::setting::EngineSpec;
use penstock_conformance::stage::KV;
use penstock_wire::Side;

use super::hosts::Hosted;

const PEER: &str = env!("CARGO_BIN_EXE_penstock-conformance-peer");

/// Starts one with that engine, and a pool with the pattern of that seed.
pub(crate) fn guest(hosted: &Hosted, spec: EngineSpec, bytes: u64, seed: u64) -> Remote {
    let mut remote = Remote::process(hosted.hosts.command(Side::B, PEER));
    assert!(matches!(remote.ask(Command::Start(spec.into())), Reply::Started { .. }));
    let (label, rights) = (KV.to_owned(), Rights::READ_WRITE.into());
    assert_eq!(remote.ask(Command::Pool { label, bytes, block: 4096, rights, seed }), Reply::Done);
    remote
}

/// It calls the engine here. Answers how long that took, and the session.
pub(crate) fn call(hosted: &Hosted, remote: &mut Remote, name: &str) -> (Duration, Peer) {
    let begun = Instant::now();
    assert_eq!(remote.ask(Command::Connect { descriptor: hosted.engine.descriptor() }), Reply::Done);
    let took = begun.elapsed();
    let stands = |peer: &Peer| peer.name().as_str() == name && peer.ended().is_none();
    (took, hosted.engine.peers().into_iter().find(stands).expect("it has called"))
}
