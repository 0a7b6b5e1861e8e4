//! Room in receive buffers: what a receiver grants, and what a sender may use of it.
//!
//! Credit is counted in bytes as the receiver's socket charges them, in absolute totals of first transmissions that every packet
//! repeats, so that a lost packet or acknowledgement changes nothing. All grants of one socket together fit into its buffer: where many send
//! to one, they wait at their own side. A little is every sender's own: who has no grant may send so much, and every answer grants half of it anew. The
//! grant of a sender that has sent nothing for a while is void, on both sides.

use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};

/// What a socket charges for a packet beyond its bytes, rounded up: a datagram of 64 B costs 832, one of 1,472 B 2,315.
pub const PACKET_CHARGE: u64 = 896;
/// Frames that may be sent without a grant.
pub const ALLOWED_FRAMES: u64 = 4;
/// Of them so many are granted anew by every answer. Not all: what was overtaken on its way counts as arrived, and is still to come.
const ANSWERED_FRAMES: u64 = 2;
/// Who begins is granted so much, and then as much again as it has used since: a grant is not taken back, so who came first and sent
/// little would keep the buffer from all others.
const FIRST_GRANT: u64 = 64 << 10;
/// A grant is void for its sender after so long without a use: longer than a round trip, or none would come in time.
pub const GRANT_LAPSES: Duration = Duration::from_millis(1000);
/// And for its receiver: whatever was sent under it has arrived by then, or is lost.
const GRANT_RETURNS: Duration = Duration::from_millis(1500);

/// What a message of so many bytes costs.
pub fn charge(bytes: usize) -> u64 {
    bytes as u64 + PACKET_CHARGE
}

/// The longest frame of which a buffer with so many charged bytes holds what is two senders' own.
pub fn longest_frame(buffer: u64) -> usize {
    usize::try_from(buffer / (2 * ALLOWED_FRAMES)).unwrap_or(usize::MAX).saturating_sub(PACKET_CHARGE as usize)
}

/// What one connection may use of the peer's buffer.
#[derive(Debug, Clone, Default)]
pub struct SendCredit {
    used: u64,
    granted: u64,
    /// What may be used without a grant, beyond what was used when it lapsed.
    allowance: u64,
    lapsed_at: u64,
    /// Grants count from the acknowledgement of this packet on: older ones are void.
    valid_from: u64,
    last_used: Timestamp,
}

impl SendCredit {
    /// Of a connection with frames of so many bytes.
    pub fn new(frame: usize) -> Self {
        Self { allowance: ALLOWED_FRAMES * charge(frame), ..Self::default() }
    }

    /// Whether so much may be used now.
    pub fn allows(&self, cost: u64, now: Timestamp) -> bool {
        let limit = match self.is_void(now) {
            true => self.used + self.allowance,
            false => self.granted.max(self.lapsed_at + self.allowance),
        };
        self.used + cost <= limit
    }

    fn is_void(&self, now: Timestamp) -> bool {
        now.since(self.last_used) >= GRANT_LAPSES
    }

    /// When a grant that is not used is void.
    pub fn lapses_at(&self) -> Timestamp {
        self.last_used + GRANT_LAPSES
    }

    /// It is used, for the packet of this number.
    pub fn take(&mut self, cost: u64, number: u64, now: Timestamp) {
        if self.is_void(now) {
            (self.lapsed_at, self.granted, self.valid_from) = (self.used, self.used, number);
        }
        self.used += cost;
        self.last_used = now;
    }

    /// The peer, which has received the packet of this number, has granted a total of so much.
    pub fn on_grant(&mut self, granted: u64, highest: u64) {
        if highest >= self.valid_from {
            self.granted = self.granted.max(granted);
        }
    }

    /// The total used since the beginning.
    pub fn used(&self) -> u64 {
        self.used
    }
}

/// What one connection's peer has used of this side's buffer, and was granted.
#[derive(Debug, Clone, Default)]
pub struct ReceiveCredit {
    used: u64,
    /// What was used when it began, or began anew.
    begun: u64,
    granted: u64,
    /// What is granted in any case, beyond what was used.
    own: u64,
    last_used: Timestamp,
}

