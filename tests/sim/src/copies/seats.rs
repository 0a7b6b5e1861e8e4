//! Engines, their memory, and who has met whom.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock::config::TransportName;
use penstock::memory::BlockId;
use penstock::{Blocks, Connecting, LocalQuiesce, Peer, Quarantined, RegionError, Timestamp};

use super::memory::Memory;
use super::spec::{Copying, Place};
use crate::deed::HEARTBEAT;
use crate::env::{Identity, SimEnv};
use crate::oracle::{GRANTED, Invariant, Violated};
use crate::random::Random;
use crate::world::{Node, PIDS, World};

/// A memory that was taken back is dropped once in so many looks, whatever is known of it.
const DROP_ONCE_IN: usize = 100;

/// Staging memory of an engine for each direction: sixteen slots, of which a lane has four at most.
const STAGING_BYTES: u64 = 1 << 20;
/// How long an owner leaves blocks to a peer's transfer of which it will hear nothing.
const LEFT_FOR: Duration = Duration::from_millis(5);

/// All engines of a run.
pub(super) struct Seats<'w> {
    pub(super) world: &'w World,
    pub(super) copying: Copying,
    seats: Vec<Seat>,
    /// Memories that were taken back, or whose engine is gone, each with whose it was and its number.
    former: Vec<((usize, Place), u64, Memory)>,
    /// Blocks that were taken back, and that something may still be at.
    revoked: Vec<Revoked>,
    /// Blocks that an owner takes back at that time, since it does not hear what becomes of the transfer.
    left: Vec<(Timestamp, Lent)>,
    numbers: u64,
}

/// Blocks of one use of a place, which a transfer of another engine has.
pub(super) struct Lent {
    pub(super) end: (usize, Place),
    pub(super) of: u64,
    pub(super) blocks: Blocks,
}

/// Blocks of one use of a place, until this is released.
struct Revoked {
    held: Quarantined,
    end: (usize, Place),
    of: u64,
    ids: Vec<BlockId>,
    /// They are nobody's until then.
    _blocks: Option<Blocks>,
}

#[derive(Default)]
struct Seat {
    node: Option<Node>,
    /// How many engines have sat there before.
    life: u32,
    peers: BTreeMap<usize, Peer<SimEnv>>,
    calling: BTreeMap<usize, Connecting<SimEnv>>,
    memories: BTreeMap<Place, (u64, Memory)>,
}

impl<'w> Seats<'w> {
    pub(super) fn open(world: &'w World, copying: Copying) -> Self {
        let seats = (0..copying.engines).map(|_| Seat::default()).collect();
        let (former, revoked, left) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = Self { world, copying, seats, former, revoked, left, numbers: 0 };
        (0..copying.engines).for_each(|number| all.start(number));
        all
    }

    /// An engine begins, with memory of its own.
    fn start(&mut self, number: usize) {
        let seat = &mut self.seats[number];
        let (name, place) = (format!("copies-{number}"), number as u64);
        let host = match self.copying.over {
            TransportName::Datagram => 1 + place,
            _ => Identity::default().host,
        };
        let (identity, mut config) = match self.copying.over {
            TransportName::Local => (Identity::default(), World::config(&name).transports([TransportName::Local])),
            over => {
                let pid = PIDS + 1000 * number as u32 + seat.life;
                let identity = Identity { process: 100 + place, pid, ..Identity::on(host) };
                let config = match over {
                    TransportName::Datagram => World::config_on(host, &name).heartbeat(HEARTBEAT),
                    _ => World::config(&name).transports([TransportName::Local, TransportName::Shm]),
                };
                (identity, config)
            }
        };
        config.device.staging_bytes = STAGING_BYTES;
        let node = self.world.start_as(identity, config).expect("a simulated engine starts");
        (seat.node, seat.life) = (Some(node), seat.life + 1);
        Place::ALL.into_iter().for_each(|place| self.open_memory((number, place)));
    }

    fn open_memory(&mut self, (number, place): (usize, Place)) {
        let seat = &mut self.seats[number];
        let Some(node) = &seat.node else { return };
        self.numbers += 1;
        if let Some(memory) = Memory::open(node, place, &self.copying) {
            seat.memories.insert(place, (self.numbers, memory));
        }
    }

