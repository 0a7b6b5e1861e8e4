//! Chunks that are lost before anybody has them: who hears of it, and who does not.

use std::time::Duration;

use penstock_flows::relay::{Arrival, JoinKey, PutSource, Stream};
use penstock_flows::{Event, FlowCause};
use penstock_session::control::{ChunkAck, ChunkKind, ControlMessage, Extent};

use crate::relays::{arrival, chunk, names};
use crate::stages::{BERTH, LATER, SOON, World, pattern, request, settings};

pub(crate) fn join(world: &mut World, at: usize, of: &str, sources: &[&str]) -> JoinKey {
    world.call(at, |relay, now| relay.join(&request(of), &names(sources), LATER, now)).unwrap()
}

/// How a join has ended, if it has: where its chunks are from, or why not.
pub(crate) fn ended(world: &World, at: usize, join: JoinKey) -> Option<Result<Vec<Vec<u8>>, FlowCause>> {
    let result = world.engines[at].relay.join_result(join)?;
    Some(match result {
        Ok(all) => Ok(all.iter().map(|chunk| chunk.header.clone()).collect()),
        Err(failed) => Err(failed.cause),
    })
}

/// A chunk of the first engine for the second one, which waits for berths until its time is over.
fn never_announced(world: &mut World, of: &str) {
    let lent = world.put(0, "lent", 2 * BERTH, &[1]);
    world.try_put(0, of, BERTH, &[1], SOON).unwrap();
    world.run();
    world.wait(SOON);
    world.call(0, |relay, now| relay.let_go_put(lent, now));
    world.run();
}

/// A chunk of nothing, with these words.
pub(crate) fn give(world: &mut World, from: usize, to: usize, words: &[u8]) {
    let readers = vec![world.key(to)];
    let (request, source, header) = (request("r"), PutSource::Berths { bytes: 0 }, words.to_vec());
    let (schema, within) = (Vec::new(), LATER);
    let what = penstock_flows::relay::ToPut { request, source, readers, schema, header, within };
    world.call(from, |relay, now| relay.put(what, now)).unwrap();
    world.run();
}

/// The last part of two of a chunk of the first engine, or the first one.
fn half(part: u32, op: u64) -> Event {
    let extents = vec![Extent { region: 1, generation: 1, offset: 0, len: 64 }];
    let peer = penstock_session::PeerKey { peer_index: 0, epoch: penstock_core::Epoch(100) };
    Event::Said {
        peer,
        said: penstock_session::control::Chunk { part, parts: 2, bytes: 128, extents, ..chunk(op) }.into(),
    }
}

/// A join that begins later has what it would have had before: the older one of what was lost and what is here.
#[test]
fn a_chunk_that_was_lost_and_one_that_is_here_go_to_joins_in_the_order_of_their_numbers() {
    for is_lost_first in [true, false] {
        let mut world = World::of(&["a", "b", "c"]);
        give(&mut world, 2, 1, b"c1");
        if is_lost_first {
            never_announced(&mut world, "r");
        }
        give(&mut world, 0, 1, b"a1");
        if !is_lost_first {
            never_announced(&mut world, "r");
        }
        let joins = [(); 2].map(|()| join(&mut world, 1, "r", &["a", "c"]));
        let (failed, whole) = if is_lost_first { (joins[0], joins[1]) } else { (joins[1], joins[0]) };
        assert_eq!(ended(&world, 1, failed), Some(Err(FlowCause::SourceFailed)));
        assert_eq!(
            ended(&world, 1, whole),
            Some(Ok(vec![b"a1".to_vec(), b"c1".to_vec()])),
            "nothing went to the other one"
        );
    }
}

/// What was asked for by its metadata is no chunk for a join.
#[test]
fn a_chunk_that_a_get_waits_for_takes_no_join_along() {
    let mut world = World::of(&["a", "b"]);
    let bystander = join(&mut world, 1, "r", &["a"]);
    let lent = world.put(0, "lent", 2 * BERTH, &[1]);
    let put = world.try_put(0, "r", BERTH, &[1], SOON).unwrap();
    let get = world.get(1, &world.metadata(0, put));
    world.wait(SOON);
    world.run();
    let failed = world.engines[1].relay.get_result(get).unwrap().as_ref().unwrap_err();
    assert_eq!((failed.cause, ended(&world, 1, bystander)), (FlowCause::SourceFailed, None));
    let later = join(&mut world, 1, "r", &["a"]);
    assert_eq!(ended(&world, 1, later), None, "nor one that begins later");
    world.call(0, |relay, now| relay.let_go_put(lent, now));
    give(&mut world, 0, 1, b"first");
    assert_eq!(ended(&world, 1, bystander), Some(Ok(vec![b"first".to_vec()])));
}

