//! A lane against a peer that says what no engine of ours would.

use std::sync::{Arc, Mutex, OnceLock};

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, RegionId, Rights, Span};
use penstock_memory::copy::Hint;
use penstock_memory::{HostMemory, Memory, Registry};
use penstock_ring::Withdrawal;

use super::lane::StagedLane;
use super::message::{self, Answer, CopyHead, CopyRefusal, StagingMessage, Workers};
use super::peer::WANTED_MAX;
use super::slots::{SLOT_BYTES, Slots};
use super::{StagedSession, Staging};
use crate::host::EngineSegments;
use crate::lane::{
    Batch, CancelledOp, Failure, Handle, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError,
    Posted, Revisions,
};
use crate::peer_view::PeerView;
use crate::remote::{RemoteMemory, RemoteSlots, StagedMemory};

const KEY: RegionKey = RegionKey { region: RegionId(77), generation: Generation(1) };
const WORKERS: Workers = Workers { to: 0, from: 0 };

/// What the peer does, and what the lane inside was asked to do.
#[derive(Default)]
struct Script {
    /// Said by the peer at the next look.
    says: Vec<Vec<u8>>,
    /// Told as ended at the next look.
    ends: Vec<(u64, Result<u64, Failure>)>,
    /// Messages are taken only so.
    has_room: bool,
    /// What was said, with the completion ids.
    said: Vec<(u64, Vec<u8>)>,
    posts: usize,
    /// Posts are taken, else there is no room.
    takes_posts: bool,
    /// What was posted, by completion ids.
    posted: Vec<u64>,
    /// Bytes of a write that has ended may be on their way.
    is_early: bool,
}

struct Scripted(Arc<Mutex<Script>>);

impl Lane for Scripted {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let mut script = self.0.lock().unwrap();
        script.posts += usize::from(script.takes_posts);
        script.posted.push(batch.completion_id);
        if script.takes_posts { Ok(Posted::Accepted(batch.spans.len())) } else { Err(PostError::Full) }
    }

    fn notify(&mut self, request: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        let mut script = self.0.lock().unwrap();
        if !script.has_room {
            return Err(PostError::Full);
        }
        script.said.push((request.completion_id, request.note.unwrap().payload.to_vec()));
        Ok(NotifyPosted::Accepted)
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Full)
    }

    fn cancel_op(&mut self, _: u64) -> CancelledOp {
        CancelledOp::Quiesced
    }

    fn completes_before_placement(&self) -> bool {
        self.0.lock().unwrap().is_early
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let (says, ends) = {
            let mut script = self.0.lock().unwrap();
            (std::mem::take(&mut script.says), std::mem::take(&mut script.ends))
        };
        says.iter().for_each(|message| events.lane_message(message));
        ends.into_iter().for_each(|(id, end)| events.completed(id, end));
        Ok(false)
    }
}

/// What the worker hears.
#[derive(Default)]
struct Worker {
    ended: Vec<(u64, Result<u64, Failure>)>,
}

impl LaneEvents for Worker {
    fn reserve_note(&mut self) -> bool {
        false
    }

    fn note(&mut self, _: Note<'_>) {}

    fn handed_over(&mut self, _: Note<'_>, _: Handle) {}

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        self.ended.push((completion_id, result));
    }
}

struct Stage {
    script: Arc<Mutex<Script>>,
    worker: Worker,
    lane: StagedLane,
}

impl Stage {
    /// A worker's lane of two, to a peer with one, in a process without devices.
    fn new() -> Self {
        let (registry, segments) = (Arc::new(Registry::new()), EngineSegments::create(2).unwrap());
        let staging = Staging::new(None, Arc::clone(&segments), Arc::clone(&registry), 1 << 20);
        let slots = Slots::new(4 << 20, Rights::READ_WRITE, &registry, &segments).unwrap();
        let for_peers = OnceLock::from(Arc::new(slots));
        let staging = Arc::new(Staging { for_peers: [for_peers.clone(), for_peers], ..staging });
        let session = Arc::new(StagedSession {
            staging,
            peer_view: PeerView::Reported(Arc::default()),
            reaches_devices: false,
            peer_index: 0,
            peer_workers: 1,
            mail: (0..2).map(|_| Default::default()).collect(),
        });
        let script = Arc::new(Mutex::new(Script { has_room: true, ..Script::default() }));
        let lane = StagedLane::new(&session, Box::new(Scripted(Arc::clone(&script))), 0, Arc::new(|| false));
        Self { script, worker: Worker::default(), lane }
    }

