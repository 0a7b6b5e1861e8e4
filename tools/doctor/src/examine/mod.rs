//! The examinations, one file a topic. Each is a function of the host and changes nothing.

mod cgroup;
mod dpdk;
mod folder;
mod gpu;
mod hugepages;
mod io_uring;
mod kernel;
pub(crate) mod limits;
mod memory;
mod namespaces;
mod numa;
mod process_vm;
mod processor;
mod rdma;
mod refused;
mod seccomp;
mod shm;
mod udp;

use crate::finding::Finding;
use crate::host::Host;
use crate::topic::Topic;

/// Examines one topic.
pub(crate) fn topic(host: &Host, topic: Topic) -> Vec<Finding> {
    match topic {
        Topic::Kernel => kernel::examine(host),
        Topic::Processor => processor::examine(host),
        Topic::Memory => memory::examine(host),
        Topic::HugePages => hugepages::examine(host),
        Topic::Limits => limits::examine(host),
        Topic::Cgroup => cgroup::examine(host),
        Topic::Shm => shm::examine(host),
        Topic::Folder => folder::examine(host),
        Topic::ProcessVm => process_vm::examine(host),
        Topic::Namespaces => namespaces::examine(host),
        Topic::Seccomp => seccomp::examine(host),
        Topic::Numa => numa::examine(host),
        Topic::IoUring => io_uring::examine(host),
        Topic::Udp => udp::examine(host),
        Topic::Rdma => rdma::examine(host),
        Topic::Dpdk => dpdk::examine(host),
        Topic::Gpu => gpu::examine(host),
    }
}
