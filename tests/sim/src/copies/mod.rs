//! Transfers that devices copy: between engines of one process, and of an engine with itself; and between engines that reach only host memory of
//! each other, so that bytes go through slots.
//!
//! Engines have the driver that they always have, over a model of its functions: streams go on late, in pieces, and in the order of the seed.
//! What has to hold: the bytes of a transfer are there when it is reported done; memory of which an engine has said that nothing lands there any
//! more is written by nothing; each transfer has an answer in time; and memory is back when nothing goes on, unless a device was lost.
//!
//! - [`spec`]: what there is, and what happens; `scenes` makes it from the seed
//! - `seats`: engines and their sessions; `memory`: what owners know of their memory; `transfer`: one transfer

mod memory;
mod scenes;
mod seats;
pub mod spec;
mod transfer;

use std::time::Duration;

use penstock::{LocalQuiesce, Timestamp};
use penstock_cuda_driver::model;

use crate::deed::{Act, Deed, Script};
use crate::devices::PIECE_BYTES;
use crate::oracle::{Invariant, Violated};
use crate::random::Random;
use crate::run::{Account, TURN_ONCE_IN};
use crate::world::World;
use seats::Seats;
use spec::{Copying, Step};
use transfer::Copier;

/// When all deeds are done and all devices go on, everything has to be over within this.
const OVER_WITHIN: Duration = Duration::from_secs(5);
/// Steps from one look at all memory to the next, for each kilobyte of a block.
const LOOKS: u64 = 48;

/// Does the deeds at these places of the script's list.
pub(crate) fn perform(script: &Script, keep: &[usize]) -> Result<Account, Violated> {
    let world = World::new(script.seed);
    world.add_devices();
    if let Some(copying) = script.copying.filter(Copying::is_staged) {
        world.set_weather(script.weather);
        // What is large has the room that packets have by default: in a storm, where they overtake each other by far, credit for it counts a packet
        // as arrived that is still to come.
        let bytes = script.receive_bytes.filter(|_| copying.block_bytes <= PIECE_BYTES);
        bytes.iter().for_each(|&bytes| world.set_receive_bytes(bytes));
        world.set_device_piece(copying.block_bytes.max(PIECE_BYTES));
    }
    let mut run = Run::open(&world, script, keep);
    run.go()?;
    let account = run.close()?;
    world.check_credit()?;
    Ok(Account { trace: world.trace_hash(), events: world.events(), ..account })
}

struct Run<'s, 'w> {
    script: &'s Script,
    /// What is to be done, in this order.
    steps: Vec<(Duration, Step)>,
    seats: Seats<'w>,
    copiers: Vec<Copier>,
    random: Random,
    began: Timestamp,
    done: usize,
    /// Until when devices are stopped.
    stopped: [Option<Timestamp>; model::DEVICES as usize],
    /// Memory may be withheld for ever.
    may_withhold: bool,
}

impl<'s, 'w> Run<'s, 'w> {
    fn open(world: &'w World, script: &'s Script, keep: &[usize]) -> Self {
        let copying = script.copying.expect("a script of copies says among how many engines");
        let step = |deed: Deed| match deed.act {
            Act::Copies(step) => Some((deed.after, step)),
            _ => None,
        };
        let steps = keep.iter().filter_map(|&place| step(script.deeds[place]));
        let (steps, seats) = (steps.collect::<Vec<_>>(), Seats::open(world, copying));
        Self {
            script,
            may_withhold: steps.iter().any(|(_, step)| step.may_withhold()),
            steps,
            seats,
            copiers: Vec::new(),
            random: Random::new(script.seed ^ 0xc0_91e5),
            began: world.now(),
            done: 0,
            stopped: [None; model::DEVICES as usize],
        }
    }

