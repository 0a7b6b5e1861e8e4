//! One worker's connection to one of the peer's: packets and moments in, packets and a deadline out.
//!
//! The caller owns the socket and the memory. For each burst that it has received, of at most [`RECEIVE_BURST_MAX`] packets, it calls
//! [`DatagramConnection::receive`] with every packet and then [`DatagramConnection::end_burst`]; it calls
//! [`DatagramConnection::transmit`] until there is nothing more to send, and [`DatagramConnection::expire`] at
//! [`DatagramConnection::deadline`] at the latest.

mod transmit;

use std::time::Duration;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Timestamp};
use penstock_transport::{CounterRef, Note};

use self::transmit::Selection;
use crate::checksum::crc32c;
use crate::congestion::Congestion;
use crate::credit::{ReceiveCredit, SendCredit};
use crate::in_flight::{InFlightPackets, PacketItem};
use crate::initiator::{EndedOp, GivenUpOp, Initiator, MoveRequest, OpKind, ProtocolViolation};
use crate::keys::ConnectionKeys;
use crate::receive_window::ReceiveWindow;
use crate::target::{PartArrival, Target};
use crate::wire::{AckBlock, CHECKSUM_BYTES, DatagramWireError, MemoryRequest, NotifyHead, Packet, PacketMessage};

/// An acknowledgement waits for so long that it may go with data, or for two bursts.
const ACK_DELAY: Duration = Duration::from_micros(25);
const BURSTS_UNACKED: u32 = 2;
/// Or for so many packets: an acknowledgement names 256.
const PACKETS_UNACKED: u32 = 64;
/// The most packets that are received before [`DatagramConnection::transmit`] is called again.
pub const RECEIVE_BURST_MAX: usize = 128;
/// Numbers between the oldest packet under way and the next one: half of what the receiver remembers.
const NUMBERS_MAX: u64 = crate::receive_window::REPLAY_WINDOW / 2;
/// A peer of which not one packet has come for so long is behind something that lets none through.
const FIRST_PACKET_WITHIN: Duration = Duration::from_secs(1);
/// What is unheard is repeated so often at least before the peer is lost.
const TRIES_MIN: u32 = 8;
/// Who is turned so much later than it asked for stood still: it does not hold that against the peer.
const STOOD_STILL: Duration = Duration::from_millis(50);
/// Who is later than this was kept off its processor: work of its own takes less.
const KEPT_OFF: Duration = Duration::from_micros(250);

/// An operation for which bytes leave this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingOp {
    /// A WRITE of this side.
    Write(u64),
    /// A READ of the peer.
    Answer(u64),
}

/// A range of this side's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub len: u32,
}

/// Bytes of this side's memory, named by their address: whoever lends them vouches that they stay until they have left. Ports read
/// them, and this crate, without unsafe code, cannot say so in a type: [`LocalSide::lend`] is the only one that names any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct LentPiece {
    pub address: u64,
    pub len: u64,
}

/// Room for one packet.
#[derive(Debug)]
pub struct PacketRoom<'a> {
    pub bytes: &'a mut [u8],
    /// Memory that leaves from where it lies, behind what is written; none: all bytes are written.
    pub lent: Option<&'a mut Vec<LentPiece>>,
}

impl PacketRoom<'_> {
    /// The same room for a while.
    pub fn reborrow(&mut self) -> PacketRoom<'_> {
        PacketRoom { bytes: self.bytes, lent: self.lent.as_deref_mut() }
    }
}

impl<'a> From<&'a mut [u8]> for PacketRoom<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { bytes, lent: None }
    }
}

/// What a connection asks of its own side: bytes to and from memory, and what to tell the application. Operations are named by
/// their numbers; those of the peer have numbers of their own.
pub trait LocalSide {
    /// Copies bytes that leave. An error ends the operation.
    fn gather(&mut self, op: OutgoingOp, pieces: &[Piece], into: &mut [u8]) -> Result<(), Cause>;

    /// Names bytes that leave from where they lie, before anything else is asked of this side; where they are scattered they are fetched meanwhile. An
    /// error ends the operation.
    fn lend(
        &mut self,
        op: OutgoingOp,
        pieces: &[Piece],
        lent: &mut Vec<LentPiece>,
        is_scattered: bool,
    ) -> Result<(), Cause>;

