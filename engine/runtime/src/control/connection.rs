//! One connection of the bootstrap channel: frames in, frames out, descriptors beside them. Between hosts all of it
//! is sealed, and there are no descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penstock_core::env::Stream;
use penstock_core::limits::FRAME_TOKENS_MAX;
use penstock_memory::{BlockingCalls, PassedFd};
use penstock_session::codec::{self, Received};
use penstock_session::{ChannelError, Decoder, Frame, SecureChannel, StreamKey, WireError};
use penstock_transport::Fds;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// The same, of somebody who has not shown who it is.
const LITTLE_BYTES: usize = 2 * 1024;
/// Reads of one connection before others get their turn.
const READS_PER_TURN: usize = 8;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The other side closed it.
    #[error("the connection was closed")]
    Closed,
    /// The system said so.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// What came makes no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// What came is not sealed as it must be, or the other side refused before anything was.
    #[error(transparent)]
    Sealed(#[from] ChannelError),
    /// Closing what it has passed does not come to its end.
    #[error("the descriptors that the other engine passes cannot be closed")]
    Clogged,
    /// The other side does not read.
    #[error("the other engine does not read what it is sent (`session.unsent_bytes`)")]
    Unread,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    tokens: Fds,
}

/// Descriptors of a frame, in their order.
pub(super) struct FrameFds {
    /// Those that this process could take.
    pub(super) fds: Vec<PassedFd>,
    /// How many came with it.
    pub(super) expected: usize,
}

impl FrameFds {
    /// All of them; none: this process could not take them all.
    pub(super) fn all(self) -> Option<Vec<PassedFd>> {
        (self.fds.len() == self.expected).then_some(self.fds)
    }
}

/// A stream, what came of a frame so far, and what is still to be sent.
pub(super) struct Connection<S> {
    pub(super) stream: S,
    decoder: Decoder,
    /// Descriptors that came; none stands for the rest of one frame's, which this process could not take.
    tokens: VecDeque<Option<PassedFd>>,
    /// Where it may take long to close what comes.
    blocking: BlockingCalls,
    unsent: VecDeque<Outgoing>,
    unsent_bytes: usize,
    /// As many may be unsent; at more the other side is given up.
    unsent_max: usize,
    /// What seals the bytes; none on one host.
    channel: Option<Box<SecureChannel>>,
    /// Whether bytes have come since [`Connection::has_heard`] was asked last, and whether any came ever.
    heard: (bool, bool),
    /// Whether the reactor reports when it can be written.
    pub(super) watches_writing: bool,
}

impl<S: Stream> Connection<S> {
    pub(super) fn new(stream: S, unsent_max: usize) -> Self {
        let process = stream.credentials().map_or(0, |who| who.pid);
        Self {
            blocking: BlockingCalls::of(process),
            stream,
            decoder: Decoder::new(),
            tokens: VecDeque::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            unsent_max,
            channel: None,
            heard: (false, false),
            watches_writing: false,
        }
    }

    /// Seals everything from here on, on both ways.
    pub(super) fn seal(&mut self, channel: SecureChannel) {
        let channel = self.channel.insert(Box::new(channel));
        let mut bytes = Vec::new();
        channel.take_outgoing(&mut bytes);
        self.queue(bytes, Fds::new());
    }

