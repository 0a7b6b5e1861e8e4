//! Lists, queues and maps that have one entry nearly always: it lies where they lie themselves, and only what comes beside it is kept
//! elsewhere.
//!
//! A transfer between two engines has one rank on each side, one leg and one part under way, and there may be a hundred thousand of them
//! in a second: a dozen collections each, of which every one would ask for memory to hold a single entry.

use std::collections::{BTreeMap, VecDeque, btree_map, vec_deque};
use std::iter::Chain;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::{fmt, option, vec};

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
        self.insert(self.len(), value);
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
        let mut few = Self::new();
        few.extend(values);
        few
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

/// A queue.
#[derive(Debug, Clone)]
pub struct FewQueue<T> {
    /// What comes before all others, if it is not among them.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> FewQueue<T> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    /// Adds one behind all others.
    pub fn push_back(&mut self, value: T) {
        if self.is_empty() {
            self.first = Some(value);
        } else {
            self.rest.push_back(value);
        }
    }

    /// Adds one before all others.
    pub fn push_front(&mut self, value: T) {
        if let Some(second) = self.first.replace(value) {
            self.rest.push_front(second);
        }
    }

    /// Takes the first one.
    pub fn pop_front(&mut self) -> Option<T> {
        self.first.take().or_else(|| self.rest.pop_front())
    }

    /// Takes the last one.
    pub fn pop_back(&mut self) -> Option<T> {
        self.rest.pop_back().or_else(|| self.first.take())
    }

    /// The first one.
    pub fn front(&self) -> Option<&T> {
        self.first.as_ref().or_else(|| self.rest.front())
    }

    /// The last one.
    pub fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }

    /// The one that so many come before.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match (&mut self.first, at) {
            (Some(first), 0) => Some(first),
            (Some(_), _) => self.rest.get_mut(at - 1),
            (None, _) => self.rest.get_mut(at),
        }
    }

    /// All of them, in their order.
    pub fn iter(&self) -> Chain<option::Iter<'_, T>, vec_deque::Iter<'_, T>> {
        self.first.iter().chain(&self.rest)
    }

    /// All of them, in their order, to be changed.
    pub fn iter_mut(&mut self) -> Chain<option::IterMut<'_, T>, vec_deque::IterMut<'_, T>> {
        self.first.iter_mut().chain(&mut self.rest)
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
        match (&self.first, at) {
            (Some(first), 0) => first,
            (Some(_), _) => &self.rest[at - 1],
            (None, _) => &self.rest[at],
        }
    }
}

impl<T> IndexMut<usize> for FewQueue<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        match (&mut self.first, at) {
            (Some(first), 0) => first,
            (Some(_), _) => &mut self.rest[at - 1],
            (None, _) => &mut self.rest[at],
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
    more: BTreeMap<K, V>,
}

impl<K: Ord, V> FewMap<K, V> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { one: None, more: BTreeMap::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.more.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.is_empty()
    }

    /// Puts one in, and gives what had its key.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.one.take() {
            Some((known, old)) if known == key => {
                self.one = Some((key, value));
                return Some(old);
            }
            Some((known, other)) => drop(self.more.insert(known, other)),
            None if self.more.is_empty() => {
                self.one = Some((key, value));
                return None;
            }
            None => {}
        }
        self.more.insert(key, value)
    }

    /// Takes one out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        match &self.one {
            Some((known, _)) if known == key => self.one.take().map(|(_, value)| value),
            Some(_) => None,
            None => self.more.remove(key),
        }
    }

    /// The one of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.one {
            Some((known, value)) => (known == key).then_some(value),
            None => self.more.get(key),
        }
    }

    /// The one of this key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.one {
            Some((known, value)) => (known == key).then_some(value),
            None => self.more.get_mut(key),
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
        self.one.iter().map(|(key, value)| (key, value)).chain(&self.more)
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.one.iter_mut().map(|(key, value)| (&*key, value)).chain(&mut self.more)
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
        self.one.into_iter().chain(self.more)
    }
}

#[cfg(test)]
mod tests;
