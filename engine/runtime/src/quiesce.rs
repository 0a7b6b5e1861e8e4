//! Proof that nothing lands any more.
//!
//! Whoever wants memory back withdraws it in this engine's gate and then looks at the hazards of
//! everyone who could be copying: its own workers and each peer's. Who is quiet, or moves on, has
//! seen the withdrawal or will see it before its next copy. Who does neither until the deadline was
//! stopped in the middle of a copy: the memory is quarantined, and the same word moving later, or
//! the death of its process, is the proof that releases it.
//!
//! Cards move bytes without anybody's processor. For them the [`Fence`] of the session speaks: nothing that began before
//! the withdrawal lands any more. It says so when both engines' cards have finished what is older, and whoever
//! has not after half of the time is cut off: that is a proof by itself.
//!
//! [`Fence`]: penstock_transport::Fence

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::plan::RegionKey;
use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Env, RegionId, Rights, Timestamp};
use penstock_memory::fork::Maker;
use penstock_memory::{Blocks, OldPages, Region};
use penstock_ring::Withdrawal;
use penstock_transport::host::{BusyWorker, EngineSegments, OlderPages, OwnActivity};

use crate::engine_inner::EngineInner;
use crate::manager::Word;
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Shared};

/// How often the engine looks by itself whether what is quarantined is quiet: a quarter of its age, within these bounds.
const LOOKS_MIN: Duration = Duration::from_millis(1);
const LOOKS_MAX: Duration = Duration::from_millis(100);

/// Whether anything can still touch this engine's memory.
#[derive(Debug)]
#[must_use = "quarantined memory may not be reused"]
pub enum LocalQuiesce {
    /// Nothing can land in this engine's memory any more.
    Quiesced,
    /// A stopped or unreachable peer might.
    Quarantined(Quarantined),
    /// Only for a deregistration: the region was registered more than once and stands until the
    /// other registrations, so many, have ended too. Peers may still use it.
    StillRegistered(u64),
}

impl LocalQuiesce {
    /// Whether nothing can touch the memory any more.
    pub fn is_quiesced(&self) -> bool {
        matches!(self, Self::Quiesced)
    }
}

/// The same about the peer's memory.
#[derive(Debug)]
pub enum RemoteQuiesce {
    /// Nothing of this transfer can land there any more. Of one that had ended well, and told the peer nothing, it says that all was
    /// acknowledged: over cards the peer's memory may see the last bytes a moment later ([`Placement`](crate::transport::Placement)).
    Quiesced,
    /// Something of it might.
    Quarantined(Quarantined),
    /// It cannot be known from here: the session ended without a goodbye. Nothing more of it comes from here, but what had left may
    /// have landed, and the peer alone knows whether it still lives.
    Unknown,
}

/// What a cancel answers, once for each owner of memory.
#[derive(Debug)]
#[must_use = "quarantined memory may not be reused"]
pub struct CancelOutcome {
    /// Whether anything can still land in this engine's memory.
    pub local: LocalQuiesce,
    /// Whether anything can still land in the peer's memory.
    pub remote: RemoteQuiesce,
}

/// Memory that somebody might still touch.
///
/// Blocks of a pool that lie in it are kept out of reuse by themselves; caller memory must be kept
/// by its owner until [`Quarantined::is_released`] says so, which needs no engine. Memory that Penstock owns is never freed
/// before: if the last of these handles goes first, it is leaked.
#[derive(Clone)]
pub struct Quarantined(Arc<Entry>);

struct Entry {
    label: String,
    /// The region, if it is one's.
    region: Option<Arc<Region>>,
    extents: Vec<(u64, u64)>,
    since: Timestamp,
    /// Shared with the other regions of an engine that ended.
    witnesses: Arc<[QuiesceCondition]>,
    released: AtomicBool,
    kept: Mutex<Kept>,
    maker: Maker,
}

