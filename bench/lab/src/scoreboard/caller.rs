//! D1: memory that the applications allocated themselves, on the same host.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Submit};

use super::copies::{describe, run};
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::own::{OWN, Own};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::{Stay, stay_on};
use crate::measure::interleave;
use crate::perf::Options;
use crate::raw::{CheckedSpans, Foreign, ForeignWrite};
use crate::workload::Workload;

const PATIENCE: Duration = Duration::from_secs(10);
const CALL: &str = "process_vm_writev alone";
const HANDED: &str = "the same by another thread";
const GOAL: Goal = Goal::RatioAtMost(1.05);

/// What takes turns.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Call,
    Handed,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = foreign(effort)?;
    rows.push(pool_backed(effort)?);
    Ok(rows)
}

/// Arrays whose storage is pool memory: nothing is different from M3, and that is the point.
fn pool_backed(effort: &Effort) -> Result<Row, LabError> {
    let report = run(effort, "kv16", (Progress::Adaptive, 1), &mut [])?;
    let kernel = ("best kernel, one thread", &report.samples.kernel[..]);
    let row = Row::compared("shm", (&report.samples.engine, "us", 1e3), kernel, GOAL);
    Ok(row.noted(&describe(&report, "pool memory as the storage of both arrays, one adaptive worker")))
}

/// Arrays that the applications allocated: only the kernel can reach from one into the other. Such a call may wait for the other process, so the engine
/// never makes it where it polls: what it costs to have it made elsewhere is a floor of its own.
fn foreign(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(&pins.near);
    let spec = Options::new(Workload::find("kv16")?).layout();
    let mut arrays = Arrays::open(effort, &pins, &spec)?;
    let mut engine = arrays.plans();
    let times = interleave(effort.limit(), &[Turn::Engine, Turn::Call, Turn::Handed], |turn| match turn {
        Turn::Engine => Ok(match &engine {
            Ok(plans) => match arrays.engine_round(plans) {
                Ok(nanos) => nanos,
                Err(error) => {
                    engine = Err(error);
                    f64::NAN
                }
            },
            Err(_) => f64::NAN,
        }),
        Turn::Call => arrays.call_round(),
        Turn::Handed => arrays.handed_round(),
    })?;
    // The floors do the same work: they too are looked at.
    arrays.prove(Arrays::call_round)?;
    arrays.prove(Arrays::handed_round)?;
    let proven = engine.and_then(|plans| arrays.prove(|arrays| arrays.engine_round(&plans)));
    let floors = [(CALL, &times[1][..]), (HANDED, &times[2][..])];
    Ok(match proven {
        Ok(bytes) => {
            let path = arrays.ends.peer.path();
            let note = format!("inline; {path}; {:.0} MB verified on both sides", bytes as f64 / 1e6);
            floors.map(|floor| Row::compared("shm", (&times[0], "us", 1e3), floor, GOAL).noted(&note)).into()
        }
        Err(error) => {
            let note = format!("the engine was not measured: {error}");
            floors.map(|floor| Row::unreached("shm", ("us", 1e3), floor, GOAL).noted(&note)).into()
        }
    })
}

/// Both applications' arrays, with a way for the engine and one for the bare call.
struct Arrays {
    ends: Ends,
    near: Own,
    spec: LayoutSpec,
    layout: Layout,
    calls: Vec<ForeignWrite>,
    elsewhere: Elsewhere,
    next: usize,
}

