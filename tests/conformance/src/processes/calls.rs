//! The calls of the public API whose form the cases do not depend on, in one place.

use penstock::flows::relay::{Destination, Extents, Fetch, Put, Relay, RelayOp};
use penstock::flows::{Finished, FlowError, Gate, Input, Output, RequestId, Send};
use penstock::{Blocks, SystemEnv};

use super::end::End;
use crate::Peer;

/// Where a token of a block begins in the memory of a layout.
pub fn offset(end: &End, layer: u32, block: u32, token: u32) -> u64 {
    end.layout.offset(layer as usize, block, token).expect("the token is of the layout")
}

/// A layer is ready for the first so many tokens.
pub fn layer(output: &Output<SystemEnv>, layer: u32, tokens: u64) -> Result<(), FlowError> {
    output.layer(layer, tokens)
}

/// A layer is ready for the first so many tokens when the gate opens.
pub fn layer_after(
    output: &Output<SystemEnv>,
    layer: u32,
    tokens: u64,
    gate: &Gate<SystemEnv>,
) -> Result<(), FlowError> {
    output.layer_after(layer, tokens, gate)
}

/// Grants blocks with one that takes what goes once.
pub fn grant_once(input: &Input<SystemEnv>, blocks: &Blocks, once: &Blocks) -> Result<u32, FlowError> {
    input.grant_with(blocks, 0, Some(once))
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

/// The block that has what goes once.
pub fn send_once<'a>(how: Send<'a, SystemEnv>, once: &Blocks) -> Send<'a, SystemEnv> {
    how.once(once)
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
