//! Device memory here and host memory there, over transports that move host memory.

use std::time::{Duration, Instant};

use penstock::config::{StagingChoice, TransportName};
use penstock::{
    Cause, Config, Engine, LocalRegion, NoteId, Plan, Pool, PoolSpec, RemoteRegion, Rights, Span, Submit, SystemEnv,
};

use penstock_verbs::model::{ModelNetwork, Options};

use crate::MIB;
use crate::card::{self, Buffer, Card};
use crate::counted;
use crate::engines::{PATIENCE, Pair, pattern};

/// Transports that need nothing but this machine's kernel.
pub(crate) const OVER: [TransportName; 3] = [TransportName::Shm, TransportName::Tcp, TransportName::Datagram];
/// These and model cards, which do not reach memory of devices themselves.
const OVER_ALL: [TransportName; 4] =
    [TransportName::Shm, TransportName::Tcp, TransportName::Datagram, TransportName::Verbs];

/// Where the memory of a side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Host,
}
use Kind::{Device, Host};

/// Memory here and at the peer.
type Kinds = (Kind, Kind);

const KINDS: [Kinds; 3] = [(Device, Host), (Host, Device), (Device, Device)];

pub(crate) enum Side {
    Device(Buffer, LocalRegion<SystemEnv>),
    Host(Pool<SystemEnv>),
}

impl Side {
    pub(crate) fn new(kind: Kind, engine: &Engine<SystemEnv>, label: &str, bytes: u64) -> Self {
        match kind {
            Device => {
                let buffer = Buffer::new(bytes);
                let region = buffer.register(engine, label);
                Self::Device(buffer, region)
            }
            Host => Self::Host(engine.pool(PoolSpec::host(bytes).block(4096).label(label)).unwrap()),
        }
    }

    pub(crate) fn region(&self) -> &LocalRegion<SystemEnv> {
        match self {
            Self::Device(_, region) => region,
            Self::Host(pool) => pool,
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        match self {
            Self::Device(buffer, _) => buffer.write(bytes),
            Self::Host(pool) => pool.window().write_from(0, bytes).unwrap(),
        }
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        match self {
            Self::Device(buffer, _) => buffer.read(),
            Self::Host(pool) => {
                let mut bytes = vec![0; pool.bytes() as usize];
                pool.window().read_into(0, &mut bytes).unwrap();
                bytes
            }
        }
    }
}

/// Two engines over a transport, with memory of these kinds.
struct Stage {
    near: Side,
    far: Side,
    region: RemoteRegion<SystemEnv>,
    bytes: u64,
    /// Ends after its memory is not used any more.
    pair: Pair,
}

impl Stage {
    fn new(transport: TransportName, kinds: Kinds, bytes: u64, configured: impl Fn(Config) -> Config) -> Self {
        let pair = match transport {
            TransportName::Verbs => {
                let network = ModelNetwork::new(Options::default());
                let cards = [network.adapter(), network.adapter()];
                cards.iter().for_each(|card| card.refuse_dma_bufs());
                Pair::over_cards(&cards, configured)
            }
            _ => Pair::over(transport, configured),
        };
        let near = Side::new(kinds.0, &pair.near, "near", bytes);
        let far = Side::new(kinds.1, &pair.far, "far", bytes);
        let region = pair.peer.wait_region("far", PATIENCE).unwrap();
        Self { near, far, region, bytes, pair }
    }

    fn plan(&self, is_write: bool, spans: &[Span]) -> Plan {
        let (near, far) = (self.near.region(), &self.region);
        let plan = if is_write { Plan::write(near, far) } else { Plan::read(near, far) };
        plan.extents(spans).build().unwrap()
    }

