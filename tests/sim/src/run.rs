//! One run of a script, or of a part of it: deeds are done, applications look, and the oracle looks at both.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use penstock::Timestamp;
use penstock::flows::{RequestId, Status};

use crate::actors::turns::Turns;
use crate::actors::{Actor, Course, End, Wish, is_reader};
use crate::calls::{self, Ended};
use crate::chunks::{Handler, request};
use crate::copies;
use crate::deed::{Act, HEARTBEAT, Half, RESUME, Script};
use crate::links::Weather;
use crate::lives::Lives;
use crate::oracle::{Invariant, Violated};
use crate::random::Random;
use crate::stage::Stage;
use crate::streams::{Outlook, Streams};
use crate::world::World;

/// When the last deed is done everything heals, and all that goes on has to be over within this.
const OVER_WITHIN: Duration = Duration::from_secs(60);
/// What has failed is fetched so soon: `control.abort_ms` after that at the latest.
const NAMED_WITHIN: Duration = Duration::from_secs(1);
/// Within this a failure is known to everybody who is not cut off.
pub(crate) const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// Within this a chunk is handed over to readers that ask for it, however late they do.
const HANDED_OVER_WITHIN: Duration = Duration::from_millis(200);
/// Steps in which something has happened, from one look at all tables to the next.
const LOOKS: u32 = 48;
/// A scheduler asks once in so many steps what has finished.
const DRAIN_ONCE_IN: usize = 8;
/// Once in so many steps somebody grants what another transfer has.
const GRANT_AGAIN_ONCE_IN: usize = 8;
/// An application looks once in so many steps.
pub(crate) const TURN_ONCE_IN: usize = 4;

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Halves that ended well.
    pub well: u32,
    /// Halves that failed, as they may.
    pub failed: u32,
    /// Transfers that ended well, and whose bytes went through staging memory.
    pub staged: u32,
    /// A number that stands for everything that has happened.
    pub trace: u64,
    /// How many events there were.
    pub events: u64,
}

/// Does the deeds at these places of the script's list. A panic is what any other violation is.
pub fn perform(script: &Script, keep: &[usize]) -> Result<Account, Violated> {
    let body = || {
        if script.copying.is_some() {
            return copies::perform(script, keep);
        }
        let world = World::new(script.seed);
        let mut run = Run::open(&world, script, keep)?;
        run.go()?;
        let account = run.close()?;
        Ok(Account { trace: world.trace_hash(), events: world.events(), ..account })
    };
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panicked| Err(Violated::new(Invariant::NothingPanics, words_of(&*panicked))))
}

