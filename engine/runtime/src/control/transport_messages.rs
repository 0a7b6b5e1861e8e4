//! What the lanes of a session say to each other over its control channel, because their own path cannot carry it.

use std::sync::Arc;

use penstock_core::{Cause, Env};
use penstock_session::Frame;
use penstock_session::frame::TRANSPORT_MESSAGE_BYTES_MAX;
use penstock_transport::link::{self, ControlSender};

use super::{Control, Phase, Talk};
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Shared};

const _: () = assert!(
    link::TRANSPORT_MESSAGE_BYTES_MAX <= TRANSPORT_MESSAGE_BYTES_MAX,
    "what lanes may say at once fits into a frame"
);

/// Lets the lanes to this peer say something, from any thread, for as long as its session stands.
pub(super) fn sender<E: Env>(shared: &Arc<Shared<E>>, peer: &Arc<PeerState>) -> ControlSender {
    // Whoever holds the voice is held by the peer, or by the engine.
    let (shared, peer) = (Arc::downgrade(shared), Arc::downgrade(peer));
    Box::new(move |words| {
        debug_assert!(words.len() <= link::TRANSPORT_MESSAGE_BYTES_MAX, "lanes keep to the length of words");
        let (Some(shared), Some(peer)) = (shared.upgrade(), peer.upgrade()) else { return };
        if peer.ended().is_none() {
            shared.control.call(ControlCall::TransportMessage { peer, words: words.to_vec() });
        }
    })
}

impl<E: Env> Control<E> {
    pub(super) fn send_transport_message(&mut self, peer: &Arc<PeerState>, words: Vec<u8>) {
        if let Some(token) = self.token_of(peer)
            && let Some(Talk { phase: Phase::Open { .. }, .. }) = self.talks.get(&token)
        {
            self.say(token, &Frame::TransportMessage(words));
        }
    }

    /// The peer's lanes have said something. Nonsense, or words where nobody hears any, end the session.
    pub(super) fn on_transport_message(&mut self, token: u64, words: &[u8]) {
        let Some(Talk { phase: Phase::Open { peer, transport_messages, .. }, .. }) = self.talks.get(&token) else {
            return;
        };
        let heard = transport_messages.as_ref().map_or(Err(Cause::PeerCorrupt), |transport_messages| {
            transport_messages.on_message(words).map_err(|fault| fault.0)
        });
        if let Err(cause) = heard {
            peer.note_loss(|| loss_of(peer, cause));
            let why = format!("what its lanes say: {cause}");
            self.log_end(token, &why);
            self.leave(token, cause, None);
        }
    }
}

/// The words for a session that a message of the peer's lanes ends. Of its path only the peer knows more, and logs it.
fn loss_of(peer: &PeerState, cause: Cause) -> String {
    match (cause, peer.address) {
        (Cause::NoPath, Some(address)) => format!(
            "{address} says that packets of transport `{}` do not pass between it and this host: mostly the mend is to let UDP pass between \
             both hosts in both directions; its log says why",
            peer.transport
        ),
        _ => format!("what its lanes say ends the session: {cause}"),
    }
}
