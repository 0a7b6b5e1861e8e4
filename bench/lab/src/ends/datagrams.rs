//! The floor of what carries its own packets between hosts: one bare UDP socket on each side, over which blocks go from pool to pool in
//! frames, gathered and scattered with one copy each. No engine takes part: the ends lend their pools and their processes.
//!
//! The receiver knows where everything goes, so a frame has nothing but its number beside its bytes. The sender has so much under way
//! as the receive buffer holds, and hears after each call of the receiver how much has come. Nothing is sent again: over a socket
//! within a host nothing is lost that has room.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use penstock::{Span, Window};
use serde::{Deserialize, Serialize};

use super::Ends;
use super::end::End;
use super::stream::Streamed;
use super::wire::{Command, Reply};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::{clock, nanos};
use crate::raw_stream::{set_buffers, set_segments};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at a socket between two looks at the clock.
const LOOKS: u32 = 1 << 12;
/// The number of a frame, and of its round.
const HEAD_BYTES: usize = 8;
/// What the kernel takes with one call.
const BURST_BYTES_MAX: usize = 65_507;
const BURST_FRAMES_MAX: usize = 64;
/// Asked for each buffer; a host may allow less.
const BUFFER_BYTES: u32 = 4 << 20;
/// What a socket charges for a packet beyond its bytes, at most.
const FRAME_CHARGE: usize = 896;

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
    /// Learn where the blocks of each set go.
    Deal(LayoutSpec),
    /// Receive every frame of one set.
    Take {
        /// The set, counted from 0 in the order of the layout.
        set: usize,
        /// The number of the round.
        round: u32,
    },
}

/// One side's socket, and the blocks of each set on this side.
struct Side {
    socket: UdpSocket,
    frame_bytes: usize,
    /// Offsets of the blocks of each set.
    sets: Vec<Vec<u64>>,
    block_bytes: usize,
    room: Box<[u8]>,
}

/// The initiator's end.
pub struct Datagrams {
    side: Side,
    /// Frames that may be under way.
    window: usize,
    next: usize,
    round: u32,
}

