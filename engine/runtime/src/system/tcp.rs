//! TCP sockets: for the control channel and the data streams of sessions between hosts.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// Connections that the kernel keeps until they are accepted; it may keep fewer.
const BACKLOG: i32 = 1024;
/// Unanswered probes after which the kernel gives a silent connection up.
const PROBES: u32 = 3;

fn socket(of: SocketAddr) -> io::Result<std::os::fd::OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?)
}

/// Listens. An address of IPv6 takes nothing of IPv4, the wildcard neither: `0.0.0.0` and `[::]` can stand side by
/// side with the same port, and what is listened at is what was written.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    // A restarted engine takes its port although connections of its last life are still closing.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

pub(super) fn connect(remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(remote)?;
    match rustix::net::connect(&socket, &remote) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// The longest pause between two attempts of the kernel to send the same bytes, the least that it can be told.
const RETRY_WITHIN: Duration = Duration::from_secs(1);

/// Has the kernel probe a quiet connection, and end one whose other end acknowledges nothing for twice so long: the control
/// channel's questions end a session before, and what is lost in an outage that is shorter is sent again after it.
pub(super) fn bound_silence(stream: &TcpStream, bound: Duration) -> io::Result<()> {
    let bound_ms = u32::try_from(2 * bound.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, bound_ms)?;
    // Where the kernel cannot be told, its pauses double, and an outage of 3 s is noticed to be over after up to 6.2 s.
    let _ = penstock_tcp::bound_retries(stream.as_fd(), RETRY_WITHIN);
    // The kernel counts whole seconds and takes up to a few hours.
    let step = Duration::from_secs((bound.as_secs() / u64::from(PROBES + 1)).clamp(1, 7200));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, step)?;
    sockopt::set_tcp_keepintvl(stream, step)?;
    Ok(sockopt::set_tcp_keepcnt(stream, PROBES)?)
}
