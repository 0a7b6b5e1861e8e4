//! What a source gives and says to be ready, against a naive model: nothing of a layer leaves before it is ready, and a chunk lies where its
//! list of blocks says.

use penstock_flows::manager::{CallError, GateId, Sinks};
use penstock_flows::{FlowCause, LegError, Status};
use penstock_session::transfers::table::EntryKey;
use proptest::prelude::*;

use crate::managers::World;

/// Layers of [`crate::managers::news`].
const LAYERS: u32 = 3;
/// What the source's memory has before it is computed. No right byte is even.
const GARBAGE: u8 = 0x5e;
const SINK_BLOCK: u32 = 8;

/// A transfer between two transfer managers, and what a caller knows of it.
struct Course {
    world: World,
    output: EntryKey,
    input: EntryKey,
    source_block: u64,
    is_by_layer: bool,
    is_lent: bool,
    /// The source's blocks, in the order of tokens: more than are given so far.
    blocks: Vec<u32>,
    given: u64,
    total: Option<u64>,
    /// For how many of the first tokens each layer is ready.
    ready: [u64; LAYERS as usize],
    /// For how many tokens gates in front of it were opened, behind one that is shut.
    opened: [Vec<u64>; LAYERS as usize],
    /// Gates that are not open: what waits for each.
    gates: Vec<(GateId, Vec<(u32, u64)>)>,
    /// Legs: the first token, the blocks, how many tokens of the first are skipped.
    legs: Vec<(u64, Vec<u32>, u32)>,
    granted: u64,
    free: Vec<u32>,
}

impl Course {
    fn new(source_block: u32, is_by_layer: bool, is_lent: bool) -> Self {
        let mut world = World::new(&[(0, 1, source_block), (0, 1, SINK_BLOCK)]);
        let output = world.produce(0, 1, |produce| {
            (produce.is_lent, produce.is_by_layer, produce.sinks) = (is_lent, is_by_layer, Sinks::Sharing(1));
        });
        let input = world.consume(1, 1, &[0], |consume| consume.is_pull = is_lent);
        world.run();
        for block in 0..63 {
            world.each_byte_of(0, block, |byte| *byte = GARBAGE);
        }
        Self {
            world,
            output,
            input,
            source_block: source_block.into(),
            is_by_layer,
            is_lent,
            // In no order, so that what follows in tokens does not follow in memory.
            blocks: (0..62).map(|place| place * 23 % 62).collect(),
            given: 0,
            total: None,
            ready: [0; LAYERS as usize],
            opened: Default::default(),
            gates: Vec::new(),
            legs: Vec::new(),
            granted: 0,
            free: (0..62).map(|place| place * 17 % 62).collect(),
        }
    }

    /// The blocks in which the next so many tokens lie.
    fn next_blocks(&self, tokens: u64) -> Vec<u32> {
        let (from, end) = (self.given / self.source_block, (self.given + tokens).div_ceil(self.source_block));
        if tokens == 0 { Vec::new() } else { self.blocks[from as usize..end as usize].to_vec() }
    }

    fn chunk(&mut self, tokens: u64, is_last: bool) {
        let blocks = self.next_blocks(tokens);
        if !self.is_by_layer {
            let all = self.blocks.clone();
            self.world.compute(0, &all, None, self.given..self.given + tokens);
        }
        self.world.give(0, self.output, (&blocks, tokens), is_last).unwrap();
        self.given += tokens;
        self.total = is_last.then_some(self.given);
        if !self.is_by_layer {
            self.ready = [self.given; LAYERS as usize];
        }
    }

    /// A list that is not that of the next tokens changes nothing.
    fn wrong_chunk(&mut self, tokens: u64, how: u8) {
        let right = self.next_blocks(tokens);
        let (inside, mut wrong) = (self.given % self.source_block, right.clone());
        let (needed, fresh) = (right.len() as u64, 62);
        let blocks = |given: u64| LegError::ChunkBlocks { tokens, inside, needed, given };
        let begins = |found: u32| LegError::ChunkBegins { inside, expected: right[0], found };
        let is_begun = inside > 0 && tokens > 0;
        let error = match how {
            0 => {
                wrong.push(fresh);
                blocks(needed + 1)
            }
            1 if tokens > 0 => {
                wrong.pop();
                blocks(needed - 1)
            }
            // What somebody names who takes fresh blocks for each chunk.
            2 if is_begun => {
                wrong[0] = fresh;
                begins(fresh)
            }
            3 if is_begun && needed > 1 => {
                wrong.remove(0);
                begins(wrong[0])
            }
            4 if needed > 1 => {
                wrong[1] = wrong[0];
                LegError::BlockTwice { block: wrong[0] }
            }
            5 if self.given > 0 && needed > u64::from(is_begun) => {
                let given = self.blocks[0];
                *wrong.last_mut().unwrap() = given;
                // A transfer that has given a part of one block only goes on in it.
                LegError::BlockTwice { block: given }
            }
            6 if tokens > 0 => {
                *wrong.last_mut().unwrap() = 64;
                LegError::NoSuchBlock { block: 64, blocks: 64 }
            }
            _ => return,
        };
        assert_eq!(self.world.give(0, self.output, (&wrong, tokens), false), Err(error.into()), "{wrong:?}");
    }

