//! Checksums of payload, for carriers that do not vouch for it, and what becomes of an operation whose payload is wrong again and
//! again.

/// The CRC32C (Castagnoli) of these bytes, by the processor's own instruction where it has one.
pub use crc32c::crc32c;

/// So often a part may come with other bytes than its checksum says. A way that spoils packets by chance does not spoil one so often:
/// its source is changed while it is sent, or something on the way changes just these bytes.
const MISMATCHES_MAX: u8 = 8;

/// How often one part of an operation came with other bytes than its checksum says. Others are not looked at meanwhile: a part that
/// never comes right is the one that is left.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mismatches {
    part: u8,
    count: u8,
    /// The packet that was counted last: one that the network repeats counts once.
    number: u64,
}

impl Mismatches {
    /// Counts a part that came wrong in a packet, of an operation of which these parts are here. Returns whether it came wrong too often.
    pub(crate) fn count(&mut self, part: u8, number: u64, here: u64) -> bool {
        if self.count == 0 || here >> self.part & 1 == 1 {
            *self = Self { part, count: 0, number: 0 };
        }
        if self.part == part && number > self.number {
            (self.count, self.number) = (self.count.saturating_add(1), number);
        }
        self.count >= MISMATCHES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_castagnoli_crc() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(b""), 0);
    }

    /// One bit at a time, as the polynomial is defined.
    fn by_bits(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
    }

    #[test]
    fn it_is_the_same_at_every_length_and_place() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for len in (0..300).chain([1_392, 4_095, 4_096, 8_191, 24_577, 65_507]) {
            let start = len % 9;
            assert_eq!(
                crc32c(&bytes[start..start + len]),
                by_bits(&bytes[start..start + len]),
                "{len} bytes at {start}"
            );
        }
    }

    #[test]
    fn one_part_is_counted_until_it_is_here_and_each_packet_once() {
        let mut mismatches = Mismatches::default();
        for number in 1..u64::from(MISMATCHES_MAX) {
            assert!(!mismatches.count(3, number, 0));
            assert!(!mismatches.count(3, number, 0), "the network repeats it");
            assert!(!mismatches.count(5, number + 100, 0), "another part");
        }
        assert!(mismatches.count(3, 50, 0));
        let mut mismatches = Mismatches::default();
        assert!(!mismatches.count(3, 1, 0));
        for number in 2..1 + u64::from(MISMATCHES_MAX) {
            assert!(!mismatches.count(5, number, 1 << 3), "part 3 has come right");
        }
        assert!(mismatches.count(5, 50, 1 << 3));
    }
}
