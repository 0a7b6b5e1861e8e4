//! Whose abort ends what: a peer that has a part in a request ends it everywhere, any other one ends its own things only.

use penstock_core::Cause;
use penstock_flows::relay::{Arrival, Destination, PutSource, RelayError, Stream};
use penstock_flows::{Event, FlowCause};
use penstock_session::PeerKey;
use penstock_session::control::{Chunk, ChunkAck, ControlMessage, RelayAbort};

use crate::relays::{arrival, chunk, names};
use crate::stages::{BERTH, LATER, World, pattern, request};

fn abort(world: &mut World, at: usize, of: &str) {
    world.call(at, |relay, now| relay.abort(&request(of), "enough", now));
    world.run();
}

/// How an engine answers a chunk of this request that a peer says is there.
fn answer(world: &mut World, from: usize, to: usize, op: u64, of: &str) -> FlowCause {
    let (peer, request) = (world.key(from), of.to_owned());
    world.event(to, Event::Said { peer, said: Chunk { request, ..chunk(op) }.into() });
    match world.wires.get_mut(&(to, from)).and_then(|wire| wire.pop_back()) {
        Some(ControlMessage::ChunkAck(ChunkAck { op: its, code, .. })) if its == op => FlowCause::of_code(code),
        said => panic!("chunk {op} is not answered: {said:?}"),
    }
}

/// A peer gives a request up.
fn said(peer: PeerKey, of: &str) -> Event {
    let abort = RelayAbort { request: of.to_owned(), words: String::new() };
    Event::Said { peer, said: ControlMessage::RelayAbort(abort) }
}

/// Aborts of requests that nobody has, as many as are said.
fn flood(world: &mut World, from: usize, to: usize, aborts: usize) {
    let peer = world.key(from);
    for number in 0..aborts {
        world.event(to, said(peer, &format!("nonsense {number}")));
    }
}

#[test]
fn an_abort_by_a_peer_without_a_part_leaves_puts_to_others_alone() {
    let mut world = World::of(&["a", "b", "c"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let get = world.get(1, &world.metadata(0, put));
    let stream = {
        let reader = world.key(1);
        world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap()
    };
    abort(&mut world, 2, "r");
    assert_eq!(world.engines[0].relay.put_result(put), None);
    let whole = pattern(1, BERTH);
    assert_eq!(world.carry((0, put), &whole, &[(1, get)]), [whole]);
    assert_eq!(world.engines[0].relay.put_result(put), Some(&Ok(())));
    world.call(0, |relay, now| relay.finish(stream, None, LATER, now)).unwrap();
    world.run();
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Done { .. })));
    for at in [0, 1] {
        let counts = world.engines[at].relay.counts();
        assert_eq!((counts.aborts, counts.foreign_aborts), (0, 1), "engine {at}");
    }
    let refused = world.try_put(2, "r", BERTH, &[0], LATER).unwrap_err();
    assert!(matches!(refused, RelayError::Ended { .. }), "where it was given up it is over: {refused}");
}

#[test]
fn an_abort_before_a_request_begins_does_not_forbid_it_to_others() {
    let mut world = World::of(&["a", "b", "c"]);
    abort(&mut world, 2, "r");
    let put = world.put(0, "r", BERTH, &[1]);
    let get = world.get(1, &world.metadata(0, put));
    let whole = pattern(1, BERTH);
    assert_eq!(world.carry((0, put), &whole, &[(1, get)]), [whole]);
}

#[test]
fn a_chunk_that_came_unasked_gives_its_putter_no_part() {
    let mut world = World::of(&["a", "b", "c"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let unasked = world.put(2, "r", BERTH, &[0]);
    world.fill(2, unasked, &pattern(2, BERTH));
    let stream = {
        let reader = world.key(0);
        world.call(2, |relay, _| relay.stream(&request("r"), &[reader])).unwrap()
    };
    let source = PutSource::Berths { bytes: 0 };
    world.call(2, |relay, now| relay.put_next(stream, source, Vec::new(), Vec::new(), LATER, now)).unwrap();
    world.run();
    assert_eq!(world.engines[0].relay.kept().0, 2, "both are kept");
    // Its application knows of one and has not asked for it.
    assert!(matches!(arrival(&mut world, 0), Some(Arrival::Chunk(_))));
    abort(&mut world, 2, "r");
    assert_eq!(world.engines[0].relay.put_result(put), None);
    assert_eq!((world.engines[0].relay.counts().aborts, world.engines[0].relay.counts().foreign_aborts), (0, 1));
    // What is its own has ended.
    assert_eq!(world.engines[0].relay.kept().0, 0);
    let Some(Arrival::Failed { failed, peer, .. }) = arrival(&mut world, 0) else { panic!("its stream has failed") };
    assert_eq!((failed.cause, peer), (FlowCause::Aborted, world.key(2)));
    assert_eq!(failed.words, "enough");
    assert_eq!(arrival(&mut world, 0), None);
    assert_eq!(world.engines[2].relay.held().0, 0, "its berth has come back");
    world.fill(0, put, &pattern(1, BERTH));
    world.run();
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Chunk(_))));
}

