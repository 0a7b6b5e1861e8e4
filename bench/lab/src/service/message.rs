//! What can be asked, what is answered, and how both become notes.
//!
//! The id of a note says what it is and to which request it belongs; its bytes are one JSON value, or part of one:
//!
//! ```text
//! id     "penstock" u64 | kind u32 | number u32
//! kind   1 a request   2 part of an answer   3 its last part   4 bytes to send back   5 bytes sent back
//! ```

use std::fmt;

use penstock::NoteId;
use penstock::config::PagesChoice;
use penstock::limits::NOTE_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::layout::LayoutSpec;
use crate::pattern::Mismatch;

/// The version of this protocol. Fields and requests are added without changing it.
pub const VERSION: u32 = 1;
/// Longer answers are refused: the longest is a doctor's report, some tens of KiB.
pub const ANSWER_BYTES_MAX: usize = 512 << 10;

const MARK: u128 = 0x7065_6e73_746f_636b; // "penstock"

/// What a note is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request, whole.
    Request,
    /// A part of an answer; more follows.
    Part,
    /// The last part of an answer.
    Last,
    /// Bytes to be sent back as they are.
    Echo,
    /// Bytes that were sent back.
    Echoed,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Request, Self::Part, Self::Last, Self::Echo, Self::Echoed];

    const fn code(self) -> u128 {
        match self {
            Self::Request => 1,
            Self::Part => 2,
            Self::Last => 3,
            Self::Echo => 4,
            Self::Echoed => 5,
        }
    }

    /// The id of a note of this kind, about the request of this number.
    pub const fn id(self, number: u32) -> NoteId {
        NoteId(MARK << 64 | self.code() << 32 | number as u128)
    }

    /// What a note is and to which request it belongs, if it is one of this protocol.
    pub fn of(id: NoteId) -> Option<(Self, u32)> {
        let kind = Self::ALL.into_iter().find(|kind| kind.code() == id.0 >> 32 & 0xffff_ffff)?;
        (id.0 >> 64 == MARK).then_some((kind, id.0 as u32))
    }
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Who answers, and what there is.
    About,
    /// Make a pool.
    Pool {
        /// Its bytes.
        bytes: u64,
        /// Its pages.
        pages: PagesChoice,
    },
    /// Write the pattern over a pool.
    Fill {
        /// The pool's label.
        pool: String,
        /// Where the blocks lie, and what the pattern begins with.
        layout: LayoutSpec,
    },
    /// Overwrite a pool.
    Wipe {
        /// The pool's label.
        pool: String,
    },
    /// Look whether the pattern has arrived in every set of blocks.
    Check {
        /// The pool's label.
        pool: String,
        /// Where the blocks lie, and what the pattern begins with.
        layout: LayoutSpec,
        /// Only in so many bytes of the blocks, set after set and layer after layer; in all where absent.
        #[serde(default)]
        first_bytes: Option<u64>,
        /// Where those begin. Behind the last block the first one follows again.
        #[serde(default)]
        from_byte: u64,
    },
    /// Take a pool back.
    Drop { pool: String },
    /// How much CPU time the process has used.
    Cpu,
    /// What part of the server's CPU time is this peer's: the first one begins, more of them say how far it has come, so that
    /// the time can be dealt out among all that measure by the bytes they move.
    Charge {
        /// Bytes that it has moved since the first one.
        moved: u64,
        /// Whether it has ended.
        is_last: bool,
    },
    /// What the doctor finds on this host.
    Doctor,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Who answers.
    About(About),
    /// A pool was made.
    Pool {
        /// Its label.
        label: String,
        /// The label of the counter that counts arrivals in it.
        counter: String,
        /// Its bytes.
        bytes: u64,
    },
    /// It is done.
    Done,
    /// All bytes that were looked at are right.
    Checked {
        /// How many.
        bytes: u64,
    },
    /// Not all are.
    Wrong(Mismatch),
    /// CPU time that the process has used.
    Cpu {
        /// In nanoseconds.
        nanos: u64,
    },
    /// A report, as the doctor's own JSON form.
    Doctor(serde_json::Value),
    /// It was not done.
    Refused(Refusal),
}

