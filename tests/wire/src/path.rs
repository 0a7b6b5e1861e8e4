//! One direction of the wire: what happens to each frame, what is held and until when, and the count of everything.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::chance::{Chance, Question};
use crate::scenario::Faults;

/// What came of the frames of one direction. Every frame is in exactly one place:
/// `frames + duplicated = delivered + lost + cut + overflowed + refused + held`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PathStats {
    /// Frames that came in.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames handed to the other end, second copies among them.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Frames dropped by `loss` and `udp-loss`.
    pub lost: u64,
    /// Frames that met a partition, at the beginning of the wire or on it.
    pub cut: u64,
    /// Frames that found the queue full.
    pub overflowed: u64,
    /// Frames that the other end did not take, because it is down.
    pub refused: u64,
    /// Frames held now.
    pub held: u64,
    /// Bytes held now.
    pub held_bytes: u64,
    /// Most bytes that were held at once.
    pub held_bytes_max: u64,
    /// Frames that did not leave at the moment they came.
    pub delayed: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Frames with a wrong bit.
    pub corrupted: u64,
    /// Frames that left after one that had come later.
    pub reordered: u64,
}

struct Held {
    due: Duration,
    number: u64,
    frame: Vec<u8>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Held {}
impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// Kernels send some frames on their own; they are counted apart (see the crate's documentation).
const LANES: usize = 2;

/// One direction.
pub struct Path {
    chances: [Chance; LANES],
    counts: [u64; LANES],
    held: BinaryHeap<Reverse<Held>>,
    /// When the last bit of the last frame is through, where a rate is set.
    free_at: Duration,
    /// When the last frame in order is due: nothing in order may leave before it.
    last_due: Duration,
    next_number: u64,
    latest_left: Option<u64>,
    stats: PathStats,
}

impl Path {
    /// The path with this number (0 is A to B) under a seed.
    pub fn new(seed: u64, path: u64) -> Self {
        Self {
            chances: [Chance::new(seed, 2 * path), Chance::new(seed, 2 * path + 1)],
            counts: [0; LANES],
            held: BinaryHeap::new(),
            free_at: Duration::ZERO,
            last_due: Duration::ZERO,
            next_number: 0,
            latest_left: None,
            stats: PathStats::default(),
        }
    }

    /// A frame comes in. It leaves by [`Path::take`], at once at the earliest.
    pub fn offer(&mut self, now: Duration, mut frame: Vec<u8>, faults: &Faults, is_cut: bool) {
        self.stats.frames += 1;
        self.stats.bytes += frame.len() as u64;
        let lane = usize::from(is_housekeeping(&frame));
        let (chance, k) = (self.chances[lane], self.counts[lane]);
        self.counts[lane] += 1;
        if is_cut {
            self.stats.cut += 1;
            return;
        }
        let is_unwanted = is_udp(&frame) && chance.is_hit(Question::UdpLoss, k, faults.udp_loss);
        if is_unwanted || chance.is_hit(Question::Loss, k, faults.loss) {
            self.stats.lost += 1;
            return;
        }
        if is_ip(&frame) && chance.is_hit(Question::Corrupt, k, faults.corrupt) {
            self.stats.corrupted += u64::from(damage(&mut frame, chance.draw(Question::Bit, k)));
        }
        let is_late = chance.is_hit(Question::Reorder, k, faults.reorder);
        let jitter = share_of(faults.jitter, chance.draw(Question::Jitter, k));
        let hold = if is_late { faults.reorder_by } else { Duration::ZERO };
        if chance.is_hit(Question::Duplicate, k, faults.duplicate) {
            self.stats.duplicated += 1;
            self.hold(now, frame.clone(), faults, jitter, hold);
        }
        self.hold(now, frame, faults, jitter, hold);
    }