    fn layer(&mut self, layer: u32, tokens: u64) {
        let expected = self.expected(layer, tokens);
        if expected.is_ok() {
            self.compute(layer, tokens);
            self.settle(layer);
        }
        let now = self.world.now;
        assert_eq!(self.world.manager(0).layer(self.output, layer, tokens, now), expected);
    }

    /// Computes a layer, which is ready with that.
    fn compute(&mut self, layer: u32, tokens: u64) {
        let (all, ready) = (self.blocks.clone(), &mut self.ready[layer as usize]);
        if *ready < tokens {
            self.world.compute(0, &all, Some(layer), *ready..tokens);
            *ready = tokens;
        }
    }

    /// What was opened is ready when no gate before it is shut.
    fn settle(&mut self, layer: u32) {
        let ready = self.ready[layer as usize];
        let waiting = self.gates.iter().flat_map(|(_, waiting)| waiting);
        let shut = waiting.filter(|(of, tokens)| *of == layer && *tokens > ready).map(|(_, tokens)| *tokens).min();
        let opened = self.opened[layer as usize].iter().copied();
        if let Some(tokens) = opened.filter(|tokens| shut.is_none_or(|shut| *tokens < shut)).max() {
            self.compute(layer, tokens);
        }
    }

    fn expected(&self, layer: u32, tokens: u64) -> Result<(), CallError> {
        let given = self.given;
        let error = match () {
            () if !self.is_by_layer => LegError::NotByLayer,
            () if layer >= LAYERS => LegError::NoSuchLayer { layer, layers: LAYERS },
            () if tokens > given => LegError::LayerAhead { layer, tokens, given },
            () => return Ok(()),
        };
        Err(error.into())
    }

    /// A gate in front of a layer: a new one, or one that others wait for too.
    fn fence(&mut self, layer: u32, tokens: u64, gate: usize) {
        if gate >= self.gates.len() {
            let id = self.world.manager(0).add_gate().unwrap();
            self.gates.push((id, Vec::new()));
        }
        let place = gate % self.gates.len();
        let (id, now, expected) = (self.gates[place].0, self.world.now, self.expected(layer, tokens));
        assert_eq!(self.world.manager(0).layer_after(self.output, (layer, tokens), id, now), expected);
        if expected.is_ok() {
            self.gates[place].1.push((layer, tokens));
        }
    }

    fn open(&mut self, gate: usize) {
        if self.gates.is_empty() {
            return;
        }
        let (gate, waiting) = self.gates.remove(gate % self.gates.len());
        for (layer, tokens) in waiting {
            self.opened[layer as usize].push(tokens);
            self.settle(layer);
        }
        self.world.handle(0, penstock_flows::Event::Gate { gate });
        // Nothing waits for it any more, so nothing ends with it.
        let now = self.world.now;
        self.world.manager(0).remove_gate(gate, now);
    }

    /// A gate of which all that waits for it is ready by another way goes without an effect.
    fn forget(&mut self, gate: usize) {
        let is_needless = |(_, waiting): &(GateId, Vec<(u32, u64)>)| {
            waiting.iter().all(|&(layer, tokens)| self.ready[layer as usize] >= tokens)
        };
        let places: Vec<usize> = (0..self.gates.len()).filter(|&at| is_needless(&self.gates[at])).collect();
        if let Some(&place) = places.get(gate % places.len().max(1)) {
            let (gate, now) = (self.gates.remove(place).0, self.world.now);
            self.world.manager(0).remove_gate(gate, now);
        }
    }

    fn grant(&mut self, blocks: usize, skip: u32) {
        let has_ended = self.world.manager(1).status(self.input).is_some_and(Status::is_end);
        if has_ended || blocks > self.free.len() {
            return;
        }
        let blocks: Vec<u32> = self.free.drain(..blocks).collect();
        self.world.grant_skipping(1, self.input, &blocks, skip);
        let room = blocks.len() as u64 * u64::from(SINK_BLOCK) - u64::from(skip);
        self.legs.push((self.granted, blocks, skip));
        self.granted += room;
    }

