//! The book of all legs of one transfer at its sink.

use penstock_core::Timestamp;
use penstock_session::control::{BLOCKS_MAX, ControlMessage, EndOfData, Grant, SentRows, Side, TransferHead};
use penstock_session::few::{Few, FewMap, FewQueue};

use super::leg::{Granting, Leg, LegEvent};
use super::link::Link;
use super::{Failed, InputEvent, MemoryPolicy, Receive, SinkWish};
use crate::action::BlocksRef;
use crate::cause::FlowCause;
use crate::layout::Layout;
use crate::part::{LegError, PartLanded};
use crate::repeated::repeated;
use crate::runs::Runs;
use crate::status::{Status, StatusEvent};

/// What is to be done as there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMemory {
    /// Ask again when some was let go.
    Wait,
    /// Grant these few blocks; more legs follow.
    Take {
        /// How many.
        blocks: u32,
    },
    /// The transfer has failed.
    Failed,
    /// None is needed.
    Unneeded,
}

/// One rank of the source.
#[derive(Debug)]
pub(super) struct SourceRank {
    pub(super) rank: u16,
    /// The landings that have come.
    pub(super) numbers: Runs,
    /// How many landings it says there are.
    pub(super) seal: Option<u64>,
    /// Which rows it says it has sent.
    pub(super) sent: Few<SentRows>,
    pub(super) link: Link,
    /// Until when it is waited for, if its session broke.
    pub(super) until: Timestamp,
}

/// The legs of one transfer at its sink.
///
/// What happens comes in as calls; what is wanted is fetched by [`SinkLegs::poll_wish`], what the application is to know by
/// [`SinkLegs::next_input_event`].
#[derive(Debug)]
pub struct SinkLegs {
    pub(super) how: Receive,
    pub(super) head: TransferHead,
    pub(super) status: Status,
    pub(super) sources: Few<SourceRank>,
    /// Legs that were not let go, and those behind them.
    pub(super) legs: FewQueue<Granting>,
    pub(super) next_leg: u32,
    /// Where the first leg in the book begins, and the place of its first block among all.
    pub(super) settled: u64,
    places: u64,
    pub(super) total: Option<u64>,
    /// Blocks that are granted and not let go, what goes once among them, and the leg that has each.
    pub(super) blocks_granted: FewMap<u32, u32>,
    /// Blocks that were let go since somebody has asked.
    pub(super) let_go: Few<u32>,
    pub(super) asked_for: Option<u32>,
    /// Why it failed, and the first token that was not there then.
    pub(super) end: Option<(FlowCause, u64)>,
    pub(super) abort_number: u32,
    pub(super) abort_by: Timestamp,
    pub(super) wishes: FewQueue<SinkWish>,
    pub(super) happenings: FewQueue<InputEvent>,
    /// Its bytes are read from here: sources are not told of room, and nobody of a leg before all is confirmed.
    pub(super) is_read: bool,
    refused: u64,
}

impl Receive {
    /// Whether it can be.
    pub(crate) fn check(&self) -> Result<(), LegError> {
        let is_from_somebody = !self.sources.is_empty() && repeated(&self.sources).is_none();
        if is_from_somebody { Ok(()) } else { Err(LegError::Sources) }
    }
}

impl SinkLegs {
    /// A transfer of which nothing has come.
    pub fn new(how: Receive) -> Result<Self, LegError> {
        how.check()?;
        Ok(Self::begin(how))
    }

    /// The same, where that was checked.
    #[inline]
    pub(crate) fn begin(how: Receive) -> Self {
        let source = |&rank: &u16| SourceRank {
            rank,
            numbers: Runs::default(),
            seal: None,
            sent: Few::new(),
            link: Link::Open,
            until: Timestamp::NEVER,
        };
        Self {
            head: TransferHead { transfer: how.transfer, side: Side::Sink, rank: how.rank, ranks: how.ranks },
            status: Status::Bootstrapping,
            sources: how.sources.iter().map(source).collect(),
            legs: FewQueue::new(),
            next_leg: 0,
            settled: how.begin,
            places: 0,
            total: None,
            blocks_granted: FewMap::new(),
            let_go: Few::new(),
            asked_for: None,
            end: None,
            abort_number: 0,
            abort_by: Timestamp::NEVER,
            wishes: FewQueue::new(),
            happenings: FewQueue::new(),
            is_read: false,
            refused: 0,
            how,
        }
    }

