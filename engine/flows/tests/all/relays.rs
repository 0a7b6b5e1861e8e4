//! Streams, joins and aborts between engines, and whatever a peer says.

use proptest::prelude::*;

use penstock_core::EngineName;
use penstock_flows::relay::{Arrival, Metadata, Put, PutSource, RelayError, Stream};
use penstock_flows::{Event, FlowCause};
use penstock_session::control::{Chunk, ChunkAck, ChunkKind, ControlMessage, Extent, RelayAbort};

use crate::stages::{BERTH, Dice, LATER, SOON, World, pattern, request, settings};

pub(crate) fn arrival(world: &mut World, at: usize) -> Option<Arrival> {
    world.call(at, |relay, now| relay.next_arrival(&request("r"), now))
}

pub(crate) fn names(all: &[&str]) -> Vec<EngineName> {
    all.iter().map(|name| EngineName::new(name).unwrap()).collect()
}

pub(crate) fn chunk(op: u64) -> Chunk {
    Chunk {
        op,
        request: "r".to_owned(),
        stream: 0,
        number: 0,
        part: 0,
        parts: 1,
        bytes: 64,
        readers: 1,
        kind: ChunkKind::Data,
        extents: vec![Extent { region: 1, generation: 1, offset: 0, len: 64 }],
        schema: Vec::new(),
        header: Vec::new(),
    }
}

#[test]
fn a_stream_is_handed_over_in_its_order_and_its_end_behind_it() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    let source = PutSource::Berths { bytes: BERTH };
    let mut puts = Vec::new();
    for header in [b"0", b"1"] {
        let (source, header) = (source.clone(), header.to_vec());
        puts.push(world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), header, LATER, now)).unwrap());
    }
    world.call(0, |relay, now| relay.finish(stream, None, LATER, now)).unwrap();
    // The end is said first, then the second chunk, then the first one.
    for put in puts.iter().rev() {
        world.run();
        assert_eq!(arrival(&mut world, 1), None);
        world.fill(0, *put, &pattern(1, BERTH));
    }
    world.run();
    for number in 0..2 {
        let Some(Arrival::Chunk(chunk)) = arrival(&mut world, 1) else { panic!("chunk {number} is here") };
        assert_eq!((chunk.stream.unwrap().1, chunk.header), (number, number.to_string().into_bytes()));
    }
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Done { .. })));
    assert_eq!(arrival(&mut world, 1), None, "once");
    assert_eq!(world.engines[0].relay.stream_state(stream).unwrap().0, Stream::Done);
    let late = world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), LATER, now));
    assert!(matches!(late, Err(RelayError::StreamEnded(_))));
}

#[test]
fn a_stream_fails_at_once_with_its_words_and_takes_its_chunks_along() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    let source = PutSource::Berths { bytes: BERTH };
    let put = world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), LATER, now)).unwrap();
    world.fill(0, put, &pattern(1, BERTH));
    world.run();
    world.call(0, |relay, now| relay.finish(stream, Some("out of paper"), LATER, now)).unwrap();
    world.run();
    let Some(Arrival::Failed { failed, .. }) = arrival(&mut world, 1) else { panic!("it has failed") };
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    assert!(failed.words.contains("out of paper"), "{failed}");
    assert_eq!(arrival(&mut world, 1), None, "neither its chunk nor its end again");
    assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
}

/// Between two chunks no put is under way that would fail with its reader.
#[test]
fn a_reader_that_dies_between_two_chunks_fails_its_stream_and_the_other_one_hears_so() {
    let mut world = World::of(&["a", "b", "c"]);
    let readers = [world.key(1), world.key(2)];
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &readers)).unwrap();
    let source = PutSource::Berths { bytes: 0 };
    let put = world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), LATER, now)).unwrap();
    world.run();
    for at in [1, 2] {
        let Some(Arrival::Chunk(chunk)) = arrival(&mut world, at) else { panic!("the chunk is at {at}") };
        world.get(at, &chunk.metadata);
    }
    world.run();
    assert_eq!(world.engines[0].relay.put_result(put), Some(&Ok(())));
    world.part(0, 2);
    let (state, failed) = world.engines[0].relay.stream_state(stream).unwrap();
    let failed = failed.unwrap();
    assert_eq!((state, failed.cause, failed.peer), (Stream::Error, FlowCause::PeerLost, Some(readers[1])));
    let late = world.call(0, |relay, now| relay.finish(stream, None, LATER, now));
    assert!(matches!(late, Err(RelayError::StreamEnded(_))));
    world.run();
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Failed { .. })));
    assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
    world.call(0, |relay, now| relay.let_go_stream(stream, now));
    world.call(0, |relay, now| relay.let_go_put(put, now));
    assert!(world.engines[0].relay.is_empty());
}

