//! What an application asks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Timestamp};
use penstock_session::control::{Side, TRACE_BYTES_MAX};
use penstock_session::few::{Few, FewMap};
use penstock_session::transfers::places::Places;
use penstock_session::transfers::table::{AdmitError, EntryKey};
use penstock_session::{PeerKey, RequestId, TransferId};

use super::TransferManager;
use super::book::PageId;
use super::flow::{Flow, Held, LentTransfer, Naming, Pulled, SinkTransfer, SourceTransfer};
use crate::action::{BlocksRef, Urgency};
use crate::cause::FlowCause;
use crate::held::BlockHeld;
use crate::input::{AssemblyPiece, InputEvent, MemoryPolicy, NoMemory, Pull, Receive, SinkLegs, Tail};
use crate::layout::Layout;
use crate::output::{LendOptions, Loans, Send, SendFailed, SourceLegs};
use crate::part::LegError;
use crate::partners::{LayoutKey, Silence};
use crate::ranks::{NotSpread, Spread};
use crate::shards::{ShardPair, Unfit};
use crate::status::Status;

/// The most legs of a transfer that is read: none is let go before all is confirmed.
const LEGS_READ_MAX: u32 = 256;

/// How bytes are to be given to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Produce {
    /// Where they are.
    pub layout: LayoutKey,
    /// This engine's rank among those that have them, and how many there are.
    pub rank: (u16, u16),
    /// Which ranks need them from this one.
    pub sinks: Sinks,
    /// Each layer goes by itself, when it is ready.
    pub is_by_layer: bool,
    /// They are lent, and the sinks read them; otherwise they are sent.
    pub is_lent: bool,
    /// How long a lease stands without being renewed, if not as long as all do here.
    pub lease_ttl: Option<Duration>,
    /// The block that has what goes once for a transfer, if the layout has such buffers, and what it is kept as. An error does not take it.
    pub once: Option<(u32, BlocksRef)>,
    /// It goes on in another session when its own breaks.
    pub is_resumable: bool,
    /// How long it may take in all.
    pub within: Duration,
    /// How urgent it is.
    pub urgency: Urgency,
}

/// Which ranks of the sink need bytes from a rank of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sinks {
    /// Of so many, those that have rows in common with it. What several ranks of the source have is sent by one of them.
    Sharing(u16),
    /// These, of so many. Each is sent everything that it has in common with this rank, whoever else has it.
    These(Vec<u16>, u16),
}

/// How bytes are to be had from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consume {
    /// Where they are to be.
    pub layout: LayoutKey,
    /// This engine's rank among those that need them, and how many there are.
    pub rank: (u16, u16),
    /// Who has them, by rank.
    pub sources: Vec<(u16, PeerKey)>,
    /// The first token that is needed: those before it are here already.
    pub begin: u64,
    /// What of those stands behind whole blocks of a parent, in blocks that are granted, where that is known.
    pub tail: Option<Tail>,
    /// This engine reads what the sources lend; otherwise they send it.
    pub is_pull: bool,
    /// It goes on in another session when its own breaks.
    pub is_resumable: bool,
    /// What is done when there is no memory, if not what the settings say.
    pub memory: Option<MemoryPolicy>,
    /// How long it may take in all.
    pub within: Duration,
    /// How urgent it is.
    pub urgency: Urgency,
    /// A trace context, as its tool writes it.
    pub trace: Vec<u8>,
}

