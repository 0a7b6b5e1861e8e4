//! Reaching, offering and joining between two hosts with adapters.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_core::limits::WORKERS_MAX;
use penstock_core::{Generation, RegionId};
use penstock_memory::{MemoryError, Registry};
use penstock_ring::LowWater;
use penstock_transport::host::EngineSegments;
use penstock_transport::link::Offering;
use penstock_transport::{
    Caps, Devices, Driver, JoinError, Lane, Link, LocalEnd, PeerView, Placement, RemoteEnd, RemoteGateLog, Scope,
    Transport, Trust,
};

use crate::adapter::{Adapter, AdapterError, CmConnect, ConnectParams, DeviceAttr, QueuePair, Token};
use crate::channel::Channel;
use crate::connecting::Connectors;
use crate::driver::{Events, VerbsDriver};
use crate::fence::{FenceWaker, LaneFence};
use crate::hub::{CqSize, Hub};
use crate::lane::{Common, LaneParts, VerbsLane};
use crate::message::GRANTS_MAX;
use crate::offer::{By, GRANTS_MIN, NUMBER_MAX, OfferedQueue, OfferedRail, VerbsOffer};
use crate::pairing::{self, RAILS_MAX, RailPair};
use crate::rail::RailParts;
use crate::regions::Regions;
use crate::registrar::VerbsRegistrar;
use crate::slab::RegisteredSlots;
use crate::transport_messages::LaneAsides;

/// How long whoever joins a session waits for a first rail of each channel: well within the time that a greeting has. Where the network
/// asks for the peer's address for longer than this the session begins all the same, and ends if no rail comes.
const CONNECT_WITHIN: Duration = Duration::from_millis(300);

/// The fewest requests of a queue: some are kept for messages, and batches need the rest.
const REQUESTS_MIN: usize = 16;

/// What queues and CQs are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Requests that one queue takes, at least 16: more keep a longer way full, and take more of the adapter.
    pub requests: usize,
    /// Messages that a peer may send on one queue before it is answered: more make bursts of notifications faster, at 4 KiB of pinned
    /// memory each. A power of two from 4 to 64.
    pub grants: usize,
    /// Queues that one worker's CQ on one adapter has room for: each peer takes one for each channel of that worker.
    pub queues: usize,
    /// How long a session stands without any rail, and how long a peer may take to say what became of a broken one.
    pub patience: Duration,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self { requests: 128, grants: 32, queues: 256, patience: Duration::from_secs(5) }
    }
}

/// The transport between two hosts with adapters.
pub struct VerbsTransport {
    segments: Arc<EngineSegments>,
    adapters: Vec<Arc<dyn Adapter>>,
    regions: Arc<Regions>,
    connectors: Arc<Connectors>,
    options: VerbsOptions,
    by: By,
    /// One for each worker.
    hubs: Vec<Arc<Hub>>,
}

