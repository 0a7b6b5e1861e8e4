//! Packet layout, and the parser that reads one as the untrusted bytes it is.
//!
//! All numbers are little-endian. A packet is one header with its tag, then payload:
//!
//! ```text
//! packet    connection u64 | number u64 | header bytes u16 | messages u8 | flags u8 | used u32 | acknowledgement, or nothing
//!           | heads of messages, in their order | checksum u32, or nothing | tag u64 | payload of messages, in their order
//! ack       highest u64 | lowest u64 | credit u64 | watermark u64 | delay u32, ns | received words u8 | finished words u8 | taken u16
//!           | received u64 … | finished u64 …
//! WRITE     kind, index, count, extents | region u32 | operation u64 | revision u64 | generation u32 | extents
//! READ      kind, 0, 0, extents         | region u32 | operation u64 | revision u64 | generation u32 | extents
//! DATA      kind, index, count, 0       | bytes u32  | operation u64
//! NOTIFY    kind, index, count, flags   | bytes u16, note bytes u16 | operation u64 | counter u32, generation u32 | note id u128 | before u64 × 4
//! GIVEN_UP  kind, 0, 0, 0               | 0 u32      | operation u64
//! REFUSED   kind, cause, 0, 0           | 0 u32      | operation u64 | revision u64
//! CREDIT    kind, 0, 0, 0               | 0 u32      | lines of notes taken u64
//! extent    offset u64 | bytes u32
//! ```
//!
//! Flags: 1, there is a checksum, the payload's; 2, what follows the payload of the last message is padding; 4, there is an acknowledgement.
//!
//! `used` is the low half of what its sender has used of its credit, with this packet. `highest` is the highest packet number received, and bit `n` of `received` says that `highest - 1 - n` was received, too.
//! `taken` is the low half of a count of all packets that were. `lowest` is the lowest number of the sender's own that it still waits for. All operations below `watermark` are finished, and
//! bit `n` of `finished` says that `watermark + n` is. In NOTIFY bit `n` of `before` names `operation - 1 - n` as one of its
//! transfer; cause 0 in REFUSED means that only its counter was gone.

mod writer;

use penstock_core::limits::{NOTE_BYTES_MAX, SPANS_PER_POST, UNIT_BYTES};
use penstock_core::plan::RegionKey;
use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Generation, NoteId, RegionId};
use penstock_transport::CounterRef;

pub use self::writer::PacketWriter;
use crate::siphash::SipKey;

/// The version of this layout; both sides must have the same.
pub const VERSION: u16 = 2;

/// The most packets of one operation: what is missing of it is one word.
pub const PARTS_MAX: usize = 64;
/// The smallest frame: a UDP payload that IPv6 carries everywhere, at its least MTU of 1,280, with room for options.
pub const FRAME_BYTES_MIN: usize = 1188;
/// The largest frame: what UDP over IPv4 carries.
pub const FRAME_BYTES_MAX: usize = 65_507;
/// Bytes of one extent in a header.
pub const EXTENT_BYTES: usize = 12;
/// The most bytes of a packet of one WRITE or DATA that are neither extents nor payload.
pub const HEADER_BYTES_MAX: usize = 116;
/// The same without an acknowledgement.
pub const HEADER_BYTES_MIN: usize = 60;
/// The most messages of one packet.
pub const MESSAGES_MAX: usize = 16;
/// Words of the two bit maps of an acknowledgement.
pub const ACK_WORDS: usize = 4;
/// Words of each that a packet with payload carries: its header stays within [`HEADER_BYTES_MAX`].
pub const ACK_WORDS_WITH_PAYLOAD: usize = 1;

pub(crate) const FIXED_BYTES: usize = 24;
pub(crate) const CHECKSUM_BYTES: usize = 4;
pub(crate) const TAG_BYTES: usize = 8;
pub(crate) const WRITE_BYTES: usize = 28;
pub(crate) const DATA_BYTES: usize = 16;
pub(crate) const NOTIFY_BYTES: usize = 72;
pub(crate) const SHORT_BYTES: usize = 16;
pub(crate) const REFUSED_BYTES: usize = 24;

/// Where the words of its bit maps are in a packet with an acknowledgement.
const ACK_END: usize = FIXED_BYTES + 40;

/// Bytes of an acknowledgement with so many words in each bit map.
pub(crate) const fn ack_bytes(words: usize) -> usize {
    ACK_END - FIXED_BYTES + 2 * 8 * words
}

