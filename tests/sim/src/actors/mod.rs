//! The applications of a run: they carry deeds out and do what is asked of them, by the public interface only, and never wait.

mod receiving;
mod sending;
pub mod turns;

use std::time::Duration;

use penstock::flows::{FlowError, RequestId, Send, Status, TransferId};
use penstock::memory::BlockId;
use penstock::{Blocks, Peer, Timestamp};

use crate::calls::{Ended, Told};

use crate::deed::{Case, Half, Script};
use crate::env::SimEnv;
use crate::leases::{LeaseWatch, Talk};
use crate::oracle::{Invariant, Violated};
use crate::random::Random;
use crate::stage::{LAYERS, Stage};
use receiving::Receiving;
use sending::Sending;

/// Some keep what they gave for so long.
const KEPT_FOR: Duration = Duration::from_millis(1);

/// Cases, turns and lives have other numbers.
const READERS: usize = 1 << 16;
/// What transfers are called that begin over blocks of others, and are given up.
const READER: &str = "reader";

/// Whether a request is one of those.
pub(crate) fn is_reader(request: &RequestId) -> bool {
    request.as_str().starts_with(READER)
}

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// How a half ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When.
    pub at: Timestamp,
    /// Its cause in words, where it failed.
    pub failure: Option<String>,
}

/// One half of a case, as its application has it.
pub struct Actor {
    /// Which case.
    pub case: usize,
    /// Which half.
    pub half: Half,
    /// Where its engine sits, and in which life it was there.
    pub seat: usize,
    life: u32,
    spec: Case,
    transfer: TransferId,
    /// What this side's scheduler calls it.
    pub request: RequestId,
    /// When its application began it; the engine may have refused so far.
    pub begun: Timestamp,
    /// Since when the engine has it.
    pub admitted: Option<Timestamp>,
    doing: Doing,
    /// Of its engine, for a source; of its sources, for a sink.
    epochs: Vec<u64>,
    /// The sources of a sink, by rank.
    heard_by: Vec<HeardBy>,
    /// A sink has said something of itself to its sources, if they can be reached.
    has_spoken: bool,
    /// A sink whose pool had too few blocks, and that was to fail then.
    pub lacked_memory: bool,
    /// What a source lends to its only sink.
    lease: Option<LeaseWatch>,
    /// How it ended.
    pub end: Option<End>,
    /// It is given up as soon as that can be said.
    wish: Option<Wish>,
    /// Its application is done with it, and has dropped it.
    pub is_gone: bool,
    drop_at: Option<Timestamp>,
    /// What its engine was given of its memory, and may not be done with.
    memory: Vec<BlockId>,
    /// What of that may be touched although it has failed, until its engine says otherwise.
    quarantined: Vec<BlockId>,
    is_quarantined: bool,
    /// Its engine has said that nothing touches that any more.
    is_quiet: bool,
    /// Its engine has said that the request has finished, and how.
    pub finished: Option<bool>,
}

/// A source, as a sink has met it.
struct HeardBy {
    seat: usize,
    peer: Peer<SimEnv>,
    /// How long it could have heard what the sink had said.
    span: Duration,
    /// The sink goes on with it in another session than the first, in which it has to say again what nobody has heard.
    is_resumed: bool,
}

impl HeardBy {
    /// The sink goes on in this session. Who has heard of it before knows it, and fails when it does not come back.
    fn resumed(&mut self, peer: Peer<SimEnv>) {
        if self.span < HEARD_WITHIN {
            (self.span, self.is_resumed) = (Duration::ZERO, true);
        }
        self.peer = peer;
    }
}

/// What a sink has said is heard within this, where somebody listens and the link passes.
const HEARD_WITHIN: Duration = Duration::from_millis(20);

/// What an application wants of a half beyond its course.
#[derive(Debug, Clone, Copy)]
pub enum Wish {
    /// It says that it has failed.
    Fail,
    /// It wants its blocks back.
    Abort,
    /// It drops the handle.
    Drop,
}

enum Doing {
    /// The engine does not have it yet.
    Waiting,
    Sending(Sending),
    Receiving(Receiving),
}

/// What a case's applications have been told to do so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Course {
    /// Chunks that are computed.
    pub chunks: u64,
    /// Of so many chunks each layer is computed.
    pub layers: [u64; LAYERS],
}

fn end_error(words: String) -> Violated {
    Violated::new(Invariant::OneEndEach, words)
}

