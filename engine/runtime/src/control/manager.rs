//! What the transfer manager hears, and what it wants carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Env, NoteId, Timestamp};
use penstock_flows::action::{RegionRef, Urgency};
use penstock_flows::manager::{HowEnded, Report, Reported};
use penstock_flows::{Action, BlocksRef, Event, MoveId, Moving, Spans, WatchId};
use penstock_ring::Key;
use penstock_session::control::Side;
use penstock_session::{ControlMessage, PeerKey};
use penstock_transport::Note;

use super::held_up::{HeldUp, Waits};
use super::life::is_loss;
use super::{Control, Phase, Talk};
use crate::error::{PlanError, RegionError, SubmitError};
use crate::manager::key_of;
use crate::peer_state::{PeerState, RemoteEntry};
use crate::plan::PlanBuilder;
use crate::quiesce::{QuiesceCondition, have_settled};
use crate::shared::{Shared, WorkerCall};
use crate::submit::Submission;
use crate::worker::Priority;

/// What is under way for the transfer manager.
#[derive(Default)]
pub(super) struct ActiveMoves {
    moves: BTreeMap<MoveId, Moved>,
    by_key: BTreeMap<Key, MoveId>,
    /// Those that have ended, and of which something may be open at their peers.
    open: BTreeSet<MoveId>,
    /// Those that could not begin for want of room, or of news that are under way.
    held_up: HeldUp<Moving>,
    watches: Vec<Watch>,
    /// When it is looked again whether what is quarantined is quiet.
    quarantine_at: Option<Timestamp>,
}

/// A question whether a peer is quiet.
struct Watch {
    id: WatchId,
    witnesses: Vec<QuiesceCondition>,
    /// When cards that are not done are cut off.
    force_at: Option<Timestamp>,
}

/// How long cards may take until they are cut off, of a peer that has to be quiet.
const CARDS_WITHIN: Duration = Duration::from_millis(250);
/// How often it is looked at what cannot be waited for.
pub(super) const LOOKS: Duration = Duration::from_millis(1);

/// A transfer that is watched.
struct Moved {
    key: Key,
    peer: Arc<PeerState>,
}

/// Why a move has not begun.
enum NotBegun {
    /// It is tried again.
    Yet(Waits),
    Ever(Cause),
}

impl NotBegun {
    fn of_plan(error: &PlanError) -> Self {
        match error {
            PlanError::Region(RegionError::NewsUnderWay { .. }) => Self::Yet(Waits::News),
            PlanError::Region(RegionError::Renewed { .. }) => Self::Ever(Cause::MemoryRenewed),
            PlanError::Region(RegionError::Stale { .. }) => Self::Ever(Cause::RevokedByPeer),
            PlanError::Region(RegionError::Call(cause)) => Self::Ever(*cause),
            PlanError::Shape(_) => Self::Ever(Cause::OutOfBounds),
            _ => Self::Ever(Cause::NoPath),
        }
    }

    fn of_submit(error: &SubmitError) -> Self {
        match error {
            SubmitError::Full { .. } => Self::Yet(Waits::Room),
            SubmitError::Draining { cause, .. } | SubmitError::PeerGone { cause, .. } | SubmitError::Call(cause) => {
                Self::Ever(*cause)
            }
            _ => Self::Ever(Cause::NoPath),
        }
    }
}

impl<E: Env> Control<E> {
    /// Something has happened that the transfer manager is to know.
    pub(super) fn tell_manager(&mut self, event: Event) {
        self.shared.manager.handle(event, self.shared.env.now());
    }

    /// A peer has begun to hear of what there is: the transfer manager may say something to it.
    pub(super) fn joined_manager(&mut self, peer: &PeerState) {
        self.tell_manager(Event::Joined { peer: key_of(peer), name: peer.name.clone() });
    }

    /// A peer has said something that is the transfer manager's.
    pub(super) fn heard_said(&mut self, token: u64, said: ControlMessage) {
        let Some(Talk { phase: Phase::Open { peer, announced, .. }, .. }) = self.talks.get_mut(&token) else { return };
        let Some(said) = announced.heard(said) else { return };
        if let ControlMessage::PeerFeatures(able) = &said {
            peer.speaks_of_transfers(able.tag);
        }
        let peer = key_of(peer);
        self.tell_manager(Event::Said { peer, said });
    }

