use std::collections::BTreeMap;

use penstock_core::Epoch;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const AGE: u64 = 50;
const TOMB_AGE: u64 = 120;

fn bounds() -> Bounds {
    let early = EarlyBounds { messages: 12, bytes: 1 << 20, age: Duration::from_nanos(AGE) };
    Bounds { live: 4, early, tombs: 3, tomb_age: Duration::from_nanos(TOMB_AGE) }
}

fn transfer(number: u8) -> TransferId {
    TransferId::from_bytes([number; 16])
}

fn request(number: u8) -> RequestId {
    RequestId::new(&format!("cmpl-{number}")).unwrap()
}

fn peer(peer_index: u32) -> PeerKey {
    PeerKey { peer_index, epoch: Epoch(1) }
}

fn landing(number: u32) -> EarlyBody {
    EarlyBody::Landing(crate::transfers::early::tests::landing(number))
}

fn numbers(messages: Vec<EarlyMessage>) -> Vec<u32> {
    let number = |message: EarlyMessage| match message.body {
        EarlyBody::Landing(landing) => landing.leg,
        EarlyBody::Said(said) => panic!("nobody has said {said:?}"),
    };
    messages.into_iter().map(number).collect()
}

const START: Timestamp = Timestamp::from_ns(0);

#[test]
fn both_directions_come_and_go_together() {
    let mut table = Transfers::new(bounds(), (1, 2));
    let (key, early) = table.admit(Side::Source, transfer(1), request(1), "kept", START).unwrap();
    assert!(early.is_empty());
    assert_eq!(table.request_of(Side::Source, transfer(1)), Some(&request(1)));
    assert_eq!(table.transfer_of(Side::Source, &request(1)), Some(transfer(1)));
    assert_eq!(
        (table.find(Side::Source, transfer(1)), table.find_request(Side::Source, &request(1))),
        (Some(key), Some(key))
    );
    assert_eq!(table.names(key), Some((Side::Source, transfer(1), &request(1))));
    assert_eq!((table.request_of(Side::Sink, transfer(1)), table.transfer_of(Side::Sink, &request(1))), (None, None));
    *table.get_mut(key).unwrap() = "changed";
    assert_eq!(table.end(key, Ended::Sent, START), Some("changed"));
    assert_eq!(
        (table.request_of(Side::Source, transfer(1)), table.transfer_of(Side::Source, &request(1))),
        (None, None)
    );
    assert!(table.get(key).is_none() && table.names(key).is_none() && table.get_mut(key).is_none());
    assert_eq!(table.end(key, Ended::Sent, START), None, "once");
    let mut finished = FinishedTransfer::default();
    assert_eq!((table.drain_finished(&mut finished), finished.sent.clone()), (1, vec![request(1)]));
    assert_eq!((table.drain_finished(&mut finished), finished.sent.len()), (0, 1));
    assert!(table.is_empty());
}

#[test]
fn both_sides_of_one_engine_may_know_the_same_transfer() {
    let mut table = Transfers::new(bounds(), (1, 2));
    let (source, _) = table.admit(Side::Source, transfer(1), request(1), 'a', START).unwrap();
    let (sink, _) = table.admit(Side::Sink, transfer(1), request(1), 'b', START).unwrap();
    assert_eq!(table.end(source, Ended::Sent, START), Some('a'));
    assert_eq!((table.get(sink), table.request_of(Side::Sink, transfer(1))), (Some(&'b'), Some(&request(1))));
}

#[test]
fn a_key_is_never_anothers() {
    let mut table = Transfers::new(bounds(), (1, 2));
    let (first, _) = table.admit(Side::Sink, transfer(1), request(1), 1, START).unwrap();
    table.end(first, Ended::Received, START);
    table.expire(Timestamp::from_ns(10_000_000_000));
    let (second, _) = table.admit(Side::Sink, transfer(2), request(2), 2, START).unwrap();
    assert_eq!(first.index, second.index, "the place is the same");
    assert_eq!((table.end(first, Ended::Failed, START), table.get(first), table.get(second)), (None, None, Some(&2)));
}

