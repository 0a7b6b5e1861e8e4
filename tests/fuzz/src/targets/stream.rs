//! A lane over a byte stream whose other end says anything.
//!
//! The input is a script: an operation in one byte and its operands, little endian, zero where the input ends. The
//! peer sends groups, whole or broken, hangs up or takes what came; in between the lane posts, announces, gives up,
//! and its engine takes memory back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::config::TcpIo;
use penstock_core::limits::NOTE_BYTES_MAX;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, NoteId, RegionId, Rights, Span};
use penstock_memory::{Hint, HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::{ReadyBits, Withdrawal};
use penstock_tcp::TcpTransport;
use penstock_tcp::wire::{HEAD_BYTES, Head, Messages, PAYLOAD_BYTES_MAX, TRAILER_BYTES, Trailer};
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::{CancelledOp, Handle};
use penstock_transport::{
    Batch, Driver, Failure, Lane, LaneEvents, LaneFault, LocalEnd, Note, NotifyRequest, PostError, Posted, RemoteEnd,
    RemoteMemory, Revisions, TargetMediatedMemory, Transport,
};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

/// The operations of a script.
pub mod op {
    /// The peer sends a group: bytes of control (u16), the control, a mark that it is spoiled (u8). Its head and its
    /// payload are made to fit.
    pub const GROUP: u8 = 0;
    /// The peer sends so many bytes (u8) as they are.
    pub const RAW: u8 = 1;
    /// The peer sends only so many bytes at a time (u16) from now on; none: as many as there are.
    pub const CUT: u8 = 2;
    /// The lane writes (offset u16, length u16) to the peer.
    pub const WRITE: u8 = 3;
    /// The lane reads (offset u16, length u16) from the peer.
    pub const READ: u8 = 4;
    /// The lane announces a note of so many bytes (u16) behind the transfer that was posted last.
    pub const ANNOUNCE: u8 = 5;
    /// The lane gives up what it posted under this token (u8).
    pub const ABANDON: u8 = 6;
    /// The engine takes back (region u8, offset u16, length u16).
    pub const WITHDRAW: u8 = 7;
    /// The peer takes what was sent to it.
    pub const TAKE: u8 = 8;
    /// The peer says nothing more.
    pub const HANG_UP: u8 = 9;
    /// How many there are.
    pub const COUNT_OF_OPS: u8 = 10;
}

/// The engine's regions, in the order of their ids: the peer may write the first and read the second, neither of the
/// third; the last two are where the lane's own bytes come from and go to.
pub const WRITABLE: u32 = 0;
/// See [`WRITABLE`].
pub const READABLE: u32 = 1;
/// See [`WRITABLE`].
pub const CLOSED: u32 = 2;
const SOURCE: usize = 3;
const SINK: usize = 4;
/// Bytes of each.
pub const REGION_BYTES: u64 = 16 << 10;
/// Their generation.
pub const GENERATION: u32 = 0;

/// Operations of one script at most.
const OPS_MAX: usize = 200;
/// Bytes before and behind each region that nobody may write.
const GUARD_BYTES: u64 = 4096;
const PARTY: u32 = 3;
const RIGHTS: [Rights; 5] = [Rights::WRITE, Rights::READ, Rights::NONE, Rights::NONE, Rights::NONE];
/// Turns of the lane after each piece of what the peer says.
const TURNS: usize = 3;
/// What the memory is full of, and what the peer sends.
const KEPT: u8 = 0x11;
const SENT: u8 = 0x77;

/// Whatever the peer says, nothing outside of what it may write changes, each operation is reported once at most, and
/// the lane ends typed or not at all.
pub fn run(input: &[u8]) {
    let _ = play(input);
}

/// What a script has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How the lane ended, if it did.
    pub fault: Option<Cause>,
    /// Bytes that the peer has put into what it may write.
    pub written: usize,
    /// Bytes that it has sent for the lane's own reads.
    pub read: usize,
    /// Notes that came out.
    pub notes: usize,
    /// Operations that ended well, and those that did not.
    pub ended: (usize, usize),
}

