//! Memory of devices in sessions whose transport moves host memory, and, within a process, host memory that Penstock has not mapped.
//!
//! Bytes go through pinned memory, a slot for each post, at each end where a device's memory is. A WRITE is copied into a slot here, leaves from there
//! as host memory does, comes into a slot of the peer, and is copied to its place by the peer, which is asked to; a READ comes the other way. So a
//! transport needs nothing for it but to carry what lanes say to each other, and this stands around its lanes and its registrar.
//!
//! - [`slots`]: the memory between
//! - [`op`]: an operation and its hops
//! - [`lane`]: one worker's lane, with what comes before and behind what the transport moves; [`hops`]: how each of them is made;
//!   [`gone`]: what is left of the transport's when its session is over
//! - [`message`], [`talk`], [`peer`]: what lanes of both sides say to each other, and what they have of each other's slots
//! - [`path`]: how a peer is told of memory that is reached so

mod gone;
mod hops;
mod lane;
mod message;
mod op;
mod path;
mod peer;
mod slots;
mod talk;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use penstock_core::limits::UNITS_AT_ONCE;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Rights};
use penstock_memory::{Memory, Region, Registry};

use self::lane::StagedLane;
use self::message::CopyRequest;
use self::peer::DIRECTIONS;
pub use self::slots::IsOver;
use self::slots::Slots;
use crate::caps::Caps;
use crate::device::Devices;
use crate::host::EngineSegments;
use crate::lane::{Lane, LaneFault};
use crate::link::{AdvertisedRegion, Exported, ImportError, Link, Registrar, unreached_device};
use crate::pair::Pair;
use crate::peer_view::PeerView;
use crate::remote::{AccessPath, RemoteMemory, RemoteSlots, StagedMemory};

/// The staging memory of an engine.
pub struct Staging {
    /// None: this process has none, and reaches those of others.
    devices: Option<Arc<dyn Devices>>,
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    /// Bytes for each worker and direction, and for peers in each direction.
    bytes: u64,
    /// By worker, and [`Direction`]. Made when a plan needs it first.
    slots: Box<[[OnceLock<Arc<Slots>>; 2]]>,
    /// By the direction that peers ask for. Made when they are told first of memory of a device.
    for_peers: [OnceLock<Arc<Slots>>; 2],
    /// Held while some are made: whoever came second would leave its own in the registry.
    making: Mutex<()>,
}

/// One session's, whose lanes it gives what they need.
pub struct StagedSession {
    staging: Arc<Staging>,
    peer_view: PeerView,
    reaches_devices: bool,
    peer_index: u32,
    peer_workers: usize,
    /// What lanes of other workers have heard for each worker, and whether there is any.
    mail: Box<[(AtomicBool, Mutex<Mail>)]>,
}

impl Staging {
    /// None is made yet. Each worker has so many bytes for each direction, and so have all peers together.
    pub fn new(
        devices: Option<Arc<dyn Devices>>,
        segments: Arc<EngineSegments>,
        registry: Arc<Registry>,
        bytes: u64,
    ) -> Self {
        let slots = (0..segments.workers()).map(|_| Default::default()).collect();
        let (for_peers, making) = Default::default();
        Self { devices, segments, registry, bytes, slots, for_peers, making }
    }

    /// Has a session with a peer of so many workers reach memory of devices, on both sides.
    pub fn over(self: &Arc<Self>, link: Link, peer_index: u32, peer_workers: usize) -> (Link, Arc<StagedSession>) {
        let session = StagedSession {
            staging: Arc::clone(self),
            peer_view: link.peer_view.clone(),
            reaches_devices: link.registrar.reaches_devices(),
            peer_index,
            peer_workers: peer_workers.max(1),
            mail: (0..self.segments.workers()).map(|_| Default::default()).collect(),
        };
        let (inner, staging) = (Arc::clone(&link.registrar), Arc::clone(self));
        let is_one_host = link.peer_view.has_cpu_access();
        let (imported, is_told) = (Mutex::default(), AtomicBool::new(!is_one_host));
        let registrar = Arc::new(StagedRegistrar { inner, staging, imported, is_told });
        (Link { registrar, ..link }, Arc::new(session))
    }

