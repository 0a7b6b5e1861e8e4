//! Calls of the public interface that more than one application here makes alike.

use penstock::Peer;
use penstock::flows::{CallError, FinishedTransfer, FlowError, RequestId};

use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated};
use crate::stage::Seat;

/// What an engine says of a request that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its bytes were sent, or received.
    Well,
    /// It has failed. Nothing touches its memory any more, but for what is quarantined.
    Failed,
    /// Nothing touches what was quarantined either.
    Released,
}

/// A request that has finished.
pub(crate) struct Told {
    /// Which.
    pub(crate) request: RequestId,
    /// How.
    pub(crate) how: Ended,
    /// Blocks that may still be touched.
    pub(crate) quarantined: Vec<u32>,
}

/// Requests of a seat that have finished since it was last asked.
pub(crate) fn finished(seat: &Seat) -> Vec<Told> {
    let Some(node) = seat.node() else { return Vec::new() };
    let mut finished = FinishedTransfer::default();
    node.drain_finished(&mut finished);
    let FinishedTransfer { sent, received, failed, quarantined, released, .. } = finished;
    let well = sent.into_iter().chain(received).map(|request| (request, true));
    let all = well.chain(failed.into_iter().map(|request| (request, false)));
    let still = |request: &RequestId| {
        let its = quarantined.iter().filter(|its| its.request == *request);
        its.flat_map(|its| its.blocks.iter().copied()).collect()
    };
    let told = all.map(|(request, is_well)| Told {
        quarantined: still(&request),
        request,
        how: if is_well { Ended::Well } else { Ended::Failed },
    });
    let told: Vec<Told> = told.collect();
    let released = released.into_iter().map(|request| Told { request, how: Ended::Released, quarantined: Vec::new() });
    told.into_iter().chain(released).collect()
}

/// A call that needs a session was refused. That is right when the session is over, whether somebody has told of it or not, and never
/// because something has not come yet.
pub(crate) fn check_session(error: &FlowError, peer: &Peer<SimEnv>, who: &str) -> Result<(), Violated> {
    if matches!(error, FlowError::Call(CallError::PeerLost { .. })) && peer.ended().is_some() {
        return Ok(());
    }
    let is_of_session = matches!(
        error,
        FlowError::Call(
            CallError::PeerLost { .. }
                | CallError::NotYet { .. }
                | CallError::NotSpoken { .. }
                | CallError::NoSuchLayout { .. }
        )
    );
    let invariant = if is_of_session { Invariant::AnswersComeInTime } else { Invariant::OneEndEach };
    Err(Violated::new(invariant, format!("{who} is refused in a session that stands: {error}")))
}