    /// The session of one engine with another, or with itself, if there is one. It does not wait.
    pub(super) fn meet(&mut self, from: usize, to: usize) -> Option<Peer<SimEnv>> {
        let card = self.seats[to].node.as_ref()?.descriptor();
        let seat = &mut self.seats[from];
        if let Some(peer) = seat.peers.get(&to).filter(|peer| peer.ended().is_none()) {
            return Some(peer.clone());
        }
        seat.peers.remove(&to);
        match seat.calling.get(&to) {
            None => drop(seat.calling.insert(to, seat.node.as_ref()?.connect_begin(&card).ok()?)),
            Some(calling) => {
                if let Some(answer) = calling.poll() {
                    seat.calling.remove(&to);
                    seat.peers.extend(answer.ok().map(|peer| (to, peer)));
                }
            }
        }
        None
    }

    /// The memory that is registered there.
    pub(super) fn memory(&self, (number, place): (usize, Place)) -> Option<&Memory> {
        self.seats[number].memories.get(&place).map(|(_, memory)| memory)
    }

    /// Which use of that place it is.
    pub(super) fn number(&self, (number, place): (usize, Place)) -> u64 {
        self.seats[number].memories.get(&place).map_or(0, |(number, _)| *number)
    }

    /// This use of the place, as long as there is anything of it.
    pub(super) fn memory_of(&self, end: (usize, Place), number: u64) -> Option<&Memory> {
        let standing =
            self.seats[end.0].memories.get(&end.1).filter(|(its, _)| *its == number).map(|(_, memory)| memory);
        standing.or_else(|| self.former.iter().find(|(_, its, _)| *its == number).map(|(.., memory)| memory))
    }

    /// Takes so many blocks, in which nothing is yet.
    pub(super) fn take(&mut self, (number, place): (usize, Place), count: usize) -> Result<Option<Blocks>, Violated> {
        match self.seats[number].memories.get_mut(&place) {
            Some((_, memory)) => memory.take(count, GRANTED),
            None => Ok(None),
        }
    }

    /// An engine has said that nothing lands in these blocks any more.
    pub(super) fn give_away(
        &mut self,
        (number, place): (usize, Place),
        of: u64,
        ids: &[BlockId],
    ) -> Result<(), Violated> {
        match self.seats[number].memories.get_mut(&place) {
            Some((its, memory)) if *its == of => memory.give_away(ids),
            _ => Ok(()),
        }
    }

    /// Takes blocks back. Returns whether they are quiet; else they are somebody else's when they are.
    pub(super) fn revoke(&mut self, end: (usize, Place), of: u64, ids: Vec<BlockId>, within: Duration) -> bool {
        self.revoke_keeping(end, of, ids, None, within)
    }

    fn revoke_keeping(
        &mut self,
        end: (usize, Place),
        of: u64,
        ids: Vec<BlockId>,
        blocks: Option<Blocks>,
        within: Duration,
    ) -> bool {
        let Some(memory) = self.memory(end).filter(|_| self.number(end) == of) else { return false };
        let len = self.copying.block_bytes;
        let extents: Vec<(u64, u64)> = ids.iter().map(|id| (u64::from(id.index) * len, len)).collect();
        match memory.region().clone().revoke(&extents, within) {
            Ok(LocalQuiesce::Quiesced) => true,
            Ok(LocalQuiesce::Quarantined(held)) => {
                self.revoked.push(Revoked { held, end, of, ids, _blocks: blocks });
                false
            }
            Ok(LocalQuiesce::StillRegistered(_)) | Err(_) => false,
        }
    }

    /// Takes blocks back from a transfer of another engine, and keeps them until they are quiet.
    pub(super) fn take_back(&mut self, Lent { end, of, blocks }: Lent) -> Result<(), Violated> {
        let ids: Vec<BlockId> = blocks.ids().collect();
        match self.revoke_keeping(end, of, ids.clone(), Some(blocks), Duration::ZERO) {
            true => self.give_away(end, of, &ids),
            false => Ok(()),
        }
    }

    /// Nobody hears what becomes of the transfer that has these: their owner takes them back after a while.
    pub(super) fn leave_to_peer(&mut self, lent: Lent) {
        self.left.push((self.world.now() + LEFT_FOR, lent));
    }

    /// Takes a memory back as a whole: what its engine says of it.
    pub(super) fn deregister(
        &self,
        end: (usize, Place),
        within: Duration,
    ) -> Option<Result<LocalQuiesce, RegionError>> {
        self.memory(end).map(|memory| memory.region().clone().deregister(within))
    }

    /// It was taken back, with what may still land there; another one is registered in its place.
    pub(super) fn replace(&mut self, end: (usize, Place), held: Vec<Quarantined>) {
        if let Some((number, mut memory)) = self.seats[end.0].memories.remove(&end.1) {
            memory.is_taken_back(held);
            self.former.push((end, number, memory));
        }
        self.open_memory(end);
    }