fn words_of(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or(panicked.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

struct Run<'s, 'w> {
    script: &'s Script,
    keep: &'s [usize],
    actors: Vec<Actor>,
    /// Those who put and fetch chunks.
    handlers: Vec<Handler>,
    turns: Turns,
    /// Those who stream and join.
    streams: Streams<'s>,
    /// Schedulers of requests.
    lives: Lives,
    courses: Vec<Course>,
    /// What each engine has said to have finished, in this life of it.
    finished: Vec<BTreeMap<RequestId, bool>>,
    /// How many transfers have been begun over blocks of others, and given up at once.
    readers: usize,
    stage: Stage<'w>,
    random: Random,
    began: Timestamp,
    /// How many deeds are done.
    done: usize,
    /// Everything kept says that all transfers end well.
    is_calm: bool,
    /// Everybody can be heard at all times.
    is_audible: bool,
    /// Nothing but sessions breaks.
    spares_engines: bool,
}

impl<'s, 'w> Run<'s, 'w> {
    fn open(world: &'w World, script: &'s Script, keep: &'s [usize]) -> Result<Self, Violated> {
        script.receive_bytes.iter().for_each(|&bytes| world.set_receive_bytes(bytes));
        world.set_weather(Weather { frame_bytes_max: script.weather.frame_bytes_max, ..Weather::default() });
        let stage = Stage::open(world, script)?;
        world.set_weather(script.weather);
        let kept = || keep.iter().map(|&place| script.deeds[place].act);
        let is_calm = !kept().any(|act| act.may_fail_transfers());
        let is_audible = !kept().any(|act| act.silences());
        let outlook = Outlook { is_calm, is_audible, is_whole: !kept().any(|act| act.parts()) };
        Ok(Self {
            script,
            keep,
            actors: Vec::new(),
            handlers: Vec::new(),
            turns: Turns::default(),
            streams: Streams::new(script, outlook),
            lives: Lives::default(),
            courses: vec![Course::default(); script.cases.len()],
            readers: 0,
            finished: vec![BTreeMap::new(); script.players.len()],
            stage,
            random: Random::new(script.seed ^ 0xac70_7500),
            began: world.now(),
            done: 0,
            is_audible,
            spares_engines: kept().all(|act| act.spares_engines()),
            is_calm,
        })
    }

    fn now(&self) -> Timestamp {
        self.stage.world.now()
    }

    fn go(&mut self) -> Result<(), Violated> {
        let mut happened = 0;
        let mut healed_at = None;
        loop {
            self.do_deeds();
            self.stage.thaw(false);
            if self.done == self.keep.len() && healed_at.is_none() && self.has_healed() {
                self.stage.world.heal();
                healed_at = Some(self.now());
                self.stage.disturbed = self.now();
            }
            let before = self.now();
            happened += u32::from(self.stage.world.step_idly());
            self.listen(self.now().since(before));
            self.stage.seats.iter_mut().try_for_each(|seat| seat.look())?;
            self.meet_again()?;
            self.turn_actors()?;
            self.drain()?;
            self.grant_again()?;
            self.turn_handlers()?;
            let Self { turns, stage, random, .. } = self;
            turns.turn(self.is_calm, stage, || random.once_in(TURN_ONCE_IN))?;
            self.streams.turn(&mut self.stage, &mut self.random)?;
            self.lives.turn(self.script, &mut self.stage, &mut self.random)?;
            self.watch_leases()?;
            if happened >= LOOKS {
                happened = 0;
                self.stage.seats.iter().try_for_each(|seat| seat.check())?;
                self.stage.world.check_credit()?;
            }
            self.check_times()?;
            let is_over = || {
                let is_over = |actor: &Actor| actor.is_gone && !actor.is_to_finish(&self.stage);
                let are_gone = self.actors.iter().all(is_over) && self.turns.are_over();
                let are_gone = are_gone && self.lives.are_over();
                are_gone && self.handlers.iter().all(|side| side.is_gone) && self.streams.are_over()
            };
            if healed_at.is_some() && is_over() {
                return Ok(());
            }
            if healed_at.is_some_and(|at| self.now().since(at) > OVER_WITHIN) {
                let is_left = |actor: &&Actor| !actor.is_gone || actor.is_to_finish(&self.stage);
                let left = self.actors.iter().find(is_left).map(|actor| (actor.case, actor.half, &actor.end));
                let words = format!("{left:?} is not over {OVER_WITHIN:?} after everything has healed");
                return Err(Violated::new(Invariant::AnswersComeInTime, words));
            }
        }
    }

    /// Nobody stands still any more.
    fn has_healed(&self) -> bool {
        self.stage.seats.iter().all(|seat| seat.frozen_until.is_none())
    }

    fn do_deeds(&mut self) {
        while let Some(&place) = self.keep.get(self.done) {
            let deed = self.script.deeds[place];
            if self.now().since(self.began) < deed.after {
                return;
            }
            self.done += 1;
            self.act(deed.act);
        }
    }

    fn act(&mut self, act: Act) {
        let frame_bytes_max = self.script.weather.frame_bytes_max;
        match act {
            Act::Begin { case, half } => {
                let actor = Actor::new(self.script, case, half, &self.stage);
                self.actors.push(actor);
            }
            Act::Chunk { case } => self.courses[case].chunks += 1,
            Act::Layer { case, layer } => self.courses[case].layers[layer as usize] += 1,
            Act::Fail { case, half } => self.wish(case, half, Wish::Fail),
            Act::Abort { case, half } => self.wish(case, half, Wish::Abort),
            Act::Drop { case, half } => self.wish(case, half, Wish::Drop),
            Act::Crash { player, death } => {
                self.stage.crash(player, death);
                self.finished[player].clear();
                let dead = self.actors.iter_mut().filter(|actor| actor.seat == player);
                dead.for_each(Actor::die);
                self.handlers.iter_mut().filter(|side| side.seat == player).for_each(Handler::forget);
                self.turns.die(player);
                self.streams.crashed(player, self.now());
                self.lives.crashed(player);
            }
            Act::Restart { player, stale } => self.stage.restart(player, stale),
            Act::Freeze { player, span } => self.stage.freeze(player, span),
            Act::Cut { from, to, is_both } => {
                let host = |player: usize| self.script.players[player].host;
                self.stage.world.cut(host(from), host(to));
                if is_both {
                    self.stage.world.cut(host(to), host(from));
                }
                self.stage.disturbed = self.now();
            }
            Act::Heal => {
                self.stage.world.heal();
                self.stage.disturbed = self.now();
            }
            Act::Put { chunk } => self.handle(chunk, None),
            Act::Fetch { chunk, reader } => self.handle(chunk, Some(reader)),
            Act::LetGo { chunk, reader } => {
                let now = self.now();
                let its = self.handlers.iter_mut().filter(|side| (side.chunk, side.reader) == (chunk, reader));
                its.for_each(|side| side.drops(now));
            }
            Act::GiveUp { chunk, player } => self.stage.give_up(player, &request(chunk)),
            Act::Turn { turn, step } => self.turns.act(self.script, turn, step, &mut self.stage),
            Act::Life { life, step } => self.lives.act(self.script, life, step, &self.stage),
            Act::Relay(step) => self.streams.act(step, &mut self.stage),
            // They have runs of their own.
            Act::Copies(_) => {}
            Act::Sever { one, other } => self.stage.sever(one, other),
            Act::HangUp { from, to } => self.stage.hang_up(from, to),
            // The length of packets belongs to sessions that are there.
            Act::Weather(weather) => self.stage.world.set_weather(Weather { frame_bytes_max, ..weather }),
            Act::Starve { player, span } => self.stage.seats[player].starved_until = self.now() + span,
        }
    }

    fn wish(&mut self, case: usize, half: Half, wish: Wish) {
        let its = self.actors.iter_mut().filter(|actor| (actor.case, actor.half) == (case, half));
        its.for_each(|actor| actor.wishes(wish));
    }

    fn handle(&mut self, chunk: usize, reader: Option<usize>) {
        let side = Handler::new(self.script, chunk, reader, &self.stage);
        self.handlers.push(side);
    }

    fn turn_handlers(&mut self) -> Result<(), Violated> {
        for at in 0..self.handlers.len() {
            let side = &mut self.handlers[at];
            if side.is_gone || !self.stage.seats[side.seat].is_awake() || !self.random.once_in(TURN_ONCE_IN) {
                continue;
            }
            side.turn(&mut self.stage)?;
            self.handlers[at].check_put(&self.handlers, &self.stage)?;
        }
        Ok(())
    }

    fn turn_actors(&mut self) -> Result<(), Violated> {
        for at in 0..self.actors.len() {
            let actor = &mut self.actors[at];
            if !self.stage.seats[actor.seat].is_awake() || actor.is_gone || !self.random.once_in(TURN_ONCE_IN) {
                continue;
            }
            let had_ended = actor.end.is_some();
            actor.turn(self.script, &self.courses[actor.case], &mut self.stage, &mut self.random)?;
            if !had_ended {
                self.check_sent(&self.actors[at])?;
            }
        }
        Ok(())
    }

    /// Schedulers ask what has finished; what has belongs to somebody else.
    fn drain(&mut self) -> Result<(), Violated> {
        for seat in 0..self.stage.seats.len() {
            let has_ended = |actor: &Actor| actor.is_gone || actor.end.is_some();
            let may_finish = |actor: &Actor| actor.seat == seat && has_ended(actor) && actor.is_to_finish(&self.stage);
            let is_asked = self.actors.iter().any(may_finish) && self.stage.seats[seat].is_awake();
            if is_asked && self.random.once_in(DRAIN_ONCE_IN) {
                self.drain_one(seat)?;
            }
        }
        Ok(())
    }

    fn drain_one(&mut self, seat: usize) -> Result<(), Violated> {
        for told in calls::finished(&self.stage.seats[seat]) {
            let its = self.actors.iter_mut().filter(|actor| actor.seat == seat && actor.request == told.request);
            let its = its.filter(|actor| actor.is_to_finish(&self.stage)).collect::<Vec<_>>();
            its.into_iter().for_each(|actor| actor.has_finished(&told, &mut self.stage));
            let so_far = self.finished[seat].get(&told.request);
            let is_right = match told.how {
                Ended::Released => so_far == Some(&false),
                _ => so_far.is_none(),
            };
            if !is_right {
                let words = format!("{:?} has finished, well: {so_far:?}, and then as {:?}", told.request, told.how);
                return Err(Violated::new(Invariant::OneEndEach, words));
            }
            self.finished[seat].insert(told.request, told.how == Ended::Well);
        }
        Ok(())
    }

    /// Somebody asks an engine to have blocks of one transfer in another one as well, which is refused.
    fn grant_again(&mut self) -> Result<(), Violated> {
        if self.actors.len() < 2 || !self.random.once_in(GRANT_AGAIN_ONCE_IN) {
            return Ok(());
        }
        let have = |actor: &&Actor| actor.kept().is_some() && self.stage.seats[actor.seat].is_awake();
        let Some(one) = self.actors.iter().find(have) else { return Ok(()) };
        let is_other = |actor: &&Actor| actor.seat == one.seat && (actor.case, actor.half) != (one.case, one.half);
        let Some(taken) = one.kept().cloned() else { return Ok(()) };
        self.actors.iter().filter(is_other).try_for_each(|other| other.grant_again(&taken, &mut self.stage))?;
        if matches!(one.half, Half::Source(_)) {
            self.readers += 1;
            one.read_again(self.readers, &taken, &self.stage)?;
        }
        Ok(())
    }

    /// Engines whose transfers may be resumed do not stay apart: who has everything has to say so in the next session, too.
    fn meet_again(&mut self) -> Result<(), Violated> {
        for at in 0..self.actors.len() {
            let actor = &self.actors[at];
            let (Half::Sink(_), true) = (actor.half, self.script.cases[actor.case].is_resumable) else { continue };
            let (seat, case) = (actor.seat, actor.case);
            if !self.stage.seats[seat].is_awake() || !self.random.once_in(TURN_ONCE_IN) {
                continue;
            }
            for source in self.script.sides(case).0 {
                self.stage.meet(seat, source)?;
            }
        }
        Ok(())
    }

    /// Sources hear of their sinks while the links between them pass.
    fn listen(&mut self, passed: Duration) {
        for at in 0..self.actors.len() {
            let (before, rest) = self.actors.split_at_mut(at);
            let Some((sink, after)) = rest.split_first_mut() else { return };
            let others = before.iter().chain(after.iter());
            others.for_each(|source| sink.may_be_heard(source, passed, &self.stage));
        }
    }

    /// A source that has sent everything has heard so from everybody who needs it. A lender knows it before its reader does.
    fn check_sent(&self, source: &Actor) -> Result<(), Violated> {
        if source.end.as_ref().is_none_or(|end| end.failure.is_some()) || self.script.cases[source.case].is_pull {
            return Ok(());
        }
        let lacks = |sink: &&Actor| sink.needs(source) && sink.status().is_some_and(|status| status != Status::Success);
        match self.actors.iter().find(lacks) {
            None => Ok(()),
            Some(sink) => {
                let words = format!(
                    "case {} {:?} has ended well, and {:?} is {:?}",
                    source.case,
                    source.half,
                    sink.half,
                    sink.status()
                );
                Err(Violated::new(Invariant::OneEndEach, words))
            }
        }
    }

    fn watch_leases(&mut self) -> Result<(), Violated> {
        self.turns.watch_leases(self.script, &self.stage)?;
        for at in 0..self.actors.len() {
            if self.actors[at].lends() {
                let is_read = self.actors.iter().any(|sink| sink.reads(&self.actors[at], &self.stage));
                self.actors[at].watch_lease(self.script, is_read, &self.stage)?;
            }
        }
        Ok(())
    }

    /// Every half ends in its time, and soon after the first half of its case that failed.
    fn check_times(&self) -> Result<(), Violated> {
        let now = self.now();
        let is_cut_off = self.done < self.keep.len() || !self.has_healed();
        // Whoever cannot be reached is known to be gone when it was silent for so long.
        let patience = KNOWN_WITHIN + if self.is_audible { Duration::ZERO } else { 4 * HEARTBEAT };
        if !is_cut_off {
            self.streams.check_times(&self.stage)?;
        }
        for actor in self.actors.iter().filter(|actor| !actor.is_gone && actor.end.is_none()) {
            let Some(admitted) = actor.admitted else { continue };
            let its_time = admitted + self.script.cases[actor.case].within;
            if now > its_time.max(self.stage.disturbed) + KNOWN_WITHIN && self.stage.seats[actor.seat].is_awake() {
                let words = format!("case {} {:?} was to end at {its_time:?} and has not", actor.case, actor.half);
                return Err(Violated::new(Invariant::AnswersComeInTime, words));
            }
            if is_cut_off {
                continue;
            }
            let others = self.actors.iter().filter(|other| actor.has_to_know(other));
            let failed = others.filter_map(|other| other.end.as_ref().filter(|end| end.failure.is_some()));
            let Some(first) = failed.map(|end| end.at).min() else { continue };
            // Who waits for another session may have heard nothing in the last one.
            let waits = if self.script.cases[actor.case].is_resumable { RESUME } else { Duration::ZERO };
            let known_at = first.max(admitted).max(self.stage.disturbed) + patience + waits;
            if now > known_at {
                let words = format!("case {} failed at {first:?}, and {:?} does not know", actor.case, actor.half);
                return Err(Violated::new(Invariant::AnswersComeInTime, words));
            }
        }
        Ok(())
    }

    fn close(mut self) -> Result<Account, Violated> {
        self.stage.world.check_credit()?;
        self.fetch_finished()?;
        self.check_finished()?;
        self.check_all_well()?;
        self.check_handed_over()?;
        if self.is_calm {
            self.turns.check_well()?;
            self.lives.check_well()?;
        }
        self.streams.check_well()?;
        let ended = || self.actors.iter().filter_map(|actor| actor.end.as_ref());
        let ends = ended().map(|end| end.failure.is_none()).chain(self.handlers.iter().filter_map(Handler::outcome));
        let ends = ends.chain(self.turns.outcomes()).chain(self.streams.outcomes()).chain(self.lives.outcomes());
        let (well, failed): (Vec<bool>, Vec<bool>) = ends.partition(|is_well| *is_well);
        let account = Account { well: well.len() as u32, failed: failed.len() as u32, ..Account::default() };
        // Handles go before their engines do.
        self.actors.clear();
        self.handlers.clear();
        self.turns = Turns::default();
        self.streams.clear(&self.stage);
        self.lives.clear(&mut self.stage)?;
        self.stage.clean_up(&(0..self.script.chunks.len()).map(request).collect::<Vec<_>>());
        self.stage.close()?;
        Ok(account)
    }

    /// Nothing went wrong that could hinder a chunk: those that were put, and asked for by everybody, were handed over.
    fn check_handed_over(&self) -> Result<(), Violated> {
        let its = |number: usize| self.handlers.iter().filter(move |side| side.chunk == number);
        let is_asked_for = |number: usize| its(number).count() == 1 + self.script.chunks[number].readers().len();
        // What is put and not asked for, as in a part of a script, keeps berths of its putter until its time is over.
        let keeps_berths = |number: usize| its(number).any(|side| side.reader.is_none()) && !is_asked_for(number);
        let chunks = || self.script.chunks.iter().enumerate();
        for (number, chunk) in chunks().filter(|_| self.is_calm) {
            let is_hindered = chunks().any(|(other, spec)| spec.from == chunk.from && keeps_berths(other));
            // Some have very little time, and some come late.
            if is_asked_for(number) && !is_hindered && chunk.within >= HANDED_OVER_WITHIN {
                its(number).try_for_each(Handler::check_well)?;
            }
        }
        Ok(())
    }

    /// Waits until all that has ended is fetched: what has failed is when nothing touches its memory any more, and soon in any case.
    fn fetch_finished(&mut self) -> Result<(), Violated> {
        let until = self.now() + NAMED_WITHIN;
        loop {
            (0..self.stage.seats.len()).try_for_each(|seat| self.drain_one(seat))?;
            if self.now() >= until || self.check_finished().is_ok() {
                return Ok(());
            }
            self.stage.world.step_idly();
            self.stage.seats.iter_mut().try_for_each(|seat| seat.look())?;
        }
    }

    /// What schedulers fetch is what handles said, each once.
    fn check_finished(&self) -> Result<(), Violated> {
        for (number, seat) in self.stage.seats.iter().enumerate() {
            let Some(node) = seat.node() else { continue };
            if node.control_metrics().transfers.finished_lost > 0 {
                return Err(Violated::new(Invariant::OneEndEach, "some have finished, and nobody is told"));
            }
            let mut told: BTreeMap<&RequestId, bool> =
                self.finished[number].iter().map(|(request, is_well)| (request, *is_well)).collect();
            let its = self.actors.iter().filter(|actor| actor.seat == number && !actor.is_dead(&self.stage));
            for actor in its.filter(|actor| actor.admitted.is_some()) {
                let said = actor.end.as_ref().map(|end| end.failure.is_none());
                let fetched = told.remove(&actor.request);
                // Whoever drops a handle may do so when it has ended well, and nobody has looked.
                let is_dropped = actor.end.as_ref().is_some_and(|end| end.failure.as_deref() == Some("dropped"));
                if fetched.is_none() || (fetched != said && !is_dropped) {
                    let words =
                        format!("{:?} has ended as {:?}, and is fetched as {fetched:?}", actor.request, actor.end);
                    return Err(Violated::new(Invariant::OneEndEach, words));
                }
            }
            let ended =
                self.turns.ended_at(number, seat.life).into_iter().chain(self.lives.ended_at(number, seat.life));
            for (request, said) in ended {
                let fetched = told.remove(&request);
                // Who drops a handle has not looked.
                if fetched.is_none() || said.is_some() && fetched != said {
                    let words = format!("{request:?} has ended as {said:?}, and is fetched as {fetched:?}");
                    return Err(Violated::new(Invariant::OneEndEach, words));
                }
            }
            told.retain(|request, is_well| *is_well || !is_reader(request));
            if let Some(request) = told.keys().next() {
                return Err(Violated::new(
                    Invariant::OneEndEach,
                    format!("{request:?} was never begun and has finished"),
                ));
            }
        }
        Ok(())
    }

    /// Transfers that nothing could hinder have ended well, if they were begun on all sides, and computed: all where nothing went wrong,
    /// and where only sessions broke those that may be resumed.
    fn check_all_well(&self) -> Result<(), Violated> {
        for (number, case) in self.script.cases.iter().enumerate() {
            let is_to_end_well = self.is_calm || self.spares_engines && case.is_resumable;
            if !is_to_end_well || case.is_misfit {
                continue;
            }
            let (sources, sinks) = self.script.sides(number);
            let its: Vec<&Actor> = self.actors.iter().filter(|actor| actor.case == number).collect();
            let halves: BTreeSet<String> = its.iter().map(|actor| format!("{:?}", actor.half)).collect();
            let Some(last) = its.iter().map(|actor| actor.begun).max() else { continue };
            let first = its.iter().map(|actor| actor.begun).min().unwrap_or(last);
            let course = &self.courses[number];
            let is_computed = course.chunks >= case.chunks
                && (!case.is_by_layer || course.layers.iter().all(|&layers| layers >= case.chunks));
            let is_complete = halves.len() == sources.len() + sinks.len() && is_computed;
            // Some have very little time, and some come late.
            if !is_complete || case.within < KNOWN_WITHIN || last.since(first) > KNOWN_WITHIN {
                continue;
            }
            // Other transfers may have filled the pool of a sink that does not wait for room: it fails by that, and so do those who hear it.
            let lacked_memory = its.iter().any(|actor| actor.lacked_memory);
            let is_right = |end: &End| match &end.failure {
                None => true,
                Some(words) => lacked_memory && words.starts_with("NoMemory"),
            };
            if let Some(actor) = its.iter().find(|actor| !actor.end.as_ref().is_some_and(is_right)) {
                let words = format!("nothing hinders case {number}, and {:?} ended as {:?}", actor.half, actor.end);
                return Err(Violated::new(Invariant::AnswersComeInTime, words));
            }
        }
        Ok(())
    }
}
