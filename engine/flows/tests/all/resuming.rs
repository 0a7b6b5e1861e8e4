//! Transfers whose sessions break and that go on in others, over transfer managers joined by a wire and memories that are really copied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::{Cause, EngineName, Epoch};
use penstock_flows::manager::{CallError, Settings, Sinks};
use penstock_flows::{BlocksRef, Event, FlowCause, InputEvent, Status};
use penstock_session::PeerKey;
use penstock_session::control::{ControlMessage, Side};
use penstock_session::transfers::table::EntryKey;
use proptest::prelude::*;

use crate::managers::{WITHIN, World, peer};

const RESUME: Duration = Duration::from_secs(10);
const DOUBT: Duration = Duration::from_secs(6);
/// Blocks of a sink that are granted to one transfer.
const ROOM: u32 = 8;
/// What blocks hold that were let go. No byte of a transfer is even.
const POISON: u8 = 0xee;

/// So many sources and sinks, each of them a rank on an engine of its own: the sources first.
struct Broken {
    world: World,
    outputs: Vec<EntryKey>,
    inputs: Vec<EntryKey>,
    /// How many tokens there are in all, and how many of them each source has computed.
    tokens: u64,
    is_by_layer: bool,
    computed: Vec<u64>,
    /// How many tokens each sink has taken over, leg by leg.
    taken: Vec<BTreeMap<u32, u64>>,
    /// For how many tokens each leg was granted, by sink: the least of all is what it takes.
    granted: Vec<Vec<u64>>,
    /// Blocks that were let go, and whose bytes nobody may touch.
    poisoned: Vec<BTreeSet<u32>>,
    /// The blocks of each leg that was not taken, and of each ticket that was not let go, by sink.
    legs: Vec<BTreeMap<u32, Vec<u32>>>,
    kept: Vec<BTreeMap<BlocksRef, Vec<u32>>>,
    told: Vec<Vec<InputEvent>>,
}

fn grants(said: &ControlMessage) -> bool {
    matches!(said, ControlMessage::Grant(grant) if grant.resumes)
}

impl Broken {
    /// One source.
    fn new(sinks: u16, tokens: u64, is_by_layer: bool) -> Self {
        Self::of((1, sinks), tokens, is_by_layer, true)
    }

    /// One source, and a sink that ends with its session.
    fn whose_sink_does_not_wait(tokens: u64) -> Self {
        Self::of((1, 1), tokens, false, false)
    }

    fn of((sources, sinks): (u16, u16), tokens: u64, is_by_layer: bool, sinks_wait: bool) -> Self {
        let settings = Settings {
            resume_within: RESUME,
            doubt_within: DOUBT,
            part_bytes: 700,
            parts_ahead: 4,
            ..Settings::default()
        };
        let layouts = (0..sources).map(|rank| (rank, sources, 4)).chain((0..sinks).map(|rank| (rank, sinks, 8)));
        let mut world = World::with(settings, &layouts.collect::<Vec<(u16, u16, u32)>>());
        let all: Vec<usize> = (0..usize::from(sources)).collect();
        let produce = |world: &mut World, at| {
            world.produce(at, 1, |produce| {
                (produce.is_lent, produce.is_resumable, produce.is_by_layer) = (false, true, is_by_layer);
                produce.sinks = Sinks::Sharing(sinks);
            })
        };
        let outputs = all.iter().map(|&at| produce(&mut world, at)).collect();
        let consume = |world: &mut World, at| {
            world.consume(at, 1, &all, |consume| (consume.is_pull, consume.is_resumable) = (false, sinks_wait))
        };
        let many = usize::from(sinks);
        let inputs = (all.len()..all.len() + many).map(|at| consume(&mut world, at)).collect();
        Self {
            world,
            outputs,
            inputs,
            tokens,
            is_by_layer,
            computed: vec![0; all.len()],
            taken: vec![BTreeMap::new(); many],
            granted: vec![Vec::new(); many],
            poisoned: vec![BTreeSet::new(); many],
            legs: vec![BTreeMap::new(); many],
            kept: vec![BTreeMap::new(); many],
            told: vec![Vec::new(); many],
        }
    }