    fn whole(&self, is_write: bool) -> Plan {
        self.plan(is_write, &[Span { local: 0, remote: 0, len: self.bytes }])
    }
}

pub(crate) fn few_slots(mut config: Config) -> Config {
    config.device.staging_bytes = 1 << 20;
    config
}

/// So many here and there: lanes of one worker have to do with several of the other side.
fn workers(mut config: Config, [near, far]: [usize; 2]) -> Config {
    config.workers.count = if config.engine.name.as_deref() == Some("near") { near } else { far };
    config
}

pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Scattered and odd spans in both directions, with many slots and with few, a counter that says that all is there, and host memory beside them.
pub(crate) fn both_directions() {
    let spans: Vec<Span> =
        (0..700).map(|at| Span { local: at * 6000 + 7, remote: (699 - at) * 6000 + 13, len: 1 + at * 8 }).collect();
    let moved_bytes: u64 = spans.iter().map(|span| span.len).sum();
    let settings = [
        few_slots as fn(Config) -> Config,
        |config| config,
        |config| workers(config, [1, 3]),
        |config| workers(config, [2, 1]),
    ];
    let each = || KINDS.into_iter().flat_map(|kinds| settings.map(|configured| (kinds, configured)));
    for (transport, (kinds, configured)) in
        OVER_ALL.into_iter().flat_map(|transport| each().map(move |each| (transport, each)))
    {
        let stage = Stage::new(transport, kinds, 8 * MIB, configured);
        let Stage { near, far, .. } = &stage;
        let counter = far.region().counter("arrived").unwrap();
        let arrived = stage.pair.peer.wait_counter("arrived", PATIENCE).unwrap();
        let host = stage.pair.near.pool(PoolSpec::host(MIB).label("near host")).unwrap();
        let beside = stage.pair.far.pool(PoolSpec::host(MIB).label("beside")).unwrap();
        host.window().write_from(0, &pattern(MIB, 77)).unwrap();
        let host = Plan::write(&host, &stage.pair.peer.wait_region("beside", PATIENCE).unwrap());
        let host = host.extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
        let (mut here, mut there) = (pattern(8 * MIB, 1), pattern(8 * MIB, 2));
        near.write(&here);
        far.write(&there);
        for (round, is_write) in [true, false, true].into_iter().enumerate() {
            if !is_write {
                // Elsewhere than where it came from.
                there = pattern(8 * MIB, 3);
                far.write(&there);
            }
            let plan = stage.plan(is_write, &spans);
            let submit = Submit::new().within(PATIENCE).count(arrived).notify(NoteId(round as u128), b"k");
            let transfer = stage.pair.peer.submit(&plan, submit).unwrap();
            let other = stage.pair.peer.submit(&host, Submit::new().within(PATIENCE)).unwrap();
            let case = format!("{transport}, {kinds:?}, write: {is_write}");
            assert!(counter.wait(round as u64 + 1, PATIENCE), "{case}: {:?}", transfer.wait());
            for span in &spans {
                let (near, far) = (span.local as usize, span.remote as usize);
                let (near, far) = (near..near + span.len as usize, far..far + span.len as usize);
                match is_write {
                    true => there[far].copy_from_slice(&here[near]),
                    false => here[near].copy_from_slice(&there[far]),
                }
            }
            assert!(far.read() == there, "{case}: the far side when it was told");
            assert_eq!(transfer.wait().unwrap().bytes, moved_bytes);
            assert!(near.read() == here, "{case}: the near side");
            assert_eq!(other.wait().unwrap().bytes, MIB);
        }
        let mut seen = vec![0; MIB as usize];
        beside.window().read_into(0, &mut seen).unwrap();
        assert!(seen == pattern(MIB, 77));
    }
    assert_eq!(card::forbidden(), "", "nothing of this waits for the device, or uses what is its caller's");
}

/// Within a process: host memory that Penstock has not mapped, at either end, in both directions.
pub(crate) fn host_memory_of_the_callers() {
    let spans: Vec<Span> =
        (0..300).map(|at| Span { local: at * 3000 + 7, remote: (299 - at) * 3000 + 13, len: 1 + at * 9 }).collect();
    for configured in [few_slots as fn(Config) -> Config, |config| config] {
        let pair = Pair::start(configured);
        let own = |seed| penstock::HostMemory::from_vec(pattern(MIB, seed)).unwrap();
        let (near_own, far_own) = (own(1), own(2));
        let windows = [near_own.window().clone(), far_own.window().clone()];
        let (near_buffer, far_buffer) = (Buffer::new(MIB), Buffer::new(MIB));
        let near_host = pair.near.register(near_own, "own", Rights::READ_WRITE).unwrap();
        pair.far.register(far_own, "own", Rights::READ_WRITE).unwrap();
        let near_device = near_buffer.register(&pair.near, "device");
        far_buffer.register(&pair.far, "device");
        let pool = pair.near.pool(PoolSpec::host(MIB).label("pool")).unwrap();
        let region = |label| pair.peer.wait_region(label, PATIENCE).unwrap();
        let seen = |window: &penstock::Window| {
            let mut bytes = vec![0; MIB as usize];
            window.read_into(0, &mut bytes).unwrap();
            bytes
        };
        for round in 0..4 {
            let (is_write, is_host_near) = (round % 2 == 0, round / 2 == 0);
            let (near, far) = (pattern(MIB, 10 + round), pattern(MIB, 20 + round));
            let (local, remote) = match is_host_near {
                true => {
                    windows[0].write_from(0, &near).unwrap();
                    far_buffer.write(&far);
                    (&near_host, region("device"))
                }
                false => {
                    near_buffer.write(&near);
                    windows[1].write_from(0, &far).unwrap();
                    (&near_device, region("own"))
                }
            };
            let plan = if is_write { Plan::write(local, &remote) } else { Plan::read(local, &remote) };
            let plan = plan.extents(&spans).build().unwrap();
            // Beside it a copy that needs no slot.
            let direct =
                Plan::write(&*pool, &region("device")).extents(&[Span { local: 0, remote: MIB - 64, len: 64 }]);
            let direct = pair.peer.submit(&direct.build().unwrap(), Submit::new().within(PATIENCE)).unwrap();
            let moved = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            assert_eq!(moved.bytes, spans.iter().map(|span| span.len).sum::<u64>());
            assert_eq!(direct.wait().unwrap().bytes, 64);
            let (mut expected_near, mut expected_far) = (near.clone(), far.clone());
            for span in &spans {
                let (here, there) = (span.local as usize, span.remote as usize);
                let (here, there) = (here..here + span.len as usize, there..there + span.len as usize);
                match is_write {
                    true => expected_far[there].copy_from_slice(&near[here]),
                    false => expected_near[here].copy_from_slice(&far[there]),
                }
            }
            let (here, mut there) = match is_host_near {
                true => (seen(&windows[0]), far_buffer.read()),
                false => (near_buffer.read(), seen(&windows[1])),
            };
            if is_host_near {
                // What the other copy has put there.
                there[MIB as usize - 64..].copy_from_slice(&far[MIB as usize - 64..]);
            }
            assert!(here == expected_near && there == expected_far, "round {round}");
        }
        // Memory that is taken back between the hops is not written.
        let card = Card::of_this_process();
        let given = card.hold();
        let plan = Plan::read(&near_host, &region("device")).extents(&spans).build().unwrap();
        let transfer = pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
        given.wait_for_more();
        // What a device has of a lane is one thing to whoever waits, the slot or not.
        let _held = near_host.revoke(&[(0, MIB)], Duration::from_millis(20)).unwrap();
        let before = seen(&windows[0]);
        card.go_on();
        assert_eq!(transfer.wait().unwrap_err().cause, Cause::RevokedHere);
        wait_until(|| pair.near.quarantined().is_empty());
        assert!(seen(&windows[0]) == before, "bytes have landed");
    }
    assert_eq!(card::forbidden(), "");
}

/// A transfer that is given up while the device has it: the memory that the device has is withheld until it is done, and nothing else is touched.
pub(crate) fn given_up() {
    for (transport, kinds) in OVER_ALL.into_iter().flat_map(|transport| KINDS.map(|kinds| (transport, kinds))) {
        for is_write in [true, false] {
            let case = format!("{transport}, {kinds:?}, write: {is_write}");
            let stage = Stage::new(transport, kinds, MIB, |config| config);
            let card = Card::of_this_process();
            let plan = stage.whole(is_write);
            stage.near.write(&pattern(MIB, 5));
            stage.far.write(&pattern(MIB, 6));
            stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            stage.near.write(&pattern(MIB, 5));
            stage.far.write(&pattern(MIB, 7));
            card.hold();
            let transfer = stage.pair.peer.submit(&plan, Submit::new().within(Duration::from_millis(80))).unwrap();
            assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded, "{case}");
            // The first device on the way has it.
            let is_held_here = match kinds {
                (Device, Host) => true,
                (Device, Device) => is_write,
                _ => false,
            };
            let (here, there) = (stage.near.region(), stage.far.region());
            let held = here.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap();
            assert_eq!(held.is_quiesced(), !is_held_here, "{case}");
            let back = there.revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap();
            assert_eq!(back.is_quiesced(), is_held_here, "{case}");
            card.go_on();
            wait_until(|| stage.pair.near.quarantined().is_empty() && stage.pair.far.quarantined().is_empty());
            match (is_write, is_held_here) {
                (true, true) => assert!(stage.far.read() == pattern(MIB, 7), "{case}: bytes have landed"),
                (false, _) if kinds.0 == Host => {
                    assert!(stage.near.read() == pattern(MIB, 5), "{case}: bytes have landed")
                }
                _ => {}
            }
        }
    }
}