    /// Whether and how bytes go between this memory here and this one of a peer through staging memory.
    fn pair(
        &self,
        inner: &dyn Registrar,
        caps: &Caps,
        local: &Arc<Region>,
        remote: &RemoteMemory,
    ) -> Option<Result<Pair, ImportError>> {
        let memory = local.memory();
        let device = match (inner.reaches_devices(), remote) {
            (true, _) if !is_staged_within(memory, remote) => return None,
            (true, RemoteMemory::Device(window)) => Some(Memory::Device(window.clone())),
            (true, _) => Some(memory.clone()),
            (false, RemoteMemory::Device(_)) => return None,
            (false, _) => {
                Some(memory.clone()).filter(|memory| memory.device().is_some() && inner.reaches_device(local).is_err())
            }
        };
        // Where there are no slots the transport has the words.
        if (device.is_none() || self.devices.is_none()) && !matches!(remote, RemoteMemory::Staged(_)) {
            return None;
        }
        let pair = Pair {
            is_synchronous: false,
            is_ordered: false,
            splits: caps.multi_worker,
            units_at_once: UNITS_AT_ONCE,
            is_staged: true,
        };
        let prepared = device.map_or(Ok(()), |device| self.prepare(&device));
        Some(prepared.map(|()| pair))
    }

    /// All workers can stage for this device from now on.
    fn prepare(&self, device: &Memory) -> Result<(), ImportError> {
        for slots in self.slots.iter().flatten() {
            self.make(slots, Rights::NONE, device).map_err(ImportError::NoPath)?;
        }
        Ok(())
    }

    /// Slots that there are from now on, and that this device reaches; an error says why not.
    fn make<'a>(
        &self,
        slots: &'a OnceLock<Arc<Slots>>,
        rights: Rights,
        device: &Memory,
    ) -> Result<&'a Arc<Slots>, String> {
        let devices = self.devices.as_ref().ok_or(
            "this transport moves host memory, and `device.staging` is `off` here, so that a device's is not moved through it: set it to `auto`",
        )?;
        let one_at_a_time = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = match slots.get() {
            Some(slots) => slots,
            None => {
                let made = Slots::new(self.bytes, rights, &self.registry, &self.segments).map_err(|error| {
                    format!("there is no memory to stage in ({error}): lower `device.staging_bytes`")
                })?;
                slots.get_or_init(|| Arc::new(made))
            }
        };
        drop(one_at_a_time);
        devices.pair(device, &slots.memory).map_err(|error| {
            let bytes = self.bytes;
            format!("bytes are to be staged here, in {bytes} B for each worker and direction (`device.staging_bytes`, which may be lowered), and {error}")
        })?;
        Ok(slots)
    }

    fn slots(&self, worker: usize, direction: Direction) -> Option<&Arc<Slots>> {
        self.slots.get(worker)?[direction as usize].get()
    }

    fn for_peers(&self, direction: Direction) -> Option<&Arc<Slots>> {
        self.for_peers[direction as usize].get()
    }

    /// Slots that peers had whose sessions are over by now are for others, and who waits for some is woken. Returns whether there are more, of
    /// sessions that are not over: they are to be looked at again, since a process that dies says nothing.
    pub fn take_back_left(&self) -> bool {
        let slots = DIRECTIONS.into_iter().filter_map(|direction| self.for_peers(direction));
        slots.fold(false, |any, slots| any | slots.take_back_left())
    }

    /// How a peer is told of a device's memory, with the slots through which it gets there.
    fn export(&self, inner: &dyn Registrar, region: &Arc<Region>, not_reached: &str) -> Result<Exported, String> {
        if region.rights() == Rights::NONE {
            return Err("the region gives no rights to peers".to_owned());
        }
        let mut exported = Vec::new();
        for direction in DIRECTIONS {
            let rights = right_for(direction);
            if allows(region.rights(), direction) {
                let slots = self.make(&self.for_peers[direction as usize], rights, region.memory())?;
                exported.push((direction, slots.key, &slots.region, inner.export(&slots.region)));
            }
        }
        Ok(path::encode(not_reached, exported))
    }

    /// The memory that a copy of a peer's names, if the peer may do that to it.
    fn admit(&self, copy: &CopyRequest<'_>) -> Result<Memory, Cause> {
        let RegionKey { region, generation } = copy.key;
        let region = self.registry.resolve(region, generation).map_err(|_| Cause::RevokedByPeer)?;
        let memory = region.memory();
        if memory.device().is_none() {
            return Err(Cause::NoPath);
        }
        let is_inside = |(at, len): (u64, u64)| at.checked_add(len).is_some_and(|end| end <= memory.len());
        let lands = copy.direction == Direction::Read || memory.is_writable();
        if allows(region.rights(), copy.direction) && lands && copy.extents().all(is_inside) {
            Ok(memory.clone())
        } else {
            Err(Cause::OutOfBounds)
        }
    }
}

