//! What a peer must not do. Each act goes on for the time that it is given, and is done again and again within it.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use penstock::session::control::{ChunkAck, EndOfData, TransferHead};
use penstock::session::descriptor::EngineDescriptor;
use penstock::session::{ControlMessage, Frame, RegionNews, RegionsAdvertised, Side, TransferId};
use penstock::{Engine, Pages, PoolSpec, Rights};
use penstock_conformance::hostile::{config, connect, descriptor};
use penstock_conformance::pattern::Random;
use penstock_conformance::rogue::{Greeted, Intruder, Rogue, encoded};
use penstock_memory::withheld::Withheld;
use penstock_memory::{PageKind, is_huge_tlb};
use penstock_shm::offer;
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_getfl, fcntl_setfl, ftruncate,
    memfd_create,
};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, Shutdown, shutdown};

/// Before something is done again.
const PAUSE: Duration = Duration::from_millis(50);

/// Gives memory back, and leaves a file as long as it is.
const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

type Act = fn(&str, &Path);

/// The acts by their names; what they are is with each.
const ACTS: [(&str, Act); 13] = [
    ("bells", bells),
    ("mail", mail),
    ("rings", rings),
    ("closing", closing),
    ("floods", floods),
    ("descriptors", descriptors),
    ("probe", probe),
    ("withheld", withheld),
    ("pools", pools),
    ("huge", huge),
    ("hazard", hazard),
    ("words", words),
    ("strangers", strangers),
];

/// Does one of them again and again.
///
/// # Panics
/// If it cannot be done, for then it proves nothing.
pub(crate) fn run(name: &str, victim: &str, folder: &Path, time: Duration) {
    if name == "held" {
        return hold(victim, folder, time);
    }
    let (_, act) = ACTS.iter().find(|(known, _)| *known == name).expect("an act that there is");
    let (begun, mut done) = (Instant::now(), 0);
    while begun.elapsed() < time {
        act(victim, folder);
        done += 1;
        std::thread::sleep(PAUSE);
    }
    assert!(done > 0);
}

fn card(victim: &str) -> EngineDescriptor {
    EngineDescriptor::decode(&descriptor(victim)).expect("the victim's own words")
}

fn greeted(victim: &str) -> Greeted {
    let card = card(victim);
    Rogue::connect(card.socket.as_ref()).greet(&card)
}

fn joined(victim: &str) -> Intruder {
    greeted(victim).join()
}

