//! The version, and the calls that every engine makes.

use super::refused;
use crate::finding::{By, Finding, Mend};
use crate::host::{Call, Host};
use crate::parse;
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Kernel;

/// The first kernel with memory that only its owner writes (`F_SEAL_FUTURE_WRITE`).
const NEEDED: (u32, u32) = (5, 1);
/// The first with `MADV_POPULATE_WRITE`.
const POPULATES: (u32, u32) = (5, 14);

/// What every engine needs: name, call, what stands on it.
const CALLS: [(&str, Call, &str); 5] = [
    ("sealed memory", Call::SealedMemory, "every pool and everything engines share is a sealed memfd"),
    ("event fds", Call::EventFd, "sleeping workers are woken by them"),
    ("epoll", Call::Epoll, "engines wait for each other's words with it"),
    ("sockets", Call::Sockets, "engines meet over Unix sockets and pass memory as descriptors"),
    ("threads", Call::Thread, "an engine has a thread of its own and one for each worker, unless it is inline"),
];

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let mut findings = vec![version(host)];
    findings.extend(CALLS.iter().map(|&(name, call, stands)| needed(host, name, call, stands)));
    findings.push(pidfd(host));
    findings
}

fn version(host: &Host) -> Finding {
    let Some(release) = host.word("/proc/sys/kernel/osrelease") else {
        return Finding::unknown(TOPIC, "version", "/proc cannot be read")
            .means("most of what follows is read from /proc, and so are a pool's pages and limits by the engine")
            .mend(host.as_root("mount -t proc proc /proc"));
    };
    match parse::release(&release) {
        None => Finding::unknown(TOPIC, "version", format!("`{release}` is no version that we can read")),
        Some(found) if found < NEEDED => Finding::broken(TOPIC, "version", format!("Linux {release}"))
            .means(
                "engines share memory that only its owner may write (F_SEAL_FUTURE_WRITE), which came with Linux 5.1",
            )
            .mend(Mend::advice(By::Root, "boot Linux 5.1 or later; 5.14 or later is better")),
        Some(found) if found < POPULATES => Finding::limited(TOPIC, "version", format!("Linux {release}"))
            .means("pools are filled page by page when they are made, which takes longer (no MADV_POPULATE_WRITE)")
            .mend(Mend::advice(By::Root, "boot Linux 5.14 or later")),
        Some(_) => Finding::ok(TOPIC, "version", format!("Linux {release}")),
    }
}

fn needed(host: &Host, name: &'static str, call: Call, stands: &str) -> Finding {
    match host.try_call(call) {
        Ok(_) => Finding::ok(TOPIC, name, "work"),
        Err(refusal) if matches!(refusal, crate::host::Refusal::Untried(_)) => {
            Finding::unknown(TOPIC, name, refusal.to_string()).means(stands)
        }
        Err(refusal) => {
            let (why, mends) = refused::why(host, call, &refusal);
            let finding = if call == Call::Thread && host.asked().workers == 0 {
                Finding::limited(TOPIC, name, why).means(format!("{stands}: only inline engines start"))
            } else {
                Finding::broken(TOPIC, name, why).means(format!("{stands}: no engine starts without"))
            };
            finding.mends(mends)
        }
    }
}

fn pidfd(host: &Host) -> Finding {
    match host.try_call(Call::Pidfd) {
        Ok(_) => Finding::ok(TOPIC, "pidfd", "works"),
        Err(refusal) => {
            let (why, mends) = refused::why(host, Call::Pidfd, &refusal);
            let means = "the death of a peer cannot be proven: what it may still have been writing stays quarantined, \
                         and memory of other processes is not touched";
            Finding::missing(TOPIC, "pidfd", why).means(means).on(&[Way::ProcessVm]).mends(mends)
        }
    }
}
