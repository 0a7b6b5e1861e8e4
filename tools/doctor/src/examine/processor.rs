//! Instructions, cores and the clock.

use super::super::parse::{count, listed, members};
use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::parse;
use crate::topic::Topic;

const TOPIC: Topic = Topic::Processor;

/// Clocks that are read without a system call.
const QUICK_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let mut findings = vec![instructions(host), cores(host)];
    findings.extend(asked_cores(host));
    findings.push(clock(host));
    findings
}

fn instructions(host: &Host) -> Finding {
    const NAME: &str = "instructions";
    let Some(text) = host.text("/proc/cpuinfo") else {
        return Finding::unknown(TOPIC, NAME, "/proc/cpuinfo cannot be read");
    };
    let model = parse::field(&text, "model name").unwrap_or("unnamed processor").to_owned();
    let Some(flags) = parse::field(&text, "flags") else {
        let found = "not an x86 processor: blocks are copied by the portable kernel";
        return Finding::limited(TOPIC, NAME, found)
            .means("large copies go through the caches; this processor is a target, but not tested")
            .mend(Mend::advice(By::Outside, "nothing to do: no kernel of its own exists for this processor yet"));
    };
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    if has("avx512f") || has("avx2") {
        let best = if has("avx512f") { "AVX-512" } else { "AVX2" };
        return Finding::ok(TOPIC, NAME, format!("{best} copies blocks ({model})"));
    }
    Finding::limited(TOPIC, NAME, format!("neither AVX2 nor AVX-512 ({model})"))
        .means("large copies go through the caches, which is slower and evicts what others have there")
        .mend(Mend::advice(
            By::Outside,
            "on a virtual machine: give it the host's processor (qemu: -cpu host; libvirt: <cpu mode='host-passthrough'/>)",
        ))
}

fn cores(host: &Host) -> Finding {
    const NAME: &str = "cores";
    let online = host.word("/sys/devices/system/cpu/online").map(|list| members(&list));
    let allowed = host.status("Cpus_allowed_list").map(|list| (members(&list), list));
    let (Some(online), Some((allowed, list))) = (online, allowed) else {
        return Finding::unknown(TOPIC, NAME, "/sys/devices/system/cpu or /proc/self/status cannot be read");
    };
    let here = online.iter().filter(|core| allowed.contains(core)).count();
    if here == online.len() {
        return Finding::ok(TOPIC, NAME, format!("{}, all for this process", count(here, "core")));
    }
    let whole = format!("0-{}", online.iter().max().copied().unwrap_or(0));
    let mut mends = vec![Mend::you(format!("taskset -pc {whole} $$   # this shell, and what it starts"))];
    if let Some(service) = host.service() {
        mends.insert(0, host.as_root(&format!("systemctl set-property {service} AllowedCPUs=")));
    }
    if host.in_container() {
        mends.insert(0, Mend::outside("docker run … without --cpuset-cpus"));
    }
    Finding::limited(TOPIC, NAME, format!("{here} of {} (list {list})", count(online.len(), "core")))
        .means("workers, and whatever else runs here, share these; `workers.cores` can name no others")
        .mends(mends)
}

/// Cores that the configuration names and this process may not use.
fn asked_cores(host: &Host) -> Option<Finding> {
    let allowed = host.status("Cpus_allowed_list").map(|list| members(&list))?;
    let barred = host.asked().cores.iter().filter(|core| !allowed.contains(core)).map(usize::to_string);
    let barred: Vec<String> = barred.collect();
    let named = if barred.len() == 1 { "core" } else { "cores" };
    (!barred.is_empty()).then(|| {
        Finding::limited(TOPIC, "workers.cores", format!("this process may not use {named} {}", listed(&barred)))
            .means("the workers that were to run there run wherever the scheduler puts them, and the log says so")
            .mend(Mend::advice(By::You, "name other cores in `workers.cores`, or none"))
    })
}

fn clock(host: &Host) -> Finding {
    const NAME: &str = "clock";
    let Some(clock) = host.word(format!("{CLOCKS}/current_clocksource")) else {
        return Finding::unknown(TOPIC, NAME, format!("{CLOCKS} cannot be read"));
    };
    if QUICK_CLOCKS.contains(&clock.as_str()) {
        return Finding::ok(TOPIC, NAME, format!("{clock}, read without a system call"));
    }
    let others = host.word(format!("{CLOCKS}/available_clocksource")).unwrap_or_default();
    let better = others.split_whitespace().find(|name| QUICK_CLOCKS.contains(name));
    let mend = match better {
        Some(better) => host.setting(&format!("{CLOCKS}/current_clocksource"), better),
        None => Mend::advice(By::Root, "boot with tsc=reliable if the processor's counters are known to agree"),
    };
    Finding::limited(TOPIC, NAME, format!("{clock}, which costs a system call at each look"))
        .means("deadlines cost a look at the clock in each turn of a worker while transfers wait: that is slower here")
        .mend(mend)
}
