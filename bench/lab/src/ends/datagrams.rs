//! The floor of what carries its own packets between hosts: one bare UDP socket on each side, or one bare queue of DPDK, over which blocks
//! go from pool to pool in frames, gathered and scattered with one copy each. No engine takes part: the ends lend their pools and their
//! processes.
//!
//! The receiver knows where everything goes, so a frame has nothing but its number beside its bytes. The sender has so much under way
//! as the receiver has room for, and hears after each call of the receiver how much has come. Nothing is sent again: within a host
//! nothing is lost that has room.

mod queue;
mod socket;

use std::time::{Duration, Instant};

use penstock::{Span, Window};
use serde::{Deserialize, Serialize};

use self::queue::BareQueue;
use self::socket::BareSocket;
use super::Ends;
use super::end::End;
use super::memif::Memif;
use super::stream::Streamed;
use super::wire::{Command, Reply};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::{clock, nanos};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at a socket between two looks at the clock.
const LOOKS: u32 = 1 << 12;
/// The number of a frame, and of its round.
const HEAD_BYTES: usize = 8;

/// What carries bare frames from one end to the other.
trait BareCarrier {
    /// Frames that leave together at most.
    fn burst(&self) -> usize;

    /// Frames that may be under way.
    fn window(&self) -> usize;

    /// Sends so many frames, of which `write` writes each and answers its length. Answers whether there was room for them.
    fn send(&mut self, frames: usize, write: &mut dyn FnMut(usize, &mut [u8]) -> usize) -> Result<bool, LabError>;

    /// Passes on the frames that have come, and answers whether there were any. Does not wait.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<bool, LabError>;
}

/// What the other process is asked to do with its end of the sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatagramCommand {
    /// Open a socket for frames of so many bytes from this port of this host, and say at which port it is.
    Open {
        /// The sender's.
        port: u16,
        /// Bytes of a frame, its head included.
        frame_bytes: usize,
    },
    /// Open the other end of a memif.
    OpenMemif(Memif),
    /// Learn where the blocks of each set go.
    Deal(LayoutSpec),
    /// Send back so many frames of so many bytes, one by one.
    Return {
        /// As many as the initiator sends.
        rounds: u32,
        /// The bytes of each, its head included.
        bytes: usize,
    },
    /// Receive every frame of one set.
    Take {
        /// The set, counted from 0 in the order of the layout.
        set: usize,
        /// The number of the round.
        round: u32,
    },
}

/// One side's carrier, and the blocks of each set on this side.
struct Side {
    carrier: Box<dyn BareCarrier>,
    frame_bytes: usize,
    /// Offsets of the blocks of each set.
    sets: Vec<Vec<u64>>,
    block_bytes: usize,
}

/// The initiator's end.
pub struct Datagrams {
    side: Side,
    next: usize,
    round: u32,
}

/// How long nothing has come.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
    looks: u32,
}

impl Silence {
    /// One more look has found something, or not; an error where that has lasted too long.
    fn look(&mut self, has_come: bool) -> Result<(), LabError> {
        if has_come {
            self.since = None;
            return Ok(());
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(LabError::Silent { doing: "move a set in bare datagrams", waited: PATIENCE });
        }
        Ok(())
    }
}

impl Side {
    fn new(carrier: impl BareCarrier + 'static, frame_bytes: usize) -> Self {
        Self { carrier: Box::new(carrier), frame_bytes, sets: Vec::new(), block_bytes: 1 }
    }

    fn deal(&mut self, spec: &LayoutSpec, pick: impl Fn(Span) -> u64) {
        let layout = Layout::new(spec);
        self.block_bytes = spec.workload.block_bytes as usize;
        self.sets = (0..layout.sets().len()).map(|set| layout.spans(set).map(&pick).collect()).collect();
    }

    fn payload_bytes(&self) -> usize {
        self.frame_bytes - HEAD_BYTES
    }

    fn frames(&self, set: usize) -> Result<usize, LabError> {
        let blocks = self.sets.get(set).ok_or_else(no_such_set)?;
        Ok((blocks.len() * self.block_bytes).div_ceil(self.payload_bytes()))
    }
}

/// Calls `each` with every part of a frame: the offset of its block's part in the pool, and its place in the payload.
fn parts(
    blocks: &[u64],
    block_bytes: usize,
    frame: usize,
    payload_bytes: usize,
    mut each: impl FnMut(u64, std::ops::Range<usize>),
) -> usize {
    let (start, total) = (frame * payload_bytes, blocks.len() * block_bytes);
    let end = total.min(start + payload_bytes);
    let mut at = start;
    while at < end {
        let (block, inside) = (at / block_bytes, at % block_bytes);
        let bytes = (block_bytes - inside).min(end - at);
        each(blocks[block] + inside as u64, at - start..at - start + bytes);
        at += bytes;
    }
    end.saturating_sub(start)
}

