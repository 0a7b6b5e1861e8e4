//! What is in a packet, and how it is read as the untrusted bytes it is.
//!
//! All numbers are little-endian:
//!
//! ```text
//! packet    magic u32 | from u64, to u64: the epochs of both engines | sequence u64 | until u64, seen u64 | message
//! WRITE     kind, is last | extents u16 | operation | transfer | region, generation | revision | extents | bytes
//! READ      kind, 0       | extents u16 | operation | 0        | region, generation | revision | extents
//! DATA      kind, 0       | 0           | operation of the READ | place in it | bytes
//! NOTIFY  kind, flags   | bytes u16   | operation | transfer | counter, generation | id, two words | the note
//! DONE      kind, cause   | 0           | operation | result | the target's revision
//! CREDIT    kind, 0       | 0           | lines taken since the session began
//! GIVEN_UP  kind, is last | cause u16   | operation | transfer
//! ```
//!
//! A packet of sequence 0 has no message: it only says what has arrived, which every packet does. `until` is the last of the
//! other side's messages before which none is missing, and bit `n` of `seen` says that `until + 1 + n` is there as well.

use penstock_core::limits::{NOTE_BYTES_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId};
use penstock_transport::{CounterRef, Note};

/// The version of this form; both sides must speak the same.
pub const VERSION: u16 = 1;

/// The most bytes of memory that one packet carries.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

const MAGIC: u32 = 0x3153_5350;

const WRITE: u8 = 1;
const READ: u8 = 2;
const DATA: u8 = 3;
const NOTIFY: u8 = 4;
const DONE: u8 = 5;
const CREDIT: u8 = 6;
const GIVEN_UP: u8 = 7;

const HAS_NOTE: u8 = 1;
const HAS_COUNTER: u8 = 2;

/// Why bytes are not a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Not the mark of a packet.
    #[error("a packet begins with {0:#010x}, which is no mark of one")]
    Magic(u32),
    /// It ends too early or too late.
    #[error("a packet has an impossible length")]
    Length,
    /// A kind nobody sends.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// A cause nobody knows.
    #[error("cause {0} is not known")]
    Cause(u16),
    /// Bits that have no meaning are in use.
    #[error("reserved bits of a message are in use")]
    Reserved,
    /// An extent without bytes or that ends beyond all memory, none at all, or too many.
    #[error("a message has no extents, too many, or one that has no bytes or ends beyond all memory")]
    Extents,
}

/// What every packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The epoch of the engine that sent it.
    pub from: u64,
    /// The epoch of the engine that it was sent to.
    pub to: u64,
    /// The number of its message; 0: it has none.
    pub sequence: u64,
    /// All messages of the other side up to this one have arrived.
    pub until: u64,
    /// Which of those after it have arrived.
    pub seen: u64,
}

/// What the peer wants to do with memory, as it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number of its operation.
    pub operation: u64,
    /// The transfer it belongs to.
    pub transfer: u64,
    pub key: RegionKey,
    /// The revision of the target's log that the plan was checked against.
    pub revision: u64,
    /// Where: offsets and lengths.
    pub extents: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// Bytes for memory of the receiver.
    Write {
        request: Request,
        /// Nothing of the operation follows.
        is_last: bool,
        /// The bytes, as many as the extents have.
        bytes: &'a [u8],
    },
    /// Asks for bytes of the receiver's memory.
    Read(Request),
    /// Some of what a READ asked for.
    Data {
        /// The number of the READ.
        operation: u64,
        /// Their place among all that it asked for.
        place: u64,
        bytes: &'a [u8],
    },
    /// All of a transfer has left before it.
    Notify {
        /// The number of the operation.
        operation: u64,
        transfer: u64,
        /// A counter that goes up by one.
        counter: Option<CounterRef>,
        note: Option<Note<'a>>,
    },
    /// An operation of the receiver has ended.
    Done {
        operation: u64,
        result: Result<u64, Cause>,
        /// How far the sender's log of withdrawn memory has come.
        revision: u64,
    },
    /// So many lines of notes were taken since the session began.
    Credit(u64),
    /// In the place of a WRITE that its sender has given up.
    GivenUp {
        /// The number of the operation.
        operation: u64,
        transfer: u64,
        /// Nothing of the operation follows.
        is_last: bool,
        cause: Cause,
    },
}

impl Head {
    pub fn put(&self, into: &mut Vec<u8>) {
        into.extend(MAGIC.to_le_bytes());
        for number in [self.from, self.to, self.sequence, self.until, self.seen] {
            into.extend(number.to_le_bytes());
        }
    }

    /// Reads the head of a packet, and answers what follows it.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let mut words = Words(packet);
        let magic = words.u32()?;
        if magic != MAGIC {
            return Err(PacketError::Magic(magic));
        }
        let (from, to, sequence) = (words.u64()?, words.u64()?, words.u64()?);
        let head = Self { from, to, sequence, until: words.u64()?, seen: words.u64()? };
        if (head.sequence == 0) != words.0.is_empty() { Err(PacketError::Length) } else { Ok((head, words.0)) }
    }
}

