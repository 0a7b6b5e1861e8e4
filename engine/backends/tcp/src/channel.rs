//! A channel: the streams between one worker here and one worker there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::Direction;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_transport::lane::CancelledOp;
use penstock_transport::mediated::Notes;
use penstock_transport::{
    Batch, LaneEvents, LaneFault, NotifyPosted, NotifyRequest, PostError, Posted, TargetMediatedMemory,
};

use crate::hub::Inner;
use crate::op::{Kind, Ops};
use crate::stream::{Common, Ledger, Stream};
use crate::wire::PAYLOAD_BYTES_MAX;

/// Bytes of operations that have not ended, over all streams of a channel: enough to fill the way there and back.
const BYTES_UNDER_WAY_MAX: u64 = 4 * 1024 * 1024;

/// A transfer goes on to the next stream only after so many bytes.
const BYTES_ON_ONE_STREAM: u64 = 256 * 1024;

pub(crate) struct Channel {
    streams: Vec<Option<Stream>>,
    ledger: Ledger,
    /// The transfer that was posted last, on which stream, and how much of it there.
    transfer: u64,
    current: usize,
    on_current: u64,
}

impl Channel {
    pub(crate) fn new(streams: usize) -> Self {
        Self {
            streams: (0..streams).map(|_| None).collect(),
            ledger: Ledger { ops: Ops::default(), notes: Notes::default(), ended: Vec::new() },
            transfer: 0,
            current: 0,
            on_current: 0,
        }
    }

    /// A stream is there.
    pub(crate) fn attach(
        &mut self,
        place: usize,
        fd: Arc<OwnedFd>,
        hub: &mut Inner,
        peer_index: u32,
    ) -> Result<(), LaneFault> {
        let key = hub.watch(fd.as_fd(), peer_index).map_err(|error| {
            tracing::warn!(%error, "a stream cannot be watched");
            LaneFault(Cause::PeerLost)
        })?;
        self.streams[place] = Some(Stream::new(fd, key));
        Ok(())
    }

    /// Nothing of it is watched any more.
    pub(crate) fn close(&mut self, hub: &mut Inner) {
        for stream in self.streams.drain(..).flatten() {
            hub.unwatch(stream.fd.as_fd(), stream.key);
        }
    }

    /// Whether so many bytes may set off; all streams have to be there.
    fn has_room(&self, bytes: u64) -> bool {
        let under_way = self.ledger.ops.bytes_under_way();
        let count = self.streams.iter().try_fold(0, |count, stream| Some(count + stream.as_ref()?.outgoing.count()));
        count.is_some_and(|count| count < IN_FLIGHT_PER_LANE_MAX)
            && (under_way == 0 || under_way + bytes <= BYTES_UNDER_WAY_MAX)
    }

    /// Which stream takes these bytes of a transfer.
    fn choose(&mut self, transfer: u64, bytes: u64) -> usize {
        let goes_on = transfer != self.transfer || self.on_current >= BYTES_ON_ONE_STREAM;
        if goes_on && self.streams.len() > 1 {
            (self.current, self.on_current) = ((self.current + 1) % self.streams.len(), 0);
        }
        self.transfer = transfer;
        self.on_current += bytes;
        self.current
    }

    /// Takes as many of the spans as fit into one message.
    pub(crate) fn post(&mut self, batch: &Batch<'_>, memory: &TargetMediatedMemory) -> Result<Posted, PostError> {
        let local = batch.host()?;
        let (count, bytes) = batch.fitting(PAYLOAD_BYTES_MAX);
        let spans = &batch.spans[..count];
        batch.check_bounds(spans, memory)?;
        if !self.has_room(bytes) {
            return Err(PostError::Full);
        }
        let place = self.choose(batch.transfer, bytes);
        let kind = if batch.direction == Direction::Write { Kind::Write } else { Kind::Read };
        let id = self.ledger.ops.take(kind, bytes);
        let op = &mut self.ledger.ops[id];
        (op.completion_id, op.transfer) = (batch.completion_id, batch.transfer);
        (op.key, op.checked) = (batch.local_region, batch.checked_at.local);
        (op.remote, op.revision) = (memory.key, batch.checked_at.remote);
        op.memory = Some(local.clone());
        op.spans.extend_from_slice(spans);
        if let Some(stream) = &mut self.streams[place] {
            stream.outgoing.push(id);
        }
        Ok(Posted::Accepted(count))
    }

