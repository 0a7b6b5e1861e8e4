//! An honest peer beside somebody who sends to the same port what it likes, as fast as it can, and sees the peer's packets.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Plan, PoolSpec, Rights, Span, Submit};
use penstock_conformance::folder::Folder;
use penstock_conformance::setting::Tuning;
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::{Engine, Peer, Pool, pattern};

use super::injector::{BURST, Injected, Injector};
use super::wired::alone;
use super::wired::hosts::setting;

const BYTES: u64 = 4 << 20;
const GUARD_BYTES: u64 = 1 << 20;
const GUARD_SEED: u64 = 99;
/// What a frame is over an MTU of 1,500.
const FRAME_BYTES: usize = 1472;
const SLICE: Duration = Duration::from_millis(1500);
/// Pairs of slices: aimed at the victim, and elsewhere.
const PAIRS: usize = 5;

/// An engine that is attacked, and an honest peer of it.
struct Arena {
    peer: Peer,
    near: Pool,
    far: Pool,
    /// Memory that the peer may write to, and does not.
    guard: Pool,
    honest: Engine,
    victim: Engine,
    _folder: Folder,
}

/// A UDP port that is free, below those of the kernel's own choice or not.
fn free_port() -> u16 {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Arena {
    fn new(honest_port: u16, victim_port: u16) -> Self {
        let folder = Folder::fresh();
        let start = |name: &str, port: u16| {
            let tuning = Tuning { udp_port: Some(port), heartbeat_ms: Some(3000), ..Tuning::default() };
            let spec = setting(TransportName::Datagram).spec(folder.path(), name).tuned(tuning);
            Engine::start(spec.config().datagram_frame(FRAME_BYTES)).unwrap()
        };
        let (victim, honest) = (start("victim", victim_port), start("honest", honest_port));
        let pool = |engine: &Engine, label: &str, bytes| {
            let spec = PoolSpec::host(bytes).block(4096).label(label).rights(Rights::READ_WRITE);
            engine.pool(spec).expect("there is memory for a pool")
        };
        let (near, far) = (pool(&honest, KV, BYTES), pool(&victim, KV, BYTES));
        let guard = pool(&victim, "guard", GUARD_BYTES);
        pattern::fill(guard.window(), GUARD_SEED);
        let peer = honest.connect(&victim.descriptor(), PATIENCE).unwrap();
        Self { peer, near, far, guard, honest, victim, _folder: folder }
    }

    /// Moves all one way; answers how long that took.
    fn moves(&self, is_write: bool) -> Duration {
        let spans = [Span { local: 0, remote: 0, len: BYTES }];
        let far = self.peer.wait_region(KV, PATIENCE).expect("it was announced");
        let plan = if is_write { Plan::write(&self.near, &far) } else { Plan::read(&self.near, &far) };
        let plan = plan.extents(&spans).build().expect("a sound plan");
        let begun = Instant::now();
        let transfer = self.peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap();
        assert_eq!(transfer.wait().expect("the session stands").bytes, BYTES);
        begun.elapsed()
    }

    /// Writes all and reads it back, and looks at every byte on both sides. Answers how long the transfers took.
    fn moves_both_ways(&self, seed: u64) -> Duration {
        let expected = pattern::digests(&pattern::bytes(seed, 0, BYTES as usize));
        pattern::fill(self.near.window(), seed);
        let mut took = self.moves(true);
        pattern::assert_same(&pattern::window_digests(self.far.window()), &expected, "at the victim");
        pattern::fill(self.near.window(), seed + 1);
        took += self.moves(false);
        pattern::assert_same(&pattern::window_digests(self.near.window()), &expected, "here");
        took
    }

    /// Nobody has written where nobody should.
    fn is_unharmed(&self) {
        let expected = pattern::digests(&pattern::bytes(GUARD_SEED, 0, GUARD_BYTES as usize));
        pattern::assert_same(&pattern::window_digests(self.guard.window()), &expected, "in the guard");
        assert_eq!(self.peer.ended(), None);
        assert_eq!(self.victim.peers().len(), 1);
    }

    /// Moves bytes for as long as a slice lasts; answers GB/s while transfers were under way.
    fn rate(&self, seed: &mut u64) -> f64 {
        let (begun, mut took, mut moved) = (Instant::now(), Duration::ZERO, 0);
        while begun.elapsed() < SLICE {
            *seed += 2;
            took += self.moves_both_ways(*seed);
            moved += 2 * BYTES;
        }
        moved as f64 / took.as_secs_f64() / 1e9
    }
}

/// Moves bytes while somebody sends to that port.
fn beside(injector: &mut Injector, port: u16, arena: &Arena, seed: &mut u64) -> (f64, Injected) {
    /// Stops the other thread, also when this one panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| injector.inject(port, &stop));
        let rate = {
            let _stop = Stop(&stop);
            arena.rate(seed)
        };
        (rate, sending.join().expect("it sends until it is told to stop"))
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}

#[test]
fn what_others_send_to_the_port_places_nothing_and_ends_nothing() {
    let Some(_alone) = alone("what_others_send_to_the_port_places_nothing_and_ends_nothing") else { return };
    let begun = Instant::now();
    let (honest_port, victim_port) = (free_port(), free_port());
    let unread = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = unread.local_addr().unwrap().port();
    let mut injector = Injector::new(honest_port, victim_port);
    let arena = Arena::new(honest_port, victim_port);
    let mut seed = 1000;
    arena.moves_both_ways(seed);
    for _ in 0..64 {
        injector.listen();
    }
    assert!(injector.seen() > 0, "the session's packets are seen");
    let before = arena.victim.packet_statistics();
    let (mut sent, mut rates) = (Injected::default(), [Vec::new(), Vec::new()]);
    for _ in 0..PAIRS {
        let (rate, injected) = beside(&mut injector, victim_port, &arena, &mut seed);
        rates[0].push(rate);
        sent += injected;
        arena.is_unharmed();
        let (rate, _) = beside(&mut injector, elsewhere, &arena, &mut seed);
        rates[1].push(rate);
    }
    let quiet = arena.rate(&mut seed);
    std::thread::sleep(Duration::from_millis(50));
    arena.is_unharmed();
    let after = arena.victim.packet_statistics();
    let [strangers, forged, replayed, corrupt, dropped] = [
        after.strangers - before.strangers,
        after.forged - before.forged,
        after.replayed - before.replayed,
        after.corrupt - before.corrupt,
        after.dropped_by_port - before.dropped_by_port,
    ];
    let counted = strangers + forged + replayed + corrupt;
    eprintln!("sent {} in all: {sent:?}", sent.all());
    eprintln!(
        "strangers {strangers}, forged {forged}, replayed {replayed}, corrupt {corrupt}; dropped by the kernel {dropped}"
    );
    let (own, taken) = (arena.honest.packet_statistics(), after.received - before.received);
    eprintln!(
        "the honest peer has sent {}, lost {}, of which {} had arrived; {taken} were taken",
        own.sent, own.lost, own.spurious
    );
    let [at_victim, aside] = rates.map(|rates| {
        eprintln!("GB/s {rates:.3?}");
        median(rates)
    });
    eprintln!(
        "beside what is aimed at it {at_victim:.3} GB/s, aimed elsewhere {aside:.3}: {:.2}; quiet {quiet:.3}; {:.1?} in all",
        at_victim / aside,
        begun.elapsed()
    );
    assert!(strangers > 0 && forged > 0 && replayed > 0);
    assert!(strangers <= sent.strangers && forged <= sent.forged, "nothing honest is counted there");
    // A real packet that the kernel had dropped is new when it comes again; a burst that it drops is one to it.
    let may_be_less = sent.replayed + sent.cut + BURST as u64 * dropped;
    assert!(counted <= sent.all() && counted + may_be_less >= sent.all(), "{counted} of {}", sent.all());
}
