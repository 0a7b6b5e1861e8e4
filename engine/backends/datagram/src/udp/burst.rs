//! Packets that were taken to be sent: one behind the other, until the last has left.

use std::net::{IpAddr, SocketAddr};

use penstock_datagram::PacketRoom;
use penstock_datagram::wire::FRAME_BYTES_MAX;
use rustix::net::SocketAddrAny;

use super::UDP_MAX_SEGMENTS;
use super::call::{PacketRun, RUNS_MAX};

/// Bytes of a burst: what the kernel cuts into packets is no longer than one packet of IPv4 may be.
const BURST_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// A single packet may be longer, so that one that no network carries is refused by the kernel like any other.
const BUFFER_BYTES: usize = 1 << 16;

const _: () = assert!(BURST_BYTES_MAX <= BUFFER_BYTES && BURST_BYTES_MAX <= u16::MAX as usize);

/// Packets for one address that have been taken and not all sent.
pub(super) struct KeptBurst {
    ip: IpAddr,
    to: SocketAddrAny,
    bytes: Box<[u8]>,
    /// Bytes of each packet.
    lengths: [u32; UDP_MAX_SEGMENTS],
    packets: usize,
    /// Packets that have left, and their bytes.
    left: usize,
    left_bytes: usize,
}

impl KeptBurst {
    pub(super) fn new() -> Self {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        Self {
            ip: nobody.ip(),
            to: nobody.into(),
            bytes: vec![0; BUFFER_BYTES].into(),
            lengths: [0; UDP_MAX_SEGMENTS],
            packets: 0,
            left: 0,
            left_bytes: 0,
        }
    }

    /// All packets have left.
    pub(super) fn is_empty(&self) -> bool {
        self.left == self.packets
    }

    pub(super) fn ip(&self) -> IpAddr {
        self.ip
    }

    pub(super) fn to(&self) -> &SocketAddrAny {
        &self.to
    }

    /// Takes a new burst in place of one that has left. Returns whether it is as long as one may be, so that there may
    /// be more to send.
    pub(super) fn fill(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> bool {
        (self.ip, self.to) = (to.ip(), to.into());
        (self.packets, self.left, self.left_bytes) = (0, 0, 0);
        let frame_bytes = frame_bytes.min(BUFFER_BYTES);
        let mut at = 0;
        while self.packets < UDP_MAX_SEGMENTS && (at == 0 || at + frame_bytes <= BURST_BYTES_MAX) {
            let room = &mut self.bytes[at..at + frame_bytes];
            let Some(bytes) = fill(room.into()) else { return false };
            assert!((1..=room.len()).contains(&bytes), "a packet of {bytes} B was written where {} fit", room.len());
            self.lengths[self.packets] = bytes as u32;
            self.packets += 1;
            at += bytes;
        }
        true
    }

    /// The next runs of what has not left, and how many they are. A run is longer than one packet only where they may
    /// be `joined`.
    pub(super) fn runs(&self, joined: bool) -> ([PacketRun<'_>; RUNS_MAX], usize) {
        let mut runs = [PacketRun::default(); RUNS_MAX];
        let (mut lengths, mut at) = (&self.lengths[self.left..self.packets], self.left_bytes);
        let mut count = 0;
        while count < RUNS_MAX && !lengths.is_empty() {
            let packets = if joined { run_of(lengths) } else { 1 };
            let (run, rest) = lengths.split_at(packets);
            let end = at + run.iter().sum::<u32>() as usize;
            // Two packets fit into a burst, so that the length of one is a u16.
            let packet_bytes = (packets > 1).then_some(run[0] as u16);
            runs[count] = PacketRun { bytes: &self.bytes[at..end], packets, packet_bytes };
            (count, lengths, at) = (count + 1, rest, end);
        }
        (runs, count)
    }

    /// So many packets have left, or are given up.
    pub(super) fn pass(&mut self, packets: usize) {
        let passed = &self.lengths[self.left..self.left + packets];
        self.left_bytes += passed.iter().sum::<u32>() as usize;
        self.left += packets;
    }

    /// The next packet is given up because it is too long, and those behind it that are no shorter. Returns how many
    /// they are.
    pub(super) fn pass_too_long(&mut self) -> usize {
        let lengths = &self.lengths[self.left..self.packets];
        let packets = lengths.iter().take_while(|&length| *length >= lengths[0]).count();
        self.pass(packets);
        packets
    }
}

/// How many of these packets are of one length, and the one behind them if it is shorter.
fn run_of(lengths: &[u32]) -> usize {
    let same = lengths.iter().take_while(|&length| *length == lengths[0]).count();
    let ends_shorter = lengths.get(same).is_some_and(|&length| length < lengths[0]);
    same + usize::from(ends_shorter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_one_length_and_ends_with_a_shorter_packet() {
        let cases: [(&[u32], usize); 6] =
            [(&[5], 1), (&[5, 5, 5], 3), (&[5, 5, 3, 5], 3), (&[5, 6], 1), (&[5, 3, 3], 2), (&[3, 5, 5], 1)];
        for (lengths, packets) in cases {
            assert_eq!(run_of(lengths), packets, "{lengths:?}");
        }
    }
}
