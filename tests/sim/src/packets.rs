//! Packets between hosts: lost, doubled, late, changed, and in any order, by seed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock::Timestamp;
use penstock_datagram_transport::port::{BurstSent, PacketRoom, Port, PortFacts, Train};

use crate::charges::{Charges, Room};
use crate::links::{Links, Rate};
use crate::random::Random;
use crate::trace::{What, digest};
use crate::world::Core;

/// Packets that a port keeps until they are taken. More are lost, as a full socket loses them.
const ARRIVED_MAX: usize = 512;
/// What such a port takes in bytes, as credit is counted: packets that fit into the one bound fit into the other.
const RECEIVE_BYTES: u64 = 1 << 20;
/// When a late copy comes after its packet left: long after all that was under way with it has arrived.
const LATE_MIN: Duration = Duration::from_millis(5);
const LATE_MAX: Duration = Duration::from_millis(50);
/// Packets that are on their way at most, over all links. More are lost.
const FLYING_MAX: usize = 65_536;
/// Packets of one burst.
const BURST: usize = 16;
/// The number of the first port that is opened.
const PORT_FIRST: u16 = 1024;

/// Every port and packet of a world.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    opened: u16,
    next_packet: u64,
    ports: BTreeMap<SocketAddr, OpenPort>,
    /// On their way, by the moment at which they are there at the earliest.
    flying: BTreeMap<(Timestamp, u64), Flying>,
    /// When the link to a host has carried all that waits for it, where its rate is bounded.
    busy_until: BTreeMap<u64, Timestamp>,
    /// What ports take in bytes that are opened from now on, if not [`RECEIVE_BYTES`].
    receive_bytes: Option<u64>,
    pub(crate) charges: Charges,
}

#[derive(Debug)]
struct OpenPort {
    engine: usize,
    host: u64,
    receive_bytes: u64,
    /// With the number under which each was charged.
    arrived: VecDeque<(u64, Vec<u8>)>,
}

#[derive(Debug)]
struct Flying {
    from_host: u64,
    to: SocketAddr,
    packet: Vec<u8>,
    /// Copies of one packet have the same.
    charged: u64,
}

impl Packets {
    /// Opens a port. Its number is given once in the life of a world.
    fn open(&mut self, engine: usize, host: u64, ip: IpAddr) -> SocketAddr {
        let receive_bytes = self.receive_bytes();
        self.opened = self.opened.checked_add(1).expect("a world has fewer ports than there are numbers");
        let address = SocketAddr::new(ip, PORT_FIRST + self.opened);
        self.ports.insert(address, OpenPort { engine, host, receive_bytes, arrived: VecDeque::new() });
        address
    }

    fn close(&mut self, port: SocketAddr) {
        self.ports.remove(&port);
        self.charges.close(port);
    }

    /// Ports that are opened from now on take so much.
    pub(crate) fn set_receive_bytes(&mut self, bytes: u64) {
        self.receive_bytes = Some(bytes);
    }

    fn receive_bytes(&self) -> u64 {
        self.receive_bytes.unwrap_or(RECEIVE_BYTES)
    }

    /// Ports that are open.
    pub(crate) fn open_ports(&self) -> usize {
        self.ports.len()
    }

    /// All ports of this engine are gone.
    pub(crate) fn crash(&mut self, engine: usize) {
        self.ports.retain(|_, port| port.engine != engine);
    }

