//! Operations over a faulty network.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::{Cause, Span};
use proptest::prelude::*;

use super::network::{CLOSED, End, Faults, OPEN, Pair, Random};
use crate::connection::{ConnectionError, PacketFate};
use crate::credit::GRANT_LAPSES;
use crate::initiator::OPERATIONS_MAX;
use crate::wire::FRAME_BYTES_MIN;

const LONG: Duration = Duration::from_secs(60);
const NONE: Faults = Faults { loss: 0, doubling: 0, rot: 0, delay: 0, replay: 0 };

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (seed.wrapping_mul(31).wrapping_add(at * 7) % 251) as u8 + 1).collect()
}

/// An operation as the model knows it.
#[derive(Debug, Clone)]
struct Known {
    from: usize,
    is_read: bool,
    transfer: u64,
    spans: Vec<Span>,
    is_closed: bool,
    is_cancelled: bool,
    /// What is written over its destination once it has ended: nothing may come later.
    after: u8,
    result: Option<Result<u64, Cause>>,
}

/// Random operations of both sides at random moments; each is checked at its end.
struct Story {
    pair: Pair,
    known: BTreeMap<u64, Known>,
    /// From whom, of which transfer, the payload, and which operations were open then.
    notes: BTreeMap<u64, (usize, u64, Vec<u8>, Vec<u64>)>,
    notes_ended: BTreeMap<u64, Result<u64, Cause>>,
    next_id: u64,
    /// The next free byte of both memories.
    free: u64,
    checked: [usize; 2],
}

const MEMORY: usize = 6 << 20;

