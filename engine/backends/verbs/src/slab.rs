//! Registered memory for messages, in slots of one size.
//!
//! Adapters write into slots that were given to them and read from slots that a request names; in between they are this side's.
//! Bytes are copied in and out, since an adapter does not know of references.

use std::sync::Arc;

use penstock_core::limits::NOTE_BYTES_MAX;
use penstock_memory::{HostMemory, Window};

use crate::adapter::{AccessFlags, Adapter, AdapterError, Registration, Sge};

/// Bytes that a message has beside its payload, at most.
pub(crate) const HEADER_ROOM: usize = 64;

/// Bytes of a slot: the longest message.
pub(crate) const SLOT_BYTES: usize = NOTE_BYTES_MAX + HEADER_ROOM;

/// Slots, registered with one or more adapters.
pub(crate) struct RegisteredSlots {
    window: Window,
    /// In the order of the adapters that it was made for.
    registrations: Vec<Arc<dyn Registration>>,
    slots: usize,
}

impl RegisteredSlots {
    /// So many slots, at least one, into which these adapters may put messages and from which they may take them.
    pub(crate) fn new<'a>(
        adapters: impl IntoIterator<Item = &'a Arc<dyn Adapter>>,
        slots: usize,
    ) -> Result<Self, AdapterError> {
        let slots = slots.max(1);
        let memory = HostMemory::from_vec(vec![0; slots * SLOT_BYTES]).expect("it has at least one slot");
        let window = memory.window().clone();
        let access = AccessFlags { land: true, ..AccessFlags::default() };
        let registrations =
            adapters.into_iter().map(|adapter| adapter.register(&window, access)).collect::<Result<_, _>>()?;
        Ok(Self { window, registrations, slots })
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The first bytes of a slot, as a request on this adapter names them.
    pub(crate) fn sge(&self, adapter: usize, slot: usize, bytes: usize) -> Sge {
        debug_assert!(slot < self.slots && bytes <= SLOT_BYTES, "{bytes} bytes in slot {slot} of {}", self.slots);
        let address = self.window.base_address() + (slot * SLOT_BYTES) as u64;
        Sge { address, bytes: bytes as u32, key: self.registrations[adapter].local_key() }
    }

    /// Writes a message into a slot.
    pub(crate) fn put(&self, slot: usize, bytes: &[u8]) {
        self.window.write_from((slot * SLOT_BYTES) as u64, bytes).expect("messages fit into slots");
    }

    /// Reads the first bytes of a slot.
    pub(crate) fn get(&self, slot: usize, bytes: &mut [u8]) {
        self.window.read_into((slot * SLOT_BYTES) as u64, bytes).expect("messages fit into slots");
    }
}
