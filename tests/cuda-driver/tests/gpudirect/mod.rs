//! Memory of devices that model cards reach by themselves, by the descriptors that the stand-in gives out.

use std::sync::Arc;
use std::time::Duration;

use penstock::config::StagingChoice;
use penstock::device::{Cuda, adopt, order_behind};
use penstock::{Config, LocalRegion, NoteId, Plan, PoolSpec, Rights, Span, Submit, SystemEnv};
use penstock_verbs::model::{ModelAdapter, ModelNetwork, Options};

use crate::MIB;
use crate::card::{self, Buffer, ProgramStream};
use crate::engines::{PATIENCE, Pair, pattern};

fn cards() -> [Arc<ModelAdapter>; 2] {
    let network = ModelNetwork::new(Options::default());
    [network.adapter(), network.adapter()]
}

fn as_it_is(config: Config) -> Config {
    config
}

/// Bytes of the buffer that neither begin nor end where a page does.
const INTO: u64 = 5003;
const BYTES: u64 = 3 * MIB - 777;

fn part(buffer: &Buffer, engine: &penstock::Engine<SystemEnv>, label: &str) -> LocalRegion<SystemEnv> {
    // SAFETY: tests keep it for as long as engines use it.
    let memory = unsafe { adopt(buffer.address() + INTO, BYTES) }.unwrap();
    engine.register_device(memory, label, Rights::READ_WRITE).unwrap()
}

fn spans() -> Vec<Span> {
    (0..500).map(|at| Span { local: at * 6000 + 7, remote: (499 - at) * 6000 + 13, len: 1 + at * 8 }).collect()
}

/// Between a device's memory and the host's at either end, and between two devices' memories, in both directions, with a note and a counter behind.
fn all_ways(flushes_each: bool) {
    let pair = Pair::over_cards(&cards(), as_it_is);
    let (here, there) = (Buffer::new(4 * MIB), Buffer::new(4 * MIB));
    let near_device = part(&here, &pair.near, "device");
    let _far_device = part(&there, &pair.far, "device");
    let near = pair.near.pool(PoolSpec::host(4 * MIB).label("near")).unwrap();
    let far = pair.far.pool(PoolSpec::host(4 * MIB).label("host")).unwrap();
    let counter = far.counter("arrived").unwrap();
    let arrived = pair.peer.wait_counter("arrived", PATIENCE).unwrap();
    let region = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    assert_eq!((region("device").access_path(), region("host").access_path()), ("gpudirect (dma-buf)", "verbs"));
    assert!(region("device").access_reason().contains("model0/1 to model1/1"), "{}", region("device").access_reason());
    let (mut rounds, mut moved) = (0_u64, 0);
    for (is_device_near, is_device_far) in [(true, false), (false, true), (true, true)] {
        for is_write in [true, false] {
            rounds += 1;
            let (local_bytes, remote_bytes) = (pattern(4 * MIB, rounds), pattern(4 * MIB, rounds + 40));
            match is_device_near {
                true => here.write(&local_bytes),
                false => near.window().write_from(0, &local_bytes).unwrap(),
            }
            match is_device_far {
                true => there.write(&remote_bytes),
                false => far.window().write_from(0, &remote_bytes).unwrap(),
            }
            let local = if is_device_near { &near_device } else { &*near };
            let remote = region(if is_device_far { "device" } else { "host" });
            let plan = if is_write { Plan::write(local, &remote) } else { Plan::read(local, &remote) };
            let plan = plan.extents(&spans()).build().unwrap();
            let before = card::flushes();
            let submit = Submit::new().within(PATIENCE).count(arrived).notify(NoteId(rounds.into()), b"k");
            let transfer = pair.peer.submit(&plan, submit).unwrap();
            assert!(counter.wait(rounds, PATIENCE));
            // Whoever is told of it sees it: a flush came before.
            assert_eq!(card::flushes() > before, flushes_each);
            let mut notes = Vec::new();
            assert!(pair.far.wait_notification(PATIENCE) && pair.far.notifications(&mut notes) == 1);
            assert_eq!(notes[0].id, NoteId(rounds.into()));
            let (local_at, remote_at) =
                [is_device_near, is_device_far].map(|is_device| if is_device { INTO as usize } else { 0 }).into();
            let (mut expected_near, mut expected_far) = (local_bytes.clone(), remote_bytes.clone());
            for Span { local, remote, len } in spans() {
                let (local, remote, len) = (local as usize + local_at, remote as usize + remote_at, len as usize);
                let (local, remote) = (local..local + len, remote..remote + len);
                match is_write {
                    true => expected_far[remote].copy_from_slice(&local_bytes[local]),
                    false => expected_near[local].copy_from_slice(&remote_bytes[remote]),
                }
            }
            let host = |window: &penstock::Window| {
                let mut bytes = vec![0; 4 * MIB as usize];
                window.read_into(0, &mut bytes).unwrap();
                bytes
            };
            let case = format!("device near: {is_device_near}, far: {is_device_far}, write: {is_write}");
            let seen = if is_device_far { there.read() } else { host(far.window()) };
            assert!(seen == expected_far, "{case}: the far side");
            moved += transfer.wait().unwrap().bytes;
            let seen = if is_device_near { here.read() } else { host(near.window()) };
            assert!(seen == expected_near, "{case}: the near side");
        }
    }
    assert_eq!(moved, 6 * spans().iter().map(|span| span.len).sum::<u64>());
    assert!(card::has_sync_memops(here.address()) && card::has_sync_memops(there.address()));
    assert_eq!(card::forbidden(), "", "nothing of this waits for the device, or uses what is its caller's");
}

