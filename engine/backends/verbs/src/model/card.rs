//! A card of a network, and its faults.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_memory::Window;
use rustix::io::Errno;

use super::desk::ModelDesk;
use super::world::{CardState, Sign};
use super::{Hub, refused};
use crate::card::{Access, Card, CardError, Desk, Event, Facts, GidKind, Registration, Trouble};

/// A card of a [`ModelNetwork`](super::ModelNetwork).
pub struct ModelCard {
    hub: Arc<Hub>,
    pub(super) place: usize,
    facts: Facts,
    sign: Arc<Sign>,
}

/// What a card has, and what it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Queues that exist.
    pub queues: usize,
    /// Registrations that exist.
    pub registrations: usize,
    /// Lists that were posted: doorbells.
    pub lists: u64,
    /// Requests in them.
    pub requests: u64,
    /// Bytes that its queues moved.
    pub bytes: u64,
    /// Queues that were made new.
    pub resets: u64,
    /// Receives that wait at the desks of its queues.
    pub receives: usize,
}

impl ModelCard {
    pub(super) fn new(hub: Arc<Hub>, change: impl FnOnce(&mut Facts)) -> Self {
        let mut world = hub.lock();
        let place = world.cards.len();
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xfd, place as u8 + 1);
        gid[8..12].copy_from_slice(&(place as u32).to_be_bytes());
        let mut facts = Facts {
            name: format!("model{place}/1"),
            gid,
            lid: 0,
            kind: GidKind::RoceV2,
            network_bits: 64,
            is_routable: false,
            mtu: 4096,
            bandwidth: 100_000_000_000,
            node: None,
            pieces_max: 30,
            requests_max: 1024,
            receives_max: 16 << 10,
            completions_max: 64 << 10,
            inline_max: 220,
            reads_max: 16,
            meets_at: None,
        };
        change(&mut facts);
        world.new_card(facts.clone());
        let sign = Arc::clone(&world.cards[place].sign);
        drop(world);
        Self { hub, place, facts, sign }
    }

    /// What it has, and what it has done.
    pub fn counts(&self) -> Counts {
        let world = self.hub.lock();
        let card = &world.cards[self.place];
        Counts {
            queues: world.queues.values().filter(|queue| queue.card == self.place).count(),
            registrations: card.registrations.len(),
            lists: card.lists_posted,
            requests: card.requests_posted,
            bytes: card.bytes_moved,
            resets: card.resets,
            receives: world.receives_of(self.place),
        }
    }

    /// Takes its port down or up, and says so as an event.
    pub fn set_port(&self, is_up: bool) {
        self.hub.change(|world| {
            world.cards[self.place].is_up = is_up;
            world.event(self.place, if is_up { Event::PortUp } else { Event::PortDown });
        });
    }

    /// Stands still: nothing leaves and nothing arrives, and nobody's patience ends meanwhile.
    pub fn hold(&self) {
        self.change(|card| card.is_held = true);
    }

    /// Goes on.
    pub fn release(&self) {
        self.change(|card| card.is_held = false);
    }

    /// Breaks a queue, by its number, and says so as an event. Answers whether there is such a queue.
    pub fn break_queue(&self, number: u32) -> bool {
        self.hub.change(|world| {
            let Some(name) = world.numbers.get(&(self.place, number)).copied() else { return false };
            world.break_queue(name, Trouble::Flushed);
            world.event(self.place, Event::QueueBroken(number));
            true
        })
    }

    /// Lets so many more requests of its queues begin, and breaks the queue of the next.
    pub fn break_after(&self, requests: u64) {
        self.change(|card| card.break_after = Some(requests));
    }

    /// Breaks the queue of every request to a peer's memory of this key from now on, and says nothing of why: some drivers do not
    /// tell what they found wrong themselves.
    pub fn break_at(&self, key: u32) {
        self.change(|card| card.break_at = Some(key));
    }

    /// Makes something happen to it, of which only is heard what is said here.
    pub fn raise(&self, event: Event) {
        self.hub.change(|world| world.event(self.place, event));
    }

    /// Fails for good: all its queues break, every call but that a queue is given back is refused, and its descriptors are readable, as those of a device that is gone.
    pub fn fail(&self) {
        self.hub.change(|world| {
            world.cards[self.place].is_dead = true;
            let its = world.queues.iter().filter(|(_, queue)| queue.card == self.place);
            let names: Vec<_> = its.map(|(name, _)| *name).collect();
            for name in names {
                world.break_queue(name, Trouble::Card);
            }
            world.event(self.place, Event::Fatal);
            world.cards[self.place].sign.stick();
            world.desks.values().filter(|desk| desk.card == self.place).for_each(|desk| desk.sign.stick());
        });
    }

    /// Makes answers of its reads take so long. Meanwhile what is posted behind them is carried out, and the bytes are fetched only
    /// then, as when a card had to ask twice.
    pub fn slow_reads(&self, by: Duration) {
        self.change(|card| card.read_time = by);
    }

    /// Refuses the next registrations.
    pub fn refuse_registrations(&self, count: u64) {
        self.change(|card| card.refuse_registrations = count);
    }

    /// Refuses peers' requests to this memory from now on, by the keys that they have.
    pub fn refuse_keys(&self, memory: &Window) {
        self.change(|card| card.registrations.refuse(memory));
    }

    /// Refuses the next desks.
    pub fn refuse_desks(&self, count: u64) {
        self.change(|card| card.refuse_desks = count);
    }

    /// Refuses the next queues.
    pub fn refuse_queues(&self, count: u64) {
        self.change(|card| card.refuse_queues = count);
    }

    /// Refuses to connect the next queues.
    pub fn refuse_connects(&self, count: u64) {
        self.change(|card| card.refuse_connects = count);
    }

    /// Refuses to make the next queues new.
    pub fn refuse_resets(&self, count: u64) {
        self.change(|card| card.refuse_resets = count);
    }

    /// Refuses to take the next queues back that are given back and not merely dropped.
    pub fn refuse_to_take_back(&self, count: u64) {
        self.change(|card| card.refuse_to_take_back = count);
    }

    /// Loses the receive of the message that is coming when a queue breaks, from now on.
    pub fn lose_receives(&self) {
        self.change(|card| card.loses_receives = true);
    }

    /// Makes whoever makes a queue wait so long.
    pub fn slow_queues(&self, by: Duration) {
        self.change(|card| card.make_time = by);
    }

    /// Makes whoever connects a queue wait so long, as where the network has to be asked for the peer.
    pub fn slow_connects(&self, by: Duration) {
        self.change(|card| card.connect_time = by);
    }

    fn change(&self, change: impl FnOnce(&mut CardState)) {
        self.hub.change(|world| change(&mut world.cards[self.place]));
    }
}

