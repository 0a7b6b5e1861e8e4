//! Hosts: where engines listen, how they meet, and which way they take.

use std::net::SocketAddr;
use std::time::Duration;

use penstock::ConnectError;
use penstock_simulation::{Identity, World, replay};

use crate::stage::{FAR, NEAR, SOON, connect, pool, start};

#[test]
fn engines_of_two_hosts_meet_at_addresses_and_those_of_one_at_sockets() {
    replay(0..100, |world| {
        let target = start(world, FAR, "target");
        let source = start(world, NEAR, "source");
        let neighbour = World::config_on(FAR, "neighbour").listen(["10.0.0.2:0"]);
        let neighbour = world.start_as(Identity { process: 99, ..Identity::on(FAR) }, neighbour).unwrap();
        let _pools = [&target, &neighbour].map(|engine| pool(engine, "kv"));
        assert_eq!(target.addresses(), ["10.0.0.2:7400".parse::<SocketAddr>().unwrap()]);
        assert!(neighbour.addresses()[0].port() >= 20_000);
        let (far, near) = (connect(world, &source, &target), connect(world, &neighbour, &target));
        assert_eq!((far.transport(), near.transport()), ("datagram", "shm"));
        assert_eq!((far.address(), near.address()), (Some(target.addresses()[0]), None));
        assert_eq!(connect(world, &source, &neighbour).address(), Some(neighbour.addresses()[0]));
        let caller = target.peers().into_iter().find(|peer| peer.name().as_str() == "source").unwrap();
        assert_eq!(caller.address().unwrap().ip(), Identity::on(NEAR).ip());
    });
}

#[test]
fn an_address_is_taken_as_long_as_its_engine_lives() {
    let world = World::new(1);
    let first = start(&world, FAR, "first");
    let again = || world.start_as(Identity::on(FAR), World::config_on(FAR, "second"));
    let error = again().unwrap_err();
    assert!(error.to_string().contains("10.0.0.2:7400"), "{error}");
    drop(first);
    assert!(again().is_ok());
}

#[test]
fn nobody_is_met_over_a_link_that_is_cut_and_everybody_once_it_passes() {
    replay(0..100, |world| {
        let (target, source) = (start(world, FAR, "target"), start(world, NEAR, "source"));
        let _pool = pool(&target, "kv");
        if world.seed() % 2 == 0 {
            world.cut(NEAR, FAR)
        } else {
            world.cut(FAR, NEAR)
        }
        let calling = source.connect_begin(&target.descriptor()).unwrap();
        world.wait(3 * SOON, || calling.poll().is_some()).unwrap();
        let error = calling.poll().unwrap().map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. } | ConnectError::Unreachable { .. }), "{error:?}");
        world.heal();
        connect(world, &source, &target);
    });
}

#[test]
fn a_peer_is_found_again_at_its_address_after_it_has_died() {
    replay(0..50, |world| {
        let (target, source) = (start(world, FAR, "target"), start(world, NEAR, "source"));
        let kv = pool(&target, "kv");
        let old = connect(world, &source, &target);
        drop(kv);
        world.crash(target, penstock_simulation::Death::Killed);
        let target = start(world, FAR, "target");
        world.wait(SOON, || old.ended().is_some()).unwrap();
        let new = source.reconnect(&old, Duration::from_secs(2)).unwrap();
        assert_eq!((new.epoch(), new.transport()), (target.epoch(), "datagram"));
    });
}
