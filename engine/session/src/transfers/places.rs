//! The ranks that read from one source. Each is a place of its own, claimed once by one peer in one life; nothing is
//! counted, so that who answers twice is still one.
//!
//! It is the one book of where a rank is: what else is kept of a rank stands beside its state.

use std::ops::{Deref, DerefMut, Index, IndexMut};

use super::PeerKey;
use crate::few::Few;
use crate::machine;
use crate::machine::Step;

machine! {
    /// A rank of the sink, as its source sees it.
    pub Place on PlaceEvent {
        states {
            /// Nobody has claimed it.
            Unclaimed,
            /// Its sink has room for bytes, and none are moving.
            Granted,
            /// Bytes are moving.
            Moving,
            /// All legs that were granted have landed, and there is more.
            Paused,
            /// Everything has landed, and the sink has not said so yet.
            Sealed,
            /// The sink has everything, and the end of the last move is not known here yet: its word was quicker.
            Answered,
            /// It has ended, but its bytes may still be moving.
            Aborting,
            /// Its session broke; it may be taken up again, and the sink may say in another one that it has everything.
            Lost,
            /// Its sink says in another session what it still needs. Nothing goes there before all of that is said, and before
            /// nothing of the old session moves any more.
            Resuming,
        }
        ends {
            /// Its sink has everything.
            Acked,
            /// It has failed.
            Failed,
        }
        events {
            /// The sink has room.
            Grant,
            /// Bytes begin to move.
            Begin,
            /// A leg has landed, and there is more.
            LegLanded,
            /// The last leg has landed.
            LastLanded,
            /// The sink says that it has everything; fed only where that can be.
            Ack,
            /// The sink gives it up.
            Abort,
            /// Something here has failed.
            Fault,
            /// Its time is over.
            Late,
            /// Its session is over.
            Lose,
            /// Nothing of it moves any more.
            Drained,
            /// The sink takes it up again, in another session.
            Resume,
            /// It has said all that it needs, and nothing of the old session moves.
            Resumed,
        }
        Unclaimed { Grant => Granted, Abort => Failed, Fault => Failed, Late => Failed }
        Granted {
            Grant => Granted, Begin => Moving, LastLanded => Sealed, Ack => Acked,
            Abort => Failed, Fault => Failed, Late => Failed, Lose => Lost,
        }
        Moving {
            Grant => Moving, Begin => Moving, LegLanded => Paused, LastLanded => Sealed, Ack => Answered,
            Abort => Aborting, Fault => Aborting, Late => Aborting, Lose => Lost,
        }
        Paused {
            Grant => Granted, Begin => Moving, LastLanded => Sealed,
            Abort => Failed, Fault => Failed, Late => Failed, Lose => Lost,
        }
        Sealed { Grant => Sealed, Ack => Acked, Abort => Failed, Fault => Failed, Late => Failed, Lose => Lost }
        Answered {
            Ack => Answered, LegLanded => Answered, LastLanded => Acked, Drained => Acked, Grant => Answered,
            Abort => Answered, Fault => Answered, Late => Answered, Lose => Answered,
        }
        Aborting {
            Grant => Aborting, LegLanded => Aborting, LastLanded => Aborting, Abort => Aborting, Fault => Aborting,
            Late => Aborting, Drained => Failed, Lose => Failed,
        }
        Lost {
            Resume => Resuming, LegLanded => Lost, LastLanded => Lost, Ack => Acked,
            Abort => Failed, Fault => Failed, Late => Failed, Lose => Lost, Drained => Lost,
        }
        Resuming {
            Grant => Resuming, Resume => Resuming, Resumed => Granted, Ack => Acked,
            Abort => Aborting, Fault => Aborting, Late => Aborting, Lose => Lost,
        }
    }
}

