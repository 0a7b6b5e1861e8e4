//! What a worker does for all its connections at once.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_ring::ReadyBits;
use penstock_transport::{Driver, Rest};

use crate::hub::Hub;

/// What is due so soon is waited for: a sleep takes longer.
const NAP_MIN: Duration = Duration::from_micros(60);

pub(crate) struct DatagramDriver {
    hub: Arc<Hub>,
    ready: ReadyBits,
}

impl DatagramDriver {
    /// The driver of the worker with this hub and these ready bits.
    pub(crate) fn new(hub: Arc<Hub>, ready: ReadyBits) -> Self {
        Self { hub, ready }
    }
}

impl Driver for DatagramDriver {
    fn turn(&mut self) -> bool {
        let Self { hub, ready } = self;
        hub.turn(|peer_index| ready.mark(peer_index))
    }

    fn rest(&mut self, now: Timestamp) -> Rest {
        match self.hub.rest(now) {
            Ok(until) if until > now + NAP_MIN => Rest::Until(until),
            // Who cannot be woken does not sleep.
            _ => Rest::Busy,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.hub.descriptor()
    }
}