impl Actor {
    /// A half that begins now.
    pub fn new(script: &Script, case: usize, half: Half, stage: &Stage<'_>) -> Self {
        let (sources, sinks) = script.sides(case);
        let seat = match half {
            Half::Source(rank) => sources[usize::from(rank)],
            Half::Sink(rank) => sinks[usize::from(rank)],
        };
        let transfer = TransferId::mint(UUID, case as u32, 0).expect("the text is a UUID");
        let request = RequestId::new(&format!("request {case} of {half:?}")).expect("the text is short");
        let is_lent_to_one =
            script.cases[case].is_pull && matches!(half, Half::Source(_)) && (sources.len(), sinks.len()) == (1, 1);
        Self {
            case,
            half,
            seat,
            life: stage.seats[seat].life,
            spec: script.cases[case],
            transfer,
            request,
            begun: stage.world.now(),
            admitted: None,
            doing: Doing::Waiting,
            epochs: Vec::new(),
            heard_by: Vec::new(),
            has_spoken: false,
            lacked_memory: false,
            lease: script.cases[case]
                .lease
                .filter(|_| is_lent_to_one && !script.cases[case].is_misfit)
                .map(LeaseWatch::new),
            end: None,
            wish: None,
            is_gone: stage.seats[seat].node().is_none(),
            drop_at: None,
            memory: Vec::new(),
            quarantined: Vec::new(),
            is_quarantined: false,
            is_quiet: false,
            finished: None,
        }
    }

    /// Whether its engine has died since.
    pub fn is_dead(&self, stage: &Stage<'_>) -> bool {
        stage.seats[self.seat].life != self.life
    }

    /// Its application wants this.
    pub fn wishes(&mut self, wish: Wish) {
        self.wish = Some(wish);
    }

    /// Lets go of its handle.
    pub fn forget(&mut self) {
        self.doing = Doing::Waiting;
        self.is_gone = true;
    }

    /// Its engine is dead: everything of it is let go.
    pub fn die(&mut self) {
        self.forget();
        self.heard_by.clear();
    }

    /// Whether it has to know what becomes of the other: one is a source in the life in which the other knows it. A sink knows its
    /// sources from its beginning; a source knows a sink when it has heard of it, and no sooner.
    pub fn has_to_know(&self, other: &Self) -> bool {
        match (self.half, other.half) {
            (Half::Source(rank), Half::Sink(_)) => {
                let heard = other.heard_by.get(usize::from(rank)).is_some_and(|source| source.span >= HEARD_WITHIN);
                heard && other.is_sink_of(self, rank)
            }
            (Half::Sink(_), Half::Source(rank)) => self.is_sink_of(other, rank),
            _ => false,
        }
    }

    fn is_sink_of(&self, source: &Self, rank: u16) -> bool {
        self.case == source.case && self.epochs.get(usize::from(rank)) == source.epochs.first()
    }

    /// So much time has passed in which this source may have heard of this sink: it listens, the link passes, and the session in which
    /// the sink has spoken stands.
    pub fn may_be_heard(&mut self, source: &Self, passed: Duration, stage: &Stage<'_>) {
        let Half::Source(rank) = source.half else { return };
        if !self.has_spoken || source.admitted.is_none() || !self.is_sink_of(source, rank) {
            return;
        }
        let Some(heard_by) = self.heard_by.get_mut(usize::from(rank)) else { return };
        let (here, there) = (&stage.seats[self.seat], &stage.seats[heard_by.seat]);
        let passes = || stage.world.passes(here.player().host, there.player().host);
        // Who has ended before that says nothing again.
        let says_nothing = heard_by.is_resumed && self.end.is_some();
        if heard_by.span < HEARD_WITHIN
            && !says_nothing
            && here.is_awake()
            && there.is_awake()
            && heard_by.peer.ended().is_none()
            && passes()
        {
            heard_by.span += passed;
        }
    }

    /// How it stands, by name.
    pub fn status(&self) -> Option<Status> {
        match &self.doing {
            Doing::Waiting => None,
            Doing::Sending(sending) => Some(sending.output.status()),
            Doing::Receiving(receiving) => Some(receiving.input.status()),
        }
    }

    /// Whether it is a source whose lease is watched.
    pub fn lends(&self) -> bool {
        self.lease.is_some() && !self.is_gone
    }

    /// Whether it is a sink that knows this one as a source.
    pub fn needs(&self, source: &Self) -> bool {
        match (self.half, source.half) {
            (Half::Sink(_), Half::Source(rank)) => self.is_sink_of(source, rank),
            _ => false,
        }
    }

    /// Whether it reads what this source lends, and its engine is still the one that did.
    pub fn reads(&self, source: &Self, stage: &Stage<'_>) -> bool {
        self.needs(source) && !self.is_dead(stage)
    }

