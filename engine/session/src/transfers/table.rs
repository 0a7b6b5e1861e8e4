//! Where a transfer's two names are joined: the one that both engines know, and the request of this side's scheduler.
//!
//! There is one way in, [`Transfers::admit`], which both sides take, and one way to an end, [`Transfers::close`], which every
//! end takes however it comes about: it takes out both directions of the map, leaves a tombstone, and puts the request
//! among those that are finished. So nothing has to remember to clean up. What is kept of one that has ended stays in its place until
//! [`Transfers::let_go`], and words for it come there.
//!
//! Whoever is told that a request is finished frees what it had. So one that has failed is put there by [`Transfers::name_failed`], when
//! nothing touches its memory any more, or with what may still be touched.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};

use super::PeerKey;
use super::SidedId;
use super::early::{Early, EarlyBody, EarlyBounds, EarlyDrop, EarlyMessage};
use super::id::{RequestId, TransferId};
use super::tombs::Tombs;
use crate::control::Side;
use crate::index::Index;
use crate::keyed::Keyed;

/// How often memory that a peak has left behind is looked for, at most.
pub const SHRINK_PERIOD: Duration = Duration::from_secs(1);

/// How much there may be of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most live transfers. As many finished requests wait for [`Transfers::drain_finished`].
    pub live: usize,
    /// What comes before its transfer.
    pub early: EarlyBounds,
    /// The most tombstones.
    pub tombs: usize,
    /// How long a tombstone stands.
    pub tomb_age: Duration,
}

/// A transfer that is live, or of which something is left, quickly found. A key is never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    index: u32,
    serial: u64,
}

impl EntryKey {
    /// Its place in the table, which others have after it.
    pub const fn place(self) -> usize {
        self.index as usize
    }
}

/// Why a transfer is not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Its name is in use on this side. Whoever has it keeps it.
    #[error(
        "{transfer} is in use here by request {by:?}; a retry and a further sample need a name of their own, \
        which `TransferId::mint` makes"
    )]
    Taken { transfer: TransferId, by: RequestId },
    /// The request has a transfer on this side.
    #[error(
        "request {request:?} has {by} here, which has not ended; end that first, or give this attempt a request id \
        of its own"
    )]
    RequestTaken { request: RequestId, by: TransferId },
    /// There are too many.
    #[error(
        "there are {most} transfers here, which is the most; wait until some end, or raise `control.transfers_max`"
    )]
    Full {
        /// How many there may be.
        most: usize,
    },
    /// One of this name has ended a short while ago: late words of it would reach this one.
    #[error(
        "{transfer} has ended {} ms ago; a retry needs a name of its own, which `TransferId::mint` makes",
        ago.as_millis()
    )]
    Ended { transfer: TransferId, ago: Duration },
    /// One of this name has ended, and something of it is still kept: words for it would not reach this one.
    #[error(
        "{transfer} has ended here, and its handle or blocks of it are still kept; a retry needs a name of its own, \
        which `TransferId::mint` makes"
    )]
    Kept { transfer: TransferId },
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All readers have what was sent.
    Sent,
    /// Everything was received.
    Received,
    /// Neither. Whoever speaks of it later is to hear so, and not to wait.
    Failed,
}

/// Where something belongs that came for a transfer.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// To this one, which may have ended; here it is again.
    Known(EntryKey, EarlyBody),
    /// To one that is not known yet: it is kept, and given out by its admission.
    Kept,
    /// To one that is not known yet, and it was not kept.
    Dropped(EarlyDrop),
    /// To one that has ended, so: whoever waits for it may be told.
    Swallowed(Ended),
}

