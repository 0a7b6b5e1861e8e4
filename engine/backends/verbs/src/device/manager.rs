//! The connection manager of an adapter (librdmacm): where it is called, who may call, and what has happened to each connection.
//!
//! Events of all connections of an adapter come through one channel. Whoever asks the adapter for events takes them, puts each where its
//! connection finds it, and says of whose queue it is; the queue's own worker goes on from there ([`super::cm`]). Nobody waits: the
//! channel's descriptor does not, and everything that takes time is an event.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::io;
use std::mem::size_of_val;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_memory::fork::Maker;
use penstock_verbs_sys::Cm;
use penstock_verbs_sys::cm::*;

use super::choose::Pick;
use super::networks::{self, Network};
use super::open::{complain, do_not_wait};
use super::seen::is_link_local;
use super::status::refused;
use crate::adapter::{AdapterError, CmError, Token};

/// Calls that may wait for the kernel to hand them over. More are turned away by it, and try again.
const BACKLOG: i32 = 128;

/// Events of one connection that wait for its queue. Each that counts comes once, so this is for what does not count.
const WAITING: usize = 16;

/// Events that are taken in one look.
const EVENTS_AT_ONCE: usize = 64;

/// Calls of strangers that are refused in one look. Each costs system calls on the turn of a worker, and anybody can call: the rest waits for
/// the next look, as the backlog does.
const STRANGERS_AT_ONCE: usize = 4;

/// What a call is refused with: the caller is not expected.
const NOT_EXPECTED: [u8; 1] = [1];

/// Why the manager of the other side refuses: numbers of the standard.
const REFUSED_STALE: i32 = 10;
const REFUSED_NOBODY: i32 = 8;
const REFUSED_BY_US: i32 = 28;

/// An adapter's connection manager.
pub(super) struct Manager {
    cm: &'static Cm,
    adapter: String,
    /// Where it is called.
    at: SocketAddr,
    traffic_class: u8,
    maker: Maker,
    channel: Channel,
    listener: Option<NonNull<rdma_cm_id>>,
    /// Also held while events are taken and acknowledged, so that an identifier that is gone from here has none left.
    inner: Mutex<Inner>,
}

// SAFETY: every function of the library may be called from any thread.
unsafe impl Send for Manager {}
// SAFETY: as for Send.
unsafe impl Sync for Manager {}

#[derive(Default)]
struct Inner {
    /// What is expected, and the call that has come for it.
    expected: HashMap<Token, Expected>,
    /// What has happened to each connection, by its identifier's address.
    connections: HashMap<usize, Connection>,
}

struct Expected {
    queue: u32,
    call: Call,
}

enum Call {
    None,
    Came(NonNull<rdma_cm_id>),
    Taken,
}

// SAFETY: the identifiers are used under the manager's lock, or by the one who took them.
unsafe impl Send for Inner {}

struct Connection {
    queue: u32,
    happened: VecDeque<Happened>,
}

/// What has happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    /// Its address leads to this adapter.
    AddressFound,
    /// A way was found.
    WayFound,
    /// The other side has accepted.
    Accepted,
    Stands,
    /// It does not, or no more.
    Failed(CmError),
}

/// Whether the library is here.
pub(super) fn open() -> Result<&'static Cm, penstock_verbs_sys::NotHere> {
    Cm::open()
}

