//! Transfers by name between two engines of one process, over real transports.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::{
    Buffer, FinishedTransfer, FlowCause, Form, InputEvent, LayoutSpec, Receive, RequestId, Rows, Send, Side, Status,
    TransferId,
};

use crate::ends::{BLOCKS, Both, PATIENCE, TOKEN, UUID, assert_bytes, both};

impl Both {
    /// Pushes so many tokens in legs of so many blocks. Answers what was assembled, by layer.
    fn push(&self, number: u8, tokens: u64, leg_blocks: usize) -> [Vec<u8>; 2] {
        let Both { source, sink, there, .. } = self;
        let transfer = TransferId::mint(UUID, number.into(), 0).unwrap();
        let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
        let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
        let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there)).unwrap();
        assert_eq!(sink.engine.request_of(Side::Sink, transfer), Some(received.clone()));
        assert_eq!(source.engine.transfer_of(Side::Source, &sent), Some(transfer));

        source.compute(&output, number, tokens);
        let mut layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, tokens).unwrap() as usize]);
        input.grant(&sink.take(leg_blocks)).unwrap();
        loop {
            match input.next(PATIENCE).unwrap() {
                InputEvent::Leg { .. } => {
                    let [one, other] = &mut layers;
                    assert_eq!(input.assemble(&mut [one, other], tokens).unwrap(), 1);
                }
                InputEvent::NeedsMemory { .. } => {
                    input.grant(&sink.take(leg_blocks)).unwrap();
                }
                InputEvent::Layer { .. } => {}
                InputEvent::Done { tokens: came } => {
                    let [one, other] = &mut layers;
                    assert_eq!((came, input.assemble(&mut [one, other], tokens).unwrap()), (tokens, 1));
                    break;
                }
                InputEvent::Failed(failed) => panic!("{failed:?}"),
                InputEvent::Lost { source } => panic!("rank {source} is gone"),
            }
        }
        output.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(input.status(), Status::Success);
        layers
    }
}

/// Blocks of 16 tokens there, of 64 here; the last leg is part filled.
fn bytes_come_in_legs(transport: TransportName) {
    let both = both(transport);
    for (number, tokens, leg_blocks) in [(1, 200, 4), (2, 1000, 3), (3, 500, 64), (4, 64, 1), (5, 1, 1)] {
        let layers = both.push(number, tokens, leg_blocks);
        assert_bytes(number, tokens, &layers);
    }
    let mut finished = FinishedTransfer::default();
    let (sent, received) = (&both.source.engine, &both.sink.engine);
    assert_eq!((sent.drain_finished(&mut finished), received.drain_finished(&mut finished)), (5, 5));
    let names =
        |half: &str| (1..=5).map(|number| RequestId::new(&format!("{half}-{number}")).unwrap()).collect::<Vec<_>>();
    assert_eq!((finished.sent, finished.received, finished.failed), (names("cmpl-a"), names("cmpl-b"), vec![]));
    both.source.assert_nothing_is_left();
    both.sink.assert_nothing_is_left();
}

#[test]
fn bytes_come_in_legs_within_a_process() {
    bytes_come_in_legs(TransportName::Local);
}

#[test]
fn bytes_come_in_legs_over_mapped_pools() {
    bytes_come_in_legs(TransportName::Shm);
}

#[test]
fn bytes_come_in_legs_over_sockets() {
    bytes_come_in_legs(TransportName::Tcp);
}

#[test]
#[ignore = "needs path:/sys/class/infiniband/rxe_a0"]
fn bytes_come_in_legs_over_cards() {
    bytes_come_in_legs(TransportName::Verbs);
}

/// One thread copies out what another one gives up, and a third party writes into the blocks as soon as they are free.
#[test]
fn what_is_assembled_is_of_the_transfer_though_it_is_given_up_meanwhile() {
    let (both, tokens) = (both(TransportName::Shm), 4_000);
    let room = usize::try_from(tokens * TOKEN).unwrap();
    for number in 0..40 {
        let Both { source, sink, there, .. } = &both;
        let transfer = TransferId::mint(UUID, number.into(), 0).unwrap();
        let [sent, received] = ["a", "b"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
        let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
        let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there)).unwrap();
        let blocks = sink.take(63);
        let places = blocks.indices().to_vec();
        input.grant(&blocks).unwrap();
        drop(blocks);
        source.compute(&output, number, tokens);
        while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { .. }) {}
        output.wait(PATIENCE).unwrap().unwrap();
        let mut layers = [vec![0; room], vec![0; room]];
        let assembled = std::thread::scope(|scope| {
            let [one, other] = &mut layers;
            let copying = scope.spawn(|| input.assemble(&mut [one, other], tokens));
            std::thread::sleep(Duration::from_micros(u64::from(number) * 10));
            input.abort(PATIENCE);
            let free = sink.take(BLOCKS as usize);
            let block = u64::from(sink.tokens) * 2 * TOKEN;
            for place in places {
                sink.pool.window().write_from(u64::from(place) * block, &vec![0xee; block as usize]).unwrap();
            }
            drop(free);
            copying.join().unwrap()
        });
        match assembled {
            Ok(1) => assert_bytes(number, tokens, &layers),
            Ok(legs) => assert_eq!(legs, 0, "it was given up before"),
            // It was given up between the look at its legs and the copy.
            Err(error) => assert!(error.to_string().contains("leg 0"), "{error}"),
        }
    }
    both.sink.assert_nothing_is_left();
}

