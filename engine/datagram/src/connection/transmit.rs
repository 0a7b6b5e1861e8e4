//! Putting packets together: what the next one carries, and its bytes.

use penstock_core::{Cause, Span, Timestamp};

use super::{DatagramConnection, LocalSide, NUMBERS_MAX, Piece, on_lost};
use crate::credit::charge;
use crate::in_flight::PacketItem;
use crate::wire::{
    ACK_BYTES, ACK_WORDS, ACK_WORDS_WITH_PAYLOAD, AckBlock, DATA_BYTES, EXTENT_BYTES, FIXED_BYTES, MESSAGES_MAX,
    NOTIFY_BYTES, OpPart, PacketWriter, REFUSED_BYTES, SHORT_BYTES, TAG_BYTES, WRITE_BYTES,
};

/// The messages of the packet that is being put together.
struct Selection {
    items: [PacketItem; MESSAGES_MAX],
    count: usize,
    /// Bytes that are left for more.
    room: usize,
    payload: usize,
    /// Whether it carries anything for the first time.
    is_first: bool,
}

impl DatagramConnection {
    /// Puts the next packet into `frame`, which has room for one. None: nothing is to be sent now.
    pub fn transmit(&mut self, now: Timestamp, frame: &mut [u8], side: &mut impl LocalSide) -> Option<usize> {
        self.excuse_standstill(now);
        loop {
            let selection = self.select(now);
            if selection.items().is_empty() && !self.ack_is_due(now) {
                self.turn_by = self.deadline();
                return None;
            }
            let Err((failed, cause)) = self.build(&selection, now, frame, side) else {
                self.sent(&selection, now);
                return Some(self.packet_bytes);
            };
            // Memory of one of them is not there any more: that ends, and the others are selected again.
            for &item in selection.items() {
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

    /// Chooses what the next packet carries, and takes it: control first, then data of both directions in turns.
    fn select(&mut self, now: Timestamp) -> Selection {
        let mut selection = Selection::new(self.settings.frame_bytes);
        self.blocked_until = self.held_back(now);
        if self.blocked_until.is_some() {
            return selection;
        }
        let has_credit = self.send_credit.allows(charge(self.settings.frame_bytes), now);
        let mut from = 0;
        while selection.room >= SHORT_BYTES
            && let Some(item) = self.candidate(&mut from, has_credit)
        {
            let (heads, payload) = self.size(item);
            if !selection.push(item, heads, payload) {
                break;
            }
            match item {
                PacketItem::Credit(_) => self.note_credit = None,
                PacketItem::Refused(_) => _ = self.target.on_sent(item),
                PacketItem::GivenUp(_) => _ = self.initiator.on_sent(item),
                _ => {
                    let is_answer = matches!(item, PacketItem::Data(_));
                    let is_first = if is_answer { self.target.on_sent(item) } else { self.initiator.on_sent(item) };
                    selection.is_first |= is_first;
                    self.statistics.repeated += u64::from(!is_first);
                }
            }
            self.answers_turn = !matches!(item, PacketItem::Data(_));
        }
        if selection.items().is_empty() && !has_credit {
            self.blocked_until = Some(self.send_credit.lapses_at());
        }
        selection
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

    /// Bytes of an item in a header, and of its payload.
    fn size(&self, item: PacketItem) -> (usize, usize) {
        match item {
            PacketItem::Write(part) => {
                let (pieces, bytes) =
                    self.initiator.pieces(part).fold((0, 0), |(pieces, bytes), piece| (pieces + 1, bytes + piece.len));
                (WRITE_BYTES + pieces * EXTENT_BYTES, bytes as usize)
            }
            PacketItem::Read(operation) => (WRITE_BYTES + self.initiator.request(operation).2.len() * EXTENT_BYTES, 0),
            PacketItem::Notify(part) => (NOTIFY_BYTES, self.initiator.note(part).1.len()),
            PacketItem::Data(part) => (DATA_BYTES, self.target.answer_bytes(part)),
            PacketItem::Refused(_) => (REFUSED_BYTES, 0),
            PacketItem::GivenUp(_) | PacketItem::Credit(_) => (SHORT_BYTES, 0),
        }
    }

    fn ack(&mut self, now: Timestamp, words: usize) -> AckBlock {
        let waited = now.since(self.highest_at).as_nanos();
        AckBlock {
            highest: self.window.highest(),
            lowest: self.packets.lowest(),
            used: self.send_credit.used(),
            credit: self.receive_credit.grant(self.share),
            watermark: self.target.watermark(),
            delay_ns: u32::try_from(waited).unwrap_or(u32::MAX),
            received: self.window.received(self.peer_lowest, words),
            finished: self.target.finished(words),
        }
    }

    /// Writes the selected messages. An error names one whose memory is not there any more, and why.
    fn build(
        &mut self,
        selection: &Selection,
        now: Timestamp,
        frame: &mut [u8],
        side: &mut impl LocalSide,
    ) -> Result<(), (PacketItem, Cause)> {
        let words = selection.words();
        if selection.is_first {
            self.send_credit.take(charge(self.settings.frame_bytes), self.packets.next_number(), now);
        }
        let ack = self.ack(now, words);
        let number = self.packets.next_number();
        let least = self.padded_to(now);
        let Self { initiator, target, pieces, settings, keys, .. } = self;
        let mut writer = PacketWriter::new(frame, settings.remote_connection, number, &ack);
        for &item in selection.items() {
            match item {
                PacketItem::Write(part) => {
                    let (key, revision, _) = initiator.request(part.operation);
                    pieces.clear();
                    pieces
                        .extend(initiator.pieces(part).map(|span| Piece { offset: span.remote, len: span.len as u32 }));
                    writer.write(part, key, revision, pieces.iter().map(|piece| (piece.offset, piece.len)));
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
        let mut payload = writer.payload(selection.payload);
        for &item in selection.items() {
            let filled = match item {
                PacketItem::Write(part) => {
                    pieces.clear();
                    pieces
                        .extend(initiator.pieces(part).map(|span| Piece { offset: span.local, len: span.len as u32 }));
                    let bytes = pieces.iter().map(|piece| piece.len as usize).sum();
                    let (into, rest) = payload.split_at_mut(bytes);
                    payload = rest;
                    let gathered = side.gather(part.operation, pieces, into);
                    // While the rest of this packet is written, the bytes of the next one come from memory.
                    let next = OpPart { index: part.index + 1, ..part };
                    let pieces = (next.index < next.count).then(|| initiator.pieces(next));
                    let fetch = |span: Span| Piece { offset: span.local, len: span.len as u32 };
                    pieces.into_iter().flatten().map(fetch).for_each(|piece| side.prefetch(part.operation, piece));
                    gathered
                }
                PacketItem::Data(part) => {
                    target.answer_pieces(part, pieces);
                    let (into, rest) = payload.split_at_mut(target.answer_bytes(part));
                    payload = rest;
                    side.answer(part.operation, pieces, into)
                }
                PacketItem::Notify(part) => {
                    let (_, bytes) = initiator.note(part);
                    let (into, rest) = payload.split_at_mut(bytes.len());
                    payload = rest;
                    into.copy_from_slice(bytes);
                    Ok(())
                }
                _ => Ok(()),
            };
            filled.map_err(|cause| (item, cause))?;
        }
        let bytes = writer.bytes(selection.payload);
        // What is much shorter ends the burst instead.
        let padding = least.saturating_sub(bytes);
        let padding = if padding <= bytes / 4 { padding } else { 0 };
        self.packet_bytes = writer.finish(selection.payload, padding, settings.checksums, &keys.transmit);
        Ok(())
    }

    /// So long the next packet is at least: as the one right before it, if another one follows it.
    fn padded_to(&self, now: Timestamp) -> usize {
        let (at, bytes) = self.last_sent;
        let is_between = self.settings.pads && at == now && (self.initiator.has_unsent() || self.target.has_unsent());
        if is_between { bytes as usize } else { 0 }
    }

    /// Whether an acknowledgement of so many words names all that has come.
    fn says_all(&self, words: usize) -> bool {
        let covered = self.window.highest().saturating_sub(self.peer_lowest) <= 64 * words as u64;
        words == ACK_WORDS || (covered && self.target.finished(ACK_WORDS) == self.target.finished(words))
    }

    /// The packet that was built leaves now.
    fn sent(&mut self, selection: &Selection, now: Timestamp) {
        let bytes = self.packet_bytes;
        self.packets.insert(now, bytes, selection.items());
        self.statistics.sent += 1;
        if self.ack_since.is_some() && self.says_all(selection.words()) {
            (self.ack_since, self.bursts, self.unacked) = (None, 0, 0);
        }
        if !selection.items().is_empty() {
            self.last_sent = (now, bytes as u64);
            self.silent_since.get_or_insert(now);
            if self.packets.bytes() == bytes as u64 {
                self.progress_at = now;
            }
        }
    }
}

impl Selection {
    fn new(frame: usize) -> Self {
        let fixed = FIXED_BYTES + ACK_BYTES + 2 * 8 * ACK_WORDS_WITH_PAYLOAD + TAG_BYTES;
        Self {
            items: [PacketItem::Credit(0); MESSAGES_MAX],
            count: 0,
            room: frame - fixed,
            payload: 0,
            is_first: false,
        }
    }

    /// Adds a message, if there is room for it.
    fn push(&mut self, item: PacketItem, heads: usize, payload: usize) -> bool {
        let fits = self.count < MESSAGES_MAX && heads + payload <= self.room;
        if fits {
            self.items[self.count] = item;
            self.count += 1;
            self.room -= heads + payload;
            self.payload += payload;
        }
        fits
    }

    fn items(&self) -> &[PacketItem] {
        &self.items[..self.count]
    }

    /// Words of each bit map of the acknowledgement that the packet has room for.
    fn words(&self) -> usize {
        if self.count == 0 { ACK_WORDS } else { ACK_WORDS_WITH_PAYLOAD }
    }
}
