//! The floor of a transport between hosts: one bare socket between the two processes, over which blocks go from
//! pool to pool and small words go over and back. No engine takes part: the ends lend their pools and their processes.
//!
//! The receiver knows where everything goes, so nothing goes over the socket but the bytes, and one more back when
//! all have come.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use penstock::Window;
use serde::{Deserialize, Serialize};

use super::Ends;
use super::end::End;
use super::wire::{Command, Reply};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::{clock, nanos};
use crate::raw_stream::{Vectors, set_buffers};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at a socket between two looks at the clock.
const LOOKS: u32 = 1 << 12;
/// The longest word that goes over and back.
const WORD_BYTES_MAX: usize = 4096;

/// How the socket is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Bytes of its buffers; as it comes where absent.
    pub buffer_bytes: Option<u32>,
    /// Blocks handed to the kernel in one call.
    pub at_once: usize,
}

/// What is worth trying: no setting is the best for every machine and every size of block.
pub const TUNINGS: [Tuning; 6] = [
    tuning(None, 64),
    tuning(None, 256),
    tuning(None, 1024),
    tuning(Some(4 << 20), 64),
    tuning(Some(4 << 20), 256),
    tuning(Some(4 << 20), 1024),
];

const fn tuning(buffer_bytes: Option<u32>, at_once: usize) -> Tuning {
    Tuning { buffer_bytes, at_once }
}

impl Tuning {
    /// It in words.
    pub fn in_words(&self) -> String {
        let buffers = self.buffer_bytes.map_or("socket buffers as they come".to_owned(), |bytes| {
            format!("socket buffers of {} KiB asked for", bytes >> 10)
        });
        format!("{buffers}, at most {} blocks a call", self.at_once)
    }
}

/// What the other process is asked to do with its end of the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamCommand {
    /// Take the next connection, once it has said at which port.
    Listen(Tuning),
    /// Learn where the blocks of each set go.
    Deal(LayoutSpec),
    /// Receive this set and say so over the socket.
    Take {
        /// Its number.
        set: usize,
    },
    /// Return so many words, one by one.
    Volley {
        /// How many.
        rounds: u64,
        /// How long each is.
        bytes: usize,
    },
}

/// The initiator's end.
pub struct Stream {
    socket: TcpStream,
    tuning: Tuning,
    sets: Vec<Vectors>,
    next: usize,
}

/// What one round took.
#[derive(Debug, Clone, Copy)]
pub struct Streamed {
    /// From the first call to the receiver's word that all has come, in nanoseconds.
    pub nanos: f64,
    /// CPU time of both sides.
    pub cpu: Duration,
}

impl Stream {
    /// Connects to the other process of a pair of ends.
    pub fn open(ends: &mut Ends, tuning: Tuning) -> Result<Self, LabError> {
        let port = match ends.ask(&Command::Stream(StreamCommand::Listen(tuning)))? {
            Reply::Listening { port } => port,
            other => return Err(other.unexpected()),
        };
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(refused("connect a bare socket"))?;
        prepare(&socket)?;
        if let Some(bytes) = tuning.buffer_bytes {
            set_buffers(&socket, bytes).map_err(refused("size a bare socket's buffers"))?;
        }
        expect_done(ends.settle()?)?;
        Ok(Self { socket, tuning, sets: Vec::new(), next: 0 })
    }

    /// Both sides learn where the blocks lie in their pools.
    pub fn deal(&mut self, ends: &mut Ends, spec: &LayoutSpec) -> Result<(), LabError> {
        self.sets = vectors(ends.near.pool.window(), spec, self.tuning, Side::Source)?;
        self.next = 0;
        expect_done(ends.ask(&Command::Stream(StreamCommand::Deal(spec.clone())))?)
    }