    /// A byte at the sink is the right one, or nothing has come; and it has not if its layer is not ready for its token. What is pushed has
    /// come where it is ready and granted, if everything that is wanted is done.
    fn look(&mut self, is_still: bool) {
        let (ready, given) = (self.ready, self.given);
        let legs = self.legs.clone();
        for (place, (from, blocks, skip)) in legs.iter().enumerate() {
            let end = legs.get(place + 1).map_or(self.granted, |next| next.0);
            for (token, layer) in (*from..end).flat_map(|token| (0..LAYERS).map(move |layer| (token, layer))) {
                let at = u64::from(*skip) + token - from;
                let (mut right, mut nothing, mut wrong) = (0, 0, 0);
                self.world.each_byte_at(1, blocks, Some(layer), (at, token), |memory, at, value| match memory[at] {
                    0 => nothing += 1,
                    found if found == value => right += 1,
                    _ => wrong += 1,
                });
                let is_ready = token < given && token < ready[layer as usize];
                let which = format!("token {token} of layer {layer}, ready for {ready:?} of {given}");
                assert_eq!(wrong, 0, "wrong bytes of {which}");
                assert!(is_ready || right == 0, "{which} came before it was ready");
                assert!(!(is_ready && is_still && !self.is_lent) || nothing == 0, "{which} did not come");
            }
        }
    }

