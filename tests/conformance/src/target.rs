//! The other engine: obeys one command after another.

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use penstock::session::{EngineDescriptor, Frame};
use penstock::{
    Armed, Cause, Counter, HostMemory, LocalRegion, NoteId, Plan, PoolSpec, Rights, Span, Submit, SubmitError,
    SystemEnv,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::command::{Claim, Command, Reply, TakenNote};
use crate::own::{Bytes, Own};
use crate::pattern;
use crate::rogue::{self, Rogue};
use crate::setting::EngineSpec;
use crate::{Engine, Peer};

/// How long one sleep on an event fd may last before it is looked whether it was slept through.
const SLEEP_MAX: Duration = Duration::from_secs(2);
/// How long a call to a peer may take.
const CALL_MAX: Duration = Duration::from_secs(5);
/// How long an inline engine that has nothing to do rests between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// Why a command was not done.
type Refusal = Box<dyn std::error::Error>;

/// Obeys commands until there are no more, or the last one came.
pub fn serve(commands: &Receiver<Command>, mut answer: impl FnMut(Reply)) {
    let mut target = Target::default();
    while let Some(command) = target.next(commands) {
        if command == Command::Exit {
            break;
        }
        answer(target.obey(command).unwrap_or_else(|refusal| Reply::Refused(refusal.to_string())));
    }
}

#[derive(Default)]
struct Target {
    pools: HashMap<String, Own>,
    regions: HashMap<String, LocalRegion<SystemEnv>>,
    counters: HashMap<String, Counter<SystemEnv>>,
    watched: HashMap<String, Peer>,
    paused: bool,
    /// Whether its pools are of a device's memory.
    is_on_device: bool,
    /// Dropped last: it ends the sessions.
    engine: Option<Engine>,
}

impl Target {
    /// The next command. An inline engine makes progress until it comes.
    fn next(&self, commands: &Receiver<Command>) -> Option<Command> {
        let inline = self.engine.as_ref().filter(|engine| !engine.config().workers.progress.is_threaded());
        let Some(engine) = inline.filter(|_| !self.paused) else { return commands.recv().ok() };
        loop {
            match commands.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if !engine.progress_all().expect("this thread started the engine") {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn engine(&self) -> Result<&Engine, Refusal> {
        Ok(self.engine.as_ref().ok_or("no engine was started")?)
    }

    fn region(&self, label: &str) -> Result<&LocalRegion<SystemEnv>, Refusal> {
        Ok(self.regions.get(label).ok_or_else(|| format!("there is no region {label}"))?)
    }

    fn peer(&self, name: &str) -> Result<Peer, Refusal> {
        let (engine, since) = (self.engine()?, Instant::now());
        // What makes a session complete may be on its way.
        loop {
            if let Some(found) = engine.peers().into_iter().find(|peer| peer.name().as_str() == name) {
                return Ok(found);
            }
            if since.elapsed() > Duration::from_secs(1) {
                return Err(format!("there is no peer {name}").into());
            }
            let _ = engine.progress_all();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn obey(&mut self, command: Command) -> Result<Reply, Refusal> {
        Ok(match command {
            Command::Start(spec) => self.start(&spec)?,
            Command::Pool { label, bytes, block, rights, seed } => {
                let pool = Own::with(self.engine()?, self.is_on_device, (bytes, block), &label, Rights::from(rights))?;
                pattern::fill(&*pool, seed);
                self.regions.insert(label.clone(), LocalRegion::clone(&pool));
                self.pools.insert(label, pool);
                Reply::Done
            }
            Command::Register { label, bytes, rights, skew, seed } => {
                let memory = HostMemory::from_vec(vec![0; (skew + bytes) as usize])?;
                let memory = memory.part(skew, bytes).ok_or("there are no such bytes")?;
                pattern::fill(memory.window(), seed);
                let region = self.engine()?.register(memory, &label, Rights::from(rights))?;
                self.regions.insert(label, region);
                Reply::Done
            }
            Command::Halves { label, bytes, seed } => {
                let memory = HostMemory::from_vec(pattern::bytes(seed, 0, bytes as usize))?;
                for (offset, label) in [(0, label.clone()), (bytes / 2, format!("{label}-2"))] {
                    let half = memory.part(offset, bytes / 2).ok_or("there is no half")?;
                    let region = self.engine()?.register(half, &label, Rights::READ_WRITE)?;
                    self.regions.insert(label, region);
                }
                Reply::Done
            }
            Command::ComeAndGo { times } => {
                for _ in 0..times {
                    let memory = HostMemory::from_vec(vec![0; 64])?;
                    let region = self.engine()?.register(memory, "passing", Rights::READ_WRITE)?;
                    if !region.deregister(CALL_MAX)?.is_quiesced() {
                        return Err("it is not quiesced".into());
                    }
                }
                Reply::Done
            }
            Command::Hoard { bytes } => {
                let spec = PoolSpec::host(bytes).rights(Rights::NONE).label("hoard");
                self.pools.insert("hoard".to_owned(), Own::Host(self.engine()?.pool(spec)?));
                Reply::Done
            }
            Command::Digest { label } => Reply::Digests(pattern::memory_digests(self.region(&label)?)),
            Command::Counter { region, label } => {
                let counter = self.region(&region)?.counter(&label)?;
                self.counters.insert(label, counter);
                Reply::Done
            }
            Command::DropCounter { label } => {
                self.counters.remove(&label).ok_or("there is no such counter")?;
                Reply::Done
            }
            Command::WaitCounter { label, count, within_ms } => {
                let counter = self.counters.get(&label).ok_or("there is no such counter")?;
                counter.wait(count, Duration::from_millis(within_ms));
                Reply::Value(counter.value())
            }
            Command::TakeNotes { count, within_ms } => self.take_notes(count, Duration::from_millis(within_ms))?,
            Command::SleepForNotes { count, within_ms } => {
                self.sleep_for_notes(count, Duration::from_millis(within_ms))?
            }
            Command::VerifyOnNotes { label, count } => self.verify_on_notes(&label, count)?,
            Command::Revoke { label, extents, within_ms } => {
                let held = self.region(&label)?.revoke(&extents, Duration::from_millis(within_ms))?;
                Reply::Quiesced(held.is_quiesced())
            }
            Command::Deregister { label, within_ms } => {
                let held = self.region(&label)?.deregister(Duration::from_millis(within_ms))?;
                Reply::Quiesced(held.is_quiesced())
            }
            Command::FillAndWatch { label, extents, seed, hold_ms } => {
                let region = self.region(&label)?;
                pattern::fill(region, seed);
                std::thread::sleep(Duration::from_millis(hold_ms));
                let expected = pattern::digests(&pattern::bytes(seed, 0, region.bytes() as usize));
                let found = pattern::memory_digests(region);
                let pages = |(offset, len): (u64, u64)| {
                    offset as usize / pattern::PAGE..(offset + len) as usize / pattern::PAGE
                };
                Reply::Yes(extents.into_iter().map(pages).all(|pages| found[pages.clone()] == expected[pages]))
            }
            Command::Peers => Reply::Names(self.engine()?.peers().iter().map(|peer| peer.name().to_string()).collect()),
            Command::Watch { peer } => {
                let found = self.peer(&peer)?;
                self.watched.insert(peer, found);
                Reply::Done
            }
            Command::EndOf { peer } => {
                let watched = self.watched.get(&peer).ok_or("this peer is not watched")?;
                Reply::Ended(watched.ended().map(|cause| cause.to_string()))
            }
            Command::NotifyPeer { peer, count } => {
                let peer = self.peer(&peer)?;
                for id in 0..count {
                    let sent = peer.notify(NoteId(id as u128), b"", Submit::new().within(CALL_MAX))?;
                    sent.wait().map_err(|fault| fault.to_string())?;
                }
                Reply::Done
            }
            Command::Disconnect => {
                for peer in self.engine()?.peers() {
                    peer.disconnect(CALL_MAX);
                }
                Reply::Done
            }
            Command::Connect { descriptor } => {
                self.engine()?.connect(&descriptor, CALL_MAX)?;
                Reply::Done
            }
            Command::Knock { descriptor } => {
                let card = EngineDescriptor::decode(&descriptor)?;
                let mut rogue = Rogue::connect(Path::new(&card.socket));
                rogue.send(&Frame::Hello(rogue::hello(&card)), &[]);
                let (code, text) = rogue.refusal();
                Reply::Refusal { code: format!("{code:?}"), text }
            }
            Command::WriteTo { peer, label, times } => self.write_to(&peer, &label, times)?,
            Command::Flood { peer, label, times } => self.flood(&peer, &label, times)?,
            Command::Drain { within_ms } => {
                let left = self.engine()?.drain(Duration::from_millis(within_ms))?;
                let peers = left.peers.iter().map(|name| name.to_string()).collect();
                Reply::Drained { peers, transfers: left.transfers, notifications: left.notifications }
            }
            Command::Pause => self.pause(true),
            Command::Resume => self.pause(false),
            Command::Footprint => footprint()?,
            Command::Stop => self.stop(),
            Command::Exit => Reply::Done,
        })
    }

    fn start(&mut self, spec: &EngineSpec) -> Result<Reply, Refusal> {
        let engine = spec.start()?;
        let descriptor = engine.descriptor();
        self.engine = Some(engine);
        self.is_on_device = spec.is_on_device;
        Ok(Reply::Started { descriptor })
    }

    fn stop(&mut self) -> Reply {
        *self = Self::default();
        Reply::Done
    }

    fn pause(&mut self, paused: bool) -> Reply {
        self.paused = paused;
        Reply::Done
    }

    fn take_notes(&self, count: usize, within: Duration) -> Result<Reply, Refusal> {
        let (engine, until) = (self.engine()?, Instant::now() + within);
        let mut taken = Vec::new();
        while taken.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            if !engine.wait_notification(left) {
                break;
            }
            engine.notifications(&mut taken);
        }
        Ok(Reply::Notes(taken.iter().map(as_taken).collect()))
    }

    fn sleep_for_notes(&self, count: usize, within: Duration) -> Result<Reply, Refusal> {
        let (engine, until) = (self.engine()?, Instant::now() + within);
        let mut taken = Vec::new();
        while taken.len() < count && Instant::now() < until {
            engine.progress_all()?;
            if engine.notifications(&mut taken) > 0 || engine.arm()? == Armed::Busy {
                continue;
            }
            if !wait_readable(engine, SLEEP_MAX) {
                engine.progress_all()?;
                if engine.notifications(&mut taken) > 0 {
                    return Err(format!("slept through the arrival of notification {}", taken.len()).into());
                }
            }
        }
        Ok(Reply::Notes(taken.iter().map(as_taken).collect()))
    }

    fn verify_on_notes(&self, label: &str, count: usize) -> Result<Reply, Refusal> {
        let (engine, region) = (self.engine()?, self.region(label)?);
        let mut taken = Vec::new();
        for _ in 0..count {
            while taken.is_empty() {
                if !engine.wait_notification(CALL_MAX) {
                    return Err("no notification came".into());
                }
                engine.notifications(&mut taken);
            }
            let note = taken.remove(0);
            let claim = Claim::decode(&note.payload).ok_or("a notification without a claim")?;
            let mut found = vec![0; claim.len as usize];
            region.read(claim.to, &mut found);
            let expected = pattern::bytes(claim.seed, claim.from, found.len());
            let wrong = (0..found.len()).find(|&at| found[at] != expected[at]);
            if let Some(at) = wrong {
                return Err(format!("{:?} came before byte {at} of {claim:?}", note.id).into());
            }
            self.peer(note.peer.as_str())?
                .notify(note.id, b"verified", Submit::new())?
                .wait()
                .map_err(|fault| fault.to_string())?;
        }
        Ok(Reply::Value(count as u64))
    }

    fn flood(&self, peer: &str, label: &str, times: u64) -> Result<Reply, Refusal> {
        let peer = self.peer(peer)?;
        let remote = peer.wait_region(label, CALL_MAX)?;
        let near = self.region(label)?;
        let span = Span { local: 0, remote: 0, len: near.bytes().min(remote.bytes()) };
        let plan = Plan::write(near, &remote).extents(&[span]).build()?;
        let mut taken = Vec::new();
        for time in 0..times {
            match peer.submit(&plan, Submit::new().notify(NoteId(time.into()), b"flooded")) {
                Ok(transfer) => taken.push(transfer),
                Err(SubmitError::Draining { .. } | SubmitError::PeerGone { .. }) => break,
                Err(other) => return Err(other.into()),
            }
        }
        let mut done = 0;
        for (place, transfer) in taken.iter().enumerate() {
            match transfer.wait() {
                Ok(_) => done += 1,
                // Its worker had heard of the drain between the look at the peer and the submission, which is the last then.
                Err(fault) if (fault.cause, fault.bytes, place + 1) == (Cause::PeerDraining, 0, taken.len()) => {}
                Err(fault) => return Err(fault.to_string().into()),
            }
        }
        Ok(Reply::Value(done))
    }

    fn write_to(&self, peer: &str, label: &str, times: u64) -> Result<Reply, Refusal> {
        let peer = self.peer(peer)?;
        let remote = peer.wait_region(label, CALL_MAX)?;
        let near = self.region(label)?;
        let span = Span { local: 0, remote: 0, len: near.bytes().min(remote.bytes()) };
        let plan = Plan::write(near, &remote).extents(&[span]).build()?;
        for time in 0..times {
            let transfer = peer.submit(&plan, Submit::new().notify(NoteId(time.into()), b"written"))?;
            transfer.wait().map_err(|fault| fault.to_string())?;
        }
        Ok(Reply::Done)
    }
}

/// What this process holds at this moment.
pub fn footprint() -> std::io::Result<Reply> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(Reply::Footprint {
        descriptors: std::fs::read_dir("/proc/self/fd")?.count(),
        threads: std::fs::read_dir("/proc/self/task")?.count(),
        mappings: maps.lines().filter(|line| line.contains("memfd:penstock")).count(),
    })
}

/// Sleeps on the engine's event fd. Answers whether it became readable.
pub fn wait_readable(engine: &Engine, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).expect("a few seconds");
    let descriptor = engine.event_fd();
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&timeout)) {
            Ok(readable) => return readable > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("cannot poll the event fd: {error}"),
        }
    }
}

/// A notification as it can be told.
pub fn as_taken(note: &penstock::Notification) -> TakenNote {
    let handed_over = note.handle.as_ref().and_then(|handle| handle.downcast_ref::<String>()).cloned();
    TakenNote {
        peer: note.peer.to_string(),
        id: (note.id.0 as u64, (note.id.0 >> 64) as u64),
        payload: note.payload.clone(),
        handed_over,
    }
}
