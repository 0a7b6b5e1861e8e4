//! Chunks that end inside a block, and layers that are ready up to a token, between two engines over real transports.

use std::ops::Range;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::{Gate, Input, InputEvent, Output, Receive, RequestId, Send, Status, TransferId};
use penstock::{Blocks, SystemEnv};

use crate::ends::{BLOCKS, Both, PATIENCE, TOKEN, UUID, assert_bytes, both, byte};

/// What the source's blocks have before they are computed, and the sink's before anything lands.
const GARBAGE: u8 = 0x5f;
const UNTOUCHED: u8 = 0xee;
/// For how long what must not come is waited for.
const A_WHILE: Duration = Duration::from_millis(30);

/// A transfer whose chunks end anywhere in a block of 16 tokens.
struct Course<'a> {
    both: &'a Both,
    number: u8,
    output: Output<SystemEnv>,
    input: Input<SystemEnv>,
    is_lent: bool,
    /// The blocks of the last chunk, and of all.
    last: Option<Blocks>,
    blocks: Vec<u32>,
    given: u64,
    granted: Vec<u32>,
}

impl<'a> Course<'a> {
    fn begin(both: &'a Both, number: u8, is_lent: bool, is_by_layer: bool, room: usize) -> Self {
        let Both { source, sink, there, .. } = both;
        let transfer = TransferId::mint(UUID, number.into(), 0).unwrap();
        let request = |half: &str| RequestId::new(&format!("{half}-{number}")).unwrap();
        let how = Send::from(&source.layout);
        let how = if is_by_layer { how.by_layer() } else { how };
        let how = if is_lent { how.lend() } else { how };
        let output = source.engine.produce(transfer, &request("a"), how).unwrap();
        let how = Receive::into(&sink.layout).from(0, there);
        let how = if is_lent { how.pull() } else { how };
        let input = sink.engine.consume(transfer, &request("b"), how).unwrap();
        for end in [source, sink] {
            let what = if std::ptr::eq(end, source) { GARBAGE } else { UNTOUCHED };
            let bytes = u64::from(BLOCKS) * u64::from(end.tokens) * 2 * TOKEN;
            end.pool.window().fill(0, bytes, what).unwrap();
        }
        let granted = sink.take(room);
        input.grant(&granted).unwrap();
        let granted = granted.indices().to_vec();
        Self { both, number, output, input, is_lent, last: None, blocks: Vec::new(), given: 0, granted }
    }

    /// The blocks in which the next so many tokens lie: that in which the last chunk has ended, and fresh ones.
    fn next_blocks(&self, tokens: u64) -> Blocks {
        let inside = if tokens > 0 { self.given % 16 } else { 0 };
        let needed = (inside + tokens).div_ceil(16) as usize;
        match self.last.as_ref().filter(|_| inside > 0) {
            Some(last) => {
                let begun = last.slice(last.len() - 1..last.len()).unwrap();
                begun.chain(&self.both.source.take(needed - 1)).unwrap()
            }
            None => self.both.source.take(needed),
        }
    }

    /// Gives a chunk of which no byte is computed.
    fn chunk(&mut self, tokens: u64, is_last: bool) {
        let blocks = self.next_blocks(tokens);
        self.output.chunk(&blocks, tokens, is_last).unwrap();
        self.keep(blocks, tokens);
    }

    fn keep(&mut self, blocks: Blocks, tokens: u64) {
        if tokens == 0 {
            return;
        }
        self.blocks.extend_from_slice(&blocks.indices()[usize::from(!self.given.is_multiple_of(16))..]);
        self.given += tokens;
        self.last = Some(blocks);
    }

    fn compute(&self, layer: u32, tokens: Range<u64>) {
        for token in tokens {
            let bytes: Vec<u8> = (0..TOKEN).map(|at| byte(self.number, layer, token, at)).collect();
            let block = u64::from(self.blocks[(token / 16) as usize]);
            let at = (block * 32 + u64::from(layer) * 16 + token % 16) * TOKEN;
            self.both.source.pool.window().write_from(at, &bytes).unwrap();
        }
    }