/// What waits for the proof.
#[derive(Default)]
struct Kept {
    /// Blocks that lie in it; none once they have fresh memory.
    blocks: Vec<Blocks>,
    /// The pages from before they had.
    old_pages: Option<OldPages>,
    /// Who was seen copying when they got it, and not before.
    late: Vec<QuiesceCondition>,
    /// They are getting it at this moment: a proof that comes now is found afterwards.
    renewing: bool,
}

/// Keeps blocks out of reuse while their bytes are copied into fresh memory, even if the proof comes meanwhile.
#[must_use = "the blocks may be handed out again as soon as it is dropped"]
pub(crate) struct Renewing<'a>(&'a Quarantined);

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.0.kept().renewing = false;
    }
}

/// What became of what a peer was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteQuiesceState {
    /// Nothing of it lands any more.
    Quiet,
    /// Nobody here can learn it any more.
    Unknown,
}

/// Somebody who was seen in the middle of a copy and has not moved since.
pub(crate) enum QuiesceCondition {
    /// A worker of this engine, by its hazard, or the kernel or a device with pages that it was left.
    Worker { ours: Arc<EngineSegments>, activity: OwnActivity },
    /// A peer's worker, by its hazard, and what its call has left with devices, if both engines are in this process.
    Peer { peer: Arc<PeerState>, busy: BusyWorker, left: Option<OlderPages> },
    /// The cards of a session, this engine's own and the peer's, until they are done with what began before this
    /// revision of this engine's log.
    Cards { peer: Arc<PeerState>, revision: u64 },
    /// The workers that have units of one transfer in hand.
    Hands(Box<dyn Fn() -> bool + Send + Sync>),
    /// A peer's own workers, which were asked to move what was then given up.
    Owner { peer: Arc<PeerState>, end: Box<dyn Fn() -> Option<RemoteQuiesceState> + Send + Sync> },
    /// A session that is over, until both sides have left it.
    Session { peer: Arc<PeerState> },
    /// A peer that will say when it is done, or whose end proves it: the transfer manager hears both.
    Word { peer: Arc<PeerState>, word: Arc<Word> },
    /// A fork of the engine's process: nothing can be proven from there.
    Fork,
}

impl QuiesceCondition {
    pub(crate) fn is_met(&self) -> bool {
        match self {
            Self::Worker { ours, activity } => ours.owner_state.has_ended(activity),
            // In this order, as for this engine's own.
            Self::Peer { peer, busy, left } => {
                let is_over = peer.peer_view.has_finished(busy) || peer.is_gone();
                is_over && left.as_ref().is_none_or(OlderPages::are_back)
            }
            Self::Cards { peer, revision } => {
                peer.is_gone() || peer.peer_view.fence().is_none_or(|fence| fence.has_passed(*revision))
            }
            Self::Hands(are_empty) => are_empty(),
            Self::Owner { end, .. } => end().is_some(),
            Self::Session { peer } => peer.is_over(),
            Self::Word { peer, word } => {
                word.is_said() || (word.is_never_said() && peer.ended().is_some() && peer.is_gone())
            }
            Self::Fork => false,
        }
    }

    /// Whoever can be cut off is.
    pub(crate) fn force(&self) {
        if let Self::Cards { peer, revision } = self
            && let Some(fence) = peer.peer_view.fence()
        {
            fence.force(*revision);
        }
    }

