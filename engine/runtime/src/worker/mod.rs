//! The polling loop: one worker, its lanes and its transfers.
//!
//! Each turn does a bounded amount of everything and then starts over:
//!
//! 1. calls of the control loop (rare)
//! 2. commands, at most [`COMMANDS_PER_TURN`]
//! 3. units of the active transfers: many of each urgent one, then one each of a few others, or
//!    [`UNITS_AT_ONCE`](penstock_core::limits::UNITS_AT_ONCE) if there is one transfer and nothing else waits
//! 4. the doorbells of lanes that have accepted something
//! 5. lanes that a peer marked ready, and one more in rotation
//! 6. cancelled transfers, deadlines, remote flushes
//! 7. drivers, then sessions that drain
//!
//! - [`command`]: what a submitted transfer looks like here
//! - [`advance`]: moving a unit, telling the peer, finishing
//! - [`in_flight`]: batches that a lane has accepted and will finish later
//! - [`notify`]: notifications that a lane only accepts
//! - [`flush`]: remote flushes of transfers that ended before their writes were known to be placed
//! - [`drain`]: sessions that drain
//! - [`idle`]: what to do when there is nothing to do

mod advance;
mod command;
mod drain;
mod flush;
mod idle;
mod in_flight;
mod notify;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Env, Span, Stage, Timestamp};
use penstock_ring::{ReadyBits, Sleeper, mpsc};
use penstock_transport::lane::Handle;
use penstock_transport::{Driver, Failure, Lane, LaneEvents, Note};

pub(crate) use self::advance::move_units;
pub use self::command::Priority;
use self::command::{Active, CancelLevel};
pub(crate) use self::command::{Command, NotifySpec, PlanPosition};
use self::flush::PendingFlush;
pub(crate) use self::idle::DRIVERS_MAX;
use self::idle::Idler;
use self::in_flight::InFlightOps;
pub(crate) use self::in_flight::SyncTracker;
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Latch, Shared, WorkerCall, WorkerShared};

/// Commands taken from the queue in one turn.
const COMMANDS_PER_TURN: usize = 32;
/// Bulk transfers that move one unit each in one turn.
const BULK_PER_TURN: usize = 4;
/// Units that all urgent transfers together move before commands, lanes and deadlines are looked at.
const URGENT_UNITS_PER_TURN: u64 = 64;
/// Units that one urgent transfer moves before the next one's turn.
const URGENT_UNITS_AT_ONCE: u64 = 16;
/// How many turns pass until one lane is polled although nobody marked it.
const TURNS_PER_ROTATION: u64 = 16;
/// Drivers run every turn; in turns in which only lanes were polled, every so many turns.
const TURNS_PER_DRIVE: u64 = 8;
/// While other transfers are active, notifications that found no room are retried only every so many turns.
const TURNS_PER_RETRY: u64 = 4;

/// How long a worker that ends waits for the kernel to let go of what closed streams have sent, and how long between two looks.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);
const LAST_WORDS_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause between two looks at lanes that an engine has left behind.
const LEFT_BEHIND_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Completions of one poll that fit without an allocation.
const COMPLETIONS_CAPACITY: usize = 32;

/// What a lane has said of an operation.
enum OpEnd {
    /// With the bytes it moved, or why it did not.
    Completed(Result<u64, Failure>),
    /// It has failed, and nobody knows for how long it touches memory.
    Lost(Failure),
    /// The same of the peer's memory alone.
    LostAtPeer(Failure),
}

/// A lane and the peer it leads to.
pub(crate) struct LaneEntry {
    pub(crate) lane: Box<dyn Lane>,
    pub(crate) peer: Arc<PeerState>,
    completes_before_placement: bool,
    is_staged: bool,
    /// A side of the session drains, and this worker has reported that it has no transfer of it left.
    transfers_drained: bool,
}

impl LaneEntry {
    /// Its lane reaches memory of devices from now on, at either end.
    fn stage(self, worker: usize) -> Self {
        let (lane, peer) = (self.lane, self.peer);
        let watched = Arc::clone(&peer);
        let lane = peer.staged.lane(lane, worker, Arc::new(move || watched.is_over()));
        Self { lane, peer, is_staged: true, ..self }
    }
}

