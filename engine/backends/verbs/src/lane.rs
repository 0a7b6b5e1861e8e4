//! One worker's lane to one peer: its channels.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_core::Cause;
use penstock_core::plan::RegionKey;
use penstock_ring::LowWater;
use penstock_ring::gate::NOTHING;
use penstock_transport::host::{Bell, EngineSegments};
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, FlushRequest, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError, Posted,
    RemoteGateLog, RemoteMemory, Revisions,
};

use crate::adapter::{AdapterError, Wc, WorkCompletion};
use crate::channel::Channel;
use crate::connecting::Connectors;
use crate::context::Context;
use crate::fence::LaneFence;
use crate::hub::{Hub, HubEvent, HubItem};
use crate::regions::{LocalKeys, NoKeys, Regions};
use crate::slab::SLOT_BYTES;
use crate::transport_messages::LaneAsides;

/// What one poll sees to at most, so that other lanes have their turn.
const ITEMS_PER_POLL: usize = 64;

/// A stream of a program's that posts wait for is asked so often: a card does not wait by itself.
const ORDER_LOOK: Duration = Duration::from_micros(50);

/// What all lanes of a session share.
pub(crate) struct Common {
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) told: Arc<RemoteGateLog>,
    pub(crate) fence: Arc<LaneFence>,
    pub(crate) transport_messages: Arc<LaneAsides>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) connectors: Arc<Connectors>,
    /// The adapter of each rail, and how many channels and workers there are.
    pub(crate) adapters: Vec<usize>,
    pub(crate) workers: usize,
}

pub(crate) struct VerbsLane {
    /// First, so that queues go before anything that they use.
    channels: Vec<Channel>,
    common: Arc<Common>,
    hub: Arc<Hub>,
    inbox: u32,
    worker: usize,
    application: Bell,
    low: LowWater,
    /// What was taken from the hub and not seen to.
    items: VecDeque<HubItem>,
    /// Slots that were read, of this CQ.
    read: (u8, Vec<u64>),
    message: Box<[u8]>,
    /// The local region that was posted from last.
    known: Option<(RegionKey, LocalKeys)>,
    /// Up to which revision of the peer's log its fence was sent.
    fenced: u64,
    /// Up to which revision rails were cut off by force.
    forced: u64,
    /// When it is to be polled, as the hub knows it.
    is_timed: bool,
    /// A post waits for a stream of a program's.
    awaits_stream: bool,
}

/// What a lane is made of, beside what all lanes share.
pub(crate) struct LaneParts {
    pub(crate) hub: Arc<Hub>,
    pub(crate) inbox: u32,
    pub(crate) worker: usize,
    pub(crate) low: LowWater,
}

impl VerbsLane {
    pub(crate) fn new(common: &Arc<Common>, parts: LaneParts) -> Self {
        let LaneParts { hub, inbox, worker, low } = parts;
        Self {
            channels: Vec::new(),
            hub,
            inbox,
            worker,
            application: common.segments.ringer(0),
            common: Arc::clone(common),
            low,
            items: VecDeque::new(),
            read: (0, Vec::new()),
            message: vec![0; SLOT_BYTES].into(),
            known: None,
            fenced: 0,
            forced: 0,
            is_timed: false,
            awaits_stream: false,
        }
    }

    /// One more channel is of this lane: the next of its numbers.
    pub(crate) fn push(&mut self, channel: Channel) {
        self.channels.push(channel);
    }

    /// Has all queues connected.
    pub(crate) fn connect(&mut self) {
        let connectors = &*self.common.connectors;
        self.channels.iter_mut().for_each(|channel| channel.connect(connectors));
    }

    /// Waits for that at most until then; an error if a channel has no rail.
    pub(crate) fn is_connected(&mut self, until: Instant) -> Result<(), AdapterError> {
        let connectors = &*self.common.connectors;
        self.channels.iter_mut().try_for_each(|channel| channel.is_connected(until, connectors))
    }