impl Story {
    fn new(seed: u64, frame: usize, checksums: bool, faults: Faults) -> Self {
        let pair = Pair::new(seed, frame, checksums, faults, MEMORY);
        let (known, notes, notes_ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { pair, known, notes, notes_ended, next_id: 1, free: 0, checked: [0; 2] }
    }

    fn spans(&mut self, random: &mut Random) -> Vec<Span> {
        let bound = if random.once_in(4) { 64 } else { 4 };
        let count = 1 + random.below(bound);
        let most = [100, 1000, 3000, 65_536 / count][random.below(4) as usize].min(65_536 / count);
        (0..count)
            .map(|_| {
                let len = 1 + random.below(most.max(1));
                let span = Span { local: self.free, remote: self.free, len };
                self.free += len + random.below(3);
                span
            })
            .collect()
    }

    /// Source bytes are in place when an operation is posted.
    fn post(&mut self, from: usize, transfer: u64, random: &mut Random) {
        let (id, is_read, is_closed) = (self.next_id, random.once_in(3), random.once_in(12));
        self.next_id += 1;
        let spans = self.spans(random);
        let source = if is_read { 1 - from } else { from };
        for span in &spans {
            let start = span.local as usize;
            let bytes = pattern(id + span.local, span.len);
            self.pair.ends[source].side.memory[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        let key = if is_closed { CLOSED } else { OPEN };
        if is_read {
            self.pair.read(from, id, transfer, key, &spans);
        } else {
            self.pair.write(from, id, transfer, key, &spans);
        }
        let after = random.below(256) as u8;
        let known = Known { from, is_read, transfer, spans, is_closed, is_cancelled: false, after, result: None };
        self.known.insert(id, known);
    }

    fn notify(&mut self, from: usize, transfer: u64, random: &mut Random) {
        let id = self.next_id;
        self.next_id += 1;
        let bound = if random.once_in(3) { 4097 } else { 100 };
        let payload = pattern(id, random.below(bound));
        let of = self.known.values().filter(|op| op.from == from && op.transfer == transfer && !op.is_read);
        // What has ended well by now was written over by its owner.
        let open = of.filter(|op| op.result.is_none() && !op.is_closed && !op.is_cancelled);
        let expected = open.flat_map(|op| op.spans.iter().map(|span| (span.remote, span.len)));
        let source = &self.pair.ends[from].side.memory;
        let expected = expected.map(|(at, len)| (at, source[at as usize..(at + len) as usize].to_vec())).collect();
        self.pair.ends[1 - from].side.expected.insert(id.into(), expected);
        self.pair.notify(from, id, transfer, random.once_in(2).then_some(1), &payload);
        let its = |op: &Known| op.from == from && op.transfer == transfer && !op.is_read && op.result.is_none();
        let open = self.known.iter().filter(|(_, op)| its(op)).map(|(&id, _)| id).collect();
        self.notes.insert(id, (from, transfer, payload, open));
    }

    fn check_ended(&mut self) {
        for end in 0..2 {
            while let Some(&(id, result)) = self.pair.ends[end].ended.get(self.checked[end]) {
                self.checked[end] += 1;
                if self.notes.contains_key(&id) {
                    assert!(self.notes_ended.insert(id, result).is_none(), "note {id} has ended twice");
                    continue;
                }
                let op = self.known.get_mut(&id).expect("it was posted");
                assert_eq!(op.from, end);
                assert_eq!(op.result.replace(result), None, "operation {id} has ended twice");
                let target = if op.is_read { op.from } else { 1 - op.from };
                let bytes: u64 = op.spans.iter().map(|span| span.len).sum();
                match result {
                    Ok(moved) => {
                        assert!(!op.is_closed);
                        assert_eq!(moved, bytes);
                    }
                    Err(Cause::RevokedByPeer) => assert!(op.is_closed),
                    Err(Cause::Cancelled) => assert!(op.is_cancelled),
                    Err(cause) => panic!("operation {id} ended with {cause}"),
                }
                // What is written over it from now on is not what a note promises.
                for promised in self.pair.ends[target].side.expected.values_mut() {
                    promised.retain(|(at, _)| op.spans.iter().all(|span| span.remote != *at));
                }
                let memory = &mut self.pair.ends[target].side.memory;
                for span in &op.spans {
                    let range = span.remote as usize..(span.remote + span.len) as usize;
                    if result.is_ok() {
                        assert_eq!(memory[range.clone()], pattern(id + span.local, span.len)[..], "operation {id}");
                    }
                    memory[range].fill(op.after);
                }
            }
        }
    }

    fn run(&mut self, steps: u32, random: &mut Random) {
        let mut transfer = [1u64, 2];
        for _ in 0..steps {
            let from = random.below(2) as usize;
            if self.free as usize + (200 << 10) < MEMORY && self.pair.ends[from].connection.has_room() {
                match random.below(10) {
                    0..=5 => self.post(from, transfer[from], random),
                    6 | 7 if !self.pair.ends[from].connection.reads(transfer[from]) => {
                        self.notify(from, transfer[from], random);
                        transfer[from] += 2;
                    }
                    8 => self.cancel(random),
                    _ => {}
                }
            }
            for _ in 0..random.below(4) {
                self.pair.turn();
                self.check_ended();
                if !self.pair.advance() {
                    break;
                }
            }
        }
        let known = self.known.len() + self.notes.len();
        let is_over = |story: &mut Self| {
            let ended = story.known.values().filter(|op| op.result.is_some()).count() + story.notes_ended.len();
            ended == known && story.pair.ends.iter().all(|end| end.connection.is_idle())
        };
        let until = self.pair.now + LONG;
        while !is_over(self) {
            self.pair.turn();
            self.check_ended();
            if is_over(self) {
                break;
            }
            assert!(self.pair.advance() && self.pair.now < until, "it stands still: {:?}", self.standing());
        }
        // Whatever is still on its way lands nowhere.
        self.pair.run(Duration::from_millis(50), |_| false);
        self.check_ended();
        self.check_after();
    }

    fn standing(&self) -> Vec<(u64, bool, usize)> {
        let open = self.known.iter().filter(|(_, op)| op.result.is_none());
        open.map(|(&id, op)| (id, op.is_read, op.from)).take(8).collect()
    }

    fn cancel(&mut self, random: &mut Random) {
        let open: Vec<u64> = self.known.iter().filter(|(_, op)| op.result.is_none()).map(|(&id, _)| id).collect();
        if open.is_empty() {
            return;
        }
        let id = open[random.below(open.len() as u64) as usize];
        let op = self.known.get_mut(&id).expect("it is one of them");
        let Some(given_up) = self.pair.ends[op.from].connection.cancel(id) else { return };
        op.is_cancelled = true;
        if given_up.has_ended {
            op.result = Some(Err(Cause::Cancelled));
            let target = if op.is_read { op.from } else { 1 - op.from };
            for span in &op.spans {
                let range = span.remote as usize..(span.remote + span.len) as usize;
                self.pair.ends[target].side.memory[range].fill(op.after);
            }
        }
    }

    fn check_after(&self) {
        for (id, op) in &self.known {
            let target = if op.is_read { op.from } else { 1 - op.from };
            let memory = &self.pair.ends[target].side.memory;
            for span in &op.spans {
                let range = span.remote as usize..(span.remote + span.len) as usize;
                assert!(memory[range].iter().all(|&byte| byte == op.after), "something landed late for {id}");
            }
        }
        for end in &self.pair.ends {
            assert_eq!(end.error, None);
            assert!(end.side.reads.is_empty(), "what was read is let go of");
        }
        for (&id, (from, transfer, payload, open)) in &self.notes {
            let notes = &self.pair.ends[1 - from].side.notes;
            let told: Vec<_> = notes.iter().filter(|(note, _)| *note == u128::from(id)).collect();
            let of = self.known.values().filter(|op| op.from == *from && op.transfer == *transfer && !op.is_read);
            let has_failed = of.clone().any(|op| op.result.is_some_and(|result| result.is_err()));
            match self.notes_ended[&id] {
                Ok(1) => {
                    assert_eq!(told.len(), 1, "note {id}");
                    assert_eq!(&told[0].1, payload);
                    let has_failed = |id: &u64| self.known[id].result.is_some_and(|result| result.is_err());
                    assert!(!open.iter().any(has_failed), "note {id} is told of a transfer that failed");
                }
                Ok(other) => panic!("note {id} ended with {other}"),
                Err(_) => {
                    assert!(has_failed, "note {id} was refused without a reason");
                    assert!(told.is_empty());
                }
            }
        }
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    let once_in = |most: u64| prop_oneof![Just(0), 3..most];
    (once_in(60), once_in(30), prop_oneof![Just(0), 20u64..200], once_in(20), once_in(10))
        .prop_map(|(loss, doubling, rot, delay, replay)| Faults { loss, doubling, rot, delay, replay })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the network does: every operation ends once, with its bytes or a cause, and nothing lands after that.
    #[test]
    fn operations_end_once_and_nothing_lands_late(
        seed: u64,
        frame in prop_oneof![Just(FRAME_BYTES_MIN), Just(1472usize), FRAME_BYTES_MIN..9000],
        faults in faults(),
    ) {
        let mut random = Random::new(seed ^ 0x5555);
        Story::new(seed, frame, true, faults).run(250, &mut random);
    }
}

#[test]
fn a_network_without_faults_repeats_nothing() {
    let mut random = Random::new(3);
    let mut story = Story::new(3, 1472, false, NONE);
    story.run(400, &mut random);
    for end in &story.pair.ends {
        let statistics = end.connection.statistics();
        assert!(statistics.received > 100 && statistics.sent > 100, "{statistics:?}");
        let odd =
            [statistics.repeated, statistics.forged, statistics.corrupt, statistics.replayed, statistics.timeouts];
        assert_eq!(odd, [0; 5], "{statistics:?}");
    }
}

#[test]
fn a_third_of_all_packets_may_vanish() {
    let mut random = Random::new(11);
    Story::new(11, 1472, false, Faults { loss: 3, ..NONE }).run(150, &mut random);
}

fn span(at: u64, len: u64) -> Span {
    Span { local: at, remote: at, len }
}

#[test]
fn a_peer_that_is_silent_is_lost_and_one_who_stood_still_himself_waits_anew() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.write(0, 1, 1, OPEN, &[span(0, 1000)]);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended == [(1, Ok(1000))]));
    pair.cuts = [true; 2];
    pair.write(0, 2, 2, OPEN, &[span(0, 1000)]);
    pair.run(Duration::from_secs(4), |_| false);
    assert_eq!(pair.ends[0].error, None);
    // This side stands still for longer than the peer may be silent.
    pair.now = pair.now + Duration::from_secs(20);
    pair.turn();
    assert_eq!(pair.ends[0].error, None);
    pair.run(Duration::from_secs(6), |pair| pair.ends[0].error.is_some());
    assert_eq!(pair.ends[0].error, Some(ConnectionError::Lost));
}

#[test]
fn what_this_side_is_late_by_counts_for_no_timeout() {
    for (late, lost) in [(Duration::ZERO, 1), (Duration::from_millis(10), 0)] {
        let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
        pair.write(0, 1, 1, OPEN, &[span(0, 1000)]);
        assert!(pair.run(LONG, |pair| pair.ends[0].ended == [(1, Ok(1000))]));
        pair.run(Duration::from_millis(50), |_| false);
        pair.cuts = [true; 2];
        // Several packets, of which one asks.
        pair.write(0, 2, 2, OPEN, &[span(0, 5000)]);
        pair.turn();
        let connection = &mut pair.ends[0].connection;
        let due = connection.deadline();
        connection.expire(due + late).unwrap();
        assert_eq!((connection.statistics().lost, connection.statistics().timeouts), (lost, 0), "{late:?}");
        // In time from then on, it gives up what nobody acknowledges.
        pair.now = due + late;
        pair.run(Duration::from_millis(300), |_| false);
        assert!(pair.ends[0].connection.statistics().timeouts > 0);
    }
}

/// The end of one operation shares its packet with the beginning of the next one, so that all packets but the last are full.
#[test]
fn operations_that_follow_each_other_fill_their_packets() {
    for frame in [FRAME_BYTES_MIN, 1472, 65_507] {
        let mut pair = Pair::new(1, frame, false, NONE, 1 << 20);
        pair.share = 64 << 20;
        pair.write(0, 1, 1, OPEN, &[span(0, 65_536)]);
        assert!(pair.run(LONG, |pair| pair.ends[0].ended == [(1, Ok(65_536))]));
        let sizes = [65_536, 100, 65_536, 30_000, 7];
        for (id, bytes) in (2..).zip(sizes) {
            pair.write(0, id, id, OPEN, &[span(0, bytes / 3 + 1), span(90_000, bytes - bytes / 3 - 1)]);
        }
        let (mut bytes, mut lengths) = (vec![0; frame], Vec::new());
        loop {
            let End { connection, side, .. } = &mut pair.ends[0];
            let Some(length) = connection.transmit(pair.now, bytes[..].as_mut().into(), side) else { break };
            pair.carry(1, bytes[..length].to_vec());
            lengths.push(length);
        }
        let (_, others) = lengths.split_last().unwrap();
        // What is left is less than another message with an acknowledgement.
        assert!(!others.is_empty() && others.iter().all(|length| length + 160 >= frame), "{frame}: {lengths:?}");
        let ended = |pair: &mut Pair| pair.ends[0].ended.len() == 1 + sizes.len();
        assert!(pair.run(LONG, ended), "{frame}");
    }
}

#[test]
fn forged_and_foreign_packets_change_nothing() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.ends[0].side.memory[..3000].fill(9);
    pair.write(0, 1, 1, OPEN, &[span(0, 3000)]);
    let mut frame = vec![0; 1472];
    let End { connection, side, .. } = &mut pair.ends[0];
    let bytes = connection.transmit(pair.now, frame[..].as_mut().into(), side).expect("it has something to send");
    let packet = &frame[..bytes];
    let End { connection, side, .. } = &mut pair.ends[1];
    let signed = usize::from(u16::from_le_bytes([packet[16], packet[17]]));
    for byte in 0..signed {
        for bit in 0..8 {
            let mut changed = packet.to_vec();
            changed[byte] ^= 1 << bit;
            let became = connection.receive(&changed, pair.now, side).unwrap();
            assert!(matches!(became, PacketFate::Forged | PacketFate::Foreign), "byte {byte}: {became:?}");
        }
    }
    for len in 0..signed {
        let became = connection.receive(&packet[..len], pair.now, side).unwrap();
        assert!(matches!(became, PacketFate::Forged | PacketFate::Foreign), "{len} bytes: {became:?}");
    }
    // The tag does not cover the payload: one that is shorter or longer counts as lost, and its number may come again.
    for len in signed..packet.len() {
        assert_eq!(connection.receive(&packet[..len], pair.now, side), Ok(PacketFate::Corrupt), "{len} bytes");
    }
    let longer = [packet, b"more"].concat();
    assert_eq!(connection.receive(&longer, pair.now, side), Ok(PacketFate::Corrupt));
    assert_eq!(connection.statistics().received, 0);
    assert_eq!(connection.receive(packet, pair.now, side), Ok(PacketFate::Taken));
    assert_eq!(connection.receive(packet, pair.now, side), Ok(PacketFate::Replayed));
    assert!(side.placed > 0 && side.memory[..100].iter().all(|&byte| byte == 9));
}

