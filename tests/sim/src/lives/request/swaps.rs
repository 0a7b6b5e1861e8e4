//! The swaps of one request: begun, looked at, gone on with or given up.

use std::time::Duration;

use penstock::flows::lifecycle::Request as State;
use penstock::flows::{FlowError, LifecycleError, SchedulerReport, SwapWay, block_refs};
use penstock::{Blocks, Timestamp};

use super::{Request, device_of};
use crate::lives::device::Device;
use crate::lives::spec::Step;
use crate::lives::swapping::{Came, Swapping};
use crate::oracle::{GRANTED, Invariant, Violated};
use crate::stage::Seat;

impl Request {
    pub(super) fn begin_swap(
        &mut self,
        way: SwapWay,
        device: Blocks,
        host: Blocks,
        within: Duration,
        now: Timestamp,
        seat: &mut Seat,
    ) -> Result<(), Violated> {
        let its = (&self.id, self.generation);
        let swap = device_of(seat).lives.swap(way, its, &device, &host, within);
        let swap = swap.map_err(|error| self.broken(Invariant::OneEndEach, format!("{way:?} is refused: {error}")))?;
        device_of(seat).check_told()?;
        let (who, refs) = (format!("{} {way:?}", self.who), block_refs(&device));
        let (read, written) = if way == SwapWay::Out { (device, host) } else { (host, device) };
        self.swap = Some(Swapping::new(who, way, swap, (&read, written), refs, (now, within)));
        Ok(())
    }

    /// Some of its blocks cannot go without the others: it would be there, and what stayed behind would be nobody's.
    pub(super) fn swap_part(
        &mut self,
        way: SwapWay,
        within: Duration,
        now: Timestamp,
        seat: &mut Seat,
    ) -> Result<(), Violated> {
        // What it was given first, before it grew; or all but its last.
        let (device, host) = match way {
            SwapWay::Out => {
                let first = self.cached.iter().chain(&self.device).next().filter(|first| !first.is_empty());
                let Some(first) = first.cloned() else { return Ok(()) };
                let len = first.len().min(self.held.len() - 1);
                let part = first.slice(0..len).expect("it has as many");
                (Some(part), seat.take(len, GRANTED, now)?)
            }
            SwapWay::In => {
                let part = self.host.as_ref().and_then(|host| host.slice(0..host.len() - 1).ok());
                (device_of(seat).take(part.as_ref().map_or(0, Blocks::len), GRANTED)?, part)
            }
        };
        let (Some(device), Some(host)) = (device, host) else { return Ok(()) };
        let its = (&self.id, self.generation);
        match device_of(seat).lives.swap(way, its, &device, &host, within) {
            Err(_) => Ok(()),
            Ok(_) => {
                let words = format!("{} of its blocks are swapped {way:?} without the others", device.len());
                Err(self.broken(Invariant::BytesAreTheirOwn, words))
            }
        }
    }

    /// A swap that the engine carries out is not ended by words of others.
    pub(super) fn check_whose(&self, device: &Device) -> Result<(), Violated> {
        let Some(swap) = &self.swap else { return Ok(()) };
        let report = match swap.way {
            SwapWay::Out => SchedulerReport::SwapOutCommitted,
            SwapWay::In => SchedulerReport::SwapInRolledBack { is_lost: false },
        };
        match device.lives.report(&self.id, self.generation, &report) {
            Err(FlowError::Lifecycle(why)) if matches!(*why, LifecycleError::SwapOfOurs { .. }) => Ok(()),
            said => Err(self.broken(Invariant::OneEndEach, format!("{report:?} in a swap is answered by {said:?}"))),
        }
    }

    /// The swap is looked at, and gone on with when its bytes are there.
    pub(super) fn look_at_swap(
        &mut self,
        now: Timestamp,
        disturbed: Timestamp,
        seat: &mut Seat,
    ) -> Result<(), Violated> {
        let Some(mut swap) = self.swap.take() else { return Ok(()) };
        let is_cut = device_of(seat).is_unreachable();
        let came = swap.look(now, disturbed, is_cut)?;
        let way = swap.way;
        match came {
            Came::Nothing => self.swap = Some(swap),
            Came::Moved if now < swap.moved_at(now) + self.spec.pause => self.swap = Some(swap),
            Came::Moved => {
                let Some(content) = &self.content else { return Ok(()) };
                let player = *seat.player();
                let pool = match way {
                    SwapWay::Out => seat.pool().expect("it lives"),
                    SwapWay::In => seat.device().expect("it lives").pool(),
                };
                content.check(&player, pool, swap.places(), &self.who)?;
                let written = swap.commit()?;
                self.outcomes.push(true);
                if way == SwapWay::Out {
                    (self.host, self.state) = (written, Some(State::Swapped));
                    self.device.clear();
                    self.held.clear();
                } else {
                    self.device.extend(written);
                    (self.state, self.host) = (Some(State::Active), None);
                }
            }
            Came::Failed => self.fall_back(swap),
            Came::TimedOut => {
                self.outcomes.push(false);
                self.given_up.push(swap);
                self.drop_bytes();
            }
        }
        Ok(())
    }

    /// The swap has failed, or was given up: the request is where it was.
    fn fall_back(&mut self, swap: Swapping) {
        self.is_back(swap.way);
        self.given_up.push(swap);
    }

    fn is_back(&mut self, way: SwapWay) {
        self.outcomes.push(false);
        if way == SwapWay::Out {
            self.state = Some(State::Active);
        } else {
            self.state = Some(State::Swapped);
            self.held.clear();
        }
    }

    pub(super) fn give_up_swap(&mut self, step: Step, now: Timestamp) -> Result<(), Violated> {
        let Some(mut swap) = self.swap.take() else { return Ok(()) };
        if step == Step::RollBack {
            swap.roll_back(now)?;
            self.fall_back(swap);
            return Ok(());
        }
        // Nobody can say of it any more when it is over.
        self.let_go.extend(swap.device.iter().copied());
        self.is_back(swap.way);
        Ok(())
    }
}
