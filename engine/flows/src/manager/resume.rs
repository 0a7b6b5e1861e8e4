//! Transfers whose session broke: some wait for another one between the same two engines, and go on there.
//!
//! An engine is known by its name and its epoch. One that was started anew has another epoch: it is another engine, which is told nothing
//! and believed nothing of what the one before it was doing.

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Timestamp};
use penstock_session::PeerKey;
use penstock_session::transfers::table::EntryKey;

use super::TransferManager;
use super::calls::CallError;
use super::flow::{Flow, SinkTransfer};
use crate::action::{Action, WatchId};

impl TransferManager {
    /// A session is over: each of its transfers goes on without it, waits for another, or ends.
    pub(super) fn lost(&mut self, peer: PeerKey, name: Option<&EngineName>, now: Timestamp) {
        if let Some(name) = name {
            self.last_words_broke(peer, name, now);
        }
        for place in self.shares.take(peer) {
            let Some(key) = self.transfers.key_at(place) else { continue };
            match self.flow_mut(key) {
                Some(Flow::Source(source)) => {
                    // Each was checked to be one of them.
                    for rank in source.legs.ranks_of(peer) {
                        let _ = source.legs.lost(rank, now);
                        source.gone.extend(name.map(|name| (rank, name.clone())));
                    }
                }
                Some(Flow::Sink(sink)) => {
                    let mut open = Vec::new();
                    for rank in ranks_of(sink, peer) {
                        if sink.legs.lost(rank, now) == Ok(true) {
                            open.push(rank);
                        }
                        sink.gone.extend(name.map(|name| (rank, name.clone())));
                    }
                    open.into_iter().for_each(|rank| self.watch(key, rank, peer));
                }
                Some(Flow::Lent(lent)) => {
                    let ranks: Vec<u16> = lent.places.of_peer(peer).collect();
                    for rank in ranks {
                        let _ = lent.loans.lost(rank);
                    }
                }
                Some(Flow::Pull(pulled)) => {
                    let its = pulled.sources.iter().filter(|(_, of)| **of == peer);
                    let ranks: Vec<u16> = its.map(|(rank, _)| *rank).collect();
                    for rank in ranks {
                        let _ = pulled.pull.lost(rank, now);
                    }
                }
                None => {}
            }
            self.carry(key, now);
        }
    }

    /// Has it proven that a rank of the source writes to nothing any more.
    fn watch(&mut self, key: EntryKey, rank: u16, peer: PeerKey) {
        self.last_watch += 1;
        let id = WatchId(self.last_watch);
        self.watches.insert(id, (key, rank));
        self.actions.push_back(Action::Watch { id, peer });
    }

    /// A sink's transfer whose session broke goes on in this one. What has not come is granted again, as soon as it is proven that nothing
    /// of the old session lands any more and the peer speaks of transfers.
    pub fn resume(&mut self, key: EntryKey, peer: PeerKey, now: Timestamp) -> Result<(), CallError> {
        let name = self.partners.name(peer).cloned().ok_or(CallError::NoSession)?;
        let is_able = self.is_able(peer);
        let Some(Flow::Sink(sink)) = self.flow_mut(key) else { return Err(CallError::NoTransfer) };
        let is_its = |(rank, of): (&u16, &EngineName)| (*of == name).then_some(*rank);
        let ranks: Vec<u16> = sink.gone.iter().filter_map(is_its).collect();
        if ranks.is_empty() {
            return Err(CallError::NotBroken(name));
        }
        let is_other = |rank: &u16| sink.sources.get(rank).is_none_or(|old| old.epoch != peer.epoch);
        if ranks.iter().any(is_other) && !planted::is(Bug::ResumedWithAnotherLife) {
            return Err(CallError::Restarted(name));
        }
        for &rank in &ranks {
            if is_able {
                sink.legs.resume(rank)?;
                sink.gone.remove(&rank);
            }
            sink.sources.insert(rank, peer);
        }
        self.shares.add(peer, key);
        self.carry(key, now);
        Ok(())
    }

    /// A peer speaks of transfers: what was resumed in its session before that goes on now, and it hears what it may not have heard.
    pub(super) fn is_back(&mut self, peer: PeerKey, now: Timestamp) {
        if !self.is_able(peer) {
            return;
        }
        self.say_last_words_again(peer, now);
        for place in self.shares.all(peer) {
            let Some(key) = self.transfers.key_at(place) else { continue };
            let Some(Flow::Sink(sink)) = self.flow_mut(key) else { continue };
            for rank in ranks_of(sink, peer) {
                // What has ended meanwhile is not resumed.
                if sink.gone.remove(&rank).is_some() {
                    let _ = sink.legs.resume(rank);
                }
            }
            self.carry(key, now);
        }
    }

    /// A peer speaks for a rank of the sink whose session is over: it is that rank, if it is the same engine in the same life.
    pub(super) fn follow(&mut self, key: EntryKey, rank: u16, peer: PeerKey) {
        let flow = self.transfers.get_mut(key).map(|held| &mut held.flow);
        let Some(Flow::Source(source)) = flow else { return };
        // Nearly always nobody is gone.
        let name = if source.gone.is_empty() { None } else { self.partners.name(peer) };
        let is_same = source.legs.peer(rank).is_some_and(|old| old.epoch == peer.epoch);
        if is_same && source.gone.get(&rank) == name && name.is_some() && source.legs.follow(rank, peer) {
            source.gone.remove(&rank);
            self.shares.add(peer, key);
        }
    }
}

/// The ranks of the source that a peer is.
fn ranks_of(sink: &SinkTransfer, peer: PeerKey) -> Vec<u16> {
    sink.sources.iter().filter(|(_, of)| **of == peer).map(|(rank, _)| *rank).collect()
}
