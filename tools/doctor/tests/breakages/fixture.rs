//! A host in a folder: everything on it is well until a test breaks something.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_doctor::host::{Rights, Space};
use penstock_doctor::{Asked, Call, Finding, Host, Refusal, Report, Status, System, Topic, examine};

/// The user of all these hosts. The files belong to whoever runs the tests.
const PROCESS: u32 = 4711;

/// A host, and what it answers.
pub(crate) struct Fixture {
    root: PathBuf,
    pub(crate) system: Answers,
    pub(crate) asked: Asked,
}

/// What the system answers.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) refused: BTreeMap<Call, Refusal>,
    pub(crate) user: u32,
    pub(crate) is_dumpable: bool,
    /// Paths of the host that this user may not use, with the error.
    pub(crate) barred: BTreeMap<PathBuf, i32>,
    pub(crate) shm: Space,
    /// Sockets at which nobody listens.
    pub(crate) silent: BTreeSet<PathBuf>,
    pub(crate) variables: BTreeMap<&'static str, OsString>,
    /// What the RDMA libraries have.
    pub(crate) rdma_libraries: String,
    /// What the CUDA driver has.
    pub(crate) cuda_driver: String,
    root: PathBuf,
}

impl Answers {
    fn inside(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path))
    }
}

impl System for Answers {
    fn try_call(&self, call: Call) -> Result<String, Refusal> {
        match (self.refused.get(&call), call) {
            (Some(refusal), _) => Err(refusal.clone()),
            (None, Call::IoUring) => Ok("0xfff 60 1".to_owned()),
            (None, Call::RdmaLibraries) => Ok(self.rdma_libraries.clone()),
            (None, Call::CudaDriver) => Ok(self.cuda_driver.clone()),
            (None, _) => Ok(String::new()),
        }
    }

    fn user(&self) -> u32 {
        self.user
    }

    fn process(&self) -> u32 {
        PROCESS
    }

    fn is_dumpable(&self) -> Option<bool> {
        Some(self.is_dumpable)
    }

    fn may(&self, path: &Path, rights: Rights) -> io::Result<()> {
        let path = self.inside(path);
        match self.barred.get(&path) {
            Some(&errno) => Err(io::Error::from_raw_os_error(errno)),
            // The kernel's settings are root's.
            None if rights == Rights::Write => Err(io::ErrorKind::PermissionDenied.into()),
            None => Ok(()),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let is_shm = self.inside(path) == Path::new("/dev/shm");
        if is_shm && !path.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(if is_shm { self.shm } else { Space { bytes: 1 << 40, bytes_free: 1 << 39, has_files_free: true } })
    }

    fn knock(&self, path: &Path) -> io::Result<()> {
        match self.silent.contains(&self.inside(path)) {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(()),
        }
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).cloned()
    }
}

const STATUS: &str = "Name:\tpenstock\nNSpid:\t4711\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\n\
                      Seccomp_filters:\t0\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max locked memory         unlimited            unlimited            bytes
Max open files            20000                524288               files
Max address space         unlimited            unlimited            bytes
";

const MOUNTS: &str = "\
25 1 0:22 / / rw - ext4 /dev/sda1 rw
31 25 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
32 25 0:29 / /dev/hugepages rw - hugetlbfs hugetlbfs rw
";

