//! What a broken rail had under way and did not end: it goes again, in its order, on one rail that is up.
//!
//! A batch goes again if nothing withdrawn since concerns it. The peer has said how far its log had come when it ended the rail's life;
//! before that much of it is known here, nothing goes.

use std::collections::VecDeque;

use penstock_core::{Cause, Direction};
use penstock_transport::Failure;
use penstock_transport::host::check_withdrawals;

use crate::channel::{Channel, Over};
use crate::context::Context;
use crate::log::{MessageKind, Say};
use crate::message::{Body, Forgotten};
use crate::op::{Kind, OpId};
use crate::rail::{Rail, Standing};
use crate::stage::Ends;

/// What has to go again.
pub(crate) struct Lot {
    pub(crate) items: VecDeque<MessageKind>,
    /// How much of the peer's log has to be known before.
    pub(crate) revision: u64,
    /// The rail over which the first of it has gone: the rest follows.
    pub(crate) over: Option<usize>,
}

impl Channel {
    /// Lets go again what can.
    pub(crate) fn go_again(&mut self, context: &Context<'_>) {
        let mut place = 0;
        while place < self.lots.len() {
            if self.lots[place].revision <= context.told.replicated() {
                self.sort_out(place, context);
                self.go_on_with(place);
            }
            place += 1;
        }
        self.lots.retain(|lot| !lot.items.is_empty());
    }

    /// Ends what of a lot is not to go again.
    fn sort_out(&mut self, lot: usize, context: &Context<'_>) {
        let mut at = 0;
        while let Some(&what) = self.lots[lot].items.get(at) {
            let failure = match what {
                MessageKind::Batch(id) => self.why_not(id, context),
                MessageKind::Said(Say::Tell(id) | Say::Mark(id))
                    if self.ops[id].is_abandoned && !self.ops[id].is_withdrawn =>
                {
                    self.withdraw(id, Some(Cause::Cancelled.into()));
                    continue;
                }
                MessageKind::Said(_) => None,
            };
            match (what, failure) {
                (MessageKind::Batch(id), Some(failure)) => {
                    self.lots[lot].items.remove(at);
                    self.end_batch(id, Some(failure));
                }
                _ => at += 1,
            }
        }
    }

    /// Why a batch does not go again, if so.
    fn why_not(&mut self, id: OpId, context: &Context<'_>) -> Option<Failure> {
        let op = &self.ops[id];
        if op.is_abandoned {
            return Some(Cause::Cancelled.into());
        }
        let view = context.segments.owner_state.view();
        let remote = op.remote.as_ref().map_or(op.key, |remote| remote.key);
        let there = context.told.check_withdrawals(op.there, remote, op.remote_extents());
        // An adapter refuses memory that was withdrawn like any other: here it is known why.
        if let Err(withdrawn) = there {
            return Some(withdrawn.cause_for_peer().into());
        }
        if let Err(withdrawn) = check_withdrawals(view, op.here, op.key, op.extents()) {
            return Some(withdrawn.cause_for_local().into());
        }
        if op.failed.is_some() {
            return op.failed;
        }
        let there = context.told.replicated().max(op.there);
        self.ops.stands(id, context.here.max(self.ops[id].here), there);
        None
    }

    /// What was on a rail that has ended here, and what waits to go again, touches no memory of this engine: it is compared with this
    /// engine's log as far as that has come, and does not hold up who waits for older things to end, whatever the peer does.
    pub(crate) fn catch_up(&mut self, context: &Context<'_>) {
        if self.ops.oldest() >= context.here {
            return;
        }
        let Self { rails, lots, ops, .. } = self;
        let waits = lots.iter().flat_map(|lot| &lot.items).filter_map(|what| match what {
            MessageKind::Batch(id) => Some(*id),
            MessageKind::Said(_) => None,
        });
        let has_ended = |rail: &&Rail| matches!(rail.standing, Standing::Ended(_));
        let ended = rails.iter().filter(has_ended).flat_map(|rail| rail.log.batches());
        for id in waits.chain(ended) {
            let op = &mut ops[id];
            if op.here >= context.here {
                continue;
            }
            let here = check_withdrawals(context.segments.owner_state.view(), op.here, op.key, op.extents());
            if let Err(withdrawn) = here {
                op.failed.get_or_insert(withdrawn.cause_for_local().into());
            }
            let there = op.there;
            ops.stands(id, context.here, there);
        }
    }

    /// Posts what of a lot there is room for.
    fn go_on_with(&mut self, lot: usize) {
        while let Some(&what) = self.lots[lot].items.front() {
            let Some(rail) = self.rail_for(self.lots[lot].over) else { return };
            let has_gone = match what {
                MessageKind::Batch(id) => self.post_again(rail, id),
                MessageKind::Said(say) => self.rails[rail].takes_message() && self.say_again(rail, say),
            };
            if !has_gone {
                return;
            }
            self.lots[lot].over = Some(rail);
            self.lots[lot].items.pop_front();
        }
    }