    /// The numbers of its channels: of all of the session every so many-th.
    fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let (worker, workers, count) = (self.worker, self.common.workers, self.channels.len());
        (0..count).map(move |place| (worker + place * workers) as u16)
    }

    /// Which channel carries all that this worker has of a transfer.
    fn place_of(&self, transfer: u64) -> usize {
        // Its place and the use of it: small transfers one after another take turns.
        ((transfer ^ transfer >> 32) % self.channels.len() as u64) as usize
    }

    /// Calls a channel with what it may need.
    fn with<T>(&mut self, place: usize, call: impl FnOnce(&mut Channel, &Context<'_>) -> T) -> T {
        let Self { channels, common, hub, application, worker, .. } = self;
        let number = (*worker + place * common.workers) as u16;
        let say = |words: &[u8]| common.transport_messages.say(number, words);
        let forget = |rail: u8, queue: u32| hub.lock().forget_queue(common.adapters[usize::from(rail)], queue);
        let context = Context {
            here: common.segments.owner_state.view().revision(),
            told: &common.told,
            segments: &common.segments,
            application,
            witness: &*common.fence,
            say: &say,
            forget: &forget,
            connect: &*common.connectors,
            now: hub.lock().now(),
        };
        call(&mut channels[place], &context)
    }

    /// Calls all channels. Returns whether any said yes.
    fn with_each(
        &mut self,
        mut call: impl FnMut(&mut Channel, &Context<'_>) -> Result<bool, LaneFault>,
    ) -> Result<bool, LaneFault> {
        (0..self.channels.len()).try_fold(false, |any, place| Ok(any | self.with(place, &mut call)?))
    }

    /// The keys to this side's memory on each rail.
    fn local_keys(&mut self, key: RegionKey) -> Result<LocalKeys, PostError> {
        if let Some((known, keys)) = self.known
            && known == key
        {
            return Ok(keys);
        }
        let keys = self.common.regions.keys_of(key, &self.common.adapters).map_err(|error| match error {
            NoKeys::Gone(_) => PostError::Refused(Cause::RevokedHere),
            NoKeys::Card(error) => {
                tracing::warn!(%error, "memory of this engine cannot be registered with a card");
                PostError::Refused(Cause::NoPath)
            }
        })?;
        self.known = Some((key, keys.local));
        Ok(keys.local)
    }

    fn oldest(&self) -> u64 {
        self.channels.iter().map(Channel::oldest).min().unwrap_or(NOTHING)
    }

    /// Sees to what the hub has for this lane. Returns whether there is more.
    fn take_items(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        if self.items.is_empty() {
            self.hub.lock().take(self.inbox, &mut self.items);
            // These were polled, so a flush from here on has what adapters had written before them. Nobody was told of it yet.
            if self.common.regions.flushes_any() && self.items.iter().any(HubItem::may_follow_bytes) {
                self.common.regions.flush();
            }
        }
        for _ in 0..ITEMS_PER_POLL {
            let Some(HubItem { channel, rail, what }) = self.items.pop_front() else { break };
            let place = usize::from(channel);
            match what {
                HubEvent::Event(event) => self.with(place, |channel, context| channel.event(rail, event, context)),
                HubEvent::Done { cq, done } => self.done(place, rail, cq, &done, events)?,
            }
        }
        self.give_back();
        Ok(!self.items.is_empty())
    }

    fn done(
        &mut self,
        place: usize,
        rail: u8,
        cq: u8,
        done: &WorkCompletion,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let Wc::Recv { bytes, immediate } = done.result else {
            return self.with(place, |channel, context| channel.done(rail, done, &[], context, events));
        };
        let bytes = if immediate.is_some() { 0 } else { (bytes as usize).min(SLOT_BYTES) };
        if bytes > 0 {
            self.hub.lock().read(cq, done.id, &mut self.message[..bytes]);
        }
        if self.read.0 != cq {
            self.give_back();
            self.read.0 = cq;
        }
        self.read.1.push(done.id);
        let message = std::mem::take(&mut self.message);
        let result = self.with(place, |channel, context| channel.done(rail, done, &message[..bytes], context, events));
        self.message = message;
        result
    }

    /// Slots that were read may take other messages.
    fn give_back(&mut self) {
        if !self.read.1.is_empty() {
            self.hub.lock().give_back(self.read.0, &self.read.1);
            self.read.1.clear();
        }
    }

    /// What the peer's lanes say of broken rails.
    fn take_asides(&mut self) -> Result<(), LaneFault> {
        for (place, number) in self.numbers().enumerate() {
            while let Some(words) = self.common.transport_messages.next(number) {
                self.with(place, |channel, context| channel.on_transport_message(&words, context))?;
            }
        }
        Ok(())
    }

    /// Sends fences when the peer has told of withdrawals, and cuts off what has to have ended here.
    fn keep_quiet(&mut self) {
        let copied = self.common.told.replicated();
        if copied > self.fenced {
            self.fenced = copied;
            self.channels.iter_mut().for_each(|channel| channel.send_fence(copied));
        }
        let forced = self.common.fence.forced();
        if forced <= self.forced {
            return;
        }
        self.forced = forced;
        for (place, number) in self.numbers().enumerate() {
            // What no adapter has any more is no reason to cut off those that have other things.
            self.with(place, |channel, context| channel.catch_up(context));
            let is_old = self.channels[place].oldest() < forced;
            for rail in 0..self.common.adapters.len() as u8 {
                if is_old || !self.common.fence.rail_has_passed(number, rail, forced) {
                    tracing::debug!(channel = number, rail, "cut off: withdrawn memory has to be quiet");
                    self.with(place, |channel, context| channel.cut(rail, context));
                }
            }
        }
    }

    /// Says what is still under way, which queues were made new, and when to look again.
    fn settle(&mut self) {
        for channel in &mut self.channels {
            for rail in channel.made_new.drain(..) {
                let number = channel.rails[usize::from(rail)].number;
                self.hub.lock().was_made_new(self.common.adapters[usize::from(rail)], number);
            }
        }
        self.low.ended(self.oldest());
        self.set_timer();
    }

    /// Says when to look again although nothing comes.
    fn set_timer(&mut self) {
        let mut next = self.channels.iter().filter_map(Channel::next_look).min();
        if self.awaits_stream {
            let look = self.hub.lock().now() + ORDER_LOOK;
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        if next.is_some() || self.is_timed {
            self.is_timed = next.is_some();
            self.hub.lock().look_at(self.inbox, next);
        }
    }
}

impl Lane for VerbsLane {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let RemoteMemory::Rdma(memory) = batch.remote else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        if let Some(device) = batch.local.device()
            && !self.common.regions.is_in_order(device)
        {
            self.awaits_stream = true;
            self.set_timer();
            return Err(PostError::Full);
        }
        let keys = self.local_keys(batch.local_region)?;
        self.low.begin(batch.checked_at.local);
        // No processor of the peer looks at this again: what it has withdrawn is known here, or the peer waits for this lane's fence, which
        // goes behind this batch.
        let here = self.common.segments.owner_state.view().revision();
        let there = self.common.told.replicated().max(batch.checked_at.remote);
        let posted = if (Revisions { local: here, remote: there }) == batch.checked_at {
            let place = self.place_of(batch.transfer);
            self.channels[place].post(batch, memory, keys.first(self.common.adapters.len()))
        } else {
            Err(PostError::StaleRevisions(Revisions { local: here, remote: there }))
        };
        if posted.is_err() {
            self.low.ended(self.oldest());
        }
        posted
    }

    fn reaches_device(&self, local_region: RegionKey) -> bool {
        if self.known.is_some_and(|(known, _)| known == local_region) {
            return true;
        }
        // What has gone is said by the post.
        !matches!(self.common.regions.keys_of(local_region, &self.common.adapters), Err(NoKeys::Card(_)))
    }

    fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if arrival.is_empty() {
            return Ok(NotifyPosted::Delivered(true));
        }
        let place = self.place_of(arrival.transfer);
        self.channels[place].notify(arrival)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        self.channels.iter_mut().for_each(Channel::flush);
        // An adapter may have refused.
        self.set_timer();
        Ok(())
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(LaneFault(Cause::NoPath)))
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        // Which channel has it is not told by its name; those that do not have it are quiet.
        let mut answers = (0..self.channels.len()).map(|place| self.channels[place].cancel_op(completion_id));
        let answer = answers.find(|answer| *answer != CancelledOp::Quiesced).unwrap_or(CancelledOp::Quiesced);
        self.settle();
        answer
    }

    fn completes_before_placement(&self) -> bool {
        true
    }

    fn flush_remote(&mut self, proof: &FlushRequest) -> Result<NotifyPosted, PostError> {
        let place = self.place_of(proof.transfer);
        self.channels[place].flush_remote(proof)
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        // What waits for a stream is posted again after this.
        self.awaits_stream = false;
        self.take_asides()?;
        let mut more = self.take_items(events)?;
        self.keep_quiet();
        more |= self.with_each(|channel, context| channel.poll(context, events))?;
        self.settle();
        Ok(more)
    }
}

impl Drop for VerbsLane {
    fn drop(&mut self) {
        self.channels.iter_mut().for_each(Channel::break_off);
        let mut hub = self.hub.lock();
        // What came before is taken while it can still be told whose it is.
        hub.drain();
        for channel in &mut self.channels {
            for (rail, number) in channel.reset() {
                hub.forget_queue(self.common.adapters[usize::from(rail)], number);
            }
        }
        hub.discard(&mut self.items);
        let (cq, read) = &self.read;
        hub.give_back(*cq, read);
        hub.drop_inbox(self.inbox);
        drop(hub);
        let numbers = self.numbers();
        if self.channels.drain(..).filter_map(|channel| channel.give_back().err()).count() == 0 {
            self.low.ended(NOTHING);
            self.common.fence.ended(numbers);
        } else {
            self.common.fence.left_unproven();
        }
    }
}

#[cfg(test)]
mod tests;