/// Files of a well host: path, text.
const FILES: &[(&str, &str)] = &[
    ("/proc/sys/kernel/osrelease", "6.8.0-generic\n"),
    ("/proc/sys/kernel/yama/ptrace_scope", "0\n"),
    ("/proc/sys/kernel/io_uring_disabled", "0\n"),
    ("/proc/sys/net/core/rmem_max", "4194304\n"),
    ("/proc/sys/net/core/wmem_max", "4194304\n"),
    ("/proc/sys/kernel/io_uring_group", "-1\n"),
    ("/proc/sys/kernel/numa_balancing", "0\n"),
    ("/proc/sys/vm/overcommit_memory", "0\n"),
    ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made-up 9000\nflags\t\t: fpu sse2 avx2 avx512f\n"),
    (
        "/proc/meminfo",
        "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\nCommitLimit:  8388608 kB\nCommitted_AS: 1048576 kB\n",
    ),
    ("/proc/4711/status", STATUS),
    ("/proc/4711/limits", LIMITS),
    ("/proc/4711/mountinfo", MOUNTS),
    ("/proc/4711/cgroup", "0::/user.slice/work.scope\n"),
    ("/proc/4711/uid_map", "         0          0 4294967295\n"),
    ("/proc/4711/attr/current", "unconfined\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/memory.max", "max\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/memory.high", "max\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/memory.current", "1048576\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/cpu.max", "max 100000\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/pids.max", "max\n"),
    ("/sys/fs/cgroup/user.slice/work.scope/pids.current", "3\n"),
    ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
    ("/sys/devices/system/cpu/online", "0-3\n"),
    ("/sys/devices/system/node/online", "0-1\n"),
    ("/sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       8388608 kB\n"),
    ("/sys/devices/system/node/node1/cpulist", "2-3\n"),
    ("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       8388608 kB\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n"),
    ("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"),
    ("/sys/kernel/iommu_groups/0/type", "DMA\n"),
    ("/sys/module/ib_core/refcnt", "1\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "ens1\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n"),
    ("/sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
    ("/sys/class/infiniband/mlx5_0/device/net/ens1/mtu", "9000\n"),
    ("/sys/class/net/lo/mtu", "65536\n"),
    ("/sys/class/net/ens1/mtu", "9000\n"),
    ("/sys/bus/pci/drivers/vfio-pci/0000:41:00.0/vendor", "0x15b3\n"),
    ("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
    ("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
    ("/sys/module/nvidia_peermem/refcnt", "0\n"),
    ("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n"),
    ("/dev/shm/mark", ""),
    ("/dev/infiniband/uverbs0", ""),
    ("/dev/infiniband/rdma_cm", ""),
    ("/sys/module/ib_uverbs/refcnt", "1\n"),
    ("/sys/class/net/ens1/flags", "0x1003\n"),
    ("/sys/class/net/ens1/carrier", "1\n"),
    ("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n"),
    ("/sys/class/infiniband/mlx5_0/device/numa_node", "0\n"),
    ("/dev/vfio/vfio", ""),
    ("/dev/nvidiactl", ""),
    ("/dev/nvidia-uvm", ""),
    ("/dev/nvidia0", ""),
    ("/usr/lib/libibverbs.so.1", ""),
    ("/usr/lib/librdmacm.so.1", ""),
    ("/usr/lib/librte_eal.so.24.0", ""),
    ("/etc/os-release", "ID=ubuntu\nID_LIKE=debian\n"),
    ("/run/user/7/bus", ""),
];

impl Fixture {
    /// A host on which everything is well.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("penstock-doctor-{}-{number}", std::process::id()));
        let system = Answers {
            refused: BTreeMap::new(),
            user: 7,
            is_dumpable: true,
            barred: BTreeMap::new(),
            shm: Space { bytes: 8 << 30, bytes_free: 8 << 30, has_files_free: true },
            silent: BTreeSet::new(),
            variables: BTreeMap::new(),
            rdma_libraries: "device mlx5_0\n".to_owned(),
            cuda_driver:
                "cuda 12.8\ndevice 0: NVIDIA H100, 80 GiB, GPU-0a, at 0000:17:00.0\npasses 0 descriptors legacy\n"
                    .to_owned(),
            root: root.clone(),
        };
        let asked =
            Asked { folder: PathBuf::from("/run/user/7/penstock"), workers: 2, cores: vec![0, 1], devices: Vec::new() };
        let fixture = Self { root, system, asked };
        for (path, text) in FILES {
            fixture.write(path, text);
        }
        fixture.link("/proc/self", "4711");
        fixture.link("/proc/4711/ns/user", "user:[4026531837]");
        fixture.link("/proc/4711/ns/pid", "pid:[4026531836]");
        fixture.link("/proc/4711/exe", "/opt/penstock");
        fixture
    }

    /// Where a file of the host lies.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Replaces a part of a file.
    pub(crate) fn edit(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.at(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.write(path, &text.replace(from, to));
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    /// Removes a file, or a folder with all that is in it.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.at(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub(crate) fn report(&self) -> Report {
        let host = Host::new(self.root.clone(), Box::new(self.system.clone()), self.asked.clone());
        examine(&host, &[])
    }

    /// Looks at the host: exactly these findings are not what they are on a well host, and the one asked for is
    /// this one.
    pub(crate) fn only(&self, wrong: &[(Topic, &'static str)]) -> Vec<Finding> {
        static WELL: OnceLock<Report> = OnceLock::new();
        let well = WELL.get_or_init(|| Self::new().report());
        let found = self.report();
        let differs =
            |finding: &&Finding| finding.status != Status::Ok || !well.findings.iter().any(|was| same(was, finding));
        let changed: Vec<Finding> = found.findings.iter().filter(differs).cloned().collect();
        let names: Vec<(Topic, &str)> = changed.iter().map(|finding| (finding.topic, finding.name)).collect();
        assert_eq!(names, wrong, "{}", found.to_text());
        for finding in &changed {
            assert!(!finding.found.is_empty() && finding.status != Status::Ok, "{finding:?}");
            let says = finding.status == Status::Unknown || (finding.means.is_some() && !finding.mends.is_empty());
            assert!(says, "what it means and what mends it: {finding:?}");
        }
        changed
    }

    /// As `only`, for a single one.
    pub(crate) fn one(&self, topic: Topic, name: &'static str) -> Finding {
        self.only(&[(topic, name)]).remove(0)
    }
}

/// The words may differ in figures that have nothing to do with it.
fn same(was: &Finding, is: &Finding) -> bool {
    (was.topic, was.name, was.status) == (is.topic, is.name, is.status)
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Asserts how a thing stands, what was found, and the first thing that mends it.
#[track_caller]
pub(crate) fn assert_finding(finding: &Finding, status: Status, found: &str, mend: &str) {
    assert_eq!(finding.status, status, "{finding:?}");
    assert!(finding.found.contains(found), "{finding:?}");
    let mends: Vec<&str> = finding.mends.iter().map(penstock_doctor::Mend::text).collect();
    assert!(mends.first().is_some_and(|first| first.contains(mend)), "{mends:?}");
}
