//! A driver and its devices in the calling thread alone, for simulations: what streams were given is done piece by piece, when the owner of the
//! model says so, and in the order that it says. Each thread has devices of its own.
//!
//! Functions are called as those of a library would be (`calls`), and take what the other stand-in takes. Beyond that the model watches: memory
//! that is given back under a copy, or named by one after that, is [`wrong`], also where a real device would have written to what is there
//! now. A device that is lost may still do copies that it had, and tells nobody.

mod calls;
mod streams;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use penstock_cuda_sys::{Driver, NotHere};

use crate::status;
use streams::{Copy, Stream, Work};

/// Devices that each thread has.
pub const DEVICES: u32 = 2;
/// Device memory is made in multiples of so many bytes.
const UNIT: usize = 4096;
/// Device addresses begin here, where a process has no memory of its own.
const FIRST_ADDRESS: u64 = 0x7d00_0000_0000_0000;

/// What a stream has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// So many bytes of a copy.
    Bytes(usize),
    /// It has written a word.
    Word(u64),
    /// It has called a function.
    Call,
}

#[derive(Default)]
struct State {
    /// Contexts that the thread has pushed, by the number of their device.
    current: Vec<u32>,
    handles: BTreeMap<u64, Physical>,
    made: u64,
    /// Reserved addresses of devices, by the first.
    ranges: BTreeMap<u64, Range>,
    /// Addresses that were given back: the next range of that length has them.
    given_back: Vec<(u64, usize)>,
    /// Host memory that is registered, with its length.
    host: BTreeMap<u64, u64>,
    streams: BTreeMap<u32, Stream>,
    devices: [Device; DEVICES as usize],
    /// After so many more calls that give a stream something one is answered so.
    refusal: Option<(u32, u32)>,
    wrong: Option<String>,
    bytes: Moved,
}

#[derive(Default, Clone, Copy)]
struct Device {
    is_stopped: bool,
    is_lost: bool,
}

struct Physical {
    device: u32,
    bytes: usize,
}

struct Range {
    bytes: usize,
    /// What is mapped there.
    memory: Option<(u32, Box<[u8]>)>,
}

/// Bytes that were copied so far, by direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    pub to_device: u64,
    pub to_host: u64,
    /// From device memory to device memory.
    pub within: u64,
}

thread_local! {
    static MODEL: RefCell<State> = RefCell::default();
}

fn with<T>(does: impl FnOnce(&mut State) -> T) -> T {
    MODEL.with_borrow_mut(does)
}

/// Has the whole process use this driver, unless another one was opened before. Returns whether it does.
pub fn install() -> Result<bool, NotHere> {
    // SAFETY: its functions do what the manual says, as far as they are called.
    unsafe { Driver::provide("a model of libcuda.so.1", calls::cuGetProcAddress) }
}

/// New devices for this thread. What former ones had is not done any more.
pub fn begin() {
    with(|state| *state = State::default());
}

/// The UUID of a device.
pub fn device(ordinal: u32) -> [u8; 16] {
    let mut uuid = *b"penstock model--";
    uuid[15] = ordinal as u8;
    uuid
}

/// Streams that have something to do, on devices that go on.
pub fn busy() -> Vec<u32> {
    with(|state| {
        let goes_on = |stream: &Stream| !state.devices[stream.device as usize].is_stopped;
        let streams = state.streams.iter().filter(|(_, stream)| !stream.work.is_empty() && goes_on(stream));
        streams.map(|(&number, _)| number).collect()
    })
}

/// Has a stream do a piece of what comes next: of copies that have no order the one of this number, and so many bytes of it.
pub fn work(stream: u32, choice: usize, bytes_max: usize) -> Option<Done> {
    let (done, call) = with(|state| state.work(stream, choice, bytes_max))?;
    if let Some((function, argument)) = call {
        // SAFETY: who gave it promised that it may be called once, by any thread.
        unsafe { function(argument as *mut _) };
    }
    Some(done)
}

/// A device does nothing for a while, or goes on.
pub fn set_stopped(device: u32, is_stopped: bool) {
    with(|state| state.devices[device as usize].is_stopped = is_stopped);
}

/// A device is lost: calls say so, and its streams tell of nothing any more. Copies that they have may still be done.
pub fn lose(device: u32) {
    with(|state| {
        let its = &mut state.devices[device as usize];
        (its.is_lost, its.is_stopped) = (true, false);
        for stream in state.streams.values_mut().filter(|stream| stream.device == device) {
            stream.work.retain(|work| matches!(work, Work::Copies(_)));
        }
    });
}

