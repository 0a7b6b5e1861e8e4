//! How parts end at the source, how a transfer ends early there, and when its blocks are let go.

use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Timestamp};
use penstock_session::control::{AbortAck, ControlMessage, Fail, Side};
use penstock_session::transfers::places::{Place, PlaceEvent};

use super::legs::{SinkRank, SourceLegs};
use super::{SendFailed, SourceWish};
use crate::cause::FlowCause;
use crate::part::{LegError, bounded};
use crate::status::StatusEvent;

impl SourceLegs {
    /// A part has ended: its bytes are there, or why not. Where the peer may still be at its memory, [`SourceLegs::closed`] follows.
    pub fn ended(&mut self, sink: u16, number: u64, result: Result<u64, Cause>, is_open_there: bool, now: Timestamp) {
        let Ok(at) = self.sink_at(sink) else { return };
        let Some(is_over_here) = self.sinks[at].under_way.get_mut(&number) else { return };
        *is_over_here = true;
        if !is_open_there {
            self.sinks[at].under_way.remove(&number);
        }
        // A rank that has everything has acknowledged this part too: how it ended here changes nothing for the other ranks.
        let has_all = self.sinks[at].has_all();
        if let Some(cause) = result.err().filter(|&cause| !has_all && !self.may_be_sent_again(at, cause, now)) {
            let words = format!("part {number} to rank {sink} could not be moved");
            self.fail(FlowCause::Moving(cause), Side::Source, None, words);
        }
        self.look_if_still(at);
        self.settle();
    }

    /// What follows for a rank when nothing moves to it any more.
    fn look_if_still(&mut self, at: usize) {
        let sink = &self.sinks[at];
        if !sink.under_way.is_empty() {
            return;
        }
        match sink.place() {
            Place::Moving if sink.is_sealed => self.on(at, PlaceEvent::LastLanded),
            Place::Moving => self.on(at, PlaceEvent::LegLanded),
            Place::Answered | Place::Aborting => self.on(at, PlaceEvent::Drained),
            Place::Resuming => self.go_on(at),
            _ => {}
        }
    }

    /// What was open there of a part is not any more.
    pub fn closed(&mut self, sink: u16, number: u64) {
        let Ok(at) = self.sink_at(sink) else { return };
        if self.sinks[at].under_way.get(&number) == Some(&true) {
            self.sinks[at].under_way.remove(&number);
            self.look_if_still(at);
            self.settle();
        }
    }

    /// When something has to be done though nothing happens.
    pub fn deadline(&self) -> Timestamp {
        if self.status.is_end() { Timestamp::NEVER } else { self.how.deadline.min(self.broken_until()) }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        if now >= self.how.deadline {
            self.fail(FlowCause::Deadline, Side::Source, None, "its time was over at the source".into());
        }
        self.expire_broken(now);
    }

    /// The application has failed, or gives it up.
    pub fn fail_here(&mut self, cause: FlowCause, words: &str) {
        self.fail(cause, Side::Source, None, words.into());
    }

    /// What a rank of the sink says can never become right.
    pub fn refused_here(&mut self, sink: u16, cause: FlowCause, words: String) {
        let from = self.sink_at(sink).ok();
        self.fail(cause, Side::Source, from, words);
    }

    /// A rank of the sink has said that it failed.
    pub fn failed_there(&mut self, sink: u16, fail: &Fail) -> Result<(), LegError> {
        let at = self.sink_at(sink)?;
        self.fail(FlowCause::of_code(fail.cause), Side::Sink, Some(at), fail.words.clone());
        Ok(())
    }

    /// A rank of the sink wants its blocks back: it is answered when nothing of this transfer can land in them any more.
    pub fn asked_to_stop(&mut self, sink: u16, number: u32) -> Result<(), LegError> {
        let at = self.sink_at(sink)?;
        self.sinks[at].abort = Some(number);
        if planted::is(Bug::AbortHeardTooLate) {
            let ack = AbortAck { head: self.head, number, is_drained: true };
            self.wishes.push_back(SourceWish::Say { sink, said: ControlMessage::AbortAck(ack) });
            return Ok(());
        }
        self.fail(FlowCause::Aborted, Side::Sink, Some(at), format!("rank {sink} of the sink gave it up"));
        if !self.sinks[at].under_way.is_empty() {
            let ack = AbortAck { head: self.head, number, is_drained: false };
            self.wishes.push_back(SourceWish::Say { sink, said: ControlMessage::AbortAck(ack) });
        }
        self.settle();
        Ok(())
    }

    /// The one way in which a transfer fails: every rank is told, and what moves is stopped.
    pub(super) fn fail(&mut self, cause: FlowCause, said_by: Side, from: Option<usize>, words: String) {
        if self.status.is_end() {
            return;
        }
        self.status.on(StatusEvent::Fault);
        let words = bounded(words);
        for at in 0..self.sinks.len() {
            let (sink, is_its_word) = (&self.sinks[at], said_by == Side::Sink && from == Some(at));
            // Who has gone hears it when it comes back.
            if !planted::is(Bug::FailureKeptToItself) && !is_its_word && sink.place() != Place::Lost {
                let fail = Fail { head: self.head, cause: cause.code(), words: words.clone(), missing: Vec::new() };
                self.wishes.push_back(SourceWish::Say { sink: sink.number(), said: ControlMessage::Fail(fail) });
            }
            self.on(at, if is_its_word { PlaceEvent::Abort } else { PlaceEvent::Fault });
            self.look_if_still(at);
        }
        for sink in &self.sinks {
            let moving = sink.under_way.iter().filter(|(_, is_over_here)| !**is_over_here);
            let stops = moving.map(|(&number, _)| SourceWish::Stop { sink: sink.number(), number });
            self.wishes.extend(stops);
        }
        let sink = from.map(|at| self.sinks[at].number());
        self.failed = Some(Box::new(SendFailed { cause, said_by, sink, words }));
        self.settle();
    }

    /// When it has ended: whoever waits for an answer has it as soon as nothing moves to him, and the blocks are let go as soon as nothing
    /// moves at all.
    pub(super) fn settle(&mut self) {
        if !self.status.is_end() {
            return;
        }
        for sink in
            self.sinks.iter_mut().filter(|sink| planted::is(Bug::LateWriteAfterCancel) || sink.under_way.is_empty())
        {
            if let Some(number) = sink.abort.take() {
                let ack = AbortAck { head: self.head, number, is_drained: true };
                self.wishes.push_back(SourceWish::Say { sink: sink.number(), said: ControlMessage::AbortAck(ack) });
            }
        }
        if self.sinks.iter().all(|sink| sink.under_way.is_empty()) {
            let keeps = std::mem::take(&mut self.chunks.keeps).into_iter();
            self.wishes.extend(keeps.map(|ticket| SourceWish::Free { ticket }));
        }
    }
}