impl VerbsTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "verbs";

    /// The transport of the engine with these segments and these regions over these adapters, at most [`RAILS_MAX`] of them. If each of them
    /// has a connection manager, queues are met by those.
    pub fn new(
        segments: Arc<EngineSegments>,
        registry: Arc<Registry>,
        mut adapters: Vec<Arc<dyn Adapter>>,
        options: VerbsOptions,
    ) -> Result<Self, AdapterError> {
        if adapters.is_empty() {
            let (what, why) = ("RDMA".to_owned(), "there is no card that could be used".to_owned());
            return Err(AdapterError::NotHere {
                what,
                why,
                mend: "see what `penstock doctor` says of RDMA".to_owned(),
            });
        }
        adapters.truncate(RAILS_MAX);
        for adapter in &adapters {
            let (has, wants) = (adapter.attr().requests_max.min(options.requests), REQUESTS_MIN);
            if has < wants {
                let adapter = adapter.attr().name.clone();
                return Err(AdapterError::NoRoom { adapter, what: "the requests of a queue", has, wants });
            }
        }
        let grants = options.grants.next_power_of_two().clamp(GRANTS_MIN as usize, GRANTS_MAX as usize);
        let options = VerbsOptions { grants, ..options };
        let size = CqSize {
            completions: options.queues * (options.requests + options.grants),
            receives: options.queues * options.grants,
        };
        let hub = |worker| Hub::open(&adapters, size, segments.mailbox.view().ready(worker)).map(Arc::new);
        let hubs = (0..segments.workers()).map(hub).collect::<Result<_, _>>()?;
        let regions = Arc::new(Regions::new(adapters.clone(), registry));
        let by = match adapters.iter().all(|adapter| adapter.attr().cm_address.is_some()) {
            true => By::Manager,
            false => By::Exchange,
        };
        Ok(Self { segments, adapters, regions, connectors: Arc::default(), options, by, hubs })
    }

    /// Registers memory of these devices with the adapters, too, so that those reach it by themselves.
    ///
    /// # Panics
    /// If the transport is in use.
    #[must_use]
    pub fn with_devices(mut self, devices: Option<Arc<dyn Devices>>) -> Self {
        let regions = Arc::into_inner(self.regions).expect("it is given devices before it is used");
        self.regions = Arc::new(match devices {
            Some(devices) => regions.with_devices(devices),
            None => regions,
        });
        self
    }

    /// How many registrations of regions this engine's adapters hold.
    pub fn registrations(&self) -> usize {
        self.regions.count()
    }

    #[cfg(test)]
    pub(crate) fn hub(&self, worker: usize) -> &Arc<Hub> {
        &self.hubs[worker]
    }

    /// The names of its adapters, in the order of their choice.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.iter().map(|adapter| adapter.attr().name.as_str())
    }
}

impl Transport for VerbsTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Hardware,
            // An adapter says that the peer's adapter has the bytes, not that they are where they belong.
            placement: Placement::AtNotification,
            synchronous: false,
            ordered: true,
            multi_worker: false,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, _: &RemoteEnd) -> Result<&'static str, &'static str> {
        Ok("both engines have RDMA cards")
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn driver(&self, worker: usize) -> io::Result<Option<Box<dyn Driver>>> {
        let Some(hub) = self.hubs.get(worker) else { return Ok(None) };
        // One worker hears for all what happens to adapters.
        let events = (worker == 0).then(|| {
            let hubs = self.hubs.iter().enumerate();
            let hubs = hubs.map(|(worker, hub)| (Arc::clone(hub), self.segments.ringer(1 + worker))).collect();
            Events { adapters: self.adapters.clone(), regions: Arc::clone(&self.regions), hubs }
        });
        Ok(Some(Box::new(VerbsDriver::new(Arc::clone(hub), &self.adapters, events)?)))
    }

    fn release_registrations(&self, region: RegionId, last: Generation) {
        self.regions.forget(region, last);
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let offered = Offered::make(self, &here, &there)?;
        let blob = offered.offer.blob();
        let join = move |blob: &[u8], tokens: Vec<_>| {
            if !tokens.is_empty() {
                return Err(JoinError::Fds { expected: 0, found: tokens.len() });
            }
            offered.join(blob, there.workers)
        };
        Ok(Offering { blob, fds: Vec::new(), join: Box::new(join) })
    }
}

/// A worker's part of an offer.
struct OfferedLane {
    hub: Arc<Hub>,
    /// Where what comes for it is put. The lane takes it over.
    inbox: Option<u32>,
}

/// Queues that wait for the other side's offer. Those that are not joined go when this is dropped.
struct Offered {
    offer: VerbsOffer,
    segments: Arc<EngineSegments>,
    adapters: Vec<Arc<dyn Adapter>>,
    regions: Arc<Regions>,
    connectors: Arc<Connectors>,
    options: VerbsOptions,
    peer_index: u32,
    lanes: Vec<OfferedLane>,
    /// Which adapter each rail of the offer is.
    on: Vec<usize>,
    /// Of each rail of the offer, one for each channel.
    queues: Vec<Vec<Option<Box<dyn QueuePair>>>>,
}

