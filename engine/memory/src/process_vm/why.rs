//! Why another process's memory cannot be reached, found out after it was tried.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::calls;

/// Why this process may not move bytes into or out of another one's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhyNot {
    /// The configuration says so.
    #[error("the setting transports.process_vm is off")]
    SwitchedOff,
    /// The peer's configuration says so.
    #[error("the peer's setting transports.process_vm is off")]
    SwitchedOffThere,
    /// The peer's process has no id here.
    #[error("the peer runs in another pid namespace and has no process id here; run both in one pid namespace")]
    OtherPidNamespace,
    /// The peer's process is in another user namespace, over which this one has no rights.
    #[error("the peer runs in another user namespace; run both in one, or give this one CAP_SYS_PTRACE over the other")]
    OtherUserNamespace,
    /// The Yama security module forbids it.
    #[error("kernel.yama.ptrace_scope is {scope} and forbids it; set it to 0, or give this process CAP_SYS_PTRACE")]
    Yama { scope: u8 },
    /// The peer has forbidden it to everybody but the administrator.
    #[error(
        "the peer's process is not dumpable (PR_SET_DUMPABLE 0, a set-user-id program, or a program that it may not read); \
         make it dumpable, or give this process CAP_SYS_PTRACE"
    )]
    NotDumpable,
    /// Something keeps this process from making the calls at all.
    #[error(
        "a seccomp filter refuses process_vm_readv or process_vm_writev to this process (error {errno}); \
         allow both calls in the profile of the container or service"
    )]
    Filtered {
        /// What the filter answers.
        errno: i32,
    },
    /// The kernel has no such calls.
    #[error("this kernel has no process_vm_readv; build it with CONFIG_CROSS_MEMORY_ATTACH")]
    NoCalls,
    /// The process that the socket names is not the one that made the offer.
    #[error(
        "the process that opened the socket is not the one that runs the engine; let the engine's own process open it"
    )]
    OtherProcess,
    /// The trial has no answer yet.
    #[error(
        "the peer's memory has not answered: it lies in a slow file, or is served by a process that does not answer; plans that \
         are built once it has are moved by process_vm"
    )]
    NotAnswered,
    /// A call on its memory has not come back.
    #[error(
        "the peer's memory has not answered in time: it lies in a slow file, or is served by a process that does not answer; connect again to have it tried again"
    )]
    Stalled,
    /// The process is gone.
    #[error("the peer's process is gone")]
    Gone,
    /// The system refused for a reason that has no better name.
    #[error("the system refuses access to the peer's memory (error {errno}); see its security module's log")]
    Denied { errno: i32 },
}

/// Explains an error of a first attempt on the process `pid`.
pub(super) fn explain(pid: i32, error: i32) -> WhyNot {
    // A process may always reach its own memory, unless the calls themselves are kept from it.
    if let Err(errno) = calls::try_own_memory() {
        return match errno {
            libc::ENOSYS if !has_filter() => WhyNot::NoCalls,
            errno => WhyNot::Filtered { errno },
        };
    }
    match error {
        libc::ESRCH => WhyNot::Gone,
        // Nothing is mapped there: another program, or the same one at another place.
        libc::EFAULT => WhyNot::OtherProcess,
        libc::EPERM | libc::EACCES => forbidden(pid, error),
        errno => WhyNot::Denied { errno },
    }
}

fn forbidden(pid: i32, errno: i32) -> WhyNot {
    if is_other_user_namespace(pid) {
        return WhyNot::OtherUserNamespace;
    }
    if is_not_dumpable(pid) {
        return WhyNot::NotDumpable;
    }
    match yama_scope() {
        Some(scope) if scope > 0 => WhyNot::Yama { scope },
        _ => WhyNot::Denied { errno },
    }
}

fn has_filter() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status_number(&status, "Seccomp:").is_some_and(|mode| mode != 0)
}

/// The first number after a word of a `status` file.
fn status_number(status: &str, word: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

fn is_other_user_namespace(pid: i32) -> bool {
    let differ = |ours: io::Result<Vec<u8>>, theirs: io::Result<Vec<u8>>| {
        ours.ok().zip(theirs.ok()).map(|(ours, theirs)| ours != theirs)
    };
    let link = |who: &str| {
        fs::read_link(format!("/proc/{who}/ns/user")).map(|link| link.into_os_string().into_encoded_bytes())
    };
    let map = |who: &str| fs::read(format!("/proc/{who}/uid_map"));
    let theirs = pid.to_string();
    // The link itself may be out of our sight for the same reason as the memory; the map is not.
    differ(link("self"), link(&theirs)).or_else(|| differ(map("self"), map(&theirs))).unwrap_or(false)
}

/// What is not dumpable belongs to root under `/proc`, whoever runs it.
fn is_not_dumpable(pid: i32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let Some(uid) = status_number(&status, "Uid:") else { return false };
    fs::metadata(format!("/proc/{pid}/environ")).is_ok_and(|file| file.uid() != uid)
}

fn yama_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}
