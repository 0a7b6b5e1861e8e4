//! One worker's lane to one peer: its channels.

use std::sync::Arc;

use penstock_core::Cause;
use penstock_ring::ReadyBits;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError, Posted, RemoteMemory, Revisions,
};

use crate::channel::Channel;
use crate::hub::Hub;
use crate::stream::Common;
use crate::streams::Arrivals;

pub(crate) struct TcpLane {
    pub(crate) common: Common,
    pub(crate) hub: Arc<Hub>,
    pub(crate) arrivals: Arc<Arrivals>,
    /// Where the driver and the lane itself mark that there is something to do.
    pub(crate) ready: ReadyBits,
    /// The place of the peer in our table.
    pub(crate) peer_index: u32,
    /// The channels of this worker: of all of the session every so many-th.
    pub(crate) channels: Vec<Channel>,
    pub(crate) workers: usize,
    pub(crate) per_channel: usize,
}

impl TcpLane {
    fn take_arrivals(&mut self) -> Result<(), LaneFault> {
        for (index, fd) in self.arrivals.take() {
            let channel = &mut self.channels[index / self.per_channel / self.workers];
            channel.attach(index % self.per_channel, fd, &mut self.hub.lock(), self.peer_index)?;
        }
        Ok(())
    }

    fn close(&mut self) {
        self.arrivals.close();
        let mut hub = self.hub.lock();
        self.channels.iter_mut().for_each(|channel| channel.close(&mut hub));
    }

    /// Where all of a transfer goes that this worker has of it.
    fn channel_of(&mut self, transfer: u64) -> &mut Channel {
        // Its place and the use of it: small transfers one after another take turns.
        let place = (transfer ^ transfer >> 32) % self.channels.len() as u64;
        &mut self.channels[place as usize]
    }
}

impl Lane for TcpLane {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let RemoteMemory::TargetMediated(memory) = batch.remote else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        // The peer looks itself, with the plan's revision. What it has told meanwhile is looked at here, or a plan that is
        // used for long would fall behind what the peer remembers. Own withdrawals are seen again when bytes move.
        let here = self.common.target.view().revision();
        let there = self.common.told.replicated().max(batch.checked_at.remote);
        if (Revisions { local: here, remote: there }) != batch.checked_at {
            return Err(PostError::StaleRevisions(Revisions { local: here, remote: there }));
        }
        self.channel_of(batch.transfer).post(batch, memory)
    }

    fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if arrival.is_empty() {
            return Ok(NotifyPosted::Delivered(true));
        }
        self.channel_of(arrival.transfer).notify(arrival)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        let streams = self.channels.len() * self.per_channel;
        let mut hub = self.hub.lock();
        let mut more = false;
        for channel in &mut self.channels {
            more |= channel.send(&mut hub, &mut self.common, streams)?;
        }
        if more {
            self.ready.mark(self.peer_index as usize);
        }
        Ok(())
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(LaneFault(Cause::NoPath)))
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let answer = self.channels.iter_mut().find_map(|channel| channel.cancel_op(completion_id));
        answer.unwrap_or(CancelledOp::Quiesced)
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        self.take_arrivals()?;
        let streams = self.channels.len() * self.per_channel;
        let mut hub = self.hub.lock();
        let mut more = false;
        for channel in &mut self.channels {
            more |= channel.poll(&mut hub, &mut self.common, events, streams)?;
        }
        Ok(more)
    }

    fn drain(&mut self, _: &mut dyn LaneEvents) -> bool {
        self.close();
        // The hub hears the kernel's last word.
        !self.common.pages.is_held()
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        self.close();
    }
}
