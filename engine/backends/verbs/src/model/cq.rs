//! CQs and queues of a model adapter.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::adapter::take_one;
use super::memory::MessagePayload;
use super::world::{CqState, PostedRequest, Sign, State};
use super::{Hub, refused};
use crate::adapter::{
    AdapterError, ConnectParams, Connected, NotDestroyed, Opcode, PostSendError, QpFactory, QueuePair, RecvBuffer,
    SendRequest, Sge, Token, WR_IDS, Wc, WcStatus, WorkCompletion, WorkerCq,
};

/// A CQ of a model adapter.
pub(super) struct ModelCq {
    held: Arc<Held>,
    waiting: Arc<AtomicUsize>,
    sign: Arc<Sign>,
}

/// What a CQ and its queues hold: the CQ is gone with the last of them.
struct Held {
    hub: Arc<Hub>,
    adapter: usize,
    card_name: String,
    name: u64,
}

impl ModelCq {
    pub(super) fn new(hub: &Arc<Hub>, adapter: usize, card_name: &str, name: u64, state: &CqState) -> Self {
        let held = Held { hub: Arc::clone(hub), adapter, card_name: card_name.to_owned(), name };
        Self { held: Arc::new(held), waiting: Arc::clone(&state.waiting), sign: Arc::clone(&state.sign) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hub.lock_quietly().cqs.remove(&self.name);
    }
}

impl WorkerCq for ModelCq {
    fn maker(&self) -> Arc<dyn QpFactory> {
        Arc::new(ModelMaker(Arc::clone(&self.held)))
    }

