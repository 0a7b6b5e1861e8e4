//! A lane over rings and a mailbox that somebody scribbles over.
//!
//! The input is a script: an operation in one byte and its operands, little endian, zero where the
//! input ends. A peer pushes and takes as it should, writes where it should not, and in between the
//! lane is polled and told to announce.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_core::NoteId;
use penstock_core::limits::{NOTE_BYTES_MAX, NOTE_LINES_MAX, RING_LINES};
use penstock_ring::spsc::{Consumer, MappedStorage, Producer};
use penstock_ring::{RingLine, SharedRange};
use penstock_transport::host::{
    CopyLane, CopyLaneParts, EngineSegments, InboundRings, PeerSegments, ring_segment_bytes,
};
use penstock_transport::lane::Handle;
use penstock_transport::record::{self, RecordKind};
use penstock_transport::{CounterRef, Failure, Lane, LaneEvents, LaneFault, Note, NotifyRequest, PostError};

/// The operations of a script.
pub mod op {
    /// The peer pushes a note of so many bytes (u16).
    pub const PUSH: u8 = 0;
    /// The peer pushes a record that hands over a handle, which this transport cannot.
    pub const PUSH_HAND_OVER: u8 = 1;
    /// The lane is polled, with room for so many notes (u8).
    pub const POLL: u8 = 2;
    /// The lane announces a note of so many bytes (u16).
    pub const ANNOUNCE: u8 = 3;
    /// The lane counts up (index u32, generation u32).
    pub const COUNT: u8 = 4;
    /// The peer takes what was announced.
    pub const TAKE: u8 = 5;
    /// The peer writes a word (u16 place, u64 value) of the ring it fills.
    pub const SCRIBBLE_INBOUND: u8 = 6;
    /// The peer writes a word (u16 place, u64 value) of the ring it empties.
    pub const SCRIBBLE_OUTBOUND: u8 = 7;
    /// The peer writes a word (u16 place, u64 value) of our mailbox.
    pub const SCRIBBLE_MAIL: u8 = 8;
    /// The peer moves the tail of the ring it fills by so much (i16).
    pub const MOVE_TAIL: u8 = 9;
    /// How many there are.
    pub const COUNT_OF_OPS: u8 = 10;
}

/// Operations of one script at most.
const OPS_MAX: usize = 400;
/// Notes a lane takes from one ring before it looks at anything else.
const NOTES_PER_POLL_MAX: usize = 32;
/// Words beside each ring that nobody may write.
const GUARD_BYTES: usize = 128;
const GUARD: u64 = 0xa5a5_5a5a_a5a5_5a5a;

/// Whatever the peer does, a lane neither panics nor writes beside its ring, and ends typed or not at
/// all. A peer that keeps to the rules is understood to the last byte.
pub fn run(input: &[u8]) {
    let mut bench = Bench::new();
    let mut script = Script(input);
    for _ in 0..OPS_MAX {
        let Some(code) = script.next_op() else { break };
        if bench.perform(code, &mut script).is_err() {
            break; // The session has ended, typed.
        }
    }
    bench.check();
}

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next_op(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first % op::COUNT_OF_OPS)
    }

    fn number<const BYTES: usize>(&mut self) -> u64 {
        let (taken, rest) = self.0.split_at(BYTES.min(self.0.len()));
        self.0 = rest;
        let mut padded = [0; 8];
        padded[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(padded)
    }
}

/// A ring between two guards.
struct Guarded {
    whole: SharedRange,
    ring: SharedRange,
}

impl Guarded {
    fn new() -> Self {
        let whole = SharedRange::heap(ring_segment_bytes(1) + 2 * GUARD_BYTES);
        let ring = whole.slice(GUARD_BYTES, ring_segment_bytes(1)).expect("it lies between the guards");
        let guarded = Self { whole, ring };
        guarded.guards().for_each(|word| word.store(GUARD, Ordering::Relaxed));
        guarded
    }

    fn guards(&self) -> impl Iterator<Item = &std::sync::atomic::AtomicU64> {
        let behind = self.whole.len() - GUARD_BYTES;
        let places = (0..GUARD_BYTES).chain(behind..self.whole.len()).step_by(8);
        places.map(|at| self.whole.atomic_u64(at).expect("the guard lies inside"))
    }