#[test]
fn a_lost_chunk_fails_the_oldest_join_that_it_would_have_gone_to_and_no_other() {
    let mut world = World::of(&["a", "b", "c"]);
    let has_its = join(&mut world, 1, "r", &["a", "c"]);
    give(&mut world, 0, 1, b"first");
    let [oldest, younger] = [0, 1].map(|_| join(&mut world, 1, "r", &["a"]));
    never_announced(&mut world, "r");
    let found = [has_its, oldest, younger].map(|join| ended(&world, 1, join));
    assert_eq!(found, [None, Some(Err(FlowCause::SourceFailed)), None]);
    give(&mut world, 0, 1, b"second");
    assert_eq!(ended(&world, 1, younger), Some(Ok(vec![b"second".to_vec()])));

    // One that there is no room to keep, likewise.
    let mut narrow = settings("b", 2);
    narrow.early.messages = 0;
    let mut world = World::new(vec![settings("a", 1), narrow]);
    let [oldest, younger] = [0, 1].map(|_| join(&mut world, 1, "r", &["a"]));
    give(&mut world, 0, 1, b"refused");
    let found = [oldest, younger].map(|join| ended(&world, 1, join));
    assert_eq!(found, [Some(Err(FlowCause::NoMemory)), None]);
}

#[test]
fn a_source_that_has_failed_fails_all_joins_that_lack_it() {
    let mut world = World::of(&["a", "b"]);
    let both = [0, 1].map(|_| join(&mut world, 1, "r", &["a"]));
    let reader = world.key(1);
    let stream = world.call(0, |relay, _| relay.stream(&request("r"), &[reader])).unwrap();
    world.call(0, |relay, now| relay.finish(stream, Some("out of paper"), LATER, now)).unwrap();
    world.run();
    assert_eq!(both.map(|join| ended(&world, 1, join)), [0, 1].map(|_| Some(Err(FlowCause::SourceFailed))));
}

/// Nobody is told of a chunk before its first part is there, so nobody who was could hear that it is gone.
#[test]
fn a_join_hears_of_a_chunk_whose_first_part_was_lost() {
    // There is room for one part of the two.
    let mut narrow = settings("b", 2);
    narrow.early.messages = 2;
    let mut world = World::new(vec![settings("a", 100), narrow]);
    let [oldest, younger] = [0, 1].map(|_| join(&mut world, 1, "r", &["a"]));
    world.event(1, half(1, 5));
    assert_eq!(ended(&world, 1, oldest), None);
    world.event(1, half(0, 5));
    let found = [oldest, younger].map(|join| ended(&world, 1, join));
    assert_eq!(found, [Some(Err(FlowCause::NoMemory)), None]);
    // One whose first part does not come in time, and one that is given up before it.
    world.event(1, half(1, 6));
    world.wait(Duration::from_secs(30));
    assert_eq!(ended(&world, 1, younger), Some(Err(FlowCause::Deadline)));
    let last = join(&mut world, 1, "r", &["a"]);
    world.event(1, half(1, 7));
    let given_up = penstock_session::control::Chunk { kind: ChunkKind::Error, extents: Vec::new(), ..chunk(7) };
    world.event(1, Event::Said { peer: world.key(0), said: given_up.into() });
    assert_eq!(ended(&world, 1, last), Some(Err(FlowCause::SourceFailed)));
    assert!(world.engines[1].relay.kept().0 == 0, "nothing is kept of what is lost");
}