    /// Who it is, if it writes by addresses of this process: fresh memory would be written like the old.
    pub(crate) fn inside(&self) -> Option<String> {
        match self {
            // Only engines of one process hand over.
            Self::Peer { peer, .. } => peer.caps.hand_over.then(|| format!("engine `{}` of this process", peer.name)),
            Self::Worker { .. } | Self::Hands(_) => Some(self.who().to_owned()),
            // A card that pages on demand follows the addresses, not the pages.
            Self::Cards { peer, .. } => Some(format!("a card, for the session with `{}`,", peer.name)),
            Self::Session { peer } => Some(format!("the session with `{}`, which is not left yet,", peer.name)),
            // It writes its own memory, which is not this engine's to renew.
            Self::Owner { .. } => None,
            Self::Word { peer, .. } => Some(format!("engine `{}`, which has not said that it is done,", peer.name)),
            Self::Fork => Some("the parent of this process".to_owned()),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Peer { peer, busy, .. }, Self::Peer { peer: other, busy: seen, .. }) => {
                Arc::ptr_eq(peer, other) && busy == seen
            }
            _ => false,
        }
    }

    fn who(&self) -> &str {
        match self {
            Self::Worker { activity, .. } if activity.is_of_peer() => "a device, for an engine of this process",
            _ => self.peer().map_or("a worker of this engine", |peer| peer.as_str()),
        }
    }

    fn peer(&self) -> Option<&EngineName> {
        match self {
            Self::Peer { peer, .. }
            | Self::Owner { peer, .. }
            | Self::Cards { peer, .. }
            | Self::Session { peer }
            | Self::Word { peer, .. } => Some(&peer.name),
            _ => None,
        }
    }
}

impl Quarantined {
    /// A peer's memory that its own workers may still move for a transfer that was given up. It is not
    /// this engine's, so this engine does not list it.
    pub(crate) fn at_peer(
        peer: &Arc<PeerState>,
        since: Timestamp,
        end: Box<dyn Fn() -> Option<RemoteQuiesceState> + Send + Sync>,
    ) -> Self {
        Self::unlisted("memory of the peer", since, QuiesceCondition::Owner { peer: Arc::clone(peer), end })
    }

    /// What a forked child may say about its parent's transfers.
    pub(crate) fn forked(since: Timestamp) -> Self {
        Self::unlisted("a transfer of the parent process", since, QuiesceCondition::Fork)
    }

    fn unlisted(label: &str, since: Timestamp, witness: QuiesceCondition) -> Self {
        Self(Arc::new(Entry {
            label: label.to_owned(),
            region: None,
            extents: Vec::new(),
            since,
            witnesses: [witness].into(),
            released: AtomicBool::new(false),
            kept: Mutex::default(),
            maker: Maker::this_process(),
        }))
    }

    /// Of a peer's memory: its session has ended without a goodbye. Nothing of this engine reaches it from then on, what had left may still
    /// land as long as the peer lives, and nothing more can be learnt here.
    pub fn is_unknown(&self) -> bool {
        let is_unknown = |witness: &QuiesceCondition| matches!(witness, QuiesceCondition::Owner { end, .. } if end() == Some(RemoteQuiesceState::Unknown));
        self.0.witnesses.iter().any(is_unknown)
    }

    /// Whether it is proven by now that nothing can touch the memory any more; of a peer's memory also where that is [not
    /// known](Self::is_unknown) and never will be. Never in a forked child of the process that heard of it.
    pub fn is_released(&self) -> bool {
        let entry = &self.0;
        // SYNC released: pairs with the store below
        if entry.released.load(Ordering::Acquire) {
            return true;
        }
        // Its parent's locks may be held for ever there.
        if entry.maker.is_ancestor() {
            return false;
        }
        let mut kept = entry.kept();
        if kept.renewing || !entry.witnesses.iter().chain(&kept.late).all(QuiesceCondition::is_met) {
            return false;
        }
        let Kept { blocks, old_pages, .. } = std::mem::take(&mut *kept);
        entry.released.store(true, Ordering::Release); // SYNC released: pairs with the load above
        drop(kept);
        drop(blocks);
        if let Some(pages) = old_pages {
            pages.free();
        }
        tracing::info!(region = entry.label, "quarantine has ended: nothing can land there any more");
        true
    }

    /// Whether the memory was renewed: what might still be written are old pages, which nobody reads.
    pub fn is_renewed(&self) -> bool {
        !self.0.maker.is_ancestor() && self.0.kept().old_pages.is_some()
    }

