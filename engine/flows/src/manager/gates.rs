//! Fences of applications in front of layers: a layer goes, or can be read, when its gate was opened.
//!
//! One gate may stand in front of several layers of several transfers. One that is gone without having been opened will never be: what
//! waits for it fails at once.
//!
//! Gates in front of different numbers of tokens of one layer may open in any order, as events of several streams do: nothing goes as long as a gate in front of it,
//! or of fewer tokens, is shut.

use std::collections::{BTreeMap, BTreeSet};

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::transfers::table::EntryKey;

use super::TransferManager;
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
    Shut(BTreeSet<(EntryKey, u32, u64)>),
    Open,
}

/// What stands in front of one layer of a transfer, by numbers of first tokens.
#[derive(Debug, Default)]
struct Fenced {
    shut: BTreeSet<(u64, GateId)>,
    /// Opened, behind one that is shut.
    opened: BTreeSet<u64>,
}

impl Fenced {
    /// How many tokens all of whose gates are open, if that has come to more. Gates in front of what was said to be ready are of no account.
    fn ready(&mut self, said: u64) -> Option<u64> {
        self.shut = match said.checked_add(1) {
            Some(behind) => self.shut.split_off(&(behind, GateId(0))),
            None => BTreeSet::new(),
        };
        let limit = self.shut.first().map_or(u64::MAX, |(tokens, _)| *tokens);
        let held = self.opened.split_off(&limit);
        std::mem::replace(&mut self.opened, held).last().copied()
    }
}

/// The gates of an engine.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: BTreeMap<GateId, Gate>,
    fenced: BTreeMap<(EntryKey, u32), Fenced>,
    last: u64,
}

impl Gates {
    pub(super) fn len(&self) -> usize {
        self.gates.len()
    }
}

impl TransferManager {
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

    /// A layer of the source is ready for the first so many tokens, which chunks have given, when this gate is opened. It may be open
    /// already. Gates in front of more tokens of the same layer may follow.
    pub fn layer_after(
        &mut self,
        key: EntryKey,
        (layer, tokens): (u32, u64),
        gate: GateId,
        now: Timestamp,
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
                if waiting.len() >= WAITING_MAX && !waiting.contains(&(key, layer, tokens)) {
                    return Err(CallError::Full { what: "layers behind one gate", most: WAITING_MAX });
                }
                waiting.insert((key, layer, tokens));
                self.gates.fenced.entry((key, layer)).or_default().shut.insert((tokens, gate));
                Ok(())
            }
            Some(Gate::Open) if self.gates.fenced.contains_key(&(key, layer)) => {
                self.opened((key, layer, tokens), gate, now);
                Ok(())
            }
            Some(Gate::Open | Gate::Shut(_)) => self.layer(key, layer, tokens, now),
        }
    }

    /// A gate is opened, by an event. Opened again, it stays open.
    pub(super) fn open_gate(&mut self, gate: GateId, now: Timestamp) {
        let Some(state) = self.gates.gates.get_mut(&gate) else { return };
        let Gate::Shut(waiting) = std::mem::replace(state, Gate::Open) else { return };
        waiting.into_iter().for_each(|waited| self.opened(waited, gate, now));
    }

    /// A gate is open in front of so many tokens of a layer, which go if none is shut before.
    fn opened(&mut self, (key, layer, tokens): (EntryKey, u32, u64), gate: GateId, now: Timestamp) {
        if let Some(fenced) = self.gates.fenced.get_mut(&(key, layer)) {
            fenced.shut.remove(&(tokens, gate));
            fenced.opened.insert(tokens);
        }
        self.advance((key, layer), now);
    }

    /// What was opened behind a gate goes when that one is open, too, or the application has said itself that its tokens are ready.
    pub(super) fn advance(&mut self, of: (EntryKey, u32), now: Timestamp) {
        let said = self.said_ready(of);
        let Some(fenced) = self.gates.fenced.get_mut(&of) else { return };
        let ready = fenced.ready(said);
        if fenced.shut.is_empty() {
            self.gates.fenced.remove(&of);
        }
        if let Some(tokens) = ready {
            // One that has ended meanwhile needs it no more.
            let _ = self.layer(of.0, of.1, tokens, now);
        }
    }

    /// For how many tokens a layer was said to be ready; of a transfer that is gone, for all.
    fn said_ready(&self, (key, layer): (EntryKey, u32)) -> u64 {
        match self.flow(key) {
            Some(Flow::Source(source)) => source.legs.ready_tokens(layer),
            Some(Flow::Lent(lent)) => lent.loans.ready_tokens(layer),
            _ => u64::MAX,
        }
    }

    /// Nobody can open a gate any more. What waits for it will not come.
    pub fn remove_gate(&mut self, gate: GateId, now: Timestamp) {
        let Some(Gate::Shut(waiting)) = self.gates.gates.remove(&gate) else { return };
        for (key, layer, tokens) in waiting {
            let ready = self.said_ready((key, layer));
            // What the application said itself does not wait for it.
            if ready < tokens && self.status(key).is_some_and(|status| !status.is_end()) {
                let words = format!(
                    "the gate in front of the first {tokens} tokens of layer {layer} was dropped and never opened"
                );
                self.fail(key, FlowCause::SourceFailed, &words, now);
            }
            if let Some(fenced) = self.gates.fenced.get_mut(&(key, layer)) {
                fenced.shut.remove(&(tokens, gate));
            }
            self.advance((key, layer), now);
        }
    }
}

#[cfg(test)]
mod tests;
