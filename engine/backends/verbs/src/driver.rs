//! What a worker does for all its queues at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use penstock_core::Timestamp;
use penstock_transport::host::Bell;
use penstock_transport::{Driver, Rest};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::adapter::{Adapter, AsyncEvent};
use crate::hub::{Hub, Inner};
use crate::regions::Regions;

/// Turns until adapters are asked again what has happened to them, while the worker does not sleep: a system call each.
const TURNS_PER_EVENTS: u32 = 1024;

/// Events of one adapter that are taken at once.
const EVENTS_AT_ONCE: usize = 64;

pub(crate) struct VerbsDriver {
    hub: Arc<Hub>,
    /// What the worker sleeps on: CQs and adapters' events.
    descriptor: OwnedFd,
    /// The adapters whose descriptors it sleeps on.
    watched: Vec<usize>,
    events: Option<Events>,
    turns: u32,
}

/// Adapters' events, which one worker hears for all.
pub(crate) struct Events {
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    /// What is registered with them.
    pub(crate) regions: Arc<Regions>,
    /// Of every worker, and what wakes it.
    pub(crate) hubs: Vec<(Arc<Hub>, Bell)>,
}

impl VerbsDriver {
    /// The driver of the worker with this hub.
    pub(crate) fn new(hub: Arc<Hub>, adapters: &[Arc<dyn Adapter>], events: Option<Events>) -> std::io::Result<Self> {
        let descriptor = epoll::create(CreateFlags::CLOEXEC)?;
        let watch = |fd: BorrowedFd<'_>| epoll::add(&descriptor, fd, EventData::new_u64(0), EventFlags::IN);
        {
            let inner = hub.lock();
            (0..adapters.len()).try_for_each(|adapter| watch(inner.cq(adapter).descriptor()))?;
        }
        if events.is_some() {
            adapters.iter().try_for_each(|adapter| watch(adapter.events()))?;
        }
        let watched = (0..adapters.len()).collect();
        Ok(Self { hub, descriptor, watched, events, turns: 0 })
    }

    /// Asks the adapters what has happened to them, and tells all workers' lanes. Returns whether anything had.
    fn take_events(&mut self) -> bool {
        let Some(Events { adapters, regions, hubs }) = &self.events else { return false };
        let mut any = false;
        for (place, adapter) in adapters.iter().enumerate() {
            for _ in 0..EVENTS_AT_ONCE {
                let Some(event) = adapter.next_event() else { break };
                any = true;
                let name = &adapter.attr().name;
                match event {
                    AsyncEvent::Fatal => {
                        tracing::error!(adapter = name, "a card has failed");
                        regions.has_failed(place);
                    }
                    AsyncEvent::QueueBroken(number) => tracing::debug!(adapter = name, number, "a queue has broken"),
                    AsyncEvent::CmProgress(number) => {
                        tracing::trace!(adapter = name, number, "a meeting has come further")
                    }
                    AsyncEvent::PortDown | AsyncEvent::PortUp | AsyncEvent::Changed => {
                        tracing::info!(adapter = name, ?event, "a port")
                    }
                }
                hubs.iter().for_each(|(hub, _)| hub.lock().event(place, event));
            }
        }
        if any {
            hubs.iter().for_each(|(_, bell)| bell.ring());
        }
        any
    }
}

/// Descriptors of an adapter that has failed are readable for good once its device is gone: who slept on them would never sleep.
fn unwatch_dead(inner: &Inner, watched: &mut Vec<usize>, descriptor: &OwnedFd, events: Option<&Events>) {
    watched.retain(|&adapter| {
        if !inner.is_dead(adapter) {
            return true;
        }
        let of_events = events.map(|events| events.adapters[adapter].events());
        for fd in of_events.into_iter().chain([inner.cq(adapter).descriptor()]) {
            if let Err(error) = epoll::delete(descriptor, fd) {
                tracing::warn!(%error, adapter, "a worker goes on being woken by a card that has failed");
            }
        }
        false
    });
}

impl Driver for VerbsDriver {
    fn turn(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let mut any = self.turns.is_multiple_of(TURNS_PER_EVENTS) && self.take_events();
        match self.hub.try_lock() {
            Some(mut inner) => {
                inner.next_turn();
                any |= inner.turn();
            }
            // A session begins or ends: what has come is there in the next turn.
            None => any = true,
        }
        any
    }

    fn rest(&mut self, now: Timestamp) -> Rest {
        if self.take_events() {
            return Rest::Busy;
        }
        let Some(mut inner) = self.hub.try_lock() else { return Rest::Busy };
        inner.next_turn();
        inner.arm();
        unwatch_dead(&inner, &mut self.watched, &self.descriptor, self.events.as_ref());
        if inner.turn() {
            return Rest::Busy;
        }
        // However long the sleep, nobody takes the clock from before it for the present.
        inner.next_turn();
        let look = inner.next_look();
        Rest::Until(look.map_or(Timestamp::NEVER, |at| now + at.saturating_duration_since(Instant::now())))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
