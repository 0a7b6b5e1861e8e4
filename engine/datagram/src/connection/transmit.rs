//! Putting packets together: what the next one carries, and its bytes.

use penstock_core::{Cause, Timestamp};

use super::{DatagramConnection, LentPiece, LocalSide, NUMBERS_MAX, OutgoingOp, PacketRoom, Piece, on_lost};
use crate::credit::charge;
use crate::in_flight::PacketItem;
use crate::wire::{
    ACK_WORDS, ACK_WORDS_WITH_PAYLOAD, AckBlock, DATA_BYTES, EXTENT_BYTES, FIXED_BYTES, MESSAGES_MAX, NOTIFY_BYTES,
    PacketWriter, REFUSED_BYTES, SHORT_BYTES, TAG_BYTES, WRITE_BYTES, ack_bytes,
};

/// So far ahead of the packet that is written bytes are fetched, and at most so many for each packet: less leaves too little time, and
/// in long pieces the processor looks ahead by itself.
const PREFETCHED_BYTES: usize = 8192;

/// Shorter pieces, on the average of a packet, are copied: each that is lent costs about as much.
const LENT_BYTES_MIN: usize = 512;

/// Bytes of an item in a header, and of its payload.
struct ItemSize {
    heads: usize,
    payload: usize,
    /// In how many pieces of this side's memory the payload lies at most; none: elsewhere, or nobody asked.
    pieces: Option<usize>,
}

/// The messages of the packet that is being put together.
#[derive(Debug, Default)]
pub(super) struct Selection {
    items: Vec<PacketItem>,
    /// Bytes that are left for more.
    room: usize,
    payload: usize,
    /// In how many pieces of memory that lies; none: some of it is not memory of this side.
    pieces: Option<usize>,
    /// Whether it carries anything for the first time.
    is_first: bool,
}

impl DatagramConnection {
    /// Puts the next packet together, and answers how many bytes of it were written; those that are lent come behind them. None:
    /// nothing is to be sent now.
    pub fn transmit(&mut self, now: Timestamp, mut room: PacketRoom<'_>, side: &mut impl LocalSide) -> Option<usize> {
        self.excuse_standstill(now);
        if self.settings.checksums {
            room.lent = None; // What is checked is read here anyway.
        }
        loop {
            room.lent.iter_mut().for_each(|lent| lent.clear());
            let owes_ack = self.ack_is_due(now);
            self.select(now, owes_ack, room.lent.is_some());
            if self.selection.items.is_empty() && !owes_ack {
                self.turn_by = self.deadline();
                return None;
            }
            let (failed, cause) = match self.build(now, owes_ack, &mut room, side) {
                Ok(bytes) => return Some(bytes),
                Err(failed) => failed,
            };
            // Memory of one of them is not there any more: that ends, and the others are selected again.
            for &item in &self.selection.items {
                on_lost(item, &mut self.initiator, &mut self.target, &mut self.note_credit);
            }
            match failed {
                PacketItem::Data(part) => self.target.fail_read(part.operation, cause, side),
                PacketItem::Write(part) => self.initiator.fail(part.operation, cause),
                _ => {}
            }
        }
    }

    /// Why no packet with messages may leave now; until when, if time alone ends that.
    fn held_back(&self, now: Timestamp) -> Option<Timestamp> {
        let frame = self.settings.frame_bytes as u64;
        let (under_way, window) = (self.packets.bytes(), self.congestion.window());
        if self.packets.span() >= NUMBERS_MAX || (under_way > 0 && under_way + frame > window.max(frame)) {
            return Some(Timestamp::NEVER);
        }
        let (at, bytes) = self.last_sent;
        let paced = self.congestion.pace(at, bytes);
        (bytes > 0 && paced > now).then_some(paced)
    }