#[test]
fn payload_that_comes_wrong_every_time_ends_its_operation_and_no_other() {
    let mut pair = Pair::new(1, 1472, true, NONE, 1 << 16);
    pair.ends[0].side.memory[..3000].fill(6);
    pair.ends[0].side.memory[4000..7000].fill(5);
    pair.spoils = [true; 2];
    pair.write(0, 1, 1, OPEN, &[span(0, 3000)]);
    pair.notify(0, 2, 1, None, &[]);
    pair.read(0, 3, 3, OPEN, &[span(4000, 3000)]);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 3));
    pair.ends[0].ended.sort_unstable_by_key(|&(id, _)| id);
    assert_eq!(pair.ends[0].ended, [1, 2, 3].map(|id| (id, Err(Cause::PayloadCorrupt))));
    assert_eq!((pair.ends[1].side.placed, pair.ends[1].side.notes.len()), (0, 0));
    assert!(pair.ends[0].side.memory[4000..7000].iter().all(|&byte| byte == 5), "nothing of it landed");
    pair.spoils = [false; 2];
    pair.write(0, 4, 4, OPEN, &[span(0, 3000)]);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 4));
    assert_eq!(pair.ends[0].ended[3], (4, Ok(3000)));
    assert!(pair.ends[1].side.memory[..3000].iter().all(|&byte| byte == 6));

    // The next ones in their places begin with no mismatch: one does not end them.
    let again = OPERATIONS_MAX + 2;
    for operation in 4..=again {
        let id = operation + 1;
        pair.spoils = [operation >= OPERATIONS_MAX; 2];
        let posted = match operation {
            _ if operation == again => pair.read(0, id, id, OPEN, &[span(4000, 1000)]),
            _ => pair.write(0, id, id, OPEN, &[span(0, 1000)]),
        };
        assert_eq!(posted, operation);
        let corrupt =
            |pair: &Pair| pair.ends.each_ref().map(|end| end.connection.statistics().corrupt).iter().sum::<u64>();
        let before = corrupt(&pair);
        assert!(!pair.spoils[0] || pair.run(LONG, |pair| corrupt(pair) > before));
        pair.spoils = [false; 2];
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() as u64 == id));
        assert_eq!(pair.ends[0].ended.last(), Some(&(id, Ok(1000))));
    }
    assert_eq!(pair.ends.each_ref().map(|end| end.error), [None; 2]);
}

