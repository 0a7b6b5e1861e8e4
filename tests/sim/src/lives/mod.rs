//! Lives of requests on devices and the swaps of their blocks: what schedulers do, and what has to hold.
//!
//! - [`spec`]: what there is, and what happens; `scenes` makes it from the seed
//! - [`device`]: a device, and who is told; `book`: what they have to be told
//! - `request`: one life; `swapping`: a swap of it; `sending`: what goes to another engine out of it
//! - `content`: what is in blocks

mod book;
mod content;
pub mod device;
mod request;
mod scenes;
mod sending;
pub mod spec;
mod swapping;

use penstock::flows::RequestId;

use crate::deed::Script;
use crate::oracle::Violated;
use crate::random::Random;
use crate::run::TURN_ONCE_IN;
use crate::stage::{Seat, Stage};
use request::Request;
use sending::Sending;
use spec::{Life, Step};

/// So seldom somebody looks who is slow.
const SLOW_ONCE_IN: usize = 400;

/// All schedulers of a run.
#[derive(Default)]
pub struct Lives {
    requests: Vec<Request>,
    sendings: Vec<Sending>,
}

impl Lives {
    /// A scheduler does something.
    pub fn act(&mut self, script: &Script, life: usize, step: Step, stage: &Stage<'_>) {
        if step == Step::Open {
            self.requests.push(Request::new(script, life, stage));
        } else {
            self.requests.iter_mut().filter(|request| request.life == life).for_each(|request| request.wishes(step));
        }
    }

    /// An engine has died: everything of it is let go.
    pub fn crashed(&mut self, player: usize) {
        self.requests.iter_mut().filter(|request| request.seat == player).for_each(Request::die);
        self.sendings.iter_mut().for_each(|sending| sending.crashed(player));
    }

    /// Schedulers look, whoever's turn it is.
    pub fn turn(&mut self, script: &Script, stage: &mut Stage<'_>, random: &mut Random) -> Result<(), Violated> {
        for request in self.requests.iter_mut().filter(|request| !request.is_gone) {
            if !stage.seats[request.seat].is_awake() || !random.once_in(TURN_ONCE_IN) {
                continue;
            }
            if let Some(parcel) = request.turn(stage)?
                && !self.sendings.iter().any(|sending| sending.life == request.life)
                && parcel.fits(&request.spec, stage)
            {
                self.sendings.push(Sending::begin(request.life, script, parcel, stage)?);
            }
        }
        for sending in self.sendings.iter_mut().filter(|sending| !sending.is_over()) {
            let Life { at, to, .. } = script.lives[sending.life];
            if stage.seats[at].is_awake() && random.once_in(TURN_ONCE_IN) {
                sending.turn_source(stage)?;
            }
            if stage.seats[to].is_awake() && random.once_in(TURN_ONCE_IN) {
                sending.turn_sink(stage)?;
            }
        }
        for seat in &mut stage.seats {
            if seat.is_awake()
                && let Some(device) = seat.device_mut()
                && random.once_in(SLOW_ONCE_IN)
            {
                device.check_slow()?;
            }
        }
        Ok(())
    }

    /// Everybody is done.
    pub fn are_over(&self) -> bool {
        self.requests.iter().all(|request| request.is_gone) && self.sendings.iter().all(Sending::is_over)
    }

    /// The requests of transfers that an engine was given in this life, and how they ended.
    pub fn ended_at(&self, player: usize, life: u32) -> Vec<(RequestId, Option<bool>)> {
        self.sendings.iter().flat_map(|sending| sending.ended_at(player, life)).collect()
    }

    /// Where nothing went wrong everything that was sent has come.
    pub fn check_well(&self) -> Result<(), Violated> {
        self.sendings.iter().try_for_each(Sending::check_well)
    }

    /// Of everything that came to an end, whether it was a good one.
    pub fn outcomes(&self) -> Vec<bool> {
        let swaps = self.requests.iter().flat_map(|request| request.outcomes.iter().copied());
        swaps.chain(self.sendings.iter().flat_map(Sending::outcomes)).collect()
    }

    /// All handles go before their engines do, and nobody finds anything any more.
    pub fn clear(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        self.requests.clear();
        self.sendings.clear();
        stage.seats.iter_mut().filter_map(Seat::device_mut).try_for_each(|device| {
            while device.give_up_oldest()? {}
            device.check_told()?;
            device.check_slow()
        })
    }
}
