//! Another process of this host: who it is, and whether it still lives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::blocking::BlockingCalls;

/// Watches one process by a descriptor, which never means another process later.
#[derive(Debug)]
pub enum ProcessWatch {
    Ourselves,
    /// Another process of this host.
    Other {
        /// Its id in this process's pid namespace, its own for as long as `descriptor` says that it lives.
        pid: u32,
        descriptor: OwnedFd,
    },
    /// A process that cannot be watched from here.
    Unseen(Unseen),
}

/// Why a process cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// It has no id in this process's pid namespace.
    OtherPidNamespace,
    /// It was gone already, or the system refused to open it.
    NotOpened,
}

impl ProcessWatch {
    /// Watches the process with this id, which is known to live at this moment: of one that was only told of, an id may mean
    /// another process by now ([`socket_process`]). Zero is the id of a process that cannot be seen from this pid namespace.
    pub fn of(pid: u32) -> Self {
        if pid == std::process::id() {
            return Self::Ourselves;
        }
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Self::Unseen(Unseen::OtherPidNamespace);
        };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(descriptor) => Self::Other { pid, descriptor },
            Err(_) => Self::Unseen(Unseen::NotOpened),
        }
    }

    /// Its id; zero if it has none here.
    pub fn id(&self) -> u32 {
        match self {
            Self::Ourselves => std::process::id(),
            Self::Other { pid, .. } => *pid,
            Self::Unseen(_) => 0,
        }
    }

    /// Where calls go that may wait for it.
    pub fn blocking(&self) -> BlockingCalls {
        BlockingCalls::of(self.id())
    }

    /// Watches the process with this id by a descriptor that becomes readable when it is dead.
    pub fn by(pid: u32, descriptor: OwnedFd) -> Self {
        Self::Other { pid, descriptor }
    }

    /// Whether it is this very process.
    pub fn is_ourselves(&self) -> bool {
        matches!(self, Self::Ourselves)
    }

    /// Whether the process is proven dead, all its threads and memory gone.
    #[inline]
    pub fn is_dead(&self) -> bool {
        let Self::Other { descriptor, .. } = self else { return false };
        let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(count) if count > 0)
    }
}

/// Who is at the other end of a Unix socket: its user, and its process id as seen from here. The id
/// is zero where the process is not visible in this pid namespace.
pub fn socket_credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // Not rustix's call: its process ids cannot be zero, and the kernel's are, see above.
    // SAFETY: the kernel writes at most `len` bytes of plain numbers into a live `ucred` of that size.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut len)
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((found.uid, u32::try_from(found.pid).unwrap_or(0)))
}

/// The pidfd of the very process that made the other end of a Unix socket, whatever process has its id by now. None where the kernel cannot
/// tell (before Linux 6.5). An error says that the process is gone.
pub fn socket_process(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut found: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a live integer of that size.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if status == 0 {
        // SAFETY: the kernel has made this descriptor for this call; nobody else has it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(found) }));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        error => Err(error),
    }
}

/// Has the kernel refuse descriptors that come to a Unix socket with its bytes: to close one that a peer has made so may take as long as that
/// peer likes. Answers whether it does; Linux before 6.16 cannot.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    /// `SO_PASSRIGHTS`, which libc does not name yet.
    const PASS_RIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a live integer of that size.
    let status =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, (&raw const no).cast(), len) };
    status == 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_dead_process_is_proven_dead_and_a_living_one_is_not() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("sleep is everywhere");
        let watch = ProcessWatch::of(child.id());
        assert!(!watch.is_dead());
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert!(watch.is_dead());
        assert!(!ProcessWatch::of(std::process::id()).is_dead());
    }

    #[test]
    fn a_process_without_an_id_here_is_in_another_namespace() {
        assert!(matches!(ProcessWatch::of(0), ProcessWatch::Unseen(Unseen::OtherPidNamespace)));
        let mut child = std::process::Command::new("true").spawn().expect("true is everywhere");
        child.wait().expect("our own child");
        assert!(matches!(ProcessWatch::of(child.id()), ProcessWatch::Unseen(Unseen::NotOpened)));
    }

    #[test]
    fn a_socket_says_who_is_at_its_other_end() {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let (uid, pid) = socket_credentials(here.as_fd()).unwrap();
        assert_eq!((uid, pid), (rustix::process::geteuid().as_raw(), std::process::id()));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(socket_credentials(file.as_fd()).is_err() && socket_process(file.as_fd()).is_err());
        if let Some(descriptor) = socket_process(here.as_fd()).unwrap() {
            assert!(!ProcessWatch::by(pid, descriptor).is_dead());
        }
    }
}
