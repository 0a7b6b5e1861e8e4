//! Children that wait for what they inherit: for a parent of this engine that runs, and for blocks of another engine's.
//!
//! Whoever makes an engine's progress itself cannot sleep in a call until somebody else has pinned what it waits for: it begins here, and
//! looks.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Direction, Env, Timestamp};
use penstock_flows::continuation::abroad::AskKey;
use penstock_flows::continuation::{Lent, Waited};
use penstock_flows::{Cut, Layout as FlowLayout, LayoutKey, Run, ShardPair};
use penstock_memory::Blocks;
use penstock_session::RequestId;

use super::{Inherited, Isolation, Miss, Pins, Writing, ask};
use crate::flows::{CallError, FlowError, Layout};
use crate::manager::key_of;
use crate::peer::{Peer, Submit};
use crate::plan::PlanBuilder;
use crate::quiesce::{CancelOutcome, LocalQuiesce, RemoteQuiesce};
use crate::transfer::{GRACE, Transfer};

/// A child that waits for a parent of this engine. Dropped, it waits no more, and what it was given meanwhile goes back.
pub struct Inheriting<E: Env> {
    pins: Pins<E>,
    waited: Waited,
    until: Timestamp,
}

impl<E: Env> Pins<E> {
    /// The same as [`inherit_within`](Self::inherit_within) without sleeping in it: who waits looks by [`Inheriting::poll`].
    pub fn inherit_begin(
        &self,
        parent: &RequestId,
        isolation: &Isolation,
        child: &RequestId,
        tokens: u64,
        timeout: Duration,
    ) -> Result<Inheriting<E>, FlowError> {
        let ask = ask(parent, isolation, child, tokens, None);
        let until = self.engine.shared.env.now() + timeout;
        let waited = self.call(|pins, now| pins.inherit_or_wait(ask, now + timeout, now))?;
        Ok(Inheriting { pins: self.clone(), waited, until })
    }
}

impl<E: Env> Inheriting<E> {
    /// What it gets, once that is known: by its own time at the latest. It is given once; who asks again hears that there is no parent.
    pub fn poll(&mut self) -> Option<Result<Inherited<E>, Miss>> {
        let shared = &self.pins.engine.shared;
        let given = match &mut self.waited {
            Waited::Now(given) => std::mem::replace(given, Err(Miss::NoParent)),
            Waited::Later(key) => {
                let key = *key;
                let is_late = shared.env.now() >= self.until;
                let given = shared.call_manager(|manager, _| {
                    let answer = manager.waited(key);
                    if answer.is_none() && is_late {
                        manager.stop_waiting(key);
                    }
                    answer
                });
                let given = given.or(is_late.then_some(Err(Miss::Running)))?;
                self.waited = Waited::Now(Err(Miss::NoParent));
                given
            }
        };
        Some(given.map(|given| Inherited::new(&self.pins.engine, given)))
    }

    pub(super) fn wait(mut self) -> Result<Inherited<E>, Miss> {
        if let Waited::Later(key) = self.waited {
            let left = self.until.since(self.pins.engine.shared.env.now());
            self.pins.engine.wait_for_manager(left, |manager| manager.has_answer(key).then_some(()));
        }
        self.poll().unwrap_or(Err(Miss::Running))
    }
}

impl<E: Env> Drop for Inheriting<E> {
    fn drop(&mut self) {
        if self.pins.engine.shared.is_inherited() {
            return;
        }
        let shared = &self.pins.engine.shared;
        match &self.waited {
            Waited::Later(key) => shared.call_manager(|manager, _| manager.stop_waiting(*key)),
            Waited::Now(Ok(given)) => {
                shared.call_manager(|manager, _| manager.call_pins(|pins| pins.give_up(given.key)));
            }
            Waited::Now(Err(_)) => {}
        }
    }
}

/// How far a child is that inherits from another engine.
enum Stage<E: Env> {
    Asked(AskKey),
    /// It reads what is lent.
    Reads(Lent, Transfer<E>),
    /// It has everything, and wants to know whether that stood until then.
    Returned(Lent),
    /// It has its answer.
    Over(Result<u64, Miss>),
}

