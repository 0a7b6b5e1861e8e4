//! Packets under way: what each carried, which of them are acknowledged, and which count as lost.
//!
//! Loss is a matter of time (RACK): a packet is lost when one that was sent later is acknowledged and it is older than a round
//! trip and a reordering window, which widens when a packet was given up too soon. Every transmission has a number of its own, so
//! an acknowledgement always says which one arrived.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_core::Timestamp;

use crate::wire::{ACK_WORDS, AckBlock, OpPart};

/// A lost packet is remembered until its number is so far behind the highest acknowledged: longer no acknowledgement names it.
const REMEMBERED: u64 = 64 * ACK_WORDS as u64;
/// And not for longer than this many numbers: a peer that acknowledges nothing costs no more memory, and no numbers.
const REMEMBERED_MAX: u64 = 1024;
/// Steps of the reordering window, each a quarter of the smallest round trip.
const REORDER_STEPS_MAX: u32 = 64;
/// After so many packets that were lost indeed it is half as wide.
const LOST_FOR_LESS: u32 = 16;
/// What a step is at least: packets of one burst overtake each other on two cores.
const REORDER_MIN: Duration = Duration::from_micros(100);

/// Something that a packet carries and that is repeated if the packet is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketItem {
    Write(OpPart),
    Read(u64),
    Notify(OpPart),
    GivenUp(u64),
    /// What was read for the peer.
    Data(OpPart),
    Refused(u64),
    Credit(u64),
}

