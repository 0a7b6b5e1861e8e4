//! Which ports of the RDMA devices an engine would use, and why not the others: the engine's own choice, without opening anything.

use penstock_verbs::device::choose::{Chosen, Pick};
use penstock_verbs::device::{self, ChoiceError, Looked, SeenDevice, Sentence, WantedDevice};

use super::{TOPIC, missing, ok};
use crate::finding::{By, Finding, Mend, Port};
use crate::host::{Call, Host};
use crate::parse::count;
use crate::way::Way;

const NAME: &str = "rails";

pub(super) fn examine(host: &Host) -> Finding {
    let wanted: Result<Vec<WantedDevice>, _> = host.asked().devices.iter().map(|name| name.parse()).collect();
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(bad) => return named_wrongly(&bad.to_string()),
    };
    // Without libraries, or where they could not be tried, another finding says so: here every device is taken to have a driver.
    let words = host.try_call(Call::RdmaLibraries).unwrap_or_default();
    let drivers: Vec<&str> = words.lines().filter_map(|line| line.strip_prefix("device ")).collect();
    let drivers = (!drivers.is_empty()).then_some(drivers);
    match device::look(&host.at("/sys"), drivers.as_deref(), &wanted, &nodes(host)) {
        Ok(Looked { seen, chosen: Ok(chosen) }) => chosen_of(&seen, &chosen),
        Ok(Looked { seen, chosen: Err(ChoiceError::Nothing { sentences }) }) => nothing(&seen, &sentences),
        Ok(Looked { chosen: Err(error), .. }) => named_wrongly(&error.to_string()),
        Err(error) => {
            Finding::unknown(TOPIC, NAME, format!("the devices cannot be looked at: {error}")).on(&[Way::Verbs])
        }
    }
}

/// The NUMA nodes of the cores that the workers are to run on.
fn nodes(host: &Host) -> Vec<u32> {
    let of_core = |core: &usize| {
        let names = host.names(format!("/sys/devices/system/cpu/cpu{core}"));
        names.iter().find_map(|name| name.strip_prefix("node")?.parse().ok())
    };
    host.asked().cores.iter().filter_map(of_core).collect()
}

fn chosen_of(seen: &[SeenDevice], Chosen { picks, sentences }: &Chosen) -> Finding {
    let passed_over = sentences.len() - picks.len();
    let found = match passed_over {
        0 => format!("{} used", count(picks.len(), "port")),
        _ => format!("{} used, {passed_over} not", count(picks.len(), "port")),
    };
    let ports = sentences.iter().map(|sentence| {
        let is_its = |pick: &&Pick| sentence.is_used && sentence.about == format!("{}:{}", pick.device, pick.port);
        port(seen, sentence, picks.iter().find(is_its))
    });
    ok(NAME, found).with_ports(ports.collect())
}

/// Mostly for reasons that other findings mend: those are not said twice.
fn nothing(seen: &[SeenDevice], sentences: &[Sentence]) -> Finding {
    let ports = sentences.iter().map(|sentence| port(seen, sentence, None)).collect();
    let speaks_otherwise = seen.iter().all(|device| matches!(device.speaks, device::seen::Speaks::Other(_)));
    let finding = match speaks_otherwise {
        true => missing(NAME, "none: these devices speak neither InfiniBand nor RoCE")
            .means("no RDMA between hosts")
            .mend(Mend::advice(By::Root, "if the card speaks RoCE as well, switch it over with its vendor's tool")),
        false => ok(NAME, "none"),
    };
    finding.with_ports(ports)
}

fn named_wrongly(why: &str) -> Finding {
    let finding = Finding::broken(TOPIC, NAME, why).on(&[Way::Verbs]);
    finding.means("an engine of this configuration does not start").mend(Mend::advice(
        By::You,
        "name ports that are here in `transports.verbs_devices`, or none so that they are chosen",
    ))
}

fn port(seen: &[SeenDevice], sentence: &Sentence, pick: Option<&Pick>) -> Port {
    let (name, number) = sentence.about.split_once(':').unwrap_or((&sentence.about, ""));
    let device = seen.iter().find(|device| device.name == name);
    let its = device.and_then(|device| device.ports.iter().find(|port| port.number.to_string() == number));
    let first_network = its.and_then(|port| port.gids.iter().find_map(|gid| Some(gid.network.as_ref()?.name.clone())));
    Port {
        name: sentence.about.clone(),
        used: sentence.is_used,
        why: sentence.why.clone(),
        address: pick.map(|pick| device::seen::show_gid(&pick.gid)),
        speaks: pick.map(|pick| pick.kind.to_string()),
        gid_index: pick.map(|pick| pick.gid_index),
        netdev: pick.and_then(|pick| pick.network.clone()).or(first_network),
        node: device.and_then(|device| device.node),
        bits_per_second: its.and_then(|port| port.bandwidth),
    }
}
