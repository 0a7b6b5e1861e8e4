//! A reader that is stopped or killed in the middle of a get costs its putter the berth it is at, until it is proven that it is not there
//! any more, and nothing else.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::relay::{Destination, Put, Relay, RelaySpec};
use penstock::flows::{FlowCause, RequestId};
use penstock::{Cause, Engine, Peer, SystemEnv};
use penstock_faults::folder::Folder;
use penstock_faults::pair::{PATIENCE, config};
use penstock_faults::reader::Reader;
use penstock_faults::seed::{Random, Seed};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");

/// The putter, with one berth, and a reader in this process. Fields end in this order.
struct Stage {
    near: Peer<SystemEnv>,
    near_relay: Relay<SystemEnv>,
    relay: Relay<SystemEnv>,
    near_engine: Engine,
    engine: Engine,
    folder: Folder,
    berth: u64,
}

impl Stage {
    fn new(label: &str, berth: u64) -> Self {
        let folder = Folder::new(label);
        let start = |name| Engine::start(config(folder.path(), name, TransportName::Shm, Progress::Adaptive)).unwrap();
        let (engine, near_engine) = (start("putter"), start("near"));
        let relay = engine.relay(RelaySpec::new().berths(berth, 1, 1)).unwrap();
        let near_relay = near_engine.relay(RelaySpec::new().berths(berth, 1, 1)).unwrap();
        let near = engine.connect(&near_engine.descriptor(), PATIENCE).unwrap();
        Self { near, near_relay, relay, near_engine, engine, folder, berth }
    }

    fn reader(&self, name: &str, berth: u64) -> (Reader, Peer<SystemEnv>) {
        let reader = Reader::start(CHILD, self.folder.path(), name, &self.engine.descriptor(), berth);
        let found = || self.engine.peers().into_iter().find(|peer| peer.name().as_str() == name);
        assert!(wait_until(|| found().is_some()), "{name} is not known");
        (reader, found().unwrap())
    }

    fn whole(&self, seed: u64) -> Vec<u8> {
        (0..self.berth).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
    }

    /// The berth is as good as any other: the reader in this process gets what goes through it.
    fn is_usable(&self, seed: u64) {
        let request = RequestId::new(&format!("after-{seed}")).unwrap();
        let put = self.relay.put(Put::owned(self.whole(seed)), &request, &[&self.near]).unwrap();
        let fetch = self.near_relay.get(put.metadata(), Destination::memory()).unwrap();
        assert!(wait_until(|| put.poll().is_some() | fetch.poll().is_some()), "{:?}", self.engine.control_metrics());
        assert!(fetch.wait(PATIENCE).unwrap().unwrap().bytes == self.whole(seed));
        assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    }

    fn rests(&self) {
        let is_idle = |engine: &Engine| engine.control_metrics().relay.is_idle;
        let rests = wait_until(|| is_idle(&self.engine) && is_idle(&self.near_engine));
        assert!(rests, "{:?} {:?}", self.engine.control_metrics(), self.near_engine.control_metrics());
    }
}

fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_berth_under_a_reader_that_stands_still_comes_back_by_its_death_and_never_before() {
    let stage = Stage::new("relay-frozen", 256 << 10);
    // The reader's berth is smaller, so its get stays in the middle.
    let (mut reader, far) = stage.reader("reader", 4096);
    let request = RequestId::new("lent").unwrap();
    let lent = Put::owned(stage.whole(0)).within(Duration::from_secs(3));
    let put = stage.relay.put(lent, &request, &[&far]).unwrap();
    reader.begin(put.metadata());
    reader.process().freeze();
    let failed = put.wait(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failed.cause, FlowCause::Deadline, "the wait ends in time");
    // The next one waits for the berth, however long nothing is heard.
    let next = RequestId::new("next").unwrap();
    let waiting = stage.relay.put(Put::owned(stage.whole(1)), &next, &[&stage.near]).unwrap();
    let fetch = stage.near_relay.get(waiting.metadata(), Destination::memory()).unwrap();
    let is_held =
        || (stage.engine.control_metrics().relay.counts.quarantined, stage.engine.quarantined().len()) == (1, 1);
    assert!(wait_until(is_held), "it is not quarantined");
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        let metrics = stage.engine.control_metrics().relay;
        assert_eq!((metrics.puts, waiting.poll(), fetch.poll()), (1, None, None), "{metrics:?}");
        assert_eq!(stage.engine.quarantined().len(), 1, "{:?}", stage.engine.quarantined());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!put.rest(Duration::ZERO));
    let killed = Instant::now();
    reader.process().kill();
    assert!(put.rest(PATIENCE), "{:?}", stage.engine.control_metrics());
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    let both = wait_until(|| waiting.poll().is_some() & fetch.poll().is_some());
    assert!(both && fetch.wait(PATIENCE).unwrap().unwrap().bytes == stage.whole(1));
    assert!(wait_until(|| stage.engine.quarantined().is_empty()), "{:?}", stage.engine.quarantined());
    drop((put, waiting, fetch));
    stage.rests();
    stage.folder.sweep_up_after("reader");
}

#[test]
fn readers_that_are_killed_in_the_middle_of_a_get_leave_the_berth_as_good_as_new() {
    // So large that its copy takes milliseconds.
    let stage = Stage::new("relay-killed", 32 << 20);
    let mut seed = Seed::of_this_run();
    let mut random = Random::new(seed.of_step(0));
    let mut lost = 0;
    for round in 0..6 {
        let name = format!("reader-{round}");
        let (mut reader, far) = stage.reader(&name, stage.berth);
        let request = RequestId::new(&format!("lent-{round}")).unwrap();
        let put = stage.relay.put(Put::owned(stage.whole(round)), &request, &[&far, &stage.near]).unwrap();
        reader.go(put.metadata());
        // Every second one at its very beginning.
        std::thread::sleep(Duration::from_micros(random.below(6000) * (round % 2)));
        reader.process().kill();
        // The other reader has nothing to do with it.
        let got = stage.near_relay.get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap();
        assert!(got.unwrap().bytes == stage.whole(round), "round {round}");
        match put.wait(PATIENCE).unwrap() {
            Ok(()) => {} // It was quicker.
            Err(failed) => {
                let is_lost = matches!(failed.cause, FlowCause::PeerLost | FlowCause::Moving(Cause::PeerLost));
                assert!(is_lost, "round {round}: {failed}");
                lost += 1;
            }
        }
        assert!(put.rest(PATIENCE), "round {round}: {:?}", stage.engine.control_metrics());
        drop(put);
        stage.is_usable(100 + round);
        stage.folder.sweep_up_after(&name);
    }
    assert!(lost > 0, "no reader was killed before it had answered");
    stage.rests();
}