impl Arrays {
    fn open(effort: &Effort, pins: &Pins, spec: &LayoutSpec) -> Result<Self, LabError> {
        let elsewhere = Elsewhere::start(pins.far.clone());
        let mut ends = Ends::open(&EndsSpec {
            transport: TransportName::Shm,
            pool_bytes: 1 << 20,
            pages: PagesChoice::Small,
            progress: Progress::Inline,
            workers: 1,
            cores: Vec::new(),
            target_progress: Progress::Adaptive,
            target_cores: pins.far.clone(),
            spin: None,
            memory: [MemoryKind::Host; 2],
            target_program: effort.target_program.clone(),
            network: Network::default(),
        })?;
        let layout = Layout::new(spec);
        let bytes = layout.pool_bytes();
        let foreign = match ends.ask(&Command::Allocate { bytes })? {
            Reply::Allocated { pid, address } => Foreign { pid, address, bytes },
            other => return Err(other.unexpected()),
        };
        let near = Own::allocate(&ends.near.engine, bytes)?;
        layout.fill(near.window());
        let call = |pairs: &Vec<(u32, u32)>| {
            let block = spec.workload.block_bytes;
            let span = |&(local, remote): &(u32, u32)| penstock::Span {
                local: u64::from(local) * block,
                remote: u64::from(remote) * block,
                len: block,
            };
            let spans = CheckedSpans::new(pairs.iter().map(span).collect());
            ForeignWrite::new(near.window(), foreign, &spans).map_err(LabError::refused("prepare process_vm_writev"))
        };
        let calls = layout.sets().iter().map(call).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { ends, near, spec: spec.clone(), layout, calls, elsewhere, next: 0 })
    }

    /// One plan a set.
    fn plans(&self) -> Result<Vec<Plan>, LabError> {
        let remote = self.ends.peer.wait_region(OWN, PATIENCE).map_err(LabError::refused("find the target's array"))?;
        let block = self.spec.workload.block_bytes;
        let plan = |pairs: &Vec<(u32, u32)>| {
            let plan = Plan::write(self.near.region(), &remote).layers(&[(0, 0)]).blocks(pairs).block_bytes(block);
            plan.build().map_err(LabError::refused("plan a write between two applications' arrays"))
        };
        self.layout.sets().iter().map(plan).collect()
    }

    fn take_set(&mut self) -> usize {
        let set = self.next;
        self.next = (set + 1) % self.calls.len();
        set
    }

    fn engine_round(&mut self, plans: &[Plan]) -> Result<f64, LabError> {
        let set = self.take_set();
        let start = Instant::now();
        let transfer = self.ends.peer.submit(&plans[set], Submit::new()).map_err(LabError::refused("submit a plan"))?;
        loop {
            if let Some(ended) = transfer.poll() {
                ended?;
                return Ok(start.elapsed().as_nanos() as f64);
            }
            self.ends.near.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
        }
    }

    fn call_round(&mut self) -> Result<f64, LabError> {
        let set = self.take_set();
        let start = Instant::now();
        self.calls[set].write().map_err(LabError::refused("write into the target's array"))?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    fn handed_round(&mut self) -> Result<f64, LabError> {
        let set = self.take_set();
        let call = self.calls[set].clone();
        let start = Instant::now();
        self.elsewhere.write(call).map_err(LabError::refused("write into the target's array by another thread"))?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// Wipes the target's array, moves every set, and has the target look at every byte.
    fn prove(&mut self, mut round: impl FnMut(&mut Self) -> Result<f64, LabError>) -> Result<u64, LabError> {
        match self.ends.ask(&Command::WipeAllocated)? {
            Reply::Done => {}
            other => return Err(other.unexpected()),
        }
        for _ in 0..self.calls.len() {
            round(self)?;
        }
        match self.ends.ask(&Command::CheckAllocated(self.spec.clone()))? {
            Reply::Checked { bytes } => Ok(bytes),
            other => Err(other.unexpected()),
        }
    }
}

/// A thread that makes the bare call while whoever asked for it polls.
struct Elsewhere {
    /// Taken when it goes.
    asks: Option<Sender<ForeignWrite>>,
    ended: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Elsewhere {
    fn start(cores: Vec<usize>) -> Self {
        let (asks, asked) = channel::<ForeignWrite>();
        let (tells, ended) = channel();
        let thread = std::thread::spawn(move || {
            stay_on(&cores);
            while let Ok(call) = asked.recv() {
                if tells.send(call.write()).is_err() {
                    return;
                }
            }
        });
        Self { asks: Some(asks), ended, thread: Some(thread) }
    }

    fn write(&self, call: ForeignWrite) -> io::Result<()> {
        let gone = || io::Error::other("the thread is gone");
        self.asks.as_ref().ok_or_else(gone)?.send(call).map_err(|_| gone())?;
        loop {
            match self.ended.try_recv() {
                Ok(result) => return result,
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return Err(gone()),
            }
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A panic there has been printed.
        }
    }
}
