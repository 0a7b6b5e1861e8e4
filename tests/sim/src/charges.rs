//! What is on its way to each port, as credit counts it: all grants of a port together have to fit into its buffer.
//!
//! Only first transmissions need credit, and each packet says what its sender has used with it. What left so long ago that its grant is void
//! for its sender is not counted: a receiver that stands still promises nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use penstock::Timestamp;
use penstock_datagram::credit::GRANT_LAPSES;
use penstock_datagram::wire::Packet;

use crate::oracle::{Invariant, Violated};

/// The packets that are on their way and were charged.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    /// What each connection's peer has said to have used, by the id under which its packets are received.
    used: BTreeMap<u64, u32>,
    /// When a packet left and what it cost, by where it goes and its number.
    under_way: BTreeMap<(SocketAddr, u64), (Timestamp, u64)>,
    overfull: Option<String>,
}

impl Charges {
    /// A packet leaves. Answers what it costs, if it has anything that was never sent before.
    pub(crate) fn cost(&mut self, packet: &[u8]) -> u64 {
        let Ok(packet) = Packet::parse(packet) else { return 0 };
        let used = self.used.entry(packet.connection()).or_default();
        let more = packet.used().wrapping_sub(*used) as i32;
        if more > 0 {
            *used = packet.used();
        }
        more.max(0) as u64
    }

    /// A packet that cost so much is on its way to a port with room for so many bytes.
    pub(crate) fn begin(&mut self, to: SocketAddr, number: u64, cost: u64, room: u64, now: Timestamp) {
        if cost == 0 {
            return;
        }
        self.under_way.insert((to, number), (now, cost));
        let its = self.under_way.range((to, 0)..=(to, u64::MAX));
        let sum: u64 = its.filter(|(_, (left, _))| now.since(*left) < GRANT_LAPSES).map(|(_, (_, cost))| cost).sum();
        if sum > room {
            self.overfull.get_or_insert_with(|| format!("{sum} bytes are on their way to {to}, which takes {room}"));
        }
    }

    /// A packet was taken, or is lost.
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
