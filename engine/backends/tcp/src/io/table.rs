//! What is watched: which stream stands behind a number that the kernel gives back.

use std::collections::HashMap;
use std::io::{ErrorKind, Result};
use std::os::fd::RawFd;

/// A number of a stream is below `1 << 62`: what is above stands for other things.
const GENERATIONS: u32 = 1 << 30;

pub(super) struct Watched {
    pub(super) fd: RawFd,
    pub(super) key: u64,
    /// Somebody waits until it can be written.
    pub(super) wants_room: bool,
    /// A ring polls it, or will from its next call on: for what comes, for room.
    pub(super) is_polled: bool,
    pub(super) is_polled_for_room: bool,
}

struct Slot {
    /// Grows with each stream that has the slot, so that a late word about an old one is known as such.
    generation: u32,
    watched: Option<Watched>,
}

/// The streams of one worker.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    places: HashMap<RawFd, u32>,
}

impl Table {
    /// Takes a stream in, and answers the number that stands for it from now on.
    pub(super) fn add(&mut self, fd: RawFd, key: u64) -> Result<u64> {
        if self.places.contains_key(&fd) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let watched = Watched { fd, key, wants_room: false, is_polled: false, is_polled_for_room: false };
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.slots.push(Slot { generation: 0, watched: None });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[place as usize];
        slot.generation = (slot.generation + 1) % GENERATIONS;
        slot.watched = Some(watched);
        self.places.insert(fd, place);
        Ok(number(slot.generation, place))
    }

    /// Forgets a stream, and answers it with the number that stood for it.
    pub(super) fn remove(&mut self, fd: RawFd, key: u64) -> Option<(u64, Watched)> {
        let place = *self.places.get(&fd)?;
        let slot = &mut self.slots[place as usize];
        let watched = slot.watched.take_if(|watched| watched.key == key)?;
        self.places.remove(&fd);
        self.free.push(place);
        Some((number(slot.generation, place), watched))
    }

    /// The stream of a descriptor, with the number that stands for it.
    pub(super) fn find(&mut self, fd: RawFd) -> Option<(u64, &mut Watched)> {
        let place = *self.places.get(&fd)?;
        let slot = &mut self.slots[place as usize];
        Some((number(slot.generation, place), slot.watched.as_mut()?))
    }

    /// The stream behind a number, unless it is no longer watched.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Watched> {
        let slot = self.slots.get_mut(number as u32 as usize)?;
        let is_current = u64::from(slot.generation) == number >> 32;
        slot.watched.as_mut().filter(|_| is_current)
    }

    /// All streams, with the numbers that stand for them.
    pub(super) fn all(&mut self) -> impl Iterator<Item = (u64, &mut Watched)> {
        let numbered = self.slots.iter_mut().enumerate();
        numbered.filter_map(|(place, slot)| Some((number(slot.generation, place as u32), slot.watched.as_mut()?)))
    }

    /// Places made so far, taken or free.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }
}

fn number(generation: u32, place: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place)
}
