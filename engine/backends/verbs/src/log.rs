//! What was posted on a rail and has not ended, in its order.
//!
//! Batches end when the adapter says so, messages when the peer says that it has heard them, so the two go along the list at their own paces.

use std::collections::VecDeque;

use crate::message::Forgotten;
use crate::op::OpId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Batch(OpId),
    Said(Say),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Say {
    Hello,
    Answer,
    /// That a transfer is there.
    Tell(OpId),
    /// A mark for what is told on another rail.
    Mark(OpId),
    /// That it is not told after all.
    Forget(Forgotten),
    /// That nothing older comes any more.
    Fence(u64),
}

struct Item {
    /// The number of its last request.
    last: u64,
    what: MessageKind,
    is_over: bool,
}

/// What was posted on a rail and has not ended.
#[derive(Default)]
pub(crate) struct Log {
    items: VecDeque<Item>,
    /// How many items ever left it, and where those begin of which nobody knows yet that they were done, or heard.
    gone: u64,
    not_done: u64,
    not_heard: u64,
}

impl Log {
    /// With room for so many.
    pub(crate) fn with_room(items: usize) -> Self {
        Self { items: VecDeque::with_capacity(items), ..Self::default() }
    }

    /// Something is posted; its last request has this number.
    pub(crate) fn push(&mut self, last: u64, what: MessageKind) {
        self.items.push_back(Item { last, what, is_over: false });
    }

    /// What was posted last, if all of it is over when this request is.
    pub(crate) fn last_of(&self, request: u64) -> Option<MessageKind> {
        self.items.back().filter(|item| item.last == request).map(|item| item.what)
    }

    /// The adapter has done all requests up to this one: the next batch that is done by that.
    pub(crate) fn next_done(&mut self, request: u64) -> Option<OpId> {
        loop {
            let at = self.not_done.max(self.gone);
            let item = self.items.get_mut((at - self.gone) as usize).filter(|item| item.last <= request)?;
            self.not_done = at + 1;
            if let MessageKind::Batch(id) = item.what {
                item.is_over = true;
                self.shorten();
                return Some(id);
            }
        }
    }

    /// What this request, all before which are done, belongs to.
    pub(crate) fn of(&self, request: u64) -> Option<MessageKind> {
        let at = (self.not_done.max(self.gone) - self.gone) as usize;
        self.items.get(at).filter(|item| item.last >= request).map(|item| item.what)
    }

    /// The peer has heard one more message: which.
    pub(crate) fn next_heard(&mut self) -> Option<Say> {
        loop {
            let at = self.not_heard.max(self.gone);
            let item = self.items.get_mut((at - self.gone) as usize)?;
            self.not_heard = at + 1;
            if let MessageKind::Said(say) = item.what {
                item.is_over = true;
                self.shorten();
                return Some(say);
            }
        }
    }

    fn shorten(&mut self) {
        while self.items.front().is_some_and(|item| item.is_over) {
            self.items.pop_front();
            self.gone += 1;
        }
    }

    /// The next batch that was posted before the message that was heard last, is not known to be done, and is of those that land in order.
    pub(crate) fn next_landed(&mut self, lands_in_order: impl Fn(OpId) -> bool) -> Option<OpId> {
        let before = (self.not_heard.saturating_sub(self.gone) as usize).min(self.items.len());
        self.items.iter_mut().take(before).find_map(|item| match item.what {
            MessageKind::Batch(id) if !item.is_over && lands_in_order(id) => {
                item.is_over = true;
                Some(id)
            }
            _ => None,
        })
    }

    /// The batches that have not ended.
    pub(crate) fn batches(&self) -> impl Iterator<Item = OpId> + '_ {
        self.items.iter().filter_map(|item| match item.what {
            MessageKind::Batch(id) if !item.is_over => Some(id),
            MessageKind::Batch(_) | MessageKind::Said(_) => None,
        })
    }

    /// Takes all that has not ended, in its order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = MessageKind> + '_ {
        self.gone += self.items.len() as u64;
        self.items.drain(..).filter(|item| !item.is_over).map(|item| item.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_and_messages_end_at_their_own_paces() {
        let mut log = Log::default();
        log.push(2, MessageKind::Batch(7));
        log.push(3, MessageKind::Said(Say::Answer));
        log.push(5, MessageKind::Batch(8));
        log.push(5, MessageKind::Said(Say::Tell(1)));
        log.push(6, MessageKind::Said(Say::Fence(9)));
        assert_eq!(log.last_of(6), Some(MessageKind::Said(Say::Fence(9))));
        assert_eq!(log.next_done(1), None);
        assert_eq!(log.of(1), Some(MessageKind::Batch(7)));
        assert_eq!(log.next_done(4), Some(7));
        assert_eq!(log.next_done(4), None);
        assert_eq!(log.of(5), Some(MessageKind::Batch(8)));
        assert_eq!(log.next_heard(), Some(Say::Answer));
        assert_eq!(log.next_heard(), Some(Say::Tell(1)));
        assert_eq!(log.next_landed(|_| false), None);
        assert_eq!(log.next_landed(|id| id == 8), Some(8), "it lies before what was heard");
        assert_eq!(log.next_landed(|_| true), None);
        assert_eq!(log.take().collect::<Vec<_>>(), [MessageKind::Said(Say::Fence(9))]);
        log.push(1, MessageKind::Batch(1));
        log.push(2, MessageKind::Said(Say::Hello));
        assert_eq!(log.next_heard(), Some(Say::Hello));
        assert_eq!(log.next_done(2), Some(1));
        assert_eq!(log.take().count(), 0);
    }
}
