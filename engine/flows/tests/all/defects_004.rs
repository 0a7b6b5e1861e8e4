//! What goes wrong where stages hand chunks to each other by slots and notifications: each is a test that fails where it does.

use std::time::Duration;

use penstock_core::{Cause, EngineName};
use penstock_flows::action::BlocksRef;
use penstock_flows::relay::{Arrival, Destination, Get, Put, PutSource, RelayError, StagingPlace, ToPut};
use penstock_flows::{Event, FlowCause};
use penstock_session::control::{ChunkAck, ControlMessage};

use crate::stages::{ABORT, BERTH, LATER, OWN, SOON, World, pattern, region, request, settings};

fn cause<T>(result: Option<&Result<T, penstock_flows::relay::RelayFailed>>) -> Option<FlowCause> {
    result.and_then(|result| result.as_ref().err()).map(|failed| failed.cause)
}

/// A sender that waits for room before it says what it has put waits for ever, as only the reader makes room.
#[test]
fn defect_004_three_puts_before_the_notification_deadlock() {
    let mut world = World::of(&["a", "b"]);
    let puts: Vec<_> = (0..3).map(|_| world.put(0, "r", BERTH, &[1])).collect();
    for (number, &put) in puts.iter().enumerate().take(2) {
        assert_eq!(world.fill(0, put, &pattern(number as u64, BERTH)), 1);
    }
    assert_eq!(world.wires[&(0, 1)].len(), 2, "the first two are said, although the third one waits");
    assert_eq!(world.engines[0].relay.put_state(puts[2]), Some(Put::Waiting));
    for (number, &put) in puts.iter().enumerate() {
        let get = world.get(1, &world.metadata(0, put));
        let whole = pattern(number as u64, BERTH);
        assert_eq!(world.carry((0, put), &whole, &[(1, get)]), [whole]);
        assert_eq!(world.engines[0].relay.put_result(put), Some(&Ok(())));
    }
}

/// Two stages that have lent all that they have for puts still fetch what the other has lent.
#[test]
fn defect_004_a_shared_pool_deadlocks_symmetric_stages() {
    let mut world = World::of(&["a", "b"]);
    let mut puts = Vec::new();
    for at in [0, 1] {
        for number in 0..2 {
            let put = world.put(at, "r", BERTH, &[1 - at]);
            world.fill(at, put, &pattern(at as u64 * 2 + number, BERTH));
            puts.push((at, put, pattern(at as u64 * 2 + number, BERTH)));
        }
        assert_eq!(world.engines[at].relay.held().0, 2, "all of it is lent");
    }
    for (at, put, whole) in puts {
        let get = world.get(1 - at, &world.metadata(at, put));
        assert_eq!(world.carry((at, put), &whole, &[(1 - at, get)]), [whole]);
    }
    assert_eq!((world.engines[0].relay.held(), world.engines[1].relay.held()), ((0, 0, 0), (0, 0, 0)));
}

/// Answers name what they answer: one put does not end by another one's.
#[test]
fn defect_004_a_global_mark_is_drained_by_the_wrong_waiter() {
    let mut world = World::of(&["a", "b", "c"]);
    let (first, second) = (world.put(0, "r", BERTH, &[1]), world.put(0, "r", BERTH, &[1]));
    for put in [first, second] {
        world.fill(0, put, &pattern(0, BERTH));
    }
    let get = world.get(1, &world.metadata(0, second));
    world.run();
    world.copy_out(1, get, &mut [0; BERTH as usize]);
    assert_eq!(world.engines[0].relay.put_result(second), Some(&Ok(())));
    assert_eq!(world.engines[0].relay.put_result(first), None);
    // Neither by an answer of somebody who is no reader of it, nor by one that was given before.
    let Some(ControlMessage::ChunkAck(said)) = ack_of(&world, first) else { panic!("it has an answer") };
    for (peer, said) in [(world.key(2), said), (world.key(1), ChunkAck { part: 1, ..said })] {
        world.event(0, Event::Said { peer, said: ControlMessage::ChunkAck(said) });
    }
    assert_eq!((world.engines[0].relay.put_result(first), world.engines[0].relay.counts().senseless), (None, 2));
    let peer = world.key(1);
    world.event(0, Event::Said { peer, said: ControlMessage::ChunkAck(said) });
    world.event(0, Event::Said { peer, said: ControlMessage::ChunkAck(said) });
    assert_eq!(world.engines[0].relay.put_result(first), Some(&Ok(())));
    assert_eq!((world.engines[0].relay.held().0, world.engines[0].relay.counts().senseless), (0, 3));
}

fn ack_of(world: &World, put: penstock_flows::relay::PutKey) -> Option<ControlMessage> {
    let op = penstock_flows::relay::Metadata::parse(&world.metadata(0, put)).ok()?.op;
    Some(ControlMessage::ChunkAck(ChunkAck { op, part: 0, code: 0 }))
}

