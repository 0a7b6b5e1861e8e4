//! The transfer manager: one for each engine, where everything that happens to transfers by name comes in, and everything that is wanted goes out.
//!
//! It is turned by calls: what happened goes in with [`TransferManager::handle`] and its moment, what is to be done comes out of
//! [`TransferManager::poll_action`], in the order in which it was decided. Nothing in it waits.
//!
//! - [`flow`]: what is kept of one transfer
//! - `calls`: what an application asks for
//! - `heard`: what peers say of transfers, and what becomes of moves
//! - `carry`: what transfers want, as actions
//! - `book`: which blocks are written and read, and for whom
//! - `check`: whether all of it agrees with itself
//! - `gates`: what applications put in front of layers
//! - `moves`: what moves, and of which transfer it is
//! - `names`: whose a move or a watch is
//! - `lives`: requests of devices, and their swaps
//! - `lending`: what is lent and borrowed, and for how long
//! - `abroad`: the same of other engines, and for them
//! - `pins`: what is kept of requests that have ended
//! - `relays`: chunks between stages
//! - `refusing`: what a source refuses by itself, and what is remembered of how it failed
//! - `reports`: how transfers ended, for a log
//! - `shares`: in which transfers each peer has a part
//! - `resume`: transfers whose session broke, and that go on in another one
//! - `last_words`: what a sink says last, which a session may have taken with it
//! - `settings`: how much there may be of everything
//! - `timers`: which transfer is to be looked at next though nothing happens
//! - `telling`: the word that something can be fetched

mod abroad;
mod book;
mod calls;
mod carry;
mod check;
mod flow;
mod gates;
mod heard;
mod last_words;
mod lending;
mod lives;
mod moves;
mod names;
mod pins;
mod refusing;
mod relays;
mod reports;
mod resume;
mod settings;
mod shares;
mod telling;
mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use penstock_core::Timestamp;
use penstock_session::control::{Ack, CONTROL_VERSIONS, LayoutNews, PeerFeatures, Side};
use penstock_session::leases::LeaseId;
use penstock_session::transfers::table::{EntryKey, FinishedTransfer, TableMetrics, Transfers};
use penstock_session::{ControlMessage, PeerKey, RequestId, TransferId};

use self::abroad::Abroad;
use self::book::Book;
pub use self::book::{BlockAccess, BlockUseKey, Placed, User};
pub use self::calls::{CallError, Consume, Produce, Sinks};
pub use self::check::Inconsistency;
use self::flow::{Flow, FlowMemory, Held};
pub use self::gates::GateId;
use self::gates::Gates;
use self::last_words::LastWords;
use self::lending::Lending;
use self::lives::Lives;
pub use self::lives::{DEVICES_MAX, DeviceKey, SwapFailed, SwapStatus};
use self::moves::Moves;
use self::names::IdPart;
use self::pins::Keeping;
use self::refusing::Epitaphs;
use self::relays::first_of;
pub use self::relays::{RELAY, RelayMetrics, part_of};
pub use self::reports::{HowEnded, Report, Reported};
pub use self::settings::Settings;
use self::shares::Shares;
use self::telling::Telling;
use self::timers::Timers;
use crate::action::{Action, MoveId, RegionRef, WatchId};
use crate::event::Event;
use crate::geometry::ShardStripe;
use crate::input::Totals;
use crate::layout::Layout;
use crate::partners::{LayoutKey, LayoutRefused, Partners, Silence};
use crate::relay::Relays;

/// Frames of this layer that a peer may send before they are answered: said to peers, and counted by none of this version.
const CONTROL_CREDITS: u32 = 64;

/// One engine's transfer manager.
#[derive(Debug)]
pub struct TransferManager {
    /// The upper half of the ids of notes that tell this engine of landed bytes.
    tag: u64,
    settings: Settings,
    /// What transfers came to lately.
    totals: Totals,
    partners: Partners,
    /// Those that stand, and those that have ended and are not let go of: bytes may move, or nobody has asked how they ended.
    transfers: Transfers<Held>,
    memory: FlowMemory,
    /// In which of all of them each peer has a part.
    shares: Shares,
    /// Whose part is moved under each name.
    moves: Moves,
    /// Transfers by their next deadline.
    timers: Timers,
    /// Which rank of which transfer is to be proven quiet.
    watches: BTreeMap<WatchId, (EntryKey, u16)>,
    last_watch: u64,
    /// What was said lately, and may have to be said again.
    last_words: LastWords,
    /// Why sources failed that are let go of.
    epitaphs: Epitaphs,
    /// Of which ends somebody wants to hear.
    reported: Reported,
    /// When something of the tables is too old at the earliest.
    table_due: Timestamp,
    /// When memory that a peak has left behind is looked for.
    shrink_at: Timestamp,
    book: Book,
    lives: Lives,
    keeping: Keeping,
    abroad: Abroad,
    lending: Lending,
    gates: Gates,
    actions: VecDeque<Action>,
    telling: Telling,
    refused: u64,
    relays: Relays,
}