#[test]
fn a_chunk_that_nobody_could_read_in_time_tears_its_stream() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    let source = PutSource::Berths { bytes: BERTH };
    world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), SOON, now)).unwrap();
    world.wait(SOON);
    world.run();
    let (state, failed) = world.engines[0].relay.stream_state(stream).unwrap();
    assert_eq!((state, failed.unwrap().cause), (Stream::Error, FlowCause::Deadline));
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Failed { .. })));
}

#[test]
fn ends_of_streams_have_credits_that_no_bytes_take() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    for _ in 0..2 {
        let put = world.put(0, "r", BERTH, &[1]);
        world.fill(0, put, &pattern(1, BERTH));
    }
    assert_eq!(world.engines[0].relay.held(), (2, 0, 0), "all berths are lent");
    let streams: Vec<_> =
        (0..3).map(|_| world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap()).collect();
    for &stream in &streams {
        world.call(0, |relay, now| relay.finish(stream, None, LATER, now)).unwrap();
    }
    assert_eq!(world.engines[0].relay.held(), (2, 0, 2), "two ends are said and the third one waits");
    world.run();
    assert_eq!(world.engines[0].relay.held(), (2, 0, 0));
    for stream in streams {
        assert_eq!(world.engines[0].relay.stream_state(stream).unwrap().0, Stream::Done);
    }
}

#[test]
fn a_join_fires_once_when_the_last_source_is_there() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    let early = world.put(0, "r", BERTH, &[3]);
    world.fill(0, early, b"early".repeat(13).split_at(64).0);
    world.run();
    let join = world.call(3, |relay, now| relay.join(&request("r"), &names(&["b", "a", "c"]), LATER, now)).unwrap();
    for from in [2, 1] {
        assert_eq!(world.engines[3].relay.join_result(join), None);
        let put = world.put(from, "r", BERTH, &[3]);
        world.fill(from, put, &pattern(from as u64, BERTH));
        world.run();
    }
    let found = world.engines[3].relay.join_result(join).unwrap().as_ref().unwrap();
    let engines: Vec<&str> = found.iter().map(|chunk| chunk.engine.as_str()).collect();
    assert_eq!(engines, ["b", "a", "c"], "in the order that was asked for");
    let metadata = found[1].metadata.clone();
    assert_eq!(arrival(&mut world, 3), None, "what a join has is nobody else's");
    let more = world.put(1, "r", BERTH, &[3]);
    world.fill(1, more, &pattern(1, BERTH));
    world.run();
    assert!(matches!(arrival(&mut world, 3), Some(Arrival::Chunk(_))), "and what it has not is");
    let get = world.get(3, &metadata);
    assert_eq!(world.carry((0, early), b"early".repeat(13).split_at(64).0, &[(3, get)])[0][..5], *b"early");
}

#[test]
fn a_join_fires_once_at_the_first_failure() {
    type Fails = fn(&mut World);
    let failures: [(&str, Fails); 4] = [
        ("PeerLost", |world| world.part(0, 2)),
        ("Deadline", |world| world.wait(LATER)),
        ("Aborted", |world| world.call(0, |relay, now| relay.abort(&request("r"), "enough", now))),
        ("Aborted", |world| world.call(2, |relay, now| relay.cleanup(&request("r"), now))),
    ];
    for (expected, fails) in failures {
        let mut world = World::of(&["a", "b", "c"]);
        let join = world.call(2, |relay, now| relay.join(&request("r"), &names(&["a", "b"]), LATER, now)).unwrap();
        let put = world.put(1, "r", BERTH, &[2]);
        world.fill(1, put, &pattern(1, BERTH));
        world.run();
        fails(&mut world);
        world.run();
        assert_eq!(world.engines[2].relay.join_found(join), []);
        let failed = world.engines[2].relay.join_result(join).unwrap().as_ref().unwrap_err().clone();
        assert_eq!(format!("{:?}", failed.cause), expected);
        let put = world.try_put(0, "r", BERTH, &[2], LATER);
        if let Ok(put) = put {
            world.fill(0, put, &pattern(1, BERTH));
        }
        world.run();
        assert_eq!(world.engines[2].relay.join_result(join), Some(&Err(failed)), "it stays as it has ended");
    }
}