pub(crate) fn all_ways_in_order() {
    all_ways(false);
}

pub(crate) fn all_ways_flushed() {
    all_ways(true);
}

/// Pools of a device are of memory that was mapped by itself.
pub(crate) fn pools() {
    let pair = Pair::over_cards(&cards(), as_it_is);
    let device = Cuda::start().unwrap().devices().unwrap()[0].id;
    let spec = || PoolSpec::device(device, 2 * MIB).block(4096).label("pool");
    let (near, _far) = (pair.near.device_pool(spec()).unwrap(), pair.far.device_pool(spec()).unwrap());
    let host = pair.near.pool(PoolSpec::host(2 * MIB).block(4096).label("near")).unwrap();
    let returned = pair.far.pool(PoolSpec::host(2 * MIB).block(4096).label("host")).unwrap();
    let region = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    assert_eq!(region("pool").access_path(), "gpudirect (dma-buf)");
    host.window().write_from(0, &pattern(2 * MIB, 3)).unwrap();
    let crossed: Vec<(u32, u32)> = (0..512).map(|at| (at, 511 - at)).collect();
    for plan in
        [Plan::write(&host, &region("pool")), Plan::read(&near, &region("pool")), Plan::write(&near, &region("host"))]
    {
        let plan = plan.blocks(&crossed).build().unwrap();
        assert_eq!(pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, 2 * MIB);
    }
    let mut seen = vec![0; 2 * MIB as usize];
    returned.window().read_into(0, &mut seen).unwrap();
    // Three times turned round.
    let expected: Vec<u8> = pattern(2 * MIB, 3).chunks(4096).rev().flatten().copied().collect();
    assert!(seen == expected);
    assert!(near.deregister(PATIENCE).unwrap().is_quiesced());
}