impl Offered {
    /// Makes a queue on each adapter for each channel.
    fn make(transport: &VerbsTransport, here: &LocalEnd, there: &RemoteEnd) -> Result<Self, AdapterError> {
        let VerbsTransport { segments, adapters, regions, connectors, options, by, hubs } = transport;
        let lane =
            |hub: &Arc<Hub>| OfferedLane { hub: Arc::clone(hub), inbox: Some(hub.lock().new_inbox(here.peer_index)) };
        let mut offered = Self {
            offer: VerbsOffer { workers: hubs.len(), grants: options.grants as u32, by: *by, rails: Vec::new() },
            segments: Arc::clone(segments),
            adapters: adapters.clone(),
            regions: Arc::clone(regions),
            connectors: Arc::clone(connectors),
            options: *options,
            peer_index: here.peer_index,
            lanes: hubs.iter().map(lane).collect(),
            on: Vec::new(),
            queues: Vec::new(),
        };
        // Who says to have more is refused when it is joined.
        let channels = hubs.len().max(there.workers.min(WORKERS_MAX));
        let mut failed = None;
        for (adapter, its) in adapters.iter().enumerate() {
            // One that has failed, or is full, takes nothing from the others.
            if let Err(error) = offered.add(adapter, its.attr(), channels, *by) {
                tracing::warn!(%error, adapter = its.attr().name, "a card is left out of a session");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if offered.offer.rails.is_empty() => Err(error),
            _ => Ok(offered),
        }
    }

    /// Makes a queue on this adapter for each channel, and makes a rail of it.
    fn add(&mut self, adapter: usize, attr: &DeviceAttr, channels: usize, by: By) -> Result<(), AdapterError> {
        let room = (self.options.requests.min(attr.requests_max), self.options.grants);
        let workers = self.lanes.len();
        // From here on what was made is given back with the offer, or below.
        self.on.push(adapter);
        self.queues.push(Vec::with_capacity(channels));
        let mut rail = OfferedRail::of(attr, Vec::with_capacity(channels));
        for channel in 0..channels {
            let OfferedLane { hub, inbox } = &self.lanes[channel % workers];
            let inbox = inbox.expect("it is taken over by the lane, and not before");
            let token = match by {
                By::Exchange => Ok(None),
                By::Manager => fresh_token(attr).map(Some),
            };
            let place = (channel / workers) as u16;
            let made = token.and_then(|token| Ok((hub.queue(adapter, inbox, place, room)?, token)));
            match made {
                Ok((mut queue, token)) => {
                    if let Some(token) = token {
                        queue.expect(token);
                    }
                    rail.queues.push(OfferedQueue { number: queue.number(), first_packet: first_packet(), token });
                    self.queues.last_mut().expect("it was just pushed").push(Some(queue));
                }
                Err(error) => {
                    self.give_back_last();
                    return Err(error);
                }
            }
        }
        if by == By::Exchange {
            rail.cm_address = None;
        }
        self.offer.rails.push(rail);
        Ok(())
    }

    /// Gives back the queues of the last rail that were not joined.
    fn give_back_last(&mut self) {
        let (Some(adapter), Some(queues)) = (self.on.pop(), self.queues.pop()) else { return };
        for (channel, queue) in queues.into_iter().enumerate() {
            // It was never connected.
            let Some(queue) = queue else { continue };
            self.lanes[channel % self.lanes.len()].hub.lock().forget_queue(adapter, queue.number());
        }
    }

    fn join(mut self, blob: &[u8], workers_there: usize) -> Result<Link, JoinError> {
        let workers = self.lanes.len();
        let channels = workers.max(workers_there);
        let theirs = VerbsOffer::parse(blob, workers_there, channels)?;
        // As the other side reads it.
        let ours = VerbsOffer::parse(&self.offer.blob(), workers, channels)?;
        if ours.by != theirs.by {
            let (here, there) = (ours.by.as_str(), theirs.by.as_str());
            return Err(JoinError::Setting { key: "transports.verbs_connect", here, there });
        }
        let calls = pairing::is_first(&ours, &theirs);
        let pairs = pairing::pair_from_here(&ours, &theirs);
        if pairs.is_empty() {
            return Err(JoinError::NoPath(pairing::why_none(&ours.rails, &theirs.rails)));
        }
        let on_cards: Vec<usize> = pairs.iter().map(|pair| self.on[pair.first]).collect();
        let lows: Vec<LowWater> = (0..workers).map(|_| LowWater::heap()).collect();
        let wakers = |segments: &EngineSegments| {
            let waker = |worker| FenceWaker {
                bell: segments.ringer(1 + worker),
                ready: segments.mailbox.view().ready(worker),
                peer_index: self.peer_index,
            };
            (0..workers).map(waker).collect::<Vec<_>>()
        };
        let here = self.segments.owner_state.view().revision();
        let own = lows.iter().map(LowWater::view).collect();
        let fence = LaneFence::new(own, channels, pairs.len(), here, wakers(&self.segments));
        let transport_messages = LaneAsides::new(channels, wakers(&self.segments));
        let common = Arc::new(Common {
            segments: Arc::clone(&self.segments),
            told: Arc::new(RemoteGateLog::default()),
            fence: Arc::new(fence),
            transport_messages: Arc::new(transport_messages),
            regions: Arc::clone(&self.regions),
            connectors: Arc::clone(&self.connectors),
            adapters: on_cards,
            workers,
        });
        let refused = |error: AdapterError| JoinError::NoPath(error.to_string());
        let mut lanes = Vec::with_capacity(workers);
        for (worker, low) in lows.into_iter().enumerate() {
            let hub = Arc::clone(&self.lanes[worker].hub);
            let inbox = self.lanes[worker].inbox.take().expect("each lane is made once");
            let mut lane = VerbsLane::new(&common, LaneParts { hub, inbox, worker, low });
            for channel in (worker..channels).step_by(workers) {
                lane.push(self.channel(channel, &pairs, &theirs, calls).map_err(refused)?);
            }
            lanes.push(lane);
        }
        lanes.iter_mut().for_each(VerbsLane::connect);
        let until = Instant::now() + CONNECT_WITHIN;
        lanes.iter_mut().try_for_each(|lane| lane.is_connected(until)).map_err(refused)?;
        let lanes = lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Lane>).collect();
        let names = |pair: &RailPair| format!("{} to {}", ours.rails[pair.first].name, theirs.rails[pair.second].name);
        let rails: Vec<String> = pairs.iter().map(names).collect();
        let registrar = VerbsRegistrar::new(Arc::clone(&self.regions), common.adapters.clone(), rails.join(", "));
        Ok(Link {
            lanes,
            registrar: Arc::new(registrar),
            peer_view: PeerView::Fenced(Arc::clone(&common.told), common.fence.clone()),
            streams: None,
            transport_messages: Some(common.transport_messages.clone()),
            path: path(&ours, &theirs, &pairs, channels),
            rails,
        })
    }

