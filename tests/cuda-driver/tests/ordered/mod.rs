//! Copies behind what a program's stream has.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::device::{Cuda, CudaError, order_behind};
use penstock::memory::DeviceId;
use penstock::{Cause, Engine, Plan, PoolSpec, Span, Submit, Transfer};

use crate::MIB;
use crate::card::{self, Buffer, Card, ProgramStream};
use crate::counted;
use crate::engines::{PATIENCE, Pair, pattern};

const ALL: [Span; 1] = [Span { local: 0, remote: 0, len: MIB }];
/// Longer than a copy takes that nothing holds.
const A_WHILE: Duration = Duration::from_millis(60);

fn device(number: usize) -> DeviceId {
    Cuda::start().unwrap().devices().unwrap()[number].id
}

pub(crate) fn order(number: usize, stream: &ProgramStream) -> Result<(), CudaError> {
    // SAFETY: the stand-in looks handles up.
    unsafe { order_behind(device(number), stream.handle()) }
}

fn assert_held(transfers: &[Transfer<penstock::SystemEnv>]) {
    std::thread::sleep(A_WHILE);
    assert!(transfers.iter().all(|transfer| transfer.poll().is_none()), "what is behind the stream waits for it");
}

/// To the device, within it and back: not a byte moves before the stream goes on, and then those that it has made.
pub(crate) fn all_ways() {
    let pair = Pair::start(|config| config);
    let (here, there, other) = (Buffer::new(MIB), Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    let near = pair.near.pool(PoolSpec::host(MIB).block(4096).label("near")).unwrap();
    there.register(&pair.far, "there");
    other.register(&pair.far, "other");
    let far = pair.far.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let seen = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
    let plans = [
        Plan::write(&local, &seen("there")).extents(&ALL).build().unwrap(),
        Plan::write(&local, &seen("host")).extents(&ALL).build().unwrap(),
        Plan::write(&near, &seen("other")).extents(&ALL).build().unwrap(),
    ];
    let stream = ProgramStream::on(0);
    for round in 1..6_u64 {
        for buffer in [&here, &there, &other] {
            buffer.write(&pattern(MIB, 100));
        }
        far.window().fill(0, MIB, 0).unwrap();
        near.window().write_from(0, &pattern(MIB, round + 50)).unwrap();
        stream.hold();
        stream.fill(&here, &pattern(MIB, round));
        order(0, &stream).unwrap();
        let transfers = plans.each_ref().map(|plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap());
        assert_held(&transfers);
        assert!(there.peek() == pattern(MIB, 100) && other.peek() == pattern(MIB, 100), "round {round}");
        let mut bytes = vec![1; MIB as usize];
        far.window().read_into(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "round {round}");
        stream.release();
        transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB));
        far.window().read_into(0, &mut bytes).unwrap();
        assert!(bytes == pattern(MIB, round) && there.read() == bytes, "round {round}: what the stream made has moved");
        assert!(other.read() == pattern(MIB, round + 50));
    }
    assert_eq!(card::forbidden(), "", "nothing waits for the program's stream but streams");
    assert!(!card::has_context());
}