#[test]
fn a_join_that_begins_behind_a_loss_hears_of_it_at_once_and_one_for_each() {
    let mut world = World::of(&["a", "b", "c"]);
    never_announced(&mut world, "r");
    // A second one is announced, and nobody asks for it in time.
    give(&mut world, 0, 1, b"forgotten");
    world.wait(Duration::from_secs(30));
    world.run();
    let others = [join(&mut world, 1, "s", &["a"]), join(&mut world, 1, "r", &["c"])];
    let behind = [0, 1, 2].map(|_| join(&mut world, 1, "r", &["c", "a"]));
    let found = behind.map(|join| ended(&world, 1, join));
    assert_eq!(found, [Some(Err(FlowCause::SourceFailed)), Some(Err(FlowCause::Deadline)), None]);
    assert_eq!(others.map(|join| ended(&world, 1, join)), [None, None], "of another request, and of another engine");
    let failed = world.engines[1].relay.join_result(behind[0]).unwrap().as_ref().unwrap_err();
    assert_eq!(failed.peer, Some(world.key(0)));
    // What has come since is not lost.
    never_announced(&mut world, "t");
    give(&mut world, 0, 1, b"third");
    assert_eq!(
        ended(&world, 1, behind[2]),
        None,
        "it goes to the oldest that lacks it, which waits for another one too"
    );
    give(&mut world, 2, 1, b"for the bystander");
    give(&mut world, 2, 1, b"fourth");
    assert_eq!(ended(&world, 1, behind[2]), Some(Ok(vec![b"fourth".to_vec(), b"third".to_vec()])));
    // Nobody is told for ever.
    world.wait(Duration::from_secs(60));
    let late = join(&mut world, 1, "t", &["a"]);
    assert_eq!(ended(&world, 1, late), None);
    world.call(0, |relay, now| relay.abort(&request("u"), "enough", now));
    world.run();
    let given_up = join(&mut world, 1, "u", &["a"]);
    assert_eq!(ended(&world, 1, given_up), Some(Err(FlowCause::Aborted)));
}

#[test]
fn only_readers_who_lack_something_hear_that_a_put_was_given_up() {
    let mut world = World::of(&["a", "b", "c"]);
    let (small, large) = (world.put(0, "r", BERTH, &[1, 2]), world.put(0, "s", 3 * BERTH, &[1, 2]));
    let whole = pattern(1, 3 * BERTH);
    let gets = [small, large].map(|put| (1, world.get(1, &world.metadata(0, put))));
    world.carry((0, small), &whole[..BERTH as usize], &gets[..1]);
    assert_eq!(world.engines[0].relay.put_result(small), None, "the other reader has nothing yet");
    world.wait(LATER);
    let told = |world: &World, reader: usize| {
        let is_it =
            |said: &&ControlMessage| matches!(said, ControlMessage::Chunk(chunk) if chunk.kind == ChunkKind::Error);
        world.wires.get(&(0, reader)).map_or(0, |words| words.iter().filter(is_it).count())
    };
    // The large one waited for the berths of the small one, so both lack it.
    assert_eq!((told(&world, 1), told(&world, 2)), (1, 2));
    world.run();

    // Two of three parts are not everything.
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", 3 * BERTH, &[1]);
    let get = world.get(1, &world.metadata(0, put));
    world.fill(0, put, &whole);
    world.run();
    world.copy_out(1, get, &mut vec![0; whole.len()]);
    world.wait(LATER);
    assert_eq!(told(&world, 1), 1);
}

/// Both credits are taken, so that the word waits; and who gives the request up does not know the reader.
#[test]
fn that_a_stream_has_failed_is_said_also_if_its_request_or_its_relay_ends_before() {
    type Ends = fn(&mut World);
    let ends: [Ends; 2] = [
        |world| {
            world.call(1, |relay, now| relay.abort(&request("r"), "the user has gone", now));
            world.deliver(1, 0);
            assert_eq!(world.engines[0].relay.counts().aborts, 1);
        },
        |world| world.call(0, |relay, now| relay.close(now)),
    ];
    for end in ends {
        let mut world = World::of(&["a", "b", "c"]);
        world.part(1, 2);
        let reader = world.key(2);
        let stream =
            |world: &mut World, of: &str| world.call(0, |relay, _| relay.stream(&request(of), &[reader])).unwrap();
        // By this the one that gives the request up has a part in it.
        world.put(0, "r", 0, &[1]);
        for _ in 0..2 {
            let other = stream(&mut world, "s");
            world.call(0, |relay, now| relay.finish(other, None, LATER, now)).unwrap();
        }
        let failing = stream(&mut world, "r");
        world.call(0, |relay, now| relay.finish(failing, Some("out of paper"), LATER, now)).unwrap();
        end(&mut world);
        world.run();
        let Some(Arrival::Failed { failed, .. }) = arrival(&mut world, 2) else { panic!("it has failed") };
        assert!(failed.words.contains("out of paper"), "{failed}");
        assert_eq!(world.engines[0].relay.held(), (0, 0, 0));
    }
}

