//! Writing a packet.

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, NoteId};
use penstock_transport::CounterRef;

use super::{
    AckBlock, CHECKSUM_BYTES, CREDIT, DATA, GIVEN_UP, HAS_ACK, HAS_COUNTER, HAS_NOTE, IS_CHECKED, IS_PADDED, NOTIFY,
    NotifyHead, OpPart, READ, REFUSED, TAG_BYTES, WRITE, covered,
};
use crate::checksum::crc32c;
use crate::siphash::SipKey;

fn first_word(head: [u8; 4], second: u32) -> u64 {
    u64::from(second) << 32 | u64::from(u32::from_le_bytes(head))
}

/// Writes one packet into a frame: its header first, then the heads of its messages, then their payload.
pub struct PacketWriter<'a> {
    frame: &'a mut [u8],
    at: usize,
    messages: u8,
    flags: u8,
}

impl<'a> PacketWriter<'a> {
    /// Begins a packet. The frame has room for all that will be put into it.
    pub fn new(frame: &'a mut [u8], connection: u64, number: u64, used: u32, ack: Option<&AckBlock>) -> Self {
        let mut writer = Self { frame, at: 0, messages: 0, flags: 0 };
        writer.words([connection, number, u64::from(used) << 32]);
        if let Some(ack) = ack {
            writer.flags = HAS_ACK;
            writer.words([ack.highest, ack.lowest, ack.credit, ack.watermark]);
            writer.u32(ack.delay_ns);
            writer.put([ack.received.len, ack.finished.len]);
            writer.put(ack.taken.to_le_bytes());
            for bits in [&ack.received, &ack.finished] {
                bits.words[..usize::from(bits.len)].iter().for_each(|&word| writer.u64(word));
            }
        }
        writer
    }

    /// Bytes of a fixed number, written with one store.
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        *self.frame[self.at..].first_chunk_mut().expect("the frame has room for what was selected") = bytes;
        self.at += N;
    }

    /// Each with one store, but it is looked once whether there is room.
    #[inline]
    fn words<const N: usize>(&mut self, words: [u64; N]) {
        let room = self.frame[self.at..].as_chunks_mut::<8>().0.first_chunk_mut::<N>();
        let room = room.expect("the frame has room for what was selected");
        room.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        self.at += 8 * N;
    }

    #[inline]
    fn u32(&mut self, number: u32) {
        self.put(number.to_le_bytes());
    }

    #[inline]
    fn u64(&mut self, number: u64) {
        self.put(number.to_le_bytes());
    }

    fn begin(&mut self, head: [u8; 4], second: u32, operation: u64) {
        self.messages += 1;
        self.words([first_word(head, second), operation]);
    }

    #[inline]
    fn request(&mut self, head: [u8; 4], operation: u64, key: RegionKey, revision: u64) {
        self.messages += 1;
        self.words([first_word(head, key.region.0), operation, revision]);
        self.u32(key.generation.0);
    }

    pub fn write(
        &mut self,
        part: OpPart,
        key: RegionKey,
        revision: u64,
        extents: impl ExactSizeIterator<Item = (u64, u32)>,
    ) {
        self.request([WRITE, part.index, part.count, extents.len() as u8], part.operation, key, revision);
        self.extents(extents);
    }

    pub fn read(
        &mut self,
        operation: u64,
        key: RegionKey,
        revision: u64,
        extents: impl ExactSizeIterator<Item = (u64, u32)>,
    ) {
        self.request([READ, 0, 0, extents.len() as u8], operation, key, revision);
        self.extents(extents);
    }

    fn extents(&mut self, extents: impl Iterator<Item = (u64, u32)>) {
        for (offset, len) in extents {
            self.u64(offset);
            self.u32(len);
        }
    }

    pub fn data(&mut self, part: OpPart, bytes: u32) {
        self.begin([DATA, part.index, part.count, 0], bytes, part.operation);
    }

    pub fn notify(&mut self, part: OpPart, notify: &NotifyHead, bytes: u16) {
        let (id, of) = notify.note.unwrap_or((NoteId(0), 0));
        let has = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = has(notify.note.is_some(), HAS_NOTE) | has(notify.counter.is_some(), HAS_COUNTER);
        let second = u32::from(of) << 16 | u32::from(bytes);
        self.begin([NOTIFY, part.index, part.count, flags], second, part.operation);
        let counter = notify.counter.unwrap_or(CounterRef { index: 0, generation: 0 });
        self.u32(counter.index);
        self.u32(counter.generation);
        self.put(id.0.to_le_bytes());
        notify.before.into_iter().for_each(|word| self.u64(word));
    }

    pub fn given_up(&mut self, operation: u64) {
        self.begin([GIVEN_UP, 0, 0, 0], 0, operation);
    }

    pub fn refused(&mut self, operation: u64, cause: Option<Cause>, revision: u64) {
        self.begin([REFUSED, cause.map_or(0, Cause::code), 0, 0], 0, operation);
        self.u64(revision);
    }

    pub fn credit(&mut self, lines: u64) {
        self.begin([CREDIT, 0, 0, 0], 0, lines);
    }

    /// All heads are put: room for so many bytes of payload behind the tag, whose place depends on whether there is a checksum.
    pub fn payload(&mut self, bytes: usize, is_checked: bool) -> &mut [u8] {
        let start = self.bytes(0, is_checked);
        &mut self.frame[start..start + bytes]
    }

    /// All heads are put: its length with so many bytes of payload.
    pub fn bytes(&self, payload: usize, is_checked: bool) -> usize {
        self.at + if is_checked { CHECKSUM_BYTES } else { 0 } + TAG_BYTES + payload
    }

    /// Ends a packet with so many bytes of payload, and so much padding. Answers its length.
    pub fn finish(mut self, bytes: usize, padding: usize, is_checked: bool, key: &SipKey) -> usize {
        let end = self.bytes(0, is_checked);
        // The frame has bytes of earlier packets in it, for other peers.
        if padding > 0 {
            self.frame[end + bytes..end + bytes + padding].fill(0);
        }
        let bytes = bytes + padding;
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = self.flags | flag(is_checked, IS_CHECKED) | flag(padding > 0, IS_PADDED);
        let [low, high] = (end as u16).to_le_bytes();
        self.frame[16..20].copy_from_slice(&[low, high, self.messages, flags]);
        if is_checked {
            self.u32(crc32c(&self.frame[end..end + bytes]));
        }
        let tag = key.tag(covered(&self.frame[..self.at]));
        self.u64(tag);
        end + bytes
    }
}