/// Why a rank cannot do what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// There is no such rank.
    #[error("there is no rank {rank} among the {ranks} that this transfer was made for, counted from 0")]
    NoSuchRank {
        rank: u16,
        /// How many there are.
        ranks: u16,
    },
    /// It is a rank that needs nothing from this source.
    #[error("this source has nothing for rank {rank} of the sink: other ranks of the source send what it needs")]
    NothingFor { rank: u16 },
    /// Both sides have another number of ranks in mind.
    #[error("the source was made for {here} ranks and the sink says that it has {there}: give both the same number")]
    Disagrees { here: u16, there: u16 },
    /// Another peer has it.
    #[error(
        "rank {rank} was claimed by peer {} of epoch {} before; give each reader a rank of its own", by.peer_index, by.epoch
    )]
    Claimed { rank: u16, by: PeerKey },
    /// Its session broke, and this is no word of going on.
    #[error("the session of rank {rank} broke: it goes on by grants that say so, and by no others")]
    Lost { rank: u16 },
    /// Whoever says it has not claimed that rank.
    #[error("rank {rank} is not of the peer that speaks for it: it has to claim the rank by a grant first")]
    NotYours { rank: u16 },
}

/// The ranks that read from one source, and what is kept of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places<T = ()> {
    /// How many ranks the sink has; some of them may need nothing from this source.
    of: u16,
    /// Those that do, in their order.
    ranks: Few<Rank<T>>,
    /// Those that have not ended.
    outstanding: usize,
}

/// One of them: its state is changed by events only, what is kept of it by whoever has the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank<T> {
    number: u16,
    place: Place,
    peer: Option<PeerKey>,
    kept: T,
}

impl<T> Rank<T> {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its state.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Who has claimed it.
    pub fn peer(&self) -> Option<PeerKey> {
        self.peer
    }
}

impl<T> Deref for Rank<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.kept
    }
}

impl<T> DerefMut for Rank<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.kept
    }
}

impl<T> Index<usize> for Places<T> {
    type Output = Rank<T>;

    fn index(&self, at: usize) -> &Rank<T> {
        &self.ranks[at]
    }
}

impl<T> IndexMut<usize> for Places<T> {
    fn index_mut(&mut self, at: usize) -> &mut Rank<T> {
        &mut self.ranks[at]
    }
}

impl Places {
    /// All ranks of so many, unclaimed.
    pub fn new(of: u16) -> Self {
        Self::some(0..of, of)
    }

    /// These ranks of so many, unclaimed: the others read from other sources.
    pub fn some(ranks: impl IntoIterator<Item = u16>, of: u16) -> Self {
        Self::keeping(ranks, of, || ())
    }
}

impl<T> Places<T> {
    /// The same, and of each is kept what this makes.
    pub fn keeping(ranks: impl IntoIterator<Item = u16>, of: u16, make: impl Fn() -> T) -> Self {
        let mut numbers: Few<u16> = ranks.into_iter().filter(|rank| *rank < of).collect();
        numbers.sort_unstable();
        let rank = |&number: &u16| Rank { number, place: Place::Unclaimed, peer: None, kept: make() };
        let ranks: Few<Rank<T>> = numbers.chunk_by(|one, next| one == next).map(|same| rank(&same[0])).collect();
        Self { of, outstanding: ranks.len(), ranks }
    }

    /// How many ranks the sink has.
    pub fn of(&self) -> u16 {
        self.of
    }

    /// How many of them read from this source.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Where a rank stands among those.
    pub fn at(&self, rank: u16) -> Option<usize> {
        self.ranks.binary_search_by_key(&rank, |rank| rank.number).ok()
    }

    fn check(&self, rank: u16) -> Result<usize, PlaceError> {
        match self.at(rank) {
            Some(at) => Ok(at),
            None if rank < self.of => Err(PlaceError::NothingFor { rank }),
            None => Err(PlaceError::NoSuchRank { rank, ranks: self.of }),
        }
    }

