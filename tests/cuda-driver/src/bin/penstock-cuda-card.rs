//! The card of the stand-in: a process that executes the queues of a client.
//!
//! It goes on while its client is stopped, as a card does. It executes late, in pieces, and takes streams in an order of its own.
//! Standard input is the socket to the client. Memory that both map comes as the first message's file.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_cuda_driver::protocol::{FROM_DEVICE, Kind, Mapping, Message, Progress, STREAMS_MAX, TO_DEVICE};

/// So much of a copy is done before another stream may be next.
const PIECE_BYTES: u64 = 256 << 10;
/// An idle card looks for messages so often.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Memory by its address at the client.
struct Range {
    bytes: u64,
    /// Where it is here, and behind how many bytes of the mapping; none: in the client alone, which is asked.
    here: Option<(Mapping, usize)>,
}

/// Files are mapped from the beginning of a page.
const PAGE_BYTES: u64 = 4096;

struct Card<'a> {
    client: i32,
    socket: BorrowedFd<'a>,
    progress: &'a Progress,
    device: BTreeMap<u64, Range>,
    host: BTreeMap<u64, Range>,
    streams: Vec<VecDeque<Message>>,
    /// Of the first message of each stream so much is done.
    at: [u64; STREAMS_MAX],
    random: u64,
    /// Nothing is executed before.
    not_before: Instant,
}

fn main() -> io::Result<()> {
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let (first, file) = Message::receive(socket, true)?.ok_or(io::ErrorKind::InvalidData)?;
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let memory = Mapping::new(file.as_fd(), 0, size_of::<Progress>())?;
    // SAFETY: a file of that size, made for this, and mapped for as long as this process is there.
    let progress = unsafe { &*memory.as_ptr().cast::<Progress>() };
    let [client, seed, ..] = first.numbers;
    let mut card = Card {
        client: client as i32,
        socket,
        progress,
        device: BTreeMap::new(),
        host: BTreeMap::new(),
        streams: vec![VecDeque::new(); STREAMS_MAX],
        at: [0; STREAMS_MAX],
        random: seed | 1,
        not_before: Instant::now(),
    };
    loop {
        loop {
            match Message::receive(socket, false) {
                Ok(Some((message, file))) => card.hear(message, file.as_ref().map(AsFd::as_fd))?,
                Ok(None) => break,
                // The client is gone, and what it has queued with it.
                Err(_) => return Ok(()),
            }
        }
        if !card.execute() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Card<'_> {
    fn hear(&mut self, message: Message, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let [a, b, c, _] = message.numbers;
        match message.kind {
            Kind::Memory | Kind::Pin => {
                let offset = if message.kind == Kind::Pin { c } else { 0 };
                let skipped = offset % PAGE_BYTES;
                let map = |file| Mapping::new(file, offset - skipped, (b + skipped) as usize);
                let mapped = match file.map(map) {
                    // Only its owner may write the file; so the owner is asked, as where there is none.
                    Some(Err(_)) if message.kind == Kind::Pin => None,
                    mapped => mapped.transpose()?,
                };
                let here = mapped.map(|mapping| (mapping, skipped as usize));
                let ranges = if message.kind == Kind::Pin { &mut self.host } else { &mut self.device };
                ranges.insert(a, Range { bytes: b, here });
            }
            Kind::Free => _ = self.device.remove(&a),
            Kind::Unpin => _ = self.host.remove(&a),
            Kind::Lose => self.progress.is_lost.store(1, Ordering::Release),
            _ => self.streams[message.stream as usize].push_back(message),
        }
        Ok(())
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
        if self.progress.is_lost.load(Ordering::Relaxed) != 0 || Instant::now() < self.not_before {
            return false;
        }
        let waits = |message: &Message| {
            let [event, use_of_it, ..] = message.numbers;
            message.kind == Kind::Wait && self.progress.events[event as usize].load(Ordering::Acquire) < use_of_it
        };
        let can = |queue: &VecDeque<Message>| queue.front().is_some_and(|first| !waits(first));
        let ready: Vec<usize> = (0..STREAMS_MAX).filter(|&stream| can(&self.streams[stream])).collect();
        if ready.is_empty() {
            return false;
        }
        let random = self.random();
        let stream = ready[random as usize % ready.len()];
        let message = self.streams[stream][0];
        let is_done = self.step(stream, &message);
        if is_done {
            self.streams[stream].pop_front();
            self.at[stream] = 0;
            // What was written is seen by whoever sees this.
            self.progress.done[stream].fetch_add(1, Ordering::Release);
        }
        // Late now and then.
        if random >> 32 & 31 == 0 {
            self.not_before = Instant::now() + Duration::from_micros(random >> 40 & 255);
        }
        true
    }

    fn step(&mut self, stream: usize, message: &Message) -> bool {
        let [a, b, c, d] = message.numbers;
        match message.kind {
            Kind::Copy => {
                let at = self.at[stream];
                let bytes = (c - at).min(PIECE_BYTES);
                let mut between = vec![0u8; bytes as usize];
                self.read(b + at, d & FROM_DEVICE != 0, &mut between);
                self.write(a + at, d & TO_DEVICE != 0, &between);
                self.at[stream] += bytes;
                self.at[stream] == c
            }
            Kind::Word => {
                self.write(a, d & TO_DEVICE != 0, &b.to_ne_bytes());
                true
            }
            Kind::Record => {
                self.progress.events[a as usize].fetch_max(b, Ordering::Release);
                true
            }
            Kind::Call => {
                // A client that is gone is called no more.
                let _ = message.send(self.socket, None);
                true
            }
            _ => true,
        }
    }

    /// Where so many bytes are: here, or in the client alone.
    fn find(&self, address: u64, is_device: bool, bytes: usize) -> Option<*mut u8> {
        let ranges = if is_device { &self.device } else { &self.host };
        let (&base, range) = ranges.range(..=address).next_back()?;
        let offset = address - base;
        let is_inside = offset + bytes as u64 <= range.bytes;
        let (mapping, skipped) = range.here.as_ref().filter(|_| is_inside)?;
        // SAFETY: inside of the mapping.
        Some(unsafe { mapping.as_ptr().add(skipped + offset as usize) })
    }

    fn read(&self, address: u64, is_device: bool, into: &mut [u8]) {
        match self.find(address, is_device, into.len()) {
            // SAFETY: so many bytes are there; nobody here has references to them.
            Some(place) => unsafe { std::ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len()) },
            None => self.ask(address, into.as_mut_ptr(), into.len(), false),
        }
    }

    fn write(&self, address: u64, is_device: bool, from: &[u8]) {
        match self.find(address, is_device, from.len()) {
            // SAFETY: as in `read`.
            Some(place) => match <[u8; 8]>::try_from(from) {
                Ok(word) if place.cast::<AtomicU64>().is_aligned() => {
                    // SAFETY: as in `read`, and aligned. A word is seen whole.
                    let whole = unsafe { &*place.cast::<AtomicU64>() };
                    whole.store(u64::from_ne_bytes(word), Ordering::Release);
                }
                // SAFETY: as in `read`.
                _ => unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place, from.len()) },
            },
            None => self.ask(address, from.as_ptr().cast_mut(), from.len(), true),
        }
    }

    /// Reads or writes memory of the client that no file is of. One that is gone has none.
    fn ask(&self, address: u64, here: *mut u8, bytes: usize, writes: bool) {
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