    /// Where a sink is.
    fn at(&self, sink: usize) -> usize {
        self.outputs.len() + sink
    }

    /// All sources have all tokens in all layers.
    fn compute(&mut self) {
        for source in 0..self.outputs.len() {
            self.chunk(source, self.tokens);
            (0..3).for_each(|layer| self.layer(source, layer));
        }
    }

    /// A source computes so many tokens more; the chunk that has the last one is the last.
    fn chunk(&mut self, source: usize, tokens: u64) {
        let (from, has_ended) = (self.computed[source], self.sent(source).is_end());
        let to = self.tokens.min(from + tokens);
        if from < to && !has_ended {
            let all: Vec<u32> = (0..to.div_ceil(4) as u32).collect();
            let its = &all[from as usize / 4..];
            if !self.is_by_layer {
                self.world.compute(source, &all, None, from..to);
            }
            self.world.give(source, self.outputs[source], (its, to - from), to == self.tokens).unwrap();
            self.computed[source] = to;
        }
    }

    /// A layer of what was given is computed, and ready, where layers do not go with their chunk.
    fn layer(&mut self, source: usize, layer: u32) {
        let (now, computed) = (self.world.now, self.computed[source]);
        if self.is_by_layer {
            let all: Vec<u32> = (0..computed.div_ceil(4) as u32).collect();
            self.world.compute(source, &all, Some(layer), 0..computed);
        }
        // One that has ended takes none.
        let _ = self.world.manager(source).layer(self.outputs[source], layer, computed, now);
    }

    /// A sink grants what it needs, up to so many blocks, in an order of its own.
    fn grant(&mut self, sink: usize, most: u32) {
        let (at, key) = (self.at(sink), self.inputs[sink]);
        let Some(tokens) = self.world.manager(at).wanted(key) else { return };
        let used: BTreeSet<u32> = self.kept[sink].values().flatten().copied().collect();
        let free = (0..62).rev().filter(|block| !used.contains(block));
        let blocks: Vec<u32> = free.take(tokens.div_ceil(8).min(most.into()) as usize).collect();
        self.assert_poisoned(sink);
        self.poisoned[sink].retain(|block| !blocks.contains(block));
        let ticket = self.world.grant(at, key, &blocks);
        self.granted[sink].push(blocks.len() as u64 * 8);
        self.kept[sink].insert(ticket, blocks.clone());
        self.legs[sink].insert(self.granted[sink].len() as u32 - 1, blocks);
    }

    /// A sink takes what has landed, after a look at every byte.
    fn take(&mut self, sink: usize) {
        let (at, key) = (self.at(sink), self.inputs[sink]);
        for leg in self.world.manager(at).landed_legs(key) {
            let blocks = self.legs[sink].remove(&leg).expect("it was granted and not taken");
            let takes = |leg: usize| self.granted.iter().map(|legs| legs[leg]).min().unwrap();
            let from = (0..leg as usize).map(takes).sum::<u64>();
            let tokens = takes(leg as usize).min(self.tokens - from);
            assert!(self.world.has(at, &blocks, from, from..from + tokens), "sink {sink}, leg {leg}: other bytes");
            self.taken[sink].insert(leg, tokens);
            let now = self.world.now;
            self.world.manager(at).taken(key, leg, now).unwrap();
        }
    }

    /// Whatever was let go is written over by others, here and at the sources.
    fn reuse(&mut self) {
        self.world.act_all();
        for sink in 0..self.inputs.len() {
            let at = self.at(sink);
            for ticket in self.world.nodes[at].freed.clone() {
                for block in self.kept[sink].remove(&ticket).into_iter().flatten() {
                    self.world.each_byte_of(at, block, |byte| *byte = POISON);
                    self.poisoned[sink].insert(block);
                }
            }
        }
        for source in 0..self.outputs.len() {
            if !self.world.nodes[source].freed.is_empty() {
                (0..62).for_each(|block| self.world.each_byte_of(source, block, |byte| *byte = POISON));
            }
        }
    }

