//! The end of a channel: after it nothing of its queues touches memory any more.

use crate::channel::Channel;

impl Channel {
    /// Breaks off all queues: what was posted and has not ended completes as failed.
    pub(crate) fn break_off(&mut self) {
        for rail in &mut self.rails {
            if let Err(error) = rail.break_queue() {
                tracing::debug!(%error, "a queue is not broken off: it is made new all the same");
            }
        }
    }

    /// Makes all queues new. Answers their numbers, by rail, without those that were given back: these may be others' by now.
    pub(crate) fn reset(&mut self) -> Vec<(u8, u32)> {
        let reset = |rail: &mut crate::rail::Rail| {
            let number = rail.queue_number()?;
            if let Err(error) = rail.make_queue_new() {
                tracing::warn!(%error, "a queue is not made new: it is given back as it is");
            }
            Some((rail.index, number))
        };
        self.rails.iter_mut().filter_map(reset).collect()
    }
}
