//! Kernel, processor, clock, nodes, and the report as a whole.

use penstock_doctor::{By, Call, Refusal, Status, Topic, Way};

use crate::fixture::{Fixture, assert_finding};

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

#[test]
fn on_a_well_host_everything_is_well() {
    let report = Fixture::new().report();
    assert!(report.ok && report.findings.iter().all(|finding| finding.status == Status::Ok), "{}", report.to_text());
    for path in &report.paths {
        assert!(path.lacks.is_empty(), "{path:?}");
        assert_eq!((path.offered, path.in_this_release), (path.path.is_released(), path.path.is_released()));
    }
    assert!(report.to_text().contains("\nWhat this release needs works here.\n"), "{}", report.to_text());
}

#[test]
fn a_kernel_without_owners_seals_is_named() {
    let host = Fixture::new();
    host.write("/proc/sys/kernel/osrelease", "4.19.0-26-amd64\n");
    let finding = host.one(Topic::Kernel, "version");
    assert_finding(&finding, Status::Broken, "4.19.0", "boot Linux 5.1 or later");
    let report = host.report();
    assert!(!report.ok);
    assert!(report.paths.iter().all(|path| path.path != Way::Shm || path.lacks == ["kernel: version"]));
    host.write("/proc/sys/kernel/osrelease", "5.10.0\n");
    assert_finding(&host.one(Topic::Kernel, "version"), Status::Limited, "5.10.0", "5.14");
}

#[test]
fn a_kernel_without_pidfds_is_named() {
    let mut host = Fixture::new();
    host.system.refused.insert(Call::Pidfd, Refusal::Errno(ENOSYS));
    let finding = host.one(Topic::Kernel, "pidfd");
    assert_finding(&finding, Status::Missing, "does not have it", "Linux 5.3");
    assert_eq!(finding.paths, [Way::ProcessVm]);
    assert!(host.report().ok, "engines run without");
}

#[test]
fn a_filter_that_forbids_memfds_is_named_with_the_calls_to_let_through() {
    let mut host = Fixture::new();
    host.edit("/proc/4711/status", "Seccomp:\t0\nSeccomp_filters:\t0", "Seccomp:\t2\nSeccomp_filters:\t3");
    assert!(host.report().ok, "a filter alone is no harm: {}", host.report().to_text());
    host.system.refused.insert(Call::SealedMemory, Refusal::Errno(EPERM));
    let findings = host.only(&[(Topic::Kernel, "sealed memory"), (Topic::Seccomp, "filter")]);
    assert_finding(&findings[0], Status::Broken, "a seccomp filter forbids it", "memfd_create, ftruncate");
    assert_finding(&findings[1], Status::Limited, "3 seccomp filters", "memfd_create");
    host.system.refused.insert(Call::SealedMemory, Refusal::Killed(31));
    assert!(host.report().findings[1].found.contains("kills whoever tries"));
}

#[test]
fn in_a_service_the_mend_is_the_services_own() {
    let mut host = Fixture::new();
    host.edit("/proc/4711/status", "Seccomp:\t0", "Seccomp:\t2");
    host.write("/proc/4711/cgroup", "0::/system.slice/decode.service\n");
    host.system.refused.insert(Call::EventFd, Refusal::Errno(EPERM));
    let finding = host.report().find(Topic::Kernel, "event fds").unwrap().clone();
    assert_finding(&finding, Status::Broken, "forbids", "sudo systemctl edit decode.service");
    assert!(finding.mends[0].text().contains("SystemCallFilter=eventfd2"), "{finding:?}");
}

#[test]
fn a_processor_without_wide_copies_is_named() {
    let host = Fixture::new();
    host.edit("/proc/cpuinfo", " avx2 avx512f", "");
    assert_finding(&host.one(Topic::Processor, "instructions"), Status::Limited, "neither AVX2", "-cpu host");
    host.edit("/proc/cpuinfo", "sse2", "sse2 avx2");
    assert!(host.report().findings.iter().any(|finding| finding.found.starts_with("AVX2 copies")));
}

#[test]
fn cores_that_are_barred_are_counted_and_those_that_were_asked_for_named() {
    let mut host = Fixture::new();
    host.edit("/proc/4711/status", "Cpus_allowed_list:\t0-3", "Cpus_allowed_list:\t0");
    host.asked.cores = vec![0];
    assert_finding(&host.one(Topic::Processor, "cores"), Status::Limited, "1 of 4 cores (list 0)", "taskset -pc 0-3");
    host.asked.cores = vec![0, 2];
    let findings = host.only(&[(Topic::Processor, "cores"), (Topic::Processor, "workers.cores")]);
    assert_finding(&findings[1], Status::Limited, "core 2", "name other cores");
}

