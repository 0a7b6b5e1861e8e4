//! An adapter: one port of an open device, under one address.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_memory::{DeviceWindow, Window};
use penstock_verbs_sys::Verbs;
use penstock_verbs_sys::verbs::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::Options;
use super::choose::Pick;
use super::cq::{CqLimit, CqParts, DeviceCq};
use super::manager::Manager;
use super::memory::{Manner, Registered, Registrations};
use super::open::Device;
use super::queue::{DeviceQueue, INLINE_MAX, Posting, QueueShape};
use super::seen::is_link_local;
use super::status::refused;
use crate::adapter::{AccessFlags, Adapter, AdapterError, AsyncEvent, DeviceAttr, DeviceReach, Registration, WorkerCq};

/// Pieces of one request, at most. What the adapters of today take; more would only make the places of requests longer.
const PIECES_MAX: u32 = 32;
/// Reads that one side may have under way on a queue. Adapters take 16; each needs room on the side that answers.
const READS_MAX: i32 = 16;
/// Bits in a second of a port that does not say them. Any number will do: it is compared with other rails' only.
const BANDWIDTH_UNKNOWN: u64 = 10_000_000_000;
/// Vendor and part of soft RoCE devices. Before version 64 (2026) of rdma-core their library adds up lists of pieces wrongly.
const SOFT_ROCE: (u32, u32) = (0xff_ffff, 0);
/// Events that are passed over in one look.
const EVENTS_AT_ONCE: usize = 64;

/// What queues and CQs of an adapter need of it.
pub(super) struct Parts {
    pub(super) device: Arc<Device>,
    pub(super) attr: DeviceAttr,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    /// Whether every packet needs a global route.
    pub(super) needs_route: bool,
    pub(super) traffic_class: u8,
    pub(super) shape: QueueShape,
    /// Its driver may take a list of pieces that is given to extended posting to be as long as the first piece times their number:
    /// of one with a shorter piece nothing goes, and of one with a longer piece too little, which completes well.
    pub(super) miscounts_pieces: bool,
    pub(super) registrations: Arc<Registrations>,
    pub(super) manager: Option<Arc<Manager>>,
    /// Becomes readable when something has happened to the device or to a connection, if both are listened to.
    both: Option<OwnedFd>,
    manner: Manner,
    cqs: CqLimit,
    has_own_domains: AtomicBool,
}

pub struct DeviceAdapter {
    parts: Arc<Parts>,
}

impl std::fmt::Debug for DeviceAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceCard").field("facts", &self.parts.attr).field("shape", &self.parts.shape).finish()
    }
}