#[test]
fn a_join_hears_of_a_chunk_that_was_never_announced() {
    // One that waits for berths until its time is over, and one that there is no room to keep.
    let mut narrow = settings("b", 2);
    narrow.early.messages = 1;
    let mut world = World::new(vec![settings("a", 1), narrow]);
    let join = |world: &mut World| world.call(1, |relay, now| relay.join(&request("r"), &names(&["a"]), LATER, now));
    let hears = |world: &World, join| world.engines[1].relay.join_result(join).unwrap().as_ref().unwrap_err().cause;
    let first = join(&mut world).unwrap();
    let bystander = world.call(1, |relay, now| relay.join(&request("s"), &names(&["a"]), LATER, now)).unwrap();
    let lent = world.put(0, "t", 2 * BERTH, &[1]);
    world.try_put(0, "r", BERTH, &[1], SOON).unwrap();
    world.run();
    assert_eq!(world.engines[1].relay.join_result(first), None);
    world.wait(SOON);
    world.run();
    assert_eq!(hears(&world, first), FlowCause::SourceFailed);

    let second = join(&mut world).unwrap();
    world.fill(0, lent, &pattern(1, 2 * BERTH));
    world.run();
    let refused = world.engines[0].relay.put_result(lent).unwrap().as_ref().unwrap_err();
    assert_eq!(refused.cause, FlowCause::NoMemory, "of two parts the second is one too many");
    let kept = world.put(0, "t", BERTH, &[1]);
    world.fill(0, kept, &pattern(1, BERTH));
    let put = world.put(0, "r", BERTH, &[1]);
    world.fill(0, put, &pattern(2, BERTH));
    world.run();
    assert_eq!(hears(&world, second), FlowCause::NoMemory);
    assert_eq!(world.engines[1].relay.join_result(bystander), None, "it waits for another request");
}

#[test]
fn a_stream_that_has_ended_fails_with_a_chunk_that_was_never_announced() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    // Both berths are lent, so that the chunk waits behind the end of its stream.
    let lent = world.put(0, "s", 2 * BERTH, &[1]);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    let source = PutSource::Berths { bytes: BERTH };
    let put = world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), SOON, now)).unwrap();
    world.call(0, |relay, now| relay.finish(stream, None, LATER, now)).unwrap();
    world.run();
    assert_eq!(world.engines[0].relay.stream_state(stream).unwrap().0, Stream::Done, "its reader knows of the end");
    assert_eq!(arrival(&mut world, 1), None);
    world.wait(SOON);
    world.run();
    assert_eq!(world.engines[0].relay.put_state(put), Some(Put::Freed));
    assert_eq!(world.engines[0].relay.put_state(lent), Some(Put::Filling));
    let Some(Arrival::Failed { failed, .. }) = arrival(&mut world, 1) else { panic!("it has failed") };
    assert_eq!(failed.cause, FlowCause::SourceFailed);
}

#[test]
fn readers_of_a_stream_hear_of_an_abort_by_an_engine_that_they_do_not_know() {
    let mut world = World::of(&["a", "b", "c"]);
    world.part(1, 2);
    let readers = [world.key(1), world.key(2)];
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &readers)).unwrap();
    let source = PutSource::Berths { bytes: 0 };
    world.call(0, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), LATER, now)).unwrap();
    world.run();
    assert!(matches!(arrival(&mut world, 2), Some(Arrival::Chunk(_))));
    world.call(1, |relay, now| relay.abort(&request("r"), "the user has gone", now));
    world.run();
    let (state, failed) = world.engines[0].relay.stream_state(stream).unwrap();
    assert_eq!((state, failed.unwrap().cause), (Stream::Error, FlowCause::Aborted));
    let Some(Arrival::Failed { failed, .. }) = arrival(&mut world, 2) else { panic!("it has failed") };
    assert!(failed.words.contains("the user has gone"), "{failed}");
}

