//! Which ring the kernel lets this process have.

use std::io::{Error, ErrorKind, Result};

use io_uring::{IoUring, opcode};

/// Answers for each request for which the kernel has room. What is beyond it keeps aside itself.
const ANSWERS: u32 = 16;

/// How the kernel does its part, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// When the one thread that has the ring asks for it (Linux 6.1).
    Deferred,
    /// At the thread's next call of any kind (Linux 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

pub(super) const MANNERS: [Manner; 3] = [Manner::Deferred, Manner::Cooperative, Manner::Interrupting];

impl Manner {
    /// A ring. One that waits for its thread does nothing until that has called.
    pub(super) fn build(self, entries: u32, waits_for_thread: bool) -> Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(ANSWERS * entries);
        match self {
            Self::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
                if waits_for_thread {
                    builder.setup_r_disabled();
                }
            }
            Self::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Self::Interrupting => {}
        }
        builder.build(entries)
    }

    /// Makes a ring and does nothing with it, once: some places forbid only one of the calls.
    pub(super) fn trial(self) -> Result<()> {
        let mut ring = self.build(2, false)?;
        let features = ring.params();
        // Of the same version as polls that stay (Linux 5.13), and nothing that was said may be lost.
        if !features.is_feature_resource_tagging() || !features.is_feature_nodrop() {
            return Err(Error::new(ErrorKind::Unsupported, "it is older than Linux 5.13"));
        }
        // SAFETY: a request that names no memory.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(|_| Error::from(ErrorKind::Unsupported))?;
        ring.submit_and_wait(1)?;
        match ring.completion().next() {
            Some(answer) if answer.result() >= 0 => Ok(()),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// Why there is no ring, in words.
pub(super) fn why_not(refused: &Error) -> String {
    const SETTING: &str = "/proc/sys/kernel/io_uring_disabled";
    let setting = std::fs::read_to_string(SETTING).unwrap_or_default();
    match refused.raw_os_error() {
        Some(libc::EPERM) if !matches!(setting.trim(), "" | "0") => {
            format!("kernel.io_uring_disabled is {}", setting.trim())
        }
        Some(libc::EPERM | libc::EACCES) => "a filter or a security policy forbids io_uring".to_owned(),
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a filter hides it".to_owned(),
        Some(libc::ENOMEM) => "memory that may be locked is too little for io_uring (ulimit -l)".to_owned(),
        _ => format!("io_uring does not work here: {refused}"),
    }
}
