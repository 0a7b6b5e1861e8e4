//! What all books of a relay write into: actions, alarms, numbers and counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use penstock_core::Timestamp;
use penstock_session::PeerKey;
use penstock_session::control::{ChunkAck, ControlMessage};

use crate::FlowCause;
use crate::action::{Action, BlocksRef};

/// Who is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    Put(u64),
    Get(u64),
    Join(u64),
    Stream(PeerKey, u32),
}

/// What has been counted since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayCounts {
    /// Frames that came before anybody asked for them and were kept.
    pub early_kept: u64,
    /// Frames that were answered with a refusal, as there was no room for them or nobody had asked in time.
    pub early_refused: u64,
    /// Frames for what has ended.
    pub late: u64,
    /// Frames that make no sense here: of nobody's operation, of no reader, out of bounds, or said before.
    pub senseless: u64,
    /// Berths, and parts of an application's memory, that were quarantined for a reader.
    pub quarantined: u64,
    /// Aborts of peers that have a part in the request: it ended here.
    pub aborts: u64,
    /// Aborts of peers that have none: nothing ended here but what those had announced of it themselves. Some are to be expected: an
    /// abort is said to all peers, also to those that have nothing of the request.
    pub foreign_aborts: u64,
}

#[derive(Debug, Default)]
pub(super) struct Out {
    actions: VecDeque<Action>,
    alarms: BTreeSet<(Timestamp, Alarm)>,
    armed: BTreeMap<Alarm, Timestamp>,
    number: u64,
    pub(super) counts: RelayCounts,
}

impl Out {
    /// Numbers of moves, watches and tickets are counted from here.
    pub(super) fn new(first_number: u64) -> Self {
        Self { number: first_number, ..Self::default() }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Wakes whoever waits; once is enough until the loop has looked.
    pub(super) fn tell(&mut self) {
        if self.actions.back() != Some(&Action::Tell) {
            self.actions.push_back(Action::Tell);
        }
    }

    pub(super) fn answer(&mut self, peer: PeerKey, op: u64, part: u32, cause: Option<FlowCause>) {
        let code = cause.map_or(0, FlowCause::code);
        self.act(Action::Say { peer, said: ControlMessage::ChunkAck(ChunkAck { op, part, code }) });
    }

    /// What is let go by actions that were not carried out yet.
    pub(super) fn let_go(&self) -> impl Iterator<Item = BlocksRef> + '_ {
        self.actions.iter().filter_map(|action| match action {
            Action::Free { ticket } => Some(*ticket),
            _ => None,
        })
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A number that nothing else of this relay has.
    pub(super) fn number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    pub(super) fn arm(&mut self, alarm: Alarm, at: Timestamp) {
        self.disarm(alarm);
        if at != Timestamp::NEVER {
            self.alarms.insert((at, alarm));
            self.armed.insert(alarm, at);
        }
    }

    pub(super) fn disarm(&mut self, alarm: Alarm) {
        if let Some(at) = self.armed.remove(&alarm) {
            self.alarms.remove(&(at, alarm));
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The next alarm that is due; it is off from then on.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<Alarm> {
        let &(at, alarm) = self.alarms.first()?;
        if at > now {
            return None;
        }
        self.disarm(alarm);
        Some(alarm)
    }

    pub(super) fn has_alarms(&self) -> bool {
        !self.alarms.is_empty()
    }
}
