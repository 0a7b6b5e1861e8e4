//! What goes behind bytes, to say that they have landed: the payload of a note that is the receiving engine's own.
//!
//! Such a note's id has the engine's tag in its upper half, and a number of the sender's in its lower.

use penstock_core::limits::{LINE_BYTES, NOTE_INLINE_BYTES};
use serde::{Deserialize, Serialize};

use crate::codec::put;
use crate::transfers::id::TransferId;

/// The version of this payload.
const VERSION: u8 = 1;

/// The longest payload, in bytes: with every number as large as it can be.
pub const LANDING_BYTES_MAX: usize = 95;
// A landing shares rings and their credits with the notes of applications: it takes a record's first line and one more
// at most.
const _: () = assert!(LANDING_BYTES_MAX <= NOTE_INLINE_BYTES + LINE_BYTES);

/// The id of a note that tells the engine with this tag of a landing.
pub const fn note_id(tag: u64, number: u64) -> u128 {
    (tag as u128) << 64 | number as u128
}

/// The tag in the id of a note.
pub const fn tag_of(note: u128) -> u64 {
    (note >> 64) as u64
}

/// Bytes of a transfer have landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalNote {
    /// The transfer.
    #[serde(skip)]
    pub transfer: TransferId,
    /// The rank of the source that has sent them.
    pub source: u16,
    /// The rank of the sink that they are for.
    pub rank: u16,
    /// Which of that rank's landings it is, of all that a seal counts; from 0, each once.
    pub number: u64,
    /// The leg.
    pub leg: u32,
    /// The layer, or none if they are of all layers.
    pub layer: Option<u32>,
    /// The first token of the leg. A leg for which another rank had less room ends earlier than was granted, and the
    /// next one begins there.
    pub leg_from: u64,
    /// How many tokens the leg takes, unless the source has fewer left.
    pub leg_tokens: u64,
    /// The first token that has landed.
    pub from: u64,
    /// How many tokens.
    pub tokens: u64,
    /// How many tokens there are in all, if the source knows.
    pub total: Option<u64>,
}

/// Why bytes are no landing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LandingError {
    /// There are none.
    #[error("a note with this engine's own tag says nothing; the other engine is broken")]
    Empty,
    /// There are too many.
    #[error(
        "a landing of {0} bytes is longer than the {LANDING_BYTES_MAX} that any can be; the other engine is broken"
    )]
    TooLong(usize),
    /// It is written in another version.
    #[error("a landing is written in version {0}, and version {VERSION} is spoken here; run releases that share one")]
    Version(u8),
    /// It does not decode, or goes on after its end.
    #[error("a landing does not decode; the other engine is broken")]
    Body,
}

impl ArrivalNote {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LANDING_BYTES_MAX);
        bytes.push(VERSION);
        bytes.extend_from_slice(self.transfer.as_bytes());
        put(&mut bytes, self);
        bytes
    }

    /// Reads a payload.
    pub fn decode(bytes: &[u8]) -> Result<Self, LandingError> {
        let (version, body) = bytes.split_first().ok_or(LandingError::Empty)?;
        if bytes.len() > LANDING_BYTES_MAX {
            return Err(LandingError::TooLong(bytes.len()));
        }
        if *version != VERSION {
            return Err(LandingError::Version(*version));
        }
        let (transfer, rest) = body.split_first_chunk().ok_or(LandingError::Body)?;
        match postcard::take_from_bytes(rest) {
            Ok((landing, [])) => Ok(Self { transfer: TransferId::from_bytes(*transfer), ..landing }),
            _ => Err(LandingError::Body),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LARGEST: ArrivalNote = ArrivalNote {
        transfer: TransferId::from_bytes([0xff; 16]),
        source: u16::MAX,
        rank: u16::MAX,
        number: u64::MAX,
        leg: u32::MAX,
        layer: Some(u32::MAX),
        leg_from: u64::MAX,
        leg_tokens: u64::MAX,
        from: u64::MAX,
        tokens: u64::MAX,
        total: Some(u64::MAX),
    };

    #[test]
    fn the_largest_is_as_long_as_is_said() {
        assert_eq!(LARGEST.encode().len(), LANDING_BYTES_MAX);
        assert_eq!(ArrivalNote::decode(&LARGEST.encode()), Ok(LARGEST));
    }

    #[test]
    fn what_is_no_landing_is_refused_with_the_reason() {
        let mut bytes = LARGEST.encode();
        assert_eq!(ArrivalNote::decode(&[]), Err(LandingError::Empty));
        assert_eq!(ArrivalNote::decode(&bytes[..bytes.len() - 1]), Err(LandingError::Body));
        bytes.push(0);
        assert_eq!(ArrivalNote::decode(&bytes), Err(LandingError::TooLong(LANDING_BYTES_MAX + 1)));
        bytes.truncate(20);
        bytes[0] = 2;
        assert_eq!(ArrivalNote::decode(&bytes), Err(LandingError::Version(2)));
        let mut short = ArrivalNote { total: None, ..LARGEST }.encode();
        short.push(7);
        assert_eq!(ArrivalNote::decode(&short), Err(LandingError::Body), "something follows");
    }

    #[test]
    fn a_note_carries_the_tag_of_whom_it_tells() {
        assert_eq!(note_id(0xa5, 7), 0xa5_0000_0000_0000_0007);
        assert_eq!(tag_of(note_id(u64::MAX, 3)), u64::MAX);
    }

    proptest! {
        #[test]
        fn every_landing_is_read_as_it_was_written(
            (transfer, source, rank) in any::<([u8; 16], u16, u16)>(),
            (number, from, tokens, total) in any::<(u64, u64, u64, Option<u64>)>(),
            (leg, layer, leg_from, leg_tokens) in any::<(u32, Option<u32>, u64, u64)>(),
        ) {
            let transfer = TransferId::from_bytes(transfer);
            let landing =
                ArrivalNote { transfer, source, rank, number, leg, layer, leg_from, leg_tokens, from, tokens, total };
            prop_assert!(landing.encode().len() <= LANDING_BYTES_MAX);
            prop_assert_eq!(ArrivalNote::decode(&landing.encode()), Ok(landing));
        }

        #[test]
        fn any_bytes_are_a_landing_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..100), is_ours: bool) {
            let mut bytes = bytes;
            if let Some(version) = bytes.first_mut().filter(|_| is_ours) {
                *version = VERSION;
            }
            if let Ok(landing) = ArrivalNote::decode(&bytes) {
                prop_assert_eq!(ArrivalNote::decode(&landing.encode()), Ok(landing));
            }
        }
    }
}
