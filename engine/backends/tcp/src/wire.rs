//! What goes over a stream, and how it is read as the untrusted bytes it is.
//!
//! A stream is a row of groups. All numbers are little-endian, and every message takes whole words of eight bytes:
//!
//! ```text
//! group     magic u32 | control bytes u32 | payload bytes u32 | checksum u32 | control | payload | spoiled u64, revision u64, if there is payload
//! WRITE     kind, extents | sequence | transfer | region, generation | revision | extents: offset, length…
//! READ      the same
//! DATA      kind, cause, bytes | sequence of the READ | with a cause: the target's revision
//! NOTE      kind, flags, bytes | sequence | transfer | id, two words | counter, generation | the note
//! DONE      kind | sequence
//! REFUSED   kind, cause | sequence | the target's revision
//! CREDIT    kind | lines taken since the stream began
//! ```
//!
//! Payload is that of the group's WRITE and DATA messages in their order. Their numbers are the bits of the word behind
//! the payload: a set bit says that the sender had to give this one up, and that what came in its place is nothing. The
//! revision is the sender's at its last look at its log: whoever hears that memory was revoked knows of that when it builds a new plan.
//! What is read is never believed further than its checks: lengths are bounded before anything is kept, and what it names is
//! looked up by whoever owns it.

use penstock_core::limits::{NOTE_BYTES_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId};
use penstock_transport::{CounterRef, Note};

/// The version of this form; both sides must speak the same.
pub const VERSION: u16 = 1;

/// Bytes before the control block of a group.
pub const HEAD_BYTES: usize = 16;

/// The longest control block.
pub const CONTROL_BYTES_MAX: usize = 32 * 1024;

/// The most payload of one group, and so of one message: what a receiver is in the middle of at most.
pub const PAYLOAD_BYTES_MAX: u64 = 512 * 1024;

/// Messages with payload in one group: each has a bit of the word behind it.
pub const PARTS_MAX: usize = 64;

/// Bytes behind the payload.
pub const TRAILER_BYTES: usize = 2 * WORD;

const MAGIC: u32 = 0x3147_5350;
const WORD: usize = 8;
const EXTENT_BYTES: usize = 2 * WORD;
const REQUEST_BYTES: usize = 5 * WORD;
const NOTE_HEAD_BYTES: usize = 6 * WORD;

const WRITE: u8 = 1;
const READ: u8 = 2;
const DATA: u8 = 3;
const NOTE: u8 = 4;
const DONE: u8 = 5;
const REFUSED: u8 = 6;
const CREDIT: u8 = 7;

/// A note goes with the notification.
const HAS_NOTE: u8 = 1;
/// A counter goes up with the notification.
const HAS_COUNTER: u8 = 2;

const _: () = assert!(
    CONTROL_BYTES_MAX >= 4 * (REQUEST_BYTES + SPANS_PER_POST * EXTENT_BYTES + NOTE_HEAD_BYTES + NOTE_BYTES_MAX),
    "the largest messages must fit, and leave room for others"
);

/// The fingerprint of what both sides must agree on.
pub const FINGERPRINT: u32 = {
    let limits =
        [CONTROL_BYTES_MAX as u64, PAYLOAD_BYTES_MAX, PARTS_MAX as u64, SPANS_PER_POST as u64, TRAILER_BYTES as u64];
    let (mut sum, mut at) = (VERSION as u64, 0);
    while at < limits.len() {
        sum = mix(sum, limits[at]);
        at += 1;
    }
    (sum >> 32) as u32
};

/// Why bytes are not what should stand there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TcpWireError {
    /// Not the mark of a group.
    #[error("a stream holds {0:#010x} where a group should begin")]
    Magic(u32),
    /// A group longer than any may be, or that says nothing.
    #[error("a group of {control} bytes of control and {payload} of payload is none")]
    Size {
        /// Bytes of its control block.
        control: u32,
        /// Bytes of its payload.
        payload: u32,
    },
    /// The bytes are not those that were sent.
    #[error("the checksum of a control block does not match")]
    Checksum,
    /// A message longer than what is left, or than any may be.
    #[error("a message has an impossible length")]
    Length,
    /// A kind nobody writes.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// A cause nobody knows.
    #[error("cause {0} is not known")]
    Cause(u8),
    /// Bits that have no meaning are in use.
    #[error("reserved bits of a message are in use")]
    Reserved,
    /// An extent without bytes, or that ends beyond all memory.
    #[error("an extent has no bytes, or ends beyond all memory")]
    Extent,
    /// The payload of the messages is not that of the group.
    #[error("the messages of a group carry {messages} bytes of payload, the group {group}")]
    Payload {
        /// What its messages say.
        messages: u64,
        /// What its head says.
        group: u32,
    },
}