#[test]
fn memory_that_is_gone_ends_its_operation_and_no_other() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 20);
    pair.ends[0].side.memory.fill(5);
    let gone = pair.write(0, 1, 1, OPEN, &[span(0, 60_000)]);
    pair.write(0, 2, 2, OPEN, &[span(100_000, 60_000)]);
    pair.notify(0, 3, 1, None, b"not told");
    pair.notify(0, 4, 2, Some(1), b"told");
    pair.ends[0].side.gone.push(gone);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 4));
    let mut ended = pair.ends[0].ended.clone();
    ended.sort_by_key(|&(id, _)| id);
    let expected = [(1, Err(Cause::RevokedHere)), (2, Ok(60_000)), (3, Err(Cause::Cancelled)), (4, Ok(1))];
    assert_eq!(ended, expected);
    assert_eq!(pair.ends[1].side.notes, [(4, b"told".to_vec())]);
    assert!(pair.run(LONG, |pair| pair.ends.iter().all(|end| end.connection.is_idle())));
}

/// What is long in its pieces is lent by both sides, and what is short, checked or a note is not.
#[test]
fn long_pieces_leave_from_where_they_lie() {
    const FRAME: usize = 8972;
    let lent_of = |checksums, act: fn(&mut Pair)| {
        let mut pair = Pair::new(1, FRAME, checksums, NONE, 1 << 20);
        act(&mut pair);
        let (mut lent_bytes, mut packets) = ([0; 2], Vec::new());
        for _ in 0..8 {
            for (from, lent_bytes) in lent_bytes.iter_mut().enumerate() {
                pair.now = pair.now + Duration::from_micros(30);
                let (now, mut frame) = (pair.now, [0; FRAME]);
                pair.ends[from].connection.set_share(1 << 20);
                while let Some((packet, lent)) = pair.ends[from].transmit(now, &mut frame, true) {
                    *lent_bytes += lent;
                    packets.push(packet.len());
                    let End { connection, side, .. } = &mut pair.ends[1 - from];
                    connection.receive(&packet, now, side).expect("nothing is broken");
                    connection.end_burst();
                }
            }
        }
        assert!(packets.iter().all(|&bytes| bytes <= FRAME));
        lent_bytes
    };
    let wide = |pair: &mut Pair| _ = pair.write(0, 1, 1, OPEN, &[span(0, 40_000), span(100_000, 20_000)]);
    assert_eq!(lent_of(false, wide), [60_000, 0]);
    assert_eq!(lent_of(true, wide), [0; 2], "what is checked is read here anyway");
    assert_eq!(lent_of(false, |pair| _ = pair.read(0, 1, 1, OPEN, &[span(0, 600), span(5000, 50_000)])), [0, 50_600]);
    let narrow = |pair: &mut Pair| {
        let spans: Vec<Span> = (0..64).map(|at| span(1000 * at, 500)).collect();
        pair.write(0, 1, 1, OPEN, &spans);
        pair.read(0, 2, 2, OPEN, &spans);
    };
    assert_eq!(lent_of(false, narrow), [0; 2]);
    let beside_a_note = |pair: &mut Pair| {
        pair.write(0, 1, 1, OPEN, &[span(0, 2000)]);
        pair.notify(0, 2, 1, None, b"all is there");
    };
    assert_eq!(lent_of(false, beside_a_note), [0; 2]);
    let counted = |pair: &mut Pair| {
        pair.write(0, 1, 1, OPEN, &[span(0, 2000)]);
        pair.notify(0, 2, 1, Some(1), b"");
    };
    assert_eq!(lent_of(false, counted), [2000, 0]);
    let gone = |pair: &mut Pair| {
        let gone = pair.write(0, 1, 1, OPEN, &[span(0, 3000)]);
        pair.write(0, 2, 2, OPEN, &[span(5000, 2000)]);
        pair.ends[0].side.gone.push(gone);
    };
    assert_eq!(lent_of(false, gone), [2000, 0], "nothing of what is gone");
}

