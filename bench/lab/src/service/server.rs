//! Takes the requests of all peers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use penstock::limits::NOTE_BYTES_MAX;
use penstock::{Cause, Engine, EngineName, Epoch, Notification, Peer, Submit, SystemEnv};

use super::charge::Ledger;
use super::message::{self, Answer, Kind, Refusal};
use super::tenant::{House, Purse, Tenant};

/// Requests of one peer that wait for the one before.
const WAITING_MAX: usize = 16;
/// The longest between two looks at who is there.
const LOOK: Duration = Duration::from_millis(50);

/// What is done for others at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of pools for all peers together.
    pub pool_bytes: u64,
    /// Peers that are served at the same time, each by a thread.
    pub peers: usize,
}

/// What a server has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer has come.
    Came {
        peer: EngineName,
        /// How its bytes travel.
        transport: &'static str,
        /// From where, if over the network.
        address: Option<SocketAddr>,
    },
    /// A peer was refused a pool, or everything as there are too many.
    Refused {
        /// Its name.
        peer: EngineName,
        /// From where it asked, if over the network.
        address: Option<SocketAddr>,
        /// Why.
        refusal: Refusal,
    },
    /// A peer has gone, with all that it was given.
    Went {
        /// Its name.
        peer: EngineName,
        /// Why.
        why: String,
    },
}

/// How a server has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Peers that had a session when it was asked to end.
    pub told: usize,
    /// Those of which something was under way until the time was over, and was broken off.
    pub broken_off: Vec<EngineName>,
}

/// Serves the peers of an engine.
pub struct Server<'a> {
    engine: &'a Engine,
    limits: Limits,
    doctor: &'a (dyn Fn() -> serde_json::Value + Sync),
}

impl<'a> Server<'a> {
    /// A server for the peers of this engine, whose notifications are all for it. `doctor` has this host examined.
    pub fn new(engine: &'a Engine, limits: Limits, doctor: &'a (dyn Fn() -> serde_json::Value + Sync)) -> Self {
        Self { engine, limits, doctor }
    }

    /// Serves until `is_over` says so, which is asked at least twenty times a second; tells what it sees. Then its peers hear
    /// that it ends, and what is under way has `finish_within` to come to its end: only then is taken back what was made for
    /// them, and the engine takes nothing new for ever.
    pub fn serve(&self, is_over: impl Fn() -> bool, finish_within: Duration, mut tell: impl FnMut(Event)) -> Ended {
        let house = House {
            engine: self.engine,
            purse: Purse::of(self.limits.pool_bytes),
            next: AtomicU64::new(1),
            doctor: self.doctor,
            ledger: Mutex::new(Ledger::new()),
            refused: Mutex::new(Vec::new()),
        };
        std::thread::scope(|scope| {
            let mut desk = Desk { scope, house: &house, limits: self.limits, guests: HashMap::new(), looked: None };
            let mut taken = Vec::new();
            while !is_over() {
                desk.look(false, &mut tell);
                self.engine.wait_notification(LOOK);
                self.engine.notifications(&mut taken);
                for note in taken.drain(..) {
                    desk.take(note, &mut tell);
                }
            }
            desk.end(finish_within, &mut tell)
        })
    }
}

/// A peer with a session.
struct Guest<'s> {
    peer: Peer<SystemEnv>,
    /// Where its requests go, once it has made one.
    requests: Option<SyncSender<(u32, Vec<u8>)>>,
    thread: Option<ScopedJoinHandle<'s, ()>>,
}

struct Desk<'s, 'e> {
    scope: &'s Scope<'s, 'e>,
    house: &'e House<'e>,
    limits: Limits,
    guests: HashMap<(EngineName, Epoch), Guest<'s>>,
    looked: Option<Instant>,
}

impl<'s, 'e> Desk<'s, 'e> {
    /// Sees who has come and who has gone.
    fn look(&mut self, now: bool, tell: &mut impl FnMut(Event)) {
        if !now && self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        self.house.take_refused().into_iter().for_each(&mut *tell);
        for peer in self.house.engine.peers() {
            let key = (peer.name().clone(), peer.epoch());
            if peer.ended().is_none() && !self.guests.contains_key(&key) {
                tell(Event::Came { peer: key.0.clone(), transport: peer.transport(), address: peer.address() });
                self.guests.insert(key, Guest { peer, requests: None, thread: None });
            }
        }
        self.guests.retain(|(name, _), guest| {
            let Some(cause) = guest.peer.ended() else { return true };
            // Its thread takes back what it had as soon as there can be no more requests.
            guest.requests = None;
            let is_done = guest.thread.as_ref().is_none_or(ScopedJoinHandle::is_finished);
            if is_done {
                let why = match (cause, guest.peer.loss()) {
                    (Cause::PeerClosed, _) => "it said goodbye".to_owned(),
                    (_, Some(loss)) => loss.to_owned(),
                    (cause, None) => cause.to_string(),
                };
                tell(Event::Went { peer: name.clone(), why });
            }
            !is_done
        });
    }