/// The head of a group, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Bytes of its control block.
    pub control: u32,
    /// Bytes of its payload.
    pub payload: u32,
    /// Over both of these and the control block.
    pub checksum: u32,
}

impl Head {
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Self, TcpWireError> {
        let at =
            |place: usize| u32::from_le_bytes([bytes[place], bytes[place + 1], bytes[place + 2], bytes[place + 3]]);
        let (magic, control, payload, checksum) = (at(0), at(4), at(8), at(12));
        if magic != MAGIC {
            return Err(TcpWireError::Magic(magic));
        }
        let is_sized = control > 0
            && control as usize <= CONTROL_BYTES_MAX
            && (control as usize).is_multiple_of(WORD)
            && u64::from(payload) <= PAYLOAD_BYTES_MAX;
        if is_sized { Ok(Self { control, payload, checksum }) } else { Err(TcpWireError::Size { control, payload }) }
    }

    /// Writes the head of a group with this control block.
    pub fn encode(control: &[u8], payload: u32) -> [u8; HEAD_BYTES] {
        let length = control.len() as u32;
        let mut bytes = [0; HEAD_BYTES];
        let words = [MAGIC, length, payload, checksum(control, payload)];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the whole control block: what comes of it makes sense to its end, and fits the head.
    pub fn open<'a>(&self, control: &'a [u8]) -> Result<Messages<'a>, TcpWireError> {
        if control.len() != self.control as usize {
            return Err(TcpWireError::Size { control: self.control, payload: self.payload });
        }
        if checksum(control, self.payload) != self.checksum {
            return Err(TcpWireError::Checksum);
        }
        let (mut parts, mut messages) = (0, 0);
        for message in (Messages { rest: control }) {
            let bytes = message?.payload_bytes();
            parts += usize::from(bytes > 0);
            messages += bytes;
        }
        if messages != u64::from(self.payload) || parts > PARTS_MAX {
            return Err(TcpWireError::Payload { messages, group: self.payload });
        }
        Ok(Messages { rest: control })
    }
}

const fn mix(sum: u64, word: u64) -> u64 {
    // An odd constant with bits everywhere; what matters is that each input bit reaches the upper half.
    let product = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 29
}

/// Notices a stream that is out of step; it keeps out no one who means harm.
fn checksum(control: &[u8], payload: u32) -> u32 {
    let (words, _) = control.as_chunks::<WORD>();
    let sum = words
        .iter()
        .fold(u64::from(payload) << 32 | control.len() as u64, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    (sum >> 32) as u32 ^ sum as u32
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Put the payload where the extents say.
    Write(Request<'a>),
    /// Send what lies where the extents say.
    Read(Request<'a>),
    /// What a READ has asked for, or why it does not come.
    Data {
        sequence: u64,
        /// So many bytes of payload, or why there are none.
        bytes: Result<u32, ReadRefusal>,
    },
    /// A transfer's writes are all here.
    Notify {
        sequence: u64,
        /// The transfer that is notified.
        transfer: u64,
        /// A counter to count up.
        counter: Option<CounterRef>,
        /// A note to deliver.
        note: Option<Note<'a>>,
    },
    /// All writes and notifications up to this one have ended.
    Done { sequence: u64 },
    /// One of them has not ended well.
    Refused {
        sequence: u64,
        /// Why; none: a notification's counter was gone.
        cause: Option<Cause>,
        /// How far the target's log of withdrawals has come.
        revision: u64,
    },
    Credit {
        /// Lines taken out of all that ever came.
        lines: u64,
    },
}

impl Message<'_> {
    /// Bytes of payload that go with it.
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Self::Write(request) => request.bytes,
            Self::Data { bytes: Ok(bytes), .. } => u64::from(*bytes),
            _ => 0,
        }
    }
}

/// Why what a READ asked for does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRefusal {
    pub cause: Cause,
    /// How far the target's log of withdrawals has come.
    pub revision: u64,
}

/// What stands behind a group's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trailer {
    /// The parts that the sender had to give up, as bits.
    pub spoiled: u64,
    /// How far the sender's log of withdrawals had come when it last looked.
    pub revision: u64,
}

