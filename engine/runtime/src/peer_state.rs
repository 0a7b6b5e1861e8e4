//! What this engine knows of a peer, shared by handles, workers and the control loop.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_core::address::AddressIndex;
use penstock_core::budget::PeerBudget;
use penstock_core::env::BlockingJob;
use penstock_core::limits::COUNTERS_MAX;
use penstock_core::{Cause, Credits, EngineName, Epoch, Generation, RegionId, Rights};
use penstock_memory::{MemoryError, PassedFd, ProcessWatch};
use penstock_ring::{Liveness, Withdrawal};
use penstock_session::frame::{LABEL_BYTES_MAX, RefusalCode};
use penstock_session::{CounterNews, RegionNews};
use penstock_transport::host::{WHOLE_REGION, is_renewal};
use penstock_transport::lane::CounterRef;
use penstock_transport::{
    AccessPath, AdvertisedRegion, Caps, ImportError, PeerView, Registrar, RemoteMemory, StagedSession, why_unreached,
};

use crate::error::{ConnectError, RegionError};
use crate::kept_fds::KeptFds;
use crate::peer_counters::Counters;
use crate::statistics::Tally;

/// A peer's memory of a device is not reached, for this reason.
fn unreached(why: &str) -> String {
    format!(
        "it is memory of a device, which this session does not reach (at its engine: {why}); move it to host memory first, or connect engines of one process"
    )
}

/// A peer, from the moment its session stands.
pub(crate) struct PeerState {
    pub(crate) name: EngineName,
    pub(crate) epoch: Epoch,
    /// Its place in our table of peers.
    pub(crate) peer_index: u32,
    /// Our place in its table of peers.
    pub(crate) index_at_peer: u32,
    pub(crate) transport: &'static str,
    pub(crate) caps: Caps,
    pub(crate) path: String,
    pub(crate) rails: Vec<String>,
    pub(crate) peer_view: PeerView,
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) staged: Arc<StagedSession>,
    /// Whether the process behind it still lives.
    pub(crate) process: Arc<ProcessWatch>,
    /// What its owner state said about departures from our place when the session began.
    departures: u64,
    /// Whether we called it, so that our offer was the last word of the greeting.
    we_called: bool,
    /// Its refusal, if it refused what we offered.
    refused: OnceLock<(RefusalCode, String)>,
    /// Notifications it may still put into our inbox.
    pub(crate) inbox_credits: Credits,
    fd_budget: Arc<PeerBudget>,
    /// Bytes that its regions may take here.
    announced_bytes_max: usize,
    /// The cause that ended the session, zero while it stands.
    ended: AtomicU8,
    /// What was seen of it last, where it ended without a goodbye.
    loss: OnceLock<String>,
    /// All of this engine's workers have left it: their lanes are dropped.
    left: AtomicBool,
    /// It has said goodbye: its workers have left this engine, and their lanes are dropped.
    let_go: AtomicBool,
    /// Its session is over, and it has not said so.
    lost: AtomicBool,
    /// Why nothing new is submitted although the session stands, zero as a rule.
    draining: AtomicU8,
    /// The socket at which it may be found again.
    pub(crate) socket: String,
    /// The other end of the control channel, if it is on another host.
    pub(crate) address: Option<SocketAddr>,
    /// The upper half of the numbers of notes that tell it of transfers by name, once it has said that it speaks of them.
    tag: OnceLock<u64>,
    book: Mutex<Book>,
    news: Condvar,
}

/// What a new peer is made of.
pub(crate) struct PeerParts {
    pub(crate) name: EngineName,
    pub(crate) epoch: Epoch,
    pub(crate) peer_index: u32,
    pub(crate) index_at_peer: u32,
    pub(crate) transport: &'static str,
    pub(crate) caps: Caps,
    pub(crate) path: String,
    pub(crate) rails: Vec<String>,
    pub(crate) peer_view: PeerView,
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) staged: Arc<StagedSession>,
    pub(crate) process: Arc<ProcessWatch>,
    pub(crate) we_called: bool,
    pub(crate) inbox_credits: u64,
    pub(crate) fd_budget: Arc<PeerBudget>,
    pub(crate) announced_bytes_max: usize,
    pub(crate) socket: String,
    pub(crate) address: Option<SocketAddr>,
}