impl PacketItem {
    /// The number of its operation; of a [`PacketItem::Credit`] there is none.
    pub fn operation(self) -> u64 {
        match self {
            Self::Write(part) | Self::Notify(part) | Self::Data(part) => part.operation,
            Self::Read(operation) | Self::GivenUp(operation) | Self::Refused(operation) => operation,
            Self::Credit(_) => 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentState {
    UnderWay,
    /// Acknowledged, or a packet that carries nothing.
    Settled,
    /// Given up because a later one had arrived.
    Lost,
    /// Given up because nothing was heard.
    TimedOut,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Timestamp,
    bytes: u32,
    items: u16,
    state: SentState,
    /// How many items the packets before it have had.
    first_item: u64,
}

impl Sent {
    /// Where its items are, if so many were forgotten.
    fn range(&self, items_gone: u64) -> std::ops::Range<usize> {
        let start = (self.first_item - items_gone) as usize;
        start..start + usize::from(self.items)
    }
}

/// What an acknowledgement told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acked {
    pub bytes: u64,
    /// Of the packet with the highest number, if that is new.
    pub round_trip: Option<Duration>,
    /// Packets that had been given up and had arrived.
    pub spurious: u64,
}

/// The packets of one connection that are under way.
#[derive(Debug, Default)]
pub struct InFlightPackets {
    /// The number of the first in `sent`.
    first: u64,
    sent: VecDeque<Sent>,
    items: VecDeque<PacketItem>,
    /// Items that were forgotten, which came before those.
    items_gone: u64,
    /// No packet below this number is waited for.
    lowest: u64,
    bytes: u64,
    highest_acked: u64,
    /// When the packet was sent that was sent last of all acknowledged ones, and its round trip.
    newest_acked: Timestamp,
    round_trip: Duration,
    smallest: Option<Duration>,
    reorder_steps: u32,
    /// Packets that were given up since one that was had been overtaken, or since the reordering window became smaller.
    lost_since_overtaken: u32,
    lost: u64,
    /// When one of them will count as lost, if nothing is heard.
    loss_at: Option<Timestamp>,
}

impl InFlightPackets {
    pub fn new() -> Self {
        Self { first: 1, lowest: 1, ..Self::default() }
    }

    /// The number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// The lowest number whose packet is still waited for.
    pub fn lowest(&self) -> u64 {
        self.lowest
    }

    /// Bytes of packets that are neither acknowledged nor given up.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets whose fate is open, and some that were settled between them.
    pub fn span(&self) -> u64 {
        self.sent.len() as u64
    }

    /// A packet is sent, with these items.
    pub fn insert(&mut self, now: Timestamp, bytes: usize, items: &[PacketItem]) {
        let state = if items.is_empty() { SentState::Settled } else { SentState::UnderWay };
        let first_item = self.items_gone + self.items.len() as u64;
        self.sent.push_back(Sent { at: now, bytes: bytes as u32, items: items.len() as u16, state, first_item });
        items.iter().for_each(|&item| self.items.push_back(item));
        match state {
            SentState::UnderWay => self.bytes += bytes as u64,
            _ => self.prune(),
        }
    }

    fn reorder_window(&self) -> Duration {
        let smallest = self.smallest.unwrap_or(self.round_trip);
        (smallest / 4).max(REORDER_MIN) * (1 + self.reorder_steps)
    }

    /// Takes an acknowledgement: calls `settle` with every item that arrived and was not known to have. An error says that it names
    /// what was never sent. [`InFlightPackets::detect`] comes after it.
    pub fn on_ack(
        &mut self,
        ack: &AckBlock,
        now: Timestamp,
        mut settle: impl FnMut(PacketItem),
    ) -> Result<Acked, NeverSent> {
        if ack.highest >= self.next_number() {
            return Err(NeverSent);
        }
        let (mut acked, mut overtaken) = (Acked::default(), 0);
        let delay = Duration::from_nanos(ack.delay_ns.into());
        let was_highest = self.highest_acked;
        self.highest_acked = was_highest.max(ack.highest);
        // It names none below.
        let from = ack.highest.saturating_sub(REMEMBERED).max(self.first);
        let named = self.sent.range_mut(((from - self.first) as usize).min(self.sent.len())..);
        for (number, sent) in (from..=ack.highest).zip(named) {
            let is_named = number == ack.highest || ack.received.has(ack.highest - 1 - number);
            if !is_named || sent.state == SentState::Settled {
                continue;
            }
            match sent.state {
                SentState::Lost => overtaken += 1,
                SentState::TimedOut => acked.spurious += 1,
                _ => {
                    self.bytes -= u64::from(sent.bytes);
                    acked.bytes += u64::from(sent.bytes);
                }
            }
            sent.state = SentState::Settled;
            sent.range(self.items_gone).for_each(|index| settle(self.items[index]));
            if sent.at >= self.newest_acked {
                self.newest_acked = sent.at;
                self.round_trip = now.since(sent.at).saturating_sub(delay);
            }
            if number == ack.highest && number > was_highest {
                let round_trip = now.since(sent.at).saturating_sub(delay);
                acked.round_trip = Some(round_trip);
                self.smallest = Some(self.smallest.map_or(round_trip, |smallest| smallest.min(round_trip)));
            }
        }
        if overtaken > 0 {
            (self.reorder_steps, self.lost_since_overtaken) = ((self.reorder_steps + 1).min(REORDER_STEPS_MAX), 0);
        }
        acked.spurious += overtaken;
        Ok(acked)
    }

    /// Packets that were given up so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Gives up what counts as lost by now. Answers its bytes.
    pub fn detect(&mut self, now: Timestamp, mut lose: impl FnMut(PacketItem)) -> u64 {
        if self.sent.is_empty() {
            return 0; // As at a side that only receives.
        }
        let patience = self.round_trip + self.reorder_window();
        self.loss_at = None;
        let mut lost = 0;
        for sent in self.sent.range_mut((self.lowest - self.first) as usize..) {
            if sent.at >= self.newest_acked {
                break;
            }
            if sent.state != SentState::UnderWay {
                continue;
            }
            if sent.at + patience > now {
                self.loss_at = Some(sent.at + patience);
                break;
            }
            sent.state = SentState::Lost;
            (self.lost, self.lost_since_overtaken) = (self.lost + 1, self.lost_since_overtaken + 1);
            lost += u64::from(sent.bytes);
            self.bytes -= u64::from(sent.bytes);
            self.items.range(sent.range(self.items_gone)).for_each(|&item| lose(item));
        }
        if self.lost_since_overtaken >= LOST_FOR_LESS {
            (self.reorder_steps, self.lost_since_overtaken) = (self.reorder_steps / 2, 0);
        }
        self.prune();
        lost
    }

    /// Gives up the oldest packets that are under way, at most so many: nothing was heard for long.
    pub fn give_up(&mut self, packets: usize, mut lose: impl FnMut(PacketItem)) {
        let under_way = self.sent.range_mut((self.lowest - self.first) as usize..);
        for sent in under_way.filter(|sent| sent.state == SentState::UnderWay).take(packets) {
            sent.state = SentState::TimedOut;
            self.lost += 1;
            self.bytes -= u64::from(sent.bytes);
            self.items.range(sent.range(self.items_gone)).for_each(|&item| lose(item));
        }
        self.loss_at = None;
        self.prune();
    }

    /// When [`InFlightPackets::detect`] would find something.
    pub fn loss_at(&self) -> Option<Timestamp> {
        self.loss_at
    }

    /// When the oldest packet was sent that is still under way.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.sent.get((self.lowest - self.first) as usize).map(|sent| sent.at)
    }

    /// Passes the packets that are not waited for any more, and forgets those at the front whose fate is settled for good.
    fn prune(&mut self) {
        let is_over = |sent: &Sent| sent.state != SentState::UnderWay;
        while self.sent.get((self.lowest - self.first) as usize).is_some_and(is_over) {
            self.lowest += 1;
        }
        let is_over = |(sent, number): &(&Sent, u64)| match sent.state {
            SentState::UnderWay => false,
            SentState::Settled => true,
            SentState::Lost | SentState::TimedOut => {
                number + REMEMBERED < self.highest_acked
                    || self.first + self.sent.len() as u64 - number > REMEMBERED_MAX
            }
        };
        let over = self.sent.iter().zip(self.first..).take_while(is_over).count();
        // At once: they are many, and each costs as much as all.
        let items: usize = self.sent.drain(..over).map(|sent| usize::from(sent.items)).sum();
        self.items.drain(..items);
        self.items_gone += items as u64;
        self.first += over as u64;
    }
}

/// An acknowledgement names a packet that was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverSent;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::AckBits;

