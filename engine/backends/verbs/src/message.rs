//! What the two ends of a rail say to each other, parsed as the untrusted bytes it is.
//!
//! A message is numbered on its rail and in the life of its queue. Its head tells the sender's side of what it has heard: how many messages
//! of the other side, which of those named a counter that was gone, how many notes were taken. A counter that was named once on a rail, and
//! the mark of a notification, need no memory at all: they travel as the 32 bits of an *immediate*, behind or inside a write, and
//! tell of what was heard as well: two sides that count each other up say nothing else.
//!
//! ```text
//! byte  0   version      1   kind        2   life        3   nothing
//! byte  4   number       8   heard      12   taken      16   gone (bit i: the counter of message heard - 1 - i)
//! byte 24   what the kind says
//! ```

use penstock_core::NoteId;
use penstock_core::limits::{COUNTERS_MAX, NOTE_BYTES_MAX};
use penstock_transport::{CounterRef, Note};

/// What this release speaks.
const VERSION: u8 = 1;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 24;

/// Bytes of a notification before its note's payload.
const NOTIFICATION_BYTES: usize = 32;

pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + NOTIFICATION_BYTES + NOTE_BYTES_MAX;

/// Messages of one side that the other side has not confirmed, at most: as many as [`Head::gone`] has bits.
pub const GRANTS_MAX: u32 = u64::BITS;

/// Announcements are numbered in a circle of so many: more than can be open at the same time.
pub const NOTIFICATIONS: u16 = 1 << VALUE_BITS;

/// The number of all proofs, which no notification gets: nothing is kept of a proof where it is heard, so that they can share one.
pub const PROOFS: u16 = NOTIFICATIONS - 1;

const LIFE_BITS: u32 = 6;

/// What an immediate is made of: its kind, the low bits of the life, of its number and of what was heard, and a value.
const KIND_BITS: u32 = 2;
const SHORT_LIFE_BITS: u32 = 4;
const NUMBER_BITS: u32 = 7;
const HEARD_BITS: u32 = 7;
const VALUE_BITS: u32 = 12;

const _: () = assert!(COUNTERS_MAX <= 1 << VALUE_BITS, "an immediate names every counter");
const _: () = assert!(GRANTS_MAX < 1 << NUMBER_BITS, "numbers of messages under way are told apart");
const _: () = assert!(GRANTS_MAX < 1 << HEARD_BITS, "so are counts of those that were heard");
const _: () = assert!(SHORT_LIFE_BITS <= LIFE_BITS);
const _: () = assert!(KIND_BITS + SHORT_LIFE_BITS + NUMBER_BITS + HEARD_BITS + VALUE_BITS == u32::BITS);

const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const NOTIFY: u8 = 3;
const MARK: u8 = 4;
const FORGET: u8 = 5;
const FENCE: u8 = 6;

const WITH_COUNTER: u8 = 1;
const WITH_NOTE: u8 = 2;

