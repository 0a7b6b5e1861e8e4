//! Finding a peer, exchanging offers, joining, and registering regions.
//!
//! A transport owns no socket. What it must tell the other side goes as an opaque blob, with file descriptors beside it,
//! over the session's control connection.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::{Generation, RegionId, Rights};
use penstock_memory::PassedFd;
use penstock_memory::{MemoryError, ProcessWatch, Region};

use crate::caps::Caps;
use crate::driver::Driver;
use crate::lane::{Lane, LaneFault};
use crate::packets::{PacketStatistics, PeerPackets};
use crate::pair::Pair;
use crate::peer_view::PeerView;
use crate::remote::{AccessPath, RemoteMemory};

/// File descriptors sent with an offer or a region advertisement, in order. In `Arc`, because one pool is advertised to
/// many peers.
pub type Fds = Vec<Arc<OwnedFd>>;

/// What this engine knows of itself when it looks for a way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalEnd {
    /// The host (a digest of the kernel's boot id).
    pub host: u64,
    /// The address space: a random number drawn at its first use ([`penstock_core::Env::process`]).
    pub process: u64,
    pub epoch: u64,
    /// How many workers this engine has.
    pub workers: usize,
    /// The session's index in this engine's table of peers.
    pub peer_index: u32,
}

/// What the peer reports of itself, and what the operating system says about its process.
#[derive(Debug, Clone)]
pub struct RemoteEnd {
    /// The host it says it runs on.
    pub host: u64,
    /// The process it says it is.
    pub process: u64,
    pub epoch: u64,
    /// How many workers it has.
    pub workers: usize,
    /// The session's index in its table of peers.
    pub peer_index: u32,
    /// Where it was met, if over the network: the port is that of the control connection.
    pub address: Option<SocketAddr>,
    /// The process at the other end of the socket, as the operating system names it.
    pub watch: Arc<ProcessWatch>,
}

/// A peer's region, as advertised.
#[derive(Debug, Clone, Copy)]
pub struct AdvertisedRegion<'a> {
    pub epoch: u64,
    pub id: RegionId,
    pub generation: Generation,
    /// Where its owner sees it.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What peers may do to it.
    pub rights: Rights,
    /// Opaque bytes with which the peer's side of this transport reaches the region (as a packed rkey is).
    pub access_blob: &'a [u8],
}

/// How a region is advertised to a peer.
#[derive(Debug, Default)]
pub struct Exported {
    /// Opaque bytes for the peer's side of this transport (as a packed rkey is).
    pub access_blob: Vec<u8>,
    /// The fd of its memory, if it has one to pass.
    pub fd: Option<Arc<OwnedFd>>,
    /// Fds of the pages that renewals have put over parts of it. They follow the region's own fd.
    pub extra_fds: Fds,
}

/// Why bytes do not go between a device's memory and a peer's.
const NO_DEVICE_MEMORY: &str = "this transport moves host memory";

const UNREACHED_DEVICE: &[u8] = b"memory of a device";
const WHY_BYTES_MAX: usize = 400;

/// The access blob of a device's memory, told to peers whose transport does not reach it ([`Registrar::reaches_device`]), with the reason.
pub fn unreached_device(why: &str) -> Vec<u8> {
    [UNREACHED_DEVICE, &why.as_bytes()[..why.floor_char_boundary(WHY_BYTES_MAX)]].concat()
}

/// The reason, if this is such a blob.
pub fn why_unreached(access_blob: &[u8]) -> Option<Cow<'_, str>> {
    access_blob.strip_prefix(UNREACHED_DEVICE).map(String::from_utf8_lossy)
}

/// Why a peer's region cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// This transport has no way to that memory.
    #[error("{0}")]
    NoPath(String),
    /// The advertisement does not fit what came with it.
    #[error("the advertisement of the region does not make sense: {0}")]
    Malformed(&'static str),
    /// The memory that came cannot be mapped, or is not sealed as it must be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The region has gone in the meantime.
    #[error("the region is gone; ask the peer for the one that replaced it")]
    Gone,
}