impl DeviceAdapter {
    /// Opens what was chosen.
    pub(super) fn open(verbs: &'static Verbs, pick: &Pick, options: &Options) -> Result<Self, AdapterError> {
        let behind = pick.network.as_ref().map(|network| format!(" ({network})")).unwrap_or_default();
        let name = format!("{}/{}{behind}", pick.device, pick.port);
        let device = Arc::new(Device::open(verbs, &pick.device, &name)?);
        let attributes = device.attributes()?;
        let port = device.port(pick.port)?;
        let gid = device.gid(pick.port, pick.gid_index)?;
        if gid != pick.gid {
            return Err(AdapterError::NotHere {
                what: name,
                why: format!("its address of index {} has just changed", pick.gid_index),
                mend: "try again".to_owned(),
            });
        }
        let manager = match options.is_managed {
            true => Some(Arc::new(Manager::listen(pick, &name, options.traffic_class)?)),
            false => None,
        };
        let both = manager.as_ref().map(|manager| both(&device, manager));
        let both = both.transpose().map_err(|error| refused("epoll_create", &name, error.into()))?;
        let is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
        let can = &attributes.orig_attr;
        let sges = [can.max_sge, can.max_sge_rd].into_iter().filter(|count| *count > 0).min().unwrap_or(1);
        let sges = u32::try_from(sges).unwrap_or(1).min(PIECES_MAX);
        let attr = DeviceAttr {
            name,
            gid,
            lid: port.lid,
            kind: pick.kind,
            network_bits: pick.network_bits,
            is_routable: pick.is_routable && !is_link_local(&gid),
            mtu: mtu_bytes(port.active_mtu),
            bandwidth: pick.bandwidth.unwrap_or(BANDWIDTH_UNKNOWN),
            node: pick.node,
            sges_max: sges as usize,
            requests_max: requests_max(count(can.max_qp_wr), sges),
            receives_max: count(can.max_srq_wr),
            completions_max: count(can.max_cqe),
            inline_max: 0,
            reads_max: u8::try_from(can.max_qp_rd_atom.min(can.max_qp_init_rd_atom).clamp(0, READS_MAX)).unwrap_or(0),
            cm_address: manager.as_ref().map(|manager| manager.at()),
        };
        let parts = Parts {
            device,
            attr,
            port: pick.port,
            gid_index: pick.gid_index,
            needs_route: is_ethernet || port.flags & IBV_QPF_GRH_REQUIRED != 0,
            traffic_class: options.traffic_class,
            shape: QueueShape { sges, inline: 0, posting: Posting::Classic },
            miscounts_pieces: (can.vendor_id, can.vendor_part_id) == SOFT_ROCE,
            registrations: Arc::default(),
            manager,
            both,
            manner: Manner { is_on_demand: options.is_on_demand && pages_on_demand(&attributes.odp_caps) },
            cqs: CqLimit::default(),
            has_own_domains: AtomicBool::new(false),
        };
        Ok(Self { parts: Arc::new(parts.tried(options.posting)?) })
    }

    /// How requests are posted.
    pub fn posting(&self) -> Posting {
        self.parts.shape.posting
    }

    /// Whether each CQ has a domain of its own thread, so that it shares no doorbell with others.
    pub fn has_own_domains(&self) -> bool {
        self.parts.has_own_domains.load(Ordering::Relaxed)
    }

    /// Whether memory is paged in by the adapter when it is first touched.
    pub fn is_on_demand(&self) -> bool {
        self.parts.manner.is_on_demand
    }

    /// What people want to know of it beyond its name.
    pub fn describe(&self) -> String {
        let DeviceAttr { sges_max, inline_max, reads_max, mtu, .. } = self.parts.attr;
        let posting = match self.posting() {
            Posting::Extended => "straight into the card's queue",
            Posting::Classic => "by lists",
        };
        let domain = if self.has_own_domains() { "doorbells for each worker" } else { "shared doorbells" };
        let memory = if self.is_on_demand() { "memory paged in on demand" } else { "memory pinned" };
        let meets = match self.parts.attr.cm_address {
            Some(at) => format!(", called at {at} by rdma_cm"),
            None => String::new(),
        };
        format!(
            "posts {posting}, {domain}, {memory}, {sges_max} pieces a request, {inline_max} bytes inline, {reads_max} reads, packets of {mtu} bytes{meets}"
        )
    }
}

