//! Two words of this process by which another one proves that it can reach its memory.
//!
//! They are never freed: a peer may look at them at any moment until this process is gone. A process that
//! has executed another program has other words at these places, or none.

use std::sync::atomic::{AtomicU64, Ordering};

/// Holds a random number that only this process image has at this place.
static PROBE: AtomicU64 = AtomicU64::new(0);
/// Peers write here to find out whether they can; nobody reads it.
static SCRATCH: AtomicU64 = AtomicU64::new(0);

/// Where a process's two words are and what the first one holds, as its peers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeWords {
    /// The address of the word to be read.
    pub probe: u64,
    pub value: u64,
    /// The address of a word that may be written.
    pub scratch: u64,
}

impl ProbeWords {
    /// What is said by a process that does not want to be reached.
    pub const NONE: Self = Self { probe: 0, value: 0, scratch: 0 };

    /// Bytes of encoded probe words.
    pub const BYTES: usize = 24;

    /// This process's own; its value becomes `random` if it has none yet.
    pub fn of_this_process(random: u64) -> Self {
        // Peers read it by system calls, which order it by themselves.
        let value = match PROBE.compare_exchange(0, random.max(1), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => random.max(1),
            Err(value) => value,
        };
        let address = |word: &'static AtomicU64| word.as_ptr().expose_provenance() as u64;
        Self { probe: address(&PROBE), value, scratch: address(&SCRATCH) }
    }

    /// As bytes to be sent to a peer.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.probe, self.value, self.scratch]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What a peer sent. Any 24 bytes are probe words; whether they are true is found out by looking.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |place: usize| {
            let word = bytes[place * 8..][..8].try_into();
            u64::from_le_bytes(word.expect("the slice has eight bytes"))
        };
        Self { probe: word(0), value: word(1), scratch: word(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beacon_survives_its_bytes_and_never_changes_its_value() {
        let first = ProbeWords::of_this_process(77);
        assert_ne!(first.value, 0);
        assert_eq!(ProbeWords::of_this_process(78), first);
        assert_eq!(ProbeWords::decode(&first.encode()), first);
    }
}
