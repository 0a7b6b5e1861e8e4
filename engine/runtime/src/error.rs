//! Why calls about engines, peers, regions and plans are refused.

#![expect(missing_docs, reason = "the fields of an error are what its text names")]

use std::time::Duration;

use penstock_core::config::ConfigError;
use penstock_core::ids::NameError;
use penstock_core::plan::{PlanError as ShapeError, Side};
use penstock_core::{Cause, EngineName};
use penstock_memory::MemoryError;
use penstock_session::OpeningCode;
use penstock_session::descriptor::DescriptorError;
use penstock_session::frame::RefusalCode;
use penstock_transport::ImportError;

use crate::plan::Near;
use crate::secret::SecretFileError;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name cannot be a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The memory shared with peers could not be made.
    #[error("cannot make the memory shared with peers: {0}")]
    Memory(#[from] MemoryError),
    /// The rendezvous socket could not be made.
    #[error("cannot listen at {path}: {source}")]
    Listen { path: String, source: std::io::Error },
    /// Other hosts cannot connect.
    #[error("cannot listen for other hosts at {address}: {source}; {}", listening_advice(source))]
    Network { address: String, source: std::io::Error },
    /// There is no secret to share with other hosts.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    /// The only way to others that is allowed is not here.
    #[error(
        "`transports.allow` names `{name}` and nothing else that could be used, and this host has it not: {why}; allow `tcp`, \
         too, or see `penstock doctor rdma`"
    )]
    NoTransport {
        name: &'static str,
        /// Why it is not here.
        why: String,
    },
    /// What connects queue pairs, as the configuration has it, is not here.
    #[error("`transports.verbs_connect: cm` cannot be had: {why}, or set it to `exchange` on all hosts")]
    Manager {
        /// What is missing, and the package that has it.
        why: String,
    },
    /// The devices that the configuration names cannot be used.
    #[error("`transports.verbs_devices` cannot be used: {why}; see `penstock doctor rdma`")]
    Devices { why: String },
    /// The device of DPDK that the configuration names cannot be used.
    #[error("`dpdk.device` cannot be used: {why}")]
    Dpdk { why: String },
    /// A thread or a reactor could not be started.
    #[error("cannot start {what}: {source}")]
    System {
        /// What could not be started.
        what: &'static str,
        source: std::io::Error,
    },
}

/// What to do where an address cannot be listened at.
fn listening_advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    let is_out_of_files = matches!(
        error.raw_os_error().map(rustix::io::Errno::from_raw_os_error),
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    );
    match error.kind() {
        _ if is_out_of_files => "let the process open more files (`ulimit -n`)",
        ErrorKind::AddrInUse => "another program listens there: name a free port in `session.listen`, port 0 takes any",
        ErrorKind::PermissionDenied => {
            "ports below 1024 take root or CAP_NET_BIND_SERVICE: name a higher one in `session.listen`, port 0 takes any"
        }
        ErrorKind::AddrNotAvailable => "name addresses of this host in `session.listen`; `ip address` shows them",
        _ => "set `session.listen` to addresses of this host with free ports, port 0 takes any",
    }
}