/// The peer takes its memory back while a device copies what is to go there.
pub(crate) fn withdrawn_there() {
    for (transport, kinds) in OVER_ALL.into_iter().flat_map(|transport| KINDS.map(|kinds| (transport, kinds))) {
        let case = format!("{transport}, {kinds:?}");
        let stage = Stage::new(transport, kinds, MIB, |config| config);
        let card = Card::of_this_process();
        stage.far.write(&pattern(MIB, 8));
        stage.near.write(&pattern(MIB, 9));
        let half = |from| stage.plan(true, &[Span { local: from, remote: from, len: MIB / 2 }]);
        let (gone, kept) = (half(0), half(MIB / 2));
        let given = card.hold();
        let submit = |plan| stage.pair.peer.submit(plan, Submit::new().within(PATIENCE)).unwrap();
        let transfers = (submit(&gone), submit(&kept));
        given.wait_for_more();
        let back = stage.far.region().revoke(&[(0, 4096)], Duration::from_millis(50)).unwrap();
        // From host memory the bytes have come as far as the peer's device.
        assert_eq!(back.is_quiesced(), kinds.0 == Device, "{case}");
        card.go_on();
        let moved = transfers.1.wait().unwrap_or_else(|fault| panic!("{case}: {fault:?}"));
        assert_eq!(moved.bytes, MIB / 2, "{case}");
        wait_until(|| stage.pair.far.quarantined().is_empty());
        let seen = stage.far.read();
        if kinds.0 == Device {
            assert_eq!(transfers.0.wait().unwrap_err().cause, Cause::RevokedByPeer, "{case}");
            assert!(seen[..4096] == pattern(MIB, 8)[..4096], "{case}: bytes landed in memory that was taken back");
        }
        assert!(seen[MIB as usize / 2..] == pattern(MIB, 9)[MIB as usize / 2..], "{case}");
        // A plan that was made before is not begun any more.
        assert_eq!(submit(&gone).wait().unwrap_err().cause, Cause::RevokedByPeer, "{case}");
    }
}

