//! The card of the stand-in: a process that executes the queues of a client.
//!
//! It goes on while its client is stopped, as a card does. It executes late, in pieces, and takes streams in an order of its own.
//! Standard input is the socket to the client. Memory that both map comes as the first message's file.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_cuda_driver::protocol::{
    Entry, FROM_DEVICE, Inbox, Kind, Mapping, Message, Progress, Received, STREAMS_MAX, TO_DEVICE, run_anywhere,
};

/// So much of a copy is done before another stream may be next.
const PIECE_BYTES: u64 = 256 << 10;
/// What waits for something else than a message is looked at so often.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Memory by its address at the client.
struct Range {
    bytes: u64,
    /// Where it is here, and behind how many bytes of the mapping; none: in the client alone, which is asked.
    here: Option<(Mapping, usize)>,
    /// Of device memory its number.
    number: u64,
}

/// Device memory: there for as long as it has a handle or is mapped.
struct Memory {
    file: OwnedFd,
    bytes: u64,
    handles: u32,
    mappings: u32,
}

/// What an address of a device that has no memory there is answered with, as the driver numbers it.
const ILLEGAL_ADDRESS: u32 = 700;
/// The answer of a card that is lost.
const ECC_UNCORRECTABLE: u32 = 214;

/// Files are mapped from the beginning of a page.
const PAGE_BYTES: u64 = 4096;

/// What a stream is to do: a message, and the copies of a batch.
struct Work {
    message: Message,
    entries: Vec<Entry>,
    /// A copy that only takes time is over then.
    over_at: Instant,
}

struct Card<'a> {
    client: i32,
    socket: BorrowedFd<'a>,
    progress: &'a Progress,
    memory: BTreeMap<u64, Memory>,
    device: BTreeMap<u64, Range>,
    host: BTreeMap<u64, Range>,
    streams: Vec<VecDeque<Work>>,
    /// Of the first copy of each stream so much is done.
    at: [u64; STREAMS_MAX],
    random: u64,
    /// Nothing is executed before.
    not_before: Instant,
    /// It is lost when so much more has been done; none: never.
    work_left: Option<u64>,
    /// Events come so long after the last work of their stream, which was done then.
    events_late: Duration,
    worked: [Instant; STREAMS_MAX],
    /// GB/s at which copies take time, and move nothing; 0: they are done.
    bus: u64,
}

fn main() -> io::Result<()> {
    run_anywhere();
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let mut inbox = Inbox::default();
    let Received { message: first, file, .. } = inbox.receive(socket, true)?.ok_or(io::ErrorKind::InvalidData)?;
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let memory = Mapping::new(file.as_fd(), 0, size_of::<Progress>())?;
    // SAFETY: a file of that size, made for this, and mapped for as long as this process is there.
    let progress = unsafe { &*memory.as_ptr().cast::<Progress>() };
    let [client, seed, lost_after, events_late] = first.numbers;
    let mut card = Card {
        client: client as i32,
        socket,
        progress,
        memory: BTreeMap::new(),
        device: BTreeMap::new(),
        host: BTreeMap::new(),
        streams: (0..STREAMS_MAX).map(|_| VecDeque::new()).collect(),
        at: [0; STREAMS_MAX],
        random: seed,
        not_before: Instant::now(),
        work_left: (lost_after > 0).then_some(lost_after),
        events_late: Duration::from_micros(events_late),
        worked: [Instant::now(); STREAMS_MAX],
        bus: u64::from(first.stream),
    };
    loop {
        loop {
            match inbox.receive(socket, false) {
                Ok(Some(received)) => {
                    card.hear(received)?;
                    progress.heard.fetch_add(1, Ordering::Release);
                }
                Ok(None) => break,
                // The client is gone, and what it has queued with it.
                Err(_) => return Ok(()),
            }
        }
        if !card.execute() {
            card.rest();
        }
    }
}