    /// What of a token of a layer is in the sink's blocks: all of it, or nothing.
    fn has(&self, layer: u32, token: u64) -> bool {
        let block = u64::from(self.granted[(token / 64) as usize]);
        let at = (block * 128 + u64::from(layer) * 64 + token % 64) * TOKEN;
        let right: [u8; TOKEN as usize] = std::array::from_fn(|at| byte(self.number, layer, token, at as u64));
        let since = Instant::now();
        loop {
            let mut found = [0; TOKEN as usize];
            self.both.sink.pool.window().read_into(at, &mut found).unwrap();
            if found == [UNTOUCHED; TOKEN as usize] {
                return false;
            }
            if found == right {
                return true;
            }
            // While it lands, a part of it may be seen.
            let is_landing = since.elapsed() < A_WHILE && found.contains(&UNTOUCHED);
            assert!(is_landing, "token {token} of layer {layer}, lent: {}: {found:?}, and not {right:?}", self.is_lent);
            std::thread::yield_now();
        }
    }

    /// So many of the first tokens of each layer come, and none behind them.
    fn comes(&self, ready: [u64; 2]) {
        let since = Instant::now();
        let is_there = |layer: u32| (0..ready[layer as usize]).all(|token| self.has(layer, token));
        while !(is_there(0) && is_there(1)) {
            assert!(since.elapsed() < PATIENCE, "{ready:?} of {} do not come", self.given);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stays(ready);
    }

    /// For a while nothing comes beyond so many of the first tokens.
    fn stays(&self, ready: [u64; 2]) {
        let since = Instant::now();
        while since.elapsed() < A_WHILE {
            for (layer, first) in [(0, ready[0]), (1, ready[1])] {
                let early = (first..self.given).find(|&token| self.has(layer, token));
                assert_eq!(early, None, "layer {layer} is ready for {first} tokens, lent: {}", self.is_lent);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.output.poll(), None);
    }

    /// All of it is there, and right, and nothing is kept of it.
    fn ends(self) {
        let tokens = self.given;
        while self.input.next(PATIENCE).unwrap() != (InputEvent::Done { tokens }) {}
        let mut layers = [0, 1].map(|buffer| vec![0; self.input.assembled_bytes(buffer, tokens).unwrap() as usize]);
        let [one, other] = &mut layers;
        self.input.assemble(&mut [one, other], tokens).unwrap();
        assert_bytes(self.number, tokens, &layers);
        self.output.wait(PATIENCE).unwrap().unwrap();
        assert_eq!((self.input.status(), self.output.status()), (Status::Success, Status::Success));
        drop((self.input, self.output, self.last));
        self.both.source.assert_nothing_is_left();
        self.both.sink.assert_nothing_is_left();
    }
}

/// A chunk is given before its layers are computed: nothing of a layer leaves before it is said to be ready, of any chunk.
fn layers_of_every_chunk_wait_until_they_are_ready(transport: TransportName) {
    let both = both(transport);
    for (number, is_lent) in [(1, false), (2, true)] {
        let mut course = Course::begin(&both, number, is_lent, true, 4);
        course.chunk(40, false);
        course.stays([0, 0]);
        course.compute(0, 0..40);
        course.output.layer(0, 40).unwrap();
        course.comes([40, 0]);
        course.compute(1, 0..40);
        course.output.layer(1, 40).unwrap();
        course.comes([40, 40]);
        let error = course.output.layer(0, 41).unwrap_err().to_string();
        assert!(error.contains("first 41 tokens") && error.contains("given 40"), "{error}");

        // The second chunk begins inside a block, and nothing of it is computed.
        course.chunk(57, false);
        course.stays([40, 40]);
        course.output.layer(0, 3).unwrap();
        course.output.layer(1, 40).unwrap();
        course.stays([40, 40]);
        course.compute(0, 40..90);
        course.output.layer(0, 90).unwrap();
        // Of what is lent, a sink is told of tokens that are ready in both layers, as it knows both.
        if is_lent {
            course.stays([40, 40])
        } else {
            course.comes([90, 40])
        }
        course.compute(1, 40..97);
        course.output.layer(1, 97).unwrap();
        if is_lent {
            course.comes([90, 90])
        } else {
            course.comes([90, 97])
        }
        course.chunk(0, true);
        course.compute(0, 90..97);
        course.output.layer(0, 97).unwrap();
        course.ends();
    }
}

#[test]
fn layers_of_every_chunk_wait_until_they_are_ready_within_a_process() {
    layers_of_every_chunk_wait_until_they_are_ready(TransportName::Local);
}

#[test]
fn layers_of_every_chunk_wait_until_they_are_ready_over_mapped_pools() {
    layers_of_every_chunk_wait_until_they_are_ready(TransportName::Shm);
}

#[test]
fn layers_of_every_chunk_wait_until_they_are_ready_over_sockets() {
    layers_of_every_chunk_wait_until_they_are_ready(TransportName::Tcp);
}

/// Each chunk has a gate of its own in front of its layers.
fn every_gate_of_a_layer_holds_its_own_tokens_back(transport: TransportName) {
    let both = both(transport);
    for (number, is_lent) in [(1, false), (2, true)] {
        let mut course = Course::begin(&both, number, is_lent, true, 4);
        let gates: Vec<Gate<SystemEnv>> = (0..3).map(|_| Gate::shut(&both.source.engine).unwrap()).collect();
        let mut ends = vec![0];
        let sizes = [24, 50, 9];
        for (place, gate) in gates.iter().enumerate() {
            // The first two stand in front of their chunks before anything is ready, the last one when something is.
            while ends.len() <= (place + 1).max(2) {
                let (tokens, gate) = (sizes[ends.len() - 1], &gates[ends.len() - 1]);
                course.chunk(tokens, false);
                for layer in [0, 1] {
                    course.output.layer_after(layer, course.given, gate).unwrap();
                    let error = course.output.layer_after(layer, course.given + 1, gate).unwrap_err().to_string();
                    assert!(error.contains(&format!("given {}", course.given)), "{error}");
                }
                ends.push(course.given);
            }
            course.stays([ends[place]; 2]);
            (0..2).for_each(|layer| course.compute(layer, ends[place]..ends[place + 1]));
            gate.open();
            course.comes([ends[place + 1]; 2]);
        }
        // A gate that is gone after it was opened ends nothing.
        drop(gates);
        course.chunk(0, true);
        course.ends();
    }
}

#[test]
fn every_gate_of_a_layer_holds_its_own_tokens_back_within_a_process() {
    every_gate_of_a_layer_holds_its_own_tokens_back(TransportName::Local);
}

#[test]
fn every_gate_of_a_layer_holds_its_own_tokens_back_over_mapped_pools() {
    every_gate_of_a_layer_holds_its_own_tokens_back(TransportName::Shm);
}

#[test]
fn every_gate_of_a_layer_holds_its_own_tokens_back_over_sockets() {
    every_gate_of_a_layer_holds_its_own_tokens_back(TransportName::Tcp);
}

#[test]
fn layers_that_go_with_their_chunk_are_not_said_to_be_ready_later() {
    let both = both(TransportName::Local);
    for (number, is_lent) in [(1, false), (2, true)] {
        let mut course = Course::begin(&both, number, is_lent, false, 1);
        let gate = Gate::shut(&both.source.engine).unwrap();
        let blocks = course.next_blocks(20);
        course.blocks = blocks.indices().to_vec();
        (0..2).for_each(|layer| course.compute(layer, 0..20));
        course.blocks.clear();
        course.output.chunk(&blocks, 20, true).unwrap();
        course.keep(blocks, 20);
        let refused = [course.output.layer(0, 20), course.output.layer_after(1, 20, &gate)];
        for error in refused.map(|refused| refused.unwrap_err().to_string()) {
            assert!(error.contains("go by themselves") && error.contains("`Send::by_layer`"), "{error}");
        }
        course.ends();
    }
}

/// Chunks of all sizes against blocks of 16 tokens: where the bytes lie is where the list says, and any other list is refused.
fn a_chunk_that_begins_inside_a_block_names_it_again(transport: TransportName) {
    let both = both(transport);
    for (number, is_lent) in [(1, false), (2, true)] {
        let mut course = Course::begin(&both, number, is_lent, false, 8);
        let sizes = [20, 1, 11, 16, 5, 0, 3, 100, 7, 40, 130, 17];
        for (place, tokens) in sizes.into_iter().enumerate() {
            let blocks = course.next_blocks(tokens);
            let (inside, given) = (course.given % 16, course.given);
            // One fresh block too many, one too few, and what somebody names who takes fresh blocks for each chunk.
            let fresh = both.source.take(blocks.len() + 1);
            let many = blocks.chain(&fresh.slice(0..1).unwrap()).unwrap();
            let error = course.output.chunk(&many, tokens, false).unwrap_err().to_string();
            let numbers = |given: usize| format!("lies in {} blocks, and {given} were named", blocks.len());
            assert!(error.contains(&numbers(blocks.len() + 1)), "{error}");
            if tokens > 0 {
                let few = blocks.slice(0..blocks.len() - 1).unwrap();
                let error = course.output.chunk(&few, tokens, false).unwrap_err().to_string();
                assert!(error.contains(&numbers(blocks.len() - 1)), "{error}");
            }
            if tokens > 0 && inside > 0 {
                let naive = fresh.slice(0..tokens.div_ceil(16) as usize).unwrap();
                let error = course.output.chunk(&naive, tokens, false).unwrap_err().to_string();
                let begun = blocks.indices()[0];
                assert!(error.contains(&format!("{inside} tokens into block {begun}")), "{error}");
                assert!(error.contains(&format!("block {} was named first", naive.indices()[0])), "{error}");
            }
            let free = both.source.pool.memory().blocks().free();
            drop((fresh, many));
            let back = both.source.pool.memory().blocks().free();
            assert_eq!(back, free + blocks.len() + 1, "nothing of what was refused is kept");
            // Before the chunk is given, as its layers go with it.
            let before = course.blocks.len();
            course.blocks.extend_from_slice(&blocks.indices()[usize::from(inside > 0 && tokens > 0)..]);
            (0..2).for_each(|layer| course.compute(layer, given..given + tokens));
            course.blocks.truncate(before);
            course.output.chunk(&blocks, tokens, place + 1 == sizes.len()).unwrap();
            course.keep(blocks, tokens);
        }
        course.ends();
    }
}

#[test]
fn a_chunk_that_begins_inside_a_block_names_it_again_within_a_process() {
    a_chunk_that_begins_inside_a_block_names_it_again(TransportName::Local);
}

#[test]
fn a_chunk_that_begins_inside_a_block_names_it_again_over_mapped_pools() {
    a_chunk_that_begins_inside_a_block_names_it_again(TransportName::Shm);
}

#[test]
fn a_chunk_that_begins_inside_a_block_names_it_again_over_sockets() {
    a_chunk_that_begins_inside_a_block_names_it_again(TransportName::Tcp);
}

#[test]
fn a_block_that_two_chunks_name_is_kept_for_both_until_nothing_reads_it() {
    let both = both(TransportName::Shm);
    for (number, is_lent) in [(1, false), (2, true)] {
        let mut course = Course::begin(&both, number, is_lent, true, 1);
        course.chunk(8, false);
        course.chunk(8, false);
        let kept = course.last.take().unwrap().get(0).unwrap();
        let holders = || both.source.pool.memory().blocks().holders(kept);
        assert_eq!(holders(), Ok(2), "each of the two chunks holds it");
        (0..2).for_each(|layer| course.compute(layer, 0..8));
        (0..2).for_each(|layer| course.output.layer(layer, 8).unwrap());
        course.comes([8, 8]);
        assert_eq!(holders(), Ok(2), "what of it was sent lets nothing go");
        assert!(course.output.abort(PATIENCE), "nothing reads it any more");
        drop((course.output, course.input));
        both.source.assert_all_free();
        both.sink.assert_all_free();
    }
}
