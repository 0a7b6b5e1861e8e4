//! Huge pages, set aside or transparent.

use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::parse::{chosen, size};
use crate::topic::Topic;

const TOPIC: Topic = Topic::HugePages;
const SIZES: &str = "/sys/kernel/mm/hugepages";
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";

/// Pages that a pool with `pages: huge` is made of.
const POOL_PAGES: &str = "hugepages-2048kB";
/// How many of them the mend sets aside: a gibibyte.
const SET_ASIDE: &str = "512";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let transparent = transparent(host);
    let mut findings = vec![set_aside(host)];
    findings.extend(others(host));
    findings.push(transparent);
    findings
}

fn set_aside(host: &Host) -> Finding {
    const NAME: &str = "set aside";
    const MEANS: &str = "pools that ask for them (`memory.pages: huge`) get what the kernel gives instead";
    let folder = format!("{SIZES}/{POOL_PAGES}");
    let (Some(all), Some(free)) =
        (host.number(format!("{folder}/nr_hugepages")), host.number(format!("{folder}/free_hugepages")))
    else {
        return Finding::missing(TOPIC, NAME, "this kernel has no huge pages of 2 MiB")
            .means(MEANS)
            .mend(Mend::advice(By::Root, "boot a kernel that has them (CONFIG_HUGETLBFS; a default on x86-64)"));
    };
    let reserved = host.number(format!("{folder}/resv_hugepages")).unwrap_or(0);
    let left = free.saturating_sub(reserved);
    if left > 0 {
        return Finding::ok(
            TOPIC,
            NAME,
            format!("{} in pages of 2 MiB, {} of them free", size(all << 21), size(left << 21)),
        );
    }
    let found = if all == 0 { "none".to_owned() } else { format!("{} in pages of 2 MiB, all in use", size(all << 21)) };
    let wanted = if all == 0 { SET_ASIDE.to_owned() } else { (all * 2).to_string() };
    Finding::limited(TOPIC, NAME, found).means(MEANS).mend(host.setting(&format!("{folder}/nr_hugepages"), &wanted))
}

/// Sizes that pools do not use but DPDK does: said only where some are set aside.
fn others(host: &Host) -> Vec<Finding> {
    let sizes = host.names(SIZES);
    let others = sizes.iter().filter(|name| *name != POOL_PAGES).filter_map(|name| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let all = host.number(format!("{SIZES}/{name}/nr_hugepages")).filter(|&all| all > 0)?;
        let free = host.number(format!("{SIZES}/{name}/free_hugepages")).unwrap_or(0);
        let found = format!("{all} pages of {}, {free} of them free; pools are not made of these", size(kib << 10));
        Some(Finding::ok(TOPIC, "other sizes", found))
    });
    others.collect()
}

fn transparent(host: &Host) -> Finding {
    const NAME: &str = "transparent";
    const MEANS: &str =
        "pools get pages of 4 KiB unless huge ones were set aside: scattered copies miss the address cache";
    let choice =
        |file: &str| host.word(format!("{TRANSPARENT}/{file}")).and_then(|text| chosen(&text).map(str::to_owned));
    let own = choice("hugepages-2048kB/shmem_enabled");
    let (file, word) = match own {
        Some(word) if word != "inherit" => ("hugepages-2048kB/shmem_enabled", Some(word)),
        _ => ("shmem_enabled", choice("shmem_enabled")),
    };
    match word.as_deref() {
        Some(word @ ("always" | "within_size" | "advise" | "force")) => {
            Finding::ok(TOPIC, NAME, format!("given to shared memory that asks ({word})"))
        }
        Some(word) => Finding::limited(TOPIC, NAME, format!("off for shared memory ({word})"))
            .means(MEANS)
            .mend(host.setting(&format!("{TRANSPARENT}/{file}"), "advise")),
        None => Finding::limited(TOPIC, NAME, "this kernel has none for shared memory")
            .means(MEANS)
            .mend(host.setting(&format!("{SIZES}/{POOL_PAGES}/nr_hugepages"), SET_ASIDE)),
    }
}