    /// Time has passed over what a source has lent, to a reader that lives or does not.
    pub fn watch_lease(&mut self, script: &Script, is_read: bool, stage: &Stage<'_>) -> Result<(), Violated> {
        let Some(lease) = self.lease.as_mut().filter(|_| !self.is_gone) else { return Ok(()) };
        let now = stage.world.now();
        if let Some(end) = &self.end {
            let is_expired = end.failure.as_ref().is_some_and(|words| words.starts_with("Expired"));
            let came = if is_expired { lease.expired(end.at) } else { Ok(()) };
            self.lease = None;
            return came;
        }
        let (_, sinks) = script.sides(self.case);
        let (here, there) = (&stage.seats[self.seat], &stage.seats[sinks[0]]);
        let (lender, reader) = (here.player().host, there.player().host);
        let is_reader_awake = is_read && there.is_awake();
        let talk = Talk {
            is_lender_awake: here.is_awake(),
            is_reader_heard: is_reader_awake && stage.world.passes(reader, lender),
            is_lender_heard: is_reader_awake && stage.world.passes(lender, reader),
        };
        lease.stands(talk, now)
    }

    /// The application looks at it and does what there is to do. Its engine is awake.
    pub fn turn(
        &mut self,
        script: &Script,
        course: &Course,
        stage: &mut Stage<'_>,
        random: &mut Random,
    ) -> Result<(), Violated> {
        if self.is_gone {
            return Ok(());
        }
        let now = stage.world.now();
        if matches!(self.doing, Doing::Waiting) {
            if self.wish.is_some() || now >= self.begun + self.spec.within {
                self.is_gone = true;
            } else {
                self.begin(script, stage)?;
            }
            return Ok(());
        }
        if let Some(wish) = self.wish.take() {
            self.is_quiet |= self.give_up(wish, now);
            if self.is_gone {
                return Ok(());
            }
            self.give_away(stage);
        }
        let before = self.end.clone();
        match &mut self.doing {
            Doing::Waiting => {}
            Doing::Sending(sending) => {
                sending.turn((self.case, &self.spec), course, &mut self.end, stage, self.seat, random)?;
                self.memory.append(&mut sending.ids);
            }
            Doing::Receiving(receiving) => {
                receiving.turn((self.case, &self.spec), &mut self.end, stage, self.seat, random)?;
                if self.end.is_none() {
                    receiving.go_on(self.case, self.seat, &mut self.heard_by, stage)?;
                }
                self.has_spoken |= receiving.has_granted;
                self.lacked_memory |= receiving.lacked_memory;
                self.memory.append(&mut receiving.ids);
            }
        }
        self.has_spoken |= self.end.is_some();
        let is_lent = self.lease.is_some() && self.status() == Some(Status::Transferring);
        if let Some(lease) = self.lease.as_mut().filter(|_| is_lent) {
            lease.lent(now);
        }
        self.check_end(before.as_ref())?;
        self.give_away(stage);
        if self.end.is_some() && self.is_done_with() {
            let at = *self.drop_at.get_or_insert(now + Duration::from_micros(random.below(20_000) as u64));
            if now >= at {
                self.forget();
            }
        }
        Ok(())
    }

    /// An end stays what it is.
    fn check_end(&self, before: Option<&End>) -> Result<(), Violated> {
        let status = self.status();
        let is_as_told = match (&self.end, status) {
            (Some(end), Some(status)) => status == if end.failure.is_some() { Status::Failed } else { Status::Success },
            _ => true,
        };
        if !is_as_told || before.is_some_and(|before| Some(before) != self.end.as_ref()) {
            let words =
                format!("case {} {:?} ended as {before:?}, and is {:?}, {status:?}", self.case, self.half, self.end);
            return Err(end_error(words));
        }
        Ok(())
    }

    /// Nothing is left to be done for it.
    fn is_done_with(&self) -> bool {
        match &self.doing {
            Doing::Receiving(receiving) => receiving.take_at.is_none(),
            _ => true,
        }
    }

    /// Answers whether nothing of it moves any more, as far as is known at once.
    fn give_up(&mut self, wish: Wish, now: Timestamp) -> bool {
        match (wish, &mut self.doing) {
            (Wish::Drop, _) => {
                // Nobody is left who could be told how it ended.
                self.end.get_or_insert(End { at: now, failure: Some("dropped".to_owned()) });
                self.has_spoken = true;
                self.forget();
                false
            }
            (Wish::Fail, Doing::Sending(sending)) => {
                sending.output.fail("simulated");
                false
            }
            (Wish::Fail, Doing::Receiving(receiving)) => {
                receiving.input.fail("simulated");
                false
            }
            (Wish::Abort, Doing::Sending(sending)) => sending.output.abort(Duration::ZERO),
            (Wish::Abort, Doing::Receiving(receiving)) => receiving.abort(),
            (_, Doing::Waiting) => false,
        }
    }

