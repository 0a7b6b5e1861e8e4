//! A connection over packets whose other end has the right keys and says anything.
//!
//! The input is a list of packets, each behind its length (u16). Each is made authentic: it gets the connection's id, the next
//! number and a right tag, wherever its header says that it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId, Span, Timestamp};
use penstock_datagram::connection::ConnectionSettings;
use penstock_datagram::initiator::{EndedOp, MoveRequest, OpKind, ProtocolViolation};
use penstock_datagram::wire::{FRAME_BYTES_MIN, MemoryRequest, NotifyHead, Packet};
use penstock_datagram::{ConnectionKeys, DatagramConnection, LentPiece, LocalSide, OutgoingOp, PacketFate, Piece};
use penstock_transport::{CounterRef, Note};

/// Bytes of the region that the peer may use; its id and generation are 1.
pub const REGION_BYTES: u64 = 4096;
const PACKETS_MAX: usize = 200;
const TAG_BYTES: usize = 8;
/// The shortest packet: fixed fields, acknowledgement, tag.
const SHORTEST: usize = 32 + TAG_BYTES;
const KEY: RegionKey = RegionKey { region: RegionId(1), generation: Generation(1) };
const HALVES: [[u8; 32]; 2] = [[1; 32], [2; 32]];

#[derive(Default)]
struct Side {
    reads: BTreeSet<u64>,
    lines: u64,
}

fn is_inside(request: &MemoryRequest<'_>) -> bool {
    request.key == KEY && request.extents.iter().all(|(offset, len)| offset + len <= REGION_BYTES)
}

impl Side {
    /// Looks whether bytes may leave from here.
    fn look(&self, op: OutgoingOp, pieces: &[Piece]) {
        if let OutgoingOp::Answer(operation) = op {
            assert!(self.reads.contains(&operation));
            assert!(pieces.iter().all(|piece| piece.offset + u64::from(piece.len) <= REGION_BYTES));
        }
    }
}

impl LocalSide for Side {
    fn gather(&mut self, op: OutgoingOp, pieces: &[Piece], into: &mut [u8]) -> Result<(), Cause> {
        assert_eq!(pieces.iter().map(|piece| piece.len as usize).sum::<usize>(), into.len());
        self.look(op, pieces);
        into.fill(1);
        Ok(())
    }

    fn lend(&mut self, op: OutgoingOp, pieces: &[Piece], lent: &mut Vec<LentPiece>, _: bool) -> Result<(), Cause> {
        self.look(op, pieces);
        lent.extend(pieces.iter().map(|piece| LentPiece { address: piece.offset, len: piece.len.into() }));
        Ok(())
    }

    fn land(&mut self, _: u64, pieces: &[Piece], bytes: &[u8]) -> Result<(), Cause> {
        assert_eq!(pieces.iter().map(|piece| piece.len as usize).sum::<usize>(), bytes.len());
        assert!(
            pieces.iter().all(|piece| piece.offset + u64::from(piece.len) <= REGION_BYTES),
            "only where it was asked for"
        );
        Ok(())
    }

    fn place(&mut self, request: &MemoryRequest<'_>, bytes: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation> {
        assert_eq!(request.extents.bytes(), bytes.len() as u64);
        Ok(if is_inside(request) { Ok(()) } else { Err(Cause::OutOfBounds) })
    }

    fn open_read(
        &mut self,
        operation: u64,
        request: &MemoryRequest<'_>,
    ) -> Result<Result<(), Cause>, ProtocolViolation> {
        if !is_inside(request) {
            return Ok(Err(Cause::OutOfBounds));
        }
        assert!(self.reads.insert(operation), "a READ is opened once");
        Ok(Ok(()))
    }

    fn close_read(&mut self, operation: u64) {
        assert!(self.reads.remove(&operation), "a READ is closed once");
    }

    fn notify(&mut self, _: Option<CounterRef>, note: Option<Note<'_>>) -> Result<bool, ProtocolViolation> {
        assert!(note.is_none_or(|note| note.payload.len() <= penstock_core::limits::NOTE_BYTES_MAX));
        Ok(true)
    }

