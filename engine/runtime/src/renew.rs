//! Fresh memory in the place of quarantined memory.
//!
//! A peer that is frozen in the middle of a copy may stay so for hours, and its blocks with it. But it can only write
//! pages that it has mapped. So the owner puts other pages under the same addresses ([`Pool::renew`]), and
//! the blocks can be used again at once.
//!
//! ```text
//! owner                                          peers that live
//! log the ranges as renewed                      plans over them end; no plan is built over the region
//! wait until nobody else copies into them
//! copy the bytes into fresh memory, swap it in
//! the region gets its next generation,           get the region again, map it with its pieces,
//!   announce it                                  build new plans
//! the frozen one wakes                           its copy lands in the old pages, its transfer ends:
//!                                                `MemoryRenewed`; the old pages are freed
//! ```
//!
//! Plans over other parts of the region go on: under those nothing has changed. Blocks that the proof releases
//! meanwhile are handed out only after the swap, or what is written into them would be lost with the old pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::{Cause, Env};

use crate::error::RenewError;
use crate::quiesce::{Quarantined, QuiesceCondition};
use crate::region::Pool;

/// What renewals of one engine have to agree about, with each other and with what is announced.
#[derive(Default)]
pub(crate) struct Renewals {
    one: Mutex<()>,
    /// While a renewal is under way, the revision before it; else zero.
    before: AtomicU64,
}

impl Renewals {
    /// Keeps renewals from beginning, until the answer is dropped.
    pub(crate) fn hold_off(&self) -> MutexGuard<'_, ()> {
        self.one.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision up to which an announcement may say that it reflects what was withdrawn, where `now` is the gate's. A region that
    /// is being renewed is still announced as it was; who trusted that would build plans over its old memory.
    pub(crate) fn announceable(&self, now: u64) -> u64 {
        // SYNC renewal: who finds the renewal's revision in the gate finds this too, and who finds
        // this gone finds the region's next generation.
        match self.before.load(Ordering::Acquire) {
            0 => now,
            before => now.min(before - 1),
        }
    }

    fn begin(&self, revision: u64) {
        self.before.store(revision + 1, Ordering::Release); // SYNC renewal: pairs with announceable()
    }

    fn end(&self) {
        self.before.store(0, Ordering::Release); // SYNC renewal: pairs with announceable()
    }
}

impl<E: Env> Pool<E> {
    /// Gives quarantined blocks of this pool fresh memory, under the same addresses and with the bytes they
    /// have, so that they are handed out again without waiting for the proof. Whoever is frozen
    /// keeps the old pages, which nobody reads; they are freed when it moves or is dead.
    ///
    /// Fresh memory comes in whole pages. While this runs, the application must not write to the blocks
    /// that share a page with quarantined ones; its windows over them stay good, since
    /// their addresses do not change. Peers get the region again and build new plans; so does this
    /// engine, of its own plans over these pages.
    ///
    /// Refused where somebody in this process might still write, because it would write to the fresh
    /// memory: then only the proof helps. Cards would, too; they are waited for, and cut off after half of the time.
    pub fn renew(&self, held: &Quarantined, timeout: Duration) -> Result<(), RenewError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(RenewError::Call)?;
        if self.engine.shared.is_inherited() {
            return Err(RenewError::Call(Cause::Forked));
        }
        let label = || self.label().to_owned();
        if !held.is_of(&self.region.region) {
            return Err(RenewError::NotOfThisPool { label: label() });
        }
        let until = shared.env.now() + timeout;
        self.wait_for_cards(held, timeout);
        let within = until.since(shared.env.now());
        let _one_at_a_time = shared.renewals.hold_off();
        if held.is_released() || held.is_renewed() {
            return Ok(());
        }
        if let Some(who) = held.inside() {
            return Err(RenewError::Inside { label: label(), who });
        }
        let region = &self.region.region;
        let generation = region.generation();
        shared.registry.resolve(region.id(), generation)?;
        let ranges = self.pool.renewable(held.extents())?;
        let owner_state = &shared.segments.owner_state;
        shared.renewals.begin(owner_state.view().revision());
        owner_state.withdraw_renewed(region.id().0, generation.0, &ranges);
        // Who does not see the log is told now: cards can say that nothing older lands only once their engines know.
        shared.tell_of_withdrawal();
        let renewed = self.renew_withdrawn(held, &ranges, within);
        // Also if it failed: until they hear of a generation, peers build no plans over the region.
        let next = shared.registry.renew(region.id(), generation);
        shared.renewals.end();
        shared.control.advertise();
        renewed?;
        next?;
        shared.workers[0].statistics.renewals.add_shared(1);
        tracing::info!(region = self.label(), ?ranges, "quarantined memory has been renewed");
        Ok(())
    }

    /// Cards that are not done yet write by the same addresses, but can be cut off; when they have been nothing needs to be renewed.
    fn wait_for_cards(&self, held: &Quarantined, within: Duration) {
        if !held.waits_for_cards() {
            return;
        }
        let env = &self.engine.shared.env;
        let (force_at, until) = (env.now() + within / 2, env.now() + within);
        let mut is_forced = false;
        self.engine.wait_until(until, || {
            if !is_forced && env.now() >= force_at {
                is_forced = true;
                held.force();
            }
            held.is_released() || !held.waits_for_cards()
        });
    }

    /// What follows once everyone who begins to copy finds the ranges withdrawn.
    fn renew_withdrawn(&self, held: &Quarantined, ranges: &[(u64, u64)], within: Duration) -> Result<(), RenewError> {
        let mut others = self.engine.witnesses(Some(&self.region.region));
        others.retain(|witness| !held.knows(witness));
        self.engine.wait_for_witnesses(&mut others, within);
        if let Some(who) = others.iter().find_map(QuiesceCondition::inside) {
            return Err(RenewError::Inside { label: self.label().to_owned(), who });
        }
        let Some(_no_release) = held.renewing() else {
            return Ok(()); // The proof came meanwhile, and the blocks may be in use again.
        };
        let old_pages = self.pool.renew(ranges)?;
        // Whoever is left froze later than those we knew of, and is as far away from the fresh memory.
        held.renewed(old_pages, others);
        Ok(())
    }
}