    /// Chooses what the next packet carries, and takes it: control first, then data of both directions in turns. An acknowledgement that
    /// is owed has its room; if nothing fits beside it, it leaves alone.
    fn select(&mut self, now: Timestamp, owes_ack: bool, lends: bool) {
        let ack_room = if owes_ack { ack_bytes(ACK_WORDS_WITH_PAYLOAD) } else { 0 };
        self.selection.begin(self.settings.message_frame() - FIXED_BYTES - TAG_BYTES - ack_room);
        self.blocked_until = self.held_back(now);
        if self.blocked_until.is_some() {
            return;
        }
        let has_credit = self.send_credit.allows(charge(self.settings.frame_bytes), now);
        let mut from = 0;
        while self.selection.has_room()
            && let Some(item) = self.candidate(&mut from, has_credit)
        {
            let size = self.size(item, lends);
            if !self.selection.push(item, size) {
                break;
            }
            match item {
                PacketItem::Credit(_) => self.note_credit = None,
                PacketItem::Refused(_) => _ = self.target.on_sent(item),
                PacketItem::GivenUp(_) => _ = self.initiator.on_sent(item),
                _ => {
                    let is_answer = matches!(item, PacketItem::Data(_));
                    let is_first = if is_answer { self.target.on_sent(item) } else { self.initiator.on_sent(item) };
                    self.selection.is_first |= is_first;
                    self.statistics.repeated += u64::from(!is_first);
                }
            }
            self.answers_turn = !matches!(item, PacketItem::Data(_));
        }
        if self.selection.items.is_empty() && !has_credit {
            self.blocked_until = Some(self.send_credit.lapses_at());
        }
    }

    fn candidate(&mut self, from: &mut u64, has_credit: bool) -> Option<PacketItem> {
        let control = self.target.next_refusal().or(self.note_credit.map(PacketItem::Credit));
        if control.is_some() {
            return control;
        }
        let may_leave = |is_first: bool| has_credit || !is_first;
        let answer = self.target.next_answer().filter(|&item| match item {
            PacketItem::Data(part) => may_leave(self.target.is_first(part)),
            _ => true,
        });
        if answer.is_some() && self.answers_turn {
            return answer;
        }
        while let Some(item) = self.initiator.next_item(*from) {
            if matches!(item, PacketItem::GivenUp(_)) || may_leave(self.initiator.is_first(item)) {
                return Some(item);
            }
            *from = item.operation() + 1;
        }
        answer
    }

    fn size(&self, item: PacketItem, lends: bool) -> ItemSize {
        let head = |heads| ItemSize { heads, payload: 0, pieces: Some(0) };
        match item {
            PacketItem::Write(part) => {
                let (pieces, payload) = self.initiator.part_size(part);
                ItemSize { heads: WRITE_BYTES + pieces * EXTENT_BYTES, payload, pieces: Some(pieces) }
            }
            PacketItem::Read(operation) => head(WRITE_BYTES + self.initiator.request(operation).2.len() * EXTENT_BYTES),
            PacketItem::Notify(part) => {
                let payload = self.initiator.note(part).1.len();
                ItemSize { heads: NOTIFY_BYTES, payload, pieces: (payload == 0).then_some(0) }
            }
            PacketItem::Data(part) => {
                let pieces = lends.then(|| self.target.answer_extents(part));
                ItemSize { heads: DATA_BYTES, payload: self.target.answer_bytes(part), pieces }
            }
            PacketItem::Refused(_) => head(REFUSED_BYTES),
            PacketItem::GivenUp(_) | PacketItem::Credit(_) => head(SHORT_BYTES),
        }
    }

    fn ack(&mut self, now: Timestamp, words: usize) -> AckBlock {
        let waited = now.since(self.highest_at).as_nanos();
        AckBlock {
            highest: self.window.highest(),
            lowest: self.packets.lowest(),
            credit: self.receive_credit.grant(self.share),
            watermark: self.target.watermark(),
            delay_ns: u32::try_from(waited).unwrap_or(u32::MAX),
            taken: self.statistics.received as u16,
            received: self.window.received(self.peer_lowest, words),
            finished: self.target.finished(words),
        }
    }

