//! Every state of an operation, and what each event makes of it: the tables are the specification.

use std::fmt::Write as _;

use penstock_core::{Cause, Span};
use penstock_transport::{CounterRef, Note};

use super::network::OPEN;
use crate::connection::{LentPiece, LocalSide, OutgoingOp, Piece};
use crate::in_flight::PacketItem;
use crate::initiator::{EndedOp, Initiator, MoveRequest, OpKind, ProtocolViolation};
use crate::target::Target;
use crate::wire::{AckBits, MemoryRequest, NotifyHead, OpPart, Packet, PacketMessage, PacketWriter};

const FRAME: usize = 1188;

/// A side that takes everything, or refuses everything.
struct Stub {
    refuses: bool,
}

impl LocalSide for Stub {
    fn gather(&mut self, _: OutgoingOp, _: &[Piece], _: &mut [u8]) -> Result<(), Cause> {
        Ok(())
    }

    fn lend(&mut self, _: OutgoingOp, _: &[Piece], _: &mut Vec<LentPiece>, _: bool) -> Result<(), Cause> {
        Ok(())
    }

    fn land(&mut self, _: u64, _: &[Piece], _: &[u8]) -> Result<(), Cause> {
        if self.refuses { Err(Cause::RevokedHere) } else { Ok(()) }
    }

    fn place(&mut self, _: &MemoryRequest<'_>, _: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation> {
        Ok(if self.refuses { Err(Cause::RevokedByPeer) } else { Ok(()) })
    }

    fn open_read(&mut self, _: u64, _: &MemoryRequest<'_>) -> Result<Result<(), Cause>, ProtocolViolation> {
        Ok(if self.refuses { Err(Cause::RevokedByPeer) } else { Ok(()) })
    }

    fn close_read(&mut self, _: u64) {}

    fn notify(&mut self, _: Option<CounterRef>, _: Option<Note<'_>>) -> Result<bool, ProtocolViolation> {
        Ok(!self.refuses)
    }

    fn on_note_credit(&mut self, _: u64) -> Result<(), ProtocolViolation> {
        Ok(())
    }

    fn on_revision(&mut self, _: u64) {}

    fn revision(&self) -> u64 {
        5
    }
}

