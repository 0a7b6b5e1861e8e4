//! Fences of applications in front of layers: a layer goes, or can be read, when its gate was opened.
//!
//! One gate may stand in front of several layers of several transfers. One that is gone without having been opened will never be: what
//! waits for it fails at once.

use std::collections::BTreeMap;

use penstock_core::Moment;
use penstock_core::planted::{self, Bug};
use penstock_session::transfers::table::EntryKey;

use super::Desk;
use super::calls::CallError;
use super::flow::Flow;
use crate::cause::FlowCause;

/// The most gates of an engine.
const GATES_MAX: usize = 65_536;
/// The most layers that wait for one gate.
const WAITING_MAX: usize = 65_536;

/// A gate. Its number is never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(pub u64);

#[derive(Debug)]
enum Gate {
    /// These layers of these transfers wait for it, each with so many of the first tokens.
    Shut(BTreeMap<(EntryKey, u32), u64>),
    Open,
}

/// The gates of an engine.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: BTreeMap<GateId, Gate>,
    last: u64,
}

impl Gates {
    pub(super) fn len(&self) -> usize {
        self.gates.len()
    }
}

impl Desk {
    /// A gate that is shut.
    pub fn add_gate(&mut self) -> Result<GateId, CallError> {
        if self.gates.gates.len() >= GATES_MAX {
            return Err(CallError::Full { what: "gates", most: GATES_MAX });
        }
        self.gates.last += 1;
        let id = GateId(self.gates.last);
        self.gates.gates.insert(id, Gate::Shut(BTreeMap::new()));
        Ok(id)
    }

    /// A layer of the source is ready for the first so many tokens, which chunks have given, when this gate is opened. It may be open
    /// already. Gates in front of more tokens of the same layer may follow.
    pub fn layer_after(
        &mut self,
        key: EntryKey,
        (layer, tokens): (u32, u64),
        gate: GateId,
        now: Moment,
    ) -> Result<(), CallError> {
        let (ready, status) = match self.flow(key) {
            Some(Flow::Source(source)) => {
                source.legs.check_ready(layer, tokens)?;
                (source.legs.ready_tokens(layer), source.legs.status())
            }
            Some(Flow::Lent(lent)) => {
                lent.loans.check_ready(layer, tokens)?;
                (lent.loans.ready_tokens(layer), lent.loans.status())
            }
            _ => return Err(CallError::NoTransfer),
        };
        let is_ignored = planted::is(Bug::FenceIgnoredAfterFirstChunk) && ready > 0;
        match self.gates.gates.get_mut(&gate) {
            None => Err(CallError::NoGate),
            Some(Gate::Shut(_)) if status.is_end() || tokens <= ready => Ok(()),
            Some(Gate::Shut(waiting)) if !is_ignored => {
                if waiting.len() >= WAITING_MAX && !waiting.contains_key(&(key, layer)) {
                    return Err(CallError::Full { what: "layers behind one gate", most: WAITING_MAX });
                }
                let waits = waiting.entry((key, layer)).or_insert(0);
                *waits = tokens.max(*waits);
                Ok(())
            }
            Some(Gate::Open | Gate::Shut(_)) => self.layer(key, layer, tokens, now),
        }
    }

    /// A gate is opened, by an event. Opened again, it stays open.
    pub(super) fn open_gate(&mut self, gate: GateId, now: Moment) {
        let Some(state) = self.gates.gates.get_mut(&gate) else { return };
        let Gate::Shut(waiting) = std::mem::replace(state, Gate::Open) else { return };
        for ((key, layer), tokens) in waiting {
            // One that has ended meanwhile needs it no more.
            let _ = self.layer(key, layer, tokens, now);
        }
    }

    /// Nobody can open a gate any more. What waits for it will not come.
    pub fn remove_gate(&mut self, gate: GateId, now: Moment) {
        let Some(Gate::Shut(waiting)) = self.gates.gates.remove(&gate) else { return };
        for ((key, layer), tokens) in waiting {
            let ready = match self.flow(key) {
                Some(Flow::Source(source)) => source.legs.ready_tokens(layer),
                Some(Flow::Lent(lent)) => lent.loans.ready_tokens(layer),
                _ => continue,
            };
            // What another gate has opened, or the application said itself, does not wait for this one.
            if ready < tokens && self.status(key).is_some_and(|status| !status.is_end()) {
                let words = format!(
                    "the gate in front of the first {tokens} tokens of layer {layer} was dropped and never opened"
                );
                self.fail(key, FlowCause::SourceFailed, &words, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