    /// Tells the peer what follows a transfer, behind its last operation.
    pub(crate) fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        let Ledger { ops, ended, .. } = &self.ledger;
        if !self.has_room(0) || ended.iter().any(|ended| ended.transfer == arrival.transfer) {
            return Err(PostError::Full);
        }
        let carries = |place: usize, kind: Kind| {
            let stream = self.streams[place].as_ref();
            stream.is_some_and(|stream| stream.outgoing.carries(kind, arrival.transfer, ops))
        };
        // The peer hears of a READ's end when its bytes have landed here, which no order of messages says.
        if (0..self.streams.len()).any(|place| carries(place, Kind::Read)) {
            return Err(PostError::Full);
        }
        let mut carrying = (0..self.streams.len()).filter(|&place| carries(place, Kind::Write));
        let place = match (carrying.next(), carrying.next()) {
            (None, _) => self.current,
            (Some(place), None) => place,
            // There is no order between streams: it is told when what is on them has ended.
            (Some(_), Some(_)) => return Err(PostError::Full),
        };
        let lines = arrival.note.map_or(0, |note| note.lines() as u64);
        if !self.ledger.notes.reserve(lines) {
            return Err(PostError::Full);
        }
        let id = self.ledger.ops.take(Kind::Notify, 0);
        let op = &mut self.ledger.ops[id];
        (op.completion_id, op.transfer, op.counter) = (arrival.completion_id, arrival.transfer, arrival.counter);
        if let Some(note) = arrival.note {
            op.note = Some(note.id);
            op.payload.extend_from_slice(note.payload);
        }
        if let Some(stream) = &mut self.streams[place] {
            stream.outgoing.push(id);
        }
        Ok(NotifyPosted::Accepted)
    }

    /// Gives up what goes under this token.
    pub(crate) fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp> {
        let Ledger { ops, notes, ended } = &mut self.ledger;
        if let Some(place) = ended.iter().position(|ended| ended.completion_id == completion_id) {
            notes.take_back(ended.swap_remove(place).lines);
            return Some(CancelledOp::Quiesced);
        }
        for stream in self.streams.iter_mut().flatten() {
            let Some((answer, id)) = stream.outgoing.cancel_op(completion_id, ops) else { continue };
            if answer == CancelledOp::Quiesced {
                notes.take_back(ops[id].lines());
                ops.give_back(id);
            } else {
                stream.incoming.forget(id);
            }
            return Some(answer);
        }
        None
    }

    /// Sends what there is. Returns whether there is more to do at once.
    pub(crate) fn send(&mut self, hub: &mut Inner, common: &mut Common, streams: usize) -> Result<bool, LaneFault> {
        let mut more = false;
        for stream in self.streams.iter_mut().flatten() {
            more |= stream.send(&mut hub.io, common, &mut self.ledger, streams)?;
        }
        Ok(more || !self.ledger.ended.is_empty())
    }

    /// Takes what came, reports what ended, and sends what is to be answered. Returns whether there may be more.
    pub(crate) fn poll(
        &mut self,
        hub: &mut Inner,
        common: &mut Common,
        events: &mut dyn LaneEvents,
        streams: usize,
    ) -> Result<bool, LaneFault> {
        let mut more = false;
        self.ledger.notes.deliver(events);
        for stream in self.streams.iter_mut().flatten() {
            stream.hear(hub.take_ready(stream.key));
            while let Some(released) = hub.take_released(stream.key) {
                stream.released(&released, &mut self.ledger.ops, events);
            }
            more |= stream.receive(&mut hub.io, common, &mut self.ledger, events, streams)?;
        }
        for stream in self.streams.iter_mut().flatten() {
            more |= stream.send(&mut hub.io, common, &mut self.ledger, streams)?;
        }
        for ended in self.ledger.ended.drain(..) {
            self.ledger.notes.take_back(ended.lines);
            events.completed(ended.completion_id, Err(ended.cause.into()));
        }
        Ok(more)
    }
}