#[test]
fn a_counter_that_is_gone_is_no_failure() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.notify(0, 1, 1, Some(2), b"with a counter of yesterday");
    assert!(pair.run(LONG, |pair| pair.ends[0].ended == [(1, Ok(0))]));
    assert_eq!((pair.ends[1].side.notes.len(), pair.ends[1].side.counters), (1, 0));
}

/// All of the operations that a lane may have, again and again, while acknowledgements vanish.
#[test]
fn numbers_of_operations_come_back() {
    let mut pair = Pair::new(5, 1472, false, Faults { loss: 5, ..NONE }, 1 << 20);
    let mut posted = 0;
    while posted < 3000 {
        while posted < 3000 && pair.ends[0].connection.has_room() {
            posted += 1;
            let at = 64 * (posted % 1000);
            if posted % 3 == 0 {
                pair.read(0, posted, posted, OPEN, &[span(at, 64)]);
            } else {
                pair.write(0, posted, posted, OPEN, &[span(at, 64)]);
            }
        }
        assert!(pair.run(LONG, |pair| pair.ends[0].connection.has_room()), "{posted} were posted");
    }
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 3000));
    assert!(pair.ends[0].ended.iter().all(|(_, result)| *result == Ok(64)));
}

#[test]
fn a_repeat_that_vanishes_after_the_end_costs_nobody_the_connection() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.write(0, 1, 1, OPEN, &[span(0, 1000)]);
    pair.base_us = 21_000; // The first packet outlasts the first timeout,
    pair.turn();
    pair.advance();
    pair.cuts[1] = true; // and its repeat vanishes.
    pair.turn();
    (pair.cuts[1], pair.base_us) = (false, 20);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended == [(1, Ok(1000))]));
    assert!(pair.run(LONG, |pair| pair.ends.iter().all(|end| end.connection.is_idle())));
    pair.run(Duration::from_secs(10), |_| false);
    assert_eq!(pair.ends[0].error, None);
}