    fn hear(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Result<bool, LaneFault> {
        let mut message = Vec::new();
        put(&mut message);
        self.script.lock().unwrap().says.push(message);
        self.lane.poll(&mut self.worker)
    }

    /// What was said since it was asked last.
    fn said(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.script.lock().unwrap().said)
    }
}

#[test]
fn a_peer_that_hears_no_answers_is_not_answered_for_ever() {
    let mut stage = Stage::new();
    stage.hear(|message| message::put_want(message, WORKERS, Direction::Write, 1)).unwrap();
    let said = stage.said();
    let Ok((_, StagingMessage::Granted { slots, .. })) = message::parse(&said[0].1) else { panic!("{said:?}") };
    let slot = slots.iter().next().unwrap();
    stage.script.lock().unwrap().has_room = false;
    let copy = CopyHead { direction: Direction::Write, slot, key: KEY, number: 1, revision: 0 };
    let mut asked = 0;
    let ended = loop {
        let heard = stage.hear(|message| message::put_copy(message, WORKERS, &copy, [(0, 8)].into_iter()));
        match heard {
            Ok(_) if asked < 10_000 => asked += 1,
            heard => break heard,
        }
    };
    assert_eq!(ended, Err(LaneFault(Cause::PeerCorrupt)));
    assert_eq!(asked, 2 * WANTED_MAX, "as many as an engine may wait for");
}

/// Memory here, and a peer's device that has slots for this direction.
fn memories(direction: Direction) -> (Memory, RemoteMemory) {
    let memory = HostMemory::from_vec(vec![0; 4096]).unwrap();
    let mut slots = [None, None];
    let mapped = RemoteMemory::Mapped(memory.window().clone());
    slots[direction as usize] = Some(RemoteSlots { key: KEY, memory: mapped });
    (Memory::Host(memory.window().clone()), RemoteMemory::Staged(Arc::new(StagedMemory { bytes: 4096, slots })))
}

/// A few bytes of a transfer that goes through so many slots.
fn batch<'a>(direction: Direction, (local, remote): &'a (Memory, RemoteMemory), slots: u64) -> Batch<'a> {
    Batch {
        direction,
        local,
        local_region: KEY,
        remote_region: KEY,
        remote,
        spans: &[Span { local: 0, remote: 0, len: 64 }],
        hint: Hint::Cached,
        checked_at: Revisions { local: 0, remote: 0 },
        completion_id: 5,
        transfer: 1,
        transfer_bytes: slots * SLOT_BYTES,
    }
}

/// Two READs of a peer's device, whose copies at the peer were asked for: their numbers there.
fn reads_asked_for(stage: &mut Stage) -> [u64; 2] {
    let memories = memories(Direction::Read);
    let batch = batch(Direction::Read, &memories, 2);
    assert_eq!(stage.lane.post(&batch), Err(PostError::Full), "it has no slot of the peer");
    stage.hear(|message| message::put_granted(message, WORKERS, Direction::Read, [0, 1].into_iter())).unwrap();
    stage.said();
    [5, 6].map(|completion_id| {
        assert_eq!(stage.lane.post(&Batch { completion_id, ..batch }), Ok(Posted::Accepted(1)));
        stage.said()[0].0
    })
}

#[test]
fn an_answer_before_its_request_is_acknowledged_moves_bytes_once() {
    for acknowledged in [Ok(1), Err(Failure::from(Cause::PeerCorrupt))] {
        let mut stage = Stage::new();
        let numbers = reads_asked_for(&mut stage);
        // The copies are there, and the transport has no room for what comes next.
        let answers = numbers.map(|number| Answer { number, end: Ok(()), is_slot_wanted: false });
        stage.hear(|message| message::put_copied(message, WORKERS, answers.into_iter())).unwrap();
        stage.script.lock().unwrap().ends.push((numbers[1], acknowledged));
        stage.lane.poll(&mut stage.worker).unwrap();
        assert_eq!(stage.worker.ended, [], "{acknowledged:?}");
        stage.script.lock().unwrap().takes_posts = true;
        for _ in 0..3 {
            stage.lane.poll(&mut stage.worker).unwrap();
        }
        assert_eq!(stage.script.lock().unwrap().posts, 2, "{acknowledged:?}");
    }
}

