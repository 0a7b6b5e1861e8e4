//! Graphics processors: devices, driver, access, libcuda, peer memory.

use crate::finding::{By, Finding, Mend};
use crate::host::{Host, Rights};
use crate::parse::{count, listed};
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Gpu;
const PCI: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
const VERSION: &str = "/proc/driver/nvidia/version";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let on_bus = on_bus(host);
    let driver = host.text(VERSION);
    let mut findings = vec![devices(on_bus, driver.is_some())];
    if on_bus > 0 || driver.is_some() {
        findings.extend([
            version(host, driver.as_deref()),
            files(host),
            library(host),
            peer_memory(host, driver.as_deref()),
        ]);
    }
    findings
}

fn missing(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::missing(TOPIC, name, found).on(&[Way::Cuda])
}

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::ok(TOPIC, name, found).on(&[Way::Cuda])
}

/// Display and compute devices of the vendor on the bus.
fn on_bus(host: &Host) -> usize {
    let is_one = |name: &&String| {
        let word = |file: &str| host.word(format!("{PCI}/{name}/{file}")).unwrap_or_default();
        word("vendor") == NVIDIA && word("class").starts_with("0x03")
    };
    host.names(PCI).iter().filter(is_one).count()
}

fn devices(on_bus: usize, has_driver: bool) -> Finding {
    const NAME: &str = "devices";
    match (on_bus, has_driver) {
        (0, false) => missing(NAME, "no NVIDIA device, and no driver").means("no memory of graphics processors").mend(
            Mend::advice(By::Outside, "a container: start it with `docker run --gpus all …`; a machine: it has none"),
        ),
        (0, true) => ok(NAME, "the driver is here, but the bus does not show its devices"),
        (number, _) => ok(NAME, count(number, "NVIDIA device")),
    }
}

fn version(host: &Host, driver: Option<&str>) -> Finding {
    const NAME: &str = "driver";
    let Some(text) = driver else {
        return missing(NAME, "not loaded")
            .means("the device cannot be used")
            .mend(host.as_root("modprobe nvidia   # after installing NVIDIA's driver for this kernel"));
    };
    let is_number = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match text.lines().next().and_then(|line| line.split_whitespace().find(is_number)) {
        Some(number) => ok(NAME, number),
        None => Finding::unknown(TOPIC, NAME, format!("{VERSION} does not name it")).on(&[Way::Cuda]),
    }
}

fn files(host: &Host) -> Finding {
    const NAME: &str = "access";
    let names = host.names("/dev");
    let numbered = |name: &&String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let mut wanted = vec!["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()];
    let devices: Vec<String> = names.iter().filter(numbered).map(|name| format!("/dev/{name}")).collect();
    if devices.is_empty() {
        wanted.push("/dev/nvidia0".to_owned());
    }
    wanted.extend(devices);
    let absent: Vec<&str> = wanted.iter().map(String::as_str).filter(|path| !host.exists(path)).collect();
    if !absent.is_empty() {
        let finding = missing(NAME, format!("no {}", listed(&absent))).means("programs cannot reach the device");
        let container = Mend::outside("docker run --gpus all …");
        let here = host.as_root("nvidia-modprobe -u -c 0");
        return finding.mend(if host.in_container() { container } else { here });
    }
    let barred = wanted.iter().filter(|path| host.system().may(&host.at(path), Rights::ReadWrite).is_err());
    let barred: Vec<&str> = barred.map(String::as_str).collect();
    if barred.is_empty() {
        return ok(NAME, listed(&wanted));
    }
    missing(NAME, format!("this user may not use {}", listed(&barred)))
        .means("programs of this user cannot reach the device")
        .mend(host.as_root(&format!("chmod a+rw {}", barred.join(" "))))
}

fn library(host: &Host) -> Finding {
    const NAME: &str = "libcuda";
    match host.libraries().find("libcuda.so.1") {
        Some(path) => ok(NAME, path.display().to_string()),
        None => {
            missing(NAME, "no libcuda.so.1").means("programs cannot talk to the driver").mend(if host.in_container() {
                Mend::outside("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …")
            } else {
                Mend::advice(By::Root, "install the user libraries of the same version as the driver (`driver` above)")
            })
        }
    }
}

/// Whether network cards can reach the device's memory.
fn peer_memory(host: &Host, driver: Option<&str>) -> Finding {
    const NAME: &str = "peer memory";
    // The second is what the first was called before it came with the driver.
    for (module, name) in [("nvidia_peermem", "nvidia-peermem"), ("nv_peer_mem", "nv_peer_mem")] {
        if host.exists(format!("/sys/module/{module}")) {
            return Finding::ok(TOPIC, NAME, format!("by {name}"));
        }
    }
    if driver.is_some_and(|text| text.contains("Open Kernel Module")) {
        return Finding::ok(TOPIC, NAME, "by dma-buf (the driver's open kernel module)");
    }
    Finding::limited(TOPIC, NAME, "neither nvidia-peermem nor the driver's open kernel module")
        .means("RDMA cards cannot reach the device's memory: what goes between hosts takes a copy through this one's")
        .on(&[Way::Cuda])
        .mend(host.as_root("modprobe nvidia-peermem"))
}