/// What there is, and what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Transfers by name.
    pub transfers: TableMetrics,
    /// Ended ones that are not let go of.
    pub ending: usize,
    /// What is moving.
    pub moving: usize,
    /// Gates of the application.
    pub gates: usize,
    /// Swaps under way.
    pub swaps: usize,
    /// Those among them whose blocks are quarantined.
    pub swaps_quarantined: usize,
    /// What is kept of requests that have ended, and who has it.
    pub pins: crate::continuation::PinMetrics,
    /// Leases that this engine has given and that have not ended for good.
    pub lent: usize,
    /// Leases under which it reads.
    pub borrowed: usize,
    /// Words of peers that made no sense and changed nothing.
    pub refused: u64,
    /// Counts of the relay: chunks put and fetched between stages.
    pub relay: RelayMetrics,
}

impl TransferManager {
    /// The transfer manager of an engine. The words are random: the first one is its tag.
    pub fn new(settings: Settings, [tag, one, other]: [u64; 3]) -> Self {
        Self {
            tag: tag.max(1),
            settings,
            totals: Totals::new(settings.tokens_default, settings.tokens_quantile),
            partners: Partners::default(),
            transfers: Transfers::new(settings.transfers, (one, other)),
            memory: FlowMemory::default(),
            shares: Shares::default(),
            moves: Moves::default(),
            timers: Timers::default(),
            watches: BTreeMap::new(),
            last_watch: 0,
            last_words: LastWords::default(),
            epitaphs: Epitaphs::default(),
            reported: Reported::default(),
            table_due: Timestamp::NEVER,
            shrink_at: Timestamp::from_ns(0),
            gates: Gates::default(),
            book: Book::default(),
            lives: Lives::default(),
            keeping: Keeping::default(),
            abroad: Abroad::default(),
            lending: Lending::new(settings.leases, one ^ other.rotate_left(17)),
            actions: VecDeque::new(),
            telling: Telling::default(),
            refused: 0,
            relays: Relays::shut(first_of(RELAY)),
        }
    }

