//! What is in the tokens, and digests of it.

use blake2::{Blake2s256, Digest};

/// Fills the bytes of one token in one buffer. They depend on all of it, so that none passes for another one.
pub(crate) fn fill(stamp: u64, buffer: usize, token: u64, bytes: &mut [u8]) {
    let mut word = mixed(stamp ^ mixed((buffer as u64) << 40 | token));
    for piece in bytes.chunks_mut(8) {
        word = mixed(word);
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

/// Steps of a generator whose every step is a bijection.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The digest of several buffers, in their order.
pub(crate) fn digest(buffers: &[Vec<u8>]) -> String {
    let mut digest = Blake2s256::new();
    for buffer in buffers {
        digest.update((buffer.len() as u64).to_le_bytes());
        digest.update(buffer);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name of the usual form for a request, from a number.
pub(crate) fn uuid(number: u64) -> String {
    let bits = u128::from(mixed(number)) << 64 | u128::from(mixed(!number));
    // Version 4, of the usual variant.
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let text = format!("{bits:032x}");
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use penstock::flows::TransferId;

    use super::{digest, fill, uuid};

    #[test]
    fn names_of_requests_can_be_minted_from() {
        assert_ne!(uuid(1), uuid(2));
        let minted = |attempt| TransferId::mint(&uuid(7), attempt, 0).unwrap();
        assert_eq!(minted(0).to_string(), format!("xfer-{}", uuid(7)));
        assert_ne!(minted(0), minted(1));
        assert_eq!(uuid(7).as_bytes()[14], b'4');
    }

    #[test]
    fn a_digest_tells_any_byte_and_any_place() {
        let token = |stamp, buffer, token| {
            let mut bytes = vec![0; 21];
            fill(stamp, buffer, token, &mut bytes);
            bytes
        };
        assert_eq!(token(1, 2, 3), token(1, 2, 3));
        for other in [token(2, 2, 3), token(1, 3, 3), token(1, 2, 4)] {
            assert_ne!(digest(&[token(1, 2, 3)]), digest(&[other]));
        }
        assert_ne!(digest(&[vec![1, 2], vec![3]]), digest(&[vec![1], vec![2, 3]]));
    }
}