/// The deadline of a put ends the wait: its berth stays with the reader that is at it, and nobody else writes there.
#[test]
fn defect_004_a_timeout_gives_a_credit_back_under_a_reader() {
    let mut world = World::of(&["a", "b"]);
    let whole = pattern(1, 2 * BERTH);
    let put = world.try_put(0, "r", 2 * BERTH, &[1], SOON).unwrap();
    world.fill(0, put, &whole);
    let get = world.get(1, &world.metadata(0, put));
    world.deliver_all();
    assert_eq!(world.moves.len(), 2, "the reader is at both berths");
    let next = world.try_put(0, "s", BERTH, &[1], LATER).unwrap();
    world.wait(SOON);
    assert_eq!(cause(world.engines[0].relay.put_result(put)), Some(FlowCause::Deadline), "the wait has ended");
    assert_eq!(world.engines[0].relay.put_state(next), Some(Put::Waiting), "its berths have not come back");
    world.wait(ABORT);
    assert_eq!(world.engines[0].relay.put_state(put), Some(Put::Quarantined));
    assert_eq!(world.engines[0].quarantined.len(), 2);
    assert_eq!((world.engines[0].relay.held().0, world.engines[0].freed.len()), (2, 0));
    // The reader hears of it and stops; what it answers when its moves have ended is what gives the berths back.
    world.deliver_all();
    assert!(world.moves.iter().all(|under| under.is_stopped));
    assert_eq!(world.engines[0].relay.put_state(next), Some(Put::Waiting));
    world.run();
    assert_eq!(world.engines[0].relay.put_state(put), Some(Put::Freed));
    assert_eq!(world.engines[0].freed.len(), 2, "and takes them off the list of what is quarantined");
    assert_eq!(world.engines[0].relay.put_state(next), Some(Put::Filling));
    assert_eq!(cause(world.engines[1].relay.get_result(get)), Some(FlowCause::SourceFailed));
}

/// A reader that is gone gives its berth back by the proof that it is in no copy, not by having gone.
#[test]
fn a_berth_under_a_reader_that_is_gone_comes_back_by_proof() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    world.fill(0, put, &pattern(1, BERTH));
    world.part(0, 1);
    assert_eq!(cause(world.engines[0].relay.put_result(put)), Some(FlowCause::PeerLost));
    assert_eq!((world.engines[0].relay.held().0, world.watches.len()), (1, 1));
    world.wait(ABORT);
    assert_eq!((world.engines[0].relay.held().0, world.engines[0].quarantined.len()), (1, 1));
    world.wait(Duration::from_secs(3600));
    assert_eq!(world.engines[0].relay.held().0, 1, "time proves nothing");
    world.quiet();
    assert_eq!((world.engines[0].relay.held().0, world.engines[0].freed.len()), (0, 1));
}

/// A get that nobody serves ends at its deadline and holds nothing, nor does one whose putter fails.
#[test]
fn defect_004_get_ignores_its_timeout_and_leaks() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let never_said = world.metadata(0, put);
    let get = world.try_get(1, &never_said, SOON).unwrap();
    world.wait(SOON - Duration::from_nanos(1));
    assert_eq!(world.engines[1].relay.get_result(get), None);
    world.wait(Duration::from_nanos(1));
    assert_eq!(cause(world.engines[1].relay.get_result(get)), Some(FlowCause::Deadline));
    assert_eq!(world.engines[1].relay.get_state(get), Some(Get::Failed));
    // What is announced now is answered, so that the putter's berth is not lost either.
    world.fill(0, put, &pattern(1, BERTH));
    world.run();
    assert_eq!(cause(world.engines[0].relay.put_result(put)), Some(FlowCause::Deadline));
    assert_eq!((world.engines[0].relay.held().0, world.engines[1].relay.held().1), (0, 0));
    // And one whose bytes do not come: told at its deadline, given back when the move has ended.
    let put = world.put(0, "r", BERTH, &[1]);
    let get = world.try_get(1, &world.metadata(0, put), SOON).unwrap();
    world.fill(0, put, &pattern(1, BERTH));
    world.deliver_all();
    world.wait(SOON);
    assert_eq!(cause(world.engines[1].relay.get_result(get)), Some(FlowCause::Deadline));
    assert_eq!((world.engines[1].relay.get_state(get), world.engines[1].relay.held().1), (Some(Get::Stopping), 1));
    world.run();
    assert_eq!((world.engines[1].relay.get_state(get), world.engines[1].relay.held().1), (Some(Get::Failed), 0));
}

