//! The arrival counters of a peer, by label.

use std::collections::{BTreeMap, HashMap};

use penstock_transport::lane::CounterRef;

/// A place of the peer's table has one counter at a time, and of those with one label the newest is found.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Which announcement it was that told of the counter at a place, of which label.
    places: HashMap<u32, (u64, String)>,
    /// By announcement, the newest last.
    by_label: HashMap<String, BTreeMap<u64, CounterRef>>,
    told: u64,
}

impl Counters {
    /// What is at this place now; none at generation 0.
    pub(crate) fn learn(&mut self, index: u32, generation: u32, label: String) {
        if let Some((told, old)) = self.places.remove(&index)
            && let Some(same) = self.by_label.get_mut(&old)
        {
            same.remove(&told);
            if same.is_empty() {
                self.by_label.remove(&old);
            }
        }
        if generation != 0 {
            self.told += 1;
            self.by_label.entry(label.clone()).or_default().insert(self.told, CounterRef { index, generation });
            self.places.insert(index, (self.told, label));
        }
    }

    pub(crate) fn find(&self, label: &str) -> Option<CounterRef> {
        self.by_label.get(label)?.last_key_value().map(|(_, counter)| *counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_label_is_found_and_the_one_before_when_it_is_gone() {
        let mut counters = Counters::default();
        let found =
            |counters: &Counters, label| counters.find(label).map(|counter| (counter.index, counter.generation));
        counters.learn(3, 1, "a".to_owned());
        counters.learn(1, 1, "a".to_owned());
        counters.learn(2, 1, "b".to_owned());
        assert_eq!((found(&counters, "a"), found(&counters, "b")), (Some((1, 1)), Some((2, 1))));
        counters.learn(1, 0, String::new());
        assert_eq!(found(&counters, "a"), Some((3, 1)), "another of the label");
        counters.learn(3, 2, "b".to_owned());
        assert_eq!((found(&counters, "a"), found(&counters, "b")), (None, Some((3, 2))), "a place has one");
        counters.learn(3, 0, String::new());
        counters.learn(2, 0, String::new());
        assert_eq!(found(&counters, "b"), None);
        assert!(counters.places.is_empty() && counters.by_label.is_empty());
    }
}