impl ReceiveCredit {
    /// Of a connection with frames of so many bytes.
    pub fn new(frame: usize) -> Self {
        Self { own: ANSWERED_FRAMES * charge(frame), ..Self::default() }
    }

    /// The peer says, with a packet that has come, what it had used when that packet left.
    pub fn on_used(&mut self, used: u32, now: Timestamp) {
        // Packets that are taken differ by far less than half of what 32 bits count.
        let more = used.wrapping_sub(self.used as u32) as i32;
        if more > 0 {
            let used = self.used + more as u64;
            if !self.is_active(now) {
                (self.granted, self.begun) = (used, self.used); // The peer began anew as well.
            }
            (self.used, self.last_used) = (used, now);
        }
    }

    /// The total to be granted, if the peer may have so much on its way to this side beyond what is its own. A grant is never taken back.
    pub fn grant(&mut self, share: u64) -> u64 {
        if planted::is(Bug::CreditGrantedTwice) {
            self.granted = self.granted.saturating_add(share);
        }
        // What the peer says is the peer's: a nonsense total gets a nonsense grant, and nobody else is concerned.
        let earned = FIRST_GRANT.saturating_add(self.used - self.begun);
        let room = self.own.saturating_add(share.min(earned));
        self.granted = self.granted.max(self.used.saturating_add(room));
        self.granted
    }

    /// What the peer may still send under its grant, beyond what is its own.
    pub fn outstanding(&self, now: Timestamp) -> u64 {
        if self.is_active(now) { self.granted.saturating_sub(self.used.saturating_add(self.own)) } else { 0 }
    }

    /// Whether the peer has sent anything of late.
    pub fn is_active(&self, now: Timestamp) -> bool {
        now.since(self.last_used) < GRANT_RETURNS
    }
}

/// The buffer of one socket, shared by the connections that use it.
#[derive(Debug, Clone)]
pub struct ReceiveBuffer {
    bytes: u64,
}

impl ReceiveBuffer {
    /// A buffer that the socket fills with so many charged bytes.
    pub fn new(bytes: u64) -> Self {
        Self { bytes }
    }

