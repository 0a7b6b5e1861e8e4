//! C1: what a transfer by name costs, apart from its bytes: taken in, translated both ways, brought to its end.
//!
//! Two transfer managers in one process, joined by encoded frames; nothing moves. Everything that a transfer manager does for a transfer is in it: both maps of
//! names, the claim, the grant and its answer, the part that is cut, the landing, the seal, the acknowledgement, what the handles ask when
//! they are dropped, the tombstone, and the finished list; and so is what a caller makes for it, two descriptions and two lists of one
//! entry. That is more than "taken in, translated, brought to its end", which is what the goal speaks of and what the tables of transfers do:
//! they have a row of their own. The goal is held against that row as it is worded, and against whole transfers, which is harder. One thread
//! does it and waits for nothing: times are of its CPU.

use std::time::Duration;

use penstock::config::TransportName;
use penstock::flows::{Buffer, Form, Rows, Side, TransferId};
use penstock::session::codec::{Decoder, encode};
use penstock::session::control::LayoutNews;
use penstock::session::keyed::{Keyed, KeyedMap};
use penstock::session::transfers::table::{Ended, EntryKey, FinishedTransfer, Transfers};
use penstock::session::{Frame, PeerKey, RequestId};
use penstock::{EngineName, Epoch, Timestamp};
use penstock_flows::action::{Action, BlocksRef, Urgency};
use penstock_flows::manager::{Consume, Metrics, Produce, Settings, Sinks, TransferManager};
use penstock_flows::{Event, LayoutKey};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::error::LabError;
use crate::measure::clock::thread_cpu;
use crate::measure::cores::Stay;
use crate::measure::{Limit, interleave};

/// Transfers that are under way at the same time.
const BATCH: u64 = 1_000;
/// Those of one round.
const ROUND: u64 = 100_000;
/// Live entries that stand beside them, in the second row.
const STANDING: u64 = 1_000_000;
/// Names that are translated in one round.
const LOOKUPS: u64 = 100_000;
/// Blocks, and tokens of one.
const BLOCKS: u32 = BATCH as u32;
const TOKENS: u32 = 16;
/// The most that a transfer may take on each side.
const GOAL: Goal = Goal::AtMost(2.0);
/// Time passes so fast for the transfer managers: one of these for a batch.
const TICK: Duration = Duration::from_millis(1);

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// Nothing else stands.
    Few,
    /// Many others stand.
    Many,
    /// The tables of names alone, without transfers in them.
    Tables,
    /// The maps of names alone.
    Maps,
    /// Names translated both ways, with few and with many.
    LookUpFew,
    LookUpMany,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let _stay = Stay::on(&Pins::choose().near);
    let (round, standing) = (effort.repeat(ROUND), effort.repeat(STANDING));
    let mut few = Pair::new(BATCH)?;
    let mut many = Pair::new(standing)?;
    effort.tell(&format!("C1: {standing} transfers are taken in, to stand beside the measured ones"));
    few.stand(BATCH)?;
    many.stand(standing)?;
    let mut names = Names::default();
    let mut tables = Tables::new(BATCH)?;
    let turns = [Turn::Few, Turn::Many, Turn::Tables, Turn::Maps, Turn::LookUpFew, Turn::LookUpMany];
    let limit = Limit { rounds: effort.limit().rounds, within: effort.limit().within * 6 };
    let times = interleave(limit, &turns, |turn| match turn {
        Turn::Few => few.round(&mut names, round),
        Turn::Many => many.round(&mut names, round),
        Turn::Tables => tables.round(&mut names, round),
        Turn::Maps => Ok(maps_alone(&mut names, round)),
        Turn::LookUpFew => few.look_up(effort.repeat(LOOKUPS)),
        Turn::LookUpMany => many.look_up(effort.repeat(LOOKUPS)),
    })?;
    let widest = [few.flatten()?, many.flatten()?];
    let each = 2.0 * round as f64 * 1e3;
    let floor = ("the maps of names alone", &times[3][..]);
    let row = |which: usize, standing: u64, widest: Widest| {
        let row = Row::compared(TransportName::Local.as_str(), (&times[which], "us a side", each), floor, GOAL);
        row.noted(&format!(
            "CPU time of one thread; two desks joined by encoded frames, {round} transfers a round, {BATCH} at a time beside \
             {standing} others, each with a grant, a part, a landing, a seal and an acknowledgement; \
             afterwards every table is empty, of {} places {} are left",
            widest.before, widest.after
        ))
    };
    let tables = Row::compared(TransportName::Local.as_str(), (&times[2], "us a side", each), floor, GOAL);
    let tables = tables.noted(&format!(
        "what of that is the tables of transfers, as the goal is worded: taken in, translated both ways, ended, with tombstones and finished requests, and nothing \
         that is said or moved; {BATCH} at a time beside as many others"
    ));
    let lookups = 4.0 * effort.repeat(LOOKUPS) as f64;
    let translate = Row::compared(
        TransportName::Local.as_str(),
        (&times[5], "ns a name", lookups),
        (&format!("the same among {BATCH}"), &times[4]),
        Goal::Reported,
    );
    let translate = translate.noted(&format!(
        "a name translated among {standing} live ones, names in no order: the same steps, and the caches do not hold that many"
    ));
    Ok(vec![row(0, BATCH, widest[0]), row(1, standing, widest[1]), tables, translate])
}

