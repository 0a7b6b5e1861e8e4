//! What children take, and give back.

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::RequestId;
use penstock_session::machine::Step;

use super::{Ask, Child, Inherited, PinEvent, PinKey, Pins, Use, UseKey};
use crate::action::BlocksRef;
use crate::continuation::inherit::{
    CopyTail, Isolation, Miss, blocks_of, compare, reach, tail, tokens_sayable, whole_tokens,
};

/// Who asks, as far as it is known.
pub(in crate::continuation) enum Identity<'a> {
    Known(&'a Isolation),
    Digest(&'a [u8; 32]),
}

impl Pins {
    /// Gives a child as many whole blocks of its parent as it can have: all groups or none. What a child that asks again gets is its own
    /// too, and stays when what it has had before is given back.
    pub fn inherit(&mut self, ask: &Ask, now: Timestamp) -> Result<Inherited, Miss> {
        let identity = Identity::Known(&ask.isolation);
        self.take(&ask.parent, &identity, ask.tokens, ask.hashes.as_deref(), &ask.child, now)
    }

    pub(in crate::continuation) fn take(
        &mut self,
        parent: &RequestId,
        identity: &Identity<'_>,
        tokens: u64,
        hashes: Option<&[Vec<u64>]>,
        child: &Child,
        now: Timestamp,
    ) -> Result<Inherited, Miss> {
        self.expire(now);
        let taken = self.try_take(parent, identity, tokens, hashes, child);
        match &taken {
            Ok(_) => self.metrics.inherited += 1,
            Err(_) => self.metrics.missed += 1,
        }
        taken
    }

    fn try_take(
        &mut self,
        parent: &RequestId,
        identity: &Identity<'_>,
        tokens: u64,
        hashes: Option<&[Vec<u64>]>,
        child: &Child,
    ) -> Result<Inherited, Miss> {
        let key = self.find(parent, identity)?;
        let held = self.pins.get_mut(&key).ok_or(Miss::NoParent)?;
        let is_abroad = matches!(child, Child::Lease(..));
        if is_abroad && held.groups.len() > 1 {
            return Err(Miss::SeveralGroups);
        }
        let sayable = held.groups.first().map_or(0, tokens_sayable);
        let tokens = if is_abroad { tokens.min(sayable.saturating_add(1)) } else { tokens };
        let whole = whole_tokens(&held.groups, tokens);
        if whole == 0 {
            return Err(Miss::NothingWhole);
        }
        compare(&held.groups, whole, hashes)?;
        if self.uses.len() >= self.settings.uses || (is_abroad && self.lent >= self.settings.lent) {
            return Err(Miss::Crowded);
        }
        // Everything is known to be there: from here on nothing fails.
        let reach = reach(&held.groups, tokens);
        let groups = blocks_of(&held.groups, whole);
        self.next += 1;
        let use_key = UseKey(self.next);
        self.lent += usize::from(is_abroad);
        if let Step::Go(next) = held.state.step(PinEvent::Inherit) {
            held.state = next;
        }
        held.uses.insert(use_key);
        self.uses.insert(use_key, Use { pin: key, child: child.clone(), tokens: whole, reach });
        self.by_child.insert((child.clone(), use_key));
        Ok(Inherited { tokens: whole, groups, tail_tokens: reach - whole, key: use_key })
    }

    /// The pin of a parent that somebody may have, or why there is none.
    fn find(&mut self, parent: &RequestId, identity: &Identity<'_>) -> Result<PinKey, Miss> {
        let pinned = self.by_parent.get(parent).copied();
        let held = pinned.and_then(|key| self.pins.get(&key));
        let memory = self.blobs.get(parent);
        // One that runs again under the same name comes first: that is whom the name means now.
        let running = self.running.get(parent);
        let its = running.or(held.map(|held| &held.isolation)).or(memory.map(|memory| &memory.isolation));
        let Some(its) = its else { return Err(Miss::NoParent) };
        let (is_foreign, differs) = match identity {
            Identity::Known(isolation) => (isolation.tenant != its.tenant, isolation.differs(its)),
            Identity::Digest(digest) => {
                let known = if running.is_none() { held.map(|held| held.digest) } else { None };
                let is_other = known.unwrap_or_else(|| its.digest()) != **digest;
                (is_other, is_other.then_some(Miss::NoParent))
            }
        };
        self.metrics.foreign += u64::from(is_foreign);
        let differs = differs.filter(|_| !planted::is(Bug::ParentOfAnybody));
        match (differs, running, pinned) {
            (Some(miss), _, _) => Err(miss),
            (None, Some(_), _) => Err(Miss::Running),
            (None, None, Some(key)) => Ok(key),
            (None, None, None) => Err(memory.and_then(|memory| memory.gone).unwrap_or(Miss::NoParent)),
        }
    }

    /// A child gives its blocks back: it could not be allocated, was aborted or has ended. Whether it still had any.
    pub fn give_up(&mut self, key: UseKey) -> bool {
        let Some(Use { pin, child, .. }) = self.uses.remove(&key) else { return false };
        self.lent -= usize::from(matches!(child, Child::Lease(..)));
        self.by_child.remove(&(child, key));
        let Some(held) = self.pins.get_mut(&pin) else { return true };
        held.uses.remove(&key);
        let event = if held.uses.is_empty() { PinEvent::GiveUpLast } else { PinEvent::GiveUp };
        if let Step::Go(next) = held.state.step(event) {
            held.state = next;
        }
        self.take_out(pin);
        true
    }

    /// A child gives back whatever it has, of all its parents. How many that were.
    pub fn give_up_all(&mut self, child: &Child) -> usize {
        let first = (child.clone(), UseKey(0));
        let of_it = self.by_child.range(first..).take_while(|(other, _)| other == child);
        let keys: Vec<UseKey> = of_it.map(|(_, key)| *key).collect();
        keys.into_iter().filter(|key| self.give_up(*key)).count()
    }

    /// What keeps the blocks that a child has.
    pub fn tickets_of(&self, key: UseKey) -> &[BlocksRef] {
        let held = self.uses.get(&key).and_then(|its| self.pins.get(&its.pin));
        held.map_or(&[], |held| held.keep.as_slice())
    }

    /// Tokens of a block of each group of the parent of a child.
    pub fn block_tokens_of(&self, key: UseKey) -> Vec<u32> {
        let held = self.uses.get(&key).and_then(|its| self.pins.get(&its.pin));
        held.map(|held| held.groups.iter().map(|group| group.block_tokens).collect()).unwrap_or_default()
    }

    /// What a child has to copy into blocks of its own, so that it can write behind what it has inherited: for each group, as many of
    /// the fresh blocks as are needed are taken, in their order. Nothing if there are too few, or the child has nothing.
    pub fn tail_plan(&self, key: UseKey, fresh: &[Vec<u32>]) -> Option<Vec<CopyTail>> {
        let its = self.uses.get(&key)?;
        tail(&self.pins.get(&its.pin)?.groups, its.tokens, its.reach, fresh)
    }
}
