//! Connecting by name or address: to an engine that is about to come, or to come back.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use penstock_core::{EngineName, Env, Timestamp};
use penstock_session::Directory;
use penstock_session::directory::DIRECTORY_BYTES_MAX;
use penstock_session::frame::RefusalCode;
use penstock_transport::Scope;

use crate::control::Wanted;
use crate::engine::Engine;
use crate::error::ConnectError;
use crate::peer::Peer;
use crate::resolve::resolve;

/// The pause after the first attempt; each one is longer than the last.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between two attempts on one host.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// The same between hosts.
const PAUSE_MAX_NETWORK: Duration = Duration::from_millis(100);

impl<E: Env> Engine<E> {
    /// Connects to whichever engine has this name, and tries again until there is one or the time is over. It is
    /// looked for in this engine's folder, then in the file `session.directory_file`, then among those whom peers
    /// have told of. No descriptor is needed; any life of it will do.
    pub fn connect_name(&self, name: &str, timeout: Duration) -> Result<Peer<E>, ConnectError> {
        let name = EngineName::new(name)?;
        if name == *self.name() {
            return self.connect(&self.descriptor(), timeout); // Nobody else has it.
        }
        let socket = self.engine.shared.socket_of(&name);
        self.insist(&name, timeout, |until| self.find(&name, &socket, until))
    }

    /// Connects to whichever engine listens at this address: `host:port`, `10.0.0.7:7400` or `[2001:db8::7]:7400`.
    /// Its name is learned from itself. This goes over the network on one host, too, unless a session with it stands: that one is found,
    /// whichever transport it has.
    pub fn connect_address(&self, address: &str, timeout: Duration) -> Result<Peer<E>, ConnectError> {
        self.engine.shared.check_usable().map_err(ConnectError::Call)?;
        let until = self.engine.shared.env.now() + timeout;
        let addresses = self.resolved(address, until)?;
        let left = until.since(self.engine.shared.env.now());
        let wanted = Wanted {
            name: address.to_owned(),
            epoch: 0,
            must_be: None,
            socket: None,
            addresses,
            secret: None,
            within: Some(left),
        };
        self.begin(wanted)?.wait(left)
    }

    /// Connects again to the engine behind a session that has ended, most likely in its next life: a new
    /// epoch under the same name. Plans and handles of the old session stay refused. If a session with
    /// it stands, that one is found.
    pub fn reconnect(&self, peer: &Peer<E>, timeout: Duration) -> Result<Peer<E>, ConnectError> {
        let state = &peer.state;
        let known = |until| match state.address {
            None => Ok(Wanted::here(state.name.to_string(), 0, state.socket.clone())),
            Some(address) => self.again(&state.name, address, state.was_called(), until),
        };
        self.insist(&state.name, timeout, known)
    }

    /// Where an engine on another host was called, or what it has said of itself.
    fn again(
        &self,
        name: &EngineName,
        address: SocketAddr,
        was_called: bool,
        until: Timestamp,
    ) -> Result<Wanted, ConnectError> {
        let mut wanted = self.far(name, self.told_addresses(name), until);
        if was_called && !wanted.addresses.contains(&address) {
            wanted.addresses.insert(0, address);
        }
        Ok(wanted)
    }

    fn far(&self, name: &EngineName, addresses: Vec<SocketAddr>, until: Timestamp) -> Wanted {
        Wanted {
            name: name.to_string(),
            epoch: 0,
            must_be: Some(name.clone()),
            socket: None,
            addresses,
            secret: None,
            within: Some(until.since(self.engine.shared.env.now())),
        }
    }