/// A request of ten bytes, as it comes from a packet.
fn with_request<R>(f: impl FnOnce(&MemoryRequest<'_>) -> R) -> R {
    let mut frame = vec![0; FRAME];
    let mut writer = PacketWriter::new(&mut frame, 1, 1, 0, None);
    writer.read(0, OPEN, 0, [(0, 10)].into_iter());
    let bytes = writer.finish(0, 0, false, &crate::siphash::SipKey::new([0; 16]));
    let packet = Packet::parse(&frame[..bytes]).unwrap();
    let Some(Ok(PacketMessage::Read { request, .. })) = packet.messages().next() else { unreachable!() };
    f(&request)
}

type TargetEvent = (&'static str, fn(&mut Target, u64) -> Result<String, ProtocolViolation>);

fn write(target: &mut Target, operation: u64, index: u8, refuses: bool) -> Result<String, ProtocolViolation> {
    let part = OpPart { operation, index, count: 2 };
    let arrival = with_request(|request| target.on_write(part, request, &[0; 10], &mut Stub { refuses }))?;
    Ok(format!("{arrival:?}"))
}

fn notify(target: &mut Target, operation: u64, before: u64, refuses: bool) -> Result<String, ProtocolViolation> {
    let head = NotifyHead { before: [before, 0, 0, 0], ..NotifyHead::default() };
    let part = OpPart { operation, index: 0, count: 1 };
    Ok(format!("{:?}", target.on_notify(part, &head, &[], &mut Stub { refuses })?))
}

fn read(target: &mut Target, operation: u64, refuses: bool) -> Result<String, ProtocolViolation> {
    let arrival = with_request(|request| target.on_read(operation, request, &mut Stub { refuses }))?;
    Ok(format!("{arrival:?}"))
}

const EVENTS: [TargetEvent; 11] = [
    ("write 1 of 2", |target, operation| write(target, operation, 0, false)),
    ("write 2 of 2", |target, operation| write(target, operation, 1, false)),
    ("write 2, refused", |target, operation| write(target, operation, 1, true)),
    ("read", |target, operation| read(target, operation, false)),
    ("read, refused", |target, operation| read(target, operation, true)),
    ("notify", |target, operation| notify(target, operation, 0, false)),
    ("notify behind", |target, operation| notify(target, operation, 1, false)),
    ("notify, no counter", |target, operation| notify(target, operation, 0, true)),
    ("given up", |target, operation| Ok(format!("{:?}", target.on_given_up(operation, &mut Stub { refuses: false })?))),
    ("refusal acked", |target, operation| {
        target.on_acked(PacketItem::Refused(operation), &mut Stub { refuses: false })?;
        Ok(String::new())
    }),
    ("data acked", |target, operation| {
        let part = OpPart { operation, index: 0, count: 1 };
        target.on_acked(PacketItem::Data(part), &mut Stub { refuses: false })?;
        Ok(String::new())
    }),
];

/// Ways to bring operation 1 into each state; operation 0 before it stays unknown, or finishes for "passed".
const STATES: [(&str, &[usize]); 7] = [
    ("unknown", &[]),
    ("writing", &[0]),
    ("reading", &[3]),
    ("waiting note", &[6]),
    ("refused", &[2]),
    ("finished", &[0, 1]),
    ("passed", &[0, 1]),
];

#[test]
fn an_operation_of_the_peer() {
    let mut table = String::new();
    for (state, events) in STATES {
        for (name, event) in EVENTS {
            let mut target = Target::new(FRAME);
            for &before in events {
                EVENTS[before].1(&mut target, 1).unwrap();
            }
            if state == "passed" {
                notify(&mut target, 0, 0, false).unwrap();
            }
            let from = target.state_of(1);
            let arrival = event(&mut target, 1).unwrap_or_else(|ProtocolViolation| "violation".to_owned());
            let to = target.state_of(1);
            let to = if from == to { "=".to_owned() } else { to };
            writeln!(table, "{state:13} {name:19} {arrival:10} {to}").unwrap();
        }
    }
    compare("target.txt", &table);
}

fn initiator(kind: OpKind) -> (Initiator, u64) {
    let mut initiator = Initiator::new(FRAME);
    let spans = [Span { local: 0, remote: 0, len: 10 }];
    let what = MoveRequest { completion_id: 77, transfer: 1, key: OPEN, revision: 0, spans: &spans };
    let operation = match kind {
        OpKind::Notify => {
            initiator.notify(77, 1, NotifyHead::default(), &[]);
            0
        }
        _ => initiator.post(kind, &what),
    };
    (initiator, operation)
}

type InitiatorEvent = (&'static str, fn(&mut Initiator, u64) -> Result<String, ProtocolViolation>);

fn done(result: Result<(), ProtocolViolation>) -> Result<String, ProtocolViolation> {
    result.map(|()| String::new())
}

const INITIATOR_EVENTS: [InitiatorEvent; 8] = [
    ("sent", |initiator, _| {
        let item = initiator.next_item(0);
        Ok(item.map_or("nothing".to_owned(), |item| {
            initiator.on_sent(item);
            format!("{item:?}").split('(').next().unwrap_or_default().to_owned()
        }))
    }),
    ("lost", |initiator, operation| {
        let part = OpPart { operation, index: 0, count: 1 };
        initiator.on_lost(PacketItem::Write(part));
        Ok(initiator.next_item(0).map_or("nothing to send", |_| "to send").to_owned())
    }),
    ("finished bit", |initiator, _| done(initiator.on_finished(0, &AckBits { words: [1, 0, 0, 0], len: 1 }))),
    ("watermark", |initiator, _| done(initiator.on_finished(1, &AckBits::default()))),
    ("watermark too far", |initiator, _| done(initiator.on_finished(2, &AckBits::default()))),
    ("refused", |initiator, operation| done(initiator.on_refused(operation, Some(Cause::OutOfBounds)))),
    ("data", |initiator, operation| {
        let part = OpPart { operation, index: 0, count: 1 };
        let arrival = initiator.on_data(part, &[0; 10], &mut Vec::new(), &mut Stub { refuses: false })?;
        Ok(format!("{arrival:?}"))
    }),
    ("cancelled", |initiator, _| Ok(format!("{:?}", initiator.cancel(77).map(|given_up| given_up.has_ended)))),
];

const INITIATOR_STATES: [(&str, &[usize]); 5] =
    [("posted", &[]), ("sent", &[0]), ("given up", &[0, 7]), ("ended", &[0, 2]), ("free", &[0, 3])];
/// A READ ends by its data.
const READ_STATES: [(&str, &[usize]); 5] =
    [("posted", &[]), ("sent", &[0]), ("given up", &[0, 7]), ("ended", &[0, 6]), ("free", &[0, 6, 3])];

#[test]
fn an_operation_of_this_side() {
    let mut table = String::new();
    for kind in [OpKind::Write, OpKind::Read, OpKind::Notify] {
        let states = if kind == OpKind::Read { READ_STATES } else { INITIATOR_STATES };
        for (state, events) in states {
            for (name, event) in INITIATOR_EVENTS {
                let (mut initiator, operation) = initiator(kind);
                for &before in events {
                    INITIATOR_EVENTS[before].1(&mut initiator, operation).unwrap();
                }
                let mut ended: Vec<_> = std::iter::from_fn(|| initiator.pop_ended()).collect();
                let before = ended.len();
                let answer =
                    event(&mut initiator, operation).unwrap_or_else(|ProtocolViolation| "violation".to_owned());
                ended.extend(std::iter::from_fn(|| initiator.pop_ended()));
                let ends = match ended.get(before) {
                    Some(EndedOp { result: Ok(bytes), .. }) => format!("ends: {bytes}"),
                    Some(EndedOp { result: Err(cause), .. }) => format!("ends: {cause:?}"),
                    None => String::new(),
                };
                assert!(ended.len() <= 1, "an operation ends once");
                let line = format!("{:6} {state:8} {name:17} {answer:16} {ends}", format!("{kind:?}"));
                writeln!(table, "{}", line.trim_end()).unwrap();
            }
        }
    }
    compare("initiator.txt", &table);
}

/// Compares with the table that is kept; `PENSTOCK_UPDATE=1` writes it.
fn compare(name: &str, table: &str) {
    let table: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, table, "engine/datagram/vectors/{name}; PENSTOCK_UPDATE=1 writes it anew");
}