    /// This peer is this rank of so many. Claiming again changes nothing. Who resumes takes over a rank whose session
    /// broke, whoever had it: that both are the same engine is known by their names, which are not known here.
    pub fn claim(&mut self, rank: u16, of: u16, peer: PeerKey, resumes: bool) -> Result<Step<Place>, PlaceError> {
        if of != self.of {
            return Err(PlaceError::Disagrees { here: self.of, there: of });
        }
        let at = self.check(rank)?;
        match (self.ranks[at].peer, self.ranks[at].place) {
            (None, _) => {
                // Also who claims one that has failed speaks for it from now on: it is to be answered when it wants its blocks back.
                self.ranks[at].peer = Some(peer);
                Ok(self.step(at, PlaceEvent::Grant))
            }
            (Some(_), Place::Lost) if resumes => {
                self.ranks[at].peer = Some(peer);
                Ok(self.step(at, PlaceEvent::Resume))
            }
            (Some(by), Place::Lost) if by == peer => Err(PlaceError::Lost { rank }),
            (Some(by), _) if by == peer => Ok(Step::Stay),
            (Some(by), _) => Err(PlaceError::Claimed { rank, by }),
        }
    }

    /// The engine that has this rank speaks for it in another session from now on, which changes nothing of its state. Answers
    /// whether that may be: while a session stands, nobody takes its place.
    pub fn follow(&mut self, rank: u16, peer: PeerKey) -> bool {
        let Some(at) = self.at(rank) else { return false };
        let is_free = self.ranks[at].place == Place::Lost || self.ranks[at].place.is_end();
        let follows = is_free && self.ranks[at].peer.is_some();
        if follows {
            self.ranks[at].peer = Some(peer);
        }
        follows
    }

    /// What a peer says of its rank.
    pub fn on(&mut self, rank: u16, peer: PeerKey, event: PlaceEvent) -> Result<Step<Place>, PlaceError> {
        let at = self.check(rank)?;
        if self.ranks[at].peer != Some(peer) {
            return Err(PlaceError::NotYours { rank });
        }
        Ok(self.step(at, event))
    }

    /// What happens to a rank here, whoever has it.
    pub fn here(&mut self, rank: u16, event: PlaceEvent) -> Result<Step<Place>, PlaceError> {
        self.check(rank).map(|at| self.step(at, event))
    }

    /// What happens to the rank that stands there.
    pub fn step(&mut self, at: usize, event: PlaceEvent) -> Step<Place> {
        let step = self.ranks[at].place.step(event);
        if let Step::Go(next) = step {
            self.ranks[at].place = next;
            self.outstanding -= usize::from(next.is_end());
        }
        step
    }

    /// The state of a rank, if there is such a one.
    pub fn state(&self, rank: u16) -> Option<Place> {
        self.at(rank).map(|at| self.ranks[at].place)
    }

    /// Who has claimed a rank.
    pub fn peer(&self, rank: u16) -> Option<PeerKey> {
        self.at(rank).and_then(|at| self.ranks[at].peer)
    }

    /// All of them, as they are.
    pub fn iter(&self) -> std::slice::Iter<'_, Rank<T>> {
        self.ranks.iter()
    }

    /// The same, where what is kept of them changes.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Rank<T>> {
        self.ranks.iter_mut()
    }

    /// Whether this holds for all.
    pub fn all_are(&self, mut is: impl FnMut(Place) -> bool) -> bool {
        self.ranks.iter().all(|rank| is(rank.place))
    }

    /// The ranks of a peer: a process may have several.
    pub fn of_peer(&self, peer: PeerKey) -> impl Iterator<Item = u16> + '_ {
        self.iter().filter(move |rank| rank.peer == Some(peer)).map(|rank| rank.number)
    }

    /// How many have not ended: so many acknowledgements are still to come.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl<'a, T> IntoIterator for &'a Places<T> {
    type Item = &'a Rank<T>;
    type IntoIter = std::slice::Iter<'a, Rank<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Places<T> {
    type Item = &'a mut Rank<T>;
    type IntoIter = std::slice::IterMut<'a, Rank<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests;
