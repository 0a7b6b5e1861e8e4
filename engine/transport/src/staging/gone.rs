//! What stands for a transport's lane that is dropped, under copies of devices that are not over.

use penstock_core::Cause;

use crate::lane::{
    Batch, CancelledOp, Handle, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError, Posted,
};

const GONE: LaneFault = LaneFault(Cause::PeerLost);

/// It has nothing, and takes nothing.
pub(super) struct GoneLane;

impl Lane for GoneLane {
    fn post(&mut self, _: &Batch<'_>) -> Result<Posted, PostError> {
        Err(PostError::Fault(GONE))
    }

    fn notify(&mut self, _: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        Err(PostError::Fault(GONE))
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(GONE))
    }

    fn cancel_op(&mut self, _: u64) -> CancelledOp {
        CancelledOp::Quiesced
    }

    fn poll(&mut self, _: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        Err(GONE)
    }
}