    /// Where an engine of this name is to be found at this moment.
    fn find(&self, name: &EngineName, socket: &str, until: Timestamp) -> Result<Wanted, ConnectError> {
        let mut wanted = self.far(name, Vec::new(), until);
        // With nothing else to go by, the socket may still come.
        let is_here = Path::new(socket).exists();
        for address in self.listed(name)?.unwrap_or_default() {
            match self.resolved(&address, until) {
                Ok(found) => wanted.addresses.extend(found),
                Err(error) => tracing::warn!(%error, "an address of the directory is left out"),
            }
        }
        wanted.addresses.extend(self.told_addresses(name));
        if wanted.addresses.is_empty() && !self.engine.shared.reaches(Scope::Host) {
            // Somebody may still tell of it.
            return Err(ConnectError::Unreachable {
                name: name.to_string(),
                path: "any address that is known here".to_owned(),
                reason: "neither the directory nor a peer knows where it is".to_owned(),
            });
        }
        if is_here || wanted.addresses.is_empty() {
            wanted.socket = Some(socket.to_owned());
        }
        if wanted.addresses.is_empty() {
            wanted.within = None;
        }
        Ok(wanted)
    }

    /// The addresses in the directory's file, read anew each time.
    fn listed(&self, name: &EngineName) -> Result<Option<Vec<String>>, ConnectError> {
        let Some(path) = &self.engine.shared.config.session.directory_file else { return Ok(None) };
        let failed = |reason: String| ConnectError::Directory { path: path.display().to_string(), reason };
        let text = read_bounded(path).map_err(|error| failed(error.to_string()))?;
        let directory = Directory::parse(&text).map_err(|error| failed(error.to_string()))?;
        Ok(directory.find(name.as_str()).map(<[String]>::to_vec))
    }

    fn told_addresses(&self, name: &EngineName) -> Vec<SocketAddr> {
        let book = self.engine.shared.book();
        let card = book.find(name.as_str());
        card.into_iter().flat_map(|card| &card.addresses).filter_map(|address| address.parse().ok()).collect()
    }

    fn resolved(&self, address: &str, until: Timestamp) -> Result<Vec<SocketAddr>, ConnectError> {
        let left = until.since(self.engine.shared.env.now());
        let found = resolve(&self.engine, address, left);
        found.map_err(|reason| ConnectError::Unresolved { address: address.to_owned(), reason })
    }

    fn insist(
        &self,
        name: &EngineName,
        within: Duration,
        find: impl Fn(Timestamp) -> Result<Wanted, ConnectError>,
    ) -> Result<Peer<E>, ConnectError> {
        let env = &self.engine.shared.env;
        let until = env.now() + within;
        let mut pause = PAUSE_FIRST;
        let mut last = None;
        loop {
            let mut pause_max = PAUSE_MAX;
            match self.attempt(name, until, &find, &mut pause_max) {
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
            pause = (pause * 2).min(pause_max);
        }
    }

    fn attempt(
        &self,
        name: &EngineName,
        until: Timestamp,
        find: &impl Fn(Timestamp) -> Result<Wanted, ConnectError>,
        pause_max: &mut Duration,
    ) -> Result<Peer<E>, ConnectError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(ConnectError::Call)?;
        if let Some(state) = shared.peers.with_name(name) {
            return self.found(name.to_string(), state).wait(until.since(shared.env.now()));
        }
        let wanted = find(until)?;
        if wanted.socket.is_none() {
            *pause_max = PAUSE_MAX_NETWORK;
        }
        self.begin(wanted)?.wait(until.since(shared.env.now()))
    }

    fn rest(&self, span: Duration) {
        let env = &self.engine.shared.env;
        if self.engine.is_inline() {
            let until = env.now() + span;
            self.engine.wait_until(until, || false);
        } else {
            env.pause(span);
        }
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(DIRECTORY_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether the next attempt may find what this one did not.
fn may_pass(error: &ConnectError) -> bool {
    match error {
        ConnectError::Unreachable { .. }
        | ConnectError::Lost { .. }
        | ConnectError::TimedOut { .. }
        | ConnectError::Unresolved { .. }
        | ConnectError::RateLimited { .. } => true,
        ConnectError::Refused { code, .. } => matches!(code, RefusalCode::Closing | RefusalCode::Full),
        ConnectError::TurnedAway { code, .. } => {
            matches!(code, penstock_session::OpeningCode::Busy | penstock_session::OpeningCode::Closing)
        }
        _ => false,
    }
}