/// Why a call changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The transfer is not taken in.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// It makes no sense for it.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// There is no such layout.
    #[error("there is no such layout here any more: it was withdrawn")]
    NoLayout,
    /// Who needs what of whom cannot be said by the numbers of ranks.
    #[error(transparent)]
    NotSpread(#[from] NotSpread),
    /// A transfer of this engine has a block.
    #[error(transparent)]
    Held(#[from] Box<BlockHeld>),
    /// Two layouts do not fit.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A rank of the source has told of no such layout.
    #[error(
        "rank {rank} of the source has told of no layout {label:?} (of these: {known}); wait for one that is made after the session \
         began with `Peer::wait_layout`"
    )]
    NoSuchLayout {
        rank: u16,
        label: String,
        /// The labels of those that it has told of.
        known: String,
    },
    /// The session with a source is over.
    #[error("rank {rank} of the source {}", Silence::Gone)]
    PeerLost { rank: u16 },
    /// The session with a source is not complete.
    #[error("rank {rank} of the source {}", Silence::NotYet)]
    NotYet { rank: u16 },
    /// A source does not speak of transfers by name.
    #[error("rank {rank} of the source {}", Silence::NotSpoken)]
    NotSpoken { rank: u16 },
    /// What is read is not resumed.
    #[error("what is lent is read again from its beginning when a session breaks: only what is sent can be resumed")]
    NotSent,
    /// A trace context that no frame has room for.
    #[error("a trace context has at most {TRACE_BYTES_MAX} bytes, not {0}: give its ids, not its baggage")]
    Trace(usize),
    /// Nothing of this transfer waits for that engine.
    #[error("no rank of the source waits for engine `{0}`: its session did not break, or is resumed already")]
    NotBroken(EngineName),
    /// The engine was started anew.
    #[error("engine `{0}` was started anew and knows nothing of what it was sending; begin a new transfer with it")]
    Restarted(EngineName),
    /// The session is over.
    #[error("the session in which it is to go on is over; connect again")]
    NoSession,
    /// There is no such transfer here any more.
    #[error("there is no such transfer here any more")]
    NoTransfer,
    /// There is no such gate.
    #[error("there is no such gate here any more")]
    NoGate,
    /// There is as much of something as there may be.
    #[error("there are {most} {what} already, which is the most; wait until some are gone")]
    Full { what: &'static str, most: usize },
}

impl CallError {
    fn of(silence: Silence, rank: u16) -> Self {
        match silence {
            Silence::Gone => Self::PeerLost { rank },
            Silence::NotYet => Self::NotYet { rank },
            Silence::NotSpoken => Self::NotSpoken { rank },
        }
    }
}

impl TransferManager {
    /// This engine gives bytes to others under this name.
    pub fn produce(
        &mut self,
        transfer: TransferId,
        request: RequestId,
        how: Produce,
        now: Timestamp,
    ) -> Result<EntryKey, CallError> {
        let layout = Arc::clone(self.partners.own(how.layout).ok_or(CallError::NoLayout)?);
        let (rank, ranks) = how.rank;
        let (sinks, of, spread) = match how.sinks {
            Sinks::Sharing(of) => {
                // Who is alone has everything that anybody needs.
                if ranks == 1 {
                    Spread::check(&layout, how.rank)?;
                    ((0..of).collect::<Few<u16>>(), of, None)
                } else {
                    let spread = Spread::of(&layout, how.rank)?;
                    (spread.sinks_of(&layout, rank, of)?.into(), of, Some(spread))
                }
            }
            Sinks::These(sinks, of) => (sinks.into(), of, None),
        };
        if let Some(&rank) = sinks.iter().find(|&&rank| rank >= of) {
            return Err(LegError::NoSuchRank { rank }.into());
        }
        if of == 0 || sinks.is_empty() && spread.is_none() {
            return Err(LegError::Sources.into());
        }
        if how.is_lent && how.is_resumable {
            return Err(CallError::NotSent);
        }
        if let Some((block, _)) = how.once {
            self.check_once(how.layout, &layout, block)?;
        }
        let once = how.once.map(|(block, _)| block);
        // Who has nothing for anybody lends nothing, and has its success with its last chunk.
        if how.is_lent && !sinks.is_empty() {
            let mut loans = Loans::new(LendOptions {
                transfer,
                rank: how.rank,
                sinks: sinks.clone(),
                layout,
                once,
                is_by_layer: how.is_by_layer,
                ttl: how.lease_ttl.unwrap_or(self.settings.lease_ttl),
                deadline: now + how.within,
            })?;
            how.once.iter().for_each(|(_, keep)| loans.hold(*keep));
            let lent = LentTransfer { loans, places: Places::some(sinks, of), trace: Vec::new() };
            let lent = Flow::Lent(self.memory.lent.put(|| lent));
            return self.admit(Side::Source, transfer, request, (how.layout, lent), now);
        }
        let send = Send {
            transfer,
            rank,
            ranks,
            sinks,
            of,
            layout,
            once,
            is_by_layer: how.is_by_layer,
            part_bytes: self.settings.part_bytes,
            parts_ahead: self.settings.parts_ahead,
            deadline: now + how.within,
            resumes: how.is_resumable.then_some(self.settings.source_waits()),
        };
        send.check()?;
        let mut source = self.memory.sources.put(|| SourceTransfer {
            legs: SourceLegs::begin(send),
            gone: BTreeMap::new(),
            spread,
            moves: FewMap::new(),
            within: how.within,
            urgency: how.urgency,
            trace: Vec::new(),
        });
        how.once.iter().for_each(|(_, keep)| source.legs.hold(*keep));
        self.admit(Side::Source, transfer, request, (how.layout, Flow::Source(source)), now)
    }

