//! The allocator against a model that keeps a plain list of holders.

use std::collections::{BTreeMap, HashSet};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::HostMemory;

const BLOCK: u64 = 16;

fn allocator(total: u32) -> Arc<BlockAllocator> {
    let memory = HostMemory::from_vec(vec![0; (u64::from(total) * BLOCK) as usize]).unwrap();
    Arc::new(BlockAllocator::new(memory.window().clone().into(), BLOCK, total))
}

#[test]
fn blocks_are_taken_in_order_all_or_none_and_come_back_last_first() {
    let blocks = allocator(4);
    let held = blocks.take(3).unwrap();
    assert_eq!(held.indices(), [0, 1, 2]);
    assert_eq!(blocks.take(2).unwrap_err(), TakeError::Exhausted { asked: 2, free: 1 });
    assert_eq!(blocks.free(), 1);
    let copy = held.clone();
    drop(held);
    assert_eq!(blocks.free(), 1);
    drop(copy);
    let again = blocks.take(3).unwrap();
    assert_eq!(again.indices(), [0, 1, 2]);
    assert_eq!(again.get(0), Some(BlockId { index: 0, generation: 1 }));
    assert_eq!(again.get(3), None);
    assert!(blocks.take(0).unwrap().is_empty());
}

#[test]
fn misuse_is_told_apart() {
    let blocks = allocator(2);
    let held = blocks.take(1).unwrap();
    let id = held.get(0).unwrap();
    blocks.retain(id).unwrap();
    assert_eq!(blocks.holders(id), Ok(2));
    drop(held);
    assert_eq!(blocks.release(id), Ok(Released::Freed));
    assert_eq!(blocks.release(id), Err(BlockError::DoubleFree(id)));
    assert_eq!(blocks.retain(id), Err(BlockError::DoubleFree(id)));
    let _next = blocks.take(1).unwrap();
    assert_eq!(blocks.release(id), Err(BlockError::Stale { id, current: 1 }));
    let outside = BlockId { index: 2, generation: 0 };
    assert_eq!(blocks.release(outside), Err(BlockError::OutOfRange { index: 2, total: 2 }));
    let never_taken = BlockId { index: 1, generation: 0 };
    assert_eq!(blocks.release(never_taken), Err(BlockError::DoubleFree(never_taken)));
}

#[test]
fn what_is_sliced_and_chained_is_held_by_each_handle_until_the_last_is_gone() {
    let blocks = allocator(8);
    let (first, second) = (blocks.take(3).unwrap(), blocks.take(2).unwrap());
    let both = first.slice(2..3).unwrap().chain(&second).unwrap();
    assert_eq!(both.indices(), [2, 3, 4]);
    assert_eq!(blocks.holders(first.get(2).unwrap()), Ok(2));
    drop((first, second));
    assert_eq!(blocks.free(), 5, "blocks 2 to 4 are held");
    assert!(both.slice(1..1).unwrap().is_empty());
    assert_eq!(both.slice(0..4).unwrap_err(), BlockError::NoSuchPlaces { places: (0, 4), len: 3 });
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = both.slice(2..1);
    assert_eq!(reversed.unwrap_err(), BlockError::NoSuchPlaces { places: (2, 1), len: 3 });
    assert_eq!(both.chain(&allocator(1).take(1).unwrap()).unwrap_err(), BlockError::TwoPools);
    let twice = both.chain(&both).unwrap();
    assert_eq!((twice.len(), blocks.holders(twice.get(0).unwrap())), (6, Ok(3)));
    drop((both, twice));
    assert_eq!(blocks.free(), 8);
    // A block that somebody has released by hand cannot be held any more, and those before it are not either.
    let held = blocks.take(2).unwrap();
    let gone = held.get(1).unwrap();
    blocks.release(gone).unwrap();
    assert_eq!(held.slice(0..2).unwrap_err(), BlockError::DoubleFree(gone));
    assert_eq!(blocks.holders(held.get(0).unwrap()), Ok(1));
}

#[test]
fn releasing_by_hand_what_a_handle_still_holds_harms_nobody_else() {
    let blocks = allocator(1);
    let held = blocks.take(1).unwrap();
    blocks.release(held.get(0).unwrap()).unwrap();
    let other = blocks.take(1).unwrap();
    drop(held);
    assert_eq!(blocks.free(), 0);
    assert_eq!(blocks.holders(other.get(0).unwrap()), Ok(1));
}

