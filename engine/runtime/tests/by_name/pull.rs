//! Transfers by name that the sink reads, between two engines of one process, over real transports.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{FinishedTransfer, FlowCause, Gate, InputEvent, Receive, RequestId, Send, Status, TransferId};

use crate::ends::{BLOCKS, Both, End, Folder, PATIENCE, UUID, both};

impl Both {
    /// Lends so many tokens, that are read into so many blocks.
    fn pull(&self, number: u8, tokens: u64, by_layer: bool) {
        let Both { source, sink, there, .. } = self;
        let transfer = TransferId::mint(UUID, number.into(), 0).unwrap();
        let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
        let how = Send::from(&source.layout).lend();
        let how = if by_layer { how.by_layer() } else { how };
        let output = source.engine.produce(transfer, &sent, how).unwrap();
        let input =
            sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there).pull()).unwrap();
        input.grant(&sink.take(1)).unwrap();
        source.compute(&output, number, tokens);
        if by_layer {
            output.layer(0, tokens).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            output.layer(1, tokens).unwrap();
        }
        let mut layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, tokens).unwrap() as usize]);
        loop {
            match input.next(PATIENCE).unwrap() {
                InputEvent::NeedsMemory { tokens, .. } => {
                    input.grant(&sink.take(tokens.div_ceil(64) as usize)).unwrap();
                }
                InputEvent::Done { tokens: came } => {
                    assert_eq!(came, tokens);
                    let [one, other] = &mut layers;
                    input.assemble(&mut [one, other], tokens).unwrap();
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        output.wait(PATIENCE).unwrap().unwrap();
        assert_eq!((input.status(), output.status()), (Status::Success, Status::Success));
        crate::ends::assert_bytes(number, tokens, &layers);
    }

    /// Every block is free again, and nothing is left in any table.
    fn assert_nothing_is_left(&self) {
        for end in [&self.source, &self.sink] {
            end.assert_nothing_is_left();
        }
    }
}

/// Blocks of 16 tokens there, of 64 here.
fn bytes_are_read(transport: TransportName) {
    let both = both(transport);
    for (number, tokens, by_layer) in [(1, 200, false), (2, 1000, true), (3, 64, true), (4, 1, false), (5, 15, true)] {
        both.pull(number, tokens, by_layer);
    }
    let mut finished = FinishedTransfer::default();
    assert_eq!(
        (both.source.engine.drain_finished(&mut finished), both.sink.engine.drain_finished(&mut finished)),
        (5, 5)
    );
    assert_eq!((finished.sent.len(), finished.received.len(), finished.failed.len()), (5, 5, 0));
    both.assert_nothing_is_left();
}

#[test]
fn bytes_are_read_within_a_process() {
    bytes_are_read(TransportName::Local);
}

#[test]
fn bytes_are_read_over_mapped_pools() {
    bytes_are_read(TransportName::Shm);
}

#[test]
fn bytes_are_read_over_sockets() {
    bytes_are_read(TransportName::Tcp);
}

#[test]
#[ignore = "needs path:/sys/class/infiniband/rxe_a0"]
fn bytes_are_read_over_cards() {
    bytes_are_read(TransportName::Verbs);
}

#[test]
fn layers_of_two_transfers_wait_for_one_gate_that_another_thread_opens() {
    let both = both(TransportName::Shm);
    let Both { source, sink, there, .. } = &both;
    let gate = Gate::shut(&source.engine).unwrap();
    // The second is pushed.
    let halves = [(1_u8, true), (2, false)].map(|(number, is_read)| {
        let transfer = TransferId::mint(UUID, number.into(), 0).unwrap();
        let request = |half: &str| RequestId::new(&format!("{half}-{number}")).unwrap();
        let how = Send::from(&source.layout).by_layer();
        let how = if is_read { how.lend() } else { how };
        let output = source.engine.produce(transfer, &request("a"), how).unwrap();
        let how = Receive::into(&sink.layout).from(0, there);
        let how = if is_read { how.pull() } else { how };
        let input = sink.engine.consume(transfer, &request("b"), how).unwrap();
        input.grant(&sink.take(2)).unwrap();
        source.compute(&output, number, 100);
        output.layer(0, 100).unwrap();
        output.layer_after(1, 100, &gate).unwrap();
        (number, output, input)
    });
    let pushed = halves[1].2.next(PATIENCE).unwrap();
    assert_eq!(pushed, InputEvent::Layer { leg: 0, layer: 0 });
    for (_, output, input) in &halves {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((input.try_next(), output.poll()), (None, None), "layer 1 waits");
    }
    let waits = std::thread::spawn(move || {
        gate.open();
        gate
    });
    for (number, output, input) in &halves {
        while input.next(PATIENCE).unwrap() != (InputEvent::Done { tokens: 100 }) {}
        let mut layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, 100).unwrap() as usize]);
        let [one, other] = &mut layers;
        input.assemble(&mut [one, other], 100).unwrap();
        crate::ends::assert_bytes(*number, 100, &layers);
        output.wait(PATIENCE).unwrap().unwrap();
    }
    drop(waits.join().unwrap());
    drop(halves);
    both.assert_nothing_is_left();
}

