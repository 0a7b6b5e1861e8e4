//! The ranks that read from one source. Each is a place of its own, claimed once by one peer in one life; nothing is
//! counted, so that who answers twice is still one.

use std::collections::BTreeSet;

use super::PeerKey;
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
            /// Its session broke; it may be taken up again.
            Lost,
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
        Lost { Resume => Granted, Abort => Failed, Fault => Failed, Late => Failed }
    }
}

/// Why a rank cannot do what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// There is no such rank.
    #[error("there is no rank {rank} among the {ranks} that this transfer was made for, counted from 0")]
    NoSuchRank {
        /// The rank.
        rank: u16,
        /// How many there are.
        ranks: u16,
    },
    /// It is a rank that needs nothing from this source.
    #[error("this source has nothing for rank {rank} of the sink: other ranks of the source send what it needs")]
    NothingFor {
        /// The rank.
        rank: u16,
    },
    /// Both sides have another number of ranks in mind.
    #[error("the source was made for {here} ranks and the sink says that it has {there}: give both the same number")]
    Disagrees {
        /// Here.
        here: u16,
        /// There.
        there: u16,
    },
    /// Another peer has it.
    #[error(
        "rank {rank} was claimed by peer {} of epoch {} before; give each reader a rank of its own", by.party, by.epoch
    )]
    Claimed {
        /// The rank.
        rank: u16,
        /// Whose it is.
        by: PeerKey,
    },
    /// Whoever says it has not claimed that rank.
    #[error("rank {rank} is not of the peer that speaks for it: it has to claim the rank by a grant first")]
    NotYours {
        /// The rank.
        rank: u16,
    },
}

/// The ranks that read from one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// How many ranks the sink has; some of them may need nothing from this source.
    of: u16,
    /// Those that do, in their order.
    ranks: Vec<Rank>,
    /// Those that have not ended.
    outstanding: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rank {
    number: u16,
    place: Place,
    peer: Option<PeerKey>,
}

impl Places {
    /// All ranks of so many, unclaimed.
    pub fn new(of: u16) -> Self {
        Self::some(0..of, of)
    }

    /// These ranks of so many, unclaimed: the others read from other sources.
    pub fn some(ranks: impl IntoIterator<Item = u16>, of: u16) -> Self {
        let ranks = ranks.into_iter().filter(|rank| *rank < of).collect::<BTreeSet<u16>>().into_iter();
        let ranks: Vec<Rank> = ranks.map(|number| Rank { number, place: Place::Unclaimed, peer: None }).collect();
        Self { of, outstanding: ranks.len(), ranks }
    }

    /// How many ranks the sink has.
    pub fn of(&self) -> u16 {
        self.of
    }

    fn at(&self, rank: u16) -> Option<usize> {
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
        match self.ranks[at] {
            Rank { peer: None, .. } => {
                let step = self.step_at(at, PlaceEvent::Grant);
                if step != Step::Stay {
                    self.ranks[at].peer = Some(peer);
                }
                Ok(step)
            }
            Rank { place: Place::Lost, .. } if resumes => {
                self.ranks[at].peer = Some(peer);
                Ok(self.step_at(at, PlaceEvent::Resume))
            }
            Rank { peer: Some(by), .. } if by == peer => Ok(Step::Stay),
            Rank { peer: Some(by), .. } => Err(PlaceError::Claimed { rank, by }),
        }
    }

    /// What a peer says of its rank.
    pub fn on(&mut self, rank: u16, peer: PeerKey, event: PlaceEvent) -> Result<Step<Place>, PlaceError> {
        let at = self.check(rank)?;
        if self.ranks[at].peer != Some(peer) {
            return Err(PlaceError::NotYours { rank });
        }
        Ok(self.step_at(at, event))
    }

    /// What happens to a rank here, whoever has it.
    pub fn here(&mut self, rank: u16, event: PlaceEvent) -> Result<Step<Place>, PlaceError> {
        self.check(rank).map(|at| self.step_at(at, event))
    }

    fn step_at(&mut self, at: usize, event: PlaceEvent) -> Step<Place> {
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
    pub fn iter(&self) -> impl Iterator<Item = (u16, Place, Option<PeerKey>)> + '_ {
        self.ranks.iter().map(|rank| (rank.number, rank.place, rank.peer))
    }

    /// Whether this holds for all.
    pub fn all_are(&self, mut is: impl FnMut(Place) -> bool) -> bool {
        self.ranks.iter().all(|rank| is(rank.place))
    }

    /// The ranks of a peer: a process may have several.
    pub fn of_peer(&self, peer: PeerKey) -> impl Iterator<Item = u16> + '_ {
        self.iter().filter(move |(_, _, of)| *of == Some(peer)).map(|(number, ..)| number)
    }

    /// How many have not ended: so many acknowledgements are still to come.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

#[cfg(test)]
mod tests;
