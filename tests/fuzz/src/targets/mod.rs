//! What hostile bytes are thrown at.
//!
//! Every function here takes any bytes and panics only if a promise is broken.
//!
//! - [`frame`]: the bootstrap channel's frames, out of a stream that cuts anywhere
//! - [`card`]: an engine's portable descriptor
//! - [`opening`]: the first bytes of a connection between hosts
//! - [`channel`]: a sealed channel whose other end says anything
//! - [`secret`]: the text of a shared secret
//! - [`directory`]: the text of a directory
//! - [`landing`]: what says that bytes have landed
//! - [`schema`]: what a chunk says of the items in it
//! - [`metadata`]: what names a put of another engine
//! - [`record`]: notes as they lie in a ring
//! - [`ring`]: a lane over rings and a mailbox that somebody scribbles over
//! - [`owner_state`]: a peer's gate and hazards, whatever it writes there
//! - [`offer`]: the offers of the transports
//! - [`path`]: how a peer says that its regions are reached
//! - [`question`]: what the owner of memory is asked to move
//! - [`rail`]: what two ends of a rail between cards say to each other
//! - [`wire`]: the control blocks of streams between hosts
//! - [`stream`]: a lane over a stream whose other end says anything
//! - [`datagram`]: a connection over packets whose other end says anything

pub mod card;
pub mod channel;
pub mod datagram;
pub mod directory;
pub mod frame;
pub mod landing;
pub mod metadata;
pub mod offer;
pub mod opening;
pub mod owner_state;
pub mod path;
pub mod question;
pub mod rail;
pub mod record;
pub mod ring;
pub mod schema;
pub mod secret;
pub mod stream;
pub mod wire;

use crate::vary::Random;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Throws bytes at it and checks its promises.
    pub run: fn(&[u8]),
    /// The bare parser, where what it may allocate is bounded by its input.
    pub parse: Option<fn(&[u8])>,
    /// Bytes that the parser may hold at once for each byte of input, besides [`Target::bytes`].
    pub bytes_per_byte: usize,
    /// Bytes that the parser may hold at once, however short its input.
    pub bytes: usize,
}

/// Bytes that a mere parser may hold at once, however short its input.
const FEW: usize = 4096;
/// Bytes of a whole engine's memory, a lane, and what the peer is about to say: its largest group.
const BENCH: usize = 2 << 20;

/// All targets.
pub const TARGETS: &[Target] = &[
    // The stream's buffer and its growth, the body, and what the body says. The shortest region takes 9
    // bytes in a frame and 120 here, and room is made for as many as could come.
    Target { name: "frame", run: frame::run, parse: Some(frame::parse), bytes_per_byte: 132, bytes: FEW },
    Target { name: "card", run: card::run, parse: Some(card::parse), bytes_per_byte: 2, bytes: FEW },
    Target { name: "record", run: record::run, parse: None, bytes_per_byte: 0, bytes: FEW },
    Target { name: "ring", run: ring::run, parse: None, bytes_per_byte: 0, bytes: FEW },
    Target { name: "owner_state", run: owner_state::run, parse: None, bytes_per_byte: 0, bytes: FEW },
    Target { name: "opening", run: opening::run, parse: Some(opening::parse), bytes_per_byte: 2, bytes: FEW },
    Target { name: "channel", run: channel::run, parse: Some(channel::parse), bytes_per_byte: 3, bytes: FEW },
    Target { name: "secret", run: secret::run, parse: Some(secret::parse), bytes_per_byte: 0, bytes: FEW },
    Target { name: "directory", run: directory::run, parse: Some(directory::parse), bytes_per_byte: 40, bytes: FEW },
    Target { name: "offer", run: offer::run, parse: Some(offer::parse), bytes_per_byte: 4, bytes: FEW },
    Target { name: "datagram", run: datagram::run, parse: Some(datagram::parse), bytes_per_byte: 0, bytes: BENCH },
    Target { name: "path", run: path::run, parse: None, bytes_per_byte: 0, bytes: FEW },
    Target { name: "question", run: question::run, parse: Some(question::parse), bytes_per_byte: 0, bytes: FEW },
    Target { name: "wire", run: wire::run, parse: Some(wire::parse), bytes_per_byte: 0, bytes: FEW },
    Target { name: "rail", run: rail::run, parse: Some(rail::parse), bytes_per_byte: 0, bytes: FEW },
    Target { name: "stream", run: stream::run, parse: Some(stream::run), bytes_per_byte: 16, bytes: BENCH },
    Target { name: "landing", run: landing::run, parse: Some(landing::parse), bytes_per_byte: 0, bytes: FEW },
    // The shortest item takes 5 bytes there and 72 here, in a list that doubles, and its path once more in another.
    Target { name: "schema", run: schema::run, parse: Some(schema::parse), bytes_per_byte: 64, bytes: FEW },
    Target { name: "metadata", run: metadata::run, parse: Some(metadata::parse), bytes_per_byte: 2, bytes: FEW },
];

/// FNV-1a: decides what a target does beside its input, and closes a card.
fn digest(bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Cuts the input into pieces, by its own digest: a fuzzer needs no second input then.
fn cut(mut input: &[u8]) -> Vec<&[u8]> {
    let mut random = Random::new(digest(input));
    let longest = [1, 3, 17, 200][random.below(4)];
    let mut pieces = Vec::new();
    while !input.is_empty() {
        let (piece, rest) = input.split_at(input.len().min(1 + random.below(longest)));
        pieces.push(piece);
        input = rest;
    }
    pieces
}
