//! The network and the two sides.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId, Span, Timestamp};
use penstock_transport::{CounterRef, Note};

use crate::connection::{
    ConnectionError, ConnectionSettings, DatagramConnection, LentPiece, LocalSide, OutgoingOp, PacketRoom, Piece,
};
use crate::credit::ReceiveBuffer;
use crate::initiator::{EndedOp, MoveRequest, OpKind, ProtocolViolation};
use crate::keys::ConnectionKeys;
use crate::wire::{MemoryRequest, NotifyHead};

/// The region that peers may use, and one that is refused.
pub(super) const OPEN: RegionKey = RegionKey { region: RegionId(1), generation: Generation(1) };
pub(super) const CLOSED: RegionKey = RegionKey { region: RegionId(2), generation: Generation(1) };

const PATIENCE: Duration = Duration::from_secs(5);
const BUFFER: u64 = 1 << 20;

/// A generator of numbers that a seed repeats.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound.max(1)
    }

    pub(super) fn once_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }
}

/// What the network does to packets: each once in so many, never if zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) loss: u64,
    pub(super) doubling: u64,
    pub(super) rot: u64,
    pub(super) delay: u64,
    pub(super) replay: u64,
}

/// One side's memory and application.
pub(super) struct Side {
    pub(super) memory: Vec<u8>,
    pub(super) reads: BTreeMap<u64, ()>,
    /// What notifications said, in their order.
    pub(super) notes: Vec<(u128, Vec<u8>)>,
    /// Bytes that must be in memory when a note comes.
    pub(super) expected: BTreeMap<u128, Vec<(u64, Vec<u8>)>>,
    pub(super) counters: u64,
    /// The revision and the note lines that the peer has told.
    pub(super) told: (u64, u64),
    /// The local memory of these operations is gone.
    pub(super) gone: Vec<u64>,
    pub(super) placed: u64,
}

impl Side {
    fn new(bytes: usize) -> Self {
        Self {
            memory: vec![0; bytes],
            reads: BTreeMap::new(),
            notes: Vec::new(),
            expected: BTreeMap::new(),
            counters: 0,
            told: (0, 0),
            gone: Vec::new(),
            placed: 0,
        }
    }

    fn copy_out(&self, pieces: &[Piece], into: &mut [u8]) {
        let mut at = 0;
        for piece in pieces {
            let (offset, len) = (piece.offset as usize, piece.len as usize);
            into[at..at + len].copy_from_slice(&self.memory[offset..offset + len]);
            at += len;
        }
        assert_eq!(at, into.len());
    }

    /// Whether the memory of an operation is there still.
    fn look(&self, op: OutgoingOp) -> Result<(), Cause> {
        match op {
            OutgoingOp::Write(operation) if self.gone.contains(&operation) => return Err(Cause::RevokedHere),
            OutgoingOp::Write(_) => {}
            OutgoingOp::Answer(operation) => assert!(self.reads.contains_key(&operation)),
        }
        Ok(())
    }

    fn copy_in(&mut self, pieces: impl Iterator<Item = (u64, u64)>, bytes: &[u8]) {
        let mut at = 0;
        for (offset, len) in pieces {
            let (offset, len) = (offset as usize, len as usize);
            self.memory[offset..offset + len].copy_from_slice(&bytes[at..at + len]);
            at += len;
        }
        assert_eq!(at, bytes.len());
    }
}

impl LocalSide for Side {
    fn gather(&mut self, op: OutgoingOp, pieces: &[Piece], into: &mut [u8]) -> Result<(), Cause> {
        self.look(op)?;
        self.copy_out(pieces, into);
        Ok(())
    }

    fn lend(&mut self, op: OutgoingOp, pieces: &[Piece], lent: &mut Vec<LentPiece>, _: bool) -> Result<(), Cause> {
        self.look(op)?;
        lent.extend(pieces.iter().map(|piece| LentPiece { address: piece.offset, len: piece.len.into() }));
        Ok(())
    }

    fn land(&mut self, _: u64, pieces: &[Piece], bytes: &[u8]) -> Result<(), Cause> {
        self.copy_in(pieces.iter().map(|piece| (piece.offset, u64::from(piece.len))), bytes);
        Ok(())
    }

    fn place(&mut self, request: &MemoryRequest<'_>, bytes: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation> {
        if request.key != OPEN {
            return Ok(Err(Cause::RevokedByPeer));
        }
        self.placed += bytes.len() as u64;
        self.copy_in(request.extents.iter(), bytes);
        Ok(Ok(()))
    }