impl Manager {
    /// Has the adapter that was picked be called, at its own address and a port that is free.
    pub(super) fn listen(pick: &Pick, adapter: &str, traffic_class: u8) -> Result<Self, AdapterError> {
        let not_here =
            |why: String, mend: &str| AdapterError::NotHere { what: adapter.to_owned(), why, mend: mend.to_owned() };
        let cm = open()
            .map_err(|error| not_here(error.to_string(), "or connect by `transports.verbs_connect: exchange`"))?;
        let networks = networks::read().map_err(|error| refused("getifaddrs", adapter, error))?;
        let address = address_of(pick, &networks).ok_or_else(|| {
            let why = "it has no IP address by which the connection manager could find it".to_owned();
            not_here(why, "give its network device one that is not link-local")
        })?;
        let last = |call| refused(call, adapter, io::Error::last_os_error());
        let channel = Channel::open(cm).map_err(|error| {
            let why = format!("the kernel's connection manager cannot be reached: {error}");
            not_here(why, "`modprobe rdma_ucm`, and let this user use /dev/infiniband/rdma_cm")
        })?;
        do_not_wait(channel.descriptor()).map_err(|error| refused("fcntl", adapter, error))?;
        let (adapter, at) = (adapter.to_owned(), SocketAddr::new(address, 0));
        let (maker, listener, inner) = (channel.maker, None, Mutex::default());
        let mut manager = Self { cm, adapter, at, traffic_class, maker, channel, listener, inner };
        let listener = manager.identifier()?;
        manager.listener = Some(listener);
        let (mut place, listener) = (SockaddrStorage::of(at), listener.as_ptr());
        // SAFETY: the identifier stands, and the address does during the call.
        if unsafe { cm.rdma_bind_addr(listener, place.get()) } != 0 {
            return Err(last("rdma_bind_addr"));
        }
        // SAFETY: the identifier stands.
        let leads_to = unsafe { leads_to(listener) };
        if leads_to != (pick.device.clone(), pick.port) {
            // Peers would reach queues that are not there.
            let (device, port) = leads_to;
            let why = format!("its address {address} leads to {device}:{port}");
            return Err(not_here(why, "give its network device an address of its own"));
        }
        // SAFETY: the identifier stands and has an address.
        if unsafe { cm.rdma_listen(listener, BACKLOG) } != 0 {
            return Err(last("rdma_listen"));
        }
        // SAFETY: the identifier stands.
        manager.at.set_port(u16::from_be(unsafe { cm.rdma_get_src_port(listener) }));
        Ok(manager)
    }

    /// Where it is called.
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(super) fn adapter(&self) -> &str {
        &self.adapter
    }

    pub(super) fn cm(&self) -> &'static Cm {
        self.cm
    }

    /// Becomes readable when something has happened.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel stands as long as the manager, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.descriptor()) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new identifier, with the traffic class of this adapter.
    fn identifier(&self) -> Result<NonNull<rdma_cm_id>, AdapterError> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel stands, and the place of an identifier may be written.
        let answer =
            unsafe { self.cm.rdma_create_id(self.channel.raw.as_ptr(), &raw mut id, ptr::null_mut(), RDMA_PS_TCP) };
        let id = NonNull::new(id)
            .filter(|_| answer == 0)
            .ok_or_else(|| refused("rdma_create_id", &self.adapter, io::Error::last_os_error()))?;
        if self.traffic_class != 0 {
            let mut class = self.traffic_class;
            let bytes = size_of_val(&class);
            let (level, option) = (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS);
            // SAFETY: the identifier stands, and the option is one byte, which is read during the call.
            if unsafe { self.cm.rdma_set_option(id.as_ptr(), level, option, (&raw mut class).cast(), bytes) } != 0 {
                let error = io::Error::last_os_error();
                tracing::warn!(adapter = self.adapter, %error, "the connection manager does not take the traffic class");
            }
        }
        Ok(id)
    }

    /// An identifier for a call of this queue.
    pub(super) fn caller(self: &Arc<Self>, queue: u32) -> Result<Id, AdapterError> {
        let id = self.identifier()?;
        self.lock().connections.insert(id.as_ptr() as usize, Connection { queue, happened: VecDeque::new() });
        Ok(Id { manager: Arc::clone(self), id })
    }

    /// Who calls with this token is for this queue.
    pub(super) fn expect(&self, token: Token, queue: u32) {
        self.lock().expected.insert(token, Expected { queue, call: Call::None });
    }

    /// This token is nobody's any more. Who has called with it is refused.
    pub(super) fn expect_no_more(self: &Arc<Self>, token: &Token) {
        let expected = self.lock().expected.remove(token);
        if let Some(Expected { call: Call::Came(id), .. }) = expected {
            drop(Id { manager: Arc::clone(self), id });
        }
    }

    /// The call that has come with a token.
    pub(super) fn take_call(self: &Arc<Self>, token: &Token) -> Option<Id> {
        let mut inner = self.lock();
        let Expected { call, .. } = inner.expected.get_mut(token)?;
        let Call::Came(id) = *call else { return None };
        *call = Call::Taken;
        Some(Id { manager: Arc::clone(self), id })
    }

    /// Takes what has happened, up to something that a queue waits for. Answers the number of that queue.
    pub(super) fn next_event(&self) -> Option<u32> {
        look(|| self.take_event(), |id| self.turn_away(id))
    }

    fn take_event(&self) -> TakenEvent {
        let mut inner = self.lock();
        let mut event = ptr::null_mut();
        // SAFETY: the channel stands and does not wait, and the place of an event may be written.
        let answer = unsafe { self.cm.rdma_get_cm_event(self.channel.raw.as_ptr(), &raw mut event) };
        let Some(told) = NonNull::new(event).filter(|_| answer == 0) else {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::WouldBlock {
                return TakenEvent::None;
            }
            // A call that the library could not take: it has refused it itself.
            tracing::debug!(adapter = self.adapter, %error, "an event of the connection manager was lost");
            return TakenEvent::Other;
        };
        // SAFETY: it came from the call above and was not acknowledged.
        let (id, kind, status, token) = unsafe {
            let event = told.as_ref();
            let is_call = event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
            let token = if is_call { Token::asked(said(&event.param.conn)) } else { None };
            (event.id, event.event, event.status, token)
        };
        // SAFETY: likewise; nothing of it is used any more.
        unsafe { self.cm.rdma_ack_cm_event(told.as_ptr()) };
        if kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            return inner.called(id, token).map_or(TakenEvent::Stranger(id), TakenEvent::OfQueue);
        }
        let Some(connection) = inner.connections.get_mut(&(id as usize)) else { return TakenEvent::Other };
        match happened(kind, status) {
            Some(happened) if connection.happened.len() < WAITING => {
                connection.happened.push_back(happened);
                TakenEvent::OfQueue(connection.queue)
            }
            _ => TakenEvent::Other,
        }
    }

    /// Refuses a call of whoever is not expected.
    fn turn_away(&self, id: *mut rdma_cm_id) {
        tracing::debug!(adapter = self.adapter, "somebody calls who is not expected");
        // SAFETY: the identifier came with a call, and nobody else knows it; its event was acknowledged.
        let answers = unsafe {
            self.cm.rdma_reject(id, NOT_EXPECTED.as_ptr().cast(), NOT_EXPECTED.len() as u8);
            [self.cm.rdma_destroy_id(id)]
        };
        complain("refusing a call", &self.adapter, &answers);
    }
}

