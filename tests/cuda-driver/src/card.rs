//! The client's end of the card: the process that executes, and what this one knows of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::forbidden::note;
use crate::plan::plan;
use crate::protocol::{Entry, Inbox, Kind, Mapping, Message, Progress, STREAMS_MAX, memory_file, run_anywhere};
use crate::status;

/// Copies and words of one stream that may wait: the call blocks then, until the stream moves.
const DEPTH_MAX: u64 = 1021;
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// For which messages to streams the driver has no memory, each kind by its bit, and for which contexts, by [`CONTEXTS`]; and how often it had none.
static SHORT: AtomicU64 = AtomicU64::new(0);
static SHORTAGES: AtomicU64 = AtomicU64::new(0);
/// A call that makes a context current.
pub(crate) const CONTEXTS: u64 = 1;
/// A card that has not heard for so long is none any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// Device memory, or host memory that the card may reach.
pub(crate) struct Range {
    pub(crate) bytes: u64,
    /// Grows with each, whatever its address.
    pub(crate) id: u64,
    /// The number of its file, if one was made for it.
    pub(crate) number: u64,
    /// 0: none yet, 1: may be read, 3: written too.
    pub(crate) rights: u32,
    /// Of a mapping of memory that was made by itself.
    pub(crate) handle: Option<u64>,
    /// The number of its device.
    pub(crate) ordinal: u32,
    /// That file, of memory that is not of a handle.
    pub(crate) file: Option<OwnedFd>,
    /// `SYNC_MEMOPS`, as it was set.
    pub(crate) sync_memops: bool,
}

/// Memory that was made or imported by itself, for as long as it is held or mapped.
pub(crate) struct Handle {
    /// So many releases it takes. At none it is nobody's handle any more.
    pub(crate) holds: u32,
    pub(crate) mappings: u32,
    pub(crate) file: OwnedFd,
    /// The number of that file.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) exports: bool,
    pub(crate) gpudirect: bool,
    pub(crate) ordinal: u32,
}

/// An event, and the place in a stream that it was recorded at last.
pub(crate) struct Event {
    /// The number of the device whose context it is of.
    pub(crate) ordinal: u32,
    /// The stream, and how many messages that has done when the event has come. None: it was never recorded.
    pub(crate) recorded: Option<(u32, u64)>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) device: BTreeMap<u64, Range>,
    pub(crate) host: BTreeMap<u64, Range>,
    /// Addresses of memory that was freed, which are used again as a driver does, and their bytes.
    pub(crate) freed: Vec<(u64, u64)>,
    /// Addresses that may be mapped: base and bytes.
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) handles: BTreeMap<u64, Handle>,
    /// Of each stream that there is how many messages it was given.
    pub(crate) streams: BTreeMap<u32, u64>,
    /// How many of these were copies and words, whatever has become of the stream.
    pub(crate) moved: BTreeMap<u32, u64>,
    /// Of each stream that was destroyed with work left, which is done, how many messages it was given.
    pub(crate) destroyed_streams: BTreeMap<u32, u64>,
    /// Of each stream that there is the number of the device whose context it is of.
    pub(crate) stream_ordinals: BTreeMap<u32, u32>,
    /// Default streams, which are made when they are used first: of a device the legacy one, and one for each thread.
    pub(crate) default_streams: BTreeMap<(u32, Option<u64>), u32>,
    /// Streams whose work goes into a graph and is not done.
    pub(crate) captured: BTreeSet<u32>,
    pub(crate) events: BTreeMap<u64, Event>,
    last_event: u64,
    last_id: u64,
    last_handle: u64,
}

pub(crate) struct Client {
    socket: OwnedFd,
    progress: Mapping,
    state: Mutex<State>,
    /// So many messages the card was sent.
    told: AtomicU64,
    /// So often a stream was given something, and device memory was asked for.
    given: AtomicU64,
    asked: AtomicU64,
}

/// The card of this process, started at the first call. A failure is the answer to all calls after it.
pub(crate) fn client() -> Result<&'static Client, u32> {
    let client = client_of_failed()?;
    match client.failure() {
        0 => Ok(client),
        failure => Err(failure),
    }
}

/// The same for calls that go on after a failure.
pub(crate) fn client_of_failed() -> Result<&'static Client, u32> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    CLIENT.get_or_init(|| Client::start().ok()).as_ref().ok_or(status::UNKNOWN)
}

/// For these calls the driver has no memory from now on. Answers how often it has had none so far.
pub(crate) fn fall_short(calls: u64) -> u64 {
    SHORT.store(calls, Ordering::Relaxed);
    SHORTAGES.load(Ordering::Relaxed)
}