/// Who answers, and what there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The version of this protocol.
    pub protocol: u32,
    /// Its release of Penstock.
    pub release: String,
    /// Its engine's name.
    pub name: String,
    /// Its processor, as its kernel calls it.
    pub cpu: String,
    /// Cores it may run on.
    pub cores: usize,
    /// The release of its kernel.
    pub kernel: String,
    /// Its host's memory, in GiB.
    pub memory_gib: f64,
    /// The mark of its machine, by which one that is called by its own address is known.
    #[serde(default)]
    pub machine: Option<u64>,
    /// Bytes of pools that it makes for all peers together.
    pub pool_bytes_max: u64,
    /// The transports it allows.
    pub transports: Vec<String>,
    /// Its address at a device of DPDK, if that carries its datagrams.
    #[serde(default)]
    pub dpdk: Option<String>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The request is not one that this release knows.
    NotUnderstood {
        /// What was wrong with it.
        why: String,
    },
    /// There are already as many requests of this peer, or as many peers, as are taken.
    Busy {
        /// What there is too much of.
        what: String,
    },
    /// That much memory is not made for others.
    TooMuchMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that are left of what is.
        left: u64,
    },
    /// This peer has no pool of this label.
    NoSuchPool {
        /// The label.
        label: String,
    },
    /// The layout does not fit into the pool, or is none.
    Layout {
        /// Why.
        why: String,
    },
    /// It was tried and did not go well.
    Failed {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUnderstood { why } => {
                write!(f, "it does not understand the request ({why}); run the same release on both hosts")
            }
            Self::Busy { what } => write!(f, "it has enough to do ({what}); try again when others have ended"),
            Self::TooMuchMemory { asked, left } => write!(
                f,
                "it has {} MiB left for others and was asked for {} MiB; ask for less (--pool-mib), or serve with more \
                 (--memory-mib)",
                left >> 20,
                asked.div_ceil(1 << 20)
            ),
            Self::NoSuchPool { label } => write!(f, "it has no pool `{label}` of this session"),
            Self::Layout { why } => write!(f, "it cannot use the layout: {why}"),
            Self::Failed { why } => f.write_str(why),
        }
    }
}

/// The notes that one answer takes, in their order.
pub(super) fn notes_of(number: u32, answer: &Answer) -> Vec<(NoteId, Vec<u8>)> {
    let whole = serde_json::to_vec(answer).unwrap_or_default();
    let whole = if whole.is_empty() || whole.len() > ANSWER_BYTES_MAX { too_long(whole.len()) } else { whole };
    let count = whole.len().div_ceil(NOTE_BYTES_MAX);
    let part = |(place, bytes): (usize, &[u8])| {
        let kind = if place + 1 == count { Kind::Last } else { Kind::Part };
        (kind.id(number), bytes.to_vec())
    };
    whole.chunks(NOTE_BYTES_MAX).enumerate().map(part).collect()
}

fn too_long(bytes: usize) -> Vec<u8> {
    let why = format!("its answer of {bytes} bytes cannot be sent");
    serde_json::to_vec(&Answer::Refused(Refusal::Failed { why })).unwrap_or_default()
}

/// The request in these bytes.
pub(super) fn request_of(bytes: &[u8]) -> Result<Request, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| Refusal::NotUnderstood { why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_a_note_is() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.id(u32::MAX)), Some((kind, u32::MAX)));
        }
        let near = [0, 1, u128::MAX, MARK << 64, MARK << 64 | 6 << 32, (MARK + 1) << 64 | 1 << 32];
        assert_eq!(near.map(|id| Kind::of(NoteId(id))), [None; 6], "an application's own ids are left alone");
    }

    #[test]
    fn long_answers_are_sent_in_parts_and_too_long_ones_refused() {
        let long = Answer::Refused(Refusal::Failed { why: "w".repeat(3 * NOTE_BYTES_MAX) });
        let notes = notes_of(7, &long);
        assert_eq!(notes.len(), 4);
        assert!(notes.iter().all(|(_, bytes)| bytes.len() <= NOTE_BYTES_MAX));
        let kinds: Vec<_> = notes.iter().filter_map(|(id, _)| Kind::of(*id)).collect();
        assert_eq!(kinds, [(Kind::Part, 7), (Kind::Part, 7), (Kind::Part, 7), (Kind::Last, 7)]);
        let joined: Vec<u8> = notes.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert_eq!(serde_json::from_slice::<Answer>(&joined).unwrap(), long);
        let huge = Answer::Refused(Refusal::Failed { why: "w".repeat(ANSWER_BYTES_MAX) });
        let [(id, bytes)] = &notes_of(1, &huge)[..] else { panic!("one note") };
        assert!(Kind::of(*id) == Some((Kind::Last, 1)) && bytes.len() < 200);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for bytes in [
            &b""[..],
            b"{",
            b"null",
            b"\xff\xfe",
            b"{\"pool\":{\"bytes\":-1,\"pages\":\"auto\"}}",
            b"\"Cpu\"",
            &[b'['; 4096],
        ] {
            assert!(matches!(request_of(bytes), Err(Refusal::NotUnderstood { .. })), "{bytes:?}");
        }
        assert_eq!(request_of(b"\"cpu\""), Ok(Request::Cpu));
    }
}