impl Parts {
    /// With the best shape of queues that the adapter really makes.
    fn tried(mut self, wanted: Posting) -> Result<Self, AdapterError> {
        let mut failed = None;
        let parts = Arc::new(CqParts::make(&self.device, 1, 1, 0)?);
        self.has_own_domains = AtomicBool::new(parts.has_own_domain());
        let postings = match wanted {
            Posting::Extended => &[Posting::Extended, Posting::Classic][..],
            Posting::Classic => &[Posting::Classic],
        };
        let sges = self.shape.sges;
        for &posting in postings {
            for inline in [INLINE_MAX, INLINE_MAX / 2, INLINE_MAX / 4, 0] {
                let shape = QueueShape { sges, inline, posting };
                let this = Arc::new(self);
                let made = DeviceQueue::make(&this, &parts, shape, 1).map(|queue| queue.inline_max());
                self = Arc::into_inner(this).expect("the queue that kept it was dropped");
                match made {
                    Ok(inline_max) => {
                        self.shape = shape;
                        self.attr.inline_max = inline_max as usize;
                        return Ok(self);
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        Err(failed.expect("at least one shape was tried"))
    }
}

impl Adapter for DeviceAdapter {
    fn attr(&self) -> &DeviceAttr {
        &self.parts.attr
    }

    fn register(&self, memory: &Window, access: AccessFlags) -> Result<Arc<dyn Registration>, AdapterError> {
        let Parts { device, registrations, manner, .. } = &*self.parts;
        Ok(Registered::window(device, registrations, memory, access, *manner)?)
    }

    fn register_device(
        &self,
        memory: &DeviceWindow,
        by: DeviceReach<'_>,
        access: AccessFlags,
    ) -> Result<Arc<dyn Registration>, AdapterError> {
        let Parts { device, registrations, .. } = &*self.parts;
        Ok(Registered::device(device, registrations, memory, by, access)?)
    }

    fn worker_cq(&self, completions: usize, receives: usize) -> Result<Box<dyn WorkerCq>, AdapterError> {
        let DeviceAttr { completions_max, receives_max, name, .. } = &self.parts.attr;
        let enough = |what, has: usize, wants: usize| {
            if wants <= has { Ok(()) } else { Err(AdapterError::NoRoom { adapter: name.clone(), what, has, wants }) }
        };
        enough("completions of a desk", *completions_max, completions)?;
        enough("receives of a desk", *receives_max, receives)?;
        let cq = CqParts::make(&self.parts.device, completions, receives, self.parts.cqs.next())?;
        Ok(Box::new(DeviceCq::new(&self.parts, cq, receives)))
    }

    fn next_event(&self) -> Option<AsyncEvent> {
        if let Some(queue) = self.parts.manager.as_ref().and_then(|manager| manager.next_event()) {
            return Some(AsyncEvent::CmProgress(queue));
        }
        let device = &self.parts.device;
        for _ in 0..EVENTS_AT_ONCE {
            let mut event = ibv_async_event::ZERO;
            // SAFETY: the context is open and does not wait, and the event may be written.
            if unsafe { device.verbs.ibv_get_async_event(device.context(), &raw mut event) } != 0 {
                return None;
            }
            // SAFETY: what it happened to stands until the event is acknowledged, once, below.
            let told = unsafe { self.parts.tell(&event) };
            // SAFETY: it came from the call above.
            unsafe { device.verbs.ibv_ack_async_event(&raw mut event) };
            if told.is_some() {
                return told;
            }
        }
        None
    }

    fn events(&self) -> BorrowedFd<'_> {
        match &self.parts.both {
            Some(both) => both.as_fd(),
            None => self.parts.device.sign(),
        }
    }
}

/// A descriptor that is readable when one of the device's and the connection manager's is.
fn both(device: &Device, manager: &Manager) -> rustix::io::Result<OwnedFd> {
    let both = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&both, device.sign(), EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&both, manager.events(), EventData::new_u64(1), EventFlags::IN)?;
    Ok(both)
}

impl Parts {
    /// What an event means, if it means anything here.
    ///
    /// # Safety
    ///
    /// The event came from the library and is not acknowledged yet.
    unsafe fn tell(&self, event: &ibv_async_event) -> Option<AsyncEvent> {
        match about(event.event_type) {
            About::Nobody => None,
            About::Card(told) => Some(told),
            About::Port(told) => {
                // SAFETY: the event is of a port, so that is what there is in the union.
                let port = unsafe { event.element.port_num };
                (port == i32::from(self.port)).then_some(told)
            }
            // SAFETY: the event is of a queue pair, which stands until it is acknowledged.
            About::Queue => unsafe { self.broken(event.element.qp) },
        }
    }

    /// The event that a queue pair is broken, if it still is: it may have been made new before anybody looked.
    ///
    /// # Safety
    ///
    /// The queue pair stands.
    unsafe fn broken(&self, pair: *mut ibv_qp) -> Option<AsyncEvent> {
        let (mut now, mut made) = (ibv_qp_attr::ZERO, ibv_qp_init_attr::ZERO);
        // SAFETY: it stands, and both may be written.
        let answer = unsafe { self.device.verbs.ibv_query_qp(pair, &raw mut now, IBV_QP_STATE as i32, &raw mut made) };
        // SAFETY: it stands, and its number does not change.
        let number = unsafe { (*pair).qp_num };
        (answer != 0 || now.qp_state == IBV_QPS_ERR).then_some(AsyncEvent::QueueBroken(number))
    }
}

/// What an event is about, and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Card(AsyncEvent),
    Port(AsyncEvent),
    Queue,
    Nobody,
}

fn about(event: ibv_event_type) -> About {
    match event {
        IBV_EVENT_PORT_ERR => About::Port(AsyncEvent::PortDown),
        IBV_EVENT_PORT_ACTIVE => About::Port(AsyncEvent::PortUp),
        IBV_EVENT_GID_CHANGE | IBV_EVENT_LID_CHANGE | IBV_EVENT_PKEY_CHANGE | IBV_EVENT_CLIENT_REREGISTER => {
            About::Port(AsyncEvent::Changed)
        }
        // Without one of its queues an adapter is of no more use than without all.
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => About::Card(AsyncEvent::Fatal),
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
            About::Queue
        }
        _ => About::Nobody,
    }
}

