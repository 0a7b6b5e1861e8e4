//! Places in a list, found by names that stand in the list only: four bytes and a few bits for each, however long its name is.

use hashbrown::HashTable;

/// Some places of a list, by the sum of the name that stands at each.
#[derive(Debug, Default)]
pub struct Index(HashTable<u32>);

impl Index {
    /// None.
    pub const fn new() -> Self {
        Self(HashTable::new())
    }

    /// The place with this sum of which this is so.
    pub fn find(&self, sum: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.0.find(sum, |place| is_it(*place)).copied()
    }

    /// Puts a place in that is not there. `sum_of` tells the sums of those that are.
    pub fn insert(&mut self, sum: u64, place: u32, sum_of: impl Fn(u32) -> u64) {
        self.0.insert_unique(sum, place, |place| sum_of(*place));
    }

    /// Takes a place out, if it is there.
    pub fn remove(&mut self, sum: u64, place: u32) {
        if let Ok(found) = self.0.find_entry(sum, |at| *at == place) {
            found.remove();
        }
    }

    /// Gives back memory that a peak has left behind, if less than an eighth of it is used.
    pub fn shrink(&mut self, sum_of: impl Fn(u32) -> u64) {
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(self.0.len() * 2, |place| sum_of(*place));
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For how many there is room.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Keyed;

    #[test]
    fn places_are_found_by_names_that_stand_elsewhere_while_the_table_grows_and_shrinks() {
        let keyed = Keyed::new((1, 2));
        let list: Vec<String> = (0..1000).map(|number| format!("name {number}")).collect();
        let sum_of = |place: u32| keyed.of_name(&list[place as usize]);
        let mut index = Index::new();
        let look = |index: &Index, name: &str| index.find(keyed.of_name(name), |place| list[place as usize] == name);
        (0..1000).for_each(|place| index.insert(sum_of(place), place, sum_of));
        assert!((0..1000).all(|place| look(&index, &list[place as usize]) == Some(place)));
        assert_eq!(look(&index, "name 1000"), None);
        (3..1000).for_each(|place| index.remove(sum_of(place), place));
        index.remove(sum_of(0), 1);
        let before = index.capacity();
        index.shrink(sum_of);
        assert!(before > 8 * index.capacity(), "{before} {}", index.capacity());
        assert_eq!(index.len(), 3, "what is not there at that sum is not taken out");
        assert_eq!([0, 1, 2, 3].map(|place| look(&index, &list[place])), [Some(0), Some(1), Some(2), None]);
    }
}
