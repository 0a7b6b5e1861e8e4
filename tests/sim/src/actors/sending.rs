//! The half of a case that has the bytes: it takes blocks, computes what the course says, and gives it.

use penstock::flows::{Output, Send};
use penstock::{Blocks, Pool};

use super::{Actor, Course, Doing, End, end_error};
use crate::deed::{Case, Script};
use crate::env::SimEnv;
use crate::oracle::{UNREADY, Violated, byte};
use crate::stage::{LAYERS, ROW_BYTES, Seat, Stage};

pub(super) struct Sending {
    pub(super) output: Output<SimEnv>,
    /// Blocks that were not given in a chunk yet.
    pub(super) blocks: Vec<Blocks>,
    /// The block in which the last chunk has ended, if it has not filled it.
    begun: Option<Blocks>,
    /// The blocks of all tokens.
    pub(super) indices: Vec<u32>,
    pub(super) given: u64,
    pub(super) chunks_given: u64,
    pub(super) ready: [bool; LAYERS],
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
        let Some(all) = seat.take(count, UNREADY, now)? else { return Ok(None) };
        let mut indices = all.indices().to_vec();
        drop(all);
        // One by one, so that each chunk has its own.
        let pool = seat.pool().expect("it lives");
        let blocks: Vec<Blocks> = (0..count).map(|_| pool.take(1).expect("it was let go just now")).collect();
        indices.clear();
        indices.extend(blocks.iter().map(|block| block.indices()[0]));
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
        let output = node.produce(self.transfer, &self.request, how).map_err(|error| self.refused(&error))?;
        let ready = [!self.spec.is_by_layer; LAYERS];
        let sending = Sending { output, blocks, begun: None, indices, given: 0, chunks_given: 0, ready };
        Ok(Some(Doing::Sending(sending)))
    }
}

impl Sending {
    pub(super) fn turn(
        &mut self,
        case: usize,
        spec: &Case,
        course: &Course,
        end: &mut Option<End>,
        stage: &Stage<'_>,
        seat: usize,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        match self.output.poll() {
            None if end.is_none() => {}
            None => return Err(end_error(format!("case {case} had ended at its source, and has not"))),
            Some(result) => {
                let failure = result.err().map(|failed| format!("{:?}: {}", failed.cause, failed.words));
                let at = end.as_ref().map_or(now, |end| end.at);
                *end = Some(End { at, failure });
                self.begun = None;
                return Ok(());
            }
        }
        let seat = &stage.seats[seat];
        for layer in 0..LAYERS {
            if !self.ready[layer] && course.layers[layer] {
                self.write(case, layer, 0..self.given, seat);
                self.ready[layer] = true;
                let _ = self.output.layer(layer as u32, self.given);
            }
        }
        while self.chunks_given < course.chunks.min(spec.chunks) {
            self.chunks_given += 1;
            let until = spec.tokens * self.chunks_given / spec.chunks;
            for layer in (0..LAYERS).filter(|&layer| self.ready[layer]) {
                self.write(case, layer, self.given..until, seat);
            }
            let needed = until.div_ceil(u64::from(seat.player().block_tokens)) as usize;
            let had = self.indices.len() - self.blocks.len();
            let rest = self.blocks.split_off(needed - had);
            let its = std::mem::replace(&mut self.blocks, rest);
            let tokens = until - std::mem::replace(&mut self.given, until);
            let pool = seat.pool().expect("it lives");
            let fresh = joined(its, pool);
            // A block that the chunk before has not filled is named again, first.
            let its = match &self.begun {
                Some(begun) if tokens > 0 => begun.chain(&fresh).expect("they are of one pool"),
                _ => fresh,
            };
            if tokens > 0 {
                let is_begun = until % u64::from(seat.player().block_tokens) > 0 && self.chunks_given < spec.chunks;
                self.begun = is_begun.then(|| its.slice(its.len() - 1..its.len()).expect("it is held"));
            }
            // It may have ended since it was looked at.
            let _ = self.output.chunk(&its, tokens, self.chunks_given == spec.chunks);
            for layer in (0..LAYERS).filter(|&layer| spec.is_by_layer && self.ready[layer]) {
                let _ = self.output.layer(layer as u32, until);
            }
        }
        Ok(())
    }

    /// Computes some tokens of a layer.
    fn write(&self, case: usize, layer: usize, tokens: std::ops::Range<u64>, seat: &Seat) {
        let (player, pool) = (seat.player(), seat.pool().expect("it lives"));
        let (rows, epoch) = (player.rows(), seat.node().expect("it lives").epoch().0);
        let size = u64::from(player.block_tokens);
        for token in tokens {
            let block = u64::from(self.indices[(token / size) as usize]) * pool.memory().block_bytes();
            for row in 0..rows.count {
                let bytes: [u8; ROW_BYTES as usize] =
                    std::array::from_fn(|at| byte(case, epoch, layer, token, rows.first + row, at as u32));
                let at = block + player.place(layer, (token % size) as u32, row);
                pool.window().write_from(at, &bytes).expect("a block is in its pool");
            }
        }
    }
}

/// One handle of several blocks.
pub(super) fn joined(blocks: Vec<Blocks>, pool: &Pool<SimEnv>) -> Blocks {
    let count = blocks.len();
    // The last one let go is the first one taken.
    blocks.into_iter().rev().for_each(drop);
    pool.take(count).expect("as many were let go just now")
}
