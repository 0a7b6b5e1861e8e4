//! Packets of a peer that keeps to the protocol, and of one that does not.

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId};
use penstock_datagram::siphash::SipKey;
use penstock_datagram::wire::{AckBits, AckBlock, NotifyHead, OpPart, PacketWriter};
use penstock_transport::CounterRef;

const KEY: RegionKey = RegionKey { region: RegionId(1), generation: Generation(1) };

fn part(operation: u64, index: u8, count: u8) -> OpPart {
    OpPart { operation, index, count }
}

/// A list of packets, each behind its length.
#[derive(Default)]
struct Packets(Vec<u8>);

impl Packets {
    /// Adds one with these messages, and so many bytes of payload.
    fn with(mut self, ack: AckBlock, payload: usize, messages: impl FnOnce(&mut PacketWriter<'_>)) -> Self {
        let mut frame = vec![0; 1188];
        // Number, id and tag are the target's to fill in.
        let mut writer = PacketWriter::new(&mut frame, 0, 0, 0, Some(&ack));
        messages(&mut writer);
        writer.payload(payload, false).fill(7);
        let bytes = writer.finish(payload, 0, false, &SipKey::new([0; 16]));
        self.0.extend((bytes as u16).to_le_bytes());
        self.0.extend(&frame[..bytes]);
        self
    }
}

/// Says that all packets up to this one have come, and that so many operations have finished.
fn acked(highest: u64, watermark: u64) -> AckBlock {
    let received = AckBits { words: [u64::MAX, 0, 0, 0], len: 1 };
    AckBlock { highest, lowest: 1, credit: 1 << 20, watermark, received, ..AckBlock::default() }
}

pub(super) fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let nothing = AckBlock::default;
    let writes = Packets::default()
        .with(nothing(), 300, |to| to.write(part(0, 0, 2), KEY, 0, [(0, 100), (1000, 200)].into_iter()))
        .with(nothing(), 50, |to| to.write(part(0, 1, 2), KEY, 0, [(4046, 50)].into_iter()))
        .with(nothing(), 10, |to| to.write(part(1, 0, 1), KEY, 0, [(4090, 10)].into_iter()));
    let notes = Packets::default()
        .with(nothing(), 5, |to| to.write(part(0, 0, 2), KEY, 0, [(0, 5)].into_iter()))
        .with(nothing(), 3, |to| {
            let counter = Some(CounterRef { index: 1, generation: 1 });
            to.notify(part(1, 0, 1), &NotifyHead { counter, note: Some((NoteId(1), 3)), before: [1, 0, 0, 0] }, 3);
        })
        .with(nothing(), 0, |to| to.given_up(0));
    let reads = Packets::default()
        .with(nothing(), 0, |to| to.read(0, KEY, 0, [(0, 2000), (2000, 100)].into_iter()))
        .with(acked(8, 0), 0, |to| to.given_up(1))
        .with(acked(8, 0), 0, |to| to.read(2, KEY, 0, [(5000, 1)].into_iter()));
    let answers = Packets::default()
        .with(acked(4, 1), 0, |to| to.credit(4))
        .with(acked(6, 1), 967, |to| to.data(part(1, 0, 3), 967))
        .with(acked(6, 1), 966, |to| to.data(part(1, 2, 3), 966))
        .with(acked(6, 1), 0, |to| to.refused(2, Some(Cause::RevokedByPeer), 2))
        .with(acked(7, 1), 0, |to| to.refused(4, None, 3))
        .with(acked(9, 5), 0, |_| ());
    let far = Packets::default().with(nothing(), 1, |to| to.write(part(255, 0, 1), KEY, 0, [(0, 1)].into_iter())).with(
        nothing(),
        1,
        |to| to.write(part(256, 0, 1), KEY, 0, [(0, 1)].into_iter()),
    );
    let lists = [("writes", writes), ("notes", notes), ("reads", reads), ("answers", answers), ("too-far", far)];
    lists.map(|(name, packets)| (name, packets.0)).into()
}
