//! Whether the process behind a session still lives.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Watches one process by a descriptor, which never means another process later.
#[derive(Debug)]
pub(crate) enum ProcessWatch {
    /// This very process.
    Ourselves,
    /// Another process of this host.
    Descriptor(OwnedFd),
    /// A process that cannot be watched from here (another pid namespace, or already gone).
    Unseen,
}

impl ProcessWatch {
    /// Watches the process with this id, which is known to live at this moment.
    pub(crate) fn of(pid: u32) -> Self {
        if pid == std::process::id() {
            return Self::Ourselves;
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
            Some(descriptor) => Self::Descriptor(descriptor),
            None => Self::Unseen,
        }
    }

    /// Whether it is this very process.
    pub(crate) fn is_ourselves(&self) -> bool {
        matches!(self, Self::Ourselves)
    }

    /// Whether the process is proven dead, all its threads and memory gone.
    pub(crate) fn is_dead(&self) -> bool {
        let Self::Descriptor(descriptor) = self else { return false };
        let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(count) if count > 0)
    }
}

#[cfg(test)]
mod tests {
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
}
