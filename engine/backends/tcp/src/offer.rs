//! What one engine tells the other before they move anything, checked before it is used.
//!
//! ```text
//! version u16 | streams u16 | fingerprint of the limits u32 | workers u32
//! ```

use penstock_core::limits::WORKERS_MAX;
use penstock_transport::JoinError;

use crate::wire::{FINGERPRINT, VERSION};

/// The most streams of one channel.
pub const STREAMS_MAX: usize = 16;

const BYTES: usize = 12;

/// The offer of an engine with so many workers that wants so many streams for each channel.
pub fn blob(streams: usize, workers: usize) -> Vec<u8> {
    let mut blob = Vec::with_capacity(BYTES);
    blob.extend(VERSION.to_le_bytes());
    blob.extend((streams.min(STREAMS_MAX) as u16).to_le_bytes());
    blob.extend(FINGERPRINT.to_le_bytes());
    blob.extend((workers as u32).to_le_bytes());
    blob
}

/// How many streams each channel has, if both sides speak the same: as many as both want.
pub fn accept(blob: &[u8], streams: usize, workers: usize) -> Result<usize, JoinError> {
    let &[v0, v1, s0, s1, f0, f1, f2, f3, w0, w1, w2, w3] = blob else {
        return Err(JoinError::Malformed("it has another length"));
    };
    if u16::from_le_bytes([v0, v1]) != VERSION {
        return Err(JoinError::Malformed("its streams have another version: run the same release on both hosts"));
    }
    if u32::from_le_bytes([f0, f1, f2, f3]) != FINGERPRINT {
        return Err(JoinError::Malformed("its streams have other limits: run the same release on both hosts"));
    }
    if u32::from_le_bytes([w0, w1, w2, w3]) as usize != workers || workers == 0 || workers > WORKERS_MAX {
        return Err(JoinError::Malformed("it does not say as many workers as its greeting"));
    }
    let theirs = u16::from_le_bytes([s0, s1]) as usize;
    if theirs == 0 || theirs > STREAMS_MAX {
        return Err(JoinError::Malformed("it wants an impossible number of streams"));
    }
    Ok(theirs.min(streams.clamp(1, STREAMS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_accepted_by_who_speaks_the_same() {
        assert_eq!(accept(&blob(4, 2), 3, 2).unwrap(), 3);
        assert_eq!(accept(&blob(1, 16), 16, 16).unwrap(), 1);
        assert_eq!(accept(&blob(99, 1), 99, 1).unwrap(), STREAMS_MAX);
    }

    #[test]
    fn what_was_changed_is_refused() {
        let good = blob(4, 2);
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place] ^= 0x80;
            assert!(accept(&bad, 4, 2).is_err(), "byte {place}");
        }
        assert!(accept(&good[..11], 4, 2).is_err());
        assert!(accept(&blob(0, 2), 4, 2).is_err());
        assert!(accept(&good, 4, 3).is_err());
    }
}