impl<'a> Message<'a> {
    pub fn put(&self, into: &mut Vec<u8>) {
        let begin = |into: &mut Vec<u8>, kind: u8, small: u8, count: u16| {
            into.extend([kind, small]);
            into.extend(count.to_le_bytes());
        };
        let words = |into: &mut Vec<u8>, words: &[u64]| words.iter().for_each(|word| into.extend(word.to_le_bytes()));
        match self {
            Self::Write { request, is_last, bytes } => {
                begin(into, WRITE, u8::from(*is_last), request.extents.len() as u16);
                request.put(into);
                into.extend(*bytes);
            }
            Self::Read(request) => {
                begin(into, READ, 0, request.extents.len() as u16);
                request.put(into);
            }
            Self::Data { operation, place, bytes } => {
                begin(into, DATA, 0, 0);
                words(into, &[*operation, *place]);
                into.extend(*bytes);
            }
            Self::Notify { operation, transfer, counter, note } => {
                let flags = if note.is_some() { HAS_NOTE } else { 0 } | if counter.is_some() { HAS_COUNTER } else { 0 };
                let (id, payload) = note.map_or((0, &[][..]), |note| (note.id.0, note.payload));
                begin(into, NOTIFY, flags, payload.len() as u16);
                words(into, &[*operation, *transfer]);
                let counter = counter.unwrap_or(CounterRef { index: 0, generation: 0 });
                into.extend(counter.index.to_le_bytes());
                into.extend(counter.generation.to_le_bytes());
                into.extend(id.to_le_bytes());
                into.extend(payload);
            }
            Self::Done { operation, result, revision } => {
                begin(into, DONE, result.as_ref().map_or_else(|cause| cause.code(), |_| 0), 0);
                words(into, &[*operation, result.unwrap_or(0), *revision]);
            }
            Self::Credit(lines) => {
                begin(into, CREDIT, 0, 0);
                words(into, &[*lines]);
            }
            Self::GivenUp { operation, transfer, is_last, cause } => {
                begin(into, GIVEN_UP, u8::from(*is_last), u16::from(cause.code()));
                words(into, &[*operation, *transfer]);
            }
        }
    }

    /// Reads a message. Any bytes give one or an error.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let mut words = Words(bytes);
        let [kind, small] = words.array()?;
        let count = u16::from_le_bytes(words.array()?);
        let flag = || if small > 1 { Err(PacketError::Reserved) } else { Ok(small == 1) };
        let plain = |of: u64| if of != 0 { Err(PacketError::Reserved) } else { Ok(()) };
        let message = match kind {
            WRITE => {
                let (is_last, request) = (flag()?, Request::parse(&mut words, count)?);
                let total = request.extents.iter().map(|(_, len)| len).sum::<u64>();
                if total > PAYLOAD_BYTES_MAX as u64 {
                    return Err(PacketError::Length);
                }
                Self::Write { request, is_last, bytes: words.take(total as usize)? }
            }
            READ => {
                plain(small.into())?;
                Self::Read(Request::parse(&mut words, count)?)
            }
            DATA => {
                plain(u64::from(small) | u64::from(count))?;
                let (operation, place) = (words.u64()?, words.u64()?);
                let bytes = words.take(words.0.len())?;
                if bytes.is_empty() || bytes.len() > PAYLOAD_BYTES_MAX {
                    return Err(PacketError::Length);
                }
                Self::Data { operation, place, bytes }
            }
            NOTIFY => {
                plain(u64::from(small & !(HAS_NOTE | HAS_COUNTER)))?;
                let (operation, transfer) = (words.u64()?, words.u64()?);
                let counter = CounterRef { index: words.u32()?, generation: words.u32()? };
                let id = NoteId(u128::from_le_bytes(words.array()?));
                if usize::from(count) > NOTE_BYTES_MAX {
                    return Err(PacketError::Length);
                }
                let payload = words.take(count.into())?;
                let (has_note, has_counter) = (small & HAS_NOTE != 0, small & HAS_COUNTER != 0);
                plain(if has_note { 0 } else { u64::from(id.0 != 0 || count != 0) })?;
                let counter = has_counter.then_some(counter);
                Self::Notify { operation, transfer, counter, note: has_note.then_some(Note { id, payload }) }
            }
            DONE => {
                plain(count.into())?;
                let (operation, bytes, revision) = (words.u64()?, words.u64()?, words.u64()?);
                let result = if small == 0 { Ok(bytes) } else { Err(cause(small.into())?) };
                Self::Done { operation, result, revision }
            }
            CREDIT => {
                plain(u64::from(small) | u64::from(count))?;
                Self::Credit(words.u64()?)
            }
            GIVEN_UP => {
                let (is_last, cause) = (flag()?, cause(count)?);
                Self::GivenUp { operation: words.u64()?, transfer: words.u64()?, is_last, cause }
            }
            other => return Err(PacketError::Kind(other)),
        };
        if words.0.is_empty() { Ok(message) } else { Err(PacketError::Length) }
    }
}