/// Places in the tables of both sides, at their widest and in the end.
#[derive(Debug, Clone, Copy)]
struct Widest {
    before: usize,
    after: usize,
}

/// Names that were never used.
#[derive(Default)]
struct Names {
    last: u64,
}

/// What a transfer is called: by both sides, and by each.
#[derive(Clone)]
struct Named {
    transfer: TransferId,
    requests: [RequestId; 2],
}

impl Names {
    fn take(&mut self, count: u64) -> Result<Vec<Named>, LabError> {
        (0..count).map(|_| self.one()).collect()
    }

    fn one(&mut self) -> Result<Named, LabError> {
        self.last += 1;
        // Spread over all bits, as minted names are.
        let bits = u128::from(self.last).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let transfer = TransferId::from_bytes(bits.to_le_bytes());
        let request = |half: &str| RequestId::new(&format!("cmpl-{bits:032x}-{half}"));
        let named = |error| LabError::refused("name a request")(error);
        Ok(Named { transfer, requests: [request("a").map_err(named)?, request("b").map_err(named)?] })
    }
}

/// One transfer manager, and how it hears of the other.
struct End {
    manager: TransferManager,
    layout: LayoutKey,
    /// The other one, as this one knows it.
    other: PeerKey,
    heard: Decoder,
}

impl End {
    fn new(name: &str, peer_index: u32, live: u64) -> Result<Self, LabError> {
        let mut settings = Settings::default();
        settings.transfers.live = (live + BATCH) as usize;
        let mut manager =
            TransferManager::new(settings, [7 + u64::from(peer_index), 0x5851_f42d_4c95_7f2d, 0x1405_7b7e_f767_814f]);
        let rows = Rows { first: 0, count: 1, of: 1, bytes: 8 };
        let stride = u64::from(TOKENS) * 8;
        let news = LayoutNews {
            number: 0,
            generation: 0,
            label: "kv".to_owned(),
            region: 1,
            region_generation: 1,
            block_tokens: TOKENS,
            blocks: BLOCKS,
            rank: 0,
            ranks: 1,
            buffers: vec![Buffer { layer: 0, base: 0, stride, form: Form::TokenMajor(rows) }],
        };
        let layout =
            manager.add_layout(news, u64::from(BLOCKS) * stride).map_err(LabError::refused("make a layout"))?;
        let other = PeerKey { peer_index, epoch: Epoch(1) };
        let name = EngineName::new(name).map_err(LabError::refused("name an engine"))?;
        manager.handle(Event::Joined { peer: other, name }, Timestamp::from_ns(1));
        Ok(Self { manager, layout, other, heard: Decoder::new() })
    }
}

/// A source and a sink.
struct Pair {
    source: End,
    sink: End,
    now: Timestamp,
    wire: Vec<u8>,
    standing: Vec<(Named, [EntryKey; 2])>,
    finished: FinishedTransfer,
}

impl Pair {
    fn new(live: u64) -> Result<Self, LabError> {
        let (source, sink) = (End::new("decode-0", 1, live)?, End::new("prefill-0", 2, live)?);
        let (wire, finished) = (Vec::new(), FinishedTransfer::default());
        let mut pair = Self { source, sink, now: Timestamp::from_ns(1), wire, standing: Vec::new(), finished };
        pair.carry()?;
        Ok(pair)
    }

