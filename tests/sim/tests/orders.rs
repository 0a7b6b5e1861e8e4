//! Whatever the order of frames and turns, an exchange comes to its end.

mod common;

use common::{SECOND, STEPS, config, connect, exchange, pool};
use penstock::config::TransportName;
use penstock::session::{Frame, RefusalCode};
use penstock::{Cause, ConnectError, NoteId, Plan, Span, StartError, Submit};
use penstock_simulation::world::PIDS;
use penstock_simulation::{Identity, What, World, replay};

const ANY: &[TransportName] = &[TransportName::Local, TransportName::Shm];

#[test]
fn a_local_exchange_ends_well_in_every_order() {
    replay(0..200, |world| exchange(world, TransportName::Local));
}

#[test]
fn a_shm_exchange_ends_well_in_every_order() {
    replay(0..200, |world| exchange(world, TransportName::Shm));
}

#[test]
fn blocking_calls_work_on_the_thread_they_share_with_the_peer() {
    replay(0..50, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let source = world.start(config("source", ANY)).unwrap();
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        let peer = source.connect(&target.descriptor(), SECOND).unwrap();
        let counter = far.counter("late").unwrap();
        let remote = peer.wait_region("kv", SECOND).unwrap();
        let arrivals = peer.wait_counter("late", SECOND).unwrap();
        let span = [Span { local: 5, remote: 7, len: 70_000 }];
        let plan = Plan::write(&near, &remote).extents(&span).build().unwrap();
        let how = Submit::new().count(arrivals).notify(NoteId(1), b"here");
        assert_eq!(peer.submit(&plan, how).unwrap().wait().unwrap().bytes, 70_000);
        assert!(counter.wait(1, SECOND));
        assert!(target.wait_notification(SECOND));
    });
}

#[test]
fn engines_that_call_each_other_at_once_both_get_through() {
    replay(0..100, |world| {
        let one = world.start(config("one", ANY)).unwrap();
        let other = world.start(config("other", ANY)).unwrap();
        let (_far, _near) = (pool(&one, "kv"), pool(&other, "kv"));
        let calls = [one.connect_begin(&other.descriptor()).unwrap(), other.connect_begin(&one.descriptor()).unwrap()];
        world.run_until(STEPS, || calls.iter().all(|call| call.poll().is_some())).unwrap();
        for call in &calls {
            let peer = call.poll().unwrap().unwrap();
            world.run_until(STEPS, || peer.region("kv").is_ok()).unwrap();
        }
    });
}

#[test]
fn a_dropped_engine_is_noticed_by_its_peers() {
    replay(0..100, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let source = world.start(config("source", ANY)).unwrap();
        let far = pool(&target, "kv");
        let peer = connect(world, &source, &target);
        drop((far, target));
        world.run_until(STEPS, || peer.ended().is_some()).unwrap();
        assert_eq!(peer.ended(), Some(Cause::PeerClosed), "it said goodbye");
        world.run_until(STEPS, || source.peers().is_empty()).unwrap();
    });
}

#[test]
fn an_engine_dropped_while_it_is_being_called_refuses_in_words() {
    replay(0..200, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let source = world.start(config("source", ANY)).unwrap();
        let calling = source.connect_begin(&target.descriptor()).unwrap();
        (0..world.seed() % 40).for_each(|_| world.step());
        drop(target);
        world.run_until(10 * STEPS, || calling.poll().is_some()).unwrap();
        match calling.poll().unwrap() {
            Ok(peer) => world.run_until(STEPS, || peer.ended().is_some()).map(drop).unwrap(),
            Err(ConnectError::Refused { code, .. }) => assert_eq!(code, RefusalCode::Closing),
            Err(
                error @ (ConnectError::RefusedHere { .. }
                | ConnectError::Lost { .. }
                | ConnectError::Unreachable { .. }),
            ) => {
                let refusal = What::Said(Frame::Refuse { code: RefusalCode::Closing, text: String::new() }.kind());
                let was_said = world.last_events().iter().any(|event| event.what == refusal);
                let has_reason = !error.to_string().contains("the connection");
                assert!(!was_said || has_reason, "a refusal was said and not heard: {error}");
            }
            Err(other) => panic!("{other}"),
        }
        world.run_until(STEPS, || source.peers().is_empty()).unwrap();
        drop(source);
        assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
    });
}

#[test]
fn a_foreign_user_is_refused() {
    replay(0..50, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let stranger = Identity { uid: 4711, ..Identity::default() };
        let source = world.start_as(stranger, config("source", ANY)).unwrap();
        let error = source.connect(&target.descriptor(), SECOND).unwrap_err();
        // Either side sees it first.
        let text = error.to_string();
        assert!(text.contains("4711"), "{text}");
        world.run_until(STEPS, || source.peers().is_empty() && target.peers().is_empty()).unwrap();
    });
}

#[test]
fn who_runs_in_another_process_is_reached_through_shared_memory() {
    replay(0..50, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let other = Identity { process: 77, pid: 0, ..Identity::default() };
        let source = world.start_as(other, config("source", ANY)).unwrap();
        assert_eq!(connect(world, &source, &target).transport(), "shm");
    });
}