/// Nothing of a get that has failed is handed out, and its memory comes back when nothing can land there any more.
#[test]
fn defect_004_a_failed_get_copies_out() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", 2 * BERTH, &[1]);
    let get = world.get(1, &world.metadata(0, put));
    world.fill(0, put, &pattern(1, 2 * BERTH));
    world.deliver_all();
    let id = world.moves[0].id;
    world.event(1, Event::Closed { id });
    assert_eq!(world.engines[1].relay.pieces(get).len(), 0, "what has not ended is not over");
    world.finish(0);
    assert_eq!(world.engines[1].relay.pieces(get).len(), 1, "half of it is here");
    let open = world.break_move(0, Cause::RailLost, true);
    assert_eq!(cause(world.engines[1].relay.get_result(get)), Some(FlowCause::Moving(Cause::RailLost)));
    assert!(world.engines[1].relay.pieces(get).is_empty(), "and is not handed out any more");
    assert_eq!(world.engines[1].relay.get_state(get), Some(Get::Stopping), "the peer may still be at it");
    world.deliver_all();
    assert_eq!(world.engines[0].relay.held().0, 1, "one part was answered, the other one may still be read");
    world.event(1, Event::Closed { id: open });
    world.deliver_all();
    assert_eq!(world.engines[1].relay.get_state(get), Some(Get::Failed));
    assert_eq!((world.engines[0].relay.held().0, world.engines[1].relay.held().1), (0, 1), "one piece is the caller's");
    world.call(1, |relay, now| relay.let_go_get(get, now));
    assert_eq!(world.engines[1].relay.held().1, 0);
}

/// What is announced before anybody asks is kept, within bounds, and found.
#[test]
fn defect_004_early_notifications_are_lost() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let whole = pattern(1, BERTH);
    world.fill(0, put, &whole);
    world.run();
    assert_eq!(world.engines[1].relay.kept().0, 1);
    let get = world.get(1, &world.metadata(0, put));
    assert_eq!(world.carry((0, put), &whole, &[(1, get)]), [whole]);
    // What cannot be kept is answered, and never silently lost.
    let mut small = settings("c", 9);
    small.early.messages = 1;
    small.early.age = SOON;
    let reader = world.add(small);
    let (first, second) = (world.put(0, "r", BERTH, &[reader]), world.put(0, "r", BERTH, &[reader]));
    for put in [first, second] {
        world.fill(0, put, &pattern(2, BERTH));
    }
    world.run();
    assert_eq!(cause(world.engines[0].relay.put_result(second)), Some(FlowCause::NoMemory));
    world.wait(SOON);
    world.run();
    assert_eq!(cause(world.engines[0].relay.put_result(first)), Some(FlowCause::Deadline));
    assert_eq!((world.engines[0].relay.held().0, world.engines[reader].relay.kept().0), (0, 0));
}

/// After a cleanup nothing of what was read is left, and what comes late is answered by a tombstone.
#[test]
fn defect_004_cleanup_does_nothing() {
    let mut world = World::of(&["a", "b"]);
    let (unread, reading) = (world.put(0, "r", BERTH, &[1]), world.put(0, "r", BERTH, &[1]));
    let get = world.get(1, &world.metadata(0, reading));
    for put in [unread, reading] {
        world.fill(0, put, &pattern(1, BERTH));
    }
    world.deliver_all();
    let late = world.put(0, "r", BERTH, &[1]);
    let onward = world.put(1, "r", BERTH, &[0]);
    world.call(1, |relay, now| relay.cleanup(&request("r"), now));
    world.run();
    for put in [unread, reading] {
        assert_eq!(cause(world.engines[0].relay.put_result(put)), Some(FlowCause::Aborted));
    }
    world.fill(0, late, &pattern(1, BERTH));
    world.run();
    assert_eq!(cause(world.engines[0].relay.put_result(late)), Some(FlowCause::Aborted));
    assert_eq!((world.engines[1].relay.counts().late, world.engines[1].relay.kept().0), (1, 0));
    assert_eq!((world.engines[0].relay.held().0, world.engines[1].relay.held().1), (0, 0));
    assert_eq!(cause(world.engines[1].relay.get_result(get)), Some(FlowCause::Aborted));
    // What this engine puts for others under the same name goes on: it only reads nothing more.
    assert_eq!(world.engines[1].relay.put_state(onward), Some(Put::Filling));
    let again = world.try_get(1, &world.metadata(0, late), SOON).unwrap_err();
    assert_eq!(again, RelayError::Ended { request: request("r"), cause: FlowCause::Aborted });
}

