//! Which ports become rails, and under which of their addresses. Every choice and every rejection is a sentence.
//!
//! Without names: every port that is active, with its best address; those near the workers first. With names: those, in that order.

use std::cmp::Reverse;

use super::networks::is_mapped;
use super::seen::{GidKind, SeenDevice, SeenGid, SeenPort, Speaks, is_link_local, show_gid};
use super::wanted::WantedDevice;
use crate::pairing::RAILS_MAX;

/// A port and an address of it, to be a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    pub device: String,
    pub port: u8,
    /// The place of the address in the port's table.
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// What is spoken from it.
    pub kind: GidKind,
    /// Bits of it that its network shares.
    pub network_bits: u8,
    /// Whether packets to it are routed.
    pub is_routable: bool,
    /// Bits in a second, if the port says so.
    pub bandwidth: Option<u64>,
    /// The NUMA node of the device.
    pub node: Option<u32>,
    /// The network device behind it.
    pub network: Option<String>,
}

/// Why something is used, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// What it is about, by the name that settings know it by.
    pub about: String,
    /// Whether it is used.
    pub is_used: bool,
    pub why: String,
}

impl std::fmt::Display for Sentence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { about, is_used, why } = self;
        write!(f, "{about}: {}, {why}", if *is_used { "used" } else { "not used" })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The rails, best first.
    pub picks: Vec<Pick>,
    /// Every choice and every rejection.
    pub sentences: Vec<Sentence>,
}

/// Why nothing was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// A name is of nothing that is here.
    #[error("there is no `{name}` here; there is {}", .there.join(", "))]
    Unknown {
        name: String,
        /// What there is in its place.
        there: Vec<String>,
    },
    /// What a name is of cannot be used.
    #[error("`{name}` cannot be used: {why}")]
    Unfit { name: String, why: String },
    /// Two names are of the same port.
    #[error("`{name}` names a port that was named before: each port is one rail")]
    Twice { name: String },
    /// No port of any device can be used.
    #[error("no port can be used: {}", .sentences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Nothing { sentences: Vec<Sentence> },
}

/// Chooses rails. `nodes` are the NUMA nodes of the workers, as far as they have any.
pub fn choose(seen: &[SeenDevice], wanted: &[WantedDevice], nodes: &[u32]) -> Result<Chosen, ChoiceError> {
    if wanted.is_empty() { choose_freely(seen, nodes) } else { choose_named(seen, wanted) }
}

fn choose_freely(seen: &[SeenDevice], nodes: &[u32]) -> Result<Chosen, ChoiceError> {
    let mut sentences = Vec::new();
    let mut found = Vec::new();
    for device in seen {
        if let Err(why) = usable_device(device) {
            sentences.push(Sentence { about: device.name.clone(), is_used: false, why });
            continue;
        }
        for port in &device.ports {
            let about = format!("{}:{}", device.name, port.number);
            match usable_port(port).and_then(|()| best_gid(port)) {
                Ok((gid, why)) => found.push((pick(device, port, gid), Sentence { about, is_used: true, why })),
                Err(why) => sentences.push(Sentence { about, is_used: false, why }),
            }
        }
    }
    // Stable: among equals the kernel's order stands.
    found.sort_by_key(|(pick, _)| distance(pick.node, nodes));
    let mut picks = Vec::new();
    for (place, (pick, mut sentence)) in found.into_iter().enumerate() {
        if place < RAILS_MAX {
            sentence.why.push_str(words_of(distance(pick.node, nodes)));
            picks.push(pick);
        } else {
            sentence.is_used = false;
            sentence.why = format!("{RAILS_MAX} rails are before it; name the ones that are meant");
        }
        sentences.push(sentence);
    }
    sentences.sort_by_key(|sentence| Reverse(sentence.is_used));
    if picks.is_empty() { Err(ChoiceError::Nothing { sentences }) } else { Ok(Chosen { picks, sentences }) }
}

fn choose_named(seen: &[SeenDevice], wanted: &[WantedDevice]) -> Result<Chosen, ChoiceError> {
    let mut picks: Vec<Pick> = Vec::new();
    let mut sentences = Vec::new();
    for one in wanted {
        let name = one.to_string();
        let unfit = |why| ChoiceError::Unfit { name: name.clone(), why };
        let device = seen.iter().find(|device| device.name == one.device).ok_or_else(|| ChoiceError::Unknown {
            name: one.device.clone(),
            there: names(seen.iter().map(|device| device.name.clone()), "no device"),
        })?;
        usable_device(device).map_err(unfit)?;
        let ports: Vec<&SeenPort> =
            device.ports.iter().filter(|port| one.port.is_none_or(|number| number == port.number)).collect();
        if ports.is_empty() {
            let there = names(device.ports.iter().map(|port| format!("{}:{}", device.name, port.number)), "no port");
            return Err(ChoiceError::Unknown { name, there });
        }
        let before = picks.len();
        for port in ports {
            let about = format!("{}:{}", device.name, port.number);
            let chosen = match one.gid_index {
                Some(index) => usable_port(port).map_err(unfit).and_then(|()| named_gid(device, port, index, &name)),
                None => usable_port(port).and_then(|()| best_gid(port)).map_err(unfit),
            };
            match chosen {
                Ok((gid, why)) => {
                    let pick = pick(device, port, gid);
                    if picks.iter().any(|other| other.device == pick.device && other.port == pick.port) {
                        return Err(ChoiceError::Twice { name });
                    }
                    let why = format!("it was named, {why}");
                    picks.push(pick);
                    sentences.push(Sentence { about, is_used: true, why });
                }
                // The whole device was named: one port of it is enough.
                Err(ChoiceError::Unfit { why, .. }) if one.port.is_none() && device.ports.len() > 1 => {
                    sentences.push(Sentence { about, is_used: false, why });
                }
                Err(error) => return Err(error),
            }
        }
        if picks.len() == before {
            return Err(ChoiceError::Nothing { sentences });
        }
    }
    for device in seen.iter().filter(|device| wanted.iter().all(|one| one.device != device.name)) {
        let why = "other devices were named".to_owned();
        sentences.push(Sentence { about: device.name.clone(), is_used: false, why });
    }
    Ok(Chosen { picks, sentences })
}

