//! `/dev/shm`, which Penstock itself does not use.

use crate::finding::Finding;
use crate::host::Host;
use crate::parse::size;
use crate::topic::Topic;

const TOPIC: Topic = Topic::Shm;
const NAME: &str = "/dev/shm";

/// What containers get that ask for nothing.
const CONTAINER_BYTES: u64 = 64 << 20;

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    const NOT_OURS: &str = "nothing for Penstock: its pools are memfds, which this size does not bound (see \
                            `penstock doctor cgroup`); programs beside it such as NCCL, UCX and data loaders";
    let Ok(space) = host.system().space(&host.at(NAME)) else {
        let finding = Finding::missing(TOPIC, NAME, "it is not here").means(format!("{NOT_OURS} fail without it"));
        return vec![
            finding.mend(host.as_root("sh -c 'mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm'")),
        ];
    };
    let found =
        format!("{}, {} of it free; pools are memfds and do not use it", size(space.bytes), size(space.bytes_free));
    if space.bytes_free > CONTAINER_BYTES {
        return vec![Finding::ok(TOPIC, NAME, found)];
    }
    let found = format!("{}, {} of it free", size(space.bytes), size(space.bytes_free));
    let finding = Finding::limited(TOPIC, NAME, found).means(format!("{NOT_OURS} may fail"));
    let remount = host.as_root("mount -o remount,size=50% /dev/shm");
    vec![if host.in_container() {
        finding.mend(crate::finding::Mend::outside("docker run --shm-size=8g …"))
    } else {
        finding.mend(remount)
    }]
}