    /// Bytes of a WRITE of this side will be gathered soon.
    fn prefetch(&mut self, operation: u64, piece: Piece) {
        let _ = (operation, piece);
    }

    /// Bytes will be placed soon, if the packet is the peer's: nobody has looked yet.
    fn prefetch_place(&mut self, request: &MemoryRequest<'_>) {
        let _ = request;
    }

    /// Places bytes that a READ of this side asked for. An error ends the operation.
    fn land(&mut self, operation: u64, pieces: &[Piece], bytes: &[u8]) -> Result<(), Cause>;

    /// Places bytes that the peer writes, or refuses them.
    fn place(&mut self, request: &MemoryRequest<'_>, bytes: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation>;

    /// Looks up what the peer wants to read, and keeps it until [`LocalSide::close_read`], or refuses it.
    fn open_read(
        &mut self,
        operation: u64,
        request: &MemoryRequest<'_>,
    ) -> Result<Result<(), Cause>, ProtocolViolation>;

    fn close_read(&mut self, operation: u64);

    /// All bytes of a transfer are placed. Answers whether its counter, if it has one, is still there.
    fn notify(&mut self, counter: Option<CounterRef>, note: Option<Note<'_>>) -> Result<bool, ProtocolViolation>;

    /// The peer has taken so many lines of this side's notes since the beginning.
    fn on_note_credit(&mut self, lines: u64) -> Result<(), ProtocolViolation>;

    /// The peer's gate has reached this revision.
    fn on_revision(&mut self, revision: u64);

    /// The revision of this side's gate.
    fn revision(&self) -> u64;
}

/// How a connection is set up; both sides have the same frame.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionSettings {
    /// Bytes of a packet at most, from [`crate::wire::FRAME_BYTES_MIN`] to [`crate::wire::FRAME_BYTES_MAX`].
    pub frame_bytes: usize,
    /// Whether packets carry a checksum of their payload, because the carrier does not vouch for it.
    pub checksums: bool,
    /// Whether packets are padded to the length of the one before them, because the carrier sends those of one length together.
    pub pads: bool,
    /// A peer is lost that answers nothing for so long.
    pub patience: Duration,
    /// The id under which this side receives, and the peer's.
    pub local_connection: u64,
    pub remote_connection: u64,
}

impl ConnectionSettings {
    /// Bytes of a packet that are not its checksum's.
    fn message_frame(&self) -> usize {
        self.frame_bytes - if self.checksums { CHECKSUM_BYTES } else { 0 }
    }
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    #[error("the peer's packets, which are its own, break the protocol")]
    Violation,
    #[error("the peer has answered nothing for too long")]
    Lost,
    #[error("not one packet of the peer has come")]
    Unheard,
}

impl From<ProtocolViolation> for ConnectionError {
    fn from(_: ProtocolViolation) -> Self {
        Self::Violation
    }
}

/// What became of a packet that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketFate {
    /// It was authentic and new: what it says was done, and it will be acknowledged.
    Taken,
    /// It is too short, or not for this connection.
    Foreign,
    /// Its tag is wrong.
    Forged,
    /// Its number has come before, or is too old to tell.
    Replayed,
    /// Its payload has rotted or is not as long as it was: it counts as lost.
    Corrupt,
}

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionStatistics {
    pub sent: u64,
    /// Messages that were sent again.
    pub repeated: u64,
    /// Packets that were given up.
    pub lost: u64,
    /// Those of them that had arrived.
    pub spurious: u64,
    pub received: u64,
    /// Messages whose bytes were here already, or whose operation had ended.
    pub late: u64,
    pub foreign: u64,
    pub forged: u64,
    pub replayed: u64,
    pub corrupt: u64,
    pub timeouts: u64,
}

