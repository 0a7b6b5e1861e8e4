//! Two engines of one process, over every transport and in every mode.

use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock::{Armed, Config, Engine, NoteId, Notified, Plan, PoolSpec, Rights, Span, Submit};

const SOON: Duration = Duration::from_secs(5);

fn config(
    folder: &std::path::Path,
    name: &str,
    transport: TransportName,
    progress: Progress,
    workers: usize,
) -> Config {
    let config = Config::default().named(name).directory(folder).transports([transport]).progress(progress);
    if progress.is_threaded() { config.workers(workers) } else { config }
}

pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new(label: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-test-{}-{label}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let left: Vec<_> = std::fs::read_dir(&self.0).unwrap().collect();
        let _ = std::fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "engines leave nothing behind: {left:?}");
        }
    }
}

fn round_trip(label: &str, transport: TransportName, progress: Progress, workers: usize) {
    let folder = Folder::new(label);
    let target = Engine::start(config(&folder.0, "target", transport, progress, workers)).unwrap();
    let source = Engine::start(config(&folder.0, "source", transport, progress, workers)).unwrap();
    let spec = || PoolSpec::host(4 << 20).block(4096).label("kv").rights(Rights::READ_WRITE);
    let far = target.pool(spec()).unwrap();
    let near = source.pool(spec()).unwrap();
    let counter = far.counter("arrivals").unwrap();

    let connecting = source.connect_begin(&target.descriptor()).unwrap();
    let peer = loop {
        target.progress_all().unwrap();
        source.progress_all().unwrap();
        if let Some(answer) = connecting.poll() {
            break answer.unwrap();
        }
    };
    assert_eq!(peer.transport(), transport.as_str());
    let remote = peer.region("kv").unwrap();
    let turn = || {
        target.progress_all().unwrap();
        source.progress_all().unwrap();
    };

    for block in 0..1024u64 {
        near.window().fill(block * 4096, 4096, block as u8).unwrap();
    }
    let pairs: Vec<(u32, u32)> = (0..1000).map(|block| (block, 1023 - block)).collect();
    let plan = Plan::write(&near, &remote).blocks(&pairs).build().unwrap();
    let arrivals = peer.wait_counter("arrivals", SOON).unwrap();
    for round in 0..3u64 {
        let how = Submit::new().notify(NoteId(7), b"layer 3").count(arrivals);
        let transfer = peer.submit(&plan, how).unwrap();
        let done = transfer.wait().unwrap();
        assert_eq!((done.bytes, done.notified), (1000 * 4096, Notified::Yes));
        turn();
        assert!(target.wait_notification(SOON));
        let mut notes = Vec::new();
        assert_eq!(target.notifications(&mut notes), 1);
        assert_eq!((notes[0].id, notes[0].payload.as_slice()), (NoteId(7), b"layer 3".as_slice()));
        assert_eq!(counter.value(), round + 1);
    }
    let mut found = vec![0; 4096];
    for &(near, far_block) in &pairs {
        far.window().read_into(u64::from(far_block) * 4096, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == near as u8));
    }

    let read = Plan::read(&near, &remote).extents(&[Span { local: 3, remote: 5, len: 4096 * 20 }]).build().unwrap();
    assert_eq!(peer.submit(&read, Submit::new()).unwrap().wait().unwrap().bytes, 4096 * 20);

    let long = vec![9; 4096];
    let noted = peer.notify(NoteId(8), &long, Submit::new()).unwrap();
    noted.wait().unwrap();
    drop(noted);
    turn();
    assert!(target.wait_notification(SOON));
    let mut notes = Vec::new();
    target.notifications(&mut notes);
    assert_eq!(notes[0].payload, long);

    assert!(far.revoke(&[(30 * 4096, 1)], SOON).unwrap().is_quiesced());
    turn();
    let stale = peer.submit(&plan, Submit::new()).unwrap().wait().unwrap_err();
    assert_eq!(stale.cause, penstock::Cause::RevokedByPeer);
    let again = Plan::write(&near, &remote).blocks(&pairs).build().unwrap();
    peer.submit(&again, Submit::new()).unwrap().wait().unwrap();

    assert!(far.deregister(SOON).unwrap().is_quiesced());
    turn();
    let gone = peer.submit(&again, Submit::new()).unwrap().wait().unwrap_err();
    assert_eq!(gone.cause, penstock::Cause::RevokedByPeer);
    assert!(Plan::write(&near, &remote).blocks(&pairs).build().is_err());
    while source.arm().unwrap() == Armed::Busy {}
    turn_until(|| source.progress_all().unwrap(), || source.transfers_held() == 0);
    drop(source);
    turn_until(|| target.progress_all().unwrap(), || target.peers().is_empty());
}

fn turn_until(mut turn: impl FnMut() -> bool, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        turn();
        assert!(start.elapsed() < SOON);
    }
}

#[test]
fn local_threaded() {
    round_trip("lt", TransportName::Local, Progress::Adaptive, 2);
}

#[test]
fn local_inline() {
    round_trip("li", TransportName::Local, Progress::Inline, 1);
}

#[test]
fn shm_threaded() {
    round_trip("st", TransportName::Shm, Progress::Adaptive, 2);
}

#[test]
fn shm_inline() {
    round_trip("si", TransportName::Shm, Progress::Inline, 1);
}
