//! The end of a channel: after it nothing of its queues touches memory any more.

use crate::adapter::AdapterError;
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
            let made_new = rail.make_queue_new().inspect_err(|error| {
                tracing::warn!(%error, "a queue is not made new: it is given back as it is");
            });
            rail.is_open = made_new.is_err();
            Some((rail.index, number))
        };
        self.rails.iter_mut().filter_map(reset).collect()
    }

    /// Gives back all queues that could not be made new: with that nothing of this channel touches memory any more. An error, which has been logged,
    /// says that there is no proof of it.
    pub(crate) fn give_back(mut self) -> Result<(), AdapterError> {
        let mut all = Ok(());
        for rail in self.rails.iter_mut().filter(|rail| rail.is_open) {
            if let Err(error) = rail.give_queue_back() {
                tracing::error!(%error, "a card may go on with a queue: memory that it reaches stays withheld");
                all = Err(error);
            }
        }
        all
    }
}
