//! The calls that are tried.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use penstock::memory::{MemoryError, Segment, probe};
use penstock::transport::host::{mailbox_bytes, owner_state_bytes, ring_segment_bytes};
use penstock_cuda::{Cuda, CudaError, Device};
use penstock_dpdk_shim::{Shim, ShimUnusable};
use penstock_verbs_sys::NotHere;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Something an engine asks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Shared memory that nobody can shrink, and that only its owner writes.
    SealedMemory,
    /// A descriptor that ends a sleep.
    EventFd,
    /// Waiting for several descriptors.
    Epoll,
    /// Sockets that carry descriptors.
    Sockets,
    /// A descriptor that says when a process is dead.
    Pidfd,
    /// One more thread.
    Thread,
    /// Copying from and to this process's own memory by `process_vm_*`, which only a filter forbids.
    CopySelf,
    /// The same from another process of the user, which is not an ancestor.
    CopyOther,
    /// Memory near a core.
    NodePolicy,
    /// A ring for socket I/O. Answers with what it can do.
    IoUring,
    /// Opening the RDMA libraries and asking them for devices. Answers with what they have.
    RdmaLibraries,
    /// Opening the library between Penstock and DPDK. Answers with the release of DPDK, or `absent` and why.
    DpdkShim,
    /// Opening and starting the CUDA driver. Answers with what it has, or why there is none.
    CudaDriver,
}

/// Why a call did not go well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel answered with this error number.
    Errno(i32),
    /// Whoever makes the call is killed by this signal.
    Killed(i32),
    /// It could not be tried.
    Untried(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(number) => io::Error::from_raw_os_error(*number).fmt(f),
            Self::Killed(signal) => write!(f, "whoever tries is killed by signal {signal}"),
            Self::Untried(reason) => write!(f, "it could not be tried: {reason}"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or_else(|| Self::Untried(error.to_string()), Self::Errno)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

impl From<MemoryError> for Refusal {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::NoDescriptor { .. } => Errno::MFILE.into(),
            MemoryError::OutOfMemory { .. } => Errno::NOMEM.into(),
            MemoryError::System { source, .. } => source.into(),
            other => Self::Untried(other.to_string()),
        }
    }
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::SealedMemory,
        Self::EventFd,
        Self::Epoll,
        Self::Sockets,
        Self::Pidfd,
        Self::Thread,
        Self::CopySelf,
        Self::CopyOther,
        Self::NodePolicy,
        Self::IoUring,
        Self::RdmaLibraries,
        Self::DpdkShim,
        Self::CudaDriver,
    ];

    /// Its word, by which a companion is told to try it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SealedMemory => "sealed-memory",
            Self::EventFd => "event-fd",
            Self::Epoll => "epoll",
            Self::Sockets => "sockets",
            Self::Pidfd => "pidfd",
            Self::Thread => "thread",
            Self::CopySelf => "copy-self",
            Self::CopyOther => "copy-other",
            Self::NodePolicy => "node-policy",
            Self::IoUring => "io-uring",
            Self::RdmaLibraries => "rdma-libraries",
            Self::DpdkShim => "dpdk-shim",
            Self::CudaDriver => "cuda-driver",
        }
    }

    /// The system calls it is made of, as filters name them.
    pub(crate) const fn system_calls(self) -> &'static str {
        match self {
            Self::SealedMemory => "memfd_create ftruncate fcntl mmap madvise",
            Self::EventFd => "eventfd2",
            Self::Epoll => "epoll_create1 epoll_ctl epoll_pwait epoll_pwait2",
            Self::Sockets => "socket socketpair bind listen accept4 connect sendmsg recvmsg",
            Self::Pidfd => "pidfd_open poll",
            Self::Thread => "clone clone3",
            Self::CopySelf | Self::CopyOther => "process_vm_readv process_vm_writev",
            Self::NodePolicy => "mbind get_mempolicy",
            Self::IoUring => "io_uring_setup io_uring_enter io_uring_register",
            Self::RdmaLibraries | Self::DpdkShim | Self::CudaDriver => "openat mmap socket",
        }
    }

    /// The first kernel that has it.
    pub(crate) const fn since(self) -> &'static str {
        match self {
            Self::SealedMemory => "Linux 5.1",
            Self::Pidfd => "Linux 5.3",
            Self::IoUring => "Linux 5.1, built with CONFIG_IO_URING",
            Self::CopySelf | Self::CopyOther => "a kernel built with CONFIG_CROSS_MEMORY_ATTACH",
            Self::NodePolicy => "a kernel built with CONFIG_NUMA",
            Self::EventFd | Self::Epoll | Self::Sockets | Self::Thread => "Linux 2.6.27",
            Self::RdmaLibraries | Self::DpdkShim | Self::CudaDriver => "Linux 2.6.27",
        }
    }
}