impl Card<'_> {
    /// Until something comes, or what waits may go on.
    fn rest(&self) {
        let mut socket = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let first = self.streams.iter().filter_map(|stream| stream.front()).map(|first| first.over_at).min();
        let look_in = first.map_or(LOOK_EVERY, |first| first.saturating_duration_since(Instant::now()).max(LOOK_EVERY));
        let look_soon = libc::timespec { tv_sec: look_in.as_secs() as i64, tv_nsec: look_in.subsec_nanos().into() };
        let limit = if first.is_some() { &raw const look_soon } else { std::ptr::null() };
        // SAFETY: one descriptor, and a time or none.
        unsafe { libc::ppoll(&raw mut socket, 1, limit, std::ptr::null()) };
    }

    fn hear(&mut self, Received { message, file, mut entries }: Received) -> io::Result<()> {
        let [a, b, c, _] = message.numbers;
        match message.kind {
            Kind::Memory => {
                let file = file.ok_or(io::ErrorKind::InvalidData)?;
                let held = &self.progress.held;
                let memory = self.memory.entry(a).or_insert_with(|| {
                    held.fetch_add(b, Ordering::Release);
                    Memory { file, bytes: b, handles: 0, mappings: 0 }
                });
                memory.handles += 1;
            }
            Kind::Free => self.drop_memory(a, |memory| memory.handles -= 1),
            Kind::Map => {
                let memory = self.memory.get_mut(&b).ok_or(io::ErrorKind::InvalidData)?;
                let mapping = Mapping::new(memory.file.as_fd(), 0, memory.bytes as usize)?;
                memory.mappings += 1;
                self.device.insert(a, Range { bytes: memory.bytes, here: Some((mapping, 0)), number: b });
            }
            Kind::Unmap => {
                if let Some(range) = self.device.remove(&a) {
                    self.drop_memory(range.number, |memory| memory.mappings -= 1);
                }
            }
            Kind::Pin => {
                let skipped = c % PAGE_BYTES;
                let map = |file: OwnedFd| Mapping::new(file.as_fd(), c - skipped, (b + skipped) as usize);
                // Of a file that only its owner may write the owner is asked, as where there is none.
                let here = file.and_then(|file| map(file).ok()).map(|mapping| (mapping, skipped as usize));
                self.host.insert(a, Range { bytes: b, here, number: 0 });
            }
            Kind::Unpin => _ = self.host.remove(&a),
            Kind::Fail => self.fail(a as u32),
            _ => {
                self.shuffle(&mut entries);
                let over_at = self.over_at(&message, &entries);
                self.streams[message.stream as usize].push_back(Work { message, entries, over_at });
            }
        }
        Ok(())
    }

    /// When a copy that only takes time is over: its stream does one after the other.
    fn over_at(&self, message: &Message, entries: &[Entry]) -> Instant {
        let now = Instant::now();
        let bytes = match message.kind {
            Kind::Copy => message.numbers[2],
            Kind::Batch => entries.iter().map(|[_, _, bytes, _]| bytes).sum(),
            _ => 0,
        };
        let begins_at = self.streams[message.stream as usize].back().map_or(now, |last| last.over_at.max(now));
        begins_at + Duration::from_nanos(bytes.checked_div(self.bus).unwrap_or(0))
    }

    /// The copies of a batch come in an order of this card's, the last one first.
    fn shuffle(&mut self, entries: &mut [Entry]) {
        match self.is_prompt() {
            true => entries.reverse(),
            false => (1..entries.len()).rev().for_each(|last| entries.swap(last, self.random() as usize % (last + 1))),
        }
    }

    /// A handle or a mapping of memory is gone, and the memory with the last of them.
    fn drop_memory(&mut self, number: u64, drop_one: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(&number) else { return };
        drop_one(memory);
        if memory.handles == 0 && memory.mappings == 0 {
            self.progress.held.fetch_sub(memory.bytes, Ordering::Release);
            self.memory.remove(&number);
        }
    }

    /// Nothing is done from now on. The first failure is the one that is answered.
    fn fail(&self, status: u32) {
        let _ = self.progress.failure.compare_exchange(0, status, Ordering::Release, Ordering::Relaxed);
    }

    /// Nothing is late, and everything in its order.
    fn is_prompt(&self) -> bool {
        self.random == 0
    }

    fn random(&mut self) -> u64 {
        // One of Marsaglia's generators.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Does a piece of the first message of some stream. False: there is none that could be done now.
    fn execute(&mut self) -> bool {
        if self.progress.failure.load(Ordering::Relaxed) != 0 || Instant::now() < self.not_before {
            return false;
        }
        let waits = |stream: usize, message: &Message| match (message.kind, message.numbers) {
            (Kind::Wait, [other, count, ..]) => self.progress.done[other as usize].load(Ordering::Acquire) < count,
            (Kind::WaitWord, [at, value, _, flags]) => {
                let mut word = [0; 8];
                self.read((at, flags & FROM_DEVICE != 0), &mut word);
                u64::from_ne_bytes(word) < value
            }
            (Kind::Record, _) => self.worked[stream].elapsed() < self.events_late,
            _ => false,
        };
        let now = Instant::now();
        let can = |stream: usize| {
            self.streams[stream].front().is_some_and(|first| first.over_at <= now && !waits(stream, &first.message))
        };
        let ready: Vec<usize> = (0..STREAMS_MAX).filter(|&stream| can(stream)).collect();
        if ready.is_empty() {
            return false;
        }
        let random = self.random();
        let stream = ready[random as usize % ready.len()];
        let is_done = self.step(stream);
        // What failed is never done.
        let moves = self.streams[stream][0].message.kind.moves();
        if is_done && self.progress.failure.load(Ordering::Relaxed) == 0 {
            self.streams[stream].pop_front();
            // What was written is seen by whoever sees this.
            self.progress.done[stream].fetch_add(1, Ordering::Release);
            self.progress.moved[stream].fetch_add(u64::from(moves), Ordering::Release);
            self.worked[stream] = Instant::now();
            self.work_left = self.work_left.map(|left| left - 1);
            if self.work_left == Some(0) {
                self.fail(ECC_UNCORRECTABLE);
            }
        }
        // Late now and then.
        if random >> 32 & 31 == 0 && !self.is_prompt() {
            self.not_before = Instant::now() + Duration::from_micros(random >> 40 & 255);
        }
        true
    }

    /// Does a piece of the first work of a stream. True: that was the last.
    fn step(&mut self, stream: usize) -> bool {
        let Work { message, entries, .. } = &self.streams[stream][0];
        let [a, b, _, d] = message.numbers;
        match message.kind {
            Kind::Copy | Kind::Batch if self.bus > 0 => true,
            Kind::Copy => self.copy(stream, message.numbers),
            Kind::Batch => {
                let entry = *entries.last().expect("a batch has a copy that is not done");
                if self.copy(stream, entry) {
                    self.streams[stream][0].entries.pop();
                }
                self.streams[stream][0].entries.is_empty()
            }
            Kind::Word => {
                self.write((a, d & TO_DEVICE != 0), &b.to_ne_bytes());
                true
            }
            Kind::Call => {
                // A client that is gone is called no more.
                let _ = message.send(self.socket, None, &[]);
                true
            }
            _ => true,
        }
    }

    /// Does a piece of the copy that a stream is at. True: that was the last.
    fn copy(&mut self, stream: usize, [to, from, bytes, flags]: Entry) -> bool {
        let at = self.at[stream];
        let (to, from) = ((to + at, flags & TO_DEVICE != 0), (from + at, flags & FROM_DEVICE != 0));
        let piece = (bytes - at).min(PIECE_BYTES).min(self.room(to)).min(self.room(from));
        match (self.find(from), self.find(to)) {
            // SAFETY: so many bytes are at both, which may be the same; nobody here has references to them.
            (Some(from), Some(to)) => unsafe { std::ptr::copy(from, to, piece as usize) },
            (Some(from), None) => self.ask(to, from, piece as usize, true),
            (None, Some(to)) => self.ask(from, to, piece as usize, false),
            (None, None) => {
                let mut between = vec![0u8; piece as usize];
                self.read(from, &mut between);
                self.write(to, &between);
            }
        }
        let is_done = at + piece == bytes;
        self.at[stream] = if is_done { 0 } else { at + piece };
        is_done
    }

    /// The range that an address is in, whether of the device or the host's, and how many bytes are before it.
    fn range(&self, (address, is_device): (u64, bool)) -> Option<(&Range, u64)> {
        let ranges = if is_device { &self.device } else { &self.host };
        let (&base, range) = ranges.range(..=address).next_back()?;
        (address < base + range.bytes).then_some((range, address - base))
    }

    /// So many bytes are in one piece from an address on.
    fn room(&self, place: (u64, bool)) -> u64 {
        self.range(place).map_or(u64::MAX, |(range, before)| range.bytes - before)
    }

    /// Where an address is here; none: in the client alone.
    fn find(&self, place: (u64, bool)) -> Option<*mut u8> {
        let (range, before) = self.range(place)?;
        let (mapping, skipped) = range.here.as_ref()?;
        // SAFETY: inside of the mapping.
        Some(unsafe { mapping.as_ptr().add(skipped + before as usize) })
    }

    fn read(&self, place: (u64, bool), into: &mut [u8]) {
        match self.find(place) {
            // SAFETY: so many bytes are there; nobody here has references to them.
            Some(here) => unsafe { std::ptr::copy_nonoverlapping(here, into.as_mut_ptr(), into.len()) },
            None => self.ask(place, into.as_mut_ptr(), into.len(), false),
        }
    }

    fn write(&self, place: (u64, bool), from: &[u8]) {
        match self.find(place) {
            // SAFETY: as in `read`.
            Some(here) => match <[u8; 8]>::try_from(from) {
                Ok(word) if here.cast::<AtomicU64>().is_aligned() => {
                    // SAFETY: as in `read`, and aligned. A word is seen whole.
                    let whole = unsafe { &*here.cast::<AtomicU64>() };
                    whole.store(u64::from_ne_bytes(word), Ordering::Release);
                }
                // SAFETY: as in `read`.
                _ => unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), here, from.len()) },
            },
            None => self.ask(place, from.as_ptr().cast_mut(), from.len(), true),
        }
    }

    /// Reads or writes memory of the client that no file is of. One that is gone has none. The device has none that is not here.
    fn ask(&self, (address, is_device): (u64, bool), here: *mut u8, bytes: usize, writes: bool) {
        if is_device {
            return self.fail(ILLEGAL_ADDRESS);
        }
        let own = libc::iovec { iov_base: here.cast(), iov_len: bytes };
        let its = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
        // SAFETY: so many bytes are here; what is there the kernel checks.
        unsafe {
            match writes {
                true => libc::process_vm_writev(self.client, &raw const own, 1, &raw const its, 1, 0),
                false => libc::process_vm_readv(self.client, &raw const own, 1, &raw const its, 1, 0),
            }
        };
    }
}