    const US: Duration = Duration::from_micros(1);

    fn at(us: u32) -> Timestamp {
        Timestamp::default() + us * US
    }

    fn ack(highest: u64, received: u64) -> AckBlock {
        AckBlock { highest, received: AckBits { words: [received, 0, 0, 0], len: 1 }, ..AckBlock::default() }
    }

    struct Fates {
        settled: Vec<u64>,
        lost: Vec<u64>,
    }

    fn take(packets: &mut InFlightPackets, ack: &AckBlock, now: Timestamp) -> (Fates, Acked) {
        let mut fates = Fates { settled: Vec::new(), lost: Vec::new() };
        let name = |item| if let PacketItem::Read(operation) = item { operation } else { unreachable!() };
        let acked = packets.on_ack(ack, now, |item| fates.settled.push(name(item))).unwrap();
        packets.detect(now, |item| fates.lost.push(name(item)));
        (fates, acked)
    }

    fn sent(numbers: u32) -> InFlightPackets {
        let mut packets = InFlightPackets::new();
        (1..=numbers).for_each(|number| packets.insert(at(10 * number), 100, &[PacketItem::Read(number.into())]));
        packets
    }

    #[test]
    fn what_was_overtaken_by_a_round_trip_is_lost_and_not_before() {
        let mut packets = sent(4);
        let (fates, acked) = take(&mut packets, &ack(4, 0b011), at(140));
        assert_eq!((fates.settled, fates.lost), (vec![2, 3, 4], vec![]));
        assert_eq!((acked.bytes, acked.round_trip), (300, Some(100 * US)));
        let due = packets.loss_at().expect("the first one is waited for");
        assert_eq!(due, at(10) + 100 * US + REORDER_MIN);
        assert_eq!(packets.detect(due, |item| assert_eq!(item, PacketItem::Read(1))), 100);
        assert_eq!((packets.bytes(), packets.loss_at()), (0, None));
        let before = packets.reorder_window();
        let (fates, acked) = take(&mut packets, &ack(4, 0b111), at(500));
        assert_eq!((fates.settled, acked.spurious), (vec![1], 1));
        assert!(packets.reorder_window() >= before);
        assert_eq!(packets.span(), 0, "nothing is left to remember");
    }

    #[test]
    fn only_packets_that_were_overtaken_widen_the_reordering_window_and_lost_ones_narrow_it() {
        let mut packets = sent(3);
        packets.give_up(1, |_| ());
        assert_eq!(packets.bytes(), 200);
        packets.give_up(usize::MAX, |_| ());
        assert_eq!(take(&mut packets, &ack(3, 0b11), at(1000)).1.spurious, 3);
        assert_eq!(packets.reorder_steps, 0, "nothing was overtaken: nothing was heard at all");
        // Two leave, the second one arrives, and later the first one is given up.
        let pair = |packets: &mut InFlightPackets, from: u32| {
            let first = packets.next_number();
            for next in 0..2 {
                packets.insert(at(from + next), 100, &[PacketItem::Read(first + u64::from(next))]);
            }
            assert_eq!(take(packets, &ack(first + 1, 0), at(from + 100)).0.settled, [first + 1]);
            assert_eq!(packets.detect(at(from + 9000), |_| ()), 100);
            first + 1
        };
        for round in 1..=8 {
            let highest = pair(&mut packets, 10_000 * round);
            assert_eq!(take(&mut packets, &ack(highest, 1), at(10_000 * round + 9100)).1.spurious, 1);
        }
        assert_eq!(packets.reorder_steps, 8);
        for round in 1..=LOST_FOR_LESS {
            pair(&mut packets, 100_000 + 10_000 * round);
        }
        assert_eq!(packets.reorder_steps, 4);
    }

    #[test]
    fn nothing_is_settled_twice_and_nothing_that_was_not_sent() {
        let mut packets = sent(3);
        assert!(packets.on_ack(&ack(4, 0), at(100), |_| ()).is_err());
        assert_eq!(take(&mut packets, &ack(1, 0), at(100)).0.settled, [1]);
        assert_eq!(take(&mut packets, &ack(3, 0b11), at(100)).0.settled, [2, 3]);
        assert_eq!(take(&mut packets, &ack(3, 0b11), at(100)).0.settled, [0; 0]);
        assert_eq!((packets.lowest(), packets.next_number()), (4, 4));
        packets.insert(at(200), 50, &[]);
        assert_eq!((packets.bytes(), packets.lowest(), packets.next_number()), (0, 5, 5));
    }
}
