//! Devices and libraries of paths that are not in this release: named, but never held against it.

use std::ffi::OsString;
use std::path::PathBuf;

use penstock_doctor::{Call, Finding, Refusal, Status, Topic, Way};

use crate::fixture::{Fixture, assert_finding};

const EACCES: i32 = 13;

/// What a path lacks.
fn lacks(host: &Fixture, way: Way) -> Vec<String> {
    let report = host.report();
    assert!(report.ok, "{}", report.to_text());
    report.paths.into_iter().find(|path| path.path == way).unwrap().lacks
}

#[test]
fn rdma_libraries_that_are_not_installed_are_named_with_the_package() {
    let mut host = Fixture::new();
    host.remove("/usr/lib/libibverbs.so.1");
    let mend = "sudo apt-get install -y libibverbs1 ibverbs-providers";
    assert_finding(&host.one(Topic::Rdma, "libraries"), Status::Missing, "no libibverbs.so.1", mend);
    assert_eq!(lacks(&host, Way::Verbs), ["rdma: libraries"]);
    host.write("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
    assert_finding(&host.one(Topic::Rdma, "libraries"), Status::Missing, "", "sudo dnf install -y libibverbs");
    // Where the loader is told to look, or the cache says, they are found.
    host.write("/opt/rdma/libibverbs.so.1", "");
    host.system.variables.insert("LD_LIBRARY_PATH", OsString::from("/opt/rdma"));
    assert_eq!(lacks(&host, Way::Verbs), [""; 0]);
    host.system.variables.clear();
    host.write("/etc/ld.so.cache", "glibc-ld.so.cache1.1\0libibverbs.so.1\0/opt/rdma/libibverbs.so.1\0");
    assert_eq!(lacks(&host, Way::Verbs), [""; 0]);
    host.remove("/opt/rdma");
    assert_eq!(lacks(&host, Way::Verbs), ["rdma: libraries"], "a cache that is older than the folder is not believed");
}

#[test]
fn rdma_libraries_that_do_not_open_or_are_too_old_say_why() {
    let mut host = Fixture::new();
    host.system.rdma_libraries = "absent libibverbs.so.1 cannot be opened (file too short)\n".to_owned();
    let finding = host.one(Topic::Rdma, "libraries");
    assert_finding(&finding, Status::Missing, "file too short", "apt-get install -y libibverbs1");
    host.system.rdma_libraries = "device mlx5_0\nlacks ibv_reg_dmabuf_mr\nlacks ibv_set_ece\n".to_owned();
    let finding = host.one(Topic::Rdma, "libraries");
    assert_finding(&finding, Status::Limited, "without ibv_reg_dmabuf_mr and ibv_set_ece", "rdma-core 44");
    assert!(finding.means.unwrap().contains("graphics processors"));
    assert_eq!(lacks(&host, Way::Verbs), [""; 0]);
    // What only the connection manager needs is nobody's fault.
    let absence = "unmanaged librdmacm.so.1 cannot be opened (no such file): install librdmacm1\n";
    host.system.rdma_libraries = format!("device mlx5_0\n{absence}");
    let finding = host.report().find(Topic::Rdma, "libraries").unwrap().clone();
    assert_eq!((finding.status, finding.mends.len()), (Status::Ok, 0), "{finding:?}");
    assert!(finding.found.contains("verbs_connect: cm") && finding.found.contains("librdmacm1"), "{finding:?}");
    assert_eq!(lacks(&host, Way::Verbs), [""; 0]);
    host.system.rdma_libraries = "device mlx5_0\n".to_owned();
    host.remove("/usr/lib/librdmacm.so.1");
    assert_eq!(lacks(&host, Way::Verbs), [""; 0], "nor is the file that is not there");
    host.system.refused.insert(Call::RdmaLibraries, Refusal::Untried("nobody can".to_owned()));
    let finding = host.report().find(Topic::Rdma, "libraries").unwrap().clone();
    assert_eq!((finding.status, finding.found.contains("nobody can")), (Status::Unknown, true), "{finding:?}");
    host.system.refused.insert(Call::RdmaLibraries, Refusal::Killed(31));
    let finding = host.report().find(Topic::Rdma, "libraries").unwrap().clone();
    assert_finding(&finding, Status::Missing, "a seccomp filter kills whoever tries", "must let it make");
    assert_eq!(lacks(&host, Way::Verbs), ["rdma: libraries"]);
}

#[test]
fn a_device_that_the_library_has_no_driver_for_is_named() {
    let mut host = Fixture::new();
    host.system.rdma_libraries = "device other\n".to_owned();
    let mend = "sudo apt-get install -y ibverbs-providers";
    assert_finding(&host.one(Topic::Rdma, "providers"), Status::Missing, "no driver for mlx5_0, of 1 device", mend);
    assert_eq!(lacks(&host, Way::Verbs), ["rdma: providers"]);
    host.system.rdma_libraries = "deviceless Function not implemented\n".to_owned();
    let finding = host.one(Topic::Rdma, "providers");
    assert_finding(&finding, Status::Missing, "Function not implemented", "sudo modprobe ib_uverbs");
    host.system.rdma_libraries = "device mlx5_0\n".to_owned();
    host.write("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
    assert_finding(&host.one(Topic::Rdma, "providers"), Status::Limited, "no driver for rxe0, of 2 devices", mend);
}

#[test]
fn a_port_without_an_ip_address_is_named_with_its_card() {
    let host = Fixture::new();
    let addresses = |host: &Fixture| host.report().find(Topic::Rdma, "addresses").cloned();
    assert_eq!(addresses(&host).unwrap().found, "mlx5_0/1: 10.0.0.1");
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    // The old version of RoCE does not travel by IP.
    host.write(&format!("{port}/gid_attrs/types/1"), "IB/RoCE v1\n");
    let finding = host.one(Topic::Rdma, "addresses");
    assert_finding(&finding, Status::Limited, "none of RoCE v2 at mlx5_0/1", "ip address add 192.168.7.1/24 dev ens1");
    host.write("/sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    assert_eq!(addresses(&host), None, "iWARP has addresses of its own");
    host.remove("/sys/class/infiniband/mlx5_0/node_type");
    host.write(&format!("{port}/link_layer"), "InfiniBand\n");
    assert_eq!(addresses(&host), None, "a fabric has other addresses");
}

fn rails(host: &Fixture) -> Finding {
    host.report().find(Topic::Rdma, "rails").expect("there are devices").clone()
}

#[test]
fn ports_are_listed_with_whether_they_are_used_and_why() {
    let mut host = Fixture::new();
    host.write("/sys/class/infiniband/mlx5_1/node_type", "1: CA\n");
    host.write("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    host.write("/sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
    host.write("/sys/class/infiniband/irdma0/node_type", "4: RNIC\n");
    host.write("/sys/class/infiniband/irdma0/device/numa_node", "1\n");
    host.system.rdma_libraries = "device irdma0\ndevice mlx5_0\ndevice mlx5_1\n".to_owned();
    let found = rails(&host);
    assert_eq!((found.status, found.found.as_str()), (Status::Ok, "1 port used, 2 not"), "{found:?}");
    let names: Vec<_> = found.ports.iter().map(|port| (port.name.as_str(), port.used)).collect();
    assert_eq!(names, [("mlx5_0:1", true), ("irdma0", false), ("mlx5_1:1", false)]);
    let used = &found.ports[0];
    assert_eq!(
        (used.address.as_deref(), used.speaks.as_deref(), used.gid_index),
        (Some("10.0.0.1"), Some("RoCE v2"), Some(1))
    );
    assert_eq!(
        (used.netdev.as_deref(), used.node, used.bits_per_second),
        (Some("ens1"), Some(0), Some(100_000_000_000))
    );
    assert!(
        used.why.contains("better than address fe80::202:c9ff:fe00:1 (RoCE v2, link-local, ens1, index 0)"),
        "{found:?}"
    );
    assert!(found.ports[1].why.contains("4: RNIC") && found.ports[1].node == Some(1), "{found:?}");
    assert!(found.ports[2].why.contains("1: DOWN"), "{found:?}");
    let text = host.report().to_text();
    assert!(text.contains("mlx5_0:1  used      ens1  node 0  100 Gb/s   10.0.0.1 by RoCE v2\n"), "{text}");
    assert!(text.contains("irdma0    not used  -     node 1  -\n"), "{text}");
    let json = serde_json::to_value(&found).expect("a finding is JSON");
    assert_eq!(json["ports"][0]["netdev"], "ens1");
    let well = host.report().find(Topic::Rdma, "devices").cloned().expect("it is looked at");
    assert!(serde_json::to_value(&well).expect("JSON").get("ports").is_none(), "only where it is about ports");
}

#[test]
fn the_choice_is_that_of_the_configuration() {
    let mut host = Fixture::new();
    host.asked.devices = vec!["mlx5_7".to_owned()];
    let finding = host.one(Topic::Rdma, "rails");
    assert_finding(
        &finding,
        Status::Broken,
        "there is no `mlx5_7` here; there is mlx5_0",
        "`transports.verbs_devices`",
    );
    assert!(!host.report().ok, "an engine of this configuration does not start");
    host.asked.devices = vec!["mlx5_0:1:0".to_owned()];
    assert_eq!(rails(&host).ports[0].gid_index, Some(0));
    host.asked.devices = vec!["a:b".to_owned()];
    assert!(rails(&host).found.contains("`a:b` names no card"), "{:?}", rails(&host));
    host.asked.devices.clear();
    // The workers' cores decide among cards: those of another node come later.
    for (core, node) in [(0, 1), (1, 1)] {
        host.write(&format!("/sys/devices/system/cpu/cpu{core}/node{node}/x"), "");
    }
    assert!(rails(&host).ports[0].why.ends_with("on a NUMA node without workers"), "{:?}", rails(&host));
}

#[test]
fn devices_of_which_nothing_can_be_used_say_so() {
    let host = Fixture::new();
    host.write("/sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    let finding = host.one(Topic::Rdma, "rails");
    assert_finding(&finding, Status::Missing, "neither InfiniBand nor RoCE", "switch it over");
    assert!(!finding.ports[0].used && finding.ports[0].why.contains("4: RNIC"), "{finding:?}");
    host.write("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    // What another finding mends is listed, and not held against the host twice.
    host.write("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    assert_eq!((rails(&host).status, rails(&host).found.as_str()), (Status::Ok, "none"));
    assert!(rails(&host).ports[0].why.contains("1: DOWN"));
}

#[test]
fn a_host_without_rdma_devices_is_told_of_each_layer() {
    let host = Fixture::new();
    host.remove("/sys/class/infiniband");
    host.remove("/sys/module/ib_uverbs");
    host.edit(
        "/proc/4711/limits",
        "Max locked memory         unlimited            unlimited ",
        "Max locked memory         8388608              8388608   ",
    );
    let finding = host.report().find(Topic::Rdma, "devices").cloned().expect("it is looked at");
    assert_finding(&finding, Status::Missing, "ib_uverbs is not loaded", "vendor's driver");
    let mends: Vec<&str> = finding.mends.iter().map(penstock_doctor::Mend::text).collect();
    for layer in ["rdma link add rxe0", "modprobe ib_uverbs", "memlock"] {
        assert!(mends.iter().any(|mend| mend.contains(layer)), "{layer}: {mends:?}");
    }
    host.remove("/sys/module");
    let finding = host.report().find(Topic::Rdma, "devices").cloned().expect("it is looked at");
    assert!(finding.found.contains("no drivers are loaded"), "{finding:?}");
}

#[test]
fn a_host_without_rdma_devices_is_named_with_a_way_to_try_it() {
    let host = Fixture::new();
    host.remove("/sys/class/infiniband");
    let finding = host.one(Topic::Rdma, "devices");
    assert_finding(&finding, Status::Missing, "none, though the drivers are loaded", "vendor's driver");
    assert!(finding.mends[1].text().contains("rdma link add rxe0 type rxe netdev ens1"), "{finding:?}");
}

#[test]
fn a_port_that_is_down_is_named_with_its_network_card() {
    let host = Fixture::new();
    host.write("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    let found = "mlx5_0/1 is DOWN (Ethernet)";
    assert_finding(&host.one(Topic::Rdma, "ports"), Status::Missing, found, "sudo ip link set ens1 up");
    host.write("/sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
    assert_eq!(host.report().find(Topic::Rdma, "ports").unwrap().status, Status::Limited);
    host.remove("/sys/class/infiniband/mlx5_0/device");
    host.write("/sys/class/infiniband/mlx5_0/parent", "ens2\n");
    assert!(host.report().find(Topic::Rdma, "ports").unwrap().mends[0].text().ends_with("ip link set ens2 up"));
    host.write("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    assert!(host.report().find(Topic::Rdma, "ports").unwrap().mends[0].text().contains("subnet manager"));
}

#[test]
fn device_files_that_are_absent_or_barred_are_named() {
    let mut host = Fixture::new();
    host.system.barred.insert(PathBuf::from("/dev/infiniband/uverbs0"), EACCES);
    let mend = "sudo chmod a+rw /dev/infiniband/uverbs0";
    assert_finding(&host.one(Topic::Rdma, "access"), Status::Missing, "may not use /dev/infiniband/uverbs0", mend);
    host.system.barred.clear();
    host.system.barred.insert(PathBuf::from("/dev/infiniband/rdma_cm"), EACCES);
    let of_manager = |host: &Fixture| host.report().find(Topic::Rdma, "access").unwrap().clone();
    let finding = of_manager(&host);
    assert_eq!((finding.status, finding.mends.len()), (Status::Ok, 0), "{finding:?}");
    assert!(finding.found.contains("not /dev/infiniband/rdma_cm, which `transports.verbs_connect: cm`"), "{finding:?}");
    host.remove("/dev/infiniband/rdma_cm");
    let finding = of_manager(&host);
    assert_eq!((finding.status, finding.found.contains("modprobe rdma_ucm")), (Status::Ok, true), "{finding:?}");
    assert_eq!(lacks(&host, Way::Verbs), [""; 0]);
    host.remove("/dev/infiniband");
    assert_finding(
        &host.one(Topic::Rdma, "access"),
        Status::Missing,
        "no /dev/infiniband/uverbs*",
        "modprobe ib_uverbs",
    );
}

#[test]
fn each_thing_that_dpdk_lacks_is_named() {
    let mut host = Fixture::new();
    host.remove("/usr/lib/librte_eal.so.24.0");
    assert_finding(&host.one(Topic::Dpdk, "libraries"), Status::Missing, "no librte_eal.so", "apt-get install -y dpdk");
    host.system.refused.insert(Call::DpdkShim, Refusal::Untried("libpenstock-dpdk.so.1 cannot be opened".to_owned()));
    host.remove("/sys/bus/pci/drivers/vfio-pci/0000:41:00.0");
    host.remove("/dev/vfio");
    host.remove("/sys/kernel/iommu_groups");
    host.edit("/proc/4711/mountinfo", "hugetlbfs hugetlbfs", "tmpfs tmpfs");
    let names = ["shim", "libraries", "devices", "vfio", "iommu", "huge page mount"];
    let findings = host.only(&names.map(|name| (Topic::Dpdk, name)));
    let mends = ["make dpdk", "dpdk", "dpdk-devbind.py", "modprobe vfio-pci", "intel_iommu=on", "mount -t hugetlbfs"];
    for (finding, mend) in findings.iter().zip(mends) {
        assert_finding(finding, Status::Missing, "", mend);
    }
    assert_eq!(lacks(&host, Way::Dpdk), names.map(|name| format!("dpdk: {name}")));
}

#[test]
fn a_gpu_without_driver_library_or_rights_is_named() {
    let mut host = Fixture::new();
    let well = host.system.cuda_driver.clone();
    assert_eq!(host.report().find(Topic::Gpu, "libcuda").unwrap().found, "of CUDA 12.8");
    assert!(host.report().find(Topic::Gpu, "device").unwrap().found.contains("H100, 80 GiB"));
    host.system.cuda_driver = "absent libcuda.so.1 cannot be opened (no such file)\n".to_owned();
    assert_finding(&host.one(Topic::Gpu, "libcuda"), Status::Missing, "cannot be opened", "same version as the driver");
    host.system.cuda_driver = format!("{well}without 0 compute\n");
    let report = host.report();
    let mut findings = report.findings.iter().filter(|finding| finding.name == "device");
    let finding = findings.next_back().expect("the device is described, and then what it cannot");
    assert_finding(finding, Status::Limited, "0 may be used by no process", "nvidia-smi -i 0 -c DEFAULT");
    host.system.cuda_driver = well.replace(" descriptors", "");
    assert_finding(
        &host.one(Topic::Gpu, "ipc"),
        Status::Limited,
        "0 can pass its memory by legacy handles, and",
        "vGPU",
    );
    host.system.cuda_driver = format!("{well}memory 0000:17:00.0 {}\n", 80_u64 << 30);
    assert!(host.report().find(Topic::Gpu, "window").is_none(), "the bus does not say");
    let regions = |last: &str| format!("0x90000000 0x90ffffff 0x40200\n0x200000000000 {last} 0x14220c\n0x0 0x0 0x0\n");
    host.write("/sys/bus/pci/devices/0000:17:00.0/resource", &regions("0x20000fffffff"));
    let finding = host.report().find(Topic::Gpu, "window").unwrap().clone();
    assert_finding(&finding, Status::Limited, "256 MiB of 80 GiB at 0000:17:00.0", "Resizable BAR");
    host.write("/sys/bus/pci/devices/0000:17:00.0/resource", &regions("0x201fffffffff"));
    assert!(host.report().find(Topic::Gpu, "window").unwrap().found.contains("all of the memory"));
    host.remove("/sys/bus/pci/devices/0000:17:00.0");
    host.system.cuda_driver = "cuda 12.4\nlacks cuMemcpyBatchAsync\ndeviceless no device\n".to_owned();
    assert_finding(
        host.report().find(Topic::Gpu, "functions").unwrap(),
        Status::Limited,
        "lacks cuMemcpyBatchAsync",
        "newer driver",
    );
    let report = host.report();
    let finding = report.find(Topic::Gpu, "start").expect("it did not start");
    assert_eq!((finding.status, finding.found.as_str()), (Status::Missing, "no device"));
    host.system.cuda_driver = well;
    host.system.barred.insert(PathBuf::from("/dev/nvidia0"), EACCES);
    assert_finding(
        &host.one(Topic::Gpu, "access"),
        Status::Missing,
        "may not use /dev/nvidia0",
        "chmod a+rw /dev/nvidia0",
    );
    host.remove("/dev/nvidia-uvm");
    assert_finding(&host.one(Topic::Gpu, "access"), Status::Missing, "no /dev/nvidia-uvm", "nvidia-modprobe");
    host.write("/dev/nvidia-uvm", "");
    host.system.barred.clear();
    host.remove("/sys/module/nvidia_peermem");
    assert_finding(&host.one(Topic::Gpu, "peer memory"), Status::Limited, "neither", "sudo modprobe nvidia-peermem");
    host.write("/sys/module/nv_peer_mem/refcnt", "0\n");
    assert_eq!(host.report().find(Topic::Gpu, "peer memory").unwrap().found, "by nv_peer_mem");
    host.remove("/sys/module/nv_peer_mem");
    host.edit("/proc/driver/nvidia/version", "Kernel Module", "Open Kernel Module for x86_64");
    assert_eq!(host.report().find(Topic::Gpu, "driver").unwrap().found, "550.54.15");
    assert!(host.report().find(Topic::Gpu, "peer memory").unwrap().found.contains("dma-buf"));
    host.remove("/proc/driver");
    let finding = host.report().find(Topic::Gpu, "driver").unwrap().clone();
    assert_finding(&finding, Status::Missing, "not loaded", "modprobe nvidia");
    host.remove("/sys/bus/pci/devices");
    assert_finding(&host.one(Topic::Gpu, "devices"), Status::Missing, "no NVIDIA device", "--gpus all");
}

#[test]
fn a_device_that_is_named_where_there_is_none_is_held_against_the_host() {
    let mut host = Fixture::new();
    host.remove("/sys/class/infiniband");
    assert!(host.report().find(Topic::Rdma, "rails").is_none(), "nobody asked");
    host.asked.devices = vec!["mlx5_0:1".to_owned()];
    let report = host.report();
    let finding = report.find(Topic::Rdma, "rails").expect("somebody asked");
    assert_finding(finding, Status::Broken, "there is no `mlx5_0` here", "`transports.verbs_devices`");
    assert!(!report.ok, "an engine of this configuration does not start");
}
