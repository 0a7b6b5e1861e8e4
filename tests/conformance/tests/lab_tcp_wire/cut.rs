//! Links that go down, holes that swallow everything, and hosts that vanish without a word.

use std::time::Duration;

use penstock::Cause;
use penstock::config::TransportName;
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::gauge::measured;
use penstock_conformance::stage::PATIENCE;
use penstock_wire::{Direction, Side};

use super::wired::alone;
use super::wired::breaks::{break_every_way, survive_break};
use super::wired::guest::{call, guest};
use super::wired::hosts::{Hosted, setting};

const BYTES: u64 = 32 << 20;
/// A session with the one who came back, from its call on.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once() {
    let Some(_alone) = alone("a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once") else { return };
    break_every_way(setting(TransportName::Tcp));
}

#[test]
fn a_short_break_is_survived_and_no_byte_is_wrong() {
    let Some(_alone) = alone("a_short_break_is_survived_and_no_byte_is_wrong") else { return };
    survive_break(setting(TransportName::Tcp), Duration::from_millis(700), Duration::from_secs(5));
}

#[test]
fn who_vanished_without_a_word_is_replaced_when_its_name_comes_back() {
    let Some(_alone) = alone("who_vanished_without_a_word_is_replaced_when_its_name_comes_back") else { return };
    // So long a heartbeat that nothing but the newcomer can end the old session.
    let mut hosted = Hosted::new(setting(TransportName::Tcp), "both delay=1ms", 1500, BYTES, Duration::from_secs(60));
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
    let mut old = guest(hosted, hosted.spec(Side::B, "twin"), BYTES, 3);
    let (_, peer) = call(hosted, &mut old, "twin");
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
    let mut heir = guest(hosted, hosted.spec(Side::B, "twin"), BYTES, 3);
    let (took, peer) = call(hosted, &mut heir, "twin");
    assert_eq!(old.ended(), Some(Cause::PeerLost), "the old session is over when the new one stands");
    assert_ne!(peer.epoch(), old.epoch());
    assert!(peer.ping(PATIENCE).is_ok());
    assert_eq!(heir.ask(Command::Stop), Reply::Done);
    took
}