    /// A channel over the queues of these pairs. Of two sides that meet, one calls.
    fn channel(
        &mut self,
        channel: usize,
        pairs: &[RailPair],
        theirs: &VerbsOffer,
        calls: bool,
    ) -> Result<Channel, AdapterError> {
        let hub = &self.lanes[channel % self.lanes.len()].hub;
        let adapters = pairs.iter().map(|pair| &self.adapters[self.on[pair.first]]);
        // First what may be refused: from then on the queues are the channel's.
        let outbox = RegisteredSlots::new(adapters, theirs.grants as usize * pairs.len())?;
        let mut rails = Vec::with_capacity(pairs.len());
        for (index, pair) in pairs.iter().enumerate() {
            let (mine, other) = (&self.offer.rails[pair.first], &theirs.rails[pair.second]);
            let queue = self.queues[pair.first][channel].take().expect("each queue is of one pair");
            let adapter = self.on[pair.first];
            hub.lock().assign(adapter, queue.number(), index as u8);
            let attr = self.adapters[adapter].attr().clone();
            // What one side may ask for at once the other has to remember.
            let reads = mine.reads_max.min(other.reads_max);
            rails.push(RailParts {
                index: index as u8,
                queue,
                requests: self.options.requests.min(attr.requests_max),
                attr: Arc::new(attr),
                connecting: ConnectParams {
                    there: other.endpoint(channel),
                    first_packet: mine.queues[channel].first_packet,
                    mtu: mine.mtu.min(other.mtu),
                    reads_there: reads,
                    reads_here: reads,
                    cm: cm(if calls { (other, other.cm_address) } else { (mine, None) }, channel),
                },
                grants: self.offer.grants,
                granted: theirs.grants,
            });
        }
        Ok(Channel::new(channel as u16, rails, outbox, self.options.patience, hub.lock().now()))
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        while !self.on.is_empty() {
            self.give_back_last();
        }
        for OfferedLane { hub, inbox } in &mut self.lanes {
            if let Some(inbox) = inbox.take() {
                hub.lock().drop_inbox(inbox);
            }
        }
    }
}