    /// Tells all that this server ends, and waits for what is under way.
    fn end(&mut self, within: Duration, tell: &mut impl FnMut(Event)) -> Ended {
        let until = Instant::now() + within;
        let told = self.guests.values().filter(|guest| guest.peer.ended().is_none()).count();
        let mut taken = Vec::new();
        loop {
            let drained = self.house.engine.drain(LOOK);
            // Peers may wait for room to say something: what they say is not answered any more.
            self.house.engine.notifications(&mut taken);
            taken.clear();
            self.look(true, tell);
            let broken_off = match drained {
                Ok(drained) if drained.is_complete() => Vec::new(),
                Ok(_) if Instant::now() < until => continue,
                Ok(drained) => drained.peers,
                Err(_) => Vec::new(),
            };
            for guest in self.guests.values().filter(|guest| broken_off.contains(guest.peer.name())) {
                guest.peer.disconnect(LOOK);
            }
            // Whose threads have nothing more to do than to take back what their peers had.
            self.guests.values_mut().for_each(|guest| guest.requests = None);
            while self.guests.values().any(|guest| guest.thread.as_ref().is_some_and(|thread| !thread.is_finished())) {
                std::thread::sleep(LOOK / 10);
            }
            self.look(true, tell);
            return Ended { told, broken_off };
        }
    }

    fn take(&mut self, note: Notification, tell: &mut impl FnMut(Event)) {
        let Some((kind, number)) = Kind::of(note.id) else { return };
        if !self.knows(&note.peer) {
            self.look(true, tell);
        }
        match kind {
            Kind::Echo => self.echo(&note.peer, number, &note.payload),
            Kind::Request => self.hand_on(&note.peer, number, note.payload),
            Kind::Part | Kind::Last | Kind::Echoed => {}
        }
    }

    fn knows(&self, name: &EngineName) -> bool {
        self.guests.iter().any(|((known, _), guest)| known == name && guest.peer.ended().is_none())
    }

    /// The standing session of this name: there is one at most.
    fn guest(&mut self, name: &EngineName) -> Option<&mut Guest<'s>> {
        let mut guests = self.guests.iter_mut();
        guests.find(|((known, _), guest)| known == name && guest.peer.ended().is_none()).map(|(_, guest)| guest)
    }

    /// Sent back here and at once: a round trip is what is measured.
    fn echo(&mut self, name: &EngineName, number: u32, payload: &[u8]) {
        let payload = &payload[..payload.len().min(NOTE_BYTES_MAX)];
        if let Some(guest) = self.guest(name) {
            // Whoever takes no answers gets none; that shows there as a loss.
            let _ = guest.peer.notify(Kind::Echoed.id(number), payload, Submit::new());
        }
    }

    fn hand_on(&mut self, name: &EngineName, number: u32, payload: Vec<u8>) {
        let (scope, house, most) = (self.scope, self.house, self.limits.peers);
        let served = self.guests.values().filter(|guest| guest.requests.is_some()).count();
        let Some(guest) = self.guest(name) else { return };
        if guest.requests.is_none() {
            if served >= most {
                let what = format!("{most} peers");
                house.has_refused(&guest.peer, Refusal::Busy { what: what.clone() });
                return refuse(&guest.peer, number, &what);
            }
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let tenant = Tenant::new(house, guest.peer.clone());
            let spawned = std::thread::Builder::new()
                .name("penstock-serve".to_owned())
                .spawn_scoped(scope, move || tenant.serve(&receiver));
            match spawned {
                Ok(thread) => (guest.requests, guest.thread) = (Some(sender), Some(thread)),
                Err(error) => return refuse(&guest.peer, number, &format!("no thread for it: {error}")),
            }
        }
        let Some(requests) = &guest.requests else { return };
        match requests.try_send((number, payload)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => refuse(&guest.peer, number, &format!("{WAITING_MAX} requests of this peer")),
            Err(TrySendError::Disconnected(_)) => refuse(&guest.peer, number, "its thread has ended"),
        }
    }
}

/// One note, and no wait for it: others are to be served.
fn refuse(peer: &Peer<SystemEnv>, number: u32, what: &str) {
    let answer = Answer::Refused(Refusal::Busy { what: what.to_owned() });
    for (id, bytes) in message::notes_of(number, &answer) {
        let _ = peer.notify(id, &bytes, Submit::new());
    }
}