/// An event of the channel.
enum TakenEvent {
    None,
    /// Something has happened to the connection of this queue, or the call that it expects has come.
    OfQueue(u32),
    /// A call that is not expected.
    Stranger(*mut rdma_cm_id),
    /// Nothing that anybody waits for.
    Other,
}

/// Takes events up to one of a queue, or until there are none, or enough for one look. Calls of strangers are refused without the lock: the
/// library waits for nobody here, but is not to be called with more than needed.
fn look(mut take: impl FnMut() -> TakenEvent, mut turn_away: impl FnMut(*mut rdma_cm_id)) -> Option<u32> {
    let mut strangers = 0;
    for _ in 0..EVENTS_AT_ONCE {
        match take() {
            TakenEvent::None => return None,
            TakenEvent::OfQueue(queue) => return Some(queue),
            TakenEvent::Stranger(id) => {
                turn_away(id);
                strangers += 1;
                if strangers == STRANGERS_AT_ONCE {
                    return None;
                }
            }
            TakenEvent::Other => {}
        }
    }
    None
}

impl Inner {
    /// Somebody has called. Answers for which queue, if anybody expects it.
    fn called(&mut self, id: *mut rdma_cm_id, token: Option<Token>) -> Result<u32, ()> {
        let (Some(token), Some(id)) = (token, NonNull::new(id)) else { return Err(()) };
        let Some(Expected { queue, call: call @ Call::None }) = self.expected.get_mut(&token) else { return Err(()) };
        *call = Call::Came(id);
        let queue = *queue;
        self.connections.insert(id.as_ptr() as usize, Connection { queue, happened: VecDeque::new() });
        Ok(queue)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.maker.is_ancestor() {
            return;
        }
        // Calls that nobody has taken; all others keep the manager.
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let calls = inner.expected.drain().filter_map(|(_, expected)| match expected.call {
            Call::Came(id) => Some(id),
            Call::None | Call::Taken => None,
        });
        for id in calls.chain(self.listener) {
            // SAFETY: nobody else knows it, and its events were acknowledged when they were taken.
            let answer = unsafe { self.cm.rdma_destroy_id(id.as_ptr()) };
            complain("ending the connection manager", &self.adapter, &[answer]);
        }
    }
}

/// What events come through. It goes after all its identifiers.
struct Channel {
    cm: &'static Cm,
    maker: Maker,
    raw: NonNull<rdma_event_channel>,
}

impl Channel {
    fn open(cm: &'static Cm) -> io::Result<Self> {
        // SAFETY: asks nothing of its caller.
        let raw = NonNull::new(unsafe { cm.rdma_create_event_channel() });
        raw.map(|raw| Self { cm, maker: Maker::this_process(), raw }).ok_or_else(io::Error::last_os_error)
    }