    /// What was let go is as it was left.
    fn assert_poisoned(&mut self, sink: usize) {
        for block in self.poisoned[sink].clone() {
            let at = self.at(sink);
            self.world.each_byte_of(at, block, |byte| assert_eq!(*byte, POISON, "written into block {block}"));
        }
    }

    fn cut(&mut self, sink: usize) {
        (0..self.outputs.len()).for_each(|source| self.world.cut(source, self.at(sink)));
    }

    fn join(&mut self, sink: usize) {
        (0..self.outputs.len()).for_each(|source| self.world.join(source, self.at(sink)));
    }

    /// Where there is one source.
    fn resume(&mut self, sink: usize) -> Result<(), CallError> {
        self.resume_one(0, sink)
    }

    fn resume_one(&mut self, source: usize, sink: usize) -> Result<(), CallError> {
        let (at, key, now) = (self.at(sink), self.inputs[sink], self.world.now);
        let peer = self.world.peer_of(at, source);
        self.world.manager(at).resume(key, peer, now)
    }

    fn listen(&mut self) {
        for sink in 0..self.inputs.len() {
            let told = self.world.told(self.at(sink), self.inputs[sink]);
            self.told[sink].extend(told);
        }
    }

    /// How far a sink is.
    fn status(&self, sink: usize) -> Status {
        self.world.nodes[self.at(sink)].manager.status(self.inputs[sink]).unwrap()
    }

    /// How far a source is.
    fn sent(&self, source: usize) -> Status {
        self.world.nodes[source].manager.status(self.outputs[source]).unwrap()
    }

    /// Each sink was told of each leg and layer at most once, and of one end, after which nothing came.
    fn assert_told_once(&mut self) {
        self.listen();
        for (told, taken) in self.told.iter().zip(&self.taken) {
            let is_end = |told: &&InputEvent| matches!(told, InputEvent::Done { .. } | InputEvent::Failed(_));
            assert_eq!(told.iter().filter(is_end).count(), 1, "{told:?}");
            let legs = told.iter().filter_map(|told| match told {
                InputEvent::Leg { leg, tokens, .. } => Some((*leg, *tokens)),
                _ => None,
            });
            let legs: Vec<(u32, u64)> = legs.collect();
            let once: BTreeSet<u32> = legs.iter().map(|(leg, _)| *leg).collect();
            assert_eq!(once.len(), legs.len(), "no leg is told of twice");
            assert!(legs.iter().all(|(leg, tokens)| taken.get(leg).is_none_or(|taken| taken == tokens)));
            let layers: Vec<_> = told.iter().filter(|told| matches!(told, InputEvent::Layer { .. })).collect();
            assert!((1..layers.len()).all(|at| !layers[..at].contains(&layers[at])), "no layer is told of twice");
        }
    }

    /// Everything came, each token once and told of once, and both sides have ended once.
    fn assert_done(&mut self) {
        for sink in 0..self.inputs.len() {
            assert_eq!(self.status(sink), Status::Success, "{:?}", self.told[sink]);
            self.take(sink);
            assert_eq!(self.taken[sink].values().sum::<u64>(), self.tokens);
        }
        self.assert_told_once();
        assert!((0..self.outputs.len()).all(|source| self.sent(source) == Status::Success));
        self.release();
    }

    /// Both are there again, and the source knows at once how its sink has ended; all blocks come back.
    fn assert_source_hears(&mut self, cause: FlowCause) {
        let before = self.world.now;
        self.join(0);
        self.world.run();
        let failed = self.world.nodes[0].manager.send_failure(self.outputs[0]).expect("it was told");
        assert_eq!((failed.cause, failed.said_by, self.world.now), (cause, Side::Sink, before));
        self.world.answer_watches(1);
        self.release();
    }

