//! Records as this release writes them into a ring, byte for byte, as files that do not change any more.
//!
//! Two engines share a ring only if their layouts have the same fingerprint, so a difference here needs a
//! new one and a new folder. Only before a release may `PENSTOCK_UPDATE_VECTORS=1` write the files
//! anew; the test then fails and says which.

use std::path::PathBuf;

use penstock_core::NoteId;
use penstock_core::limits::{LINE_BYTES, NOTE_LINES_MAX};
use penstock_ring::RingLine;
use penstock_transport::record::{RecordHead, RecordKind, parse, unpack, write};

/// The release whose records these are.
const RELEASE: &str = "0.1";

struct Vector {
    name: &'static str,
    about: &'static str,
    kind: RecordKind,
    sequence: u64,
    id: NoteId,
    payload: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    let id = NoteId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    let vector = |name, about, kind, sequence, bytes: u8| Vector {
        name,
        about,
        kind,
        sequence,
        id,
        payload: (1..=bytes).collect(),
    };
    vec![
        vector("note-empty", "a note without payload, the first of its ring", RecordKind::Note, 0, 0),
        vector("note-inline", "a note that fills its first line", RecordKind::Note, 1, 32),
        vector("note-two-lines", "a note of one byte more than fits in its first line", RecordKind::Note, 2, 33),
        vector("note-three-lines", "a note that ends inside a word", RecordKind::Note, u64::MAX, 100),
        vector("hand-over", "a note that goes with a handle", RecordKind::HandOver, 3, 5),
    ]
}

impl Vector {
    fn path(&self) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(RELEASE);
        folder.join(format!("{}.hex", self.name))
    }

    fn lines(&self) -> Vec<RingLine> {
        let mut lines = [RingLine::default(); NOTE_LINES_MAX];
        let count = write(self.kind, self.sequence, self.id, &self.payload, &mut lines);
        lines[..count].to_vec()
    }

    /// One line of text for each line of the record, in the order of its bytes in memory.
    fn text(&self) -> String {
        let bytes = |line: &RingLine| -> String {
            line.0.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
        };
        let lines: Vec<String> = self.lines().iter().map(bytes).collect();
        format!("# {}\n{}\n", self.about, lines.join("\n"))
    }
}

fn lines_of(text: &str) -> Vec<RingLine> {
    let byte = |line: &str, place: usize| u8::from_str_radix(&line[2 * place..2 * place + 2], 16).unwrap();
    let line = |text: &str| {
        assert_eq!(text.len(), 2 * LINE_BYTES);
        let word = |word: usize| u64::from_le_bytes(std::array::from_fn(|place| byte(text, 8 * word + place)));
        RingLine(std::array::from_fn(word))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

/// Writes what differs, and fails to say so.
fn update_if_asked() {
    if std::env::var("PENSTOCK_UPDATE_VECTORS").as_deref() != Ok("1") {
        return;
    }
    let is_stale = |vector: &Vector| std::fs::read_to_string(vector.path()).ok() != Some(vector.text());
    let stale: Vec<Vector> = vectors().into_iter().filter(is_stale).collect();
    for vector in &stale {
        std::fs::create_dir_all(vector.path().parent().unwrap()).unwrap();
        std::fs::write(vector.path(), vector.text()).unwrap();
    }
    let names: Vec<&str> = stale.iter().map(|vector| vector.name).collect();
    assert!(names.is_empty(), "written anew, which changes the layout: {names:?}; now run without the variable");
}

#[test]
fn records_are_written_and_read_as_they_were() {
    update_if_asked();
    for vector in vectors() {
        let Vector { name, kind, sequence, id, ref payload, .. } = vector;
        let text = std::fs::read_to_string(vector.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = lines_of(&text);
        assert_eq!(lines, vector.lines(), "{name} is written differently now");
        let head = RecordHead { kind, lines: lines.len(), bytes: payload.len(), id };
        assert_eq!(parse(&lines[0], sequence), Ok(head), "{name}");
        let mut found = vec![0; payload.len()];
        lines.iter().enumerate().for_each(|(place, line)| unpack(place, line, &mut found));
        assert_eq!(&found, payload, "{name}");
    }
}