    fn descriptor(&self) -> i32 {
        // SAFETY: the channel stands; its descriptor does not change.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.maker.is_ancestor() {
            // SAFETY: all its identifiers are gone, each of which keeps what has the channel.
            unsafe { self.cm.rdma_destroy_event_channel(self.raw.as_ptr()) };
        }
    }
}

/// Device and port that the address of an identifier leads to.
///
/// # Safety
///
/// The identifier stands.
unsafe fn leads_to(id: *mut rdma_cm_id) -> (String, u8) {
    // SAFETY: it stands, as the caller promises. With the address of a device it has a context of that, whose name is a C string.
    unsafe {
        let context = (*id).verbs;
        if context.is_null() {
            return ("no device".to_owned(), 0);
        }
        let name = CStr::from_ptr((*(*context).device).name.as_ptr());
        (name.to_string_lossy().into_owned(), (*id).port_num)
    }
}

/// An identifier of a connection. Dropping it ends the connection, of which the other side hears.
pub(super) struct Id {
    manager: Arc<Manager>,
    id: NonNull<rdma_cm_id>,
}

// SAFETY: every function of the library may be called from any thread.
unsafe impl Send for Id {}

impl Id {
    pub(super) fn get(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// What has happened to it next.
    pub(super) fn next(&self) -> Option<Happened> {
        self.manager.lock().connections.get_mut(&(self.get() as usize))?.happened.pop_front()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.manager.maker.is_ancestor() {
            return;
        }
        // From here on its events are nobody's. None is taken and not acknowledged meanwhile: that is done under the lock.
        self.manager.lock().connections.remove(&(self.get() as usize));
        // SAFETY: it stands, and is used no more.
        let answer = unsafe { self.manager.cm.rdma_destroy_id(self.get()) };
        complain("ending a connection", &self.manager.adapter, &[answer]);
    }
}

/// What a caller has said.
///
/// # Safety
///
/// The words are of an event that was not acknowledged.
unsafe fn said(words: &rdma_conn_param) -> &[u8] {
    if words.private_data.is_null() {
        return &[];
    }
    // SAFETY: the event holds so many bytes there, as the caller promises that it stands.
    unsafe { std::slice::from_raw_parts(words.private_data.cast(), usize::from(words.private_data_len)) }
}

/// What an event means, if it means anything here.
fn happened(event: rdma_cm_event_type, status: i32) -> Option<Happened> {
    Some(match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => Happened::AddressFound,
        RDMA_CM_EVENT_ROUTE_RESOLVED => Happened::WayFound,
        RDMA_CM_EVENT_CONNECT_RESPONSE => Happened::Accepted,
        RDMA_CM_EVENT_ESTABLISHED => Happened::Stands,
        RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => Happened::Failed(CmError::NoWay),
        RDMA_CM_EVENT_UNREACHABLE => Happened::Failed(CmError::Silence),
        RDMA_CM_EVENT_REJECTED => Happened::Failed(match status {
            REFUSED_NOBODY => CmError::NobodyListens,
            REFUSED_BY_US => CmError::NotExpected,
            REFUSED_STALE => CmError::Ended,
            status if status == -libc::ECONNREFUSED => CmError::NobodyListens,
            status => CmError::Other(status),
        }),
        RDMA_CM_EVENT_CONNECT_ERROR => Happened::Failed(CmError::Other(status)),
        RDMA_CM_EVENT_DISCONNECTED => Happened::Failed(CmError::Ended),
        RDMA_CM_EVENT_DEVICE_REMOVAL => Happened::Failed(CmError::CardGone),
        _ => return None,
    })
}

/// The IP address by which the connection manager knows a port: over Ethernet its own, else one of the network device behind it.
fn address_of(pick: &Pick, networks: &[Network]) -> Option<IpAddr> {
    let usable = |address: &[u8; 16]| !is_link_local(address) && *address != [0; 16];
    let behind = |network: &&Network| pick.network.as_ref() == Some(&network.interface) && usable(&network.address);
    let own = networks.iter().find(|network| network.address == pick.gid && usable(&network.address));
    let found = own.or_else(|| networks.iter().find(behind))?;
    Some(Ipv6Addr::from(found.address).to_canonical())
}

/// An address as C has it.
pub(super) struct SockaddrStorage(libc::sockaddr_storage);