#[test]
fn an_abort_reaches_all_engines_and_a_second_one_changes_nothing() {
    let mut world = World::of(&["a", "b", "c"]);
    let put = world.put(0, "r", BERTH, &[1, 2]);
    let bystander = world.put(0, "s", BERTH, &[1]);
    for put in [put, bystander] {
        world.fill(0, put, &pattern(1, BERTH));
    }
    let gets = [1, 2].map(|reader| (reader, world.get(reader, &world.metadata(0, put))));
    world.deliver_all();
    world.call(1, |relay, now| relay.abort(&request("r"), "the user has gone", now));
    world.call(1, |relay, now| relay.abort(&request("r"), "again", now));
    assert_eq!(world.wires[&(1, 0)].len(), 1, "its moves have not ended: only the abort is said");
    world.run();
    for (reader, get) in gets {
        let failed = world.engines[reader].relay.get_result(get).unwrap().as_ref().unwrap_err();
        assert!(matches!(failed.cause, FlowCause::Aborted | FlowCause::SourceFailed), "{failed}");
    }
    let failed = world.engines[0].relay.put_result(put).unwrap().as_ref().unwrap_err();
    assert_eq!((failed.cause, failed.words.as_str()), (FlowCause::Aborted, "the user has gone"));
    assert_eq!((world.engines[0].relay.counts().aborts, world.engines[2].relay.counts().aborts), (1, 1));
    for engine in &world.engines {
        let ended = engine.relay.may_read(&request("r")).unwrap_err();
        assert!(matches!(ended, RelayError::Ended { cause: FlowCause::Aborted, .. }), "nothing arrives: {ended}");
        assert_eq!(engine.relay.may_read(&request("s")), Ok(()));
    }
    assert_eq!(world.engines[0].relay.held().0, 1, "the other request is untouched");
    assert_eq!(world.engines[0].relay.put_result(bystander), None);
    let refused = world.try_put(0, "r", BERTH, &[1], LATER).unwrap_err();
    assert!(matches!(refused, RelayError::Ended { .. }), "{refused}");
    world.wait(LATER);
    assert!(world.try_put(0, "r", BERTH, &[1], LATER).is_ok(), "a name is not kept for ever");
}

#[test]
fn a_close_tells_everybody_and_keeps_what_is_lent() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let waiting = world.put(0, "r", 2 * BERTH, &[1]);
    world.fill(0, put, &pattern(1, BERTH));
    let gets = [put, waiting].map(|put| world.get(1, &world.metadata(0, put)));
    world.deliver_all();
    world.call(0, |relay, now| relay.close(now));
    assert_eq!(world.engines[0].relay.put_state(waiting), Some(Put::Freed));
    assert_eq!((world.engines[0].relay.put_state(put), world.engines[0].relay.held().0), (Some(Put::Draining), 1));
    world.run();
    assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
    for get in gets {
        let failed = world.engines[1].relay.get_result(get).unwrap().as_ref().unwrap_err();
        assert_eq!(failed.cause, FlowCause::SourceFailed, "also who was told of nothing yet");
    }
}

#[test]
fn what_makes_no_sense_is_refused_counted_and_changes_nothing() {
    let mut world = World::of(&["a", "b"]);
    let extent = Extent { region: 1, generation: 1, offset: 0, len: 64 };
    let senseless = [
        Chunk { request: String::new(), ..chunk(1) },
        Chunk { request: "a\nb".to_owned(), ..chunk(1) },
        Chunk { part: 1, ..chunk(1) },
        Chunk { parts: 65_537, ..chunk(1) },
        Chunk { bytes: 63, ..chunk(1) },
        Chunk { bytes: 65, ..chunk(1) },
        Chunk { parts: 2, bytes: 64, ..chunk(1) },
        Chunk { parts: 2, bytes: 129, ..chunk(1) },
        Chunk { parts: 2, part: 1, bytes: 100, ..chunk(1) },
        Chunk { parts: 3, part: 2, bytes: 193 + 64, ..chunk(1) },
        Chunk { parts: 2, part: 1, bytes: 128, header: vec![1], ..chunk(1) },
        Chunk { extents: vec![Extent { len: 0, ..extent }, extent], ..chunk(1) },
        Chunk { extents: vec![Extent { offset: u64::MAX, ..extent }], ..chunk(1) },
        Chunk { bytes: 257, extents: vec![Extent { len: 1, ..extent }; 257], ..chunk(1) },
        Chunk { schema: vec![0; 65_537], ..chunk(1) },
        Chunk { kind: ChunkKind::Done, ..chunk(1) },
        Chunk { kind: ChunkKind::Done, parts: 0, bytes: 0, extents: vec![], ..chunk(1) },
        Chunk { kind: ChunkKind::Data, parts: 0, bytes: 0, extents: vec![], stream: 1, ..chunk(1) },
        Chunk { kind: ChunkKind::Done, parts: 0, bytes: 1, extents: vec![], stream: 1, ..chunk(1) },
    ];
    let peer = world.key(0);
    for (number, said) in senseless.into_iter().enumerate() {
        let told = format!("{said:?}");
        world.event(1, Event::Said { peer, said: said.into() });
        assert_eq!(world.engines[1].relay.counts().senseless, number as u64 + 1, "{told}");
        let answer = world.wires.get_mut(&(1, 0)).unwrap().pop_back();
        let Some(ControlMessage::ChunkAck(ChunkAck { op: 1, code, .. })) = answer else { panic!("{told}: {answer:?}") };
        assert_eq!(FlowCause::of_code(code), FlowCause::Refused);
    }
    let before = world.engines[1].relay.counts().senseless;
    for said in [
        ControlMessage::ChunkAck(ChunkAck { op: 9, part: 0, code: 0 }),
        ControlMessage::RelayAbort(RelayAbort { request: String::new(), words: String::new() }),
    ] {
        world.event(1, Event::Said { peer, said });
    }
    assert_eq!(world.engines[1].relay.counts().senseless, before + 2);
    assert!(world.engines[1].relay.is_empty());
}

