//! Two cards in one thread, and each rule that they keep.

mod faults;
mod rules;

use std::sync::Arc;

use penstock_memory::{HostMemory, Window};

use super::{ModelCard, ModelNetwork};
use crate::card::{
    Access, Card, Connecting, Desk, Done, Endpoint, Event, Kind, Landing, Outcome, Piece, Queue, Registration, Request,
    Trouble,
};

/// A card with a desk, a queue on it, and registered memory.
struct Side {
    card: Arc<ModelCard>,
    desk: Box<dyn Desk>,
    queue: Box<dyn Queue>,
    window: Window,
    memory: Arc<dyn Registration>,
}

const ALL: Access = Access { read: true, write: true, land: true };
const BYTES: usize = 256 << 10;
const REQUESTS: usize = 8;

fn window(bytes: usize) -> Window {
    HostMemory::from_vec(vec![0; bytes]).unwrap().window().clone()
}

impl Side {
    fn new(network: &ModelNetwork) -> Self {
        let card = network.card();
        let mut desk = card.desk(64, 32).unwrap();
        let queue = desk.queue(REQUESTS).unwrap();
        let window = window(BYTES);
        let memory = card.register(&window, ALL).unwrap();
        Self { card, desk, queue, window, memory }
    }

    fn endpoint(&self, first_packet: u32) -> Endpoint {
        Endpoint { queue: self.queue.number(), first_packet, gid: self.card.facts().gid, lid: 0 }
    }

    fn piece(&self, at: u64, bytes: u32) -> Piece {
        Piece { address: self.window.base_address() + at, bytes, key: self.memory.local_key() }
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        self.window.write_from(at, bytes).unwrap();
    }

    fn holds(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.window.read_into(at, &mut out).unwrap();
        out
    }

    /// Posts one signalled request.
    fn post(&mut self, id: u64, kind: Kind, pieces: &[Piece]) {
        self.queue.post(&[request(id, kind, pieces.len())], pieces).unwrap();
    }

    /// Receives of 64 bytes at the end of the memory, named from `id` on.
    fn supply(&mut self, id: u64, count: u64) {
        let landings: Vec<_> = (0..count)
            .map(|nth| Landing { id: id + nth, piece: self.piece((BYTES as u64) - 64 * (nth + 1), 64) })
            .collect();
        self.desk.supply(&landings).unwrap();
    }

    /// All completions that are there.
    fn done(&mut self) -> Vec<(u64, Outcome)> {
        let mut done = [Done::default(); 64];
        let count = self.desk.poll(&mut done).unwrap();
        done[..count].iter().map(|done| (done.id, done.what)).collect()
    }

    fn write_to(&self, at: u64) -> Kind {
        Kind::Write { address: self.window.base_address() + at, key: self.memory.remote_key() }
    }

    fn tell_to(&self, at: u64, immediate: u32) -> Kind {
        Kind::WriteAndTell { address: self.window.base_address() + at, key: self.memory.remote_key(), immediate }
    }

    fn read_from(&self, at: u64) -> Kind {
        Kind::Read { address: self.window.base_address() + at, key: self.memory.remote_key() }
    }
}

fn request(id: u64, kind: Kind, pieces: usize) -> Request {
    Request { id, kind, pieces: pieces as u32, signalled: true, inline: false }
}

fn connecting(there: Endpoint, first_packet: u32) -> Connecting {
    Connecting { there, first_packet, mtu: 4096, reads_there: 4, reads_here: 4, meeting: None }
}

fn connect(one: &mut Side, other: &mut Side, packets: (u32, u32)) {
    one.queue.connect(&connecting(other.endpoint(packets.1), packets.0)).unwrap();
    other.queue.connect(&connecting(one.endpoint(packets.0), packets.1)).unwrap();
}

/// Two connected sides on a network where nothing happens by itself.
fn pair() -> (ModelNetwork, Side, Side) {
    pair_on(ModelNetwork::by_hand())
}

fn pair_on(network: ModelNetwork) -> (ModelNetwork, Side, Side) {
    let (mut one, mut other) = (Side::new(&network), Side::new(&network));
    connect(&mut one, &mut other, (100, 0xff_fffe));
    (network, one, other)
}

const DID: Outcome = Outcome::Did;
const FLUSHED: Outcome = Outcome::Failed(Trouble::Flushed);

fn failed(trouble: Trouble) -> Outcome {
    Outcome::Failed(trouble)
}

fn came(bytes: u32) -> Outcome {
    Outcome::Came { bytes, immediate: None }
}

fn told(immediate: u32) -> Outcome {
    Outcome::Came { bytes: 0, immediate: Some(immediate) }
}
