//! What a source lends of one transfer, where the sinks read it themselves.
//!
//! A sink claims its rank, and is told what it can read as soon as there is something: blocks, tokens and layers under a lease. What is
//! lent stays where it is until every reader has given its lease back, or the lender's own clock has ended it and its reader is in no copy.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{AbortAck, BLOCKS_MAX, ControlMessage, Fail, ReadOffer, Side, TransferHead};
use penstock_session::few::{Few, FewQueue};
use penstock_session::leases::{GivenBack, LeaseId};
use penstock_session::machine::Step;
use penstock_session::{TransferId, machine};

use super::chunks::Chunks;
use super::{SendFailed, SourceWish};
use crate::action::BlocksRef;
use crate::cause::FlowCause;
use crate::layout::Layout;
use crate::part::{LegError, bounded};
use crate::repeated::repeated;
use crate::status::{Status, StatusEvent};

machine! {
    /// A rank of the sink, as who lends to it sees it.
    pub Lent on LentEvent {
        states {
            /// Nobody has claimed it.
            Unclaimed,
            /// Its sink is there, and nothing can be read.
            Claimed,
            /// It reads under a lease.
            Reading,
            /// It is not to read any more, and may still be in a copy.
            Ending,
        }
        ends {
            /// It has everything, and the lease stood until then.
            Done,
            /// It has not, and reads nothing any more.
            Over,
        }
        events {
            /// Its sink is there.
            Claim,
            /// It has a lease.
            Lease,
            /// It has everything and gives the lease back in time.
            Ack,
            /// It gives the lease back otherwise.
            Return,
            /// Its lease has ended by time, or with its session.
            Late,
            /// It is in no copy any more.
            Quiet,
            /// The transfer has failed.
            Fault,
        }
        Unclaimed { Claim => Claimed, Fault => Over }
        Claimed { Claim => Claimed, Lease => Reading, Fault => Over }
        Reading { Claim => Reading, Ack => Done, Return => Over, Late => Ending, Fault => Ending }
        Ending { Claim => Ending, Ack => Over, Return => Over, Late => Ending, Quiet => Over, Fault => Ending }
    }
}

/// The most blocks that are lent in one transfer.
pub const LENT_BLOCKS_MAX: usize = 64 * BLOCKS_MAX;

/// How a transfer is lent.
#[derive(Debug, Clone)]
pub struct LendOptions {
    /// Its name.
    pub transfer: TransferId,
    /// This rank, and of how many.
    pub rank: (u16, u16),
    /// The ranks of the sink that read from this one.
    pub sinks: Few<u16>,
    /// Where the blocks are.
    pub layout: Arc<Layout>,
    /// The block that has what goes once for a transfer, if the layout has such buffers.
    pub once: Option<u32>,
    /// Each layer can be read when it is ready.
    pub is_by_layer: bool,
    /// How long a lease stands without being renewed.
    pub ttl: Duration,
    /// When it has to be over.
    pub deadline: Timestamp,
}

/// One rank of the sink.
#[derive(Debug)]
struct Reader {
    rank: u16,
    state: Lent,
    lease: Option<LeaseId>,
    /// Up to where it was told of tokens, from which block on, and of how many layers.
    tokens: u64,
    layers: u32,
    is_sealed: bool,
}

/// What is lent of one transfer.
#[derive(Debug)]
pub struct Loans {
    how: LendOptions,
    head: TransferHead,
    status: Status,
    readers: Few<Reader>,
    chunks: Chunks,
    failed: Option<SendFailed>,
    wishes: FewQueue<SourceWish>,
}

impl Loans {
    /// A transfer of which nothing is there yet.
    pub fn new(how: LendOptions) -> Result<Self, LegError> {
        let mut sinks = how.sinks.clone();
        sinks.sort_unstable();
        if sinks.is_empty() || repeated(&sinks).is_some() {
            return Err(LegError::Sources);
        }
        if how.once.is_none() && how.layout.has_once() {
            return Err(LegError::OnceMissing);
        }
        let (rank, ranks) = how.rank;
        let head = TransferHead { transfer: how.transfer, side: Side::Source, rank, ranks };
        let reader =
            |rank| Reader { rank, state: Lent::Unclaimed, lease: None, tokens: 0, layers: 0, is_sealed: false };
        let readers = sinks.into_iter().map(reader);
        Ok(Self {
            head,
            status: Status::Bootstrapping,
            readers: readers.collect(),
            chunks: Chunks::new(how.is_by_layer, how.layout.layers() as usize),
            failed: None,
            wishes: FewQueue::new(),
            how,
        })
    }

