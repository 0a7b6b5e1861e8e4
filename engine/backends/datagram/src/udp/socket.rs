//! How the socket is set up, and how long a packet may be on the way to an address.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penstock_datagram::wire::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};

use super::UdpOptions;
use super::call::set_udp_option;

/// Bytes of the headers of IP and UDP.
const IPV4_HEADER_BYTES: usize = 20 + 8;
const IPV6_HEADER_BYTES: usize = 40 + 8;

/// Why no packet can go to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UdpRouteError {
    /// The route's MTU is too small for the datagram protocol.
    #[error(
        "the route to {to} carries UDP payloads of {carries} bytes (MTU {mtu}) and the datagram transport needs \
         {FRAME_BYTES_MIN}: raise the MTU of that route by {} bytes or more, or connect this peer over TCP",
        FRAME_BYTES_MIN - .carries
    )]
    Narrow {
        to: SocketAddr,
        /// Bytes of an IP packet.
        mtu: usize,
        /// Bytes of a UDP payload.
        carries: usize,
    },
    /// The port has an address of the other version of IP.
    #[error(
        "the port is bound to {bound} and cannot reach {to}: bind it to an address of the same version of IP, or to ::"
    )]
    OtherVersion { bound: IpAddr, to: SocketAddr },
}

impl From<UdpRouteError> for io::Error {
    fn from(error: UdpRouteError) -> Self {
        let kind = match error {
            UdpRouteError::Narrow { .. } => ErrorKind::Unsupported,
            UdpRouteError::OtherVersion { .. } => ErrorKind::AddrNotAvailable,
        };
        Self::new(kind, error)
    }
}

/// What the kernel can do with many packets at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offloads {
    /// It cuts what is sent (GSO).
    pub(super) cuts: bool,
    /// It joins what has come (GRO).
    pub(super) joins: bool,
}

impl Offloads {
    pub(super) fn name(self) -> &'static str {
        match (self.cuts, self.joins) {
            (true, true) => "udp, GSO, GRO",
            (true, false) => "udp, GSO",
            (false, true) => "udp, GRO",
            (false, false) => "udp",
        }
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET }
}

fn udp_socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family(ip), SocketType::DGRAM, flags, None)?)
}

/// A bound socket, what its kernel can do, and its address.
pub(super) fn open(options: &UdpOptions) -> io::Result<(OwnedFd, Offloads, SocketAddr)> {
    let socket = udp_socket(options.bind.ip())?;
    if options.bind.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
        // Of a packet to a mapped address IPv4's own option decides, which is set below on the same socket.
        has_option(sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO))?;
    }
    has_option(sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO))?;
    let offloads = if options.segmentation {
        // No length: nothing is cut but where a message says so. A kernel without GSO knows no such option.
        let cuts = set_udp_option(socket.as_fd(), libc::UDP_SEGMENT, 0).is_ok();
        Offloads { cuts, joins: set_udp_option(socket.as_fd(), libc::UDP_GRO, 1).is_ok() }
    } else {
        Offloads { cuts: false, joins: false }
    };
    set_receive_bytes(socket.as_fd(), options.receive_bytes)?;
    set_send_bytes(socket.as_fd(), options.send_bytes)?;
    bind(&socket, &options.bind)?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, offloads, address))
}

/// An option of the version of IP that this socket does not speak has nothing to say here.
fn has_option(set: rustix::io::Result<()>) -> io::Result<()> {
    match set {
        Err(Errno::NOPROTOOPT) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The kernel takes an int, and doubles it.
const BUFFER_BYTES_MAX: usize = (i32::MAX / 2) as usize;

fn set_receive_bytes(socket: BorrowedFd<'_>, wished: usize) -> io::Result<()> {
    // Who may go beyond the host's limit does so only for a size that was asked for: without one, all of the kernel's
    // memory would be allowed.
    let bytes = if wished == 0 { BUFFER_BYTES_MAX } else { wished.min(BUFFER_BYTES_MAX) };
    if wished == 0 || sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(())
}

fn set_send_bytes(socket: BorrowedFd<'_>, wished: usize) -> io::Result<()> {
    let bytes = if wished == 0 { BUFFER_BYTES_MAX } else { wished.min(BUFFER_BYTES_MAX) };
    if wished == 0 || sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// An address as the version of IP says it by which packets to it go.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The longest UDP payload that the route to this address carries, for a socket that is bound to `bound`.
pub(super) fn frame_bytes(bound: SocketAddr, to: SocketAddr) -> io::Result<usize> {
    let (bound, to) = (canonical(bound), canonical(to));
    let serves_both = bound.is_ipv6() && bound.ip().is_unspecified();
    if bound.is_ipv6() != to.is_ipv6() && !serves_both {
        return Err(UdpRouteError::OtherVersion { bound: bound.ip(), to }.into());
    }
    Ok(frame_of(to, route_mtu(bound, to)?)?)
}

/// The kernel tells it of connected sockets only, so that another one is connected for the question.
fn route_mtu(mut bound: SocketAddr, to: SocketAddr) -> io::Result<usize> {
    let socket = udp_socket(to.ip())?;
    if !bound.ip().is_unspecified() {
        // The route may depend on where a packet comes from.
        bound.set_port(0);
        bind(&socket, &bound)?;
    }
    connect(&socket, &to)?;
    let mtu = if to.is_ipv6() { sockopt::ipv6_mtu(&socket)? } else { sockopt::ip_mtu(&socket)? };
    Ok(mtu as usize)
}

/// What is left of a route's MTU for a UDP payload.
pub(super) fn frame_of(to: SocketAddr, mtu: usize) -> Result<usize, UdpRouteError> {
    let carries = mtu.saturating_sub(if to.is_ipv6() { IPV6_HEADER_BYTES } else { IPV4_HEADER_BYTES });
    if carries < FRAME_BYTES_MIN {
        return Err(UdpRouteError::Narrow { to, mtu, carries });
    }
    Ok(carries.min(FRAME_BYTES_MAX))
}