    /// Its engine has said that it has finished, or that what was still touched of it is not any more.
    pub(crate) fn has_finished(&mut self, told: &Told, stage: &mut Stage<'_>) {
        if told.how == Ended::Released {
            self.memory.append(&mut self.quarantined);
            self.is_quarantined = false;
        } else {
            self.finished = Some(told.how == Ended::Well);
            let is_touched = |id: &BlockId| told.quarantined.contains(&id.index);
            (self.quarantined, self.memory) = std::mem::take(&mut self.memory).into_iter().partition(is_touched);
            self.is_quarantined = !told.quarantined.is_empty();
        }
        self.is_quiet = true;
        if let Doing::Receiving(receiving) = &mut self.doing
            && told.how == Ended::Failed
            && self.spec.gives_at_once
        {
            receiving.let_go();
        }
        self.give_away(stage);
    }

    /// Nothing touches its memory any more, and it needs nothing of it: somebody else has it now.
    fn give_away(&mut self, stage: &mut Stage<'_>) {
        let is_needed = matches!(&self.doing, Doing::Receiving(_)) && (self.end.is_none() || !self.is_done_with());
        if self.is_quiet && !is_needed && !self.memory.is_empty() {
            stage.seats[self.seat].give_away(&std::mem::take(&mut self.memory));
        }
    }

    /// Whether its engine has to say yet that it has finished, or that what was quarantined of it is free.
    pub fn is_to_finish(&self, stage: &Stage<'_>) -> bool {
        self.admitted.is_some() && (self.finished.is_none() || self.is_quarantined) && !self.is_dead(stage)
    }

    /// Blocks that it has given to its engine, which are no other transfer's.
    pub fn kept(&self) -> Option<&Blocks> {
        let kept = match &self.doing {
            Doing::Receiving(receiving) => &receiving.kept,
            Doing::Sending(sending) => &sending.kept,
            Doing::Waiting => &None,
        };
        let lives = self.end.is_none() && matches!(self.status(), Some(status) if !status.is_end());
        kept.as_ref().filter(|_| lives).map(|(blocks, _)| blocks)
    }

    /// Several transfers may read the same blocks: another one begins with those that this one has given, and is given up.
    pub fn read_again(&self, number: usize, taken: &Blocks, stage: &Stage<'_>) -> Result<(), Violated> {
        let seat = &stage.seats[self.seat];
        let (Some(node), Some(layout)) = (seat.node(), seat.layout()) else { return Ok(()) };
        if seat.player().has_once {
            return Ok(());
        }
        let transfer = TransferId::mint(UUID, (READERS + number) as u32, 0).expect("the text is a UUID");
        let request = RequestId::new(&format!("{READER} {number}")).expect("the text is short");
        let how = Send::from(layout).rank(seat.player().rank.0, seat.player().rank.1).within(self.spec.within);
        let tokens = taken.len() as u64 * u64::from(seat.player().block_tokens);
        let given = node.produce(transfer, &request, how).and_then(|output| output.chunk(taken, tokens, true));
        given.map_err(|error| end_error(format!("case {}: what it sends is not read twice: {error}", self.case)))
    }

    /// Asks for what its engine has to refuse: to have blocks that another transfer has.
    pub fn grant_again(&self, taken: &Blocks, stage: &mut Stage<'_>) -> Result<(), Violated> {
        match &self.doing {
            Doing::Receiving(receiving) if self.end.is_none() && receiving.may_grant() => {
                let now = stage.world.now();
                receiving.grant_again(self.case, taken, &mut stage.seats[self.seat], now)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, script: &Script, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let begun = match self.half {
            Half::Source(rank) => self.begin_sending(script, rank, stage)?,
            Half::Sink(rank) => self.begin_receiving(script, rank, stage)?,
        };
        if let Some(doing) = begun {
            self.epochs = match &doing {
                Doing::Receiving(receiving) => receiving.epochs.clone(),
                _ => stage.seats[self.seat].node().map(|node| node.epoch().0).into_iter().collect(),
            };
            self.doing = doing;
            self.admitted = Some(stage.world.now());
        }
        Ok(())
    }

    fn refused(&self, error: &FlowError) -> Violated {
        end_error(format!("case {} {:?} is not taken in: {error}", self.case, self.half))
    }
}
