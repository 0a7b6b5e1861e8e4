//! Measurements between two processes and within one, with pools too small to say anything about speed.

use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock_lab::Workload;
use penstock_lab::measure::Limit;
use penstock_lab::perf::{self, Op, Options, PerfError};

fn options(workload: &str) -> Options {
    let text = match workload {
        "blocks" => "{name: blocks, what: a test, block_bytes: 4096, blocks: 64, layers: 3}",
        "layers" => {
            "{name: layers, what: a test, block_bytes: 1152, blocks: 16, layers: 8, batches: 8, arrivals: true}"
        }
        "words" => "{name: words, what: a test, block_bytes: 8, stride_bytes: 64, blocks: 1000, layers: 1}",
        other => panic!("no test workload {other}"),
    };
    let mut options = Options::new(Workload::parse(text, "a test").unwrap());
    options.pool_bytes_min = 2 << 20;
    options.limit = Limit { rounds: 3, within: Duration::from_secs(2) };
    options.target_program = Some(env!("CARGO_BIN_EXE_penstock-lab").into());
    options
}

#[test]
fn every_transport_direction_and_kind_of_progress_is_measured_and_verified() {
    for transport in [TransportName::Local, TransportName::Shm] {
        for (progress, workers) in [(Progress::Inline, 1), (Progress::Adaptive, 2)] {
            for op in [Op::Write, Op::Read] {
                let options = Options { transport, progress, workers, op, ..options("blocks") };
                let report = perf::run(&options).unwrap();
                assert_eq!((report.transport.as_str(), report.op), (transport.as_str(), op.as_str()));
                assert_eq!((report.bytes, report.blocks, report.rounds), (192 * 4096, 192, 3));
                assert!(
                    report.verified == Some(true)
                        && report.gbps > 0.0
                        && report.floor_us > 0.0
                        && report.post_us_p50 > 0.0
                );
            }
        }
    }
}

#[test]
fn several_transfers_fly_at_once_and_each_counts_its_arrival() {
    for (workload, concurrency, sets) in [("blocks", 8, 8), ("layers", 3, 1), ("layers", 16, 2), ("words", 1, 1)] {
        for progress in [Progress::Inline, Progress::Adaptive] {
            let options = Options { concurrency, progress, ..options(workload) };
            let report = perf::run(&options).unwrap();
            assert_eq!(report.bytes, sets * options.workload.bytes());
            assert_eq!(report.verified, Some(true));
        }
    }
}

#[test]
fn one_wrong_byte_is_an_error_and_no_report() {
    for (transport, op) in
        [(TransportName::Shm, Op::Write), (TransportName::Shm, Op::Read), (TransportName::Local, Op::Write)]
    {
        let options = Options { sabotage: true, transport, op, ..options("layers") };
        let refused = perf::run(&options).unwrap_err();
        assert!(matches!(refused, PerfError::Corrupt(_)), "{refused}");
    }
}

#[test]
fn without_a_look_nothing_is_called_verified() {
    let report = perf::run(&Options { verify: false, ..options("blocks") }).unwrap();
    assert_eq!((report.verified, report.bytes_verified), (None, 0));
}

#[test]
fn a_target_that_cannot_be_is_reported_and_not_waited_for() {
    let options = Options { target_program: Some("/bin/false".into()), ..options("blocks") };
    let refused = perf::run(&options).unwrap_err();
    assert!(matches!(refused, PerfError::Target { .. }), "{refused}");
    let options = Options { workers: 2, progress: Progress::Inline, ..self::options("blocks") };
    assert!(perf::run(&options).unwrap_err().to_string().contains("workers"));
}