/// One worker's connection to one of the peer's.
pub struct DatagramConnection {
    settings: ConnectionSettings,
    keys: ConnectionKeys,
    window: ReceiveWindow,
    packets: InFlightPackets,
    congestion: Congestion,
    send_credit: SendCredit,
    receive_credit: ReceiveCredit,
    share: u64,
    initiator: Initiator,
    target: Target,
    /// The lowest number that the peer still waits for an acknowledgement of.
    peer_lowest: u64,
    /// When the packet with the highest number came.
    highest_at: Timestamp,
    /// Since when something waits to be acknowledged, and for how many bursts.
    ack_since: Option<Timestamp>,
    bursts: u32,
    unacked: u32,
    /// Packets that the peer says it has taken.
    taken: u64,
    /// Lines of notes taken, and the number to be sent, if the peer has to hear of it.
    note_lines: u64,
    note_credit: Option<u64>,
    timeouts: u32,
    /// When something was acknowledged, or nothing was under way.
    progress_at: Timestamp,
    /// It was late since, and waited anew: it does not do so for ever.
    is_excused: bool,
    /// Since when something is under way and nothing was heard.
    silent_since: Option<Timestamp>,
    last_sent: (Timestamp, u64),
    /// When the last call asked to be turned at the latest.
    turn_by: Timestamp,
    answers_turn: bool,
    /// Why nothing may leave although there is something to send: until when.
    blocked_until: Option<Timestamp>,
    /// What the packet that is being put together carries.
    selection: Selection,
    /// Where its bytes are in this side's memory: all of its WRITEs, and one answer to a READ.
    pieces: Vec<Piece>,
    answer_pieces: Vec<Piece>,
    statistics: ConnectionStatistics,
}

impl DatagramConnection {
    /// A connection that begins now.
    pub fn new(settings: ConnectionSettings, keys: ConnectionKeys, now: Timestamp) -> Self {
        let frame = settings.frame_bytes;
        Self {
            settings,
            keys,
            window: ReceiveWindow::default(),
            packets: InFlightPackets::new(),
            congestion: Congestion::new(frame),
            send_credit: SendCredit::new(frame),
            receive_credit: ReceiveCredit::new(frame),
            share: 0,
            initiator: Initiator::new(settings.message_frame()),
            target: Target::new(settings.message_frame()),
            peer_lowest: 1,
            highest_at: now,
            ack_since: None,
            bursts: 0,
            unacked: 0,
            taken: 0,
            note_lines: 0,
            note_credit: None,
            timeouts: 0,
            progress_at: now,
            is_excused: false,
            silent_since: None,
            last_sent: (now, 0),
            turn_by: Timestamp::NEVER,
            answers_turn: false,
            blocked_until: None,
            selection: Selection::default(),
            pieces: Vec::with_capacity(SPANS_PER_POST),
            answer_pieces: Vec::with_capacity(SPANS_PER_POST),
            statistics: ConnectionStatistics::default(),
        }
    }

    /// Whether one more operation can be posted.
    pub fn has_room(&self) -> bool {
        self.initiator.has_room()
    }

    /// Posts a WRITE or a READ, if [`DatagramConnection::has_room`]. Answers its number.
    pub fn post(&mut self, kind: OpKind, what: &MoveRequest<'_>) -> u64 {
        self.initiator.post(kind, what)
    }

    /// Posts a notification, if [`DatagramConnection::has_room`] and no READ of its transfer is open. The peer delivers it once all
    /// operations of the transfer that were posted before it have ended, and not at all if one of them fails, or has failed and
    /// was not taken by [`DatagramConnection::pop_ended`]. Answers its number; none: it has ended so at once.
    pub fn notify(&mut self, completion_id: u64, transfer: u64, head: NotifyHead, payload: &[u8]) -> Option<u64> {
        self.initiator.notify(completion_id, transfer, head, payload)
    }

    /// Whether a READ of this transfer is open.
    pub fn reads(&self, transfer: u64) -> bool {
        self.initiator.reads(transfer)
    }

    /// Gives up an operation: this side's memory is not touched for it any more. None: there is none of this id.
    pub fn cancel(&mut self, completion_id: u64) -> Option<GivenUpOp> {
        self.initiator.cancel(completion_id)
    }

    /// The next operation that has ended.
    pub fn pop_ended(&mut self) -> Option<EndedOp> {
        self.initiator.pop_ended()
    }

    /// So much the peer may have on its way to this side's receive buffer.
    pub fn set_share(&mut self, share: u64) {
        self.share = share;
    }

    /// What the peer may still send under its grant, beyond what is its own; none: it has sent nothing of late.
    pub fn granted(&self, now: Timestamp) -> Option<u64> {
        self.receive_credit.is_active(now).then(|| self.receive_credit.outstanding(now))
    }