/// The lane of a session that is over, which may still touch memory.
struct LeavingLane {
    lane: LaneEntry,
    /// Opened when it does not; none: the session has not been told to leave.
    left: Option<Arc<Latch>>,
}

/// Nobody is there to hear of what ends.
struct Unheard;

impl LaneEvents for Unheard {
    fn reserve_note(&mut self) -> bool {
        false
    }

    fn note(&mut self, _: Note<'_>) {}

    fn handed_over(&mut self, _: Note<'_>, _: Handle) {}

    fn completed(&mut self, _: u64, _: Result<u64, Failure>) {}
}

/// The lane to this very peer: an index is used again by later peers.
pub(crate) fn lane_entry<'a>(lanes: &'a mut [Option<LaneEntry>], peer: &Arc<PeerState>) -> Option<&'a mut LaneEntry> {
    let entry = lanes.get_mut(peer.peer_index as usize)?.as_mut()?;
    Arc::ptr_eq(&entry.peer, peer).then_some(entry)
}

/// The lane to this peer, if it is there, reaches memory of devices from now on.
#[cold]
pub(crate) fn stage_lane(lanes: &mut [Option<LaneEntry>], peer: &Arc<PeerState>, worker: usize) {
    if lane_entry(lanes, peer).is_some_and(|entry| !entry.is_staged) {
        let place = &mut lanes[peer.peer_index as usize];
        *place = place.take().map(|entry| entry.stage(worker));
    }
}

/// One worker: a thread's, or the inline engine's own.
pub(crate) struct Worker<E: Env> {
    index: usize,
    pub(crate) shared: Arc<Shared<E>>,
    commands: mpsc::Receiver<Command>,
    pub(crate) lanes: Vec<Option<LaneEntry>>,
    leaving: Vec<LeavingLane>,
    /// Peers that it never leaves: it has ended while their lanes touched memory.
    left_behind: Vec<Arc<PeerState>>,
    /// Transfers with units to move: urgent ones and others, each in turn; the first is next.
    active: [VecDeque<Active>; 2],
    /// Transfers with nothing to post now: they have operations in flight, or their lane is full.
    waiting: VecDeque<Active>,
    in_flight: InFlightOps,
    /// Completions that a lane has reported and that are not processed yet.
    completions: Vec<(u64, OpEnd)>,
    /// Remote flushes of ended transfers that are not posted yet.
    pending_flushes: Vec<PendingFlush>,
    /// Transfers whose bytes have landed and whose notification waits for room.
    notify_blocked: VecDeque<Active>,
    /// Sessions that drain, with the latch to open when this worker has no transfer of them left.
    draining_transfers: Vec<(Arc<PeerState>, Arc<Latch>)>,
    /// What this worker does for all its lanes of a transport at once.
    pub(crate) drivers: Vec<Box<dyn Driver>>,
    /// Sessions that drain, with the latch to open when all that the peer sent is in the inbox.
    draining_inbound: Vec<(Arc<PeerState>, Arc<Latch>)>,
    /// Peers found without room in one round of retries.
    blocked: Vec<u32>,
    /// The earliest deadline of all transfers here.
    next_deadline: Timestamp,
    ready: ReadyBits,
    pub(crate) sleeper: Sleeper,
    turns: u64,
    /// Since it has looked at all lanes last.
    has_slept: bool,
    next_lane: usize,
    /// Transfers of this turn whose lane had no room for anything of them.
    without_room: usize,
    pub(crate) spans: Box<[Span; SPANS_PER_POST]>,
    stopping: bool,
}

impl<E: Env> Worker<E> {
    pub(crate) fn new(
        index: usize,
        shared: &Arc<Shared<E>>,
        commands: mpsc::Receiver<Command>,
        drivers: Vec<Box<dyn Driver>>,
    ) -> Self {
        let room = shared.slots.capacity() as usize;
        Self {
            index,
            shared: Arc::clone(shared),
            commands,
            lanes: Vec::new(),
            leaving: Vec::new(),
            left_behind: Vec::new(),
            active: [VecDeque::with_capacity(room), VecDeque::with_capacity(room)],
            draining_transfers: Vec::new(),
            drivers,
            draining_inbound: Vec::new(),
            blocked: Vec::with_capacity(8),
            notify_blocked: VecDeque::with_capacity(room),
            waiting: VecDeque::with_capacity(room),
            in_flight: InFlightOps::default(),
            pending_flushes: Vec::with_capacity(room),
            completions: Vec::with_capacity(COMPLETIONS_CAPACITY),
            next_deadline: Timestamp::NEVER,
            ready: shared.segments.mailbox.view().ready(index),
            sleeper: shared.segments.sleeper(1 + index),
            turns: 0,
            has_slept: false,
            next_lane: 0,
            without_room: 0,
            spans: Box::new([Span::default(); SPANS_PER_POST]),
            stopping: false,
        }
    }