#[test]
fn a_stretch_without_acknowledgements_uses_up_no_numbers() {
    let mut pair = Pair::new(1, FRAME_BYTES_MIN, false, NONE, 1 << 20);
    pair.share = 64 << 20;
    let mut posted = 0;
    // Until much is under way at once.
    while pair.ends[0].connection.path().1 < 3 << 20 {
        while pair.ends[0].connection.has_room() {
            posted += 1;
            pair.write(0, posted, posted, OPEN, &[span(0, 65_536)]);
        }
        assert!(pair.run(LONG, |pair| pair.ends[0].connection.has_room()));
    }
    pair.cuts[0] = true;
    pair.run(Duration::from_millis(300), |_| false);
    pair.cuts[0] = false;
    assert!(pair.run(Duration::from_secs(2), |pair| pair.ends[0].ended.len() as u64 == posted), "it has stopped");
    assert_eq!(pair.ends[0].error, None);
}

#[test]
fn a_peer_that_acknowledges_nothing_costs_bounded_memory() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.ends[0].connection.set_note_credit(1);
    assert!(pair.run(LONG, |pair| pair.ends[1].side.told.1 == 1));
    pair.ends[1].connection.set_patience(Duration::from_secs(3600));
    pair.cuts[1] = true;
    for lines in 0..4000 {
        // It is heard, and never says that anything came.
        pair.ends[1].connection.set_note_credit(lines);
        pair.run(Duration::from_millis(1), |_| false);
        assert!(pair.ends[0].connection.packets_remembered() < 2048);
        pair.ends[1].side.told.1 = 0;
    }
    assert_eq!(pair.ends[0].error, None);
}

#[test]
fn note_credit_and_revisions_come_however_slow_the_path() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    for lines in [5, 9] {
        pair.ends[0].connection.set_note_credit(lines);
        assert!(pair.run(LONG, |pair| pair.ends[1].side.told.1 == lines));
    }
    // Lost, and newer meanwhile.
    pair.cuts[1] = true;
    pair.ends[0].connection.set_note_credit(10);
    pair.run(Duration::from_micros(100), |_| false);
    pair.ends[0].connection.set_note_credit(11);
    pair.run(Duration::from_micros(100), |_| false);
    pair.cuts[1] = false;
    assert!(pair.run(LONG, |pair| pair.ends[1].side.told.1 == 11));
    pair.run(Duration::from_secs(1), |_| false);
    assert_eq!(pair.ends[1].side.told.1, 11);
    // A window that is smaller than a packet.
    pair.cuts[1] = true;
    pair.write(0, 1, 1, OPEN, &[span(0, 1000)]);
    pair.run(Duration::from_secs(3), |_| false);
    pair.cuts[1] = false;
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 1));
    pair.ends[0].connection.set_note_credit(12);
    assert!(pair.run(LONG, |pair| pair.ends[1].side.told.1 == 12));
    assert_eq!(pair.ends[0].side.told.0, 0);
    pair.write(0, 2, 2, CLOSED, &[span(0, 1000)]);
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 2));
    assert_eq!(pair.ends[0].side.told.0, 41, "a refusal says the target's revision");
}

#[test]
fn a_notification_after_a_failure_that_nobody_has_taken_is_not_told() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.write(0, 1, 1, CLOSED, &[span(0, 100)]);
    pair.takes_ended = false;
    pair.run(Duration::from_secs(1), |_| false);
    pair.notify(0, 2, 1, None, b"must not come");
    pair.notify(0, 3, 2, None, b"another transfer's");
    pair.takes_ended = true;
    assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 3));
    let refused = Err(Cause::RevokedByPeer);
    assert_eq!(pair.ends[0].ended, [(1, refused), (2, refused), (3, Ok(1))]);
    assert_eq!(pair.ends[1].side.notes.len(), 1);
}

