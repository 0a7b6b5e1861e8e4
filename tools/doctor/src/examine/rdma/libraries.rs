//! The libraries: whether they are here, open, know the devices, and what they are too old for.

use super::{FILES, TOPIC, missing, ok};
use crate::examine::refused;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host, Refusal};
use crate::parse::{count, listed};
use crate::way::Way;

const LIBRARY: &str = "libibverbs.so.1";
const MANAGER: &str = "librdmacm.so.1";
const MEANS: &str = "no RDMA between hosts: it is loaded when the path is used";

/// What a companion that opened them told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told<'a> {
    /// Why they cannot be used.
    absent: Option<&'a str>,
    /// The devices that libibverbs has a driver for.
    devices: Vec<&'a str>,
    /// Why it cannot look for devices.
    deviceless: Option<&'a str>,
    /// The functions that are not there.
    lacks: Vec<&'a str>,
    /// Why there is no connection manager.
    unmanaged: Option<&'a str>,
}

impl<'a> Told<'a> {
    fn read(words: &'a str) -> Self {
        let mut told = Self::default();
        for (kind, what) in words.lines().filter_map(|line| line.split_once(' ')) {
            match kind {
                "absent" => told.absent = Some(what),
                "device" => told.devices.push(what),
                "deviceless" => told.deviceless = Some(what),
                "lacks" => told.lacks.push(what),
                "unmanaged" => told.unmanaged = Some(what),
                _ => {}
            }
        }
        told
    }
}

pub(super) fn examine(host: &Host, devices: &[String]) -> Vec<Finding> {
    const NAME: &str = "libraries";
    let install = || host.install("libibverbs1 ibverbs-providers", "libibverbs");
    let lacks = host.libraries().lacks(&[LIBRARY]);
    if !lacks.is_empty() {
        return vec![missing(NAME, format!("no {}", listed(&lacks))).means(MEANS).mend(install())];
    }
    let words = match host.try_call(Call::RdmaLibraries) {
        Ok(words) => words,
        Err(refusal @ Refusal::Untried(_)) => {
            let found = format!("{LIBRARY} is here; whether it opens: {refusal}");
            return vec![Finding::unknown(TOPIC, NAME, found).on(&[Way::Verbs])];
        }
        Err(refusal) => {
            let (why, mends) = refused::why(host, Call::RdmaLibraries, &refusal);
            let finding = missing(NAME, format!("{LIBRARY} cannot be opened: {why}"));
            return vec![finding.means(MEANS).mends(mends).mend(install())];
        }
    };
    let told = Told::read(&words);
    if let Some(why) = told.absent {
        return vec![missing(NAME, why).means(MEANS).mend(install())];
    }
    let mut findings = vec![opened(NAME, &told)];
    // Without device files `access` says what is wrong.
    let has_files = host.names(FILES).iter().any(|name| name.starts_with("uverbs"));
    if !devices.is_empty() && has_files {
        findings.push(drivers(host, devices, &told));
    }
    findings
}

/// It opens. Some functions came later than the libraries themselves. Without the other one only `transports.verbs_connect: cm` cannot be
/// had, which is for those who ask for it: nothing is wrong here.
fn opened(name: &'static str, told: &Told) -> Finding {
    let found = match told.unmanaged {
        None => format!("{LIBRARY} and {MANAGER} open"),
        Some(why) => format!("{LIBRARY} opens; {MANAGER}, for `transports.verbs_connect: cm` alone, does not: {why}"),
    };
    if told.lacks.is_empty() {
        return ok(name, found);
    }
    let loses = match told.lacks.contains(&"ibv_reg_dmabuf_mr") {
        true => "older than what they are used for: among other things, memory of graphics processors is not reached",
        false => "older than what they are used for: what needs these functions is done in another way",
    };
    Finding::limited(TOPIC, name, format!("{found}, without {}", listed(&told.lacks)))
        .means(loses)
        .on(&[Way::Verbs])
        .mend(Mend::advice(By::Root, "install rdma-core 44 or later with this system's package manager"))
}

/// Each card needs a driver in the kernel, and one that libibverbs loads.
fn drivers(host: &Host, devices: &[String], told: &Told) -> Finding {
    const NAME: &str = "providers";
    if let Some(why) = told.deviceless {
        return missing(NAME, format!("libibverbs cannot look for devices: {why}"))
            .means("programs cannot reach the devices")
            .mend(host.as_root("modprobe ib_uverbs"));
    }
    let unknown: Vec<&String> = devices.iter().filter(|device| !told.devices.contains(&device.as_str())).collect();
    if unknown.is_empty() {
        return ok(NAME, format!("libibverbs has a driver for {}", listed(devices)));
    }
    let found = format!("libibverbs has no driver for {}, of {}", listed(&unknown), count(devices.len(), "device"));
    let finding = match unknown.len() == devices.len() {
        true => missing(NAME, found).means("programs cannot reach the devices"),
        false => Finding::limited(TOPIC, NAME, found).means("programs cannot reach these devices").on(&[Way::Verbs]),
    };
    finding.mend(host.install("ibverbs-providers", "libibverbs"))
}

#[cfg(test)]
mod tests {
    use super::Told;

    #[test]
    fn what_a_companion_told_is_read_and_nonsense_is_left_out() {
        let told = Told::read("device mlx5_0\ndevice rxe0\nlacks ibv_set_ece\nnonsense\nmore nonsense\n");
        let expected = Told { devices: vec!["mlx5_0", "rxe0"], lacks: vec!["ibv_set_ece"], ..Told::default() };
        assert_eq!(told, expected);
        assert_eq!(Told::read("absent it is too old\n").absent, Some("it is too old"));
        assert_eq!(Told::read("deviceless Function not implemented\n").deviceless, Some("Function not implemented"));
        assert_eq!(Told::read(""), Told::default());
    }
}