/// Asked for before an engine has used the device, and for streams that are made later; several add up.
pub(crate) fn before_the_first_plan() {
    let here = Buffer::new(MIB);
    let (first, second) = (ProgramStream::on(0), ProgramStream::on(0));
    here.write(&pattern(MIB, 1));
    first.hold();
    second.hold();
    second.fill(&here, &pattern(MIB, 2));
    order(0, &first).unwrap();
    order(0, &second).unwrap();
    let pair = Pair::start(|config| config);
    let local = here.register(&pair.near, "here");
    let far = pair.far.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let region = pair.peer.wait_region("host", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let transfers = [pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap()];
    assert_held(&transfers);
    second.release();
    assert_held(&transfers);
    first.release();
    transfers[0].wait().unwrap();
    let mut bytes = vec![0; MIB as usize];
    far.window().read_into(0, &mut bytes).unwrap();
    assert!(bytes == pattern(MIB, 2));
}

/// Of two devices the other one goes on, but for copies between both.
pub(crate) fn other_devices() {
    let pair = Pair::start(|config| config);
    let buffers = [0, 1, 1].map(|number| Buffer::on(number, MIB));
    let near = buffers[1].register(&pair.near, "near");
    buffers[0].register(&pair.far, "first");
    buffers[2].register(&pair.far, "second");
    let plan = |label| {
        let region = pair.peer.wait_region(label, PATIENCE).unwrap();
        Plan::write(&near, &region).extents(&ALL).build().unwrap()
    };
    let (between, within) = (plan("first"), plan("second"));
    let stream = ProgramStream::on(0);
    for round in 1..4 {
        buffers[1].write(&pattern(MIB, round));
        stream.hold();
        order(0, &stream).unwrap();
        let submit = |plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap();
        assert_eq!(submit(&within).wait().unwrap().bytes, MIB, "nothing of it is on the first device");
        let transfers = [submit(&between)];
        assert_held(&transfers);
        stream.release();
        transfers[0].wait().unwrap();
        assert!(buffers[0].read() == pattern(MIB, round) && buffers[2].read() == pattern(MIB, round));
    }
}

/// What a device that does not go on has keeps copies of another one waiting no more once something was taken back than before.
pub(crate) fn the_other_device_after_a_withdrawal() {
    let pairs = [TransportName::Shm, TransportName::Tcp].map(|transport| Pair::over(transport, |config| config));
    for pair in [Pair::start(|config| config)].into_iter().chain(pairs) {
        let buffers = [0, 1].map(|number| Buffer::on(number, MIB));
        let near = [0, 1].map(|number| buffers[number].register(&pair.near, "near"));
        let idle = pair.near.pool(PoolSpec::host(MIB).label("idle")).unwrap();
        let far = pair.far.pool(PoolSpec::host(MIB).block(4096).label("far")).unwrap();
        far.window().fill(0, MIB, 1).unwrap();
        let region = pair.peer.wait_region("far", PATIENCE).unwrap();
        for (number, is_write) in [(0, true), (1, false), (2, true), (3, false)] {
            let plan = |local| {
                let plan = if is_write { Plan::write(local, &region) } else { Plan::read(local, &region) };
                plan.extents(&ALL).build().unwrap()
            };
            let plans = near.each_ref().map(plan);
            let submit = |plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap();
            submit(&plans[0]).wait().unwrap();
            let stream = ProgramStream::on(0);
            stream.hold();
            order(0, &stream).unwrap();
            let before = submit(&plans[0]);
            assert_held(std::slice::from_ref(&before));
            assert!(idle.revoke(&[(0, 4096)], PATIENCE).unwrap().is_quiesced());
            let held = [before, submit(&plans[0])];
            let ended = submit(&plans[1]).wait();
            assert!(ended.is_ok(), "{}, {number}, of the other device: {ended:?}", pair.peer.transport());
            assert_held(&held);
            stream.release();
            held.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB));
        }
    }
}

/// Nor where a caller's own memory is staged for both: slots are nobody's to take back, and their region none of the other engine's.
pub(crate) fn the_other_device_of_a_callers_memory() {
    for devices_are_near in [false, true] {
        let pair = Pair::start(|config| config);
        let buffers = [0, 1].map(|number| Buffer::on(number, MIB));
        let (with_devices, other) = if devices_are_near { (&pair.near, &pair.far) } else { (&pair.far, &pair.near) };
        let labels = ["first", "second"];
        let own = [0, 1].map(|number| buffers[number].register(with_devices, labels[number]));
        let memory = penstock::HostMemory::from_vec(pattern(MIB, 1)).unwrap();
        let callers = other.register(memory, "callers", penstock::Rights::READ_WRITE).unwrap();
        let far = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
        let plans = [0, 1].map(|number| {
            let (local, remote) = if devices_are_near { (&own[number], "callers") } else { (&callers, labels[number]) };
            Plan::write(local, &far(remote)).extents(&ALL).build().unwrap()
        });
        let submit = |plan| pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap();
        // As many as there are regions of slots, which have numbers, too.
        let pool = |engine: &Engine<_>| engine.pool(PoolSpec::host(4096).label("pool")).unwrap();
        let pools: Vec<_> = (0..16).flat_map(|_| [pool(&pair.near), pool(&pair.far)]).collect();
        let stream = ProgramStream::on(0);
        stream.hold();
        order(0, &stream).unwrap();
        let held = [submit(&plans[0])];
        assert_held(&held);
        let is_quiet = |pool: &penstock::Pool<_>| pool.revoke(&[(0, 4096)], A_WHILE).unwrap().is_quiesced();
        assert!(pools.iter().all(is_quiet), "nobody copies there, near: {devices_are_near}");
        let ended = submit(&plans[1]).wait();
        assert!(ended.is_ok(), "of the other device, near: {devices_are_near}: {ended:?}");
        assert_held(&held);
        stream.release();
        assert_eq!(held[0].wait().unwrap().bytes, MIB);
    }
}

