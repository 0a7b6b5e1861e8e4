//! One worker's lane to one peer: its connections to the peer's workers.

use std::sync::Arc;

use penstock_core::limits::UNIT_BYTES;
use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Direction};
use penstock_datagram::initiator::{MoveRequest, OpKind};
use penstock_datagram::wire::NotifyHead;
use penstock_ring::ReadyBits;
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError, Posted, RemoteGateLog,
    RemoteMemory, Revisions,
};

use crate::hub::{Connections, Endpoint, Hub, Reserved};
use crate::no_path::NoPathNotice;
use crate::side::OpMemory;

pub(crate) struct DatagramLane {
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) told: Arc<RemoteGateLog>,
    /// Where the lane itself marks that there is something to do.
    pub(crate) ready: ReadyBits,
    /// The place of the peer in our table.
    pub(crate) peer_index: u32,
    pub(crate) hub: Arc<Hub>,
    /// The connections of this worker: of all of the session every so many-th.
    pub(crate) connections: Vec<Reserved>,
    pub(crate) notice: Arc<NoPathNotice>,
}

impl DatagramLane {
    /// The connection over which all of a transfer goes that this worker has of it.
    fn connection_of(&self, transfer: u64) -> u64 {
        // Its place and the use of it: small transfers one after another take turns.
        let place = (transfer ^ transfer >> 32) % self.connections.len() as u64;
        self.connections[place as usize].id
    }

    /// That connection, if it is not over.
    fn endpoint<'a>(&self, hub: &'a mut Connections, transfer: u64) -> Result<&'a mut Endpoint, PostError> {
        let endpoint =
            hub.endpoint(self.connection_of(transfer)).ok_or(PostError::Fault(LaneFault(Cause::PeerLost)))?;
        match endpoint.fault {
            Some(fault) => Err(PostError::Fault(fault)),
            None => Ok(endpoint),
        }
    }
}

impl Lane for DatagramLane {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let RemoteMemory::TargetMediated(memory) = batch.remote else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        // The peer looks itself, with the plan's revision. What it has told meanwhile is looked at here, or a plan that is
        // used for long would fall behind what the peer remembers. Own withdrawals are seen again when bytes move.
        let here = self.segments.owner_state.view().revision();
        let there = self.told.replicated().max(batch.checked_at.remote);
        if (Revisions { local: here, remote: there }) != batch.checked_at {
            return Err(PostError::StaleRevisions(Revisions { local: here, remote: there }));
        }
        let (count, _) = batch.fitting(UNIT_BYTES);
        let spans = &batch.spans[..count];
        batch.check_bounds(spans, memory)?;
        let window = batch.host()?;
        let mut hub = self.hub.lock();
        let endpoint = self.endpoint(&mut hub, batch.transfer)?;
        if !endpoint.connection.has_room() {
            return Err(PostError::Full);
        }
        let kind = if batch.direction == Direction::Write { OpKind::Write } else { OpKind::Read };
        let what = MoveRequest {
            completion_id: batch.completion_id,
            transfer: batch.transfer,
            key: memory.key,
            revision: batch.checked_at.remote,
            spans,
        };
        let operation = endpoint.connection.post(kind, &what);
        let (window, key, checked_at) = (window.clone(), batch.local_region, batch.checked_at.local);
        endpoint.side.begin_move(operation, OpMemory { window, key, checked_at });
        Ok(Posted::Accepted(count))
    }

    fn notify(&mut self, request: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if request.is_empty() {
            return Ok(NotifyPosted::Delivered(true));
        }
        let mut hub = self.hub.lock();
        let Endpoint { connection, side, .. } = self.endpoint(&mut hub, request.transfer)?;
        // The peer hears of a READ's end when its bytes have landed here, which no map of operations says.
        if !connection.has_room() || connection.reads(request.transfer) {
            return Err(PostError::Full);
        }
        let lines = request.note.map_or(0, |note| note.lines() as u64);
        if !side.notes.reserve(lines) {
            return Err(PostError::Full);
        }
        let note = request.note.map(|note| (note.id, note.payload.len() as u16));
        let head = NotifyHead { counter: request.counter, note, ..NotifyHead::default() };
        let payload = request.note.map_or(&[][..], |note| note.payload);
        match connection.notify(request.completion_id, request.transfer, head, payload) {
            Some(operation) => side.begin_notify(operation, lines),
            None => {
                // Its transfer has failed. Nothing follows that would make the worker look.
                side.notes.take_back(lines);
                self.ready.mark(self.peer_index as usize);
            }
        }
        Ok(NotifyPosted::Accepted)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        let now = self.hub.env.now();
        let mut hub = self.hub.lock();
        for connection in &self.connections {
            // While something is under way, what is small waits for the next look, so that more of it leaves together.
            if hub.is_under_way(connection.id)
                || hub.transmit(connection.id, now).inspect_err(|&fault| self.notice.tell(fault))?
            {
                self.ready.mark(self.peer_index as usize);
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(LaneFault(Cause::NoPath)))
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let mut hub = self.hub.lock();
        for connection in &self.connections {
            let Some(Endpoint { connection, side, .. }) = hub.endpoint(connection.id) else { continue };
            let Some(given_up) = connection.cancel(completion_id) else { continue };
            // That it is given up is to be sent, and there may be room.
            self.ready.mark(self.peer_index as usize);
            if planted::is(Bug::RepeatedAfterGivenUp) {
                return CancelledOp::Quiesced;
            }
            if let Some(operation) = given_up.operation {
                side.release_memory(operation);
                if given_up.has_ended {
                    side.end(operation, false);
                    return CancelledOp::Quiesced;
                }
            }
            return CancelledOp::RemotePending;
        }
        CancelledOp::Quiesced
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let now = self.hub.env.now();
        let mut hub = self.hub.lock();
        let mut more = false;
        for connection in &self.connections {
            more |= hub.poll(connection.id, now, events).inspect_err(|&fault| self.notice.tell(fault))?;
        }
        Ok(more)
    }

    fn why_broken(&self) -> Option<String> {
        let mut hub = self.hub.lock();
        self.connections.iter().find_map(|connection| hub.endpoint(connection.id)?.why.clone())
    }
}
