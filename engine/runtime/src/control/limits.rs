//! How often and how many strangers are heard.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use penstock_core::Timestamp;

/// Sources that are remembered.
const SOURCES_MAX: usize = 4096;

/// Where a connection comes from, as far as it is told apart: an address of IPv4, or the first half of one of IPv6,
/// since one host has all of the other half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientAddress(IpAddr);

impl ClientAddress {
    pub(super) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(mapped) => Self(IpAddr::V4(mapped)),
                None => Self(IpAddr::V6(Ipv6Addr::from(u128::from(address) & (u128::MAX << 64)))),
            },
            v4 => Self(v4),
        }
    }
}

/// A bucket for each source: it holds as many connections as may come at once, and fills with time.
pub(super) struct Limits {
    per_second: u64,
    sources: BTreeMap<ClientAddress, Bucket>,
}

struct Bucket {
    /// In billionths of a connection.
    level: u64,
    at: Timestamp,
}

const ONE: u64 = 1_000_000_000;

impl Limits {
    pub(super) fn new(per_second: u64) -> Self {
        Self { per_second, sources: BTreeMap::new() }
    }

    fn full(&self) -> u64 {
        self.per_second.saturating_mul(ONE)
    }

    fn level(&self, bucket: &Bucket, now: Timestamp) -> u64 {
        let nanos = u64::try_from(now.since(bucket.at).as_nanos()).unwrap_or(u64::MAX);
        bucket.level.saturating_add(nanos.saturating_mul(self.per_second)).min(self.full())
    }

    /// Whether a connection from there is heard now.
    pub(super) fn take(&mut self, source: ClientAddress, now: Timestamp) -> bool {
        let level = match self.sources.get(&source) {
            Some(bucket) => self.level(bucket, now),
            None => {
                self.make_room(now);
                self.full()
            }
        };
        let left = level.checked_sub(ONE);
        self.sources.insert(source, Bucket { level: left.unwrap_or(level), at: now });
        left.is_some()
    }

    /// What came turned out to belong to a session: it does not count.
    pub(super) fn give_back(&mut self, source: ClientAddress) {
        let full = self.full();
        if let Some(bucket) = self.sources.get_mut(&source) {
            bucket.level = bucket.level.saturating_add(ONE).min(full);
        }
    }

    fn make_room(&mut self, now: Timestamp) {
        if self.sources.len() < SOURCES_MAX {
            return;
        }
        // A full bucket says the same as none.
        let idle = Duration::from_secs(1);
        self.sources.retain(|_, bucket| now.since(bucket.at) < idle);
        if self.sources.len() >= SOURCES_MAX {
            let oldest = self.sources.iter().min_by_key(|(_, bucket)| bucket.at).map(|(&source, _)| source);
            oldest.and_then(|source| self.sources.remove(&source));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u32) -> ClientAddress {
        ClientAddress::of(IpAddr::from((0x0a00_0000 + last).to_be_bytes()))
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_ns(millis * 1_000_000)
    }

    #[test]
    fn a_source_has_a_burst_and_then_its_rate() {
        let mut limits = Limits::new(10);
        assert!((0..10).all(|_| limits.take(source(1), at(0))));
        assert!(!limits.take(source(1), at(0)));
        assert!(limits.take(source(2), at(0)), "another one is not bothered");
        assert!(!limits.take(source(1), at(99)));
        assert!(limits.take(source(1), at(101)));
        assert!(!limits.take(source(1), at(101)));
        let heard = (0..100).filter(|_| limits.take(source(1), at(60_000))).count();
        assert_eq!(heard, 10, "no more than the burst, however long it was quiet");
        limits.give_back(source(1));
        assert!(limits.take(source(1), at(60_000)));
    }

    #[test]
    fn sources_are_bounded() {
        let mut limits = Limits::new(1);
        for last in 0..3 * SOURCES_MAX as u32 {
            assert!(limits.take(source(last), at(u64::from(last) / 100)));
            assert!(limits.sources.len() <= SOURCES_MAX);
        }
        assert!(!limits.take(source(3 * SOURCES_MAX as u32 - 1), at(3 * SOURCES_MAX as u64 / 100)));
    }

    #[test]
    fn one_host_is_one_source() {
        let of = |text: &str| ClientAddress::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
