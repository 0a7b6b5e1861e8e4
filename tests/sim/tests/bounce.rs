//! Memory that only its owner may touch, in every order of turns: bytes are exact, and what was taken back
//! or cancelled stays as it is.

mod common;

use common::{SECOND, STEPS, config, connect, exchange, pool};
use penstock::config::TransportName;
use penstock::{Cause, HostMemory, LocalRegion, Plan, RemoteQuiesce, Rights, Span, Submit, Window};
use penstock_simulation::trace::digest;
use penstock_simulation::{Node, Random, SimEnv, World, replay};

/// Bytes on either side: the pool of these tests.
const BYTES: u64 = 40 * 4096;
const ROUNDS: u8 = 6;
const SHM: &[TransportName] = &[TransportName::Shm];

fn start(world: &World, name: &str) -> Result<Node, penstock::StartError> {
    world.start(config(name, SHM))
}

fn owned(engine: &Node) -> LocalRegion<SimEnv> {
    let memory = HostMemory::from_vec(vec![0; BYTES as usize]).unwrap();
    engine.register(memory, "owned", Rights::READ_WRITE).unwrap()
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    window.read_into(0, &mut bytes).unwrap();
    bytes
}

/// Transfers in both directions that end well, are cancelled, or lose their memory on either side.
fn tug(world: &World) {
    let mut random = Random::new(!world.seed());
    let target = start(world, "target").unwrap();
    let source = start(world, "source").unwrap();
    let (far, near) = (owned(&target), pool(&source, "kv"));
    let peer = connect(world, &source, &target);
    let remote = peer.region("owned").unwrap();
    assert_eq!(remote.access_path(), "bounce");
    for round in 0..ROUNDS {
        let (here, there) = (1 + round, 101 + round);
        near.window().fill(0, BYTES, here).unwrap();
        far.host().unwrap().fill(0, BYTES, there).unwrap();
        let write = random.once_in(2);
        let plan = if write { Plan::write(&near, &remote) } else { Plan::read(&near, &remote) };
        let span = [Span { local: 3, remote: 70, len: BYTES - 100 }];
        let plan = plan.extents(&span).build().unwrap();
        let transfer = peer.submit(&plan, Submit::new()).unwrap();
        (0..random.below(60)).for_each(|_| world.step());
        let stop = random.below(4);
        match stop {
            0 => {}
            1 => {
                let answer = transfer.cancel(SECOND);
                assert!(answer.local.is_quiesced() && matches!(answer.remote, RemoteQuiesce::Quiesced), "{answer:?}");
            }
            2 => assert!(far.revoke(&[(0, BYTES)], SECOND).unwrap().is_quiesced()),
            _ => assert!(near.revoke(&[(0, BYTES)], SECOND).unwrap().is_quiesced()),
        }
        let before = (contents(near.window()), contents(far.host().unwrap()));
        if stop == 2 && !write {
            // A read may still bring what it had read before.
            world.run_until(STEPS, || transfer.poll().is_some()).unwrap();
        } else if stop != 0 {
            (0..200).for_each(|_| world.step());
            let owner_is_concerned = stop != 3 || !write;
            let after = (contents(near.window()), contents(far.host().unwrap()));
            assert!(!owner_is_concerned || before == after, "something landed after it was quiesced");
        }
        world.run_until(STEPS, || transfer.poll().is_some()).unwrap();
        match (transfer.poll().unwrap(), stop) {
            (Ok(done), _) => {
                assert_eq!(done.bytes, BYTES - 100);
                let (at, byte, window) =
                    if write { (70, here, far.host().unwrap()) } else { (3, there, near.window()) };
                let found = contents(window);
                assert!(found[at..at + done.bytes as usize].iter().all(|&found| found == byte), "bytes are not exact");
                assert!(found[..at].iter().all(|&found| found != byte), "bytes before it");
            }
            (Err(fault), 1) => assert_eq!(fault.cause, Cause::Cancelled),
            (Err(fault), 2) => assert_eq!(fault.cause, Cause::RevokedByPeer),
            (Err(fault), 3) => assert_eq!(fault.cause, Cause::RevokedHere),
            (Err(fault), _) => panic!("nobody stopped it: {fault}"),
        }
        world.note(digest(&contents(far.host().unwrap())));
    }
    world.run_until(STEPS, || source.transfers_held() == 0 && target.transfers_held() == 0).unwrap();
    assert!(source.quarantined().is_empty() && target.quarantined().is_empty());
    assert!(peer.disconnect(SECOND));
    drop((peer, remote, far, near, source, target));
    assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
}

#[test]
fn what_only_its_owner_may_touch_is_exact_and_quiet_in_every_order() {
    replay(0..300, tug);
}

#[test]
fn one_seed_gives_one_tug() {
    for seed in 0..15 {
        let run = || {
            let world = World::new(seed);
            tug(&world);
            (world.trace_hash(), world.events())
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_stream_that_breaks_ends_what_waits_for_an_owner() {
    replay(0..200, |world| {
        let mut random = Random::new(!world.seed());
        let target = start(world, "target").unwrap();
        let source = start(world, "source").unwrap();
        let (far, near) = (owned(&target), pool(&source, "kv"));
        let peer = connect(world, &source, &target);
        let span = [Span { local: 0, remote: 0, len: BYTES }];
        let plan = Plan::write(&near, &peer.region("owned").unwrap()).extents(&span).build().unwrap();
        let transfers: Vec<_> = (0..12).map(|_| peer.submit(&plan, Submit::new()).unwrap()).collect();
        (0..random.below(60)).for_each(|_| world.step());
        world.sever();
        world.run_until(STEPS, || transfers.iter().all(|transfer| transfer.poll().is_some())).unwrap();
        for transfer in &transfers {
            match transfer.poll().unwrap() {
                Ok(done) => assert_eq!(done.bytes, BYTES),
                Err(fault) => assert_eq!(fault.cause, Cause::PeerLost),
            }
            let answer = transfer.cancel(SECOND);
            assert!(answer.local.is_quiesced() && matches!(answer.remote, RemoteQuiesce::Quiesced), "{answer:?}");
        }
        drop(transfers);
        world.run_until(STEPS, || source.peers().is_empty() && target.peers().is_empty()).unwrap();
        assert!(far.revoke(&[(0, BYTES)], SECOND).unwrap().is_quiesced());
        world.run_until(STEPS, || source.transfers_held() == 0).unwrap();
        drop((plan, peer, far, near, source, target));
        exchange(world, TransportName::Shm);
    });
}