    /// The same, of which the bytes are read from here.
    pub(super) fn read(how: Receive) -> Result<Self, LegError> {
        Ok(Self { is_read: true, ..Self::new(how)? })
    }

    /// The source says how many tokens there are in all, before any has come.
    pub(super) fn learn_total(&mut self, total: u64) {
        self.total = Some(total);
        self.ask_memory();
    }

    /// Who says it, of which transfer.
    pub fn head(&self) -> &TransferHead {
        &self.head
    }

    /// Where its blocks are.
    pub fn layout(&self) -> &Layout {
        &self.how.layout
    }

    /// Whether it goes on in another session when its own breaks.
    pub fn is_resumable(&self) -> bool {
        self.how.resumes.is_some()
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The state of a leg that was granted; those let go are [`Leg::Freed`].
    pub fn leg(&self, leg: u32) -> Option<Leg> {
        (leg < self.next_leg).then(|| self.granting(leg).map_or(Leg::Freed, |granting| granting.state))
    }

    /// The number of the next leg.
    pub fn next_leg(&self) -> u32 {
        self.next_leg
    }

    /// How many tokens the source has in all, if that is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The first token that is not there in all layers: a transfer that goes on elsewhere goes on from there.
    pub fn confirmed(&self) -> u64 {
        if let Some((_, confirmed)) = self.end {
            return confirmed;
        }
        let mut confirmed = self.settled;
        for leg in &self.legs {
            if leg.range(self.total).0 != confirmed {
                break;
            }
            confirmed = if leg.state == Leg::Freed { leg.range(self.total).1 } else { leg.confirmed(self.total) };
        }
        confirmed
    }

    /// How many tokens have come in all layers, beyond those that were here already.
    pub fn received(&self) -> u64 {
        self.confirmed().saturating_sub(self.how.begin)
    }

    /// How many things were said of it that made no sense.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether it has ended and everything was let go.
    pub fn is_over(&self) -> bool {
        self.status.is_end() && self.legs.is_empty()
    }

    /// Whether it has ended and nothing can land in blocks of its legs any more. What has landed may not be taken yet.
    pub fn is_quiet(&self) -> bool {
        self.status.is_end() && !self.legs.iter().any(|leg| leg.state.is_open())
    }

    /// The blocks in which something may still land, in ascending order, and those that take what goes once.
    pub fn open_blocks(&self) -> (Vec<u32>, Vec<u32>) {
        let open = || self.legs.iter().filter(|leg| leg.state.is_open());
        let mut blocks: Vec<u32> = open().flat_map(|leg| leg.blocks.iter().copied()).collect();
        blocks.sort_unstable();
        (blocks, open().filter_map(|leg| leg.once).collect())
    }

    /// The state of the leg that has this block, if one has.
    pub fn leg_with(&self, block: u32) -> Option<Leg> {
        self.leg(*self.blocks_granted.get(&block)?)
    }

    /// The blocks of the leg that was granted last and was not let go, and the one that takes what goes once.
    pub fn last_granted(&self) -> Option<(&[u32], Option<u32>)> {
        self.legs.back().map(|leg| (&leg.blocks[..], leg.once))
    }

    /// The blocks that no leg has any more, since the last call.
    pub fn take_let_go(&mut self) -> Few<u32> {
        std::mem::take(&mut self.let_go)
    }

    /// The tickets of the legs whose blocks were not let go.
    pub fn keeps(&self) -> impl Iterator<Item = BlocksRef> + '_ {
        self.legs.iter().filter(|leg| leg.state != Leg::Freed).map(|leg| leg.keep)
    }

    /// What is wanted next.
    pub fn poll_wish(&mut self) -> Option<SinkWish> {
        self.wishes.pop_front()
    }

    /// Whether something is wanted.
    pub fn has_wish(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The legs whose bytes are here and were not taken, in their order.
    pub fn landed_legs(&self) -> impl Iterator<Item = u32> + '_ {
        self.legs.iter().filter(|leg| leg.state == Leg::Landed).map(|leg| leg.number)
    }