/// The session ends while a device has a part of it: memory is free when the device is done.
pub(crate) fn session_ends() {
    for (transport, kinds) in OVER_ALL.into_iter().flat_map(|transport| KINDS.map(|kinds| (transport, kinds))) {
        for is_write in [true, false] {
            let case = format!("{transport}, {kinds:?}, write: {is_write}");
            let stage = Stage::new(transport, kinds, MIB, |config| config);
            let card = Card::of_this_process();
            let plan = stage.whole(is_write);
            stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            let given = card.hold();
            let transfer = stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
            given.wait_for_more();
            let is_held_here = kinds.0 == Device && (kinds.1 == Host || is_write);
            let left = stage.pair.far.close(Duration::from_millis(500));
            assert_eq!(left.is_empty(), is_held_here, "{case}: {left:?}");
            assert!(transfer.wait().is_err());
            let held = stage.near.region().revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap();
            assert_eq!(held.is_quiesced(), !is_held_here, "{case}");
            card.go_on();
            wait_until(|| stage.pair.near.quarantined().is_empty() && left.iter().all(|held| held.is_released()));
            assert!(stage.pair.near.close(PATIENCE).is_empty());
        }
    }
}

/// A transfer that is cancelled takes nothing of another peer's, though lanes of one worker call their copies the same.
pub(crate) fn cancelled_beside_another_peer() {
    const BYTES: u64 = 4 * MIB;
    let one_worker = |config| workers(config, [1, 1]);
    let stage = Stage::new(TransportName::Shm, (Device, Host), BYTES, one_worker);
    let other = stage.pair.another("another");
    let far = Side::new(Host, &other, "other", BYTES);
    let peer = stage.pair.near.connect(&other.descriptor(), PATIENCE).unwrap();
    let region = peer.wait_region("other", PATIENCE).unwrap();
    let whole = [Span { local: 0, remote: 0, len: BYTES }];
    let beside = Plan::write(stage.near.region(), &region).extents(&whole).build().unwrap();
    let plan = stage.whole(true);
    let card = Card::of_this_process();
    for round in 0..4 {
        let bytes = pattern(BYTES, round);
        stage.near.write(&bytes);
        let given = card.hold();
        let stays = stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
        given.wait_for_more();
        let goes = peer.submit(&beside, Submit::new().within(PATIENCE)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let _ = goes.cancel(Duration::from_millis(20));
        card.go_on();
        let begun = Instant::now();
        assert_eq!(stays.wait().unwrap().bytes, BYTES, "{round}");
        assert!(begun.elapsed() < PATIENCE / 2, "{round}: it waited for its deadline");
        assert!(stage.far.read() == bytes, "{round}");
        // And what was cancelled goes another time, in whole.
        assert_eq!(peer.submit(&beside, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, BYTES);
        assert!(far.read() == bytes, "{round}");
    }
    assert!(stage.near.region().revoke(&[(0, BYTES)], PATIENCE).unwrap().is_quiesced());
}

/// A worker that stages hears its answers though they come by another one's lane, which does not.
pub(crate) fn one_worker_of_two_stages() {
    for transport in OVER {
        let two_and_one = |mut config: Config| {
            let is_near = config.engine.name.as_deref() == Some("near");
            config.workers.count = if is_near { 2 } else { 1 };
            config.device.staging = if is_near { StagingChoice::Off } else { StagingChoice::Auto };
            config
        };
        let stage = Stage::new(transport, (Host, Device), MIB, two_and_one);
        let bytes = pattern(MIB, 3);
        stage.near.write(&bytes);
        let one = stage.plan(true, &[Span { local: 0, remote: 0, len: 4096 }]);
        for turn in 0..5 {
            // What is not staged moves on to the next worker.
            stage.pair.peer.notify(NoteId(7), &[turn], Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
            let began = Instant::now();
            assert_eq!(
                stage.pair.peer.submit(&one, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes,
                4096
            );
            assert!(began.elapsed() < PATIENCE / 2, "{transport}, {turn}");
        }
        assert!(stage.far.read()[..4096] == bytes[..4096], "{transport}");
    }
}

/// A card that is lost ends what it had, and nothing else.
pub(crate) fn lost() {
    let stage = Stage::new(TransportName::Tcp, (Device, Host), MIB, |config| config);
    let near = stage.pair.near.pool(PoolSpec::host(MIB).label("host")).unwrap();
    let host = Plan::write(&near, &stage.region).extents(&[Span { local: 0, remote: 0, len: MIB }]).build().unwrap();
    let plan = stage.whole(true);
    stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
    let card = Card::of_this_process();
    card.hold();
    let transfer = stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    card.lose();
    assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeviceFailed);
    assert_eq!(stage.pair.peer.submit(&host, Submit::new()).unwrap().wait().unwrap().bytes, MIB);
    let again = stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    assert_eq!(again.wait().unwrap_err().cause, Cause::DeviceFailed);
    // It has nothing of other memory, and once anything was taken back it keeps nothing else waiting.
    assert!(near.revoke(&[(0, 4096)], PATIENCE).unwrap().is_quiesced());
    let (begun, plan) = (Instant::now(), stage.whole(true));
    let after = stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
    assert_eq!(after.wait().unwrap_err().cause, Cause::DeviceFailed);
    assert!(begun.elapsed() < PATIENCE / 2, "it ends when it is known, not at its deadline");
    assert!(
        !stage.near.region().revoke(&[(0, MIB)], Duration::from_millis(50)).unwrap().is_quiesced(),
        "who knows what it does"
    );
    // Nothing of a lost card can be given back.
    std::mem::forget(stage.near);
}

/// What is submitted again and again finds all it needs. Between hosts the engines ask now and then whether the other one is there, which allocates.
pub(crate) fn without_allocations() {
    for kinds in KINDS {
        let stage = Stage::new(TransportName::Shm, kinds, 2 * MIB, |config| config);
        let crossed: Vec<Span> =
            (0..256).map(|at| Span { local: at * 8192, remote: (255 - at) * 8192, len: 4096 }).collect();
        let plans = [true, false].map(|is_write| stage.plan(is_write, &crossed));
        let round = || {
            let transfers = plans.each_ref().map(|plan| stage.pair.peer.submit(plan, Submit::new()).unwrap());
            transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB));
        };
        // More at once than later.
        for plan in (0..100).map(|step| &plans[step % 2]) {
            let transfers = [(); 4].map(|()| stage.pair.peer.submit(plan, Submit::new()).unwrap());
            transfers.iter().for_each(|transfer| assert_eq!(transfer.wait().unwrap().bytes, MIB));
        }
        counted::assert_none_in_the_end(&format!("{kinds:?}"), round);
    }
}

/// How each kind of memory of a peer is reached over each transport, and why not better.
pub(crate) fn paths() {
    let host = [
        (TransportName::Shm, "mapped", "a pool"),
        (TransportName::Tcp, "tcp", "the peer is met over the network"),
        (TransportName::Datagram, "datagram", "the peer is met over the network"),
        (TransportName::Verbs, "verbs", "model"),
    ];
    for (transport, name, reason) in host {
        for kind in [Device, Host] {
            let stage = Stage::new(transport, (Host, kind), MIB, |config| config);
            let own = penstock::HostMemory::from_vec(pattern(MIB, 1)).unwrap();
            stage.pair.far.register(own, "own", Rights::READ_WRITE).unwrap();
            stage.pair.far.pool(PoolSpec::host(MIB).label("nothing").rights(Rights::NONE)).unwrap();
            let found = |label| stage.pair.peer.wait_region(label, PATIENCE).unwrap();
            let (path, why) = (stage.region.access_path(), stage.region.access_reason());
            let (expected, words) = match kind {
                Host => (name, reason),
                Device if transport == TransportName::Verbs => ("staged", "takes no dma-buf"),
                Device => ("staged", "this transport moves host memory"),
            };
            assert_eq!(path, expected, "{transport}, {kind:?}");
            assert!(why.contains(words), "{transport}, {kind:?}: {why}");
            let own = found("own").access_path();
            assert!(if transport == TransportName::Shm {
                ["process_vm", "bounce"].contains(&own)
            } else {
                own == name
            });
            assert_eq!(found("nothing").access_path(), "none", "{transport}");
            // Engines' own memory between is nobody's to see.
            let labels: Vec<String> = stage.pair.far.regions().iter().map(|region| region.label().to_owned()).collect();
            assert!(!labels.iter().any(|label| label.contains("staging")), "{labels:?}");
            assert!(stage.pair.peer.regions().iter().all(|region| !region.label().contains("staging")));
        }
    }
}

/// Sessions and registrations that come and go leave nothing behind: descriptors, memory, slots.
pub(crate) fn cycles() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    for transport in OVER_ALL {
        let mut stage = Stage::new(transport, (Host, Host), MIB, few_slots);
        let buffers = [Buffer::new(MIB), Buffer::new(MIB)];
        let spans = [Span { local: 0, remote: 0, len: MIB }];
        let mut cycle = |round: u64| {
            let label = format!("there {round}");
            let (here, there) =
                (buffers[0].register(&stage.pair.near, "here"), buffers[1].register(&stage.pair.far, &label));
            let region = stage.pair.peer.wait_region(&label, PATIENCE).unwrap();
            buffers[0].write(&pattern(MIB, round));
            let plan = Plan::write(&here, &region).extents(&spans).build().unwrap();
            assert_eq!(
                stage.pair.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes,
                MIB
            );
            assert!(buffers[1].read() == pattern(MIB, round), "{transport}, {round}");
            drop(plan);
            assert!(
                here.deregister(PATIENCE).unwrap().is_quiesced() && there.deregister(PATIENCE).unwrap().is_quiesced()
            );
            if round.is_multiple_of(5) {
                stage.pair.peer.disconnect(PATIENCE);
                stage.pair.peer = stage.pair.near.connect(&stage.pair.far.descriptor(), PATIENCE).unwrap();
            }
        };
        (0..50).for_each(&mut cycle);
        let before = (descriptors(), memory());
        (50..250).for_each(&mut cycle);
        wait_until(|| descriptors() <= before.0);
        assert!(memory() < before.1 + 8 * MIB, "{transport}: {} B, and {} B before", memory(), before.1);
    }
}

