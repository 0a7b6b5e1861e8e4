//! What is known of gets, and whether it adds up.

use std::time::Duration;

use penstock_session::{PeerKey, RequestId};

use super::{Get, GetOp, GetPiece, Gets, Ready};
use crate::FlowCause;
use crate::action::BlocksRef;
use crate::relay::berths::StagingPool;
use crate::relay::early::OfferKey;
use crate::relay::error::RelayFailed;

impl Gets {
    pub(in crate::relay) fn get(&self, number: u64) -> Option<&GetOp> {
        self.ops.get(&number)
    }

    /// Whether something of this request is fetched from one of these peers.
    pub(in crate::relay) fn are_from(&self, request: &RequestId, peers: impl Fn(&PeerKey) -> bool) -> bool {
        self.ops.values().any(|get| get.request == *request && peers(&get.from.0))
    }

    /// Whether anything of it was announced.
    pub(in crate::relay) fn has_begun(&self, number: u64) -> bool {
        self.ops.get(&number).is_some_and(|get| get.state != Get::Waiting)
    }

    pub(in crate::relay) fn state(&self, number: u64) -> Option<Get> {
        self.ops.get(&number).map(|get| get.state)
    }

    pub(in crate::relay) fn result(&self, number: u64) -> Option<&Result<(), RelayFailed>> {
        self.ops.get(&number)?.result.as_ref()
    }

    /// Its schema and header, once the first part was announced.
    pub(in crate::relay) fn words(&self, number: u64) -> Option<(&[u8], &[u8])> {
        self.ops.get(&number).filter(|get| get.seen.contains(&0)).map(|get| (&get.schema[..], &get.header[..]))
    }

    /// What the application is to copy out. Nothing of a get that has failed.
    pub(in crate::relay) fn pieces(&mut self, number: u64) -> Vec<GetPiece> {
        let Some(get) = self.ops.get_mut(&number).filter(|get| get.hands_out()) else { return Vec::new() };
        get.ready.values_mut().for_each(|ready| ready.is_handed = true);
        let piece = |(&number, ready): (&u64, &Ready)| GetPiece {
            number,
            from: ready.from,
            place: self.berths.place(ready.berth, ready.len),
        };
        get.ready.iter().map(piece).collect()
    }

    /// Whether the application has something to copy out.
    pub(in crate::relay) fn has_pieces(&self, number: u64) -> bool {
        self.ops.get(&number).is_some_and(|get| get.hands_out() && !get.ready.is_empty())
    }

    /// Operations that are over here since the last time, and why if they failed.
    pub(in crate::relay) fn take_over(&mut self) -> Vec<(OfferKey, Option<FlowCause>)> {
        std::mem::take(&mut self.over)
    }

    pub(in crate::relay) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.moves.is_empty()
    }

    /// Whether all of them have ended and nothing of them is in a berth, whoever may still ask how.
    pub(in crate::relay) fn have_ended(&self) -> bool {
        self.ops.values().all(|get| get.state.is_end() && get.ready.is_empty())
    }

    /// Goes on with other berths.
    pub(in crate::relay) fn equip(&mut self, pool: StagingPool, most: usize, abort: Duration) {
        let fresh = Self::new(pool, most, abort);
        let Self { ops, by_offer, moves, next, piece, over, .. } = std::mem::replace(self, fresh);
        (self.ops, self.by_offer, self.moves) = (ops, by_offer, moves);
        (self.next, self.piece, self.over) = (next, piece, over);
    }

    /// What is kept of the application's memory until nothing can land there any more.
    pub(in crate::relay) fn keeps(&self) -> impl Iterator<Item = BlocksRef> + '_ {
        self.ops.values().filter_map(|get| get.memory.as_ref().map(|(_, keep)| *keep))
    }

    pub(in crate::relay) fn held(&self) -> u64 {
        self.purse.held()[0]
    }

    pub(in crate::relay) fn check(&self) -> Result<(), String> {
        self.purse.check().map_err(|unbalanced| unbalanced.to_string())?;
        let running = self.ops.values().flat_map(|get| get.running.values().filter_map(|running| running.berth));
        let ready = self.ops.values().flat_map(|get| get.ready.values().map(|ready| ready.berth));
        let taken: Vec<u32> = running.chain(ready).collect();
        if !self.berths.are_taken(&taken) || self.held() != taken.len() as u64 {
            return Err(format!("gets have the berths {taken:?}, and {} credits are taken", self.held()));
        }
        let moves: usize =
            self.ops.values().flat_map(|get| get.running.values()).map(|running| running.moves.len()).sum();
        if moves != self.moves.len() {
            return Err(format!("gets wait for {moves} moves, and {} are known", self.moves.len()));
        }
        let is_right = |get: &GetOp| match get.state {
            Get::Waiting | Get::Announced | Get::Read | Get::Failed => get.running.is_empty(),
            Get::Reading | Get::Stopping | Get::Quarantined => !get.running.is_empty(),
        };
        match self.ops.iter().find(|(_, get)| !is_right(get)) {
            Some((number, get)) => Err(format!("get {number} is {:?} and has {} moves", get.state, get.running.len())),
            None => Ok(()),
        }
    }
}