    /// Whether the application does not know of something yet.
    pub fn has_input_event(&self) -> bool {
        !self.happenings.is_empty()
    }

    /// How it failed, if it did and its application has not been told yet.
    pub fn failed(&self) -> Option<&Failed> {
        self.happenings.iter().find_map(|event| match event {
            InputEvent::Failed(failed) => Some(&**failed),
            _ => None,
        })
    }

    /// What the application is to know next.
    pub fn next_input_event(&mut self) -> Option<InputEvent> {
        self.happenings.pop_front()
    }

    /// For how many tokens memory is needed now.
    pub fn wanted(&self) -> Option<u64> {
        if self.status.is_end() || self.live() >= self.how.ahead {
            return None;
        }
        let next = self.granted_end();
        let most = BLOCKS_MAX as u64 * u64::from(self.how.layout.block_tokens());
        match self.total {
            Some(total) => Some(total.saturating_sub(next).min(most)).filter(|&tokens| tokens > 0),
            None if self.legs.iter().any(|leg| leg.state == Leg::Granted) => None,
            None => Some(self.how.tokens_default.min(most)),
        }
    }

    /// There is no memory, only so many free blocks.
    pub fn no_memory(&mut self, free_blocks: u32, now: Timestamp) -> NoMemory {
        let Some(tokens) = self.wanted() else { return NoMemory::Unneeded };
        match self.how.memory {
            MemoryPolicy::Fail => {
                let words = format!("there was no memory for {tokens} more tokens");
                self.fail(FlowCause::NoMemory, Side::Sink, None, words, now);
                NoMemory::Failed
            }
            MemoryPolicy::Shrink if free_blocks > 0 => {
                let needed = tokens.div_ceil(u64::from(self.how.layout.block_tokens()));
                NoMemory::Take { blocks: u32::try_from(needed).unwrap_or(u32::MAX).min(free_blocks) }
            }
            MemoryPolicy::Shrink | MemoryPolicy::Wait => NoMemory::Wait,
        }
    }

    /// Grants blocks under the number of a leg. The same again changes nothing, and says so by `false`.
    pub fn grant(
        &mut self,
        leg: u32,
        blocks: Vec<u32>,
        skip: u32,
        once: Option<u32>,
        keep: BlocksRef,
    ) -> Result<bool, LegError> {
        self.may_go_on()?;
        if leg < self.next_leg {
            return match self.granting(leg) {
                Some(old) if (&old.blocks, old.skip, old.once, old.keep) != (&blocks, skip, once, keep) => {
                    Err(LegError::Differs { leg })
                }
                _ => Ok(false),
            };
        }
        if leg > self.next_leg {
            return Err(LegError::Order { expected: self.next_leg, found: leg });
        }
        if self.live() >= self.how.ahead {
            return Err(LegError::TooManyAhead { most: self.how.ahead });
        }
        let capacity = self.room_of(&blocks, skip)?;
        self.check_tail(leg, &blocks, skip)?;
        if leg == 0 && once.is_none() && self.how.layout.has_once() {
            return Err(LegError::OnceMissing);
        }
        if let Some(block) = once.filter(|&block| block >= self.how.layout.blocks()) {
            return Err(LegError::NoSuchBlock { block, blocks: self.how.layout.blocks() });
        }
        self.blocks_granted.extend(blocks.iter().map(|&block| (block, leg)));
        // What goes once lies beside the rows of its block: the same block may be granted for both.
        if let Some(block) = once.filter(|block| !self.blocks_granted.contains_key(block)) {
            self.blocks_granted.insert(block, leg);
        }
        let from = self.granted_end();
        let layers = self.how.layout.layers() as usize;
        let first_place = self.places;
        self.places += blocks.len() as u64;
        let landed = Few::of(Runs::default(), layers * self.sources.len());
        self.legs.push_back(Granting {
            number: leg,
            state: Leg::Granted,
            from,
            capacity,
            agreed: None,
            blocks,
            skip,
            once,
            keep,
            first_place,
            landed,
            told: Few::of(false, layers),
        });
        if !self.is_read {
            // Who is waited for hears of it when it is there again.
            for at in (0..self.sources.len()).filter(|&at| self.sources[at].link == Link::Open) {
                let (source, said) = (self.sources[at].rank, ControlMessage::Grant(self.grant_of(self.legs.len() - 1)));
                self.wishes.push_back(SinkWish::Say { source, said });
            }
        }
        self.next_leg += 1;
        self.status.on(StatusEvent::AllGranted);
        if self.is_read {
            // Nothing lands one by one of what is read: what is needed beyond this leg is known now.
            self.ask_memory();
        }
        Ok(true)
    }

