//! One worker's lane to one peer.

use std::sync::Arc;

use penstock_core::limits::UNIT_BYTES;
use penstock_core::{Cause, Direction, Timestamp};
use penstock_ring::ReadyBits;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::mediated::{LaneTarget, Notes};
use penstock_transport::record::lines_for;
use penstock_transport::{
    Batch, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError, Posted, RemoteGateLog,
    RemoteMemory, Revisions,
};

use crate::hub::SimPort;
use crate::incoming::Incoming;
use crate::line::{Kept, Line};
use crate::outgoing::{Kind, Memories, Op, Outgoing};
use crate::packet::{Head, Message, PacketError};

/// Packets that one look takes.
const PACKETS_PER_POLL: usize = 64;

pub(crate) struct SimLane {
    pub(crate) target: LaneTarget,
    pub(crate) told: Arc<RemoteGateLog>,
    /// Where the lane itself marks that there is something to do.
    pub(crate) ready: ReadyBits,
    /// The place of the peer in our table.
    pub(crate) peer_index: u32,
    pub(crate) port: SimPort,
    pub(crate) to: u64,
    /// The epochs of this engine and of the peer.
    pub(crate) epochs: (u64, u64),
    pub(crate) line: Line,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) notes: Notes,
}

impl SimLane {
    /// Takes one packet: its bytes land at once, the rest when all before it have come.
    fn take(&mut self, packet: &[u8], now: Timestamp) -> Result<(), LaneFault> {
        let (head, body) = match Head::parse(packet) {
            Ok((head, body)) if (head.to, head.from) == self.epochs => (head, body),
            // Of another life of one of the two, or of nobody: it went astray.
            other => {
                tracing::debug!(?other, "a packet that is none of this session");
                return Ok(());
            }
        };
        if !self.line.hear(&head, now)? {
            return Ok(());
        }
        let landed = match Message::parse(body).map_err(garbled)? {
            Message::Write { request, bytes, .. } => Some(self.incoming.land(&request, bytes, &mut self.target)?),
            Message::Data { operation, place, bytes } => {
                let LaneTarget { segments, touch, .. } = &mut self.target;
                self.outgoing.land(operation, place, bytes, segments.owner_state.view(), touch)?;
                None
            }
            _ => None,
        };
        self.line.keep(head.sequence, Kept { message: body.to_vec(), landed });
        Ok(())
    }

    /// All messages before this one have come.
    fn follow(&mut self, kept: &Kept, events: &mut dyn LaneEvents) -> Result<(), LaneFault> {
        match (Message::parse(&kept.message).map_err(garbled)?, kept.landed) {
            (Message::Write { request, is_last, .. }, Some(landed)) => {
                self.incoming.wrote(request.operation, request.transfer, is_last, landed)
            }
            (Message::GivenUp { operation, transfer, is_last, cause }, _) => {
                self.incoming.wrote(operation, transfer, is_last, Err(cause))
            }
            (Message::Read(request), _) => self.incoming.asked(request, &mut self.target),
            (message @ Message::Notify { .. }, _) => {
                self.incoming.notified(&message, &self.target, &mut self.notes, events)
            }
            (Message::Done { operation, result, revision }, _) => {
                self.told.on_revision(revision);
                self.outgoing.done(operation, result, events)
            }
            (Message::Credit(lines), _) => self.notes.hear(lines),
            (Message::Write { .. } | Message::Data { .. }, _) => Ok(()),
        }
    }