impl Datagrams {
    /// Opens a socket here and one in the other process of a pair of ends.
    pub fn open(ends: &mut Ends, frame_bytes: usize) -> Result<Self, LabError> {
        let socket = BareSocket::open(frame_bytes)?;
        let command = DatagramCommand::Open { port: socket.port()?, frame_bytes };
        match ends.ask(&Command::Datagram(command))? {
            Reply::Listening { port } => socket.connect(port)?,
            other => return Err(other.unexpected()),
        }
        Ok(Self { side: Side::new(socket, frame_bytes), next: 0, round: 0 })
    }

    /// Opens both ends of a memif.
    pub fn open_memif(ends: &mut Ends, frame_bytes: usize) -> Result<Self, LabError> {
        let memif = Memif::new(frame_bytes);
        let mut queue = BareQueue::open(&memif)?;
        match ends.ask(&Command::Datagram(DatagramCommand::OpenMemif(memif.other())))? {
            Reply::Done => queue.connect()?,
            other => return Err(other.unexpected()),
        }
        Ok(Self { side: Side::new(queue, frame_bytes), next: 0, round: 0 })
    }

    /// Both sides learn where the blocks lie in their pools.
    pub fn deal(&mut self, ends: &mut Ends, spec: &LayoutSpec) -> Result<(), LabError> {
        self.side.deal(spec, |span| span.local);
        self.next = 0;
        match ends.ask(&Command::Datagram(DatagramCommand::Deal(spec.clone())))? {
            Reply::Done => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Moves the next set.
    pub fn round(&mut self, ends: &mut Ends) -> Result<Streamed, LabError> {
        let set = self.next;
        self.next = (set + 1) % self.side.sets.len().max(1);
        self.round = self.round.wrapping_add(1);
        let frames = self.side.frames(set)?;
        ends.begin(&Command::Datagram(DatagramCommand::Take { set, round: self.round }))?;
        let (cpu, start) = (clock::thread_cpu(), Instant::now());
        self.send(ends.near.pool.window(), set, frames)?;
        let (nanos, cpu) = (nanos(start.elapsed()), clock::thread_cpu() - cpu);
        match ends.settle()? {
            Reply::Cpu { nanos: far } => Ok(Streamed { nanos, cpu: cpu + Duration::from_nanos(far) }),
            other => Err(other.unexpected()),
        }
    }

    /// Sends so many frames of so many bytes there and back, one by one. Answers the time of one way.
    pub fn volley(&mut self, ends: &mut Ends, rounds: u32, bytes: usize) -> Result<f64, LabError> {
        ends.begin(&Command::Datagram(DatagramCommand::Return { rounds, bytes }))?;
        let start = Instant::now();
        for round in 0..rounds {
            self.side.say(round, bytes)?;
            self.side.hear(round)?;
        }
        let each = nanos(start.elapsed()) / f64::from(2 * rounds.max(1));
        match ends.settle()? {
            Reply::Done => Ok(each),
            other => Err(other.unexpected()),
        }
    }

    /// Moves every set once.
    pub fn all(&mut self, ends: &mut Ends) -> Result<(), LabError> {
        (0..self.side.sets.len()).try_for_each(|_| self.round(ends).map(drop))
    }

    fn send(&mut self, pool: &Window, set: usize, frames: usize) -> Result<(), LabError> {
        let Self { side, round, .. } = self;
        let (payload_bytes, round) = (side.payload_bytes(), round.to_le_bytes());
        let Side { carrier, sets, block_bytes, .. } = side;
        let (burst, window, blocks) = (carrier.burst(), carrier.window(), &sets[set]);
        let (mut next, mut had, mut silence) = (0, 0, Silence::default());
        while had < frames {
            let upto = frames.min(next + burst);
            if next < frames && upto - had <= window {
                let first = next;
                let has_left = carrier.send(upto - first, &mut |at, bytes| {
                    let (head, payload) = bytes.split_at_mut(HEAD_BYTES);
                    head[..4].copy_from_slice(&round);
                    head[4..].copy_from_slice(&((first + at) as u32).to_le_bytes());
                    let each = |offset, part| {
                        pool.read_into(offset, &mut payload[part]).expect("a layout lies in its pool");
                    };
                    HEAD_BYTES + parts(blocks, *block_bytes, first + at, payload_bytes, each)
                })?;
                if has_left {
                    next = upto;
                }
            }
            let has_come = carrier.receive(&mut |bytes| {
                // A word of an earlier round has another number.
                if let Some((of, word)) = bytes.split_first_chunk::<4>()
                    && *of == round
                    && let Some(word) = word.first_chunk()
                {
                    had = had.max(u32::from_le_bytes(*word) as usize);
                }
            })?;
            silence.look(has_come)?;
        }
        Ok(())
    }
}

/// The other process's end.
#[derive(Default)]
pub(super) struct DatagramReceiver {
    side: Option<Side>,
}

impl DatagramReceiver {
    /// Does what it is asked; `say` tells what the initiator has to know before that is done.
    pub(super) fn obey(
        &mut self,
        end: &End,
        command: &DatagramCommand,
        say: impl FnOnce(&Reply) -> Result<(), LabError>,
    ) -> Result<Reply, LabError> {
        match *command {
            DatagramCommand::Open { port, frame_bytes } => {
                let socket = BareSocket::open(frame_bytes)?;
                socket.connect(port)?;
                let port = socket.port()?;
                self.side = Some(Side::new(socket, frame_bytes));
                Ok(Reply::Listening { port })
            }
            DatagramCommand::OpenMemif(ref memif) => {
                let mut queue = BareQueue::open(memif)?;
                queue.connect()?;
                self.side = Some(Side::new(queue, memif.frame_bytes));
                Ok(Reply::Done)
            }
            DatagramCommand::Deal(ref spec) => {
                self.side.as_mut().ok_or_else(no_socket)?.deal(spec, |span| span.remote);
                Ok(Reply::Done)
            }
            DatagramCommand::Return { rounds, bytes } => {
                let side = self.side.as_mut().ok_or_else(no_socket)?;
                say(&Reply::Going)?;
                for round in 0..rounds {
                    side.hear(round)?;
                    side.say(round, bytes)?;
                }
                Ok(Reply::Done)
            }
            DatagramCommand::Take { set, round } => {
                let side = self.side.as_mut().ok_or_else(no_socket)?;
                let frames = side.frames(set)?;
                say(&Reply::Going)?;
                let cpu = clock::thread_cpu();
                side.take(end.pool.window(), set, frames, round)?;
                Ok(Reply::Cpu { nanos: (clock::thread_cpu() - cpu).as_nanos() as u64 })
            }
        }
    }
}

impl Side {
    /// Sends one frame of so many bytes with this number.
    fn say(&mut self, number: u32, bytes: usize) -> Result<(), LabError> {
        let mut silence = Silence::default();
        while !self.carrier.send(1, &mut |_, frame| {
            frame[..HEAD_BYTES].fill(0);
            frame[..4].copy_from_slice(&number.to_le_bytes());
            bytes.clamp(HEAD_BYTES, frame.len())
        })? {
            silence.look(false)?;
        }
        Ok(())
    }

    /// Waits for the frame with this number.
    fn hear(&mut self, number: u32) -> Result<(), LabError> {
        let (mut is_here, mut silence) = (false, Silence::default());
        while !is_here {
            let has_come = self.carrier.receive(&mut |frame| is_here |= frame.starts_with(&number.to_le_bytes()))?;
            silence.look(has_come)?;
        }
        Ok(())
    }

    fn take(&mut self, pool: &Window, set: usize, frames: usize, round: u32) -> Result<(), LabError> {
        let (payload_bytes, round) = (self.payload_bytes(), round.to_le_bytes());
        let Self { carrier, sets, block_bytes, .. } = self;
        let (mut had, mut silence) = (0_usize, Silence::default());
        while had < frames {
            let has_come = carrier.receive(&mut |bytes| {
                let Some((head, payload)) = bytes.split_at_checked(HEAD_BYTES) else { return };
                let (of, frame) = head.split_at(4);
                let frame = u32::from_le_bytes(frame.try_into().expect("four bytes")) as usize;
                if of == round && frame < frames {
                    parts(&sets[set], *block_bytes, frame, payload_bytes, |offset, part| {
                        pool.write_from(offset, &payload[part]).expect("a layout lies in its pool");
                    });
                    had += 1;
                }
            })?;
            silence.look(has_come)?;
            if has_come {
                // A word that finds no room is said again with the next one; the last one has room, as all before it were read.
                let had = (had as u32).to_le_bytes();
                carrier.send(1, &mut |_, bytes| {
                    bytes[..4].copy_from_slice(&round);
                    bytes[4..HEAD_BYTES].copy_from_slice(&had);
                    HEAD_BYTES
                })?;
            }
        }
        Ok(())
    }
}

fn refused(doing: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    LabError::refused(doing)
}

fn no_socket() -> LabError {
    LabError::Target { why: "nobody has opened a bare socket".to_owned() }
}

fn no_such_set() -> LabError {
    LabError::Target { why: "it was not dealt so many sets of blocks".to_owned() }
}