/// The driver's compute mode in which no process may use a device.
const COMPUTE_PROHIBITED: u32 = 2;

/// The word that another process is asked to read.
pub(super) const MARK: u64 = 0x0070_656e_7374_6f63;

/// What it writes there.
pub(super) const ANSWER: u64 = !MARK;

/// Where that word is: in which process, at which address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) process: u32,
    pub(super) address: u64,
}

/// Makes the call in this process.
pub(super) fn make(call: Call, place: Place) -> Result<String, Refusal> {
    match call {
        Call::SealedMemory => {
            // As large as the largest that an engine of one worker starts with, for limits that grow with size.
            let bytes = mailbox_bytes(1).max(owner_state_bytes(1)).max(ring_segment_bytes(1)) as u64;
            Segment::create("penstock-doctor", bytes)?;
            Segment::create_owner_writes_only("penstock-doctor", bytes)?;
        }
        Call::EventFd => drop(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?),
        Call::Epoll => epoll()?,
        Call::Sockets => sockets()?,
        Call::Pidfd => {
            let own = rustix::process::getpid();
            drop(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty())?);
        }
        Call::Thread => {
            let thread = std::thread::Builder::new().name("penstock-doctor".to_owned()).spawn(|| ())?;
            thread.join().map_err(|_| Refusal::Untried("the thread panicked".to_owned()))?;
        }
        Call::CopySelf => probe::copy_own_word()?,
        Call::CopyOther => exchange(place)?,
        Call::NodePolicy => probe::prefer_node(0)?,
        Call::IoUring => {
            let ring = probe::io_uring()?;
            let operations = ring.operations.map_or_else(|| "?".to_owned(), |number| number.to_string());
            return Ok(format!("{:#x} {operations} {}", ring.features, u8::from(ring.sends_without_copy)));
        }
        Call::RdmaLibraries => return Ok(rdma_libraries()),
        Call::DpdkShim => {
            // What the loader says may go over several lines.
            let absent = |unusable: ShimUnusable| format!("absent {}", unusable.to_string().replace('\n', " "));
            return Ok(Shim::find().map_or_else(absent, Shim::release));
        }
        Call::CudaDriver => return Ok(cuda_driver()),
    }
    Ok(String::new())
}

