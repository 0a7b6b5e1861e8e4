//! What the backend asks of an adapter, and nothing else.
//!
//! An *adapter* registers memory and has *CQs*, one for each worker: a completion queue and a shared receive queue. On a CQ there are
//! *queues*: connected pairs that do what is posted in order. Calls are made once a list, never once a block.
//!
//! Two kinds keep these rules: `device`, by libibverbs, and `model`, inside the process.
//!
//! - What is posted on one queue is done in order; nothing is promised between queues.
//! - A write has landed when something posted behind it on the same queue has arrived. A completion of it says only that the peer's
//!   adapter has it in its keeping.
//! - A queue that fails breaks: all that was posted is completed as [`WcStatus::Flushed`] after what failed, and nothing is taken any more.
//! - After [`QueuePair::reset`] has returned, nothing of the queue touches memory on this side, of its own requests and of the peer's. No
//!   request of it completes any more. Receives that it had taken come as [`Wc::Unused`], or, on adapters that lose them, not at all.
//! - Dropping a queue is a reset, and its number may be another's from then on: an unused receive is known by its name alone.
//!   [`QueuePair::destroy`] does the same and says whether it went well: an adapter that has failed refuses resets and lets go of queues.
//! - Two queues are connected by numbers that both sides know from each other, at once; or they *meet*: one calls the other's adapter, by the
//!   connection manager, which takes a while and waits for nobody ([`CmConnect`]). A queue that has met hears when the other end leaves.
//! - A receive is taken from the CQ's shared queue by each send and each immediate, in the order in which receives were given. A queue
//!   takes one when a message begins to come, and its messages come one after the other.

mod cm;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use penstock_memory::{DeviceWindow, MemoryError, Window};

pub use cm::{ASKING_BYTES, CmConnect, CmError, Connected, TOKEN_BYTES, Token};

/// What an adapter says of itself and of the port that is used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Its name for people: device, port, and the network device behind it.
    pub name: String,
    /// The address under which peers' adapters find it.
    pub gid: [u8; 16],
    /// Its number within an InfiniBand subnet; zero on Ethernet.
    pub lid: u16,
    /// What is spoken from there.
    pub kind: GidKind,
    /// Bits of the address that all ports of its network share.
    pub network_bits: u8,
    /// Whether packets to it are routed beyond its network.
    pub is_routable: bool,
    /// Payload of one packet, in bytes.
    pub mtu: u32,
    /// Bits in a second, as the port says.
    pub bandwidth: u64,
    /// Its NUMA node, if it has one.
    pub node: Option<u32>,
    /// Pieces of one request.
    pub sges_max: usize,
    /// Requests of one queue.
    pub requests_max: usize,
    /// Receives of a CQ.
    pub receives_max: usize,
    /// Completions of a CQ.
    pub completions_max: usize,
    /// Bytes that a request can carry without registered memory.
    pub inline_max: usize,
    /// Reads that the peer may have under way on one queue.
    pub reads_max: u8,
    /// Where its connection manager is called, if its queues are to be connected by one.
    pub cm_address: Option<SocketAddr>,
}

/// What is spoken from an address of an adapter. Nobody understands another kind than his own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand on its own fabric.
    InfiniBand,
    /// RoCE's first version, which routers do not carry.
    RoceV1,
    /// RoCE's second version, in UDP.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// What peers' adapters may do with registered memory. This engine's own adapter may read and write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessFlags {
    /// Peers' adapters may read it.
    pub read: bool,
    /// Peers' adapters may write it.
    pub write: bool,
    /// This side's own adapter may write it: reads land there.
    pub land: bool,
}

/// Registered memory. Dropping it ends the registration: from then on adapters refuse its keys.
pub trait Registration: Send + Sync {
    /// What requests of this side name it by.
    fn local_key(&self) -> u32;

    /// What peers' requests name it by.
    fn remote_key(&self) -> u32;

    /// How it was registered, in words.
    fn manner(&self) -> &'static str;
}

/// By what an adapter gets at memory of a device.
#[derive(Debug, Clone, Copy)]
pub enum DeviceReach<'a> {
    /// By a descriptor of the kernel's, in which the memory begins at `offset`. The descriptor may be closed once the memory is registered.
    DmaBuf { descriptor: BorrowedFd<'a>, offset: u64 },
    /// By its address, which a kernel module of the device's maker knows.
    PeerMemory,
}

