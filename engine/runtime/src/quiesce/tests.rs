use penstock_core::Span;
use penstock_core::config::{Progress, TransportName};
use penstock_memory::{HostMemory, PoolSpec};

use super::*;

#[test]
fn ranges_are_merged_and_many_become_one() {
    assert_eq!(coalesce(&[(8, 8), (0, 8), (32, 4), (34, 1)]), [(0, 16), (32, 4)]);
    assert_eq!(coalesce(&[]), []);
    let scattered: Vec<(u64, u64)> = (0..1000).map(|block| (block * 10, 5)).collect();
    assert_eq!(coalesce(&scattered), [(0, 9995)]);
}

#[test]
fn a_proof_that_comes_while_blocks_are_renewed_releases_them_only_afterwards() {
    let held = Quarantined(Arc::new(Entry {
        label: "a pool".to_owned(),
        region: None,
        extents: vec![(0, 4096)],
        since: Timestamp::NEVER,
        witnesses: [QuiesceCondition::Hands(Box::new(|| true))].into(),
        released: AtomicBool::new(false),
        kept: Mutex::default(),
        maker: Maker::this_process(),
    }));
    let renewing = held.renewing().expect("nobody has asked for the proof yet");
    assert!(!held.is_released(), "what is written into the blocks now would be lost");
    drop(renewing);
    assert!(held.is_released());
    assert!(held.renewing().is_none(), "blocks that may be in use again are not renewed");
}

/// Copies of the kernel keep a lane busy without a gap: it says that older ones have ended once something was withdrawn.
#[test]
fn whoever_watches_a_peer_that_always_copies_hears_that_older_copies_have_ended() {
    const BYTES: u64 = 16 << 20;
    const PATIENCE: Duration = Duration::from_secs(20);
    let folder = std::env::temp_dir().join(format!("penstock-watch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [near, far] = ["near", "far"].map(|name| {
        let config = crate::Config::default().named(name).directory(&folder).transports([TransportName::Shm]);
        crate::Engine::start(config.progress(Progress::Adaptive).workers(1)).unwrap()
    });
    let memory = || HostMemory::from_vec(vec![0; BYTES as usize]).unwrap();
    let _there = far.register(memory(), "kv", Rights::READ_WRITE).unwrap();
    let here = near.register(memory(), "kv", Rights::NONE).unwrap();
    let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
    let remote = peer.wait_region("kv", PATIENCE).unwrap();
    assert_eq!(remote.access_path(), "process_vm");
    let whole = [Span { local: 0, remote: 0, len: BYTES }];
    let plan = crate::Plan::write(&here, &remote).extents(&whole).build().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let submit = || peer.submit(&plan, crate::Submit::new().within(PATIENCE)).unwrap();
            let mut last = submit();
            while !is_over.load(Ordering::Relaxed) {
                std::mem::replace(&mut last, submit()).wait().unwrap();
            }
            last.wait().unwrap();
        });
        let began = std::time::Instant::now();
        let writer = far.engine.shared.peers.possible_writers().pop().unwrap();
        let stop_if = |so| {
            is_over.fetch_or(so, Ordering::Relaxed);
            so
        };
        let revision = || far.engine.shared.segments.owner_state.view().revision();
        for _ in 0..5 {
            let (mut witnesses, before) = (Vec::new(), revision());
            while witnesses.is_empty() {
                witnesses = far.engine.shared.witnesses_of(&writer);
                assert!(!stop_if(began.elapsed() > PATIENCE), "nobody copies");
            }
            assert!(!stop_if(revision() == before), "without a gap these copies would never be the older ones");
            while !have_settled(&mut witnesses) {
                assert!(!stop_if(began.elapsed() > PATIENCE), "copies that have ended long ago are waited for");
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop((near, far));
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn blocks_that_are_kept_are_nobodys_until_the_proof_comes() {
    let pool = penstock_memory::Pool::create(PoolSpec::host(4 * 4096).block(4096)).unwrap();
    let is_quiet = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_quiet);
    let held = Quarantined(Arc::new(Entry {
        label: "a pool".to_owned(),
        region: None,
        extents: Vec::new(),
        since: Timestamp::NEVER,
        witnesses: [QuiesceCondition::Hands(Box::new(move || seen.load(Ordering::Relaxed)))].into(),
        released: AtomicBool::new(false),
        kept: Mutex::default(),
        maker: Maker::this_process(),
    }));
    held.keep(pool.blocks().take(2).unwrap());
    assert!(!held.is_released());
    assert_eq!(pool.blocks().free(), 2);
    is_quiet.store(true, Ordering::Relaxed);
    assert!(held.is_released());
    assert_eq!(pool.blocks().free(), 4);
    held.keep(pool.blocks().take(1).unwrap());
    assert_eq!(pool.blocks().free(), 4, "nothing is kept for a proof that has come");
}
