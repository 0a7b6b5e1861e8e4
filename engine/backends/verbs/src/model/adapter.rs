//! An adapter of a network, and its faults.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_memory::{DeviceWindow, Window};
use rustix::io::Errno;

use super::cq::ModelCq;
use super::memory::Registered;
use super::world::{AdapterState, Sign};
use super::{Hub, refused};
use crate::adapter::{
    AccessFlags, Adapter, AdapterError, AsyncEvent, DeviceAttr, DeviceReach, GidKind, Registration, WcStatus, WorkerCq,
};

/// An adapter of a [`ModelNetwork`](super::ModelNetwork).
pub struct ModelAdapter {
    hub: Arc<Hub>,
    pub(super) place: usize,
    attr: DeviceAttr,
    sign: Arc<Sign>,
}

/// What an adapter has, and what it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub queues: usize,
    pub registrations: usize,
    /// Lists that were posted: doorbells.
    pub lists: u64,
    pub requests: u64,
    /// Bytes that its queues moved.
    pub bytes: u64,
    /// Queues that were made new.
    pub resets: u64,
    /// Receives that wait at the CQs of its queues.
    pub receives: usize,
}

impl ModelAdapter {
    pub(super) fn new(hub: Arc<Hub>, change: impl FnOnce(&mut DeviceAttr)) -> Self {
        let mut world = hub.lock();
        let place = world.adapters.len();
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xfd, place as u8 + 1);
        gid[8..12].copy_from_slice(&(place as u32).to_be_bytes());
        let mut attr = DeviceAttr {
            name: format!("model{place}/1"),
            gid,
            lid: 0,
            kind: GidKind::RoceV2,
            network_bits: 64,
            is_routable: false,
            mtu: 4096,
            bandwidth: 100_000_000_000,
            node: None,
            sges_max: 30,
            requests_max: 1024,
            receives_max: 16 << 10,
            completions_max: 64 << 10,
            inline_max: 220,
            reads_max: 16,
            cm_address: None,
        };
        change(&mut attr);
        world.new_adapter(attr.clone());
        let sign = Arc::clone(&world.adapters[place].sign);
        drop(world);
        Self { hub, place, attr, sign }
    }

    /// What it has, and what it has done.
    pub fn counts(&self) -> Counts {
        let world = self.hub.lock();
        let adapter = &world.adapters[self.place];
        Counts {
            queues: world.queues.values().filter(|queue| queue.adapter == self.place).count(),
            registrations: adapter.registrations.len(),
            lists: adapter.lists_posted,
            requests: adapter.requests_posted,
            bytes: adapter.bytes_moved,
            resets: adapter.resets,
            receives: world.receives_of(self.place),
        }
    }

    /// Takes its port down or up, and says so as an event.
    pub fn set_port(&self, is_up: bool) {
        self.hub.change(|world| {
            world.adapters[self.place].is_up = is_up;
            world.event(self.place, if is_up { AsyncEvent::PortUp } else { AsyncEvent::PortDown });
        });
    }

    /// Stands still: nothing leaves and nothing arrives, and nobody's patience ends meanwhile.
    pub fn hold(&self) {
        self.change(|adapter| adapter.is_held = true);
    }

    pub fn release(&self) {
        self.change(|adapter| adapter.is_held = false);
    }

    /// Breaks a queue, by its number, and says so as an event. Returns whether there is such a queue.
    pub fn break_queue(&self, number: u32) -> bool {
        self.hub.change(|world| {
            let Some(name) = world.numbers.get(&(self.place, number)).copied() else { return false };
            world.break_queue(name, WcStatus::Flushed);
            world.event(self.place, AsyncEvent::QueueBroken(number));
            true
        })
    }

    /// Lets so many more requests of its queues begin, and breaks the queue of the next.
    pub fn break_after(&self, requests: u64) {
        self.change(|adapter| adapter.break_after = Some(requests));
    }

    /// Breaks the queue of every request to a peer's memory of this key from now on, and says nothing of why: some drivers do not
    /// tell what they found wrong themselves.
    pub fn break_at(&self, key: u32) {
        self.change(|adapter| adapter.break_at = Some(key));
    }

    /// Makes something happen to it, of which only is heard what is said here.
    pub fn raise(&self, event: AsyncEvent) {
        self.hub.change(|world| world.event(self.place, event));
    }

    /// Fails for good: all its queues break, every call but that a queue is given back is refused, and its descriptors are readable, as those of a device that is gone.
    pub fn fail(&self) {
        self.hub.change(|world| {
            world.adapters[self.place].is_dead = true;
            let its = world.queues.iter().filter(|(_, queue)| queue.adapter == self.place);
            let names: Vec<_> = its.map(|(name, _)| *name).collect();
            for name in names {
                world.break_queue(name, WcStatus::Card);
            }
            world.event(self.place, AsyncEvent::Fatal);
            world.adapters[self.place].sign.stick();
            world.cqs.values().filter(|cq| cq.adapter == self.place).for_each(|cq| cq.sign.stick());
        });
    }

    /// Makes answers of its reads take so long. Meanwhile what is posted behind them is carried out, and the bytes are fetched only
    /// then, as when an adapter had to ask twice.
    pub fn slow_reads(&self, by: Duration) {
        self.change(|adapter| adapter.read_time = by);
    }

    /// Refuses the next registrations.
    pub fn refuse_registrations(&self, count: u64) {
        self.change(|adapter| adapter.refuse_registrations = count);
    }

    /// Takes so long for each registration from now on, as for much memory of small pages.
    pub fn pin_for(&self, time: Duration) {
        self.change(|adapter| adapter.pins_for = time);
    }

    /// Takes no dma-bufs from now on, as soft RoCE does not.
    pub fn refuse_dma_bufs(&self) {
        self.change(|adapter| adapter.refuses_dma_bufs = true);
    }

    /// Reaches memory of a device by its address from now on, as where a module of the kernel knows it. Here an address means nothing but to this
    /// process, so the device's memory has to be this process's own.
    pub fn reach_peer_memory(&self) {
        self.change(|adapter| adapter.reaches_peer_memory = true);
    }

    /// Refuses peers' requests to this memory from now on, by the keys that they have.
    pub fn refuse_keys(&self, memory: &Window) {
        self.change(|adapter| adapter.registrations.refuse(memory));
    }

    /// Refuses the next CQs.
    pub fn refuse_cqs(&self, count: u64) {
        self.change(|adapter| adapter.refuse_cqs = count);
    }

    /// Refuses the next queues.
    pub fn refuse_queues(&self, count: u64) {
        self.change(|adapter| adapter.refuse_queues = count);
    }

    /// Refuses to connect the next queues.
    pub fn refuse_connects(&self, count: u64) {
        self.change(|adapter| adapter.refuse_connects = count);
    }

    /// Refuses to make the next queues new.
    pub fn refuse_resets(&self, count: u64) {
        self.change(|adapter| adapter.refuse_resets = count);
    }

    /// Refuses to take the next queues back that are given back and not merely dropped.
    pub fn refuse_to_take_back(&self, count: u64) {
        self.change(|adapter| adapter.refuse_to_take_back = count);
    }

    /// Loses the receive of the message that is coming when a queue breaks, from now on.
    pub fn lose_receives(&self) {
        self.change(|adapter| adapter.loses_receives = true);
    }

    /// Makes whoever makes a queue wait so long.
    pub fn slow_queues(&self, by: Duration) {
        self.change(|adapter| adapter.make_time = by);
    }

    /// Makes whoever connects a queue wait so long, as where the network has to be asked for the peer.
    pub fn slow_connects(&self, by: Duration) {
        self.change(|adapter| adapter.connect_time = by);
    }

    fn keep(
        &self,
        registered: Registered,
        is_writable: bool,
        access: AccessFlags,
        manner: &'static str,
    ) -> Result<Arc<dyn Registration>, AdapterError> {
        let mut world = self.hub.lock();
        world.adapters[self.place].alive("register")?;
        if take_one(&mut world.adapters[self.place].refuse_registrations) {
            let mend = "raise the limit of locked memory (ulimit -l)";
            return Err(refused("register", &self.attr.name, Errno::NOMEM, mend));
        }
        if (access.write || access.land) && !is_writable {
            let mend = "register it without the right to write";
            return Err(refused("register", &self.attr.name, Errno::FAULT, mend));
        }
        let key = world.next() as u32;
        let (local_key, remote_key) = (0x1000_0000 | key, 0x2000_0000 | key);
        world.adapters[self.place].registrations.insert(local_key, remote_key, registered);
        let (hub, adapter) = (Arc::clone(&self.hub), self.place);
        Ok(Arc::new(ModelRegistration { hub, adapter, local_key, remote_key, manner }))
    }

    fn change(&self, change: impl FnOnce(&mut AdapterState)) {
        self.hub.change(|world| change(&mut world.adapters[self.place]));
    }
}