/// Why a peer could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are not a descriptor.
    #[error(transparent)]
    Card(#[from] DescriptorError),
    /// There is no way to the other engine.
    #[error(
        "there is no way to `{name}`: on another host an engine is reached by `verbs` or `tcp`, allowed in `transports.allow` on \
         both sides, and at the addresses of its descriptor, which `session.listen` there makes{missing}"
    )]
    OtherHost {
        name: String,
        /// What is allowed and not here, and why, in words; empty if nothing is.
        missing: String,
    },
    /// Nobody answers at its address.
    #[error("nobody answers for `{name}` at {path} ({reason}); is it running, and is its descriptor fresh?")]
    Unreachable {
        name: String,
        path: String,
        /// What the system said.
        reason: String,
    },
    /// It answered, but not in time.
    #[error(
        "`{name}` did not finish the greeting within {within:?}; if it is an inline engine, is its progress() called?"
    )]
    TimedOut {
        name: String,
        /// The time it had.
        within: Duration,
    },
    /// It refused.
    #[error("`{name}` refused: {text} ({})", code.advice())]
    Refused {
        name: String,
        code: RefusalCode,
        /// Why, in its words.
        text: String,
    },
    /// This engine refused it.
    #[error("`{name}` was refused here: {text}")]
    RefusedHere { name: String, text: String },
    /// The connection ended before the session stood.
    #[error("the connection to `{name}` ended before the session stood ({reason}); connect again")]
    Lost { name: String, reason: String },
    /// Another program answered.
    #[error("what answers at {address} is not Penstock ({reason}); check the address and the port")]
    NotPenstock {
        /// Where it was called.
        address: String,
        /// What was wrong with its answer.
        reason: String,
    },
    /// The two sides do not share a secret.
    #[error(
        "`{name}` at {address} does not share this engine's secret; copy one host's secret file to the other (see \
         `session.secret_file`), or give both the same PENSTOCK_SECRET"
    )]
    WrongSecret {
        name: String,
        /// Where it was called.
        address: String,
    },
    /// There is no secret to share with other hosts.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    /// No address was found for the name of a host.
    #[error("no address was found for `{address}`: {reason}; check the name, or use an address with a port")]
    Unresolved {
        /// What was looked up.
        address: String,
        /// Why there is none.
        reason: String,
    },
    /// This host calls too often.
    #[error("`{name}` takes no more connections from this host for now ({text}); look for what calls in a loop there")]
    RateLimited {
        name: String,
        /// Why, in its words.
        text: String,
    },
    /// It was turned away before anything was said.
    #[error("`{name}` turned the call away: {text} ({})", code.advice())]
    TurnedAway {
        name: String,
        code: OpeningCode,
        /// Why, in its words.
        text: String,
    },
    /// The file that says where engines are cannot be used.
    #[error("the directory {path} cannot be used: {reason}")]
    Directory { path: String, reason: String },
    /// The name cannot be an engine's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody of that name could be connected to in the time there was.
    #[error("no session with `{name}` came about within {within:?}; the last attempt: {last}")]
    NotBack {
        name: String,
        /// The time there was.
        within: Duration,
        /// How the last attempt ended.
        last: Box<ConnectError>,
    },
    /// The call cannot be made.
    #[error("{0}")]
    Call(Cause),
}

/// Why a region cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// No region of this label is known.
    #[error("peer `{peer}` has announced no region `{label}` (it has: {known}); wait for it, or check the label")]
    Unknown {
        peer: EngineName,
        /// The label asked for.
        label: String,
        /// The labels there are.
        known: String,
    },
    /// The region was deregistered.
    #[error("region `{label}` was deregistered; use the region that replaced it")]
    Stale { label: String },
    /// A part of the region got fresh memory.
    #[error("the memory of region `{label}` was renewed; get the region again and build a new plan")]
    Renewed { label: String },
    /// The peer has deregistered or renewed regions and its announcement is still under way.
    #[error("peer `{peer}` has deregistered or renewed regions and the news is under way; try again in a moment")]
    NewsUnderWay { peer: EngineName },
    /// Its memory cannot be reached.
    #[error("region `{label}` cannot be reached: {source}")]
    Import { label: String, source: ImportError },
    /// A range outside the region.
    #[error("bytes {offset}..{} lie outside region `{label}`, which has {bytes}", offset.saturating_add(*len))]
    OutOfBounds { label: String, offset: u64, len: u64, bytes: u64 },
    /// Memory that this process may not write was to be read into.
    #[error("region `{label}` is mapped read-only and cannot be read into; read into other memory")]
    ReadOnly { label: String },
    /// A label that does not fit a frame.
    #[error("a label may have at most {} bytes, this one has {bytes}", penstock_session::frame::LABEL_BYTES_MAX)]
    LabelTooLong {
        /// Bytes of the label.
        bytes: usize,
    },
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] penstock_memory::RegionError),
    /// The memory could not be made or taken in.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The same of a device's.
    #[error(transparent)]
    Device(#[from] penstock_cuda::CudaError),
    /// The call cannot be made.
    #[error("{0}")]
    Call(Cause),
}

/// Why quarantined memory was not renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// The quarantined memory is not a part of this pool.
    #[error("what is quarantined is not a part of pool `{label}`; renew it in the pool that it was revoked from")]
    NotOfThisPool { label: String },
    /// Somebody in this process might still write.
    #[error(
        "pool `{label}` cannot be renewed: {who} might still write to it by the same addresses; give it longer, or wait until what \
         is quarantined is released; what a card might write ends with its session: disconnect the peer that is named"
    )]
    Inside { label: String, who: String },
    /// The pool was deregistered.
    #[error(transparent)]
    Registry(#[from] penstock_memory::RegionError),
    /// There is no fresh memory, or it cannot be put there. What was quarantined still is.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The call cannot be made.
    #[error("{0}")]
    Call(Cause),
}