    /// Carries out what both want, until neither wants anything.
    fn carry(&mut self) -> Result<(), LabError> {
        loop {
            let one = carry_from(&mut self.source, &mut self.sink, &mut self.wire, self.now)?;
            let other = carry_from(&mut self.sink, &mut self.source, &mut self.wire, self.now)?;
            if !one && !other {
                return Ok(());
            }
        }
    }

    /// Takes one in on both sides.
    fn admit(&mut self, named: &Named) -> Result<[EntryKey; 2], LabError> {
        let within = Duration::from_secs(3600);
        let produce = Produce {
            layout: self.source.layout,
            rank: (0, 1),
            sinks: Sinks::Sharing(1),
            is_by_layer: false,
            is_lent: false,
            is_resumable: false,
            lease_ttl: None,
            once: None,
            within,
            urgency: Urgency::Bulk,
        };
        let consume = Consume {
            layout: self.sink.layout,
            rank: (0, 1),
            sources: vec![(0, self.sink.other)],
            begin: 0,
            tail: None,
            is_pull: false,
            is_resumable: false,
            memory: None,
            within,
            urgency: Urgency::Bulk,
            trace: Vec::new(),
        };
        let [sent, received] = named.requests.clone();
        let refused = LabError::refused("take a transfer in");
        let source = self.source.manager.produce(named.transfer, sent, produce, self.now).map_err(refused)?;
        let refused = LabError::refused("take a transfer in");
        let sink = self.sink.manager.consume(named.transfer, received, consume, self.now).map_err(refused)?;
        Ok([source, sink])
    }

    /// Translates its names, both ways on both sides.
    fn translate(&self, named: &Named) -> bool {
        let end = |end: &End, side: Side, request: &RequestId| {
            end.manager.request_of(side, named.transfer) == Some(request)
                && end.manager.transfer_of(side, request) == Some(named.transfer)
        };
        end(&self.source, Side::Source, &named.requests[0]) && end(&self.sink, Side::Sink, &named.requests[1])
    }

    /// Takes in so many that stay.
    fn stand(&mut self, count: u64) -> Result<(), LabError> {
        let mut names = Names { last: 1 << 40 };
        for named in names.take(count)? {
            let keys = self.admit(&named)?;
            self.standing.push((named, keys));
            self.carry()?;
        }
        Ok(())
    }

    /// Brings so many to their end; answers how long that took.
    fn round(&mut self, names: &mut Names, count: u64) -> Result<f64, LabError> {
        let mut took = Duration::ZERO;
        for _ in 0..count / BATCH {
            let batch = names.take(BATCH)?;
            let begun = thread_cpu();
            self.batch(&batch)?;
            took += thread_cpu().saturating_sub(begun);
            // Whoever asks for them keeps them, or not.
            let ended = self.finished.sent.len() + self.finished.received.len();
            self.check(ended as u64 == 2 * BATCH, "every transfer to end well")?;
            self.finished = FinishedTransfer::default();
        }
        Ok(took.as_nanos() as f64)
    }

    fn batch(&mut self, batch: &[Named]) -> Result<(), LabError> {
        let mut keys = Vec::with_capacity(batch.len());
        for named in batch {
            keys.push(self.admit(named)?);
        }
        let mut is_known = true;
        for named in batch {
            is_known &= self.translate(named);
        }
        self.check(is_known, "names to lead to each other")?;
        for (&[source, sink], block) in keys.iter().zip(0..) {
            let refused = LabError::refused("grant a block");
            let ticket = BlocksRef(u64::from(block));
            self.sink.manager.grant(sink, (vec![block], 0), None, ticket, self.now).map_err(refused)?;
            let refused = LabError::refused("give a chunk");
            let chunk = (&[block][..], u64::from(TOKENS));
            self.source.manager.chunk(source, chunk, true, ticket, self.now).map_err(refused)?;
        }
        self.carry()?;
        for &[source, sink] in &keys {
            self.sink.manager.taken(sink, 0, self.now).map_err(LabError::refused("take what has landed"))?;
            self.source.manager.release(source, self.now);
            self.sink.manager.release(sink, self.now);
        }
        self.carry()?;
        self.source.manager.drain_finished(&mut self.finished);
        self.sink.manager.drain_finished(&mut self.finished);
        self.now = self.now + TICK;
        self.source.manager.expire(self.now);
        self.sink.manager.expire(self.now);
        Ok(())
    }

