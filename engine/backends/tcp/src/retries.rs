//! How long the kernel waits between two attempts to send the same bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Option of TCP sockets since Linux 6.15, in milliseconds, from one second to two minutes.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Bounds the pause between two attempts of the kernel to send what was not acknowledged. Without a bound it doubles each time, up to two
/// minutes, so that a connection notices the end of an outage up to as long after it as the outage lasted. An error where the kernel does not
/// know the option.
pub fn bound_retries(stream: BorrowedFd<'_>, pause: Duration) -> io::Result<()> {
    let millis = libc::c_uint::try_from(pause.as_millis()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads as many bytes of `millis` as it is told that there are.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const millis).cast(),
            size_of_val(&millis) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_tcp_socket_takes_the_bound_or_the_kernel_does_not_know_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        match bound_retries(stream.as_fd(), Duration::from_secs(1)) {
            Ok(()) => assert!(bound_retries(stream.as_fd(), Duration::ZERO).is_err(), "less than a second is refused"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}"),
        }
    }

    #[test]
    fn what_is_no_tcp_socket_has_no_such_pause() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(bound_retries(file.as_fd(), Duration::from_secs(1)).is_err());
    }
}
