//! What one peer may cost: regions and questions without end.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::session::descriptor::EngineDescriptor;
use penstock::session::{Frame, RegionNews, RegionsAdvertised};
use penstock::{Config, Engine, Rights, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Intruder, Rogue, encoded};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting};
use rustix::fs::{MemfdFlags, memfd_create};

fn victim(folder: &Folder, configured: impl FnOnce(Config) -> Config) -> (Engine<SystemEnv>, Intruder) {
    let setting = Setting::adaptive(TransportName::Shm, 1, Place::Here);
    let engine = Engine::start(configured(setting.spec(folder.path(), "victim").config())).unwrap();
    let intruder = joined(&engine);
    (engine, intruder)
}

fn joined(engine: &Engine<SystemEnv>) -> Intruder {
    let card = EngineDescriptor::decode(&engine.descriptor()).unwrap();
    Rogue::connect(card.socket.as_ref()).greet(&card).join()
}

/// Regions with texts as long as they may be.
fn regions(ids: impl Iterator<Item = u32>) -> Frame {
    regions_with(ids, false)
}

/// The same, each with a descriptor if asked for.
fn regions_with(ids: impl Iterator<Item = u32>, has_fds: bool) -> Frame {
    let rights = Rights::READ_WRITE.into();
    let (label, path) = ("x".repeat(128), vec![7; 256]);
    let one = |(place, id): (usize, u32)| RegionNews {
        id,
        generation: 1,
        label: label.clone(),
        bytes: 4096,
        base: 0,
        rights,
        block_bytes: 4096,
        path: path.clone(),
        token: has_fds.then_some(place as u8),
    };
    Frame::Regions(RegionsAdvertised { revision: 0, news: ids.enumerate().map(one).collect() })
}

/// How many descriptors this process has of memory files of this name.
fn descriptors_of(name: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

/// Waits until only the test's own is left: what came with a session is closed in another thread.
fn until_alone(name: &str) {
    let begun = Instant::now();
    while descriptors_of(name) > 1 {
        assert!(begun.elapsed() < PATIENCE, "{} descriptors are open", descriptors_of(name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn regions_without_end_end_their_session() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config.announced_bytes_per_peer(100 << 10));
    // What takes the place of another counts once.
    for _ in 0..20 {
        intruder.rogue.send(&regions(0..100), &[]);
    }
    intruder.answers(1);
    assert_eq!(engine.network_statistics().announced_too_much, 0);
    intruder.rogue.send(&regions(100..120), &[]);
    intruder.wait_for_the_end();
    assert_eq!(engine.network_statistics().announced_too_much, 1);
}

#[test]
fn questions_of_a_peer_that_does_not_read_end_its_session() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config.unsent_bytes(1 << 20));
    let questions: Vec<u8> = (0..1000).flat_map(|number| encoded(&Frame::Ping { number }, 0)).collect();
    let sent = (0..2000).take_while(|_| intruder.rogue.say(&questions)).count();
    assert!(sent < 2000, "it is answered without end");
    assert_eq!(engine.network_statistics().unread, 1);
    assert!(engine.peers().is_empty());
}

#[test]
fn descriptors_of_sessions_that_have_ended_are_nobodys() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config.descriptors(60));
    let name = "penstock-left";
    let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    let fds: Vec<BorrowedFd<'_>> = (0..20).map(|_| file.as_fd()).collect();
    // They stay, and never say that they have left.
    let mut ended = Vec::new();
    for _ in 0..10 {
        intruder.rogue.send(&regions_with(0..20, true), &fds);
        intruder.answers(1);
        intruder.rogue.say(b"GET / HTTP/1.1");
        intruder.wait_for_the_end();
        until_alone(name);
        ended.push(std::mem::replace(&mut intruder, joined(&engine)));
    }
    assert_eq!(engine.network_statistics().regions_without_fds, 0);
}

#[test]
fn descriptors_that_no_frame_has_end_their_session() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config);
    // A file of its own: what other tests of this process open does not count.
    let name = "penstock-passed";
    let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    let fds: Vec<BorrowedFd<'_>> = (0..64).map(|_| file.as_fd()).collect();
    // A frame that goes on for long, with what belongs to 16.
    let long = encoded(&regions(0..400), 64);
    for at in 0..16 {
        intruder.rogue.say_with(&long[at * 40..][..40], &fds);
    }
    intruder.wait_for_the_end();
    assert_eq!(engine.network_statistics().garbled, 1);
    until_alone(name);
}