/// Each of these parts makes sense by itself: 34, 34 and 32 bytes, or 49, 49 and 2.
#[test]
fn parts_that_would_leave_a_gap_are_refused_counted_and_fail_the_get() {
    let part = |part: u32, len: u64| {
        let extents = vec![Extent { region: 1, generation: 1, offset: 0, len }];
        Chunk { part, parts: 3, bytes: 100, extents, ..chunk(5) }.into()
    };
    let refused = |world: &mut World| match world.wires.get_mut(&(1, 0)).unwrap().pop_back() {
        Some(ControlMessage::ChunkAck(ChunkAck { op: 5, part, code }))
            if FlowCause::of_code(code) == FlowCause::Refused =>
        {
            part
        }
        answer => panic!("{answer:?}"),
    };
    for unlike in [(1, 49), (2, 2)] {
        // Asked for before the first part comes, behind it, and behind both.
        for asked_at in 0..3 {
            let mut world = World::of(&["a", "b"]);
            let (peer, epoch, engine) = (world.key(0), world.key(0).epoch, world.engines[0].name.clone());
            let metadata = Metadata { engine, epoch, op: 5, request: request("r"), bytes: 100, parts: 3 }.encode();
            let mut get = None;
            for (number, said) in [part(0, 34), part(unlike.0, unlike.1)].into_iter().enumerate() {
                if asked_at == number {
                    get = Some(world.get(1, &metadata));
                }
                world.event(1, Event::Said { peer, said });
            }
            assert_eq!(world.engines[1].relay.counts().senseless, 1);
            assert_eq!(refused(&mut world), unlike.0);
            if let Some(get) = get {
                let failed = world.engines[1].relay.get_result(get).cloned().unwrap().unwrap_err();
                assert_eq!((failed.cause, failed.peer), (FlowCause::Refused, Some(peer)));
            } else {
                // What was kept is sound: the get goes on with it.
                let get = world.get(1, &metadata);
                for said in [part(1, 34), part(2, 32)] {
                    world.event(1, Event::Said { peer, said });
                }
                let mut found = vec![0; 100];
                while !world.moves.is_empty() {
                    world.finish(0);
                    world.copy_out(1, get, &mut found);
                }
                assert_eq!(world.engines[1].relay.get_result(get), Some(&Ok(())));
            }
        }
    }
}

#[test]
fn a_part_that_is_said_to_be_enormous_costs_no_memory_before_it_is_read() {
    let mut world = World::of(&["a", "b"]);
    let bytes = 1 << 60;
    let extents = vec![Extent { region: 1, generation: 1, offset: 0, len: bytes }];
    let (peer, epoch) = (world.key(0), world.key(0).epoch);
    world.event(1, Event::Said { peer, said: Chunk { bytes, extents, ..chunk(5) }.into() });
    let engine = world.engines[0].name.clone();
    let metadata = Metadata { engine, epoch, op: 5, request: request("r"), bytes, parts: 1 };
    let get = world.get(1, &metadata.encode());
    assert_eq!(world.moves.len(), 2, "a piece a berth");
    world.call(1, |relay, now| relay.let_go_get(get, now));
}

