//! What happened, folded into one number.
//!
//! Two runs of one seed must give the same number, in any process and on any machine. So a frame is
//! digested without what the seed does not decide: the addresses at which the kernel mapped memory and
//! the numbers of parcels in the table that all engines of a process share.

use std::collections::VecDeque;
use std::fmt;

use penstock::Timestamp;
use penstock::session::codec::encode;
use penstock::session::{Decoder, Frame};

/// Events that are kept to be shown when a run fails.
const KEPT: usize = 48;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An engine began to listen.
    Listened,
    /// An engine called another one.
    Called,
    /// An engine accepted a call.
    Accepted,
    /// An engine said a frame of this kind; the digest is the frame's.
    Said(u16),
    /// An engine said what is not a frame.
    Babbled,
    /// An engine could not send at this moment.
    Held,
    /// A piece of what was said arrived at the engine.
    Arrived,
    /// An engine closed a stream.
    Closed,
    /// All streams broke.
    Severed,
    /// An engine made a turn; the digest says what it answered.
    Turned,
    /// An engine waited; the digest is for how long, in nanoseconds.
    Paused,
    /// The test noted something of its own.
    Noted,
    /// An engine said so many bytes under seal; what they are depends on addresses, which the seed does not decide.
    Sealed,
    /// An engine sent a packet that is on its way.
    Sent,
    /// An engine sent a packet that vanished.
    Lost,
    /// An engine sent a packet to where nobody is.
    Astray,
    /// A packet arrived at the engine.
    Came,
    /// Nothing passes from one host to another any more.
    Cut,
    /// All links pass again.
    Healed,
    /// An engine stands still.
    Frozen,
    /// An engine goes on.
    Thawed,
    /// An engine died, or a device was lost.
    Crashed,
    /// A stream of a device did a piece of what it has; the digest says which stream, and how much.
    Copied,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, by the world's clock.
    pub at: Timestamp,
    /// Which engine, in the order they were started.
    pub engine: usize,
    /// What.
    pub what: What,
    /// A digest of the rest.
    pub digest: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, engine, what, digest } = self;
        write!(f, "{:>12} ns  engine {engine}  {what:?}  {digest:016x}", at.as_ns())
    }
}

/// All events of a run: their number, their hash, and the last few of them.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<Event>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hash: DIGEST_OF_NOTHING, count: 0, last: VecDeque::with_capacity(KEPT) }
    }

    pub(crate) fn record(&mut self, event: Event) {
        let (kind, detail) = event.what.numbers();
        for number in [event.at.as_ns(), event.engine as u64, kind, detail, event.digest] {
            self.hash = digest_onto(self.hash, &number.to_le_bytes());
        }
        self.count += 1;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &Event> {
        self.last.iter()
    }
}

impl What {
    const fn numbers(self) -> (u64, u64) {
        match self {
            Self::Listened => (1, 0),
            Self::Called => (2, 0),
            Self::Accepted => (3, 0),
            Self::Said(kind) => (4, kind as u64),
            Self::Babbled => (5, 0),
            Self::Held => (6, 0),
            Self::Arrived => (7, 0),
            Self::Closed => (8, 0),
            Self::Turned => (9, 0),
            Self::Paused => (10, 0),
            Self::Noted => (11, 0),
            Self::Severed => (12, 0),
            Self::Sealed => (13, 0),
            Self::Sent => (14, 0),
            Self::Lost => (15, 0),
            Self::Astray => (16, 0),
            Self::Came => (17, 0),
            Self::Cut => (18, 0),
            Self::Healed => (19, 0),
            Self::Frozen => (20, 0),
            Self::Thawed => (21, 0),
            Self::Crashed => (22, 0),
            Self::Copied => (23, 0),
        }
    }
}

/// With this the path to a device's memory begins that goes through slots.
const STAGED: &[u8] = b"staged";

const DIGEST_OF_NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

fn digest_onto(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A digest of some bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    digest_onto(DIGEST_OF_NOTHING, bytes)
}

/// What one side of a stream says, made out from the bytes as they are sent.
#[derive(Debug, Default)]
pub(crate) struct Spoken {
    decoder: Decoder,
    is_babble: bool,
}

impl Spoken {
    /// What was said in full with these bytes.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Vec<(What, u64)> {
        if self.is_babble {
            return vec![(What::Babbled, digest(bytes))];
        }
        self.decoder.push(bytes);
        let mut said = Vec::new();
        loop {
            match self.decoder.next_frame() {
                Ok(None) => return said,
                Ok(Some(received)) => {
                    said.push((What::Said(received.frame.kind()), digest_of_frame(received.frame, received.tokens)));
                }
                Err(_) => {
                    self.is_babble = true;
                    said.push((What::Babbled, digest(bytes)));
                    return said;
                }
            }
        }
    }
}

fn digest_of_frame(mut frame: Frame, tokens: usize) -> u64 {
    match &mut frame {
        Frame::Regions(regions) => regions.news.iter_mut().for_each(|region| {
            region.base = 0;
            // It says where slots are.
            if region.path.starts_with(STAGED) {
                region.path.fill(0);
            }
        }),
        Frame::Offer(offer) if offer.transport == "local" => offer.blob.fill(0),
        _ => {}
    }
    let mut bytes = Vec::new();
    match encode(&frame, tokens, &mut bytes) {
        Ok(()) => digest(&bytes),
        Err(_) => u64::MAX, // It came out of a decoder, so it is short enough to encode.
    }
}