    fn release(&mut self) {
        let now = self.world.now;
        let keys: Vec<EntryKey> = self.outputs.iter().chain(&self.inputs).copied().collect();
        for (at, key) in keys.into_iter().enumerate() {
            self.world.manager(at).release(key, now);
        }
        self.world.run();
        self.reuse();
        (0..self.inputs.len()).for_each(|sink| self.assert_poisoned(sink));
        self.world.assert_nothing_is_left();
        for node in &self.world.nodes {
            node.manager.check().unwrap();
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
    let came = broken.world.count(0, |said| matches!(said, ControlMessage::EndOfData(_)));
    assert_eq!(came, 0);
    broken.cut(0);
    broken.listen();
    assert_eq!(broken.told[0].last(), Some(&InputEvent::Lost { source: 0 }));
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
            ControlMessage::Grant(grant) if grant.resumes => Some((grant.from, grant.blocks.len())),
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
    let (again, now) = (PeerKey { peer_index: 0, epoch: Epoch(7) }, broken.world.now);
    let name = EngineName::new("engine-0").unwrap();
    broken.world.handle(1, Event::Joined { peer: again, name: name.clone() });
    let (key, sink) = (broken.inputs[0], broken.world.manager(1));
    assert_eq!(sink.resume(key, again, now), Err(CallError::Restarted(name)));
    let stranger = PeerKey { peer_index: 9, epoch: peer(0).epoch };
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
    let said: Vec<ControlMessage> = broken.world.said.iter().map(|(_, _, said)| said.clone()).filter(grants).collect();
    assert_eq!(said.len(), 2);
    broken.cut(0);
    let stale = PeerKey { peer_index: 1, epoch: Epoch(7) };
    broken.world.handle(0, Event::Joined { peer: stale, name: EngineName::new("engine-1").unwrap() });
    let refused = broken.world.manager(0).metrics().refused;
    for said in said {
        broken.world.handle(0, Event::Said { peer: stale, said });
    }
    assert_eq!(broken.world.manager(0).metrics().refused, refused + 2);
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
            assert_eq!(broken.world.manager(0).status(broken.outputs[0]), Some(Status::Bootstrapping));
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
    assert_eq!(broken.world.manager(0).send_failure(broken.outputs[0]).unwrap().cause, FlowCause::PeerLost);
    assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, FlowCause::PeerLost);
    broken.release();
}

#[test]
fn an_acknowledgement_that_was_lost_is_said_again() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.grant(0, ROOM);
    assert!(broken.world.run_until(|said| matches!(said, ControlMessage::Ack(_))));
    broken.cut(0);
    assert_eq!(broken.status(0), Status::Success);
    assert_ne!(broken.world.manager(0).status(broken.outputs[0]), Some(Status::Success));
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
    broken.world.manager(1).fail(key, FlowCause::Aborted, "", now);
    broken.world.run();
    assert_eq!((broken.world.nodes[1].quarantined.len(), broken.world.nodes[1].freed.len()), (1, 0));
    broken.world.answer_watches(1);
    broken.world.run();
    assert_eq!(broken.world.nodes[1].freed.len(), 1);
    broken.world.end_cut_moves(0);
    broken.assert_source_hears(FlowCause::Aborted);
}

/// When a sink ends whose session breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Before, and its words go down with the session.
    Unheard,
    /// While nobody knows whether something of it still lands.
    Unproven,
    /// When nothing does.
    Proven,
    /// When both are there again, and it has not been resumed.
    Unresumed,
    /// When it has, before the proof.
    Awaited,
    /// It has ended with its session, as it is not one that waits.
    WithIt,
}

