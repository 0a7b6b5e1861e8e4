//! Transfers whose sessions break and that go on in others, over desks joined by a wire and memories that are really copied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::{Cause, EngineName, Epoch};
use penstock_flows::desk::{CallError, Settings, Sinks};
use penstock_flows::{Event, FlowCause, Happening, Status};
use penstock_session::PeerKey;
use penstock_session::control::Said;
use penstock_session::transfers::table::EntryKey;
use proptest::prelude::*;

use crate::desks::{WITHIN, World, peer};

const RESUME: Duration = Duration::from_secs(10);
/// Blocks of a sink that are granted to one transfer.
const ROOM: u32 = 8;
/// What blocks hold that were let go. No byte of a transfer is even.
const POISON: u8 = 0xee;

/// One source and so many sinks, each of them a rank. Which of them are of the same session is said by their place.
struct Broken {
    world: World,
    output: EntryKey,
    inputs: Vec<EntryKey>,
    tokens: u64,
    /// Which tokens each sink has taken over, leg by leg: from which one on, and how many.
    taken: Vec<Vec<(u64, u64)>>,
    /// For how many tokens each leg was granted, by sink: the least of all is what it takes.
    granted: Vec<Vec<u64>>,
    /// Blocks that were let go, and whose bytes nobody may touch.
    poisoned: Vec<BTreeSet<u32>>,
    /// The blocks of each leg, by sink.
    legs: Vec<BTreeMap<u32, Vec<u32>>>,
    told: Vec<Vec<Happening>>,
}

fn grants(said: &Said) -> bool {
    matches!(said, Said::Grant(grant) if grant.resumes)
}

impl Broken {
    fn new(sinks: u16, tokens: u64, is_by_layer: bool) -> Self {
        let settings = Settings { resume_within: RESUME, part_bytes: 700, parts_ahead: 4, ..Settings::default() };
        let layouts: Vec<(u16, u16, u32)> =
            std::iter::once((0, 1, 4)).chain((0..sinks).map(|rank| (rank, sinks, 8))).collect();
        let mut world = World::with(settings, &layouts);
        let output = world.produce(0, 1, |produce| {
            (produce.is_lent, produce.is_resumable, produce.is_by_layer) = (false, true, is_by_layer);
            produce.sinks = Sinks::Sharing(sinks);
        });
        let consume = |world: &mut World, at| {
            world.consume(at, 1, &[0], |consume| (consume.is_pull, consume.is_resumable) = (false, true))
        };
        let inputs = (1..=usize::from(sinks)).map(|at| consume(&mut world, at)).collect();
        let many = usize::from(sinks);
        let (taken, granted, told) = (vec![Vec::new(); many], vec![Vec::new(); many], vec![Vec::new(); many]);
        let (legs, poisoned) = (vec![BTreeMap::new(); many], vec![BTreeSet::new(); many]);
        Self { world, output, inputs, tokens, taken, granted, poisoned, legs, told }
    }

    fn compute(&mut self) {
        let blocks: Vec<u32> = (0..self.tokens.div_ceil(4) as u32).collect();
        self.world.chunk(0, self.output, (&blocks, &blocks), 0..self.tokens, true);
        for layer in 0..3 {
            let now = self.world.now;
            // Layers go by themselves, or with their chunk.
            self.world.desk(0).layer(self.output, layer, u64::MAX, now).unwrap();
        }
    }

    /// A sink grants what it needs, up to so many blocks, in an order of its own.
    fn grant(&mut self, sink: usize, most: u32) {
        let key = self.inputs[sink];
        let Some(tokens) = self.world.desk(sink + 1).wanted(key) else { return };
        let used: BTreeSet<u32> = self.legs[sink].values().flatten().copied().collect();
        let free = (0..62).rev().filter(|block| !used.contains(block));
        let blocks: Vec<u32> = free.take(tokens.div_ceil(8).min(most.into()) as usize).collect();
        self.assert_poisoned(sink);
        self.poisoned[sink].retain(|block| !blocks.contains(block));
        self.world.grant(sink + 1, key, &blocks);
        self.granted[sink].push(blocks.len() as u64 * 8);
        self.legs[sink].insert(self.granted[sink].len() as u32 - 1, blocks);
    }

