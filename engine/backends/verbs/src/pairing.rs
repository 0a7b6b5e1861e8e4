//! Which rail of one engine is joined to which of the other.
//!
//! Both sides ask the same function with the same two lists in the same order, so nobody has to be told.

use std::fmt;

use crate::offer::{OfferedRail, VerbsOffer};

/// The most rails of a link, and the most that are chosen without names: more are more queues for every session.
pub const RAILS_MAX: usize = 8;

/// Two rails that are joined, by their places in the offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RailPair {
    /// Of the side that was named first.
    pub first: usize,
    pub second: usize,
    pub why: Why,
}

/// Why two rails are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Their addresses are of one network.
    SameNetwork,
    /// Packets between them are routed.
    Routed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameNetwork => "same network",
            Self::Routed => "routed",
        })
    }
}

/// Joins rails of one network first, then in order those that packets are routed between. Each is used once.
pub fn pair(first: &[OfferedRail], second: &[OfferedRail]) -> Vec<RailPair> {
    let mut pairs: Vec<RailPair> = Vec::new();
    for why in [Why::SameNetwork, Why::Routed] {
        for (one, mine) in first.iter().enumerate() {
            let is_free = |at: usize, pairs: &[RailPair]| pairs.iter().all(|pair| pair.second != at);
            if pairs.len() == RAILS_MAX || pairs.iter().any(|pair| pair.first == one) {
                continue;
            }
            let mut others = second.iter().enumerate();
            let found = others.find(|(at, theirs)| is_free(*at, &pairs) && way(mine, theirs) == Some(why));
            if let Some((other, _)) = found {
                pairs.push(RailPair { first: one, second: other, why });
            }
        }
    }
    pairs.sort_unstable_by_key(|pair| (pair.first, pair.second));
    pairs
}

/// As [`pair`], from this side: which of the two is first follows from the offers themselves.
pub fn pair_from_here(here: &VerbsOffer, there: &VerbsOffer) -> Vec<RailPair> {
    if is_first(here, there) {
        return pair(&here.rails, &there.rails);
    }
    let turned = pair(&there.rails, &here.rails).into_iter();
    turned.map(|pair| RailPair { first: pair.second, second: pair.first, why: pair.why }).collect()
}

/// Whether this side is the first of the two, which follows from the offers themselves: it also is the one that calls.
pub(crate) fn is_first(here: &VerbsOffer, there: &VerbsOffer) -> bool {
    here.order() <= there.order()
}

/// How packets get from one port to the other, if they do.
fn way(one: &OfferedRail, other: &OfferedRail) -> Option<Why> {
    // InfiniBand has no way to Ethernet, and what one version of RoCE sends the other takes for nothing.
    if one.kind != other.kind || is_v4(&one.gid) != is_v4(&other.gid) {
        return None;
    }
    let bits = one.network_bits.max(other.network_bits);
    if has_same_prefix(&one.gid, &other.gid, bits) {
        return Some(Why::SameNetwork);
    }
    (one.is_routable && other.is_routable).then_some(Why::Routed)
}

/// An IPv4 address in the form of an IPv6 one.
fn is_v4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

fn has_same_prefix(one: &[u8; 16], other: &[u8; 16], bits: u8) -> bool {
    let differing = u128::from_be_bytes(*one) ^ u128::from_be_bytes(*other);
    differing.leading_zeros() >= u32::from(bits).min(128)
}