    fn storage(&self) -> MappedStorage {
        MappedStorage::new(self.ring.clone(), RING_LINES).expect("the place is a ring's")
    }
}

struct Bench {
    inbound: Guarded,
    outbound: Guarded,
    mailbox: SharedRange,
    lane: Box<dyn Lane>,
    /// The peer's ends.
    producer: Producer<MappedStorage>,
    consumer: Consumer<MappedStorage>,
    /// What the peer has pushed and the lane must bring, as long as the peer keeps to the rules.
    pushed: Vec<u16>,
    brought: Vec<(NoteId, Vec<u8>)>,
    announced: Vec<u16>,
    taken: usize,
    keeps_inbound: bool,
    keeps_outbound: bool,
}

thread_local! {
    /// Making these takes system calls; what a script leaves in the mailbox is one more strange beginning.
    static COMMONS: (Arc<EngineSegments>, Arc<PeerSegments>) = {
        let ours = EngineSegments::create(1).expect("a machine that runs tests has memory files");
        let theirs = EngineSegments::create(1).expect("as above");
        (ours, Arc::new(theirs.as_local_peer()))
    };
}

fn payload(bytes: u16) -> Vec<u8> {
    (0..bytes).map(|place| (place ^ bytes) as u8).collect()
}

impl Bench {
    fn new() -> Self {
        let (inbound, outbound) = (Guarded::new(), Guarded::new());
        let (ours, theirs) = COMMONS.with(Clone::clone);
        let lanes = CopyLane::for_each_worker(CopyLaneParts {
            segments: &ours,
            peer_segments: &theirs,
            peer_index: 0,
            index_at_peer: 0,
            outbound: &outbound.ring,
            inbound: InboundRings::over(&inbound.ring, 1).expect("the ring is fresh"),
            hand_overs: None,
            bounce: None,
            devices: None,
            kernel: None,
        });
        let lane = lanes.expect("the rings are fresh").pop().expect("there is one worker");
        Self {
            mailbox: ours.mailbox.segment().range(),
            lane,
            producer: Producer::attach(inbound.storage()).expect("the ring is fresh"),
            consumer: Consumer::attach(outbound.storage()),
            inbound,
            outbound,
            pushed: Vec::new(),
            brought: Vec::new(),
            announced: Vec::new(),
            taken: 0,
            keeps_inbound: true,
            keeps_outbound: true,
        }
    }

    fn perform(&mut self, code: u8, script: &mut Script<'_>) -> Result<(), LaneFault> {
        match code {
            op::PUSH => self.push(RecordKind::Note, script.number::<2>()),
            op::PUSH_HAND_OVER => {
                self.push(RecordKind::HandOver, 0);
                self.keeps_inbound = false;
            }
            op::POLL => return self.poll(script.number::<1>() as usize),
            op::ANNOUNCE => return self.announce(script.number::<2>()),
            op::COUNT => {
                let counter =
                    CounterRef { index: script.number::<4>() as u32, generation: script.number::<4>() as u32 };
                let counted = self.lane.notify(&NotifyRequest { counter: Some(counter), ..NotifyRequest::default() });
                assert!(counted.is_ok(), "counting needs no room: {counted:?}");
            }
            op::TAKE => self.take(),
            op::SCRIBBLE_INBOUND => self.keeps_inbound = !scribble(&self.inbound.ring, script) && self.keeps_inbound,
            op::SCRIBBLE_OUTBOUND => {
                self.keeps_outbound = !scribble(&self.outbound.ring, script) && self.keeps_outbound;
            }
            op::SCRIBBLE_MAIL => drop(scribble(&self.mailbox, script)),
            _ => {
                let tail = self.inbound.ring.atomic_u64(0).expect("a ring begins with its tail");
                tail.fetch_add(script.number::<2>() as u16 as i16 as u64, Ordering::Relaxed);
                self.keeps_inbound = false;
            }
        }
        Ok(())
    }