/// What every message says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The life of the queue, its low bits.
    pub life: u8,
    /// Its number on its rail: how many came before it.
    pub number: u32,
    /// How many messages of the other side were heard on this rail.
    pub heard: u32,
    /// How many notes of the other side were taken on this rail.
    pub taken: u32,
    /// Which of the last messages heard named a counter that was gone: the lowest bit is the last one.
    pub gone: u64,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// The first on a queue: who is there.
    Hello(RailHello),
    /// Nothing but its head.
    Answer,
    /// A transfer's bytes are here, once so many marks have come.
    Notify(NotifyMessage<'a>),
    /// What a notification waits for is here, as far as it went over this rail.
    Mark(u16),
    /// A notification is not to be made.
    Forget(Forgotten),
    /// Nothing comes any more that was posted before the sender knew of this revision.
    Fence(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RailHello {
    /// The number of the channel.
    pub channel: u16,
    /// The number of the rail.
    pub rail: u8,
    /// How many messages the sender takes before it confirms one.
    pub grants: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyMessage<'a> {
    /// Its number, where it waits for marks.
    pub number: u16,
    /// How many it waits for.
    pub marks: u8,
    /// A counter to count up; from now on an immediate can name it on this rail.
    pub counter: Option<CounterRef>,
    /// A note to deliver.
    pub note: Option<Note<'a>>,
}

/// A notification that is not to be made. One of which nothing has left, neither marks nor itself, asks for an answer and for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    pub number: u16,
    /// How many of its marks come, or have come, all the same.
    pub marks: u8,
    /// Whether it comes itself, or has.
    pub is_said: bool,
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Another release, or none.
    #[error("a message of version {0}, this is {VERSION}")]
    Version(u8),
    /// A kind nobody sends.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// Its length is not that of its kind.
    #[error("a message of {0} bytes has the wrong length for what it says")]
    Length(usize),
    /// Bits that are to be zero are not.
    #[error("reserved bits of a message are in use")]
    Reserved,
    /// It names a place that no table has, or notifies of nothing.
    #[error("a message names a counter or a notification that cannot be")]
    Name,
}

/// Writes a message and answers its bytes.
pub fn encode(head: &Head, body: &Body<'_>, out: &mut [u8; MESSAGE_BYTES_MAX]) -> usize {
    let mut writer = Writer { out, at: 0 };
    let kind = match body {
        Body::Hello(_) => HELLO,
        Body::Answer => ANSWER,
        Body::Notify(_) => NOTIFY,
        Body::Mark(_) => MARK,
        Body::Forget(_) => FORGET,
        Body::Fence(_) => FENCE,
    };
    writer.put(&[VERSION, kind, head.life, 0]);
    writer.put(&head.number.to_le_bytes());
    writer.put(&head.heard.to_le_bytes());
    writer.put(&head.taken.to_le_bytes());
    writer.put(&head.gone.to_le_bytes());
    match *body {
        Body::Answer => {}
        Body::Hello(RailHello { channel, rail, grants }) => {
            writer.put(&channel.to_le_bytes());
            writer.put(&[rail, 0]);
            writer.put(&grants.to_le_bytes());
        }
        Body::Notify(NotifyMessage { number, marks, counter, note }) => {
            let with = (u8::from(counter.is_some()) * WITH_COUNTER) | (u8::from(note.is_some()) * WITH_NOTE);
            let CounterRef { index, generation } = counter.unwrap_or(CounterRef { index: 0, generation: 0 });
            writer.put(&number.to_le_bytes());
            writer.put(&[marks, with, 0, 0, 0, 0]);
            writer.put(&index.to_le_bytes());
            writer.put(&generation.to_le_bytes());
            writer.put(&note.map_or(0, |note| note.id.0).to_le_bytes());
            writer.put(note.map_or(&[], |note| note.payload));
        }
        Body::Mark(number) => writer.put(&u64::from(number).to_le_bytes()),
        Body::Forget(Forgotten { number, marks, is_said }) => {
            writer.put(&number.to_le_bytes());
            writer.put(&[marks, u8::from(is_said), 0, 0, 0, 0]);
        }
        Body::Fence(revision) => writer.put(&revision.to_le_bytes()),
    }
    writer.at
}

/// Reads a message. Any bytes are one, or an error.
pub fn parse(bytes: &[u8]) -> Result<(Head, Body<'_>), MessageError> {
    let wrong_length = MessageError::Length(bytes.len());
    let mut reader = Reader { rest: bytes, wrong_length };
    let [version, kind, life, nothing] = *reader.take::<4>()?;
    if version != VERSION {
        return Err(MessageError::Version(version));
    }
    reserved(nothing == 0 && life < 1 << LIFE_BITS)?;
    let (number, heard, taken) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let head = Head { life, number, heard, taken, gone: reader.u64()? };
    let body = match kind {
        HELLO => {
            let channel = reader.u16()?;
            let [rail, nothing] = *reader.take::<2>()?;
            reserved(nothing == 0)?;
            Body::Hello(RailHello { channel, rail, grants: reader.u32()? })
        }
        ANSWER => Body::Answer,
        NOTIFY => Body::Notify(notification(&mut reader)?),
        MARK => Body::Mark(notification_number(reader.u64()?)?),
        FORGET => {
            let number = notification_number(reader.u16()?.into())?;
            let [marks, is_said, nothing @ ..] = *reader.take::<6>()?;
            reserved(is_said <= 1 && nothing == [0; 4])?;
            Body::Forget(Forgotten { number, marks, is_said: is_said == 1 })
        }
        FENCE => Body::Fence(reader.u64()?),
        other => return Err(MessageError::Kind(other)),
    };
    if reader.rest.is_empty() { Ok((head, body)) } else { Err(wrong_length) }
}

fn notification<'a>(reader: &mut Reader<'a>) -> Result<NotifyMessage<'a>, MessageError> {
    let number = notification_number(reader.u16()?.into())?;
    let [marks, with, nothing @ ..] = *reader.take::<6>()?;
    reserved(with <= WITH_COUNTER | WITH_NOTE && nothing == [0; 4])?;
    let (index, generation) = (reader.u32()?, reader.u32()?);
    let id = NoteId(u128::from_le_bytes(*reader.take()?));
    let payload = std::mem::take(&mut reader.rest);
    let counter = (with & WITH_COUNTER != 0).then_some(CounterRef { index, generation });
    let note = (with & WITH_NOTE != 0).then_some(Note { id, payload });
    reserved(counter.is_some() || (index, generation) == (0, 0))?;
    reserved(note.is_some() || id.0 == 0)?;
    if with == 0 || index as usize >= COUNTERS_MAX {
        return Err(MessageError::Name);
    }
    if payload.len() > note.map_or(0, |_| NOTE_BYTES_MAX) {
        return Err(reader.wrong_length);
    }
    Ok(NotifyMessage { number, marks, counter, note })
}

