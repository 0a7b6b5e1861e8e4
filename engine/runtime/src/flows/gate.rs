//! Fences in front of layers.

use std::sync::Arc;

use penstock_core::Env;
use penstock_flows::Event;
use penstock_flows::desk::GateId;

use super::FlowError;
use crate::engine::Engine;
use crate::hub::EngineInner;

/// A fence that the application opens when what was computed is in memory, such as a callback of a device's event does. Any thread may.
///
/// It stands in front of layers that were given with [`Output::layer_after`](super::Output::layer_after), of as many transfers of this
/// engine as there are. Dropped without having been opened it never will be: transfers that wait for it fail, and both sides are told.
pub struct Gate<E: Env> {
    pub(super) hub: Arc<EngineInner<E>>,
    pub(super) id: GateId,
}

impl<E: Env> Gate<E> {
    /// One that is shut.
    pub fn shut(engine: &Engine<E>) -> Result<Self, FlowError> {
        let shared = &engine.hub.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let id = shared.call_desk(|desk, _| desk.add_gate())?;
        Ok(Self { hub: Arc::clone(&engine.hub), id })
    }

    /// Opens it: what waits for it goes, and what is given behind it later goes at once.
    pub fn open(&self) {
        self.hub.shared.call_desk(|desk, now| desk.handle(Event::Gate { gate: self.id }, now));
    }
}

impl<E: Env> Drop for Gate<E> {
    fn drop(&mut self) {
        if !self.hub.shared.is_inherited() {
            self.hub.shared.call_desk(|desk, now| desk.remove_gate(self.id, now));
        }
    }
}
