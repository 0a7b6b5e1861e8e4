//! Boxes whose memory is used again.
//!
//! What is kept of a transfer takes most of a kibibyte, which an allocator looks for longer than for little things: asking for it and giving it back
//! was a twentieth of what a transfer by name costs.

use std::iter;
use std::ops::{Deref, DerefMut};

/// So many are kept for those that come.
const MOST: usize = 1024;

/// Something that lies elsewhere.
#[derive(Debug)]
pub(crate) struct Boxed<T>(
    /// A list of one: cleared, it still has its memory.
    Vec<T>,
);

impl<T> Deref for Boxed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0[0]
    }
}

impl<T> DerefMut for Boxed<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0[0]
    }
}

/// Memory of those that are no more.
#[derive(Debug)]
pub(crate) struct Spares<T>(Vec<Vec<T>>);

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Spares<T> {
    /// Makes something where another one was. It is made there, as far as the compiler can: what is handed over is copied on its way.
    #[inline]
    pub(crate) fn put(&mut self, make: impl FnOnce() -> T) -> Boxed<T> {
        let mut memory = self.0.pop().unwrap_or_else(|| Vec::with_capacity(1));
        memory.extend(iter::once_with(make));
        Boxed(memory)
    }

    /// Nobody needs it any more: its memory is for the next one.
    pub(crate) fn drop(&mut self, boxed: Boxed<T>) {
        let mut memory = boxed.0;
        memory.clear();
        if self.0.len() < MOST {
            self.0.push(memory);
        }
    }

    /// Gives back memory that a peak has left behind: half of it, or all.
    pub(crate) fn shrink(&mut self, is_all: bool) {
        self.0.truncate(if is_all { 0 } else { self.0.len() / 2 });
        self.0.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn memory_is_used_again_and_what_was_in_it_is_dropped_at_once() {
        let (seen, mut spares) = (Rc::new(()), Spares::default());
        let first = spares.put(|| (7, Rc::clone(&seen)));
        let place: *const _ = &raw const *first;
        assert_eq!(*first, (7, Rc::clone(&seen)));
        spares.drop(first);
        assert_eq!(Rc::strong_count(&seen), 1);
        let mut second = spares.put(|| (8, Rc::clone(&seen)));
        let (number, _) = &mut *second;
        *number += 1;
        assert_eq!(*second, (9, Rc::clone(&seen)));
        assert_eq!(&raw const *second, place);
        drop(second);
        assert_eq!((Rc::strong_count(&seen), spares.0.len()), (1, 0));
    }

    #[test]
    fn only_so_many_are_kept_and_half_of_them_go_at_each_look_or_all() {
        let mut spares = Spares::default();
        let all: Vec<Boxed<u8>> = (0..=MOST).map(|_| spares.put(|| 0)).collect();
        all.into_iter().for_each(|boxed| spares.drop(boxed));
        assert_eq!(spares.0.len(), MOST);
        spares.shrink(false);
        assert_eq!(spares.0.len(), MOST / 2);
        spares.shrink(true);
        assert_eq!((spares.0.len(), spares.0.capacity()), (0, 0));
    }
}
