//! Transfers that end while what they wrote may not be placed.
//!
//! Some lanes say that bytes have moved when the peer's card has them, which is before the peer's memory does. A transfer that ends
//! well leaves it at that, and its announcement says more. One that ends otherwise has an owner at the peer who wants to
//! know when nothing of it lands any more: its slot says that it is open there from its first batch on, until the lane has proven
//! the opposite. The transfer itself does not wait for that; its slot does.

use penstock_core::{Direction, Env, Stage};
use penstock_ring::Key;
use penstock_transport::{Announced, Failure, PostError, Proof};

use super::command::Active;
use super::flights::{Flight, transfer_of};
use super::{Worker, joined};
use crate::slot::Slot;

/// A proof that was not asked of its lane yet, and holds the slot of its transfer.
pub(super) struct Owed {
    key: Key,
    peer_index: u32,
    whole: u64,
}

/// So many batches have set off over a lane that acknowledges early. The caller has a hand of their transfer.
pub(super) fn is_open_from_now(active: &mut Active, slot: &Slot, departed: u32) {
    let writes = active.command.plan.as_ref().is_some_and(|plan| plan.inner.shape.direction() == Direction::Write);
    if writes && departed > 0 && !active.is_unproven {
        active.is_unproven = true;
        slot.open_remote();
    }
}

impl<E: Env> Worker<E> {
    /// A transfer ends well: whoever wants to know more than that it was acknowledged has it announced.
    pub(super) fn needs_no_proof(&self, active: &Active) {
        if active.is_unproven {
            self.shared.slots.get(active.command.key).expect("a worker holds its slots").close_remote();
        }
    }

    /// A transfer has failed; nothing more is announced.
    pub(super) fn fail(&mut self, active: Active, stage: Stage, failure: impl Into<Failure>) {
        self.owe_proof(&active);
        self.shared.finish_unannounced(active, stage, failure);
    }

    /// There is nothing more to do here for a transfer that others end, or have ended.
    pub(super) fn part_with(&mut self, active: Active) {
        self.owe_proof(&active);
        self.shared.let_go(active.command.key);
    }

    /// Nothing more of a transfer is posted here, and it does not end well.
    pub(super) fn owe_proof(&mut self, active: &Active) {
        if !active.is_unproven || joined(&mut self.lanes, &active.command.peer).is_none() {
            return; // Of a lane that is gone nothing can be proven: the slot goes on saying that it is open.
        }
        let (key, peer_index) = (active.command.key, active.command.peer.peer_index);
        let whole = active.command.plan.as_ref().map_or(0, |plan| plan.inner.shape.bytes());
        self.shared.slots.get(key).expect("a worker holds its slots").hold();
        self.owed.push(Owed { key, peer_index, whole });
    }

    /// Asks the lanes for what is owed, in its order and as far as they have room. Answers whether any had.
    #[cold]
    pub(super) fn prove_owed(&mut self) -> bool {
        let before = self.owed.len();
        self.blocked.clear();
        let mut owed = std::mem::take(&mut self.owed);
        owed.retain(|owed| !self.prove(owed));
        self.owed = owed;
        self.owed.len() < before
    }

    /// Asks for one. Answers whether it is owed no more.
    fn prove(&mut self, &Owed { key, peer_index, whole }: &Owed) -> bool {
        if self.blocked.contains(&peer_index) {
            return false;
        }
        let token = self.flights.next_token();
        let lane = self.lanes.get_mut(peer_index as usize).and_then(Option::as_mut).map(|joined| &mut joined.lane);
        let proof = Proof { transfer: transfer_of(key), whole, token };
        match lane.map(|lane| lane.prove(&proof)) {
            Some(Err(PostError::Full)) => {
                self.blocked.push(peer_index);
                return false;
            }
            Some(Ok(Announced::Accepted)) => {
                self.flights.depart(Flight::proof(key, peer_index));
                self.flights.unflushed(peer_index);
            }
            Some(Ok(Announced::Told(_))) => {
                self.shared.slots.get(key).expect("what is owed holds its slot").close_remote();
                self.shared.let_go(key);
            }
            // A lane that is broken says so when it is polled next.
            Some(Err(_)) | None => self.shared.let_go(key),
        }
        true
    }

    /// The lane to this peer is gone.
    pub(super) fn owe_nothing_to(&mut self, peer_index: u32) {
        let Self { owed, shared, .. } = self;
        owed.retain(|owed| {
            let is_theirs = owed.peer_index == peer_index;
            if is_theirs {
                shared.let_go(owed.key);
            }
            !is_theirs
        });
    }
}
