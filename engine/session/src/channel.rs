//! A sealed stream of bytes between two hosts that share a secret, without any I/O.
//!
//! ```text
//!            caller                                    listener
//!              │ opening, psk e ────────────────────────▶ │ knows at once whether the secret is the same
//!      open    │ ◀────────────────────────────── e ee     │ open
//!              │ sealed ────────────────────────────────▶ │ confirmed
//! ```
//!
//! The pattern is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`. Each message goes behind its length (u16, little
//! endian). The handshake covers the opening, so that nobody changes the version on the way. The payload of
//! the first message is empty, that of the second begins with 32 random bytes; what a later release puts
//! there besides is not looked at. Those bytes make [`SecureChannel::handshake_hash`] a thing that only the two
//! ends know: the bare hash could be computed by everybody of the group who saw the messages.
//!
//! Whoever has not shown that it can seal a message of its own costs little: until then messages longer than
//! [`EARLY_BYTES_MAX`] are refused, and nothing else is kept. Somebody who repeats what it heard on the wire
//! never gets further.

use std::fmt;

use blake2::Blake2sMac;
use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Mac};
use snow::{HandshakeState, TransportState};

use crate::opening::{OpeningCode, REFUSAL_MAGIC, Refusal, RefusalDecoder, channel_opening};
use crate::secret::Secret;

mod noise;

/// The longest sealed message, in bytes, without its length.
pub const MESSAGE_BYTES_MAX: usize = 65_535;
/// The longest message before the sender has shown that it can seal one, in bytes.
pub const EARLY_BYTES_MAX: usize = 1024;

const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const BINDING_BYTES: usize = 32;
const FIRST_BYTES: usize = KEY_BYTES + TAG_BYTES;
const SECOND_BYTES: usize = KEY_BYTES + BINDING_BYTES + TAG_BYTES;

/// Why a channel is over. It stays over: each later call says the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other side does not have this side's secret, or its bytes were changed on the way.
    #[error("the other side does not share this side's secret; copy one host's secret file to the other")]
    WrongSecret,
    /// The listener refused in plain text, which nobody vouches for.
    #[error("refused by the other side: {text} ({})", code.advice())]
    Refused {
        code: OpeningCode,
        /// Why, in its words.
        text: String,
    },
    /// A message before the channel stands is longer than it may be.
    #[error("a message of {0} bytes before the channel stands is longer than the {EARLY_BYTES_MAX} allowed")]
    EarlyTooLong(usize),
    /// A message is too short for what it must hold.
    #[error("a message of {0} bytes is too short to be sealed")]
    TooShort(usize),
    /// A sealed message was changed, repeated, left out or moved.
    #[error("a sealed message does not open: it was changed, repeated, left out or moved on its way")]
    Tampered,
    /// As many messages were sealed as one key may.
    #[error("this channel has sealed as many messages as it may; connect anew")]
    Exhausted,
}

impl ChannelError {
    /// What a listener can say in plain text before it closes, to a caller that has no keys yet.
    pub fn refusal(&self) -> Option<Refusal> {
        let code = match self {
            Self::WrongSecret => OpeningCode::WrongSecret,
            Self::EarlyTooLong(_) | Self::TooShort(_) => OpeningCode::Malformed,
            Self::Refused { .. } | Self::Tampered | Self::Exhausted => return None,
        };
        Some(Refusal::new(code, self.to_string()))
    }
}

enum State {
    /// The caller has sent the first message and waits for the second.
    AwaitSecond(Box<HandshakeState>),
    /// The same, and what comes instead is a refusal in plain text.
    AwaitRefusal(RefusalDecoder),
    /// The listener waits for the first message.
    AwaitFirst {
        noise: Box<HandshakeState>,
        binding: [u8; BINDING_BYTES],
    },
    Open(Open),
    Over(ChannelError),
}

struct Open {
    noise: Box<TransportState>,
    hash: [u8; 32],
    /// Whether the other side has sealed a message with these keys.
    is_confirmed: bool,
    /// Whether this side's next message is the one that shows it to the other.
    must_be_short: bool,
}

/// One end of a sealed stream of bytes.
pub struct SecureChannel {
    state: State,
    /// The beginning of a message that has not come whole: at most one message and its length.
    incoming: Vec<u8>,
    plaintext: Vec<u8>,
    outgoing: Vec<u8>,
    /// What is to be sealed once the channel is open.
    waiting: Vec<u8>,
}

impl fmt::Debug for SecureChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::AwaitSecond(_) => "awaits the second message",
            State::AwaitRefusal(_) => "awaits the end of a refusal",
            State::AwaitFirst { .. } => "awaits the first message",
            State::Open(open) if open.is_confirmed => "open, confirmed",
            State::Open(_) => "open",
            State::Over(_) => "over",
        };
        f.debug_struct("Channel").field("state", &state).finish_non_exhaustive()
    }
}