#[test]
fn finished_requests_that_nobody_asks_for_are_counted_when_they_are_forgotten() {
    let mut table = Transfers::new(bounds(), (1, 2));
    for number in 0..6 {
        let (key, _) = table.admit(Side::Sink, transfer(number), request(number), (), START).unwrap();
        table.end(key, Ended::Received, START);
    }
    let mut finished = FinishedTransfer::default();
    assert_eq!(table.drain_finished(&mut finished), 4);
    assert_eq!((finished.received, finished.lost), ((2..6).map(request).collect(), 2));
    let mut later = FinishedTransfer::default();
    assert_eq!((table.drain_finished(&mut later), later.lost), (0, 0), "told of once");
}

#[test]
fn memory_of_a_peak_is_given_back() {
    let many = 20_000_u32;
    let bounds = Bounds { live: 1 << 20, tombs: 8, ..bounds() };
    let mut table = Transfers::new(bounds, (1, 2));
    let id = |number: u32| TransferId::from_bytes(u128::from(number).to_le_bytes());
    let keys: Vec<EntryKey> = (0..many)
        .map(|number| {
            let request = RequestId::new(&number.to_string()).unwrap();
            table.admit(Side::Sink, id(number), request, (), START).unwrap().0
        })
        .collect();
    let (kept, others) = keys.split_at(100);
    others.iter().for_each(|key| assert!(table.end(*key, Ended::Failed, START).is_some()));
    table.drain_finished(&mut FinishedTransfer::default());
    table.expire(Timestamp::from_ns(1));
    assert!(table.tombs.places() < 1000 && table.by_name.capacity() < 1000 && table.by_request.capacity() < 1000);
    assert!(table.entries.capacity() < 1000 && table.free.capacity() < 1000 && table.finished.capacity() < 1000);
    assert!(kept.iter().all(|key| table.get(*key).is_some()));
    let (next, _) = table.admit(Side::Sink, id(many), request(1), (), START).unwrap();
    assert_eq!((next.index, table.live(), table.metrics().live_max), (100, 101, many as usize));
}

#[derive(Debug, Clone)]
enum Deed {
    Admit { side: Side, transfer: u8, request: u8 },
    Route { side: Side, transfer: u8, from: u32 },
    End { side: Side, transfer: u8, how: Ended, is_kept: bool },
    LetGo { side: Side, transfer: u8 },
    Name { side: Side, transfer: u8, is_touched: bool },
    EndAgain,
    Forget { peer: u32 },
    Pass { ns: u64 },
    Expire,
    Drain,
}

fn deed() -> impl Strategy<Value = Deed> {
    let side = || prop::sample::select(vec![Side::Source, Side::Sink]);
    let how = prop::sample::select(vec![Ended::Sent, Ended::Received, Ended::Failed]);
    prop_oneof![
        3 => (side(), 0..5_u8, 0..5_u8).prop_map(|(side, transfer, request)| Deed::Admit { side, transfer, request }),
        6 => (side(), 0..5_u8, 0..3_u32).prop_map(|(side, transfer, from)| Deed::Route { side, transfer, from }),
        3 => (side(), 0..5_u8, how, any::<bool>())
            .prop_map(|(side, transfer, how, is_kept)| Deed::End { side, transfer, how, is_kept }),
        2 => (side(), 0..5_u8).prop_map(|(side, transfer)| Deed::LetGo { side, transfer }),
        1 => Just(Deed::EndAgain),
        1 => (0..3_u32).prop_map(|peer| Deed::Forget { peer }),
        3 => (1..40_u64).prop_map(|ns| Deed::Pass { ns }),
        3 => (side(), 0..5_u8, any::<bool>()).prop_map(|(side, transfer, is_touched)| Deed::Name { side, transfer, is_touched }),
        2 => Just(Deed::Expire),
        1 => Just(Deed::Drain),
    ]
}

/// Something that waits in the model: for whom, from whom, which, since when.
type Waiting = ((Side, u8), u32, u32, u64);

/// The same rules, written down as lists that are searched.
#[derive(Default)]
struct Model {
    live: BTreeMap<(Side, u8), (u8, EntryKey)>,
    closed: BTreeMap<(Side, u8), EntryKey>,
    /// Those of them that have failed and of which something is to be said: that they have, or that they are released.
    unsaid: BTreeMap<(Side, u8), (bool, u8)>,
    quarantined: Vec<u8>,
    early: Vec<Waiting>,
    tombs: Vec<((Side, u8), u64, Ended)>,
    /// None is a release.
    finished: Vec<(Option<Ended>, u8)>,
    lost: u64,
    dropped: u64,
    delivered: u64,
    refused: u64,
    swallowed: u64,
}