#[test]
fn who_has_answers_to_send_is_not_idle() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.share = 0;
    pair.read(0, 1, 1, OPEN, &[span(0, 60_000)]);
    let answers = |pair: &Pair| pair.ends[1].connection.statistics().sent > 2 && !pair.ends[1].connection.is_idle();
    assert!(pair.run(LONG, |pair| answers(pair)) && pair.ends[0].ended.is_empty());
    assert!(
        pair.run(Duration::from_millis(50), |pair| pair.ends[0].ended == [(1, Ok(60_000))]),
        "a little is granted with every answer, and none is waited for in vain"
    );
}

/// Of packets that were given up by hundreds no map names all that have come, but their number is told.
#[test]
fn what_came_after_all_is_no_loss_however_much_it_is() {
    for (cuts, all_came) in [([true, false], true), ([false, true], false)] {
        let mut pair = Pair::new(1, 1472, false, NONE, 1 << 20);
        pair.share = 16 << 20;
        let write = |pair: &mut Pair, id: u64| _ = pair.write(0, id, 1, OPEN, &[span(65_536 * (id % 14), 65_536)]);
        (0..28).for_each(|id| write(&mut pair, id));
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 28));
        pair.cuts = cuts;
        (28..48).for_each(|id| write(&mut pair, id));
        pair.run(Duration::from_millis(20), |_| false);
        pair.cuts = [false; 2];
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 48));
        pair.run(Duration::from_millis(50), |_| false);
        let statistics = pair.ends[0].connection.statistics();
        assert!(statistics.lost > 256, "{statistics:?}");
        assert_eq!(statistics.lost == statistics.spurious, all_came, "{statistics:?}");
    }
}

/// Neither a grant that comes after a long round trip nor a buffer that has room for what is the sender's own alone is a stall.
#[test]
fn a_long_way_and_a_small_buffer_cost_round_trips_and_no_more() {
    for (base_us, share, round_trips) in [(100_000, 1 << 20, 14), (250_000, 1 << 20, 14), (20_000, 0, 400)] {
        let mut pair = Pair::new(1, 1472, false, NONE, 1 << 20);
        (pair.base_us, pair.share) = (base_us, share);
        (0..14).for_each(|id| _ = pair.write(0, id, 1, OPEN, &[span(65_536 * id, 65_536)]));
        let within = Duration::from_micros(2 * base_us) * round_trips;
        assert!(
            pair.run(within, |pair| pair.ends[0].ended.len() == 14),
            "{base_us} {:?} {:?}",
            pair.ends[0].connection.statistics(),
            pair.ends[0].connection.path()
        );
    }
}

#[test]
fn bursts_and_jitter_are_not_taken_for_loss_or_congestion() {
    // Bytes a second of the pair's time.
    let rate = |faults: Faults, seed: u64| {
        let mut pair = Pair::new(seed, 1472, false, faults, 1 << 20);
        pair.share = 64 << 20;
        let (start, mut posted) = (pair.now, 0);
        while posted < 600 {
            while posted < 600 && pair.ends[0].connection.has_room() {
                posted += 1;
                pair.write(0, posted, posted, OPEN, &[span(0, 65_536)]);
            }
            assert!(pair.run(LONG, |pair| pair.ends[0].connection.has_room()));
        }
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() == 600));
        let statistics = pair.ends[0].connection.statistics();
        (600.0 * 65_536.0 / pair.now.since(start).as_secs_f64(), statistics.repeated as f64 / statistics.sent as f64)
    };
    let (clean, repeated) = rate(NONE, 1);
    assert_eq!(repeated, 0.0, "nothing was lost");
    let (jittered, _) = rate(Faults { delay: 2, ..NONE }, 2);
    assert!(jittered > clean / 400.0, "{jittered:.0} of {clean:.0}");
    let (lossy, repeated) = rate(Faults { loss: 100, ..NONE }, 3);
    assert!(lossy > clean / 2.0 && repeated < 0.03, "{lossy:.0} of {clean:.0}, {repeated}");
    let (worse, _) = rate(Faults { loss: 5, ..NONE }, 4);
    assert!(worse > clean / 400.0, "{worse:.0} of {clean:.0}");
}

/// A carrier that sends packets of one length together sends a whole burst at once.
#[test]
fn packets_of_one_burst_are_of_one_length() {
    let mut pair = Pair::new(9, 1472, true, NONE, 1 << 20);
    // Ends of operations in the middle of the burst, and more than one piece in a packet.
    let spans = [span(0, 5_000), span(40_000, 3_001)];
    let mut posted = 0;
    for wanted in [1, 20, 60] {
        while posted < wanted {
            posted += 1;
            pair.write(0, posted, posted, OPEN, &spans);
        }
        let (mut frame, mut lengths) = (vec![0; 1472], Vec::new());
        loop {
            let End { connection, side, .. } = &mut pair.ends[0];
            let Some(bytes) = connection.transmit(pair.now, frame[..].as_mut().into(), side) else { break };
            pair.carry(1, frame[..bytes].to_vec());
            lengths.push(bytes);
        }
        let (last, others) = lengths.split_last().unwrap();
        assert!(others.iter().all(|length| length == &lengths[0]) && *last <= lengths[0], "{lengths:?}");
        assert!(wanted == 1 || lengths.len() > 8, "{lengths:?}");
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() as u64 == wanted));
    }
}