    /// Whether a block can have what goes once.
    fn check_once(&self, key: LayoutKey, layout: &Layout, block: u32) -> Result<(), CallError> {
        if block >= layout.blocks() {
            return Err(LegError::NoSuchBlock { block, blocks: layout.blocks() }.into());
        }
        let page = self.book.page_of(key);
        page.map_or(Ok(()), |page| self.may_read(page, [block].into_iter())).map_err(Self::is_held)
    }

    /// This engine has bytes from others under this name.
    pub fn consume(
        &mut self,
        transfer: TransferId,
        request: RequestId,
        how: Consume,
        now: Timestamp,
    ) -> Result<EntryKey, CallError> {
        let layout = Arc::clone(self.partners.own(how.layout).ok_or(CallError::NoLayout)?);
        for &(rank, peer) in &how.sources {
            self.speaks(peer).map_err(|silence| CallError::of(silence, rank))?;
        }
        if how.trace.len() > TRACE_BYTES_MAX {
            return Err(CallError::Trace(how.trace.len()));
        }
        let (rank, ranks) = how.rank;
        let receive = Receive {
            transfer,
            rank,
            ranks,
            sources: how.sources.iter().map(|(rank, _)| *rank).collect(),
            layout,
            begin: how.begin,
            tail: how.tail,
            tokens_default: self.totals.tokens(),
            memory: how.memory.unwrap_or(self.settings.memory),
            ahead: if how.is_pull { LEGS_READ_MAX } else { self.settings.legs_ahead },
            deadline: now + how.within,
            abort_within: self.settings.abort_within,
            resumes: how.is_resumable.then_some(self.settings.resume_within),
            urgency: (how.urgency == Urgency::Urgent).into(),
            trace: how.trace,
        };
        let sources: FewMap<u16, PeerKey> = how.sources.iter().copied().collect();
        if how.is_pull && how.is_resumable {
            return Err(CallError::NotSent);
        }
        if how.is_pull {
            let pull = Pull::new(receive, self.settings.part_bytes, self.settings.parts_ahead)?;
            let moves = FewMap::new();
            let pulled = Pulled { pull, sources, moves, within: how.within, urgency: how.urgency };
            let pulled = Flow::Pull(self.memory.pulled.put(|| pulled));
            return self.admit(Side::Sink, transfer, request, (how.layout, pulled), now);
        }
        receive.check()?;
        let sink = || SinkTransfer { legs: SinkLegs::begin(receive), sources, gone: BTreeMap::new() };
        let sink = Flow::Sink(self.memory.sinks.put(sink));
        self.admit(Side::Sink, transfer, request, (how.layout, sink), now)
    }

    /// Who of the ranks of a source sends something to this rank of a sink, by the layouts of one label that all of them have told of.
    pub fn sources_of(
        &self,
        layout: LayoutKey,
        rank: u16,
        label: &str,
        peers: &[PeerKey],
    ) -> Result<Vec<(u16, PeerKey)>, CallError> {
        let ours = self.partners.own(layout).ok_or(CallError::NoLayout)?;
        let ranks = u16::try_from(peers.len()).ok().filter(|&ranks| ranks > 0).ok_or(LegError::Sources)?;
        let mut found: Vec<(u16, PeerKey)> = Vec::new();
        for (number, &peer) in (0..).zip(peers) {
            self.speaks(peer).map_err(|silence| CallError::of(silence, number))?;
            let theirs = self.partners.theirs(peer, label).ok_or_else(|| CallError::NoSuchLayout {
                rank: number,
                label: label.to_owned(),
                known: self.labels_of(peer).join(", "),
            })?;
            let spread = Spread::of(theirs, (number, ranks))?;
            if spread.sources_of(ours, rank).contains(&number) {
                ShardPair::spread(theirs, ours, &spread, number, rank)?;
                found.push((number, peer));
            }
        }
        Ok(found)
    }

