//! The calls that move packets, with what they say beside the bytes. Everything unsafe of this port is in here.

use std::io::{Error, ErrorKind, Result};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::SocketAddrAny;

/// Runs that one call sends at most. A burst in one run is the common case, and each costs room on the stack.
pub(super) const RUNS_MAX: usize = 16;

/// Packets that lie one behind the other and leave together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PacketRun<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) packets: usize,
    /// Bytes of each but the last, which may be shorter, where the kernel has to cut the run into more than one.
    pub(super) packet_bytes: Option<u16>,
}

/// What has come with one call, at the beginning of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketTrain {
    pub(super) bytes: usize,
    /// Bytes of each but the last, which may be shorter, where the kernel has joined several.
    pub(super) packet_bytes: Option<usize>,
    /// Something of it is missing: the buffer was too small.
    pub(super) is_cut: bool,
}

/// Room for one control message that says how long a packet is: a u16 as the kernel takes it, an int as it tells it.
/// Its first field aligns it as the kernel's macros want it.
#[derive(Clone, Copy)]
#[repr(C)]
struct SegmentControl {
    head: libc::cmsghdr,
    data: [u8; DATA_BYTES],
}

const DATA_BYTES: usize = size_of::<libc::c_int>();

const _: () = {
    // SAFETY: both compute a length from a length.
    let (head, space) = unsafe { (libc::CMSG_LEN(0), libc::CMSG_SPACE(DATA_BYTES as u32)) };
    assert!(mem::offset_of!(SegmentControl, data) == head as usize, "the data are where the kernel looks for them");
    assert!(size_of::<SegmentControl>() == space as usize, "the kernel has all the room that it counts with");
};

impl SegmentControl {
    fn empty() -> Self {
        // SAFETY: a plain structure of numbers, of which zero is one.
        unsafe { mem::zeroed() }
    }