fn right_for(direction: Direction) -> Rights {
    match direction {
        Direction::Write => Rights::WRITE,
        Direction::Read => Rights::READ,
    }
}

fn allows(rights: Rights, direction: Direction) -> bool {
    match direction {
        Direction::Write => rights.allows_write(),
        Direction::Read => rights.allows_read(),
    }
}

/// Within a process a device copies host memory that Penstock has mapped; other memory cannot be registered, since nobody says when it changes.
fn is_staged_within(local: &Memory, remote: &RemoteMemory) -> bool {
    match (local, remote) {
        (Memory::Device(_), RemoteMemory::Mapped(window)) | (Memory::Host(window), RemoteMemory::Device(_)) => {
            !window.is_of_mapping()
        }
        _ => false,
    }
}

/// What other workers' lanes have heard for one.
#[derive(Default)]
struct Mail {
    heard: Vec<u8>,
    /// Whether it has a lane here that stages; who has none has asked for nothing.
    has_lane: bool,
}

/// More than all of a peer's workers together have to say before they hear an answer.
const MAIL_BYTES_MAX: usize = 4 << 20;

impl StagedSession {
    /// Whether a lane has something to hear from its first turn on; else it is wrapped when a plan needs it.
    pub fn has_devices(&self) -> bool {
        self.staging.devices.is_some()
    }

    /// Has this worker's lane stage.
    pub fn lane(self: &Arc<Self>, inner: Box<dyn Lane>, worker: usize, is_over: IsOver) -> Box<dyn Lane> {
        if let Some(mut mail) = self.mail(worker) {
            mail.has_lane = true;
        }
        Box::new(StagedLane::new(self, inner, worker, is_over))
    }

    fn has_mail(&self, worker: usize) -> bool {
        // SYNC staging-mail: pairs with forward()'s Release.
        self.mail.get(worker).is_some_and(|(has_mail, _)| has_mail.load(Ordering::Acquire))
    }

    /// A lane that does not stage has heard this: it is another worker's, or nobody's.
    pub fn pass_on(&self, message: &[u8]) {
        if let Ok((workers, _)) = message::parse(message) {
            // Its lane is the one that would say so.
            let _ = self.forward(workers.to.into(), message);
        }
    }

