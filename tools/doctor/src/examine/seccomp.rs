//! Filters of system calls, and what else takes rights away.

use super::refused;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host, Refusal};
use crate::parse::{count, listed};
use crate::topic::Topic;

const TOPIC: Topic = Topic::Seccomp;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let mut findings = vec![filter(host), new_privileges(host)];
    findings.extend(module(host));
    findings
}

fn filter(host: &Host) -> Finding {
    const NAME: &str = "filter";
    let filters = match host.filters() {
        None => return Finding::unknown(TOPIC, NAME, "/proc/self/status does not say"),
        Some(0) => return Finding::ok(TOPIC, NAME, "none"),
        Some(filters) => count(usize::try_from(filters).unwrap_or(usize::MAX), "seccomp filter"),
    };
    // Another process may have reasons of its own, and a library is no call.
    let is_library = |call: &Call| matches!(call, Call::RdmaLibraries | Call::DpdkShim | Call::CudaDriver);
    let asked = |call: &Call| *call != Call::CopyOther && !is_library(call);
    let barred = Call::ALL.into_iter().filter(asked).filter(|&call| is_barred(host, call));
    let barred: Vec<Call> = barred.collect();
    if barred.is_empty() {
        return Finding::ok(TOPIC, NAME, format!("{filters}, and everything that was tried is let through"));
    }
    let calls: Vec<&str> = barred.iter().map(|call| call.system_calls()).collect();
    let mends = barred.first().map(|&call| refused::let_through(host, call)).unwrap_or_default();
    Finding::limited(TOPIC, NAME, format!("{filters}; refused was one of each of: {}", listed(&calls)))
        .means("what each is for stands with its topic: kernel, process_vm, numa, io_uring")
        .mends(mends)
}

/// Whether a filter may be why a call was refused.
fn is_barred(host: &Host, call: Call) -> bool {
    use rustix::io::Errno;
    let by_filter = [Errno::PERM, Errno::ACCESS, Errno::NOSYS].map(|errno| errno.raw_os_error());
    match host.try_call(call) {
        Err(Refusal::Errno(number)) => by_filter.contains(&number),
        Err(Refusal::Killed(_)) => true,
        Ok(_) | Err(Refusal::Untried(_)) => false,
    }
}

fn new_privileges(host: &Host) -> Finding {
    const NAME: &str = "new privileges";
    match host.status("NoNewPrivs").as_deref() {
        None => Finding::unknown(TOPIC, NAME, "/proc/self/status does not say"),
        Some("0") => Finding::ok(TOPIC, NAME, "can be had (sudo works where it is set up)"),
        Some(_) => {
            let finding = Finding::limited(TOPIC, NAME, "switched off for good (no_new_privs)").means(
                "nothing for Penstock; but sudo and su do not work from here: run what needs them in another shell",
            );
            let mut mends = Vec::new();
            if let Some(service) = host.service() {
                let edit = host.as_root(&format!("systemctl edit {service}"));
                let words = format!("{}   # add: [Service] NoNewPrivileges=no", edit.text());
                mends.push(Mend { by: edit.by, ..Mend::you(words) });
            }
            if host.in_container() {
                mends.push(Mend::outside("docker run … without --security-opt no-new-privileges"));
            }
            mends.push(Mend::advice(By::You, "open a new login; this process and its children cannot undo it"));
            finding.mends(mends)
        }
    }
}

/// The profile of AppArmor or SELinux, where there is one.
fn module(host: &Host) -> Option<Finding> {
    let own = host.word("/proc/self/attr/current")?;
    let own = own.trim_matches('\0').trim();
    let is_free = own.is_empty() || own == "unconfined" || own.contains(":unconfined_t:");
    Some(if is_free || own == "kernel" {
        Finding::ok(TOPIC, "security module", "does not confine this process")
    } else {
        Finding::ok(TOPIC, "security module", format!("confines this process as `{own}`; what it refuses stands above"))
    })
}
