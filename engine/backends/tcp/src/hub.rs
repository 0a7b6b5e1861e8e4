//! What a worker's driver and its lanes share: its way to the kernel, and what is ready.
//!
//! Both belong to one worker, so the lock around it is never waited for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_core::config::TcpIo;

use crate::io::{Io, Readiness, SendReleased};

pub(crate) struct Hub {
    inner: Mutex<Inner>,
    /// What the worker sleeps on.
    descriptor: OwnedFd,
    name: String,
}

/// What is behind the lock.
pub(crate) struct Inner {
    pub(crate) io: Io,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// A watched stream. Its key is `use of the place << 32 | place`, so that a late report finds nobody.
#[derive(Default)]
struct Entry {
    uses: u32,
    /// The place of its lane among the worker's, if it is in use.
    peer_index: Option<u32>,
    ready: Readiness,
    /// Sends of it whose pages the kernel has given back.
    released: Vec<SendReleased>,
}

impl Hub {
    pub(crate) fn open(choice: TcpIo) -> io::Result<Self> {
        let io = Io::open(choice)?;
        let descriptor = io.descriptor().try_clone_to_owned()?;
        let name = match io.why() {
            None => io.name().to_owned(),
            Some(why) => format!("{} ({why})", io.name()),
        };
        Ok(Self { inner: Mutex::new(Inner { io, entries: Vec::new(), free: Vec::new() }), descriptor, name })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// What moves the bytes, and why nothing better.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Inner {
    /// Watches a stream of this lane from now on. Answers its key.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, peer_index: u32) -> io::Result<u64> {
        let place = self.free.pop().unwrap_or(self.entries.len() as u32);
        if place as usize == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let entry = &mut self.entries[place as usize];
        (entry.peer_index, entry.ready) = (Some(peer_index), Readiness::default());
        let key = u64::from(entry.uses) << 32 | u64::from(place);
        let watched = self.io.watch(fd, key);
        if watched.is_err() {
            self.vacate(key);
        }
        watched.map(|()| key)
    }

    pub(crate) fn unwatch(&mut self, fd: BorrowedFd<'_>, key: u64) {
        self.io.unwatch(fd, key);
        self.vacate(key);
    }

    fn vacate(&mut self, key: u64) {
        if let Some(entry) = self.entries.get_mut(key as u32 as usize) {
            (entry.uses, entry.peer_index) = (entry.uses.wrapping_add(1), None);
            entry.released.clear();
            self.free.push(key as u32);
        }
    }

    /// Takes what was reported of a stream.
    pub(crate) fn take_ready(&mut self, key: u64) -> Readiness {
        self.entries.get_mut(key as u32 as usize).map_or(Readiness::default(), |entry| std::mem::take(&mut entry.ready))
    }

    /// Takes one of the stream's sends that the kernel has let go of.
    pub(crate) fn take_released(&mut self, key: u64) -> Option<SendReleased> {
        self.entries.get_mut(key as u32 as usize)?.released.pop()
    }

    /// Asks the kernel, and marks the lanes that have something.
    pub(crate) fn turn(&mut self, mut mark: impl FnMut(usize)) -> bool {
        let Self { io, entries, .. } = self;
        let any = io.turn(&mut |key, ready| {
            let Some((entry, peer_index)) = find(entries, key) else { return };
            entry.ready.readable |= ready.readable;
            entry.ready.writable |= ready.writable;
            entry.ready.hung_up |= ready.hung_up;
            mark(peer_index as usize);
        });
        while let Some(released) = io.next_released() {
            let Some((entry, peer_index)) = find(entries, released.key) else { continue };
            entry.released.push(released);
            mark(peer_index as usize);
        }
        any
    }
}

/// The stream of this key, unless it was forgotten, and the place of its lane.
fn find(entries: &mut [Entry], key: u64) -> Option<(&mut Entry, u32)> {
    let entry = entries.get_mut(key as u32 as usize)?;
    let peer_index = entry.peer_index.filter(|_| u64::from(entry.uses) == key >> 32)?;
    Some((entry, peer_index))
}