const fn header_bytes(words: usize, heads: usize) -> usize {
    FIXED_BYTES + ack_bytes(words) + heads + TAG_BYTES
}

const _: () = assert!(header_bytes(ACK_WORDS_WITH_PAYLOAD, WRITE_BYTES) <= HEADER_BYTES_MAX);
const _: () = assert!(FIXED_BYTES + WRITE_BYTES + TAG_BYTES == HEADER_BYTES_MIN);
const _: () = {
    // Cuts between packets add an extent each, and a packet may leave room that is too small for an extent and a byte.
    let extents = (SPANS_PER_POST + PARTS_MAX - 1) * EXTENT_BYTES;
    let wasted = PARTS_MAX * EXTENT_BYTES;
    // The first one may share its packet with the end of the operation before, and have next to nothing of it.
    let room = (PARTS_MAX - 1) * (FRAME_BYTES_MIN - CHECKSUM_BYTES - HEADER_BYTES_MIN);
    assert!(
        UNIT_BYTES as usize + extents + wasted <= room,
        "whatever one post accepts fits into the packets of an operation"
    );
};
const _: () = assert!(
    header_bytes(ACK_WORDS, WRITE_BYTES + SPANS_PER_POST * EXTENT_BYTES) + CHECKSUM_BYTES <= FRAME_BYTES_MIN,
    "a READ is one packet"
);

const WRITE: u8 = 1;
const READ: u8 = 2;
const DATA: u8 = 3;
const NOTIFY: u8 = 4;
const GIVEN_UP: u8 = 5;
const REFUSED: u8 = 6;
const CREDIT: u8 = 7;

const IS_CHECKED: u8 = 1;
const IS_PADDED: u8 = 2;
const HAS_ACK: u8 = 4;
const HAS_NOTE: u8 = 1;
const HAS_COUNTER: u8 = 2;

/// Why a packet with a right tag makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramWireError {
    #[error("a packet or a message in it has an impossible length")]
    Length,
    /// The tag does not cover the payload: it may have been cut or lengthened on its way.
    #[error("a packet's payload is shorter or longer than its messages say")]
    Payload,
    #[error("message kind {0} is not known")]
    Kind(u8),
    #[error("cause {0} is not known")]
    Cause(u8),
    #[error("reserved bits of a packet are in use")]
    Reserved,
    #[error("a message has no extents, too many, or one that has no bytes or ends beyond all memory")]
    Extents,
    #[error("a message is part {index} of {count}")]
    Part { index: u8, count: u8 },
}

/// Which packet of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpPart {
    pub operation: u64,
    pub index: u8,
    /// How many the operation has.
    pub count: u8,
}

/// What a peer wants to do with memory, as it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRequest<'a> {
    pub key: RegionKey,
    /// The revision of the target's gate that the plan was checked against.
    pub revision: u64,
    pub extents: WireExtents<'a>,
}

/// Where: offsets and lengths, at least one, none empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireExtents<'a>(&'a [[u8; EXTENT_BYTES]]);

impl<'a> WireExtents<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, DatagramWireError> {
        let (extents, []) = bytes.as_chunks() else { return Err(DatagramWireError::Length) };
        let extents = Self(extents);
        let is_fine = |(offset, len): (u64, u64)| len > 0 && offset.checked_add(len).is_some();
        let count = extents.0.len();
        if (1..=SPANS_PER_POST).contains(&count) && extents.iter().all(is_fine) {
            Ok(extents)
        } else {
            Err(DatagramWireError::Extents)
        }
    }

    /// Offsets and lengths, in the order of their bytes in the payload.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + Clone + use<'a> {
        self.0.iter().map(|extent| (u64_at(extent, 0), u64::from(u32_at(extent, 8))))
    }

    /// Their bytes together; 64 lengths of 32 bits do not overflow.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(_, len)| len).sum()
    }
}

/// A message of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketMessage<'a> {
    Write {
        part: OpPart,
        request: MemoryRequest<'a>,
        bytes: &'a [u8],
    },
    Read {
        operation: u64,
        request: MemoryRequest<'a>,
    },
    Data {
        part: OpPart,
        bytes: &'a [u8],
    },
    Notify {
        part: OpPart,
        head: WireNotify<'a>,
        bytes: &'a [u8],
    },
    GivenUp {
        operation: u64,
    },
    /// None: all of it was delivered but its counter, which is gone.
    Refused {
        operation: u64,
        cause: Option<Cause>,
        revision: u64,
    },
    Credit {
        lines: u64,
    },
}