/// Why an offer cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The blob does not make sense.
    #[error("the offer does not make sense: {0}")]
    Malformed(&'static str),
    /// An fd is missing, or there is one too many.
    #[error("the offer names {expected} file descriptors and {found} came")]
    Fds {
        /// How many belong to the offer.
        expected: usize,
        found: usize,
    },
    /// The memory that came cannot be mapped, or is not sealed as it must be.
    #[error("the offered memory is refused: {0}")]
    Memory(#[from] MemoryError),
    /// The engine that offered is gone.
    #[error("the engine that made the offer is gone")]
    Gone,
    /// Nothing of the one side reaches anything of the other.
    #[error("{0}")]
    NoPath(String),
    /// A setting that both sides must have alike is different.
    #[error("`{key}` is `{here}` here and `{there}` at the peer: set it alike on both")]
    Setting {
        key: &'static str,
        /// What it is here.
        here: &'static str,
        /// What it is at the peer.
        there: &'static str,
    },
}

/// Exports regions of this engine to one peer, and imports the peer's.
///
/// A region is advertised to every peer once, with what the peer needs to reach it; a peer's region
/// is imported once, when a plan first needs it.
pub trait Registrar: Send + Sync {
    /// What has to be done before a region is exported and may take long, if there is anything: it is done where nobody waits for it, once for each
    /// generation. Whether it has succeeded is [`Registrar::export`]'s to say.
    fn preparation(&self, region: &Arc<Region>) -> Option<Box<dyn FnOnce() + Send>> {
        let _ = region;
        None
    }

    /// How `region` is advertised to the peer.
    fn export(&self, region: &Arc<Region>) -> Exported;

    /// Whether this blob, of a region of the peer, says that parts of it were renewed: then the renewed pages come with it as
    /// [`Exported::extra_fds`]. False where a renewed region is exported and imported like any other.
    fn is_renewed(&self, access_blob: &[u8]) -> bool {
        let _ = access_blob;
        false
    }

    /// The memory of a peer's region, as this process reaches it.
    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError>;

    /// As [`Registrar::import`], of a region that came with [`Exported::extra_fds`]; only then is it called.
    fn import_with_extra_fds(
        &self,
        region: &AdvertisedRegion<'_>,
        fd: Option<OwnedFd>,
        extra_fds: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        // Fds that mean nothing to this transport are closed.
        drop(extra_fds);
        self.import(region, fd)
    }

    /// Whether it is known by which way memory is reached that is not mapped here; until then each plan imports that anew.
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether devices of this process copy between the memories of both sides, so that this transport reaches all memory of devices.
    fn reaches_devices(&self) -> bool {
        false
    }

    /// Whether this transport itself gets at this memory of a device, for peers and for posts from here; an error says in words why not. It may
    /// register the memory, as [`Registrar::export`] does. A region of which it does not is not exported.
    fn reaches_device(&self, region: &Arc<Region>) -> Result<(), String> {
        let _ = region;
        if self.reaches_devices() { Ok(()) } else { Err(NO_DEVICE_MEMORY.to_owned()) }
    }

    /// How bytes go between memory here and a region that was imported; asked once for each pair when a plan is built.
    fn pair(&self, caps: &Caps, local: &Arc<Region>, remote: &RemoteMemory) -> Result<Pair, ImportError> {
        let no_path = || {
            ImportError::NoPath(format!(
                "{NO_DEVICE_MEMORY}, through which a device's is moved unless `device.staging` is `off`"
            ))
        };
        Pair::of_host(caps, local.memory(), remote).ok_or_else(no_path)
    }

    /// How a peer's region would be accessed, and why not better. Maps nothing.
    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath;
}

/// A joined session: what the runtime holds of it.
pub struct Link {
    /// One lane for each worker of this engine.
    pub lanes: Vec<Box<dyn Lane>>,
    /// Imports and exports regions.
    pub registrar: Arc<dyn Registrar>,
    /// What this engine can see of the peer's withdrawals and workers.
    pub peer_view: PeerView,
    /// Byte streams that the lanes still need, where they need any.
    pub streams: Option<Arc<dyn Streams>>,
    /// Messages between the lanes of both sides that go over the control connection.
    pub transport_messages: Option<Arc<dyn TransportMessages>>,
    /// The names of its rails, where it has any; [`crate::Failure::rail`] is an index into them.
    pub rails: Vec<String>,
    /// Why this path was chosen, in words.
    pub path: String,
}

/// Byte streams between two hosts that a session needs beside its control connection. The side that connected opens them,
/// the runtime proves which session each belongs to, and the transport's link takes them.
pub trait Streams: Send + Sync {
    /// How many the session has; both sides say the same.
    fn count(&self) -> usize;

    /// Takes a connected, non-blocking stream. Refused if the index is out of range, or was attached already.
    fn attach(&self, index: usize, stream: OwnedFd) -> Result<(), AttachError>;
}

/// Transport messages: few and small, in order, between the lanes of both sides over the control connection, for what
/// cannot be sent over a broken data path.
pub trait TransportMessages: Send + Sync {
    /// The session is established: messages are sent through `sender` from now on. Called once.
    fn start(&self, sender: ControlSender);

    /// A message of the peer's lanes. An error says that it violates the protocol.
    fn on_message(&self, message: &[u8]) -> Result<(), LaneFault>;
}

/// Sends a message to the lanes of the peer: at most [`TRANSPORT_MESSAGE_BYTES_MAX`] bytes. After the end of the session it is dropped.
pub type ControlSender = Box<dyn Fn(&[u8]) + Send + Sync>;

/// The longest transport message.
pub const TRANSPORT_MESSAGE_BYTES_MAX: usize = 4096;

/// Why a stream was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    #[error("the session has no stream {0}")]
    NoSuchStream(usize),
    #[error("stream {0} of the session is there already")]
    Taken(usize),
    /// The session has ended.
    #[error("the session is gone")]
    Gone,
}