    /// A sink takes what has landed, after a look at every byte.
    fn take(&mut self, sink: usize) {
        let (at, key) = (sink + 1, self.inputs[sink]);
        for leg in self.world.desk(at).landed_legs(key) {
            let blocks = self.legs[sink].remove(&leg).expect("it was granted and not taken");
            let takes = |leg: usize| self.granted.iter().map(|legs| legs[leg]).min().unwrap();
            let from = (0..leg as usize).map(takes).sum::<u64>();
            let tokens = takes(leg as usize).min(self.tokens - from);
            assert!(self.world.has(at, &blocks, from, from..from + tokens), "sink {sink}, leg {leg}: other bytes");
            self.taken[sink].push((from, tokens));
            let now = self.world.now;
            self.world.desk(at).taken(key, leg, now).unwrap();
            for block in blocks {
                self.world.each_byte_of(at, block, |byte| *byte = POISON);
                self.poisoned[sink].insert(block);
            }
        }
    }

    /// What was let go is as it was left.
    fn assert_poisoned(&mut self, sink: usize) {
        for block in self.poisoned[sink].clone() {
            self.world.each_byte_of(sink + 1, block, |byte| assert_eq!(*byte, POISON, "written into block {block}"));
        }
    }

    fn cut(&mut self, sink: usize) {
        self.world.cut(0, sink + 1);
    }

    fn join(&mut self, sink: usize) {
        self.world.join(0, sink + 1);
    }

    fn resume(&mut self, sink: usize) -> Result<(), CallError> {
        let now = self.world.now;
        let key = self.inputs[sink];
        let peer = self.world.peer_of(sink + 1, 0);
        self.world.desk(sink + 1).resume(key, peer, now)
    }

    fn listen(&mut self) {
        for sink in 0..self.inputs.len() {
            let told = self.world.told(sink + 1, self.inputs[sink]);
            self.told[sink].extend(told);
        }
    }

    fn status(&self, sink: usize) -> Status {
        self.world.nodes[sink + 1].desk.status(self.inputs[sink]).unwrap()
    }

    /// Everything came, each token once and told of once, and both sides have ended once.
    fn assert_done(&mut self) {
        self.listen();
        for sink in 0..self.inputs.len() {
            assert_eq!(self.status(sink), Status::Success, "{:?}", self.told[sink]);
            self.take(sink);
            self.assert_poisoned(sink);
            self.taken[sink].sort_unstable();
            assert_eq!(self.taken[sink].iter().map(|(_, tokens)| tokens).sum::<u64>(), self.tokens);
            let is_end = |told: &&Happening| matches!(told, Happening::Done { .. } | Happening::Failed(_));
            assert_eq!(self.told[sink].iter().filter(is_end).count(), 1, "{:?}", self.told[sink]);
            let legs = self.told[sink].iter().filter_map(|told| match told {
                Happening::Leg { leg, tokens, .. } => Some((*leg, *tokens)),
                _ => None,
            });
            let legs: Vec<(u32, u64)> = legs.collect();
            let once: BTreeSet<u32> = legs.iter().map(|(leg, _)| *leg).collect();
            assert_eq!(once.len(), legs.len(), "no leg is told of twice");
            assert!(legs.iter().all(|(leg, tokens)| self.taken[sink][*leg as usize].1 == *tokens));
            let layers: Vec<_> =
                self.told[sink].iter().filter(|told| matches!(told, Happening::Layer { .. })).collect();
            assert!((1..layers.len()).all(|at| !layers[..at].contains(&layers[at])), "no layer is told of twice");
        }
        assert_eq!(self.world.desk(0).status(self.output), Some(Status::Success));
        self.release();
    }

    fn release(&mut self) {
        let (output, inputs, now) = (self.output, self.inputs.clone(), self.world.now);
        self.world.desk(0).release(output, now);
        for (sink, input) in inputs.into_iter().enumerate() {
            self.world.desk(sink + 1).release(input, now);
        }
        self.world.run();
        self.world.assert_nothing_is_left();
        for node in &self.world.nodes {
            node.desk.check().unwrap();
        }
    }
}