    /// Who says it, of which transfer.
    pub fn head(&self) -> &TransferHead {
        &self.head
    }

    /// Where its blocks are.
    pub fn layout(&self) -> &Layout {
        &self.how.layout
    }

    /// Whether each layer can be read by itself.
    pub fn is_by_layer(&self) -> bool {
        self.how.is_by_layer
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// How it failed, if it did.
    pub fn failure(&self) -> Option<&SendFailed> {
        self.failed.as_ref()
    }

    /// The state of a rank, if there is such a one.
    pub fn rank(&self, rank: u16) -> Option<Lent> {
        self.readers.iter().find(|reader| reader.rank == rank).map(|reader| reader.state)
    }

    /// Whether it has ended, nobody reads of it and everything was let go.
    pub fn is_over(&self) -> bool {
        self.status.is_end() && self.chunks.keeps.is_empty()
    }

    /// This is let go with the blocks of the chunks: the block that has what goes once.
    pub fn hold(&mut self, keep: BlocksRef) {
        self.chunks.keeps.push(keep);
    }

    /// The blocks of all chunks, and the one that has what goes once.
    pub fn blocks(&self) -> (&[u32], Option<u32>) {
        (&self.chunks.blocks, self.how.once)
    }

    /// The tickets of what was not let go.
    pub fn keeps(&self) -> &[BlocksRef] {
        &self.chunks.keeps
    }

    /// What is wanted next.
    pub fn poll_wish(&mut self) -> Option<SourceWish> {
        self.wishes.pop_front()
    }

    /// How long a lease of it stands without being renewed.
    pub fn ttl(&self) -> Duration {
        self.how.ttl
    }

    fn may_go_on(&self) -> Result<(), LegError> {
        match (&self.failed, self.status) {
            (Some(failed), _) => Err(LegError::Ended(failed.cause)),
            (None, Status::Success) => Err(LegError::Done),
            _ => Ok(()),
        }
    }

    fn reader_at(&self, rank: u16) -> Result<usize, LegError> {
        self.readers.iter().position(|reader| reader.rank == rank).ok_or(LegError::NoSuchRank { rank })
    }

    /// The source has computed a chunk, as for [`SourceLegs::chunk`](super::SourceLegs::chunk).
    pub fn chunk(&mut self, blocks: &[u32], tokens: u64, is_last: bool, keep: BlocksRef) -> Result<(), LegError> {
        self.may_go_on()?;
        let again = usize::from(self.chunks.begun(&self.how.layout).is_some() && !blocks.is_empty());
        if self.chunks.blocks.len() + blocks.len() - again > LENT_BLOCKS_MAX {
            return Err(LegError::TooManyLent { most: LENT_BLOCKS_MAX });
        }
        self.chunks.add(&self.how.layout, (blocks, tokens), is_last, keep)?;
        self.fail_if_behind();
        self.tell_readers();
        Ok(())
    }

    /// A rank that begins to read behind the last token would wait for ever.
    fn fail_if_behind(&mut self) {
        let Some(total) = self.chunks.total else { return };
        let is_behind = |reader: &Reader| reader.state != Lent::Unclaimed && reader.tokens > total;
        if let Some(at) = self.readers.iter().position(is_behind) {
            let words = format!("the sink begins at token {}, and there are {total} in all", self.readers[at].tokens);
            self.fail(FlowCause::Refused, Side::Source, Some(at), words);
        }
    }

    /// A layer is ready for the first so many tokens, as for [`SourceLegs::ready`](super::SourceLegs::ready).
    pub fn ready(&mut self, layer: u32, tokens: u64) -> Result<(), LegError> {
        self.check_ready(layer, tokens)?;
        self.chunks.set_ready(layer, tokens);
        self.tell_readers();
        Ok(())
    }

    /// Whether a layer can be said to be ready for the first so many tokens.
    pub(crate) fn check_ready(&self, layer: u32, tokens: u64) -> Result<(), LegError> {
        if let Some(failed) = &self.failed {
            return Err(LegError::Ended(failed.cause));
        }
        self.chunks.check_ready(&self.how.layout, self.how.is_by_layer, (layer, tokens))
    }

    /// For how many tokens a layer is ready.
    pub(crate) fn ready_tokens(&self, layer: u32) -> u64 {
        self.chunks.ready_tokens(layer)
    }

    /// A rank of the sink will read from this token on. The same again changes nothing.
    pub fn claimed(&mut self, rank: u16, from: u64) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        self.may_go_on()?;
        let reader = &mut self.readers[at];
        if reader.state == Lent::Unclaimed {
            reader.tokens = from;
        }
        reader.on(LentEvent::Claim);
        if self.readers.iter().all(|reader| reader.state != Lent::Unclaimed) {
            self.status.on(StatusEvent::AllGranted);
        }
        self.fail_if_behind();
        Ok(())
    }

