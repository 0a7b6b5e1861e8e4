//! A plan that is submitted again and again costs no allocation, in no thread of the process.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use penstock::config::{ProcessVmChoice, Progress, TcpIo, TransportName};
use penstock::{
    Cause, Engine, HostMemory, LocalRegion, NoteId, Notified, Peer, Plan, PoolSpec, RemoteRegion, Rights, Submit,
    SystemEnv,
};
use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId, Span, Timestamp};
use penstock_datagram::connection::ConnectionSettings;
use penstock_datagram::initiator::{MoveRequest, OpKind, ProtocolViolation};
use penstock_datagram::wire::{MemoryRequest, NotifyHead};
use penstock_datagram::{ConnectionKeys, DatagramConnection, LentPiece, LocalSide, OutgoingOp, Piece};
use penstock_faults::bystanders::{RECEIVER_BYTES, RECEIVER_POOL};
use penstock_faults::child::{Child, to_word};
use penstock_faults::folder::Folder;
use penstock_faults::pair::{PATIENCE, config, connect, submit, turn_until};
use penstock_transport::{CounterRef, Note};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
/// Until every slot, queue and buffer has been used.
const WARM_ROUNDS: u64 = 200;
const ROUNDS: u64 = 400;
/// Transfers under way at the same time.
const DEPTH: usize = 4;
/// Transfers that an engine may have at most.
const IN_FLIGHT: usize = 16;
/// Submissions that are measured in one case.
const SUBMITTED: u64 = ROUNDS * DEPTH as u64;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU64 = AtomicU64::new(0);
/// Bytes of the last allocation that was counted: a trace of who made it.
static LAST_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of what all threads ask of it.
struct Counting;