#[test]
fn a_retained_range_stays_out_of_reuse() {
    let blocks = allocator(8);
    let held = blocks.take(5).unwrap();
    let quarantine = blocks.retain_range(BLOCK * 2 - 1, BLOCK * 10);
    assert_eq!(quarantine.indices(), [1, 2, 3, 4]);
    drop(held);
    assert_eq!(blocks.free(), 4);
    drop(quarantine);
    assert_eq!(blocks.free(), 8);
    assert!(blocks.retain_range(0, 0).is_empty());
    assert!(blocks.retain_range(u64::MAX, u64::MAX).is_empty());
}

#[test]
fn blocks_of_several_handles_are_shared_by_one() {
    let blocks = allocator(8);
    let (first, second) = (blocks.take(3).unwrap(), blocks.take(2).unwrap());
    let ids: Vec<BlockId> = [second.get(1), first.get(0)].into_iter().flatten().collect();
    let both = blocks.share(&ids).unwrap();
    assert_eq!(both.indices(), [4, 0]);
    drop((first, second));
    assert_eq!(blocks.free(), 6);
    // All or none: a use that is over is nobody's to share.
    drop(both);
    let anew = blocks.take(8).unwrap();
    assert!(matches!(blocks.share(&[anew.get(0).unwrap(), ids[1]]), Err(BlockError::Stale { .. })));
    assert_eq!(blocks.holders(anew.get(0).unwrap()), Ok(1));
}

#[test]
fn a_withheld_range_is_nobodys_used_or_free() {
    let blocks = allocator(8);
    let held = blocks.take(2).unwrap();
    let withheld = blocks.withhold_range(BLOCK, BLOCK * 3);
    assert_eq!(withheld.iter().flat_map(|part| part.indices().to_vec()).collect::<HashSet<_>>(), [1, 2, 3].into());
    drop(held);
    let rest = blocks.take(5).unwrap();
    assert!(rest.indices().iter().all(|index| !(1..4).contains(index)), "{:?}", rest.indices());
    assert!(blocks.take(1).is_err(), "what is withheld is not free");
    drop((withheld, rest));
    assert_eq!(blocks.free(), 8);
    let withheld = blocks.withhold(|index| index % 4 == 3);
    assert_eq!(withheld.iter().map(Blocks::len).sum::<usize>(), 2);
    assert!(blocks.take(7).is_err());
}

#[test]
fn shuffling_is_repeatable_and_loses_nothing() {
    let order = |seed| {
        let blocks = allocator(64);
        blocks.shuffle(seed);
        blocks.take(64).unwrap().indices().to_vec()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_eq!(order(1).into_iter().collect::<HashSet<_>>().len(), 64);
}

#[test]
fn threads_never_hold_the_same_block() {
    let blocks = allocator(16);
    let owners: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for me in 1..=4_u64 {
            let (blocks, owners) = (&blocks, &owners);
            scope.spawn(move || {
                for round in 0..2_000 {
                    let Ok(held) = blocks.take(round % 5) else { continue };
                    let shared = held.clone();
                    for &index in held.indices() {
                        assert_eq!(owners[index as usize].swap(me, Ordering::Relaxed), 0);
                    }
                    drop(held);
                    for &index in shared.indices() {
                        assert_eq!(owners[index as usize].swap(0, Ordering::Relaxed), me);
                    }
                }
            });
        }
    });
    assert_eq!(blocks.free(), 16);
}

/// What a caller may do; numbers pick among what is held, modulo.
#[derive(Debug, Clone)]
enum Step {
    Take(usize),
    Clone(usize),
    Drop(usize),
    Retain(usize),
    Release(usize),
    ReleaseStale(u32, u32),
    RetainRange(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = 0_usize..64;
    let step = prop_oneof![
        4 => (0_usize..6).prop_map(Step::Take),
        2 => pick.clone().prop_map(Step::Clone),
        4 => pick.clone().prop_map(Step::Drop),
        2 => pick.clone().prop_map(Step::Retain),
        3 => pick.prop_map(Step::Release),
        1 => (0_u32..14, 0_u32..3).prop_map(|(index, generation)| Step::ReleaseStale(index, generation)),
        1 => (0_u64..200, 0_u64..80).prop_map(|(offset, len)| Step::RetainRange(offset, len)),
    ];
    prop::collection::vec(step, 0..120)
}

/// Every block in use with its number of holders, and the next generation of every block.
#[derive(Default)]
struct Model {
    holders: BTreeMap<BlockId, u32>,
    generations: BTreeMap<u32, u32>,
}

impl Model {
    fn generation(&self, index: u32) -> u32 {
        self.generations.get(&index).copied().unwrap_or(0)
    }