    /// Fresh memory is about to be put under the blocks: what somebody wrote into them meanwhile would be lost, so
    /// they are not released before the answer is dropped. None if they are released already.
    pub(crate) fn renewing(&self) -> Option<Renewing<'_>> {
        let mut kept = self.0.kept();
        if self.0.released.load(Ordering::Relaxed) {
            return None; // Stored under the lock.
        }
        kept.renewing = true;
        Some(Renewing(self))
    }

    /// Keeps these blocks as well out of reuse until then.
    pub(crate) fn keep(&self, blocks: Blocks) {
        let mut kept = self.0.kept();
        // What is released keeps nothing: that is stored under the lock.
        if !self.0.released.load(Ordering::Relaxed) {
            kept.blocks.push(blocks);
        }
    }

    /// Since when, by the clock of the engine's environment.
    pub fn since(&self) -> Timestamp {
        self.0.since
    }

    pub(crate) fn is_of(&self, region: &Arc<Region>) -> bool {
        self.0.region.as_ref().is_some_and(|own| Arc::ptr_eq(own, region))
    }

    /// Who of those seen at the beginning is within this process and has not moved.
    pub(crate) fn inside(&self) -> Option<String> {
        self.0.witnesses.iter().filter(|witness| !witness.is_met()).find_map(QuiesceCondition::inside)
    }

    /// Whether cards that might touch it have not said yet that they do not.
    pub(crate) fn waits_for_cards(&self) -> bool {
        let is_card =
            |witness: &QuiesceCondition| matches!(witness, QuiesceCondition::Cards { .. }) && !witness.is_met();
        self.0.witnesses.iter().any(is_card)
    }

    /// Whoever might touch it and can be cut off is.
    pub(crate) fn force(&self) {
        self.0.witnesses.iter().for_each(QuiesceCondition::force);
    }

    /// Whether this one has been known to be frozen from the beginning.
    pub(crate) fn knows(&self, witness: &QuiesceCondition) -> bool {
        self.0.witnesses.iter().any(|known| known.is_same(witness))
    }

    /// The blocks have fresh memory: they are handed out again. Whoever is seen `late` might also write the old pages.
    pub(crate) fn renewed(&self, old_pages: OldPages, late: Vec<QuiesceCondition>) {
        let mut kept = self.0.kept();
        let blocks = std::mem::take(&mut kept.blocks);
        // Unless the proof came meanwhile, and nobody needs to wait for another.
        if self.0.released.load(Ordering::Relaxed) && late.is_empty() {
            old_pages.free();
        } else {
            kept.old_pages = Some(old_pages);
            kept.late.extend(late);
        }
        drop(kept);
        drop(blocks);
    }

    /// The label of the region.
    pub fn region(&self) -> &str {
        &self.0.label
    }

    /// What is quarantined, as (offset, length) in bytes.
    pub fn extents(&self) -> &[(u64, u64)] {
        &self.0.extents
    }

    /// The same as (address, length) in this process; empty for what is not a region of this engine's.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let Some(region) = &self.0.region else { return Vec::new() };
        let base = region.base_address();
        self.0.extents.iter().map(|&(offset, len)| (base + offset, len)).collect()
    }

    /// Who might still touch it, each once; none stands for a worker of this engine.
    pub fn suspects(&self) -> Vec<Option<EngineName>> {
        let mut suspects = Vec::new();
        for peer in self.0.witnesses.iter().map(QuiesceCondition::peer) {
            if !suspects.iter().any(|known: &Option<EngineName>| known.as_ref() == peer) {
                suspects.push(peer.cloned());
            }
        }
        suspects
    }
}

impl Entry {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(region) = self.region.take().filter(|_| !*self.released.get_mut()) else { return };
        // A forked child has memory of its own in its place, and nothing to look at.
        if self.maker.is_ancestor() || self.witnesses.iter().all(QuiesceCondition::is_met) {
            return;
        }
        let peers: Vec<&str> = self.witnesses.iter().map(QuiesceCondition::who).collect();
        let (address, bytes) = (region.base_address(), region.bytes());
        tracing::warn!(
            region = self.label,
            peers = peers.join(", "),
            "{bytes} bytes at {address:#x} are never given back: they might still be written or read"
        );
        // Whatever owns the memory is never dropped.
        std::mem::forget(region.memory().clone());
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantined")
            .field("region", &self.0.label)
            .field("extents", &self.0.extents)
            .field("suspects", &self.suspects())
            .field("since", &self.0.since)
            .field("renewed", &self.is_renewed())
            .field("released", &self.0.released)
            .finish()
    }
}

