//! What a peer can do to the bells of an engine that sleeps, and to its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::session::descriptor::EngineDescriptor;
use penstock::{Armed, Engine, NoteId, Peer, Submit, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Greeted, Intruder, Rogue};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SendFlags, Shutdown, shutdown};

/// What a message to somebody who sleeps may take, whatever a third one does: 100 ms, and room for a loaded machine.
const SOON: Duration = Duration::from_millis(400);

/// An engine, an honest peer of it and what leads to a rogue.
struct Three {
    victim: Engine<SystemEnv>,
    _honest: Engine<SystemEnv>,
    peer: Peer<SystemEnv>,
    _folder: Folder,
}

fn three(progress: Progress) -> Three {
    let folder = Folder::fresh();
    let setting = Setting::adaptive(TransportName::Shm, 1, Place::Here);
    let start = |name: &str, progress| {
        let config = setting.spec(folder.path(), name).config();
        Engine::start(config.progress(progress).transports([TransportName::Shm])).unwrap()
    };
    let victim = start("victim", progress);
    let honest = start("honest", Progress::Adaptive);
    // Called by the victim: an inline engine serves nobody while it is not turned.
    drop(victim.connect(&honest.descriptor(), PATIENCE).unwrap());
    let begun = Instant::now();
    let peer = loop {
        match honest.peers().into_iter().next() {
            Some(peer) => break peer,
            None => assert!(begun.elapsed() < PATIENCE, "the session stands on both sides"),
        }
        victim.wait_notification(Duration::from_millis(1));
    };
    Three { victim, _honest: honest, peer, _folder: folder }
}

impl Three {
    fn intrude(&self, greet: impl FnOnce(Greeted) -> Intruder + Send + 'static) -> Intruder {
        let card = EngineDescriptor::decode(&self.victim.descriptor()).unwrap();
        let rogue = std::thread::spawn(move || greet(Rogue::connect(card.socket.as_ref()).greet(&card)));
        while !rogue.is_finished() {
            let _ = self.victim.wait_notification(Duration::from_millis(1));
        }
        rogue.join().unwrap()
    }

    /// Messages to a sleeper, each in time.
    fn are_heard_soon(&self, count: u128) {
        let mut taken = Vec::new();
        for note in 0..count {
            self.victim.wait_notification(Duration::from_millis(20)); // It sleeps.
            let begun = Instant::now();
            let said = self.peer.notify(NoteId(note), b"", Submit::new().within(PATIENCE)).unwrap();
            while taken.len() <= note as usize {
                self.victim.wait_notification(SOON);
                self.victim.notifications(&mut taken);
                assert!(begun.elapsed() < SOON, "note {note} took {:?}", begun.elapsed());
            }
            said.wait().unwrap();
        }
    }

    /// The same for who sleeps at the event fd.
    fn is_woken_soon(&self) {
        let mut taken = Vec::new();
        for note in 0..5 {
            let begun = Instant::now();
            let said = self.peer.notify(NoteId(note), b"", Submit::new().within(PATIENCE)).unwrap();
            while taken.len() <= note as usize {
                if self.victim.arm().unwrap() == Armed::Armed {
                    let event_fd = self.victim.event_fd();
                    let within = Timespec::try_from(SOON).unwrap();
                    poll(&mut [PollFd::new(&event_fd, PollFlags::IN)], Some(&within)).unwrap();
                }
                self.victim.wait_notification(Duration::ZERO);
                self.victim.notifications(&mut taken);
                assert!(begun.elapsed() < SOON, "note {note} took {:?}", begun.elapsed());
            }
            said.wait().unwrap();
        }
    }
}

fn make_blocking(socket: BorrowedFd<'_>) {
    let flags = fcntl_getfl(socket).unwrap();
    fcntl_setfl(socket, flags - OFlags::NONBLOCK).unwrap();
}

fn fill(bells: &[OwnedFd]) {
    for bell in bells {
        let large = vec![0; 10_000];
        while rustix::net::send(bell, &large, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {}
    }
}

#[test]
fn what_a_peer_does_to_the_bells_it_was_given_disturbs_nobody() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let three = three(progress);
        let intruder = three.intrude(Greeted::join);
        intruder.bells.iter().for_each(|bell| make_blocking(bell.as_fd()));
        fill(&intruder.bells);
        three.are_heard_soon(5);
        fill(&intruder.bells);
        three.is_woken_soon();
        // It rings without end.
        let (is_over, bells) = (Arc::new(AtomicBool::new(false)), intruder.bells);
        let rings = {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    fill(&bells);
                }
                bells
            })
        };
        three.are_heard_soon(5);
        three.is_woken_soon();
        is_over.store(true, Ordering::Relaxed);
        for bell in rings.join().unwrap() {
            shutdown(&bell, Shutdown::Both).unwrap();
        }
        three.are_heard_soon(5);
        three.is_woken_soon();
    }
}

#[test]
fn descriptors_that_come_with_a_ring_are_refused() {
    let three = three(Progress::Adaptive);
    let intruder = three.intrude(Greeted::join);
    let file = std::fs::File::open("/dev/null").unwrap();
    let borrowed = [file.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&borrowed)));
    let sent = rustix::net::sendmsg(&intruder.bells[1], &[], &mut ancillary, SendFlags::DONTWAIT);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) >= (Some(6), Some(16)) {
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
    }
    three.are_heard_soon(3);
}

#[test]
fn a_peer_whose_own_bells_are_full_and_block_holds_nobody_up() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let three = three(progress);
        let intruder = three.intrude(|greeted| {
            let (offering, own) = greeted.honest();
            for bell in &offering.tokens[4..] {
                make_blocking(bell.as_fd());
                while rustix::net::send(bell, b"", SendFlags::DONTWAIT).is_ok() {}
            }
            // It says that it sleeps, and goes on saying so.
            (0..2).for_each(|bell| own.segments.sleeper(bell).prepare());
            greeted.join_with(&offering, own)
        });
        let begun = Instant::now();
        let to_the_rogue = loop {
            // Its answers may be on their way.
            match three.victim.peers().into_iter().find(|peer| peer.name().as_str() != "honest") {
                Some(peer) => break peer,
                None => assert!(begun.elapsed() < PATIENCE, "it has a session"),
            }
            three.victim.wait_notification(Duration::from_millis(1));
        };
        for note in 0..5 {
            let said = to_the_rogue.notify(NoteId(note), b"", Submit::new().within(PATIENCE)).unwrap();
            assert!(said.wait().is_ok(), "there is room in its ring");
            (0..2).for_each(|bell| intruder.own.segments.sleeper(bell).prepare());
        }
        three.are_heard_soon(5);
    }
}

#[test]
fn ready_bits_that_a_peer_erases_delay_nobody_for_long() {
    for progress in [Progress::Adaptive, Progress::Inline] {
        let three = three(progress);
        // So many that a look at one lane now and then would not do.
        let intruders: Vec<Intruder> = (0..40).map(|_| three.intrude(Greeted::join)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let mailbox = intruders[0].mailbox.window().clone();
        let erases = {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    (0..16).for_each(|word| mailbox.store_u64(word * 8, 0).unwrap());
                }
            })
        };
        three.are_heard_soon(10);
        three.is_woken_soon();
        is_over.store(true, Ordering::Relaxed);
        erases.join().unwrap();
    }
}