    pub(crate) fn send(
        &mut self,
        from_host: u64,
        to: SocketAddr,
        mut packet: Vec<u8>,
        now: Timestamp,
        links: &Links,
        random: &mut Random,
    ) -> What {
        // Nobody is there any more; which is known on the way only, but is the same for who sent it.
        let Some(there) = self.ports.get(&to) else { return What::Astray };
        let weather = links.weather(from_host, there.host);
        let room = Room { bytes: there.receive_bytes, frame_bytes: weather.frame_bytes_max };
        let (host, cost) = (there.host, self.charges.cost(&packet));
        self.next_packet += 1;
        let charged = self.next_packet;
        if in_a_thousand(random, weather.late_copies) {
            let span = (LATE_MAX - LATE_MIN).as_nanos() as usize;
            let due = now + LATE_MIN + Duration::from_nanos(random.below(span) as u64);
            self.fly(due, Flying { from_host, to, packet: packet.clone(), charged });
        }
        if !links.passes(from_host, host) || in_a_thousand(random, weather.lost) {
            return What::Lost;
        }
        if self.flying.len() >= FLYING_MAX || packet.len() > weather.frame_bytes_max {
            return What::Lost;
        }
        let Some(waits) = weather.rate.map_or(Some(Duration::ZERO), |rate| self.queue(host, packet.len(), rate, now))
        else {
            return What::Lost;
        };
        if in_a_thousand(random, weather.rotten) {
            let bit = random.below(packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = if in_a_thousand(random, weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let span = weather.delay_max.saturating_sub(weather.delay_min).as_nanos() as usize;
            let delay = weather.delay_min + Duration::from_nanos(random.below(span + 1) as u64);
            self.fly(now + waits + delay, Flying { from_host, to, packet: packet.clone(), charged });
        }
        self.charges.begin(to, charged, cost, room, now);
        What::Sent
    }

    fn fly(&mut self, due: Timestamp, flying: Flying) {
        self.next_packet += 1;
        self.flying.insert((due, self.next_packet), flying);
    }

    /// How long a packet waits until the link to a host has carried it; none: it has no room there.
    fn queue(&mut self, host: u64, bytes: usize, rate: Rate, now: Timestamp) -> Option<Duration> {
        let until = self.busy_until.entry(host).or_default();
        let waits = until.since(now);
        let takes = |bytes: u64| Duration::from_nanos(bytes * 1_000_000 / rate.bytes_per_ms);
        if waits + takes(bytes as u64) > takes(rate.queue_bytes) {
            return None;
        }
        *until = now + waits + takes(bytes as u64);
        Some(until.since(now))
    }

    fn receive(&mut self, port: SocketAddr) -> Option<Vec<u8>> {
        let (charged, packet) = self.ports.get_mut(&port)?.arrived.pop_front()?;
        self.charges.take(port, charged, &packet);
        Some(packet)
    }

    /// The longest packet that gets from a host to an address.
    fn frame_bytes(&self, from_host: u64, to: IpAddr, links: &Links) -> usize {
        let there = self.ports.iter().find(|(address, _)| address.ip() == to);
        links.weather(from_host, there.map_or(from_host, |(_, port)| port.host)).frame_bytes_max
    }

    /// When the next of those on their way is there.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.flying.keys().next().map(|&(due, _)| due)
    }

    /// How many may arrive now.
    pub(crate) fn due(&self, now: Timestamp) -> usize {
        self.flying.range(..=(now, u64::MAX)).count()
    }

    /// Lets one of those that may arrive do so; answers at which engine, if it got there.
    pub(crate) fn deliver(&mut self, place: usize, links: &Links) -> Option<usize> {
        let key = *self.flying.keys().nth(place)?;
        let flying = self.flying.remove(&key)?;
        let port = self.ports.get_mut(&flying.to)?;
        if !links.passes(flying.from_host, port.host) || port.arrived.len() >= ARRIVED_MAX {
            self.charges.end(flying.to, flying.charged);
            return None;
        }
        port.arrived.push_back((flying.charged, flying.packet));
        Some(port.engine)
    }
}

fn in_a_thousand(random: &mut Random, count: u32) -> bool {
    count > 0 && random.below(1000) < count as usize
}

/// One engine's port to the network. It is closed when it is dropped.
pub(crate) struct SimPort {
    core: Arc<Core>,
    engine: usize,
    facts: PortFacts,
    frame: Vec<u8>,
    /// Never readable: who waits on one thread with its whole world has nobody to be woken by.
    silent: OwnedFd,
}

impl SimPort {
    pub(crate) fn open(core: &Arc<Core>, engine: usize, ip: IpAddr) -> io::Result<Self> {
        let (address, receive_bytes) = {
            let mut state = core.lock();
            let host = state.host_of(engine);
            (state.packets.open(engine, host, ip), state.packets.receive_bytes())
        };
        let facts = PortFacts {
            name: "a simulated network".to_owned(),
            address,
            receive_bytes,
            needs_checksums: true,
            comes_apart: false,
            joins_equal: true,
            pairs_workers: false,
            unheard_mend: "",
        };
        let (silent, _) = io::pipe()?;
        Ok(Self { core: Arc::clone(core), engine, facts, frame: Vec::new(), silent: silent.into() })
    }
}

impl Port for SimPort {
    fn facts(&self) -> &PortFacts {
        &self.facts
    }

