//! A worker's port and its connections.
//!
//! The driver and the lanes of one worker share them, so the lock is waited for only while a session begins or somebody asks for the
//! statistics.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::env::TransportEnv;
use penstock_core::{Cause, Timestamp};
use penstock_datagram::connection::{ConnectionError, ConnectionStatistics};
use penstock_datagram::credit::ReceiveBuffer;
use penstock_datagram::wire::connection_of;
use penstock_datagram::{DatagramConnection, PacketFate};
use penstock_transport::{LaneEvents, LaneFault, PacketStatistics, PeerPackets};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::port::{BurstSent, Port};
use crate::side::Side;

/// Bursts that one look at a lane sends.
const BURSTS_PER_POLL: usize = 4;
/// A port that took no more is asked again after so long: about what a short sleep costs.
const BLOCKED_FOR: Duration = Duration::from_micros(60);
/// The same of one that wakes nobody: its peer polls, and has made room by then.
const BLOCKED_FOR_POLLED: Duration = Duration::from_micros(5);
/// Where no packet wakes anybody, a worker stays awake for so long after the last one: what the peer says next comes meanwhile.
const AWAKE: Duration = Duration::from_micros(500);
/// Then it looks again after a part of the time for which nothing has happened, and at least this often.
const NAP_PART: u32 = 4;
const NAP_MAX: Duration = Duration::from_millis(1);
/// The low bits of an id are the place of its connection, those above are random, and the upper half is the port's own.
const PLACE_BITS: u32 = 16;
const PREFIX_SHIFT: u32 = 32;

pub(crate) struct Hub {
    pub(crate) env: Arc<dyn TransportEnv>,
    worker: usize,
    open: OpenPort,
    /// What the worker sleeps on: it has the port's descriptor in it while that is watched.
    epoll: OwnedFd,
    connections: Mutex<Connections>,
}

/// Opens the port of a worker.
pub type OpenPort = Arc<dyn Fn(usize) -> io::Result<Box<dyn Port>> + Send + Sync>;

/// One worker's connection to one of the peer's, with its memory.
pub(crate) struct Endpoint {
    pub(crate) connection: DatagramConnection,
    pub(crate) side: Side,
    /// Where the peer's worker receives.
    address: SocketAddr,
    frame_bytes: usize,
    /// The place of its lane among the worker's.
    peer_index: u32,
    /// What its port says where not one packet comes.
    unheard_mend: &'static str,
    /// When the lane is to be looked at although nothing comes.
    due: Timestamp,
    /// Packets of this burst were the peer's.
    is_touched: bool,
    /// Why it is over.
    pub(crate) fault: Option<LaneFault>,
    /// The same in words for people.
    pub(crate) why: Option<String>,
}

/// A place for a connection. Its id is not used again soon, so that a late packet finds nobody; if it did, its tag would be of other keys.
#[derive(Default)]
struct Place {
    id: u64,
    endpoint: Option<Box<Endpoint>>,
}

/// What is behind the lock.
pub(crate) struct Connections {
    /// None before the first session: an engine that meets nobody this way receives nothing.
    port: Option<Box<dyn Port>>,
    /// Whether the port's descriptor is in what the worker sleeps on. While packets come it is not: the kernel would look for sleepers with each.
    is_watched: bool,
    buffer: ReceiveBuffer,
    /// All ids begin with this number, which is random and as old as the first: who was told none of them does not know it.
    prefix: Option<u32>,
    places: Vec<Place>,
    free: Vec<u16>,
    /// The earliest `due` of all, or earlier.
    due: Timestamp,
    /// When packets have come or left last.
    moved_at: Timestamp,
    /// Packets that were for no connection.
    strangers: u64,
    /// What connections have counted that are gone.
    ended: PacketStatistics,
}