/// Whatever the sink's end is, and wherever the session is at that moment: the source has it as soon as both have a session, with no time
/// passing.
#[test]
fn a_source_has_the_end_of_a_sink_whose_session_broke_as_soon_as_there_is_another() {
    use Ends::*;
    for (ends, has_granted) in [Unheard, Unproven, Proven, Unresumed, Awaited, WithIt]
        .into_iter()
        .flat_map(|ends| [(ends, true), (ends, false)])
    {
        let mut broken = if ends == WithIt { Broken::whose_sink_does_not_wait(30) } else { Broken::new(1, 30, false) };
        (broken.world.holds_moves, broken.world.holds_watches) = (true, true);
        broken.compute();
        if has_granted {
            broken.grant(0, ROOM);
        }
        broken.world.run();
        let (key, now) = (broken.inputs[0], broken.world.now);
        let fail =
            |broken: &mut Broken| broken.world.manager(1).fail(key, FlowCause::SinkFailed, "the card is gone", now);
        if ends == Unheard {
            fail(&mut broken);
        }
        broken.cut(0);
        if ends == Proven {
            broken.world.answer_watches(1);
        }
        if matches!(ends, Unresumed | Awaited) {
            broken.join(0);
            broken.world.run();
        }
        if ends == Awaited {
            broken.resume(0).unwrap();
        }
        if !matches!(ends, Unheard | WithIt) {
            fail(&mut broken);
        }
        broken.world.end_cut_moves(0);
        broken.assert_source_hears(if ends == WithIt { FlowCause::PeerLost } else { FlowCause::SinkFailed });
    }
}

/// Also where it has given up because it was not resumed in time: who comes back late is told why nobody goes on.
#[test]
fn a_sink_that_was_not_resumed_in_time_says_so_when_its_source_is_back() {
    let mut broken = Broken::new(1, 30, false);
    broken.compute();
    broken.cut(0);
    broken.world.pass(RESUME + Duration::from_millis(1));
    assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, FlowCause::PeerLost);
    assert_eq!(
        broken.world.manager(0).status(broken.outputs[0]),
        Some(Status::Bootstrapping),
        "it has never heard of anybody"
    );
    broken.assert_source_hears(FlowCause::PeerLost);
}

/// A rail may be gone where the session stands: that no session breaks says so.
#[test]
fn a_part_that_cannot_be_moved_while_the_session_stands_is_a_failure_as_soon_as_that_is_known() {
    let mut broken = Broken::new(1, 30, false);
    broken.world.holds_moves = true;
    broken.compute();
    broken.grant(0, ROOM);
    broken.world.run();
    broken.world.end_some_move(0, None, 0, Some(Cause::RailLost));
    broken.world.end_moves(0);
    broken.world.pass(DOUBT - Duration::from_millis(1));
    assert_eq!(
        broken.world.manager(0).status(broken.outputs[0]),
        Some(Status::Transferring),
        "its session may be over"
    );
    broken.world.pass(Duration::from_millis(2));
    let cause = FlowCause::Moving(Cause::RailLost);
    assert_eq!(broken.world.manager(0).send_failure(broken.outputs[0]).unwrap().cause, cause);
    assert_eq!(broken.world.failure(1, broken.inputs[0]).cause, cause);
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
    let (output, now) = (broken.outputs[0], broken.world.now);
    broken.world.manager(0).fail(output, FlowCause::SourceFailed, "the model is gone", now);
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
    assert!(broken.world.run_until(|said| matches!(said, ControlMessage::Grant(_))));
    let (output, now) = (broken.outputs[0], broken.world.now);
    broken.world.manager(0).fail(output, FlowCause::SourceFailed, "no memory", now);
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
    /// A source has computed so many tokens more.
    Chunk(usize, u64),
    /// A layer of it is ready as far as that.
    Layer(usize, u32),
    /// Some frames are delivered.
    Deliver(usize),
    /// One of the moves of a source ends.
    Move(usize, usize),
    /// One ends before anybody knows that its session is over.
    Break(usize, usize, usize),
    Cut(usize, usize),
    Join(usize, usize),
    Resume(usize, usize),
    Prove(usize),
    /// What moved in sessions that broke ends.
    End,
    Pass(u64),
    /// A source's application fails.
    Fail(usize),
    /// A sink's application fails, or gives it up.
    FailThere(usize),
    Abort(usize),
}

