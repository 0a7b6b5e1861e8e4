//! Children that wait for a parent to end.

use std::collections::VecDeque;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::RequestId;

use super::{Ask, Inherited, Pins, WaitKey, Waited};
use crate::action::Action;
use crate::continuation::inherit::Miss;

pub(super) struct Waiter {
    pub(super) key: WaitKey,
    pub(super) ask: Ask,
    pub(super) until: Timestamp,
}

impl Pins {
    /// The same for a child that can wait until then for a parent that is running. Who asks again while it waits has its place from then on,
    /// under a key of its own: whoever asked before hears nothing any more, and may leave without taking the place along.
    pub fn inherit_or_wait(&mut self, ask: Ask, until: Timestamp, now: Timestamp) -> Waited {
        let answer = self.inherit(&ask, now);
        if answer != Err(Miss::Running) || until <= now {
            return Waited::Now(answer);
        }
        let is_same = |waiter: &Waiter| waiter.ask.child == ask.child && waiter.ask.parent == ask.parent;
        if let Some(at) = self.waiting.iter().position(is_same) {
            let key = WaitKey(self.number());
            self.waiting[at] = Waiter { key, ask, until };
            return Waited::Later(key);
        }
        if self.waiting.len() + self.answers.len() >= self.settings.waiters {
            return Waited::Now(Err(Miss::Crowded));
        }
        let key = WaitKey(self.number());
        self.waiting.push_back(Waiter { key, ask, until });
        Waited::Later(key)
    }

    /// The next answer to somebody who waited.
    pub fn next_answer(&mut self) -> Option<(WaitKey, Result<Inherited, Miss>)> {
        self.answers.pop_front()
    }

    /// Somebody does not wait any more. An answer that was there already is given back.
    pub fn leave(&mut self, key: WaitKey) {
        self.waiting.retain(|waiter| waiter.key != key);
        let answer = self.answers.iter().position(|(of, _)| *of == key).and_then(|at| self.answers.remove(at));
        if let Some((_, Ok(inherited))) = answer {
            self.give_up(inherited.key);
        }
    }

    pub(super) fn wake(&mut self, parent: &RequestId, now: Timestamp) {
        let is_heard = !planted::is(Bug::ParentEndsUnheard);
        let (woken, waiting) = self.waiting.drain(..).partition(|waiter| waiter.ask.parent == *parent && is_heard);
        self.waiting = waiting;
        let woken: VecDeque<Waiter> = woken;
        for waiter in woken {
            let answer = self.inherit(&waiter.ask, now);
            self.answer(waiter.key, answer);
        }
    }

    pub(super) fn answer(&mut self, key: WaitKey, answer: Result<Inherited, Miss>) {
        self.answers.push_back((key, answer));
        self.actions.push_back(Action::Tell);
    }
}