impl Hub {
    pub(crate) fn new(env: Arc<dyn TransportEnv>, worker: usize, open: OpenPort) -> io::Result<Self> {
        let connections = Connections::new();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { env, worker, open, epoll, connections: Mutex::new(connections) })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does something with the worker's port, which is opened now if it was not before.
    pub(crate) fn with_port<T>(&self, ask: impl FnOnce(&dyn Port) -> io::Result<T>) -> io::Result<T> {
        let mut connections = self.lock();
        if connections.port.is_none() {
            let opened = (self.open)(self.worker)?;
            connections.buffer = ReceiveBuffer::new(opened.facts().receive_bytes);
            connections.port = Some(opened);
            connections.watch(&self.epoll)?; // The worker may be asleep.
        }
        ask(connections.port.as_deref().expect("it was opened just now"))
    }

    /// Takes what has come, and marks the lanes that have something to do. Returns whether anything had.
    pub(crate) fn turn(&self, mark: impl FnMut(usize)) -> bool {
        self.lock().turn(|| self.env.now(), &self.epoll, mark)
    }

    /// The worker is about to sleep on the descriptor. Answers until when it may.
    pub(crate) fn rest(&self, now: Timestamp) -> io::Result<Timestamp> {
        let mut connections = self.lock();
        connections.watch(&self.epoll)?;
        let Connections { port, due, .. } = &*connections;
        let is_deaf = port.as_ref().is_some_and(|port| port.descriptor().is_none());
        let idle = now.since(connections.moved_at);
        let nap = if idle < AWAKE { Duration::ZERO } else { (idle / NAP_PART).min(NAP_MAX) };
        Ok(if is_deaf { (*due).min(now + nap) } else { *due })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection; none: there are too many. What is dropped gives it back.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Reserved> {
        let random = self.env.random();
        let id = self.lock().reserve(random)?;
        Some(Reserved { hub: Arc::clone(self), id })
    }
}

/// A place for a connection. Nothing of the connection touches memory any more when it is dropped.
pub(crate) struct Reserved {
    pub(crate) hub: Arc<Hub>,
    pub(crate) id: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // What it holds is dropped outside of the lock.
        let _endpoint = self.hub.lock().release(self.id);
    }
}

fn place_of(id: u64) -> usize {
    (id & ((1 << PLACE_BITS) - 1)) as usize
}

/// The connection of this id, with its place.
fn find(places: &mut [Place], id: u64) -> Option<(usize, &mut Endpoint)> {
    let place = place_of(id);
    let found = places.get_mut(place).filter(|place| place.id == id)?;
    Some((place, found.endpoint.as_deref_mut()?))
}

/// The packets of a train that were for the connection at this place have been received.
fn end_section(places: &mut [Place], place: usize) {
    if let Some(endpoint) = places.get_mut(place).and_then(|place| place.endpoint.as_deref_mut()) {
        endpoint.side.end_section();
    }
}

impl Connections {
    fn new() -> Self {
        Self {
            port: None,
            is_watched: false,
            buffer: ReceiveBuffer::new(0),
            prefix: None,
            places: Vec::new(),
            free: Vec::new(),
            due: Timestamp::NEVER,
            moved_at: Timestamp::default(),
            strangers: 0,
            ended: PacketStatistics::default(),
        }
    }