    fn add(&mut self, ids: impl IntoIterator<Item = BlockId>) {
        for id in ids {
            *self.holders.entry(id).or_default() += 1;
        }
    }

    fn remove(&mut self, ids: impl IntoIterator<Item = BlockId>) {
        for id in ids {
            let left = self.holders.get_mut(&id).unwrap();
            *left -= 1;
            if *left == 0 {
                self.holders.remove(&id);
                self.generations.insert(id.index, id.generation + 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_allocator_agrees_with_a_list_of_holders(steps in steps()) {
        const TOTAL: u32 = 12;
        let blocks = allocator(TOTAL);
        let mut model = Model::default();
        // Sets with the number of handles to each, and holders taken by explicit id.
        let mut sets: Vec<Vec<Blocks>> = Vec::new();
        let mut by_hand: Vec<BlockId> = Vec::new();
        for step in steps {
            match step {
                Step::Take(n) => match blocks.take(n) {
                    Ok(held) => {
                        prop_assert_eq!(held.len(), n);
                        for id in held.ids() {
                            prop_assert!(!model.holders.contains_key(&id));
                            prop_assert_eq!(id.generation, model.generation(id.index));
                        }
                        model.add(held.ids());
                        sets.push(vec![held]);
                    }
                    Err(TakeError::Exhausted { asked, free }) => {
                        prop_assert_eq!(asked, n);
                        prop_assert_eq!(free, TOTAL as usize - model.holders.len());
                        prop_assert!(n > free);
                    }
                },
                Step::Clone(pick) if !sets.is_empty() => {
                    let set = pick % sets.len();
                    let handle = sets[set][0].clone();
                    sets[set].push(handle);
                }
                Step::Drop(pick) if !sets.is_empty() => {
                    let set = pick % sets.len();
                    let ids: Vec<_> = sets[set][0].ids().collect();
                    sets[set].pop();
                    if sets[set].is_empty() {
                        sets.remove(set);
                        model.remove(ids);
                    }
                }
                Step::Retain(pick) if !model.holders.is_empty() => {
                    let id = *model.holders.keys().nth(pick % model.holders.len()).unwrap();
                    prop_assert_eq!(blocks.retain(id), Ok(()));
                    model.add([id]);
                    by_hand.push(id);
                }
                Step::Release(pick) if !by_hand.is_empty() => {
                    let id = by_hand.swap_remove(pick % by_hand.len());
                    let left = model.holders[&id] - 1;
                    let want = if left == 0 { Released::Freed } else { Released::Shared(left) };
                    prop_assert_eq!(blocks.release(id), Ok(want));
                    model.remove([id]);
                }
                Step::ReleaseStale(index, generation) => {
                    let id = BlockId { index, generation };
                    if !model.holders.contains_key(&id) {
                        prop_assert!(blocks.release(id).is_err());
                    }
                }
                Step::RetainRange(offset, len) => {
                    let held = blocks.retain_range(offset, len);
                    let overlaps = |id: &&BlockId| {
                        let start = u64::from(id.index) * BLOCK;
                        len > 0 && start < offset + len && offset < start + BLOCK
                    };
                    let want: Vec<_> = model.holders.keys().filter(overlaps).copied().collect();
                    prop_assert_eq!(held.ids().collect::<Vec<_>>(), want);
                    model.add(held.ids());
                    sets.push(vec![held]);
                }
                _ => {}
            }
            prop_assert_eq!(blocks.free(), TOTAL as usize - model.holders.len());
            for (&id, &holders) in &model.holders {
                prop_assert_eq!(blocks.holders(id), Ok(holders));
            }
        }
    }
}
