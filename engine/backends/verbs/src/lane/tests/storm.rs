//! Writers that never stop, and an owner who takes its memory back block by block.

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::thread::sleep;

use super::threads::{Running, TOO_LONG};
use super::*;
use crate::model::Pace;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const CANARY: [u8; BLOCK as usize] = [0xcc; BLOCK as usize];

/// A peer that writes into all blocks that it may, again and again.
struct Writer {
    from: Arc<Region>,
    to: RemoteMemory,
    withdrawn: HashSet<u64>,
    next: u64,
    under_way: u64,
}

impl Writer {
    fn turn(&mut self, side: &mut Side) -> bool {
        let done = side.workers[0].got.completed.drain(..).count() as u64;
        self.under_way -= done;
        let mut any = done > 0;
        while self.under_way < 32 {
            let Some(block) =
                (0..BLOCKS).map(|step| (self.next + step * 7) % BLOCKS).find(|at| !self.withdrawn.contains(at))
            else {
                break;
            };
            let at = block * BLOCK;
            match side.post(WRITE, &self.from, &self.to, &[span(at, at, BLOCK)], (self.next, self.next)) {
                Ok(_) => (self.under_way, self.next, any) = (self.under_way + 1, self.next + 1, true),
                Err(PostError::StaleRevisions(revisions)) => {
                    // As a plan is looked at again.
                    let since = side.peer_view.withdrawals_since(side.expected.remote).unwrap();
                    self.withdrawn.extend(since.list.iter().map(|gone| gone.offset / BLOCK));
                    side.expected = Revisions { remote: since.revision, ..revisions };
                }
                Err(PostError::Full) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        any
    }
}

fn storm(rails: usize, seed: u64) {
    let options =
        crate::model::Options { pace: Pace::Thread, seed: Some(seed), places_late: true, ..Default::default() };
    let network = ModelNetwork::new(options);
    let [mut one, mut two] = join(Engine::new(&network, rails, 1), Engine::new(&network, rails, 1));
    let from = one.engine.region(pattern(seed, (BLOCKS * BLOCK) as usize), Rights::NONE);
    let to = two.engine.region(vec![0; (BLOCKS * BLOCK) as usize], Rights::WRITE);
    let there = two.show(&to, &one);
    let (peer_view, segments, fence) =
        (one.peer_view.clone(), Arc::clone(&two.engine.segments), Arc::clone(two.peer_view.fence().unwrap()));
    for side in [&mut one, &mut two] {
        side.workers[0].ready.mark(PARTY as usize);
    }
    let mut writer = Writer { from, to: there, withdrawn: HashSet::new(), next: 0, under_way: 0 };
    let one = Running::start(one, move |side| writer.turn(side));
    let two = Running::start(two, |_| false);
    let set_deaf = |is_deaf: bool| {
        let (said, hear) = channel();
        one.call(move |side| {
            side.is_deaf = is_deaf;
            said.send(()).unwrap();
        });
        hear.recv_timeout(TOO_LONG).unwrap();
    };
    let holds = |blocks: u64| {
        for block in 0..blocks {
            let mut bytes = CANARY;
            to.host().unwrap().read_into(block * BLOCK, &mut bytes).unwrap();
            assert!(bytes == CANARY, "something has landed in block {block} after it was quiet (seed {seed})");
        }
    };
    let key = key_of(&to);
    for block in 0..BLOCKS - 8 {
        let is_deaf = block % 3 == 0;
        if is_deaf {
            set_deaf(true);
        }
        let since = segments.owner_state.view().revision();
        let withdrawal =
            Withdrawal { region: key.region.0, generation: key.generation.0, offset: block * BLOCK, len: BLOCK };
        let revision = segments.owner_state.withdraw(&[withdrawal]);
        if !is_deaf {
            peer_view.on_withdrawals(since, [withdrawal].into_iter());
        }
        if is_deaf || block % 3 == 1 {
            fence.force(revision);
        }
        let deadline = Instant::now() + TOO_LONG;
        while !fence.has_passed(revision) {
            assert!(Instant::now() < deadline, "block {block} does not become quiet (seed {seed})");
            sleep(Duration::from_micros(50));
        }
        to.host().unwrap().write_from(block * BLOCK, &CANARY).unwrap();
        sleep(Duration::from_millis(2));
        holds(block + 1);
        if is_deaf {
            peer_view.on_withdrawals(since, [withdrawal].into_iter());
            set_deaf(false);
            sleep(Duration::from_millis(5));
        }
    }
    sleep(Duration::from_millis(50));
    holds(BLOCKS - 8);
    let [(one, _), (two, _)] = [one.stop(), two.stop()];
    assert_eq!((one.fault(), two.fault()), (None, None));
    let moved: u64 = one.engine.adapters.iter().map(|adapter| adapter.counts().bytes).sum();
    assert!(moved > 100 * BLOCK, "only {moved} bytes were moved beside all that");
}

#[test]
fn nothing_lands_in_what_was_taken_back_over_one_rail() {
    storm(1, 11);
}

#[test]
fn nothing_lands_in_what_was_taken_back_over_two_rails() {
    storm(2, 12);
}
