//! What the first bytes of a connection between hosts say, before anything is sealed.
//!
//! ```text
//! 0        4         6       8         16          32
//! | "PNSN" | version | 0  0  |                          a control channel; sealed messages follow
//! | "PNSD" | version | index | session | mac         |  a data stream of a session; its bytes follow
//! | "PNSR" | code    | length| text of `length` bytes   a refusal, by the side that listens
//! ```
//!
//! Little endian. A stranger is refused at its first wrong byte. A stream's token can be made and judged
//! by the two ends of one session only, see [`StreamKey`]. A refusal is plain text, because the side that
//! refuses may have no key in common with the other; who reads it must not believe more of it than that the
//! connection is over.
//!
//! Versions: the header carries the version of all that follows. A listener that does not speak it answers
//! with [`OpeningCode::Version`] and closes. Magic and place of the version never change.

use blake2::Blake2sMac;
use blake2::digest::consts::{U16, U32};
use blake2::digest::{FixedOutput, KeyInit, Mac};

/// The version of openings that this release speaks.
pub const OPENING_VERSION: u16 = 1;
/// Bytes of the opening of a control channel.
pub const CHANNEL_OPENING_BYTES: usize = 8;
/// Bytes of the opening of a data stream.
pub const STREAM_OPENING_BYTES: usize = 32;

pub(crate) const CHANNEL_MAGIC: [u8; 4] = *b"PNSN";
const STREAM_MAGIC: [u8; 4] = *b"PNSD";
const MAC_BYTES: usize = 16;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A control channel; the messages of a [`crate::SecureChannel`] follow.
    Channel {
        /// The version of the channel.
        version: u16,
    },
    /// A data stream of a session that stands.
    Stream(StreamToken),
}

/// Why bytes do not open anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpeningError {
    /// Something else speaks here.
    #[error(
        "these bytes do not open a Penstock connection (byte {0} is wrong); another program is talking to this port"
    )]
    Magic(usize),
    /// A version this release does not speak.
    #[error(
        "connections of version {0} are not spoken here (this release speaks {OPENING_VERSION}); upgrade the older release"
    )]
    Version(u16),
    /// Reserved bytes are in use.
    #[error("reserved bytes of an opening are in use")]
    Reserved,
}

/// The opening of a control channel.
pub const fn channel_opening() -> [u8; CHANNEL_OPENING_BYTES] {
    let ([m0, m1, m2, m3], [v0, v1]) = (CHANNEL_MAGIC, OPENING_VERSION.to_le_bytes());
    [m0, m1, m2, m3, v0, v1, 0, 0]
}

/// Proves that a data stream belongs to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamToken {
    /// Which stream of the session.
    pub index: u16,
    /// Which session.
    pub session: u64,
    mac: [u8; MAC_BYTES],
}

impl StreamToken {
    /// The token as the opening of a data stream.
    pub fn encode(&self) -> [u8; STREAM_OPENING_BYTES] {
        let mut bytes = [0; STREAM_OPENING_BYTES];
        bytes[..4].copy_from_slice(&STREAM_MAGIC);
        bytes[4..6].copy_from_slice(&OPENING_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..].copy_from_slice(&self.mac);
        bytes
    }

    /// The token in the opening of a data stream.
    pub fn decode(bytes: &[u8; STREAM_OPENING_BYTES]) -> Result<Self, OpeningError> {
        match OpeningDecoder::new().push(bytes)? {
            Some((Opening::Stream(token), _)) => Ok(token),
            _ => Err(OpeningError::Magic(3)),
        }
    }

    fn parse(bytes: &[u8; STREAM_OPENING_BYTES]) -> Self {
        let [_, _, _, _, _, _, i0, i1, s0, s1, s2, s3, s4, s5, s6, s7, mac @ ..] = *bytes;
        let session = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        Self { index: u16::from_le_bytes([i0, i1]), session, mac }
    }
}

/// Collects the first bytes of a connection until they say what it is for. Holds at most 32 bytes.
#[derive(Debug, Clone, Default)]
pub struct OpeningDecoder {
    bytes: [u8; STREAM_OPENING_BYTES],
    length: usize,
}

impl OpeningDecoder {
    /// An empty decoder.
    pub const fn new() -> Self {
        Self { bytes: [0; STREAM_OPENING_BYTES], length: 0 }
    }