    fn world(&self) -> &'w World {
        self.seats.world
    }

    fn now(&self) -> Timestamp {
        self.world().now()
    }

    fn go(&mut self) -> Result<(), Violated> {
        let (mut looks, mut healed) = (0, None);
        let looks_max = LOOKS * (self.seats.copying.block_bytes >> 10).max(1);
        loop {
            self.do_deeds()?;
            self.go_on();
            if self.done == self.steps.len() && self.stopped.iter().all(Option::is_none) && healed.is_none() {
                healed = Some(self.now());
            }
            looks += u64::from(self.world().step_idly());
            self.turn()?;
            if looks >= looks_max {
                looks = 0;
                self.seats.check()?;
            }
            let Some(at) = healed else { continue };
            let is_over = |copier: &Copier| copier.is_gone() || self.may_withhold && copier.only_settles();
            let left = self.copiers.iter().any(|copier| !is_over(copier)).then(|| "a transfer is not over".to_owned());
            let left = left.or_else(|| self.seats.leftovers().filter(|_| !self.may_withhold));
            match left {
                None => return self.check_well(),
                Some(words) if self.now().since(at) > OVER_WITHIN => {
                    return Err(Violated::new(Invariant::NothingIsLeft, words));
                }
                Some(_) => {}
            }
        }
    }

    /// The model, seats and every copier that is there look at what has happened.
    fn turn(&mut self) -> Result<(), Violated> {
        check_model()?;
        let now = self.now();
        self.seats.look(&mut self.random)?;
        for copier in self.copiers.iter_mut().filter(|copier| !copier.is_gone()) {
            if self.random.once_in(TURN_ONCE_IN) {
                copier.turn(&mut self.seats, now)?;
            }
        }
        Ok(())
    }

    /// Devices that have done nothing for long enough go on.
    fn go_on(&mut self) {
        let now = self.now();
        for (device, until) in self.stopped.iter_mut().enumerate() {
            if until.take_if(|until| now >= *until).is_some() {
                self.seats.world.set_device_stopped(device as u32, false);
            }
        }
    }

    fn do_deeds(&mut self) -> Result<(), Violated> {
        while let Some(&(after, step)) = self.steps.get(self.done) {
            if self.now().since(self.began) < after {
                return Ok(());
            }
            self.done += 1;
            self.act(step)?;
        }
        Ok(())
    }

    fn act(&mut self, step: Step) -> Result<(), Violated> {
        match step {
            Step::Begin { copy } => {
                let copier = Copier::new(copy, self.script.copies[copy], self.now());
                self.copiers.push(copier);
            }
            Step::Cancel { copy, within } => {
                let Self { copiers, seats, .. } = self;
                return copiers
                    .iter_mut()
                    .filter(|its| its.number == copy)
                    .try_for_each(|its| its.give_up(within, seats));
            }
            Step::Drop { copy } => {
                let Self { copiers, seats, .. } = self;
                copiers.iter_mut().filter(|its| its.number == copy).for_each(|its| its.let_go(seats));
            }
            Step::Revoke { copy, is_local, within } => return self.revoke(copy, is_local, within),
            Step::Replace { engine, place, within } => return self.replace((engine, place), within),
            Step::HangUp { from, to } => self.seats.hang_up(from, to),
            Step::Sever => self.world().sever(),
            Step::Close { engine, within } => return self.shut_down(engine, Some(within)),
            Step::Leave { engine } => return self.shut_down(engine, None),
            Step::Stop { device, span } => {
                self.world().set_device_stopped(device, true);
                self.stopped[device as usize] = Some(self.now() + span);
            }
            Step::Lose { device } => {
                self.stopped[device as usize] = None;
                self.world().lose_device(device);
            }
            Step::Refuse { calls, is_launch } => model::refuse(calls, is_launch),
        }
        Ok(())
    }

    fn revoke(&mut self, copy: usize, is_local: bool, within: Duration) -> Result<(), Violated> {
        let Some(copier) = self.copiers.iter().find(|copier| copier.number == copy) else { return Ok(()) };
        let Some((of, ids)) = copier.side(is_local) else { return Ok(()) };
        let end = if is_local { copier.spec.at } else { copier.spec.with };
        let is_quiet = self.seats.revoke(end, of, ids.clone(), within);
        // Others have other blocks.
        let its = self.copiers.iter_mut().find(|copier| copier.number == copy);
        its.map_or(Ok(()), |copier| copier.loses(end, of, &self.seats))?;
        if is_quiet { self.seats.give_away(end, of, &ids) } else { Ok(()) }
    }

    fn replace(&mut self, end: (usize, spec::Place), within: Duration) -> Result<(), Violated> {
        let of = self.seats.number(end);
        let held = match self.seats.deregister(end, within) {
            Some(Ok(LocalQuiesce::Quiesced)) => Vec::new(),
            Some(Ok(LocalQuiesce::Quarantined(held))) => vec![held],
            Some(Ok(LocalQuiesce::StillRegistered(_)) | Err(_)) | None => return Ok(()),
        };
        let Self { copiers, seats, .. } = self;
        copiers.iter_mut().try_for_each(|copier| copier.loses(end, of, seats))?;
        seats.replace(end, held);
        Ok(())
    }

    fn shut_down(&mut self, engine: usize, within: Option<Duration>) -> Result<(), Violated> {
        let held = self.seats.shut_down(engine, within);
        let Self { copiers, seats, .. } = self;
        for (place, of) in seats.places(engine) {
            copiers.iter_mut().try_for_each(|copier| copier.loses((engine, place), of, seats))?;
        }
        let its = copiers.iter_mut().filter(|copier| copier.spec.at.0 == engine);
        its.for_each(|copier| copier.let_go(seats));
        seats.leave(engine, held.as_deref());
        seats.restart(engine);
        Ok(())
    }

    /// Where nothing went wrong everything has come.
    fn check_well(&self) -> Result<(), Violated> {
        if self.steps.iter().any(|(_, step)| step.may_fail()) {
            return Ok(());
        }
        // Some have very little time.
        let has_time = |copier: &&Copier| copier.spec.within >= Duration::from_secs(1);
        self.copiers.iter().filter(has_time).try_for_each(Copier::check_well)
    }

    fn close(mut self) -> Result<Account, Violated> {
        let (well, failed): (Vec<bool>, Vec<bool>) =
            self.copiers.iter().filter_map(Copier::outcome).partition(|is_well| *is_well);
        let is_staged = |copier: &&Copier| copier.is_staged && copier.outcome() == Some(true);
        let staged = self.copiers.iter().filter(is_staged).count() as u32;
        let account = Account { well: well.len() as u32, failed: failed.len() as u32, staged, ..Account::default() };
        self.copiers.clear();
        self.seats.close(self.may_withhold)?;
        // What streams have is done, whoever is there to see it, and whoever has let go of the memory.
        if self.random.once_in(2) {
            self.seats.forget();
        }
        self.world().finish_streams();
        self.seats.check()?;
        self.seats.forget();
        check_model()?;
        match self.world().open_ends() {
            0 => Ok(account),
            // What is withheld keeps its session.
            _ if self.may_withhold => Ok(account),
            open => Err(Violated::new(Invariant::NothingIsLeft, format!("{open} listeners or streams are open"))),
        }
    }
}

/// Nobody has given memory back under a copy.
fn check_model() -> Result<(), Violated> {
    model::wrong().map_or(Ok(()), |words| Err(Violated::new(Invariant::FreedOnceAndUntouched, words)))
}