#[test]
fn what_a_peer_says_of_a_request_that_it_gave_up_is_known_as_given_up() {
    let mut world = World::of(&["a", "b", "c"]);
    let given = world.put(2, "r", BERTH, &[0]);
    let metadata = world.metadata(2, given);
    abort(&mut world, 2, "r");
    assert_eq!(answer(&mut world, 2, 0, 77, "r"), FlowCause::Aborted);
    assert_eq!(world.engines[0].relay.counts().late, 1);
    let refused = world.call(0, |relay, now| relay.get(&metadata, Destination::Berths, LATER, now)).unwrap_err();
    assert!(matches!(refused, RelayError::Ended { cause: FlowCause::Aborted, .. }), "{refused}");
    // A join hears so at once, and one without it waits.
    let join = |world: &mut World, all: &[&str]| {
        world.call(0, |relay, now| relay.join(&request("r"), &names(all), LATER, now)).unwrap()
    };
    for _ in 0..2 {
        let with = join(&mut world, &["b", "c"]);
        let failed = world.engines[0].relay.join_result(with).unwrap().as_ref().unwrap_err();
        assert_eq!((failed.cause, failed.peer), (FlowCause::Aborted, Some(world.key(2))));
    }
    let without = join(&mut world, &["b"]);
    assert_eq!(world.engines[0].relay.join_result(without), None);
    // The tombstone goes with its time, and the name can be used again.
    world.wait(LATER);
    world.wires.clear();
    let peer = world.key(2);
    world.event(0, Event::Said { peer, said: chunk(78).into() });
    assert_eq!(world.engines[0].relay.kept().0, 1);
}

#[test]
fn many_aborts_by_one_peer_drive_out_no_tombstone_and_leave_room_for_others() {
    let mut world = World::of(&["a", "b", "c"]);
    abort(&mut world, 0, "r");
    world.call(0, |relay, now| relay.cleanup(&request("s"), now));
    flood(&mut world, 2, 0, 5_000);
    for of in ["r", "s"] {
        assert_eq!(answer(&mut world, 1, 0, 5, of), FlowCause::Aborted, "{of}");
        assert!(world.call(0, |relay, _| relay.may_read(&request(of))).is_err());
    }
    assert_eq!(world.engines[0].relay.counts().late, 2, "what comes late is known as late");
    assert_eq!(world.engines[0].relay.counts().foreign_aborts, 5_000);
    assert!(world.engines[0].relay.kept().2 <= 2 + 64 / 4, "it has half of what peers have");
    // Another peer's are remembered all the same.
    let peer = world.key(1);
    world.event(0, said(peer, "t"));
    assert_eq!(answer(&mut world, 1, 0, 6, "t"), FlowCause::Aborted);
}

#[test]
fn a_reader_ends_a_request_everywhere_also_where_it_is_not_known() {
    let mut world = World::of(&["a", "b", "c"]);
    world.part(1, 2);
    let put = world.put(0, "r", BERTH, &[1, 2]);
    world.fill(0, put, &pattern(1, BERTH));
    let get = world.get(2, &world.metadata(0, put));
    world.call(1, |relay, now| relay.abort(&request("r"), "the user has gone", now));
    world.run();
    let failed = world.engines[0].relay.put_result(put).unwrap().as_ref().unwrap_err();
    assert_eq!((failed.cause, failed.words.as_str()), (FlowCause::Aborted, "the user has gone"));
    assert!(world.engines[2].relay.get_result(get).unwrap().is_err());
    assert_eq!([0, 1, 2].map(|at| world.engines[at].relay.counts().aborts), [1, 0, 1], "each is told once");
    for at in 0..3 {
        let ended = world.engines[at].relay.may_read(&request("r")).unwrap_err();
        assert!(matches!(ended, RelayError::Ended { cause: FlowCause::Aborted, .. }), "engine {at}: {ended}");
    }
    assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
}

/// Each has a part in another manner: it reads a stream, it has what is fetched, or it is waited for.
#[test]
fn whoever_has_a_part_ends_the_request() {
    type Begins = fn(&mut World);
    let parts: [(&str, Begins); 3] = [
        ("reads a stream", |world| {
            let reader = world.key(1);
            world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
        }),
        ("has what is fetched", |world| {
            let put = world.put(1, "r", BERTH, &[0]);
            world.get(0, &world.metadata(1, put));
        }),
        ("is waited for", |world| {
            world.call(0, |relay, now| relay.join(&request("r"), &names(&["b"]), LATER, now)).unwrap();
        }),
    ];
    for (part, begins) in parts {
        let mut world = World::of(&["a", "b", "c"]);
        let put = world.put(0, "r", BERTH, &[2]);
        begins(&mut world);
        abort(&mut world, 1, "r");
        let result = world.engines[0].relay.put_result(put);
        assert_eq!(result.map(|result| result.as_ref().unwrap_err().cause), Some(FlowCause::Aborted), "{part}");
        assert_eq!(world.engines[0].relay.counts().aborts, 1, "{part}");
    }
}

/// Where both have called each other there are two sessions: a part in one of them is a part of that engine.
#[test]
fn an_abort_in_another_session_with_the_same_engine_is_by_the_one_that_has_a_part() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let name = world.engines[1].name.clone();
    let peer = PeerKey { peer_index: 9, ..world.key(1) };
    world.event(0, Event::Joined { peer, name });
    world.event(0, said(peer, "r"));
    assert!(world.engines[0].relay.put_result(put).is_some());
    // One whose session is over has none.
    let put = world.put(0, "s", BERTH, &[1]);
    world.event(0, Event::Left { peer, cause: Cause::PeerLost });
    world.event(0, said(peer, "s"));
    assert_eq!(world.engines[0].relay.put_result(put), None);
}

/// Nothing of it was announced, so that its reader does not know of it yet.
#[test]
fn a_reader_hears_that_a_stream_is_given_up_of_which_nothing_has_come() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    abort(&mut world, 0, "r");
    assert_eq!(world.engines[0].relay.stream_state(stream).unwrap().0, Stream::Error);
    assert!(matches!(arrival(&mut world, 1), Some(Arrival::Failed { .. })));
    assert_eq!(arrival(&mut world, 1), None, "once");
    assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
}