    /// Moves the next set.
    pub fn round(&mut self, ends: &mut Ends) -> Result<Streamed, LabError> {
        let set = self.next;
        self.next = (set + 1) % self.sets.len().max(1);
        let vectors = self.sets.get_mut(set).ok_or_else(no_such_set)?;
        ends.begin(&Command::Stream(StreamCommand::Take { set }))?;
        let mut word = [0];
        let (cpu, start) = (clock::thread_cpu(), Instant::now());
        vectors.send(&self.socket).map_err(refused("send a set of blocks"))?;
        self.socket.read_exact(&mut word).map_err(refused("hear that a set of blocks has come"))?;
        let (nanos, cpu) = (nanos(start.elapsed()), clock::thread_cpu() - cpu);
        match ends.settle()? {
            Reply::Cpu { nanos: far } => Ok(Streamed { nanos, cpu: cpu + Duration::from_nanos(far) }),
            other => Err(other.unexpected()),
        }
    }

    /// Moves every set once.
    pub fn all(&mut self, ends: &mut Ends) -> Result<(), LabError> {
        (0..self.sets.len()).try_for_each(|_| self.round(ends).map(drop))
    }

    /// So many words of so many bytes over and back, both sides looking all the time. Answers the time of one
    /// way, in nanoseconds.
    pub fn volley(&mut self, ends: &mut Ends, rounds: u64, bytes: usize) -> Result<f64, LabError> {
        ends.begin(&Command::Stream(StreamCommand::Volley { rounds, bytes }))?;
        let mut player = Player::new(&self.socket, bytes)?;
        let start = Instant::now();
        for number in 1..=rounds {
            player.send(number)?;
            player.receive(number)?;
        }
        let one_way = nanos(start.elapsed()) / (2 * rounds.max(1)) as f64;
        drop(player);
        expect_done(ends.settle()?)?;
        Ok(one_way)
    }
}

/// The other process's end.
#[derive(Default)]
pub(super) struct Receiver {
    taken: Option<(TcpStream, Tuning)>,
    sets: Vec<Vectors>,
}

impl Receiver {
    /// Does what it is asked; `say` tells what the initiator has to know before that is done.
    pub(super) fn obey(
        &mut self,
        end: &End,
        command: &StreamCommand,
        say: impl FnOnce(&Reply) -> Result<(), LabError>,
    ) -> Result<Reply, LabError> {
        match *command {
            StreamCommand::Listen(tuning) => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused("listen"))?;
                if let Some(bytes) = tuning.buffer_bytes {
                    set_buffers(&listener, bytes).map_err(refused("size a listener's buffers"))?;
                }
                let port = listener.local_addr().map_err(refused("find the port of a listener"))?.port();
                say(&Reply::Listening { port })?;
                self.sets = Vec::new();
                self.taken = Some((accept(&listener)?, tuning));
                Ok(Reply::Done)
            }
            StreamCommand::Deal(ref spec) => {
                let (_, tuning) = self.taken()?;
                self.sets = vectors(end.pool.window(), spec, tuning, Side::Destination)?;
                Ok(Reply::Done)
            }
            StreamCommand::Take { set } => {
                let Some((socket, _)) = &self.taken else { return Err(no_socket()) };
                let vectors = self.sets.get_mut(set).ok_or_else(no_such_set)?;
                say(&Reply::Going)?;
                let cpu = clock::thread_cpu();
                vectors.receive(socket).map_err(refused("receive a set of blocks"))?;
                let mut socket = socket;
                socket.write_all(&[1]).map_err(refused("say that a set of blocks has come"))?;
                Ok(Reply::Cpu { nanos: (clock::thread_cpu() - cpu).as_nanos() as u64 })
            }
            StreamCommand::Volley { rounds, bytes } => {
                let (socket, _) = self.taken()?;
                let mut player = Player::new(socket, bytes)?;
                say(&Reply::Going)?;
                for number in 1..=rounds {
                    player.receive(number)?;
                    player.send(number)?;
                }
                Ok(Reply::Done)
            }
        }
    }

    fn taken(&self) -> Result<(&TcpStream, Tuning), LabError> {
        self.taken.as_ref().map(|(socket, tuning)| (socket, *tuning)).ok_or_else(no_socket)
    }
}