impl Model {
    fn tomb(&self, id: (Side, u8), now: u64) -> Option<&((Side, u8), u64, Ended)> {
        self.tombs.iter().find(|(other, ended, _)| *other == id && now - ended < TOMB_AGE)
    }

    fn finish(&mut self, how: Option<Ended>, name: u8) {
        if self.finished.len() >= 4 {
            self.finished.remove(0);
            self.lost += 1;
        }
        self.finished.push((how, name));
    }

    /// What is still to be said of one is said.
    fn name(&mut self, id: (Side, u8), is_touched: bool) -> bool {
        match self.unsaid.get(&id).copied() {
            None => return false,
            Some((true, _)) if is_touched => {}
            Some((true, name)) => {
                self.unsaid.remove(&id);
                self.finish(None, name);
            }
            Some((false, name)) => {
                self.unsaid.remove(&id);
                self.finish(Some(Ended::Failed), name);
                if is_touched {
                    self.unsaid.insert(id, (true, name));
                    if self.quarantined.len() >= 4 {
                        self.quarantined.remove(0);
                    }
                    self.quarantined.push(name);
                }
            }
        }
        true
    }

    fn drop_early(&mut self, is_dropped: impl Fn(&Waiting) -> bool) {
        let before = self.early.len();
        self.early.retain(|waiting| !is_dropped(waiting));
        self.dropped += (before - self.early.len()) as u64;
    }
}

