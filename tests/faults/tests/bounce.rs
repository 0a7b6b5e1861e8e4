//! Memory that only its owner may touch, and owners that stand still, die, or are late.

use std::time::{Duration, Instant};

use penstock::config::{ProcessVmChoice, Progress, TransportName};
use penstock::{
    Cause, Engine, HostMemory, LocalRegion, Peer, Plan, PoolSpec, RemoteQuiesce, Rights, Span, Submit, SystemEnv,
};
use penstock_faults::folder::Folder;
use penstock_faults::owner::{OWNED, OWNED_BYTE, OWNED_BYTES, Owner, writer};
use penstock_faults::pair::{PATIENCE, config, connect, submit, turn_until};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
/// What is written.
const WRITTEN: u8 = 9;
/// Times that an owner is stopped before one must have been in the middle of a copy.
const FREEZES_MAX: u32 = 300;
/// Transfers that it has to do when it is stopped, so that it has not done them all when a busy machine comes to stop it.
const AT_ONCE: usize = 8;
/// How much later than its time something may come on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

fn meet(engine: &Engine, owner: &Owner) -> Peer<SystemEnv> {
    engine.connect(&owner.card, PATIENCE).expect("the owner runs")
}

fn whole(near: &LocalRegion<SystemEnv>, peer: &Peer<SystemEnv>) -> Plan {
    let remote = peer.wait_region(OWNED, PATIENCE).expect("it was there before the peers met");
    let span = [Span { local: 0, remote: 0, len: OWNED_BYTES }];
    Plan::write(near, &remote).extents(&span).build().expect("caller memory of the peer has a way")
}

fn is_quiet(remote: &RemoteQuiesce) -> bool {
    matches!(remote, RemoteQuiesce::Quiesced)
}

#[test]
fn bytes_are_exact_and_several_slots_are_under_way_at_once() {
    let folder = Folder::new("bounce-exact");
    let mut owner = Owner::start(CHILD, folder.path(), "owner");
    let (engine, near) = writer(folder.path(), Progress::Adaptive);
    let peer = meet(&engine, &owner);
    near.host().unwrap().fill(0, OWNED_BYTES, WRITTEN).unwrap();
    let plan = whole(&near, &peer);
    for _ in 0..5 {
        submit(&peer, &plan, Submit::new()).wait().unwrap();
        assert_eq!(owner.count(WRITTEN), OWNED_BYTES);
        owner.fill(OWNED_BYTE);
    }
    let statistics = engine.statistics();
    assert!(statistics.async_ops >= 5 * OWNED_BYTES / penstock::limits::UNIT_BYTES, "{statistics:?}");
    assert!(statistics.async_ops_most >= 2, "gathering and scattering never overlapped: {statistics:?}");
    let remote = peer.region(OWNED).unwrap();
    let span = [Span { local: 3, remote: 1, len: OWNED_BYTES - 5 }];
    let read = Plan::read(&near, &remote).extents(&span).build().unwrap();
    submit(&peer, &read, Submit::new()).wait().unwrap();
    let mut found = vec![0; OWNED_BYTES as usize];
    near.host().unwrap().read_into(0, &mut found).unwrap();
    assert!(found[3..found.len() - 2].iter().all(|&byte| byte == OWNED_BYTE), "what was read is not what is there");
    assert_eq!((found[2], found[found.len() - 2]), (WRITTEN, WRITTEN), "bytes beside it are as they were");
    drop((plan, read, peer, near, engine));
    owner.finish();
}

#[test]
fn a_frozen_owner_that_has_begun_nothing_gets_nothing_and_the_answer_is_immediate() {
    let folder = Folder::new("bounce-posted");
    let mut owner = Owner::start(CHILD, folder.path(), "owner");
    let (engine, near) = writer(folder.path(), Progress::Adaptive);
    let peer = meet(&engine, &owner);
    near.host().unwrap().fill(0, OWNED_BYTES, WRITTEN).unwrap();
    let plan = whole(&near, &peer);
    owner.freeze();
    for _ in 0..3 {
        let before = engine.statistics().async_ops;
        let transfer = submit(&peer, &plan, Submit::new());
        assert!(turn_until(&[&engine], || engine.statistics().async_ops >= before + 16), "the slots are not filled");
        let asked = Instant::now();
        let answer = transfer.cancel(PATIENCE);
        assert!(answer.local.is_quiesced() && is_quiet(&answer.remote), "{answer:?}");
        assert!(asked.elapsed() < SLACK, "{:?}", asked.elapsed());
        assert_eq!(transfer.wait().unwrap_err().cause, Cause::Cancelled);
    }
    owner.thaw();
    assert_eq!(owner.count(OWNED_BYTE), OWNED_BYTES, "what was taken back has landed all the same");
    submit(&peer, &plan, Submit::new()).wait().unwrap();
    assert_eq!(owner.count(WRITTEN), OWNED_BYTES);
    drop((plan, peer, near, engine));
    owner.finish();
}