#[test]
fn a_gate_that_nobody_can_open_any_more_ends_both_sides_in_words() {
    let both = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let (transfer, request) = (TransferId::mint(UUID, 1, 0).unwrap(), RequestId::new("r").unwrap());
    let gate = Gate::shut(&source.engine).unwrap();
    let foreign = Gate::shut(&sink.engine).unwrap();
    let output = source.engine.produce(transfer, &request, Send::from(&source.layout).by_layer().lend()).unwrap();
    let input = sink.engine.consume(transfer, &request, Receive::into(&sink.layout).from(0, there).pull()).unwrap();
    input.grant(&sink.take(1)).unwrap();
    source.compute(&output, 1, 64);
    let error = output.layer_after(0, 64, &foreign).unwrap_err().to_string();
    assert!(error.contains("another engine"), "{error}");
    output.layer_after(0, 64, &gate).unwrap();
    drop(gate);
    let InputEvent::Failed(failed) = input.next(PATIENCE).unwrap() else { panic!("it cannot go on") };
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    assert!(failed.words.contains("the first 64 tokens of layer 0 was dropped and never opened"), "{}", failed.words);
    assert_eq!(failed.blocks.len(), 1);
    assert_eq!(output.wait(PATIENCE).unwrap().unwrap_err().words, failed.words);
    drop((input, output));
    both.assert_nothing_is_left();
}

/// The sink is turned by hand, and is not for longer than its lease stands: nothing of it renews.
fn scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired(transport: TransportName) {
    // A processor that is emulated is not to be hurried.
    let ttl = Duration::from_secs(if transport == TransportName::Verbs { 5 } else { 1 });
    let folder = Folder::new();
    let source = End::start(&folder, "prefill-0", transport, 16);
    let sink = End::start_as(&folder, "decode-0", transport, 64, Progress::Inline);
    let there = sink.engine.connect(&source.engine.descriptor(), PATIENCE).unwrap();
    there.wait_layout("kv", PATIENCE).unwrap();
    let (transfer, request) = (TransferId::mint(UUID, 1, 0).unwrap(), RequestId::new("r").unwrap());
    let output =
        source.engine.produce(transfer, &request, Send::from(&source.layout).by_layer().lend().lease(ttl)).unwrap();
    let input = sink.engine.consume(transfer, &request, Receive::into(&sink.layout).from(0, &there).pull()).unwrap();
    input.grant(&sink.take(2)).unwrap();
    source.compute(&output, 1, 100);
    output.layer(0, 100).unwrap();
    // As long as it is turned, the lease stands.
    assert!(input.next(2 * ttl).is_err(), "layer 1 is not there");
    assert_eq!((output.status(), sink.engine.control_metrics().borrowed), (Status::Transferring, 1));
    let began = Instant::now();
    let failed = output.wait(PATIENCE).unwrap().unwrap_err();
    let took = began.elapsed();
    assert_eq!(failed.cause, FlowCause::Expired);
    // What it renewed last may be a third of that old when it stops to be turned, and this machine may be busy.
    assert!(took >= ttl / 4 && took < ttl + Duration::from_secs(2), "{took:?}");
    drop(source.take(BLOCKS as usize));
    let mut finished = FinishedTransfer::default();
    assert_eq!((source.engine.drain_finished(&mut finished), finished.failed.len()), (1, 1), "once");
    // It goes on, and asks: never stale bytes.
    let failed = match input.next(PATIENCE).unwrap() {
        InputEvent::Failed(failed) => failed,
        other => panic!("{other:?}"),
    };
    assert_eq!((failed.cause, failed.blocks.len()), (FlowCause::Expired, 2));
    assert!(input.abort(PATIENCE), "nothing is read any more");
    drop((input, output));
    source.assert_nothing_is_left();
    assert_eq!(source.engine.drain_finished(&mut finished), 0, "and never again");
}

#[test]
fn scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired_over_mapped_pools() {
    scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired(TransportName::Shm);
}

#[test]
fn scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired_over_sockets() {
    scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired(TransportName::Tcp);
}

#[test]
#[ignore = "needs path:/sys/class/infiniband/rxe_a0"]
fn scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired_over_cards() {
    scenario_10_a_lease_whose_renewals_stop_expires_once_and_its_reader_gets_expired(TransportName::Verbs);
}
