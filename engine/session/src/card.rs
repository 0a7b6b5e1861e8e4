//! The portable descriptor of an engine: bytes that can travel by any means.
//!
//! ```text
//! "PNSC" | version u16 | body (postcard) | checksum u64 (FNV-1a over everything before it)
//! ```
//!
//! A card says where an engine is, not what it offers: regions are announced inside the session,
//! so a card stays valid while regions come and go, and ends with the engine's epoch.

use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"PNSC";
const VERSION: u16 = 1;
const CHECKSUM_BYTES: usize = 8;
/// The longest card, in bytes.
pub const CARD_BYTES_MAX: usize = 4096;

/// Where an engine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The engine's name.
    pub name: String,
    /// The engine's epoch.
    pub epoch: u64,
    /// Which host it runs on (a digest of the kernel's boot id).
    pub host: u64,
    /// The path of its rendezvous socket.
    pub socket: String,
}

/// Why bytes are not a card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Not a card at all.
    #[error("these bytes are not an engine's descriptor; pass what `Engine::descriptor` gave, unchanged")]
    NotACard,
    /// A version this release does not read.
    #[error("descriptor version {0} is not read here (this release reads {VERSION})")]
    Version(u16),
    /// Damaged on the way.
    #[error("the descriptor was damaged on its way (its checksum does not fit)")]
    Damaged,
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    digest.to_le_bytes()
}

impl Card {
    /// The card as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend(postcard::to_stdvec(self).expect("plain data encodes into a growing vector"));
        bytes.extend(checksum(&bytes));
        bytes
    }

    /// The card in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CardError> {
        let head = MAGIC.len() + 2;
        if bytes.len() < head + CHECKSUM_BYTES || bytes.len() > CARD_BYTES_MAX || bytes[..4] != MAGIC {
            return Err(CardError::NotACard);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(CardError::Version(version));
        }
        let (signed, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if checksum(signed) != sum {
            return Err(CardError::Damaged);
        }
        match postcard::take_from_bytes(&signed[head..]) {
            Ok((card, [])) => Ok(card),
            _ => Err(CardError::Damaged),
        }
    }
}

#[cfg(test)]
mod tests;
