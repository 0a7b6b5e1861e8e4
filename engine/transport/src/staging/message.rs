//! What lanes of two engines say to each other of memory of devices, parsed as the untrusted bytes it is.
//!
//! ```text
//! byte 0   kind        1  direction, else 0      2  to worker u16     4  from worker u16     6  count u16
//! byte 8   WANT        number u64: how many of the peer's slots of that direction were ever asked for
//!          GRANTED     slot u32 …              they may be used until they are given back
//!          GIVEN_BACK  slot u32 …
//!          COPY        slot u32 | region u32 | generation u32 | 0 | number u64 | revision u64 | extents: offset u64, len u64 …
//!          COPIED      number u64, word u64 …      low byte 0: all of its bytes are there, else a cause; bit 8: others want the slot;
//!                                              with a cause, from bit 16 on: how far the owner's log of withdrawals has come
//! ```
//!
//! Numbers are little-endian. The direction is the asking side's: a WRITE's bytes are copied out of the slot, a READ's into it.

use penstock_core::limits::{NOTE_BYTES_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, RegionId};

/// A `COPY` of as many extents as a post has spans: nothing is longer.
const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + COPY_BYTES + SPANS_PER_POST * PAIR_BYTES;
const _: () = assert!(MESSAGE_BYTES_MAX <= NOTE_BYTES_MAX, "a message is a note");

const HEAD_BYTES: usize = 8;
const COPY_BYTES: usize = 32;
const PAIR_BYTES: usize = 16;

/// Slots and answers in one message at most.
pub(super) const SLOTS_MAX: usize = 64;
pub(super) const ANSWERS_MAX: usize = 64;

const WANT: u8 = 1;
const GRANTED: u8 = 2;
const GIVEN_BACK: u8 = 3;
const COPY: u8 = 4;
const COPIED: u8 = 5;

const SLOT_IS_WANTED: u64 = 1 << 8;

/// Bits below the revision that goes with a cause.
const REVISION_SHIFT: u32 = 16;

/// Which worker of each side it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workers {
    pub(super) to: u16,
    pub(super) from: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StagingMessage<'a> {
    Want { direction: Direction, asked: u64 },
    Granted { direction: Direction, slots: SlotList<'a> },
    GivenBack { direction: Direction, slots: SlotList<'a> },
    Copy(CopyRequest<'a>),
    Copied(Answers<'a>),
}

/// Asks the owner of a device's memory for a copy between it and a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyRequest<'a> {
    pub(super) direction: Direction,
    pub(super) slot: u32,
    pub(super) key: RegionKey,
    /// What the answer names it by.
    pub(super) number: u64,
    /// The owner's revision that the plan was checked against.
    pub(super) revision: u64,
    extents: &'a [[u8; PAIR_BYTES]],
}

impl CopyRequest<'_> {
    /// Where in the region, in the order of the bytes in the slot: offset and length.
    pub(super) fn extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
        self.extents.iter().map(pair)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotList<'a>(&'a [[u8; 4]]);

impl SlotList<'_> {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.0.iter().map(|slot| u32::from_le_bytes(*slot))
    }
}

/// Why there was no copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyRefusal {
    pub(super) cause: Cause,
    /// How far the log of withdrawals of the memory's owner has come.
    pub(super) revision: u64,
}

/// How a copy has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) end: Result<(), CopyRefusal>,
    /// Others wait for slots: this one is to be given back once its bytes are where they belong.
    pub(super) is_slot_wanted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answers<'a>(&'a [[u8; PAIR_BYTES]]);

impl Answers<'_> {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Answer> + '_ {
        let answer = |(number, word): (u64, u64)| {
            let end = match word as u8 {
                0 => Ok(()),
                // Else it is a cause of a later release.
                cause => Err(CopyRefusal {
                    cause: Cause::from_code(cause).unwrap_or(Cause::PeerCorrupt),
                    revision: word >> REVISION_SHIFT,
                }),
            };
            Answer { number, end, is_slot_wanted: word & SLOT_IS_WANTED != 0 }
        };
        self.0.iter().map(pair).map(answer)
    }
}

