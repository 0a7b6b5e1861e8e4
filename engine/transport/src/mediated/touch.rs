//! What a lane shows of itself while it, or the kernel or a device for it, touches this engine's memory.

use penstock_ring::Hazard;

/// The hazard of one lane. It is raised around each call that touches memory, and stays raised while the kernel has
/// pages that were sent without a copy, or a device copies: whoever wants memory back waits until it moves.
pub struct Touch {
    hazard: Hazard,
    /// Sends whose pages the kernel has.
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
        // Raised already, it must not move: that would say that the kernel has let go.
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

    /// Whether the kernel may be left with pages by a call that found this revision. Once something was withdrawn,
    /// somebody may wait for those that it has: their number only falls then.
    pub fn may_hold(&self, revision: u64) -> bool {
        self.held == 0 || self.since == revision
    }

    /// A call that found this revision leaves the kernel with pages. Said before it is over.
    pub fn hold(&mut self, revision: u64) {
        if self.held == 0 {
            self.since = revision;
        }
        self.held += 1;
    }

    /// The kernel has let go of the pages of one send. Said outside of calls.
    pub fn released(&mut self) {
        self.held = self.held.saturating_sub(1);
        if self.held == 0 {
            self.hazard.leave();
        }
    }

    /// Whether the kernel has pages.
    pub fn is_held(&self) -> bool {
        self.held > 0
    }

    /// The kernel has let go of all there was.
    pub fn all_released(&mut self) {
        if self.held > 0 {
            self.held = 1;
            self.released();
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_ring::Observation;

    use super::*;

    #[test]
    fn it_does_not_move_while_the_kernel_has_pages() {
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

    #[test]
    fn all_can_come_back_at_once() {
        let hazard = Hazard::heap();
        let view = hazard.view();
        let mut touch = Touch::new(hazard);
        for _ in 0..3 {
            touch.enter();
            touch.hold(0);
            touch.leave();
        }
        touch.all_released();
        assert_eq!(view.observe(), Observation::Quiet);
        assert!(!touch.is_held());
        touch.all_released();
        assert_eq!(view.observe(), Observation::Quiet);
    }
}