/// Everything quarantined in one engine.
#[derive(Default)]
pub(crate) struct Quarantine {
    entries: Mutex<Vec<Quarantined>>,
}

impl Quarantine {
    fn lock(&self) -> MutexGuard<'_, Vec<Quarantined>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(
        &self,
        subject: &Subject<'_>,
        blocks: Vec<Blocks>,
        witnesses: impl Into<Arc<[QuiesceCondition]>>,
        since: Timestamp,
    ) -> Quarantined {
        let entry = Quarantined(Arc::new(Entry {
            label: subject.label.to_owned(),
            region: subject.region.cloned(),
            extents: subject.extents.to_vec(),
            since,
            witnesses: witnesses.into(),
            released: AtomicBool::new(false),
            kept: Mutex::new(Kept { blocks, ..Kept::default() }),
            maker: Maker::this_process(),
        }));
        let mut entries = self.lock();
        // Those whose proof has come give their blocks back, also if nobody asks.
        entries.retain(|entry| !entry.is_released());
        entries.push(entry.clone());
        entry
    }

    /// Gives back the blocks whose proof has come.
    pub(crate) fn release_proven(&self) {
        self.lock().retain(|entry| !entry.is_released());
    }

    /// When it is worth to look again whether a proof has come: soon for what is young, seldom for what will hardly ever be proven.
    pub(crate) fn look_again(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = self.lock().iter().map(|entry| now.since(entry.since()) / 4).min()?;
        Some(now + waits.clamp(LOOKS_MIN, LOOKS_MAX))
    }

    /// What is still quarantined at this moment.
    pub(crate) fn list(&self) -> Vec<Quarantined> {
        let mut entries = self.lock();
        entries.retain(|entry| !entry.is_released());
        entries.clone()
    }
}

/// What is to become quiet.
pub(crate) struct Subject<'a> {
    pub(crate) label: &'a str,
    pub(crate) region: Option<&'a Arc<Region>>,
    pub(crate) extents: &'a [(u64, u64)],
    /// Takes the blocks that lie in it out of reuse.
    pub(crate) keep: &'a dyn Fn() -> Vec<Blocks>,
}

impl<E: Env> EngineInner<E> {
    /// Withdraws ranges of a region from everyone.
    pub(crate) fn withdraw(&self, region: RegionId, generation: u32, extents: &[(u64, u64)]) {
        let withdrawal = |(offset, len)| Withdrawal { region: region.0, generation, offset, len };
        let list: Vec<Withdrawal> = coalesce(extents).into_iter().map(withdrawal).collect();
        self.shared.segments.owner_state.withdraw(&list);
        self.shared.tell_of_withdrawal();
    }

    /// Waits until everyone who was copying has finished what it was copying, at most `within`.
    pub(crate) fn settle(&self, subject: &Subject<'_>, within: Duration) -> LocalQuiesce {
        let mut witnesses = self.witnesses(subject.region.map(|region| &**region));
        if have_settled(&mut witnesses) {
            return LocalQuiesce::Quiesced;
        }
        // From here on nobody gets these blocks before the proof, however long it takes.
        let kept = (subject.keep)();
        if self.wait_for_witnesses(&mut witnesses, within) {
            return LocalQuiesce::Quiesced;
        }
        for witness in &witnesses {
            let peer = witness.who();
            tracing::warn!(region = subject.label, peer, "stopped in the middle of a copy: memory is quarantined");
        }
        self.shared.workers[0].statistics.quarantines.add_shared(1);
        let now = self.shared.env.now();
        let held = self.shared.quarantine.insert(subject, kept, witnesses, now);
        // It looks whether the proof has come, also if nobody else does.
        self.shared.control.call(ControlCall::Manager);
        LocalQuiesce::Quarantined(held)
    }