    /// So many lines of the peer's notes were taken since the beginning.
    pub fn set_note_credit(&mut self, lines: u64) {
        (self.note_lines, self.note_credit) = (lines, Some(lines));
    }

    pub fn statistics(&self) -> ConnectionStatistics {
        let lost = self.packets.lost();
        // No more are lost than the peer has not taken.
        let missing = self.statistics.sent.saturating_sub(self.taken);
        ConnectionStatistics {
            lost,
            spurious: self.statistics.spurious.max(lost.saturating_sub(missing)),
            ..self.statistics
        }
    }

    /// The smoothed round trip, and the bytes that may be under way.
    pub fn path(&self) -> (Duration, u64) {
        (self.congestion.round_trip(), self.congestion.window())
    }

    #[cfg(test)]
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.settings.patience = patience;
    }

    #[cfg(test)]
    pub(crate) fn packets_remembered(&self) -> u64 {
        self.packets.span()
    }

    /// Whether the peer has packets to acknowledge.
    pub fn is_under_way(&self) -> bool {
        self.packets.bytes() > 0
    }

    /// Whether nothing is to be sent, repeated or waited for.
    pub fn is_idle(&self) -> bool {
        self.owes_nothing() && self.ack_since.is_none()
    }

    /// Whether nothing but an acknowledgement is to be sent or waited for.
    fn owes_nothing(&self) -> bool {
        let is_said = !self.target.has_unsent() && self.note_credit.is_none();
        is_said && self.packets.bytes() == 0 && self.initiator.is_idle()
    }

    /// This packet will be received soon: room for its bytes is fetched meanwhile. Nothing in it is believed.
    pub fn prefetch(&self, bytes: &[u8], side: &mut impl LocalSide) {
        let first = Packet::parse(bytes).ok().and_then(|packet| packet.messages().next());
        if let Some(Ok(PacketMessage::Write { request, .. })) = first {
            side.prefetch_place(&request);
        }
    }

    /// Takes one packet: its bytes are placed, its operations advance.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Timestamp,
        side: &mut impl LocalSide,
    ) -> Result<PacketFate, ConnectionError> {
        let packet = match Packet::parse(bytes) {
            Ok(packet) if packet.connection() == self.settings.local_connection => packet,
            _ => {
                self.statistics.foreign += 1;
                return Ok(PacketFate::Foreign);
            }
        };
        if !packet.is_authentic(&self.keys.receive) {
            self.statistics.forged += 1;
            return Ok(PacketFate::Forged);
        }
        let (number, ack) = (packet.number(), packet.ack());
        if !self.window.is_new(number) {
            self.statistics.replayed += 1;
            return Ok(PacketFate::Replayed);
        }
        self.excuse_standstill(now);
        self.silent_since = self.silent_since.map(|_| now);
        self.receive_credit.on_used(packet.used(), now);
        if let Some(ack) = &ack {
            self.on_ack(ack, now, side)?;
        }
        if packet.checksum().is_some_and(|checksum| checksum != crc32c(packet.payload)) {
            self.statistics.corrupt += 1;
            self.on_mismatch(&packet, side)?;
            return Ok(PacketFate::Corrupt);
        }
        if self.statistics.received == 0 && ack.as_ref().is_some_and(|ack| ack.highest == 0) {
            // The peer has begun later than this side: what was sent before found nobody.
            let Self { packets, initiator, target, note_credit, .. } = self;
            packets.give_up(usize::MAX, |item| on_lost(item, initiator, target, note_credit));
        }
        for message in packet.messages() {
            match message {
                Ok(message) => self.on_message(message, side)?,
                // Its number stays free: what was done of it is done once, as it is when the packet comes whole or is repeated.
                Err(DatagramWireError::Payload) => {
                    self.statistics.corrupt += 1;
                    return Ok(PacketFate::Corrupt);
                }
                Err(_) => return Err(ConnectionError::Violation),
            }
        }
        self.statistics.received += 1;
        if number > self.window.highest() {
            self.highest_at = now;
        }
        self.window.insert(number);
        self.peer_lowest = ack.map_or(self.peer_lowest, |ack| self.peer_lowest.max(ack.lowest.min(number)));
        if packet.has_messages() {
            self.ack_since.get_or_insert(now);
            self.unacked += 1;
        }
        Ok(PacketFate::Taken)
    }

    fn on_ack(&mut self, ack: &AckBlock, now: Timestamp, side: &mut impl LocalSide) -> Result<(), ConnectionError> {
        let Self { packets, target, .. } = self;
        let (mut violated, before) = (false, target.finished_total());
        let settle = |item: PacketItem| violated |= target.on_acked(item, side).is_err();
        let acked = packets.on_ack(ack, now, settle).map_err(|_| ConnectionError::Violation)?;
        if violated {
            return Err(ConnectionError::Violation);
        }
        if target.finished_total() != before {
            self.ack_since.get_or_insert(now); // The peer is to hear of it, and nothing else may be due.
        }
        // An older word says less; between two there are never half as many packets as it can count.
        let newly = ack.taken.wrapping_sub(self.taken as u16);
        if newly < 1 << 15 {
            self.taken += u64::from(newly);
        }
        self.initiator.on_finished(ack.watermark, &ack.finished)?;
        self.send_credit.on_grant(ack.credit, ack.highest);
        self.statistics.spurious += acked.spurious;
        if acked.bytes > 0 || acked.spurious > 0 {
            self.congestion.on_heard(acked.spurious > 0);
        }
        if acked.bytes > 0 {
            (self.timeouts, self.progress_at, self.is_excused) = (0, now, false);
        }
        if let Some(round_trip) = acked.round_trip {
            self.congestion.on_ack(round_trip, acked.bytes, now);
        }
        self.detect_loss(now);
        if self.packets.bytes() == 0 {
            (self.silent_since, self.progress_at) = (None, now);
        }
        Ok(())
    }

    fn detect_loss(&mut self, now: Timestamp) {
        let Self { packets, initiator, target, note_credit, .. } = self;
        let lost = packets.detect(now, |item| on_lost(item, initiator, target, note_credit));
        if lost > 0 {
            self.congestion.on_loss(lost, now);
        }
    }

    /// The payload of a packet, which is the peer's, is not what its checksum says. An operation of which that is so too often ends.
    fn on_mismatch(&mut self, packet: &Packet<'_>, side: &mut impl LocalSide) -> Result<(), ConnectionError> {
        for message in packet.messages().map_while(Result::ok) {
            match message {
                PacketMessage::Write { part, .. } => self.target.on_mismatch(part, packet.number(), side)?,
                PacketMessage::Data { part, .. } => self.initiator.on_mismatch(part, packet.number()),
                _ => {}
            }
        }
        Ok(())
    }

    fn on_message(&mut self, message: PacketMessage<'_>, side: &mut impl LocalSide) -> Result<(), ConnectionError> {
        let Self { initiator, target, pieces, .. } = self;
        let arrival = match message {
            PacketMessage::Write { part, request, bytes } => target.on_write(part, &request, bytes, side)?,
            PacketMessage::Read { operation, request } => target.on_read(operation, &request, side)?,
            PacketMessage::Notify { part, head, bytes } => target.on_notify(part, &head.read(), bytes, side)?,
            PacketMessage::GivenUp { operation } => target.on_given_up(operation, side)?,
            PacketMessage::Data { part, bytes } => initiator.on_data(part, bytes, pieces, side)?,
            PacketMessage::Refused { operation, cause, revision } => {
                side.on_revision(revision);
                initiator.on_refused(operation, cause)?;
                PartArrival::New
            }
            PacketMessage::Credit { lines } => {
                side.on_note_credit(lines)?;
                PartArrival::New
            }
        };
        self.statistics.late += u64::from(arrival == PartArrival::Late);
        Ok(())
    }

    /// All packets of a burst were received.
    pub fn end_burst(&mut self) {
        if self.ack_since.is_some() {
            self.bursts += 1;
        }
    }

    fn ack_is_due(&self, now: Timestamp) -> bool {
        let is_much = self.bursts >= BURSTS_UNACKED || self.unacked >= PACKETS_UNACKED;
        self.ack_since.is_some_and(|since| is_much || now.since(since) >= ACK_DELAY)
    }

    fn has_unsent(&self) -> bool {
        self.initiator.has_unsent() || self.target.has_unsent() || self.note_credit.is_some()
    }

    fn timeout_at(&self) -> Option<Timestamp> {
        let is_waiting = self.packets.bytes() > 0 || (!self.initiator.is_idle() && !self.initiator.has_unsent());
        // A peer is asked several times before it is given up.
        let longest = self.settings.patience / TRIES_MIN;
        is_waiting.then(|| self.progress_at + self.congestion.timeout(self.timeouts, longest))
    }

    /// When [`DatagramConnection::expire`] and [`DatagramConnection::transmit`] are to be called at the latest.
    pub fn deadline(&self) -> Timestamp {
        let is_much = self.bursts >= BURSTS_UNACKED || self.unacked >= PACKETS_UNACKED;
        let ack = self.ack_since.map(|since| if is_much { since } else { since + ACK_DELAY });
        let silent = self.silent_since.map(|since| since + self.silence().0);
        let blocked = self.blocked_until.filter(|_| self.has_unsent());
        let moments = [ack, silent, blocked, self.packets.loss_at(), self.timeout_at()];
        moments.into_iter().flatten().min().unwrap_or(Timestamp::NEVER)
    }

    /// The carrier takes nothing now: the peer is waited for as if what is to be said had left.
    pub fn is_held_up(&mut self, now: Timestamp) {
        if self.has_unsent() {
            self.silent_since.get_or_insert(now);
        }
    }

    /// For how long the peer may answer nothing, and what it is then.
    fn silence(&self) -> (Duration, ConnectionError) {
        let patience = self.settings.patience;
        if self.statistics.received == 0 && patience > FIRST_PACKET_WITHIN {
            return (FIRST_PACKET_WITHIN, ConnectionError::Unheard);
        }
        (patience, ConnectionError::Lost)
    }

    /// Does what is due: gives up packets that are lost, and the peer, if it has said nothing for too long.
    pub fn expire(&mut self, now: Timestamp) -> Result<(), ConnectionError> {
        self.excuse_standstill(now);
        let (silence, error) = self.silence();
        if self.silent_since.is_some_and(|since| now.since(since) >= silence) {
            return Err(error);
        }
        if self.packets.loss_at().is_some_and(|at| at <= now) {
            self.detect_loss(now);
        }
        if self.timeout_at().is_some_and(|at| at <= now) {
            let Self { packets, initiator, target, note_credit, statistics, .. } = self;
            if packets.bytes() == 0 {
                // All is done here, and the target's word that it is there as well is lost: something has to ask for it.
                note_credit.get_or_insert(self.note_lines);
            }
            // The first time one packet asks: what is said of it tells which of the others are lost, and often none is.
            let asks = self.timeouts == 0 && packets.bytes() > 0;
            packets.give_up(if asks { 1 } else { usize::MAX }, |item| on_lost(item, initiator, target, note_credit));
            if !asks {
                statistics.timeouts += 1;
                self.congestion.on_timeout(now);
            }
            (self.timeouts, self.progress_at, self.is_excused) = (self.timeouts + 1, now, false);
        }
        if self.owes_nothing() {
            self.silent_since = None;
        }
        self.turn_by = self.deadline();
        Ok(())
    }

    /// Who stood still has not heard what came meanwhile: it waits anew before anything counts as lost, once after a short time.
    fn excuse_standstill(&mut self, now: Timestamp) {
        let late = now.since(self.turn_by);
        if late >= STOOD_STILL || (late >= KEPT_OFF && !self.is_excused) {
            (self.progress_at, self.is_excused) = (now, true);
        }
        if late >= STOOD_STILL {
            self.silent_since = self.silent_since.map(|_| now);
        }
        // Nothing else is due sooner than what follows from this call.
        self.turn_by = now;
    }
}

/// The packet that carried it is lost.
fn on_lost(item: PacketItem, initiator: &mut Initiator, target: &mut Target, note_credit: &mut Option<u64>) {
    match item {
        // A later one says more.
        PacketItem::Credit(lines) => *note_credit = Some(note_credit.map_or(lines, |newer| newer.max(lines))),
        PacketItem::Refused(_) | PacketItem::Data(_) => target.on_lost(item),
        _ => initiator.on_lost(item),
    }
}