/// Whatever happens in whatever order, the books agree after each step, and in the end nothing is left.
#[test]
fn two_thousand_random_lives_leave_nothing_behind() {
    for seed in 0..2000 {
        live(seed);
    }
}

fn live(seed: u64) {
    let mut dice = Dice(seed);
    let mut small = settings("c", 30);
    (small.gets.berth_bytes, small.gets.berths, small.early.messages) = (40, 1, 3);
    let mut world = World::new(vec![settings("a", 10), settings("b", 20), small]);
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    let mut parted = None;
    for _ in 0..60 {
        let at = dice.below(3);
        let of = ["r", "s"][dice.below(2)];
        match dice.below(16) {
            0 | 1 => {
                let to: Vec<usize> = (0..3).filter(|&reader| reader != at && dice.below(3) > 0).collect();
                let within = [SOON, LATER][dice.below(2)];
                let bytes = dice.below(300) as u64;
                if let Ok(put) = world.try_put(at, of, bytes, &to, within) {
                    puts.push((at, put, pattern(puts.len() as u64, bytes)));
                }
            }
            2 | 3 if !puts.is_empty() => {
                let (at, put, whole) = puts[dice.below(puts.len())].clone();
                world.fill(at, put, &whole);
            }
            4 | 5 if !puts.is_empty() => {
                let (owner, put, whole) = puts[dice.below(puts.len())].clone();
                if let Some(metadata) = world.engines[owner].relay.metadata(put)
                    && let Ok(get) = world.try_get(at, &metadata, [SOON, LATER][dice.below(2)])
                {
                    gets.push((at, get, whole.clone(), vec![0; whole.len()]));
                }
            }
            6 | 7 if !gets.is_empty() => {
                let place = dice.below(gets.len());
                let (at, get, _, found) = &mut gets[place];
                world.copy_out(*at, *get, found);
            }
            8..=10 => {
                let wires = world.busy_wires();
                if !wires.is_empty() {
                    let (from, to) = wires[dice.below(wires.len())];
                    world.deliver(from, to);
                }
            }
            11 | 12 if !world.moves.is_empty() => {
                let place = dice.below(world.moves.len());
                world.finish(place);
            }
            13 => match dice.below(6) {
                0 => world.call(at, |relay, now| relay.abort(&request(of), "enough", now)),
                1 => world.call(at, |relay, now| relay.cleanup(&request(of), now)),
                2 => drop(arrival(&mut world, at)),
                _ => {}
            },
            14 => world.wait(SOON / 3),
            15 if parted.is_none() && dice.below(4) == 0 => {
                let other = (at + 1) % 3;
                world.part(at, other);
                parted = Some((at, other));
                // Moves of a session that is over end by themselves.
                while let Some(place) =
                    world.moves.iter().position(|under| is_between(under.at, under.with, (at, other)))
                {
                    let reader = world.moves[place].at;
                    let id = world.break_move(place, penstock_core::Cause::PeerLost, true);
                    world.event(reader, Event::Closed { id });
                }
            }
            _ => {}
        }
    }
    // Then everybody goes on until nothing moves, and time passes.
    for _ in 0..4 {
        loop {
            world.quiet();
            world.run();
            let mut steps = 0;
            for (at, put, whole) in &puts {
                steps += world.fill(*at, *put, whole);
            }
            for (at, get, _, found) in &mut gets {
                steps += world.copy_out(*at, *get, found);
            }
            if steps == 0 && world.busy_wires().is_empty() && world.moves.is_empty() {
                break;
            }
        }
        world.wait(LATER);
    }
    for (at, get, whole, found) in &gets {
        let result = world.engines[*at].relay.get_result(*get);
        assert!(result.is_some(), "seed {seed}: a get waits for ever");
        assert!(
            result != Some(&Ok(())) || whole == found,
            "seed {seed}: bytes of somebody else: {found:?} for {whole:?}"
        );
    }
    for (at, put, _) in puts {
        assert!(world.engines[at].relay.put_result(put).is_some(), "seed {seed}: a put waits for ever");
        // What it was still to write when the put failed comes back from the application.
        world.call(at, |relay, now| relay.let_go_put(put, now));
        assert_eq!(world.engines[at].relay.put_state(put), None, "seed {seed}");
    }
    gets.into_iter().for_each(|(at, get, ..)| world.call(at, |relay, now| relay.let_go_get(get, now)));
    for engine in &world.engines {
        assert_eq!(engine.relay.held(), (0, 0, 0), "seed {seed}");
        assert!(engine.relay.is_empty(), "seed {seed}");
        let mut freed = engine.freed.clone();
        freed.retain(|ticket| engine.quarantined.iter().any(|(quarantined, _)| quarantined == ticket));
        assert_eq!(freed.len(), engine.quarantined.len(), "seed {seed}: what was quarantined is released");
    }
}

