//! What is on its way to each port, as credit counts it: all grants of a port together have to fit into its buffer, with what the first
//! sender may send without one. What every further sender may send so comes on top: two engines that call each other at the same time have
//! two sessions, and a grant is not taken back when the second one begins.
//!
//! Only first transmissions need credit, and each packet says what its sender has used with it. What left so long ago that its grant is void
//! for its sender is not counted: a receiver that stands still promises nothing. Nor is what was overtaken by a packet that was taken: its receiver counts
//! it as arrived, since a later total says so, and what overtakes for several round trips is more than any grant leaves room for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use penstock::Timestamp;
use penstock_datagram::credit::{ALLOWED_FRAMES, GRANT_LAPSES, charge};
use penstock_datagram::wire::Packet;

use crate::oracle::{Invariant, Violated};

/// The packets that are on their way and were charged.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    /// What each connection's peer has said to have used, by the id under which its packets are received.
    used: BTreeMap<u64, u32>,
    /// When a packet left and what it cost, by where it goes and its number.
    under_way: BTreeMap<(SocketAddr, u64), (Timestamp, Cost)>,
    overfull: Option<String>,
}

/// What a packet costs, and the id under which it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    connection: u64,
    bytes: u64,
    /// What was used with it, in all.
    used: u32,
}

/// What a port takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// As credit counts them.
    pub(crate) bytes: u64,
    /// The longest packet that gets there.
    pub(crate) frame_bytes: usize,
}

impl Room {
    /// What may be on the way of so many connections, whichever of them began first: a grant leaves room for what is the own of at least
    /// one, and all others have as much without a grant.
    fn most(self, connections: usize) -> u64 {
        let own = ALLOWED_FRAMES * charge(self.frame_bytes);
        self.bytes.max(own) + own * connections.saturating_sub(1) as u64
    }
}

impl Charges {
    /// A packet leaves. Answers what it costs, if it has anything that was never sent before.
    pub(crate) fn cost(&mut self, packet: &[u8]) -> Cost {
        let Ok(packet) = Packet::parse(packet) else { return Cost::default() };
        let used = self.used.entry(packet.connection()).or_default();
        let more = packet.used().wrapping_sub(*used) as i32;
        if more > 0 {
            *used = packet.used();
        }
        Cost { connection: packet.connection(), bytes: more.max(0) as u64, used: packet.used() }
    }

    /// A packet that cost so much is on its way to a port with so much room.
    pub(crate) fn begin(&mut self, to: SocketAddr, number: u64, cost: Cost, room: Room, now: Timestamp) {
        if cost.bytes == 0 {
            return;
        }
        self.under_way.insert((to, number), (now, cost));
        let its = self.under_way.range((to, 0)..=(to, u64::MAX));
        let its = its.filter(|(_, (left, _))| now.since(*left) < GRANT_LAPSES).map(|(_, (_, cost))| cost);
        let connections = its.clone().map(|cost| cost.connection).collect::<BTreeSet<_>>().len();
        let (sum, most) = (its.map(|cost| cost.bytes).sum::<u64>(), room.most(connections));
        if sum > most {
            let (bytes, senders) = (room.bytes, connections);
            self.overfull.get_or_insert_with(|| {
                format!(
                    "{sum} bytes of {senders} connections are on their way to {to}, which takes {bytes}: {most} at most"
                )
            });
        }
    }

    /// A packet was taken at this port, which hears what was used before.
    pub(crate) fn take(&mut self, to: SocketAddr, number: u64, packet: &[u8]) {
        self.end(to, number);
        let Ok(packet) = Packet::parse(packet) else { return };
        let is_told =
            |cost: &Cost| cost.connection == packet.connection() && cost.used.wrapping_sub(packet.used()) as i32 <= 0;
        let its = self.under_way.range((to, 0)..=(to, u64::MAX));
        let told: Vec<_> = its.filter(|(_, (_, cost))| is_told(cost)).map(|(&key, _)| key).collect();
        told.iter().for_each(|key| _ = self.under_way.remove(key));
    }

    /// A packet is lost.
    pub(crate) fn end(&mut self, to: SocketAddr, number: u64) {
        self.under_way.remove(&(to, number));
    }

    /// Nothing goes there any more.
    pub(crate) fn close(&mut self, to: SocketAddr) {
        self.under_way.retain(|(port, _), _| *port != to);
    }

    /// Whether at all times everything fitted.
    pub(crate) fn check(&self) -> Result<(), Violated> {
        match &self.overfull {
            None => Ok(()),
            Some(words) => Err(Violated::new(Invariant::CreditsAreConserved, words)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1188;

    #[test]
    fn the_own_of_a_second_connection_comes_on_top_and_a_grant_of_one_does_not() {
        let to: SocketAddr = "10.0.0.1:1025".parse().unwrap();
        let frame = charge(FRAME);
        let room = Room { bytes: (ALLOWED_FRAMES + 1) * frame, frame_bytes: FRAME };
        let now = Timestamp::default() + GRANT_LAPSES;
        let checked = |packets: &[u64]| {
            let mut charges = Charges::default();
            for (number, &connection) in packets.iter().enumerate() {
                charges.begin(to, number as u64, Cost { connection, bytes: frame, used: 0 }, room, now);
            }
            charges.check()
        };
        checked(&[7; 5]).unwrap();
        checked(&[7; 6]).unwrap_err();
        checked(&[7, 7, 7, 7, 7, 8, 8, 8, 8]).unwrap();
        checked(&[7, 7, 7, 7, 7, 8, 8, 8, 8, 8]).unwrap_err();
    }
}