fn notification_number(number: u64) -> Result<u16, MessageError> {
    u16::try_from(number).ok().filter(|number| *number < NOTIFICATIONS).ok_or(MessageError::Name)
}

fn reserved(is_clean: bool) -> Result<(), MessageError> {
    if is_clean { Ok(()) } else { Err(MessageError::Reserved) }
}

/// The low bits of a queue's life, as messages carry them.
pub fn low_life(life: u32) -> u8 {
    (life & ((1 << LIFE_BITS) - 1)) as u8
}

/// A message without memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate {
    /// The life of the queue, its low bits.
    life: u8,
    /// The low bits of its number on its rail.
    number: u8,
    /// How many messages of the other side were heard on this rail and not told of otherwise, the low bits. None of them named a
    /// counter that was gone: there is no room to say which.
    heard: u8,
    pub says: Says,
}

/// What an immediate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The counter at this place, of the generation that was named last on this rail, goes up.
    Count(u16),
    /// What this notification waits for is here, as far as it went over this rail.
    Mark(u16),
}

impl Immediate {
    /// One of this life and number, which tells how many messages of the other side were heard.
    pub fn new(life: u32, (number, heard): (u32, u32), says: Says) -> Self {
        Self {
            life: low_bits(life, SHORT_LIFE_BITS),
            number: low_bits(number, NUMBER_BITS),
            heard: low_bits(heard, HEARD_BITS),
            says,
        }
    }

    /// Whether it may be of this life of the queue.
    pub fn has_life(&self, life: u32) -> bool {
        self.life == low_bits(life, SHORT_LIFE_BITS)
    }

    /// Whether this is the number that it should have.
    pub fn has_number(&self, number: u32) -> bool {
        self.number == low_bits(number, NUMBER_BITS)
    }

    /// How many messages were heard, if it were `before` so far: fewer are under way than bits tell apart.
    pub fn heard_since(&self, before: u32) -> u32 {
        let more = u32::from(self.heard).wrapping_sub(before) & ((1 << HEARD_BITS) - 1);
        before.wrapping_add(more)
    }

    pub fn encode(&self) -> u32 {
        let (kind, value) = match self.says {
            Says::Count(index) => (1, index),
            Says::Mark(number) => (2, number),
        };
        let fields = [
            (u32::from(self.life), SHORT_LIFE_BITS),
            (u32::from(self.number), NUMBER_BITS),
            (u32::from(self.heard), HEARD_BITS),
            (u32::from(value), VALUE_BITS),
        ];
        fields.iter().fold(kind, |bits, (field, width)| bits << width | field)
    }

    pub fn parse(bits: u32) -> Result<Self, MessageError> {
        let field = |shift: u32, width: u32| (bits >> shift & ((1 << width) - 1)) as u16;
        let value = field(0, VALUE_BITS);
        let says = match bits >> (u32::BITS - KIND_BITS) {
            1 if usize::from(value) < COUNTERS_MAX => Says::Count(value),
            1 => return Err(MessageError::Name),
            2 => Says::Mark(value),
            other => return Err(MessageError::Kind(other as u8)),
        };
        Ok(Self {
            life: field(VALUE_BITS + HEARD_BITS + NUMBER_BITS, SHORT_LIFE_BITS) as u8,
            number: field(VALUE_BITS + HEARD_BITS, NUMBER_BITS) as u8,
            heard: field(VALUE_BITS, HEARD_BITS) as u8,
            says,
        })
    }
}

