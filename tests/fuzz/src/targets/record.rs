//! Notes as they lie in a ring.

use penstock_core::limits::{LINE_BYTES, NOTE_BYTES_MAX, NOTE_LINES_MAX};
use penstock_ring::RingLine;
use penstock_transport::record::{lines_for, parse, unpack, write};

/// Any lines are a record or a typed error. A record's head never promises more than the largest note and
/// has one form only, and what was read once is written to lines that read the same.
pub fn run(input: &[u8]) {
    let lines = lines_of(input);
    let Some(first) = lines.first() else { return };
    let _ = parse(first, 0);
    // The sequence is the reader's own: with the right one the rest is looked at too.
    let sequence = first.0[1];
    let Ok(head) = parse(first, sequence) else { return };
    assert!(head.bytes <= NOTE_BYTES_MAX && head.lines <= NOTE_LINES_MAX);
    assert_eq!(head.lines, lines_for(head.bytes));

    let mut payload = vec![0; head.bytes];
    for (place, line) in lines.iter().enumerate().take(head.lines) {
        unpack(place, line, &mut payload);
    }
    let mut again = [RingLine::default(); NOTE_LINES_MAX];
    assert_eq!(write(head.kind, sequence, head.id, &payload, &mut again), head.lines);
    assert_eq!(again[0].0[..4], first.0[..4], "one head has two forms");
    let mut found = vec![0xff; head.bytes];
    for (place, line) in again.iter().enumerate() {
        unpack(place, line, &mut found);
    }
    assert_eq!(found, payload, "a payload changes on its way");
}

fn lines_of(input: &[u8]) -> Vec<RingLine> {
    let line = |chunk: &[u8]| {
        let mut line = RingLine::default();
        for (bytes, word) in chunk.chunks(8).zip(&mut line.0) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        line
    };
    input.chunks(LINE_BYTES).map(line).collect()
}