    /// Whether the other side has shown that it has the keys.
    pub(super) fn is_confirmed(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.is_confirmed())
    }

    /// What makes the tokens of this session's streams, once both sides have the keys.
    pub(super) fn stream_key(&self) -> Option<StreamKey> {
        Some(StreamKey::derive(&self.channel.as_ref()?.handshake_hash()?))
    }

    /// Whether anything has come since this was asked last.
    pub(super) fn has_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard.0)
    }

    /// Whether anything has come ever.
    pub(super) fn was_heard(&self) -> bool {
        self.heard.1
    }

    fn queue(&mut self, bytes: Vec<u8>, tokens: Fds) {
        if bytes.is_empty() {
            return;
        }
        self.unsent_bytes += bytes.len();
        match self.unsent.back_mut() {
            // What waits for a peer that does not read takes no more than its bytes.
            Some(last) if tokens.is_empty() && last.bytes.len() + bytes.len() <= READ_BYTES => last.bytes.extend(bytes),
            _ => self.unsent.push_back(Outgoing { bytes, sent: 0, tokens }),
        }
    }

    /// Sends these bytes as they are, if they can be sent at once.
    pub(super) fn send_plain(&mut self, bytes: Vec<u8>) {
        self.queue(bytes, Fds::new());
        let _ = self.flush();
    }

    /// Queues a frame and sends what can be sent.
    pub(super) fn send(&mut self, frame: &Frame, tokens: Fds) -> Result<(), Broken> {
        let mut bytes = Vec::new();
        codec::encode(frame, tokens.len(), &mut bytes)?;
        if let Some(channel) = &mut self.channel {
            channel.send(&bytes)?;
            bytes.clear();
            channel.take_outgoing(&mut bytes);
        }
        self.queue(bytes, tokens);
        self.flush()
    }

    /// Sends what can be sent.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        while let Some(first) = self.unsent.front_mut() {
            let borrowed: Vec<BorrowedFd<'_>> = first.tokens.iter().map(|token| token.as_fd()).collect();
            let sent = match self.stream.send(&first.bytes[first.sent..], &borrowed) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    // The other side has closed. Why, it may have said before: that is still to be read, and
                    // reading finds the end.
                    self.unsent.clear();
                    self.unsent_bytes = 0;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            // They went with the first byte.
            first.tokens.clear();
            first.sent += sent;
            self.unsent_bytes -= sent;
            if first.sent == first.bytes.len() {
                self.unsent.pop_front();
            }
        }
        if self.unsent_bytes > self.unsent_max { Err(Broken::Unread) } else { Ok(()) }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads what has come. The frames are then taken with [`Connection::next`], also those that
    /// came before the end.
    pub(super) fn read(&mut self) -> Result<(), Broken> {
        self.read_at_most(READ_BYTES, READS_PER_TURN)
    }

    /// Reads a little: all that a stranger may say at once.
    pub(super) fn read_little(&mut self) -> Result<(), Broken> {
        self.read_at_most(LITTLE_BYTES, 1)
    }

    /// Reads a little and forgets it: of one that is sent away.
    pub(super) fn skip_little(&mut self) -> io::Result<usize> {
        // Of who cannot be read any more there is nothing left to skip.
        if self.blocking.is_clogged() {
            return Ok(0);
        }
        let mut tokens = Vec::new();
        let read = self.stream.receive(&mut [0; LITTLE_BYTES], &mut tokens);
        drop(self.passed(tokens));
        read
    }

    fn passed(&self, tokens: Vec<OwnedFd>) -> Vec<PassedFd> {
        tokens.into_iter().map(|fd| PassedFd::new(fd, &self.blocking)).collect()
    }

    fn read_at_most(&mut self, most: usize, times: usize) -> Result<(), Broken> {
        let mut bytes = vec![0; most];
        let mut tokens = Vec::new();
        for _ in 0..times {
            // What it goes on to pass would wait behind the rest.
            if self.blocking.is_clogged() {
                return Err(Broken::Clogged);
            }
            let received = self.stream.receive(&mut bytes, &mut tokens);
            let passed = self.passed(std::mem::take(&mut tokens));
            let read = match received {
                Ok(0) => return Err(Broken::Closed),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Broken::Closed),
                Err(error) => return Err(error.into()),
            };
            self.heard = (true, true);
            self.take_in(&bytes[..read])?;
            self.tokens.extend(passed.into_iter().map(Some));
            if self.stream.has_lost_fds() {
                self.tokens.push_back(None);
            }
        }
        Ok(())
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let Some(channel) = &mut self.channel else {
            self.decoder.push(bytes);
            return Ok(());
        };
        let received = channel.receive(bytes);
        let mut opened = Vec::new();
        channel.take_plaintext(&mut opened);
        self.decoder.push(&opened);
        let mut outgoing = Vec::new();
        channel.take_outgoing(&mut outgoing);
        self.queue(outgoing, Fds::new());
        received?;
        self.flush()
    }

    /// The next whole frame and its descriptors.
    pub(super) fn next(&mut self) -> Result<Option<(Frame, FrameFds)>, Broken> {
        let received = self.decoder.next_frame()?;
        for expected in self.decoder.take_skipped_tokens() {
            drop(self.take_fds(expected)?);
        }
        let Some(Received { frame, tokens: expected }) = received else {
            // Those of a frame come with its first byte: of one alone is left what waits here, and the place of those that were lost.
            return if self.tokens.len() > FRAME_TOKENS_MAX + 1 {
                Err(WireError::TooManyTokens(self.tokens.len()).into())
            } else {
                Ok(None)
            };
        };
        Ok(Some((frame, self.take_fds(expected)?)))
    }

    /// The descriptors of the next frame that has some.
    fn take_fds(&mut self, expected: usize) -> Result<FrameFds, Broken> {
        let mut fds = Vec::with_capacity(expected);
        while fds.len() < expected {
            match self.tokens.pop_front() {
                Some(Some(fd)) => fds.push(fd),
                Some(None) => break,
                None => return Err(WireError::MissingTokens { expected, found: fds.len() }.into()),
            }
        }
        Ok(FrameFds { fds, expected })
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::env::Credentials;

    use super::*;

    /// Of a peer that reads nothing.
    struct Blocked;

    impl Stream for Blocked {
        fn send(&mut self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn receive(&mut self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn credentials(&self) -> io::Result<Credentials> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn what_waits_for_a_peer_that_does_not_read_takes_about_its_bytes_and_no_more_than_it_may() {
        const MOST: usize = 1 << 20;
        let mut connection = Connection::new(Blocked, MOST);
        let mut sent = 0;
        while connection.send(&Frame::Pong { number: sent }, Fds::new()).is_ok() {
            sent += 1;
            assert!(sent < MOST as u64, "nothing ends it");
        }
        let takes = |outgoing: &Outgoing| size_of::<Outgoing>() + outgoing.bytes.capacity();
        let taken: usize = connection.unsent.iter().map(takes).sum();
        assert!(taken < 3 * MOST, "{taken} B for {MOST} B in {} parts", connection.unsent.len());
    }
}
