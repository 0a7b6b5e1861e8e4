//! Registered memory, and the bytes that go between it.

use std::collections::BTreeMap;

use penstock_core::{Direction, Span};
use penstock_memory::Window;
use penstock_memory::copy::{Hint, scatter};

use crate::adapter::{AccessFlags, Sge};

/// What one registration is.
#[derive(Clone)]
pub(super) struct Registered {
    window: Window,
    access: AccessFlags,
}

/// All registrations of an adapter, by both kinds of key.
#[derive(Default)]
pub(super) struct Registrations {
    local: BTreeMap<u32, Registered>,
    remote: BTreeMap<u32, Registered>,
}

/// What is to be done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryUse {
    /// This side's adapter takes bytes from it.
    Source,
    /// This side's adapter puts bytes there.
    Landing,
    /// A peer's adapter reads it.
    RemoteRead,
    /// A peer's adapter writes it.
    RemoteWrite,
}

impl Registrations {
    pub(super) fn insert(&mut self, local: u32, remote: u32, window: &Window, access: AccessFlags) {
        let registered = Registered { window: window.clone(), access };
        self.local.insert(local, registered.clone());
        self.remote.insert(remote, registered);
    }

    pub(super) fn remove(&mut self, local: u32, remote: u32) -> [Option<Registered>; 2] {
        [self.local.remove(&local), self.remote.remove(&remote)]
    }

    /// Peers' keys of what overlaps this memory mean nothing any more.
    pub(super) fn refuse(&mut self, memory: &Window) {
        let its = memory.base_address()..memory.base_address() + memory.len();
        self.remote.retain(|_, Registered { window, .. }| {
            its.end <= window.base_address() || window.base_address() + window.len() <= its.start
        });
    }

    pub(super) fn len(&self) -> usize {
        self.local.len()
    }

    /// The memory that a key names, if it may be used so in all of the range.
    pub(super) fn range(&self, using: MemoryUse, key: u32, address: u64, bytes: u64) -> Option<Window> {
        let table = match using {
            MemoryUse::Source | MemoryUse::Landing => &self.local,
            MemoryUse::RemoteRead | MemoryUse::RemoteWrite => &self.remote,
        };
        let Registered { window, access } = table.get(&key)?;
        let is_allowed = match using {
            MemoryUse::Source => true,
            MemoryUse::Landing => access.land,
            MemoryUse::RemoteRead => access.read,
            MemoryUse::RemoteWrite => access.write,
        };
        let offset = address.checked_sub(window.base_address())?;
        is_allowed.then(|| window.slice(offset, bytes))?
    }
}

/// The bytes of a request on its own side: registered pieces, or what was taken when it was posted.
pub(super) enum MessagePayload {
    Pieces(Vec<Sge>),
    Taken(Vec<u8>),
}

impl MessagePayload {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Pieces(sges) => sges.iter().map(|sge| u64::from(sge.bytes)).sum(),
            Self::Taken(bytes) => bytes.len() as u64,
        }
    }

    /// Moves `bytes` of it, from `at` on, to or from the memory `there`, which is as long. None if this side's adapter refuses.
    pub(super) fn exchange(
        &self,
        own: &Registrations,
        direction: Direction,
        at: u64,
        bytes: u64,
        there: &Window,
    ) -> Option<()> {
        let sges = match self {
            Self::Taken(taken) => {
                let part = taken.get(at as usize..(at + bytes) as usize)?;
                return there.write_from(0, part).ok();
            }
            Self::Pieces(sges) => sges,
        };
        let using = if direction == Direction::Write { MemoryUse::Source } else { MemoryUse::Landing };
        let (mut begins, mut done) = (0, 0);
        for sge in sges {
            let ends = begins + u64::from(sge.bytes);
            let from = at + done;
            if done < bytes && from < ends {
                let len = (bytes - done).min(ends - from);
                let here = own.range(using, sge.key, sge.address + (from - begins), len)?;
                copy(&here, &there.slice(done, len)?, direction, len)?;
                done += len;
            }
            begins = ends;
        }
        (done == bytes).then_some(())
    }

    /// Copies a part of it, for what is placed later.
    pub(super) fn copied(&self, own: &Registrations, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let buffer = penstock_memory::HostMemory::from_vec(vec![0; bytes as usize]).ok()?;
        self.exchange(own, Direction::Write, at, bytes, buffer.window())?;
        let mut copied = vec![0; bytes as usize];
        buffer.window().read_into(0, &mut copied).ok()?;
        Some(copied)
    }
}

fn copy(here: &Window, there: &Window, direction: Direction, len: u64) -> Option<()> {
    let span = Span { local: 0, remote: 0, len };
    scatter(here, there, direction, &[span], Hint::Cached).ok().map(drop)
}
