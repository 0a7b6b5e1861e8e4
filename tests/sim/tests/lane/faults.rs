//! Links that are cut, engines that stand still, and engines that die and come again.

use std::time::Duration;

use penstock::session::RefusalCode;
use penstock::{Cause, ConnectError, NoteId, Submit};
use penstock_simulation::{Death, Random, Weather, replay};

use crate::stage::{
    BYTES, Ends, FAR, HEARTBEAT, NEAR, SOON, Stage, a_while, bytes_of, cause, connect, expect_blocks, fill, pool,
    start, storm,
};

#[test]
fn a_partition_that_heals_is_survived() {
    replay(0..100, |world| {
        let mut random = Random::new(!world.seed());
        let stage = Stage::open(world, storm());
        fill(&stage.near, 21);
        let pairs = stage.pairs(0);
        let transfer = stage.submit(&stage.write(&pairs), Submit::new().notify(NoteId(1), b"through"));
        for _ in 0..3 {
            (0..random.below(200)).for_each(|_| world.step());
            match random.below(3) {
                0 => world.partition(NEAR, FAR),
                1 => world.cut(NEAR, FAR),
                _ => world.cut(FAR, NEAR),
            }
            world.run_for(HEARTBEAT / 4);
            world.heal();
        }
        assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
        expect_blocks(&bytes_of(&stage.far), 21, &pairs);
        let mut notes = Vec::new();
        world.wait(SOON, || stage.target.notifications(&mut notes) > 0).unwrap();
        assert_eq!(notes.len(), 1);
        drop(transfer);
        stage.close();
    });
}

#[test]
fn a_partition_that_lasts_ends_in_peer_lost_on_both_sides() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        let back = stage.target.peers().remove(0);
        let transfer = stage.submit(&stage.write(&stage.pairs(0)), Submit::new());
        world.run_for(a_while(world.seed() * 5));
        match world.seed() % 3 {
            0 => world.partition(NEAR, FAR),
            1 => world.cut(NEAR, FAR),
            _ => world.cut(FAR, NEAR),
        }
        let took = world.wait(SOON, || stage.peer.ended().is_some() && back.ended().is_some()).unwrap();
        assert_eq!((stage.peer.ended(), back.ended()), (Some(Cause::PeerLost), Some(Cause::PeerLost)));
        assert!(took < 3 * HEARTBEAT, "it took {took:?}");
        // What was over before the cut is over; else it ends with its session.
        let ended = stage.end(&transfer);
        ends.note(&ended);
        match ended {
            Ok(done) => assert_eq!(done.bytes, BYTES),
            Err(fault) => assert_eq!(fault.cause, Cause::PeerLost),
        }
        world.heal();
        fill(&stage.near, 22);
        let again = connect(world, &stage.source, &stage.target);
        let pairs = stage.pairs(1);
        let remote = again.region("kv").unwrap();
        let plan = penstock::Plan::write(&stage.near, &remote).blocks(&pairs).build().unwrap();
        let second = again.submit(&plan, Submit::new().within(SOON)).unwrap();
        stage.end(&second).unwrap();
        expect_blocks(&bytes_of(&stage.far), 22, &pairs);
    });
    ends.expect_both();
}

#[test]
fn an_engine_that_is_killed_is_lost_at_once() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        let Stage { world, source, target, near, far, peer } = stage;
        let remote = peer.region("kv").unwrap();
        let plan = penstock::Plan::write(&near, &remote).blocks(&[(0, 0), (5, 9)]).build().unwrap();
        let transfer = peer.submit(&plan, Submit::new().within(SOON)).unwrap();
        world.run_for(a_while(world.seed() * 5));
        drop(far);
        world.crash(target, Death::Killed);
        let took = world.wait(SOON, || peer.ended().is_some() && transfer.poll().is_some()).unwrap();
        assert_eq!(peer.ended(), Some(Cause::PeerLost));
        assert!(took < HEARTBEAT / 3, "it took {took:?}");
        let ended = transfer.poll().unwrap();
        ends.note(&ended);
        if let Err(fault) = ended {
            assert_eq!(fault.cause, Cause::PeerLost);
        }
        drop((transfer, plan, remote, peer, near, source));
        assert_eq!(world.open_ends(), 0, "nobody is left");
    });
    ends.expect_both();
}

#[test]
fn an_engine_whose_host_lost_power_is_lost_in_time() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        let Stage { world, source, target, near, far, peer } = stage;
        let remote = peer.region("kv").unwrap();
        let plan = penstock::Plan::write(&near, &remote).blocks(&[(0, 0), (5, 9)]).build().unwrap();
        drop(far);
        world.crash(target, Death::Silent);
        let transfer = peer.submit(&plan, Submit::new().within(SOON)).unwrap();
        let took = world.wait(SOON, || peer.ended().is_some() && transfer.poll().is_some()).unwrap();
        assert!((HEARTBEAT / 3..3 * HEARTBEAT).contains(&took), "it took {took:?}");
        assert_eq!(peer.ended(), Some(Cause::PeerLost));
        assert_eq!(cause(transfer.poll().unwrap()), Cause::PeerLost);
        drop((transfer, plan, remote, peer, near, source));
        assert_eq!(world.open_ends(), 0, "nobody is left");
    });
}