/// A hundred thousand pass through, on both sides, some of them beside a peak of many that stand: nothing is left of any.
#[test]
fn a_hundred_thousand_leave_nothing_behind() {
    const ALL: u32 = 100_000;
    let early = EarlyBounds { messages: 4096, bytes: 4 << 20, age: Duration::from_secs(30) };
    let most = Bounds { live: 40_000, early, tombs: 65_536, tomb_age: Duration::from_secs(60) };
    let mut table = Transfers::new(most, (1, 2));
    let name = |number: u32| TransferId::from_bytes(u128::from(number).to_be_bytes());
    let request = |side: Side, number: u32| RequestId::new(&format!("cmpl-{number}-{side:?}")).unwrap();
    let (mut finished, mut ended) = (FinishedTransfer::default(), 0);
    let mut standing = VecDeque::new();
    for number in 0..ALL {
        let now = Timestamp::from_ns(u64::from(number) * 10_000);
        // Every tenth is spoken of before it is known.
        let is_early = number % 10 == 0;
        if is_early {
            assert_eq!(table.route(Side::Sink, name(number), peer(1), landing(number), now), Route::Kept);
        }
        for side in [Side::Source, Side::Sink] {
            let (key, came) = table.admit(side, name(number), request(side, number), number, now).unwrap();
            assert_eq!(came.len(), usize::from(is_early && side == Side::Sink));
            assert_eq!(table.request_of(side, name(number)), Some(&request(side, number)));
            assert_eq!(table.transfer_of(side, &request(side, number)), Some(name(number)));
            standing.push_back((key, side));
        }
        // The first ones stand until there is no room for more.
        while standing.len() > if number < 15_000 { 30_000 } else { 2 * (number as usize % 100) } {
            let (key, side) = standing.pop_front().unwrap();
            let how = [Ended::Sent, Ended::Received, Ended::Failed][ended % 3];
            assert!(table.end(key, how, now).is_some() && table.end(key, how, now).is_none(), "{side:?}: once");
            ended += 1;
        }
        if number % 1000 == 0 {
            table.drain_finished(&mut finished);
            table.expire(now);
        }
    }
    let (peak, now) = (table.metrics(), Timestamp::from_ns(u64::from(ALL) * 10_000));
    standing.into_iter().for_each(|(key, _)| assert!(table.end(key, Ended::Sent, now).is_some()));
    table.drain_finished(&mut finished);
    let count = finished.sent.len() + finished.received.len() + finished.failed.len();
    assert_eq!((count, finished.lost), (2 * ALL as usize, 0), "each once");
    assert_eq!(table.expire(now + Duration::from_secs(61)), None);
    let expected =
        TableMetrics { live_max: peak.live_max, early_delivered: 10_000, places: 0, ..TableMetrics::default() };
    assert_eq!(TableMetrics { places: 0, ..table.metrics() }, expected);
    assert!(peak.live_max == 30_002 && table.metrics().places < 64, "{peak:?} {:?}", table.metrics());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens in whatever order: what came early is delivered once or counted as dropped, both directions
    /// vanish together, and each finished request is given out once.
    #[test]
    fn the_table_does_what_a_list_would(deeds in vec(deed(), 0..150), words: (u64, u64)) {
        let mut table = Transfers::new(bounds(), words);
        let mut model = Model::default();
        let (mut now, mut sent, mut last_ended, mut answered_live) = (0, 0_u32, None, 0_u64);
        for deed in deeds {
            let moment = Timestamp::from_ns(now);
            match deed {
                Deed::Admit { side, transfer: id, request: name } => {
                    let found = table.admit(side, transfer(id), request(name), id, moment);
                    let by_name = model.live.iter().find(|((of, _), (other, _))| *of == side && *other == name);
                    let expected = if let Some((by, _)) = model.live.get(&(side, id)) {
                        Err(AdmitError::Taken { transfer: transfer(id), by: request(*by) })
                    } else if let Some((_, at, _)) = model.tomb((side, id), now) {
                        Err(AdmitError::Ended { transfer: transfer(id), ago: Duration::from_nanos(now - at) })
                    } else if model.closed.contains_key(&(side, id)) {
                        Err(AdmitError::Kept { transfer: transfer(id) })
                    } else if model.live.len() >= 4 {
                        Err(AdmitError::Full { most: 4 })
                    } else if let Some(((_, by), _)) = by_name {
                        Err(AdmitError::RequestTaken { request: request(name), by: transfer(*by) })
                    } else {
                        Ok(())
                    };
                    model.refused += u64::from(expected.is_err());
                    match (found, expected) {
                        (Ok((key, early)), Ok(())) => {
                            let of_this = model.early.iter().filter(|waiting| waiting.0 == (side, id));
                            let waited: Vec<u32> = of_this.map(|waiting| waiting.2).collect();
                            model.delivered += waited.len() as u64;
                            model.early.retain(|(of, ..)| *of != (side, id));
                            model.live.insert((side, id), (name, key));
                            prop_assert_eq!(numbers(early), waited);
                        }
                        (found, expected) => prop_assert_eq!(found.err(), expected.err()),
                    }
                }
                Deed::Route { side, transfer: id, from } => {
                    sent += 1;
                    let found = table.route(side, transfer(id), peer(from), landing(sent), moment);
                    if let Some((_, key)) = model.live.get(&(side, id)) {
                        answered_live += 1;
                        prop_assert_eq!(found, Route::Known(*key, landing(sent)));
                    } else if let Some(key) = model.closed.get(&(side, id)) {
                        answered_live += 1;
                        prop_assert_eq!(found, Route::Known(*key, landing(sent)));
                    } else if let Some((_, _, how)) = model.tomb((side, id), now) {
                        prop_assert_eq!(found, Route::Swallowed(*how));
                        model.swallowed += 1;
                    } else {
                        let held = model.early.iter().filter(|waiting| waiting.1 == from).count();
                        let free = 12 - model.early.len();
                        if held >= free {
                            model.dropped += 1;
                            prop_assert_eq!(found, Route::Dropped(EarlyDrop::Messages { held, free }));
                        } else {
                            model.early.push(((side, id), from, sent, now));
                            prop_assert_eq!(found, Route::Kept);
                        }
                    }
                }
                Deed::LetGo { side, transfer: id } => {
                    let standing = model.live.get(&(side, id)).and_then(|(_, key)| table.let_go(*key));
                    prop_assert_eq!(standing, None, "nothing of what is live is let go");
                    let Some(key) = model.closed.remove(&(side, id)) else { continue };
                    model.name((side, id), false);
                    prop_assert!(!table.is_live(key) && table.names(key).is_none() && table.get(key) == Some(&id));
                    prop_assert_eq!((table.let_go(key), table.let_go(key)), (Some(id), None));
                }
                Deed::End { side, transfer: id, how, is_kept } => {
                    let Some((name, key)) = model.live.remove(&(side, id)) else { continue };
                    if is_kept {
                        prop_assert!(table.close(key, how, moment) && !table.close(key, how, moment), "once");
                        model.closed.insert((side, id), key);
                        if how == Ended::Failed {
                            model.unsaid.insert((side, id), (false, name));
                        } else {
                            model.finish(Some(how), name);
                        }
                    } else {
                        model.finish(Some(how), name);
                        prop_assert_eq!(table.end(key, how, moment), Some(id));
                    }
                    last_ended = Some(key);
                    if model.tombs.len() >= 3 {
                        model.tombs.remove(0);
                    }
                    model.tombs.push(((side, id), now, how));
                }
                Deed::Name { side, transfer: id, is_touched } => {
                    let Some(key) = model.closed.get(&(side, id)).copied() else { continue };
                    let extents = vec![(0, 8)];
                    let touched = StillTouched { layout: "kv".to_owned(), blocks: vec![0], extents };
                    let found = table.name_failed(key, is_touched.then_some(touched));
                    prop_assert_eq!(found, model.name((side, id), is_touched));
                }
                Deed::EndAgain => {
                    let again = last_ended.and_then(|key| table.end(key, Ended::Sent, moment));
                    prop_assert_eq!(again, None);
                }
                Deed::Forget { peer: of } => {
                    table.forget_early_of(peer(of));
                    model.drop_early(|waiting| waiting.1 == of);
                }
                Deed::Pass { ns } => now += ns,
                Deed::Expire => {
                    let next = table.expire(moment);
                    let old = model.early.iter().filter(|waiting| waiting.3 + AGE <= now);
                    let mut expected: Vec<(Side, TransferId, PeerKey)> =
                        old.map(|((side, id), from, ..)| (*side, transfer(*id), peer(*from))).collect();
                    expected.sort_unstable();
                    expected.dedup();
                    prop_assert_eq!(table.take_unwanted(), expected);
                    model.drop_early(|waiting| waiting.3 + AGE <= now);
                    model.tombs.retain(|(_, ended, _)| ended + TOMB_AGE > now);
                    let early = model.early.iter().map(|waiting| waiting.3 + AGE);
                    let tombs = model.tombs.iter().map(|(_, ended, _)| ended + TOMB_AGE);
                    prop_assert_eq!(next, early.chain(tombs).min().map(Timestamp::from_ns));
                }
                Deed::Drain => {
                    let mut finished = FinishedTransfer::default();
                    prop_assert_eq!(table.drain_finished(&mut finished), model.finished.len());
                    let of = |how: Option<Ended>| -> Vec<RequestId> {
                        let ended = model.finished.iter().filter(|(other, _)| *other == how);
                        ended.map(|(_, name)| request(*name)).collect()
                    };
                    prop_assert_eq!(&finished.sent, &of(Some(Ended::Sent)));
                    prop_assert_eq!(&finished.received, &of(Some(Ended::Received)));
                    prop_assert_eq!(&finished.failed, &of(Some(Ended::Failed)));
                    prop_assert_eq!(&finished.released, &of(None));
                    let quarantined: Vec<RequestId> = finished.quarantined.into_iter().map(|of| of.request).collect();
                    let expected: Vec<RequestId> = model.quarantined.drain(..).map(request).collect();
                    prop_assert_eq!(quarantined, expected);
                    prop_assert_eq!(finished.lost, model.lost);
                    model.finished.clear();
                    model.lost = 0;
                }
            }
            for side in [Side::Source, Side::Sink] {
                for number in 0..5 {
                    let expected = model.live.get(&(side, number)).map(|(name, _)| request(*name));
                    prop_assert_eq!(table.request_of(side, transfer(number)), expected.as_ref());
                    let by_name = model.live.iter().find(|((of, _), (name, _))| *of == side && *name == number);
                    let expected = by_name.map(|((_, id), _)| transfer(*id));
                    prop_assert_eq!(table.transfer_of(side, &request(number)), expected);
                }
            }
            let metrics = table.metrics();
            prop_assert_eq!((metrics.live, table.closed()), (model.live.len(), model.closed.len()));
            prop_assert_eq!((table.iter().count(), table.check()), (model.live.len() + model.closed.len(), Ok(())));
            prop_assert_eq!((metrics.early, metrics.tombs), (model.early.len(), model.tombs.len()));
            prop_assert_eq!((metrics.early_dropped, metrics.early_delivered), (model.dropped, model.delivered));
            prop_assert_eq!((metrics.refused, metrics.tomb_hits), (model.refused, model.swallowed));
            let accounted = metrics.early_delivered + metrics.early_dropped + metrics.early as u64 + metrics.tomb_hits;
            prop_assert_eq!(accounted + answered_live, u64::from(sent), "each message is somewhere, once");
            prop_assert_eq!(table.is_empty(), model.live.is_empty() && model.early.is_empty());
        }
    }
}