    fn set(&mut self, packet_bytes: u16) {
        let value = packet_bytes.to_ne_bytes();
        // SAFETY: it computes a length from a length.
        let length = unsafe { libc::CMSG_LEN(value.len() as u32) };
        (self.head.cmsg_level, self.head.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        self.head.cmsg_len = length as _;
        self.data[..value.len()].copy_from_slice(&value);
    }

    /// What the kernel has said, if it has filled in so many bytes. Nothing else was asked for, so it is the first
    /// message.
    fn get(&self, filled: usize) -> Option<usize> {
        // SAFETY: it computes a length from a length.
        let length = unsafe { libc::CMSG_LEN(DATA_BYTES as u32) } as usize;
        let is_whole = filled >= length && self.head.cmsg_len >= length as _;
        let is_known = (self.head.cmsg_level, self.head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
        (is_whole && is_known).then(|| usize::try_from(libc::c_int::from_ne_bytes(self.data)).ok())?
    }
}

/// Packets that the kernel dropped before they were received: the buffer was full, or their checksum was wrong. 0 where it does not
/// say.
pub(super) fn drops(socket: BorrowedFd<'_>) -> u64 {
    const DROPS: usize = 8;
    let mut counts = [0_u32; DROPS + 1];
    let mut length = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes at `counts`, which has as many, and how many it wrote at `length`.
    let status = unsafe {
        let (values, length) = (counts.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, values, length)
    };
    if status == 0 { u64::from(counts[DROPS]) } else { 0 }
}

#[cfg(test)]
pub(super) type Kernel = fn(&[PacketRun<'_>]) -> std::result::Result<usize, i32>;

#[cfg(test)]
std::thread_local! {
    /// What the kernel of this thread's tests says: how many of these runs it takes at most, or which error it has.
    pub(super) static KERNEL: std::cell::Cell<Option<Kernel>> = const { std::cell::Cell::new(None) };
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A run as the kernel wants it told. It names all four, which have to be there as long as it is used.
fn message(
    to: &SocketAddrAny,
    run: &PacketRun<'_>,
    control: &mut SegmentControl,
    vector: &mut libc::iovec,
) -> libc::msghdr {
    // SAFETY: a plain structure of numbers and pointers, for which zeros mean: no name, no bytes, no control data.
    let mut head: libc::msghdr = unsafe { mem::zeroed() };
    // The kernel reads the name and the bytes and never writes them, whatever the types of the fields say.
    (head.msg_name, head.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.addr_len());
    *vector = libc::iovec { iov_base: run.bytes.as_ptr().cast_mut().cast(), iov_len: run.bytes.len() };
    (head.msg_iov, head.msg_iovlen) = (&raw mut *vector, 1);
    if let Some(packet_bytes) = run.packet_bytes {
        control.set(packet_bytes);
        head.msg_control = (&raw mut *control).cast();
        head.msg_controllen = size_of::<SegmentControl>() as _;
    }
    head
}

/// Sends runs, of which there are one to [`RUNS_MAX`], without waiting. Returns how many have left: one at least.
pub(super) fn send(socket: BorrowedFd<'_>, to: &SocketAddrAny, runs: &[PacketRun<'_>]) -> Result<usize> {
    #[cfg(test)]
    let runs = match KERNEL.get().map(|kernel| kernel(runs)) {
        Some(Ok(taken)) => &runs[..taken],
        Some(Err(error)) => return Err(Error::from_raw_os_error(error)),
        None => runs,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [run] = runs {
        let (mut control, mut vector) = (SegmentControl::empty(), EMPTY);
        let message = message(to, run, &mut control, &mut vector);
        // SAFETY: as below, of one message.
        again(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })?;
        return Ok(1);
    }
    let mut controls = [SegmentControl::empty(); RUNS_MAX];
    // SAFETY: plain structures of numbers and pointers, for which zeros mean: no name, no bytes, no control data.
    let (mut vectors, mut messages): ([libc::iovec; RUNS_MAX], [libc::mmsghdr; RUNS_MAX]) = unsafe { mem::zeroed() };
    let places = controls.iter_mut().zip(&mut vectors).zip(&mut messages);
    let mut count = 0;
    for (run, ((control, vector), place)) in runs.iter().zip(places) {
        place.msg_hdr = message(to, run, control, vector);
        count += 1;
    }
    // SAFETY: `count` messages are filled in. What they name lives until after the call: the name and the bytes are
    // borrowed by the arguments and only read, the lists and the control data are this function's.
    let sent =
        again(|| unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _) as isize })?;
    if sent == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(sent) }
}

/// Receives one packet, or several that the kernel has joined, without waiting.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<PacketTrain> {
    let mut control = SegmentControl::empty();
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a plain structure of numbers and pointers, for which zeros mean: no name, no bytes, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    let bytes = again(|| {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<SegmentControl>() as _;
        // SAFETY: the list, the control data and `message` are this function's and live until after the call; the
        // buffer is borrowed, writable, and as long as the list says.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) }
    })?;
    let is_cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let packet_bytes = control.get(message.msg_controllen as usize);
    Ok(PacketTrain { bytes, packet_bytes, is_cut })
}

/// From now on the kernel asks this program which packets the socket takes. One that was there before is gone then.
pub(super) fn attach_filter(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| ErrorKind::InvalidInput)?;
    // The kernel reads the program and never writes it, whatever the type of the field says.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (from, length) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the structure is this function's and the instructions are borrowed, as many as it says; both are only read.
    again(|| unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, from, length) as isize
    })?;
    Ok(())
}

/// Sets an option of UDP's own, which is an int.
pub(super) fn set_udp_option(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> Result<()> {
    let (from, length) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value is this function's, as long as is said, and only read.
    again(|| unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, from, length) as isize })?;
    Ok(())
}

/// The answer of a call that a signal may have cut short before anything was done.
fn again(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        let answer = call();
        if let Ok(answer) = usize::try_from(answer) {
            return Ok(answer);
        }
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
