//! Memory, huge pages, limits, control groups.

use penstock_doctor::{By, Status, Topic};

use crate::fixture::{Fixture, assert_finding};

const GROUP: &str = "/sys/fs/cgroup/user.slice/work.scope";

#[test]
fn too_little_memory_is_named() {
    let host = Fixture::new();
    host.edit("/proc/meminfo", "8388608 kB\nCommitLimit", "102400 kB\nCommitLimit");
    assert_finding(&host.one(Topic::Memory, "available"), Status::Limited, "100 MiB of 16 GiB", "end what needs");
}

#[test]
fn strict_overcommit_is_named_with_what_is_left() {
    let host = Fixture::new();
    host.write("/proc/sys/vm/overcommit_memory", "2\n");
    let mend = "sudo sysctl -w vm.overcommit_memory=0";
    assert_finding(&host.one(Topic::Memory, "overcommit"), Status::Limited, "7 GiB of 8 GiB", mend);
}

#[test]
fn huge_pages_that_are_not_set_aside_or_all_taken_are_named() {
    let host = Fixture::new();
    let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    host.write(&format!("{pages}/free_hugepages"), "0\n");
    let mend = format!("echo 1024 | sudo tee {pages}/nr_hugepages");
    assert_finding(
        &host.one(Topic::HugePages, "set aside"),
        Status::Limited,
        "1 GiB in pages of 2 MiB, all in use",
        &mend,
    );
    host.write(&format!("{pages}/nr_hugepages"), "0\n");
    let mend = format!("echo 512 | sudo tee {pages}/nr_hugepages");
    assert_finding(&host.one(Topic::HugePages, "set aside"), Status::Limited, "none", &mend);
    host.remove("/sys/kernel/mm/hugepages");
    assert_finding(&host.one(Topic::HugePages, "set aside"), Status::Missing, "no huge pages", "CONFIG_HUGETLBFS");
}

#[test]
fn transparent_pages_that_are_off_are_named_with_the_file_that_decides() {
    let host = Fixture::new();
    let folder = "/sys/kernel/mm/transparent_hugepage";
    host.write(&format!("{folder}/shmem_enabled"), "always within_size advise [never] deny force\n");
    let mend = format!("echo advise | sudo tee {folder}/shmem_enabled");
    assert_finding(&host.one(Topic::HugePages, "transparent"), Status::Limited, "off for shared memory (never)", &mend);
    // The setting of one size overrules the common one, unless it says `inherit`.
    let own = format!("{folder}/hugepages-2048kB/shmem_enabled");
    host.write(&own, "always [inherit] within_size advise never\n");
    assert_eq!(host.one(Topic::HugePages, "transparent").mends[0].text(), mend);
    host.write(&own, "always inherit within_size [advise] never\n");
    assert_eq!(host.report().find(Topic::HugePages, "transparent").unwrap().status, Status::Ok);
}

#[test]
fn few_open_files_are_named_with_the_mend_that_the_hard_limit_allows() {
    let host = Fixture::new();
    let line = |soft: &str, hard: &str| format!("Max open files            {soft:<20} {hard:<20} files");
    let was = line("20000", "524288");
    let now = line("256", "524288");
    host.edit("/proc/4711/limits", &was, &now);
    assert_finding(
        &host.one(Topic::Limits, "open files"),
        Status::Limited,
        "256, enough for about 29 peers",
        "ulimit -n 65536",
    );
    let (was, now) = (now, line("256", "4096"));
    host.edit("/proc/4711/limits", &was, &now);
    assert_finding(&host.one(Topic::Limits, "open files"), Status::Limited, "256", "ulimit -n 4096");
    host.edit("/proc/4711/limits", &now, &line("20", "20"));
    let finding = host.one(Topic::Limits, "open files");
    assert_finding(&finding, Status::Broken, "20, too few", "sudo prlimit --pid $$ --nofile=65536:65536");
    assert!(!host.report().ok);
}

#[test]
fn locked_memory_counts_only_without_the_capability() {
    let host = Fixture::new();
    host.edit(
        "/proc/4711/limits",
        "Max locked memory         unlimited            unlimited ",
        "Max locked memory 65536 65536 ",
    );
    let mend = "sudo prlimit --pid $$ --memlock=unlimited:unlimited";
    for finding in host.only(&[Topic::Limits, Topic::Rdma, Topic::Gpu].map(|topic| (topic, "locked memory"))) {
        assert_finding(&finding, Status::Limited, "64 KiB", mend);
    }
    assert!(host.report().ok, "small pools fit into any limit");
    host.edit("/proc/4711/status", "CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff");
    assert_eq!(host.report().find(Topic::Limits, "locked memory").unwrap().status, Status::Ok);
    // A capability of a user namespace does not lift the host's limit.
    host.link("/proc/4711/ns/user", "user:[4026532177]");
    assert_eq!(host.report().find(Topic::Limits, "locked memory").unwrap().status, Status::Limited);
}

