//! Two adapters in one thread, and each rule that they keep.

mod faults;
mod rules;

use std::sync::Arc;

use penstock_memory::{HostMemory, Window};

use super::{ModelAdapter, ModelNetwork};
use crate::adapter::{
    AccessFlags, Adapter, AsyncEvent, ConnectParams, Opcode, QpAddress, QueuePair, RecvBuffer, Registration,
    SendRequest, Sge, Wc, WcStatus, WorkCompletion, WorkerCq,
};

/// An adapter with a CQ, a queue on it, and registered memory.
struct Side {
    adapter: Arc<ModelAdapter>,
    cq: Box<dyn WorkerCq>,
    queue: Box<dyn QueuePair>,
    window: Window,
    memory: Arc<dyn Registration>,
}

const ALL: AccessFlags = AccessFlags { read: true, write: true, land: true };
const BYTES: usize = 256 << 10;
const REQUESTS: usize = 8;

fn window(bytes: usize) -> Window {
    HostMemory::from_vec(vec![0; bytes]).unwrap().window().clone()
}

impl Side {
    fn new(network: &ModelNetwork) -> Self {
        let adapter = network.adapter();
        let mut cq = adapter.worker_cq(64, 32).unwrap();
        let queue = cq.queue(REQUESTS).unwrap();
        let window = window(BYTES);
        let memory = adapter.register(&window, ALL).unwrap();
        Self { adapter, cq, queue, window, memory }
    }

    fn endpoint(&self, first_packet: u32) -> QpAddress {
        QpAddress { queue: self.queue.number(), first_packet, gid: self.adapter.attr().gid, lid: 0 }
    }

    fn sge(&self, at: u64, bytes: u32) -> Sge {
        Sge { address: self.window.base_address() + at, bytes, key: self.memory.local_key() }
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
    fn post(&mut self, id: u64, kind: Opcode, sges: &[Sge]) {
        self.queue.post(&[request(id, kind, sges.len())], sges).unwrap();
    }

    /// Receives of 64 bytes at the end of the memory, named from `id` on.
    fn supply(&mut self, id: u64, count: u64) {
        let recvs: Vec<_> = (0..count)
            .map(|nth| RecvBuffer { id: id + nth, sge: self.sge((BYTES as u64) - 64 * (nth + 1), 64) })
            .collect();
        self.cq.post_recv(&recvs).unwrap();
    }

    /// All completions that are there.
    fn done(&mut self) -> Vec<(u64, Wc)> {
        let mut done = [WorkCompletion::default(); 64];
        let count = self.cq.poll(&mut done).unwrap();
        done[..count].iter().map(|done| (done.id, done.result)).collect()
    }

    fn write_to(&self, at: u64) -> Opcode {
        Opcode::Write { address: self.window.base_address() + at, key: self.memory.remote_key() }
    }

    fn tell_to(&self, at: u64, immediate: u32) -> Opcode {
        Opcode::WriteWithImm { address: self.window.base_address() + at, key: self.memory.remote_key(), immediate }
    }

    fn read_from(&self, at: u64) -> Opcode {
        Opcode::Read { address: self.window.base_address() + at, key: self.memory.remote_key() }
    }
}

fn request(id: u64, kind: Opcode, sges: usize) -> SendRequest {
    SendRequest { id, opcode: kind, sges: sges as u32, signalled: true, inline: false }
}

fn connecting(there: QpAddress, first_packet: u32) -> ConnectParams {
    ConnectParams { there, first_packet, mtu: 4096, reads_there: 4, reads_here: 4, cm: None }
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

const DID: Wc = Wc::Send;
const FLUSHED: Wc = Wc::Failed(WcStatus::Flushed);

fn failed(status: WcStatus) -> Wc {
    Wc::Failed(status)
}

fn came(bytes: u32) -> Wc {
    Wc::Recv { bytes, immediate: None }
}

fn told(immediate: u32) -> Wc {
    Wc::Recv { bytes: 0, immediate: Some(immediate) }
}
