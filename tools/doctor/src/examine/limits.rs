//! The limits of this process.

use crate::finding::Finding;
use crate::host::{Call, Host, LimitNames, Refusal};
use crate::parse::size;
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Limits;

/// Descriptors of a program with one engine of one worker, before it has peers; a few are left for the program.
pub const ENGINE_FILES: u64 = 20;
/// Descriptors that each peer adds, with one pool of its own that is used.
pub const PEER_FILES: u64 = 8;
/// Peers that a host of ordinary size may well have.
const PEERS: u64 = 100;
/// Open files to ask for.
const FILES: &str = "65536";

/// Locking as much as one likes.
const CAP_IPC_LOCK: u32 = 14;

/// Soft and hard; none is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    soft: Option<u64>,
    hard: Option<u64>,
}

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let Some(text) = host.text("/proc/self/limits") else {
        return vec![Finding::unknown(TOPIC, "limits", "/proc/self/limits cannot be read")];
    };
    let limit = |name: &str| limit(&text, name);
    let found = [
        limit("Max open files").map(|limit| open_files(host, limit)),
        limit("Max locked memory").map(|limit| locked_memory(host, limit)),
        limit("Max file size").map(|limit| file_size(host, limit)),
        limit("Max address space").map(|limit| address_space(host, limit)),
        limit("Max processes").map(|limit| processes(host, limit)),
    ];
    found.into_iter().flatten().collect()
}

/// A line such as `Max open files            1024                 524288               files`.
fn limit(text: &str, name: &str) -> Option<Limit> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = rest.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Limit { soft: next()?, hard: next()? })
}

fn open_files(host: &Host, limit: Limit) -> Finding {
    const NAME: &str = "open files";
    const NAMES: LimitNames =
        LimitNames { ulimit: "n", prlimit: "nofile", service: "LimitNOFILE", container: Some("nofile") };
    let Some(soft) = limit.soft else { return Finding::ok(TOPIC, NAME, "unlimited") };
    let peers = soft.saturating_sub(ENGINE_FILES) / PEER_FILES;
    let found = format!("{soft}, enough for about {peers} peers");
    if peers >= PEERS {
        return Finding::ok(TOPIC, NAME, found);
    }
    let hard = limit.hard.unwrap_or(u64::MAX);
    // As much as one may take oneself, where that suffices.
    let enough = ENGINE_FILES + PEERS * PEER_FILES;
    let (value, hard_allows) = if hard >= 65_536 {
        (FILES.to_owned(), true)
    } else if hard >= enough {
        (hard.to_string(), true)
    } else {
        (FILES.to_owned(), false)
    };
    let mends = host.raise(&NAMES, &value, hard_allows);
    if peers == 0 {
        return Finding::broken(TOPIC, NAME, format!("{soft}, too few for an engine and one peer"))
            .means(format!("an engine takes about {ENGINE_FILES} descriptors, and each peer about {PEER_FILES}"))
            .mends(mends);
    }
    Finding::limited(TOPIC, NAME, found)
        .means(format!(
            "each peer takes about {PEER_FILES} descriptors and one for each further pool; the next is refused"
        ))
        .mends(mends)
}

fn locked_memory(host: &Host, limit: Limit) -> Finding {
    const NOW: &str = "RDMA locks each pool and each region that it reaches: beyond this all together it is refused";
    const LATER: &str = "nothing in this release, which locks no memory; RDMA, DPDK and GPUs lock all that they reach";
    locked(host, TOPIC, limit).means_if_limited(if Way::Verbs.is_released() { NOW } else { LATER })
}

/// How much memory may be locked, for a topic that needs it.
pub(super) fn lockable(host: &Host, topic: Topic) -> Option<Finding> {
    limit(&host.text("/proc/self/limits")?, "Max locked memory").map(|limit| locked(host, topic, limit))
}

fn locked(host: &Host, topic: Topic, limit: Limit) -> Finding {
    const NAME: &str = "locked memory";
    const NAMES: LimitNames =
        LimitNames { ulimit: "l", prlimit: "memlock", service: "LimitMEMLOCK", container: Some("memlock") };
    let Some(soft) = limit.soft else { return Finding::ok(topic, NAME, "unlimited") };
    if host.has_capability(CAP_IPC_LOCK) {
        let found = format!("{}, but this process is above the limit (CAP_IPC_LOCK)", size(soft));
        return Finding::ok(topic, NAME, found);
    }
    Finding::limited(topic, NAME, size(soft)).mends(host.raise(&NAMES, "unlimited", limit.hard.is_none()))
}

fn file_size(host: &Host, limit: Limit) -> Finding {
    const NAME: &str = "file size";
    const NAMES: LimitNames =
        LimitNames { ulimit: "f", prlimit: "fsize", service: "LimitFSIZE", container: Some("fsize") };
    let Some(soft) = limit.soft else { return Finding::ok(TOPIC, NAME, "unlimited") };
    Finding::limited(TOPIC, NAME, size(soft))
        .means("it bounds memfds too: a process that makes a larger pool is killed by SIGXFSZ")
        .mends(host.raise(&NAMES, "unlimited", limit.hard.is_none()))
}

/// All threads of this user count.
fn processes(host: &Host, limit: Limit) -> Finding {
    const NAME: &str = "processes";
    const NAMES: LimitNames =
        LimitNames { ulimit: "u", prlimit: "nproc", service: "LimitNPROC", container: Some("nproc") };
    let shown =
        limit.soft.map_or_else(|| "unlimited".to_owned(), |soft| format!("{soft} of this user, threads included"));
    let refusal = match host.try_call(Call::Thread) {
        Err(refusal @ Refusal::Errno(_)) if limit.soft.is_some() => refusal,
        _ => return Finding::ok(TOPIC, NAME, shown),
    };
    Finding::limited(TOPIC, NAME, format!("{shown}; not one more can be started ({refusal})"))
        .means("no engine with threads of its own starts: it takes one, and one for each worker")
        .mends(host.raise(&NAMES, "unlimited", limit.hard.is_none()))
}

fn address_space(host: &Host, limit: Limit) -> Finding {
    const NAME: &str = "address space";
    const NAMES: LimitNames = LimitNames { ulimit: "v", prlimit: "as", service: "LimitAS", container: None };
    let Some(soft) = limit.soft else { return Finding::ok(TOPIC, NAME, "unlimited") };
    Finding::limited(TOPIC, NAME, size(soft))
        .means("own pools and those of all peers are mapped: together with the program they must fit into this")
        .mends(host.raise(&NAMES, "unlimited", limit.hard.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_limits_are_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax file size   unlimited   unlimited   bytes\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(limit(text, "Max open files"), Some(Limit { soft: Some(1024), hard: Some(524_288) }));
        assert_eq!(limit(text, "Max file size"), Some(Limit { soft: None, hard: None }));
        assert_eq!(limit(text, "Max nothing"), None);
    }
}