/// As [`run`], and tells what came of it.
pub fn play(input: &[u8]) -> Outcome {
    let mut bench = Bench::new();
    bench.turn(); // The stream is taken.
    let mut script = Script(input);
    for _ in 0..OPS_MAX {
        let Some(code) = script.next_op() else { break };
        bench.perform(code, &mut script);
        if bench.fault.is_some() {
            break;
        }
    }
    bench.check()
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn next_op(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first % op::COUNT_OF_OPS)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number<const BYTES: usize>(&mut self) -> u64 {
        let taken = self.bytes(BYTES);
        let mut padded = [0; 8];
        padded[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(padded)
    }

    fn extent(&mut self) -> (u64, u64) {
        let (offset, len) = (self.number::<2>() % REGION_BYTES, self.number::<2>());
        (offset, 1 + len % (REGION_BYTES - offset))
    }
}

/// A region between two guards.
struct Guarded {
    whole: HostMemory,
    region: Arc<Region>,
}

impl Guarded {
    fn new(registry: &Registry, rights: Rights) -> Self {
        let whole = vec![KEPT; (REGION_BYTES + 2 * GUARD_BYTES) as usize];
        let whole = HostMemory::from_vec(whole).expect("it is not empty");
        let inside = whole.part(GUARD_BYTES, REGION_BYTES).expect("it lies between the guards");
        let region = registry.register_host(inside, "", rights).expect("a fresh registry has room");
        Self { whole, region }
    }

    /// How many bytes of it the peer has sent; none if anything else has changed.
    fn sent(&self) -> Option<usize> {
        let mut bytes = vec![0; self.whole.window().len() as usize];
        self.whole.window().read_into(0, &mut bytes).expect("it is as long as that");
        let inside = GUARD_BYTES as usize..(GUARD_BYTES + REGION_BYTES) as usize;
        let is_sent = |(place, &byte): (usize, &u8)| inside.contains(&place) && byte == SENT;
        let sent = bytes.iter().enumerate().filter(|&at| is_sent(at)).count();
        let kept = bytes.iter().filter(|&&byte| byte == KEPT).count();
        (sent + kept == bytes.len()).then_some(sent)
    }

    fn key(&self) -> RegionKey {
        RegionKey { region: self.region.id(), generation: self.region.generation() }
    }
}

struct Bench {
    segments: Arc<EngineSegments>,
    regions: Vec<Guarded>,
    driver: Box<dyn Driver>,
    lane: Box<dyn Lane>,
    ready: ReadyBits,
    far: OwnedFd,
    has_hung_up: bool,
    cut: usize,
    fault: Option<LaneFault>,
    /// What became of what was posted, by token.
    posted: Seen,
    transfer: u64,
}

#[derive(Default)]
struct Seen {
    /// Reported or given up for good; open otherwise.
    are_over: Vec<bool>,
    ended: (usize, usize),
    notes: usize,
}

impl Seen {
    fn token(&self) -> u64 {
        self.are_over.len() as u64
    }
}

impl Bench {
    fn new() -> Self {
        const HERE: &str = "a machine that runs tests has what an engine needs";
        let (segments, registry) = (EngineSegments::create(1).expect(HERE), Arc::new(Registry::new()));
        let regions: Vec<Guarded> = RIGHTS.iter().map(|&rights| Guarded::new(&registry, rights)).collect();
        let transport = TcpTransport::new(Arc::clone(&segments), registry, TcpIo::Epoll, 1).expect(HERE);
        let here = LocalEnd { host: 1, process: 1, epoch: 1, workers: 1, peer_index: PARTY };
        let watch = Arc::new(ProcessWatch::of(std::process::id()));
        let there = RemoteEnd { host: 2, process: 2, epoch: 2, workers: 1, peer_index: PARTY, address: None, watch };
        assert_eq!(regions[0].key(), RegionKey { region: RegionId(WRITABLE), generation: Generation(GENERATION) });
        let offering = transport.offer(here, there).expect(HERE);
        let link = (offering.join)(&offering.blob, Vec::new()).expect("both are of one release");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect(HERE);
        link.streams.expect("it needs streams").attach(0, near).expect("its place is free");
        Self {
            driver: transport.driver(0).expect(HERE).expect("streams are asked for all at once"),
            lane: link.lanes.into_iter().next().expect("there is one worker"),
            ready: segments.mailbox.view().ready(0),
            segments,
            regions,
            far,
            has_hung_up: false,
            cut: usize::MAX,
            fault: None,
            posted: Seen::default(),
            transfer: 0,
        }
    }

    fn perform(&mut self, code: u8, script: &mut Script<'_>) {
        match code {
            op::GROUP => {
                let control = script.number::<2>() as usize;
                let group = group(script.bytes(control), script.number::<1>());
                self.say(&group);
            }
            op::RAW => {
                let count = script.number::<1>() as usize;
                self.say(script.bytes(count));
            }
            op::CUT => self.cut = script.number::<2>().checked_sub(1).map_or(usize::MAX, |less| less as usize + 1),
            op::WRITE => self.post(Direction::Write, script.extent()),
            op::READ => self.post(Direction::Read, script.extent()),
            op::ANNOUNCE => self.announce(script.number::<2>() as usize),
            op::ABANDON => self.cancel_op(script.number::<1>()),
            op::WITHDRAW => {
                let region = &self.regions[script.number::<1>() as usize % RIGHTS.len()].key();
                let (offset, len) = script.extent();
                let (region, generation) = (region.region.0, region.generation.0);
                self.segments.owner_state.withdraw(&[Withdrawal { region, generation, offset, len }]);
            }
            op::TAKE => {
                let mut bytes = [0; 4096];
                while rustix::io::read(&self.far, &mut bytes).is_ok_and(|count| count > 0) {}
            }
            _ => {
                let _ = shutdown(&self.far, Shutdown::Write);
                self.has_hung_up = true;
            }
        }
        self.turn();
    }

    fn say(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.has_hung_up {
            let piece = &bytes[..bytes.len().min(self.cut)];
            // No room: the lane does not take it, and nobody waits for that.
            let Ok(sent) = rustix::net::send(&self.far, piece, rustix::net::SendFlags::NOSIGNAL) else { return };
            bytes = &bytes[sent..];
            self.turn();
        }
    }

    fn post(&mut self, direction: Direction, (offset, len): (u64, u64)) {
        let local = &self.regions[if direction == Direction::Write { SOURCE } else { SINK }];
        let key = RegionKey { region: RegionId(9), generation: Generation(9) };
        let remote = RemoteMemory::TargetMediated(TargetMediatedMemory { key, bytes: REGION_BYTES });
        self.transfer += 1;
        let here = self.segments.owner_state.view().revision();
        let batch = Batch {
            direction,
            local: local.region.memory(),
            local_region: local.key(),
            remote_region: local.key(),
            remote: &remote,
            spans: &[Span { local: offset, remote: offset, len }],
            hint: Hint::Cached,
            checked_at: Revisions { local: here, remote: 0 },
            completion_id: self.posted.token(),
            transfer: self.transfer,
            transfer_bytes: 0,
        };
        match self.lane.post(&batch) {
            Ok(Posted::Accepted(1)) => self.posted.are_over.push(false),
            Ok(other) => panic!("one span is taken as {other:?}"),
            Err(PostError::Full) => {}
            Err(other) => panic!("what lies inside both is refused with {other:?}"),
        }
    }

    fn announce(&mut self, bytes: usize) {
        let payload = vec![5; bytes % (NOTE_BYTES_MAX + 1)];
        let note = Some(Note { id: NoteId(7), payload: &payload });
        let arrival = NotifyRequest {
            note,
            completion_id: self.posted.token(),
            transfer: self.transfer,
            ..NotifyRequest::default()
        };
        match self.lane.notify(&arrival) {
            Ok(_) => self.posted.are_over.push(false),
            Err(PostError::Full) => {}
            Err(other) => panic!("an announcement is refused with {other:?}"),
        }
    }

    fn cancel_op(&mut self, token: u64) {
        let Some(is_over) = self.posted.are_over.get_mut(token as usize) else { return };
        if self.lane.cancel_op(token) == CancelledOp::Quiesced {
            *is_over = true;
        }
    }

    /// What a worker does in a turn.
    fn turn(&mut self) {
        for _ in 0..TURNS {
            if self.fault.is_some() {
                return;
            }
            self.driver.turn();
            let mut is_marked = false;
            self.ready.take_each(|peer_index| is_marked |= peer_index == PARTY as usize);
            let mut more = Ok(false);
            if is_marked {
                more = self.lane.poll(&mut self.posted);
            }
            if more == Ok(true) {
                self.ready.mark(PARTY as usize);
            }
            self.fault = more.and(self.lane.ring_doorbell()).err();
        }
    }

    fn check(mut self) -> Outcome {
        self.turn();
        match self.fault {
            None | Some(LaneFault(Cause::PeerCorrupt)) => {}
            Some(LaneFault(Cause::PeerLost)) => assert!(self.has_hung_up, "a peer that is there is lost"),
            Some(other) => panic!("a stream ends with {other:?}"),
        }
        drop(self.lane);
        let sent = |(place, region): (usize, &Guarded)| {
            region.sent().unwrap_or_else(|| panic!("region {place} has changed as nobody may change it"))
        };
        let sent: Vec<usize> = self.regions.iter().enumerate().map(sent).collect();
        for place in [READABLE as usize, CLOSED as usize, SOURCE] {
            assert_eq!(sent[place], 0, "region {place} was written to");
        }
        let (written, read) = (sent[WRITABLE as usize], sent[SINK]);
        let Seen { ended, notes, .. } = self.posted;
        Outcome { fault: self.fault.map(|fault| fault.0), written, read, notes, ended }
    }
}

/// A group of these messages, with the payload that they say, if they say one that can be.
fn group(control: &[u8], spoiled: u64) -> Vec<u8> {
    let said = Messages::of(control).map_while(Result::ok).map(|message| message.payload_bytes()).sum::<u64>();
    let payload = if said <= PAYLOAD_BYTES_MAX { said } else { 0 };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + control.len() + payload as usize + TRAILER_BYTES);
    bytes.extend(Head::encode(control, payload as u32));
    bytes.extend(control);
    if payload > 0 {
        bytes.resize(bytes.len() + payload as usize, SENT);
        bytes.extend(Trailer { spoiled, revision: 1 }.to_bytes());
    }
    bytes
}

impl LaneEvents for Seen {
    fn reserve_note(&mut self) -> bool {
        // Now there is, now there is not: notes are kept meanwhile.
        self.are_over.len().is_multiple_of(2)
    }

    fn note(&mut self, note: Note<'_>) {
        assert!(note.payload.len() <= NOTE_BYTES_MAX);
        self.notes += 1;
    }

    fn handed_over(&mut self, _note: Note<'_>, _handle: Handle) {
        panic!("nothing is handed over between hosts");
    }

    fn completed(&mut self, token: u64, result: Result<u64, Failure>) {
        *(if result.is_ok() { &mut self.ended.0 } else { &mut self.ended.1 }) += 1;
        let is_over = self.are_over.get_mut(token as usize).expect("nothing was posted under this token");
        assert!(!std::mem::replace(is_over, true), "an operation is reported twice, or after it was given up");
    }
}