    /// Translates names that stand, in no order; answers how long that took.
    fn look_up(&mut self, count: u64) -> Result<f64, LabError> {
        let mut at = 1_u64;
        let begun = thread_cpu();
        let mut is_known = true;
        for _ in 0..count {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (at >> 32) as usize % self.standing.len();
            is_known &= self.translate(&self.standing[place].0);
        }
        let took = thread_cpu().saturating_sub(begun);
        self.check(is_known, "names to lead to each other")?;
        Ok(took.as_nanos() as f64)
    }

    /// Lets all that stands end, and the time of tombstones pass: then every table is empty and as small as in the beginning.
    fn flatten(&mut self) -> Result<Widest, LabError> {
        let places =
            |pair: &Self| [&pair.source, &pair.sink].map(|end| end.manager.metrics().transfers.places).iter().sum();
        let before = places(self);
        for (_, [source, sink]) in std::mem::take(&mut self.standing) {
            self.source.manager.release(source, self.now);
            self.carry()?;
            self.sink.manager.release(sink, self.now);
            self.carry()?;
        }
        let mut finished = FinishedTransfer::default();
        for end in [&mut self.source, &mut self.sink] {
            end.manager.drain_finished(&mut finished);
            end.manager.expire(self.now + Duration::from_secs(120));
        }
        for end in [&self.source, &self.sink] {
            let Metrics { transfers, ending, moving, refused, .. } = end.manager.metrics();
            let left = transfers.live + transfers.early + transfers.tombs + transfers.finished + ending + moving;
            self.check(left == 0 && refused == 0, &format!("nothing to be left: {:?}", end.manager.metrics()))?;
        }
        let after = places(self);
        self.check(after < 64, &format!("the tables to shrink: {after} places are left"))?;
        Ok(Widest { before, after })
    }

    fn check(&self, is_so: bool, what: &str) -> Result<(), LabError> {
        if is_so { Ok(()) } else { Err(LabError::refused("measure transfers by name")(format!("it was for {what}"))) }
    }
}

/// Carries out what one end wants. Answers whether it wanted anything.
fn carry_from(from: &mut End, to: &mut End, wire: &mut Vec<u8>, now: Timestamp) -> Result<bool, LabError> {
    let mut has_wanted = false;
    while let Some(action) = from.manager.poll_action() {
        has_wanted = true;
        match action {
            Action::Say { said, .. } => {
                wire.clear();
                encode(&Frame::Control(said), 0, wire).map_err(LabError::refused("encode a frame"))?;
                to.heard.push(wire);
                while let Some(received) = to.heard.next_frame().map_err(LabError::refused("decode a frame"))? {
                    if let Frame::Control(said) = received.frame {
                        to.manager.handle(Event::Said { peer: to.other, said }, now);
                    }
                }
            }
            // The bytes are none of this: they are there at once.
            Action::Move { id, moving, .. } => {
                if let Some((_, bytes)) = moving.landing {
                    to.manager.handle(Event::Landing { peer: to.other, bytes }, now);
                }
                let result = Ok(u64::from(TOKENS) * 8);
                from.manager.handle(Event::Ended { id, result, is_open_there: false }, now);
            }
            _ => {}
        }
    }
    Ok(has_wanted)
}

/// The tables of both sides, in which nothing is kept of a transfer but its names.
struct Tables {
    sides: [Transfers<()>; 2],
    now: Timestamp,
    finished: FinishedTransfer,
}

impl Tables {
    /// With so many that stand.
    fn new(standing: u64) -> Result<Self, LabError> {
        let sides = std::array::from_fn(|side| Transfers::new(Settings::default().transfers, (7 + side as u64, 9)));
        let mut tables = Self { sides, now: Timestamp::from_ns(1), finished: FinishedTransfer::default() };
        let mut names = Names { last: 1 << 41 };
        names.take(standing)?.iter().try_for_each(|named| tables.admit(named).map(drop))?;
        Ok(tables)
    }

    fn admit(&mut self, named: &Named) -> Result<[EntryKey; 2], LabError> {
        let mut admit = |at: usize, side: Side| {
            let admitted = self.sides[at].admit(side, named.transfer, named.requests[at].clone(), (), self.now);
            admitted.map(|(key, _)| key).map_err(LabError::refused("take a transfer in"))
        };
        Ok([admit(0, Side::Source)?, admit(1, Side::Sink)?])
    }