/// Takes one connection, and waits for it no longer than for anything else.
fn accept(listener: &TcpListener) -> Result<TcpStream, LabError> {
    listener.set_nonblocking(true).map_err(refused("listen"))?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).map_err(refused("take a connection"))?;
                prepare(&socket)?;
                return Ok(socket);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(refused("take a connection")(error)),
        }
    }
}

fn prepare(socket: &TcpStream) -> Result<(), LabError> {
    let set = socket.set_nodelay(true);
    let set = set.and_then(|()| socket.set_read_timeout(Some(PATIENCE)));
    set.and_then(|()| socket.set_write_timeout(Some(PATIENCE))).map_err(refused("prepare a bare socket"))
}

/// Which side of the pairs of blocks.
#[derive(Debug, Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn vectors(pool: &Window, spec: &LayoutSpec, tuning: Tuning, side: Side) -> Result<Vec<Vectors>, LabError> {
    let layout = Layout::new(spec);
    let (stride, len) = (spec.workload.stride_bytes(), spec.workload.block_bytes);
    let bases = layout.batches().concat();
    let pick = |pair: (u64, u64)| match side {
        Side::Source => pair.0,
        Side::Destination => pair.1,
    };
    let of_set = |pairs: &Vec<(u32, u32)>| {
        let blocks = bases.iter().flat_map(|&base| pairs.iter().map(move |pair| (base, pair)));
        let spans = blocks.map(|(base, &(from, to))| (pick(base) + pick((from.into(), to.into())) * stride, len));
        Vectors::new(pool, spans, tuning.at_once).map_err(refused("prepare a bare loop"))
    };
    layout.sets().iter().map(of_set).collect()
}

/// One side of a volley. While it plays, its socket does not block.
struct Player<'a> {
    socket: &'a TcpStream,
    word: Vec<u8>,
}

impl<'a> Player<'a> {
    fn new(socket: &'a TcpStream, bytes: usize) -> Result<Self, LabError> {
        if !(8..=WORD_BYTES_MAX).contains(&bytes) {
            return Err(LabError::Option { option: "bytes", mend: "a volley is of 8 to 4,096" });
        }
        socket.set_nonblocking(true).map_err(refused("make a bare socket look"))?;
        Ok(Self { socket, word: vec![0; bytes] })
    }

    fn send(&mut self, number: u64) -> Result<(), LabError> {
        self.word[..8].copy_from_slice(&number.to_le_bytes());
        let mut socket = self.socket;
        // It is far smaller than any buffer, and the one before it has been answered.
        socket.write_all(&self.word).map_err(refused("send a word over a bare socket"))
    }

    fn receive(&mut self, number: u64) -> Result<(), LabError> {
        let (mut come, mut socket, mut since) = (0, self.socket, None);
        loop {
            for _ in 0..LOOKS {
                match socket.read(&mut self.word[come..]) {
                    Ok(0) => return Err(LabError::Target { why: "it closed a bare socket".to_owned() }),
                    Ok(more) => come += more,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(error) => return Err(refused("look at a bare socket")(error)),
                }
                if come == self.word.len() {
                    return self.look(number);
                }
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(LabError::Silent { doing: "return a word", waited: PATIENCE });
            }
        }
    }

    fn look(&self, number: u64) -> Result<(), LabError> {
        if self.word[..8] == number.to_le_bytes() {
            return Ok(());
        }
        Err(LabError::Target { why: format!("it sent another word than number {number}") })
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        // Where that is refused the next round says so.
        let _ = self.socket.set_nonblocking(false);
    }
}

fn refused(doing: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    LabError::refused(doing)
}

fn no_socket() -> LabError {
    LabError::Target { why: "nobody has connected a bare socket to it".to_owned() }
}

fn no_such_set() -> LabError {
    LabError::Target { why: "it was not dealt so many sets of blocks".to_owned() }
}

fn expect_done(reply: Reply) -> Result<(), LabError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(other.unexpected()),
    }
}