/// What every packet of a notification repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotifyHead {
    pub counter: Option<CounterRef>,
    /// Its id, and how many bytes it has in all packets.
    pub note: Option<(NoteId, u16)>,
    /// The operations of its transfer that were not confirmed when it was posted.
    pub before: [u64; ACK_WORDS],
}

/// The head of a notification whose flags and lengths were found possible. It is read when it is asked for: a message that had it in
/// it would be so large that every packet paid for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireNotify<'a>(&'a [u8]);

impl WireNotify<'_> {
    fn parse(head: &[u8], bytes: u16) -> Result<WireNotify<'_>, DatagramWireError> {
        let (flags, of) = (head[3], u16_at(head, 6));
        if flags & !(HAS_NOTE | HAS_COUNTER) != 0 {
            return Err(DatagramWireError::Reserved);
        }
        if usize::from(of) > NOTE_BYTES_MAX || bytes > of || (flags & HAS_NOTE == 0 && of > 0) {
            return Err(DatagramWireError::Length);
        }
        Ok(WireNotify(head))
    }

    pub fn read(self) -> NotifyHead {
        let Self(head) = self;
        let has = |flag| head[3] & flag != 0;
        let counter = CounterRef { index: u32_at(head, 16), generation: u32_at(head, 20) };
        let id = NoteId(u128::from(u64_at(head, 32)) << 64 | u128::from(u64_at(head, 24)));
        NotifyHead {
            counter: has(HAS_COUNTER).then_some(counter),
            note: has(HAS_NOTE).then_some((id, u16_at(head, 6))),
            before: std::array::from_fn(|word| u64_at(head, 40 + 8 * word)),
        }
    }
}

/// A bit map of which the first words are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AckBits {
    pub words: [u64; ACK_WORDS],
    pub len: u8,
}

impl AckBits {
    /// The first so many of these words, without those at the end that are zero.
    pub fn first(words: [u64; ACK_WORDS], most: usize) -> Self {
        let len = (0..most).rev().find(|&word| words[word] != 0).map_or(0, |word| word + 1);
        Self { words: std::array::from_fn(|word| if word < len { words[word] } else { 0 }), len: len as u8 }
    }

    pub fn has(&self, bit: u64) -> bool {
        self.words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }
}

/// The bits that are set in a map, from the first word's lowest on.
pub(crate) fn bits(words: &[u64; ACK_WORDS]) -> impl Iterator<Item = u64> + '_ {
    let of_word = |(index, &word): (usize, &u64)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| 64 * index as u64 + u64::from(left.trailing_zeros()))?;
            left &= left - 1;
            Some(bit)
        })
    };
    words.iter().enumerate().flat_map(of_word)
}

/// What a packet says about the other direction, and about its sender's operations there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AckBlock {
    pub highest: u64,
    pub lowest: u64,
    /// Charged bytes that the receiver of this packet may have sent since the beginning.
    pub credit: u64,
    pub watermark: u64,
    /// How long the packet with the highest number has waited for this acknowledgement.
    pub delay_ns: u32,
    /// How many packets were taken since the beginning, the low bits: more arrive late than the bit map can name.
    pub taken: u16,
    pub received: AckBits,
    pub finished: AckBits,
}

/// A packet whose header has a possible shape. Its numbers stay where they came: to move them would be to write what is read the next
/// moment, and that waits for all that was written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// All before the payload: what the tag covers, and the tag.
    header: &'a [u8],
    pub payload: &'a [u8],
}

/// The bytes of a number, read with one load.
#[inline]
fn at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("what is read was found to be there")
}

#[inline]
fn u16_at(bytes: &[u8], place: usize) -> u16 {
    u16::from_le_bytes(at(bytes, place))
}

#[inline]
fn u32_at(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(at(bytes, place))
}

#[inline]
fn u64_at(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(at(bytes, place))
}

/// Words of both bit maps of a packet's acknowledgement, if it has one; its fixed part was found to be there.
#[inline]
fn ack_words(header: &[u8]) -> Option<[u8; 2]> {
    (header[19] & HAS_ACK != 0).then(|| [header[ACK_END - 4], header[ACK_END - 3]])
}

/// Where the heads of messages begin.
#[inline]
fn heads_at(words: Option<[u8; 2]>) -> usize {
    words.map_or(FIXED_BYTES, |[received, finished]| ACK_END + 8 * (usize::from(received) + usize::from(finished)))
}

