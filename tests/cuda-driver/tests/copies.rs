//! Engines that move device memory, on the stand-in.
//!
//! Each test runs in a process of its own, since a driver is opened and started once: this program again, told which test.

mod apart;
mod card;
mod counted;
mod engines;
mod gpudirect;
mod ordered;
mod short;
mod staged;
mod swaps;

use std::process::Command;
use std::time::{Duration, Instant};

use penstock::device::CudaError;
use penstock::memory::DeviceId;
use penstock::{
    Cause, LocalRegion, NoteId, Plan, PlanError, PoolSpec, RegionError, Rights, Span, Stage, Submit, SystemEnv,
};

use self::card::{Buffer, Card};
use self::engines::{PATIENCE, Pair, pattern};

/// Tells this program, started again, that it is the process of the test.
const ASKED: &str = "PENSTOCK_CUDA_TEST";
const MIB: u64 = 1 << 20;

/// Runs the rest of a test in a process of its own, where the stand-in is the driver: true there.
fn on_stand_in(test: &str, plan: &str) -> bool {
    if std::env::var(ASKED).is_ok_and(|asked| asked == test) {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libpenstock_cuda_driver.so");
    assert!(library.exists(), "{} was built", library.display());
    let mut command = Command::new(&program);
    command.args([test, "--exact", "--nocapture"]).env(ASKED, test).env("PENSTOCK_CUDA_STAND_IN", plan);
    let ran = command.env(penstock::device::PATH_VARIABLE, library).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    false
}

#[test]
fn stand_in_moves_bytes_between_all_kinds_of_memory() {
    if on_stand_in("stand_in_moves_bytes_between_all_kinds_of_memory", "seed=11") {
        between_all_kinds_of_memory();
    }
}

#[test]
fn stand_in_of_the_oldest_release_moves_them_without_batches() {
    if on_stand_in("stand_in_of_the_oldest_release_moves_them_without_batches", "seed=12 version=12020") {
        between_all_kinds_of_memory();
    }
}

fn between_all_kinds_of_memory() {
    let pair = Pair::start(|config| config);
    let near = pair.near.pool(PoolSpec::host(8 * MIB).block(4096).label("host")).unwrap();
    let far = pair.far.pool(PoolSpec::host(8 * MIB).block(4096).label("host")).unwrap();
    let (here, there) = (Buffer::new(8 * MIB), Buffer::new(8 * MIB));
    let near_device = here.register(&pair.near, "device");
    there.register(&pair.far, "device");
    let seen = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    assert_eq!(seen("device").access_path(), "device");
    // Blocks in an order that is not theirs, odd lengths among them.
    let spans: Vec<Span> =
        (0..700).map(|at| Span { local: at * 6000 + 7, remote: (699 - at) * 6000 + 13, len: 1 + at * 8 }).collect();
    let locals = [(&*near, None), (&near_device, Some(&here))];
    for (remote, buffer) in [("host", None), ("device", Some(&there))] {
        for (local, own) in &locals {
            for is_write in [true, false] {
                if own.is_none() && buffer.is_none() {
                    continue;
                }
                let put = |buffer: Option<&Buffer>, window: &penstock::Window, seed| match buffer {
                    Some(buffer) => buffer.write(&pattern(8 * MIB, seed)),
                    None => window.write_from(0, &pattern(8 * MIB, seed)).unwrap(),
                };
                put(*own, near.window(), 1);
                put(buffer, far.window(), 2);
                let region = seen(remote);
                let plan = if is_write { Plan::write(local, &region) } else { Plan::read(local, &region) };
                let plan = plan.extents(&spans).build().unwrap();
                let moved = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
                assert_eq!(moved.bytes, spans.iter().map(|span| span.len).sum::<u64>());
                let get = |buffer: Option<&Buffer>, window: &penstock::Window| match buffer {
                    Some(buffer) => buffer.read(),
                    None => {
                        let mut bytes = vec![0; 8 << 20];
                        window.read_into(0, &mut bytes).unwrap();
                        bytes
                    }
                };
                let (mut near_bytes, mut far_bytes) = (pattern(8 * MIB, 1), pattern(8 * MIB, 2));
                for span in &spans {
                    let (near, far) = (span.local as usize.., span.remote as usize..);
                    let (near, far) =
                        (near.start..near.start + span.len as usize, far.start..far.start + span.len as usize);
                    match is_write {
                        true => far_bytes[far].copy_from_slice(&near_bytes[near]),
                        false => near_bytes[near].copy_from_slice(&far_bytes[far]),
                    }
                }
                let case = format!("{} to {remote}, write: {is_write}", local.label());
                assert!(get(*own, near.window()) == near_bytes, "{case}: the near side");
                assert!(get(buffer, far.window()) == far_bytes, "{case}: the far side");
            }
        }
    }
    assert_eq!(card::forbidden(), "", "nothing of this waits for the device, or uses what is its caller's");
}

#[test]
fn stand_in_pools_of_a_device_hand_out_blocks() {
    if !on_stand_in("stand_in_pools_of_a_device_hand_out_blocks", "bytes=16777216") {
        return;
    }
    let pair = Pair::start(|config| config);
    let device = Buffer::new(MIB).register(&pair.near, "other").device().unwrap();
    let spec = |bytes| PoolSpec::device(device, bytes).block(4096).label("pool");
    let near = pair.near.device_pool(spec(2 * MIB + 1)).unwrap();
    assert_eq!((near.bytes(), near.memory().blocks().total(), near.device()), (4 * MIB, 512, Some(device)));
    let far = pair.far.pool(PoolSpec::host(2 * MIB).block(4096).label("host")).unwrap();
    let (mine, theirs) = (near.take(300).unwrap(), far.take(300).unwrap());
    let remote = pair.peer.wait_region("host", PATIENCE).unwrap();
    let bytes = pattern(2 * MIB, 9);
    far.window().write_from(0, &bytes).unwrap();
    let crossed: Vec<(u32, u32)> = mine.indices().iter().copied().zip(theirs.indices().iter().rev().copied()).collect();
    let there = Plan::read(&near, &remote).blocks(&crossed).keep(&mine).build().unwrap();
    let back = Plan::write(&near, &remote).blocks(&crossed).build().unwrap();
    for plan in [&there, &back] {
        let moved = pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
        assert_eq!(moved.bytes, 300 * 4096);
        let mut seen = vec![0; bytes.len()];
        far.window().read_into(0, &mut seen).unwrap();
        assert!(seen == bytes, "each block came back to where it was");
        far.window().fill(0, 300 * 4096, 0).unwrap();
    }
    let mut seen = vec![0; bytes.len()];
    far.window().read_into(300 * 4096, &mut seen[300 * 4096..]).unwrap();
    assert!(seen[300 * 4096..] == bytes[300 * 4096..], "nothing else was touched");
    assert!(near.take(213).is_err());
    let refused = pair.near.device_pool(spec(16 * MIB)).err().unwrap();
    let words = "16777216 bytes of device memory cannot be had: 12582912 of 16777216 are free";
    assert!(refused.to_string().starts_with(words), "{refused}");
    let elsewhere = PoolSpec::device(DeviceId([3; 16]), MIB);
    assert!(matches!(pair.near.device_pool(elsewhere), Err(RegionError::Device(CudaError::NoSuchDevice { .. }))));
    assert!(near.deregister(PATIENCE).unwrap().is_quiesced());
    drop((there, back, mine, near));
    // Its memory is back once nobody has any of it.
    let end = Instant::now() + PATIENCE;
    while pair.near.device_pool(spec(14 * MIB)).is_err() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn stand_in_blocks_of_a_device_stay_taken_under_copies() {
    if !on_stand_in("stand_in_blocks_of_a_device_stay_taken_under_copies", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let device = Buffer::new(MIB).register(&pair.near, "other").device().unwrap();
    let pool = pair.near.device_pool(PoolSpec::device(device, 2 * MIB).block(1 << 20).label("pool")).unwrap();
    let far = pair.far.pool(PoolSpec::host(2 * MIB).block(1 << 20).label("host")).unwrap();
    far.window().write_from(0, &pattern(2 * MIB, 4)).unwrap();
    let remote = pair.peer.wait_region("host", PATIENCE).unwrap();
    let blocks = pool.take(1).unwrap();
    let plan = Plan::read(&pool, &remote).blocks(&[(blocks.indices()[0], 1)]).keep(&blocks).build().unwrap();
    let card = Card::of_this_process();
    card.hold();
    let transfer = pair.peer.submit(&plan, Submit::new().within(Duration::from_millis(50))).unwrap();
    drop((blocks, plan));
    assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded);
    let quarantine = pool.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap();
    assert!(!quarantine.is_quiesced());
    assert!(pool.take(2).is_err(), "the device still writes one of them");
    card.go_on();
    assert_eq!(pool.take_within(2, PATIENCE).unwrap().len(), 2);
}

#[test]
fn stand_in_blocks_of_a_transfer_that_nobody_waits_for_stay_taken_under_copies() {
    if !on_stand_in("stand_in_blocks_of_a_transfer_that_nobody_waits_for_stay_taken_under_copies", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let device = Buffer::new(MIB).register(&pair.near, "other").device().unwrap();
    let pool = pair.near.device_pool(PoolSpec::device(device, 2 * MIB).block(1 << 20).label("pool")).unwrap();
    pair.far.pool(PoolSpec::host(2 * MIB).block(1 << 20).label("host")).unwrap();
    let remote = pair.peer.wait_region("host", PATIENCE).unwrap();
    let blocks = pool.take(1).unwrap();
    let plan = Plan::read(&pool, &remote).blocks(&[(blocks.indices()[0], 1)]).keep(&blocks).build().unwrap();
    let card = Card::of_this_process();
    card.hold();
    drop(pair.peer.submit(&plan, Submit::new().within(Duration::from_millis(20))).unwrap());
    drop((blocks, plan));
    std::thread::sleep(Duration::from_millis(150));
    assert!(pool.take(2).is_err(), "its time is over, and the device still writes the block");
    card.go_on();
    assert_eq!(pool.take_within(2, PATIENCE).unwrap().len(), 2);
}

#[test]
fn stand_in_tells_of_arrival_when_the_bytes_are_there() {
    if !on_stand_in("stand_in_tells_of_arrival_when_the_bytes_are_there", "seed=3") {
        return;
    }
    let pair = Pair::start(|config| config);
    let pool = pair.far.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let counter = pool.counter("arrived").unwrap();
    let device = Buffer::new(MIB);
    let local = device.register(&pair.near, "device");
    let (region, remote) =
        (pair.peer.wait_region("host", PATIENCE).unwrap(), pair.peer.wait_counter("arrived", PATIENCE).unwrap());
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    for round in 1..=50_u64 {
        device.write(&pattern(MIB, round));
        let transfer =
            pair.peer.submit(&plan, Submit::new().count(remote).notify(NoteId(u128::from(round)), b"k")).unwrap();
        assert!(counter.wait(round, PATIENCE));
        let mut bytes = vec![0; 1 << 20];
        pool.window().read_into(0, &mut bytes).unwrap();
        assert!(bytes == pattern(MIB, round), "round {round}: bytes come before what tells of them");
        transfer.wait().unwrap();
    }
}

#[test]
fn stand_in_wakes_a_worker_that_sleeps() {
    if !on_stand_in("stand_in_wakes_a_worker_that_sleeps", "") {
        return;
    }
    let mut pair = Pair::start(|mut config| {
        config.workers.spin_us = 0;
        config
    });
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "device");
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap();
    let card = Card::of_this_process();
    card.hold();
    let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    let (before, begun) = (pair.near.statistics().sleeps, Instant::now());
    // It sleeps, and looks every few milliseconds.
    staged::wait_until(|| pair.near.statistics().sleeps >= before + 10);
    let (slept, time) = (pair.near.statistics().sleeps - before, begun.elapsed());
    assert!(slept < 5 + time.as_millis() as u64 * 6 / 10, "{slept} sleeps in {time:?}");
    assert!(transfer.poll().is_none());
    card.go_on();
    transfer.wait().unwrap();
    pair.close();
}

#[test]
fn stand_in_copies_of_a_cancelled_transfer_hold_its_memory() {
    if !on_stand_in("stand_in_copies_of_a_cancelled_transfer_hold_its_memory", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let pool = pair.near.pool(PoolSpec::host(4 * MIB).block(4096).label("host")).unwrap();
    let there = Buffer::new(4 * MIB);
    let far = there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let all = [Span { local: 0, remote: 0, len: 4 * MIB }];
    let plan = Plan::read(&pool, &region).extents(&all).build().unwrap();
    let card = Card::of_this_process();
    card.hold();
    let transfer = pair.peer.submit(&plan, Submit::new().within(Duration::from_millis(80))).unwrap();
    let fault = transfer.wait().unwrap_err();
    assert_eq!((fault.cause, fault.stage), (Cause::DeadlineExceeded, Stage::Move));
    // Of both sides: the card may still write the one and read the other.
    let near = pool.revoke(&[(0, 4 * MIB)], Duration::from_millis(50)).unwrap();
    assert!(!near.is_quiesced(), "{near:?}");
    let remote = far.revoke(&[(0, 4 * MIB)], Duration::from_millis(50)).unwrap();
    assert!(!remote.is_quiesced(), "{remote:?}");
    card.go_on();
    let end = Instant::now() + PATIENCE;
    while !pool.revoke(&[(0, 4 * MIB)], Duration::from_millis(50)).unwrap().is_quiesced() {
        assert!(Instant::now() < end, "it is quiesced once the copies have passed");
    }
    assert!(far.revoke(&[(0, 4 * MIB)], PATIENCE).unwrap().is_quiesced());
}

#[test]
fn stand_in_a_lost_card_ends_all_within_its_deadline() {
    if !on_stand_in("stand_in_a_lost_card_ends_all_within_its_deadline", "") {
        return;
    }
    let pair = Pair::start(|mut config| {
        config.workers.spin_us = 0;
        config
    });
    let host = pair.near.pool(PoolSpec::host(MIB).block(4096).label("near")).unwrap();
    let idle = [&pair.near, &pair.far].map(|engine| engine.pool(PoolSpec::host(MIB).label("host")).unwrap());
    let there = Buffer::new(MIB);
    let far = there.register(&pair.far, "device");
    let further = there.register(&pair.far, "other");
    let device = pair.peer.wait_region("device", PATIENCE).unwrap();
    let other = pair.peer.wait_region("other", PATIENCE).unwrap();
    let all = [Span { local: 0, remote: 0, len: MIB }];
    let plan = Plan::write(&host, &device).extents(&all).build().unwrap();
    pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap();
    let card = Card::of_this_process();
    let given = card.hold();
    let transfers: Vec<_> = (0..4).map(|_| pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap()).collect();
    given.wait_for_more();
    let begun = Instant::now();
    card.lose();
    for transfer in transfers {
        assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeviceFailed);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "they end when it is known, not at their deadline");
    let refused = pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap_err();
    assert_eq!(refused.cause, Cause::DeviceFailed);
    // Nobody knows what the card still does with either memory; it has nothing of others, whoever of the two takes them back.
    assert!(!far.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    assert!(!host.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    let others: [&LocalRegion<SystemEnv>; 3] = [&idle[0], &idle[1], &further];
    assert!(others.iter().all(|other| other.revoke(&[(0, 4096)], PATIENCE).unwrap().is_quiesced()));
    // Who waits for that is nobody else's concern.
    let begun = Instant::now();
    let plan = Plan::write(&host, &other).extents(&all).build().unwrap();
    let refused = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap_err();
    assert_eq!(refused.cause, Cause::DeviceFailed);
    assert!(begun.elapsed() < PATIENCE / 2, "it ends when it is known, not at its deadline");
    std::mem::forget(there); // Such a card frees nothing.
    // What has nothing to do with the card goes on.
    let region = pair.peer.wait_region("host", PATIENCE).unwrap();
    let plan = Plan::write(&host, &region).extents(&all).build().unwrap();
    assert_eq!(pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, MIB);
    // Nor does it when the session is over.
    assert!(!pair.peer.disconnect(Duration::from_millis(100)), "the session has memory that is not to be had back");
    assert!(!far.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    // What is registered in its place is not it.
    assert!(!far.deregister(Duration::from_millis(50)).unwrap().is_quiesced());
    let later = pair.far.pool(PoolSpec::host(MIB).label("later")).unwrap();
    assert!(later.revoke(&[(0, 4096)], PATIENCE).unwrap().is_quiesced(), "of the device's it has only the number");
}

#[test]
fn stand_in_refuses_what_is_no_device_memory() {
    if !on_stand_in("stand_in_refuses_what_is_no_device_memory", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let pool = pair.near.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let buffer = Buffer::new(MIB);
    // SAFETY: each is refused.
    let adopt = |address, bytes| unsafe { penstock::device::adopt(address, bytes) }.unwrap_err();
    assert_eq!(adopt(pool.base(), 4096), CudaError::Unknown { address: pool.base() });
    assert!(matches!(adopt(buffer.address(), MIB * 3), CudaError::Beyond { .. }));
    assert_eq!(adopt(buffer.address() + MIB - 8, 9).to_string().split(' ').next(), Some("9"));
    assert!(matches!(adopt(buffer.address(), u64::MAX), CudaError::Beyond { .. }));
    assert_eq!(adopt(0, 8), CudaError::Unknown { address: 0 });
    assert_eq!(adopt(u64::MAX - 10, 100), CudaError::Unknown { address: u64::MAX - 10 });
    let address = buffer.address();
    drop(buffer);
    assert_eq!(adopt(address, 8), CudaError::Unknown { address }, "it was freed");
    assert_eq!(adopt(pool.base(), 0), CudaError::Size { bytes: 0 });
    // Once devices have copied to and from a pool, the driver knows it.
    let there = Buffer::new(MIB);
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    Plan::write(&pool, &region).extents(&[Span { local: 0, remote: 0, len: 8 }]).build().unwrap();
    assert_eq!(adopt(pool.base(), 4096), CudaError::HostMemory { address: pool.base() });
}

#[test]
fn stand_in_pinned_memory_that_cannot_be_had_is_refused_with_the_mend() {
    if !on_stand_in("stand_in_pinned_memory_that_cannot_be_had_is_refused_with_the_mend", "pinned=65536") {
        return;
    }
    let pair = Pair::start(|config| config);
    let there = Buffer::new(MIB);
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let spans = [Span { local: 0, remote: 0, len: 4096 }];
    let own = penstock::HostMemory::from_vec(vec![0; 4096]).unwrap();
    let own = pair.near.register(own, "own", Rights::READ_WRITE).unwrap();
    let words = "bytes of pinned memory cannot be had (CUDA error 2, out of memory)";
    let refused = Plan::write(&own, &region).extents(&spans).build().err().unwrap();
    assert!(matches!(refused, PlanError::Region(RegionError::Import { .. })), "{refused:?}");
    assert!(refused.to_string().contains(words), "there is none to stage in: {refused}");
    let large = pair.near.pool(PoolSpec::host(MIB).label("large")).unwrap();
    let refused = Plan::write(&large, &region).extents(&spans).build().err().unwrap();
    assert!(refused.to_string().contains(words) && refused.to_string().contains("make pools smaller"), "{refused}");
    let small = pair.near.pool(PoolSpec::host(4096).label("small")).unwrap();
    let plan = Plan::write(&small, &region).extents(&spans).build().unwrap();
    assert_eq!(pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, 4096);
}

#[test]
fn stand_in_whoever_drops_a_pinned_pool_waits_for_no_stream() {
    if !on_stand_in("stand_in_whoever_drops_a_pinned_pool_waits_for_no_stream", "pinned=3145728") {
        return;
    }
    let pair = Pair::start(|config| config);
    let there = Buffer::new(MIB);
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    // No peer has it, so this is the last to have it.
    let pool = || pair.near.pool(PoolSpec::host(2 * MIB).label("host").rights(Rights::NONE)).unwrap();
    let all = [Span { local: 0, remote: 0, len: MIB }];
    let plan = |pool: &penstock::Pool<_>| Plan::write(pool, &region).extents(&all).build();
    let (first, second) = (pool(), pool());
    let begin = first.window().base_address();
    let is_mapped = || {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| line.starts_with(&format!("{begin:x}-")))
    };
    pair.peer.submit(&plan(&first).unwrap(), Submit::new()).unwrap().wait().unwrap();
    let stream = card::ProgramStream::on(0);
    stream.hold();
    let dropping = std::thread::spawn(move || assert!(first.deregister(PATIENCE).unwrap().is_quiesced()));
    staged::wait_until(|| dropping.is_finished());
    // The driver waits: it has the pages, and they are where they were.
    std::thread::sleep(Duration::from_millis(50));
    assert!(is_mapped() && plan(&second).is_err());
    stream.release();
    staged::wait_until(|| plan(&second).is_ok() && !is_mapped());
    assert_eq!(card::forbidden(), "");
}

#[test]
fn stand_in_memory_that_was_freed_under_its_registration_ends_its_transfers_only() {
    if !on_stand_in("stand_in_memory_that_was_freed_under_its_registration_ends_its_transfers_only", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let (here, gone, stays) = (Buffer::new(MIB), Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "near");
    gone.register(&pair.far, "gone");
    stays.register(&pair.far, "stays");
    let spans = [Span { local: 0, remote: 0, len: 4096 }];
    let plan = |label| {
        let region = pair.peer.wait_region(label, PATIENCE).unwrap();
        Plan::write(&local, &region).extents(&spans).build().unwrap()
    };
    let (broken, good) = (plan("gone"), plan("stays"));
    let address = gone.address();
    drop(gone);
    // What is allocated next may have its address.
    let others: Vec<Buffer> = (0..4).map(|_| Buffer::new(MIB)).collect();
    others.iter().for_each(|other| other.write(&pattern(MIB, 1)));
    for _ in 0..3 {
        let fault = pair.peer.submit(&broken, Submit::new()).unwrap().wait().unwrap_err();
        assert_eq!(fault.cause, Cause::MemoryGone);
        assert_eq!(pair.peer.submit(&good, Submit::new()).unwrap().wait().unwrap().bytes, 4096);
    }
    assert!(others.iter().all(|other| other.read() == pattern(MIB, 1)));
    let again = others.iter().find(|other| other.address() == address).expect("the address is used again");
    // Who registers that under the same label gets a region of its own, although nobody took the old one back.
    let fresh = again.register(&pair.far, "gone");
    pair.peer.refresh(PATIENCE).unwrap();
    let region = pair.peer.regions().into_iter().rfind(|region| region.label() == "gone").unwrap();
    let plan = Plan::write(&local, &region).extents(&spans).build().unwrap();
    assert_eq!(pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, 4096);
    assert!(fresh.deregister(PATIENCE).unwrap().is_quiesced());
}

#[test]
fn stand_in_a_renewed_pool_is_copied_from_where_it_is_now() {
    if !on_stand_in("stand_in_a_renewed_pool_is_copied_from_where_it_is_now", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let memory = pair.near.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let there = Buffer::new(MIB);
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let all = [Span { local: 0, remote: 0, len: MIB }];
    let plan = Plan::write(&memory, &region).extents(&all).build().unwrap();
    pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap();
    // The pages only: what a renewal does about peers has tests of its own.
    memory.memory().renew(&[(64 << 10, 128 << 10)]).unwrap();
    memory.window().write_from(0, &pattern(MIB, 5)).unwrap();
    pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap();
    assert!(there.read() == pattern(MIB, 5), "the device reads the pages that are there now");
}

#[test]
fn stand_in_engines_that_come_and_go_leave_nothing_pinned_and_no_context_current() {
    if !on_stand_in("stand_in_engines_that_come_and_go_leave_nothing_pinned_and_no_context_current", "pinned=4194304") {
        return;
    }
    let there = Buffer::new(MIB);
    for _ in 0..10 {
        let mut pair = Pair::start(|config| config);
        let pool = pair.near.pool(PoolSpec::host(MIB).label("host")).unwrap();
        there.register(&pair.far, "device");
        let region = pair.peer.wait_region("device", PATIENCE).unwrap();
        let plan = || Plan::write(&pool, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build();
        // What former engines had pinned is let go of by threads that nobody waits for.
        staged::wait_until(|| plan().is_ok());
        let plan = plan().unwrap();
        pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap();
        assert!(!card::has_context(), "a plan leaves the caller's context alone");
        drop((plan, region, pool));
        pair.close();
    }
}

#[test]
fn stand_in_an_inline_engine_moves_device_memory_and_is_woken() {
    if !on_stand_in("stand_in_an_inline_engine_moves_device_memory_and_is_woken", "") {
        return;
    }
    let pair = Pair::start_inline();
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "near");
    there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    for seed in 0..20 {
        here.write(&pattern(MIB, seed));
        let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
        engines::sleep_until(&pair.near, || transfer.poll().is_some());
        transfer.wait().unwrap();
        assert!(there.read() == pattern(MIB, seed));
    }
}

#[test]
fn stand_in_a_lane_that_finds_a_full_queue_goes_on_when_there_is_room() {
    if !on_stand_in("stand_in_a_lane_that_finds_a_full_queue_goes_on_when_there_is_room", "seed=8") {
        return;
    }
    let pair = Pair::start(|config| config);
    let third = pair.another("third");
    let near = pair.near.pool(PoolSpec::host(MIB).label("near")).unwrap();
    let (there, elsewhere) = (Buffer::new(MIB), Buffer::new(MIB));
    there.register(&pair.far, "device");
    elsewhere.register(&third, "device");
    let other = pair.near.connect(&third.descriptor(), PATIENCE).unwrap();
    let spans: Vec<Span> = (0..6000).map(|at| Span { local: at * 100, remote: at * 100, len: 50 }).collect();
    let plan = |peer: &penstock::Peer<_>, spans: &[Span]| {
        let region = peer.wait_region("device", PATIENCE).unwrap();
        Plan::write(&near, &region).extents(spans).build().unwrap()
    };
    let (many, one) = (plan(&pair.peer, &spans), plan(&other, &spans[..1]));
    let card = Card::of_this_process();
    card.hold();
    let first = pair.peer.submit(&many, Submit::new().within(PATIENCE)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let second = other.submit(&one, Submit::new().within(PATIENCE)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    card.go_on();
    let begun = Instant::now();
    assert_eq!((first.wait().unwrap().bytes, second.wait().unwrap().bytes), (300_000, 50));
    assert!(begun.elapsed() < PATIENCE / 2, "somebody slept until its deadline");
}

/// Tests whose bodies are in modules.
macro_rules! on_stand_in {
    ($module:ident: $($name:ident: $body:ident, $plan:literal;)+) => {
        $(#[test]
        fn $name() {
            if on_stand_in(stringify!($name), $plan) {
                $module::$body();
            }
        })+
    };
}

on_stand_in! { ordered:
    stand_in_copies_begin_behind_a_program_s_stream: all_ways, "seed=31";
    stand_in_copies_of_the_oldest_release_begin_behind_a_program_s_stream: all_ways, "seed=32 version=12020";
    stand_in_an_order_that_is_older_than_its_engine_is_kept: before_the_first_plan, "seed=33";
    stand_in_an_order_is_of_one_device: other_devices, "seed=34 devices=2";
    stand_in_the_other_device_goes_on_after_a_withdrawal: the_other_device_after_a_withdrawal, "seed=47 devices=2";
    stand_in_the_other_device_goes_on_beside_a_caller_s_memory: the_other_device_of_a_callers_memory, "seed=48 devices=2";
    stand_in_streams_that_copies_cannot_be_behind_are_refused: refusals, "seed=35 devices=2";
    stand_in_copies_begin_behind_default_streams: default_streams, "seed=36";
    stand_in_copies_behind_a_stream_that_does_not_go_on_end_by_their_deadline: deadlines, "seed=37";
    stand_in_a_lost_card_ends_copies_behind_a_stream: lost, "seed=38";
    stand_in_what_is_staged_begins_behind_a_program_s_stream: staged, "seed=39";
    stand_in_an_order_costs_no_allocation: without_allocations, "seed=40";
}

on_stand_in! { short:
    stand_in_a_driver_without_memory_for_a_call_is_asked_again: for_a_while, "seed=14";
    stand_in_what_is_given_up_behind_half_a_flush_is_taken_back_alone: given_up_behind_half_a_flush, "seed=65";
    stand_in_a_driver_without_memory_for_what_has_not_begun_is_well_later: not_begun_for_ever, "seed=66";
    stand_in_a_driver_that_never_has_memory_for_a_call_fails_its_device: for_ever, "";
}

on_stand_in! { apart:
    stand_in_owners_of_device_memory_end_or_stop_under_what_is_staged: owners_end_or_stop, "seed=41";
    stand_in_who_uses_device_memory_of_a_peer_ends_or_stops: initiators_end_or_stop, "seed=42";
    stand_in_slots_of_a_dead_peer_are_for_who_waits: the_dead_leave_slots, "seed=43";
}

on_stand_in! { gpudirect:
    stand_in_cards_reach_memory_of_devices: all_ways_in_order, "seed=51";
    stand_in_devices_are_flushed_before_anybody_is_told: all_ways_flushed, "seed=52 writes-ordering=0";
    stand_in_cards_reach_pools_of_devices: pools, "seed=53";
    stand_in_cards_reach_memory_of_devices_at_one_end: at_one_end, "seed=59";
    stand_in_cards_that_take_no_dma_bufs_say_so: by_cards, "seed=54";
    stand_in_a_driver_without_dma_bufs_says_so: by_the_driver, "seed=55 without=dma-buf";
    stand_in_devices_out_of_reach_of_cards_say_so: by_the_device, "seed=56 without=dma-buf,gpudirect";
    stand_in_devices_that_cannot_be_flushed_are_not_reached: without_a_flush, "seed=57 without=flush writes-ordering=0";
    stand_in_cards_begin_behind_a_program_s_stream: behind_a_stream, "seed=58";
}

on_stand_in! { staged:
    stand_in_memory_is_staged_in_both_directions: both_directions, "seed=21";
    stand_in_memory_is_withheld_while_a_device_has_what_was_given_up: given_up, "seed=22";
    stand_in_nothing_staged_lands_in_memory_that_the_peer_took_back: withdrawn_there, "seed=23";
    stand_in_a_session_ends_under_what_is_staged: session_ends, "seed=24";
    stand_in_a_lost_card_ends_what_is_staged_by_it: lost, "seed=25";
    stand_in_a_cancel_takes_nothing_of_another_peer_s: cancelled_beside_another_peer, "seed=43";
    stand_in_one_worker_of_two_stages: one_worker_of_two_stages, "seed=44";
    stand_in_host_memory_of_the_callers_is_staged_within_a_process: host_memory_of_the_callers, "seed=28";
    stand_in_what_is_staged_costs_no_allocation: without_allocations, "seed=26";
    stand_in_what_is_not_staged_is_refused_with_words: refusals, "seed=27";
    stand_in_a_thousand_cycles_leave_nothing_behind: cycles, "seed=30";
    stand_in_each_memory_says_how_it_is_reached: paths, "seed=29";
}

#[test]
fn stand_in_a_plan_that_is_submitted_again_and_again_costs_no_allocation() {
    if !on_stand_in("stand_in_a_plan_that_is_submitted_again_and_again_costs_no_allocation", "") {
        return;
    }
    let pair = Pair::start(|mut config| {
        config.workers.spin_us = 0; // It sleeps and is woken in between.
        config
    });
    let (here, there) = (Buffer::new(2 * MIB), Buffer::new(2 * MIB));
    let near = pair.near.pool(PoolSpec::host(2 * MIB).block(4096).label("near")).unwrap();
    let device = here.register(&pair.near, "device");
    there.register(&pair.far, "far");
    let far = pair.peer.wait_region("far", PATIENCE).unwrap();
    let crossed: Vec<Span> =
        (0..256).map(|at| Span { local: at * 8192, remote: (255 - at) * 8192, len: 4096 }).collect();
    let plan = |local| Plan::write(local, &far).extents(&crossed).build().unwrap();
    let plans = [plan(&near), plan(&device), Plan::read(&near, &far).extents(&crossed).build().unwrap()];
    let round = || {
        let transfers = plans.each_ref().map(|plan| pair.peer.submit(plan, Submit::new()).unwrap());
        transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB));
    };
    (0..200).for_each(|_| round());
    counted::assert_none_in_the_end("between host and device", round);
}

#[test]
fn stand_in_of_two_devices_moves_bytes_between_them() {
    if !on_stand_in("stand_in_of_two_devices_moves_bytes_between_them", "devices=2 seed=5") {
        return;
    }
    let devices = penstock::device::Cuda::start().unwrap().devices().unwrap();
    let pair = Pair::start(|config| config);
    let spec = |device: usize| PoolSpec::device(devices[device].id, 2 * MIB).block(4096).label("device");
    let (near, far) = (pair.near.device_pool(spec(0)).unwrap(), pair.far.device_pool(spec(1)).unwrap());
    assert_eq!((near.device(), far.device()), (Some(devices[0].id), Some(devices[1].id)));
    let host = pair.near.pool(PoolSpec::host(2 * MIB).block(4096).label("near")).unwrap();
    let returned = pair.far.pool(PoolSpec::host(2 * MIB).block(4096).label("host")).unwrap();
    host.window().write_from(0, &pattern(2 * MIB, 3)).unwrap();
    let there = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    let crossed: Vec<(u32, u32)> = (0..512).map(|at| (at, 511 - at)).collect();
    for plan in [
        Plan::write(&host, &there("device")),
        Plan::read(&near, &there("device")),
        Plan::write(&near, &there("device")),
        Plan::read(&near, &there("device")),
        Plan::write(&near, &there("host")),
    ] {
        let plan = plan.blocks(&crossed).build().unwrap();
        assert_eq!(pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, 2 * MIB);
    }
    let mut seen = vec![0; 2 << 20];
    returned.window().read_into(0, &mut seen).unwrap();
    let mut expected = pattern(2 * MIB, 3);
    // An odd number of times it was turned round.
    let blocks: Vec<u8> = expected.chunks(4096).rev().flatten().copied().collect();
    expected.copy_from_slice(&blocks);
    assert!(seen == expected);
    // What a program allocated on the second is the second's.
    let memory = Buffer::on(1, MIB).register(&pair.near, "second");
    assert_eq!(memory.device(), Some(devices[1].id));
}

#[test]
fn stand_in_a_session_that_ends_under_copies_leaves_when_they_have_passed() {
    if !on_stand_in("stand_in_a_session_that_ends_under_copies_leaves_when_they_have_passed", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let third = pair.another("third");
    let pool = pair.near.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    third.pool(PoolSpec::host(MIB).block(4096).label("other")).unwrap();
    let other = pair.near.connect(&third.descriptor(), PATIENCE).unwrap();
    let there = Buffer::new(MIB);
    let far = there.register(&pair.far, "device");
    let all = [Span { local: 0, remote: 0, len: MIB }];
    let plan = |peer: &penstock::Peer<_>, label| {
        Plan::read(&pool, &peer.wait_region(label, PATIENCE).unwrap()).extents(&all).build().unwrap()
    };
    let (from_device, from_host) = (plan(&pair.peer, "device"), plan(&other, "other"));
    let card = Card::of_this_process();
    let given = card.hold();
    let transfer = pair.peer.submit(&from_device, Submit::new().within(PATIENCE)).unwrap();
    given.wait_for_more();
    assert!(!pair.peer.disconnect(Duration::from_millis(100)), "the session has not left");
    assert_eq!(transfer.wait().unwrap_err().cause, Cause::PeerClosed);
    // The worker goes on meanwhile, and what the card writes is not let go of.
    let begun = Instant::now();
    assert_eq!(other.submit(&from_host, Submit::new()).unwrap().wait().unwrap().bytes, MIB);
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(!pool.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    assert!(!far.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    card.go_on();
    assert!(pair.peer.disconnect(PATIENCE));
    assert!(pool.revoke(&[(0, MIB)], PATIENCE).unwrap().is_quiesced());
    assert!(far.revoke(&[(0, MIB)], PATIENCE).unwrap().is_quiesced());
}

#[test]
fn stand_in_an_engine_that_closes_under_copies_answers_by_its_deadline_and_lets_go_later() {
    if !on_stand_in("stand_in_an_engine_that_closes_under_copies_answers_by_its_deadline_and_lets_go_later", "") {
        return;
    }
    let pair = Pair::start(|config| config);
    let pool = pair.near.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let there = Buffer::new(MIB);
    let far = there.register(&pair.far, "device");
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let all = [Span { local: 0, remote: 0, len: MIB }];
    let plan = Plan::write(&pool, &region).extents(&all).build().unwrap();
    let card = Card::of_this_process();
    let given = card.hold();
    let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    given.wait_for_more();
    let begun = Instant::now();
    let held = pair.near.close(Duration::from_millis(200));
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert!(!held.is_empty() && held.iter().all(|held| !held.is_released()));
    assert!(transfer.wait().is_err());
    let quiesce = far.revoke(&[(0, MIB)], Duration::from_millis(100)).unwrap();
    assert!(!quiesce.is_quiesced(), "the device still writes what the peer has registered");
    card.go_on();
    let end = Instant::now() + PATIENCE;
    while !held.iter().all(|held| held.is_released()) {
        assert!(Instant::now() < end, "it is let go of once the copies have passed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(far.revoke(&[(0, MIB)], PATIENCE).unwrap().is_quiesced());
}
