//! F1, and over TCP F2: what one dead, one stopped and one slow peer of eight cost the other five.
//!
//! Both contenders do the same work: so many writes to each of five peers, several in flight. In the one the other three
//! peers idle. In the other they are sent notifications all the time, while the first is killed
//! as the clock starts, the second is stopped (`SIGSTOP`) and the third does not look at what it is sent: rings
//! run full, transfers wait for room and end by their deadlines, a session ends.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{NoteId, Peer, Plan, Span, Submit, SystemEnv, Transfer};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::Folder;
use crate::ends::end::{End, EndSpec, LABEL};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::process::TargetProcess;
use crate::ends::wire::{Command, Reply, TargetSpec};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, nanos};

/// Peers that are well.
const WELL: usize = 5;
/// Bytes of a pool.
const POOL_BYTES: u64 = 8 << 20;
/// Bytes of one write, in blocks of [`BLOCK_BYTES`].
const WRITE_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 16 << 10;
/// Writes to each peer in one round, and how many of them are in flight at once.
const WRITES: u64 = 20;
const IN_FLIGHT: usize = 2;
/// Notifications that each faulty peer is kept waiting with: they fill its ring, and then wait for room.
const PENDING: usize = 16;
const NOTE: [u8; 2048] = [7; 2048];
/// After so long a notification to a faulty peer ends and is sent anew.
const PENDING_WITHIN: Duration = Duration::from_millis(20);
/// How long the slow peer does not look: longer than a round takes.
const DOZE: Duration = Duration::from_millis(600);
/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the other three do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Fail,
    Idle,
}

/// A peer in a process of its own.
struct Bystander {
    process: TargetProcess,
    peer: Peer<SystemEnv>,
}

/// Eight peers and the engine that writes to them.
struct Stage {
    well: Vec<(Plan, Bystander)>,
    dead: Bystander,
    stopped: Bystander,
    slow: Bystander,
    near: End,
    transport: TransportName,
    effort: Effort,
    pins: Pins,
    /// Removed last, when no engine has a socket in it any more.
    folder: Folder,
}

impl Stage {
    fn open(transport: TransportName, effort: &Effort, pins: &Pins) -> Result<Self, LabError> {
        let folder = Folder::create()?;
        let near = spec(&folder, transport, "initiator", Progress::Adaptive, &pins.near).start()?;
        let meet = |name: &str, progress| {
            let end = spec(&folder, transport, name, progress, &[]);
            Bystander::start(end, effort, pins, &near)
        };
        let well = (0..WELL).map(|number| {
            let bystander = meet(&format!("well-{number}"), Progress::Adaptive)?;
            Ok((plan(&near, &bystander.peer)?, bystander))
        });
        let well = well.collect::<Result<_, LabError>>()?;
        let (dead, stopped) = (meet("dead", Progress::Adaptive)?, meet("stopped", Progress::Adaptive)?);
        let slow = meet("slow", Progress::Inline)?;
        Ok(Self { well, dead, stopped, slow, near, transport, effort: effort.clone(), pins: pins.clone(), folder })
    }

    /// One round. Answers how long the five took, in nanoseconds.
    fn round(&mut self, others: Others) -> Result<f64, LabError> {
        if others == Others::Idle {
            return self.write_to_all(&mut []);
        }
        self.slow.process.begin(&Command::Doze { nanos: DOZE.as_nanos() as u64 })?;
        self.stopped.process.stop();
        let mut faulty = [&self.dead, &self.stopped, &self.slow].map(|other| Waiting::of(&other.peer));
        self.dead.process.kill();
        let took = self.write_to_all(&mut faulty);
        self.stopped.process.resume();
        drop(faulty);
        let Reply::Done = self.slow.process.reply("wake up")? else {
            return Err(LabError::Target { why: "it did not wake up as it should".to_owned() });
        };
        let end = spec(&self.folder, self.transport, "dead", Progress::Adaptive, &[]);
        self.dead = Bystander::start(end, &self.effort, &self.pins, &self.near)?;
        took
    }

