//! Saying over the control connection that packets do not pass. Who finds that out ends the session with [`Cause::NoPath`]; the other side
//! may hear packets all the same, and would take the end for a goodbye.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use penstock_core::Cause;
use penstock_transport::LaneFault;
use penstock_transport::link::{ControlSender, TransportMessages};

/// The only message there is: packets do not pass.
const NO_PATH: &[u8] = &[1];

/// The way of one session to the other side's.
pub(crate) struct NoPathNotice {
    peer: SocketAddr,
    /// What this side's port says of such an end.
    mend: &'static str,
    /// None before the session is established.
    sender: Mutex<Option<ControlSender>>,
}

impl NoPathNotice {
    pub(crate) fn new(peer: SocketAddr, mend: &'static str) -> Self {
        Self { peer, mend, sender: Mutex::new(None) }
    }

    /// A lane has ended with this: the peer hears of it if it is about the path.
    pub(crate) fn tell(&self, fault: LaneFault) {
        if fault.0 == Cause::NoPath
            && let Some(sender) = &*self.sender.lock().unwrap_or_else(PoisonError::into_inner)
        {
            sender(NO_PATH);
        }
    }
}

impl TransportMessages for NoPathNotice {
    fn start(&self, sender: ControlSender) {
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    fn on_message(&self, message: &[u8]) -> Result<(), LaneFault> {
        if message != NO_PATH {
            return Err(LaneFault(Cause::PeerCorrupt));
        }
        tracing::warn!(peer = %self.peer, "a peer says that packets do not pass, and its log why{}", self.mend);
        Err(LaneFault(Cause::NoPath))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_one_side_finds_out_ends_the_session_of_the_other_with_the_same_cause() {
        let peer = SocketAddr::from(([192, 0, 2, 1], 7400));
        let (here, there) = (NoPathNotice::new(peer, ""), NoPathNotice::new(peer, ""));
        let said = Arc::new(Mutex::new(Vec::new()));
        here.tell(LaneFault(Cause::NoPath));
        let ear = Arc::clone(&said);
        here.start(Box::new(move |message| ear.lock().unwrap().push(message.to_vec())));
        here.tell(LaneFault(Cause::PeerLost));
        assert!(said.lock().unwrap().is_empty());
        here.tell(LaneFault(Cause::NoPath));
        let heard = said.lock().unwrap().pop().unwrap();
        assert_eq!(there.on_message(&heard), Err(LaneFault(Cause::NoPath)));
        for nonsense in [&b""[..], b"\0", b"\x01\x01", b"\x02"] {
            assert_eq!(there.on_message(nonsense), Err(LaneFault(Cause::PeerCorrupt)));
        }
    }
}