#[test]
fn streams_of_a_relay_that_closes_fail_once_here_and_at_their_readers() {
    let mut world = World::of(&["a", "b"]);
    let reader = world.key(1);
    let stream = |world: &mut World, of: &str| world.call(0, |relay, _| relay.stream(&request(of), &[reader])).unwrap();
    let (idle, ending) = (stream(&mut world, "r"), stream(&mut world, "s"));
    let source = PutSource::Berths { bytes: 0 };
    world.call(0, |relay, now| relay.put_next(idle, source, Vec::new(), Vec::new(), LATER, now)).unwrap();
    world.run();
    let Some(Arrival::Chunk(chunk)) = arrival(&mut world, 1) else { panic!("a chunk is here") };
    world.get(1, &chunk.metadata);
    world.run();
    // Nothing of it is under way; of the other one its end is, and its application has let go of it.
    world.call(0, |relay, now| relay.finish(ending, None, LATER, now)).unwrap();
    world.call(0, |relay, now| relay.let_go_stream(ending, now));
    let told = world.engines[0].tellings;
    world.call(0, |relay, now| relay.close(now));
    let (state, failed) = world.engines[0].relay.stream_state(idle).unwrap();
    assert_eq!((state, failed.unwrap().cause), (Stream::Error, FlowCause::EngineClosed));
    assert!(world.engines[0].tellings > told, "whoever waits for it is woken");
    assert_eq!(world.engines[0].relay.stream_state(ending), None, "nobody asks for that one");
    world.run();
    let Some(Arrival::Failed { failed, .. }) = arrival(&mut world, 1) else { panic!("it has failed") };
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    world.run();
    assert_eq!(arrival(&mut world, 1), None, "once");
    let of_the_other = world.call(1, |relay, now| relay.next_arrival(&request("s"), now));
    assert!(matches!(of_the_other, Some(Arrival::Done { .. })), "what ended well did not fail: {of_the_other:?}");
    assert!(world.engines[0].relay.has_rested(), "{:?}", world.engines[0].relay.held());
    world.call(0, |relay, now| relay.close(now));
    world.call(0, |relay, now| relay.let_go_stream(idle, now));
    assert!(world.busy_wires().is_empty(), "a second time nobody is told");
}

#[test]
fn who_announces_more_than_is_kept_leaves_room_for_others() {
    let mut narrow = settings("b", 2);
    narrow.early.messages = 8;
    let mut world = World::new(vec![settings("a", 1), narrow, settings("c", 3)]);
    let announce = |world: &mut World, from: usize, op: u64, header: usize| {
        let header = vec![0; header];
        let said = penstock_session::control::Chunk { header, ..chunk(op) }.into();
        let peer = world.key(from);
        world.event(1, Event::Said { peer, said });
        match world.wires.entry((1, from)).or_default().pop_back() {
            Some(ControlMessage::ChunkAck(ChunkAck { op: of, code, .. })) if of == op => Some(FlowCause::of_code(code)),
            _ => None,
        }
    };
    let refused = (0..100).filter_map(|op| announce(&mut world, 0, op, 0)).collect::<Vec<_>>();
    assert_eq!(refused, vec![FlowCause::NoMemory; 96], "half of the room is left");
    assert_eq!(announce(&mut world, 2, 1, 0), None);
    assert_eq!(announce(&mut world, 0, 100, 0), Some(FlowCause::NoMemory), "while others come it gets nothing");
    assert_eq!(announce(&mut world, 2, 2, 0), None);
    // What was taken out makes room again.
    for _ in 0..4 {
        let Some(Arrival::Chunk(first)) = arrival(&mut world, 1) else { panic!("a chunk is here") };
        let get = world.get(1, &first.metadata);
        world.call(1, |relay, now| relay.let_go_get(get, now));
    }
    world.run();
    assert_eq!(announce(&mut world, 0, 101, 0), None);

    // Bytes likewise: of 64 KiB there is room for four chunks of 8, and not for five.
    let mut narrow = settings("b", 2);
    narrow.early.messages = 100;
    let mut world = World::new(vec![settings("a", 1), narrow, settings("c", 3)]);
    let kept = (0..8).filter(|op| announce(&mut world, 0, *op, 8000).is_none()).count();
    assert_eq!((kept, announce(&mut world, 2, 1, 8000)), (4, None));
}