/// Packets of the old life are still on their way when the engine is back under its name, and at its address.
#[test]
fn a_new_life_takes_nothing_that_was_meant_for_the_old_one() {
    replay(0..100, |world| {
        let stage = Stage::open(world, Weather::default());
        fill(&stage.near, 23);
        let slow = Weather { delay_min: Duration::from_millis(5), delay_max: Duration::from_millis(60), ..storm() };
        world.set_weather(slow);
        let death = if world.seed() % 2 == 0 { Death::Killed } else { Death::Silent };
        let transfer = stage.submit(&stage.write(&stage.pairs(0)), Submit::new().notify(NoteId(1), b"to the old"));
        (0..50 + world.seed() % 100).for_each(|_| world.step());
        let Stage { world, source, target, near, far, peer } = stage;
        let (old_card, old_epoch) = (target.descriptor(), target.epoch());
        drop(far);
        world.crash(target, death);
        let target = start(world, FAR, "target");
        assert_ne!(target.epoch(), old_epoch);
        let far = pool(&target, "kv");
        far.window().fill(0, BYTES, 0x77).unwrap();
        world.wait(SOON, || peer.ended().is_some() && transfer.poll().is_some()).unwrap();
        assert_eq!(cause(transfer.poll().unwrap()), Cause::PeerLost);
        world.run_for(Duration::from_millis(200));
        assert!(bytes_of(&far).iter().all(|&byte| byte == 0x77), "something of the old life landed in the new one");
        assert_eq!(target.notifications(&mut Vec::new()), 0);

        let stale = source.connect_begin(&old_card).unwrap();
        world.wait(SOON, || stale.poll().is_some()).unwrap();
        let error = stale.poll().unwrap().map(drop).unwrap_err();
        // The refusal is said once and not waited for, so it may not get through.
        let is_refused = matches!(error, ConnectError::Refused { code: RefusalCode::Epoch, .. });
        assert!(is_refused || matches!(error, ConnectError::Lost { .. }), "{error}");
        let again = connect(world, &source, &target);
        assert_eq!(again.epoch(), target.epoch());
        let plan = penstock::Plan::write(&near, &again.region("kv").unwrap()).blocks(&[(3, 4)]).build().unwrap();
        let second = again.submit(&plan, Submit::new().within(SOON)).unwrap();
        world.wait(SOON, || second.poll().is_some()).unwrap();
        second.poll().unwrap().unwrap();
        expect_blocks(&bytes_of(&far), 23, &[(3, 4)]);
    });
}

#[test]
fn an_engine_that_stands_still_for_a_moment_loses_nothing() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        fill(&stage.near, 24);
        let pairs = stage.pairs(0);
        let transfer = stage.submit(&stage.write(&pairs), Submit::new().notify(NoteId(1), b"late"));
        (0..world.seed() % 150).for_each(|_| world.step());
        let frozen = if world.seed() % 2 == 0 { &stage.target } else { &stage.source };
        world.freeze(frozen);
        world.run_for(HEARTBEAT / 2);
        world.thaw(frozen);
        assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
        expect_blocks(&bytes_of(&stage.far), 24, &pairs);
        let mut notes = Vec::new();
        world.wait(SOON, || stage.target.notifications(&mut notes) > 0).unwrap();
        assert_eq!((notes.len(), stage.peer.ended()), (1, None));
        drop(transfer);
        stage.close();
    });
}

#[test]
fn an_engine_that_stands_still_for_long_is_lost_and_both_go_on() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        let transfer = stage.submit(&stage.write(&stage.pairs(0)), Submit::new());
        world.run_for(a_while(world.seed() * 5));
        world.freeze(&stage.target);
        let took = world.wait(SOON, || stage.peer.ended().is_some() && transfer.poll().is_some()).unwrap();
        assert!(took < 3 * HEARTBEAT, "it took {took:?}");
        assert_eq!(stage.peer.ended(), Some(Cause::PeerLost));
        let ended = stage.end(&transfer);
        ends.note(&ended);
        match ended {
            Ok(done) => assert_eq!(done.bytes, BYTES),
            Err(fault) => assert_eq!(fault.cause, Cause::PeerLost),
        }
        world.thaw(&stage.target);
        world.wait(SOON, || stage.target.peers().is_empty()).unwrap();
        let again = connect(world, &stage.source, &stage.target);
        assert_eq!(again.ended(), None);
    });
    ends.expect_both();
}

/// Its turns stop, its clock does not: when it goes on it has to ask before it gives anybody up.
#[test]
fn who_stood_still_for_long_finds_a_peer_that_waited_for_nothing() {
    replay(0..100, |world| {
        let stage = Stage::open(world, Weather::default());
        let back = stage.target.peers().remove(0);
        // Both stand still: a whole machine was stopped and goes on.
        world.freeze(&stage.target);
        world.freeze(&stage.source);
        world.run_for(4 * HEARTBEAT);
        world.thaw(&stage.target);
        world.thaw(&stage.source);
        fill(&stage.near, 25);
        let pairs = stage.pairs(0);
        let transfer = stage.submit(&stage.write(&pairs), Submit::new());
        stage.end(&transfer).unwrap();
        assert_eq!((stage.peer.ended(), back.ended()), (None, None));
        expect_blocks(&bytes_of(&stage.far), 25, &pairs);
    });
}
