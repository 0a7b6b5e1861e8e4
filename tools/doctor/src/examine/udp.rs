//! Buffers of UDP sockets.

use crate::finding::Finding;
use crate::host::Host;
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Udp;
const RECEIVE_MAX: &str = "/proc/sys/net/core/rmem_max";
const SEND_MAX: &str = "/proc/sys/net/core/wmem_max";
/// What several peers fill at the rate of a fast card while this process is not scheduled for a millisecond, and what is asked for.
const WISHED: u64 = 4 << 20;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    const RECEIVED: &str = "peers that send in datagrams wait for each other, or for every answer";
    const SENT: &str = "bursts of datagrams wait in the engine";
    vec![
        buffer(host, "receive buffer", RECEIVE_MAX, "net.core.rmem_max", RECEIVED),
        buffer(host, "send buffer", SEND_MAX, "net.core.wmem_max", SENT),
    ]
}

fn buffer(host: &Host, name: &'static str, path: &str, key: &str, means: &'static str) -> Finding {
    match host.number(path) {
        None => Finding::unknown(TOPIC, name, format!("{path} cannot be read")),
        Some(bytes) if bytes >= WISHED => Finding::ok(TOPIC, name, format!("up to {bytes} B ({key})")),
        Some(bytes) => Finding::limited(TOPIC, name, format!("up to {bytes} B ({key}); {WISHED} are better"))
            .means(means)
            .mend(host.sysctl(key, &WISHED.to_string())),
    }
    .on(&[Way::Datagram])
}
