//! What was measured.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use penstock::{PacketStatistics, PeerPackets};
use serde::{Serialize, Serializer};

use super::options::Options;
use crate::ends::Ends;
use crate::layout::Stretch;
use crate::measure::{least, median};

/// Longer rounds are counted as this long.
const HOUR_NS: u64 = 3_600_000_000_000;

/// One measurement. Serialised it is one JSON object with stable keys; times are those of a round, which
/// moves `bytes` bytes in `blocks` blocks. What follows from rounds is not a number (`null`) where none came to its end.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The transport that was used.
    pub transport: String,
    /// `write` or `read`.
    pub op: &'static str,
    /// The workload's name.
    pub workload: String,
    /// Bytes of a round.
    pub bytes: u64,
    /// Blocks of a round.
    pub blocks: u64,
    /// Rounds that came to their end.
    pub rounds: u64,
    /// Bytes that were confirmed in the measured time, those of a round that was cut off included.
    pub bytes_total: u64,
    /// The measured time, in seconds: between two ends of this host the time of the rounds, as others take turns with them; to
    /// another host from the beginning of the first round to the end of the last, whatever lies between them included.
    pub elapsed_s: f64,
    /// The quickest round, in microseconds.
    pub min_us: f64,
    /// The middle round, in microseconds.
    pub p50_us: f64,
    /// Nine of ten rounds took at most this, in microseconds.
    pub p90_us: f64,
    /// 99 of 100 rounds took at most this, in microseconds; the slowest of fewer rounds.
    pub p99_us: f64,
    /// All bytes by all of the time: `bytes_total` over `elapsed_s`, in 10^9 bytes a second.
    pub gbps: f64,
    /// Bytes of a round by the middle round's time, in 10^9 bytes a second: what it comes to where nothing disturbs it.
    pub gbps_p50: f64,
    /// What the engine itself costs a round, in microseconds: the middle time of its `submit` calls, plus
    /// that of claiming every unit of the same plans, expanding it, and posting each batch to a lane that
    /// does everything a lane does but copy. The claims and posts are made by one thread on its own.
    pub post_us_p50: f64,
    /// CPU time of both processes for 10^9 bytes, in seconds. Of a server on another host it is the part that was charged to this
    /// measurement: what the server used is dealt out among all that measure, by the bytes they moved. Not a number (`null`) where
    /// the other process could not be asked any more, and where not one byte was moved.
    pub cpu_s_per_gb: f64,
    /// The middle time of the best copy kernel alone, over the same kind of spans between the same pools
    /// by as many bare threads in the same run, in microseconds. Not a number (`null`) where the target is on another
    /// host, whose memory no thread here can reach.
    pub floor_us: f64,
    /// Whether the bytes that were looked at are right; absent (`null`) where none were looked at. Of wrong bytes there is an error and no
    /// report, so it is never `false` in one.
    pub verified: Option<bool>,
    /// Bytes that were looked at where they arrived: on this host every block of the pools, after one more pass of each; on
    /// another one every block that a measured round has come to.
    pub bytes_verified: u64,
    /// Why it ended before its time, if it did.
    pub cut_off: Option<CutOff>,
    /// Why this transport, in its words.
    pub path: String,
    /// The device whose memory it is on this side, and how bytes get from there; absent where it is the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceSide>,
    /// The other end's address, where the two met over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Who served the target, where that was on another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// What became of this end's packets, preparation and verification included, where the transport has packets of its own. Of a
    /// session with another host that has ended meanwhile it is what was seen at most a quarter of a second before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
    /// The rounds themselves.
    #[serde(skip)]
    pub samples: Samples,
}

/// Memory of a device on this side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceSide {
    /// What the device is called.
    pub name: String,
    /// Bytes go through pinned memory of the host, and not by a card that reaches the device.
    #[serde(rename = "staged")]
    pub is_staged: bool,
}