/// What the peer has announced.
#[derive(Default)]
struct Book {
    regions: HashMap<u32, Arc<RemoteEntry>>,
    /// The same by label.
    by_label: BTreeSet<(String, u32)>,
    /// The same by the addresses at which the peer has them.
    by_address: AddressIndex<Arc<RemoteEntry>>,
    /// Bytes that the regions take.
    bytes: usize,
    counters: Counters,
    /// The first announcement has come: regions and counters that existed at connecting are known.
    introduced: bool,
    /// It is known what it can do, and its layouts that existed at connecting are: no call that names it has to wait for anything.
    complete: bool,
    /// The revision of the peer's log that the announcements reflect.
    revision: u64,
}

impl Book {
    fn forget(&mut self, id: u32) {
        let Some(entry) = self.regions.remove(&id) else { return };
        self.bytes -= cost_of(&entry.news);
        self.by_address.remove(entry.range(), id);
        self.by_label.remove(&(entry.news.label.clone(), id));
        entry.drop_fds();
    }

    fn learn(&mut self, entry: Arc<RemoteEntry>) {
        self.bytes += cost_of(&entry.news);
        self.by_address.insert(entry.range(), entry.news.id, Arc::clone(&entry));
        self.by_label.insert((entry.news.label.clone(), entry.news.id));
        self.regions.insert(entry.news.id, entry);
    }
}

/// Why an announcement ends its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unlearned {
    Nonsense,
    TooMuch,
}

/// What a region takes here besides its texts, roughly: its entry, and its places in three indexes.
const ENTRY_BYTES: usize = 512;

fn cost_of(news: &RegionNews) -> usize {
    ENTRY_BYTES + news.label.len() + news.path.len()
}

/// The descriptors of a region, as they came with its announcement.
#[derive(Debug)]
pub(crate) enum ReceivedFds {
    /// All that belong to it, as a rule none or one.
    All(Vec<PassedFd>),
    /// This process could not take them all.
    Short,
}

impl ReceivedFds {
    pub(crate) fn push(&mut self, fd: PassedFd) {
        if let Self::All(fds) = self {
            fds.push(fd);
        }
    }
}

/// Why descriptors of a region are not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoFds {
    /// This process had no number left for them.
    Process,
    /// The peer has as many here as it may.
    Budget,
}

impl NoFds {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Process => {
                "this process had no file descriptor left when it was announced: raise the limit (`penstock doctor limits` says how) and connect again"
            }
            Self::Budget => {
                "too many of this peer's pools wait to be mapped: build plans over those that are used, raise `session.descriptors` or the limit of the process, and connect again"
            }
        }
    }
}

/// One announced region; its memory is reached when a plan first needs it.
pub(crate) struct RemoteEntry {
    pub(crate) news: RegionNews,
    /// Its own and those of memory that lies over parts of it; none once they are mapped.
    fds: Mutex<Option<KeptFds>>,
    /// Why there were none when it was announced, if there should have been.
    without_fds: Option<NoFds>,
    memory: OnceLock<RemoteMemory>,
    elsewhere: Mutex<Elsewhere>,
}

/// How far it is mapped by somebody else for who may not wait for that.
#[derive(Debug, Default)]
enum Elsewhere {
    #[default]
    NotBegun,
    UnderWay,
    Ended(Result<(), ImportError>),
}

/// Says how it has ended, also of a call that was never made or has panicked.
struct EndsElsewhere {
    entry: Arc<RemoteEntry>,
    ended: Option<Result<(), ImportError>>,
}

impl Drop for EndsElsewhere {
    fn drop(&mut self) {
        let not_made = || Err(ImportError::NoPath("the call that maps it has not come to its end".to_owned()));
        *self.entry.elsewhere() = Elsewhere::Ended(self.ended.take().unwrap_or_else(not_made));
    }
}