    fn write_to_all(&self, faulty: &mut [Waiting]) -> Result<f64, LabError> {
        let start = Instant::now();
        let mut flights: VecDeque<(usize, Transfer<SystemEnv>)> = VecDeque::new();
        let mut left = [self.effort.repeat(WRITES); WELL];
        for _ in 0..IN_FLIGHT {
            for (number, left) in left.iter_mut().enumerate() {
                *left -= 1;
                flights.push_back((number, self.write(number)?));
            }
        }
        while let Some((number, transfer)) = flights.pop_front() {
            for waiting in faulty.iter_mut() {
                waiting.refill()?;
            }
            transfer.wait()?;
            if left[number] > 0 {
                left[number] -= 1;
                flights.push_back((number, self.write(number)?));
            }
        }
        Ok(nanos(start.elapsed()))
    }

    fn write(&self, number: usize) -> Result<Transfer<SystemEnv>, LabError> {
        let (plan, bystander) = &self.well[number];
        bystander.peer.submit(plan, Submit::new()).map_err(LabError::refused("submit a write"))
    }
}

/// Notifications to one faulty peer that are on their way.
struct Waiting {
    peer: Peer<SystemEnv>,
    pending: Vec<Transfer<SystemEnv>>,
}

impl Waiting {
    fn of(peer: &Peer<SystemEnv>) -> Self {
        Self { peer: peer.clone(), pending: Vec::new() }
    }

    /// Sends anew what has ended, well or by its deadline. A session that has ended takes nothing more.
    fn refill(&mut self) -> Result<(), LabError> {
        self.pending.retain(|transfer| transfer.poll().is_none());
        while self.pending.len() < PENDING && self.peer.ended().is_none() {
            match self.peer.notify(NoteId(1), &NOTE, Submit::new().within(PENDING_WITHIN)) {
                Ok(transfer) => self.pending.push(transfer),
                Err(penstock::SubmitError::PeerGone { .. } | penstock::SubmitError::Full { .. }) => break,
                Err(refused) => return Err(LabError::refused("notify a faulty peer")(refused)),
            }
        }
        Ok(())
    }
}

impl Bystander {
    fn start(end: EndSpec, effort: &Effort, pins: &Pins, near: &End) -> Result<Self, LabError> {
        let target = TargetSpec { end, stay_on: pins.far.clone() };
        let mut process = TargetProcess::start(effort.target_program.as_deref(), &target)?;
        let ready = process.ready()?;
        let peer = near.engine.connect(&ready.card, PATIENCE).map_err(LabError::refused("connect to a peer"))?;
        Ok(Self { process, peer })
    }
}

fn spec(folder: &Folder, transport: TransportName, name: &str, progress: Progress, cores: &[usize]) -> EndSpec {
    EndSpec {
        name: name.to_owned(),
        directory: folder.path().to_owned(),
        transport,
        progress,
        workers: 1,
        cores: cores.to_vec(),
        spin_us: None,
        pool_bytes: POOL_BYTES,
        pages: PagesChoice::Small,
        memory: MemoryKind::Host,
        network: Network::default(),
    }
}

/// Every second block of the pool.
fn plan(near: &End, peer: &Peer<SystemEnv>) -> Result<Plan, LabError> {
    let remote = peer.wait_region(LABEL, PATIENCE).map_err(LabError::refused("find a peer's pool"))?;
    let spans = (0..WRITE_BYTES / BLOCK_BYTES).map(|block| {
        let offset = 2 * block * BLOCK_BYTES;
        Span { local: offset, remote: offset, len: BLOCK_BYTES }
    });
    let spans: Vec<Span> = spans.collect();
    Plan::write(&near.pool, &remote).extents(&spans).build().map_err(LabError::refused("plan a write"))
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    over(TransportName::Shm, effort)
}

pub(super) fn measure_over_tcp(effort: &Effort) -> Result<Vec<Row>, LabError> {
    over(TransportName::Tcp, effort)
}

fn over(transport: TransportName, effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.far);
    let mut stage = Stage::open(transport, effort, &pins)?;
    let times = interleave(effort.limit(), &[Others::Fail, Others::Idle], |others| stage.round(others))?;
    let idle = ("the same five while the other three idle", &times[1][..]);
    let row = Row::compared(transport.as_str(), (&times[0], "ms", 1e6), idle, Goal::RatioAtMost(1.05));
    Ok(vec![row.noted("eight peers: one killed, one stopped, one that does not look; 100 writes of 4 MiB to the five")])
}