impl AdapterState {
    /// Refuses a call of an adapter that has failed.
    pub(super) fn alive(&self, call: &'static str) -> Result<(), AdapterError> {
        if !self.is_dead {
            return Ok(());
        }
        Err(refused(call, &self.attr.name, Errno::IO, "the card has failed: replace it"))
    }
}

/// Counts one down, if there is one. Returns whether there was.
pub(super) fn take_one(count: &mut u64) -> bool {
    let had = *count > 0;
    *count = count.saturating_sub(1);
    had
}

impl Adapter for ModelAdapter {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn register(&self, memory: &Window, access: AccessFlags) -> Result<Arc<dyn Registration>, AdapterError> {
        let pins_for = self.hub.lock().adapters[self.place].pins_for;
        std::thread::sleep(pins_for);
        self.keep(Registered::host(memory, access), memory.is_writable(), access, "in the model")
    }

    fn register_device(
        &self,
        memory: &DeviceWindow,
        by: DeviceReach<'_>,
        access: AccessFlags,
    ) -> Result<Arc<dyn Registration>, AdapterError> {
        let (refuses, reaches_peers) = {
            let adapter = &self.hub.lock().adapters[self.place];
            (adapter.refuses_dma_bufs, adapter.reaches_peer_memory)
        };
        let not_here = |why: &str| AdapterError::NotHere {
            what: format!("memory of a device on {}", self.attr.name),
            why: why.to_owned(),
            mend: "its bytes go through host memory".to_owned(),
        };
        let (registered, manner) = match by {
            DeviceReach::DmaBuf { .. } if refuses => return Err(not_here("its driver takes no dma-buf")),
            DeviceReach::DmaBuf { descriptor, offset } => {
                let mapped = Registered::dma_buf(memory, (descriptor, offset), access);
                (mapped.map_err(|error| not_here(&error.to_string()))?, "a dma-buf")
            }
            DeviceReach::PeerMemory if !reaches_peers => return Err(not_here("no module knows its address")),
            DeviceReach::PeerMemory => {
                let its = Registered::peer_memory(memory, access);
                (its.map_err(|error| not_here(&error.to_string()))?, "peer memory")
            }
        };
        self.keep(registered, memory.is_writable(), access, manner)
    }