#[test]
fn a_transfer_goes_on_in_the_next_session_from_what_the_sink_has() {
    let mut broken = Broken::new(1, 30, false);
    broken.world.holds_moves = true;
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    let moving: Vec<_> = broken.world.nodes[0].moving.keys().copied().collect();
    assert!(moving.len() >= 2, "it goes in several parts");
    broken.world.end_move(0, moving[0], None);
    broken.world.run();
    let came = broken.world.count(0, |said| matches!(said, Said::Seal(_)));
    assert_eq!(came, 0);
    broken.cut(0);
    broken.listen();
    assert_eq!(broken.told[0].last(), Some(&Happening::Lost { source: 0 }));
    assert_eq!(broken.status(0), Status::Transferring);
    broken.world.holds_moves = false;
    broken.join(0);
    broken.world.said.clear();
    broken.resume(0).unwrap();
    broken.world.run();
    let resumed: Vec<(u64, usize)> = broken
        .world
        .said
        .iter()
        .filter_map(|(_, _, said)| match said {
            Said::Grant(grant) if grant.resumes => Some((grant.from, grant.blocks.len())),
            _ => None,
        })
        .collect();
    assert_eq!(resumed.len(), 2, "what is needed, and that this was all: {resumed:?}");
    assert!(resumed[0].0 > 0, "what has come is not asked for again");
    assert_eq!(resumed[1].1, 0);
    assert_eq!(broken.status(0), Status::Transferring, "what was cut off has not ended at its source");
    broken.world.end_cut_moves(0);
    broken.world.run();
    broken.assert_done();
}

#[test]
fn nothing_is_granted_again_before_the_old_session_is_proven_quiet() {
    let mut broken = Broken::new(1, 30, false);
    (broken.world.holds_moves, broken.world.holds_watches) = (true, true);
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    broken.cut(0);
    broken.join(0);
    broken.resume(0).unwrap();
    broken.world.run();
    assert_eq!(broken.world.count(1, grants), 0);
    broken.world.answer_watches(1);
    broken.world.run();
    assert_eq!(broken.world.count(1, grants), 2);
    // Parts of the old session have not ended at their source: nothing new goes.
    assert_eq!(broken.world.nodes[0].moving.len(), 0, "they were cut off");
    broken.world.holds_moves = false;
    broken.world.end_cut_moves(0);
    broken.world.run();
    broken.assert_done();
}

#[test]
fn an_engine_that_was_started_anew_is_another_one() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.cut(0);
    let (again, now) = (PeerKey { party: 0, epoch: Epoch(7) }, broken.world.now);
    let name = EngineName::new("engine-0").unwrap();
    broken.world.handle(1, Event::Joined { peer: again, name: name.clone() });
    let (key, sink) = (broken.inputs[0], broken.world.desk(1));
    assert_eq!(sink.resume(key, again, now), Err(CallError::Restarted(name)));
    let stranger = PeerKey { party: 9, epoch: peer(0).epoch };
    let name = EngineName::new("engine-9").unwrap();
    sink.handle(Event::Joined { peer: stranger, name: name.clone() }, now);
    assert_eq!(sink.resume(key, stranger, now), Err(CallError::NotBroken(name)));
    assert_eq!(sink.resume(key, peer(0), now), Err(CallError::NoSession));
}

/// Its grants, which say that they resume, come from an engine of the same name in another life: they are of a stale epoch.
#[test]
fn a_stale_epoch_resumes_nothing() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.world.holds_moves = true;
    broken.grant(0, ROOM);
    broken.world.run();
    broken.cut(0);
    broken.join(0);
    broken.resume(0).unwrap();
    assert!(broken.world.run_until(grants));
    let said: Vec<Said> = broken.world.said.iter().map(|(_, _, said)| said.clone()).filter(grants).collect();
    assert_eq!(said.len(), 2);
    broken.cut(0);
    let stale = PeerKey { party: 1, epoch: Epoch(7) };
    broken.world.handle(0, Event::Joined { peer: stale, name: EngineName::new("engine-1").unwrap() });
    let refused = broken.world.desk(0).metrics().refused;
    for said in said {
        broken.world.handle(0, Event::Said { peer: stale, said });
    }
    assert_eq!(broken.world.desk(0).metrics().refused, refused + 2);
    broken.world.end_cut_moves(0);
    broken.world.run();
    assert_eq!(broken.world.nodes[0].moving.len(), 0, "nothing goes to it");
}

