//! What is in the blocks, and whether it is.

use penstock::Window;
use penstock::memory::AccessError;
use serde::{Deserialize, Serialize};

use super::layout::{BLOCK_BYTES, mixed};

/// Marks what was written in one test, so that no leftover of another one passes for it.
pub(crate) type Stamp = u64;

/// What a block should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeros: nothing has landed here.
    Clear,
    /// The pattern of this block number.
    Of(Stamp, u32),
}

/// The first byte that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wrong {
    /// The block in which it is.
    pub(crate) block: u32,
    /// Its place within the block.
    pub(crate) byte: usize,
    /// What should be there.
    pub(crate) expected: u8,
    /// What is.
    pub(crate) found: u8,
}

/// Writes the pattern into every block.
pub(crate) fn fill(window: &Window, stamp: Stamp) -> Result<(), AccessError> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    for block in 0..blocks(window) {
        expected(Content::Of(stamp, block), &mut bytes);
        window.write_from(u64::from(block) * BLOCK_BYTES, &bytes)?;
    }
    Ok(())
}

/// Looks at every byte of every block.
pub(crate) fn first_wrong(window: &Window, content: impl Fn(u32) -> Content) -> Result<Option<Wrong>, AccessError> {
    let mut found = vec![0; BLOCK_BYTES as usize];
    let mut should = vec![0; BLOCK_BYTES as usize];
    for block in 0..blocks(window) {
        window.read_into(u64::from(block) * BLOCK_BYTES, &mut found)?;
        expected(content(block), &mut should);
        if found != should {
            let byte = found.iter().zip(&should).position(|(found, should)| found != should).unwrap_or(0);
            return Ok(Some(Wrong { block, byte, expected: should[byte], found: found[byte] }));
        }
    }
    Ok(None)
}

/// Changes one byte in the middle of a block.
pub(crate) fn flip(window: &Window, block: u32) -> Result<(), AccessError> {
    let at = u64::from(block) * BLOCK_BYTES + BLOCK_BYTES / 2;
    let mut byte = [0];
    window.read_into(at, &mut byte)?;
    window.write_from(at, &[byte[0] ^ 1])
}

/// The first byte of a block that is not zero.
pub(crate) fn first_set(window: &Window, block: u32) -> Result<Option<Wrong>, AccessError> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    window.read_into(u64::from(block) * BLOCK_BYTES, &mut bytes)?;
    let byte = bytes.iter().position(|&byte| byte != 0);
    Ok(byte.map(|byte| Wrong { block, byte, expected: 0, found: bytes[byte] }))
}

fn blocks(window: &Window) -> u32 {
    (window.len() / BLOCK_BYTES) as u32
}

fn expected(content: Content, bytes: &mut [u8]) {
    let Content::Of(stamp, block) = content else { return bytes.fill(0) };
    let mut word = mixed(stamp << 32 | u64::from(block));
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use penstock::HostMemory;

    use super::*;

    #[test]
    fn one_flipped_byte_is_found() {
        let memory = HostMemory::from_vec(vec![0; 4 * BLOCK_BYTES as usize]).unwrap();
        let window = memory.window();
        assert_eq!(first_wrong(window, |_| Content::Clear), Ok(None));
        fill(window, 7).unwrap();
        assert_eq!(first_wrong(window, |block| Content::Of(7, block)), Ok(None));
        assert!(first_wrong(window, |block| Content::Of(8, block)).unwrap().is_some());
        flip(window, 2).unwrap();
        let wrong = first_wrong(window, |block| Content::Of(7, block)).unwrap().unwrap();
        assert_eq!((wrong.block, wrong.byte, wrong.expected), (2, BLOCK_BYTES as usize / 2, wrong.found ^ 1));
    }
}
