//! One queue pair of a device: bursts of frames, in DPDK's buffers.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_datagram::{LentPiece, PacketRoom};
use penstock_dpdk_shim::{DpdkPacket, DpdkPiece};

use penstock_core::limits::SPANS_PER_POST;

use super::device::Device;
use super::eal;

/// Frames of one burst at most, as the shim has it.
pub const BURST_MAX: usize = 64;

const _: () = {
    assert!(size_of::<LentPiece>() == size_of::<DpdkPiece>() && align_of::<LentPiece>() == align_of::<DpdkPiece>());
    assert!(offset_of!(LentPiece, address) == offset_of!(DpdkPiece, address));
};

/// Only one thread at a time uses it.
pub struct Queue {
    pub(super) device: Arc<Device>,
    queue: u16,
    /// Empty frames to be written.
    empty: Vec<DpdkPacket>,
    /// Frames that were written and have not left; the first is the next.
    kept: Vec<DpdkPacket>,
    /// Memory that the frame which is written leaves from.
    lent: Vec<LentPiece>,
    /// Frames that have come.
    arrived: Vec<DpdkPacket>,
    /// Frames that came with a wrong checksum, not in one piece or for another station.
    pub(super) dropped: u64,
}

// SAFETY: nobody else has this queue pair, and the buffers are its alone until they are given back, by whatever thread.
unsafe impl Send for Queue {}

impl Queue {
    /// Queue pair number `queue` of a device; none: it has fewer, or somebody has this one.
    pub(super) fn take(device: &Arc<Device>, queue: u16) -> Option<Self> {
        // SYNC dpdk-queue-taken: pairs with the store in `Queue::drop`.
        let was_taken = device.taken.get(usize::from(queue))?.swap(true, Ordering::Acquire);
        let burst = || Vec::with_capacity(BURST_MAX);
        (!was_taken).then(|| Self {
            device: Arc::clone(device),
            queue,
            empty: burst(),
            kept: burst(),
            lent: Vec::with_capacity(SPANS_PER_POST),
            arrived: burst(),
            dropped: 0,
        })
    }

    /// Takes frames that have come in place of those before, which are given back.
    pub fn receive(&mut self) -> usize {
        let Self { device, queue, arrived, dropped, .. } = self;
        let shim = device.eal.shim;
        eal::enter(shim);
        give_back(device, arrived);
        // SAFETY: there is room for a burst; only this thread uses the queue.
        unsafe {
            let came = shim.penstock_dpdk_receive(device.port, *queue, arrived.as_mut_ptr(), BURST_MAX as u32);
            arrived.set_len(came as usize);
        }
        *dropped += arrived.iter().filter(|packet| packet.flags != 0).count() as u64;
        arrived.len()
    }

    /// The frames that have come. One that is wrong or not in one piece is empty.
    pub fn arrived(&self) -> impl Iterator<Item = &[u8]> {
        self.arrived.iter().map(|packet| match packet.flags {
            // SAFETY: the buffer has so many bytes, and is this queue's until the next call of `receive`.
            0 => unsafe { std::slice::from_raw_parts(packet.bytes, packet.len as usize) },
            _ => &[],
        })
    }

    /// Whether its device's link is up; some connect when they are asked.
    pub fn is_up(&self) -> bool {
        self.device.is_up()
    }

    /// Whether there is room for one more frame in a burst, and a buffer for it.
    fn has_empty(&mut self) -> bool {
        if self.kept.len() == BURST_MAX {
            return false;
        }
        if self.empty.is_empty() {
            let shim = self.device.eal.shim;
            eal::enter(shim);
            // SAFETY: there is room for a burst.
            unsafe {
                let taken = shim.penstock_dpdk_take(self.device.port, self.empty.as_mut_ptr(), BURST_MAX as u32);
                self.empty.set_len(taken as usize);
            }
        }
        !self.empty.is_empty()
    }

    /// Writes one more frame, if there is room: `write` answers how many bytes it has written, or that there is nothing to write. What it
    /// lends is read until the next call of [`Queue::flush`] has returned, and not after it: whoever lends vouches for it so long.
    pub fn write(&mut self, write: impl FnOnce(PacketRoom<'_>) -> Option<usize>) -> Written {
        if !self.has_empty() {
            return Written::NoRoom;
        }
        let Self { device, empty, lent, .. } = self;
        let Some(packet) = empty.last_mut() else { return Written::NoRoom };
        // SAFETY: the buffer has room for so much, DPDK has set all of its memory up, and it is this queue's until it is sent.
        let room = unsafe { std::slice::from_raw_parts_mut(packet.bytes, packet.len as usize) };
        lent.clear();
        let room_bytes = room.len();
        let Some(len) = write(PacketRoom { bytes: room, lent: device.lends.then_some(&mut *lent) }) else {
            return Written::Nothing;
        };
        let whole = lent.iter().fold(len as u64, |whole, piece| whole.saturating_add(piece.len));
        assert!(whole <= room_bytes as u64, "a frame of {whole} B was written and lent where {room_bytes} fit");
        packet.len = len as u32;
        if !lent.is_empty() {
            let (pieces, count) = (lent.as_ptr().cast::<DpdkPiece>(), lent.len() as u32);
            // SAFETY: the packet is this queue's, with room for all of a frame; whoever lent these vouches for them until `flush` has returned.
            unsafe { device.eal.shim.penstock_dpdk_lend(device.port, packet, pieces, count) };
        }
        self.kept.extend(self.empty.pop());
        Written::One
    }

    /// Sends what was written, as far as there is room. Returns how many frames have left, and whether all have.
    pub fn flush(&mut self) -> (usize, bool) {
        if self.kept.is_empty() {
            return (0, true);
        }
        let shim = self.device.eal.shim;
        eal::enter(shim);
        // SAFETY: these were taken from this port, and are this queue's until they have left.
        let left = unsafe {
            shim.penstock_dpdk_send(self.device.port, self.queue, self.kept.as_mut_ptr(), self.kept.len() as u32)
        } as usize;
        self.kept.drain(..left);
        if !self.kept.is_empty() && self.device.lends {
            // SAFETY: these are still this queue's, and what was lent to them is there.
            unsafe { shim.penstock_dpdk_settle(self.kept.as_mut_ptr(), self.kept.len() as u32) };
        }
        (left, self.kept.is_empty())
    }
}

/// What became of a frame that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    One,
    Nothing,
    NoRoom,
}

fn give_back(device: &Device, packets: &mut Vec<DpdkPacket>) {
    if !packets.is_empty() {
        // SAFETY: they are the caller's, who forgets them now.
        unsafe { device.eal.shim.penstock_dpdk_put_back(packets.as_mut_ptr(), packets.len() as u32) };
        packets.clear();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.eal.is_here() {
            for packets in [&mut self.empty, &mut self.kept, &mut self.arrived] {
                give_back(&self.device, packets);
            }
        }
        // SYNC dpdk-queue-taken: pairs with the swap in `Queue::take`.
        self.device.taken[usize::from(self.queue)].store(false, Ordering::Release);
    }
}
