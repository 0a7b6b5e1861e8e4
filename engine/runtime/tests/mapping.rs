//! A peer's pool that is long in mapping. By itself, since all that may wait for one process waits together.

#[path = "by_name/ends/mod.rs"]
mod ends;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::{InputEvent, Receive, RequestId, Send, Status, TransferId};
use penstock_memory::BlockingCalls;

use crate::ends::{Both, PATIENCE, UUID, assert_bytes, both};

#[test]
fn a_pool_that_is_long_in_mapping_holds_up_who_uses_it_and_nobody_else() {
    let both = both(TransportName::Shm);
    let Both { source, sink, there, .. } = &both;
    // What maps it waits behind this.
    let (release, held) = mpsc::channel::<()>();
    BlockingCalls::of(std::process::id()).run(move || {
        let _ = held.recv();
    });
    let transfer = TransferId::mint(UUID, 1, 0).unwrap();
    let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(half).unwrap());
    let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
    let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there)).unwrap();
    input.grant(&sink.take(2)).unwrap();
    source.compute(&output, 1, 100);
    let begun = Instant::now();
    let mut answers = 0;
    while begun.elapsed() < Duration::from_millis(300) {
        there.refresh(Duration::from_secs(1)).unwrap();
        answers += 1;
    }
    assert!(answers > 3, "the control loop has answered {answers} times");
    assert_eq!((input.try_next(), output.poll()), (None, None), "it was mapped where it holds up everybody");
    drop(release);
    let tokens = loop {
        match input.next(PATIENCE).unwrap() {
            InputEvent::Done { tokens } => break tokens,
            InputEvent::Leg { .. } | InputEvent::Layer { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let mut layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, tokens).unwrap() as usize]);
    let [one, other] = &mut layers;
    input.assemble(&mut [one, other], tokens).unwrap();
    output.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((tokens, input.status(), output.status()), (100, Status::Success, Status::Success));
    assert_bytes(1, tokens, &layers);
}