    fn own(&self) -> &WorkerShared {
        &self.shared.workers[self.index]
    }

    /// Begins its drivers, on the thread that it will work on. If one cannot begin, those that have are ended.
    pub(crate) fn begin(&mut self) -> std::io::Result<()> {
        for index in 0..self.drivers.len() {
            if let Err(error) = self.drivers[index].begin() {
                self.drivers.truncate(index);
                self.end(Cause::EngineClosed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The thread's body: turns until told to stop.
    pub(crate) fn run(mut self) {
        let mut idler = Idler::new(&self.shared);
        while !self.stopping {
            if self.turn() {
                idler.worked();
            } else {
                idler.rest(&mut self);
            }
        }
        self.end(Cause::EngineClosed);
    }

    /// One turn. Returns whether there was anything to do.
    pub(crate) fn turn(&mut self) -> bool {
        self.turns += 1;
        self.own().statistics.turns.set(self.turns);
        let mut worked = false;
        // Asking first is a load; popping from an empty queue is a full barrier.
        while !self.own().calls.is_empty() {
            let Some(call) = self.own().calls.pop() else { break };
            self.handle_call(call);
            worked = true;
        }
        worked |= self.take_commands();
        worked |= self.advance_active();
        // Sends what was posted before it polls: polling a socket costs a third of a send.
        if self.in_flight.has_doorbells_due() {
            self.ring_doorbells();
        }
        let polled = self.poll_lanes();
        if !self.waiting.is_empty() {
            worked |= self.cancel_waiting(Self::cancel_wanted);
        }
        if self.next_deadline != Timestamp::NEVER {
            self.expire();
        }
        if !self.pending_flushes.is_empty() {
            worked |= self.post_flushes();
        }
        if self.in_flight.has_doorbells_due() {
            self.ring_doorbells();
        }
        // Drivers run last: posted work is already sent, and their events are for the next turn. While lanes are ready by
        // themselves, the kernel is asked only every few turns.
        if !self.drivers.is_empty() && (!polled || worked || self.turns.is_multiple_of(TURNS_PER_DRIVE)) {
            worked |= self.drive();
        }
        worked |= polled;
        if !self.leaving.is_empty() {
            worked |= self.drain_leaving();
        }
        // After the deadlines: the last transfer of a draining session may end by one.
        if !self.draining_transfers.is_empty() || !self.draining_inbound.is_empty() {
            self.drain_sessions();
        }
        worked
    }

    /// Whether a turn would find something; asked once more before sleeping.
    pub(crate) fn has_work(&self) -> bool {
        !self.commands.is_empty()
            || !self.own().calls.is_empty()
            || self.active.iter().any(|class| !class.is_empty())
            || self.waiting.iter().any(|active| self.cancel_wanted(active).is_some())
            || !self.ready.is_empty()
    }

    /// Sends what lanes have accepted in this turn.
    #[inline(never)]
    fn ring_doorbells(&mut self) {
        while let Some(peer_index) = self.in_flight.next_doorbell() {
            let Some(Some(entry)) = self.lanes.get_mut(peer_index as usize) else { continue };
            if let Err(fault) = entry.lane.ring_doorbell() {
                let peer = Arc::clone(&entry.peer);
                self.break_lane(peer, fault.0);
            }
        }
    }

    /// Lets the drivers look which lanes have something. Returns whether any had.
    #[inline(never)]
    fn drive(&mut self) -> bool {
        self.drivers.iter_mut().fold(false, |worked, driver| driver.turn() | worked)
    }

    /// Counts a transfer that never was in any queue.
    #[inline(always)]
    pub(crate) fn count_fast_path(&self, bytes: u64) {
        let statistics = &self.own().statistics;
        statistics.transfers_completed.add(1);
        statistics.bytes.add(bytes);
    }

    fn handle_call(&mut self, call: WorkerCall) {
        match call {
            WorkerCall::AddLane { peer, lane } => {
                let index = peer.peer_index as usize;
                if self.lanes.len() <= index {
                    self.lanes.resize_with(index + 1, || None);
                }
                let completes_before_placement = lane.completes_before_placement();
                let has_devices = peer.staged.has_devices();
                let (is_staged, transfers_drained) = (false, false);
                let mut entry = LaneEntry { lane, peer, completes_before_placement, is_staged, transfers_drained };
                if has_devices {
                    entry = entry.stage(self.index);
                }
                self.lanes[index] = Some(entry);
                self.ready.mark(index);
            }
            WorkerCall::RemoveLane { peer, cause, left } => {
                self.remove_session(&peer, cause);
                // It has left when its lane, which was set aside, touches nothing any more.
                match self.leaving.iter_mut().find(|leaving| Arc::ptr_eq(&leaving.lane.peer, &peer)) {
                    Some(leaving) => leaving.left = Some(left),
                    None if self.left_behind.iter().any(|behind| Arc::ptr_eq(behind, &peer)) => {}
                    None => self.has_left(&left),
                }
            }
            WorkerCall::DrainTransfers { peer, drained } => self.draining_transfers.push((peer, drained)),
            WorkerCall::DrainInbound { peer, drained } => self.draining_inbound.push((peer, drained)),
            WorkerCall::PollLane { peer_index } => self.ready.mark(peer_index as usize),
            WorkerCall::Stop => self.stopping = true,
        }
    }

    /// Ends everything that goes on with one peer.
    fn remove_session(&mut self, peer: &Arc<PeerState>, cause: Cause) {
        let is_theirs = |active: &Active| Arc::ptr_eq(&active.command.peer, peer);
        for class in 0..2 {
            let (gone, kept): (Vec<_>, Vec<_>) = self.active[class].drain(..).partition(is_theirs);
            self.active[class].extend(kept);
            for active in gone {
                self.cancel(active, Stage::Move, cause, CancelLevel::Immediate);
            }
        }
        let (gone, kept): (Vec<_>, Vec<_>) = self.notify_blocked.drain(..).partition(is_theirs);
        self.notify_blocked.extend(kept);
        for active in gone {
            self.fail(active, Stage::Notify, cause);
        }
        for resting in [&mut self.draining_transfers, &mut self.draining_inbound] {
            resting.retain(|(resting, _)| !Arc::ptr_eq(resting, peer));
        }
        self.drop_lane(peer, cause);
    }

    /// Waits a moment for what only this thread hears: that the kernel has let go of pages.
    fn hear_last_words(&mut self) {
        let until = self.shared.env.now() + LAST_WORDS_MAX;
        while self.drain_leaving() || !self.leaving.is_empty() {
            for driver in &mut self.drivers {
                driver.turn();
            }
            if self.shared.env.now() >= until {
                break;
            }
            self.shared.env.pause(LAST_WORDS_PAUSE);
        }
        for driver in &mut self.drivers {
            driver.give_up();
        }
    }

    /// Lanes that touch memory still, when nobody is there any more to look after them, are looked after by a thread of their own: what waits for their
    /// memory hears of it as it would have.
    fn leave_behind(&mut self) {
        self.drain_leaving();
        let open = std::mem::take(&mut self.leaving);
        if open.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        for leaving in &open {
            let peer_index = leaving.lane.peer.peer_index;
            kept.extend(self.in_flight.take_kept(peer_index));
            self.forget_ops(peer_index, false);
            // The control loop of an inline engine goes on for a moment, and would say goodbye.
            self.left_behind.push(Arc::clone(&leaving.lane.peer));
        }
        tracing::warn!(
            "an engine has ended under copies of a device or of the kernel: their memory is withheld until they have passed"
        );
        // Dropped by the thread alone: without one it stays as it is.
        let mut left = ManuallyDrop::new((open, kept));
        let body = move || {
            let (mut pause, open) = (Duration::from_millis(1), &mut left.0);
            while !open.is_empty() {
                open.retain_mut(|leaving| !leaving.lane.lane.drain(&mut Unheard));
                std::thread::sleep(pause);
                // Of a device that is lost none ever passes.
                pause = (pause + pause / 8).min(LEFT_BEHIND_PAUSE_MAX);
            }
            drop(ManuallyDrop::into_inner(left));
        };
        if let Err(error) = self.shared.env.spawn("penstock-copies", None, Box::new(body)) {
            tracing::error!(%error, "memory under copies of a device stays withheld: there is no thread to wait for them");
        }
    }

    /// Drops the lanes of sessions that are over, as soon as they touch nothing any more. Returns whether anything has ended.
    #[cold]
    fn drain_leaving(&mut self) -> bool {
        let (mut index, mut any) = (0, false);
        while let Some(LeavingLane { lane: entry, .. }) = self.leaving.get_mut(index) {
            let mut delivery = Delivery::new(&self.shared, &entry.peer, &mut self.completions);
            let is_quiet = entry.lane.drain(&mut delivery);
            drop(delivery);
            let mut completions = std::mem::take(&mut self.completions);
            for (completion_id, end) in completions.drain(..) {
                any = true;
                self.on_op_end(completion_id, end);
            }
            self.completions = completions;
            if is_quiet {
                let LeavingLane { lane, left } = self.leaving.swap_remove(index);
                let peer_index = lane.peer.peer_index;
                drop(lane);
                self.forget_ops(peer_index, true);
                left.iter().for_each(|left| self.has_left(left));
                any = true;
            } else {
                index += 1;
            }
        }
        any
    }

    fn has_left(&self, left: &Latch) {
        left.arrive();
        self.shared.control.call(ControlCall::LatchArrived);
    }

    fn on_op_end(&mut self, completion_id: u64, end: OpEnd) {
        match end {
            OpEnd::Completed(result) => self.on_completion(completion_id, result),
            OpEnd::Lost(failure) => self.on_lost(completion_id, failure),
            OpEnd::LostAtPeer(failure) => self.on_lost_at_peer(completion_id, failure),
        }
    }

    /// Ends everything with everyone: the last thing it does.
    pub(crate) fn end(&mut self, cause: Cause) {
        while self.take_commands() {}
        for active in std::mem::take(&mut self.active).into_iter().flatten() {
            self.cancel(active, Stage::Queue, cause, CancelLevel::Immediate);
        }
        let peers: Vec<_> = self.lanes.iter().flatten().map(|entry| Arc::clone(&entry.peer)).collect();
        for peer in peers {
            self.drop_lane(&peer, cause);
        }
        for active in std::mem::take(&mut self.notify_blocked) {
            self.fail(active, Stage::Notify, cause);
        }
        self.lanes.clear();
        self.hear_last_words();
        self.leave_behind();
        self.drivers.iter_mut().for_each(|driver| driver.end());
    }

    fn take_commands(&mut self) -> bool {
        for taken in 0..COMMANDS_PER_TURN {
            let Some(command) = self.commands.pop() else { return taken > 0 };
            self.own().statistics.commands.add(1);
            self.accept(command);
        }
        true
    }

    fn accept(&mut self, command: Command) {
        if let Some(cause) = command.peer.draining() {
            return self.accept_draining(command, cause);
        }
        self.enqueue(command);
    }

    fn enqueue(&mut self, command: Command) {
        let class = command.priority as usize;
        let expected = command.plan.as_ref().map(|plan| plan.inner.revisions()).unwrap_or_default();
        self.active[class].push_back(Active::new(command, expected));
    }

    /// Moves units: many of every urgent transfer, then one each of a few others.
    fn advance_active(&mut self) -> bool {
        let [no_urgent, no_bulk] = self.active.each_ref().map(VecDeque::is_empty);
        let mut worked = false;
        if !no_urgent {
            worked |= self.advance_class(Priority::Urgent, (URGENT_UNITS_PER_TURN / URGENT_UNITS_AT_ONCE) as usize);
        }
        if !no_bulk {
            worked |= self.advance_class(Priority::Bulk, BULK_PER_TURN);
        }
        // Blocked notifications are retried only every few turns, so that peers without room hardly slow down the others.
        let is_due = !self.notify_blocked.is_empty() && (!worked || self.turns.is_multiple_of(TURNS_PER_RETRY));
        worked | (is_due && self.retry_blocked_notifies())
    }

    /// Advances each transfer of a class once, the first so many of them. Returns whether there was room for anything: who only looks in vain
    /// is idle, and may sleep.
    #[inline(never)]
    fn advance_class(&mut self, class: Priority, turns: usize) -> bool {
        let advanced = self.active[class as usize].len().min(turns);
        self.without_room = 0;
        for _ in 0..advanced {
            if !self.advance(class) && self.active[class as usize].len() > 1 {
                self.active[class as usize].rotate_left(1);
            }
        }
        self.without_room < advanced
    }

    /// Looks at every lane, whatever is marked: a broken peer may have erased that. Returns whether there was anything.
    pub(crate) fn poll_all_lanes(&mut self) -> bool {
        (0..self.lanes.len()).fold(false, |any, index| {
            let polled = self.poll_lane(index);
            any | polled.has_more | (polled.taken > 0)
        })
    }

    fn poll_lanes(&mut self) -> bool {
        let mut polled = std::mem::take(&mut self.has_slept) && self.poll_all_lanes();
        let highest = self.lanes.len();
        for word in 0..highest.div_ceil(64) {
            let mut marked = self.ready.take(word);
            while marked != 0 {
                let index = word * 64 + marked.trailing_zeros() as usize;
                marked &= marked - 1;
                self.poll_lane(index);
                polled = true;
            }
        }
        if self.turns.is_multiple_of(TURNS_PER_ROTATION) && highest > 0 {
            // A bit that a broken peer erased costs time, never a message.
            self.next_lane = (self.next_lane + 1) % highest;
            polled |= self.poll_lane(self.next_lane).taken > 0;
        }
        polled
    }

    fn poll_lane(&mut self, index: usize) -> Polled {
        let Some(Some(entry)) = self.lanes.get_mut(index) else { return Polled::default() };
        let mut delivery = Delivery::new(&self.shared, &entry.peer, &mut self.completions);
        let result = entry.lane.poll(&mut delivery);
        let (taken, refused) = (delivery.taken, delivery.refused);
        drop(delivery);
        let completed = self.completions.len() as u64;
        if completed > 0 {
            self.on_completions(index);
        } else if !self.waiting.is_empty()
            && let Some(entry) = &self.lanes[index]
        {
            // A lane can get room without a completion, e.g. when its TCP streams connect.
            let peer = Arc::clone(&entry.peer);
            self.unstall(&peer);
        }
        if taken > 0 {
            self.own().statistics.notes_received.add(taken);
            self.shared.application.ring();
        }
        let mut polled =
            Polled { taken: taken + completed, is_empty: matches!(result, Ok(false)) && !refused, has_more: false };
        // A transfer that ended just now may have found the lane broken when it notified the peer.
        let Some(entry) = &self.lanes[index] else { return polled };
        match result {
            // Inbox credits may have come back since the refusal, before anyone saw it: poll again.
            Ok(more) if more || refused && entry.peer.inbox_credits.available() > 0 => {
                self.ready.mark(index);
                polled.has_more = true;
            }
            Ok(_) => {}
            Err(fault) => {
                let peer = Arc::clone(&entry.peer);
                self.break_lane(peer, fault.0);
            }
        }
        polled
    }

    /// Processes the completions of one lane, and lets transfers that waited for its room go on.
    fn on_completions(&mut self, index: usize) {
        let peer = self.lanes[index].as_ref().map(|entry| Arc::clone(&entry.peer));
        let mut completions = std::mem::take(&mut self.completions);
        for (completion_id, end) in completions.drain(..) {
            // Processing one may find the lane broken; then everything in flight on it has ended.
            if self.lanes[index].is_some() {
                self.on_op_end(completion_id, end);
            }
        }
        self.completions = completions;
        if let Some(peer) = peer {
            self.unstall(&peer);
        }
    }

    /// Nothing goes over this lane any more; the control loop ends the session.
    fn break_lane(&mut self, peer: Arc<PeerState>, cause: Cause) {
        let lane = self.lanes.get(peer.peer_index as usize).and_then(Option::as_ref);
        if let Some(why) = lane.and_then(|entry| entry.lane.why_broken()) {
            peer.note_loss(|| why);
        }
        self.drop_lane(&peer, cause);
        self.shared.control.call(ControlCall::Broken { peer, cause });
    }

    fn expire(&mut self) {
        let now = self.shared.env.now();
        if now < self.next_deadline {
            return;
        }
        let is_late = |active: &Active| active.deadline <= now;
        for class in 0..2 {
            while let Some(index) = self.active[class].iter().position(is_late) {
                let active = self.active[class].remove(index).expect("the index is in range");
                self.cancel(active, Stage::Move, Cause::DeadlineExceeded, CancelLevel::Immediate);
            }
        }
        self.cancel_waiting(|_, active| {
            let stage = if active.command.plan.is_some() { Stage::Move } else { Stage::Notify };
            is_late(active).then_some((stage, Cause::DeadlineExceeded.into(), CancelLevel::Immediate))
        });
        while let Some(index) = self.notify_blocked.iter().position(is_late) {
            let active = self.notify_blocked.remove(index).expect("the index is in range");
            self.fail(active, Stage::Notify, Cause::DeadlineExceeded);
        }
        // Computed last, over all queues: cancelling one transfer may have moved others between queues.
        let all = self.active.iter().flatten().chain(&self.waiting).chain(&self.notify_blocked);
        self.next_deadline = all.map(|active| active.deadline).min().unwrap_or(Timestamp::NEVER);
    }

    /// The deadline of a transfer that did not finish in its first turn: `after`, counted from now. Also moves
    /// `next_deadline` forward if this one is earlier.
    fn arm(&mut self, after: Duration) -> Timestamp {
        let deadline = self.shared.env.now() + after;
        self.next_deadline = self.next_deadline.min(deadline);
        deadline
    }
}

/// What polling a lane has brought.
#[derive(Debug, Clone, Copy, Default)]
struct Polled {
    /// Notifications and ends of batches.
    taken: u64,
    /// No notification was left in the lane.
    is_empty: bool,
    /// It is to be polled again.
    has_more: bool,
}

/// Puts a lane's notifications into the inbox, within the sender's credits.
struct Delivery<'a, E: Env> {
    shared: &'a Shared<E>,
    peer: &'a Arc<PeerState>,
    completions: &'a mut Vec<(u64, OpEnd)>,
    /// A notification was left where it is for want of room.
    refused: bool,
    /// One credit is taken, for the notification that comes next.
    reserved: bool,
    taken: u64,
}

impl<E: Env> LaneEvents for Delivery<'_, E> {
    fn reserve_note(&mut self) -> bool {
        self.reserved = self.reserved || self.peer.inbox_credits.take(1).is_ok();
        self.refused |= !self.reserved;
        self.reserved
    }

    fn note(&mut self, note: Note<'_>) {
        self.put(note, None);
    }

    fn lane_message(&mut self, message: &[u8]) {
        self.peer.staged.pass_on(message);
    }

    fn handed_over(&mut self, note: Note<'_>, handle: Handle) {
        self.put(note, Some(handle));
    }

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        self.completions.push((completion_id, OpEnd::Completed(result)));
    }

    fn lost(&mut self, completion_id: u64, failure: Failure) {
        self.completions.push((completion_id, OpEnd::Lost(failure)));
    }

    fn lost_at_peer(&mut self, completion_id: u64, failure: Failure) {
        self.completions.push((completion_id, OpEnd::LostAtPeer(failure)));
    }
}

impl<'a, E: Env> Delivery<'a, E> {
    fn new(shared: &'a Shared<E>, peer: &'a Arc<PeerState>, completions: &'a mut Vec<(u64, OpEnd)>) -> Self {
        Self { shared, peer, completions, refused: false, reserved: false, taken: 0 }
    }

    fn put(&mut self, note: Note<'_>, handle: Option<Handle>) {
        debug_assert!(self.reserved, "a lane asks for room before every notification");
        if self.shared.manager.is_manager_note(note.id) {
            self.shared.on_manager_note(self.peer, note.payload);
        } else {
            self.shared.inbox.put(self.peer, note.id, note.payload, handle);
        }
        self.reserved = false;
        self.taken += 1;
    }
}

impl<E: Env> Drop for Delivery<'_, E> {
    fn drop(&mut self) {
        if self.reserved {
            self.peer.inbox_credits.give_back(1).expect("this credit was reserved above");
        }
    }
}
