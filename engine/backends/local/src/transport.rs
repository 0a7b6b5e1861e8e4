//! Reaching, offering and joining inside one process.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use penstock_memory::MemoryError;
use penstock_ring::SharedRange;
use penstock_transport::host::{
    CopyLane, CopyLaneParts, EngineSegments, HandOverQueues, HandOvers, InboundRings, ring_segment_bytes,
};
use penstock_transport::link::Offering;
use penstock_transport::{Caps, Devices, JoinError, Link, LocalEnd, PeerView, Placement, RemoteEnd, Transport, Trust};

use crate::directory::{self, Deposit, Parcel, Regions};
use crate::registrar::LocalRegistrar;

/// Handles that may wait for the peer beside one ring.
const HANDLES_PER_RING: usize = 1024;

/// The transport between two engines of one process.
pub struct LocalTransport {
    segments: Arc<EngineSegments>,
    regions: Arc<Regions>,
    devices: Option<Arc<dyn Devices>>,
}

impl LocalTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "local";

    /// The transport of the engine with these segments, and with the devices of this process, if it has any.
    pub fn new(segments: Arc<EngineSegments>, devices: Option<Arc<dyn Devices>>) -> Self {
        Self { segments, regions: Arc::default(), devices }
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Cooperative,
            placement: Placement::AtCompletion,
            synchronous: true,
            ordered: false,
            multi_worker: true,
            remote_caller_memory: true,
            hand_over: true,
        }
    }

    fn reaches(&self, here: &LocalEnd, there: &RemoteEnd) -> Result<&'static str, &'static str> {
        if here.host == there.host && here.process == there.process {
            Ok("both engines are in this process: one copy, or a handle without any")
        } else {
            Err("the other engine is in another process")
        }
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let rings = SharedRange::heap(ring_segment_bytes(there.workers));
        let handles: Vec<HandOvers> = (0..there.workers).map(|_| Arc::new(ArrayQueue::new(HANDLES_PER_RING))).collect();
        let deposit = Deposit::make(Parcel {
            segments: Arc::clone(&self.segments),
            regions: Arc::clone(&self.regions),
            rings: rings.clone(),
            handles: handles.clone(),
        });
        let blob = deposit.number().to_le_bytes().to_vec();
        let (segments, regions) = (Arc::clone(&self.segments), Arc::clone(&self.regions));
        let ours = Ours { segments, regions, devices: self.devices.clone(), rings, handles, deposit };
        let join = move |blob: &[u8], _tokens| join(ours, here, there, blob);
        Ok(Offering { blob, fds: Vec::new(), join: Box::new(join) })
    }
}

/// This side of a session that waits for the other's.
struct Ours {
    segments: Arc<EngineSegments>,
    regions: Arc<Regions>,
    devices: Option<Arc<dyn Devices>>,
    rings: SharedRange,
    handles: Vec<HandOvers>,
    deposit: Deposit,
}

fn join(ours: Ours, here: LocalEnd, there: RemoteEnd, blob: &[u8]) -> Result<Link, JoinError> {
    let number = blob.try_into().map(u64::from_le_bytes);
    let number = number.map_err(|_| JoinError::Malformed("a local offer is eight bytes"))?;
    if number == ours.deposit.number() {
        return Err(JoinError::Malformed("it answers with this side's own offer"));
    }
    let parcel = directory::collect(number).ok_or(JoinError::Gone)?;
    if parcel.segments.workers() != there.workers || parcel.handles.len() != here.workers {
        return Err(JoinError::Malformed("the other engine has another number of workers than it said"));
    }
    let theirs = Arc::new(parcel.segments.as_local_peer());
    let lanes = CopyLane::for_each_worker(CopyLaneParts {
        segments: &ours.segments,
        peer_segments: &theirs,
        peer_index: here.peer_index,
        index_at_peer: there.peer_index,
        outbound: &parcel.rings,
        inbound: InboundRings::over(&ours.rings, there.workers)?,
        hand_overs: Some(HandOverQueues { outgoing: parcel.handles, incoming: ours.handles }),
        bounce: None,
        devices: ours.devices.as_ref().map(|devices| (devices, &parcel.segments)),
        kernel: None,
    })?;
    let registrar =
        LocalRegistrar { ours: ours.regions, theirs: parcel.regions, devices: ours.devices, _deposit: ours.deposit };
    Ok(Link {
        lanes,
        registrar: Arc::new(registrar),
        peer_view: PeerView::Shared(theirs),
        streams: None,
        transport_messages: None,
        rails: Vec::new(),
        path: "same process, one copy".to_owned(),
    })
}