/// What the CUDA driver has, a line each: `absent` and why, or `cuda` and its release, `lacks` and a function; then `deviceless` and why, or for
/// each device `device` and what it is, `memory` and where on the bus how much is, `passes` and how its memory is passed to other processes, and
/// `without` and what it cannot.
fn cuda_driver() -> String {
    let one_line = |words: String| words.replace('\n', " ");
    let cuda = match Cuda::start() {
        Ok(cuda) => cuda,
        Err(error @ CudaError::NotHere(_)) => return format!("absent {}\n", one_line(error.to_string())),
        Err(error) => return format!("deviceless {}\n", one_line(error.to_string())),
    };
    let mut words = format!("cuda {}\n", cuda.version());
    words.extend(cuda.lacks().iter().map(|lacking| format!("lacks {}\n", lacking.function)));
    let devices = match cuda.devices() {
        Ok(devices) => devices,
        Err(error) => return words + &format!("deviceless {}\n", one_line(error.to_string())),
    };
    for Device { ordinal, id, attr } in devices {
        let gib = attr.bytes as f64 / f64::from(1 << 30);
        words += &format!("device {ordinal}: {}, {gib:.0} GiB, {id}, at {}\n", one_line(attr.name), attr.pci);
        words += &format!("memory {} {}\n", attr.pci, attr.bytes);
        let passes = [(attr.vmm && attr.vmm_descriptors, " descriptors"), (attr.legacy_ipc, " legacy")];
        words += &format!("passes {ordinal}");
        words.extend(passes.iter().filter(|(can, _)| *can).map(|(_, how)| *how));
        words += "\n";
        let cannot =
            [(!attr.vmm, "vmm"), (!attr.dma_buf, "dma-buf"), (attr.compute_mode == COMPUTE_PROHIBITED, "compute")];
        words.extend(cannot.iter().filter(|(lacks, _)| *lacks).map(|(_, what)| format!("without {ordinal} {what}\n")));
    }
    words
}

/// What the RDMA libraries have, a line each: `absent` and why, or `device` and `lacks` with names; `deviceless` and why they
/// cannot look for devices; `unmanaged` and why there is no connection manager.
fn rdma_libraries() -> String {
    let seen = match penstock_verbs_sys::look() {
        Ok(seen) => seen,
        Err(NotHere::Library { library, said }) => {
            // What the loader says may go over several lines.
            return format!("absent {library} cannot be opened ({})\n", said.replace('\n', " "));
        }
        Err(NotHere::Symbol { missing, .. }) => return format!("absent {missing}: it is too old\n"),
    };
    let devices = match seen.devices {
        Ok(names) => names.iter().map(|name| format!("device {name}\n")).collect(),
        Err(error) => format!("deviceless {error}\n"),
    };
    let words = seen.missing.iter().fold(devices, |words, missing| words + &format!("lacks {}\n", missing.symbol));
    match seen.manager {
        Ok(()) => words,
        // What the loader says may go over several lines.
        Err(absence) => words + &format!("unmanaged {}\n", absence.to_string().replace('\n', " ")),
    }
}

/// Reads the mark and writes the answer to it.
fn exchange(place: Place) -> Result<(), Refusal> {
    let mut bytes = [0; 8];
    let read = probe::read_of_process(place.process, place.address, &mut bytes)?;
    if (read, u64::from_ne_bytes(bytes)) != (bytes.len(), MARK) {
        return Err(Refusal::Untried("another process was read than the one that was meant".to_owned()));
    }
    probe::write_to_process(place.process, place.address, &ANSWER.to_ne_bytes())?;
    Ok(())
}

fn epoll() -> Result<(), Refusal> {
    use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let bell = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    epoll::add(&set, &bell, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    let mut space = [MaybeUninit::<epoll::Event>::uninit(); 1];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (events, _) = epoll::wait(&set, &mut space, Some(&now))?;
    if events.is_empty() { Err(Refusal::Untried("a ready descriptor was not seen".to_owned())) } else { Ok(()) }
}

/// Passes a descriptor from one end to the other.
fn sockets() -> Result<(), Refusal> {
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [near.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&passed));
    sendmsg(&near, &[IoSlice::new(b"p")], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&far, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?;
    let came = ancillary.drain().any(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next().is_some(),
        _ => false,
    });
    if came { Ok(()) } else { Err(Refusal::Untried("a descriptor that was passed did not arrive".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_words_of_their_own() {
        let mut words = Call::ALL.map(Call::as_str).to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Call::ALL.len());
    }

    /// What an engine cannot do without works wherever these tests run at all.
    #[test]
    fn what_every_engine_needs_is_found_to_work() {
        let nowhere = Place { process: 0, address: 0 };
        for call in [Call::SealedMemory, Call::EventFd, Call::Epoll, Call::Sockets, Call::Thread] {
            assert_eq!(make(call, nowhere), Ok(String::new()), "{call:?}");
        }
    }
}
