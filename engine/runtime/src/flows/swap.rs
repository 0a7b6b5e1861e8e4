//! A swap of a request's blocks, under way.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::Env;
pub use penstock_flows::lifecycle::Swap as SwapState;
use penstock_flows::lifecycle::{SwapAsk, SwapKey, SwapPath, SwapWay};
pub use penstock_flows::manager::{SwapFailed, SwapStatus};
use penstock_memory::Blocks;
use penstock_session::RequestId;

use super::FlowError;
use super::lifecycle::{LifecycleInner, block_refs};

/// A swap. Dropped before it was committed it is rolled back; its blocks are let go when nothing of it can land any more.
pub struct Swap<E: Env> {
    lives: Arc<LifecycleInner<E>>,
    key: SwapKey,
}

impl<E: Env> Swap<E> {
    pub(super) fn begin(
        lives: &Arc<LifecycleInner<E>>,
        way: SwapWay,
        request: (&RequestId, u64),
        (device, host): (&Blocks, &Blocks),
        path: &SwapPath,
        within: Duration,
    ) -> Result<Self, FlowError> {
        let manager = &lives.engine.shared.manager;
        let (read, written) = match way {
            SwapWay::Out => (device, host),
            SwapWay::In => (host, device),
        };
        let [source, target] = [read, written].map(|blocks| manager.keep(blocks.clone()));
        let pairs = block_refs(device).into_iter().zip(block_refs(host)).collect();
        let ask = SwapAsk { way, path: path.clone(), pairs, source, target, within };
        let begun =
            lives.call(|manager, key, now| manager.begin_swap(key, request, ask, now)).and_then(|begun| Ok(begun?));
        let key = begun.inspect_err(|_| [source, target].into_iter().for_each(|ticket| manager.free(ticket)))?;
        Ok(Self { lives: Arc::clone(lives), key })
    }

    /// How far it is.
    pub fn status(&self) -> SwapStatus {
        let looked = self.lives.engine.shared.look_at_manager(|manager| manager.swap_status(self.lives.key, self.key));
        looked.unwrap_or(SwapStatus { state: SwapState::RolledBack, failed: Some(SwapFailed::RolledBack) })
    }

    /// Whether its bytes are there, or why not; nothing while they are on their way.
    pub fn poll(&self) -> Option<Result<(), SwapFailed>> {
        answer(self.status())
    }

    /// Waits until its bytes are there, so that it can be committed, or never will be. After a failure its blocks may still be touched: they may be
    /// used again when it is [over](Swap::wait_over).
    pub fn wait(&self, timeout: Duration) -> Result<Result<(), SwapFailed>, FlowError> {
        let look = |manager: &penstock_flows::TransferManager| match manager.swap_status(self.lives.key, self.key) {
            Some(status) => answer(status),
            None => Some(Err(SwapFailed::RolledBack)),
        };
        self.lives.engine.wait_for_manager(timeout, look).ok_or(FlowError::Nothing(timeout))
    }

    /// Goes on with what it has written: the request is where its bytes are now, and the swap lets go of what was read.
    pub fn commit(&self) -> Result<(), FlowError> {
        Ok(self.lives.call(|manager, key, now| manager.commit_swap(key, self.key, now))??)
    }

    /// Gives it up: the request is where it was before. Answers within that time whether nothing of it can land any more; if it still
    /// can, what it writes to is kept from everybody until that is proven.
    pub fn roll_back(&self, timeout: Duration) -> Result<bool, FlowError> {
        if !self.status().is_over() {
            self.lives.call(|manager, key, now| manager.roll_back_swap(key, self.key, now))??;
        }
        Ok(self.wait_over(timeout))
    }

    /// Waits until nothing of it can land any more and its blocks were let go. Answers whether that is so.
    pub fn wait_over(&self, timeout: Duration) -> bool {
        let look = |manager: &penstock_flows::TransferManager| {
            let status = manager.swap_status(self.lives.key, self.key);
            status.is_none_or(|status| status.is_over()).then_some(())
        };
        self.lives.engine.wait_for_manager(timeout, look).is_some()
    }
}

fn answer(status: SwapStatus) -> Option<Result<(), SwapFailed>> {
    match (status.failed, status.state) {
        (Some(failed), _) => Some(Err(failed)),
        (None, SwapState::Moved | SwapState::Committed) => Some(Ok(())),
        (None, SwapState::Moving) => None,
        // It was stopped from here; its end says why.
        (None, _) => Some(Err(SwapFailed::RolledBack)),
    }
}

impl<E: Env> Drop for Swap<E> {
    fn drop(&mut self) {
        if !self.lives.engine.shared.is_inherited() {
            self.lives.engine.shared.call_manager(|manager, now| manager.release_swap(self.lives.key, self.key, now));
        }
    }
}
