//! Two adapters, and what is between them.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_memory::{HostMemory, Window};
use penstock_verbs::adapter::{
    AccessFlags, Adapter, ConnectParams, DeviceAttr, Opcode, QpAddress, QueuePair, RecvBuffer, Registration,
    SendRequest, Sge, Wc, WorkCompletion, WorkerCq,
};
use penstock_verbs::device::{self, DeviceAdapter, Options, Posting};

/// No test waits longer for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Requests of each queue.
pub(crate) const REQUESTS: usize = 64;
/// Bytes of each side's memory.
pub(crate) const BYTES: usize = 1 << 20;
/// Receives of each side, and the bytes of each; they are at the end of its memory.
pub(crate) const RECEIVES: usize = 16;
pub(crate) const RECEIVE_BYTES: u32 = 8192;

/// The tests share a wire, and one of them cuts it.
static WIRE: Mutex<()> = Mutex::new(());

/// Names the two ports, separated by a comma, where they are not the soft devices of the guest.
const PORTS: &str = "PENSTOCK_RDMA_PORTS";

/// The names of the two ports: this side's first.
pub(crate) fn ports() -> [String; 2] {
    let Ok(named) = std::env::var(PORTS) else { return ["rxe_a0", "rxe_b0"].map(str::to_owned) };
    let [a, b] = named.split(',').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap_or_else(|_| {
        panic!("{PORTS} names two ports, as `mlx5_0:1,mlx5_1:1`, and not `{named}`");
    });
    [a, b]
}

/// The name of this side's port.
pub(crate) fn near() -> String {
    let [near, _] = ports();
    near
}

/// The device of this side's port.
pub(crate) fn near_device() -> String {
    let near = near();
    near.split(':').next().unwrap_or_default().to_owned()
}

/// Whether both are the soft devices of the guest, of which everything is known, and whose wire may be cut.
pub(crate) fn are_soft() -> bool {
    std::env::var_os(PORTS).is_none()
}

/// The wire, for one test, or nothing where there is none: then the test is told as skipped.
pub(crate) fn wire(test: &str) -> Option<MutexGuard<'static, ()>> {
    let labs_are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    if !labs_are_on {
        return skipped(test, "labs run when PENSTOCK_LABS=1 is set");
    }
    let device = format!("/sys/class/infiniband/{}", near_device());
    if !fs::exists(&device).unwrap_or(false) {
        return skipped(test, &format!("needs path:{device}"));
    }
    Some(WIRE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The same, for a test that is of the soft devices alone.
pub(crate) fn soft_wire(test: &str) -> Option<MutexGuard<'static, ()>> {
    if are_soft() { wire(test) } else { skipped(test, &format!("it is of soft devices, and {PORTS} names others")) }
}

pub(crate) fn skipped(test: &str, reason: &str) -> Option<MutexGuard<'static, ()>> {
    println!("{test} is skipped: {reason}");
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let opened = fs::OpenOptions::new().create(true).append(true).open(path);
        let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
        writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
    }
    None
}

/// Opens an adapter by its name.
pub(crate) fn open(name: &str, posting: Posting) -> Arc<DeviceAdapter> {
    let options = Options { wanted: vec![name.parse().expect("a name")], posting, ..Options::default() };
    let found = device::adapters(&options).unwrap_or_else(|error| panic!("{name} is opened: {error}"));
    found.adapters.into_iter().next().expect("one card was named")
}

/// Opens an adapter whose queues meet others by the connection manager.
pub(crate) fn open_managed(name: &str) -> Arc<DeviceAdapter> {
    let options = Options { wanted: vec![name.parse().expect("a name")], is_managed: true, ..Options::default() };
    let found = device::adapters(&options).unwrap_or_else(|error| panic!("{name} is opened: {error}"));
    found.adapters.into_iter().next().expect("one card was named")
}

/// One of the two.
pub(crate) struct End {
    pub(crate) queue: Box<dyn QueuePair>,
    pub(crate) cq: Box<dyn WorkerCq>,
    pub(crate) registration: Option<Arc<dyn Registration>>,
    pub(crate) memory: HostMemory,
    pub(crate) adapter: Arc<DeviceAdapter>,
    came: VecDeque<WorkCompletion>,
}

