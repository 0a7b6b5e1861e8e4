//! Links that go down, holes that swallow everything, and hosts that vanish without a word.

use std::time::{Duration, Instant};

use penstock::{Cause, Rights, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::gauge::measured;
use penstock_conformance::pattern;
use penstock_conformance::remote::Remote;
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_wire::{Direction, Side};

use super::hosts::{Hosted, setting};
use super::{PEER, alone};

const BYTES: u64 = 32 << 20;
const WITHIN: Duration = Duration::from_millis(300);
/// How long after its deadline anything may end.
const LATE: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_millis(1500);
/// A session is had again so soon after the wire is whole.
const HEALED_WITHIN: Duration = Duration::from_secs(1);
/// A session with the one who came back, from its call on.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

/// How a way between two hosts is broken, and mended.
#[derive(Debug, Clone, Copy)]
enum Break {
    Cut(Direction),
    LinkDown(Side),
}

impl Break {
    fn begin(self, hosted: &mut Hosted) {
        match self {
            Self::Cut(direction) => hosted.hosts.cut(direction).unwrap(),
            Self::LinkDown(side) => hosted.hosts.link_down(side).unwrap(),
        }
    }

    fn mend(self, hosted: &mut Hosted) {
        match self {
            Self::Cut(direction) => hosted.hosts.heal(direction).unwrap(),
            Self::LinkDown(side) => hosted.hosts.link_up(side).unwrap(),
        }
    }
}

/// Writes all, and looks at every byte.
fn moves_all(hosted: &Hosted, seed: u64) {
    pattern::fill(hosted.near.window(), seed);
    let plan = hosted.plan(true, BYTES);
    hosted.peer.submit(&plan, Submit::new()).unwrap().wait().expect("the wire is whole");
    let expected = pattern::digests(&pattern::bytes(seed, 0, BYTES as usize));
    pattern::assert_same(&pattern::window_digests(hosted.far.window()), &expected, "there");
}

/// The way breaks in the middle of transfers with a deadline; they end by it. Then the heartbeat ends the session, and
/// when the way is whole again the next one stands soon. Answers how long: transfers, session, reconnect.
fn break_and_mend(how: Break, seed: u64) -> [Duration; 3] {
    let mut hosted = Hosted::new(setting(), "both delay=1ms", 1500, BYTES, HEARTBEAT);
    moves_all(&hosted, seed);
    let begun = Instant::now();
    let deadline = begun + WITHIN;
    let transfers: Vec<_> = [true, false, true, false]
        .map(|is_write| hosted.peer.submit(&hosted.plan(is_write, BYTES), Submit::new().within(WITHIN)).unwrap())
        .into();
    std::thread::sleep(Duration::from_millis(20));
    how.begin(&mut hosted);
    let broken = Instant::now();
    for transfer in &transfers {
        // The first may have been through.
        if let Err(fault) = transfer.wait() {
            assert_eq!(fault.cause, Cause::DeadlineExceeded, "{how:?}: {fault}");
        }
    }
    let late = Instant::now().saturating_duration_since(deadline);
    assert!(hosted.near.revoke(&[(0, BYTES)], Duration::ZERO).unwrap().is_quiesced(), "own memory is never held");
    // Without a deadline worth the name: the session's end is its own.
    let waiting = hosted.peer.submit(&hosted.plan(true, BYTES), Submit::new()).unwrap();
    let fault = waiting.wait().expect_err("nothing passes");
    let silent = broken.elapsed();
    assert_eq!(fault.cause, Cause::PeerLost, "{how:?}: {fault}");
    // Both sides know, a moment after their workers do.
    let until = Instant::now() + PATIENCE;
    let is_known = |hosted: &Hosted| {
        let there = hosted.there.as_ref();
        hosted.peer.ended() == Some(Cause::PeerLost) && there.is_some_and(|there| there.peers().is_empty())
    };
    while !is_known(&hosted) {
        assert!(Instant::now() < until, "{how:?}: {:?} here, and there somebody still waits", hosted.peer.ended());
        std::thread::sleep(Duration::from_millis(1));
    }
    // Attempts in vain, so that whatever remembers failures has some to remember.
    for _ in 0..3 {
        assert!(hosted.engine.connect_address(&hosted.there().to_string(), Duration::from_millis(100)).is_err());
    }
    how.mend(&mut hosted);
    let mended = Instant::now();
    hosted.peer = hosted.engine.reconnect(&hosted.peer, PATIENCE).expect("the wire is whole");
    let back = mended.elapsed();
    moves_all(&hosted, seed + 1);
    [late, silent, back]
}

#[test]
fn a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once() {
    let Some(_alone) = alone("a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once") else { return };
    let breaks = [
        Break::Cut(Direction::Both),
        Break::Cut(Direction::AToB),
        Break::Cut(Direction::BToA),
        Break::LinkDown(Side::A),
        Break::LinkDown(Side::B),
    ];
    for (number, how) in breaks.into_iter().enumerate() {
        let mut told = [Duration::ZERO; 3];
        let late = measured(LATE, || {
            told = break_and_mend(how, 10 * number as u64 + 1);
            told[0]
        });
        let [_, silent, back] = told;
        eprintln!("{how:?}: transfers {late:?} after their deadline, session over after {silent:?}, back {back:?}");
        assert!(late <= LATE, "{how:?}: {late:?}");
        // Where only one direction is cut, the other side's question is still heard after a third of the time, and a twelfth, by which it may be late.
        assert!(silent <= HEARTBEAT + HEARTBEAT / 3 + HEARTBEAT / 12 + 5 * LATE, "{how:?}: {silent:?}");
        assert!(back <= HEALED_WITHIN, "{how:?}: {back:?}");
    }
}

#[test]
fn a_short_break_is_survived_and_no_byte_is_wrong() {
    let Some(_alone) = alone("a_short_break_is_survived_and_no_byte_is_wrong") else { return };
    let mut hosted = Hosted::new(setting(), "both delay=1ms,rate=100mbit", 1500, BYTES, Duration::from_secs(5));
    pattern::fill(hosted.near.window(), 5);
    let transfer = hosted.peer.submit(&hosted.plan(true, BYTES), Submit::new()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    hosted.hosts.cut(Direction::Both).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(transfer.poll().is_none());
    hosted.hosts.heal(Direction::Both).unwrap();
    let begun = Instant::now();
    transfer.wait().expect("the session stands");
    eprintln!("done {:?} after the wire was whole again", begun.elapsed());
    let expected = pattern::digests(&pattern::bytes(5, 0, BYTES as usize));
    pattern::assert_same(&pattern::window_digests(hosted.far.window()), &expected, "there");
    assert_eq!(hosted.peer.ended(), None);
}

/// A process on the other host with an engine of that name.
fn guest(hosted: &Hosted, name: &str) -> Remote {
    let mut remote = Remote::process(hosted.hosts.command(Side::B, PEER));
    let spec = hosted.spec(Side::B, name);
    assert!(matches!(remote.ask(Command::Start(spec.into())), Reply::Started { .. }));
    let (label, rights) = (KV.to_owned(), Rights::READ_WRITE.into());
    assert_eq!(remote.ask(Command::Pool { label, bytes: BYTES, block: 4096, rights, seed: 3 }), Reply::Done);
    remote
}

/// It calls the engine here. Answers how long that took.
fn call(hosted: &Hosted, remote: &mut Remote) -> Duration {
    let begun = Instant::now();
    assert_eq!(remote.ask(Command::Connect { descriptor: hosted.engine.descriptor() }), Reply::Done);
    begun.elapsed()
}

#[test]
fn who_vanished_without_a_word_is_replaced_when_its_name_comes_back() {
    let Some(_alone) = alone("who_vanished_without_a_word_is_replaced_when_its_name_comes_back") else { return };
    // So long a heartbeat that nothing but the newcomer can end the old session.
    let mut hosted = Hosted::new(setting(), "both delay=1ms", 1500, BYTES, Duration::from_secs(60));
    let mut all = Vec::new();
    let mut number = 10;
    for _ in 0..5 {
        all.push(measured(REPLACED_WITHIN, || {
            number += 2;
            vanish_and_come_back(&mut hosted, number)
        }));
    }
    eprintln!("the new session stands so long after its call: {all:?}");
    assert!(all.iter().all(|took| *took <= REPLACED_WITHIN), "{all:?}");
}

fn ip(hosted: &Hosted, line: &str) {
    let status =
        hosted.hosts.command(Side::B, "ip").args(line.split_whitespace()).status().expect("it was there before");
    assert!(status.success(), "ip {line}");
}

/// From now on the other host calls from this address.
fn move_to(hosted: &Hosted, number: u8) {
    ip(hosted, &format!("addr replace 10.77.0.{number}/24 dev wire0"));
    ip(hosted, &format!("route replace 10.77.0.1/32 dev wire0 src 10.77.0.{number}"));
}

/// A host vanishes with its address, so that not even its kernel says a word; what it was comes back from another one.
fn vanish_and_come_back(hosted: &mut Hosted, number: u8) -> Duration {
    move_to(hosted, number);
    let mut old = guest(hosted, "twin");
    call(hosted, &mut old);
    let find = |peer: &penstock_conformance::Peer| peer.name().as_str() == "twin" && peer.ended().is_none();
    let peer = hosted.engine.peers().into_iter().find(find).expect("it has called");
    assert!(peer.ping(PATIENCE).is_ok());
    hosted.hosts.cut(Direction::Both).unwrap();
    old.kill();
    drop(old);
    ip(hosted, &format!("addr del 10.77.0.{number}/24 dev wire0"));
    move_to(hosted, number + 1);
    hosted.hosts.heal(Direction::Both).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(peer.ended(), None, "nobody can know");
    let took = replace(hosted, &peer);
    ip(hosted, &format!("addr del 10.77.0.{}/24 dev wire0", number + 1));
    took
}

fn replace(hosted: &Hosted, old: &penstock_conformance::Peer) -> Duration {
    let mut heir = guest(hosted, "twin");
    let took = call(hosted, &mut heir);
    assert_eq!(old.ended(), Some(Cause::PeerLost), "the old session is over when the new one stands");
    let peers = hosted.engine.peers();
    let peer = peers.iter().find(|peer| peer.name().as_str() == "twin").expect("the new session stands");
    assert_ne!(peer.epoch(), old.epoch());
    assert!(peer.ping(PATIENCE).is_ok());
    assert_eq!(heir.ask(Command::Stop), Reply::Done);
    took
}