/// A child that inherits from another engine: it asks, reads, and hears whether what it has read stood until then. Dropped before it has its
/// answer, it gives up. Blocks into which something may still be read when it has failed are kept out of reuse until that is over, whoever lets
/// them go.
pub struct InheritingFrom<E: Env> {
    pins: Pins<E>,
    peer: Peer<E>,
    ours: Arc<FlowLayout>,
    own: Blocks,
    until: Timestamp,
    stage: Stage<E>,
    /// Nobody else is at its own blocks until it has its answer.
    writing: Option<Writing<E>>,
}

impl<E: Env> Pins<E> {
    /// The same as [`inherit_from`](Self::inherit_from) without sleeping in it: who waits looks by [`InheritingFrom::poll`].
    pub fn inherit_from_begin(
        &self,
        peer: &Peer<E>,
        (parent, isolation): (&RequestId, &Isolation),
        tokens: u64,
        (layout, own): (&Layout<E>, &Blocks),
        timeout: Duration,
    ) -> Result<InheritingFrom<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        if !Arc::ptr_eq(&layout.engine, &self.engine) {
            return Err(FlowError::ForeignLayout { label: layout.label().to_owned() });
        }
        layout.ground.check(own)?;
        let until = shared.env.now() + timeout;
        let ours = shared.look_at_manager(|manager| manager.layout(layout.key).cloned()).ok_or(CallError::NoLayout)?;
        let writing = Some(Writing::begin(&self.engine, layout.key, own.indices().to_vec())?);
        // One token at least is the child's to compute, and no more is lent than there is room for.
        let room = own.len() as u64 * u64::from(ours.block_tokens());
        let (to, tokens) = (key_of(&peer.state), tokens.min(room + 1));
        let asked = shared.call_manager(|manager, now| manager.ask_parent(to, parent, isolation, tokens, timeout, now));
        let stage = match asked {
            Ok(ask) => Stage::Asked(ask),
            Err(miss) => Stage::Over(Err(miss)),
        };
        Ok(InheritingFrom { pins: self.clone(), peer: peer.clone(), ours, own: own.clone(), until, stage, writing })
    }
}

impl<E: Env> InheritingFrom<E> {
    /// How many tokens are in the child's blocks, once that is known; it stays what it is.
    pub fn poll(&mut self) -> Option<Result<u64, Miss>> {
        loop {
            let next = match &self.stage {
                Stage::Asked(ask) => self.asked(*ask),
                Stage::Reads(lent, transfer) => self.reads(lent, transfer),
                Stage::Returned(lent) => self.returned(lent),
                Stage::Over(answer) => {
                    let answer = *answer;
                    self.writing = None;
                    return Some(answer);
                }
            };
            self.stage = next?;
        }
    }

    fn left(&self) -> Duration {
        self.until.since(self.pins.engine.shared.env.now())
    }

    fn asked(&self, ask: AskKey) -> Option<Stage<E>> {
        let shared = &self.pins.engine.shared;
        let is_late = self.left().is_zero();
        let answer = shared.call_manager(|manager, _| {
            let answer = manager.parent_lent(ask);
            if answer.is_none() && is_late {
                manager.stop_asking(ask);
            }
            answer
        });
        let lent = match answer {
            Some(Ok(lent)) => lent,
            Some(Err(miss)) => return Some(Stage::Over(Err(miss))),
            None => return is_late.then_some(Stage::Over(Err(Miss::Late))),
        };
        Some(match self.read(&lent) {
            Ok(transfer) => Stage::Reads(lent, transfer),
            Err(cause) => {
                self.pins.engine.shared.call_manager(|manager, _| manager.give_back_parent(&lent, false));
                self.unread(cause)
            }
        })
    }

    fn reads(&self, lent: &Lent, transfer: &Transfer<E>) -> Option<Stage<E>> {
        let Some(ended) = transfer.poll() else {
            // It ends by its own deadline, which is this one, unless no worker is left that could say so.
            let is_stuck = self.pins.engine.shared.env.now() >= self.until + GRACE;
            return is_stuck.then(|| {
                self.stop_reading(lent, transfer);
                self.unread(Cause::NotEnded)
            });
        };
        match ended {
            Ok(_) => {
                self.pins.engine.shared.call_manager(|manager, _| manager.give_back_parent(lent, true));
                Some(Stage::Returned(lent.clone()))
            }
            Err(fault) => {
                self.stop_reading(lent, transfer);
                Some(self.unread(fault.cause))
            }
        }
    }