    /// Bytes of a peer are here, it says. Its note leaves the room of its others.
    pub(super) fn landed(&mut self, peer: &Arc<PeerState>, payload: Vec<u8>) {
        // What a session says that is over is no word of the next one, which may have its place.
        if peer.ended().is_none() {
            self.tell_manager(Event::Landing { peer: key_of(peer), bytes: payload });
        }
        let was_short = peer.inbox_credits.available() == 0;
        peer.inbox_credits.give_back(1).expect("a credit was taken when the landing came");
        if was_short {
            self.shared.workers.iter().for_each(|port| port.call(WorkerCall::PollLane { peer_index: peer.peer_index }));
        }
    }

    /// A transfer of the transfer manager's has ended.
    pub(super) fn move_ended(&mut self, key: Key) {
        let Some(&id) = self.under_way.by_key.get(&key) else { return };
        let Some(slot) = self.shared.slots.get(key) else { return };
        let Some(outcome) = slot.outcome() else { return };
        self.under_way.open.insert(id);
        let result = outcome.failure.map_or_else(|| Ok(slot.bytes()), |(_, failure)| Err(failure.cause));
        // One that has failed may have left the kernel with pages of this engine's: they are read, or another worker is about to learn of it.
        let is_open_there = slot.is_remote_pending() || result.is_err() && slot.is_busy_here();
        self.tell_manager(Event::Ended { id, result, is_open_there });
        if !is_open_there {
            self.let_go_of(id);
        }
    }

    /// A transfer of the transfer manager's that failed with its lane may have been acknowledged by then: what its peer sent before is read first.
    pub(super) fn hear_before_failure(&mut self, key: Key) {
        let outcome = self.shared.slots.get(key).and_then(|slot| slot.outcome());
        if !outcome.is_some_and(|outcome| outcome.failure.is_some_and(|(_, failure)| is_loss(failure.cause))) {
            return;
        }
        let moved = self.under_way.by_key.get(&key).and_then(|id| self.under_way.moves.get(id));
        if let Some(token) = moved.map(|moved| Arc::clone(&moved.peer)).and_then(|peer| self.token_of(&peer)) {
            self.hear_out(token);
        }
    }

    fn let_go_of(&mut self, id: MoveId) {
        if let Some(moved) = self.under_way.moves.remove(&id) {
            self.under_way.open.remove(&id);
            self.under_way.by_key.remove(&moved.key);
            self.shared.release_slot(moved.key);
        }
    }

    /// Looks whether what was open at peers, or is still with the kernel, is not any more.
    fn look_at_open(&mut self) {
        let shared = &self.shared;
        let is_closed = |moved: &Moved| {
            let slot = shared.slots.get(moved.key);
            let (is_open, is_busy) =
                slot.map_or((false, false), |slot| (slot.is_remote_pending(), slot.is_busy_here()));
            !is_busy && (!is_open || moved.peer.has_let_go() || moved.peer.is_lost())
        };
        let ActiveMoves { moves, open, .. } = &self.under_way;
        let closed: Vec<MoveId> = open.iter().filter(|id| moves.get(id).is_some_and(is_closed)).copied().collect();
        for id in closed {
            self.let_go_of(id);
            self.tell_manager(Event::Closed { id });
        }
    }

    /// Does everything that the transfer manager wants.
    pub(super) fn turn_manager(&mut self) {
        if self.shared.manager.deadline() <= self.shared.env.now() {
            self.shared.manager.expire(self.shared.env.now());
        }
        self.shared.manager.report(Reported {
            failures: tracing::enabled!(tracing::Level::INFO),
            successes: tracing::enabled!(tracing::Level::DEBUG),
        });
        self.look_at_open();
        self.look_at_watches();
        self.look_at_quarantine();
        let mut held_up = std::mem::take(&mut self.under_way.held_up);
        held_up.begin(|id, peer, moving| self.try_move(id, peer, moving));
        self.under_way.held_up = held_up;
        while let Some(action) = self.shared.manager.next() {
            match action {
                Action::Say { peer, said } => self.say_to(peer, said),
                Action::Move { id, peer, moving } => self.begin_move(id, peer, moving),
                Action::Stop { id } => self.stop_move(id),
                Action::Watch { id, peer } => self.watch(id, peer),
                Action::Quarantine { ticket, peers, why } => self.quarantine(ticket, &peers, why),
                Action::Free { ticket } => {
                    if self.shared.manager.let_go(ticket) {
                        // Nobody else has a handle on it.
                        self.shared.quarantine.release_proven();
                    }
                }
                Action::Report { report } => self.report(&report),
                Action::Tell => {
                    self.shared.manager.tell();
                    self.shared.application.ring();
                }
            }
        }
    }

