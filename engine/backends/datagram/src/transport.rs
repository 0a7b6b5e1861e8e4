//! Reaching, offering and joining between two hosts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::env::TransportEnv;
use penstock_core::limits::WORKERS_MAX;
use penstock_datagram::credit::longest_frame;
use penstock_datagram::wire::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use penstock_datagram::{ConnectionKeys, ConnectionSettings, DatagramConnection, HalfKey};
use penstock_memory::{MemoryError, Registry};
use penstock_transport::host::EngineSegments;
use penstock_transport::link::Offering;
use penstock_transport::mediated::{LaneTarget, TargetMediatedRegistrar};
use penstock_transport::{
    AccessPath, Caps, Driver, JoinError, Lane, Link, LocalEnd, PacketStatistics, PeerPackets, PeerView, Placement,
    RemoteEnd, RemoteGateLog, Scope, Transport, Trust,
};

use crate::driver::DatagramDriver;
use crate::hub::{Endpoint, Hub, OpenPort, Reserved};
use crate::lane::DatagramLane;
use crate::no_path::NoPathNotice;
use crate::offer::DatagramOffer;
use crate::side::Side;

/// Exports regions to, and imports them from, engines on other hosts.
const REGISTRAR: TargetMediatedRegistrar =
    TargetMediatedRegistrar { name: AccessPath::DATAGRAM, reason: "the peer is met over the network" };

/// How connections are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramOptions {
    /// A peer is lost that answers nothing for so long while it is spoken to.
    pub patience: Duration,
    /// Packets are no longer than this, whatever the way carries.
    pub frame_bytes_max: usize,
    /// Ports are opened when the engine starts: others want to hear of them before a session begins.
    pub opens_at_start: bool,
}

impl Default for DatagramOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(5), frame_bytes_max: FRAME_BYTES_MAX, opens_at_start: false }
    }
}

/// The transport between two hosts over packets.
pub struct DatagramTransport {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    env: Arc<dyn TransportEnv>,
    options: DatagramOptions,
    /// One for each worker.
    hubs: Vec<Arc<Hub>>,
}

impl DatagramTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "datagram";

    /// The transport of the engine with these segments and these regions. Each worker's port is opened when a first peer is to be
    /// reached, if not now.
    pub fn new(
        segments: Arc<EngineSegments>,
        registry: Arc<Registry>,
        env: Arc<dyn TransportEnv>,
        open: OpenPort,
        options: DatagramOptions,
    ) -> io::Result<Self> {
        let hub = |worker| Hub::new(Arc::clone(&env), worker, Arc::clone(&open)).map(Arc::new);
        let hubs = (0..segments.workers()).map(hub).collect::<io::Result<Vec<_>>>()?;
        if options.opens_at_start {
            hubs.iter().try_for_each(|hub| hub.with_port(|_| Ok(())))?;
        }
        Ok(Self { segments, registry, env, options, hubs })
    }
}

impl Transport for DatagramTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Checked,
            // The peer says that an operation has finished once its bytes are in their places.
            placement: Placement::AtCompletion,
            synchronous: false,
            ordered: true,
            multi_worker: true,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, there: &RemoteEnd) -> Result<&'static str, &'static str> {
        match there.address {
            Some(_) => Ok("the engines have met over the network"),
            None => Err("the address of the peer is not known"),
        }
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn driver(&self, worker: usize) -> io::Result<Option<Box<dyn Driver>>> {
        let Some(hub) = self.hubs.get(worker) else { return Ok(None) };
        let ready = self.segments.mailbox.view().ready(worker);
        Ok(Some(Box::new(DatagramDriver::new(Arc::clone(hub), ready))))
    }

    fn packets(&self) -> Option<PacketStatistics> {
        let mut sum = PacketStatistics::default();
        self.hubs.iter().for_each(|hub| sum += hub.lock().packets());
        Some(sum)
    }

    fn peer_packets(&self, peer_index: u32) -> Option<PeerPackets> {
        let (mut sum, mut is_met) = (PeerPackets::default(), false);
        self.hubs.iter().for_each(|hub| is_met |= hub.lock().add_peer_packets(peer_index, &mut sum));
        is_met.then_some(sum)
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let failed = |source| MemoryError::System { call: "a port", what: "a session in datagrams", source };
        let offered = Offered::make(self, &here, &there).map_err(failed)?;
        let blob = offered.offer.blob();
        let join = move |blob: &[u8], fds: Vec<_>| {
            if !fds.is_empty() {
                return Err(JoinError::Fds { expected: 0, found: fds.len() });
            }
            offered.join(blob, there.workers)
        };
        Ok(Offering { blob, fds: Vec::new(), join: Box::new(join) })
    }
}

/// Places for connections that wait for the other side's offer. Those that are not joined go when this is dropped.
struct Offered {
    /// What its ports are, as text.
    name: String,
    offer: DatagramOffer,
    /// Its ports send packets of one length together.
    joins_equal: bool,
    /// Each worker reaches one of the peer's.
    pairs_workers: bool,
    unheard_mend: &'static str,
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    env: Arc<dyn TransportEnv>,
    options: DatagramOptions,
    hubs: Vec<Arc<Hub>>,
    peer_index: u32,
    met_at: SocketAddr,
    /// One for each channel.
    places: Vec<Reserved>,
}