    fn mail(&self, worker: usize) -> Option<MutexGuard<'_, Mail>> {
        Some(self.mail.get(worker)?.1.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_mail(&self, worker: usize, into: &mut Vec<u8>) {
        if let Some(mut mail) = self.mail(worker) {
            into.append(&mut mail.heard);
            // Relaxed: under the lock, under which it is set.
            self.mail[worker].0.store(false, Ordering::Relaxed);
        }
    }

    /// Passes on what another worker's lane is to hear.
    fn forward(&self, worker: usize, message: &[u8]) -> Result<(), LaneFault> {
        let mut mail = self.mail(worker).ok_or(LaneFault(Cause::PeerCorrupt))?;
        if !mail.has_lane && !self.has_devices() {
            return Ok(());
        }
        if mail.heard.len() > MAIL_BYTES_MAX {
            return Err(LaneFault(Cause::PeerCorrupt));
        }
        talk::put_heard(&mut mail.heard, message);
        self.mail[worker].0.store(true, Ordering::Release); // SYNC staging-mail: pairs with has_mail()'s Acquire.
        drop(mail);
        let segments = &self.staging.segments;
        segments.ringer(1 + worker).mark_and_ring(&segments.mailbox.view().ready(worker), self.peer_index as usize);
        Ok(())
    }
}

/// What a transport registers, and where a device's memory is at either end what is staged.
struct StagedRegistrar {
    inner: Arc<dyn Registrar>,
    staging: Arc<Staging>,
    /// The peer's slots, by direction: those that were told last.
    imported: Mutex<[Option<RemoteSlots>; 2]>,
    /// Whether somebody was told, or need not be, that bytes go through host memory though both processes are on one host.
    is_told: AtomicBool,
}

impl StagedRegistrar {
    fn import_staged(
        &self,
        region: &AdvertisedRegion<'_>,
        path: path::StagedPath<'_>,
        fds: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        let (mut slots, mut fds) = ([None, None], fds.into_iter());
        for told in path.slots() {
            let (told, has_fd) = told?;
            let fd = if has_fd { fds.next() } else { None };
            let key = RegionKey { region: told.id, generation: told.generation };
            let mut imported = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
            let known = &mut imported[told.direction as usize];
            match known {
                Some(known) if known.key == key => {}
                _ => {
                    let advertised = AdvertisedRegion {
                        epoch: region.epoch,
                        rights: right_for(told.direction),
                        ..told.advertised()
                    };
                    *known = Some(RemoteSlots { key, memory: self.inner.import(&advertised, fd)? });
                }
            }
            slots[told.direction as usize] = known.clone();
        }
        Ok(RemoteMemory::Staged(Arc::new(StagedMemory { bytes: region.bytes, slots })))
    }
}

impl Registrar for StagedRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        if region.host().is_some() {
            return self.inner.export(region);
        }
        let Err(not_reached) = self.inner.reaches_device(region) else { return self.inner.export(region) };
        self.staging.export(&*self.inner, region, &not_reached).unwrap_or_else(|why| {
            tracing::warn!(region = region.label(), why, "memory of a device is not offered to a peer");
            Exported { access_blob: unreached_device(&why), ..Exported::default() }
        })
    }

    fn is_renewed(&self, access_blob: &[u8]) -> bool {
        self.inner.is_renewed(access_blob)
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match path::parse(region.access_blob) {
            Some(path) => self.import_staged(region, path, fd.into_iter().collect()),
            None => self.inner.import(region, fd),
        }
    }

    fn import_with_extra_fds(
        &self,
        region: &AdvertisedRegion<'_>,
        fd: Option<OwnedFd>,
        extra_fds: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        match path::parse(region.access_blob) {
            Some(path) => self.import_staged(region, path, fd.into_iter().chain(extra_fds).collect()),
            None => self.inner.import_with_extra_fds(region, fd, extra_fds),
        }
    }

    fn preparation(&self, region: &Arc<Region>) -> Option<Box<dyn FnOnce() + Send>> {
        self.inner.preparation(region)
    }

    fn reaches_devices(&self) -> bool {
        self.inner.reaches_devices()
    }

    fn reaches_device(&self, region: &Arc<Region>) -> Result<(), String> {
        let reached = self.inner.reaches_device(region);
        if self.staging.devices.is_some() { Ok(()) } else { reached }
    }

    fn pair(&self, caps: &Caps, local: &Arc<Region>, remote: &RemoteMemory) -> Result<Pair, ImportError> {
        let Some(staged) = self.staging.pair(&*self.inner, caps, local, remote) else {
            return self.inner.pair(caps, local, remote);
        };
        // Relaxed: at worst it is said twice.
        if staged.is_ok() && !self.inner.reaches_devices() && !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                region = local.label(),
                "bytes between a device's memory and another process of this host go through pinned host memory, one or two copies more: \
                 engines of one process (transport `local`) copy directly"
            );
        }
        staged
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        match path::parse(region.access_blob) {
            Some(path) => {
                let reason = format!("memory of a device, through pinned memory of its engine: {}", path.not_reached);
                AccessPath { name: AccessPath::STAGED, reason }
            }
            None => self.inner.access_path(region),
        }
    }
}

#[cfg(test)]
mod hostile;

#[cfg(test)]
mod tests {
    use penstock_core::{Generation, RegionId};
    use penstock_memory::HostMemory;

    use super::message::{CopyHead, StagingMessage, Workers};
    use super::*;

    #[test]
    fn a_peer_has_nothing_copied_but_memory_of_devices_that_is_registered() {
        let (registry, segments) = (Arc::new(Registry::new()), EngineSegments::create(1).unwrap());
        let memory = HostMemory::from_vec(vec![0; 4096]).unwrap();
        let region = registry.register_host(memory, "host", Rights::READ_WRITE).unwrap();
        let staging = Staging::new(None, segments, registry, 1 << 20);
        let admitted = |key: RegionKey| {
            let copy = CopyHead { direction: Direction::Write, slot: 0, key, number: 1, revision: 0 };
            let mut bytes = Vec::new();
            message::put_copy(&mut bytes, Workers { to: 0, from: 0 }, &copy, [(0, 8)].into_iter());
            let Ok((_, StagingMessage::Copy(copy))) = message::parse(&bytes) else { panic!("it is a COPY") };
            staging.admit(&copy).err()
        };
        let key = RegionKey { region: region.id(), generation: region.generation() };
        assert_eq!(admitted(key), Some(Cause::NoPath), "host memory is reached otherwise, with other checks");
        let other = RegionKey { generation: Generation(key.generation.0 + 1), ..key };
        assert_eq!(admitted(other), Some(Cause::RevokedByPeer));
        assert_eq!(admitted(RegionKey { region: RegionId(77), ..key }), Some(Cause::RevokedByPeer));
    }
}
