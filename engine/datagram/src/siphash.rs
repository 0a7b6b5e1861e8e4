//! SipHash-2-4, a keyed hash that is fast on short input: the tag of every packet.

/// The key of one direction of a connection.
#[derive(Clone, Copy)]
pub struct SipKey([u64; 2]);

impl SipKey {
    /// From 16 bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Self([word(0), word(8)])
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> u64 {
        let [k0, k1] = self.0;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            compress(&mut v, u64::from_le_bytes(*word));
        }
        // Put together in a register: bytes that are written one by one and read as one word wait for all that was written before.
        let last = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        compress(&mut v, last | (bytes.len() as u64) << 56);
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[inline]
fn compress(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    round(v);
    round(v);
    v[0] ^= word;
}

#[inline]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference vectors of the hash's authors: key 00 01 … 0f, input of 0, 1, … bytes 00 01 ….
    #[test]
    fn it_is_siphash() {
        let key = SipKey::new(std::array::from_fn(|byte| byte as u8));
        let input: Vec<u8> = (0..=63).collect();
        let expected: [(usize, u64); 6] = [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
            (63, 0x958a_324c_eb06_4572),
        ];
        for (len, tag) in expected {
            assert_eq!(key.tag(&input[..len]), tag, "{len} bytes");
        }
    }
}
