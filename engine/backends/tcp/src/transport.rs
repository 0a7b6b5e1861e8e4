//! Reaching, offering and joining between two hosts.

use std::io;
use std::sync::Arc;

use penstock_core::config::TcpIo;
use penstock_memory::{MemoryError, Registry};
use penstock_transport::host::EngineSegments;
use penstock_transport::link::Offering;
use penstock_transport::mediated::{LaneTarget, TargetMediatedRegistrar};
use penstock_transport::{
    AccessPath, Caps, Driver, JoinError, Lane, Link, LocalEnd, PeerView, Placement, RemoteEnd, RemoteGateLog, Scope,
    Transport, Trust,
};

use crate::channel::Channel;
use crate::driver::TcpDriver;
use crate::hub::Hub;
use crate::incoming::DISCARD_BYTES;
use crate::io::PieceSpace;
use crate::lane::TcpLane;
use crate::offer;
use crate::stream::Common;
use crate::streams::{Arrivals, StreamReceiver, TcpStreams};

/// Exports regions to, and imports them from, engines on other hosts.
pub const REGISTRAR: TargetMediatedRegistrar =
    TargetMediatedRegistrar { name: AccessPath::TCP, reason: "the peer is met over the network" };

/// The transport between two hosts.
pub struct TcpTransport {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    streams: usize,
    /// One for each worker.
    hubs: Vec<Arc<Hub>>,
}

impl TcpTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "tcp";

    /// The transport of the engine with these segments and these regions, with so many streams to a peer for each worker.
    pub fn new(
        segments: Arc<EngineSegments>,
        registry: Arc<Registry>,
        choice: TcpIo,
        streams: usize,
    ) -> io::Result<Self> {
        let hubs = (0..segments.workers()).map(|_| Hub::open(choice).map(Arc::new)).collect::<io::Result<_>>()?;
        Ok(Self { segments, registry, streams, hubs })
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Checked,
            // The peer says that it is done once the kernel has copied the bytes to their places.
            placement: Placement::AtCompletion,
            synchronous: false,
            ordered: true,
            multi_worker: true,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, _: &RemoteEnd) -> Result<&'static str, &'static str> {
        Ok("the engines have met over the network")
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn driver(&self, worker: usize) -> io::Result<Option<Box<dyn Driver>>> {
        let Some(hub) = self.hubs.get(worker) else { return Ok(None) };
        let ready = self.segments.mailbox.view().ready(worker);
        Ok(Some(Box::new(TcpDriver::new(Arc::clone(hub), ready))))
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let blob = offer::blob(self.streams, here.workers);
        let (segments, registry) = (Arc::clone(&self.segments), Arc::clone(&self.registry));
        let (hubs, streams) = (self.hubs.clone(), self.streams);
        let join = move |blob: &[u8], fds: Vec<_>| {
            if !fds.is_empty() {
                return Err(JoinError::Fds { expected: 0, found: fds.len() });
            }
            let per_channel = offer::accept(blob, streams, there.workers)?;
            Ok(join(&segments, &registry, &hubs, &here, &there, per_channel))
        };
        Ok(Offering { blob, fds: Vec::new(), join: Box::new(join) })
    }
}

fn join(
    segments: &Arc<EngineSegments>,
    registry: &Arc<Registry>,
    hubs: &[Arc<Hub>],
    here: &LocalEnd,
    there: &RemoteEnd,
    per_channel: usize,
) -> Link {
    let workers = hubs.len();
    let channels = workers.max(there.workers);
    let told = Arc::new(RemoteGateLog::default());
    let (mut lanes, mut receivers) = (Vec::<Box<dyn Lane>>::with_capacity(workers), Vec::with_capacity(workers));
    for (worker, hub) in hubs.iter().enumerate() {
        let arrivals = Arc::new(Arrivals::default());
        let ready = segments.mailbox.view().ready(worker);
        let common = Common {
            target: LaneTarget::new(Arc::clone(segments), Arc::clone(registry), here.peer_index, worker),
            pages: segments.owner_state.held_pages(here.peer_index, worker),
            told: Arc::clone(&told),
            space: PieceSpace::new(),
            discard: Box::new([0; DISCARD_BYTES]),
        };
        let bell = segments.ringer(1 + worker);
        receivers.push(StreamReceiver { arrivals: Arc::clone(&arrivals), ready: ready.clone(), bell });
        lanes.push(Box::new(TcpLane {
            common,
            hub: Arc::clone(hub),
            arrivals,
            ready,
            peer_index: here.peer_index,
            channels: (worker..channels).step_by(workers).map(|_| Channel::new(per_channel)).collect(),
            workers,
            per_channel,
        }));
    }
    let name = hubs.first().map_or("", |hub| hub.name());
    let each = if per_channel == 1 { "one stream".to_owned() } else { format!("{per_channel} streams") };
    Link {
        lanes,
        registrar: Arc::new(REGISTRAR),
        peer_view: PeerView::Reported(told),
        streams: Some(Arc::new(TcpStreams::new(channels, per_channel, here.peer_index, receivers))),
        transport_messages: None,
        rails: Vec::new(),
        path: format!("over the network by TCP, {channels} channels of {each}, {name}"),
    }
}