/// Deeds at two sources and two sinks; where there is one, it has those of both. Of a hundred lists so many have an end in them.
fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let (source, sink) = (0..2_usize, 0..2_usize);
    let pair = (source.clone(), sink.clone());
    let deed = prop_oneof![
        12 => (sink.clone(), 1..4_u32).prop_map(|(sink, blocks)| Deed::Grant(sink, blocks)),
        8 => sink.clone().prop_map(Deed::Take),
        8 => (source.clone(), 1..60_u64).prop_map(|(source, tokens)| Deed::Chunk(source, tokens)),
        8 => (source.clone(), 0..3_u32).prop_map(|(source, layer)| Deed::Layer(source, layer)),
        24 => (1..6_usize).prop_map(Deed::Deliver),
        32 => (source.clone(), 0..8_usize).prop_map(|(source, which)| Deed::Move(source, which)),
        4 => (pair.clone(), 0..8_usize).prop_map(|((source, sink), which)| Deed::Break(source, sink, which)),
        8 => pair.clone().prop_map(|(source, sink)| Deed::Cut(source, sink)),
        12 => pair.clone().prop_map(|(source, sink)| Deed::Join(source, sink)),
        12 => pair.prop_map(|(source, sink)| Deed::Resume(source, sink)),
        8 => sink.clone().prop_map(Deed::Prove),
        4 => (1..50_u64).prop_map(Deed::Pass),
        4 => Just(Deed::End),
    ];
    let end =
        prop_oneof![source.prop_map(Deed::Fail), sink.clone().prop_map(Deed::FailThere), sink.prop_map(Deed::Abort)];
    let ends = prop::collection::vec((any::<prop::sample::Index>(), end), 0..3);
    (prop::collection::vec(deed, 20..120), prop::bool::weighted(0.3), ends).prop_map(|(mut deeds, has_ends, ends)| {
        let ends = ends.into_iter().filter(|_| has_ends);
        ends.for_each(|(place, end)| deeds.insert(place.index(deeds.len() + 1), end));
        deeds
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Sessions break in the middle of legs, words and landings are lost with them, what moved ends when it likes, and each source computes at
    /// its own speed. When all of them are back for good, every sink has every byte where it belongs, has been told of each leg and layer
    /// once, and each side has ended once. If somebody has failed, all that had not ended before know it without any time passing; and
    /// nobody touches a block that was let go.
    #[test]
    fn whatever_breaks_every_token_lands_once_where_it_belongs(
        ranks in prop::sample::select(vec![(1_u16, 1_u16), (1, 2), (2, 1)]),
        (tokens, is_by_layer) in (1..200_u64, any::<bool>()),
        deeds in deeds(),
    ) {
        let mut broken = Broken::of(ranks, tokens, is_by_layer, true);
        (broken.world.holds_moves, broken.world.holds_watches) = (true, true);
        let mut causes = BTreeSet::new();
        for deed in deeds {
            causes.extend(broken.apply(&deed));
            broken.listen();
            broken.reuse();
            for node in &broken.world.nodes {
                node.manager.check().unwrap();
            }
        }
        broken.settle();
        if causes.is_empty() {
            broken.assert_done();
        } else {
            broken.assert_ended(&causes);
        }
    }
}

impl Broken {
    /// Answers why a transfer that had not ended has failed by this.
    fn apply(&mut self, deed: &Deed) -> Option<u16> {
        let from = |source: usize| source % self.outputs.len();
        let to = |sink: usize| sink % self.inputs.len();
        match *deed {
            Deed::Grant(sink, blocks) if !self.status(to(sink)).is_end() => self.grant(to(sink), blocks),
            Deed::Grant(..) => {}
            Deed::Take(sink) => self.take(to(sink)),
            Deed::Chunk(source, tokens) => self.chunk(from(source), tokens),
            Deed::Layer(source, layer) => self.layer(from(source), layer),
            Deed::Deliver(frames) => self.world.deliver_some(frames),
            Deed::Move(source, which) => self.world.end_some_move(from(source), None, which, None),
            Deed::Break(source, sink, which) => {
                let (source, at) = (from(source), self.at(to(sink)));
                self.world.end_some_move(source, Some(at), which, Some(Cause::PeerLost));
                self.world.cut(source, at);
            }
            Deed::Cut(source, sink) => self.world.cut(from(source), self.at(to(sink))),
            Deed::Join(source, sink) => self.world.join(from(source), self.at(to(sink))),
            Deed::Resume(source, sink) => drop(self.resume_one(from(source), to(sink))),
            Deed::Prove(sink) => self.world.answer_watches(self.at(to(sink))),
            Deed::End => (0..self.outputs.len()).for_each(|source| self.world.end_cut_moves(source)),
            Deed::Pass(millis) => self.world.pass_only(Duration::from_millis(millis)),
            Deed::Fail(source) => return self.fail(from(source), self.outputs[from(source)], FlowCause::SourceFailed),
            Deed::FailThere(sink) => return self.fail(self.at(to(sink)), self.inputs[to(sink)], FlowCause::SinkFailed),
            Deed::Abort(sink) if !self.status(to(sink)).is_end() => {
                // What has landed goes with it.
                self.legs[to(sink)].clear();
                return self.fail(self.at(to(sink)), self.inputs[to(sink)], FlowCause::Aborted);
            }
            Deed::Abort(_) => {}
        }
        None
    }

    fn fail(&mut self, at: usize, key: EntryKey, cause: FlowCause) -> Option<u16> {
        let (now, manager) = (self.world.now, self.world.manager(at));
        let stood = manager.status(key).is_some_and(|status| !status.is_end());
        manager.fail(key, cause, "its application says so", now);
        stood.then(|| cause.code())
    }

    /// All sessions stand and stay, and everything is computed and comes, or everybody knows why not.
    fn settle(&mut self) {
        (self.world.holds_moves, self.world.holds_watches) = (false, false);
        for round in 0..2000 {
            self.compute();
            for sink in 0..self.inputs.len() {
                self.join(sink);
                self.world.run();
                self.world.answer_watches(self.at(sink));
                for source in 0..self.outputs.len() {
                    let _ = self.resume_one(source, sink);
                    self.world.end_cut_moves(source);
                    self.world.end_moves(source);
                }
                self.world.run();
                self.take(sink);
                if !self.status(sink).is_end() {
                    self.grant(sink, 3);
                }
                self.reuse();
            }
            let sinks_end = (0..self.inputs.len()).all(|sink| self.status(sink).is_end());
            if sinks_end && (0..self.outputs.len()).all(|source| self.sent(source).is_end()) {
                return;
            }
            assert!(round < 1999, "it goes on for ever: {:?}", self.world.nodes[0].manager.metrics());
        }
    }

    /// Each side has ended once: as it had before anybody failed, or for the cause of one that did.
    fn assert_ended(&mut self, causes: &BTreeSet<u16>) {
        self.assert_told_once();
        let failures = (0..self.outputs.len()).filter_map(|at| {
            let failed = self.world.nodes[at].manager.send_failure(self.outputs[at])?;
            Some(failed.cause.code())
        });
        let told = self.told.iter().flatten().filter_map(|told| match told {
            InputEvent::Failed(failed) => Some(failed.cause.code()),
            _ => None,
        });
        let found: Vec<u16> = failures.chain(told).collect();
        assert!(!found.is_empty() && found.iter().all(|cause| causes.contains(cause)), "{found:?} of {causes:?}");
        self.release();
    }
}