impl Offered {
    fn make(transport: &DatagramTransport, here: &LocalEnd, there: &RemoteEnd) -> io::Result<Self> {
        let DatagramTransport { segments, registry, env, options, hubs } = transport;
        let none = || io::Error::other("the address of the peer is not known");
        let met_at = there.address.ok_or_else(none)?;
        // Who says to have more is refused when it is joined.
        let channels = hubs.len().max(there.workers.min(WORKERS_MAX));
        let full = || io::Error::other("a worker has as many connections as it may have");
        let places = (0..channels).map(|channel| hubs[channel % hubs.len()].reserve().ok_or_else(full));
        let places: Vec<Reserved> = places.collect::<io::Result<_>>()?;
        let ports = hubs
            .iter()
            .map(|hub| hub.with_port(|port| Ok((port.facts().clone(), port.frame_bytes(met_at)?))))
            .collect::<io::Result<Vec<_>>>()?;
        let (facts, frame_bytes) = &ports[0];
        let longest = longest_frame(facts.receive_bytes).max(FRAME_BYTES_MIN);
        let offer = DatagramOffer {
            needs_checksums: facts.needs_checksums,
            comes_apart: facts.comes_apart,
            frame_bytes: (*frame_bytes).min(options.frame_bytes_max).min(longest),
            half: half_key(&**env),
            addresses: ports.iter().map(|(facts, _)| facts.address).collect(),
            connections: places.iter().map(|place| place.id).collect(),
        };
        Ok(Self {
            name: facts.name.clone(),
            joins_equal: facts.joins_equal,
            pairs_workers: facts.pairs_workers,
            unheard_mend: facts.unheard_mend,
            offer,
            segments: Arc::clone(segments),
            registry: Arc::clone(registry),
            env: Arc::clone(env),
            options: *options,
            hubs: hubs.clone(),
            peer_index: here.peer_index,
            met_at,
            places,
        })
    }

    fn join(self, blob: &[u8], workers_there: usize) -> Result<Link, JoinError> {
        let (workers, channels) = (self.hubs.len(), self.places.len());
        let theirs = DatagramOffer::parse(blob, workers_there, channels, self.met_at)?;
        let told = Arc::new(RemoteGateLog::default());
        let frame_bytes = self.offer.frame_bytes.min(theirs.frame_bytes);
        let notice = Arc::new(NoPathNotice::new(self.met_at, self.unheard_mend));
        let lane = |(worker, hub): (usize, &Arc<Hub>)| DatagramLane {
            segments: Arc::clone(&self.segments),
            told: Arc::clone(&told),
            ready: self.segments.mailbox.view().ready(worker),
            peer_index: self.peer_index,
            hub: Arc::clone(hub),
            connections: Vec::new(),
            notice: Arc::clone(&notice),
        };
        let mut lanes: Vec<DatagramLane> = self.hubs.iter().enumerate().map(lane).collect();
        if self.pairs_workers && workers != workers_there {
            return Err(JoinError::NoPath(format!(
                "this engine has {workers} workers and the peer {workers_there}, and each reaches one: set `workers.count` alike on both"
            )));
        }
        for &address in &theirs.addresses {
            let reach = |hub: &Arc<Hub>| hub.with_port(|port| port.reach(address));
            self.hubs.iter().try_for_each(reach).map_err(|error| JoinError::NoPath(error.to_string()))?;
        }
        let now = self.env.now();
        for (channel, place) in self.places.into_iter().enumerate() {
            let (worker, remote_connection) = (channel % workers, theirs.connections[channel]);
            let settings = ConnectionSettings {
                frame_bytes,
                checksums: self.offer.needs_checksums || theirs.needs_checksums,
                pads: self.joins_equal && !theirs.comes_apart,
                patience: self.options.patience,
                local_connection: place.id,
                remote_connection,
            };
            let keys = ConnectionKeys::derive(&self.offer.half, &theirs.half, place.id, remote_connection);
            let target =
                LaneTarget::new(Arc::clone(&self.segments), Arc::clone(&self.registry), self.peer_index, worker);
            let connection = DatagramConnection::new(settings, keys, now);
            let side = Side::new(target, Arc::clone(&told));
            let address = theirs.addresses[channel % workers_there];
            let endpoint =
                Endpoint::new(connection, side, address, frame_bytes, self.peer_index, self.unheard_mend, now);
            place.hub.lock().connect(place.id, endpoint, theirs.comes_apart);
            lanes[worker].connections.push(place);
        }
        let name = self.name;
        Ok(Link {
            lanes: lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Lane>).collect(),
            registrar: Arc::new(REGISTRAR),
            peer_view: PeerView::Reported(told),
            streams: None,
            transport_messages: Some(notice),
            rails: Vec::new(),
            path: format!("in datagrams over {name}, frame {frame_bytes}, {channels} connections"),
        })
    }
}

fn half_key(env: &dyn TransportEnv) -> HalfKey {
    let mut half = [0; 32];
    half.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = env.random().to_le_bytes());
    half
}