    fn reserve(&mut self, random: u64) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u16::try_from(self.places.len()).ok()?;
                self.places.push(Place::default());
                place
            }
        };
        let prefix = *self.prefix.get_or_insert((random >> PREFIX_SHIFT) as u32);
        let between = random as u32 & !0 << PLACE_BITS;
        let id = u64::from(prefix) << PREFIX_SHIFT | u64::from(between) | u64::from(place);
        self.places[usize::from(place)].id = id;
        Some(id)
    }

    fn release(&mut self, id: u64) -> Option<Box<Endpoint>> {
        let place = self.places.get_mut(place_of(id)).filter(|place| place.id == id)?;
        self.free.push(place_of(id) as u16);
        let endpoint = std::mem::take(place).endpoint;
        self.ended += endpoint.as_ref().map(|endpoint| endpoint.packets()).unwrap_or_default();
        endpoint
    }

    /// What has become of all packets of this worker.
    pub(crate) fn packets(&self) -> PacketStatistics {
        let mut sum = self.ended;
        self.endpoints().for_each(|endpoint| sum += endpoint.packets());
        sum.strangers += self.strangers;
        if let Some(port) = &self.port {
            port.add_statistics(&mut sum);
        }
        sum
    }

    /// Adds what has become of the packets to and from one peer. Returns whether there is a connection to it.
    pub(crate) fn add_peer_packets(&self, peer_index: u32, sum: &mut PeerPackets) -> bool {
        let mut any = false;
        for endpoint in self.endpoints().filter(|endpoint| endpoint.peer_index == peer_index) {
            let (round_trip, window_bytes) = endpoint.connection.path();
            sum.packets += endpoint.packets();
            sum.round_trip = sum.round_trip.max(round_trip);
            sum.window_bytes += window_bytes;
            any = true;
        }
        any
    }

    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.places.iter().filter_map(|place| place.endpoint.as_deref())
    }

    /// A session has begun, with a peer to whom packets have to come one by one, or not.
    pub(crate) fn connect(&mut self, id: u64, endpoint: Endpoint, comes_apart: bool) {
        if let Some(port) = &mut self.port {
            if comes_apart {
                port.send_apart(endpoint.address.ip());
            }
            port.admit((id >> PREFIX_SHIFT) as u32, endpoint.frame_bytes);
        }
        self.due = self.due.min(endpoint.due);
        if let Some(place) = self.places.get_mut(place_of(id)).filter(|place| place.id == id) {
            place.endpoint = Some(Box::new(endpoint));
        }
    }

    /// The connection of this id, with what carries it.
    pub(crate) fn endpoint(&mut self, id: u64) -> Option<&mut Endpoint> {
        find(&mut self.places, id).map(|(_, endpoint)| endpoint)
    }

    /// Whether the peer has packets of this connection to acknowledge.
    pub(crate) fn is_under_way(&mut self, id: u64) -> bool {
        self.endpoint(id).is_some_and(|endpoint| endpoint.fault.is_none() && endpoint.connection.is_under_way())
    }

    /// From now on the port's packets wake who sleeps on this.
    fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        if let Some(descriptor) = self.port.as_ref().filter(|_| !self.is_watched).and_then(|port| port.descriptor()) {
            epoll::add(epoll, descriptor, EventData::new_u64(0), EventFlags::IN)?;
            self.is_watched = true;
        }
        Ok(())
    }

    fn turn(&mut self, now: impl Fn() -> Timestamp, epoll: &OwnedFd, mut mark: impl FnMut(usize)) -> bool {
        let Self { port: Some(port), is_watched, places, strangers, due, moved_at, .. } = self else { return false };
        let mut read = None;
        let came = port.receive(&mut |train| {
            // For each: a port asks its socket several times, and a packet that counts as come before it was there makes the path
            // look shorter than it is, to either side, for as long as the smallest round trip is remembered.
            let now = *read.insert(now());
            let mut touched = None;
            let mut packets = train.packets().peekable();
            while let Some(packet) = packets.next() {
                let next = packets.peek().and_then(|next| Some((next, find(places, connection_of(next)?)?)));
                if let Some((next, (_, endpoint))) = next {
                    endpoint.connection.prefetch(next, &mut endpoint.side);
                }
                let Some((place, endpoint)) = connection_of(packet).and_then(|id| find(places, id)) else {
                    *strangers += 1;
                    continue;
                };
                endpoint.receive(packet, now);
                let before = touched.replace(place).filter(|before| *before != place);
                before.into_iter().for_each(|before| end_section(places, before));
            }
            touched.into_iter().for_each(|place| end_section(places, place));
        });
        if came == 0 && *due == Timestamp::NEVER {
            return false;
        }
        if came > 0
            && *is_watched
            && let Some(descriptor) = port.descriptor()
        {
            *is_watched = epoll::delete(epoll, descriptor).is_err();
        }
        let now = read.unwrap_or_else(&now);
        if came > 0 {
            *moved_at = now;
        }
        if came == 0 && *due > now {
            return false;
        }
        *due = Timestamp::NEVER;
        let mut any = false;
        for endpoint in places.iter_mut().filter_map(|place| place.endpoint.as_deref_mut()) {
            if std::mem::take(&mut endpoint.is_touched) {
                endpoint.connection.end_burst();
                mark(endpoint.peer_index as usize);
                any = true;
            } else if endpoint.due <= now {
                mark(endpoint.peer_index as usize);
                any = true;
            }
            *due = (*due).min(endpoint.due);
        }
        any
    }

    /// What the peer of this connection may have on its way here, beside those of the others.
    fn share(&self, id: u64, frame_bytes: usize, now: Timestamp) -> u64 {
        let (mut connections, mut active, mut outstanding) = (1, 1, 0);
        let others = self.places.iter().filter(|place| place.id != id);
        for endpoint in others.filter_map(|place| place.endpoint.as_deref()) {
            connections += 1;
            if let Some(granted) = endpoint.connection.granted(now) {
                (active, outstanding) = (active + 1, outstanding + granted);
            }
        }
        self.buffer.share(connections, active, outstanding, frame_bytes)
    }

    /// Does what is due for one connection: reports what has ended, and sends. Returns whether there may be more to send.
    pub(crate) fn poll(&mut self, id: u64, now: Timestamp, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let Some(endpoint) = self.endpoint(id) else { return Ok(false) };
        endpoint.expire(now)?;
        endpoint.report(events);
        self.transmit(id, now)
    }

    /// Sends for one connection what may leave. Returns whether there may be more.
    pub(crate) fn transmit(&mut self, id: u64, now: Timestamp) -> Result<bool, LaneFault> {
        let Some(frame_bytes) = self.endpoint(id).map(|endpoint| endpoint.frame_bytes) else { return Ok(false) };
        let share = self.share(id, frame_bytes, now);
        let Self { port: Some(port), places, due, moved_at, .. } = self else { return Ok(false) };
        let Some(endpoint) = places[place_of(id)].endpoint.as_deref_mut() else { return Ok(false) };
        if let Some(fault) = endpoint.fault {
            return Err(fault);
        }
        let Endpoint { connection, side, address, .. } = endpoint;
        connection.set_share(share);
        let (mut sent, mut any) = (BurstSent::Full, false);
        for _ in 0..BURSTS_PER_POLL {
            sent = port.send(*address, frame_bytes, &mut |room| {
                let bytes = connection.transmit(now, room, side);
                any |= bytes.is_some();
                bytes
            });
            side.end_section();
            if sent != BurstSent::Full {
                break;
            }
        }
        if sent == BurstSent::TooLong {
            let why = format!(
                "the way to UDP {address} does not carry packets of {frame_bytes} B, which is the session's length"
            );
            return Err(endpoint.fail(Cause::NoPath, why));
        }
        if any {
            *moved_at = now;
        }
        if sent == BurstSent::Blocked {
            endpoint.connection.is_held_up(now);
        }
        endpoint.due = endpoint.connection.deadline();
        if sent == BurstSent::Blocked {
            let is_deaf = port.descriptor().is_none();
            endpoint.due = endpoint.due.min(now + if is_deaf { BLOCKED_FOR_POLLED } else { BLOCKED_FOR });
        }
        *due = (*due).min(endpoint.due);
        Ok(sent == BurstSent::Full)
    }
}