impl RemoteEntry {
    fn elsewhere(&self) -> MutexGuard<'_, Elsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of it where it was mapped elsewhere. It is told once: who comes later has it mapped anew.
    fn take_ended(&self) -> Option<Result<(), ImportError>> {
        let mut elsewhere = self.elsewhere();
        match std::mem::take(&mut *elsewhere) {
            Elsewhere::Ended(result) => Some(result),
            other => {
                *elsewhere = other;
                None
            }
        }
    }

    /// Its descriptors are of no use any more. Locked means that it is being mapped at this moment: they go with the entry then, if not before.
    fn drop_fds(&self) {
        if let Ok(mut fds) = self.fds.try_lock() {
            fds.take();
        }
    }

    pub(crate) fn id(&self) -> RegionId {
        RegionId(self.news.id)
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(self.news.generation)
    }

    pub(crate) fn rights(&self) -> Rights {
        Rights::from(self.news.rights)
    }

    /// Its first address in the peer, and its length.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.news.base, self.news.bytes)
    }
}

impl PeerState {
    pub(crate) fn new(parts: PeerParts) -> Self {
        Self {
            name: parts.name,
            epoch: parts.epoch,
            peer_index: parts.peer_index,
            index_at_peer: parts.index_at_peer,
            transport: parts.transport,
            caps: parts.caps,
            path: parts.path,
            rails: parts.rails,
            registrar: parts.registrar,
            staged: parts.staged,
            process: parts.process,
            departures: parts.peer_view.ended_sessions(parts.index_at_peer),
            we_called: parts.we_called,
            refused: OnceLock::new(),
            tag: OnceLock::new(),
            inbox_credits: Credits::new(parts.inbox_credits),
            fd_budget: parts.fd_budget,
            announced_bytes_max: parts.announced_bytes_max,
            peer_view: parts.peer_view,
            ended: AtomicU8::new(0),
            loss: OnceLock::new(),
            left: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            draining: AtomicU8::new(0),
            socket: parts.socket,
            address: parts.address,
            book: Mutex::default(),
            news: Condvar::new(),
        }
    }

    /// The peer refuses what we offered. Answers whether it may: only as its first word after ours.
    pub(crate) fn refuse(&self, code: RefusalCode, text: String) -> bool {
        self.we_called && !self.is_introduced() && self.refused.set((code, text)).is_ok()
    }

    /// Whether this engine called it, so that its address is one at which it listens.
    pub(crate) fn was_called(&self) -> bool {
        self.we_called
    }

