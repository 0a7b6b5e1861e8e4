//! Ports of one worker, what has arrived at them, and the look at all of them once a turn.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::Timestamp;
use penstock_ring::ReadyBits;
use penstock_transport::{Driver, Rest};

use crate::fabric::Fabric;

/// Packets taken from the fabric in one turn.
const PACKETS_PER_TURN: usize = 64;
/// Packets kept for a lane that has not looked yet. More are lost, as a full socket loses them; they come again.
const ARRIVED_MAX: usize = 256;

/// What a worker's driver and its lanes share. Both belong to one worker, so the lock is never waited for.
pub(crate) struct Hub {
    pub(crate) fabric: Arc<dyn Fabric>,
    ports: Mutex<BTreeMap<u64, Entry>>,
}

struct Entry {
    /// The place of its lane among the worker's.
    peer_index: u32,
    arrived: VecDeque<Vec<u8>>,
    /// When the lane wants to be looked at although nothing comes.
    due: Timestamp,
}

impl Hub {
    pub(crate) fn new(fabric: Arc<dyn Fabric>) -> Self {
        Self { fabric, ports: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has arrived at all ports, and marks the lanes that have something to do. Returns whether any has.
    fn turn(&self, mut mark: impl FnMut(usize)) -> bool {
        let now = self.fabric.now();
        let (mut left, mut any) = (PACKETS_PER_TURN, false);
        for (&port, entry) in self.lock().iter_mut() {
            while left > 0
                && let Some(packet) = self.fabric.receive(port)
            {
                left -= 1;
                if entry.arrived.len() < ARRIVED_MAX {
                    entry.arrived.push_back(packet);
                }
            }
            if !entry.arrived.is_empty() || entry.due <= now {
                mark(entry.peer_index as usize);
                any = true;
            }
        }
        any
    }

    /// When the next lane wants to be looked at.
    fn due(&self) -> Timestamp {
        self.lock().values().map(|entry| entry.due).min().unwrap_or(Timestamp::NEVER)
    }
}

/// One side's end of a session. It is closed when it is dropped.
pub(crate) struct SimPort {
    hub: Arc<Hub>,
    number: u64,
}

impl SimPort {
    /// A fresh port of the engine of this epoch, for the lane at this place.
    pub(crate) fn open(hub: &Arc<Hub>, epoch: u64, peer_index: u32) -> Self {
        let number = hub.fabric.open(epoch);
        hub.lock().insert(number, Entry { peer_index, arrived: VecDeque::new(), due: Timestamp::NEVER });
        Self { hub: Arc::clone(hub), number }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.hub.fabric.now()
    }

    pub(crate) fn send(&self, to: u64, packet: Vec<u8>) {
        self.hub.fabric.send(self.number, to, packet);
    }

    /// The next packet that has arrived.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.hub.lock().get_mut(&self.number)?.arrived.pop_front()
    }

    /// Whether more has arrived.
    pub(crate) fn has_more(&self) -> bool {
        self.hub.lock().get(&self.number).is_some_and(|entry| !entry.arrived.is_empty())
    }

    /// Its lane is to be looked at by then.
    pub(crate) fn set_due(&self, due: Timestamp) {
        if let Some(entry) = self.hub.lock().get_mut(&self.number) {
            entry.due = due;
        }
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.hub.fabric.close(self.number);
        self.hub.lock().remove(&self.number);
    }
}

pub(crate) struct SimDriver {
    hub: Arc<Hub>,
    ready: ReadyBits,
    /// Never readable: who waits on one thread with its whole world has nobody to be woken by.
    silent: OwnedFd,
}

impl SimDriver {
    pub(crate) fn new(hub: Arc<Hub>, ready: ReadyBits) -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let silent = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { hub, ready, silent })
    }
}

impl Driver for SimDriver {
    fn turn(&mut self) -> bool {
        let Self { hub, ready, .. } = self;
        hub.turn(|peer_index| ready.mark(peer_index))
    }

    fn rest(&mut self, _: Timestamp) -> Rest {
        if self.turn() { Rest::Busy } else { Rest::Until(self.hub.due()) }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }
}
