//! What becomes of requests.
//!
//! A request is *carried out* at the peer's adapter, a part a step, in order; then its *answer* comes back, and completes it, in order too.
//! Packets are counted on both sides as real adapters count them, so that what is of another life is lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_core::Direction;
use penstock_memory::Window;

use super::memory::MemoryUse;
use super::world::{PACKET_MASK, PostedRequest, State, Stuck, World};
use crate::adapter::{AsyncEvent, Opcode, RecvBuffer, Wc, WcStatus};

/// What a try to carry something on came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Moved,
    /// It goes on later, by itself.
    Later,
    /// It waits for somebody else, and not for ever.
    Stuck(Stuck),
}

impl World {
    /// Does one thing. Returns whether there was one to do.
    pub(super) fn step(&mut self) -> bool {
        for _ in 0..self.active.len() {
            let at = if self.options.seed.is_some() { self.random_below(self.active.len()) } else { 0 };
            let Some(name) = self.active.remove(at) else { break };
            let moved = self.queues.contains_key(&name) && self.carry_on(name);
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.is_active = !queue.posted.is_empty();
                if queue.is_active {
                    self.active.push_back(name);
                }
            }
            if moved {
                return true;
            }
        }
        let placed = self.place_all(None);
        self.has_work.store(placed || !self.active.is_empty(), Ordering::Relaxed);
        placed
    }

    /// Does something for the first requests of a queue.
    fn carry_on(&mut self, name: u64) -> bool {
        let now = self.now;
        let mut any = false;
        let tried = match self.answer_first(name) {
            Tried::Moved => Tried::Moved,
            waiting => {
                let next = self.carry_next(name);
                any = next == Tried::Moved;
                // What the first request waits for is what counts.
                if matches!(waiting, Tried::Stuck(_)) { waiting } else { next }
            }
        };
        let (silence, no_receive) = (self.options.silence, self.options.no_receive);
        let queue = self.queue(name);
        match tried {
            Tried::Moved => queue.stuck = None,
            Tried::Later => {}
            Tried::Stuck(why) => {
                let since = match queue.stuck {
                    Some((before, since)) if before == why => since,
                    _ => now,
                };
                queue.stuck = Some((why, since));
                let (patience, status) = match why {
                    Stuck::Silence => (silence, WcStatus::Silence),
                    Stuck::NoReceive => (no_receive, WcStatus::NoReceive),
                };
                if now.saturating_sub(since) >= patience {
                    self.break_queue(name, status);
                    return true;
                }
            }
        }
        any || tried == Tried::Moved
    }

    /// Completes the first request, if its answer is there.
    fn answer_first(&mut self, name: u64) -> Tried {
        let now = self.now;
        let Some(first) = self.queue(name).posted.front() else { return Tried::Later };
        let Some(carried) = first.carried else { return Tried::Later };
        let (life, is_read) = (first.taken_by, matches!(first.request.opcode, Opcode::Read { .. }));
        let Some(at) = first.answer_at else {
            // It was lost: asked for again, it is there at once.
            let Some(there) = self.peer_of(name).filter(|there| self.queues[there].life == life) else {
                return Tried::Stuck(Stuck::Silence);
            };
            if !self.answers_reach(name, there) {
                return Tried::Stuck(Stuck::Silence);
            }
            self.queue(name).posted[0].answer_at = Some(now);
            return Tried::Moved;
        };
        if now < at || self.adapters[self.queues[&name].adapter].is_held {
            return Tried::Later;
        }
        if is_read && carried.is_ok() {
            return self.land(name, life);
        }
        let first = self.queue(name).posted.pop_front().expect("it was just looked at");
        match carried {
            Ok(()) if first.request.signalled => {
                self.complete(name, first.request.id, Wc::Send, Some(first.number));
            }
            Ok(()) => {}
            Err(status) => {
                self.queue(name).posted.push_front(first);
                self.break_queue(name, status);
            }
        }
        Tried::Moved
    }

    /// Lands a part of what the first request, a read, got.
    fn land(&mut self, name: u64, life: u64) -> Tried {
        let Some(there) = self.peer_of(name).filter(|there| self.queues[there].life == life) else {
            return Tried::Stuck(Stuck::Silence);
        };
        if !self.answers_reach(name, there) {
            return Tried::Stuck(Stuck::Silence);
        }
        let (here_card, there_card) = (self.queue(name).adapter, self.queue(there).adapter);
        let step = self.options.step_bytes;
        let first = &self.queues[&name].posted[0];
        let Opcode::Read { address, key } = first.request.opcode else { return Tried::Later };
        let (moved, len) = (first.moved, step.min(first.bytes - first.moved));
        let outcome = match self.remote(there_card, MemoryUse::RemoteRead, key, address + moved, len) {
            None => Err(WcStatus::Refused),
            Some(window) => {
                let own = &self.adapters[here_card].registrations;
                first.payload.exchange(own, Direction::Read, moved, len, &window).ok_or(WcStatus::Memory)
            }
        };
        self.adapters[here_card].bytes_moved += len;
        match outcome {
            Ok(()) => {
                let first = &mut self.queue(name).posted[0];
                first.moved += len;
                if first.moved == first.bytes {
                    let first = self.queue(name).posted.pop_front().expect("it was just looked at");
                    if first.request.signalled {
                        self.complete(name, first.request.id, Wc::Send, Some(first.number));
                    }
                }
            }
            Err(status) => {
                if status == WcStatus::Refused {
                    self.break_there(there);
                }
                self.break_queue(name, status);
            }
        }
        Tried::Moved
    }

    /// Carries out a part of the first request that is not carried out yet.
    fn carry_next(&mut self, name: u64) -> Tried {
        let now = self.now;
        let queue = &self.queues[&name];
        let adapter = queue.adapter;
        let Some(at) = queue.posted.iter().position(|posted| posted.carried.is_none()) else { return Tried::Later };
        // Behind what failed nothing is carried out, and behind a read that is not slow nothing before it has landed.
        let is_behind = queue.posted.iter().take(at).any(|before| {
            before.carried.is_some_and(|carried| carried.is_err())
                || before.answer_at.is_some_and(|at| at <= now) && matches!(before.request.opcode, Opcode::Read { .. })
        });
        let reads =
            queue.posted.iter().take(at).filter(|before| matches!(before.request.opcode, Opcode::Read { .. })).count();
        let State::Connected(connecting) = queue.state else { return Tried::Later };
        let is_full = matches!(queue.posted[at].request.opcode, Opcode::Read { .. })
            && reads >= usize::from(connecting.reads_there);
        if is_behind || is_full || self.adapters[adapter].is_held || now < queue.posted[at].there_at {
            return Tried::Later;
        }
        if self.break_by_count(name, queue.posted[at].moved) || self.break_by_key(name, at) {
            return Tried::Moved;
        }
        let stuck = |why| if at == 0 { Tried::Stuck(why) } else { Tried::Later };
        let Some(there) = self.peer_of(name).filter(|there| self.requests_reach(name, *there)) else {
            return stuck(Stuck::Silence);
        };
        if self.queues[&there].packet_in != self.queues[&name].packet_out {
            return stuck(Stuck::Silence);
        }
        if self.adapters[self.queues[&there].adapter].is_held {
            return Tried::Later;
        }
        match self.carry_part(name, there, at) {
            Ok(true) => Tried::Moved,
            Ok(false) => stuck(Stuck::NoReceive),
            Err(status) => {
                if status != WcStatus::Memory {
                    self.break_there(there);
                }
                let posted = &mut self.queue(name).posted[at];
                posted.carried = Some(Err(status));
                posted.answer_at = Some(now);
                Tried::Moved
            }
        }
    }

    /// Moves a part of a request into the peer's adapter. Returns whether there was a receive where it needed one.
    fn carry_part(&mut self, name: u64, there: u64, at: usize) -> Result<bool, WcStatus> {
        let (here_card, there_card) = (self.queues[&name].adapter, self.queues[&there].adapter);
        let posted = &self.queues[&name].posted[at];
        let (kind, bytes, moved) = (posted.request.opcode, posted.bytes, posted.moved);
        let len = self.options.step_bytes.min(bytes - moved);
        let is_last = moved + len == bytes;
        let cq = self.queues[&there].cq;
        let window = match kind {
            Opcode::Read { address, key } => {
                self.remote(there_card, MemoryUse::RemoteRead, key, address, bytes).ok_or(WcStatus::Refused)?;
                self.place(there);
                let packets = packets_of(bytes, self.adapters[here_card].attr.mtu);
                self.carried(name, there, at, packets);
                return Ok(true);
            }
            Opcode::Write { address, key } | Opcode::WriteWithImm { address, key, .. } if bytes > 0 => {
                // All of it is checked, so that what is refused leaves nothing behind.
                self.remote(there_card, MemoryUse::RemoteWrite, key, address, bytes).ok_or(WcStatus::Refused)?;
                self.remote(there_card, MemoryUse::RemoteWrite, key, address + moved, len)
            }
            Opcode::Write { .. } | Opcode::WriteWithImm { .. } => None,
            Opcode::Send => {
                if self.queues[&there].receiving.is_none() {
                    let Some(recv) = self.take_receive(cq) else { return Ok(false) };
                    self.queue(there).receiving = Some(recv);
                }
                let RecvBuffer { sge, .. } = self.queues[&there].receiving.expect("it was just seen to");
                if bytes > u64::from(sge.bytes) {
                    return Err(WcStatus::Invalid);
                }
                let own = &self.adapters[there_card].registrations;
                let window = own.range(MemoryUse::Landing, sge.key, sge.address + moved, len);
                Some(window.ok_or(WcStatus::Invalid)?)
            }
        };
        let immediate = match kind {
            Opcode::WriteWithImm { immediate, .. } if is_last => Some(immediate),
            _ => None,
        };
        if immediate.is_some() && self.cqs.get(&cq).is_none_or(|cq| cq.receives.is_empty()) {
            return Ok(false);
        }
        if let Some(window) = window {
            self.move_part(name, there, at, len, &window)?;
        }
        if immediate.is_some() {
            let recv = self.take_receive(cq);
            self.queue(there).receiving = recv;
        }
        let packets = packets_of(len, self.adapters[here_card].attr.mtu);
        if !is_last {
            let queue = self.queue(name);
            queue.posted[at].moved += len;
            queue.packet_out = (queue.packet_out + packets) & PACKET_MASK;
            let queue = self.queue(there);
            queue.packet_in = (queue.packet_in + packets) & PACKET_MASK;
            return Ok(true);
        }
        if let Some(recv) = self.queue(there).receiving.take() {
            self.place(there);
            let bytes = if immediate.is_some() { 0 } else { bytes as u32 };
            self.complete(there, recv.id, Wc::Recv { bytes, immediate }, None);
        }
        self.carried(name, there, at, packets);
        Ok(true)
    }

    fn move_part(&mut self, name: u64, there: u64, at: usize, len: u64, window: &Window) -> Result<(), WcStatus> {
        let here_card = self.queues[&name].adapter;
        let PostedRequest { payload, moved, request, .. } = &self.queues[&name].posted[at];
        let own = &self.adapters[here_card].registrations;
        if self.options.places_late && request.opcode != Opcode::Send {
            let copied = payload.copied(own, *moved, len).ok_or(WcStatus::Memory)?;
            self.queue(there).unplaced.push((window.clone(), copied));
        } else {
            payload.exchange(own, Direction::Write, *moved, len, window).ok_or(WcStatus::Memory)?;
        }
        self.adapters[here_card].bytes_moved += len;
        Ok(())
    }

    /// A request was carried out: its answer is on its way, or lost.
    fn carried(&mut self, name: u64, there: u64, at: usize, packets: u32) {
        let (from, to) = (self.queues[&there].adapter, self.queues[&name].adapter);
        let mut answer_at = self.now + self.delays.get(&(from, to)).copied().unwrap_or_default();
        let is_heard = self.answers_reach(name, there);
        let taken_by = self.queues[&there].life;
        let read_time = self.adapters[to].read_time;
        let queue = self.queue(name);
        queue.packet_out = (queue.packet_out + packets) & PACKET_MASK;
        let posted = &mut queue.posted[at];
        if let Opcode::Read { .. } = posted.request.opcode {
            answer_at += read_time;
        } else {
            posted.moved = posted.bytes;
        }
        posted.carried = Some(Ok(()));
        posted.answer_at = is_heard.then_some(answer_at);
        posted.taken_by = taken_by;
        let queue = self.queue(there);
        queue.packet_in = (queue.packet_in + packets) & PACKET_MASK;
    }

    /// The queue at the other end, if packets of this one are taken there.
    fn peer_of(&self, name: u64) -> Option<u64> {
        let queue = &self.queues[&name];
        let State::Connected(connecting) = queue.state else { return None };
        let adapter = self.adapter_of(connecting.there.gid).filter(|adapter| !self.adapters[*adapter].is_dead)?;
        let there = *self.numbers.get(&(adapter, connecting.there.queue))?;
        let own = self.adapters[queue.adapter].attr.gid;
        matches!(self.queues[&there].state, State::Connected(its) if its.there.gid == own).then_some(there)
    }

    fn requests_reach(&self, name: u64, there: u64) -> bool {
        let (from, to) = (self.queues[&name].adapter, self.queues[&there].adapter);
        self.are_up(from, to) && !self.losses.get(&(from, to)).is_some_and(|losses| losses.requests)
    }

    /// Whether the peer's answers find this queue: the way is whole, and it is the one that the peer answers to.
    fn answers_reach(&self, name: u64, there: u64) -> bool {
        let (here, peer) = (&self.queues[&name], &self.queues[&there]);
        let is_meant = matches!(peer.state, State::Connected(its) if its.there.queue == here.number);
        let is_lost = self.losses.get(&(peer.adapter, here.adapter)).is_some_and(|losses| losses.answers);
        is_meant && !is_lost && self.are_up(here.adapter, peer.adapter)
    }

    fn adapter_of(&self, gid: [u8; 16]) -> Option<usize> {
        self.adapters.iter().position(|adapter| adapter.attr.gid == gid)
    }

    fn are_up(&self, one: usize, other: usize) -> bool {
        self.adapters[one].is_up && self.adapters[other].is_up
    }

    fn remote(&self, adapter: usize, using: MemoryUse, key: u32, address: u64, bytes: u64) -> Option<Window> {
        self.adapters[adapter].registrations.range(using, key, address, bytes)
    }

    fn take_receive(&mut self, cq: u64) -> Option<RecvBuffer> {
        self.cqs.get_mut(&cq)?.receives.pop_front()
    }

    /// Breaks the peer's queue, which hears of it as an event.
    fn break_there(&mut self, there: u64) {
        self.break_queue(there, WcStatus::Flushed);
        let (adapter, number) = (self.queues[&there].adapter, self.queues[&there].number);
        self.event(adapter, AsyncEvent::QueueBroken(number));
    }

    /// Breaks the queue whose turn it is, if somebody has ordered that.
    fn break_by_count(&mut self, name: u64, moved: u64) -> bool {
        let adapter = self.queues[&name].adapter;
        let Some(left) = self.adapters[adapter].break_after.as_mut().filter(|_| moved == 0) else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.adapters[adapter].break_after = None;
        self.break_there(name);
        true
    }

    /// Breaks the queue whose turn it is, if its request is one that nobody is told about.
    fn break_by_key(&mut self, name: u64, at: usize) -> bool {
        let queue = &self.queues[&name];
        let breaks = match queue.posted[at].request.opcode {
            Opcode::Write { key, .. } | Opcode::WriteWithImm { key, .. } | Opcode::Read { key, .. } => {
                self.adapters[queue.adapter].break_at == Some(key)
            }
            Opcode::Send => false,
        };
        if breaks {
            self.break_queue(name, WcStatus::Flushed);
        }
        breaks
    }

    /// When a request that is posted now gets to the peer.
    pub(super) fn there_at(&self, name: u64) -> Duration {
        let queue = &self.queues[&name];
        let State::Connected(connecting) = queue.state else { return self.now };
        let to = self.adapter_of(connecting.there.gid);
        let delay = to.and_then(|to| self.delays.get(&(queue.adapter, to)).copied()).unwrap_or_default();
        self.now + delay
    }
}

/// Packets of a request: at least one.
fn packets_of(bytes: u64, mtu: u32) -> u32 {
    bytes.div_ceil(u64::from(mtu)).max(1) as u32
}