    /// Why a connect to it has failed after all.
    pub(crate) fn refusal(&self, name: &str) -> Option<ConnectError> {
        let (code, text) = self.refused.get()?.clone();
        Some(ConnectError::Refused { name: name.to_owned(), code, text })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is seen of a peer that is lost, before its session ends with that cause.
    pub(crate) fn note_loss(&self, what: impl FnOnce() -> String) {
        self.loss.get_or_init(what);
    }

    /// What was seen of a peer that was lost, if anything was.
    pub(crate) fn loss(&self) -> Option<&str> {
        self.loss.get().map(String::as_str)
    }

    /// Why the session ended, if it did.
    pub(crate) fn ended(&self) -> Option<Cause> {
        Cause::from_code(self.ended.load(Ordering::Acquire)) // SYNC ended: pairs with end()
    }

    /// Ends the session for this cause; the first cause stays.
    pub(crate) fn end(&self, cause: Cause) {
        // SYNC ended: pairs with ended()
        let _ = self.ended.compare_exchange(0, cause.code(), Ordering::AcqRel, Ordering::Acquire);
        let mut book = self.book();
        book.introduced = true;
        // Nothing of it is mapped any more: what it has left here is nobody's.
        book.regions.values().for_each(|entry| entry.drop_fds());
        drop(book);
        self.news.notify_all();
    }

    /// Its session is over, and what it had announced is of no use.
    pub(crate) fn forget_all(&self) {
        let mut book = self.book();
        *book = Book { introduced: book.introduced, complete: book.complete, ..Book::default() };
    }

    /// Nothing new is submitted from here on, because one side drains; the first reason stays.
    pub(crate) fn drain(&self, cause: Cause) {
        let _ = self.draining.compare_exchange(0, cause.code(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Why nothing new is submitted, if so. Submissions that have not heard of it yet are caught by the workers.
    #[inline]
    pub(crate) fn draining(&self) -> Option<Cause> {
        Cause::from_code(self.draining.load(Ordering::Relaxed))
    }

    /// Whether the session stands and takes what is new.
    #[inline]
    pub(crate) fn takes_new(&self) -> bool {
        // SYNC ended: pairs with end()
        self.ended.load(Ordering::Acquire) == 0 && self.draining.load(Ordering::Relaxed) == 0
    }

    /// Whether its session stands, as far as can be known at this moment.
    pub(crate) fn seems_alive(&self) -> bool {
        self.ended().is_none() && !self.is_marked_dead() && !self.process.is_dead()
    }

    /// Whether it is proven that nothing of the peer can touch this engine's memory any more, though
    /// it left without a word: its own state says that its workers have left this session, or its process
    /// is dead. A quiet hazard alone is no proof: a stopped peer may be about to raise it.
    ///
    /// Cards reach this engine's memory over what its own lanes hold: that ends with the lanes, whatever the peer does.
    pub(crate) fn is_gone(&self) -> bool {
        match &self.peer_view {
            PeerView::Shared(_) => {
                self.peer_view.ended_sessions(self.index_at_peer) != self.departures || self.process.is_dead()
            }
            // Who cannot write by itself is gone with the lanes that read its words.
            PeerView::Reported(_) => true,
            // SYNC left: pairs with was_left()
            PeerView::Fenced(..) => self.left.load(Ordering::Acquire) && !self.is_unproven(),
        }
    }

    /// Whether its session has left something to a card that never proves to have ended.
    pub(crate) fn is_unproven(&self) -> bool {
        self.peer_view.fence().is_some_and(|fence| fence.is_unproven())
    }

    /// Whether both sides have left the session, so that nothing of it reaches this engine's memory any more, by the peer's hand or by this
    /// engine's own workers, which take in what it sends.
    pub(crate) fn is_over(&self) -> bool {
        // Nobody says when a process that cannot be seen is dead. Of one whose thread has died, or that nobody can tell of, all that is known
        // is who is in a copy, and for that there are witnesses of their own.
        let is_out_of_sight =
            || matches!(*self.process, ProcessWatch::Unseen(_)) && self.peer_view.liveness() != Liveness::Lives;
        // SYNC left: pairs with was_left()
        self.left.load(Ordering::Acquire) && (self.is_gone() || is_out_of_sight())
    }

    /// Whether it is proven that nothing that was given up here can touch the peer's memory any more.
    pub(crate) fn has_let_go(&self) -> bool {
        match &self.peer_view {
            PeerView::Shared(_) => self.is_gone(),
            // What was sent may still be on its way, or wait for the peer's own workers, until the other end is gone.
            PeerView::Reported(_) | PeerView::Fenced(..) => self.let_go.load(Ordering::Acquire), // SYNC let-go: pairs with said_goodbye()
        }
    }

    /// Whether its session is over without a goodbye, and nobody here can learn any more what became of what it was sent. Nothing
    /// of this engine can reach its memory: what this side had for it is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) // SYNC lost: pairs with was_lost()
    }

    /// Its session is over without a goodbye.
    pub(crate) fn was_lost(&self) {
        if !matches!(self.peer_view, PeerView::Shared(_)) {
            self.lost.store(true, Ordering::Release); // SYNC lost: pairs with is_lost()
        }
    }

    /// Whether all of this engine's workers have left it.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) // SYNC left: pairs with was_left()
    }

    /// Every worker of this engine has left it.
    pub(crate) fn was_left(&self) {
        self.left.store(true, Ordering::Release); // SYNC left: pairs with is_gone()
    }

    /// It says that every worker of its engine has left.
    pub(crate) fn said_goodbye(&self) {
        self.let_go.store(true, Ordering::Release); // SYNC let-go: pairs with has_let_go()
    }

    /// Whether it can die while this process lives, and be seen to.
    pub(crate) fn can_die_alone(&self) -> bool {
        !self.process.is_ourselves() && self.peer_view.liveness() != Liveness::Unknown
    }

    /// Whether the kernel says that the thread that stood for it has died. Its session is over then; its
    /// memory is not proven quiet.
    pub(crate) fn is_marked_dead(&self) -> bool {
        self.peer_view.liveness() == Liveness::Died
    }

    /// Takes new regions, each with its descriptors, and counts those whose descriptors there was no room for:
    /// before anybody who waits for them can see them.
    pub(crate) fn learn_regions(
        &self,
        revision: u64,
        news: Vec<(RegionNews, ReceivedFds)>,
        without_fds: &Tally,
    ) -> Result<(), Unlearned> {
        let mut book = self.book();
        for (news, received) in news {
            // What it replaces does not count any more.
            book.forget(news.id);
            if book.bytes + cost_of(&news) > self.announced_bytes_max {
                return Err(Unlearned::TooMuch);
            }
            let fds = match received {
                ReceivedFds::All(fds) => KeptFds::keep(fds, &self.fd_budget).ok_or(NoFds::Budget),
                ReceivedFds::Short => Err(NoFds::Process),
            };
            without_fds.add(u64::from(fds.is_err()));
            let entry = RemoteEntry {
                without_fds: fds.as_ref().err().copied(),
                fds: Mutex::new(fds.ok()),
                memory: OnceLock::new(),
                elsewhere: Mutex::default(),
                news,
            };
            book.learn(Arc::new(entry));
        }
        book.revision = book.revision.max(revision);
        self.peer_view.on_revision(revision);
        book.introduced = true;
        self.news.notify_all();
        Ok(())
    }

    pub(crate) fn forget_regions(&self, revision: u64, gone: &[(u32, u32)]) {
        let mut book = self.book();
        for &(id, generation) in gone {
            if book.regions.get(&id).is_some_and(|entry| entry.news.generation == generation) {
                book.forget(id);
            }
        }
        book.revision = book.revision.max(revision);
        self.peer_view.on_revision(revision);
    }

    /// Takes new counters. Answers whether they are not too many, and well named.
    pub(crate) fn learn_counters(&self, news: Vec<CounterNews>) -> bool {
        let mut book = self.book();
        for CounterNews { id, generation, label, .. } in news {
            if id as usize >= COUNTERS_MAX || label.len() > LABEL_BYTES_MAX {
                return false;
            }
            book.counters.learn(id, generation, label);
        }
        self.news.notify_all();
        true
    }

    /// It speaks of transfers by name.
    pub(crate) fn speaks_of_transfers(&self, tag: u64) {
        // The first word stands.
        let _ = self.tag.set(tag);
    }

    /// The upper half of the numbers of notes that tell it of landed bytes, if it speaks of transfers by name.
    pub(crate) fn landing_tag(&self) -> Option<u64> {
        self.tag.get().copied()
    }

    /// An announced region, in this use of its number.
    pub(crate) fn entry_of(&self, region: RegionId, generation: Generation) -> Option<Arc<RemoteEntry>> {
        self.book().regions.get(&region.0).filter(|entry| entry.generation() == generation).cloned()
    }

    /// The first announced region with this label.
    pub(crate) fn region(&self, label: &str) -> Option<Arc<RemoteEntry>> {
        let book = self.book();
        let (first, id) = book.by_label.range((label.to_owned(), 0)..).next()?;
        (first == label).then(|| book.regions.get(id).cloned()).flatten()
    }

    /// The region to use for `bytes` at an address of the peer, or for the first of them, among those that stand and will
    /// do: the newest that covers all of them, else the one that covers most.
    pub(crate) fn region_at(
        &self,
        address: u64,
        bytes: u64,
        will_do: impl Fn(&RemoteEntry) -> bool,
    ) -> Option<Arc<RemoteEntry>> {
        let book = self.book();
        let stands = |entry: &Arc<RemoteEntry>| will_do(entry) && self.stands(&book, entry).is_ok();
        book.by_address.find(address, bytes, stands).cloned()
    }

    /// Whether a region is known to have these bytes, of which it is not known now whether it still stands: the peer's news are under way.
    pub(crate) fn is_news_under_way_at(&self, address: u64, bytes: u64) -> bool {
        let book = self.book();
        let is_it =
            |entry: &Arc<RemoteEntry>| matches!(self.stands(&book, entry), Err(RegionError::NewsUnderWay { .. }));
        book.by_address.find(address, bytes, is_it).is_some()
    }

    /// A region close to an address that none covers.
    pub(crate) fn nearest_region(&self, address: u64) -> Option<Arc<RemoteEntry>> {
        self.book().by_address.nearest(address).cloned()
    }

    /// Every announced region, by its number.
    pub(crate) fn regions(&self) -> Vec<Arc<RemoteEntry>> {
        let mut regions: Vec<_> = self.book().regions.values().cloned().collect();
        regions.sort_unstable_by_key(|entry| entry.news.id);
        regions
    }

    pub(crate) fn labels(&self) -> Vec<String> {
        self.book().by_label.iter().map(|(label, _)| label.clone()).collect()
    }

    pub(crate) fn counter(&self, label: &str) -> Option<CounterRef> {
        self.book().counters.find(label)
    }

    /// Its session is complete.
    pub(crate) fn completed(&self) {
        self.book().complete = true;
        self.news.notify_all();
    }

    /// Whether its session is complete, or was before it ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.book().complete
    }

    pub(crate) fn is_introduced(&self) -> bool {
        self.book().introduced
    }

    /// Sleeps until something was announced or the session ended, at most so long.
    pub(crate) fn sleep_for_news(&self, within: Duration) {
        let book = self.book();
        drop(self.news.wait_timeout(book, within));
    }

    /// Whether the region still stands, as far as can be known at this moment: announced, and not
    /// deregistered since in the peer's own log.
    pub(crate) fn check_standing(&self, entry: &RemoteEntry) -> Result<(), RegionError> {
        self.stands(&self.book(), entry)
    }

    fn stands(&self, book: &Book, entry: &RemoteEntry) -> Result<(), RegionError> {
        let gone = || RegionError::Stale { label: entry.news.label.clone() };
        let renewed = || RegionError::Renewed { label: entry.news.label.clone() };
        match book.regions.get(&entry.news.id).map(|known| &**known) {
            Some(known) if known.news.generation == entry.news.generation => {}
            // Renewed memory is where it was; what is registered anew may be there, too, but is not told to be renewed.
            Some(RemoteEntry { news, .. })
                if news.label == entry.news.label
                    && news.base == entry.news.base
                    && self.registrar.is_renewed(&news.path) =>
            {
                return Err(renewed());
            }
            _ => return Err(gone()),
        }
        let is_untouched = || self.peer_view.not_withdrawn_since(entry.news.id, book.revision);
        if self.peer_view.last_region_change() <= book.revision || is_untouched() {
            return Ok(());
        }
        // Something of it was withdrawn that the announcements do not reflect yet: is it all of it?
        let Ok(since) = self.peer_view.withdrawals_since(book.revision) else {
            return Err(RegionError::NewsUnderWay { peer: self.name.clone() });
        };
        let of_this = |withdrawal: &&Withdrawal| {
            withdrawal.region == entry.news.id && withdrawal.generation >= entry.news.generation
        };
        let mut of_this = since.list.iter().filter(of_this);
        match of_this.find(|withdrawal| withdrawal.len == WHOLE_REGION || is_renewal(withdrawal)) {
            Some(withdrawal) if is_renewal(withdrawal) => Err(renewed()),
            Some(_) => Err(gone()),
            None => Ok(()),
        }
    }

    /// Whether no news of its renewal is under way.
    pub(crate) fn is_up_to_date(&self, entry: &RemoteEntry) -> bool {
        !matches!(self.check_standing(entry), Err(RegionError::Renewed { .. }))
    }

    fn described<'a>(&self, entry: &'a RemoteEntry) -> AdvertisedRegion<'a> {
        AdvertisedRegion {
            epoch: self.epoch.0,
            id: entry.id(),
            generation: entry.generation(),
            base: entry.news.base,
            bytes: entry.news.bytes,
            rights: entry.rights(),
            access_blob: &entry.news.path,
        }
    }

    /// How the region's memory would be reached from here.
    pub(crate) fn access_path(&self, entry: &RemoteEntry) -> AccessPath {
        if let Some(why) = why_unreached(&entry.news.path) {
            return AccessPath { name: AccessPath::NONE, reason: unreached(&why) };
        }
        self.registrar.access_path(&self.described(entry))
    }

    /// The region's memory as this process reaches it, mapped at the first call.
    pub(crate) fn import(&self, entry: &RemoteEntry) -> Result<RemoteMemory, ImportError> {
        if let Some(why) = why_unreached(&entry.news.path) {
            return Err(ImportError::NoPath(unreached(&why)));
        }
        if let Some(why) = entry.without_fds {
            return Err(ImportError::NoPath(why.in_words().to_owned()));
        }
        let mut kept = entry.fds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = entry.memory.get() {
            return Ok(memory.clone());
        }
        let none_left = |_| MemoryError::NoDescriptor { what: "a peer's pool" };
        let fds = kept.as_ref().map_or(&[][..], KeptFds::fds);
        if !fds.iter().all(PassedFd::is_memfd) {
            return Err(MemoryError::NotAMemfd.into());
        }
        let is_settled = self.registrar.is_settled();
        let fds: Result<Vec<OwnedFd>, _> = fds.iter().map(|fd| fd.try_clone().map_err(none_left)).collect();
        let mut fds = fds?.into_iter();
        let imported = self.registrar.import_with_extra_fds(&self.described(entry), fds.next(), fds.collect())?;
        if !is_settled && matches!(imported, RemoteMemory::TargetMediated(_)) {
            return Ok(imported);
        }
        let memory = entry.memory.get_or_init(|| imported).clone();
        // Mapped: the descriptors are not needed any more.
        kept.take();
        Ok(memory)
    }

    /// Has it mapped by whoever `run` has do it, for who may not wait: the pages of a pool come one by one, and at the price that their
    /// owner has made. None while that is under way.
    pub(crate) fn import_elsewhere(
        self: &Arc<Self>,
        entry: &Arc<RemoteEntry>,
        run: impl FnOnce(BlockingJob),
    ) -> Option<Result<(), ImportError>> {
        // Locked means that somebody maps it at this moment.
        let has_none = |fds: &Option<KeptFds>| fds.as_ref().is_none_or(|kept| kept.fds().is_empty());
        let has_nothing_to_map = || entry.fds.try_lock().is_ok_and(|fds| has_none(&fds));
        if entry.memory.get().is_some() || has_nothing_to_map() {
            return Some(Ok(()));
        }
        if let Some(ended) = entry.take_ended() {
            return Some(ended);
        }
        if matches!(std::mem::replace(&mut *entry.elsewhere(), Elsewhere::UnderWay), Elsewhere::UnderWay) {
            return None;
        }
        let (peer, ends) = (Arc::clone(self), EndsElsewhere { entry: Arc::clone(entry), ended: None });
        run(BlockingJob::once(move || {
            let mut ends = ends;
            ends.ended = Some(peer.import(&ends.entry).map(drop));
        }));
        entry.take_ended()
    }
}