    fn admit(
        &mut self,
        side: Side,
        transfer: TransferId,
        request: RequestId,
        (layout, flow): (LayoutKey, Flow),
        now: Timestamp,
    ) -> Result<EntryKey, CallError> {
        let held = Held {
            flow,
            armed: Timestamp::NEVER,
            is_released: false,
            page: None,
            is_reading: false,
            read: 0,
            naming: Naming::Nothing,
        };
        let (key, early) = self.transfers.admit(side, transfer, request, held, now)?;
        let page = self.book.join_layout(layout);
        if let Some(held) = self.transfers.get_mut(key) {
            held.page = page;
            held.is_reading = side == Side::Source;
            if let (Some(page), Some((_, Some(once)))) = (page, held.flow.read_blocks()) {
                self.book.read(page, [once].into_iter());
            }
        }
        // Nobody has claimed a rank of what is sent from here; of what is received it is known who has the others.
        if side == Side::Sink
            && let Some(held) = self.transfers.get(key)
        {
            held.flow.each_peer(|peer| self.shares.add(peer, key));
        }
        self.deliver_early(key, early, now);
        self.carry(key, now);
        Ok(key)
    }

    fn sink(&mut self, key: EntryKey) -> Result<&mut SinkLegs, CallError> {
        match self.flow_mut(key) {
            Some(Flow::Sink(sink)) => Ok(&mut sink.legs),
            Some(Flow::Pull(pulled)) => Ok(pulled.pull.legs_mut()),
            _ => Err(CallError::NoTransfer),
        }
    }

    pub(super) fn looked_sink(&self, key: EntryKey) -> Option<&SinkLegs> {
        match self.flow(key)? {
            Flow::Sink(sink) => Some(&sink.legs),
            Flow::Pull(pulled) => Some(pulled.pull.legs()),
            Flow::Source(_) | Flow::Lent(_) => None,
        }
    }

    /// The source has computed so many tokens more, in these blocks, as for [`SourceLegs::chunk`]. An error takes neither the blocks nor the
    /// ticket.
    pub fn chunk(
        &mut self,
        key: EntryKey,
        (blocks, tokens): (&[u32], u64),
        is_last: bool,
        keep: BlocksRef,
        now: Timestamp,
    ) -> Result<(), CallError> {
        if let Some(page) = self.page_of(key) {
            self.may_read(page, blocks.iter().copied()).map_err(Self::is_held)?;
        }
        match self.flow_mut(key) {
            Some(Flow::Source(source)) => source.legs.chunk(blocks, tokens, is_last, keep)?,
            Some(Flow::Lent(lent)) => lent.loans.chunk(blocks, tokens, is_last, keep)?,
            _ => return Err(CallError::NoTransfer),
        }
        self.note_chunk(key);
        self.carry(key, now);
        Ok(())
    }

    /// A layer of the source is ready for the first so many tokens, which chunks have given.
    pub fn layer(&mut self, key: EntryKey, layer: u32, tokens: u64, now: Timestamp) -> Result<(), CallError> {
        match self.flow_mut(key) {
            Some(Flow::Source(source)) => source.legs.ready(layer, tokens)?,
            Some(Flow::Lent(lent)) => lent.loans.ready(layer, tokens)?,
            _ => return Err(CallError::NoTransfer),
        }
        self.carry(key, now);
        self.advance((key, layer), now);
        Ok(())
    }

    /// The sink has room for the next leg. Answers its number.
    pub fn grant(
        &mut self,
        key: EntryKey,
        (blocks, skip): (Vec<u32>, u32),
        once: Option<u32>,
        keep: BlocksRef,
        now: Timestamp,
    ) -> Result<u32, CallError> {
        if let Some(page) = self.page_of(key) {
            self.may_write(page, blocks.iter().copied().chain(once), Some(key)).map_err(Self::is_held)?;
        }
        let legs = self.sink(key)?;
        let leg = legs.next_leg();
        legs.grant(leg, blocks, skip, once, keep)?;
        self.note_granted(key);
        self.carry(key, now);
        Ok(leg)
    }

    fn page_of(&self, key: EntryKey) -> Option<PageId> {
        self.transfers.get(key)?.page
    }

    /// For how many tokens the sink needs memory now.
    pub fn wanted(&self, key: EntryKey) -> Option<u64> {
        self.looked_sink(key)?.wanted()
    }

    /// The sink has no memory, only so many free blocks.
    pub fn no_memory(&mut self, key: EntryKey, free_blocks: u32, now: Timestamp) -> Result<NoMemory, CallError> {
        let answer = self.sink(key)?.no_memory(free_blocks, now);
        self.carry(key, now);
        Ok(answer)
    }