impl SecureChannel {
    /// The side that connected. What it sends begins with [`channel_opening`]. `random` fills what it is
    /// given with unpredictable bytes.
    pub fn caller(secret: &Secret, random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut noise = noise::caller(secret, &channel_opening(), random);
        let mut outgoing = channel_opening().to_vec();
        let mut first = [0; FIRST_BYTES];
        let length = noise.write_message(&[], &mut first).expect("the first message of a new handshake can be written");
        debug_assert_eq!(length, FIRST_BYTES);
        put(&mut outgoing, &first);
        Self { outgoing, ..Self::new(State::AwaitSecond(Box::new(noise))) }
    }

    /// The side that listened. It takes what comes after the opening, which [`crate::OpeningDecoder`] has
    /// taken.
    pub fn listener(secret: &Secret, random: &mut dyn FnMut(&mut [u8])) -> Self {
        let noise = Box::new(noise::listener(secret, &channel_opening(), random));
        let mut binding = [0; BINDING_BYTES];
        random(&mut binding);
        Self::new(State::AwaitFirst { noise, binding })
    }

    fn new(state: State) -> Self {
        Self { state, incoming: Vec::new(), plaintext: Vec::new(), outgoing: Vec::new(), waiting: Vec::new() }
    }

    /// Takes bytes as they came. What was opened before an error can still be taken.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        if let State::Over(error) = &self.state {
            return Err(error.clone());
        }
        let received = self.take_bytes(bytes);
        received.inspect_err(|error| self.end(error.clone()))
    }

    /// Moves what was opened to the end of `to`.
    pub fn take_plaintext(&mut self, to: &mut Vec<u8>) {
        to.append(&mut self.plaintext);
    }

    /// Seals these bytes, or keeps them until the channel is open and seals them then.
    pub fn send(&mut self, plaintext: &[u8]) -> Result<(), ChannelError> {
        match &mut self.state {
            State::Over(error) => return Err(error.clone()),
            State::Open(open) => {
                let sealed = open.seal(plaintext, &mut self.outgoing);
                sealed.inspect_err(|error| self.end(error.clone()))?;
            }
            _ => self.waiting.extend_from_slice(plaintext),
        }
        Ok(())
    }

    /// Moves what is to be written to the connection to the end of `to`.
    pub fn take_outgoing(&mut self, to: &mut Vec<u8>) {
        to.append(&mut self.outgoing);
    }

    /// Whether both sides have the keys, as far as this side can see.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether the other side has shown that it has the keys: the caller sees that when the channel opens, the
    /// listener when the first sealed message opens. Before that the listener may be talking to a repetition.
    pub fn is_confirmed(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.is_confirmed)
    }

    /// What only the two ends of this channel know and no other channel has, once it is open.
    pub fn handshake_hash(&self) -> Option<[u8; 32]> {
        match &self.state {
            State::Open(open) => Some(open.hash),
            _ => None,
        }
    }

    fn end(&mut self, error: ChannelError) {
        self.state = State::Over(error);
        self.incoming = Vec::new();
        self.waiting = Vec::new();
    }

    fn take_bytes(&mut self, mut bytes: &[u8]) -> Result<(), ChannelError> {
        loop {
            // A sealed message of this length cannot come before the channel stands, so a refusal is told by it.
            if matches!(self.state, State::AwaitSecond(_)) && self.incoming == REFUSAL_MAGIC[..LENGTH_BYTES] {
                self.state = State::AwaitRefusal(RefusalDecoder::default());
                let begun = std::mem::take(&mut self.incoming);
                self.take_refusal(&begun)?;
            }
            if matches!(self.state, State::AwaitRefusal(_)) {
                return self.take_refusal(bytes);
            }
            let wanted = self.wanted()?;
            if self.incoming.len() == wanted {
                let message = std::mem::take(&mut self.incoming);
                self.take_message(&message[LENGTH_BYTES..])?;
                continue;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.incoming.len()));
            self.keep(taken, wanted);
            bytes = rest;
        }
    }

    /// How many bytes, the length with them, there must be before more can be done.
    fn wanted(&self) -> Result<usize, ChannelError> {
        let &[l0, l1, ..] = self.incoming.as_slice() else { return Ok(LENGTH_BYTES) };
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        if length > EARLY_BYTES_MAX && !self.is_confirmed() {
            return Err(ChannelError::EarlyTooLong(length));
        }
        let shortest = match &self.state {
            State::AwaitFirst { .. } => FIRST_BYTES,
            State::AwaitSecond(_) => SECOND_BYTES,
            _ => TAG_BYTES,
        };
        if length < shortest { Err(ChannelError::TooShort(length)) } else { Ok(LENGTH_BYTES + length) }
    }

    /// Grows with what came, never beyond what is wanted: a length alone makes no room.
    fn keep(&mut self, taken: &[u8], wanted: usize) {
        let needed = self.incoming.len() + taken.len();
        if self.incoming.capacity() < needed {
            self.incoming.reserve_exact(wanted.min(2 * needed) - self.incoming.len());
        }
        self.incoming.extend_from_slice(taken);
    }

    fn take_refusal(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let State::AwaitRefusal(decoder) = &mut self.state else { return Ok(()) };
        match decoder.push(bytes) {
            Ok(None) => Ok(()),
            Ok(Some((refusal, _))) => Err(ChannelError::Refused { code: refusal.code, text: refusal.text }),
            // It was the length of a message after all, and of one that is too long.
            Err(_) => Err(ChannelError::EarlyTooLong(u16::from_le_bytes([REFUSAL_MAGIC[0], REFUSAL_MAGIC[1]]).into())),
        }
    }

    fn take_message(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let mut payload = [0; EARLY_BYTES_MAX];
        match &mut self.state {
            State::Open(open) => return open.unseal(message, &mut self.plaintext),
            State::AwaitFirst { noise, binding } => {
                noise.read_message(message, &mut payload).map_err(|_| ChannelError::WrongSecret)?;
                let mut second = [0; SECOND_BYTES];
                noise.write_message(binding, &mut second).map_err(|_| ChannelError::WrongSecret)?;
                put(&mut self.outgoing, &second);
                payload[..BINDING_BYTES].copy_from_slice(binding);
            }
            State::AwaitSecond(noise) => {
                noise.read_message(message, &mut payload).map_err(|_| ChannelError::WrongSecret)?;
            }
            State::AwaitRefusal(_) | State::Over(_) => return Ok(()),
        }
        self.open(&payload[..BINDING_BYTES])
    }

    /// Goes from the handshake to the keys it made.
    fn open(&mut self, binding: &[u8]) -> Result<(), ChannelError> {
        // What stands here in between is seen by nobody: any error ends the channel.
        let (noise, is_caller) = match std::mem::replace(&mut self.state, State::Over(ChannelError::WrongSecret)) {
            State::AwaitFirst { noise, .. } => (noise, false),
            State::AwaitSecond(noise) => (noise, true),
            other => {
                self.state = other;
                return Ok(());
            }
        };
        let hash = bound(binding, noise.get_handshake_hash());
        let noise = Box::new(noise.into_transport_mode().map_err(|_| ChannelError::WrongSecret)?);
        let mut open = Open { noise, hash, is_confirmed: is_caller, must_be_short: is_caller };
        let waiting = std::mem::take(&mut self.waiting);
        open.seal(&waiting, &mut self.outgoing)?;
        self.state = State::Open(open);
        Ok(())
    }
}

