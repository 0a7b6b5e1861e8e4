//! Fences in front of layers.

use std::sync::Arc;

use penstock_core::Env;
use penstock_flows::Event;
use penstock_flows::manager::GateId;

use super::FlowError;
use crate::engine::Engine;
use crate::engine_inner::EngineInner;

/// A fence that the application opens when what was computed is in memory, such as a callback of a device's event does. Any thread may.
///
/// It stands in front of layers that were given with [`Output::layer_after`](super::Output::layer_after), of as many transfers of this
/// engine as there are. Dropped without having been opened it never will be: transfers that wait for it fail, and both sides are told.
pub struct Gate<E: Env> {
    pub(super) engine: Arc<EngineInner<E>>,
    pub(super) id: GateId,
}

impl<E: Env> Gate<E> {
    /// One that is shut.
    pub fn shut(engine: &Engine<E>) -> Result<Self, FlowError> {
        let shared = &engine.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let id = shared.call_manager(|manager, _| manager.add_gate())?;
        Ok(Self { engine: Arc::clone(&engine.engine), id })
    }

    /// Opens it: what waits for it goes, and what is given behind it later goes at once.
    pub fn open(&self) {
        self.engine.shared.call_manager(|manager, now| manager.handle(Event::Gate { gate: self.id }, now));
    }
}

impl<E: Env> Drop for Gate<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, now| manager.remove_gate(self.id, now));
        }
    }
}