#[test]
fn who_does_not_come_back_is_waited_for_so_long_and_no_longer_than_the_deadline() {
    for is_short in [false, true] {
        let mut broken = Broken::new(1, 30, false);
        broken.compute();
        if is_short {
            broken.world.pass(WITHIN - Duration::from_secs(3));
        }
        broken.cut(0);
        let within = if is_short { Duration::from_secs(3) } else { RESUME };
        broken.world.pass(within - Duration::from_millis(1));
        assert_eq!(broken.status(0), Status::Bootstrapping);
        broken.world.pass(Duration::from_millis(2));
        let cause = if is_short { FlowCause::Deadline } else { FlowCause::PeerLost };
        assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, cause);
        if !is_short {
            // The source has had no session with anybody, and waits for its first.
            assert_eq!(broken.world.desk(0).status(broken.output), Some(Status::Bootstrapping));
        }
    }
}

#[test]
fn a_source_whose_sink_does_not_come_back_fails_and_lets_go() {
    let mut broken = Broken::new(1, 30, false);
    broken.world.holds_moves = true;
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    broken.cut(0);
    broken.world.end_cut_moves(0);
    broken.world.pass(RESUME + Duration::from_millis(1));
    assert_eq!(broken.world.desk(0).send_failure(broken.output).unwrap().cause, FlowCause::PeerLost);
    assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, FlowCause::PeerLost);
    broken.release();
}

#[test]
fn an_acknowledgement_that_was_lost_is_said_again() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.grant(0, ROOM);
    assert!(broken.world.run_until(|said| matches!(said, Said::Ack(_))));
    broken.cut(0);
    assert_eq!(broken.status(0), Status::Success);
    assert_ne!(broken.world.desk(0).status(broken.output), Some(Status::Success));
    broken.join(0);
    broken.world.run();
    broken.assert_done();
}

#[test]
fn a_sink_that_gives_up_while_it_waits_has_its_blocks_back_by_proof() {
    let mut broken = Broken::new(1, 30, false);
    (broken.world.holds_moves, broken.world.holds_watches) = (true, true);
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    broken.cut(0);
    let (key, now) = (broken.inputs[0], broken.world.now);
    broken.world.desk(1).fail(key, FlowCause::Aborted, "", now);
    broken.world.run();
    assert_eq!((broken.world.nodes[1].quarantined.len(), broken.world.nodes[1].freed.len()), (1, 0));
    broken.world.answer_watches(1);
    broken.world.run();
    assert_eq!(broken.world.nodes[1].freed.len(), 1);
    broken.world.end_cut_moves(0);
    broken.world.pass(RESUME + Duration::from_millis(1));
    broken.release();
}

#[test]
fn a_source_that_failed_meanwhile_says_so_in_the_next_session_and_answers_the_abort() {
    let mut broken = Broken::new(1, 30, false);
    broken.world.holds_moves = true;
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    broken.cut(0);
    let (output, now) = (broken.output, broken.world.now);
    broken.world.desk(0).fail(output, FlowCause::SourceFailed, "the model is gone", now);
    broken.world.end_cut_moves(0);
    broken.join(0);
    broken.resume(0).unwrap();
    broken.world.run();
    let failed = broken.world.failure(1, broken.inputs[0]);
    assert_eq!((failed.cause, failed.words.as_str()), (FlowCause::SourceFailed, "the model is gone"));
    broken.world.run();
    assert_eq!(broken.world.nodes[1].freed.len(), 1, "its abort is answered");
    broken.release();
}

/// Its rank is claimed by a grant that is late to the failure: whoever says so wants its blocks back, and is answered.
#[test]
fn an_abort_is_answered_by_a_source_that_had_failed_before_the_grant() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.grant(0, ROOM);
    assert!(broken.world.run_until(|said| matches!(said, Said::Grant(_))));
    let (output, now) = (broken.output, broken.world.now);
    broken.world.desk(0).fail(output, FlowCause::SourceFailed, "no memory", now);
    broken.world.run();
    assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, FlowCause::SourceFailed);
    assert_eq!((broken.world.nodes[1].freed.len(), broken.world.nodes[1].quarantined.len()), (1, 0));
    broken.release();
}