/// Requests that are finished, each given out once.
///
/// A request whose next transfer begins before the failure of the one before was given out is named for each of them: where memory is freed by
/// these lists, such an attempt needs a request id of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinishedTransfer {
    /// Their bytes were sent, and all readers have them: nothing reads them any more.
    pub sent: Vec<RequestId>,
    /// Their bytes were received, and nothing is written there any more.
    pub received: Vec<RequestId>,
    /// Neither. Nothing can touch their memory any more, but for what stands in `quarantined`. Why one has failed was told when it did, by its
    /// handle; here it is named as soon as that is so, and at the latest `control.abort_ms` after it has failed.
    pub failed: Vec<RequestId>,
    /// What may still be touched of requests that are named in `failed` by the same call: it is not to be used before `released`.
    pub quarantined: Vec<QuarantinedRequest>,
    /// Requests of which something was quarantined as they were named: by now nothing can touch it any more.
    pub released: Vec<RequestId>,
    /// How many more there were that nobody has asked for in time.
    pub lost: u64,
}

/// Memory of a request that has failed, which somebody may still touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinedRequest {
    /// The request.
    pub request: RequestId,
    /// Its transfer.
    pub transfer: TransferId,
    /// The label of the layout that its blocks are of.
    pub layout: String,
    /// The blocks, in ascending order.
    pub blocks: Vec<u32>,
    /// Where these lie in the layout's region, as (offset, length) in bytes, in ascending order.
    pub extents: Vec<(u64, u64)>,
}

/// What may still be touched of a transfer, by the label of its layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillTouched {
    /// The label.
    pub layout: String,
    /// The blocks, in ascending order.
    pub blocks: Vec<u32>,
    /// Where these lie in the layout's region, as (offset, length) in bytes, in ascending order.
    pub extents: Vec<(u64, u64)>,
}

/// What there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableMetrics {
    /// Live transfers.
    pub live: usize,
    /// The most there were at once.
    pub live_max: usize,
    /// Messages kept for transfers that are not known yet.
    pub early: usize,
    /// Bytes of them.
    pub early_bytes: usize,
    /// Those that were delivered.
    pub early_delivered: u64,
    /// Those that were dropped.
    pub early_dropped: u64,
    /// Transfers remembered as ended.
    pub tombs: usize,
    /// What came for them.
    pub tomb_hits: u64,
    /// Admissions that were refused.
    pub refused: u64,
    /// Finished requests that nobody has asked for yet.
    pub finished: usize,
    /// Those that nobody has asked for in time.
    pub finished_lost: u64,
    /// Places that there are for all of that, used or not: a peak leaves them behind, until time passes.
    pub places: usize,
}

struct Entry<T> {
    serial: u64,
    side: Side,
    transfer: TransferId,
    /// Of one that is live.
    request: Option<RequestId>,
    /// Of one that has failed, as long as something is still to be said of that.
    failed: Option<Failure>,
    value: T,
}

/// What is still to be said of a request that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// That it has.
    Unnamed(RequestId),
    /// That what was quarantined of it is released.
    Unreleased(RequestId),
}

/// What is said of a finished request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Ended(Ended),
    Released,
}

impl<T> Entry<T> {
    fn sum(&self, keyed: Keyed) -> u64 {
        keyed.of_name(&(self.side, self.transfer))
    }

    fn request_sum(&self, keyed: Keyed) -> u64 {
        self.request.as_ref().map_or(0, |request| keyed.of_name(&(self.side, request)))
    }
}

/// Where a table has the entry of this place: all places in a table are of entries.
fn sum_of<T>(keyed: Keyed, entries: &[Option<Entry<T>>], index: u32, sum: impl Fn(&Entry<T>, Keyed) -> u64) -> u64 {
    entries.get(index as usize).and_then(Option::as_ref).map_or(0, |entry| sum(entry, keyed))
}

/// The transfers of one engine. `T` is what its flows keep of each.
pub struct Transfers<T> {
    bounds: Bounds,
    /// In the order in which they are shown. A place without an entry is in `free`.
    entries: Vec<Option<Entry<T>>>,
    free: Vec<u32>,
    next_serial: u64,
    live: usize,
    live_max: usize,
    keyed: Keyed,
    /// Places of entries, by both names of a transfer; live ones only have a request. The names themselves stand in the entries: so many
    /// bytes are looked at for one, whether there are a thousand or a million.
    by_name: Index,
    by_request: Index,
    tombs: Tombs,
    early: Early,
    tomb_hits: u64,
    refused: u64,
    finished: VecDeque<(Said, RequestId)>,
    /// Beside them: what may still be touched.
    quarantined: VecDeque<QuarantinedRequest>,
    finished_lost: u64,
    /// Of those, how many have been told of.
    finished_lost_told: u64,
    shrink_at: Timestamp,
}