    /// Takes bytes as they came. Once they say what the connection is for: that, and those of `bytes` that
    /// come after. After an answer or an error the decoder has done its work.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Opening, &'a [u8])>, OpeningError> {
        for (place, &byte) in bytes.iter().enumerate() {
            let Some(free) = self.bytes.get_mut(self.length) else { break };
            *free = byte;
            self.length += 1;
            self.judge_last()?;
            if let Some(opening) = self.whole() {
                return Ok(Some((opening, &bytes[place + 1..])));
            }
        }
        Ok(None)
    }

    fn is_channel(&self) -> bool {
        self.length >= 4 && self.bytes[..4] == CHANNEL_MAGIC
    }

    fn judge_last(&self) -> Result<(), OpeningError> {
        let place = self.length - 1;
        let byte = self.bytes[place];
        match place {
            0..=3 if byte != CHANNEL_MAGIC[place] && byte != STREAM_MAGIC[place] => Err(OpeningError::Magic(place)),
            5 => match u16::from_le_bytes([self.bytes[4], byte]) {
                OPENING_VERSION => Ok(()),
                other => Err(OpeningError::Version(other)),
            },
            6 | 7 if self.is_channel() && byte != 0 => Err(OpeningError::Reserved),
            _ => Ok(()),
        }
    }

    fn whole(&self) -> Option<Opening> {
        if self.is_channel() {
            let version = u16::from_le_bytes([self.bytes[4], self.bytes[5]]);
            return (self.length == CHANNEL_OPENING_BYTES).then_some(Opening::Channel { version });
        }
        (self.length == STREAM_OPENING_BYTES).then(|| Opening::Stream(StreamToken::parse(&self.bytes)))
    }
}

/// What the two ends of one session know and nobody else: makes and judges the tokens of its streams.
///
/// The key comes from what [`crate::SecureChannel::handshake_hash`] gives on both ends. A token says which session
/// and which stream of it, under a keyed BLAKE2s of 128 bits; that a token is used once is for the one who
/// takes streams to see to.
#[derive(Clone)]
pub struct StreamKey {
    key: [u8; 32],
    session: u64,
}

impl std::fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamKey").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Keyed BLAKE2s. Each use has words of its own before what is digested, so that no digest serves for another.
fn keyed<M: Mac + KeyInit>(key: &[u8; 32], words: &[u8], text: &[u8]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of 32 bytes is as long as BLAKE2s allows");
    mac.update(words);
    mac.update(text);
    mac
}

impl StreamKey {
    /// The key of the session with this handshake.
    pub fn derive(handshake_hash: &[u8; 32]) -> Self {
        let key = keyed::<Blake2sMac<U32>>(handshake_hash, b"penstock stream key", &[]).finalize_fixed().into();
        let digest: [u8; 16] = keyed::<Blake2sMac<U16>>(&key, b"penstock session id", &[]).finalize_fixed().into();
        let [d0, d1, d2, d3, d4, d5, d6, d7, ..] = digest;
        Self { key, session: u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]) }
    }

    /// The session's number, the same on both ends.
    pub fn session_id(&self) -> u64 {
        self.session
    }

    fn mac(&self, session: u64, index: u16) -> Blake2sMac<U16> {
        let mut text = [0; 10];
        text[..8].copy_from_slice(&session.to_le_bytes());
        text[8..].copy_from_slice(&index.to_le_bytes());
        keyed(&self.key, b"penstock stream token", &text)
    }

    /// The token of this stream of the session.
    pub fn token(&self, index: u16) -> StreamToken {
        let mac = self.mac(self.session, index).finalize_fixed().into();
        StreamToken { index, session: self.session, mac }
    }

    /// Whether the other end of this session made the token; takes the same time for any wrong one.
    pub fn verify(&self, token: &StreamToken) -> bool {
        let is_made_here = self.mac(token.session, token.index).verify_slice(&token.mac).is_ok();
        is_made_here & (token.session == self.session)
    }
}

mod refusal;
pub use refusal::{OpeningCode, REFUSAL_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX, Refusal, RefusalError};
pub(crate) use refusal::{REFUSAL_MAGIC, RefusalDecoder};

#[cfg(test)]
mod tests;