/// What a queue that is made now is to be called by.
fn fresh_token(attr: &DeviceAttr) -> Result<Token, AdapterError> {
    Token::random().map_err(|source| AdapterError::Refused {
        call: "getrandom",
        adapter: attr.name.clone(),
        source,
        mend: "let this process make that call",
    })
}

/// How queues of a channel meet, by what the waiting side has offered, if they do.
fn cm((waits, call): (&OfferedRail, Option<SocketAddr>), channel: usize) -> Option<CmConnect> {
    waits.queues[channel].token.map(|token| CmConnect { call, token })
}

/// A number that packets of another queue, or of this one in another life, are unlikely to have.
pub(crate) fn first_packet() -> u32 {
    RandomState::new().hash_one(0u8) as u32 & NUMBER_MAX
}

/// Which rails, why, and what is not used.
fn path(ours: &VerbsOffer, theirs: &VerbsOffer, pairs: &[RailPair], channels: usize) -> String {
    let rail = |pair: &RailPair| {
        let (mine, other) = (&ours.rails[pair.first], &theirs.rails[pair.second]);
        format!("{} to {} ({})", mine.name, other.name, pair.why)
    };
    let list: Vec<_> = pairs.iter().map(rail).collect();
    let rails = if pairs.len() == 1 { "one rail".to_owned() } else { format!("{} rails", pairs.len()) };
    let by = match ours.by {
        By::Exchange => "",
        By::Manager => ", connected by rdma_cm",
    };
    let mut path = format!("over the network by RDMA{by}, {channels} channels of {rails}: {}", list.join(", "));
    let unused = |rails: &[OfferedRail], is_used: &dyn Fn(usize) -> bool| {
        let left = rails.iter().enumerate().filter(|(place, _)| !is_used(*place));
        left.map(|(_, rail)| rail.in_words()).collect::<Vec<_>>().join(", ")
    };
    let here = unused(&ours.rails, &|place| pairs.iter().any(|pair| pair.first == place));
    let there = unused(&theirs.rails, &|place| pairs.iter().any(|pair| pair.second == place));
    for (whose, left) in [("of this engine", here), ("of the peer", there)] {
        if !left.is_empty() {
            path.push_str(&format!("; without a partner {whose}: {left}"));
        }
    }
    path
}