    /// Words of each bit map of the acknowledgement that the packet has; none: it has no acknowledgement. Where there is something to say
    /// and room, it is said.
    fn ack_words(&self, owes_ack: bool) -> Option<usize> {
        if self.selection.items.is_empty() {
            return Some(ACK_WORDS);
        }
        let (has_news, words) = (self.ack_since.is_some() || self.statistics.received == 0, ACK_WORDS_WITH_PAYLOAD);
        (has_news && (owes_ack || self.selection.room >= ack_bytes(words))).then_some(words)
    }

    /// Writes the selected messages. Answers how many bytes were written; an error names one whose memory is not there any more, and why.
    fn build(
        &mut self,
        now: Timestamp,
        owes_ack: bool,
        room: &mut PacketRoom<'_>,
        side: &mut impl LocalSide,
    ) -> Result<usize, (PacketItem, Cause)> {
        let words = self.ack_words(owes_ack);
        let number = self.packets.next_number();
        if self.selection.is_first {
            self.send_credit.take(charge(self.settings.frame_bytes), number, now);
        }
        let ack = words.map(|words| self.ack(now, words));
        let least = self.padded_to(now);
        let Self { initiator, target, selection, pieces, answer_pieces, settings, keys, .. } = self;
        let used = self.send_credit.used() as u32;
        let mut writer = PacketWriter::new(room.bytes, settings.remote_connection, number, used, ack.as_ref());
        pieces.clear();
        for &item in &selection.items {
            match item {
                PacketItem::Write(part) => {
                    let (key, revision, _) = initiator.request(part.operation);
                    let extents = initiator.pieces(part).map(|span| {
                        pieces.push(Piece { offset: span.local, len: span.len as u32 });
                        (span.remote, span.len as u32)
                    });
                    writer.write(part, key, revision, extents);
                }
                PacketItem::Read(operation) => {
                    let (key, revision, spans) = initiator.request(operation);
                    writer.read(operation, key, revision, spans.iter().map(|span| (span.remote, span.len as u32)));
                }
                PacketItem::Notify(part) => {
                    let (head, bytes) = initiator.note(part);
                    writer.notify(part, head, bytes.len() as u16);
                }
                PacketItem::Data(part) => writer.data(part, target.answer_bytes(part) as u32),
                PacketItem::GivenUp(operation) => writer.given_up(operation),
                PacketItem::Refused(operation) => {
                    let (cause, revision) = target.refusal(operation);
                    writer.refused(operation, cause, revision);
                }
                PacketItem::Credit(lines) => writer.credit(lines),
            }
        }
        let is_lent = selection.is_worth_lending();
        let mut lent: Option<&mut Vec<LentPiece>> = room.lent.as_deref_mut().filter(|_| is_lent);
        let lent_bytes = if lent.is_some() { selection.payload } else { 0 };
        let written = selection.payload - lent_bytes;
        let (mut payload, mut pieces) = (writer.payload(written, settings.checksums), &pieces[..]);
        for &item in &selection.items {
            let (op, own, bytes) = match item {
                PacketItem::Write(part) => {
                    let (count, bytes) = initiator.part_size(part);
                    let (own, rest) = pieces.split_at(count);
                    pieces = rest;
                    (OutgoingOp::Write(part.operation), own, bytes)
                }
                PacketItem::Data(part) => {
                    target.answer_pieces(part, answer_pieces);
                    (OutgoingOp::Answer(part.operation), &answer_pieces[..], target.answer_bytes(part))
                }
                PacketItem::Notify(part) => {
                    let (_, bytes) = initiator.note(part);
                    let (into, rest) = payload.split_at_mut(bytes.len());
                    payload = rest;
                    into.copy_from_slice(bytes);
                    continue;
                }
                _ => continue,
            };
            let taken = match lent.as_deref_mut() {
                Some(lent) => {
                    // Whoever copies it from there fetches nothing ahead, and only within a long run the processor does.
                    let is_scattered = match item {
                        PacketItem::Data(part) => target.runs(part.operation) > 1,
                        item => initiator.request(item.operation()).2.len() > 1,
                    };
                    side.lend(op, own, lent, is_scattered)
                }
                None => {
                    let (into, rest) = payload.split_at_mut(bytes);
                    payload = rest;
                    side.gather(op, own, into)
                }
            };
            taken.map_err(|cause| (item, cause))?;
            // While this packet is written, bytes of later ones come from memory.
            if lent.is_none()
                && let PacketItem::Write(part) = item
                && let Some(later) = initiator.later(part, PREFETCHED_BYTES.div_ceil(selection.payload.max(1)))
            {
                let mut left = PREFETCHED_BYTES as u64;
                for span in initiator.pieces(later) {
                    let len = span.len.min(left);
                    side.prefetch(later.operation, Piece { offset: span.local, len: len as u32 });
                    left -= len;
                }
            }
        }
        let bytes = writer.bytes(selection.payload, settings.checksums);
        // What is much shorter ends the burst instead.
        let padding = least.saturating_sub(bytes);
        let padding = if padding <= bytes / 4 && lent_bytes == 0 { padding } else { 0 };
        let bytes = writer.finish(written, padding, settings.checksums, &keys.transmit);
        self.sent(now, bytes + lent_bytes, words);
        Ok(bytes)
    }