/// Why an adapter does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error("{call} on {adapter} failed: {source}; {mend}")]
    Refused {
        call: &'static str,
        adapter: String,
        /// What the system says.
        source: std::io::Error,
        /// What to do about it.
        mend: &'static str,
    },
    /// It has no more of something.
    #[error("{adapter} has no room for {what}: it has {has}, {wants} are wanted")]
    NoRoom {
        adapter: String,
        /// What there is too little of.
        what: &'static str,
        /// How much it has.
        has: usize,
        /// How much is wanted.
        wants: usize,
    },
    /// No adapter is asked, or each of the ways to it is refused.
    #[error("cards do not reach this memory of a device: {why}")]
    DeviceMemory { why: String },
    /// Two queues have not met, or are together no more.
    #[error("{adapter} and {with}: {why}; {mend}", mend = .why.mend())]
    Cm {
        adapter: String,
        /// Whom its queue was to meet.
        with: String,
        /// Why it has not.
        why: CmError,
    },
    /// It does not exist, or is not fit to be used.
    #[error("{what}: {why}; {mend}")]
    NotHere {
        what: String,
        why: String,
        /// What to do about it.
        mend: String,
    },
}

impl From<AdapterError> for MemoryError {
    fn from(error: AdapterError) -> Self {
        Self::System { call: "a card", what: "a session over RDMA", source: std::io::Error::other(error.to_string()) }
    }
}

/// An adapter, with one port of it.
pub trait Adapter: Send + Sync {
    /// What it says of itself.
    fn attr(&self) -> &DeviceAttr;

    /// Registers memory, which must stay mapped until the registration is dropped.
    fn register(&self, memory: &Window, access: AccessFlags) -> Result<Arc<dyn Registration>, AdapterError>;

    /// Registers memory of a device, which requests name by the device's addresses. It is kept until the registration is dropped. Nothing of it is ever
    /// posted inline, since no processor reads it.
    fn register_device(
        &self,
        memory: &DeviceWindow,
        by: DeviceReach<'_>,
        access: AccessFlags,
    ) -> Result<Arc<dyn Registration>, AdapterError>;

    /// One worker's CQ, with room for so many completions and receives.
    fn worker_cq(&self, completions: usize, receives: usize) -> Result<Box<dyn WorkerCq>, AdapterError>;

    /// What has happened to it, if something has. Does not wait.
    fn next_event(&self) -> Option<AsyncEvent>;

    /// Becomes readable when [`Adapter::next_event`] would find something.
    fn events(&self) -> BorrowedFd<'_>;
}

/// What happens to an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Its port carries nothing any more.
    PortDown,
    /// Its port carries again.
    PortUp,
    /// It has to be given up.
    Fatal,
    /// This queue, by its number, is broken. Also of one that this side broke off; not every adapter says it of every queue.
    QueueBroken(u32),
    /// The meeting of this queue, by its number, has come further: [`QueuePair::cm_state`] says how far.
    CmProgress(u32),
    /// Its addresses or its port's settings have changed.
    Changed,
}

/// One worker's part of an adapter.
pub trait WorkerCq: Send {
    /// What makes queues on it, in any thread and while the worker uses the CQ.
    fn maker(&self) -> Arc<dyn QpFactory>;

    /// A new queue that takes so many requests, for whoever can wait for it. It is not connected.
    fn queue(&mut self, requests: usize) -> Result<Box<dyn QueuePair>, AdapterError> {
        self.maker().queue(requests)
    }

    /// Gives receives to whoever sends next.
    fn post_recv(&mut self, receives: &[RecvBuffer]) -> Result<(), AdapterError>;

    /// Takes completions. Returns how many.
    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, AdapterError>;

    /// Lets the next completion make [`WorkerCq::descriptor`] readable. Poll once more afterwards: what came before makes no sign.
    fn arm(&mut self) -> Result<(), AdapterError>;

    /// Becomes readable when a completion comes after [`WorkerCq::arm`].
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Makes queues on one CQ. That takes an adapter a millisecond or more.
pub trait QpFactory: Send + Sync {
    /// A new queue that takes so many requests. It is not connected.
    fn queue(&self, requests: usize) -> Result<Box<dyn QueuePair>, AdapterError>;
}

/// Names of requests and receives are below this: adapters keep a bit to themselves.
pub const WR_IDS: u64 = 1 << 63;

/// Memory for one message that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvBuffer {
    /// What its completion is named. Below [`WR_IDS`].
    pub id: u64,
    pub sge: Sge,
}

/// A range of registered memory of this side. Laid out as adapters read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    pub address: u64,
    pub bytes: u32,
    /// The local key of its registration.
    pub key: u32,
}

/// Where the other end of a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAddress {
    /// The number of the queue.
    pub queue: u32,
    /// The first packet's number from there.
    pub first_packet: u32,
    /// The address of its adapter.
    pub gid: [u8; 16],
    /// Its number within an InfiniBand subnet; zero on Ethernet.
    pub lid: u16,
}

/// How two queues are connected: what both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectParams {
    pub there: QpAddress,
    /// The first packet's number from here.
    pub first_packet: u32,
    /// Payload of one packet: the smaller of both sides' ports'.
    pub mtu: u32,
    /// Reads that this side may have under way there.
    pub reads_there: u8,
    /// Reads that the peer may have under way here.
    pub reads_here: u8,
    /// How it is met, if not by the numbers above.
    pub cm: Option<CmConnect>,
}