fn pair(bytes: &[u8; PAIR_BYTES]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// Bytes are not what a lane says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoMessage;

/// Reads a message. Any bytes are one, or none.
pub(super) fn parse(bytes: &[u8]) -> Result<(Workers, StagingMessage<'_>), NoMessage> {
    let (&[kind, direction, t0, t1, f0, f1, c0, c1], rest) =
        bytes.split_first_chunk::<HEAD_BYTES>().ok_or(NoMessage)?;
    let workers = Workers { to: u16::from_le_bytes([t0, t1]), from: u16::from_le_bytes([f0, f1]) };
    let count = u16::from_le_bytes([c0, c1]);
    let direction = match (kind, direction) {
        (COPIED, 0) | (_, 0) => Direction::Write,
        (WANT | GRANTED | GIVEN_BACK | COPY, 1) => Direction::Read,
        _ => return Err(NoMessage),
    };
    let slots = || match rest.as_chunks() {
        (slots, []) if slots.len() == usize::from(count) && slots.len() <= SLOTS_MAX => Ok(SlotList(slots)),
        _ => Err(NoMessage),
    };
    let pairs = |rest: &'_ [u8], most: usize| match rest.as_chunks::<PAIR_BYTES>() {
        (pairs, []) if pairs.len() == usize::from(count) && (1..=most).contains(&pairs.len()) => Ok(()),
        _ => Err(NoMessage),
    };
    let message = match kind {
        WANT if count > 0 => return Err(NoMessage),
        WANT => {
            let asked = rest.try_into().map_err(|_| NoMessage)?;
            StagingMessage::Want { direction, asked: u64::from_le_bytes(asked) }
        }
        GRANTED => StagingMessage::Granted { direction, slots: slots()? },
        GIVEN_BACK => StagingMessage::GivenBack { direction, slots: slots()? },
        COPY => {
            let (head, extents) = rest.split_first_chunk::<COPY_BYTES>().ok_or(NoMessage)?;
            pairs(extents, SPANS_PER_POST)?;
            let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            if word(12) != 0 {
                return Err(NoMessage);
            }
            StagingMessage::Copy(CopyRequest {
                direction,
                slot: word(0),
                key: RegionKey { region: RegionId(word(4)), generation: Generation(word(8)) },
                number: long(16),
                revision: long(24),
                extents: extents.as_chunks().0,
            })
        }
        COPIED => {
            pairs(rest, ANSWERS_MAX)?;
            StagingMessage::Copied(Answers(rest.as_chunks().0))
        }
        _ => return Err(NoMessage),
    };
    Ok((workers, message))
}

fn head(out: &mut Vec<u8>, workers: Workers, kind: u8, direction: Direction, count: usize) {
    out.clear();
    out.extend([kind, direction as u8]);
    [workers.to, workers.from, count as u16].iter().for_each(|number| out.extend(number.to_le_bytes()));
}

pub(super) fn put_want(out: &mut Vec<u8>, workers: Workers, direction: Direction, asked: u64) {
    head(out, workers, WANT, direction, 0);
    out.extend(asked.to_le_bytes());
}

pub(super) fn put_granted(
    out: &mut Vec<u8>,
    workers: Workers,
    direction: Direction,
    slots: impl ExactSizeIterator<Item = u32>,
) {
    head(out, workers, GRANTED, direction, slots.len());
    slots.for_each(|slot| out.extend(slot.to_le_bytes()));
}

pub(super) fn put_given_back(out: &mut Vec<u8>, workers: Workers, direction: Direction, slots: &[u32]) {
    head(out, workers, GIVEN_BACK, direction, slots.len());
    slots.iter().for_each(|slot| out.extend(slot.to_le_bytes()));
}

/// What a COPY says beside its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyHead {
    pub(super) direction: Direction,
    pub(super) slot: u32,
    pub(super) key: RegionKey,
    pub(super) number: u64,
    pub(super) revision: u64,
}

