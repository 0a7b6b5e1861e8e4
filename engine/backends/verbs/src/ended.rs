//! The transport message of a side when a queue's life has ended, parsed as the untrusted bytes it is.

use crate::adapter::{TOKEN_BYTES, Token};

/// What this release speaks.
const VERSION: u8 = 1;

/// Bytes of the words, without a token.
pub const ENDED_BYTES: usize = 40;

/// Packets and queues are numbered in so many bits.
const NUMBER_BITS: u32 = 24;

/// No adapter gives this number to a queue of a session.
pub const NO_QUEUE: u32 = 0;

/// A life of a queue has ended, on the side that says so: nothing of it touches this side's memory any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEnded {
    /// The number of the rail.
    pub rail: u8,
    pub life: u32,
    /// How many messages were heard on the rail until its end.
    pub heard: u32,
    /// Which of the last of them named a counter that was gone: the lowest bit is the last one.
    pub gone: u64,
    /// How far the sender's log of withdrawals had come. Nothing goes again that was not compared with it.
    pub revision: u64,
    /// The number of the queue, for its next life; [`NO_QUEUE`] if there is none any more, so that the rail has no further life.
    pub queue: u32,
    /// The number of the first packet of its next life.
    pub first_packet: u32,
    /// What the queue is called by in its next life, if it is met by the connection manager and waits to be called.
    pub token: Option<Token>,
}

/// Why bytes are no such words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndedError {
    /// Too few or too many.
    #[error("{0} bytes are said of an ended queue, it takes {ENDED_BYTES}, or {TOKEN_BYTES} more")]
    Length(usize),
    /// Another release, or none.
    #[error("version {0} of the words about an ended queue, this is {VERSION}")]
    Version(u8),
    /// Bits that are to be zero are not.
    #[error("reserved bits are in use in the words about an ended queue")]
    Reserved,
}

impl QueueEnded {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ENDED_BYTES];
        let words = [self.life, self.heard, self.queue, self.first_packet];
        (bytes[0], bytes[1]) = (VERSION, self.rail);
        for (place, word) in bytes[4..20].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&self.gone.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.revision.to_le_bytes());
        bytes.extend(self.token.iter().flat_map(|token| token.0));
        bytes
    }

    /// Reads them. Any bytes are such words, or an error.
    pub fn parse(bytes: &[u8]) -> Result<Self, EndedError> {
        let wrong = EndedError::Length(bytes.len());
        let (bytes, token) = bytes.split_first_chunk::<ENDED_BYTES>().ok_or(wrong)?;
        let token = match token {
            [] => None,
            token => Some(Token(token.try_into().map_err(|_| wrong)?)),
        };
        if bytes[0] != VERSION {
            return Err(EndedError::Version(bytes[0]));
        }
        let number = |from: usize, len: usize| {
            bytes[from..from + len].iter().rev().fold(0, |word: u64, byte| word << 8 | u64::from(*byte))
        };
        let [life, heard, queue, first_packet] = [4, 8, 12, 16].map(|from| number(from, 4) as u32);
        let has_room = |number: u32| number < 1 << NUMBER_BITS;
        if number(2, 2) != 0 || number(20, 4) != 0 || !has_room(queue) || !has_room(first_packet) {
            return Err(EndedError::Reserved);
        }
        let (gone, revision) = (number(24, 8), number(32, 8));
        Ok(Self { rail: bytes[1], life, heard, gone, revision, queue, first_packet, token })
    }
}

/// The number of the first packet of a queue's next life: far from those of the last, so that nothing of it is taken for new.
pub(crate) fn next_first_packet(first_packet: u32) -> u32 {
    // Odd and large: all numbers come before one comes again.
    first_packet.wrapping_add(0x5a_17b3) & ((1 << NUMBER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(
            (rail, life, heard) in any::<(u8, u32, u32)>(),
            (gone, revision) in any::<(u64, u64)>(),
            queue in 0u32..1 << 24,
            first_packet in 0u32..1 << 24,
            token in any::<Option<[u8; TOKEN_BYTES]>>().prop_map(|token| token.map(Token)),
        ) {
            let ended = QueueEnded { rail, life, heard, gone, revision, queue, first_packet, token };
            let words = ended.encode();
            prop_assert_eq!(QueueEnded::parse(&words), Ok(ended));
            prop_assert_eq!(QueueEnded::parse(&words[1..]), Err(EndedError::Length(words.len() - 1)));
            prop_assert!(QueueEnded::parse(&[&words[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_bytes_are_words_or_an_error(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0), 1 => any::<u8>()], ENDED_BYTES - 1..ENDED_BYTES + 20),
            version in 0u8..3,
        ) {
            let mut bytes = bytes;
            bytes[0] = version;
            if let Ok(ended) = QueueEnded::parse(&bytes) {
                prop_assert_eq!(ended.encode(), bytes);
            }
        }
    }

    #[test]
    fn packets_of_one_life_are_far_from_those_of_the_next() {
        let mut first = 7;
        for _ in 0..1000 {
            let next = next_first_packet(first);
            assert!(next < 1 << 24);
            let far = next.wrapping_sub(first) & 0xff_ffff;
            assert!((1 << 20..(1 << 24) - (1 << 20)).contains(&far), "{first} and {next}");
            first = next;
        }
    }
}