impl<T> fmt::Debug for Transfers<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Transfers").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}

impl<T> Transfers<T> {
    /// None yet. The words are random: they decide where names lie in the maps, and nothing that is seen.
    pub fn new(bounds: Bounds, words: (u64, u64)) -> Self {
        let keyed = Keyed::new(words);
        Self {
            bounds,
            entries: Vec::new(),
            free: Vec::new(),
            next_serial: 0,
            live: 0,
            live_max: 0,
            keyed,
            by_name: Index::new(),
            by_request: Index::new(),
            tombs: Tombs::new(bounds.tombs, bounds.tomb_age, keyed),
            early: Early::new(bounds.early, keyed),
            tomb_hits: 0,
            refused: 0,
            finished: VecDeque::new(),
            quarantined: VecDeque::new(),
            finished_lost: 0,
            finished_lost_told: 0,
            shrink_at: Timestamp::from_ns(0),
        }
    }

    /// Takes one in: the only place where its two names are joined. Gives what came for it before, in its order.
    pub fn admit(
        &mut self,
        side: Side,
        transfer: TransferId,
        request: RequestId,
        value: T,
        now: Timestamp,
    ) -> Result<(EntryKey, Vec<EarlyMessage>), AdmitError> {
        let checked = self.check_admission(side, transfer, &request, now);
        checked.inspect_err(|_| self.refused += 1)?;
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        let Self { keyed, entries, .. } = self;
        if index as usize == entries.len() {
            entries.push(None);
        }
        let key = EntryKey { index, serial: self.next_serial };
        let (name, called) = (keyed.of_name(&(side, transfer)), keyed.of_name(&(side, &request)));
        entries[index as usize] =
            Some(Entry { serial: key.serial, side, transfer, request: Some(request), failed: None, value });
        self.by_name.insert(name, index, |index| sum_of(*keyed, entries, index, Entry::sum));
        self.by_request.insert(called, index, |index| sum_of(*keyed, entries, index, Entry::request_sum));
        self.next_serial += 1;
        self.live += 1;
        self.live_max = self.live_max.max(self.live);
        Ok((key, self.early.deliver((side, transfer))))
    }

    fn check_admission(
        &self,
        side: Side,
        transfer: TransferId,
        request: &RequestId,
        now: Timestamp,
    ) -> Result<(), AdmitError> {
        let holder = self.holder(side, transfer);
        if let Some(by) = holder.and_then(|index| self.at(index)?.request.as_ref()) {
            return Err(AdmitError::Taken { transfer, by: by.clone() });
        }
        if let Some((_, ago)) = self.tombs.look((side, transfer), now) {
            return Err(AdmitError::Ended { transfer, ago });
        }
        if holder.is_some() {
            return Err(AdmitError::Kept { transfer });
        }
        if self.live >= self.bounds.live {
            return Err(AdmitError::Full { most: self.bounds.live });
        }
        match self.transfer_of(side, request) {
            Some(by) => Err(AdmitError::RequestTaken { request: request.clone(), by }),
            None => Ok(()),
        }
    }

    /// The place of who has a name: a live transfer, or an ended one of which something is left.
    fn holder(&self, side: Side, transfer: TransferId) -> Option<u32> {
        let is_it = |index| self.at(index).is_some_and(|entry| (entry.side, entry.transfer) == (side, transfer));
        self.by_name.find(self.keyed.of_name(&(side, transfer)), is_it)
    }

    /// The place of the live transfer of a request.
    fn called(&self, side: Side, request: &RequestId) -> Option<u32> {
        let is_it =
            |index| self.at(index).is_some_and(|entry| entry.side == side && entry.request.as_ref() == Some(request));
        self.by_request.find(self.keyed.of_name(&(side, request)), is_it)
    }

    fn at(&self, index: u32) -> Option<&Entry<T>> {
        self.entries.get(index as usize).and_then(Option::as_ref)
    }