impl Side {
    fn open(frame_bytes: usize) -> Result<Self, LabError> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused("open a bare socket"))?;
        set_buffers(&socket, BUFFER_BYTES).map_err(refused("size a bare socket's buffers"))?;
        if frame_bytes * 2 <= BURST_BYTES_MAX {
            set_segments(&socket, frame_bytes as u32).map_err(refused("have bursts cut and joined"))?;
        }
        let room = vec![0; 1 << 16].into();
        Ok(Self { socket, frame_bytes, sets: Vec::new(), block_bytes: 1, room })
    }

    fn connect(&self, port: u16) -> Result<(), LabError> {
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.socket.connect(there).map_err(refused("connect a bare socket"))?;
        self.socket.set_nonblocking(true).map_err(refused("make a bare socket look"))
    }

    fn port(&self) -> Result<u16, LabError> {
        self.socket.local_addr().map(|address| address.port()).map_err(refused("find the port of a bare socket"))
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

    /// What has come, nothing included; an error where that has lasted too long.
    fn look(&mut self, since: &mut Option<Instant>, looks: &mut u32) -> Result<usize, LabError> {
        match self.socket.recv(&mut self.room) {
            Ok(bytes) => {
                *since = None;
                return Ok(bytes);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(refused("look at a bare socket")(error)),
        }
        *looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(LabError::Silent { doing: "move a set in bare datagrams", waited: PATIENCE });
        }
        Ok(0)
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
        if !(64..=BURST_BYTES_MAX).contains(&frame_bytes) {
            return Err(LabError::Option { option: "frame_bytes", mend: "a bare datagram has 64 to 65,507 bytes" });
        }
        let side = Side::open(frame_bytes)?;
        let command = DatagramCommand::Open { port: side.port()?, frame_bytes };
        let there = match ends.ask(&Command::Datagram(command))? {
            Reply::Listening { port } => port,
            other => return Err(other.unexpected()),
        };
        side.connect(there)?;
        // Both buffers are alike; the kernel says twice of what it grants, and gives a quarter of it back at once.
        let granted = set_buffers(&side.socket, BUFFER_BYTES).map_err(refused("size a bare socket's buffers"))?[1];
        let window = granted as usize / 4 * 3 / (frame_bytes + FRAME_CHARGE);
        Ok(Self { side, window: window.max(1), next: 0, round: 0 })
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

    /// Moves every set once.
    pub fn all(&mut self, ends: &mut Ends) -> Result<(), LabError> {
        (0..self.side.sets.len()).try_for_each(|_| self.round(ends).map(drop))
    }

    fn send(&mut self, pool: &Window, set: usize, frames: usize) -> Result<(), LabError> {
        let Self { side, window, round, .. } = self;
        let (payload_bytes, frame_bytes) = (side.payload_bytes(), side.frame_bytes);
        let burst_max = (BURST_BYTES_MAX / frame_bytes).min(BURST_FRAMES_MAX);
        let mut burst = vec![0; burst_max * frame_bytes];
        let (mut next, mut had, mut since, mut looks) = (0, 0, None, 0);
        while had < frames {
            let upto = frames.min(next + burst_max);
            if next < frames && upto - had <= *window {
                let mut end = 0;
                for (frame, bytes) in (next..upto).zip(burst.chunks_mut(frame_bytes)) {
                    let (head, payload) = bytes.split_at_mut(HEAD_BYTES);
                    head[..4].copy_from_slice(&round.to_le_bytes());
                    head[4..].copy_from_slice(&(frame as u32).to_le_bytes());
                    let blocks = &side.sets[set];
                    end += HEAD_BYTES;
                    end += parts(blocks, side.block_bytes, frame, payload_bytes, |offset, part| {
                        pool.read_into(offset, &mut payload[part]).expect("a layout lies in its pool");
                    });
                }
                match side.socket.send(&burst[..end]) {
                    Ok(_) => next = upto,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(error) => return Err(refused("send a bare datagram")(error)),
                }
            }
            // A word of an earlier round has another number.
            if side.look(&mut since, &mut looks)? == HEAD_BYTES && side.room[..4] == round.to_le_bytes() {
                let word = side.room[4..HEAD_BYTES].try_into().expect("four bytes");
                had = had.max(u32::from_le_bytes(word) as usize);
            }
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
                let side = Side::open(frame_bytes)?;
                side.connect(port)?;
                let port = side.port()?;
                self.side = Some(side);
                Ok(Reply::Listening { port })
            }
            DatagramCommand::Deal(ref spec) => {
                self.side.as_mut().ok_or_else(no_socket)?.deal(spec, |span| span.remote);
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
    fn take(&mut self, pool: &Window, set: usize, frames: usize, round: u32) -> Result<(), LabError> {
        let (payload_bytes, block_bytes) = (self.payload_bytes(), self.block_bytes);
        let (mut had, mut since, mut looks) = (0_usize, None, 0);
        while had < frames {
            let come = self.look(&mut since, &mut looks)?;
            for bytes in self.room[..come].chunks(self.frame_bytes) {
                let Some((head, payload)) = bytes.split_at_checked(HEAD_BYTES) else { continue };
                let (of, frame) = head.split_at(4);
                let frame = u32::from_le_bytes(frame.try_into().expect("four bytes")) as usize;
                if of == round.to_le_bytes() && frame < frames {
                    parts(&self.sets[set], block_bytes, frame, payload_bytes, |offset, part| {
                        pool.write_from(offset, &payload[part]).expect("a layout lies in its pool");
                    });
                    had += 1;
                }
            }
            if come > 0 {
                let mut word = [0; HEAD_BYTES];
                word[..4].copy_from_slice(&round.to_le_bytes());
                word[4..].copy_from_slice(&(had as u32).to_le_bytes());
                // A word that finds no room is said again with the next one; the last one has room, as all before it were read.
                let _ = self.socket.send(&word);
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