/// What became of one end's packets, and what the way to the other end is like.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Packets {
    pub sent: u64,
    /// Those that were given up as lost.
    pub lost: u64,
    /// Those of `lost` that had arrived after all.
    pub spurious: u64,
    /// Messages that were sent again.
    pub repeated: u64,
    /// How often all that was under way was given up.
    pub timeouts: u64,
    pub received: u64,
    /// Messages that came twice or too late.
    pub late: u64,
    /// Packets that were dropped for their tag, number or checksum.
    pub dropped: u64,
    /// The part of what was sent that was lost, from 0 to 1.
    pub loss: f64,
    pub round_trip_us: f64,
    /// Bytes that may be under way at once.
    pub window_bytes: u64,
}

impl From<PeerPackets> for Packets {
    fn from(of_peer: PeerPackets) -> Self {
        let PeerPackets { packets, round_trip, window_bytes } = of_peer;
        let PacketStatistics { sent, lost, spurious, repeated, timeouts, received, late, .. } = packets;
        let dropped = packets.forged + packets.replayed + packets.corrupt;
        let (loss, round_trip_us) = (packets.loss(), round_trip.as_secs_f64() * 1e6);
        Self { sent, lost, spurious, repeated, timeouts, received, late, dropped, loss, round_trip_us, window_bytes }
    }
}

/// Why a measurement ended before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CutOff {
    /// Somebody asked for it.
    Interrupted,
    /// It could not go on.
    Failed(String),
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Serialize for CutOff {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What rounds came to.
pub(super) struct Measured {
    pub(super) samples: Samples,
    pub(super) bytes: u64,
    pub(super) rounds: u64,
    pub(super) elapsed: Duration,
    /// CPU time of both processes, if it is known.
    pub(super) cpu: Option<Duration>,
    /// Bytes that were moved for it.
    pub(super) cpu_bytes: u64,
    /// Where the bytes stand that landed well, of a target on another host.
    pub(super) stands: Stretch,
    /// What had become of packets when they were last looked at.
    pub(super) packets: Option<Packets>,
}

/// Times of rounds, of which so many are kept at most: when there are more, every second one is.
pub(super) struct Thinned {
    times: Vec<f64>,
    every: u64,
    count: u64,
}

impl Thinned {
    const MOST: usize = 1 << 20;

    pub(super) const fn new() -> Self {
        Self { times: Vec::new(), every: 1, count: 0 }
    }

    pub(super) fn push(&mut self, time: f64) {
        if self.count.is_multiple_of(self.every) {
            self.times.push(time);
        }
        self.count += 1;
        if self.times.len() == Self::MOST {
            let mut place = 0;
            self.times.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.every *= 2;
        }
    }

    pub(super) fn into_times(self) -> Vec<f64> {
        self.times
    }
}

/// Times of each round, in nanoseconds; rounds with the same index were neighbours in time.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// The engine.
    pub engine: Vec<f64>,
    /// The best copy kernel on bare threads.
    pub kernel: Vec<f64>,
    /// A plain loop on as many bare threads: `memcpy`, or word by word where all blocks are words.
    pub plain: Vec<f64>,
    /// `submit` calls of a round.
    pub submit: Vec<f64>,
    /// Claims, expansion and posts of a round without the copies.
    pub post: Vec<f64>,
    /// Each guest.
    pub guests: Vec<Vec<f64>>,
}

impl Report {
    /// What is known before anything is measured; a round moves so many sets.
    pub(super) fn new(options: &Options, sets: u64, ends: &Ends, is_staged: bool) -> Self {
        Self {
            transport: ends.peer.transport().to_owned(),
            op: options.op.as_str(),
            workload: options.workload.name.clone(),
            bytes: sets * options.workload.bytes(),
            blocks: sets * options.workload.blocks_total(),
            rounds: 0,
            bytes_total: 0,
            elapsed_s: 0.0,
            min_us: 0.0,
            p50_us: 0.0,
            p90_us: 0.0,
            p99_us: 0.0,
            gbps: 0.0,
            gbps_p50: 0.0,
            post_us_p50: 0.0,
            cpu_s_per_gb: 0.0,
            floor_us: 0.0,
            verified: None,
            bytes_verified: 0,
            cut_off: None,
            path: ends.peer.path().to_owned(),
            device: ends.near.device.as_ref().map(|on| DeviceSide { name: on.device.clone(), is_staged }),
            address: ends.peer.address().map(|address| address.to_string()),
            served_by: ends.served_by(),
            packets: ends.peer.packets().map(Packets::from),
            samples: Samples::default(),
        }
    }