/// What is not staged is refused when its plan is built, and leaves the session as it is.
pub(crate) fn refusals() {
    for transport in OVER_ALL {
        let off = |mut config: Config| {
            config.device.staging = StagingChoice::Off;
            config
        };
        let stage = Stage::new(transport, (Device, Host), MIB, off);
        let there = Buffer::new(MIB);
        let _there = there.register(&stage.pair.far, "device there");
        let host = stage.pair.near.pool(PoolSpec::host(MIB).label("h")).unwrap();
        let far_device = stage.pair.peer.wait_region("device there", PATIENCE).unwrap();
        assert_eq!(far_device.access_path(), "none", "{transport}");
        let spans = [Span { local: 0, remote: 0, len: 4096 }];
        let refused = Plan::write(&host, &far_device).extents(&spans).build().err().unwrap();
        assert!(refused.to_string().contains("it is memory of a device"), "{transport}: {refused}");
        let refused = Plan::read(stage.near.region(), &stage.region).extents(&spans).build().err().unwrap();
        let words =
            if transport == TransportName::Verbs { "takes no dma-buf" } else { "unless `device.staging` is `off`" };
        assert!(refused.to_string().contains(words), "{transport}: {refused}");
        let plan = Plan::write(&host, &stage.region).extents(&spans).build().unwrap();
        assert_eq!(stage.pair.peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, 4096);
    }
}