#[test]
fn who_claims_to_be_in_this_process_and_is_not_gets_no_local_transport() {
    replay(0..50, |world| {
        let target = world.start(config("target", ANY)).unwrap();
        let liar = Identity { pid: 0, ..Identity::default() };
        let source = world.start_as(liar, config("source", ANY)).unwrap();
        let Err(error) = target.connect(&source.descriptor(), SECOND) else {
            panic!("the liar chose, and was believed")
        };
        assert!(error.to_string().contains("another process"), "{error}");
        assert_eq!(connect(world, &source, &target).transport(), "shm");
    });
}

/// A process of which only this world knows is one all the same: its engines see each other's memory, and those of another one do not.
#[test]
fn engines_of_one_simulated_process_are_in_it_together() {
    replay(0..50, |world| {
        let own = Identity { process: 77, pid: PIDS + 1, ..Identity::default() };
        let target = world.start_as(own, config("target", ANY)).unwrap();
        let source = world.start_as(own, config("source", ANY)).unwrap();
        let other = Identity { process: 77, pid: PIDS + 2, ..Identity::default() };
        let other = world.start_as(other, config("other", ANY)).unwrap();
        assert_eq!(connect(world, &source, &target).transport(), "local");
        assert_eq!(connect(world, &other, &target).transport(), "shm");
    });
}

#[test]
fn a_name_is_taken_only_while_its_engine_lives() {
    let world = World::new(1);
    let first = world.start(config("same", ANY)).unwrap();
    assert!(matches!(world.start(config("same", ANY)), Err(StartError::Listen { .. })));
    let (old, descriptor) = (first.epoch(), first.descriptor());
    drop(first);
    let second = world.start(config("same", ANY)).unwrap();
    assert_ne!(second.epoch(), old);
    let caller = world.start(config("caller", ANY)).unwrap();
    let error = caller.connect(&descriptor, SECOND).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { code: RefusalCode::Epoch, .. }), "{error}");
}

#[test]
fn threads_are_refused_in_words() {
    let world = World::new(1);
    let threaded = World::config("threaded").progress(penstock::config::Progress::Busy);
    let error = world.start(threaded).unwrap_err();
    assert!(matches!(error, StartError::System { .. }), "{error}");
}

/// A drain in any order of frames and turns: what runs ends well on both sides, every notification arrives, and
/// both are at rest in the end. Half of the time both drain.
#[test]
fn a_drain_loses_nothing_in_any_order() {
    replay(0..200, |world| {
        let target = world.start(config("target", &[TransportName::Shm])).unwrap();
        let source = world.start(config("source", &[TransportName::Shm])).unwrap();
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        let there = connect(world, &source, &target);
        world.run_until(STEPS, || target.peers().len() == 1).unwrap();
        let back = target.peers().remove(0);
        world.run_until(STEPS, || back.region("kv").is_ok()).unwrap();
        let span = [Span { local: 0, remote: 0, len: 150_000 }];
        let to = Plan::write(&near, &there.region("kv").unwrap()).extents(&span).build().unwrap();
        let from = Plan::write(&far, &back.region("kv").unwrap()).extents(&span).build().unwrap();
        let how = |id| Submit::new().notify(NoteId(id), b"note");
        let sent: Vec<_> = (0..5).map(|id| there.submit(&to, how(id)).unwrap()).collect();
        let returned: Vec<_> = (0..5).map(|id| back.submit(&from, how(id)).unwrap()).collect();
        (0..world.seed() % 30).for_each(|_| world.step());
        let left = source.drain(SECOND).unwrap();
        assert!(left.is_complete(), "{left:?}");
        if world.seed() % 2 == 0 {
            assert!(target.drain(SECOND).unwrap().is_complete());
        }
        world.run_until(STEPS, || target.peers().is_empty()).unwrap();
        assert!(sent.iter().chain(&returned).all(|transfer| transfer.wait().is_ok()));
        let mut notes = Vec::new();
        assert_eq!((target.notifications(&mut notes), source.notifications(&mut notes)), (5, 5));
        assert_eq!((there.ended(), back.ended()), (Some(Cause::PeerClosed), Some(Cause::PeerClosed)));
    });
}

/// Looking for an engine by its name, before and while it comes, and after it has come again.
#[test]
fn an_engine_is_found_by_its_name_in_any_order() {
    replay(0..100, |world| {
        let source = world.start(config("source", &[TransportName::Shm])).unwrap();
        let nobody = source.connect_name("target", SECOND / 100).map(drop).unwrap_err();
        assert!(matches!(nobody, ConnectError::NotBack { .. }), "{nobody}");
        let mut known: Option<penstock::Peer<_>> = None;
        for _ in 0..3 {
            let target = world.start(config("target", &[TransportName::Shm])).unwrap();
            let peer = match &known {
                None => source.connect_name("target", SECOND).unwrap(),
                Some(old) => source.reconnect(old, SECOND).unwrap(),
            };
            assert_eq!(peer.epoch(), target.epoch());
            drop(target);
            world.run_until(STEPS, || peer.ended().is_some()).unwrap();
            known = Some(peer);
        }
    });
}
