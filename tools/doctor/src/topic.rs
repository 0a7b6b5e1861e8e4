//! What is examined.

use std::fmt;

use serde::{Serialize, Serializer};

/// One part of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// The kernel, and the calls that every engine makes.
    Kernel,
    /// Instructions, cores and the clock.
    Processor,
    /// How much memory there is, and how much may be promised.
    Memory,
    /// Huge pages, set aside or transparent.
    HugePages,
    /// The limits of this process.
    Limits,
    /// Control groups.
    Cgroup,
    /// `/dev/shm`.
    Shm,
    /// The folder in which engines find each other.
    Folder,
    /// Memory of other processes.
    ProcessVm,
    /// User and pid namespaces.
    Namespaces,
    /// Filters of system calls, and what else takes rights away.
    Seccomp,
    /// Memory nodes.
    Numa,
    /// Rings for socket I/O.
    IoUring,
    /// Buffers of UDP sockets.
    Udp,
    /// RDMA devices and libraries.
    Rdma,
    /// DPDK.
    Dpdk,
    /// Graphics processors.
    Gpu,
}

impl Topic {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 17] = [
        Self::Kernel,
        Self::Processor,
        Self::Memory,
        Self::HugePages,
        Self::Limits,
        Self::Cgroup,
        Self::Shm,
        Self::Folder,
        Self::ProcessVm,
        Self::Namespaces,
        Self::Seccomp,
        Self::Numa,
        Self::IoUring,
        Self::Udp,
        Self::Rdma,
        Self::Dpdk,
        Self::Gpu,
    ];

    /// Its word, as on the command line; other words that mean the same; and what it looks at.
    pub const fn words(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Kernel => ("kernel", &["memfd", "pidfd"], "version, and the system calls every engine makes"),
            Self::Processor => ("processor", &["cpu", "clock"], "instruction sets, cores this process may use, clock"),
            Self::Memory => ("memory", &["overcommit"], "how much is available, how much may be promised"),
            Self::HugePages => ("hugepages", &["thp"], "huge pages set aside, and transparent ones for shared memory"),
            Self::Limits => {
                ("limits", &["memlock", "files", "ulimit"], "open files, locked memory, file size, threads")
            }
            Self::Cgroup => ("cgroup", &["container"], "memory, processor time and threads of the control group"),
            Self::Shm => ("shm", &[], "/dev/shm"),
            Self::Folder => ("folder", &["directory"], "engine.directory, where engines find each other"),
            Self::ProcessVm => ("process_vm", &["ptrace", "yama"], "copying to and from other processes' own memory"),
            Self::Namespaces => ("namespaces", &["userns", "pidns"], "user and pid namespaces"),
            Self::Seccomp => ("seccomp", &["security"], "filters of system calls, no-new-privileges, security modules"),
            Self::Numa => ("numa", &[], "memory nodes, and asking for memory near a core"),
            Self::IoUring => ("io_uring", &["uring"], "rings for socket I/O"),
            Self::Udp => ("udp", &["datagram"], "how large the buffers of sockets may be"),
            Self::Rdma => ("rdma", &["verbs"], "devices, ports, addresses, access, libraries, locked memory"),
            Self::Dpdk => ("dpdk", &["vfio"], "libraries, devices handed to programs, IOMMU"),
            Self::Gpu => ("gpu", &["cuda"], "devices, driver, access, peer memory, what libcuda says"),
        }
    }

    /// Its word, as on the command line.
    pub const fn as_str(self) -> &'static str {
        self.words().0
    }

    /// The topic of this word.
    pub fn find(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| {
            let (own, others, _) = topic.words();
            own == word || others.contains(&word)
        })
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Topic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Topic;

    #[test]
    fn every_word_means_one_topic() {
        let mut words: Vec<&str> = Vec::new();
        for topic in Topic::ALL {
            let (own, others, what) = topic.words();
            assert!(!what.is_empty() && Topic::find(own) == Some(topic));
            words.push(own);
            words.extend(others);
        }
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!((words.len(), Topic::find("kernal")), (all, None));
    }
}
