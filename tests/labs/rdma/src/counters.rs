//! What proves that something has crossed the wire, and that nothing was left behind.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::rails::Side;
use crate::{Guest, Job, LabError};

/// The counters of all links and all RDMA devices of a guest, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters(BTreeMap<String, u64>);

/// Without a program for each file: starting one takes a guest a tenth of a second.
const READ: &str = r#"
cd /sys/class
for file in net/*/statistics/[rt]x_bytes net/*/statistics/[rt]x_packets infiniband/*/ports/1/hw_counters/*; do
    read -r number 2>/dev/null <"$file" || number=0
    echo "$file $number"
done
"#;

impl Counters {
    /// Reads them.
    pub fn read(guest: &Guest) -> Result<Self, LabError> {
        let text = guest.check(&Job::shell(READ))?;
        Self::parse(&text).ok_or_else(|| LabError::Unreadable { what: "counters".to_owned(), text })
    }

    fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.trim().parse().ok()?))
        });
        lines.collect::<Option<_>>().map(Self)
    }

    /// How much was counted since an earlier moment. What began in between began at nothing.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = |(name, &now): (&String, &u64)| {
            (name.clone(), now.saturating_sub(before.0.get(name).copied().unwrap_or_default()))
        };
        Self(self.0.iter().map(grown).collect())
    }

    /// Bytes of all frames that left a side by a rail.
    pub fn sent_bytes(&self, side: Side, rail: u8) -> u64 {
        self.get(&format!("net/{}/statistics/tx_bytes", side.link(rail)))
    }

    /// Packets of RDMA that left a side by a rail.
    pub fn sent_packets(&self, side: Side, rail: u8) -> u64 {
        self.of_device(side, rail, "sent_pkts")
    }

    /// A counter of a side's RDMA device, by its name in `hw_counters`; 0 if there is none.
    pub fn of_device(&self, side: Side, rail: u8, name: &str) -> u64 {
        self.get(&format!("infiniband/{}/ports/1/hw_counters/{name}", side.device(rail)))
    }

    fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// An error unless at least so many bytes left a side by a rail, as packets of RDMA.
    pub fn expect_crossed(&self, side: Side, rail: u8, bytes: u64) -> Result<(), LabError> {
        /// The most that one packet of RDMA carries.
        const PACKET: u64 = 4096;
        let (sent, packets) = (self.sent_bytes(side, rail), self.sent_packets(side, rail));
        if sent >= bytes && packets >= bytes.div_ceil(PACKET) {
            return Ok(());
        }
        let link = side.link(rail);
        let text = format!("{sent} bytes, {packets} packets of RDMA");
        Err(LabError::Unreadable { what: format!("{bytes} bytes that crossed the wire at {link}"), text })
    }
}

/// What RDMA resources exist: for each device the number of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources(BTreeMap<String, BTreeMap<String, u64>>);

impl Resources {
    /// Counts them.
    pub fn read(guest: &Guest) -> Result<Self, LabError> {
        let text = guest.check(&Job::new("rdma").arguments(["-j", "resource"]))?;
        Self::parse(&text).ok_or_else(|| LabError::Unreadable { what: "RDMA resources".to_owned(), text })
    }

    /// The kernel takes back what a killed process had in its own time: waits until it is as before, or fails.
    pub fn wait_until(guest: &Guest, before: &Self, within: Duration) -> Result<(), LabError> {
        let until = Instant::now() + within;
        loop {
            let now = Self::read(guest)?;
            if now == *before {
                return Ok(());
            }
            if Instant::now() > until {
                let (what, so_far) = ("taking back RDMA resources".to_owned(), now.beside(before));
                return Err(LabError::TooLate { what, limit: within, so_far });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let devices: serde_json::Value = serde_json::from_str(text).ok()?;
        let devices = devices.as_array()?.iter().map(|device| {
            let kinds = device.as_object()?.iter().filter(|(name, _)| *name != "ifindex");
            let kinds = kinds.filter_map(|(name, count)| count.as_u64().map(|count| (name.clone(), count)));
            Some((device["ifname"].as_str()?.to_owned(), kinds.collect()))
        });
        devices.collect::<Option<_>>().map(Self)
    }

    /// How many of a kind (`qp`, `mr`, `cq`, `pd`, `ctx`, `cm_id`) a device has.
    pub fn count(&self, device: &str, kind: &str) -> u64 {
        self.0.get(device).and_then(|kinds| kinds.get(kind)).copied().unwrap_or_default()
    }

    fn beside(&self, before: &Self) -> String {
        format!("before: {before}\nnow:    {self}")
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (device, kinds) in &self.0 {
            write!(f, "{device}:")?;
            for (kind, count) in kinds {
                write!(f, " {kind} {count}")?;
            }
            write!(f, "; ")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(text: &str) -> Counters {
        Counters::parse(text).expect("counters")
    }

    #[test]
    fn bytes_that_took_another_way_prove_nothing() {
        let before = counters("net/a0/statistics/tx_bytes 1000\ninfiniband/rxe_a0/ports/1/hw_counters/sent_pkts 5\n");
        let by_the_wire =
            counters("net/a0/statistics/tx_bytes 9200\ninfiniband/rxe_a0/ports/1/hw_counters/sent_pkts 7\n");
        let by_tcp = counters("net/a0/statistics/tx_bytes 9200\ninfiniband/rxe_a0/ports/1/hw_counters/sent_pkts 6\n");
        let around = counters("net/a0/statistics/tx_bytes 1200\ninfiniband/rxe_a0/ports/1/hw_counters/sent_pkts 7\n");
        assert!(by_the_wire.since(&before).expect_crossed(Side::A, 0, 8192).is_ok());
        for other in [&by_tcp, &around, &before] {
            assert!(other.since(&before).expect_crossed(Side::A, 0, 8192).is_err(), "{other:?}");
        }
        assert!(by_the_wire.since(&before).expect_crossed(Side::A, 1, 1).is_err());
        assert_eq!(Counters::parse("net/a0/statistics/tx_bytes many"), None);
    }

    #[test]
    fn resources_are_counted_by_device_and_kind() {
        let text = r#"[{"ifindex":0,"ifname":"rxe_a0","pd":1,"cq":1,"qp":2},{"ifindex":1,"ifname":"rxe_b0","pd":1}]"#;
        let resources = Resources::parse(text).expect("resources");
        assert_eq!((resources.count("rxe_a0", "qp"), resources.count("rxe_b0", "qp")), (2, 0));
        assert_eq!(resources.to_string(), "rxe_a0: cq 1 pd 1 qp 2; rxe_b0: pd 1; ");
        assert_ne!(resources, Resources::parse(&text.replace(r#""qp":2"#, r#""qp":3"#)).expect("resources"));
        assert_eq!(Resources::parse("nothing"), None);
    }
}