/// Those that wait for a slot end by theirs, too: what the first ones give up makes room for them, which nobody uses.
#[test]
fn every_transfer_to_a_frozen_owner_ends_by_its_deadline() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let folder = Folder::new("bounce-late");
        let owner = Owner::start(CHILD, folder.path(), "owner");
        let (engine, near) = writer(folder.path(), progress);
        let peer = meet(&engine, &owner);
        let plan = whole(&near, &peer);
        owner.freeze();
        let within = |number: u64| Duration::from_millis(50 + 5 * (number % 7));
        let late: Vec<_> = (0..40).map(|number| submit(&peer, &plan, Submit::new().within(within(number)))).collect();
        for (number, transfer) in late.iter().enumerate() {
            let ended =
                transfer.wait_within(SLACK).unwrap_or_else(|| panic!("{progress:?}: {number} goes on: {engine:?}"));
            assert_eq!(ended.unwrap_err().cause, Cause::DeadlineExceeded, "{progress:?}: {number}");
        }
        owner.thaw();
        drop((late, plan, peer, near, engine));
        owner.finish();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Cancel,
    Deadline,
}

/// Freezes an owner until it was in the middle of a copy. A second owner is served all the time.
fn freeze_midway(label: &str, by: By) {
    let within = Duration::from_millis(20);
    let folder = Folder::new(label);
    let mut owner = Owner::start(CHILD, folder.path(), "owner");
    let mut other = Owner::start(CHILD, folder.path(), "other");
    let (engine, near) = writer(folder.path(), Progress::Adaptive);
    let (peer, other_peer) = (meet(&engine, &owner), meet(&engine, &other));
    near.host().unwrap().fill(0, OWNED_BYTES, WRITTEN).unwrap();
    let (plan, other_plan) = (whole(&near, &peer), whole(&near, &other_peer));
    let mut caught = false;
    for round in 0..FREEZES_MAX {
        let how = if by == By::Deadline { Submit::new().within(within) } else { Submit::new() };
        let transfers: Vec<_> = (0..AT_ONCE).map(|_| submit(&peer, &plan, how)).collect();
        let begun = Instant::now();
        while transfers[0].bytes_moved() == 0 && transfers[0].poll().is_none() && begun.elapsed() < PATIENCE {}
        std::thread::sleep(Duration::from_micros(u64::from(round % 10) * 50));
        owner.freeze();
        let mut held = Vec::new();
        for transfer in &transfers {
            if by == By::Deadline {
                let asked = Instant::now();
                let ended = transfer.wait();
                assert!(asked.elapsed() < within + SLACK, "the deadline is not kept: {:?}", asked.elapsed());
                assert!(ended.map_or_else(|fault| fault.cause == Cause::DeadlineExceeded, |_| true));
            }
            let asked = Instant::now();
            let mut answer = transfer.cancel(within);
            assert!(asked.elapsed() < within + SLACK, "{:?}", asked.elapsed());
            // Our own worker may need a moment to see it.
            while !answer.local.is_quiesced() && asked.elapsed() < SLACK {
                answer = transfer.cancel(within);
            }
            assert!(answer.local.is_quiesced(), "nothing of ours is touched for it: {answer:?}");
            let ended = transfer.wait_within(SLACK);
            assert!(ended.is_some(), "a cancelled transfer does not end");
            match answer.remote {
                RemoteQuiesce::Quarantined(of) => held.push(of),
                remote => assert!(is_quiet(&remote)),
            }
        }
        submit(&other_peer, &other_plan, Submit::new()).wait().expect("another owner is not concerned");
        for held in &held {
            assert_eq!(held.suspects().iter().flatten().map(|name| name.as_str()).collect::<Vec<_>>(), [&owner.name]);
            assert!(!held.is_released(), "the owner stands in the middle of a copy");
        }
        owner.thaw();
        assert!(turn_until(&[&engine], || held.iter().all(|held| held.is_released())), "the owner has moved on");
        caught |= !held.is_empty();
        if caught && round >= 5 {
            break;
        }
    }
    assert!(caught, "of {FREEZES_MAX} freezes none came in the middle of a copy");
    // What it wakes up to harms nothing: bytes written afterwards are exact.
    near.host().unwrap().fill(0, OWNED_BYTES, WRITTEN + 1).unwrap();
    submit(&peer, &plan, Submit::new()).wait().unwrap();
    assert_eq!((owner.count(WRITTEN + 1), other.count(WRITTEN)), (OWNED_BYTES, OWNED_BYTES));
    assert!(engine.quarantined().is_empty(), "nothing of this engine was ever in question");
    assert!(turn_until(&[&engine], || engine.transfers_held() == 0), "slots are lost");
    drop((plan, other_plan, peer, other_peer, near, engine));
    owner.finish();
    other.finish();
}

