//! DPDK: libraries, devices handed to programs, IOMMU, huge pages.

use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host, Rights};
use crate::parse::listed;
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Dpdk;
const DRIVERS: &str = "/sys/bus/pci/drivers";
/// Drivers that hand a device to a program.
const HANDING: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];
const CONTAINER: &str = "/dev/vfio/vfio";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    vec![shim(host), libraries(host), devices(host), access(host), iommu(host), pages(host)]
}

fn missing(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::missing(TOPIC, name, found).on(&[Way::Dpdk])
}

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::ok(TOPIC, name, found).on(&[Way::Dpdk])
}

/// What engines reach DPDK through.
fn shim(host: &Host) -> Finding {
    const NAME: &str = "shim";
    let seen = host.try_call(Call::DpdkShim);
    let why = match &seen {
        Ok(words) => words.strip_prefix("absent ").map(str::to_owned),
        Err(refusal) => Some(refusal.to_string()),
    };
    match why {
        None => {
            let release = seen.unwrap_or_default();
            ok(NAME, format!("the library between Penstock and DPDK opens, built for {release}"))
        }
        Some(why) => missing(NAME, why)
            .means("no engine sends through DPDK, virtual devices included")
            .mend(host.as_root("make dpdk   # in Penstock's sources; then set PENSTOCK_DPDK_SHIM as it says")),
    }
}

fn libraries(host: &Host) -> Finding {
    const NAME: &str = "libraries";
    match host.libraries().find("librte_eal.so") {
        Some(path) => ok(NAME, path.display().to_string()),
        None => missing(NAME, "no librte_eal.so")
            .means("no network card can be driven by a program through DPDK")
            .mend(host.install("dpdk libdpdk-dev", "dpdk dpdk-devel")),
    }
}

/// Network cards that were taken from the kernel and given to programs.
fn devices(host: &Host) -> Finding {
    const NAME: &str = "devices";
    let handed = HANDING.iter().flat_map(|driver| {
        let names = host.names(format!("{DRIVERS}/{driver}"));
        let names = names.into_iter().filter(|name| name.contains(':') && name.contains('.'));
        names.map(|name| format!("{name} ({driver})")).collect::<Vec<_>>()
    });
    let handed: Vec<String> = handed.collect();
    if !handed.is_empty() {
        return ok(NAME, listed(&handed));
    }
    missing(NAME, "no device is handed to programs")
        .means("DPDK finds no card of its own (a card whose driver shares it with the kernel, such as mlx5, needs no handing)")
        .mend(host.as_root("dpdk-devbind.py -b vfio-pci ADDRESS   # `dpdk-devbind.py -s` lists addresses"))
}

fn access(host: &Host) -> Finding {
    const NAME: &str = "vfio";
    if !host.exists(CONTAINER) {
        let finding = missing(NAME, format!("no {CONTAINER}")).means("devices cannot be handed to programs safely");
        return finding.mend(host.as_root("modprobe vfio-pci"));
    }
    match host.system().may(&host.at(CONTAINER), Rights::ReadWrite) {
        Ok(()) => ok(NAME, format!("{CONTAINER} can be used")),
        Err(error) => missing(NAME, format!("this user may not use {CONTAINER} ({error})"))
            .means("devices cannot be handed to programs of this user")
            .mend(host.as_root(&format!("chmod a+rw {CONTAINER}"))),
    }
}

fn iommu(host: &Host) -> Finding {
    const NAME: &str = "iommu";
    let groups = host.names("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return ok(NAME, format!("on ({groups} groups)"));
    }
    missing(NAME, "off, or there is none")
        .means("a device that is handed to a program could write anywhere in memory")
        .mend(Mend::advice(
            By::Root,
            "boot with `intel_iommu=on iommu=pt` (AMD: `amd_iommu=on iommu=pt`), and switch VT-d or \
                                      AMD-Vi on in the firmware",
        ))
}

fn pages(host: &Host) -> Finding {
    const NAME: &str = "huge page mount";
    let Some(mounts) = host.text("/proc/self/mountinfo") else {
        return Finding::unknown(TOPIC, NAME, "/proc/self/mountinfo cannot be read").on(&[Way::Dpdk]);
    };
    let mount = mounts.lines().find(|line| line.contains(" - hugetlbfs ")).and_then(|line| line.split(' ').nth(4));
    match mount {
        Some(mount) => ok(NAME, mount.to_owned()),
        None => missing(NAME, "hugetlbfs is not mounted")
            .means("DPDK keeps its memory there; how many pages there are, `penstock doctor hugepages` says")
            .mend(host.as_root("sh -c 'mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages'")),
    }
}