/// A count that the adapter told, which is never negative.
fn count(told: i32) -> usize {
    usize::try_from(told).unwrap_or(0)
}

fn mtu_bytes(name: ibv_mtu) -> u32 {
    match name {
        IBV_MTU_512 => 512,
        IBV_MTU_1024 => 1024,
        IBV_MTU_2048 => 2048,
        IBV_MTU_4096 => 4096,
        _ => 256,
    }
}

/// Requests of a queue. Adapters count them in places of 64 bytes, of which one with many pieces needs several: 32 bytes and 16 for
/// each piece.
fn requests_max(places: usize, sges: u32) -> usize {
    places / (32 + 16 * sges as usize).div_ceil(64)
}

/// Whether the adapter pages memory in for all that is done here.
fn pages_on_demand(can: &ibv_odp_caps) -> bool {
    let needed = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV;
    can.general_caps & u64::from(IBV_ODP_SUPPORT) != 0 && can.per_transport_caps.rc_odp_caps & needed == needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_about_what_their_union_holds() {
        assert_eq!(about(IBV_EVENT_PORT_ERR), About::Port(AsyncEvent::PortDown));
        assert_eq!(about(IBV_EVENT_PORT_ACTIVE), About::Port(AsyncEvent::PortUp));
        assert_eq!(about(IBV_EVENT_GID_CHANGE), About::Port(AsyncEvent::Changed));
        assert_eq!(about(IBV_EVENT_DEVICE_FATAL), About::Card(AsyncEvent::Fatal));
        // Of a completion queue and of a receive queue: neither's field is looked at.
        assert_eq!(about(IBV_EVENT_CQ_ERR), About::Card(AsyncEvent::Fatal));
        assert_eq!(about(IBV_EVENT_SRQ_ERR), About::Card(AsyncEvent::Fatal));
        assert_eq!(about(IBV_EVENT_QP_ACCESS_ERR), About::Queue);
        for harmless in
            [IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_WQ_FATAL, 4711]
        {
            assert_eq!(about(harmless), About::Nobody);
        }
    }

    #[test]
    fn a_queue_of_long_requests_has_fewer() {
        assert_eq!(requests_max(32768, 30), 4096);
        assert_eq!(requests_max(32768, 2), 32768);
        assert_eq!(requests_max(0, 30), 0);
    }

    #[test]
    fn on_demand_paging_counts_only_if_it_is_for_everything() {
        let mut can = ibv_odp_caps::ZERO;
        assert!(!pages_on_demand(&can));
        can.general_caps = u64::from(IBV_ODP_SUPPORT);
        can.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
        assert!(!pages_on_demand(&can));
        can.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_SRQ_RECV;
        assert!(pages_on_demand(&can));
    }
}