/// Why a plan was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// What was asked for does not fit its regions.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A region cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The local regions belong to different engines.
    #[error("one plan joins one engine with one peer, but its local regions belong to two engines of this process")]
    TwoEngines,
    /// Bytes of an entry lie in no region that stands.
    #[error(
        "entry {entry}: no region {} has the {bytes} bytes from {side} address {address:#x} on{}; register them, or check the \
         address and the length",
        owner(peer.as_ref()), near.as_ref().map_or(String::new(), |near| format!(" (the nearest is {near})"))
    )]
    NoRegion {
        /// Index of the entry.
        entry: usize,
        side: Side,
        /// The first address that is in no region.
        address: u64,
        /// Bytes of the entry from there on.
        bytes: u64,
        /// Whose regions were looked at, if not this engine's.
        peer: Option<EngineName>,
        /// The region that is closest to the address, if there is any.
        near: Option<Near>,
    },
    /// Bytes of an entry lie in regions only that may not be used in this way.
    #[error("entry {entry}: {side} address {address:#x} is in region {near}{}", missing(peer.as_ref(), *is_write))]
    NoRight {
        /// Index of the entry.
        entry: usize,
        side: Side,
        /// The first address of it.
        address: u64,
        /// Whose region it is, if not this engine's.
        peer: Option<EngineName>,
        near: Near,
        /// Whether it was to be written.
        is_write: bool,
    },
    /// The regions belong to different peers.
    #[error("one plan joins one engine with one peer, but its regions belong to `{first}` and `{second}`")]
    TwoPeers {
        /// The first remote region's owner.
        first: EngineName,
        /// Another remote region's owner.
        second: EngineName,
    },
}

fn missing(peer: Option<&EngineName>, is_write: bool) -> String {
    let Some(peer) = peer else {
        return ", which is mapped read-only: read into other memory, or map it writable and register it again"
            .to_owned();
    };
    let access = if is_write { "written" } else { "read" };
    format!(" of peer `{peer}`, which does not let itself be {access}: it has to be registered with that right")
}

fn owner(peer: Option<&EngineName>) -> String {
    peer.map_or("of this engine".to_owned(), |peer| format!("of peer `{peer}`"))
}

/// Why a transfer was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No room: an answer, not a failure. Take completed transfers' results, then try again.
    #[error("{what} is full; let transfers finish or drop their handles, then submit again")]
    Full { what: &'static str },
    /// The plan was made for another peer, or another life of it.
    #[error("the plan was made for another peer or another session; build it with this one's regions")]
    ForeignPlan,
    /// The counter is another peer's, or of another life of it.
    #[error("the counter is not one of peer `{peer}` in this life; look it up at this peer")]
    ForeignCounter { peer: EngineName },
    /// More payload than a notification may carry.
    #[error("a notification carries at most {most} bytes, this one has {bytes}; send the rest as data")]
    NoteTooLong {
        /// Bytes of the payload.
        bytes: usize,
        /// The most it may have.
        most: usize,
    },
    /// The number of the note is one of those that engines tell each other things with.
    #[error(
        "notes of this number tell `{peer}` what engines have to tell each other; number yours otherwise, from 0 on"
    )]
    ReservedNote { peer: EngineName },
    /// A handle cannot change hands on this path.
    #[error("a handle can be handed over only between engines of one process; `{peer}` is reached by {transport}")]
    NoHandOver {
        peer: EngineName,
        /// How it is reached.
        transport: &'static str,
    },
    /// One side of the session drains: what runs comes to its end, and nothing new begins.
    #[error("peer `{peer}`: {cause}")]
    Draining {
        peer: EngineName,
        /// Which side drains, and what to do.
        cause: Cause,
    },
    /// The peer's session has ended.
    #[error("peer `{peer}`: {cause}")]
    PeerGone { peer: EngineName, cause: Cause },
    /// The call cannot be made.
    #[error("{0}")]
    Call(Cause),
}
