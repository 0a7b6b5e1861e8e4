//! What the lanes of a session say to each other over its control channel, because their own path cannot carry it.

use std::sync::Arc;

use penstock_core::{Cause, Env};
use penstock_session::Frame;
use penstock_session::frame::ASIDE_BYTES_MAX;
use penstock_transport::link::{self, Voice};

use super::{Control, Phase, Talk};
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Shared};

const _: () = assert!(link::ASIDE_BYTES_MAX <= ASIDE_BYTES_MAX, "what lanes may say at once fits into a frame");

/// Lets the lanes to this peer say something, from any thread, for as long as its session stands.
pub(super) fn voice<E: Env>(shared: &Arc<Shared<E>>, peer: &Arc<PeerState>) -> Voice {
    // Whoever holds the voice is held by the peer, or by the engine.
    let (shared, peer) = (Arc::downgrade(shared), Arc::downgrade(peer));
    Box::new(move |words| {
        debug_assert!(words.len() <= link::ASIDE_BYTES_MAX, "lanes keep to the length of words");
        let (Some(shared), Some(peer)) = (shared.upgrade(), peer.upgrade()) else { return };
        if peer.ended().is_none() {
            shared.control.call(ControlCall::Aside { peer, words: words.to_vec() });
        }
    })
}

impl<E: Env> Control<E> {
    pub(super) fn say_aside(&mut self, peer: &Arc<PeerState>, words: Vec<u8>) {
        if let Some(token) = self.token_of(peer)
            && let Some(Talk { phase: Phase::Open { .. }, .. }) = self.talks.get(&token)
        {
            self.say(token, &Frame::Aside(words));
        }
    }

    /// The peer's lanes have said something. Nonsense, or words where nobody hears any, end the session.
    pub(super) fn heard_aside(&mut self, token: u64, words: &[u8]) {
        let Some(Talk { phase: Phase::Open { peer, asides, .. }, .. }) = self.talks.get(&token) else { return };
        let heard =
            asides.as_ref().map_or(Err(Cause::PeerCorrupt), |asides| asides.heard(words).map_err(|fault| fault.0));
        if let Err(cause) = heard {
            tracing::warn!(peer = %peer.name, %cause, "what a peer's lanes say ends the session");
            self.leave(token, cause, None);
        }
    }
}