impl Endpoint {
    /// One that begins now, and says so.
    pub(crate) fn new(
        mut connection: DatagramConnection,
        side: Side,
        address: SocketAddr,
        frame_bytes: usize,
        peer_index: u32,
        unheard_mend: &'static str,
        now: Timestamp,
    ) -> Self {
        connection.set_note_credit(0);
        Self {
            connection,
            side,
            address,
            frame_bytes,
            peer_index,
            unheard_mend,
            due: now,
            is_touched: false,
            fault: None,
            why: None,
        }
    }

    fn packets(&self) -> PacketStatistics {
        let counts = self.connection.statistics();
        let ConnectionStatistics { sent, lost, spurious, repeated, timeouts, received, late, .. } = counts;
        let ConnectionStatistics { forged, replayed, corrupt, foreign: strangers, .. } = counts;
        let (dropped_by_port, refused_by_port, blocked) = (0, 0, 0);
        PacketStatistics {
            sent,
            lost,
            spurious,
            repeated,
            timeouts,
            received,
            late,
            strangers,
            forged,
            replayed,
            corrupt,
            dropped_by_port,
            refused_by_port,
            blocked,
        }
    }

    fn receive(&mut self, packet: &[u8], now: Timestamp) {
        if self.fault.is_some() {
            return;
        }
        match self.connection.receive(packet, now, &mut self.side) {
            // What strangers send, or the network twice, gives the lane nothing to do.
            Ok(fate) => self.is_touched |= matches!(fate, PacketFate::Taken | PacketFate::Corrupt),
            Err(error) => {
                self.is_touched = true;
                self.over(error);
            }
        }
    }