    fn worker_cq(&self, completions: usize, receives: usize) -> Result<Box<dyn WorkerCq>, AdapterError> {
        let mut world = self.hub.lock();
        world.adapters[self.place].alive("desk")?;
        let is_refused = take_one(&mut world.adapters[self.place].refuse_cqs);
        for (what, has, wants) in
            [("completions", self.attr.completions_max, completions), ("receives", self.attr.receives_max, receives)]
        {
            let has = if is_refused { 0 } else { has };
            if wants > has {
                return Err(AdapterError::NoRoom { adapter: self.attr.name.clone(), what, has, wants });
            }
        }
        let name = world.new_cq(self.place, completions, receives);
        Ok(Box::new(ModelCq::new(&self.hub, self.place, &self.attr.name, name, &world.cqs[&name])))
    }

    fn next_event(&self) -> Option<AsyncEvent> {
        let mut world = self.hub.lock();
        let adapter = &mut world.adapters[self.place];
        let event = adapter.events.pop_front();
        if adapter.events.is_empty() {
            adapter.sign.hide();
        }
        event
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.sign.descriptor().as_fd()
    }
}

struct ModelRegistration {
    hub: Arc<Hub>,
    adapter: usize,
    local_key: u32,
    remote_key: u32,
    manner: &'static str,
}

impl Registration for ModelRegistration {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }

    fn manner(&self) -> &'static str {
        self.manner
    }
}

impl Drop for ModelRegistration {
    fn drop(&mut self) {
        let mut world = self.hub.lock_quietly();
        // What came before was in the adapter's keeping, and is seen now.
        world.place_all(Some(self.adapter));
        let gone = world.adapters[self.adapter].registrations.remove(self.local_key, self.remote_key);
        drop(world);
        // With them perhaps the memory itself, for which nobody should wait.
        drop(gone);
    }
}
