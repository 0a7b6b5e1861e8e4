//! Frames to bytes and back.
//!
//! ```text
//! 0        4         6      8        12       13        16
//! | "PNSK" | version | kind | length | tokens | 0  0  0 | body of `length` bytes
//! ```
//!
//! Little endian. `tokens` is how many descriptors ride with the frame; they are matched to frames
//! in order, so that a frame names its descriptors by their place.

mod control_message;

use penstock_core::limits::{FRAME_BYTES_MAX, FRAME_TOKENS_MAX};
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::descriptor::DESCRIPTOR_BYTES_MAX;
use crate::frame::{
    CARDS_MAX, DESCRIPTOR, DRAINING, Frame, KNOWN, OPTIONAL_KINDS, PING, PONG, RESTED, SETTLED, TRANSPORT_MESSAGE,
    TRANSPORT_MESSAGE_BYTES_MAX, VERSION_MAX, VERSION_MIN, WITHDRAWN,
};

const MAGIC: [u8; 4] = *b"PNSK";
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;

/// Why bytes are not frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not ours: something else speaks on this socket.
    #[error(
        "these bytes are not Penstock frames (they begin with {0:02x?}); another program is talking to this socket"
    )]
    Magic([u8; 4]),
    /// A version this release does not speak.
    #[error("frame version {0} is not spoken here (this release speaks {VERSION_MIN} to {VERSION_MAX})")]
    Version(u16),
    /// A frame that must be understood and is not.
    #[error("frame kind {0} is not known to this release")]
    Kind(u16),
    /// A frame longer than allowed.
    #[error("a frame of {0} bytes is longer than the {FRAME_BYTES_MAX} allowed")]
    TooLong(u64),
    /// More descriptors than allowed.
    #[error("a frame with {0} descriptors has more than the {FRAME_TOKENS_MAX} allowed")]
    TooManyTokens(usize),
    /// A frame advertised descriptors that did not come.
    #[error("a frame announced {expected} descriptors and {found} came with it")]
    MissingTokens {
        /// How many were advertised.
        expected: usize,
        found: usize,
    },
    /// Reserved bytes are in use.
    #[error("reserved bytes of a frame header are in use")]
    Reserved,
    /// More descriptors than allowed.
    #[error("a frame with {0} cards has more than the {CARDS_MAX} allowed")]
    TooManyCards(usize),
    /// A descriptor longer than allowed.
    #[error("a card of {0} bytes in a frame is longer than the {DESCRIPTOR_BYTES_MAX} allowed")]
    CardTooLong(usize),
    /// A longer transport message than allowed.
    #[error("{0} bytes of a transport message in a frame are more than the {TRANSPORT_MESSAGE_BYTES_MAX} allowed")]
    TransportMessageTooLong(usize),
    /// More of something than a frame of this kind may carry.
    #[error("{found} {what} in a frame of kind {kind} are more than the {most} allowed")]
    TooMuch {
        kind: u16,
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much there may be.
        most: usize,
    },
    /// A number that means nothing in a frame of this kind.
    #[error("the {what} in a frame of kind {kind} may not be zero")]
    Zero { kind: u16, what: &'static str },
    /// The body does not decode.
    #[error("the body of a frame of kind {0} does not decode")]
    Body(u16),
    /// The frame's body goes on after its end.
    #[error("{bytes} bytes follow the body of a frame of kind {kind}")]
    Trailing {
        kind: u16,
        /// How many bytes follow.
        bytes: usize,
    },
}

/// Appends one frame to `out`.
pub fn encode(frame: &Frame, tokens: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    if tokens > FRAME_TOKENS_MAX {
        return Err(WireError::TooManyTokens(tokens));
    }
    check_limits(frame)?;
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION_MIN.to_le_bytes());
    out.extend_from_slice(&frame.kind().to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[tokens as u8, 0, 0, 0]);
    match frame {
        Frame::Hello(hello) => put(out, hello),
        Frame::Refuse { code, text } => put(out, &(code, text)),
        Frame::Offer(offer) => put(out, offer),
        Frame::Regions(news) => put(out, news),
        Frame::RegionsGone(gone) => put(out, gone),
        Frame::Counters(news) => put(out, news),
        Frame::Ping { number } | Frame::Pong { number } => put(out, number),
        Frame::Descriptor(descriptor) => put(out, descriptor),
        Frame::Known(descriptors) => put(out, descriptors),
        Frame::Withdrawn(withdrawn) => put(out, withdrawn),
        Frame::TransportMessage(words) => put(out, words),
        Frame::Control(said) => control_message::put(out, said),
        Frame::Goodbye | Frame::Draining | Frame::Settled | Frame::Rested => {}
    }
    let length = out.len() - start - HEADER_BYTES;
    if length + HEADER_BYTES > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(WireError::TooLong(length as u64));
    }
    out[start + 8..start + 12].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// What frames carry for others has limits of its own.
fn check_limits(frame: &Frame) -> Result<(), WireError> {
    let descriptors = match frame {
        Frame::Descriptor(descriptor) => std::slice::from_ref(descriptor),
        Frame::Known(descriptors) => descriptors.as_slice(),
        Frame::TransportMessage(words) if words.len() > TRANSPORT_MESSAGE_BYTES_MAX => {
            return Err(WireError::TransportMessageTooLong(words.len()));
        }
        Frame::Control(said) => return control_message::check(said),
        _ => return Ok(()),
    };
    if descriptors.len() > CARDS_MAX {
        return Err(WireError::TooManyCards(descriptors.len()));
    }
    match descriptors.iter().find(|descriptor| descriptor.len() > DESCRIPTOR_BYTES_MAX) {
        Some(descriptor) => Err(WireError::CardTooLong(descriptor.len())),
        None => Ok(()),
    }
}