    /// Puts a frame on the wire behind those before it, if there is room.
    fn hold(&mut self, now: Duration, frame: Vec<u8>, faults: &Faults, jitter: Duration, hold: Duration) {
        if self.stats.held_bytes + frame.len() as u64 > faults.queue as u64 {
            self.stats.overflowed += 1;
            return;
        }
        let mut due = now;
        if let Some(rate) = faults.rate {
            let ns = frame.len() as u64 * 8 * 1_000_000_000 / rate.max(1);
            self.free_at = self.free_at.max(now) + Duration::from_nanos(ns);
            due = self.free_at;
        }
        due += faults.delay + jitter;
        if hold.is_zero() {
            due = due.max(self.last_due);
            self.last_due = due;
        } else {
            due += hold;
        }
        self.stats.delayed += u64::from(due > now);
        self.stats.held += 1;
        self.stats.held_bytes += frame.len() as u64;
        self.stats.held_bytes_max = self.stats.held_bytes_max.max(self.stats.held_bytes);
        let number = self.next_number;
        self.next_number += 1;
        self.held.push(Reverse(Held { due, number, frame }));
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.held.peek().map(|Reverse(held)| held.due)
    }

    /// The next frame that is due by now. Whoever takes it says with [`Path::refused`] if it could not be handed on.
    pub fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(Held { number, frame, .. }) = self.held.pop()?;
        self.forget(&frame);
        self.stats.delivered += 1;
        self.stats.delivered_bytes += frame.len() as u64;
        self.stats.reordered += u64::from(self.latest_left.is_some_and(|latest| latest > number));
        self.latest_left = self.latest_left.max(Some(number));
        Some(frame)
    }

    /// The frame that was just taken did not arrive.
    pub fn refused(&mut self, bytes: usize) {
        self.stats.delivered -= 1;
        self.stats.delivered_bytes -= bytes as u64;
        self.stats.refused += 1;
    }

    /// What is under way is lost.
    pub fn cut(&mut self) {
        while let Some(Reverse(held)) = self.held.pop() {
            self.forget(&held.frame);
            self.stats.cut += 1;
        }
        self.be_free();
    }

    /// Nothing that was held binds what comes: after a change of faults, new frames are not kept behind old times.
    pub fn be_free(&mut self) {
        if self.held.is_empty() {
            self.free_at = Duration::ZERO;
            self.last_due = Duration::ZERO;
        }
    }

    fn forget(&mut self, frame: &[u8]) {
        self.stats.held -= 1;
        self.stats.held_bytes -= frame.len() as u64;
    }

    /// What came of the frames so far.
    pub fn stats(&self) -> PathStats {
        self.stats
    }
}

/// An even share of `most`, drawn.
fn share_of(most: Duration, drawn: u64) -> Duration {
    let ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(((u128::from(ns) * u128::from(drawn)) >> 64) as u64)
}

/// Bytes of an Ethernet header.
const HEADER: usize = 14;

fn kind(frame: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]))
}

/// Whether this is a frame of IP. Only those are damaged: ARP has no checksum, and one wrong answer would make the
/// other side unreachable for a minute, which no wire with a frame check does.
fn is_ip(frame: &[u8]) -> bool {
    matches!(kind(frame), Some(0x0800 | 0x86dd))
}

/// Whether this is a frame of UDP, without the extensions of IPv6 before it.
fn is_udp(frame: &[u8]) -> bool {
    let protocol = match kind(frame) {
        Some(0x0800) => frame.get(HEADER + 9),
        Some(0x86dd) => frame.get(HEADER + 6),
        _ => None,
    };
    protocol == Some(&17)
}

/// Whether a kernel sent this on its own: not IP, or the control protocols of IPv6.
fn is_housekeeping(frame: &[u8]) -> bool {
    match kind(frame) {
        Some(0x0800) => false,
        // Next header: hop-by-hop options carry multicast membership, 58 is ICMPv6.
        Some(0x86dd) => matches!(frame.get(HEADER + 6), Some(0 | 58)),
        _ => true,
    }
}

/// Turns one bit behind the Ethernet header; not possible if there is nothing.
fn damage(frame: &mut [u8], drawn: u64) -> bool {
    let Some(body) = frame.get_mut(HEADER..).filter(|body| !body.is_empty()) else { return false };
    let bit = (drawn % (body.len() as u64 * 8)) as usize;
    body[bit / 8] ^= 1 << (bit % 8);
    true
}

#[cfg(test)]
mod tests;
