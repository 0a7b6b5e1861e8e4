//! Which station has an address: as the configuration says, or as it is asked for (ARP).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::config::network::{Mac, Neighbour as FixedNeighbour};

use super::headers::Arp;

/// Who is not known is asked for so often.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Who is known is asked for anew after so long: another station may have the address now.
const ASKED_ANEW: Duration = Duration::from_secs(10);
/// Who asks for this port is remembered, as it will be answered; so many at most.
const NEIGHBOURS_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Neighbour {
    mac: Option<Mac>,
    /// None: it is never asked for.
    ask_at: Option<Timestamp>,
}

/// What is known of those that this port sends to.
#[derive(Debug, Default)]
pub(super) struct Neighbours(HashMap<Ipv4Addr, Neighbour>);

impl Neighbours {
    /// Those that the configuration names. What the network says of them is not heard.
    pub(super) fn new(fixed: &[FixedNeighbour]) -> Self {
        let known = |one: &FixedNeighbour| (one.address, Neighbour { mac: Some(one.station), ask_at: None });
        Self(fixed.iter().map(known).collect())
    }

    /// The station with this address, if it is known, and whether it is to be asked for now.
    pub(super) fn find(&mut self, ip: Ipv4Addr, now: Timestamp) -> (Option<Mac>, bool) {
        let neighbour = self.0.entry(ip).or_insert(Neighbour { mac: None, ask_at: Some(now) });
        let is_due = neighbour.ask_at.is_some_and(|at| at <= now);
        if is_due {
            neighbour.ask_at = Some(now + ASKED_EVERY);
        }
        (neighbour.mac, is_due)
    }

    /// What one says of itself. Those that are asked for are believed, and those that ask for this port.
    pub(super) fn hear(&mut self, arp: &Arp, own: Ipv4Addr, now: Timestamp) {
        let (ip, mac) = arp.from;
        let is_new = !self.0.contains_key(&ip);
        if ip == own || (is_new && (arp.to != own || arp.is_answer || self.0.len() >= NEIGHBOURS_MAX)) {
            return;
        }
        let neighbour = self.0.entry(ip).or_insert(Neighbour { mac: None, ask_at: Some(now) });
        if neighbour.ask_at.is_some() {
            *neighbour = Neighbour { mac: Some(mac), ask_at: Some(now + ASKED_ANEW) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 2);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn arp(is_answer: bool, from: Ipv4Addr, to: Ipv4Addr) -> Arp {
        Arp { is_answer, from: (from, MAC), to }
    }

    #[test]
    fn who_is_not_known_is_asked_for_now_and_then() {
        let (mut all, now) = (Neighbours::default(), Timestamp::default() + Duration::from_secs(1));
        assert_eq!(all.find(OTHER, now), (None, true));
        assert_eq!(all.find(OTHER, now + ASKED_EVERY / 2), (None, false));
        assert_eq!(all.find(OTHER, now + ASKED_EVERY), (None, true));
        all.hear(&arp(true, OTHER, OWN), OWN, now);
        assert_eq!(all.find(OTHER, now + ASKED_ANEW / 2), (Some(MAC), false));
        assert_eq!(all.find(OTHER, now + ASKED_ANEW), (Some(MAC), true), "it is sent to meanwhile");
    }

    #[test]
    fn only_who_is_sent_to_or_asks_for_this_port_is_remembered() {
        let (mut all, now) = (Neighbours::default(), Timestamp::default());
        all.hear(&arp(true, OTHER, OWN), OWN, now);
        all.hear(&arp(false, OTHER, Ipv4Addr::new(10, 0, 9, 3)), OWN, now);
        all.hear(&arp(false, OWN, OWN), OWN, now);
        assert!(all.0.is_empty());
        all.hear(&arp(false, OTHER, OWN), OWN, now);
        assert_eq!(all.find(OTHER, now).0, Some(MAC));
        for last in 0..2 * NEIGHBOURS_MAX as u32 {
            all.hear(&arp(false, Ipv4Addr::from(0x0b00_0000 + last), OWN), OWN, now);
        }
        assert_eq!(all.0.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn what_the_configuration_says_stays() {
        let fixed = Mac([2, 0, 0, 0, 0, 9]);
        let mut all = Neighbours::new(&[FixedNeighbour { address: OTHER, station: fixed }]);
        all.hear(&arp(true, OTHER, OWN), OWN, Timestamp::default());
        assert_eq!(all.find(OTHER, Timestamp::NEVER), (Some(fixed), false));
    }
}