pub(super) fn put_copy(
    out: &mut Vec<u8>,
    workers: Workers,
    copy: &CopyHead,
    extents: impl ExactSizeIterator<Item = (u64, u64)>,
) {
    head(out, workers, COPY, copy.direction, extents.len());
    [copy.slot, copy.key.region.0, copy.key.generation.0, 0].iter().for_each(|number| out.extend(number.to_le_bytes()));
    [copy.number, copy.revision].iter().for_each(|number| out.extend(number.to_le_bytes()));
    extents.for_each(|(offset, len)| [offset, len].iter().for_each(|number| out.extend(number.to_le_bytes())));
}

pub(super) fn put_copied(out: &mut Vec<u8>, workers: Workers, answers: impl ExactSizeIterator<Item = Answer>) {
    head(out, workers, COPIED, Direction::Write, answers.len());
    for Answer { number, end, is_slot_wanted } in answers {
        let refused = |CopyRefusal { cause, revision }| u64::from(cause.code()) | revision << REVISION_SHIFT;
        let cause = end.err().map_or(0, refused);
        let word = cause | if is_slot_wanted { SLOT_IS_WANTED } else { 0 };
        [number, word].iter().for_each(|number| out.extend(number.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORKERS: Workers = Workers { to: 3, from: 700 };

    #[test]
    fn what_is_said_is_heard() {
        let mut out = Vec::new();
        for direction in [Direction::Write, Direction::Read] {
            put_want(&mut out, WORKERS, direction, 9);
            assert_eq!(parse(&out), Ok((WORKERS, StagingMessage::Want { direction, asked: 9 })));
            put_granted(&mut out, WORKERS, direction, [7, 1 << 20].into_iter());
            let Ok((WORKERS, StagingMessage::Granted { direction: heard, slots })) = parse(&out) else { panic!() };
            assert_eq!((heard, slots.iter().collect::<Vec<_>>()), (direction, vec![7, 1 << 20]));
            put_given_back(&mut out, WORKERS, direction, &[2]);
            assert!(matches!(parse(&out), Ok((WORKERS, StagingMessage::GivenBack { .. }))));
            let key = RegionKey { region: RegionId(5), generation: Generation(6) };
            let copy = CopyHead { direction, slot: 4, key, number: u64::MAX - 1, revision: 1 << 40 };
            let extents: Vec<(u64, u64)> = (0..SPANS_PER_POST as u64).map(|at| (at << 33, 1 + at)).collect();
            put_copy(&mut out, WORKERS, &copy, extents.iter().copied());
            assert_eq!(out.len(), MESSAGE_BYTES_MAX);
            let Ok((WORKERS, StagingMessage::Copy(heard))) = parse(&out) else { panic!() };
            let CopyRequest { direction, slot, key, number, revision, .. } = heard;
            assert_eq!(CopyHead { direction, slot, key, number, revision }, copy);
            assert_eq!(heard.extents().collect::<Vec<_>>(), extents);
        }
        let answer = |number, end, is_slot_wanted| Answer { number, end, is_slot_wanted };
        let answers = [
            answer(1, Ok(()), true),
            answer(u64::MAX, Err(CopyRefusal { cause: Cause::RevokedByPeer, revision: (1 << 48) - 1 }), false),
        ];
        put_copied(&mut out, WORKERS, answers.into_iter());
        let Ok((WORKERS, StagingMessage::Copied(heard))) = parse(&out) else { panic!() };
        assert_eq!(heard.iter().collect::<Vec<_>>(), answers);
    }

    #[test]
    fn messages_that_are_too_long_or_too_short_are_none() {
        let mut out = Vec::new();
        put_want(&mut out, WORKERS, Direction::Read, 1);
        assert_eq!(parse(&out[..7]), Err(NoMessage));
        out.push(0);
        assert_eq!(parse(&out), Err(NoMessage));
        put_given_back(&mut out, WORKERS, Direction::Read, &[0; SLOTS_MAX + 1]);
        assert_eq!(parse(&out), Err(NoMessage));
        put_copied(&mut out, WORKERS, [].into_iter());
        assert_eq!(parse(&out), Err(NoMessage));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((_, StagingMessage::Copy(copy))) = parse(&bytes) {
                prop_assert!(copy.extents().len() <= SPANS_PER_POST);
            }
        }
    }
}