fn is_between(one: usize, other: usize, pair: (usize, usize)) -> bool {
    (one, other) == pair || (other, one) == pair
}

#[test]
fn a_get_that_is_let_go_of_while_it_waits_for_its_own_berth_keeps_none() {
    let mut narrow = settings("b", 20);
    narrow.gets.berths = 1;
    let mut world = World::new(vec![settings("a", 10), narrow]);
    let put = world.put(0, "r", 2 * BERTH, &[1]);
    let get = world.get(1, &world.metadata(0, put));
    world.fill(0, put, &pattern(1, 2 * BERTH));
    world.run();
    assert_eq!(
        world.engines[1].relay.pieces(get).len(),
        1,
        "the first is to be copied out, the second waits for its berth"
    );
    world.call(1, |relay, now| relay.let_go_get(get, now));
    assert_eq!(world.engines[1].relay.held().1, 0);
    world.run();
    assert_eq!(world.engines[0].relay.held().0, 0);
    assert_eq!(world.engines[1].relay.get_state(get), None);
}

fn anything() -> impl Strategy<Value = ControlMessage> {
    let extent = (0u32..3, prop_oneof![0u64..200, Just(u64::MAX - 10)], prop_oneof![0u64..70, Just(64), any::<u64>()]);
    let extent = extent.prop_map(|(region, offset, len)| Extent { region, generation: 1, offset, len });
    let kind = prop_oneof![4 => Just(ChunkKind::Data), 1 => Just(ChunkKind::Done), 1 => Just(ChunkKind::Error)];
    let words = ("[rs]{0,1}", prop::collection::vec(extent, 0..3), prop::collection::vec(any::<u8>(), 0..4), kind);
    let numbers = (1u64..6, 0u32..3, 0u64..4, 0u32..3, 0u32..4, prop_oneof![Just(64u64), 0u64..200, any::<u64>()]);
    let chunk =
        (words, numbers).prop_map(|((request, extents, header, kind), (op, stream, number, part, parts, bytes))| {
            Chunk { request, extents, header, kind, op, stream, number, part, parts, bytes, ..chunk(0) }.into()
        });
    let ack =
        (0u64..5, 0u32..3, 0u16..20).prop_map(|(op, part, code)| ControlMessage::ChunkAck(ChunkAck { op, part, code }));
    let abort = ("[rs]{0,1}", ".{0,300}")
        .prop_map(|(request, words)| ControlMessage::RelayAbort(RelayAbort { request, words }));
    prop_oneof![8 => chunk, 3 => ack, 1 => abort]
}

proptest! {
    /// Whatever a peer says: the books agree, nothing kept is beyond its bounds, and time clears everything away.
    #[test]
    fn whatever_a_peer_says_is_answered_or_counted(said in prop::collection::vec(anything(), 0..60)) {
        let mut world = World::of(&["a", "b"]);
        let peer = world.key(0);
        let put = world.put(1, "s", 2 * BERTH + 1, &[0]);
        for said in said {
            world.event(1, Event::Said { peer, said });
            if let Some(Arrival::Chunk(chunk)) = arrival(&mut world, 1) {
                let _ = world.try_get(1, &chunk.metadata, SOON);
            }
            world.fill(1, put, &pattern(1, 2 * BERTH + 1));
            let (frames, bytes, tombs) = world.engines[1].relay.kept();
            prop_assert!(frames <= 64 && bytes <= 65_536 && tombs <= 64);
        }
        while !world.moves.is_empty() {
            world.break_move(0, penstock_core::Cause::PeerLost, false);
        }
        world.part(0, 1);
        world.quiet();
        // What nobody asked for ends first, and then its tombstone.
        world.wait(LATER);
        world.wait(LATER);
        world.call(1, |relay, now| relay.let_go_put(put, now));
        prop_assert_eq!(world.engines[1].relay.kept(), (0, 0, 0));
        let (puts, _, control) = world.engines[1].relay.held();
        prop_assert_eq!((puts, control), (0, 0));
    }
}
