//! What follows from what has landed: which layers and legs are there, whether more memory is needed, and whether all is done.

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{Ack, ControlMessage, SentRows, Side};
use penstock_session::few::Few;

use super::leg::{Leg, LegEvent};
use super::legs::SinkLegs;
use super::link::LinkEvent;
use super::{InputEvent, SinkWish};
use crate::cause::FlowCause;
use crate::ranks::not_sent;
use crate::status::StatusEvent;

impl SinkLegs {
    /// Legs behind one that was shorter than granted begin earlier.
    pub(super) fn correct_begins(&mut self) {
        let mut from = self.settled;
        for leg in &mut self.legs {
            if leg.agreed.is_none() {
                leg.from = from;
            }
            from = leg.end();
        }
    }

    /// Looks what is complete now.
    pub(super) fn look(&mut self, now: Timestamp) {
        self.settle_legs();
        let is_told = self.sources.iter().all(|source| source.seal == Some(source.numbers.count()));
        if !is_told {
            return self.ask_memory();
        }
        let total = self.total.unwrap_or(self.settled);
        if self.confirmed() < total {
            let words = format!("everything was said to be there, and token {} is not", self.confirmed());
            return self.fail(FlowCause::Refused, Side::Sink, None, words, now);
        }
        let sent: Few<&[SentRows]> = self.sources.iter().map(|source| &*source.sent).collect();
        if let Some((buffer, row)) = not_sent(&self.how.layout, &sent).filter(|_| total > self.how.begin) {
            let words =
                format!("row {row} of buffer {buffer} was sent by none of the sources: name the rank that has it");
            return self.fail(FlowCause::Unfit, Side::Sink, None, words, now);
        }
        self.status.on(StatusEvent::Done);
        for source in &mut self.sources {
            source.on(LinkEvent::Rest);
            if !self.is_read {
                let ack = Ack { head: self.head, lease: None };
                self.wishes.push_back(SinkWish::Say { source: source.rank, said: ControlMessage::Ack(ack) });
            }
        }
        for place in 0..self.legs.len() {
            self.step(place, LegEvent::Spare);
        }
        self.happenings.push_back(InputEvent::Done { tokens: total - self.how.begin });
        self.forget_freed();
    }

    /// Legs that are complete now, and their layers.
    pub(super) fn settle_legs(&mut self) {
        for place in 0..self.legs.len() {
            if self.legs[place].state != Leg::Granted {
                continue;
            }
            let leg = &mut self.legs[place];
            let layers = leg.told.len();
            for layer in 0..layers {
                if !leg.told[layer] && leg.has_layer(layer, self.total) {
                    leg.told[layer] = true;
                    if layers > 1 && !self.is_read {
                        self.happenings.push_back(InputEvent::Layer { leg: leg.number, layer: layer as u32 });
                    }
                }
            }
            // A layer that was told of may be coming a second time.
            if !leg.told.iter().all(|&told| told) || !leg.is_whole(self.total) {
                continue;
            }
            let (number, (from, end)) = (leg.number, leg.range(self.total));
            leg.on(LegEvent::LastPart);
            self.status.on(StatusEvent::LegDone);
            if self.total != Some(end) && !self.is_read {
                let confirmed = self.confirmed() - self.how.begin;
                let event = InputEvent::Leg { leg: number, tokens: end - from, confirmed, total: self.total };
                self.happenings.push_back(event);
            }
        }
    }

    /// Tells the application that memory is needed, once for each leg.
    pub(super) fn ask_memory(&mut self) {
        let Some(tokens) = self.wanted().filter(|_| self.next_leg > 0) else { return };
        if self.asked_for != Some(self.next_leg) {
            self.asked_for = Some(self.next_leg);
            self.happenings.push_back(InputEvent::NeedsMemory { leg: self.next_leg, tokens });
        }
    }

    /// One leg goes on. Where that lets its blocks go, they are let go here and nowhere else.
    pub(super) fn step(&mut self, place: usize, event: LegEvent) {
        let leg = &mut self.legs[place];
        if leg.on(event) {
            for block in leg.blocks.iter().chain(&leg.once) {
                // What goes once may be in a block that another leg has.
                if self.blocks_granted.get(block) == Some(&leg.number) {
                    self.blocks_granted.remove(block);
                    self.let_go.push(*block);
                }
            }
            self.wishes.push_back(SinkWish::Free { ticket: leg.keep });
            if planted::is(Bug::DoubleFree) && event == LegEvent::CopiedOut {
                self.wishes.push_back(SinkWish::Free { ticket: leg.keep });
            }
        }
    }

    pub(super) fn forget_freed(&mut self) {
        while let Some(leg) = self.legs.front().filter(|leg| leg.state == Leg::Freed) {
            // A leg that was granted behind the last token brought nothing.
            let end = leg.range(self.total).1.min(self.total.unwrap_or(u64::MAX));
            self.settled = self.settled.max(end);
            self.legs.pop_front();
        }
    }
}