/// A first transmission costs a frame, whatever it carries; a repeat and an acknowledgement cost nothing.
#[test]
fn credit_is_used_by_first_transmissions_alone() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    let mut frame = vec![0; 1472];
    let mut packets = |pair: &mut Pair| {
        let (mut count, mut used) = (0, 0);
        let End { connection, side, .. } = &mut pair.ends[0];
        while let Some(bytes) = connection.transmit(pair.now, frame[..].as_mut().into(), side) {
            (count, used) = (count + 1, crate::wire::Packet::parse(&frame[..bytes]).unwrap().used());
        }
        (count, used)
    };
    pair.write(0, 1, 1, OPEN, &[span(0, 5000)]);
    let cost = crate::credit::charge(1472);
    assert_eq!(packets(&mut pair), (4, 4 * cost as u32), "as many as may leave without a grant");
    pair.write(0, 2, 2, OPEN, &[span(0, 100)]);
    assert_eq!(packets(&mut pair).0, 0, "there is none");
    pair.now = pair.ends[0].connection.deadline();
    pair.ends[0].connection.expire(pair.now).unwrap();
    assert_eq!(packets(&mut pair), (1, 4 * cost as u32), "one repeat, as the window has shrunk to it");
}

/// What is repeated of one READ does not wait for the credit that another one behind it needs: while nothing is repeated nothing is granted,
/// and both would wait until the grant is void.
#[test]
fn a_repeated_answer_goes_before_one_that_needs_credit() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 16);
    pair.share = 0;
    pair.read(0, 1, 1, OPEN, &[span(0, 5000)]);
    pair.cuts = [true, false];
    let has_used_all = |pair: &mut Pair| pair.ends[1].connection.statistics().sent >= 4;
    assert!(pair.run(Duration::from_millis(1), has_used_all), "all that may leave without a grant is lost");
    pair.read(0, 2, 2, OPEN, &[span(8000, 1000)]);
    pair.run(Duration::from_millis(1), |_| false);
    let lost = pair.ends[1].connection.statistics().lost;
    pair.run(Duration::from_millis(20), |_| false);
    assert!(pair.ends[1].connection.statistics().lost > lost, "it is known to be lost after the second READ has come");
    pair.cuts = [false; 2];
    let both = |pair: &mut Pair| pair.ends[0].ended == [(1, Ok(5000)), (2, Ok(1000))];
    assert!(pair.run(GRANT_LAPSES / 4, both), "{:?}", pair.ends[1].connection.statistics());
}

/// An acknowledgement names 256 numbers: it does not wait for the end of a large burst, and one that rides with data and names 64
/// is followed by a whole one.
#[test]
fn a_large_burst_is_acknowledged_whole() {
    let mut pair = Pair::new(1, 1472, false, NONE, 1 << 20);
    pair.share = 1 << 30;
    let mut posted = 0;
    while pair.ends[0].connection.path().1 < 1 << 20 {
        posted += 1;
        pair.write(0, posted, posted, OPEN, &[span(0, 65_536)]);
        assert!(pair.run(LONG, |pair| pair.ends[0].ended.len() as u64 == posted));
    }
    pair.run(Duration::from_millis(1), |_| false);
    for id in 1..=4 {
        pair.write(0, posted + id, posted + id, OPEN, &[span(0, 65_536)]);
    }
    pair.write(1, 1, 1, OPEN, &[span(0, 100)]);
    let (mut frame, mut packets) = (vec![0; 1472], 0);
    let now = pair.now;
    let [one, two] = &mut pair.ends;
    while packets < 120
        && let Some(bytes) = one.connection.transmit(now, frame[..].as_mut().into(), &mut one.side)
    {
        packets += 1;
        two.connection.receive(&frame[..bytes], now, &mut two.side).unwrap();
    }
    assert_eq!(packets, 120);
    // No time has passed, and the burst has not ended: the first goes with data, the second says all.
    let sent: Vec<_> = std::iter::from_fn(|| {
        let bytes = two.connection.transmit(now, frame[..].as_mut().into(), &mut two.side)?;
        let packet = crate::wire::Packet::parse(&frame[..bytes]).unwrap();
        let named =
            packet.ack().expect("there is news").received.words.iter().map(|word| word.count_ones()).sum::<u32>();
        Some((packet.has_messages(), named))
    })
    .collect();
    assert_eq!(sent, [(true, 64), (false, 256)]);
}