    /// Everything is computed and comes.
    fn finish(&mut self) {
        if self.total.is_none() {
            self.chunk(3, true);
        }
        while !self.gates.is_empty() {
            self.open(0);
        }
        if self.is_by_layer {
            (0..LAYERS).for_each(|layer| self.layer(layer, self.given));
        }
        let missing = self.given.saturating_sub(self.granted).div_ceil(SINK_BLOCK.into()) as usize;
        if missing > 0 || self.legs.is_empty() {
            self.grant(missing.max(1), 0);
        }
        self.world.run();
        self.look(true);
        let at_the_sink = self.world.manager(1).status(self.input);
        assert_eq!(
            (self.world.manager(0).status(self.output), at_the_sink),
            (Some(Status::Success), Some(Status::Success))
        );
        let legs = self.legs.clone();
        for (place, (from, blocks, skip)) in legs.iter().enumerate() {
            let end = legs.get(place + 1).map_or(self.granted, |next| next.0).min(self.given);
            for token in *from..end {
                let at = u64::from(*skip) + token - from;
                self.world.each_byte_at(1, blocks, None, (at, token), |memory, at, value| {
                    assert_eq!(memory[at], value, "token {token} of leg {place}");
                });
            }
        }
        // Of what has everything already, a layer may be said again.
        if self.is_by_layer {
            self.layer(1, self.given);
        }
        for leg in self.world.manager(1).landed_legs(self.input) {
            let now = self.world.now;
            self.world.manager(1).taken(self.input, leg, now).unwrap();
        }
        let now = self.world.now;
        self.world.manager(0).release(self.output, now);
        self.world.manager(1).release(self.input, now);
        self.world.assert_nothing_is_left();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Chunk(u64, bool),
    Wrong(u64, u8),
    Layer(u32, u64),
    Fence(u32, u64, usize),
    Open(usize),
    Forget(usize),
    Grant(usize, u32),
    Run,
    Some(usize),
}

fn step() -> impl Strategy<Value = Step> {
    // How far a layer is ready is a part of what is given, in percent: a little more than all of it is an error.
    prop_oneof![
        6 => (0_u64..40, prop::bool::weighted(0.1)).prop_map(|(tokens, is_last)| Step::Chunk(tokens, is_last)),
        3 => (0_u64..40, 0_u8..7).prop_map(|(tokens, how)| Step::Wrong(tokens, how)),
        6 => (0_u32..4, 0_u64..110).prop_map(|(layer, percent)| Step::Layer(layer, percent)),
        5 => (0_u32..4, 0_u64..110, 0_usize..4).prop_map(|(layer, percent, gate)| Step::Fence(layer, percent, gate)),
        4 => (0_usize..4).prop_map(Step::Open),
        1 => (0_usize..4).prop_map(Step::Forget),
        3 => (1_usize..9, 0_u32..SINK_BLOCK).prop_map(|(blocks, skip)| Step::Grant(blocks, skip)),
        4 => Just(Step::Run),
        3 => (1_usize..4).prop_map(Step::Some),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Chunks end anywhere in a block, and layers are ready up to any token, in any order with grants and fences.
    #[test]
    fn no_byte_of_a_layer_leaves_before_it_is_ready(
        source_block in prop_oneof![Just(4_u32), Just(7), Just(16)],
        (is_by_layer, is_lent) in (prop::bool::weighted(0.8), any::<bool>()),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut course = Course::new(source_block, is_by_layer, is_lent);
        for step in steps {
            let is_run = matches!(step, Step::Run);
            match step {
                Step::Chunk(tokens, is_last) if course.total.is_none() && course.given + tokens < 220 => {
                    course.chunk(tokens, is_last);
                }
                Step::Wrong(tokens, how) if course.total.is_none() && course.given + tokens < 220 => {
                    course.wrong_chunk(tokens, how);
                }
                Step::Layer(layer, percent) => course.layer(layer, (course.given * percent).div_ceil(100)),
                Step::Fence(layer, percent, gate) => {
                    course.fence(layer, (course.given * percent).div_ceil(100), gate);
                }
                Step::Open(gate) => course.open(gate),
                Step::Forget(gate) => course.forget(gate),
                Step::Grant(blocks, skip) if course.legs.len() < 6 => course.grant(blocks, skip),
                Step::Some(frames) => course.world.deliver_some(frames),
                Step::Run => course.world.run(),
                _ => {}
            }
            course.look(is_run);
        }
        course.finish();
    }
}

/// A gate for each chunk: what was opened says nothing about later chunks.
#[test]
fn each_fence_of_a_layer_opens_its_own_tokens() {
    for is_lent in [false, true] {
        let mut course = Course::new(16, true, is_lent);
        course.grant(20, 0);
        course.chunk(20, false);
        (0..LAYERS).for_each(|layer| course.fence(layer, 20, 0));
        course.chunk(30, false);
        (0..LAYERS).for_each(|layer| course.fence(layer, 50, 1));
        course.chunk(13, true);
        (0..LAYERS).for_each(|layer| course.fence(layer, 63, 2));
        course.world.run();
        course.look(true);
        for received in [20, 50] {
            course.open(0);
            course.world.run();
            course.look(true);
            let there = course.world.manager(1).received(course.input).unwrap();
            assert!(is_lent || there == received, "{there} tokens are there, not {received}");
            for token in 0..received {
                let blocks = course.legs[0].1.clone();
                course.world.each_byte_at(1, &blocks, Some(2), (token, token), |memory, at, value| {
                    assert_eq!(memory[at], value, "token {token}, lent: {is_lent}");
                });
            }
        }
        course.finish();
    }
}

/// The later chunk's fence may be opened first: it waits for the one before, and for no other word.
#[test]
fn a_fence_that_is_dropped_behind_one_that_was_opened_ends_nothing() {
    for is_lent in [false, true] {
        let mut course = Course::new(4, true, is_lent);
        course.chunk(6, false);
        course.fence(0, 6, 0);
        course.chunk(5, false);
        course.fence(0, 11, 1);
        course.open(1);
        assert_eq!(course.ready[0], 0);
        course.layer(0, 6);
        assert_eq!(course.ready[0], 11);
        course.forget(0);
        assert!(course.gates.is_empty());
        course.finish();
        // The one in front of what is not ready ends it, with the tokens and the layer in its words.
        let mut course = Course::new(4, true, is_lent);
        course.chunk(6, false);
        course.layer(1, 5);
        course.fence(1, 6, 0);
        let (gate, now) = (course.gates[0].0, course.world.now);
        course.world.manager(0).remove_gate(gate, now);
        let failed = course.world.manager(0).send_failure(course.output).cloned().unwrap();
        assert_eq!(failed.cause, FlowCause::SourceFailed);
        assert!(failed.words.contains("the first 6 tokens of layer 1"), "{}", failed.words);
        let ended = CallError::Leg(LegError::Ended(FlowCause::SourceFailed));
        assert_eq!(course.world.manager(0).layer(course.output, 1, 6, now), Err(ended));
    }
}

/// Both numbers, and what to do.
#[test]
fn what_is_refused_is_said_with_both_numbers_and_with_what_to_do() {
    let mut course = Course::new(16, true, false);
    course.chunk(20, false);
    let now = course.world.now;
    let manager = course.world.manager(0);
    let error = manager.layer(course.output, 1, 21, now).unwrap_err().to_string();
    assert!(error.contains("first 21 tokens") && error.contains("have given 20"), "{error}");
    let [one, begun] = [course.blocks[2], course.blocks[1]];
    let error =
        manager.chunk(course.output, (&[one], 16), false, penstock_flows::BlocksRef(9), now).unwrap_err().to_string();
    assert!(error.contains(&format!("4 tokens into block {begun}")), "{error}");
    assert!(error.contains(&format!("block {one} was named first")), "{error}");
    let error =
        manager.chunk(course.output, (&[begun], 16), false, penstock_flows::BlocksRef(9), now).unwrap_err().to_string();
    assert!(
        error.contains("16 tokens that begins 4 tokens into a block lies in 2 blocks, and 1 were named"),
        "{error}"
    );
    let mut course = Course::new(16, false, false);
    course.chunk(20, true);
    let error = course.world.manager(0).layer(course.output, 0, 20, now).unwrap_err().to_string();
    assert!(error.contains("Send::by_layer"), "{error}");
}
