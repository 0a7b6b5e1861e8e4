//! What the kernel drops before it wakes anybody: packets of strangers.
//!
//! All ids of a port's connections begin alike, which only its peers know. A program at the socket looks for this beginning, so that
//! a stranger costs its own side the work and this one nothing.

use std::os::fd::BorrowedFd;

use super::call;

/// Where the beginning of its id is in a packet: the upper half of a number of 64 bits.
const PREFIX_AT: usize = 4;
/// The program sees the header of UDP before the packet.
const UDP_HEADER_BYTES: usize = 8;
/// What the kernel joins is no longer than an IP packet may be.
const JOINED_BYTES_MAX: usize = 1 << 16;
/// Frames of which trains are looked into. With more, the oldest is forgotten: the first packet of such a train decides then.
const FRAMES_MAX: usize = 4;

/// The bytes of a packet at this place become the number that is looked at. Where there are none, the packet is dropped.
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const SKIP_UNLESS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const KEEP_BYTES: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// What a socket's program knows.
pub(super) struct StrangerFilter {
    frames: Vec<usize>,
}

impl StrangerFilter {
    /// Nothing is dropped yet.
    pub(super) fn new() -> Self {
        Self { frames: Vec::with_capacity(FRAMES_MAX) }
    }

    /// Packets come whose ids have this prefix, the same at each call, in trains of this frame. Others are dropped from now on.
    pub(super) fn admit(&mut self, socket: BorrowedFd<'_>, prefix: u32, frame_bytes: usize) {
        if self.frames.contains(&frame_bytes) {
            return;
        }
        if self.frames.len() == FRAMES_MAX {
            self.frames.remove(0);
        }
        self.frames.push(frame_bytes);
        // Without a program strangers are told apart here, as before.
        if let Err(error) = call::attach_filter(socket, &program(prefix, &self.frames)) {
            tracing::debug!(%error, "the kernel takes no program that drops what strangers send");
        }
    }
}

/// Keeps what has the prefix at its beginning, or in the place of a packet behind it: of packets that the kernel has joined the first
/// one may be a stranger's that said it came from the peer, and must not take the peer's with it.
fn program(prefix: u32, frames: &[usize]) -> Vec<libc::sock_filter> {
    let of_frame = |frame: &usize| (0..JOINED_BYTES_MAX).step_by((*frame).max(1));
    let mut packets: Vec<usize> = frames.iter().flat_map(of_frame).collect();
    // In their order: behind one that is not there is none.
    packets.sort_unstable();
    packets.dedup();
    let instruction = |code, skip, k| libc::sock_filter { code, jt: 0, jf: skip, k };
    let looks = packets.iter().flat_map(|at| {
        [
            instruction(LOAD_WORD, 0, (UDP_HEADER_BYTES + at + PREFIX_AT) as u32),
            // As the kernel reads the bytes.
            instruction(SKIP_UNLESS_EQUAL, 1, prefix.swap_bytes()),
            instruction(KEEP_BYTES, 0, u32::MAX),
        ]
    });
    looks.chain([instruction(KEEP_BYTES, 0, 0)]).collect()
}
