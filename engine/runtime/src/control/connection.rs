//! One connection of the bootstrap channel: frames in, frames out, descriptors beside them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penstock_core::env::Stream;
use penstock_core::limits::FRAME_TOKENS_MAX;
use penstock_session::codec::{self, Received};
use penstock_session::{Decoder, Frame, WireError};
use penstock_transport::Tokens;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Reads of one connection before others get their turn.
const READS_PER_TURN: usize = 8;
/// Bytes that may wait for a peer that does not read; more, and it is given up.
const UNSENT_BYTES_MAX: usize = 8 * 1024 * 1024;

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
    /// The other side does not read.
    #[error("the other engine does not read what it is sent")]
    Unread,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    tokens: Tokens,
}

/// A stream, what came of a frame so far, and what is still to be sent.
pub(super) struct Connection<S> {
    pub(super) stream: S,
    decoder: Decoder,
    tokens: VecDeque<OwnedFd>,
    unsent: VecDeque<Outgoing>,
    unsent_bytes: usize,
    /// Whether the reactor reports when it can be written.
    pub(super) watches_writing: bool,
}

impl<S: Stream> Connection<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::new(),
            tokens: VecDeque::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            watches_writing: false,
        }
    }

    /// Queues a frame and sends what can be sent.
    pub(super) fn send(&mut self, frame: &Frame, tokens: Tokens) -> Result<(), Broken> {
        let mut bytes = Vec::new();
        codec::encode(frame, tokens.len(), &mut bytes)?;
        self.unsent_bytes += bytes.len();
        self.unsent.push_back(Outgoing { bytes, sent: 0, tokens });
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
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
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
        if self.unsent_bytes > UNSENT_BYTES_MAX { Err(Broken::Unread) } else { Ok(()) }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads what has come. The frames are then taken with [`Connection::next`], also those that
    /// came before the end.
    pub(super) fn read(&mut self) -> Result<(), Broken> {
        let mut bytes = vec![0; READ_BYTES];
        let mut tokens = Vec::new();
        for _ in 0..READS_PER_TURN {
            let read = match self.stream.receive(&mut bytes, &mut tokens) {
                Ok(0) => return Err(Broken::Closed),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Broken::Closed),
                Err(error) => return Err(error.into()),
            };
            self.decoder.push(&bytes[..read]);
            self.tokens.extend(tokens.drain(..));
            if self.tokens.len() > 16 * FRAME_TOKENS_MAX {
                return Err(WireError::TooManyTokens(self.tokens.len()).into());
            }
        }
        Ok(())
    }

    /// The next whole frame and its descriptors.
    pub(super) fn next(&mut self) -> Result<Option<(Frame, Vec<OwnedFd>)>, Broken> {
        let received = self.decoder.next_frame()?;
        let skipped = self.decoder.take_skipped_tokens().min(self.tokens.len());
        self.tokens.drain(..skipped);
        let Some(Received { frame, tokens: expected }) = received else {
            // Descriptors that no frame under way can name are not kept for later ones.
            return if self.tokens.len() > FRAME_TOKENS_MAX && !self.decoder.has_partial() {
                Err(WireError::TooManyTokens(self.tokens.len()).into())
            } else {
                Ok(None)
            };
        };
        let found = self.tokens.len();
        if found < expected {
            return Err(WireError::MissingTokens { expected, found }.into());
        }
        Ok(Some((frame, self.tokens.drain(..expected).collect())))
    }
}