    /// A rank for which there is something to read and that has no lease yet: it is given one with [`Loans::lend`].
    pub fn wants_lease(&self) -> Option<u16> {
        if self.status.is_end() {
            return None;
        }
        let has_news = |reader: &&Reader| reader.state == Lent::Claimed && self.news(reader).is_some();
        self.readers.iter().find(has_news).map(|reader| reader.rank)
    }

    /// A rank reads under this lease, and is told what there is.
    pub fn lend(&mut self, rank: u16, lease: LeaseId) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        let reader = &mut self.readers[at];
        if reader.on(LentEvent::Lease) {
            reader.lease = Some(lease);
            self.status.on(StatusEvent::Input);
            self.tell(at);
        }
        Ok(())
    }

    /// A rank has given its lease back: it has everything, if the lease stood and everything was lent.
    pub fn given_back(&mut self, rank: u16, lease: LeaseId, how: GivenBack) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        if self.readers[at].lease != Some(lease) || !how.frees() {
            return Err(LegError::NoSuchRank { rank });
        }
        let reader = &mut self.readers[at];
        reader.lease = None;
        if how.is_valid() && reader.is_sealed {
            reader.on(LentEvent::Ack);
        } else {
            reader.on(LentEvent::Return);
            let (cause, words) = if how.is_valid() {
                (FlowCause::SinkFailed, format!("rank {rank} gave its lease back before it could have everything"))
            } else {
                (FlowCause::Expired, format!("the lease of rank {rank} had ended before it was given back"))
            };
            self.fail(cause, Side::Sink, Some(at), words);
        }
        if planted::is(Bug::FanOutFreedAtFirstReader) {
            let keeps = std::mem::take(&mut self.chunks.keeps).into_iter();
            self.wishes.extend(keeps.map(|ticket| SourceWish::Free { ticket }));
        }
        if self.readers.iter().all(|reader| reader.state == Lent::Done) {
            self.status.on(StatusEvent::Done);
        }
        self.settle();
        Ok(())
    }

    /// The lease of a rank has ended by this engine's clock, or with its session. What it reads is kept until [`Loans::quiet`].
    pub fn expired(&mut self, rank: u16) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        self.readers[at].on(LentEvent::Late);
        let words = format!("rank {rank} of the sink has not renewed its lease for {} ms", self.how.ttl.as_millis());
        self.fail(FlowCause::Expired, Side::Source, Some(at), words);
        Ok(())
    }

    /// The reader of a lease that has ended is in no copy any more.
    pub fn quiet(&mut self, rank: u16) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        self.readers[at].on(LentEvent::Quiet);
        self.readers[at].lease = None;
        self.settle();
        Ok(())
    }

    /// When something has to be done though nothing happens.
    pub fn deadline(&self) -> Timestamp {
        if self.status.is_end() { Timestamp::NEVER } else { self.how.deadline }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        if now >= self.how.deadline {
            self.fail(FlowCause::Deadline, Side::Source, None, "its time was over at the source".into());
        }
    }

    /// The application has failed, or gives it up.
    pub fn fail_here(&mut self, cause: FlowCause, words: &str) {
        self.fail(cause, Side::Source, None, words.into());
    }

    /// What a rank of the sink says can never become right.
    pub fn refused_here(&mut self, rank: u16, cause: FlowCause, words: String) {
        let from = self.reader_at(rank).ok();
        self.fail(cause, Side::Source, from, words);
    }

    /// A rank of the sink has said that it failed.
    pub fn failed_there(&mut self, rank: u16, fail: &Fail) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        self.fail(FlowCause::of_code(fail.cause), Side::Sink, Some(at), fail.words.clone());
        Ok(())
    }

    /// A rank of the sink wants its blocks back, as it waits to be sent what is lent: nothing is written from here, so it has them.
    pub fn asked_to_stop(&mut self, rank: u16, number: u32) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        self.fail(FlowCause::Aborted, Side::Sink, Some(at), format!("rank {rank} of the sink gave it up"));
        let ack = AbortAck { head: self.head, number, is_drained: true };
        self.wishes.push_back(SourceWish::Say { sink: rank, said: ControlMessage::AbortAck(ack) });
        Ok(())
    }

    /// A rank of the sink makes no sense of what it was told.
    pub fn refused_there(&mut self, rank: u16) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        let words = format!("rank {rank} of the sink makes no sense of what is lent to it");
        self.fail(FlowCause::Refused, Side::Sink, Some(at), words);
        Ok(())
    }

    /// The session with a rank of the sink is over.
    pub fn lost(&mut self, rank: u16) -> Result<(), LegError> {
        let at = self.reader_at(rank)?;
        if self.readers[at].state != Lent::Done {
            self.fail(FlowCause::PeerLost, Side::Source, Some(at), format!("the sink of rank {rank} is gone"));
        }
        Ok(())
    }

    /// The one way in which a transfer fails: every rank is told, and gives its lease back when it is in no copy.
    fn fail(&mut self, cause: FlowCause, said_by: Side, from: Option<usize>, words: String) {
        if self.status.is_end() {
            return;
        }
        self.status.on(StatusEvent::Fault);
        let words = bounded(words);
        for (at, reader) in self.readers.iter_mut().enumerate() {
            reader.on(LentEvent::Fault);
            let knows = from == Some(at) && (said_by == Side::Sink || cause == FlowCause::PeerLost);
            if !knows {
                let fail = Fail { head: self.head, cause: cause.code(), words: words.clone(), missing: Vec::new() };
                self.wishes.push_back(SourceWish::Say { sink: reader.rank, said: ControlMessage::Fail(fail) });
            }
        }
        let sink = from.map(|at| self.readers[at].rank);
        self.failed = Some(SendFailed { cause, said_by, sink, words });
        self.settle();
    }

    /// When it has ended and nobody reads, the blocks are let go.
    fn settle(&mut self) {
        if self.status.is_end() && self.readers.iter().all(|reader| reader.state.is_end()) {
            let keeps = std::mem::take(&mut self.chunks.keeps).into_iter();
            self.wishes.extend(keeps.map(|ticket| SourceWish::Free { ticket }));
        }
    }

    fn tell_readers(&mut self) {
        (0..self.readers.len()).for_each(|at| self.tell(at));
    }

    /// Says to a reader what it does not know yet.
    fn tell(&mut self, at: usize) {
        while let (Lent::Reading, Some(lease)) = (self.readers[at].state, self.readers[at].lease) {
            let Some((tokens, layers, is_sealed)) = self.news(&self.readers[at]) else { return };
            let block_tokens = u64::from(self.how.layout.block_tokens());
            let reader = &mut self.readers[at];
            let first = (reader.tokens / block_tokens).min(self.chunks.blocks.len() as u64);
            let end = tokens.div_ceil(block_tokens).clamp(first, first + BLOCKS_MAX as u64);
            let (from, told) = (first * block_tokens, tokens.min(end * block_tokens).max(reader.tokens));
            let is_all = told >= tokens;
            let news = self.how.layout.news();
            let lend = ReadOffer {
                head: self.head,
                layout: news.number,
                layout_generation: news.generation,
                from,
                tokens: told.saturating_sub(from),
                total: self.chunks.total,
                layers,
                is_sealed: is_sealed && is_all,
                once: self.how.once,
                lease: lease.0,
                ttl_ms: u32::try_from(self.how.ttl.as_millis()).unwrap_or(u32::MAX),
                blocks: self.chunks.blocks[first as usize..end as usize].to_vec(),
            };
            (reader.tokens, reader.layers, reader.is_sealed) = (told, layers, lend.is_sealed);
            self.wishes.push_back(SourceWish::Say { sink: reader.rank, said: lend.into() });
        }
    }

    /// Up to which token, of how many layers, and whether that is all, if that is more than a reader knows. A reader is told of tokens
    /// that are ready in all layers that it was told of: what it may read is only ever more. As long as it knows of no layer, the first one
    /// says how many.
    fn news(&self, reader: &Reader) -> Option<(u64, u32, bool)> {
        if self.chunks.tokens < reader.tokens {
            // What it needs begins behind what is computed.
            return None;
        }
        let known = self.chunks.ready.iter().take(reader.layers.max(1) as usize);
        let tokens = known.copied().fold(self.chunks.tokens, u64::min).max(reader.tokens);
        let layers = self.chunks.ready.iter().take_while(|&&ready| ready >= tokens).count() as u32;
        let layers = layers.max(reader.layers);
        let is_sealed =
            self.chunks.total.is_some_and(|total| tokens >= total) && layers as usize == self.chunks.ready.len();
        let is_more = tokens > reader.tokens && layers > 0 || layers > reader.layers && reader.layers > 0;
        (is_more || is_sealed && !reader.is_sealed).then_some((tokens, layers, is_sealed))
    }
}

impl Reader {
    /// Goes where the event leads; says whether that is elsewhere.
    fn on(&mut self, event: LentEvent) -> bool {
        let Step::Go(next) = self.state.step(event) else { return false };
        self.state = next;
        true
    }
}