    fn push(&mut self, kind: RecordKind, bytes: u64) {
        let bytes = (bytes as usize % (NOTE_BYTES_MAX + 1)) as u16;
        let mut lines = [RingLine::default(); NOTE_LINES_MAX];
        let sequence = self.pushed.len() as u64;
        let count = record::write(kind, sequence, NoteId(sequence.into()), &payload(bytes), &mut lines);
        if self.producer.push(&lines[..count]).is_ok() {
            self.pushed.push(bytes);
        }
    }

    fn poll(&mut self, room: usize) -> Result<(), LaneFault> {
        let mut sink = Collect { room, brought: &mut self.brought };
        let before = sink.brought.len();
        let polled = self.lane.poll(&mut sink);
        let brought = self.brought.len() - before;
        assert!(brought <= room.min(NOTES_PER_POLL_MAX), "{brought} notes where {room} had room");
        if let Err(fault) = polled {
            assert!(!self.keeps_inbound, "a peer that kept to the rules is called {fault:?}");
            return Err(fault);
        }
        Ok(())
    }

    fn announce(&mut self, bytes: u64) -> Result<(), LaneFault> {
        let bytes = (bytes as usize % (NOTE_BYTES_MAX + 1)) as u16;
        let note = Note { id: NoteId(u128::MAX), payload: &payload(bytes) };
        match self.lane.notify(&NotifyRequest { note: Some(note), ..NotifyRequest::default() }) {
            Ok(_) => self.announced.push(bytes),
            Err(PostError::Full) => {}
            Err(PostError::Fault(fault)) => {
                assert!(!self.keeps_outbound, "a peer that kept to the rules is called {fault:?}");
                return Err(fault);
            }
            Err(other) => panic!("an announcement ends with {other:?}"),
        }
        Ok(())
    }

    /// The peer takes everything, as a reader that trusts us, while it has kept to the rules itself.
    fn take(&mut self) {
        while self.keeps_outbound {
            let available = self.consumer.available().expect("the writer keeps to the rules");
            if available == 0 {
                return;
            }
            let first = self.consumer.peek(0).expect("a line is available");
            let head = record::parse(&first, self.taken as u64).expect("the writer keeps to the rules");
            let mut found = vec![0; head.bytes];
            for place in 0..head.lines {
                record::unpack(place, &self.consumer.peek(place).expect("records come whole"), &mut found);
            }
            assert_eq!(found, payload(self.announced[self.taken]), "note {}", self.taken);
            self.taken += 1;
            let _ = self.consumer.release(head.lines);
        }
    }

    fn check(mut self) {
        let guards = self.inbound.guards().chain(self.outbound.guards());
        assert!(guards.map(|word| word.load(Ordering::Relaxed)).all(|word| word == GUARD), "written beside a ring");
        self.take();
        if !self.keeps_inbound {
            return;
        }
        while self.brought.len() < self.pushed.len() {
            let before = self.brought.len();
            assert_eq!(self.poll(NOTES_PER_POLL_MAX), Ok(()));
            assert!(self.brought.len() > before, "notes are lost");
        }
        for (place, ((id, found), &bytes)) in self.brought.iter().zip(&self.pushed).enumerate() {
            assert_eq!((id.0, found), (place as u128, &payload(bytes)), "note {place}");
        }
    }
}

/// Writes one word, and answers whether that changed anything.
fn scribble(place: &SharedRange, script: &mut Script<'_>) -> bool {
    let at = script.number::<2>() as usize % (place.len() / 8);
    let value = script.number::<8>();
    let word = place.atomic_u64(at * 8).expect("the word lies inside");
    word.swap(value, Ordering::Relaxed) != value
}

struct Collect<'a> {
    room: usize,
    brought: &'a mut Vec<(NoteId, Vec<u8>)>,
}

impl LaneEvents for Collect<'_> {
    fn reserve_note(&mut self) -> bool {
        self.room > 0
    }

    fn note(&mut self, note: Note<'_>) {
        assert!(note.payload.len() <= NOTE_BYTES_MAX);
        self.room = self.room.checked_sub(1).expect("a lane asks for room first");
        self.brought.push((note.id, note.payload.to_vec()));
    }

    fn handed_over(&mut self, _note: Note<'_>, _handle: Handle) {
        panic!("this transport hands nothing over");
    }

    fn completed(&mut self, _token: u64, _result: Result<u64, Failure>) {
        panic!("nothing was posted");
    }
}