    fn frame_bytes(&self, to: SocketAddr) -> io::Result<usize> {
        let state = self.core.lock();
        Ok(state.packets.frame_bytes(state.host_of(self.engine), to.ip(), &state.links))
    }

    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize {
        let mut count = 0;
        // The lock is not held while a packet is looked at: that asks for the time.
        while count < BURST
            && let Some(packet) = { self.core.lock().packets.receive(self.facts.address) }
        {
            take(Train::Apart(&[&packet]));
            count += 1;
        }
        count
    }

    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent {
        self.frame.resize(frame_bytes, 0);
        for _ in 0..BURST {
            let Some(bytes) = fill(self.frame[..].as_mut().into()) else { return BurstSent::Whole };
            if self.core.lock().is_dead(self.engine) {
                continue;
            }
            let digest = digest(&self.frame[..bytes]);
            let what = self.core.lock().send_packet(self.engine, to, self.frame[..bytes].to_vec());
            self.core.record(self.engine, what, digest);
        }
        BurstSent::Full
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.silent.as_fd())
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.core.lock().packets.close(self.facts.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Weather;

    /// Sends a thousand packets at once; answers what came of them, and when each arrived.
    fn thousand(weather: Weather, seed: u64) -> (Vec<What>, Vec<Timestamp>) {
        let (mut packets, mut links, mut random) = (Packets::default(), Links::default(), Random::new(seed));
        links.set_usual(weather);
        let to = packets.open(1, 2, [10, 0, 0, 2].into());
        let now = Timestamp::from_ns(5);
        let send = |_| packets.send(1, to, vec![1], now, &links, &mut random);
        let what = (0..1000).map(send).collect();
        let mut arrived = Vec::new();
        while let Some(due) = packets.next_due() {
            assert!(packets.due(due) > 0);
            assert_eq!(packets.deliver(0, &links), Some(1));
            assert_eq!(packets.receive(to), Some(vec![1]));
            arrived.push(due);
        }
        (what, arrived)
    }

    #[test]
    fn packets_fare_as_the_weather_says() {
        let (delay_min, delay_max) = (Duration::from_nanos(10), Duration::from_nanos(90));
        let fine = Weather { delay_min, delay_max, ..Weather::default() };
        let (what, arrived) = thousand(fine, 1);
        assert!(what.iter().all(|what| *what == What::Sent));
        assert_eq!(arrived.len(), 1000);
        assert_eq!((arrived[0], arrived[999]), (Timestamp::from_ns(15), Timestamp::from_ns(95)));
        let (what, arrived) = thousand(Weather { lost: 100, ..fine }, 2);
        let lost = what.iter().filter(|what| **what == What::Lost).count();
        assert!((70..130).contains(&lost) && arrived.len() == 1000 - lost, "{lost}");
        let (_, arrived) = thousand(Weather { doubled: 100, ..fine }, 3);
        assert!((1070..1130).contains(&arrived.len()), "{}", arrived.len());
    }

    #[test]
    fn nothing_arrives_over_a_link_that_was_cut_or_at_a_port_that_was_closed() {
        let (mut packets, mut links, mut random) = (Packets::default(), Links::default(), Random::new(1));
        let ip = IpAddr::from([10, 0, 0, 1]);
        let (from, to) = (packets.open(0, 1, ip), packets.open(1, 2, [10, 0, 0, 2].into()));
        let now = Timestamp::from_ns(5);
        assert_eq!(packets.send(1, to, vec![1], now, &links, &mut random), What::Sent);
        links.cut(1, 2);
        assert_eq!(packets.deliver(0, &links), None);
        assert_eq!(packets.send(1, to, vec![1], now, &links, &mut random), What::Lost);
        assert_eq!(packets.send(2, from, vec![1], now, &links, &mut random), What::Sent, "the other direction passes");
        packets.crash(0);
        assert_eq!(packets.deliver(0, &links), None);
        assert_eq!(packets.send(2, from, vec![1], now, &links, &mut random), What::Astray);
        assert_ne!(packets.open(0, 1, ip), from, "no port is given twice");
        assert_eq!(packets.open_ports(), 2);
    }
}