fn low_bits(number: u32, bits: u32) -> u8 {
    (number & ((1 << bits) - 1)) as u8
}

struct Writer<'a> {
    out: &'a mut [u8; MESSAGE_BYTES_MAX],
    at: usize,
}

impl Writer<'_> {
    /// The longest message fits: a note's length was checked when it was submitted.
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    wrong_length: MessageError,
}

impl<'a> Reader<'a> {
    fn take<const BYTES: usize>(&mut self) -> Result<&'a [u8; BYTES], MessageError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(self.wrong_length)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(payload: &[u8]) -> impl Strategy<Value = Body<'_>> {
        let counter = prop::option::of((0..COUNTERS_MAX as u32, any::<u32>()));
        let notify = (0..NOTIFICATIONS, any::<u8>(), counter, any::<u128>(), any::<bool>());
        prop_oneof![
            (any::<u16>(), any::<u8>(), any::<u32>()).prop_map(|(channel, rail, grants)| Body::Hello(RailHello {
                channel,
                rail,
                grants
            })),
            Just(Body::Answer),
            notify.prop_map(move |(number, marks, counter, id, has_note)| {
                let counter = counter.map(|(index, generation)| CounterRef { index, generation });
                let note = (has_note || counter.is_none()).then_some(Note { id: NoteId(id), payload });
                Body::Notify(NotifyMessage { number, marks, counter, note })
            }),
            (0..NOTIFICATIONS).prop_map(Body::Mark),
            (0..NOTIFICATIONS, any::<u8>(), any::<bool>())
                .prop_map(|(number, marks, is_said)| Body::Forget(Forgotten { number, marks, is_said })),
            any::<u64>().prop_map(Body::Fence),
        ]
    }

    fn head() -> impl Strategy<Value = Head> {
        (0..1u8 << LIFE_BITS, any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>())
            .prop_map(|(life, number, heard, taken, gone)| Head { life, number, heard, taken, gone })
    }

    const PAYLOAD: &[u8] = b"a note that says something";

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(head in head(), body in body(PAYLOAD)) {
            let mut out = [0xee; MESSAGE_BYTES_MAX];
            let bytes = encode(&head, &body, &mut out);
            prop_assert_eq!(parse(&out[..bytes]), Ok((head, body)));
            prop_assert!(parse(&out[..bytes - 1]) != Ok((head, body)), "cut short");
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..128), kind in 0u8..8) {
            if let [version, of, life, nothing, ..] = &mut bytes[..] {
                (*version, *of, *life, *nothing) = (VERSION, kind, *life & 63, 0);
            }
            if let Ok((head, body)) = parse(&bytes) {
                let mut out = [0; MESSAGE_BYTES_MAX];
                let again = encode(&head, &body, &mut out);
                prop_assert_eq!(&out[..again], &bytes[..]);
            }
        }

        #[test]
        fn an_immediate_has_one_form(bits: u32) {
            if let Ok(immediate) = Immediate::parse(bits) {
                prop_assert_eq!(immediate.encode(), bits);
            }
        }
    }

    #[test]
    fn the_longest_note_fits() {
        let payload = [7; NOTE_BYTES_MAX];
        let note = Some(Note { id: NoteId(u128::MAX), payload: &payload });
        let counter = Some(CounterRef { index: COUNTERS_MAX as u32 - 1, generation: u32::MAX });
        let body = Body::Notify(NotifyMessage { number: NOTIFICATIONS - 1, marks: 7, counter, note });
        let mut out = [0; MESSAGE_BYTES_MAX];
        assert_eq!(encode(&Head::default(), &body, &mut out), MESSAGE_BYTES_MAX);
        assert_eq!(parse(&out), Ok((Head::default(), body)));
    }

    #[test]
    fn an_immediate_says_what_was_said() {
        let cases =
            [(0, 0, 0, Says::Count(0)), (65, 4097, 129, Says::Count(4095)), (7, 31, u32::MAX - 3, Says::Mark(12))];
        for (life, number, count, says) in cases {
            let immediate = Immediate::new(life, (number, count), says);
            let heard = Immediate::parse(immediate.encode()).unwrap();
            assert_eq!((heard, heard.says), (immediate, says));
            assert!(heard.has_life(life) && !heard.has_life(life + 1));
            assert!(heard.has_number(number) && !heard.has_number(number + 1));
            for under_way in 0..=GRANTS_MAX {
                assert_eq!(heard.heard_since(count.wrapping_sub(under_way)), count);
            }
        }
    }
}
