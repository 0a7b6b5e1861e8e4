//! Connecting by name: to an engine that is about to come, or to come back.

use std::time::Duration;

use penstock_core::{EngineName, Env};
use penstock_session::Card;
use penstock_session::frame::RefusalCode;

use crate::engine::Engine;
use crate::error::ConnectError;
use crate::peer::Peer;

/// The pause after the first attempt; each one is longer than the last.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(20);

impl<E: Env> Engine<E> {
    /// Connects to whichever engine has this name in this engine's folder, and tries again until there is one
    /// or the time is over. No descriptor is needed; any life of it will do.
    pub fn connect_name(&self, name: &str, within: Duration) -> Result<Peer<E>, ConnectError> {
        let name = EngineName::new(name)?;
        let socket = self.hub.shared.socket_of(&name);
        self.insist(&name, socket, within)
    }

    /// Connects again to the engine behind a session that has ended, most likely in its next life: a new
    /// epoch under the same name. Plans and handles of the old session stay refused. If a session with
    /// it stands, that one is found.
    pub fn reconnect(&self, peer: &Peer<E>, within: Duration) -> Result<Peer<E>, ConnectError> {
        self.insist(&peer.state.name, peer.state.socket.clone(), within)
    }

    fn insist(&self, name: &EngineName, socket: String, within: Duration) -> Result<Peer<E>, ConnectError> {
        let env = &self.hub.shared.env;
        let until = env.now() + within;
        let mut pause = PAUSE_FIRST;
        let mut last = None;
        loop {
            match self.attempt(name, &socket, until.since(env.now())) {
                Ok(peer) => return Ok(peer),
                Err(error) if !may_pass(&error) => return Err(error),
                // An attempt that had too little time left says less than the one before it.
                Err(ConnectError::TimedOut { .. }) if last.is_some() => {}
                Err(error) => last = Some(error),
            }
            let left = until.since(env.now());
            if let (true, Some(last)) = (left.is_zero(), last.clone()) {
                return Err(ConnectError::NotBack { name: name.to_string(), within, last: Box::new(last) });
            }
            // Between half of it and all of it, so that many who wait for one do not come at once.
            let jittered = pause.mul_f64(0.5 + 0.5 * (env.random() as f64 / u64::MAX as f64));
            self.rest(jittered.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn attempt(&self, name: &EngineName, socket: &str, within: Duration) -> Result<Peer<E>, ConnectError> {
        let shared = &self.hub.shared;
        shared.check_usable().map_err(ConnectError::Call)?;
        if let Some(state) = shared.peers.with_name(name) {
            return Ok(Peer { hub: std::sync::Arc::clone(&self.hub), state });
        }
        // Epoch zero is nobody's: whoever answers there will do.
        let (host, socket) = (shared.card.host, socket.to_owned());
        let card = Card { name: name.to_string(), epoch: 0, host, socket, addresses: Vec::new() };
        self.begin(card)?.wait(within)
    }

    fn rest(&self, span: Duration) {
        let env = &self.hub.shared.env;
        if self.hub.is_inline() {
            let until = env.now() + span;
            self.hub.wait_until(until, || false);
        } else {
            env.pause(span);
        }
    }
}

/// Whether the next attempt may find what this one did not.
fn may_pass(error: &ConnectError) -> bool {
    match error {
        ConnectError::Unreachable { .. } | ConnectError::Lost { .. } | ConnectError::TimedOut { .. } => true,
        ConnectError::Refused { code, .. } => matches!(code, RefusalCode::Closing | RefusalCode::Full),
        _ => false,
    }
}