#[test]
fn limits_of_file_size_and_address_space_are_named() {
    let host = Fixture::new();
    host.edit("/proc/4711/limits", "Max file size             unlimited  ", "Max file size 1048576 ");
    host.edit("/proc/4711/limits", "Max address space         unlimited  ", "Max address space 1073741824 ");
    let findings = host.only(&[(Topic::Limits, "file size"), (Topic::Limits, "address space")]);
    assert_finding(&findings[0], Status::Limited, "1 MiB", "ulimit -f unlimited");
    assert_finding(&findings[1], Status::Limited, "1 GiB", "ulimit -v unlimited");
}

#[test]
fn a_groups_memory_limit_is_named_with_its_file_and_whom_pools_are_charged_to() {
    let host = Fixture::new();
    host.write(&format!("{GROUP}/memory.max"), "536870912\n");
    let finding = host.one(Topic::Cgroup, "memory");
    let mend = "sudo systemctl set-property 'work.scope' MemoryMax=infinity";
    assert_finding(&finding, Status::Limited, "512 MiB at most, 1 MiB in use", mend);
    assert!(finding.means.unwrap().contains("charged to whoever touches them first"));
    // The tightest on the way up counts, and it is that group's which must be raised.
    host.write("/sys/fs/cgroup/user.slice/memory.max", "268435456\n");
    let finding = host.one(Topic::Cgroup, "memory");
    assert_finding(&finding, Status::Limited, "256 MiB at most", "set-property 'user.slice' MemoryMax=infinity");
    // More than the machine has is no limit.
    host.write("/sys/fs/cgroup/user.slice/memory.max", "1099511627776\n");
    host.write(&format!("{GROUP}/memory.max"), "max\n");
    assert_eq!(host.report().find(Topic::Cgroup, "memory").unwrap().status, Status::Ok);
}

#[test]
fn a_limit_of_the_first_version_is_named_with_its_file() {
    let host = Fixture::new();
    host.write("/proc/4711/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
    host.edit(
        "/proc/4711/mountinfo",
        "31 25",
        "40 25 0:40 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 25 0:41 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n31 25",
    );
    host.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    host.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
    host.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n");
    host.write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
    host.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    let findings = host.only(&[(Topic::Cgroup, "memory"), (Topic::Cgroup, "processor time")]);
    let mend = "echo -1 | sudo tee /sys/fs/cgroup/memory/job/memory.limit_in_bytes";
    assert_finding(&findings[0], Status::Limited, "1 GiB at most, 1 MiB in use", mend);
    let mend = "echo -1 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us";
    assert_finding(&findings[1], Status::Limited, "0.50 cores' worth in each 100 ms", mend);
}

#[test]
fn throttling_and_limits_of_threads_are_named() {
    let host = Fixture::new();
    host.write(&format!("{GROUP}/memory.high"), "1048576\n");
    assert_finding(&host.one(Topic::Cgroup, "memory.high"), Status::Limited, "beyond 1 MiB", "MemoryHigh=infinity");
    host.write(&format!("{GROUP}/memory.high"), "max\n");
    host.write(&format!("{GROUP}/cpu.max"), "150000 100000\n");
    assert_finding(
        &host.one(Topic::Cgroup, "processor time"),
        Status::Limited,
        "1.50 cores' worth",
        "CPUQuota=infinity",
    );
    host.write(&format!("{GROUP}/cpu.max"), "max 100000\n");
    // Two workers and the control thread are three.
    for (most, status) in [("5\n", Status::Broken), ("6\n", Status::Limited)] {
        host.write(&format!("{GROUP}/pids.max"), most);
        let finding = host.one(Topic::Cgroup, "threads");
        assert_finding(&finding, status, "left (pids.max)", "set-property 'work.scope' TasksMax=infinity");
        assert_eq!(host.report().ok, status != Status::Broken);
    }
}

#[test]
fn in_a_container_the_mend_is_outside() {
    let host = Fixture::new();
    host.write("/.dockerenv", "");
    assert!(host.report().ok, "a mark alone is not believed");
    host.link("/proc/4711/ns/pid", "pid:[4026532178]");
    host.write("/proc/4711/cgroup", "0::/\n");
    host.write("/sys/fs/cgroup/memory.max", "1073741824\n");
    host.write("/proc/sys/vm/overcommit_memory", "2\n");
    let findings =
        host.only(&[(Topic::Memory, "overcommit"), (Topic::Cgroup, "memory"), (Topic::Namespaces, "pid namespace")]);
    assert_finding(&findings[0], Status::Limited, "strict", "sudo sysctl -w vm.overcommit_memory=0");
    assert_finding(&findings[1], Status::Limited, "1 GiB at most", "docker update --memory");
    assert_finding(&findings[2], Status::Limited, "one of its own", "docker run --pid=container:NAME");
    assert!(findings.iter().all(|finding| finding.mends[0].by == By::Outside), "{findings:?}");
}
