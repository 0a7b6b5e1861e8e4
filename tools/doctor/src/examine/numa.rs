//! Memory nodes.

use super::refused;
use crate::finding::Finding;
use crate::host::{Call, Host};
use crate::parse::{count, listed, members, meminfo, size};
use crate::topic::Topic;

const TOPIC: Topic = Topic::Numa;
const NODES: &str = "/sys/devices/system/node";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let Some(online) = host.word(format!("{NODES}/online")).map(|list| members(&list)) else {
        return vec![Finding::ok(TOPIC, "nodes", "one: this kernel knows no others")];
    };
    let mut findings = vec![nodes(host, &online), placing(host, online.len())];
    findings.extend(balancing(host, online.len()));
    findings
}

fn nodes(host: &Host, online: &[usize]) -> Finding {
    let described = online.iter().map(|node| {
        let cores = host.word(format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
        let text = host.text(format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
        // Each line begins with the node's own name.
        let text = text.replace(&format!("Node {node} "), "");
        let bytes = meminfo(&text, "MemTotal").map_or_else(|| "?".to_owned(), size);
        format!("node {node}: {bytes}, cores {}", if cores.is_empty() { "none" } else { &cores })
    });
    let described: Vec<String> = described.collect();
    let found = format!("{} ({})", count(online.len(), "node"), described.join("; "));
    let allowed = host.status("Mems_allowed_list").map(|list| members(&list));
    let barred = online.iter().filter(|node| allowed.as_ref().is_some_and(|allowed| !allowed.contains(node)));
    let barred: Vec<String> = barred.map(usize::to_string).collect();
    if barred.is_empty() {
        return Finding::ok(TOPIC, "nodes", found);
    }
    let mend = match host.service() {
        Some(service) => host.as_root(&format!("systemctl set-property {service} AllowedMemoryNodes=")),
        None => crate::finding::Mend::outside("whoever set cpuset.mems of this control group must add the nodes"),
    };
    Finding::limited(TOPIC, "nodes", format!("{found}; not for this process: {}", listed(&barred)))
        .means("pools cannot be placed there, and what is there is not near to this process's cores")
        .mend(mend)
}

/// Asking for memory near a core.
fn placing(host: &Host, nodes: usize) -> Finding {
    const NAME: &str = "placing";
    match host.try_call(Call::NodePolicy) {
        Ok(_) => Finding::ok(TOPIC, NAME, "a pool can ask for its node"),
        Err(refusal) => {
            let (why, mends) = refused::why(host, Call::NodePolicy, &refusal);
            let found = format!("a pool cannot ask for its node: {why}");
            if nodes < 2 {
                return Finding::ok(TOPIC, NAME, format!("{found}; with one node that costs nothing"));
            }
            Finding::limited(TOPIC, NAME, found)
                .means("a pool with a node is refused, and without one lies wherever its creator happens to run")
                .mends(mends)
        }
    }
}

fn balancing(host: &Host, nodes: usize) -> Option<Finding> {
    let on = host.number("/proc/sys/kernel/numa_balancing").is_some_and(|mode| mode != 0);
    (on && nodes > 1).then(|| {
        Finding::limited(TOPIC, "balancing", "the kernel moves pages to where they are used (numa_balancing)")
            .means("now and then it unmaps pages to see who wants them, and copies take faults in the middle")
            .mend(host.sysctl("kernel.numa_balancing", "0"))
    })
}