    fn rail_for(&self, over: Option<usize>) -> Option<usize> {
        let is_up = |place: &usize| self.rails[*place].standing == Standing::Up;
        match over {
            Some(place) => Some(place).filter(is_up),
            None => (0..self.rails.len()).filter(is_up).min_by_key(|&place| self.rails[place].bytes()),
        }
    }

    fn post_again(&mut self, place: usize, id: OpId) -> bool {
        let Self { rails, ops, stripe, .. } = self;
        let (rail, op) = (&mut rails[place], &mut ops[id]);
        let (Some(memory), Some(remote)) = (&op.memory, &op.remote) else { return true };
        if !rail.takes(op.bytes) || rail.room() < op.spans.len() {
            return false;
        }
        let direction = if op.kind == Kind::Write { Direction::Write } else { Direction::Read };
        let ends = Ends {
            direction,
            local: (memory.base_address(), op.keys[place]),
            remote: (remote.iova, remote.rkeys[place]),
            is_host: memory.host().is_some(),
        };
        let (count, bytes) = rail.move_spans(&ends, &op.spans);
        debug_assert_eq!((count, bytes), (op.spans.len(), op.bytes), "there was room for all of it");
        op.rail = place;
        rail.carry(id, op.bytes, op.kind == Kind::Read);
        if op.kind == Kind::Write {
            stripe.carries(op.transfer, place, 0);
        }
        true
    }

    fn say_again(&mut self, rail: usize, say: Say) -> bool {
        match say {
            Say::Tell(id) if self.ops[id].note.is_some() && !self.rails[rail].takes_note() => return false,
            Say::Tell(id) => self.tell(rail, id),
            Say::Mark(id) => self.mark(rail, id),
            Say::Forget(forgotten) => self.say(rail, say, &Body::Forget(forgotten)),
            // These are of one rail and one life.
            Say::Hello | Say::Answer | Say::Fence(_) => {}
        }
        true
    }

    /// Whether this waits to go again, or a part of what is told.
    pub(crate) fn waits_to_go(&self, id: OpId) -> bool {
        let is_its = |what: &MessageKind| matches!(*what, MessageKind::Batch(its) | MessageKind::Said(Say::Tell(its) | Say::Mark(its)) if its == id);
        self.lots.iter().any(|lot| lot.items.iter().any(is_its))
    }

    /// Takes back what waits to go again. Nothing is reported of it.
    pub(crate) fn take_back(&mut self, id: OpId) {
        if self.ops[id].kind == Kind::Tell {
            return self.withdraw(id, None);
        }
        self.lots.iter_mut().for_each(|lot| lot.items.retain(|what| *what != MessageKind::Batch(id)));
        self.end_batch(id, None);
    }

    /// A batch has ended without having moved, and nothing of its transfer is told any more. Without a failure nobody wants to know.
    fn end_batch(&mut self, id: OpId, failure: Option<Failure>) {
        let (completion_id, transfer) = (self.ops[id].completion_id, self.ops[id].transfer);
        self.ops.give_back(id);
        if let Some(failure) = failure {
            self.over.push(Over { completion_id, transfer, result: Err(failure) });
        }
        let failure = failure.unwrap_or(Cause::Cancelled.into());
        while let Some(tell) = self.ops.told_of(transfer) {
            self.withdraw(tell, Some(failure));
        }
    }

    /// A transfer is not told after all, though marks of it may have left. What of its messages waits to go again does not go;
    /// the others come, and the peer has to know how many.
    fn withdraw(&mut self, id: OpId, failure: Option<Failure>) {
        let (mut marks, mut is_said) = (self.ops[id].marks, true);
        for lot in &mut self.lots {
            lot.items.retain(|what| match *what {
                MessageKind::Said(Say::Tell(its)) if its == id => {
                    is_said = false;
                    false
                }
                MessageKind::Said(Say::Mark(its)) if its == id => {
                    marks -= 1;
                    false
                }
                _ => true,
            });
        }
        let op = &mut self.ops[id];
        op.is_withdrawn = true;
        op.unheard -= (op.marks - marks) + u8::from(!is_said);
        let (completion_id, transfer, number, is_open) = (op.completion_id, op.transfer, op.number, op.unheard > 0);
        if op.marks > 0 && (marks > 0 || is_said) {
            let forget = MessageKind::Said(Say::Forget(Forgotten { number, marks, is_said }));
            self.lots.push(Lot { items: [forget].into(), revision: 0, over: None });
        }
        if let Some(failure) = failure {
            self.over.push(Over { completion_id, transfer, result: Err(failure) });
        }
        if !is_open {
            self.ops.give_back(id);
        }
    }
}
