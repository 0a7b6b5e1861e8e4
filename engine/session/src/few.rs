//! Lists, queues and maps that have one entry nearly always: it lies where they lie themselves, and only what comes beside it is kept
//! elsewhere.
//!
//! A transfer between two engines has one rank on each side, one leg and one part under way, and there may be a hundred thousand of them
//! in a second: a dozen collections each, of which every one would ask for memory to hold a single entry.

use std::collections::{BTreeMap, VecDeque, btree_map, vec_deque};
use std::iter::Chain;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::{fmt, option, vec};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list.
#[derive(Clone)]
pub struct Few<T>(Inner<T>);

#[derive(Clone)]
enum Inner<T> {
    None,
    One([T; 1]),
    More(Vec<T>),
}

impl<T> Few<T> {
    /// Nothing.
    pub const fn new() -> Self {
        Self(Inner::None)
    }

    /// Adds one behind all others.
    pub fn push(&mut self, value: T) {
        match &mut self.0 {
            Inner::None => self.0 = Inner::One([value]),
            Inner::One(_) => self.insert(1, value),
            Inner::More(more) => more.push(value),
        }
    }

    /// Adds one there; what stood there and behind it moves on. The place is at most the length.
    pub fn insert(&mut self, at: usize, value: T) {
        match &mut self.0 {
            Inner::None => {
                assert_eq!(at, 0, "there is nothing to stand behind");
                self.0 = Inner::One([value]);
            }
            Inner::More(more) => more.insert(at, value),
            Inner::One(_) => {
                let mut more = Vec::with_capacity(4);
                more.extend(std::mem::take(self));
                more.insert(at, value);
                self.0 = Inner::More(more);
            }
        }
    }

    /// Takes one out; what stood behind it moves up. There has to be one.
    pub fn remove(&mut self, at: usize) -> T {
        match std::mem::take(self).0 {
            Inner::More(mut more) => {
                let value = more.remove(at);
                self.0 = Inner::More(more);
                value
            }
            Inner::One([value]) if at == 0 => value,
            _ => panic!("there is nothing at {at}"),
        }
    }
}

impl<T: Clone> Few<T> {
    /// So many of one.
    pub fn of(value: T, count: usize) -> Self {
        match count {
            0 => Self::new(),
            1 => Self(Inner::One([value])),
            _ => Self(Inner::More(vec![value; count])),
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Inner::None => &[],
            Inner::One(one) => one,
            Inner::More(more) => more,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Inner::None => &mut [],
            Inner::One(one) => one,
            Inner::More(more) => more,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, out)
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T> From<Vec<T>> for Few<T> {
    fn from(more: Vec<T>) -> Self {
        Self(Inner::More(more))
    }
}

impl<T: Clone> From<&[T]> for Few<T> {
    fn from(entries: &[T]) -> Self {
        match entries {
            [] => Self::new(),
            [one] => Self(Inner::One([one.clone()])),
            more => Self(Inner::More(more.to_vec())),
        }
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        let mut values = values.into_iter();
        while !matches!(self.0, Inner::More(_)) {
            let Some(value) = values.next() else { return };
            self.push(value);
        }
        if let Inner::More(more) = &mut self.0 {
            more.extend(values);
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        let Some(first) = values.next() else { return Self::new() };
        let Some(second) = values.next() else { return Self(Inner::One([first])) };
        let mut more = Vec::with_capacity(4);
        more.extend([first, second]);
        more.extend(values);
        Self(Inner::More(more))
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = Chain<option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, more) = match self.0 {
            Inner::None => (None, Vec::new()),
            Inner::One([one]) => (Some(one), Vec::new()),
            Inner::More(more) => (None, more),
        };
        one.into_iter().chain(more)
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Few<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: Serialize> Serialize for Few<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

/// Memory that is asked for as somebody says that there are so many entries, in bytes; for what is beyond that they have to come.
const SAID_MAX: usize = 1 << 20;

/// Reads entries as they come.
struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = Few<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Few<T>, A::Error> {
        // As many as are said, in one piece that fits, which is what a limit on what is kept counts.
        let said = entries.size_hint().unwrap_or(0).min(SAID_MAX / size_of::<T>().max(1));
        let mut few = if said > 1 { Few(Inner::More(Vec::with_capacity(said))) } else { Few::new() };
        while let Some(entry) = entries.next_element()? {
            few.push(entry);
        }
        Ok(few)
    }
}

/// A queue.
#[derive(Debug, Clone)]
pub struct FewQueue<T> {
    /// What comes before all others, if it is not among them.
    first: Option<T>,
    /// None until there was a second one.
    #[expect(
        clippy::box_collection,
        reason = "it is nearly never there, and takes a quarter of the room in what holds the queue"
    )]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> FewQueue<T> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { first: None, rest: None }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_none_or(|rest| rest.is_empty())
    }

    /// Adds one behind all others.
    pub fn push_back(&mut self, value: T) {
        if self.is_empty() {
            self.first = Some(value);
        } else {
            self.rest.get_or_insert_default().push_back(value);
        }
    }

