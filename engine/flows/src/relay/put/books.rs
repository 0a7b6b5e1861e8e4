//! What is known of puts, and whether it adds up.

use std::time::Duration;

use penstock_session::control::ChunkKind;
use penstock_session::purse::Unbalanced;
use penstock_session::{PeerKey, RequestId};

use super::{Memory, Part, Put, PutOp, Puts, ToFill, Torn};
use crate::action::BlocksRef;
use crate::relay::berths::StagingPool;
use crate::relay::error::RelayFailed;

impl Puts {
    pub(in crate::relay) fn get(&self, op: u64) -> Option<&PutOp> {
        self.ops.get(&op)
    }

    pub(in crate::relay) fn state(&self, op: u64) -> Option<Put> {
        self.ops.get(&op).map(|put| put.state)
    }

    pub(in crate::relay) fn result(&self, op: u64) -> Option<&Result<(), RelayFailed>> {
        self.ops.get(&op)?.result.as_ref()
    }

    /// Whether one of these peers is a reader of a put of this request.
    pub(in crate::relay) fn are_read(&self, request: &RequestId, by: impl Fn(&PeerKey) -> bool) -> bool {
        let of_it = self.ops.values().filter(|put| put.request == *request);
        of_it.flat_map(|put| &put.readers).any(|reader| by(&reader.peer))
    }

    pub(in crate::relay) fn size(&self, op: u64) -> Option<(u64, u32)> {
        self.ops.get(&op).map(|put| (put.bytes, put.parts))
    }

    /// What the application is to write now.
    pub(in crate::relay) fn unwritten(&mut self, op: u64) -> Vec<ToFill> {
        let Some(put) = self.ops.get_mut(&op).filter(|put| put.is_going()) else { return Vec::new() };
        put.out.values_mut().for_each(|part| part.is_handed |= part.is_filling);
        let filling = put.out.iter().filter(|(_, part)| part.is_filling);
        let to_fill = |(&number, part): (&u32, &Part)| ToFill {
            part: number,
            from: u64::from(number) * put.part_bytes,
            place: part.berth.map(|berth| self.berths.place(berth, put.len_of(number))),
        };
        filling.map(to_fill).collect()
    }

    /// Whether the application has something to write.
    pub(in crate::relay) fn is_to_fill(&self, op: u64) -> bool {
        self.ops.get(&op).is_some_and(|put| put.is_going() && put.is_filling())
    }

    /// Whether the application has nothing more to write, now or later.
    pub(in crate::relay) fn is_written(&self, op: u64) -> bool {
        self.ops.get(&op).is_none_or(|put| match put.state {
            Put::Waiting => !matches!(put.memory, Memory::Berths { .. }),
            Put::Filling | Put::Published => !put.is_filling() && put.next_part >= put.parts,
            Put::Draining | Put::Quarantined | Put::Freed => true,
        })
    }

    pub(in crate::relay) fn take_torn(&mut self) -> Vec<Torn> {
        self.torn.drain(..).map(|(stream, failed)| Torn { stream, failed }).collect()
    }

    /// Streams whose end every reader has heard, or not.
    pub(in crate::relay) fn take_ended_signals(&mut self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.ended_signals)
    }

    pub(in crate::relay) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether all of them have ended, whoever may still ask how.
    pub(in crate::relay) fn have_ended(&self) -> bool {
        self.ops.values().all(|put| put.state.is_end())
    }

    /// Goes on with other berths. Numbers go on too: readers remember those that were.
    pub(in crate::relay) fn equip(&mut self, pool: StagingPool, each: u32, control: u32, most: usize, abort: Duration) {
        let fresh = Self::new(pool, each, control, most, abort);
        let Self { ops, next, torn, ended_signals, .. } = std::mem::replace(self, fresh);
        (self.ops, self.next, self.torn, self.ended_signals) = (ops, next, torn, ended_signals);
    }

    /// What is kept of the application's memory for those that have not ended.
    pub(in crate::relay) fn keeps(&self) -> impl Iterator<Item = BlocksRef> + '_ {
        self.ops.values().filter(|put| !put.state.is_end()).filter_map(|put| match put.memory {
            Memory::Extents { keep, .. } => Some(keep),
            _ => None,
        })
    }

    pub(in crate::relay) fn held(&self) -> ([u64; 2], u64) {
        (self.purse.held(), self.control.held()[0])
    }

    /// Whether credits, berths and states agree.
    pub(in crate::relay) fn check(&self) -> Result<(), String> {
        let told = |unbalanced: Unbalanced| unbalanced.to_string();
        self.purse.check().map_err(told)?;
        self.control.check().map_err(told)?;
        let taken: Vec<u32> = self.ops.values().flat_map(|op| op.out.values().filter_map(|part| part.berth)).collect();
        let running = |is_signal: bool| {
            let lives = |put: &&PutOp| put.state != Put::Waiting && !put.state.is_end();
            self.ops.values().filter(lives).filter(|put| (put.kind != ChunkKind::Data) == is_signal).count() as u64
        };
        if !self.berths.are_taken(&taken) {
            return Err(format!("the parts of puts have the berths {taken:?}, and others are taken"));
        }
        if self.held() != ([taken.len() as u64, running(false)], running(true)) {
            return Err(format!(
                "the purses of puts have given out {:?}, and {} berths are taken",
                self.held(),
                taken.len()
            ));
        }
        let has_parts = |state| !matches!(state, Put::Waiting | Put::Freed);
        match self.ops.iter().find(|(_, put)| has_parts(put.state) == put.out.is_empty()) {
            Some((op, put)) => Err(format!("put {op} is {:?} and has {} parts out", put.state, put.out.len())),
            None => Ok(()),
        }
    }
}