    fn entry(&self, key: EntryKey) -> Option<&Entry<T>> {
        self.at(key.index).filter(|entry| entry.serial == key.serial)
    }

    fn live_at(&self, index: u32) -> Option<(EntryKey, &RequestId)> {
        let entry = self.at(index)?;
        Some((EntryKey { index, serial: entry.serial }, entry.request.as_ref()?))
    }

    /// The live transfer of this name.
    pub fn find(&self, side: Side, transfer: TransferId) -> Option<EntryKey> {
        self.holder(side, transfer).and_then(|index| self.live_at(index)).map(|(key, _)| key)
    }

    /// The live transfer of this request.
    pub fn find_request(&self, side: Side, request: &RequestId) -> Option<EntryKey> {
        self.called(side, request).and_then(|index| self.live_at(index)).map(|(key, _)| key)
    }

    /// The transfer of this name that words for it reach: a live one, or one that has ended of which something is kept.
    pub fn known(&self, side: Side, transfer: TransferId) -> Option<EntryKey> {
        let index = self.holder(side, transfer)?;
        Some(EntryKey { index, serial: self.at(index)?.serial })
    }

    /// What this side's scheduler calls a live transfer.
    pub fn request_of(&self, side: Side, transfer: TransferId) -> Option<&RequestId> {
        self.holder(side, transfer).and_then(|index| self.live_at(index)).map(|(_, request)| request)
    }

    /// What both engines call the live transfer of a request.
    pub fn transfer_of(&self, side: Side, request: &RequestId) -> Option<TransferId> {
        self.called(side, request).and_then(|index| self.at(index)).map(|entry| entry.transfer)
    }

    /// The side, the name and the request of one of which something is kept; the request only while something is to be said of it.
    pub fn holder_names(&self, key: EntryKey) -> Option<(Side, TransferId, Option<&RequestId>)> {
        let entry = self.entry(key)?;
        let request = entry.request.as_ref().or(match &entry.failed {
            Some(Failure::Unnamed(request) | Failure::Unreleased(request)) => Some(request),
            None => None,
        });
        Some((entry.side, entry.transfer, request))
    }

    /// All names of a live transfer.
    pub fn names(&self, key: EntryKey) -> Option<(Side, TransferId, &RequestId)> {
        let entry = self.entry(key)?;
        Some((entry.side, entry.transfer, entry.request.as_ref()?))
    }

    /// What is kept of a transfer.
    pub fn get(&self, key: EntryKey) -> Option<&T> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// What is kept of a transfer.
    pub fn get_mut(&mut self, key: EntryKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?.as_mut()?;
        (entry.serial == key.serial).then_some(&mut entry.value)
    }