/// What peers may do with the memory of an end.
pub(crate) const ALL: AccessFlags = AccessFlags { read: true, write: true, land: true };

impl End {
    pub(crate) fn new(name: &str, posting: Posting) -> Self {
        Self::on(open(name, posting))
    }

    /// With a CQ, a queue and memory of its own.
    pub(crate) fn on(adapter: Arc<DeviceAdapter>) -> Self {
        let memory = HostMemory::from_vec(vec![0; BYTES]).expect("memory");
        let registration = adapter.register(memory.window(), ALL).expect("it is registered");
        let mut cq = adapter.worker_cq(4 * REQUESTS, RECEIVES).expect("a desk");
        let queue = cq.queue(REQUESTS).expect("a queue");
        Self { queue, cq, registration: Some(registration), memory, adapter, came: VecDeque::new() }
    }

    pub(crate) fn attr(&self) -> &DeviceAttr {
        self.adapter.attr()
    }

    pub(crate) fn window(&self) -> &Window {
        self.memory.window()
    }

    pub(crate) fn sge(&self, offset: u64, bytes: u32) -> Sge {
        let key = self.registration.as_ref().expect("it is registered").local_key();
        Sge { address: self.address(offset), bytes, key }
    }

    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.window().base_address() + offset
    }

    pub(crate) fn key(&self) -> u32 {
        self.registration.as_ref().expect("it is registered").remote_key()
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.window().write_from(offset, bytes).expect("it is inside");
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.window().read_into(offset, &mut bytes).expect("it is inside");
        bytes
    }

    /// Where a receive's bytes are.
    pub(crate) fn receive_at(id: u64) -> u64 {
        BYTES as u64 - (id + 1) * u64::from(RECEIVE_BYTES)
    }

    /// Gives receives with the names from zero on.
    pub(crate) fn supply(&mut self, count: usize) {
        let recvs: Vec<RecvBuffer> =
            (0..count as u64).map(|id| RecvBuffer { id, sge: self.sge(Self::receive_at(id), RECEIVE_BYTES) }).collect();
        self.cq.post_recv(&recvs).expect("the desk has room for them");
    }

    pub(crate) fn post(&mut self, requests: &[SendRequest], sges: &[Sge]) {
        self.queue.post(requests, sges).unwrap_or_else(|failed| panic!("it is posted: {failed:?}"));
    }

    pub(crate) fn next(&mut self) -> WorkCompletion {
        self.take(1)[0]
    }

    /// The next so many completions.
    pub(crate) fn take(&mut self, count: usize) -> Vec<WorkCompletion> {
        let began = Instant::now();
        while self.came.len() < count {
            self.look();
            assert!(began.elapsed() < LIMIT, "{count} completions within {LIMIT:?}: only {:?} came", self.came);
            std::thread::sleep(Duration::from_micros(50));
        }
        self.came.drain(..count).collect()
    }

    /// The completions that are there.
    pub(crate) fn poll(&mut self) -> Vec<WorkCompletion> {
        self.look();
        self.came.drain(..).collect()
    }

    fn look(&mut self) {
        let mut room = [WorkCompletion::default(); 32];
        let count = self.cq.poll(&mut room).expect("it polls");
        self.came.extend(&room[..count]);
    }

    pub(crate) fn expect(&mut self, id: u64, what: Wc) {
        let expected = WorkCompletion { queue: self.queue.number(), id, result: what };
        assert_eq!(self.next(), expected);
    }

    /// Connects it. A refusal leaves the queue as it was, and like an engine it is tried again, twice.
    fn connect(&mut self, connecting: &ConnectParams) {
        for tries in 1.. {
            match self.queue.connect(connecting) {
                Ok(_) => return,
                Err(error) if tries < 3 => println!("try {tries} to connect queue {}: {error}", self.queue.number()),
                Err(error) => panic!("queue {} is connected at last: {error}", self.queue.number()),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn endpoint(&self, first_packet: u32) -> QpAddress {
        QpAddress { queue: self.queue.number(), first_packet, gid: self.attr().gid, lid: self.attr().lid }
    }

    /// Waits until the descriptor is readable.
    pub(crate) fn is_woken(descriptor: &impl AsFd, within: Duration) -> bool {
        let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
        let within = rustix::event::Timespec::try_from(within).expect("a short time");
        rustix::event::poll(&mut polled, Some(&within)).expect("it polls") == 1
    }
}

/// A request that is told of.
pub(crate) fn request(id: u64, kind: Opcode, sges: u32) -> SendRequest {
    SendRequest { id, opcode: kind, sges, signalled: true, inline: false }
}

/// Both ends of a wire, connected.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    /// Payload of one packet, if it shall be smaller than it could be.
    pub(crate) mtu: Option<u32>,
    first_packet: u32,
}

impl Pair {
    /// These two, not connected.
    pub(crate) fn of(a: End, b: End) -> Self {
        Self { a, b, mtu: None, first_packet: 0xff_fff0 }
    }

    pub(crate) fn connected(posting: Posting) -> Self {
        let [a, b] = ports().map(|name| End::new(&name, posting));
        let mut pair = Self::of(a, b);
        assert!(pair.a.adapter.posting() == posting || !are_soft(), "the driver of soft devices knows both");
        pair.connect();
        pair
    }

    pub(crate) fn connect(&mut self) {
        let (from_a, from_b) = (self.first_packet, self.first_packet ^ 0x55);
        // Another number for each life, so that packets of an earlier one are told apart.
        self.first_packet = (self.first_packet + 0x1000) & 0xff_ffff;
        let mtu = self.mtu.unwrap_or_else(|| self.a.attr().mtu.min(self.b.attr().mtu));
        let reads = self.a.attr().reads_max.min(self.b.attr().reads_max);
        let (a, b) = (self.a.endpoint(from_a), self.b.endpoint(from_b));
        let connecting = |there, first_packet| ConnectParams {
            there,
            first_packet,
            mtu,
            reads_there: reads,
            reads_here: reads,
            cm: None,
        };
        self.a.connect(&connecting(b, from_a));
        self.b.connect(&connecting(a, from_b));
    }

    /// New again on both sides.
    pub(crate) fn repair(&mut self) {
        self.a.queue.reset().expect("a is reset");
        self.b.queue.reset().expect("b is reset");
        self.connect();
    }

    /// A write from a to b that arrives.
    pub(crate) fn works(&mut self) {
        let said = format!("it works, packet {}", self.first_packet);
        self.a.fill(0, said.as_bytes());
        let kind = Opcode::Write { address: self.b.address(0), key: self.b.key() };
        let sge = self.a.sge(0, said.len() as u32);
        self.a.post(&[request(4711, kind, 1)], &[sge]);
        self.a.expect(4711, Wc::Send);
        assert_eq!(self.b.bytes(0, said.len()), said.as_bytes());
    }
}

/// Both ways of posting.
pub(crate) const POSTINGS: [Posting; 2] = [Posting::Extended, Posting::Classic];

/// Bytes that differ from their neighbours, and from those of other seeds.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|place| ((place ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Bytes that this side's port has sent. What an adapter sends to itself it does not count: then nobody is the wiser.
pub(crate) fn sent() -> Option<u64> {
    let number = |path: &str| -> u64 {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim().parse().expect("a number")
    };
    if are_soft() {
        return Some(number("/sys/class/net/a0/statistics/tx_bytes"));
    }
    let [near, far] = ports();
    let port = near.split(':').nth(1).unwrap_or("1");
    // It counts words of four bytes.
    let counted = format!("/sys/class/infiniband/{}/ports/{port}/counters/port_xmit_data", near_device());
    (near != far && fs::exists(&counted).unwrap_or(false)).then(|| 4 * number(&counted))
}

/// So many bytes were sent since then, as far as that is known.
pub(crate) fn assert_sent(before: Option<u64>, bytes: u64) {
    let sent = before.zip(sent()).map(|(before, now)| now - before);
    assert!(sent.is_none_or(|sent| sent >= bytes), "{sent:?} bytes went over the wire, and {bytes} are there");
}

/// Runs a program of the system.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}
