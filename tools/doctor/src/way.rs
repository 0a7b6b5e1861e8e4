//! The paths that bytes can take.

use std::fmt;

use serde::{Serialize, Serializer};

/// A path that bytes can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Between engines of one process.
    Local,
    /// Between processes of one host, through mapped pools.
    Shm,
    /// Between processes of one host, to and from memory that Penstock did not allocate.
    ProcessVm,
    /// The same, through a ring of shared memory, where the kernel forbids the direct way.
    Bounce,
    /// Between hosts, over sockets.
    Tcp,
    /// Between hosts, in packets over UDP.
    Datagram,
    /// Between hosts, over RDMA.
    Verbs,
    /// Between hosts, over a network card that a program drives itself.
    Dpdk,
    /// To and from the memory of graphics processors.
    Cuda,
}

impl Way {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 9] = [
        Self::Local,
        Self::Shm,
        Self::ProcessVm,
        Self::Bounce,
        Self::Tcp,
        Self::Datagram,
        Self::Verbs,
        Self::Dpdk,
        Self::Cuda,
    ];

    /// Those that every engine's start stands on.
    pub const ENGINE: &'static [Self] = &[Self::Local, Self::Shm, Self::ProcessVm, Self::Bounce];

    /// Those between two processes of one host.
    pub const BETWEEN_PROCESSES: &'static [Self] = &[Self::Shm, Self::ProcessVm, Self::Bounce];

    /// Whether this release has it. A path that comes is switched on here, and only here.
    pub const fn is_released(self) -> bool {
        !matches!(self, Self::Cuda)
    }

    /// What it joins, and how.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Local => "within one process",
            Self::Shm => "between processes, through mapped pools",
            Self::ProcessVm => "between processes, memory of the caller's own, copied by the kernel",
            Self::Bounce => "between processes, memory of the caller's own, through a shared ring",
            Self::Tcp => "between hosts, over sockets",
            Self::Datagram => "between hosts, in packets over UDP",
            Self::Verbs => "between hosts, over RDMA",
            Self::Dpdk => "between hosts, over a network card of the program's own",
            Self::Cuda => "to and from the memory of graphics processors",
        }
    }

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::ProcessVm => "process_vm",
            Self::Bounce => "bounce",
            Self::Tcp => "tcp",
            Self::Datagram => "datagram",
            Self::Verbs => "verbs",
            Self::Dpdk => "dpdk",
            Self::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use penstock::config::{KeyDoc, Range};

    use super::Way;

    /// Whoever adds a transport to the configuration is reminded of the doctor.
    #[test]
    fn what_can_be_allowed_is_what_is_released() {
        let Range::SomeOf(words) = KeyDoc::find("transports.allow").unwrap().range else { panic!("a list of words") };
        for word in words {
            let way = Way::ALL.into_iter().find(|way| way.as_str() == *word);
            assert!(way.is_some_and(Way::is_released), "`{word}` can be allowed, so Way::is_released must say so");
        }
    }
}
