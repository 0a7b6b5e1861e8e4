//! Desks and queues of a model card.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::card::take_one;
use super::memory::Payload;
use super::world::{DeskState, Posted, Sign, State};
use super::{Hub, refused};
use crate::card::{
    CardError, Connected, Connecting, Desk, Done, IDS, Kept, Kind, Landing, Outcome, Piece, PostFailed, Queue,
    QueueMaker, Request, Token, Trouble,
};

/// A desk of a model card.
pub(super) struct ModelDesk {
    held: Arc<Held>,
    waiting: Arc<AtomicUsize>,
    sign: Arc<Sign>,
}

/// What a desk and its queues hold: the desk is gone with the last of them.
struct Held {
    hub: Arc<Hub>,
    card: usize,
    card_name: String,
    name: u64,
}

impl ModelDesk {
    pub(super) fn new(hub: &Arc<Hub>, card: usize, card_name: &str, name: u64, state: &DeskState) -> Self {
        let held = Held { hub: Arc::clone(hub), card, card_name: card_name.to_owned(), name };
        Self { held: Arc::new(held), waiting: Arc::clone(&state.waiting), sign: Arc::clone(&state.sign) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hub.lock_quietly().desks.remove(&self.name);
    }
}

impl Desk for ModelDesk {
    fn maker(&self) -> Arc<dyn QueueMaker> {
        Arc::new(ModelMaker(Arc::clone(&self.held)))
    }

    fn supply(&mut self, receives: &[Landing]) -> Result<(), CardError> {
        let held = &self.held;
        held.hub.change(|world| {
            world.cards[held.card].alive("supply")?;
            let desk = world.desks.get_mut(&held.name).expect("a desk is kept while it is held");
            let room = desk.receives_max - desk.receives.len();
            if receives.len() > room {
                let card = held.card_name.clone();
                return Err(CardError::NoRoom { card, what: "receives of a desk", has: room, wants: receives.len() });
            }
            desk.receives.extend(receives);
            Ok(())
        })
    }