    /// Waits until all of them have settled, at most `within`; those that have stay in no list. Cards that are not done
    /// after half of that time are cut off, so that the other half is enough for the proof.
    pub(crate) fn wait_for_witnesses(&self, witnesses: &mut Vec<QuiesceCondition>, within: Duration) -> bool {
        let now = self.shared.env.now();
        let (force_at, until) = (now + within / 2, now + within);
        let mut is_forced = false;
        self.wait_until(until, || {
            if have_settled(witnesses) {
                return true;
            }
            if !is_forced && self.shared.env.now() >= force_at {
                is_forced = true;
                witnesses.iter().for_each(QuiesceCondition::force);
            }
            false
        })
    }

    /// Takes all memory back from everyone, for good, and quarantines what might still be touched when the time is over:
    /// every region that may be, since nobody can say where a peer is that was stopped.
    pub(crate) fn take_back_all(&self, until: Timestamp) {
        let shared = &self.shared;
        let regions: Vec<Arc<Region>> = shared.registry.iter().collect();
        for region in &regions {
            shared.segments.owner_state.withdraw_region(region.id().0, region.generation().0);
        }
        let mut witnesses = self.witnesses(None);
        if self.wait_for_witnesses(&mut witnesses, until.since(shared.env.now())) {
            return;
        }
        let now = shared.env.now();
        for region in regions {
            // Pages that the kernel has are those of their region alone.
            let mut witnesses = self.witnesses(Some(&region));
            let is_quiet = have_settled(&mut witnesses);
            let by_peers_alone = witnesses.iter().all(|witness| matches!(witness, QuiesceCondition::Peer { .. }));
            if is_quiet || by_peers_alone && region.rights() == Rights::NONE {
                continue;
            }
            let witnesses = Arc::<[QuiesceCondition]>::from(witnesses);
            let extents = [(0, region.bytes())];
            let subject = Subject { label: region.label(), region: Some(&region), extents: &extents, keep: &Vec::new };
            drop(shared.quarantine.insert(&subject, Vec::new(), Arc::clone(&witnesses), now));
        }
    }

    /// What a cancelled transfer touches, until no unit of it is in anybody's hands.
    pub(crate) fn quarantine_hands(&self, are_empty: Box<dyn Fn() -> bool + Send + Sync>) -> Quarantined {
        let subject = Subject { label: "a cancelled transfer", region: None, extents: &[], keep: &Vec::new };
        let witnesses = vec![QuiesceCondition::Hands(are_empty)];
        let held = self.shared.quarantine.insert(&subject, Vec::new(), witnesses, self.shared.env.now());
        self.shared.control.call(ControlCall::Manager);
        held
    }

    /// Everyone who is copying into or out of this engine's memory at this moment. What they copy may be older than any
    /// withdrawal made before this was asked. Of who has pages of known regions, only those count that have some of this one.
    pub(crate) fn witnesses(&self, region: Option<&Region>) -> Vec<QuiesceCondition> {
        let shared = &self.shared;
        let (revision, region) = (shared.segments.owner_state.view().revision(), region.map(Region::first_key));
        let mut witnesses = Vec::new();
        for peer in shared.peers.possible_writers() {
            shared.add_witnesses_at(&peer, region, revision, &mut witnesses);
        }
        // Every place that was ever taken: a starved worker may still copy for a peer that is gone.
        shared.add_own_witnesses(0..shared.peers.places(), region, revision, &mut witnesses);
        witnesses
    }
}