/// Appends plain data.
pub(crate) fn put<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    postcard::serialize_with_flavor(value, Appending(out)).expect("plain data encodes into a growing vector");
}

/// What is encoded goes behind what is there, without a vector of its own.
struct Appending<'a>(&'a mut Vec<u8>);

impl Flavor for Appending<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes {
            // Numbers are small nearly always.
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn get<T: DeserializeOwned>(kind: u16, body: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(WireError::Trailing { kind, bytes: rest.len() }),
        Err(_) => Err(WireError::Body(kind)),
    }
}

/// A frame and how many descriptors belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// What was said.
    pub frame: Frame,
    /// How many descriptors ride with it.
    pub tokens: usize,
}

struct Header {
    kind: u16,
    length: usize,
    tokens: usize,
}

impl Header {
    fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3, tokens, rest @ ..] = bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(WireError::Magic([m0, m1, m2, m3]));
        }
        let version = u16::from_le_bytes([v0, v1]);
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(WireError::Version(version));
        }
        if rest != [0; 3] {
            return Err(WireError::Reserved);
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length as usize > FRAME_BYTES_MAX - HEADER_BYTES {
            return Err(WireError::TooLong(length.into()));
        }
        if usize::from(tokens) > FRAME_TOKENS_MAX {
            return Err(WireError::TooManyTokens(tokens.into()));
        }
        Ok(Self { kind: u16::from_le_bytes([k0, k1]), length: length as usize, tokens: tokens.into() })
    }
}

/// Collects bytes until they are frames.
///
/// Holds at most one frame's bytes beyond what was pushed at once; a header that promises too much
/// is refused before its body is waited for.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of them were read: they go with the next push.
    read: usize,
    skipped: u64,
    skipped_tokens: Vec<usize>,
}

impl Decoder {
    /// An empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    /// How many optional frames of unknown kinds were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// How many descriptors belong to each frame that was skipped since the last call and has some. They come
    /// before those of the next frame.
    pub fn take_skipped_tokens(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.skipped_tokens)
    }

    /// Whether a frame has begun and is not complete.
    pub fn has_partial(&self) -> bool {
        !self.rest().is_empty()
    }

    /// The next whole frame, if there is one. After an error the stream has no meaning any more.
    pub fn next_frame(&mut self) -> Result<Option<Received>, WireError> {
        loop {
            let Some(header) = self.peek_header()? else { return Ok(None) };
            let end = HEADER_BYTES + header.length;
            let Some(body) = self.rest().get(HEADER_BYTES..end) else { return Ok(None) };
            let decoded = decode_body(header.kind, body);
            self.read += end;
            match decoded? {
                Some(frame) => return Ok(Some(Received { frame, tokens: header.tokens })),
                None => {
                    self.skipped += 1;
                    self.skipped_tokens.extend((header.tokens > 0).then_some(header.tokens));
                }
            }
        }
    }

    fn peek_header(&self) -> Result<Option<Header>, WireError> {
        // The first bytes are judged as they come: a stranger's are refused without waiting for more.
        let rest = self.rest();
        let first = &rest[..rest.len().min(MAGIC.len())];
        if !MAGIC.starts_with(first) {
            let mut seen = [0; MAGIC.len()];
            seen[..first.len()].copy_from_slice(first);
            return Err(WireError::Magic(seen));
        }
        rest.first_chunk().map(|header| Header::parse(*header)).transpose()
    }
}

fn decode_body(kind: u16, body: &[u8]) -> Result<Option<Frame>, WireError> {
    let frame = match kind {
        1 => Frame::Hello(get(kind, body)?),
        2 => {
            let (code, text) = get(kind, body)?;
            Frame::Refuse { code, text }
        }
        3 => Frame::Offer(get(kind, body)?),
        4 => Frame::Regions(get(kind, body)?),
        5 => Frame::RegionsGone(get(kind, body)?),
        6 => Frame::Counters(get(kind, body)?),
        7 if body.is_empty() => Frame::Goodbye,
        DRAINING if body.is_empty() => Frame::Draining,
        SETTLED if body.is_empty() => Frame::Settled,
        RESTED if body.is_empty() => Frame::Rested,
        PING => Frame::Ping { number: get(kind, body)? },
        PONG => Frame::Pong { number: get(kind, body)? },
        DESCRIPTOR => Frame::Descriptor(get(kind, body)?),
        KNOWN => Frame::Known(get(kind, body)?),
        WITHDRAWN => Frame::Withdrawn(get(kind, body)?),
        TRANSPORT_MESSAGE => Frame::TransportMessage(get(kind, body)?),
        7 | DRAINING | SETTLED | RESTED => return Err(WireError::Trailing { kind, bytes: body.len() }),
        kind if kind >= OPTIONAL_KINDS => match control_message::get(kind, body)? {
            Some(said) => Frame::Control(said),
            None => return Ok(None),
        },
        kind => return Err(WireError::Kind(kind)),
    };
    check_limits(&frame)?;
    Ok(Some(frame))
}

#[cfg(test)]
mod tests;