/// Memory with several readers comes back after the last one.
#[test]
fn defect_004_the_first_reader_of_a_fan_out_frees_it() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    let whole = pattern(1, BERTH);
    let put = world.put(0, "r", BERTH, &[1, 2, 3]);
    let metadata = world.metadata(0, put);
    world.fill(0, put, &whole);
    for reader in [1, 2] {
        let get = world.get(reader, &metadata);
        world.run();
        let mut found = vec![0; BERTH as usize];
        world.copy_out(reader, get, &mut found);
        assert_eq!((found, world.engines[0].relay.held().0), (whole.clone(), 1), "others are still to read");
        assert_eq!(world.engines[0].relay.put_result(put), None);
    }
    let get = world.get(3, &metadata);
    assert_eq!(world.carry((0, put), &whole, &[(3, get)]), [whole]);
    assert_eq!(world.engines[0].relay.put_result(put), Some(&Ok(())));
    assert_eq!(world.engines[0].relay.held().0, 0);
}

/// Nobody is told of bytes of an application's own memory before it says that they are there.
#[test]
fn defect_004_device_data_is_published_without_a_fence() {
    let mut world = World::of(&["a", "b"]);
    let whole = pattern(1, 200);
    let extents: Vec<StagingPlace> =
        [(512, 150), (0, 50)].map(|(offset, len)| StagingPlace { region: region(OWN), offset, len }).into();
    let source = PutSource::Extents { extents: extents.clone(), keep: BlocksRef(1), is_ready: false };
    let readers = vec![world.key(1)];
    let what = ToPut { request: request("r"), source, readers, schema: Vec::new(), header: Vec::new(), within: LATER };
    let put = world.call(0, |relay, now| relay.put(what, now)).unwrap();
    let get = world.get(1, &world.metadata(0, put));
    assert!(world.busy_wires().is_empty(), "the bytes are not there yet");
    world.write(0, extents[0], &whole[..150]);
    world.write(0, extents[1], &whole[150..]);
    assert_eq!(world.engines[0].relay.unwritten(put).len(), 1);
    world.call(0, |relay, now| relay.filled(put, 0, now)).unwrap();
    assert_eq!(world.engines[0].freed, []);
    let mut found = vec![0; 200];
    while world.engines[1].relay.get_result(get).is_none() {
        world.run();
        world.copy_out(1, get, &mut found);
    }
    world.copy_out(1, get, &mut found);
    world.run();
    assert_eq!(found, whole);
    assert_eq!((world.engines[0].freed.clone(), world.engines[0].relay.held().0), (vec![BlocksRef(1)], 0));
}

/// Seven berths of bytes go through two, and through readers' berths of another size.
#[test]
fn defect_004_data_larger_than_a_slot_fails() {
    let mut other = settings("c", 9);
    (other.gets.berth_bytes, other.gets.berths) = (24, 1);
    let mut world = World::new(vec![settings("a", 1), settings("b", 2), other]);
    for bytes in [6 * BERTH + 1, 7 * BERTH, 1, BERTH, 0] {
        let whole = pattern(bytes, bytes);
        let put = world.put(0, "r", bytes, &[1, 2]);
        let metadata = world.metadata(0, put);
        let gets = [(1, world.get(1, &metadata)), (2, world.get(2, &metadata))];
        assert_eq!(world.carry((0, put), &whole, &gets), [whole.clone(), whole], "{bytes} bytes");
        assert_eq!(world.engines[0].relay.put_result(put), Some(&Ok(())), "{bytes} bytes");
    }
    let most = BERTH * 65_536;
    let refused = world.try_put(0, "r", most + 1, &[1], LATER).unwrap_err();
    assert_eq!(refused, RelayError::TooLarge { asked: most + 1, most });
}

/// What names a put names one life of its engine.
#[test]
fn defect_004_a_restart_reuses_cached_metadata() {
    let mut world = World::of(&["a", "b"]);
    let put = world.put(0, "r", BERTH, &[1]);
    let cached = world.metadata(0, put);
    world.part(0, 1);
    let again = world.add(settings("a", 7));
    let same_number = world.put(again, "r", BERTH, &[1]);
    world.fill(again, same_number, &pattern(2, BERTH));
    world.run();
    let refused = world.try_get(1, &cached, SOON).unwrap_err();
    assert_eq!(refused, RelayError::Restarted(EngineName::new("a").unwrap()));
    world.part(0, again);
    let unknown = world.try_get(again, &cached, SOON).unwrap_err();
    assert!(matches!(unknown, RelayError::Unknown(_)), "{unknown}");
    let now = world.now;
    let arrival = world.call(1, |relay, _| relay.next_arrival(&request("r"), now)).unwrap();
    let Arrival::Chunk(chunk) = arrival else { panic!("{arrival:?}") };
    let whole = pattern(2, BERTH);
    let get = world.call(1, |relay, now| relay.get(&chunk.metadata, Destination::Berths, LATER, now)).unwrap();
    assert_eq!(world.carry((again, same_number), &whole, &[(1, get)]), [whole]);
}
