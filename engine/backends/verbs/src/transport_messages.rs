//! Words between the channels of both sides that go over the control channel, with the channel's number in front.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_core::Cause;
use penstock_transport::link::TRANSPORT_MESSAGE_BYTES_MAX;
use penstock_transport::{ControlSender, LaneFault, TransportMessages};

use crate::fence::FenceWaker;

/// Words of one channel that wait for its worker: each rail is repaired in a few words, one repair after the other.
const WAITING_PER_CHANNEL: usize = 64;

/// Words that wait for the session to stand.
const UNSAID_MAX: usize = 256;

const NUMBER_BYTES: usize = 2;

/// The transport messages of one session.
pub(crate) struct LaneAsides {
    outgoing: Mutex<Outgoing>,
    incoming: Vec<Mutex<VecDeque<Vec<u8>>>>,
    workers: Vec<FenceWaker>,
}

/// What goes to the peer.
enum Outgoing {
    /// The session does not stand yet.
    Waits(Vec<Vec<u8>>),
    Begun(ControlSender),
}

impl LaneAsides {
    pub(crate) fn new(channels: usize, workers: Vec<FenceWaker>) -> Self {
        let incoming = (0..channels).map(|_| Mutex::default()).collect();
        Self { outgoing: Mutex::new(Outgoing::Waits(Vec::new())), incoming, workers }
    }

    /// Says this to the peer's channel of the same number.
    pub(crate) fn say(&self, channel: u16, words: &[u8]) {
        debug_assert!(
            words.len() + NUMBER_BYTES <= TRANSPORT_MESSAGE_BYTES_MAX,
            "{} bytes are too long for a transport message",
            words.len()
        );
        let numbered = [&channel.to_le_bytes()[..], words].concat();
        match &mut *lock(&self.outgoing) {
            Outgoing::Begun(say) => say(&numbered),
            // Nothing was posted before the session stands, so that there is little to say, and what is lost is asked for again.
            Outgoing::Waits(unsaid) if unsaid.len() < UNSAID_MAX => unsaid.push(numbered),
            Outgoing::Waits(_) => tracing::warn!(channel, "too much was to be said before the session stood"),
        }
    }

    /// The next words for this channel.
    pub(crate) fn next(&self, channel: u16) -> Option<Vec<u8>> {
        lock(&self.incoming[usize::from(channel)]).pop_front()
    }
}

impl TransportMessages for LaneAsides {
    fn start(&self, say: ControlSender) {
        let mut outgoing = lock(&self.outgoing);
        if let Outgoing::Waits(unsaid) = &*outgoing {
            unsaid.iter().for_each(|words| say(words));
        }
        *outgoing = Outgoing::Begun(say);
    }

    fn on_message(&self, words: &[u8]) -> Result<(), LaneFault> {
        const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);
        let (number, words) = words.split_first_chunk::<NUMBER_BYTES>().ok_or(CORRUPT)?;
        let channel = usize::from(u16::from_le_bytes(*number));
        let incoming = self.incoming.get(channel).ok_or(CORRUPT)?;
        {
            let mut waiting = lock(incoming);
            if waiting.len() == WAITING_PER_CHANNEL {
                return Err(CORRUPT); // Nobody who waits for answers says so much.
            }
            waiting.push_back(words.to_vec());
        }
        self.workers[channel % self.workers.len()].wake();
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use penstock_transport::host::EngineSegments;

    use super::*;

    fn transport_messages(channels: usize) -> (Arc<EngineSegments>, LaneAsides) {
        let segments = EngineSegments::create(2).unwrap();
        let waker = |worker| FenceWaker {
            bell: segments.ringer(1 + worker),
            ready: segments.mailbox.view().ready(worker),
            peer_index: 5,
        };
        let workers = (0..2).map(waker).collect();
        (Arc::clone(&segments), LaneAsides::new(channels, workers))
    }

    #[test]
    fn what_is_said_before_the_session_stands_is_said_then_in_order() {
        let (_commons, transport_messages) = transport_messages(2);
        transport_messages.say(1, b"one");
        transport_messages.say(0, b"two");
        let said = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&said);
        transport_messages.start(Box::new(move |words| ear.lock().unwrap().push(words.to_vec())));
        transport_messages.say(1, b"three");
        assert_eq!(*said.lock().unwrap(), [b"\x01\0one".to_vec(), b"\0\0two".to_vec(), b"\x01\0three".to_vec()]);
    }

    #[test]
    fn words_reach_their_channel_and_mark_its_lane() {
        let (segments, transport_messages) = transport_messages(3);
        transport_messages.on_message(b"\x01\0hello").unwrap();
        assert_eq!(transport_messages.next(1), Some(b"hello".to_vec()));
        assert_eq!((transport_messages.next(0), transport_messages.next(1)), (None, None));
        let marked = |worker: usize| {
            let mut found = Vec::new();
            segments.mailbox.view().ready(worker).take_each(|place| found.push(place));
            found
        };
        assert_eq!((marked(0), marked(1)), (vec![], vec![5]), "the worker of the channel is told, and no other");
    }

    #[test]
    fn a_peer_that_makes_no_sense_or_does_not_stop_is_refused() {
        let (_commons, transport_messages) = transport_messages(1);
        for bad in [&b""[..], b"\0", b"\x01\0to nobody", b"\xff\xff"] {
            assert_eq!(transport_messages.on_message(bad), Err(LaneFault(Cause::PeerCorrupt)), "{bad:?}");
        }
        for _ in 0..WAITING_PER_CHANNEL {
            transport_messages.on_message(b"\0\0again").unwrap();
        }
        assert!(transport_messages.on_message(b"\0\0again").is_err());
    }
}
