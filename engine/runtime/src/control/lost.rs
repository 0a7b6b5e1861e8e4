//! A control loop that has panicked.
//!
//! Peers hear that their connections close. Here nothing else would end what waits for them: no session, no transfer, no call. The engine can
//! only be dropped after that, which takes its memory back as always.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

use penstock_core::{Cause, Env};
use penstock_flows::Event;

use crate::manager::key_of;
use crate::peer_state::PeerState;
use crate::shared::{Closing, Latch, Shared, WorkerCall};

/// What everything ends with: another engine is needed.
const CAUSE: Cause = Cause::EngineClosed;

impl<E: Env> Shared<E> {
    /// Ends every session and all that waits for one, and refuses what comes from now on.
    pub(crate) fn lose_control(&self) {
        tracing::error!("the control thread has panicked: every session of this engine ends");
        self.closes_as(Closing::ControlLost);
        self.control.lose();
        let standing = self.peers.standing();
        for peer in &standing {
            peer.end(CAUSE);
            // Nobody says goodbye, so nobody waits for it.
            let workers = Latch::new(self.workers.len());
            for port in &self.workers {
                let (peer, left) = (Arc::clone(peer), Arc::clone(&workers));
                port.call(WorkerCall::RemoveLane { peer, cause: CAUSE, left });
            }
            self.unsaid().push((Arc::clone(peer), workers));
        }
        // What has panicked may have been the manager: it is told of each by itself.
        for peer in &standing {
            let left = || self.manager.handle(Event::Left { peer: key_of(peer), cause: CAUSE }, self.env.now());
            let _ = catch_unwind(AssertUnwindSafe(left));
        }
        let _ = catch_unwind(AssertUnwindSafe(|| self.manager.tell()));
        self.inbox.wake_all();
    }

    /// The threads of this engine have ended. What a control loop that is lost would have said of sessions is said now: of those that all workers
    /// have left.
    pub(crate) fn say_what_was_left(&self) {
        for (peer, workers) in self.unsaid().drain(..) {
            if workers.is_open() && !peer.has_left() {
                self.segments.owner_state.count_session_end(peer.peer_index);
                peer.was_left();
            }
        }
    }

    fn unsaid(&self) -> MutexGuard<'_, Vec<(Arc<PeerState>, Arc<Latch>)>> {
        self.unsaid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use penstock_core::Config;
    use penstock_session::EngineDescriptor;

    use super::*;
    use crate::engine::Engine;
    use crate::error::ConnectError;
    use crate::flows::RequestId;
    use crate::flows::relay::{Put, RelaySpec};
    use crate::shared::ControlCall;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn a_panic_of_the_control_thread_ends_sessions_and_what_waits_for_them_on_both_sides() {
        let folder = std::env::temp_dir().join(format!("penstock-control-lost-{}", std::process::id()));
        let [near, far] =
            ["near", "far"].map(|name| Engine::start(Config::default().named(name).directory(&folder)).unwrap());
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        let [back] = &far.peers()[..] else { panic!("one session") };
        let [here, _there] = [&near, &far].map(|engine| engine.relay(RelaySpec::new().berths(4096, 2, 2)).unwrap());
        let put = here.put(Put::bytes(b"unread"), &RequestId::new("r").unwrap(), &[&peer]).unwrap();
        assert!(put.poll().is_none() && peer.ended().is_none());
        // One whose greeting is never answered.
        let silent = std::os::unix::net::UnixListener::bind(folder.join("silent.sock")).unwrap();
        let mut card = EngineDescriptor::decode(&far.descriptor()).unwrap();
        (card.name, card.socket) = ("silent".to_owned(), folder.join("silent.sock").display().to_string());
        let connecting = near.connect_begin(&card.encode()).unwrap();
        let _accepted = silent.accept().unwrap();
        near.engine.shared.control.call(ControlCall::Panic);
        let since = Instant::now();
        while peer.ended().is_none() || back.ended().is_none() {
            assert!(since.elapsed() < PATIENCE, "{:?}, and there {:?}", peer.ended(), back.ended());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(peer.ended(), Some(Cause::EngineClosed));
        assert!(put.wait(PATIENCE).is_ok_and(|result| result.is_err()), "{:?}", put.poll());
        let unanswered = connecting.wait(PATIENCE).map(drop).unwrap_err();
        assert!(matches!(unanswered, ConnectError::Call(Cause::EngineClosed)), "{unanswered}");
        let refused = near.connect(&far.descriptor(), PATIENCE).map(drop).unwrap_err();
        assert!(matches!(refused, ConnectError::Call(Cause::EngineClosed)), "{refused}");
        assert!(since.elapsed() < PATIENCE, "nothing waited for its time to be over");
        drop((put, here, near));
        assert!(far.close(PATIENCE).is_empty(), "who is lost has left");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