#[test]
fn lanes_that_stage_nothing_have_no_mail() {
    let stage = Stage::new();
    let session = Arc::clone(&stage.lane.session);
    let (mut to_it, mut to_other) = (Vec::new(), Vec::new());
    message::put_want(&mut to_it, Workers { to: 1, from: 0 }, Direction::Write, 1);
    message::put_want(&mut to_other, Workers { to: 9, from: 0 }, Direction::Write, 1);
    session.pass_on(&to_other);
    session.pass_on(&to_it);
    assert!(!session.has_mail(1), "nobody there has asked for anything");
    session.mail(1).unwrap().has_lane = true;
    session.pass_on(&to_it);
    assert!(session.has_mail(1));
    let mut messages = 0;
    while session.forward(1, &to_it).is_ok() {
        messages += 1;
        assert!(messages < 1_000_000, "nobody looks at it, and it grows");
    }
}

#[test]
fn a_refusal_tells_how_far_withdrawals_have_come() {
    let mut stage = Stage::new();
    let view = stage.lane.session.peer_view.clone();
    let [number, _] = reads_asked_for(&mut stage);
    let end = Err(CopyRefusal { cause: Cause::RevokedByPeer, revision: 77 });
    let answer = Answer { number, end, is_slot_wanted: false };
    stage.hear(|message| message::put_copied(message, WORKERS, [answer].into_iter())).unwrap();
    assert_eq!(view.revision(), 77, "a plan that is built now is refused once more");
    // And here: of what this engine took back itself.
    let withdrawal = Withdrawal { region: KEY.region.0, generation: KEY.generation.0, offset: 0, len: 1 };
    let revision = stage.lane.segments().owner_state.withdraw(&[withdrawal]);
    stage.lane.answer(WORKERS.from, 9, Err(Cause::RevokedByPeer));
    stage.hear(|message| message::put_want(message, WORKERS, Direction::Write, 0)).unwrap();
    let said = stage.said();
    let refused = Err(CopyRefusal { cause: Cause::RevokedByPeer, revision });
    let is_refusal = |(_, said): &(u64, Vec<u8>)| match message::parse(said) {
        Ok((_, StagingMessage::Copied(answers))) => answers.iter().any(|answer| answer.end == refused),
        _ => false,
    };
    assert!(said.iter().any(is_refusal), "{said:?}");
}

/// One that is cancelled between its bytes and the request for their copy: over cards they may not be placed yet.
#[test]
fn a_slot_into_which_bytes_may_still_come_is_not_used_again() {
    for is_early in [false, true] {
        let mut stage = Stage::new();
        let memories = memories(Direction::Write);
        let batch = batch(Direction::Write, &memories, 1);
        assert_eq!(stage.lane.post(&batch), Err(PostError::Full), "it has no slot of the peer");
        stage.hear(|message| message::put_granted(message, WORKERS, Direction::Write, [3].into_iter())).unwrap();
        {
            let mut script = stage.script.lock().unwrap();
            (script.takes_posts, script.is_early, script.has_room) = (true, is_early, false);
        }
        assert_eq!(stage.lane.post(&batch), Ok(Posted::Accepted(1)));
        let carried = stage.script.lock().unwrap().posted.pop().unwrap();
        stage.script.lock().unwrap().ends.push((carried, Ok(64)));
        stage.lane.poll(&mut stage.worker).unwrap();
        assert_eq!(stage.lane.cancel_op(5), CancelledOp::Quiesced, "nobody was asked for a copy");
        let again = stage.lane.post(&Batch { completion_id: 6, transfer: 2, ..batch });
        let expected = if is_early { Err(PostError::Full) } else { Ok(Posted::Accepted(1)) };
        assert_eq!(again, expected, "early: {is_early}");
        stage.script.lock().unwrap().has_room = true;
        stage.said();
        stage.lane.poll(&mut stage.worker).unwrap();
        let is_given_back = |(_, said): &(u64, Vec<u8>)| match message::parse(said) {
            Ok((_, StagingMessage::GivenBack { slots, .. })) => slots.iter().eq([3]),
            _ => false,
        };
        assert_eq!(stage.said().iter().any(is_given_back), is_early, "behind the last of its bytes");
    }
}
