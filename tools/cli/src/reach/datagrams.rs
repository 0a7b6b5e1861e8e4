//! Whether UDP datagrams pass between this host and another: tried with a session that may use nothing else.

use std::time::Instant;

use penstock::config::{DatagramConfig, TransportName};
use penstock::{Cause, Config, Engine};
use penstock_doctor::{By, Mend, Status};
use penstock_lab::ends::network::unique_name;
use penstock_lab::service::Client;

use super::Step;
use crate::arguments::NetworkOptions;
use crate::console;
use crate::network::{ANSWER, CONNECT};

const NAME: &str = "datagrams";
const MEANS: &str = "engines of the two hosts cannot use the transport `datagram`; `tcp` is not touched by it";

/// Has the other host answer in datagrams. The session itself is begun over TCP, which is known to work.
pub(super) fn step(host: &str, options: &NetworkOptions, datagram: &DatagramConfig) -> Step {
    let mut config = Config::default().named(unique_name("doctor")).transports([TransportName::Datagram]);
    config.datagram = datagram.clone();
    let engine = match Engine::start(options.configured(config.connect_timeout(CONNECT))) {
        Ok(engine) => engine,
        Err(error) => return not(Status::Unknown, error.to_string(), "mend that on this host"),
    };
    let begun = Instant::now();
    let peer = match engine.connect_address(host, CONNECT) {
        Ok(peer) => peer,
        Err(error) => {
            let advice = "allow `datagram` in `transports.allow` of both hosts, if it is to be used";
            return not(Status::Missing, error.to_string(), advice);
        }
    };
    let path = peer.path().to_owned();
    let mut client = Client::new(peer);
    // The question goes in a datagram, and so does the answer.
    match client.about(&engine, ANSWER) {
        Ok(_) => Step::ok(NAME, format!("UDP passes in both directions: {path}")),
        Err(_) if client.peer().ended() == Some(Cause::NoPath) => {
            let took = console::time(begun.elapsed().as_secs_f64() * 1e6);
            let ports = match datagram.port {
                0 => "; the ports are any that are free, unless `datagram.port` fixes them on each host".to_owned(),
                port => format!("; here that is port {port} and one more for each worker"),
            };
            let advice = format!(
                "to use `datagram`, let UDP pass between both hosts in both directions, with no translation of addresses{ports}"
            );
            let found = format!("UDP does not pass, in one direction at least: given up after {took}");
            not(Status::Missing, found, &advice)
        }
        Err(error) => {
            not(Status::Unknown, error.to_string(), "try again, and look at what `penstock serve` prints there")
        }
    }
}

/// The other host's datagrams go by a device of DPDK, which no socket of this one is known to reach.
pub(super) fn at_device(address: &str) -> Step {
    let found = format!("not tried: that engine's datagrams go over DPDK, as {address}");
    let advice = format!(
        "to use `datagram` give the engine here a device or an interface in the network of {address}, and try it: `penstock perf HOST --transport \
         datagram --config FILE`"
    );
    not(Status::Unknown, found, &advice)
}

fn not(status: Status, found: String, advice: &str) -> Step {
    let mends = vec![Mend::advice(By::You, advice)];
    Step { name: NAME, status, found, means: Some(MEANS.to_owned()), mends }
}
