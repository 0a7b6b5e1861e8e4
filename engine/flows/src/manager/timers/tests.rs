use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_session::control::Side;
use penstock_session::transfers::early::EarlyBounds;
use penstock_session::transfers::table::{Bounds, Transfers};
use penstock_session::{RequestId, TransferId};
use proptest::prelude::*;

use super::*;

/// Keys of so many transfers.
fn keys(count: usize) -> Vec<EntryKey> {
    let early = EarlyBounds { messages: 1, bytes: 1, age: Duration::ZERO };
    let mut table = Transfers::new(Bounds { live: count, early, tombs: 0, tomb_age: Duration::ZERO }, (1, 2));
    let mut key = |number: usize| {
        let transfer = TransferId::from_bytes((number as u128).to_le_bytes());
        let request = RequestId::new(&number.to_string()).unwrap();
        table.admit(Side::Sink, transfer, request, (), Timestamp::NEVER).unwrap().0
    };
    (0..count).map(&mut key).collect()
}

/// What transfers wait for, as they and their timers know it.
#[derive(Default)]
struct World {
    timers: Timers,
    armed: BTreeMap<EntryKey, Timestamp>,
}

impl World {
    fn arm(&mut self, key: EntryKey, at: Option<Timestamp>) {
        let before = match at {
            Some(at) => {
                self.timers.arm(at, key);
                self.armed.insert(key, at)
            }
            None => self.armed.remove(&key),
        };
        before.iter().for_each(|_| self.timers.disarmed());
        self.settle();
    }

    fn settle(&mut self) {
        let Self { timers, armed } = self;
        timers.settle(|at, key| armed.get(&key) == Some(&at));
    }

    fn pop(&mut self) -> Option<(Timestamp, EntryKey)> {
        let first = self.timers.first()?;
        self.timers.take_first();
        self.armed.remove(&first.1);
        self.timers.disarmed();
        self.settle();
        Some(first)
    }
}

proptest! {
    #[test]
    fn they_come_up_in_their_order_and_each_is_wanted(
        deeds in proptest::collection::vec((0_usize..20, proptest::option::of(0_u64..30), any::<bool>()), 0..400),
    ) {
        let keys = keys(20);
        let (mut world, mut ordered) = (World::default(), BTreeSet::new());
        for (which, at, comes_up) in deeds {
            let at = at.map(Timestamp::from_ns);
            if comes_up {
                prop_assert_eq!(world.pop(), ordered.pop_first());
            } else if world.armed.get(&keys[which]).copied() != at {
                ordered.retain(|(_, key)| *key != keys[which]);
                ordered.extend(at.map(|at| (at, keys[which])));
                world.arm(keys[which], at);
            }
            prop_assert_eq!(world.timers.first(), ordered.first().copied());
            prop_assert_eq!(world.timers.wanted(), ordered.len());
            prop_assert!(world.timers.heap.len() <= STALE_MIN + 2 * ordered.len());
        }
    }
}

#[test]
fn what_nobody_waits_for_does_not_pile_up_behind_one_that_somebody_waits_for() {
    let keys = keys(1000);
    let mut world = World::default();
    world.arm(keys[0], Some(Timestamp::from_ns(1)));
    for at in 2..100_000 {
        let key = keys[1 + at as usize % 999];
        world.arm(key, Some(Timestamp::from_ns(at)));
        world.arm(key, None);
        assert!(world.timers.heap.len() <= STALE_MIN + 2);
    }
    assert_eq!(world.timers.first(), Some((Timestamp::from_ns(1), keys[0])));
}