/// What there is, for an error.
fn names(of: impl Iterator<Item = String>, none: &str) -> Vec<String> {
    let names: Vec<String> = of.collect();
    if names.is_empty() { vec![none.to_owned()] } else { names }
}

fn pick(device: &SeenDevice, port: &SeenPort, gid: &SeenGid) -> Pick {
    let is_local = is_link_local(&gid.gid);
    Pick {
        device: device.name.clone(),
        port: port.number,
        gid_index: gid.index,
        gid: gid.gid,
        kind: gid.kind,
        network_bits: gid.network_bits,
        is_routable: gid.kind != GidKind::RoceV1 && !is_local,
        bandwidth: port.bandwidth,
        node: device.node,
        network: gid.network.as_ref().map(|network| network.name.clone()),
    }
}

fn usable_device(device: &SeenDevice) -> Result<(), String> {
    if let Speaks::Other(what) = &device.speaks {
        let what = if what.is_empty() { "something unknown" } else { what };
        return Err(format!("it speaks {what}, and only InfiniBand and RoCE are spoken here"));
    }
    if !device.has_driver {
        return Err("libibverbs has no driver for it: install ibverbs-providers (Debian's name)".to_owned());
    }
    if device.ports.is_empty() { Err("it has no port".to_owned()) } else { Ok(()) }
}

fn usable_port(port: &SeenPort) -> Result<(), String> {
    if port.is_active() {
        return Ok(());
    }
    let mend = if port.is_ethernet {
        "set its network device up, look at its cable"
    } else {
        "look at its cable and the subnet's manager"
    };
    Err(format!("its state is {}: {mend}", port.state))
}

/// Whether packets can be sent from an address.
fn usable_gid(port: &SeenPort, gid: &SeenGid) -> Result<(), String> {
    if !port.is_ethernet {
        return Ok(());
    }
    match &gid.network {
        None => {
            Err("its network device is not to be seen from here: it is in another namespace, or has none".to_owned())
        }
        Some(network) if !network.is_up => Err(format!("its network device {} is down", network.name)),
        Some(_) => Ok(()),
    }
}

/// How good an address is: RoCE's second version before the first, one that is good everywhere before one that is not, IPv4
/// before IPv6 so that both sides take the same, the first in the table.
fn rank(gid: &SeenGid) -> (bool, bool, bool, u8) {
    (gid.kind == GidKind::RoceV1, is_link_local(&gid.gid), !is_mapped(&gid.gid), gid.index)
}

/// The best address of a port, and why it is the best.
fn best_gid(port: &SeenPort) -> Result<(&SeenGid, String), String> {
    let mut usable: Vec<&SeenGid> = port.gids.iter().filter(|gid| usable_gid(port, gid).is_ok()).collect();
    usable.sort_by_key(|gid| rank(gid));
    let Some((best, others)) = usable.split_first() else {
        let why: Vec<String> = port
            .gids
            .iter()
            .filter_map(|gid| Some(format!("{} ({})", show_gid(&gid.gid), usable_gid(port, gid).err()?)))
            .collect();
        return Err(if why.is_empty() {
            "it has no address".to_owned()
        } else {
            format!("no address of it can be used: {}", why.join(", "))
        });
    };
    let mut why = format!("by {}", show(best));
    for other in others {
        why.push_str(&format!("; better than {}", show(other)));
    }
    for gid in &port.gids {
        if let Err(reason) = usable_gid(port, gid) {
            why.push_str(&format!("; not {}, {reason}", show_gid(&gid.gid)));
        }
    }
    Ok((best, why))
}

fn named_gid<'a>(
    device: &SeenDevice,
    port: &'a SeenPort,
    index: u8,
    name: &str,
) -> Result<(&'a SeenGid, String), ChoiceError> {
    let Some(gid) = port.gids.iter().find(|gid| gid.index == index) else {
        let number = port.number;
        let known = port.gids.iter().map(|gid| format!("{}:{number}:{} ({})", device.name, gid.index, show(gid)));
        return Err(ChoiceError::Unknown { name: name.to_owned(), there: names(known, "no address") });
    };
    usable_gid(port, gid).map_err(|why| ChoiceError::Unfit { name: name.to_owned(), why })?;
    Ok((gid, format!("by {}", show(gid))))
}

/// An address with what decides about it.
fn show(gid: &SeenGid) -> String {
    let kind = gid.kind;
    let local = if is_link_local(&gid.gid) && gid.kind != GidKind::InfiniBand { ", link-local" } else { "" };
    let device = gid.network.as_ref().map(|network| format!(", {}", network.name)).unwrap_or_default();
    format!("address {} ({kind}{local}{device}, index {})", show_gid(&gid.gid), gid.index)
}

/// How far a device is from the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Near,
    Unknown,
    Far,
}

fn distance(node: Option<u32>, nodes: &[u32]) -> Distance {
    match node {
        Some(node) if nodes.contains(&node) => Distance::Near,
        Some(_) if !nodes.is_empty() => Distance::Far,
        _ => Distance::Unknown,
    }
}

fn words_of(distance: Distance) -> &'static str {
    match distance {
        Distance::Near => "; on a worker's NUMA node",
        Distance::Unknown => "",
        Distance::Far => "; on a NUMA node without workers",
    }
}

#[cfg(test)]
mod tests;