#[test]
fn an_owner_frozen_in_the_middle_of_a_copy_is_quarantined_until_it_moves() {
    freeze_midway("bounce-frozen-cancel", By::Cancel);
}

#[test]
fn a_deadline_is_kept_with_an_owner_frozen_in_the_middle() {
    freeze_midway("bounce-frozen-deadline", By::Deadline);
}

#[test]
fn an_owner_that_dies_ends_its_own_transfers_and_is_quiet() {
    let folder = Folder::new("bounce-dies");
    let (engine, near) = writer(folder.path(), Progress::Adaptive);
    let mut other = Owner::start(CHILD, folder.path(), "other");
    let other_peer = meet(&engine, &other);
    let other_plan = whole(&near, &other_peer);
    near.host().unwrap().fill(0, OWNED_BYTES, WRITTEN).unwrap();
    for life in 0..5 {
        let owner = Owner::start(CHILD, folder.path(), "owner");
        let peer = meet(&engine, &owner);
        let plan = whole(&near, &peer);
        let transfers: Vec<_> = (0..4).map(|_| submit(&peer, &plan, Submit::new())).collect();
        let begun = Instant::now();
        while transfers[0].bytes_moved() == 0 && begun.elapsed() < PATIENCE {}
        if life % 2 == 0 {
            owner.freeze();
        }
        owner.kill();
        for transfer in &transfers {
            if let Err(fault) = transfer.wait_within(PATIENCE).expect("it ends") {
                assert_eq!(fault.cause, Cause::PeerLost);
            }
            let answer = transfer.cancel(PATIENCE);
            assert!(answer.local.is_quiesced() && is_quiet(&answer.remote), "the dead write nothing: {answer:?}");
        }
        submit(&other_peer, &other_plan, Submit::new()).wait().expect("another owner is not concerned");
    }
    assert_eq!(other.count(WRITTEN), OWNED_BYTES);
    assert!(turn_until(&[&engine], || engine.transfers_held() == 0), "slots are lost");
    drop((other_plan, other_peer, near, engine));
    other.finish();
    // The dead leave their socket; the next of that name takes it over, and with it away.
    Owner::start(CHILD, folder.path(), "owner").finish();
}

#[test]
fn an_inline_owner_moves_the_bytes_when_it_comes_to_it() {
    let folder = Folder::new("bounce-late");
    let start = |name| {
        let config = config(folder.path(), name, TransportName::Shm, Progress::Inline);
        Engine::start(config.process_vm(ProcessVmChoice::Off)).unwrap()
    };
    let (near_engine, far_engine) = (start("near"), start("far"));
    let memory = HostMemory::from_vec(vec![OWNED_BYTE; 300_000]).unwrap();
    let far = far_engine.register(memory, OWNED, Rights::READ_WRITE).unwrap();
    let near = near_engine.pool(PoolSpec::host(300_000).label("near")).unwrap();
    near.window().fill(0, 300_000, WRITTEN).unwrap();
    let peer = connect(&near_engine, &far_engine);
    let span = [Span { local: 1, remote: 2, len: 299_990 }];
    let plan = Plan::write(&near, &peer.region(OWNED).unwrap()).extents(&span).build().unwrap();
    let transfer = submit(&peer, &plan, Submit::new());
    for _ in 0..1000 {
        near_engine.progress_all().unwrap();
    }
    assert!(transfer.poll().is_none(), "nobody but the owner may move it");
    let mut found = vec![0; 300_000];
    far.host().unwrap().read_into(0, &mut found).unwrap();
    assert!(found.iter().all(|&byte| byte == OWNED_BYTE));
    assert!(turn_until(&[&near_engine, &far_engine], || transfer.poll().is_some()));
    assert_eq!(transfer.poll().unwrap().unwrap().bytes, 299_990);
    far.host().unwrap().read_into(0, &mut found).unwrap();
    let written = found[2..299_992].iter().all(|&byte| byte == WRITTEN);
    assert!(written && found[..2] == [OWNED_BYTE; 2] && found[299_992..] == [OWNED_BYTE; 8]);
}
