//! How much memory there is, and how much may be promised.

use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::parse::{meminfo, size};
use crate::topic::Topic;

const TOPIC: Topic = Topic::Memory;

/// What `penstock selftest` takes.
const SELFTEST_BYTES: u64 = 400_000_000;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let Some(text) = host.text("/proc/meminfo") else {
        let finding = Finding::unknown(TOPIC, "available", "/proc/meminfo cannot be read");
        return vec![finding.means("pools that cannot fit are not refused before they are filled")];
    };
    vec![available(&text), promised(host, &text)]
}

fn available(text: &str) -> Finding {
    const NAME: &str = "available";
    let (Some(total), Some(available)) = (meminfo(text, "MemTotal"), meminfo(text, "MemAvailable")) else {
        return Finding::unknown(TOPIC, NAME, "/proc/meminfo does not say");
    };
    let found = format!("{} of {}", size(available), size(total));
    if available >= SELFTEST_BYTES {
        return Finding::ok(TOPIC, NAME, found);
    }
    Finding::limited(TOPIC, NAME, found)
        .means("pools are filled when they are made, and one that does not fit is refused; `penstock selftest` takes 400 MB")
        .mend(Mend::advice(By::You, "end what needs the memory: ps -eo pid,rss,comm --sort=-rss | head"))
}

fn promised(host: &Host, text: &str) -> Finding {
    const NAME: &str = "overcommit";
    match host.number("/proc/sys/vm/overcommit_memory") {
        None => Finding::unknown(TOPIC, NAME, "/proc/sys/vm/overcommit_memory cannot be read"),
        Some(2) => {
            let limit = meminfo(text, "CommitLimit").unwrap_or(0);
            let taken = meminfo(text, "Committed_AS").unwrap_or(0);
            let left = size(limit.saturating_sub(taken));
            Finding::limited(TOPIC, NAME, format!("strict (2): {left} of {} may still be promised", size(limit)))
                .means("a pool counts in full when it is made, and is refused beyond that even if memory is free")
                .mend(host.sysctl("vm.overcommit_memory", "0"))
        }
        Some(mode) => {
            let word = if mode == 1 { "always" } else { "by a rule of thumb" };
            Finding::ok(TOPIC, NAME, format!("memory is promised {word} ({mode})"))
        }
    }
}