impl SockaddrStorage {
    pub(super) fn of(at: SocketAddr) -> Self {
        // SAFETY: all bits zero is an address of no family.
        let mut place: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let to = &raw mut place;
        match at {
            SocketAddr::V4(four) => {
                let four = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: four.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::octets(four.ip())) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage has room for each kind of address, and is aligned for it.
                unsafe { to.cast::<libc::sockaddr_in>().write(four) };
            }
            SocketAddr::V6(six) => {
                let six = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: six.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: six.ip().octets() },
                    sin6_scope_id: 0,
                };
                // SAFETY: as above.
                unsafe { to.cast::<libc::sockaddr_in6>().write(six) };
            }
        }
        Self(place)
    }

    pub(super) fn get(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::GidKind;

    #[test]
    fn a_flood_of_strangers_costs_a_look_no_more_than_a_few_and_hides_no_queue_for_good() {
        let mut waiting: VecDeque<TakenEvent> = (0..10).map(|_| TakenEvent::Stranger(ptr::null_mut())).collect();
        waiting.extend([TakenEvent::Other, TakenEvent::OfQueue(7)]);
        let mut turned_away = 0;
        let mut looks = Vec::new();
        for _ in 0..4 {
            let found = look(|| waiting.pop_front().unwrap_or(TakenEvent::None), |_| turned_away += 1);
            looks.push((found, turned_away));
        }
        assert_eq!(looks, [(None, 4), (None, 8), (Some(7), 10), (None, 10)]);
    }

    #[test]
    fn refusals_and_ends_are_told_apart() {
        let failed = |event, status| match happened(event, status) {
            Some(Happened::Failed(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(RDMA_CM_EVENT_REJECTED, 8), CmError::NobodyListens);
        assert_eq!(failed(RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED), CmError::NobodyListens);
        assert_eq!(failed(RDMA_CM_EVENT_REJECTED, 28), CmError::NotExpected);
        assert_eq!(failed(RDMA_CM_EVENT_REJECTED, 4), CmError::Other(4));
        assert_eq!(failed(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), CmError::Silence);
        assert_eq!(failed(RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV), CmError::NoWay);
        assert_eq!(failed(RDMA_CM_EVENT_DISCONNECTED, 0), CmError::Ended);
        assert_eq!(happened(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0), None);
        assert_eq!(happened(RDMA_CM_EVENT_ADDR_CHANGE, 0), None);
    }

    #[test]
    fn a_port_is_called_by_its_own_address_or_by_one_of_the_network_device_behind_it() {
        let network = |interface: &str, address: &str, bits| Network {
            interface: interface.to_owned(),
            address: match address.parse().unwrap() {
                IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
                IpAddr::V6(six) => six.octets(),
            },
            bits,
        };
        let networks = [
            network("ib0", "fe80::1", 64),
            network("ib0", "10.1.0.5", 120),
            network("eth0", "10.2.0.5", 120),
            network("eth0", "fd00::5", 64),
        ];
        let pick = |gid: &str, behind: &str| Pick {
            device: "mlx5_0".to_owned(),
            port: 1,
            gid_index: 0,
            gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
            kind: GidKind::RoceV2,
            network_bits: 64,
            is_routable: true,
            bandwidth: None,
            node: None,
            network: Some(behind.to_owned()),
        };
        let at = |pick: &Pick| address_of(pick, &networks).map(|address| address.to_string());
        assert_eq!(at(&pick("::ffff:10.2.0.5", "eth0")).as_deref(), Some("10.2.0.5"));
        assert_eq!(at(&pick("fd00::5", "eth0")).as_deref(), Some("fd00::5"));
        // Of InfiniBand the address is none of IP.
        assert_eq!(at(&pick("fe80::2:c903:1", "ib0")).as_deref(), Some("10.1.0.5"));
        assert_eq!(at(&pick("fe80::1", "eth1")), None);
    }

    #[test]
    fn addresses_are_as_c_has_them() {
        let mut four = SockaddrStorage::of("10.77.0.1:258".parse().unwrap());
        // SAFETY: the address stands, and each family's structure has these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(four.get().cast::<u8>(), 8) };
        assert_eq!(bytes[2..], [1, 2, 10, 77, 0, 1]);
        let mut six = SockaddrStorage::of("[fd00::9]:258".parse().unwrap());
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(six.get().cast::<u8>(), 28) };
        assert_eq!((&bytes[2..4], bytes[8], bytes[23]), (&[1, 2][..], 0xfd, 9));
        assert_eq!(bytes[..2], (libc::AF_INET6 as u16).to_ne_bytes());
    }
}
