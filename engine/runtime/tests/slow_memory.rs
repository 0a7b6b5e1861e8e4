//! Peers' memory that is long in mapping, or does not answer. By itself, since all that may wait for one process waits together.

#[path = "by_name/ends/mod.rs"]
mod ends;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{InputEvent, Receive, RequestId, Send, Status, TransferId};
use penstock::{
    Cause, Config, Engine, HostMemory, LocalQuiesce, NoteId, Peer, Plan, PoolSpec, Rights, Span, Submit, SystemEnv,
};
use penstock_memory::BlockingCalls;
use penstock_memory::withheld::Withheld;

use crate::ends::{Both, PATIENCE, UUID, assert_bytes, both};

/// Both tests are of one process, whose calls wait for each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_pool_that_is_long_in_mapping_holds_up_who_uses_it_and_nobody_else() {
    let _turn = turn();
    let both = both(TransportName::Shm);
    let Both { source, sink, there, .. } = &both;
    // What maps it waits behind this.
    let (release, held) = mpsc::channel::<()>();
    BlockingCalls::of(std::process::id()).run(move || {
        let _ = held.recv();
    });
    let transfer = TransferId::mint(UUID, 1, 0).unwrap();
    let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(half).unwrap());
    let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
    let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there)).unwrap();
    input.grant(&sink.take(2)).unwrap();
    source.compute(&output, 1, 100);
    let begun = Instant::now();
    let mut answers = 0;
    while begun.elapsed() < Duration::from_millis(300) || answers < 4 {
        there.refresh(PATIENCE).unwrap();
        answers += 1;
        assert!(begun.elapsed() < 2 * PATIENCE, "the control loop has answered {answers} times");
    }
    assert_eq!((input.try_next(), output.poll()), (None, None), "it was mapped where it holds up everybody");
    drop(release);
    let tokens = loop {
        match input.next(PATIENCE).unwrap() {
            InputEvent::Done { tokens } => break tokens,
            InputEvent::Leg { .. } | InputEvent::Layer { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let mut layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, tokens).unwrap() as usize]);
    let [one, other] = &mut layers;
    input.assemble(&mut [one, other], tokens).unwrap();
    output.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((tokens, input.status(), output.status()), (100, Status::Success, Status::Success));
    assert_bytes(1, tokens, &layers);
}

/// An engine and a place for its socket.
fn engine(folder: &Path, name: &str) -> Engine {
    let config = Config::default().named(name).directory(folder).transports([TransportName::Shm]);
    Engine::start(config.progress(Progress::Adaptive).workers(1)).unwrap()
}

#[test]
fn memory_that_does_not_answer_ends_its_own_transfers_and_holds_up_nobody() {
    const BYTES: usize = 64 << 10;
    const DEADLINE: Duration = Duration::from_millis(600);
    let _turn = turn();
    let test = "memory_that_does_not_answer_ends_its_own_transfers_and_holds_up_nobody";
    let Some(withheld) = Withheld::new(BYTES, test) else { return };
    let folder = std::env::temp_dir().join(format!("penstock-slow-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [here, slow, honest] = ["here", "slow", "honest"].map(|name| engine(&folder, name));
    let _withheld = slow.register(withheld.host_memory(), "withheld", Rights::READ_WRITE).unwrap();
    let bytes = HostMemory::from_vec(vec![0; BYTES]).unwrap();
    let quick_window = bytes.window().clone();
    let _quick = slow.register(bytes, "quick", Rights::READ_WRITE).unwrap();
    let pool = || PoolSpec::host(BYTES as u64).label("pool").rights(Rights::READ_WRITE);
    let far = honest.pool(pool()).unwrap();
    let near = |label, fill| {
        let memory = HostMemory::from_vec(vec![fill; BYTES]).unwrap();
        here.register(memory, label, Rights::NONE).unwrap()
    };
    let (used, other, sent) = (near("used", 1), near("other", 2), near("sent", 3));
    let [to_slow, to_honest] = [&slow, &honest].map(|peer| here.connect(&peer.descriptor(), PATIENCE).unwrap());
    let whole = [Span { local: 0, remote: 0, len: BYTES as u64 }];
    let plan = |local, peer: &Peer<SystemEnv>, label| {
        Plan::write(local, &peer.wait_region(label, PATIENCE).unwrap()).extents(&whole).build().unwrap()
    };
    let (stuck, quick) = (plan(&used, &to_slow, "withheld"), plan(&sent, &to_slow, "quick"));
    let honestly = plan(&sent, &to_honest, "pool");
    assert_eq!(to_slow.wait_region("withheld", PATIENCE).unwrap().access_path(), "process_vm");
    let begun = Instant::now();
    let transfer = to_slow.submit(&stuck, Submit::new().within(DEADLINE)).unwrap();
    // Everybody else goes on, in the session and beside it.
    let mut honest_moves = 0;
    while begun.elapsed() < DEADLINE / 2 || honest_moves < 4 {
        let moved = to_honest.submit(&honestly, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
        assert_eq!(moved.bytes, BYTES as u64);
        honest_moves += 1;
    }
    assert!(begun.elapsed() < DEADLINE, "{honest_moves} transfers of an honest peer");
    to_slow.notify(NoteId(1), b"here", Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
    to_slow.refresh(Duration::from_secs(1)).unwrap();
    let fault = transfer.wait().unwrap_err();
    assert_eq!(fault.cause, Cause::DeadlineExceeded, "{fault}");
    assert!(begun.elapsed() < DEADLINE + Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(!transfer.cancel(Duration::ZERO).local.is_quiesced(), "the kernel has its memory");
    // What it does not touch is free; what it touches is not, until it lets go.
    assert!(other.deregister(Duration::from_millis(100)).unwrap().is_quiesced());
    let LocalQuiesce::Quarantined(held) = used.deregister(Duration::from_millis(100)).unwrap() else {
        panic!("the kernel has its memory")
    };
    // Its owner is asked to copy from now on.
    let moved = loop {
        match to_slow.submit(&quick, Submit::new().within(DEADLINE)).unwrap().wait() {
            Ok(moved) => break moved,
            Err(fault) => assert!(begun.elapsed() < PATIENCE, "{fault}"),
        }
    };
    let mut landed = vec![0; BYTES];
    quick_window.read_into(0, &mut landed).unwrap();
    assert_eq!((moved.bytes, landed), (BYTES as u64, vec![3; BYTES]));
    assert!(!held.is_released());
    withheld.give();
    let begun = Instant::now();
    while !held.is_released() {
        assert!(begun.elapsed() < PATIENCE, "it has its memory still");
        std::thread::yield_now();
    }
    let mut honestly = vec![0; BYTES];
    far.window().read_into(0, &mut honestly).unwrap();
    assert_eq!(honestly, vec![3; BYTES]);
    drop((here, slow, honest));
    let _ = std::fs::remove_dir_all(&folder);
}
