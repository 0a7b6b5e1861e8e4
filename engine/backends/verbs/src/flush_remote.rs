//! Proof that what was written has landed.
//!
//! An adapter that completes a write says that the peer's adapter has it. When the peer's memory has it is only known of what lies before a
//! message that the peer has heard. So of a transfer that ends before it is told, something is said on every rail that may have
//! carried it: that a notification is not to be made, of which nothing was ever said. The peer has nothing to do for that but
//! to answer.

use penstock_transport::{FlushRequest, NotifyPosted, PostError};

use crate::channel::Channel;
use crate::log::Say;
use crate::message::{Body, Forgotten, PROOFS};
use crate::op::OpId;

impl Channel {
    /// Has the peer hear something behind all that was posted of a transfer.
    pub(crate) fn flush_remote(&mut self, proof: &FlushRequest) -> Result<NotifyPosted, PostError> {
        // What goes again first has no rail yet.
        if !self.lots.is_empty() {
            return Err(PostError::Full);
        }
        let carried = self.carried(proof.transfer, proof.transfer_bytes);
        if carried == 0 {
            // Both sides have ended the lives of the rails that carried it.
            return Ok(NotifyPosted::Delivered(true));
        }
        let carriers = (0..self.rails.len()).filter(|rail| carried & 1 << rail != 0);
        if !carriers.clone().all(|rail| self.rails[rail].takes_proof()) {
            return Err(PostError::Full);
        }
        let id = self.ops.take_proof(proof);
        let op = &mut self.ops[id];
        (op.number, op.unheard) = (PROOFS, carried.count_ones() as u8);
        for rail in carriers {
            self.say_for_proof(rail, id);
        }
        Ok(NotifyPosted::Accepted)
    }

    pub(crate) fn say_for_proof(&mut self, rail: usize, id: OpId) {
        let nothing = Forgotten { number: self.ops[id].number, marks: 0, is_said: false };
        self.say(rail, Say::Tell(id), &Body::Forget(nothing));
    }
}