    /// Writes down how a transfer by name has ended: one line for each of its sides.
    fn report(&self, report: &Report) {
        let Report { side, transfer, request, peers, how } = report;
        let name = |peer: &PeerKey| match self.shared.peers.known(*peer) {
            Some(state) => state.name.to_string(),
            None => format!("peer {} of epoch {}", peer.peer_index, peer.epoch),
        };
        let peers: Vec<String> = peers.iter().map(name).collect();
        let peers = peers.join(", ");
        let side = if *side == Side::Source { "source" } else { "sink" };
        match how {
            HowEnded::Failed { cause, said_by, words } => {
                let said_by = if *said_by == Side::Source { "source" } else { "sink" };
                tracing::info!(%transfer, %request, peers, side, said_by, %cause, words, "a transfer has failed");
            }
            HowEnded::Well { tokens } => {
                tracing::debug!(%transfer, %request, peers, side, tokens, "a transfer has ended well");
            }
        }
    }

    fn say_to(&mut self, peer: PeerKey, said: ControlMessage) {
        if matches!(said, ControlMessage::Chunk(_)) {
            // It names memory, which may have been registered a moment ago: the peer has to know that first.
            self.advertise_changes();
        }
        let is_theirs = |talk: &Talk<E>| match &talk.phase {
            Phase::Open { peer: theirs, .. } => key_of(theirs) == peer,
            _ => false,
        };
        // Whoever has left meanwhile hears nothing.
        let Some(token) = self.talks.iter().find(|(_, talk)| is_theirs(talk)).map(|(&token, _)| token) else { return };
        if let Some(said) = self.may_say(token, said) {
            self.say_transfer(token, said);
        }
    }

    fn begin_move(&mut self, id: MoveId, peer: PeerKey, moving: Moving) {
        // Whoever waits for room is not overtaken.
        let is_full = self.under_way.held_up.is_full();
        let begun = if is_full { Err(Waits::Room) } else { self.try_move(id, peer, &moving) };
        if let Err(waits) = begun {
            self.under_way.held_up.hold(id, moving.urgency == Urgency::Urgent, peer, moving, waits);
        }
    }

    /// Begins a move, unless it has to wait. Of one that never can begin the transfer manager hears the end.
    fn try_move(&mut self, id: MoveId, peer: PeerKey, moving: &Moving) -> Result<(), Waits> {
        let known = self.shared.peers.known(peer).filter(|state| state.ended().is_none());
        let begun = match known {
            Some(state) => self.shared.begin_move(&state, moving).map(|key| (key, state)),
            None => Err(NotBegun::Ever(Cause::PeerLost)),
        };
        match begun {
            Ok((key, peer)) => {
                self.under_way.moves.insert(id, Moved { key, peer });
                self.under_way.by_key.insert(key, id);
                // It may have ended before it was known here.
                self.move_ended(key);
            }
            Err(NotBegun::Yet(waits)) => return Err(waits),
            Err(NotBegun::Ever(cause)) => {
                self.tell_manager(Event::Ended { id, result: Err(cause), is_open_there: false });
            }
        }
        Ok(())
    }

    /// Asks who may be copying between this engine's memory and a peer's.
    fn watch(&mut self, id: WatchId, peer: PeerKey) {
        let witnesses = match self.shared.peers.known(peer) {
            Some(state) => {
                let mut witnesses = self.shared.witnesses_of(&state);
                if state.ended().is_some() {
                    // Who is quiet may be about to begin, as long as it does not know that the session is over.
                    witnesses.push(QuiesceCondition::Session { peer: state });
                }
                witnesses
            }
            None => Vec::new(),
        };
        let force_at = Some(self.shared.env.now() + CARDS_WITHIN);
        self.under_way.watches.push(Watch { id, witnesses, force_at });
        self.look_at_watches();
    }

    /// Blocks that were quarantined come back by themselves.
    fn look_at_quarantine(&mut self) {
        let now = self.shared.env.now();
        if self.under_way.quarantine_at.is_some_and(|at| at > now) {
            return;
        }
        if self.under_way.quarantine_at.is_some() {
            self.shared.quarantine.release_proven();
        }
        self.under_way.quarantine_at = self.shared.quarantine.look_again(now);
    }

    fn look_at_watches(&mut self) {
        let now = self.shared.env.now();
        let mut quiet = Vec::new();
        self.under_way.watches.retain_mut(|watch| {
            if have_settled(&mut watch.witnesses) {
                quiet.push(watch.id);
                return false;
            }
            if watch.force_at.is_some_and(|at| at <= now) {
                watch.force_at = None;
                watch.witnesses.iter().for_each(QuiesceCondition::force);
            }
            true
        });
        for id in quiet {
            self.tell_manager(Event::Quiet { id });
        }
    }