impl CardState {
    /// Refuses a call of a card that has failed.
    pub(super) fn alive(&self, call: &'static str) -> Result<(), CardError> {
        if !self.is_dead {
            return Ok(());
        }
        Err(refused(call, &self.facts.name, Errno::IO, "the card has failed: replace it"))
    }
}

/// Counts one down, if there is one. Answers whether there was.
pub(super) fn take_one(count: &mut u64) -> bool {
    let had = *count > 0;
    *count = count.saturating_sub(1);
    had
}

impl Card for ModelCard {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&self, memory: &Window, access: Access) -> Result<Arc<dyn Registration>, CardError> {
        let mut world = self.hub.lock();
        world.cards[self.place].alive("register")?;
        if take_one(&mut world.cards[self.place].refuse_registrations) {
            let mend = "raise the limit of locked memory (ulimit -l)";
            return Err(refused("register", &self.facts.name, Errno::NOMEM, mend));
        }
        if (access.write || access.land) && !memory.is_writable() {
            let mend = "register it without the right to write";
            return Err(refused("register", &self.facts.name, Errno::FAULT, mend));
        }
        let key = world.next() as u32;
        let (local_key, remote_key) = (0x1000_0000 | key, 0x2000_0000 | key);
        world.cards[self.place].registrations.insert(local_key, remote_key, memory, access);
        Ok(Arc::new(ModelRegistration { hub: Arc::clone(&self.hub), card: self.place, local_key, remote_key }))
    }

    fn desk(&self, completions: usize, receives: usize) -> Result<Box<dyn Desk>, CardError> {
        let mut world = self.hub.lock();
        world.cards[self.place].alive("desk")?;
        let is_refused = take_one(&mut world.cards[self.place].refuse_desks);
        for (what, has, wants) in
            [("completions", self.facts.completions_max, completions), ("receives", self.facts.receives_max, receives)]
        {
            let has = if is_refused { 0 } else { has };
            if wants > has {
                return Err(CardError::NoRoom { card: self.facts.name.clone(), what, has, wants });
            }
        }
        let name = world.new_desk(self.place, completions, receives);
        Ok(Box::new(ModelDesk::new(&self.hub, self.place, &self.facts.name, name, &world.desks[&name])))
    }

    fn next_event(&self) -> Option<Event> {
        let mut world = self.hub.lock();
        let card = &mut world.cards[self.place];
        let event = card.events.pop_front();
        if card.events.is_empty() {
            card.sign.hide();
        }
        event
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.sign.descriptor().as_fd()
    }
}

struct ModelRegistration {
    hub: Arc<Hub>,
    card: usize,
    local_key: u32,
    remote_key: u32,
}

impl Registration for ModelRegistration {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }

    fn manner(&self) -> &'static str {
        "in the model"
    }
}

impl Drop for ModelRegistration {
    fn drop(&mut self) {
        let mut world = self.hub.lock_quietly();
        // What came before was in the card's keeping, and is seen now.
        world.place_all(Some(self.card));
        let gone = world.cards[self.card].registrations.remove(self.local_key, self.remote_key);
        drop(world);
        // With them perhaps the memory itself, for which nobody should wait.
        drop(gone);
    }
}