    fn unread(&self, cause: Cause) -> Stage<E> {
        Stage::Over(Err(if self.peer.ended().is_some() { Miss::PeerLost } else { Miss::Unread(cause) }))
    }

    /// Nothing more is read. Where a part of it may still be under way, the child's blocks are kept out of reuse until it is not, and the
    /// lease is left to the lender, who waits for that by its own clock.
    fn stop_reading(&self, lent: &Lent, transfer: &Transfer<E>) {
        let CancelOutcome { local, remote } = transfer.cancel(Duration::ZERO);
        let is_quiet = local.is_quiesced() && matches!(remote, RemoteQuiesce::Quiesced);
        if let LocalQuiesce::Quarantined(held) = local {
            held.keep(self.own.clone());
        }
        self.pins.engine.shared.call_manager(|manager, _| {
            if is_quiet { manager.give_back_parent(lent, false) } else { manager.leave_parent(lent) }
        });
    }

    fn returned(&self, lent: &Lent) -> Option<Stage<E>> {
        let shared = &self.pins.engine.shared;
        let is_late = self.left().is_zero();
        let stood = shared.call_manager(|manager, _| {
            let stood = manager.parent_stood(lent);
            if stood.is_some() || is_late {
                manager.forget_parent(lent);
            }
            stood
        });
        let stood = stood.or(is_late.then_some(Err(Miss::Late)))?;
        Some(Stage::Over(stood.map(|()| lent.tokens)))
    }

    /// Reads what is lent into blocks of this engine.
    fn read(&self, lent: &Lent) -> Result<Transfer<E>, Cause> {
        let shared = &self.pins.engine.shared;
        let at = LayoutKey { number: lent.terms.layout, generation: lent.terms.layout_generation };
        let theirs =
            shared.look_at_manager(|manager| manager.layout_at(lent.peer, at).cloned()).ok_or(Cause::RevokedByPeer)?;
        let pair = ShardPair::of(&self.ours, &theirs).map_err(|_| Cause::NoPath)?;
        let here = Run { blocks: self.own.indices(), first: 0 };
        let there = Run { blocks: &lent.blocks, first: 0 };
        let mut spans = Vec::new();
        let cut = Cut { layers: 0..pair.layers(), here, there, tokens: lent.tokens, once: None };
        pair.cut(&cut, &mut spans).map_err(|_| Cause::OutOfBounds)?;
        let (near, far) = pair.regions();
        let near = shared.registry.resolve(near.region, near.generation).map_err(|_| Cause::RevokedHere)?;
        let far = self.peer.state.entry_of(far.region, far.generation).ok_or(Cause::RevokedByPeer)?;
        let plan = PlanBuilder::new(Direction::Read).between_parts(shared, &near, &self.peer.state, &far);
        let plan = plan.extents(&spans).build().map_err(|_| Cause::NoPath)?;
        self.peer.submit(&plan, Submit::new().within(self.left())).map_err(|_| Cause::NoPath)
    }

    pub(super) fn wait(mut self) -> Result<u64, Miss> {
        loop {
            if let Some(answer) = self.poll() {
                return answer;
            }
            let left = self.left();
            // What has come is looked at by the next turn of this loop.
            let _ = match &self.stage {
                Stage::Asked(ask) => {
                    self.pins.engine.wait_for_manager(left, |manager| manager.has_parent(*ask).then_some(()))
                }
                Stage::Reads(_, transfer) => transfer.wait().ok().map(drop),
                Stage::Returned(lent) => {
                    self.pins.engine.wait_for_manager(left, |manager| manager.knows_parent_stood(lent).then_some(()))
                }
                Stage::Over(_) => None,
            };
        }
    }
}

impl<E: Env> Drop for InheritingFrom<E> {
    fn drop(&mut self) {
        if self.pins.engine.shared.is_inherited() {
            return;
        }
        let shared = &self.pins.engine.shared;
        match &self.stage {
            Stage::Asked(ask) => shared.call_manager(|manager, _| manager.stop_asking(*ask)),
            Stage::Reads(lent, transfer) => self.stop_reading(lent, transfer),
            Stage::Returned(lent) => shared.call_manager(|manager, _| manager.forget_parent(lent)),
            Stage::Over(_) => {}
        }
    }
}