/// How far a transport reaches, and so over which control connection it is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Within one host: both sides have met on a Unix socket and can pass descriptors.
    Host,
    /// Between hosts: both sides have met over the network and share a secret.
    Network,
}

/// Joins with the other side's offer and the descriptors that came with it.
pub type Join = Box<dyn FnOnce(&[u8], Vec<PassedFd>) -> Result<Link, JoinError> + Send>;

/// An offer that waits for the other side's.
pub struct Offering {
    pub blob: Vec<u8>,
    /// What to send with it.
    pub fds: Fds,
    /// Joins with the other side's offer.
    pub join: Join,
}

/// A way in which bytes get from one memory into another.
pub trait Transport: Send + Sync {
    /// Its name, as in `transports.allow`.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn caps(&self) -> Caps;

    /// Whether it reaches from here to there; if so why, else why not.
    fn reaches(&self, here: &LocalEnd, there: &RemoteEnd) -> Result<&'static str, &'static str>;

    /// How far it reaches at all.
    fn scope(&self) -> Scope {
        Scope::Host
    }

    /// What this worker has to do for all its lanes at once, where there is anything. Asked once for each
    /// worker, before any session.
    fn driver(&self, worker: usize) -> std::io::Result<Option<Box<dyn Driver>>> {
        let _ = worker;
        Ok(None)
    }

    /// What became of its packets since the engine started; none: it has no packets of its own.
    fn packets(&self) -> Option<PacketStatistics> {
        None
    }

    /// What became of those of one session, while it stands.
    fn peer_packets(&self, peer_index: u32) -> Option<PeerPackets> {
        let _ = peer_index;
        None
    }

    /// Drops what this transport has registered for the region (memory registrations on NICs, say), up to generation
    /// `last`: the id may be in use again, by another region of a newer generation. Called once per region, when it is quiesced
    /// or given up. An implementation that registers in [`Registrar::export`] excludes that call and this one from each other
    /// by a lock of its own, and checks under it that the region is live, or it would register after this call.
    fn release_registrations(&self, region: RegionId, last: Generation) {
        let _ = (region, last);
    }

    /// Prepares this side of a session.
    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError>;
}
