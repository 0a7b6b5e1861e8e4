//! The two calls that touch bytes. Neither waits, so memory is in the kernel's hands for one call and no longer.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::pieces::IoPieces;

/// Sends as much as there is room for.
pub(super) fn send(fd: BorrowedFd<'_>, pieces: &IoPieces<'_>) -> Result<usize> {
    let more = if pieces.has_more() { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    if pieces.bytes() == 0 {
        return Ok(0);
    }
    // The kernel spends less on one range than on a list of one.
    if let [one] = pieces.vectors() {
        // SAFETY: the range is borrowed by `pieces` until after the call, in bounds by how it was pushed, and only read.
        return again(|| unsafe { libc::send(fd.as_raw_fd(), one.iov_base, one.iov_len, flags) });
    }
    let message = pieces.message();
    // SAFETY: `message` names a list and ranges that `pieces` borrows until after the call; all are only read.
    again(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

/// Receives as much as is there and has room. Nothing is the stream's end.
pub(super) fn receive(fd: BorrowedFd<'_>, pieces: &mut IoPieces<'_>) -> Result<usize> {
    const FLAGS: i32 = libc::MSG_DONTWAIT;
    // Without room the kernel's answer would look like the stream's end.
    if pieces.bytes() == 0 || !pieces.is_writable() {
        return Err(ErrorKind::InvalidInput.into());
    }
    if let [one] = pieces.vectors() {
        // SAFETY: the range is borrowed by `pieces` until after the call, in bounds by how it was pushed, and was
        // checked to be writable; if it is a window's, no Rust reference to its bytes exists.
        return again(|| unsafe { libc::recv(fd.as_raw_fd(), one.iov_base, one.iov_len, FLAGS) });
    }
    let mut message = pieces.message();
    // SAFETY: as above for each range; the list and `message` live until after the call.
    again(|| unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, FLAGS) })
}

/// The answer of a call that a signal may have cut short before anything was done.
fn again(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        let answer = call();
        if let Ok(bytes) = usize::try_from(answer) {
            return Ok(bytes);
        }
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
