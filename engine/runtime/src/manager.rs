//! What the control layer keeps, as calls and the control loop share it.
//!
//! A call changes the transfer manager and wakes the control loop, which alone carries out what the transfer manager wants: so it happens in the order in which it
//! was decided, and frames leave in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{Config, Env, NoteId, Timestamp};
use penstock_flows::manager::{Inconsistency, RELAY, Reported, Settings, part_of};
use penstock_flows::{Action, BlocksRef, Event, TransferManager};
use penstock_memory::Blocks;
use penstock_session::PeerKey;

use crate::engine_inner::EngineInner;
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Shared};

/// The longest sleep of a call that waits for the transfer manager: it may have missed the word.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The transfer manager of one engine.
pub(crate) struct TransferManagerShell {
    manager: Mutex<TransferManager>,
    /// Something can be fetched.
    told: Condvar,
    /// How often that was so.
    tellings: AtomicU64,
    /// Notes whose number begins with it are landings.
    tag: u64,
    /// Of which ends the transfer manager reports, as bits.
    reported: AtomicU8,
    kept: Mutex<Kept>,
}

/// What is kept for the transfer manager, by its number.
#[derive(Default)]
struct Kept {
    last: u64,
    blocks: BTreeMap<BlocksRef, Vec<Blocks>>,
    /// Blocks that are quarantined, and where the word is heard that releases them.
    quarantined: BTreeMap<BlocksRef, Arc<Word>>,
    /// How often something was let go that is not kept.
    strays: u64,
}

/// Where the transfer manager says that what it has quarantined is quiet. Its blocks come back no sooner: until then it refuses them to others.
#[derive(Debug, Default)]
pub(crate) struct Word {
    is_said: AtomicBool,
    /// The engine has ended.
    is_never_said: AtomicBool,
}

impl Word {
    pub(crate) fn is_said(&self) -> bool {
        self.is_said.load(Ordering::Acquire) // SYNC word: pairs with say()
    }

    pub(crate) fn is_never_said(&self) -> bool {
        self.is_never_said.load(Ordering::Acquire) // SYNC never-said: pairs with fall_silent()
    }

    fn say(&self) {
        self.is_said.store(true, Ordering::Release); // SYNC word: pairs with is_said()
    }
}

