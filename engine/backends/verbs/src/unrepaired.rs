//! What becomes of a channel whose rail breaks, as long as nothing is repaired.

use std::time::Instant;

use penstock_core::Cause;
use penstock_transport::LaneFault;

use crate::card::Event;
use crate::channel::Channel;
use crate::context::Context;

impl Channel {
    pub(crate) fn aside(&mut self, _: &[u8], _: &Context<'_>) -> Result<(), LaneFault> {
        Err(LaneFault(Cause::PeerCorrupt))
    }

    pub(crate) fn cut(&mut self, rail: u8, context: &Context<'_>) {
        let number = self.number;
        let rail = &mut self.rails[usize::from(rail)];
        if rail.queue.break_off().is_ok() && rail.queue.reset().is_ok() {
            rail.standing = crate::rail::Standing::Idle;
            context.witness.reset(number, rail.index, context.here);
        }
    }

    pub(crate) fn event(&mut self, rail: u8, event: Event, _: &Context<'_>) {
        tracing::debug!(rail, ?event, "something has happened to a rail");
    }

    pub(crate) fn next_look(&self) -> Option<Instant> {
        None
    }
}