    /// What is said of a leg in the book.
    pub(super) fn grant_of(&self, place: usize) -> Grant {
        let (leg, news) = (&self.legs[place], self.how.layout.news());
        Grant {
            head: self.head,
            leg: leg.number,
            layout: news.number,
            layout_generation: news.generation,
            from: leg.from,
            skip: leg.skip,
            capacity: leg.capacity,
            once: leg.once,
            resumes: false,
            urgency: self.how.urgency,
            blocks: Few::from(&leg.blocks[..]),
            trace: self.how.trace.clone().into(),
        }
    }

    /// A part has landed. One that was told before changes nothing, and says so by `false`.
    pub fn landed(&mut self, source: u16, part: &PartLanded, now: Timestamp) -> Result<bool, LegError> {
        let checked = self.check_part(source, part);
        self.count(checked)?.map_or(Ok(false), |source| {
            self.sources[source].numbers.add(part.number..part.number + 1);
            self.total = self.total.or(part.total);
            self.status.on(StatusEvent::Input);
            let leg = self.granting_mut(part.leg).expect("a part was checked to be of a leg in the book");
            leg.agreed = Some((part.leg_from, part.leg_tokens));
            leg.mark(source, part);
            leg.on(LegEvent::Part);
            self.correct_begins();
            self.look(now);
            Ok(true)
        })
    }

    /// A source has sent everything. Said again it changes nothing, and says so by `false`.
    pub fn sealed(&mut self, source: u16, seal: &EndOfData, now: Timestamp) -> Result<bool, LegError> {
        let checked = self.check_seal(source, seal);
        self.count(checked)?.map_or(Ok(false), |source| {
            self.sources[source].seal = Some(seal.parts);
            self.sources[source].sent = seal.rows.clone();
            self.total = Some(seal.tokens);
            self.look(now);
            Ok(true)
        })
    }

    /// What a leg brought was copied out, or handed over: its blocks are let go. Said again it changes nothing, and says so by `false`.
    pub fn taken(&mut self, leg: u32) -> Result<bool, LegError> {
        if leg >= self.next_leg {
            return Err(LegError::NoSuchLeg { leg, next: self.next_leg });
        }
        let Some(granting) = self.granting(leg) else { return Ok(false) };
        if granting.state == Leg::Freed {
            return Ok(false);
        }
        if granting.state != Leg::Landed {
            return Err(LegError::NotLanded { leg });
        }
        let place = self.place_of(leg).expect("it was found");
        self.step(place, LegEvent::CopiedOut);
        self.forget_freed();
        self.ask_memory();
        Ok(true)
    }

    pub(super) fn granting(&self, leg: u32) -> Option<&Granting> {
        self.place_of(leg).map(|place| &self.legs[place])
    }

    fn granting_mut(&mut self, leg: u32) -> Option<&mut Granting> {
        let place = self.place_of(leg)?;
        self.legs.get_mut(place)
    }

    fn place_of(&self, leg: u32) -> Option<usize> {
        let place = leg.checked_sub(self.legs.front()?.number)? as usize;
        (place < self.legs.len()).then_some(place)
    }

    fn live(&self) -> u32 {
        self.legs.iter().filter(|leg| leg.state != Leg::Freed).count() as u32
    }

    fn granted_end(&self) -> u64 {
        self.legs.back().map_or(self.settled, Granting::end)
    }

    fn count<T>(&mut self, checked: Result<T, LegError>) -> Result<T, LegError> {
        self.refused += u64::from(checked.is_err());
        checked
    }

    pub(super) fn told(&mut self, failed: Failed) {
        self.happenings.push_back(InputEvent::Failed(Box::new(failed)));
    }
}