impl Counting {
    fn count(bytes: usize) {
        if IS_COUNTING.load(Ordering::Relaxed) {
            COUNTED.fetch_add(1, Ordering::Relaxed);
            LAST_BYTES.store(bytes, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged, which keeps the contract; counting
// touches only atomics and allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller keeps alloc's contract, which is the system's own.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator above, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count(bytes);
        // SAFETY: `at` came from the system's allocator above, with this layout.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs this with the count on or off, and sets it back.
fn counting<R>(on: bool, body: impl FnOnce() -> R) -> R {
    let before = IS_COUNTING.swap(on, Ordering::SeqCst);
    let result = body();
    IS_COUNTING.store(before, Ordering::SeqCst);
    result
}

/// What is asked for with each submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Nothing,
    Counter,
    Note,
}

/// Uses every slot once: each keeps a buffer for the payloads of its transfers. Answers how many
/// transfers that took.
fn use_all_slots(peer: &Peer<SystemEnv>, plan: &Plan, how: Submit<'_>) -> u64 {
    let held: Vec<_> = (0..2 * IN_FLIGHT).map_while(|_| peer.submit(plan, how).ok()).collect();
    for transfer in &held {
        transfer.wait().expect("nobody stops it");
    }
    held.len() as u64
}

/// What was measured.
struct Measured {
    /// Of all threads, while transfers were submitted and waited for.
    allocations: u64,
    /// Transfers, those of the warm-up included.
    transfers: u64,
}

/// Submits several at a time and waits for all, many times. `after` runs after each round and is not
/// counted.
fn measure(plan: &Plan, peer: &Peer<SystemEnv>, ask: Ask, mut after: impl FnMut()) -> Measured {
    let arrivals = (ask == Ask::Counter).then(|| peer.counter("arrivals").expect("the peer has this counter"));
    let how = match (ask, arrivals) {
        (Ask::Note, _) => Submit::new().notify(NoteId(7), b"layer 3 of request 4711 is there, all of it"),
        (_, Some(arrivals)) => Submit::new().count(arrivals),
        _ => Submit::new(),
    };
    let expected = if ask == Ask::Nothing { Notified::NotAsked } else { Notified::Yes };
    let round = || {
        let transfers: [_; DEPTH] = std::array::from_fn(|_| submit(peer, plan, how));
        for transfer in transfers {
            let done = transfer.wait().expect("nobody stops it");
            assert_eq!((done.bytes, done.notified), (plan.bytes(), expected));
        }
    };
    let first = use_all_slots(peer, plan, how);
    for _ in 0..WARM_ROUNDS {
        after();
        round();
    }
    after();
    COUNTED.store(0, Ordering::Relaxed);
    let_threads_end();
    counting(true, || {
        for _ in 0..ROUNDS {
            round();
            counting(false, &mut after);
        }
    });
    let transfers = first + (WARM_ROUNDS + ROUNDS) * DEPTH as u64;
    Measured { allocations: COUNTED.load(Ordering::Relaxed), transfers }
}

/// A thread that closes what the peer has passed begins and ends by itself.
fn let_threads_end() {
    let threads = || std::fs::read_dir("/proc/self/task").expect("the process has threads").count();
    let mut before = 0;
    while before != threads() {
        before = threads();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A plan of one unit, one of several, and one that reads.
fn plans(near: &LocalRegion<SystemEnv>, far: &RemoteRegion<SystemEnv>) -> [(&'static str, Plan); 3] {
    let few: Vec<(u32, u32)> = (0..8).map(|block| (block, 15 - block)).collect();
    let many: Vec<(u32, u32)> = (0..128).map(|block| (block, 127 - block)).collect();
    let built = |plan: penstock::PlanBuilder<'_>, pairs| {
        plan.blocks(pairs).block_bytes(4096).build().expect("the blocks lie inside both pools")
    };
    [
        ("one unit", built(Plan::write(near, far), &few)),
        ("several units", built(Plan::write(near, far), &many)),
        ("several units, read", built(Plan::read(near, far), &many)),
    ]
}

fn pool(engine: &Engine) -> LocalRegion<SystemEnv> {
    let spec = PoolSpec::host(RECEIVER_BYTES).block(4096).label(RECEIVER_POOL).rights(Rights::READ_WRITE);
    LocalRegion::clone(&engine.pool(spec).expect("there is memory for a small pool"))
}

/// How the other side's memory is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A pool in the same process.
    Local,
    /// A pool, mapped.
    Mapped,
    /// Memory that Penstock did not allocate, copied by the kernel.
    ProcessVm,
    /// The same, moved by its owner.
    Bounce,
    /// A pool, over a byte stream between two sockets.
    Tcp(TcpIo),
}

impl Way {
    /// How often it is looked again. A channel makes a place for an operation when more are under way there than
    /// ever before, which is the threads' doing: however long it takes, there are no more than the window has. And where
    /// engines have threads, those may still be busy with the last words of the session's beginning. What a submission
    /// allocates is seen in each look.
    fn more_looks(self, (progress, _): Mode) -> u32 {
        match (self, progress) {
            (Self::Tcp(_), _) => 4,
            (_, Progress::Inline) => 0,
            _ => 1,
        }
    }
}

/// Memory that Penstock did not allocate.
fn caller_memory(engine: &Engine) -> LocalRegion<SystemEnv> {
    let memory = HostMemory::from_vec(vec![0; RECEIVER_BYTES as usize]).expect("it is not empty");
    engine.register(memory, RECEIVER_POOL, Rights::READ_WRITE).expect("a fresh engine has room for a region")
}

fn start(folder: &Folder, name: &str, way: Way, (progress, workers): Mode) -> Engine {
    let (transport, process_vm) = match way {
        Way::Local => (TransportName::Local, ProcessVmChoice::Auto),
        Way::Mapped | Way::ProcessVm => (TransportName::Shm, ProcessVmChoice::Auto),
        Way::Bounce => (TransportName::Shm, ProcessVmChoice::Off),
        Way::Tcp(_) => (TransportName::Tcp, ProcessVmChoice::Auto),
    };
    let config = config(folder.path(), name, transport, progress).process_vm(process_vm);
    let config = match way {
        // What the control loops say to each other now and then is no part of a submission.
        Way::Tcp(io) => config.tcp_io(io).heartbeat(Duration::from_secs(600)),
        _ => config,
    };
    let config = config.transfers_in_flight(IN_FLIGHT);
    let config = if progress.is_threaded() { config.workers(workers) } else { config };
    Engine::start(config).expect("an engine starts in a fresh folder")
}

type Mode = (Progress, usize);

struct Verdict {
    cases: u32,
    failures: Vec<String>,
}

impl Verdict {
    fn judge(&mut self, what: &str, &Measured { allocations, .. }: &Measured) {
        self.cases += 1;
        eprintln!("{what}: {allocations} allocations in {SUBMITTED} submissions");
        if allocations > 0 {
            let last = LAST_BYTES.load(Ordering::Relaxed);
            self.failures.push(format!("{what}: {allocations} in {SUBMITTED} submissions, the last of {last} bytes"));
        }
    }
}

/// Both engines in this process, so that what the peer's threads allocate is counted as well.
fn in_one_process(way: Way, mode: Mode, verdict: &mut Verdict) {
    let label = format!("{way:?}, {}, {} workers", mode.0, mode.1);
    let word = match way {
        Way::Tcp(io) => format!("Tcp-{io}"),
        _ => format!("{way:?}"),
    };
    let folder = Folder::new(&format!("allocations-{word}-{}-{}", mode.0, mode.1));
    let target = start(&folder, "target", way, mode);
    let source = start(&folder, "source", way, mode);
    let of_caller = matches!(way, Way::ProcessVm | Way::Bounce);
    let far = if of_caller { caller_memory(&target) } else { pool(&target) };
    let near = pool(&source);
    let arrivals = far.counter("arrivals").expect("a fresh engine has room for a counter");
    let peer = connect(&source, &target);
    assert!(turn_until(&[&source, &target], || peer.counter("arrivals").is_some()));
    let remote = peer.region(RECEIVER_POOL).expect("it was there before the peers met");
    let mut told = 0;
    for (name, plan) in plans(&near, &remote) {
        for ask in [Ask::Nothing, Ask::Counter] {
            let mut measured = measure(&plan, &peer, ask, || {});
            let mut transfers = measured.transfers;
            for _ in 0..way.more_looks(mode) {
                if measured.allocations == 0 {
                    break;
                }
                measured = measure(&plan, &peer, ask, || {});
                transfers += measured.transfers;
            }
            verdict.judge(&format!("{label}, {name}, {ask:?}"), &measured);
            told += if ask == Ask::Counter { transfers } else { 0 };
        }
        if mode.0 == Progress::Inline {
            // The receiver allocates a notification's bytes, but not while the sender works.
            let mut notes = Vec::new();
            let measured = measure(&plan, &peer, Ask::Note, || {
                target.progress_all().expect("this thread made the engine");
                target.notifications(&mut notes);
                notes.clear();
            });
            verdict.judge(&format!("{label}, {name}, Note"), &measured);
        }
    }
    assert_eq!(arrivals.value(), told, "each transfer is counted, once");
    assert!(turn_until(&[&source, &target], || source.transfers_held() == 0));
}

/// The receiver in another process: what it allocates for a notification is its own affair.
fn to_another_process(mode: Mode, verdict: &mut Verdict) {
    let folder = Folder::new(&format!("allocations-apart-{}", mode.0));
    let engine = start(&folder, "sender", Way::Mapped, mode);
    let near = pool(&engine);
    let path = folder.path().to_str().expect("folders for temporary files have plain names");
    let mut child = Child::start(CHILD, &["receive", path, &to_word(&engine.descriptor())]);
    assert!(turn_until(&[&engine], || !engine.peers().is_empty()), "the receiver did not come");
    let peer = engine.peers().remove(0);
    assert_eq!(child.answer(PATIENCE), "ready");
    let remote = peer.wait_region(RECEIVER_POOL, PATIENCE).expect("the receiver has this pool");
    let mut sent = 0;
    for (name, plan) in plans(&near, &remote) {
        let mut measured = measure(&plan, &peer, Ask::Note, || {});
        sent += measured.transfers;
        for _ in 0..Way::Mapped.more_looks(mode) {
            if measured.allocations == 0 {
                break;
            }
            measured = measure(&plan, &peer, Ask::Note, || {});
            sent += measured.transfers;
        }
        verdict.judge(&format!("shm to another process, {}, {name}, Note", mode.0), &measured);
    }
    let all_arrived = turn_until(&[&engine], || {
        child.order("count");
        child.answer(PATIENCE).parse::<u64>().expect("the child counts") == sent
    });
    assert!(all_arrived, "each notification arrives, once");
    child.finish();
}

/// Memory that takes and gives everything.
struct Plain(Vec<u8>);

impl Plain {
    fn copy(&mut self, pieces: impl Iterator<Item = (u64, u64)>, bytes: &[u8]) {
        let mut at = 0;
        for (offset, len) in pieces {
            let (offset, len) = (offset as usize, len as usize);
            self.0[offset..offset + len].copy_from_slice(&bytes[at..at + len]);
            at += len;
        }
    }

    fn give(&self, pieces: &[Piece], into: &mut [u8]) {
        let mut at = 0;
        for piece in pieces {
            let (offset, len) = (piece.offset as usize, piece.len as usize);
            into[at..at + len].copy_from_slice(&self.0[offset..offset + len]);
            at += len;
        }
    }
}

impl LocalSide for Plain {
    fn gather(&mut self, _: OutgoingOp, pieces: &[Piece], into: &mut [u8]) -> Result<(), Cause> {
        self.give(pieces, into);
        Ok(())
    }

    fn lend(&mut self, _: OutgoingOp, pieces: &[Piece], lent: &mut Vec<LentPiece>, _: bool) -> Result<(), Cause> {
        lent.extend(pieces.iter().map(|piece| LentPiece { address: piece.offset, len: piece.len.into() }));
        Ok(())
    }

    fn land(&mut self, _: u64, pieces: &[Piece], bytes: &[u8]) -> Result<(), Cause> {
        self.copy(pieces.iter().map(|piece| (piece.offset, u64::from(piece.len))), bytes);
        Ok(())
    }

    fn place(&mut self, request: &MemoryRequest<'_>, bytes: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation> {
        self.copy(request.extents.iter(), bytes);
        Ok(Ok(()))
    }

    fn open_read(&mut self, _: u64, _: &MemoryRequest<'_>) -> Result<Result<(), Cause>, ProtocolViolation> {
        Ok(Ok(()))
    }

    fn close_read(&mut self, _: u64) {}

    fn notify(&mut self, _: Option<CounterRef>, _: Option<Note<'_>>) -> Result<bool, ProtocolViolation> {
        Ok(true)
    }

    fn on_note_credit(&mut self, _: u64) -> Result<(), ProtocolViolation> {
        Ok(())
    }

    fn on_revision(&mut self, _: u64) {}

    fn revision(&self) -> u64 {
        0
    }
}

/// Writes, reads and notifications of the protocol over packets, of which every tenth is lost.
fn over_packets(verdict: &mut Verdict) {
    const FRAME: usize = 1472;
    let settings = |index: u64| ConnectionSettings {
        frame_bytes: FRAME,
        checksums: true,
        pads: true,
        patience: PATIENCE,
        local_connection: index,
        remote_connection: 1 - index,
    };
    let mut now = Timestamp::default() + Duration::from_secs(1);
    let mut ends = [0, 1].map(|index: u64| {
        let halves = [[1; 32], [2; 32]];
        let keys = ConnectionKeys::derive(&halves[index as usize], &halves[1 - index as usize], index, 1 - index);
        (DatagramConnection::new(settings(index), keys, now), Plain(vec![1; 1 << 20]))
    });
    let spans: Vec<Span> = (0..64).map(|span| Span { local: span * 2048, remote: span * 4096, len: 1024 }).collect();
    let key = RegionKey { region: RegionId(1), generation: Generation(1) };
    let (mut frame, mut posted, mut ended, mut packets) = (vec![0; FRAME], 0_u64, 0_u64, 0_u64);
    let mut turns = |count: u64| {
        while ended < count {
            while posted < count && ends[0].0.has_room() {
                posted += 1;
                let what = MoveRequest { completion_id: posted, transfer: posted, key, revision: 0, spans: &spans };
                let head = NotifyHead { note: Some((NoteId(1), 100)), ..NotifyHead::default() };
                match posted % 3 {
                    0 => _ = ends[0].0.post(OpKind::Read, &what),
                    1 => _ = ends[0].0.post(OpKind::Write, &what),
                    _ => _ = ends[0].0.notify(posted, posted - 1, head, &[7; 100]),
                }
            }
            now = now + Duration::from_micros(30);
            for from in 0..2 {
                let [one, two] = &mut ends;
                let (sender, receiver) = if from == 0 { (one, two) } else { (two, one) };
                sender.0.set_share(1 << 20);
                sender.0.expire(now).expect("the peer answers");
                while let Some(bytes) = sender.0.transmit(now, frame[..].as_mut().into(), &mut sender.1) {
                    packets += 1;
                    if packets % 10 != 0 {
                        receiver.0.receive(&frame[..bytes], now, &mut receiver.1).expect("it keeps to the protocol");
                    }
                }
                receiver.0.end_burst();
            }
            ended += std::iter::from_fn(|| ends[0].0.pop_ended()).count() as u64;
        }
    };
    turns(2000);
    COUNTED.store(0, Ordering::Relaxed);
    counting(true, || turns(4000));
    verdict.cases += 1;
    if COUNTED.load(Ordering::Relaxed) > 0 {
        let (count, bytes) = (COUNTED.load(Ordering::Relaxed), LAST_BYTES.load(Ordering::Relaxed));
        verdict.failures.push(format!("the protocol over packets: {count}, the last of {bytes} bytes"));
    }
}

/// The count sees every thread, and only while it is on.
fn check_the_count() {
    let allocate = || drop(std::hint::black_box(vec![0_u8; 100]));
    let elsewhere = || std::thread::scope(|scope| scope.spawn(allocate).join().expect("nothing there can fail"));
    COUNTED.store(0, Ordering::Relaxed);
    elsewhere();
    assert_eq!(COUNTED.load(Ordering::Relaxed), 0, "nothing is counted while the count is off");
    counting(true, elsewhere);
    assert!(COUNTED.load(Ordering::Relaxed) > 0, "an allocation of another thread is counted");
}

/// One test: other tests of the process would be counted with it.
#[test]
fn a_submitted_plan_allocates_nothing() {
    check_the_count();
    let mut verdict = Verdict { cases: 0, failures: Vec::new() };
    over_packets(&mut verdict);
    let over_streams = [TcpIo::IoUring, TcpIo::Epoll].map(Way::Tcp);
    for way in [Way::Local, Way::Mapped, Way::ProcessVm, Way::Bounce].into_iter().chain(over_streams) {
        for mode in [(Progress::Inline, 1), (Progress::Adaptive, 1), (Progress::Adaptive, 2)] {
            // Only the owner's own turns move it then: an inline one would need a thread of its own.
            let is_the_owners = matches!(way, Way::Bounce | Way::Tcp(_));
            // Over sockets each case takes seconds; what differs between the two is the same for any number of workers.
            let is_known = way == Way::Tcp(TcpIo::Epoll) && mode.1 > 1;
            if !(is_known || is_the_owners && mode.0 == Progress::Inline) {
                in_one_process(way, mode, &mut verdict);
            }
        }
    }
    for mode in [(Progress::Inline, 1), (Progress::Adaptive, 2)] {
        to_another_process(mode, &mut verdict);
    }
    assert!(verdict.failures.is_empty(), "of {} cases these allocate:\n{}", verdict.cases, verdict.failures.join("\n"));
}
