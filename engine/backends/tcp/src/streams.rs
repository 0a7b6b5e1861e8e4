//! Streams that the runtime has connected, on their way to the workers whose they are.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_ring::ReadyBits;
use penstock_transport::Streams;
use penstock_transport::host::Bell;
use penstock_transport::link::AttachError;

/// Streams that wait for one worker's next look at its lane, with their places among all of the session.
#[derive(Default)]
pub(crate) struct Arrivals {
    streams: Mutex<Vec<(usize, Arc<OwnedFd>)>>,
    are_there: AtomicBool,
    is_gone: AtomicBool,
}

impl Arrivals {
    /// Takes what has arrived. A look costs a load.
    pub(crate) fn take(&self) -> Vec<(usize, Arc<OwnedFd>)> {
        // Relaxed: it is set under the lock that is taken next.
        if !self.are_there.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        self.are_there.store(false, Ordering::Relaxed);
        std::mem::take(&mut *streams)
    }

    /// The lane is gone: what comes from now on is refused, what came is closed.
    pub(crate) fn close(&self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_gone.store(true, Ordering::Relaxed);
        streams.clear();
    }

    fn put(&self, index: usize, stream: Arc<OwnedFd>) -> Result<(), AttachError> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(AttachError::Gone);
        }
        streams.push((index, stream));
        self.are_there.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The worker that a stream goes to.
pub(crate) struct StreamReceiver {
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) ready: ReadyBits,
    pub(crate) bell: Bell,
}

/// The streams of a session. It holds them as long as the session lasts: one that closed with its lane would look like a death
/// to the peer, before the goodbye that comes another way.
pub(crate) struct TcpStreams {
    taken: Mutex<Vec<Option<Arc<OwnedFd>>>>,
    per_channel: usize,
    peer_index: u32,
    receivers: Vec<StreamReceiver>,
}

impl TcpStreams {
    /// So many channels of so many streams, dealt among these workers.
    pub(crate) fn new(channels: usize, per_channel: usize, peer_index: u32, receivers: Vec<StreamReceiver>) -> Self {
        Self { taken: Mutex::new(vec![None; channels * per_channel]), per_channel, peer_index, receivers }
    }
}

impl Streams for TcpStreams {
    fn count(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn attach(&self, index: usize, stream: OwnedFd) -> Result<(), AttachError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get(index) {
            None => return Err(AttachError::NoSuchStream(index)),
            Some(Some(_)) => return Err(AttachError::Taken(index)),
            Some(None) => {}
        }
        // A small message must not wait for the answer to the one before it. What is no TCP socket has no such wait.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&stream, true);
        let receiver = &self.receivers[(index / self.per_channel) % self.receivers.len()];
        let stream = Arc::new(stream);
        receiver.arrivals.put(index, Arc::clone(&stream))?;
        taken[index] = Some(stream);
        receiver.bell.mark_and_ring(&receiver.ready, self.peer_index as usize);
        Ok(())
    }
}
