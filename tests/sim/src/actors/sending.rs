//! The half of a case that has the bytes: it takes blocks, computes what the course says, and gives it.
//!
//! Where layers go by themselves a chunk is given before it is computed: its bytes are written when the course says so, a layer of a chunk
//! at a time, and what is told of it first.

use penstock::flows::{CallError, FlowError, Gate, LegError, Output, Send};
use penstock::memory::BlockId;
use penstock::{Blocks, Timestamp};

use super::{Actor, Course, Doing, End, KEPT_FOR, end_error};
use crate::deed::{Case, Script};
use crate::env::SimEnv;
use crate::oracle::{Invariant, UNREADY, Violated, byte};
use crate::random::Random;
use crate::stage::{LAYERS, ONCE_BYTES, ROW_BYTES, Seat, Stage};

pub(super) struct Sending {
    pub(super) output: Output<SimEnv>,
    /// The blocks of tokens that were not given yet. The first of them may have others, too.
    rest: Blocks,
    /// The blocks of all tokens.
    indices: Vec<u32>,
    given: u64,
    chunks_given: u64,
    /// So many chunks are computed, and told of, in each layer.
    ready: [u64; LAYERS],
    /// Fences that are shut: in which layer, in front of which chunk.
    gates: Vec<(usize, u64, Gate<SimEnv>)>,
    /// What its engine was given of its memory since it was last looked.
    pub(super) ids: Vec<BlockId>,
    /// What it gave last, for a while.
    pub(super) kept: Option<(Blocks, Timestamp)>,
}

/// So many tokens are there with this chunk.
fn until(spec: &Case, chunk: u64) -> u64 {
    spec.tokens * chunk / spec.chunks
}

impl Actor {
    pub(super) fn begin_sending(
        &self,
        script: &Script,
        rank: u16,
        stage: &mut Stage<'_>,
    ) -> Result<Option<Doing>, Violated> {
        let (sources, sinks) = script.sides(self.case);
        let now = stage.world.now();
        let seat = &mut stage.seats[self.seat];
        let count = self.spec.tokens.div_ceil(u64::from(seat.player().block_tokens)) as usize;
        let extra = usize::from(seat.player().has_once);
        let Some(all) = seat.take(count + extra, UNREADY, now)? else { return Ok(None) };
        let slice = |places| all.slice(places).expect("as many were taken");
        let (rest, once) = (slice(0..count), (extra > 0).then(|| slice(count..count + 1)));
        drop(all);
        let indices = rest.indices().to_vec();
        let node = seat.node().expect("it lives");
        let how = Send::from(seat.layout().expect("it lives"))
            .rank(rank, sources.len() as u16)
            .to(sinks.len() as u16)
            .within(self.spec.within);
        let how = if self.spec.is_by_layer { how.by_layer() } else { how };
        let how = if self.spec.is_pull { how.lend() } else { how };
        let how = if self.spec.is_resumable { how.resumable() } else { how };
        let how = match self.spec.lease {
            Some(ttl) => how.lease(ttl),
            None => how,
        };
        let how = match &once {
            Some(block) => {
                let at = seat.player().once_at(block.indices()[0]);
                let bytes = once_bytes(self.case, node.epoch().0);
                seat.region()
                    .expect("it lives")
                    .host()
                    .unwrap()
                    .write_from(at, &bytes)
                    .expect("a block is in its region");
                how.once(block)
            }
            None => how,
        };
        let output = node.produce(self.transfer, &self.request, how).map_err(|error| self.refused(&error))?;
        let sending = Sending {
            output,
            rest,
            indices,
            given: 0,
            chunks_given: 0,
            ready: [0; LAYERS],
            gates: Vec::new(),
            ids: once.iter().flat_map(Blocks::ids).collect(),
            kept: None,
        };
        Ok(Some(Doing::Sending(sending)))
    }
}

/// What goes once for a case.
pub(super) fn once_bytes(case: usize, epoch: u64) -> Vec<u8> {
    (0..ONCE_BYTES).map(|at| byte(case, epoch, LAYERS, 0, 0, at)).collect()
}