    /// Fills in everything that follows from the rounds and from the look at the bytes.
    pub(super) fn with(mut self, measured: Measured, verified: Option<u64>, cut_off: Option<CutOff>) -> Self {
        let Measured { samples, bytes, rounds, elapsed, cpu, cpu_bytes, packets, .. } = measured;
        // A session that has ended has none any more.
        self.packets = self.packets.or(packets);
        (self.rounds, self.bytes_total, self.elapsed_s) = (rounds, bytes, elapsed.as_secs_f64());
        self.min_us = least(&samples.engine) / 1e3;
        self.p50_us = median(&samples.engine) / 1e3;
        (self.p90_us, self.p99_us) = (f64::NAN, f64::NAN);
        if !samples.engine.is_empty() {
            let mut histogram =
                Histogram::<u64>::new_with_bounds(1, HOUR_NS, 3).expect("three digits over an hour are allowed");
            for &time in &samples.engine {
                histogram.saturating_record(time as u64);
            }
            let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            (self.p90_us, self.p99_us) = (at(0.9), at(0.99));
        }
        self.gbps = bytes as f64 / elapsed.as_nanos() as f64;
        self.gbps_p50 = self.bytes as f64 / median(&samples.engine);
        self.post_us_p50 = (median(&samples.submit) + median(&samples.post)) / 1e3;
        let cpu = cpu.filter(|_| cpu_bytes > 0);
        self.cpu_s_per_gb = cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64() / (cpu_bytes as f64 / 1e9));
        self.floor_us = median(&samples.kernel) / 1e3;
        let bytes_verified = verified.unwrap_or(0);
        self.verified = (bytes_verified > 0).then_some(true);
        (self.bytes_verified, self.cut_off) = (bytes_verified, cut_off);
        self.samples = samples;
        self
    }
}

