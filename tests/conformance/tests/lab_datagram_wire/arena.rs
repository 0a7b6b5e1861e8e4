//! An honest peer, an engine that is attacked, and what moves between them meanwhile. Programs that attack have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::{Plan, PoolSpec, Rights, Span, Submit};
use penstock_conformance::folder::Folder;
use penstock_conformance::setting::Tuning;
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::{Engine, Peer, Pool, Setting, pattern};

const BYTES: u64 = 4 << 20;
const GUARD_BYTES: u64 = 1 << 20;
const GUARD_SEED: u64 = 99;
/// What a frame is over an MTU of 1,500.
const FRAME_BYTES: usize = 1472;
/// The name of the engine that is attacked.
pub(crate) const VICTIM: &str = "victim";
/// The name of its peer.
pub(crate) const HONEST: &str = "honest";

/// An engine that is attacked, and an honest peer of it.
pub(crate) struct Arena {
    pub(crate) peer: Peer,
    near: Pool,
    far: Pool,
    /// Memory that the peer may write to, and does not.
    guard: Pool,
    pub(crate) honest: Engine,
    pub(crate) victim: Engine,
}

impl Arena {
    pub(crate) fn new(setting: Setting, folder: &Folder, honest_port: u16, victim_port: u16) -> Self {
        let start = |name: &str, port: u16| {
            let tuning = Tuning { udp_port: Some(port), heartbeat_ms: Some(3000), ..Tuning::default() };
            let spec = setting.spec(folder.path(), name).tuned(tuning);
            Engine::start(spec.config().datagram_frame(FRAME_BYTES)).unwrap()
        };
        let (victim, honest) = (start(VICTIM, victim_port), start(HONEST, honest_port));
        let pool = |engine: &Engine, label: &str, bytes| {
            let spec = PoolSpec::host(bytes).block(4096).label(label).rights(Rights::READ_WRITE);
            engine.pool(spec).expect("there is memory for a pool")
        };
        let (near, far) = (pool(&honest, KV, BYTES), pool(&victim, KV, BYTES));
        let guard = pool(&victim, "guard", GUARD_BYTES);
        pattern::fill(guard.window(), GUARD_SEED);
        let peer = honest.connect(&victim.descriptor(), PATIENCE).unwrap();
        Self { peer, near, far, guard, honest, victim }
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
    pub(crate) fn moves_both_ways(&self, seed: u64) -> Duration {
        let expected = pattern::digests(&pattern::bytes(seed, 0, BYTES as usize));
        pattern::fill(self.near.window(), seed);
        let mut took = self.moves(true);
        pattern::assert_same(&pattern::memory_digests(self.far.window()), &expected, "at the victim");
        pattern::fill(self.near.window(), seed + 1);
        took += self.moves(false);
        pattern::assert_same(&pattern::memory_digests(self.near.window()), &expected, "here");
        took
    }

    /// Nobody has written where nobody should.
    pub(crate) fn is_unharmed(&self) {
        let expected = pattern::digests(&pattern::bytes(GUARD_SEED, 0, GUARD_BYTES as usize));
        pattern::assert_same(&pattern::memory_digests(self.guard.window()), &expected, "in the guard");
        assert_eq!(self.peer.ended(), None);
        assert_eq!(self.victim.peers().len(), 1);
    }

    /// Moves bytes for so long; answers GB/s while transfers were under way.
    pub(crate) fn rate(&self, slice: Duration, seed: &mut u64) -> f64 {
        let (begun, mut took, mut moved) = (Instant::now(), Duration::ZERO, 0);
        while begun.elapsed() < slice {
            *seed += 2;
            took += self.moves_both_ways(*seed);
            moved += 2 * BYTES;
        }
        moved as f64 / took.as_secs_f64() / 1e9
    }
}

/// Does something while somebody else attacks until it is told to stop.
pub(crate) fn beside<T, A: Send>(attack: impl FnOnce(&AtomicBool) -> A + Send, work: impl FnOnce() -> T) -> (T, A) {
    /// Stops the other thread, also when this one panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacking = scope.spawn(|| attack(&stop));
        let done = {
            let _stop = Stop(&stop);
            work()
        };
        (done, attacking.join().expect("it goes on until it is told to stop"))
    })
}

pub(crate) fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}