impl Sending {
    pub(super) fn turn(
        &mut self,
        (case, spec): (usize, &Case),
        course: &Course,
        end: &mut Option<End>,
        stage: &mut Stage<'_>,
        seat: usize,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        match self.output.poll() {
            None if end.is_none() => {}
            None => return Err(end_error(format!("case {case} had ended at its source, and has not"))),
            Some(result) => {
                let failure = result.err().map(|failed| format!("{:?}: {}", failed.cause, failed.words));
                let at = end.as_ref().map_or(now, |end| end.at);
                *end = Some(End { at, failure });
                self.kept = None;
                return Ok(());
            }
        }
        if self.kept.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.kept = None;
        }
        while self.chunks_given < course.chunks.min(spec.chunks) {
            if self.given > 0 && random.once_in(3) {
                self.give_wrongly(case, spec, &mut stage.seats[seat], now, random)?;
            }
            self.give(case, spec, &stage.seats[seat], now, random);
            if spec.is_by_layer && spec.has_fences {
                self.shut_gates(spec, course, &stage.seats[seat]);
            }
        }
        if spec.is_by_layer {
            self.compute(case, spec, course, &stage.seats[seat]);
        }
        Ok(())
    }

    /// Gives the next chunk.
    fn give(&mut self, case: usize, spec: &Case, seat: &Seat, now: Timestamp, random: &mut Random) {
        self.chunks_given += 1;
        let (begin, end) = (self.given, until(spec, self.chunks_given));
        if !spec.is_by_layer {
            (0..LAYERS).for_each(|layer| self.write(case, layer, begin..end, seat));
        }
        let size = u64::from(seat.player().block_tokens);
        let (first, last) = (begin / size, end.div_ceil(size));
        let slice = |places| self.rest.slice(places).expect("there are blocks for all tokens");
        // A block that was begun is named again.
        let its = slice(0..if end > begin { (last - first) as usize } else { 0 });
        let rest = slice((end / size - first) as usize..self.rest.len());
        self.rest = rest;
        self.ids.extend(its.ids());
        self.given = end;
        // It may have ended since it was looked at.
        let is_given = self.output.chunk(&its, end - begin, self.chunks_given == spec.chunks).is_ok();
        if is_given && !its.is_empty() && random.once_in(4) {
            self.kept = Some((its, now + KEPT_FOR));
        }
    }

    /// Blocks in which the next chunk does not lie are refused: others where it goes on in one that was begun, and more than it needs.
    fn give_wrongly(
        &mut self,
        case: usize,
        spec: &Case,
        seat: &mut Seat,
        now: Timestamp,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let size = u64::from(seat.player().block_tokens);
        let (begin, end) = (self.given, until(spec, self.chunks_given + 1));
        let surplus = if begin % size == 0 || random.once_in(2) { 1 } else { 0 };
        let count = (end - begin).div_ceil(size) + surplus;
        if end == begin {
            return Ok(());
        }
        let Some(others) = seat.take(count as usize, UNREADY, now)? else { return Ok(()) };
        match self.output.chunk(&others, end - begin, self.chunks_given + 1 == spec.chunks) {
            Err(FlowError::Call(CallError::Leg(LegError::ChunkBlocks { .. } | LegError::ChunkBegins { .. }))) => Ok(()),
            // It may have ended since it was looked at.
            Err(_) if self.output.status().is_end() => Ok(()),
            Err(error) => Err(end_error(format!("case {case}: blocks that are not a chunk's are refused: {error}"))),
            Ok(()) => {
                let words = format!(
                    "case {case}: {count} blocks are taken for tokens {begin} to {end} of {size} a block, which do not lie there"
                );
                Err(Violated::new(Invariant::BytesAreTheirOwn, words))
            }
        }
    }

    /// A fence in front of what is not computed yet of the chunk that was given last.
    fn shut_gates(&mut self, spec: &Case, course: &Course, seat: &Seat) {
        let node = seat.node().expect("it lives");
        for layer in (0..LAYERS).filter(|&layer| course.layers[layer] < self.chunks_given) {
            let Ok(gate) = Gate::shut(node) else { return };
            // It may have ended since it was looked at.
            let _ = self.output.layer_after(layer as u32, until(spec, self.chunks_given), &gate);
            self.gates.push((layer, self.chunks_given, gate));
        }
    }

    /// Computes what the course says of chunks that were given, and tells of it.
    fn compute(&mut self, case: usize, spec: &Case, course: &Course, seat: &Seat) {
        for layer in 0..LAYERS {
            while self.ready[layer] < course.layers[layer].min(self.chunks_given) {
                let (begin, end) = (until(spec, self.ready[layer]), until(spec, self.ready[layer] + 1));
                self.write(case, layer, begin..end, seat);
                self.ready[layer] += 1;
                let its = (layer, self.ready[layer]);
                match self.gates.iter().position(|(layer, chunk, _)| (*layer, *chunk) == its) {
                    Some(at) => self.gates.swap_remove(at).2.open(),
                    // It may have ended since it was looked at.
                    None => drop(self.output.layer(layer as u32, end)),
                }
            }
        }
    }

    /// Computes some tokens of a layer.
    fn write(&self, case: usize, layer: usize, tokens: std::ops::Range<u64>, seat: &Seat) {
        let (rows, epoch) = (seat.player().rows(), seat.node().expect("it lives").epoch().0);
        let size = u64::from(seat.player().block_tokens);
        for token in tokens {
            let block = self.indices[(token / size) as usize];
            for row in 0..rows.count {
                let bytes: [u8; ROW_BYTES as usize] =
                    std::array::from_fn(|at| byte(case, epoch, layer, token, rows.first + row, at as u32));
                seat.write_row((block, layer), (token % size) as u32, row, &bytes);
            }
        }
    }
}
