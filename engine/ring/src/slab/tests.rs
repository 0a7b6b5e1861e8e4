//! The slab against a model, and under contention.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;

#[test]
fn items_are_built_once_and_claimed_until_none_is_left() {
    let slab = Slab::new(3, |index| index * 10);
    assert_eq!(slab.capacity(), 3);
    let keys: Vec<_> = std::iter::from_fn(|| slab.claim()).collect();
    assert_eq!(keys.len(), 3);
    for key in &keys {
        assert_eq!(slab.get(*key), Some(&(key.index * 10)));
        assert_eq!(slab.current_key(key.index), Some(*key));
    }
    slab.release(keys[1]).unwrap();
    assert_eq!(slab.current_key(1), None);
    let again = slab.claim().unwrap();
    assert_eq!(again.index, keys[1].index);
    assert_ne!(again.generation, keys[1].generation);
    assert_eq!(slab.items().count(), 3);
}

#[test]
fn stale_and_invented_keys_are_refused() {
    let slab = Slab::new(1, |_| ());
    let key = slab.claim().unwrap();
    slab.release(key).unwrap();
    let StaleKey { index, generation } = slab.release(key).unwrap_err();
    assert_eq!((index, generation), (key.index, key.generation));
    assert_eq!(slab.get(key), None);
    for (index, generation) in [(0, 0), (0, 2), (0, 3), (1, 1), (u32::MAX, 1)] {
        let invented = Key { index, generation };
        assert!(slab.release(invented).is_err(), "{invented:?}");
        assert_eq!(slab.get(invented), None);
    }
    assert!(Slab::new(0, |_| ()).claim().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn behaves_like_a_map_of_live_keys(
        capacity in 0u32..6,
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200),
    ) {
        let slab = Slab::new(capacity, |index| index);
        let mut live: HashMap<Key, ()> = HashMap::new();
        let mut seen = Vec::new();
        for (claim, pick) in steps {
            if claim {
                match slab.claim() {
                    Some(key) => {
                        prop_assert!(live.insert(key, ()).is_none());
                        prop_assert!(!seen.contains(&key));
                        seen.push(key);
                    }
                    None => prop_assert_eq!(live.len(), capacity as usize),
                }
            } else if !seen.is_empty() {
                let key = *pick.get(&seen);
                prop_assert_eq!(slab.get(key).is_some(), live.contains_key(&key));
                prop_assert_eq!(slab.release(key).is_ok(), live.remove(&key).is_some());
            }
        }
    }
}

#[test]
fn no_item_has_two_owners() {
    let slab = Slab::new(3, |_| AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let Some(key) = slab.claim() else { continue };
                    let owned = slab.get(key).unwrap();
                    assert!(!owned.swap(true, Ordering::Relaxed));
                    assert!(owned.swap(false, Ordering::Relaxed));
                    slab.release(key).unwrap();
                }
            });
        }
    });
    assert_eq!(std::iter::from_fn(|| slab.claim()).count(), 3);
}
