//! What a lane shows of itself while it, or a device for it, touches this engine's memory.

use penstock_ring::Hazard;

/// The hazard of one lane. It is raised around each call that touches memory, and stays raised while a device copies: whoever wants memory
/// back waits until it moves.
pub struct Touch {
    hazard: Hazard,
    /// Posts that a device has not ended.
    held: usize,
    /// The revision of this engine's log when the first of them went out.
    since: u64,
}

impl Touch {
    pub fn new(hazard: Hazard) -> Self {
        Self { hazard, held: 0, since: 0 }
    }

    /// A call begins. What is withdrawn is looked up after this.
    #[inline]
    pub fn enter(&mut self) {
        // Raised already, it must not move: that would say that a device has let go.
        if self.held == 0 {
            self.hazard.enter(0);
        }
    }

    /// The call is over.
    #[inline]
    pub fn leave(&mut self) {
        if self.held == 0 {
            self.hazard.leave();
        }
    }

    /// Whether a device may be left with memory by a call that found this revision. Once something was withdrawn,
    /// somebody may wait for those that it has: their number only falls then.
    pub fn may_hold(&self, revision: u64) -> bool {
        self.held == 0 || self.since == revision
    }

    /// A call that found this revision leaves a device with memory. Said before it is over.
    pub fn hold(&mut self, revision: u64) {
        if self.held == 0 {
            self.since = revision;
        }
        self.held += 1;
    }

    /// A device has ended one post. Said outside of calls.
    pub fn released(&mut self) {
        self.held = self.held.saturating_sub(1);
        if self.held == 0 {
            self.hazard.leave();
        }
    }

    /// Whether a device has memory.
    pub fn is_held(&self) -> bool {
        self.held > 0
    }
}

#[cfg(test)]
mod tests {
    use penstock_ring::Observation;

    use super::*;

    #[test]
    fn it_does_not_move_while_a_device_has_memory() {
        let hazard = Hazard::heap();
        let view = hazard.view();
        let mut touch = Touch::new(hazard);
        touch.enter();
        let seen = view.observe();
        touch.leave();
        assert!(view.has_moved_since(seen));
        assert_eq!(view.observe(), Observation::Quiet);
        touch.enter();
        assert!(touch.may_hold(7));
        touch.hold(7);
        touch.leave();
        let seen = view.observe();
        touch.enter();
        assert!(touch.may_hold(7) && !touch.may_hold(8));
        touch.hold(7);
        touch.leave();
        touch.released();
        assert!(!view.has_moved_since(seen), "there is one more");
        assert!(touch.is_held());
        touch.released();
        assert!(view.has_moved_since(seen));
        assert_eq!(view.observe(), Observation::Quiet);
        assert!(touch.may_hold(8));
    }
}