/// One end of a connected pair.
pub trait QueuePair: Send {
    /// Its number on its adapter.
    fn number(&self) -> u32;

    /// Connects it, when it is new or reset. Packets are taken as soon as this has answered yes, perhaps before. It may wait for the network,
    /// up to seconds where that does not know the peer: no worker may wait for it, unless the two are to meet. A queue that waits to be
    /// called does not answer calls before this.
    fn connect(&mut self, connecting: &ConnectParams) -> Result<Connected, AdapterError>;

    /// Who calls with this token, and nobody else, is for this queue: until it is dropped, calls itself, or expects another one.
    fn expect(&mut self, token: Token);

    /// How far it has come that was not connected at once; on an error it is to be broken off. Waits for nobody.
    fn cm_state(&mut self) -> Result<Connected, AdapterError>;

    /// Posts requests with one doorbell, their pieces one after the other in `pieces`. On an error the first `posted` of them were taken.
    /// The caller counts what is under way: more than the queue was made for must not be.
    fn post(&mut self, requests: &[SendRequest], sges: &[Sge]) -> Result<(), PostSendError>;

    /// Breaks it: all that was posted and has not completed completes as failed.
    fn set_error(&mut self) -> Result<(), AdapterError>;

    /// Makes it new. Nothing of it touches memory any more when this returns.
    fn reset(&mut self) -> Result<(), AdapterError>;

    /// Gives it back to its adapter, for good. Nothing of it touches memory any more when this has gone well.
    fn destroy(self: Box<Self>) -> Result<(), NotDestroyed>;
}

/// A queue that its adapter does not take back. It may still do what it was told.
pub struct NotDestroyed {
    pub queue: Box<dyn QueuePair>,
    pub error: AdapterError,
}

/// A list was not posted whole.
#[derive(Debug)]
pub struct PostSendError {
    /// How many requests of it were.
    pub posted: usize,
    pub error: AdapterError,
}

/// One thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRequest {
    /// What its completion is named. Below [`WR_IDS`].
    pub id: u64,
    pub opcode: Opcode,
    /// How many of the list's pieces are its, after those of the requests before it.
    pub sges: u32,
    /// Whether it completes when it ends well; what fails completes always.
    pub signalled: bool,
    /// Whether its bytes are taken at once, so that their memory may be used again when the post returns. At most
    /// [`DeviceAttr::inline_max`] bytes; not for reads. Refused if the memory is not registered.
    pub inline: bool,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// Puts the pieces into the peer's memory at this address.
    Write {
        address: u64,
        /// The remote key of that memory.
        key: u32,
    },
    /// The same, and takes a receive there that completes with this number. Without pieces it needs no memory.
    WriteWithImm {
        address: u64,
        /// The remote key of that memory.
        key: u32,
        immediate: u32,
    },
    /// Gets the peer's memory at this address into the pieces.
    Read {
        address: u64,
        /// The remote key of that memory.
        key: u32,
    },
    /// Puts the pieces into a receive of the peer.
    Send,
}

/// What a CQ says about something posted or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    pub queue: u32,
    /// The name of the request or the receive.
    pub id: u64,
    /// What became of it.
    pub result: Wc,
}

/// What became of something posted or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wc {
    /// A request, and all that was posted before it on its queue, has ended well.
    Send,
    /// A message came, of so many bytes, with this number if it was an immediate.
    Recv {
        /// Its bytes in the receive; none with an immediate, whose bytes are where the peer put them.
        bytes: u32,
        immediate: Option<u32>,
    },
    /// A request has failed, and with it its queue.
    Failed(WcStatus),
    /// A receive was given back unused, because its queue has broken.
    Unused,
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self { queue: 0, id: 0, result: Wc::Unused }
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WcStatus {
    /// Its queue was broken before its turn.
    Flushed,
    /// The peer's adapter refused the key, the range or the right.
    Refused,
    /// This side's adapter refused the memory: it was freed or its registration has ended.
    Memory,
    /// The peer's adapter did not answer, often enough.
    Silence,
    /// The peer's adapter had no receive for it, often enough.
    NoReceive,
    /// The peer's adapter says that the request makes no sense, or cannot do it.
    Invalid,
    /// The adapter itself has failed.
    Card,
    /// The adapter's own number for something else.
    Other(u32),
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flushed => f.write_str("its queue was broken before its turn"),
            Self::Refused => f.write_str("the peer's card refused the key, the range or the right"),
            Self::Memory => f.write_str("this side's card refused the memory"),
            Self::Silence => f.write_str("the peer's card did not answer"),
            Self::NoReceive => f.write_str("the peer had no room for a message"),
            Self::Invalid => f.write_str("the peer's card cannot make sense of the request"),
            Self::Card => f.write_str("the card has failed"),
            Self::Other(number) => write!(f, "the card's status {number}"),
        }
    }
}
