use proptest::prelude::*;

use super::*;

#[test]
fn all_is_taken_or_nothing() {
    let mut purse = CreditPool::new([2, 5], 8);
    assert_eq!(purse.take(CreditWaiter(1), [1, 5]), Took::Now);
    assert_eq!(purse.take(CreditWaiter(2), [1, 1]), Took::Waits, "the second stock is empty");
    assert_eq!(purse.held(), [1, 5], "and the first is untouched");
    assert_eq!(purse.take(CreditWaiter(3), [3, 0]), Took::Never { stock: 0, limit: 2 });
    let mut served = Vec::new();
    purse.give_back([0, 2], &mut served).unwrap();
    assert_eq!((served, purse.held()), (vec![CreditWaiter(2)], [2, 4]));
}

#[test]
fn who_wants_much_is_not_starved_by_those_who_want_little() {
    let mut purse = CreditPool::new([2], 8);
    assert_eq!(purse.take(CreditWaiter(1), [1]), Took::Now);
    assert_eq!(purse.take(CreditWaiter(2), [2]), Took::Waits);
    assert_eq!(purse.take(CreditWaiter(3), [1]), Took::Waits, "one is there, but somebody stands in line");
    let mut served = Vec::new();
    purse.give_back([1], &mut served).unwrap();
    assert_eq!(served, [CreditWaiter(2)]);
    purse.give_back([2], &mut served).unwrap();
    assert_eq!(served, [CreditWaiter(2), CreditWaiter(3)]);
}

#[test]
fn who_gives_up_makes_room_for_those_behind() {
    let mut purse = CreditPool::new([2], 8);
    assert_eq!(purse.take(CreditWaiter(1), [1]), Took::Now);
    assert_eq!(purse.take(CreditWaiter(2), [2]), Took::Waits);
    assert_eq!(purse.take(CreditWaiter(2), [2]), Took::Waits, "nobody stands in line twice");
    assert_eq!(purse.take(CreditWaiter(3), [1]), Took::Waits);
    let mut served = Vec::new();
    assert!(purse.leave(CreditWaiter(2), &mut served) && !purse.leave(CreditWaiter(2), &mut served));
    assert_eq!((served, purse.waiting()), (vec![CreditWaiter(3)], 0));
}

#[test]
fn the_line_has_an_end_and_nothing_is_given_back_twice() {
    let mut purse = CreditPool::new([1], 1);
    assert_eq!(purse.take(CreditWaiter(1), [1]), Took::Now);
    assert_eq!(purse.take(CreditWaiter(2), [1]), Took::Waits);
    assert_eq!(purse.take(CreditWaiter(3), [1]), Took::Full { most: 1 });
    let mut served = Vec::new();
    assert_eq!(
        purse.give_back([2], &mut served),
        Err(Unbalanced::GivenTwice { stock: 0, given: 2, held: 1 }),
        "{served:?}"
    );
    assert_eq!((purse.held(), purse.waiting()), ([1], 1));
}

/// The same, without any cleverness.
#[derive(Default)]
struct Naive {
    limits: [u64; 3],
    holders: Vec<(u64, [u64; 3])>,
    line: Vec<(u64, [u64; 3])>,
}

impl Naive {
    fn is_there(&self, want: [u64; 3]) -> bool {
        let held = |stock| self.holders.iter().map(|(_, taken)| taken[stock]).sum::<u64>();
        (0..3).all(|stock| held(stock) + want[stock] <= self.limits[stock])
    }

    fn serve(&mut self) -> Vec<CreditWaiter> {
        let mut served = Vec::new();
        while let Some(&(who, want)) = self.line.first() {
            if !self.is_there(want) {
                break;
            }
            self.holders.push(self.line.remove(0));
            served.push(CreditWaiter(who));
        }
        served
    }
}

proptest! {
    /// Whoever takes, gives up and gives back, in whatever order: the same are served in the same order as without cleverness.
    #[test]
    fn a_purse_is_as_the_naive_one(
        limits in [0u64..6, 0u64..6, 0u64..6],
        steps in prop::collection::vec((0u8..4, any::<u8>(), [0u64..4, 0u64..4, 0u64..4]), 0..120),
    ) {
        let mut purse = CreditPool::new(limits, 4);
        let mut naive = Naive { limits, ..Naive::default() };
        for (number, (what, place, want)) in steps.into_iter().enumerate() {
            let who = number as u64;
            let mut served = Vec::new();
            match what {
                0 | 1 => {
                    let took = purse.take(CreditWaiter(who), want);
                    if (0..3).any(|stock| want[stock] > limits[stock]) {
                        let is_never = matches!(took, Took::Never { .. });
                        prop_assert!(is_never, "{:?}", took);
                    } else if naive.line.is_empty() && naive.is_there(want) {
                        naive.holders.push((who, want));
                        prop_assert_eq!(took, Took::Now);
                    } else if naive.line.len() == 4 {
                        prop_assert_eq!(took, Took::Full { most: 4 });
                    } else {
                        naive.line.push((who, want));
                        prop_assert_eq!(took, Took::Waits);
                    }
                }
                2 if !naive.holders.is_empty() => {
                    let (_, taken) = naive.holders.remove(usize::from(place) % naive.holders.len());
                    prop_assert_eq!(purse.give_back(taken, &mut served), Ok(()));
                    prop_assert_eq!(served, naive.serve());
                }
                3 if !naive.line.is_empty() => {
                    let (who, _) = naive.line.remove(usize::from(place) % naive.line.len());
                    prop_assert!(purse.leave(CreditWaiter(who), &mut served));
                    prop_assert_eq!(served, naive.serve());
                }
                _ => {}
            }
            prop_assert_eq!(purse.check(), Ok(()));
            prop_assert_eq!(purse.waiting(), naive.line.len());
            for stock in 0..3 {
                prop_assert_eq!(purse.held()[stock], naive.holders.iter().map(|(_, taken)| taken[stock]).sum::<u64>());
            }
        }
    }
}
