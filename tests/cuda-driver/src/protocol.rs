//! What the library and the card tell each other, over a socket and in memory that both map.

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What files of device memory are called.
pub const FILE_NAME: &CStr = c"penstock-card";

/// Streams that there may be at once.
pub const STREAMS_MAX: usize = 256;

/// What is to be done. The first message is a `Pin` of the memory that both map: the client's process, and of the plan the seed, behind how many
/// pieces of work the card is lost, and microseconds that events are late; for the stream GB/s of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A handle of device memory: the number of its file, which comes with it, and its length.
    Memory = 1,
    /// A handle is gone, and the memory with the last of its handles and mappings: the number.
    Free,
    /// It is mapped: address, and the number of the memory.
    Map,
    /// It is not any more: its address.
    Unmap,
    /// Host memory that the card may reach: address, length, offset into a file that comes with it, if it is of one.
    Pin,
    /// It may not any more: its address.
    Unpin,
    /// Into the second from the first: addresses, length, and which of the two are the device's.
    Copy,
    /// Many copies in any order, which come behind it.
    Batch,
    /// A value to an address, which may be the device's.
    Word,
    /// Waits until the value at an address is at least so great: address, value, nothing, and whether it is the device's.
    WaitWord,
    /// A function of the client's and its argument; goes back to it.
    Call,
    /// An event is recorded: it comes when this message is done.
    Record,
    /// Waits until another stream has done so many messages: its number, and how many.
    Wait,
    /// Nothing is done from now on: what is answered then.
    Fail,
}

/// One message. What its numbers are its kind says.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Message {
    pub kind: Kind,
    pub stream: u32,
    pub numbers: [u64; 4],
}

/// A copy of a batch, with the numbers that a copy of its own has.
pub type Entry = [u64; 4];

/// Copies behind one message. A batch of more is several.
pub const ENTRIES_MAX: usize = 1024;

/// What came: a message, its file, and the copies of a batch.
pub struct Received {
    pub message: Message,
    pub file: Option<OwnedFd>,
    pub entries: Vec<Entry>,
}

/// Room for the longest message.
pub struct Inbox(Box<[u64]>);

impl Default for Inbox {
    fn default() -> Self {
        Self(vec![0; (size_of::<Message>() + ENTRIES_MAX * size_of::<Entry>()) / 8].into())
    }
}

impl Kind {
    /// Whether a stream takes only so many of these at once.
    pub fn moves(self) -> bool {
        matches!(self, Self::Copy | Self::Word)
    }
}

/// Flags of the last number of a copy, and of a word.
pub const TO_DEVICE: u64 = 1;
pub const FROM_DEVICE: u64 = 2;

/// What both map: how far streams are.
#[repr(C)]
pub struct Progress {
    /// Of each stream how many of its messages were done.
    pub done: [AtomicU64; STREAMS_MAX],
    /// How many of these were copies and words.
    pub moved: [AtomicU64; STREAMS_MAX],
    /// Not zero: nothing is done any more, and this is answered.
    pub failure: AtomicU32,
    /// So many messages the card has heard.
    pub heard: AtomicU64,
    /// Bytes of device memory that there is.
    pub held: AtomicU64,
}

impl Message {
    /// Sends it, with a file and the copies of a batch. Waits while the other side's queue is full.
    pub fn send(&self, socket: BorrowedFd<'_>, file: Option<BorrowedFd<'_>>, entries: &[Entry]) -> io::Result<()> {
        let mut control = [0u64; 4];
        let part = |base: *const u8, bytes| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: bytes };
        let mut parts =
            [part((&raw const *self).cast(), size_of::<Self>()), part(entries.as_ptr().cast(), size_of_val(entries))];
        // SAFETY: all zeros are a header; what it names is there until the call returns.
        let sent = unsafe {
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
            if let Some(file) = file {
                (header.msg_control, header.msg_controllen) =
                    (control.as_mut_ptr().cast(), libc::CMSG_SPACE(4) as usize);
                let head = libc::CMSG_FIRSTHDR(&raw const header);
                ((*head).cmsg_level, (*head).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
                libc::CMSG_DATA(head).cast::<i32>().write_unaligned(file.as_raw_fd());
            }
            libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
        };
        let bytes = size_of::<Self>() + size_of_val(entries);
        if sent == bytes as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Inbox {
    /// The next message; none: there is none now, or the other side is gone (an error).
    pub fn receive(&mut self, socket: BorrowedFd<'_>, waits: bool) -> io::Result<Option<Received>> {
        const HEAD: usize = size_of::<Message>();
        let mut control = [0u64; 4];
        let mut part = libc::iovec { iov_base: self.0.as_mut_ptr().cast(), iov_len: size_of_val(&*self.0) };
        // SAFETY: as in `send`; a file that comes is owned by nobody else.
        let (got, file) = unsafe {
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
            let flags = libc::MSG_CMSG_CLOEXEC | if waits { 0 } else { libc::MSG_DONTWAIT };
            let got = libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags);
            let head = libc::CMSG_FIRSTHDR(&raw const header);
            let has_file = got > 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS;
            let file = has_file.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<i32>().read_unaligned()));
            (got, file)
        };
        match usize::try_from(got) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) if got >= HEAD => {
                let behind = &self.0[HEAD / 8..got / 8];
                let entries = behind.chunks_exact(4).map(|entry| [entry[0], entry[1], entry[2], entry[3]]).collect();
                // SAFETY: the other side is ours, and sends messages; it is aligned.
                let message = unsafe { self.0.as_ptr().cast::<Message>().read() };
                Ok(Some(Received { message, file, entries }))
            }
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// A shared mapping of a file.
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address range; who reads and writes it does so by raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps so many bytes of a file from an offset on, to be read and written.
    pub fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t)
        };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base: base.cast(), bytes }) }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and nobody has its address any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// The card is no thread of its client's, and the driver's are none: they run wherever there is a processor, and wake in time.
pub fn run_anywhere() {
    // SAFETY: a set of processors is a set of bits, here of all; the calls take that, and numbers.
    unsafe {
        let all: libc::cpu_set_t = std::mem::transmute([0xff_u8; size_of::<libc::cpu_set_t>()]);
        libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}

/// A file in memory of so many bytes.
pub fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    // SAFETY: a C string; what is answered is owned by nobody else.
    unsafe {
        let file = libc::memfd_create(FILE_NAME.as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = OwnedFd::from_raw_fd(file);
        if libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(file)
    }
}