    /// What each of so many senders that are active may have on its way, if so much is outstanding with them together, both beyond what is the
    /// own of each of `connections`.
    pub fn share(&self, connections: u64, active: u64, outstanding: u64, frame: usize) -> u64 {
        let kept = connections * ALLOWED_FRAMES * charge(frame);
        let room = self.bytes.saturating_sub(kept);
        // Half of what is left: the next one who begins finds something, too.
        (room / active.max(1)).min(room.saturating_sub(outstanding) / 2)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const FRAME: usize = 1472;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_grant_lapses_and_the_allowance_remains() {
        let now = Timestamp::default() + 1000 * MS;
        let mut credit = SendCredit::new(FRAME);
        for _ in 0..ALLOWED_FRAMES {
            assert!(credit.allows(charge(FRAME), now));
            credit.take(charge(FRAME), 1, now);
        }
        assert!(!credit.allows(charge(FRAME), now));
        credit.on_grant(100 * charge(FRAME), 1);
        assert!(credit.allows(charge(FRAME), now));
        credit.take(charge(FRAME), 1, now);
        let later = now + GRANT_LAPSES;
        for _ in 0..ALLOWED_FRAMES {
            assert!(credit.allows(charge(FRAME), later));
            credit.take(charge(FRAME), 2, later);
        }
        assert!(!credit.allows(charge(FRAME), later), "the grant was void");
    }

    #[test]
    fn a_grant_that_lapsed_does_not_come_back() {
        let now = Timestamp::default() + 1000 * MS;
        let (mut sender, mut receiver) = (SendCredit::new(FRAME), ReceiveCredit::new(FRAME));
        sender.take(charge(FRAME), 1, now);
        receiver.on_used(sender.used() as u32, now);
        let grant = receiver.grant(1000 * charge(FRAME));
        sender.on_grant(grant, 1);
        // Silent for so long that the receiver has promised its buffer to another.
        let later = now + 2 * GRANT_RETURNS;
        assert_eq!(receiver.outstanding(later), 0);
        sender.take(charge(FRAME), 2, later);
        sender.on_grant(grant, 1); // It comes late.
        receiver.on_used(sender.used() as u32, later);
        assert_eq!(
            receiver.grant(0),
            sender.used() + ANSWERED_FRAMES * charge(FRAME),
            "nothing of the old grant is left"
        );
        (1..ALLOWED_FRAMES).for_each(|packet| sender.take(charge(FRAME), 2 + packet, later));
        assert!(!sender.allows(charge(FRAME), later), "what is allowed without a grant is used");
    }

    #[test]
    fn totals_go_on_where_their_low_half_begins_anew() {
        let now = Timestamp::default() + 1000 * MS;
        let mut receiver = ReceiveCredit::new(FRAME);
        let mut used = 0u64;
        for _ in 0..10 {
            used += 1_000_000_000;
            receiver.on_used(used as u32, now);
            receiver.on_used((used - 500_000_000) as u32, now); // It comes late.
            assert_eq!(receiver.grant(0), used + ANSWERED_FRAMES * charge(FRAME));
        }
    }

    proptest! {
        /// Whatever is sent, lost and granted, early or late: what many senders have on their way fits into the buffer.
        #[test]
        fn all_grants_fit_the_buffer(
            steps in proptest::collection::vec((0usize..8, 0u64..32, 64usize..FRAME), 1..800),
            frames in 40u64..4000,
        ) {
            let buffer = ReceiveBuffer::new(frames * charge(FRAME));
            let mut senders = vec![(SendCredit::new(FRAME), 0u64); 8];
            let mut receivers = vec![(ReceiveCredit::new(FRAME), 0u64); 8];
            // Number and cost of each packet, the total used with it, and when it left; grants, with the number that they acknowledge.
            let mut under_way = [const { VecDeque::<(u64, u64, u64, Timestamp)>::new() }; 8];
            let mut grants = [const { VecDeque::<(u64, u64)>::new() }; 8];
            let mut now = Timestamp::default() + 1000 * MS;
            for (peer, what, bytes) in steps {
                now = now + Duration::from_micros(10);
                let (sender, number) = &mut senders[peer];
                match what {
                    0..=13 => {
                        let cost = charge(bytes);
                        if sender.allows(cost, now) {
                            *number += 1;
                            sender.take(cost, *number, now);
                            under_way[peer].push_back((*number, cost, sender.used(), now));
                        }
                    }
                    14..=20 => {
                        let fate = under_way[peer].pop_front();
                        if let Some((number, _, used, _)) = fate.filter(|_| what < 19) {
                            receivers[peer].0.on_used(used as u32, now);
                            receivers[peer].1 = number;
                        }
                    }
                    21..=25 => {
                        let others = receivers.iter().enumerate().filter(|&(other, _)| other != peer);
                        let outstanding = others.map(|(_, (receiver, _))| receiver.outstanding(now)).sum();
                        let highest = receivers[peer].1;
                        let grant = receivers[peer].0.grant(buffer.share(8, 8, outstanding, FRAME));
                        grants[peer].push_back((grant, highest));
                    }
                    26..=30 => if let Some((grant, highest)) = grants[peer].pop_front() {
                        sender.on_grant(grant, highest);
                    },
                    // Time passes; what has been under way for long has arrived or is lost, but a grant may come late.
                    _ => {
                        now = now + Duration::from_millis(bytes as u64 % 300) * 6;
                        let is_gone = |at: Timestamp| now.since(at) >= GRANT_RETURNS - GRANT_LAPSES;
                        under_way.iter_mut().for_each(|packets| packets.retain(|&(_, _, _, at)| !is_gone(at)));
                    }
                }
                let sum: u64 = under_way.iter().flatten().map(|&(_, cost, _, _)| cost).sum();
                prop_assert!(sum <= buffer.bytes, "{} of {}", sum, buffer.bytes);
            }
        }
    }
}