/// Fills the bells that it was given, makes them block, shuts them, and lets its own block whoever rings.
fn bells(victim: &str, _: &Path) {
    let intruder = joined(victim);
    for bell in &intruder.bells {
        let flags = fcntl_getfl(bell).expect("a socket");
        fcntl_setfl(bell, flags - OFlags::NONBLOCK).expect("a socket");
        while rustix::net::send(bell, &[0; 10_000], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {}
    }
    std::thread::sleep(PAUSE);
    for bell in &intruder.bells {
        shutdown(bell, Shutdown::Both).expect("a socket that is connected");
    }
}

/// Scribbles over everything in the mail: ready bits and counters of all.
fn mail(victim: &str, _: &Path) {
    let intruder = joined(victim);
    let (mailbox, mut random) = (intruder.mailbox.window(), Random::new(7));
    let begun = Instant::now();
    while begun.elapsed() < PAUSE {
        let _ = mailbox.store_u64(random.below(mailbox.len() / 8) * 8, random.number());
        let _ = mailbox.store_u64(random.below(16) * 8, 0);
    }
    intruder.ring();
}

/// Fills rings and slots with noise.
fn rings(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    let mut random = Random::new(9);
    for window in [intruder.rings.window(), intruder.slots.window(), intruder.own.slots.segment().window()] {
        for place in 0..window.len().min(1 << 16) / 8 {
            let _ = window.store_u64(place * 8, random.number());
        }
    }
    intruder.ring();
    intruder.wait_for_the_end();
}

/// Passes descriptors whose last close waits for a minute, and leaves.
fn closing(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (passed, _ends): (Vec<TcpStream>, Vec<TcpStream>) = (0..3)
        .map(|_| {
            let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            near.set_nonblocking(true).expect("a socket");
            while near.write(&[1; 1 << 16]).is_ok() {}
            set_socket_linger(&near, Some(Duration::from_secs(60))).expect("a socket");
            (near, listener.accept().expect("it has connected").0)
        })
        .unzip();
    let fds: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    intruder.rogue.send(&news((0..3).map(|id| region(id, 4096, Some(id as u8)))), &fds);
    drop(passed);
    std::thread::sleep(PAUSE);
    intruder.rogue.say(b"GET / HTTP/1.1");
    std::thread::sleep(PAUSE);
}

/// Announces without end, and asks without end and never reads.
fn floods(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    for first in 0..40 {
        intruder.rogue.send(&news((0..60).map(|id| region(first * 60 + id, 4096, None))), &[]);
    }
    let mut asking = joined(victim);
    for number in 1..20_000 {
        if !asking.rogue.say(&encoded(&Frame::Ping { number }, 0)) {
            break;
        }
    }
}

/// Passes as many descriptors as it may, again and again, and some that no frame has.
fn descriptors(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    let fds: Vec<OwnedFd> =
        (0..60).map(|_| memfd_create("rogue", MemfdFlags::CLOEXEC).expect("a memory file")).collect();
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    for first in 0..20 {
        let frame = news((0..60).map(|id| region(first * 60 + id, 4096, Some(id as u8))));
        intruder.rogue.send(&frame, &fds);
    }
    intruder.rogue.say_with(&encoded(&Frame::Pong { number: 1 }, 0), &fds);
    std::thread::sleep(PAUSE);
}

/// Offers memory to be tried that does not answer.
fn probe(victim: &str, _: &Path) {
    let Some(withheld) = Withheld::new(4096, "lab_hostile: the act `probe`") else { return };
    let greeted = greeted(victim);
    let (mut offering, own) = greeted.honest();
    let place = withheld.base().expose_provenance() as u64;
    offering.blob = offer::blob(penstock::memory::ProbeWords { probe: place, value: 7, scratch: place });
    let intruder = greeted.join_with(&offering, own);
    std::thread::sleep(5 * PAUSE);
    drop(intruder);
    withheld.give();
}

/// An engine whose memory does not answer the kernel.
fn withheld(victim: &str, folder: &Path) {
    const BYTES: usize = 64 << 10;
    let Some(withheld) = Withheld::new(BYTES, "lab_hostile: the act `withheld`") else { return };
    let engine = Engine::start(config(folder, "rogue-withheld", "shm")).expect("it starts");
    let _there = engine.register(withheld.host_memory(), "sink", Rights::READ_WRITE).expect("it is registered");
    let _peer = connect(&engine, "shm", victim);
    std::thread::sleep(40 * PAUSE);
    withheld.give();
    std::thread::sleep(PAUSE);
}

/// Announces pools that are huge and empty, not sealed, or punched full of holes once they are mapped.
fn pools(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    let sealed = |bytes: u64, seals: SealFlags| {
        let fd = memfd_create("rogue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memory file");
        ftruncate(&fd, bytes).expect("its length is its maker's");
        fcntl_add_seals(&fd, seals).expect("it may be sealed");
        fd
    };
    let both = SealFlags::SHRINK | SealFlags::GROW;
    let bytes = [1 << 40, 1 << 30, 64 << 20];
    let fds = [sealed(bytes[0], both), sealed(bytes[1], SealFlags::GROW), sealed(bytes[2], both)];
    let pool = |(id, bytes): (usize, u64)| RegionNews {
        label: "sink".to_owned(),
        path: vec![1, 0],
        ..region(id as u32, bytes, Some(id as u8))
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    for one in bytes.into_iter().enumerate().map(pool) {
        let fd = fds[one.id as usize];
        intruder.rogue.send(&news(std::iter::once(RegionNews { token: Some(0), ..one })), &[fd]);
        std::thread::sleep(5 * PAUSE);
    }
    let _ = fallocate(fds[2], HOLE, 0, bytes[2]);
    std::thread::sleep(5 * PAUSE);
}

/// Is written to in the only huge page that was set aside, and takes it away from there: whoever has it mapped dies of the next access.
fn huge(victim: &str, folder: &Path) {
    const BYTES: u64 = 2 << 20;
    const TRIES: usize = 20;
    let engine = Engine::start(config(folder, "rogue-huge", "shm")).expect("it starts");
    let pool = |label: &str| {
        let spec = PoolSpec::host(BYTES).label(label).pages(Pages::Huge).rights(Rights::READ_WRITE);
        let pool = engine.pool(spec).expect("memory of whatever pages");
        (pool.memory().pages().got == PageKind::HugeTlb).then_some(pool)
    };
    let _written = pool("sink").expect("a huge page that is set aside");
    let opened = |entry: fs::DirEntry| File::options().read(true).write(true).open(entry.path()).ok();
    let files = fs::read_dir("/proc/self/fd").expect("its own descriptors").flatten().filter_map(opened);
    let file = files.into_iter().find(|file| is_huge_tlb(file.as_fd())).expect("the pool's");
    let _peer = connect(&engine, "shm", victim);
    std::thread::sleep(5 * PAUSE);
    let taken = (0..TRIES).find_map(|_| {
        fallocate(&file, HOLE, 0, BYTES).expect("its own file");
        // Unless a write was there before.
        pool("elsewhere")
    });
    assert!(taken.is_some(), "the page cannot be taken away");
    std::thread::sleep(10 * PAUSE);
}

/// Says for ever that it is in the middle of a copy.
fn hazard(victim: &str, _: &Path) {
    let intruder = joined(victim);
    let mut raised = intruder.own.segments.owner_state.hazard(intruder.index_at_peer(), 0);
    raised.enter(0);
    std::thread::sleep(10 * PAUSE);
}

/// Speaks of transfers that nobody knows.
fn words(victim: &str, _: &Path) {
    let mut intruder = joined(victim);
    for number in 0..200_u8 {
        let head =
            TransferHead { transfer: TransferId::from_bytes([number; 16]), side: Side::Source, rank: 9, ranks: 3 };
        let (parts, tokens, legs) = (u64::MAX, u64::MAX, u32::MAX);
        let seal = ControlMessage::EndOfData(EndOfData { head, parts, tokens, legs, rows: Vec::new().into() });
        let ack = ControlMessage::ChunkAck(ChunkAck { op: number.into(), part: 2, code: 3 });
        for said in [seal, ack] {
            intruder.rogue.send(&Frame::Control(said), &[]);
        }
    }
    std::thread::sleep(PAUSE);
}

/// Connects and says nothing, or nonsense.
fn strangers(victim: &str, _: &Path) {
    let card = card(victim);
    let silent: Vec<_> = (0..100).filter_map(|_| UnixStream::connect(&card.socket).ok()).collect();
    let mut random = Random::new(11);
    for _ in 0..20 {
        let Ok(mut stream) = UnixStream::connect(&card.socket) else { break };
        let noise: Vec<u8> = (0..256).map(|_| random.number() as u8).collect();
        // It may be closed by then.
        let _ = stream.write_all(&noise);
    }
    std::thread::sleep(5 * PAUSE);
    drop(silent);
}

/// An engine with a pool that is stopped or killed from outside while bytes go there.
fn hold(victim: &str, folder: &Path, time: Duration) {
    let transport = if std::process::id().is_multiple_of(2) { "shm" } else { "tcp" };
    let engine = Engine::start(config(folder, "rogue-held", transport)).expect("it starts");
    let spec = PoolSpec::host(64 << 20).label("sink").rights(Rights::READ_WRITE);
    let _pool = engine.pool(spec).expect("memory");
    let _peer = connect(&engine, transport, victim);
    std::thread::sleep(time);
}

fn region(id: u32, bytes: u64, token: Option<u8>) -> RegionNews {
    RegionNews {
        id,
        generation: 1,
        label: format!("region {id}"),
        bytes,
        base: 0,
        rights: Rights::READ_WRITE.into(),
        block_bytes: 4096,
        path: vec![7],
        token,
    }
}

fn news(regions: impl Iterator<Item = RegionNews>) -> Frame {
    Frame::Regions(RegionsAdvertised { revision: 0, news: regions.collect() })
}