/// Why no rail is joined, in words that name both sides' ports.
pub fn why_none(here: &[OfferedRail], there: &[OfferedRail]) -> String {
    let list = |rails: &[OfferedRail]| rails.iter().map(OfferedRail::in_words).collect::<Vec<_>>().join(", ");
    let networks = |rails: &[OfferedRail]| {
        let mut networks: Vec<_> = rails.iter().map(OfferedRail::network).collect();
        networks.sort();
        networks.dedup();
        networks.join(", ")
    };
    let bits = |one: &OfferedRail, other: &OfferedRail| one.network_bits.max(other.network_bits);
    let meets_otherwise = |mine: &OfferedRail, theirs: &OfferedRail| {
        mine.kind != theirs.kind && has_same_prefix(&mine.gid, &theirs.gid, bits(mine, theirs))
    };
    let other_kind = here.iter().flat_map(|mine| there.iter().map(move |theirs| (mine, theirs)));
    let other_kind = other_kind.into_iter().find(|(mine, theirs)| meets_otherwise(mine, theirs));
    let mend = match other_kind {
        Some((mine, theirs)) => format!(
            "{} of this engine speaks {} where {} of the peer speaks {}: name addresses of one kind in `transports.verbs_devices`, as \
             `device:port:gid index`",
            mine.name, mine.kind, theirs.name, theirs.kind
        ),
        None => "give ports of both an address of one network, or routable addresses of the same kind".to_owned(),
    };
    format!(
        "no RDMA port of this engine ({}) reaches one of the peer's ({}); this engine is in {}, the peer in {}: {mend}",
        list(here),
        list(there),
        networks(here),
        networks(there)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::adapter::GidKind;
    use crate::offer::{By, OfferedQueue};

    fn rail(name: &str, gid: [u8; 16], network_bits: u8, is_routable: bool) -> OfferedRail {
        OfferedRail {
            name: name.to_owned(),
            gid,
            lid: 0,
            kind: GidKind::RoceV2,
            network_bits,
            is_routable,
            mtu: 4096,
            bandwidth: 1,
            reads_max: 1,
            cm_address: None,
            queues: vec![OfferedQueue { number: 1, first_packet: 1, token: None }],
        }
    }

    fn v4(name: &str, address: [u8; 4], bits: u8, is_routable: bool) -> OfferedRail {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&address);
        rail(name, gid, 96 + bits, is_routable)
    }

    fn places(first: &[OfferedRail], second: &[OfferedRail]) -> Vec<(usize, usize, Why)> {
        pair(first, second).into_iter().map(|pair| (pair.first, pair.second, pair.why)).collect()
    }

    #[test]
    fn rails_of_one_network_find_each_other_whatever_their_order() {
        let here = [v4("a", [10, 0, 1, 1], 24, true), v4("b", [10, 0, 2, 1], 24, true)];
        let there = [v4("c", [10, 0, 2, 2], 24, true), v4("d", [10, 0, 1, 2], 24, true)];
        assert_eq!(places(&here, &there), [(0, 1, Why::SameNetwork), (1, 0, Why::SameNetwork)]);
    }

    #[test]
    fn what_has_no_network_in_common_is_joined_in_order_if_it_is_routed() {
        let here =
            [v4("a", [10, 0, 1, 1], 24, false), v4("b", [10, 0, 2, 1], 24, true), v4("c", [10, 0, 3, 1], 24, true)];
        let there = [v4("d", [10, 1, 2, 2], 24, true), v4("e", [10, 0, 3, 2], 24, true)];
        assert_eq!(places(&here, &there), [(1, 0, Why::Routed), (2, 1, Why::SameNetwork)]);
        assert_eq!(places(&here[..1], &there), []);
    }

    #[test]
    fn different_kinds_of_addresses_and_links_are_not_joined() {
        let four = [v4("a", [10, 0, 1, 1], 24, true)];
        let six = [rail("b", [0xfd; 16], 64, true)];
        let band = [OfferedRail { lid: 7, kind: GidKind::InfiniBand, ..rail("c", [0xfd; 16], 64, true) }];
        assert_eq!(places(&four, &six), []);
        assert_eq!(places(&six, &band), []);
        assert_eq!(places(&band, &band), [(0, 0, Why::SameNetwork)]);
        let why = why_none(&four, &six);
        assert!(why.contains("a (10.0.1.1") && why.contains("b (fdfd:"), "{why}");
        assert!(
            why.contains("this engine is in 10.0.1.0/24 (RoCE v2), the peer in fdfd:fdfd:fdfd:fdfd::/64 (RoCE v2)"),
            "{why}"
        );
    }

    #[test]
    fn versions_of_roce_are_not_joined() {
        let old = |name, last| OfferedRail { kind: GidKind::RoceV1, ..v4(name, [10, 0, 1, last], 24, false) };
        let new = |name, last| v4(name, [10, 0, 1, last], 24, true);
        assert_eq!(places(&[old("a", 1)], &[new("b", 2)]), []);
        assert_eq!(
            places(&[old("a", 1), new("b", 2)], &[new("c", 3), old("d", 4)]),
            [(0, 1, Why::SameNetwork), (1, 0, Why::SameNetwork)]
        );
        let why = why_none(&[old("a", 1)], &[new("b", 2)]);
        assert!(why.contains("a of this engine speaks RoCE v1 where b of the peer speaks RoCE v2"), "{why}");
        assert!(why.contains("`transports.verbs_devices`"), "{why}");
    }

    fn rails() -> impl Strategy<Value = Vec<OfferedRail>> {
        let kinds = prop_oneof![Just(GidKind::InfiniBand), Just(GidKind::RoceV1), Just(GidKind::RoceV2)];
        let one =
            (any::<bool>(), 0u8..3, 0u8..4, any::<bool>(), kinds).prop_map(|(is_v4, network, host, routed, kind)| {
                let rail = if is_v4 {
                    v4("x", [10, 0, network, host], 24, routed)
                } else {
                    let mut gid = [0; 16];
                    (gid[0], gid[7], gid[15]) = (0xfd, network, host);
                    rail("y", gid, 64, routed)
                };
                OfferedRail { kind, ..rail }
            });
        proptest::collection::vec(one, 1..=RAILS_MAX)
    }

    proptest! {
        #[test]
        fn both_sides_agree_and_use_each_rail_once(one in rails(), other in rails()) {
            let [one, other] = [one, other].map(|rails| VerbsOffer { workers: 1, grants: 8, by: By::Exchange, rails });
            let (here, there) = (pair_from_here(&one, &other), pair_from_here(&other, &one));
            let turned: Vec<_> = there.iter().map(|pair| (pair.second, pair.first, pair.why)).collect();
            let straight: Vec<_> = here.iter().map(|pair| (pair.first, pair.second, pair.why)).collect();
            prop_assert_eq!(&straight, &turned, "in the same order, too");
            for pairs in [straight.iter().map(|pair| pair.0).collect::<Vec<_>>(), straight.iter().map(|pair| pair.1).collect()] {
                let mut once = pairs.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(once.len(), pairs.len());
            }
            let can = one.rails.iter().any(|mine| other.rails.iter().any(|theirs| way(mine, theirs).is_some()));
            prop_assert_eq!(can, !here.is_empty());
        }
    }
}