#[test]
fn a_slow_clock_is_named_with_the_quick_one_that_is_there() {
    let host = Fixture::new();
    host.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    let finding = host.one(Topic::Processor, "clock");
    let mend = "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource";
    assert_finding(&finding, Status::Limited, "hpet", mend);
    assert_eq!(finding.mends[0].by, By::Root);
}

#[test]
fn nodes_that_are_barred_and_pages_that_wander_are_named() {
    let mut host = Fixture::new();
    host.edit("/proc/4711/status", "Mems_allowed_list:\t0-1", "Mems_allowed_list:\t0");
    assert_finding(&host.one(Topic::Numa, "nodes"), Status::Limited, "not for this process: 1", "cpuset.mems");
    host.edit("/proc/4711/status", "Mems_allowed_list:\t0", "Mems_allowed_list:\t0-1");
    host.write("/proc/sys/kernel/numa_balancing", "1\n");
    let mend = "sudo sysctl -w kernel.numa_balancing=0";
    assert_finding(&host.one(Topic::Numa, "balancing"), Status::Limited, "moves pages", mend);
    host.write("/proc/sys/kernel/numa_balancing", "0\n");
    host.system.refused.insert(Call::NodePolicy, Refusal::Errno(ENOSYS));
    assert_finding(&host.one(Topic::Numa, "placing"), Status::Limited, "cannot ask", "CONFIG_NUMA");
}

#[test]
fn rings_that_are_switched_off_are_named() {
    let mut host = Fixture::new();
    host.system.refused.insert(Call::IoUring, Refusal::Errno(EPERM));
    host.write("/proc/sys/kernel/io_uring_disabled", "2\n");
    let mend = "sudo sysctl -w kernel.io_uring_disabled=0";
    assert_finding(&host.one(Topic::IoUring, "rings"), Status::Missing, "for everybody", mend);
    host.write("/proc/sys/kernel/io_uring_disabled", "1\n");
    assert_finding(&host.one(Topic::IoUring, "rings"), Status::Missing, "kept for root", mend);
    let tcp = host.report().paths.into_iter().find(|path| path.path == Way::Tcp).unwrap();
    assert_eq!((tcp.offered, tcp.in_this_release, tcp.lacks), (true, true, Vec::new()), "epoll does it, too");
}

#[test]
fn small_buffers_of_sockets_are_named() {
    let host = Fixture::new();
    host.write("/proc/sys/net/core/rmem_max", "212992\n");
    let mend = "sudo sysctl -w net.core.rmem_max=4194304";
    assert_finding(&host.one(Topic::Udp, "receive buffer"), Status::Limited, "212992 B", mend);
    host.write("/proc/sys/net/core/rmem_max", "4194304\n");
    host.write("/proc/sys/net/core/wmem_max", "212992\n");
    let mend = "sudo sysctl -w net.core.wmem_max=4194304";
    assert_finding(&host.one(Topic::Udp, "send buffer"), Status::Limited, "212992 B", mend);
    let way = host.report().paths.into_iter().find(|path| path.path == Way::Datagram).unwrap();
    assert_eq!((way.offered, way.in_this_release), (true, true));
}

#[test]
fn a_host_without_proc_is_looked_at_as_far_as_it_goes() {
    let host = Fixture::new();
    host.remove("/proc");
    let report = host.report();
    let version = report.find(Topic::Kernel, "version").unwrap();
    assert_finding(version, Status::Unknown, "/proc cannot be read", "sudo mount -t proc proc /proc");
    assert!(report.ok, "what could not be looked at is not called broken");
    assert!(report.to_text().contains("could not be looked at"));
}

/// Scripts read these.
#[test]
fn the_json_has_the_promised_fields() {
    let host = Fixture::new();
    host.write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
    host.write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
    let json = serde_json::to_value(host.report()).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), ["findings", "ok", "paths", "version"]);
    assert_eq!(keys(&json["paths"][0]), ["in_this_release", "lacks", "offered", "path"]);
    let finding = json["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == "set aside").unwrap();
    assert_eq!(keys(finding), ["found", "means", "mends", "name", "paths", "status", "topic"]);
    assert_eq!((&finding["topic"], &finding["status"]), (&"hugepages".into(), &"limited".into()));
    let mend = serde_json::json!({"by": "root", "command": "echo 512 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"});
    assert_eq!(finding["mends"][0], mend);
}