impl Trailer {
    /// Writes it as it goes over a stream, the bits first.
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        (u128::from(self.spoiled) | u128::from(self.revision) << 64).to_le_bytes()
    }

    /// Reads what stands behind payload: any bytes are one.
    pub fn of(bytes: [u8; TRAILER_BYTES]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { spoiled: both as u64, revision: (both >> 64) as u64 }
    }
}

/// What a WRITE and a READ say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its number on this stream.
    pub sequence: u64,
    /// The transfer it belongs to.
    pub transfer: u64,
    pub key: RegionKey,
    /// The target's revision that the plan was checked against.
    pub revision: u64,
    /// Bytes of all extents.
    pub bytes: u64,
    extents: &'a [u8],
}

impl Request<'_> {
    /// Where in the region: offset and length, never empty and never beyond the end of all numbers.
    pub fn extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
        self.extents.as_chunks::<EXTENT_BYTES>().0.iter().map(|extent| {
            let both = u128::from_le_bytes(*extent);
            (both as u64, (both >> 64) as u64)
        })
    }
}

/// The messages of a control block, one by one. After an error there are no more.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Reads a control block whose head nobody has looked at.
    pub fn of(control: &'a [u8]) -> Self {
        Self { rest: control }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], TcpWireError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(TcpWireError::Length)?;
        self.rest = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64, TcpWireError> {
        let (bytes, rest) = self.rest.split_first_chunk::<WORD>().ok_or(TcpWireError::Length)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn message(&mut self) -> Result<Message<'a>, TcpWireError> {
        let first = self.word()?;
        let (kind, argument, reserved, count) =
            (first as u8, (first >> 8) as u8, (first >> 16) as u16, (first >> 32) as u32);
        let takes = |argument_used: bool, count_used: bool| {
            let is_clean = reserved == 0 && (argument_used || argument == 0) && (count_used || count == 0);
            if is_clean { Ok(()) } else { Err(TcpWireError::Reserved) }
        };
        match kind {
            WRITE | READ => {
                takes(false, true)?;
                let request = self.request(count)?;
                Ok(if kind == WRITE { Message::Write(request) } else { Message::Read(request) })
            }
            DATA => {
                takes(true, true)?;
                let sequence = self.word()?;
                let bytes = match cause_of(argument)? {
                    None if count > 0 => Ok(count),
                    Some(cause) if count == 0 => Err(ReadRefusal { cause, revision: self.word()? }),
                    _ => return Err(TcpWireError::Length),
                };
                Ok(Message::Data { sequence, bytes })
            }
            NOTE => {
                takes(true, true)?;
                self.notification(argument, count as usize)
            }
            DONE => takes(false, false).and_then(|()| Ok(Message::Done { sequence: self.word()? })),
            REFUSED => {
                takes(true, false)?;
                let cause = cause_of(argument)?;
                Ok(Message::Refused { sequence: self.word()?, cause, revision: self.word()? })
            }
            CREDIT => takes(false, false).and_then(|()| Ok(Message::Credit { lines: self.word()? })),
            other => Err(TcpWireError::Kind(other)),
        }
    }

    fn request(&mut self, count: u32) -> Result<Request<'a>, TcpWireError> {
        if count == 0 || count as usize > SPANS_PER_POST {
            return Err(TcpWireError::Length);
        }
        let (sequence, transfer, name, revision) = (self.word()?, self.word()?, self.word()?, self.word()?);
        let key = RegionKey { region: RegionId(name as u32), generation: Generation((name >> 32) as u32) };
        let extents = self.take(count as usize * EXTENT_BYTES)?;
        let mut request = Request { sequence, transfer, key, revision, bytes: 0, extents };
        let mut bytes = 0u64;
        for (offset, len) in request.extents() {
            if len == 0 || offset.checked_add(len).is_none() {
                return Err(TcpWireError::Extent);
            }
            bytes = bytes.saturating_add(len);
        }
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(TcpWireError::Length);
        }
        request.bytes = bytes;
        Ok(request)
    }

    fn notification(&mut self, flags: u8, bytes: usize) -> Result<Message<'a>, TcpWireError> {
        let (has_note, has_counter) = (flags & HAS_NOTE != 0, flags & HAS_COUNTER != 0);
        if flags & !(HAS_NOTE | HAS_COUNTER) != 0 {
            return Err(TcpWireError::Reserved);
        }
        if bytes > NOTE_BYTES_MAX || flags == 0 {
            return Err(TcpWireError::Length);
        }
        let (sequence, transfer, low, high, counter) =
            (self.word()?, self.word()?, self.word()?, self.word()?, self.word()?);
        let is_clean = (has_note || (low | high == 0 && bytes == 0)) && (has_counter || counter == 0);
        let padded = self.take(bytes.next_multiple_of(WORD))?;
        let (payload, padding) = padded.split_at(bytes);
        if !is_clean || padding.iter().any(|&byte| byte != 0) {
            return Err(TcpWireError::Reserved);
        }
        let counter = CounterRef { index: counter as u32, generation: (counter >> 32) as u32 };
        let note = Note { id: NoteId(u128::from(low) | u128::from(high) << 64), payload };
        Ok(Message::Notify {
            sequence,
            transfer,
            counter: has_counter.then_some(counter),
            note: has_note.then_some(note),
        })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, TcpWireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.message();
        if message.is_err() {
            self.rest = &[];
        }
        Some(message)
    }
}