    fn on_note_credit(&mut self, lines: u64) -> Result<(), ProtocolViolation> {
        self.lines = self.lines.max(lines);
        Ok(())
    }

    fn on_revision(&mut self, _: u64) {}

    fn revision(&self) -> u64 {
        3
    }
}

/// Makes a packet authentic, if it is long enough to be one.
fn signed(packet: &[u8], number: u64, keys: &ConnectionKeys) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    if packet.len() < SHORTEST {
        return None;
    }
    packet[..8].copy_from_slice(&0u64.to_le_bytes());
    packet[8..16].copy_from_slice(&number.to_le_bytes());
    let end = usize::from(u16::from_le_bytes([packet[16], packet[17]])).clamp(SHORTEST, packet.len());
    packet[16..18].copy_from_slice(&(end as u16).to_le_bytes());
    let tag = keys.transmit_tag(&packet[..end - TAG_BYTES]);
    packet[end - TAG_BYTES..end].copy_from_slice(&tag.to_le_bytes());
    Some(packet)
}

/// The bare parser.
pub fn parse(input: &[u8]) {
    if let Ok(packet) = Packet::parse(input) {
        let _ = packet.messages().count();
    }
}

/// Whatever a peer says, a connection neither panics nor places a byte that was not admitted, every operation ends at most once, and
/// what it asks to be turned at is not behind it for ever.
pub fn run(input: &[u8]) {
    parse(input);
    let mut now = Timestamp::default() + Duration::from_secs(1);
    let settings = ConnectionSettings {
        frame_bytes: FRAME_BYTES_MIN,
        checksums: false,
        pads: true,
        patience: Duration::from_secs(60),
        local_connection: 0,
        remote_connection: 1,
    };
    let keys = ConnectionKeys::derive(&HALVES[0], &HALVES[1], 0, 1);
    let peers = ConnectionKeys::derive(&HALVES[1], &HALVES[0], 1, 0);
    let (mut connection, mut side) = (DatagramConnection::new(settings, keys, now), Side::default());
    connection.set_share(1 << 20);
    let spans = [Span { local: 0, remote: 0, len: 2000 }, Span { local: 3000, remote: 3000, len: 900 }];
    for (id, kind) in [(1, OpKind::Write), (2, OpKind::Read), (3, OpKind::Read), (4, OpKind::Write)] {
        connection.post(kind, &MoveRequest { completion_id: id, transfer: id, key: KEY, revision: 0, spans: &spans });
    }
    let head = NotifyHead { note: Some((NoteId(9), 5)), ..NotifyHead::default() };
    let _ = connection.notify(5, 4, head, b"hello");
    let (mut frame, mut rest, mut ended) = (vec![0; FRAME_BYTES_MIN], input, BTreeSet::new());
    for number in 1..=PACKETS_MAX as u64 {
        let Some((len, after)) = rest.split_first_chunk::<2>() else { break };
        let (packet, after) = after.split_at(usize::from(u16::from_le_bytes(*len)).min(after.len()));
        rest = after;
        let Some(packet) = signed(packet, number, &peers) else { continue };
        now = now + Duration::from_micros(100);
        match connection.receive(&packet, now, &mut side) {
            Ok(fate) => assert!(fate != PacketFate::Forged, "the tag is right"),
            Err(_) => return,
        }
        connection.end_burst();
        if connection.expire(now).is_err() {
            return;
        }
        for packets in 0.. {
            assert!(packets < 1000, "it sends for ever");
            if connection.transmit(now, frame[..].as_mut().into(), &mut side).is_none() {
                break;
            }
        }
        while let Some(EndedOp { completion_id: id, .. }) = connection.pop_ended() {
            assert!(ended.insert(id), "operation {id} has ended twice");
        }
        assert!(connection.deadline() > now, "it wants to be turned, and does nothing");
    }
}
