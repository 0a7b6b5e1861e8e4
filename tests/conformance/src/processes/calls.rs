//! Calls of the public API that more than one case makes.

use penstock::flows::relay::{Destination, Extents, Fetch, Put, Relay, RelayOp};
use penstock::flows::{Finished, FlowError, RequestId};
use penstock::{Blocks, SystemEnv};

use super::end::End;
use crate::Peer;

/// Where a token of a block begins in the memory of a layout.
pub fn offset(end: &End, layer: u32, block: u32, token: u32) -> u64 {
    end.layout.offset(layer as usize, block, token).expect("the token is of the layout")
}

/// Puts blocks of a layout where they lie.
pub fn put_blocks(
    relay: &Relay<SystemEnv>,
    end: &End,
    blocks: &Blocks,
    request: &RequestId,
    to: &Peer,
) -> Result<RelayOp<SystemEnv>, FlowError> {
    relay.put(Put::extents(Extents::blocks(&end.layout, &[blocks])), request, &[to])
}

/// What `drain_finished` has named.
pub struct Drained {
    /// The requests.
    pub requests: Vec<RequestId>,
    /// Whether one of them has failed.
    pub has_failed: bool,
    /// Memory that transfers of theirs may still touch, as offsets and lengths.
    pub quarantined: Vec<(u64, u64)>,
}

/// What has ended since the last call.
pub fn drain(end: &End) -> Drained {
    let mut finished = Finished::default();
    end.engine.drain_finished(&mut finished);
    let has_failed = !finished.failed.is_empty();
    let quarantined = finished.quarantined.into_iter().flat_map(|request| request.extents).collect();
    let requests = finished.failed.into_iter().chain(finished.received).chain(finished.sent).collect();
    Drained { requests, has_failed, quarantined }
}

/// The same, of which nobody is told before it is ready.
pub fn put_blocks_later(
    relay: &Relay<SystemEnv>,
    end: &End,
    blocks: &Blocks,
    request: &RequestId,
    to: &Peer,
) -> Result<RelayOp<SystemEnv>, FlowError> {
    relay.put(Put::extents(Extents::blocks(&end.layout, &[blocks])).not_ready(), request, &[to])
}

/// Gets into blocks of a layout where they lie.
pub fn get_blocks(
    relay: &Relay<SystemEnv>,
    end: &End,
    blocks: &Blocks,
    metadata: &[u8],
) -> Result<Fetch<SystemEnv>, FlowError> {
    relay.get(metadata, Destination::extents(Extents::blocks(&end.layout, &[blocks])))
}
