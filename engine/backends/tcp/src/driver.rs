//! What a worker does for all its streams at once.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use penstock_core::Timestamp;
use penstock_ring::ReadyBits;
use penstock_transport::{Driver, Rest};

use crate::hub::Hub;

pub(crate) struct TcpDriver {
    hub: Arc<Hub>,
    ready: ReadyBits,
}

impl TcpDriver {
    /// The driver of the worker with this hub and these ready bits.
    pub(crate) fn new(hub: Arc<Hub>, ready: ReadyBits) -> Self {
        Self { hub, ready }
    }
}

impl Driver for TcpDriver {
    fn turn(&mut self) -> bool {
        let Self { hub, ready } = self;
        hub.lock().turn(|peer_index| ready.mark(peer_index))
    }

    fn rest(&mut self, _: Timestamp) -> Rest {
        if self.hub.lock().io.prepare_to_sleep() { Rest::Until(Timestamp::NEVER) } else { Rest::Busy }
    }

    fn give_up(&mut self) {
        self.hub.lock().io.give_up();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.hub.descriptor()
    }
}
