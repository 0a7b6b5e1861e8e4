use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use penstock_core::Timestamp;
use penstock_ring::Sleeper;
use penstock_transport::Rest;
use penstock_transport::host::silence;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::model::Pace;

/// A sleep that nobody ends: each makes the test fail.
pub(super) const TOO_LONG: Duration = Duration::from_secs(10);

/// A worker with a thread of its own, which sleeps as soon as it can.
pub(super) struct Running {
    thread: Option<JoinHandle<(Side, u32)>>,
    stop: Arc<AtomicBool>,
    bell: penstock_transport::host::Bell,
    calls: Sender<Call>,
}

pub(super) type Call = Box<dyn FnOnce(&mut Side) + Send>;

impl Running {
    /// Runs a side; this is done once a turn, and answers whether there was anything to do.
    pub(super) fn start(side: Side, each_turn: impl FnMut(&mut Side) -> bool + Send + 'static) -> Self {
        let (stop, (calls, queue)) = (Arc::new(AtomicBool::new(false)), channel());
        let (bell, flag) = (side.engine.segments.ringer(1), Arc::clone(&stop));
        let thread = Some(std::thread::spawn(move || run(side, &flag, &queue, each_turn)));
        Self { thread, stop, bell, calls }
    }

    pub(super) fn call(&self, call: impl FnOnce(&mut Side) + Send + 'static) {
        self.calls.send(Box::new(call)).unwrap();
        self.bell.ring();
    }

    /// Returns how often it slept.
    pub(super) fn stop(mut self) -> (Side, u32) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn run(
    mut side: Side,
    stop: &AtomicBool,
    calls: &Receiver<Call>,
    mut each_turn: impl FnMut(&mut Side) -> bool,
) -> (Side, u32) {
    let sleeper: Sleeper = side.engine.segments.sleeper(1);
    let mut sleeps = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut worked = false;
        while let Ok(call) = calls.try_recv() {
            call(&mut side);
            worked = true;
        }
        worked |= each_turn(&mut side);
        worked |= side.turn();
        assert_eq!(side.fault(), None);
        if worked {
            continue;
        }
        sleeper.prepare();
        let rest = side.workers[0].driver.rest(Timestamp::default());
        let nothing_said = side.is_deaf || side.said.lock().unwrap().is_empty();
        if let Rest::Until(until) = rest
            && side.workers[0].ready.is_empty()
            && nothing_said
            && !stop.load(Ordering::Relaxed)
        {
            sleeps += 1;
            sleep(&side, until.since(Timestamp::default()));
        }
        sleeper.awake();
    }
    (side, sleeps)
}

fn sleep(side: &Side, at_most: Duration) {
    let (bell, driver) = (&side.engine.segments.bells()[1], side.workers[0].driver.fd());
    let own = bell.own();
    let mut fds = [PollFd::new(&own, PollFlags::IN), PollFd::new(&driver, PollFlags::IN)];
    let timeout = Timespec::try_from(TOO_LONG.min(at_most)).unwrap();
    let woken = poll(&mut fds, Some(&timeout)).unwrap();
    assert!(woken > 0 || at_most < TOO_LONG, "nobody has woken it");
    silence(bell.own());
}

#[test]
fn workers_that_sleep_are_woken_by_what_comes_and_by_what_they_are_told() {
    const ROUNDS: u64 = 300;
    let network = ModelNetwork::new(crate::model::Options { pace: Pace::Thread, ..Default::default() });
    let [mut one, mut two] = join(Engine::new(&network, 1, 1), Engine::new(&network, 1, 1));
    let (peer_view, segments) = (one.peer_view.clone(), Arc::clone(&two.engine.segments));
    let fence = Arc::clone(two.peer_view.fence().unwrap());
    for side in [&mut one, &mut two] {
        side.workers[0].ready.mark(PARTY as usize);
    }
    let [one, two] = [one, two].map(|side| Running::start(side, |_| false));
    let (heard, news) = channel();
    for round in 0..ROUNDS {
        // There is room at the latest when the peer was heard.
        let say = move |side: &mut Side| {
            let deadline = Instant::now() + TOO_LONG;
            while side.tell(round, round, round.into(), b"are you there?").is_err() {
                side.turn();
                assert!(Instant::now() < deadline);
            }
            side.workers[0].lane().ring_doorbell().unwrap();
        };
        one.call(say);
        let deadline = Instant::now() + TOO_LONG;
        loop {
            let heard = heard.clone();
            two.call(move |side| heard.send(side.got().notes.len() as u64).unwrap());
            if news.recv_timeout(TOO_LONG).unwrap() == round + 1 {
                break;
            }
            assert!(Instant::now() < deadline, "the note of round {round} does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        if round % 10 == 0 {
            let since = segments.owner_state.view().revision();
            let withdrawal = Withdrawal { region: 9, generation: 0, offset: round, len: 1 };
            let revision = segments.owner_state.withdraw(&[withdrawal]);
            peer_view.on_withdrawals(since, [withdrawal].into_iter());
            while !fence.has_passed(revision) {
                assert!(Instant::now() < deadline, "the fence of round {round} does not pass");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    let deadline = Instant::now() + TOO_LONG;
    loop {
        let heard = heard.clone();
        one.call(move |side| heard.send(side.got().completed.len() as u64).unwrap());
        if news.recv_timeout(TOO_LONG).unwrap() == ROUNDS {
            break;
        }
        assert!(Instant::now() < deadline, "the last answers do not come");
    }
    let [(one, slept), (two, slept_too)] = [one.stop(), two.stop()];
    assert!((0..ROUNDS).all(|round| one.result(round) == Some(Ok(1))));
    assert!(two.got().notes.iter().map(|note| note.0).eq((0..ROUNDS).map(u128::from)));
    assert!(slept > 0 && slept_too > 0, "nothing was tried");
}
