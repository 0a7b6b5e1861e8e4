//! Packets between hosts: lost, doubled, late, and in any order, by seed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use penstock::Timestamp;
use penstock_sim::Fabric;

use crate::links::Links;
use crate::random::Random;
use crate::trace::{What, digest};
use crate::world::Core;

/// Packets that a port keeps until they are taken. More are lost, as a full socket loses them.
const ARRIVED_MAX: usize = 512;
/// Packets that are on their way at most, over all links. More are lost.
const FLYING_MAX: usize = 65_536;

/// Every port and packet of a world.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    next_port: u64,
    next_packet: u64,
    ports: BTreeMap<u64, Port>,
    /// On their way, by the moment at which they are there at the earliest.
    flying: BTreeMap<(Timestamp, u64), Flying>,
}

#[derive(Debug)]
struct Port {
    engine: usize,
    host: u64,
    arrived: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Flying {
    from_host: u64,
    to: u64,
    packet: Vec<u8>,
}

impl Packets {
    fn open(&mut self, engine: usize, host: u64) -> u64 {
        self.next_port += 1;
        self.ports.insert(self.next_port, Port { engine, host, arrived: VecDeque::new() });
        self.next_port
    }

    fn close(&mut self, port: u64) {
        self.ports.remove(&port);
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
        from: u64,
        to: u64,
        packet: Vec<u8>,
        now: Timestamp,
        links: &Links,
        random: &mut Random,
    ) -> What {
        // Nobody is there any more; which is known on the way only, but is the same for who sent it.
        let (Some(port), Some(there)) = (self.ports.get(&from), self.ports.get(&to)) else { return What::Astray };
        let (from_host, to_host) = (port.host, there.host);
        let weather = links.weather(from_host, to_host);
        if !links.passes(from_host, to_host) || in_a_thousand(random, weather.lost) {
            return What::Lost;
        }
        if self.flying.len() >= FLYING_MAX {
            return What::Lost;
        }
        let copies = if in_a_thousand(random, weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let span = weather.delay_max.saturating_sub(weather.delay_min).as_nanos() as usize;
            let delay = weather.delay_min + Duration::from_nanos(random.below(span + 1) as u64);
            self.next_packet += 1;
            let flying = Flying { from_host, to, packet: packet.clone() };
            self.flying.insert((now + delay, self.next_packet), flying);
        }
        What::Sent
    }

    fn receive(&mut self, port: u64) -> Option<Vec<u8>> {
        self.ports.get_mut(&port)?.arrived.pop_front()
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
            return None;
        }
        port.arrived.push_back(flying.packet);
        Some(port.engine)
    }
}

fn in_a_thousand(random: &mut Random, count: u32) -> bool {
    count > 0 && random.below(1000) < count as usize
}

/// What one engine has of the network for its packets.
pub(crate) struct PacketFabric {
    pub(crate) core: Arc<Core>,
    pub(crate) engine: usize,
}

impl Fabric for PacketFabric {
    fn now(&self) -> Timestamp {
        self.core.now_of(self.engine)
    }

    fn open(&self, _: u64) -> u64 {
        let mut state = self.core.lock();
        let host = state.host_of(self.engine);
        state.packets.open(self.engine, host)
    }

    fn close(&self, port: u64) {
        self.core.lock().packets.close(port);
    }

    fn send(&self, from: u64, to: u64, packet: Vec<u8>) {
        if self.core.lock().is_dead(self.engine) {
            return;
        }
        let digest = digest(&packet);
        let what = self.core.lock().send_packet(from, to, packet);
        self.core.record(self.engine, what, digest);
    }

    fn receive(&self, port: u64) -> Option<Vec<u8>> {
        self.core.lock().packets.receive(port)
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
        let (from, to) = (packets.open(0, 1), packets.open(1, 2));
        let now = Timestamp::from_ns(5);
        let send = |_| packets.send(from, to, vec![1], now, &links, &mut random);
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
        let fine = Weather { delay_min, delay_max, lost: 0, doubled: 0 };
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
        let (from, to) = (packets.open(0, 1), packets.open(1, 2));
        let now = Timestamp::from_ns(5);
        assert_eq!(packets.send(from, to, vec![1], now, &links, &mut random), What::Sent);
        links.cut(1, 2);
        assert_eq!(packets.deliver(0, &links), None);
        assert_eq!(packets.send(from, to, vec![1], now, &links, &mut random), What::Lost);
        assert_eq!(packets.send(to, from, vec![1], now, &links, &mut random), What::Sent, "the other direction passes");
        packets.crash(0);
        assert_eq!(packets.deliver(0, &links), None);
        assert_eq!(packets.send(to, from, vec![1], now, &links, &mut random), What::Astray);
        assert_ne!(packets.open(0, 1), from, "no port is given twice");
        assert_eq!(packets.open_ports(), 2);
    }
}