    /// An engine is closed, or dropped without that: what it says of its memory, if anything.
    pub(super) fn shut_down(&mut self, number: usize, within: Option<Duration>) -> Option<Vec<Quarantined>> {
        let seat = &mut self.seats[number];
        let node = seat.node.take()?;
        seat.peers.clear();
        seat.calling.clear();
        let held = within.map(|within| node.close(within));
        drop(node);
        held
    }

    /// The memories of an engine that was shut down are taken back.
    pub(super) fn leave(&mut self, number: usize, held: Option<&[Quarantined]>) {
        for (place, (of, mut memory)) in std::mem::take(&mut self.seats[number].memories) {
            match held {
                Some(held) => memory.is_taken_back(held.iter().filter(|held| memory.is_of(held)).cloned().collect()),
                None => memory.is_left(),
            }
            self.former.push(((number, place), of, memory));
        }
        self.revoked.retain(|revoked| revoked.end.0 != number);
        self.left.retain(|(_, lent)| lent.end.0 != number);
    }

    /// All memories that an engine has registered.
    pub(super) fn places(&self, number: usize) -> Vec<(Place, u64)> {
        self.seats[number].memories.iter().map(|(place, (of, _))| (*place, *of)).collect()
    }

    /// An engine that was shut down begins again.
    pub(super) fn restart(&mut self, number: usize) {
        if self.seats[number].node.is_none() {
            self.start(number);
        }
    }

    pub(super) fn hang_up(&self, from: usize, to: usize) {
        if let Some(peer) = self.seats[from].peers.get(&to) {
            // Whether both have left is seen by what lands.
            let _ = peer.disconnect(Duration::ZERO);
        }
    }

    /// Owners look at their memory.
    pub(super) fn look(&mut self, random: &mut Random) -> Result<(), Violated> {
        for (_, memory) in self.seats.iter_mut().flat_map(|seat| seat.memories.values_mut()) {
            memory.look()?;
        }
        self.former.iter_mut().try_for_each(|(.., memory)| memory.look())?;
        if let Some(place) = self.revoked.iter().position(|revoked| revoked.held.is_released()) {
            let Revoked { end, of, ids, .. } = self.revoked.remove(place);
            self.give_away(end, of, &ids)?;
        }
        let now = self.world.now();
        if let Some(place) = self.left.iter().position(|(until, _)| now >= *until) {
            let (_, lent) = self.left.remove(place);
            self.take_back(lent)?;
        }
        if !self.former.is_empty() && random.once_in(DROP_ONCE_IN) {
            self.former.remove(0);
        }
        Ok(())
    }

    /// Looks whether anything was written that is nobody's.
    pub(super) fn check(&self) -> Result<(), Violated> {
        let standing = self.seats.iter().flat_map(|seat| seat.memories.values()).map(|(_, memory)| memory);
        standing.chain(self.former.iter().map(|(.., memory)| memory)).try_for_each(Memory::check)
    }

    /// What should not be there when nothing goes on any more.
    pub(super) fn leftovers(&self) -> Option<String> {
        for (number, seat) in self.seats.iter().enumerate() {
            let Some(node) = &seat.node else { continue };
            let blocks: usize = seat.memories.values().map(|(_, memory)| memory.missing()).sum();
            let counts =
                [("blocks", blocks), ("transfers", node.transfers_held()), ("quarantines", node.quarantined().len())];
            if let Some((what, count)) = counts.into_iter().find(|(_, count)| *count > 0) {
                return Some(format!("engine {number} has {count} {what} left"));
            }
        }
        None
    }

    /// All engines end; where nothing may be withheld, with nothing that is.
    pub(super) fn close(&mut self, may_withhold: bool) -> Result<(), Violated> {
        for number in 0..self.seats.len() {
            let held = self.shut_down(number, Some(Duration::from_secs(1)));
            if let Some(held) = held.as_ref().and_then(|held| held.first()).filter(|_| !may_withhold) {
                let words = format!("engine {number} is closed, and {held:?} is quarantined");
                return Err(Violated::new(Invariant::NothingIsLeft, words));
            }
            self.leave(number, held.as_deref());
        }
        self.former.iter_mut().try_for_each(|(.., memory)| memory.look())
    }

    /// Lets go of all memory.
    pub(super) fn forget(&mut self) {
        self.former.clear();
        self.revoked.clear();
    }
}