    fn open_read(
        &mut self,
        operation: u64,
        request: &MemoryRequest<'_>,
    ) -> Result<Result<(), Cause>, ProtocolViolation> {
        if request.key != OPEN {
            return Ok(Err(Cause::RevokedByPeer));
        }
        assert!(self.reads.insert(operation, ()).is_none(), "a READ is opened once");
        Ok(Ok(()))
    }

    fn close_read(&mut self, operation: u64) {
        assert!(self.reads.remove(&operation).is_some(), "a READ is closed once");
    }

    fn notify(&mut self, counter: Option<CounterRef>, note: Option<Note<'_>>) -> Result<bool, ProtocolViolation> {
        if let Some(note) = note {
            for (offset, bytes) in self.expected.get(&note.id.0).into_iter().flatten() {
                let start = *offset as usize;
                assert_eq!(self.memory[start..start + bytes.len()], bytes[..], "all bytes before their note");
            }
            self.notes.push((note.id.0, note.payload.to_vec()));
        }
        let is_there = counter.is_none_or(|counter| counter.generation == 1);
        self.counters += u64::from(counter.is_some() && is_there);
        Ok(is_there)
    }

    fn on_note_credit(&mut self, lines: u64) -> Result<(), ProtocolViolation> {
        self.told.1 = lines;
        Ok(())
    }

    fn on_revision(&mut self, revision: u64) {
        self.told.0 = revision;
    }

    fn revision(&self) -> u64 {
        41
    }
}

/// One side: a connection, its memory, and the packets on their way to it.
pub(super) struct End {
    pub(super) connection: DatagramConnection,
    pub(super) side: Side,
    arriving: Vec<(Timestamp, Vec<u8>)>,
    pub(super) ended: Vec<(u64, Result<u64, Cause>)>,
    pub(super) error: Option<ConnectionError>,
    pub(super) received: BTreeMap<String, u64>,
}

impl End {
    /// The next packet, and how many bytes of it were lent.
    pub(super) fn transmit(&mut self, now: Timestamp, frame: &mut [u8], lends: bool) -> Option<(Vec<u8>, usize)> {
        let mut lent = Vec::new();
        let room = PacketRoom { bytes: frame, lent: lends.then_some(&mut lent) };
        let written = self.connection.transmit(now, room, &mut self.side)?;
        let mut packet = frame[..written].to_vec();
        for LentPiece { address, len } in lent {
            packet.extend_from_slice(&self.side.memory[address as usize..][..len as usize]);
        }
        assert!(packet.len() <= frame.len(), "{} B in a frame of {}", packet.len(), frame.len());
        let lent = packet.len() - written;
        Some((packet, lent))
    }
}

/// Two sides and what is between them.
pub(super) struct Pair {
    pub(super) now: Timestamp,
    pub(super) ends: [End; 2],
    pub(super) faults: Faults,
    pub(super) random: Random,
    /// When the last packet to each end has left the wire.
    wire_free: [Timestamp; 2],
    frame: Vec<u8>,
    seen: Vec<Vec<u8>>,
    /// Packets to this end vanish.
    pub(super) cuts: [bool; 2],
    /// The last byte of payload of each packet is changed on its way to this end.
    pub(super) spoils: [bool; 2],
    /// What each side grants the other.
    pub(super) share: u64,
    pub(super) takes_ended: bool,
    /// The time on the way, at least.
    pub(super) base_us: u64,
    turns: u32,
}

impl Pair {
    pub(super) fn new(seed: u64, frame_bytes: usize, checksums: bool, faults: Faults, memory: usize) -> Self {
        let now = Timestamp::default() + Duration::from_secs(1);
        let halves = [[1; 32], [2; 32]];
        let end = |index: usize| {
            let (local_connection, remote_connection) = (7 + index as u64, 8 - index as u64);
            let settings = ConnectionSettings {
                frame_bytes,
                checksums,
                pads: true,
                patience: PATIENCE,
                local_connection,
                remote_connection,
            };
            let keys = ConnectionKeys::derive(&halves[index], &halves[1 - index], local_connection, remote_connection);
            End {
                connection: DatagramConnection::new(settings, keys, now),
                side: Side::new(memory),
                arriving: Vec::new(),
                ended: Vec::new(),
                error: None,
                received: BTreeMap::new(),
            }
        };
        Self {
            now,
            ends: [end(0), end(1)],
            faults,
            random: Random::new(seed),
            wire_free: [now; 2],
            frame: vec![0; frame_bytes],
            seen: Vec::new(),
            cuts: [false; 2],
            spoils: [false; 2],
            share: ReceiveBuffer::new(BUFFER).share(1, 1, 0, frame_bytes),
            takes_ended: true,
            base_us: 20,
            turns: 0,
        }
    }

    pub(super) fn write(&mut self, from: usize, id: u64, transfer: u64, key: RegionKey, spans: &[Span]) -> u64 {
        let what = MoveRequest { completion_id: id, transfer, key, revision: 0, spans };
        self.ends[from].connection.post(OpKind::Write, &what)
    }