    /// Adds one before all others.
    pub fn push_front(&mut self, value: T) {
        if let Some(second) = self.first.replace(value) {
            self.rest.get_or_insert_default().push_front(second);
        }
    }

    /// Takes the first one.
    pub fn pop_front(&mut self) -> Option<T> {
        self.first.take().or_else(|| self.rest.as_mut()?.pop_front())
    }

    /// The first one.
    pub fn front(&self) -> Option<&T> {
        self.first.as_ref().or_else(|| self.rest.as_ref()?.front())
    }

    /// The last one.
    pub fn back(&self) -> Option<&T> {
        self.rest.as_ref().and_then(|rest| rest.back()).or(self.first.as_ref())
    }

    /// The one that so many come before.
    pub fn get(&self, at: usize) -> Option<&T> {
        match (&self.first, at) {
            (Some(first), 0) => Some(first),
            (first, _) => self.rest.as_ref()?.get(at - usize::from(first.is_some())),
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match (&mut self.first, at) {
            (Some(first), 0) => Some(first),
            (first, _) => self.rest.as_mut()?.get_mut(at - usize::from(first.is_some())),
        }
    }

    /// All of them, in their order.
    pub fn iter(&self) -> Chain<option::Iter<'_, T>, vec_deque::Iter<'_, T>> {
        let rest = self.rest.as_ref().map_or_else(vec_deque::Iter::default, |rest| rest.iter());
        self.first.iter().chain(rest)
    }

    /// All of them, in their order, to be changed.
    pub fn iter_mut(&mut self) -> Chain<option::IterMut<'_, T>, vec_deque::IterMut<'_, T>> {
        let rest = self.rest.as_mut().map_or_else(vec_deque::IterMut::default, |rest| rest.iter_mut());
        self.first.iter_mut().chain(rest)
    }
}

impl<T> Default for FewQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<usize> for FewQueue<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        match self.get(at) {
            Some(value) => value,
            None => panic!("there is nothing at {at}"),
        }
    }
}

impl<T> IndexMut<usize> for FewQueue<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        match self.get_mut(at) {
            Some(value) => value,
            None => panic!("there is nothing at {at}"),
        }
    }
}

impl<'a, T> IntoIterator for &'a FewQueue<T> {
    type Item = &'a T;
    type IntoIter = Chain<option::Iter<'a, T>, vec_deque::Iter<'a, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut FewQueue<T> {
    type Item = &'a mut T;
    type IntoIter = Chain<option::IterMut<'a, T>, vec_deque::IterMut<'a, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> Extend<T> for FewQueue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push_back(value));
    }
}

impl<T> FromIterator<T> for FewQueue<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Self::new();
        few.extend(values);
        few
    }
}

/// A map, in the order of its keys.
#[derive(Debug, Clone)]
pub struct FewMap<K, V> {
    /// The only one, as long as there was no other beside it.
    one: Option<(K, V)>,
    /// None until there was a second one.
    #[expect(
        clippy::box_collection,
        reason = "it is nearly never there, and takes a third of the room in what holds the map"
    )]
    more: Option<Box<BTreeMap<K, V>>>,
}

impl<K: Ord, V> FewMap<K, V> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { one: None, more: None }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.more.as_ref().map_or(0, |more| more.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.as_ref().is_none_or(|more| more.is_empty())
    }

    /// Puts one in, and gives what had its key.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.one.take() {
            Some((known, old)) if known == key => {
                self.one = Some((key, value));
                return Some(old);
            }
            Some((known, other)) => drop(self.more.get_or_insert_default().insert(known, other)),
            None if self.is_empty() => {
                self.one = Some((key, value));
                return None;
            }
            None => {}
        }
        self.more.get_or_insert_default().insert(key, value)
    }

    /// Takes one out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        match &self.one {
            Some((known, _)) if known == key => self.one.take().map(|(_, value)| value),
            Some(_) => None,
            None => self.more.as_mut()?.remove(key),
        }
    }

    /// The one of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.one {
            Some((known, value)) => (known == key).then_some(value),
            None => self.more.as_ref()?.get(key),
        }
    }

    /// The one of this key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.one {
            Some((known, value)) => (known == key).then_some(value),
            None => self.more.as_mut()?.get_mut(key),
        }
    }

    /// Whether there is one of this key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// All of them, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> + Clone {
        let more = self.more.as_ref().map_or_else(btree_map::Iter::default, |more| more.iter());
        self.one.iter().map(|(key, value)| (key, value)).chain(more)
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let more = self.more.as_mut().map_or_else(btree_map::IterMut::default, |more| more.iter_mut());
        self.one.iter_mut().map(|(key, value)| (&*key, value)).chain(more)
    }

    /// The keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// What they lead to, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Default for FewMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord, V> Extend<(K, V)> for FewMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for FewMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V> IntoIterator for FewMap<K, V> {
    type Item = (K, V);
    type IntoIter = Chain<option::IntoIter<(K, V)>, btree_map::IntoIter<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.one.into_iter().chain(self.more.map_or_else(BTreeMap::new, |more| *more))
    }
}

#[cfg(test)]
mod tests;