impl TransferManagerShell {
    pub(crate) fn new(config: &Config, random: [u64; 3]) -> Self {
        let manager = TransferManager::new(Settings::of(config), random);
        let tag = manager.tag();
        Self {
            manager: Mutex::new(manager),
            told: Condvar::new(),
            tellings: AtomicU64::new(0),
            tag,
            reported: AtomicU8::new(0),
            kept: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TransferManager> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a note of this number is a landing for this engine.
    #[inline]
    pub(crate) fn is_manager_note(&self, id: NoteId) -> bool {
        has_tag(id, self.tag)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps blocks until the transfer manager lets them go.
    pub(crate) fn keep(&self, blocks: Blocks) -> BlocksRef {
        self.keep_all(vec![blocks])
    }

    /// The same, of several pools or places.
    pub(crate) fn keep_all(&self, blocks: Vec<Blocks>) -> BlocksRef {
        let mut kept = self.kept();
        kept.last += 1;
        let ticket = BlocksRef(kept.last);
        kept.blocks.insert(ticket, blocks);
        ticket
    }

    /// The blocks that are kept, for somebody who looks at them while the transfer manager may let them go.
    pub(crate) fn hold(&self, ticket: BlocksRef) -> Option<Vec<Blocks>> {
        self.kept().blocks.get(&ticket).cloned()
    }

    /// Lets go what is kept, or says that what is quarantined is quiet. Answers whether it was quarantined: then its blocks come back when
    /// the quarantine is looked through.
    pub(crate) fn let_go(&self, ticket: BlocksRef) -> bool {
        let mut kept = self.kept();
        let blocks = kept.blocks.remove(&ticket);
        let word = kept.quarantined.remove(&ticket);
        match &word {
            Some(word) => word.say(),
            None => kept.strays += u64::from(blocks.is_none() && part_of(ticket.0) != RELAY),
        }
        drop(kept);
        drop(blocks);
        word.is_some()
    }

    /// The same, where nothing was quarantined.
    pub(crate) fn free(&self, ticket: BlocksRef) {
        let _ = self.let_go(ticket);
    }

    /// The blocks of a ticket, which is quarantined from now on, and where the word is heard that releases them.
    ///
    /// Berths of a relay are its own to keep: what is quarantined of them has no blocks here.
    pub(crate) fn quarantine(&self, ticket: BlocksRef) -> Option<(Vec<Blocks>, Arc<Word>)> {
        let mut kept = self.kept();
        let blocks = match part_of(ticket.0) {
            RELAY => Vec::new(),
            _ => kept.blocks.remove(&ticket)?,
        };
        let word = Arc::new(Word::default());
        kept.quarantined.insert(ticket, Arc::clone(&word));
        Some((blocks, word))
    }

    /// The engine has ended: nothing more is said.
    pub(crate) fn fall_silent(&self) {
        for word in self.kept().quarantined.values() {
            word.is_never_said.store(true, Ordering::Release); // SYNC never-said: pairs with is_never_said()
        }
    }

    /// Looks whether the transfer manager agrees with itself and with what is kept for it.
    fn check(&self) -> Result<(), Inconsistency> {
        let manager = self.lock();
        manager.check()?;
        let (expected, is_all) = (manager.tickets()?, manager.keeps_for_transfers_only());
        drop(manager);
        let kept = self.kept();
        if kept.strays > 0 {
            return Err(Inconsistency::Blocks(format!("{} times something was let go that was not kept", kept.strays)));
        }
        // Berths of a relay are its own to keep.
        let is_kept_here = |ticket: &BlocksRef| part_of(ticket.0) != RELAY;
        let there = kept.blocks.keys().chain(kept.quarantined.keys()).copied().filter(is_kept_here);
        let there: BTreeSet<BlocksRef> = there.collect();
        match there.symmetric_difference(&expected).find(|ticket| is_all || !there.contains(ticket)) {
            None => Ok(()),
            Some(ticket) if there.contains(ticket) => {
                Err(Inconsistency::Blocks(format!("ticket {} is kept and no transfer has it", ticket.0)))
            }
            Some(ticket) => Err(Inconsistency::Blocks(format!("ticket {} is of a transfer and is not kept", ticket.0))),
        }
    }

    pub(crate) fn handle(&self, event: Event, now: Timestamp) {
        self.lock().handle(event, now);
    }

    /// Of which ends of transfers [`Action::Report`] is wanted.
    pub(crate) fn report(&self, reported: Reported) {
        let bits = u8::from(reported.failures) | u8::from(reported.successes) << 1;
        if self.reported.swap(bits, Ordering::Relaxed) != bits {
            self.lock().report(reported);
        }
    }

    /// When something has to be done though nothing happens.
    pub(crate) fn deadline(&self) -> Timestamp {
        self.lock().deadline()
    }

    pub(crate) fn expire(&self, now: Timestamp) {
        self.lock().expire(now);
    }

    /// What is to be done next.
    pub(crate) fn next(&self) -> Option<Action> {
        self.lock().poll_action()
    }

    /// Something can be fetched.
    pub(crate) fn tell(&self) {
        self.tellings.fetch_add(1, Ordering::Release); // SYNC activity: pairs with tellings()
        self.told.notify_all();
    }

    /// How often something could be fetched, ever.
    pub(crate) fn tellings(&self) -> u64 {
        self.tellings.load(Ordering::Acquire) // SYNC activity: pairs with tell()
    }
}

/// Whether a note's number begins with this tag.
#[inline]
pub(crate) fn has_tag(id: NoteId, tag: u64) -> bool {
    (id.0 >> 64) as u64 == tag
}

/// A peer as the transfer manager knows it.
pub(crate) fn key_of(peer: &PeerState) -> PeerKey {
    PeerKey { peer_index: peer.peer_index, epoch: peer.epoch }
}

impl<E: Env> Shared<E> {
    /// A note has come that is a landing.
    #[cold]
    pub(crate) fn on_manager_note(&self, peer: &Arc<PeerState>, payload: &[u8]) {
        if planted::is(Bug::LostNotification) && self.env.now().as_ns().is_multiple_of(7) {
            return;
        }
        self.control.call(ControlCall::Landing { peer: Arc::clone(peer), payload: payload.to_vec() });
    }

    /// Looks at the transfer manager.
    pub(crate) fn look_at_manager<R>(&self, look: impl FnOnce(&TransferManager) -> R) -> R {
        look(&self.manager.lock())
    }

    /// Looks whether what the control layer keeps agrees with itself.
    pub(crate) fn check_manager(&self) -> Result<(), Inconsistency> {
        self.manager.check()
    }

    /// Takes something from the transfer manager that is not carried out by anybody.
    pub(crate) fn change_manager<R>(&self, change: impl FnOnce(&mut TransferManager) -> R) -> R {
        change(&mut self.manager.lock())
    }

    /// Calls the transfer manager. What it wants because of that is carried out by the control loop.
    pub(crate) fn call_manager<R>(&self, call: impl FnOnce(&mut TransferManager, Timestamp) -> R) -> R {
        let now = self.env.now();
        let answer = call(&mut self.manager.lock(), now);
        self.control.call(ControlCall::Manager);
        answer
    }
}

impl<E: Env> EngineInner<E> {
    /// Waits until the transfer manager has what is looked for, at most so long.
    pub(crate) fn wait_for_manager<R>(
        &self,
        within: Duration,
        look: impl Fn(&TransferManager) -> Option<R>,
    ) -> Option<R> {
        let shared = &self.shared;
        let until = shared.env.now() + within;
        if self.is_inline() {
            self.wait_until(until, || shared.look_at_manager(|manager| look(manager).is_some()));
            return shared.look_at_manager(look);
        }
        let mut manager = shared.manager.lock();
        loop {
            let left = until.since(shared.env.now());
            let found = look(&manager);
            if found.is_some() || left.is_zero() {
                return found;
            }
            let woken = shared.manager.told.wait_timeout(manager, left.min(SLEEP_MAX));
            manager = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