fn cause(code: u16) -> Result<Cause, PacketError> {
    u8::try_from(code).ok().and_then(Cause::from_code).ok_or(PacketError::Cause(code))
}

impl Request {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.operation.to_le_bytes());
        into.extend(self.transfer.to_le_bytes());
        into.extend(self.key.region.0.to_le_bytes());
        into.extend(self.key.generation.0.to_le_bytes());
        into.extend(self.revision.to_le_bytes());
        for (offset, len) in &self.extents {
            into.extend(offset.to_le_bytes());
            into.extend(len.to_le_bytes());
        }
    }

    fn parse(words: &mut Words<'_>, count: u16) -> Result<Self, PacketError> {
        let (operation, transfer) = (words.u64()?, words.u64()?);
        let key = RegionKey { region: RegionId(words.u32()?), generation: Generation(words.u32()?) };
        let revision = words.u64()?;
        if count == 0 || usize::from(count) > SPANS_PER_POST {
            return Err(PacketError::Extents);
        }
        let mut extents = Vec::with_capacity(count.into());
        let mut total = 0u64;
        for _ in 0..count {
            let (offset, len) = (words.u64()?, words.u64()?);
            let sum = total.checked_add(len).filter(|_| len > 0 && offset.checked_add(len).is_some());
            total = sum.ok_or(PacketError::Extents)?;
            extents.push((offset, len));
        }
        Ok(Self { operation, transfer, key, revision, extents })
    }

    /// Bytes of all its extents.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|(_, len)| len).sum()
    }
}

/// What is left to be read.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], PacketError> {
        let (taken, left) = self.0.split_at_checked(bytes).ok_or(PacketError::Length)?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PacketError> {
        let (taken, left) = self.0.split_first_chunk().ok_or(PacketError::Length)?;
        self.0 = left;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, PacketError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, PacketError> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> impl Strategy<Value = Request> {
        let extents = prop::collection::vec((0u64..1 << 40, 1u64..=64), 1..=SPANS_PER_POST);
        let key = |(region, generation)| RegionKey { region: RegionId(region), generation: Generation(generation) };
        (any::<(u64, u64)>(), any::<(u32, u32)>().prop_map(key), any::<u64>(), extents).prop_map(
            |((operation, transfer), key, revision, extents)| Request { operation, transfer, key, revision, extents },
        )
    }

    fn bytes_of(message: &Message<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..9) {
            let _ = Head::parse(&bytes);
            let _ = Message::parse(&bytes);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(message) = Message::parse(&bytes)
                && !matches!(message, Message::Notify { .. } | Message::Done { .. } )
            {
                prop_assert_eq!(bytes_of(&message), bytes);
            }
        }

        #[test]
        fn what_is_written_is_read_again(request in request(), is_last: bool, fill: u8, words: (u64, u64, u64)) {
            let payload = vec![fill; request.bytes() as usize];
            let (operation, transfer, place) = words;
            let counter = Some(CounterRef { index: 7, generation: 9 });
            let note = Some(Note { id: NoteId(u128::from(place) << 40), payload: &payload });
            let messages = [
                Message::Write { request: request.clone(), is_last, bytes: &payload },
                Message::Read(request),
                Message::Data { operation, place, bytes: &payload },
                Message::Notify { operation, transfer, counter, note },
                Message::Notify { operation, transfer, counter: None, note: None },
                Message::Done { operation, result: Ok(transfer), revision: place },
                Message::Done { operation, result: Err(Cause::RevokedByPeer), revision: place },
                Message::Credit(operation),
                Message::GivenUp { operation, transfer, is_last, cause: Cause::Cancelled },
            ];
            for message in messages {
                let bytes = bytes_of(&message);
                prop_assert_eq!(Message::parse(&bytes), Ok(message));
                for cut in [0, 1, bytes.len() - 1] {
                    prop_assert!(bytes[0] == DATA || Message::parse(&bytes[..cut]).is_err());
                }
            }
        }
    }

    #[test]
    fn a_head_without_a_message_has_no_number_and_one_with_a_message_has() {
        let head = Head { from: 1, to: 2, sequence: 0, until: 3, seen: 4 };
        let mut bytes = Vec::new();
        head.put(&mut bytes);
        assert_eq!(Head::parse(&bytes), Ok((head, &[][..])));
        bytes.push(1);
        assert_eq!(Head::parse(&bytes), Err(PacketError::Length));
        bytes[0] ^= 1;
        assert!(matches!(Head::parse(&bytes), Err(PacketError::Magic(_))));
    }
}