/// Of the calls that give a stream something this one, counted from the next, does not do so: the launch fails; or, of calls that give copies,
/// one argument is wrong.
pub fn refuse(calls: u32, is_launch: bool) {
    let answer = if is_launch { status::LAUNCH_FAILED } else { status::INVALID_VALUE };
    with(|state| state.refusal = Some((calls, answer)));
}

/// Reads device memory. Returns whether it is there.
pub fn read(address: u64, into: &mut [u8]) -> bool {
    with(|state| state.device_memory(address, into.len()).map(|memory| into.copy_from_slice(memory)).is_some())
}

/// Writes device memory. Returns whether it is there.
pub fn write(address: u64, from: &[u8]) -> bool {
    with(|state| state.device_memory(address, from.len()).map(|memory| memory.copy_from_slice(from)).is_some())
}

/// What was done to memory that a stream had a copy of, or what a copy has done to memory that is not there.
pub fn wrong() -> Option<String> {
    with(|state| state.wrong.clone())
}

/// The stream that has a copy of some of these bytes, or a word to write there.
pub fn has(address: u64, bytes: u64) -> Option<u32> {
    with(|state| state.has(address, bytes))
}

/// Bytes that were copied since [`begin`].
pub fn moved() -> Moved {
    with(|state| state.bytes)
}

impl State {
    /// So many bytes of device memory at this address.
    fn device_memory(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (&base, range) = self.ranges.range_mut(..=address).next_back()?;
        let (_, memory) = range.memory.as_mut()?;
        let first = usize::try_from(address - base).ok()?;
        memory.get_mut(first..first.checked_add(bytes)?)
    }

    /// Whether these are bytes of a device, or of registered host memory; none: of neither.
    fn is_device(&mut self, address: u64, bytes: usize) -> Option<bool> {
        if self.device_memory(address, bytes).is_some() {
            return Some(true);
        }
        let (&base, &len) = self.host.range(..=address).next_back()?;
        (address - base).checked_add(bytes as u64).is_some_and(|end| end <= len).then_some(false)
    }

    /// The device whose context the thread has.
    fn current(&self) -> Result<u32, u32> {
        let device = *self.current.last().ok_or(status::INVALID_CONTEXT)?;
        if self.devices[device as usize].is_lost { Err(status::ECC_UNCORRECTABLE) } else { Ok(device) }
    }

    /// The stream that has something to do with these bytes.
    fn has(&self, address: u64, bytes: u64) -> Option<u32> {
        let touches = |at: u64, len: usize| at < address + bytes && address < at + len as u64;
        let is_of_it = |copy: &Copy| touches(copy.to, copy.bytes) || touches(copy.from, copy.bytes);
        let has_any = |work: &Work| match work {
            Work::Copies(copies) => copies.iter().any(is_of_it),
            Work::Word { to, .. } => touches(*to, 8),
            Work::Call { .. } => false,
        };
        let found = self.streams.iter().find(|(_, stream)| stream.work.iter().any(has_any));
        found.map(|(&number, _)| number)
    }

    /// Memory is given back: no stream may have a copy of it.
    fn check_quiet(&mut self, what: &str, address: u64, bytes: u64) {
        if let Some(number) = self.has(address, bytes) {
            let words = format!("{what} is given back while stream {number} has a copy of it");
            self.wrong.get_or_insert(words);
        }
    }

    fn stream(&mut self, number: u32) -> Result<&mut Stream, u32> {
        let lost = self.devices;
        let stream =
            self.streams.get_mut(&number).filter(|stream| !stream.is_destroyed).ok_or(status::INVALID_HANDLE)?;
        if lost[stream.device as usize].is_lost { Err(status::ECC_UNCORRECTABLE) } else { Ok(stream) }
    }

    /// Gives a stream something to do.
    fn queue(&mut self, stream: u32, work: Work) -> Result<(), u32> {
        let is_copy = matches!(work, Work::Copies(_));
        if let Some((calls, answer)) = self.refusal
            && (is_copy || answer == status::LAUNCH_FAILED)
        {
            self.refusal = calls.checked_sub(1).map(|calls| (calls, answer));
            if calls == 0 {
                return Err(answer);
            }
        }
        self.stream(stream)?.work.push_back(work);
        Ok(())
    }
}

impl Stream {
    fn new(device: u32) -> Self {
        Self { device, work: VecDeque::new(), is_destroyed: false }
    }
}