#[test]
fn a_source_that_fails_is_known_at_once_with_its_words() {
    let both = both(TransportName::Shm);
    let transfer = TransferId::mint(UUID, 9, 0).unwrap();
    let (here, there) = (RequestId::new("a").unwrap(), RequestId::new("b").unwrap());
    let input = both.sink.engine.consume(transfer, &there, Receive::into(&both.sink.layout).from(0, &both.there));
    let input = input.unwrap();
    input.grant(&both.sink.take(2)).unwrap();
    let output = both.source.engine.produce(transfer, &here, Send::from(&both.source.layout)).unwrap();
    let blocks = both.source.take(1);
    output.chunk(&blocks, 16, false).unwrap();
    drop(blocks);
    let begun = Instant::now();
    output.fail("the model ran out of memory");
    let failed = loop {
        if let InputEvent::Failed(failed) = input.next(PATIENCE).unwrap() {
            break failed;
        }
    };
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    assert_eq!((failed.cause, failed.said_by), (FlowCause::SourceFailed, Side::Source));
    assert_eq!(failed.words, "the model ran out of memory");
    assert_eq!(failed.blocks.len(), 2, "neither block is whole");
    assert_eq!(output.wait(PATIENCE).unwrap().unwrap_err().cause, FlowCause::SourceFailed);
    assert!(input.abort(PATIENCE), "nothing lands any more");
    drop((input, output));
    drop([both.sink.take(BLOCKS as usize), both.source.take(BLOCKS as usize)]);
}

#[test]
fn what_has_come_and_was_not_taken_is_let_go_with_its_handle() {
    let both = both(TransportName::Shm);
    let transfer = TransferId::mint(UUID, 12, 0).unwrap();
    let (here, there) = (RequestId::new("a").unwrap(), RequestId::new("b").unwrap());
    let how = Receive::into(&both.sink.layout).from(0, &both.there);
    let input = both.sink.engine.consume(transfer, &there, how).unwrap();
    input.grant(&both.sink.take(1)).unwrap();
    let output = both.source.engine.produce(transfer, &here, Send::from(&both.source.layout)).unwrap();
    output.chunk(&both.source.take(1), 16, true).unwrap();
    output.wait(PATIENCE).unwrap().unwrap();
    while input.status() != Status::Success {
        input.next(PATIENCE).unwrap();
    }
    assert!(both.sink.pool.take(BLOCKS as usize).is_err(), "its block is kept for whoever takes it");
    drop((input, output));
    drop([both.sink.take(BLOCKS as usize), both.source.take(BLOCKS as usize)]);
    assert_eq!(both.sink.engine.control_metrics().ending, 0);
}

#[test]
fn both_halves_meet_whoever_is_first_and_a_name_is_used_once() {
    let both = both(TransportName::Local);
    let transfer = TransferId::mint(UUID, 10, 0).unwrap();
    let request = |text: &str| RequestId::new(text).unwrap();
    let output = both.source.engine.produce(transfer, &request("a"), Send::from(&both.source.layout)).unwrap();
    let again = both.source.engine.produce(transfer, &request("other"), Send::from(&both.source.layout));
    let error = again.map(drop).unwrap_err().to_string();
    assert!(error.contains("in use here by request \"a\""), "{error}");
    assert_eq!(output.status(), Status::Bootstrapping, "the first is untouched");
    let stranger = both.source.engine.consume(transfer, &request("a"), Receive::into(&both.source.layout));
    assert!(stranger.is_err(), "a sink needs a source");
    let foreign = both.source.engine.produce(
        TransferId::mint(UUID, 11, 0).unwrap(),
        &request("c"),
        Send::from(&both.sink.layout),
    );
    let error = foreign.map(drop).unwrap_err().to_string();
    assert!(error.contains("made by another engine"), "{error}");
}