impl Open {
    fn seal(&mut self, mut plaintext: &[u8], outgoing: &mut Vec<u8>) -> Result<(), ChannelError> {
        while !plaintext.is_empty() {
            let longest = if self.must_be_short { EARLY_BYTES_MAX } else { MESSAGE_BYTES_MAX } - TAG_BYTES;
            let (piece, rest) = plaintext.split_at(plaintext.len().min(longest));
            let start = outgoing.len();
            let length = piece.len() + TAG_BYTES;
            outgoing.extend_from_slice(&(length as u16).to_le_bytes());
            outgoing.resize(start + LENGTH_BYTES + length, 0);
            if self.noise.write_message(piece, &mut outgoing[start + LENGTH_BYTES..]).is_err() {
                outgoing.truncate(start);
                return Err(ChannelError::Exhausted);
            }
            self.must_be_short = false;
            plaintext = rest;
        }
        Ok(())
    }

    fn unseal(&mut self, message: &[u8], plaintext: &mut Vec<u8>) -> Result<(), ChannelError> {
        let start = plaintext.len();
        plaintext.resize(start + message.len() - TAG_BYTES, 0);
        if self.noise.read_message(message, &mut plaintext[start..]).is_err() {
            plaintext.truncate(start);
            return Err(ChannelError::Tampered);
        }
        self.is_confirmed = true;
        Ok(())
    }
}

/// Binds the hash of the handshake to what only the two ends have read.
fn bound(binding: &[u8], hash: &[u8]) -> [u8; 32] {
    let mut mac = <Blake2sMac<U32> as KeyInit>::new_from_slice(binding).expect("a key of 32 bytes fits BLAKE2s");
    mac.update(b"penstock session");
    mac.update(hash);
    mac.finalize_fixed().into()
}

/// Appends one message of the handshake behind its length.
fn put(outgoing: &mut Vec<u8>, message: &[u8]) {
    outgoing.extend_from_slice(&(message.len() as u16).to_le_bytes());
    outgoing.extend_from_slice(message);
}

const _: () =
    assert!(SECOND_BYTES < EARLY_BYTES_MAX && FIRST_BYTES < EARLY_BYTES_MAX, "a handshake fits into its limit");
const _: () = assert!(
    u16::from_le_bytes([REFUSAL_MAGIC[0], REFUSAL_MAGIC[1]]) as usize > EARLY_BYTES_MAX,
    "a refusal begins with no length that an early message may have"
);

#[cfg(test)]
mod tests;