/// Where they end in a header that is so long without its tag, if there is room for them.
#[inline]
fn heads_end(header: &[u8], end: usize) -> Option<usize> {
    if header[19] & IS_CHECKED != 0 { end.checked_sub(CHECKSUM_BYTES) } else { Some(end) }
}

/// What the tag covers of a header whose length was checked: all of it.
fn covered(header: &[u8]) -> &[u8] {
    if planted::is(Bug::ExtentsUntagged) {
        let heads = heads_at(ack_words(header));
        if header.get(heads) == Some(&WRITE) {
            return &header[..header.len().min(heads + WRITE_BYTES)];
        }
    }
    header
}

/// The connection that a packet is for, if it is long enough to name one.
pub fn connection_of(bytes: &[u8]) -> Option<u64> {
    (bytes.len() >= FIXED_BYTES + TAG_BYTES).then(|| u64_at(bytes, 0))
}

impl<'a> Packet<'a> {
    /// Reads a header. Nothing in it may be believed before [`Packet::is_authentic`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DatagramWireError> {
        if bytes.len() < FIXED_BYTES + TAG_BYTES {
            return Err(DatagramWireError::Length);
        }
        if bytes[19] & !(IS_CHECKED | IS_PADDED | HAS_ACK) != 0 {
            return Err(DatagramWireError::Reserved);
        }
        let (end, has_ack) = (usize::from(u16_at(bytes, 16)), bytes[19] & HAS_ACK != 0);
        let least = if has_ack { ACK_END } else { FIXED_BYTES } + TAG_BYTES;
        if end < least || end > bytes.len() {
            return Err(DatagramWireError::Length);
        }
        let words = ack_words(bytes);
        if words.is_some_and(|[received, finished]| usize::from(received.max(finished)) > ACK_WORDS) {
            return Err(DatagramWireError::Length);
        }
        if heads_end(bytes, end - TAG_BYTES).is_none_or(|heads_end| heads_at(words) > heads_end) {
            return Err(DatagramWireError::Length);
        }
        let (header, payload) = bytes.split_at(end);
        Ok(Self { header, payload })
    }

    #[inline]
    pub fn connection(&self) -> u64 {
        u64_at(self.header, 0)
    }

    #[inline]
    pub fn number(&self) -> u64 {
        u64_at(self.header, 8)
    }

    /// Charged bytes that its sender has sent for the first time since the beginning, the low half.
    #[inline]
    pub fn used(&self) -> u32 {
        u32_at(self.header, 20)
    }

    /// What it says about the other direction, if anything.
    #[inline]
    pub fn ack(&self) -> Option<AckBlock> {
        let header = self.header;
        let [received, finished] = ack_words(header)?;
        let word = |index: usize| u64_at(header, ACK_END + 8 * index);
        let bits = |first: u8, len: u8| AckBits {
            words: std::array::from_fn(|index| {
                let is_sent = index < usize::from(len);
                if is_sent { word(usize::from(first) + index) } else { 0 }
            }),
            len,
        };
        Some(AckBlock {
            highest: u64_at(header, FIXED_BYTES),
            lowest: u64_at(header, FIXED_BYTES + 8),
            credit: u64_at(header, FIXED_BYTES + 16),
            watermark: u64_at(header, FIXED_BYTES + 24),
            delay_ns: u32_at(header, FIXED_BYTES + 32),
            taken: u16_at(header, ACK_END - 2),
            received: bits(0, received),
            finished: bits(received, finished),
        })
    }

    /// The CRC32C of the payload, where the carrier does not vouch for it.
    #[inline]
    pub fn checksum(&self) -> Option<u32> {
        let is_checked = self.header[19] & IS_CHECKED != 0;
        is_checked.then(|| u32_at(self.header, self.header.len() - TAG_BYTES - CHECKSUM_BYTES))
    }

    /// What the tag covers, and the tag.
    #[inline]
    fn signed(&self) -> (&'a [u8], u64) {
        let (signed, tag) = self.header.split_at(self.header.len() - TAG_BYTES);
        (signed, u64_at(tag, 0))
    }

    /// Whether its tag is right: it was made by the peer, for this connection.
    pub fn is_authentic(&self, key: &SipKey) -> bool {
        let (signed, tag) = self.signed();
        key.tag(covered(signed)) == tag
    }

    /// Whether it has messages, and so wants to be acknowledged.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.header[18] > 0
    }

    /// Its messages, in their order. After an error nothing follows.
    #[inline]
    pub fn messages(&self) -> PacketMessages<'a> {
        let (signed, _) = self.signed();
        let end = heads_end(signed, signed.len()).expect("the parser found room for what is in it");
        let heads = &signed[heads_at(ack_words(signed))..end];
        let is_padded = self.header[19] & IS_PADDED != 0;
        PacketMessages { heads, payload: self.payload, left: self.header[18], is_padded }
    }
}

