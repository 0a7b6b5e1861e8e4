//! Notes and their form in a ring.
//!
//! A record is one line of header, with the first 32 bytes of payload, and as many further lines as the rest
//! of the payload needs:
//!
//! ```text
//! word 0   magic 16 | kind 8 | lines 8 | payload bytes 16 | reserved 16
//! word 1   sequence: records of this ring since its start
//! word 2–3 the note's id, low word first
//! word 4–7 the first 32 bytes of payload
//! ```
//!
//! The peer can write anything into a ring at any time. So a line is copied out once and then parsed;
//! every field is checked; the sequence makes a replayed or skipped record visible.

use penstock_core::NoteId;
use penstock_core::limits::{NOTE_BYTES_MAX, NOTE_INLINE_BYTES, NOTE_LINES_MAX};
use penstock_ring::RingLine;

const MAGIC: u64 = 0x5053;
const LINE_BYTES: usize = penstock_core::limits::LINE_BYTES;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    Note,
    /// A notification that goes with a handle handed over beside the ring.
    HandOver,
}

/// A record's header, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    pub kind: RecordKind,
    /// Lines of the whole record, at least one.
    pub lines: usize,
    pub bytes: usize,
    pub id: NoteId,
}

/// Why a line is not a record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not the mark of a record.
    #[error("a ring holds {0:#06x} where a record should begin")]
    Magic(u16),
    /// A kind nobody writes.
    #[error("record kind {0} is not known")]
    Kind(u8),
    /// More payload than allowed.
    #[error("a record of {0} bytes is longer than the {NOTE_BYTES_MAX} allowed")]
    TooLong(u16),
    /// Lines and bytes do not fit each other.
    #[error("a record of {bytes} bytes takes {expected} lines, this one says {lines}")]
    Lines {
        lines: u8,
        /// What its bytes need.
        expected: usize,
        bytes: u16,
    },
    /// Reserved bits are in use.
    #[error("reserved bits of a record are in use")]
    Reserved,
    /// A record was skipped or repeated.
    #[error("record {found} stands where record {expected} should")]
    Sequence {
        /// The number that should stand here.
        expected: u64,
        /// The number that stands here.
        found: u64,
    },
}

/// Lines that a payload of so many bytes takes.
pub const fn lines_for(bytes: usize) -> usize {
    1 + bytes.saturating_sub(NOTE_INLINE_BYTES).div_ceil(LINE_BYTES)
}

/// Writes a record into `lines` and answers how many it took.
///
/// # Panics
/// If the payload is longer than [`NOTE_BYTES_MAX`]; the caller has checked that.
pub fn write(
    kind: RecordKind,
    sequence: u64,
    id: NoteId,
    payload: &[u8],
    lines: &mut [RingLine; NOTE_LINES_MAX],
) -> usize {
    assert!(payload.len() <= NOTE_BYTES_MAX, "the length was checked when the note was submitted");
    let count = lines_for(payload.len());
    let kind = match kind {
        RecordKind::Note => 1,
        RecordKind::HandOver => 2,
    };
    let (first, rest) = payload.split_at(payload.len().min(NOTE_INLINE_BYTES));
    let head = &mut lines[0].0;
    head[0] = MAGIC | kind << 16 | (count as u64) << 24 | (payload.len() as u64) << 32;
    head[1] = sequence;
    head[2] = id.0 as u64;
    head[3] = (id.0 >> 64) as u64;
    pack(first, &mut head[4..8]);
    for (chunk, line) in rest.chunks(LINE_BYTES).zip(&mut lines[1..]) {
        pack(chunk, &mut line.0);
    }
    count
}

/// Reads a record's header.
pub fn parse(line: &RingLine, sequence: u64) -> Result<RecordHead, RecordError> {
    let word = line.0[0];
    let (magic, kind, lines, bytes) = (word as u16, (word >> 16) as u8, (word >> 24) as u8, (word >> 32) as u16);
    if u64::from(magic) != MAGIC {
        return Err(RecordError::Magic(magic));
    }
    if word >> 48 != 0 {
        return Err(RecordError::Reserved);
    }
    let kind = match kind {
        1 => RecordKind::Note,
        2 => RecordKind::HandOver,
        other => return Err(RecordError::Kind(other)),
    };
    if usize::from(bytes) > NOTE_BYTES_MAX {
        return Err(RecordError::TooLong(bytes));
    }
    let expected = lines_for(bytes.into());
    if usize::from(lines) != expected {
        return Err(RecordError::Lines { lines, expected, bytes });
    }
    if line.0[1] != sequence {
        return Err(RecordError::Sequence { expected: sequence, found: line.0[1] });
    }
    let id = NoteId(u128::from(line.0[2]) | u128::from(line.0[3]) << 64);
    Ok(RecordHead { kind, lines: expected, bytes: bytes.into(), id })
}

/// Copies the payload bytes of line `index` of a record to where they belong in `payload`.
pub fn unpack(index: usize, line: &RingLine, payload: &mut [u8]) {
    let (start, words) = match index {
        0 => (0, &line.0[4..8]),
        index => (NOTE_INLINE_BYTES + (index - 1) * LINE_BYTES, &line.0[..]),
    };
    let Some(target) = payload.get_mut(start..) else { return };
    for (chunk, word) in target.chunks_mut(8).zip(words) {
        let bytes = word.to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

fn pack(bytes: &[u8], words: &mut [u64]) {
    for (chunk, word) in bytes.chunks(8).zip(words) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(padded);
    }
}