fn cause_of(code: u8) -> Result<Option<Cause>, TcpWireError> {
    match code {
        0 => Ok(None),
        code => Cause::from_code(code).map(Some).ok_or(TcpWireError::Cause(code)),
    }
}

fn first_word(kind: u8, argument: u8, count: usize) -> u64 {
    u64::from(kind) | u64::from(argument) << 8 | (count as u64) << 32
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// What a WRITE or a READ is made of, without its extents.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Its number on this stream.
    pub sequence: u64,
    /// The transfer it belongs to.
    pub transfer: u64,
    pub key: RegionKey,
    /// The target's revision that the plan was checked against.
    pub revision: u64,
}

/// Bytes of a WRITE or a READ with so many extents.
pub const fn request_bytes(extents: usize) -> usize {
    REQUEST_BYTES + extents * EXTENT_BYTES
}

/// Bytes of a notification with so long a note.
pub const fn notification_bytes(note: usize) -> usize {
    NOTE_HEAD_BYTES + note.next_multiple_of(WORD)
}

/// Bytes of any other message, at most.
pub const WORDS_BYTES_MAX: usize = 3 * WORD;

/// Writes a WRITE (`is_write`) or a READ.
pub fn put_request(
    out: &mut Vec<u8>,
    is_write: bool,
    asked: &Asked,
    extents: impl ExactSizeIterator<Item = (u64, u64)>,
) {
    let kind = if is_write { WRITE } else { READ };
    let name = u64::from(asked.key.region.0) | u64::from(asked.key.generation.0) << 32;
    put(out, &[first_word(kind, 0, extents.len()), asked.sequence, asked.transfer, name, asked.revision]);
    for (offset, len) in extents {
        put(out, &[offset, len]);
    }
}

pub fn put_data(out: &mut Vec<u8>, sequence: u64, bytes: Result<u32, ReadRefusal>) {
    match bytes {
        Ok(bytes) => put(out, &[first_word(DATA, 0, bytes as usize), sequence]),
        Err(ReadRefusal { cause, revision }) => put(out, &[first_word(DATA, cause.code(), 0), sequence, revision]),
    }
}

pub fn put_notification(
    out: &mut Vec<u8>,
    sequence: u64,
    transfer: u64,
    counter: Option<CounterRef>,
    note: Option<Note<'_>>,
) {
    let flags = if note.is_some() { HAS_NOTE } else { 0 } | if counter.is_some() { HAS_COUNTER } else { 0 };
    let Note { id, payload } = note.unwrap_or(Note { id: NoteId(0), payload: &[] });
    let counter = counter.map_or(0, |counter| u64::from(counter.index) | u64::from(counter.generation) << 32);
    let first = first_word(NOTE, flags, payload.len());
    put(out, &[first, sequence, transfer, id.0 as u64, (id.0 >> 64) as u64, counter]);
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(WORD), 0);
}

pub fn put_done(out: &mut Vec<u8>, sequence: u64) {
    put(out, &[first_word(DONE, 0, 0), sequence]);
}

pub fn put_refused(out: &mut Vec<u8>, sequence: u64, cause: Option<Cause>, revision: u64) {
    put(out, &[first_word(REFUSED, cause.map_or(0, Cause::code), 0), sequence, revision]);
}

pub fn put_credit(out: &mut Vec<u8>, lines: u64) {
    put(out, &[first_word(CREDIT, 0, 0), lines]);
}

#[cfg(test)]
mod tests;