pub(crate) fn refusals() {
    let pair = Pair::start(|config| config);
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    there.register(&pair.far, "there");
    let region = pair.peer.wait_region("there", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let (gone, second, captured) = (ProgramStream::on(0), ProgramStream::on(1), ProgramStream::on(0));
    gone.destroy();
    for stream in [&gone, &second] {
        let error = order(0, stream).unwrap_err();
        assert_eq!(error, CudaError::NoSuchStream { device: device(0), stream: stream.handle() });
        assert!(error.to_string().contains("has no stream 0x5"), "{error}");
    }
    // SAFETY: the stand-in looks handles up.
    unsafe {
        let error = order_behind(device(0), 0x4711).unwrap_err();
        assert_eq!(error, CudaError::NoSuchStream { device: device(0), stream: 0x4711 });
        let unknown = DeviceId([7; 16]);
        assert_eq!(order_behind(unknown, 1), Err(CudaError::NoSuchDevice { device: unknown }));
    }
    captured.capture(true);
    assert_eq!(order(0, &captured), Err(CudaError::Captured { stream: captured.handle() }));
    // The capture is whole, and what was refused holds nothing up.
    captured.capture(false);
    order(0, &captured).unwrap();
    order(1, &second).unwrap();
    assert_eq!(pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, MIB);
    assert_eq!(card::forbidden(), "");
    assert!(!card::has_context(), "the caller has what it had current");
}

pub(crate) fn default_streams() {
    let pair = Pair::start(|config| config);
    let here = Buffer::new(MIB);
    let local = here.register(&pair.near, "here");
    pair.far.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let region = pair.peer.wait_region("host", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let submit = || pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    for name in [1, 2] {
        let stream = ProgramStream::of(0, name);
        stream.hold();
        // Of another thread it is another stream.
        if name == 2 {
            std::thread::scope(|scope| scope.spawn(|| order(0, &ProgramStream::of(0, name)).unwrap()).join()).unwrap();
            submit().wait().unwrap();
        }
        order(0, &ProgramStream::of(0, if name == 1 { 0 } else { name })).unwrap();
        let transfers = [submit()];
        assert_held(&transfers);
        stream.release();
        transfers[0].wait().unwrap();
    }
    assert_eq!(card::forbidden(), "");
}

/// A stream that does not go on holds memory, and no caller beyond its deadline.
pub(crate) fn deadlines() {
    let pair = Pair::start(|config| config);
    let there = Buffer::new(MIB);
    let far = there.register(&pair.far, "device");
    let pool = pair.near.pool(PoolSpec::host(MIB).block(4096).label("host")).unwrap();
    let region = pair.peer.wait_region("device", PATIENCE).unwrap();
    let plan = Plan::write(&pool, &region).extents(&ALL).build().unwrap();
    let stream = ProgramStream::on(0);
    stream.hold();
    order(0, &stream).unwrap();
    let transfer = pair.peer.submit(&plan, Submit::new().within(Duration::from_millis(50))).unwrap();
    assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded);
    assert!(!pool.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    assert!(!far.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced());
    stream.release();
    assert!(pool.revoke(&[(0, MIB)], PATIENCE).unwrap().is_quiesced());
    assert!(far.revoke(&[(0, MIB)], PATIENCE).unwrap().is_quiesced());
}

pub(crate) fn lost() {
    let pair = Pair::start(|config| config);
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    there.register(&pair.far, "there");
    let region = pair.peer.wait_region("there", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let stream = ProgramStream::on(0);
    stream.hold();
    order(0, &stream).unwrap();
    let transfers = [pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap()];
    assert_held(&transfers);
    let begun = Instant::now();
    let card = Card::of_this_process();
    card.hold();
    card.lose();
    assert_eq!(transfers[0].wait().unwrap_err().cause, Cause::DeviceFailed);
    assert!(matches!(order(0, &stream), Err(CudaError::Call { .. })));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    std::mem::forget((here, there)); // Such a card frees nothing.
}

/// Over a transport that moves host memory.
pub(crate) fn staged() {
    let pair = Pair::over(TransportName::Shm, |config| config);
    let here = Buffer::new(MIB);
    here.write(&pattern(MIB, 1));
    let local = here.register(&pair.near, "here");
    let far = pair.far.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let region = pair.peer.wait_region("host", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let stream = ProgramStream::on(0);
    stream.hold();
    stream.fill(&here, &pattern(MIB, 2));
    order(0, &stream).unwrap();
    let transfers = [pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap()];
    assert_held(&transfers);
    stream.release();
    transfers[0].wait().unwrap();
    let mut bytes = vec![0; MIB as usize];
    far.window().read_into(0, &mut bytes).unwrap();
    assert!(bytes == pattern(MIB, 2));
}

pub(crate) fn without_allocations() {
    let pair = Pair::start(|config| config);
    let (here, there) = (Buffer::new(MIB), Buffer::new(MIB));
    let local = here.register(&pair.near, "here");
    there.register(&pair.far, "there");
    let region = pair.peer.wait_region("there", PATIENCE).unwrap();
    let plan = Plan::write(&local, &region).extents(&ALL).build().unwrap();
    let (stream, device) = (ProgramStream::on(0), device(0));
    let round = || {
        // SAFETY: the stream is there.
        unsafe { order_behind(device, stream.handle()) }.unwrap();
        assert_eq!(pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, MIB);
    };
    (0..100).for_each(|_| round());
    counted::assert_none_in_the_end("behind a stream", round);
}
