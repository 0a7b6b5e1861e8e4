//! Packets go both ways, and whatever bytes come, the parser answers.

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId};
use penstock_transport::CounterRef;
use proptest::prelude::*;

use crate::siphash::SipKey;
use crate::wire::{
    ACK_WORDS, AckBits, AckBlock, DatagramWireError, NotifyHead, OpPart, Packet, PacketMessage, PacketWriter,
};

fn key() -> SipKey {
    SipKey::new([7; 16])
}

fn region() -> RegionKey {
    RegionKey { region: RegionId(3), generation: Generation(9) }
}

fn ack() -> AckBlock {
    AckBlock {
        highest: 1000,
        lowest: 990,
        credit: 1 << 41,
        watermark: 55,
        delay_ns: 12_345,
        taken: 0x1234,
        received: AckBits::first([1, 2, 3, 0], ACK_WORDS),
        finished: AckBits::first([0, 8, 0, 0], ACK_WORDS),
    }
}

/// One packet with each kind of message.
fn packet() -> Vec<u8> {
    let mut frame = vec![0; 2000];
    let mut writer = PacketWriter::new(&mut frame, 0x1122_3344_5566_7788, 42, 1 << 30, Some(&ack()));
    let part = |operation, index, count| OpPart { operation, index, count };
    writer.write(part(10, 3, 64), region(), 77, [(5, 3), (100, 2)].into_iter());
    writer.read(11, region(), 78, [(u64::MAX - 9, 8)].into_iter());
    writer.data(part(12, 0, 1), 4);
    let notify = NotifyHead {
        counter: Some(CounterRef { index: 6, generation: 2 }),
        note: Some((NoteId(u128::MAX - 5), 3)),
        before: [1, 0, 0, 1 << 63],
    };
    writer.notify(part(13, 0, 1), &notify, 3);
    writer.given_up(14);
    writer.refused(15, Some(Cause::OutOfBounds), 79);
    writer.refused(16, None, 80);
    writer.credit(512);
    writer.payload(12, true).copy_from_slice(b"12345DATAabc");
    let bytes = writer.finish(12, 0, true, &key());
    frame.truncate(bytes);
    frame
}

#[test]
fn each_message_comes_back_as_it_was_put() {
    let bytes = packet();
    let packet = Packet::parse(&bytes).unwrap();
    assert!(packet.is_authentic(&key()) && packet.has_messages());
    assert_eq!((packet.connection(), packet.number(), packet.used()), (0x1122_3344_5566_7788, 42, 1 << 30));
    assert_eq!(packet.ack(), Some(ack()));
    assert_eq!(packet.checksum(), Some(crate::checksum::crc32c(b"12345DATAabc")));
    let messages: Vec<_> = packet.messages().collect::<Result<_, _>>().unwrap();
    let part = |operation, index, count| OpPart { operation, index, count };
    assert_eq!(messages.len(), 8);
    let PacketMessage::Write { part: written, request, bytes: b"12345" } = messages[0] else { panic!() };
    assert_eq!((written, request.key, request.revision), (part(10, 3, 64), region(), 77));
    assert_eq!(request.extents.iter().collect::<Vec<_>>(), [(5, 3), (100, 2)]);
    let PacketMessage::Read { operation: 11, request } = messages[1] else { panic!() };
    assert_eq!(request.extents.iter().collect::<Vec<_>>(), [(u64::MAX - 9, 8)]);
    assert_eq!(messages[2], PacketMessage::Data { part: part(12, 0, 1), bytes: b"DATA" });
    let PacketMessage::Notify { part: told, head, bytes: b"abc" } = messages[3] else { panic!() };
    let notify = head.read();
    assert_eq!(
        (told, notify.note, notify.before),
        (part(13, 0, 1), Some((NoteId(u128::MAX - 5), 3)), [1, 0, 0, 1 << 63])
    );
    assert_eq!(notify.counter, Some(CounterRef { index: 6, generation: 2 }));
    assert_eq!(messages[4], PacketMessage::GivenUp { operation: 14 });
    let refused = |operation, cause, revision| PacketMessage::Refused { operation, cause, revision };
    assert_eq!(messages[5..7], [refused(15, Some(Cause::OutOfBounds), 79), refused(16, None, 80)]);
    assert_eq!(messages[7], PacketMessage::Credit { lines: 512 });
}

/// The layout is a promise to other releases: these are its bytes.
#[test]
fn the_layout_is_the_vector() {
    let written: String = packet().iter().map(|byte| format!("{byte:02x}")).collect();
    let vector = include_str!("../../vectors/packet.hex").split_whitespace().collect::<String>();
    assert_eq!(written, vector, "engine/datagram/vectors/packet.hex");
}

#[test]
fn payload_that_no_message_claims_is_an_error() {
    let mut frame = vec![0; 500];
    let mut writer = PacketWriter::new(&mut frame, 1, 1, 0, None);
    writer.given_up(1);
    let bytes = writer.finish(5, 0, false, &key());
    let packet = Packet::parse(&frame[..bytes]).unwrap();
    let messages: Vec<_> = packet.messages().collect();
    assert_eq!(messages, [Ok(PacketMessage::GivenUp { operation: 1 }), Err(DatagramWireError::Payload)]);
}

#[test]
fn padding_is_zeros_that_no_message_sees() {
    let mut frame = vec![9; 500];
    let mut writer = PacketWriter::new(&mut frame, 1, 1, 0, None);
    writer.data(OpPart { operation: 3, index: 0, count: 1 }, 4);
    writer.payload(4, true).copy_from_slice(b"DATA");
    assert_eq!(writer.finish(4, 200, true, &key()), 256);
    let packet = Packet::parse(&frame[..256]).unwrap();
    assert!(packet.is_authentic(&key()));
    assert!(packet.payload[..4] == *b"DATA" && packet.payload[4..].iter().all(|&byte| byte == 0));
    assert_eq!(packet.checksum(), Some(crate::checksum::crc32c(packet.payload)));
    let messages: Vec<_> = packet.messages().collect();
    let part = OpPart { operation: 3, index: 0, count: 1 };
    assert_eq!(messages, [Ok(PacketMessage::Data { part, bytes: b"DATA" })]);
}

proptest! {
    /// No bytes panic, and no message has more than its packet.
    #[test]
    fn any_bytes_are_a_packet_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let _ = packet.messages().count();
        }
    }

    #[test]
    fn a_changed_packet_is_a_packet_or_none(at in 0usize..600, value: u8, cut in 0usize..600) {
        let mut bytes = packet();
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(bytes.len() - cut % bytes.len());
        if let Ok(packet) = Packet::parse(&bytes) {
            let _ = packet.messages().count();
        }
    }
}
