//! Copying to and from memory of other processes that Penstock did not allocate.

use super::refused;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host, Refusal};
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::ProcessVm;
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const SCOPE_FILE: &str = "/etc/sysctl.d/10-ptrace.conf";

/// Looking into other processes whatever Yama says.
const CAP_SYS_PTRACE: u32 = 19;

const MEANS: &str = "memory that Penstock did not allocate is not copied directly between processes";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    vec![scope(host), dumpable(host), copying(host)]
}

fn missing(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::missing(TOPIC, name, found).means(MEANS).on(&[Way::ProcessVm])
}

/// Yama's rule about who may look into whom.
fn scope(host: &Host) -> Finding {
    const NAME: &str = "ptrace scope";
    let Some(scope) = host.number(SCOPE) else {
        if !host.exists("/proc/sys/kernel") {
            return Finding::unknown(TOPIC, NAME, "/proc/sys cannot be read");
        }
        return Finding::ok(TOPIC, NAME, "no Yama here: processes of one user may look into each other");
    };
    let above = host.has_capability(CAP_SYS_PTRACE);
    match scope {
        0 => Finding::ok(TOPIC, NAME, "0: processes of one user may look into each other"),
        1 | 2 if above => Finding::ok(TOPIC, NAME, format!("{scope}, but this process is above it (CAP_SYS_PTRACE)")),
        3.. => missing(NAME, format!("{scope}: nobody may look into another process, until the next boot"))
            .mend(Mend::advice(By::Root, format!("write `kernel.yama.ptrace_scope = 0` into {SCOPE_FILE} and reboot"))),
        _ => {
            let whom = if scope == 1 { "a process may look into its own children only" } else { "only root may look" };
            missing(NAME, format!("{scope}: {whom}")).mend(host.sysctl("kernel.yama.ptrace_scope", "0"))
        }
    }
}

/// Whether processes of this user may look into this one.
fn dumpable(host: &Host) -> Finding {
    const NAME: &str = "dumpable";
    match host.system().is_dumpable() {
        None => Finding::unknown(TOPIC, NAME, "the kernel does not say"),
        Some(true) => Finding::ok(TOPIC, NAME, "processes of this user may look into this one"),
        Some(false) => {
            let program = host.link("/proc/self/exe").unwrap_or_else(|| "the program".to_owned());
            missing(NAME, "not even processes of this user may look into this one")
                .mend(Mend::you(format!("chmod u+r,go+r {program}   # if its file cannot be read by this user")))
                .mend(Mend::advice(
                    By::You,
                    "a program that was started with other rights than its user's, or that set \
                                             PR_SET_DUMPABLE to 0, must set it to 1 again",
                ))
        }
    }
}

/// The proof: another process of this user reads a word of this one and writes it.
fn copying(host: &Host) -> Finding {
    const NAME: &str = "copying";
    let refusal = match host.try_call(Call::CopyOther) {
        Ok(_) => {
            return Finding::ok(TOPIC, NAME, "another process of this user has read a word of this one and written it");
        }
        Err(Refusal::Untried(reason)) => return Finding::unknown(TOPIC, NAME, reason),
        Err(refusal) => refusal,
    };
    // A process may always look into itself: if even that is refused, it is the call and not the other process.
    if let Err(own) = host.try_call(Call::CopySelf) {
        let (why, mends) = refused::why(host, Call::CopySelf, &own);
        return missing(NAME, format!("process_vm_readv or process_vm_writev: {why}")).mends(mends);
    }
    let reason = if host.number(SCOPE).is_some_and(|scope| scope > 0) {
        "as the ptrace scope says"
    } else if host.system().is_dumpable() == Some(false) {
        "because this process is not dumpable"
    } else {
        "and neither Yama nor this process's own setting says so: a security module does"
    };
    let see = Mend::you("penstock doctor process_vm seccomp   # the lines above and the security module's");
    missing(NAME, format!("another process of this user may not copy from and to this one ({refusal}), {reason}"))
        .mend(see)
}