    fn poll(&mut self, done: &mut [Done]) -> Result<usize, CardError> {
        let held = &self.held;
        held.hub.help();
        // A completion that is put there at this moment is found by the next poll.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        let mut world = held.hub.lock();
        let desk = world.desks.get_mut(&held.name).expect("a desk is kept while it is held");
        let count = done.len().min(desk.done.len());
        let taken: Vec<_> = desk.done.drain(..count).collect();
        self.waiting.store(desk.done.len(), Ordering::Relaxed);
        for (place, entry) in done.iter_mut().zip(taken) {
            *place = entry.done;
            let (queue, life) = entry.of;
            let queue = world.queues.get_mut(&queue).filter(|queue| queue.life == life);
            if let (Some(queue), Some(ends)) = (queue, entry.ends) {
                queue.polled = queue.polled.max(ends);
            }
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<(), CardError> {
        let held = &self.held;
        held.hub.help_all();
        let mut world = held.hub.lock();
        world.cards[held.card].alive("arm")?;
        let desk = world.desks.get_mut(&held.name).expect("a desk is kept while it is held");
        desk.sign.hide();
        desk.is_armed = true;
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.sign.descriptor().as_fd()
    }
}

/// Makes queues on a desk of a model card.
struct ModelMaker(Arc<Held>);

impl QueueMaker for ModelMaker {
    fn queue(&self, requests: usize) -> Result<Box<dyn Queue>, CardError> {
        let Self(held) = self;
        let time = held.hub.lock().cards[held.card].make_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        let mut world = held.hub.lock();
        let card = &mut world.cards[held.card];
        card.alive("queue")?;
        let has = if take_one(&mut card.refuse_queues) { 0 } else { card.facts.requests_max };
        if requests > has {
            let card = held.card_name.clone();
            return Err(CardError::NoRoom { card, what: "requests of a queue", has, wants: requests });
        }
        let (name, number) = world.new_queue(held.card, held.name, requests);
        Ok(Box::new(ModelQueue { held: Arc::clone(held), name, number }))
    }
}

/// A queue of a model card.
struct ModelQueue {
    held: Arc<Held>,
    name: u64,
    number: u32,
}

impl Queue for ModelQueue {
    fn number(&self) -> u32 {
        self.number
    }

    fn connect(&mut self, connecting: &Connecting) -> Result<Connected, CardError> {
        let held = &self.held;
        let time = held.hub.lock().cards[held.card].connect_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        held.hub.change(|world| {
            let card = &mut world.cards[held.card];
            card.alive("connect")?;
            if take_one(&mut card.refuse_connects) {
                return Err(refused("connect", &held.card_name, Errno::TIMEDOUT, "look whether the peer's port is up"));
            }
            world.is_new(self.name)?;
            if connecting.meeting.is_some() {
                world.begin_to_meet(self.name, connecting);
                return world.met(self.name);
            }
            world.connect(self.name, connecting);
            Ok(Connected::Yes)
        })
    }

    fn expect(&mut self, token: Token) {
        self.held.hub.change(|world| world.expect(self.name, Some(token)));
    }

    fn met(&mut self) -> Result<Connected, CardError> {
        self.held.hub.change(|world| world.met(self.name))
    }

    fn post(&mut self, requests: &[Request], pieces: &[Piece]) -> Result<(), PostFailed> {
        let held = &self.held;
        let refuse = |error| PostFailed { posted: 0, error };
        held.hub.change(|world| {
            world.cards[held.card].alive("post").map_err(refuse)?;
            let facts = world.cards[held.card].facts.clone();
            let there_at = world.there_at(self.name);
            let queue = world.queue(self.name);
            if queue.state == State::New {
                return Err(refuse(refused("post", &held.card_name, Errno::INVAL, "connect the queue first")));
            }
            let under_way = (queue.count - queue.polled) as usize;
            if under_way + requests.len() > queue.requests {
                let (room, more) = (queue.requests, requests.len());
                world.catch(format!(
                    "{more} more requests on a queue of {room} where {under_way} have not been polled for"
                ));
            }
            let mut rest = pieces;
            let mut listed = Vec::with_capacity(requests.len());
            for request in requests {
                let Some((own, others)) = rest.split_at_checked(request.pieces as usize) else {
                    world.catch(format!("{request:?} has more pieces than its list"));
                };
                rest = others;
                if let Some(wrong) = wrong_with(request, own, facts.pieces_max, facts.inline_max) {
                    world.catch(format!("{request:?}: {wrong}"));
                }
                let payload = if request.inline { taken(own) } else { Payload::Pieces(own.to_vec()) };
                listed.push((*request, payload));
            }
            if !rest.is_empty() {
                world.catch(format!("{} pieces of a list are nobody's", rest.len()));
            }
            let card = &mut world.cards[held.card];
            card.lists_posted += 1;
            card.requests_posted += requests.len() as u64;
            for (request, payload) in listed {
                let queue = world.queue(self.name);
                queue.count += 1;
                let (number, bytes) = (queue.count, payload.bytes());
                if queue.state == State::Broken {
                    world.complete(self.name, request.id, Outcome::Failed(Trouble::Flushed), Some(number));
                    continue;
                }
                let (carried, answer_at) = (None, None);
                let posted =
                    Posted { request, payload, bytes, number, there_at, moved: 0, carried, answer_at, taken_by: 0 };
                queue.posted.push_back(posted);
                world.activate(self.name);
            }
            Ok(())
        })
    }

    fn break_off(&mut self) -> Result<(), CardError> {
        self.held.hub.change(|world| {
            world.leave(self.name);
            world.cards[self.held.card].alive("break_off")?;
            world.break_queue(self.name, Trouble::Flushed);
            Ok(())
        })
    }

    fn reset(&mut self) -> Result<(), CardError> {
        self.held.hub.change(|world| {
            let card = &mut world.cards[self.held.card];
            card.alive("reset")?;
            if take_one(&mut card.refuse_resets) {
                return Err(refused("reset", &self.held.card_name, Errno::IO, "look at the kernel's messages"));
            }
            card.resets += 1;
            world.reset(self.name);
            Ok(())
        })
    }

    fn give_back(self: Box<Self>) -> Result<(), Kept> {
        let held = &self.held;
        if take_one(&mut held.hub.lock().cards[held.card].refuse_to_take_back) {
            let error = refused("give back", &held.card_name, Errno::BUSY, "look at the kernel's messages");
            return Err(Kept { queue: self, error });
        }
        Ok(())
    }
}

impl Drop for ModelQueue {
    fn drop(&mut self) {
        self.held.hub.lock_quietly().remove_queue(self.name);
    }
}

/// What no card does.
fn wrong_with(request: &Request, pieces: &[Piece], pieces_max: usize, inline_max: usize) -> Option<String> {
    let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
    if request.id >= IDS {
        return Some("a name has no more bits than cards leave to it".to_owned());
    }
    if pieces.len() > pieces_max {
        return Some(format!("a request has {pieces_max} pieces at most"));
    }
    if request.inline && bytes > inline_max as u64 {
        return Some(format!("{inline_max} bytes at most go inline"));
    }
    if request.inline && matches!(request.kind, Kind::Read { .. }) {
        return Some("a read has no bytes to be taken".to_owned());
    }
    (bytes > 1 << 31).then(|| "a request moves 2 GiB at most".to_owned())
}

/// The bytes of an inline request, which need not be registered.
fn taken(pieces: &[Piece]) -> Payload {
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
        let at = bytes.len();
        bytes.resize(at + piece.bytes as usize, 0);
        // SAFETY: whoever posts vouches for the memory of its pieces until the request is taken, as for every card; the bytes are
        // copied to memory of their own, and no reference to them is made.
        unsafe {
            std::ptr::copy_nonoverlapping(piece.address as *const u8, bytes[at..].as_mut_ptr(), piece.bytes as usize);
        }
    }
    Payload::Taken(bytes)
}
