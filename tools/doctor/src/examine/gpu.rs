//! Graphics processors: devices, driver, access, peer memory, and what libcuda says.

use super::limits;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host, Rights};
use crate::parse::{count, listed, size};
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Gpu;
const PCI: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
const VERSION: &str = "/proc/driver/nvidia/version";
/// What a limit of locked memory means for pools that devices copy from and to.
const PINNED: &str = "NVIDIA's driver did not hold pinned pools against it where that was measured, as root; where one does, pools beyond this, all \
                      together, are refused when a plan to a device is built";
/// Names a library in place of libcuda.so.1.
const PATH_VARIABLE: &str = penstock_cuda::PATH_VARIABLE;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let on_bus = on_bus(host);
    let driver = host.text(VERSION);
    let is_replaced = host.system().variable(PATH_VARIABLE).is_some();
    let mut findings = vec![devices(on_bus, driver.is_some(), is_replaced)];
    if on_bus > 0 || driver.is_some() {
        findings.extend([version(host, driver.as_deref()), files(host), peer_memory(host, driver.as_deref())]);
    }
    // Another library in place of libcuda is a driver, too.
    if on_bus > 0 || driver.is_some() || is_replaced {
        findings.extend(library(host));
        let locked = limits::lockable(host, TOPIC).map(|finding| finding.means_if_limited(PINNED).on(&[Way::Cuda]));
        findings.extend(locked);
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

fn devices(on_bus: usize, has_driver: bool, is_replaced: bool) -> Finding {
    const NAME: &str = "devices";
    match (on_bus, has_driver) {
        (0, false) if is_replaced => {
            ok(NAME, format!("none on the bus; {PATH_VARIABLE} names a library in place of the driver"))
        }
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

/// What the library says that engines would reach the driver through.
fn library(host: &Host) -> Vec<Finding> {
    const NAME: &str = "libcuda";
    let seen = match host.try_call(Call::CudaDriver) {
        Ok(seen) => seen,
        Err(refusal) => return vec![missing(NAME, refusal.to_string()).means("programs cannot talk to the driver")],
    };
    let of = |word: &str| {
        seen.lines().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' ')).collect::<Vec<_>>()
    };
    if let [why, ..] = of("absent")[..] {
        let mend = if host.system().variable(PATH_VARIABLE).is_some() {
            Mend::advice(
                By::You,
                "PENSTOCK_CUDA_DRIVER names it: unset the variable, or name a CUDA driver of release 12.2 or newer",
            )
        } else if host.in_container() {
            Mend::outside("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …")
        } else {
            Mend::advice(By::Root, "install the user libraries of the same version as the driver (`driver` above)")
        };
        return vec![missing(NAME, why).means("programs cannot talk to the driver").mend(mend)];
    }
    let mut findings: Vec<_> = of("cuda").iter().map(|release| ok(NAME, format!("of CUDA {release}"))).collect();
    let (batches, others): (Vec<&str>, Vec<&str>) = of("lacks").into_iter().partition(|name| name.contains("Batch"));
    let lacking =
        [(batches, "copies are handed over one by one"), (others, "no pools of its memory, or none that cards reach")];
    for (lacks, means) in lacking.into_iter().filter(|(lacks, _)| !lacks.is_empty()) {
        let finding = Finding::limited(TOPIC, "functions", format!("the driver lacks {}", listed(&lacks)));
        let mend = Mend::advice(By::Root, "install a newer driver (CUDA 12.8 has all of them)");
        findings.push(finding.means(means).on(&[Way::Cuda]).mend(mend));
    }
    for why in of("deviceless") {
        findings.push(missing("start", why).means("no memory of graphics processors can be used"));
    }
    findings.extend(of("device").iter().map(|device| ok("device", *device)));
    let memories = of("memory");
    let memories = memories.iter().filter_map(|line| line.split_once(' '));
    findings.extend(memories.filter_map(|(place, bytes)| window(host, place, bytes.parse().ok()?)));
    findings.extend(of("passes").iter().map(|line| ipc(line)));
    for (number, what) in of("without").iter().filter_map(|line| line.split_once(' ')) {
        let (found, means) = match what {
            "vmm" => ("cannot make and map memory by itself", "no pools of its memory"),
            "dma-buf" => ("has no dma-buf", "RDMA cards reach its memory by nvidia-peermem, or not at all"),
            _ => ("may be used by no process", "its memory is out of reach"),
        };
        let finding = Finding::limited(TOPIC, "device", format!("{number} {found}")).means(means).on(&[Way::Cuda]);
        let mend = (what == "compute").then(|| host.as_root(&format!("nvidia-smi -i {number} -c DEFAULT")));
        findings.push(finding.mends(mend));
    }
    findings
}

/// How memory of a device can be passed to other processes. `line`: its number, and each way.
fn ipc(line: &str) -> Finding {
    const NAME: &str = "ipc";
    let (number, ways) = line.split_once(' ').unwrap_or((line, ""));
    let has = |way: &str| ways.split(' ').any(|has| has == way);
    let (found, means) = match (has("descriptors"), has("legacy")) {
        (true, true) => {
            return ok(
                NAME,
                format!(
                    "{number} can pass its memory to other processes: as file descriptors (VMM), and by legacy handles"
                ),
            );
        }
        (true, false) => {
            ("can pass its memory as file descriptors (VMM), and not by legacy handles", "memory of `cudaMalloc`")
        }
        (false, true) => {
            ("can pass its memory by legacy handles, and not as file descriptors (VMM)", "memory of pools")
        }
        (false, false) => {
            ("can pass its memory to no other process: neither file descriptors (VMM) nor legacy handles", "its memory")
        }
    };
    let means = format!("{means} stays within a process; this release passes none anyhow");
    let advice = "use a driver for Linux on the machine itself, or in a virtual one that has the whole device: WSL and shares of a device (vGPU) lack it";
    Finding::limited(TOPIC, NAME, format!("{number} {found}"))
        .means(means)
        .on(&[Way::Cuda])
        .mend(Mend::advice(By::Outside, advice))
}

/// How much of a device's memory the bus shows at once: what network cards can have registered of it.
fn window(host: &Host, place: &str, bytes: u64) -> Option<Finding> {
    const NAME: &str = "window";
    // A line for each region: first and last address, flags. Memory is in the second.
    let resource = host.text(format!("{PCI}/{place}/resource"))?;
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut words = resource.lines().nth(1)?.split_whitespace().map_while(number);
    let (first, last) = (words.next()?, words.next()?);
    let shown = last.checked_sub(first)?.checked_add(1)?;
    if shown >= bytes {
        return Some(ok(NAME, format!("the bus shows all of the memory at {place} (BAR 1, {})", size(shown))));
    }
    let found = format!("the bus shows {} of {} at {place} (BAR 1)", size(shown), size(bytes));
    let mend = Mend::advice(By::Outside, "firmware: switch on `Above 4G Decoding` and `Resizable BAR`");
    let means = "RDMA cards can have no more of it registered at once; nothing else needs it";
    Some(Finding::limited(TOPIC, NAME, found).means(means).on(&[Way::Cuda]).mend(mend))
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
