//! Bare sockets between two processes, with pools too small to say anything about speed.

use std::time::Duration;

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock_lab::Workload;
use penstock_lab::ends::network::Network;
use penstock_lab::ends::on_device::MemoryKind;
use penstock_lab::ends::stream::{Stream, StreamCommand, TUNINGS};
use penstock_lab::ends::wire::{Command, Reply};
use penstock_lab::ends::{Ends, EndsSpec};
use penstock_lab::layout::{Layout, LayoutSpec};

fn spec() -> LayoutSpec {
    let text = "{name: few, what: a test, block_bytes: 4096, stride_bytes: 8192, blocks: 300, layers: 2}";
    let workload = Workload::parse(text, "a test").unwrap();
    LayoutSpec { workload, pool_bytes_min: 16 << 20, concurrency: 1, seed: 3 }
}

fn ends(progress: Progress) -> Ends {
    Ends::open(&EndsSpec {
        transport: TransportName::Shm,
        pool_bytes: Layout::new(&spec()).pool_bytes(),
        pages: PagesChoice::Small,
        progress,
        workers: 1,
        cores: Vec::new(),
        target_progress: progress,
        target_cores: Vec::new(),
        spin: None,
        memory: [MemoryKind::Host; 2],
        target_program: Some(env!("CARGO_BIN_EXE_penstock-lab").into()),
        network: Network::default(),
    })
    .unwrap()
}

#[test]
fn every_tuning_moves_every_set_to_its_final_place() {
    let mut ends = ends(Progress::Adaptive);
    let (spec, layout) = (spec(), Layout::new(&spec()));
    layout.fill(ends.near.pool.window());
    for tuning in TUNINGS {
        assert_eq!(ends.ask(&Command::Wipe(spec.clone())).unwrap(), Reply::Done);
        assert!(matches!(ends.ask(&Command::Check(spec.clone())).unwrap(), Reply::Wrong(_)));
        let mut stream = Stream::open(&mut ends, tuning).unwrap();
        stream.deal(&mut ends, &spec).unwrap();
        let round = stream.round(&mut ends).unwrap();
        assert!(round.nanos > 0.0 && round.cpu > Duration::ZERO, "{round:?}");
        stream.all(&mut ends).unwrap();
        let bytes = layout.sets().len() as u64 * spec.workload.bytes();
        assert_eq!(ends.ask(&Command::Check(spec.clone())).unwrap(), Reply::Checked { bytes }, "{}", tuning.in_words());
    }
}

#[test]
fn words_go_over_and_back_and_blocks_after_them() {
    let mut ends = ends(Progress::Inline);
    Layout::new(&spec()).fill(ends.near.pool.window());
    let mut stream = Stream::open(&mut ends, TUNINGS[0]).unwrap();
    assert!(stream.volley(&mut ends, 50, 64).unwrap() > 0.0);
    assert!(stream.volley(&mut ends, 50, 4096).unwrap() > 0.0);
    stream.deal(&mut ends, &spec()).unwrap();
    stream.all(&mut ends).unwrap();
    assert!(matches!(ends.ask(&Command::Check(spec())).unwrap(), Reply::Checked { .. }));
}

#[test]
fn what_was_not_prepared_is_refused_by_the_other_process_too() {
    let mut ends = ends(Progress::Inline);
    let mut stream = Stream::open(&mut ends, TUNINGS[0]).unwrap();
    assert!(stream.round(&mut ends).unwrap_err().to_string().contains("not dealt"));
    // It has said why, and ended.
    let refused = ends.ask(&Command::Stream(StreamCommand::Take { set: 0 })).unwrap_err();
    assert!(refused.to_string().contains("not dealt"), "{refused}");
}