/// Whether it has memory for such a call.
pub(crate) fn check_short(call: u64) -> Result<(), u32> {
    if SHORT.load(Ordering::Relaxed) & call == 0 {
        return Ok(());
    }
    SHORTAGES.fetch_add(1, Ordering::Relaxed);
    Err(status::OUT_OF_MEMORY)
}

/// The program of the card: beside this library, or one folder above.
fn program() -> Option<PathBuf> {
    // SAFETY: all zeros are such a structure, and this is an address in this library.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(client as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        PathBuf::from(std::ffi::CStr::from_ptr(info.dli_fname).to_str().ok()?)
    };
    path.ancestors().skip(1).take(2).map(|folder| folder.join("penstock-cuda-card")).find(|program| program.exists())
}

impl Client {
    fn start() -> std::io::Result<Self> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors, which nobody else owns.
        let [socket, other] = unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            ends.map(|end: c_int| OwnedFd::from_raw_fd(end))
        };
        let program = program().ok_or(std::io::ErrorKind::NotFound)?;
        // It ends when this process does, and nobody waits for it before.
        let card = Command::new(program).stdin(Stdio::from(other)).stdout(Stdio::null()).spawn()?;
        // It reads and writes memory of this process, where the system lets only ancestors do that otherwise.
        // SAFETY: it takes numbers.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(card.id())) };
        let file = memory_file(size_of::<Progress>())?;
        let progress = Mapping::new(file.as_fd(), 0, size_of::<Progress>())?;
        let numbers = [u64::from(std::process::id()), plan().seed, plan().lost_after, plan().events_late];
        Message { kind: Kind::Pin, stream: plan().bus as u32, numbers }.send(
            socket.as_fd(),
            Some(file.as_fd()),
            &[],
        )?;
        let heard = socket.try_clone()?;
        std::thread::Builder::new().name("cuda-call".to_owned()).spawn(move || call_functions(&heard))?;
        let [told, given, asked] = [0; 3].map(AtomicU64::new);
        Ok(Self { socket, progress, state: Mutex::default(), told, given, asked })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a stream how many messages were done.
    pub(crate) fn done(&self, stream: u32) -> u64 {
        self.progress().done[stream as usize].load(Ordering::Acquire)
    }

    pub(crate) fn progress(&self) -> &Progress {
        // SAFETY: it was mapped with that size, and stays.
        unsafe { &*self.progress.as_ptr().cast::<Progress>() }
    }

    /// What everything is answered with from now on; 0: nothing has failed.
    pub(crate) fn failure(&self) -> u32 {
        self.progress().failure.load(Ordering::Acquire)
    }

    /// The card does nothing from now on, and this process knows it before anything else is asked of it.
    pub(crate) fn fail(&self, status: u32) {
        if self.tell_failure(status) {
            let _ = self.wait_until_heard();
        }
    }

    /// The same, without waiting for the card. Answers whether it was told.
    pub(crate) fn tell_failure(&self, status: u32) -> bool {
        self.tell(Kind::Fail, [u64::from(status), 0, 0, 0], None).is_ok()
    }

    /// How often streams were given something.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    fn send(&self, message: Message, file: Option<&OwnedFd>, entries: &[Entry]) -> Result<(), u32> {
        self.told.fetch_add(1, Ordering::Relaxed);
        message.send(self.socket.as_fd(), file.map(AsFd::as_fd), entries).map_err(|_| status::UNKNOWN)
    }

    /// Tells the card something that concerns no stream.
    pub(crate) fn tell(&self, kind: Kind, numbers: [u64; 4], file: Option<&OwnedFd>) -> Result<(), u32> {
        self.send(Message { kind, stream: 0, numbers }, file, &[])
    }

    /// Gives the card a handle of the memory of a file. Answers with its number and length.
    pub(crate) fn tell_memory(&self, file: &OwnedFd) -> Result<(u64, u64), u32> {
        let of = file.try_clone().and_then(|file| File::from(file).metadata()).map_err(|_| status::UNKNOWN)?;
        self.tell(Kind::Memory, [of.ino(), of.len(), 0, 0], Some(file))?;
        Ok((of.ino(), of.len()))
    }

    fn wait_until_heard(&self) -> Result<(), u32> {
        let (told, end) = (self.told.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while self.progress().heard.load(Ordering::Acquire) < told {
            if Instant::now() > end {
                return Err(status::UNKNOWN);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Whether more device memory may be had, as far as the plan goes.
    pub(crate) fn check_memory(&self) -> Result<(), u32> {
        let is_refused = self.asked.fetch_add(1, Ordering::Relaxed) + 1 == plan().memory_fails;
        if is_refused { Err(status::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Bytes of device memory that there is, as the card has it.
    pub(crate) fn held(&self) -> Result<u64, u32> {
        self.wait_until_heard()?;
        Ok(self.progress().held.load(Ordering::Acquire))
    }

    /// Gives a stream something to do. Blocks while it has as much as it may.
    pub(crate) fn queue(&self, stream: u32, kind: Kind, numbers: [u64; 4]) -> Result<(), u32> {
        self.queue_with(stream, kind, numbers, &[]).map(drop)
    }

    /// The same with the copies of a batch. Returns how many messages the stream has done when this one is done.
    pub(crate) fn queue_with(&self, stream: u32, kind: Kind, numbers: [u64; 4], entries: &[Entry]) -> Result<u64, u32> {
        check_short(1 << kind as u64)?;
        if self.given.fetch_add(1, Ordering::Relaxed) + 1 == plan().launch_fails {
            self.fail(status::LAUNCH_FAILED);
        }
        let mut state = self.lock();
        let given = loop {
            if self.failure() != 0 {
                return Err(self.failure());
            }
            let given = *state.streams.get(&stream).ok_or(status::INVALID_HANDLE)?;
            if state.captured.contains(&stream) {
                note("work given to a stream that is captured");
                return Err(status::NOT_SUPPORTED);
            }
            let moved = self.progress().moved[stream as usize].load(Ordering::Acquire);
            if !kind.moves() || state.moved.get(&stream).unwrap_or(&0) - moved < DEPTH_MAX {
                break given;
            }
            drop(state);
            std::thread::sleep(LOOK_EVERY);
            state = self.lock();
        };
        // Under the lock, so that a stream has its messages in the order of their numbers.
        self.send(Message { kind, stream, numbers }, None, entries)?;
        state.streams.insert(stream, given + 1);
        *state.moved.entry(stream).or_default() += u64::from(kind.moves());
        Ok(given + 1)
    }
}

/// Calls functions of this process when streams have come so far, on a thread of the driver's.
fn call_functions(socket: &OwnedFd) {
    run_anywhere();
    let mut inbox = Inbox::default();
    while let Ok(received) = inbox.receive(socket.as_fd(), true) {
        let Some(Message { kind: Kind::Call, numbers: [function, argument, ..], .. }) = received.map(|of| of.message)
        else {
            continue;
        };
        // SAFETY: `cuLaunchHostFunc` was given a function of this type.
        unsafe {
            let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function as usize);
            function(argument as *mut c_void);
        }
    }
}

impl State {
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// A handle that somebody holds.
    pub(crate) fn handle(&mut self, handle: u64) -> Result<&mut Handle, u32> {
        self.handles.get_mut(&handle).filter(|of| of.holds > 0).ok_or(status::INVALID_VALUE)
    }

    /// What is neither held nor mapped is gone.
    pub(crate) fn drop_unused(&mut self, handle: u64) {
        self.handles.retain(|&number, of| number != handle || of.holds > 0 || of.mappings > 0);
    }

    pub(crate) fn add_handle(&mut self, handle: Handle) -> u64 {
        self.last_handle += 1;
        self.handles.insert(self.last_handle, handle);
        self.last_handle
    }

    /// The reservation that an address is in: base and bytes.
    pub(crate) fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let (&base, &bytes) = self.reserved.range(..=address).next_back()?;
        (address < base + bytes).then_some((base, bytes))
    }

    /// Whether all of these bytes are device memory to which the card has these rights. Mappings may lie behind each other.
    pub(crate) fn is_device(&self, address: u64, bytes: u64, rights: u32) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            let Some((base, range)) = Self::find(&self.device, at, 1) else { return false };
            let is_whole = at == address && end <= base + range.bytes;
            if range.rights & rights != rights || (range.handle.is_none() && !is_whole) {
                return false;
            }
            at = base + range.bytes;
        }
        true
    }

    /// The range that has all of these bytes, with its base.
    pub(crate) fn find(ranges: &BTreeMap<u64, Range>, address: u64, bytes: u64) -> Option<(u64, &Range)> {
        let (&base, range) = ranges.range(..=address).next_back()?;
        let is_inside = address.checked_add(bytes).is_some_and(|end| end <= base + range.bytes);
        (is_inside && address < base + range.bytes).then_some((base, range))
    }

    pub(crate) fn free_stream(&self) -> Option<u32> {
        let is_free = |stream: &u32| !self.streams.contains_key(stream) && !self.destroyed_streams.contains_key(stream);
        (0..STREAMS_MAX as u32).find(is_free)
    }

    /// The number of a new event. None is used again, so that one that was destroyed is known as such.
    pub(crate) fn add_event(&mut self, ordinal: u32) -> u64 {
        self.last_event += 1;
        self.events.insert(self.last_event, Event { ordinal, recorded: None });
        self.last_event
    }
}