#[cfg(test)]
pub(crate) fn example() -> Report {
    let report = Report {
        transport: "shm".to_owned(),
        op: "write",
        workload: "kv16".to_owned(),
        bytes: 16_000,
        blocks: 10,
        rounds: 0,
        bytes_total: 0,
        elapsed_s: 0.0,
        min_us: 0.0,
        p50_us: 0.0,
        p90_us: 0.0,
        p99_us: 0.0,
        gbps: 0.0,
        gbps_p50: 0.0,
        post_us_p50: 0.0,
        cpu_s_per_gb: 0.0,
        floor_us: 0.0,
        verified: None,
        bytes_verified: 0,
        cut_off: None,
        path: "same host".to_owned(),
        device: None,
        address: None,
        served_by: None,
        packets: None,
        samples: Samples::default(),
    };
    let samples = Samples {
        engine: vec![2_000.0, 1_000.0, 3_000.0, 4_000.0],
        kernel: vec![1_000.0; 4],
        plain: vec![2_000.0; 4],
        submit: vec![100.0; 4],
        post: vec![200.0; 4],
        guests: Vec::new(),
    };
    let (bytes, elapsed) = (4 * 16_000, Duration::from_micros(10));
    let cpu = Some(Duration::from_micros(64));
    let measured = Measured {
        samples,
        bytes,
        rounds: 4,
        elapsed,
        cpu,
        cpu_bytes: bytes,
        stands: Stretch { from: 0, bytes: 0 },
        packets: None,
    };
    report.with(measured, Some(bytes), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_report_are_stable() {
        let text = serde_json::to_string(&example()).unwrap();
        let keys = [
            "transport",
            "op",
            "workload",
            "bytes",
            "blocks",
            "rounds",
            "bytes_total",
            "elapsed_s",
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "gbps",
            "gbps_p50",
            "post_us_p50",
            "cpu_s_per_gb",
            "floor_us",
            "verified",
            "bytes_verified",
            "cut_off",
            "path",
        ];
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), keys.len());
        let places: Vec<usize> = keys.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn figures_follow_from_the_rounds() {
        let report = example();
        assert_eq!((report.rounds, report.min_us, report.p50_us), (4, 1.0, 2.5));
        assert!((report.p90_us - 4.0).abs() < 0.01 && report.p90_us <= report.p99_us);
        assert_eq!((report.gbps_p50, report.floor_us), (6.4, 1.0));
        assert_eq!((report.gbps, report.bytes_total, report.elapsed_s), (6.4, 64_000, 1e-5));
        assert!((report.post_us_p50 - 0.3).abs() < 1e-9);
        assert!((report.cpu_s_per_gb - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_slow_round_lowers_the_rate_and_not_that_of_the_middle_round() {
        let report = example();
        let samples = Samples { engine: vec![1_000.0, 1_000.0, 998_000.0], ..Samples::default() };
        let (bytes, elapsed) = (3 * 16_000, Duration::from_millis(1));
        let measured = Measured {
            samples,
            bytes,
            rounds: 3,
            elapsed,
            cpu: None,
            cpu_bytes: bytes,
            stands: Stretch { from: 0, bytes: 0 },
            packets: None,
        };
        let report = report.with(measured, Some(bytes), None);
        assert_eq!((report.gbps, report.gbps_p50), (0.048, 16.0));
        assert!(report.cpu_s_per_gb.is_nan());
    }

    #[test]
    fn without_a_whole_round_there_are_bytes_and_a_rate() {
        let (bytes, elapsed) = (8_000, Duration::from_micros(8));
        let (samples, cpu) = (Samples::default(), Some(Duration::from_micros(8)));
        let measured = Measured {
            samples,
            bytes,
            rounds: 0,
            elapsed,
            cpu,
            cpu_bytes: bytes,
            stands: Stretch { from: 0, bytes: 0 },
            packets: None,
        };
        let report = example().with(measured, None, Some(CutOff::Interrupted));
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!((&value["gbps"], &value["bytes_total"]), (&1.0.into(), &8_000.into()));
        assert!(["p50_us", "min_us", "p99_us", "gbps_p50"].iter().all(|key| value[key].is_null()), "{value}");
        assert_eq!((&value["cut_off"], &value["verified"]), (&"interrupted".into(), &serde_json::Value::Null));
    }

    #[test]
    fn without_a_byte_there_are_packets_and_no_cpu_time_for_it() {
        let cpu = Some(Duration::from_micros(8));
        let stands = Stretch { from: 0, bytes: 0 };
        let (samples, elapsed) = (Samples::default(), Duration::from_secs(1));
        let last_look = PeerPackets {
            packets: PacketStatistics { sent: 10, lost: 10, ..PacketStatistics::default() },
            round_trip: Duration::from_millis(1),
            window_bytes: 1_188,
        };
        let packets = Packets::from(last_look);
        let measured =
            Measured { samples, bytes: 0, rounds: 0, elapsed, cpu, cpu_bytes: 0, stands, packets: Some(packets) };
        let report = example().with(measured, None, Some(CutOff::Failed("lost".to_owned())));
        assert!(report.cpu_s_per_gb.is_nan());
        assert_eq!((report.packets, packets.lost), (Some(packets), 10), "they are counted all the same");
    }

    #[test]
    fn more_times_than_are_kept_are_thinned_evenly() {
        let mut thinned = Thinned::new();
        (0..3 * Thinned::MOST).for_each(|number| thinned.push(number as f64));
        let times = thinned.into_times();
        assert!((Thinned::MOST / 2..Thinned::MOST).contains(&times.len()), "{}", times.len());
        assert!(times.windows(2).all(|two| two[1] - two[0] == times[1] - times[0]));
    }
}
