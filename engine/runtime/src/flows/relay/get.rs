//! What is fetched.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::Env;
use penstock_flows::TransferManager;
use penstock_flows::manager::{BlockAccess, User};
use penstock_flows::relay::{self as flow, GetKey, Metadata};

use super::extents::{Extents, KeptExtents};
use super::{FlowError, Inner, Payload, Relay, RelayError, RelayFailed, WITHIN};

/// Where a get puts bytes, and how long it may take.
pub struct Destination<'a, E: Env> {
    extents: Option<Extents<'a, E>>,
    within: Duration,
}

impl<E: Env> Default for Destination<'_, E> {
    fn default() -> Self {
        Self::memory()
    }
}

impl<'a, E: Env> Destination<'a, E> {
    /// Into memory of its own, which [`Fetch::wait`] gives.
    pub fn memory() -> Self {
        Self { extents: None, within: WITHIN }
    }

    /// Straight into these parts of a region of this engine, as many bytes as there are. The blocks that they lie in are kept until nothing
    /// can land in them; registered memory is to be left alone until the get has [rested](Fetch::rest). Until then nobody else of this engine
    /// reads or writes those blocks: what others have is refused ([`CallError::Held`](crate::flows::CallError::Held)).
    pub fn extents(extents: Extents<'a, E>) -> Self {
        Self { extents: Some(extents), within: WITHIN }
    }

    /// How long it may take in all.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }
}

/// A get on its way. Dropped before it has ended it is given up, and its putter is told.
pub struct Fetch<E: Env> {
    inner: Arc<Inner<E>>,
    key: GetKey,
    is_own: bool,
}

impl<E: Env> Relay<E> {
    /// Fetches what this metadata names, now or when its putter announces it. One get reads it for all of this engine.
    pub fn get(&self, metadata: &[u8], into: Destination<'_, E>) -> Result<Fetch<E>, FlowError> {
        let inner = &self.inner;
        let shared = &inner.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let Destination { extents, within } = into;
        let (to, room, keep) = match extents {
            None => (flow::Destination::Berths, Some(room_for(metadata, inner.largest)?), None),
            Some(extents) => {
                let KeptExtents { places: extents, keep, .. } =
                    inner.keep(extents, (BlockAccess::Write, true), User::Get)?;
                (flow::Destination::Extents { extents, keep }, None, Some(keep))
            }
        };
        let begun = inner.call(|relays, now| relays.get(metadata, to, within, now));
        let let_go = |_: &_| keep.into_iter().for_each(|keep| inner.keep_no_more(keep));
        let key = begun.inspect_err(let_go)?;
        let is_own = room.is_some();
        if let Some(room) = room {
            inner.begin_get(key, room);
        }
        Ok(Fetch { inner: Arc::clone(inner), key, is_own })
    }
}

/// Memory for what this metadata names.
fn room_for(metadata: &[u8], most: u64) -> Result<Vec<u8>, FlowError> {
    let Metadata { bytes, .. } = Metadata::parse(metadata).map_err(RelayError::from)?;
    let mut room = Vec::new();
    let too_large = FlowError::TooLarge { bytes, most };
    let count = usize::try_from(bytes).ok().filter(|_| bytes <= most).ok_or(too_large.clone())?;
    room.try_reserve_exact(count).map_err(|_| too_large)?;
    Ok(room)
}

impl<E: Env> Fetch<E> {
    /// Whether it has ended: everything is here, or why not. Brings what is to be copied forward.
    pub fn poll(&self) -> Option<Result<(), RelayFailed>> {
        self.inner.bring_forward();
        self.inner.engine.shared.look_at_manager(|manager| ended(manager, self.key))
    }

    /// Waits until it has ended, and gives what has come, once. That it has not in this time ends the wait, and not the get.
    pub fn wait(&self, timeout: Duration) -> Result<Result<Payload, RelayFailed>, FlowError> {
        if let Err(failed) = self.inner.wait(timeout, |manager| ended(manager, self.key))? {
            return Ok(Err(failed));
        }
        let words = |manager: &TransferManager| {
            manager
                .relays()
                .words(self.key)
                .map(|(schema, header)| (schema.to_vec(), header.to_vec()))
                .unwrap_or_default()
        };
        let (schema, header) = self.inner.engine.shared.look_at_manager(words);
        let bytes = if self.is_own { self.inner.take_room(self.key).ok_or(RelayError::Over)? } else { Vec::new() };
        Ok(Ok(Payload { bytes, schema, header }))
    }

    /// Waits until nothing can land in its memory any more, which after a failure may take longer than its end. Answers whether that is so.
    pub fn rest(&self, timeout: Duration) -> bool {
        let has_ended = |manager: &TransferManager| {
            manager.relays().get_state(self.key).is_none_or(|state| state.is_end()).then_some(())
        };
        self.inner.wait(timeout, has_ended).is_ok()
    }
}

/// How a get has ended for its application: well when the last piece was copied out.
fn ended(manager: &TransferManager, key: GetKey) -> Option<Result<(), RelayFailed>> {
    let result = manager.relays().get_result(key)?;
    (result.is_err() || !manager.relays().has_pieces(key)).then(|| result.clone())
}

impl<E: Env> Drop for Fetch<E> {
    fn drop(&mut self) {
        if !self.inner.engine.shared.is_inherited() {
            self.inner.let_go_get(self.key);
        }
    }
}

impl<E: Env> std::fmt::Debug for Fetch<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("key", &self.key).finish_non_exhaustive()
    }
}