    fn over(&mut self, error: ConnectionError) -> LaneFault {
        let address = self.address;
        let (cause, mend) = match error {
            ConnectionError::Violation => (Cause::PeerCorrupt, ""),
            ConnectionError::Lost => (Cause::PeerLost, ""),
            ConnectionError::Unheard => (Cause::NoPath, self.unheard_mend),
        };
        self.fail(cause, format!("UDP {address}: {error}{mend}"))
    }

    /// Ends the connection; every later call returns the same.
    fn fail(&mut self, cause: Cause, why: String) -> LaneFault {
        if self.fault.is_none() {
            tracing::warn!(peer = %self.address, %cause, why, "a datagram connection is over");
            self.why = Some(why);
        }
        // Until the session ends there is nothing to look for.
        self.due = Timestamp::NEVER;
        *self.fault.get_or_insert(LaneFault(cause))
    }

    fn expire(&mut self, now: Timestamp) -> Result<(), LaneFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.connection.expire(now).map_err(|error| self.over(error))
    }

    /// Reports operations that have ended and notes that have come, as far as there is room.
    fn report(&mut self, events: &mut dyn LaneEvents) {
        let Self { connection, side, .. } = self;
        while let Some(ended) = connection.pop_ended() {
            if let Some(operation) = ended.operation {
                side.end(operation, ended.result.is_ok());
            }
            events.completed(ended.completion_id, ended.result.map_err(Into::into));
        }
        side.notes.deliver(events);
        if side.notes.is_due()
            && let Some(lines) = side.notes.tell()
        {
            connection.set_note_credit(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_used_once_though_its_place_is_used_again() {
        let mut connections = Connections::new();
        let first = connections.reserve(7 << 32 | 7 << 16).unwrap();
        let other = connections.reserve(8 << 32 | 8 << 16).unwrap();
        assert_ne!(place_of(first), place_of(other));
        assert_eq!(first >> PREFIX_SHIFT, other >> PREFIX_SHIFT, "the port keeps packets of both");
        connections.release(first);
        let second = connections.reserve(9 << 16).unwrap();
        assert_eq!(place_of(second), place_of(first));
        assert_ne!(second, first);
        connections.release(first);
        assert_eq!(connections.reserve(10 << 16).map(place_of), Some(2), "a late release takes nobody's place");
    }
}