impl<E: Env> Shared<E> {
    /// Who may be copying between this engine's memory and this peer's at this moment.
    pub(crate) fn witnesses_of(&self, peer: &Arc<PeerState>) -> Vec<QuiesceCondition> {
        let state = &self.segments.owner_state;
        let find = |revision| {
            let mut found = Vec::new();
            self.add_witnesses_at(peer, None, revision, &mut found);
            self.add_own_witnesses(peer.peer_index..peer.peer_index + 1, None, revision, &mut found);
            found
        };
        let found = find(u64::MAX);
        if found.is_empty() {
            return found;
        }
        // Cards, the kernel, devices, and lanes that are never without a copy answer for what is older than a withdrawal: here is one that concerns
        // nothing.
        let revision = state.withdraw(&[Withdrawal { region: u32::MAX, generation: 0, offset: 0, len: 0 }]);
        self.tell_of_withdrawal();
        find(revision)
    }

    /// Adds what touches this engine's memory for these peers: its workers, and what they, or peers of this process, have left with others. It is looked
    /// for behind the peers' workers: what a call that was not seen has left is found here.
    fn add_own_witnesses(
        &self,
        places: Range<u32>,
        region: Option<RegionKey>,
        revision: u64,
        witnesses: &mut Vec<QuiesceCondition>,
    ) {
        let found = self.segments.owner_state.observe(places, region, revision);
        let worker = |activity| QuiesceCondition::Worker { ours: Arc::clone(&self.segments), activity };
        witnesses.extend(found.into_iter().map(worker));
    }

    /// Adds the peer's workers that are copying, and its cards.
    fn add_witnesses_at(
        &self,
        peer: &Arc<PeerState>,
        region: Option<RegionKey>,
        revision: u64,
        witnesses: &mut Vec<QuiesceCondition>,
    ) {
        let mut busy = Vec::new();
        peer.peer_view.observe(peer.index_at_peer, &mut busy);
        witnesses.extend(busy.into_iter().map(|busy| {
            let left = self.segments.owner_state.left_by_peer(peer.peer_index, &busy, region, revision);
            QuiesceCondition::Peer { peer: Arc::clone(peer), busy, left }
        }));
        if peer.peer_view.fence().is_some() {
            witnesses.push(QuiesceCondition::Cards { peer: Arc::clone(peer), revision });
        }
    }

    /// Keeps blocks out of reuse until it was said that nobody is at them, or each of these peers is gone.
    pub(crate) fn quarantine_until_told(
        &self,
        why: &str,
        blocks: Vec<Blocks>,
        peers: Vec<Arc<PeerState>>,
        word: &Arc<Word>,
    ) {
        let subject = Subject { label: why, region: None, extents: &[], keep: &Vec::new };
        let witness = |peer| QuiesceCondition::Word { peer, word: Arc::clone(word) };
        let witnesses: Vec<QuiesceCondition> = peers.into_iter().map(witness).collect();
        self.workers[0].statistics.quarantines.add_shared(1);
        let blocks = if planted::is(Bug::QuarantineReleasedByHope) { Vec::new() } else { blocks };
        self.quarantine.insert(&subject, blocks, witnesses, self.env.now());
    }
}

/// Takes out who has settled. Answers whether that was everybody.
pub(crate) fn have_settled(witnesses: &mut Vec<QuiesceCondition>) -> bool {
    witnesses.retain(|witness| !witness.is_met());
    witnesses.is_empty()
}

/// Withdrawals that one call may put into the log, which keeps only so many: what is more is
/// withdrawn as the one range around it all, which may end transfers that touch none of it.
const RANGES_PER_CALL: usize = penstock_core::limits::WITHDRAWALS_KEPT / 4;

/// The same bytes in as few ranges as possible.
fn coalesce(extents: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = extents.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
    for (offset, len) in sorted {
        match merged.last_mut() {
            Some(last) if offset <= last.0 + last.1 => last.1 = last.1.max(offset + len - last.0),
            _ => merged.push((offset, len)),
        }
    }
    match (merged.first(), merged.last()) {
        (Some(first), Some(last)) if merged.len() > RANGES_PER_CALL => vec![(first.0, last.0 + last.1 - first.0)],
        _ => merged,
    }
}

#[cfg(test)]
mod tests;