/// Reads the messages of a packet.
#[derive(Debug, Clone)]
pub struct PacketMessages<'a> {
    heads: &'a [u8],
    payload: &'a [u8],
    left: u8,
    is_padded: bool,
}

impl<'a> PacketMessages<'a> {
    fn head(&mut self, bytes: usize) -> Result<&'a [u8], DatagramWireError> {
        let (head, rest) = self.heads.split_at_checked(bytes).ok_or(DatagramWireError::Length)?;
        self.heads = rest;
        Ok(head)
    }

    fn bytes(&mut self, bytes: u64) -> Result<&'a [u8], DatagramWireError> {
        let bytes = usize::try_from(bytes).map_err(|_| DatagramWireError::Payload)?;
        let (payload, rest) = self.payload.split_at_checked(bytes).ok_or(DatagramWireError::Payload)?;
        self.payload = rest;
        Ok(payload)
    }

    fn request(&mut self, head: &'a [u8]) -> Result<MemoryRequest<'a>, DatagramWireError> {
        let key = RegionKey { region: RegionId(u32_at(head, 4)), generation: Generation(u32_at(head, 24)) };
        let extents = WireExtents::parse(self.head(usize::from(head[3]) * EXTENT_BYTES)?)?;
        Ok(MemoryRequest { key, revision: u64_at(head, 16), extents })
    }

    fn one(&mut self) -> Result<PacketMessage<'a>, DatagramWireError> {
        let kind = *self.heads.first().ok_or(DatagramWireError::Length)?;
        let bytes = match kind {
            WRITE | READ => WRITE_BYTES,
            DATA => DATA_BYTES,
            NOTIFY => NOTIFY_BYTES,
            REFUSED => REFUSED_BYTES,
            GIVEN_UP | CREDIT => SHORT_BYTES,
            _ => return Err(DatagramWireError::Kind(kind)),
        };
        let head = self.head(bytes)?;
        let operation = u64_at(head, 8);
        let part = OpPart { operation, index: head[1], count: head[2] };
        let is_part = part.index < part.count && usize::from(part.count) <= PARTS_MAX;
        if matches!(kind, WRITE | DATA | NOTIFY) && !is_part {
            return Err(DatagramWireError::Part { index: part.index, count: part.count });
        }
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        let is_clean = match kind {
            READ => is_zero(&head[1..3]),
            DATA => head[3] == 0,
            GIVEN_UP | CREDIT => is_zero(&head[1..8]),
            REFUSED => is_zero(&head[2..8]),
            _ => true,
        };
        if !is_clean {
            return Err(DatagramWireError::Reserved);
        }
        Ok(match kind {
            WRITE => {
                let request = self.request(head)?;
                PacketMessage::Write { part, request, bytes: self.bytes(request.extents.bytes())? }
            }
            READ => PacketMessage::Read { operation, request: self.request(head)? },
            DATA => PacketMessage::Data { part, bytes: self.bytes(u64::from(u32_at(head, 4)))? },
            NOTIFY => {
                let bytes = u16_at(head, 4);
                let head = WireNotify::parse(head, bytes)?;
                PacketMessage::Notify { part, head, bytes: self.bytes(u64::from(bytes))? }
            }
            GIVEN_UP => PacketMessage::GivenUp { operation },
            REFUSED => {
                let known = |code| Cause::from_code(code).ok_or(DatagramWireError::Cause(code));
                let cause = if head[1] == 0 { None } else { Some(known(head[1])?) };
                PacketMessage::Refused { operation, cause, revision: u64_at(head, 16) }
            }
            _ => PacketMessage::Credit { lines: operation },
        })
    }
}

impl<'a> Iterator for PacketMessages<'a> {
    type Item = Result<PacketMessage<'a>, DatagramWireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            // What no message claims must not be there.
            let rest = (std::mem::take(&mut self.heads), std::mem::take(&mut self.payload));
            return match rest {
                ([], []) => None,
                ([], _) if self.is_padded => None,
                ([], _) => Some(Err(DatagramWireError::Payload)),
                _ => Some(Err(DatagramWireError::Length)),
            };
        }
        self.left -= 1;
        let message = self.one();
        if message.is_err() {
            (self.heads, self.payload, self.left) = (&[], &[], 0);
        }
        Some(message)
    }
}
