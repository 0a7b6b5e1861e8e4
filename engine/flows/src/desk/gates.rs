//! Fences of applications in front of layers: a layer goes, or can be read, when its gate was opened.
//!
//! One gate may stand in front of several layers of several transfers. One that is gone without having been opened will never be: what
//! waits for it fails at once.

use std::collections::{BTreeMap, BTreeSet};

use penstock_core::Moment;
use penstock_session::transfers::table::EntryKey;

use super::Desk;
use super::calls::CallError;
use super::flow::Flow;
use crate::cause::FlowCause;
use crate::part::LegError;

/// The most gates of an engine.
const GATES_MAX: usize = 65_536;
/// The most layers that wait for one gate.
const WAITING_MAX: usize = 65_536;

/// A gate. Its number is never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(pub u64);

#[derive(Debug)]
enum Gate {
    /// These layers of these transfers wait for it.
    Shut(BTreeSet<(EntryKey, u32)>),
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
        self.gates.gates.insert(id, Gate::Shut(BTreeSet::new()));
        Ok(id)
    }

    /// A layer of the source is ready, of all tokens that were or will be given, when this gate is opened. It may be open already.
    pub fn layer_after(&mut self, key: EntryKey, layer: u32, gate: GateId, now: Moment) -> Result<(), CallError> {
        let (is_by_layer, layers, status) = match self.flow(key) {
            Some(Flow::Source(source)) => {
                (source.legs.is_by_layer(), source.legs.layout().layers(), source.legs.status())
            }
            Some(Flow::Lent(lent)) => (lent.loans.is_by_layer(), lent.loans.layout().layers(), lent.loans.status()),
            _ => return Err(CallError::NoTransfer),
        };
        if !is_by_layer {
            return Err(LegError::NotByLayer.into());
        }
        if layer >= layers {
            return Err(LegError::NoSuchLayer { layer, layers }.into());
        }
        match self.gates.gates.get_mut(&gate) {
            None => Err(CallError::NoGate),
            // What has ended waits for nothing: the call that follows says so.
            Some(Gate::Shut(waiting)) if !status.is_end() => {
                if waiting.len() >= WAITING_MAX {
                    return Err(CallError::Full { what: "layers behind one gate", most: WAITING_MAX });
                }
                waiting.insert((key, layer));
                Ok(())
            }
            Some(Gate::Open | Gate::Shut(_)) => self.layer(key, layer, u64::MAX, now),
        }
    }

    /// A gate is opened, by an event. Opened again, it stays open.
    pub(super) fn open_gate(&mut self, gate: GateId, now: Moment) {
        let Some(state) = self.gates.gates.get_mut(&gate) else { return };
        let Gate::Shut(waiting) = std::mem::replace(state, Gate::Open) else { return };
        for (key, layer) in waiting {
            // One that has ended meanwhile needs it no more.
            let _ = self.layer(key, layer, u64::MAX, now);
        }
    }

    /// Nobody can open a gate any more. What waits for it will not come.
    pub fn remove_gate(&mut self, gate: GateId, now: Moment) {
        let Some(Gate::Shut(waiting)) = self.gates.gates.remove(&gate) else { return };
        for (key, layer) in waiting {
            if self.status(key).is_some_and(|status| !status.is_end()) {
                let words = format!("the gate in front of layer {layer} was dropped and never opened");
                self.fail(key, FlowCause::SourceFailed, &words, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