    /// Keeps blocks from everybody until the transfer manager has a proof, or the peer is gone.
    fn quarantine(&mut self, ticket: BlocksRef, peers: &[PeerKey], why: &'static str) {
        // Who is not known any more touches nothing: what it had was proven quiet, or is quarantined by itself. The transfer manager will hear so.
        let known: Vec<_> = peers.iter().filter_map(|&peer| self.shared.peers.known(peer)).collect();
        if !known.is_empty()
            && let Some((blocks, word)) = self.shared.manager.quarantine(ticket)
        {
            self.shared.quarantine_until_told(why, blocks, known, &word);
        }
    }

    fn stop_move(&mut self, id: MoveId) {
        if self.under_way.held_up.stop(id) {
            return self.tell_manager(Event::Ended { id, result: Err(Cause::Cancelled), is_open_there: false });
        }
        if let Some(moved) = self.under_way.moves.get(&id) {
            let key = moved.key;
            self.shared.stop_transfer(key);
        }
    }

    /// When the transfer manager is turned although nothing happens.
    pub(super) fn manager_deadline(&self) -> Option<Timestamp> {
        let ActiveMoves { open, held_up, watches, .. } = &self.under_way;
        let is_looked_at = !held_up.is_empty() || !watches.is_empty() || !open.is_empty();
        let look = is_looked_at.then(|| self.shared.env.now() + LOOKS);
        let look = look.into_iter().chain(self.under_way.quarantine_at);
        let deadline = self.shared.manager.deadline();
        look.chain((deadline != Timestamp::NEVER).then_some(deadline)).min()
    }
}

impl<E: Env> Shared<E> {
    /// Has a peer's pool mapped where nobody waits. A plan that is built once it is costs little.
    fn map_elsewhere(&self, peer: &Arc<PeerState>, entry: &Arc<RemoteEntry>) -> Result<(), NotBegun> {
        match peer.import_elsewhere(entry, |job| self.env.run_blocking(peer.process.id(), job)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(peer = %peer.name, region = entry.news.label, %error, "a peer's region cannot be reached");
                Err(NotBegun::Ever(Cause::NoPath))
            }
            None => Err(NotBegun::Yet(Waits::Mapping)),
        }
    }

    fn begin_move(&self, peer: &Arc<PeerState>, moving: &Moving) -> Result<Key, NotBegun> {
        let plan = |local: &RegionRef, remote: &RegionRef| {
            let gone = |cause| NotBegun::Ever(cause);
            let local = self.registry.resolve(local.region, local.generation).map_err(|_| gone(Cause::RevokedHere))?;
            let entry = peer.entry_of(remote.region, remote.generation).ok_or(gone(Cause::RevokedByPeer))?;
            self.map_elsewhere(peer, &entry)?;
            Ok(PlanBuilder::new(moving.direction).between_parts(self, &local, peer, &entry))
        };
        let plan = match &moving.spans {
            Spans::Blocks(whole) => {
                let (here, there) = whole.strides;
                let plan = plan(&whole.local, &whole.remote)?.layers(&whole.layers).blocks(&whole.blocks);
                let plan = plan.block_bytes(whole.block_bytes);
                Some(plan.strides(here, there).build())
            }
            // Of a layer that others of the source send nothing goes but the word that it is complete.
            Spans::Cut { spans, .. } if spans.is_empty() => None,
            Spans::Cut { local, remote, spans } => Some(plan(local, remote)?.extents(spans).build()),
        };
        let plan = plan.transpose().map_err(|error| NotBegun::of_plan(&error))?;
        let note = match (&moving.landing, peer.landing_tag()) {
            (Some((number, payload)), Some(tag)) => {
                Some(Note { id: NoteId(u128::from(tag) << 64 | u128::from(*number)), payload })
            }
            _ => None,
        };
        let priority = match moving.urgency {
            Urgency::Bulk => Priority::Bulk,
            Urgency::Urgent => Priority::Urgent,
        };
        self.check_submit(peer, note).map_err(|error| NotBegun::of_submit(&error))?;
        let submission = Submission {
            plan: plan.as_ref(),
            counter: None,
            note,
            handle: None,
            within: moving.within,
            priority,
            is_watched: true,
        };
        self.submit(peer, submission).map_err(|error| NotBegun::of_submit(&error))
    }
}