/// What may happen to a transfer.
#[derive(Debug, Clone)]
enum Deed {
    Grant(usize, u32),
    Take(usize),
    /// Some frames are delivered.
    Deliver(usize),
    /// One of the moves ends; its landing comes, or not before the session breaks.
    Move(usize),
    /// One ends before anybody knows that its session is over.
    Break(usize, usize),
    Cut(usize),
    Join(usize),
    Resume(usize),
    Prove(usize),
    /// What moved in sessions that broke ends.
    End,
    Pass(u64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let sink = 0..2_usize;
    let deed = prop_oneof![
        3 => (sink.clone(), 1..4_u32).prop_map(|(sink, blocks)| Deed::Grant(sink, blocks)),
        2 => sink.clone().prop_map(Deed::Take),
        6 => (1..6_usize).prop_map(Deed::Deliver),
        8 => (0..8_usize).prop_map(Deed::Move),
        1 => (sink.clone(), 0..8_usize).prop_map(|(sink, place)| Deed::Break(sink, place)),
        2 => sink.clone().prop_map(Deed::Cut),
        3 => sink.clone().prop_map(Deed::Join),
        3 => sink.clone().prop_map(Deed::Resume),
        2 => sink.prop_map(Deed::Prove),
        1 => (1..50_u64).prop_map(Deed::Pass),
        1 => Just(Deed::End),
    ];
    prop::collection::vec(deed, 20..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Sessions break in the middle of legs, words and landings are lost with them, and what moved ends when it likes. When all of them are
    /// back for good, every sink has every byte where it belongs, has been told of each leg and layer once, and each side has ended once.
    #[test]
    fn whatever_breaks_every_token_lands_once_where_it_belongs(
        (sinks, tokens, is_by_layer) in (1..=2_u16, 1..200_u64, any::<bool>()),
        deeds in deeds(),
    ) {
        let mut broken = Broken::new(sinks, tokens, is_by_layer);
        (broken.world.holds_moves, broken.world.holds_watches) = (true, true);
        broken.compute();
        for deed in deeds {
            broken.apply(&deed);
            broken.listen();
            for node in &broken.world.nodes {
                node.desk.check().unwrap();
            }
        }
        broken.settle();
        broken.assert_done();
    }
}

impl Broken {
    fn apply(&mut self, deed: &Deed) {
        let place = |sink: usize| sink % self.inputs.len();
        match *deed {
            Deed::Grant(sink, blocks) if !self.status(place(sink)).is_end() => self.grant(place(sink), blocks),
            Deed::Take(sink) => self.take(place(sink)),
            Deed::Deliver(frames) => self.world.deliver_some(frames),
            Deed::Move(which) => self.world.end_some_move(0, None, which, None),
            Deed::Break(sink, which) => {
                self.world.end_some_move(0, Some(place(sink) + 1), which, Some(Cause::PeerLost));
                self.cut(place(sink));
            }
            Deed::Cut(sink) => self.cut(place(sink)),
            Deed::Join(sink) => self.join(place(sink)),
            Deed::Resume(sink) => drop(self.resume(place(sink))),
            Deed::Prove(sink) => self.world.answer_watches(place(sink) + 1),
            Deed::End => self.world.end_cut_moves(0),
            Deed::Pass(millis) => self.world.pass_only(Duration::from_millis(millis)),
            Deed::Grant(..) => {}
        }
    }

    /// All sessions stand and stay, and everything comes.
    fn settle(&mut self) {
        (self.world.holds_moves, self.world.holds_watches) = (false, false);
        for round in 0..2000 {
            for sink in 0..self.inputs.len() {
                self.join(sink);
                self.world.run();
                self.world.answer_watches(sink + 1);
                let _ = self.resume(sink);
                self.world.end_cut_moves(0);
                self.world.end_moves(0);
                self.world.run();
                self.take(sink);
                if !self.status(sink).is_end() {
                    self.grant(sink, 3);
                }
            }
            let is_over = (0..self.inputs.len()).all(|sink| self.status(sink).is_end());
            if is_over && self.world.nodes[0].desk.status(self.output).is_some_and(Status::is_end) {
                return;
            }
            assert!(round < 1999, "it goes on for ever: {:?}", self.world.nodes[0].desk.metrics());
        }
    }
}
