//! The source's side: this engine has the bytes.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::Env;
use penstock_flows::action::Urgency;
use penstock_flows::manager::{Produce, Sinks};
use penstock_flows::{FlowCause, Status};
use penstock_memory::Blocks;
use penstock_session::transfers::table::EntryKey;
use penstock_session::{RequestId, TransferId};

use super::layout::Ground;
use super::{FlowError, Gate, Layout, SendFailed, WITHIN};
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::worker::Priority;

/// How bytes are to be given to others.
pub struct Send<'a, E: Env> {
    layout: &'a Layout<E>,
    how: Produce,
    /// Where what goes once is.
    once: Option<Blocks>,
}

impl<'a, E: Env> Send<'a, E> {
    /// From blocks of this layout, to one rank.
    pub fn from(layout: &'a Layout<E>) -> Self {
        let how = Produce {
            layout: layout.key,
            rank: (0, 1),
            sinks: Sinks::Sharing(1),
            is_by_layer: false,
            is_lent: false,
            lease_ttl: None,
            is_resumable: false,
            once: None,
            within: WITHIN,
            urgency: Urgency::Bulk,
        };
        Self { layout, how, once: None }
    }

    /// This engine's rank among those that have the bytes, and how many there are.
    #[must_use]
    pub fn rank(mut self, rank: u16, ranks: u16) -> Self {
        self.how.rank = (rank, ranks);
        self
    }

    /// To a sink of so many ranks: those of them that have rows in common with this one, as its layout and the numbers of ranks on both sides
    /// say. Rows that several ranks of the source have are sent by one of them. Memory is let go when each rank has everything.
    ///
    /// A rank that has nothing for anybody has its success with its last chunk.
    #[must_use]
    pub fn to(mut self, ranks: u16) -> Self {
        self.how.sinks = Sinks::Sharing(ranks);
        self
    }

    /// To these ranks of a sink that has so many, where its rows are not spread evenly. All that is common goes to each of them, whoever
    /// else has it.
    #[must_use]
    pub fn to_ranks(mut self, ranks: &[u16], of: u16) -> Self {
        self.how.sinks = Sinks::These(ranks.to_vec(), of);
        self
    }

    /// Each layer goes by itself, as far as [`Output::layer`] says that it is ready: a chunk names its blocks, and nothing of a layer is read
    /// from them before. Without it all layers of a chunk are ready when [`Output::chunk`] is called.
    ///
    /// Of what is [lent](Send::lend), a sink is told of tokens that are ready in all layers that it knows of, and of further layers when
    /// they are ready for as many.
    #[must_use]
    pub fn by_layer(mut self) -> Self {
        self.how.is_by_layer = true;
        self
    }

    /// The bytes are lent, and the sinks read them, as [`Receive::pull`](super::Receive::pull) says there. Blocks stay here until every rank
    /// has read everything, or has not renewed its lease.
    #[must_use]
    pub fn lend(mut self) -> Self {
        self.how.is_lent = true;
        self
    }

    /// It outlives its session: when that breaks, its blocks stay, and it goes on in the next session with the same engine, once the sink
    /// [resumes](super::Input::resume) it there, from what the sink has. It waits for `control.resume_ms`, and never longer than
    /// [`Send::within`]. An engine that was started anew is another one. The sink has to say the same, by
    /// [`Receive::resumable`](super::Receive::resumable); what is lent cannot be resumed.
    #[must_use]
    pub fn resumable(mut self) -> Self {
        self.how.is_resumable = true;
        self
    }

    /// How long what is lent is kept for a reader that does not renew its lease: two seconds where nothing else is said.
    #[must_use]
    pub fn lease(mut self, ttl: Duration) -> Self {
        self.how.lease_ttl = Some(ttl);
        self
    }

    /// The block that has what goes once for a transfer: exactly one, of the layout's pool. It is kept as blocks of chunks are,
    /// and is ready with the first token of its layer.
    #[must_use]
    pub fn once(mut self, block: &Blocks) -> Self {
        self.once = Some(block.clone());
        self
    }