    /// All of which something is kept, in an order that is the same in every run alike. It looks at every place there is.
    pub fn iter(&self) -> impl Iterator<Item = (EntryKey, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            Some((EntryKey { index, serial: entry.serial }, &entry.value))
        })
    }

    /// Ends one: the only way to an end. Both directions are gone, and a tombstone is set. The request is finished, unless it has failed: then
    /// it is when [`Transfers::name_failed`] says so. What is kept of it stays until it is let go, and so long nobody else has its name.
    /// Answers whether it was live.
    pub fn close(&mut self, key: EntryKey, how: Ended, now: Timestamp) -> bool {
        let entry = self.entries.get_mut(key.index as usize).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.serial == key.serial) else { return false };
        let Some(request) = entry.request.take() else { return false };
        let (side, transfer) = (entry.side, entry.transfer);
        self.live -= 1;
        self.by_request.remove(self.keyed.of_name(&(side, &request)), key.index);
        self.tombs.set((side, transfer), how, now);
        if how == Ended::Failed && !planted::is(Bug::FailedBeforeQuiet) {
            entry.failed = Some(Failure::Unnamed(request));
        } else {
            self.finish(Said::Ended(how), request);
        }
        true
    }

    /// One that has failed is finished: nothing touches its memory any more, but for what is said here. Said again, with nothing, it is
    /// released. Answers whether anything was left to be said.
    pub fn name_failed(&mut self, key: EntryKey, touched: Option<StillTouched>) -> bool {
        let entry = self.entries.get_mut(key.index as usize).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.serial == key.serial) else { return false };
        match (entry.failed.take(), touched) {
            (None, _) => return false,
            (Some(Failure::Unnamed(request)), None) => {
                if planted::is(Bug::FinishedTwice) {
                    self.finish(Said::Ended(Ended::Failed), request.clone());
                }
                self.finish(Said::Ended(Ended::Failed), request);
            }
            (Some(Failure::Unnamed(request)), Some(StillTouched { layout, blocks, extents })) => {
                entry.failed = Some(Failure::Unreleased(request.clone()));
                let transfer = entry.transfer;
                self.finish(Said::Ended(Ended::Failed), request.clone());
                if self.quarantined.len() >= self.bounds.live {
                    self.quarantined.pop_front();
                }
                self.quarantined.push_back(QuarantinedRequest { request, transfer, layout, blocks, extents });
            }
            (Some(Failure::Unreleased(request)), None) => self.finish(Said::Released, request),
            (still, Some(_)) => entry.failed = still,
        }
        true
    }

    fn finish(&mut self, said: Said, request: RequestId) {
        if self.finished.len() >= self.bounds.live {
            self.finished.pop_front();
            self.finished_lost += 1;
        }
        self.finished.push_back((said, request));
    }

    /// Nothing is kept any more of one that has ended: late words find its tombstone.
    pub fn let_go(&mut self, key: EntryKey) -> Option<T> {
        self.entry(key).filter(|entry| entry.request.is_none())?;
        // Of what is not kept any more nothing is touched.
        self.name_failed(key, None);
        let Entry { side, transfer, value, .. } = self.entries.get_mut(key.index as usize)?.take()?;
        self.free.push(key.index);
        self.by_name.remove(self.keyed.of_name(&(side, transfer)), key.index);
        Some(value)
    }

    /// Ends one of which nothing is to be kept. Ending it again does nothing.
    pub fn end(&mut self, key: EntryKey, how: Ended, now: Timestamp) -> Option<T> {
        if self.close(key, how, now) { self.let_go(key) } else { None }
    }

    /// Of which something is kept in this place.
    pub fn key_at(&self, place: usize) -> Option<EntryKey> {
        let index = u32::try_from(place).ok()?;
        Some(EntryKey { index, serial: self.at(index)?.serial })
    }

    /// Whether one stands.
    pub fn is_live(&self, key: EntryKey) -> bool {
        self.entry(key).is_some_and(|entry| entry.request.is_some())
    }

    /// How many have ended, of which something is kept.
    pub fn closed(&self) -> usize {
        self.entries.len() - self.free.len() - self.live
    }

    /// Something has come for a transfer, from this peer. Whether the peer may speak for it is for the transfer to say.
    pub fn route(&mut self, side: Side, transfer: TransferId, from: PeerKey, body: EarlyBody, now: Timestamp) -> Route {
        if let Some(key) = self.known(side, transfer) {
            return Route::Known(key, body);
        }
        if let Some((how, _)) = self.tombs.look((side, transfer), now) {
            self.tomb_hits += 1;
            return Route::Swallowed(how);
        }
        match self.early.keep((side, transfer), EarlyMessage { from, body, came: now }) {
            Ok(()) => Route::Kept,
            Err(why) => Route::Dropped(why),
        }
    }

    /// Adds the requests that have finished since the last call, or were released, each once, and says how many there were.
    pub fn drain_finished(&mut self, out: &mut FinishedTransfer) -> usize {
        let count = self.finished.len();
        for (said, request) in self.finished.drain(..) {
            match said {
                Said::Ended(Ended::Sent) => out.sent.push(request),
                Said::Ended(Ended::Received) => out.received.push(request),
                Said::Ended(Ended::Failed) => out.failed.push(request),
                Said::Released => out.released.push(request),
            }
        }
        out.quarantined.extend(self.quarantined.drain(..));
        out.lost += self.finished_lost - std::mem::replace(&mut self.finished_lost_told, self.finished_lost);
        count
    }

    /// What has waited for a transfer until it was too old, since the last call: which, and who has said it. They may
    /// be told that nobody here knows of it.
    pub fn take_unwanted(&mut self) -> Vec<(Side, TransferId, PeerKey)> {
        self.early.take_unwanted().into_iter().map(|((side, transfer), peer)| (side, transfer, peer)).collect()
    }

    /// The session with this peer is over: what it has said of transfers that are not known yet will not be asked for.
    pub fn forget_early_of(&mut self, peer: PeerKey) {
        self.early.forget(peer);
    }

    /// What this peer has said of a transfer that is not known yet will not be asked for.
    pub fn forget_early(&mut self, id: SidedId, peer: PeerKey) {
        self.early.forget_of(id, peer);
    }

    /// Forgets what is old enough, and says when there is something to forget again.
    pub fn expire(&mut self, now: Timestamp) -> Option<Timestamp> {
        let next = [self.early.expire(now), self.tombs.expire(now)];
        if now >= self.shrink_at {
            self.shrink();
            self.shrink_at = now + SHRINK_PERIOD;
        }
        next.into_iter().flatten().min()
    }

    /// Gives back what a peak has left behind, where less than an eighth is used.
    fn shrink(&mut self) {
        self.tombs.shrink();
        let Self { keyed, entries, by_name, by_request, .. } = self;
        by_name.shrink(|index| sum_of(*keyed, entries, index, Entry::sum));
        by_request.shrink(|index| sum_of(*keyed, entries, index, Entry::request_sum));
        self.early.shrink();
        if self.finished.len() < self.finished.capacity() / 8 {
            self.finished.shrink_to(self.finished.len() * 2);
        }
        if self.entries.len() - self.free.len() < self.entries.capacity() / 8 {
            let used = self.entries.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            self.entries.truncate(used);
            self.entries.shrink_to(used * 2);
            self.free.retain(|index| (*index as usize) < used);
            self.free.shrink_to(used);
        }
    }

    /// What there is.
    pub fn metrics(&self) -> TableMetrics {
        TableMetrics {
            live: self.live,
            live_max: self.live_max,
            early: self.early.len(),
            early_bytes: self.early.bytes(),
            early_delivered: self.early.delivered(),
            early_dropped: self.early.dropped(),
            tombs: self.tombs.len(),
            tomb_hits: self.tomb_hits,
            refused: self.refused,
            finished: self.finished.len(),
            finished_lost: self.finished_lost,
            places: self.places(),
        }
    }

    fn places(&self) -> usize {
        let names = self.by_name.capacity() + self.by_request.capacity() + self.tombs.places();
        let entries = self.entries.capacity() + self.free.capacity();
        names + entries + self.early.places() + self.finished.capacity()
    }

    /// Looks whether both directions of the map lead to the same transfers, and says where not. It looks at every one.
    pub fn check(&self) -> Result<(), String> {
        let (all, live) = self
            .entries
            .iter()
            .flatten()
            .fold((0, 0), |(all, live), entry| (all + 1, live + usize::from(entry.request.is_some())));
        let (named, by_request) = (self.by_name.len(), self.by_request.len());
        if [self.live, by_request] != [live; 2] || named != all || all + self.free.len() != self.entries.len() {
            return Err(format!(
                "{live} of {all} transfers are live, {} are counted, {named} have a name and {by_request} a request",
                self.live
            ));
        }
        for (index, entry) in (0..).zip(&self.entries).filter_map(|(index, entry)| Some((index, entry.as_ref()?))) {
            let Entry { side, transfer, request, .. } = entry;
            let called = request.as_ref().map(|request| self.called(*side, request));
            if self.holder(*side, *transfer) != Some(index) || called.is_some_and(|by| by != Some(index)) {
                return Err(format!("{transfer} and its request {request:?} lead to different places"));
            }
        }
        Ok(())
    }

    /// Whether nothing is live and nothing waits for a transfer. Tombstones pass with their time.
    pub fn is_empty(&self) -> bool {
        self.live == 0 && self.early.is_empty()
    }

    /// How many are live.
    pub fn live(&self) -> usize {
        self.live
    }
}

#[cfg(test)]
mod tests;
