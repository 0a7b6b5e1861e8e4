//! User and pid namespaces.

use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::topic::Topic;

const TOPIC: Topic = Topic::Namespaces;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let mut findings = vec![users(host), processes(host)];
    findings.extend(foreign_proc(host));
    findings
}

fn users(host: &Host) -> Finding {
    const NAME: &str = "user namespace";
    if !host.exists("/proc/self/status") {
        return Finding::unknown(TOPIC, NAME, "/proc/self cannot be read");
    }
    let map = host.text("/proc/self/uid_map").unwrap_or_default();
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let is_whole = matches!(lines.as_slice(), [line] if line.as_slice() == ["0", "0", "4294967295"]);
    if !host.in_user_namespace() && (is_whole || lines.is_empty()) {
        return Finding::ok(TOPIC, NAME, "the host's own");
    }
    let mapped: Vec<String> = lines.iter().filter_map(|line| mapped(line)).collect();
    let found = match mapped.as_slice() {
        [] => "one of its own, with no users mapped into it".to_owned(),
        mapped => format!("one of its own: {}", mapped.join(", ")),
    };
    let finding = Finding::limited(TOPIC, NAME, found).means(
        "engines outside count as the same user only where this map leads to theirs, and process_vm \
         reaches no memory of processes outside from in here",
    );
    if host.in_container() {
        return finding.mend(Mend::outside("docker run --userns=host …   # podman: --userns=keep-id"));
    }
    finding.mend(Mend::advice(
        By::Outside,
        "start all engines in one user namespace, or this one without `unshare --user`",
    ))
}

/// `user 0 here is 1000 outside`.
fn mapped(line: &[&str]) -> Option<String> {
    let &[inside, outside, many] = line else { return None };
    if many == "1" {
        return Some(format!("user {inside} here is {outside} outside"));
    }
    let last = |first: &str| Some(first.parse::<u64>().ok()?.checked_add(many.parse::<u64>().ok()?)?.saturating_sub(1));
    Some(format!("users {inside}-{} here are {outside}-{} outside", last(inside)?, last(outside)?))
}

fn processes(host: &Host) -> Finding {
    const NAME: &str = "pid namespace";
    if host.link("/proc/self/ns/pid").is_none() {
        return Finding::unknown(TOPIC, NAME, "/proc/self/ns/pid cannot be read");
    }
    if !host.in_pid_namespace() {
        return Finding::ok(TOPIC, NAME, "the host's own");
    }
    let mend = if host.in_container() {
        vec![
            Mend::outside("docker run --pid=container:NAME …   # the namespace of a container with another engine"),
            Mend::advice(By::Outside, "Kubernetes: shareProcessNamespace: true, for engines in one pod"),
        ]
    } else {
        vec![Mend::advice(By::Outside, "start all engines in one pid namespace, or this one without `unshare --pid`")]
    };
    Finding::limited(TOPIC, NAME, "one of its own")
        .means(
            "engines outside cannot be named by a process id: their death cannot be watched, so what they may still be \
             writing when they vanish stays quarantined, and their own memory is not reached by process_vm",
        )
        .mends(mend)
}

/// `/proc` that shows another namespace than this process lives in.
fn foreign_proc(host: &Host) -> Option<Finding> {
    let shown = host.link("/proc/self")?;
    let own = host.system().process();
    (shown != own.to_string()).then(|| {
        Finding::limited(
            TOPIC,
            "/proc",
            format!("shows another pid namespace: this process is {own}, and {shown} there"),
        )
        .means("nothing for the engine; tools that look up a process id there find another process")
        .mend(host.as_root("mount -t proc proc /proc"))
        .mend(Mend::you("unshare --fork --pid --mount-proc …   # if that is how this was started"))
    })
}