/// What cards do not reach is staged at that end, and why is said; where it may not be, a plan is refused with the same words.
fn staged(cards: &[Arc<ModelAdapter>; 2], words: &str) {
    for is_off in [false, true] {
        let pair = Pair::over_cards(cards, |mut config| {
            config.device.staging = if is_off { StagingChoice::Off } else { StagingChoice::Auto };
            config
        });
        let (here, there) = (Buffer::new(4 * MIB), Buffer::new(4 * MIB));
        let (near_device, _far_device) = (part(&here, &pair.near, "device"), part(&there, &pair.far, "device"));
        let near = pair.near.pool(PoolSpec::host(MIB).label("near")).unwrap();
        pair.far.pool(PoolSpec::host(MIB).label("host")).unwrap();
        let region = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
        let few = [Span { local: 0, remote: 0, len: 4096 }];
        let device = region("device");
        if is_off {
            assert_eq!(device.access_path(), "none");
            let error = Plan::write(&near_device, &region("host")).extents(&few).build().err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        } else {
            assert_eq!(device.access_path(), "staged");
            assert!(device.access_reason().contains(words), "{}", device.access_reason());
            here.write(&pattern(4 * MIB, 1));
            there.write(&pattern(4 * MIB, 2));
            let plan = Plan::write(&near_device, &device).extents(&spans()).build().unwrap();
            let moved = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            assert_eq!(moved.bytes, spans().iter().map(|span| span.len).sum::<u64>());
            let (from, mut expected) = (pattern(4 * MIB, 1), pattern(4 * MIB, 2));
            for Span { local, remote, len } in spans() {
                let (local, remote) = ((local + INTO) as usize, (remote + INTO) as usize);
                expected[remote..remote + len as usize].copy_from_slice(&from[local..local + len as usize]);
            }
            assert!(there.read() == expected);
        }
        let host = Plan::write(&near, &region("host")).extents(&few).build().unwrap();
        assert_eq!(pair.peer.submit(&host, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, 4096);
    }
}

/// One end's card reaches its device's memory, and the other end's does not.
pub(crate) fn at_one_end() {
    for refuses in [0, 1] {
        let cards = cards();
        cards[refuses].refuse_dma_bufs();
        let pair = Pair::over_cards(&cards, as_it_is);
        let (here, there) = (Buffer::new(4 * MIB), Buffer::new(4 * MIB));
        let (near, _far) = (part(&here, &pair.near, "device"), part(&there, &pair.far, "device"));
        let far = pair.peer.wait_region("device", PATIENCE).unwrap();
        assert_eq!(far.access_path(), ["gpudirect (dma-buf)", "staged"][refuses]);
        for is_write in [true, false] {
            here.write(&pattern(4 * MIB, 1));
            there.write(&pattern(4 * MIB, 2));
            let plan = if is_write { Plan::write(&near, &far) } else { Plan::read(&near, &far) };
            let plan = plan.extents(&spans()).build().unwrap();
            pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            let (mut near_bytes, mut far_bytes) = (pattern(4 * MIB, 1), pattern(4 * MIB, 2));
            for Span { local, remote, len } in spans() {
                let (local, remote) = ((local + INTO) as usize, (remote + INTO) as usize);
                let (local, remote) = (local..local + len as usize, remote..remote + len as usize);
                match is_write {
                    true => far_bytes[remote].copy_from_slice(&near_bytes[local]),
                    false => near_bytes[local].copy_from_slice(&far_bytes[remote]),
                }
            }
            assert!(here.read() == near_bytes && there.read() == far_bytes, "{refuses} refuses, write: {is_write}");
        }
    }
}

pub(crate) fn by_cards() {
    let cards = cards();
    cards.iter().for_each(|card| card.refuse_dma_bufs());
    staged(&cards, ": its driver takes no dma-buf");
}

pub(crate) fn by_the_driver() {
    staged(&cards(), "the driver gives out no dma-buf of GPU-");
}

pub(crate) fn by_the_device() {
    staged(&cards(), "cannot be reached by RDMA cards (GPUDirect RDMA)");
}

pub(crate) fn without_a_flush() {
    staged(&cards(), "does not say when it sees what RDMA cards have written");
}

/// A card waits for no stream: the post does until the streams have passed that copies were ordered behind.
pub(crate) fn behind_a_stream() {
    let pair = Pair::over_cards(&cards(), as_it_is);
    let here = Buffer::new(MIB);
    let local = here.register(&pair.near, "device");
    let far = pair.far.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let region = pair.peer.wait_region("host", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    let device = Cuda::start().unwrap().devices().unwrap()[0].id;
    let stream = ProgramStream::on(0);
    for round in 1..4_u64 {
        here.write(&pattern(MIB, 100));
        stream.hold();
        stream.fill(&here, &pattern(MIB, round));
        // SAFETY: the stand-in looks handles up.
        unsafe { order_behind(device, stream.handle()) }.unwrap();
        let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        assert!(transfer.poll().is_none(), "what is behind the stream waits for it");
        stream.release();
        assert_eq!(transfer.wait().unwrap().bytes, MIB);
        let mut seen = vec![0; MIB as usize];
        far.window().read_into(0, &mut seen).unwrap();
        assert!(seen == pattern(MIB, round), "round {round}");
    }
}
