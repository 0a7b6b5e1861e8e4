//! The floor between hosts: bare blocking calls that carry scattered memory over a socket, and nothing else.
#![allow(unsafe_code, reason = "a floor is the bare call; a copy before it would be measured with it")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use penstock::memory::Window;

/// Vectors that one call takes at most.
pub const VECTORS_MAX: usize = 1024;

/// One set of blocks in a window, ready to be sent or received again and again.
#[derive(Debug)]
pub struct Vectors {
    /// Keeps what the vectors point to.
    window: Window,
    vectors: Vec<libc::iovec>,
    /// Vectors handed to the kernel at once.
    at_once: usize,
}

/// Which way a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Send,
    Receive,
}

impl Vectors {
    /// Prepares spans (offset, length), long before anything is timed. Refused where one lies outside the window.
    pub fn new(window: &Window, spans: impl Iterator<Item = (u64, u64)>, at_once: usize) -> io::Result<Self> {
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "a span lies outside its memory");
        let vectors = spans.filter(|&(_, len)| len > 0).map(|(offset, len)| {
            offset.checked_add(len).filter(|&end| end <= window.len()).ok_or_else(outside)?;
            let place = window.as_ptr().wrapping_add(offset as usize);
            Ok(libc::iovec { iov_base: place.cast(), iov_len: len as usize })
        });
        let vectors = vectors.collect::<io::Result<_>>()?;
        Ok(Self { window: window.clone(), vectors, at_once: at_once.clamp(1, VECTORS_MAX) })
    }

    /// Sends every span, in order. The socket blocks, and its own timeout ends a wait that is too long.
    pub fn send(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.run(&socket, Way::Send)
    }

    /// Receives into every span, in order.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        if !self.window.is_writable() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the memory may not be written"));
        }
        self.run(&socket, Way::Receive)
    }

    fn run(&mut self, socket: &impl AsFd, way: Way) -> io::Result<()> {
        // Of the vector that is next so many bytes are done: the kernel may stop anywhere.
        let (mut next, mut done) = (0, 0);
        while next < self.vectors.len() {
            let upto = self.vectors.len().min(next + self.at_once);
            let whole = self.vectors[next];
            let rest = libc::iovec { iov_base: whole.iov_base.wrapping_byte_add(done), iov_len: whole.iov_len - done };
            self.vectors[next] = rest;
            let called = call(socket, &mut self.vectors[next..upto], way);
            self.vectors[next] = whole;
            done += called?;
            while next < upto && done >= self.vectors[next].iov_len {
                done -= self.vectors[next].iov_len;
                next += 1;
            }
        }
        Ok(())
    }
}

/// One call that moves something.
fn call(socket: &impl AsFd, vectors: &mut [libc::iovec], way: Way) -> io::Result<usize> {
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: all zero is an empty header without a name and without control bytes.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
    loop {
        // SAFETY: the vectors were found inside a window that their owner keeps mapped, and one that is received
        // into may be written; the header lives as long as the call.
        let moved = unsafe {
            match way {
                Way::Send => libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL),
                Way::Receive => libc::recvmsg(socket, &raw mut header, 0),
            }
        };
        match moved {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => return Ok(moved as usize),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Asks for buffers of this size on both ways of a socket; answers what the kernel granted (it doubles what it takes).
pub fn set_buffers(socket: impl AsFd, bytes: u32) -> io::Result<[u32; 2]> {
    let socket = socket.as_fd().as_raw_fd();
    let mut granted = [0; 2];
    for (option, granted) in [libc::SO_SNDBUF, libc::SO_RCVBUF].into_iter().zip(&mut granted) {
        let mut length = size_of::<u32>() as libc::socklen_t;
        // SAFETY: both calls are told of four bytes that live as long as they do, one to read and one to write.
        let refused = unsafe {
            libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const bytes).cast(), length) != 0
                || libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut *granted).cast(), &raw mut length) != 0
        };
        if refused {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(granted)
}

/// Has the kernel cut what is sent over a UDP socket into packets of so many bytes, and join those that come.
pub fn set_segments(socket: impl AsFd, packet_bytes: u32) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    for (option, value) in [(libc::UDP_SEGMENT, packet_bytes), (libc::UDP_GRO, 1)] {
        // SAFETY: it is told of four bytes to read that live as long as the call.
        let status = unsafe {
            let length = size_of::<u32>() as libc::socklen_t;
            libc::setsockopt(socket, libc::SOL_UDP, option, (&raw const value).cast(), length)
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use penstock::HostMemory;

    use super::*;

    fn window(bytes: usize, byte: u8) -> Window {
        HostMemory::from_vec(vec![byte; bytes]).unwrap().window().clone()
    }

    #[test]
    fn scattered_spans_arrive_scattered_however_many_calls_that_takes() {
        let bytes = 8 << 20;
        let (from, to) = (window(bytes, 1), window(bytes, 2));
        let spans = |turned: bool| (0..512).map(move |at| (16 << 10) * if turned { 511 - at } else { at });
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        let spoken = |at: u64| from.write_from(at, &at.to_le_bytes()).unwrap();
        spans(false).for_each(spoken);
        let sending = std::thread::spawn({
            let from = from.clone();
            move || Vectors::new(&from, spans(false).map(|at| (at, 10_000)), 7).unwrap().send(&sender).unwrap()
        });
        let mut vectors = Vectors::new(&to, spans(true).map(|at| (at, 10_000)), 64).unwrap();
        vectors.receive(&receiver).unwrap();
        sending.join().unwrap();
        let mut found = vec![0; bytes];
        to.read_into(0, &mut found).unwrap();
        for (source, place) in spans(false).zip(spans(true)) {
            let (span, between) = found[place as usize..][..16 << 10].split_at(10_000);
            assert_eq!(span[..8], source.to_le_bytes());
            assert!(span[8..].iter().all(|&byte| byte == 1) && between.iter().all(|&byte| byte == 2), "{place}");
        }
        // The other side has closed.
        assert_eq!(vectors.receive(&receiver).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn spans_outside_their_memory_are_refused() {
        for span in [(60, 8), (u64::MAX, 8), (65, 1)] {
            let refused = Vectors::new(&window(64, 0), std::iter::once(span), 64).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{span:?}");
        }
    }
}