    /// The upper half of the ids of notes that are landings.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Something has happened.
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        if self.relayed(&event, now) {
            return;
        }
        match event {
            Event::Joined { peer, name } => {
                self.partners.joined(peer, name);
                let (version_min, version_max) = CONTROL_VERSIONS;
                let able = PeerFeatures { version_min, version_max, tag: self.tag, credits: CONTROL_CREDITS };
                self.say(peer, ControlMessage::PeerFeatures(able));
            }
            Event::Unable { peer } => self.partners.is_unable(peer),
            Event::Said { peer, said } => self.hear(peer, said, now),
            Event::Landing { peer, bytes } => self.landing(peer, &bytes, now),
            Event::Left { peer, .. } => {
                let name = self.partners.left(peer);
                self.transfers.forget_early_of(peer);
                self.lost(peer, name.as_ref(), now);
                self.lose_leases(peer, now);
                self.abroad_hears(&event, now);
                self.tell();
            }
            Event::Gate { gate } => self.open_gate(gate, now),
            Event::Ended { id: MoveId(id), .. }
            | Event::Closed { id: MoveId(id) }
            | Event::Quiet { id: WatchId(id) } => self.became(id, event, now),
        }
    }

    /// Something has become of a move or a watch.
    fn became(&mut self, id: u64, event: Event, now: Timestamp) {
        match (names::part(id), event) {
            (Some(IdPart::Transfers), Event::Ended { id, result, is_open_there }) => {
                self.move_ended(id, result, is_open_there, now);
            }
            (Some(IdPart::Transfers), Event::Closed { id }) => self.move_closed(id, now),
            (Some(IdPart::Transfers), Event::Quiet { id }) => self.quiet(id, now),
            (Some(IdPart::Lives), event) => self.lives_hear(id, &event, now),
            _ => {}
        }
    }

    fn hear(&mut self, peer: PeerKey, said: ControlMessage, now: Timestamp) {
        match said {
            ControlMessage::PeerFeatures(able) => {
                for said in self.partners.is_able(peer, &able) {
                    self.say(peer, said);
                }
                self.is_back(peer, now);
            }
            ControlMessage::LayoutNews(news) => self.partners.learn(peer, news),
            ControlMessage::LayoutGone(gone) => self.partners.forget(peer, gone),
            ControlMessage::Renew(renew) => return self.hear_renew(peer, &renew, now),
            ControlMessage::LeaseExpired(over) => return self.hear_lease_over(peer, &over, now),
            ControlMessage::Ack(ack @ Ack { lease: Some(lease), .. }) => {
                return self.hear_given_back(peer, &ack, LeaseId(lease), now);
            }
            ControlMessage::PinAsk(ask) => return self.hear_pin_ask(peer, &ask, now),
            ControlMessage::PinAnswer(answer) => {
                self.abroad_hears(&Event::Said { peer, said: ControlMessage::PinAnswer(answer) }, now);
            }
            ControlMessage::LeaseVerdict(acked) if self.hear_parent_acked(peer, &acked) => return,
            said => return self.hear_of_transfer(peer, said, now),
        }
        self.tell();
    }

    fn say(&mut self, peer: PeerKey, said: ControlMessage) {
        self.actions.push_back(Action::Say { peer, said });
    }

    /// Something can be fetched.
    fn tell(&mut self) {
        self.telling.is_due = true;
    }

    fn say_to_all(&mut self, said: &ControlMessage) {
        let able: Vec<PeerKey> = self.partners.able().collect();
        able.into_iter().for_each(|peer| self.say(peer, said.clone()));
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.telling.is_next(self.actions.is_empty()) {
            return Some(Action::Tell);
        }
        let Some(action) = self.actions.pop_front() else {
            let action = self.relays.poll_action();
            if let Some(Action::Free { ticket }) = action {
                self.book.let_go(ticket);
            }
            return action;
        };
        if self.actions.is_empty() {
            // What comes next goes where this was, and not through all of the memory that a burst has left behind.
            self.actions.clear();
        }
        Some(action)
    }

    /// This engine has a layout from now on, in a region of so many bytes; its number and generation are chosen here.
    pub fn add_layout(&mut self, news: LayoutNews, region_bytes: u64) -> Result<LayoutKey, LayoutRefused> {
        let (key, said) = self.partners.add(news, region_bytes)?;
        if let Some(layout) = self.partners.own(key) {
            self.book.add_layout(key, layout);
        }
        self.say_to_all(&said);
        Ok(key)
    }

    /// This engine has a layout no more. Answers whether it had.
    pub fn remove_layout(&mut self, key: LayoutKey) -> bool {
        let said = self.partners.remove(key);
        self.book.remove_layout(key);
        said.iter().for_each(|said| self.say_to_all(said));
        said.is_some()
    }

    /// A layout of this engine.
    pub fn layout(&self, key: LayoutKey) -> Option<&Arc<Layout>> {
        self.partners.own(key)
    }

    /// This engine's layouts of a region.
    pub fn layouts_in(&self, region: RegionRef) -> impl Iterator<Item = &Arc<Layout>> {
        self.partners.own_of(region)
    }

    /// The label of a layout of this region that gives a byte another block's number than these stripes do.
    pub fn layout_otherwise(&self, region: RegionRef, stripes: &[ShardStripe]) -> Option<&str> {
        self.partners.numbered_otherwise(region, stripes).map(|(layout, _)| layout.label())
    }

    /// No block of a region is held any more by the numbers of layouts that are gone: it can be laid out otherwise.
    pub fn forget_gone_layouts(&mut self, region: RegionRef) {
        self.partners.forget_gone(region);
    }

    /// A layout of a peer's, by its label.
    pub fn layout_of(&self, peer: PeerKey, label: &str) -> Option<&Arc<Layout>> {
        self.partners.theirs(peer, label)
    }

    /// A layout of a peer's, in this use of its number.
    pub fn layout_at(&self, peer: PeerKey, key: LayoutKey) -> Option<&Arc<Layout>> {
        self.partners.theirs_at(peer, key)
    }

    /// The labels of a peer's layouts, sorted.
    pub fn labels_of(&self, peer: PeerKey) -> Vec<&str> {
        self.partners.labels(peer)
    }

    /// Whether a peer speaks of transfers.
    pub fn is_able(&self, peer: PeerKey) -> bool {
        self.partners.speaks(peer).is_ok()
    }

    /// Why a call cannot name a peer, if it cannot.
    pub fn speaks(&self, peer: PeerKey) -> Result<(), Silence> {
        self.partners.speaks(peer)
    }

    /// What this side's scheduler calls a live transfer.
    pub fn request_of(&self, side: Side, transfer: TransferId) -> Option<&RequestId> {
        self.transfers.request_of(side, transfer)
    }

    /// What both engines call the live transfer of a request.
    pub fn transfer_of(&self, side: Side, request: &RequestId) -> Option<TransferId> {
        self.transfers.transfer_of(side, request)
    }

    /// Adds the requests that have finished since the last call, or were released, each once, and says how many there were. One that has
    /// failed is named when nothing touches its memory any more, or when the time for that is over, with what may still be touched.
    pub fn drain_finished(&mut self, out: &mut FinishedTransfer) -> usize {
        self.transfers.drain_finished(out)
    }

    /// When something has to be done though nothing happens.
    pub fn deadline(&self) -> Timestamp {
        let timer = self.timers.first().map_or(Timestamp::NEVER, |(at, _)| at);
        let relays = self.relays.deadline().unwrap_or(Timestamp::NEVER);
        let pins = self.keeping.deadline();
        timer
            .min(self.lending.deadline())
            .min(self.lives.deadline())
            .min(pins)
            .min(self.abroad.deadline())
            .min(relays)
            .min(self.table_due)
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        self.expire_tables(now);
        self.lives_expire(now);
        self.pins_expire(now);
        self.abroad_expires(now);
        if self.lending.deadline() <= now {
            self.expire_leases(now);
        }
        self.relays.expire(now);
        while let Some((at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.take_first();
            if let Some(held) = self.transfers.get_mut(key).filter(|held| held.armed == at) {
                held.armed = Timestamp::NEVER;
                self.timers.disarmed();
                held.flow.expire(now);
                self.carry(key, now);
            }
            self.look_at_timers();
        }
    }

    /// A transfer's timer stands where its deadline is.
    fn arm(&mut self, key: EntryKey) {
        let Some(held) = self.transfers.get_mut(key) else { return };
        let next = held.deadline();
        let before = std::mem::replace(&mut held.armed, next);
        if before == next {
            return;
        }
        if next != Timestamp::NEVER {
            self.timers.arm(next, key);
        }
        if before != Timestamp::NEVER {
            self.timers.disarmed();
            self.look_at_timers();
        }
    }

    /// The first timer is one that somebody waits for.
    pub(super) fn look_at_timers(&mut self) {
        let transfers = &self.transfers;
        self.timers.settle(|at, key| transfers.get(key).is_some_and(|held| held.armed == at));
    }

    /// Gives back memory that a peak has left behind.
    fn shrink(&mut self) {
        self.timers.shrink();
        self.moves.shrink();
        self.memory.shrink(self.transfers.is_empty() && self.transfers.closed() == 0);
        self.shares.shrink();
    }

    fn flow(&self, key: EntryKey) -> Option<&Flow> {
        self.transfers.get(key).map(|held| &held.flow)
    }

    fn flow_mut(&mut self, key: EntryKey) -> Option<&mut Flow> {
        self.transfers.get_mut(key).map(|held| &mut held.flow)
    }

    /// Whether nobody is known, no transfer stands and nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.partners.is_empty()
            && self.transfers.is_empty()
            && self.transfers.closed() == 0
            && self.shares.is_empty()
            && self.moves.is_empty()
            && self.watches.is_empty()
            && self.lives.is_empty()
            && self.book.is_clear()
            && self.keeping.is_empty()
            && self.abroad.is_empty()
            && self.lending.is_empty()
            && self.actions.is_empty()
            && !self.telling.is_due
            && self.relays.is_empty()
    }

    /// What there is, and what went wrong.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            transfers: self.transfers.metrics(),
            ending: self.transfers.closed(),
            moving: self.moves.len(),
            gates: self.gates.len(),
            swaps: self.lives.swaps().0,
            swaps_quarantined: self.lives.swaps().1,
            pins: self.keeping.metrics(),
            lent: self.lending.lent(),
            borrowed: self.lending.borrowed(),
            refused: self.refused + self.partners.refused(),
            relay: self.relay_metrics(),
        }
    }
}

#[cfg(test)]
mod tests;