    fn post_recv(&mut self, receives: &[RecvBuffer]) -> Result<(), AdapterError> {
        let held = &self.held;
        held.hub.change(|world| {
            world.adapters[held.adapter].alive("supply")?;
            let cq = world.cqs.get_mut(&held.name).expect("a desk is kept while it is held");
            let room = cq.receives_max - cq.receives.len();
            if receives.len() > room {
                let adapter = held.card_name.clone();
                return Err(AdapterError::NoRoom {
                    adapter,
                    what: "receives of a desk",
                    has: room,
                    wants: receives.len(),
                });
            }
            cq.receives.extend(receives);
            Ok(())
        })
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, AdapterError> {
        let held = &self.held;
        held.hub.help();
        // A completion that is put there at this moment is found by the next poll.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        let mut world = held.hub.lock();
        let cq = world.cqs.get_mut(&held.name).expect("a desk is kept while it is held");
        let count = done.len().min(cq.done.len());
        let taken: Vec<_> = cq.done.drain(..count).collect();
        self.waiting.store(cq.done.len(), Ordering::Relaxed);
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

    fn arm(&mut self) -> Result<(), AdapterError> {
        let held = &self.held;
        held.hub.help_all();
        let mut world = held.hub.lock();
        world.adapters[held.adapter].alive("arm")?;
        let cq = world.cqs.get_mut(&held.name).expect("a desk is kept while it is held");
        cq.sign.hide();
        cq.is_armed = true;
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.sign.descriptor().as_fd()
    }
}

/// Makes queues on a CQ of a model adapter.
struct ModelMaker(Arc<Held>);

impl QpFactory for ModelMaker {
    fn queue(&self, requests: usize) -> Result<Box<dyn QueuePair>, AdapterError> {
        let Self(held) = self;
        let time = held.hub.lock().adapters[held.adapter].make_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        let mut world = held.hub.lock();
        let adapter = &mut world.adapters[held.adapter];
        adapter.alive("queue")?;
        let has = if take_one(&mut adapter.refuse_queues) { 0 } else { adapter.attr.requests_max };
        if requests > has {
            let adapter = held.card_name.clone();
            return Err(AdapterError::NoRoom { adapter, what: "requests of a queue", has, wants: requests });
        }
        let (name, number) = world.new_queue(held.adapter, held.name, requests);
        Ok(Box::new(ModelQueue { held: Arc::clone(held), name, number }))
    }
}

/// A queue of a model adapter.
struct ModelQueue {
    held: Arc<Held>,
    name: u64,
    number: u32,
}

impl QueuePair for ModelQueue {
    fn number(&self) -> u32 {
        self.number
    }

    fn connect(&mut self, connecting: &ConnectParams) -> Result<Connected, AdapterError> {
        let held = &self.held;
        let time = held.hub.lock().adapters[held.adapter].connect_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        held.hub.change(|world| {
            let adapter = &mut world.adapters[held.adapter];
            adapter.alive("connect")?;
            if take_one(&mut adapter.refuse_connects) {
                return Err(refused("connect", &held.card_name, Errno::TIMEDOUT, "look whether the peer's port is up"));
            }
            world.is_new(self.name)?;
            if connecting.cm.is_some() {
                world.begin_cm_connect(self.name, connecting);
                return world.met(self.name);
            }
            world.connect(self.name, connecting);
            Ok(Connected::Yes)
        })
    }

    fn expect(&mut self, token: Token) {
        self.held.hub.change(|world| world.expect(self.name, Some(token)));
    }

    fn cm_state(&mut self) -> Result<Connected, AdapterError> {
        self.held.hub.change(|world| world.met(self.name))
    }

    fn post(&mut self, requests: &[SendRequest], sges: &[Sge]) -> Result<(), PostSendError> {
        let held = &self.held;
        let refuse = |error| PostSendError { posted: 0, error };
        held.hub.change(|world| {
            world.adapters[held.adapter].alive("post").map_err(refuse)?;
            let attr = world.adapters[held.adapter].attr.clone();
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
            let mut rest = sges;
            let mut listed = Vec::with_capacity(requests.len());
            for request in requests {
                let Some((own, others)) = rest.split_at_checked(request.sges as usize) else {
                    world.catch(format!("{request:?} has more pieces than its list"));
                };
                rest = others;
                if let Some(wrong) = wrong_with(request, own, attr.sges_max, attr.inline_max) {
                    world.catch(format!("{request:?}: {wrong}"));
                }
                let payload = if request.inline { taken(own) } else { MessagePayload::Pieces(own.to_vec()) };
                listed.push((*request, payload));
            }
            if !rest.is_empty() {
                world.catch(format!("{} pieces of a list are nobody's", rest.len()));
            }
            let adapter = &mut world.adapters[held.adapter];
            adapter.lists_posted += 1;
            adapter.requests_posted += requests.len() as u64;
            for (request, payload) in listed {
                let queue = world.queue(self.name);
                queue.count += 1;
                let (number, bytes) = (queue.count, payload.bytes());
                if queue.state == State::Broken {
                    world.complete(self.name, request.id, Wc::Failed(WcStatus::Flushed), Some(number));
                    continue;
                }
                let (carried, answer_at) = (None, None);
                let posted = PostedRequest {
                    request,
                    payload,
                    bytes,
                    number,
                    there_at,
                    moved: 0,
                    carried,
                    answer_at,
                    taken_by: 0,
                };
                queue.posted.push_back(posted);
                world.activate(self.name);
            }
            Ok(())
        })
    }

    fn set_error(&mut self) -> Result<(), AdapterError> {
        self.held.hub.change(|world| {
            world.leave(self.name);
            world.adapters[self.held.adapter].alive("break_off")?;
            world.break_queue(self.name, WcStatus::Flushed);
            Ok(())
        })
    }

    fn reset(&mut self) -> Result<(), AdapterError> {
        self.held.hub.change(|world| {
            let adapter = &mut world.adapters[self.held.adapter];
            adapter.alive("reset")?;
            if take_one(&mut adapter.refuse_resets) {
                return Err(refused("reset", &self.held.card_name, Errno::IO, "look at the kernel's messages"));
            }
            adapter.resets += 1;
            world.reset(self.name);
            Ok(())
        })
    }

    fn destroy(self: Box<Self>) -> Result<(), NotDestroyed> {
        let held = &self.held;
        if take_one(&mut held.hub.lock().adapters[held.adapter].refuse_to_take_back) {
            let error = refused("give back", &held.card_name, Errno::BUSY, "look at the kernel's messages");
            return Err(NotDestroyed { queue: self, error });
        }
        Ok(())
    }
}

impl Drop for ModelQueue {
    fn drop(&mut self) {
        self.held.hub.lock_quietly().remove_queue(self.name);
    }
}

/// What no adapter does.
fn wrong_with(request: &SendRequest, sges: &[Sge], sges_max: usize, inline_max: usize) -> Option<String> {
    let bytes: u64 = sges.iter().map(|sge| u64::from(sge.bytes)).sum();
    if request.id >= WR_IDS {
        return Some("a name has no more bits than cards leave to it".to_owned());
    }
    if sges.len() > sges_max {
        return Some(format!("a request has {sges_max} pieces at most"));
    }
    if request.inline && bytes > inline_max as u64 {
        return Some(format!("{inline_max} bytes at most go inline"));
    }
    if request.inline && matches!(request.opcode, Opcode::Read { .. }) {
        return Some("a read has no bytes to be taken".to_owned());
    }
    (bytes > 1 << 31).then(|| "a request moves 2 GiB at most".to_owned())
}

/// The bytes of an inline request, which need not be registered.
fn taken(sges: &[Sge]) -> MessagePayload {
    let mut bytes = Vec::new();
    for sge in sges.iter().filter(|sge| sge.bytes > 0) {
        let at = bytes.len();
        bytes.resize(at + sge.bytes as usize, 0);
        // SAFETY: whoever posts vouches for the memory of its pieces until the request is taken, as for every adapter; the bytes are
        // copied to memory of their own, and no reference to them is made.
        unsafe {
            std::ptr::copy_nonoverlapping(sge.address as *const u8, bytes[at..].as_mut_ptr(), sge.bytes as usize);
        }
    }
    MessagePayload::Taken(bytes)
}
