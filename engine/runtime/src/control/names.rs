//! Engines that call under a name that has a session here: held until it is known whether that one still lives.

use penstock_core::{Env, Timestamp};
use penstock_session::frame::RefusalCode;
use penstock_session::greeting::GreetingError;
use penstock_transport::Scope;

use super::{Control, Phase, Talk};

/// A greeting that waits for somebody else's sign of life.
pub(super) struct HeldName {
    candidates: Vec<String>,
    pub(super) until: Timestamp,
}

impl<E: Env> Control<E> {
    /// Holds a newcomer whose name has a session here in another life. Answers whether it does.
    pub(super) fn hold(&mut self, token: u64, candidates: &[String]) -> bool {
        let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get(&token) else { return false };
        let Some(theirs) = greeter.theirs().filter(|_| greeter.reach() == Scope::Network) else { return false };
        let (name, epoch) = (theirs.name.clone(), theirs.epoch);
        let Some(until) = self.probe_namesake(token, &name, epoch) else { return false };
        if let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) {
            greeter.held = Some(HeldName { candidates: candidates.to_vec(), until });
        }
        true
    }

    /// The one before it lives.
    pub(super) fn refuse_newcomer(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get(&token) else { return };
        let Some(theirs) = greeter.theirs().filter(|_| greeter.held.is_some()) else { return };
        let text = format!("another live engine named `{}` has a session with `{}`", theirs.name, self.shared.name);
        self.end_greeting(token, GreetingError::Refuse { code: RefusalCode::NameTaken, text });
    }

    /// The one before it has ended.
    pub(super) fn newcomer_may_go_on(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else { return };
        if let Some(held) = greeter.held.take() {
            // There may be one more of that name; otherwise it is chosen for.
            self.choose_or_refuse(token, &held.candidates);
        }
    }
}