    /// Brings so many to their end; answers how long that took.
    fn round(&mut self, names: &mut Names, count: u64) -> Result<f64, LabError> {
        let mut took = Duration::ZERO;
        for _ in 0..count / BATCH {
            let batch = names.take(BATCH)?;
            let begun = thread_cpu();
            let is_right = self.batch(&batch)?;
            took += thread_cpu().saturating_sub(begun);
            let ended = std::mem::take(&mut self.finished);
            if !is_right || (ended.sent.len() + ended.received.len()) as u64 != 2 * BATCH {
                return Err(LabError::refused("measure tables of names")("a name leads elsewhere, or has not ended"));
            }
        }
        Ok(took.as_nanos() as f64)
    }

    fn batch(&mut self, batch: &[Named]) -> Result<bool, LabError> {
        let mut keys = Vec::with_capacity(batch.len());
        for named in batch {
            keys.push(self.admit(named)?);
        }
        let mut is_right = true;
        for named in batch {
            for ((table, side), request) in self.sides.iter().zip([Side::Source, Side::Sink]).zip(&named.requests) {
                is_right &= table.request_of(side, named.transfer) == Some(request);
                is_right &= table.transfer_of(side, request) == Some(named.transfer);
            }
        }
        for [source, sink] in keys {
            is_right &= self.sides[0].end(source, Ended::Sent, self.now).is_some();
            is_right &= self.sides[1].end(sink, Ended::Received, self.now).is_some();
        }
        self.now = self.now + TICK;
        for table in &mut self.sides {
            table.drain_finished(&mut self.finished);
            table.expire(self.now);
        }
        Ok(is_right)
    }
}

/// What cannot be left out: names put into maps of both sides, found both ways and taken out.
fn maps_alone(names: &mut Names, count: u64) -> f64 {
    let keyed = Keyed::new((0x5851_f42d_4c95_7f2d, 0x1405_7b7e_f767_814f));
    let mut maps: [(KeyedMap<TransferId, RequestId>, KeyedMap<RequestId, TransferId>); 2] =
        std::array::from_fn(|_| (KeyedMap::with_hasher(keyed), KeyedMap::with_hasher(keyed)));
    let mut took = Duration::ZERO;
    let mut is_known = true;
    for _ in 0..count / BATCH {
        let Ok(batch) = names.take(BATCH) else { return f64::NAN };
        let begun = thread_cpu();
        for named in &batch {
            for ((to, back), request) in maps.iter_mut().zip(&named.requests) {
                to.insert(named.transfer, request.clone());
                back.insert(request.clone(), named.transfer);
            }
        }
        for named in &batch {
            for ((to, back), request) in maps.iter().zip(&named.requests) {
                is_known &= to.get(&named.transfer) == Some(request) && back.get(request) == Some(&named.transfer);
            }
        }
        for named in &batch {
            for ((to, back), request) in maps.iter_mut().zip(&named.requests) {
                is_known &= to.remove(&named.transfer).is_some() && back.remove(request).is_some();
            }
        }
        took += thread_cpu().saturating_sub(begun);
    }
    if is_known { took.as_nanos() as f64 } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_come_to_their_end_beside_others_and_leave_nothing() {
        let mut pair = Pair::new(5 * BATCH).unwrap();
        pair.stand(5 * BATCH).unwrap();
        assert!(pair.look_up(100).unwrap() > 0.0);
        let mut names = Names::default();
        assert!(pair.round(&mut names, 2 * BATCH).unwrap() > 0.0);
        assert!(maps_alone(&mut names, BATCH) > 0.0);
        let mut tables = Tables::new(BATCH).unwrap();
        assert!(tables.round(&mut names, 2 * BATCH).unwrap() > 0.0);
        assert_eq!(tables.sides.map(|table| table.metrics().live as u64), [BATCH; 2]);
        let metrics = pair.sink.manager.metrics();
        assert_eq!((metrics.transfers.live as u64, metrics.transfers.tombs as u64), (5 * BATCH, 2 * BATCH));
        let Widest { before, after } = pair.flatten().unwrap();
        assert!(before > 10 * after, "{before} {after}");
    }
}
