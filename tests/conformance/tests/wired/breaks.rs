//! Links that go down, and holes that swallow everything.

use std::time::{Duration, Instant};

use penstock::{Cause, Submit};
use penstock_conformance::Setting;
use penstock_conformance::gauge::measured;
use penstock_conformance::pattern;
use penstock_conformance::stage::PATIENCE;
use penstock_wire::{Direction, Side};

use super::hosts::Hosted;

const BYTES: u64 = 16 << 20;
const WITHIN: Duration = Duration::from_millis(300);
/// How long after its deadline anything may end.
const LATE: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_millis(1500);
/// A session is had again so soon after the wire is whole.
const HEALED_WITHIN: Duration = Duration::from_secs(1);

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

/// The way breaks in the middle of transfers with a deadline; they end by it. Then the heartbeat ends the session, and
/// when the way is whole again the next one stands soon. Answers how long: transfers, session, reconnect.
fn break_and_mend(setting: Setting, how: Break, seed: u64) -> [Duration; 3] {
    let mut hosted = Hosted::new(setting, "both delay=1ms", 1500, BYTES, HEARTBEAT);
    hosted.moves_all(seed);
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
    hosted.moves_all(seed + 1);
    [late, silent, back]
}

/// Every way to break one: what was under way ends in time, and the next session stands soon.
pub(crate) fn break_every_way(setting: Setting) {
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
            told = break_and_mend(setting, how, 10 * number as u64 + 1);
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

/// All is cut for a while, in the middle of a transfer, which ends well afterwards.
pub(crate) fn survive_break(setting: Setting, broken: Duration, heartbeat: Duration) {
    let mut hosted = Hosted::new(setting, "both delay=1ms,rate=100mbit", 1500, BYTES, heartbeat);
    pattern::fill(hosted.near.window(), 5);
    let transfer = hosted.peer.submit(&hosted.plan(true, BYTES), Submit::new()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    hosted.hosts.cut(Direction::Both).unwrap();
    std::thread::sleep(broken);
    assert!(transfer.poll().is_none());
    hosted.hosts.heal(Direction::Both).unwrap();
    let begun = Instant::now();
    transfer.wait().expect("the session stands");
    eprintln!("cut for {broken:?}: done {:?} after the wire was whole again", begun.elapsed());
    hosted.arrived(5);
    assert_eq!(hosted.peer.ended(), None);
}