    /// Sends what there is room for, repeats what was not heard, and says what has come.
    fn send(&mut self, now: Timestamp) -> Result<(), LaneFault> {
        let Self { target, line, outgoing, incoming, notes, port, .. } = self;
        let (to, (from_epoch, to_epoch)) = (self.to, self.epochs);
        let (until, seen) = line.heard();
        let packet = |sequence, message: &[u8]| {
            let mut packet = Vec::new();
            Head { from: from_epoch, to: to_epoch, sequence, until, seen }.put(&mut packet);
            packet.extend(message);
            port.send(to, packet);
        };
        line.repeat(now, packet)?;
        let mut has_said = false;
        // In turns, so that neither side's bulk waits for the other's.
        while line.has_room() {
            if notes.is_due()
                && let Some(lines) = notes.tell()
            {
                let mut message = Vec::new();
                Message::Credit(lines).put(&mut message);
                line.push(message, None, now, packet);
                has_said = true;
                continue;
            }
            let reply = incoming.reply(target);
            let mut any = reply.is_some();
            if let Some(message) = reply {
                line.push(message, None, now, packet);
            }
            if line.has_room()
                && let Some((message, part)) = outgoing.next(target.segments.owner_state.view(), &mut target.touch)
            {
                line.push(message, part, now, packet);
                any = true;
            }
            has_said |= any;
            if !any {
                break;
            }
        }
        if line.settle() && !has_said {
            packet(0, &[]);
        }
        port.set_due(line.due());
        Ok(())
    }
}

impl Lane for SimLane {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let RemoteMemory::TargetMediated(memory) = batch.remote else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        // The peer looks itself, with the plan's revision. What it has told meanwhile is looked at here, or a plan that is
        // used for long would fall behind what the peer remembers. Own withdrawals are seen again when bytes move.
        let here = self.target.view().revision();
        let there = self.told.replicated().max(batch.checked_at.remote);
        if (Revisions { local: here, remote: there }) != batch.checked_at {
            return Err(PostError::StaleRevisions(Revisions { local: here, remote: there }));
        }
        let (count, bytes) = batch.fitting(UNIT_BYTES);
        let spans = &batch.spans[..count];
        batch.check_bounds(spans, memory)?;
        if !self.outgoing.has_room() {
            return Err(PostError::Full);
        }
        let kind = if batch.direction == Direction::Write { Kind::Write } else { Kind::Read { landed: 0 } };
        let memories = Memories {
            local: Some(batch.local.clone()),
            key: batch.local_region,
            checked: batch.checked_at.local,
            remote: memory.key,
            revision: batch.checked_at.remote,
            spans: spans.to_vec(),
        };
        self.outgoing.push(Op::new(kind, batch.completion_id, batch.transfer, Some(memories), bytes));
        Ok(Posted::Accepted(count))
    }

    fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if arrival.is_empty() {
            return Ok(NotifyPosted::Delivered(true));
        }
        // The peer hears of a READ's end when its bytes have landed here, which no order of messages says.
        if !self.outgoing.has_room() || self.outgoing.reads(arrival.transfer) {
            return Err(PostError::Full);
        }
        let lines = arrival.note.map_or(0, |note| lines_for(note.payload.len()) as u64);
        if !self.notes.reserve(lines) {
            return Err(PostError::Full);
        }
        let note = arrival.note.map(|note| (note.id, note.payload.to_vec()));
        let kind = Kind::Notify { counter: arrival.counter, note, lines };
        self.outgoing.push(Op::new(kind, arrival.completion_id, arrival.transfer, None, 0));
        Ok(NotifyPosted::Accepted)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        self.send(self.port.now())
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(LaneFault(Cause::NoPath)))
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let Some((answer, lines)) = self.outgoing.cancel_op(completion_id, &mut self.line) else {
            return CancelledOp::Quiesced;
        };
        self.notes.take_back(lines);
        // The rest of it may leave now as what is given up.
        self.ready.mark(self.peer_index as usize);
        answer
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let now = self.port.now();
        self.notes.deliver(events);
        for _ in 0..PACKETS_PER_POLL {
            let Some(packet) = self.port.take() else { break };
            self.take(&packet, now)?;
            while let Some(kept) = self.line.next_in_order() {
                self.follow(&kept, events)?;
            }
        }
        self.send(now)?;
        Ok(self.port.has_more())
    }
}

fn garbled(error: PacketError) -> LaneFault {
    tracing::warn!(%error, "a peer's packet makes no sense");
    LaneFault(Cause::PeerCorrupt)
}