    /// What the sink's application is to know next.
    pub fn next_input_event(&mut self, key: EntryKey) -> Option<InputEvent> {
        self.sink(key).ok()?.next_input_event()
    }

    /// Whether the sink's application has not been told of something.
    pub fn has_input_event(&self, key: EntryKey) -> bool {
        self.looked_sink(key).is_none_or(SinkLegs::has_input_event)
    }

    /// The legs whose bytes are here and were not taken, in their order.
    pub fn landed_legs(&self, key: EntryKey) -> Vec<u32> {
        self.looked_sink(key).map_or_else(Vec::new, |legs| legs.landed_legs().collect())
    }

    /// What a leg brought, as pieces of buffers that have room for so many tokens, and what its blocks are kept as. Whoever copies holds
    /// them meanwhile: the leg may be let go at any time.
    pub fn assembly(
        &mut self,
        key: EntryKey,
        leg: u32,
        room_tokens: u64,
    ) -> Result<(BlocksRef, Vec<AssemblyPiece>), CallError> {
        Ok(self.sink(key)?.assembly(leg, room_tokens)?)
    }

    /// What a leg brought was copied out, or handed over.
    pub fn taken(&mut self, key: EntryKey, leg: u32, now: Timestamp) -> Result<(), CallError> {
        self.sink(key)?.taken(leg)?;
        self.carry(key, now);
        Ok(())
    }

    /// How many tokens a sink has for certain.
    pub fn received(&self, key: EntryKey) -> Option<u64> {
        Some(self.looked_sink(key)?.received())
    }

    /// How far a transfer is.
    pub fn status(&self, key: EntryKey) -> Option<Status> {
        self.flow(key).map(Flow::status)
    }

    /// The trace context that a sink has sent to this source, once one has.
    pub fn trace(&self, key: EntryKey) -> &[u8] {
        match self.flow(key) {
            Some(Flow::Source(source)) => &source.trace,
            Some(Flow::Lent(lent)) => &lent.trace,
            _ => &[],
        }
    }

    /// How a source's transfer failed, if it did.
    pub fn send_failure(&self, key: EntryKey) -> Option<&SendFailed> {
        match self.flow(key) {
            Some(Flow::Source(source)) => source.legs.failure(),
            Some(Flow::Lent(lent)) => lent.loans.failure(),
            _ => None,
        }
    }

    /// Whether a transfer has ended, no byte of it moves and everything was let go.
    pub fn is_over(&self, key: EntryKey) -> bool {
        self.flow(key).is_none_or(Flow::is_over)
    }

    /// The application has failed, or gives it up: both sides end.
    pub fn fail(&mut self, key: EntryKey, cause: FlowCause, words: &str, now: Timestamp) {
        match self.flow_mut(key) {
            Some(Flow::Source(source)) => source.legs.fail_here(cause, words),
            Some(Flow::Lent(lent)) => lent.loans.fail_here(cause, words),
            Some(Flow::Sink(sink)) => end_here(&mut sink.legs, cause, words, now),
            Some(Flow::Pull(pulled)) => end_here(pulled.pull.legs_mut(), cause, words, now),
            None => {}
        }
        self.carry(key, now);
    }

    /// Nobody will ask for it any more. One that stands is given up; of one that has ended, what was not taken is let go.
    pub fn release(&mut self, key: EntryKey, now: Timestamp) {
        if self.status(key).is_some_and(|status| !status.is_end()) {
            self.fail(key, FlowCause::Aborted, "its handle was dropped", now);
        } else {
            // What has landed and was not taken is let go.
            match self.flow_mut(key) {
                Some(Flow::Sink(sink)) if !planted::is(Bug::LandedKeptByNobody) => sink.legs.abort(now),
                Some(Flow::Pull(pulled)) => pulled.pull.legs_mut().abort(now),
                _ => {}
            }
            self.carry(key, now);
        }
        if let Some(held) = self.transfers.get_mut(key) {
            held.is_released = true;
        }
        self.let_go_if_over(key, now);
    }
}

/// The sink's application gives it up, or has failed.
fn end_here(legs: &mut SinkLegs, cause: FlowCause, words: &str, now: Timestamp) {
    if cause == FlowCause::Aborted { legs.abort(now) } else { legs.fail_here(cause, words, now) }
}