    /// How long it may take in all.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.how.within = within;
        self
    }

    /// Who goes first. Of what both sides say, the more urgent counts.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.how.urgency = urgency(priority);
        self
    }
}

pub(super) fn urgency(priority: Priority) -> Urgency {
    match priority {
        Priority::Bulk => Urgency::Bulk,
        Priority::Urgent => Urgency::Urgent,
    }
}

/// A transfer of which this engine has the bytes. Dropped before it has ended it is given up, and both sides are told.
pub struct Output<E: Env> {
    engine: Arc<EngineInner<E>>,
    key: EntryKey,
    ground: Ground,
}

impl<E: Env> Engine<E> {
    /// Gives bytes to others under this name. This side's scheduler knows it as `request`.
    pub fn produce(&self, transfer: TransferId, request: &RequestId, how: Send<'_, E>) -> Result<Output<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        if !Arc::ptr_eq(&how.layout.engine, &self.engine) {
            return Err(FlowError::ForeignLayout { label: how.layout.label().to_owned() });
        }
        let ground = how.layout.ground.clone();
        let Send { how: mut produce, once, .. } = how;
        if let Some(once) = once {
            let block = ground.check_once(&once)?;
            produce.once = Some((block, shared.manager.keep(once)));
        }
        let keep = produce.once.map(|(_, keep)| keep);
        let key = shared.call_manager(|manager, now| manager.produce(transfer, request.clone(), produce, now));
        let key = key.inspect_err(|_| keep.into_iter().for_each(|keep| shared.manager.free(keep)))?;
        Ok(Output { engine: Arc::clone(&self.engine), key, ground })
    }
}