    pub(super) fn read(&mut self, from: usize, id: u64, transfer: u64, key: RegionKey, spans: &[Span]) -> u64 {
        let what = MoveRequest { completion_id: id, transfer, key, revision: 0, spans };
        self.ends[from].connection.post(OpKind::Read, &what)
    }

    pub(super) fn notify(&mut self, from: usize, id: u64, transfer: u64, counter: Option<u32>, note: &[u8]) {
        let counter = counter.map(|generation| CounterRef { index: 0, generation });
        let note_head = Some((NoteId(id.into()), note.len() as u16));
        let head = NotifyHead { counter, note: note_head, ..NotifyHead::default() };
        self.ends[from].connection.notify(id, transfer, head, note);
    }

    pub(super) fn carry(&mut self, to: usize, mut packet: Vec<u8>) {
        let random = &mut self.random;
        if self.cuts[to] || random.once_in(self.faults.loss) {
            return;
        }
        if random.once_in(self.faults.rot) {
            let bit = random.below(packet.len() as u64 * 8);
            packet[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let header = usize::from(u16::from_le_bytes([packet[16], packet[17]]));
        if let Some(last) = packet.get_mut(header..).filter(|_| self.spoils[to]).and_then(<[u8]>::last_mut) {
            *last ^= 1;
        }
        // In order and one by one, as on one wire, but for those that are late.
        let soonest = self.now + Duration::from_micros(self.base_us + random.below(5));
        let at = soonest.max(self.wire_free[to] + Duration::from_nanos(100));
        self.wire_free[to] = at;
        let late = if random.once_in(self.faults.delay) { random.below(3000) } else { 0 };
        let copies = if random.once_in(self.faults.doubling) { 2 } else { 1 };
        for copy in 0..copies {
            let at = at + Duration::from_micros(late + copy * random.below(500));
            self.ends[to].arriving.push((at, packet.clone()));
        }
        if random.once_in(self.faults.replay) {
            self.seen.push(packet);
        }
        if random.once_in(self.faults.replay) && !self.seen.is_empty() {
            let old = self.seen[random.below(self.seen.len() as u64) as usize].clone();
            let at = self.now + Duration::from_micros(random.below(5000));
            self.ends[to].arriving.push((at, old));
        }
    }

    /// Everything that is due now, at both sides.
    pub(super) fn turn(&mut self) {
        self.turns += 1;
        assert!(
            self.turns < 3_000_000,
            "it runs in circles at {:?}: {:?}",
            self.now,
            self.ends.each_ref().map(|end| (end.connection.deadline(), end.connection.statistics()))
        );
        for index in 0..2 {
            let End { connection, side, arriving, error, received, .. } = &mut self.ends[index];
            let now = self.now;
            let mut due: Vec<_> = arriving.extract_if(.., |(at, _)| *at <= now).collect();
            due.sort_by_key(|(at, _)| *at);
            for (_, packet) in &due {
                match connection.receive(packet, now, side) {
                    Ok(what) => *received.entry(format!("{what:?}")).or_default() += 1,
                    Err(fault) => *error = Some(fault),
                }
            }
            if !due.is_empty() {
                connection.end_burst();
            }
            connection.set_share(self.share);
            if let Err(fault) = connection.expire(now) {
                *error = Some(fault);
            }
            for _ in 0..64 {
                // As by ports that take memory and by others.
                let lends = self.turns.is_multiple_of(2);
                let Some((packet, _)) = self.ends[index].transmit(now, &mut self.frame, lends) else { break };
                self.carry(1 - index, packet);
            }
            let End { connection, ended, .. } = &mut self.ends[index];
            while self.takes_ended
                && let Some(EndedOp { completion_id, result, .. }) = connection.pop_ended()
            {
                ended.push((completion_id, result));
            }
        }
    }

    /// Lets time pass to the next moment at which something happens. False: nothing will.
    pub(super) fn advance(&mut self) -> bool {
        let arrivals = self.ends.iter().flat_map(|end| end.arriving.iter().map(|&(at, _)| at));
        let deadlines = self.ends.iter().map(|end| end.connection.deadline());
        let next = arrivals.chain(deadlines).min().unwrap_or(Timestamp::NEVER);
        if next == Timestamp::NEVER {
            return false;
        }
        self.now = next.max(self.now + Duration::from_nanos(100));
        true
    }

    /// Turns until `done`, at most for so long of the pair's time.
    pub(super) fn run(&mut self, within: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now + within;
        loop {
            self.turn();
            if done(self) {
                return true;
            }
            if !self.advance() || self.now > until {
                return false;
            }
        }
    }
}
