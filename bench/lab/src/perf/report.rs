//! What was measured.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::options::Options;
use crate::ends::Ends;
use crate::measure::{least, median};

/// Longer rounds are counted as this long.
const HOUR_NS: u64 = 3_600_000_000_000;

/// One measurement. Serialised it is one JSON object with stable keys; times are those of a round, which
/// moves `bytes` bytes in `blocks` blocks.
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
    /// Rounds measured.
    pub rounds: u64,
    /// The quickest round, in microseconds.
    pub min_us: f64,
    /// The middle round, in microseconds.
    pub p50_us: f64,
    /// Nine of ten rounds took at most this, in microseconds.
    pub p90_us: f64,
    /// 99 of 100 rounds took at most this, in microseconds; the slowest of fewer rounds.
    pub p99_us: f64,
    /// Bytes by the middle round's time, in 10^9 bytes a second.
    pub gbps: f64,
    /// What the engine itself costs a round, in microseconds: the middle time of its `submit` calls, plus
    /// that of claiming every unit of the same plans, expanding it, and posting each batch to a lane that
    /// does everything a lane does but copy. The claims and posts are made by one thread on its own.
    pub post_us_p50: f64,
    /// CPU time of both processes for 10^9 bytes, in seconds.
    pub cpu_s_per_gb: f64,
    /// The middle time of the best copy kernel alone, over the same kind of spans between the same pools
    /// by as many bare threads in the same run, in microseconds. Not a number (`null`) where the target is on another
    /// host, whose memory no thread here can reach.
    pub floor_us: f64,
    /// Whether every byte was looked at and found right. A wrong one is an error and no report.
    pub verified: bool,
    /// Why this transport, in its words.
    pub path: String,
    /// The other end's address, where the two met over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Who served the target, where that was on another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// The rounds themselves.
    #[serde(skip)]
    pub samples: Samples,
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
    pub(crate) fn new(options: &Options, sets: u64, ends: &Ends, verified: bool) -> Self {
        Self {
            transport: ends.peer.transport().to_owned(),
            op: options.op.as_str(),
            workload: options.workload.name.clone(),
            bytes: sets * options.workload.bytes(),
            blocks: sets * options.workload.blocks_total(),
            rounds: 0,
            min_us: 0.0,
            p50_us: 0.0,
            p90_us: 0.0,
            p99_us: 0.0,
            gbps: 0.0,
            post_us_p50: 0.0,
            cpu_s_per_gb: 0.0,
            floor_us: 0.0,
            verified,
            path: ends.peer.path().to_owned(),
            address: ends.peer.address().map(|address| address.to_string()),
            served_by: ends.served_by(),
            samples: Samples::default(),
        }
    }

    /// Fills in everything that follows from the rounds.
    pub(crate) fn with_samples(mut self, samples: Samples, cpu: Duration) -> Self {
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, HOUR_NS, 3).expect("three digits over an hour are allowed");
        for &time in &samples.engine {
            histogram.saturating_record(time as u64);
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        self.rounds = samples.engine.len() as u64;
        self.min_us = least(&samples.engine) / 1e3;
        (self.p50_us, self.p90_us, self.p99_us) = (median(&samples.engine) / 1e3, at(0.9), at(0.99));
        self.gbps = self.bytes as f64 / median(&samples.engine);
        self.post_us_p50 = (median(&samples.submit) + median(&samples.post)) / 1e3;
        self.cpu_s_per_gb = cpu.as_secs_f64() / (self.rounds as f64 * self.bytes as f64 / 1e9);
        self.floor_us = median(&samples.kernel) / 1e3;
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
        min_us: 0.0,
        p50_us: 0.0,
        p90_us: 0.0,
        p99_us: 0.0,
        gbps: 0.0,
        post_us_p50: 0.0,
        cpu_s_per_gb: 0.0,
        floor_us: 0.0,
        verified: true,
        path: "same host".to_owned(),
        address: None,
        served_by: None,
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
    report.with_samples(samples, Duration::from_micros(64))
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
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "gbps",
            "post_us_p50",
            "cpu_s_per_gb",
            "floor_us",
            "verified",
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
        assert_eq!((report.gbps, report.floor_us), (6.4, 1.0));
        assert!((report.post_us_p50 - 0.3).abs() < 1e-9);
        assert!((report.cpu_s_per_gb - 1.0).abs() < 1e-9);
    }
}