impl<E: Env> Output<E> {
    /// So many tokens more, behind those of the chunks before, and the blocks in which they lie, in the order of their tokens. They are
    /// computed, or will be before [`Output::layer`] says so where the transfer goes [by layer](Send::by_layer).
    ///
    /// Tokens lie one behind the other, without a gap: the first of a chunk follows the last of the chunk before. If that has not filled its
    /// last block, this chunk begins inside that block and names it again, first. So its list has exactly
    /// (tokens already in its first block + its tokens) / tokens of a block, rounded up, blocks; a chunk of no tokens has none. Any other
    /// list is refused with both numbers, or with both blocks where another one is named first, and then nothing of the chunk is taken.
    ///
    /// The blocks are kept until nothing reads them any more, one that two chunks name for both of them. Blocks of another pool than the
    /// layout's are refused. The last chunk says that it is the last; it may have no tokens.
    ///
    /// ```no_run
    /// # use penstock::flows::{FlowError, Output};
    /// # use penstock::{Pool, SystemEnv};
    /// # fn two_chunks(output: &Output<SystemEnv>, pool: &Pool<SystemEnv>) -> Result<(), Box<dyn std::error::Error>> {
    /// // 100 tokens in blocks of 16: six whole blocks, and four tokens of the seventh.
    /// let first = pool.take(7)?;
    /// output.chunk(&first, 100, false)?;
    /// // The next 50 begin at token 4 of that seventh block, and 4 + 50 tokens lie in four blocks: it, and three fresh ones.
    /// let second = first.slice(6..7)?.chain(&pool.take(3)?)?;
    /// output.chunk(&second, 50, true)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn chunk(&self, blocks: &Blocks, tokens: u64, is_last: bool) -> Result<(), FlowError> {
        self.ground.check(blocks)?;
        let shared = &self.engine.shared;
        let keep = shared.manager.keep(blocks.clone());
        let given =
            shared.call_manager(|manager, now| manager.chunk(self.key, (blocks.indices(), tokens), is_last, keep, now));
        given.inspect_err(|_| shared.manager.free(keep))?;
        Ok(())
    }

    /// A layer is ready for the first so many tokens of the transfer, counted from its start over all chunks. Nothing of a layer goes
    /// before, and of a later chunk nothing before this is called for it again, with more tokens.
    ///
    /// More tokens than chunks have given so far are refused with both numbers. Fewer than before change nothing. The transfer goes
    /// [by layer](Send::by_layer); of any other it is an error, as its bytes went with their chunk.
    ///
    /// ```no_run
    /// # use penstock::flows::Output;
    /// # use penstock::{Blocks, SystemEnv};
    /// # fn two_chunks(output: &Output<SystemEnv>, blocks: [&Blocks; 2]) -> Result<(), Box<dyn std::error::Error>> {
    /// output.chunk(blocks[0], 64, false)?;
    /// // Layer 0 of these 64 tokens is computed, then layer 1.
    /// output.layer(0, 64)?;
    /// output.layer(1, 64)?;
    /// output.chunk(blocks[1], 32, true)?;
    /// // And now of the 32 behind them.
    /// output.layer(0, 96)?;
    /// output.layer(1, 96)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn layer(&self, layer: u32, tokens: u64) -> Result<(), FlowError> {
        Ok(self.engine.shared.call_manager(|manager, now| manager.layer(self.key, layer, tokens, now))?)
    }

    /// As [`Output::layer`], as soon as this gate is opened. It may be open already.
    ///
    /// Each chunk has a gate of its own: the next one for the same layer is given with more tokens. A gate opens the tokens that it was given
    /// with, and those before them, and says nothing about later chunks.
    pub fn layer_after(&self, layer: u32, tokens: u64, gate: &Gate<E>) -> Result<(), FlowError> {
        if !Arc::ptr_eq(&gate.engine, &self.engine) {
            return Err(FlowError::ForeignGate);
        }
        Ok(self
            .engine
            .shared
            .call_manager(|manager, now| manager.layer_after(self.key, (layer, tokens), gate.id, now))?)
    }

    /// The [trace context](super::Receive::trace) of the sink: that of the rank that asked first, or nothing before one has.
    pub fn trace(&self) -> Vec<u8> {
        self.engine.shared.look_at_manager(|manager| manager.trace(self.key).to_vec())
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        self.engine.shared.look_at_manager(|manager| manager.status(self.key)).unwrap_or(Status::Failed)
    }

    /// How it ended, if it has: all ranks have everything, or why not. After a failure its blocks may still be read; they may be written again
    /// when [`Output::abort`] answers true, or [`Engine::drain_finished`] names its request.
    pub fn poll(&self) -> Option<Result<(), SendFailed>> {
        self.engine.shared.look_at_manager(|manager| ended(manager, self.key))
    }

    /// Waits until it has ended.
    pub fn wait(&self, timeout: Duration) -> Result<Result<(), SendFailed>, FlowError> {
        self.engine.wait_for_manager(timeout, |manager| ended(manager, self.key)).ok_or(FlowError::Nothing(timeout))
    }

    /// The application has failed: both sides end, and the sinks hear these words at once.
    pub fn fail(&self, words: &str) {
        self.engine.shared.call_manager(|manager, now| manager.fail(self.key, FlowCause::SourceFailed, words, now));
    }

    /// Gives it up, and waits until no byte of it moves any more. Answers whether that is so.
    pub fn abort(&self, timeout: Duration) -> bool {
        self.engine
            .shared
            .call_manager(|manager, now| manager.fail(self.key, FlowCause::Aborted, "the source gave it up", now));
        self.engine.wait_for_manager(timeout, |manager| manager.is_over(self.key).then_some(())).is_some()
    }
}

fn ended(manager: &penstock_flows::TransferManager, key: EntryKey) -> Option<Result<(), SendFailed>> {
    match manager.status(key)? {
        Status::Success => Some(Ok(())),
        Status::Failed => manager.send_failure(key).cloned().map(Err),
        _ => None,
    }
}

impl<E: Env> Drop for Output<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, now| manager.release(self.key, now));
        }
    }
}