#[test]
fn blocks_are_waited_for_until_they_are_let_go_and_not_for_ever() {
    let both = both(TransportName::Local);
    let pool = &both.sink.pool;
    let all = pool.take(BLOCKS as usize).unwrap();
    let refused = pool.take_within(1, Duration::from_millis(10)).unwrap_err().to_string();
    assert!(refused.contains("1 blocks were asked for and 0 are free"), "{refused}");
    let since = Instant::now();
    pool.take_within(BLOCKS as usize + 1, PATIENCE).unwrap_err();
    assert!(since.elapsed() < PATIENCE / 2, "there never are so many");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.take_within(BLOCKS as usize, PATIENCE).unwrap().len());
        drop(all);
        assert_eq!(waits.join().unwrap(), BLOCKS as usize);
    });
}

/// What both sides were told differently ends both at once, for the same reason: neither waits for its deadline.
fn what_can_never_fit_ends_both_sides_at_once(transport: TransportName) {
    let Both { source, sink, there, .. } = &both(transport);
    // Rows of half as many bytes, in the same blocks.
    let half = |layer: u32| {
        let rows = Rows { first: 0, count: 4, of: 4, bytes: 16 };
        let (stride, form) = (sink.pool.memory().block_bytes(), Form::TokenMajor(rows));
        Buffer { layer, base: u64::from(layer) * 16 * 4 * 16, stride, form }
    };
    let spec = LayoutSpec::new("other", 16, 64).buffer(half(0)).buffer(half(1));
    let other = sink.engine.layout(&sink.pool, spec).unwrap();
    let ends = |number: u32, send: Send<'_, _>, receive: Receive<'_, _>, cause: FlowCause, parts: &[&str]| {
        let transfer = TransferId::mint(UUID, number, 0).unwrap();
        let [sent, received] = ["a", "b"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
        let output = source.engine.produce(transfer, &sent, send).unwrap();
        let since = Instant::now();
        let input = sink.engine.consume(transfer, &received, receive.from(0, there)).unwrap();
        let _ = input.grant(&sink.take(2));
        let InputEvent::Failed(failed) = input.next(PATIENCE).unwrap() else { panic!("it cannot go on") };
        let ended = output.wait(PATIENCE).unwrap().unwrap_err();
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        assert_eq!((failed.cause, ended.cause, &failed.words), (cause, cause, &ended.words));
        for part in parts.iter().chain(&[transfer.to_string().as_str()]) {
            assert!(failed.words.contains(part), "{part}: {}", failed.words);
        }
    };
    let (from, into) = (&source.layout, &sink.layout);
    let bytes = ["buffer 0 has 32 bytes at the source and 16 at the sink"];
    ends(1, Send::from(from), Receive::into(&other), FlowCause::Unfit, &bytes);
    let ranks = ["the source was made for 1 ranks and the sink says that it has 2"];
    ends(2, Send::from(from), Receive::into(into).rank(0, 2), FlowCause::Refused, &ranks);
    ends(3, Send::from(from).lend(), Receive::into(into), FlowCause::Refused, &["Send::lend"]);
    ends(4, Send::from(from), Receive::into(into).pull(), FlowCause::Refused, &["Receive::pull"]);
    source.assert_all_free();
    sink.assert_all_free();
}

#[test]
fn what_can_never_fit_ends_both_sides_at_once_over_mapped_pools() {
    what_can_never_fit_ends_both_sides_at_once(TransportName::Shm);
}

#[test]
fn what_can_never_fit_ends_both_sides_at_once_over_connections() {
    what_can_never_fit_ends_both_sides_at_once(TransportName::Tcp);
}

/// Its source has failed and is let go of before it asks.
#[test]
fn who_asks_late_hears_why_its_source_has_failed() {
    let Both { source, sink, there, .. } = &both(TransportName::Shm);
    let transfer = TransferId::mint(UUID, 1, 0).unwrap();
    let input = {
        let how = Receive::into(&sink.layout).from(0, there);
        sink.engine.consume(transfer, &RequestId::new("b").unwrap(), how).unwrap()
    };
    let output = source.engine.produce(transfer, &RequestId::new("a").unwrap(), Send::from(&source.layout)).unwrap();
    output.fail("cuda oom in layer 17");
    drop(output);
    input.grant(&sink.take(1)).unwrap();
    let InputEvent::Failed(failed) = input.next(PATIENCE).unwrap() else { panic!("its source has failed") };
    assert_eq!((failed.cause, &failed.words[..]), (FlowCause::SourceFailed, "cuda oom in layer 17"));
}