    /// So long the next packet is at least: as the one right before it, if another one follows it.
    fn padded_to(&self, now: Timestamp) -> usize {
        let (at, bytes) = self.last_sent;
        let is_between = self.settings.pads && at == now && (self.initiator.has_unsent() || self.target.has_unsent());
        if is_between && !self.selection.items.is_empty() { bytes as usize } else { 0 }
    }

    /// Whether an acknowledgement of so many words names all that has come.
    fn says_all(&self, words: usize) -> bool {
        let covered = self.window.highest().saturating_sub(self.peer_lowest) <= 64 * words as u64;
        words == ACK_WORDS || (covered && self.target.finished(ACK_WORDS) == self.target.finished(words))
    }

    /// The packet that was built leaves now, with an acknowledgement of so many words.
    fn sent(&mut self, now: Timestamp, bytes: usize, words: Option<usize>) {
        self.packets.insert(now, bytes, &self.selection.items);
        self.statistics.sent += 1;
        if self.ack_since.is_some() && words.is_some_and(|words| self.says_all(words)) {
            (self.ack_since, self.bursts, self.unacked) = (None, 0, 0);
        }
        if !self.selection.items.is_empty() {
            self.last_sent = (now, bytes as u64);
            self.silent_since.get_or_insert(now);
            if self.packets.bytes() == bytes as u64 {
                self.progress_at = now;
            }
        }
    }
}

impl Selection {
    /// An empty one, with so much room.
    fn begin(&mut self, room: usize) {
        self.items.clear();
        (self.room, self.payload, self.pieces, self.is_first) = (room, 0, Some(0), false);
    }

    /// Several messages leave room for an acknowledgement: it is one more that is small.
    fn kept(&self) -> usize {
        if self.items.is_empty() { 0 } else { ack_bytes(ACK_WORDS_WITH_PAYLOAD) }
    }

    /// Whether there is room for the smallest message.
    fn has_room(&self) -> bool {
        self.room >= SHORT_BYTES + self.kept()
    }

    /// Adds a message, if there is room for it.
    fn push(&mut self, item: PacketItem, size: ItemSize) -> bool {
        let ItemSize { heads, payload, pieces } = size;
        let fits = self.items.len() < MESSAGES_MAX && heads + payload + self.kept() <= self.room;
        if fits {
            self.items.push(item);
            self.room -= heads + payload;
            self.payload += payload;
            self.pieces = self.pieces.zip(pieces).map(|(all, its)| all + its);
        }
        fits
    }

    /// Whether its payload had better leave from where it lies.
    fn is_worth_lending(&self) -> bool {
        self.pieces.is_some_and(|pieces| pieces > 0 && self.payload >= pieces * LENT_BYTES_MIN)
    }
}
